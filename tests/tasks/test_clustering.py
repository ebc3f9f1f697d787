"""Clusters that are there are found, noise breaks nothing, and a seed fixes the answer."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score
from support import noisy_gram

import scoreshield as ss
from scoreshield import tasks

Array = np.ndarray


def groups(n: int, clusters: int, spread: float, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % clusters
    rows = rng.standard_normal((clusters, 16))[labels] + spread * rng.standard_normal((n, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T, labels


def blocks(sizes: list[int]) -> Array:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.where(labels[:, None] == labels, 1.0, -1.0)


@pytest.mark.parametrize("neighbours", [None, 6])
def test_separate_groups_are_found(neighbours: int | None) -> None:
    """Separate groups are found."""
    matrix, labels = groups(90, 5, 0.3, 1)
    found = tasks.spectral_clustering(matrix, 5, neighbours=neighbours)
    assert adjusted_rand_score(labels, found) == 1.0
    assert tasks.clustering_nmi(matrix, labels, neighbours=neighbours) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_scikit_learn_answer_unique(seed: int) -> None:
    """The clusters agree with scikit-learn where they are unique."""
    matrix, _ = groups(120, 4, 0.6, seed)
    affinity = (matrix + 1) / 2
    np.fill_diagonal(affinity, 0)
    peer = SpectralClustering(4, affinity="precomputed", n_init=10, random_state=0).fit_predict(affinity)
    assert adjusted_rand_score(peer, tasks.spectral_clustering(matrix, 4)) == 1.0


def test_nearest_neighbour_graph_definition() -> None:
    """The nearest neighbour graph is that of its definition."""
    matrix, _ = groups(40, 4, 1.5, 5)
    near = [sorted((j for j in range(40) if j != i), key=lambda j: -matrix[i, j])[:3] for i in range(40)]
    kept = np.array([[i in near[j] or j in near[i] for j in range(40)] for i in range(40)])
    found = tasks.spectral_clustering(matrix, 4, neighbours=3)
    assert np.array_equal(found, tasks.spectral_clustering(np.where(kept, matrix, -1.0), 4))  # -1 is no affinity
    assert adjusted_rand_score(found, tasks.spectral_clustering(matrix, 4)) < 0.9


def test_edge_of_either_end() -> None:
    """Record 2 is nearest to 1, which is nearest to 0: kept all the same, so 0, 1, 2 hang together."""
    matrix = blocks([3, 3])
    matrix[0, 1] = matrix[1, 0] = 0.9
    matrix[1, 2] = matrix[2, 1] = 0.5
    matrix[0, 2] = matrix[2, 0] = -0.2
    found = tasks.spectral_clustering(matrix, 2, neighbours=1)
    assert found[0] == found[1] == found[2] != found[3]


def test_affinities_beyond_range_clipped() -> None:
    """Affinities beyond the range are clipped."""
    labels = np.arange(60) % 3
    loud = np.where(labels[:, None] == labels, 40.0, -70.0)
    assert tasks.clustering_nmi(loud, labels) == pytest.approx(1.0)
    assert np.array_equal(tasks.spectral_clustering(loud, 3), tasks.spectral_clustering(np.clip(loud, -1, 1), 3))


def test_mutual_information_formula(rng: np.random.Generator) -> None:
    """The mutual information agrees with its formula."""
    matrix, labels = groups(80, 4, 1.5, 3)
    found = tasks.spectral_clustering(matrix, 3, seed=2)
    table = np.zeros((4, 3))
    np.add.at(table, (labels, found), 1 / 80)
    inside = table[table > 0]
    outer = np.outer(table.sum(axis=1), table.sum(axis=0))[table > 0]
    entropy = [-np.sum(p * np.log(p)) for p in (table.sum(axis=1), table.sum(axis=0))]
    expected = 2 * np.sum(inside * np.log(inside / outer)) / sum(entropy)
    assert tasks.clustering_nmi(matrix, labels, clusters=3, seed=2) == pytest.approx(expected)
    assert 0 < expected < 1
    shuffled = rng.permutation(labels)
    assert tasks.clustering_nmi(matrix, shuffled, clusters=3, seed=2) < expected


@pytest.mark.parametrize("noise", [0.5, 5.0, 500.0])
@pytest.mark.parametrize("neighbours", [None, 1, 4])
def test_noisy_matrix_and_seed(noise: float, neighbours: int | None) -> None:
    """Noise breaks nothing and a seed fixes the answer."""
    for seed in range(6):
        matrix = noisy_gram(30, noise, seed)
        matrix[3, :] = matrix[:, 3] = -2.0  # a record that is like no other
        one, other = (tasks.spectral_clustering(matrix, 7, neighbours=neighbours, seed=9) for _ in range(2))
        assert np.array_equal(one, other)
        assert one.shape == (30,)
        assert set(one) <= set(range(7))


@pytest.mark.parametrize("matrix", [-np.ones((10, 10)), np.ones((10, 10)), np.eye(10), blocks([2] * 5)])
@pytest.mark.parametrize("clusters", [1, 2, 3, 9, 10])
def test_degenerate_graphs_fixed_answer(matrix: Array, clusters: int) -> None:
    """Degenerate graphs have a fixed answer."""
    found = {tasks.spectral_clustering(matrix, clusters, seed=1).tobytes() for _ in range(4)}
    assert len(found) == 1
    labels = np.frombuffer(found.pop(), dtype=np.intp)
    assert len(set(labels)) <= clusters
    if clusters in (1, 10):
        assert len(set(labels)) == clusters


def test_pieces_of_a_graph_are_clusters() -> None:
    """Pieces of a graph are clusters."""
    found = tasks.spectral_clustering(blocks([4, 6, 5]), 3)
    assert adjusted_rand_score(np.repeat([0, 1, 2], [4, 6, 5]), found) == 1.0


def test_other_warnings_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other warnings are shown."""
    from sklearn import cluster

    class Loud(cluster.KMeans):  # type: ignore[misc]
        def fit_predict(self, *args: Any, **kwargs: Any) -> Any:
            warnings.warn("something else", RuntimeWarning, stacklevel=1)
            return super().fit_predict(*args, **kwargs)

    monkeypatch.setattr(cluster, "KMeans", Loud)
    with pytest.raises(RuntimeWarning, match="something else"):
        tasks.spectral_clustering(blocks([3, 3]), 2)


