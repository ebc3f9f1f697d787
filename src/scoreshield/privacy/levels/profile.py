"""The exact privacy profile of a table of integers: the worst pair of inputs at every epsilon.

For each ordered pair of inputs, `Σ_j (p_j - x q_j)_+` is convex and piecewise linear in `x = e^ε`, with
knots at the ratios p_j / q_j. The maximum over pairs is convex and piecewise linear too. Its knots are found by
intersecting tangents. Between two points, the function either follows their two tangents, with one knot where they
cross, or lies above the crossing, which then splits the interval. Each value is computed with exact integers at a point
just below the knot and rounded up, so interpolation between knots never understates delta.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.levels.program import WHOLE
from scoreshield.privacy.profiles import CurveProfile

Float = NDArray[np.float64]
Point = tuple[float, float, float]

_MOST_KNOTS = 1000
_CLOSE = 1e-14


def compute_channel_profile(weights: NDArray[np.uint64], epsilon: float) -> CurveProfile:
    """Compute the upper envelope over all ordered pairs of rows, also with a knot at ``epsilon``."""
    table = weights.astype(np.float64) / WHOLE
    largest = _largest_ratio(table)
    last = math.log(largest) + 2.0**-47 * (1 + math.log(largest))
    losses = sorted({0.0, *(math.log(knot) for knot in _knots(table, largest)), min(epsilon, last), last})
    deltas = [_value(weights, table, loss) for loss in losses]
    falling = np.maximum.accumulate(deltas[::-1])[::-1]
    return CurveProfile(tuple(losses), tuple(float(value) for value in falling))


def compute_total_variation(weights: NDArray[np.uint64]) -> float:
    """Compute the largest total variation between two rows, rounded up."""
    largest = 0
    for row in weights:
        above = np.where(weights < row, row - weights, np.uint64(0))  # how much less each other row has
        largest = max(largest, max(sum(part) for part in above.tolist()))
    return math.nextafter(largest / WHOLE, 2.0)


def _largest_ratio(table: Float) -> float:
    """Compute the largest p / q with q > 0, rounded up. It is above 1, because each row sums to one."""
    largest = 1.0
    for column in table.T:
        positive = column[column > 0]
        if len(positive):
            largest = max(largest, float(positive.max() / positive.min()) * (1 + 2.0**-50))
    return largest


def _tangent(table: Float, x: float) -> Point:
    """Return x, the envelope at x, and the slope of the pair that attains it."""
    excess = table[:, None, :] - x * table[None, :, :]
    values = np.maximum(excess, 0.0).sum(axis=2)
    i, k = np.unravel_index(int(values.argmax()), values.shape)
    return x, float(values[i, k]), -float(table[k][excess[i, k] > 0].sum())


def _knots(table: Float, largest: float) -> list[float]:
    knots: list[float] = []
    todo = [(_tangent(table, 1.0), _tangent(table, largest))]
    while todo and len(knots) + len(todo) < _MOST_KNOTS:
        left, right = todo.pop()
        (x0, f0, s0), (x1, f1, s1) = left, right
        if s1 - s0 <= _CLOSE or f1 - f0 - s0 * (x1 - x0) <= _CLOSE:
            continue
        x = (f0 - s0 * x0 - f1 + s1 * x1) / (s1 - s0)
        if not x0 < x < x1:
            continue
        knots.append(x)
        middle = _tangent(table, x)
        if middle[1] - f0 - s0 * (x - x0) > _CLOSE:
            todo += [(left, middle), (middle, right)]
    return sorted(knots)


def _value(weights: NDArray[np.uint64], table: Float, loss: float) -> float:
    """Compute the envelope just below e^loss exactly, and round it up to a float that is at most one."""
    x = Fraction(math.exp(loss)) * (1 - Fraction(1, 2**50)) if loss else Fraction(1)
    values = np.maximum(table[:, None, :] - float(x) * table[None, :, :], 0.0).sum(axis=2)
    best, above, below = 0, x.numerator, x.denominator
    for i, k in _list_different_pairs(weights, values >= values.max() - 1e-12):
        pairs = zip(weights[i].tolist(), weights[k].tolist(), strict=True)
        best = max(best, sum(max(0, below * p - above * q) for p, q in pairs))
    share = Fraction(best, below * WHOLE)
    value = float(share)
    return min(1.0, value if value >= share else math.nextafter(value, 2.0))


def _list_different_pairs(weights: NDArray[np.uint64], is_tied: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """List the tied pairs of rows, one of each kind: the order of the columns does not change the value of a pair."""
    values, places = np.unique(weights, return_inverse=True)
    places = places.reshape(weights.shape).astype(np.int64)
    seen: set[bytes] = set()
    for i in np.flatnonzero(is_tied.any(axis=1)):
        others = np.flatnonzero(is_tied[i])
        kinds = np.sort(places[i] * len(values) + places[others], axis=1)
        for k, kind in zip(others, kinds, strict=True):
            if (key := kind.tobytes()) not in seen:
                seen.add(key)
                yield int(i), int(k)
