"""Composition against closed forms, exact sums, quadrature and dp-accounting; filters against every adversary."""

from __future__ import annotations

import functools
import math
import pickle
import sys
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scoreshield as ss
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.composition import BudgetExceeded, PrivacyFilter, compose, group, parallel
from scoreshield.privacy.losses import compute_log_moment, find_dominating_mu, find_pure_epsilon, make_loss_law
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)

pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

CURVE = CurveProfile((0.0, 0.5, 1.0), (0.2, 0.08, 0.0))
LEAKY = CurveProfile((0.0, 0.5, 1.0), (0.2, 0.08, 1e-3))


def both_ways(profile: Profile, epsilon: float) -> float:
    """Delta at any real epsilon of a pair that is the same both ways."""
    if epsilon >= 0:
        return profile.delta_at(epsilon)
    return 1 - math.exp(epsilon) * (1 - profile.delta_at(-epsilon))


def responses(epsilon: float, times: int, at: float) -> float:
    """The exact delta of so many randomised responses, summed in 60 digits."""
    with mpmath.workdps(60):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        terms = (
            mpmath.binomial(times, k)
            * p**k
            * (1 - p) ** (times - k)
            * max(mpmath.mpf(0), 1 - mpmath.exp(at - (2 * k - times) * mpmath.mpf(epsilon)))
            for k in range(times + 1)
        )
        return float(mpmath.fsum(terms))


@pytest.mark.parametrize(("times", "mu"), [(3, 0.5), (100, 0.05), (700, 0.01), (2, 4.0)])
def test_gaussians_exactly_convolution_never(times: int, mu: float) -> None:
    """Gaussians exactly and convolution never below."""
    exact = compose([GaussianProfile(mu)] * times)
    assert isinstance(exact, GaussianProfile)
    assert exact.mu == pytest.approx(mu * math.sqrt(times), rel=1e-14)
    assert exact.mu >= mu * math.sqrt(times)
    curve = compose([GaussianProfile(mu)] * times, method="pld")
    near_miss = GaussianProfile(exact.mu * 1.0005)
    for delta in (1e-1, 1e-3, 1e-6):
        truth = exact.epsilon_at(delta)
        assert truth <= curve.epsilon_at(delta) < near_miss.epsilon_at(delta)
    for delta in (1e-9, 1e-12, 1e-30):
        assert exact.epsilon_at(delta) <= curve.epsilon_at(delta) < 1.05 * exact.epsilon_at(delta)


@pytest.mark.parametrize(("epsilon", "times"), [(1.0, 10), (0.1, 60), (0.01, 300), (3.0, 4)])
def test_pure_mechanisms_against_the_exact_sum(epsilon: float, times: int) -> None:
    curve = compose([PureProfile(epsilon)] * times)
    assert isinstance(curve, CurveProfile)
    assert curve.epsilon_at(0.0) == pytest.approx(epsilon * times)
    for share in (0.0, 0.1, 0.3, 0.6, 0.95):
        at = share * epsilon * times
        truth = responses(epsilon, times, at)
        assert curve.delta_at(at) >= truth
        if truth > 1e-8:
            assert curve.delta_at(at) <= truth * 1.01 + 1e-9
        assert truth > responses(epsilon, times - 2, at), "a composition that loses two would be seen"


@pytest.mark.parametrize("at", [0.0, 0.5, 2.0, 4.0, 6.0])
def test_a_mixture_against_its_closed_form(at: float) -> None:
    """Randomised response and Gaussian noise: the loss of the first is one of two numbers."""
    noise, first = GaussianProfile(0.8), PureProfile(2.0)
    p = 1 / (1 + math.exp(-2.0))
    truth = p * both_ways(noise, at - 2.0) + (1 - p) * both_ways(noise, at + 2.0)
    found = compose([first, noise]).delta_at(at)
    assert truth * (1 - 1e-11) <= found <= truth * 1.005 + 1e-11


