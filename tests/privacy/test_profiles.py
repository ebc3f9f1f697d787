"""Privacy profiles against numerical integration, against each other, and what they must never do: understate."""

from __future__ import annotations

import json
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

import scoreshield as ss
from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
    profile_from_dict,
)

PROFILES: list[Profile] = [
    GaussianProfile(0.7),
    PureProfile(2.0),
    StepProfile(2.0, 0.6),
    StepProfile(2.0, 0.88),
    LaplaceProfile(2.0),
    CurveProfile((0.0, 1.0, 2.0), (0.6, 0.3, 0.0)),
]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.kind)
def test_the_figures_agree_with_each_other(profile: Profile) -> None:
    fpr = np.linspace(0, 1, 20_001)
    tpr = profile.tpr_at(fpr)
    assert np.all(np.diff(tpr) >= -1e-12)
    assert np.all(tpr >= fpr - 1e-12)
    assert profile.advantage == pytest.approx(float((tpr - fpr).max()), abs=2e-4)
    assert profile.auc == pytest.approx(float(np.trapezoid(tpr, fpr)), abs=2e-4)
    for epsilon in (0.0, 0.3, 1.0, 1.7):
        delta = profile.delta_at(epsilon)
        # The profile is the best test's tpr - e^eps fpr.
        assert delta == pytest.approx(float((tpr - math.exp(epsilon) * fpr).max()), abs=2e-3)
        if 0 < delta < 1:
            back = profile.epsilon_at(delta)
            assert back == pytest.approx(epsilon, abs=1e-6)
            assert profile.delta_at(back) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.kind)
def test_profiles_come_back_equal(profile: Profile) -> None:
    assert profile_from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "other"},
        {"kind": "gaussian", "mu": -1},
        {"kind": "pure", "epsilon": "a"},
        {"kind": "curve", "losses": [0.0, 1.0], "deltas": [0.1, 0.2]},
        {"kind": "curve", "losses": [1.0], "deltas": [0.1]},
        {"kind": "curve", "losses": [], "deltas": []},
    ],
)
def test_damaged_profiles_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(ss.InvalidInput):
        profile_from_dict(data)


@given(ratio=st.floats(0.05, 20), epsilon=st.floats(0, 20))
def test_laplace_profile_is_the_integral(ratio: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        p, q = 0.5 * math.exp(-abs(x)), 0.5 * math.exp(-abs(x - ratio))
        return max(0.0, q - math.exp(epsilon) * p)

    top = ratio + 40
    exact = quad(excess, 0, ratio, limit=200)[0] + quad(excess, ratio, top, limit=200)[0] + quad(excess, -40, 0)[0]
    assert LaplaceProfile(ratio).delta_at(epsilon) == pytest.approx(exact, abs=1e-7)
    assert LaplaceProfile(ratio).delta_at(epsilon) <= PureProfile(ratio).delta_at(epsilon) * (1 + 1e-12) + 1e-15


def test_pure_is_randomised_response() -> None:
    for epsilon in (0.1, 1.0, 10.0, 50.0):
        keep = 1 / (1 + math.exp(-epsilon))
        profile = PureProfile(epsilon)
        assert profile.advantage == pytest.approx(2 * keep - 1)
        assert profile.auc == pytest.approx(keep)
        assert float(profile.tpr_at(1 / (1 + math.exp(epsilon)))) == pytest.approx(keep)
        assert profile.delta_at(epsilon) == 0
        assert profile.epsilon_at(0.0) == epsilon


def test_gaussian_has_no_pure_epsilon() -> None:
    assert GaussianProfile(1.0).epsilon_at(0.0) == math.inf


def test_spec_figures_of_the_laws() -> None:
    """Standard deviations at D = 2: Laplace 2.83, 0.57, 0.28, 0.14; staircase 2.77, 0.385, 0.096, 0.0078."""
    for epsilon, laplace, staircase in ((1, 2.83, 2.77), (5, 0.57, 0.385), (10, 0.28, 0.096), (20, 0.14, 0.0078)):
        assert LaplaceNoise.calibrate(epsilon, 2.0).std == pytest.approx(laplace, rel=0.02)
        assert StaircaseNoise.calibrate(epsilon, 2.0).std == pytest.approx(staircase, rel=0.01)


@given(epsilon=st.floats(0.05, 12), move=st.floats(-1, 1), x=st.floats(-10, 10))
def test_staircase_density_never_falls_by_more(epsilon: float, move: float, x: float) -> None:
    law = StaircaseNoise.calibrate(epsilon, 2.0)
    h = 1e-7
    for shift in (move * 2.0, 2.0, -2.0):
        p = float(law.cdf(x + h) - law.cdf(x - h))
        q = float(law.cdf(x + shift + h) - law.cdf(x + shift - h))
        if min(p, q) > 1e-12:
            assert p <= q * math.exp(epsilon) * (1 + 1e-3)


@pytest.mark.parametrize("law", [LaplaceNoise(0.3), StaircaseNoise.calibrate(2.0, 1.5)], ids=lambda law: law.name)
def test_quantiles_invert_the_cdf(law: LaplaceNoise | StaircaseNoise) -> None:
    p = np.linspace(0.001, 0.999, 501)
    assert np.allclose(law.cdf(law.quantile(p)), p, atol=1e-12)
    assert np.allclose(law.sf(law.quantile(p)), 1 - p, atol=1e-12)
    x = np.linspace(0, 40 * law.std, 400_001)
    second = 2 * np.trapezoid(2 * x * law.sf(x), x)
    assert law.std == pytest.approx(math.sqrt(second), rel=1e-4)


def test_a_move_beyond_the_step_costs_more() -> None:
    law = StaircaseNoise.calibrate(2.0, 1.0)
    assert law.profile(1.0).epsilon_at(0.0) == 2.0
    assert law.profile(2.5) == PureProfile(6.0)


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 2.0, 8.0, 20.0])
@pytest.mark.parametrize("gamma", [None, 0.01, 0.4, 0.5])
def test_the_profile_of_a_staircase(epsilon: float, gamma: float | None) -> None:
    """Against the integral of (f(x) - e^eps f(x - s))_+ over the density, for every move s up to a step."""
    law = StaircaseNoise.calibrate(epsilon, 1.0) if gamma is None else StaircaseNoise(epsilon, 1.0, gamma)
    profile = law.profile(1.0)
    with mpmath.workdps(40):
        q = mpmath.exp(-mpmath.mpf(epsilon))
        g = mpmath.mpf(law.gamma)
        height = (1 - q) / (2 * (g + q * (1 - g)))
        inside = 2 * height * (g + q * (mpmath.mpf(1) / 2 - g))  # the inner part of a step, and half of the outer one
        for loss in (0.0, epsilon / 3, 0.9 * epsilon):
            true = inside / (1 - q) * (1 - mpmath.exp(mpmath.mpf(loss) - epsilon))
            assert true <= mpmath.mpf(profile.delta_at(loss)) <= true * (1 + mpmath.mpf(1e-11))


