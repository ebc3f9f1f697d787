"""A batch of public queries that is known beforehand: one charge for all of them."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from scoreshield import _validation
from scoreshield.decisions.worth import Worth
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE, check_score_range
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.releases.advice import make_public_rows
from scoreshield.releases.batch import BatchRelease, check_batch_worth, prepare_batch
from scoreshield.search.base import BaseStoreSearch, Float, HitFilter, Hits, Reading, ScoreReader, SearchOptions
from scoreshield.search.sources import IdentityMap, Names, check_ledger
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import read_store

#: Two unit queries of at least this cosine are the same query, up to the rounding of their numbers.
_SAME = 1 - 1e-6


class BatchSearch(BaseStoreSearch):
    """Answer the queries of a public batch, and no others, as `scoreshield.release_batch` does.

    The batch is charged when the search is made. It answers from its own version of the records.
    """

    mode = "batch"
    coverage = "all queries of the batch"
    releases_scores = True

    @classmethod
    def check_options(cls, options: SearchOptions) -> None:
        """Raise an error for options that a batch does not take."""
        check_ledger(options.ledger, options.rng)
        options.reject_screening()
        if options.queries is None or np.ndim(options.queries) == 0:
            raise InvalidInput("Mode 'batch' needs the public 'queries' that it will answer, one per row.")
        if options.delta:
            _validation.reject("delta", "0 (left out) for mode='batch', which is private without it", options.delta)
        if options.mechanism is not None:
            raise InvalidInput("Mode 'batch' has one mechanism, randomised response; leave 'mechanism' out.")
        if options.hits is not None or options.adjacency is not None:
            raise InvalidInput("'hits' and 'adjacency' are for mode='hits'.")
        options.reject_index()
        if check_score_range(options.score_range) != FULL_RANGE:
            raise InvalidInput("Mode 'batch' has no score range: 'cuts' says which scores are told from each other.")

    def __init__(self, options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> None:
        super().__init__(options, records, identities)
        self._release: BatchRelease | None = None
        self._reading: Reading | None = None
        self._names: Names = ()
        self._state: Any = None

    def start(self) -> None:
        """Read the records, charge the batch and draw the names."""
        self._read(self._make)

    @property
    def ids(self) -> Names:
        return self._names

    @property
    def guarantee(self) -> Guarantee:
        return self._serve().guarantee

    @property
    def spent(self) -> float:
        guarantee = self.guarantee
        return 0.0 if guarantee.sampler == "research" else guarantee.epsilon

    @property
    def worth(self) -> Worth | None:
        return None if self._reading is None else self._reading.worth

    def is_stale(self) -> bool | None:
        store = self._records.store
        return bool(self._read(lambda: read_store(store, "giving its state", store.state)) != self._state)

    def refresh(self) -> None:
        raise InvalidInput("A batch is not refreshed: make a new PrivateSearch, which is charged again.")

    def save(self, path: Any) -> None:
        del path
        raise InvalidInput("Only an index is saved; release_batch makes a batch that has save().")

    def answer(self, queries: Float, hit_filter: HitFilter) -> list[Hits]:
        """Find the hits of each query of the batch, which costs nothing."""
        release, public = self._serve(), self._options.public_scores
        assert self._reading is not None
        reading = self._reading.read_for(hit_filter.k, lambda k: release.worth(k, public_scores=public))
        hits = []
        for number in self._find_numbers(queries):
            found = release.search(number, len(self._names))
            pairs = zip(found.indices.tolist(), found.scores.tolist(), strict=True)
            least = hit_filter.threshold
            kept = (
                (self._names[place], score)
                for place, score in pairs
                if (least is None or score >= least) and hit_filter.accepts(self._names[place])
            )
            chosen = list(islice(kept, hit_filter.k))
            hits.append(reading.make_hits(tuple(one for one, _ in chosen), np.array([score for _, score in chosen])))
        return hits

    def _find_numbers(self, queries: Float) -> list[int]:
        """Find the number of each query in the batch."""
        known = self._serve().queries.astype(np.float64)
        cosines = queries @ known.T
        numbers = cosines.argmax(axis=1)
        if (cosines[np.arange(len(queries)), numbers] < _SAME).any():
            raise InvalidInput(
                "This query is not one of the 'queries' that the batch was made for, and no other is answered: make an "
                "index for queries that come later."
            )
        return [int(number) for number in numbers]

    def _serve(self) -> BatchRelease:
        if self._release is None:
            raise InvalidInput("The batch is still being made; it answers when the constructor has returned.")
        return self._release

    def _make(self) -> None:
        options = self._options
        assert options.queries is not None
        public, _ = _embeddings.as_queries(options.queries, self.dimension, "queries")
        try:
            snapshot = self._records.take_snapshot()
            if snapshot.rows is None:
                raise InvalidInput("A batch is made of vectors: pin='scores' has none; use mode='query'.")
            names, adjacency = self._identities.group(snapshot.ids)
            prepare = partial(prepare_batch, k=options.k, names=options.names, levels=options.cuts, adjacency=adjacency)
            pending = prepare(
                snapshot.rows, public, epsilon=options.epsilon, rng=options.rng, progress=options.progress
            )
            rows = make_public_rows(*snapshot.rows.shape)
            worth = check_batch_worth(
                pending.guarantee,
                public.shape[1],
                options.k,
                options.public_scores,
                options.require_recall,
                lambda other: prepare(rows, public, epsilon=other, rng=0).guarantee,
            )
            release = pending.release(options.ledger, same_people=True)
        finally:
            self._records.forget()
        reader = ScoreReader(release.guarantee, options.public_scores, public.shape[1])
        self.version, self._names, self._state = snapshot.version, names, snapshot.state
        self._reading = Reading(release.guarantee, snapshot.version, reader, worth)
        self._release = release
