"""Scores for people: the expected clean score, given a released one and public knowledge about scores.

The best of many noisy scores are mostly those with the most noise. Their released values lie far above their clean
ones, and often above 1. The expected clean score under a public distribution of scores corrects this. It is
post-processing of the release: it costs nothing and changes no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from scoreshield.decisions.scores import AdditiveLaw, pass_probability

Float = NDArray[np.float64]

#: The places of the public distribution of scores.
_PLACES = 401
#: The released values for which an estimate is computed; between them it is interpolated.
_VALUES = 1025
#: The released values lie within this many standard deviations of the range.
_REACH = 12.0


@dataclass(frozen=True, eq=False)
class ScoreEstimate:
    """The expected clean score, given a released one, under a public distribution of scores.

    One record of the collection may have any score in the range, whatever the public distribution says. With noise of a
    standard deviation below 1 / 400 of the range, a score is shown as it was released, or as the end of the range.

    Attributes:
        law: The noise on a score.
        score_range: The public range of the clean scores.
        records: The number of records.
        values: Public scores of records with queries; None for a uniform distribution.
        weights: The weight of each of them.
    """

    law: AdditiveLaw
    score_range: tuple[float, float]
    records: int
    values: Float | None = None
    weights: Float | None = None

    def estimate(self, noisy: Float) -> Float:
        """Estimate the clean scores of released ones. A larger released score never has a smaller estimate."""
        low, high = self.score_range
        if self.law.std * (_PLACES - 1) < high - low:  # the places lie farther apart than the noise reaches
            return np.clip(np.asarray(noisy, dtype=np.float64), low, high)
        released, means = self._table
        return np.interp(noisy, released, means)

    @cached_property
    @np.errstate(all="ignore")
    def _table(self) -> tuple[Float, Float]:
        (low, high), std = self.score_range, self.law.std
        places = np.linspace(low, high, _PLACES)
        prior = self._compute_prior(places)
        reach = _REACH * std
        # Close together inside the range, farther apart outside.
        released = np.linspace(low - std, high + std, _VALUES)
        beyond = std * np.geomspace(1.01, _REACH, _VALUES // 8)
        released = np.concatenate([low - beyond[::-1], released, high + beyond])
        half = max((places[1] - places[0]) / 2, reach * 1e-6)
        gaps = released[:, None] - places
        chance = pass_probability(self.law, gaps - half, 0.0) - pass_probability(self.law, gaps + half, 0.0)
        chance = np.maximum(chance, 0.0) * prior + prior * 1e-300
        evidence = chance.sum(axis=1)
        means = chance @ places / evidence
        # Normal noise has increasing means. Those of other laws may fall where the law is flat: there the nearest
        # increasing function is taken, weighted by how likely a released value is.
        weights = np.maximum(evidence * np.gradient(released), 1e-12)
        return released, np.asarray(isotonic_regression(means, weights=weights).x)

    def _compute_prior(self, places: Float) -> Float:
        even = np.full(len(places), 1 / len(places))
        if self.values is None:
            return even
        found = np.clip(self.values, places[0], places[-1])
        nearest = np.rint((found - places[0]) / (places[1] - places[0])).astype(np.intp)
        counted = np.bincount(nearest, weights=self.weights, minlength=len(places))
        one = 1 / max(self.records, 1)
        prior: Float = (1 - one) * counted / counted.sum() + one * even
        return prior