@pytest.mark.parametrize(
    ("epsilon", "width", "inner"), [(0.3, 7, 3), (1.0, 8, 3), (3.0, 50, 9), (2.0, 5, 2), (5.0, 40, 1)]
)
def test_sampled_tells_no_more_profile(epsilon: float, width: int, inner: int) -> None:
    """The law on the integers, summed, for every move up to a step."""
    reach = 300 * width
    z = np.arange(-reach, reach + 1)
    level = np.where(np.abs(z) % width < inner, np.abs(z) // width, np.abs(z) // width + 1)
    p = np.exp(-epsilon * level)
    p /= p.sum()
    profile = StaircaseNoise(epsilon, float(width), inner / width).profile(float(width))
    assert isinstance(profile, StepProfile)
    worst = np.zeros(3)
    for move in range(1, width + 1):
        for place, loss in enumerate((0.0, epsilon / 2, 0.9 * epsilon)):
            told = np.maximum(p[move:] - math.exp(loss) * p[:-move], 0).sum() + p[:move].sum()
            worst[place] = max(worst[place], told)
            assert told <= profile.delta_at(loss) + 1e-12
    # What remains is the grid's: the inner part has 2 inner - 1 points instead of a width of 2 inner.
    q, points = math.exp(-epsilon), min(2 * inner - 1, width)
    assert worst[0] == pytest.approx(
        (points + q * (width - points)) / (2 * inner - 1 + 2 * width * q / (1 - q)), rel=1e-9
    )


def test_broad_inner_part_bound_pure_mechanisms() -> None:
    """Where it is more than half a step, what is sampled on a coarse grid tells a little more than its density."""
    assert StaircaseNoise(2.0, 5.0, 1.0).profile(5.0) == PureProfile(2.0)


def test_step_never_worse_randomised_response() -> None:
    """A step is never worse than randomised response."""
    for epsilon in (1e-3, 1.0, 30.0):
        assert StepProfile(epsilon, 5.0).advantage == pytest.approx(PureProfile(epsilon).advantage, rel=1e-12)
        assert StepProfile(epsilon, 0.5).advantage < PureProfile(epsilon).advantage
    with pytest.raises(ss.InvalidInput):
        StepProfile(1.0, 0.0)
