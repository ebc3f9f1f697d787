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
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.windows import score_windows
from scoreshield.stores.base import BaseStore, read_file_state
from scoreshield.stores.protocol import Records, StoreScores


class ArrayStore(BaseStore):
    """Embeddings in memory, or in a file that is mapped and never read whole.

    ``state`` detects another file, another size and another time of change. It does not detect changes that are made
    in an array in place: call `mark_changed` then. A mapped file must be replaced (written beside and renamed),
    never written over.

    Args:
        embeddings: An (n, d) array, of which a pinned copy is taken (a memory-mapped one is viewed). Or the path of a
            .npy file, which is mapped and viewed, of a .parquet file, whose scores are computed part by part, or of a
            .npz file, which is read. An array of another type than float32 or float64 is copied.
        ids: One per row; without them, the row numbers.
    """

    @clear_frames_on_error
    @validate()
    def __init__(self, embeddings: ArrayLike | str | Path, ids: Sequence[Any] | None = None) -> None:
        self._path = Path(embeddings) if isinstance(embeddings, str | Path) else None
        self.name = f"The array in {self._path.name}" if self._path is not None else "The array"
        self._array = None if self._path is not None else _embeddings.as_rows(embeddings)  # type: ignore[arg-type]
        self._ids = None if ids is None else _convert_ids(ids)
        rows = self._read_rows()
        n, self._dimension = rows.shape
        self.zero_copy = isinstance(rows, np.ndarray) and isinstance(
            rows.base, np.memmap
        )  # and of a type that is scored as it is
        if self._ids is not None and len(self._ids) != n:
            raise InvalidInput(f"ArrayStore takes one id per row, {n:,} of them; got {len(self._ids):,}.")

    def read_state(self) -> Hashable:
        return None if self._path is None else read_file_state(self._path, self.name)

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        rows = self._read_rows()
        values = np.empty(len(rows), dtype=np.float32)
        for places, scores in score_windows(rows, query[None].astype(np.float64), "unit"):
            values[places] = scores[0]
        return StoreScores(self._list_names(rows), values)

    @clear_frames_on_error
    def ids(self) -> Sequence[Any]:
        return self._list_names(self._read_rows())

    @clear_frames_on_error
    def records(self) -> Records:
        rows = self._read_rows()  # of a Parquet file, rows that are read part by part
        return Records(self._list_names(rows), rows)

    def _list_names(self, rows: NDArray[Any]) -> Sequence[Any]:
        return range(len(rows)) if self._ids is None else self._ids

    def _read_rows(self) -> NDArray[Any]:
        if self._path is None:
            assert self._array is not None
            return self._array
        return _embeddings.as_rows(_files.read_array(self._path, mapped=True))


def _convert_ids(ids: Any) -> list[Any]:
    if hasattr(ids, "__array__") and np.ndim(ids) == 1:  # also a column of a data frame
        return list(np.asarray(ids).tolist())
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        _validation.reject("ids", "a sequence, one id per row", ids)
    return list(ids)
