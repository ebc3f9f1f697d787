"""Rankings from any release, and their quality.

Ranking is by noisy scores, with ties at random. The paper ranks clipped scores and gives ties to the smaller index.
`paper_top_k` does so too, only to reproduce its tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_real, optional, validate, whole_from
from scoreshield.errors import InvalidInput
from scoreshield.releases.batch import BatchRelease
from scoreshield.releases.index import PrivateIndex
from scoreshield.releases.results import MatchRelease, Release, ScoreRelease, TopKRelease
from scoreshield.tasks import _reading
from scoreshield.tasks._reading import Float, View, Whole


@dataclass(frozen=True, eq=False)
class InstanceRetrieval:
    """How often the neighbours of each record belong to its own class.

    Attributes:
        recall_at: For each K, the share of queries with at least one record of their class among the K best others.
        map: The mean over queries of the average precision over all ranks.
        queries: The number of records that were queries: those whose class has another record.
        records: The number of records.
    """

    recall_at: Mapping[int, float]
    map: float
    queries: int
    records: int


@dataclass(frozen=True, eq=False)
class SearchMetrics:
    """The quality of the first k of each ranking; every figure is a mean over queries.

    Attributes:
        recall: The share of the relevant records that are found.
        precision: The share of the k places that hold a relevant record; an empty place holds none.
        ndcg: The sum of 1 / log2(1 + rank) over relevant records found, divided by its largest possible value.
        map: Average precision: the sum over relevant records found of the precision at their rank, over min(k,
            relevant).
        mrr: One over the rank of the first relevant record, 0 if none is found.
        hit_rate: The share of queries with at least one relevant record.
        overlap: The share of the reference's first k that are among these; None without a reference. Queries without a
            result in the reference do not count.
        returned: The number of returned records, at most k.
        k: The number of places that count.
        queries: The number of queries.
        per_query: Each of these figures for each query, by name.
    """

    recall: float
    precision: float
    ndcg: float
    map: float
    mrr: float
    hit_rate: float
    overlap: float | None
    returned: float
    k: int
    queries: int
    per_query: Mapping[str, Float] = field(repr=False)


def _check_ranks(value: Any, name: str) -> tuple[int, ...]:
    """Check for a list of whole numbers, each at least 1."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        _validation.reject(name, "a list of whole numbers, each at least 1", value)
    return tuple(check_count(k, name) for k in value)


