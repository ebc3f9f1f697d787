"""Composition, parallel use and groups at their edges."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr

import scoreshield as ss
from scoreshield.privacy import composition, losses
from scoreshield.privacy.composition import _Convolution, _Part, compose, group, parallel
from scoreshield.privacy.losses import (
    LossLaw,
    compute_log_moment,
    compute_residual,
    find_dominating_mu,
    find_pure_epsilon,
    make_loss_law,
)
from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)


def test_mechanism_many_times_parallel_mechanism() -> None:
    """One mechanism many times in parallel is that mechanism."""
    assert parallel([PureProfile(1.0), PureProfile(1.0)]) == PureProfile(1.0)
    assert parallel([GaussianProfile(0.3), GaussianProfile(0.7), GaussianProfile(0.5)]) == GaussianProfile(0.7)
    assert parallel([PureProfile(0.3), PureProfile(0.7), PureProfile(0.5)]) == PureProfile(0.7)


def test_unlike_mechanisms_parallel_worst_every() -> None:
    """Unlike mechanisms in parallel are the worst at every epsilon."""
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
    assert compute_residual(open_end) == 0.05
    assert compute_residual(closed) == compute_residual(PureProfile(1.0)) == 0.0
    assert find_pure_epsilon(open_end) == math.inf
    assert find_pure_epsilon(closed) == 2.0
    assert find_pure_epsilon(LaplaceProfile(1.5)) == 1.5
    assert find_pure_epsilon(GaussianProfile(1.5)) == math.inf


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.999, 1.0, 1.001, 5.0, 40.0, 300.0])
def test_gaussian_covers_pure_promise_meets(epsilon: float) -> None:
    """Phi(-mu/2) = 1 / (1 + e^epsilon): the corner of randomised response lies on the Gaussian's curve."""
    mu = find_dominating_mu(PureProfile(epsilon))
    assert log_ndtr(-mu / 2) == pytest.approx(-np.logaddexp(0, epsilon), rel=1e-9)
    assert log_ndtr(-mu / 2) <= -np.logaddexp(0, epsilon)
    for share in (0.0, 0.3, 0.9):
        assert GaussianProfile(mu).delta_at(share * epsilon) >= PureProfile(epsilon).delta_at(share * epsilon) * (
            1 - 1e-9
        )
    assert find_dominating_mu(LaplaceProfile(epsilon)) == mu
    assert find_dominating_mu(GaussianProfile(epsilon)) == epsilon
    assert find_dominating_mu(CurveProfile((0.0, 1.0), (0.3, 0.1))) == math.inf


def moment(losses: list[float], masses: list[float], order: float) -> float:
    """ln E[e^((order - 1) L)] of a discrete law, as written."""
    return math.log(math.fsum(mass * math.exp((order - 1) * loss) for loss, mass in zip(losses, masses, strict=True)))


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 10.0, 60.0])
@pytest.mark.parametrize("epsilon", [0.02, 0.3, 1.0, 4.0])
def test_moments_of_discrete_losses(order: float, epsilon: float) -> None:
    q = math.exp(-epsilon)
    top = 1 / (1 + q)
    assert compute_log_moment(PureProfile(epsilon), order) == pytest.approx(
        moment([epsilon, -epsilon], [top, top * q], order), rel=1e-6, abs=1e-12
    )
    mass = 0.4
    step = moment([epsilon, -epsilon, 0.0], [mass, mass * q, 1 - mass * (1 + q)], order)
    assert compute_log_moment(StepProfile(epsilon, mass), order) == pytest.approx(step, rel=1e-6, abs=1e-12)
    curve = CurveProfile((0.0, epsilon), (mass * (1 - q), 0.0))
    assert compute_log_moment(curve, order) == pytest.approx(step, rel=1e-6, abs=4e-11)
    assert compute_log_moment(GaussianProfile(epsilon), order) == pytest.approx(
        order * (order - 1) * epsilon**2 / 2, rel=1e-9
    )


