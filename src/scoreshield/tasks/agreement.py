"""How released similarities agree with public labels and with people: classification, clustering, correlation.

Classification: a record gets the most frequent label of its k most similar others. A tie between classes goes to the
class with more records, then to the first in sorted order, which is the paper's rule. A tie between similarities at the
k-th place is broken at random, because "smaller index" would depend on the order of the collection.

Clustering: the affinity is A = (M + 1)/2, clipped to [0, 1], with a zero diagonal. Optionally only the edges of the
symmetric nearest-neighbour graph are kept. Clusters are found by k-means on the leading eigenvectors of the symmetric
normalised Laplacian I - D^(-1/2) A D^(-1/2), scaled by D^(-1/2) (Shi & Malik 2000; von Luxburg 2007). Agreement with
labels is 2 I / (H + H'), the normalised mutual information.

Correlation: Spearman's rank correlation with human scores, as in semantic textual similarity.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from scoreshield import _validation
from scoreshield._validation import check_count, optional, validate, whole_from
from scoreshield.releases.results import Release, RowRelease, ScoreRelease
from scoreshield.tasks import _reading
from scoreshield.tasks._reading import Float, View, Whole

_STARTS = 10  # of k-means; the best one counts
_CLUSTERING = "Clustering"


def _check_seed(value: Any, name: str) -> int:
    """Check for a seed of scikit-learn: a whole number from 0 to 2^32 - 1."""
    seed = check_count(value, name, least=0)
    if seed >= 2**32:
        _validation.reject(name, "a whole number below 2^32", value)
    return seed


@validate(k=check_count, seed=whole_from(0))
def knn_accuracy(
    release: Release | ArrayLike,
    labels: ArrayLike,
    k: int = 5,
    *,
    query_labels: ArrayLike | None = None,
    seed: int = 0,
    view: View = "feasible",
) -> float:
    """Compute the share of records, or of queries, whose nearest neighbours vote for their own label.

    Args:
        release: Without `query_labels`, pairwise similarities of the labelled records (a Gram or index release, or a
            symmetric matrix); the others classify each record. With `query_labels`, the scores of m queries
            against the n labelled records (a score release, or an (m, n) array), read from the noisy values. A plain
            array is read as it is and carries no promise.
        labels: The class of each of the n records.
        k: The number of neighbours that vote.
        query_labels: The class of each of the m queries.
        seed: Fixes the order of equal similarities at the k-th place.
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    if query_labels is None:
        if isinstance(release, ScoreRelease):
            _validation.reject("query_labels", "given where scores of queries are released", query_labels)
        values = _reading.mask_diagonal(_reading.read_similarities(release, view))
        most = len(values) - 1
    else:
        values = np.atleast_2d(_reading.read_scores(release))
        most = values.shape[1]
        if isinstance(release, RowRelease):
            values, most = values.copy(), most - 1
            values[:, release.index] = -np.inf  # no record is its own neighbour
    if k > most:
        _validation.reject("k", f"a whole number from 1 to {most}, the records that can vote", k)
    classes = _reading.read_classes(labels, values.shape[1])
    truth = classes if query_labels is None else _read_query_classes(query_labels, len(values), classes)
    return float(np.mean(_count_votes(values, classes, k, seed) == truth))


def _read_query_classes(labels: Any, length: int, classes: NDArray[Any]) -> NDArray[Any]:
    query_classes = _reading.read_classes(labels, length, "query_labels")
    if (query_classes.dtype.kind == "U") != (classes.dtype.kind == "U"):
        _validation.reject("query_labels", "of the kind of 'labels': both strings or both numbers", labels)
    return query_classes


def _count_votes(values: Float, labels: NDArray[Any], k: int, seed: int) -> NDArray[Any]:
    """Return the winning label of each row."""
    names, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    preferred = np.argsort(-sizes, kind="stable")  # of classes with equal votes the first here wins
    place: Whole = np.empty(len(names), dtype=np.intp)
    place[preferred] = np.arange(len(names))
    votes = place[codes][_reading.find_largest(values, k, seed)]
    cells = votes + len(names) * np.arange(len(values))[:, None]
    table = np.bincount(cells.ravel(), minlength=len(values) * len(names)).reshape(len(values), len(names))
    winners: NDArray[Any] = names[preferred[table.argmax(axis=1)]]
    return winners


