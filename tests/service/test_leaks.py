"""No clean score in logs, traces, metrics, problem documents, answers or database files, and none of the records.

All clean scores of these collections begin with the digits of MARK. Logs, traces, metrics and problems hold no random
decimal number, so MARK itself is searched there. Databases and answers hold released scores, which may begin with any
digits by chance; there, thirteen digits of each clean score are searched, and its bytes beside those of its neighbour.
A collision by chance has a probability below 1e-7.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from numpy.typing import NDArray
from service_support import DIMENSION, TestClient, make_headers, make_query, open_service, write_policy

from scoreshield.service.answers import AnswerBook, AnswerRequest
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.logs import JsonFormatter

RECORDS = 200
MARK = 0.2321
#: Queries along the first axes have the marked scores. Some of them are answered, the others fail.
AXES, ANSWERED = 9, 3
SEARCH = "/v1/collections/docs/search"
ACTIONS = ["search", "matches", "top_k", "index"]
CALLERS = {
    "app": {"role": "reader", "collections": {"docs": {"actions": ACTIONS}}, "rate": {"requests": 1000}},
    "watch": {"role": "officer", "collections": {"docs": {"actions": ["metrics", "entries"]}}},
}


def make_marked_rows() -> NDArray[np.float64]:
    """Make unit rows whose cosines with the first axes are MARK and a little more."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((RECORDS, DIMENSION))
    rows[:, :AXES] = MARK + rng.uniform(1e-5, 4e-5, (RECORDS, AXES))
    rest = rows[:, AXES:]
    rest *= np.sqrt((1 - (rows[:, :AXES] ** 2).sum(1)) / (rest**2).sum(1))[:, None]
    return rows


def make_axis(number: int) -> list[float]:
    axis: list[float] = np.eye(DIMENSION)[number].tolist()
    return axis


