"""Pairs of neighbours: that they are neighbours, and that they move a release as far as the sensitivity says."""

from __future__ import annotations

import math

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.audit.neighbours import (
    KINDS,
    Pair,
    choose_places,
    climb,
    drift_pair,
    from_canaries,
    random_pair,
    replace_record,
    worst_pairs,
)
from scoreshield.errors import InvalidInput


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d"), [(1, 2), (2, 2), (5, 3), (3, 1)])
def test_all_worst_pairs_are_neighbours(kind: str, n: int, d: int) -> None:
    for pair in worst_pairs(n, d, kind):
        assert pair.first.shape == pair.second.shape == (n, d)
        assert np.flatnonzero((pair.first != pair.second).any(axis=1)).tolist() == [pair.index]
        assert pair.has_unit_rows == ("too long" not in pair.description)


def test_scores_move() -> None:
    """Scores move by the whole sensitivity."""
    query = np.array([3.0, 4.0, 0.0])
    pair = worst_pairs(4, 3, "scores", query)[0]
    moved = (unit(pair.first) - unit(pair.second)) @ (query / 5)
    assert np.linalg.norm(moved) == pytest.approx(ss.Replacement().sensitivity("scores", 4).l2, rel=1e-6)
    assert (pair.first @ (query / 5))[1:] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("n", [2, 5])
def test_rows_and_matrices_move(n: int) -> None:
    """Rows and matrices move by the whole sensitivity."""
    row, gram = worst_pairs(n, 3, "row")[0], worst_pairs(n, 3, "gram")[0]
    rows = [side @ side[0] for side in (row.first, row.second)]
    assert np.linalg.norm(rows[0] - rows[1]) == pytest.approx(ss.Replacement().sensitivity("row", n).l2)
    matrices = [side @ side.T for side in (gram.first, gram.second)]
    assert np.linalg.norm(matrices[0] - matrices[1]) == pytest.approx(ss.Replacement().sensitivity("gram", n).l2)


def test_vectors_move_by_two() -> None:
    pair = worst_pairs(3, 4, "index")[0]
    assert np.linalg.norm(pair.first - pair.second) == pytest.approx(2)


