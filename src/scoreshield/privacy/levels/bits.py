"""One-bit tables: a record's score lies above a public threshold or below it, and one of two answers is drawn.

With `a = P[1 | below]` and `b = P[1 | above]`, a table is epsilon-private if b ≤ e^ε a and 1 - a ≤ e^ε (1 - b). Two
makers:

`accept_bit` finds the best a, b and threshold for a matcher. With u and v the shares of impostor and genuine scores
above the threshold, impostors are accepted at the rate a (1 - u) + b u, and genuine pairs at a (1 - v) + b v. For each
threshold the best table spends the whole false-match rate on one of the two constraints:

    a = f / (1 + (e^ε - 1) u),  b = e^ε a    where (1 + e^ε) a ≤ 1, and otherwise
    a = (f - u s) / (1 - u s),  b = 1 - (1 - a) e^-ε    with s = 1 - e^-ε.

`gaussian_bit` puts (a, b) on the trade-off curve of Gaussian noise, `b = Φ(Φ^-1(a) + μ)`, so that no test does better
than against that noise. docs/optimal.md has measurements, docs/proofs/levels.md the proofs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from mpmath import MPContext
from numpy.typing import NDArray
from scipy.optimize import brentq

from scoreshield import _validation
from scoreshield._validation import check_delta, check_epsilon, check_flag, check_inside_unit, validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.levels import program
from scoreshield.privacy.levels.cuts import check_range, tail
from scoreshield.privacy.levels.program import WHOLE
from scoreshield.privacy.levels.tables import LEAST_WIDTH, LevelChannel, place_levels, randomised_response
from scoreshield.privacy.sampling import intervals

Float = NDArray[np.float64]

#: How many thresholds are tried where scores are given as a distribution.
_PLACES = 8191
#: Without genuine scores: the threshold is the lowest that keeps this share of the largest P[1 | above].
_KEPT = 0.95
#: The largest epsilon whose exponential is a double.
_LARGEST_EXPONENT = 700.0
#: Room for rounding in a false-match rate.
_ROUNDING = 1e-9
_DIGITS = 60


@dataclass(frozen=True)
class AcceptBit:
    """A table for one decision, and the rates that public scores predict for it.

    Attributes:
        table: The level table, for ``release_scores(..., mechanism=bit.table)``. A pair is accepted if its released
            score exceeds ``threshold``.
        threshold: The public threshold on clean scores; the cut of the table.
        false_match_rate: The predicted share of impostor pairs that are accepted.
        true_match_rate: The predicted share of genuine pairs that are accepted; NaN without genuine scores.
    """

    table: LevelChannel
    threshold: float
    false_match_rate: float
    true_match_rate: float


@validate(epsilon=check_epsilon, false_match_rate=check_inside_unit, symmetric=check_flag)
def accept_bit(
    epsilon: float,
    *,
    impostor: object,
    false_match_rate: float,
    genuine: object = None,
    symmetric: bool = False,
    score_range: tuple[float, float] = (-1.0, 1.0),
) -> AcceptBit:
    """Find the one-bit table and the threshold that accept most genuine pairs at a false-match rate; pure epsilon.

    Randomised response accepts a share 1 / (1 + e^epsilon) of pairs below the threshold by chance. The threshold is
    moved so that chance and clean false matches together keep the rate. Where chance alone exceeds the rate, an
    asymmetric table accepts fewer pairs below the threshold, and at most e^epsilon times as many above it.

    Args:
        epsilon: The epsilon of the table.
        impostor: *Public* scores of pairs that do not match: an array, a ``Sample`` or a ``Distribution``.
        false_match_rate: The share of impostor pairs that may be accepted.
        genuine: *Public* scores of pairs that match, for the best threshold. Without them, randomised
            response is used with the lowest threshold that keeps the rate; where it cannot keep it, the lowest
            threshold at which a pair above it is accepted with 95 % of the largest possible probability.
        symmetric: Use randomised response, whose two errors are equally likely, with the lowest threshold that keeps
            the rate.
        score_range: The public range of the scores.

    Returns:
        The table, its threshold and the rates that the public scores predict.

    Raises:
        InvalidInput: The sample is too small to show the rate, or no table, or no symmetric one, can keep it.
    """
    low, high = check_range(score_range)
    places, far = _list_thresholds(impostor, low, high, false_match_rate)
    near = None if genuine is None else tail(genuine, places, "genuine")
    chance = 1 / (1 + math.exp(min(epsilon, _LARGEST_EXPONENT)))
    is_enough = bool((chance + (1 - 2 * chance) * far <= false_match_rate).any())
    if symmetric and not is_enough:
        raise InvalidInput(
            f"A symmetric table accepts {100 * chance:.3g} % of impostors by chance at epsilon {epsilon:g}, so no "
            f"threshold keeps a false-match rate of {100 * false_match_rate:.3g} %: leave 'symmetric' out, or ask for "
            "a larger epsilon."
        )
    symmetric = symmetric or (near is None and is_enough)
    below, above = _find_best_rates(epsilon, far, false_match_rate)
    if symmetric:
        below, above = np.full(len(far), chance), np.full(len(far), 1 - chance)
    false = below * (1 - far) + above * far
    kept = false <= false_match_rate * (1 + 1e-12)
    if symmetric:
        best = int(np.flatnonzero(kept)[0])
    elif near is not None:
        best = int(np.argmax(np.where(kept, below * (1 - near) + above * near, -1.0)))
    else:
        best = int(np.flatnonzero(kept & (above >= _KEPT * above[kept].max()))[0])
    place = float(places[best])
    if symmetric:
        table = randomised_response(epsilon, [place], score_range=(low, high))
    else:
        first = max(1, math.floor(Fraction(float(below[best])) * WHOLE))
        ratio = program.floor_ratio(epsilon)
        # A chance below 2^-62 was rounded up: the rate, not e^epsilon, then bounds the other one.
        allowed = max(first, math.floor(Fraction(float(above[best])) * WHOLE))
        second = min(int(ratio * first), WHOLE - math.ceil((WHOLE - first) / ratio), allowed)
        table = _make_bit(place, (low, high), first, second, epsilon)
    a, b = (float(table.probabilities[level, 1]) for level in (0, 1))
    accepted, predicted = math.nan if near is None else a + (b - a) * float(near[best]), a + (b - a) * float(far[best])
    if predicted > false_match_rate * (1 + _ROUNDING):
        raise InvalidInput(
            f"A table of whole 2^-62nds accepts {100 * predicted:.3g} % of impostors, above the false-match rate of "
            f"{100 * false_match_rate:.3g} %: ask for a larger rate."
        )
    return AcceptBit(table, place, predicted, accepted)


@validate(true_match_rate=check_inside_unit, false_match_rate=check_inside_unit)
def find_accept_epsilon(
    true_match_rate: float,
    *,
    impostor: object,
    genuine: object,
    false_match_rate: float,
    score_range: tuple[float, float] = (-1.0, 1.0),
) -> float:
    """Find the least epsilon at which `accept_bit` accepts this share of genuine pairs at a false-match rate.

    Args:
        true_match_rate: The share of genuine pairs to accept.
        impostor: *Public* scores of pairs that do not match, as in `accept_bit`.
        genuine: *Public* scores of pairs that match.
        false_match_rate: The share of impostor pairs that may be accepted.
        score_range: The public range of the scores.

    Returns:
        The epsilon, rounded up; infinity where no epsilon up to 700 is enough.
    """
    low, high = check_range(score_range)
    places, far = _list_thresholds(impostor, low, high, false_match_rate)
    near = tail(genuine, places, "genuine")

    def find_shortfall(log_epsilon: float) -> float:
        below, above = _find_best_rates(math.exp(log_epsilon), far, false_match_rate)
        is_kept = below * (1 - far) + above * far <= false_match_rate * (1 + 1e-12)
        return true_match_rate - float(np.max(np.where(is_kept, below * (1 - near) + above * near, 0.0)))

    least, most = math.log(_validation.LEAST_EPSILON), math.log(_LARGEST_EXPONENT)
    if find_shortfall(most) > 0:
        return math.inf
    if find_shortfall(least) <= 0:
        return _validation.LEAST_EPSILON
    return math.exp(float(brentq(find_shortfall, least, most, xtol=1e-12))) * (1 + 1e-9)


@validate(epsilon=check_epsilon, delta=check_delta, false_share=check_inside_unit)
def gaussian_bit(
    epsilon: float,
    delta: float,
    threshold: float,
    *,
    false_share: float,
    score_range: tuple[float, float] = (-1.0, 1.0),
) -> LevelChannel:
    """Make the one-bit table against which no test does better than against Gaussian noise at (epsilon, delta).

    A record below the threshold is named with probability ``false_share``, a record above it with probability
    Phi(Phi^-1(false_share) + mu), where mu is that of the Gaussian. The ROC curve of every test against the table lies
    on or below that of the best test against the Gaussian. The table states the least pure epsilon it has, where this
    is at most the given one.

    Args:
        epsilon: The contract of the Gaussian noise that the table replaces.
        delta: Its delta, above 0.
        threshold: A public threshold on clean scores; the cut of the table.
        false_share: The public share of records below the threshold that are named: about 7 / n for the ten best
            of n records.
        score_range: The public range of the scores.

    Returns:
        The table, for ``release_scores(..., mechanism=table)``.

    Raises:
        InvalidInput: Delta is 0, the threshold is not inside the range, or the share is too near to 0 or 1.
    """
    if not delta > 0:
        _validation.reject("delta", "above 0 for a contract of Gaussian noise (1e-6, say)", delta)
    span = check_range(score_range)
    place = _validation.check_real(threshold, "threshold")
    if not span[0] + LEAST_WIDTH <= place <= span[1] - LEAST_WIDTH:
        _validation.reject("threshold", f"inside ({span[0]:g}, {span[1]:g}), at least 2^-40 from its ends", threshold)
    mu = gaussian.find_mu(epsilon, delta)
    first = max(1, math.ceil(Fraction(false_share) * WHOLE))
    second = min(compute_gaussian_power(first, mu), WHOLE - 1)
    if second <= first:
        _validation.reject("false_share", "far enough from 0 and 1 for whole 2^-62nds", false_share)
    pure = max(_compute_pure_epsilon(first, second), _validation.LEAST_EPSILON)
    if pure <= epsilon:
        return _make_bit(place, span, first, second, pure)
    return _make_bit(place, span, first, second, epsilon, delta)


def compute_gaussian_power(first: int, mu: float) -> int:
    """Compute 2^62 Phi(Phi^-1(first / 2^62) + mu), rounded down with a margin: the power of the best Gaussian test."""
    with _high_precision() as mp:
        level = mp.mpf(first) / WHOLE
        place = mp.sqrt(2) * mp.erfinv(2 * level - 1)
        shift = mp.mpf(Fraction(mu).numerator) / Fraction(mu).denominator
        power = mp.erfc(-(place + shift) / mp.sqrt(2)) / 2
        return int(mp.floor(power * WHOLE * (1 - mp.mpf(2) ** -50))) - 1


@contextlib.contextmanager
def _high_precision() -> Iterator[MPContext]:
    """Give a context of 60 digits of its own: that of mpmath belongs to the caller, and all threads share it."""
    with intervals.LOCK:
        mp = MPContext()
        mp.dps = _DIGITS
        yield mp


def _list_thresholds(impostor: Any, low: float, high: float, rate: float) -> tuple[Float, Float]:
    """List the thresholds to try, and the expected share of impostor scores above each.

    A distribution is tried on a grid. A sample is tried at its own scores. The chance that a new score exceeds one
    that has k of n scores above it lies between k / n and (k + 1) / (n + 1); the middle is taken.
    """
    own = getattr(impostor, "values", None)
    values = own if isinstance(own, np.ndarray) else impostor
    if callable(getattr(impostor, "clean_rate", None)) and not isinstance(values, np.ndarray):
        places = np.linspace(low, high, _PLACES + 2)[1:-1]
        return places, tail(impostor, places, "impostor")
    tail(values, np.zeros(1), "impostor")  # checks the scores
    scores = _validation.to_array(values).astype(np.float64)
    if len(scores) * rate < 1:
        raise InvalidInput(
            f"{len(scores):,} impostor scores cannot show a false-match rate of {rate:g}: give at least "
            f"{math.ceil(1 / rate):,} of them, or a larger rate."
        )
    margin = 2.0**-20 * (high - low)
    places = np.unique(np.clip(scores, low + margin, high - margin))
    above = np.rint(tail(scores, places, "impostor") * len(scores))
    return places, (above + 0.5) / (len(scores) + 0.5)


def _find_best_rates(epsilon: float, far: Float, rate: float) -> tuple[Float, Float]:
    """Compute the best P[1 | below] and P[1 | above] for each share of impostors above the threshold."""
    shrink = math.exp(-min(epsilon, _LARGEST_EXPONENT))
    # Both sides of the first case are divided by e^epsilon, which may overflow.
    steep = rate * shrink / (shrink + (1 - shrink) * far)
    inner = far * (1 - shrink)
    flat = np.clip((rate - inner) / np.maximum(1 - inner, 1e-300), 0.0, 1.0)
    is_steep = (1 + shrink) * steep <= shrink
    below = np.where(is_steep, steep, flat)
    return below, np.where(is_steep, rate / (shrink + (1 - shrink) * far), 1 - (1 - flat) * shrink)


def _compute_pure_epsilon(first: int, second: int) -> float:
    """Compute the least pure epsilon of the table, rounded up."""
    ratio = max(Fraction(second, first), Fraction(WHOLE - first, WHOLE - second))
    with _high_precision() as mp:
        log = mp.log(mp.mpf(ratio.numerator) / ratio.denominator)
        return math.nextafter(float(log * (1 + mp.mpf(2) ** -50)), math.inf)


def _make_bit(
    threshold: float, score_range: tuple[float, float], first: int, second: int, epsilon: float, delta: float = 0.0
) -> LevelChannel:
    """Make the table of these chances, in 2^-62nds, to answer 1 below and above the threshold."""
    middles, cuts, step = place_levels([threshold], score_range)
    weights = np.array([[WHOLE - first, first], [WHOLE - second, second]], dtype=np.uint64)
    return LevelChannel(tuple(middles), tuple(cuts), tuple(middles), step, weights, epsilon, delta)