@pytest.mark.parametrize("order", [1.01, 1.5, 3.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.02, 0.5, 3.0])
def test_moments_of_laplace_noise_by_integration(order: float, epsilon: float) -> None:
    x = np.linspace(-60, 60 + epsilon, 2_000_001)
    both = 0.5 * np.exp((order - 1) * np.abs(x - epsilon) - order * np.abs(x))  # p^order q^(1 - order)
    exact = math.log(float(np.trapezoid(both, x)))
    assert compute_log_moment(LaplaceProfile(epsilon), order) == pytest.approx(exact, rel=1e-4, abs=1e-8)
    if epsilon >= 0.5:
        assert compute_log_moment(LaplaceProfile(epsilon), order) >= exact - 1e-8


@pytest.mark.parametrize("order", [1.5, 2.0, 30.0])
def test_tiny_budgets_moment_randomised_response(order: float) -> None:
    """Tiny budgets have the moment of randomised response from above."""
    for epsilon in (1e-9, 1e-4, 0.009):
        found = compute_log_moment(PureProfile(epsilon), order)
        assert found == pytest.approx(order * (order - 1) * epsilon**2 / 2, rel=0.05)
        for smaller in (LaplaceProfile(epsilon), StepProfile(epsilon, 0.3)):
            assert compute_log_moment(smaller, order) == found


def test_moments_only_of_known_profiles() -> None:
    with pytest.raises(ss.InvalidInput):
        compute_log_moment(None, 2.0)  # type: ignore[arg-type]


def test_curve_without_second_knot_moment_mass() -> None:
    """A curve without a second knot has a moment of its mass alone."""
    assert compute_log_moment(CurveProfile((0.0,), (0.1,)), 3.0) == pytest.approx(3 * math.log(1.1))
    assert compute_log_moment(CurveProfile((0.0, 701.0), (0.5, 0.1)), 3.0) == math.inf
    assert compute_log_moment(CurveProfile((0.0, 700.0), (0.5, 0.1)), 1.5) < math.inf


@pytest.mark.parametrize(
    "profile", [CurveProfile((0.0, 0.5, 1.5, 2.0), (0.4, 0.25, 0.05, 0.01)), CurveProfile((0.0, 1.0), (0.3, 0.0))]
)
def test_law_curve_curve_profile(profile: CurveProfile) -> None:
    """delta(eps) = E (1 - e^(eps - L))_+ plus what is infinite, at every epsilon; and the masses sum to one."""
    law = make_loss_law(np.array(profile.losses), np.array(profile.deltas))
    total = law.centre + law.infinite + float(np.sum(law.masses * (1 + np.exp(-law.losses))))
    assert total == pytest.approx(1.0, abs=1e-10)
    for epsilon in np.linspace(0, 3, 61):
        delta = law.infinite + float(np.sum(law.masses * np.maximum(0, -np.expm1(epsilon - law.losses))))
        assert delta == pytest.approx(profile.delta_at(float(epsilon)), abs=1e-9)


def test_every_way_composing_agrees() -> None:
    """Every way of composing agrees where it can."""
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
        law = LaplaceNoise.calibrate(value, 2.0)
        assert Fraction(law.profile(2.0).epsilon_at(0.0)) >= Fraction(2) / Fraction(law.b)
        stairs = StaircaseNoise.calibrate(value, 2.0)
        assert Fraction(stairs.profile(6.0).epsilon_at(0.0)) >= exact


def test_losses_without_bound_add_up_composition() -> None:
    """No epsilon helps against the event that one of sixty mechanisms tells everything."""
    rest = 0.01
    one = CurveProfile((0.0, 1.0), (rest + (1 - rest) * 0.2 * math.tanh(0.5), rest))
    composed = compose([one] * 60)
    for epsilon in (0.0, 1.0, 10.0, 60.0, 600.0):
        assert composed.delta_at(epsilon) >= 1 - (1 - rest) ** 60


