"""Where a ledger lives: SQLite in one file, or PostgreSQL. Both run a piece of work in one transaction, under one lock.

SQLite keeps its rollback journal (not the write-ahead log, whose shared memory does not work across hosts) with
``synchronous=EXTRA``: when a commit returns, entry and journal removal are on the disk. ``BEGIN IMMEDIATE`` takes the
write lock before anything is read, so what a charge reads is what it is decided on. PostgreSQL takes the ledger's
single row ``FOR UPDATE`` for the same reason, and never commits asynchronously. A connection lasts for one transaction.

Closing *any* descriptor of a file drops this process's POSIX locks on it, SQLite's among them. So nothing here opens
the file of a ledger but SQLite itself, and a new ledger is built under another name and linked into place.

SQLite takes a journal or a write-ahead log beside a file for that file's own, whoever left it there. So a new ledger is
not made beside one, and no ledger is used beside a write-ahead log, which it never has.

A fork copies what SQLite believes about its locks, and not the locks. So a fork waits until no other thread is in a
transaction here, and a child starts without one. A child whose own thread was in one cannot use SQLite any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import secrets
import sqlite3
import stat
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from scoreshield._frames import clear_frames_on_error
from scoreshield._loading import make_printable
from scoreshield.errors import InvalidInput, LedgerError, LedgerWarning
from scoreshield.privacy.ledger.entries import COLUMNS, Entry

T = TypeVar("T")

BUSY_SECONDS = 60.0
_SHORT_WAIT = 0.002  # seconds, between a transaction and a fork of the same process
_RETRIES = 8
_UNKNOWN = "if this charge was recorded all the same, it costs budget and released nothing"

_LEDGER = """CREATE TABLE scoreshield_ledger (
        one INTEGER PRIMARY KEY CHECK (one = 1), facts TEXT NOT NULL, fingerprint_key TEXT NOT NULL,
        entries BIGINT NOT NULL, head TEXT NOT NULL)"""
_ENTRIES = """CREATE TABLE scoreshield_entries (
        id BIGINT PRIMARY KEY, format INTEGER NOT NULL, kind TEXT NOT NULL, time TEXT NOT NULL, note TEXT NOT NULL,
        dataset TEXT, unit TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL, profile TEXT NOT NULL,
        guarantee TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE)"""
_BY_DATASET = "CREATE INDEX scoreshield_entries_by_dataset ON scoreshield_entries (dataset, id)"
#: Earlier versions made no such table, and no index: the first charge does. '' stands for charges without a dataset.
_ACCOUNTS = """CREATE TABLE scoreshield_accounts (
        dataset TEXT PRIMARY KEY, last BIGINT NOT NULL, sums TEXT NOT NULL, seal TEXT NOT NULL)"""

#: All that a ledger's database holds, with the statement that makes it.
_OBJECTS = {
    ("table", "scoreshield_ledger"): _LEDGER,
    ("table", "scoreshield_entries"): _ENTRIES,
    ("table", "scoreshield_accounts"): _ACCOUNTS,
    ("index", "scoreshield_entries_by_dataset"): _BY_DATASET,
}
_FIELDS = ", ".join(COLUMNS)
_MOUNTS = Path("/proc/self/mountinfo")  # on Linux, where a single file can be mounted
_PAGE = 1000


class Session:
    """The statements of a ledger, inside one transaction."""

    def __init__(self, execute: Callable[..., Any], has_accounts: bool, self_check: str | None = None) -> None:
        self._execute, self._has_accounts, self._self_check = execute, has_accounts, self_check

    def facts(self) -> tuple[str, str, int, str] | None:
        """The ledger's own facts, key, number of entries and head; None where there is none."""
        row = self._execute("SELECT facts, fingerprint_key, entries, head FROM scoreshield_ledger").fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])

    def create(self, facts: str, key: str, head: str) -> None:
        self._execute(_LEDGER)
        self._execute(_ENTRIES)
        self._execute("INSERT INTO scoreshield_ledger VALUES (1, ?, ?, 0, ?)", (facts, key, head))
        self.add_accounts()

    def has_accounts(self) -> bool:
        """Whether there is a table of sums."""
        return self._has_accounts

    def add_accounts(self) -> None:
        """Make the table of sums, and the index that finds the entries of one account."""
        self._execute(_ACCOUNTS)
        self._execute(_BY_DATASET.replace("INDEX", "INDEX IF NOT EXISTS"))
        self._has_accounts = True

    def entry(self, number: int) -> Entry | None:
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries WHERE id = ?", (number,)).fetchone()
        return None if row is None else Entry(*row)

    def entry_with(self, hash_: str) -> Entry | None:
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries WHERE hash = ?", (hash_,)).fetchone()
        return None if row is None else Entry(*row)

    def first(self) -> Entry | None:
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries ORDER BY id LIMIT 1").fetchone()
        return None if row is None else Entry(*row)

    def last(self) -> Entry | None:
        row = self._execute(f"SELECT {_FIELDS} FROM scoreshield_entries ORDER BY id DESC LIMIT 1").fetchone()
        return None if row is None else Entry(*row)

    def last_number(self) -> int:
        return _number(self._execute("SELECT COALESCE(MAX(id), 0) FROM scoreshield_entries").fetchone()[0])

    def links(self, number: int) -> list[tuple[int, str, str]]:
        """Number, previous and hash of the last so many entries, the last one first."""
        columns = "SELECT id, previous, hash FROM scoreshield_entries ORDER BY id DESC LIMIT"
        return [(_number(row[0]), row[1], row[2]) for row in self._execute(f"{columns} {number:d}").fetchall()]

    def count(self, after: int | None = None) -> int:
        """How many entries there are, or how many beyond one: that reads them all."""
        if after is None:
            return int(self._execute("SELECT COUNT(*) FROM scoreshield_entries").fetchone()[0])
        return int(self._execute("SELECT COUNT(*) FROM scoreshield_entries WHERE id > ?", (after,)).fetchone()[0])

    def latest(self, dataset: str | None) -> int:
        """The number of the last entry of an account; 0 where it has none."""
        where, values = _is(dataset)
        row = self._execute(f"SELECT COALESCE(MAX(id), 0) FROM scoreshield_entries WHERE {where}", values).fetchone()
        return _number(row[0])

    def charges(self, dataset: str | None, after: int) -> Iterator[tuple[int, str, int, str, str]]:
        """Number, unit, format, kind and profile of the entries of one account, beyond one entry."""
        where, values = _is(dataset)
        columns = f"SELECT id, unit, format, kind, profile FROM scoreshield_entries WHERE {where} AND id > ?"
        while page := self._execute(f"{columns} ORDER BY id LIMIT {_PAGE}", (*values, after)).fetchall():
            yield from page
            after = page[-1][0]

    def datasets(self) -> list[str]:
        """The names of accounts, each by one look at the index, however many entries it has."""
        rows = self._execute(
            """WITH RECURSIVE found (name) AS (
                SELECT MIN(dataset) FROM scoreshield_entries UNION ALL
                SELECT (SELECT MIN(dataset) FROM scoreshield_entries WHERE dataset > found.name) FROM found
                WHERE found.name IS NOT NULL)
            SELECT name FROM found WHERE name IS NOT NULL"""
        ).fetchall()
        return [str(row[0]) for row in rows]

    def account(self, dataset: str) -> tuple[int, str, str] | None:
        """The number of the last entry that is counted, the sums, and their seal."""
        query = "SELECT last, sums, seal FROM scoreshield_accounts WHERE dataset = ?"
        row = self._execute(query, (dataset,)).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def damage(self) -> str | None:
        """What the database finds wrong with itself: an index, say, that does not list what its table holds."""
        if self._self_check is None:
            return None
        found = str(self._execute(self._self_check).fetchone()[0])
        return None if found == "ok" else found

    def accounts(self) -> list[tuple[Any, int, str, str]]:
        return list(self._execute("SELECT dataset, last, sums, seal FROM scoreshield_accounts").fetchall())

    def set_account(self, dataset: str, row: tuple[int, str, str]) -> None:
        self._execute(
            "INSERT INTO scoreshield_accounts (dataset, last, sums, seal) VALUES (?, ?, ?, ?) ON CONFLICT (dataset) "
            "DO UPDATE SET last = excluded.last, sums = excluded.sums, seal = excluded.seal",
            (dataset, *row),
        )

    def append(self, entry: Entry) -> None:
        marks = ", ".join("?" for _ in COLUMNS)
        values = tuple(getattr(entry, name) for name in COLUMNS)
        self._execute(f"INSERT INTO scoreshield_entries ({_FIELDS}) VALUES ({marks})", values)

    def advance(self, entry: Entry) -> None:
        self._execute("UPDATE scoreshield_ledger SET entries = ?, head = ?", (entry.id, entry.hash))

    def entries(self, after: int = -(2**62)) -> Iterator[Entry]:
        """All entries beyond one, in order, a page at a time."""
        query = f"SELECT {_FIELDS} FROM scoreshield_entries WHERE id > ? ORDER BY id LIMIT {_PAGE}"
        while page := self._execute(query, (after,)).fetchall():
            yield from (Entry(*row) for row in page)
            after = page[-1][0]


