"""DuckDB tables, in memory and in files, and Parquet files."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from stores.store_checks import DIMENSION, N, StoreChecks, make_query, patch_to_raise, unit

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores import DuckDBStore, ParquetStore, PinnedStore

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")


def to_list(vector: Any) -> Any:
    return None if vector is None else np.asarray(vector, dtype=np.float64).tolist()


class TableChecks(StoreChecks):
    column: ClassVar[str] = f"FLOAT[{DIMENSION}]"
    id_type: ClassVar[str] = "BIGINT PRIMARY KEY"
    holds: ClassVar[frozenset[str]] = frozenset({"zero", "nan"})
    connection: Any

    def run(self, statement: str, values: Any = None, *, many: bool = False) -> None:
        (self.connection.executemany if many else self.connection.execute)(statement, values)

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        self.run(f"CREATE TABLE IF NOT EXISTS people (id {self.id_type}, embedding {self.column})")
        rows = [(one, to_list(v)) for one, v in zip(ids, vectors, strict=True)]
        self.run("INSERT INTO people VALUES (?, ?)", rows, many=True)

    def change(self, one: Any, vector: Any) -> None:
        self.run("UPDATE people SET embedding = ? WHERE id = ?", [to_list(vector), one])

    def remove(self, one: Any) -> None:
        self.run("DELETE FROM people WHERE id = ?", [one])

    def empty(self) -> None:
        self.run("DELETE FROM people")

    def open(self) -> Any:
        return DuckDBStore(self.connection, "people")

    def break_readings(
        self, kind: str, store: Any, patch: pytest.MonkeyPatch
    ) -> contextlib.AbstractContextManager[None]:
        error = {"dropped": ConnectionError, "late": TimeoutError}[kind]
        return patch_to_raise(patch, store, "_open_cursor", error=error)


class TestMemory(TableChecks):
    @pytest.fixture(autouse=True)
    def _connection(self) -> Any:
        self.connection = duckdb.connect()
        yield
        self.connection.close()


class TestLists(TestMemory):
    """Lists of double precision, and ids that are text and not unique by themselves."""

    ids: ClassVar[Sequence[Any]] = [f"p{i}" for i in np.random.default_rng(1).permutation(N)]
    new: ClassVar[Any] = "new"
    column: ClassVar[str] = "DOUBLE[]"
    id_type: ClassVar[str] = "VARCHAR"
    holds: ClassVar[frozenset[str]] = frozenset({"zero", "nan", "twice", "lengths"})


class TestFile(TableChecks):
    """By its path: opened for each reading, so that writers come in between."""

    failures: ClassVar[tuple[str, ...]] = ("dropped", "late", "gone")

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "people.duckdb"

    def run(self, statement: str, values: Any = None, *, many: bool = False) -> None:
        with contextlib.closing(duckdb.connect(self.path)) as self.connection:
            super().run(statement, values, many=many)

    def open(self) -> Any:
        return DuckDBStore(str(self.path), "people")

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Any:
        away = self.path.with_suffix(".away")
        if kind == "gone":
            self.path.rename(away)
            yield
            away.rename(self.path)
            return
        error = {"dropped": ConnectionError, "late": TimeoutError}[kind]
        with patch_to_raise(patch, store, "state", "_open_cursor", error=error):
            yield


class TestParquet(StoreChecks):
    holds: ClassVar[frozenset[str]] = frozenset({"zero", "nan", "twice", "lengths"})
    failures: ClassVar[tuple[str, ...]] = ("dropped", "late", "gone")

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "it's * people.parquet"  # a name, and no pattern that fits the other file
        self.rows: list[tuple[Any, Any]] = []
        with contextlib.closing(duckdb.connect()) as connection:
            other = str(tmp_path / "it's 2 people.parquet").replace("'", "''")
            connection.execute(f"COPY (SELECT 77 AS id, [1.0::FLOAT] AS embedding) TO '{other}' (FORMAT parquet)")

    def write(self) -> None:
        with contextlib.closing(duckdb.connect()) as connection:
            connection.execute("CREATE TABLE t (id BIGINT, embedding FLOAT[])")
            if self.rows:
                connection.executemany("INSERT INTO t VALUES (?, ?)", self.rows)
            fresh = self.path.with_name("fresh.parquet")
            connection.execute(f"COPY t TO '{fresh}' (FORMAT parquet)")
            fresh.replace(self.path)

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        self.rows += [(one, to_list(v)) for one, v in zip(ids, vectors, strict=True)]
        self.write()

    def change(self, one: Any, vector: Any) -> None:
        self.rows = [(i, to_list(vector) if i == one else v) for i, v in self.rows]
        self.write()

    def remove(self, one: Any) -> None:
        self.rows = [(i, v) for i, v in self.rows if i != one]
        self.write()

    def empty(self) -> None:
        self.rows = []
        self.write()

    def open(self) -> Any:
        return ParquetStore(self.path)

    break_readings = TestFile.break_readings


@pytest.mark.parametrize("pin", ["copy", "scores"])
@pytest.mark.parametrize(
    ("values", "match"),
    [
        ("(1, [1, 0]), (2, NULL)", "rows without an id or a vector"),
        ("(1, [1, 0]), (NULL, [0, 1])", "rows without an id or a vector"),
        ("(1, [1, 0]), (2, [NULL, 1])", "vectors with missing numbers|failed while"),
        ("(1, [1, 0]), (2, ['inf'::FLOAT, 1])", "not finite|failed while"),
    ],
)
def test_infinite_numbers(values: str, match: str, pin: str) -> None:
    """A missing id or vector, and missing or infinite numbers, raise an error."""
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE t (id INT, embedding FLOAT[2])")
        connection.execute(f"INSERT INTO t VALUES {values}")
        with pytest.raises(StoreError, match=match):
            PinnedStore(DuckDBStore(connection, "t"), pin=pin).take_snapshot()


def test_missing_numbers() -> None:
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, [NULL, 1]::FLOAT[2] AS embedding")
        with pytest.raises(StoreError, match="has vectors with missing numbers"):
            DuckDBStore(connection, "t").records()


def test_by_hand() -> None:
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute('CREATE SCHEMA s; CREATE TABLE s."my ""t""" ("Id" INT, "v v" DOUBLE[2])')
        connection.execute('INSERT INTO s."my ""t""" VALUES (2, [3, 4]), (1, [-2, 0])')
        store = DuckDBStore(connection, 'my "t"', "Id", "v v", schema="s")
        scored = store.scores(np.array([1, 0], dtype=np.float32))
        assert list(scored.ids) == [1, 2]
        np.testing.assert_allclose(scored.values, [-1, 0.6], atol=1e-7)
        assert store.records().vectors.tolist() == [[-2, 0], [3, 4]]


