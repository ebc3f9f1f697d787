"""Privacy profiles against numerical integration, against each other, and what they must never do: understate."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

import scoreshield as ss
from scoreshield.privacy.laws import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.profile import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    profile_from_dict,
)

PROFILES: list[Profile] = [
    GaussianProfile(0.7),
    PureProfile(2.0),
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
        assert LaplaceNoise.calibrated(epsilon, 2.0).std == pytest.approx(laplace, rel=0.02)
        assert StaircaseNoise.calibrated(epsilon, 2.0).std == pytest.approx(staircase, rel=0.01)


@given(epsilon=st.floats(0.05, 12), move=st.floats(-1, 1), x=st.floats(-10, 10))
def test_staircase_density_never_falls_by_more(epsilon: float, move: float, x: float) -> None:
    law = StaircaseNoise.calibrated(epsilon, 2.0)
    h = 1e-7
    for shift in (move * 2.0, 2.0, -2.0):
        p = float(law.cdf(x + h) - law.cdf(x - h))
        q = float(law.cdf(x + shift + h) - law.cdf(x + shift - h))
        if min(p, q) > 1e-12:
            assert p <= q * math.exp(epsilon) * (1 + 1e-3)


@pytest.mark.parametrize("law", [LaplaceNoise(0.3), StaircaseNoise.calibrated(2.0, 1.5)], ids=lambda law: law.name)
def test_quantiles_invert_the_cdf(law: LaplaceNoise | StaircaseNoise) -> None:
    p = np.linspace(0.001, 0.999, 501)
    assert np.allclose(law.cdf(law.quantile(p)), p, atol=1e-12)
    assert np.allclose(law.sf(law.quantile(p)), 1 - p, atol=1e-12)
    x = np.linspace(0, 40 * law.std, 400_001)
    second = 2 * np.trapezoid(2 * x * law.sf(x), x)
    assert law.std == pytest.approx(math.sqrt(second), rel=1e-4)


def test_a_move_beyond_the_step_costs_more() -> None:
    law = StaircaseNoise.calibrated(2.0, 1.0)
    assert law.profile(1.0) == PureProfile(2.0)
    assert law.profile(2.5) == PureProfile(6.0)