def _number(value: Any) -> int:
    """The number of an entry: a damaged database may hold anything at all."""
    if not isinstance(value, int):
        raise LedgerError("The ledger has been altered: it holds an entry without a number; nothing was charged.")
    return value


def _is(dataset: str | None) -> tuple[str, tuple[str, ...]]:
    """The condition on an account: NULL is equal to nothing, and only this form uses the index everywhere."""
    return ("dataset IS NULL", ()) if dataset is None else ("dataset = ?", (dataset,))


class LedgerStore(ABC):
    """A database that holds one ledger."""

    name: str  # the address, without a password

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a ledger."""

    @abstractmethod
    def create(self, facts: str, key: str, head: str) -> bool:
        """Make the ledger; false where there is one, which another process may have made just now."""

    def is_at(self, path: Path) -> bool:  # noqa: ARG002
        """Whether the ledger is this file."""
        return False

    @abstractmethod
    def read(self, work: Callable[[Session], T]) -> T:
        """Run the work on one consistent state."""

    @abstractmethod
    def write(self, work: Callable[[Session], T]) -> T:
        """Run the work under the ledger's lock; what it wrote is on the disk when this returns, or not there at all."""


def open_store(url: Any) -> LedgerStore:
    """The store that an address names."""
    if isinstance(url, str) and url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SQLiteStore(url)
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        return PostgresStore(url)
    got = repr(url) if not isinstance(url, str) or "@" not in url else "another address"
    raise InvalidInput(f"The 'url' parameter of Ledger must be sqlite:///PATH or postgresql://... Got {got} instead.")


