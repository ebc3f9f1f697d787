"""A batch of queries over a store: each query is a new release, and all are charged together.

All code here that ranks, cuts or filters reads released values over all n records. It is post-processing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield._types import Rng
from scoreshield.decisions.worth import Worth, predict_worth
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.privacy.adjacency import Adjacency, Identity, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.releases.advice import Adviser, Kind, make_public_rows
from scoreshield.releases.pipeline import PendingRelease, release_all
from scoreshield.search.base import BaseStoreSearch, Float, HitFilter, Hits, Reading, ScoreReader, SearchOptions
from scoreshield.search.sources import IdentityMap, Names, check_ledger
from scoreshield.stores.pinned import PinnedStore, Snapshot


class Ranking(NamedTuple):
    """One query's release.

    Attributes:
        noisy: The released scores by record; None where only names were released.
        rank: Finds the places of the k best records, at or above a threshold where one is given.
        reading: What all hits of the release share.
    """

    noisy: Float | None
    rank: Callable[[int, float | None], NDArray[np.intp]]
    reading: Reading


class HitSelector:
    """Select what is shown of each ranking of a batch.

    The filter is applied to all ids beforehand, in their public order. A ``where`` that fails then costs nothing, and
    none sees a ranking before it is charged.
    """

    def __init__(self, names: Names, hit_filter: HitFilter, *, has_scores: bool) -> None:
        if hit_filter.threshold is not None and not has_scores:
            raise InvalidInput("Screening without 'refine' releases no scores that a threshold could cut.")
        self._names, self._filter, self._has_scores = names, hit_filter, has_scores
        self._accepted = (
            None if hit_filter.accepts_all else np.array([hit_filter.accepts(name) for name in names], dtype=bool)
        )

    def make_empty(self, version: int) -> Hits | None:
        """Make the answer where no record is accepted; None where some are. It is public and needs no release."""
        if self._accepted is None or self._accepted.any():
            return None
        empty = np.empty(0) if self._has_scores else None
        return Hits((), empty, empty, None, version)

    def select(self, ranking: Ranking) -> Hits:
        k, threshold = self._filter.k, self._filter.threshold
        if self._accepted is None:
            chosen = ranking.rank(k, threshold)
        else:
            chosen = ranking.rank(len(self._names), threshold)
            chosen = chosen[self._accepted[chosen]][:k]
        noisy = None if ranking.noisy is None else ranking.noisy[chosen]
        return ranking.reading.make_hits(tuple(self._names[i] for i in chosen), noisy)


class PerQuerySearch(BaseStoreSearch):
    """Release the values of each query from the store's present records, and charge each query."""

    coverage = "this query"

    @classmethod
    def check_options(cls, options: SearchOptions) -> None:
        """Raise an error for options that this kind of search does not take."""
        check_ledger(options.ledger, options.rng)
        if options.ledger is None and options.rng is None:
            raise InvalidInput(
                f"In mode {cls.mode!r} every query spends: the 'ledger' of PrivateSearch must be ledger.account(name), "
                "with the name of the collection."
            )
        options.reject_index()
        options.reject_hits()
        options.reject_batch()

    def __init__(self, options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> None:
        super().__init__(options, records, identities)
        self._worths: dict[tuple[int, int], Worth] = {}
        self._readers: dict[int, ScoreReader] = {}
        self._worth: Worth | None = None

    @abstractmethod
    def prepare(self, rows: NDArray[Any], query: Float, adjacency: Adjacency, rng: Rng) -> PendingRelease[Float, Any]:
        """Prepare one query's release; nothing is charged yet."""

    @abstractmethod
    def rank(self, release: Any, reading: Reading) -> Ranking:
        """Rank the records of a release."""

    @property
    def worth(self) -> Worth | None:
        return self._find_worth() if self._worth is None else self._worth

    def _find_worth(self) -> Worth:
        """Read the number of records, and predict."""
        ids = self._read(lambda: self._records.list_ids()[0])
        _, adjacency = self._identities.group(ids)
        self._worth = self._check_worth(len(ids), self.dimension, adjacency, self._options.k)
        return self._worth

    @property
    @abstractmethod
    def adviser_kind(self) -> Kind:
        """The word for this kind of release in a warning."""

    def start(self) -> None:
        """Raise an error for a contract that cannot be kept, before the first query. Warn where it ranks by noise.

        The number of records is read if the store gives its ids without the vectors. Otherwise the first query, or
        `worth`, finds it.
        """
        self._check_contract(Replacement())
        has_ids = callable(getattr(self._records.store, "ids", None))
        if not (has_ids or self._identities.has_identities):
            return
        try:
            ids = self._read(self._records.list_ids)[0] if has_ids else self._read(self._records.take_snapshot).ids
            _, adjacency = self._identities.group(ids)
            dimension = self.dimension
        except (InvalidInput, StoreError):
            return  # the first query raises it
        if self._identities.has_identities:
            self._check_contract(adjacency)
        self._worth = self._check_worth(len(ids), dimension, adjacency, self._options.k)

    @property
    def ids(self) -> Names:
        return self._read(lambda: self._identities.group(self._take_snapshot().ids)[0])

    @property
    def guarantee(self) -> Guarantee:
        raise InvalidInput(f"In mode {self.mode!r} each query has its own guarantee: see 'guarantee' of the hits.")

    @property
    def spent(self) -> float:
        raise InvalidInput(f"In mode {self.mode!r} the ledger keeps the total: see the account's 'spent'.")

    def is_stale(self) -> bool | None:
        return self._read(self._records.is_stale)

    def refresh(self) -> None:
        raise InvalidInput("Only an index with a store is refreshed; the other modes read the store's state each time.")

    def answer(self, queries: Float, hit_filter: HitFilter) -> list[Hits]:
        return self._read(lambda: self._answer(queries, hit_filter))

    def _answer(self, queries: Float, hit_filter: HitFilter) -> list[Hits]:
        snapshot = self._take_snapshot()
        names, adjacency = self._identities.group(snapshot.ids)
        selector = HitSelector(names, hit_filter, has_scores=self.releases_scores)
        empty = selector.make_empty(snapshot.version)
        if empty is not None:
            return [empty] * len(queries)
        problems = [snapshot.make_problem(query) for query in queries]
        # Frameworks ask for some more hits than they return, to replace deleted records.
        k = min(hit_filter.k, self._options.k)
        worth = self._check_worth(len(snapshot.ids), self.dimension, adjacency, k)
        if k == self._options.k:
            self._worth = worth
        prepared = [self.prepare(rows, public, adjacency, self._options.rng) for rows, public in problems]
        reading = self._make_reading(prepared[0].guarantee, snapshot.version, worth)
        return release_all(
            prepared,
            self._options.ledger,
            lambda release: selector.select(self.rank(release, replace(reading, guarantee=release.guarantee))),
            same_people=True,
        )

    def _make_reading(self, guarantee: Guarantee, version: int, worth: Worth) -> Reading:
        reader = self._readers.get(guarantee.shape[0])
        if reader is None:
            reader = ScoreReader(guarantee, self._options.public_scores, self.dimension)
            self._readers = {guarantee.shape[0]: reader}
        return Reading(guarantee, version, reader, worth)

    def _check_worth(self, count: int, dimension: int, adjacency: Adjacency, k: int) -> Worth:
        """Predict the worth of a query before its charge, once per number of records and k, and warn of noise.

        The release is prepared for public rows of the same shape, so that no record can enter the prediction.
        """
        known = self._worths.get((count, k))
        if known is not None:
            return known
        rows, options = make_public_rows(count, dimension), self._options

        def predict(search: PerQuerySearch) -> Worth:
            guarantee = search.prepare(rows, rows[0], adjacency, rng=0).guarantee
            return predict_worth(guarantee, k=k, dimension=dimension, public_scores=options.public_scores)

        def repeat(epsilon: float) -> Worth:
            return predict(type(self)(replace(options, epsilon=epsilon), self._records, self._identities))

        worth = predict(self)
        adviser = Adviser(
            self.adviser_kind,
            options.epsilon,
            dimension,
            options.public_scores,
            options.require_recall if k == options.k else None,  # it is required of the stated k
            is_automatic=options.mechanism in (None, "auto"),
            is_grouped=isinstance(adjacency, Identity) and adjacency.largest > 1,
            may_query=options.may_suggest_queries,
            score_range=options.score_range,
            repeat=repeat,
        )
        adviser.check(worth, is_charged=options.rng is None)
        self._worths[count, k] = worth
        return worth

    def _check_contract(self, adjacency: Adjacency) -> None:
        """Check the contract by a release of public records: two, or an identity of the largest size and one more."""
        labels, public = np.arange(2), adjacency
        if isinstance(adjacency, Identity):
            labels = np.append(np.zeros(adjacency.largest, dtype=int), 1)
            public = Identity(labels, centroids=adjacency.centroids)
        self.prepare(np.eye(2)[labels], np.array([1.0, 0.0]), public, rng=0).release(None)

    def _take_snapshot(self) -> Snapshot:
        snapshot = self._records.take_snapshot()
        self.version = snapshot.version
        return snapshot
