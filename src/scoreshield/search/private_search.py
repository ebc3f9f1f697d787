"""The front door of private search, which every framework adapter uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Rng
from scoreshield._validation import (
    Check,
    check_count,
    check_delta,
    check_epsilon,
    check_real,
    one_of,
    optional,
    validate,
)
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import WORTH_CHECKS, Worth
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency
from scoreshield.privacy.draws import check_ids
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.sampling.stream import ReleaseKey, name_sampler
from scoreshield.releases.batch import PublicLevels
from scoreshield.releases.codebook import PublicCodebook
from scoreshield.releases.versions import CHANGES, Changes
from scoreshield.search.base import MODES, BaseSearch, HitFilter, Hits, Mode, ModeOption, SearchMechanism, SearchOptions
from scoreshield.search.choice import SEARCHES, ModeChoice, check_mode, check_queries, choose_mode
from scoreshield.search.index import IndexNotSaved, LoadedIndexSearch
from scoreshield.search.index_files import read_index, resolve_path
from scoreshield.search.sources import IdentityMap, Names, pin_store
from scoreshield.stores.pinned import Pin, PinnedStore
from scoreshield.stores.protocol import Store


def _check_filter(value: Any, name: str) -> Any:
    if value is not None and not callable(value):
        _validation.reject(name, "a function of an id that returns True or False", value)
    return value


_FILTER_CHECKS: dict[str, Check] = {"k": check_count, "threshold": optional(check_real), "where": _check_filter}


class PrivateSearch:
    """Search a store of private embeddings.

    There are five modes. ``"index"`` charges once: the vectors themselves are made private, and every later query,
    filter and threshold is post-processing of them. ``"query"`` releases all n scores for each query, and
    ``"screening"`` releases only which records pass a public threshold. Both charge a ledger before anything leaves.
    ``"hits"`` charges once for any number of queries. Each record is named truly for at most ``hits`` of them. In 1.8 %
    of the rounds that ask for its level (more below epsilon 16) a record is missed, and is then not named again.
    ``"batch"`` charges once and answers the public ``queries`` that it is given. ``"auto"`` chooses one of them.
    The ranking always comes from released values over all n records: no candidate is chosen by its true score.

    Before anything is charged, the search predicts from public facts what it will find (`worth`). Where that is less
    than half of what is found without privacy, it gives a `scoreshield.UselessRelease` warning, which names the
    cheapest change that is predicted to help. Research mode charges nothing and gives no warning.

    Args:
        store: A store of `scoreshield.stores`, a pinned one, or an (n, d) array.
        epsilon: There is no default. In mode ``"index"`` it is the epsilon of the index, spent once.
            In the modes ``"query"`` and ``"screening"`` it is the epsilon of each query.
            In mode ``"hits"`` it is the epsilon of all queries together.
        delta: The delta of the index or of each query. Mode ``"hits"`` has none.
        mode: ``"index"`` (charge once), ``"query"`` (all scores, each time), ``"screening"`` (the records that pass
            ``threshold``), ``"hits"`` (charge once, a few answers of each record), ``"batch"`` (charge once, for
            ``queries`` that are known) or ``"auto"``: the mode with the best predicted recall among those that the
            other arguments allow (`choice`). It reads public facts only.
        ledger: ``ledger.account(name)``. ``"query"`` and ``"screening"`` need it, and charge each query to it. An index
            and a hit budget are charged when they are made. The name stays the same when records come and go, so that
            what was spent on the records that stay is not forgotten.
        mechanism: Of `scoreshield.release_index` (``"privunit"`` by default) or of
            `scoreshield.release_scores` (by default ``"auto"`` for ranking: what is predicted to keep the most of the
            ``k`` best). Screening has one mechanism, randomised response, and takes none.
        threshold: Of `scoreshield.release_matches`, for screening.
        refine: Of `scoreshield.release_matches`, for screening.
        identity_of: The identity of each id: a mapping, which is read for each release, or a function, which is called
            once per version of the store. Then all records of one identity are protected.
        centroids: Whether to answer with one vector per identity. Hits are then identities.
        score_range: As in the release functions.
        components: Of `scoreshield.release_index`.
        reduction: Of `scoreshield.release_index`.
        center: Of `scoreshield.release_index`, for an index.
        codebook: Of `scoreshield.release_index`, for an index. It must not come from the records of the store.
        changes: ``"public"`` declares, for an index with a ledger, that the ids of the records and the times of their
            changes are public. Then `refresh` draws only the records that were added or that ``changed`` names.
        rng: None for the secure sampler. A seed or a generator is research mode, which is not private; it seeds one
            stream for all queries.
        max_epsilon: For an index without a ledger: the most that this index and its refreshes may spend together, at
            ``delta``. Without it, `refresh` raises `BudgetExceeded`. With a ``file``, all indexes that
            were made for the file count; each search on it has its own limit. See `spent`.
        pin: As in `scoreshield.stores.PinnedStore`.
        check_every: As in `scoreshield.stores.PinnedStore`.
        file: For an index: load it from there if it exists, or make it and save it there. `refresh` and
            `hide` write there too. A process that starts again then charges nothing, and of several that start
            at once one charges. An index of other records, for another contract, or that a given ``ledger`` was not
            charged for, raises an error. See `save`, and `IndexNotSaved` for an index that was charged
            and could not be written. For a hit budget: its secret counters are kept there, and a process that starts
            again continues with them. Without it they end with this object, and another object is another charge. For
            ``"auto"``: if nothing is there yet, a mode that keeps nothing may still be picked, and leaves it out.
        k: How many hits a query will ask for. Predictions and the choice of a mechanism are for it. Hits of a query
            that asks for fewer state the worth for its own number.
        queries: For a batch, the public queries, one per row. For ``"auto"``, these, or how many queries will be asked.
        public_scores: Public scores of the same model (`scoreshield.decisions.QueryScores`), for predictions, for the
            choice of a mechanism, and for the scores that are shown. None takes those that ship, of all-MiniLM-L6-v2.
        require_recall: Raise an error, before anything is charged, unless the predicted recall at ``k`` is at least
            this.
        hits: For a hit budget: how many queries may name each record truly, at most 250. By default as many as
            ``epsilon`` allows with few false names.
        cuts: For a hit budget: the public cuts between levels, increasing, or `scoreshield.PublicLevels` fitted on
            public scores of the same model. The default suits all-MiniLM-L6-v2. For a batch: the ``levels`` of
            `scoreshield.release_batch`.
        names: For a batch, as in `scoreshield.release_batch`. For a hit budget: a query goes down the levels until this
            many records are named. By default the ``k`` of `search`, and ``k * hits / 4``, rounded up, if ``hits`` is
            below 4.
        adjacency: For a hit budget: what ``epsilon`` is about, `scoreshield.Replacement` by default or
            `scoreshield.NullRecord`. The certificate states both.
        progress: As in `scoreshield.release_index`.
    """

    @clear_frames_on_error
    @validate(mode=one_of(MODES), epsilon=check_epsilon, delta=check_delta, changes=one_of(CHANGES), **WORTH_CHECKS)
    def __init__(
        self,
        store: Store | PinnedStore | ArrayLike,
        *,
        epsilon: float,
        delta: float = 0.0,
        mode: ModeOption = "index",
        ledger: AccountLike | None = None,
        mechanism: SearchMechanism | None = None,
        threshold: float | None = None,
        refine: float = 0.0,
        identity_of: Mapping[Any, Any] | Callable[[Any], Any] | None = None,
        centroids: bool = False,
        score_range: tuple[float, float] = FULL_RANGE,
        components: int | None = None,
        reduction: str | ArrayLike = "random",
        center: str | ArrayLike = "none",
        codebook: PublicCodebook | None = None,
        changes: Changes = "private",
        rng: Rng = None,
        max_epsilon: float | None = None,
        pin: Pin = "auto",
        check_every: float | None = None,
        file: str | Path | None = None,
        progress: Progress | None = None,
        k: int = 10,
        queries: ArrayLike | int | None = None,
        public_scores: QueryScores | None = None,
        require_recall: float | None = None,
        hits: int | None = None,
        cuts: ArrayLike | PublicLevels | None = None,
        names: int | None = None,
        adjacency: Adjacency | None = None,
    ) -> None:
        name_sampler(rng)
        if isinstance(rng, ReleaseKey):
            _validation.reject("rng", "None, a seed or a Generator for a search, which makes many releases", rng)
        # One stream for all queries: a seed given to each release would give them all the same noise.
        stream = np.random.default_rng(rng) if isinstance(rng, int | np.integer) else rng
        options = SearchOptions(
            epsilon=epsilon,
            delta=delta,
            ledger=ledger,
            mechanism=mechanism,
            threshold=threshold,
            refine=refine,
            score_range=score_range,
            components=components,
            reduction=reduction,
            rng=stream,
            max_epsilon=max_epsilon,
            file=file,
            progress=progress,
            hits=hits,
            cuts=cuts,
            names=names,
            adjacency=adjacency,
            center=center,
            codebook=codebook,
            changes=changes,
            k=k,
            queries=check_queries(queries),
            public_scores=public_scores,
            require_recall=require_recall,
        )
        if mode != "auto":
            check_mode(mode, options)
        records = pin_store(store, pin, check_every)
        identities = IdentityMap(identity_of, centroids, records.pin, fixes_owners=rng is None)
        self.choice: ModeChoice | None = None
        if mode == "auto":
            self.choice = choose_mode(options, records, identities)
            mode, options = self.choice.mode, self.choice.options
        self.mode: Mode = mode
        search = SEARCHES[mode](options, records, identities)
        self._search: BaseSearch = search  # before it starts: a callback may ask this object while an index is made
        self._run(search.start)

    @classmethod
    @clear_frames_on_error
    @validate()
    def load(cls, path: str | Path) -> PrivateSearch:
        """Load a saved index, ready to answer. It needs no store, no clean vector and no budget."""
        path = resolve_path(path)
        return cls._wrap(LoadedIndexSearch(read_index(path), path))

    @classmethod
    def _wrap(cls, search: LoadedIndexSearch) -> PrivateSearch:
        private = cls.__new__(cls)
        private.mode, private._search, private.choice = search.mode, search, None
        return private

    def __repr__(self) -> str:
        # An error tracker may show an object whose constructor raised an error.
        search: BaseSearch | None = vars(self).get("_search")
        summary = "nothing yet: mode None, version 0" if search is None else search.summarize()
        return f"<PrivateSearch of {summary[:1].lower()}{summary[1:]}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A private search may hold private vectors and is not pickled; save() an index instead.")

    @property
    def version(self) -> int:
        """Of the collection that answered last; 0 before the first answer."""
        return self._search.version

    @property
    @clear_frames_on_error
    def ids(self) -> Names:
        """The ids of the records (or identities) that can be found, public, in their order."""
        return self._search.ids

    @property
    @clear_frames_on_error
    def dimension(self) -> int:
        """The dimension of the queries."""
        return self._search.dimension

    @property
    @clear_frames_on_error
    def guarantee(self) -> Guarantee:
        """The guarantee of the index or of the hit budget. In the other modes each query's own comes with its hits."""
        return self._search.guarantee

    @property
    @clear_frames_on_error
    def spent(self) -> float:
        """The epsilon of the index and of all indexes before it, together, at the index's delta.

        It counts the indexes that this object made, or that were made for its ``file`` until it last read or wrote
        there. It includes those that could not be saved, and those that a ledger counts too. For a hit budget, it is
        the epsilon between any two records. Research mode is not private, and counts as 0.
        """
        return self._search.spent

    @property
    @clear_frames_on_error
    def worth(self) -> Worth | None:
        """What the search is predicted to find among the best ``k``, from public facts; `Worth.sentence` says it.

        None where the store could not be read yet, so that the number of records is unknown.
        """
        return self._search.worth

    @property
    def releases_scores(self) -> bool:
        """Whether hits have scores: screening without ``refine`` releases names alone."""
        return self._search.releases_scores

    @property
    @clear_frames_on_error
    def stale(self) -> bool | None:
        """Whether the store has changed since the version that answers now.

        None for an index from a file whose records have the same ids: whether their vectors changed is unknown.
        """
        return self._search.is_stale()

    @clear_frames_on_error
    def refresh(self, changed: Iterable[Any] | None = None) -> None:
        """Make a new index of the store's present records, at the full price again.

        The records that stay are released once more. A refresh that fails after its charge counts. With a ``file``, it
        is counted there before the noise is drawn, and the index is written there. A search with neither a ledger nor
        a file is refreshed only by the process that made it.

        Args:
            changed: With ``changes="public"``, the ids of the records that changed. Only they and records that are new
                in the store are drawn. The ledger is charged one draw if the largest number of draws of any record
                rises, and nothing otherwise. None draws all records that stay again.

        Raises:
            BudgetExceeded: There is no ledger, and the total would pass ``max_epsilon``. Nothing was made.
        """
        if changed is None:
            self._run(self._search.refresh)
            return
        ids = frozenset(check_ids(changed, "changed"))
        self._run(lambda: self._search.refresh_rows(ids))

    @clear_frames_on_error
    def check_before_refresh(self, check: Callable[[Names], None]) -> None:
        """Call ``check`` with the records' ids in each `refresh`, before the charge. An error ends the refresh.

        Frameworks read one document there: a store that cannot give any would be charged and never answer.
        """
        self._search.check_before_refresh(check)

    @clear_frames_on_error
    @validate()
    def hide(self, ids: Iterable[Any]) -> None:
        """Never answer with these records again, from now on, at no cost. For records that were deleted.

        `save` keeps them hidden. With a ``file`` they are written there at once; another process that uses the
        file reads them when it starts or refreshes. Ids that are unknown raise an error.
        """
        try:
            more = None if isinstance(ids, str | bytes) else frozenset(ids)
        except TypeError:
            more = None
        if more is None:
            _validation.reject("ids", "a list of ids", ids)
        for one in more - frozenset(self.ids) - self._search.hidden:
            raise InvalidInput(f"hide() found no record {one!r}; ids are those of 'ids', numbers as numbers.")
        self._search.hide(more)

    @clear_frames_on_error
    @validate(**_FILTER_CHECKS)
    def search(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> Hits:
        """Find the ``k`` best records of one query, by released scores.

        Args:
            query: A vector of `dimension` numbers.
            k: How many hits to return at most.
            threshold: Leave out records with a released score below it.
            where: Leave out records for whose id it returns False.

        Returns:
            The k best of all records that pass both filters. The filters act on released values.
        """
        units, is_single = _embeddings.as_queries(query, self.dimension)
        if not is_single and len(units) != 1:
            raise InvalidInput("search takes one query; search_batch takes several.")
        return self.search_batch(units, k, threshold=threshold, where=where)[0]

    @clear_frames_on_error
    @validate(**_FILTER_CHECKS)
    def search_batch(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> list[Hits]:
        """Run `search` for each of several queries, (m, d). All are charged together, or none is answered."""
        units, _ = _embeddings.as_queries(queries, self.dimension)
        return self._search.answer(units, HitFilter(k, threshold, where, self._search.hidden))

    @clear_frames_on_error
    async def asearch(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        threshold: float | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> Hits:
        """Run `search` in a thread. Cancelling it does not stop the thread: the query is charged."""
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
        """Run `search_batch` in a thread. Cancelling it does not stop the thread: the queries are charged."""
        return await asyncio.to_thread(self.search_batch, queries, k, threshold=threshold, where=where)

    @clear_frames_on_error
    @validate()
    def save(self, path: str | Path) -> None:
        """Write the private index (.npz) and its ids (.ids.json beside it), both or none. They hold no clean vector.

        Ids must be whole numbers or strings. The files also hold the hidden records, the entry of the ledger that was
        charged, and the count of indexes. Saving over another index adds its count.
        """
        self._search.save(resolve_path(path))

    @clear_frames_on_error
    def without_hidden(self, hits: Hits) -> Hits:
        """Remove the records from hits that were hidden since they were released."""
        places = [place for place, one in enumerate(hits.ids) if one not in self._search.hidden]
        if len(places) == len(hits):
            return hits
        scores, noisy = (None if values is None else values[places] for values in (hits.scores, hits.noisy))
        return replace(hits, ids=tuple(hits.ids[place] for place in places), scores=scores, noisy=noisy)

    @clear_frames_on_error
    def facts(self, hits: Hits) -> dict[str, Any]:
        """Collect what a framework's metadata says of the guarantee and the worth: small, public, ready for JSON."""
        return self._search.describe(hits)

    @staticmethod
    def _run(work: Callable[[], None]) -> None:
        """Make an index. An error that holds an unsaved one gets it as a search of this class, without the store."""
        try:
            work()
        except IndexNotSaved as error:
            error.search = PrivateSearch._wrap(error.search)
            raise
