"""Noise of a custom law: the table is what is drawn, its privacy is computed from it, and a false claim is rejected."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats

import scoreshield as ss
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import CustomNoise
from scoreshield.privacy.noise import custom as module
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile, PureProfile
from scoreshield.privacy.sampling import discrete

ROWS = np.random.default_rng(1).standard_normal((40, 6))
QUERY = ROWS[0]
FINE = 2.0**-5
WHOLE = 2**128


def laplace(epsilon: float, **options: Any) -> CustomNoise:
    return CustomNoise.tabulate(scipy.stats.laplace(scale=2 / epsilon), **{"step": FINE, **options})


def gaussian(std: float, **options: Any) -> CustomNoise:
    return CustomNoise.tabulate(scipy.stats.norm(scale=std), **{"step": FINE, **options})


def compute_exact_delta(law: CustomNoise, epsilon: float) -> Fraction:
    """The profile in fractions, with e^epsilon to 40 digits, without the library's sums."""
    with mpmath.workdps(60):
        power = int(mpmath.floor(mpmath.exp(mpmath.mpf(epsilon)) * mpmath.mpf(2) ** 100))
    cells = dict(enumerate(law.weights))
    shifts = [shift for size in range(1, law.width + 1) for shift in (-size, size)]
    worst = max(
        sum(max(0, (weight << 100) - power * cells.get(place - shift, 0)) for place, weight in cells.items())
        for shift in shifts
    )
    return Fraction(worst, 2**228)


# Peers: the laws that the library has.


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_laplace_noise_as_a_custom_law_has_the_profile_of_the_library(epsilon: float) -> None:
    law, peer = laplace(epsilon), LaplaceProfile(epsilon)
    for point in np.linspace(0, epsilon, 7):
        assert law.bound_delta(point) == pytest.approx(peer.delta_at(point), rel=2e-3, abs=1e-13)
        assert law.bound_delta(point) <= peer.delta_at(point) + 1e-12  # rounding to the grid is post-processing
    assert law.std == pytest.approx(ss.LaplaceNoise(2 / epsilon).std, rel=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2.0, 1e-6), (10.0, 1e-8)])
def test_gaussian_noise_as_a_custom_law_has_the_profile_of_the_library(epsilon: float, delta: float) -> None:
    std = ss.calibrate(epsilon, delta, 2.0)
    law, peer = gaussian(std, step=2.0**-6), GaussianProfile(2 / std)
    for point in np.linspace(0, 1.2 * epsilon, 7):
        assert law.bound_delta(point) == pytest.approx(peer.delta_at(point), rel=3e-3)
        assert law.bound_delta(point) <= peer.delta_at(point) * (1 + 1e-9)
    release = ss.release_scores(ROWS, QUERY, epsilon=epsilon, delta=delta, mechanism=law)
    plain = ss.release_scores(ROWS, QUERY, epsilon=epsilon, delta=delta)
    assert release.guarantee.attack_auc == pytest.approx(plain.guarantee.attack_auc, rel=1e-2)
    assert release.guarantee.attack_advantage == pytest.approx(plain.guarantee.attack_advantage, rel=1e-2)


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_logistic_noise_has_its_closed_profile(epsilon: float) -> None:
    """With y = e^(-x / b) and a = e^epsilon the best test is y above (r - 1) / (a - r), r = sqrt(a e^point)."""

    def claim(point: float) -> float:
        return math.expm1((point - epsilon) / 2) ** 2 / -math.expm1(-epsilon) if point < epsilon else 0.0

    law = CustomNoise.tabulate(scipy.stats.logistic(scale=2 / epsilon), profile=claim, step=FINE)
    for point in np.linspace(0, epsilon, 7):
        assert law.bound_delta(point) == pytest.approx(claim(point), rel=5e-3, abs=1e-5 * epsilon)
    with pytest.raises(ss.InvalidInput, match="below the true privacy"):
        CustomNoise.tabulate(
            scipy.stats.logistic(scale=2 / epsilon), profile=lambda point: 0.99 * claim(point), step=FINE
        )


def test_true_claims_are_accepted() -> None:
    assert laplace(1.0, profile=LaplaceProfile(1.0)).claimed_profile == LaplaceProfile(1.0)
    gaussian(3.0, profile=GaussianProfile(2 / 3.0))
    gaussian(3.0, profile=lambda epsilon: GaussianProfile(2 / 3.0).delta_at(epsilon))
    laplace(1.0, profile=PureProfile(1.0))  # looser than the truth


# Near misses.


