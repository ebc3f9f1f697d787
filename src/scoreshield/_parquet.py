"""Embeddings in Parquet files: a column of lists, or numeric columns, read whole or part by part."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield._rows import RowSource
from scoreshield.errors import InvalidArrayFile, InvalidInput

#: How many rows are decoded at once, at least. A group of rows of the file may hold a million.
_BATCH = 2**10
#: The bytes that are decoded at once, where rows are short: they fit into the cache of a core, where they are copied.
_BATCH_BYTES = 2**20
#: The bytes of one request to a storage that is asked over a network.
STREAM_BYTES = 2**23
#: The bytes of one request to a file of this machine: they are copied once more, and stay in the cache.
FILE_BYTES = 2**16
#: Makes a context of a path, which turns every error into one sentence about the file.
ErrorExplainer = Callable[[str | Path], AbstractContextManager[None]]


def read_parquet(path: str | Path, name: str | None) -> NDArray[Any]:
    """Read a column of lists of one length, or else all numeric columns."""
    pa, parquet = import_arrow(path)
    with _loading.open_regular_file(path) as raw:
        try:
            # The open file and not its name, which Arrow might take for an address or a folder of files.
            table = _read_table(path, raw, parquet.ParquetFile(raw), pa, name)
        except pa.ArrowException as error:
            raise InvalidInput(f"{path} is not a readable Parquet file: {_loading.describe_error(error)}") from None
        return _make_matrix(path, table, pa)


def open_parquet(path: str | Path, name: str | None) -> NDArray[Any] | ParquetRows:
    """Open what `read_parquet` reads, without reading its rows. A file without rows is read."""
    pa, parquet = import_arrow(path)
    with _loading.open_regular_file(path) as raw, contextlib.ExitStack() as on_error:
        kept = on_error.enter_context(os.fdopen(os.dup(raw.fileno()), "rb"))
        try:
            # A small buffer: by default Arrow reads a whole group of rows ahead.
            file = parquet.ParquetFile(kept, pre_buffer=False, buffer_size=1 << 20)
            if not file.metadata.num_rows:
                return read_parquet(path, name)
            rows = ParquetRows(path, file, _choose_columns(path, file, pa, name), os.fstat(raw.fileno()).st_size, pa)
        except pa.ArrowException as error:
            raise InvalidInput(f"{path} is not a readable Parquet file: {_loading.describe_error(error)}") from None
        weakref.finalize(rows, on_error.pop_all().close)
        return rows


def open_parquet_stream(
    path: str,
    stream: Any,
    size: int,
    name: str | None,
    explain: ErrorExplainer,
    *,
    columns: int | None = None,
    is_lenient: bool = False,
    request_bytes: int = STREAM_BYTES,
) -> ParquetRows:
    """Open the rows of a Parquet file that is open for reading, on any file system.

    The first rows are read only if the type of the column does not tell how long its vectors are.

    Args:
        path: The file, for messages.
        stream: The open file, which is closed when the rows are dropped.
        size: The bytes of the file.
        name: As for `read_parquet`.
        explain: As for `ParquetRows`.
        columns: As for `ParquetRows`.
        is_lenient: As for `ParquetRows`.
        request_bytes: How many bytes are read at once.
    """
    pa, parquet = import_arrow(path)
    with contextlib.ExitStack() as on_error, explain(path):
        on_error.callback(stream.close)
        try:
            file = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=request_bytes)
            chosen = _choose_columns(path, file, pa, name)
            if columns is None and pa.types.is_fixed_size_list(chosen[0].type):
                columns = int(chosen[0].type.list_size)
            rows = ParquetRows(path, file, chosen, size, pa, columns, is_lenient, explain)
        except pa.ArrowException:
            raise InvalidInput(f"{path} is not a readable Parquet file.") from None
        weakref.finalize(rows, on_error.pop_all().close)
        return rows


class ParquetRows(RowSource):
    """The rows of a Parquet file. Parts that follow each other are decoded once; others decode their group of rows.

    Args:
        path: The file, for messages.
        file: The open `pyarrow.parquet.ParquetFile`.
        chosen: The fields of the columns that are read.
        on_disk: The bytes of the file.
        pa: The module `pyarrow`.
        columns: The length of the vectors, if it is known; None reads it from the first rows.
        is_lenient: Whether a missing vector, or one of another length, is a row of zeros and no error.
        explain: Turns errors of reading into one sentence.
    """

    def __init__(
        self,
        path: str | Path,
        file: Any,
        chosen: list[Any],
        on_disk: int,
        pa: Any,
        columns: int | None = None,
        is_lenient: bool = False,
        explain: ErrorExplainer = _loading.explain_read_errors,
    ) -> None:
        self._explain = explain
        self._path, self._file, self._on_disk, self._pa = path, file, on_disk, pa
        self._names = [field.name for field in chosen]
        groups = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
        self._starts: list[int] = [0, *itertools.accumulate(groups)]
        self._lock = threading.Lock()
        self._batches: Iterator[Any] = iter(())
        self._held_from, self._held = 0, np.empty((0, 0))
        self._columns, self._is_lenient = columns, is_lenient
        super().__init__((int(file.metadata.num_rows), columns or 0), _find_type(chosen, pa))
        if columns is None and len(self):
            self._restart(0)
            self._advance()
            self._columns = self._held.shape[1]
            self.shape = (self.shape[0], self._columns)
        self._restart(0)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are read, in their order."""
        return tuple(self._names)

    def check_list_sizes(self) -> None:
        """Raise an error if the lists hold far more numbers than vectors of one length would, by the file's footer."""
        footer, first = self._file.metadata, self._names[0]
        if not _is_list(self._pa, self._file.schema_arrow.field(first).type):
            return
        count = sum(
            column.num_values
            for group in range(footer.num_row_groups)
            for place in range(footer.num_columns)
            if (column := footer.row_group(group).column(place)).path_in_schema.split(".")[0] == first
        )
        if len(self._names) == 1 and count > 2 * len(self) * (self.shape[1] + 1):
            raise InvalidInput(f"{self._path}: the embedding column must hold lists of one length.")

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read rows; into ``out``, which has at least as many, where it is given."""
        rows, done = (
            np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out[: stop - start],
            0,
        )
        with self._lock:
            if start < self._held_from or start >= self._next_group():
                self._restart(start)
            while done < len(rows):
                first = start + done - self._held_from
                part = self._held[first : first + len(rows) - done]
                if len(part):
                    rows[done : done + len(part)] = part
                    done += len(part)
                else:
                    self._advance()
        return rows

    def _next_group(self) -> int:
        """Return the first row after the group of rows that is being decoded, and after what is held."""
        held_to = self._held_from + len(self._held)
        return max(held_to, self._starts[min(bisect.bisect_right(self._starts, held_to), len(self._starts) - 1)])

    def _restart(self, start: int) -> None:
        """Decode from the group of rows that holds this row."""
        group = min(bisect.bisect_right(self._starts, start), len(self._starts) - 1) - 1
        self._held_from, self._held = self._starts[group], self._held[:0]
        groups = range(group, len(self._starts) - 1)
        size = max(_BATCH, _BATCH_BYTES // max(1, self.shape[1] * self.itemsize)) if self._columns else _BATCH
        self._batches = self._file.iter_batches(
            batch_size=size, row_groups=list(groups), columns=self._names, use_threads=False
        )

    def _advance(self) -> None:
        with self._explain(self._path):
            try:
                batch = next(self._batches, None)
            except self._pa.ArrowException as error:
                cause = _loading.describe_error(error)
                raise InvalidInput(f"{self._path} is not a readable Parquet file: {cause}") from None
            if batch is None:
                raise InvalidInput(f"{self._path} ends before its last row.")
            if not self._is_lenient:  # otherwise `check_list_sizes` bounds it, and no record decides
                _loading.check_size(batch.nbytes, self._on_disk, self._path)
            table = self._pa.Table.from_batches([batch]).select(self._names)
            if self._is_lenient and self._columns is not None:
                table = _replace_unusable(table, self._columns, self._pa)
            matrix = _make_matrix(self._path, table, self._pa)
            if self._columns is not None and matrix.shape[1] != self._columns:
                raise InvalidInput(f"{self._path}: the embedding column must hold lists of one length.")
        self._held_from += len(self._held)
        self._held = matrix.astype(self.dtype, copy=False)


def import_arrow(path: str | Path) -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        with _loading.open_regular_file(path):  # a missing file is reported first
            pass
        raise InvalidInput(f"Reading {path} needs the 'parquet' extra: pip install 'scoreshield[parquet]'.") from None
    return pa, parquet


def _find_type(chosen: list[Any], pa: Any) -> Any:
    """Find the type that the whole matrix would have; whole numbers become doubles, because one may be missing."""
    kinds = [field.type.value_type if _is_list(pa, field.type) else field.type for field in chosen]
    if not all(pa.types.is_floating(kind) for kind in kinds):
        return np.float64
    return np.result_type(*(kind.to_pandas_dtype() for kind in kinds))


def _choose_columns(path: str | Path, file: Any, pa: Any, name: str | None) -> list[Any]:
    """Choose the column of lists, or the numeric columns."""
    fields = [field for field in file.schema_arrow if name in (None, field.name)]
    if name is not None and not fields:
        lists = _loading.join_names([field.name for field in file.schema_arrow if _is_list(pa, field.type)])
        raise InvalidInput(f"{path} holds no column {name!r}{lists and f'; its columns of lists: {lists}'}.")
    chosen = [field for field in fields if _is_list(pa, field.type)]
    if len(chosen) > 1:
        columns = _loading.join_names([field.name for field in chosen])
        raise InvalidArrayFile(path, f"holds several columns of lists ({columns})", is_ambiguous=True)
    if chosen and not _is_countable(pa, chosen[0].type.value_type):
        raise InvalidInput(f"{path}: the embedding column must hold lists of numbers.")
    chosen = chosen or [field for field in fields if _is_number(pa, field.type)]
    if not chosen:
        raise InvalidInput(f"{path} holds neither a column of lists nor numeric columns.")
    if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
        raise InvalidInput(f"{path} holds two columns of one name.")
    return chosen


def _read_table(path: str | Path, raw: BinaryIO, file: Any, pa: Any, name: str | None) -> Any:
    """Read the chosen columns and no others."""
    chosen = _choose_columns(path, file, pa, name)
    names = [field.name for field in chosen]
    on_disk, size, parts = os.fstat(raw.fileno()).st_size, 0, []
    _loading.check_size(_state_size(file, chosen, pa), on_disk, path)
    for batch in file.iter_batches(batch_size=_BATCH, columns=names):
        size += batch.nbytes
        _loading.check_size(size, on_disk, path)
        parts.append(batch)
    return pa.Table.from_batches(parts, schema=pa.schema(chosen)).select(names)


def _state_size(file: Any, chosen: list[Any], pa: Any) -> int:
    """Compute the bytes of these columns in memory, as the file states them: repeated values take few on disk.

    A list of any length counts as one value; the true size of such columns is counted while they are read. (Arrow has
    more facts about each column, but reading them from a damaged file can end the process.)
    """
    lengths = [field.type.list_size if pa.types.is_fixed_size_list(field.type) else 1 for field in chosen]
    return 8 * int(file.metadata.num_rows) * sum(lengths)


def _make_matrix(path: str | Path, table: Any, pa: Any) -> NDArray[Any]:
    if not _is_list(pa, table.schema.field(0).type):
        return np.column_stack([column.to_numpy() for column in table.columns])
    column = _join_chunks(table.column(0))
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if column.null_count or not len(column) or len(flat) % len(column):
        raise InvalidInput(f"{path}: the embedding column must hold lists of one length, none missing.")
    if not pa.types.is_fixed_size_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != lengths[0]).any():
            raise InvalidInput(f"{path}: the embedding column must hold lists of one length.")
    matrix: NDArray[Any] = flat.reshape(len(column), -1)
    return matrix


def _join_chunks(column: Any) -> Any:
    """Return a column as one array, without a copy where it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def make_vector_rows(path: str, column: Any, columns: int, *, is_lenient: bool) -> NDArray[Any]:
    """Make a matrix of an Arrow array of lists, as `ParquetRows` does of the rows of a file."""
    pa, _ = import_arrow(path)
    table = pa.Table.from_arrays([column], names=["vectors"])
    return _make_matrix(path, _replace_unusable(table, columns, pa) if is_lenient else table, pa)


def _replace_unusable(table: Any, columns: int, pa: Any) -> Any:
    """Put a list of zeros in place of each list that is missing or of another length."""
    column = _join_chunks(table.column(0))
    if not _is_list(pa, column.type):
        return table
    if pa.types.is_fixed_size_list(column.type) and column.type.list_size == columns and not column.null_count:
        return table
    lengths = column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
    usable = (lengths == columns) & column.is_valid().to_numpy(zero_copy_only=False)
    if usable.all():
        return table
    values = np.zeros((len(column), columns), dtype=np.float64)
    kept = column.filter(pa.array(usable)).flatten().to_numpy(zero_copy_only=False)
    values[usable] = kept.reshape(-1, columns)
    zeroed = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), columns)
    return pa.Table.from_arrays([zeroed], names=table.column_names)


def _is_list(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_countable(pa: Any, kind: Any) -> bool:
    """Whether values of this type become doubles."""
    return bool(_is_number(pa, kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))
