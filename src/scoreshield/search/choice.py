"""The kinds of search, and the choice of one by its predicted worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.decisions.worth import Worth, predict_worth
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.privacy.adjacency import Adjacency, Identity, NullRecord
from scoreshield.privacy.hit_budget import HitBudget
from scoreshield.releases.batch import predict_batch_worth, prepare_batch
from scoreshield.releases.index import predict_index_worth, prepare_index
from scoreshield.releases.matches import prepare_matches
from scoreshield.releases.scores import prepare_scores
from scoreshield.search.base import Float, Mode, SearchOptions
from scoreshield.search.hits import HitSearch, choose_cuts, state_guarantee
from scoreshield.search.index import IndexSearch
from scoreshield.search.known_queries import BatchSearch
from scoreshield.search.query import QuerySearch
from scoreshield.search.screening import ScreeningSearch
from scoreshield.search.sources import IdentityMap, read_records
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import read_store

SearchKind = type[IndexSearch] | type[QuerySearch] | type[ScreeningSearch] | type[HitSearch] | type[BatchSearch]
SEARCHES: dict[Mode, SearchKind] = {
    search.mode: search for search in (IndexSearch, QuerySearch, ScreeningSearch, HitSearch, BatchSearch)
}
#: A cheaper mode is taken if it is predicted to find at least this share of what the best one finds.
_NEARLY_BEST = 0.9


@dataclass(frozen=True)
class ModeChoice:
    """What ``mode="auto"`` picked, and why.

    Attributes:
        mode: The mode.
        worth: Its predicted worth.
        sentence: The choice in one sentence.
        candidates: The predicted worth of each way to search that the arguments allow, best first.
        options: The arguments for the mode.
    """

    mode: Mode
    worth: Worth
    sentence: str
    candidates: tuple[tuple[str, Worth], ...]
    options: SearchOptions

    def __str__(self) -> str:
        return self.sentence


def check_mode(mode: Mode, options: SearchOptions) -> None:
    """Raise an error for options that a mode does not take."""
    if options.changes == "public" and mode != "index":
        raise InvalidInput("changes='public' is for mode='index'.")
    SEARCHES[mode].check_options(options)


def check_queries(queries: Any) -> Float | int | None:
    """Check the public queries of a batch, or their number."""
    if queries is None:
        return None
    must = "public queries, one per row, or how many queries will be asked"
    if np.ndim(queries) == 0:
        return _validation.check_count(queries, "queries")
    found: NDArray[Any] = _validation.check_array(queries, "queries", must)
    if found.ndim != 2 or not found.size or found.dtype.kind not in "fiu":
        _validation.reject("queries", must, queries)
    return found.astype(np.float64)


def choose_mode(options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> ModeChoice:
    """Choose the mode with the best predicted worth, among those that the options allow.

    Each mode's release is prepared for public rows of the same shape, so that no record can enter the choice. Of the
    modes that are predicted to find nearly as much as the best, the one that spends least is taken: an index, then a
    hit budget, a batch, and single queries.
    """
    store = records.store
    ids = read_records(store, lambda: records.take_snapshot().ids)
    names, adjacency = identities.group(ids)
    dimension = read_store(store, "giving its dimension", lambda: store.dimension)
    found: list[tuple[Worth, str, Mode, SearchOptions]] = []
    errors: list[ScoreShieldError] = []
    for name, mode, trial in _list_ways(options):
        try:
            check_mode(mode, trial)
            _check_covered(mode, trial, options.queries)
            found.append((_predict(mode, trial, adjacency, len(ids), len(names), dimension), name, mode, trial))
        except InvalidInput as error:
            errors.append(error)
    if not found:
        raise errors[0]
    enough = _NEARLY_BEST * max(one.recall for one, *_ in found)
    worth, name, mode, chosen = next(one for one in found if one[0].recall >= enough)  # the cheapest come first
    found.sort(key=lambda one: -one[0].recall)
    others = [f"{other} {one.recall:.2f}" for one, other, _, _ in found if other != name]
    compared = f" ({', '.join(others)})" if others else ", the only way that the arguments allow"
    price = f"each query costs epsilon {options.epsilon:g}" if mode in ("query", "screening") else "one charge"
    sentence = (
        f"mode {mode!r} was picked because {name} is predicted to find {worth.recall:.2f} ± {worth.error:.2f} of the "
        f"relevant records among the best {worth.k:,} of {worth.records:,}{compared}; {price}"
    )
    return ModeChoice(mode, worth, sentence, tuple((other, one) for one, other, _, _ in found), chosen)


def _list_ways(options: SearchOptions) -> list[tuple[str, Mode, SearchOptions]]:
    """List the ways to search that the options may allow, the cheapest first.

    What belongs to another mode is left out of a way's options, so that a caller may give all that there is.
    """
    bare = replace(
        options,
        threshold=None,
        refine=0.0,
        hits=None,
        cuts=None,
        names=None,
        adjacency=None,
        queries=None,
        codebook=None,
    )
    ways: list[tuple[str, Mode, SearchOptions]] = []
    if options.codebook is not None:
        ways.append(("an index over the codebook", "index", replace(bare, codebook=options.codebook)))
    ways.append(("an index", "index", bare))
    alone = replace(bare, codebook=None, center="none", max_epsilon=None)
    if options.hits is not None:
        hits = replace(alone, hits=options.hits, cuts=options.cuts, names=options.names, adjacency=options.adjacency)
        ways.append(("a hit budget", "hits", hits))
    if isinstance(options.queries, np.ndarray):
        batch = replace(alone, queries=options.queries, cuts=options.cuts if options.hits is None else None)
        ways.append(("a batch", "batch", batch))
    ways.append(("a release per query", "query", alone))
    if options.threshold is not None:
        screening = replace(alone, threshold=options.threshold, refine=options.refine)
        ways.append(("a screening per query", "screening", screening))
    return ways


def _check_covered(mode: Mode, options: SearchOptions, queries: Float | int | None) -> None:
    """Raise an error where the ledger does not cover the number of queries that the caller states."""
    if mode not in ("query", "screening") or queries is None or options.ledger is None:
        return
    asked = queries if isinstance(queries, int) else len(queries)
    left = getattr(options.ledger, "remaining", None)
    if left is not None and asked * options.epsilon > float(left) * (1 + 1e-9):
        raise InvalidInput(f"The ledger does not cover {asked:,} queries of epsilon {options.epsilon:g} each.")


def _predict(mode: Mode, options: SearchOptions, adjacency: Adjacency, rows: int, names: int, dimension: int) -> Worth:
    """Predict the worth of one mode, from a release that is prepared for public rows of the same shape."""
    row = np.zeros(dimension)
    row[0] = 1.0
    stand_in, k, public = np.broadcast_to(row, (rows, dimension)), options.k, options.public_scores
    mechanism: Any = options.mechanism
    match mode:
        case "index":
            pending = prepare_index(
                stand_in,
                epsilon=options.epsilon,
                delta=options.delta,
                mechanism="privunit" if mechanism is None else mechanism,
                components=options.components,
                reduction=options.reduction,
                center=options.center,
                codebook=options.codebook,
                adjacency=adjacency,
                rng=0,
            )
            return predict_index_worth(pending.guarantee, dimension, k, public, options.codebook)
        case "batch":
            assert options.queries is not None
            batch = prepare_batch(
                stand_in,
                options.queries,
                epsilon=options.epsilon,
                k=k,
                names=options.names,
                levels=options.cuts,
                adjacency=adjacency,
                rng=0,
            )
            return predict_batch_worth(batch.guarantee, dimension, k, public)
        case "hits":
            if isinstance(adjacency, Identity) and not adjacency.centroids:
                raise InvalidInput("A hit budget is private only if one identity has one vector.")
            is_null = isinstance(options.adjacency, NullRecord)
            budget = HitBudget.split(options.epsilon, 1 if options.hits is None else options.hits, is_null=is_null)
            cuts = choose_cuts(options.cuts, names)
            promise = state_guarantee(budget, cuts, adjacency, names, options.epsilon, 0)
            return predict_worth(promise, k=k, dimension=dimension, public_scores=public)
        case "screening":
            assert options.threshold is not None
            screened = prepare_matches(
                stand_in,
                row,
                options.threshold,
                epsilon=options.epsilon,
                refine=options.refine,
                adjacency=adjacency,
                score_range=options.score_range,
                rng=0,
            )
            return predict_worth(screened.guarantee, k=k, dimension=dimension, public_scores=public)
        case _:
            is_automatic = mechanism in (None, "auto")
            scored = prepare_scores(
                stand_in,
                row,
                epsilon=options.epsilon,
                delta=options.delta,
                mechanism="auto" if is_automatic else mechanism,
                for_="ranking" if is_automatic else "values",
                k=k,
                public_scores=public,
                adjacency=adjacency,
                score_range=options.score_range,
                rng=0,
            )
            return predict_worth(scored.guarantee, k=k, dimension=dimension, public_scores=public)