class _Pass:
    """Stands for one transaction that is under way."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


class _Gate:
    """Transactions pass it; a fork waits until those of other threads are through, and keeps new ones out meanwhile.

    It has no lock, which an interrupt could leave held, and it holds passes weakly: an interrupt at any line, the last
    ones included, ends the frame that owns the pass, and the pass with it. A transaction announces itself before it
    looks for a fork, and a fork before it looks for transactions, so one of the two sees the other.
    """

    def __init__(self) -> None:
        self._inside: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self._forking: set[int] = set()  # threads
        self.was_forked_inside = False  # this process, or one it descends from, in the middle of a transaction

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        entry, me = _Pass(), threading.get_ident()
        self._inside.add(entry)
        while self._forking - {me}:
            self._inside.discard(entry)
            time.sleep(_SHORT_WAIT)
            self._inside.add(entry)
        try:
            yield
        finally:
            del entry

    def close(self) -> None:
        """Wait for other threads, though no longer than a transaction can take: a fork must not wait forever."""
        self._forking.add(threading.get_ident())
        deadline = time.monotonic() + BUSY_SECONDS
        while not self._is_empty() and time.monotonic() < deadline:
            time.sleep(_SHORT_WAIT)

    def open(self) -> None:
        self._forking.discard(threading.get_ident())

    def open_in_child(self) -> None:
        """The child has one thread: the parent's others, and their transactions and forks, are not the child's."""
        mine = [entry for entry in self._passes() if entry.thread is threading.current_thread()]
        self._inside, self._forking = weakref.WeakSet(mine), set()
        self.was_forked_inside = self.was_forked_inside or bool(mine)

    def _is_empty(self) -> bool:
        me = threading.current_thread()
        return not any(entry.thread is not me and entry.thread.is_alive() for entry in self._passes())

    def _passes(self) -> list[_Pass]:
        while True:
            with contextlib.suppress(RuntimeError):  # another thread has just come or gone
                return list(self._inside)


_gate = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _gate.close(),
        after_in_parent=lambda: _gate.open(),
        after_in_child=lambda: _gate.open_in_child(),
    )


class SQLiteStore(LedgerStore):
    """One file, for any number of processes on one host."""

    def __init__(self, url: str) -> None:
        given = url.removeprefix("sqlite:///")
        if given == ":memory:":
            raise InvalidInput("A ledger must outlive its process: give it a file, such as sqlite:///ledger.db.")
        try:
            self._path = Path(given).absolute()  # another working directory later must not be another ledger
        except (OSError, ValueError) as error:
            raise InvalidInput(f"The ledger's address {url[:80]!r} names no usable file: {_reason(error)}.") from None
        self.name = f"sqlite:///{self._path}"

    def exists(self) -> bool:
        try:
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            reason = _reason(error)
            raise InvalidInput(f"The ledger's address {self.name[:80]!r} names no usable file: {reason}.") from None
        if _is_mount(self._path):
            raise LedgerError(
                f"The ledger {self._path} is mounted as a single file: SQLite keeps its journal in the folder, where "
                "nobody who uses the file by another path would see it; mount the folder."
            )
        with self._transaction("BEGIN") as connection:
            self._check_tables(connection)
        if os.name == "posix" and mode & stat.S_IRWXO:
            warnings.warn(
                f"Everyone on this computer may read or write the ledger {self._path}, which holds a key and who asked "
                f"for what; chmod o= would keep them out.",
                LedgerWarning,
                stacklevel=5,
            )
        return True

    def is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), self._path.stat())
        except (OSError, ValueError):
            return False

    def create(self, facts: str, key: str, head: str) -> bool:
        self._check_nothing_is_left()
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}.part")
        try:  # for its owner alone: the key is in it
            os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            with self._transaction("BEGIN IMMEDIATE", fresh) as connection:
                Session(connection.execute, has_accounts=False).create(facts, key, head)
                connection.execute("COMMIT")
            os.link(fresh, self._path)
        except FileExistsError:
            return False
        except (OSError, ValueError) as error:
            raise LedgerError(f"The ledger {self._path} cannot be made: {_reason(error)}.") from None
        finally:
            with contextlib.suppress(OSError, ValueError):
                fresh.unlink()
        _sync_folder(self._path.parent)
        return True

    @clear_frames_on_error  # they keep the connection, and with it the lock, for as long as somebody keeps the error
    def read(self, work: Callable[[Session], T]) -> T:
        process = os.getpid()
        with self._transaction("BEGIN") as connection:
            answer = work(Session(connection.execute, self._check_tables(connection), "PRAGMA integrity_check(1)"))
            _check_not_forked(process)
            return answer

    @clear_frames_on_error
    def write(self, work: Callable[[Session], T]) -> T:
        process = os.getpid()
        with self._transaction("BEGIN IMMEDIATE") as connection:
            session = Session(connection.execute, self._check_tables(connection))
            if not session.has_accounts():
                session.add_accounts()
            answer = work(session)
            _check_not_forked(process)
            connection.execute("COMMIT")
            return answer

    def _check_tables(self, connection: sqlite3.Connection) -> bool:
        """Whether there is a table of sums; an error for what could change what a charge reads or writes.

        That is anything but the tables and the index that a ledger makes, by the statements that make them: a trigger,
        a view, or a table of ours with more in it.
        """
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        found = {(str(row[0]), str(row[1])): str(row[3]) for row in rows if not _is_automatic(row[1], row[2])}
        if ("table", "scoreshield_ledger") not in found:
            what = "is a database of something else and holds no ledger" if rows else "is there and holds no ledger"
            raise LedgerError(f"{self._path} {what}; name another file.")
        for object_, statement in sorted(found.items()):
            if " ".join(statement.split()) != " ".join(_OBJECTS.get(object_, "").split()):
                raise LedgerError(
                    f"The ledger {self._path} holds what no ledger has, the {' '.join(object_)}: it could change what "
                    "is charged, so nothing is."
                )
        return ("table", "scoreshield_accounts") in found

    @contextlib.contextmanager
    def _transaction(self, begin: str, path: Path | None = None) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction; what is not committed is rolled back."""
        path = self._path if path is None else path
        with contextlib.ExitStack() as stack:
            try:
                connection = self._begin(begin, path, stack)
            except (sqlite3.Error, OSError, ValueError) as error:
                raise self._failure(error, "opened") from None
            try:
                yield connection
            except sqlite3.Error as error:
                raise self._failure(error, "used") from None

    def _begin(self, begin: str, path: Path, stack: contextlib.ExitStack) -> sqlite3.Connection:
        """Wait for the lock in short turns, and outside the gate between them, so that no fork waits for long."""
        if _gate.was_forked_inside:
            raise LedgerError(
                "This process was forked while its own thread was using a ledger, in a signal handler say, so SQLite "
                "cannot use its locks here; nothing was charged. Start the process at another moment."
            )
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            stack.enter_context(_gate.passed())
            self._check_beside(path)
            connection = stack.enter_context(_connected(path))
            try:
                connection.execute("PRAGMA synchronous=EXTRA")
                connection.execute("PRAGMA fullfsync=ON")
                connection.execute(begin)
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                    raise LedgerError(_write_ahead(path))
                connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")  # a commit waits for readers
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
            else:
                return connection
            stack.close()
            time.sleep(0.001 + 0.01 * secrets.randbelow(1000) / 1000)

    def _check_nothing_is_left(self) -> None:
        """Reject what an earlier database of the same name left behind: SQLite would write it into the new ledger."""
        left = [f"{self._path}{ending}" for ending in ("-journal", "-wal", "-shm")]
        left = [name for name in left if os.path.lexists(name)]
        if left and not os.path.lexists(self._path):  # in this order: a ledger that another process makes has a journal
            raise LedgerError(
                f"The ledger {self._path} cannot be made beside {left[0]}, which an earlier database of that name left "
                "behind and SQLite would write into the new one; move it away."
            )

    def _check_beside(self, path: Path) -> None:
        """Reject a write-ahead log, before SQLite reads it and writes it into the ledger, and a second name."""
        if os.path.lexists(os.path.realpath(path) + "-wal"):
            raise LedgerError(_write_ahead(path))
        self._check_one_name(path)

    def _check_one_name(self, path: Path) -> None:
        """Reject a file with a second name: SQLite keeps its journal beside the name that was opened.

        A process that opens the other name does not see the journal of a charge that was killed, and writes over what
        is rolled back later. A creation that was killed leaves such a name, which is ours to remove.
        """
        facts = path.stat()
        if facts.st_nlink < 2 or not stat.S_ISREG(facts.st_mode):
            return
        for other in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            with contextlib.suppress(OSError):
                if os.path.samestat(other.stat(follow_symlinks=False), facts):
                    other.unlink()
        if path.stat().st_nlink > 1:
            raise LedgerError(
                f"The file of the ledger {path} has another name beside this one (a hard link), through which charges "
                "could be lost; remove the other name."
            )

    def _failure(self, error: BaseException, doing: str) -> LedgerError:
        if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
            return LedgerError(_locked(self._path))
        if isinstance(error, sqlite3.OperationalError) and doing == "used":
            return LedgerError(f"The ledger {self._path} cannot be used: {_reason(error)}; {_UNKNOWN}.")
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            return LedgerError(f"{self._path} is not a ledger, or is corrupt: {_reason(error)}.")
        return LedgerError(f"The ledger {self._path} cannot be opened: {_reason(error)}.")