class CleanScores:
    """The clean scores of the collection, in every form that is searched."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        queries = np.array([make_axis(number) for number in range(AXES)])
        lengths = np.linalg.norm(rows, axis=1)
        columns = [rows @ query / lengths for query in queries] + [rows[:, number] for number in range(AXES)]
        self.prefix = str(MARK)
        self.texts = {f"{score:.15f}"[:15].encode() for column in columns for score in column}
        self.pairs = set()
        for column in columns:
            for kind in ("<f8", ">f8", "<f4", ">f4"):
                packed = column.astype(kind)
                self.pairs |= {packed[place : place + 2].tobytes() for place in range(RECORDS - 1)}
        self.rows = {row.tobytes()[:64] for kind in ("<f8", "<f4") for row in rows.astype(kind)}

    def find_in_text(self, text: str) -> bool:
        """Search a text that holds no released number."""
        return self.prefix in text

    def find_in_bytes(self, content: bytes) -> bool:
        """Search bytes that may hold released numbers."""
        windows = {content[place : place + 15] for place in _find_all(content, self.prefix.encode())}
        if windows & self.texts:
            return True
        return any(pair in content for pair in itertools.chain(self.pairs, self.rows))


def _find_all(content: bytes, part: bytes) -> Iterator[int]:
    place = content.find(part)
    while place >= 0:
        yield place
        place = content.find(part, place + 1)


@pytest.fixture
def clean() -> CleanScores:
    return CleanScores(make_marked_rows())


def open_marked(folder: Path) -> Service:
    rows = make_marked_rows()
    ids = np.array([f"r{place}" for place in range(RECORDS)])
    np.savez(folder / "docs.npz", embeddings=rows, ids=ids, year=np.arange(RECORDS))
    changes = {
        "budget": {"epsilon": 100.0},
        "search": {"mechanism": "staircase", "epsilon": 1.0, "most": 200, "keep": 200},
        "matches": {"threshold": 0.2, "epsilon": 2.0, "refine": 0.5},
        "index": {"epsilon": 10.0},
        "embedder": "hashing",
    }
    return open_service(folder, write_policy(collection=changes, callers=CALLERS))


def make_traffic(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[bytes], list[str]]:
    """Ask by every interface, with faults in between; return the bodies of answers and of problems."""
    bodies, problems = [], []
    headers = make_headers(service)

    def send(path: str, body: Any, **extra: str) -> None:
        answer = client.post(path, json=body, headers={**headers, **extra})
        if answer.status_code == 200 and b"internal_error" not in answer.content:  # MCP's errors have the status 200
            bodies.append(answer.content)
        else:
            problems.append(answer.text)

    for number in range(ANSWERED):
        send(SEARCH, {"query": make_axis(number), "k": 200})
        send(SEARCH, {"query": make_axis(number), "k": 200})
        send("/v1/collections/docs/matches", {"query": make_axis(number)})
        send("/v1/collections/docs/top-k", {"query": make_axis(number)})
        send("/collections/docs/points/query", {"query": make_axis(number), "limit": 50})
    send(SEARCH, {"queries": [make_axis(0), make_query(1)]})
    send("/v1/vector_stores/docs/search", {"query": "a text"})
    arguments = {"collection": "docs", "query": make_axis(1)}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": arguments}}
    send("/mcp", call, accept="application/json, text/event-stream")
    assert len(bodies) == 5 * ANSWERED + 3
    for path in ("budget", "certificate", "index"):
        bodies.append(client.get(f"/v1/collections/docs/{path}", headers=headers).content)
    bodies.append(client.get("/v1/collections/docs/entries", headers=make_headers(service, "watch")).content)
    send(SEARCH, {"query": [MARK]})
    send(SEARCH, {"query": make_axis(0), "filter": {"hidden": 1}})
    send("/collections/docs/points/scroll", {})
    send("/v1/collections/nothing/search", {"query": make_axis(0)})

    # Errors in the middle of a release, whose own texts hold clean scores.
    failing = iter(range(ANSWERED, AXES))
    for step, fail in (("_draw", _fail_with_scores), ("_store", _fail_with_mark)):
        with monkeypatch.context() as patch:
            patch.setattr(AnswerBook, step, fail)
            send(SEARCH, {"query": make_axis(next(failing))})
            send("/collections/docs/points/query", {"query": make_axis(next(failing))})
            arguments["query"] = make_axis(next(failing))
            send("/mcp", call, accept="application/json, text/event-stream")
    assert sum("internal_error" in text for text in problems) == 6
    return bodies, problems


def _fail_with_scores(_: AnswerBook, request: AnswerRequest, row: Any) -> Any:
    scores = request.offer.prepare(request.query, None).compute()
    assert str(MARK) in repr(scores)
    raise RuntimeError(f"these are clean: {scores!r} {row}")


def _fail_with_mark(*_: Any) -> Any:
    raise RuntimeError(f"a clean score: {MARK}")


def test_nothing_holds_a_clean_score(
    tmp_path: Path, clean: CleanScores, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Traffic by every interface, with failures in between, leaves no clean score anywhere."""
    pytest.importorskip("opentelemetry.sdk", reason="the 'traces' extra is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter().format(record))
            lines.append(str(record.getMessage()))  # also what another formatter would write
            lines.append("" if record.exc_info is None else logging.Formatter().formatException(record.exc_info))

    handler = Handler(logging.DEBUG)
    for name in ("", "scoreshield.service", "uvicorn", "mcp"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])
        request.addfinalizer(partial(logger.setLevel, logger.level))  # it also clears what loggers remember of levels
        logger.setLevel(logging.DEBUG)
    service = open_marked(tmp_path)
    with TestClient(create_app(service, provider), raise_server_exceptions=False) as client:
        bodies, problems = make_traffic(client, service, monkeypatch)
        metrics = client.get("/metrics", headers=make_headers(service, "watch")).text
        spans = [span.to_json() for span in exporter.get_finished_spans()]
    assert len(lines) > 50
    assert len(spans) > 20
    for kind, texts in (("logs", lines), ("spans", spans), ("metrics", [metrics]), ("problems", problems)):
        assert not any(clean.find_in_text(text) for text in texts), kind
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "docs.npz"}
    assert {"service.db", "service-docs.ledger.db"} <= set(files)
    for name, content in files.items():
        assert not clean.find_in_bytes(content), name
    for body in bodies:
        assert not clean.find_in_bytes(body)


def test_planted_leaks_are_found(tmp_path: Path, clean: CleanScores) -> None:
    """The search finds a score in a line of log, in JSON, in arrays of both precisions, and a record in a file."""
    rows = make_marked_rows()
    scores = rows[:, 0]
    assert clean.find_in_text(f"score {scores[3]:.4f}")
    assert clean.find_in_text(json.dumps({"facts": scores[:2].tolist()}))
    assert clean.find_in_bytes(json.dumps(scores.tolist()).encode())
    assert clean.find_in_bytes(b"x" + scores.astype(np.float32).tobytes())
    assert clean.find_in_bytes(b"x" + scores.tobytes())
    assert clean.find_in_bytes((tmp_path / "docs.npz").read_bytes() if open_marked(tmp_path) else b"")
    assert not clean.find_in_bytes(json.dumps([0.2321112345678, 0.1]).encode())
