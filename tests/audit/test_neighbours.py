"""Pairs of neighbours: that they are neighbours, and that they move a release as far as the sensitivity says."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.audit.neighbours import (
    KINDS,
    Pair,
    drift_pair,
    from_canaries,
    list_diagonal_pairs,
    list_pairs,
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
        (lambda: list_pairs(2, 2, [1.0, 2.0, 3.0]), "vector of 2 finite numbers"),
        (lambda: list_pairs(2, 2, [[1.0, 2.0], [0.0, 0.0]]), "not zero"),
    ],
)
def test_bad_input_is_one_sentence(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


# ---- Lists of pairs.

BATCH = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])
SETTINGS = [
    (8, 8, None),
    (5, 3, np.array([3.0, -4.0, 0.5])),
    (1, 4, None),
    (2, 2, None),
    (30, 2, None),
    (4, 1, None),
    (1, 1, None),
    (6, 4, BATCH),
    (1, 4, BATCH),
    (3, 1, np.array([[1.0], [-2.0]])),
]
#: In one dimension no unit vector scores anything else than 1 or -1.
PLANE = [setting for setting in SETTINGS if setting[1] > 1]
each_setting = pytest.mark.parametrize(("n", "d", "query"), SETTINGS, ids=lambda value: str(np.shape(value) or value))
each_plane = pytest.mark.parametrize(("n", "d", "query"), PLANE, ids=lambda value: str(np.shape(value) or value))


def score(pair: Pair, query: np.ndarray | None) -> tuple[float, float, list[float]]:
    """Return the scores of the record on both sides, and those of the other records, sorted; to three decimals."""
    q = np.eye(pair.first.shape[1])[0] if query is None else query / np.linalg.norm(query)
    first, second = (np.round(side.astype(np.float64) @ q, 3) + 0.0 for side in (pair.first, pair.second))
    return float(first[pair.index]), float(second[pair.index]), sorted(np.delete(first, pair.index).tolist())


def identify(pair: Pair) -> tuple[object, ...]:
    """Return what equal pairs have in common, up to rounding errors."""
    return pair.first.shape, *((np.round(side, 5) + 0.0).tobytes() for side in (pair.first, pair.second))


@each_setting
def test_all_listed_pairs_are_neighbours(n: int, d: int, query: np.ndarray | None) -> None:
    for pair in list_pairs(n, d, query) + list_diagonal_pairs(n, d):
        assert pair.first.shape == pair.second.shape
        assert pair.first.shape[1] == d
        differ = np.flatnonzero((pair.first != pair.second).any(axis=1)).tolist()
        assert differ == [pair.index]
        assert f"record {pair.index} of {len(pair.first)}" in pair.description


@each_setting
def test_no_listed_pair_is_repeated(n: int, d: int, query: np.ndarray | None) -> None:
    pairs = list_pairs(n, d, query)
    assert len({identify(pair) for pair in pairs}) == len(pairs)
    assert len(pairs) < 200  # an audit draws from all of them at first


@each_setting
def test_unit_rows_come_first(n: int, d: int, query: np.ndarray | None) -> None:
    """Unit rows come first, and the last pairs have rows that are too long, too short and zero."""
    units = [pair.has_unit_rows for pair in list_pairs(n, d, query)]
    assert units == sorted(units, reverse=True)
    assert units[0]
    others = [pair for pair in list_pairs(n, d, query) if not pair.has_unit_rows]
    lengths = {
        round(float(np.linalg.norm(side[pair.index])), 3) for pair in others for side in (pair.first, pair.second)
    }
    assert {0.0, 0.01, 1.0, 3.0} <= lengths


@each_plane
def test_rows_are_what_descriptions_say(n: int, d: int, query: np.ndarray | None) -> None:
    """All rows but those of the last pairs are unit vectors, and both scores are those of the description."""
    for pair in list_pairs(n, d, query):
        assert pair.has_unit_rows == (not any(word in pair.description for word in ("too long", "too short", "zeros")))
        if said := re.match(r"a record that scores (\S+) against ([-.0-9]+)[ ;]", pair.description):
            first, second, _ = score(pair, None if query is None else np.atleast_2d(query)[0])
            assert (first, second) == pytest.approx([float(number) for number in said.groups()], abs=1e-3)


@pytest.mark.parametrize("n", [2, 8, 30])
def test_records_stand_at_all_ends(n: int) -> None:
    """The first, the last and the middle record are replaced, by the opposite and by one that scores 0."""
    query = np.array([0.6, 0.0, 0.8])
    for move in ((1, -1), (1, 0)):
        places = {pair.index for pair in list_pairs(n, 3, query) if score(pair, query) == (*move, [0.0] * (n - 1))}
        assert {0, n // 2, n - 1} <= places


def test_numbers_of_passing_records() -> None:
    """One pair for each number of other records that score 1, around small numbers and usual limits."""
    for low in (-1.0, 0.0):
        counts = {
            sum(other == 1 for other in others)
            for first, second, others in (score(pair, None) for pair in list_pairs(8, 4))
            if (first, second) == (1, low) and others.count(low) == 4 and set(others) <= {1.0, low}
        }
        assert {*range(13), 14, 15, 19, 20, 24, 25, 29, 30, 49, 50, 99, 100} <= counts


def test_sizes_and_backgrounds() -> None:
    """Small and large collections, with others that score 0, score 1, and are spread."""
    pairs = [score(pair, None) for pair in list_pairs(8, 4) if pair.has_unit_rows]
    for size in (1, 2, 3, 24, 120):
        beside = [others for first, second, others in pairs if (first, second, len(others)) == (1, -1, size - 1)]
        assert [0.0] * (size - 1) in beside
        assert [1.0] * (size - 1) in beside
        if size > 2:
            assert any(len(set(others)) == size - 1 and max(others) < 1 for others in beside)
    for move in ((1, -1), (1, 0), (0, -1)):
        beside = [others for first, second, others in pairs if (first, second) == move and len(others) == 7]
        for same in (0.0, 1.0, -1.0, 0.5, 0.05):
            assert [same] * 7 in beside
        assert any(set(others) == {-1.0, 1.0} and others.count(-1.0) > 2 for others in beside)
        assert any(others == [-1.0] + [1.0] * 6 for others in beside)
        # In tenths, on the edges of a histogram.
        assert any(len(set(others)) > 3 and all(10 * other % 1 in (0.0, 1.0) for other in others) for others in beside)


def test_scores_off_grids() -> None:
    """Some scores are no multiple of a step that a release may round to, and some differ little."""
    moves = {score(pair, None)[:2] for pair in list_pairs(8, 4)}
    assert {(0.731, -0.219), (1, 0.5), (1, 0.999)} <= moves


def test_list_for_batch() -> None:
    """A batch is tried along the direction that moves all scores, each of a few queries, and with others along it."""
    q = unit(BATCH)
    pairs = list_pairs(6, 4, BATCH)
    worst = np.linalg.norm(q @ (pairs[0].first - pairs[0].second)[0])
    assert worst == pytest.approx(ss.Replacement().sensitivity("scores", 6, queries=BATCH).l2, rel=1e-6)
    assert {1, 2, 6, 24} <= {len(pair.first) for pair in pairs}
    assert {0, 5} <= {pair.index for pair in pairs if len(pair.first) == 6}
    for one in q:
        assert any(
            np.allclose(p.first[p.index], one, atol=1e-6) and np.allclose(p.second[p.index], -one) for p in pairs
        )
    beside = [np.sign(np.delete(pair.first, pair.index, axis=0) @ q.T) for pair in pairs if len(pair.first) == 6]
    assert any((signs == 1).all() for signs in beside)
    assert any((signs == -1).all() for signs in beside)
    # The pairs of its first query are among them.
    assert {identify(pair) for pair in list_pairs(6, 4, BATCH[0])} <= {identify(pair) for pair in pairs}
    # One query in a batch is one query, and opposite queries have no sum.
    assert [p.description for p in list_pairs(2, 4, BATCH[:1])] == [p.description for p in list_pairs(2, 4, BATCH[0])]
    assert list_pairs(3, 4, np.stack([BATCH[0], -BATCH[0]]))


def test_queries_of_any_length() -> None:
    """A query that is no unit vector gives the pairs of its direction."""
    query = np.array([1.0, -2.0, 0.5])
    for one, other in zip(list_pairs(4, 3, query), list_pairs(4, 3, 8 * query), strict=True):
        assert np.array_equal(one.first, other.first)


@pytest.mark.parametrize(("n", "d"), [(8, 8), (5, 3), (2, 2), (1, 4)])
def test_diagonal_pairs(n: int, d: int) -> None:
    """A record moves along all axes at once, alone, beside one record and among all."""
    pairs = list_diagonal_pairs(n, d)
    assert {len(pair.first) for pair in pairs} == {1, 2, n}
    diagonal = np.full(d, 1 / math.sqrt(d))
    beside = set()
    for pair in pairs:
        assert pair.has_unit_rows
        assert np.allclose(pair.first[pair.index], diagonal)
        assert np.allclose(pair.second[pair.index], -diagonal)
        beside |= set(np.round(np.delete(pair.first, pair.index, axis=0) @ diagonal, 3).tolist())
    assert {round(abs(other), 3) for other in beside} == {0.0, 1.0}


@each_plane
def test_descriptions_are_distinct(n: int, d: int, query: np.ndarray | None) -> None:
    """A report names one pair, so two pairs must not have one description."""
    descriptions = [pair.description for pair in list_pairs(n, d, query)]
    assert sorted(set(descriptions)) == sorted(descriptions)


@pytest.mark.parametrize("n", [1, 4])
def test_pairs_of_one_dimension(n: int) -> None:
    """In one dimension, where unit rows score 1 or -1, a pair of unit rows differs and has a true description."""
    pairs = list_pairs(n, 1)
    assert len({pair.description for pair in pairs}) == len(pairs)
    assert any(set(np.delete(pair.first, pair.index)) == {-1.0, 1.0} for pair in pairs)
    for pair in [*pairs, *worst_pairs(n, 1, "scores")]:
        assert not np.array_equal(pair.first, pair.second)
        assert "score 0" not in pair.description
        assert pair.has_unit_rows == (not any(word in pair.description for word in ("too long", "too short", "zeros")))


def test_no_diagonal_pair_is_repeated() -> None:
    pairs = list_diagonal_pairs(8, 8)
    assert len({identify(pair) for pair in pairs}) == len(pairs)
