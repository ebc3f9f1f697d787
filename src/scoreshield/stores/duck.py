"""DuckDB tables and Parquet files as stores, both read by DuckDB.

Scores come from ``SELECT id, array_cosine_similarity(vector, query)``, a full scan, in double precision. In single
precision DuckDB's squares of very long vectors overflow, and it answers 0. A Parquet file is read by the same
statements, rather than by PyArrow: only its two columns are read, a block at a time, and the scores are the engine's
own and not recomputed from the vectors they are checked against.

A database file may come from an attacker. It is opened without access to other files, extensions or Python variables.
Its table must be a table whose columns are stored: a view or a computed column could read other files or change with
every reading. Functions have their full names: a macro of the file could replace a function of the engine.
"""

from __future__ import annotations

import contextlib
import glob
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.base import BaseStore, read_file_state, sort_ids
from scoreshield.stores.protocol import Records, StoreScores, explain_missing_extra, read_store

T = TypeVar("T")

#: The types of ids that NumPy takes as they are, and those that travel as text to stay what they are.
_PLAIN = ("tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint", "varchar", "uuid")
_WIDE = ("hugeint", "uhugeint")
#: How many of the last vectors ``state`` looks at.
_SAMPLE = 32
#: Settings of the connections that this module opens: they read one table or file, and nothing else.
_CLOSED: dict[str, Any] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_LOCKED: dict[str, Any] = {"enable_external_access": "false", "lock_configuration": "true"}


class _DuckStore(BaseStore):
    """What a table and a file have in common; ``_relation`` is what follows FROM."""

    def __init__(self, relation: str, id_column: str, vector_column: str) -> None:
        for parameter, column in (("id_column", id_column), ("vector_column", vector_column)):
            if not isinstance(column, str) or not column:
                _validation.reject(parameter, "the name of a column", column)
        self._relation = relation
        self._id, self._column = _quote_name(id_column), _quote_name(vector_column)
        self._key = self._id
        self._dimension = read_store(self, "being opened", lambda: self._read(self._measure))

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        single, double = f"FLOAT[{self._dimension}]", f"DOUBLE[{self._dimension}]"
        row = f"{self._column}::{single}::{double}"  # an overflow of single precision raises an error
        score = f"system.main.array_cosine_similarity({row}, ?::{double})"
        statement = f"SELECT {self._key} AS id, {score} AS score FROM {self._relation}"
        ids, order, values = self._read_columns(statement, [query.tolist()])
        return StoreScores(ids, values.astype(np.float32)[order])

    @clear_frames_on_error
    def records(self) -> Records:
        ids, order, lists = self._read_columns(
            f"SELECT {self._key} AS id, {self._column} AS vector FROM {self._relation}", []
        )
        if any(isinstance(row, np.ma.MaskedArray) for row in lists):
            raise StoreError(f"{self.name} has vectors with missing numbers; nothing was released.")
        if any(len(row) != self._dimension for row in lists):
            raise self._mixed_error()
        return Records(ids, np.stack([lists[i] for i in order]) if order else np.empty((0, self._dimension)))

    def _read_columns(self, statement: str, values: list[Any]) -> tuple[list[Any], list[int], NDArray[Any]]:
        """Read two columns: return the ids in their own order, the row of each, and the second column."""
        import duckdb

        def work(cursor: Any) -> Any:
            try:
                return cursor.execute(statement, values).fetchnumpy()
            except duckdb.ConversionException:
                raise self._mixed_error() from None

        first, second = self._read(work).values()
        if not len(first):
            raise self._empty_error()
        if np.ma.getmaskarray(first).any() or np.ma.getmaskarray(second).any():
            raise StoreError(f"{self.name} has rows without an id or a vector; nothing was released.")
        ids = first.tolist() if self._key == self._id else [int(one) for one in first]
        return *sort_ids(ids), np.ma.getdata(second)

    def _mixed_error(self) -> StoreError:
        return StoreError(f"{self.name} mixes vectors of different lengths, or holds some that are no finite numbers.")

    def _measure(self, cursor: Any) -> int:
        """Read the number of entries of a vector, from the column's type or else from a row."""
        import duckdb

        try:
            types = cursor.execute(f"SELECT {self._id}, {self._column} FROM {self._relation} LIMIT 0").description
        except duckdb.BinderException:
            raise InvalidInput(f"{self.name} has no columns {self._id} and {self._column}.") from None
        except duckdb.CatalogException:
            raise StoreError(f"{self.name} does not exist.") from None
        self._check_id(types[0][1])
        kind = types[1][1]
        children = dict(kind.children) if kind.id in ("array", "list") else {}
        if str(children.get("child")) not in ("FLOAT", "DOUBLE"):
            raise InvalidInput(f"{self.name}: the column {self._column} must hold FLOAT or DOUBLE arrays, not {kind}.")
        if kind.id == "array":
            return int(children["size"])
        length = f"SELECT system.main.len({self._column}) FROM {self._relation}"
        length += f" WHERE {self._column} IS NOT NULL LIMIT 1"
        row = cursor.execute(length).fetchone()
        if row is None:
            raise self._empty_error()
        if not row[0]:
            raise StoreError(f"{self.name} holds vectors of no numbers.")
        return int(row[0])

    def _check_id(self, kind: Any) -> None:
        if kind.id in _WIDE:
            self._key = f"{self._id}::VARCHAR"
        elif kind.id not in _PLAIN:
            must = "must hold whole numbers, texts or UUIDs"
            raise InvalidInput(f"{self.name}: the column {self._id} {must} for ids, not {kind}.")

    def _read(self, work: Callable[[Any], T]) -> T:
        with self._open_cursor() as cursor:
            return work(cursor)

    @abstractmethod
    def _open_cursor(self) -> AbstractContextManager[Any]:
        """Open a cursor for one reading."""


