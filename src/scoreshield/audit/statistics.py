"""Test statistics: from outputs to one number each, larger where the first collection seems to have made the output.

Outputs are rows of numbers, see `scoreshield.audit.encoding`. Each statistic is fitted on outputs that are not played
on, so the choice of a statistic costs no confidence.

* `likelihood`: Σ ln f(x_j - a_j) - ln f(x_j - b_j) over the entries that move from a to b, with the
  density f of the noise that the release's guarantee names. By Neyman & Pearson no test is better.
* `linear`: Fisher's discriminant, for noise of any law that entries may share.
* `table`: a likelihood ratio from histograms of each entry. It finds moved bins, changed widths, and values that one
  side never takes; values that repeat have bins of their own. On the exponents of the lowest set bits it is the
  `low bits` test of Mironov (2012), on forms and orders the `form` test.
* `summaries`: such a table of the sum, the largest entries, their places and their distance.
* `noiseless`: the combination of entries, or of their logarithms, that has no noise and still moves.
* `sometimes noiseless`: two entries whose weighted difference has no noise in a share of the outputs.
* `classifier`: gradient-boosted trees (after Bichsel et al. 2021).
* repeated outputs: whether an output occurred before, on one of the two collections only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.noise import CustomNoise, GaussianNoise, LaplaceNoise, StaircaseNoise

Float = NDArray[np.float64]
Keys = NDArray[np.uint64]
#: Noise laws whose density is known here.
KnownLaw = GaussianNoise | LaplaceNoise | StaircaseNoise | CustomNoise

#: The most rows of each side that a table or a classifier is fitted on.
_TABLE_ROWS, _CLASSIFIER_ROWS = 50_000, 5_000
#: The most entries that a table sums over, and the most bins of each.
_TABLE_COLUMNS, _BINS = 16, 64
#: A value that repeats in at least this share of the outputs has a bin of its own, and the most such values.
_ATOM, _ATOMS = 0.002, 128
#: The most bins of an entry whose values nearly all repeat.
_DISCRETE = 2_000
#: What stands for a missing value and for infinities in a table.
_MISSING, _INFINITE = -1e300, 1e299
#: What stands for zero with a sign in a table: the number just below zero.
_NEGATIVE_ZERO = -5e-324
#: Sizes beyond which numbers are cut: their sums, or their squares, must not overflow.
_LARGEST, _LARGEST_SUM = 1e305, 1e150
#: Digits of a likelihood ratio that are kept.
_DECIMALS = 9
#: An eigenvalue of the correlations below this is a direction without noise.
_NOISELESS = 1e-9
#: How many rows of each side, and how many entries that move most with how many others, are searched for a weighted
#: difference that is sometimes without noise.
SEARCHED_ROWS, _MOVING, _PARTNERS = 300, 2, 12
#: How many slopes are distinguished, and how many on each side of one it is compared with.
_SLOPES, _BESIDE = 1 << 14, 8
#: How many pairs of outputs with the same slope are a sign, and how many standard deviations more than usual.
_AT_ONE_SLOPE, _FREQUENT = 10, 8.0
#: How near values without noise lie to each other, relative to the spread of all.
_NEAR = 2e-4
#: How many of the entries that move most are used to find correlated entries, where there are too many entries for all.
_LEADING = 8
#: Odd numbers with well mixed bits, of the 64-bit finaliser by Stafford (his "mix 13").
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Statistic(Protocol):
    """A fitted statistic: a function from outputs to one number each."""

    @property
    def name(self) -> str: ...

    def __call__(self, outputs: Float) -> Float:
        """Compute one number for each output."""


@dataclass(frozen=True)
class _Likelihood:
    law: KnownLaw
    columns: NDArray[np.intp]
    first_centre: Float
    second_centre: Float
    name: str = "likelihood"

    def __call__(self, outputs: Float) -> Float:
        reach = 1e100 * self.law.std  # beyond it, squares would overflow
        moved = np.clip(outputs[:, self.columns], self.first_centre - reach, self.first_centre + reach)
        first, second = (compute_log_density(self.law, moved - c) for c in (self.first_centre, self.second_centre))
        # Beyond both centres the ratio of pure noise is constant, and rounding errors would scatter it around a cut.
        return np.asarray(np.round((first - second).sum(axis=1), _DECIMALS))


@dataclass(frozen=True)
class _Table:
    columns: tuple[int, ...]
    edges: tuple[Float, ...]
    ratios: tuple[Float, ...]
    transform: Callable[[Float], Float] | None = None
    name: str = "table"

    def __call__(self, outputs: Float) -> Float:
        total = np.zeros(len(outputs))
        for column, edges, ratios in zip(self.columns, self.edges, self.ratios, strict=True):
            values = _make_finite(outputs[:, column])
            values = values if self.transform is None else self.transform(values)
            total += ratios[np.searchsorted(edges, values, side="right")]
        return total


@dataclass(frozen=True)
class _Classifier:
    model: Any
    name: str = "classifier"

    def __call__(self, outputs: Float) -> Float:
        return np.asarray(self.model.decision_function(_make_sortable(outputs)), dtype=np.float64)


def fit_likelihood(first: Float, second: Float, law: KnownLaw | None, entries: int) -> Statistic | None:
    """Fit the log-likelihood ratio of the entries that move, around their estimated clean values.

    Args:
        first: Outputs of the first collection.
        second: Outputs of the second collection.
        law: The noise law of the leading entries, where it is known.
        entries: How many leading entries carry it.
    """
    if law is None or not entries:
        return None
    middle = np.mean if isinstance(law, GaussianNoise) else np.median
    first_centre, second_centre = (middle(side[:, :entries], axis=0) for side in (first, second))
    # Means and medians of these laws are within about 1.3 std / sqrt(rows) of the clean value.
    noise = 1.3 * law.std * math.sqrt(1 / len(first) + 1 / len(second))
    moves = np.abs(first_centre - second_centre)
    if not moves.any():
        return None
    columns = np.flatnonzero(moves > 2 * noise)
    if not len(columns):
        columns = np.array([np.argmax(moves)])
    return _Likelihood(law, columns, first_centre[columns], second_centre[columns])


def compute_log_density(law: KnownLaw, x: Float) -> Float:
    """Compute the log density of a noise law, up to a constant."""
    match law:
        case GaussianNoise():
            return np.asarray(-0.5 * (x / law.std) ** 2)
        case LaplaceNoise():
            return np.asarray(-np.abs(x) / law.b)
        case CustomNoise():
            return law.log_density(x)
        case StaircaseNoise():
            size = np.abs(x) / law.sensitivity
            steps = np.floor(size)
            return np.asarray(-law.epsilon * (steps + (size - steps > law.gamma)))


def fit_table(
    first: Float, second: Float, *, transform: Callable[[Float], Float] | None = None, name: str = "table"
) -> Statistic | None:
    """Fit summed log ratios of smoothed histograms, over the entries whose histograms differ most."""
    first, second = first[:_TABLE_ROWS], second[:_TABLE_ROWS]
    tables: list[tuple[float, int, Float, Float]] = []
    for column in range(first.shape[1]):
        first_values, second_values = _make_finite(first[:, column]), _make_finite(second[:, column])
        if transform is not None:
            first_values, second_values = transform(first_values), transform(second_values)
        edges = _find_edges(np.concatenate([first_values, second_values]))
        if not len(edges):
            continue
        counts = [
            np.bincount(np.searchsorted(edges, side, side="right"), minlength=len(edges) + 1)
            for side in (first_values, second_values)
        ]
        tables.append((_compare_histograms(*counts), column, edges, np.log((counts[0] + 0.5) / (counts[1] + 0.5))))
    if not tables:
        return None
    tables.sort(key=lambda table: -table[0])
    chosen = [table for table in tables[:_TABLE_COLUMNS] if table[0] > 4.0] or tables[:1]
    _, columns, edges_, ratios = zip(*chosen, strict=True)
    return _Table(columns, edges_, ratios, transform, name)


def _make_finite(values: Float) -> Float:
    """Replace missing and infinite values, and zeros with a sign, which sort like zeros without one."""
    values = np.nan_to_num(values, nan=_MISSING, posinf=_INFINITE, neginf=-_INFINITE)
    if not values.all():
        values[(values == 0) & np.signbit(values)] = _NEGATIVE_ZERO
    return values


def _make_sortable(rows: Float) -> Float:
    """Replace missing and huge values, which trees cannot sort."""
    return np.clip(np.nan_to_num(rows, nan=-1e30), -1e30, 1e30)


def _find_edges(values: Float) -> Float:
    """Find cuts between bins: between all values where they are few, else at quantiles and around repeated values."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= max(_BINS, min(_DISCRETE, len(values) // 3)):
        return np.asarray(distinct[1:])
    bins = int(np.clip(math.sqrt(len(values)) / 2, 8, _BINS))
    cuts = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1), method="lower"))[1:]
    often = np.flatnonzero(counts >= max(3.0, _ATOM * len(values)))
    if len(often):
        atoms = distinct[often[np.argsort(-counts[often], kind="stable")[:_ATOMS]]]
        cuts = np.unique(np.concatenate([cuts, atoms, np.nextafter(atoms, np.inf)]))
    return np.asarray(cuts)


