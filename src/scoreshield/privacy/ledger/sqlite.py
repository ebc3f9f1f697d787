"""A ledger in one SQLite file.

SQLite keeps its rollback journal (not the write-ahead log, whose shared memory does not work across hosts) with
``synchronous=EXTRA``: when a commit returns, entry and journal removal are on the disk. ``BEGIN IMMEDIATE`` takes the
write lock before anything is read, so a charge is decided on what it reads.

Closing *any* descriptor of a file drops the POSIX locks of this process on it, those of SQLite too. So only SQLite
opens the file of a ledger, and a new ledger is built under another name and linked into place.

SQLite takes a journal or a write-ahead log beside a file for that file's own, even if another program left it there. So
a new ledger is not made beside one. No ledger is used beside a write-ahead log, because a ledger never has one.

A fork copies what SQLite believes about its locks, but not the locks. So a fork waits until no other thread is in a
transaction here, and a child starts without one. A child whose own thread was in one cannot use SQLite any more.

A process that charges often may keep connections between transactions. A kept connection is outside of every
transaction, so it holds no lock. It is used again only in the process that opened it, and only while the file of the
ledger is the one that it opened.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from scoreshield._files import sync_folder
from scoreshield._frames import clear_frames_on_error
from scoreshield.errors import InvalidInput, LedgerError, LedgerWarning
from scoreshield.privacy.ledger import database
from scoreshield.privacy.ledger.database import OBJECTS, LedgerDatabase, Session, T, explain_failure, explain_lock

_SHORT_WAIT = 0.002  # seconds, between a transaction and a fork of the same process
_MOUNTS = Path("/proc/self/mountinfo")  # on Linux, where a single file can be mounted


class _Pass:
    """The presence of one transaction."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