@pytest.mark.parametrize("at", [0.0, 1.0, 2.5])
def test_laplace_and_gaussian_against_quadrature(at: float) -> None:
    noise, epsilon = GaussianProfile(0.6), 1.5
    # Laplace loss l: epsilon with mass 1/2, -epsilon with e^-epsilon / 2, between them density e^{(l-epsilon)/2} / 4.
    grid, step = np.linspace(-epsilon, epsilon, 20_001, retstep=True)
    inner = np.array([both_ways(noise, at - loss) for loss in grid]) * np.exp((grid - epsilon) / 2) / 4
    truth = np.sum((inner[1:] + inner[:-1]) / 2) * step
    truth += 0.5 * both_ways(noise, at - epsilon) + 0.5 * math.exp(-epsilon) * both_ways(noise, at + epsilon)
    found = compose([LaplaceProfile(epsilon), noise]).delta_at(at)
    assert truth * (1 - 1e-7) <= found <= truth * 1.002


def test_against_dp_accounting_by_itself() -> None:
    theirs = pld.from_gaussian_mechanism(1 / 0.3, value_discretization_interval=1e-3).self_compose(5)
    theirs = theirs.compose(pld.from_laplace_mechanism(2.0, value_discretization_interval=1e-3).self_compose(4))
    ours = compose([GaussianProfile(0.3)] * 5 + [LaplaceProfile(0.5)] * 4)
    for delta in (1e-2, 1e-4, 1e-6):
        assert ours.epsilon_at(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=2e-3)


def test_what_compose_takes_and_gives() -> None:
    release = ss.release_scores(np.eye(3), np.ones(3), epsilon=1.0, delta=1e-6)
    assert compose([release]) == GaussianProfile(release.guarantee.grid_sensitivity / release.guarantee.scale)
    assert compose([release, release.guarantee]).epsilon_at(1e-6) == pytest.approx(1.45, abs=0.02)
    assert compose([PureProfile(1), LaplaceProfile(0.5), CURVE], method="basic") == PureProfile(2.5)
    assert compose([LaplaceProfile(2.0)]) == LaplaceProfile(2.0)
    far = compose([PureProfile(500.0), GaussianProfile(0.1), PureProfile(400.0)])
    assert far.delta_at(1.0) == 1.0
    assert far.epsilon_at(1e-6) == math.inf
    with pytest.raises(ss.InvalidInput, match="at least one"):
        compose([])
    with pytest.raises(ss.InvalidInput, match="has none"):
        compose([GaussianProfile(1.0)], method="basic")
    with pytest.raises(ss.InvalidInput, match="'item' parameter of compose"):
        compose([3.0])
    with pytest.raises(ss.InvalidInput, match="'method' parameter"):
        compose([PureProfile(1)], method="magic")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    assert compose([PureProfile(1), LaplaceProfile(0.5)]) == PureProfile(1.5)
    assert compose([GaussianProfile(3), GaussianProfile(4)]).epsilon_at(0.1) > 0
    with pytest.raises(ss.InvalidInput, match="'accounting' extra"):
        compose([PureProfile(1), GaussianProfile(1)])


def test_parallel_is_the_worst_at_every_epsilon() -> None:
    assert parallel([GaussianProfile(1), GaussianProfile(2)]) == GaussianProfile(2)
    assert parallel([PureProfile(1), PureProfile(2)]) == PureProfile(2)
    mixed = [GaussianProfile(0.5), PureProfile(1.0), LaplaceProfile(1.2)]
    both = parallel(mixed)
    for epsilon in np.linspace(0, 5, 101):
        worst = max(profile.delta_at(epsilon) for profile in mixed)
        assert worst <= both.delta_at(epsilon) <= worst * 1.001 + 1e-9
    with pytest.raises(ss.InvalidInput, match="at least one"):
        parallel([])