def test_the_hull() -> None:
    """In e^loss: a rise is cut off, a point above a chord is left out, and so is one on it."""
    places = np.log([1.0, 2.0, 3.0, 4.0, 5.0])
    found = composition._make_falling_curve(places, np.array([0.8, 0.9, 0.3, 0.2, 0.2]))
    assert found == CurveProfile(tuple(places[[0, 2, 3, 4]].tolist()), (0.8, 0.3, 0.2, 0.2))
    found = composition._make_falling_curve(places, np.array([0.5, 0.0, 0.0, 0.0, 0.0]))
    assert found == CurveProfile(tuple(places[[0, 1, 4]].tolist()), (0.5, 0.0, 0.0))
    for height, kept in ((0.5, [0, 4]), (0.4, [0, 2, 4])):  # the chord is at 0.45
        found = composition._make_falling_curve(places[::2], np.array([0.8, height, 0.1]))
        assert found.losses == tuple(places[kept].tolist())
    found = composition._make_falling_curve(np.array([0.0, 300.0, 600.0]), np.array([1.0, 0.5, 0.1]))
    assert found == CurveProfile((0.0, 300.0, 600.0), (1.0, 0.5, 0.1))


def test_both_sides_of_a_loss() -> None:
    law = LossLaw(np.array([0.5, 1.0]), np.array([0.0, 0.3]), 0.2, 0.1)
    assert composition._mirror_losses(law) == {0: 0.2, 2: 0.3, -2: pytest.approx(0.3 * math.exp(-1.0), rel=1e-15)}


def test_where_a_grid_ends() -> None:
    assert composition._find_reach(CurveProfile((0.0, 1.0, 2.0), (0.3, 0.0, 0.0))) == 2.0
    assert composition._find_reach(LaplaceProfile(1.5)) == 1.5
    assert composition._find_reach(GaussianProfile(0.5)) == GaussianProfile(0.5).epsilon_at(1e-16)


def test_roots_are_rounded_up() -> None:
    """In fractions, over so many cases that a smaller margin would fall short in some."""
    rng = np.random.default_rng(8)
    for _ in range(500):
        drawn = zip(rng.random(3), rng.integers(1, 9, 3), strict=True)
        counts = Counter({GaussianProfile(float(mu)): int(number) for mu, number in drawn})
        exact = sum(n * Fraction(profile.mu) ** 2 for profile, n in counts.items())  # type: ignore[attr-defined]
        found = Fraction(composition._root_of_squares(counts))  # type: ignore[arg-type]
        assert exact <= found**2 <= exact * (1 + Fraction(1, 2**48))


OPEN = CurveProfile((0.0, 1.0), (0.95, 0.9))


@pytest.mark.parametrize(
    ("counts", "step"),
    [
        ({OPEN: 1_000_000}, 3 * 1000 / 400_000),
        ({OPEN: 100, CurveProfile((0.0, 4.0), (0.95, 0.9)): 100}, 0.001),
        ({OPEN: 250_000, CurveProfile((0.0, 3.0), (0.95, 0.9)): 250_000}, 3 * math.sqrt(2_500_000) / 400_000),
        ({CurveProfile((0.0,), (0.9,)): 100}, 1.0),
        ({CurveProfile((0.0, 650.0), (0.95, 0.9)): 100}, 0.6),
    ],
)
def test_the_step_of_a_grid(counts: dict[Profile, int], step: float) -> None:
    """A thousandth of the shortest reach, or as much as keeps the convolution small. These need no convolution."""
    made = _Convolution(None, Counter(counts))  # type: ignore[arg-type]
    assert made._step == pytest.approx(step, rel=1e-12)
    assert made._hopeless
    assert made._find_middle() == math.inf
    assert made._deltas(np.zeros(3)).tolist() == [1.0] * 3


def bare(counts: dict[Profile, int], **fields: Any) -> _Convolution:
    """A convolution of which only these fields are set."""
    made = _Convolution.__new__(_Convolution)
    for name, value in {"_counts": Counter(counts), "_hopeless": False, **fields}.items():
        setattr(made, name, value)
    return made


def test_how_likely_a_finite_loss_is() -> None:
    once, twice = CurveProfile((0.0, 1.0), (0.5, 0.1)), CurveProfile((0.0, 2.0), (0.5, 0.2))
    made = bare({once: 1, twice: 2})
    assert made._log_finite({once: 1.0, twice: 2.0}) == pytest.approx(math.log(0.9 * 0.8**2), rel=1e-12)
    never = CurveProfile((0.0, 1.0), (1.0, 1.0))
    assert bare({once: 1, never: 1})._log_finite({once: 1.0, never: 1.0}) == -math.inf
    assert made._moment(3.0) == pytest.approx(
        compute_log_moment(once, 3.0) + 2 * compute_log_moment(twice, 3.0), rel=1e-12
    )


