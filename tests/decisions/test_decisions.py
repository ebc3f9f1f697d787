"""Decisions after noise: closed forms, high-precision arithmetic, simulation, and laws other than the Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import GridLaplace, Laplace, RandomisedResponse, Staircase
from scipy.stats import norm, uniform
from support import STRICT

import scoreshield as ss
from scoreshield import decisions

LAWS = [0.3, ss.GaussianNoise(1.5), Laplace(0.2), Staircase(3.0), GridLaplace(0.2, 2.0**-6)]


@dataclass(frozen=True)
class Law:
    """A law that takes one number at a time."""

    std: float

    def cdf(self, x: float) -> float:
        return 0.5 + 0.0 * math.floor(x)


@pytest.fixture
def impostor(rng: np.random.Generator) -> np.ndarray:
    return np.clip(rng.normal(0.0, 0.2, 20_000), -0.99, 0.99)


# Flips


def test_flip_probability_gaussian_tail() -> None:
    """Flip probability is the Gaussian tail."""
    s, t = np.linspace(-1, 1, 41)[:, None], np.array([-0.9, 0.0, 0.33, 0.99])
    assert np.allclose(decisions.flip_probability(s, t, 0.4), norm.sf(np.abs(s - t) / 0.4), rtol=1e-13)
    with mpmath.workdps(40):
        exact = mpmath.erfc(mpmath.mpf("0.9") / mpmath.mpf("0.05") / mpmath.sqrt(2)) / 2
    assert decisions.flip_probability(0.9, 0.0, 0.05) == pytest.approx(float(exact), rel=1e-12, abs=0)
    assert decisions.flip_probability(-0.9, 0.0, 0.05) == pytest.approx(float(exact), rel=1e-12, abs=0)  # about 1e-72


def test_nothing_flips_under_strict_rule() -> None:
    """Nothing flips at one under the strict rule."""
    assert decisions.flip_probability(0.9, 1.0, 0.5) == 0
    assert decisions.flip_probability(1.0, 1.0, 0.5) == 0
    assert decisions.flip_probability(0.9, 1.0, 0.5, endpoint="nonstrict") == pytest.approx(norm.sf(0.2))
    assert decisions.flip_probability(0.9, 1.0, 0.5, clipped=False) == pytest.approx(norm.sf(0.2))
    assert decisions.flip_probability(0.9, 1.1, 0.5, endpoint="nonstrict") == 0
    assert decisions.flip_probability(-0.9, -1.0, 0.5, endpoint="nonstrict") == 0
    assert decisions.flip_probability(-0.9, -1.0, 0.5) == pytest.approx(norm.sf(0.2))


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_flips_by_any_law(law: object) -> None:
    """Flips by any law are the tails of its cdf."""
    cdf = (ss.GaussianNoise(law) if isinstance(law, float) else law).cdf  # type: ignore[attr-defined]
    assert decisions.flip_probability(0.2, 0.5, law) == pytest.approx(1 - float(cdf(0.3)), abs=1e-15)
    assert decisions.flip_probability(0.7, 0.5, law) == pytest.approx(float(cdf(-0.2)), abs=1e-15)


@given(s=st.floats(-1, 1), t=st.floats(-0.999, 0.999), sigma=st.floats(1e-3, 1e3))
def test_mills_bound_holds(s: float, t: float, sigma: float) -> None:
    """Mills bound holds."""
    assert decisions.flip_probability(s, t, sigma) <= decisions.mills_bound(s, t, sigma)


def test_mills_bound_is_tight() -> None:
    """Mills bound is tight far out and no looser."""
    flips, bound = decisions.flip_probability(0.0, 0.6, 0.02), decisions.mills_bound(0.0, 0.6, 0.02)
    assert flips < bound < flips * (1 + 1.01 / 30**2)
    assert decisions.mills_bound(0.5, 0.5, 0.1) == math.inf
    with pytest.raises(ss.InvalidInput, match="Gaussian tails"):
        decisions.mills_bound(0.0, 0.5, Laplace(1.0))


# Rates and recalibration


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_false_match_rate_against_simulation(law: object, impostor: np.ndarray, rng: np.random.Generator) -> None:
    """The sampler is inverse transform on a fine table of the CDF, so it knows nothing of how rates are summed."""
    cdf = (ss.GaussianNoise(law) if isinstance(law, float) else law).cdf  # type: ignore[attr-defined]
    grid = np.arange(-40, 40, 2.0**-10)
    draws = 1_000_000
    noise = grid[np.searchsorted(cdf(grid), rng.random(draws))]
    scores = rng.choice(impostor, draws)
    seen = float(np.mean(scores + noise > 0.35))
    told = decisions.false_match_rate(impostor, 0.35, law)
    error = STRICT * math.sqrt(told * (1 - told) / draws)
    # The table rounds noise up by less than its step, which is as if the threshold were lower by as much.
    assert told - error < seen < decisions.false_match_rate(impostor, 0.35 - 2.0**-10, law) + error
    near_miss = decisions.false_match_rate(impostor, 0.37, law)
    assert seen > near_miss + error


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("alpha", [1e-2, 1e-3])
def test_normal_impostors(sigma: float, alpha: float) -> None:
    """Standard normal impostors have a closed form."""
    impostor = decisions.Distribution(norm(), (-60, 60))
    found = decisions.recalibrate(impostor, alpha, sigma, clipped=False)
    t = norm.isf(alpha)
    assert found.clean_threshold == pytest.approx(t, rel=1e-12)
    assert found.shift == pytest.approx(t * (math.sqrt(1 + sigma**2) - 1), rel=1e-10, abs=1e-13)
    assert found.small_noise_shift == pytest.approx(sigma**2 / 2 * t, rel=1e-6)


def test_standard_normal_sample() -> None:
    """A million quantiles of the normal law, not draws: the sample's own error is far below the tolerance."""
    impostor = norm.ppf((np.arange(1_000_000) + 0.5) / 1_000_000)
    found = decisions.recalibrate(impostor, 1e-2, 0.5, clipped=False)
    assert found.shift == pytest.approx(norm.isf(1e-2) * (math.sqrt(1.25) - 1), rel=1e-4)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("endpoint", ["strict", "nonstrict"])
