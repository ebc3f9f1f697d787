"""From the policy of a collection to the releases of the library: what one query costs, draws and names.

An offer is fixed by the policy. A caller chooses the query and how much of the released ranking to see, and neither the
mechanism nor its parameters.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from scoreshield._types import Rng
from scoreshield.decisions.worth import Worth, predict_worth
from scoreshield.geometry.passes import MeasuredRows
from scoreshield.privacy.filters import PrivacyFilter
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.privacy.sampling.threads import count_threads
from scoreshield.releases.index import IndexRelease, predict_index_worth, prepare_index
from scoreshield.releases.matches import prepare_matches
from scoreshield.releases.pipeline import PendingRelease
from scoreshield.releases.results import MatchRelease, Release, ScoreRelease, TopKRelease, load
from scoreshield.releases.scores import PendingScores, prepare_scores
from scoreshield.releases.top_k import prepare_top_k
from scoreshield.service.collection import CollectionData
from scoreshield.service.installation import hash_text
from scoreshield.service.policy import CollectionPolicy, IndexPolicy, MatchesPolicy, SearchPolicy, TopKPolicy

#: The most queries that headroom is counted to.
MOST_LEFT = 1_000_000
Query = NDArray[np.float64]
Preparation = Callable[[Query | None, Rng], PendingRelease[Any, Any]]


@dataclass(frozen=True)
class StoredRanking:
    """The released records of one query.

    Attributes:
        records: Their places in the collection, best first.
        scores: Their released scores; None where only names were released.
        promise: Epsilon, delta and mechanism of the charge. A later version of the library may choose otherwise.
    """

    records: Sequence[int]
    scores: Sequence[float] | None
    promise: dict[str, Any]

    @classmethod
    def of_release(
        cls, release: Release, places: NDArray[np.intp], scores: NDArray[np.float64] | None
    ) -> StoredRanking:
        """Make the ranking of a release."""
        listed = None if scores is None else (scores + 0.0).tolist()  # no -0.0
        return cls(places.tolist(), listed, describe_promise(release.guarantee))

    def pack(self) -> PackedAnswer:
        """Write the ranking as it is stored."""
        # As `write_canonical_json` writes it. Many records share a released score, whose digits are found once.
        digits = {score: repr(score) for score in set(self.scores or ())}
        scores = "null" if self.scores is None else f"[{','.join(map(digits.__getitem__, self.scores))}]"
        promise, records = write_canonical_json(self.promise), write_canonical_json(self.records)
        return PackedAnswer(f'{{"promise":{promise},"records":{records},"scores":{scores}}}'.encode("ascii"), self)


class PackedAnswer(NamedTuple):
    """What is stored of a release, and its ranking if it has one."""

    content: bytes
    ranking: StoredRanking | None = None


@dataclass(frozen=True, repr=False, eq=False)
class QueryOffer:
    """One action of a collection.

    Attributes:
        action: The name of the action.
        parameters: The mechanism and what it draws with, as canonical JSON. Answers are found by it.
        most: The most records that one answer names.
        default: How many records an answer names where the caller does not say.
        prepare: Prepares the release of one query, without a charge.
        pack: Writes a release as it is stored.
        dimension: Of the vectors.
        example: A public query, to state what a query costs.
        help: Takes part in computing the clean values that another thread computes, if that goes faster.
    """

    action: str
    parameters: str
    most: int
    default: int
    prepare: Preparation
    pack: Callable[[Any], PackedAnswer]
    dimension: int
    example: Query | None
    help: Callable[[], None] = lambda: None

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of one answer, from public facts."""
        return self.prepare(self.example, None).guarantee

    @cached_property
    def _promise(self) -> str:
        return hash_promise(self.guarantee)

    def hash_promise(self, guarantee: Guarantee) -> str:
        """Compute the hash of the guarantee of one answer. Nearly all answers of an offer have the same one."""
        return self._promise if guarantee == self.guarantee else hash_promise(guarantee)

    def predict(self, k: int) -> Worth:
        """Predict what an answer is worth, from public facts."""
        if self.action == "index":
            return predict_index_worth(self.guarantee, self.dimension, k, None, None)
        return predict_worth(self.guarantee, k=k, dimension=self.dimension)


