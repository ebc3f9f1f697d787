"""The anchor and the windows around it: exact weights, exact draws, and the privacy of both by brute force."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2

import scoreshield.privacy.anchors as anchors_module
from scoreshield.errors import InvalidInput
from scoreshield.privacy.anchors import ANCHOR_STEP, GRID_STEP, AnchoredLaw, RankAnchor, compose_profile
from scoreshield.privacy.profiles import profile_from_dict
from scoreshield.privacy.response import WindowResponse
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import ResearchStream

#: A false alarm in one of ten million runs.
RARE = 1e-7


def make_stream(seed: int = 1) -> ResearchStream:
    return ResearchStream(np.random.default_rng(seed))


def make_law(epsilon: float = 1.0, window: float = 2.0, rank: int = 2) -> AnchoredLaw:
    return AnchoredLaw(RankAnchor(epsilon, rank, -1.0, 1.0), WindowResponse(window, 5, 2), 0.25, 0.125)


# The weights.


@pytest.mark.parametrize("epsilon", [1e-9, 0.01, 0.3, 1.0, 7.0, 500.0])
def test_no_ratio_of_weights_exceeds_its_bound(epsilon: float) -> None:
    table = [int(weight) for weight in anchors_module._make_weights(epsilon)]
    with mpmath.workdps(200):
        # A whole number of 2^-200ths above e^(epsilon/2), by less than one.
        bound = Fraction(int(mpmath.floor(mpmath.exp(mpmath.mpf(epsilon) / 2) * mpmath.mpf(2) ** 200)) + 1, 2**200)
    assert table[0] == 2**1000
    assert all(near >= far >= 1 for near, far in itertools.pairwise(table))
    assert all(Fraction(near, far) <= bound for near, far in itertools.pairwise(table))
    # Not more flat than whole numbers force it to be.
    assert all(far <= Fraction(near) / bound * (1 + Fraction(1, 2**100)) + 1 for near, far in itertools.pairwise(table))


VALUES = (-0.06, -0.02, 0.0, 0.03)


def compute_worst_loss(anchor: RankAnchor, size: int) -> float:
    """The largest loss over all pairs of small collections that differ in one record, from the whole weights."""
    laws = {}
    for scores in itertools.product(VALUES, repeat=size):
        weights = anchor.weigh(anchor.count_above(np.array(scores)))
        laws[scores] = [weight / Fraction(sum(weights)) for weight in weights[:: len(weights) // 32]]
    worst = Fraction(1)
    for scores, law in laws.items():
        for place, value in itertools.product(range(size), VALUES):
            other = laws[(*scores[:place], value, *scores[place + 1 :])]
            worst = max(worst, *(p / q for p, q in zip(law, other, strict=True)))
    return float(mpmath.log(mpmath.mpf(worst.numerator) / worst.denominator))


@pytest.mark.parametrize("rank", [1, 2])
def test_anchor_is_private_by_brute_force(rank: int) -> None:
    loss = compute_worst_loss(RankAnchor(1.0, rank, -0.0625, 0.0625), 3)
    assert 0.5 < loss <= 1.0


def test_forgotten_factor_of_two_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With e^(-epsilon gap) instead of e^(-epsilon gap / 2) the loss exceeds epsilon."""
    make = anchors_module._make_weights
    monkeypatch.setattr(anchors_module, "_make_weights", lambda epsilon: make(2 * epsilon))
    assert compute_worst_loss(RankAnchor(1.0, 2, -0.0625, 0.0625), 3) > 1.0


def test_weights_rounded_down_would_be_noticed() -> None:
    """Weights rounded to the nearest whole number break the bound where they are small."""
    ratio = math.exp(0.15)
    rounded = [round(2**50 / ratio**distance) for distance in range(240)]
    assert any(near > far * ratio * (1 + 1e-9) for near, far in itertools.pairwise(rounded) if far)


