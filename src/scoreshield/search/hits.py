"""A search with a hit budget: one charge for all queries, and each record is named truly for at most a few of them."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._formatting import choose_words
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.simulation import ASKED, add_note, simulate_hits, state_simulated_worth
from scoreshield.decisions.worth import Worth, predict_worth
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Identity, NullRecord, Replacement, check_score_range
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.hit_budget import Bools, Counts, HitBudget, name_records
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.privacy.levels.cuts import check_increasing
from scoreshield.privacy.profiles import PureProfile
from scoreshield.privacy.sampling.stream import Stream, check_process, identify_process, name_sampler, open_stream
from scoreshield.releases.advice import Adviser
from scoreshield.releases.batch import PublicLevels
from scoreshield.releases.pipeline import PrivateCollection, draw_tie_break, reserve, state_provenance
from scoreshield.search.base import BaseStoreSearch, Float, HitFilter, Hits, SearchOptions
from scoreshield.search.hit_counters import (
    CounterFile,
    CounterHeader,
    HitCounters,
    MemoryCounters,
    check_file_locks,
    create_counters,
)
from scoreshield.search.index_files import ChargeReference, check_savable, has_entry, lock_index, resolve_path
from scoreshield.search.sources import IdentityMap, Names, check_ledger
from scoreshield.search.totals import path_exists
from scoreshield.stores.pinned import PinnedStore, Snapshot

#: The default cuts. They were chosen on public questions and titles (FRAMES) under all-MiniLM-L6-v2, and suit models
#: whose irrelevant cosines are about 0.1 ± 0.1.
HIT_CUTS: tuple[float, ...] = tuple(round(0.30 + 0.035 * step, 3) for step in range(14))
#: With fewer hits than this, a query stops at a part of the k names that it is asked for.
_HITS_FOR_K = 4
#: What the prediction says where it does not know which records several queries want.
_FIRST_NOTE = (
    "This is about the first query: later queries find fewer of the records that several queries want, and public "
    "scores of each query ({how}) show how many."
)
#: The most levels above the bottom.
_MOST_CUTS = 100
#: The step of the grid of released values.
_GRID = 2.0**-20
#: So many names, or ten times as many as are enough, are a reason to warn.
_MANY_NAMES = 50
#: How many answers are kept for queries that are asked again.
_MOST_ANSWERS = 1_000


class _Answer(NamedTuple):
    """The names of one query, best first, and the value of each one's level."""

    places: NDArray[np.intp]
    values: Float