def make_offers(name: str, policy: CollectionPolicy, data: CollectionData) -> dict[str, QueryOffer]:
    """Make the offers of a collection. A search by the index is answered by the offer of the index."""
    offers: dict[str, QueryOffer] = {}
    if policy.search is not None and policy.search.mechanism != "index":
        offers["search"] = _make_search_offer(name, policy.search, data)
    if policy.matches is not None:
        offers["matches"] = _make_match_offer(name, policy.matches, data)
    if policy.top_k is not None:
        offers["top_k"] = _make_top_k_offer(name, policy.top_k, data)
    if policy.index is not None:
        offers["index"] = _make_index_offer(name, policy.index, policy.search, data)
    for offer in offers.values():
        _ = offer.guarantee  # parameters that do not fit raise an error now, not at the first query
    return offers


def _make_search_offer(name: str, search: SearchPolicy, data: CollectionData) -> QueryOffer:
    example, measured = _make_example(data), MeasuredRows(data.vectors, threads=count_threads())
    shared = {"epsilon": search.epsilon, "delta": search.delta, "score_range": search.score_range}
    choice = {"for_": "ranking", "k": search.k} if search.mechanism == "auto" else {"mechanism": search.mechanism}
    arguments: dict[str, Any] = shared | choice
    pending = prepare_scores(data.vectors, example, rng=None, measured=measured, **arguments)
    chosen = pending.guarantee
    # Only what the noise is drawn with: another `k` or `keep` that leaves it as it is costs nothing.
    settings = shared | {"mechanism": chosen.mechanism, "k": chosen.details.get("k")}
    return QueryOffer(
        action="search",
        parameters=_write_parameters(name, "search", settings),
        most=min(search.most, data.size),
        default=min(search.k, data.size),
        prepare=partial(_prepare_scores, pending, arguments),
        pack=partial(_pack_scores, keep=min(search.keep, data.size)),
        dimension=data.dimension,
        example=example,
        help=measured.help,
    )


def _make_match_offer(name: str, matches: MatchesPolicy, data: CollectionData) -> QueryOffer:
    settings, most = matches.model_dump(exclude={"most"}), min(matches.most, data.size)
    return QueryOffer(
        action="matches",
        parameters=_write_parameters(name, "matches", settings),
        most=most,
        default=most,
        prepare=lambda query, rng: prepare_matches(data.vectors, cast("Query", query), rng=rng, **settings),
        pack=_pack_matches,
        dimension=data.dimension,
        example=_make_example(data),
    )


def _make_top_k_offer(name: str, top_k: TopKPolicy, data: CollectionData) -> QueryOffer:
    settings = top_k.model_dump()
    return QueryOffer(
        action="top_k",
        parameters=_write_parameters(name, "top_k", settings),
        most=top_k.k,
        default=top_k.k,
        prepare=lambda query, rng: prepare_top_k(data.vectors, cast("Query", query), rng=rng, **settings),
        pack=_pack_top_k,
        dimension=data.dimension,
        example=_make_example(data),
    )


def _make_index_offer(name: str, index: IndexPolicy, search: SearchPolicy | None, data: CollectionData) -> QueryOffer:
    settings = index.model_dump()
    return QueryOffer(
        action="index",
        parameters=_write_parameters(name, "index", settings),
        most=min(data.size if search is None else search.most, data.size),
        default=min(10 if search is None else search.k, data.size),
        prepare=lambda _, rng: prepare_index(data.vectors, rng=rng, **settings),
        pack=_pack_index,
        dimension=data.dimension,
        example=None,
    )


def _make_example(data: CollectionData) -> Query:
    """Make a public query, whose cost is that of every other one."""
    example: Query = np.eye(1, data.dimension)[0]
    return example