def test_renamed_record() -> None:
    """A record that is renamed is a change."""
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, [1, 0]::FLOAT[2] AS embedding")
        store = DuckDBStore(connection, "t")
        before = store.state()
        connection.execute("UPDATE t SET id = 7")
        assert store.state() != before


STATES = {
    "ids swapped among rows": "UPDATE t SET id = 499 - id",
    "the same ids in a new table": "CREATE OR REPLACE TABLE t AS SELECT id, [id, 2]::FLOAT[2] AS embedding FROM t",
    "a column rewritten": "ALTER TABLE t ALTER embedding TYPE FLOAT[2] USING [embedding[2], 1]::FLOAT[2]",
    "a reload into the same places": "CREATE TABLE s AS SELECT id, [id, 3]::FLOAT[2] FROM t ORDER BY id; "
    "DELETE FROM t; CHECKPOINT; INSERT INTO t FROM s",
    "the last vector, with its number given back": "UPDATE t SET embedding = [7, 7] WHERE id = 499; CHECKPOINT",
    "one vector": "UPDATE t SET embedding = [7, 7] WHERE id = 3",
}


@pytest.mark.parametrize("change", STATES)
def test_connection_state(change: str, tmp_path: Path) -> None:
    """The state of a connection detects every kind of change."""
    with contextlib.closing(duckdb.connect(tmp_path / "file.duckdb")) as connection:
        made = "CREATE TABLE t AS SELECT i::INT AS id, [i, 1]::FLOAT[2] AS embedding FROM range(500) r(i); CHECKPOINT"
        connection.execute(made)
        store = DuckDBStore(connection, "t")
        before = store.state()
        assert store.state() == before
        connection.execute(STATES[change])
        after = store.state()
        assert after != before
        store.mark_changed()
        assert store.state() != after


