"""How noise smooths a set of scores: binned sums against plain ones, distributions against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import beta, norm

import scoreshield as ss
from scoreshield.decisions import scores as module
from scoreshield.decisions.scores import BINNING_ERROR, Distribution, Sample, as_law, pass_probability
from scoreshield.privacy.noise import GaussianNoise


def plain_rate(values: np.ndarray, t: float, sigma: float) -> float:
    return math.fsum(ndtr((values - t) / sigma)) / len(values)


@pytest.mark.parametrize("sigma", [0.003, 0.02, 0.1, 0.7, 8.0, 1000.0])
def test_binned_sum_is_the_plain_sum(sigma: float, rng: np.random.Generator) -> None:
    """The binned sum is the plain sum."""
    values = np.clip(rng.normal(0.1, 0.3, 60_000), -1, 1)
    sample, law = Sample(values), GaussianNoise(sigma)
    thresholds = np.concatenate([rng.uniform(-1.2, 1.2, 20), rng.uniform(-4 * sigma, 4 * sigma, 20)])
    rates = sample.rate(thresholds, law)
    assert np.abs(rates - [plain_rate(values, t, sigma) for t in thresholds]).max() < BINNING_ERROR + 1e-15
    assert len(sample.nodes(law)[0]) < len(values) or sigma < 0.01


def test_binning_error() -> None:
    """The binning error is within its bound, and a coarser bin exceeds it."""
    values = np.linspace(-1, 1, 50_000) ** 3
    coarse = module._bin_values(np.sort(values), 1.0)
    got = module._sum_pass_probabilities(*coarse, np.array([0.3]), GaussianNoise(0.2), False)[0]
    assert abs(got - plain_rate(values, 0.3, 0.2)) > 100 * BINNING_ERROR  # bins of five sigma are no good
    h_over_sigma = 1 / 4
    bound = 0.4335 * math.sqrt(math.factorial(7)) * (h_over_sigma / 2) ** 8 / (2**7 * math.factorial(8))
    assert bound < BINNING_ERROR


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=300),
    sigma=st.floats(1e-3, 1e5),
    t=st.floats(-1e6, 1e6),
)
def test_any_finite_scores(values: list[float], sigma: float, t: float) -> None:
    """Any finite scores are accepted."""
    array = np.array(values * 50)
    assert abs(Sample(array).rate(t, GaussianNoise(sigma)) - plain_rate(array, t, sigma)) < 1e-11


def test_scores_far_from_zero() -> None:
    """Positions of bins far from zero would be rounded by more than the stated error, so such scores are not binned."""
    array = np.repeat([1024.0, 1024.0 + 2.0**-10], 50_000)
    for sigma in (0.00390625, 0.0039):
        found = Sample(array).rate(1024.0 + 2.0**-11, GaussianNoise(sigma))
        assert abs(found - plain_rate(array, 1024.0 + 2.0**-11, sigma)) < 2e-12


def test_many_thresholds(rng: np.random.Generator) -> None:
    """Many thresholds at once give the same rates as one by one."""
    sample, law = Sample(rng.normal(0, 0.2, 5_000)), GaussianNoise(0.05)
    t = rng.uniform(-1, 1, (7, 31))
    rates = sample.rate(t, law)
    assert rates.shape == t.shape
    assert np.allclose(rates, np.vectorize(lambda x: sample.rate(x, law))(t), atol=1e-14, rtol=0)


def test_clean_rates_count() -> None:
    """Clean rates count scores."""
    sample = Sample([0.5, 0.1, 0.5, 0.9])
    assert sample.rate([0.1, 0.5, 0.9], None).tolist() == [0.75, 0.25, 0.0]
    assert sample.rate([0.1, 0.5, 0.9], None, inclusive=True).tolist() == [1.0, 0.75, 0.25]


@pytest.mark.parametrize("n", [2, 3, 7, 10, 49, 100, 1000, 2999])
def test_clean_threshold_is_the_infimum(n: int, rng: np.random.Generator) -> None:
    """Clean threshold is the infimum."""
    values = np.sort(rng.choice(np.linspace(-1, 1, 37), n))  # with ties
    sample = Sample(values)
    for k in range(1, n, max(1, n // 17)):
        target = k / n
        t = sample.clean_threshold(target)
        assert sample.rate(t, None) <= target
        below = np.nextafter(t, -2)
        assert sample.rate(below, None) > target


def test_target_below_one_over_n() -> None:
    """A target below one over n raises an error that states the smallest."""
    with pytest.raises(ss.InvalidInput, match=r"1e-05 cannot be measured with 3,000 scores.*1/3000 = 0.000333"):
        Sample(np.linspace(0, 1, 3000)).clean_threshold(1e-5)


def test_distribution_against_closed_form() -> None:
    """A distribution agrees with the closed form."""
    wide = Distribution(norm(0.1, 0.3), (-40, 40))
    for sigma in (0.01, 0.3, 5.0):
        for t in (-0.4, 0.1, 0.9, 3.0):
            exact = norm.sf(t, 0.1, math.hypot(0.3, sigma))
            assert wide.rate(t, GaussianNoise(sigma)) == pytest.approx(exact, abs=1e-13)
    assert wide.log_slope(0.7) == pytest.approx(-0.6 / 0.09, rel=1e-6)


def test_distribution_is_cut_to_its_range() -> None:
    """Distribution is cut to its range."""
    cut = Distribution(norm(0, 0.6))
    assert cut.cut == pytest.approx(2 * norm.sf(1 / 0.6))
    assert cut.rate([-1.0, 0.0, 1.0], None).tolist() == pytest.approx([1.0, 0.5, 0.0])
    assert cut.rate(cut.clean_threshold(0.03), None) == pytest.approx(0.03)
    large = Sample(norm.ppf(norm.cdf(-1, 0, 0.6) + (np.arange(400_000) + 0.5) / 400_000 * (1 - cut.cut), 0, 0.6))
    assert cut.rate(0.8, GaussianNoise(0.2)) == pytest.approx(large.rate(0.8, GaussianNoise(0.2)), abs=1e-9)


@pytest.mark.parametrize(
    "make", [lambda: Distribution(beta(5, 5, loc=-1, scale=2)), lambda: Distribution(norm(0, 0.2))]
)
def test_clamped_distribution(make: object) -> None:
    """Clamping a distribution is clamping its scores."""
    law = make()  # type: ignore[operator]
    sample = Sample(law.law.ppf((np.arange(300_000) + 0.5) / 300_000))
    for low, high in ((-0.1, 1.0), (0.0, 0.25), (-1.0, 0.3)):
        ours, theirs = law.clamp(low, high), sample.clamp(low, high)
        for t in (-0.5, 0.0, 0.2, 0.7):
            assert ours.rate(t, GaussianNoise(0.1)) == pytest.approx(theirs.rate(t, GaussianNoise(0.1)), abs=1e-6)
        assert ours.clean_threshold(0.01) == pytest.approx(theirs.clean_threshold(0.01), abs=1e-3)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2, 0.5), (9, 0.8), (5, 0.1)])
def test_densities_infinite_end(a: float, b: float) -> None:
    """A density that is infinite at an end has the right rates."""
    law = beta(a, b, loc=-1, scale=2)
    ours = Distribution(law)
    u = (np.arange(300_000) + 0.5) / 300_000
    for sigma in (0.05, 0.5):
        exact = float(np.mean(ndtr((law.ppf(u) - 0.7) / sigma)))
        assert ours.rate(0.7, GaussianNoise(sigma)) == pytest.approx(exact, abs=1e-5)


def test_clamp_outside_bulk() -> None:
    """A clamp outside the bulk moves all there."""
    narrow = Distribution(norm(0, 0.05)).clamp(0.5, 1.0)
    assert narrow.clean_threshold(0.01) == 0.5
    assert narrow.rate(0.7, GaussianNoise(0.1)) == pytest.approx(float(ndtr(-2)), abs=1e-9)


def test_tiny_noise_moves_atoms() -> None:
    """Noise far below the spread moves only atoms."""
    clamped = Distribution(norm(0, 0.2)).clamp(0.0, 0.3)
    for sigma in (1e-6, 1e-9):
        law = GaussianNoise(sigma)
        assert clamped.rate(0.1, law) == pytest.approx(clamped.rate(0.1, None), abs=1e-9)
        assert clamped.rate(0.3, law) == pytest.approx(0.5 * float(norm.sf(0.3, 0, 0.2)), abs=1e-6)
        assert clamped.rate(0.0, law) == pytest.approx(0.75, abs=1e-6)
        assert clamped.rate(-0.5, law) == 1


def test_log_slope_of_sample(rng: np.random.Generator) -> None:
    """The estimated log slope of a sample is near the truth."""
    sample = Sample(rng.normal(0, 0.2, 400_000))
    for t, error in ((0.3, 0.04), (0.4, 0.04), (0.6, 0.1)):  # fewer scores, farther out
        assert sample.log_slope(t) == pytest.approx(-t / 0.04, rel=error)
    heavy = Sample(0.2 * rng.standard_t(10, 400_000))
    slope = -11 * 0.6 / (10 * 0.04 + 0.36)  # of the t law: -(nu + 1) x / (nu s^2 + x^2)
    assert heavy.log_slope(0.6) == pytest.approx(slope, rel=0.1)
    assert math.isnan(Sample([0.3, 0.3, 0.3]).log_slope(0.3))


def test_standard_error_is_that_of_the_mean(rng: np.random.Generator) -> None:
    """Standard error is that of the mean."""
    law = GaussianNoise(0.3)
    rates = [Sample(rng.normal(0, 0.2, 500)).rate(0.4, law) for _ in range(2000)]
    told = Sample(rng.normal(0, 0.2, 100_000)).standard_error(0.4, law) * math.sqrt(100_000 / 500)
    spread = float(np.std(rates))
    assert spread == pytest.approx(told, rel=5.33 / math.sqrt(2 * 2000))
    assert spread != pytest.approx(1.25 * told, rel=5.33 / math.sqrt(2 * 2000))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "0.1", None, True, [0.1]])
def test_noise_is_a_number_or_a_law(bad: object) -> None:
    """Noise is a number or a law."""
    with pytest.raises(ss.InvalidInput, match="standard deviation"):
        as_law(bad)


def test_no_noise_is_no_law() -> None:
    """No noise is no law."""
    assert as_law(0) is None
    assert pass_probability(None, 0.5, [0.4, 0.5, 0.6]).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "bad", [[], [0.1], [[0.1, 0.2]], [0.1, math.nan], [0.1, math.inf], ["a", "b"], None, 3.0, [True, False]]
)
def test_bad_samples_are_refused(bad: object) -> None:
    """A bad sample raises an error."""
    with pytest.raises(ss.InvalidInput, match=r"at least two finite numbers|finite"):
        Sample(bad)  # type: ignore[arg-type]


def test_bad_distributions_are_refused() -> None:
    """A bad distribution raises an error."""
    with pytest.raises(ss.InvalidInput, match="frozen continuous distribution"):
        Distribution("normal")
    with pytest.raises(ss.InvalidInput, match="no mass"):
        Distribution(norm(50, 0.1))
