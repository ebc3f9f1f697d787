"""Calibration against 60-digit arithmetic, published reference values and its own inverse."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

import scoreshield as ss
from scoreshield.privacy import calibration

EPSILONS = [1e-3, 3e-3, 1e-2, 0.1, 0.5, 1, 2, 5, 10, 20, 35, 70, 100, 300, 1000]
DELTAS = [1e-300, 1e-200, 1e-100, 1e-50, 1e-30, 1e-20, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1]


def exact_log_delta(epsilon: float, mu: mpmath.mpf) -> mpmath.mpf:
    """Balle & Wang's expression as printed, in so many digits that no rearrangement is needed."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.erfc((epsilon / mu - mu / 2) / mpmath.sqrt(2)) / 2
        second = mpmath.exp(epsilon) * mpmath.erfc((epsilon / mu + mu / 2) / mpmath.sqrt(2)) / 2
        return mpmath.log(first - second)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_analytic_scale_is_enough_and_no_more(epsilon: float) -> None:
    for delta in DELTAS:
        scale = ss.calibrate(epsilon, delta, 2.0)
        ratio = mpmath.mpf(2) / mpmath.mpf(scale)
        asked = mpmath.log(mpmath.mpf(delta))
        assert exact_log_delta(epsilon, ratio) <= asked, (epsilon, delta)
        # The near miss: one part in a million less noise is too little.
        assert exact_log_delta(epsilon, ratio / (1 - mpmath.mpf("1e-6"))) > asked, (epsilon, delta)


@pytest.mark.parametrize(
    ("epsilon", "delta", "scale"),
    [
        (0.1, 1e-5, 61.4991322640),
        (1, 1e-5, 7.4612632696),
        (1, 1e-6, 8.4493577787),
        (1, 1e-8, 10.2006175751),
        (10, 1e-6, 1.0821736636),
        (35, 1e-4, 0.3623352571),
        (100, 1e-4, 0.1824380143),
    ],
)
def test_reference_values(epsilon: float, delta: float, scale: float) -> None:
    assert ss.calibrate(epsilon, delta, 2) == pytest.approx(scale, abs=6e-11, rel=2e-9)


@pytest.mark.parametrize(
    ("method", "delta", "limit"),
    [
        ("conservative", 1e-8, 10.30),
        ("conservative", 1e-6, 9.73),
        ("conservative", 1e-5, 9.39),
        ("conservative", 1e-4, 8.99),
        ("conservative", 1e-2, 7.91),
        ("classical", 1e-8, 9.37),
        ("classical", 1e-6, 8.78),
        ("classical", 1e-5, 8.42),
        ("classical", 1e-4, 7.99),
        ("classical", 1e-2, 6.77),
    ],
)
def test_textbook_rules_hold_up_limit_refused(method: str, delta: float, limit: float) -> None:
    """Textbook rules hold up to their limit and are refused beyond."""
    numerator = {"conservative": 2, "classical": 1.25}[method]
    inside = ss.calibrate(limit - 0.01, delta, 2.0, method)
    assert inside == pytest.approx(2 * math.sqrt(2 * math.log(numerator / delta)) / (limit - 0.01), rel=1e-13)
    assert exact_log_delta(limit - 0.01, mpmath.mpf(2) / inside) <= mpmath.log(delta)
    with pytest.raises(ss.InvalidCalibration):
        ss.calibrate(limit + 0.01, delta, 2.0, method)
    outside = 2 * math.sqrt(2 * math.log(numerator / delta)) / (limit + 0.01)
    assert exact_log_delta(limit + 0.01, mpmath.mpf(2) / outside) > mpmath.log(delta)


def test_refusal_says_rule_really_worth() -> None:
    """Refusal says what the rule is really worth."""
    with pytest.raises(ss.InvalidCalibration, match=r"epsilon 335.1 at delta 0.0001.*0.1824380143") as caught:
        ss.calibrate(100, 1e-4, 2.0, "conservative")
    assert isinstance(caught.value, ValueError)
    assert caught.value.true_delta == pytest.approx(1.0, abs=1e-3)
    assert caught.value.true_epsilon == pytest.approx(335, abs=0.5)
    assert caught.value.analytic_scale == ss.calibrate(100, 1e-4, 2.0)
    refused = 2 * math.sqrt(2 * math.log(2 / 1e-4)) / 100
    assert exact_log_delta(caught.value.true_epsilon, mpmath.mpf(2) / refused) <= mpmath.log(1e-4)


