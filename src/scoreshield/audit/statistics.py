r"""Test statistics: from an output to one number that is larger where the first collection made it.

Each is fitted on outputs that are not used again for the bound, so however it was found, it costs no confidence.

* ``likelihood``: :math:`\sum_j \ln f(x_j - a_j) - \ln f(x_j - b_j)` over the entries that move from a to b, with the
  density f of the noise as the release's own guarantee names it: by Neyman & Pearson the best test there is.
* ``linear``: Fisher's discriminant, for noise of any law that entries may share.
* ``table``: a likelihood ratio from histograms of each entry: finds moved bins, changed widths, values that one side
  never takes. On the exponents of the lowest set bits it is the ``low bits`` test of Mironov (2012).
* ``noiseless``: the combination of entries that has no noise and yet moves, where there is one (`directions`).
* ``membership``: the changed record's own entry. ``classifier``: gradient-boosted trees (after Bichsel et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.directions import Weighted, linear, noiseless, relative_moves
from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]

STATISTICS = ("auto", "likelihood", "linear", "table", "membership", "classifier")
#: Rows that a table or a classifier is fitted on, at most, on each side.
_TABLE_ROWS, _CLASSIFIER_ROWS = 50_000, 5_000
#: Entries that a table sums over, at most, and the bins of each.
_TABLE_COLUMNS, _BINS = 16, 64
#: Entries that a quick look takes in, at most: those that move most.
_QUICK_COLUMNS = 128


class Statistic(Protocol):
    """A fitted statistic."""

    @property
    def name(self) -> str: ...

    def __call__(self, outputs: Float) -> Float:
        """One number for each output."""


@dataclass(frozen=True)
class Setting:
    """What is known beforehand: the noise law of the leading entries, and whose record changes.

    Attributes
    ----------
    law, covered : the law, or None, and how many leading entries carry it.
    index : the position of the changed record.
    opaque : whether nothing is known of the outputs, so that a classifier may find what the others miss.
    plain : whether all entries are clean values plus noise and nothing else, where ``law`` does not say so.
    seed : for the classifier.
    """

    law: Any = None
    covered: int = 0
    index: int | None = None
    opaque: bool = False
    plain: bool = False
    seed: int = 0


_DECIMALS = 9


@dataclass(frozen=True)
class _Likelihood:
    law: Any
    columns: NDArray[np.intp]
    here: Float
    there: Float
    name: str = "likelihood"

    def __call__(self, outputs: Float) -> Float:
        moved = outputs[:, self.columns]
        ratios = log_density(self.law, moved - self.here) - log_density(self.law, moved - self.there)
        # Beyond both centres the ratio of pure noise is one number, which rounding errors would scatter around a cut.
        return np.asarray(np.round(ratios.sum(axis=1), _DECIMALS))


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


def candidates(name: str, first: Float, second: Float, setting: Setting) -> list[Statistic]:
    """The statistics to choose from under a name, fitted; "auto" tries all that the outputs allow."""
    makers: dict[str, Callable[[], Statistic | None]] = {
        "likelihood": lambda: likelihood(first, second, setting),
        "linear": lambda: linear(first, second),
        "table": lambda: table(first, second),
        "membership": lambda: membership(first, setting),
        "classifier": lambda: classifier(first, second, setting.seed),
    }
    if name != "auto":
        found = makers[name]()
        if found is None:
            why = {
                "likelihood": "no entry moves, or the outputs do not say the law of their noise",
                "membership": "the outputs have no entry of the changed record",
            }.get(name, "nothing moves between the two collections")
            raise InvalidInput(f"The statistic {name!r} cannot be used here: {why}; use statistic='auto'.")
        return [found]
    kept = [makers[choice]() for choice in ("likelihood", "linear", "table")]
    if setting.opaque and first.shape[1] > 1 and _has_sklearn():
        kept.append(makers["classifier"]())
    return [statistic for statistic in kept if statistic is not None]


def likelihood(first: Float, second: Float, setting: Setting) -> Statistic | None:
    """The log-likelihood ratio of the entries that move, around their estimated clean values."""
    if setting.law is None:
        return None
    middle = np.mean if setting.law.name == "gaussian" else np.median
    here, there = (middle(side[:, : setting.covered], axis=0) for side in (first, second))
    # Means and medians of these laws are within about 1.3 std / sqrt(rows) of the clean value.
    noise = 1.3 * setting.law.std * math.sqrt(1 / len(first) + 1 / len(second))
    columns = np.flatnonzero(np.abs(here - there) > 2 * noise)
    if not len(columns):
        columns = np.array([np.argmax(np.abs(here - there))])
    return _Likelihood(setting.law, columns, here[columns], there[columns]) if np.any(here != there) else None


def log_density(law: Any, x: Float) -> Float:
    """The log density of a noise law, up to a constant."""
    match law.name:
        case "gaussian":
            return np.asarray(-0.5 * (x / law.std) ** 2)
        case "laplace":
            return np.asarray(-np.abs(x) / law.b)
        case "staircase":
            size = np.abs(x) / law.sensitivity
            steps = np.floor(size)
            return np.asarray(-law.epsilon * (steps + (size - steps > law.gamma)))
    raise InvalidInput(f"The density of {law.name} noise is not known here.")


def table(
    first: Float, second: Float, *, transform: Callable[[Float], Float] | None = None, name: str = "table"
) -> Statistic | None:
    """Summed log ratios of smoothed histograms, over the entries whose histograms differ most."""
    first, second = first[:_TABLE_ROWS], second[:_TABLE_ROWS]
    found: list[tuple[float, int, Float, Float]] = []
    for column in range(first.shape[1]):
        here, there = first[:, column], second[:, column]
        if transform is not None:
            here, there = transform(here), transform(there)
        edges = _edges(np.concatenate([here, there]))
        if not len(edges):
            continue
        counts = [
            np.bincount(np.searchsorted(edges, side, side="right"), minlength=len(edges) + 1) for side in (here, there)
        ]
        found.append((_difference(*counts), column, edges, np.log((counts[0] + 0.5) / (counts[1] + 0.5))))
    if not found:
        return None
    found.sort(key=lambda entry: -entry[0])
    kept = [entry for entry in found[:_TABLE_COLUMNS] if entry[0] > 4.0] or found[:1]
    _, columns, edges_, ratios = zip(*kept, strict=True)
    return _Table(columns, edges_, ratios, transform, name)


def _edges(values: Float) -> Float:
    """Cuts between bins: between all values where they are few, at quantiles where they are many."""
    distinct = np.unique(values)
    if len(distinct) > _BINS:
        bins = int(np.clip(math.sqrt(len(values)) / 2, 8, _BINS))
        distinct = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1), method="lower"))
    return distinct[1:]


def _difference(here: NDArray[np.int64], there: NDArray[np.int64]) -> float:
    """The chi-square statistic of two histograms, in standard deviations above its mean under no difference."""
    total = here + there
    used = total > 0
    expected = total[used] * here.sum() / total.sum()
    freedom = max(1, int(used.sum()) - 1)
    square = float(((here[used] - expected) ** 2 / (expected * there.sum() / total.sum())).sum())
    return (square - freedom) / math.sqrt(2 * freedom)


def low_bits(first: Float, second: Float) -> Statistic | None:
    """A table of the exponents of lowest set bits: noise added in floating point leaves marks there.

    None for whole numbers, whose last bits are the output itself.
    """
    if all(np.array_equal(side, np.rint(side)) for side in (first, second)):
        return None
    return table(first, second, transform=lowest_bit, name="low bits")


def lowest_bit(values: Float) -> Float:
    """The exponent of the lowest set bit of each number: x is a whole multiple of 2 to that power, and of no higher."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(whole == 0, 2048.0, exponent - 53.0 + trailing)