def test_table_name(tmp_path: Path) -> None:
    """The name means the table that it means on the connection."""
    table = "CREATE TABLE people AS SELECT {} AS id, [1, 0]::FLOAT[2] AS embedding"
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute(table.format(1))
        connection.execute(f"CREATE SCHEMA s; ATTACH '{tmp_path / 'o.duckdb'}' AS other; USE s")
        connection.execute(table.format(2))
        schema = DuckDBStore(connection, "People")
        connection.execute("USE other")
        connection.execute(table.format(3))
        database = DuckDBStore(connection, "people")
        connection.execute("USE memory.main")
        for store, one in ((schema, 2), (database, 3), (DuckDBStore(connection, "people"), 1)):
            assert PinnedStore(store).take_snapshot().ids == (one,)
        assert PinnedStore(DuckDBStore(connection, "people", schema="S")).take_snapshot().ids == (2,)
        connection.execute(table.format(4).replace("TABLE", "TEMP TABLE"))
        with pytest.raises(InvalidInput, match="people is temporary: only its own connection can read it"):
            DuckDBStore(connection, "people")
        connection.execute("SELECT * FROM range(5000)").fetchone()
        with contextlib.suppress(StoreError):  # newer ones refuse, older ones do not
            assert DuckDBStore(connection, "people", schema="s").dimension == 2
        connection.close()
        with pytest.raises(StoreError, match="the connection must be open, with no unfinished result"):
            DuckDBStore(connection, "people")


@pytest.mark.parametrize("pin", ["copy", "scores"])
@pytest.mark.parametrize("kind", ["HUGEINT", "UHUGEINT", "UBIGINT"])
def test_wide_ids(kind: str, pin: str) -> None:
    """Ids of 128 bits stay what they are."""
    largest = 2**64 - 1 if kind == "UBIGINT" else 2**120 + 1
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute(f"CREATE TABLE t (id {kind}, embedding FLOAT[2])")
        connection.execute(f"INSERT INTO t VALUES ({largest}, [1, 0]), ({largest - 1}, [0, 1]), (9, [1, 1])")
        snapshot = PinnedStore(DuckDBStore(connection, "t"), pin=pin).take_snapshot()
        assert snapshot.ids == (9, largest - 1, largest)
        rows, asked = snapshot.make_problem(np.array([1.0, 0.0]))
        np.testing.assert_allclose(rows @ asked, [0.5**0.5, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    "kind", ["DECIMAL(9,2)", "DOUBLE", "DATE", "TIMESTAMP_NS", "BLOB", "BOOLEAN", "ENUM ('a')", "INT[]"]
)
def test_ids_of_other_types(kind: str) -> None:
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute(f"CREATE TABLE t (id {kind}, embedding FLOAT[2])")
        with pytest.raises(InvalidInput, match='the column "id" must hold whole numbers, texts or UUIDs for ids, not'):
            DuckDBStore(connection, "t")


def test_uuids() -> None:
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE t AS SELECT uuid() AS id, [i, 1]::FLOAT[2] AS embedding FROM range(9) r(i)")
        expected = sorted(one for (one,) in connection.execute("SELECT id FROM t").fetchall())
        assert list(DuckDBStore(connection, "t").records().ids) == expected


def test_odd_vectors() -> None:
    """Vectors without numbers raise an error; any length is scored."""
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE none AS SELECT 1 AS id, []::FLOAT[] AS embedding")
        with pytest.raises(StoreError, match="The DuckDB table none holds vectors of no numbers"):
            DuckDBStore(connection, "none")
        connection.execute("CREATE TABLE t (id INT, embedding DOUBLE[2])")
        connection.execute("INSERT INTO t VALUES (1, [3e25, 4e25]), (2, [3e-25, 4e-25])")
        scored = DuckDBStore(connection, "t").scores(np.array([1, 0], dtype=np.float32))
        np.testing.assert_allclose(scored.values, [0.6, 0.6], atol=1e-6)
        connection.execute("INSERT INTO t VALUES (3, [3e200, 4e200])")
        with pytest.raises(StoreError, match=r"no finite numbers|not finite"):
            PinnedStore(DuckDBStore(connection, "t"), pin="scores").take_snapshot()


def test_locked_file(tmp_path: Path) -> None:
    """A file that another process holds raises a StoreError."""
    path = tmp_path / "people.duckdb"
    with contextlib.closing(duckdb.connect(path)) as connection:
        connection.execute("CREATE TABLE people AS SELECT 1 AS id, [1, 0]::FLOAT[2] AS embedding")
    store = DuckDBStore(path, "people")
    assert PinnedStore(store).take_snapshot().ids == (1,)
    with pytest.raises(duckdb.InvalidInputException, match="read-only"):
        store._read(lambda cursor: cursor.execute("DELETE FROM people"))
    code = f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=r"failed while giving its vectors \(IOException\)"):
            PinnedStore(store).take_snapshot()
    finally:
        other.communicate("\n")
    assert PinnedStore(store).take_snapshot().ids == (1,)


