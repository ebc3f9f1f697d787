"""Tail shapes: the fitted windows keep what they predict, on public scores with a known tail."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy import tails
from scoreshield.privacy.sampling.stream import ResearchStream
from scoreshield.privacy.tails import AnchoredWindows, TailShape, WindowSetting, choose_rank, round_difference_down

RANGE = (-1.0, 1.0)


def make_scores(queries: int, records: int, seed: int, slope: float = 0.05) -> np.ndarray:
    """Exponential tails, each query's at its own place."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(-0.1, 0.1, (queries, 1))
    return np.asarray(np.clip(places + slope * (rng.standard_exponential((queries, records)) - 4), -1, 1))


@pytest.fixture(scope="module")
def shape() -> TailShape:
    return TailShape.fit(make_scores(25, 2000, 1), 5, origin="made up", dimension=8)


def measure_recall(law: Any, scores: np.ndarray, k: int, seeds: int) -> float:
    """The share of the k best found again, weighted as a fit weighs ranks, in releases of each query."""
    weights = np.arange(1, k + 1) ** -1.5
    found = []
    for seed, row in enumerate(np.repeat(scores, seeds, axis=0)):
        noisy = law.release(ResearchStream(np.random.default_rng(seed)), row.copy())
        chosen = np.lexsort((np.random.default_rng(seed).random(len(row)), -noisy))[:k]
        found.append(np.isin(np.argsort(-row)[:k], chosen) @ weights / weights.sum())
    return float(np.mean(found))


@pytest.mark.parametrize(("epsilon", "records"), [(6.0, 1500), (9.0, 1500), (9.0, 6000)])
def test_predicted_recall_is_that_of_releases(shape: TailShape, epsilon: float, records: int) -> None:
    """Scores of another seed and of another number of records."""
    choice = AnchoredWindows(tail=shape).choose(epsilon, records, RANGE)
    assert choice.law is not None
    assert choice.reason == ""
    # A larger collection reaches higher: its tail is the same relative to its anchor.
    measured = measure_recall(choice.law, make_scores(30, records, 2), 5, 8)
    assert measured == pytest.approx(choice.recall, abs=0.06)


def test_fitted_windows_are_better_than_others(shape: TailShape) -> None:
    """Windows at other places, or with another share for the anchor, are predicted to keep less."""
    model = tails._TailModel(-np.sort(-make_scores(25, 2000, 1), axis=1), 5, shape.rank)
    setting = shape.settings[-3]
    best = model.predict(setting)
    assert best == pytest.approx(setting.recall, abs=1e-3)
    for change in (
        {"offset": setting.offset - 0.04},
        {"offset": setting.offset + 0.05},
        {"width": setting.width / 4},
        {"width": setting.width * 3},
        {"anchor_epsilon": setting.anchor_epsilon / 6},
        {"anchor_epsilon": setting.anchor_epsilon * 4},
    ):
        assert model.predict(setting._replace(**change)) < best - 0.005


def test_more_budget_keeps_more(shape: TailShape) -> None:
    recalls = [setting.recall for setting in shape.settings]
    assert recalls == sorted(recalls, reverse=True)
    assert recalls[0] > 0.9
    for k in (3, 10, 47, 100):
        recalls = [setting.recall for setting in TailShape.default(k).settings]
        assert recalls == sorted(recalls, reverse=True)


def test_fit_is_the_same_every_time() -> None:
    scores = make_scores(4, 300, 5)
    assert TailShape.fit(scores, 3) == TailShape.fit(scores.tolist(), 3)
    assert TailShape.fit(scores, 3) == TailShape.fit(scores[:, ::-1], 3)


def test_shape_of_a_wider_tail_is_wider(shape: TailShape) -> None:
    assert shape.slope == pytest.approx(0.05, rel=0.2)
    wide = TailShape.fit(make_scores(25, 2000, 1, slope=0.1), 5)
    assert wide.slope == pytest.approx(2 * shape.slope, rel=0.02)
    first, second = shape.setting_at(7.0, 2000), wide.setting_at(7.0, 2000)
    assert second.width / first.width == pytest.approx(2, rel=0.5)


