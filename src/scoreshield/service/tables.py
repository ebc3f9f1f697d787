"""The tables of the service, their migrations, and the database of the installation.

The database of the installation holds API keys, policies and idempotency keys. The ledger of each collection is a
database of its own: a SQLite file, or a schema on a PostgreSQL server. Answers lie in the ledger's database, because an
answer and its charge are one transaction. Alembic keeps both sets of tables. Migrations run at the start, in one
transaction under the lock of the database.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from scoreshield.errors import InvalidInput, LedgerError, ScoreShieldError
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.accounts import open_database
from scoreshield.privacy.ledger.database import BESIDE, BUSY_SECONDS
from scoreshield.privacy.ledger.postgres import connect_server

T = TypeVar("T")
TableSet = Literal["installation", "collection", "rates"]
_MIGRATIONS = Path(__file__).parent / "migrations"
_READ_ONLY = "scoreshield_read_only"
_LOCK = 7_311_204_515  # of migrations, on a server
_KEPT_CONNECTIONS = 8  # to each ledger on a server
_SCHEMA = re.compile("[a-z_][a-z0-9_]{0,62}")


def open_engine(url: str) -> Engine:
    """Open the database that an address names, as a ledger's address does."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///")).absolute()
        engine = sa.create_engine("sqlite://", creator=lambda: _connect_sqlite(path), poolclass=NullPool)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    if url.startswith(("postgresql://", "postgres://")):
        try:
            import psycopg
        except ImportError:
            raise InvalidInput(
                "A service on PostgreSQL needs the 'postgres' extra: pip install 'scoreshield[postgres]'."
            ) from None
        return sa.create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect_server(psycopg, url),
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=32,
        )
    raise InvalidInput("The database of a service must be sqlite:///PATH or postgresql://...")


def check_database(url: str) -> None:
    """Raise an error if an address names a file that does not exist."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise InvalidInput(f"There is no database of a service at {url}; name it, or give the policy file.")


def _connect_sqlite(path: Path) -> sqlite3.Connection:
    if not path.exists():
        path.touch(mode=0o600)
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once, so that no transaction fails in its middle; readers need none."""
    is_read = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("PRAGMA synchronous=EXTRA")
    connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")


def migrate(engine: Engine, tables: TableSet) -> None:
    """Bring one set of tables to its newest form, in one transaction under a lock."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS / tables).replace("%", "%%"))
    with explain_database_errors(), engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def run_migrations(version_table: str) -> None:
    """Run the migrations of a folder on the connection that `migrate` opened. The folder's ``env.py`` calls it."""
    from alembic import context

    context.configure(connection=context.config.attributes["connection"], version_table=BESIDE + version_table)
    with context.begin_transaction():
        context.run_migrations()


def open_collection_ledger(url: str, name: str, *, epsilon: float, delta: float, is_made: bool = True) -> Ledger:
    """Open the ledger of a collection beside the database of the installation, or make it with its budget.

    Args:
        url: The database of the installation.
        name: The collection.
        epsilon: The budget.
        delta: The delta of the budget.
        is_made: Whether a missing ledger is made. The collection had none before.

    Raises:
        InvalidInput: The ledger has another budget, which cannot be changed, or it is missing.
    """
    address = _name_ledger(url, name)
    for _ in range(2):
        try:
            ledger = Ledger.open(address)
            break
        except LedgerError:
            if not is_made:
                raise explain_missing_ledger(name) from None
            try:
                ledger = Ledger.create(address, epsilon=epsilon, delta=delta)
                break
            except LedgerError:  # another replica has made it just now, or it cannot be opened
                time.sleep(0.05)
    else:
        ledger = Ledger.open(address)
    check_limit(ledger, name, epsilon=epsilon, delta=delta)
    ledger.keep_connections(_KEPT_CONNECTIONS)
    engine = open_engine(address)
    try:
        migrate(engine, "collection")
    finally:
        engine.dispose()
    return ledger


def check_limit(ledger: Ledger, name: str, *, epsilon: float, delta: float) -> None:
    """Raise an error if a collection's ledger has another budget than its policy."""
    if (ledger.epsilon, ledger.delta) != (epsilon, delta):
        raise InvalidInput(
            f"The budget of collection {name} was set to epsilon {ledger.epsilon!r} and delta {ledger.delta!r} when "
            "its ledger was made. It cannot be changed."
        )


def explain_missing_ledger(name: str) -> InvalidInput:
    """Make the error of a collection whose ledger is gone."""
    return InvalidInput(
        f"The ledger of collection {name} is missing or cannot be read, so its budget would start again; "
        "restore the ledger."
    )


def find_collection_ledger(url: str, name: str) -> Ledger | None:
    """Open the ledger of a collection to read it, and make nothing; None if there is none.

    Raises:
        ScoreShieldError: There is one, and it cannot be read.
    """
    address = _name_ledger(url, name, is_made=False)
    database = open_database(address)
    return Ledger.open(address) if database.exists() else None


def _name_ledger(url: str, name: str, *, is_made: bool = True) -> str:
    """Name the address of the ledger of a collection: a file beside that of the installation, or a schema.

    Args:
        url: The database of the installation.
        name: The collection.
        is_made: Whether a missing schema is made.
    """
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///")).absolute()
        return f"sqlite:///{path.with_name(f'{path.stem}-{name}.ledger.db')}"
    engine = open_engine(url)
    try:
        with explain_database_errors(), engine.begin() as connection:
            schema = str(connection.execute(sa.text("SELECT current_schema()")).scalar())
            chosen = f"{'scoreshield' if schema == 'public' else schema}_{name}".replace("-", "_")
            if not _SCHEMA.fullmatch(chosen):
                raise InvalidInput(f"The schema {schema!r} of the database is no plain name.")
            if is_made:
                connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
                connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {chosen}"))
    finally:
        engine.dispose()
    start, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("options=")]
    return f"{start}?{'&'.join([*kept, 'options=' + quote(f'-csearch_path={chosen}', safe='')])}"


@contextmanager
def explain_database_errors() -> Iterator[None]:
    """Turn an error of a database into one sentence without an address or a value."""
    failure: ScoreShieldError | None = None
    try:
        yield
    except SQLAlchemyError as error:
        kind = type(getattr(error, "orig", None) or error).__name__
        failure = LedgerError(f"The database of the service cannot be used ({kind}).")
    if failure is not None:
        raise failure  # outside the except block, so that the error of the driver is not its context


class StatementRunner(Protocol):
    """Runs one statement of a transaction, with its named values."""

    def __call__(self, statement: str, /, **values: Any) -> sa.CursorResult[Any]: ...


class InstallationDatabase:
    """Statements on the tables of the installation."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)

    @property
    def is_server(self) -> bool:
        """Whether the database is a server, which several hosts may use."""
        return self._engine.dialect.name == "postgresql"

    def prepare(self, tables: TableSet = "installation") -> None:
        """Make a set of tables, or bring it to its newest form."""
        migrate(self._engine, tables)

    def read(self, statement: str, **values: Any) -> list[Any]:
        """Run one statement that reads, and return its rows."""
        with explain_database_errors(), self._engine.connect() as connection:
            return list(connection.execution_options(**{_READ_ONLY: True}).execute(sa.text(statement), values))

    def write(self, work: Callable[[StatementRunner], T]) -> T:
        """Run work in one transaction, and return its result."""
        with explain_database_errors(), self._engine.begin() as connection:

            def execute(statement: str, /, **values: Any) -> sa.CursorResult[Any]:
                return connection.execute(sa.text(statement), values)

            return work(execute)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()
