"""What a task may read, and what it says of anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import tasks
from scoreshield.tasks import _reading

Array = np.ndarray


@pytest.fixture
def gram(collection: Array) -> ss.GramRelease:
    return ss.release_gram(collection, epsilon=20, delta=1e-6, adjacency=ss.GramRadius(2.0), rng=1)


def test_a_gram_release_in_both_views(gram: ss.GramRelease) -> None:
    """A Gram release is read in both views."""
    assert _reading.read_similarities(gram, "feasible") is gram.gram
    assert _reading.read_similarities(gram, "noisy") is gram.noisy


def test_a_factored_release_has_one_view(gram: ss.GramRelease) -> None:
    """A factored release has one view."""
    factored = gram.factored()
    assert np.array_equal(_reading.read_similarities(factored, "feasible"), factored.gram)
    with pytest.raises(ss.InvalidInput, match="use view='feasible'"):
        _reading.read_similarities(factored, "noisy")


@pytest.mark.parametrize("view", ["feasible", "noisy"])
def test_an_index_is_read_unbiased(collection: Array, view: str) -> None:
    """An index is read unbiased."""
    index = ss.release_index(collection, epsilon=3, use="pairs", rng=1)
    matrix = _reading.read_similarities(index, view)
    assert np.array_equal(matrix, index.gram())
    assert np.abs(matrix).max() > 1
    assert 0 <= tasks.knn_accuracy(index, np.arange(40) % 2, view=view) <= 1


def test_single_precision_products(rng: np.random.Generator) -> None:
    """Products in single precision are symmetric enough."""
    rows = rng.standard_normal((50, 300)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    matrix = rows @ rows.T
    matrix[3, 4] += np.float32(1e-6)
    assert _reading.read_similarities(matrix, "feasible").dtype == np.float64
    matrix[3, 4] += np.float32(1e-3)
    with pytest.raises(ss.InvalidInput, match="symmetric"):
        _reading.read_similarities(matrix, "feasible")


@pytest.mark.parametrize(
    "release",
    [
        None,
        "gram",
        3.0,
        [],
        [[1.0]],
        [[1.0, 0.5]],
        [1.0, 0.5],
        [[1.0, np.nan], [np.nan, 1.0]],
        [[1.0, np.inf], [np.inf, 1.0]],
        [[1.0, 0.5], [0.4, 1.0]],
        [["a", "b"], ["b", "a"]],
        [[1.0, 2.0], [1.0]],
        np.ma.masked_array(np.eye(2)),
        np.eye(2, dtype=complex),
        np.ones((2, 2, 2)),
    ],
)
def test_what_is_no_matrix(release: Any) -> None:
    """A value that is no matrix raises an error."""
    calls = (
        lambda: tasks.knn_accuracy(release, [0, 1], 1),
        lambda: tasks.instance_retrieval(release, [0, 0]),
        lambda: tasks.spectral_clustering(release, 1),
        lambda: tasks.clustering_nmi(release, [0, 1]),
        lambda: tasks.sts_spearman(release, [[0, 1]], [1.0]),
        lambda: tasks.evaluate_verification(release, [True, False], pairs=[[0, 1], [1, 0]]),
    )
    for call in calls:
        with pytest.raises(ss.InvalidInput, match="'release' parameter of") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(" instead.")


def test_releases_without_similarities(collection: Array, query: Array) -> None:
    """A release without similarities raises an error."""
    releases = (
        ss.release_scores(collection, query, epsilon=5, delta=1e-6, rng=1),
        ss.release_top_k(collection, query, 3, epsilon=5, rng=1),
        ss.release_matches(collection, query, 0.2, epsilon=3, rng=1),
    )
    for release in releases:
        with pytest.raises(ss.InvalidInput, match="a Gram, factored Gram or index release"):
            tasks.instance_retrieval(release, np.arange(40) % 2)
    with pytest.raises(ss.InvalidInput, match="a Gram, factored Gram or index release"):
        tasks.evaluate_verification(releases[1], np.arange(40) % 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"labels": [True, False]}, "of shape (3,)"),
        ({"labels": [1, 1, 1]}, "at least one of each"),
        ({"labels": [0, 0, 0]}, "at least one of each"),
        ({"labels": [0, 1, 2]}, "True or False"),
        ({"labels": [0.0, 1.0, 1.0]}, "True or False"),
        ({"labels": ["a", "b", "a"]}, "True or False"),
        ({"labels": None}, "'labels'"),
        ({"labels": [[0], [1, 0]]}, "'labels'"),
        ({"release": [0.1, np.nan, 0.2]}, "'release'"),
        ({"release": []}, "'release'"),
        ({"release": "abc"}, "'release'"),
        ({"release": [[0.1, 0.2], [0.3]]}, "'release'"),
        ({"folds": [0, 0, 0]}, "at least two different"),
        ({"folds": [0, 1]}, "of shape (3,)"),
        ({"folds": [0.0, 1.0, 2.0]}, "'folds'"),
        ({"folds": [0, -1, 1]}, "'folds'"),
        ({"folds": [0, 1, 1]}, "each fold leaves genuine and impostor pairs in the others"),
        ({"release": np.eye(3), "labels": [0, 0, 0]}, "two are equal and two are not"),
        ({"release": np.eye(3), "labels": [0, 1, 2]}, "two are equal and two are not"),
        ({"release": np.eye(3), "labels": [True, False], "pairs": [[0, 3], [0, 1]]}, "below 3"),
        ({"release": np.eye(3), "labels": [True], "pairs": [[0, 2], [0, 1]]}, "of shape (2,)"),
    ],
)
def test_bad_verification(given: dict[str, Any], says: str) -> None:
    """A bad argument of verification raises an error."""
    with pytest.raises(ss.InvalidInput, match="verification") as caught:
        tasks.evaluate_verification(**{"release": [0.1, 0.5, 0.4], "labels": [False, True, True], **given})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pairs_belong_to_a_matrix(collection: Array, query: Array) -> None:
    """Pairs belong to a matrix."""
    release = ss.release_scores(collection, query, epsilon=5, delta=1e-6, rng=1)
    with pytest.raises(ss.InvalidInput, match="'pairs'"):
        tasks.evaluate_verification(release, np.arange(40) % 2, pairs=[[0, 1]])


@pytest.mark.parametrize("fpr", [0, -0.1, 1.1, np.nan, "0.1", None])
def test_bad_rates(fpr: Any) -> None:
    """A bad rate raises an error."""
    with pytest.raises(ss.InvalidInput, match=r"'fpr' parameter of Verification\.tar_at"):
        tasks.evaluate_verification([0.1, 0.5], [False, True]).tar_at(fpr)


def test_a_release_is_not_changed(gram: ss.GramRelease) -> None:
    """A release is not changed."""
    before = gram.gram.copy()
    labels = np.arange(40) % 3
    tasks.knn_accuracy(gram, labels)
    tasks.instance_retrieval(gram, labels)
    tasks.clustering_nmi(gram, labels, neighbours=3)
    tasks.evaluate_verification(gram, labels)
    assert np.array_equal(gram.gram, before)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_largest_of_each_row(k: int, rng: np.random.Generator) -> None:
    """The k largest of each row are found."""
    values = rng.integers(0, 4, (50, 8)).astype(float)
    chosen = _reading.find_largest(values, k, 0)
    for row, places in zip(values, chosen, strict=True):
        assert len(set(places.tolist())) == k
        assert sorted(row[places]) == sorted(row)[8 - k :]
