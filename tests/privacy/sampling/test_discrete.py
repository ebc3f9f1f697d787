"""Exact samplers of other laws: against their distributions, against interval arithmetic, and with near misses."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2, norm

from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.sampling import discrete, gaussian
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream, Words


def stream(seed: int = 1) -> ResearchStream:
    return ResearchStream(np.random.default_rng(seed))


class Given:
    """A stream that hands out chosen words, then those of a generator."""

    name = "research"

    def __init__(self, words: list[int]) -> None:
        self.left, self.rest = list(words), stream(7)

    def words(self, count: int) -> Words:
        given, self.left = self.left[:count], self.left[count:]
        return np.concatenate([np.array(given, dtype=np.int64), self.rest.words(count - len(given))])


def uniform_enough(p_values: np.ndarray) -> bool:
    """Kolmogorov's bound at a false-alarm rate of 1e-7."""
    ordered = np.sort(p_values)
    n = len(ordered)
    gap = max(np.abs(ordered - np.arange(n) / n).max(), np.abs(ordered - np.arange(1, n + 1) / n).max())
    return bool(gap < math.sqrt(math.log(2 / 1e-7) / (2 * n)))


def test_laplace_draws_follow_law_near_miss_seen() -> None:
    """Laplace draws follow the law and a near miss is seen."""
    draws = np.empty(400_000)
    discrete.fill_rounded_laplace(stream(), 2.0**26, draws)
    assert np.array_equal(draws, np.rint(draws))
    assert uniform_enough(LaplaceNoise(2.0**26).cdf(draws))
    assert not uniform_enough(LaplaceNoise(2.0**26 * 1.02).cdf(draws))


def test_small_scales_are_the_rounded_law() -> None:
    """With a scale of 0.7 steps each cell has a mass of its own: a chi-square test of all of them."""
    draws = np.empty(300_000)
    discrete.fill_rounded_laplace(stream(2), 0.7, draws)
    cells = np.arange(-6, 7)
    law = LaplaceNoise(0.7)
    mass = law.cdf(cells + 0.5) - law.cdf(cells - 0.5)
    seen = np.array([(draws == cell).sum() for cell in cells])
    statistic = float(((seen - mass * len(draws)) ** 2 / (mass * len(draws))).sum())
    assert statistic < chi2.isf(1e-7, len(cells) - 1)
    wrong = LaplaceNoise(0.72)
    mass = wrong.cdf(cells + 0.5) - wrong.cdf(cells - 0.5)
    assert float(((seen - mass * len(draws)) ** 2 / (mass * len(draws))).sum()) > chi2.isf(1e-7, len(cells) - 1)


@pytest.mark.parametrize("word", [2**63 - 1, -(2**63), 1, -1, 0, 2**44, 2**44 - 1, -(2**62), 2**62 + 12345])
def test_draws_edges_agree_high_precision(word: int) -> None:
    """The word settles the draw up to what follows; both ends of what may follow must enclose it."""
    draws = np.empty(1)
    discrete.fill_rounded_laplace(Given([word]), 2.0**20, draws)
    with mpmath.workdps(60):
        ends = [abs(mpmath.mpf(x)) / mpmath.mpf(2) ** 63 for x in (word, word + 1)]
        sizes = [mpmath.inf if end == 0 else -(2**20) * mpmath.log(end) for end in ends]
        low, high = min(sizes) - 1, max(sizes) + 1
        assert low <= abs(draws[0]) <= high
    assert draws[0] == 0 or (draws[0] < 0) == (word < 0)


def test_the_error_bound_of_the_logarithm() -> None:
    words = stream(3).words(20_000)
    value, logarithm = gaussian.compute_log_magnitude(words)
    good = np.abs(value) >= 2.0**44
    with mpmath.workdps(40):
        for place in np.flatnonzero(good)[:2000]:
            true = mpmath.log(abs(mpmath.mpf(int(words[place])) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 63)
            assert abs(true - mpmath.mpf(float(logarithm[place]))) < 600 * 2.0**-53


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 3.0, 20.0])
def test_geometric_draws(epsilon: float) -> None:
    draws, minus = discrete.draw_geometric(stream(4), epsilon, 300_000)
    for k in (1, 2, 3):
        p = math.exp(-k * epsilon)
        seen = float(np.mean(draws >= k))
        error = 5.33 * math.sqrt(p * (1 - p) / len(draws)) + 1e-5
        assert abs(seen - p) < error
        if k == 1 and 0.5 < epsilon < 5:
            assert abs(seen - math.exp(-epsilon * 1.05)) > error
    assert abs(float(minus.mean()) - 0.5) < 5.33 * 0.5 / math.sqrt(len(minus))
    if epsilon < 15:
        assert abs(np.corrcoef(minus, draws > 0)[0, 1]) < 5.33 / math.sqrt(len(minus))


