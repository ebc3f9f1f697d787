"""A PostgreSQL table with a pgvector column as a store.

Scores come from ``SELECT id, embedding <#> query, vector_norm(embedding) FROM table``. Without ORDER BY and LIMIT no
approximate index can answer it, so every row is scored, exactly and by itself. ``<#>`` is the negative of the inner
product. The cosine is the inner product over the length, which pgvector computes in double precision. Its own cosine
distance ``<=>`` adds squares in single precision, and answers 0 or 1 for vectors that are very long or very short.
Vectors are sent in pgvector's binary form: the dimension and an unused number, two bytes each, then the numbers, with
the high byte first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.base import BaseStore, sort_ids
from scoreshield.stores.protocol import Records, StoreScores, explain_missing_extra, read_store

T = TypeVar("T")

Watch = Literal["counters", "rows"]
WATCHES: tuple[str, ...] = get_args(Watch)
_ENTRIES = {"vector": ">f4", "halfvec": ">f2"}
_PAGE = 10_000
#: Seconds on top of the server's own time-out before the client gives a statement up.
_GRACE = 5.0
#: Below this length the products of single precision lose digits.
_SHORTEST = 1e-30
#: Seconds between looks at whether a silent server is still there, and how many may fail.
_KEEPALIVES = {"keepalives": 1, "keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 3}

# What the catalogue says of the table and its vector column.
_FACTS = """
SELECT c.oid, c.relkind = 'r' AND NOT c.relhassubclass, c.relkind IN ('r', 'p', 'm'), t.typname, n.nspname, a.atttypmod,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = %(id)s AND NOT attisdropped)
FROM pg_class c
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(vector)s AND NOT a.attisdropped
LEFT JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE c.oid = to_regclass(%(table)s)
"""
# TRUNCATE moves no counter; the file that the table is in changes then.
_COUNTERS = """
SELECT current_setting('track_counts')::bool AND NOT pg_is_in_recovery(), pg_relation_filenode(relid),
       n_tup_ins, n_tup_upd, n_tup_del
