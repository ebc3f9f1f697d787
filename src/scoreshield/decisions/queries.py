"""Predict the recall of a release, query by query, from public scores.

The best scores of two queries lie at different places, so scores that are pooled over queries mislead. `QueryScores`
keeps the irrelevant scores of each public query as counts on a common grid of 512 bins, and its relevant scores one by
one. A prediction is then a few matrix products, for any law: noise on scores, a level table, or windows anchored at a
private quantile.

A relevant record is found if fewer than k others are before it. The number of others is a sum of independent coins.
It is taken as binomial, with the mean `M = Σ p_j` and the variance `M - Σ p_j^2` of the sum, as in
`scoreshield.decisions.recall`. If more records are stated than the public ones, the further ones are draws from the
scores of the same query: with factor f, the mean is f M, and `(f - 1) M^2 / n` is added to the squares. If fewer
are stated, each public record is there with probability f.
"""

from __future__ import annotations

import base64
import copy
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from scoreshield import _loading, _validation
from scoreshield._validation import check_count, optional, validate
from scoreshield.decisions import query_tables
from scoreshield.decisions.recall import check_benchmark, compute_probability_of_fewer
from scoreshield.decisions.scores import (
    AdditiveLaw,
    Channel,
    Float,
    Law,
    NoiseLike,
    Sample,
    Scores,
    ScoresLike,
    as_law,
    pass_probability,
)
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.privacy.adjacency import FULL_RANGE, check_score_range
from scoreshield.privacy.anchors import ANCHOR_STEP, AnchoredLaw

#: What a prediction takes: the standard deviation of Gaussian noise, a noise law, a level table or anchored windows.
QueryLaw = NoiseLike | AnchoredLaw

#: Noise below it counts as none: no score can show it.
SMALLEST_STD = 1e-100
#: The fewest relevant scores, and the fewest irrelevant ones of a query.
LEAST_SCORES = 20
_BINS = 512
#: Thresholds at which the number of others above is computed: first over all noisy scores, then where it matters.
_ROUGH, _FINE = 96, 256
#: Further thresholds around the ends of a range, where clamped scores are tied.
_NEAR_ENDS = 64
#: Places of the public scale of windows, and anchors of each query.
_PLACES, _ANCHORS = 72, 4
#: The size of the tables of probabilities of counts.
_ROOTS, _SPREADS = 321, 25
#: The most quantiles that stand for the relevant scores of a population.
_MOST_RELEVANT = 256
#: A distribution counts as so many scores.
_MANY = 10**9
#: The most relevant records of one query that are followed one by one.
_MOST_PER_QUERY = 16
#: The most public queries, and the most of their scores, that are kept as a matrix.
_MOST_JOINT, _MOST_JOINT_SCORES = 400, 2**24
#: How far the relevant scores of another collection may lie from those that ship.
_DOUBT = 0.05
#: Multiples of it are spread evenly, modulo one.
_GOLDEN = (math.sqrt(5) - 1) / 2
#: Nine values in ten lie this close to the mean, in standard deviations of a t distribution.
_COVERAGE = 0.95
_KIND = "query scores"