def test_recalibration_any_law(law: object, endpoint: str, impostor: np.ndarray) -> None:
    """Recalibration restores the target for any law."""
    found = decisions.recalibrate(impostor, 1e-2, law, endpoint, clipped=False)
    assert found.feasible
    assert found.shift > 0
    rate = decisions.false_match_rate(impostor, found.threshold, law, endpoint=endpoint)
    assert rate == found.rate <= 1e-2
    if not isinstance(law, GridLaplace):
        assert rate == pytest.approx(1e-2, abs=1e-11)
    just_below = decisions.false_match_rate(impostor, found.threshold - 1e-6, law, endpoint=endpoint)
    assert just_below > 1e-2 or isinstance(law, GridLaplace)
    assert decisions.false_match_rate(impostor, found.threshold - 2.0**-6, law, endpoint=endpoint) > 1e-2


def test_a_channel_of_one_bit(impostor: np.ndarray) -> None:
    """Randomised response: an accept bit has the false-match rate that its two probabilities mix to."""
    bit = RandomisedResponse(0.4, 0.99)
    clean = float(np.mean(impostor > 0.4))
    told = decisions.false_match_rate(impostor, 0.5, bit)
    assert told == pytest.approx(clean * 0.99 + (1 - clean) * 0.01)
    assert decisions.flip_probability([0.39, 0.41], 0.4, bit).tolist() == pytest.approx([0.01, 0.01])
    assert decisions.recalibrate(impostor, 0.5, bit, clipped=False).rate == pytest.approx(told)
    assert decisions.recalibrate(impostor, told / 2, bit, clipped=False).rate == 0  # only refusing all is below


