"""Test statistics: from an output to one number that is larger where the first collection made the output.

Each statistic is fitted on outputs that the bound does not use, so the choice of a statistic costs no confidence.

* `likelihood`: Σ ln f(x_j - a_j) - ln f(x_j - b_j) over the entries that move from a to b, with the
  density f of the noise that the release's guarantee names. By Neyman & Pearson no test is better.
* `linear`: Fisher's discriminant, for noise of any law that entries may share.
* `table`: a likelihood ratio from histograms of each entry. It finds moved bins, changed widths, and values that one
  side never takes. On the exponents of the lowest set bits it is the `low bits` test of Mironov (2012).
* `noiseless`: the combination of entries that has no noise and still moves, where there is one.
* `membership`: the changed record's own entry. `classifier`: gradient-boosted trees (after Bichsel et al. 2021).
* repeated outputs: whether an output occurred before, on one of the two collections only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield.decisions.confidence import compute_area
from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise import CustomNoise, GaussianNoise, LaplaceNoise, StaircaseNoise

Float = NDArray[np.float64]
Keys = NDArray[np.uint64]
#: Noise laws whose density is known here.
KnownLaw = GaussianNoise | LaplaceNoise | StaircaseNoise | CustomNoise

StatisticName = Literal["auto", "likelihood", "linear", "table", "membership", "classifier"]
STATISTICS: tuple[StatisticName, ...] = get_args(StatisticName)
#: The most rows of each side that a table or a classifier is fitted on.
_TABLE_ROWS, _CLASSIFIER_ROWS = 50_000, 5_000
#: The most entries that a table sums over, and the most bins of each.
_TABLE_COLUMNS, _BINS = 16, 64
#: The most entries that a quick estimate uses: those that move most.
_QUICK_COLUMNS = 128
#: Digits of a likelihood ratio that are kept.
_DECIMALS = 9
#: An eigenvalue of the correlations below this is a direction without noise.
_NOISELESS = 1e-9
#: How many of the entries that move most are used to find correlated entries, where there are too many entries for all.
_LEADING = 8
#: Thresholds of `RepeatedOutputs`: between 0 and 1, and between -1 and 0.
REPEAT_CUTS = (0.5, -0.5)
#: Odd numbers with well mixed bits, of the 64-bit finaliser by Stafford (his "mix 13").
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Statistic(Protocol):
    """A fitted statistic: a function from outputs to one number each."""

    @property
    def name(self) -> str: ...

    def __call__(self, outputs: Float) -> Float:
        """Compute one number for each output."""


@dataclass(frozen=True)
class OutputFacts:
    """What is known of the outputs before any is drawn.

    Attributes:
        law: The noise law of the leading entries, or None where it is unknown.
        law_entries: How many leading entries carry noise of that law.
        index: The position of the changed record, or None where no entry belongs to it.
        is_opaque: Whether nothing is known of the outputs, so that a classifier may find what other statistics miss.
        is_plain: Whether all entries are clean values plus noise and nothing else, where `law` does not say so.
        seed: The seed of the classifier.
    """

    law: KnownLaw | None = None
    law_entries: int = 0
    index: int | None = None
    is_opaque: bool = False
    is_plain: bool = False
    seed: int = 0


@dataclass(frozen=True)
class _Likelihood:
    law: KnownLaw
    columns: NDArray[np.intp]
    first_centre: Float
    second_centre: Float
    name: str = "likelihood"

    def __call__(self, outputs: Float) -> Float:
        moved = outputs[:, self.columns]
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
            values = outputs[:, column]
            values = values if self.transform is None else self.transform(values)
            total += ratios[np.searchsorted(edges, values, side="right")]
        return total


@dataclass(frozen=True)
class _Classifier:
    model: Any
    name: str = "classifier"

    def __call__(self, outputs: Float) -> Float:
        return np.asarray(self.model.decision_function(outputs), dtype=np.float64)


def fit_statistics(name: StatisticName, first: Float, second: Float, facts: OutputFacts) -> list[Statistic]:
    """Fit the statistics that a name stands for; "auto" stands for all that the outputs allow.

    Raises:
        InvalidInput: The named statistic cannot be fitted to these outputs.
    """
    makers: dict[str, Callable[[], Statistic | None]] = {
        "likelihood": lambda: fit_likelihood(first, second, facts),
        "linear": lambda: fit_linear(first, second),
        "table": lambda: fit_table(first, second),
        "membership": lambda: fit_membership(first, facts),
        "classifier": lambda: fit_classifier(first, second, facts.seed),
    }
    if name != "auto":
        statistic = makers[name]()
        if statistic is None:
            why = {
                "likelihood": "no entry moves, or the outputs do not say the law of their noise",
                "membership": "the outputs have no entry of the changed record",
            }.get(name, "nothing moves between the two collections")
            raise InvalidInput(f"The statistic {name!r} cannot be used here: {why}; use statistic='auto'.")
        return [statistic]
    statistics = [makers[choice]() for choice in ("likelihood", "linear", "table")]
    if facts.is_opaque and first.shape[1] > 1 and _has_sklearn():
        statistics.append(makers["classifier"]())
    return [statistic for statistic in statistics if statistic is not None]


def fit_likelihood(first: Float, second: Float, facts: OutputFacts) -> Statistic | None:
    """Fit the log-likelihood ratio of the entries that move, around their estimated clean values."""
    if facts.law is None:
        return None
    middle = np.mean if isinstance(facts.law, GaussianNoise) else np.median
    first_centre, second_centre = (middle(side[:, : facts.law_entries], axis=0) for side in (first, second))
    # Means and medians of these laws are within about 1.3 std / sqrt(rows) of the clean value.
    noise = 1.3 * facts.law.std * math.sqrt(1 / len(first) + 1 / len(second))
    moves = np.abs(first_centre - second_centre)
    if not moves.any():
        return None
    columns = np.flatnonzero(moves > 2 * noise)
    if not len(columns):
        columns = np.array([np.argmax(moves)])
    return _Likelihood(facts.law, columns, first_centre[columns], second_centre[columns])


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
        first_values, second_values = first[:, column], second[:, column]
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


def _find_edges(values: Float) -> Float:
    """Find the cuts between bins: between all values where they are few, at quantiles where they are many."""
    distinct = np.unique(values)
    if len(distinct) > _BINS:
        bins = int(np.clip(math.sqrt(len(values)) / 2, 8, _BINS))
        distinct = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1), method="lower"))
    return distinct[1:]


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
        The statistic, or None for whole numbers, whose last bits are the output itself.
    """
    if all(np.array_equal(side, np.rint(side)) for side in (first, second)):
        return None
    return fit_table(first, second, transform=find_lowest_bit, name="low bits")