def test_closed_database() -> None:
    """A database that is closed raises a StoreError."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE people AS SELECT 1 AS id, [1, 0, 0, 0, 0, 0, 0, 1]::FLOAT[8] AS embedding")
    pinned = PinnedStore(DuckDBStore(connection, "people"))
    pinned.take_snapshot()
    connection.close()
    with pytest.raises(StoreError, match=r"failed while giving its state \(ConnectionException\)"):
        pinned.take_snapshot()


def test_no_parquet(tmp_path: Path) -> None:
    """A file that is not Parquet raises a StoreError."""
    path = tmp_path / "people.parquet"
    path.write_bytes(b"PAR1 and what follows is nothing")
    with pytest.raises(StoreError, match=r"The Parquet file people.parquet failed while being opened \(\w+\)"):
        ParquetStore(path)


def test_pyarrow_file(tmp_path: Path) -> None:
    """A file that PyArrow wrote is read."""
    pa = pytest.importorskip("pyarrow")
    rows = unit(np.random.default_rng(0).standard_normal((9, DIMENSION)))
    for kind in (pa.list_(pa.float64()), pa.list_(pa.float32(), DIMENSION)):
        table = pa.table({"id": [f"p{i}" for i in range(9)], "embedding": pa.array(rows.tolist(), kind)})
        pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "p.parquet", row_group_size=4)
        snapshot = PinnedStore(ParquetStore(tmp_path / "p.parquet")).take_snapshot()
        np.testing.assert_allclose(snapshot.rows, rows, atol=1e-6)
        scored = ParquetStore(tmp_path / "p.parquet").scores(make_query())
        np.testing.assert_allclose(scored.values, rows @ make_query(), atol=1e-6)


def test_bad_arguments(tmp_path: Path) -> None:
    with contextlib.closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE t (id INT, embedding FLOAT[2], numbers INT[2], name VARCHAR)")
        connection.execute("CREATE VIEW v AS FROM t")
        for match, arguments in (
            ("must be a table; a view", (connection, "v")),
            ('has no columns "key" and "embedding"', (connection, "t", "key")),
            ('"numbers" must hold FLOAT or DOUBLE arrays', (connection, "t", "id", "numbers")),
            ('"name" must hold FLOAT or DOUBLE arrays, not VARCHAR', (connection, "t", "id", "name")),
            ("the name of a table", (connection, "")),
            ("the name of a column", (connection, "t", "")),
            ("a duckdb connection or the path of a file", (3, "t")),
        ):
            with pytest.raises(InvalidInput, match=match):
                DuckDBStore(*arguments)
        with pytest.raises(StoreError, match="The DuckDB table nobody does not exist"):
            DuckDBStore(connection, "nobody")
    with pytest.raises(StoreError, match=r"there is no file none\.duckdb"):
        DuckDBStore(tmp_path / "none.duckdb", "t")
    with pytest.raises(StoreError, match=r"The Parquet file none\.parquet does not exist"):
        ParquetStore(tmp_path / "none.parquet")
    with pytest.raises(InvalidInput, match="the path of a file"):
        ParquetStore(3)  # type: ignore[arg-type]


class TestForeignFiles:
    """A database file may hold more than a table: none of it reads another file or stands in for the engine."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        (tmp_path / "other.csv").write_text('id,embedding\n1,"[1.0, 2.0]"\n')
        with contextlib.closing(duckdb.connect(tmp_path / "a.db")) as made:
            made.execute("CREATE TABLE people (id BIGINT, embedding FLOAT[2])")
            made.execute("INSERT INTO people VALUES (1, [1, 0]), (2, [0, 1])")
            made.execute(
                "CREATE VIEW elsewhere AS SELECT id, embedding::FLOAT[2] AS embedding "
                f"FROM read_csv('{tmp_path / 'other.csv'}')"
            )
            made.execute("CREATE VIEW within AS SELECT * FROM people")
            made.execute(
                "CREATE TABLE computed (id BIGINT, embedding FLOAT[2] "
                "GENERATED ALWAYS AS (CAST([random(), id] AS FLOAT[2])))"
            )
            made.execute("INSERT INTO computed VALUES (1)")
            made.execute("CREATE MACRO array_cosine_similarity(a, b) AS 0.77")
            made.execute("CREATE MACRO len(a) AS 7")
        return tmp_path / "a.db"

    def test_a_view_is_rejected(self, path: Path) -> None:
        for name in ("elsewhere", "within"):
            with pytest.raises(InvalidInput, match="must be a table; a view"):
                DuckDBStore(path, name)
        with contextlib.closing(duckdb.connect(path)) as connection, pytest.raises(InvalidInput, match="a view"):
            DuckDBStore(connection, "within")

    def test_computed_column(self, path: Path) -> None:
        """A computed column raises an error."""
        with pytest.raises(InvalidInput, match="must store its columns"):
            DuckDBStore(path, "computed")

    def test_macro(self, path: Path) -> None:
        """A macro of the file does not replace a function of the engine."""
        scores = DuckDBStore(path, "people").scores(np.array([1, 0], dtype=np.float32)).values
        assert scores.tolist() == [1.0, 0.0]

    def test_became_view(self, path: Path) -> None:
        """A table that became a view raises an error."""
        store = DuckDBStore(path, "people")
        with contextlib.closing(duckdb.connect(path)) as made:
            made.execute("DROP VIEW within")
            made.execute("ALTER TABLE people RENAME TO people2")
            made.execute("CREATE VIEW people AS SELECT * FROM people2")
        with pytest.raises(InvalidInput, match="must be a table; a view"):
            store.scores(np.array([1, 0], dtype=np.float32))

    def test_python_variable(self, path: Path) -> None:
        """A Python variable is no table."""
        relation = duckdb.sql("SELECT 1 AS id, [1.0, 2.0]::FLOAT[2] AS embedding")
        assert relation is not None
        with pytest.raises(StoreError, match="does not exist"):
            DuckDBStore(path, "relation")

    def test_no_other_files(self, path: Path, tmp_path: Path) -> None:
        """The connections of a store cannot read other files."""
        with contextlib.closing(duckdb.connect(path)) as made:
            made.execute(f"COPY people TO '{tmp_path / 'p.parquet'}' (FORMAT parquet)")
        for store in (DuckDBStore(path, "people"), ParquetStore(tmp_path / "p.parquet")):
            with store._open_cursor() as cursor:
                for statement in (
                    f"SELECT * FROM read_csv('{tmp_path / 'other.csv'}')",
                    f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
                    "SET enable_external_access = true",
                    f"ATTACH '{tmp_path / 'b.db'}'",
                ):
                    with pytest.raises(duckdb.Error):
                        cursor.execute(statement)
        assert not (tmp_path / "out.csv").exists()

    def test_file_names(self, path: Path, tmp_path: Path) -> None:
        """File names with quotes and wildcards mean one file."""
        folder = tmp_path / "a[1] *'q"
        folder.mkdir()
        with contextlib.closing(duckdb.connect(path)) as made:
            name = str(folder / "p?.parquet").replace("'", "''")
            made.execute(f"COPY people TO '{name}' (FORMAT parquet)")
        assert ParquetStore(folder / "p?.parquet").records().ids == [1, 2]
