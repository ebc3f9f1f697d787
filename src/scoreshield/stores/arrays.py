"""NumPy arrays and memory-mapped files as a store."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _files, _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.stores.protocol import Convention, Records, StoreScores


class ArrayStore:
    """Embeddings in memory, or in a file that is mapped and never read whole.

    Parameters
    ----------
    embeddings : an (n, d) array, of which a pinned copy is taken (a memory-mapped one is viewed); or the path of a .npy
        file, which is mapped and viewed, or of a .npz or .parquet file, which is read. What is of another type than
        float32 or float64 is copied.
    ids : one a row; without them, the row numbers.

    A file has changed when it, its size or its time of change is another. Changes made in an array in place are not
    seen: say :meth:`mark_changed`. A mapped file must be replaced (written beside and renamed), never written over.
    """

    convention = Convention.COSINE

    @clear_frames_on_error
    @validate()
    def __init__(self, embeddings: ArrayLike | str | Path, ids: Sequence[Any] | None = None) -> None:
        self._path = Path(embeddings) if isinstance(embeddings, str | Path) else None
        self.name = f"The array in {self._path.name}" if self._path is not None else "The array"
        self._array = None if self._path is not None else _embeddings.as_rows(embeddings)  # type: ignore[arg-type]
        self._ids = None if ids is None else _as_list(ids)
        self._told = 0
        rows = self._rows()
        n, self._dimension = rows.shape
        self.zero_copy = isinstance(rows.base, np.memmap)  # and of a type that is scored as it is
        if self._ids is not None and len(self._ids) != n:
            raise InvalidInput(f"ArrayStore takes one id a row, {n:,} of them; got {len(self._ids):,}.")

    @property
    def dimension(self) -> int:
        return int(self._dimension)

    def state(self) -> Hashable:
        if self._path is None:
            return self._told
        try:
            facts = self._path.stat()
        except OSError:
            raise StoreError(f"{self.name} is gone.") from None
        return self._told, facts.st_ino, facts.st_size, facts.st_mtime_ns

    def mark_changed(self) -> None:
        """Say that the array was written to in place."""
        self._told += 1

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        rows = self._rows()
        values = _embeddings.scores(rows, query[None].astype(np.float64), "unit")[0]
        return StoreScores(self._names(rows), values.astype(np.float32))

    @clear_frames_on_error
    def ids(self) -> Sequence[Any]:
        return self._names(self._rows())

    @clear_frames_on_error
    def records(self) -> Records:
        rows = self._rows()
        return Records(self._names(rows), rows)

    def _names(self, rows: NDArray[Any]) -> Sequence[Any]:
        return range(len(rows)) if self._ids is None else self._ids

    def _rows(self) -> NDArray[Any]:
        if self._path is None:
            assert self._array is not None
            return self._array
        return _embeddings.as_rows(_files.read_array(self._path, mapped=True))


def _as_list(ids: Any) -> list[Any]:
    if isinstance(ids, np.ndarray) and ids.ndim == 1:
        return list(ids.tolist())
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        _validation.reject("ids", "a sequence, one id a row", ids)
    return list(ids)
