"""Spectral clustering of released similarities, and its agreement with public labels.

The affinity is A = (M + 1)/2, clipped to [0, 1], with a zero diagonal. Optionally only the edges of the
symmetric nearest-neighbour graph are kept. Clusters are found by k-means on the leading eigenvectors of the symmetric
normalised Laplacian I - D^(-1/2) A D^(-1/2), scaled by D^(-1/2) (Shi & Malik 2000; von Luxburg 2007).
Agreement with labels is 2 I / (H + H'), the normalised mutual information.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.releases.results import Release
from scoreshield.tasks import _reading
from scoreshield.tasks._reading import Float, Whole

_STARTS = 10  # of k-means; the best one counts
_WHAT = "Clustering"


@validate()
def spectral_clustering(
    release: Release | ArrayLike,
    clusters: int,
    *,
    neighbours: int | None = None,
    seed: int = 0,
    view: str = "feasible",
) -> Whole:
    """Assign a cluster number, from 0, to each record by spectral clustering.

    Args:
        release: Pairwise similarities: a Gram or index release, or a symmetric matrix, which is read as it is and
            carries no promise.
        clusters: The number of clusters to look for; if records coincide, fewer may be found.
        neighbours: m, to keep the pair (i, j) only if one is among the m most similar of the other; None keeps all
            pairs.
        seed: Fixes the starts of k-means and the order of equal similarities; below 2^32.
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    return _clusters(_reading.read_similarities(release, view), clusters, neighbours, seed)


@validate()
def clustering_nmi(
    release: Release | ArrayLike,
    labels: ArrayLike,
    *,
    clusters: int | None = None,
    neighbours: int | None = None,
    seed: int = 0,
    view: str = "feasible",
) -> float:
    """Compute the normalised mutual information of public labels with the clusters of `spectral_clustering`.

    With `clusters` None it looks for as many clusters as there are different labels. The other arguments are those of
    `spectral_clustering`. 1 is perfect agreement, 0 is none.
    """
    matrix = _reading.read_similarities(release, view)
    classes = _reading.read_classes(labels, len(matrix))
    distinct = len(np.unique(classes))
    if distinct < 2:
        _validation.reject("labels", "class labels of which at least two are different", labels)
    found = _clusters(matrix, distinct if clusters is None else clusters, neighbours, seed)
    metrics = _reading.import_sklearn("metrics", _WHAT)
    return float(metrics.normalized_mutual_info_score(classes, found, average_method="arithmetic"))


def _clusters(matrix: Float, clusters: Any, neighbours: Any, seed: Any) -> Whole:
    n = len(matrix)
    clusters = _validation.check_count(clusters, "clusters")
    if clusters > n:
        _validation.reject("clusters", f"a whole number from 1 to {n}, the number of records", clusters)
    seed = _validation.check_count(seed, "seed", least=0)
    if seed >= 2**32:
        _validation.reject("seed", "a whole number below 2^32", seed)
    affinity = _affinity(matrix)
    if neighbours is not None:
        neighbours = _validation.check_count(neighbours, "neighbours")
        if neighbours >= n:
            _validation.reject("neighbours", f"a whole number from 1 to {n - 1}", neighbours)
        affinity *= _nearest(matrix, neighbours, seed)
    if clusters in (1, n):  # nothing to choose
        return np.arange(n) if clusters == n else np.zeros(n, dtype=np.intp)
    return _spectral(affinity, clusters, seed)


def _affinity(matrix: Float) -> Float:
    affinity = np.clip((matrix + matrix.T) / 4 + 0.5, 0.0, 1.0)
    np.fill_diagonal(affinity, 0.0)
    return affinity


def _nearest(matrix: Float, neighbours: int, seed: int) -> Any:
    """Return, for each pair, whether one of the two is among the nearest of the other."""
    chosen = _reading.find_largest(_reading.mask_diagonal(matrix), neighbours, seed)
    graph = np.zeros(matrix.shape, dtype=np.bool_)
    np.put_along_axis(graph, chosen, True, axis=1)
    return graph | graph.T


def _spectral(affinity: Float, clusters: int, seed: int) -> Whole:
    """Run k-means on the leading eigenvectors of the random walk on the graph.

    The eigenvectors come from LAPACK. scikit-learn's SpectralClustering takes the same ones from ARPACK. If eigenvalues
    coincide, ARPACK in SciPy 1.17 restarts from random draws that no seed controls, so a graph in several pieces gives
    a different answer each time.
    """
    root = np.sqrt(affinity.sum(axis=1))
    root[root == 0] = 1.0  # a record without neighbours: its row of the Laplacian is that of I
    n = len(affinity)
    walk = affinity / root / root[:, None]
    try:
        vectors = linalg.eigh(walk, subset_by_index=[n - clusters, n - 1])[1]
    except linalg.LinAlgError:  # LAPACK's choice of a few vectors can fail where many eigenvalues nearly coincide
        vectors = linalg.eigh(walk, driver="evd")[1][:, n - clusters :]
    method = _reading.import_sklearn("cluster", _WHAT).KMeans(clusters, n_init=_STARTS, random_state=seed)
    with warnings.catch_warnings():
        # Coinciding records may give fewer clusters than requested; the docstring says so.
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        found: Whole = method.fit_predict(vectors / root[:, None]).astype(np.intp)
    return found
