"""Scores for people: against a closed form, in the range, in order, and nearer to the clean scores."""

from __future__ import annotations

import numpy as np
import pytest

from scoreshield.decisions.estimates import ScoreEstimate
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise

RNG = np.random.default_rng(3)
FULL = (-1.0, 1.0)


def test_normal() -> None:
    """For normal scores and normal noise, the estimate is the well-known weighted mean."""
    values, std = RNG.normal(0.1, 0.12, 400_000).clip(-1, 1), 0.2
    estimate = ScoreEstimate(GaussianNoise(std), FULL, 10**9, values, np.ones(len(values)))
    noisy = np.linspace(-0.3, 0.6, 50)
    weight = 0.12**2 / (0.12**2 + std**2)
    np.testing.assert_allclose(estimate.estimate(noisy), 0.1 + weight * (noisy - 0.1), atol=0.004)
    wrong = 0.1 + 1.2 * weight * (noisy - 0.1)
    assert np.abs(estimate.estimate(noisy) - wrong).max() > 0.01


@pytest.mark.parametrize("law", [GaussianNoise(0.4), LaplaceNoise(0.3), StaircaseNoise.calibrate(6, 2.0)])
@pytest.mark.parametrize("has_scores", [True, False])
def test_order_and_range(law: GaussianNoise | LaplaceNoise | StaircaseNoise, has_scores: bool) -> None:
    """Estimates lie inside the range and never fall while the released score rises, far outside it too."""
    values = RNG.normal(0.1, 0.12, 5_000).clip(-1, 1) if has_scores else None
    weights = np.ones(5_000) if has_scores else None
    estimate = ScoreEstimate(law, (-0.5, 0.8), 5_000, values, weights)
    shown = estimate.estimate(np.sort(np.concatenate([RNG.uniform(-9, 9, 4_000), [-1e6, 1e6]])))
    assert (np.diff(shown) >= 0).all()
    assert shown.min() > -0.5
    assert shown.max() < 0.8


def test_nearer_to_clean() -> None:
    """The best of many noisy scores are shown far nearer to the clean ones than if they were clipped."""
    clean = RNG.normal(0.1, 0.1, 5_000).clip(-1, 1)
    noisy = clean + RNG.normal(0, 0.36, 5_000)
    best = np.argsort(-noisy)[:10]
    estimate = ScoreEstimate(GaussianNoise(0.36), FULL, 5_000, RNG.normal(0.1, 0.1, 5_000), np.ones(5_000))
    shown = estimate.estimate(noisy[best])
    assert np.abs(np.clip(noisy[best], -1, 1) - clean[best]).mean() > 0.6
    assert np.abs(shown - clean[best]).mean() < 0.15
    assert shown.max() < 0.4


def test_little_noise() -> None:
    """With little noise a score that no public record has is shown as it was released."""
    estimate = ScoreEstimate(GaussianNoise(0.01), FULL, 1_000, np.full(100, 0.1), np.ones(100))
    np.testing.assert_allclose(estimate.estimate(np.array([0.5, 0.85])), [0.5, 0.85], atol=0.005)


@pytest.mark.parametrize("has_scores", [True, False])
def test_hardly_any_noise(has_scores: bool) -> None:
    """With noise below the distance of the places, scores are shown exactly as released, and inside the range."""
    public = (np.full(100, 0.1), np.ones(100)) if has_scores else (None, None)
    estimate = ScoreEstimate(StaircaseNoise.calibrate(40, 2.0), FULL, 1_000, *public)
    assert estimate.law.std < 2 / 400
    noisy = np.array([-1.001, 0.1023, 0.4987, 0.8511, 1.001])
    np.testing.assert_array_equal(estimate.estimate(noisy), np.clip(noisy, -1, 1))
