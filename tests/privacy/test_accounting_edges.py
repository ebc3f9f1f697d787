"""Composition, parallel use and groups at their edges."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import log_ndtr

import scoreshield as ss
from scoreshield.privacy.accounting import compose, group, parallel
from scoreshield.privacy.laws import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.losses import dominating_mu, log_moment, loss_law, pure_epsilon, residual
from scoreshield.privacy.profile import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)


def test_one_mechanism_many_times_in_parallel_is_that_mechanism() -> None:
    assert parallel([PureProfile(1.0), PureProfile(1.0)]) == PureProfile(1.0)
    assert parallel([GaussianProfile(0.3), GaussianProfile(0.7), GaussianProfile(0.5)]) == GaussianProfile(0.7)
    assert parallel([PureProfile(0.3), PureProfile(0.7), PureProfile(0.5)]) == PureProfile(0.7)


def test_unlike_mechanisms_in_parallel_are_the_worst_at_every_epsilon() -> None:
    parts = [LaplaceProfile(2.0), StepProfile(3.0, 0.2), CurveProfile((0.0, 1.0), (0.3, 0.0))]
    both = parallel(parts)
    for epsilon in np.linspace(0, 3.5, 200):
        worst = max(part.delta_at(float(epsilon)) for part in parts)
        assert worst <= both.delta_at(float(epsilon)) <= worst + 2e-5
    assert both.delta_at(3.0) == 0.0
    assert both.epsilon_at(0.0) == pytest.approx(3.0, rel=1e-9)


def test_groups() -> None:
    assert group(LaplaceProfile(0.5), 1) == LaplaceProfile(0.5)
    assert group(LaplaceProfile(0.5), 3) == PureProfile(1.5)
    assert group(GaussianProfile(0.5), 3) == GaussianProfile(1.5)
    with pytest.raises(ss.InvalidInput):
        group(CurveProfile((0.0, 1.0), (0.3, 0.1)), 2)
    for size in (0, -1, 1.5, True):
        with pytest.raises(ss.InvalidInput):
            group(PureProfile(1.0), size)  # type: ignore[arg-type]


@pytest.mark.parametrize("nothing", [[], (), iter(())])
def test_nothing_is_an_error(nothing: object) -> None:
    for rule in (compose, parallel):
        with pytest.raises(ss.InvalidInput):
            rule(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("item", [None, 1.0, "profile", object()])
def test_what_is_no_profile_is_an_error(item: object) -> None:
    for call in (lambda: compose([item]), lambda: parallel([item]), lambda: group(item, 2)):
        with pytest.raises(ss.InvalidInput):
            call()


def test_a_sum_of_pure_epsilons_is_rounded_up() -> None:
    """0.1 + 0.2 as floats is above the exact sum of the two floats; 0.1 x 3 in exact terms is not a float."""
    for epsilons in ([0.1] * 3, [0.1, 0.2, 0.3], [1 / 3] * 7, [1e-9, 1e9], [0.5, 0.25]):
        found = compose([PureProfile(epsilon) for epsilon in epsilons], method="basic")
        exact = sum(map(Fraction, epsilons))
        assert isinstance(found, PureProfile)
        assert Fraction(math.nextafter(found.epsilon, 0)) < exact <= Fraction(found.epsilon)


def test_gaussians_add_in_squares_rounded_up() -> None:
    found = compose([GaussianProfile(0.3), GaussianProfile(0.4), GaussianProfile(1.2)])
    assert isinstance(found, GaussianProfile)
    assert 1.3 < found.mu < 1.3 * (1 + 1e-14)


def test_where_a_profile_ends() -> None:
    open_end = CurveProfile((0.0, 1.0, 2.0), (0.3, 0.1, 0.05))
    closed = CurveProfile((0.0, 1.0, 2.0, 3.0), (0.3, 0.1, 0.0, 0.0))
    assert residual(open_end) == 0.05
    assert residual(closed) == residual(PureProfile(1.0)) == 0.0
    assert pure_epsilon(open_end) == math.inf
    assert pure_epsilon(closed) == 2.0
    assert pure_epsilon(LaplaceProfile(1.5)) == 1.5
    assert pure_epsilon(GaussianProfile(1.5)) == math.inf


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.999, 1.0, 1.001, 5.0, 40.0, 300.0])
def test_a_gaussian_that_covers_a_pure_promise_meets_it_at_its_corner(epsilon: float) -> None:
    """Phi(-mu/2) = 1 / (1 + e^epsilon): the corner of randomised response lies on the Gaussian's curve."""
    mu = dominating_mu(PureProfile(epsilon))
    assert log_ndtr(-mu / 2) == pytest.approx(-np.logaddexp(0, epsilon), rel=1e-9)
    assert log_ndtr(-mu / 2) <= -np.logaddexp(0, epsilon)
    for share in (0.0, 0.3, 0.9):
        assert GaussianProfile(mu).delta_at(share * epsilon) >= PureProfile(epsilon).delta_at(share * epsilon) * (
            1 - 1e-9
        )
    assert dominating_mu(LaplaceProfile(epsilon)) == mu
    assert dominating_mu(GaussianProfile(epsilon)) == epsilon
    assert dominating_mu(CurveProfile((0.0, 1.0), (0.3, 0.1))) == math.inf


