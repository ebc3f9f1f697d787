"""Logs as lines of JSON. A line holds no query, no vector, no score, no exact time of an answer and no traceback."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Writes one line of JSON per record, without the text and the frames of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
            "level": record.levelname.lower(),
            "event": str(record.msg) if record.name.startswith("scoreshield") else record.name,
            **facts,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def start_logs() -> None:
    """Send the logs of the service, and warnings of all libraries, to standard error.

    An embedder or a driver may write a text or a value into its messages. So no message of a library is written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.captureWarnings(True)
    levels: dict[str | None, int] = {None: logging.WARNING, "scoreshield.service": logging.INFO}
    levels |= dict.fromkeys(("uvicorn", "mcp", "opentelemetry"), logging.WARNING)
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
