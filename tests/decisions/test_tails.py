"""Short forms of sums of tails: the same as sums over all scores, for every law that has one."""

from __future__ import annotations

import math

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.decisions import tails
from scoreshield.decisions.scores import Sample, pass_probability

RNG = np.random.default_rng(6)
#: Scores of two digits have many ties, also with the thresholds.
SCORES = np.concatenate([RNG.normal(0, 0.1, 4000), np.round(RNG.normal(0.2, 0.3, 500), 2)]).clip(-1, 1)
THRESHOLDS = np.concatenate([np.linspace(-60, 60, 41), np.linspace(-1.2, 1.2, 97), SCORES[:9], SCORES[-9:]])

LAPLACE = [ss.LaplaceNoise(b) for b in (1e-4, 2e-3, 0.01, 0.3, 5.0, 1e3)]
STAIRCASE = [
    ss.StaircaseNoise.calibrate(epsilon, width)
    for epsilon in (1e-3, 0.5, 5, 12, 18, 30, 100, 300, 1000)
    for width in (2.0, 0.8, 0.02, 1e-3)
]
TABLES = [ss.randomised_response(3, [0.1, 0.2, 0.5]), ss.optimal_channel(2, levels=9)]


def sum_all(law: object, thresholds: np.ndarray, *, inclusive: bool = False) -> np.ndarray:
    """Sum over all scores, each by itself, with exact addition."""
    return np.array(
        [math.fsum(pass_probability(law, t, SCORES, inclusive=inclusive)) / len(SCORES) for t in thresholds]
    )


@pytest.mark.parametrize("law", [*LAPLACE, *STAIRCASE, *TABLES], ids=str)
def test_rates_are_sums_over_all_scores(law: object) -> None:
    rates = Sample(SCORES).rate(THRESHOLDS, law)
    np.testing.assert_allclose(rates, sum_all(law, THRESHOLDS), rtol=0, atol=2e-13)
    assert np.all((rates >= 0) & (rates <= 1))
    assert Sample(SCORES).rate(0.3, law) == pytest.approx(
        float(Sample(SCORES).rate(np.array([0.3]), law)[0]), abs=1e-14
    )


@pytest.mark.parametrize("law", TABLES, ids=str)
def test_tables_at_the_threshold(law: object) -> None:
    """A level table has atoms, so the rule at the threshold matters."""
    at = np.array(law.outputs)
    for inclusive in (False, True):
        rates = Sample(SCORES).rate(at, law, inclusive=inclusive)
        np.testing.assert_allclose(rates, sum_all(law, at, inclusive=inclusive), rtol=0, atol=1e-13)
    assert np.any(Sample(SCORES).rate(at, law) < Sample(SCORES).rate(at, law, inclusive=True) - 0.1)


def test_a_wrong_scale_is_noticed() -> None:
    """Noise that is one part in a thousand too large moves the rates by far more than the tolerance."""
    for law, near in (
        (ss.LaplaceNoise(0.3), ss.LaplaceNoise(0.3003)),
        (ss.StaircaseNoise.calibrate(5, 2.0), ss.StaircaseNoise.calibrate(5.005, 2.0)),
    ):
        assert np.max(np.abs(Sample(SCORES).rate(THRESHOLDS, near) - sum_all(law, THRESHOLDS))) > 1e-6


def test_weights_count() -> None:
    """The sums of weighted points are those of repeated points."""
    points, weights = np.array([-0.5, 0.1, 0.2]), np.array([0.5, 0.25, 0.25])
    for law in (ss.LaplaceNoise(0.2), ss.StaircaseNoise.calibrate(3, 2.0)):
        sums = tails.make_tail_sums(points, weights, law)
        assert sums is not None
        wanted = Sample(np.array([-0.5, -0.5, 0.1, 0.2])).rate(THRESHOLDS, law)
        np.testing.assert_allclose(sums.evaluate(THRESHOLDS), wanted, atol=1e-13)


def test_no_short_form() -> None:
    """Noise much narrower than the scores has no short form, and is summed over all scores."""
    weights = np.full(2, 0.5)
    assert tails.make_tail_sums(np.array([-1.0, 1.0]), weights, ss.LaplaceNoise(1e-3)) is None
    assert tails.make_tail_sums(np.array([-1.0, 1.0]), weights, ss.StaircaseNoise.calibrate(1, 1e-3)) is None
    assert tails.make_tail_sums(np.array([-1.0, 1.0]), weights, ss.GaussianNoise(1.0)) is None


def test_many_thresholds_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of thresholds give the same sums."""
    law = ss.StaircaseNoise.calibrate(18, 2.0)
    whole = Sample(SCORES).rate(THRESHOLDS, law)
    monkeypatch.setattr(tails, "_BLOCK", 64)
    np.testing.assert_array_equal(Sample(SCORES).rate(THRESHOLDS, law), whole)
