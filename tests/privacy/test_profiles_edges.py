"""Profiles and laws at their edges: rounding up in exact terms, extreme budgets, and the types of their arguments."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import InvalidInput
from scoreshield.privacy.levels.tables import randomised_response
from scoreshield.privacy.losses import find_pure_epsilon
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.noise.laws import law_from_dict
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
    profile_from_dict,
    round_up,
)
from scoreshield.privacy.sampling import discrete

LAWS = [GaussianNoise(0.7), LaplaceNoise(0.3), StaircaseNoise.calibrate(2.0, 1.5), StaircaseNoise(1.0, 2.0, 0.3)]
PROFILES: list[Profile] = [
    GaussianProfile(0.7),
    PureProfile(2.0),
    StepProfile(2.0, 0.6),
    LaplaceProfile(2.0),
    CurveProfile((0.0, 1.0, 2.0), (0.6, 0.3, 0.0)),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("method", ["cdf", "sf", "quantile"])
def test_laws_compute_double_precision_whatever(law: GaussianNoise, method: str) -> None:
    """Laws compute in double precision whatever they get."""
    single = np.array([0.1, 0.3, 0.7, 0.9], dtype=np.float32)
    found = getattr(law, method)(single)
    assert found.dtype == np.float64
    assert np.array_equal(found, getattr(law, method)(single.astype(np.float64)))
    assert np.array_equal(getattr(law, method)([0.25, 0.75]), getattr(law, method)(np.array([0.25, 0.75])))
    if method != "quantile":
        whole = np.array([0, 1, 3], dtype=np.uint8)  # whose minus is not what it seems
        assert np.array_equal(getattr(law, method)(whole), getattr(law, method)(whole.astype(np.float64)))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.kind)
def test_profiles_compute_double_precision(profile: Profile) -> None:
    """Profiles compute in double precision whatever they get."""
    single = np.array([0.01, 0.1, 0.3, 0.7, 0.9], dtype=np.float32)
    found = profile.tpr_at(single)
    assert found.dtype == np.float64
    assert np.array_equal(found, profile.tpr_at(single.astype(np.float64)))
    assert np.array_equal(profile.tpr_at(single.astype(np.float64).tolist()), found)


def exact_delta(profile: Profile, epsilon: float) -> mpmath.mpf:
    """The closed forms in 50 digits, written from the definitions: m (1 - e^(eps - E)) and 1 - e^((eps - E) / 2)."""
    largest = mpmath.mpf(profile.epsilon)  # type: ignore[attr-defined]
    if isinstance(profile, LaplaceProfile):
        return 1 - mpmath.exp((epsilon - largest) / 2)
    mass = mpmath.mpf(profile.mass) if isinstance(profile, StepProfile) else 1 / (1 + mpmath.exp(-largest))
    return mass * (1 - mpmath.exp(epsilon - largest))


@pytest.mark.parametrize(
    "profile",
    [
        make(epsilon)
        for epsilon in (1e-6, 0.01, 0.3, 1.0, 3.0, 12.0, 40.0, 800.0)
        for make in (PureProfile, LaplaceProfile)
    ]
    + [StepProfile(epsilon, mass) for epsilon in (1e-3, 0.3, 3.0, 30.0, 800.0) for mass in (0.1, 0.45)],
    ids=repr,
)
def test_profiles_are_rounded_up_and_tight(profile: PureProfile | LaplaceProfile | StepProfile) -> None:
    with mpmath.workdps(50):
        for share in (0.0, 0.2, 0.5, 0.9, 0.999):
            epsilon = share * profile.epsilon
            discrete = exact_delta(profile, epsilon)
            delta = mpmath.mpf(profile.delta_at(epsilon))
            assert min(1, discrete) <= delta <= discrete * (1 + mpmath.mpf("1e-12"))
            if 0 < delta < 1:
                # The least epsilon at this delta, rounded up, and by no more than rounding takes.
                back = profile.epsilon_at(float(delta))
                assert exact_delta(profile, back) <= delta
                assert back <= epsilon + 3e-12 * (1 + profile.epsilon)
        assert profile.delta_at(profile.epsilon) == 0.0
        assert profile.delta_at(2 * profile.epsilon) == 0.0
        assert profile.epsilon_at(0.0) == profile.epsilon


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 30.0])
def test_nothing_left_pay_delta_whole_advantage(epsilon: float) -> None:
    """Nothing is left to pay where delta is the whole advantage."""
    for profile in (PureProfile(epsilon), StepProfile(epsilon, 0.4), LaplaceProfile(epsilon)):
        for delta in (profile.advantage, (1 + profile.advantage) / 2, 0.999_999_999):
            if delta >= profile.advantage:
                assert profile.epsilon_at(delta) == pytest.approx(0.0, abs=1e-9)
    assert StepProfile(epsilon, 0.4).epsilon_at(0.4) == 0.0
    assert StepProfile(epsilon, 0.4).epsilon_at(0.9) == 0.0


@pytest.mark.parametrize("make", [PureProfile, LaplaceProfile, lambda epsilon: StepProfile(epsilon, 0.9)])
def test_huge_budgets_neither_overflow_nor_leave(make: type[PureProfile]) -> None:
    """Huge budgets neither overflow nor leave the unit interval."""
    for epsilon in (600.0, 720.0, 5000.0):
        rates = np.array([0.0, 1e-300, 1e-100, 0.1, 1.0])
        found = make(epsilon).tpr_at(rates)
        assert found[0] == 0.0
        assert found[-1] == 1.0
        assert np.all((found >= rates) & (found <= 1.0))
        assert found[2] >= 0.9 * (1 - 1e-12)  # rates far above e^-epsilon already reach what noise leaves


def test_curve_step_runs_through_corners() -> None:
    """(0, 0), (m q, m), (1 - m, 1 - m q), (1, 1), with q = e^-E, and the area below."""
    profile = StepProfile(1.5, 0.4)
    q = math.exp(-1.5)
    corners = np.array([0.0, 0.4 * q, 0.6, 1.0])
    heights = np.array([0.0, 0.4, 1 - 0.4 * q, 1.0])
    assert profile.tpr_at(corners) == pytest.approx(heights, abs=1e-12)
    assert profile.auc == pytest.approx(float(np.trapezoid(heights, corners)), abs=1e-12)
    assert profile.auc >= float(np.trapezoid(heights, corners))


def test_curve_laplace_noise_runs_through_corners() -> None:
    """The curve of laplace noise runs through its corners."""
    shrink = math.exp(-2.0)
    profile = LaplaceProfile(2.0)
    assert profile.tpr_at([0.0, shrink / 4, shrink / 2, 0.3, 0.5, 1.0]) == pytest.approx(
        [0.0, 0.25, 0.5, 1 - shrink / 1.2, 1 - shrink / 2, 1.0], abs=1e-15
    )


def test_a_mass_from_an_advantage_is_rounded_up() -> None:
    for epsilon, advantage in ((0.5, 0.1), (3.0, 0.7), (10.0, 0.3)):
        profile = StepProfile.of_advantage(epsilon, advantage)
        with mpmath.workdps(40):
            discrete = advantage / (1 - mpmath.exp(-mpmath.mpf(epsilon)))
            assert discrete < profile.mass < discrete * (1 + mpmath.mpf("1e-12"))
    assert StepProfile.of_advantage(1.0, 5.0).mass == pytest.approx(1 / (1 + math.exp(-1.0)), rel=1e-15)


def test_between_knots_curve_linear_exponential() -> None:
    """Between its knots a curve is linear in the exponential."""
    curve = CurveProfile((0.0, 1.0, 3.0), (0.5, 0.2, 0.01))
    x = 0.25 * math.e + 0.75 * math.exp(3.0)
    assert curve.delta_at(math.log(x)) == pytest.approx(0.25 * 0.2 + 0.75 * 0.01, rel=1e-12)
    assert curve.epsilon_at(0.25 * 0.2 + 0.75 * 0.01) == pytest.approx(math.log(x), rel=1e-11)
    for epsilon in (0.1, 0.5, 1.0, 2.0, 2.9):
        delta = curve.delta_at(epsilon)
        assert epsilon * (1 - 1e-12) <= curve.epsilon_at(delta) <= epsilon + 1e-11
        knots = np.exp([0.0, 1.0, 3.0])
        assert delta > np.interp(math.exp(epsilon), knots, curve.deltas)
    assert curve.delta_at(50.0) == pytest.approx(0.01, rel=1e-12)
    assert curve.epsilon_at(0.0099) == math.inf
    assert curve.epsilon_at(0.01) < 3.0001
    assert curve.epsilon_at(0.5) == 0.0
    assert curve.epsilon_at(0.7) == 0.0
    assert CurveProfile((0.0, 1.0), (1.0, 0.0)).delta_at(0.0) == 1.0


def test_curve_randomised_response_closed_form() -> None:
    """A curve of randomised response is its closed form."""
    rates = np.linspace(0, 1, 501)
    curve = CurveProfile((0.0, 2.0), (PureProfile(2.0).delta_at(0.0), 0.0))
    assert curve.tpr_at(rates) == pytest.approx(PureProfile(2.0).tpr_at(rates), abs=1e-12)
    assert curve.auc == pytest.approx(PureProfile(2.0).auc, abs=2e-8)
    assert curve.auc >= PureProfile(2.0).auc - 1e-9
    wide = CurveProfile((0.0, 700.0), (1.0, 1e-9))
    assert np.all(wide.tpr_at(rates) <= 1.0)
    assert wide.tpr_at(0.0) == pytest.approx(1e-9)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "curve", "losses": [0.0, 1.0], "deltas": [0.5]},
        {"kind": "curve", "losses": [0.5, 1.0], "deltas": [0.5, 0.1]},
        {"kind": "curve", "losses": [0.0, 701.0], "deltas": [0.5, 0.1]},
        {"kind": "curve", "losses": [0.0, 1.0], "deltas": [1.5, 0.1]},
        {"kind": "curve", "losses": [0.0, 1.0], "deltas": [0.5, -0.1]},
        {"kind": "curve", "losses": [0.0, 2.0, 1.0], "deltas": [0.5, 0.2, 0.1]},
        {"kind": "curve", "losses": [0.0, 1.0, 1.0], "deltas": [0.5, 0.2, 0.2]},
        {"kind": "curve", "losses": [0.0, 1.0, 2.0], "deltas": [0.5, 0.1, 0.2]},
        {"kind": "curve", "losses": [0.0, math.nan], "deltas": [0.5, 0.1]},
        {"kind": "pure", "epsilon": 0.0},
        {"kind": "laplace", "epsilon": -1.0},
        {"kind": "step", "epsilon": 1.0, "mass": -0.5},
        {"kind": "step", "epsilon": -1.0, "mass": 0.5},
        {"kind": "step", "epsilon": 1.0},
        {"kind": "gaussian"},
    ],
)
def test_a_curve_that_is_no_profile_is_an_error(data: dict[str, object]) -> None:
    with pytest.raises(ss.InvalidInput):
        profile_from_dict(data)


@pytest.mark.parametrize(
    ("losses", "deltas"),
    [((0.0,), (0.3,)), ((0.0, 700.0), (1.0, 0.0)), ((0.0, 1.0), (0.0, 0.0))],
)
def test_ends_curve_belong(losses: tuple[float, ...], deltas: tuple[float, ...]) -> None:
    """The ends of what a curve may be belong to it."""
    curve = CurveProfile(losses, deltas)
    assert profile_from_dict(curve.to_dict()) == curve


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_laws_come_back_equal(law: GaussianNoise) -> None:
    assert law_from_dict(law.to_dict()) == law
    assert law.to_dict()["std"] == law.std


@pytest.mark.parametrize("data", [{}, {"name": "cauchy"}, {"name": "laplace"}, {"name": "staircase", "epsilon": 1.0}])
def test_unknown_laws_are_errors(data: dict[str, object]) -> None:
    with pytest.raises(ss.InvalidInput):
        law_from_dict(data)


def test_the_share_of_a_staircase() -> None:
    assert StaircaseNoise(1.0, 2.0, 1.0).gamma == 1.0
    for gamma in (0.0, -0.1, 1.000001, math.nan):
        with pytest.raises(ss.InvalidInput):
            StaircaseNoise(1.0, 2.0, gamma)
    for broken in ({"epsilon": 0.0, "sensitivity": 1.0}, {"epsilon": 1.0, "sensitivity": -1.0}):
        with pytest.raises(ss.InvalidInput):
            StaircaseNoise(gamma=0.5, **broken)
    # The inner part is a whole number of grid steps, at least one, whatever the budget.
    assert StaircaseNoise.calibrate(2.0, 1.0).gamma == pytest.approx(1 / (1 + math.e))
    assert StaircaseNoise.calibrate(2.0, 1.0, 1 / 8).gamma == 2 / 8
    assert StaircaseNoise.calibrate(2.0, 2.0, 1 / 8).gamma == 4 / 16
    assert StaircaseNoise.calibrate(100.0, 1.0, 1 / 8).gamma == 1 / 8
    assert 0 < StaircaseNoise.calibrate(1e6, 1.0).gamma < 1e-300


def test_pure_scale_laplace_noise_rounded_up(rng: np.random.Generator) -> None:
    """The pure scale of laplace noise is rounded up."""
    for epsilon, sensitivity in rng.uniform(0.1, 10, (300, 2)):
        law = LaplaceNoise.calibrate(float(epsilon), float(sensitivity))
        with mpmath.workdps(40):
            discrete = mpmath.mpf(float(sensitivity)) / mpmath.mpf(float(epsilon))
            assert discrete * (1 + mpmath.mpf(2) ** -50) < law.b < discrete * (1 + mpmath.mpf(2) ** -46)
        assert law.profile(float(sensitivity)).epsilon_at(0.0) <= epsilon


def test_quantiles_of_certainties_are_infinite() -> None:
    for law in (LaplaceNoise(0.3), GaussianNoise(0.3), StaircaseNoise(1.0, 2.0, 0.3)):
        assert law.quantile(0.0) == -math.inf
        assert law.quantile(1.0) == math.inf
    assert LaplaceNoise(0.3).quantile(0.5) == 0.0
    assert LaplaceNoise(0.3).cdf(0.0) == 0.5
    assert StaircaseNoise(1.0, 2.0, 0.3).cdf(0.0) == 0.5
    assert StaircaseNoise(1.0, 2.0, 0.3).quantile(0.5) == 0.0


def test_a_move_costs_as_many_steps_as_it_crosses() -> None:
    law = StaircaseNoise(1.0, 2.0, 0.3)
    assert law.profile(1e-3).epsilon_at(0.0) == 1.0
    assert law.profile(2.0 * (1 + 1e-13)).epsilon_at(0.0) == 1.0  # the rounding of a quotient is no second step
    assert law.profile(2.0 * (1 + 1e-9)) == PureProfile(2.0)
    assert law.profile(4.0) == PureProfile(2.0)
    assert law.profile(4.1) == PureProfile(3.0)
    assert isinstance(StaircaseNoise(1.0, 2.0, 0.5).profile(2.0), StepProfile)
    assert StaircaseNoise(1.0, 2.0, 0.51).profile(2.0) == PureProfile(1.0)


NOT_PURE = {
    "Gaussian noise": GaussianProfile(0.01),
    "Gaussian and Laplace noise in parallel": ss.parallel([GaussianProfile(0.1), LaplaceProfile(50.0)]),
    "PrivUnit beside a private PCA": ss.release_index(
        np.eye(5, 4), epsilon=6.0, delta=1e-6, components=2, reduction="pca", rng=1
    ).guarantee.profile,
}


@pytest.mark.parametrize("profile", NOT_PURE.values(), ids=NOT_PURE)
def test_profile_gaussian_noise_never_pure(profile: Profile) -> None:
    """Where delta is smaller than any double it is rounded up, and a budget without delta does not take it."""
    assert profile.delta_at(600.0) > 0
    assert math.isinf(find_pure_epsilon(profile))
    assert not ss.PrivacyFilter(1e6, 0.0).would_fit(profile)


def test_a_curve_is_not_below_its_chords() -> None:
    """Against 50 digits, at points where e^epsilon cannot be told from that of the knot beside it."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        end = float(rng.choice([1e-9, 1e-3, 0.5, 1.0, 30.0, 600.0]) * rng.uniform(0.5, 1))
        curve = CurveProfile((0.0, end), (float(rng.uniform(0, -math.expm1(-end))), float(rng.choice([0.0, 1e-300]))))
        for point in (math.nextafter(end, 0), end * (1 - 1e-12), end * rng.uniform(), math.nextafter(0, 1)):
            with mpmath.workdps(50):
                x, last = mpmath.exp(mpmath.mpf(point)), mpmath.exp(mpmath.mpf(end))
                high, low = map(mpmath.mpf, curve.deltas)
                true = low + (high - low) * (last - x) / (last - 1)
                assert true <= curve.delta_at(point) <= true * (1 + 1e-12)


