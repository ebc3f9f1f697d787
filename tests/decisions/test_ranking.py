"""The choice of a mechanism for ranking, and its near misses."""

from __future__ import annotations

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.ranking import choose_for_ranking
from scoreshield.decisions.worth import predict_law
from scoreshield.privacy.tails import AnchoredWindows


def make_scores(middle: float, spread: float, gap: float) -> QueryScores:
    """Public scores of 80 queries with 1,000 records each: normal, with one relevant record above."""
    rng = np.random.default_rng(5)
    scores = rng.normal(middle, spread, (80, 1_000))
    scores[:, 0] = middle + gap * spread + rng.normal(0, spread, 80)
    pairs = np.column_stack([np.arange(80), np.zeros(80, dtype=int)])
    return QueryScores(np.clip(scores, -1, 1), pairs, origin="made up")


def test_windows_without_public_scores() -> None:
    choice = choose_for_ranking(8.0, records=5_183, dimension=384)
    assert isinstance(choice.mechanism, AnchoredWindows)
    assert choice.prediction.value > 0.4
    noise = predict_law(ss.StaircaseNoise.calibrate(8.0, 2.0), QueryScores.default(), records=5_183, k=10)
    assert noise.value < 0.05
    assert "windows" in choice.reason


@pytest.mark.parametrize(("epsilon", "records"), [(60.0, 5_183), (12.0, 15)])
def test_noise(epsilon: float, records: int) -> None:
    """Where noise keeps as much, or there are too few records for an anchor, scores get noise."""
    assert choose_for_ranking(epsilon, records=records, dimension=384).mechanism == "staircase"


def test_gaussian() -> None:
    """Gaussian noise needs delta, and is never better here."""
    assert choose_for_ranking(8.0, 1e-6, records=5_183).mechanism != "gaussian"
    assert choose_for_ranking(8.0, 1e-6, records=5_183).delta == 0


def test_public_scores() -> None:
    """Public scores of a model with another scale choose levels or windows that fit it."""
    narrow = make_scores(0.8, 0.03, 4.0)
    choice = choose_for_ranking(9.0, records=1_000, k=5, public_scores=narrow)
    assert choice.mechanism != "staircase"
    clean = predict_law(0.0, narrow, records=1_000, k=5).value
    assert choice.prediction.value > 0.8 * clean
    law = AnchoredWindows(5).choose(9.0, 1_000, (-1.0, 1.0)).law
    assert law is not None
    assert predict_law(law, narrow, records=1_000, k=5).value < choice.prediction.value - 0.03


def test_best_of_candidates() -> None:
    """No single candidate is predicted to be better than the choice, up to what noise is preferred by."""
    public = make_scores(0.1, 0.1, 4.0)
    for epsilon in (5.0, 8.0, 12.0, 20.0):
        choice = choose_for_ranking(epsilon, records=1_000, k=10, public_scores=public)
        for law in (
            ss.StaircaseNoise.calibrate(epsilon, 2.0),
            ss.randomised_response(epsilon, [0.4]),
            AnchoredWindows(10).choose(epsilon, 1_000, (-1.0, 1.0)).law,
        ):
            value = public.predict_recall(law, k=10, records=1_000).value  # type: ignore[arg-type]
            assert choice.prediction.value > value - 0.03
