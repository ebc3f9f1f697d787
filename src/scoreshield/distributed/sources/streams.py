"""Files that are open for reading, on this machine or by an address, and batches of rows that follow each other."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from scoreshield import _parquet
from scoreshield._loading import make_printable
from scoreshield.distributed import filesystems
from scoreshield.errors import FileError, InvalidInput

#: Begins to decode at a row, or before it: gives the number of the first row that is decoded, and the batches.
BatchStart = Callable[[int], tuple[int, Iterator[Any]]]


def open_file_stream(path: str) -> Any:
    """Open a file for reading: a path of this machine, or an address of fsspec."""
    if filesystems.is_remote(path):
        return filesystems.open_remote_stream(path)
    pa, _ = _parquet.import_arrow(path)
    try:
        with Path(path).open("rb"):  # its errors have plain texts
            return pa.OSFile(path)  # Arrow reads it by itself, and needs no lock of Python for that
    except OSError as error:
        raise FileError(f"Cannot read {make_printable(path)}: {error.strerror}.") from None


def explain_errors(path: str | Path) -> AbstractContextManager[None]:
    """Turn every error of reading a file into one sentence, without the text of another library."""
    return filesystems.explain_storage_errors(str(path), "read")


class BatchWindow:
    """Reads ranges of rows from Arrow batches. Ranges that follow each other decode each batch once.

    Args:
        begin: What begins to decode.
    """

    def __init__(self, begin: BatchStart) -> None:
        self._begin = begin
        self._first, self._held = 0, None
        self._batches: Iterator[Any] | None = None

    def read(self, start: int, stop: int) -> list[Any]:
        """Read the rows from ``start`` up to ``stop``, as parts of batches."""
        parts: list[Any] = []
        held_to = self._first + (0 if self._held is None else len(self._held))
        if self._batches is None or not self._first <= start <= held_to:
            self._first, self._batches = self._begin(start)
            self._held = None
        while start < stop:
            held_to = self._first + (0 if self._held is None else len(self._held))
            if start < held_to:
                assert self._held is not None  # it reaches beyond the start
                part = self._held.slice(start - self._first, min(stop, held_to) - start)
                parts.append(part)
                start += len(part)
                continue
            self._first, self._held = held_to, next(self._batches, None)
            if self._held is None:
                self._batches = None
                raise InvalidInput("A file of the collection ends before its last row.")
        return parts


def open_parquet_batches(path: str, stream: Any, column: str, batch_rows: int) -> tuple[Any, BatchWindow]:
    """Open one column of a Parquet file: the Arrow schema of the file, and the rows of the column.

    Raises:
        InvalidInput: There is no such column, or the file is no Parquet file.
    """
    pa, parquet = _parquet.import_arrow(path)
    where = make_printable(path)
    with explain_errors(path):
        try:
            file = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=2**20)
        except pa.ArrowException:
            raise InvalidInput(f"{where} is not a readable Parquet file.") from None
    if file.schema_arrow.names.count(column) != 1:
        raise InvalidInput(f"{where} holds no column {column!r}, or two of them.")
    counts = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
    starts = [0, *itertools.accumulate(counts)]

    def begin(start: int) -> tuple[int, Iterator[Any]]:
        group = min(bisect.bisect_right(starts, start), len(counts)) - 1
        batches = file.iter_batches(
            batch_size=batch_rows, row_groups=list(range(group, len(counts))), columns=[column], use_threads=False
        )
        return starts[group], (batch.column(0) for batch in batches)

    return file.schema_arrow, BatchWindow(begin)