def test_save_and_load(shape: TailShape, tmp_path: Path) -> None:
    path = tmp_path / "tail.json"
    shape.save(path)
    assert TailShape.load(path) == shape
    assert TailShape.from_dict(json.loads(json.dumps(shape.to_dict()))) == shape


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "JSON"),
        ("[]", "not complete or not valid"),
        ('{"kind": "tail"}', "not complete or not valid"),
        ('{"kind": "tail shape", "k": 10}', "not complete or not valid"),
    ],
)
def test_broken_files_raise_errors(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "tail.json"
    path.write_text(text)
    with pytest.raises(ss.ScoreShieldError):
        TailShape.load(path)
    assert part
    with pytest.raises(ss.FileError):
        TailShape.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("scores", "k", "part"),
    [
        (np.zeros((5, 400)), 10, "have no spread"),
        (np.full((5, 400), 0.3), 10, "have no spread"),
        (np.zeros(400), 10, "must be a (queries, records) array"),
        (np.full((3, 400), np.nan), 10, "must be a (queries, records) array"),
        (np.full((3, 400), 2.0), 10, "must be a (queries, records) array"),
        ([["a"] * 400], 10, "must be a (queries, records) array"),
        (np.zeros((0, 400)), 10, "must be a (queries, records) array"),
        (make_scores(3, 100, 1), 10, "give public scores of at least 120 records"),
        (make_scores(3, 400, 1), 0, "'k' parameter of TailShape.fit"),
        (make_scores(3, 400, 1), 2.5, "'k' parameter of TailShape.fit"),
    ],
)
def test_public_scores_that_cannot_be_used(scores: Any, k: Any, part: str) -> None:
    with pytest.raises(ss.InvalidInput) as caught:
        TailShape.fit(scores, k)
    assert part in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"k": 0},
        {"rank": 0},
        {"slope": 0.0},
        {"slope": math.nan},
        {"origin": ""},
        {"origin": "two\nlines"},
        {"dimension": 0},
        {"settings": ()},
        {"settings": (WindowSetting(0, 0.3, 0.1, 0.1, 0.5, 0.5),)},
        {"settings": (WindowSetting(0, -0.3, 0.1, 0.1, 2, 0.5),)},
        {"settings": (WindowSetting(0, 0.3, 0.1, 0.1, 2, 1.5),)},
        {"settings": (WindowSetting(0, 0.3, math.inf, 0.1, 2, 0.5),)},
        {"settings": (WindowSetting(0, 0.3, 0.1, 0.1, 2, 0.5), WindowSetting(-1, 0.3, 0.1, 0.1, 2, 0.5))},
    ],
)
def test_shapes_that_are_none(shape: TailShape, change: dict[str, Any]) -> None:
    with pytest.raises(ss.InvalidInput):
        dataclasses.replace(shape, **change)


# The choice of a release.


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10, 50, 100, 700])
def test_default_shapes(k: int) -> None:
    shape = TailShape.default(k)
    assert (shape.k, shape.rank, shape.dimension) == (k, choose_rank(k), 384)
    assert "FRAMES" in shape.origin
    assert "MiniLM" in shape.origin


def test_rank_follows_k() -> None:
    assert choose_rank(10) == 60
    assert choose_rank(50) == 260


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1 / 3, 1.0, 7.3, 8.0, 50.0, 1e6])
@pytest.mark.parametrize("records", [4, 40, 1000, 10**7])
def test_budgets_add_up_to_at_most_epsilon(epsilon: float, records: int) -> None:
    """To the last bit, and no more is lost than one bit."""
    for k in (1, 10):
        law = AnchoredWindows(k=k).choose(epsilon, records, RANGE).law
        if law is None:
            continue
        total = Fraction(law.anchor.epsilon) + Fraction(law.response.epsilon)
        assert Fraction(epsilon) * (1 - Fraction(1, 2**51)) <= total <= Fraction(epsilon)
        assert law.profile.delta_at(epsilon) == 0
        assert law.profile.delta_at(epsilon * 0.999) > 0


def test_difference_is_rounded_down() -> None:
    rng = np.random.default_rng(1)
    for whole, part in zip(rng.uniform(1, 10, 500).tolist(), rng.uniform(0, 1, 500).tolist(), strict=True):
        rest = Fraction(round_difference_down(whole, part))
        assert rest + Fraction(part) <= Fraction(whole) < Fraction(math.nextafter(float(rest), 99)) + Fraction(part)