class DuckDBStore(_DuckStore):
    """One table of a DuckDB database.

    By a path, ``state`` detects every change, by the file and its log, which change with any table. Through a
    connection it reads the table's own number, all ids with DuckDB's row numbers (a row gets a new one when its array
    is replaced) and the last vectors. It detects every insert, update and delete, a table made again, and a column
    rewritten as a whole. It does not detect rows that are deleted and then inserted again in the same places under the
    same ids with other vectors, after a CHECKPOINT freed their numbers, all between two readings: call
    `mark_changed` then.

    Args:
        database: An open connection, or the path of a file. The file is opened for each reading and for reading only,
            so that others may write to it in between. While this process itself writes to the file, give its
            connection.
        table: The table of the records. Through a connection, it is the table that the name means there at that moment
            (``USE`` may name a database and a schema). It cannot be a temporary one, which only the connection itself
            could read.
        id_column: The column of the ids.
        vector_column: The column of the vectors: FLOAT or DOUBLE arrays, or lists of one length.
        schema: The schema of the table.
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        database: Any,
        table: str,
        id_column: str = "id",
        vector_column: str = "embedding",
        *,
        schema: str | None = None,
    ) -> None:
        duckdb = _import_duckdb("DuckDBStore")
        self._connection = database if isinstance(database, duckdb.DuckDBPyConnection) else None
        self._path = Path(database) if isinstance(database, str | Path) else None
        if self._connection is None and self._path is None:
            _validation.reject("database", "a duckdb connection or the path of a file", type(database))
        if not isinstance(table, str) or not table:
            _validation.reject("table", "the name of a table", table)
        parts = [part for part in (schema, table) if part]
        self.name = "The DuckDB table " + ".".join(parts)
        self._place: list[Any] = [None, schema, table]
        if self._connection is not None:
            self._place = parts = self._resolve_table(schema, table)
        super().__init__(".".join(map(_quote_name, parts)), id_column, vector_column)
        read_store(self, "being opened", self.state)

    def read_state(self) -> Hashable:
        if self._path is not None:
            log = self._path.with_name(self._path.name + ".wal")
            return read_file_state(self._path, self.name), read_file_state(log, self.name) if log.exists() else None
        return self._read(self._read_table_state)

    def _read_table_state(self, cursor: Any) -> Hashable:
        import duckdb

        number = cursor.execute(
            "SELECT table_oid FROM duckdb_tables() WHERE (database_name, schema_name, table_name) = (?, ?, ?)",
            self._place,
        ).fetchone()
        # DuckDB joins the hashes of several values by xor; hashed once more, a swap of two values shows too.
        rows = f"SELECT count(*), max(rowid), bit_xor(hash(hash(rowid, {self._id}))) FROM {self._relation}"
        last = f"SELECT bit_xor(hash(hash(rowid, {self._column}))) FROM {self._relation} WHERE rowid > ?"
        try:
            count, end, ids = cursor.execute(rows).fetchone()
            (vectors,) = cursor.execute(last, [(end or 0) - _SAMPLE]).fetchone()
        except duckdb.BinderException:
            raise InvalidInput(f"{self.name} must be a table; a view does not show when it changes.") from None
        except duckdb.CatalogException:
            raise StoreError(f"{self.name} does not exist.") from None
        return number, count, end, ids, vectors

    def _resolve_table(self, schema: str | None, table: str) -> list[str]:
        """Find the database, schema and table that the name means on the connection: its cursors ignore ``USE``."""
        import duckdb

        assert self._connection is not None
        names = "SELECT database_name, schema_name, table_name, temporary FROM duckdb_tables() "
        place = _quote_text(schema) if schema else "current_schema()"
        where = (
            f"WHERE lower(table_name) = lower({_quote_text(table)}) AND (temporary OR "
            f"(database_name = current_database() AND lower(schema_name) = lower({place})))"
        )
        try:
            tables = self._connection.query(names + where).fetchall()
            (here,) = self._connection.query("SELECT current_database(), current_schema()").fetchall()
        except duckdb.Error as error:
            kind = type(error).__name__
            raise StoreError(
                f"{self.name} cannot be looked up ({kind}): the connection must be open, with no unfinished result."
            ) from None
        if any(temporary for *_, temporary in tables) and schema in (None, "temp"):
            raise InvalidInput(f"{self.name} is temporary: only its own connection can read it; make it a lasting one.")
        lasting = [list(place) for *place, temporary in tables if not temporary]
        return lasting[0] if lasting else [here[0], schema or here[1], table]

    @contextlib.contextmanager
    def _open_cursor(self) -> Iterator[Any]:
        if self._path is None:
            assert self._connection is not None
            # A connection serves one thread at a time, and each of its cursors is a connection of its own.
            with contextlib.closing(self._connection.cursor()) as cursor:
                self._check_table(cursor)
                yield cursor
            return
        import duckdb

        if not self._path.is_file():
            raise StoreError(f"{self.name} is gone: there is no file {self._path.name}.")
        with contextlib.closing(duckdb.connect(self._path, read_only=True, config=_CLOSED | _LOCKED)) as connection:
            self._check_table(connection)
            yield connection

    def _check_table(self, cursor: Any) -> None:
        """Raise an error where the name is not that of a table with stored columns."""
        database, schema, table = self._place
        where = (
            f"WHERE lower(table_name) = lower({_quote_text(table)}) AND database_name = "
            f"{_quote_text(database) if database else 'current_database()'} AND lower(schema_name) = "
            f"lower({_quote_text(schema) if schema else 'current_schema()'})"
        )
        row = cursor.execute(f"SELECT sql FROM system.main.duckdb_tables() {where}").fetchone()
        if row is None:
            views = f"SELECT view_name FROM system.main.duckdb_views() {where.replace('table_name', 'view_name', 1)}"
            if cursor.execute(views).fetchone() is not None:
                raise InvalidInput(f"{self.name} must be a table; a view does not show when it changes.")
            raise StoreError(f"{self.name} does not exist.")
        if "GENERATED ALWAYS AS" in row[0].upper():
            raise InvalidInput(f"{self.name} must store its columns; a generated one may change with every reading.")


class ParquetStore(_DuckStore):
    """One Parquet file.

    ``state`` reads the file's identity, size and time of change.

    Args:
        path: The path of the file.
        id_column: The column of the ids.
        vector_column: The column of the vectors: lists of one length, of single or double precision.
    """

    @clear_frames_on_error
    @validate()
    def __init__(self, path: str | Path, id_column: str = "id", vector_column: str = "embedding") -> None:
        _import_duckdb("ParquetStore")
        if not isinstance(path, str | Path):
            _validation.reject("path", "the path of a file", path)
        self._path = Path(path)
        self.name = f"The Parquet file {self._path.name}"
        if not self._path.is_file():
            raise StoreError(f"{self.name} does not exist.")
        self._pattern = glob.escape(str(self._path.absolute()))  # DuckDB takes patterns
        source = f"system.main.read_parquet({_quote_text(self._pattern)}, hive_partitioning = false)"
        super().__init__(source, id_column, vector_column)

    def read_state(self) -> Hashable:
        return read_file_state(self._path, self.name)

    @contextlib.contextmanager
    def _open_cursor(self) -> Iterator[Any]:
        import duckdb

        read_file_state(self._path, self.name)
        with contextlib.closing(duckdb.connect(config=_CLOSED)) as connection:
            allowed = ", ".join(_quote_text(name) for name in (str(self._path.absolute()), self._pattern))
            connection.execute(f"SET allowed_paths = [{allowed}]")
            for name, value in _LOCKED.items():
                connection.execute(f"SET {name} = {value}")
            yield connection


def _import_duckdb(feature: str) -> Any:
    try:
        import duckdb
    except ImportError:
        raise explain_missing_extra("duckdb", feature) from None
    return duckdb


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