class _Gate:
    """Keeps forks and transactions of other threads apart.

    A fork waits until the transactions of other threads end, and lets no new one begin meanwhile. The gate has no lock,
    because an interrupt could leave a lock held. It holds passes weakly: an interrupt at any line ends the frame that
    owns the pass, and the pass with it. A transaction announces itself before it looks for a fork, and a fork before it
    looks for transactions, so one of the two sees the other.
    """

    def __init__(self) -> None:
        self._inside: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self._forking: set[int] = set()  # threads
        self.was_forked_inside = False  # this process, or one it descends from, in the middle of a transaction

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a pass for the time of the block; wait first while another thread forks."""
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
        """Wait for other threads, but no longer than a transaction can take: a fork must not wait forever."""
        self._forking.add(threading.get_ident())
        deadline = time.monotonic() + database.BUSY_SECONDS
        while not self._is_empty() and time.monotonic() < deadline:
            time.sleep(_SHORT_WAIT)

    def open(self) -> None:
        """Let transactions of other threads begin again."""
        self._forking.discard(threading.get_ident())

    def open_in_child(self) -> None:
        """Forget the other threads of the parent, with their transactions and forks: the child has one thread."""
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


class _KeptConnection(NamedTuple):
    """A connection outside of every transaction, with its process and the identity of its file."""

    connection: sqlite3.Connection
    process: int
    file: tuple[int, int]


class SQLiteDatabase(LedgerDatabase):
    """A ledger in one file, for any number of processes on one host."""

    def __init__(self, url: str) -> None:
        self._kept: list[_KeptConnection] = []
        self._most_kept = 0
        self._checked: dict[int, tuple[int, bool]] = {}  # by kept connection: its schema, and if it has a table of sums
        given = url.removeprefix("sqlite:///")
        if given == ":memory:":
            raise InvalidInput("A ledger must outlive its process: give it a file, such as sqlite:///ledger.db.")
        try:
            self._path = Path(given).absolute()  # another working directory later must not be another ledger
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"The ledger's address {url[:80]!r} names no usable file: {explain_failure(error)}."
            ) from None
        self.name = f"sqlite:///{self._path}"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": [], "_most_kept": 0, "_checked": {}}  # a connection belongs to one process

    def keep_connections(self, most: int) -> None:
        self._most_kept = most

    def exists(self) -> bool:
        try:
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            reason = explain_failure(error)
            raise InvalidInput(f"The ledger's address {self.name[:80]!r} names no usable file: {reason}.") from None
        if _is_mount(self._path):
            raise LedgerError(
                f"The ledger {self._path} is mounted as a single file. SQLite keeps its journal in the folder, and a "
                "process that uses the file by another path would not see it; mount the folder."
            )
        with self._transaction("BEGIN") as connection:
            self._check_tables(connection)
        if os.name == "posix" and mode & stat.S_IRWXO:
            warnings.warn(
                f"Everyone on this computer may read or write the ledger {self._path}, which holds a key and the names "
                "of its users; chmod o= removes this access.",
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
            raise LedgerError(f"The ledger {self._path} cannot be made: {explain_failure(error)}.") from None
        finally:
            with contextlib.suppress(OSError, ValueError):
                fresh.unlink()
        sync_folder(self._path.parent)
        return True

    @clear_frames_on_error  # frames keep the connection, and with it the lock, as long as the error is kept
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
        """Return whether there is a table of sums, and reject what could change what a charge reads or writes.

        Only the tables and the index of a ledger are allowed, with exactly the statements that make them, and plain
        tables of the service and of release keys with their indexes, which no statement of a charge reads. A trigger, a
        view, a virtual table, or a table with more columns raises an error.
        """
        # A kept connection uses its own copy of the schema until the version of the schema changes.
        version = int(connection.execute("PRAGMA schema_version").fetchone()[0])
        checked = self._checked.get(id(connection))
        if checked is not None and checked[0] == version:
            return checked[1]
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        found = {
            (str(row[0]), str(row[1])): str(row[3])
            for row in rows
            if not _is_automatic(row[1], row[2]) and not _is_beside(*row)
        }
        if ("table", "scoreshield_ledger") not in found:
            what = "is a database without a ledger" if rows else "exists and holds no ledger"
            raise LedgerError(f"{self._path} {what}; name another file.")
        for object_, statement in sorted(found.items()):
            if " ".join(statement.split()) != " ".join(OBJECTS.get(object_, "").split()):
                raise LedgerError(
                    f"The ledger {self._path} holds the {' '.join(object_)}, which no ledger has. It could change what "
                    "is charged, so nothing was charged."
                )
        has_accounts = ("table", "scoreshield_accounts") in found
        if self._most_kept:
            self._checked[id(connection)] = (version, has_accounts)
        return has_accounts

    @contextlib.contextmanager
    def _transaction(self, begin: str, path: Path | None = None) -> Iterator[sqlite3.Connection]:
        """Open a connection in a transaction. What the block does not commit is rolled back."""
        path = self._path if path is None else path
        with contextlib.ExitStack() as stack:
            try:
                connection = self._begin(begin, path, stack)
            except (sqlite3.Error, OSError, ValueError) as error:
                raise self._make_error(error, "opened") from None
            try:
                yield connection
            except sqlite3.Error as error:
                raise self._make_error(error, "used") from None

    def _begin(self, begin: str, path: Path, stack: contextlib.ExitStack) -> sqlite3.Connection:
        """Wait for the lock in short turns, outside the gate between them, so that no fork waits for long."""
        if _gate.was_forked_inside:
            raise LedgerError(
                "This process was forked while its own thread was using a ledger, for example in a signal handler, so "
                "SQLite cannot use its locks here; nothing was charged. Start the process at another moment."
            )
        deadline = time.monotonic() + database.BUSY_SECONDS
        while True:
            stack.enter_context(_gate.enter())
            self._check_beside(path)
            try:
                connection = stack.enter_context(self._borrow(path))
                connection.execute(begin)
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                    raise LedgerError(_explain_write_ahead(path))
                connection.execute(
                    f"PRAGMA busy_timeout={database.BUSY_SECONDS * 1000:.0f}"
                )  # a commit waits for readers
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
            else:
                return connection
            stack.close()
            time.sleep(0.001 + 0.01 * secrets.randbelow(1000) / 1000)

    @contextlib.contextmanager
    def _borrow(self, path: Path) -> Iterator[sqlite3.Connection]:
        """Take a kept connection or open one. After a block without an error it is kept, if there is room."""
        kept = self._take_kept(path)
        if kept is None:
            file, process, connection = _identify_file(path), os.getpid(), _connect(path)
            self._checked.pop(id(connection), None)  # of an earlier connection in the same place of memory
        else:
            connection, process, file = kept
        is_good = False
        try:
            yield connection
            if os.getpid() == process and connection.in_transaction:
                connection.execute("ROLLBACK")
            is_good = True
        finally:
            if os.getpid() != process:
                _abandon(connection)
            elif is_good and path == self._path and len(self._kept) < self._most_kept:
                self._kept.append(_KeptConnection(connection, process, file))
            else:
                self._close(connection)

    def _close(self, connection: sqlite3.Connection) -> None:
        self._checked.pop(id(connection), None)
        connection.close()

    def _take_kept(self, path: Path) -> _KeptConnection | None:
        """Take a kept connection to the file that is there now; close those to a file that was there before."""
        while path == self._path and self._kept:
            try:
                kept = self._kept.pop()
            except IndexError:  # another thread took it
                return None
            if kept.process != os.getpid():
                _abandon(kept.connection)
            elif kept.file != _identify_file(path):
                self._close(kept.connection)
            else:
                kept.connection.execute("PRAGMA busy_timeout=0")  # `_begin` waits for the lock
                return kept
        return None

    def _check_nothing_is_left(self) -> None:
        """Reject files that an earlier database of this name left: SQLite would write them into the new ledger."""
        left = [f"{self._path}{ending}" for ending in ("-journal", "-wal", "-shm")]
        left = [name for name in left if os.path.lexists(name)]
        if left and not os.path.lexists(self._path):  # in this order: a ledger that another process makes has a journal
            raise LedgerError(
                f"The ledger {self._path} cannot be made beside {left[0]}. An earlier database of that name left this "
                "file behind, and SQLite would write it into the new one; move it away."
            )

    def _check_beside(self, path: Path) -> None:
        """Reject a second name, and a write-ahead log before SQLite writes it into the ledger."""
        # SQLite keeps its files beside the file itself. A link in the folders above leads to the same place.
        real = os.path.realpath(path) if path.is_symlink() else str(path)
        if os.path.lexists(real + "-wal"):
            raise LedgerError(_explain_write_ahead(path))
        self._check_one_name(path)

    def _check_one_name(self, path: Path) -> None:
        """Reject a file with a second name: SQLite keeps its journal beside the name that was opened.

        A process that opens the other name does not see the journal of a killed charge, and writes over what is rolled
        back later. A killed creation leaves such a name, which this method removes.
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
                f"The file of the ledger {path} has a second name (a hard link). Charges could be lost through it; "
                "remove the second name."
            )

    def _make_error(self, error: BaseException, doing: str) -> LedgerError:
        """Make the error of a ledger that could not be opened or used, depending on ``doing``."""
        if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
            return LedgerError(explain_lock(self._path))
        if isinstance(error, sqlite3.OperationalError) and doing == "used":
            return LedgerError(
                f"The ledger {self._path} cannot be used: {explain_failure(error)}; {database.UNKNOWN_OUTCOME}."
            )
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            return LedgerError(f"{self._path} is not a ledger, or is corrupt: {explain_failure(error)}.")
        return LedgerError(f"The ledger {self._path} cannot be opened: {explain_failure(error)}.")


