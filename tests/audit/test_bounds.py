"""Every probability is summed exactly; nothing here is simulated but the scores of two curves."""

import math

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import beta, binom

from scoreshield.audit import bounds
from scoreshield.audit.claims import Claim, compute_tpr_ceiling
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile, PureProfile


def exceeds(n: int, epsilon: float, delta: float, confidence: float) -> float:
    """The exact chance that the bound is above the truth, for the mechanism that tells most with this pair."""
    corner, k = (1 - delta) / (1 + math.exp(epsilon)), np.arange(n + 1)
    bound = bounds.epsilon_lower(k[:, None], n, k[None, :], n, delta, confidence)
    return float(binom.pmf(k, n, 1 - corner) @ (bound > epsilon) @ binom.pmf(k, n, corner))


@pytest.mark.parametrize("error", [0.05, 1e-3, 1e-7])
def test_clopper_pearson_quantiles(error: float) -> None:
    """The interval of Clopper and Pearson has beta quantiles as ends."""
    n = 37
    k = np.arange(n + 1)
    low, high = bounds.clopper_pearson(k, n, 1 - error)
    np.testing.assert_allclose(low[1:], beta.ppf(error / 2, k[1:], n - k[1:] + 1), rtol=1e-7)
    np.testing.assert_allclose(high[:-1], beta.isf(error / 2, k[:-1] + 1, n - k[:-1]), rtol=1e-7)
    assert low[0] == 0
    assert high[-1] == 1
    one_sided = bounds.clopper_pearson(k, n, 1 - error, side="lower")
    np.testing.assert_allclose(one_sided[0][1:], beta.ppf(error, k[1:], n - k[1:] + 1), rtol=1e-7)
    assert np.all(one_sided[1] == 1)
    assert np.all(bounds.clopper_pearson(k, n, 1 - error, side="upper")[0] == 0)


def test_clopper_pearson_no_hits() -> None:
    """The interval for no hits has a closed form."""
    low, high = bounds.clopper_pearson(0, 50, 0.95)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 50), rel=1e-12))


@pytest.mark.parametrize("n", [5, 40, 300])
@pytest.mark.parametrize("p", [0.003, 0.1, 0.5, 0.97])
def test_clopper_pearson_coverage(n: int, p: float) -> None:
    """The interval covers the probability, and is not much too wide."""
    k = np.arange(n + 1)
    low, high = bounds.clopper_pearson(k, n, 0.9)
    mass = binom.pmf(k, n, p)
    below, above = mass[low > p].sum(), mass[high < p].sum()
    assert below <= 0.05 + 1e-12
    assert above <= 0.05 + 1e-12
    if n == 300 and p in (0.1, 0.5):
        assert min(below, above) > 0.03  # an interval much too wide would be caught


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.1])
def test_epsilon_lower_randomised_response(delta: float) -> None:
    """The bound is valid for randomised response."""
    rates = [exceeds(n, epsilon, delta, 0.95) for n in (20, 100, 400) for epsilon in (0.5, 1, 2, 3, 4)]
    assert max(rates) <= 0.05
    assert max(rates) > 0.02  # the error that is allowed is used
    # The near miss: each of the two rates takes the whole error instead of half of it.
    forgot = [exceeds(400, epsilon, delta, 0.9) for epsilon in (3, 4)]
    assert max(forgot) > 0.05


@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_epsilon_lower_confidences(confidence: float) -> None:
    """The bound is valid at other confidences."""
    for epsilon in (1.0, 3.0):
        assert exceeds(300, epsilon, 0.0, confidence) <= 1 - confidence


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("threshold", [-1.0, 0.5, 2.0])
def test_epsilon_lower_gaussian(mu: float, threshold: float) -> None:
    """The bound stays below the epsilon of a Gaussian mechanism."""
    n, delta, k = 300, 0.01, np.arange(301)
    fpr, tpr = ndtr(-threshold), ndtr(mu - threshold)
    bound = bounds.epsilon_lower(k[:, None], n, k[None, :], n, delta, 0.95)
    true = GaussianProfile(mu).epsilon_at(delta)
    assert binom.pmf(k, n, tpr) @ (bound > true) @ binom.pmf(k, n, fpr) <= 0.05
    # As the counts grow as expected, the bound comes to what this one test tells.
    many = 10**12
    bound = bounds.epsilon_lower(round(tpr * many), many, round(fpr * many), many, delta, 0.95)
    told = max(0.0, math.log((tpr - delta) / fpr), math.log(max(1 - fpr - delta, 1e-300) / (1 - tpr)))
    assert bound == pytest.approx(told, abs=2e-3)
    assert bound <= true