class HitSearch(BaseStoreSearch):
    """Name the records that are near a query, as often as each record's budget allows.

    The budget is charged when the search is made. The counter of a record belongs to its id: a record whose vector
    changes keeps its counter.
    """

    mode = "hits"
    coverage = "every query to this search"
    releases_scores = True

    @classmethod
    def check_options(cls, options: SearchOptions) -> None:
        """Raise an error for options that a hit budget does not take."""
        check_ledger(options.ledger, options.rng)
        options.reject_screening()
        options.reject_batch()
        if options.delta:
            _validation.reject("delta", "0 (left out) for mode='hits', which is private without it", options.delta)
        if options.mechanism is not None:
            raise InvalidInput("Mode 'hits' has one mechanism, the hit budget; leave 'mechanism' out.")
        if options.components is not None or not isinstance(options.reduction, str) or options.reduction != "random":
            raise InvalidInput("'components' and 'reduction' are for mode='index'.")
        options.reject_codebook()
        if options.max_epsilon is not None:
            raise InvalidInput("'max_epsilon' is for an index without a ledger; mode 'hits' is charged once.")
        if check_score_range(options.score_range) != FULL_RANGE:
            raise InvalidInput("Mode 'hits' has no score range: 'cuts' says which scores get different levels.")
        if options.adjacency is not None and type(options.adjacency) not in (Replacement, NullRecord):
            _validation.reject("adjacency", "Replacement() or NullRecord() for mode='hits'", options.adjacency)
        choose_cuts(options.cuts, 1)  # any number of records: this checks cuts that are given
        if options.names is not None:
            _validation.check_count(options.names, "names")
        is_null = isinstance(options.adjacency, NullRecord)
        HitBudget.split(options.epsilon, 1 if options.hits is None else options.hits, is_null=is_null)
        if options.file is not None:
            check_file_locks()

    def __init__(self, options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> None:
        super().__init__(options, records, identities)
        if identities.has_identities and not identities.centroids:
            how = choose_words("use centroids=True with 'identity_of'", "give --centroids with --labels")
            raise InvalidInput(f"A hit budget is private only if one identity has one vector: {how}.")
        if identities.has_identities and isinstance(options.adjacency, NullRecord):
            null, identities_name = (
                choose_words("NullRecord()", "--null-record"),
                choose_words("'identity_of'", "--labels"),
            )
            raise InvalidInput(f"{null} is about one record: leave it out with {identities_name}.")
        self._file = None if options.file is None else resolve_path(options.file)
        self._counters: HitCounters | None = None
        self._collection: _Collection | None = None
        self._has_warned = False
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._worth: Worth | None = None
        self._worths: dict[int, Worth] = {}

    def start(self) -> None:
        """Charge the budget, or take the counters of an earlier process from the file."""
        self._read(self._start)

    @property
    def ids(self) -> Names:
        return self._names

    @property
    def guarantee(self) -> Guarantee:
        return self._guarantee

    @property
    def worth(self) -> Worth | None:
        return self._worth

    @property
    def spent(self) -> float:
        return 0.0 if self._guarantee.sampler == "research" else float(self._guarantee.details["replacement_epsilon"])

    def is_stale(self) -> bool | None:
        return self._read(self._records.is_stale)

    def refresh(self) -> None:
        raise InvalidInput("A hit budget is not refreshed: make a new PrivateSearch, which is charged again.")

    def save(self, path: Path) -> None:
        del path
        raise InvalidInput("Only an index is saved; in mode 'hits' give a 'file' when the search is made.")

    def describe(self, hits: Hits) -> dict[str, Any]:
        facts = super().describe(hits)
        if hits.guarantee is not None:
            facts |= {name: hits.guarantee.details[name] for name in ("hits", "null_epsilon", "replacement_epsilon")}
        return facts

    def answer(self, queries: Float, hit_filter: HitFilter) -> list[Hits]:
        is_asked = None
        if not hit_filter.accepts_all:  # before the lock: a ``where`` may call this search
            is_asked = np.array([hit_filter.accepts(name) for name in self._names], dtype=bool)
            if not is_asked.any():
                return [Hits((), np.empty(0), np.empty(0), None, self.version)] * len(queries)
        with self._lock.hold("search()"):
            return self._read(lambda: self._answer(queries, hit_filter, is_asked))

    # ---- The start.

    def _start(self) -> None:
        options, process = self._options, identify_process()
        names, adjacency, collection = self._read_collection()
        if collection.rows is not None:
            _embeddings.check_finite(collection.rows)  # before the charge; each query checks the rows that it scores
        self._names, self._collection = names, collection
        is_null = isinstance(options.adjacency, NullRecord)
        budget = self._choose_budget(options.epsilon)
        self._budget = budget
        self._cuts = choose_cuts(options.cuts, len(names))
        self._values = compute_level_values(self._cuts)
        promised = options.adjacency if is_null and options.adjacency is not None else adjacency
        self._guarantee = state_guarantee(budget, self._cuts, promised, len(names), options.epsilon, options.rng)

        self._worth = self._find_worth(options.k)

        def charge() -> Mapping[str, Any] | None:
            pending = reserve(options.ledger, [self._guarantee], promised, same_people=True)
            if options.rng is None:
                check_process(process)
            entries = pending.commit()
            self._guarantee = state_provenance(self._guarantee, options.ledger, entries[0] if entries else None)
            return ChargeReference(str(entries[0].dataset), entries[0].hash)._asdict() if entries else None

        if self._file is None:
            self._check_worth()
            charge()
            self._counters = MemoryCounters(len(names))
            return
        path = self._file
        check_savable(names)
        with lock_index(path):
            if not path_exists(path):
                self._check_worth()
                ids = [one if isinstance(one, str) else int(one) for one in names]
                create_counters(path, len(names), {"guarantee": self._guarantee.to_dict(), "ids": ids}, charge)
            counters = CounterFile(path)
            self._check_header(_check_facts(counters.header, path), path)
            self._names, self._counters = tuple(counters.header.facts["ids"]), counters

    def _find_worth(self, k: int) -> Worth:
        """Predict the worth of a query that asks for k records, once for each k."""
        if k not in self._worths:
            self._worths[k] = self._predict(self._guarantee, k)
        return self._worths[k]

    def _predict(self, guarantee: Guarantee, k: int) -> Worth:
        options = self._options
        return predict_hits_worth(guarantee, self.dimension, k, options.public_scores, names=options.names)

    def _check_worth(self) -> None:
        """Warn before the charge where queries would be answered mostly by false names."""
        options, worth = self._options, self._worth
        assert worth is not None
        adviser = Adviser(
            "hits",
            options.epsilon,
            self.dimension,
            options.public_scores,
            options.require_recall,
            may_query=options.may_suggest_queries,
            repeat=self._repeat,
        )
        adviser.check(worth, is_charged=options.rng is None)

    def _choose_budget(self, epsilon: float) -> HitBudget:
        is_null = isinstance(self._options.adjacency, NullRecord)
        if self._options.hits is None:
            return HitBudget.choose(epsilon, len(self._names), is_null=is_null)
        return HitBudget.split(epsilon, self._options.hits, is_null=is_null)

    def _repeat(self, epsilon: float) -> Worth:
        """Predict the worth of the same search at another epsilon."""
        options, promised = self._options, self._guarantee.adjacency
        budget = self._choose_budget(epsilon)
        guarantee = state_guarantee(budget, self._cuts, promised, len(self._names), epsilon, options.rng)
        return self._predict(guarantee, options.k)

    def _check_header(self, facts: Mapping[str, Any], path: Path) -> None:
        """Raise an error unless the counters in a file are of this search."""
        saved, wanted = facts["guarantee"], self._guarantee.to_dict()
        for name in ("epsilon", "sampler", "adjacency", "details"):
            if write_canonical_json(saved.get(name)) != write_canonical_json(wanted[name]):
                what = "hits or cuts" if name == "details" else name
                raise InvalidInput(f"{path} holds the counters of a search with other {what}: name another file.")
        if set(facts["ids"]) != set(self._names):
            raise InvalidInput(
                f"{path} holds the counters of other records. Records that come or go need a new search, which is "
                "charged: name another file."
            )
        account: Any = self._options.ledger
        if account is None:
            return
        paid = facts["paid"]
        is_charged = paid is not None and paid["dataset"] == account.dataset
        if not is_charged or not has_entry(account, ChargeReference(**paid), write_canonical_json(saved)):
            raise InvalidInput(
                f"{path} holds the counters of a search that the account {account.dataset!r} was not charged for: open "
                "it with the account that was charged, or name another file."
            )
        self._guarantee = state_provenance(self._guarantee, account, account.ledger.entry(paid["entry"]))

    # ---- The records.

    def _read_collection(self) -> tuple[Names, Adjacency, _Collection]:
        snapshot = self._records.take_snapshot()
        names, adjacency = self._identities.group(snapshot.ids)
        rows = snapshot.rows
        if isinstance(adjacency, Identity):
            assert rows is not None  # IdentityMap rejects centroids of a store that gives scores alone
            rows = PrivateCollection.check(rows, adjacency).rows()
        return names, adjacency, _Collection(snapshot, names, rows)

    def _update_collection(self) -> _Collection:
        """Take the present vectors. Their ids must be the ids that were charged."""
        before = self._collection
        snapshot = self._records.take_snapshot()
        if before is not None and before.snapshot is snapshot:
            return before
        names, _, collection = self._read_collection()
        if before is not None and before.snapshot.version != snapshot.version:
            self._answers.clear()
        if set(names) != set(self._names):
            raise StoreError(
                f"{self.source_name} has other records than this search was charged for: make a new search, which is "
                "charged again; nothing was released."
            )
        self._collection = collection
        return collection

    # ---- An answer.

    def _answer(self, queries: Float, hit_filter: HitFilter, is_asked: Bools | None) -> list[Hits]:
        assert self._counters is not None
        collection = self._update_collection()
        self.version = collection.snapshot.version
        if is_asked is None:
            is_asked = np.ones(len(self._names), dtype=bool)
        enough = self._options.names
        if enough is None:  # chosen on the same public data as the cuts: one query must not use up few hits
            enough = count_enough_names(self._budget, hit_filter.k)
        mask = hashlib.sha256(is_asked.tobytes()).digest()
        keys = [hashlib.sha256(query.tobytes() + mask + enough.to_bytes(8, "big")).digest() for query in queries]
        known = {key: self._answers[key] for key in keys if key in self._answers}
        todo = {key: query for key, query in zip(keys, queries, strict=True) if key not in known}
        if todo:
            places = collection.find_places(self._names)

            def take_step(counts: Counts) -> tuple[Counts, list[_Answer]]:
                stream, used = open_stream(self._options.rng), counts.copy()
                return used, [
                    self._draw(stream, _reorder(collection.score(query), places), used, is_asked, enough)
                    for query in todo.values()
                ]

            drawn = self._counters.update(take_step)
            self._warn_of_many_names(max(len(answer.places) for answer in drawn), enough)
            known |= dict(zip(todo, drawn, strict=True))
            self._answers |= {key: known[key] for key in todo}
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        return [self._select(known[key], hit_filter) for key in keys]

    def _draw(self, stream: Stream, scores: Float, used: Counts, is_asked: Bools, enough: int) -> _Answer:
        """Draw the names of one query. The clean scores and levels are overwritten."""
        levels = np.searchsorted(self._cuts, scores, side="left").astype(np.int64)
        scores.fill(0.0)
        released = name_records(self._budget, stream, levels, used, is_asked, rounds=len(self._cuts), enough=enough)
        levels.fill(0)
        places = np.random.default_rng(draw_tie_break(stream)).permutation(np.flatnonzero(released))
        places = places[np.argsort(-released[places], kind="stable")]
        return _Answer(places, self._values[released[places]])

    def _warn_of_many_names(self, named: int, enough: int) -> None:
        """Warn where a query names far more records than it needs. The number of names is released."""
        if self._has_warned or named <= max(_MANY_NAMES, 10 * enough):
            return
        self._has_warned = True
        warnings.warn(
            f"A query named {named:,} records, and {enough:,} would have been enough: the cuts are too low for this "
            "model, or epsilon is too small for so many records. Hits are used up quickly.",
            stacklevel=2,
        )

    def _select(self, answer: _Answer, hit_filter: HitFilter) -> Hits:
        places, values = answer
        if hit_filter.threshold is not None:
            places, values = places[values >= hit_filter.threshold], values[values >= hit_filter.threshold]
        places, values = places[: hit_filter.k], values[: hit_filter.k].copy()
        ids = tuple(self._names[place] for place in places)
        worth = self._find_worth(min(hit_filter.k, self._options.k))
        return Hits(ids, values, values.copy(), self._guarantee, self.version, None, worth)


def count_enough_names(budget: HitBudget, k: int) -> int:
    """Count the names that end a query for k records. With few hits a query names fewer than it is asked for."""
    return math.ceil(k * min(1.0, budget.hits / _HITS_FOR_K))


def predict_hits_worth(
    guarantee: Guarantee,
    dimension: int,
    k: int,
    public_scores: QueryScores | None,
    *,
    names: int | None = None,
    queries: int = ASKED,
) -> Worth:
    """Predict the worth of a hit budget from its guarantee.

    With the caller's public scores of each query, queries in a row are simulated on them. Otherwise the prediction is
    that of the first query, and its sentence says so.

    Args:
        guarantee: Of the search.
        dimension: Of the embeddings.
        k: How many records are returned for a query at most.
        public_scores: The caller's public scores.
        names: How many names end a query; None where it is chosen.
        queries: How many queries are asked in a row.
    """
    details, records = guarantee.details, guarantee.shape[0]
    if public_scores is None or public_scores.joint is None:
        worth = predict_worth(guarantee, k=k, dimension=dimension, public_scores=public_scores)
        return add_note(worth, _FIRST_NOTE.format(how=choose_words("QueryScores", "--public-scores")))
    budget = HitBudget(details["hits"], details["hit_epsilon"], details["miss_epsilon"])
    simulated = simulate_hits(
        public_scores,
        budget,
        details["cuts"],
        records=records,
        k=k,
        enough=count_enough_names(budget, k) if names is None else names,
        queries=queries,
    )
    many = f"{simulated.queries:,} public queries in a row"
    note = f"Simulated on {many}: each record answers at most {budget.hits:,} of them truly."
    return state_simulated_worth(simulated, public_scores, k=k, records=records, asked=simulated.queries, note=note)


def _reorder(scores: Float, places: NDArray[np.intp] | None) -> Float:
    """Bring clean scores into another order, and overwrite those in the first one."""
    if places is None:
        return scores
    found: Float = scores[places]
    scores.fill(0.0)
    return found


class _Collection(NamedTuple):
    """One version of the records, in the order of the store."""

    snapshot: Snapshot
    names: Names
    rows: NDArray[Any] | None

    def score(self, query: Float) -> Float:
        """Compute the clean scores of one query."""
        rows, public = self.snapshot.make_problem(query) if self.rows is None else (self.rows, query)
        scores: Float = _embeddings.compute_scores(rows, public[None], "unit")[0]
        return scores

    def find_places(self, names: Names) -> NDArray[np.intp] | None:
        """Find the row of each name; None where the names are in the order of the rows."""
        if names is self.names or names == self.names:
            return None
        rows = {name: row for row, name in enumerate(self.names)}
        return np.array([rows[name] for name in names], dtype=np.intp)


def _check_facts(header: CounterHeader, path: Path) -> Mapping[str, Any]:
    """Check that the header of a file has the facts of a hit budget, one id for each counter."""
    facts: Any = header.facts
    is_valid = isinstance(facts, dict) and facts.keys() >= {"guarantee", "ids", "paid"}
    if is_valid:
        ids, paid = facts["ids"], facts["paid"]
        is_valid = (
            isinstance(facts["guarantee"], dict)
            and isinstance(ids, list)
            and all(type(one) in (int, str) for one in ids)
            and len(set(ids)) == len(ids) == header.records
            and (paid is None or (isinstance(paid, dict) and paid.keys() == set(ChargeReference._fields)))
            and all(isinstance(one, str) for one in (paid or {}).values())
        )
    if not is_valid:
        raise InvalidInput(f"{path} holds no counters of a hit budget, or was changed.")
    found: Mapping[str, Any] = facts
    return found


def check_cuts(cuts: Any) -> Float:
    """Check public cuts between levels: increasing, inside (-1, 1), not too many."""
    found = check_increasing(cuts, "cuts")
    if not (found[0] > -1 and found[-1] < 1) or len(found) > _MOST_CUTS:
        _validation.reject("cuts", f"from 1 to {_MOST_CUTS} increasing numbers inside (-1, 1)", cuts)
    return found


def choose_cuts(cuts: Any, records: int) -> Float:
    """Take the given cuts, or the default ones, or place cuts by public levels for so many records."""
    if isinstance(cuts, PublicLevels):
        cuts = cuts.place_for_hits(records)
    return check_cuts(HIT_CUTS if cuts is None else cuts)


def compute_level_values(cuts: Float) -> Float:
    """Compute the value that stands for each level: the middle of its scores, on the public grid."""
    edges = np.concatenate([[-1.0], cuts, [1.0]])
    values: Float = np.rint((edges[:-1] + edges[1:]) / 2 / _GRID) * _GRID
    return values


def state_guarantee(
    budget: HitBudget, cuts: Float, adjacency: Adjacency, records: int, epsilon: float, rng: Any
) -> Guarantee:
    """State what a search with this budget promises."""
    return Guarantee.for_mechanism(
        ReleaseFacts(adjacency, "hits", (records,), FULL_RANGE, name_sampler(rng)),
        epsilon=epsilon,
        delta=0.0,
        mechanism="hit-budget",
        sensitivity=1.0,
        grid_sensitivity=1.0,
        scale=1.0,
        grid=_GRID,
        profile=PureProfile(epsilon),
        details={
            "hits": budget.hits,
            "hit_epsilon": budget.hit_epsilon,
            "miss_epsilon": budget.miss_epsilon,
            "null_epsilon": budget.null_epsilon,
            "replacement_epsilon": budget.replacement_epsilon,
            "true_name_probability": budget.true_probability,
            "false_name_probability": budget.false_probability,
            "cuts": cuts.tolist(),
        },
    )