def test_scale_is_proportional_to_sensitivity() -> None:
    assert ss.calibrate(3, 1e-5, 10.0) == pytest.approx(5 * ss.calibrate(3, 1e-5, 2.0), rel=1e-15)


@pytest.mark.parametrize("mu", [1e-4, 0.03, 0.7, 4.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-2, 1.0, 20.0])
def test_profile_is_rounded_up_and_tight(epsilon: float, mu: float) -> None:
    value, error = calibration.compute_log_delta(epsilon, mu)
    exact = exact_log_delta(epsilon, mpmath.mpf(mu))
    assert exact <= value + error
    assert value + error - exact < 1e-6 * max(1, -exact)
    assert abs(value - exact) <= error


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_epsilon_and_delta_are_inverse(mu: float, delta: float) -> None:
    epsilon = calibration.find_epsilon(delta, mu)
    assert calibration.compute_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert calibration.compute_delta(epsilon * (1 - 1e-6), mu) > delta


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-9, 1e-12), (1e-9, 0.3), (1e6, 1e-5), (1e9, 1e-9), (1e-3, 5e-324), (5.0, 0.999)]
)
def test_far_corners_stay_on_the_safe_side(epsilon: float, delta: float) -> None:
    scale = ss.calibrate(epsilon, delta, 2.0)
    with mpmath.workdps(80):
        mu = mpmath.mpf(2) / mpmath.mpf(scale)
        low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2

        def mills(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.quad(lambda t: mpmath.exp(-x * t - t * t / 2), [0, 1 / (1 + abs(x)), 10, mpmath.inf])

        compute_log_delta = -low * low / 2 - mpmath.log(2 * mpmath.pi) / 2 + mpmath.log(mills(low) - mills(high))
        assert compute_log_delta <= mpmath.log(delta)


def test_profile_far_out_smallest_number_not() -> None:
    """Profile far out is the smallest number not an error."""
    assert calibration.compute_delta(1e15, 1.0) == math.ulp(0.0)
    assert calibration.compute_delta(1e300, 1e-10) == math.ulp(0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1e-6, 2), "'epsilon' parameter of calibrate must be a positive finite number. Got 0"),
        ((-1, 1e-6, 2), "Got -1"),
        ((math.nan, 1e-6, 2), "Got nan"),
        ((math.inf, 1e-6, 2), "Got inf"),
        (("1", 1e-6, 2), "Got '1'"),
        ((True, 1e-6, 2), "Got True"),
        ((1, 0, 2), "'delta' parameter of calibrate must be a number strictly between 0 and 1. Got 0"),
        ((1, 1, 2), "Got 1"),
        ((1, -1e-9, 2), "Got -1e-09"),
        ((1e10, 1e-6, 2), "between 1e-9 and 1e9. Got 10000000000.0"),
        ((1, 1e-6, 0), "'sensitivity'"),
        ((1, 1e-6, 1e300), "between 1e-100 and 1e100"),
        ((1, 1e-6, 2, "exact"), "one of 'analytic', 'conservative', 'classical'. Got 'exact'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ss.InvalidInput) as caught:
        ss.calibrate(*arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sensitivity", [1e-100, 1e100])
def test_ends_range_sensitivities_belong(sensitivity: float) -> None:
    """The ends of the range of sensitivities belong to it."""
    assert ss.calibrate(1, 1e-6, sensitivity) == pytest.approx(sensitivity * ss.calibrate(1, 1e-6, 1.0), rel=1e-12)


@pytest.mark.parametrize("sensitivity", [0.99e-100, 1.01e100])
def test_beyond_the_ends_is_an_error(sensitivity: float) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.calibrate(1, 1e-6, sensitivity)


def test_a_probability_is_at_most_one() -> None:
    assert calibration.compute_delta(0.0, 100.0) == 1.0


def test_scale_never_below_exact_quotient(rng: np.random.Generator) -> None:
    """The scale is never below the exact quotient."""
    for sensitivity, mu in rng.uniform(0.1, 10, (500, 2)):
        exact = Fraction(float(sensitivity)) / Fraction(float(mu))
        scale = Fraction(calibration._scale(float(sensitivity), float(mu)))
        # More than one rounding of the quotient and of a sensitivity's own formula, and no waste.
        assert exact * (1 + Fraction(2) ** -50) < scale < exact * (1 + Fraction(2) ** -46)


@pytest.mark.parametrize("error", [-1e-7, -1e-10, 1e-10, 1e-7])
def test_answer_safe_even_solver_stops_early(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is safe even where the solver stops early."""
    solve: Callable[..., float] = calibration.brentq

    def stop_early(*args: Any, **options: Any) -> float:
        root = solve(*args, **options)
        return root + (error if args[0] is not calibration.bound_excess else error * root)

    monkeypatch.setattr(calibration, "brentq", stop_early)
    mu = calibration.find_mu(1.0, 1e-6)
    assert exact_log_delta(1.0, mu) <= np.log(1e-6)
    assert calibration.compute_delta(calibration.find_epsilon(1e-6, 0.3), 0.3) <= 1e-6


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (1e-3, 0.1), (50.0, 1e-12)])
def test_no_noise_is_wasted(epsilon: float, delta: float) -> None:
    """The near miss: one part in 1e10 less noise, or less epsilon, does not keep the promise."""
    mu = calibration.find_mu(epsilon, delta)
    assert (
        calibration.bound_excess(epsilon, mu, np.log(delta))
        <= 0
        < calibration.bound_excess(epsilon, mu * (1 + 1e-10), np.log(delta))
    )
    least = calibration.find_epsilon(delta, mu)
    assert least == pytest.approx(epsilon, rel=1e-10)


@pytest.mark.parametrize("mu", [9e-6, 1e-6, 3e-8])
@pytest.mark.parametrize("multiple", [0.0, 0.5, 2.0, 10.0])
def test_small_ratios_are_rounded_up_and_tight(mu: float, multiple: float) -> None:
    epsilon = multiple * mu
    value, error = calibration.compute_log_delta(epsilon, mu)
    assert abs(value - exact_log_delta(epsilon, mu)) <= error < 1e-9


def test_the_best_membership_test() -> None:
    mu = 1.3
    thresholds = np.linspace(-8, 8 + mu, 100_001)
    false, true = norm.sf(thresholds), norm.sf(thresholds - mu)
    assert calibration.attack_advantage(mu) == pytest.approx(float((true - false).max()), abs=1e-7)
    assert calibration.attack_auc(mu) == pytest.approx(float(np.trapezoid(true[::-1], false[::-1])), abs=1e-7)


@pytest.mark.parametrize(
    ("mu", "low"),
    [
        (100.0, 1e3),
        (7.3, 1.0001e4),
        (11.7, 9.9e3),
        (13.1, 1.2345e4),
        (9.9, 3.3e4),
        (1e4, 1.0),
        (1e4, -7.9),
        (1e4, -8.1),
    ],
)
def test_large_exponents_are_within_their_error(mu: float, low: float) -> None:
    """Rounding of epsilon / mu, and of its square in the exponent, is part of the error; the bound is not vacuous."""
    epsilon = mu * (low + mu / 2)
    value, error = calibration.compute_log_delta(epsilon, mu)
    assert abs(value - exact_log_delta(epsilon, mu)) <= error
    assert 0 < error < 1e-14 * (1e3 + low * low + epsilon + 1000 * low / mu)


def test_from_where_delta_is_no_double() -> None:
    assert calibration.compute_log_delta(1e150, 1.0)[0] == pytest.approx(-5e299)
    assert calibration.compute_log_delta(2e150, 1.0) == (-math.inf, 0.0)


def test_what_does_not_move_costs_nothing() -> None:
    assert calibration.find_epsilon(1e-6, 0.0) == 0.0
    assert calibration.find_epsilon(0.999, 0.1) == 0.0


def test_errors_name_the_parameter() -> None:
    for name, arguments in {
        "epsilon": (0, 1e-6, 2.0),
        "delta": (1, 0, 2.0),
        "sensitivity": (1, 1e-6, 1e101),
        "method": (1, 1e-6, 2.0, "exact"),
    }.items():
        with pytest.raises(ss.InvalidInput, match=f"The '{name}' parameter of calibrate must be"):
            ss.calibrate(*arguments)  # type: ignore[arg-type]