@validate(clusters=check_count, neighbours=optional(check_count), seed=_check_seed)
def spectral_clustering(
    release: Release | ArrayLike,
    clusters: int,
    *,
    neighbours: int | None = None,
    seed: int = 0,
    view: View = "feasible",
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
    return _find_clusters(_reading.read_similarities(release, view), clusters, neighbours, seed)


@validate(clusters=optional(check_count), neighbours=optional(check_count), seed=_check_seed)
def clustering_nmi(
    release: Release | ArrayLike,
    labels: ArrayLike,
    *,
    clusters: int | None = None,
    neighbours: int | None = None,
    seed: int = 0,
    view: View = "feasible",
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
    assignment = _find_clusters(matrix, distinct if clusters is None else clusters, neighbours, seed)
    metrics = _reading.import_sklearn("metrics", _CLUSTERING)
    return float(metrics.normalized_mutual_info_score(classes, assignment, average_method="arithmetic"))


def _find_clusters(matrix: Float, clusters: int, neighbours: int | None, seed: int) -> Whole:
    n = len(matrix)
    if clusters > n:
        _validation.reject("clusters", f"a whole number from 1 to {n}, the number of records", clusters)
    affinity = _compute_affinity(matrix)
    if neighbours is not None:
        if neighbours >= n:
            _validation.reject("neighbours", f"a whole number from 1 to {n - 1}", neighbours)
        affinity *= _make_neighbour_graph(matrix, neighbours, seed)
    if clusters in (1, n):  # nothing to choose
        return np.arange(n) if clusters == n else np.zeros(n, dtype=np.intp)
    return _cluster_graph(affinity, clusters, seed)


def _compute_affinity(matrix: Float) -> Float:
    affinity = np.clip((matrix + matrix.T) / 4 + 0.5, 0.0, 1.0)
    np.fill_diagonal(affinity, 0.0)
    return affinity


def _make_neighbour_graph(matrix: Float, neighbours: int, seed: int) -> Any:
    """Return, for each pair, whether one of the two is among the nearest of the other."""
    chosen = _reading.find_largest(_reading.mask_diagonal(matrix), neighbours, seed)
    graph = np.zeros(matrix.shape, dtype=np.bool_)
    np.put_along_axis(graph, chosen, True, axis=1)
    return graph | graph.T


def _cluster_graph(affinity: Float, clusters: int, seed: int) -> Whole:
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
    method = _reading.import_sklearn("cluster", _CLUSTERING).KMeans(clusters, n_init=_STARTS, random_state=seed)
    with warnings.catch_warnings():
        # Coinciding records may give fewer clusters than requested; the docstring says so.
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        assignment: Whole = method.fit_predict(vectors / root[:, None]).astype(np.intp)
    return assignment


@validate()
def sts_spearman(release: Release | ArrayLike, pairs: ArrayLike, human: ArrayLike, *, view: View = "feasible") -> float:
    """Compute Spearman's correlation of the released similarities of some pairs with human scores.

    If all released similarities are equal, the correlation is undefined. The result is then 0.0, since such a release
    has no order.

    Args:
        release: Pairwise similarities: a Gram or index release, or a symmetric matrix, which is read as it is and
            carries no promise.
        pairs: (m, 2) Record numbers, at least two pairs.
        human: m scores by people, not all equal; they are public.
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    from scipy.stats import spearmanr  # takes a third of a second, and is needed only here

    matrix = _reading.read_similarities(release, view)
    chosen = _reading.read_pair_numbers(pairs, len(matrix))
    must = f"a list of {len(chosen)} finite numbers, one per pair, at least two of them different"
    scores = _reading.read_numbers(human, "human", must)
    if scores.shape != (len(chosen),) or scores.min() == scores.max():
        _validation.reject("human", must, human)
    entries = matrix[chosen[:, 0], chosen[:, 1]]
    if np.ptp(entries) == 0:
        return 0.0
    return float(spearmanr(entries, scores).statistic)