@pytest.mark.parametrize(("profile", "reach"), [(PureProfile(1.0), 1.0), (GaussianProfile(0.2), None)])
def test_a_profile_on_the_grid(profile: Profile, reach: float | None) -> None:
    """The grid goes up to where the profile ends; what lies beyond counts as infinite."""
    seen: list[Any] = []
    made = bare({}, _step=0.25, _pld_pmf=SimpleNamespace(create_pmf=lambda *given: seen.append(given) or "law"))
    part = made._law(profile)
    ((masses, step, infinite, pessimistic),) = seen
    last = math.ceil((profile.epsilon_at(1e-16) if reach is None else reach) / 0.25)
    grid = 0.25 * np.arange(last + 1)
    law = make_loss_law(grid, np.array([profile.delta_at(float(loss)) for loss in grid]))
    assert masses == composition._mirror_losses(law)
    assert (part.pmf, step, infinite, pessimistic) == ("law", 0.25, profile.delta_at(0.25 * last), True)
    assert part.norm == pytest.approx(math.sqrt(sum(mass**2 for mass in masses.values())), rel=1e-14)
    assert part.slack == 2.0**-50  # two sums of at most 1, each rounded


def test_a_reach_is_cut_off() -> None:
    seen: list[Any] = []
    made = bare({}, _step=100.0, _pld_pmf=SimpleNamespace(create_pmf=lambda *given: seen.append(given)))
    made._law(PureProfile(10_000.0))
    assert max(seen[0][0], default=0) <= 6  # 600 in steps of 100
    assert seen[0][2] == 1.0


@pytest.mark.parametrize("size", [10, 100])
def test_the_error_of_a_convolution(size: int) -> None:
    """24 u log2(N) sqrt(N) of the larger 2-norm, beside the errors so far; N is twice the longest of the three laws."""
    seen: list[Any] = []

    def together(*given: Any) -> Any:
        seen.append(given)
        return SimpleNamespace(size=size)

    one, other = _Part(SimpleNamespace(size=7), 0.5, 1e-14), _Part(SimpleNamespace(size=13), 0.25, 3e-14)
    part = bare({}, _pld_pmf=SimpleNamespace(compose_pmfs=together))._convolve(one, other)
    assert seen == [(one.pmf, other.pmf, 1e-16)]
    points = 2 * max(20, size)
    error = 24 * 2.0**-53 * math.log2(points) * math.sqrt(points) * 0.5
    assert part.norm == 0.25
    assert part.slack == pytest.approx(4e-14 + error, rel=1e-9, abs=0)


@pytest.mark.parametrize("number", range(1, 9))
def test_powers_of_a_law(number: int) -> None:
    made = bare({}, _convolve=lambda one, other: _Part(one.pmf + other.pmf, 0.0, 0.0))
    assert made._convolve_times(_Part(1, 0.0, 0.0), number).pmf == number


def test_what_a_convolution_resolves() -> None:
    seen: list[Any] = []

    class Whole:
        infinite = 1e-3

        def get_delta_for_epsilon(self, losses: Any) -> list[float]:
            return [self.infinite if math.isinf(loss) else 0.25 for loss in losses]

        def get_epsilon_for_delta(self, delta: float) -> float:
            seen.append(delta)
            return 7.0

    made = bare({}, _whole=Whole(), _slack=1e-4)
    assert made._find_middle() == 7.0
    Whole.infinite = 0.4
    assert made._find_middle() == 7.0
    assert seen == [pytest.approx(2.2e-3), 0.5]
    assert made._deltas(np.zeros(2)) == pytest.approx([0.25 * (1 + 1e-9) + 1e-4] * 2, rel=1e-14)


class Renyi:
    """The best Renyi bound on delta, written from docs/accounting.md."""

    def __init__(self, counts: dict[Profile, int]) -> None:
        orders = 1 + np.geomspace(1e-2, 1e5, 141)
        moments = np.array([sum(n * compute_log_moment(profile, a) for profile, n in counts.items()) for a in orders])
        self._less = orders - 1
        self._logs = moments - np.log(orders) + self._less * np.log1p(-1 / orders)

    def at(self, loss: float) -> float:
        return math.exp(min(self._logs - self._less * loss))

    def reaches(self, delta: float) -> float:
        return float(min((self._logs - math.log(delta)) / self._less))