def test_endpoint_limit_and_feasibility(impostor: np.ndarray) -> None:
    """A target is feasible where it is above the endpoint limit."""
    for sigma in (0.05, 0.3, 0.5, 1.0):
        limit = float(np.mean(norm.sf((1 - impostor) / sigma)))
        assert decisions.endpoint_limit(impostor, sigma) == pytest.approx(limit, abs=1e-12)
        for endpoint in ("strict", "nonstrict"):
            found = decisions.recalibrate(impostor, 1e-2, sigma, endpoint)
            assert found.limit == pytest.approx(limit, abs=1e-12)
            assert found.feasible == (limit <= 1e-2)
            assert math.isnan(found.threshold) == math.isnan(found.shift) == (not found.feasible)
            free = decisions.recalibrate(impostor, 1e-2, sigma, endpoint, clipped=False)
            assert free.feasible
            assert free.threshold == found.unclipped_threshold
            assert (free.threshold < 1) == found.feasible
    assert decisions.false_match_rate(impostor, 1.0, 0.5, clipped=True) == 0
    assert decisions.false_match_rate(impostor, 1.0, 0.5, clipped=True, endpoint="nonstrict") > 0
    assert decisions.false_match_rate(impostor, 1.0, 0.5) == pytest.approx(decisions.endpoint_limit(impostor, 0.5))


def test_no_noise_moves_nothing(impostor: np.ndarray) -> None:
    """No noise moves nothing."""
    found = decisions.recalibrate(impostor, 1e-2, 0)
    assert found.shift == found.unclipped_shift == found.small_noise_shift == 0
    assert found.rate == found.rate_before <= 1e-2


def test_small_noise_law_is_the_limit() -> None:
    """Small noise law is the limit."""
    impostor = decisions.Distribution(norm(0, 0.2))
    for sigma, relative in ((0.02, 0.02), (0.005, 0.001)):
        found = decisions.recalibrate(impostor, 1e-2, sigma)
        assert found.small_noise_shift == pytest.approx(found.shift, rel=relative)
    assert decisions.recalibrate(impostor, 1e-2, 0.3).small_noise_shift != pytest.approx(found.shift, rel=0.05)


def test_the_lower_end_of_clipped_scores(impostor: np.ndarray, rng: np.random.Generator) -> None:
    """Heavy noise and a lax target: below -1 everything passes, so the threshold stays there and the rate is lower."""
    for endpoint in ("strict", "nonstrict"):
        found = decisions.recalibrate(impostor, 0.7, 8.0, endpoint)
        assert found.feasible
        assert found.threshold == pytest.approx(-1, abs=1e-9)
        released = np.clip(rng.choice(impostor, 200_000) + 8 * rng.standard_normal(200_000), -1, 1)
        accepted = released > found.threshold if endpoint == "strict" else released >= found.threshold
        assert accepted.mean() == pytest.approx(found.rate, abs=STRICT * 0.5 / math.sqrt(200_000))
        assert found.rate < 0.7
    assert decisions.false_match_rate(impostor, -1.5, 8.0, clipped=True) == 1
    assert decisions.false_match_rate(impostor, -1.5, 8.0) < 0.6


def test_threshold_on_plateau() -> None:
    """Thresholds begin where a plateau does."""
    flat = uniform(-0.1, 0.2)  # a law of SciPy, without Gaussian tails
    scores = [0.0] * 9 + [0.9]
    assert decisions.recalibrate(scores, 0.1, flat).threshold == pytest.approx(0.1, abs=1e-9)
    assert decisions.roc(np.linspace(0.15, 0.95, 81), [0.0] * 9 + [0.99], flat).tpr_at(0.1) > 0.99


def test_nonstrict_clean_threshold() -> None:
    """A clean threshold under the nonstrict rule keeps the target."""
    found = decisions.recalibrate(np.arange(10) / 20, 0.3, 0, "nonstrict")
    assert found.rate <= 0.3
    assert found.threshold == pytest.approx(0.3)


# Scales and budgets


