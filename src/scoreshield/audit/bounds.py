r"""Statistics of an audit: from counts of a test's answers to a lower bound on epsilon, at a stated confidence.

A test looks at one output and says "in" or "out". Its true- and false-positive rates p and q are binomial, so
Clopper & Pearson (1934) bound each without approximation. If the mechanism is (epsilon, delta)-private,

.. math:: p \le e^\epsilon q + \delta, \qquad 1 - q \le e^\epsilon (1 - p) + \delta,

and both fail only where the lower bound on p or the upper bound on q does: half of the allowed error goes to each
(Jagielski, Ullman & Oprea 2020; Nasr et al. 2021). Nothing here assumes a law of the outputs, apart from `mu_lower`.
One release with many independent coins instead of many releases: Steinke, Nasr & Jagielski (2023), `one_run_epsilon`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, expit, gammaln, ndtri, rel_entr

from scoreshield import _validation
from scoreshield._validation import check_count, check_delta, check_inside_unit, validate, whole_from
from scoreshield.audit.intervals import as_counts, clopper_pearson, lower, upper
from scoreshield.audit.power import detectable, power, releases_needed

Float = NDArray[np.float64]

__all__ = [
    "auc",
    "clopper_pearson",
    "curve_excess",
    "detectable",
    "epsilon_lower",
    "mu_lower",
    "one_run_epsilon",
    "one_run_p_value",
    "power",
    "releases_needed",
    "tpr_at",
    "tradeoff",
]


@validate(delta=check_delta)
def epsilon_lower(
    in_hits: ArrayLike,
    in_trials: ArrayLike,
    out_hits: ArrayLike,
    out_trials: ArrayLike,
    delta: float,
    confidence: float,
) -> Any:
    """A lower bound on the epsilon at ``delta`` of any mechanism that gives these counts.

    Parameters
    ----------
    in_hits, in_trials : how often the test said "in" on outputs of the first collection, and of how many.
    out_hits, out_trials : the same on outputs of the second.

    Returns
    -------
    A number, at least 0 and finite, or an array of them. It exceeds the true epsilon with probability at most
    1 - confidence if the test was fixed before these outputs were drawn. Of several tests, each takes its share.
    """
    low, high, miss = _rates(in_hits, in_trials, out_hits, out_trials, confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        positives = np.log(np.maximum(low - delta, 0.0) / high)
        negatives = np.log(np.maximum(1 - high - delta, 0.0) / miss)
    bound = np.maximum(np.maximum(positives, negatives), 0.0)
    return float(bound) if bound.ndim == 0 else bound


@validate()
def curve_excess(
    in_hits: ArrayLike,
    in_trials: ArrayLike,
    out_hits: ArrayLike,
    out_trials: ArrayLike,
    ceiling: Callable[[Float], ArrayLike],
    confidence: float,
) -> Any:
    """How far the test is above a claimed trade-off curve, such as ``claim.tpr_at``; above 0 the claim is broken.

    With the same two bounds as `epsilon_lower`, and for an (epsilon, delta) claim it is positive exactly where that
    bound exceeds epsilon. For a claimed profile it finds far smaller violations: a claimed pair binds in one point of
    the curve, which for Gaussian noise lies where outputs are rare, and the profile binds everywhere.
    """
    low, high, _ = _rates(in_hits, in_trials, out_hits, out_trials, confidence)
    excess = np.asarray(low - np.asarray(ceiling(high), dtype=np.float64))
    return float(excess) if excess.ndim == 0 else excess


@validate()
def mu_lower(
    in_hits: ArrayLike, in_trials: ArrayLike, out_hits: ArrayLike, out_trials: ArrayLike, confidence: float
) -> Any:
    """A lower bound on mu if the mechanism is mu-Gaussian differentially private for some mu (Nasr et al. 2023).

    That is an assumption on the mechanism. `GaussianProfile(mu).epsilon_at(delta)` turns the bound into an epsilon.
    """
    low, high, _ = _rates(in_hits, in_trials, out_hits, out_trials, confidence)
    bound = np.where((low > 0) & (high < 1), ndtri(np.maximum(low, 1e-300)) - ndtri(np.minimum(high, 1 - 2**-53)), 0.0)
    bound = np.maximum(bound, 0.0)
    return float(bound) if bound.ndim == 0 else bound


@validate()
def tradeoff(in_scores: ArrayLike, out_scores: ArrayLike, *, points: int | None = None) -> tuple[Float, Float]:
    """The empirical trade-off curve of a score: false- and true-positive rates at every cut, from (0, 0) to (1, 1).

    ``points`` thins it to at most so many, closest together at both ends, where the low error rates are.
    """
    inside, outside = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    fpr = np.concatenate([[0.0], _above(outside, cuts)])
    tpr = np.concatenate([[0.0], _above(inside, cuts)])
    if points is None or len(fpr) <= _validation.check_count(points, "points", least=2):
        return fpr, tpr
    last, third = len(fpr) - 1, points // 3
    near = np.geomspace(1, last, third) if third else np.empty(0)
    even = np.linspace(0, last, points - 2 * third)
    chosen = np.unique(np.rint(np.concatenate([even, near, last - near])).astype(np.intp))
    return fpr[chosen], tpr[chosen]


@validate(confidence=check_inside_unit)
def auc(in_scores: ArrayLike, out_scores: ArrayLike, confidence: float) -> tuple[float, float, float]:
    r"""The area under the trade-off curve, P[in > out] + P[in = out]/2, with a distribution-free interval.

    With k the smaller sample, the estimate is an average of averages of k independent terms in [0, 1], so Chernoff's
    bound for k terms holds (Hoeffding 1963, section 5): the interval is all t with k KL(estimate, t) <= ln(2/error).
    """
    inside, outside = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    ordered = np.sort(outside)
    below = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
    value = float(below.mean() / (2 * len(outside)))
    room = math.log(2 / (1 - confidence)) / min(len(inside), len(outside))
    return value, _chernoff(value, 0.0, room), _chernoff(value, 1.0, room)


@validate()
def tpr_at(in_scores: ArrayLike, out_scores: ArrayLike, fpr: float, confidence: float) -> tuple[float, float, float]:
    """The true-positive rate of the score at one false-positive rate, with a distribution-free interval.

    The interval is for the score's true curve. Order statistics of the outside scores give one threshold whose true
    false-positive rate is at most ``fpr`` and one where it is at least that; Clopper-Pearson bounds the true positives
    at each. A quarter of the error goes to each of the four statements.
    """
    inside, outside = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    rate = _validation.check_probability(fpr, "fpr", zero=False)
    error = (1 - _validation.check_probability(confidence, "confidence", zero=False)) / 4
    n, m, falling = len(outside), len(inside), np.sort(outside)[::-1]
    # P[X > k-th largest] is at most a Beta(k, n - k + 1) variable, and P[X >= k-th largest] at least one.
    places = range(1, n + 1)
    safe = bisect_right(places, error, key=lambda k: float(betaincc(k, n - k + 1, rate)))  # the last such k, or 0
    loose = bisect_left(places, -error, key=lambda k: -float(betainc(k, n - k + 1, rate))) + 1  # the first, or n + 1
    low = float(lower((inside > falling[safe - 1]).sum(), m, error)) if safe else 0.0
    high = float(upper((inside >= falling[loose - 1]).sum(), m, error)) if loose <= n else 1.0
    value = _interpolated(*tradeoff(inside, outside), rate)
    return value, min(low, value), max(high, value)


@validate(guesses=whole_from(0), correct=whole_from(0), delta=check_delta, canaries=check_count)
def one_run_epsilon(guesses: int, correct: int, delta: float, confidence: float, canaries: int) -> float:
    """A lower bound on epsilon from one release: so many guesses of fair coins, so many of them correct.

    Parameters
    ----------
    guesses : how many of the coins were guessed; for delta > 0 a number fixed beforehand.
    canaries : how many coins there were; abstaining is free, but each costs its delta.
    """
    if not correct <= guesses <= canaries:
        got = f"{correct} correct of {guesses} guesses on {canaries} canaries"
        _validation.reject("correct", "at most the guesses, and these at most the canaries", got)
    error = 1 - _validation.check_probability(confidence, "confidence", zero=False)
    if one_run_p_value(guesses, correct, 0.0, delta, canaries) >= error:
        return 0.0
    low, high = 0.0, 1.0
    while one_run_p_value(guesses, correct, high, delta, canaries) < error:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if one_run_p_value(guesses, correct, middle, delta, canaries) < error:
            low = middle
        else:
            high = middle
    return low


def one_run_p_value(guesses: int, correct: int, epsilon: float, delta: float, canaries: int) -> float:
    r"""The most probable that an (epsilon, delta)-private release lets so many guesses be right.

    With W binomial(guesses, e^epsilon / (1 + e^epsilon)), v = ``correct`` and m canaries (Steinke et al. 2023,
    their bound for approximate privacy):

    .. math:: P[W \ge v] + 2 m \delta \max_{1 \le i \le v} P[v - i \le W < v] / i.
    """
    if correct == 0:
        return 1.0
    right = float(expit(epsilon))
    tail = float(betainc(correct, guesses - correct + 1, right))
    if delta == 0:
        return tail
    below = np.cumsum(_pmf(np.arange(correct - 1, -1, -1), guesses, right))
    worst = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * canaries * delta * worst)


def _pmf(k: NDArray[Any], n: int, p: float) -> Float:
    """Binomial probabilities; ``p`` is strictly between 0 and 1, or 1 in rounding."""
    if p == 1:
        return np.where(k == n, 1.0, 0.0)
    logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    return np.asarray(np.exp(logs), dtype=np.float64)


def _rates(
    in_hits: ArrayLike,
    in_trials: ArrayLike,
    out_hits: ArrayLike,
    out_trials: ArrayLike,
    confidence: float,
) -> tuple[Float, Float, Float]:
    """A lower bound on true positives, upper bounds on false positives and on misses; all hold together."""
    inside = as_counts(in_hits, in_trials, "in_hits", "in_trials")
    outside = as_counts(out_hits, out_trials, "out_hits", "out_trials")
    error = (1 - _validation.check_probability(confidence, "confidence", zero=False)) / 2
    hits, total = inside
    try:
        np.broadcast(hits, total, *outside)
    except ValueError:
        _validation.reject("in_hits", "of a shape that fits 'out_hits'", in_hits)
    # Misses are bounded by themselves, since 1 - low would lose digits; it is the same event.
    return lower(hits, total, error), upper(*outside, error), upper(total - hits, total, error)


def _scores(scores: ArrayLike, name: str) -> Float:
    must = "a non-empty one-dimensional array of finite numbers"
    array = _validation.check_array(scores, name, must)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        _validation.reject(name, must, scores)
    return array.astype(np.float64)


def _above(scores: Float, falling: Float) -> Float:
    """The share of scores at or above each cut."""
    ordered = np.sort(scores)
    return (len(scores) - np.searchsorted(ordered, falling, "left")) / len(scores)


def _interpolated(fpr: Float, tpr: Float, rate: float) -> float:
    """The curve at one rate: straight between points, as a test that tosses a coin there."""
    here = int(np.searchsorted(fpr, rate, "right")) - 1
    if here == len(fpr) - 1 or fpr[here] == rate:
        return float(tpr[here])
    share = (rate - fpr[here]) / (fpr[here + 1] - fpr[here])
    return float(tpr[here] + share * (tpr[here + 1] - tpr[here]))


def _chernoff(value: float, end: float, room: float) -> float:
    """The farthest t between ``value`` and ``end`` with KL(value, t) <= room."""
    near, far = value, end
    for _ in range(100):
        middle = (near + far) / 2
        divergence = float(rel_entr(value, middle) + rel_entr(1 - value, 1 - middle))
        near, far = (middle, far) if divergence <= room else (near, middle)
    return far
