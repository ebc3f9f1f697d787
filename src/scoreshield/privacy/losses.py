"""The privacy-loss law of a profile, and the quantities that add up: pure epsilons, squares of mu, Renyi moments.

For the laws P and Q of the output on two neighbours the loss is `L = ln(p/q)` under P, and
`δ(ε) = E[(1 - e^(ε - L))_+]`. A profile here bounds both orders of the two neighbours, so it is
represented by a symmetric law: `P[L = -ℓ] = e^(-ℓ) P[L = ℓ]`. Everything is rounded up.

Closed forms of the Renyi divergences: Mironov (2017), table II. Randomised response is the worst pure mechanism
(Kairouz, Oh & Viswanath 2015). docs/accounting.md proves what is used.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv, logsumexp, ndtri_exp

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.privacy.adjacency import NullRecord
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)

Float = NDArray[np.float64]
#: Room for the rounding of closed forms, and for that of sums over many knots.
_UP = 1 + 1e-11


class LossLaw(NamedTuple):
    """A symmetric discrete privacy-loss law that dominates a falling convex curve."""

    losses: Float  # 0 < l_1 < ... < l_m
    masses: Float  # P[L = l_i]; P[L = -l_i] is e^-l_i times that
    centre: float  # P[L = 0]
    infinite: float  # P[L = infinity]


def extract_profile(item: Any) -> Profile:
    """Return the profile of a guarantee or a release, or the given profile.

    A promise against a null record counts with its profile between any two records, so that it adds up with others.
    """
    if isinstance(item, Profile):
        return item
    guarantee = getattr(item, "guarantee", item)
    profile = getattr(guarantee, "profile", None)
    if not isinstance(profile, Profile):
        _validation.reject("item", "a guarantee, a release or a privacy profile", item)
    if isinstance(getattr(guarantee, "adjacency", None), NullRecord):
        replacement: Profile = guarantee.record_profile()
        return replacement
    return profile


def find_pure_epsilon(profile: Profile) -> float:
    """Find the epsilon at which delta is 0; infinite where there is none."""
    if not isinstance(profile, CurveProfile):
        return profile.epsilon_at(0.0)
    knots = zip(profile.losses, profile.deltas, strict=True)
    return min((loss for loss, delta in knots if delta == 0), default=math.inf)


def compute_residual(profile: Profile) -> float:
    """Compute the probability for which the profile does not bound the loss."""
    return profile.deltas[-1] if isinstance(profile, CurveProfile) else 0.0


def find_dominating_mu(profile: Profile) -> float:
    """Find a mu such that Gaussian noise with this mu leaks at least as much at every epsilon; infinite if none does.

    For a pure epsilon it is the least mu with `Φ(-μ/2) ≤ 1/(1 + e^ε)`: the curve of randomised
    response is two chords of that Gaussian curve.
    """
    if isinstance(profile, GaussianProfile):
        return profile.mu
    epsilon = find_pure_epsilon(profile)
    if epsilon < 1:
        return 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2))) * _UP
    return -2 * float(ndtri_exp(-float(np.logaddexp(0, epsilon)))) * _UP if math.isfinite(epsilon) else math.inf


@validate()
def compute_log_moment(profile: Profile, order: float) -> float:
    """Compute `ln E[e^((α-1) L)] = (α-1) D_α` at ``order`` > 1, rounded up.

    If a curve ends above 0, the loss has no bound on a mass of that size. That mass is charged separately, and the
    moment is that of the loss cut off at the last knot (docs/accounting.md).
    """
    if not isinstance(profile, GaussianProfile | LaplaceProfile | PureProfile | StepProfile | CurveProfile):
        _validation.reject("profile", "of a kind that this version supports", profile)
    match profile:
        case GaussianProfile(mu):
            return order * (order - 1) * mu * mu / 2 * _UP
        case LaplaceProfile(epsilon) if epsilon >= 0.01:
            return _laplace_moment(epsilon, order) * _UP
        case StepProfile(epsilon, mass) if epsilon >= 0.01:
            exponents = [(order - 1) * epsilon, -order * epsilon, 0.0]
            weights = [mass, mass, max(0.0, 1 - mass * (1 + math.exp(-epsilon)))]
            return max(0.0, float(logsumexp(exponents, b=weights))) * _UP + 1e-15
        case PureProfile(epsilon) | LaplaceProfile(epsilon) | StepProfile(epsilon):
            # Below 0.01 Laplace noise, steps and randomised response agree to leading order, where closed forms cancel.
            return (_log_cosh((order - 0.5) * epsilon) - _log_cosh(epsilon / 2)) * _UP
        case _:
            return _curve_moment(profile, order)


def make_loss_law(losses: Float, deltas: Float) -> LossLaw:
    """Make the law with this `δ`: at least the broken line through the knots, as a function of `e^ε`.

    With x = e^loss and slopes s_i of the segments, the mass at knot i is x_i (s_i - s_{i-1}). A mass that is negative
    by rounding is replaced by 0, which only increases delta. ``losses`` starts at 0. Beyond the last knot delta is
    constant.
    """
    steps = -np.expm1(losses[:-1] - losses[1:])  # (x_{i+1} - x_i) / x_{i+1}, without overflow
    falls = np.maximum(deltas[:-1] - deltas[1:], 0.0) / steps  # -s_i x_{i+1}
    after = np.append(falls[1:] * np.exp(losses[1:-1] - losses[2:]), 0.0)  # -s_{i+1} x_{i+1}
    masses = np.maximum(falls - after, 0.0)
    infinite = float(deltas[-1])
    centre = max(0.0, 1.0 - infinite - float(np.sum(masses * (1 + np.exp(-losses[1:])))))
    return LossLaw(losses[1:], masses * _UP, centre * _UP, infinite)


def _log_cosh(x: float) -> float:
    return math.log1p(2 * math.sinh(x / 2) ** 2) if x < 20 else x - math.log(2) + math.log1p(math.exp(-2 * x))


def _laplace_moment(epsilon: float, order: float) -> float:
    left, right = (order - 1) * epsilon, -order * epsilon
    share = order / (2 * order - 1)
    if left > 1:
        return float(np.logaddexp(math.log(share) + left, math.log1p(-share) + right))
    return math.log1p(share * math.expm1(left) + (1 - share) * math.expm1(right))


def _curve_moment(profile: CurveProfile, order: float) -> float:
    if profile.losses[-1] > 700:  # further than a curve looks
        return math.inf
    if len(profile.losses) == 1:
        return order * math.log1p(compute_residual(profile))
    law = make_loss_law(np.array(profile.losses), np.array(profile.deltas))
    exponents = np.concatenate([(order - 1) * law.losses, -order * law.losses, [0.0, (order - 1) * law.losses[-1]]])
    weights = np.concatenate([law.masses, law.masses, [law.centre, order * law.infinite]])
    used = weights > 0  # a weight may be the smallest double there is, which has no reciprocal
    return max(0.0, float(logsumexp(exponents[used] + np.log(weights[used])))) * _UP + 1e-11