@pytest.mark.parametrize(
    ("make", "peer"),
    [(lambda **k: laplace(1.0, **k), LaplaceProfile(1.0)), (lambda **k: gaussian(3.0, **k), GaussianProfile(2 / 3.0))],
    ids=["laplace", "gaussian"],
)
def test_claim_one_per_cent_too_small_is_rejected(make: Any, peer: Any) -> None:
    with pytest.raises(ss.InvalidInput, match=r"claimed profile is below the true privacy.*claims delta.*has delta"):
        make(profile=lambda epsilon: 0.99 * peer.delta_at(epsilon))


@pytest.mark.parametrize("size", [0.95, 0.99])
def test_noise_that_is_too_small_is_rejected(size: float) -> None:
    with pytest.raises(ss.InvalidInput, match="below the true privacy"):
        gaussian(3.0 * size, profile=GaussianProfile(2 / 3.0))
    with pytest.raises(ss.InvalidInput, match="below the true privacy"):
        CustomNoise.tabulate(scipy.stats.laplace(scale=2.0 * size), profile=LaplaceProfile(1.0))


def test_claim_that_is_too_small_at_one_place_only_is_rejected() -> None:
    true = GaussianProfile(2 / 3.0)
    with pytest.raises(ss.InvalidInput, match="below the true privacy"):
        gaussian(3.0, profile=lambda epsilon: true.delta_at(epsilon) * (0.99 if epsilon > 2 else 1.5))


def test_claim_about_a_smaller_move_is_rejected() -> None:
    """A profile for sensitivity 1 does not hold for scores that move by 2."""
    claim = LaplaceProfile(1.0)
    law = scipy.stats.laplace(scale=1.0)
    CustomNoise.tabulate(law, profile=claim, score_range=(0.0, 1.0))
    with pytest.raises(ss.InvalidInput, match="below the true privacy"):
        CustomNoise.tabulate(law, profile=claim)


def test_worst_move_may_be_a_short_one() -> None:
    """A comb of two-step teeth hides a move by two steps and reveals a move by one."""
    teeth = np.array([1.0 if place % 2 == 0 else 0.0 for place in range(401)])
    weights, first = module._make_weights(teeth / teeth.sum(), -200)
    law = CustomNoise(weights, first, 1.0, 2.0)
    assert law.bound_delta(0.0) == pytest.approx(1.0)
    assert module._bound_divergence(law.probabilities[::2], 1, 0.0) < 0.01


def test_move_in_either_direction_counts() -> None:
    """Noise that falls to one side only reveals more by a move to the other side."""
    law = CustomNoise.tabulate(scipy.stats.expon(scale=2.0), step=0.25, reach=200.0)
    for point in (0.0, 0.5, 1.5):
        assert float(compute_exact_delta(law, point)) == pytest.approx(law.bound_delta(point), rel=1e-9)
    assert law.bound_delta(1.5) > 0.5  # a value below 0 shows which of the two it was


# The bounds.


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0, 30.0])
def test_bounds_enclose_the_exact_profile(epsilon: float) -> None:
    for law in (
        CustomNoise.tabulate(scipy.stats.logistic(scale=1.3), step=0.5),
        CustomNoise.tabulate(scipy.stats.skewnorm(3.0, scale=2.0), step=0.5),
        CustomNoise.tabulate(scipy.stats.t(4), step=0.5, reach=100.0),
        CustomNoise.tabulate(scipy.stats.uniform(-8, 16), step=0.5),
    ):
        true = compute_exact_delta(law, epsilon)
        low, high = law.bound_delta(epsilon, is_lower=True), law.bound_delta(epsilon)
        assert Fraction(low) <= true <= Fraction(high)
        assert high - low <= 1e-9 * high + 1e-13


def test_curve_is_nowhere_below_the_profile_and_close_to_it() -> None:
    law = CustomNoise.tabulate(scipy.stats.logistic(scale=1.3), step=0.25)
    curve = law.profile(law.sensitivity)
    for point in np.linspace(0, 3, 61):
        true = law.bound_delta(point, is_lower=True)
        assert true <= curve.delta_at(point) <= true * 1.02 + 1e-13
    assert np.all(np.diff(curve.deltas) < 0)


def test_ends_of_the_table_count() -> None:
    """Uniform noise shows the ends: delta does not fall to 0."""
    law = CustomNoise.tabulate(scipy.stats.uniform(-10, 20), step=0.125)
    assert law.bound_delta(0.0) == pytest.approx(0.1)
    assert law.bound_delta(600.0) == pytest.approx(0.1, rel=0.05)
    assert law.profile(2.0).epsilon_at(1e-6) == math.inf


