"""The parts of the check of a guarantee, one by one: what each says of every kind of release, and where it turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from mechanism_registry import BATCH, BY_NAME, ENTRIES, QUERY, RAW, ROWS

import scoreshield as ss
from scoreshield.privacy import consistency
from scoreshield.privacy.calibration import LEAST_DELTA
from scoreshield.privacy.consistency import is_consistent
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)


@cache
def made(name: str) -> Guarantee:
    found: Guarantee = BY_NAME[name].release(rng=1).guarantee
    return found


def told(guarantee: Guarantee, **details: Any) -> Guarantee:
    return replace(guarantee, details={**guarantee.details, **details})


def ranged(guarantee: Guarantee, low: float, high: float) -> Guarantee:
    return replace(guarantee, score_range=(low, high))


# How far one neighbour moves what was released

ROOT = math.sqrt
LEAST = {
    "scores, Gaussian, records, one query": (1.2, 1),
    "scores, Gaussian, identities, one query": (1.2 * ROOT(3), 3),
    "scores, Gaussian, records, batch": (2.0, 4),
    "scores, Gaussian, identities, batch": (2 * ROOT(3), 12),
    "scores, laplace, records": (1.2, 1),
    "row, records": (1.2 * ROOT(11), 11),
    "row, centroids": (1.2 * ROOT(3), 3),
    "Gram matrix, records": (1.2 * ROOT(22), 22),
    "Gram matrix, radius": (0.5, 132),
    "index, privunit, random subspace, records": (2.0, 3),
    "index, gaussian, all dimensions, identities": (2 * ROOT(3), 18),
}


@pytest.mark.parametrize("name", LEAST)
def test_the_least_sensitivity(name: str) -> None:
    least, moved = LEAST[name]
    guarantee = ranged(made(name), -0.5, 0.7)
    assert consistency._compute_least_sensitivity(guarantee) == pytest.approx(least, rel=1e-12)
    assert consistency._count_moved_entries(guarantee) == moved
    assert consistency._count_moved_rows(guarantee) == (3 if "identities" in name else 1)


def test_the_least_sensitivity_of_other_releases() -> None:
    for name, least in (
        ("matches", 1.0),
        ("matches, refined", 1.0),
        ("top-k, gumbel", 1.2),
        ("histogram, geometric, query", 2.0),
        ("histogram, gaussian, all pairs", ROOT(2)),
    ):
        assert consistency._compute_least_sensitivity(ranged(made(name), -0.5, 0.7)) == pytest.approx(least, rel=1e-12)
    # A narrow range binds a batch before the geometry does.
    batch = ranged(made("scores, Gaussian, identities, batch"), -0.1, 0.3)
    assert consistency._compute_least_sensitivity(batch) == pytest.approx(ROOT(3) * 0.4 * ROOT(4), rel=1e-12)


# Rows and labels


def test_how_many_rows_a_release_has() -> None:
    for name, rows in (
        ("scores, Gaussian, records, one query", (12,)),
        ("scores, Gaussian, records, batch", (12,)),
        ("scores, Gaussian, centroids, batch", (4,)),
        ("row, records", (12,)),
        ("Gram matrix, records", (12,)),
        ("matches", (12,)),
        ("top-k, gumbel", (12,)),
        ("index, privunit, random subspace, records", (12,)),
        ("histogram, geometric, query", (12,)),
        ("histogram, gaussian, query", (12,)),
        ("histogram, geometric, all pairs", (12,)),
        ("histogram, gaussian, all pairs", (12,)),
    ):
        assert consistency.count_rows(made(name)) == rows, name
        assert all(type(count) is int for count in consistency.count_rows(made(name)))
    pairs = ss.release_histogram(ROWS[:2], None, epsilon=1, rng=1).guarantee
    assert consistency.count_rows(pairs) == (1, 2)  # one score is of one row, or of one pair of them
    for n in (3, 4, 5, 9, 100):
        many = told(
            replace(made("histogram, geometric, all pairs"), sensitivity=2.0 * (n - 1)), scores=n * (n - 1) // 2
        )
        assert consistency.count_rows(many) == (n,)
    for name, detail in (("top-k, gumbel", "records"), ("histogram, geometric, query", "scores")):
        with pytest.raises(ss.InvalidInput):
            consistency.count_rows(told(made(name), **{detail: 0}))


def people(identities: int, largest: int, centroids: bool = False) -> ss.Identity:
    return ss.Identity._from_counts(centroids, identities, largest)


def test_counts_that_labels_can_have() -> None:
    """Of i people the largest of whom has g records: from g + i - 1 rows to g i."""
    assert [consistency._has_labels(people(3, 4), rows) for rows in (5, 6, 12, 13)] == [False, True, True, False]
    assert [consistency._has_labels(people(3, 1, True), rows) for rows in (2, 3, 4)] == [False, True, False]
    assert not consistency._has_labels(people(3, 2, True), 3)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_adjacencies_that_fit(entry: Any) -> None:
    guarantee = made(entry.name)
    rows = consistency.count_rows(guarantee)[0]
    assert consistency._fits_adjacency(guarantee)
    assert consistency._fits_adjacency(replace(guarantee, adjacency=ss.GramRadius(1.0))) == (entry.regime == "gram")
    assert consistency._fits_adjacency(replace(guarantee, adjacency=people(rows, 1, True))) == (
        (entry.mechanism in ("gaussian", "privunit", "codebook", "set-response") and entry.regime != "histogram")
        or len(guarantee.shape) == 1
    )
    many = entry.mechanism in ("privunit", "codebook", "set-response") or (
        entry.mechanism == "gaussian" and entry.regime != "histogram"
    )
    assert consistency._fits_adjacency(replace(guarantee, adjacency=people(rows - 1, 2))) == many
    assert not consistency._fits_adjacency(replace(guarantee, adjacency=people(rows + 1, 1)))


def test_one_score_must_move() -> None:
    laplace = made("scores, laplace, records")
    assert consistency._fits_adjacency(replace(laplace, shape=(1, 12)))
    assert not consistency._fits_adjacency(replace(laplace, shape=(2, 12)))


# Shapes and details


def test_shapes_that_fit() -> None:
    for name, good, bad in (
        ("scores, laplace, records", [(3,), (2, 3)], [(), (1, 2, 3)]),
        ("row, records", [(3,)], [(3, 3), ()]),
        ("Gram matrix, records", [(3, 3)], [(3,), (3, 4), (3, 3, 3)]),
        ("index, privunit, random subspace, records", [(3, 4)], [(3,), (3, 4, 5)]),
        ("matches", [(3,)], [(3, 3)]),
        ("top-k, gumbel", [(3,)], [(3, 3)]),
        ("histogram, geometric, query", [(3,)], [(3, 3)]),
    ):
        for shape in good:
            assert consistency._fits_shape(replace(made(name), shape=shape))
        for shape in bad:
            assert not consistency._fits_shape(replace(made(name), shape=shape))


def test_details_that_fit() -> None:
    def fits(guarantee: Guarantee) -> bool:
        return consistency._fits_details(guarantee)

    for entry in ENTRIES:
        guarantee = made(entry.name)
        if "changes" in guarantee.details:  # its details are those of one draw, and three more
            continue
        assert fits(guarantee)
        assert not fits(replace(guarantee, grid=3 * guarantee.grid))
    for name in ("scores, optimal table", "scores, response table"):
        table = made(name)
        assert not fits(told(table, levels=table.details["levels"] + 1))
        assert not fits(replace(table, grid=2 * table.grid))
        assert fits(replace(table, scale=table.scale * (1 + 1e-10)))
        assert not fits(replace(table, scale=table.scale * (1 + 1e-8)))
    assert not fits(told(made("top-k, gumbel"), selections=2))
    for mechanism in ("privunit", "gaussian"):
        index = made(f"index, {mechanism}, private PCA, records")
        std = index.details["score_std"]
        assert fits(told(index, score_std=std * (1 + 1e-10)))
        assert not fits(told(index, score_std=std * (1 + 1e-8)))
        for share in (0.0, 1.0, -0.1, 1.1):
            assert not fits(told(index, pca_share=share))
        for share in (1e-9, 0.999):
            assert fits(told(index, pca_share=share))
        plain = made(f"index, {mechanism}, random subspace, records")
        assert not fits(told(plain, pca_share=0.5))
        assert not fits(told(plain, reduction="pca"))
        assert not fits(told(index, reduction="none"))


# What profiles cover


class Implied:
    """A profile by its values, which notes where it is asked."""

    def __init__(self, delta: Callable[[float], float] = lambda _: 0.0) -> None:
        self.delta, self.asked = delta, list[float]()

    def delta_at(self, epsilon: float) -> float:
        self.asked.append(epsilon)
        return self.delta(epsilon)


@pytest.mark.parametrize(
    ("profile", "points"),
    [
        (PureProfile(1.5), [0.0, 1.5]),
        (StepProfile(1.5, 0.3), [0.0, 1.5]),
        (CurveProfile((0.0, 0.1, 9.0), (0.5, 0.2, 0.1)), [0.0, 0.1, 9.0]),
    ],
)
def test_a_profile_is_compared_where_it_bends(profile: Profile, points: list[float]) -> None:
    """Between these points it is straight in e^epsilon, and the implied one is convex."""
    implied = Implied()
    assert consistency._covers(profile, implied)
    assert implied.asked == points
    for place in points:
        for factor, covered in ((1.0, True), (1 + 5e-10, True), (1 + 2e-9, False)):
            only = {place: profile.delta_at(place) * factor}
            exact = profile.delta_at(place) == 0
            assert consistency._covers(profile, Implied(lambda e, o=only: o.get(e, 0.0))) == (covered or exact)  # type: ignore[misc]
    if profile.delta_at(points[-1]) == 0:  # 0 covers nothing else, not even the smallest double
        assert not consistency._covers(profile, Implied(lambda e: LEAST_DELTA if e > 0 else 0.0))


def test_a_convex_profile_covers_its_own_kind_only() -> None:
    """Between two points a convex profile may lie below another one, so its parameter decides."""
    kinds: list[Callable[[float], Profile]] = [GaussianProfile, LaplaceProfile]
    for kind in kinds:
        for value, covered in ((1.0, True), (1.1, True), (1 - 1e-13, False), (0.5, False)):
            assert consistency._covers(kind(value), kind(1.0)) == covered
        for other in (PureProfile(1e-6), StepProfile(1e-6, 0.1), CurveProfile((0.0, 1e-6), (1e-9, 0.0)), Implied()):
            assert not consistency._covers(kind(1.0), other)
    assert not consistency._covers(GaussianProfile(1.0), LaplaceProfile(1e-6))
    assert not consistency._covers(LaplaceProfile(1.0), GaussianProfile(1e-6))
    # Gaussian noise is never pure, even where its delta is smaller than any double.
    for ended in (PureProfile(50.0), StepProfile(50.0, 1.0), CurveProfile((0.0, 50.0), (1.0, 0.0))):
        assert not consistency._covers(ended, GaussianProfile(0.1))
        assert not consistency._covers(ended, consistency._PureBesideGaussian(0.1, GaussianProfile(0.1)))


@pytest.mark.parametrize("epsilon", [-0.5, -1e-9, 0.0, 0.5, 2.0])
def test_a_profile_at_a_loss_of_either_sign(epsilon: float) -> None:
    """delta(-e) = 1 - e^-e + e^-e delta(e), by exchanging the two laws."""
    profile = GaussianProfile(0.7)
    asked: list[float] = []

    class Watched:
        def delta_at(self, loss: float) -> float:
            asked.append(loss)
            return profile.delta_at(loss)

    found = consistency._extend_delta(Watched(), epsilon)  # type: ignore[arg-type]
    wanted = profile.delta_at(abs(epsilon))
    if epsilon < 0:
        wanted = 1 - math.exp(epsilon) + math.exp(epsilon) * wanted
    assert found == pytest.approx(wanted, rel=1e-12)
    assert asked == [abs(epsilon)]


# What the stated noise implies

POINTS = (0.0, 0.3, 0.999, 1.0, 1.5, 5.9)


def implied(guarantee: Guarantee) -> Any:
    return consistency._derive_profile(guarantee)


def same(found: Any, profile: Any, rel: float = 1e-9) -> None:
    for epsilon in POINTS:
        assert found.delta_at(epsilon) == pytest.approx(profile.delta_at(epsilon), rel=rel, abs=0)


def test_counts_imply() -> None:
    query, pairs = made("histogram, geometric, query"), made("histogram, geometric, all pairs")
    for guarantee in (query, pairs):
        assert guarantee.sensitivity / guarantee.scale == pytest.approx(1.0)
        ratio = guarantee.sensitivity / guarantee.scale
        same(implied(guarantee), PureProfile(ratio * (1 - 1e-12)))
        same(implied(replace(guarantee, scale=2 * guarantee.scale)), PureProfile(ratio / 2 * (1 - 1e-12)))
    for name in ("histogram, gaussian, query", "histogram, gaussian, all pairs"):
        guarantee = made(name)
        same(implied(guarantee), GaussianProfile(guarantee.sensitivity / guarantee.scale * (1 - 1e-12)), rel=0)
    assert implied(told(query, scores=0)) is None
    assert implied(told(query, scores=1)) is not None  # one score, and all that can move
    assert implied(told(pairs, scores=65)) is None
    assert implied(told(pairs, scores=67)) is None
    assert implied(replace(query, sensitivity=4.0)) is None
    assert implied(told(replace(query, sensitivity=4.0), scores=3)) is not None  # two of the pairs of three rows


def test_a_screening_implies() -> None:
    plain, refined = made("matches"), made("matches, refined")
    same(implied(plain), PureProfile(1 - 1e-12))
    same(implied(refined), PureProfile(1 - 1e-12))
    same(implied(told(plain, screening_epsilon=0.5)), PureProfile(0.5 * (1 - 1e-12)))
    low, high = plain.score_range
    for threshold, fits in (
        (low, True),
        (math.nextafter(low, -2), False),
        (high, False),
        (math.nextafter(high, 0), True),
    ):
        assert (implied(told(plain, threshold=threshold)) is not None) == fits
    for details in (
        {"screening_epsilon": 0.0},
        {"screening_epsilon": -1.0},
        {"refining_epsilon": 0.1},
        {"refining_epsilon": -0.1},
    ):
        assert implied(told(plain, **details)) is None
    for details in ({"refining_epsilon": 0.0}, {"screening_epsilon": 0.0}, {"refining_epsilon": -0.1}):
        assert implied(told(refined, **details)) is None
    assert implied(replace(refined, scale=refined.scale * (1 + 1e-10))) is not None
    assert implied(replace(refined, scale=refined.scale * (1 + 1e-8))) is None


@pytest.mark.parametrize(
    ("low", "high", "grid"),
    [(-0.9, 0.9, 0.25), (0.125, 0.375, 0.25), (0.3, 0.9, 0.25), (-0.6, 0.7, 0.5), (0.1, 0.6, 0.25), (-0.9, 0.8, 0.5)],
)
def test_a_screening_takes_the_width_on_its_grid(low: float, high: float, grid: float) -> None:
    """The larger of what rounded ends and the range itself are apart, in steps."""
    width = max(round(high / grid) - round(low / grid), math.ceil((high - low) / grid)) * grid
    law = StaircaseNoise.calibrate(0.3, width, grid)
    coarse = replace(made("matches, refined"), score_range=(-1.0, high), grid=grid, scale=law.std)
    assert implied(told(coarse, threshold=low, screening_epsilon=0.7, refining_epsilon=0.3)) is not None
    for other in (width - grid, width + grid):
        wrong = replace(coarse, scale=StaircaseNoise.calibrate(0.3, other, grid).std)
        assert implied(told(wrong, threshold=low, screening_epsilon=0.7, refining_epsilon=0.3)) is None


def test_a_selection_implies() -> None:
    three = made("top-k, gumbel")
    each = three.details["epsilon_for_each"]
    same(implied(three), PureProfile(3 * each * (1 - 1e-12)))
    assert implied(replace(three, scale=three.scale * (1 - 1e-13))) is not None
    assert implied(replace(three, scale=three.scale * (1 - 1e-11))) is None
    assert implied(replace(three, scale=three.scale * 2)) is not None
    assert implied(told(three, records=3)) is not None
    assert implied(told(three, records=2)) is None
    assert implied(told(three, epsilon_for_each=0.0)) is None
    assert implied(told(three, epsilon_for_each=-each)) is None


def test_privunit_implies() -> None:
    for how in ("all dimensions", "random subspace"):
        alone = made(f"index, privunit, {how}, records")
        same(implied(alone), PrivUnit.calibrate(alone.shape[1], 6.0).profile, rel=0)
    group = made("index, privunit, all dimensions, identities")
    pure = PrivUnit.calibrate(6, group.details["epsilon_per_record"]).epsilon * 3
    same(implied(group), PureProfile(pure * (1 - 1e-12)))
    for name in ("cap_probability", "cap_height", "shrinkage"):
        value = group.details[name]
        assert implied(told(group, **{name: value * (1 + 1e-7)})) is not None
        assert implied(told(group, **{name: value * (1 + 1e-5)})) is None
    for name in ("scale", "grid"):
        for factor in (1.01, 1 + 3e-6, 1 - 3e-6):
            assert implied(replace(group, **{name: getattr(group, name) * factor})) is None


@pytest.mark.parametrize("who", ["records", "identities"])
def test_privunit_beside_a_covariance_implies(who: str) -> None:
    """Randomised response with the whole of an identity's budget, then Gaussian noise."""
    both = made(f"index, privunit, private PCA, {who}")
    pure = both.details["epsilon_per_record"] * (3 if who == "identities" else 1)
    other = GaussianProfile(both.details["covariance_sensitivity"] / both.details["covariance_std"])
    p = 1 / (1 + math.exp(-pure))
    for epsilon in (0.0, 1.0, 4.0, 5.4, 5.5, 6.0, 9.0):
        rest = epsilon - pure
        first = other.delta_at(rest) if rest >= 0 else 1 - math.exp(rest) * (1 - other.delta_at(-rest))
        wanted = p * first + (1 - p) * other.delta_at(epsilon + pure)
        assert implied(both).delta_at(epsilon) == pytest.approx(wanted, rel=1e-9, abs=0)
    # The second part counts where the first has none left.
    weak = told(both, covariance_std=both.details["covariance_std"] / 40)
    mu = both.details["covariance_sensitivity"] / weak.details["covariance_std"]
    loud = GaussianProfile(mu)
    wanted = p * (1 - math.exp(-pure) * (1 - loud.delta_at(pure))) + (1 - p) * loud.delta_at(pure)
    assert implied(weak).delta_at(0.0) == pytest.approx(wanted, rel=1e-12)
    for name in ("covariance_std", "covariance_sensitivity"):
        assert implied(told(both, **{name: 0.0})) is None