def test_coins_are_exact_at_the_boundary() -> None:
    third = discrete.enclose(lambda iv: iv.mpf(1) / 3)
    low, high = third(64)
    assert low <= 2**64 // 3 <= high <= low + 2
    heads = discrete.flip_coins(stream(5), third, 300_000)
    assert abs(float(heads.mean()) - 1 / 3) < 5.33 * math.sqrt(2 / 9 / 300_000)
    assert abs(float(heads.mean()) - 0.339) > 5.33 * math.sqrt(2 / 9 / 300_000)
    # The word that equals the leading bits of 1/3 is decided by the next ones: 0x55... below, 0xFF... above.
    word = 2**64 // 3
    signed = word - 2**64 if word >= 2**63 else word
    assert discrete.flip_coins(Given([signed, 0]), third, 1)[0]
    assert not discrete.flip_coins(Given([signed, -1]), third, 1)[0]


def test_certain_coins() -> None:
    assert discrete.flip_coins(stream(), lambda bits: (1 << bits, 1 << bits), 50).all()
    assert not discrete.flip_coins(stream(), lambda _: (0, 0), 50).any()


def test_uniform_integers_have_no_favourites() -> None:
    bounds = np.tile([3, 5, 7], 100_000)
    drawn = discrete.draw_below(stream(6), bounds)
    for bound in (3, 5, 7):
        counts = np.bincount(drawn[bounds == bound], minlength=bound)
        expected = 100_000 / bound
        assert len(counts) == bound
        assert float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-7, bound - 1)
    large = discrete.draw_below(stream(6), np.full(1000, 3 * 2**61))  # a quarter of all words must be rejected
    assert large.max() < 3 * 2**61
    assert abs(float((large < 3 * 2**60).mean()) - 0.5) < 5.33 * 0.5 / math.sqrt(1000)


@pytest.mark.parametrize(("epsilon", "width", "inner"), [(1.0, 4, 1), (0.5, 5, 2), (3.0, 3, 3), (2.0, 1, 1)])
def test_staircase_on_few_steps_cell_by_cell(epsilon: float, width: int, inner: int) -> None:
    draws = np.empty(300_000)
    discrete.fill_staircase(stream(8), epsilon, width, inner, draws)
    cells = np.arange(-4 * width, 4 * width + 1)

    def masses(eps: float) -> np.ndarray:
        size = np.abs(np.arange(-200 * width, 200 * width + 1))
        level = size // width + (size % width >= inner)
        weight = np.exp(-eps * level)
        return (weight / weight.sum())[196 * width : 204 * width + 1]

    seen = np.array([(draws == cell).sum() for cell in cells])
    for eps, right in ((epsilon, True), (epsilon * 1.04, False)):
        expected = masses(eps) * len(draws)
        enough = expected > 20
        statistic = float(((seen - expected)[enough] ** 2 / expected[enough]).sum())
        assert (statistic < chi2.isf(1e-7, int(enough.sum()) - 1)) == right


def test_staircase_of_a_release_follows_its_cdf() -> None:
    law = StaircaseNoise.calibrate(5.0, 2.0, 2.0**-24)
    draws = np.empty(300_000)
    law.fill(stream(9), 2.0**-24, draws)
    assert uniform_enough(law.cdf(draws * 2.0**-24))
    assert not uniform_enough(StaircaseNoise.calibrate(5.2, 2.0).cdf(draws * 2.0**-24))


def test_tables_are_sampled_as_written() -> None:
    weights = np.array([[2**61, 2**60, 2**60], [0, 2**62, 0]], dtype=np.uint64)
    table = np.cumsum(weights, axis=1, dtype=np.uint64)
    rows = np.tile([0, 1], 100_000)
    picked = discrete.draw_columns(stream(10), table, rows)
    assert (picked[rows == 1] == 1).all()
    counts = np.bincount(picked[rows == 0], minlength=3)
    expected = np.array([0.5, 0.25, 0.25]) * 100_000
    assert float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-7, 2)


def test_the_secure_stream_serves_as_well() -> None:
    draws = np.empty(50_000)
    discrete.fill_rounded_laplace(SecureStream(), 1000.0, draws)
    assert abs(draws.mean()) < 1000 * math.sqrt(2) * norm.isf(1e-9) / math.sqrt(len(draws))


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**33, math.nan])
def test_scales_out_of_bounds(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be"):
        discrete.fill_rounded_laplace(stream(), scale, np.empty(1))


@pytest.mark.parametrize(
    "bounds",
    [[64] * 200, [3 * 2**61] * 200, [3, 2**62 + 5] * 100, [1, 1, 7], list(range(1, 200)), [2**63 - 1, 1] * 50],
    ids=["one", "one with rejections", "two", "one and seven", "many", "largest"],
)
def test_division_by_few_bounds_draws_the_same_numbers(bounds: list[int]) -> None:
    """The short ways for one bound and for two give what whole numbers of any size give for the same words."""
    source, todo = stream(9), list(range(len(bounds)))
    found: dict[int, int] = {}
    while todo:
        words = source.words(len(todo)).view(np.uint64).tolist()
        left = []
        for place, word in zip(todo, words, strict=True):
            if word < 2**64 % bounds[place]:
                left.append(place)
            else:
                found[place] = word % bounds[place]
        todo = left
    wanted = [found[place] for place in range(len(bounds))]
    assert discrete.draw_below(stream(9), np.array(bounds)).tolist() == wanted
