"""Calibration of Gaussian noise: the noise that (epsilon, delta) needs, and the privacy that a given noise has.

With `μ = D/σ` (sensitivity over standard deviation) the Gaussian mechanism satisfies
(epsilon, delta)-differential privacy if and only if (Balle & Wang, ICML 2018, Theorem 8)

    δ ≥ Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2).

Both terms share a factor: with `a = ε/μ - μ/2`, `b = ε/μ + μ/2` and the Mills ratio
`M(x) = Φ(-x)/φ(x)`, the right-hand side is `φ(a) [M(a) - M(b)]`, because
`φ(a) = e^ε φ(b)`. The logarithm of that form neither overflows nor underflows, so the code computes with it. Every
result is rounded to the safe side by more than the largest possible rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtr

from scoreshield import _validation
from scoreshield._validation import check_epsilon, check_inside_unit, check_positive, one_of, validate
from scoreshield.errors import InvalidCalibration

Method = Literal["analytic", "conservative", "classical"]
METHODS: tuple[str, ...] = get_args(Method)

#: The smallest double above 0. A delta between 0 and this is rounded up to it.
LEAST_DELTA = math.ulp(0.0)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
# erfcx is documented to 1e-13 relative; what follows takes ten times that for each Mills ratio.
_MILLS_ERROR = 1e-12


def compute_log_delta(epsilon: float, mu: float) -> tuple[float, float]:
    """Compute the logarithm of the exact delta of Gaussian noise at ``epsilon`` >= 0, and a bound on its error."""
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if low < -8:
        # delta is within 1e-15 of Phi(-low), and the second term is a small correction to it.
        second = epsilon + float(log_ndtr(-high))
        first = float(log_ndtr(-low))
        return first + math.log1p(-math.exp(second - first)), 1e-12
    if low > 1e5:
        # -M'(x) <= 1/(1 + x^2), so M(a) - M(b) <= mu/(a b), and by no more than one part in 1e9 here.
        if low > 1e150:
            return -math.inf, 0.0
        gap, loss = mu / (low * high), 1e-9
    elif mu < 1e-5:
        # M(a) - M(b) by its derivative 1 - x M(x) in the middle; the next term is smaller by mu^2.
        middle = epsilon / mu
        gap = mu * (1 - middle * _mills(middle))
        loss = (1 + middle**2) * _MILLS_ERROR + mu * mu
    else:
        top = _mills(low)
        gap = top - _mills(high)
        loss = _MILLS_ERROR * (1 + 2 * top / gap)
    value = -0.5 * low * low - _LOG_SQRT_2PI + math.log(gap)
    return value, loss + 1e-15 * (4 + low * low + epsilon)


def compute_delta(epsilon: float, mu: float) -> float:
    """Compute the exact delta of Gaussian noise at ``epsilon``, rounded up. It is never 0."""
    value, error = compute_log_delta(epsilon, mu)
    return min(1.0, max(math.exp(value + error), LEAST_DELTA))


def bound_excess(epsilon: float, mu: float, log_target: float) -> float:
    """Bound how far log delta may lie above a target. If the result is at most 0, (epsilon, delta) holds.

    The error counts twice, so that a later ``compute_delta``, with its own error, never contradicts the result.
    """
    value, error = compute_log_delta(epsilon, mu)
    return value + 2 * error - log_target


def find_epsilon(delta: float, mu: float) -> float:
    """Find the least epsilon >= 0 of Gaussian noise at ``delta`` in (0, 1), rounded up; 0 where nothing moves."""
    if mu == 0:
        return 0.0
    target = math.log(delta)
    if bound_excess(0.0, mu, target) <= 0:
        return 0.0
    high = max(1.0, mu * mu)
    while bound_excess(high, mu, target) > 0:
        high *= 2
    root = float(brentq(bound_excess, 0.0, high, args=(mu, target), xtol=1e-300, rtol=1e-14, maxiter=500))
    return _step_until(root, lambda epsilon: bound_excess(epsilon, mu, target) <= 0, upward=True)


def find_mu(epsilon: float, delta: float) -> float:
    """Find the largest ratio of sensitivity to noise that meets (epsilon, delta), rounded down."""
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        return bound_excess(epsilon, math.exp(log_mu), target)

    # The answer lies near a textbook rule; widen until it is bracketed.
    low = math.log(epsilon / math.sqrt(2 * (math.log(2) - target) + 2 * epsilon))
    while excess(low) > 0:
        low -= 1
    high = low + 1
    while excess(high) <= 0:
        high += 1
    root = math.exp(brentq(excess, low, high, xtol=1e-13, rtol=1e-14, maxiter=500))
    return _step_until(root, lambda mu: bound_excess(epsilon, mu, target) <= 0, upward=False)


@validate(epsilon=check_epsilon, delta=check_inside_unit, sensitivity=check_positive, method=one_of(METHODS))
def calibrate(epsilon: float, delta: float, sensitivity: float, method: str = "analytic") -> float:
    """Compute the standard deviation of Gaussian noise for an (epsilon, delta) promise.

    Args:
        epsilon: The epsilon of the promise, above 0.
        delta: The delta of the promise, between 0 and 1.
        sensitivity: How far one neighbour can move the quantity, in l2.
        method: ``"analytic"`` is the least scale (Balle & Wang 2018). ``"conservative"``, D sqrt(2 ln(2/delta)) /
            epsilon, and ``"classical"``, D sqrt(2 ln(1.25/delta)) / epsilon, are the textbook rules. They raise an
            error where they do not give what they promise (large epsilon).

    Returns:
        The scale, rounded up so that the exact delta never exceeds the requested one.

    Raises:
        InvalidCalibration: If a textbook rule is used outside its validity. The error has the true pair and the
            analytic scale.
    """
    if not 1e-100 <= sensitivity <= 1e100:
        _validation.reject("sensitivity", "between 1e-100 and 1e100", sensitivity)
    if method == "analytic":
        return _scale(sensitivity, find_mu(epsilon, delta))
    mu = compute_rule_mu(epsilon, delta, method)
    if bound_excess(epsilon, mu, math.log(delta)) > 0:
        true_delta, true_epsilon = compute_delta(epsilon, mu), find_epsilon(delta, mu)
        analytic = _scale(sensitivity, find_mu(epsilon, delta))
        raise InvalidCalibration(
            f"The {method} rule is not ({epsilon:g}, {delta:g})-private: its scale {_scale(sensitivity, mu):.6g} has "
            f"delta {true_delta:.3g} at epsilon {epsilon:g} and epsilon {true_epsilon:.4g} at delta {delta:g}; use "
            f"method 'analytic', whose scale {analytic:.10g} is.",
            true_delta=true_delta,
            true_epsilon=true_epsilon,
            analytic_scale=analytic,
        )
    return _scale(sensitivity, mu)


def compute_rule_mu(epsilon: float, delta: float, method: str) -> float:
    """Compute the ratio sensitivity / scale of a textbook rule, also where the rule is not valid."""
    numerator = 2.0 if method == "conservative" else 1.25
    return epsilon / math.sqrt(2 * (math.log(numerator) - math.log(delta)))


def attack_auc(mu: float) -> float:
    """Area under the curve of the best membership test against Gaussian noise."""
    return float(ndtr(mu / math.sqrt(2)))


def attack_advantage(mu: float) -> float:
    """Largest difference of true- and false-positive rate that any membership test reaches."""
    return math.erf(mu / (2 * math.sqrt(2)))


def _mills(x: float) -> float:
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _scale(sensitivity: float, mu: float) -> float:
    # The quotient and the sensitivity's own formula are each within a few units in the last place.
    return sensitivity / mu * (1 + 2**-48)


def _step_until(start: float, holds: Callable[[float], bool], *, upward: bool) -> float:
    """Find the first of start (1 +- 2^-46), start (1 +- 2^-45), ... for which the condition holds."""
    step = 2.0**-46
    while True:
        value = start * (1 + step) if upward else start / (1 + step)
        if holds(value):
            return value
        step *= 2
