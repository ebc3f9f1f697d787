"""The privacy of a mechanism as a whole: the profile delta(epsilon) and the trade-off curve of the best test.

Two neighbouring inputs give two laws P and Q of the output. The profile is `δ(ε) = sup ∫ (p - e^ε q)_+`. The trade-off
curve is the largest true-positive rate of any test at each false-positive rate. Each determines the other (Dong, Roth &
Su 2022). The classes here never understate either: numbers are rounded to the safe side. If only the pure epsilon of a
mechanism is known, its profile is that of the worst pure mechanism, randomised response.
"""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr, ndtri

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian

Float = NDArray[np.float64]
#: The most knots of a curve in a file. Curves of this library have about a thousand.
MOST_KNOTS = 100_000
#: A relative margin for rounding in closed forms of a few operations.
_UP = 1 + 2.0**-45


def round_down(value: Fraction) -> float:
    """Round a fraction down to the nearest double, so that parts of a budget add up to at most the whole."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)


def round_up(value: Fraction) -> float:
    """Round a fraction up to the nearest double."""
    found = float(value)
    return found if Fraction(found) >= value else math.nextafter(found, math.inf)


class Profile(ABC):
    """The privacy of all outputs of a mechanism together, against one change of its input."""

    kind: ClassVar[str]

    @abstractmethod
    def delta_at(self, epsilon: float) -> float:
        """Compute the exact delta at ``epsilon`` >= 0, rounded up."""

    @abstractmethod
    def epsilon_at(self, delta: float) -> float:
        """Compute the least epsilon at ``delta`` in [0, 1), rounded up; infinite where there is none."""

    @abstractmethod
    def tpr_at(self, fpr: ArrayLike) -> Any:
        """Compute the largest true-positive rate of any test at each false-positive rate."""

    @property
    @abstractmethod
    def auc(self) -> float:
        """Area under that curve."""

    @property
    def advantage(self) -> float:
        """The largest difference of true- and false-positive rate: delta at epsilon 0."""
        return min(1.0, self.delta_at(0.0))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class GaussianProfile(Profile):
    """N(0, 1) against N(mu, 1)."""

    kind = "gaussian"

    mu: float

    def delta_at(self, epsilon: float) -> float:
        return gaussian.compute_delta(epsilon, self.mu)

    def epsilon_at(self, delta: float) -> float:
        return math.inf if delta == 0 else gaussian.find_epsilon(delta, self.mu)

    def tpr_at(self, fpr: ArrayLike) -> Any:
        return ndtr(ndtri(np.asarray(fpr, dtype=np.float64)) + self.mu)

    @property
    def auc(self) -> float:
        return gaussian.attack_auc(self.mu)

    @property
    def advantage(self) -> float:
        return gaussian.attack_advantage(self.mu)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "mu": self.mu}


@dataclass(frozen=True)
class PureProfile(Profile):
    """Any epsilon-private mechanism. Randomised response with that epsilon leaks most, and has exactly this profile."""

    kind = "pure"

    epsilon: float

    def delta_at(self, epsilon: float) -> float:
        if epsilon >= self.epsilon:
            return 0.0
        # (e^E - e^e) / (e^E + 1), without overflow.
        return min(1.0, -math.expm1(epsilon - self.epsilon) / (1 + math.exp(-self.epsilon)) * _UP)

    def epsilon_at(self, delta: float) -> float:
        if delta == 0:
            return self.epsilon
        # e = E + ln(1 - delta (1 + e^-E)), in an order that loses no digits where delta is near 1.
        rest = (1 - delta) - delta * math.exp(-self.epsilon)
        return max(0.0, self.epsilon + math.log(rest) + 1e-12 * (1 + self.epsilon)) if rest > 0 else 0.0

    def tpr_at(self, fpr: ArrayLike) -> Any:
        rates = np.asarray(fpr, dtype=np.float64)
        with np.errstate(over="ignore"):
            steep = np.exp(np.minimum(self.epsilon, 700.0)) * rates
        return np.minimum(np.minimum(steep, 1 - math.exp(-self.epsilon) * (1 - rates)), 1.0)

    @property
    def auc(self) -> float:
        # Two straight pieces that meet at fpr = 1 / (1 + e^E): the area is 1/2 + tanh(E/2)/2.
        return 0.5 + 0.5 * math.tanh(self.epsilon / 2)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": self.epsilon}


@dataclass(frozen=True)
class StepProfile(Profile):
    """A pure mechanism with a known largest advantage: no test gains more than ``mass`` (1 - e^-epsilon).

    In `x = e^ε` a profile is convex, and that of a pure mechanism ends at (e^E, 0), so it lies below the
    chord from its largest advantage: `δ(ε) ≤ m (1 - e^(ε - E))`. That is the profile of a
    loss which is E with probability m, -E with m e^-E and otherwise 0, as it is for staircase noise and PrivUnit.

    Attributes:
        epsilon: E.
        mass: m, at most 1 / (1 + e^-E), where it is randomised response.
    """

    kind = "step"

    epsilon: float
    mass: float

    @validate()
    def __post_init__(self) -> None:
        _validation.check_positive(self.epsilon, "epsilon")
        object.__setattr__(self, "mass", min(_validation.check_positive(self.mass, "mass"), float(expit(self.epsilon))))

    @classmethod
    def of_advantage(cls, epsilon: float, advantage: float) -> StepProfile:
        """Make the profile from the largest total variation between neighbours, rounded up."""
        return cls(epsilon, advantage / -math.expm1(-epsilon) * _UP)

    def delta_at(self, epsilon: float) -> float:
        return self.mass * -math.expm1(epsilon - self.epsilon) * _UP if epsilon < self.epsilon else 0.0

    def epsilon_at(self, delta: float) -> float:
        if delta == 0:
            return self.epsilon
        rest = (self.mass - delta) / self.mass  # 1 - delta / mass would lose its digits where delta is near the mass
        return max(0.0, self.epsilon + math.log(rest) + 1e-12 * (1 + self.epsilon)) if rest > 0 else 0.0

    def tpr_at(self, fpr: ArrayLike) -> Any:
        a = np.asarray(fpr, dtype=np.float64)
        with np.errstate(over="ignore"):
            steep = np.exp(np.minimum(self.epsilon, 700.0)) * a
        best = np.minimum(np.minimum(steep, a + self.delta_at(0.0)), 1 - math.exp(-self.epsilon) * (1 - a))
        return np.minimum(best, 1.0)

    @property
    def auc(self) -> float:
        # Straight pieces through (0, 0), (m q, m), (1 - m, 1 - m q), (1, 1), with q = e^-E.
        m, q = self.mass, math.exp(-self.epsilon)
        return min(1.0, (m * m * q + (1 - m - m * q) * (1 + m - m * q) + m * (2 - m * q)) / 2 * _UP)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": self.epsilon, "mass": self.mass}


@dataclass(frozen=True)
class LaplaceProfile(Profile):
    """Laplace noise of scale b against the same noise moved by D, with ``epsilon`` = D / b, in closed form."""

    kind = "laplace"

    epsilon: float

    def delta_at(self, epsilon: float) -> float:
        return max(0.0, -math.expm1((epsilon - self.epsilon) / 2) * _UP) if epsilon < self.epsilon else 0.0

    def epsilon_at(self, delta: float) -> float:
        return max(0.0, self.epsilon + 2 * math.log1p(-delta) + 1e-12 * (1 + self.epsilon)) if delta else self.epsilon

    def tpr_at(self, fpr: ArrayLike) -> Any:
        a = np.asarray(fpr, dtype=np.float64)
        shrink = math.exp(-self.epsilon)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            low = np.exp(np.minimum(self.epsilon, 700.0)) * a
            middle = 1 - shrink / (4 * a)
            high = 1 - shrink * (1 - a)
        return np.clip(np.where(a <= shrink / 2, low, np.where(a <= 0.5, middle, high)), 0.0, 1.0)

    @property
    def auc(self) -> float:
        # P[X + D > Y] of two independent Laplace variables: 1 - e^-E (2 + E) / 4.
        return 1 - math.exp(-self.epsilon) * (2 + self.epsilon) / 4

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "epsilon": self.epsilon}


@dataclass(frozen=True)
class CurveProfile(Profile):
    """The upper envelope of finitely many pairs of discrete laws: a level table, or a composition.

    Attributes:
        losses: The knots, as epsilons. Between two knots delta is interpolated linearly in e^epsilon, which is exact
            for one pair of discrete laws, and an upper bound for a convex envelope.
        deltas: The delta at each knot, falling and convex in e^epsilon.
    """

    kind = "curve"

    losses: tuple[float, ...]
    deltas: tuple[float, ...]

    def delta_at(self, epsilon: float) -> float:
        right = bisect.bisect_left(self.losses, epsilon)
        if right in (0, len(self.losses)) or self.losses[right] == epsilon:
            return min(1.0, self.deltas[min(right, len(self.losses) - 1)] * _UP)
        # From the right end, and without e^epsilon itself, whose rounding would count where little is left of delta.
        (start, end), (high, low) = self.losses[right - 1 : right + 1], self.deltas[right - 1 : right + 1]
        share = math.expm1(epsilon - end) / math.expm1(start - end)
        return min(1.0, (low + (high - low) * share) * _UP)

    def epsilon_at(self, delta: float) -> float:
        if delta < self.deltas[-1]:
            return math.inf
        if delta >= self.deltas[0]:
            return 0.0
        knots = np.exp(np.minimum(self.losses, 700.0))
        x = float(np.interp(-delta, -np.array(self.deltas), knots))
        return math.log(x) * _UP + 1e-12

    def tpr_at(self, fpr: ArrayLike) -> Any:
        a = np.asarray(fpr, dtype=np.float64)
        best = np.ones_like(a)
        for loss, delta in zip(self.losses, self.deltas, strict=True):
            best = np.minimum(best, delta + math.exp(min(loss, 700.0)) * a)
            best = np.minimum(best, 1 - math.exp(-loss) * (1 - delta - a))
        return np.clip(best, 0.0, 1.0)

    @property
    def auc(self) -> float:
        return _measure_curve_area(self)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "losses": list(self.losses), "deltas": list(self.deltas)}


@lru_cache(maxsize=256)
def _measure_curve_area(profile: CurveProfile) -> float:
    """Compute the area under the curve of a profile. Every release of one mechanism states the same number."""
    fpr = np.unique(np.concatenate([np.linspace(0, 1, 20_001), np.geomspace(1e-12, 1, 20_001)]))
    return float(min(1.0, np.trapezoid(profile.tpr_at(fpr), fpr) + 1e-8))  # chords of a concave curve lie below it


def profile_from_dict(data: dict[str, Any]) -> Profile:
    """Read back what ``to_dict`` wrote."""
    match data:
        case {"kind": GaussianProfile.kind, "mu": mu}:
            return GaussianProfile(_validation.check_positive(mu, "mu"))
        case {"kind": PureProfile.kind, "epsilon": epsilon}:
            return PureProfile(_validation.check_positive(epsilon, "epsilon"))
        case {"kind": StepProfile.kind, "epsilon": epsilon, "mass": mass}:
            return StepProfile(epsilon, mass)
        case {"kind": LaplaceProfile.kind, "epsilon": epsilon}:
            return LaplaceProfile(_validation.check_positive(epsilon, "epsilon"))
        case {"kind": CurveProfile.kind, "losses": losses, "deltas": deltas} if len(losses) == len(deltas) > 0:
            if len(losses) > MOST_KNOTS:
                raise InvalidInput(f"A privacy profile has at most {MOST_KNOTS:,} knots. Got {len(losses):,}.")
            knots = tuple(_validation.check_real(loss, "losses") for loss in losses)
            values = tuple(_validation.check_real(delta, "deltas") for delta in deltas)
            falling = list(knots) == sorted(set(knots)) and list(values) == sorted(values, reverse=True)
            if not falling or knots[0] != 0 or knots[-1] > 700 or not (0 <= values[-1] <= values[0] <= 1):
                raise InvalidInput("The privacy profile in the file is not a falling curve.")
            # delta(epsilon) is the largest of P(S) - e^epsilon Q(S), so it falls by at most 1 per unit of e^epsilon.
            most = np.exp(knots[:-1]) * np.expm1(np.diff(knots)) + 1e-9 * values[0]  # the rest is for rounding
            if (-np.diff(values) > most).any():
                raise InvalidInput("The privacy profile in the file falls faster than that of any mechanism.")
            return CurveProfile(knots, values)
    raise InvalidInput(f"The file has a privacy profile that this version does not support: {data.get('kind')!r}.")
