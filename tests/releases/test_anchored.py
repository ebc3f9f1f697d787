"""Scores by windows around a private quantile, from the public function to the file and the ledger."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import cli
from scoreshield.privacy.anchors import GRID_STEP
from scoreshield.privacy.profiles import CurveProfile

RNG = np.random.default_rng(21)
QUERY = RNG.standard_normal(12)
ROWS = RNG.standard_normal((400, 12)).astype(np.float32)
ROWS[:40] += QUERY * np.linspace(2, 0.5, 40)[:, None]
ANY = dataclasses.replace(ss.TailShape.default(10), dimension=None)
FEW = dataclasses.replace(ss.TailShape.default(1), dimension=None)
WINDOWS = ss.AnchoredWindows(tail=ANY)


def release(rows: Any = ROWS, query: Any = QUERY, **options: Any) -> ss.ScoreRelease:
    return ss.release_scores(rows, query, **{"epsilon": 8.0, "mechanism": WINDOWS, "rng": 1, **options})


def test_release_keeps_the_best_records() -> None:
    """With a shape of public scores a large budget finds the ten best, a tiny one hardly more than chance does."""
    public = np.random.default_rng(5).standard_normal((800, 12))
    public /= np.linalg.norm(public, axis=1, keepdims=True)
    windows = ss.AnchoredWindows(tail=ss.TailShape.fit(public[:4] @ public[4:].T, 10))
    rows = np.random.default_rng(6).standard_normal((500, 12))
    best = set(np.argsort(-(rows / np.linalg.norm(rows, axis=1, keepdims=True) @ QUERY))[:10].tolist())

    def count_found(epsilon: float, seed: int) -> int:
        made = release(rows, epsilon=epsilon, rng=seed, mechanism=windows)
        return len(best & set(made.top_k(10).tolist()))

    assert np.mean([count_found(20.0, seed) for seed in range(10)]) > 8.5
    assert np.mean([count_found(0.01, seed) for seed in range(40)]) < 1.5


def test_release_has_the_form_of_a_score_release(tmp_path: Path) -> None:
    made = release()
    assert made.noisy.shape == (400,)
    assert set(np.unique(made.noisy / GRID_STEP % 1)) == {0.0}
    assert np.abs(made.scores).max() <= 1
    made.save(tmp_path / "r.npz")
    back = ss.load(tmp_path / "r.npz")
    assert back.guarantee == made.guarantee
    assert np.array_equal(back.noisy, made.noisy)
    assert back.top_k(7).tolist() == made.top_k(7).tolist()
    assert repr(made).startswith("<ScoreRelease 400: (8, 0)-DP, hides practically nothing, anchored")


def test_guarantee_states_both_parts_and_the_shape() -> None:
    guarantee = release().guarantee
    details = guarantee.details
    assert (guarantee.mechanism, guarantee.epsilon, guarantee.delta) == ("anchored", 8.0, 0.0)
    assert 0 < details["anchor_epsilon"] < 1 < details["window_epsilon"] < 8
    assert details["anchor_rank"] == 60
    assert details["tail_shape"] == "all-MiniLM-L6-v2 on FRAMES, 824 questions and 2,519 titles"
    assert 0 < details["predicted_recall"] <= 1
    assert "reason" not in details
    # The profile is better than that of any pure mechanism.
    assert isinstance(guarantee.profile, CurveProfile)
    assert guarantee.attack_advantage < ss.release_top_k(ROWS, QUERY, 1, epsilon=8.0, rng=1).guarantee.attack_advantage
    text = " ".join(str(guarantee).split())
    for part in (
        "pure 8-differential privacy",
        "private quantile",
        "Epsilon of the quantile",
        "Epsilon of the windows",
    ):
        assert part in text
    assert "Source of the shape of the tail of the scores: " in text
    assert "FRAMES" in text


def test_anchored_alone_works_for_ten() -> None:
    rows = np.random.default_rng(2).standard_normal((300, 384))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = ss.release_scores(rows, rows[0], epsilon=9.0, mechanism="anchored", rng=1)
    assert made.guarantee.details["k"] == 10
    asked = ss.release_scores(rows, rows[0], epsilon=9.0, mechanism=ss.AnchoredWindows(k=10), rng=1)
    assert np.array_equal(made.noisy, asked.noisy)


def test_other_dimensions_give_a_warning_before_anything_is_drawn() -> None:
    with pytest.warns(ss.TailShapeWarning, match="These have 12"):
        release(mechanism="anchored")


def test_small_collections() -> None:
    """A smaller rank with its reason, and staircase noise with its reason, both on the certificate."""
    smaller = release(ROWS[:100]).guarantee
    assert smaller.mechanism == "anchored"
    assert smaller.details["reason"] == "the anchor has rank 25 instead of 60, because there are 100 records"
    none = release(ROWS[:12]).guarantee
    assert none.mechanism == "staircase"
    assert none.epsilon == 8.0
    assert "12 records are too few for an anchor" in none.details["reason"]
    for guarantee in (smaller, none):
        assert "because" in str(guarantee)
        assert ss.Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee
    more_than_there_are = release(ROWS[:50], mechanism=ss.AnchoredWindows(k=100)).guarantee
    assert more_than_there_are.mechanism == "staircase"
    # The plain mechanism draws the same.
    assert np.array_equal(release(ROWS[:12]).noisy, release(ROWS[:12], mechanism="staircase").noisy)


def test_centroids_of_identities() -> None:
    labels = np.repeat(np.arange(200), 2)
    made = release(adjacency=ss.Identity(labels, centroids=True))
    assert made.noisy.shape == (200,)
    assert made.guarantee.mechanism == "anchored"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"query": np.stack([QUERY, -QUERY])}, "one query"),
        ({"adjacency": ss.Identity(np.repeat(np.arange(200), 2))}, "no identities without centroids"),
        ({"delta": 1e-6}, "'delta' parameter of release_scores must be 0"),
        ({"calibration": "classical"}, "Calibration rules are for Gaussian noise"),
        ({"unsafe_reproduce_paper": True}, "Calibration rules are for Gaussian noise"),
        ({"epsilon": 0}, "'epsilon' parameter of release_scores"),
        ({"mechanism": ss.TailShape.default(10)}, "a name, a LevelChannel, an AnchoredWindows or a CustomNoise"),
        ({"mechanism": "anchor"}, "'mechanism' parameter of release_scores"),
        ({"score_range": (0.5, 0.1)}, "score_range"),
        ({"rows": np.vstack([ROWS, np.full((1, 12), np.nan)])}, "Row 400"),
    ],
)
def test_bad_input_raises_one_sentence_and_charges_nothing(options: dict[str, Any], part: str, tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=100.0, delta=1e-3)
    account = ledger.account("records")
    with pytest.raises(ss.InvalidInput) as caught:
        release(**{"rng": None, **options}, ledger=account)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(ledger.entries())


def test_other_releases_do_not_offer_it() -> None:
    for call in (
        lambda: ss.release_row(ROWS, 0, epsilon=8.0, delta=1e-6, mechanism="anchored"),  # type: ignore[arg-type]
        lambda: ss.release_gram(ROWS, epsilon=8.0, delta=1e-6, mechanism="anchored"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ss.InvalidInput):
            call()


def test_ledger_is_charged_the_whole_budget(tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=20.0, delta=1e-6)
    release(rng=None, ledger=ledger.account("records"))
    assert ledger.account("records").spent == pytest.approx(8.0, rel=1e-4)
    release(rng=None, ledger=ledger.account("records"))
    with pytest.raises(ss.BudgetExceeded):
        release(rng=None, ledger=ledger.account("records"))
    assert ledger.verify()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("window_epsilon", 7.9),
        ("anchor_epsilon", 0.9),
        ("cells", 65),
        ("window", 32),
        ("offset", 0.1),
        ("offset", 9.0),
        ("window_width", 0.25),
        ("anchor_rank", 0),
        ("anchor_rank", None),
        ("window_epsilon", -1.0),
        ("anchor_rank", 10**9),
        ("predicted_recall", 1.1),
        ("predicted_recall", "perfect"),
        ("k", 0),
        ("tail_shape", None),
        ("reason", 3),
        ("note", "audited: epsilon 0.1"),
    ],
)
def test_edited_details_are_rejected(place: str, value: Any) -> None:
    data = json.loads(json.dumps(release().guarantee.to_dict()))
    ss.Guarantee.from_dict(data)
    data["details"][place] = value
    with pytest.raises(ss.InvalidInput):
        ss.Guarantee.from_dict(data)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 7.999},
        {"delta": 1e-6},
        {"grid": 2.0**-20},
        {"scale": 1.0},
        {"calibration": "analytic"},
        {"shape": [2, 400]},
        {"regime": "row"},
        {"profile": {"kind": "pure", "epsilon": 4.0}},
        {"profile": {"kind": "step", "epsilon": 8.0, "mass": 0.1}},
        {"noise": {"law": "staircase"}},
    ],
)
def test_edited_promises_are_rejected(change: dict[str, Any]) -> None:
    data = json.loads(json.dumps(release().guarantee.to_dict()))
    with pytest.raises(ss.InvalidInput):
        ss.Guarantee.from_dict({**data, **change})


def test_one_record_moves_its_own_window_and_each_count_by_one() -> None:
    """With the same random words, a replaced record leaves all others as they are if the anchor stays."""
    other = ROWS.copy()
    other[399] = -QUERY
    same = 0
    for seed in range(20):
        first, second = release(rng=seed).noisy, release(other, rng=seed).noisy
        same += bool((first[:399] == second[:399]).all())
    assert same >= 15


def test_research_mode_repeats_and_the_secure_sampler_does_not() -> None:
    assert np.array_equal(release(rng=5).noisy, release(rng=5).noisy)
    assert not np.array_equal(release(rng=None).noisy, release(rng=None).noisy)
    assert release(rng=None).guarantee.sampler == "exact"


def test_search_by_query(tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=100.0, delta=1e-6)
    search = ss.PrivateSearch(ROWS, epsilon=20.0, mode="query", ledger=ledger.account("r"), mechanism=WINDOWS)
    hits = search.search(QUERY, k=5)
    assert len(hits.ids) == 5
    assert hits.guarantee.mechanism == "anchored"


# The command line.


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    np.save(folder / "emb.npy", ROWS)
    np.save(folder / "q.npy", QUERY)
    dataclasses.replace(ss.TailShape.default(5), dimension=None).save(folder / "tail.json")
    monkeypatch.chdir(folder)
    asked = ["release", "scores", "emb.npy", "--query", "q.npy", "--epsilon", "8", "--output", "r.npz", *arguments]
    monkeypatch.setattr(sys, "argv", ["scoreshield", *asked])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, "--mechanism", "anchored", "--tail", "tail.json", "--top-k", "3") == 0
    made = ss.load(tmp_path / "r.npz")
    assert made.guarantee.mechanism == "anchored"
    assert made.guarantee.details["k"] == 5
    assert "private quantile" in (tmp_path / "r.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--mechanism", "anchored", "--tail", "none.json"], "none.json"),
        (["--mechanism", "anchored", "--tail", "q.npy"], "q.npy"),
        (["--mechanism", "anchored", "--tail", "tail.json", "--best", "7"], "that of the tail shape, 5"),
        (["--mechanism", "anchored", "--best", "0"], "--best must be a whole number"),
        (["--mechanism", "staircase", "--best", "7"], "--best and --tail are for --mechanism anchored"),
        (["--mechanism", "staircase", "--tail", "tail.json"], "--best and --tail are for --mechanism anchored"),
    ],
)
def test_command_line_bad_input(
    arguments: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r.npz").exists()
