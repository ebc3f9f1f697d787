"""A usearch index as a store: its own exact scores of all records, and its vectors for a pinned copy.

usearch keeps every vector by itself, in the precision it was made for, so each score depends on its own record alone.
The graph that makes its search approximate plays no part: scores are asked for with ``exact=True``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.protocol import Convention, Records, StoreScores, explain_missing_extra

_CONVENTIONS = {"Cos": Convention.COSINE_DISTANCE, "IP": Convention.COSINE_DISTANCE, "L2sq": Convention.SQUARED_L2}
_PRECISIONS = ("F64", "F32", "BF16", "F16", "I8")
_SAMPLE = 64  # vectors that a state looks at
_PAGE = 1_024  # vectors that are read at a time
#: The lengths at which cosines come back out of usearch's rounded numbers to about 0.01: 1 - <x, q> says little of a
#: short vector, and |x - q|^2 little of a short or a long one, less still where q is rounded to 16 bits.
_SOUND = {"Cos": (0.0, np.inf), "IP": (0.02, np.inf), "L2sq": (0.02, 2e4)}
_SOUND_IN_16_BITS = {**_SOUND, "L2sq": (0.5, 2e4)}


class UsearchStore:
    """A usearch index, in memory or viewed from a file.

    Parameters
    ----------
    index : a ``usearch.index.Index`` by ``cos``, ``ip`` or ``l2sq``, of ``f64``, ``f32``, ``bf16``, ``f16`` or, for
        ``cos``, ``i8``, with one vector a key. Lengths are divided out: what is released is cosines.

    ``state`` sees the keys, how many links the graph has, and 64 of the vectors: insertions and removals always, a
    vector replaced under its own key always among 64 records or fewer and nearly always among more; where that
    matters, say :meth:`mark_changed`.
    """

    name = "The usearch index"
    zero_copy = False

    @clear_frames_on_error
    @validate()
    def __init__(self, index: Any) -> None:
        if not isinstance(index, _usearch().Index):
            _validation.reject("index", "a usearch.index.Index", index)
        metric, precision = index.metric_kind.name, index.dtype.name
        if index.jit or metric not in _CONVENTIONS:
            raise InvalidInput(f"UsearchStore takes an index by cos, ip or l2sq. Got one by {_metric(index)} instead.")
        if precision not in _PRECISIONS or (precision == "I8" and metric != "Cos"):
            raise InvalidInput(
                "UsearchStore takes an index of f64, f32, bf16 or f16, or of i8 by cos: others score something else "
                f"than cosines. Got {precision.lower()} by {metric.lower()} instead."
            )
        if index.multi:
            raise InvalidInput("UsearchStore takes one vector a key; make the index with multi=False.")
        self._index, self._metric = index, metric
        self.convention = _CONVENTIONS[metric]
        self._lengths: tuple[Hashable, NDArray[np.float64]] | None = None
        self._told = 0

    @property
    def dimension(self) -> int:
        return int(self._index.ndim)

    def state(self) -> Hashable:
        keys = self._keys()
        seen = keys[np.unique(np.linspace(0, len(keys) - 1, _SAMPLE).astype(np.int64))] if len(keys) else keys
        return self._told, int(self._index.stats.edges), hash(keys.tobytes()), hash(self._rows(seen).tobytes())

    def mark_changed(self) -> None:
        """Say that vectors were replaced under their own keys."""
        self._told += 1

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        """usearch's own distances of all records, as they would be if each vector had unit length, by rising key."""
        n = len(self._index)
        if not n:
            return StoreScores([], np.empty(0, dtype=np.float32))
        found = self._index.search(query, n + 1, exact=True)  # one more, to see a record that came just now
        order = np.argsort(found.keys)  # they come by merit, and leave in the order of the keys
        keys, values = np.asarray(found.keys)[order], np.asarray(found.distances, dtype=np.float64)[order]
        if len(keys) != n:
            raise StoreError(f"{self.name} gave {len(keys):,} scores for {n:,} records; nothing was released.")
        return StoreScores(keys.tolist(), self._of_unit_vectors(values).astype(np.float32))

    @clear_frames_on_error
    def records(self) -> Records:
        keys = np.sort(self._keys())
        rows, done = np.empty((len(keys), self.dimension), dtype=self._float), 0
        for page in self._pages(keys):
            rows[done : done + len(page)] = page
            done += len(page)
        return Records(keys.tolist(), rows)

    @property
    def _float(self) -> type[np.floating[Any]]:
        return np.float64 if self._index.dtype.name == "F64" else np.float32

    def _pages(self, keys: NDArray[np.uint64]) -> Iterator[NDArray[np.floating[Any]]]:
        for start in range(0, len(keys), _PAGE):
            yield self._rows(keys[start : start + _PAGE])

    def _rows(self, keys: NDArray[np.uint64]) -> NDArray[np.floating[Any]]:
        rows = np.empty((len(keys), self.dimension), dtype=self._float)
        for place, row in enumerate(self._index.get(keys) if len(keys) else ()):
            if row is None:
                raise StoreError(f"{self.name} changed while it was read; nothing was released: try again.")
            rows[place] = row
        return rows

    def _keys(self) -> NDArray[np.uint64]:
        return np.asarray(self._index.keys, dtype=np.uint64)

    def _of_unit_vectors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """From 1 - <x, q> or |x - q|^2 to the same of x / |x|; by cosine they are so already."""
        lengths = self._all_lengths()
        if len(lengths) != len(values):
            raise StoreError(f"{self.name} changed while it was read; nothing was released: try again.")
        if self._metric == "IP":
            values = 1 - (1 - values) / lengths
        elif self._metric == "L2sq":
            values = 2 - (lengths**2 + 1 - values) / lengths
        return values

    def _all_lengths(self) -> NDArray[np.float64]:
        """By rising key; read once for each state. usearch gives a zero vector the cosine 0: here it is refused."""
        state = self.state()
        if self._lengths is None or self._lengths[0] != state:
            pages = (page.astype(np.float64) for page in self._pages(np.sort(self._keys())))
            with np.errstate(all="ignore"):  # what is not finite then is refused below
                lengths = np.concatenate([np.sqrt(np.vecdot(page, page)) for page in pages])
            if not (np.isfinite(lengths).all() and lengths.min() > 0):
                raise StoreError(
                    f"{self.name} holds vectors that are zero or not finite numbers; nothing was released."
                )
            sound = _SOUND_IN_16_BITS if self._index.dtype.name.endswith("16") else _SOUND
            least, most = sound[self._metric]
            if lengths.min() < least or lengths.max() > most:
                raise StoreError(
                    f"{self.name} holds vectors whose lengths are not all from {least:g} to {most:g}, so that their "
                    f"cosines are lost in its {self._metric.lower()}; nothing was released: make it by cos."
                )
            self._lengths = state, lengths
        return self._lengths[1]


def _usearch() -> Any:
    try:
        return import_module("usearch.index")
    except ImportError:
        raise explain_missing_extra("usearch", "UsearchStore") from None


def _metric(index: Any) -> str:
    return "a function of its own" if index.jit else index.metric_kind.name.lower()