def test_counts_are_those_of_direct_comparison() -> None:
    anchor = RankAnchor.over(0.5, 3, (-0.3, 0.61))
    grid = np.arange(anchor.low, anchor.high + ANCHOR_STEP / 2, ANCHOR_STEP)
    rng = np.random.default_rng(3)
    on_grid = rng.choice(grid, 50)
    scores = np.concatenate(
        [rng.uniform(-0.3, 0.61, 200), on_grid, np.nextafter(on_grid, 1), np.nextafter(on_grid, -1)]
    )
    assert anchor.low <= -0.3 < anchor.low + ANCHOR_STEP
    assert anchor.high - ANCHOR_STEP < 0.61 <= anchor.high
    assert anchor.count_above(scores).tolist() == [(scores > place).sum() for place in grid]


def test_one_record_moves_each_count_by_at_most_one() -> None:
    rng, anchor = np.random.default_rng(4), RankAnchor(0.5, 3)
    scores = rng.uniform(-1, 1, 30)
    for value in (-1.0, 1.0, 0.3):
        moved = scores.copy()
        moved[7] = value
        assert np.abs(anchor.count_above(moved) - anchor.count_above(scores)).max() <= 1


# Draws of whole weights.


def compute_statistic(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_weighted_draws_have_their_law() -> None:
    weights, draws, stream = np.array([5, 0, 1, 30, 14]), 60_000, make_stream(5)
    drawn = np.array([discrete.draw_weighted(stream, weights.tolist()) for _ in range(draws)])
    counts = np.bincount(drawn, minlength=5)
    assert counts[1] == 0
    kept = weights > 0
    statistic = compute_statistic(counts[kept], draws * weights[kept] / weights.sum())
    assert statistic < chi2.isf(RARE, kept.sum() - 1)
    near_miss = weights[kept] * np.array([1.0, 1.0, 0.95, 1.1])
    assert compute_statistic(counts[kept], draws * near_miss / near_miss.sum()) > chi2.isf(RARE, kept.sum() - 1)


class ScriptedStream:
    """A stream that gives these words and counts them."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64).view(np.int64)


def test_weighted_draw_reads_on_at_a_boundary() -> None:
    """A third of 2^64 is no whole number: the word that holds it decides nothing."""
    weights, third = [1, 2], 2**64 // 3
    for word, more, index, left in (
        (third - 1, (), 0, 0),
        (third + 1, (), 1, 0),
        (third, (0,), 0, 0),
        (third, (2**64 - 1,), 1, 0),
        (third, (third, 7), 0, 0),
    ):
        stream = ScriptedStream(word, *more)
        assert discrete.draw_weighted(stream, weights) == index  # type: ignore[arg-type]
        assert len(stream.left) == left


def test_anchor_has_its_law() -> None:
    """Chi-square over the whole grid, where the counts come from scores; a rank farther is rejected."""
    anchor, scores = RankAnchor(3.0, 2, -0.0625, 0.0625), np.array([-0.05, -0.01, 0.0, 0.02, 0.03])
    stream, draws = make_stream(6), 40_000
    drawn = np.array([anchor.draw(stream, scores) for _ in range(draws)])
    places = np.arange(-16, 17) * ANCHOR_STEP
    counts = np.array([(drawn == place).sum() for place in places])
    assert counts.sum() == draws

    def compute_expected(rank: int, epsilon: float) -> np.ndarray:
        gaps = np.array([abs(int((scores > place).sum()) - rank) for place in places])
        weights = np.exp(-epsilon * gaps / 2)
        return np.asarray(draws * weights / weights.sum())

    assert compute_statistic(counts, compute_expected(2, 3.0)) < chi2.isf(RARE, 32)
    assert compute_statistic(counts, compute_expected(3, 3.0)) > chi2.isf(RARE, 32)
    assert compute_statistic(counts, compute_expected(2, 2.8)) > chi2.isf(RARE, 32)


# Both parts.


def test_released_scores_have_the_law_of_windows() -> None:
    """Given the anchor, cells of the window have e^epsilon times the weight; 3 % more epsilon is rejected."""
    draws = 120_000
    # All scores are equal, so the anchor lies below them surely enough; the epsilon of the windows is small.
    law = AnchoredLaw(RankAnchor(40.0, draws, -1.0, 1.0), WindowResponse(2.0, 5, 2), 0.25, 0.125)
    noisy = law.release(make_stream(7), np.full(draws, -0.5))
    assert set(np.unique(noisy / GRID_STEP % 1)) == {0.0}
    cells, counts = np.unique(noisy, return_counts=True)
    assert len(cells) == 5
    assert np.allclose(np.diff(cells), 0.125)

    def find_statistic(epsilon: float) -> float:
        best = np.inf
        for start in range(4):  # where the window starts depends on the drawn anchor
            weights = np.where((np.arange(5) >= start) & (np.arange(5) < start + 2), math.exp(epsilon), 1.0)
            best = min(best, compute_statistic(counts, draws * weights / weights.sum()))
        return best

    assert find_statistic(2.0) < chi2.isf(RARE, 4) < find_statistic(2.06)


def test_higher_scores_have_higher_releases_and_the_middle_is_unbiased() -> None:
    """Far inside the scale and with a large budget, the released score is the clean one up to half a window."""
    law = AnchoredLaw(RankAnchor(100.0, 3), WindowResponse(60.0, 1280, 64), 0.5, 2.0**-10)
    scores = np.array([0.7, 0.5, 0.4, 0.3, 0.3, 0.2])
    noisy = law.release(make_stream(8), scores.copy())
    assert np.abs(noisy - scores).max() <= 33 * 2.0**-10
    top = law.release(make_stream(9), np.concatenate([np.full(50_000, 0.35), [0.7, 0.6]]))[:50_000]
    assert abs(top.mean() - 0.35) < 2.0**-10


def list_joint_law(law: AnchoredLaw, scores: np.ndarray, record: int) -> np.ndarray:
    """The joint law of the anchor and one record's cell, (anchors, cells), from the weights and the window law."""
    weights = law.anchor.weigh(law.anchor.count_above(scores))
    chances = np.array([float(Fraction(weight, sum(weights))) for weight in weights])
    tops = law.anchor.low + np.arange(len(weights)) * ANCHOR_STEP + law.offset
    cells, window = law.response.cells, law.response.window
    starts = np.clip((tops - scores[record]) / law.cell_width, 0, cells - window).astype(int)
    inside = (np.arange(cells) >= starts[:, None]) & (np.arange(cells) < starts[:, None] + window)
    densities = np.where(inside, math.exp(law.response.epsilon), 1.0)
    return np.asarray(chances[:, None] * densities / densities.sum(axis=1, keepdims=True))


def test_profile_covers_both_parts_by_brute_force() -> None:
    """Over all replaced records of some collections, the joint law stays below the stated profile and near it."""
    anchor = RankAnchor(0.75, 2, -0.0625, 0.0625)
    law = AnchoredLaw(anchor, WindowResponse(2.0, 5, 2), 0.03125, 0.03125)
    worst = dict.fromkeys((0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 2.75), 0.0)
    for others in itertools.combinations_with_replacement((-0.05, 0.0, 0.0325), 3):
        for pair in itertools.permutations((-0.0625, -0.02, 0.01, 0.06), 2):
            first, second = (list_joint_law(law, np.array([value, *others]), 0) for value in pair)
            for epsilon, found in worst.items():
                worst[epsilon] = max(found, float(np.maximum(first - math.exp(epsilon) * second, 0).sum()))
    for epsilon, found in worst.items():
        assert found <= law.profile.delta_at(epsilon) + 1e-12
    assert law.profile.delta_at(2.75) == 0
    assert worst[0.0] > 0.8 * law.profile.delta_at(0.0)


@pytest.mark.parametrize(("anchor", "window"), [(0.3, 7.7), (1.0, 1.0), (2.0, 0.5), (0.01, 0.02), (5.0, 300.0)])
def test_profile_is_the_composition_of_two_loss_laws(anchor: float, window: float) -> None:
    """Against the sum over all pairs of losses, in fifty digits."""
    response = WindowResponse(window, 200, 64)
    profile = compose_profile(anchor, response)
    with mpmath.workdps(50):
        a, w = mpmath.mpf(anchor), mpmath.mpf(window)
        p, m = 1 / (1 + mpmath.exp(-a)), 64 / (64 + 136 * mpmath.exp(-w))
        ones = [(a, p), (-a, 1 - p)]
        twos = [(w, m), (-w, m * mpmath.exp(-w)), (mpmath.mpf(0), 1 - m - m * mpmath.exp(-w))]

        def compute_exactly(epsilon: float) -> float:
            terms = [u * v * (1 - mpmath.exp(epsilon - x - y)) for x, u in ones for y, v in twos if x + y > epsilon]
            return float(sum(terms))

        for epsilon in np.linspace(0, anchor + window, 41):
            exact, stated = compute_exactly(float(epsilon)), profile.delta_at(float(epsilon))
            assert exact <= stated <= exact * (1 + 1e-9) + 1e-12
    assert profile_from_dict(profile.to_dict()) == profile


def test_profile_beyond_files_is_that_of_a_pure_mechanism() -> None:
    profile = compose_profile(1.0, WindowResponse(900.0, 200, 64))
    assert profile.epsilon_at(0.0) == 901.0
    assert profile_from_dict(profile.to_dict()) == profile


def test_number_of_words_does_not_depend_on_scores() -> None:
    drawn = []
    for scores in (np.linspace(-1, 1, 40), np.zeros(40), np.ones(40)):
        stream = make_stream(11)
        make_law().release(stream, scores)
        drawn.append(int(stream.words(1)[0]))  # the next word is the same where as many were read
    assert len(set(drawn)) == 1


def test_settings_of_numpy_show_nothing_of_a_record() -> None:
    """Scores that underflow are released like zeros, whatever the caller set for NumPy's errors."""
    with np.errstate(all="raise"):
        released = [
            make_law().release(make_stream(1), scores)
            for scores in (np.full(8, 5e-324), np.full(8, -2.2e-308), np.zeros(8))
        ]
    assert all(np.isfinite(values).all() for values in released)
    assert np.array_equal(released[1], released[2])


def test_details_give_the_law_back() -> None:
    law = AnchoredLaw(RankAnchor.over(0.3, 7, (-0.2, 0.9)), WindowResponse(2.0, 200, 64), 0.125, 3 * 2.0**-20)
    assert AnchoredLaw.from_details(law.to_details(), (-0.2, 0.9)) == law


@pytest.mark.parametrize(
    "make",
    [
        lambda: RankAnchor(0.0, 2),
        lambda: RankAnchor(1.0, 0),
        lambda: RankAnchor(1.0, 2, 0.5, 0.5),
        lambda: RankAnchor(1.0, 2, 0.0, 0.3),
        lambda: RankAnchor(1.0, 2, -2.0, 0.5),
        lambda: AnchoredLaw(RankAnchor(1.0, 2), WindowResponse(1.0, 5, 2), 0.3, 0.125),
        lambda: AnchoredLaw(RankAnchor(1.0, 2), WindowResponse(1.0, 5, 2), 0.25, 0.1),
        lambda: AnchoredLaw(RankAnchor(1.0, 2), WindowResponse(1.0, 5, 2), 0.25, -0.125),
        lambda: AnchoredLaw(RankAnchor(1.0, 2), WindowResponse(1.0, 5, 3), 0.25, 0.125),
        lambda: AnchoredLaw(RankAnchor(1.0, 2), WindowResponse(1.0, 5, 2), 8.0, 0.125),
    ],
)
def test_bad_arguments_raise_errors(make: object) -> None:
    with pytest.raises(InvalidInput):
        make()  # type: ignore[operator]
