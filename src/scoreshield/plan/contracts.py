"""A privacy contract: (epsilon, delta), or the most that an attacker may achieve.

Gaussian noise on a quantity of sensitivity D is described by mu = D / sigma alone. The best membership test reaches an
advantage of 2 Phi(mu / 2) - 1 and a true-positive rate of Phi(Phi^-1(fpr) + mu). Both have closed forms for mu. For a
family of pure mechanisms, the largest epsilon under an attack bound is found by bisection on its profile.

A call states its budget in six digits. They are rounded down, so that a call never spends more than the contract.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, ClassVar, Literal

from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import erfinv, ndtr, ndtri

from scoreshield._formatting import format_number
from scoreshield._types import Calibration
from scoreshield._validation import (
    LEAST_EPSILON,
    Check,
    check_delta,
    check_epsilon,
    check_inside_unit,
    one_of,
    optional,
    validate,
)
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile

#: The share of delta that a ledger leaves to several releases of Gaussian noise (`privacy.filters`).
_SHARED_DELTA = 0.99
_CALL_DIGITS = 6
#: The grid of released scores makes the sensitivity larger by less than this share.
_MARGIN = 1e-7
_LARGEST_MU = 30
_LARGEST_PURE_EPSILON = 1e3
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Contract:
    """A promise, as the ratio mu of sensitivity to Gaussian noise, with the same promise in other terms.

    Attributes:
        mu: The largest ratio of sensitivity to standard deviation for Gaussian noise; 0 where delta is 0, which leaves
            no Gaussian noise.
        epsilon: The epsilon that Gaussian noise of this mu has at ``delta``.
        delta: The delta of the contract.
        stated: The promise in the user's terms.
        calibration: The rule that set mu, or "attack" where an attack bound did.
        max_advantage: The largest advantage of a membership test, where the contract states one.
        max_rates: The largest true-positive rate and its false-positive rate, where the contract states them.
        max_epsilon: The largest epsilon beside an attack bound, where the contract states both.
        is_part: Whether this is the part of a contract that one of several queries gets.
    """

    ADVANTAGE_REMEDY: ClassVar[str] = "allow a larger advantage (max_advantage, --max-advantage)"
    RATE_REMEDY: ClassVar[str] = "allow more true positives (max_tpr, --max-tpr)"

    mu: float
    epsilon: float
    delta: float
    stated: str
    calibration: Calibration | Literal["attack"]
    max_advantage: float | None = None
    max_rates: tuple[float, float] | None = None
    max_epsilon: float | None = None
    is_part: bool = False

    def scale(self, sensitivity: float) -> float:
        """Compute the standard deviation for a quantity of this sensitivity, rounded up."""
        return sensitivity / self.mu * (1 + 2**-48) if self.mu > 0 else math.inf

    def find_pure_epsilon(self, profile: Callable[[float], Profile] = PureProfile) -> float:
        """Find the largest epsilon that a family of pure mechanisms may have under this contract.

        Args:
            profile: A function from epsilon to the privacy profile of the family.
        """
        if self.calibration != "attack":
            return self.epsilon

        def excess(log_epsilon: float) -> float:
            candidate = profile(math.exp(log_epsilon))
            if self.max_rates is not None:
                return float(candidate.tpr_at(self.max_rates[1])) - self.max_rates[0]
            return candidate.advantage - (self.attack_advantage if self.max_advantage is None else self.max_advantage)

        most = _LARGEST_PURE_EPSILON if self.max_epsilon is None else self.max_epsilon
        if excess(math.log(most)) <= 0:
            return most
        root = float(brentq(excess, math.log(1e-9), math.log(most), xtol=1e-13))
        return math.exp(root) * (1 - _MARGIN)

    def find_call_epsilon(self, profile: Callable[[float], Profile] = PureProfile) -> float:
        """Find the largest epsilon in six digits that a call of a pure mechanism may state.

        Args:
            profile: A function from epsilon to the privacy profile of the family.
        """
        return round_budget_down(self.find_pure_epsilon(profile))

    @property
    def gaussian_budget(self) -> tuple[float, float] | None:
        """The epsilon and the delta that a call of Gaussian noise states; None where no Gaussian noise fits."""
        delta = round_budget_down(self.delta)
        if self.mu == 0 or delta == 0:
            return None
        is_stated = self.calibration != "attack" and not self.is_part
        epsilon = round_budget_down(
            self.epsilon if is_stated else GaussianProfile(self.mu * (1 - _MARGIN)).epsilon_at(delta)
        )
        return (epsilon, delta) if epsilon >= LEAST_EPSILON else None

    def split(self, queries: int) -> Contract:
        """Make the contract of one of several queries that share this one.

        Pure mechanisms share epsilon. Gaussian noise shares the square of mu. A ledger of the contract accepts both.
        """
        if queries == 1:
            return self
        mu, epsilon = self.mu, self.epsilon if self.calibration != "attack" else self.max_epsilon
        if mu > 0 and epsilon is not None:
            mu = min(mu, gaussian.find_mu(epsilon, _SHARED_DELTA * self.delta))
        return replace(
            self,
            mu=mu / math.sqrt(queries) * (1 - 2**-48),
            epsilon=self.find_pure_epsilon() / queries,
            calibration="analytic",
            max_advantage=None,
            max_rates=None,
            max_epsilon=None,
            is_part=True,
        )

    def bound_rate(self, share: float) -> float:
        """Compute the largest rate at which any mechanism accepts a record, where it accepts others at this share.

        Any record might become the one to accept. So the rate p and the share f obey the trade-off of the contract:
        p <= e^epsilon f + delta and 1 - f <= e^epsilon (1 - p) + delta, or p <= f + advantage. The trade-off curve of
        the best test is concave and ends at (0, 0) and (1, 1), so one point (a, t) that it may not exceed bounds it on
        both sides: p <= t f / a from a on, and 1 - p >= (1 - t) (1 - f) / (1 - a) below.
        """
        bound = 1.0
        epsilon = self.epsilon if self.calibration != "attack" else self.max_epsilon
        if epsilon is not None:
            bound = bound_by_epsilon(share, epsilon, self.delta)
        if self.max_advantage is not None:
            bound = min(bound, share + self.max_advantage)
        if self.max_rates is not None:
            most, at = self.max_rates
            bound = min(bound, most * share / at if share > at else 1 - (1 - most) * (1 - share) / (1 - at))
        return bound

    @property
    def remedy(self) -> str:
        """What to change in the contract so that mechanisms keep more."""
        if self.calibration != "attack":
            return "raise epsilon"
        if self.max_rates is not None:
            return self.RATE_REMEDY
        return self.ADVANTAGE_REMEDY + (", raise epsilon" if self.max_epsilon is not None else "")

    @property
    def attack_auc(self) -> float:
        """The area under the curve of the best membership test."""
        return gaussian.attack_auc(self.mu)

    @property
    def attack_advantage(self) -> float:
        """The largest difference of true-positive and false-positive rate of any membership test."""
        return gaussian.attack_advantage(self.mu)

    def tpr_at(self, fpr: ArrayLike) -> Any:
        """Compute the largest true-positive rate of any membership test at a false-positive rate."""
        return ndtr(ndtri(fpr) + self.mu)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "stated": self.stated,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "calibration": self.calibration,
            "attack": {
                "auc": self.attack_auc,
                "advantage": self.attack_advantage,
                "tpr_at_fpr_0.01": float(self.tpr_at(0.01)),
            },
        }


def round_budget_down(value: float) -> float:
    """Round a number down to the six digits that a call states."""
    nearest = float(f"{value:.{_CALL_DIGITS}g}")
    if nearest <= value:
        return nearest
    return float(Context(prec=_CALL_DIGITS, rounding=ROUND_FLOOR).create_decimal(Decimal(value)))


def round_budget_up(value: float) -> float:
    """Round a number up to the six digits that a call states."""
    nearest = float(f"{value:.{_CALL_DIGITS}g}")
    if nearest >= value:
        return nearest
    return float(Context(prec=_CALL_DIGITS, rounding=ROUND_CEILING).create_decimal(Decimal(value)))


def bound_by_epsilon(share: float, epsilon: float, delta: float) -> float:
    """Bound the rate at which an (epsilon, delta)-private mechanism accepts a record, by the share of others."""
    ratio = math.exp(min(epsilon, _LARGEST_EXPONENT))
    return min(1.0, ratio * share + delta, 1 - (1 - share - delta) / ratio)


#: The constraints on the ways to state a contract.
CONTRACT_CHECKS: dict[str, Check] = {
    "epsilon": optional(check_epsilon),
    "max_advantage": optional(check_inside_unit),
    "max_tpr": optional(check_inside_unit),
    "at_fpr": optional(check_inside_unit),
}


@validate(delta=check_delta, **CONTRACT_CHECKS, calibration=one_of(gaussian.METHODS))
def make_contract(
    *,
    delta: float,
    epsilon: float | None = None,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    calibration: Calibration = "analytic",
) -> Contract | None:
    """Make a contract from an epsilon, from an advantage, or from a true-positive rate at a false-positive rate.

    Args:
        delta: The delta of the contract. With 0, only pure mechanisms fit an epsilon.
        epsilon: The epsilon.
        max_advantage: Instead: the largest advantage of a membership test. With ``epsilon``, the contract states both,
            and a mechanism must keep both.
        max_tpr: Instead, with ``at_fpr``: the largest true-positive rate of a membership test.
        at_fpr: The false-positive rate for ``max_tpr``.
        calibration: The rule that sets Gaussian noise for an epsilon.

    Returns:
        The contract, or None where none of the three is given.

    Raises:
        InvalidInput: Several of the three are given, other than an epsilon with an advantage, or noise cannot keep the
            bound.
    """
    given = [name for name, value in (("epsilon", epsilon), ("max_advantage", max_advantage)) if value is not None]
    if max_tpr is not None or at_fpr is not None:
        if max_tpr is None or at_fpr is None:
            raise InvalidInput(
                "Give max_tpr and at_fpr together: the most true positives at a rate of false positives."
            )
        given.append("max_tpr at at_fpr")
    has_both = given == ["epsilon", "max_advantage"]
    if len(given) > 1 and not has_both:
        raise InvalidInput(f"Give one contract, not several: got {' and '.join(given)}.")
    if epsilon is not None and not has_both:
        mu = 1 / gaussian.calibrate(epsilon, delta, 1.0, calibration) if delta > 0 else 0.0
        stated = f"epsilon {format_number(epsilon)}" + (f", delta {format_number(delta)}" if delta > 0 else "")
        return Contract(mu, epsilon, delta, stated, calibration)
    if given and calibration != "analytic":
        raise InvalidInput(f"An attack bound sets the noise by itself: leave the {calibration} calibration out.")
    max_rates = None
    if max_advantage is not None:
        mu = 2 * math.sqrt(2) * float(erfinv(max_advantage))
        stated = f"an attacker's advantage of at most {max_advantage:.12g}"
    elif max_tpr is not None and at_fpr is not None:
        if not max_tpr - at_fpr > 1e-12:
            raise InvalidInput(
                f"max_tpr ({max_tpr:.12g}) must exceed at_fpr ({at_fpr:.12g}): guessing reaches that much."
            )
        mu = float(ndtri(max_tpr) - ndtri(at_fpr))
        stated = f"at most {max_tpr:.12g} true positives at {at_fpr:.12g} false positives"
        max_rates = max_tpr, at_fpr
    else:
        return None
    mu *= 1 - 1e-12  # the rounding of the quantile functions must not make mu too large
    if not 1e-12 <= mu <= _LARGEST_MU:
        raise InvalidInput(
            f"{stated[0].upper()}{stated[1:]} is out of reach: choose a bound that noise can make a difference to."
        )
    if epsilon is not None:
        stated = f"{stated} and epsilon {format_number(epsilon)}"
        # Gaussian noise keeps an epsilon at a delta only; without one, no Gaussian noise fits both.
        mu = min(mu, gaussian.find_mu(epsilon, delta)) if delta > 0 else 0.0
    if mu == 0:
        return Contract(0.0, math.inf, delta, stated, "attack", max_advantage, max_rates, epsilon)
    reached = gaussian.find_epsilon(delta, mu) if delta > 0 else math.inf
    return Contract(mu, reached, delta, stated, "attack", max_advantage, max_rates, epsilon)
