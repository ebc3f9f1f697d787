"""A usearch index as a store: its own exact scores of all records, and its vectors for a pinned copy.

usearch keeps every vector by itself, in the precision it was made for, so each score depends on its own record alone.
The graph that makes its search approximate plays no part: scores are asked for with ``exact=True``.
"""

from __future__ import annotations

from collections.abc import Hashable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _checks
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.protocol import Convention, Records, Scored, need

_CONVENTIONS = {"Cos": Convention.COSINE_DISTANCE, "IP": Convention.COSINE_DISTANCE, "L2sq": Convention.SQUARED_L2}
_PRECISIONS = ("F64", "F32", "BF16", "F16", "I8")


class UsearchStore:
    """A usearch index, in memory or viewed from a file.

    Parameters
    ----------
    index : a ``usearch.index.Index`` by ``cos``, ``ip`` or ``l2sq``, of ``f64``, ``f32``, ``bf16``, ``f16`` or, for
        ``cos``, ``i8``, with one vector a key. Lengths are divided out: what is released is cosines.

    ``state`` sees the keys and how many links the graph has: insertions and removals always, a vector replaced under
    its own key nearly always; where that matters, say :meth:`changed`.
    """

    name = "The usearch index"
    zero_copy = False

    def __init__(self, index: Any) -> None:
        if not isinstance(index, _usearch().Index):
            _checks.reject("index", "UsearchStore", "a usearch.index.Index", index)
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
        return self._told, int(self._index.stats.edges), hash(self._keys().tobytes())

    def changed(self) -> None:
        """Say that vectors were replaced under their own keys."""
        self._told += 1

    def scores(self, query: NDArray[np.float32]) -> Scored:
        """usearch's own distances of all records, as they would be if each vector had unit length, by rising key."""
        n = len(self._index)
        if not n:
            return Scored([], np.empty(0, dtype=np.float32))
        found = self._index.search(query, n, exact=True)
        order = np.argsort(found.keys)  # they come by merit, and leave in the order of the keys
        keys, values = np.asarray(found.keys)[order], np.asarray(found.distances, dtype=np.float64)[order]
        if len(keys) != n:
            raise StoreError(f"{self.name} gave {len(keys):,} scores for {n:,} records; nothing was released.")
        if self._metric != "Cos":
            values = self._of_unit_vectors(values)
        return Scored(keys.tolist(), values.astype(np.float32))

    def records(self) -> Records:
        keys = np.sort(self._keys())
        if not len(keys):
            return Records([], np.empty((0, self.dimension), dtype=np.float32))
        rows = np.empty(
            (len(keys), self.dimension), dtype=np.float64 if self._index.dtype.name == "F64" else np.float32
        )
        for place, row in enumerate(self._index.get(keys)):
            if row is None:
                raise StoreError(f"{self.name} changed while it was read; nothing was released: try again.")
            rows[place] = row
        return Records(keys.tolist(), rows)

    def _keys(self) -> NDArray[np.uint64]:
        return np.asarray(self._index.keys, dtype=np.uint64)

    def _of_unit_vectors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """From 1 - <x, q> or |x - q|^2 to the same of x / |x|; the lengths are read once for each state."""
        state = self.state()
        if self._lengths is None or self._lengths[0] != state:
            rows = self.records().vectors.astype(np.float64)
            self._lengths = state, np.sqrt(np.vecdot(rows, rows))
        lengths = self._lengths[1]
        if len(lengths) != len(values):
            raise StoreError(f"{self.name} changed while it was read; nothing was released: try again.")
        with np.errstate(all="ignore"):  # what is not finite then is refused by the reader
            if self._metric == "IP":
                distances: NDArray[np.float64] = 1 - (1 - values) / lengths
                return distances
            squares: NDArray[np.float64] = 2 - (lengths**2 + 1 - values) / lengths
            return squares


def _usearch() -> Any:
    try:
        return import_module("usearch.index")
    except ImportError:
        raise need("usearch", "UsearchStore") from None


def _metric(index: Any) -> str:
    return "a function of its own" if index.jit else index.metric_kind.name.lower()