def moment(losses: list[float], masses: list[float], order: float) -> float:
    """ln E[e^((order - 1) L)] of a discrete law, as written."""
    return math.log(math.fsum(mass * math.exp((order - 1) * loss) for loss, mass in zip(losses, masses, strict=True)))


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 10.0, 60.0])
@pytest.mark.parametrize("epsilon", [0.02, 0.3, 1.0, 4.0])
def test_moments_of_discrete_losses(order: float, epsilon: float) -> None:
    q = math.exp(-epsilon)
    top = 1 / (1 + q)
    assert log_moment(PureProfile(epsilon), order) == pytest.approx(
        moment([epsilon, -epsilon], [top, top * q], order), rel=1e-6, abs=1e-12
    )
    mass = 0.4
    step = moment([epsilon, -epsilon, 0.0], [mass, mass * q, 1 - mass * (1 + q)], order)
    assert log_moment(StepProfile(epsilon, mass), order) == pytest.approx(step, rel=1e-6, abs=1e-12)
    curve = CurveProfile((0.0, epsilon), (mass * (1 - q), 0.0))
    assert log_moment(curve, order) == pytest.approx(step, rel=1e-6, abs=4e-11)
    assert log_moment(GaussianProfile(epsilon), order) == pytest.approx(order * (order - 1) * epsilon**2 / 2, rel=1e-9)


@pytest.mark.parametrize("order", [1.01, 1.5, 3.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.02, 0.5, 3.0])
def test_moments_of_laplace_noise_by_integration(order: float, epsilon: float) -> None:
    x = np.linspace(-60, 60 + epsilon, 2_000_001)
    both = 0.5 * np.exp((order - 1) * np.abs(x - epsilon) - order * np.abs(x))  # p^order q^(1 - order)
    exact = math.log(float(np.trapezoid(both, x)))
    assert log_moment(LaplaceProfile(epsilon), order) == pytest.approx(exact, rel=1e-4, abs=1e-8)
    if epsilon >= 0.5:
        assert log_moment(LaplaceProfile(epsilon), order) >= exact - 1e-8


@pytest.mark.parametrize("order", [1.5, 2.0, 30.0])
def test_tiny_budgets_have_the_moment_of_randomised_response_from_above(order: float) -> None:
    for epsilon in (1e-9, 1e-4, 0.009):
        found = log_moment(PureProfile(epsilon), order)
        assert found == pytest.approx(order * (order - 1) * epsilon**2 / 2, rel=0.05)
        for smaller in (LaplaceProfile(epsilon), StepProfile(epsilon, 0.3)):
            assert log_moment(smaller, order) == found


def test_moments_only_of_known_profiles() -> None:
    with pytest.raises(ss.InvalidInput):
        log_moment(None, 2.0)  # type: ignore[arg-type]


