r"""Recall of a set of queries as they are: every record keeps its own score, and only the noise is random.

`roc.recall_at_k` takes irrelevant scores as draws from one population. A benchmark has more: for each query the scores
of all n records. The relevant record, at noisy score t, is found if fewer than k others exceed it. Their number is a
sum of independent coins with probabilities :math:`p_j = P[s_j + W_j > t]`; it is taken as binomial with the same mean
:math:`M = \sum p_j` and variance :math:`M - \sum p_j^2` (Ehm 1991 bounds the difference), which is exact without noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.decisions.scores import AdditiveLaw, Channel, Float, Law, as_law, pass_probability

_POINTS = (np.arange(96) + 0.5) / 96
_X, _W = np.polynomial.legendre.leggauss(6)
_TIES, _TIE_WEIGHTS = (_X + 1) / 2, _W / 2


@validate()
def recall_of_queries(scores: ArrayLike, relevant: ArrayLike, noise: object, *, k: int) -> float:
    """The expected recall at k of a benchmark: the mean over queries of the share of relevant records found.

    Parameters
    ----------
    scores : clean scores, (queries, records), of public queries and public records.
    relevant : (m, 2) whole numbers: a query and a record that answers it.
    noise : a standard deviation (Gaussian) or a noise law; 0 is no noise.
    """
    must = "a matrix of finite numbers, one row a query"
    matrix = _validation.check_array(scores, "scores", must)
    if matrix.ndim != 2 or matrix.shape[1] < 2 or matrix.dtype.kind not in "fiu" or not np.isfinite(matrix).all():
        _validation.reject("scores", must, scores)
    pairs = _validation.check_array(relevant, "relevant", "pairs (query, record) of whole numbers")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu" or not len(pairs):
        _validation.reject("relevant", "pairs (query, record) of whole numbers", relevant)
    if (pairs < 0).any() or (pairs >= matrix.shape).any():
        _validation.reject("relevant", f"places in the matrix of shape {matrix.shape}", relevant)
    k, law = _validation.check_count(k, "k"), as_law(noise)
    found = np.array([_found(matrix[q].astype(np.float64), int(r), law, k) for q, r in pairs])
    of_query = np.bincount(pairs[:, 0], weights=found, minlength=len(matrix))
    count = np.bincount(pairs[:, 0], minlength=len(matrix))
    return float(np.mean(of_query[count > 0] / count[count > 0]))


def _found(row: Float, record: int, law: Law | None, k: int) -> float:
    """The chance that one relevant record is among the k best of its query."""
    if k >= len(row):
        return 1.0
    own, others = row[record], np.delete(row, record)
    if isinstance(law, Channel):
        return _by_channel(own, others, law, k)
    if law is None:
        above, ties = int((others > own).sum()), int((others == own).sum())
        return float(np.clip((k - above) / (ties + 1), 0.0, 1.0))
    t = own + _quantiles(law)
    passing = pass_probability(law, t[:, None], others)
    return float(np.mean(_fewer(passing.sum(axis=1), (passing**2).sum(axis=1), k)))


def _by_channel(own: float, others: Float, law: Any, k: int) -> float:
    """Over the released values of the relevant record, with ties at random."""
    levels, counts = np.unique(law.level_of(others), return_counts=True)
    table: NDArray[np.float64] = law.probabilities
    tails = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    above = np.concatenate([tails[:, 1:], np.zeros((len(table), 1))], axis=1)[levels]
    chance = above[:, :, None] + table[levels][:, :, None] * _TIES
    mean = np.einsum("l,lov->ov", counts, chance)
    squares = np.einsum("l,lov->ov", counts, chance**2)
    kept = _fewer(mean, squares, k) @ _TIE_WEIGHTS
    return float(table[int(law.level_of(own))] @ kept)


def _fewer(mean: Float, squares: Float, k: int) -> Float:
    """P[fewer than k successes] of coins with this sum of probabilities and of their squares."""
    mean, squares = np.maximum(mean, 1e-300), np.maximum(squares, 1e-300)
    p = np.clip(squares / mean, 1e-15, 1 - 1e-12)
    trials = mean / p
    inside = betainc(np.maximum(trials - k + 1, 1e-9), k, 1 - p)
    kept: Float = np.where(trials <= k - 1, 1.0, inside)
    return kept


def _quantiles(law: AdditiveLaw) -> Float:
    inverse = getattr(law, "quantile", None)
    if inverse is not None:
        return np.asarray(inverse(_POINTS), dtype=np.float64)
    x = law.std * np.sinh(np.linspace(-8, 8, 20_001)) / 10
    return np.interp(_POINTS, np.asarray(law.cdf(x)), x)
