"""How the best scores of a query fall off, from public scores, and the windows that suit this shape.

`AnchoredWindows` releases scores relative to a private anchor, the place above which about R scores lie. How far above
the anchor the k best scores lie hardly depends on the query or the collection, only on the model. A `TailShape` holds
what public scores say about it: for each budget the place, the width and the number of windows that keep the most of
the k best records.

The budget counts relative to `ln(n / k)`, the least epsilon at which any mechanism can name k of n records. The
*excess* `ln(n / k) - ε` is all that a table needs: about `k e^excess` false records reach the first window, whatever n
is.

Everything here reads public scores, never those of a private collection.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import ndtr

from scoreshield import _files, _loading, _validation
from scoreshield._formatting import choose_words
from scoreshield._validation import check_count, check_epsilon, check_positive, check_progress, optional, validate
from scoreshield.errors import InvalidInput, TailShapeWarning
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.anchors import ANCHOR_STEP, GRID_STEP, WINDOW, AnchoredLaw, RankAnchor
from scoreshield.privacy.profiles import round_down
from scoreshield.privacy.response import WindowResponse
from scoreshield.privacy.tail_tables import DIMENSION, ORIGIN, SLOPE, TABLES

Float = NDArray[np.float64]

#: The excesses that a shape holds settings for: from budgets that keep everything to those at the limit.
EXCESSES = tuple(np.arange(-8.0, 0.5, 1.0).tolist())
#: The least epsilon, which leaves the anchor and the windows an epsilon each that can be drawn.
_LEAST_EPSILON = 1e-6
#: A collection must have this many times as many records as the anchor's rank.
_TIMES_RANK = 4
#: Relevant records are at rank r about r^-1.5 times as often as at the first: measured on FRAMES with MiniLM.
_RELEVANCE = -1.5
#: The number of records for each of the k best, in a prediction; more change nothing.
_RECORDS_PER_BEST = 500
_QUERIES = 400
_ALONE, _GROUPS, _FARTHEST_RANK = 24, 14, 8
#: Multiples of it are spread evenly, modulo one.
_GOLDEN = (math.sqrt(5) - 1) / 2


def _check_origin(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
        _validation.reject(name, "a line of 1 to 200 characters", value)
    return value


class WindowSetting(NamedTuple):
    """The public parameters of anchored windows at one budget.

    Attributes:
        excess: ln(n / k) - epsilon.
        anchor_epsilon: The part of epsilon that the anchor spends.
        offset: How far above the anchor the first window ends.
        width: The width of a window on the scale of scores.
        span: The length of the public scale in windows.
        recall: The predicted share of what a clean ranking finds among its k best.
    """

    excess: float
    anchor_epsilon: float
    offset: float
    width: float
    span: float
    recall: float


class WindowChoice(NamedTuple):
    """What a release does: the law of anchored windows, or None with the reason why there are none.

    Attributes:
        law: The law; None where the collection is too small.
        reason: Why the anchor has a smaller rank than asked for, or why there is none.
        origin: Where the shape of the tail was measured.
        k: How many records the windows are chosen for.
        recall: The predicted share of what a clean ranking finds among its k best, on the data of the origin; None
            where the shape has no measurement for the budget, k, the rank or the range of scores.
    """

    law: AnchoredLaw | None
    reason: str
    origin: str
    k: int
    recall: float | None

    def to_details(self) -> dict[str, Any]:
        """The public facts of the choice, for a guarantee."""
        reason = {"reason": self.reason} if self.reason else {}
        if self.law is None:
            return reason
        recall = {} if self.recall is None else {"predicted_recall": self.recall}
        return {"k": self.k, **recall, "tail_shape": self.origin} | reason


@dataclass(frozen=True)
class TailShape:
    """The shape of the upper tail of scores relative to their rank, and the windows that suit it at each budget.

    Attributes:
        k: How many best records the windows are chosen for.
        rank: The rank of the anchor.
        slope: How far a score lies above another one, for each unit of the logarithm of their ranks' quotient.
        settings: The windows at each excess, which increases.
        origin: Where the scores come from, for the certificate.
        dimension: The dimension of the embeddings, if it is known.

    Example:
        >>> shape = ss.TailShape.fit(public_scores, k=10, origin="our help pages, e5-small")
        >>> release = ss.release_scores(rows, query, epsilon=8.0, mechanism=ss.AnchoredWindows(tail=shape))
    """

    k: int
    rank: int
    slope: float
    settings: tuple[WindowSetting, ...]
    origin: str
    dimension: int | None = None

    @validate()
    def __post_init__(self) -> None:
        check_count(self.k, "k")
        if check_count(self.rank, "rank") < max(1, self.k // 2):
            _validation.reject("rank", f"at least {max(1, self.k // 2):,}, half of k", self.rank)
        if check_positive(self.slope, "slope") > 2:
            _validation.reject("slope", "at most 2, the width of the range of scores", self.slope)
        _check_origin(self.origin, "origin")
        if self.dimension is not None:
            check_count(self.dimension, "dimension")
        must = "window settings in increasing order of their excess"
        try:
            settings = tuple(WindowSetting(*map(float, setting)) for setting in self.settings)
        except (TypeError, ValueError, OverflowError):
            _validation.reject("settings", must, self.settings)
        object.__setattr__(self, "settings", settings)
        values = np.array(settings)
        is_valid = (
            len(settings) > 0
            and np.isfinite(values).all()
            and (np.diff(values[:, 0]) > 0).all()
            and (values[:, [1, 3]] > 0).all()
            and (values[:, 4] > 1).all()
            and (np.abs(values[:, 2:4]) <= 2).all()
            and (values[:, 4] <= 1000).all()
            and ((values[:, 5] >= 0) & (values[:, 5] <= 1)).all()
        )
        if not is_valid:
            _validation.reject("settings", must, self.settings)

    @classmethod
    @validate(k=check_count, origin=_check_origin, dimension=optional(check_count), progress=check_progress)
    def fit(
        cls,
        public_scores: ArrayLike,
        k: int = 10,
        *,
        origin: str = "public scores",
        dimension: int | None = None,
        excesses: Sequence[float] = EXCESSES,
        progress: Progress | None = None,
    ) -> TailShape:
        """Fit the shape to public scores of the same model, and choose windows for every budget by predicted recall.

        The private collection may be larger or smaller than the public one. The computation is the same every time, and
        takes about ten seconds of a free core for 824 queries and k = 10.

        Args:
            public_scores: The scores of public queries with all records of a public collection, (queries, records).
                They must not come from the private collection.
            k: How many best records shall be kept.
            origin: Where the scores come from. It is stated on each certificate.
            dimension: The dimension of the embeddings. With it, a release of other embeddings gives a warning.
            excesses: The budgets to choose windows for, ln(n / k) - epsilon, increasing. The default covers all that
                are useful; one is enough for one epsilon and one number of records.
            progress: Called with (budgets done, budgets in all).

        Returns:
            The shape, for `AnchoredWindows`.

        Raises:
            InvalidInput: The scores are not valid, too few, or without spread.
        """
        rank = choose_rank(k)
        must = "a (queries, records) array of finite scores in [-1, 1]"
        scores = _validation.check_array(public_scores, "public_scores", must)
        if scores.ndim != 2 or not scores.size or scores.dtype.kind not in "fiu" or not np.isfinite(scores).all():
            _validation.reject("public_scores", must, public_scores)
        if np.abs(scores).max() > 1 + 1e-4:
            _validation.reject("public_scores", must, public_scores)
        if scores.shape[1] < 2 * rank:
            raise InvalidInput(
                f"The anchor for the {k:,} best records has rank {rank:,}: give public scores of at least {2 * rank:,} "
                f"records. Got {scores.shape[1]:,}."
            )
        model = _TailModel(np.sort(np.clip(scores.astype(np.float64), -1, 1), axis=1)[:, ::-1], k, rank)
        if model.slope <= 2.0**-16:
            raise InvalidInput(
                f"The public scores have no spread: most queries score rank {max(1, k // 2)} no higher than rank "
                f"{rank}. Give scores of different records."
            )
        return cls(k, rank, model.slope, model.choose_settings(tuple(excesses), progress), origin, dimension)

    @staticmethod
    def default(k: int = 10) -> TailShape:
        """The shape that ships: all-MiniLM-L6-v2 on FRAMES, 824 questions against 2,519 titles of Wikipedia pages.

        The numbers in the source were printed by ``benchmarks/tail_shapes.py``, for k of 3, 10, 30 and 100. Between
        them the settings are interpolated. For smaller and larger k those of the nearest table are used, and no recall
        is predicted.
        """
        return _interpolate_tables(_validation.check_count(k, "k"))

    def setting_at(self, epsilon: float, records: int) -> WindowSetting:
        """The windows for a budget and a number of records, interpolated between the settings."""
        excess = math.log(records / self.k) - epsilon
        values = _to_smooth(np.array(self.settings))
        place = np.array([np.interp(excess, values[:, 0], column) for column in values.T])
        return WindowSetting(excess, *_from_smooth(place[None])[0, 1:].tolist())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `from_dict` reads them back, equal."""
        return {
            "kind": "tail shape",
            "k": self.k,
            "rank": self.rank,
            "slope": self.slope,
            "settings": [list(setting) for setting in self.settings],
            "origin": self.origin,
            "dimension": self.dimension,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TailShape:
        """Read back what ``to_dict`` wrote."""
        if not isinstance(data, dict) or data.get("kind") != "tail shape":
            writer = choose_words("TailShape.to_dict or save", "`scoreshield public fit-tail`")
            raise InvalidInput(f"This is not a tail shape: it was not written by {writer}.")
        try:
            settings = tuple(WindowSetting(*setting) for setting in data["settings"])
            return cls(data["k"], data["rank"], data["slope"], settings, data["origin"], data["dimension"])
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(
                f"The tail shape is not complete or not valid: {_loading.describe_error(error)}"
            ) from None

    def save(self, path: str | Path) -> None:
        """Write the shape to a JSON file, completely or not at all."""
        _files.write_json_file(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> TailShape:
        """Read a shape that ``save`` wrote."""
        data = _files.read_json_file(path)
        try:
            return cls.from_dict(data)
        except InvalidInput as error:
            raise InvalidInput(f"{path} holds no valid tail shape. {error}") from None


@dataclass(frozen=True)
class AnchoredWindows:
    """The mechanism ``"anchored"`` of `release_scores` with its options: windows around a private quantile.

    Attributes:
        k: How many best records shall be kept: 10, or that of the tail shape. More than k can be asked of a release,
            and are less exact.
        tail: The shape of the tail of scores. None takes `TailShape.default`, which was measured with the text model
            all-MiniLM-L6-v2; a release of embeddings of another dimension than 384 then gives a warning.
    """

    k: int | None = None
    tail: TailShape | None = None

    @validate()
    def __post_init__(self) -> None:
        if self.tail is not None and type(self.tail) is not TailShape:
            _validation.reject("tail", "a TailShape or None", self.tail)
        if self.k is not None:
            check_count(self.k, "k")
        if self.tail is not None and self.k not in (None, self.tail.k):
            _validation.reject("k", f"that of the tail shape, {self.tail.k:,}, or left out", self.k)

    @cached_property
    def shape(self) -> TailShape:
        """The given shape, or the one that ships."""
        return TailShape.default(10 if self.k is None else self.k) if self.tail is None else self.tail

    def choose(self, epsilon: float, records: int, score_range: tuple[float, float]) -> WindowChoice:
        """Choose the law of a release from public facts: the budget, the number of records and the range of scores."""
        epsilon, shape = check_epsilon(epsilon), self.shape
        if epsilon < _LEAST_EPSILON:
            _validation.reject("epsilon", f"at least {_LEAST_EPSILON:g} for anchored windows", epsilon)
        setting = shape.setting_at(epsilon, records)
        rank, reason = min(shape.rank, records // _TIMES_RANK), ""
        if rank < max(1, shape.k // 2):
            reason = (
                f"staircase noise, because {records:,} records are too few for an anchor: the {shape.k:,} best need at "
                f"least {_TIMES_RANK * max(1, shape.k // 2):,}"
            )
            return WindowChoice(None, reason, shape.origin, shape.k, None)
        if rank < shape.rank:
            reason = f"the anchor has rank {rank:,} instead of {shape.rank:,}, because there are {records:,} records"
        # A smaller rank lies higher, and its count is moved farther by the same noise.
        nearer = math.log(shape.rank / rank)
        anchor = max(min(setting.anchor_epsilon * math.exp(nearer / 2), epsilon / 3), epsilon / 2**10)
        window = round_difference_down(epsilon, anchor)
        law = AnchoredLaw(
            RankAnchor.over(check_epsilon(anchor), rank, score_range),
            WindowResponse(check_epsilon(window), max(WINDOW + 1, round(WINDOW * setting.span)), WINDOW),
            _round_to_steps(setting.offset - shape.slope * nearer),
            max(2 * GRID_STEP, _round_to_steps(setting.width / WINDOW)),
        )
        is_measured = (
            not reason
            and setting.excess <= shape.settings[-1].excess
            and score_range == FULL_RANGE
            and (self.tail is not None or min(TABLES) <= shape.k <= max(TABLES))
        )
        return WindowChoice(law, reason, shape.origin, shape.k, setting.recall if is_measured else None)

    def warn_about_dimension(self, dimension: int) -> None:
        """Give a warning where the shape was measured with embeddings of another dimension."""
        if self.shape.dimension not in (None, dimension):
            fit = choose_words("fit a TailShape", "fit a --tail with `scoreshield public fit-tail`")
            warnings.warn(
                f"The tail shape was measured with embeddings of dimension {self.shape.dimension:,} "
                f"({self.shape.origin}). These have {dimension:,}: {fit} to public scores of their model, or "
                "results may be poor.",
                TailShapeWarning,
                stacklevel=2,
            )


def choose_rank(k: int) -> int:
    """The rank of the anchor for the k best records."""
    return 5 * max(k, 3) + 10


def round_difference_down(whole: float, part: float) -> float:
    """The largest double that is not above the difference of two, so that two budgets add up to at most the whole."""
    return round_down(Fraction(whole) - Fraction(part))


def _round_to_steps(value: float) -> float:
    return round(value / (2 * GRID_STEP)) * 2 * GRID_STEP


def _to_smooth(settings: Float) -> Float:
    """Settings as numbers that may be interpolated: logarithms of budgets, widths and lengths."""
    smooth = settings.copy()
    smooth[:, [1, 3]] = np.log(settings[:, [1, 3]])
    smooth[:, 4] = np.log(settings[:, 4] - 1)
    return smooth


def _from_smooth(smooth: Float) -> Float:
    settings = smooth.copy()
    settings[:, [1, 3]] = np.exp(smooth[:, [1, 3]])
    settings[:, 4] = np.exp(smooth[:, 4]) + 1
    return settings


@lru_cache(maxsize=64)
def _interpolate_tables(k: int) -> TailShape:
    """The shipped shape for any k, between those of the nearest tables on the scale of ln k."""
    known = sorted(TABLES)
    above = min(int(np.searchsorted(known, k)), len(known) - 1)
    below = max(0, above - 1) if known[above] != k else above
    first, second = (_to_smooth(np.array(TABLES[known[place]])) for place in (below, above))
    share = 0.0
    if below != above:
        share = min(1.0, math.log(k / known[below]) / math.log(known[above] / known[below]))
    settings = _from_smooth(first + share * (second - first))
    rows = tuple(WindowSetting(*map(float, setting)) for setting in settings)
    return TailShape(k, choose_rank(k), SLOPE, rows, ORIGIN, DIMENSION)


class _TailModel:
    """Predict recall from the sorted public scores of some queries.

    Of a query's records, the first are kept one by one and the others in groups of like rank. Each query stands for one
    quantile of its anchor's law; the quantiles are spread evenly over all queries. At a place y of the public scale,
    the number of records before y is taken as normal, with the mean and variance of the independent draws.
    """

    def __init__(self, scores: Float, k: int, rank: int) -> None:
        spread = scores[:, max(1, k // 2) - 1] - scores[:, rank - 1]
        order = np.argsort(spread, kind="stable")
        count = min(_QUERIES, 8 * len(order))
        scores = scores[order[np.linspace(0, len(order) - 1, count).round().astype(int)]]
        self.k, self.rank = k, rank
        self.slope = float(np.median(spread)) / math.log(rank / max(1, k // 2))
        last = min(scores.shape[1], _FARTHEST_RANK * rank)
        alone = np.arange(1, min(_ALONE, last) + 1)
        first = np.unique(np.concatenate([alone, np.geomspace(len(alone) + 1, last, _GROUPS).round().astype(int)]))
        end = np.append(first[1:], last + 1)
        self._sizes = (end - first).astype(np.float32)
        self._scores = scores[:, (first + end - 1) // 2 - 1]
        ranks = np.arange(1, k + 1)
        shares = np.bincount(np.searchsorted(first, ranks, side="right") - 1, weights=ranks**_RELEVANCE)
        self._shares = (shares / shares.sum()).astype(np.float32)
        self._grid = np.arange(-1.0, 1.0 + ANCHOR_STEP, ANCHOR_STEP)
        ascending = np.ascontiguousarray(scores[:, ::-1])
        self._gaps = np.abs(
            np.stack([len(row) - np.searchsorted(row, self._grid, side="right") for row in ascending]) - rank
        )
        self._quantiles = ((np.arange(count) + 0.5) * _GOLDEN % 1)[:, None]

    def choose_settings(
        self, excesses: tuple[float, ...], progress: Progress | None = None
    ) -> tuple[WindowSetting, ...]:
        """Choose the windows of the greatest predicted recall at each excess.

        The search starts at a rough guess and at what was chosen for the excess before, and goes on from the better.
        """
        chosen, last = [], None
        for number, excess in enumerate(excesses, start=1):

            def evaluate(place: Float, excess: float = excess) -> float:
                return self._evaluate(excess, place)

            starts = [self._guess(excess)] if last is None else [self._guess(excess), last]
            best = max((_climb(evaluate, start, 45) for start in starts), key=evaluate)
            last = _climb(evaluate, best, 50)
            setting = self._make_setting(excess, last)
            chosen.append(setting._replace(recall=min(1.0, self.predict(setting))))
            if progress is not None:
                progress(number, len(excesses))
        return tuple(chosen)

    def _guess(self, excess: float) -> Float:
        """The logarithm of the anchor's budget, the offset in slopes, and logarithms of the width and the length."""
        offset = math.log(self.rank / self.k) + 1.2
        return np.array([math.log(0.3), offset, min(0.85 + 0.42 * excess, 1.0), 0.8 - 0.25 * excess])

    def _evaluate(self, excess: float, place: Float) -> float:
        setting = self._make_setting(excess, place)
        if setting.anchor_epsilon > 2 or not 1.2 < setting.span < 100 or abs(setting.offset) > 1 or setting.width > 1:
            return 0.0
        return self.predict(setting)

    def _make_setting(self, excess: float, place: Float) -> WindowSetting:
        anchor, width, length = np.exp(place[[0, 2, 3]]).tolist()
        return WindowSetting(excess, anchor, self.slope * float(place[1]), self.slope * width, 1 + length, 0.0)

    def predict(self, setting: WindowSetting) -> float:
        """The mean probability that a record among the k best is among the k first by its released score."""
        k, span, records = self.k, setting.span, _RECORDS_PER_BEST * self.k
        ratio = _RECORDS_PER_BEST * math.exp(-setting.excess - setting.anchor_epsilon)  # e^epsilon of the windows
        keep = (ratio - 1) / (ratio + span - 1) if ratio > 1 else 0.0
        tops = self._find_anchors(setting.anchor_epsilon) + setting.offset
        starts = np.clip((tops - self._scores) / setting.width, 0, span - 1).astype(np.float32)
        # Beyond the window of rank 2 k, other records are before y almost surely.
        column = min(int(np.searchsorted(np.cumsum(self._sizes), 2 * k)), starts.shape[1] - 1)
        ends = np.minimum(starts[:, column] + 1.25, span)[:, None]
        edges = ends * np.linspace(0, 1, int(min(64, max(12, 6 * np.median(ends)))), dtype=np.float32)
        background = np.float32((1 - keep) / span) * edges
        before = np.clip(edges[:, None] - starts[:, :, None], 0, 1)
        before *= np.float32(keep)
        before += background[:, None]
        rest = max(0.0, records - float(self._sizes.sum()))
        mean = self._sizes @ before + np.float32(rest) * background
        variance = mean - self._sizes @ before**2
        best = before[:, : len(self._shares)]
        room = (np.float32(k - 0.5) - mean[:, None] + best) / np.sqrt(variance + np.float32(0.05))[:, None]
        chance = ndtr(room)
        found = (np.diff(best, axis=2) * (chance[:, :, 1:] + chance[:, :, :-1])).sum(axis=2) / 2
        return float(found.mean(axis=0) @ self._shares)

    def _find_anchors(self, epsilon: float) -> Float:
        """The quantile of each query's anchor, (queries, 1)."""
        weights = np.exp(-epsilon * (self._gaps - self._gaps.min(axis=1, keepdims=True)) / 2)
        cumulative = np.cumsum(weights, axis=1)
        places = (cumulative < self._quantiles * cumulative[:, -1:]).sum(axis=1)
        return np.asarray(self._grid[places])[:, None]


def _climb(function: Callable[[Float], float], start: Float, steps: int) -> Float:
    """The place of a maximum near the start, by the simplex method of Nelder and Mead."""
    simplex = np.vstack([start, start + np.diag([0.4, 0.5, 0.4, 0.5])])
    options = {"maxfev": steps, "xatol": 0.02, "fatol": 1e-4, "initial_simplex": simplex}
    found = minimize(lambda place: -function(place), start, method="Nelder-Mead", options=options)
    return np.asarray(found.x, dtype=np.float64)
