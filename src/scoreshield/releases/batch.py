"""A batch of public queries for one epsilon: each record names the queries that it answers best.

A record sends one symbol, a set of T queries of the batch with a public level of its score for each of them, by one
randomised response over all such symbols (`scoreshield.privacy.response.SetResponse`). One record sends one symbol, so
epsilon covers all queries together, whatever their number. Larger sets and more levels say more about a record and are
true less often. `BatchAlphabet` chooses both from public facts. docs/proofs/batch.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _files, _loading, _validation
from scoreshield._formatting import choose_words
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Norm, Rng
from scoreshield._validation import check_count, check_epsilon, check_flag, check_progress, one_of, optional, validate
from scoreshield._views import SHOWN_ROWS, Columns
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.simulation import ASKED, Simulation, add_note, simulate_batch, state_simulated_worth
from scoreshield.decisions.worth import WORTH_CHECKS, Worth, check_public_scores, predict_worth
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, GramRadius, Identity, NullRecord, Replacement
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.profiles import PureProfile, round_down
from scoreshield.privacy.response import LARGEST_SIZE, SetResponse, Symbols
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.advice import Adviser, make_public_rows
from scoreshield.releases.index import BestRecords
from scoreshield.releases.pipeline import PendingRelease, PrivateCollection, draw_tie_break
from scoreshield.releases.results import Release, is_seed

Float = NDArray[np.float64]

#: Scores are computed for so many records and queries at once: 16 MiB in single precision.
_ROWS, _QUERIES = 1024, 4096
#: Symbols are drawn for so many records at once.
_DRAWN = 1 << 16
#: Up to this many names per record, the best queries are found by one pass over the scores for each name.
_PASSES = 4
#: The most names per record and the most levels that are chosen, and the most false names per query of a set.
_MOST_NAMES, _MOST_LEVELS, _FALSE_NAMES = 8, 20, 2.0
#: The least distance of the 10th from the 50th best public score.
_LEAST_SPREAD = 1e-4
#: How far levels follow the size of the collection, in steps of the tail of public scores.
_FARTHEST = 3.0
#: The number of cuts of a hit budget, and how many steps the first and the last lie above the expected 10th best score.
_HIT_CUTS, _HIT_ENDS = 14, (-1.08, 7.54)
#: Without public scores of each query, the share that a batch keeps may be smaller than its estimate by this part of
#: it: five queries that want the same record share its name.
_SHARED_ERROR = 0.8
_SHARED_NOTE = (
    "Records that several queries of the batch want are shared among those queries, and the prediction does not know "
    "how many want the same ones; public scores of each query ({how}) do."
)
_KIND = "public levels"


@dataclass(frozen=True, eq=False, repr=False)
class BatchRelease(Release):
    """The queries of a batch that each record names, with a level of its score for each of them.

    Attributes:
        queries: (m, d), float32, the public queries, each of length one.
        names: (n, T), the numbers of the queries that each record names, in increasing order; -1 where it names none.
        levels: (n, T), the level of the record's score for each of them, from 0; -1 where it names none.
        tie_break: The seed of the order of records with equal scores.
    """

    kind = "batch"

    queries: NDArray[np.float32]
    names: NDArray[np.signedinteger[Any]]
    levels: NDArray[np.signedinteger[Any]]
    tie_break: int

    @property
    def cuts(self) -> Float:
        """The lower edge of each level."""
        return np.array(self.guarantee.details["cuts"])

    @property
    def false_names(self) -> float:
        """The expected number of records, at most, that name a given query by chance."""
        return float(self.guarantee.details["false_names"])

    def is_intact(self) -> bool:
        details, names, levels = self.guarantee.details, self.names, self.levels
        is_bottom = (names == -1).all(axis=1) & (levels == -1).all(axis=1) & details["has_bottom"]
        is_inside = (names >= 0) & (names < len(self.queries)) & (levels >= 0) & (levels < details["levels"])
        return (
            self.guarantee.regime == self.kind
            and is_seed(self.tie_break)
            and names.dtype.kind == levels.dtype.kind == "i"
            and names.shape == levels.shape == self.guarantee.shape
            and bool((is_bottom | (is_inside.all(axis=1) & (np.diff(names, axis=1) > 0).all(axis=1))).all())
            and self.queries.dtype == np.float32
            and self.queries.ndim == 2
            and len(self.queries) == details["queries"]
            and bool(np.abs(np.linalg.norm(self.queries, axis=1) - 1).max() < 1e-3)
        )

    @validate(k=check_count, public_scores=check_public_scores)
    def worth(self, k: int = 10, *, public_scores: QueryScores | None = None) -> Worth:
        """Predict what `search` finds of the relevant records of a query, from public facts (`decisions.Worth`).

        Args:
            k: How many records are returned.
            public_scores: Public scores of the same model; None takes those that ship, with a larger error.
        """
        return predict_batch_worth(self.guarantee, self.queries.shape[1], k, public_scores)

    @validate(k=check_count, only_named=check_flag)
    def search(self, query: ArrayLike, k: int, *, only_named: bool = False) -> BestRecords:
        """Return the `k` best records of one query of the batch, or of several, best first.

        A record that names the query has the lower edge e of its level as score. A record that names another query, of
        cosine c > 0 with this one, has the score ``b + c^3 (e - b)``, where b is the lowest edge if that is negative
        and 0 otherwise. So similar queries share their records, and equal ones all of them. Of several names of a
        record the largest score counts. Records that name no such query are left out.

        Args:
            query: The number of the query in the batch, counted from 0, or an array of such numbers.
            k: How many records at most.
            only_named: Leave out the records that name neither the query nor an equal one.

        Returns:
            Scores and indices. For one query there are as many as records were found, at most k. For several queries
            there is one row per query, as long as the longest answer; shorter ones are filled up with the index -1 and
            the score -inf. Leave out the indices below 0 before you use them: -1 is also the last record of an array.
            Records of equal score are in a random order that belongs to the release, so that the same call gives the
            same answer.
        """
        asked = check_asked(query, len(self.queries))
        rankings = [self._rank(number, k, only_named) for number in asked.reshape(-1).tolist()]
        return rankings[0] if asked.ndim == 0 else stack_answers(rankings)

    def _rank(self, query: int, k: int, only_named: bool) -> BestRecords:
        """Sort the records by their scores for one query."""
        ranking = SymbolRanking(self.queries, self.cuts, self.tie_break, query, k, only_named=only_named)
        ranking.add(Symbols(self.names, self.levels))
        return ranking.finish()

    def _list_values(self) -> NDArray[Any]:
        raise InvalidInput("A BatchRelease holds names and levels, not scores: use search(), names or levels.")

    def _describe_size(self) -> str:
        queries, records = len(self.queries), len(self.names)
        return f"of {queries:,} {'query' if queries == 1 else 'queries'} and {records:,} records"

    def _list_columns(self) -> Columns:
        records, places = np.nonzero(self.names >= 0)
        levels = self.levels[records, places]
        return {"id": records, "query": self.names[records, places], "level": levels, "score": self.cuts[levels]}

    def _preview(self) -> tuple[dict[str, Any], str]:
        best = self._rank(0, SHOWN_ROWS, False)
        return {"id": best.indices.tolist(), "score": best.scores.tolist()}, "The best records of query 0"


class SymbolRanking:
    """Ranks records for one query of a batch, some records after the others. It keeps the best ones only.

    Args:
        queries: The public queries, each of length one.
        cuts: The lower edge of each level.
        tie_break: The seed of the order of records with equal scores.
        query: The number of the query.
        k: How many records at most.
        only_named: As for `BatchRelease.search`.
    """

    def __init__(
        self, queries: NDArray[np.float32], cuts: Float, tie_break: int, query: int, k: int, *, only_named: bool
    ) -> None:
        # Cosines are rounded, so that equal queries have the cosine 1. The last entry belongs to the name -1.
        self._similarity = np.append(np.round(queries @ queries[query], 6).astype(np.float64) ** 3, 0.0)
        self._similarity[query] = 1.0
        self._lowest = min(float(cuts[0]), 0.0)  # a score below 0 counts for more than that of an unrelated query
        self._heights = np.append(cuts - self._lowest, 0.0)
        self._k, self._only_named = k, only_named
        # One key per record of the collection, so that fewer records are the first of more.
        self._keys = np.random.default_rng([tie_break, query])
        self._best = (np.empty(0), np.empty(0), np.empty(0, dtype=np.intp))  # scores, keys, records
        self._count = 0

    def add(self, symbols: Symbols) -> None:
        """Rank the next records."""
        likeness = self._similarity[symbols.names]
        is_own, weights = likeness == 1.0, likeness * self._heights[symbols.levels]
        found = np.flatnonzero(is_own.any(axis=1) if self._only_named else (is_own | (weights > 0)).any(axis=1))
        scores = self._lowest + np.where(is_own[found] | (not self._only_named), weights[found], 0.0).max(axis=1)
        keys = self._keys.random(len(symbols.names))
        if len(found) > self._k:
            least = np.partition(scores, len(found) - self._k)[len(found) - self._k]
            found, scores = found[scores >= least], scores[scores >= least]
        fresh = (scores, keys[found], found + self._count)
        self._count += len(symbols.names)
        scores, keys, records = (np.concatenate(pair) for pair in zip(self._best, fresh, strict=True))
        order = np.lexsort((keys, -scores))[: self._k]
        self._best = (scores[order], keys[order], records[order])

    def finish(self) -> BestRecords:
        """Return the best records, best first."""
        return BestRecords(self._best[0], self._best[2])


def check_asked(query: ArrayLike, count: int) -> NDArray[Any]:
    """Check the number of a query of a batch, or an array of such numbers."""
    must = f"the number of a query, from 0 to {count - 1}, or an array of such numbers"
    asked = _validation.check_array(query, "query", must)
    if asked.dtype.kind not in "iu" or asked.ndim > 1 or ((asked < 0) | (asked >= count)).any():
        _validation.reject("query", must, query)
    return asked


def stack_answers(found: Sequence[BestRecords]) -> BestRecords:
    """Stack the answers of several queries; shorter ones are filled up with the index -1 and the score -inf."""
    width = max((len(one.indices) for one in found), default=0)
    scores, indices = np.full((len(found), width), -np.inf), np.full((len(found), width), -1, dtype=np.intp)
    for place, one in enumerate(found):
        scores[place, : len(one.scores)], indices[place, : len(one.indices)] = one
    return BestRecords(scores, indices)


@dataclass(frozen=True)
class PublicLevels:
    """Where the levels of scores belong, from the upper tail of public scores of the same model.

    The r-th best score of a query falls by about the same amount whenever r grows by the same factor. Two points of
    this line, averaged over public queries, place the levels for other collections.

    Attributes:
        tenth: The mean of the 10th best scores.
        fiftieth: The mean of the 50th best scores.
        records: How many public records there were.
        source: The model and the public data, as a certificate states it.
    """

    tenth: float
    fiftieth: float
    records: int
    source: str = "public scores given by the caller"

    @validate()
    def __post_init__(self) -> None:
        if not -1 < _validation.check_real(self.tenth, "tenth") < 1:
            _validation.reject("tenth", "a cosine strictly between -1 and 1", self.tenth)
        if not -1 <= _validation.check_real(self.fiftieth, "fiftieth") <= self.tenth - _LEAST_SPREAD:
            must = f"a cosine below the 10th best score, {self.tenth:g}, by at least {_LEAST_SPREAD:g}"
            _validation.reject("fiftieth", must, self.fiftieth)
        _validation.check_count(self.records, "records", least=50)
        if not isinstance(self.source, str) or not self.source.isprintable() or not 0 < len(self.source) <= 200:
            _validation.reject("source", "one line of text, of at most 200 characters", self.source)

    @classmethod
    @validate()
    def fit(cls, scores: ArrayLike, *, source: str = "public scores given by the caller") -> PublicLevels:
        """Fit the tail to public scores, (queries, records), with at least 50 records. Never give private scores."""
        must = "public scores, a matrix (queries, records) of finite numbers with at least 50 records"
        array = _validation.check_array(scores, "scores", must)
        if array.ndim != 2 or array.dtype.kind not in "fiu" or not len(array) or array.shape[1] < 50:
            _validation.reject("scores", must, array if array.ndim else scores)
        if not np.isfinite(array).all():
            _validation.reject("scores", must, array)
        best = -np.partition(-array.astype(np.float64), (9, 49), axis=1)
        tenth, fiftieth = float(best[:, 9].mean()), float(best[:, 49].mean())
        if not fiftieth <= tenth - _LEAST_SPREAD:
            raise InvalidInput("The public scores have no spread: their 10th and 50th best are equal on average.")
        return cls(tenth, fiftieth, array.shape[1], source)

    def place(self, count: int, records: int, k: float, *, has_open_level: bool = False) -> tuple[float, ...]:
        """Place the lower edges of so many levels around the expected k-th best score of a query.

        With more levels, the lowest begins lower and the highest begins higher. The constants
        were fitted on FRAMES, which leaves the place of the highest edge open; docs/batch.md says how it was fixed.
        If the lowest level has no lower edge, its stated edge is one level below the first real one.
        """
        real = max(count - has_open_level, 1)
        middle = self._place_middle(records, k)
        ends = middle + self._step * (3.0 / real - 2.6), middle + self._step * (4.6 - 4.2 / real)
        low, high = np.clip(ends, (middle - 1) / 2, (middle + 1) / 2).tolist()
        cuts = np.linspace(low, high, real) if real > 1 else np.array([low])
        if real < count:
            below = cuts[1] - cuts[0] if real > 1 else self._step
            cuts = np.append(max(low - below, (low - 1) / 2), cuts)
        return self._round(cuts)

    def place_for_hits(self, records: int) -> tuple[float, ...]:
        """Place the cuts of a hit budget, relative to the tail as the default cuts lie for all-MiniLM-L6-v2."""
        middle = self._place_middle(records, 10)
        ends = middle + self._step * np.array(_HIT_ENDS)
        low, high = np.clip(ends, (middle - 1) / 2, (middle + 3) / 4).tolist()
        return self._round(np.linspace(low, high, _HIT_CUTS))

    @property
    def _step(self) -> float:
        """How much a score falls whenever its rank grows by the factor e."""
        return (self.tenth - self.fiftieth) / math.log(5)

    def _place_middle(self, records: int, k: float) -> float:
        """Place the expected k-th best score of a query."""
        farther = math.log(records / k * 10 / self.records)
        middle = self.tenth + self._step * min(max(farther, -_FARTHEST), _FARTHEST)
        return min(max(middle, (self.tenth - 1) / 2), (self.tenth + 1) / 2)  # cosines end at -1 and 1

    def _round(self, cuts: Float) -> tuple[float, ...]:
        is_coarse = self._step > 0.01 and np.abs(cuts).max() < 0.999  # else cuts would become equal, or 1
        return tuple(np.round(cuts, 3 if is_coarse else 9).tolist())

    def save(self, path: str | Path) -> None:
        """Write the levels to a JSON file, completely or not at all."""
        _files.write_json_file(path, {"kind": _KIND, **asdict(self)})

    @classmethod
    def load(cls, path: str | Path) -> PublicLevels:
        """Read back levels that `save` wrote, equal to what was saved."""
        facts = _files.read_json_file(path)
        try:
            if facts.pop("kind") != _KIND:
                raise ValueError("another kind of object")
            return cls(**facts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"{path} holds no valid public levels: {_loading.describe_error(error)}") from None


#: What scores of all-MiniLM-L6-v2 look like: 824 questions and 2,519 titles of FRAMES.
MINILM_LEVELS = PublicLevels(0.357, 0.272, 2519, "all-MiniLM-L6-v2 on FRAMES")


@dataclass(frozen=True)
class BatchAlphabet:
    """The symbols of a batch: how many queries a record names, and where the levels of a score begin.

    Attributes:
        response: The randomised response over the symbols.
        cuts: The lower edge of each level. With one name, a record whose best score is below the first cut names no
            query; with several, the lowest level also holds the scores below the first cut.
        source: Where the cuts come from.
        group: How many records one neighbour can change.
        records: How many symbols are sent.
    """

    response: SetResponse
    cuts: tuple[float, ...]
    source: str
    group: int
    records: int

    @classmethod
    def choose(
        cls,
        *,
        epsilon: float,
        records: int,
        queries: int,
        k: int,
        names: int | None = None,
        levels: ArrayLike | PublicLevels | None = None,
        group: int = 1,
    ) -> BatchAlphabet:
        """Choose the number of names and the levels from public facts.

        Args:
            epsilon: The epsilon of the promise.
            records: How many records there are, or identities where centroids are released.
            queries: The size of the batch.
            k: How many records per query will be asked for.
            names: T, if the caller chooses it.
            levels: The cuts, if the caller chooses them, or public scores that place them.
            group: How many records share epsilon.
        """
        each = epsilon if group == 1 else _divide_budget(epsilon, group)
        given = None if levels is None or isinstance(levels, PublicLevels) else _check_cuts(levels)
        if names is not None and names > min(queries, LARGEST_SIZE):
            _validation.reject("names", f"at most {LARGEST_SIZE} and at most the number of queries, {queries:,}", names)
        sizes = range(1, min(queries, _MOST_NAMES) + 1) if names is None else (names,)
        counts = range(1, _MOST_LEVELS + 1) if given is None else (len(given),)
        pairs = [(size, count) for size in sizes for count in counts if size == 1 or size < queries or count > 1]
        allowed = [
            (size, count)
            for size, count in pairs
            if size == 1 or records * _estimate_uniform(each, queries, size, count) * size / queries <= _FALSE_NAMES
        ]
        worths = {
            (size, count): _estimate_share(each, records, queries, k, size, count) for size, count in allowed or pairs
        }
        if not worths:
            raise InvalidInput("One symbol says nothing: give fewer names than queries, or at least two levels.")
        size, count = max(worths, key=lambda pair: worths[pair])
        response = SetResponse(each, queries, size, count, has_bottom=size == 1)
        if given is not None:
            return cls(response, given, "given by the caller", group, records)
        public = levels if isinstance(levels, PublicLevels) else MINILM_LEVELS
        # Of many queries each gets few names, so that lower scores serve too.
        deeper = k * math.sqrt(max(1.0, queries * k / records))
        cuts = public.place(count, records, deeper, has_open_level=size > 1)
        return cls(response, cuts, public.source, group, records)

    @classmethod
    def from_guarantee(cls, guarantee: Guarantee) -> BatchAlphabet:
        """Read the alphabet that `state_guarantee` states."""
        details = guarantee.details
        response = SetResponse(
            details["epsilon_per_record"],
            details["queries"],
            details["names_per_record"],
            details["levels"],
            has_bottom=details["has_bottom"],
        )
        group = round(guarantee.sensitivity)
        return cls(response, tuple(details["cuts"]), details["cuts_from"], group, guarantee.shape[0])

    @property
    def false_names(self) -> float:
        """The expected number of records, at most, that name a given query by chance."""
        return self.records * self.response.false_names

    def estimate_worth(self, k: int) -> float:
        """Estimate the share of the clean recall at k that remains, by the rule that chooses names and levels."""
        response = self.response
        return _estimate_share(response.epsilon, self.records, response.names, k, response.size, response.levels)

    def state_guarantee(self, adjacency: Adjacency, epsilon: float, sampler: str) -> Guarantee:
        response = self.response
        return Guarantee.for_mechanism(
            ReleaseFacts(adjacency, "batch", (self.records, response.size), FULL_RANGE, sampler),
            epsilon=epsilon,
            delta=0.0,
            mechanism="set-response",
            sensitivity=float(self.group),  # how many symbols one neighbour can change
            grid_sensitivity=float(self.group),
            scale=1.0,
            grid=1.0,
            profile=response.profile if self.group == 1 else PureProfile(epsilon),
            details={
                "queries": response.names,
                "names_per_record": response.size,
                "levels": response.levels,
                "cuts": list(self.cuts),
                "cuts_from": self.source,
                "has_bottom": response.has_bottom,
                "symbols": response.symbols,
                "truth": response.truth,
                "false_names": self.false_names,
                "epsilon_per_record": response.epsilon,
            },
        )

    def find_symbols(self, rows: _embeddings.Rows, queries: Float, norm: str, progress: Progress | None) -> Symbols:
        """Find the true symbol of each record: its best queries, and the level of its score for each of them.

        Memory: the symbols, the queries in the precision of the records, and about 64 MiB for a block of scores.
        """
        size = self.response.size
        names = np.empty((len(rows), size), dtype=np.min_scalar_type(-self.response.names))
        levels = np.empty((len(rows), size), dtype=np.min_scalar_type(-len(self.cuts)))
        edges = np.array(self.cuts)
        public = queries.astype(rows.dtype)
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            best, scores = _find_best(rows[part], public, queries, size, norm, start)
            names[part] = best
            levels[part] = np.searchsorted(edges, scores, side="right") - 1
            if progress is not None:
                progress(min(start + _ROWS, len(rows)), len(rows))
        if self.response.has_bottom:
            names[levels == -1] = -1
        else:
            np.maximum(levels, 0, out=levels)
        return Symbols(names, levels)

    def draw(self, true: Symbols, stream: Stream) -> Symbols:
        """Overwrite the true symbols by drawn ones."""
        for start in range(0, len(true.names), _DRAWN):
            part = slice(start, start + _DRAWN)
            true.names[part], true.levels[part] = self.response.release(
                stream, Symbols(true.names[part], true.levels[part])
            )
        return true


@clear_frames_on_error
@validate(
    epsilon=check_epsilon,
    names=optional(check_count),
    norm=one_of(_embeddings.NORMS),
    progress=check_progress,
    **WORTH_CHECKS,
)
def release_batch(
    embeddings: ArrayLike,
    queries: ArrayLike,
    *,
    epsilon: float,
    k: int,
    names: int | None = None,
    levels: ArrayLike | PublicLevels | None = None,
    public_scores: QueryScores | None = None,
    require_recall: float | None = None,
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    norm: Norm = "unit",
    rng: Rng = None,
    ledger: AccountLike | None = None,
    progress: Progress | None = None,
) -> BatchRelease:
    """Release which records answer each query of a public batch, under one pure epsilon for all queries together.

    Each record sends one symbol: the queries of the batch that it answers best, and a public level of its score for
    each of them. The number of names and of levels is chosen from the numbers of records and queries, epsilon and `k`.
    Equal queries are allowed: a record may name any of them, and `search` returns the same records for all of them.

    The rows are read once, block by block. Memory: the (n, T) result, 16 bytes for each number of the queries, and
    about 0.1 GiB for a block; centroids are computed in memory.

    Args:
        embeddings: The private collection, (n, d), float32 or float64; a memory-mapped array is read block by block.
        queries: The public batch, (m, d), from one query on.
        epsilon: The whole budget, for all queries together.
        k: How many records per query will be asked for. It moves the levels and chooses their number; any other
            number can be asked for later.
        names: T, how many queries each record names. By default it is chosen, so that more than one name leaves at
            most two false names per query. `BatchRelease.false_names` states their number.
        levels: Public cut points in [-1, 1], the lower edges of the levels, or `PublicLevels` fitted on public scores
            of the same model. The default was measured for all-MiniLM-L6-v2 on FRAMES. With one name, a record whose
            best score is below the first cut names no query; with several, the lowest level has no lower edge.
        public_scores: Public scores of the same model, for predictions; None takes those that ship.
        require_recall: Raise an error, before anything is charged, unless the predicted recall at `k` is at least this.
        adjacency: ``Replacement()`` or ``Identity(labels)``. With ``centroids=True`` one symbol per identity is
            released; without, the records of the largest identity share the budget.
        norm: As in `release_scores`.
        rng: None for the secure sampler; a seed or a numpy Generator for research mode, which repeats and is not
            private.
        ledger: ``ledger.account(name)`` of a `scoreshield.Ledger`, charged before any random bit is drawn.
        progress: Called with (rows done, rows in all).

    Returns:
        A BatchRelease with ``.search(i, k)``, ``.names``, ``.levels``, ``.false_names``, ``.worth(k)`` and
        ``.guarantee``.

    Warns:
        UselessRelease: The ranking is predicted to be mostly noise. It is given before anything is charged, and not in
            research mode.
    """
    prepare = partial(prepare_batch, k=k, names=names, levels=levels, adjacency=adjacency, norm=norm)
    pending = prepare(embeddings, queries, epsilon=epsilon, rng=rng, progress=progress)
    if require_recall is not None or rng is None:
        rows = make_public_rows(*_embeddings.find_shape(embeddings))
        check_batch_worth(
            pending.guarantee,
            rows.shape[1],
            k,
            public_scores,
            require_recall,
            lambda other: prepare(rows, queries, epsilon=other, rng=0).guarantee,
        )
    return pending.release(ledger)


def predict_batch_worth(guarantee: Guarantee, dimension: int, k: int, public_scores: QueryScores | None) -> Worth:
    """Predict the worth of a batch from its guarantee.

    With the caller's public scores of each query, the batch is simulated on them. Otherwise the share of the clean
    recall that remains is estimated, and the error covers that the share is a fifth of the estimate: several queries of
    the batch may want the same records.
    """
    details, records, queries = guarantee.details, guarantee.shape[0], guarantee.details["queries"]
    if public_scores is None or public_scores.joint is None:
        estimate = min(_estimate_share_of(details, records, queries, k), 1.0)
        worth = predict_worth(guarantee, k=k, dimension=dimension, public_scores=public_scores, share=estimate)
        if queries == 1:
            return worth
        note = _SHARED_NOTE.format(how=choose_words("QueryScores", "--public-scores"))
        return add_note(worth, note, further=_SHARED_ERROR * worth.recall)
    simulated, factor = simulate_public_batch(details, public_scores, records=records, k=k)
    note = f"Simulated on batches of {simulated.queries:,} public queries"
    if simulated.queries < queries:
        note += f", and estimated from there for {queries:,}"
    asked = min(queries, ASKED)
    return state_simulated_worth(
        simulated, public_scores, k=k, records=records, asked=asked, factor=factor, note=f"{note}."
    )


def simulate_public_batch(
    details: Mapping[str, Any], public_scores: QueryScores, *, records: int, k: int
) -> tuple[Simulation, float]:
    """Simulate a batch on public scores that are known as a matrix.

    Args:
        details: Those of the guarantee of the batch.
        public_scores: The public scores.
        records: The number of private records.
        k: How many records are returned for a query.

    Returns:
        The simulation, and the estimated change from its numbers of queries and records to those of the batch.
    """
    assert public_scores.joint is not None
    queries = min(details["queries"], len(public_scores.joint.scores))
    size = min(details["names_per_record"], queries)
    response = SetResponse(
        details["epsilon_per_record"], queries, size, details["levels"], has_bottom=details["has_bottom"]
    )
    simulated = simulate_batch(public_scores, response, details["cuts"], records=records, k=k)
    here = _estimate_share_of(details, simulated.records, simulated.queries, k)
    # More records are found less often without privacy too, and that is in the clean recall.
    return simulated, _estimate_share_of(details, records, details["queries"], k) / max(here, 1e-3)


def _estimate_share_of(details: Mapping[str, Any], records: int, queries: int, k: int) -> float:
    """Estimate the share of the clean recall that a batch keeps, for other numbers of records or queries."""
    size = min(details["names_per_record"], queries)
    return _estimate_share(details["epsilon_per_record"], records, queries, k, size, details["levels"])


def check_batch_worth(
    guarantee: Guarantee,
    dimension: int,
    k: int,
    public_scores: QueryScores | None,
    require_recall: float | None,
    repeat: Callable[[float], Guarantee] | None = None,
) -> Worth:
    """Predict the worth of a batch before its charge, and warn where the ranking would be noise.

    ``repeat`` states the guarantee of the same batch at another epsilon.
    """

    def predict(stated: Guarantee) -> Worth:
        return predict_batch_worth(stated, dimension, k, public_scores)

    worth = predict(guarantee)
    adviser = Adviser(
        "batch",
        guarantee.epsilon,
        dimension,
        public_scores,
        require_recall,
        is_grouped=isinstance(guarantee.adjacency, Identity) and guarantee.adjacency.largest > 1,
        repeat=None if repeat is None else lambda epsilon: predict(repeat(epsilon)),
    )
    adviser.check(worth, is_charged=guarantee.sampler != "research")
    return worth


def prepare_batch(
    embeddings: ArrayLike,
    queries: ArrayLike,
    *,
    epsilon: float,
    k: int,
    names: int | None = None,
    levels: ArrayLike | PublicLevels | None = None,
    adjacency: Adjacency = Replacement(),  # noqa: B008
    norm: Norm = "unit",
    rng: Rng = None,
    progress: Progress | None = None,
) -> PendingRelease[Symbols, BatchRelease]:
    """Prepare a batch before its charge, with the arguments of `release_batch`."""
    source = PrivateCollection.check(embeddings, adjacency)
    if isinstance(adjacency, NullRecord):
        adjacency.sensitivity("scores", source.size)  # raises the error of this adjacency
    if isinstance(adjacency, GramRadius):
        must = "Replacement() or Identity(labels): a Gram radius says nothing about queries"
        _validation.reject("adjacency", must, adjacency)
    public, _ = _embeddings.as_queries(queries, source.dimension, "queries")
    alphabet = BatchAlphabet.choose(
        epsilon=epsilon,
        records=source.size,
        queries=len(public),
        k=k,
        names=names,
        levels=levels,
        group=adjacency.largest if isinstance(adjacency, Identity) else 1,
    )
    guarantee = alphabet.state_guarantee(source.adjacency, epsilon, name_sampler(rng))

    def compute() -> Symbols:
        return alphabet.find_symbols(source.rows(), public, norm, progress)

    def draw(true: Symbols, stream: Stream) -> BatchRelease:
        names, levels = alphabet.draw(true, stream)
        return BatchRelease(guarantee, public.astype(np.float32), names, levels, draw_tie_break(stream))

    return PendingRelease(guarantee, source.adjacency, rng, compute, draw)


def _check_cuts(levels: ArrayLike) -> tuple[float, ...]:
    """Check public cut points."""
    public = choose_words("PublicLevels, or ", "")
    must = f"{public}1 to 100 cut points in [-1, 1], each above the one before"
    array = _validation.check_array(levels, "levels", must)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not 1 <= len(array) <= 100:
        _validation.reject("levels", must, array if array.ndim else levels)
    cuts = array.astype(np.float64)
    if not (np.abs(cuts) <= 1).all() or (np.diff(cuts) <= 0).any():  # also where one is NaN
        _validation.reject("levels", must, array)
    return tuple(cuts.tolist())


def _divide_budget(epsilon: float, group: int) -> float:
    """Divide epsilon by the records that share it, so that the parts add up to at most epsilon, to the last bit."""
    return _validation.check_epsilon(round_down(Fraction(epsilon) / group))


def _estimate_uniform(epsilon: float, queries: int, size: int, count: int) -> float:
    """Estimate the share of records whose symbol is drawn from all N symbols: N / (N + e^epsilon - 1)."""
    symbols = math.lgamma(queries + 1) - math.lgamma(size + 1) - math.lgamma(queries - size + 1)
    spread = min(symbols + size * math.log(count), 700.0)
    return 1 / (1 + math.expm1(min(epsilon, 700.0)) * math.exp(-spread))


def _estimate_share(epsilon: float, records: int, queries: int, k: int, size: int, count: int) -> float:
    """Estimate the share of the clean recall at k that remains, to compare numbers of names and levels.

    The factors are: the records of one query can be ordered by levels; the symbol is true; false names do not take
    the place of true ones; the query is among those that the record names. Their constants are fitted on FRAMES.
    """
    uniform = _estimate_uniform(epsilon, queries, size, count)
    crowd = records * size / (queries * k)  # records that name a query, for each of the k that are asked for
    cuts = count if size == 1 else count - 1
    order = (1 - 0.12 * min(crowd, 1.0)) / max(crowd, 1.0) if cuts == 0 else 1 - _lose_order(crowd) * 0.45 ** (cuts - 1)
    false_names = records * uniform * size / queries
    missed = 0.045 * max(0.0, math.log(queries / 30)) * 5.0 ** (1 - size)
    return order * (1 - uniform) * math.exp(-0.16 * false_names / k) * max(1 - missed, 0.1)


def _lose_order(crowd: float) -> float:
    """Estimate the share of recall that one level loses, because it does not order the records of a query."""
    return 0.27 * crowd / (crowd + 0.5)


def _find_best(
    rows: _embeddings.Rows, public: _embeddings.Rows, queries: Float, size: int, norm: str, first: int
) -> tuple[NDArray[np.intp], _embeddings.Rows]:
    """Find the best queries of each row, and their scores: (rows, size), block by block of queries."""
    best = np.empty((len(rows), 0), dtype=np.intp)
    scores = np.empty((len(rows), 0), dtype=rows.dtype)
    for start in range(0, len(queries), _QUERIES):
        part = slice(start, start + _QUERIES)
        block = _embeddings.compute_row_scores(rows, public[part], queries[part], norm, first)
        chosen, values = _choose_largest(block, min(size, block.shape[1]))
        best, scores = np.hstack([best, chosen + start]), np.hstack([scores, values])
        if best.shape[1] > size:
            kept, scores = _choose_largest(scores, size)
            best = np.take_along_axis(best, kept, 1)
    return best, scores


def _choose_largest(scores: _embeddings.Rows, size: int) -> tuple[NDArray[np.intp], _embeddings.Rows]:
    """Choose the largest scores of each row: their places and values. It may overwrite the given scores."""
    if size == scores.shape[1]:
        return np.broadcast_to(np.arange(size), scores.shape), scores
    if size > _PASSES:
        places = np.argpartition(scores, -size, axis=1)[:, -size:]
        return places, np.take_along_axis(scores, places, 1)
    places, values = np.empty((len(scores), size), dtype=np.intp), np.empty((len(scores), size), dtype=scores.dtype)
    rows = np.arange(len(scores))
    for place in range(size):
        places[:, place] = found = scores.argmax(axis=1)
        values[:, place] = scores[rows, found]
        scores[rows, found] = -np.inf
    return places, values
