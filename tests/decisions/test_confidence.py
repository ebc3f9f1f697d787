"""Intervals of measured rates and areas, against SciPy's laws and by enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from scoreshield.decisions.confidence import (
    bound_above,
    bound_area,
    bound_below,
    bound_true_positives,
    compute_area,
    count_hits,
)


@pytest.mark.parametrize("error", [0.2, 0.01, 1e-9])
def test_binomial_tails(error: float) -> None:
    """At its bound, a count has exactly the tail that the error allows."""
    n, k = 50, np.arange(51)
    low, high = bound_below(k, n, error), bound_above(k, n, error)
    np.testing.assert_allclose(binom.sf(k[1:] - 1, n, low[1:]), error, rtol=1e-6)
    np.testing.assert_allclose(binom.cdf(k[:-1], n, high[:-1]), error, rtol=1e-6)
    assert (low[0], high[-1]) == (0.0, 1.0)


def test_area_by_pairs(rng: np.random.Generator) -> None:
    inside, outside = rng.integers(0, 9, 80).astype(float), rng.integers(2, 7, 50).astype(float)
    pairs = np.subtract.outer(inside, outside)
    assert compute_area(inside, outside) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean(), rel=1e-14)


@pytest.mark.parametrize(("inside", "outside"), [(30, 40), (40, 30)])
def test_area_interval(inside: int, outside: int, rng: np.random.Generator) -> None:
    """The interval solves Chernoff's equation for the smaller sample."""
    value, *ends = bound_area(rng.normal(1, 1, inside), rng.normal(0, 1, outside), 0.9)
    for end in ends:
        divergence = value * math.log(value / end) + (1 - value) * math.log((1 - value) / (1 - end))
        assert 30 * divergence == pytest.approx(math.log(2 / 0.1), rel=1e-9)
    assert ends[0] < value < ends[1]


def test_area_at_its_ends() -> None:
    """An area of 0 or 1 is the end of its own interval."""
    ones, zeros = np.ones(30), np.zeros(40)
    assert bound_area(ones, zeros, 0.95) == (1.0, pytest.approx(0.025 ** (1 / 30)), 1.0)
    assert bound_area(zeros, ones, 0.95) == (0.0, 0.0, pytest.approx(1 - 0.025 ** (1 / 30)))


@pytest.mark.parametrize("fpr", [0.01, 0.05, 0.5])
def test_true_positives(fpr: float) -> None:
    """The thresholds are those that the binomial law says, and Clopper and Pearson bound the hits there."""
    n, m, error = 2000, 1500, 0.05 / 4
    above = np.arange(n) * 3 // 5
    at_or_above = above + 1
    safe = max(k for k in range(1, n) if binom.cdf(k - 1, n, fpr) <= error)
    loose = min(k for k in range(1, n) if binom.sf(k - 1, n, fpr) <= error)
    low, high = bound_true_positives(above, at_or_above, m, fpr, 0.95)
    hits, more = above[safe - 1], at_or_above[loose - 1]
    assert low == pytest.approx(beta.ppf(error, hits, m - hits + 1), rel=1e-9)
    assert high == pytest.approx(beta.isf(error, more + 1, m - more), rel=1e-9)


def test_too_few_negatives() -> None:
    """Where no order statistic is surely on one side of the threshold, that end is trivial."""
    assert bound_true_positives(np.full(10, 5), np.full(10, 5), 5, 0.01, 0.95) == (0.0, 1.0)
    assert bound_true_positives(np.full(1000, 0), np.full(1000, 5), 5, 0.01, 0.95) == (0.0, 1.0)


def test_hits_at_cuts(rng: np.random.Generator) -> None:
    scores, cuts = rng.integers(0, 6, 40).astype(float), np.arange(-1.0, 7.0)
    assert list(count_hits(scores, cuts)) == [(scores >= cut).sum() for cut in cuts]
    assert list(count_hits(scores, cuts, strict=True)) == [(scores > cut).sum() for cut in cuts]