class Prediction(NamedTuple):
    """A predicted figure with its error.

    Attributes:
        value: The prediction.
        error: Half the width of an interval around it that holds the released figure nine times in ten.
    """

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class JointScores:
    """The public scores of some queries with the same records, for simulations of what queries share.

    Attributes:
        scores: (queries, records), at most 400 queries and 2^24 scores: of more, some that are spread evenly.
        pairs: (m, 2): a query and a record that answers it, in the order of the queries.
    """

    scores: NDArray[np.float32]
    pairs: NDArray[np.int64]

    @classmethod
    def choose(cls, matrix: NDArray[Any], pairs: NDArray[np.int64]) -> JointScores:
        """Keep some queries of a matrix, which all have a relevant record, and the records that answer them."""
        number = min(len(matrix), _MOST_JOINT)
        chosen = np.linspace(0, len(matrix) - 1, number).round().astype(np.intp)
        place = np.full(len(matrix), -1)
        place[chosen] = np.arange(number)
        kept = pairs[place[pairs[:, 0]] >= 0]
        columns = np.arange(matrix.shape[1])
        if number * len(columns) > _MOST_JOINT_SCORES:
            needed = np.unique(kept[:, 1])
            others = np.setdiff1d(columns, needed)
            count = min(max(_MOST_JOINT_SCORES // number - len(needed), 0), len(others))
            spread = np.linspace(0, max(len(others) - 1, 0), count).round().astype(np.intp)
            columns = np.union1d(needed, others[spread])
        found = np.column_stack([place[kept[:, 0]], np.searchsorted(columns, kept[:, 1])])
        scores = matrix[np.ix_(chosen, columns)].astype(np.float32)
        return cls(scores, found[np.argsort(found[:, 0], kind="stable")])

    def find_relevant(self, query: int) -> NDArray[np.intp]:
        """Find the records that answer a query."""
        first, last = np.searchsorted(self.pairs[:, 0], [query, query + 1])
        return self.pairs[first:last, 1].astype(np.intp)

    @cached_property
    def groups(self) -> NDArray[np.intp]:
        """The best relevant record of each query. Queries that want the same one are a group."""
        found = [self.find_relevant(query) for query in range(len(self.scores))]
        best = [one[np.argmax(row[one])] for row, one in zip(self.scores, found, strict=True)]
        return np.array(best, dtype=np.intp)


class QueryScores:
    """What the scores of public queries look like, for predictions of recall.

    Args:
        scores: Public clean scores, (queries, records), all in [-1, 1].
        relevant: (m, 2) whole numbers: a query and a record that answers it. Queries without one are left out.
        origin: Where the scores come from.

    Attributes:
        records: The number of public records.
        queries: The number of public queries with a relevant record; 1 where scores are pooled.
        is_pooled: Whether the scores of all queries are one population, so that differences between queries are
            unknown.
        origin: Where the scores come from.
        joint: The scores as a matrix, which shows what queries share; None where they are pooled, or known by ranks, or
            a part of the queries.

    Raises:
        InvalidInput: The scores are not cosines, too few, all equal, or the relevant ones lie below the others.
    """

    records: int
    queries: int
    is_pooled: bool
    origin: str
    joint: JointScores | None = None
    #: The number of public queries that were sampled, where those kept stand for more; 0 for the number kept.
    _sampled: int = 0
    #: How far relevant scores may lie from these, relative to the irrelevant ones: 0 where queries are known.
    _doubt: float = 0.0

    @validate()
    def __init__(self, scores: ArrayLike, relevant: ArrayLike, *, origin: str = "public scores") -> None:
        matrix, pairs = check_benchmark(scores, relevant)
        if matrix.shape[1] < LEAST_SCORES:
            raise InvalidParameter("scores", f"must have at least {LEAST_SCORES} records. Got {matrix.shape[1]}.")
        low, high = _check_cosines(float(matrix.min()), float(matrix.max()), "scores")
        pairs = np.unique(pairs.astype(np.int64), axis=0)
        kept, places = np.unique(pairs[:, 0], return_inverse=True)
        if len(pairs) < LEAST_SCORES:
            raise InvalidParameter("relevant", f"must have at least {LEAST_SCORES} pairs. Got {len(pairs)}.")
        rows = matrix[kept].astype(np.float64)
        np.clip(rows, -1, 1, out=rows)
        self.joint = JointScores.choose(rows, np.column_stack([places, pairs[:, 1]]))
        pairs, places = _limit_relevant(rows, pairs, places)
        own = rows[places, pairs[:, 1]]
        is_other = np.ones(rows.shape, dtype=np.bool_)
        is_other[places, pairs[:, 1]] = False
        self._set_grid(low, high)
        counts = _count_bins(rows, self._low, self._width, is_other)
        _check_order(own - ((rows * is_other).sum(axis=1) / np.maximum(is_other.sum(axis=1), 1))[places], "relevant")
        rows[~is_other] = -2.0
        rows.sort(axis=1)
        last = [np.searchsorted(rows[q], s, side="right") for q, s in zip(places, own, strict=True)]
        first = [np.searchsorted(rows[q], s, side="left") for q, s in zip(places, own, strict=True)]
        above, ties = matrix.shape[1] - np.array(last, dtype=np.float64), np.subtract(last, first, dtype=np.float64)
        self._set_queries(counts, own, places, above, ties)
        self.records, self.is_pooled, self.origin = matrix.shape[1], False, origin

    @classmethod
    @validate()
    def pool(cls, irrelevant: ScoresLike, relevant: ScoresLike, *, origin: str = "public scores") -> QueryScores:
        """Make one population of pooled scores, for a caller who does not know which query a score belongs to.

        Args:
            irrelevant: Public scores of irrelevant records: an array, a sample or a distribution.
            relevant: Public scores of relevant records.
            origin: Where the scores come from.
        """
        far, near = _check_population(irrelevant, "irrelevant"), _check_population(relevant, "relevant")
        low, high = _check_cosines(min(far.lowest, near.lowest), max(far.highest, near.highest), "irrelevant")
        made = cls.__new__(cls)
        made._set_grid(low, high)
        edges = made._low + made._width * np.arange(1.0, _BINS)
        masses = -np.diff(np.concatenate([[1.0], far.clean_rate(edges, inclusive=False), [0.0]]))
        own = _list_scores(near)
        made._set_queries(
            np.maximum(masses, 0.0)[None],
            own,
            np.zeros(len(own), dtype=np.intp),
            far.clean_rate(own, inclusive=False),
            far.clean_rate(own, inclusive=True) - far.clean_rate(own, inclusive=False),
        )
        made.records = len(far) if isinstance(far, Sample) else _MANY
        made._sampled = len(near) if isinstance(near, Sample) else _MANY
        made.is_pooled, made.origin, made._doubt = True, origin, far.spread / 2
        _check_order(own - made._low - made._width * float(masses @ (np.arange(_BINS) + 0.5)), "relevant")
        return made

    @staticmethod
    def default() -> QueryScores:
        """The scores that ship: all-MiniLM-L6-v2 on FRAMES, as quantiles of the scores of some of its queries.

        The numbers in the source were printed by ``benchmarks/query_scores.py``.
        """
        return _make_default()

    @classmethod
    def from_ranks(
        cls,
        rows: Sequence[tuple[Sequence[float], Sequence[float]]],
        ranks: Sequence[int],
        *,
        records: int,
        sampled: int,
        origin: str,
    ) -> QueryScores:
        """Make the scores of queries of which only some ranks are known.

        Args:
            rows: For each query, its irrelevant scores at the ranks, best first, and its relevant scores.
            ranks: The ranks. Between them, the score is linear in the logarithm of the rank.
            records: The number of public records.
            sampled: The number of public queries that these stand for.
            origin: Where the scores come from.
        """
        own = np.concatenate([np.asarray(near, dtype=np.float64) for _, near in rows])
        query = np.repeat(np.arange(len(rows)), [len(near) for _, near in rows])
        places = np.log(np.arange(1, records + 1))
        scores = np.stack([np.interp(places, np.log(ranks), far) for far, _ in rows])
        others = records - np.bincount(query)
        made = cls.__new__(cls)
        made._set_grid(float(min(scores.min(), own.min())), float(max(scores.max(), own.max())))
        weights = np.arange(records) < others[:, None]
        counts = _count_bins(scores, made._low, made._width, weights)
        above = ((scores[query] > own[:, None]) & weights[query]).sum(axis=1)
        ties = ((scores[query] == own[:, None]) & weights[query]).sum(axis=1)
        made._set_queries(counts, own, query, above.astype(np.float64), ties.astype(np.float64))
        made.records, made.is_pooled, made.origin = records, False, origin
        made._sampled, made._doubt = sampled, _DOUBT
        return made

    def to_dict(self) -> dict[str, Any]:
        """Convert the scores to plain values, for JSON; `from_dict` reads them back. Arrays are compressed texts."""
        return {
            "kind": _KIND,
            "records": self.records,
            "queries": self.queries,
            "relevant": len(self._own),
            "is_pooled": self.is_pooled,
            "origin": self.origin,
            "sampled": self._sampled,
            "doubt": self._doubt,
            "low": float(self._low),
            "width": float(self._width),
            "counts": _pack_numbers(self._counts),
            "scores": _pack_numbers(np.stack([self._own, self._query, self._above, self._ties])),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QueryScores:
        """Read back what `to_dict` wrote.

        Raises:
            InvalidInput: If the values are not those of public scores.
        """
        try:
            if data["kind"] != _KIND:
                raise ValueError("another kind of object")
            records, queries, relevant = (check_count(data[name], name) for name in ("records", "queries", "relevant"))
            counts = _unpack_numbers(data["counts"], (queries, _BINS))
            own, query, above, ties = _unpack_numbers(data["scores"], (4, relevant))
            low, width, doubt = (_validation.check_real(data[name], name) for name in ("low", "width", "doubt"))
            sampled = _validation.check_count(data["sampled"], "sampled", least=0)
            is_pooled, origin = data["is_pooled"], data["origin"]
            if not isinstance(is_pooled, bool) or not isinstance(origin, str) or (is_pooled and queries != 1):
                raise ValueError("'is_pooled' and 'origin' do not fit")
            is_grid = width > 0 and low >= -2 and low + _BINS * width <= 2 and doubt >= 0
            if not is_grid or min(counts.min(), above.min(), ties.min()) < 0 or np.abs(own).max() > 1:
                raise ValueError("a number is out of range")
            places = query.astype(np.intp)
            if (places != query).any() or set(places.tolist()) != set(range(queries)):
                raise ValueError("a query is out of range")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = _loading.describe_error(error).rstrip(".")
            raise InvalidInput(f"These are no valid public scores of QueryScores.to_dict: {why}.") from None
        made = cls.__new__(cls)
        made._low, made._width = low, width
        made._set_queries(counts, own, places, above, ties)
        made.records, made.is_pooled, made.origin = records, is_pooled, origin
        made._sampled, made._doubt = sampled, doubt
        return made

    def __repr__(self) -> str:
        what = "pooled scores" if self.is_pooled else f"{self.queries:,} queries, {self.records:,} records"
        return f"<QueryScores of {what}: {self.origin}>"

    def _set_grid(self, low: float, high: float) -> None:
        self._width = (high - low) / (_BINS - 2)
        self._low = low - self._width

    def _set_queries(self, counts: Float, own: Float, query: NDArray[Any], above: Float, ties: Float) -> None:
        order = np.argsort(query, kind="stable")
        self._counts, self._own, self._query = counts, own[order], query[order]
        self._above, self._ties = above[order], ties[order]
        self.queries = len(counts)
        for name in ("_totals", "_tail"):  # a copy has those of the whole
            vars(self).pop(name, None)

    # ---- Parts and changes of the population.

    def split(self) -> tuple[QueryScores, QueryScores]:
        """Split the queries into two halves, the same every time; of pooled scores, the relevant ones."""
        number = len(self._own) if self.is_pooled else self.queries
        order = np.random.default_rng(number).permutation(number)
        return self.choose_queries(np.sort(order[::2])), self.choose_queries(np.sort(order[1::2]))

    def choose_queries(self, chosen: NDArray[Any]) -> QueryScores:
        """Keep some queries; of pooled scores, some of the relevant ones."""
        part = copy.copy(self)
        part.joint = None
        if self.is_pooled:
            kept, counts, query = chosen, self._counts, self._query[chosen]
        else:
            place = np.full(self.queries, -1)
            place[chosen] = np.arange(len(chosen))
            kept, counts = np.flatnonzero(place[self._query] >= 0), self._counts[chosen]
            query = place[self._query[kept]]
        part._set_queries(counts, self._own[kept], query, self._above[kept], self._ties[kept])
        return part

    def shift(self, distance: float) -> QueryScores:
        """Move all scores by a distance, as another population may lie. They stay in [-1, 1]."""
        part = copy.copy(self)
        part.joint = None
        part._low, part._own = self._low + distance, np.clip(self._own + distance, -1.0, 1.0)
        return part

    def _shift_relevant(self, distance: float) -> QueryScores:
        """Move the relevant scores alone."""
        part = copy.copy(self)
        part._own = np.clip(self._own + distance, -1.0, 1.0)
        place = np.clip((part._own - self._low) / self._width, 0.0, _BINS - 1e-9)
        whole = place.astype(np.intp)
        first, second = self._tail[self._query, whole], self._tail[self._query, whole + 1]
        part._above, part._ties = first + (second - first) * (place - whole), np.zeros(len(part._own))
        return part

    def find_score(self, rank: float, records: int | None = None) -> Float:
        """Find the score above which about ``rank`` of the records of each query lie."""
        share = rank / (self.records if records is None else records)
        tail = self._tail / self._totals[:, None]
        places = (tail >= min(share, 1.0)).sum(axis=1)
        return np.asarray(self._low + self._width * np.maximum(places - 1, 0))

    @property
    def relevant(self) -> Float:
        """The relevant scores of all queries."""
        return self._own

    @property
    def marginal(self) -> tuple[Float, Float]:
        """Scores of records with queries, all together, and the weight of each."""
        middles = self._low + self._width * (np.arange(_BINS) + 0.5)
        return np.clip(middles, -1.0, 1.0), self._counts.sum(axis=0)

    # ---- Predictions.

    @validate(records=optional(check_count), k=check_count, asked=optional(check_count))
    def predict_recall(
        self,
        law: QueryLaw,
        *,
        k: int,
        records: int | None = None,
        asked: int | None = 100,
        score_range: tuple[float, float] = FULL_RANGE,
    ) -> Prediction:
        """Predict the mean over queries of the share of relevant records among the k best by released score.

        Args:
            law: A standard deviation (Gaussian; 0 is no noise), a noise law, a level table, or an `AnchoredLaw`.
            k: The number of records returned.
            records: The number of records of the private collection; None for that of the public one.
            asked: Over how many further queries of the same population the released figure will be the mean; None for
                so many that only the public queries limit the prediction.
            score_range: The public range that scores are clamped to before noise.

        Returns:
            The prediction with its error: the sampling of the public queries, of those asked, and of the noise. Pooled
            scores, and the scores that ship, have a further error: how much the prediction would change if relevant
            scores lay higher or lower by half the spread of the irrelevant ones, or by 0.05.
        """
        return self.predict(
            lambda part: part.find_rates(law, k=k, records=records, score_range=score_range), asked=asked
        )

    def predict(self, find: Callable[[QueryScores], Float], *, asked: int | None) -> Prediction:
        """Average what a function finds for each relevant record, as `find_rates` does, and state its error."""
        made = self.summarise(find(self), asked=asked)
        if not self._doubt:
            return made
        ends = [find(self._shift_relevant(distance)) for distance in (-self._doubt, self._doubt)]
        change = float(self._average(ends[1])[0].mean() - self._average(ends[0])[0].mean()) / 2
        return made._replace(error=math.hypot(made.error, change))

    def summarise(self, rates: Float, *, asked: int | None) -> Prediction:
        """Average the probabilities of `find_rates`, and state the error of the mean."""
        means, noise = self._average(rates)
        number = self._sampled or len(means)
        between = float(means.var(ddof=1)) if len(means) > 1 else 0.25
        variance = between / number + (0.0 if asked is None else (between + noise) / asked)
        quantile = float(stdtrit(max(number - 1, 1), _COVERAGE))
        # A rate near 0 or 1 moves in whole records, as in Wilson's interval.
        whole = 0.0 if asked is None else quantile**2 / (2 * asked)
        return Prediction(float(np.clip(means.mean(), 0.0, 1.0)), math.hypot(quantile * math.sqrt(variance), whole))

    def _average(self, rates: Float) -> tuple[Float, float]:
        """The mean of each query, and the mean variance of a query's share due to noise."""
        if self.is_pooled:
            return rates, float(np.mean(rates * (1 - rates)))
        number = np.bincount(self._query, minlength=self.queries)
        means = np.bincount(self._query, weights=rates, minlength=self.queries) / number
        noise = np.bincount(self._query, weights=rates * (1 - rates), minlength=self.queries) / number**2
        return means, float(noise.mean())

    def find_rates(
        self,
        law: QueryLaw,
        *,
        k: int,
        records: int | None = None,
        score_range: tuple[float, float] = FULL_RANGE,
    ) -> Float:
        """Compute the probability that each relevant record is among the k best by released score."""
        low, high = check_score_range(score_range, "score_range")
        number = self.records if records is None else records
        if records is None and self.is_pooled:
            _validation.reject("records", "the number of records, which pooled scores do not state", records)
        if k >= number:
            return np.ones(len(self._own))
        if isinstance(law, AnchoredLaw):
            return self._find_anchored_rates(law, k, number, low, high)
        if isinstance(law, AdditiveLaw) and not callable(law.std) and law.std < SMALLEST_STD:
            law = 0  # noise that no score of a double can show
        checked = as_law(law)
        if checked is None:
            return self._find_clean_rates(k, number)
        if isinstance(checked, Channel):
            cuts, table = getattr(checked, "cuts", None), getattr(checked, "probabilities", None)
            if cuts is not None and table is not None:
                return self.find_table_rates(np.asarray(cuts, dtype=np.float64), np.asarray(table), k=k, records=number)
        return self._find_noisy_rates(checked, k, number, low, high)

    def _scale(self, records: int) -> Float:
        """How many private records stand for one public record of each query, apart from the relevant ones."""
        if self.is_pooled:
            return np.array([records - 1.0])
        others = np.maximum(self.records - np.bincount(self._query, minlength=self.queries), 1.0)
        wanted: Float = np.maximum(records - self.records + others, 0.0) / others
        return wanted

    def _scale_sums(self, mean: Float, squares: Float, scale: Float, query: Any = slice(None)) -> tuple[Float, Float]:
        """Scale the sums of the irrelevant records' coins, and of their squares, to the stated number of records.

        Args:
            mean: The sums over the public records; the first axis is that of ``query``.
            squares: The sums of squares.
            scale: As in `_scale`.
            query: The query of each row; by default one row per query.
        """
        shape = (-1,) + (1,) * (mean.ndim - 1)
        factor = scale[query].reshape(shape)
        if self.is_pooled:  # all records are draws
            return factor * mean, factor * mean**2
        drawn = np.maximum(factor - 1, 0.0) * mean**2 / self._totals[query].reshape(shape)
        return factor * mean, np.minimum(factor, 1.0) ** 2 * squares + drawn

    @cached_property
    def _totals(self) -> Float:
        return np.asarray(np.maximum(self._counts.sum(axis=1), 1e-9))

    @cached_property
    def _tail(self) -> Float:
        """The number of irrelevant scores above each edge of a bin, (queries, bins + 1)."""
        return _accumulate(self._counts)

    def _read_tail(self, scores: Float) -> Float:
        """Interpolate the number of irrelevant scores above some scores, which are the same for each query."""
        place = np.clip((scores - self._low) / self._width, 0.0, _BINS - 1e-9)
        whole = place.astype(np.intp)
        value: Float = self._tail[:, whole] * (1 - place + whole) + self._tail[:, whole + 1] * (place - whole)
        return value

    def _find_clean_rates(self, k: int, records: int) -> Float:
        """Without noise: by the ranks of the relevant records, where ties are broken at random."""
        others = self._count_relevant_above()
        if not self.is_pooled and records == self.records:
            exact: Float = np.clip((k - self._above - others) / (self._ties + 1), 0.0, 1.0)
            return exact
        scale = self._scale(records)
        middle = self._above + self._ties / 2
        mean, squares = self._scale_sums(middle, middle, scale, self._query)
        factor = scale[self._query]
        return _tabulate(k).average(
            self._above * factor + others, (self._above + self._ties) * factor + others, mean + others, squares + others
        )

    def _count_relevant_above(self) -> Float:
        """The number of the query's other relevant records above each one."""
        ranks = np.zeros(len(self._own))
        if not self.is_pooled:
            order = np.lexsort((-self._own, self._query))
            first = np.searchsorted(self._query, np.arange(self.queries))
            ranks[order] = np.arange(len(order)) - first[self._query[order]]
        return ranks

    def _sum_others(self, values: Float) -> Float:
        """For each relevant record, the sum of the rows of the other relevant records of its query."""
        if self.is_pooled:
            return np.zeros_like(values)
        sums = np.add.reduceat(values, np.searchsorted(self._query, np.arange(self.queries)), axis=0)
        return np.asarray(sums[self._query] - values)

    def _find_noisy_rates(self, law: Law, k: int, records: int, low: float, high: float) -> Float:
        """The relevant record at noisy score t is found with probability g(t): integrate g over its noise."""
        points = np.clip(self._low + self._width * (np.arange(_BINS) + 0.5), low, high)
        table, scale, own = _tabulate(k), self._scale(records), np.clip(self._own, low, high)
        noise = _find_extremes(law, records)

        def find(t: Float) -> tuple[Float, Float]:
            passing = pass_probability(law, t, points[:, None])
            mean, squares = self._scale_sums(self._counts @ passing, self._counts @ passing**2, scale)
            passing = pass_probability(law, t, own[:, None])
            others = self._sum_others(passing), self._sum_others(passing**2)
            return passing, table.evaluate(mean[self._query] + others[0], squares[self._query] + others[1])

        rough = np.linspace(points[0] + noise[0], points[-1] + noise[1], _ROUGH)
        _, g = find(rough)
        first = int(np.argmax(g.max(axis=0) > 1e-4))
        last = _ROUGH - int(np.argmax(g.min(axis=0)[::-1] < 1 - 1e-4))
        t = np.linspace(rough[max(first - 1, 0)], rough[min(last, _ROUGH - 1)], _FINE)
        t = np.unique(np.concatenate([t, *_list_near_ends(law, points)]))
        passing, g = find(t)
        middle = pass_probability(law, (t[1:] + t[:-1]) / 2, own[:, None])
        rates = g[:, 0] * passing[:, 0] + (np.diff(g, axis=1) * middle).sum(axis=1) + (1 - g[:, -1]) * passing[:, -1]
        return np.asarray(np.clip(rates, 0.0, 1.0))

    def find_table_rates(self, cuts: Float, probabilities: Float, *, k: int, records: int) -> Float:
        """Compute the probabilities of `find_rates` for a level table, given by its cuts and its rows.

        A record of one released level is found with the probability that fewer than k others are above it, averaged
        over its place among the records of the same released level.
        """
        scale, query = self._scale(records), self._query
        above = self._read_tail(cuts)
        counts = np.maximum(-np.diff(np.column_stack([self._totals, above, np.zeros(len(above))]), axis=1), 0.0)
        own = np.searchsorted(cuts, self._own, side="left")
        tie = probabilities
        higher = np.cumsum(tie[:, ::-1], axis=1)[:, ::-1] - tie
        first, ties, *squares = ((counts @ part)[query] for part in (higher, tie, higher**2, 2 * higher * tie, tie**2))
        other_first, other_ties, *other_squares = (
            self._sum_others(part[own]) for part in (higher, tie, higher**2, 2 * higher * tie, tie**2)
        )
        factor = scale[query][:, None]
        start = factor * first + other_first
        length = factor * ties + other_ties
        place = np.clip((k - start) / np.maximum(length, 1e-12), 0.0, 1.0)  # where the k-th record is among the ties
        mean, spread = self._scale_sums(
            first + place * ties, squares[0] + place * squares[1] + place**2 * squares[2], scale, query
        )
        mean = mean + other_first + place * other_ties
        spread = spread + other_squares[0] + place * other_squares[1] + place**2 * other_squares[2]
        found = _tabulate(k).average(start, start + length, mean, spread)
        return np.asarray(np.clip((tie[own] * found).sum(axis=1), 0.0, 1.0))

    def _find_anchored_rates(self, law: AnchoredLaw, k: int, records: int, low: float, high: float) -> Float:
        """Average over the anchors of each query; below an anchor, integrate over the public scale of windows."""
        table, scale, query = _tabulate(k), self._scale(records), self._query
        span, width = law.response.cells / law.response.window, law.window_width
        boost = math.exp(min(law.response.epsilon, 700.0))
        keep = (boost - 1) / (boost + span - 1)
        tails = _TailIntegrals(self._tail, self._low, self._width, low, high)
        own = np.clip(self._own, low, high)
        # Beyond the windows of this rank, k others are before a place almost surely.
        farthest = self._find_rank(scale, 2.0 * k + 4.0 * math.sqrt(k) + 4.0)
        rates = np.zeros(len(own))
        for number in range(_ANCHORS):
            tops = self._find_anchors(law, scale, number) + law.offset
            ends = np.minimum(np.clip((tops - farthest) / width, 0.0, span - 1) + 1.25, span)
            y = ends[:, None] * np.linspace(0.0, 1.0, _PLACES)
            background = (1 - keep) / span * y
            windows, squares = tails.count_before(y, tops, width, span)
            mean, squares = self._scale_sums(
                keep * windows + self._totals[:, None] * background,
                keep**2 * squares + 2 * keep * background * windows + self._totals[:, None] * background**2,
                scale,
            )
            starts = np.clip((tops[query] - own) / width, 0.0, span - 1)[:, None]
            before = keep * np.clip(y[query] - starts, 0.0, 1.0) + background[query]
            g = table.evaluate(mean[query] + self._sum_others(before), squares[query] + self._sum_others(before**2))
            rates += (np.diff(before, axis=1) * (g[:, 1:] + g[:, :-1])).sum(axis=1) / 2
        return np.clip(rates / _ANCHORS, 0.0, 1.0)

    def _find_anchors(self, law: AnchoredLaw, scale: Float, number: int) -> Float:
        """One quantile of the anchor of each query; the quantiles are spread evenly over queries and numbers."""
        anchor = law.anchor
        grid = np.arange(anchor.low, anchor.high + ANCHOR_STEP / 2, ANCHOR_STEP)
        counts = self._read_tail(grid) * scale[:, None]
        if not self.is_pooled:
            relevant = np.zeros((self.queries, len(grid) + 1))
            np.add.at(relevant, (self._query, np.searchsorted(grid, self._own, side="left")), 1.0)
            counts += _accumulate(relevant)[:, 1:-1]
        gaps = np.abs(counts - anchor.rank)
        weights = np.cumsum(np.exp(-anchor.epsilon * (gaps - gaps.min(axis=1, keepdims=True)) / 2), axis=1)
        quantiles = ((np.arange(len(counts)) + 0.5) * _GOLDEN + (number + 0.5) / _ANCHORS) % 1
        places = (weights < quantiles[:, None] * weights[:, -1:]).sum(axis=1)
        return np.asarray(grid[np.minimum(places, len(grid) - 1)])

    def _find_rank(self, scale: Float, rank: float) -> Float:
        """The score of about this rank among the stated number of records, for each query."""
        places = (self._tail * scale[:, None] >= rank).sum(axis=1)
        return np.asarray(self._low + self._width * np.maximum(places - 1, 0))


class _TailIntegrals:
    """Integrals of the number of scores above a place, which is linear inside each bin, for all queries.

    Args:
        tail: The number of scores above each edge of a bin, (queries, bins + 1).
        start: The first edge.
        width: The width of a bin.
        low: Scores below are clamped to it.
        high: Scores above are clamped to it.
    """

    def __init__(self, tail: Float, start: float, width: float, low: float, high: float) -> None:
        self._tail, self._start, self._width = tail, start, width
        self._low, self._high = max(low, start), high
        edges = start + width * np.arange(tail.shape[1])
        area = (tail[:, 1:] + tail[:, :-1]) * (width / 2)
        steps = np.diff(tail, axis=1)
        moment = area * edges[:-1] + (tail[:, :-1] / 2 + steps / 3) * width**2
        self._area, self._moment = (np.pad(np.cumsum(part, axis=1), ((0, 0), (1, 0))) for part in (area, moment))

    def integrate(self, to: Float) -> tuple[Float, Float]:
        """The integrals of the tail, and of the tail times the score, up to some places, (queries, places)."""
        inside = np.clip(to, self._low, self._high)
        place = np.clip((inside - self._start) / self._width, 0.0, self._tail.shape[1] - 1 - 1e-9)
        whole = place.astype(np.intp)
        at = np.arange(len(to))[:, None] * self._tail.shape[1] + whole
        edge, depth = self._start + self._width * whole, (place - whole) * self._width
        first = self._tail.ravel()[at]
        slope = (self._tail.ravel()[at + 1] - first) / self._width
        area = self._area.ravel()[at] + (first + slope * depth / 2) * depth
        moment = (
            self._moment.ravel()[at] + (first * edge + ((first + slope * edge) / 2 + slope * depth / 3) * depth) * depth
        )
        beyond = np.minimum(to, self._low)  # below, all scores are above a place
        area = area - self._tail[:, :1] * (self._low - beyond)
        return area, moment - self._tail[:, :1] * (self._low**2 - beyond**2) / 2

    def count_before(self, y: Float, tops: Float, width: float, span: float) -> tuple[Float, Float]:
        """Sum c and its square over the records of each query, where c is the part of a record's window before y.

        A record of score s begins at `a = clip((top - s) / width, 0, span - 1)`, and `c = clip(y - a, 0, 1)`. The sums
        are integrals of `#{a ≤ u}` and of `2 (y - u) #{a ≤ u}` over u from y - 1 to y.
        """
        tops, totals = tops[:, None], self._tail[:, :1]
        upper, lower = tops - np.maximum(y - 1, 0.0) * width, tops - np.minimum(y, span - 1) * width
        (area, moment), (area_below, moment_below) = self.integrate(upper), self.integrate(lower)
        area, moment = area - area_below, moment - moment_below
        late = np.maximum(y - (span - 1), 0.0)  # all records begin at span - 1 or before
        linear = area / width + totals * late
        square = 2 * ((y - tops / width) * area + moment / width) / width + totals * late**2
        return np.clip(linear, 0.0, totals), np.clip(square, 0.0, totals)


class _CountTable:
    """P[fewer than k successes] by the mean and the variance of the count, and its integral over the mean.

    Both are tabulated on the square root of the mean, which has about the same spread everywhere, and on the standard
    deviation relative to that of a Poisson count.
    """

    def __init__(self, k: int) -> None:
        self._first, self._last = max(0.0, math.sqrt(k) - 5), math.sqrt(k) + 5
        roots, self._spreads = np.linspace(self._first, self._last, _ROOTS), np.linspace(0.0, 1.0, _SPREADS)
        means = np.broadcast_to(roots**2, (_SPREADS, _ROOTS))
        self._values = compute_probability_of_fewer(means, means * (1 - self._spreads[:, None] ** 2), k)
        areas = (self._values[:, 1:] + self._values[:, :-1]) / 2 * np.diff(means, axis=1)
        self._integrals = np.pad(np.cumsum(areas, axis=1), ((0, 0), (1, 0))) + roots[0] ** 2

    def _locate(self, mean: Float, squares: Float) -> tuple[Float, Float]:
        """The places of a mean and of a relative standard deviation in the table."""
        spread = np.sqrt(np.clip(1 - squares / np.maximum(mean, 1e-12), 0.0, 1.0))
        return mean, spread * (_SPREADS - 1)

    def _interpolate(self, values: Float, mean: Float, row: Float) -> Float:
        column = (np.sqrt(np.maximum(mean, 0.0)) - self._first) * ((_ROOTS - 1) / (self._last - self._first))
        column = np.clip(column, 0.0, _ROOTS - 1)
        left = np.minimum(column.astype(np.intp), _ROOTS - 2)
        below = np.minimum(row.astype(np.intp), _SPREADS - 2)
        across, along, at, flat = column - left, row - below, below * _ROOTS + left, values.ravel()
        first = flat[at] + (flat[at + 1] - flat[at]) * across
        at += _ROOTS
        second = flat[at] + (flat[at + 1] - flat[at]) * across
        return np.asarray(first + (second - first) * along)

    def evaluate(self, mean: Float, squares: Float) -> Float:
        """Compute P[fewer than k] for counts with these sums of probabilities and of their squares."""
        mean, row = self._locate(mean, squares)
        return self._interpolate(self._values, mean, row)

    def average(self, first: Float, last: Float, mean: Float, squares: Float) -> Float:
        """Average P[fewer than k] over means from ``first`` to ``last``, with the spread at ``mean``."""
        _, row = self._locate(mean, squares)
        gap = last - first
        ends = [
            self._interpolate(self._integrals, end, row) + np.minimum(end - self._first**2, 0.0)
            for end in (first, last)
        ]
        wide = (ends[1] - ends[0]) / np.maximum(gap, 1e-9)
        narrow = self._interpolate(self._values, mean, row)
        return np.clip(np.where(gap > 0.2, wide, narrow), 0.0, 1.0)


@lru_cache(maxsize=1)
def _make_default() -> QueryScores:
    lines = [line.split(":") for line in query_tables.QUERIES]
    rows = [tuple([int(score) / 1000 for score in part.split()] for part in line) for line in lines]
    return QueryScores.from_ranks(
        [(far, near) for far, near in rows],
        query_tables.RANKS,
        records=query_tables.RECORDS,
        sampled=query_tables.SAMPLED,
        origin=query_tables.ORIGIN,
    )


@lru_cache(maxsize=32)
def _tabulate(k: int) -> _CountTable:
    return _CountTable(k)


def _pack_numbers(numbers: Float) -> str:
    """Compress an array of numbers to one text."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(numbers, dtype="<f8").tobytes(), 9)).decode()


def _unpack_numbers(text: str, shape: tuple[int, int]) -> Float:
    """Read back what `_pack_numbers` wrote. No more is decompressed than the shape needs."""
    packed, size = base64.b64decode(text, validate=True), 8 * math.prod(shape)
    if size > _loading.find_limit(len(packed)):
        raise ValueError("an array is too large")
    try:
        content = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error:
        content = b""
    numbers = np.frombuffer(content, dtype="<f8") if len(content) == size else np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise ValueError("an array is damaged")
    return numbers.astype(np.float64).reshape(shape)


def _accumulate(counts: Float) -> Float:
    """The sum of the counts from each place to the end of a row, and 0 after the last."""
    tail = np.zeros((len(counts), counts.shape[1] + 1))
    np.cumsum(counts[:, ::-1], axis=1, out=tail[:, -2::-1])
    return tail


def _count_bins(rows: Float, low: float, width: float, is_counted: NDArray[np.bool_]) -> Float:
    """Count the scores of each row in bins; a score between two middles counts for both, by its distance."""
    counts = np.zeros((len(rows), _BINS))
    step = max(1, 2**22 // rows.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        place = (part - low) / width - 0.5
        left = np.clip(place.astype(np.intp), 0, _BINS - 2)
        right = np.clip(place - left, 0.0, 1.0)
        at = (left + np.arange(len(part))[:, None] * _BINS).ravel()
        size, weight = len(part) * _BINS, is_counted[start : start + step].ravel().astype(np.float64)
        share = right.ravel() * weight
        total = np.bincount(at, weights=weight - share, minlength=size)
        total += np.bincount(at + 1, weights=share, minlength=size)
        counts[start : start + step] = total.reshape(-1, _BINS)
    return counts


def _limit_relevant(rows: Float, pairs: NDArray[Any], places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of a query's many relevant records, keep some that are spread evenly; the others count as any other record."""
    order = np.lexsort((-rows[places, pairs[:, 1]], places))
    first = np.searchsorted(places[order], places[order])
    number = np.bincount(places)[places[order]]
    rank = np.arange(len(order)) - first
    step = number / np.minimum(number, _MOST_PER_QUERY)
    # The records in whose turn a new whole number of steps begins, counted from the middle of a step.
    is_kept = np.floor((rank + 0.5 * step) / step) > np.floor((rank - 1 + 0.5 * step) / step)
    is_kept |= number <= _MOST_PER_QUERY
    kept = np.sort(order[is_kept])
    return pairs[kept], places[kept]


def _find_extremes(law: Law, records: int) -> tuple[float, float]:
    """An interval that holds the noise on all records, up to one release in a thousand."""
    rare = 1e-3 / records
    reach = law.std * np.geomspace(1e-3, 1e4, 400)
    below, above = 1 - np.asarray(pass_probability(law, -reach, 0.0)), np.asarray(pass_probability(law, reach, 0.0))
    ends = [float(reach[min(int((tail > rare).sum()), len(reach) - 1)]) for tail in (below, above)]
    return -ends[0], ends[1]


def _list_near_ends(law: Law, points: Float) -> list[Float]:
    """Thresholds near the ends of clamped scores, which are tied there and ordered by noise alone."""
    quantile = getattr(law, "quantile", None)
    ends = [end for end, next_to in ((points[0], points[1]), (points[-1], points[-2])) if end == next_to]
    if quantile is None or not ends:
        return []
    noise = np.asarray(quantile((np.arange(_NEAR_ENDS) + 0.5) / _NEAR_ENDS), dtype=np.float64)
    return [end + noise for end in ends]


def _check_cosines(low: float, high: float, name: str) -> tuple[float, float]:
    """Check the ends of a set of scores: cosines, with a spread."""
    if low < -1 - 1e-4 or high > 1 + 1e-4:
        worst = high if high > 1 else low
        raise InvalidParameter(
            name,
            f"must be cosines, in [-1, 1]. Got a score of {worst:.6g}: divide percentages by 100, and convert "
            "distances to cosines.",
        )
    if not high - low > 1e-6:
        raise InvalidParameter(name, f"must differ from each other. All are {low:.6g}: give scores of other records.")
    return max(low, -1.0), min(high, 1.0)


def _check_population(value: ScoresLike, name: str) -> Scores:
    """Check for a pooled sample of at least twenty scores, or a distribution."""
    if isinstance(value, Scores) and not isinstance(value, Sample):
        return value
    sample = value if isinstance(value, Sample) else Sample(value, name)
    _check_cosines(sample.lowest, sample.highest, name)
    if len(sample) < LEAST_SCORES:
        raise InvalidParameter(name, f"must have at least {LEAST_SCORES} scores. Got {len(sample)}: give more.")
    return sample


def _check_order(differences: Float, name: str) -> None:
    """Raise an error where relevant scores lie clearly below the irrelevant ones."""
    if float(differences.mean()) < 0 and float((differences < 0).mean()) > 0.6:
        raise InvalidParameter(
            name,
            "must be the higher scores, and they lie below the irrelevant ones: swap the two, or turn distances into "
            "similarities.",
        )


def _list_scores(near: Scores) -> Float:
    """The scores of a small sample, or evenly spaced quantiles of a population."""
    if isinstance(near, Sample) and len(near) <= _MOST_RELEVANT:
        return np.asarray(np.clip(near.values, -1.0, 1.0))
    shares = (np.arange(_MOST_RELEVANT) + 0.5) / _MOST_RELEVANT
    if isinstance(near, Sample):
        return np.asarray(np.clip(np.quantile(near.values, shares), -1.0, 1.0))
    return np.array([near.clean_threshold(1 - share) for share in shares])
