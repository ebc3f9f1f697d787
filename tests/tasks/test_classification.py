"""Nearest neighbours against a loop that sorts, cases by hand for every tie, and real images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import tasks

Array = np.ndarray


def by_loop(matrix: Array, labels: list[str], k: int) -> float:
    """Majority vote, more frequent class, then sorted order, in plain Python."""
    right = 0
    for i, row in enumerate(matrix):
        near = sorted((j for j in range(len(row)) if j != i), key=lambda j: -row[j])[:k]
        votes = [labels[j] for j in near]
        best = sorted(set(labels), key=lambda name: (-votes.count(name), -labels.count(name), name))[0]
        right += best == labels[i]
    return right / len(matrix)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 29])
def test_against_a_loop(k: int, rng: np.random.Generator) -> None:
    """Without equal similarities; even k and few records make equal votes common."""
    matrix = rng.standard_normal((30, 30))
    matrix = matrix + matrix.T
    labels = [("b", "a", "c", "b", "a", "d")[i] for i in rng.integers(0, 6, 30)]
    assert tasks.knn_accuracy(matrix, labels, k) == pytest.approx(by_loop(matrix, labels, k))


def test_equal_votes() -> None:
    """Equal votes go to the larger class, then to the first."""
    scores = np.array([[0.9, 0.8, 0.1, 0.0, -0.1]])
    assert tasks.knn_accuracy(scores, ["z", "a", "z", "b", "b"], 2, query_labels=["z"]) == 1.0  # 2 z, 1 a
    assert tasks.knn_accuracy(scores, ["z", "a", "z", "a", "b"], 2, query_labels=["a"]) == 1.0  # 2 of each


def test_a_record_is_not_its_own_neighbour() -> None:
    """A record is not its own neighbour."""
    matrix = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])
    assert tasks.knn_accuracy(matrix, [0, 1, 0], 1) == 0.0
    assert tasks.knn_accuracy(matrix, [0, 0, 1], 1) == pytest.approx(2 / 3)


def test_equal_similarities_broken_random() -> None:
    """600 queries see ten equal records, one of them of class 1: it votes in a tenth of them, wherever it stands."""
    scores = np.zeros((600, 11))
    scores[:, 10] = -1
    for place in (0, 9):
        labels = np.zeros(11, dtype=int)
        labels[place] = 1
        labels[10] = 2
        share = tasks.knn_accuracy(scores, labels, 1, query_labels=np.ones(600, dtype=int), seed=5)
        assert share == pytest.approx(0.1, abs=5.33 * np.sqrt(0.09 / 600))
        assert share == tasks.knn_accuracy(scores, labels, 1, query_labels=np.ones(600, dtype=int), seed=5)
        assert tasks.knn_accuracy(scores, labels, 1, query_labels=np.full(600, 2)) == 0.0


def test_queries_against_gallery_noisy(collection: Array, rng: np.random.Generator) -> None:
    """Queries are classified by their noisy scores."""
    queries = rng.standard_normal((12, 8))
    release = ss.release_scores(collection, queries, epsilon=5, delta=1e-6, rng=2)
    labels, wanted = np.arange(40) % 2, np.arange(12) % 2
    near = np.argsort(-release.noisy, axis=1)[:, :3]
    expected = np.mean((labels[near].sum(axis=1) >= 2) == wanted)
    assert tasks.knn_accuracy(release, labels, 3, query_labels=wanted) == expected
    assert tasks.knn_accuracy(release.noisy, labels, 3, query_labels=wanted) == expected


def test_a_row_does_not_vote_for_itself(collection: Array) -> None:
    """A row does not vote for itself."""
    release = ss.release_row(collection, 7, epsilon=1e6, delta=1e-6, rng=2)
    labels = np.arange(40)
    assert tasks.knn_accuracy(release, labels, 1, query_labels=[7]) == 0.0
    second = int(np.argsort(-release.noisy)[1])
    assert tasks.knn_accuracy(release, labels, 1, query_labels=[second]) == 1.0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"k": 0}, "'k'"),
        ({"k": 4}, "from 1 to 3, the records that can vote"),
        ({"k": 2.0}, "'k'"),
        ({"labels": [0, 1, 2]}, "4 class labels"),
        ({"labels": [0, 1, np.nan, 2]}, "none missing"),
        ({"labels": [0, 1, None, 2]}, "none missing"),
        ({"labels": [[0, 1], [2, 3]]}, "4 class labels"),
        ({"query_labels": [0, 1]}, "'query_labels'"),
        ({"query_labels": ["a", "b", "c", "d"]}, "both strings or both numbers"),
        ({"seed": -1}, "'seed'"),
        ({"view": "clean"}, "one of 'feasible', 'noisy'"),
        ({"release": np.ones((4, 3))}, "symmetric matrix"),
    ],
)
def test_bad_input(given: dict[str, object], says: str) -> None:
    """A bad argument raises an error."""
    with pytest.raises(ss.InvalidInput, match="knn_accuracy") as caught:
        tasks.knn_accuracy(**{"release": np.eye(4), "labels": [0, 1, 0, 1], "k": 1, **given})
    assert says in str(caught.value)


def test_scores_need_labels_of_their_queries(collection: Array, query: Array) -> None:
    """Scores need labels of their queries."""
    release = ss.release_scores(collection, query, epsilon=5, delta=1e-6)
    with pytest.raises(ss.InvalidInput, match="query_labels"):
        tasks.knn_accuracy(release, np.arange(40))


def test_real_images(shared_data: Path) -> None:
    """The figures that came with the data: 1-NN 0.63, 10-NN 0.70."""
    with np.load(shared_data / "cifar10_effnetlite0.npz") as file:
        gallery, queries = file["gallery_emb"].astype(np.float32), file["query_emb"].astype(np.float32)
        labels, wanted = file["gallery_label"], file["query_label"]
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    scores = queries @ gallery.T
    assert tasks.knn_accuracy(scores, labels, 1, query_labels=wanted) == pytest.approx(0.63, abs=0.005)
    assert tasks.knn_accuracy(scores, labels, 10, query_labels=wanted) == pytest.approx(0.70, abs=0.005)
