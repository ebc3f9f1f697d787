"""Private search over a store: what every framework adapter stands on.

Three modes. ``"index"`` pays once: the vectors themselves are made private, and every later query, filter and
threshold is post-processing of them, so it can't run dry. ``"query"`` releases all n scores anew for each query, and
``"screening"`` only who passes a public threshold; both charge a ledger before anything leaves. The ranking always
comes from released values over all n records: no candidate is chosen by its true score.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _checks
from scoreshield import embeddings as _embeddings
from scoreshield._search_answers import Chooser, Float, Held, Hits, Made, Names, Recipe, Wanted, from_index
from scoreshield._search_files import read_index, write_index
from scoreshield._search_options import FUNCTION, MODES, Mode, check_identities, check_ledger, check_options, pinned
from scoreshield.errors import FileError, InvalidInput, StoreError
from scoreshield.geometry.arrays import Progress
from scoreshield.indexing import release_index
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Identity, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Account
from scoreshield.privacy.stream import stream_from
from scoreshield.stores.pinned import Pinned, Snapshot
from scoreshield.stores.protocol import Store, bare, reading, scrubbed

__all__ = ["MODES", "Hits", "Mode", "PrivateSearch"]

T = TypeVar("T")

#: What the release functions say of a row or of an identity's records; the tests hold them to it.
_OF_RECORDS = ("'embeddings'", "cancel out")


class PrivateSearch:
    """Search a store of private embeddings.

    Parameters
    ----------
    store : a store of :mod:`scoreshield.stores`, a pinned one, or an (n, d) array.
    epsilon, delta : of the index, once; or of each query. There is no default epsilon.
    mode : ``"index"`` (pay once), ``"query"`` (all scores, each time) or ``"screening"`` (who passes ``threshold``).
    ledger : ``ledger.on(name)``. Each query of the last two modes is charged to it, and it must be given there; an
        index is charged when it is made. The name stays the same when records come and go, so that what was spent on
        the records that stay is not forgotten.
    mechanism : of :func:`scoreshield.release_index` (``"privunit"``) or of :func:`scoreshield.release_scores`
        (``"auto"``); nothing for screening, which is randomised response.
    threshold, refine : of :func:`scoreshield.release_matches`, for screening.
    identity_of : whose record an id is: a mapping or a function. Then all records of one person are protected.
    centroids : answer with one vector an identity; hits are then identities.
    score_range, components, reduction, rng, progress : as in the release functions. ``rng`` seeds one stream for all
        queries, in research mode, which is not private.
    pin, check_every : as in :class:`scoreshield.stores.Pinned`.
    file : for an index: load it from there if it is there, or make it and save it. A process that starts again then
        pays nothing. See :meth:`save`.
    """

    def __init__(
        self,
        store: Store | Pinned | ArrayLike,
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
        pin: str = "auto",
        check_every: float = 0.0,
        file: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.mode = _checks.one_of(mode, "mode", FUNCTION, MODES)
        epsilon = _checks.budget(epsilon, FUNCTION)
        delta = _checks.probability(delta, "delta", FUNCTION, zero=True)
        stream_from(rng, FUNCTION)
        self._ledger = check_ledger(ledger, self.mode, rng)
        check_options(self.mode, delta, threshold, refine, mechanism, score_range, components, file)
        if mechanism is None:
            mechanism = {"index": "privunit", "query": "auto"}.get(self.mode)
        # One stream for all queries: a seed given to each release would give them all the same noise.
        seeded = np.random.default_rng(rng) if isinstance(rng, int | np.integer) else rng
        self._recipe = Recipe(epsilon, delta, mechanism, threshold, refine, score_range, seeded)
        self._components, self._reduction, self._progress = components, reduction, progress
        self._identity_of, self._centroids = identity_of, centroids
        self._pinned: Pinned | None = pinned(store, pin, check_every)
        check_identities(identity_of, centroids, self._pinned.pin)
        self._lock = threading.Lock()
        self._made: Made | None = None
        self._named: tuple[Names, tuple[Names, Adjacency]] | None = None
        self._hidden: frozenset[Any] = frozenset()
        self._version = 0
        self._adopted = False  # an index that was read from a file
        if self.mode != "index":
            self._recipe.rehearse()
            return
        if file is not None and Path(file).exists():
            self._adopt(Made(*read_index(Path(file))), Path(file))
            return
        if file is not None:
            self._check_savable(Path(file))
        self.refresh()
        if file is not None:
            self.save(file)

    @classmethod
    def load(cls, path: str | Path) -> PrivateSearch:
        """A saved index, ready to answer: no store, no clean vector and no budget needed."""
        made = Made(*read_index(Path(path)))
        search = cls.__new__(cls)
        search.mode, search._pinned, search._ledger, search._lock = "index", None, None, threading.Lock()
        search._hidden, search._adopted = frozenset(), True
        search._made, search._version = made, made.version
        return search

    def __repr__(self) -> str:
        name = "a saved index" if self._pinned is None else self._pinned.store.name
        return f"<PrivateSearch of {name}: mode {self.mode!r}, version {self.version}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A private search may hold private vectors and is not pickled; save() an index instead.")

    @property
    def version(self) -> int:
        """Of the collection that answered last; 0 before the first answer."""
        return self._version

    @property
    def ids(self) -> Names:
        """Of the records (or identities) that can be found, public, in their order."""
        if self._made is not None:
            return self._made.ids
        return self._safely(lambda: self._names(self._current())[0])

    @property
    def dimension(self) -> int:
        """Of the queries."""
        if self._made is not None:
            return self._made.release.dimension
        store = self._source.store
        return reading(store, "telling its dimension", lambda: store.dimension)

    @property
    def guarantee(self) -> Guarantee:
        """Of the index; a query's own comes with its hits."""
        if self._made is None:
            raise InvalidInput(f"In mode {self.mode!r} each query has a guarantee of its own: see the hits'.")
        return self._made.release.guarantee

    @property
    def stale(self) -> bool | None:
        """Whether the store has changed since the version that answers now; None for an index read from a file."""
        return None if self._adopted or self._pinned is None else self._safely(self._pinned.stale)

    def refresh(self) -> None:
        """Make a new index of the store as it is now, at the full price again: whoever stays is released twice."""
        if self.mode != "index" or self._pinned is None:
            raise InvalidInput(
                "Only an index with a store is refreshed; the other modes read the store's state each time."
            )
        source = self._pinned
        with self._lock:
            self._safely(lambda: self._make_index(source))

    def hide(self, ids: Iterable[Any]) -> None:
        """Never answer with these records again, from now on; at no cost. For records that were deleted."""
        try:
            more = None if isinstance(ids, str | bytes) else frozenset(ids)
        except TypeError:
            more = None
        if more is None:
            _checks.reject("ids", "hide", "a list of ids", ids)
        self._hidden |= more

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

    def search_batch(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> list[Hits]:
        """The same for each of several queries, (m, d): all are charged together, or none is answered."""
        k = _checks.count(k, "k", "search")
        if threshold is not None:
            threshold = _checks.real(threshold, "threshold", "search")
        if where is not None and not callable(where):
            _checks.reject("where", "search", "a function of an id that says yes or no", where)
        units, _ = _embeddings.as_queries(queries, self.dimension, "search")
        wanted = Wanted(k, threshold, where, self._hidden)
        return self._safely(lambda: self._answer(units, wanted))

    async def asearch(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> Hits:
        """:meth:`search` in a thread of its own."""
        return await asyncio.to_thread(self.search, query, k, threshold=threshold, where=where)

    async def asearch_batch(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> list[Hits]:
        """:meth:`search_batch` in a thread of its own."""
        return await asyncio.to_thread(self.search_batch, queries, k, threshold=threshold, where=where)

    def save(self, path: str | Path) -> None:
        """Write the private index (.npz) and its ids (.ids.json beside it), both or none; no clean vector is in them.

        Ids must be whole numbers or strings.
        """
        if self._made is None:
            raise InvalidInput(f"Only an index is saved; in mode {self.mode!r} there is nothing private to keep.")
        write_index(Path(path), *self._made)

    def facts(self, hits: Hits) -> dict[str, Any]:
        """What a framework's metadata says of the guarantee: small, public, ready for JSON."""
        guarantee = hits.guarantee
        return {
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
    def _source(self) -> Pinned:
        assert self._pinned is not None
        return self._pinned

    def _one(self, query: ArrayLike) -> Float:
        units, single = _embeddings.as_queries(query, self.dimension, "search")
        if not single and len(units) != 1:
            raise InvalidInput("search takes one query; search_batch takes several.")
        return units

    def _check_savable(self, path: Path) -> None:
        """Before an index is paid for: can it be kept?"""
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.")
        names = self._safely(lambda: self._names(self._source.current())[0])
        if not all(isinstance(name, int | np.integer | str) and not isinstance(name, bool) for name in names):
            raise InvalidInput("An index is saved with ids that are whole numbers or strings.")

    def _safely(self, work: Callable[[], T]) -> T:
        """Run what holds clean scores; an error leaves without the frames that held them."""
        try:
            return scrubbed(work)
        except InvalidInput as error:
            found: Exception = error
        # A complaint about records speaks to the curator, not to whoever sent the query.
        if any(words in str(found) for words in _OF_RECORDS):
            found = StoreError(f"{self._source.store.name} holds vectors that cannot be scored; nothing was released.")
        raise bare(found)

    def _current(self) -> Snapshot:
        snapshot = self._source.current()
        self._version = snapshot.version
        return snapshot

    def _names(self, snapshot: Snapshot) -> tuple[Names, Adjacency]:
        """What hits are called, and who is protected."""
        if self._identity_of is None:
            return snapshot.ids, Replacement()
        known = self._named
        if known is None or known[0] is not snapshot.ids:
            known = self._named = (snapshot.ids, self._identities(snapshot.ids))
        return known[1]

    def _identities(self, ids: Names) -> tuple[Names, Adjacency]:
        of = self._identity_of
        try:
            labels = np.asarray([of[one] if isinstance(of, Mapping) else of(one) for one in ids])  # type: ignore[misc]
        except Exception:
            raise InvalidInput("'identity_of' does not say whose record every id is.") from None
        adjacency = Identity(labels, centroids=self._centroids)
        return (tuple(np.unique(labels).tolist()) if self._centroids else ids), adjacency

    def _make_index(self, source: Pinned) -> None:
        snapshot = source.current()
        if snapshot.rows is None:
            raise InvalidInput("An index is made of vectors: pin='scores' has none; use mode='query'.")
        names, adjacency = self._names(snapshot)
        recipe = self._recipe
        index = release_index(
            snapshot.rows,
            epsilon=recipe.epsilon,
            delta=recipe.delta,
            mechanism=recipe.mechanism,
            components=self._components,
            reduction=self._reduction,
            adjacency=adjacency,
            rng=recipe.rng,
            ledger=self._ledger,
            progress=self._progress,
        )
        self._made = Made(index, names, max(snapshot.version, self._version + 1))
        self._version, self._adopted = self._made.version, False
        source.forget()

    def _adopt(self, made: Made, path: Path) -> None:
        guarantee, recipe = made.release.guarantee, self._recipe
        if (guarantee.epsilon, guarantee.delta) != (recipe.epsilon, recipe.delta):
            raise InvalidInput(
                f"{path} holds an index at ({guarantee.epsilon:g}, {guarantee.delta:g}), and "
                f"({recipe.epsilon:g}, {recipe.delta:g}) was asked for: name another file, or leave that one."
            )
        if (guarantee.sampler == "research") != (recipe.rng is not None):
            raise InvalidInput(f"{path} holds an index by the {guarantee.sampler} sampler, and another was asked for.")
        if made.release.dimension != self.dimension:
            raise InvalidInput(f"{path} holds an index of another dimension than the store.")
        if self._components not in (None, made.release.vectors.shape[1]):
            raise InvalidInput(f"{path} holds an index of another number of components than asked for.")
        adjacency = guarantee.adjacency
        asked = (self._identity_of is not None, self._centroids)
        if guarantee.mechanism != recipe.mechanism or asked != (
            isinstance(adjacency, Identity),
            getattr(adjacency, "centroids", False),
        ):
            raise InvalidInput(f"{path} holds an index by another mechanism or for another adjacency than asked for.")
        self._made, self._version, self._adopted = made, made.version, True

    def _answer(self, queries: Float, wanted: Wanted) -> list[Hits]:
        made = self._made
        if made is not None:
            return from_index(made, queries, wanted)
        snapshot = self._current()
        names, adjacency = self._names(snapshot)
        chooser = Chooser(names, wanted, scored=self.mode == "query" or self._recipe.refine > 0)
        held = Held()
        hits = []
        for query in queries:
            rows, public = snapshot.problem(query)
            hits.append(chooser.hits(self._recipe.release(rows, public, adjacency, held), snapshot.version))
        # Nothing has left yet: the whole batch is charged, or refused, before it does.
        if self._ledger is not None:
            self._ledger.spend_all(held.guarantees)
        return hits