def _check_not_forked(process: int) -> None:
    """Raise an error in a fork of this process."""
    if os.getpid() != process:
        raise LedgerError("This process was forked in the middle of a charge. Only its parent can finish the charge.")


def _explain_write_ahead(path: Path) -> str:
    """Say how a ledger with a write-ahead log can be used again."""
    return (
        f"The ledger {path} has a write-ahead log, which another program switched on or put there; a ledger keeps a "
        f"rollback journal. If this was intended, sqlite3 {path} 'PRAGMA journal_mode=DELETE' switches it back."
    )


def _is_automatic(name: Any, table: Any) -> bool:
    """Return whether SQLite made this index by itself, for a key of a table of the ledger."""
    return str(name).startswith("sqlite_autoindex_") and ("table", str(table)) in OBJECTS


def _is_beside(kind: Any, name: Any, table: Any, statement: Any) -> bool:
    """Return whether this is a plain table of the service or of release keys, or an index of one."""
    if not str(table).startswith(database.BESIDE) and str(table) != database.RELEASE_KEYS:
        return False
    if kind == "table":
        return str(name) == str(table) and " ".join(str(statement).split()).upper().startswith("CREATE TABLE ")
    return str(kind) == "index"


def _connect(path: Path) -> sqlite3.Connection:
    """Open a connection for any thread, though only one at a time uses it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    address = f"file:{quote(str(path))}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA secure_delete=ON")  # a release key of the service leaves no trace
    except BaseException:
        connection.close()
        raise
    return connection


def _abandon(connection: sqlite3.Connection) -> None:
    """Leave a connection of the parent open: a child must not roll back what its parent writes, not even at its end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _identify_file(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """Return whether the error says that another process holds a lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_mount(path: Path) -> bool:
    """Return whether this one file is a mount, as in containers: a hard link that no file system shows."""
    try:
        mounts = _MOUNTS.read_bytes().split(b"\n")
    except OSError:
        return False
    octal = {b" ": rb"\040", b"\t": rb"\011", b"\n": rb"\012"}
    name = os.fsencode(os.path.realpath(path)).replace(b"\\", rb"\134")
    for character, escaped in octal.items():
        name = name.replace(character, escaped)
    return any(fields[4:5] == [name] for fields in (line.split(b" ") for line in mounts))
