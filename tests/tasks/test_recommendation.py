"""Collaborative filtering against the formula in plain loops, and on MovieLens where it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import tasks
from scoreshield.tasks import RatingTable

Array = np.ndarray


def by_loop(matrix: Array, train: RatingTable, test: RatingTable, neighbours: int | None) -> tuple[list[float], int]:
    """The formula, one prediction after another."""
    known = {(int(u), int(i)): float(r) for u, i, r in zip(train.users, train.items, train.ratings, strict=True)}
    mean: dict[int, float] = {}
    for user in range(len(matrix)):
        own = [r for (u, _), r in known.items() if u == user]
        mean[user] = float(np.mean(own)) if own else float(train.ratings.mean())
    predicted, fallbacks = [], 0
    for user, item in zip(test.users.tolist(), test.items.tolist(), strict=True):
        raters = [v for v in range(len(matrix)) if (v, item) in known and v != user]
        raters.sort(key=lambda v: -matrix[user, v])
        near = raters[:neighbours]
        weight = sum(abs(matrix[user, v]) for v in near)
        shift = sum(matrix[user, v] * (known[v, item] - mean[v]) for v in near) / weight if weight else 0.0
        fallbacks += weight == 0
        predicted.append(min(5.0, max(1.0, mean[user] + shift)))
    return predicted, fallbacks


@pytest.fixture
def ratings(rng: np.random.Generator) -> tuple[Array, RatingTable, RatingTable]:
    """Twenty users, the last without training ratings; the last item is in the test alone."""
    cells = rng.permutation(19 * 14)[:120]
    train = RatingTable(cells // 14, cells % 14, rng.integers(1, 6, 120))
    left = np.setdiff1d(np.arange(20 * 15), (cells // 14) * 15 + cells % 14)
    chosen = rng.choice(left, 70, replace=False)
    chosen[:2] = (19 * 15 + 3, 2 * 15 + 14)
    chosen = np.unique(chosen)
    test = RatingTable(chosen // 15, chosen % 15, rng.integers(1, 6, len(chosen)))
    matrix = rng.standard_normal((20, 20))
    return matrix + matrix.T, train, test


@pytest.mark.parametrize("neighbours", [None, 1, 3, 100])
def test_against_the_formula(ratings: tuple[Array, RatingTable, RatingTable], neighbours: int | None) -> None:
    """The predictions agree with the formula."""
    matrix, train, test = ratings
    expected, fallbacks = by_loop(matrix, train, test, neighbours)
    found = tasks.collaborative_filtering(matrix, train, test, neighbours=neighbours)
    assert found.predicted == pytest.approx(expected)
    assert found.fallbacks == fallbacks > 0
    assert found.rmse == pytest.approx(np.sqrt(np.mean((np.array(expected) - test.ratings) ** 2)))
    assert found.mae == pytest.approx(np.mean(np.abs(np.array(expected) - test.ratings)))


def test_a_case_by_hand() -> None:
    """User 0 has mean 3. Users 1 (+1 on item 2, similarity 0.5) and 2 (-2, similarity -0.25): (0.5 + 0.5)/0.75."""
    train = RatingTable([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 2, 1], [2, 4, 4, 2, 1, 5])
    test = RatingTable([0, 0], [2, 3], [4.0, 5.0])
    matrix = np.array([[1, 0.5, -0.25], [0.5, 1, 0], [-0.25, 0, 1]])
    found = tasks.collaborative_filtering(matrix, train, test)
    assert found.predicted == pytest.approx([3 + 1 / 0.75, 3.0])
    assert found.fallbacks == 1
    near = tasks.collaborative_filtering(matrix, train, test, neighbours=1)
    assert near.predicted == pytest.approx([4.0, 3.0])
    assert near.rmse == pytest.approx(np.sqrt(2))
    assert near.mae == pytest.approx(1.0)
    clipped = tasks.collaborative_filtering(matrix, train, test, scale=(1, 3.5))
    assert clipped.predicted == pytest.approx([3.5, 3.0])


def test_no_one_is_his_own_neighbour() -> None:
    """Where a pair is in both tables, the user's own rating does not answer."""
    train = RatingTable([0, 0, 1, 1], [0, 1, 0, 1], [5, 1, 2, 4])
    test = RatingTable([0], [0], [5.0])
    matrix = np.array([[1, 0.4], [0.4, 1]])
    for neighbours in (None, 1, 2):
        assert tasks.collaborative_filtering(matrix, train, test, neighbours=neighbours).predicted == [2.0]


def test_weights_zero_fall_back_mean() -> None:
    """Weights of zero fall back to the mean."""
    train = RatingTable([0, 0, 1, 1], [0, 1, 2, 1], [5, 1, 2, 4])
    test = RatingTable([0], [2], [5.0])
    for neighbours in (None, 1):
        found = tasks.collaborative_filtering(np.eye(2), train, test, neighbours=neighbours)
        assert (found.predicted.tolist(), found.fallbacks) == ([3.0], 1)


