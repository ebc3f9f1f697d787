"""Read a collection in windows of rows, so that a file larger than memory can be checked and scored.

A window is a whole number of the blocks of `scoreshield.geometry.embeddings`. So every product has the same shape as
without windows, and each score is the same to the last bit, from an array, a memory-mapped file or a Parquet file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from scoreshield._rows import WINDOW_BYTES, read_windows
from scoreshield.errors import InvalidRow
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.embeddings import Rows


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
