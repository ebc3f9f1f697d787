"""The filter's rules in small pieces: what a budget allows, what adds up, and what is written down."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import BudgetExceeded
from scoreshield.privacy import calibration, filters
from scoreshield.privacy.filters import Headroom, PrivacyFilter, Sums, check_budget, compute_cost
from scoreshield.privacy.losses import compute_log_moment
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, LaplaceProfile, Profile, PureProfile

BUDGETS = [(1.0, 1e-6), (0.1, 1e-9), (8.0, 1e-3), (30.0, 1e-5)]


@functools.lru_cache
def largest_gain(order: float) -> float:
    """max (1 - e^-x) e^-((order - 1) x), on a fine grid."""
    x = np.geomspace(1e-4, 1e2, 100_001)
    return float(np.max(-np.expm1(-x) * np.exp(-(order - 1) * x)))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("share", [0.99, 0.01])
def test_orders_together_take_share_delta_no_more(epsilon: float, delta: float, share: float) -> None:
    """Markov at each order: a run whose moment is m has delta at most c e^(m - (order - 1) epsilon)."""
    limits = filters._compute_limits(epsilon, delta)
    caps = limits.caps if share == 0.99 else limits.mixed_caps
    taken = [
        largest_gain(order) * math.exp(cap - (order - 1) * epsilon)
        for order, cap in zip(limits.orders, caps, strict=True)
    ]
    allowed = (share - 0.001) * delta  # a thousandth is for losses without bound
    assert 0.999 * allowed < sum(taken) <= allowed
    assert max(taken) == pytest.approx(min(taken), rel=1e-3)  # no order is favoured


def test_the_shares_of_a_run_add_up_to_delta() -> None:
    assert filters._ONE_KIND + filters._BOTH_KINDS <= 1.0
    assert 0 < filters._RESIDUAL < filters._BOTH_KINDS


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_gaussian_runs_99_hundredths_delta(epsilon: float, delta: float) -> None:
    """Gaussian runs have 99 hundredths of delta."""
    mu = math.sqrt(filters._compute_limits(epsilon, delta).squared_mu)
    assert calibration.compute_delta(epsilon, mu) <= 0.99 * delta
    assert calibration.compute_delta(epsilon, mu) == pytest.approx(0.99 * delta, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [*BUDGETS, (0.3, 1e-7), (2.7, 1e-5), (11.0, 1e-10)])
def test_limits_are_rounded_down(epsilon: float, delta: float) -> None:
    """A sum is rounded to the nearest double before it is compared: what passes is within the limit all the same."""
    limits, rounding = filters._compute_limits(epsilon, delta), 1 + Fraction(1, 2**53)
    mu = Fraction(calibration.find_mu(epsilon, 0.99 * delta))
    assert mu**2 * (1 - Fraction(2, 10**14)) < Fraction(limits.squared_mu) * rounding <= mu**2
    with mpmath.workdps(40):
        for share, caps in ((0.99, limits.caps), (0.01, limits.mixed_caps)):
            for order, cap in zip(limits.orders, caps, strict=True):
                x = mpmath.mpf(order)
                each = mpmath.log(delta) + mpmath.log((mpmath.mpf(share) - mpmath.mpf(0.001)) / len(caps))
                whole = (x - 1) * epsilon + each + mpmath.log(x) - (x - 1) * mpmath.log(1 - 1 / x)
                if whole > 0:  # no run has a moment below 0
                    assert whole * (1 - mpmath.mpf(2e-12)) < cap * (1 + mpmath.mpf(2) ** -53) <= whole


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_first_charge_take_budget_whole(epsilon: float, delta: float) -> None:
    """By both books, though 99 hundredths of delta would not cover it; a second charge may not."""
    whole = GaussianProfile(calibration.find_mu(epsilon, delta))
    assert filters._compute_limits(epsilon, delta).squared_mu < whole.mu**2
    empty, full = PrivacyFilter(epsilon, delta), PrivacyFilter.from_charges(epsilon, delta, {whole: 1})
    assert empty.would_fit(whole)
    assert empty.would_fit_by_rules_1(whole, lambda: pytest.fail("both ends agree"))
    assert full.is_within_limit()
    assert full.is_within_limit_by_rules_1({whole: 1})
    for more in (GaussianProfile(whole.mu / 1000), PureProfile(epsilon / 1000)):
        assert not full.would_fit(more)
        assert not full.would_fit_by_rules_1(more, lambda: {whole: 1})


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_one_order_is_the_best_for_gaussian_noise(epsilon: float, delta: float) -> None:
    """The orders lie around the one at which the most Gaussian noise fits."""
    limits = filters._compute_limits(epsilon, delta)
    assert all(order > 1 for order in limits.orders)
    assert list(limits.orders) == sorted(limits.orders)
    fitting = [2 * cap / (order * (order - 1)) for order, cap in zip(limits.orders, limits.caps, strict=True)]
    best = int(np.argmax(fitting))
    assert 0 < best < len(fitting) - 1
    assert fitting[best] > 0.6 * limits.squared_mu
    assert limits.orders[2] - 1 == pytest.approx((limits.orders[0] - 1) * 2)


def test_without_delta_there_are_no_orders() -> None:
    assert filters._compute_limits(1.0, 0.0).orders == ()
    assert PrivacyFilter(1.0, 0.0).headroom == Headroom(1.0, 0.0, 0.0)


CHARGES = [PureProfile(0.1), LaplaceProfile(0.3), GaussianProfile(0.2), CurveProfile((0.0, 1.0), (0.1, 1e-9))]


@pytest.mark.parametrize("profile", CHARGES, ids=lambda profile: profile.kind)
def test_sums_add_up_in_any_order_and_come_back(profile: object) -> None:
    one = compute_cost(profile, 1.0, 1e-6)  # type: ignore[arg-type]
    other = compute_cost(PureProfile(0.07), 1.0, 1e-6)
    assert one.count == 1
    assert one.gaussians == isinstance(profile, GaussianProfile)
    assert one.only == profile
    orders = filters._compute_limits(1.0, 1e-6).orders
    assert [float(moment) for moment in one.moments] == [compute_log_moment(profile, order) for order in orders]  # type: ignore[arg-type]
    assert one + other == other + one
    assert (one + other).only is None
    assert one + Sums() == Sums() + one == one
    assert one.times(0) == Sums()
    assert one.times(1) == one
    assert one.times(3) == one + one + one
    assert (one + other).times(2) == one + other + one + other
    for sums in (one, one.times(7), one + other, Sums()):
        assert Sums.from_dict(sums.to_dict()) == sums
        assert sums.is_near(sums)


def test_sums_of_other_charges_are_not_near() -> None:
    one = compute_cost(PureProfile(0.1), 1.0, 1e-6)
    assert one.is_near(Sums(1, 0, one.pure * (1 + Fraction(1, 2**50)), *list(vars(one).values())[3:]))
    assert not one.is_near(compute_cost(PureProfile(0.1 * (1 + 1e-10)), 1.0, 1e-6))
    assert not one.is_near(one.times(2))
    assert not one.is_near(compute_cost(PureProfile(0.1), 1.0, 0.0))
    for field, value in (
        ("count", 2),
        ("gaussians", 1),
        ("pure", 9.0),
        ("squared_mu", 9.0),
        ("residual", 9.0),
        ("only", None),
    ):
        assert not one.is_near(Sums(**{**vars(one), field: value}))


@pytest.mark.parametrize("field", ["pure", "squared_mu", "residual", "moments"])
def test_sums_near_within_part_2_40(field: str) -> None:
    """Two libraries of mathematics differ by less; another charge differs by more."""
    one = compute_cost(CurveProfile((0.0, 1.0), (0.1, 1e-9)), 1.0, 1e-6)
    one = Sums(**{**vars(one), "pure": Fraction(1, 3), "squared_mu": Fraction(1, 7)})

    def moved(by: float) -> Sums:
        value = getattr(one, field)
        other = value * Fraction(1 + by) if field != "moments" else (*value[:-1], value[-1] * Fraction(1 + by))
        return Sums(**{**vars(one), field: other})

    for sign in (1, -1):
        assert one.is_near(moved(sign * 2.0**-41))
        assert not one.is_near(moved(sign * 2.0**-39))


@pytest.mark.parametrize("text", ["", "p", "1", "zp3", "1p-1", "1p1075", "1p 3", "f" * 1300 + "p0", "1p3p4"])
def test_damaged_sums_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        filters._from_text(text)


def test_the_longest_sums() -> None:
    """1,200 characters and 1,074 powers of two: the smallest double has no more."""
    assert filters._from_text("0" * 1197 + "1p0") == filters._from_text("0" * 1194 + "400p10") == 1
    assert filters._from_text("1p1074") == Fraction(5e-324)
    for text in ("0" * 1198 + "1p0", "1p1075"):
        with pytest.raises(ValueError, match="no exact sum"):
            filters._from_text(text)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-300, 5e-324, 1e300, 3.0, math.inf])
def test_exact_sums_are_written_to_the_last_bit(value: float) -> None:
    exact = math.inf if math.isinf(value) else Fraction(value)
    assert filters._from_text(filters._to_text(exact)) == exact
    assert filters._round(exact) == value
    assert filters._round(Fraction(10) ** 400) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_what_room_names_does_fit_to_the_last_bit(delta: float) -> None:
    """Room added doubles where a charge adds exactly: in one of a few hundred budgets its figure did not fit."""
    random = np.random.default_rng(7)
    for _ in range(300):
        budget = PrivacyFilter(float(10 ** random.uniform(-2, 2)), delta)
        for share in random.dirichlet(np.ones(6))[:5]:
            budget.spend(PureProfile(float(share) * budget.epsilon))
        room = budget.headroom
        assert room.pure > 0
        assert budget.would_fit(PureProfile(room.pure))
        assert not room.mu or budget.would_fit(GaussianProfile(room.mu))


@pytest.mark.parametrize("delta", [5e-324, 1e-320, 1e-300, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("epsilon", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize(
    "profile", [PureProfile(5e-324), PureProfile(1e-9), GaussianProfile(1e-9), GaussianProfile(9.0)]
)
def test_budgets_at_the_ends_of_the_number_line(epsilon: float, delta: float, profile: Profile) -> None:
    budget = PrivacyFilter(epsilon, delta)
    for _ in range(3):
        with contextlib.suppress(ss.BudgetExceeded):
            budget.spend(profile)
    assert 0 <= budget.spent <= epsilon * (1 + 1e-9)
    assert budget.is_within_limit()
    assert budget.headroom.pure <= epsilon


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (-1.0, "0"), (1.0, "1"), (0.123456, "0.1234"), (99.999, "99.99"), (12345.6, "1.234e+04")],
)
def test_what_is_said_to_fit_is_rounded_down(value: float, said: str) -> None:
    assert filters._format_down(value) == said
    assert float(filters._format_down(value)) <= max(0.0, value)


def test_room_in_words() -> None:
    assert str(Headroom(0.0, 0.0, 0.0)) == "nothing more fits"
    assert "0.5" in str(Headroom(0.5, 0.0, 0.0))
    assert "Gaussian" not in str(Headroom(0.5, 0.0, 0.0))
    assert "pure" not in str(Headroom(0.0, 0.2, 0.7))
    assert "0.2" in str(Headroom(0.0, 0.2, 0.7))
    assert "0.75" in str(Headroom(0.0, 0.2, 0.75))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_room_is_what_fits_and_no_more(epsilon: float, delta: float) -> None:
    mu = calibration.find_mu(epsilon, delta) / 5
    pure = PureProfile(epsilon / 9)
    for charged in (
        [PureProfile(epsilon / 3)],
        [GaussianProfile(mu)],
        [pure, pure],
        [PureProfile(epsilon / 99), GaussianProfile(mu / 9)],
    ):
        filter_ = PrivacyFilter(epsilon, delta)
        for profile in charged:
            filter_.spend(profile)
        room = filter_.headroom
        for make, most in ((PureProfile, room.pure), (GaussianProfile, room.mu)):
            if most > 0:
                assert filter_.would_fit(make(most * (1 - 1e-9)))
            assert not filter_.would_fit(make((most or 1e-9 * epsilon) * (1 + 1e-5)))
        if room.mu:
            assert room.gaussian == calibration.find_epsilon(delta, room.mu)


def test_a_filter_knows_what_it_has_charged() -> None:
    filter_ = PrivacyFilter(1.0, 1e-6)
    assert filter_.spent == 0.0
    assert filter_.remaining == 1.0
    assert filter_.is_within_limit()
    filter_.spend(PureProfile(0.25))
    filter_.spend(PureProfile(0.25))
    assert filter_.charges == {PureProfile(0.25): 2}
    assert filter_.spent <= 0.5
    assert filter_.remaining == 1.0 - filter_.spent
    with pytest.raises(ss.BudgetExceeded) as caught:
        filter_.spend(PureProfile(5.0))
    assert caught.value.asked == 5.0
    assert caught.value.limit == 1.0
    assert caught.value.spent == filter_.spent
    assert filter_.charges == {PureProfile(0.25): 2}
    same = PrivacyFilter.from_charges(1.0, 1e-6, {PureProfile(0.25): 2})
    assert same._sums == filter_._sums
    assert same.spent == filter_.spent
    assert PrivacyFilter.from_sums(1.0, 1e-6, filter_._sums).headroom == filter_.headroom
    assert not PrivacyFilter.from_charges(1.0, 1e-6, {PureProfile(0.25): 50}).is_within_limit()
    assert not PrivacyFilter.from_charges(1.0, 0.0, {GaussianProfile(0.1): 1}).is_within_limit()
    assert PrivacyFilter.from_charges(1.0, 1e-6, {GaussianProfile(0.05): 1}).is_within_limit()


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_rules_at_their_borders(epsilon: float, delta: float) -> None:
    filter_ = PrivacyFilter(epsilon, delta)
    limits, zeros = filter_._limits, (0.0,) * len(filters._ORDERS)
    infinite = (math.inf,) * len(zeros)

    def fits(gaussians: int, **sums: Any) -> bool:
        given = {"pure": math.inf, "squared_mu": math.inf, "residual": 0.0, "moments": infinite, **sums}
        return filter_._fits(filters._RoundedSums(3, gaussians, **given), None)

    def above(value: float) -> float:
        return math.nextafter(value, math.inf)

    assert fits(3, squared_mu=limits.squared_mu)
    assert not fits(3, squared_mu=above(limits.squared_mu), pure=0.0, moments=zeros)
    assert fits(0, pure=epsilon)
    assert not fits(0, pure=above(epsilon), squared_mu=0.0)
    for gaussians in (1, 2):
        assert not fits(gaussians, pure=0.0, squared_mu=0.0)
    most = 0.001 * delta
    for gaussians, caps in ((0, limits.caps), (1, limits.mixed_caps), (2, limits.mixed_caps)):
        for place, cap in enumerate(caps):
            one = (*infinite[:place], cap, *infinite[place + 1 :])
            assert fits(gaussians, moments=one)
            assert fits(gaussians, moments=one, residual=most)
            assert not fits(gaussians, moments=one, residual=above(most))
            assert not fits(gaussians, moments=(*infinite[:place], above(cap), *infinite[place + 1 :]))


@pytest.mark.parametrize(
    ("limit", "exact"),
    [
        (3.0, 3.0),
        (0.5, 0.5),
        (3.0, math.nextafter(3.0, 4.0)),
        (0.5, math.nextafter(0.5, 1.0)),
        (1e-3, 1e-3),
        (10.0, 10.0),
        (1e-12, 1e-12),
    ],
)
def test_the_largest_is_found_to_the_last_bit(limit: float, exact: float) -> None:
    """Where it is known in advance, up to the double above it."""
    assert filters._find_largest(lambda value: value <= limit, 10.0, exact) == limit


@pytest.mark.parametrize("limit", [0.003, 3.0, 9.9, 10.0])
@pytest.mark.parametrize("exact", [-1.0, 0.0, 2.0, 4.0, math.inf])
def test_the_largest_is_found_by_halves(limit: float, exact: float) -> None:
    found = filters._find_largest(lambda value: value <= limit, 10.0, min(exact, limit / 1.5) if exact > 0 else exact)
    assert limit * (1 - 1e-9) < found <= limit


def test_the_largest_is_nothing_or_all() -> None:
    for limit, found in ((0.0, 0.0), (0.9e-8, 0.0), (20.0, 10.0)):
        assert filters._find_largest(lambda value, limit=limit: 0 < value <= limit, 10.0, -1.0) == found
    assert 1e-8 <= filters._find_largest(lambda value: value <= 1.0000001e-8, 10.0, -1.0) <= 1.0000001e-8


def test_orders_of_a_delta_that_cannot_be_shared() -> None:
    """A ninth of the smallest double is 0; its logarithm is computed in two parts."""
    for delta in (5e-324, 1e-300):
        bits = -math.log(delta) - math.log(0.99 / len(filters._ORDERS))
        best = math.sqrt(bits) / (math.sqrt(1.0 + bits) - math.sqrt(bits))
        assert filters._choose_orders(1.0, delta) == pytest.approx(
            [1 + factor * best for factor in filters._ORDERS], rel=1e-9
        )


def test_room_of_a_pure_run_is_what_is_left_over() -> None:
    for delta in (0.0, 1e-6):
        assert PrivacyFilter.from_charges(1.0, delta, {PureProfile(0.25): 1}).headroom.pure == 0.75
        assert PrivacyFilter.from_charges(1.0, delta, {PureProfile(0.25): 3}).headroom.pure == 0.25


def test_rounding_profile_not_turn_away() -> None:
    """By one part in 2^44 at most."""
    profile = GaussianProfile(0.3)
    delta = profile.delta_at(1.0)
    for less, fits in ((0.0, True), (2.0**-45, True), (2.0**-43, False)):
        assert PrivacyFilter(1.0, delta * (1 - less)).would_fit(profile) is fits


def test_no_room() -> None:
    assert PrivacyFilter.from_charges(1.0, 1e-6, {GaussianProfile(5.0): 1}).headroom == Headroom(0.0, 0.0, 0.0)


def test_refusals_in_words() -> None:
    filter_ = PrivacyFilter.from_charges(1.0, 1e-6, {PureProfile(0.5): 1})
    start = (
        "The privacy budget does not cover this: it asks for epsilon 0.75{} where 0.5 of 1 is spent at delta 1e-06; "
    )
    for number, times in ((1, ""), (2, ", 2 times,"), (3, ", 3 times,"), (4000, ", 4,000 times,")):
        assert str(filter_.make_error(PureProfile(0.75), number)) == start.format(times) + f"{filter_.headroom}."
    assert str(filter_.make_error(PureProfile(0.75))) == str(filter_.make_error(PureProfile(0.75), 1))
    only_pure = "is spent at delta {}, and a delta of 0 takes only pure ones; "
    assert only_pure.format(0) in str(PrivacyFilter(1.0, 0.0).make_error(GaussianProfile(0.5)))
    for budget, profile in (
        (PrivacyFilter(1.0, 0.0), PureProfile(2.0)),
        (PrivacyFilter(1.0, 1e-6), GaussianProfile(9.0)),
    ):
        assert "takes only pure ones" not in str(budget.make_error(profile))
        assert "XX" not in str(budget.make_error(profile))


def test_spent_least_proved() -> None:
    """The pure sum, the one charge by itself, Gaussian noise that covers all, or the best Renyi order."""
    delta = 1e-6

    def renyi(filter_: PrivacyFilter) -> float:
        sums, orders = filter_._sums, filter_._limits.orders
        spare = math.log(delta - float(sums.residual))
        slack = [math.log(1 / largest_gain(order)) for order in orders]
        return min(
            (float(moment) - spare - gain) / (order - 1)
            for order, moment, gain in zip(orders, sums.moments, slack, strict=True)
        )

    few = PrivacyFilter.from_charges(10.0, delta, {PureProfile(0.1): 2})
    assert few.spent == pytest.approx(0.2, rel=1e-15)
    one = PrivacyFilter.from_charges(10.0, delta, {GaussianProfile(0.5): 1})
    assert one.spent == GaussianProfile(0.5).epsilon_at(delta)
    for number in (2, 3, 30):
        several = PrivacyFilter.from_charges(10.0, delta, {GaussianProfile(0.3): number})
        assert several.spent == pytest.approx(calibration.find_epsilon(delta, math.sqrt(number) * 0.3), rel=1e-12)
        assert several.spent < renyi(several)
    many = PrivacyFilter.from_charges(10.0, delta, {CurveProfile((0.0, 0.5, 3.0), (0.3, 0.1, 1e-7)): 3})
    assert many._sums.pure == many._sums.squared_mu == math.inf
    assert float(many._sums.residual) == pytest.approx(3e-7)
    assert many.spent == pytest.approx(renyi(many), rel=1e-6)
    faint = PrivacyFilter.from_charges(10.0, delta, {GaussianProfile(1e-170): 2})
    assert faint._sums.squared_mu == 0
    assert faint.spent == pytest.approx(renyi(faint), rel=1e-6)
    beyond = PrivacyFilter.from_charges(10.0, delta, {CurveProfile((0.0, 0.5), (0.3, delta)): 1, PureProfile(0.1): 1})
    assert beyond.spent == math.inf, "more than delta is lost without bound"
    assert (few.remaining, beyond.remaining) == (10.0 - few.spent, 0.0)


def test_what_a_curve_asks_for() -> None:
    """Its pure end where that is less, else its epsilon at the budget's delta."""
    curve = CurveProfile((0.0, 1.0, 5.0), (0.5, 1e-7, 0.0))
    assert PrivacyFilter(8.0, 1e-6).compute_epsilon(curve) == pytest.approx(curve.epsilon_at(1e-6))
    assert PrivacyFilter(8.0, 0.0).compute_epsilon(curve) == pytest.approx(5.0)
    assert PrivacyFilter(8.0, 1e-6).compute_epsilon(PureProfile(3.0)) == 3.0
    assert PrivacyFilter(8.0, 1e-6).compute_epsilon(GaussianProfile(0.3)) == calibration.find_epsilon(1e-6, 0.3)
    assert PrivacyFilter(8.0, 0.0).compute_epsilon(GaussianProfile(0.3)) == math.inf