def _check_not_forked(process: int) -> None:
    if os.getpid() != process:
        raise LedgerError("This process was forked in the middle of a charge, which is its parent's alone.")


def _write_ahead(path: Path) -> str:
    return (
        f"The ledger {path} has a write-ahead log, which another program switched on or put there; a ledger keeps a "
        f"rollback journal. If that was you, sqlite3 {path} 'PRAGMA journal_mode=DELETE' switches it back."
    )


def _is_automatic(name: Any, table: Any) -> bool:
    """Whether SQLite made this index by itself, for a key of one of our tables."""
    return str(name).startswith("sqlite_autoindex_") and ("table", str(table)) in _OBJECTS


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    address = f"file:{quote(str(path))}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=0.0, isolation_level=None)
    process = os.getpid()
    try:
        yield connection
    finally:
        if os.getpid() == process:
            connection.close()
        else:  # a child must not roll back what its parent is writing, not even when it ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_mount(path: Path) -> bool:
    """Whether a mount of its own covers this one file, as containers do it: a hard link that no file system shows."""
    try:
        mounts = _MOUNTS.read_bytes().split(b"\n")
    except OSError:
        return False
    octal = {b" ": rb"\040", b"\t": rb"\011", b"\n": rb"\012"}
    name = os.fsencode(os.path.realpath(path)).replace(b"\\", rb"\134")
    for character, escaped in octal.items():
        name = name.replace(character, escaped)
    return any(fields[4:5] == [name] for fields in (line.split(b" ") for line in mounts))