def test_the_tail_of_a_composition() -> None:
    """Where the convolution gives no more than its own error, the best Renyi order counts, down to 1e-40."""
    bound, found = Renyi({GaussianProfile(0.5): 2}), compose([GaussianProfile(0.5)] * 2, method="pld")
    assert isinstance(found, CurveProfile)
    assert found.losses[-1] == pytest.approx(bound.reaches(1e-40), rel=1e-9)
    assert found.deltas[-1] == pytest.approx(1e-40, rel=1e-6, abs=0)
    for loss in found.losses[-20:-1]:
        assert found.delta_at(loss) == pytest.approx(bound.at(loss), rel=1e-8, abs=0)


def test_mass_without_bound_part_every_delta() -> None:
    """Nothing pays for it, so a curve ends where the convolution does, and its mass is added to each Renyi bound."""
    held = CurveProfile((0.0, 1.0), (0.3, 1e-3))
    made = bare({held: 3}, _find_middle=lambda: 2.0, _deltas=lambda losses: np.full(len(losses), 0.7))
    found, bound = made.curve(math.inf), Renyi({held: 3})
    assert found.losses[-1] == 2.0
    for loss, delta in zip(found.losses, found.deltas, strict=True):
        wanted = min(0.7, bound.at(loss) * (1 + 1e-9) + 3e-3)
        assert wanted * (1 - 1e-12) <= delta <= wanted * (1 + 1e-12)


@pytest.mark.parametrize("pure", [1.5, 600.0, 601.0])
def test_a_composition_ends_at_its_pure_epsilon(pure: float) -> None:
    """Up to 600; beyond that a curve does not speak of it."""
    parts: dict[Profile, int] = {PureProfile(0.5): 3}
    found = bare(parts, _find_middle=lambda: 1.0, _deltas=lambda losses: np.full(len(losses), 0.7)).curve(pure)
    bound = Renyi(parts)
    assert found.losses[-1] == (pytest.approx(bound.reaches(1e-40), rel=1e-9) if pure > 600 else pure)
    assert (found.deltas[-1] == 0.0) == (pure <= 600)
    assert found.deltas[0] == pytest.approx(min(0.7, bound.at(0.0)), rel=1e-8)
    assert found.delta_at(1.0) == pytest.approx(min(0.7, bound.at(1.0)), rel=1e-3)


def test_no_curve_goes_beyond_its_end() -> None:
    made = bare({GaussianProfile(40.0): 1}, _find_middle=lambda: 1.0, _deltas=lambda losses: np.full(len(losses), 0.7))
    assert Renyi({GaussianProfile(40.0): 1}).reaches(1e-40) > 1000
    assert made.curve(math.inf).losses[-1] == 600.0


def test_no_composition_is_certain_beyond_one() -> None:
    made = bare({PureProfile(50.0): 3}, _find_middle=lambda: 1.0, _deltas=lambda losses: np.full(len(losses), 3.0))
    assert made.curve(math.inf).deltas[0] == 1.0


def test_the_law_of_a_curve_is_rounded_up() -> None:
    """The mass at knot i is x_i (s_i - s_(i-1)), in 50 digits, and no mass is missing."""
    for knots, deltas in (((0.0, 0.5, 1.5, 2.0), (0.4, 0.25, 0.05, 0.01)), ((0.0, 1.0), (0.1, 0.0))):
        law = make_loss_law(np.array(knots), np.array(deltas))
        with mpmath.workdps(50):
            xs, ys = [mpmath.exp(mpmath.mpf(knot)) for knot in knots], [mpmath.mpf(delta) for delta in deltas]
            slopes = [(ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]) for i in range(len(xs) - 1)] + [mpmath.mpf(0)]
            masses = [xs[i] * (slopes[i] - slopes[i - 1]) for i in range(1, len(xs))]
            centre = 1 - ys[-1] - sum(mass * (1 + 1 / x) for mass, x in zip(masses, xs[1:], strict=True))
            for found, exact in [*zip(law.masses, masses, strict=True), (law.centre, centre)]:
                assert exact < mpmath.mpf(float(found)) < exact * (1 + mpmath.mpf("2e-11"))
        assert law.infinite == deltas[-1]
        assert law.losses.tolist() == list(knots[1:])


