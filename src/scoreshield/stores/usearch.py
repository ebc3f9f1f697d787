"""A usearch index as a store: its own exact scores of all records, and its vectors for a pinned copy.

usearch keeps each vector apart, in the precision of the index, so each score depends on its own record alone. The graph
that makes its search approximate is not used: scores are computed with ``exact=True``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.base import BaseStore
from scoreshield.stores.protocol import Convention, Records, StoreScores, explain_missing_extra

_CONVENTIONS = {"Cos": Convention.COSINE_DISTANCE, "IP": Convention.COSINE_DISTANCE, "L2sq": Convention.SQUARED_L2}
_PRECISIONS = ("F64", "F32", "BF16", "F16", "I8")
_SAMPLE = 64  # vectors that a state looks at
_PAGE = 1_024  # vectors that are read at a time
#: The vector lengths for which usearch's rounded numbers give cosines with an error of about 0.01. For a short vector,
#: 1 - <x, q> is not accurate enough. For a short or a long one, |x - q|^2 is not, above all where q has 16 bits.
_SOUND = {"Cos": (0.0, np.inf), "IP": (0.02, np.inf), "L2sq": (0.02, 2e4)}
_SOUND_IN_16_BITS = {**_SOUND, "L2sq": (0.5, 2e4)}


class UsearchStore(BaseStore):
    """A usearch index, in memory or viewed from a file.

    ``state`` reads the keys, the number of links in the graph, and 64 of the vectors. It always detects insertions and
    removals. It detects a vector that is replaced under its own key always among 64 records or fewer, and nearly
    always among more; call `mark_changed` where that matters.

    Args:
        index: A ``usearch.index.Index`` by ``cos``, ``ip`` or ``l2sq``, of ``f64``, ``f32``, ``bf16``, ``f16`` or, for
            ``cos``, ``i8``, with one vector per key. Vectors are divided by their lengths: cosines are released.
    """

    name = "The usearch index"

    @clear_frames_on_error
    @validate()
    def __init__(self, index: Any) -> None:
        if not isinstance(index, _import_usearch().Index):
            _validation.reject("index", "a usearch.index.Index", index)
        metric, precision = index.metric_kind.name, index.dtype.name
        if index.jit or metric not in _CONVENTIONS:
            raise InvalidInput(
                f"UsearchStore takes an index by cos, ip or l2sq. Got {_describe_metric(index)} instead."
            )
        if precision not in _PRECISIONS or (precision == "I8" and metric != "Cos"):
            raise InvalidInput(
                "UsearchStore takes an index of f64, f32, bf16 or f16, or of i8 by cos: others score something else "
                f"than cosines. Got {precision.lower()} by {metric.lower()} instead."
            )
        if index.multi:
            raise InvalidInput("UsearchStore takes one vector per key; make the index with multi=False.")
        self._index, self._metric = index, metric
        self.convention = _CONVENTIONS[metric]
        self._lengths: tuple[Hashable, NDArray[np.float64]] | None = None

    @property
    def dimension(self) -> int:
        return int(self._index.ndim)

    def read_state(self) -> Hashable:
        keys = self._list_keys()
        sample = keys[np.unique(np.linspace(0, len(keys) - 1, _SAMPLE).astype(np.int64))] if len(keys) else keys
        return int(self._index.stats.edges), hash(keys.tobytes()), hash(self._read_rows(sample).tobytes())

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        """Compute usearch's own distances of all records, converted to those of unit vectors, by rising key."""
        n = len(self._index)
        if not n:
            return StoreScores([], np.empty(0, dtype=np.float32))
        matches = self._index.search(query, n + 1, exact=True)  # one more, to detect a record that was just added
        order = np.argsort(matches.keys)  # they come by merit, and leave in the order of the keys
        keys, values = np.asarray(matches.keys)[order], np.asarray(matches.distances, dtype=np.float64)[order]
        self._check_count(len(keys), n, "scores")
        return StoreScores(keys.tolist(), self._convert_distances(values).astype(np.float32))

    @clear_frames_on_error
    def records(self) -> Records:
        keys = np.sort(self._list_keys())
        rows, done = np.empty((len(keys), self.dimension), dtype=self._float), 0
        for page in self._read_pages(keys):
            rows[done : done + len(page)] = page
            done += len(page)
        return Records(keys.tolist(), rows)

    @property
    def _float(self) -> type[np.floating[Any]]:
        return np.float64 if self._index.dtype.name == "F64" else np.float32

    def _read_pages(self, keys: NDArray[np.uint64]) -> Iterator[NDArray[np.floating[Any]]]:
        for start in range(0, len(keys), _PAGE):
            yield self._read_rows(keys[start : start + _PAGE])

    def _read_rows(self, keys: NDArray[np.uint64]) -> NDArray[np.floating[Any]]:
        rows = np.empty((len(keys), self.dimension), dtype=self._float)
        for place, row in enumerate(self._index.get(keys) if len(keys) else ()):
            if row is None:
                raise self._change_error()
            rows[place] = row
        return rows

    def _list_keys(self) -> NDArray[np.uint64]:
        return np.asarray(self._index.keys, dtype=np.uint64)

    def _convert_distances(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert 1 - <x, q> or |x - q|^2 to the same of x / |x|; cosine distances stay as they are."""
        lengths = self._read_lengths()
        if len(lengths) != len(values):
            raise self._change_error()
        if self._metric == "IP":
            values = 1 - (1 - values) / lengths
        elif self._metric == "L2sq":
            values = 2 - (lengths**2 + 1 - values) / lengths
        return values

    def _read_lengths(self) -> NDArray[np.float64]:
        """Read the lengths by rising key, once per state.

        A zero vector raises an error; usearch gives it the cosine 0.
        """
        state = self.state()
        if self._lengths is None or self._lengths[0] != state:
            pages = (page.astype(np.float64) for page in self._read_pages(np.sort(self._list_keys())))
            with np.errstate(all="ignore"):  # a length that is not finite raises an error below
                lengths = np.concatenate([np.sqrt(np.vecdot(page, page)) for page in pages])
            if not (np.isfinite(lengths).all() and lengths.min() > 0):
                raise self._length_error()
            sound = _SOUND_IN_16_BITS if self._index.dtype.name.endswith("16") else _SOUND
            least, most = sound[self._metric]
            if lengths.min() < least or lengths.max() > most:
                raise StoreError(
                    f"{self.name} holds vectors whose lengths are not all from {least:g} to {most:g}, so that their "
                    f"cosines are lost in its {self._metric.lower()}; nothing was released: make it by cos."
                )
            self._lengths = state, lengths
        return self._lengths[1]


def _import_usearch() -> Any:
    try:
        import usearch.index
    except ImportError:
        raise explain_missing_extra("usearch", "UsearchStore") from None
    return usearch.index


def _describe_metric(index: Any) -> str:
    return "a metric function" if index.jit else index.metric_kind.name.lower()
