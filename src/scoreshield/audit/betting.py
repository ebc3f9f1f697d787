"""Tests by betting: capital that can grow only if the claim is false.

A fair coin chooses one of two neighbouring collections, and the release answers with an output x. If the release is
(ε, 0)-private, then whatever x is, the chance that it came from the first collection is at most

    c = e^ε / (1 + e^ε),

and the same holds for the second one. A player who believes that the chance is p > c stakes on it: the capital is
multiplied by p/c if the guess was right, and by (1-p)/(1-c) if it was wrong. Its expectation does not grow as long as
the claim is true, whatever the player learnt from earlier outputs, however the pair of collections was chosen, and
whenever the player stops. By Ville's inequality the capital then exceeds 1/a with probability at most a (Ville 1939;
Shafer 2021; Ramdas, Grünwald, Vovk & Shafer 2023). So a claim is broken at confidence 1 - a as soon as the capital
reaches 1/a, and everything that was tried on the way is part of the bets.

For (ε, δ)-privacy, let v(x) be the gain of a right guess. Then the expectation is at most 1 + δ max(v)/2 for the
guesses of each side, and that much is subtracted from every factor.

One player is a `BetAccount`: a test statistic, its values cut into bins, and how many earlier outputs of each side
fell into every bin. A `Portfolio` divides the capital among many accounts, by what they won and what they promise. It
plays against many hypotheses (ε', δ') at once. The largest ε' such that it and all smaller ones were rejected is a
lower bound on the true epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logsumexp

from scoreshield.audit.statistics import Statistic

Float = NDArray[np.float64]
Counts = NDArray[np.int64]
#: How an account uses its bins: each one for itself, all beyond one cut together, or by a smooth curve through them.
Style = Literal["bins", "cut", "smooth"]
STYLES: tuple[Style, ...] = ("bins", "cut", "smooth")

#: How many standard errors below its estimate a chance is taken, so that chance alone is seldom played.
_CAUTION = 1.0
#: The same for the slope of a smooth curve, which all outputs together teach.
_SMOOTH_CAUTION = 0.5
#: How many outputs at the claimed chance are added to the counts of every bin.
_PRIOR = 1.0
#: Gains that are tried for all bins alike, where delta makes large gains in few bins expensive.
_EQUAL_GAINS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
#: Below this delta its price hardly matters.
_SMALL_DELTA = 1e-4
#: The least factor of the capital.
_LEAST_FACTOR = 1e-12
#: The most capital that is held back, so that a bad round is not the end.
_RESERVE = 0.3
#: The most that a promise moves the division of the capital.
_PROMISE = 4.0
#: How much the growth on the outputs that taught an account exceeds what it will be, per bin that it plays.
_OPTIMISM = 0.7
#: Statistics that get more capital at first, since most faults show there.
_PRIORS = {"linear": 1.5, "likelihood": 1.5, "table": 0.7}
#: The most bins of one account.
MOST_BINS = 32


@dataclass(frozen=True)
class Hypotheses:
    """Pairs (epsilon, delta), each of which the portfolio tries to reject.

    Attributes:
        epsilons: One epsilon per hypothesis.
        deltas: One delta per hypothesis.
    """

    epsilons: Float
    deltas: Float

    def compose(self, calls: int) -> Hypotheses:
        """Return what follows for this number of releases together (basic composition)."""
        return Hypotheses(self.epsilons * calls, np.minimum(self.deltas * calls, 1.0))

    def __len__(self) -> int:
        return len(self.epsilons)


@dataclass(frozen=True)
class Stakes:
    """What each bin does to the capital, for every hypothesis.

    Attributes:
        log_first: The logarithm of the factor for an output of the first collection, (hypotheses, bins).
        log_second: The same for the second collection.
        growth: The growth of the logarithm of the capital on the outputs that the stakes were learnt from.
        expected: What is expected of as many new outputs, which did not teach the stakes.
    """

    log_first: Float
    log_second: Float
    growth: Float
    expected: Float

    def play(self, first: Counts, second: Counts) -> Float:
        """Compute how the logarithm of the capital changes, given how many new outputs fell into each bin."""
        return np.asarray(self.log_first @ first + self.log_second @ second)


def choose_stakes(
    first: Counts, second: Counts, hypotheses: Hypotheses, style: Style, centres: Float | None = None
) -> Stakes:
    """Choose stakes from the earlier outputs of both sides in each bin.

    Args:
        first: How many outputs of the first collection fell into each bin, by rising values of the statistic.
        second: The same for the second collection.
        hypotheses: What is played against.
        style: Whether every bin has stakes of its own, or all bins beyond the best cut have the same, or a logistic
            curve gives the chances.
        centres: For the curve: the mean of the statistic in each bin.
    """
    odds = np.exp(np.minimum(hypotheses.epsilons, 700.0))[:, None]
    if style == "bins":
        gain_first, gain_second = _find_gains(first, second, odds), _find_gains(second, first, odds)
    elif style == "smooth":
        assert centres is not None
        chance = fit_chances(first, second, centres)
        cap = odds / (1 + odds)
        gain_first, gain_second = np.maximum(chance / cap - 1, 0.0), np.maximum((1 - chance) / cap - 1, 0.0)
    else:
        gain_first = _find_cut(first[::-1], second[::-1], odds)[:, ::-1]
        gain_second = _find_cut(second, first, odds)
        # A bin on both sides of the cuts belongs to the larger gain.
        is_first = gain_first >= gain_second
        gain_first, gain_second = gain_first * is_first, gain_second * ~is_first
    # How many chances were learnt: one per bin, or for a cut on each side its place and its chance.
    learnt = ((gain_first > 0) | (gain_second > 0)).sum(axis=1) if style == "bins" else np.full(len(odds), 3.0)
    best = _make_stakes(first, second, gain_first, gain_second, hypotheses, learnt)
    if np.any(hypotheses.deltas > _SMALL_DELTA):
        # Delta is paid on the largest gain, so that equal gains are better where it is large.
        signs = gain_first > 0, gain_second > 0
        for size in _EQUAL_GAINS:
            limit = size / np.maximum(1.0, odds)
            equal = _make_stakes(first, second, limit * signs[0], limit * signs[1], hypotheses, learnt)
            best = _take_better(best, equal)
    return best


def _find_gains(right: Counts, wrong: Counts, odds: Float) -> Float:
    """Find the gain of a right guess in each bin: 0 where the counts promise nothing."""
    cap = odds / (1 + odds)
    total = right + wrong + _PRIOR
    chance = (right + _PRIOR * cap) / total
    # The error of a chance that was never wrong is that of about one wrong guess.
    miss = np.maximum(1 - chance, 0.5 * _PRIOR * (1 - cap) / total)
    low = chance - _CAUTION * np.sqrt(chance * miss / total)
    return np.asarray(np.maximum(low / cap - 1, 0.0))


def _find_cut(right: Counts, wrong: Counts, odds: Float) -> Float:
    """Find the cut whose bins before it promise most when they are played alike, and their gains."""
    rights, wrongs = np.cumsum(right), np.cumsum(wrong)
    gains = _find_gains(rights, wrongs, odds)
    growth = rights * np.log1p(gains) + wrongs * np.log(np.maximum(1 - odds * gains, 1e-300))
    place = np.argmax(growth, axis=1)
    best = gains[np.arange(len(gains)), place]
    return np.asarray(np.where(np.arange(len(right)) <= place[:, None], best[:, None], 0.0))


def fit_chances(first: Counts, second: Counts, centres: Float) -> Float:
    """Fit the chance of the first collection in each bin as a logistic function of the statistic.

    The slope is taken half a standard error towards 0. For Gaussian noise of equal width the logistic curve is exact,
    and two parameters are learnt from far fewer outputs than the chances of all bins.
    """
    total = (first + second).astype(np.float64)
    middle = float(total @ centres / total.sum())
    spread = math.sqrt(float(total @ (centres - middle) ** 2 / total.sum()))
    if not spread > 0:
        return np.full(len(centres), 0.5)
    x = (centres - middle) / spread
    level, slope, precision = 0.0, 0.0, np.eye(2)
    for _ in range(12):
        chance = expit(level + slope * x)
        weight = np.maximum(total * chance * (1 - chance), 1e-9)
        # A weak prior keeps the slope finite where the sides are separated.
        precision = np.array([[weight.sum(), weight @ x], [weight @ x, weight @ x**2 + 0.05]])
        left = first - total * chance
        step = np.linalg.solve(precision, [left.sum(), left @ x - 0.05 * slope])
        level, slope = float(np.clip(level + step[0], -30, 30)), float(np.clip(slope + step[1], -30, 30))
    error = math.sqrt(float(np.linalg.inv(precision)[1, 1]))
    slope = math.copysign(max(0.0, abs(slope) - _SMOOTH_CAUTION * error), slope)
    return np.asarray(expit(level + slope * x))


def _make_stakes(
    first: Counts, second: Counts, gain_first: Float, gain_second: Float, hypotheses: Hypotheses, learnt: Float
) -> Stakes:
    """Make the stakes of given gains: what they lose where the guess is wrong, and what delta costs."""
    odds = np.exp(np.minimum(hypotheses.epsilons, 700.0))[:, None]
    price = gain_first.max(axis=1, keepdims=True) + gain_second.max(axis=1, keepdims=True)
    price = price * hypotheses.deltas[:, None] / 2
    factors = 1 + gain_first - odds * gain_second - price, 1 + gain_second - odds * gain_first - price
    # A factor must not be negative: leave such a hypothesis alone.
    is_fair = np.minimum(*factors).min(axis=1, keepdims=True) > _LEAST_FACTOR
    logs = [np.where(is_fair, np.log(np.maximum(factor, _LEAST_FACTOR)), 0.0) for factor in factors]
    growth = logs[0] @ first + logs[1] @ second
    plays = growth > 0
    expected = np.maximum(growth - _OPTIMISM * learnt, 0.0)
    return Stakes(
        logs[0] * plays[:, None], logs[1] * plays[:, None], np.asarray(growth * plays), np.asarray(expected * plays)
    )


def _take_better(one: Stakes, other: Stakes) -> Stakes:
    better = other.growth > one.growth
    pick = better[:, None]
    return Stakes(
        np.where(pick, other.log_first, one.log_first),
        np.where(pick, other.log_second, one.log_second),
        np.where(better, other.growth, one.growth),
        np.where(better, other.expected, one.expected),
    )


def find_bins(values: Float) -> Float:
    """Find cuts between bins of a statistic: between all values where they are few, else at quantiles."""
    distinct = np.unique(values)
    bins = int(np.clip(len(values) // 40, 6, MOST_BINS))
    if len(distinct) > bins:
        tail = np.geomspace(max(4.0, 0.002 * len(values)) / len(values), 0.5, bins // 2 + 1)
        levels = np.unique(np.concatenate([tail, 1 - tail]))
        return np.unique(np.quantile(values, levels, method="higher"))
    return (distinct[1:] + distinct[:-1]) / 2


@dataclass(eq=False)
class BetAccount:
    """A player: a statistic, its bins, and what earlier outputs promise.

    Attributes:
        statistic: The test statistic.
        kind: What kind of fault it looks for.
        style: How it uses its bins.
        edges: The cuts between the bins.
        stakes: What it plays next.
        outputs: How many outputs the stakes were learnt from.
    """

    statistic: Statistic
    kind: str
    style: Style
    edges: Float
    stakes: Stakes
    outputs: int

    def play(self, rows: Float, sides: NDArray[np.bool_]) -> Float:
        """Compute how new outputs change the logarithm of the stake; `sides` is True for the first collection."""
        values = self.statistic(rows)
        return self.stakes.play(count_bins(values[sides], self.edges), count_bins(values[~sides], self.edges))

    def promise(self, outputs: int) -> Float:
        """Return the growth that this number of further outputs promises, for each hypothesis."""
        return np.asarray(self.stakes.expected * (outputs / max(1, self.outputs)))

    @property
    def prior(self) -> float:
        """The logarithm of how much more capital it gets than others before anything is known."""
        return _PRIORS.get(self.statistic.name, 0.0) + (0.7 if self.style == "smooth" else 0.0)

    @property
    def key(self) -> tuple[str, str, Style]:
        """What accounts of the same kind have in common from round to round."""
        return self.kind, self.statistic.name, self.style


def open_accounts(
    statistic: Statistic, kind: str, first: Float, second: Float, hypotheses: Hypotheses
) -> list[BetAccount]:
    """Open the accounts of one statistic.

    Args:
        statistic: The statistic, fitted on other outputs than these.
        kind: What kind of fault it looks for.
        first: Earlier outputs of the first collection.
        second: Earlier outputs of the second collection.
        hypotheses: What is played against.

    Returns:
        One account of each style; none where the statistic is constant.
    """
    values = statistic(first), statistic(second)
    edges = find_bins(np.concatenate(values))
    if not len(edges):
        return []
    counts = [count_bins(value, edges) for value in values]
    pooled = np.concatenate(values)
    places = np.searchsorted(edges, pooled, side="right")
    sums, sizes = np.bincount(places, pooled, len(edges) + 1), np.bincount(places, minlength=len(edges) + 1)
    centres = np.where(sizes > 0, sums / np.maximum(sizes, 1), 0.0)
    return [
        BetAccount(
            statistic,
            kind,
            style,
            edges,
            choose_stakes(counts[0], counts[1], hypotheses, style, centres),
            len(first) + len(second),
        )
        for style in STYLES
    ]


def count_bins(values: Float, edges: Float) -> Counts:
    """Count values between the cuts."""
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)


class Portfolio:
    """Capital that is divided among accounts, against many hypotheses at once.

    Args:
        hypotheses: What is played against.
        share: The capital at the beginning, at most 1.

    Attributes:
        log_capital: The logarithm of the capital, for each hypothesis.
        log_peak: Its largest value so far.
    """

    def __init__(self, hypotheses: Hypotheses, share: float = 1.0) -> None:
        self.hypotheses = hypotheses
        self.log_capital = np.full(len(hypotheses), np.log(share))
        self.log_peak = self.log_capital.copy()

    def divide(self, promises: Sequence[Float], records: Sequence[Float]) -> Float:
        """Divide the capital among accounts by what they won or lost so far, and by what they promise.

        Args:
            promises: The growth that each account promises, for each hypothesis.
            records: The growth that accounts of the same kind had in earlier rounds. With these alone, no one's share
                would ever be moved to another.

        Returns:
            The logarithm of each account's stake, (accounts, hypotheses). The rest of the capital is held back.
        """
        promised = np.stack(records) + np.clip(np.stack(promises), 0.0, _PROMISE)
        weights = promised - logsumexp(promised, axis=0)
        capital = np.exp(np.minimum(self.log_capital, 700.0))
        reserve = np.minimum(_RESERVE, capital / 2)
        return np.asarray(weights + np.log1p(-reserve / capital) + self.log_capital)

    def peek(self, stakes: Float, results: Float) -> Float:
        """Return the logarithm of the capital if the round ended now.

        Args:
            stakes: What `divide` returned.
            results: How the logarithm of each account's stake changed.
        """
        before = np.exp(np.minimum(self.log_capital, 700.0))
        reserve = np.minimum(_RESERVE, before / 2)
        capital = np.asarray(logsumexp(np.concatenate([np.log(reserve)[None], stakes + results]), axis=0))
        self.log_peak = np.maximum(self.log_peak, capital)
        return capital

    def settle(self, stakes: Float, results: Float) -> None:
        """End a round with these results."""
        self.log_capital = self.peek(stakes, results)


def bound_epsilon(epsilons: Float, log_peak: Float, threshold: float) -> float:
    """Return the largest epsilon such that it and all smaller ones were rejected; 0 where none was.

    Args:
        epsilons: Hypotheses at one delta, rising.
        log_peak: The logarithm of the largest capital against each.
        threshold: The logarithm of the capital that rejects a hypothesis.
    """
    kept = np.flatnonzero(log_peak < threshold)
    last = kept[0] if len(kept) else len(epsilons)
    return float(epsilons[last - 1]) if last else 0.0


def best_growth_per_output(epsilon: float) -> float:
    """Return the largest growth per output against a hypothesis with delta 0, if everything leaks."""
    return float(-log_expit(epsilon))
