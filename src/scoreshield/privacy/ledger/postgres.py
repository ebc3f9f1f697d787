"""A ledger on a PostgreSQL server, for any number of hosts.

A charge takes the single row of the ledger ``FOR UPDATE`` before it reads anything else, so it is decided on what it
reads. It never commits asynchronously.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from scoreshield._frames import clear_frames_on_error
from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.ledger import database
from scoreshield.privacy.ledger.database import OBJECTS, LedgerDatabase, Session, T, explain_failure, explain_lock

_RETRIES = 8


#: How long the network to a server may be silent. Otherwise a statement waits for a quarter of an hour or longer where
#: packets are dropped, and a service with it.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
}


def connect_server(psycopg: Any, url: str) -> Any:
    """Connect to a server. An address may state other times than those of this module."""
    stated = psycopg.conninfo.conninfo_to_dict(url)
    times = {name: value for name, value in _PATIENCE.items() if name not in stated}
    return psycopg.connect(url, **times, application_name="scoreshield")


class PostgresDatabase(LedgerDatabase):
    """A ledger on a database server. Each schema holds one ledger; ``?options=-csearch_path%3Dname`` chooses one."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise InvalidInput(
                "A ledger on PostgreSQL needs the 'postgres' extra: pip install 'scoreshield[postgres]'."
            ) from None
        self._psycopg = psycopg
        parts = _parse_address(psycopg, url)
        if parts is None:
            del url  # it may hold a password, and this error keeps its frames
            raise InvalidInput(
                "The address of the ledger is not valid: write / ? # % @ : in a name or password as %2F %3F %23 %25 "
                "%40 %3A."
            )
        self.name = _write_address(parts)
        # These are closures, because attributes appear in every dump of variables.
        self._hide = _make_redactor([parts[name] for name in _SECRET if parts.get(name)])
        self._pool = _ConnectionPool(lambda: connect_server(psycopg, url), psycopg.Error)

    def __reduce__(self) -> Any:
        raise InvalidInput("A ledger on a server cannot be pickled: its address may hold a password. Open it again.")

    def keep_connections(self, most: int) -> None:
        self._pool.most = most

    def exists(self) -> bool:
        def work(connection: Any) -> bool:
            return bool(connection.execute("SELECT to_regclass('scoreshield_ledger') IS NOT NULL").fetchone()[0])

        return self._run(work)

    def create(self, facts: str, key: str, head: str) -> bool:
        def work(connection: Any) -> bool:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('scoreshield_ledger'))")
            if connection.execute("SELECT to_regclass('scoreshield_ledger') IS NOT NULL").fetchone()[0]:
                return False
            _make_durable(connection)
            self._open_session(connection, has_accounts=False).create(facts, key, head)
            return True

        return self._run(work)

    def read(self, work: Callable[[Session], T]) -> T:
        def read_in_transaction(connection: Any) -> T:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return work(self._open_session(connection, self._check_tables(connection)))

        return self._run(read_in_transaction)

    def write(self, work: Callable[[Session], T]) -> T:
        def write_in_transaction(connection: Any) -> T:
            _make_durable(connection)
            connection.execute("SELECT one FROM scoreshield_ledger FOR UPDATE")
            session = self._open_session(connection, self._check_tables(connection))
            # A user who may only charge cannot make a table. For this user an old ledger stays slow.
            if not session.has_accounts() and connection.execute(_MAY_ADD).fetchone()[0]:
                session.add_accounts()
            return work(session)

        return self._run(write_in_transaction)

    def _open_session(self, connection: Any, has_accounts: bool) -> Session:
        return Session(
            lambda statement, values=(): connection.execute(statement.replace("?", "%s"), values), has_accounts
        )

    def _check_tables(self, connection: Any) -> bool:
        """Return whether there is a table of sums, and reject what could change what a charge reads or writes.

        That is a trigger, a rule, a view, a table that inherits or is not logged, or a row policy.
        """
        tables = [name for kind, name in OBJECTS if kind == "table"]
        found = {table: connection.execute(_FOREIGN, (table,)).fetchone() for table in tables}
        for table, facts in found.items():
            if facts is not None and (facts[0] not in ("r", b"r") or any(facts[1:])):
                raise LedgerError(
                    f"The table {table} of the ledger {self.name} is a view, is not logged, or has a trigger, a rule "
                    "or a row policy. That could change what is charged, so nothing was charged."
                )
        return found["scoreshield_accounts"] is not None

    @clear_frames_on_error  # the frames of the driver hold the address
    def _run(self, work: Callable[[Any], T]) -> T:
        """Run the work in one transaction, and try again if the server reports a conflict with another one."""
        psycopg = self._psycopg
        for attempt in range(_RETRIES):
            try:
                with self._pool.borrow() as connection:
                    return work(connection)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                time.sleep(0.01 * 2**attempt)
                continue
            except psycopg.errors.LockNotAvailable:
                failure = LedgerError(explain_lock(self.name))
            except psycopg.Error as error:
                reason = self._hide(explain_failure(error))
                failure = LedgerError(f"The ledger {self.name} cannot be used: {reason}; {database.UNKNOWN_OUTCOME}.")
            raise failure  # outside the except block, so that the error of the driver is not its context
        raise LedgerError(f"Too many processes charged the ledger {self.name} at the same time; nothing was charged.")


