r"""A budget for queries that are chosen as their answers come in: a privacy filter.

The budget (epsilon, delta) is fixed first. Each next mechanism may depend on all earlier answers, and the filter lets
it run only if the promise still holds whatever comes out (Rogers, Roth, Ullman & Vadhan 2016). Three rules are
combined, and docs/accounting.md proves that together they keep the promise:

- a run without Gaussian noise fits if its pure epsilons add up to at most epsilon, which takes nothing from delta, or
  if at one Renyi order at least, of a grid fixed by the budget, the moments add up to what that order's share of 99 %
  of delta allows (Feldman & Zrnic 2021).
- a run of Gaussian noise alone fits if the squares of mu add up to what (epsilon, 99 % of delta) allows (Smith &
  Thakurta 2022; Koskela, Tobaben & Honkela 2023).
- a run of both fits if at one Renyi order the moments add up to what that order's share of 1 % of delta allows.

The first charge decides which of the first two a run can end in, and no answer can have influenced that charge: so each
may have its 99 %. For the same reason the first charge may take the budget whole.

What was charged is kept as a multiset and nothing else, so a ledger can rebuild the filter from its entries.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scoreshield import _checks
from scoreshield.errors import BudgetExceeded, InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.losses import dominating_mu, log_moment, profile_of, pure_epsilon, residual
from scoreshield.privacy.profile import CurveProfile, GaussianProfile, Profile, PureProfile

#: Of this rule book; a number never changes meaning, so an old ledger is always recomputed by its own rules.
RULES = 1
_ONE_KIND = 0.99  # of delta, for runs with Gaussian noise alone, and for runs without any
_BOTH_KINDS = 0.01  # of delta, for runs with both
_RESIDUAL = 0.001  # of delta, out of either share of Renyi moments: for losses without bound
#: Profiles round their closed forms up by 2^-45; that alone must not turn away what was made for the whole budget.
_ROUNDED = 1 + 2.0**-44
#: Orders, as multiples of the best one for Gaussian noise; higher ones serve runs that are mostly pure.
_ORDERS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Room:
    """What one more charge may cost.

    Attributes
    ----------
    pure : the largest epsilon of a pure mechanism that still fits.
    mu : the largest mu (sensitivity over scale) of Gaussian noise that still fits; 0 if none does.
    gaussian : the epsilon of that Gaussian noise at the budget's delta.
    """

    pure: float
    mu: float
    gaussian: float

    def __str__(self) -> str:
        if self.pure == 0 and self.mu == 0:
            return "nothing more fits"
        parts = [f"a pure epsilon up to {_down(self.pure)}"] if self.pure else []
        if self.mu:
            parts.append(f"Gaussian noise up to epsilon {_down(self.gaussian)} at that delta (mu {_down(self.mu)})")
        return f"what still fits is {' or '.join(parts)}"


@dataclass(frozen=True)
class _Cost:
    """What adds up, of one mechanism or of many."""

    count: int
    gaussians: int
    pure: float
    squared_mu: float
    residual: float
    moments: tuple[float, ...]


class Filter:
    """Accepts adaptively chosen mechanisms while their whole run stays (epsilon, delta)-private.

    Parameters
    ----------
    epsilon, delta : the budget. With ``delta`` = 0 only pure mechanisms are accepted.

    Every method takes a profile, a guarantee or a release. Sums are rounded to the nearest double.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = _checks.budget(epsilon, "Filter")
        self.delta = _checks.probability(delta, "delta", "Filter", zero=True)
        self._charged: Counter[Profile] = Counter()
        self._costs: dict[Profile, _Cost] = {}
        self._orders = _orders(self.epsilon, self.delta)
        self._caps = self._moment_caps(_ONE_KIND)
        self._mixed_caps = self._moment_caps(_BOTH_KINDS)
        # Rounded down, so that the sum, rounded to nearest, stays within.
        self._squared_mu = (
            gaussian.mu_of(self.epsilon, _ONE_KIND * self.delta) ** 2 * (1 - 1e-14) if self.delta else -1.0
        )

    @classmethod
    def of(cls, epsilon: float, delta: float, charged: Mapping[Profile, int]) -> Filter:
        """The filter after these charges, unchecked: what a ledger rebuilds from its entries."""
        filter_ = cls(epsilon, delta)
        filter_._charged.update(charged)
        return filter_

    @property
    def charged(self) -> dict[Profile, int]:
        """What was charged, and how often."""
        return dict(self._charged)

    def would_fit(self, item: Any) -> bool:
        """Whether the budget covers this mechanism on top of everything charged so far."""
        profile = profile_of(item, "Filter.would_fit")
        return self._fits(self._total(profile), profile)

    def spend(self, item: Any) -> None:
        """Charge it, or raise :class:`BudgetExceeded` and charge nothing."""
        profile = profile_of(item, "Filter.spend")
        if not self.would_fit(profile):
            raise self.refusal(profile)
        self._charged[profile] += 1

    def holds(self) -> bool:
        """Whether what was charged is within the budget; false only for a filter made of foreign charges."""
        alone = next(iter(self._charged)) if self._charged.total() == 1 else None
        return not self._charged or self._fits(self._total(), alone)

    def refusal(self, item: Any, number: int = 1) -> BudgetExceeded:
        """The error that says why this, or a batch of so many that ends with it, does not fit, and what would."""
        asked = self.asked(item)
        spent, room = self.spent, self.room()
        times = f", {number:,} times," if number > 1 else ""
        kind = ", and a delta of 0 takes only pure ones" if math.isinf(asked) and not self.delta else ""
        return BudgetExceeded(
            f"The privacy budget does not cover this: it asks for epsilon {asked:.6g}{times} where {spent:.6g} of "
            f"{self.epsilon:.6g} is spent at delta {self.delta:g}{kind}; {room}.",
            spent=spent,
            asked=asked,
            limit=self.epsilon,
        )

    def asked(self, item: Any) -> float:
        """The epsilon of one mechanism by itself at the budget's delta; a pure mechanism counts in full."""
        profile = profile_of(item, "Filter.asked")
        pure = pure_epsilon(profile)
        if isinstance(profile, CurveProfile):  # it may end in 0 far beyond the epsilon it was made for
            return min(pure, profile.epsilon_at(self.delta))
        return pure if math.isfinite(pure) else profile.epsilon_at(self.delta)

    @property
    def spent(self) -> float:
        """The least epsilon at the budget's delta that is proved for what was charged, taken as a whole."""
        if not self._charged:
            return 0.0
        total = self._total()
        bounds = [total.pure]
        if self._charged.total() == 1:
            bounds.append(self.asked(next(iter(self._charged))))
        if self.delta and math.isfinite(total.squared_mu):
            bounds.append(gaussian.epsilon_of(self.delta, math.sqrt(total.squared_mu)))
        if total.residual < self.delta:
            spare = math.log(self.delta - total.residual)
            bounds.extend(
                (moment - spare - _log_slack(order)) / (order - 1)
                for order, moment in zip(self._orders, total.moments, strict=True)
            )
        return max(0.0, min(bounds))

    @property
    def remaining(self) -> float:
        """The limit less what is spent. Epsilons do not simply add up: :meth:`room` says what a charge may cost."""
        return max(0.0, self.epsilon - self.spent)

    def room(self) -> Room:
        """The largest pure and the largest Gaussian mechanism that would still fit."""
        total = self._total()
        exact = self.epsilon - total.pure  # a pure run: what is left over, to the last digit
        pure = _largest(lambda value: self._admits(total, PureProfile(value)), self.epsilon, exact)
        if not self.delta:
            return Room(pure, 0.0, 0.0)
        most = gaussian.mu_of(self.epsilon, self.delta)
        mu = _largest(lambda value: self._admits(total, GaussianProfile(value)), most, most)
        return Room(pure, mu, gaussian.epsilon_of(self.delta, mu) if mu else 0.0)

    def _fits(self, total: _Cost, last: Profile | None) -> bool:
        if (
            self.delta
            and total.count == 1
            and last is not None
            and last.delta_at(self.epsilon) <= self.delta * _ROUNDED
        ):
            return True  # the first charge, which no answer can have influenced, may take the budget whole
        if not total.gaussians and total.pure <= self.epsilon:
            return True
        if total.gaussians == total.count:
            return total.squared_mu <= self._squared_mu
        caps = self._mixed_caps if total.gaussians else self._caps
        return total.residual <= _RESIDUAL * self.delta and any(
            moment <= cap for moment, cap in zip(total.moments, caps, strict=True)
        )

    def _moment_caps(self, share: float) -> tuple[float, ...]:
        """What the moments may add up to at each order, when all orders together may take this share of delta."""
        if not self.delta:
            return ()
        each = math.log(self.delta) + math.log((share - _RESIDUAL) / len(self._orders))
        return tuple(((order - 1) * self.epsilon + each + _log_slack(order)) * (1 - 1e-12) for order in self._orders)

    def _total(self, extra: Profile | None = None) -> _Cost:
        """The sums, each correctly rounded, so that they depend on the multiset and not on its order."""
        parts = [(self._cost(profile), number) for profile, number in self._charged.items()]
        if extra is not None:
            parts.append((self._cost(extra), 1))
        return _Cost(
            sum(number for _, number in parts),
            sum(number * part.gaussians for part, number in parts),
            _sum(number * part.pure for part, number in parts),
            _sum(number * part.squared_mu for part, number in parts),
            _sum(number * part.residual for part, number in parts),
            tuple(_sum(number * part.moments[k] for part, number in parts) for k in range(len(self._orders))),
        )

    def _admits(self, total: _Cost, profile: Profile) -> bool:
        one = self._cost(profile, keep=False)
        both = _Cost(
            total.count + 1,
            total.gaussians + one.gaussians,
            total.pure + one.pure,
            total.squared_mu + one.squared_mu,
            total.residual + one.residual,
            tuple(a + b for a, b in zip(total.moments, one.moments, strict=True)),
        )
        return self._fits(both, profile)

    def _cost(self, profile: Profile, *, keep: bool = True) -> _Cost:
        if profile in self._costs:
            return self._costs[profile]
        moments = tuple(log_moment(profile, order) for order in self._orders)
        is_gaussian = int(isinstance(profile, GaussianProfile))
        cost = _Cost(1, is_gaussian, pure_epsilon(profile), dominating_mu(profile) ** 2, residual(profile), moments)
        if keep:
            self._costs[profile] = cost
        return cost


