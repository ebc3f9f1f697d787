r"""Privacy filters: a budget for queries that are chosen after earlier answers.

The budget (epsilon, delta) is fixed first. Each next mechanism may depend on all earlier answers. The filter lets it
run only if the promise still holds for every answer (Rogers, Roth, Ullman & Vadhan 2016). The filter combines three
rules. docs/accounting.md proves that together they keep the promise:

- a run without Gaussian noise fits if its pure epsilons add up to at most epsilon, which takes nothing from delta. It
  also fits if, for at least one Renyi order of a grid fixed by the budget, the moments add up to what that order's
  share of 99 % of delta allows (Feldman & Zrnic 2021).
- a run of Gaussian noise alone fits if the squares of mu add up to what (epsilon, 99 % of delta) allows (Smith &
  Thakurta 2022; Koskela, Tobaben & Honkela 2023).
- a run of both fits if at one Renyi order the moments add up to what that order's share of 1 % of delta allows.

The first charge decides which of the first two rules can apply to a run, and no answer can have influenced that charge.
So each of the two may have its 99 %. For the same reason the first charge may take the whole budget.

Everything that a decision reads adds up, so a filter keeps sums and no list. The sums are exact fractions, which the
order of the charges does not change. Each is rounded to the nearest double once, when it is compared.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.errors import BudgetExceeded, InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.losses import (
    compute_log_moment,
    compute_residual,
    extract_profile,
    find_dominating_mu,
    find_pure_epsilon,
)
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, Profile, PureProfile, profile_from_dict

#: The number of these rules. A number never changes meaning, so the rules of an old ledger stay the same. Rules 1 round
#: the cost of each kind of charge, times its number, before adding up. Rules 2 add up exactly. Nothing else differs.
RULES = 2
#: The largest relative difference between the sums of rules 1 and 2: three roundings, and one for the comparison.
_BETWEEN_RULES = 2.0**-50
_ONE_KIND = 0.99  # of delta, for runs with Gaussian noise alone, and for runs without any
_BOTH_KINDS = 0.01  # of delta, for runs with both
_RESIDUAL = 0.001  # of delta, out of either share of Renyi moments: for losses without bound
#: Profiles round their closed forms up by 2^-45. This alone must not reject what was calibrated to the whole budget.
_ROUNDED = 1 + 2.0**-44
#: Orders, as multiples of the best one for Gaussian noise; higher ones serve runs that are mostly pure.
_ORDERS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Headroom:
    """What one more charge may cost.

    Attributes:
        pure: The largest epsilon of a pure mechanism that still fits.
        mu: The largest mu (sensitivity over scale) of Gaussian noise that still fits; 0 if none does.
        gaussian: The epsilon of that Gaussian noise at the delta of the budget.
    """

    pure: float
    mu: float
    gaussian: float

    def __str__(self) -> str:
        if self.pure == 0 and self.mu == 0:
            return "nothing more fits"
        parts = [f"a pure epsilon up to {_format_down(self.pure)}"] if self.pure else []
        if self.mu:
            epsilon, mu = _format_down(self.gaussian), _format_down(self.mu)
            parts.append(f"Gaussian noise up to epsilon {epsilon} at that delta (mu {mu})")
        return f"what still fits is {' or '.join(parts)}"


#: A fraction whose denominator is a power of two, like every double; or infinity.
Exact = Fraction | float


@dataclass(frozen=True)
class Sums:
    """Everything that the rules read about any number of charges: exact, and the same in every order.

    Attributes:
        count: How many charges.
        gaussians: How many of them are Gaussian noise.
        pure: The sum of their pure epsilons.
        squared_mu: The sum of the squares of the mu that cover them.
        residual: The sum of the probabilities of a loss without bound.
        moments: The sums of the Renyi moments, at the orders that the budget fixes.
        only: The charge itself if there is only one.
    """

    count: int = 0
    gaussians: int = 0
    pure: Exact = Fraction(0)
    squared_mu: Exact = Fraction(0)
    residual: Exact = Fraction(0)
    moments: tuple[Exact, ...] = ()
    only: Profile | None = None

    def __add__(self, other: Sums) -> Sums:
        if not (self.count and other.count):
            return self if self.count else other
        return Sums(
            self.count + other.count,
            self.gaussians + other.gaussians,
            self.pure + other.pure,
            self.squared_mu + other.squared_mu,
            self.residual + other.residual,
            tuple(a + b for a, b in zip(self.moments, other.moments, strict=True)),
        )

    def times(self, number: int) -> Sums:
        """Return the sums of this many copies of the charges."""
        if number < 2:
            return self if number else Sums()
        return Sums(
            self.count * number,
            self.gaussians * number,
            self.pure * number,
            self.squared_mu * number,
            self.residual * number,
            tuple(moment * number for moment in self.moments),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with fractions as exact text."""
        return {
            "count": self.count,
            "gaussians": self.gaussians,
            "pure": _to_text(self.pure),
            "squared_mu": _to_text(self.squared_mu),
            "residual": _to_text(self.residual),
            "moments": [_to_text(moment) for moment in self.moments],
            "only": None if self.only is None else self.only.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sums:
        """Read what `to_dict` wrote. Anything else raises a KeyError, a TypeError or a ValueError."""
        return cls(
            int(data["count"]),
            int(data["gaussians"]),
            _from_text(data["pure"]),
            _from_text(data["squared_mu"]),
            _from_text(data["residual"]),
            tuple(_from_text(text) for text in data["moments"]),
            None if data["only"] is None else profile_from_dict(data["only"]),
        )

    def is_near(self, other: Sums) -> bool:
        """Return whether these are sums of the same charges. Mathematics libraries may round moments differently."""
        mine, theirs = ((s.pure, s.squared_mu, s.residual, *s.moments) for s in (self, other))
        return (
            (self.count, self.gaussians, self.only) == (other.count, other.gaussians, other.only)
            and len(mine) == len(theirs)
            and all(math.isclose(_round(a), _round(b), rel_tol=2.0**-40) for a, b in zip(mine, theirs, strict=True))
        )


def compute_cost(profile: Profile, epsilon: float, delta: float) -> Sums:
    """Compute what one charge adds to the sums of a budget."""
    return _compute_cost(profile, *_compute_limits(epsilon, delta).orders)


@functools.lru_cache(maxsize=4096)
def _compute_cost(profile: Profile, *orders: float) -> Sums:
    mu = find_dominating_mu(profile)
    squared = mu * mu
    numbers = (
        find_pure_epsilon(profile),
        squared,
        compute_residual(profile),
        *(compute_log_moment(profile, order) for order in orders),
    )
    pure, squared_mu, rest, *moments = (Fraction(number) if math.isfinite(number) else math.inf for number in numbers)
    return Sums(1, int(isinstance(profile, GaussianProfile)), pure, squared_mu, rest, tuple(moments), profile)


def _to_text(value: Exact) -> str:
    """Write the numerator in hexadecimal, and the exponent of the power of two in the denominator."""
    return f"{value.numerator:x}p{value.denominator.bit_length() - 1}" if isinstance(value, Fraction) else "inf"


def _from_text(text: str) -> Exact:
    if text == "inf":
        return math.inf
    numerator, _, power = text.partition("p")
    if len(text) > 1200 or not power.isdecimal() or int(power) > 1074:
        raise ValueError("no exact sum")
    return Fraction(int(numerator, 16), 1 << int(power))


def _round(value: Exact) -> float:
    """Round to the nearest double."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class _RoundedSums:
    """Sums in double precision, which are compared with the limits."""

    count: int
    gaussians: int
    pure: float
    squared_mu: float
    residual: float
    moments: tuple[float, ...]

    @classmethod
    def from_sums(cls, sums: Sums) -> _RoundedSums:
        numbers = (_round(sums.pure), _round(sums.squared_mu), _round(sums.residual))
        return cls(sums.count, sums.gaussians, *numbers, tuple(map(_round, sums.moments)))

    def scale(self, factor: float) -> _RoundedSums:
        """Multiply the sums, and keep the numbers of charges."""
        moments = tuple(moment * factor for moment in self.moments)
        numbers = (self.pure * factor, self.squared_mu * factor, self.residual * factor)
        return _RoundedSums(self.count, self.gaussians, *numbers, moments)


@dataclass(frozen=True)
class _Limits:
    """The largest sums that a budget allows."""

    orders: tuple[float, ...]
    caps: tuple[float, ...] = field(default=())
    mixed_caps: tuple[float, ...] = field(default=())
    squared_mu: float = -1.0


@functools.lru_cache(maxsize=256)
def _compute_limits(epsilon: float, delta: float) -> _Limits:
    orders = _choose_orders(epsilon, delta)
    if not delta:
        return _Limits(orders)
    # Rounded down, so that the sum, rounded to nearest, stays within.
    squared_mu = gaussian.find_mu(epsilon, _ONE_KIND * delta) ** 2 * (1 - 1e-14)
    caps, mixed_caps = (_compute_moment_caps(epsilon, delta, orders, share) for share in (_ONE_KIND, _BOTH_KINDS))
    return _Limits(orders, caps, mixed_caps, squared_mu)


def _compute_moment_caps(epsilon: float, delta: float, orders: tuple[float, ...], share: float) -> tuple[float, ...]:
    """Compute the largest sum of moments at each order, if all orders together may take this share of delta."""
    each = math.log(delta) + math.log((share - _RESIDUAL) / len(orders))
    return tuple(((order - 1) * epsilon + each + _compute_log_slack(order)) * (1 - 1e-12) for order in orders)


class PrivacyFilter:
    """Accepts adaptively chosen mechanisms while their whole run stays (epsilon, delta)-private.

    Every method takes a profile, a guarantee or a release. Sums are exact, and rounded once, to the nearest double.

    Args:
        epsilon: The budget.
        delta: The delta of the budget. With 0, only pure mechanisms are accepted.
    """

    @validate()
    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = _validation.check_epsilon(epsilon)
        self.delta = _validation.check_probability(delta, "delta", zero=True)
        self._charges: Counter[Profile] = Counter()
        self._sums = Sums()
        self._limits = _compute_limits(self.epsilon, self.delta)

    @classmethod
    def from_charges(cls, epsilon: float, delta: float, charges: Mapping[Profile, int]) -> PrivacyFilter:
        """Make the filter after these charges, without a check that they fit."""
        filter_ = cls(epsilon, delta)
        filter_._charges.update(charges)
        for profile, number in charges.items():
            filter_._sums += filter_._compute_cost(profile).times(number)
        return filter_

    @classmethod
    def from_sums(cls, epsilon: float, delta: float, sums: Sums) -> PrivacyFilter:
        """Make the filter after charges with these sums, without a check that they fit."""
        filter_ = cls(epsilon, delta)
        filter_._sums = sums
        return filter_

    @property
    def charges(self) -> dict[Profile, int]:
        """The charges of this filter, with their numbers. A filter that was made from sums has no list of charges."""
        return dict(self._charges)

    @validate()
    def would_fit(self, item: Any) -> bool:
        """Return whether the budget covers this mechanism after everything that was charged."""
        profile = extract_profile(item)
        return self._fits(_RoundedSums.from_sums(self._sums + self._compute_cost(profile)), profile)

    def count_fitting(self, item: Any, most: int) -> int:
        """Count how many charges of this mechanism the budget still covers, one after another, up to ``most``."""
        profile = extract_profile(item)
        cost = self._compute_cost(profile)

        def fits(number: int) -> bool:
            return self._fits(_RoundedSums.from_sums(self._sums + cost.times(number)), profile)

        if not fits(1):
            return 0
        low, high = 1, 2
        while high <= most and fits(high):
            low, high = high, 2 * high
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def would_fit_by_rules_1(self, profile: Profile, read_charges: Callable[[], Mapping[Profile, int]]) -> bool:
        """Return the same by rules 1, which sometimes need the charges themselves.

        The sums of rules 1 and 2 differ by less than one part in 2^50, and a larger sum never fits better. So if both
        ends of that range agree, rules 1 agree with them.
        """
        total = _RoundedSums.from_sums(self._sums + self._compute_cost(profile))
        fits, might = (self._fits(total.scale(1 + sign * _BETWEEN_RULES), profile) for sign in (1, -1))
        if fits == might:
            return fits
        return self._fits(self._add_up_by_rules_1(Counter(read_charges()) + Counter([profile])), profile)

    @validate()
    def spend(self, item: Any) -> None:
        """Charge a mechanism, or raise `BudgetExceeded` and charge nothing."""
        profile = extract_profile(item)
        if not self.would_fit(profile):
            raise self.make_error(profile)
        self._charges[profile] += 1
        self._sums += self._compute_cost(profile)

    def is_within_limit(self) -> bool:
        """Return whether the charges are within the budget. It is false only for charges that were not checked."""
        return not self._sums.count or self._fits(_RoundedSums.from_sums(self._sums), self._sums.only)

    def is_within_limit_by_rules_1(self, charges: Mapping[Profile, int]) -> bool:
        """Return the same by rules 1, for these charges."""
        return not self._sums.count or self._fits(self._add_up_by_rules_1(charges), self._sums.only)

    def make_error(self, item: Any, number: int = 1) -> BudgetExceeded:
        """Make the error of a charge, or of a batch of `number` charges, that does not fit. It says what would fit."""
        asked = self.compute_epsilon(item)
        spent, headroom = self.spent, self.headroom
        times = f", {number:,} times," if number > 1 else ""
        kind = ", and a delta of 0 takes only pure ones" if math.isinf(asked) and not self.delta else ""
        return BudgetExceeded(
            f"The privacy budget does not cover this: it asks for epsilon {asked:.6g}{times} where {spent:.6g} of "
            f"{self.epsilon:.6g} is spent at delta {self.delta:g}{kind}; {headroom}.",
            spent=spent,
            asked=asked,
            limit=self.epsilon,
        )

    @validate()
    def compute_epsilon(self, item: Any) -> float:
        """Compute the epsilon of one mechanism alone, at the delta of the budget; for a pure one, its pure epsilon."""
        profile = extract_profile(item)
        pure = find_pure_epsilon(profile)
        if isinstance(profile, CurveProfile):  # it may reach 0 far beyond the epsilon that it was calibrated to
            return min(pure, profile.epsilon_at(self.delta))
        return pure if math.isfinite(pure) else profile.epsilon_at(self.delta)

    @property
    def spent(self) -> float:
        """The least epsilon at the delta of the budget that is proved for all charges together."""
        if not self._sums.count:
            return 0.0
        total = _RoundedSums.from_sums(self._sums)
        bounds = [total.pure]
        if self._sums.only is not None:
            bounds.append(self.compute_epsilon(self._sums.only))
        if self.delta and 0 < total.squared_mu < math.inf:  # the square of a tiny mu is 0
            bounds.append(gaussian.find_epsilon(self.delta, math.sqrt(total.squared_mu)))
        if total.residual < self.delta:
            spare = math.log(self.delta - total.residual)
            bounds.extend(
                (moment - spare - _compute_log_slack(order)) / (order - 1)
                for order, moment in zip(self._limits.orders, total.moments, strict=True)
            )
        return max(0.0, min(bounds))

    @property
    def remaining(self) -> float:
        """The limit minus what is spent. Epsilons do not simply add up; `headroom` says how large a charge may be."""
        return max(0.0, self.epsilon - self.spent)

    @property
    def headroom(self) -> Headroom:
        """The largest pure and the largest Gaussian mechanism that would still fit."""
        exact = self.epsilon - _round(self._sums.pure)  # a pure run: what is left over, to the last digit
        pure = _find_largest(lambda value: self.would_fit(PureProfile(value)), self.epsilon, exact)
        if not self.delta:
            return Headroom(pure, 0.0, 0.0)
        most = gaussian.find_mu(self.epsilon, self.delta)
        mu = _find_largest(lambda value: self.would_fit(GaussianProfile(value)), most, most)
        return Headroom(pure, mu, gaussian.find_epsilon(self.delta, mu) if mu else 0.0)

    def _fits(self, total: _RoundedSums, last: Profile | None) -> bool:
        if (
            self.delta
            and total.count == 1
            and last is not None
            and last.delta_at(self.epsilon) <= self.delta * _ROUNDED
        ):
            return True  # no answer can have influenced the first charge, so it may take the whole budget
        if not total.gaussians and total.pure <= self.epsilon:
            return True
        if total.gaussians == total.count:
            return total.squared_mu <= self._limits.squared_mu
        caps = self._limits.mixed_caps if total.gaussians else self._limits.caps
        return total.residual <= _RESIDUAL * self.delta and any(
            moment <= cap for moment, cap in zip(total.moments, caps, strict=True)
        )

    def _add_up_by_rules_1(self, charges: Mapping[Profile, int]) -> _RoundedSums:
        """Add up by rules 1: number times cost, rounded, for each kind of charge, and then their sum."""
        parts = [(_RoundedSums.from_sums(self._compute_cost(profile)), number) for profile, number in charges.items()]
        return _RoundedSums(
            sum(number for _, number in parts),
            sum(number * part.gaussians for part, number in parts),
            _sum(number * part.pure for part, number in parts),
            _sum(number * part.squared_mu for part, number in parts),
            _sum(number * part.residual for part, number in parts),
            tuple(_sum(number * part.moments[k] for part, number in parts) for k in range(len(self._limits.orders))),
        )

    def _compute_cost(self, profile: Profile) -> Sums:
        return _compute_cost(profile, *self._limits.orders)


def _choose_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Choose Renyi orders around the best one for Gaussian noise; none without delta."""
    if not delta:
        return ()
    share = _ONE_KIND * delta / len(_ORDERS)  # which may be too small for a double
    bits = -math.log(share) if share else -math.log(delta) - math.log(_ONE_KIND / len(_ORDERS))
    best = math.sqrt(bits) / (math.sqrt(epsilon + bits) - math.sqrt(bits))  # order - 1
    return tuple(1 + factor * best for factor in _ORDERS)


def _compute_log_slack(order: float) -> float:
    """Compute ln 1/c, with c the least number such that `(1 - e^(-x))_+ ≤ c  e^((α-1) x)` for all x."""
    return math.log(order) - (order - 1) * math.log1p(-1 / order)


def _sum(values: Iterable[float]) -> float:
    parts = list(values)
    return math.inf if math.inf in parts else math.fsum(parts)


def _find_largest(fits: Callable[[float], bool], most: float, exact: float) -> float:
    """Find the largest value in (0, most] that fits, by bisection. First try ``exact`` and the double below it."""
    least = most * 1e-9
    for value in (exact, math.nextafter(exact, 0.0)):
        if value > 0 and fits(value) and not fits(value * (1 + 1e-6)):
            return value
    if not fits(least):
        return 0.0
    if fits(most):
        return most
    low, high = least, most
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _format_down(value: float) -> str:
    """Write four digits, rounded down, so that the value in the message fits."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / unit) * unit:.4g}"


def check_budget(epsilon: Any, delta: Any) -> tuple[float, float]:
    """Check a budget. Neither part has a default."""
    if epsilon is None or delta is None:
        raise InvalidInput("Give both epsilon and delta, the most that may ever be spent. Got only one of them.")
    return _validation.check_epsilon(epsilon), _validation.check_probability(delta, "delta", zero=True)