def test_critical_scale(impostor: np.ndarray) -> None:
    """At the critical scale the endpoint limit is the target."""
    for alpha in (1e-3, 1e-2, 0.1):
        scale = decisions.critical_scale(impostor, alpha)
        assert decisions.endpoint_limit(impostor, scale) == pytest.approx(alpha, rel=1e-9)
        assert decisions.recalibrate(impostor, alpha, scale * 0.999).feasible
        assert not decisions.recalibrate(impostor, alpha, scale * 1.001).feasible
    assert decisions.critical_scale(impostor, 0.5) == math.inf
    assert decisions.critical_scale(np.r_[impostor, np.ones(4_000)], 0.01) == 0


def test_critical_scale_of_a_distribution() -> None:
    """The critical scale of a distribution agrees with its sample."""
    # S + W is normal with variance 0.04 + sigma^2, so L = Q(1 / sqrt(0.04 + sigma^2)).
    impostor = decisions.Distribution(norm(0, 0.2), (-40, 40))
    exact = math.sqrt(1 / norm.isf(1e-2) ** 2 - 0.04)
    assert decisions.critical_scale(impostor, 1e-2) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("sensitivity", [2.0, 1.5])
@pytest.mark.parametrize("delta", [1e-8, 1e-6, 1e-5])
def test_minimum_epsilon_is_least(delta: float, sensitivity: float, impostor: np.ndarray) -> None:
    """Minimum epsilon is least."""
    epsilon = decisions.minimum_epsilon(impostor, 1e-2, delta, sensitivity=sensitivity)

    def limit(eps: float) -> float:
        return decisions.endpoint_limit(impostor, ss.calibrate(eps, delta, sensitivity))

    assert limit(epsilon) <= 1e-2 < limit(epsilon * (1 - 1e-6))


def test_minimum_epsilon_by_a_textbook_rule(impostor: np.ndarray) -> None:
    """A textbook rule gives its own minimum epsilon."""
    narrow = impostor * 0.1
    epsilon = decisions.minimum_epsilon(narrow, 0.2, 1e-6, method="conservative")
    scale = ss.calibrate(epsilon, 1e-6, 2.0, "conservative")
    assert decisions.endpoint_limit(narrow, scale) == pytest.approx(0.2, rel=1e-6)
    with pytest.raises(ss.InvalidCalibration, match=r"not .*private"):
        decisions.minimum_epsilon(impostor, 1e-2, 1e-6, method="conservative")


def test_minimum_epsilon_of_other_families(impostor: np.ndarray) -> None:
    """Other noise families have a minimum epsilon."""
    epsilon = decisions.minimum_epsilon(impostor, 1e-2, 0.5, family=lambda eps: Laplace(2 / eps))
    assert decisions.endpoint_limit(impostor, Laplace(2 / epsilon)) == pytest.approx(1e-2, rel=1e-9)
    # Pure noise of one coordinate needs far less than the Gaussian at delta 1e-6.
    assert epsilon < 0.5 * decisions.minimum_epsilon(impostor, 1e-2, 1e-6)
    assert decisions.minimum_epsilon(impostor, 0.5, 1e-6) == 0
    assert decisions.minimum_epsilon(np.r_[impostor, np.ones(4_000)], 0.01, 1e-6) == math.inf


# Bounds