@pytest.mark.parametrize("x", [0.0, 1e-9, 0.1, 5.0, 19.9, 20.0, 25.0, 300.0])
def test_the_logarithm_of_cosh(x: float) -> None:
    with mpmath.workdps(40):
        assert losses._log_cosh(x) == pytest.approx(float(mpmath.log(mpmath.cosh(x))), rel=1e-13, abs=0)


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 10.0, 40.0])
def test_moments_are_rounded_up_by_little(order: float) -> None:
    """Against 40 digits: laws of two and three losses, and the density of Laplace noise in closed form."""
    with mpmath.workdps(40):
        a = mpmath.mpf(order)
        for epsilon in (0.01, 0.02, 0.3, 1.0, 4.0):
            e = mpmath.mpf(epsilon)
            q, mass = mpmath.exp(-e), mpmath.mpf(0.375)
            up, down = mpmath.exp((a - 1) * e), mpmath.exp(-(a - 1) * e)
            laplace = (a * up + (a - 1) * mpmath.exp(-a * e)) / (2 * a - 1)
            cases = [
                (PureProfile(epsilon), (up + q * down) / (1 + q)),
                (StepProfile(epsilon, 0.375), mass * up + mass * q * down + 1 - mass * (1 + q)),
                (LaplaceProfile(epsilon), laplace),
            ]
            for profile, moment in cases:
                exact = mpmath.log(moment)
                found = mpmath.mpf(compute_log_moment(profile, order))
                assert exact <= found <= exact * (1 + mpmath.mpf("3e-11")) + mpmath.mpf("2e-15")
            curve, left = CurveProfile((0.0, epsilon), (float(mass * (1 - q)) + 1e-3, 1e-3)), mpmath.mpf(1e-3)
            top = (curve.deltas[0] - left) / (1 - q)  # the mass at epsilon of a curve that ends above 0
            exact = mpmath.log(top * up + top * q * down + 1 - left - top * (1 + q) + a * left * up)
            found = mpmath.mpf(compute_log_moment(curve, order))
            assert exact <= found <= exact * (1 + mpmath.mpf("3e-11")) + mpmath.mpf("5e-11")


def test_from_where_closed_forms_count() -> None:
    pure = compute_log_moment(PureProfile(0.01), 2.0)
    for epsilon, profile in ((0.01, LaplaceProfile(0.01)), (0.01, StepProfile(0.01, 0.3))):
        assert compute_log_moment(profile, 2.0) < pure * (1 - 1e-4), epsilon
    for profile in (LaplaceProfile(0.00999), StepProfile(0.00999, 0.3)):
        assert compute_log_moment(profile, 2.0) == compute_log_moment(PureProfile(0.00999), 2.0)


def test_errors_name_the_item_and_the_rule() -> None:
    for name, call in (("compose", compose), ("parallel", parallel), ("group", lambda items: group(items[0], 2))):
        with pytest.raises(ss.InvalidInput, match=f"The 'item' parameter of {name} must be"):
            call([5])  # type: ignore[operator]
    with pytest.raises(ss.InvalidInput, match="The 'items' parameter of compose must be"):
        compose(5)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidInput, match="The 'records' parameter of group must be"):
        group(PureProfile(1.0), 0)
    with pytest.raises(ss.InvalidInput, match="The 'method' parameter of compose must be"):
        compose([PureProfile(1.0)], method="exact")  # type: ignore[arg-type]


def test_a_single_profile_by_convolution() -> None:
    """With ``auto`` one profile is itself; asked for by name, the convolution is made."""
    assert compose([LaplaceProfile(0.5)]) == LaplaceProfile(0.5)
    found = compose([LaplaceProfile(0.5)], method="pld")
    assert isinstance(found, CurveProfile)
    assert found.delta_at(0.2) == pytest.approx(LaplaceProfile(0.5).delta_at(0.2), rel=1e-3)
    assert isinstance(compose([GaussianProfile(0.5)] * 2, method="pld"), CurveProfile)