def _sync_folder(folder: Path) -> None:
    """Bring a new name to the disk, where the system lets folders be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class PostgresStore(LedgerStore):
    """A database server, for any number of hosts. One ledger per schema: ``?options=-csearch_path%3Dname`` chooses."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InvalidInput(
                "A ledger on PostgreSQL needs the 'postgres' extra: pip install 'scoreshield[postgres]'."
            ) from None
        self._psycopg = psycopg
        parts = _server_parts(psycopg, url)
        if parts is None:
            del url  # it may hold a password, and this error keeps its frames
            raise InvalidInput(
                "The ledger's address is not a valid one: write / ? # % @ : in a name or password as %2F %3F %23 %25 "
                "%40 %3A."
            )
        self.name = _server_name(parts)
        # In closures: attributes would go into every dump of variables.
        self._hide = _hiding([parts[name] for name in _SECRET if parts.get(name)])
        self._connect: Callable[[], Any] = lambda: psycopg.connect(
            url, connect_timeout=10, application_name="scoreshield"
        )

    def __reduce__(self) -> Any:
        raise InvalidInput("A ledger on a server is not pickled, since its address may hold a password: open it again.")

    def exists(self) -> bool:
        def work(connection: Any) -> bool:
            return bool(connection.execute("SELECT to_regclass('scoreshield_ledger') IS NOT NULL").fetchone()[0])

        return self._run(work)

    def create(self, facts: str, key: str, head: str) -> bool:
        def work(connection: Any) -> bool:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('scoreshield_ledger'))")
            if connection.execute("SELECT to_regclass('scoreshield_ledger') IS NOT NULL").fetchone()[0]:
                return False
            _durable(connection)
            self._session(connection, has_accounts=False).create(facts, key, head)
            return True

        return self._run(work)

    def read(self, work: Callable[[Session], T]) -> T:
        def reading(connection: Any) -> T:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return work(self._session(connection, self._check_tables(connection)))

        return self._run(reading)

    def write(self, work: Callable[[Session], T]) -> T:
        def writing(connection: Any) -> T:
            _durable(connection)
            connection.execute("SELECT one FROM scoreshield_ledger FOR UPDATE")
            session = self._session(connection, self._check_tables(connection))
            # Whoever may only charge cannot make a table; for them an old ledger stays as slow as it was.
            if not session.has_accounts() and connection.execute(_MAY_ADD).fetchone()[0]:
                session.add_accounts()
            return work(session)

        return self._run(writing)

    def _session(self, connection: Any, has_accounts: bool) -> Session:
        return Session(
            lambda statement, values=(): connection.execute(statement.replace("?", "%s"), values), has_accounts
        )

    def _check_tables(self, connection: Any) -> bool:
        """Whether there is a table of sums; an error for what could change what a charge reads or writes.

        That is a trigger, a rule, a view, a table that inherits or is not logged, or a row policy.
        """
        tables = [name for kind, name in _OBJECTS if kind == "table"]
        found = {table: connection.execute(_FOREIGN, (table,)).fetchone() for table in tables}
        for table, facts in found.items():
            if facts is not None and (facts[0] not in ("r", b"r") or any(facts[1:])):
                raise LedgerError(
                    f"The table {table} of the ledger {self.name} is a view, is not logged, or has a trigger, a rule "
                    "or a row policy: that could change what is charged, so nothing is."
                )
        return found["scoreshield_accounts"] is not None

    @clear_frames_on_error  # those of the driver know the address
    def _run(self, work: Callable[[Any], T]) -> T:
        """One transaction, again where the server says that another stood in its way."""
        psycopg = self._psycopg
        for attempt in range(_RETRIES):
            try:
                with self._connect() as connection:
                    return work(connection)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                time.sleep(0.01 * 2**attempt)
                continue
            except psycopg.errors.LockNotAvailable:
                failure = LedgerError(_locked(self.name))
            except psycopg.Error as error:
                failure = LedgerError(
                    f"The ledger {self.name} cannot be used: {self._hide(_reason(error))}; {_UNKNOWN}."
                )
            raise failure  # here, where the driver's own error is over and is no context of this one
        raise LedgerError(f"The ledger {self.name} was in too much demand to be charged; nothing was charged.")


