"""What scores are for chooses their mechanism: values, ranking or a threshold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.decisions.queries import QueryScores
from scoreshield.errors import InvalidInput

RNG = np.random.default_rng(4)
ROWS = RNG.standard_normal((600, 64))
QUERY = ROWS[7] + 0.4 * RNG.standard_normal(64)


def release(**options: object) -> ss.ScoreRelease:
    return ss.release_scores(ROWS, QUERY, mechanism="auto", rng=1, **options)  # type: ignore[arg-type]


def test_values() -> None:
    """By default, and for values, the noise with the smaller standard deviation is taken."""
    assert release(epsilon=5.0) == release(epsilon=5.0, for_="values")
    assert release(epsilon=5.0, delta=1e-6).guarantee.mechanism == "staircase"
    assert release(epsilon=0.1, delta=0.1).guarantee.mechanism == "gaussian"


def test_ranking() -> None:
    """For ranking, windows are taken where noise would hide the best records, and no warning is given."""
    ranked = release(epsilon=7.0, for_="ranking", k=5)
    assert ranked.guarantee.mechanism == "anchored"
    assert (ranked.guarantee.epsilon, ranked.guarantee.delta) == (7.0, 0.0)
    assert release(epsilon=7.0, delta=1e-6, for_="ranking").guarantee.delta == 0
    assert release(epsilon=100.0, for_="ranking").guarantee.mechanism == "staircase"


def test_ranking_finds_more() -> None:
    """The ranking finds the best record far more often than noise does."""
    units = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)

    def count(for_: str) -> int:
        return sum(
            7 in ss.release_scores(units, QUERY, epsilon=7, mechanism="auto", for_=for_, k=5, rng=seed).top_k(5)
            for seed in range(60)
        )

    assert count("ranking") > count("values") + 25


def test_ranking_by_public_scores() -> None:
    """Public scores of a narrow kind choose levels or windows inside it."""
    scores = RNG.normal(0.8, 0.02, (60, 600)).clip(-1, 1)
    scores[:, 3] = 0.95
    public = QueryScores(scores, np.column_stack([np.arange(60), np.full(60, 3)]))
    chosen = release(epsilon=9.0, for_="ranking", k=5, public_scores=public).guarantee
    assert chosen.mechanism in ("levels", "anchored")
    if chosen.mechanism == "levels":
        assert 0.75 < chosen.noise.cuts[0] < chosen.noise.cuts[-1] < 1


def test_threshold() -> None:
    """For a threshold, each record has one bit, which is wrong with probability 1 / (1 + e^epsilon)."""
    bits = release(epsilon=2.0, for_="threshold", threshold=0.2)
    table = bits.guarantee.noise
    assert isinstance(table, ss.LevelChannel)
    assert table.cuts == (0.2,)
    assert table.probabilities[0, 1] == pytest.approx(1 / (1 + np.exp(2.0)))
    assert len(np.unique(bits.noisy)) == 2
    staircase = ss.StaircaseNoise.calibrate(2.0, 2.0)
    assert float(1 - staircase.cdf(1e-6)) > table.probabilities[0, 1]  # noise is wrong more often near the threshold


def test_several_scores() -> None:
    """Where one record moves several scores there is Gaussian noise alone, whatever they are for."""
    batch = ss.release_scores(ROWS, ROWS[:2], epsilon=5, delta=1e-6, mechanism="auto", for_="ranking", rng=1)
    assert batch.guarantee.mechanism == "gaussian"


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_several_bits(delta: float) -> None:
    """Where one record moves several scores there is no bit, and no noise instead of it."""
    with pytest.raises(
        InvalidInput, match="releases one bit for each record, which is not private for several queries"
    ):
        ss.release_scores(ROWS, ROWS[:2], epsilon=8, delta=delta, for_="threshold", threshold=0.5)
    people = ss.Identity(np.arange(len(ROWS)) // 2)
    with pytest.raises(InvalidInput, match="not private for identities without centroids"):
        ss.release_scores(ROWS, QUERY, epsilon=8, delta=delta, for_="threshold", threshold=0.5, adjacency=people)
    with pytest.raises(
        InvalidInput, match="A ranking for several queries takes Gaussian noise: give a 'delta' above 0"
    ):
        ss.release_scores(ROWS, ROWS[:2], epsilon=8, for_="ranking")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"for_": "sorting"}, "'for_' parameter"),
        ({"for_": "threshold"}, "belong together"),
        ({"for_": "ranking", "threshold": 0.3}, "belong together"),
        (
            {"for_": "threshold", "threshold": 1.0},
            "'threshold' parameter of release_scores must be strictly between -1 and 1",
        ),
        ({"for_": "threshold", "threshold": 0.8, "score_range": (0, 0.8)}, "strictly between 0 and 0.8"),
        ({"k": 0}, "'k' parameter"),
        ({"require_recall": 1.5}, "'require_recall' parameter"),
        ({"public_scores": [0.1]}, "'public_scores' parameter"),
    ],
)
def test_bad_input(options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        release(epsilon=5.0, **options)


def test_another_mechanism() -> None:
    with pytest.raises(InvalidInput, match="chooses the mechanism: leave 'mechanism' out"):
        ss.release_scores(ROWS, QUERY, epsilon=5, mechanism="staircase", for_="ranking")


def test_mechanism_follows_the_use() -> None:
    """Without a mechanism, ranking chooses one; values alone keep Gaussian noise, which needs a delta."""
    chosen = ss.release_scores(ROWS, QUERY, epsilon=5, for_="ranking", rng=1)
    assert chosen == ss.release_scores(ROWS, QUERY, epsilon=5, mechanism="auto", for_="ranking", rng=1)
    with pytest.raises(InvalidInput, match="delta"):
        ss.release_scores(ROWS, QUERY, epsilon=5)


def test_no_charge(tmp_path: Path) -> None:
    """A release that stops below the required recall charges nothing."""
    account = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=50, delta=0).account("people")
    with pytest.raises(InvalidInput, match="nothing was released or charged"):
        ss.release_scores(ROWS, QUERY, epsilon=1, mechanism="auto", for_="ranking", require_recall=0.5, ledger=account)
    assert account.spent == 0