def test_score_one_against_zero() -> None:
    """A score of 1 against a score of 0 is among the pairs."""
    scores = [
        (float(p.first[0] @ np.eye(3)[0]), float(p.second[0] @ np.eye(3)[0])) for p in worst_pairs(4, 3, "scores")
    ]
    assert scores == [(1, -1), (1, 0), (3, -3)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_may_stand_anywhere(kind: str) -> None:
    for index in range(3):
        for here, first in zip(worst_pairs(3, 4, kind, index=index), worst_pairs(3, 4, kind), strict=True):
            assert np.flatnonzero((here.first != here.second).any(axis=1)).tolist() == [index]
            assert np.array_equal(here.first[index], first.first[0])
            assert np.array_equal(here.second[index], first.second[0])
            assert f"record {index} of 3" in here.description
    assert "record 2 of 5" in random_pair(5, 3, 0, index=2).description


def test_choose_places() -> None:
    """All positions of a few records are tried, and some of many."""
    assert choose_places(5, 0) == [0, 1, 2, 3, 4]
    many = choose_places(1_000, 0)
    assert {0, 500, 999} <= set(many)
    assert 6 <= len(many) == len(set(many)) <= 8
    assert many != choose_places(1_000, 1)


def test_batch_pairs() -> None:
    """A batch is attacked along all of its queries."""
    queries = np.array([[1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0, 0.0]])
    q = unit(queries)
    pairs = worst_pairs(3, 5, "scores", queries, index=1)
    moves = [q @ (unit(pair.first) - unit(pair.second))[1] for pair in pairs]
    # As far as the sensitivity allows, in the first.
    assert np.linalg.norm(moves[0]) == pytest.approx(ss.Replacement().sensitivity("scores", 3, queries=queries).l2)
    ends = [(pair.first[1], pair.second[1]) for pair in pairs]
    for i in range(3):
        assert any(np.allclose(a, q[i], atol=1e-6) and np.allclose(b, -q[i], atol=1e-6) for a, b in ends)
        after = q[(i + 1) % 3]
        assert any(np.allclose(a, q[i], atol=1e-6) and np.allclose(b, after, atol=1e-6) for a, b in ends)
    assert np.allclose(pairs[0].first[[0, 2]] @ q.T, 0, atol=1e-6)  # the others score 0
    assert all("record 1 of 3" in pair.description for pair in pairs)
    # However many queries there are, the pairs are few, and every query moves in some.
    large = np.random.default_rng(0).standard_normal((40, 50))
    some = worst_pairs(2, 50, "scores", large)
    assert len(some) <= 12
    together = np.abs([unit(large) @ (unit(pair.first) - unit(pair.second))[0] for pair in some])
    assert together.max(axis=0).min() > 0.01
    # One query in a batch is one query.
    assert [p.description for p in worst_pairs(2, 5, "scores", queries[:1])] == [
        p.description for p in worst_pairs(2, 5, "scores", queries[0])
    ]


@pytest.mark.parametrize(("n", "radius"), [(2, 0.5), (4, 1.0), (6, 2 * math.sqrt(10))])
def test_drift_pair(n: int, radius: float) -> None:
    """A drift moves the Gram matrix by the radius."""
    pair = drift_pair(n, 3, radius)
    assert pair.has_unit_rows
    rows = [side.astype(np.float64) for side in (pair.first, pair.second)]
    assert np.linalg.norm(rows[0] @ rows[0].T - rows[1] @ rows[1].T) == pytest.approx(radius, rel=1e-5)


def test_top_k_pairs_tie_for_the_first_place() -> None:
    tied = worst_pairs(4, 3, "top-k")[0]
    assert np.all(tied.first[:, 0] == 1)
    assert tied.second[:, 0].tolist() == [-1, 1, 1, 1]


def test_canaries_take_slots_in_turn() -> None:
    rows, canaries = np.eye(3), -np.eye(3)[[0, 1, 2, 0]]
    pairs = from_canaries(rows, canaries)
    assert [pair.index for pair in pairs] == [0, 1, 2, 0]
    assert np.array_equal(pairs[1].first[1], canaries[1])
    assert np.array_equal(pairs[1].second, rows)


def test_a_pair_is_frozen_and_its_own() -> None:
    rows = np.eye(3)
    pair = replace_record(rows, 1, rows[0], rows[2], "x")
    rows[0] = 9.0
    assert pair.first[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        pair.first[0] = 0.0
    assert np.array_equal(pair.swap().first, pair.second)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pair(np.eye(2), np.eye(3), 0, ""), "first collection's shape"),
        (lambda: Pair(np.eye(2), -np.eye(2), 0, ""), "neighbours differ in one record"),
        (lambda: replace_record(np.eye(2), 0, [0.0, 1.0], [0.0, math.nan], ""), "finite numbers"),
        (lambda: Pair(np.eye(2), np.eye(2), 2, ""), "position below 2"),
        (lambda: Pair(np.eye(2), np.eye(2), 0.5, ""), "whole number"),  # type: ignore[arg-type]
        (lambda: Pair(np.ones(3), np.ones(3), 0, ""), "finite numbers"),
        (lambda: worst_pairs(0, 2, "scores"), "at least 1"),
        (lambda: worst_pairs(2, 2, "cosines"), "one of 'scores'"),
        (lambda: worst_pairs(2, 2, "scores", [1.0, 2.0, 3.0]), "vector of 2 finite numbers"),
        (lambda: worst_pairs(2, 2, "scores", [0.0, 0.0]), "not zero"),
        (lambda: worst_pairs(2, 2, "scores", index=2), "position below 2"),
        (lambda: worst_pairs(2, 2, "scores", [[1.0, 2.0], [0.0, 0.0]]), "not zero"),
        (lambda: worst_pairs(2, 2, "scores", [[1.0, math.inf]]), "finite numbers"),
        (lambda: drift_pair(3, 3, 4.1), "at most 4, the replacement"),
        (lambda: drift_pair(1, 3, 1.0), "at least 2"),
        (lambda: from_canaries(np.eye(3), np.eye(2)), "rows of length 3"),
        (lambda: from_canaries(np.eye(3), np.empty((0, 3))), "finite numbers"),
        (lambda: climb(len, random_pair(2, 2, 0), rounds=0), "at least 1"),
    ],
)
def test_bad_input_is_one_sentence(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_climb_finds_leak() -> None:
    """The release leaks along one direction only; a random start in eight dimensions misses most of it."""
    secret = np.eye(8)[3]

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rows @ secret + 0.5 * rng.standard_normal(len(rows))

    start = random_pair(3, 8, seed=5)
    found = climb(release, start, rounds=60, releases=256, seed=1)
    gaps = [abs(float((pair.first - pair.second)[pair.index] @ secret)) for pair in (start, found)]
    assert gaps[1] > gaps[0] + 0.5
    assert "climbing" in found.description
    assert found.has_unit_rows


def test_climb_finds_record() -> None:
    """Only the last of five records is released without much noise."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rows[:, 0] + rng.standard_normal(len(rows)) * [5, 5, 5, 5, 0.1]

    found = climb(release, random_pair(5, 3, seed=2), rounds=100, releases=64, seed=4)
    assert found.index == 4
    assert "record 4 of 5" in found.description


def test_climbing_stays_where_nothing_leaks() -> None:
    start = random_pair(2, 3, seed=0)
    found = climb(lambda rows: np.zeros(len(rows)), start, rounds=5, releases=32)
    assert found is start