def test_groups() -> None:
    assert group(PureProfile(0.5), 4) == PureProfile(2.0)
    assert group(LaplaceProfile(0.5), 4) == PureProfile(2.0)
    assert group(CURVE, 2) == PureProfile(2.0)
    assert group(LEAKY, 1) == LEAKY
    # A test that tells neighbours apart, applied along a path of three changes, is the curve of 3 mu.
    rates = np.linspace(0.001, 0.999, 50)
    one = GaussianProfile(0.4)
    assert np.allclose(one.tpr_at(one.tpr_at(one.tpr_at(rates))), group(one, 3).tpr_at(rates))
    with pytest.raises(ss.InvalidInput, match="no useful bound"):
        group(LEAKY, 2)


def moment_by_quadrature(profile: Profile, order: float) -> float:
    """ln of 1 + a (a-1) times the integral of (x^{a-2} + x^{-a-1}) delta(ln x), from the profile alone."""
    losses = np.linspace(0, 40, 400_001)
    deltas = np.interp(losses, losses[::20], [profile.delta_at(float(loss)) for loss in losses[::20]])
    values = (np.exp((order - 1) * losses) + np.exp(-order * losses)) * deltas
    return math.log1p(order * (order - 1) * np.sum((values[1:] + values[:-1]) / 2) * (losses[1] - losses[0]))


@pytest.mark.parametrize("order", [1.2, 2.0, 5.5])
@pytest.mark.parametrize(
    "profile",
    [GaussianProfile(0.7), PureProfile(1.3), StepProfile(1.3, 0.6), LaplaceProfile(1.3), CURVE, PureProfile(0.05)],
)
def test_renyi_moments_against_quadrature(profile: Profile, order: float) -> None:
    assert compute_log_moment(profile, order) == pytest.approx(moment_by_quadrature(profile, order), rel=2e-3)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-3, 0.009, 0.011, 1.0, 30.0])
@pytest.mark.parametrize("order", [1.01, 2.0, 17.0, 1000.0])
def test_renyi_moments_are_rounded_up(epsilon: float, order: float) -> None:
    with mpmath.workdps(60):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        response = mpmath.log((mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e)))
        laplace = mpmath.log(a / (2 * a - 1) * mpmath.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * e))
        assert response <= compute_log_moment(PureProfile(epsilon), order) <= response * (1 + mpmath.mpf(1e-10))
        mass = mpmath.mpf(0.45)
        steps = mpmath.log(1 + mass * (mpmath.expm1((a - 1) * e) + mpmath.exp(-a * e) - mpmath.exp(-e)))
        assert steps <= compute_log_moment(StepProfile(epsilon, 0.45), order) <= response * (1 + 1e-9) + 2e-15
        assert laplace <= compute_log_moment(LaplaceProfile(epsilon), order) <= laplace * (1 + 5e-2)


def test_loss_laws_dominate_what_they_stand_for() -> None:
    for profile in (GaussianProfile(1.0), LaplaceProfile(2.0), PureProfile(1.7), StepProfile(1.7, 0.5), LEAKY):
        losses = np.linspace(0, 8, 801)
        law = make_loss_law(losses, np.array([profile.delta_at(float(loss)) for loss in losses]))
        assert law.infinite + law.centre + np.sum(law.masses * (1 + np.exp(-law.losses))) >= 1
        for epsilon in np.linspace(0, 7.9, 133):
            above = np.maximum(-np.expm1(epsilon - law.losses), 0.0)
            assert law.infinite + above @ law.masses >= profile.delta_at(float(epsilon)) * (1 - 1e-13)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 4.0, 20.0])
def test_gaussian_covers_pure_mechanism(epsilon: float) -> None:
    """The gaussian that covers a pure mechanism."""
    mu = find_dominating_mu(PureProfile(epsilon))
    slack = [gaussian.compute_delta(e, mu) - PureProfile(epsilon).delta_at(e) for e in np.linspace(0, epsilon, 101)]
    assert min(slack) >= -1e-13
    assert any(
        gaussian.compute_delta(e, mu * 0.999) < PureProfile(epsilon).delta_at(e) for e in np.linspace(0, epsilon, 101)
    )
    assert find_dominating_mu(LEAKY) == math.inf