def membership(first: Float, setting: Setting) -> Statistic | None:
    """The changed record's own entry."""
    if setting.index is None or setting.index >= first.shape[1]:
        return None
    return Weighted("membership", np.ones(1), np.array([setting.index]))


def classifier(first: Float, second: Float, seed: int = 0) -> Statistic:
    """Gradient-boosted trees, for outputs of which nothing is known."""
    if not _has_sklearn():
        raise InvalidInput("The classifier statistic needs the 'tasks' extra: pip install 'scoreshield[tasks]'.")
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = np.concatenate([first[:_CLASSIFIER_ROWS], second[:_CLASSIFIER_ROWS]])
    sides = np.repeat([1, 0], [min(len(first), _CLASSIFIER_ROWS), min(len(second), _CLASSIFIER_ROWS)])
    model = HistGradientBoostingClassifier(max_iter=40, max_leaf_nodes=15, early_stopping=False, random_state=seed)
    return _Classifier(model.fit(rows, sides))


def quick_advantage(first: Float, second: Float) -> float:
    """How well half of the outputs are told apart by what the others taught: P[in > out] - 1/2, at best."""
    half = len(first) // 2
    if first.shape[1] > _QUICK_COLUMNS:  # matrices of all entries would take seconds
        moves = relative_moves(first[:half], second[:half])
        columns = np.sort(np.argsort(-moves, kind="stable")[:_QUICK_COLUMNS])
        first, second = first[:, columns], second[:, columns]
    gains = [0.0]
    taught = first[:half], second[:half]
    for statistic in (linear(*taught), table(*taught), noiseless(*taught)):
        if statistic is not None:
            inside, outside = statistic(first[half:]), np.sort(statistic(second[half:]))
            below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
            gains.append(float(below.mean() / (2 * len(outside)) - 0.5))
    return max(gains)


def _has_sklearn() -> bool:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True