@pytest.mark.parametrize(
    ("number", "profile"),
    [(9, PureProfile(0.1)), (10, PureProfile(0.1)), (11, PureProfile(0.1)), (30, GaussianProfile(0.02))],
)
def test_both_rule_books_agree_far_from_the_limit(number: int, profile: PureProfile | GaussianProfile) -> None:
    """They differ by less than one part in 2^50, so they may disagree only there; 10 x 0.1 is such a place."""
    filter_ = PrivacyFilter.from_charges(1.0, 1e-12, Counter({profile: number - 1}))
    asked: list[bool] = []

    def charged() -> dict[object, int]:
        asked.append(True)
        return {profile: number - 1}

    first = filter_.would_fit_by_rules_1(profile, charged)  # type: ignore[arg-type]
    exact = number * Fraction(profile.epsilon) <= 1 if isinstance(profile, PureProfile) else True
    if number != 10:
        assert first == filter_.would_fit(profile) == exact
        assert not asked
    else:
        assert asked
        assert first == (math.fsum([9 * 0.1, 0.1]) <= 1.0) or first == (10 * 0.1 <= 1.0)
    whole = PrivacyFilter.from_charges(1.0, 1e-12, {profile: number})
    assert whole.is_within_limit_by_rules_1({profile: number}) == first
    assert PrivacyFilter(1.0, 1e-12).is_within_limit_by_rules_1({})


