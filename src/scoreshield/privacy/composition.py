"""The privacy of several releases of the same records together.

`compose` is for a list that was fixed beforehand. It is exact for Gaussian noise, where the squares of mu add up (Dong,
Roth & Su 2022). For other noise it uses privacy-loss distributions: each profile becomes a discrete loss law that
dominates it (the broken line through its values on a grid, Doroshenko et al. 2022), and the dp-accounting package
convolves the laws. `parallel` and `group` are the other two rules. `PrivacyFilter` is for queries that depend on
earlier answers. docs/accounting.md has the proofs.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._validation import one_of, validate
from scoreshield.errors import BudgetExceeded, InvalidInput
from scoreshield.privacy.filters import Headroom, PrivacyFilter
from scoreshield.privacy.losses import (
    LossLaw,
    compute_log_moment,
    compute_residual,
    extract_profile,
    find_pure_epsilon,
    make_loss_law,
)
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, Profile, PureProfile, round_up

__all__ = ["BudgetExceeded", "Headroom", "PrivacyFilter", "compose", "group", "parallel"]

Method = Literal["auto", "basic", "pld"]
METHODS: tuple[str, ...] = get_args(Method)

Float = NDArray[np.float64]
_KNOTS = 800  # of a composed curve
_TAIL = 1e-16  # what lies beyond this delta counts as a loss without bound
_GRID = 400_000  # points that a convolution may have, about
_FARTHEST = 600.0  # the largest epsilon that a composed curve speaks of
_FAINTEST = 1e-40  # the least delta that it goes down to
_LEAST_FINITE = 1e-9  # the least probability of a finite loss that is worth a convolution
_ORDERS = 1 + np.geomspace(1e-2, 1e5, 141)
_ORDER_SLACK = np.log(_ORDERS) - (_ORDERS - 1) * np.log1p(-1 / _ORDERS)  # docs/accounting.md: ln 1/c


@validate(method=one_of(METHODS))
def compose(items: Iterable[Any], *, method: Method = "auto") -> Profile:
    """Compute the profile of several mechanisms on the same records, in a list that was fixed beforehand.

    Args:
        items: Guarantees, releases or profiles.
        method: ``"basic"`` adds up pure epsilons, and is exact as a pure promise. ``"pld"`` convolves privacy-loss
            distributions and needs the ``accounting`` extra. ``"auto"`` adds up the squares of mu where all are
            Gaussian, and otherwise uses ``"pld"``. Without the extra it uses ``"basic"`` if all are pure.

    Returns:
        A profile that never understates: a ``GaussianProfile`` that is exact, a ``PureProfile``, or a ``CurveProfile``
        with an epsilon above the true one by about 0.01 % at a delta of 1e-6, 1 % at 1e-9 and 4 % below.
    """
    if not isinstance(items, Iterable):
        _validation.reject("items", "a list of guarantees, releases or profiles", items)
    counts = Counter(extract_profile(item) for item in items)
    if not counts:
        raise InvalidInput("compose needs at least one guarantee, release or profile; got none.")
    pure = _sum_up(counts)
    if method == "basic":
        if math.isinf(pure):
            raise InvalidInput("Basic composition adds up pure epsilons, and one of these has none; use method='pld'.")
        return PureProfile(pure)
    if method == "auto" and counts.total() == 1:
        return next(iter(counts))
    if method == "auto" and all(isinstance(profile, GaussianProfile) for profile in counts):
        return GaussianProfile(_root_of_squares(counts))
    try:
        from dp_accounting.pld import pld_pmf
    except ImportError:
        if method == "auto" and math.isfinite(pure):
            return PureProfile(pure)
        raise InvalidInput(
            "Composing different kinds of noise needs the 'accounting' extra: pip install 'scoreshield[accounting]'."
        ) from None
    return _Convolution(pld_pmf, counts).curve(pure)


@validate()
def parallel(items: Iterable[Any]) -> Profile:
    """Compute the profile of mechanisms that each read their own records: the worst of them, at every epsilon.

    This is sound only if records were assigned without looking at them (by position, by a public label, or
    by an earlier charged release), so that changing one record changes the input of one mechanism.
    """
    profiles = list(dict.fromkeys(extract_profile(item) for item in items))
    if not profiles:
        raise InvalidInput("parallel needs at least one guarantee, release or profile; got none.")
    if len(profiles) == 1:
        return profiles[0]
    if all(isinstance(profile, GaussianProfile) for profile in profiles):
        return max(profiles, key=lambda profile: profile.mu)  # type: ignore[attr-defined]
    if all(isinstance(profile, PureProfile) for profile in profiles):
        return max(profiles, key=find_pure_epsilon)
    # The largest of convex curves is convex, so the broken line through its values lies above it.
    far = min(_FARTHEST, max(_find_reach(profile) for profile in profiles))
    losses = np.union1d(np.linspace(0, far, _KNOTS), [min(_find_reach(profile), far) for profile in profiles])
    deltas = [max(profile.delta_at(float(loss)) for profile in profiles) for loss in losses]
    return _make_falling_curve(losses, np.array(deltas))


@validate()
def group(item: Any, records: int) -> Profile:
    """Compute the profile for `records` records changed at once, of which the mechanism only promises one.

    A pure epsilon grows to g epsilon, Gaussian noise from mu to g mu. If the g records are known to move different
    entries, calibrating for them (``Identity``) needs less noise than this. A curve without a pure end raises an
    error.
    """
    profile = extract_profile(item)
    size = _validation.check_count(records, "records")
    if size == 1:
        return profile
    if isinstance(profile, GaussianProfile):
        return GaussianProfile(round_up(size * Fraction(profile.mu)))
    if math.isinf(find_pure_epsilon(profile)):
        raise InvalidInput(
            "A group of records has no useful bound under a curve that is not pure; calibrate with Identity(labels)."
        )
    return PureProfile(round_up(size * Fraction(find_pure_epsilon(profile))))


class _Part(NamedTuple):
    """A discrete loss law, the 2-norm of its masses, and how far rounding may have taken any sum of them."""

    pmf: Any
    norm: float
    slack: float


class _Convolution:
    """The composition of a multiset of profiles by dp-accounting's discrete loss laws on one grid.

    dp-accounting convolves by FFT, whose error adds to delta: a transform of N points is off by at most 6 u log2(N) of
    the 2-norm, and a sum over N points by sqrt(N) times the 2-norm of the errors.
    """

    def __init__(self, pld_pmf: ModuleType, counts: Counter[Profile]) -> None:
        self._pld_pmf = pld_pmf
        self._counts = counts
        reaches = {profile: min(_find_reach(profile), _FARTHEST) for profile in counts}
        span = math.sqrt(sum(number * reaches[profile] ** 2 for profile, number in counts.items()))
        self._step = max(min(reaches.values()) / 1000, 3 * span / _GRID) or 1.0  # 0 where all losses are 0 or infinite
        # Where next to no finite loss is left, truncating the tails would leave nothing: delta is 1 up to _FARTHEST.
        self._hopeless = self._log_finite(reaches) < math.log(_LEAST_FINITE)
        if not self._hopeless:
            parts = [self._convolve_times(self._law(profile), number) for profile, number in counts.items()]
            self._whole, _, self._slack = functools.reduce(self._convolve, parts)

    def curve(self, pure: float) -> CurveProfile:
        """Delta at the knots: the convolution, or the best Renyi order where that is less; 0 at the pure epsilon."""
        middle = min(self._find_middle(), pure, _FARTHEST)
        moments = np.array([self._moment(order) for order in _ORDERS])
        mass = sum(number * compute_residual(profile) for profile, number in self._counts.items())
        tail = float(np.min((moments - _ORDER_SLACK - math.log(_FAINTEST)) / (_ORDERS - 1)))
        far = min(max(middle, tail) if mass < _FAINTEST else middle, pure, _FARTHEST)
        losses = np.union1d(np.linspace(0, middle, _KNOTS), np.linspace(middle, far, _KNOTS // 4))
        convolved = self._deltas(losses)
        logs = np.min((moments - _ORDER_SLACK)[:, None] - np.outer(_ORDERS - 1, losses), axis=0)
        renyi = np.exp(np.minimum(logs, 0.0)) * (1 + 1e-9) + mass
        deltas = np.minimum(np.minimum(convolved, renyi), 1.0)
        if pure <= _FARTHEST:
            losses, deltas = np.append(losses[losses < pure], pure), np.append(deltas[losses < pure], 0.0)
        return _make_falling_curve(losses, deltas)

    def _find_middle(self) -> float:
        """Find the epsilon up to which the convolution resolves delta."""
        if self._hopeless:
            return math.inf
        infinite = float(self._whole.get_delta_for_epsilon([math.inf])[0])
        return float(self._whole.get_epsilon_for_delta(min(0.5, 2 * (infinite + self._slack))))

    def _deltas(self, losses: Float) -> Float:
        """Delta by the convolution, rounded up."""
        if self._hopeless:
            return np.ones_like(losses)
        return np.asarray(self._whole.get_delta_for_epsilon(losses)) * (1 + 1e-9) + self._slack

    def _log_finite(self, reaches: dict[Profile, float]) -> float:
        """Compute the logarithm of the probability that no mechanism's loss counts as infinite."""
        beyond = {profile: profile.delta_at(reach) for profile, reach in reaches.items()}
        if max(beyond.values()) >= 1:
            return -math.inf
        return math.fsum(number * math.log1p(-beyond[profile]) for profile, number in self._counts.items())

    def _moment(self, order: float) -> float:
        return math.fsum(number * compute_log_moment(profile, order) for profile, number in self._counts.items())

    def _law(self, profile: Profile) -> _Part:
        """Compute the loss law of a profile on the grid."""
        points = max(2, math.ceil(min(_find_reach(profile), _FARTHEST) / self._step) + 1)
        losses = self._step * np.arange(points, dtype=np.float64)
        law = make_loss_law(losses, np.array([profile.delta_at(float(loss)) for loss in losses]))
        masses = _mirror_losses(law)
        norm = math.sqrt(sum(mass * mass for mass in masses.values()))
        # Reading delta off the law subtracts two sums of at most 1, each rounded.
        return _Part(self._pld_pmf.create_pmf(masses, self._step, law.infinite, True), norm, 2.0**-50)

    def _convolve_times(self, part: _Part, number: int) -> _Part:
        """Convolve a law with itself ``number`` times, by repeated squaring."""
        if number == 1:
            return part
        half = self._convolve_times(part, number // 2)
        both = self._convolve(half, half)
        return self._convolve(both, part) if number % 2 else both

    def _convolve(self, one: _Part, other: _Part) -> _Part:
        pmf = self._pld_pmf.compose_pmfs(one.pmf, other.pmf, _TAIL)
        # Sparse laws are convolved term by term, which is more exact than this says.
        size = 2 * max(one.pmf.size + other.pmf.size, pmf.size)
        error = 24 * 2.0**-53 * math.log2(size) * math.sqrt(size) * max(one.norm, other.norm)
        return _Part(pmf, min(one.norm, other.norm), one.slack + other.slack + error)


def _mirror_losses(law: LossLaw) -> dict[int, float]:
    masses = {0: law.centre}
    mirrored = law.masses * np.exp(-law.losses)
    for place in np.flatnonzero(law.masses):
        masses[int(place) + 1] = float(law.masses[place])
        masses[-int(place) - 1] = float(mirrored[place])
    return masses


def _find_reach(profile: Profile) -> float:
    """Find where the profile ends: at its pure epsilon, or where delta is negligible."""
    if isinstance(profile, CurveProfile):
        return profile.losses[-1]
    pure = find_pure_epsilon(profile)
    return pure if math.isfinite(pure) else profile.epsilon_at(_TAIL)


def _sum_up(counts: Counter[Profile]) -> float:
    """Compute the sum of the pure epsilons, rounded up; infinite where one has none."""
    epsilons = {profile: find_pure_epsilon(profile) for profile in counts}
    if math.inf in epsilons.values():
        return math.inf
    return round_up(sum((number * Fraction(epsilons[profile]) for profile, number in counts.items()), Fraction(0)))


def _root_of_squares(counts: Counter[Profile]) -> float:
    total = math.fsum(number * profile.mu**2 for profile, number in counts.items())  # type: ignore[attr-defined]
    return math.sqrt(total) * (1 + 2.0**-51)


def _make_falling_curve(losses: Float, deltas: Float) -> CurveProfile:
    """Make the lower convex hull of points above a convex falling curve: still above it, and convex and falling."""
    heights = np.minimum.accumulate(deltas)
    xs = np.exp(losses - losses[-1])  # the hull is the same on any scale
    hull: list[int] = []
    for i in range(len(losses)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (heights[b] - heights[a]) * (xs[i] - xs[a]) < (heights[i] - heights[a]) * (xs[b] - xs[a]):
                break
            hull.pop()
        hull.append(i)
    return CurveProfile(tuple(float(losses[i]) for i in hull), tuple(float(heights[i]) for i in hull))
