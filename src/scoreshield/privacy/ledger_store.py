"""Where a ledger lives: SQLite in one file, or PostgreSQL. Both run a piece of work in one transaction, under one lock.

SQLite keeps its rollback journal (not the write-ahead log, whose shared memory does not work across hosts) with
``synchronous=EXTRA``: when a commit returns, entry and journal removal are on the disk. ``BEGIN IMMEDIATE`` takes the
write lock before anything is read, so what a charge reads is what it is decided on. PostgreSQL takes the ledger's
single row ``FOR UPDATE`` for the same reason, and never commits asynchronously. A connection lasts for one transaction,
so a fork, a thread or a lost server cannot share or break one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.ledger_entry import COLUMNS, Entry

T = TypeVar("T")

BUSY_SECONDS = 60.0
_RETRIES = 8
_UNKNOWN = "if this charge was recorded all the same, it costs budget and released nothing"

_TABLES = (
    """CREATE TABLE scoreshield_ledger (
        one INTEGER PRIMARY KEY CHECK (one = 1), facts TEXT NOT NULL, fingerprint_key TEXT NOT NULL,
        entries BIGINT NOT NULL, head TEXT NOT NULL)""",
    """CREATE TABLE scoreshield_entries (
        id BIGINT PRIMARY KEY, format INTEGER NOT NULL, kind TEXT NOT NULL, time TEXT NOT NULL, note TEXT NOT NULL,
        dataset TEXT, unit TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL, profile TEXT NOT NULL,
        guarantee TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE)""",
)


class Session:
    """The statements of a ledger, inside one transaction."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute

    def facts(self) -> tuple[str, str, int, str] | None:
        """The ledger's own facts, fingerprint key, number of entries and head; None where there is none."""
        row = self._execute("SELECT facts, fingerprint_key, entries, head FROM scoreshield_ledger").fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])

    def create(self, facts: str, key: str, head: str) -> None:
        for statement in _TABLES:
            self._execute(statement)
        self._execute("INSERT INTO scoreshield_ledger VALUES (1, ?, ?, 0, ?)", (facts, key, head))

    def last(self) -> Entry | None:
        row = self._execute(f"SELECT {', '.join(COLUMNS)} FROM scoreshield_entries ORDER BY id DESC LIMIT 1").fetchone()
        return None if row is None else Entry(*row)

    def count(self) -> int:
        return int(self._execute("SELECT COUNT(*) FROM scoreshield_entries").fetchone()[0])

    def tallies(self) -> list[tuple[str | None, str, int, str, str, int]]:
        """Dataset, unit, format, kind, profile and how many there are of each."""
        columns = "dataset, unit, format, kind, profile"
        return list(self._execute(f"SELECT {columns}, COUNT(*) FROM scoreshield_entries GROUP BY {columns}").fetchall())

    def append(self, entry: Entry) -> None:
        marks = ", ".join("?" for _ in COLUMNS)
        values = tuple(getattr(entry, name) for name in COLUMNS)
        self._execute(f"INSERT INTO scoreshield_entries ({', '.join(COLUMNS)}) VALUES ({marks})", values)

    def advance(self, entry: Entry) -> None:
        self._execute("UPDATE scoreshield_ledger SET entries = ?, head = ?", (entry.id, entry.hash))

    def entries(self) -> Iterator[Entry]:
        rows = self._execute(f"SELECT {', '.join(COLUMNS)} FROM scoreshield_entries ORDER BY id").fetchall()
        return (Entry(*row) for row in rows)


class Store(ABC):
    """A database that holds one ledger."""

    name: str  # the address, without a password

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a ledger."""

    @abstractmethod
    def create(self, facts: str, key: str, head: str) -> None:
        """Make the ledger, unless another process has done so."""

    @abstractmethod
    def read(self, work: Callable[[Session], T]) -> T:
        """Run the work on one consistent state."""

    @abstractmethod
    def write(self, work: Callable[[Session], T]) -> T:
        """Run the work under the ledger's lock; what it wrote is on the disk when this returns, or not there at all."""


def store_at(url: Any) -> Store:
    """The store that an address names."""
    if isinstance(url, str) and url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SQLiteStore(url)
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        return PostgresStore(url)
    got = repr(url) if not isinstance(url, str) or "@" not in url else "another address"
    raise InvalidInput(f"The 'url' parameter of Ledger must be sqlite:///PATH or postgresql://... Got {got} instead.")