def find_lowest_bit(values: Float) -> Float:
    """Find the exponent of the lowest set bit of each number: the largest e for which x is a multiple of 2^e."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(whole == 0, 2048.0, exponent - 53.0 + trailing)


def fit_membership(first: Float, facts: OutputFacts) -> Statistic | None:
    """Select the changed record's own entry; None where there is none."""
    if facts.index is None or facts.index >= first.shape[1]:
        return None
    return WeightedSum("membership", np.ones(1), np.array([facts.index]))


def fit_classifier(first: Float, second: Float, seed: int = 0) -> Statistic:
    """Fit gradient-boosted trees, for outputs of which nothing is known."""
    if not _has_sklearn():
        raise InvalidInput("The classifier statistic needs the 'tasks' extra: pip install 'scoreshield[tasks]'.")
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = np.concatenate([first[:_CLASSIFIER_ROWS], second[:_CLASSIFIER_ROWS]])
    sides = np.repeat([1, 0], [min(len(first), _CLASSIFIER_ROWS), min(len(second), _CLASSIFIER_ROWS)])
    model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, early_stopping=False, random_state=seed)
    return _Classifier(model.fit(rows, sides))


def estimate_advantage(first: Float, second: Float) -> float:
    """Estimate how well statistics that are fitted on half of the outputs separate the other half.

    Returns:
        The largest P[in > out] - 1/2 of a few quick statistics.
    """
    half = len(first) // 2
    if first.shape[1] > _QUICK_COLUMNS:  # matrices of all entries would take seconds
        moves = measure_moves(first[:half], second[:half])
        columns = np.sort(np.argsort(-moves, kind="stable")[:_QUICK_COLUMNS])
        first, second = first[:, columns], second[:, columns]
    gains = [0.0]
    fit = first[:half], second[:half]
    for statistic in (fit_linear(*fit), fit_table(*fit), fit_noiseless(*fit)):
        if statistic is not None:
            gains.append(compute_area(statistic(first[half:]), statistic(second[half:])) - 0.5)
    return max(gains)


def _has_sklearn() -> bool:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


# ---- Directions in which outputs move from one collection to the other.


@dataclass(frozen=True)
class WeightedSum:
    """A weighted sum of some entries."""

    name: str
    weights: Float
    columns: NDArray[np.intp]

    def __call__(self, outputs: Float) -> Float:
        # Row by row: equal outputs must give equal numbers, in any batch.
        return np.asarray(np.vecdot(outputs[:, self.columns], self.weights))


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


def count_searchable_entries(rows: int) -> int:
    """Compute how many entries can be searched for a direction without noise, with this number of rows per side."""
    return max(2, rows // 4)


def measure_moves(first: Float, second: Float) -> Float:
    """Measure how far each entry moves, relative to its spread; 0 for an entry that neither moves nor varies."""
    moves = np.zeros(first.shape[1])
    if (parts := _standardise(first, second)) is not None:
        moves[parts.columns] = np.abs(parts.moves)
    return moves


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
    scale = np.where(quiet, np.abs(move), spread)[columns]
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