class _ConnectionPool:
    """Connections for one transaction each. Those that ended well are kept for the next one, up to a number.

    Attributes:
        most: How many idle connections are kept; none by default.
    """

    def __init__(self, connect: Callable[[], Any], failures: type[Exception]) -> None:
        self._connect, self._failures, self.most = connect, failures, 0
        self._idle: deque[Any] = deque()
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle, self._process)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Any]:
        """Open a transaction. It is committed at the end of the block, and rolled back after an error."""
        connection = self._take()
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.close()  # this rolls back, and a connection that failed is not used again
            raise
        if len(self._idle) < self.most:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> Any:
        """Take an idle connection that the server still answers on, or open another one."""
        if os.getpid() != self._process:
            _FOREIGN_CONNECTIONS.append(self._idle)
            self._idle, self._process = deque(), os.getpid()
            weakref.finalize(self, _close_all, self._idle, self._process)
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            try:
                connection.execute("SELECT 1")
                connection.rollback()
            except self._failures:
                connection.close()
            else:
                return connection
        return self._connect()


#: Connections of a parent process. Closing one in a child would end the session of the parent.
_FOREIGN_CONNECTIONS: list[deque[Any]] = []


def _close_all(connections: deque[Any], process: int) -> None:
    if os.getpid() != process:
        _FOREIGN_CONNECTIONS.append(connections)
        return
    while connections:
        connections.pop().close()


_SECRET = ("password", "sslpassword", "passfile", "service")

#: The kind of a table, and whether it has rules, children, policies or triggers. An unlogged table is empty after a
#: crash. Rules of views are of kind "_RETURN".
_FOREIGN = """SELECT c.relkind, c.relpersistence <> 'p', c.relrowsecurity, c.relhasrules, c.relhassubclass,
        EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid)
    FROM pg_class c WHERE c.oid = to_regclass(?)""".replace("?", "%s")


_MAY_ADD = """SELECT pg_has_role(relowner, 'MEMBER') AND has_schema_privilege(relnamespace, 'CREATE')
    FROM pg_class WHERE oid = to_regclass('scoreshield_entries')"""


def _make_redactor(secrets_: list[str]) -> Callable[[str], str]:
    """Make a function that replaces these secrets in a text."""

    def hide(text: str) -> str:
        for secret in secrets_:
            text = text.replace(secret, "***")
        return text

    return hide


def _parse_address(psycopg: Any, url: str) -> dict[str, str] | None:
    """Let the driver parse an address; return None if a raw character of a password is in another part."""
    try:
        parts = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(url).items()}
    except (psycopg.Error, ValueError):
        return None
    hosts = [parts.get(name, "") for name in ("host", "hostaddr", "user")]
    port, name = parts.get("port", ""), parts.get("dbname", "")
    if any("@" in part for part in (*hosts, name)) or "/" in name or not set(port) <= set("0123456789,"):
        return None
    return parts


def _write_address(parts: dict[str, str]) -> str:
    """Write the address without user and password: host, port and database."""
    host = quote(parts.get("host", parts.get("hostaddr", "")), safe=",:[]/.-")
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{host}{port}/{quote(parts.get('dbname', ''), safe='')}"


def _make_durable(connection: Any) -> None:
    """Let commits wait for the disk, for any default of the server, and let locks end after a time."""
    connection.execute(f"SET LOCAL lock_timeout = '{database.BUSY_SECONDS:g}s'")
    if connection.execute("SHOW synchronous_commit").fetchone()[0] in ("off", "local"):
        connection.execute("SET LOCAL synchronous_commit = on")
