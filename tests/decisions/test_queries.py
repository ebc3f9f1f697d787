"""Predictions query by query agree with exact sums and with simulated releases, and state an error that holds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import decisions
from scoreshield.decisions import QueryScores
from scoreshield.decisions.models import parse_score_model
from scoreshield.privacy.sampling.stream import open_stream

QUERIES, RECORDS = 40, 400


def make_benchmark(seed: int = 3, queries: int = QUERIES, records: int = RECORDS) -> tuple[np.ndarray, np.ndarray]:
    """Scores of queries whose levels differ, with one to three relevant records each."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0.05, 0.1, (queries, records)) + rng.normal(0, 0.06, (queries, 1))
    pairs = np.array([(q, r) for q in range(queries) for r in rng.choice(records, 1 + q % 3, replace=False)])
    scores[pairs[:, 0], pairs[:, 1]] += rng.normal(0.3, 0.1, len(pairs))
    return scores.clip(-1, 1), pairs


SCORES, PAIRS = make_benchmark()
KNOWN = QueryScores(SCORES, PAIRS)
LAWS = [
    0,
    0.01,
    0.15,
    ss.LaplaceNoise(0.06),
    ss.StaircaseNoise.calibrate(9.0, 2.0),
    ss.randomised_response(5.0, [0.35]),
    ss.randomised_response(7.0, [0.2, 0.3, 0.4]),
    ss.randomised_response(9.0, np.linspace(0.1, 0.6, 24)),
    ss.thinned_response(7.0, [0.2, 0.3], advantage=0.5),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("k", [1, 5, 40])
def test_predictions_agree_with_exact_sums(law: object, k: int) -> None:
    """The sketch gives what sums over all scores give, and another k would not pass."""
    told = KNOWN.predict_recall(law, k=k).value  # type: ignore[arg-type]
    exact = decisions.recall_of_queries(SCORES, PAIRS, law, k=k)  # type: ignore[arg-type]
    assert told == pytest.approx(exact, abs=0.006 if k > 1 else 0.012)
    wrong = decisions.recall_of_queries(SCORES, PAIRS, law, k=3 * k)  # type: ignore[arg-type]
    assert abs(told - wrong) > 0.012


@pytest.mark.parametrize(("score_range", "epsilon"), [((-1.0, 1.0), 8.0), ((0.1, 0.5), 8.0), ((0.15, 0.3), 15.0)])
def test_a_range_clamps_scores(score_range: tuple[float, float], epsilon: float) -> None:
    """Clamped scores are tied at the ends; noise far smaller than a bin orders them at random."""
    law = ss.StaircaseNoise.calibrate(epsilon, score_range[1] - score_range[0])
    told = KNOWN.predict_recall(law, k=5, score_range=score_range).value
    exact = decisions.recall_of_queries(SCORES.clip(*score_range), PAIRS, law, k=5)
    assert told == pytest.approx(exact, abs=0.006)


@pytest.mark.parametrize("law", [0, 0.05, ss.randomised_response(7.0, [0.2, 0.3, 0.4])], ids=repr)
def test_another_number_of_records(law: object) -> None:
    """Fewer records are a subset of the public ones, and more are further draws: both agree with such data."""
    rng = np.random.default_rng(5)
    fewer, more = [], []
    scores, pairs = make_benchmark(7, records=1600)
    known = QueryScores(scores, pairs)
    relevant = np.unique(pairs[:, 1])
    places = np.full(1600, -1)
    for _ in range(6):
        others = rng.permutation(np.setdiff1d(np.arange(1600), relevant))
        kept = np.concatenate([relevant, others[: 400 - len(relevant)]])
        places[kept] = np.arange(400)
        part = np.stack([pairs[:, 0], places[pairs[:, 1]]], axis=1)
        fewer.append(decisions.recall_of_queries(scores[:, kept], part, law, k=5))  # type: ignore[arg-type]
        small = QueryScores(scores[:, kept], part)
        more.append(small.predict_recall(law, k=5, records=1600).value)  # type: ignore[arg-type]
    told = known.predict_recall(law, k=5, records=400).value  # type: ignore[arg-type]
    assert told == pytest.approx(np.mean(fewer), abs=0.02)
    whole = known.predict_recall(law, k=5).value  # type: ignore[arg-type]
    assert np.mean(more) == pytest.approx(whole, abs=0.03)
    assert abs(told - whole) > 0.06


@pytest.mark.parametrize("epsilon", [6.0, 8.0, 11.0])
def test_anchored_windows_agree_with_releases(epsilon: float) -> None:
    """Windows have cells that depend on the query: releases of many seeds keep what is predicted."""
    scores, pairs = make_benchmark(11, queries=24)
    known, k, seeds = QueryScores(scores, pairs), 5, 25
    choice = ss.AnchoredWindows(k=k).choose(epsilon, RECORDS, (-1.0, 1.0))
    assert choice.law is not None
    told = known.predict_recall(choice.law, k=k, asked=None).value
    found = []
    for seed in range(seeds):
        shares = []
        for q in range(24):
            stream = open_stream(np.random.default_rng([seed, q]))
            released = choice.law.release(stream, scores[q].copy())
            keys = np.random.default_rng([seed, q, 1]).random(RECORDS)
            best = np.lexsort((keys, -released))[:k]
            wanted = pairs[pairs[:, 0] == q, 1]
            shares.append(np.isin(wanted, best).mean())
        found.append(np.mean(shares))
    assert np.mean(found) == pytest.approx(told, abs=0.01 + 5.33 * np.std(found) / math.sqrt(seeds))
    other = ss.AnchoredWindows(k=k).choose(epsilon / 2, RECORDS, (-1.0, 1.0)).law
    assert other is not None
    assert known.predict_recall(other, k=k).value < told - 0.05


def test_pooled_scores_are_one_population() -> None:
    """Pooled predictions agree with the operating curve, and differ from those query by query."""
    is_other = np.ones(SCORES.shape, dtype=bool)
    is_other[PAIRS[:, 0], PAIRS[:, 1]] = False
    far, near = SCORES[is_other], SCORES[PAIRS[:, 0], PAIRS[:, 1]]
    pooled = QueryScores.pool(far, near)
    assert pooled.is_pooled
    for law in (0, 0.1, ss.LaplaceNoise(0.05), ss.randomised_response(7.0, [0.2, 0.3, 0.4])):
        told = pooled.predict_recall(law, k=5, records=RECORDS).value  # type: ignore[arg-type]
        assert told == pytest.approx(decisions.recall_at_k(near, far, law, records=RECORDS, k=5), abs=0.005)  # type: ignore[arg-type]
    model = parse_score_model("normal:0.05,0.1"), parse_score_model("normal:0.5,0.1")
    assert model[0] is not None
    assert model[1] is not None
    told = QueryScores.pool(*model).predict_recall(0.1, k=5, records=1000).value
    assert told == pytest.approx(decisions.recall_at_k(model[1], model[0], 0.1, records=1000, k=5), abs=0.005)
    with pytest.raises(ss.InvalidInput, match="'records'"):
        pooled.predict_recall(0.1, k=5)


def test_the_error_covers_further_queries() -> None:
    """Nine times in ten the recall that 30 further queries have, with noise, lies within the stated error."""
    table, k, asked, covered, trials, narrow = ss.randomised_response(7.0, [0.2, 0.3, 0.4]), 5, 30, 0, 150, 0
    for trial in range(trials):
        scores, pairs = make_benchmark(100 + trial, queries=60 + asked, records=200)
        is_public = pairs[:, 0] < 60
        told = QueryScores(scores[:60], pairs[is_public]).predict_recall(table, k=k, asked=asked)
        rng = np.random.default_rng(trial)
        shares = []
        for q in range(60, 60 + asked):
            sums = np.cumsum(table.probabilities, axis=1)[table.level_of(scores[q])]
            drawn = (rng.random((200, 1)) > sums).sum(axis=1)
            best = np.lexsort((rng.random(200), -drawn))[:k]
            shares.append(np.isin(pairs[pairs[:, 0] == q, 1], best).mean())
        covered += abs(np.mean(shares) - told.value) <= told.error
        narrow += abs(np.mean(shares) - told.value) <= told.error / 2
    assert 0.82 <= covered / trials <= 0.98
    assert narrow / trials < 0.8  # half the width is not enough


def test_parts_of_a_population() -> None:
    first, second = KNOWN.split()
    assert first.queries == second.queries == QUERIES // 2
    law = ss.randomised_response(7.0, [0.2, 0.3, 0.4])
    whole = KNOWN.predict_recall(law, k=5).value
    assert np.mean([half.predict_recall(law, k=5).value for half in (first, second)]) == pytest.approx(whole)
    moved = ss.randomised_response(7.0, [0.25, 0.35, 0.45])
    assert KNOWN.shift(0.05).predict_recall(moved, k=5).value == pytest.approx(whole, abs=1e-3)
    assert KNOWN.shift(0.05).predict_recall(0.1, k=5).value == pytest.approx(KNOWN.predict_recall(0.1, k=5).value)
    assert KNOWN.predict_recall(law, k=5, asked=10).error > KNOWN.predict_recall(law, k=5, asked=None).error
    assert KNOWN.predict_recall(law, k=RECORDS).value == 1


def test_the_scores_that_ship() -> None:
    """The default is a compact sketch with the recall of the whole set."""
    known = QueryScores.default()
    assert known is QueryScores.default()
    assert (known.records, known.queries, known.is_pooled) == (2519, 103, False)
    assert "FRAMES" in known.origin
    assert known.predict_recall(0, k=10).value == pytest.approx(0.592, abs=0.01)
    windows = ss.AnchoredWindows(k=10).choose(8.0, 2519, (-1.0, 1.0)).law
    assert windows is not None
    assert known.predict_recall(windows, k=10).value == pytest.approx(0.559, abs=0.02)


@pytest.mark.parametrize(
    ("scores", "pairs", "says"),
    [
        (np.where(np.arange(RECORDS) == 3, np.nan, SCORES), PAIRS, "finite"),
        (100 * SCORES, PAIRS, "divide percentages by 100"),
        (np.full_like(SCORES, 0.5), PAIRS, "differ from each other"),
        (SCORES[:, :10], PAIRS[PAIRS[:, 1] < 10], "at least 20 records"),
        (SCORES, PAIRS[:19], "at least 20 pairs"),
        (1 - SCORES.clip(0, 1), PAIRS, "swap the two"),
        (SCORES, PAIRS + RECORDS, "places in the matrix"),
    ],
    ids=["nan", "percent", "equal", "few records", "few pairs", "distances", "places"],
)
def test_bad_scores(scores: np.ndarray, pairs: np.ndarray, says: str) -> None:
    with pytest.raises(ss.InvalidInput, match=says):
        QueryScores(scores, pairs)


def test_bad_pooled_scores() -> None:
    rng = np.random.default_rng(1)
    far, near = rng.normal(0.1, 0.1, 500).clip(-1, 1), rng.normal(0.6, 0.1, 50).clip(-1, 1)
    for pair, says in (
        ((near, far), "swap the two"),
        ((far[:19], near), "'irrelevant'.*at least 20"),
        ((far, near[:5]), "'relevant'.*at least 20"),
        ((100 * far, near), "percentages"),
        ((np.full(50, 0.1), near), "'irrelevant'.*differ"),
        ((np.append(far, np.inf), near), "finite"),
    ):
        with pytest.raises(ss.InvalidInput, match=says):
            QueryScores.pool(*pair)


# ---- Plain values.


@pytest.mark.parametrize(
    "scores",
    [
        KNOWN,
        KNOWN.split()[0],
        QueryScores.pool(SCORES[:, :50].ravel(), SCORES[PAIRS[:, 0], PAIRS[:, 1]], origin="pooled"),
        QueryScores.default(),
    ],
    ids=["queries", "half", "pooled", "default"],
)
def test_plain_values_are_read_back(scores: QueryScores) -> None:
    """What is written as JSON predicts the same when it is read."""
    data = json.loads(json.dumps(scores.to_dict()))
    back = QueryScores.from_dict(data)
    assert back.to_dict() == data
    assert repr(back) == repr(scores)
    for law in (0, 0.15, ss.randomised_response(7.0, [0.2, 0.3, 0.4])):
        assert back.predict_recall(law, k=5, records=3_000) == scores.predict_recall(law, k=5, records=3_000)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("kind", "tail shape", "another kind of object"),
        ("records", 0, "records"),
        ("queries", QUERIES + 1, "an array is damaged"),
        ("queries", 2**50, "an array is too large"),
        ("relevant", 3, "an array is damaged"),
        ("is_pooled", True, "do not fit"),
        ("origin", 3, "do not fit"),
        ("sampled", -1, "sampled"),
        ("doubt", -0.5, "out of range"),
        ("width", 0.0, "out of range"),
        ("width", math.nan, "width"),
        ("counts", "%", "."),
        ("counts", "AAAA", "an array is damaged"),
        ("counts", None, "."),
    ],
)
def test_damaged_plain_values(name: str, value: object, message: str) -> None:
    """A damaged value raises an error of one sentence, also where another process would need much memory."""
    with pytest.raises(ss.InvalidInput, match="no valid public scores") as caught:
        QueryScores.from_dict({**KNOWN.to_dict(), name: value})
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")
    data = KNOWN.to_dict()
    del data[name]
    with pytest.raises(ss.InvalidInput, match="no valid public scores"):
        QueryScores.from_dict(data)