def _compare_histograms(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Compute the chi-square statistic of two histograms, in standard deviations above its mean for equal laws."""
    total = first + second
    used = total > 0
    expected = total[used] * first.sum() / total.sum()
    freedom = max(1, int(used.sum()) - 1)
    square = float(((first[used] - expected) ** 2 / (expected * second.sum() / total.sum())).sum())
    return (square - freedom) / math.sqrt(2 * freedom)


def fit_low_bits(first: Float, second: Float) -> Statistic | None:
    """Fit a table of the exponents of lowest set bits, where noise that is added in floating point leaves marks.

    Returns:
        The statistic, or None where there is nothing to read: for whole numbers, whose last bits are the output itself,
        and where all outputs have the same last bit.
    """
    if all(np.array_equal(side, np.rint(side), equal_nan=True) for side in (first, second)):
        return None
    return fit_table(first, second, transform=find_lowest_bit, name="low bits")


def find_lowest_bit(values: Float) -> Float:
    """Find the exponent of the lowest set bit of each number: the largest e for which x is a multiple of 2^e."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(whole == 0, 2048.0, exponent - 53.0 + trailing)


def fit_classifier(first: Float, second: Float, seed: int = 0) -> Statistic | None:
    """Fit gradient-boosted trees, for outputs of which nothing is known; None without scikit-learn."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        return None
    rows = np.concatenate([first[:_CLASSIFIER_ROWS], second[:_CLASSIFIER_ROWS]])
    sides = np.repeat([1, 0], [min(len(first), _CLASSIFIER_ROWS), min(len(second), _CLASSIFIER_ROWS)])
    model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, early_stopping=False, random_state=seed)
    return _Classifier(model.fit(_make_sortable(rows), sides))


@dataclass(frozen=True)
class _Summaries:
    """A table of summaries of the entries."""

    table: Statistic
    columns: NDArray[np.intp]
    name: str = "summaries"

    def __call__(self, outputs: Float) -> Float:
        return self.table(summarise_entries(outputs[:, self.columns]))


def fit_summaries(first: Float, second: Float) -> Statistic | None:
    """Fit a table of the sum, the largest and smallest entries, their places and their distance."""
    columns = np.flatnonzero(np.isfinite(first).all(axis=0) & np.isfinite(second).all(axis=0))
    if len(columns) < 2:
        return None
    table = fit_table(*(summarise_entries(side[:, columns]) for side in (first, second)))
    return None if table is None else _Summaries(table, columns)


def summarise_entries(rows: Float) -> Float:
    """Compute the sum, the three largest and the smallest entry, places, distances, zeros and equal entries."""
    rows = np.clip(np.nan_to_num(rows, nan=0.0), -_LARGEST, _LARGEST)
    ordered = np.sort(rows, axis=1)
    top = ordered[:, -3:][:, ::-1] if rows.shape[1] > 2 else ordered[:, ::-1]
    return np.column_stack(
        [
            rows.sum(axis=1),
            top,
            ordered[:, 0],
            top[:, 0] - top[:, 1],
            top[:, 0] - ordered[:, 0],
            rows.argmax(axis=1),
            rows.argmin(axis=1),
            (rows == 0).sum(axis=1),
            (np.diff(ordered, axis=1) == 0).sum(axis=1),
        ]
    )


# ---- Directions in which outputs move from one collection to the other.


@dataclass(frozen=True)
class WeightedSum:
    """A weighted sum of some entries."""

    name: str
    weights: Float
    columns: NDArray[np.intp]

    def __call__(self, outputs: Float) -> Float:
        # Whether an overflow is reported depends on the processor, so it is not; the sum is cut.
        with np.errstate(over="ignore", invalid="ignore"):
            # Row by row: equal outputs must give equal numbers, in any batch.
            sums = np.vecdot(outputs[:, self.columns], self.weights)
        return np.asarray(np.clip(np.nan_to_num(sums), -_LARGEST_SUM, _LARGEST_SUM))


@dataclass(frozen=True)
class _OfLogarithms:
    """A weighted sum of the logarithms of sizes of entries."""

    inner: WeightedSum
    name: str = "noiseless ratio"

    def __call__(self, outputs: Float) -> Float:
        return self.inner(_take_logarithms(outputs))


@dataclass(frozen=True)
class _StandardEntries:
    """Entries that vary or move, each divided by its own spread so that outputs of any size can be compared.

    Attributes:
        columns: The positions of the entries.
        scale: What each entry is divided by.
        moves: How far each entry moves from one side to the other, in that scale.
        rows: All outputs less the mean of their side, in that scale.
    """

    columns: NDArray[np.intp]
    scale: Float
    moves: Float
    rows: Float

    @property
    def correlations(self) -> Float:
        return np.asarray(self.rows.T @ self.rows / len(self.rows))


def fit_linear(first: Float, second: Float) -> WeightedSum | None:
    """Fit Fisher's discriminant on standardised entries, with correlations shrunk towards 0 where rows are few.

    Returns:
        The statistic, or None where nothing moves.
    """
    parts = _standardise(first, second)
    if parts is None:
        return None
    share = len(parts.columns) / (len(parts.columns) + len(first) + len(second))
    values, vectors = np.linalg.eigh((1 - share) * parts.correlations + share * np.eye(len(parts.columns)))
    weights = vectors @ ((vectors.T @ parts.moves) / np.maximum(values, _NOISELESS))
    return WeightedSum("linear", weights / parts.scale, parts.columns)


def fit_noiseless(first: Float, second: Float) -> WeightedSum | None:
    """Fit the move within the directions that have no noise.

    With few rows, every large set of entries has a direction without noise by chance. Of more entries than
    `count_searchable_entries`, only those that move most and those correlated with them are searched.

    Returns:
        The statistic, or None where nothing moves in such a direction.
    """
    parts = _standardise(first, second)
    if parts is None:
        return None
    most = count_searchable_entries(len(first))
    if len(parts.columns) > most:
        parts = _select_leading(parts, most)
    values, vectors = np.linalg.eigh(parts.correlations)
    silent = vectors[:, values < _NOISELESS]
    weights = silent @ (silent.T @ parts.moves)
    size = float(np.linalg.norm(weights))
    # Rounding in the correlations moves things a little in any direction.
    return WeightedSum("noiseless", weights / size / parts.scale, parts.columns) if size > 1e-6 else None


@dataclass(frozen=True)
class _SometimesNoiseless:
    """Whether a weighted difference of two entries is the value that one side has without noise: 1, -1, or 0."""

    difference: WeightedSum
    values: tuple[float, float]
    reach: float
    name: str = "sometimes noiseless"

    def __call__(self, outputs: Float) -> Float:
        found = self.difference(outputs)
        first, second = (np.abs(found - value) <= self.reach for value in self.values)
        return first.astype(np.float64) - second


def fit_sometimes_noiseless(first: Float, second: Float) -> Statistic | None:
    """Fit a weighted difference of two entries that has no noise in a share of the outputs, and moves.

    The line through two such outputs of one side has a fixed slope. Lines through other outputs have all slopes. So the
    slope that many pairs of outputs share is the candidate.

    Returns:
        The statistic, or None where no slope is frequent, or nothing moves.
    """
    sides = first[-SEARCHED_ROWS:], second[-SEARCHED_ROWS:]
    parts = _standardise(*sides)
    if parts is None or len(parts.columns) < 2:
        return None
    order = np.argsort(-np.abs(parts.moves), kind="stable")
    best, found = _FREQUENT, None
    for place, one in enumerate(order[:_MOVING]):
        for other in order[place + 1 : place + 1 + _PARTNERS]:
            columns = parts.columns[[one, other]]
            scaled = [side[:, columns] / parts.scale[[one, other]] for side in sides]
            excess, slope = _find_frequent_slope(scaled)
            if excess > best:
                best, found = excess, (columns, parts.scale[[one, other]], slope)
    if found is None:
        return None
    columns, scale, slope = found
    difference = WeightedSum("difference", np.array([-slope, 1 - abs(slope)]) / scale, columns)
    values = [difference(side) for side in sides]
    reach = _NEAR * float(np.median(np.abs(np.concatenate(values) - np.median(np.concatenate(values)))))
    centres = _find_mode(values[0], reach), _find_mode(values[1], reach)
    return _SometimesNoiseless(difference, centres, reach) if abs(centres[0] - centres[1]) > 2 * reach else None


@lru_cache(maxsize=8)
def _list_couples(rows: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """List all couples of rows."""
    return np.triu_indices(rows, 1)


def _find_frequent_slope(sides: list[Float]) -> tuple[float, float]:
    """Find the slope that more pairs of outputs of one side have than slopes near it.

    Returns:
        The excess of that number in its standard deviations, 0 where it is below 10; and u for the slope u / (1 - |u|).
    """
    slopes = []
    for side in sides:
        one, other = _list_couples(len(side))
        across, up = (column[one] - column[other] for column in side.T)
        is_used = (across != 0) & (up != 0)  # a value that one entry repeats is what a table finds
        across, up = across[is_used], up[is_used]
        slopes.append((1 + up * np.sign(across) / (np.abs(up) + np.abs(across))) * (_SLOPES / 2))
    places = np.concatenate(slopes)
    counts = np.bincount(places.astype(np.int32), minlength=_SLOPES)[:_SLOPES]
    near = counts[:-1] + counts[1:]  # a slope may lie between two bins
    sums = np.cumsum(np.pad(near, (_BESIDE + 1, _BESIDE), mode="edge"))
    expected = (sums[2 * _BESIDE + 1 :] - sums[: -2 * _BESIDE - 1]) / (2 * _BESIDE + 1)
    excess = np.where(near >= _AT_ONE_SLOPE, (near - expected) / np.sqrt(expected + 1), 0.0)
    place = int(np.argmax(excess))
    if not excess[place] > 0:
        return 0.0, 0.0
    return float(excess[place]), float(np.median(places[(places >= place) & (places < place + 2)])) * 2 / _SLOPES - 1


def _find_mode(values: Float, reach: float) -> float:
    """Find the value that has most others within reach."""
    ordered = np.sort(values)
    ends = np.searchsorted(ordered, ordered + 2 * reach, side="right")
    start = int(np.argmax(ends - np.arange(len(ordered))))
    return float(np.median(ordered[start : ends[start]]))


def fit_noiseless_ratio(first: Float, second: Float) -> Statistic | None:
    """Fit `fit_noiseless` to logarithms: ratios of entries lose noise that multiplies them all."""
    if not all(np.all((side != 0) & np.isfinite(side)) for side in (first, second)):
        return None
    inner = fit_noiseless(_take_logarithms(first), _take_logarithms(second))
    return None if inner is None else _OfLogarithms(inner)


def _take_logarithms(rows: Float) -> Float:
    return np.log(np.maximum(np.abs(rows), 1e-300))


def count_searchable_entries(rows: int) -> int:
    """Compute how many entries can be searched for a direction without noise, with this number of rows per side."""
    return max(2, rows // 4)


def measure_moves(first: Float, second: Float) -> Float:
    """Measure how far each entry moves, relative to its spread.

    A missing value counts as one below all others.

    Returns:
        One number per entry: 0 where it neither moves nor varies, infinity where it moves and does not vary.
    """
    first, second = _fill_missing(first, second)
    moves = np.zeros(first.shape[1])
    if (parts := _standardise(first, second)) is not None:
        is_constant = np.abs(parts.rows).max(axis=0) <= 1e-6
        moves[parts.columns] = np.where(is_constant & (parts.moves != 0), np.inf, np.abs(parts.moves))
    return moves


def _fill_missing(first: Float, second: Float) -> tuple[Float, Float]:
    """Put a number below all others of its column in the place of every missing one, and a large one for infinity."""
    is_known = np.isfinite(first).all(axis=0) & np.isfinite(second).all(axis=0)
    if is_known.all():
        return first, second
    columns = np.flatnonzero(~is_known)
    rows = np.concatenate([first[:, columns], second[:, columns]])
    sizes = np.abs(np.where(np.isfinite(rows), rows, 0.0)).max(axis=0) + 1.0
    rows = np.where(np.isnan(rows), -2 * sizes, np.clip(rows, -3 * sizes, 3 * sizes))
    first, second = first.copy(), second.copy()
    first[:, columns], second[:, columns] = rows[: len(first)], rows[len(first) :]
    return first, second


def _select_leading(parts: _StandardEntries, most: int) -> _StandardEntries:
    order = np.argsort(-np.abs(parts.moves), kind="stable")
    lead = order[: min(_LEADING, most)]
    with_lead = np.abs(parts.rows[:, lead].T @ parts.rows).max(axis=0)
    # Half of the places are for entries correlated with those that move most, the rest for entries that move.
    ranked = np.concatenate([lead, np.argsort(-with_lead, kind="stable")[: most // 2], order])
    chosen = np.sort(np.array(list(dict.fromkeys(ranked.tolist()))[:most]))
    return _StandardEntries(parts.columns[chosen], parts.scale[chosen], parts.moves[chosen], parts.rows[:, chosen])


def _standardise(first: Float, second: Float) -> _StandardEntries | None:
    """Standardise the entries; None where nothing moves."""
    known = np.isfinite(first).all(axis=0) & np.isfinite(second).all(axis=0)
    first, second = np.where(known, first, 0.0), np.where(known, second, 0.0)
    peak = np.maximum(np.abs(first).max(axis=0), np.abs(second).max(axis=0))
    peak = np.where(peak > 0, peak, 1.0)  # so that squares neither overflow nor vanish
    one, other = first / peak, second / peak
    move = one.mean(axis=0) - other.mean(axis=0)
    spread = np.sqrt((one.var(axis=0) + other.var(axis=0)) / 2)
    quiet = spread <= 1e-12
    spread = np.where(quiet, 0.0, spread)
    move = np.where(quiet & (np.abs(move) <= 1e-12), 0.0, move)
    columns = np.flatnonzero((spread > 0) | (move != 0))
    if not len(columns) or not move.any():
        return None
    # At most 1, so that its product with the largest value does not overflow.
    scale = np.where(quiet, np.minimum(np.abs(move), 1.0), spread)[columns]
    rows = np.concatenate([side[:, columns] - side[:, columns].mean(axis=0) for side in (one, other)]) / scale
    return _StandardEntries(columns, scale * peak[columns], move[columns] / scale, rows)


# ---- Outputs that repeat.


@dataclass(frozen=True)
class RepeatedOutputs:
    """A statistic: 1 for an output that only the first collection gave before, -1 for only the second, 0 for others.

    A whole output that repeats is the mark of a generator with few states, or of one that is seeded again from a clock.
    A repeated output is no fault by itself: counts, levels and corners of a projection recur. It is a fault where it
    distinguishes the collections. If noise repeats, an earlier output of one collection occurs again on that collection
    only. If outputs recur because there are few, they recur on both, up to the factor e^epsilon that the claim allows.
    So this is a test like any other, fixed before the outputs that it is counted on. It bounds epsilon from below for
    outputs of any law, with any dependence between entries.
    """

    first_keys: Keys
    second_keys: Keys
    name: str = "outputs that came before"

    def __call__(self, outputs: Float) -> Float:
        keys = _compute_keys(outputs)
        return _contains(keys, self.first_keys).astype(np.float64) - _contains(keys, self.second_keys)


def fit_repeats(first: Float, second: Float) -> RepeatedOutputs:
    """Remember the outputs that one collection gave and the other did not."""
    keys, others = np.sort(_compute_keys(first)), np.sort(_compute_keys(second))
    return RepeatedOutputs(keys[~_contains(keys, others)], others[~_contains(others, keys)])


def _contains(keys: Keys, candidates: Keys) -> NDArray[np.bool_]:
    """Find which keys are among the candidates, which are sorted."""
    if not len(candidates):
        return np.zeros(len(keys), dtype=bool)
    return np.asarray(candidates[np.minimum(np.searchsorted(candidates, keys), len(candidates) - 1)] == keys)


def _compute_keys(rows: Float) -> Keys:
    """Compute a 64-bit key of each row: among a million different rows, two share one with a probability of 3e-8."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # adding 0 makes -0 and 0 equal
    keys = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        keys = (keys ^ bits[:, column]) * _FIRST + np.uint64(column + 1)
        keys = (keys ^ (keys >> np.uint64(30))) * _SECOND
        keys ^= keys >> np.uint64(31)
    return keys
