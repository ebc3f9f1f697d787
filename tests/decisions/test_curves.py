"""The operating curve after noise: closed forms for normal scores, and scikit-learn for clean ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from laws import Laplace, RandomisedResponse, Staircase
from scipy.special import betainc
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from support import STRICT

import scoreshield as ss
from scoreshield import decisions
from scoreshield.privacy.noise import GaussianNoise


@pytest.fixture
def scores(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(0.6, 0.2, 3000).clip(-1, 1), rng.normal(0, 0.2, 4000).clip(-1, 1)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 3.0])
def test_normal_scores_have_a_closed_form(sigma: float) -> None:
    """Normal scores have a closed form."""
    genuine = decisions.Distribution(norm(0.65, 0.2), (-40, 40))
    impostor = decisions.Distribution(norm(0.0, 0.2), (-40, 40))
    curve = decisions.roc(genuine, impostor, sigma)
    spread = math.hypot(0.2, sigma)
    assert curve.auc == pytest.approx(norm.cdf(0.65 / (spread * math.sqrt(2))), abs=1e-12)
    assert curve.eer == pytest.approx(norm.cdf(-0.325 / spread), abs=1e-12)
    for fpr in (1e-6, 1e-3, 0.2):
        tpr = norm.sf(norm.isf(fpr) - 0.65 / spread)
        assert curve.tpr_at(fpr) == pytest.approx(tpr, rel=1e-9)
    # The binormal partial area by direct quadrature over the false-match rate.
    u = (np.arange(400_000) + 0.5) / 400_000 * 0.1
    assert curve.partial_auc(0.1) == pytest.approx(0.1 * norm.sf(norm.isf(u) - 0.65 / spread).mean(), abs=1e-7)


@pytest.mark.parametrize("sigma", [0.02, 0.3])
def test_area_two_samples_mean_over_pairs(sigma: float, scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The area of two samples is the mean over pairs."""
    genuine, impostor = scores[0][:500], scores[1][:700]
    pairs = norm.cdf((genuine[:, None] - impostor) / (sigma * math.sqrt(2))).mean()
    assert decisions.roc(genuine, impostor, sigma).auc == pytest.approx(pairs, abs=1e-12)