def test_a_curve_without_a_second_knot_has_a_moment_of_its_mass_alone() -> None:
    assert log_moment(CurveProfile((0.0,), (0.1,)), 3.0) == pytest.approx(3 * math.log(1.1))
    assert log_moment(CurveProfile((0.0, 701.0), (0.5, 0.1)), 3.0) == math.inf
    assert log_moment(CurveProfile((0.0, 700.0), (0.5, 0.1)), 1.5) < math.inf


@pytest.mark.parametrize(
    "profile", [CurveProfile((0.0, 0.5, 1.5, 2.0), (0.4, 0.25, 0.05, 0.01)), CurveProfile((0.0, 1.0), (0.3, 0.0))]
)
def test_the_law_of_a_curve_has_the_curve_as_its_profile(profile: CurveProfile) -> None:
    """delta(eps) = E (1 - e^(eps - L))_+ plus what is infinite, at every epsilon; and the masses sum to one."""
    law = loss_law(np.array(profile.losses), np.array(profile.deltas))
    total = law.centre + law.infinite + float(np.sum(law.masses * (1 + np.exp(-law.losses))))
    assert total == pytest.approx(1.0, abs=1e-10)
    for epsilon in np.linspace(0, 3, 61):
        delta = law.infinite + float(np.sum(law.masses * np.maximum(0, -np.expm1(epsilon - law.losses))))
        assert delta == pytest.approx(profile.delta_at(float(epsilon)), abs=1e-9)


def test_every_way_of_composing_agrees_where_it_can() -> None:
    parts: list[Profile] = [PureProfile(0.2)] * 4
    pld = compose(parts, method="pld")
    # The binomial law of four coins, in closed form.
    keep = 1 / (1 + math.exp(-0.2))
    for epsilon in (0.0, 0.1, 0.3, 0.5, 0.7):
        exact = sum(
            math.comb(4, k) * keep ** (4 - k) * (1 - keep) ** k * max(0.0, -math.expm1(epsilon - 0.2 * (4 - 2 * k)))
            for k in range(5)
        )
        assert exact - 1e-12 <= pld.delta_at(epsilon) <= exact + 1e-4
    assert pld.epsilon_at(0.0) == pytest.approx(0.8, rel=1e-9)
    assert compose(parts, method="basic") == PureProfile(0.8)
    assert compose([PureProfile(0.2)]) == PureProfile(0.2)
    with pytest.raises(ss.InvalidInput):
        compose([GaussianProfile(1.0)], method="basic")
    with pytest.raises(ss.InvalidInput):
        compose(5)  # type: ignore[arg-type]


def test_groups_and_quotients_are_rounded_up(rng: np.random.Generator) -> None:
    """In fractions: g times what one record pays, and what Laplace noise of a scale pays for a sensitivity."""
    for value in rng.uniform(1e-3, 20, 200).tolist():
        exact = 3 * Fraction(value)
        pure, gaussian = ss.group(PureProfile(value), 3), ss.group(GaussianProfile(value), 3)
        assert exact <= Fraction(pure.epsilon_at(0.0)) <= exact * (1 + Fraction(1, 2**52))
        assert isinstance(gaussian, GaussianProfile)
        assert exact <= Fraction(gaussian.mu) <= exact * (1 + Fraction(1, 2**52))
        law = LaplaceNoise.calibrated(value, 2.0)
        assert Fraction(law.profile(2.0).epsilon_at(0.0)) >= Fraction(2) / Fraction(law.b)
        stairs = StaircaseNoise.calibrated(value, 2.0)
        assert Fraction(stairs.profile(6.0).epsilon_at(0.0)) >= exact


def test_losses_without_bound_add_up_in_a_composition() -> None:
    """No epsilon helps against the event that one of sixty mechanisms tells everything."""
    rest = 0.01
    one = CurveProfile((0.0, 1.0), (rest + (1 - rest) * 0.2 * math.tanh(0.5), rest))
    composed = compose([one] * 60)
    for epsilon in (0.0, 1.0, 10.0, 60.0, 600.0):
        assert composed.delta_at(epsilon) >= 1 - (1 - rest) ** 60