@validate(ks=_check_ranks, seed=whole_from(0))
def instance_retrieval(
    release: Release | ArrayLike,
    labels: ArrayLike,
    *,
    ks: Iterable[int] = (1, 5, 10),
    seed: int = 0,
    view: View = "feasible",
) -> InstanceRetrieval:
    """Rank all other records by their similarity to each one, and measure the ranks of those of its class.

    Records alone in their class have nothing to find and are no queries. (The paper divides by all n records: multiply
    by ``queries / records`` for its figures.)

    Args:
        release: Pairwise similarities: a Gram or index release, or a symmetric matrix, which is read as it is and
            carries no promise.
        labels: The class of each record.
        ks: The K of each recall.
        seed: Fixes the order of equal similarities.
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    matrix = _reading.read_similarities(release, view)
    codes = np.unique(_reading.read_classes(labels, len(matrix)), return_inverse=True)[1]
    mates = np.bincount(codes)[codes] - 1
    queries = np.flatnonzero(mates)
    if not len(queries):
        _validation.reject("labels", "class labels of which at least two are equal", labels)
    order = _reading.sort_descending(_reading.mask_diagonal(matrix)[queries], seed)[:, :-1]  # itself comes last
    relevant = codes[order] == codes[queries, None]
    precision = np.cumsum(relevant, axis=1) / np.arange(1, len(matrix))
    return InstanceRetrieval(
        recall_at={k: float(relevant[:, :k].any(axis=1).mean()) for k in ks},
        map=float(np.mean(np.vecdot(precision, relevant.astype(np.float64)) / mates[queries])),
        queries=len(queries),
        records=len(matrix),
    )


@validate(k=check_count, threshold=optional(check_real), seed=whole_from(0))
def rank_records(
    release: Release | ArrayLike,
    k: int,
    *,
    threshold: float | None = None,
    query: ArrayLike | None = None,
    seed: int = 0,
) -> Whole:
    """Return the first k record numbers that a release names, best first; fewer if fewer are named or pass.

    Several queries give one row each, padded with -1. A row release ranks its own record too, whose score is 1.

    Args:
        release: Scores (a score or row release, or an array, which is read as it is and carries no promise): the
            largest noisy ones. A match or top-k release: its own order. An index or a batch release: the best
            for `query`.
        k: The largest number of records.
        threshold: Only records whose score is at least this; for releases that have scores.
        query: The query for an index release: a vector, or a matrix with one row per query. For a batch release: the
            number of the query in the batch, or an array of such numbers.
        seed: Fixes the order of equal scores in an array; a release has its own order.
    """
    if (query is None) == isinstance(release, PrivateIndex | BatchRelease):
        _validation.reject("query", "given for an index or a batch release, and for nothing else", query)
    if isinstance(release, PrivateIndex | BatchRelease):
        results = release.search(query, k)  # type: ignore[arg-type]
        return _cut_ranking(results.indices, results.scores, k, threshold)
    if isinstance(release, MatchRelease | TopKRelease):
        if threshold is not None:
            raise InvalidInput("A match or top-k release was cut when it was made: leave 'threshold' out.")
        return release.indices[:k]
    if isinstance(release, ScoreRelease):
        return release.top_k(k, threshold)
    values = _reading.read_scores(release)
    return _cut_ranking(_reading.sort_descending(values, seed), values, k, threshold)


@validate(k=check_count, threshold=optional(check_real))
def paper_top_k(release: Release | ArrayLike, k: int, threshold: float | None = None) -> Whole:
    """Apply the paper's rule, to reproduce its tables: rank *clipped* scores, ties by smaller index.

    Use `rank_records` for anything else. At strong privacy about half of all clipped scores tie at the upper end, and
    this rule then returns the first records of the collection for every query. The noisy scores are as private and
    keep the order.

    Args:
        release: A score or row release, or an array of scores, which is clipped to [-1, 1].
        k: The largest number of records.
        threshold: Only records whose clipped score is at least this.
    """
    scores = release.scores if isinstance(release, ScoreRelease) else _reading.read_scores(release)
    clipped = scores if isinstance(release, ScoreRelease) else np.clip(scores, -1.0, 1.0)
    return _cut_ranking(np.argsort(-clipped, axis=-1, kind="stable"), clipped, k, threshold)


def _cut_ranking(order: Whole, scores: Float, k: int, threshold: float | None) -> Whole:
    """Return the first k of each row of an order by falling score, of those that pass; rows are padded with -1."""
    first = order[..., :k]
    if threshold is None:
        return first
    passing = (scores >= threshold).sum(axis=-1)
    if order.ndim == 1:
        return first[:passing]
    width = min(k, int(passing.max()))
    return np.where(np.arange(width) < passing[:, None], first[:, :width], -1)


@validate(k=check_count)
def search_metrics(
    rankings: Sequence[ArrayLike] | NDArray[Any],
    relevant: Sequence[Iterable[int]] | NDArray[Any],
    *,
    k: int = 10,
    reference: Sequence[ArrayLike] | NDArray[Any] | None = None,
) -> SearchMetrics:
    """Measure rankings by public relevance judgements.

    Args:
        rankings: One list of record numbers per query, best first, possibly shorter than k; or a matrix padded with -1.
        relevant: One collection of relevant record numbers per query, none of them empty.
        k: The number of places of each ranking that count.
        reference: Other rankings of the same queries, such as those without noise, for `overlap`.
    """
    results = _check_rankings(rankings, "rankings", k)
    judgements = _check_relevant(relevant, len(results))
    gains = np.zeros((len(results), k))
    for row, ranking, answers in zip(gains, results, judgements, strict=True):
        row[: len(ranking)] = np.isin(ranking, answers)
    figures = _compute_figures(gains, np.array([len(answers) for answers in judgements]))
    figures["returned"] = np.array([len(ranking) for ranking in results], dtype=np.float64)
    means: dict[str, float | None] = {name: float(values.mean()) for name, values in figures.items()}
    means["overlap"] = None
    if reference is not None:
        figures["overlap"] = _compute_overlap(results, _check_rankings(reference, "reference", k, len(results)))
        overlaps = figures["overlap"][~np.isnan(figures["overlap"])]
        means["overlap"] = float(overlaps.mean()) if len(overlaps) else None
    return SearchMetrics(**means, k=k, queries=len(results), per_query=figures)  # type: ignore[arg-type]


def _compute_figures(gains: Float, relevant: NDArray[Any]) -> dict[str, Float]:
    """Compute the figures of each query from its k places: True if a place holds a relevant record."""
    k = gains.shape[1]
    ranks = np.arange(1, k + 1)
    discount = 1 / np.log2(ranks + 1)
    most = np.minimum(relevant, k)
    hits = gains.sum(axis=1)
    return {
        "recall": hits / relevant,
        "precision": hits / k,
        "ndcg": gains @ discount / np.cumsum(discount)[most - 1],
        "map": (gains * np.cumsum(gains, axis=1) / ranks).sum(axis=1) / most,
        "mrr": (gains / ranks).max(axis=1),
        "hit_rate": (hits > 0).astype(np.float64),
    }


def _compute_overlap(results: list[Whole], reference: list[Whole]) -> Float:
    pairs = zip(results, reference, strict=True)
    return np.array([np.isin(other, ranking).mean() if len(other) else np.nan for ranking, other in pairs])


def _check_rankings(rankings: Any, name: str, k: int, length: int | None = None) -> list[Whole]:
    """Return the first k of each ranking, without padding."""
    must = "a list with one list of different record numbers per query, best first, or a matrix padded with -1"
    if not _is_sequence(rankings) or not len(rankings):
        _validation.reject(name, must, rankings)
    if length is not None and len(rankings) != length:
        _validation.reject(name, f"as long as 'rankings', which has {length} queries", rankings)
    results = []
    for ranking in rankings:
        places = _validation.check_array(ranking, name, must)
        if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
            _validation.reject(name, must, ranking)
        numbers = places[places >= 0]
        if (places[len(numbers) :] != -1).any() or len(np.unique(numbers)) != len(numbers):
            _validation.reject(name, must, ranking)
        results.append(numbers[:k].astype(np.intp))
    return results


def _check_relevant(relevant: Any, length: int) -> list[Whole]:
    must = f"a list of {length} collections of record numbers, one per query, none of them empty"
    if not _is_sequence(relevant) or len(relevant) != length:
        _validation.reject("relevant", must, relevant)
    judgements = []
    for answers in relevant:
        if isinstance(answers, str | bytes | Mapping) or not isinstance(answers, Iterable):
            _validation.reject("relevant", must, answers)
        numbers = _reading.read_whole_numbers(list(answers), "relevant", must)
        if numbers.ndim != 1:
            _validation.reject("relevant", must, answers)
        judgements.append(np.unique(numbers))
    return judgements


def _is_sequence(values: Any) -> bool:
    return isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim > 0)
