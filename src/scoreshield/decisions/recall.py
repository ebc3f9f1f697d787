"""Recall at rank k after noise: of a population of scores, or of the queries of a benchmark.

`recall_at_k` takes irrelevant scores as draws from one population. `recall_of_queries` takes a benchmark,
which has the scores of all n records for each query; there only the noise is random. The relevant record, at noisy
score t, is found if fewer than k others exceed it. Their number is a sum of independent coins with probabilities
`p_j = P[s_j + W_j > t]`. It is taken as binomial with the same mean `M = Σ p_j` and variance
`M - Σ p_j^2` (Ehm 1991 bounds the difference), which is exact without noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv

from scoreshield import _validation
from scoreshield._validation import check_count, validate
from scoreshield.decisions.curves import panel_quadrature, roc
from scoreshield.decisions.scores import (
    AdditiveLaw,
    Channel,
    Float,
    Law,
    NoiseLike,
    ScoresLike,
    as_law,
    pass_probability,
)
from scoreshield.errors import InvalidRow

_POINTS = (np.arange(96) + 0.5) / 96
_X, _W = np.polynomial.legendre.leggauss(6)
_TIES, _TIE_WEIGHTS = (_X + 1) / 2, _W / 2


@validate(records=check_count, k=check_count)
def recall_at_k(genuine: ScoresLike, impostor: ScoresLike, noise: NoiseLike, *, records: int, k: int) -> float:
    """Compute the probability that one relevant record is among the k best by noisy score, with ties at random.

    The other records score like impostors, independently. The relevant record is found if its score exceeds the k-th
    best of theirs. The false-match rate at that score follows Beta(k, records - k), so the recall is the mean of the
    operating curve under this law.

    Args:
        genuine: Clean scores of relevant records: an array, a sample or a distribution.
        impostor: Clean scores of irrelevant records.
        noise: A standard deviation (Gaussian) or a noise law; 0 is no noise.
        records: The number of records.
        k: The number of records returned.
    """
    curve = roc(genuine, impostor, noise)
    if k >= records:
        return 1.0
    # The integral runs over the quantiles of the law, with panels that shrink towards both ends.
    towards = 4.0 ** -np.arange(12.0, 0, -1) / 1.5
    points, weights = panel_quadrature(np.concatenate([[0.0], towards, [0.5], 1 - towards[::-1], [1.0]]), order=8)
    return float(np.clip(weights @ curve.evaluate(betaincinv(k, records - k, points)), 0.0, 1.0))


@validate(k=check_count)
def recall_of_queries(scores: ArrayLike, relevant: ArrayLike, noise: NoiseLike, *, k: int) -> float:
    """Compute the expected recall at k of a benchmark: the mean over queries of the share of relevant records found.

    Args:
        scores: Clean scores, (queries, records), of public queries and public records.
        relevant: (m, 2) whole numbers: a query and a record that answers it.
        noise: A standard deviation (Gaussian) or a noise law; 0 is no noise.
        k: The number of records returned.
    """
    matrix, pairs = check_benchmark(scores, relevant)
    law = as_law(noise)
    probabilities = np.array([_find_probability(matrix[q].astype(np.float64), int(r), law, k) for q, r in pairs])
    total = np.bincount(pairs[:, 0], weights=probabilities, minlength=len(matrix))
    count = np.bincount(pairs[:, 0], minlength=len(matrix))
    return float(np.mean(total[count > 0] / count[count > 0]))


def check_benchmark(scores: ArrayLike, relevant: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check the scores of a benchmark and its pairs (query, relevant record), and return both as arrays."""
    must = "a matrix of finite numbers, one row per query"
    matrix = _validation.check_array(scores, "scores", must)
    if matrix.ndim != 2 or matrix.shape[1] < 2 or matrix.dtype.kind not in "fiu":
        _validation.reject("scores", must, scores)
    if not (is_finite := np.isfinite(matrix)).all():
        raise InvalidRow("scores", int(np.argmin(is_finite.all(axis=1))))
    must = "pairs (query, record) of whole numbers"
    pairs = _validation.check_array(relevant, "relevant", must)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu" or not len(pairs):
        _validation.reject("relevant", must, relevant)
    if (pairs < 0).any() or (pairs >= matrix.shape).any():
        _validation.reject("relevant", f"places in the matrix of shape {matrix.shape}", relevant)
    return matrix, pairs


def _find_probability(row: Float, record: int, law: Law | None, k: int) -> float:
    """Compute the probability that one relevant record is among the k best of its query."""
    if k >= len(row):
        return 1.0
    own, others = row[record], np.delete(row, record)
    if isinstance(law, Channel):
        return _find_channel_probability(own, others, law, k)
    if law is None:
        above, ties = int((others > own).sum()), int((others == own).sum())
        return float(np.clip((k - above) / (ties + 1), 0.0, 1.0))
    t = own + _find_quantiles(law)
    passing = pass_probability(law, t[:, None], others)
    return float(np.mean(compute_probability_of_fewer(passing.sum(axis=1), (passing**2).sum(axis=1), k)))


def _find_channel_probability(own: float, others: Float, law: Any, k: int) -> float:
    """Average over the released values of the relevant record, with ties at random."""
    levels, counts = np.unique(law.level_of(others), return_counts=True)
    table: NDArray[np.float64] = law.probabilities
    tails = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    above = np.concatenate([tails[:, 1:], np.zeros((len(table), 1))], axis=1)[levels]
    chance = above[:, :, None] + table[levels][:, :, None] * _TIES
    mean = np.einsum("l,lov->ov", counts, chance)
    squares = np.einsum("l,lov->ov", counts, chance**2)
    recalls = compute_probability_of_fewer(mean, squares, k) @ _TIE_WEIGHTS
    return float(table[int(law.level_of(own))] @ recalls)


def compute_probability_of_fewer(mean: Float, squares: Float, k: int) -> Float:
    """Compute P[fewer than k successes] of coins with this sum of probabilities and of their squares."""
    mean, squares = np.maximum(mean, 1e-300), np.maximum(squares, 1e-300)
    p = np.clip(squares / mean, 1e-15, 1 - 1e-12)
    trials = mean / p
    inside = betainc(np.maximum(trials - k + 1, 1e-9), k, 1 - p)
    probability: Float = np.where(trials <= k - 1, 1.0, inside)
    return probability


def _find_quantiles(law: AdditiveLaw) -> Float:
    inverse = getattr(law, "quantile", None)
    if inverse is not None:
        return np.asarray(inverse(_POINTS), dtype=np.float64)
    x = law.std * np.sinh(np.linspace(-8, 8, 20_001)) / 10
    return np.interp(_POINTS, np.asarray(law.cdf(x)), x)