def find_cost_faults(name: str, policy: CollectionPolicy, offers: dict[str, QueryOffer]) -> list[str]:
    """Find offers that the whole budget of a collection does not cover; one sentence for each."""
    faults = []
    for action, offer in offers.items():
        fits = count_in_budget(policy, offers, action)
        if fits == 0:
            needs = " and a delta above 0" if offer.guarantee.delta and not policy.budget.delta else ""
            faults.append(f"The budget of collection {name} never covers one {action}: it needs more epsilon{needs}.")
        expected = policy.expected_queries
        if action == "search" and expected is not None and 0 < fits < expected:
            faults.append(f"Collection {name} expects {expected} queries, and its budget covers {fits}.")
    return faults


def count_in_budget(policy: CollectionPolicy, offers: dict[str, QueryOffer], action: str) -> int:
    """Count how many answers of one offer the whole budget of a collection covers, after the charge of its index."""
    budget, index = PrivacyFilter(policy.budget.epsilon, policy.budget.delta), offers.get("index")
    if action != "index" and index is not None and budget.would_fit(index.guarantee):
        budget.spend(index.guarantee)
    return budget.count_fitting(offers[action].guarantee, MOST_LEFT)


def describe_promise(guarantee: Guarantee) -> dict[str, Any]:
    """Describe the charge of an answer: epsilon, delta and mechanism."""
    return {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "mechanism": guarantee.mechanism}


def hash_promise(guarantee: Guarantee) -> str:
    """Compute a hash of a guarantee. An answer is never drawn under another promise than the one that was charged."""
    return hash_text(write_canonical_json(guarantee.drop_provenance().to_dict()))


def parse_ranking(content: bytes) -> StoredRanking:
    """Read a stored ranking."""
    data = json.loads(content)
    return StoredRanking(**data)


def parse_index(content: bytes) -> IndexRelease:
    """Read a stored index."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.npz"
        path.write_bytes(content)
        index = load(path)
    assert isinstance(index, IndexRelease)
    return index


def _prepare_scores(
    pending: PendingScores, arguments: dict[str, Any], query: Query | None, rng: Rng
) -> PendingRelease[Any, Any]:
    """Prepare the scores of an offer for a query. Nearly all take the noise that was chosen for the first one."""
    assert query is not None
    if rng is None and pending.guarantee.mechanism != "gaussian":
        return pending.with_query(query)
    problem = pending.problem
    return prepare_scores(problem.source.records, query, rng=rng, measured=problem.measured, **arguments)


def _write_parameters(name: str, action: str, settings: dict[str, Any]) -> str:
    return write_canonical_json({"collection": name, "action": action, "settings": settings})


def _pack_scores(release: ScoreRelease, keep: int) -> PackedAnswer:
    noisy = release.noisy
    least = -np.inf if keep >= len(noisy) else np.partition(noisy, len(noisy) - keep)[len(noisy) - keep]
    chosen = np.flatnonzero(noisy >= least)  # more than asked for where the last place is tied
    # Ties are in a random order that belongs to the release, as in `top_k`, drawn for the chosen records alone.
    order = np.random.default_rng(release.tie_break).random(len(chosen))
    best = chosen[np.lexsort((order, -noisy[chosen]))][:keep]
    return StoredRanking.of_release(release, best, release.noisy[best]).pack()


def _pack_matches(release: MatchRelease) -> PackedAnswer:
    places = release.indices
    scores = release.noisy[np.searchsorted(release.candidates, places)] if len(release.noisy) else None
    return StoredRanking.of_release(release, places, scores).pack()


def _pack_top_k(release: TopKRelease) -> PackedAnswer:
    return StoredRanking.of_release(release, release.indices, None).pack()


def _pack_index(release: IndexRelease) -> PackedAnswer:
    buffer = io.BytesIO()
    release.writer()(buffer)
    return PackedAnswer(buffer.getvalue())
