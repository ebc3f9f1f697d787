"""Confidence intervals of measured rates and areas that hold for any law and any number of samples.

A count of hits is binomial, so Clopper & Pearson (1934) bound its probability without approximation. An area under a
trade-off curve is a Mann-Whitney statistic. With k the smaller sample, it is an average of averages of k independent
terms in [0, 1], so Chernoff's bound for k terms holds (Hoeffding 1963, section 5). For the true-positive rate at one
false-positive rate, order statistics bracket the threshold, and Clopper & Pearson bracket the hits above it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, betainccinv, betaincinv, rel_entr

Float = NDArray[np.float64]


def bound_below(hits: ArrayLike, total: ArrayLike, error: float) -> Float:
    """Bound a probability from below, wrong with probability `error`: P[binomial(total, bound) >= hits] = error."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(total, dtype=np.float64)
    return np.asarray(np.where(k <= 0, 0.0, betaincinv(np.where(k <= 0, 1.0, k), n - k + 1, error)), dtype=np.float64)


def bound_above(hits: ArrayLike, total: ArrayLike, error: float) -> Float:
    """Bound a probability from above, wrong with probability `error`: P[binomial(total, bound) <= hits] = error."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(total, dtype=np.float64)
    rest = n - k
    return np.asarray(
        np.where(rest <= 0, 1.0, betainccinv(k + 1, np.where(rest <= 0, 1.0, rest), error)), dtype=np.float64
    )


def count_hits(scores: Float, cuts: Float, *, strict: bool = False) -> NDArray[np.intp]:
    """Count the scores at or above each cut; with `strict`, only those above it."""
    return len(scores) - np.searchsorted(np.sort(scores), cuts, "right" if strict else "left")


def bound_area(inside: Float, outside: Float, confidence: float) -> tuple[float, float, float]:
    """Compute the area P[in > out] + P[in = out]/2 and bound it from both sides.

    With k the smaller sample, the interval is all t with k KL(area, t) <= ln(2 / (1 - confidence)).

    Returns:
        (value, low, high).
    """
    area = compute_area(inside, outside)
    room = math.log(2 / (1 - confidence)) / min(len(inside), len(outside))
    return area, _find_chernoff_end(area, 0.0, room), _find_chernoff_end(area, 1.0, room)


def compute_area(inside: Float, outside: Float) -> float:
    """Compute P[in > out] + P[in = out]/2."""
    ordered = np.sort(outside)
    below = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
    return float(below.mean() / (2 * len(outside)))


def _find_chernoff_end(value: float, end: float, room: float) -> float:
    """Find the farthest t between `value` and `end` with KL(value, t) <= room."""
    near, far = value, end
    for _ in range(100):
        middle = (near + far) / 2
        divergence = float(rel_entr(value, middle) + rel_entr(1 - value, 1 - middle))
        near, far = (middle, far) if divergence <= room else (near, middle)
    return far


def bound_true_positives(
    hits_above: NDArray[np.intp], hits_from: NDArray[np.intp], total: int, fpr: float, confidence: float
) -> tuple[float, float]:
    """Bound the true-positive rate at one false-positive rate.

    A fresh negative exceeds the k-th largest of n negatives with a probability of at most a Beta(k, n - k + 1)
    variable, and reaches it with a probability of at least one. So one threshold has a true false-positive rate of at
    most `fpr`, and another of at least `fpr`. A quarter of the error goes to each of these two statements and to each
    of the bounds on the hits.

    Args:
        hits_above: How many positives are above each negative, from the largest negative to the smallest.
        hits_from: How many positives are above each negative or equal to it, in the same order.
        total: How many positives there are.
        fpr: The false-positive rate.
        confidence: That the interval contains the true-positive rate.

    Returns:
        (low, high).
    """
    n, error = len(hits_above), (1 - confidence) / 4
    places = range(1, n + 1)
    safe = bisect_right(places, error, key=lambda k: float(betaincc(k, n - k + 1, fpr)))  # the last such k, or 0
    loose = bisect_left(places, -error, key=lambda k: -float(betainc(k, n - k + 1, fpr))) + 1  # the first, or n + 1
    low = float(bound_below(hits_above[safe - 1], total, error)) if safe else 0.0
    high = float(bound_above(hits_from[loose - 1], total, error)) if loose <= n else 1.0
    return low, high