def test_clean_curve_agrees_scikit_learn(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The clean curve agrees with scikit-learn."""
    genuine, impostor = (np.round(part, 2) for part in scores)  # with many ties
    truth = np.r_[np.ones(len(genuine)), np.zeros(len(impostor))]
    values = np.r_[genuine, impostor]
    curve = decisions.roc(genuine, impostor)
    assert curve.auc == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
    ours = curve.partial_auc(0.05)
    mcclish = roc_auc_score(truth, values, max_fpr=0.05)
    least, most = 0.05**2 / 2, 0.05
    assert 0.5 * (1 + (ours - least) / (most - least)) == pytest.approx(mcclish, abs=1e-12)
    t = curve.threshold_at(0.01)
    assert np.mean(impostor > t) <= 0.01 < np.mean(impostor >= t)
    assert curve.tpr_at(0.01) == np.mean(genuine > t)


def test_equal_error_by_hand() -> None:
    """The equal error rate of clean scores agrees with a calculation by hand."""
    # At t in [0.5, 0.6): one of four impostors passes, one of four genuine does not.
    curve = decisions.roc([0.4, 0.6, 0.7, 0.8], [0.1, 0.2, 0.3, 0.65])
    assert curve.eer == pytest.approx(0.25)
    assert decisions.roc([0.9, 0.8], [0.1, 0.2]).eer == 0
    assert decisions.roc([0.1, 0.2], [0.8, 0.9]).eer == 1


def test_noise_turns_clean_into_chance(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Strong noise turns the clean curve into chance."""
    clean = decisions.roc(*scores)
    assert decisions.roc(*scores, 1e-4).auc == pytest.approx(clean.auc, abs=1e-5)
    assert decisions.roc(*scores, 1e4).auc == pytest.approx(0.5, abs=1e-4)
    areas = [decisions.roc(*scores, sigma).auc for sigma in (0.05, 0.1, 0.2, 0.5, 1.0)]
    assert areas == sorted(areas, reverse=True)


def test_equal_error_is_equal(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Equal error is equal."""
    curve = decisions.roc(*scores, 0.3)
    t = curve.threshold_at(curve.eer)
    assert curve.fpr(t) == pytest.approx(1 - curve.tpr(t), abs=1e-9)


def test_areas_add_up(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Areas add up."""
    curve = decisions.roc(*scores, 0.2)
    fpr, tpr, thresholds = curve.curve(20_001)
    assert np.all(np.diff(thresholds) < 0)
    assert fpr[0] < 1e-12
    assert fpr[-1] > 1 - 1e-12
    assert np.trapezoid(tpr, fpr) == pytest.approx(curve.auc, abs=1e-6)
    assert curve.partial_auc(1) == curve.auc
    assert curve.partial_auc(0.3) < 0.3


@pytest.mark.parametrize("law", [Laplace(0.1), RandomisedResponse(0.3, 0.9)], ids=repr)
def test_other_laws(law: object, scores: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> None:
    """Curves of other laws agree with a simulation."""
    genuine, impostor = scores
    curve = decisions.roc(genuine, impostor, law)
    if isinstance(law, RandomisedResponse):
        good, bad = (0.9 * p + 0.1 * (1 - p) for p in (np.mean(genuine > 0.3), np.mean(impostor > 0.3)))
        assert float(curve.tpr(0.5)) == pytest.approx(good)
        assert float(curve.fpr(0.5)) == pytest.approx(bad)
        return
    draws = 2_000_000
    first = rng.choice(genuine, draws) + rng.laplace(0, 0.1, draws)
    second = rng.choice(impostor, draws) + rng.laplace(0, 0.1, draws)
    seen = float(np.mean(first > second))
    error = STRICT * 0.5 / math.sqrt(draws)
    assert abs(seen - curve.auc) < error
    assert abs(seen - decisions.roc(genuine, impostor, Laplace(0.12)).auc) > error


def test_tiny_noise_is_no_noise() -> None:
    """Tiny noise is no noise."""
    assert decisions.roc([0.5 + 1e-6, 0.9], [0.5, -0.9], 1e-8).auc == 1
    rng = np.random.default_rng(3)
    genuine, impostor = rng.normal(0.4, 0.2, 300), rng.normal(0, 0.2, 300)
    clean = decisions.roc(genuine, impostor).auc
    for sigma in (1e-6, 1e-9):
        assert decisions.roc(genuine, impostor, sigma).auc == pytest.approx(clean, abs=1e-6)


def test_curves_of_laws_with_atoms_and_steps() -> None:
    """Curves of laws with atoms and steps are right."""
    rng = np.random.default_rng(4)
    genuine, impostor = rng.normal(0.5, 0.2, 2000), rng.normal(0, 0.2, 2000)
    bit = decisions.roc(genuine, impostor, RandomisedResponse(0.2, 0.9))
    fpr, fnr = float(bit.fpr(0.5)), 1 - float(bit.tpr(0.5))
    assert min(fpr, fnr) <= bit.eer <= max(fpr, fnr)
    vertex = 0.5 * fpr * (1 - fnr) + (1 - fpr) * (1 - fnr / 2)
    assert bit.auc == pytest.approx(vertex)
    assert bit.partial_auc(fpr / 2) == pytest.approx(0.25 * 0.5 * fpr * (1 - fnr))
    # Three scores a side: the area is a mean of nine tails of the difference of two staircase variables.
    law = Staircase(15.0)
    few = [0.3, 0.5, 0.7], [0.0, 0.1, 0.2]
    grid = np.arange(-(2**20), 2**20) * 2.0**-17
    mass = np.diff(law.cdf(grid - 2.0**-18), append=1.0)
    spectrum = np.abs(np.fft.rfft(mass)) ** 2
    difference = np.fft.fftshift(np.fft.irfft(spectrum, len(mass)))
    beaten = np.cumsum(difference) - difference / 2
    exact = np.mean([np.interp(g - i, grid, beaten) for g in few[0] for i in few[1]])
    assert decisions.roc(*few, law).auc == pytest.approx(float(exact), abs=3e-6)


def test_million_scores() -> None:
    """A curve of a million scores under another law takes seconds."""
    rng = np.random.default_rng(5)
    genuine, impostor = rng.normal(0.5, 0.2, 1_000_000), rng.normal(0, 0.2, 1_000_000)
    area = decisions.roc(genuine, impostor, Laplace(0.2)).auc
    assert area == pytest.approx(decisions.roc(genuine[:20_000], impostor[:20_000], Laplace(0.2)).auc, abs=0.01)


@pytest.mark.parametrize(("records", "k", "sigma"), [(10**5, 1000, 0.5), (10**6, 10_000, 0.5), (10**7, 10_000, 0.2)])
def test_recall_of_many_records(records: int, k: int, sigma: float) -> None:
    """Against the sum over a fine grid of thresholds of P[Binomial < k] times the density of the relevant score."""
    genuine = decisions.Distribution(norm(0.55, 0.14), (-40, 40))
    impostor = decisions.Distribution(norm(0, 0.1), (-40, 40))
    t = np.linspace(-6, 8, 2_000_001)
    kept = betainc(records - k, k, norm.cdf(t / math.hypot(0.1, sigma)))
    exact = np.trapezoid(kept * norm.pdf(t, 0.55, math.hypot(0.14, sigma)), t)
    told = decisions.recall_at_k(genuine, impostor, sigma, records=records, k=k)
    assert told == pytest.approx(float(exact), rel=1e-6)


def test_ties_are_broken_at_random() -> None:
    """Ties are broken at random."""
    same = [0.5] * 10
    assert decisions.recall_at_k(same, same, 0, records=100, k=1) == pytest.approx(0.01)
    assert decisions.recall_at_k(same, same, 1e-6, records=100, k=1) == pytest.approx(0.01)
    assert decisions.roc(same, same).auc == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan])
def test_rates_outside_open_interval(bad: float, scores: tuple[np.ndarray, np.ndarray]) -> None:
    """A rate outside (0, 1) raises an error."""
    with pytest.raises(ss.InvalidInput, match="fpr"):
        decisions.roc(*scores, 0.1).tpr_at(bad)


def test_bad_areas_and_counts(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Areas and counts that are not valid raise an error."""
    curve = decisions.roc(*scores, GaussianNoise(0.1))
    for call in (lambda: curve.partial_auc(0), lambda: curve.partial_auc(1.5), lambda: curve.curve(1)):
        with pytest.raises(ss.InvalidInput):
            call()
    with pytest.raises(ss.InvalidInput, match="'k'"):
        decisions.recall_at_k(*scores, 0.1, records=10, k=0)
