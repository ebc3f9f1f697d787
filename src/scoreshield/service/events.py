"""Events: who signed in, who failed to, who made, replaced or ended an API key, and who was charged for a question.

Each event is a row of the database, in the transaction of what happened, and a line of the log. Neither holds a secret:
no password, no key, no session, and no name that belongs to no person, since people type passwords into wrong fields.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from scoreshield.service.tables import InstallationDatabase, StatementRunner

EventKind = Literal[
    "signed in",
    "sign-in failed",
    "sign-ins blocked",
    "signed out",
    "person created",
    "person changed",
    "person disabled",
    "person enabled",
    "password set",
    "password change failed",
    "key created",
    "key rotated",
    "key revoked",
    "question charged",
]
_TABLE = "scoreshield_service_events"
_LOG = logging.getLogger("scoreshield.service.events")


@dataclass(frozen=True)
class Author:
    """Who does something.

    Attributes:
        name: "person:NAME", "key:PREFIX", "command line", or nothing where this is unknown.
        address: Where the request came from; nothing for the command line.
    """

    name: str
    address: str = ""


#: The author of what is done by ``scoreshield serve``.
COMMAND_LINE = Author("command line")


@dataclass(frozen=True)
class Event:
    """Something that a person or a key did.

    Attributes:
        kind: What happened.
        author: Who did it.
        subject: The name of the person or the prefix of the key that it happened to, or the collection and the ledger
            entry of a charge.
        time: When it happened; None for now.
    """

    kind: EventKind
    author: Author
    subject: str
    time: datetime | None = None


def write_event(execute: StatementRunner, event: Event) -> None:
    """Write an event in the transaction of what happened, and to the log."""
    time = datetime.now(UTC) if event.time is None else event.time
    facts = {
        "kind": event.kind,
        "author": event.author.name,
        "subject": event.subject,
        "address": event.author.address,
    }
    execute(
        f"INSERT INTO {_TABLE} (time, kind, author, subject, address) "
        "VALUES (:time, :kind, :author, :subject, :address)",
        time=time.isoformat(timespec="microseconds"),
        **facts,
    )
    _LOG.info("audit", extra={"facts": facts})


class EventTable:
    """The events of an installation."""

    def __init__(self, database: InstallationDatabase) -> None:
        self._database = database

    def record(self, event: Event) -> None:
        """Write one event in a transaction of its own."""
        self._database.write(lambda execute: write_event(execute, event))

    def forget_old(self, days: int | None) -> None:
        """Delete the events that are older than a number of days; none of them where it is None."""
        if days is None:
            return
        oldest = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")
        where = f"FROM {_TABLE} WHERE time < :oldest"
        if self._database.read(f"SELECT 1 {where} LIMIT 1", oldest=oldest):
            self._database.write(lambda execute: execute(f"DELETE {where}", oldest=oldest))

    def list_events(self, *, most: int = 100) -> list[Event]:
        """List the newest events, the newest first."""
        rows = self._database.read(
            f"SELECT kind, author, address, subject, time FROM {_TABLE} ORDER BY number DESC LIMIT :most", most=most
        )
        return [Event(row[0], Author(row[1], row[2]), row[3], datetime.fromisoformat(row[4])) for row in rows]