def test_small_collections_have_a_smaller_rank_or_none() -> None:
    windows = AnchoredWindows()
    assert windows.choose(8.0, 240, RANGE).reason == ""
    smaller = windows.choose(8.0, 100, RANGE)
    assert smaller.law is not None
    assert smaller.law.anchor.rank == 25
    assert smaller.reason == "the anchor has rank 25 instead of 60, because there are 100 records"
    assert smaller.law.offset < windows.choose(8.0, 240, RANGE).law.offset  # type: ignore[union-attr]
    none = windows.choose(8.0, 19, RANGE)
    assert none.law is None
    assert "19 records are too few" in none.reason
    assert "staircase" in none.reason


def test_mechanism_with_a_shape_takes_its_k(shape: TailShape) -> None:
    assert AnchoredWindows(tail=shape).shape.k == 5
    assert AnchoredWindows(k=5, tail=shape).shape is shape
    with pytest.raises(ss.InvalidInput, match="that of the tail shape, 5"):
        AnchoredWindows(k=6, tail=shape)
    for bad in ({"k": 0}, {"k": 1.5}, {"k": True}, {"tail": "minilm"}):
        with pytest.raises(ss.InvalidInput):
            AnchoredWindows(**bad)  # type: ignore[arg-type]


def test_warning_for_another_dimension(shape: TailShape) -> None:
    with pytest.warns(ss.TailShapeWarning, match="of dimension 384 .*FRAMES.* These have 768"):
        AnchoredWindows().warn_about_dimension(768)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AnchoredWindows().warn_about_dimension(384)
        AnchoredWindows(tail=shape).warn_about_dimension(8)
        AnchoredWindows(tail=dataclasses.replace(shape, dimension=None)).warn_about_dimension(9)


@pytest.mark.parametrize(
    ("k", "epsilon", "records", "score_range"),
    [
        (10, 1.0, 5000, (-1.0, 1.0)),
        (10, 8.0, 5000, (0.0, 1.0)),
        (10, 8.0, 100, (-1.0, 1.0)),
        (500, 8.0, 90_000, (-1, 1)),
    ],
)
def test_no_prediction_beyond_measurements(k: int, epsilon: float, records: int, score_range: Any) -> None:
    """Beyond the measured budgets, k, rank and range no recall is predicted; within them it is."""
    assert AnchoredWindows(k=k).choose(epsilon, records, score_range).recall is None
    assert AnchoredWindows(k=10).choose(8.0, 5000, (-1.0, 1.0)).recall is not None


@pytest.mark.parametrize("settings", [5, None, "abc", ((1.0, 2.0),), ()])
def test_settings_of_another_kind(settings: Any) -> None:
    """Settings that are none give one sentence."""
    with pytest.raises(ss.InvalidInput, match="'settings'"):
        TailShape(10, 60, 0.1, settings, "nowhere")


def test_least_epsilon() -> None:
    """The error of a tiny epsilon names the epsilon that was given."""
    with pytest.raises(ss.InvalidInput, match=r"at least 1e-06 for anchored windows.*Got 1e-09"):
        AnchoredWindows().choose(1e-9, 5000, (-1.0, 1.0))


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"kind": "codebook"}'])
def test_a_file_of_something_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "shape.json"
    path.write_text(text)
    with pytest.raises(ss.InvalidInput, match=r"shape\.json holds no valid tail shape\. This is not a tail shape"):
        TailShape.load(path)


def test_numbers_beyond_floats(tmp_path: Path) -> None:
    data, path = TailShape.default(10).to_dict(), tmp_path / "shape.json"
    for place, value in ((0, -(10**400)), (3, 10**400)):
        settings = [list(setting) for setting in data["settings"]]
        settings[0][place] = value
        path.write_text(json.dumps({**data, "settings": settings}))
        with pytest.raises(ss.InvalidInput, match=r"shape\.json holds no valid tail shape"):
            TailShape.load(path)
    for slope in (1e308, 2.1, 10**400):
        with pytest.raises(ss.InvalidInput, match="slope"):
            TailShape.from_dict({**data, "slope": slope})
    assert TailShape.from_dict({**data, "slope": 2.0}).slope == 2.0


def test_an_anchor_lies_at_half_of_k_or_below() -> None:
    """A higher anchor is of no use for k records, and would blame their number."""
    shape = TailShape.default(10)
    for rank in (1, 4):
        with pytest.raises(ss.InvalidInput, match="'rank' parameter of TailShape must be at least 5, half of k"):
            dataclasses.replace(shape, rank=rank)
    assert dataclasses.replace(shape, rank=5).rank == 5
