"""Collaborative filtering by released similarities of users.

    r̂_ui = r̄_u + (Σ_v s_uv (r_vi - r̄_v)) / (Σ_v |s_uv|)

over users v who rated i (Resnick et al. 1994), all of them or those most similar to u. Only the similarities s come
from the release. Ratings and their means are taken as known to the recommender. So the guarantee covers the similarity
matrix, and not what the ratings themselves reveal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from scoreshield import _validation
from scoreshield._validation import check_count, optional, validate, whole_from
from scoreshield.releases.results import Release
from scoreshield.tasks import _reading
from scoreshield.tasks._reading import Float, View, Whole


@dataclass(frozen=True, eq=False, repr=False)
class RatingTable:
    """Ratings as three columns: user numbers from 0, item numbers from 0, and ratings. A pair occurs at most once."""

    users: Whole
    items: Whole
    ratings: Float

    @validate()
    def __post_init__(self) -> None:
        must = "a vector of whole numbers, none negative, at least one"
        users = _reading.read_whole_numbers(self.users, "users", must)
        items = _reading.read_whole_numbers(self.items, "items", must)
        ratings = _reading.read_numbers(self.ratings, "ratings", "a vector of finite numbers, at least one")
        if users.ndim != 1:
            _validation.reject("users", must, self.users)
        for name, column in (("items", items), ("ratings", ratings)):
            if column.shape != users.shape:
                _validation.reject(name, f"as long as 'users', which has {len(users)} entries", column)
        if len(np.unique(np.stack([users, items]), axis=1).T) != len(users):
            _validation.reject("items", "such that no user rates an item twice", items)
        for name, column in (("users", users), ("items", items), ("ratings", ratings)):
            copy = column.copy()
            copy.flags.writeable = False
            object.__setattr__(self, name, copy)

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<RatingTable of {len(self):,} ratings>"


@dataclass(frozen=True, eq=False)
class Recommendation:
    """Predicted ratings and their error.

    Attributes:
        rmse: The root mean squared error.
        mae: The mean absolute error.
        predicted: One prediction for each row of the test table.
        fallbacks: The number of predictions without a neighbour who rated the item. They are the user's mean, or the
            mean of all ratings for a user without ratings.
    """

    rmse: float
    mae: float
    predicted: Float = field(repr=False)
    fallbacks: int


def _check_rating_scale(value: Any, name: str) -> tuple[float, float]:
    """Check for a pair of finite numbers, the least and the largest rating."""
    must = "a pair of finite numbers, the least and the largest rating"
    if not isinstance(value, list | tuple) or len(value) != 2:
        _validation.reject(name, must, value)
    low, high = (_validation.check_real(end, name, must) for end in value)
    if low >= high:
        _validation.reject(name, must, value)
    return low, high


@validate(neighbours=optional(check_count), scale=_check_rating_scale, seed=whole_from(0))
def collaborative_filtering(
    release: Release | ArrayLike,
    train: RatingTable,
    test: RatingTable,
    *,
    neighbours: int | None = None,
    scale: tuple[float, float] = (1.0, 5.0),
    seed: int = 0,
    view: View = "feasible",
) -> Recommendation:
    """Predict the test ratings from the training ratings of similar users.

    Args:
        release: Pairwise similarities of users: a Gram or index release, or a symmetric matrix, which is read as it
            is and carries no promise. User numbers in the tables are its rows.
        train: The known ratings.
        test: The ratings to predict.
        neighbours: The number of users who rated the item that count, the most similar ones; None counts all.
        scale: The least and the largest rating; predictions are clipped to it.
        seed: Fixes the order of equally similar users.
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    matrix = _reading.read_similarities(release, view)
    for name, table in (("train", train), ("test", test)):
        if not isinstance(table, RatingTable) or table.users.max() >= len(matrix):
            _validation.reject(name, f"a RatingTable of users below {len(matrix)}", table)
    low, high = scale
    means = _compute_user_means(train, len(matrix))
    centred = train.ratings - means[train.users]
    if neighbours is None:
        total, weight = _sum_all_raters(matrix, train, centred, test)
    else:
        total, weight = _sum_nearest_raters(matrix, train, centred, test, neighbours, seed)
    shift = np.divide(total, weight, out=np.zeros(len(test)), where=weight > 0)
    predicted = np.clip(means[test.users] + shift, low, high)
    error = predicted - test.ratings
    return Recommendation(
        rmse=math.sqrt(float(np.mean(error**2))),
        mae=float(np.mean(np.abs(error))),
        predicted=predicted,
        fallbacks=int((weight == 0).sum()),
    )


