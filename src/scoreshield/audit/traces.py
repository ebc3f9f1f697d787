r"""Canaries in a collection, and the trace each of them leaves in a release.

A canary c sits in its slot, or its alternative c' does. If a released entry is expected at a with the one and at b with
the other, the log-likelihood ratio of Gaussian noise on an entry x is :math:`(x - (a + b)/2)(a - b)/\sigma^2`; summed
over the entries that move, without the common factor, that is the score used here. For other noise it is not the
likelihood ratio any more, but still a fair score, since its law is only asked to be higher with the canary in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.releases.index import IndexRelease
from scoreshield.releases.results import GramRelease, RowRelease, ScoreRelease

Float = NDArray[np.float64]
Look = Callable[[Any, Float, NDArray[np.intp]], Float]


@dataclass(frozen=True, eq=False)
class Canaries:
    """What goes where.

    Attributes
    ----------
    rows : the collection, unit rows, (n, d).
    inside, outside : the canaries and their alternatives, unit rows, (m, d).
    slots : their m places in the collection.
    """

    rows: Float
    inside: Float
    outside: Float
    slots: NDArray[np.intp]

    @classmethod
    def planted(
        cls,
        embeddings: ArrayLike,
        canaries: ArrayLike,
        alternatives: ArrayLike | None,
        slots: ArrayLike | None,
    ) -> Canaries:
        """Checked and normalised; the opposite of each canary and the first slots unless given."""
        rows = _unit(embeddings, "embeddings")
        inside = _unit(canaries, "canaries")
        n, m = len(rows), len(inside)
        if inside.shape[1] != rows.shape[1] or not 2 <= m <= n:
            must = f"2 to {n} rows of length {rows.shape[1]}, as the embeddings have"
            _validation.reject("canaries", must, inside)
        outside = -inside if alternatives is None else _unit(alternatives, "alternatives")
        if outside.shape != inside.shape:
            _validation.reject("alternatives", f"of shape {inside.shape}, as the canaries are", outside)
        return cls(rows, inside, outside, _places(slots, m, n))

    def collection(self, heads: NDArray[np.bool_]) -> Float:
        """The collection with a canary in its slot where the coin is heads, and its alternative where it is tails."""
        rows = self.rows.copy()
        rows[self.slots] = np.where(heads[:, None], self.inside, self.outside)
        return rows


def default_guess(output: Any, planted: Canaries, query: ArrayLike | None) -> Look:
    """How to score canaries in this kind of output, or a refusal that asks for a ``guess``."""
    if isinstance(output, IndexRelease):
        return lambda *_: _in_index(output, planted)
    if isinstance(output, GramRelease):
        return lambda *_: _in_gram(output, planted)
    if isinstance(output, RowRelease):
        if output.index in planted.slots:
            raise InvalidInput(f"A canary sits at the row that was released ({output.index}); give it another slot.")
        anchor = planted.rows[output.index][None]
        return lambda *_: _in_scores(output.noisy[None], anchor, output.guarantee.score_range, planted)
    if isinstance(output, ScoreRelease):
        asked = _queries(query, planted)
        noisy = np.atleast_2d(output.noisy)
        return lambda *_: _in_scores(noisy, asked, output.guarantee.score_range, planted)
    if not (isinstance(output, np.ndarray) and output.shape == (len(planted.rows),) and output.dtype.kind in "fiu"):
        must = "given for this kind of output: a callable guess(output, canaries, slots) that scores each canary"
        _validation.reject("guess", must, f"None with an output of type {type(output).__name__}")
    asked = _queries(query, planted)
    return lambda *_: _in_scores(output[None].astype(np.float64), asked, FULL_RANGE, planted)


def _in_scores(noisy: Float, queries: Float, bounds: tuple[float, float], planted: Canaries) -> Float:
    if noisy.shape != (len(queries), len(planted.rows)):
        must = f"the {len(noisy)} that were answered, over {noisy.shape[1]} records"
        _validation.reject("query", must, f"{len(queries)} over {len(planted.rows)}")
    a = np.clip(planted.inside @ queries.T, *bounds)
    b = np.clip(planted.outside @ queries.T, *bounds)
    return _summed(noisy[:, planted.slots].T, a, b)


def _in_gram(output: GramRelease, planted: Canaries) -> Float:
    known = np.setdiff1d(np.arange(len(planted.rows)), planted.slots)
    if not len(known):
        must = "fewer than the records, so that a Gram matrix shows them against known ones"
        _validation.reject("canaries", must, planted.inside)
    low, high = output.guarantee.score_range
    a = np.clip(planted.inside @ planted.rows[known].T, low, high)
    b = np.clip(planted.outside @ planted.rows[known].T, low, high)
    return _summed(output.noisy[np.ix_(planted.slots, known)], a, b)


def _in_index(output: IndexRelease, planted: Canaries) -> Float:
    a, b = planted.inside, planted.outside
    if output.projection is not None:
        a, b = a @ output.projection.T, b @ output.projection.T
    return _summed(output.vectors[planted.slots].astype(np.float64), a, b)


def _summed(seen: Float, a: Float, b: Float) -> Float:
    total: Float = ((seen - (a + b) / 2) * (a - b)).sum(axis=1)
    return total


def _queries(query: ArrayLike | None, planted: Canaries) -> Float:
    if query is None:
        must = "the query that was answered (or give a 'guess'), so that scores can be compared with what is expected"
        _validation.reject("query", must, query)
    return _embeddings.as_queries(query, planted.rows.shape[1])[0]


def _unit(rows: ArrayLike, name: str) -> Float:
    array = _embeddings.as_rows(rows, name)
    if not np.isfinite(array).all():
        _validation.reject(name, "an array of finite numbers", array)
    return _embeddings.normalise_public_rows(array, name)


def _places(slots: ArrayLike | None, m: int, n: int) -> NDArray[np.intp]:
    if slots is None:
        return np.arange(m)
    must = f"{m} different whole numbers from 0 to {n - 1}, one a canary"
    places = _validation.check_array(slots, "slots", must)
    if places.shape != (m,) or places.dtype.kind not in "iu" or places.min() < 0 or places.max() >= n:
        _validation.reject("slots", must, slots)
    if len(np.unique(places)) < m:
        _validation.reject("slots", must, slots)
    return places.astype(np.intp)
