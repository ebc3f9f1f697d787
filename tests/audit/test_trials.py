"""Trials: that a fair coin chooses the side, that sessions ask as they say, and what is remembered.

Tests with chance use fixed seeds and state their false-alarm rate.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import STRICT

import scoreshield as ss
from scoreshield.audit.encoding import Failure
from scoreshield.audit.engine import SavedOutputs
from scoreshield.audit.neighbours import random_pair, worst_pairs
from scoreshield.audit.outputs import Source
from scoreshield.audit.trials import Trial, list_sessions

D = 4
Q = np.eye(D)[0]
PAIR = worst_pairs(3, D, "scores", Q)[0]


def tell_side(rows: np.ndarray) -> float:
    return float(rows[0] @ Q)


def tell_in_bulk(rows: np.ndarray, repeats: int) -> np.ndarray:
    return np.full((repeats, 1), rows[0] @ Q)


def make_trial(release: Any, session: Any = "single", **options: Any) -> Trial:
    return Trial(PAIR, Source(release, seed=0, timeout=None), session, **options)


def draw(trial: Trial, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Draw and remember outputs, as a round does."""
    rows, sides = trial.draw(count, np.random.default_rng(seed))
    trial.add(rows, sides)
    return rows, sides


# ---- Single calls.


@pytest.mark.parametrize("release", [tell_side, tell_in_bulk])
def test_sides_are_fair_coins(release: Any) -> None:
    """4,000 coins: their mean and the number of equal neighbours, each at a false-alarm rate of 1e-7.

    Sides that take turns, or come one after the other, have a mean of a half and no fair number of equal neighbours.
    """
    _, sides = make_trial(release).draw(4_000, np.random.default_rng(3))
    assert abs(sides.sum() - 2_000) < STRICT * math.sqrt(1_000)
    assert abs((sides[1:] == sides[:-1]).sum() - 1_999.5) < STRICT * math.sqrt(1_000)
    for near_miss in (np.arange(4_000) % 2 == 0, np.arange(4_000) < 2_000):
        assert abs((near_miss[1:] == near_miss[:-1]).sum() - 1_999.5) > STRICT * math.sqrt(1_000)


@pytest.mark.parametrize("release", [tell_side, tell_in_bulk])
def test_outputs_belong_to_their_sides(release: Any) -> None:
    """An output of the first collection is 1 here, and one of the second -1, in this order."""
    rows, sides = make_trial(release).draw(500, np.random.default_rng(0))
    assert np.array_equal(rows[:, 0], np.where(sides, 1.0, -1.0))
    assert rows.shape == (500, 2)


def test_coins_are_not_the_release_s() -> None:
    """A release that draws from the seed of the audit does not see the coins."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> float:
        del rows
        return float(rng.random() < 0.5)

    rows, sides = make_trial(release).draw(2_000, np.random.default_rng(1))
    # 2,000 pairs of coins agree in 1,000 of all cases; 120 more or less have a probability of 1e-7.
    assert abs((rows[:, 0] == sides).sum() - 1_000) < STRICT * math.sqrt(500)


def test_outputs_are_remembered() -> None:
    """All outputs are kept by side; the last round is kept too, unless it was cut short."""
    trial = make_trial(tell_side)
    assert trial.outputs == 0
    assert trial.last is None
    first, first_sides = draw(trial, 100)
    second, _ = draw(trial, 40, seed=2)
    assert trial.outputs == 140
    assert trial.history is not None
    assert (trial.history.join()[0][:, 0] == 1).all()
    assert (trial.history.join()[1][:, 0] == -1).all()
    assert np.array_equal(trial.history.join()[0][: first_sides.sum()], first[first_sides])
    assert trial.last is not None
    assert trial.last[0] is second
    draw(trial, 10, seed=3)  # not more than a quarter of the latest round
    assert trial.last[0] is second
    assert trial.outputs == 150


# ---- Sessions.


def test_sessions_are_described() -> None:
    words = {"single": 1, "between public": 3, "two queries": 2}
    trials = {session: make_trial(tell_side, session) for session in words}
    assert {session: trial.calls_per_output for session, trial in trials.items()} == words
    # Answers about a public collection cost nothing; two answers about a private one cost twice.
    assert {session: trial.composed for session, trial in trials.items()} == dict.fromkeys(words, 1) | {
        "two queries": 2
    }
    assert len({trial.description for trial in trials.values()}) == 3
    assert all(trial.description.startswith(PAIR.description) for trial in trials.values())


def test_public_collection_comes_before_and_after() -> None:
    """The first of the two comes before, and a random collection after; differences have no noise that calls share."""
    asked: list[bytes] = []

    def release(rows: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(len(asked) // 3).standard_normal(3)  # one for three calls
        asked.append(rows.tobytes())
        return rows @ Q + noise

    trial = make_trial(release, "between public")
    rows, sides = trial.draw(60, np.random.default_rng(0))
    assert rows.shape == (60, 5 * 3 + 1)
    assert len(asked) == 180
    private = {True: PAIR.first.tobytes(), False: PAIR.second.tobytes()}
    assert asked[1::3] == [private[bool(side)] for side in sides]
    assert set(asked[0::3]) == {PAIR.first.tobytes()}
    assert len(set(asked[2::3])) == 1
    assert asked[2] not in private.values()
    # Public, private, public, and the differences of neighbours.
    assert rows[:, 3:6] - rows[:, :3] == pytest.approx(rows[:, 9:12])
    assert rows[:, 6:9] - rows[:, 3:6] == pytest.approx(rows[:, 12:15])
    assert rows[:, :9].std(axis=0).min() > 0.5
    assert rows[sides, 9:15].std(axis=0).max() < 1e-12
    assert rows[sides, 9].mean() - rows[~sides, 9].mean() == pytest.approx(2, abs=1e-6)


def test_fresh_noise_stays_in_differences() -> None:
    """The near miss: noise of every call for itself is larger in the difference, by the root of 2."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rows @ Q + rng.standard_normal(3)

    rows, sides = make_trial(release, "between public").draw(400, np.random.default_rng(0))
    assert rows[sides, 9:12].std() == pytest.approx(math.sqrt(2), rel=0.2)