def test_the_mu_of_a_covariance() -> None:
    for name, group in (("index, privunit, private PCA, records", 1), ("index, gaussian, private PCA, identities", 3)):
        least = group * ROOT(2)
        found = consistency._compute_covariance_mu(told(made(name), covariance_sensitivity=least, covariance_std=0.5))
        assert found == least / 0.5
        short = told(made(name), covariance_sensitivity=math.nextafter(least, 0), covariance_std=0.5)
        assert consistency._compute_covariance_mu(short) is None
        for std in (0.0, -1.0):
            bad = told(made(name), covariance_sensitivity=least, covariance_std=std)
            assert consistency._compute_covariance_mu(bad) is None


@pytest.mark.parametrize(
    "name", [entry.name for entry in ENTRIES if entry.mechanism == "gaussian" and entry.regime != "histogram"]
)
def test_gaussian_noise_implies(name: str) -> None:
    """Its own sensitivity with a step for each entry that moves, over the scale, a little less."""
    guarantee = made(name)
    on_grid = guarantee.sensitivity + guarantee.grid * ROOT(consistency._count_moved_entries(guarantee))
    mu = on_grid / guarantee.scale
    beside = {"PCA": "covariance", "private center": "center"}
    part = next((part for word, part in beside.items() if word in name), None)
    if part is not None:
        mu = math.hypot(mu, guarantee.details[f"{part}_sensitivity"] / guarantee.details[f"{part}_std"])
    same(implied(guarantee), GaussianProfile(mu * (1 - 1e-12)), rel=0)
    std = guarantee.noise.std
    assert implied(replace(guarantee, noise=GaussianNoise(std * (1 + 1e-10)))) is not None
    assert implied(replace(guarantee, noise=GaussianNoise(std * (1 + 1e-8)))) is None
    assert implied(replace(guarantee, profile=GaussianProfile(guarantee.mu * (1 + 1e-10)))) is not None
    assert implied(replace(guarantee, profile=GaussianProfile(guarantee.mu * (1 + 1e-8)))) is None
    if part is not None:
        assert implied(told(guarantee, **{f"{part}_std": 0.0})) is None
    else:
        both = {"sensitivity": guarantee.sensitivity * (1 - 1e-8)}
        assert implied(replace(guarantee, **both)) is None


