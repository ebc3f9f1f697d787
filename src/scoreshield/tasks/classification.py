"""Nearest-neighbour classification by released similarities.

A record gets the most frequent label of its k most similar others. A tie between classes goes to the class with more
records, then to the first in sorted order, which is the paper's rule. A tie between similarities at the
k-th place is broken at random, because "smaller index" would depend on the order of the collection.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, validate, whole_from
from scoreshield.releases.results import Release, RowRelease, ScoreRelease
from scoreshield.tasks import _reading
from scoreshield.tasks._reading import Float, Whole


@validate(k=check_count, seed=whole_from(0))
def knn_accuracy(
    release: Release | ArrayLike,
    labels: ArrayLike,
    k: int = 5,
    *,
    query_labels: ArrayLike | None = None,
    seed: int = 0,
    view: str = "feasible",
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
    wanted = classes if query_labels is None else _queries(query_labels, len(values), classes)
    return float(np.mean(_vote(values, classes, k, seed) == wanted))


def _queries(labels: Any, length: int, classes: NDArray[Any]) -> NDArray[Any]:
    found = _reading.read_classes(labels, length, "query_labels")
    if (found.dtype.kind == "U") != (classes.dtype.kind == "U"):
        _validation.reject("query_labels", "of the kind of 'labels': both strings or both numbers", labels)
    return found


def _vote(values: Float, labels: NDArray[Any], k: int, seed: int) -> NDArray[Any]:
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