def test_a_pure_budget_is_spent_to_the_last_digit() -> None:
    budget = PrivacyFilter(1.0, 0.0)
    for _ in range(10):
        budget.spend(PureProfile(0.1))
    assert budget.spent == 1.0
    assert budget.remaining == 0.0
    assert str(budget.headroom) == "nothing more fits"
    with pytest.raises(BudgetExceeded, match=r"0\.001 where 1 of 1 is spent at delta 0; nothing more fits") as caught:
        budget.spend(PureProfile(1e-3))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.spent, error.asked, error.limit) == (1.0, 1e-3, 1.0)
    assert str(error) == str(caught.value)


def test_without_delta_only_pure_mechanisms_fit() -> None:
    budget = PrivacyFilter(1.0, 0.0)
    assert not budget.would_fit(GaussianProfile(1e-9))
    assert not budget.would_fit(LEAKY)
    assert budget.would_fit(CURVE)
    assert budget.would_fit(LaplaceProfile(1.0))
    assert not budget.would_fit(LaplaceProfile(1.0 + 1e-9))
    with pytest.raises(BudgetExceeded, match="a delta of 0 takes only pure ones"):
        budget.spend(GaussianProfile(1e-3))
    assert budget.headroom.mu == 0


@pytest.mark.parametrize("contract", [(0.1, 1e-8), (1.0, 1e-6), (5.0, 1e-6), (40.0, 1e-5)])
def test_one_release_may_take_the_budget_whole(contract: tuple[float, float]) -> None:
    release = ss.release_scores(np.eye(3), np.ones(3), epsilon=contract[0], delta=contract[1])
    budget = PrivacyFilter(*contract)
    assert budget.would_fit(release)
    assert not budget.would_fit(GaussianProfile(gaussian.find_mu(*contract) * 1.0001))
    assert budget.headroom.mu == pytest.approx(gaussian.find_mu(*contract), rel=1e-9)
    budget.spend(release)
    assert budget.spent == pytest.approx(contract[0], rel=1e-6)
    assert budget.spent <= contract[0]
    assert not budget.would_fit(GaussianProfile(gaussian.find_mu(*contract) * 0.05))
    pure = PrivacyFilter(*contract)
    pure.spend(PureProfile(contract[0]))
    assert pure.spent == contract[0]


@pytest.mark.parametrize(("mu", "contract"), [(0.1, (5.0, 1e-6)), (0.3, (10.0, 1e-6)), (0.02, (1.0, 1e-8))])
def test_gaussians_add_up_by_their_squares(mu: float, contract: tuple[float, float]) -> None:
    budget, number = PrivacyFilter(*contract), 0
    while budget.would_fit(GaussianProfile(mu)):
        budget.spend(GaussianProfile(mu))
        number += 1
    most = (gaussian.find_mu(*contract) / mu) ** 2
    assert most * 0.998 - 1 < number <= most
    assert budget.spent == pytest.approx(gaussian.find_epsilon(contract[1], mu * math.sqrt(number)))
    assert budget.remaining == pytest.approx(contract[0] - budget.spent)


def test_many_small_pure_mechanisms_cost_less_sum() -> None:
    """Many small pure mechanisms cost less than their sum."""
    budget = PrivacyFilter(5.0, 1e-6)
    for _ in range(250):
        budget.spend(PureProfile(0.05))
    assert budget.spent < 4.1 < 250 * 0.05
    # and no fixed list would have allowed more than this many
    assert compose([PureProfile(0.05)] * 500).epsilon_at(1e-6) > 5.0


def test_what_is_said_to_fit_fits() -> None:
    charges: list[Profile] = [PureProfile(2.0), GaussianProfile(0.5), LaplaceProfile(0.3), CURVE]
    budget = PrivacyFilter(10.0, 1e-6)
    for charge in charges:
        budget.spend(charge)
        room = budget.headroom
        for fits, more in (
            (PureProfile(room.pure), PureProfile(room.pure * 1.0001)),
            (GaussianProfile(room.mu), GaussianProfile(room.mu * 1.0001)),
        ):
            assert budget.would_fit(fits)
            assert not budget.would_fit(more)
        assert room.gaussian == pytest.approx(gaussian.find_epsilon(1e-6, room.mu))
    assert "a pure epsilon up to" in str(budget.headroom)


