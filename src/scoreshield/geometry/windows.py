"""Read a collection in windows of rows, so that a file larger than memory can be checked and scored.

A window is a whole number of the blocks of `scoreshield.geometry.embeddings`. So every product has the same shape as
without windows, and each score is the same to the last bit, from an array, a memory-mapped file or a Parquet file.
A mapped file of another type of number, such as half precision, is converted window by window (`convert_when_read`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._rows import WINDOW_BYTES, RowSource, read_windows, release_pages
from scoreshield.errors import InvalidRow
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.embeddings import Rows


class _MappedRows(RowSource):
    """The rows of a memory-mapped array, which are converted to another type of number when they are read."""

    def __init__(self, mapped: NDArray[Any], dtype: Any) -> None:
        super().__init__((len(mapped), mapped.shape[1]), dtype)
        self._mapped = mapped

    def read(self, start: int, stop: int) -> NDArray[Any]:
        part = self._mapped[start:stop]
        rows = part.astype(self.dtype)
        release_pages(part)
        return rows


def convert_when_read(embeddings: ArrayLike) -> ArrayLike:
    """Return a collection whose rows `as_rows` need not convert all at once, which takes memory for all of them.

    Only a memory-mapped array of another type than `as_rows` returns is changed: half precision, whole numbers, or
    another order of bytes.
    """
    if not isinstance(embeddings, np.memmap) or embeddings.ndim != 2 or not embeddings.size:
        return embeddings
    if embeddings.dtype.kind not in "fiu" or embeddings.dtype.itemsize > 8:
        return embeddings  # `as_rows` raises an error
    dtype = _embeddings.as_rows(embeddings[:1]).dtype
    return embeddings if embeddings.dtype == dtype else _MappedRows(embeddings, dtype)


def score_windows(rows: Rows, queries: NDArray[np.float64], norm: str) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Compute the clean cosines of every query with every row, as `compute_scores` does, window by window.

    Yields:
        The places of a window's rows, and its scores, (queries, rows of the window).
    """
    for start, window in read_windows(rows, _count_rows(rows)):
        with _name_rows_from(start):
            scores = _embeddings.compute_scores(window, queries, norm)
        yield slice(start, start + len(window)), scores


def check_finite_windows(rows: Rows) -> None:
    """Raise an error for the first row that holds a NaN or an infinity."""
    for start, window in read_windows(rows, _count_rows(rows)):
        with _name_rows_from(start):
            _embeddings.check_finite(window)


def normalise_window(window: Rows, first: int, out: NDArray[np.float64]) -> None:
    """Write the unit rows of a window to ``out``, in double precision. A zero row becomes the first basis vector.

    Rows whose squared length cannot overflow or vanish need no scaling. The others are scaled as by `normalise_rows`;
    each row is computed by itself, so that no record changes the last bit of another.

    Args:
        window: The rows.
        first: The number of the first row, for errors.
        out: As many rows of doubles.
    """
    out[:] = window
    low, high = _embeddings.SAFE_SQUARES[8]
    with np.errstate(all="ignore"):
        squares = np.vecdot(out, out)
        out /= np.sqrt(squares)[:, None]
    odd = np.flatnonzero(~((squares > low) & (squares < high)))  # also where a square is NaN
    if len(odd):
        try:
            out[odd] = _embeddings.normalise_rows(window[odd])
        except InvalidRow as error:
            raise InvalidRow(error.parameter, first + int(odd[error.row])) from None


def _count_rows(rows: Rows) -> int:
    """Count the rows of a window: a whole number of blocks."""
    row_bytes = int(rows.shape[1] * rows.dtype.itemsize)
    block: int = max(1, _embeddings._BLOCK_BYTES // row_bytes)
    # Of a mapped file, a window is a part of the page cache. Of other files, it takes memory.
    return block * max(1, WINDOW_BYTES // (block * row_bytes)) if isinstance(rows, np.ndarray) else block


@contextlib.contextmanager
def _name_rows_from(start: int) -> Iterator[None]:
    """Let an error about a row of a window name its place in the collection."""
    try:
        yield
    except InvalidRow as error:
        if start == 0:
            raise
        raise InvalidRow(error.parameter, start + error.row) from None