def test_curve_that_no_mechanism_has():
    """delta falls by at most 1 per unit of e^epsilon. A file that says otherwise is rejected; the border is not."""
    step = 0.5
    steepest = {"kind": "curve", "losses": [0.0, step], "deltas": [math.expm1(step), 0.0]}
    assert profile_from_dict(steepest).delta_at(0.0) >= math.expm1(step)
    with pytest.raises(InvalidInput, match="faster than that of any mechanism"):
        profile_from_dict({**steepest, "deltas": [math.expm1(step) * (1 + 1e-6), 0.0]})
    with pytest.raises(InvalidInput, match="faster than that of any mechanism"):
        profile_from_dict({"kind": "curve", "losses": [0.0, 1e-8, 1e-6], "deltas": [2e-5, 1e-5, 1e-6]})


def test_laws_are_written_whole() -> None:
    assert LaplaceNoise(0.5).to_dict() == {"name": "laplace", "b": 0.5, "std": math.sqrt(2) * 0.5}
    assert GaussianNoise(0.5).to_dict() == {"name": "gaussian", "std": 0.5}
    law = StaircaseNoise(1.0, 2.0, 0.25)
    parts = {"name": "staircase", "epsilon": 1.0, "sensitivity": 2.0, "gamma": 0.25}
    assert law.to_dict() == {**parts, "std": law.std}
    assert (law.scale, LaplaceNoise(0.5).scale) == (law.std, 0.5)
    table = randomised_response(1.0, [0.0])
    assert law_from_dict(table.to_dict()) == table  # type: ignore[comparison-overlap]


