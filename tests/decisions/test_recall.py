"""Recall at rank k after noise agrees with simulation, and counts records without noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from support import STRICT

import scoreshield as ss
from scoreshield import decisions


@pytest.mark.parametrize(("records", "k"), [(50, 1), (400, 10)])
def test_recall_against_simulation(records: int, k: int, rng: np.random.Generator) -> None:
    """The recall agrees with a simulation."""
    genuine, impostor, sigma, trials = norm(0.6, 0.15), norm(0.0, 0.2), 0.25, 20_000
    predicted = decisions.recall_at_k(
        decisions.Distribution(genuine, (-40, 40)),
        decisions.Distribution(impostor, (-40, 40)),
        sigma,
        records=records,
        k=k,
    )
    best = genuine.rvs(trials, random_state=rng) + rng.normal(0, sigma, trials)
    found = 0
    for part in np.array_split(best, 20):
        others = impostor.rvs((len(part), records - 1), random_state=rng) + rng.normal(
            0, sigma, (len(part), records - 1)
        )
        found += int(((others > part[:, None]).sum(axis=1) < k).sum())
    error = STRICT * math.sqrt(predicted * (1 - predicted) / trials)
    assert abs(found / trials - predicted) < error
    wrong = decisions.recall_at_k(
        decisions.Distribution(genuine, (-40, 40)),
        decisions.Distribution(impostor, (-40, 40)),
        sigma * 1.1,
        records=records,
        k=k,
    )
    assert abs(found / trials - wrong) > error


def test_recall_without_noise_counts() -> None:
    """Recall without noise counts records."""
    genuine, impostor = np.array([2.0, 0.125]), np.arange(-32, 69) / 64
    predicted = decisions.recall_at_k(genuine, impostor, 0, records=11, k=1)
    tie = np.mean((1 - (60 + (np.arange(1000) + 0.5) / 1000) / 101) ** 10)  # one impostor of 101 scores 1/8 too
    assert predicted == pytest.approx(0.5 * (1 + tie), abs=1e-6)
    assert decisions.recall_at_k(genuine, impostor, 0.5, records=3, k=3) == 1


def test_recall_queries_without_noise_counts() -> None:
    """The recall of queries without noise counts records."""
    scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.2, 0.7]])
    pairs = np.array([[0, 1], [1, 0]])
    assert decisions.recall_of_queries(scores, pairs, 0, k=1) == 0
    assert decisions.recall_of_queries(scores, pairs, 0, k=2) == pytest.approx((1 + 0.5) / 2)  # a tie for second
    assert decisions.recall_of_queries(scores, pairs, 0.1, k=3) == 1


@pytest.mark.parametrize("law", [0.15, ss.LaplaceNoise(0.1), ss.StaircaseNoise.calibrate(9.0, 2.0)], ids=repr)
def test_recall_queries_against_simulation(law: object) -> None:
    """The recall of queries agrees with a simulation."""
    rng = np.random.default_rng(3)
    scores = rng.normal(0, 0.15, (40, 300))
    pairs = np.stack([np.arange(40), rng.integers(0, 300, 40)], axis=1)
    scores[pairs[:, 0], pairs[:, 1]] += 0.4
    predicted = decisions.recall_of_queries(scores, pairs, law, k=5)
    noise = ss.GaussianNoise(law) if isinstance(law, float) else law
    draws = 400
    hits = 0
    for q, r in pairs:
        noisy = scores[q] + noise.quantile(rng.random((draws, 300)))  # type: ignore[attr-defined]
        hits += int(((noisy > noisy[:, r : r + 1]).sum(axis=1) < 5).sum())
    measured = hits / (draws * len(pairs))
    assert measured == pytest.approx(predicted, abs=0.01 + 5.33 * math.sqrt(0.25 / (draws * len(pairs))))
    wrong = decisions.recall_of_queries(scores, pairs, law, k=8)
    assert abs(measured - wrong) > 0.02