def test_a_release_is_read_in_its_view(ratings: tuple[Array, RatingTable, RatingTable]) -> None:
    """A release is read in its view."""
    _, train, test = ratings
    vectors = tasks.user_vectors(train, 20, 15)
    release = ss.release_gram(vectors, epsilon=10, delta=1e-6, adjacency=ss.GramRadius(2.0), rng=1)
    for view, matrix in (("feasible", release.gram), ("noisy", release.noisy)):
        found = tasks.collaborative_filtering(release, train, test, view=view)
        assert found.predicted == pytest.approx(by_loop(matrix, train, test, None)[0])


def test_vectors_of_users() -> None:
    """User 1 gave everything the same (in tenths, whose mean is not exact) and user 2 nothing: the last direction."""
    train = RatingTable([0, 0, 1, 1, 1], [0, 2, 0, 1, 2], [1, 4, 0.1, 0.1, 0.1])
    vectors = tasks.user_vectors(train, 3, 3)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[-1.5, 0, 1.5, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    ss.release_gram(vectors, epsilon=1, delta=1e-6, projection="none")  # no row is zero


def test_a_users_vector_is_his_own(ratings: tuple[Array, RatingTable, RatingTable]) -> None:
    """The vector of a user depends only on the ratings of this user."""
    _, train, _ = ratings
    moved = train.ratings.copy()
    moved[train.users == 4] = 6 - moved[train.users == 4]
    other = RatingTable(train.users, train.items, moved)
    changed = np.any(tasks.user_vectors(train, 20, 14) != tasks.user_vectors(other, 20, 14), axis=1)
    assert np.flatnonzero(changed).tolist() == [4]


def test_a_table_keeps_its_own_copy() -> None:
    """A table keeps its own copy."""
    users = np.array([0, 1])
    table = RatingTable(users, [0, 0], [1.0, 2.0])
    users[0] = 7
    assert table.users.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        table.ratings[0] = 3
    assert repr(table) == "<RatingTable of 2 ratings>"
    assert len(table) == 2


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (([], [], []), "'users'"),
        (([0], [0, 1], [1.0]), "as long as 'users', which has 1 entries"),
        (([0, 1], [0, 1], [1.0]), "as long as 'users', which has 2 entries"),
        (([0.0], [0], [1.0]), "'users'"),
        (([0], [-1], [1.0]), "'items'"),
        (([0], [0], [np.nan]), "finite"),
        (([0], [0], ["a"]), "'ratings'"),
        (([[0]], [[0]], [[1.0]]), "'users'"),
        (([0, 0], [3, 3], [1.0, 2.0]), "no user rates an item twice"),
    ],
)
def test_bad_tables(columns: tuple[Any, Any, Any], says: str) -> None:
    """A bad table raises an error."""
    with pytest.raises(ss.InvalidInput, match="RatingTable") as caught:
        RatingTable(*columns)
    assert says in str(caught.value)


TABLE = RatingTable([0, 1], [0, 1], [1.0, 2.0])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"train": RatingTable([2], [0], [1.0])}, "'train'"),
        ({"test": RatingTable([2], [0], [1.0])}, "users below 2"),
        ({"train": None}, "'train'"),
        ({"test": [[0, 0, 1.0]]}, "'test'"),
        ({"neighbours": 0}, "'neighbours'"),
        ({"scale": (5, 1)}, "'scale'"),
        ({"scale": 5}, "'scale'"),
        ({"scale": (1, np.inf)}, "'scale'"),
        ({"seed": 1.0}, "'seed'"),
        ({"release": np.ones(4)}, "symmetric"),
    ],
)
def test_bad_input(given: dict[str, Any], says: str) -> None:
    """A bad argument raises an error."""
    with pytest.raises(ss.InvalidInput, match="collaborative_filtering") as caught:
        tasks.collaborative_filtering(**{"release": np.eye(2), "train": TABLE, "test": TABLE, **given})
    assert says in str(caught.value)


@pytest.mark.parametrize(("users", "items"), [(1, 2), (2, 1), (0, 2), (2, "2")])
def test_bad_sizes_of_vectors(users: Any, items: Any) -> None:
    """Bad sizes of vectors raise an error."""
    with pytest.raises(ss.InvalidInput, match="user_vectors"):
        tasks.user_vectors(TABLE, users, items)


def test_real_ratings(shared_data: Path) -> None:
    """The official first split: RMSE 0.948 with 40 neighbours, as the data state; no one needs the last direction."""
    rows = np.loadtxt(shared_data / "ml100k_ratings.csv", delimiter=",", skiprows=1, dtype=np.int64)
    users, items, stars, fold = rows[:, 0] - 1, rows[:, 1] - 1, rows[:, 2], rows[:, 4]
    for number in range(1, 6):
        kept = fold != number
        vectors = tasks.user_vectors(RatingTable(users[kept], items[kept], stars[kept]), 943, 1682)
        assert not vectors[:, -1].any()
    train, test = (RatingTable(users[part], items[part], stars[part]) for part in (fold != 1, fold == 1))
    vectors = tasks.user_vectors(train, 943, 1682).astype(float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = vectors @ vectors.T
    near = tasks.collaborative_filtering(gram, train, test, neighbours=40)
    assert near.rmse == pytest.approx(0.948, abs=0.01)
    assert len(near.predicted) == 20_000
    means = tasks.collaborative_filtering(np.eye(943), train, test)
    assert means.rmse == pytest.approx(1.063, abs=5e-4)  # the figure stated for the user's mean
    assert means.fallbacks == 20_000