def test_two_queries_in_a_row() -> None:
    """Both queries are asked about the same collection, the first one first."""
    asked: list[tuple[bytes, bytes]] = []

    def release(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
        asked.append((rows.tobytes(), query.tobytes()))
        return rows @ query

    source = Source(partial(release, query=Q.astype(np.float32)), seed=0, timeout=None)
    between, two = list_sessions(source, PAIR, Q)
    assert (between.session, two.session) == ("between public", "two queries")
    rows, sides = two.draw(40, np.random.default_rng(0))
    assert [one[0] for one in asked[0::2]] == [one[0] for one in asked[1::2]]
    assert len({one[1] for one in asked[0::2]}) == 1
    assert len({one[1] for one in asked[1::2]}) == 1
    queries = [np.frombuffer(asked[place][1], dtype=np.float32) for place in (0, 1)]
    assert queries[0] @ queries[1] == pytest.approx(0, abs=1e-6)
    # The record has the same score for the first query, and the opposite one for the second.
    half = 1 / math.sqrt(2)
    assert rows[:, 0] == pytest.approx(half, abs=1e-6)
    assert rows[:, 3] == pytest.approx(np.where(sides, half, -half), abs=1e-6)
    assert rows[:, 3:6] - rows[:, :3] == pytest.approx(rows[:, 6:9])


def test_answers_that_are_no_numbers() -> None:
    """Answers without numbers are read as two answers, and so are an exception and an array."""
    trial = make_trial(lambda rows: f"score {rows[0] @ Q:.2f}", "between public")
    rows, sides = trial.draw(20, np.random.default_rng(0))
    assert not trial.reader.is_plain
    assert len({row.tobytes() for row in rows[sides]}) == 1
    assert len({row.tobytes() for row in rows}) == 2

    def fails(rows: np.ndarray) -> float:
        if rows[0] @ Q == 1:
            raise KeyError("one")
        return 1.0

    trial = make_trial(fails, "between public")
    rows, sides = trial.draw(20, np.random.default_rng(0))
    assert len({row.tobytes() for row in rows}) == 2
    assert not trial.failures  # the public answer is an output


def test_sessions_that_exist() -> None:
    """Two queries are asked only where a release takes a query that can be changed, and one query is public."""
    with_query = Source(partial(ss.release_scores, query=Q, epsilon=1.0), seed=0, timeout=None)
    without = Source(tell_side, seed=0, timeout=None)
    assert len(list_sessions(with_query, PAIR, Q)) == 2
    for source, query in (
        (without, Q),
        (with_query, None),
        (with_query, np.eye(D)[:2]),
        (with_query, np.ones(1)),
    ):
        assert [trial.session for trial in list_sessions(source, PAIR, query)] == ["between public"]
    pair = list_sessions(with_query, PAIR, 5 * Q)[1].pair
    assert pair.first.shape == PAIR.first.shape
    assert pair.has_unit_rows


# ---- Probes and rejections.


def test_probe_of_copied_numbers() -> None:
    """Answers are returned where they never vary and differ between random collections."""
    for release in (lambda rows: rows @ Q, lambda rows, repeats: np.tile(rows @ Q, (repeats, 1))):
        answers = make_trial(release).probe(5)
        assert answers is not None
        assert len(answers) == 5
        for seed, answer in enumerate(answers):
            assert np.array_equal(answer, random_pair(3, D, seed).first @ Q)
    assert make_trial(lambda rows: np.append(rows @ Q, np.nan)).probe(3) is not None  # NaN equals NaN here


def test_probe_of_other_releases() -> None:
    """Nothing is returned where answers vary, are the same for all collections, or are no numbers."""

    def noisy(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rows @ Q + rng.random()

    def fails(rows: np.ndarray) -> np.ndarray:
        raise ValueError(str(rows.shape))

    for release in (noisy, fails, lambda _: np.zeros(2), lambda rows: "above" if rows[0, 0] > 0 else "below"):
        assert make_trial(release).probe(5) is None


def test_probe_reads_numbers_of_any_output() -> None:
    """Numbers in texts and in dicts are copied numbers too."""
    for release in (lambda rows: str(rows[0, 0]), lambda rows: {"best": [float(rows[0, 0])]}):
        answers = make_trial(release).probe(3)
        assert answers is not None
        assert [answer[0] for answer in answers] == pytest.approx([random_pair(3, D, s).first[0, 0] for s in range(3)])


def test_rejected_collections() -> None:
    """A pair is useless if the release raises on all of it. Errors that come now and then are outputs, for any rows."""

    def fails(rows: np.ndarray, rng: np.random.Generator, share: float) -> float:
        if rng.random() < share:
            raise ValueError("rejected")
        return float(rows[0, 0])

    for share, is_covered, is_useless in (
        (1.0, True, True),
        (0.5, True, False),
        (1.0, False, True),
        (0.5, False, False),
        (0.0, False, False),
    ):
        trial = make_trial(partial(fails, share=share), is_covered=is_covered)
        assert not trial.is_useless  # nothing is known yet
        draw(trial, 32)
        assert trial.is_useless is is_useless
        assert all(failure == Failure("ValueError", "rejected") for failure in trial.failures)


def test_rejection_is_decided_by_one_round() -> None:
    """A release that raises for one of the two collections stays useful, however long a later round is."""

    def fails(rows: np.ndarray) -> float:
        if rows[0] @ Q > 0:
            raise ValueError("rejected")
        return 1.0

    trial = make_trial(fails)
    draw(trial, 32)
    assert not trial.is_useless
    draw(trial, len(trial.failures), seed=2)
    assert not trial.is_useless


def test_rows_that_one_side_rejects() -> None:
    """A release may reject rows that are no unit vectors: then a pair with such rows on one side shows nothing more."""

    def fails(rows: np.ndarray, rng: np.random.Generator) -> float:
        if rows[0] @ Q > 0 or rng.random() < 0.2:
            raise ValueError("rejected")
        return 1.0

    for is_covered in (True, False):
        trial = make_trial(fails, is_covered=is_covered)
        draw(trial, 64)
        assert trial.is_useless is not is_covered


# ---- Outputs that were made before.


def test_saved_outputs() -> None:
    """Every output is taken at most once and in its order, until one side has no more."""
    first, second = np.arange(50.0)[:, None], 100 + np.arange(50.0)[:, None]
    trial = SavedOutputs(first, second, "by hand", np.random.default_rng(0))
    assert (trial.description, trial.session, trial.outputs) == ("by hand", "single", 0)
    rng, taken, whose = np.random.default_rng(1), [], []
    for count in (32, 21, 1, 999, 999):
        rows, sides = trial.draw(count, rng)
        assert np.array_equal(rows[:, 0] < 100, sides)
        taken.append(rows[:, 0])
        whose.append(sides)
    assert [len(part) for part in taken[:3]] == [32, 21, 1]
    assert not len(taken[4])
    values, sides = np.concatenate(taken), np.concatenate(whose)
    assert np.array_equal(values[sides], np.arange(sides.sum()))
    assert np.array_equal(values[~sides], 100 + np.arange((~sides).sum()))
    assert max(sides.sum(), (~sides).sum()) == 50


def test_sides_of_saved_outputs_are_fair_coins() -> None:
    """As in calls: 1,000 coins, their mean and equal neighbours, each at a false-alarm rate of 1e-7."""
    trial = SavedOutputs(np.zeros((2_000, 1)), np.ones((2_000, 1)), "", np.random.default_rng(4))
    _, sides = trial.draw(1_000, np.random.default_rng(0))
    assert abs(sides.sum() - 500) < STRICT * math.sqrt(250)
    assert abs((sides[1:] == sides[:-1]).sum() - 499.5) < STRICT * math.sqrt(250)


def test_saved_outputs_make_no_call() -> None:
    """There is no pair, so that the two collections are equal and no call is made."""
    trial = SavedOutputs(np.zeros((8, 2)), np.ones((8, 2)), "", np.random.default_rng(0))
    assert np.array_equal(trial.pair.first, trial.pair.second)
    rows, _ = trial.draw(4, np.random.default_rng(0))
    assert trial.source.calls == 0
    assert trial.reader is not None
    assert trial.reader.is_plain
    assert trial.is_number.tolist() == [True, True, False]
    assert rows.shape == (4, 3)


def test_pair_of_two_queries_is_a_pair() -> None:
    """The first query is shared by both sides, so that the record moves along the second one alone."""
    source = Source(partial(ss.release_scores, query=Q, epsilon=1.0), seed=0, timeout=None)
    query = np.array([1.0, 2.0, 0.0, -1.0])
    pair = list_sessions(source, PAIR, query)[1].pair
    assert np.allclose(pair.first @ query, pair.second @ query, atol=1e-6)
    assert np.allclose(np.delete(pair.first, 0, axis=0), -query / np.linalg.norm(query), atol=1e-6)
