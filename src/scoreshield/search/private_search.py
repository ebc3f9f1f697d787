"""Private search over a store: what every framework adapter stands on.

Three modes. ``"index"`` pays once: the vectors themselves are made private, and every later query, filter and
threshold is post-processing of them, so it can't run dry. ``"query"`` releases all n scores anew for each query, and
``"screening"`` only who passes a public threshold; both charge a ledger before anything leaves. The ranking always
comes from released values over all n records: no candidate is chosen by its true score.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _validation
from scoreshield._frames import clear_frames, clear_frames_on_error
from scoreshield._locks import ThreadLock
from scoreshield._validation import check_delta, check_epsilon, validate
from scoreshield.errors import FileError, InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Account
from scoreshield.privacy.sampling.stream import sampler_name, this_process
from scoreshield.releases.index import prepare_index
from scoreshield.releases.pipeline import reserve
from scoreshield.search.answers import (
    UNSEEN,
    Chooser,
    Float,
    Hits,
    Made,
    Names,
    Recipe,
    Wanted,
    as_released,
    from_index,
)
from scoreshield.search.files import (
    Asked,
    IndexNotSaved,
    Paid,
    Saved,
    as_path,
    check_contract,
    check_ids,
    check_records,
    is_there,
    locked,
    read_index,
    read_total,
    readable_index,
    rehearse,
    total_path,
    write_hidden,
    write_index,
    write_total,
)
from scoreshield.search.options import MODES, Mode, Whose, check_ledger, check_options, pinned
from scoreshield.search.totals import Total, check_limit
from scoreshield.stores.pinned import PinnedStore, Snapshot
from scoreshield.stores.protocol import Store, read_store

__all__ = ["MODES", "Hits", "IndexNotSaved", "Mode", "PrivateSearch"]

T = TypeVar("T")

#: What the release functions say of a row; the tests hold them to it.
_OF_RECORDS = "'embeddings'"


class PrivateSearch:
    """Search a store of private embeddings.

    Parameters
    ----------
    store : a store of :mod:`scoreshield.stores`, a pinned one, or an (n, d) array.
    epsilon, delta : of the index, once; or of each query. There is no default epsilon.
    mode : ``"index"`` (pay once), ``"query"`` (all scores, each time) or ``"screening"`` (who passes ``threshold``).
    ledger : ``ledger.account(name)``. Each query of the last two modes is charged to it, and it must be given there; an
        index is charged when it is made. The name stays the same when records come and go, so that what was spent on
        the records that stay is not forgotten.
    mechanism : of :func:`scoreshield.release_index` (``"privunit"``) or of :func:`scoreshield.release_scores`
        (``"auto"``); nothing for screening, which is randomised response.
    threshold, refine : of :func:`scoreshield.release_matches`, for screening.
    identity_of : whose record an id is: a mapping, which is looked at for each release, or a function, which is asked
        once for each version of the store. Then all records of one person are protected.
    centroids : answer with one vector an identity; hits are then identities.
    score_range, components, reduction, rng, progress : as in the release functions. ``rng`` seeds one stream for all
        queries, in research mode, which is not private.
    max_epsilon : for an index without a ledger: the most that this index and its refreshes may spend together, at
        ``delta``. Without it, :meth:`refresh` raises :class:`BudgetExceeded`. With a ``file``, all that was made for
        the file counts; each search on it has its own limit. See :attr:`spent`.
    pin, check_every : as in :class:`scoreshield.stores.PinnedStore`, which leaves ``check_every`` to the adapter.
    file : for an index: load it from there if it is there, or make it and save it; :meth:`refresh` and :meth:`hide`
        write there too. A process that starts again then pays nothing, and of several that start at once one does. An
        index of other records, for another contract, or that a given ``ledger`` did not pay for, is refused. See
        :meth:`save`, and :class:`IndexNotSaved` for what was paid for and could not be written.
    """

    @clear_frames_on_error
    @validate(epsilon=check_epsilon, delta=check_delta)
    def __init__(
        self,
        store: Store | PinnedStore | ArrayLike,
        *,
        epsilon: float,
        delta: float = 0.0,
        mode: str = "index",
        ledger: Account | None = None,
        mechanism: str | None = None,
        threshold: float | None = None,
        refine: float = 0.0,
        identity_of: Mapping[Any, Any] | Callable[[Any], Any] | None = None,
        centroids: bool = False,
        score_range: tuple[float, float] = FULL_RANGE,
        components: int | None = None,
        reduction: str | ArrayLike = "random",
        rng: Any = None,
        max_epsilon: float | None = None,
        pin: str = "auto",
        check_every: float | None = None,
        file: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.mode = _validation.check_option(mode, "mode", MODES)
        sampler_name(rng)
        self._ledger = check_ledger(ledger, self.mode, rng)
        limit = check_limit(max_epsilon, epsilon, self.mode, ledger)
        check_options(self.mode, delta, threshold, refine, mechanism, score_range, components, file)
        if mechanism is None:
            mechanism = {"index": "privunit", "query": "auto"}.get(self.mode)
        # One stream for all queries: a seed given to each release would give them all the same noise.
        seeded = np.random.default_rng(rng) if isinstance(rng, int | np.integer) else rng
        self._recipe = Recipe(epsilon, delta, mechanism, threshold, refine, score_range, seeded)
        self._components, self._reduction, self._progress = components, reduction, progress
        self._pinned: PinnedStore | None = pinned(store, pin, check_every)
        self._whose = Whose(identity_of, centroids, self._pinned.pin, stays=rng is None)
        self._lock, self._process = ThreadLock(), this_process()
        self._made: Made | None = None
        self._check: Callable[[Names], None] | None = None
        self._total = Total(limit, delta, {})
        self._hidden: frozenset[Any] = frozenset()
        self._version = 0
        self._file = self._home = None if file is None else as_path(file)
        if self.mode != "index":
            self._rehearse()
        elif self._file is None:
            self.refresh()
        else:
            self._open(self._file)

    @classmethod
    @validate()
    def load(cls, path: str | Path) -> PrivateSearch:
        """A saved index, ready to answer: no store, no clean vector and no budget needed."""
        path = as_path(path)
        return cls._serving(read_index(path), path)

    @classmethod
    def _serving(cls, saved: Saved, home: Path) -> PrivateSearch:
        """A search that answers from a private index of these files, and has no store."""
        search = cls.__new__(cls)
        search.mode, search._pinned, search._ledger = "index", None, None
        search._lock, search._process, search._home = ThreadLock(), this_process(), home
        search._check = None
        search._made = Made(saved.release, saved.ids, saved.version, paid=saved.paid)
        search._version, search._hidden, search._file = saved.version, saved.hidden, None
        guarantee = saved.release.guarantee
        search._total = Total(guarantee.epsilon, guarantee.delta, saved.charged)
        return search

    def __repr__(self) -> str:
        held = vars(self)  # an error tracker may show one that was refused half-way
        source = held.get("_pinned")
        name = "nothing yet" if "_version" not in held else "a saved index" if source is None else source.store.name
        total = f", total epsilon {self.spent:.6g}" if held.get("_made") is not None else ""
        return f"<PrivateSearch of {name}: mode {held.get('mode')!r}, version {held.get('_version', 0)}{total}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A private search may hold private vectors and is not pickled; save() an index instead.")

    @property
    def version(self) -> int:
        """Of the collection that answered last; 0 before the first answer."""
        return self._version

    @property
    @clear_frames_on_error
    def ids(self) -> Names:
        """Of the records (or identities) that can be found, public, in their order."""
        if self._made is not None:
            return self._made.ids
        return self._safely(lambda: self._whose.names(self._current().ids)[0])

    @property
    @clear_frames_on_error
    def dimension(self) -> int:
        """Of the queries."""
        if self._made is not None:
            return self._made.release.dimension
        store = self._source.store
        return read_store(store, "telling its dimension", lambda: store.dimension)

    @property
    def guarantee(self) -> Guarantee:
        """Of the index; a query's own comes with its hits."""
        if self._made is None:
            raise InvalidInput(f"In mode {self.mode!r} each query has a guarantee of its own: see the hits'.")
        return self._made.release.guarantee

    @property
    def spent(self) -> float:
        """Epsilon of the index and of all that were made before it, together, at the index's delta.

        It counts the indexes that this object made, or that were made for its ``file`` until it last read or wrote
        there: also those that could not be saved, and where a ledger counts them too. Research mode is not private, and
        counts as 0.
        """
        if self.mode != "index":
            raise InvalidInput(f"In mode {self.mode!r} the ledger keeps the total: see the account's 'spent'.")
        return self._total.spent

    @property
    def releases_scores(self) -> bool:
        """Whether hits have scores: screening without ``refine`` releases names alone."""
        return self.mode != "screening" or self._recipe.refine > 0

    @property
    @clear_frames_on_error
    def stale(self) -> bool | None:
        """Whether the store has changed since the version that answers now.

        None for an index from a file whose records are still the same by their ids: who knows about their vectors.
        """
        made, source = self._made, self._pinned
        if source is None:
            return None
        if made is None:
            return self._safely(source.is_stale)
        store = source.store
        return self._safely(lambda: made.stale_in(lambda: read_store(store, "telling its state", store.state)))

    @clear_frames_on_error
    def refresh(self) -> None:
        """Make a new index of the store as it is now, at the full price again: whoever stays is released twice.

        Without a ledger, :class:`BudgetExceeded` is raised where the total would pass ``max_epsilon``, and then
        nothing is made. A refresh that fails after that counts. With a ``file``, it is counted there before the noise
        is drawn, and the index is written there. A search with neither a ledger nor a file is refreshed only by the
        process that made it.
        """
        if self.mode != "index" or self._pinned is None:
            raise InvalidInput(
                "Only an index with a store is refreshed; the other modes read the store's state each time."
            )
        source = self._pinned
        self._check_process()
        with self._lock.hold("refresh()"), self._alone():
            self._safely(lambda: self._make_index(source))

    def check_before_refresh(self, check: Callable[[Names], None]) -> None:
        """Have ``check`` called with the records' ids by each :meth:`refresh`, before it pays; its errors end it.

        Frameworks read one document there: a store that cannot give any would be paid for and never answer.
        """
        self._check = check

    @clear_frames_on_error
    @validate()
    def hide(self, ids: Iterable[Any]) -> None:
        """Never answer with these records again, from now on; at no cost. For records that were deleted.

        It is kept by :meth:`save`, and at once in the ``file`` where one was given; another process that uses the file
        sees it when it starts or refreshes. Ids that are not known are refused.
        """
        try:
            more = None if isinstance(ids, str | bytes) else frozenset(ids)
        except TypeError:
            more = None
        if more is None:
            _validation.reject("ids", "a list of ids", ids)
        for one in more - frozenset(self.ids) - self._hidden:
            raise InvalidInput(f"hide knows no record {one!r}; ids are those of 'ids', numbers as numbers.")
        with self._lock.hold("hide()"):
            self._hidden |= more
            if self._file is not None:
                with self._alone():
                    write_hidden(self._file, self._hidden)

    @clear_frames_on_error
    @validate()
    def search(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> Hits:
        """The ``k`` best records of one query, by released scores.

        ``threshold`` leaves out those with a released score below it; ``where`` those whose id it says no to. Both act
        on what is released: the k best are sought among all that pass.
        """
        return self.search_batch(self._one(query), k, threshold=threshold, where=where)[0]

    @clear_frames_on_error
    def search_batch(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> list[Hits]:
        """The same for each of several queries, (m, d): all are charged together, or none is answered."""
        k = _validation.check_count(k, "k")
        if threshold is not None:
            threshold = _validation.check_real(threshold, "threshold")
        if where is not None and not callable(where):
            _validation.reject("where", "a function of an id that says yes or no", where)
        units, _ = _embeddings.as_queries(queries, self.dimension)
        wanted = Wanted(k, threshold, where, self._hidden)
        return self._safely(lambda: self._answer(units, wanted))

    @clear_frames_on_error
    async def asearch(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> Hits:
        """:meth:`search` in a thread of its own. Cancelling it does not stop the thread: the query is charged."""
        return await asyncio.to_thread(self.search, query, k, threshold=threshold, where=where)

    @clear_frames_on_error
    async def asearch_batch(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> list[Hits]:
        """:meth:`search_batch` in a thread of its own; charged likewise when it is cancelled."""
        return await asyncio.to_thread(self.search_batch, queries, k, threshold=threshold, where=where)

    @clear_frames_on_error
    @validate()
    def save(self, path: str | Path) -> None:
        """Write the private index (.npz) and its ids (.ids.json beside it), both or none; no clean vector is in them.

        Ids must be whole numbers or strings. What is hidden is kept too, which entry of the ledger paid, and the count
        of indexes; saving over another index adds its count.
        """
        made = self._made
        if made is None:
            raise InvalidInput(f"Only an index is saved; in mode {self.mode!r} there is nothing private to keep.")
        path = as_path(path)
        with locked(path):
            write_index(path, self._saved(made), path == self._home)  # where others may have hidden more since

    def _saved(self, made: Made) -> Saved:
        return Saved(made.release, made.ids, made.version, self._hidden, made.paid, self._total.charged)

    def without_hidden(self, hits: Hits) -> Hits:
        """The same hits less the records that were hidden since they were released."""
        places = [place for place, one in enumerate(hits.ids) if one not in self._hidden]
        if len(places) == len(hits):
            return hits
        scores, noisy = (None if values is None else values[places] for values in (hits.scores, hits.noisy))
        return replace(hits, ids=tuple(hits.ids[place] for place in places), scores=scores, noisy=noisy)

    def facts(self, hits: Hits) -> dict[str, Any]:
        """What a framework's metadata says of the guarantee: small, public, ready for JSON."""
        guarantee = hits.guarantee
        if guarantee is None:
            return {"mode": self.mode, "covers": "nothing, as nothing was released", "version": hits.version}
        total = {"total_epsilon": self.spent} if self.mode == "index" else {}
        return total | {
            "mode": self.mode,
            "covers": "every query to this index" if self.mode == "index" else "this query",
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "mechanism": guarantee.mechanism,
            "adjacency": guarantee.adjacency.to_dict()["kind"],
            "sampler": guarantee.sampler,
            "version": hits.version,
        }

    @property
    def _source(self) -> PinnedStore:
        assert self._pinned is not None
        return self._pinned

    def _one(self, query: ArrayLike) -> Float:
        units, single = _embeddings.as_queries(query, self.dimension)
        if not single and len(units) != 1:
            raise InvalidInput("search takes one query; search_batch takes several.")
        return units

    def _rehearse(self) -> None:
        """A contract that cannot be kept is refused now: whoever is protected, and, if they can be told, for them."""
        self._recipe.rehearse()
        if not self._whose.given:
            return
        try:
            adjacency = self._safely(lambda: self._whose.names(self._source.take_snapshot().ids)[1])
        except (InvalidInput, StoreError):
            return  # the first query says it
        self._recipe.rehearse(adjacency)

    def _check_process(self) -> None:
        """A total in memory is copied by a fork, and each copy would spend the whole limit."""
        is_shared = self._ledger is not None or self._file is not None
        if this_process() != self._process and not is_shared and self._recipe.rng is None:
            raise InvalidInput(
                "This search was made in another process and keeps its total in memory: refresh it there, or give it a "
                "'file' or a 'ledger', which processes share."
            )

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._file is None else locked(self._file)

    def _open(self, path: Path) -> None:
        """Take the index from its file if it is there, or make it; others that start now wait, and take it."""
        with locked(path, to_write=False):
            if is_there(path):
                self._safely(lambda: self._adopt(read_index(path), path))
            else:
                self._safely(lambda: self._make_index(self._source))

    def _safely(self, work: Callable[[], T]) -> T:
        """Run what reads the store; a complaint about its records speaks to the curator, not to whoever searches."""
        callers = sys.exception()
        try:
            return work()
        except InvalidInput as error:
            if _OF_RECORDS not in str(error):
                raise
            clear_frames(error, callers)
        raise StoreError(f"{self._source.store.name} holds vectors that cannot be scored; nothing was released.")

    def _current(self) -> Snapshot:
        snapshot = self._source.take_snapshot()
        self._version = snapshot.version
        return snapshot

    def _make_index(self, source: PinnedStore) -> None:
        process = this_process()
        try:
            snapshot = source.take_snapshot()
            if snapshot.rows is None:
                raise InvalidInput("An index is made of vectors: pin='scores' has none; use mode='query'.")
            names, adjacency = self._whose.names(snapshot.ids)
            if self._check is not None:
                self._check(snapshot.ids)
            if self._file is not None:
                check_ids(names)
                rehearse(self._file)
                self._join(self._file)
            recipe = self._recipe
            prepared = prepare_index(
                snapshot.rows,
                epsilon=recipe.epsilon,
                delta=recipe.delta,
                mechanism=recipe.mechanism,
                components=self._components,
                reduction=self._reduction,
                adjacency=adjacency,
                rng=recipe.rng,
                progress=self._progress,
            )
            if self._ledger is None:
                self._total.check(prepared.guarantee, None if self._file is None else total_path(self._file))
            pending = reserve(self._ledger, [prepared.guarantee], adjacency, same_people=True)
            rows = prepared.score()
            prepared.check_process()  # before the charge, so that a fork is not charged for an error
            charged = self._total.with_one_more(prepared.guarantee)
            if self._file is not None and charged != self._total.charged:
                write_total(self._file, charged)  # before the ledger: a count that cannot be written costs nothing
            entries = pending.commit()
            self._total.join(charged)
            index = prepared.noisy(rows)
        finally:
            source.forget()
        if this_process() != process:
            raise InvalidInput("The process was forked while it made an index: the process that was charged has it.")
        version = max(snapshot.version, self._version + 1)
        paid = Paid(str(entries[0].dataset), entries[0].hash) if entries else None
        made = self._made = Made(index, names, version, snapshot.state, False, paid)
        self._version = version
        if self._file is not None:
            try:
                write_index(self._file, self._saved(made))
            except FileError as error:
                # A search without the store: an error must not lead to clean vectors.
                raise IndexNotSaved(error, self._serving(self._saved(made), self._file)) from None

    def _join(self, path: Path) -> None:
        """Take in what another process may have hidden, or spent on refreshes, in the same file."""
        self._total.join(read_total(path))
        saved = readable_index(path)
        if saved is not None:
            self._hidden |= saved.hidden
            self._total.join(saved.charged)

    def _adopt(self, saved: Saved, path: Path) -> None:
        """Take an index from a file, if it is what would be made: as asked for, of these records."""
        asked = (self._recipe, self._components, self.dimension, self._whose.given, self._whose.centroids)
        check_contract(saved, Asked(*asked, self._ledger), path)
        state: Any = UNSEEN
        stale = None
        try:
            ids, state = self._source.list_ids()
        except StoreError:
            if self._whose.given:
                raise  # whose records they are is not known without them
        else:
            stale = check_records(saved, *self._whose.names(ids), path) or None
        self._made = Made(saved.release, saved.ids, saved.version, state, stale, saved.paid)
        self._version, self._hidden = saved.version, saved.hidden
        self._total.join(saved.charged)

    def _answer(self, queries: Float, wanted: Wanted) -> list[Hits]:
        made = self._made
        if made is not None:
            return from_index(made, queries, wanted)
        if self.mode == "index":
            raise InvalidInput("The index is still being made; it answers when the constructor has returned.")
        snapshot = self._current()
        names, adjacency = self._whose.names(snapshot.ids)
        chooser = Chooser(names, wanted, scored=self.releases_scores)
        nothing = chooser.nothing(snapshot.version)
        if nothing is not None:
            return [nothing] * len(queries)
        problems = [snapshot.make_problem(query) for query in queries]
        prepared = [self._recipe.prepare(rows, public, adjacency) for rows, public in problems]
        guarantees = [one.guarantee for one in prepared]
        pending = reserve(self._ledger, guarantees, adjacency, same_people=True)
        # All queries read the same rows, so the first query's scores find every bad row before the charge.
        clean = prepared[0].score()
        prepared[0].check_process()  # before the charge, so that a fork is not charged for an error
        pending.commit()
        hits = []
        for place, one in enumerate(prepared):
            release = one.noisy(clean if place == 0 else one.score())
            hits.append(chooser.hits(as_released(release), snapshot.version))
        return hits