@validate(users=check_count, items=check_count)
def user_vectors(train: RatingTable, users: int, items: int) -> NDArray[np.float32]:
    """Make mean-centred rating vectors, (users, items + 1), whose cosines are the similarities of users.

    An item without a rating is 0. A user without ratings, or with equal ratings, would have the zero
    vector, which has no cosine. By a public rule such a user gets the last direction, which is 0 for everyone else.
    Each row depends on that user's own ratings alone, so replacing a user replaces one row.
    """
    if not isinstance(train, RatingTable) or train.users.max() >= users or train.items.max() >= items:
        _validation.reject("train", f"a RatingTable of users below {users} and items below {items}", train)
    least, most = np.full(users, np.inf), np.full(users, -np.inf)
    np.minimum.at(least, train.users, train.ratings)
    np.maximum.at(most, train.users, train.ratings)
    flat = least >= most
    vectors = np.zeros((users, items + 1), dtype=np.float32)
    vectors[train.users, train.items] = train.ratings - _compute_user_means(train, users)[train.users]
    vectors[flat] = 0.0  # a mean of equal ratings may have a rounding error
    vectors[flat, items] = 1.0
    return vectors


def _compute_user_means(train: RatingTable, users: int) -> Float:
    """Compute each user's mean rating; for a user without ratings, the mean of all ratings."""
    count = np.bincount(train.users, minlength=users)
    total = np.bincount(train.users, weights=train.ratings, minlength=users)
    return np.where(count > 0, total / np.maximum(count, 1), train.ratings.mean())


def _sum_all_raters(matrix: Float, train: RatingTable, centred: Float, test: RatingTable) -> tuple[Float, Float]:
    """Compute weighted sums over all other users who rated the item, and the sums of absolute weights."""
    shape = (len(matrix), int(max(train.items.max(), test.items.max())) + 1)
    places = (train.users, train.items)
    weights = matrix.copy()
    np.fill_diagonal(weights, 0.0)
    total = weights @ sparse.csr_array((centred, places), shape=shape)
    weight = np.abs(weights) @ sparse.csr_array((np.ones(len(train)), places), shape=shape)
    return total[test.users, test.items], weight[test.users, test.items]


def _sum_nearest_raters(
    matrix: Float, train: RatingTable, centred: Float, test: RatingTable, neighbours: int, seed: int
) -> tuple[Float, Float]:
    """Compute the same over the most similar of them: (test row, rater) pairs, sorted by row, then by similarity."""
    n = len(matrix)
    order = _reading.sort_descending(_reading.mask_diagonal(matrix), seed)
    closeness = np.empty_like(order)
    np.put_along_axis(closeness, order, np.broadcast_to(np.arange(n), order.shape), axis=1)

    row, entry = _list_raters(train, test)
    other = train.users[entry] != test.users[row]
    row, entry = row[other], entry[other]
    sequence = np.argsort(row * n + closeness[test.users[row], train.users[entry]])
    row, entry = row[sequence], entry[sequence]
    near = np.arange(len(row)) - np.searchsorted(row, row) < neighbours
    row, entry = row[near], entry[near]

    weights = matrix[test.users[row], train.users[entry]]
    total: Any = np.bincount(row, weights=weights * centred[entry], minlength=len(test))
    weight: Any = np.bincount(row, weights=np.abs(weights), minlength=len(test))
    return total, weight


def _list_raters(train: RatingTable, test: RatingTable) -> tuple[Whole, Whole]:
    """Return the training entries of each test row's item, in turn: row numbers and entry numbers."""
    by_item = np.argsort(train.items, kind="stable")
    sorted_items = train.items[by_item]
    start = np.searchsorted(sorted_items, test.items)
    count = np.searchsorted(sorted_items, test.items, side="right") - start
    row = np.repeat(np.arange(len(test)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, by_item[np.repeat(start, count) + within]
