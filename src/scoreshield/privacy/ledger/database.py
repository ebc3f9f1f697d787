"""The database of a ledger: its tables, the statements of one transaction, and what each database must do.

It runs a piece of work in one transaction, under one lock: `.sqlite` in one file, `.postgres` on a
server. A connection lasts for one transaction, unless `LedgerDatabase.keep_connections` was called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from scoreshield._loading import make_printable
from scoreshield.errors import LedgerError
from scoreshield.privacy.ledger.entries import COLUMNS, DRAW_KINDS, Entry

T = TypeVar("T")

#: How long a transaction waits for the lock.
BUSY_SECONDS = 60.0
#: The end of a message about a transaction that failed at an unknown moment.
UNKNOWN_OUTCOME = "if this charge was recorded nevertheless, it costs budget and released nothing"

_LEDGER = """CREATE TABLE scoreshield_ledger (
        one INTEGER PRIMARY KEY CHECK (one = 1), facts TEXT NOT NULL, fingerprint_key TEXT NOT NULL,
        entries BIGINT NOT NULL, head TEXT NOT NULL)"""
_ENTRIES = """CREATE TABLE scoreshield_entries (
        id BIGINT PRIMARY KEY, format INTEGER NOT NULL, kind TEXT NOT NULL, time TEXT NOT NULL, note TEXT NOT NULL,
        dataset TEXT, unit TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL, profile TEXT NOT NULL,
        guarantee TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE)"""
_BY_DATASET = "CREATE INDEX scoreshield_entries_by_dataset ON scoreshield_entries (dataset, id)"
#: Earlier versions made neither this table nor the index. The first charge makes them. '' stands for charges without a
#: dataset.
_ACCOUNTS = """CREATE TABLE scoreshield_accounts (
        dataset TEXT PRIMARY KEY, last BIGINT NOT NULL, sums TEXT NOT NULL, seal TEXT NOT NULL)"""

#: Everything that the database of a ledger holds, with the statement that makes it.
OBJECTS = {
    ("table", "scoreshield_ledger"): _LEDGER,
    ("table", "scoreshield_entries"): _ENTRIES,
    ("table", "scoreshield_accounts"): _ACCOUNTS,
    ("index", "scoreshield_entries_by_dataset"): _BY_DATASET,
}
#: Tables of the service lie beside those of the ledger, so that an answer and its charge are one transaction.
BESIDE = "scoreshield_service_"
#: So does the table of the keys of distributed releases, so that a key and its charge are one transaction.
RELEASE_KEYS = "scoreshield_release_keys"
_FIELDS = ", ".join(COLUMNS)
_PAGE = 1000
_BEFORE_ALL = -(2**62)


class Session:
    """The statements of a ledger, inside one transaction."""

    def __init__(self, execute: Callable[..., Any], has_accounts: bool, self_check: str | None = None) -> None:
        self._execute, self._has_accounts, self._self_check = execute, has_accounts, self_check

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """Run a statement on tables beside the ledger, in this transaction. A ``?`` stands for each value."""
        return self._execute(statement, values)

    def read_facts(self) -> tuple[str, str, int, str] | None:
        """Read the facts, the key, the number of entries and the head of the ledger; None without a ledger."""
        row = self._execute("SELECT facts, fingerprint_key, entries, head FROM scoreshield_ledger").fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])

    def create(self, facts: str, key: str, head: str) -> None:
        """Make the tables and the row of the ledger."""
        self._execute(_LEDGER)
        self._execute(_ENTRIES)
        self._execute("INSERT INTO scoreshield_ledger VALUES (1, ?, ?, 0, ?)", (facts, key, head))
        self.add_accounts()

    def has_accounts(self) -> bool:
        """Return whether there is a table of sums."""
        return self._has_accounts

    def add_accounts(self) -> None:
        """Make the table of sums, and the index that finds the entries of one account."""
        self._execute(_ACCOUNTS)
        self._execute(_BY_DATASET.replace("INDEX", "INDEX IF NOT EXISTS"))
        self._has_accounts = True

    def read_entry(self, number: int) -> Entry | None:
        """Read the entry of this number, if there is one."""
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries WHERE id = ?", (number,)).fetchone()
        return None if row is None else Entry(*row)

    def find_entry(self, hash_: str) -> Entry | None:
        """Read the entry of this hash, if there is one."""
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries WHERE hash = ?", (hash_,)).fetchone()
        return None if row is None else Entry(*row)

    def read_first(self) -> Entry | None:
        """Read the first entry, if there is one."""
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries ORDER BY id LIMIT 1").fetchone()
        return None if row is None else Entry(*row)

    def read_last(self) -> Entry | None:
        """Read the last entry, if there is one."""
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries ORDER BY id DESC LIMIT 1").fetchone()
        return None if row is None else Entry(*row)

    def read_last_number(self) -> int:
        """Read the number of the last entry; 0 without entries."""
        return _check_number(self._execute("SELECT COALESCE(MAX(id), 0) FROM scoreshield_entries").fetchone()[0])

    def read_links(self, number: int) -> list[tuple[int, str, str]]:
        """Read number, previous hash and hash of this many entries at the end, the last one first."""
        columns = "SELECT id, previous, hash FROM scoreshield_entries ORDER BY id DESC LIMIT"
        return [(_check_number(row[0]), row[1], row[2]) for row in self._execute(f"{columns} {number:d}").fetchall()]

    def count(self, after: int | None = None) -> int:
        """Count the entries, or those after one number. This reads all of them."""
        if after is None:
            return int(self._execute("SELECT COUNT(*) FROM scoreshield_entries").fetchone()[0])
        return int(self._execute("SELECT COUNT(*) FROM scoreshield_entries WHERE id > ?", (after,)).fetchone()[0])

    def read_latest(self, dataset: str | None) -> int:
        """Read the number of the last entry of an account; 0 if it has none."""
        where, values = _write_condition(dataset)
        row = self._execute(f"SELECT COALESCE(MAX(id), 0) FROM scoreshield_entries WHERE {where}", values).fetchone()
        return _check_number(row[0])

    def read_charges(self, dataset: str | None, after: int) -> Iterator[tuple[int, str, int, str, str]]:
        """Read number, unit, format, kind and profile of the entries of one account after one number."""
        where, values = _write_condition(dataset)
        columns = f"SELECT id, unit, format, kind, profile FROM scoreshield_entries WHERE {where} AND id > ?"
        while page := self._execute(f"{columns} ORDER BY id LIMIT {_PAGE}", (*values, after)).fetchall():
            yield from page
            after = page[-1][0]

    def read_draws(self, dataset: str | None) -> Iterator[Entry]:
        """Read the entries of one account that hold draws of an index, the newest first."""
        where, values = _write_condition(dataset)
        kinds = " OR ".join("kind = ?" for _ in DRAW_KINDS)
        query = f"SELECT {_FIELDS} FROM scoreshield_entries WHERE {where} AND ({kinds}) AND id < ?"
        before = 2**62
        while page := self._execute(f"{query} ORDER BY id DESC LIMIT 16", (*values, *DRAW_KINDS, before)).fetchall():
            yield from (Entry(*row) for row in page)
            before = page[-1][0]

    def read_newest(self, dataset: str | None, before: int, number: int) -> list[Entry]:
        """Read this many entries of one account before one number, the newest first."""
        where, values = _write_condition(dataset)
        query = f"SELECT {_FIELDS} FROM scoreshield_entries WHERE {where} AND id < ? ORDER BY id DESC LIMIT {number:d}"
        return [Entry(*row) for row in self._execute(query, (*values, before)).fetchall()]

    def count_by_day(self, dataset: str | None) -> list[tuple[str, str, str, int]]:
        """Count the entries of one account by day, kind and profile, in the order of days. This reads all of them."""
        where, values = _write_condition(dataset)
        day = "SUBSTR(time, 1, 10)"
        rows = self._execute(
            f"SELECT {day}, kind, profile, COUNT(*) FROM scoreshield_entries WHERE {where} "
            f"GROUP BY {day}, kind, profile ORDER BY {day}",
            values,
        ).fetchall()
        return [(str(row[0]), str(row[1]), str(row[2]), int(row[3])) for row in rows]

    def read_datasets(self) -> list[str]:
        """Read the names of the accounts. Each takes one look at the index, for any number of entries."""
        rows = self._execute(
            """WITH RECURSIVE found (name) AS (
                SELECT MIN(dataset) FROM scoreshield_entries UNION ALL
                SELECT (SELECT MIN(dataset) FROM scoreshield_entries WHERE dataset > found.name) FROM found
                WHERE found.name IS NOT NULL)
            SELECT name FROM found WHERE name IS NOT NULL"""
        ).fetchall()
        return [str(row[0]) for row in rows]

    def read_account(self, dataset: str) -> tuple[int, str, str] | None:
        """Read the number of the last entry that is counted, the sums, and their seal."""
        query = "SELECT last, sums, seal FROM scoreshield_accounts WHERE dataset = ?"
        row = self._execute(query, (dataset,)).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def find_damage(self) -> str | None:
        """Let the database check itself, and return what is wrong: for example an index that differs from its table."""
        if self._self_check is None:
            return None
        found = str(self._execute(self._self_check).fetchone()[0])
        return None if found == "ok" else found

    def read_accounts(self) -> list[tuple[Any, int, str, str]]:
        """Read the rows of all accounts: name, last entry, sums and seal."""
        return list(self._execute("SELECT dataset, last, sums, seal FROM scoreshield_accounts").fetchall())

    def write_account(self, dataset: str, row: tuple[int, str, str]) -> None:
        """Write the row of an account: last entry, sums and seal."""
        self._execute(
            "INSERT INTO scoreshield_accounts (dataset, last, sums, seal) VALUES (?, ?, ?, ?) ON CONFLICT (dataset) "
            "DO UPDATE SET last = excluded.last, sums = excluded.sums, seal = excluded.seal",
            (dataset, *row),
        )

    def append(self, entry: Entry) -> None:
        """Write an entry at the end of the chain."""
        marks = ", ".join("?" for _ in COLUMNS)
        values = tuple(getattr(entry, name) for name in COLUMNS)
        self._execute(f"INSERT INTO scoreshield_entries ({_FIELDS}) VALUES ({marks})", values)

    def advance(self, entry: Entry) -> None:
        """Make this entry the head of the ledger."""
        self._execute("UPDATE scoreshield_ledger SET entries = ?, head = ?", (entry.id, entry.hash))

    def read_entries(self, after: int = _BEFORE_ALL) -> Iterator[Entry]:
        """Read all entries after one number, in order, a page at a time."""
        while page := self.read_page(after):
            yield from page
            after = page[-1].id

    def read_page(self, after: int, number: int = _PAGE) -> list[Entry]:
        """Read this many entries after one number, or all that there are, in order."""
        query = f"SELECT {_FIELDS} FROM scoreshield_entries WHERE id > ? ORDER BY id LIMIT {number:d}"
        return [Entry(*row) for row in self._execute(query, (after,)).fetchall()]


def _check_number(value: Any) -> int:
    """Check the number of an entry: a damaged database may hold anything."""
    if not isinstance(value, int):
        raise LedgerError("The ledger has been altered: it holds an entry without a number; nothing was charged.")
    return value


def _write_condition(dataset: str | None) -> tuple[str, tuple[str, ...]]:
    """Write the condition on an account. NULL is equal to nothing, and only this form always uses the index."""
    return ("dataset IS NULL", ()) if dataset is None else ("dataset = ?", (dataset,))


class LedgerDatabase(ABC):
    """A database that holds one ledger."""

    name: str  # the address, without a password

    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is a ledger."""

    @abstractmethod
    def create(self, facts: str, key: str, head: str) -> bool:
        """Make the ledger. Return False if there is one: another process may have made it just now."""

    def keep_connections(self, most: int) -> None:  # noqa: B027
        """Keep up to this many connections open for later transactions. Without this call none is kept."""

    def is_at(self, path: Path) -> bool:  # noqa: ARG002
        """Return whether the ledger is this file."""
        return False

    @abstractmethod
    def read(self, work: Callable[[Session], T]) -> T:
        """Run the work on one consistent state, and return its result."""

    @abstractmethod
    def write(self, work: Callable[[Session], T]) -> T:
        """Run the work under the lock of the ledger, and return its result.

        What the work wrote is on the disk when this returns, or not there at all.
        """


