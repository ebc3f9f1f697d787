"""Choose public cut points between bins so that randomised response on the bins has a large recall.

One of n records is relevant. Each record's bin goes through k-ary randomised response (`E = e^ε`, B bins). The K
records with the highest released bins are returned, and ties are broken at random. Let t_b be the probability that the
released bin of an irrelevant record is b, T_b the probability that it is above b, and p_b the probability that the
released bin of the relevant record is b. Then

    recall@K = Σ_b p_b (G(T_b + t_b) - G(T_b))/t_b,
    G(u) = (1/n) E min(K, Bin(n, u)),

because Bin(n - 1, u) irrelevant records lie above a record at their upper quantile u, ties spread u evenly over
(T_b, T_b + t_b), and G' (u) = P[Bin(n - 1, u) < K]. The module reads public score distributions, never private scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc

from scoreshield import _validation
from scoreshield._validation import check_epsilon, validate, whole_from

Float = NDArray[np.float64]

_GRID = 512
_ROUNDS = 50


@dataclass(frozen=True)
class RetrievalCuts:
    """Public cut points, and their predicted recall.

    Attributes:
        cuts: Increasing numbers, for `randomised_response`. A score above ``cuts[b]`` lies in a bin above b.
        recall: The probability that the relevant record is among the k best.
    """

    cuts: tuple[float, ...]
    recall: float


@validate(epsilon=check_epsilon, bins=whole_from(2))
def retrieval_cuts(
    epsilon: float,
    records: int,
    k: int,
    irrelevant: object,
    relevant: object,
    bins: int,
    *,
    score_range: tuple[float, float] = (-1.0, 1.0),
) -> RetrievalCuts:
    """Choose cut points with a large predicted recall at k, on a grid of 511 places.

    Each step adds the cut that raises recall most. Then cuts are moved one at a time, until no move raises recall.

    Args:
        epsilon: The epsilon of the randomised response.
        records: The number of records.
        k: The number of records that are returned.
        irrelevant: *Public* scores of irrelevant records: an array, a ``Sample`` or a ``Distribution``.
        relevant: *Public* scores of relevant records, in the same forms.
        bins: The number of bins, 2 to 64. There is one cut fewer.
        score_range: The public range of scores.

    Returns:
        The cuts and their predicted recall.
    """
    records, k = _check_sizes(records, k)
    if bins > 64:
        _validation.reject("bins", "at most 64", bins)
    low, high = check_range(score_range)
    places = np.linspace(low, high, _GRID + 1)[1:-1]
    far, near = tail(irrelevant, places, "irrelevant"), tail(relevant, places, "relevant")
    cuts: NDArray[np.intp] = np.empty(0, dtype=np.intp)
    for _ in range(bins - 1):
        best, cuts = _climb(_insert(cuts, epsilon, records, k, far, near), epsilon, records, k, far, near)
    return RetrievalCuts(tuple(float(places[i]) for i in cuts), best)


@validate(epsilon=check_epsilon)
def predict_recall(
    epsilon: float, records: int, k: int, irrelevant: object, relevant: object, cuts: ArrayLike
) -> float:
    """Compute recall at k of randomised response on these bins, by the formula of this module."""
    records, k = _check_sizes(records, k)
    edges = check_increasing(cuts, "cuts")
    far, near = tail(irrelevant, edges, "irrelevant"), tail(relevant, edges, "relevant")
    return float(_compute_recall(epsilon, records, k, far[None], near[None])[0])


def _insert(cuts: NDArray[np.intp], epsilon: float, records: int, k: int, far: Float, near: Float) -> NDArray[np.intp]:
    """Add the cut that raises recall most."""
    free = np.setdiff1d(np.arange(len(far)), cuts)
    trial = np.sort(np.column_stack([np.tile(cuts, (len(free), 1)), free]), axis=1)
    place = int(_compute_recall(epsilon, records, k, far[trial], near[trial]).argmax())
    return np.asarray(trial[place])


def _climb(
    cuts: NDArray[np.intp], epsilon: float, records: int, k: int, far: Float, near: Float
) -> tuple[float, NDArray[np.intp]]:
    """Move one cut at a time to its best place between its neighbours, until none moves."""
    best = float(_compute_recall(epsilon, records, k, far[cuts][None], near[cuts][None])[0])
    for _ in range(_ROUNDS):
        before = best
        for place in range(len(cuts)):
            low = cuts[place - 1] + 1 if place else 0
            high = cuts[place + 1] if place + 1 < len(cuts) else len(far)
            trial = np.tile(cuts, (high - low, 1))
            trial[:, place] = np.arange(low, high)
            values = _compute_recall(epsilon, records, k, far[trial], near[trial])
            if values.max() > best:
                best, cuts = float(values.max()), trial[int(values.argmax())]
        if best <= before + 1e-9:
            break
    return best, cuts


def _compute_recall(epsilon: float, records: int, k: int, far: Float, near: Float) -> Float:
    """Apply the formula to rows of tails P[score > cut] of irrelevant and relevant scores."""
    above, relevant = _compute_released_tails(epsilon, far), -np.diff(_compute_released_tails(epsilon, near), axis=1)
    share = -np.diff(above, axis=1)
    capped = records * above * bdtr(k - 1, max(records - 1, 1), above) + k * bdtrc(k, records, above)
    gain = -np.diff(capped, axis=1) / records
    inside = np.divide(gain, share, out=np.ones_like(share), where=share > 0)
    return np.clip((relevant * inside).sum(axis=1), 0.0, 1.0) if k < records else np.ones(len(far))


def _compute_released_tails(epsilon: float, tails: Float) -> Float:
    """Compute P[released bin >= b] for b = 0, ..., B, from P[score > cut]."""
    count, number = tails.shape
    shrink = math.exp(-epsilon)
    flat = np.arange(number, 0, -1) * shrink
    inner = ((1 - shrink) * tails + flat) / (1 + number * shrink)
    return np.concatenate([np.ones((count, 1)), inner, np.zeros((count, 1))], axis=1)


def _check_sizes(records: Any, k: Any) -> tuple[int, int]:
    return _validation.check_count(records, "records"), _validation.check_count(k, "k")


def check_range(score_range: Any) -> tuple[float, float]:
    """Check a public range of cosines that is wide enough for levels."""
    must = "a pair (low, high) with -1 <= low, high <= 1 and high - low >= 0.001"
    if not isinstance(score_range, tuple | list) or len(score_range) != 2:
        _validation.reject("score_range", must, score_range)
    low, high = (_validation.check_real(end, "score_range", must) for end in score_range)
    if not (-1 <= low < high <= 1 and high - low >= 0.001):
        _validation.reject("score_range", must, (low, high))
    return low, high


def check_increasing(values: Any, name: str) -> Float:
    """Check a one-dimensional array of finite, increasing numbers."""
    must = "a one-dimensional array of finite numbers, each larger than the one before"
    numbers = _validation.check_array(values, name, must)
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "fiu":
        _validation.reject(name, must, values)
    numbers = numbers.astype(np.float64)
    if not np.isfinite(numbers).all() or (np.diff(numbers) <= 0).any():
        _validation.reject(name, must, values)
    return numbers


def tail(scores: Any, thresholds: Float, name: str) -> Float:
    """Compute P[S > t] of public scores, given as an array, a ``Sample`` or a ``Distribution``."""
    if callable(getattr(scores, "clean_rate", None)):
        return np.asarray(scores.clean_rate(thresholds, False), dtype=np.float64)
    must = "public scores: a one-dimensional array of finite numbers, a Sample or a Distribution"
    values = _validation.check_array(scores, name, must)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        _validation.reject(name, must, scores)
    return 1 - np.searchsorted(np.sort(values), thresholds, side="right") / len(values)