def test_other_noise_implies() -> None:
    laplace, staircase = made("scores, laplace, records"), made("scores, staircase, records")
    same(implied(laplace), laplace.noise.profile(laplace.grid_sensitivity), rel=0)
    same(implied(staircase), staircase.noise.profile(staircase.grid_sensitivity), rel=0)
    same(implied(made("scores, optimal table")), made("scores, optimal table").noise.profile(2.0), rel=0)
    for guarantee, law in (
        (laplace, LaplaceNoise(laplace.noise.b * (1 + 1e-8))),
        (staircase, StaircaseNoise.calibrate(1.0, 2.5, staircase.grid)),
    ):
        assert implied(replace(guarantee, noise=law)) is None
    assert implied(replace(laplace, noise=LaplaceNoise(laplace.noise.b * (1 + 1e-10)))) is not None
    wide = replace(laplace, grid_sensitivity=4.0)
    same(implied(wide), laplace.noise.profile(4.0), rel=0)


# The whole


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_made_is_consistent(name: str) -> None:
    guarantee = made(name)
    assert is_consistent(guarantee)
    assert not is_consistent(replace(guarantee, epsilon=-guarantee.epsilon))
    for part in ("_fits_shape", "_fits_adjacency", "_fits_details"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consistency, part, lambda _: False)
            assert not is_consistent(guarantee)
    assert not is_consistent(replace(guarantee, grid_sensitivity=guarantee.sensitivity * (1 - 1e-9)))
    assert not is_consistent(replace(guarantee, noise=LaplaceNoise(1.0) if guarantee.noise is None else None))
    other = {"pure": "analytic"}.get(guarantee.calibration, "pure")
    assert not is_consistent(replace(guarantee, calibration=other))
    # A larger promise is true as well, as long as it is of the same kind. An index with public changes states a total.
    is_total = "largest_draws" in guarantee.details
    assert is_consistent(replace(guarantee, epsilon=guarantee.epsilon * 1.5)) != is_total
    if guarantee.delta:
        assert is_consistent(replace(guarantee, delta=guarantee.delta * 1.5))
        at = guarantee.delta_at(guarantee.epsilon)
        assert is_consistent(replace(guarantee, delta=at))
        assert not is_consistent(replace(guarantee, delta=math.nextafter(at, 0)))