def test_profiles_are_written_whole() -> None:
    assert [profile.to_dict() for profile in PROFILES] == [
        {"kind": "gaussian", "mu": 0.7},
        {"kind": "pure", "epsilon": 2.0},
        {"kind": "step", "epsilon": 2.0, "mass": 0.6},
        {"kind": "laplace", "epsilon": 2.0},
        {"kind": "curve", "losses": [0.0, 1.0, 2.0], "deltas": [0.6, 0.3, 0.0]},
    ]
    assert [profile_from_dict(profile.to_dict()) for profile in PROFILES] == PROFILES


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 3.0, 20.0])
@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
def test_the_spread_of_a_staircase(epsilon: float, gamma: float) -> None:
    """The mean square over the steps, added up: e^-(k epsilon) times that of an inner and an outer part of step k."""
    with mpmath.workdps(30):
        q, g = mpmath.exp(-mpmath.mpf(epsilon)), mpmath.mpf(gamma)
        whole = (g + (1 - g) * q) / (1 - q)

        def part(k: mpmath.mpf) -> mpmath.mpf:
            inner, outer = ((k + g) ** 3 - k**3) / 3, ((k + 1) ** 3 - (k + g) ** 3) / 3
            return q**k * (inner + q * outer) / whole

        exact_std = 2 * mpmath.sqrt(mpmath.nsum(part, [0, mpmath.inf]))
    assert StaircaseNoise(epsilon, 2.0, gamma).std == pytest.approx(float(exact_std), rel=1e-11)


