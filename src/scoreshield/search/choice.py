"""The kinds of search, and the choice of one by its predicted worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.decisions.worth import PREDICTED, Worth, find_population, predict_worth
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.geometry.embeddings import as_queries
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Identity, NullRecord, check_score_range
from scoreshield.privacy.filters import PrivacyFilter, compute_cost
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.hit_budget import HitBudget
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.noise import CustomNoise
from scoreshield.privacy.tails import AnchoredWindows
from scoreshield.releases.batch import PublicLevels, predict_batch_worth, prepare_batch
from scoreshield.releases.codebook import PublicCodebook
from scoreshield.releases.index import predict_index_worth, prepare_index
from scoreshield.releases.index_plan import MECHANISMS
from scoreshield.releases.matches import prepare_matches
from scoreshield.releases.scores import SCORE_MECHANISMS, prepare_scores
from scoreshield.search.base import Float, Mode, SearchOptions
from scoreshield.search.hits import HitSearch, choose_cuts, predict_hits_worth, state_guarantee
from scoreshield.search.index import IndexSearch
from scoreshield.search.index_files import resolve_path
from scoreshield.search.known_queries import BatchSearch
from scoreshield.search.query import QuerySearch
from scoreshield.search.screening import ScreeningSearch
from scoreshield.search.sources import IdentityMap, read_records
from scoreshield.search.totals import path_exists
from scoreshield.stores.pinned import Pin, PinnedStore
from scoreshield.stores.protocol import read_store

SearchKind = type[IndexSearch] | type[QuerySearch] | type[ScreeningSearch] | type[HitSearch] | type[BatchSearch]
SEARCHES: dict[Mode, SearchKind] = {
    search.mode: search for search in (IndexSearch, QuerySearch, ScreeningSearch, HitSearch, BatchSearch)
}
#: A cheaper mode is taken if it is predicted to find at least this share of what the best one finds.
_NEARLY_BEST = 0.9
#: The parameters that several modes take in different ways. The value for one mode may be wrong for another.
_SHARED = ("epsilon", "delta", "mechanism", "adjacency")


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
    if not isinstance(queries, list | tuple) and np.ndim(queries) == 0:
        return _validation.check_count(queries, "queries")
    found: NDArray[Any] = _validation.check_array(queries, "queries", must)
    if found.ndim != 2 or not found.size or found.dtype.kind not in "fiu":
        _validation.reject("queries", must, queries)
    return found.astype(np.float64)


def choose_mode(options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> ModeChoice:
    """Choose the mode with the best predicted worth, among those that the options allow.

    Each mode's release is prepared for public rows of the same shape, so that no record can enter the choice. Of the
    modes that are predicted to find nearly as much as the best, and as much as the caller requires, the one that spends
    least is taken: an index, then a hit budget, a batch, and single queries. An index over a codebook counts with the
    lower end of its prediction.

    Raises:
        InvalidInput: An argument is bad, whether or not the mode that would be picked takes it; or no way is left.
    """
    store = records.store
    dimension = read_store(store, "giving its dimension", lambda: store.dimension)
    _check_arguments(options, dimension)
    ids = read_records(store, lambda: records.take_snapshot().ids)
    names, adjacency = identities.group(ids)
    found: list[tuple[Worth, str, Mode, SearchOptions]] = []
    ruled_out: list[str] = []
    for name, mode, trial in _list_ways(options):
        why = _find_obstacle(mode, trial, options, records.pin)
        if why is None:
            try:
                check_mode(mode, trial)
                guarantee, worth = _predict(mode, trial, adjacency, len(ids), len(names), dimension)
                why = _find_shortage(mode, trial, options.queries, guarantee)
            except InvalidInput as error:
                if isinstance(error, InvalidParameter) and error.parameter not in _SHARED:
                    raise
                why = f"an error ({str(error).rstrip('.')})"
        if why is None:
            found.append((worth, name, mode, trial))
        else:
            ruled_out.append(f"{name} is ruled out by {why}")
    if not found:
        raise InvalidInput(f"No mode is left for mode='auto': {', and '.join(ruled_out)}.")
    sure = {name: _find_sure_recall(one, trial, dimension) for one, name, _, trial in found}
    best = max(sure.values())
    enough = max(_NEARLY_BEST * best, min(best, options.require_recall or 0.0))
    worth, name, mode, chosen = next(one for one in found if sure[one[1]] >= enough)  # the cheapest come first
    found.sort(key=lambda one: -one[0].recall)
    others = [_describe_other(one, other, sure[other]) for one, other, _, _ in found if other != name]
    compared = f" ({', '.join(others)})" if others else ", the only way that the arguments allow"
    price = f"each query costs epsilon {options.epsilon:g}" if mode in ("query", "screening") else "one charge"
    unused = ["'file' is not used"] if options.file is not None and chosen.file is None else []
    sentence = (
        f"mode {mode!r} was picked because {name} is predicted to find {worth.figure} of the relevant "
        f"records among {worth.asked}{compared}; "
        f"{'; '.join([*ruled_out, *unused, price])}"
    )
    candidates = tuple((other, one) for one, other, _, _ in found)
    return ModeChoice(mode, worth, sentence, candidates, replace(chosen, is_picked=True))


def _find_sure_recall(worth: Worth, trial: SearchOptions, dimension: int) -> float:
    """Find the recall that a way is compared by: the predicted one, and of a codebook the lower end of its error.

    What a codebook keeps of the private records is unknown, because it was not tried on them. How far the population
    may lie from the public scores is left out of this error: it is the same for every way.
    """
    if trial.codebook is None:
        return worth.recall
    spread = find_population(trial.public_scores, dimension).spread
    shared = float(np.interp(worth.recall, PREDICTED, spread))
    return max(worth.recall - math.sqrt(max(worth.error**2 - shared**2, 0.0)), 0.0)


def _describe_other(worth: Worth, name: str, sure: float) -> str:
    """Describe a way that was not picked."""
    return f"{name} {worth.recall:.2f}" if sure == worth.recall else f"{name} {worth.recall:.2f}, or only {sure:.2f}"


def _check_arguments(options: SearchOptions, dimension: int) -> None:
    """Raise an error for an argument that no way could take, or that belongs to a way that is not asked for.

    Each argument is checked as its own mode checks it, without the others.
    """
    check_score_range(options.score_range)
    mechanism: Any = options.mechanism
    words = tuple(dict.fromkeys([*MECHANISMS, *SCORE_MECHANISMS]))
    if mechanism is not None and type(mechanism) not in (LevelChannel, AnchoredWindows, CustomNoise):
        _validation.check_option(mechanism, "mechanism", words)
    row = np.zeros(dimension)
    row[:1] = 1.0
    stand_in = np.broadcast_to(row, (2, dimension))
    plain = _strip(options)
    IndexSearch.check_options(
        replace(plain, ledger=options.ledger, rng=options.rng, max_epsilon=options.max_epsilon, changes=options.changes)
    )
    is_plain = isinstance(options.reduction, str) and isinstance(options.center, str)
    if not is_plain or (options.components, options.reduction, options.center) != (None, "random", "none"):
        prepare_index(
            stand_in,
            epsilon=1.0,
            delta=1e-6,
            mechanism="gaussian",
            components=options.components,
            reduction=options.reduction,
            center=options.center,
            rng=0,
        )
    book: Any = options.codebook
    if book is not None and not (type(book) is PublicCodebook and book.dimension == dimension):
        got = f"{book.dimension:,} dimensions" if isinstance(book, PublicCodebook) else book
        _validation.reject("codebook", f"a PublicCodebook of {dimension:,} dimensions, as the embeddings are", got)
    if options.file is not None:
        resolve_path(options.file)
    if options.threshold is not None:
        prepare_matches(
            stand_in,
            row,
            options.threshold,
            epsilon=1.0,
            refine=options.refine,
            score_range=options.score_range,
            rng=0,
        )
    elif options.refine:
        raise InvalidInput("'refine' is for a screening: give its 'threshold' too.")
    known = options.queries if isinstance(options.queries, np.ndarray) else None
    if known is not None:
        as_queries(known, dimension, "queries")
    is_for_batch = known is not None and options.hits is None
    levels: dict[str, Any] = {} if is_for_batch else {"cuts": options.cuts, "names": options.names}
    HitSearch.check_options(replace(plain, hits=options.hits, adjacency=options.adjacency, **levels))
    if known is not None and is_for_batch:
        _check_batch(options, known, stand_in)
    if options.hits is None and options.adjacency is not None:
        raise InvalidInput("'adjacency' is for a hit budget: give its 'hits' too.")
    if options.hits is None and known is None and (options.cuts is not None or options.names is not None):
        raise InvalidInput("'cuts' and 'names' are for a hit budget, or for a batch: give 'hits' or the 'queries' too.")


def _check_batch(options: SearchOptions, known: Float, stand_in: Float) -> None:
    """Check the cuts and the names of a batch."""
    levels = None if isinstance(options.cuts, PublicLevels) else options.cuts
    try:
        prepare_batch(stand_in, known, epsilon=1.0, k=1, names=options.names, levels=levels, rng=0)
    except InvalidParameter as error:
        if error.parameter != "levels":
            raise
        raise InvalidParameter("cuts", error.problem) from None


def _strip(options: SearchOptions) -> SearchOptions:
    """Leave out every argument that only some modes take."""
    return replace(
        options,
        delta=0.0,
        ledger=None,
        mechanism=None,
        threshold=None,
        refine=0.0,
        score_range=FULL_RANGE,
        components=None,
        reduction="random",
        max_epsilon=None,
        file=None,
        hits=None,
        cuts=None,
        names=None,
        adjacency=None,
        center="none",
        codebook=None,
        changes="private",
        queries=None,
    )


def _list_ways(options: SearchOptions) -> list[tuple[str, Mode, SearchOptions]]:
    """List the ways to search that the options may allow, the cheapest first.

    What belongs to another mode is left out of a way's options, so that a caller may give all that there is.
    """
    shared = replace(
        _strip(options),
        delta=options.delta,
        ledger=options.ledger,
        mechanism=options.mechanism,
        score_range=options.score_range,
        changes=options.changes,
    )
    index = replace(
        shared,
        components=options.components,
        reduction=options.reduction,
        center=options.center,
        max_epsilon=options.max_epsilon,
        file=options.file,
    )
    ways: list[tuple[str, Mode, SearchOptions]] = []
    if options.codebook is not None:
        ways.append(("an index over the codebook", "index", replace(index, codebook=options.codebook)))
    ways.append(("an index", "index", index))
    levels: dict[str, Any] = {"cuts": options.cuts, "names": options.names}
    if options.hits is not None:
        hits = replace(shared, hits=options.hits, adjacency=options.adjacency, file=options.file, **levels)
        ways.append(("a hit budget", "hits", hits))
    if isinstance(options.queries, np.ndarray):
        batch = replace(shared, queries=options.queries, **(levels if options.hits is None else {}))
        ways.append(("a batch", "batch", batch))
    ways.append(("a release per query", "query", shared))
    if options.threshold is not None:
        screening = replace(shared, threshold=options.threshold, refine=options.refine)
        ways.append(("a screening per query", "screening", screening))
    return ways


def _find_obstacle(mode: Mode, trial: SearchOptions, options: SearchOptions, pin: Pin) -> str | None:
    """Find what rules a way out: an argument that it does not take, or what it needs. None if nothing does."""
    is_charged_each = mode in ("query", "screening")
    if is_charged_each and trial.ledger is None and trial.rng is None:
        return "the missing 'ledger', which each query is charged to"
    if pin == "scores" and mode in ("index", "batch"):
        return "pin='scores'"
    if trial.changes == "public" and mode != "index":
        return "changes='public'"
    if not is_charged_each and check_score_range(trial.score_range) != FULL_RANGE:
        return "'score_range'"
    if trial.mechanism is not None and not _takes_mechanism(mode, trial):
        return "'mechanism'"
    if trial.delta and (mode in ("hits", "batch", "screening") or trial.codebook is not None):
        return "'delta'"
    if options.file is not None and trial.file is None and path_exists(resolve_path(options.file)):
        return "'file', which holds what was made before"
    return None


def _takes_mechanism(mode: Mode, trial: SearchOptions) -> bool:
    """Return whether a way takes the mechanism that the caller names."""
    if mode == "index" and trial.codebook is None:
        return isinstance(trial.mechanism, str) and trial.mechanism in MECHANISMS
    return mode == "query" and (not isinstance(trial.mechanism, str) or trial.mechanism in SCORE_MECHANISMS)


def _find_shortage(mode: Mode, trial: SearchOptions, queries: Float | int | None, guarantee: Guarantee) -> str | None:
    """Find whether the ledger does not cover the number of queries that the caller states, or one query.

    They are composed as the ledger composes them, within what is left of its epsilon. After earlier charges that is
    an estimate: each charge is checked again.
    """
    if mode not in ("query", "screening") or trial.ledger is None:
        return None
    asked = 1 if queries is None else queries if isinstance(queries, int) else len(queries)
    left, delta = getattr(trial.ledger, "remaining", None), getattr(getattr(trial.ledger, "ledger", None), "delta", 0.0)
    if left is None or asked * trial.epsilon <= left * (1 + 1e-9):
        return None
    if left >= _validation.LEAST_EPSILON:
        cost = compute_cost(guarantee.profile, left, delta).times(asked)
        if PrivacyFilter.from_sums(left, delta, cost).is_within_limit():
            return None
    what = "one query" if asked == 1 else f"{asked:,} queries"
    return f"a ledger that does not cover {what} of epsilon {trial.epsilon:g}{'' if asked == 1 else ' each'}"


def _predict(
    mode: Mode, options: SearchOptions, adjacency: Adjacency, rows: int, names: int, dimension: int
) -> tuple[Guarantee, Worth]:
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
            return pending.guarantee, predict_index_worth(pending.guarantee, dimension, k, public, options.codebook)
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
            return batch.guarantee, predict_batch_worth(batch.guarantee, dimension, k, public)
        case "hits":
            if isinstance(adjacency, Identity) and not adjacency.centroids:
                raise InvalidInput("A hit budget is private only if one identity has one vector.")
            is_null = isinstance(options.adjacency, NullRecord)
            budget = HitBudget.split(options.epsilon, 1 if options.hits is None else options.hits, is_null=is_null)
            cuts = choose_cuts(options.cuts, names)
            promise = state_guarantee(budget, cuts, adjacency, names, options.epsilon, 0)
            return promise, predict_hits_worth(promise, dimension, k, public, names=options.names)
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
            return screened.guarantee, predict_worth(screened.guarantee, k=k, dimension=dimension, public_scores=public)
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
            return scored.guarantee, predict_worth(scored.guarantee, k=k, dimension=dimension, public_scores=public)