def test_epsilon_lower_by_hand() -> None:
    right = 0.025 ** (1 / 200)
    assert bounds.epsilon_lower(200, 200, 0, 200, 0.0, 0.95) == pytest.approx(math.log(right / (1 - right)), rel=1e-12)
    expected = math.log((right - 0.1) / (1 - right))
    assert bounds.epsilon_lower(200, 200, 0, 200, 0.1, 0.95) == pytest.approx(expected, rel=1e-12)
    # The second inequality alone: nothing is ever missed, though false alarms are common.
    low, high = 0.025 ** (1 / 500), beta.isf(0.025, 251, 250)
    expected = math.log((1 - high) / (1 - low))
    assert bounds.epsilon_lower(500, 500, 250, 500, 0.0, 0.95) == pytest.approx(expected, rel=1e-9)


def test_epsilon_lower_null_case() -> None:
    """Equal counts give a bound of exactly zero."""
    for n in (1, 10, 10_000):
        k = np.unique(np.linspace(0, n, 30).astype(int))
        assert np.all(bounds.epsilon_lower(k, n, k, n, 0.0, 0.95) == 0)
    assert np.all(bounds.epsilon_lower(np.arange(21), 40, np.arange(21)[::-1] + 20, 40, 1e-6, 0.5) == 0)


def test_epsilon_lower_is_finite_everywhere() -> None:
    k = np.arange(31)
    for delta in (0.0, 0.5, 0.999):
        found = bounds.epsilon_lower(k[:, None], 30, k[None, :], 30, delta, 1 - 1e-12)
        assert np.isfinite(found).all()
    assert math.isfinite(bounds.epsilon_lower(2**52, 2**52, 0, 2**52, 0.0, 0.95))


def test_curve_excess_and_bound() -> None:
    """The excess and the bound contradict a pair claim together."""
    k = np.arange(101)
    for epsilon, delta in ((0.0, 0.0), (1.0, 0.0), (2.0, 0.05)):
        claim = Claim(epsilon, delta)
        excess = bounds.curve_excess(k[:, None], 100, k[None, :], 100, claim.tpr_at, 0.95)
        bound = bounds.epsilon_lower(k[:, None], 100, k[None, :], 100, delta, 0.95)
        clear = np.abs(excess) > 1e-12
        assert np.array_equal((excess > 0)[clear], (bound > epsilon)[clear])
        assert (excess > 0).any()


def test_curve_excess_profile() -> None:
    """A claimed profile is broken by counts that its pair allows."""
    profile, n = GaussianProfile(0.25), 20_000
    claim = Claim(profile.epsilon_at(1e-6), 1e-6, profile=profile)
    hits, false = round(n * ndtr(0.35)), n // 2  # mu is 0.35 in truth
    assert bounds.curve_excess(hits, n, false, n, claim.tpr_at, 0.95) > 0
    assert bounds.epsilon_lower(hits, n, false, n, 1e-6, 0.95) < claim.epsilon
    assert 0.25 < bounds.mu_lower(hits, n, false, n, 0.95) < 0.35


def test_mu_lower() -> None:
    """The bound on mu is valid, and zero where nothing leaks."""
    n, k, mu = 200, np.arange(201), 1.0
    bound = bounds.mu_lower(k[:, None], n, k[None, :], n, 0.9)
    wrong = binom.pmf(k, n, ndtr(mu)) @ (bound > mu) @ binom.pmf(k, n, 0.5)
    assert 0.005 < wrong <= 0.1
    assert bounds.mu_lower(0, 10, 0, 10, 0.95) == 0
    assert bounds.mu_lower(10, 10, 10, 10, 0.95) == 0