def test_stated_curve_holds_a_claim_that_is_not_convex() -> None:
    """A claim with steps becomes a curve that a file may hold, between the claim and the truth."""
    true = GaussianProfile(2 / 3.0)
    law = gaussian(3.0, profile=lambda epsilon: 1.0 if epsilon < 0.5 else 0.5 if epsilon < 1.5 else true.delta_at(1.5))
    curve = law.state_profile(1.0)
    for point in np.linspace(0, 4, 41):
        assert curve.delta_at(point) >= law.bound_delta(point, is_lower=True)
    x = np.exp(curve.losses)
    slopes = np.diff(curve.deltas) / np.diff(x)
    assert np.all(np.diff(slopes) > -1e-12)
    assert np.all(slopes >= -1 - 1e-9)


# What is drawn.


class Words:
    """A stream of given words."""

    name = "research"

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64).view(np.int64)


def test_draws_have_exactly_the_weights_of_the_table() -> None:
    """The first 64 bits decide where they can; the other 64 bits decide at a boundary, to the last unit."""
    weights = (2**64 + 5, 2**127 - 9, WHOLE - 2**127 - 2**64 + 4)
    ends = list(accumulate(weights))
    for end, place in zip(ends[:2], (0, 1), strict=True):
        for value, expected in ((end - 1, place), (end, place + 1)):
            out = np.empty(1)
            discrete.fill_table(Words(value >> 64, value & (2**64 - 1)), weights, -1, out)
            assert out[0] == expected - 1
    out = np.empty(2)
    stream = Words(0, 2**64 - 1)
    discrete.fill_table(stream, weights, 10, out)  # neither word is the start of a boundary
    assert out.tolist() == [10.0, 12.0]
    with pytest.raises(ValueError, match="sum to 2"):
        discrete.fill_table(Words(0), (1, 2), 0, np.empty(1))


def test_noise_of_a_release_follows_the_table() -> None:
    law = CustomNoise.tabulate(scipy.stats.logistic(scale=0.8), step=0.25)
    rows = np.tile([1.0, 0.0], (60_000, 1))
    release = ss.release_scores(rows, [0.0, 1.0], epsilon=3.0, delta=1e-6, mechanism=law, rng=5)
    steps = np.rint(release.noisy / law.step)
    assert np.array_equal(steps * law.step, release.noisy)
    test = _test_fit(law, steps)
    assert test > 1e-3
    longer = CustomNoise.tabulate(scipy.stats.logistic(scale=0.8 * 1.05), step=0.25)
    assert _test_fit(longer, steps) < 1e-6  # 5 % is noticed


def _test_fit(law: CustomNoise, steps: np.ndarray) -> float:
    expected = law.probabilities * len(steps)
    kept = np.flatnonzero(expected >= 20)
    counts = np.array([np.count_nonzero(steps == place + law.first) for place in kept])
    rest = len(steps) - counts.sum()
    expected = np.append(expected[kept], len(steps) - expected[kept].sum())
    return float(scipy.stats.chisquare(np.append(counts, rest), expected).pvalue)


def test_research_draws_repeat_and_secure_draws_differ() -> None:
    law = laplace(1.0)
    make = lambda rng: ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6, mechanism=law, rng=rng).noisy  # noqa: E731
    assert np.array_equal(make(3), make(3))
    assert not np.array_equal(make(None), make(None))


# Laws as people give them.


class OnlyQuantile:
    def quantile(self, p: Any) -> Any:
        return scipy.stats.logistic.ppf(p)


class OnlyDensity:
    def pdf(self, x: Any) -> Any:
        return 7.0 / np.cosh(np.asarray(x) / 2) ** 2  # up to a factor


class OnlyCdf:
    def cdf(self, x: Any) -> Any:
        return scipy.stats.logistic.cdf(x)


@pytest.mark.parametrize("law", [OnlyQuantile(), OnlyDensity(), OnlyCdf()], ids=lambda law: type(law).__name__)
def test_law_is_read_from_any_of_its_functions(law: Any) -> None:
    given = CustomNoise.tabulate(law, step=0.125, reach=30.0)
    full = CustomNoise.tabulate(scipy.stats.logistic(), step=0.125, reach=30.0)
    assert given.std == pytest.approx(full.std, rel=1e-3)
    assert given.bound_delta(1.0) == pytest.approx(full.bound_delta(1.0), rel=1e-3)
    assert given.label == type(law).__name__
    assert full.label == "logistic"