def test_tails_of_a_staircase() -> None:
    """P[|W| > x] falls by e^-epsilon per step, linearly within each part, whatever NumPy does about underflow."""
    law = StaircaseNoise(1.0, 2.0, 0.25)
    q = math.exp(-1.0)
    whole = 0.25 + 0.75 * q
    inner = 1 - 0.25 / whole * (1 - q)
    assert law.sf([0.5, 2.0, 4.5, 0.25]) == pytest.approx([inner / 2, q / 2, q**2 * inner / 2, (1 + inner) / 4])
    assert law.cdf([-0.5, -2.0]) == pytest.approx([inner / 2, q / 2])
    with np.errstate(all="raise"):
        assert law.sf(1e6) == 0.0
        assert law.cdf(-1e6) == 0.0
        assert law.quantile([0.0, 1.0]).tolist() == [-math.inf, math.inf]
        assert law.quantile(5e-324) == pytest.approx(-2 * 1073 * math.log(2), abs=2.0)


def test_the_mass_of_a_staircase_is_rounded_up() -> None:
    for epsilon, gamma in ((0.1, 0.2), (1.0, 0.3), (5.0, 0.05), (20.0, 1e-4)):
        profile = StaircaseNoise(epsilon, 2.0, gamma).profile(2.0)
        assert isinstance(profile, StepProfile)
        assert profile.epsilon == epsilon
        with mpmath.workdps(40):
            q, g = mpmath.exp(-mpmath.mpf(epsilon)), mpmath.mpf(gamma)
            inside = (g + (mpmath.mpf(0.5) - g) * q) / (g + (1 - g) * q)
            assert inside < mpmath.mpf(profile.mass) < inside * (1 + mpmath.mpf("1e-12"))