FROM pg_stat_all_tables WHERE relid = to_regclass(%s)
"""


class _TableFacts(NamedTuple):
    oid: int
    has_counters: bool  # of the server, in one place
    is_table: bool
    type: str | None
    namespace: str | None
    modifier: int
    has_id: bool


class PgVectorStore(BaseStore):
    """One table of a PostgreSQL database.

    One connection is kept and used by one thread at a time. Where the server closed it between two readings, the store
    connects again.

    Args:
        source: A ``postgresql://`` address, or a function that opens a psycopg connection, which the store then owns.
        table: The table of the records.
        id_column: The column of the ids.
        vector_column: The column of the vectors, of type vector or halfvec.
        schema: The schema of the table; without it, the first one on the search path.
        watch: How ``state`` detects changes. ``"counters"`` are the server's own, of inserts, updates and deletes.
            They take 1 ms, and are up to ten seconds late, because PostgreSQL holds back those of a session that goes
            idle. ``"rows"`` reads every row's version: it is exact, and takes 60 to 90 ms for 100,000 rows of 384
            numbers. Rows are also read where there are no counters: on a standby, with ``track_counts`` off, for
            partitioned tables.
        statement_timeout: Seconds that the server may take for a statement. The client waits five seconds longer, and
            then ends the connection.
        connect_timeout: Seconds to wait for a connection, where ``source`` is an address.
    """

    @clear_frames_on_error  # an address may hold a password
    @validate()
    def __init__(
        self,
        source: str | Callable[[], Any],
        table: str,
        id_column: str = "id",
        vector_column: str = "embedding",
        *,
        schema: str | None = None,
        watch: Watch = "counters",
        statement_timeout: float = 60.0,
        connect_timeout: float = 10.0,
    ) -> None:
        try:
            import psycopg
            from psycopg import sql
        except ImportError:
            raise explain_missing_extra("pgvector", "PgVectorStore") from None
        if not isinstance(source, str) and not callable(source):
            must = "a postgresql:// address or a function that opens a psycopg connection"
            _validation.reject("source", must, type(source))  # the value may hold a password
        for name, text in (("table", table), ("id_column", id_column), ("vector_column", vector_column)):
            if not isinstance(text, str) or not text or "\0" in text:
                _validation.reject(name, "a name", text)
        self._counts = _validation.check_option(watch, "watch", WATCHES) == "counters"
        self._statement_seconds = _validation.check_positive(statement_timeout, "statement_timeout")
        self._timeout = str(max(1, round(1000 * self._statement_seconds)))
        seconds = max(1, round(_validation.check_positive(connect_timeout, "connect_timeout")))
        options: dict[str, Any] = {"connect_timeout": seconds, **_KEEPALIVES}
        self._connect = source if callable(source) else lambda: psycopg.connect(source, **options)
        self.name = "The PostgreSQL table " + ".".join(part for part in (schema, table) if part)
        self._table = sql.Identifier(*(part for part in (schema, table) if part))
        self._id, self._column = id_column, vector_column
        self._lock, self._connection, self._process = threading.Lock(), None, 0  # type: tuple[Any, Any, int]
        self._deadline: _Deadline | None = None  # of the present reading
        try:
            self._facts = read_store(self, "being opened", lambda: self._read(self._read_facts))
            self._dimension = read_store(self, "being opened", lambda: self._read(self._measure))
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self.close()

    def close(self) -> None:
        """Close the connection; the next reading connects again."""
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():  # a fork's copy belongs to the parent
            with contextlib.suppress(Exception):
                connection.close()

    def read_state(self) -> Hashable:
        return self._read(self._read_table_state)

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        rows = self._read(lambda cursor: self._score(cursor, query))
        if any(one is None or one != one or value is None for one, value, _ in rows):
            raise self._null_error()
        rows.sort(key=lambda row: row[0])
        products, lengths = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 2).T
        is_zero = lengths < _SHORTEST  # taken as the first basis vector, as a release takes a zero vector
        products[is_zero], lengths[is_zero] = -query[0], 1.0
        return StoreScores([row[0] for row in rows], (-products / lengths).astype(np.float32))

    @clear_frames_on_error
    def records(self) -> Records:
        ids, parts = self._read(self._fetch)
        if not ids:
            raise self._empty_error()
        names, order = sort_ids(ids)
        return Records(names, np.concatenate(parts)[order])

    def make_statement(self, query: NDArray[np.float32]) -> Any:
        """Compose the statement that scores every row with a query."""
        from psycopg import sql

        text = sql.Literal("[" + ",".join(map(str, query.tolist())) + "]")
        namespace = sql.Identifier(str(self._facts.namespace))
        column: sql.Composable = sql.Identifier(self._column)
        if self._facts.type == "halfvec":  # the query keeps its full precision
            column = sql.SQL("{}::{}.vector").format(column, namespace)
        return sql.SQL(
            "SELECT {id}, {column} OPERATOR({s}.<#>) {text}::{s}.vector, {s}.vector_norm({column}) FROM {t}"
        ).format(id=sql.Identifier(self._id), column=column, s=namespace, text=text, t=self._table)

    def _score(self, cursor: Any, query: NDArray[np.float32]) -> list[tuple[Any, float, float]]:
        import psycopg

        try:
            return list(cursor.execute(self.make_statement(query)).fetchall())
        except psycopg.errors.DataException:
            raise self._mixed_error() from None

    def _fetch(self, cursor: Any) -> tuple[list[Any], list[NDArray[Any]]]:
        """Read every id and vector, a page at a time, of one state of the table."""
        from psycopg import sql

        send = sql.Identifier(str(self._facts.namespace), f"{self._facts.type}_send")
        select = sql.SQL("SELECT {}, {}({}) FROM {}").format(
            sql.Identifier(self._id), send, sql.Identifier(self._column), self._table
        )
        cursor.execute(sql.SQL("DECLARE scoreshield NO SCROLL CURSOR FOR ") + select)
        ids: list[Any] = []
        parts: list[NDArray[Any]] = []
        while rows := cursor.execute(f"FETCH {_PAGE} FROM scoreshield").fetchall():
            if any(one is None or one != one or data is None for one, data in rows):
                raise self._null_error()
            if self._deadline is not None:
                self._deadline.renew()  # each page is a statement of its own
            ids += [one for one, _ in rows]
            parts.append(self._decode([data for _, data in rows]))
        return ids, parts

    def _decode(self, values: list[bytes]) -> NDArray[Any]:
        entry = np.dtype(_ENTRIES[str(self._facts.type)])
        form = np.dtype([("head", ">i2", 2), ("vector", entry, self._dimension)])
        if any(len(value) != form.itemsize for value in values):
            raise self._mixed_error()
        rows: NDArray[Any] = np.frombuffer(b"".join(values), dtype=form)["vector"]
        return rows.astype(entry.newbyteorder("="))

    def _null_error(self) -> StoreError:
        return StoreError(
            f"{self.name} has rows without an id or a vector (NULL, or NaN for an id); nothing was released."
        )

    def _mixed_error(self) -> StoreError:
        return StoreError(
            f"{self.name} mixes vectors of different lengths, or they are not of {self._dimension} numbers."
        )

    def _read_table_state(self, cursor: Any) -> Hashable:
        from psycopg import sql

        facts = self._read_facts(cursor)
        if self._counts and facts.has_counters:
            row = cursor.execute(_COUNTERS, (self._table.as_string(cursor.connection),)).fetchone()
            if row is not None and row[0]:
                return facts.oid, *row[1:]
        version = sql.SQL("SELECT count(*), sum(hashtext(concat(tableoid, ' ', ctid, ' ', xmin))) FROM {}")
        count, total = cursor.execute(version.format(self._table)).fetchone()
        return facts.oid, count, str(total)

    def _read_facts(self, cursor: Any) -> _TableFacts:
        table = self._table.as_string(cursor.connection)
        row = cursor.execute(_FACTS, {"table": table, "id": self._id, "vector": self._column}).fetchone()
        if row is None:
            raise StoreError(f"{self.name} does not exist.")
        facts = _TableFacts(*row)
        if not facts.is_table:
            raise InvalidInput(f"{self.name} must be a table; a view or a foreign table does not show when it changes.")
        for column, exists in ((self._id, facts.has_id), (self._column, facts.type)):
            if not exists:
                raise InvalidInput(f"{self.name} has no column {column!r}.")
        if facts.type not in _ENTRIES:
            raise InvalidInput(
                f"{self.name}: the column {self._column!r} must be a vector or a halfvec, not a {facts.type}."
            )
        return facts

    def _measure(self, cursor: Any) -> int:
        """Read the number of entries of a vector, from the column's type or else from a row."""
        from psycopg import sql

        if self._facts.modifier > 0:
            return self._facts.modifier
        column, namespace = sql.Identifier(self._column), sql.Identifier(str(self._facts.namespace))
        one = sql.SQL("SELECT {}.vector_dims({}) FROM {} WHERE {} IS NOT NULL LIMIT 1")
        row = cursor.execute(one.format(namespace, column, self._table, column)).fetchone()
        if row is None:
            raise self._empty_error()
        return int(row[0])

    def _read(self, work: Callable[[Any], T]) -> T:
        """Run the work in one read-only transaction that sees one state of the database."""
        import psycopg

        with self._lock:
            is_old = self._connection is not None and self._process == os.getpid()
            try:
                return self._read_once(work)
            except psycopg.OperationalError as error:
                # The server closes an idle connection, or restarts; a time-out raises QueryCanceled.
                if not is_old or isinstance(error, psycopg.errors.QueryCanceled):
                    raise
            return self._read_once(work)

    def _read_once(self, work: Callable[[Any], T]) -> T:
        import psycopg
        from psycopg.rows import tuple_row

        if self._connection is None or self._process != os.getpid():
            self._connection, self._process = self._open(), os.getpid()
        connection, seconds, self._deadline = self._connection, self._statement_seconds + _GRACE, None
        try:
            self._deadline = deadline = _Deadline(connection.fileno(), seconds)
            with deadline, connection.transaction(), connection.cursor(binary=True, row_factory=tuple_row) as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", (self._timeout,))
                return work(cursor)
        except BaseException as error:
            self.close()
            if not (isinstance(error, psycopg.Error) and self._deadline is not None and self._deadline.is_over):
                raise
        raise StoreError(f"{self.name} did not answer within {seconds:g} seconds; nothing was released.")

    def _open(self) -> Any:
        import psycopg

        connection = self._connect()
        must = "a function that opens a psycopg connection"
        if not isinstance(connection, psycopg.Connection):
            _validation.reject("source", must, type(connection))
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise InvalidInput(
                f"The 'source' parameter of PgVectorStore must be {must} of its own. Got one that is closed or already "
                "in a transaction instead; commit what is done on it first."
            )
        connection.autocommit, connection.read_only = True, True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection


class _Deadline:
    """End a connection whose server stops answering: the server's own time-out does not work then."""

    def __init__(self, number: int, seconds: float) -> None:
        self._socket = socket.socket(fileno=socket.dup(number))  # a descriptor that no other file can get
        self._seconds, self.is_over = seconds, False
        self._timer = self._start()

    def __enter__(self) -> _Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._socket.close()

    def renew(self) -> None:
        self._timer.cancel()
        self._timer = self._start()

    def _start(self) -> threading.Timer:
        timer = threading.Timer(self._seconds, self._end)
        timer.daemon = True
        timer.start()
        return timer

    def _end(self) -> None:
        self.is_over = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
