"""A private index that answers every query: it is charged once, and each answer is post-processing of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import Worth
from scoreshield.errors import FileError, InvalidInput, StoreError
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, check_score_range
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.sampling.stream import identify_process
from scoreshield.releases.advice import make_public_rows
from scoreshield.releases.index import PrivateIndex, check_index_worth, prepare_index
from scoreshield.releases.versions import IndexHistory, release_version
from scoreshield.search.base import (
    BaseSearch,
    Float,
    HitFilter,
    Hits,
    Reading,
    ScoreReader,
    SearchMechanism,
    SearchOptions,
)
from scoreshield.search.index_files import (
    ChargeReference,
    IndexRequest,
    SavedIndex,
    check_index_writable,
    check_records,
    check_request,
    check_savable,
    lock_index,
    read_index,
    resolve_path,
    try_read_index,
    write_hidden,
    write_index,
)
from scoreshield.search.sources import IdentityMap, Names, check_ledger, read_records
from scoreshield.search.totals import IndexAccount, IndexTotal, path_exists, read_total
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import read_store

#: The state of a store that was never read.
UNKNOWN_STATE = object()


class IndexNotSaved(FileError):
    """An index was made and charged, and could not be written.

    Attributes:
        search: A search that holds the index. It answers, and ``search.save()`` saves the index.
    """

    def __init__(self, error: FileError, search: Any) -> None:
        super().__init__(
            f"{error} The index has been made and charged: call save() on the 'search' of this error; making it again "
            "would charge again."
        )
        self.search = search

    def __reduce__(self) -> Any:
        return FileError, (str(self),)


class ServedIndex(NamedTuple):
    """A private index and the names of its rows. It is replaced as a whole: another thread may answer from it.

    Attributes:
        release: The private vectors, or the private codes.
        ids: The names of its rows.
        version: Of the collection.
        state: The store's state when the index was made from it, or loaded from a file.
        is_stale: Whether the store had other records even then; None where that is unknown, as for a file.
        charge: The entry of the ledger.
        reading: What all hits of the index share.
    """

    release: PrivateIndex
    ids: Names
    version: int
    state: Hashable = UNKNOWN_STATE
    is_stale: bool | None = None
    charge: ChargeReference | None = None
    reading: Reading | None = None

    def compare(self, read_state: Callable[[], Hashable]) -> bool | None:
        """Find whether the store has other records than the index; None where that is unknown."""
        if self.is_stale or self.state is UNKNOWN_STATE:
            return self.is_stale
        return True if read_state() != self.state else self.is_stale

    def answer(self, queries: Float, hit_filter: HitFilter, reading: Reading) -> list[Hits]:
        """Find the hits of each query. A ``where`` may see their ranking, which costs nothing."""
        index, names = self.release, self.ids
        if hit_filter.threshold is None and hit_filter.accepts_all:
            best = index.search(queries, hit_filter.k)
            return [
                reading.make_hits(tuple(names[i] for i in places), noisy)
                for noisy, places in zip(best.scores, best.indices, strict=True)
            ]
        hits = []
        for noisy in index.scores(queries):
            ranking = np.argsort(-noisy, kind="stable")
            if hit_filter.threshold is not None:
                ranking = ranking[noisy[ranking] >= hit_filter.threshold]
            accepted = (place for place in ranking.tolist() if hit_filter.accepts(names[place]))
            chosen = np.fromiter(islice(accepted, hit_filter.k), dtype=np.intp)
            hits.append(reading.make_hits(tuple(names[i] for i in chosen), noisy[chosen]))
        return hits


class BaseIndexSearch(BaseSearch):
    """Answer from a private index."""

    mode = "index"
    coverage = "every query to this index"
    releases_scores = True

    def __init__(self, total: IndexTotal, file: Path | None) -> None:
        super().__init__()
        self.index: ServedIndex | None = None
        self.total = total
        self._file = file
        self._k = 10
        self._public_scores: QueryScores | None = None

    def serve(self, index: ServedIndex, worth: Worth | None = None) -> None:
        """Answer from this index from now on."""
        release = index.release
        if worth is None:
            worth = release.worth(self._k, public_scores=self._public_scores)
        reader = ScoreReader(release.guarantee, self._public_scores, release.dimension)
        self.index = index._replace(reading=Reading(release.guarantee, index.version, reader, worth))

    @property
    def worth(self) -> Worth | None:
        return None if self.index is None or self.index.reading is None else self.index.reading.worth

    @property
    def ids(self) -> Names:
        return self._serve().ids

    @property
    def dimension(self) -> int:
        return self._serve().release.dimension

    @property
    def guarantee(self) -> Guarantee:
        return self._serve().release.guarantee

    @property
    def spent(self) -> float:
        return self.total.spent

    def answer(self, queries: Float, hit_filter: HitFilter) -> list[Hits]:
        index, public = self._serve(), self._public_scores
        assert index.reading is not None  # `serve` gives every index one
        reading = index.reading.read_for(hit_filter.k, lambda k: index.release.worth(k, public_scores=public))
        return index.answer(queries, hit_filter, reading)

    def save(self, path: Path) -> None:
        saved = self.make_saved()
        with lock_index(path):
            write_index(path, saved, keep_hidden=path == self._file)  # where other processes may have hidden more

    def make_saved(self) -> SavedIndex:
        """Collect what the files of the index hold."""
        index = self._serve()
        return SavedIndex(index.release, index.ids, index.version, self.hidden, index.charge, self.total.charges)

    def summarize(self) -> str:
        total = "" if self.index is None else f", total epsilon {self.spent:.6g}"
        return super().summarize() + total

    def describe(self, hits: Hits) -> dict[str, Any]:
        facts = super().describe(hits)
        return facts if hits.guarantee is None else {"total_epsilon": self.spent} | facts

    def _serve(self) -> ServedIndex:
        if self.index is None:
            raise InvalidInput("The index is still being made; it answers when the constructor has returned.")
        return self.index


class LoadedIndexSearch(BaseIndexSearch):
    """Answer from the files of an index, without a store, a clean vector or a budget."""

    source_name = "a saved index"

    def __init__(self, saved: SavedIndex, file: Path) -> None:
        guarantee = saved.release.guarantee
        super().__init__(IndexTotal(guarantee.epsilon, guarantee.delta, saved.charges), file)
        self.serve(ServedIndex(saved.release, saved.ids, saved.version, charge=saved.charge))
        self.version, self.hidden = saved.version, saved.hidden

    def is_stale(self) -> bool | None:
        return None

    def refresh(self) -> None:
        raise InvalidInput("Only an index with a store is refreshed; this one was loaded from its files.")


class IndexSearch(BaseIndexSearch):
    """Make a private index of a store, or load it from its file, and answer from it."""

    @classmethod
    def check_options(cls, options: SearchOptions) -> None:
        """Raise an error for options that an index does not take."""
        check_ledger(options.ledger, options.rng)
        if options.max_epsilon is not None:
            if options.ledger is not None:
                raise InvalidInput("'max_epsilon' is for an index without a ledger: a ledger has its own limit.")
            if not options.epsilon <= _validation.check_real(options.max_epsilon, "max_epsilon") <= 1e9:
                must = f"at least epsilon, {options.epsilon:g}, and at most 1e9"
                _validation.reject("max_epsilon", must, options.max_epsilon)
        options.reject_screening()
        options.reject_hits()
        options.reject_batch()
        if options.changes == "public" and not hasattr(options.ledger, "reserve_draws"):
            raise InvalidInput("changes='public' needs a ledger, which keeps how often each record was drawn.")
        if check_score_range(options.score_range) != FULL_RANGE:
            raise InvalidInput("An index has no score range: its vectors are released, not scores.")

    def __init__(self, options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> None:
        limit = options.epsilon if options.max_epsilon is None else float(options.max_epsilon)
        file = None if options.file is None else resolve_path(options.file)
        super().__init__(IndexTotal(limit, options.delta, {}), file)
        self._options, self._records, self._identities = options, records, identities
        self._k, self._public_scores = options.k, options.public_scores
        self._mechanism: SearchMechanism = "privunit" if options.mechanism is None else options.mechanism
        self._process = identify_process()
        self._check: Callable[[Names], None] | None = None

    def start(self) -> None:
        """Load the index from its file, or make it. Others that start with the file now wait, and load it."""
        if self._file is None:
            self.refresh()
            return
        path = self._file
        with lock_index(path, to_write=False):
            if path_exists(path):
                self._read(lambda: self._load(read_index(path), path))
            else:
                self._read(self._make)

    @property
    def source_name(self) -> str:
        return self._records.store.name

    @property
    def dimension(self) -> int:
        if self.index is not None:
            return self.index.release.dimension
        store = self._records.store
        return read_store(store, "giving its dimension", lambda: store.dimension)

    def is_stale(self) -> bool | None:
        index, store = self.index, self._records.store
        if index is None:
            return self._read(self._records.is_stale)
        return self._read(lambda: index.compare(lambda: read_store(store, "giving its state", store.state)))

    def check_before_refresh(self, check: Callable[[Names], None]) -> None:
        self._check = check

    def refresh(self) -> None:
        self._check_process()
        with self._lock.hold("refresh()"), self._lock_file():
            self._read(self._make)

    def refresh_rows(self, changed: frozenset[Any]) -> None:
        if self._options.changes != "public":
            super().refresh_rows(changed)
        self._check_process()
        with self._lock.hold("refresh()"), self._lock_file():
            self._read(lambda: self._make(changed))

    def hide(self, ids: frozenset[Any]) -> None:
        with self._lock.hold("hide()"):
            self.hidden |= ids
            if self._file is not None:
                with self._lock_file():
                    write_hidden(self._file, self.hidden)

    def _read(self, work: Callable[[], None] | Callable[[], bool | None]) -> bool | None:
        return read_records(self._records.store, work)

    def _check_process(self) -> None:
        """Raise an error in a fork whose total is in memory: each copy of it would spend the whole limit."""
        is_shared = self._options.ledger is not None or self._file is not None
        if identify_process() != self._process and not is_shared and self._options.rng is None:
            raise InvalidInput(
                "This search was made in another process and keeps its total in memory: refresh it there, or give it a "
                "'file' or a 'ledger', which processes share."
            )

    def _lock_file(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._file is None else lock_index(self._file)

    def _make(self, changed: frozenset[Any] | None = None) -> None:
        """Read the records, charge the index, draw its noise and write it.

        Args:
            changed: With public changes, the records that are drawn again; None for all that stayed.
        """
        options, process = self._options, identify_process()
        account = IndexAccount(self.total, options.ledger, self._file)
        try:
            snapshot = self._records.take_snapshot()
            if snapshot.rows is None:
                raise InvalidInput("An index is made of vectors: pin='scores' has none; use mode='query'.")
            names, adjacency = self._identities.group(snapshot.ids)
            if self._check is not None:
                self._check(snapshot.ids)
            if self._file is not None:
                check_savable(names)
                check_index_writable(self._file)
                self._merge(self._file)
            before = self._find_version()
            if before is not None:
                index: PrivateIndex = self._update(before, names, snapshot.rows, changed, account)
            else:
                index = self._release(snapshot.rows, names, adjacency, account)
            names = tuple(index.ids.tolist()) if isinstance(index, IndexHistory) else names
        finally:
            self._records.forget()
        if identify_process() != process:
            raise InvalidInput("The process was forked while it made an index: the process that was charged has it.")
        version = max(snapshot.version, self.version + 1)
        entries = account.entries
        charge = ChargeReference(str(entries[0].dataset), entries[0].hash) if entries else None
        if before is not None and self.index is not None and charge is None:
            charge = self.index.charge
        self.serve(ServedIndex(index, names, version, snapshot.state, False, charge))
        self.version = version
        if self._file is not None:
            saved = self.make_saved()
            try:
                write_index(self._file, saved)
            except FileError as error:
                # A search without the store: an error must not lead to clean vectors.
                raise IndexNotSaved(error, LoadedIndexSearch(saved, self._file)) from None

    def _find_version(self) -> IndexHistory | None:
        """Find the newest version of an index with public changes: in the file, or else in memory."""
        if self._options.changes != "public":
            return None
        saved = None if self._file is None else try_read_index(self._file)
        release = saved.release if saved is not None else None if self.index is None else self.index.release
        return release if isinstance(release, IndexHistory) else None

    def _update(
        self,
        before: IndexHistory,
        names: Names,
        rows: NDArray[Any],
        changed: frozenset[Any] | None,
        account: IndexAccount,
    ) -> IndexHistory:
        """Draw the records that were added or changed, and keep all others."""
        places = {name: place for place, name in enumerate(names)}
        if changed is not None and not changed <= places.keys():
            raise InvalidInput(f"The store has no record {sorted(changed - places.keys(), key=str)[0]!r}.")
        known = set(before.ids.tolist())
        again = [name for name in names if name in known and (changed is None or name in changed)]
        fresh = [name for name in names if name not in known]
        gone = [name for name in known if name not in places]
        if not (again or fresh or gone):
            return before
        parts = [(some, rows[[places[name] for name in some]]) if some else None for some in (fresh, again)]
        return before.update(
            added=parts[0],
            changed=parts[1],
            removed=gone,
            rng=self._options.rng,
            ledger=account,
            progress=self._options.progress,
        )

    def _release(self, rows: NDArray[Any], names: Names, adjacency: Adjacency, account: IndexAccount) -> PrivateIndex:
        """Release an index of all records."""
        options = self._options
        mechanism: Any = self._mechanism
        prepare = partial(
            prepare_index,
            delta=options.delta,
            mechanism=mechanism,
            components=options.components,
            reduction=options.reduction,
            center=options.center,
            codebook=options.codebook,
            adjacency=adjacency,
        )
        pending = prepare(rows, epsilon=options.epsilon, rng=options.rng, progress=options.progress)
        public = make_public_rows(*rows.shape)
        check_index_worth(
            pending.guarantee,
            int(rows.shape[1]),
            options.k,
            options.public_scores,
            options.require_recall,
            options.codebook,
            lambda other: prepare(public, epsilon=other, rng=0).guarantee,
            may_query=options.may_suggest_queries,
        )
        if options.changes == "public":
            return release_version(names, pending, account)
        released: PrivateIndex = pending.release(account, same_people=True)
        return released

    def _merge(self, path: Path) -> None:
        """Take over what another process has hidden, or spent on refreshes, in the same file."""
        self.total.merge(read_total(path))
        saved = try_read_index(path)
        if saved is not None:
            self.hidden |= saved.hidden
            self.total.merge(saved.charges)

    def _load(self, saved: SavedIndex, path: Path) -> None:
        """Take an index from a file, if it is what would be made: as requested, of these records."""
        options, identities = self._options, self._identities
        request = IndexRequest(
            epsilon=options.epsilon,
            delta=options.delta,
            mechanism=self._mechanism if options.codebook is None else "codebook",
            is_research=options.rng is not None,
            components=options.components,
            dimension=self.dimension,
            has_identities=identities.has_identities,
            centroids=identities.centroids,
            ledger=options.ledger,
            changes=options.changes,
            center=options.center,
            codebook=options.codebook,
        )
        check_request(saved, request, path)
        state: Hashable = UNKNOWN_STATE
        is_stale = None
        try:
            ids, state = self._records.list_ids()
        except StoreError:
            if identities.has_identities:
                raise  # the identities of the records are unknown without their ids
        else:
            is_stale = check_records(saved, *identities.group(ids), path) or None
        self.serve(ServedIndex(saved.release, saved.ids, saved.version, state, is_stale, saved.charge))
        self.version, self.hidden = saved.version, saved.hidden
        self.total.merge(saved.charges)
