"""Sums of noise tails over a sorted sample, at the cost of a search per threshold instead of a pass over all scores.

For a threshold t the sum is Σ_i w_i P[W > t - s_i]. Three laws split it into parts that prefix sums give:

- The tail of Laplace noise is an exponential on each side of t: sums of e^(s/b) below t and of e^(-s/b) above it.
- The tail of staircase noise is linear between the knots of its density: counts and sums of the scores between knots.
  Around t, where it may be almost a step, the few scores are summed one by one.
- A level table depends on the level of a score alone: counts of the scores on each level (`Sample.nodes`).

All three are exact up to rounding: below n 2^-53 of the sum for the exponentials, and below 1e-12 for the knots.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise

Float = NDArray[np.float64]

#: The largest ratio of the scores' width to the Laplace scale whose exponentials are doubles.
_LARGEST_EXPONENT = 600.0
#: The most steps of a staircase that the scores may spread over.
_MOST_STEPS = 256
#: Scores this close to a threshold are summed one by one where the inner part of a staircase is narrower.
_SMALL_CORE = 1e-3
_BLOCK = 1 << 20


class TailSums(Protocol):
    """What sums the tails of one noise law over one sample."""

    def evaluate(self, thresholds: Float) -> Float:
        """Compute the weighted sum of P[W > t - s] at each threshold."""


class ExponentialSums:
    """Sums of the tails of Laplace noise."""

    def __init__(self, points: Float, weights: Float, b: float) -> None:
        self._points, self._b = points, b
        self._low, self._high = float(points[0]), float(points[-1])
        self._below = np.append(0.0, np.cumsum(weights * np.exp((points - self._high) / b)))
        self._beyond = np.append(np.cumsum((weights * np.exp((self._low - points) / b))[::-1])[::-1], 0.0)
        self._above = np.append(np.cumsum(weights[::-1])[::-1], 0.0)

    def evaluate(self, thresholds: Float) -> Float:
        place = np.searchsorted(self._points, thresholds)
        # Outside the scores one of the two sums is zero, and its factor must not overflow.
        falling = np.exp(np.minimum((self._high - thresholds) / self._b, _LARGEST_EXPONENT + 1))
        rising = np.exp(np.minimum((thresholds - self._low) / self._b, _LARGEST_EXPONENT + 1))
        sums: Float = self._above[place] + (self._below[place] * falling - self._beyond[place] * rising) / 2
        return sums


class LinearSums:
    """Sums of the tails of staircase noise."""

    def __init__(self, points: Float, weights: Float, law: StaircaseNoise) -> None:
        self._points, self._weights, self._law = points, weights, law
        self._counts = np.append(0.0, np.cumsum(weights))
        self._middle = float(points.mean())  # smaller numbers round less
        self._moments = np.append(0.0, np.cumsum(weights * (points - self._middle)))
        self._steps = math.ceil((points[-1] - points[0]) / law.sensitivity) + 2

    def evaluate(self, thresholds: Float) -> Float:
        size = max(1, _BLOCK // (2 * self._steps + 1))
        parts = [self._evaluate(thresholds[start : start + size]) for start in range(0, len(thresholds), size)]
        return np.concatenate([np.empty(0), *parts])

    def _evaluate(self, thresholds: Float) -> Float:
        width, gamma = self._law.sensitivity, self._law.gamma
        first = np.floor((thresholds - self._points[-1]) / width)[:, None]
        cells = first + np.arange(self._steps)
        # Below zero the inner part is at the upper end of a cell. Written as 1 - gamma, a tiny gamma would be lost.
        inner = np.where(cells >= 0, cells + gamma, -(-cells - 1 + gamma))
        knots = np.stack([cells, inner], axis=-1).reshape(len(thresholds), -1)
        knots = width * np.concatenate([knots, first + self._steps], axis=1)
        place = np.searchsorted(self._points, thresholds[:, None] - knots)
        place[:, 0], place[:, -1] = len(self._points), 0
        core = width * gamma if width * gamma < _SMALL_CORE else 0.0
        low = np.searchsorted(self._points, thresholds - core, side="left")
        high = np.searchsorted(self._points, thresholds + core, side="right")
        if core:
            place = np.where(knots == core, low[:, None], np.where(knots == -core, high[:, None], place))
        is_outside = (knots[:, :-1] < -core) | (knots[:, 1:] > core)
        counts = np.where(is_outside, -np.diff(self._counts[place], axis=1), 0.0)
        moments = np.where(is_outside, -np.diff(self._moments[place], axis=1), 0.0)
        tails = np.asarray(self._law.sf(knots))
        run = np.diff(knots, axis=1)
        slopes = np.divide(np.diff(tails, axis=1), run, out=np.zeros_like(run), where=run > 0)
        gaps = (thresholds[:, None] - self._middle - knots[:, :-1]) * counts - moments
        sums: Float = (tails[:, :-1] * counts + slopes * gaps).sum(axis=1)
        return sums + self._sum_core(thresholds, low, high) if core else sums

    def _sum_core(self, thresholds: Float, low: NDArray[np.intp], high: NDArray[np.intp]) -> Float:
        """Sum the tails of the scores in the inner part around each threshold, where the tail may be very steep."""
        sums = np.zeros(len(thresholds))
        sizes = high - low
        for part in np.array_split(np.arange(len(thresholds)), max(1, int(sizes.sum()) // _BLOCK)):
            owner = np.repeat(part, sizes[part])
            place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes[part]) - sizes[part], sizes[part]) + low[owner]
            tails = np.asarray(self._law.sf(thresholds[owner] - self._points[place]))
            sums += np.bincount(owner, tails * self._weights[place], len(thresholds))
        return sums


def make_tail_sums(points: Float, weights: Float, law: object) -> TailSums | None:
    """Make the sums of a law over sorted points; None where the law, or the width of the points, has no short form."""
    width = float(points[-1] - points[0])
    if isinstance(law, LaplaceNoise) and width <= _LARGEST_EXPONENT * law.b:
        return ExponentialSums(points, weights, law.b)
    if isinstance(law, StaircaseNoise) and width <= _MOST_STEPS * law.sensitivity:
        return LinearSums(points, weights, law)
    return None
