"""From a store's records to what a search answers: one query's release, and the choice of what is shown of it.

Everything here that ranks, cuts or filters reads released values over all n records: post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import Adjacency, Identity, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.releases.index import IndexRelease
from scoreshield.releases.matches import prepare_matches
from scoreshield.releases.pipeline import Prepared
from scoreshield.releases.results import MatchRelease, ScoreRelease
from scoreshield.releases.scores import prepare_scores

Float = NDArray[np.float64]
Names = tuple[Any, ...]


@dataclass(frozen=True)
class Hits:
    """What a query found, best first.

    Attributes
    ----------
    ids : of the records, as the store names them (of the identities, with centroids).
    scores : released cosines within the public range, for showing; None where only names were released.
    noisy : the same before they were clipped to it, which is what they are ranked by; None likewise.
    guarantee : of this query's release, or of the index that answered it; None where a public filter lets no record
        pass, so that nothing was released or charged.
    version : of the collection.
    """

    ids: Names
    scores: Float | None
    noisy: Float | None
    guarantee: Guarantee | None
    version: int

    def __len__(self) -> int:
        return len(self.ids)


#: The state of a store that was never looked at.
UNSEEN = object()


class Made(NamedTuple):
    """A private index and what its rows are called, exchanged as a whole: another thread may be answering from it.

    ``state`` is the store's when the index was made of it, or taken from a file; ``stale`` whether the records were
    others even then (None: who knows, as for a file). ``paid`` is the entry of the ledger.
    """

    release: IndexRelease
    ids: Names
    version: int
    state: Any = UNSEEN
    stale: bool | None = None
    paid: Any = None

    def stale_in(self, state: Callable[[], Hashable]) -> bool | None:
        """Whether the store's records, whose state is asked for, are others than those of the index."""
        if self.stale or self.state is UNSEEN:
            return self.stale
        return True if state() != self.state else self.stale


class Wanted(NamedTuple):
    """What a caller wants to see of a ranking."""

    k: int
    threshold: float | None
    where: Callable[[Any], bool] | None
    hidden: frozenset[Any]

    @property
    def all_pass(self) -> bool:
        return self.where is None and not self.hidden

    def passes(self, name: Any) -> bool:
        return name not in self.hidden and (self.where is None or bool(self.where(name)))


class Released(NamedTuple):
    """One query's release: scores by record, None where names only; what ranks them; the guarantee."""

    noisy: Float | None
    ranked: Callable[[int, float | None], NDArray[np.intp]]
    guarantee: Guarantee


@dataclass(frozen=True)
class Recipe:
    """How each query is released, settled once: all scores (``threshold`` None), or who passes a public threshold."""

    epsilon: float
    delta: float
    mechanism: Any
    threshold: float | None
    refine: float
    score_range: tuple[float, float]
    rng: Any

    def rehearse(self, adjacency: Adjacency | None = None) -> None:
        """Release public records, so that a contract that cannot be kept is refused before anything is asked.

        There are two of them, and as many to an identity as the largest has.
        """
        labels, who = np.arange(2), adjacency or Replacement()
        if isinstance(adjacency, Identity):
            labels = np.append(np.zeros(adjacency.largest, dtype=int), 1)
            who = Identity(labels, centroids=adjacency.centroids)
        prepared = replace(self, rng=0).prepare(np.eye(2)[labels], np.array([1.0, 0.0]), who)
        prepared.release(None)

    def prepare(self, rows: NDArray[Any], query: Float, adjacency: Adjacency) -> Prepared[Float, Any]:
        """One query's release, which nothing was charged for yet."""
        common: dict[str, Any] = {"adjacency": adjacency, "score_range": self.score_range, "rng": self.rng}
        if self.threshold is None:
            return prepare_scores(
                rows, query, epsilon=self.epsilon, delta=self.delta, mechanism=self.mechanism, **common
            )
        return prepare_matches(rows, query, self.threshold, epsilon=self.epsilon, refine=self.refine, **common)


def as_released(release: ScoreRelease | MatchRelease) -> Released:
    """What ranks the records of a release, and the scores that it has."""
    if isinstance(release, ScoreRelease):
        return Released(release.noisy, release.top_k, release.guarantee)
    named = release.indices
    if not release.guarantee.details["refining_epsilon"]:
        return Released(None, lambda k, _: named[:k], release.guarantee)
    noisy = np.full(release.guarantee.shape[0], -np.inf)
    noisy[release.candidates] = release.noisy

    def ranked(k: int, threshold: float | None) -> NDArray[np.intp]:
        return named[:k] if threshold is None else named[noisy[named] >= threshold][:k]

    return Released(noisy, ranked, release.guarantee)


class Chooser:
    """What is shown of each ranking of a batch.

    The ids are asked about beforehand, in their public order: a ``where`` that fails costs nothing, and none sees a
    ranking that has not been paid for.
    """

    def __init__(self, names: Names, wanted: Wanted, *, scored: bool) -> None:
        if wanted.threshold is not None and not scored:
            raise InvalidInput("Screening without 'refine' releases no scores that a threshold could cut.")
        self._names, self._wanted = names, wanted
        self._shown = None if wanted.all_pass else np.array([wanted.passes(name) for name in names], dtype=bool)
        self._scored = scored

    def nothing(self, version: int) -> Hits | None:
        """The answer where no record passes, which is public and needs no release; None where some do."""
        if self._shown is None or self._shown.any():
            return None
        empty = np.empty(0) if self._scored else None
        return Hits((), empty, empty, None, version)

    def hits(self, released: Released, version: int) -> Hits:
        k, threshold = self._wanted.k, self._wanted.threshold
        if self._shown is None:
            chosen = released.ranked(k, threshold)
        else:
            chosen = released.ranked(len(self._names), threshold)
            chosen = chosen[self._shown[chosen]][:k]
        return _hits(self._names, chosen, released.noisy, released.guarantee, version)


def from_index(made: Made, queries: Float, wanted: Wanted) -> list[Hits]:
    """The hits of each query, from private vectors: a ``where`` may see their ranking, which is free."""
    index, names, version = made.release, made.ids, made.version
    if wanted.threshold is None and wanted.all_pass:
        found = index.search(queries, wanted.k)
        return [
            Hits(tuple(names[i] for i in best), np.clip(noisy, -1, 1), noisy, index.guarantee, version)
            for noisy, best in zip(found.scores, found.indices, strict=True)
        ]
    hits = []
    for noisy in index.scores(queries):
        ranked = np.argsort(-noisy, kind="stable")
        if wanted.threshold is not None:
            ranked = ranked[noisy[ranked] >= wanted.threshold]
        shown = (place for place in ranked.tolist() if wanted.passes(names[place]))
        chosen = np.fromiter(islice(shown, wanted.k), dtype=np.intp)
        hits.append(_hits(names, chosen, noisy, index.guarantee, version))
    return hits


def _hits(names: Names, chosen: NDArray[np.intp], noisy: Float | None, guarantee: Guarantee, version: int) -> Hits:
    values = None if noisy is None else noisy[chosen]
    shown = None if values is None else np.clip(values, *guarantee.score_range)
    return Hits(tuple(names[i] for i in chosen), shown, values, guarantee, version)