def test_false_match_gap() -> None:
    """The gap of false-match rates has its closed form."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)
    gap = decisions.false_match_gap(500, sigma, epsilon=1.0, delta=1e-6)
    assert gap.any_mechanism == pytest.approx(math.tanh(0.5) + 1e-6)
    assert gap.coordinatewise == pytest.approx((math.tanh(0.5) + 1e-6) / 500)
    assert gap.attained == pytest.approx(math.erf(1 / (sigma * math.sqrt(2))) / 500)
    assert gap.attained <= gap.coordinatewise


def test_gap_is_attained() -> None:
    """False match gap is attained by two galleries."""
    n, sigma, t = 50, 0.8, 0.0
    gallery = np.zeros(n)
    high, low = gallery.copy(), gallery.copy()
    high[0], low[0] = 1.0, -1.0
    apart = decisions.false_match_rate(high, t, sigma) - decisions.false_match_rate(low, t, sigma)
    told = decisions.false_match_gap(n, sigma, epsilon=5, delta=1e-6).attained
    assert apart == pytest.approx(told, rel=1e-12)


def test_gap_of_pure_noise() -> None:
    """False match gap of pure noise is within its bound."""
    for epsilon in (0.5, 1.0, 4.0):
        laplace = decisions.false_match_gap(1, Laplace(2 / epsilon), epsilon=epsilon, delta=0.0)
        assert laplace.attained == pytest.approx(1 - math.exp(-epsilon / 2), abs=1e-6)
        staircase = decisions.false_match_gap(1, Staircase(epsilon), epsilon=epsilon, delta=0.0)
        assert laplace.attained <= staircase.any_mechanism * (1 + 1e-9)
        assert staircase.attained <= staircase.any_mechanism * (1 + 1e-9)


def test_lipschitz_bounds_hold_formula() -> None:
    """Lipschitz bounds hold and are the formula."""
    genuine, impostor = decisions.Distribution(norm(0.65, 0.2)), decisions.Distribution(norm(0, 0.2))
    constant = norm.pdf(0, 0, 0.2) / norm.cdf(1, 0.65, 0.2)
    clean = decisions.roc(genuine, impostor)
    for sigma in (0.02, 0.1, 0.4):
        bounds, noisy = decisions.lipschitz_bounds(constant, sigma), decisions.roc(genuine, impostor, sigma)
        assert bounds.eta == pytest.approx(constant * sigma * math.sqrt(2 / math.pi))
        assert (bounds.auc, bounds.eer, bounds.tpr) == (2 * bounds.eta, bounds.eta, bounds.eta)
        assert bounds.partial_auc(0.1) == pytest.approx(0.1 * bounds.eta + min(0.1, bounds.eta))
        t = np.linspace(-1, 1, 401)
        assert np.abs(noisy.tpr(t) - clean.tpr(t)).max() <= bounds.tpr
        assert np.abs(noisy.fpr(t) - clean.fpr(t)).max() <= bounds.fpr
        assert abs(noisy.auc - clean.auc) <= bounds.auc
        assert abs(noisy.eer - clean.eer) <= bounds.eer
        assert abs(noisy.partial_auc(0.1) - clean.partial_auc(0.1)) <= bounds.partial_auc(0.1)
    # Half the bound would be broken by the rates of a step: the constant matters.
    steep = decisions.Sample(np.linspace(0, 1e-3, 1000))
    moved = abs(decisions.false_match_rate(steep, 0.0, 1e-4) - decisions.false_match_rate(steep, 0.0, 0))
    assert moved <= decisions.lipschitz_bounds(1000, 1e-4).fpr < 3 * moved


def test_lipschitz_bounds_of_other_laws() -> None:
    """Other laws have Lipschitz bounds from E|W|."""
    assert 0.25 <= decisions.lipschitz_bounds(1.0, Laplace(0.25)).eta <= 0.25 * (1 + 1e-4)
    for epsilon in (1.0, 5.0, 15.0, 20.0):  # E|W| of the staircase: D e^(eps/2) / (e^eps - 1)
        mean = 2 * math.exp(epsilon / 2) / math.expm1(epsilon)
        assert mean <= decisions.lipschitz_bounds(1.0, Staircase(epsilon)).eta <= mean * (1 + 1e-3)
    assert decisions.lipschitz_bounds(1.0, 0).eta == 0


def test_thresholds_convert() -> None:
    """Thresholds convert between cosine and distance."""
    assert decisions.euclidean_threshold(0.36) == pytest.approx(1.28)
    assert decisions.cosine_threshold(1.28) == pytest.approx(0.36)
    u, v = np.array([1.0, 0.0]), np.array([0.6, 0.8])
    assert decisions.euclidean_threshold(u @ v) == pytest.approx(((u - v) ** 2).sum())
    assert decisions.cosine_threshold(decisions.euclidean_threshold(np.linspace(-1, 1, 5))).tolist() == pytest.approx(
        np.linspace(-1, 1, 5).tolist()
    )


# Refusals


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda i: decisions.recalibrate(i, 0.0, 0.1), "'target' .*strictly between 0 and 1"),
        (lambda i: decisions.recalibrate(i, 1.0, 0.1), "'target' .*strictly between 0 and 1"),
        (lambda i: decisions.recalibrate(i, 1e-9, 0.1), "cannot be measured with 20,000 scores"),
        (lambda i: decisions.recalibrate(i, 1e-310, 0.1), "cannot be measured with 20,000 scores"),
        (lambda i: decisions.recalibrate(i, 1 - 1.2e-16, 0.1), "'target' .*below 1 - 1e-9"),
        (lambda i: decisions.recalibrate(i, 0.01, 1e300), "'noise'"),
        (lambda i: decisions.recalibrate(i, 0.01, 5e-324), "'noise'"),
        (lambda _: decisions.recalibrate([1e200, 0.0], 0.6, 0.1), "at most 1e100"),
        (lambda i: decisions.recalibrate(i, 0.01, Law(math.inf)), "'noise'"),
        (lambda i: decisions.recalibrate(i, 0.01, Law(-1.0)), "'noise'"),
        (lambda i: decisions.recalibrate(i, 0.01, Law(1.0)), "'noise' .*vectorised"),
        (lambda i: decisions.recalibrate(i, 0.01, 0.1, lower=2.0), "'lower'"),
        (lambda i: decisions.minimum_epsilon(i, 0.01, 1e-6, family=5), "'family'"),
        (lambda _: decisions.flip_probability([0.1, 0.2], [0.1, 0.2, 0.3], 0.1), "'threshold'"),
        (lambda i: decisions.roc(i, i, 0.1).tpr_at("x"), "'fpr'"),
        (lambda i: decisions.roc(i, i, 0.1).partial_auc([0.1, 0.2]), "'a'"),
        (lambda _: decisions.Distribution(norm(0, 0.1), None), "'score_range'"),
        (lambda i: decisions.recalibrate(i, 0.01, -0.1), "'noise'"),
        (lambda i: decisions.recalibrate(i, 0.01, 0.1, endpoint="open"), "'endpoint' .*'strict', 'nonstrict'"),
        (lambda _: decisions.recalibrate([], 0.01, 0.1), "'impostor' .*at least two"),
        (lambda _: decisions.recalibrate([0.3], 0.01, 0.1), "'impostor' .*at least two"),
        (lambda _: decisions.recalibrate([0.3, math.nan], 0.01, 0.1), "entry 1 is not"),
        (lambda i: decisions.false_match_rate(i, math.nan, 0.1), "'threshold'"),
        (lambda _: decisions.flip_probability(math.inf, 0.0, 0.1), "'score'"),
        (lambda _: decisions.flip_probability("a", 0.0, 0.1), "'score'"),
        (lambda i: decisions.critical_scale(i, 1e-9), "cannot be measured"),
        (lambda i: decisions.minimum_epsilon(i, 0.01, 0.0), "'delta'"),
        (lambda i: decisions.minimum_epsilon(i, 0.01, 1e-6, method="best"), "'method'"),
        (lambda _: decisions.false_match_gap(0, 0.1, epsilon=1, delta=0), "'n'"),
        (lambda _: decisions.false_match_gap(3, 0.1, epsilon=0, delta=0), "'epsilon'"),
        (lambda _: decisions.lipschitz_bounds(0, 0.1), "'lipschitz'"),
        (lambda _: decisions.lipschitz_bounds(1, RandomisedResponse(0.1, 0.9)), "additive"),
    ],
)
def test_bad_input_is_one_clear_sentence(call: object, says: str, impostor: np.ndarray) -> None:
    """A bad argument raises one clear sentence."""
    with pytest.raises(ss.InvalidInput, match=says) as caught:
        call(impostor)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