def test_table_has_the_functions_of_a_noise_law() -> None:
    law = gaussian(1.0)
    x = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(law.cdf(x), scipy.stats.norm.cdf(x), atol=1e-3)
    np.testing.assert_allclose(law.cdf(x) + law.sf(x), 1)
    np.testing.assert_allclose(law.sf(8.0), scipy.stats.norm.sf(8.0), rtol=0.05)
    np.testing.assert_allclose(law.quantile(law.cdf(x)), x, atol=1e-6)
    density = law.log_density([0.0, 1.0]) - np.log(law.step)
    np.testing.assert_allclose(density, scipy.stats.norm.logpdf([0.0, 1.0]), atol=1e-3)
    impostor = np.linspace(-1, 1, 101)
    rate = ss.decisions.false_match_rate(impostor, 1.5, law)
    assert rate == pytest.approx(ss.decisions.false_match_rate(impostor, 1.5, ss.GaussianNoise(1.0)), rel=0.01)


# Errors: one sentence each.


class Falling:
    def cdf(self, x: Any) -> Any:
        return scipy.stats.norm.cdf(-np.asarray(x))


class Scalar:
    def cdf(self, x: Any) -> Any:
        del x
        return 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CustomNoise.tabulate("laplace"), "'law' parameter of CustomNoise.tabulate must be an object with"),
        (lambda: CustomNoise.tabulate(OnlyDensity()), "only a 'pdf' needs a 'step' and a 'reach'"),
        (lambda: CustomNoise.tabulate(Falling(), step=0.5, reach=5.0), "spread|falls somewhere"),
        (lambda: CustomNoise.tabulate(Scalar()), "one number in .0, 1. for each number"),
        (lambda: CustomNoise.tabulate(scipy.stats.norm(), step=0.3), "'step' parameter.*power of two"),
        (lambda: CustomNoise.tabulate(scipy.stats.norm(), step=2.0**-20, reach=1e6), "'reach' parameter.*at most"),
        (lambda: CustomNoise.tabulate(scipy.stats.norm(scale=1e-4)), "moves a score by .* steps"),
        (lambda: gaussian(3.0, profile=lambda _: -0.5), "'profile' parameter.*number in"),
        (lambda: gaussian(3.0, profile=lambda _: math.nan), "'profile' parameter.*number in"),
        (lambda: gaussian(3.0, label="two\nlines"), "'label' parameter"),
        (lambda: CustomNoise((1, 2), 0, 0.5, 1.0), "'weights' parameter.*sum to 2"),
        (lambda: CustomNoise((WHOLE,), 0, 0.5, 0.75), "'sensitivity' parameter.*whole number of grid steps"),
    ],
)  # fmt: skip
def test_bad_laws_and_tables_raise_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(ss.InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, "'delta' parameter of release_scores must be above 0 for a custom law"),
        ({"epsilon": 0.5}, r"has delta .* at epsilon 0.5, which the given delta 1e-06 does not cover"),
        ({"query": ROWS[:2]}, "one record that moves one score"),
        ({"adjacency": ss.Identity([0, 0, *range(38)])}, "one record that moves one score"),
        ({"calibration": "classical"}, "Calibration rules are for Gaussian noise"),
    ],
)
def test_release_rejects_what_the_law_does_not_cover(options: dict[str, Any], message: str) -> None:
    contract = {"query": QUERY, "epsilon": 1.0, "delta": 1e-6, "mechanism": laplace(1.0)} | options
    with pytest.raises(ss.InvalidInput, match=message):
        ss.release_scores(ROWS, **contract)


def test_law_of_a_narrow_range_is_not_used_for_a_wide_one() -> None:
    law = CustomNoise.tabulate(scipy.stats.laplace(scale=1.0), score_range=(0.0, 1.0))
    release = ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6, mechanism=law, score_range=(0.0, 1.0))
    assert release.guarantee.sensitivity == 1.0
    with pytest.raises(ss.InvalidInput, match="checked for a sensitivity of 1"):
        ss.release_scores(ROWS, QUERY, epsilon=2.0, delta=1e-6, mechanism=law)


# The certificate, files and the ledger.


def test_certificate_names_the_law_and_where_its_profile_is_from() -> None:
    for profile, source in ((None, "table"), (LaplaceProfile(1.0), "claim")):
        law = laplace(1.0, profile=profile, label="our Laplace")
        release = ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-9, mechanism=law)
        text = " ".join(str(release.guarantee).split())
        assert release.guarantee.mechanism == "custom"
        assert "Noise of a custom law" in text
        assert "Name of the law, as given: our Laplace." in text
        assert f"Source of the privacy profile: {source}." in text