class SQLiteStore(Store):
    """One file, for any number of processes on one host."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._path = Path(url.removeprefix("sqlite:///"))
        if str(self._path) == ":memory:":
            raise InvalidInput("A ledger must outlive its process: give it a file, such as sqlite:///ledger.db.")

    def exists(self) -> bool:
        try:
            there = self._path.exists()
        except (OSError, ValueError) as error:
            raise InvalidInput(f"The ledger's address {self.name[:80]!r} names no usable file: {error}.") from None
        if not there:
            return False
        with self._connection() as connection:
            return self._tables(connection)

    def create(self, facts: str, key: str, head: str) -> None:
        try:  # for its owner alone: the fingerprint key is in it
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise LedgerError(f"The ledger {self._path} cannot be made: {reason}.") from None

        def work(session: Session) -> None:
            session.create(facts, key, head)

        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if self._tables(connection):
                connection.execute("ROLLBACK")
            else:
                self._finish(connection, work)

    def read(self, work: Callable[[Session], T]) -> T:
        with self._connection() as connection:
            connection.execute("BEGIN")
            return work(Session(connection.execute))

    def write(self, work: Callable[[Session], T]) -> T:
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            return self._finish(connection, work)

    def _finish(self, connection: sqlite3.Connection, work: Callable[[Session], T]) -> T:
        """Do the work and commit; closing a connection that did not commit rolls back."""
        answer = work(Session(connection.execute))
        connection.execute("COMMIT")
        return answer

    def _tables(self, connection: sqlite3.Connection) -> bool:
        names = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and "scoreshield_ledger" not in names:
            raise LedgerError(f"{self._path} is a database of something else and holds no ledger.")
        return bool(names)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            address = f"file:{quote(str(self._path))}?mode=rw"
            connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        except (sqlite3.Error, OSError, ValueError) as error:
            raise LedgerError(f"The ledger {self._path} cannot be opened: {_reason(error)}.") from None
        try:
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous=EXTRA")
                connection.execute("PRAGMA fullfsync=ON")
                yield connection
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise LedgerError(_locked(self._path)) from None
            raise LedgerError(f"The ledger {self._path} cannot be used: {_reason(error)}; {_UNKNOWN}.") from None
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path} is not a ledger, or is corrupt: {_reason(error)}.") from None


class PostgresStore(Store):
    """A database server, for any number of hosts. One ledger per schema: ``?options=-csearch_path%3Dname`` chooses."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InvalidInput(
                "A ledger on PostgreSQL needs the 'postgres' extra: pip install 'scoreshield[postgres]'."
            ) from None
        self._psycopg = psycopg
        self._url = url
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidInput(f"The ledger's address is not a valid one: {error}.") from None
        self.name = urlunsplit(("postgresql", parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def exists(self) -> bool:
        def work(connection: Any) -> bool:
            return bool(connection.execute("SELECT to_regclass('scoreshield_ledger') IS NOT NULL").fetchone()[0])

        return self._run(work)

    def create(self, facts: str, key: str, head: str) -> None:
        def work(connection: Any) -> None:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('scoreshield_ledger'))")
            if not connection.execute("SELECT to_regclass('scoreshield_ledger') IS NOT NULL").fetchone()[0]:
                _durable(connection)
                self._session(connection).create(facts, key, head)

        self._run(work)

    def read(self, work: Callable[[Session], T]) -> T:
        def reading(connection: Any) -> T:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return work(self._session(connection))

        return self._run(reading)

    def write(self, work: Callable[[Session], T]) -> T:
        def writing(connection: Any) -> T:
            _durable(connection)
            connection.execute("SELECT one FROM scoreshield_ledger FOR UPDATE")
            return work(self._session(connection))

        return self._run(writing)

    def _session(self, connection: Any) -> Session:
        return Session(lambda statement, values=(): connection.execute(statement.replace("?", "%s"), values))

    def _run(self, work: Callable[[Any], T]) -> T:
        """One transaction, again where the server says that another stood in its way."""
        psycopg = self._psycopg
        for attempt in range(_RETRIES):
            try:
                with psycopg.connect(self._url, connect_timeout=10, application_name="scoreshield") as connection:
                    return work(connection)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                time.sleep(0.01 * 2**attempt)
            except psycopg.errors.LockNotAvailable:
                raise LedgerError(_locked(self.name)) from None
            except psycopg.Error as error:
                raise LedgerError(f"The ledger {self.name} cannot be used: {_reason(error)}; {_UNKNOWN}.") from None
        raise LedgerError(f"The ledger {self.name} was in too much demand to be charged; nothing was charged.")


def _durable(connection: Any) -> None:
    """Commits wait for the disk, whatever the server's default; locks do not wait for ever."""
    connection.execute(f"SET LOCAL lock_timeout = '{BUSY_SECONDS:g}s'")
    if connection.execute("SHOW synchronous_commit").fetchone()[0] in ("off", "local"):
        connection.execute("SET LOCAL synchronous_commit = on")


def _locked(name: object) -> str:
    return f"The ledger {name} has been locked by another process for {BUSY_SECONDS:g} s; nothing was charged."


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join((text or type(error).__name__).split()).rstrip(".")