def test_a_loss_without_bound_is_charged_its_mass() -> None:
    leak = 1e-10
    leaky = CurveProfile((0.0, 1.0), (0.3, leak))
    budget, number = PrivacyFilter(50.0, 1e-6), 0
    while budget.would_fit(leaky):
        budget.spend(leaky)
        number += 1
    assert number == 10, "a thousandth of delta is set aside for such mass"
    assert PrivacyFilter(50.0, 1e-6).would_fit(CurveProfile((0.0, 1.0), (0.3, 1e-6)))
    assert not PrivacyFilter(50.0, 1e-6).would_fit(CurveProfile((0.0, 1.0), (0.3, 1.1e-6)))


profiles = st.one_of(
    st.builds(GaussianProfile, st.floats(0.02, 1.0)),
    st.builds(PureProfile, st.floats(0.01, 3.0)),
    st.builds(LaplaceProfile, st.floats(0.01, 3.0)),
    st.sampled_from([CURVE, CurveProfile((0.0, 0.4), (0.1, 1e-12))]),
)


@settings(max_examples=20)
@given(st.lists(profiles, min_size=1, max_size=10), st.floats(0.5, 15.0), st.sampled_from([1e-8, 1e-5, 1e-2]))
def test_whatever_fits_keeps_the_promise(asked: list[Profile], epsilon: float, delta: float) -> None:
    budget, taken = PrivacyFilter(epsilon, delta), []
    for profile in asked:
        if budget.would_fit(profile):
            budget.spend(profile)
            taken.append(profile)
        else:
            with pytest.raises(BudgetExceeded):
                budget.spend(profile)
    assert budget.spent <= epsilon
    assert budget.charges == dict(Counter(taken))
    if taken:
        assert compose(taken).delta_at(epsilon) <= delta * (1 + 1e-6) + 2e-10
    # A function of the multiset: any order gives the same answers.
    again = PrivacyFilter.from_charges(epsilon, delta, Counter(reversed(taken)))
    assert again.is_within_limit()
    assert again.spent == budget.spent
    assert [again.would_fit(profile) for profile in asked] == [budget.would_fit(profile) for profile in asked]


class Adversary:
    """The best that anyone can do who picks each next mechanism by all earlier answers, on a grid of losses, exactly.

    ``value(charged)`` is, for each loss so far, the largest expected excess (1 - e^{epsilon - L})_+ that any strategy
    still reaches; a rule says which multisets may be reached.
    """

    STEP, HALF = 0.05, 400

    def __init__(self, epsilon: float, mechanisms: list[Profile], rule: object) -> None:
        self.losses = self.STEP * np.arange(-self.HALF, self.HALF + 1)
        self.stop = np.maximum(-np.expm1(epsilon - self.losses), 0.0)
        self.mechanisms = mechanisms
        self.rule = rule
        self.laws = [self.law(mechanism) for mechanism in mechanisms]
        self.value = functools.cache(self._value)

    def law(self, profile: Profile) -> np.ndarray:
        """Masses at each multiple of the step; the Gaussian's loss is rounded to the grid from below."""
        if isinstance(profile, PureProfile):
            shift, p = round(profile.epsilon / self.STEP), 1 / (1 + math.exp(-profile.epsilon))
            masses = np.zeros(2 * shift + 1)
            masses[-1], masses[0] = p, 1 - p
            return masses
        assert isinstance(profile, GaussianProfile)
        points = np.arange(-80, 81)
        upper = [gaussian.ndtr((self.STEP * (k + 1) - profile.mu**2 / 2) / profile.mu) for k in points]
        return np.diff(upper, prepend=0.0)

    def _value(self, charged: tuple[int, ...]) -> np.ndarray:
        best = self.stop
        for place, law in enumerate(self.laws):
            after = tuple(number + (k == place) for k, number in enumerate(charged))
            if self.rule(dict(zip(self.mechanisms, after, strict=True))):
                half = len(law) // 2
                padded = np.pad(self.value(after), half, mode="edge")
                best = np.maximum(best, np.correlate(padded, law, mode="valid"))
        return best

    @property
    def delta(self) -> float:
        return float(self.value((0,) * len(self.mechanisms))[self.HALF])