def _orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Renyi orders around the one that would serve Gaussian noise best; none without delta."""
    if not delta:
        return ()
    bits = -math.log(_ONE_KIND * delta / len(_ORDERS))
    best = math.sqrt(bits) / (math.sqrt(epsilon + bits) - math.sqrt(bits))  # order - 1
    return tuple(1 + factor * best for factor in _ORDERS)


def _log_slack(order: float) -> float:
    r"""ln 1/c, with c the least such that :math:`(1 - e^{-x})_+ \le c\, e^{(\alpha-1) x}` for all x."""
    return math.log(order) - (order - 1) * math.log1p(-1 / order)


def _sum(values: Any) -> float:
    parts = list(values)
    return math.inf if math.inf in parts else math.fsum(parts)


def _largest(fits: Callable[[float], bool], most: float, exact: float) -> float:
    """The largest value in (0, most] that fits, by bisection; ``exact`` is tried as it is."""
    least = most * 1e-9
    if exact > 0 and fits(exact) and not fits(exact * (1 + 1e-6)):
        return exact
    if not fits(least):
        return 0.0
    if fits(most):
        return most
    low, high = least, most
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _down(value: float) -> str:
    """Four digits, rounded down, so that what is said to fit does fit."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / unit) * unit:.4g}"


def check_budget(epsilon: Any, delta: Any, function: str) -> tuple[float, float]:
    """A budget given whole: neither part has a default."""
    if epsilon is None or delta is None:
        raise InvalidInput(f"{function} needs both epsilon and delta, the most that may ever be spent; got only one.")
    return _checks.budget(epsilon, function), _checks.probability(delta, "delta", function, zero=True)