def test_what_reaches_the_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales in steps of the grid; a staircase has an inner part of at least one step."""
    seen: list[Any] = []
    monkeypatch.setattr(discrete, "fill_rounded_laplace", lambda *given: seen.append(given))
    monkeypatch.setattr(discrete, "fill_staircase", lambda *given: seen.append(given))
    stream, out = object(), np.empty(3)
    LaplaceNoise(0.5).fill(stream, 0.125, out)  # type: ignore[arg-type]
    StaircaseNoise(1.5, 2.0, 0.25).fill(stream, 0.125, out)  # type: ignore[arg-type]
    StaircaseNoise(1.5, 2.0, 1e-9).fill(stream, 0.125, out)  # type: ignore[arg-type]
    StaircaseNoise(1.5, 2.0, 1 / 16).fill(stream, 0.125, out)  # type: ignore[arg-type]
    assert [given[1:-1] for given in seen] == [(4.0,), (1.5, 16, 4), (1.5, 16, 1), (1.5, 16, 1)]
    assert all(given[0] is stream and given[-1] is out for given in seen)


@pytest.mark.parametrize("epsilon", [0.5, 6.0, 12.0, 20.0])
def test_the_area_under_a_steep_curve(epsilon: float) -> None:
    """Its corner lies at a rate of 1 / (1 + e^epsilon), far below any even grid of rates."""
    curve = CurveProfile((0.0, epsilon), (PureProfile(epsilon).delta_at(0.0), 0.0))
    area = PureProfile(epsilon).auc
    assert area <= curve.auc <= min(1.0, area + 2e-8)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.kind)
def test_the_advantage_is_delta_at_zero(profile: Profile) -> None:
    assert profile.advantage == pytest.approx(profile.delta_at(0.0), rel=1e-9)
    assert profile.advantage <= 1.0
    rates = np.linspace(0, 1, 20_001)
    assert profile.advantage == pytest.approx(float(np.max(profile.tpr_at(rates) - rates)), abs=2e-4)


def test_a_law_has_the_profile_of_its_noise() -> None:
    assert LaplaceNoise(0.5).profile(2.0) == LaplaceProfile(4.0)
    assert GaussianNoise(0.5).profile(2.0) == GaussianProfile(4.0)


def test_errors_name_what_is_wrong() -> None:
    for place, make in {
        "b' parameter of LaplaceNoise": lambda: LaplaceNoise(0.0),
        "std' parameter of GaussianNoise": lambda: GaussianNoise(0.0),
        "gamma' parameter of StaircaseNoise": lambda: StaircaseNoise(1.0, 1.0, 0.0),
        "epsilon' parameter of StaircaseNoise": lambda: StaircaseNoise(0.0, 1.0, 0.5),
        "sensitivity' parameter of StaircaseNoise": lambda: StaircaseNoise(1.0, 0.0, 0.5),
        "epsilon' parameter of StepProfile": lambda: StepProfile(0.0, 0.5),
        "mass' parameter of StepProfile": lambda: StepProfile(1.0, 0.0),
        "mu' parameter": lambda: profile_from_dict({"kind": "gaussian", "mu": 0}),
        "epsilon' parameter": lambda: profile_from_dict({"kind": "laplace", "epsilon": 0}),
        "losses' parameter": lambda: profile_from_dict({"kind": "curve", "losses": ["a"], "deltas": [1]}),
        "deltas' parameter": lambda: profile_from_dict({"kind": "curve", "losses": [0], "deltas": ["a"]}),
    }.items():
        with pytest.raises(ss.InvalidInput, match=f"^The '{place} must be"):
            make()


def test_fractions_are_rounded_up_to_doubles() -> None:
    assert round_up(Fraction(1, 4)) == 0.25
    assert round_up(Fraction(2**60 + 1, 2**62)) == math.nextafter(0.25, 1.0)
    assert round_up(Fraction(2**62 - 1, 2**64)) == 0.25


def test_the_end_of_a_long_curve_is_rounded_up() -> None:
    """Half way down in e^epsilon between 0 and 600 is ln((1 + e^600) / 2)."""
    found = CurveProfile((0.0, 600.0), (0.75, 0.25)).epsilon_at(0.5)
    with mpmath.workdps(40):
        true = mpmath.log((1 + mpmath.exp(600)) / 2)
        assert true <= mpmath.mpf(found) <= true * (1 + mpmath.mpf("1e-13"))


def test_no_area_is_beyond_one() -> None:
    assert StepProfile(50.0, 1.0).auc == 1.0
    assert CurveProfile((0.0, 600.0), (1.0, 1.0)).auc == 1.0