@pytest.mark.parametrize(("epsilon", "delta"), [(1.5, 0.05), (1.0, 0.2), (2.0, 0.01)])
def test_no_adaptive_adversary_passes_filter(epsilon: float, delta: float) -> None:
    """No adaptive adversary passes the filter and one passes a naive rule."""
    mechanisms: list[Profile] = [PureProfile(0.25), PureProfile(0.5), GaussianProfile(0.4)]

    def rule(charged: dict[Profile, int]) -> bool:
        return PrivacyFilter.from_charges(epsilon, delta, Counter(charged)).is_within_limit()

    def fixed_list(charged: dict[Profile, int]) -> float:
        """Delta of the list as if it had been fixed beforehand, on the same grid."""
        lone = Adversary(epsilon, mechanisms, lambda _: False)
        value = lone.stop
        for mechanism, number in charged.items():
            law = lone.law(mechanism)
            for _ in range(number):
                value = np.correlate(np.pad(value, len(law) // 2, mode="edge"), law, mode="valid")
        return float(value[lone.HALF])

    adaptive = Adversary(epsilon, mechanisms, rule).delta
    naive = Adversary(epsilon, mechanisms, lambda charged: fixed_list(charged) <= delta).delta
    print(f"\n({epsilon}, {delta}): the best adversary reaches {adaptive:.5f}, and {naive:.5f} against a naive rule")
    assert adaptive <= delta
    assert naive > delta, "a rule that forgets adaptivity would be seen"


def test_bad_budgets_and_items() -> None:
    for budget in ((0.0, 1e-6), (1.0, 1.0), (1.0, -1e-6), ("1", 0.0), (math.inf, 0.0)):
        with pytest.raises(ss.InvalidInput):
            PrivacyFilter(*budget)
    with pytest.raises(ss.InvalidInput, match=r"PrivacyFilter\.would_fit"):
        PrivacyFilter(1.0, 1e-6).would_fit(0.5)
    assert find_pure_epsilon(CurveProfile((0.0,), (0.0,))) == 0.0


def test_the_shares_of_delta_leave_none_over() -> None:
    """The first charge decides which of the two pure-kind runs can occur, so they share one part."""
    from scoreshield.privacy import filters

    assert filters._ONE_KIND + filters._BOTH_KINDS <= 1


def test_a_single_curve_spends_what_it_promises() -> None:
    release = ss.release_index(np.eye(12), epsilon=20, delta=1e-6, components=4, reduction="pca")
    budget = PrivacyFilter(20, 1e-6)
    budget.spend(release)
    assert budget.spent <= 20
    assert budget.spent == pytest.approx(20, rel=1e-6)


def test_compose_takes_a_list() -> None:
    with pytest.raises(ss.InvalidInput, match="'items'"):
        compose(5)  # type: ignore[arg-type]


#: Each ended in an IndexError or a division by zero: next to no finite loss is left, or every loss is 0 or infinite.
EXTREME: list[list[Profile]] = [
    [GaussianProfile(350.1), *[PureProfile(113.4)] * 2, *[CurveProfile((0.0, 0.003), (0.01, 1e-13))] * 2],
    [GaussianProfile(194.0), *[PureProfile(0.017)] * 2, GaussianProfile(4e-7)],
    [GaussianProfile(1e3), PureProfile(1e-9)],
    [GaussianProfile(1e-9), PureProfile(700.0)],
    [GaussianProfile(30.0)] * 3 + [PureProfile(650.0)],
    [CurveProfile((0.0,), (2e-13,))] * 2,
    [CurveProfile((0.0,), (1.0,))] * 2,
    [CurveProfile((0.0,), (1 - 1e-12,))] * 3,
    [CurveProfile((0.0,), (0.0,))] * 2,
    [StepProfile(700.0, 1e-12), PureProfile(1e-9)],
]


@functools.cache
def random_mixes() -> list[list[Profile]]:
    """Pure epsilons from 1e-9 to 700 beside mu from 1e-9 to 1e3, a few copies of each."""
    rng = np.random.default_rng(14)
    found: list[list[Profile]] = []
    for _ in range(10):
        mix: list[Profile] = [GaussianProfile(float(10 ** rng.uniform(-9, 3)))] * int(rng.integers(0, 3))
        mix += [PureProfile(float(10 ** rng.uniform(-9, math.log10(700))))] * int(rng.integers(1, 4))
        found.append(mix)
    return found


def exact_mixture(mix: list[Profile], at: float) -> float:
    """Delta of Gaussians beside randomised responses of one epsilon: the latter's loss is one of few numbers."""
    mu = math.sqrt(math.fsum(profile.mu**2 for profile in mix if isinstance(profile, GaussianProfile)))
    epsilons = [profile.epsilon for profile in mix if isinstance(profile, PureProfile)]
    if not epsilons:
        return GaussianProfile(mu).delta_at(at)
    epsilon, times = epsilons[0], len(epsilons)
    if mu == 0:
        return responses(epsilon, times, at)
    p = 1 / (1 + math.exp(-epsilon))
    return math.fsum(
        math.comb(times, k)
        * p**k
        * (math.exp(-epsilon) * p) ** (times - k)
        * both_ways(GaussianProfile(mu), at - (2 * k - times) * epsilon)
        for k in range(times + 1)
    )


@pytest.mark.parametrize("place", range(len(EXTREME)))
def test_extreme_mixes_have_a_sound_profile(place: int) -> None:
    mix = EXTREME[place]
    curve = compose(mix)
    for at in (0.0, 1e-9, 0.01, 1.0, 100.0, 599.0):
        least = max(profile.delta_at(at) for profile in mix)
        assert least * (1 - 1e-9) <= curve.delta_at(at) <= 1
    assert compose(mix[::-1]).delta_at(1.0) == pytest.approx(curve.delta_at(1.0), rel=1e-6, abs=1e-12)


def test_no_random_mix_is_understated() -> None:
    overshoot = 0
    for mix in random_mixes():
        curve = compose(mix)
        pure = math.fsum(find_pure_epsilon(profile) for profile in mix)
        for at in (0.0, *(share * min(pure, 590.0) for share in (1e-3, 0.3, 0.9))):
            truth = exact_mixture(mix, at)
            assert curve.delta_at(at) >= truth * (1 - 1e-9) - 1e-15
            overshoot += curve.delta_at(at) > truth * 1.05 + 1e-9
    assert overshoot < 5  # of 40: a profile of 1 everywhere would be sound and of no use


def test_a_sum_of_pure_epsilons_is_rounded_up() -> None:
    for epsilon, times in ((0.1, 3), (0.1, 10), (1 / 3, 7), (0.7, 1000)):
        found = compose([PureProfile(epsilon)] * times, method="basic").epsilon_at(0.0)
        assert Fraction(found) >= times * Fraction(epsilon)
        assert found <= times * epsilon * (1 + 2**-51)


def test_null_record_counts_as_replacement() -> None:
    """A promise against a null record adds up with others by its epsilon between any two records."""
    rows = np.eye(4)
    null = ss.PrivateSearch(rows, mode="hits", epsilon=8, hits=1, adjacency=ss.NullRecord()).guarantee
    replacement = null.details["replacement_epsilon"]
    assert null.epsilon == 8 < replacement
    index = ss.release_index(rows, epsilon=10).guarantee
    assert compose([null, index], method="basic").epsilon_at(0.0) == pytest.approx(10 + replacement, rel=1e-12)
    budget = PrivacyFilter(18.1, 0.0)
    budget.spend(index)
    with pytest.raises(BudgetExceeded):
        budget.spend(null)