def test_hair_beyond_limit_book_1_counts_charge() -> None:
    """Three times 0.1 is more than 0.3 in doubles; twice is not."""
    tenth = PureProfile(0.1)
    filter_ = PrivacyFilter.from_charges(0.3, 0.0, {tenth: 2})
    asked: list[bool] = []
    assert not filter_.would_fit_by_rules_1(tenth, lambda: asked.append(True) or {tenth: 2})
    assert asked == [True]
    assert filter_.charges == {tenth: 2}


def test_book_1_adds_up_each_kind_by_itself() -> None:
    filter_ = PrivacyFilter(1.0, 1e-6)
    charged = {PureProfile(0.1): 3, GaussianProfile(0.2): 2, CurveProfile((0.0, 1.0), (0.1, 1e-9)): 4}
    total = filter_._add_up_by_rules_1(charged)
    exact = PrivacyFilter.from_charges(1.0, 1e-6, charged)._sums
    assert (total.count, total.gaussians) == (9, 2)
    assert total.pure == math.inf
    assert total.residual == pytest.approx(4e-9)
    assert total.squared_mu == math.inf
    assert total.moments == pytest.approx([float(moment) for moment in exact.moments], rel=1e-14)
    finite = filter_._add_up_by_rules_1({PureProfile(0.1): 3, LaplaceProfile(0.2): 2})
    assert finite.pure == pytest.approx(0.7, rel=1e-15)
    assert finite.squared_mu == pytest.approx(
        float(PrivacyFilter.from_charges(1.0, 1e-6, {PureProfile(0.1): 3, LaplaceProfile(0.2): 2})._sums.squared_mu)
    )
    twice = finite.scale(2.0)
    assert (twice.count, twice.gaussians) == (finite.count, finite.gaussians)
    assert twice.pure == 2 * finite.pure
    assert twice.squared_mu == 2 * finite.squared_mu
    assert twice.moments == tuple(2 * moment for moment in finite.moments)
    assert total.scale(2.0).residual == 2 * total.residual


def test_a_budget_is_given_whole() -> None:
    assert check_budget(1, 0) == (1.0, 0.0)
    for epsilon, delta in ((None, 0.0), (1.0, None), (None, None)):
        with pytest.raises(ss.InvalidInput, match="Give both epsilon and delta"):
            check_budget(epsilon, delta)
    for epsilon, delta, name in ((0.0, 0.1, "epsilon"), (1.0, 1.0, "delta"), (1.0, -0.1, "delta")):
        with pytest.raises(ss.InvalidInput, match=f"'{name}' parameter must"):
            check_budget(epsilon, delta)


@pytest.mark.parametrize("number", [1, 3])
def test_charges_that_tell_nothing_cost_nothing(number: int) -> None:
    """A table whose rows are equal has a profile of 0 throughout; what is spent is still a number."""
    nothing = CurveProfile((0.0,), (0.0,))
    budget = PrivacyFilter(1.0, 1e-6)
    for _ in range(number):
        budget.spend(nothing)
    assert budget.spent == 0
    assert budget.headroom.pure == 1.0
    with pytest.raises(BudgetExceeded):
        budget.spend(PureProfile(5.0))
