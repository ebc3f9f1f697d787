"""Rows of numbers that are read part by part: row sources, and memory-mapped arrays whose pages are given back."""

from __future__ import annotations

import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The bytes of one window of rows.
WINDOW_BYTES = 1 << 25


class RowSource(ABC):
    """A matrix in a file that is read part by part. A slice of rows is an array; anything else reads the whole matrix.

    Attributes:
        shape: Rows and columns.
        dtype: The type of the numbers that are returned.
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read the rows from ``start`` up to ``stop``, 0 <= start <= stop <= len(self)."""

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return self.read(start, max(start, stop)).astype(self.dtype, copy=False)
        return np.asarray(self)[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy  # the rows are always read anew
        return self.read(0, len(self)).astype(self.dtype if dtype is None else dtype, copy=False)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Convert as an array does; without a copy, the rows are converted when they are read."""
        if copy:
            return np.asarray(self).astype(dtype)
        return self if np.dtype(dtype) == self.dtype else _ConvertedRows(self, dtype)


class _ConvertedRows(RowSource):
    """The rows of another source, in another type of number."""

    def __init__(self, source: RowSource, dtype: Any) -> None:
        super().__init__(source.shape, dtype)
        self._source = source

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._source.read(start, stop)


def read_windows(rows: Any, size: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read rows in windows of ``size`` rows, each with the number of its first row.

    The pages of a memory-mapped window are given back when the next window is asked for, so that a file larger than
    memory needs memory for two windows. The system starts to read the next window meanwhile.
    """
    for start in range(0, len(rows), size):
        window = rows[start : start + size]
        if isinstance(rows, np.ndarray):
            _advise(rows[start + size : start + 2 * size], "MADV_WILLNEED")
        yield start, window
        release_pages(window)


def release_pages(part: NDArray[Any]) -> None:
    """Give back the pages of a part of a read-only memory-mapped file; a later read maps them again."""
    _advise(part, "MADV_DONTNEED")


def _advise(part: NDArray[Any], advice: str) -> None:
    """Tell the system what will be done with a part of a mapped file. Nothing happens for other arrays.

    A mapping that can be written is left alone: giving back a page of a private one would lose what was written.
    """
    mapping = _find_mapping(part)
    if mapping is None or not part.size or not part.flags.c_contiguous or sys.platform != "linux":
        return
    whole = np.frombuffer(mapping, dtype=np.uint8)
    if whole.flags.writeable:
        return
    begin = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    mapping.madvise(getattr(mmap, advice), first, min(begin + part.nbytes, len(whole)) - first)


def _find_mapping(part: Any) -> mmap.mmap | None:
    while isinstance(part, np.ndarray):
        part = part.base
    return part if isinstance(part, mmap.mmap) else None