def test_a_promise_of_epsilon_0() -> None:
    """It holds with the whole advantage for its delta."""
    guarantee = made("scores, Gaussian, records, one query")
    assert is_consistent(replace(guarantee, epsilon=0.0, delta=guarantee.delta_at(0.0)))


def test_a_sensitivity_may_be_rounded_by_little() -> None:
    """Down to 1e-12 of the least one: a radius is stated as such, and its noise was calibrated to it."""
    radius = made("Gram matrix, radius")
    for short, fits in ((1e-13, True), (1e-11, False)):
        wide = replace(radius, adjacency=ss.GramRadius(radius.sensitivity * (1 + short)))
        assert is_consistent(wide) == fits


def test_a_private_covariance_is_not_pure() -> None:
    pure = made("index, privunit, all dimensions, records")
    assert is_consistent(pure)
    shared = told(pure, reduction="pca", pca_share=0.1, covariance_sensitivity=2.0, covariance_std=1e6)
    assert not is_consistent(shared)
    with pytest.MonkeyPatch.context() as patch:  # whatever the other parts say of it
        patch.setattr(consistency, "_covers", lambda *_: True)
        assert not is_consistent(shared)


def test_far_promises_are_consistent() -> None:
    far = ss.release_scores(ROWS, QUERY, epsilon=1e8, mechanism="laplace", rng=1).guarantee
    assert is_consistent(far)
    assert not is_consistent(replace(far, profile=LaplaceProfile(0.99e8)))
    near = ss.release_scores(ROWS, BATCH, epsilon=3.0, delta=1e-6, adjacency=RAW, rng=1).guarantee
    assert is_consistent(near)


def test_profile_below_implied_noticed_beyond() -> None:
    """A profile below what is implied is noticed beyond epsilon."""
    guarantee = made("scores, Gaussian, records, one query")
    losses = np.linspace(0, 2 * guarantee.epsilon, 33).tolist()
    deltas = [guarantee.delta_at(loss) for loss in losses]
    fine = CurveProfile(tuple(losses), tuple(deltas))
    assert consistency._covers(fine, guarantee.profile)
    short = CurveProfile(tuple(losses), (*deltas[:-1], 0.9 * deltas[-1]))
    assert not consistency._covers(short, guarantee.profile)