def test_release_is_saved_with_its_table_and_loads_equal(tmp_path: Path) -> None:
    claim = lambda epsilon: LaplaceProfile(1.0).delta_at(epsilon)  # noqa: E731 (a lambda is not pickled)
    release = ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6, mechanism=laplace(1.0, profile=claim))
    release.save(tmp_path / "custom.npz")
    loaded = ss.load(tmp_path / "custom.npz")
    assert loaded.guarantee == release.guarantee
    assert loaded.guarantee.noise.weights == release.guarantee.noise.weights
    assert np.array_equal(loaded.noisy, release.noisy)
    assert pickle.loads(pickle.dumps(release)).guarantee == release.guarantee


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    law = CustomNoise.tabulate(scipy.stats.logistic(scale=2.2), step=0.5)
    return ss.release_scores(ROWS, QUERY, epsilon=0.8, delta=0.06, mechanism=law, rng=1).guarantee.to_dict()


def edit_weights(data: dict[str, Any]) -> None:
    """Move one part in a thousand of the middle of the table to its ends."""
    weights = [int(weight, 16) for weight in data["noise"]["weights"].split()]
    middle = len(weights) // 2
    moved = weights[middle] // 1000
    weights[middle] -= 2 * moved
    weights[0] += moved
    weights[-1] += moved
    data["noise"]["weights"] = " ".join(f"{weight:x}" for weight in weights)


EDITS = {
    "weights": edit_weights,
    "a smaller epsilon": lambda data: data.update(epsilon=0.1),
    "a smaller delta": lambda data: data.update(delta=1e-3),
    "a smaller curve": lambda data: data["profile"].update(deltas=[0.99 * d for d in data["profile"]["deltas"]]),
    "a smaller sensitivity": lambda data: data["noise"].update(sensitivity=1.0),
    "two smaller sensitivities": lambda data: (
        data["noise"].update(sensitivity=1.0), data.update(grid_sensitivity=1.0)
    ),
    "a wider grid": lambda data: data.update(grid=1.0),
    "another scale": lambda data: data.update(scale=1.0),
    "a batch": lambda data: data.update(shape=[2, 40]),
    "another name": lambda data: data["details"].update(law="gaussian"),
    "a word for a weight": lambda data: data["noise"].update(weights="one"),
    "no weights": lambda data: data["noise"].pop("weights"),
    "too many weights": lambda data: data["noise"].update(weights="1 " * 10**6),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_certificate_is_rejected(name: str, saved: dict[str, Any]) -> None:
    data = json.loads(json.dumps(saved))
    assert Guarantee.from_dict(data).to_dict() == saved
    EDITS[name](data)
    with pytest.raises(ss.InvalidInput):
        Guarantee.from_dict(data)


def test_profile_of_too_many_knots_is_rejected(saved: dict[str, Any]) -> None:
    """Each knot is compared with sums over the whole table; a file must not ask for hours of them."""
    saved = {**saved}
    high, knots = max(saved["profile"]["deltas"]), module.MOST_KNOTS + 1
    saved["profile"] = {"kind": "curve", "losses": np.linspace(0, 700, knots).tolist(), "deltas": [high] * knots}
    with pytest.raises(ss.InvalidInput, match="at most 257 knots"):
        Guarantee.from_dict(saved)
    saved["profile"] = {"kind": "curve", "losses": list(range(100_001)), "deltas": [high] * 100_001}
    with pytest.raises(ss.InvalidInput, match="at most 100,000 knots"):
        Guarantee.from_dict(saved)


def test_custom_noise_is_charged_and_composed(tmp_path: Path) -> None:
    law = laplace(1.0)
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=2.5, delta=1e-5).account("faces")
    for _ in range(2):
        release = ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6, mechanism=law, ledger=account)
    with pytest.raises(ss.BudgetExceeded):
        ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6, mechanism=law, ledger=account)
    both = ss.compose([release, release])
    assert both.epsilon_at(1e-5) == pytest.approx(2.0, rel=0.05)


def test_search_takes_a_custom_law() -> None:
    search = ss.PrivateSearch(ROWS, mode="query", epsilon=20.0, delta=1e-6, mechanism=laplace(20.0), rng=1)
    hits = search.search(QUERY, k=3)
    assert len(hits.ids) == 3
    assert hits.guarantee.mechanism == "custom"


def test_equality_is_that_of_the_tables() -> None:
    law = laplace(1.0)
    assert law == laplace(1.0, profile=LaplaceProfile(1.0)).drop_claim()
    assert hash(law) == hash(laplace(1.0))
    assert law != dataclasses.replace(law, label="other")
    assert "laplace" in repr(law)