def test_tradeoff_by_hand() -> None:
    fpr, tpr = bounds.tradeoff([3, 2, 2, 1], [2, 1, 0, 0, 0])
    np.testing.assert_allclose(fpr, [0, 0, 0.2, 0.4, 1])
    np.testing.assert_allclose(tpr, [0, 0.25, 0.75, 1, 1])


def test_tradeoff_thins_and_keeps_the_ends(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(1, 1, 4000), rng.normal(0, 1, 5000)
    whole = bounds.tradeoff(inside, outside)
    fpr, tpr = bounds.tradeoff(inside, outside, points=512)
    assert len(fpr) == len(tpr) <= 512
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert set(zip(fpr, tpr, strict=True)) <= set(zip(*whole, strict=True))
    assert np.all(np.diff(fpr) >= 0)
    assert np.all(np.diff(tpr) >= 0)
    assert len(fpr[fpr < 0.01]) > 50
    assert len(bounds.tradeoff(inside, outside, points=2)[0]) == 2


def test_auc_by_hand_and_by_pairs(rng: np.random.Generator) -> None:
    assert bounds.auc([3, 2, 2, 1], [2, 1, 0, 0, 0], 0.95)[0] == pytest.approx((5 + 4.5 + 4.5 + 3.5) / 20)
    inside, outside = rng.integers(0, 9, 80), rng.integers(2, 7, 50)
    pairs = np.subtract.outer(inside, outside)
    assert bounds.auc(inside, outside, 0.9)[0] == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_auc_interval_equation(rng: np.random.Generator) -> None:
    """The interval of the area solves Chernoff's equation."""
    value, low, high = bounds.auc(rng.normal(1, 1, 70), rng.normal(0, 1, 90), 0.95)
    for end in (low, high):
        kl = value * math.log(value / end) + (1 - value) * math.log((1 - value) / (1 - end))
        assert 70 * kl == pytest.approx(math.log(2 / 0.05), rel=1e-9)
    assert low < value < high
    # Nothing overlaps: 1 - low is the chance that must be as small as error / 2 to be missed k times.
    assert bounds.auc([5] * 30, [1] * 40, 0.95) == (1.0, pytest.approx(0.025 ** (1 / 30)), 1.0)


def test_auc_interval_coverage() -> None:
    """The interval of the area covers the area of single bits."""
    n, p, q, k = 40, 0.7, 0.3, np.arange(41)
    true, error = 0.5 + (p - q) / 2, 0.2
    missed = 0.0
    for i in k:
        for j in k:
            weight = binom.pmf(i, n, p) * binom.pmf(j, n, q)
            if weight > 1e-9:
                _, low, high = bounds.auc([1] * i + [0] * (n - i), [1] * j + [0] * (n - j), 1 - error)
                missed += weight * (not low <= true <= high)
    assert 0 < missed <= error


def test_tpr_at_interval() -> None:
    """The rate is a point of the curve, between valid ends."""
    n, at = 4000, 0.05
    inside, outside = np.arange(n) + 0.5, np.arange(n)
    value, low, high = bounds.tpr_at(inside, outside, at, 0.95)
    assert value == pytest.approx(at, abs=1e-3)
    # Which order statistics are taken: the binomial says when a threshold's true rate is safely below or above.
    error = 0.05 / 4
    safe = max(k for k in range(1, n) if binom.cdf(k - 1, n, at) <= error)
    loose = min(k for k in range(1, n) if binom.sf(k - 1, n, at) <= error)
    hits = [int((inside > n - safe).sum()), int((inside >= n - loose).sum())]
    assert low == pytest.approx(beta.ppf(error, hits[0], n - hits[0] + 1), rel=1e-9)
    assert high == pytest.approx(beta.isf(error, hits[1] + 1, n - hits[1]), rel=1e-9)
    assert low < at < high


def test_tpr_at_few_scores() -> None:
    """With few outside scores the lower end is 0."""
    value, low, high = bounds.tpr_at([9.0] * 50, [0.0] * 50, 0.01, 0.95)
    assert (value, low, high) == (1.0, 0.0, 1.0)
    assert bounds.tpr_at([1, 0, 0, 0], [1, 0, 0, 0], 0.1, 0.95)[0] == pytest.approx(0.1)  # a coin in the tie


def test_tpr_at_coverage() -> None:
    """200 draws at 80 % confidence, of which the union bound misses few: above 40 is a chance below 1e-12 at 10 %."""
    rng, missed = np.random.default_rng(5), 0
    for _ in range(200):
        value, low, high = bounds.tpr_at(rng.random(300) ** 0.5, rng.random(300), 0.1, 0.8)
        missed += not low <= 1 - 0.9**2 <= high
        assert low <= value <= high
    assert 0 < missed <= 40


def test_one_run_pure() -> None:
    """Without delta the p-value of one run is a binomial tail."""
    for guesses, correct in ((50, 40), (200, 120), (600, 600)):
        found = bounds.one_run_epsilon(guesses, correct, 0.0, 0.95, 1000)
        assert binom.sf(correct - 1, guesses, expit(found)) == pytest.approx(0.05, rel=1e-6)
    assert bounds.one_run_epsilon(100, 50, 0.0, 0.95, 100) == 0
    assert bounds.one_run_epsilon(0, 0, 0.0, 0.95, 100) == 0
    assert bounds.one_run_epsilon(100, 0, 0.1, 0.95, 100) == 0


def test_one_run_delta() -> None:
    """With delta the p-value is the theorem, summed term by term."""
    m, r, v, delta = 300, 120, 95, 1e-4
    for epsilon in (0.0, 0.7, 1.5):
        q = 1 / (1 + math.exp(-epsilon))
        pmf = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
        worst = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
        expected = min(1.0, sum(pmf[v:]) + 2 * m * delta * worst)
        assert bounds.one_run_p_value(r, v, epsilon, delta, m) == pytest.approx(expected, rel=1e-9)
    with_delta = bounds.one_run_epsilon(r, v, delta, 0.95, m)
    assert bounds.one_run_p_value(r, v, with_delta, delta, m) == pytest.approx(0.05, rel=1e-6)
    assert with_delta < bounds.one_run_epsilon(r, v, 0.0, 0.95, m)
    assert with_delta > bounds.one_run_epsilon(r, v, delta, 0.95, 10 * m)


@pytest.mark.parametrize(("guesses", "correct", "delta"), [(200, 150, 1e-5), (200, 199, 1e-3), (1000, 600, 1e-4)])
def test_one_run_p_value_rises(guesses: int, correct: int, delta: float) -> None:
    """Up to the level that is asked for; so the bound found by bisection is the first crossing."""
    p = np.array([bounds.one_run_p_value(guesses, correct, e, delta, 1000) for e in np.linspace(0, 8, 400)])
    first = int(np.argmax(p >= 0.2))
    assert np.all(np.diff(p[: first + 1]) >= -1e-15)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_run_randomised_response(epsilon: float) -> None:
    """The bound of one run is valid for randomised response."""
    r, k = 150, np.arange(151)
    found = np.array([bounds.one_run_epsilon(r, int(v), 0.0, 0.95, 200) for v in k])
    wrong = binom.pmf(k, r, expit(epsilon)) @ (found > epsilon)
    assert 0.02 < wrong <= 0.05


def test_power_sum() -> None:
    """The power is the sum over both binomial laws."""
    n, k, claimed = 120, np.arange(121), 1.0
    for delta, profile in ((0.0, PureProfile(2.0)), (0.02, GaussianProfile(1.5))):
        for fpr in (0.02, 0.2, 0.9):
            found = bounds.epsilon_lower(k[:, None], n, k[None, :], n, delta, 0.95) > claimed
            expected = binom.pmf(k, n, profile.tpr_at(fpr)) @ found @ binom.pmf(k, n, fpr)
            detection_power = bounds.detection_power(profile, n, epsilon=claimed, delta=delta, confidence=0.95, fpr=fpr)
            assert detection_power == pytest.approx(expected, abs=1e-9)


def test_power_many_releases() -> None:
    """Where terms share a block: against the whole sum, with the condition worked out by SciPy's own quantiles."""
    n, fpr, profile, error = 30_000, 0.25, PureProfile(1.035), 0.025
    j = np.arange(n + 1)[binom.pmf(np.arange(n + 1), n, fpr) > 1e-15]
    needed = binom.isf(error, n, compute_tpr_ceiling(1.0, 0.0, beta.isf(error, j + 1, n - j))) + 1
    exact = binom.pmf(j, n, fpr) @ binom.sf(needed - 1, n, profile.tpr_at(fpr))
    detection_power = bounds.detection_power(profile, n, epsilon=1.0, delta=0.0, confidence=0.95, fpr=fpr)
    assert 0.1 < exact < 0.95
    assert exact - 0.02 < detection_power <= exact + 1e-9


def test_power_rate() -> None:
    """The rate that the power chooses is nearly the best."""
    for profile, delta in ((GaussianProfile(0.85), 1e-4), (PureProfile(1.25), 0.0)):
        settings = {"epsilon": 1.0, "delta": delta, "confidence": 0.95}
        rates = np.concatenate([np.geomspace(1e-4, 0.5, 60), 1 - np.geomspace(1e-4, 0.5, 60)])
        best = max(bounds.detection_power(profile, 2000, fpr=float(rate), **settings) for rate in rates)
        assert 0.3 < best < 0.9999
        assert bounds.detection_power(profile, 2000, **settings) > best - 0.05


def test_power_of_truth() -> None:
    """The power against a true claim is at most the error."""
    assert bounds.detection_power(PureProfile(1.0), 500, epsilon=1.0, delta=0.0, confidence=0.95) <= 0.05
    assert bounds.detection_power(PureProfile(1.0), 500, epsilon=0.0, delta=0.0, confidence=0.95) > 0.99


@pytest.mark.parametrize(("n", "delta", "claimed"), [(150, 0.0, 0.5), (200, 0.01, 2.0)])
def test_detectable_power(n: int, delta: float, claimed: float) -> None:
    """The detectable epsilon has the given power."""
    k = np.arange(n + 1)
    found = bounds.epsilon_lower(k[:, None], n, k[None, :], n, delta, 0.95) > claimed

    def exact(true: float) -> float:
        corner = (1 - delta) / (1 + math.exp(true))
        return float(binom.pmf(k, n, 1 - corner) @ found @ binom.pmf(k, n, corner))

    least = bounds.detectable(n, delta, 0.95, epsilon=claimed)
    assert exact(least) == pytest.approx(0.9, abs=1e-3)
    assert exact(least) >= 0.9
    assert bounds.detectable(n, delta, 0.95, 0.5, epsilon=claimed) < least
    assert bounds.detectable(2 * n, delta, 0.95, epsilon=claimed) < least


def test_detectable_gaussian() -> None:
    """The detectable epsilon of Gaussian noise agrees with the power."""
    least = bounds.detectable(5000, 1e-3, 0.95, epsilon=1.0, law="gaussian")
    assert least > bounds.detectable(5000, 1e-3, 0.95, epsilon=1.0)
    for true, enough in ((least * 1.02, True), (least * 0.98, False)):
        mu = next(m for m in np.arange(0.01, 5, 1e-3) if GaussianProfile(float(m)).epsilon_at(1e-3) >= true)
        power = bounds.detection_power(GaussianProfile(float(mu)), 5000, epsilon=1.0, delta=1e-3, confidence=0.95)
        assert (power >= 0.9) == enough


def test_releases_needed_is_the_least() -> None:
    for epsilon, delta, confidence in ((0.0, 0.0, 0.95), (1.0, 0.0, 0.95), (5.0, 1e-2, 1 - 1e-7)):
        n = bounds.releases_needed(epsilon, delta, confidence)
        assert bounds.epsilon_lower(n, n, 0, n, delta, confidence) > epsilon
        assert bounds.epsilon_lower(n - 1, n - 1, 0, n - 1, delta, confidence) <= epsilon
        assert bounds.detectable(n - 1, delta, confidence, epsilon=epsilon) == math.inf
        assert math.isfinite(bounds.detectable(n, delta, confidence, epsilon=epsilon))
    assert bounds.releases_needed(1.0, 0.0, 0.95, 3.0) == bounds.releases_needed(3.0, 0.0, 0.95)
    assert bounds.releases_needed(1000.0, 0.0, 0.95) == math.inf
    assert bounds.releases_needed(100.0, 0.0, 0.95) == pytest.approx(-math.log(0.025) * math.exp(100), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.clopper_pearson(3, 2, 0.95), "'successes' .* at most 'trials'"),
        (lambda: bounds.clopper_pearson(0, 0, 0.95), "'trials' .* at least 1"),
        (lambda: bounds.clopper_pearson(-1, 2, 0.95), "'successes'"),
        (lambda: bounds.clopper_pearson(1.5, 2, 0.95), "'successes'"),
        (lambda: bounds.clopper_pearson([1, 2], [2, 2, 2], 0.95), "shape"),
        (lambda: bounds.clopper_pearson([], 2, 0.95), "'successes'"),
        (lambda: bounds.clopper_pearson(1, 2, 1.0), "'confidence'"),
        (lambda: bounds.clopper_pearson(1, 2, 0.9, side="left"), "'side'"),
        (lambda: bounds.epsilon_lower(1, 2, 5, 4, 0.0, 0.95), "'out_hits'"),
        (lambda: bounds.epsilon_lower(1, 2, [1, 2, 3], [4, 4, 4, 4], 0.0, 0.95), "'out_hits'"),
        (lambda: bounds.epsilon_lower([1, 2], 2, [1, 2, 3], 4, 0.0, 0.95), "'in_hits' .* shape"),
        (lambda: bounds.epsilon_lower(1, 2, 1, 4, 1.0, 0.95), "'delta'"),
        (lambda: bounds.tradeoff([], [1.0]), "'in_scores'"),
        (lambda: bounds.tradeoff([1.0], [[1.0]]), "'out_scores'"),
        (lambda: bounds.auc([1.0, math.nan], [1.0], 0.95), "'in_scores'"),
        (lambda: bounds.auc(["a"], [1.0], 0.95), "'in_scores'"),
        (lambda: bounds.tpr_at([1.0], [1.0], 0.0, 0.95), "'fpr'"),
        (lambda: bounds.tradeoff([1.0], [2.0], points=1), "'points'"),
        (lambda: bounds.tradeoff([1.0, 5.0], [2.0], points=1), "'points'"),
        (lambda: bounds.one_run_epsilon(5, 6, 0.0, 0.95, 10), "'correct'"),
        (lambda: bounds.one_run_epsilon(11, 6, 0.0, 0.95, 10), "'correct'"),
        (lambda: bounds.detection_power("gaussian", 5, epsilon=1, delta=0, confidence=0.9), "'profile'"),
        (lambda: bounds.detection_power(PureProfile(1.0), 5, epsilon=-1, delta=0, confidence=0.9), "'epsilon'"),
        (lambda: bounds.detection_power(PureProfile(1.0), 0, epsilon=1, delta=0, confidence=0.9), "'releases'"),
        (lambda: bounds.detectable(10, 0.0, 0.95, epsilon=1.0, law="gaussian"), "'delta'"),
        (lambda: bounds.detectable(10, 0.0, 0.95, epsilon=1.0, law="cauchy"), "'law'"),
        (lambda: bounds.releases_needed(1.0, 0.0, 0.95, 0.0), "'factor'"),
    ],
)
def test_bad_input_is_one_sentence(call, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