_SECRET = ("password", "sslpassword", "passfile", "service")

#: The kind of a table, and whether anything hangs on it. An unlogged table is empty after a crash. Rules of views are
#: of kind "_RETURN".
_FOREIGN = """SELECT c.relkind, c.relpersistence <> 'p', c.relrowsecurity, c.relhasrules, c.relhassubclass,
        EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid)
    FROM pg_class c WHERE c.oid = to_regclass(?)""".replace("?", "%s")


_MAY_ADD = """SELECT pg_has_role(relowner, 'MEMBER') AND has_schema_privilege(relnamespace, 'CREATE')
    FROM pg_class WHERE oid = to_regclass('scoreshield_entries')"""


def _hiding(secrets_: list[str]) -> Callable[[str], str]:
    def hide(text: str) -> str:
        for secret in secrets_:
            text = text.replace(secret, "***")
        return text

    return hide


def _server_parts(psycopg: Any, url: str) -> dict[str, str] | None:
    """What the driver makes of an address; None where a raw character of a password ended up in another part."""
    try:
        parts = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(url).items()}
    except (psycopg.Error, ValueError):
        return None
    hosts = [parts.get(name, "") for name in ("host", "hostaddr", "user")]
    port, name = parts.get("port", ""), parts.get("dbname", "")
    if any("@" in part for part in (*hosts, name)) or "/" in name or not set(port) <= set("0123456789,"):
        return None
    return parts


def _server_name(parts: dict[str, str]) -> str:
    """Host, port and database, and nothing else."""
    host = quote(parts.get("host", parts.get("hostaddr", "")), safe=",:[]/.-")
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{host}{port}/{quote(parts.get('dbname', ''), safe='')}"


def _durable(connection: Any) -> None:
    """Commits wait for the disk, whatever the server's default; locks do not wait for ever."""
    connection.execute(f"SET LOCAL lock_timeout = '{BUSY_SECONDS:g}s'")
    if connection.execute("SHOW synchronous_commit").fetchone()[0] in ("off", "local"):
        connection.execute("SET LOCAL synchronous_commit = on")


def _locked(name: object) -> str:
    return f"The ledger {name} has been locked by another process for {BUSY_SECONDS:g} s; nothing was charged."


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return make_printable(" ".join((text or type(error).__name__).split())[:200]).rstrip(".")