class PagedSession(Session):
    """What a check of the chain reads. Between two pages of entries it holds no lock, so that charges go on.

    All else is copied in one transaction. Entries that are charged after it are left out.
    """

    def __init__(self, database: LedgerDatabase, kept: list[Entry] | None = None) -> None:
        super().__init__(_reject_statement, has_accounts=False)
        self._database, self._kept = database, kept
        database.read(self._copy)

    def _copy(self, session: Session) -> None:
        self._has_accounts = session.has_accounts()
        self._facts, self._last, self._count = session.read_facts(), session.read_last_number(), session.count()
        self._accounts = session.read_accounts() if self._has_accounts else []
        self._datasets, self._damage = session.read_datasets(), session.find_damage()

    def read_facts(self) -> tuple[str, str, int, str] | None:
        return self._facts

    def read_accounts(self) -> list[tuple[Any, int, str, str]]:
        return self._accounts

    def read_datasets(self) -> list[str]:
        return self._datasets

    def find_damage(self) -> str | None:
        return self._damage

    def count(self, after: int | None = None) -> int:
        return self._count if after is None else super().count(after)

    def read_page(self, after: int, number: int = 10 * _PAGE) -> list[Entry]:
        found = self._database.read(lambda session: session.read_page(after, number))
        page = [entry for entry in found if entry.id <= self._last]
        if self._kept is not None:
            self._kept += page
        return page


def _reject_statement(*_: Any) -> NoReturn:
    raise AssertionError("a copy of what was read runs no statement")


def explain_lock(name: object) -> str:
    """Say that another process holds the lock of a ledger."""
    return f"The ledger {name} has been locked by another process for {BUSY_SECONDS:g} s; nothing was charged."


def explain_failure(error: BaseException) -> str:
    """Say what an error of the system or of a database means, in one printable line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return make_printable(" ".join((text or type(error).__name__).split())[:200]).rstrip(".")