def test_releases(collection: Array) -> None:
    """Releases are clustered as their matrices."""
    gram = ss.release_gram(collection, epsilon=20, delta=1e-6, adjacency=ss.GramRadius(2.0), rng=1)
    for view, matrix in (("feasible", gram.gram), ("noisy", gram.noisy)):
        expected = tasks.spectral_clustering(matrix, 4)
        assert np.array_equal(tasks.spectral_clustering(gram, 4, view=view), expected)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"clusters": 0}, "'clusters'"),
        ({"clusters": 7}, "from 1 to 6"),
        ({"clusters": 2.0}, "'clusters'"),
        ({"neighbours": 0}, "'neighbours'"),
        ({"neighbours": 6}, "from 1 to 5"),
        ({"seed": 2**32}, "below 2^32"),
        ({"seed": -1}, "'seed'"),
        ({"labels": np.zeros(6)}, "at least two are different"),
        ({"labels": np.zeros(5)}, "6 class labels"),
        ({"release": np.triu(np.ones((6, 6)))}, "symmetric"),
        ({"view": None}, "'view'"),
    ],
)
def test_bad_input(given: dict[str, Any], says: str) -> None:
    """A bad argument raises an error."""
    with pytest.raises(ss.InvalidInput, match="clustering_nmi") as caught:
        tasks.clustering_nmi(**{"release": blocks([3, 3]), "labels": np.arange(6) % 2, **given})
    assert says in str(caught.value)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is named in the error."""
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    for call in (
        lambda: tasks.spectral_clustering(blocks([3, 3]), 2),
        lambda: tasks.evaluate_verification([0.1, 0.2], [False, True]),
    ):
        with pytest.raises(ss.InvalidInput, match=r"'tasks' extra: pip install 'scoreshield\[tasks\]'\."):
            call()


@pytest.mark.parametrize("n", range(11, 70))
def test_identity_matrix(n: int) -> None:
    """The identity, which a denoiser may return: all eigenvalues but one coincide, and LAPACK may give up on a few."""
    found = tasks.spectral_clustering(np.eye(n), 10)
    assert found.shape == (n,)
    assert set(found) <= set(range(10))
