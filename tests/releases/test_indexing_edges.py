"""The plan of an index, number by number, and an index at the ends of what it takes."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from release_support import PEOPLE, ROWS, Account, make_plan

import scoreshield as ss
from scoreshield.privacy.calibration import LEAST_DELTA, find_mu
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import GaussianNoise, choose_grid_step
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, PureProfile
from scoreshield.privacy.sampling.stream import Stream
from scoreshield.releases import index as indexing
from scoreshield.releases import index_pairs, index_plan
from scoreshield.releases.index import IndexRelease, release_index
from scoreshield.releases.index_pairs import pair_components
from scoreshield.releases.index_plan import GaussianRows, IndexPlan

WIDE = np.random.default_rng(5).standard_normal((12, 6))
RAW = ss.Identity(np.arange(12) // 3)
PCA: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "components": 3, "reduction": "pca"}


# The noise of rows


@pytest.mark.parametrize(("components", "group", "mu"), [(2, 1, 0.3), (6, 3, 1.7), (1000, 2, 0.011)])
def test_gaussian_rows(components: int, group: int, mu: float) -> None:
    """The sensitivity with the rounding of r entries, a grid of 2^16 to 2^17 steps per deviation, and the scale."""
    rows = GaussianRows(components, group, mu)
    assert rows.sensitivity == 2 * math.sqrt(group) * (1 + (components + 8) * 2.0**-53)
    assert math.frexp(rows.step)[0] == 0.5
    assert 2**16 <= rows.sensitivity / mu / rows.step < 2**17
    assert rows.grid_sensitivity == rows.sensitivity + rows.step * math.sqrt(group * components)
    assert Fraction(rows.grid_sensitivity) / Fraction(rows.std) < Fraction(mu)
    assert rows.std == pytest.approx(rows.grid_sensitivity / mu, rel=1e-14)


def test_opposite_rows_are_within_the_sensitivity() -> None:
    """Rows of length one in floats can be longer in truth, and twice that is how far one can move."""
    rng, longest = np.random.default_rng(3), Fraction(0)
    for components in (2, 3, 5, 12):
        bound = Fraction(GaussianRows(components, 1, 0.5).sensitivity) ** 2
        for _, block in index_plan.blocks(rng.standard_normal((200, components))):
            squares = [4 * sum(Fraction(value) ** 2 for value in row) for row in block.tolist()]
            assert max(squares) <= bound
            longest = max(longest, *squares)
    assert longest > 4


def test_noise_single_precision_not_hold() -> None:
    """2^24 steps must reach 2, the length of the interval of all entries."""
    finest = 2.0**-23  # a step of this size is the last that does
    mu = GaussianRows(2, 1, 1.0).sensitivity / (finest * 2**16)
    assert GaussianRows(2, 1, mu).step == finest
    with pytest.raises(ss.InvalidInput, match="single precision"):
        GaussianRows(2, 1, mu * (1 + 1e-12))
    with pytest.raises(ss.InvalidInput, match="hides every cosine"):
        GaussianRows(2, 1, 1e-12)


def test_gaussian_rows_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def add_noise(values: np.ndarray, law: Any, step: float, stream: Any) -> None:
        seen.append((values.tolist(), law, step, stream))
        values[:] = [3.0, -1e9, 1e9, 0.5]

    monkeypatch.setattr(index_plan, "add_noise", add_noise)
    maker = GaussianRows(2, 1, 0.5)
    rows = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])
    released = maker.release(rows, "stream")  # type: ignore[arg-type]
    assert seen == [([1.0, 2.0, 3.0, 4.0], GaussianNoise(maker.std), maker.step, "stream")]
    end = 2.0**24 * maker.step
    assert released.tolist() == [[3.0, -end], [end, 0.5]]
    assert released.dtype == np.float32
    assert maker.name == "gaussian"


# How the budget is divided


def test_a_plan_holds_what_was_asked() -> None:
    plan = make_plan(WIDE, epsilon=3)
    assert plan == IndexPlan(3.0, 0.0, "privunit", 6, 6, "random", 0.0, ss.Replacement(), 1, 12)
    plan = make_plan(WIDE, **PCA, mechanism="gaussian", pca_share=0.3, adjacency=RAW)
    assert plan == IndexPlan(4.0, 1e-6, "gaussian", 3, 6, "pca", 0.3, RAW, 3, 12)
    plan = make_plan(WIDE, epsilon=3, components=np.int64(2), adjacency=ss.Identity(RAW.labels, centroids=True))
    assert (plan.components, plan.share, plan.group, plan.records) == (2, 0.0, 1, 4)
    assert type(plan.components) is int
    plan = make_plan(WIDE, epsilon=3, reduction=2 * np.eye(6)[:2], components=2)
    assert isinstance(plan.reduction, np.ndarray)
    assert plan.reduction.tolist() == np.eye(6)[:2].tolist()
    assert (plan.components, plan.share) == (2, 0.0)
    assert make_plan(WIDE[:, :2], epsilon=3).dimension == 2


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 1e-10},
        {"delta": 1.0},
        {"delta": 1e-6},
        {"mechanism": "gaussian"},
        {"mechanism": "magic"},
        {"pca_share": 0.0},
        {"pca_share": 1.0},
        {"adjacency": ss.GramRadius(1.0)},
        {**PCA, "delta": 0.0},
        {**PCA, "delta": 0.0, "mechanism": "gaussian"},
        {"reduction": np.eye(6)[:2], "delta": 1e-6},
        {"epsilon": 1e9},
        {"components": 1},
        {"components": 7},
        {"components": True},
        {"components": 2.0},
        {"components": 1, "reduction": np.eye(6)[:1]},
        {"reduction": "magic"},
        {**PCA, "components": None},
        {"reduction": np.eye(6)[0]},
        {"reduction": np.eye(6)[:1]},
        {"reduction": np.eye(5)},
        {"reduction": np.vstack([np.eye(6), np.ones(6)])},
        {"reduction": np.eye(6)[:2] > 0},
        {"reduction": np.eye(6)[:2] * 1j},
        {"reduction": [["a"] * 6] * 2},
        {"reduction": np.full((2, 6), math.inf)},
        {"reduction": np.eye(6)[[0, 0]]},
        {"reduction": np.eye(6)[:2], "components": 3},
        {"reduction": 3},
    ],
)
def test_plans_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(ss.InvalidInput):
        indexing.prepare_index(WIDE, **{"epsilon": 4.0, **options})


def test_plans_of_one_dimension() -> None:
    with pytest.raises(ss.InvalidInput, match="two dimensions"):
        make_plan(WIDE[:, :1], epsilon=3)


@pytest.mark.parametrize("rows", [2, 6])
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8])
def test_public_bases_at_the_ends(rows: int, kind: type) -> None:
    matrix, components = index_plan._check_reduction(np.eye(6, dtype=kind)[:rows], None, 6)
    assert isinstance(matrix, np.ndarray)
    assert (matrix.dtype, components) == (np.float64, rows)
    assert np.array_equal(matrix, np.eye(6)[:rows])
    assert index_plan._check_reduction("random", 2, 6) == ("random", 2)
    assert index_plan._check_reduction("random", 6, 6) == ("random", 6)
    assert index_plan._check_reduction("random", None, 6) == ("random", 6)


def test_a_basis_keeps_its_orientation() -> None:
    for signs in ([1, 1, 1], [-1, 1, -1], [-1, -1, -1]):
        matrix = np.diag(signs)[:, [1, 2, 0]] * 1.0
        for length in (3, 0.5):
            assert np.array_equal(index_plan._orthonormal(length * matrix), matrix)
    skew = index_plan._orthonormal(np.array([[1.0, 1, 0], [0, 1, 1]]))
    assert skew @ skew.T == pytest.approx(np.eye(2))
    assert skew[0] == pytest.approx(np.array([1, 1, 0]) / math.sqrt(2))
    assert skew.flags.c_contiguous


SHARES = [0.1, 0.3, 1 / 3, 0.7, 0.05, 0.9, 0.123456789]


def shared(mechanism: str, epsilon: float, share: float, group: int = 1) -> IndexPlan:
    adjacency = ss.Identity([0] * group) if group > 1 else ss.Replacement()
    return IndexPlan(epsilon, 1e-6, mechanism, 3, 6, "pca" if share else "random", share, adjacency, group, 12)


@pytest.mark.parametrize("group", [1, 2, 3, 7])
@pytest.mark.parametrize("share", [0.0, *SHARES])
def test_records_share_what_the_covariance_leaves(share: float, group: int) -> None:
    """Never more than that, in whole numbers, and next to nothing less; all of it where nothing is shared."""
    for epsilon in (0.1, 0.3, 1.1, 2.7, 4.0, 11.3, 7 / 3):
        plan = shared("privunit", epsilon, share, group)
        left = Fraction(epsilon) * (1 - Fraction(share))
        assert left * (1 - Fraction(1, 2**48)) <= Fraction(plan.per_record) * group <= left
        if share == 0 and group == 1:
            assert plan.per_record == epsilon


@pytest.mark.parametrize("share", SHARES)
def test_two_gaussian_parts_are_within_the_whole(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of mu add up: never to more than the whole, in fractions, and to next to nothing less."""
    monkeypatch.setattr(index_plan, "GaussianRows", lambda *given: given)
    for epsilon in (0.1, 0.3, 1.1, 2.7, 4.0, 11.3, 7 / 3):
        plan = shared("gaussian", epsilon, share, 2)
        assert plan.mu == find_mu(epsilon, 1e-6)
        components, group, mu = plan.maker()  # type: ignore[misc]
        assert (components, group) == (3, 2)
        whole = Fraction(plan.mu) ** 2
        assert Fraction(plan.moment_mu) ** 2 <= whole * Fraction(share)
        assert Fraction(mu) ** 2 <= whole * (1 - Fraction(share))
        assert whole * (1 - Fraction(1, 2**46)) <= Fraction(plan.moment_mu) ** 2 + Fraction(mu) ** 2 <= whole


def test_nothing_taken_off_nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken off where nothing is shared."""
    monkeypatch.setattr(index_plan, "GaussianRows", lambda *given: given)
    plan = shared("gaussian", 2.0, 0.0)
    assert plan.maker() == (3, 1, plan.mu)  # type: ignore[comparison-overlap]


def test_covariance_beside_privunit_share_epsilon() -> None:
    """The covariance beside privunit has its share of epsilon."""
    plan = shared("privunit", 4.0, 0.25, 2)
    assert plan.mu == plan.moment_mu == find_mu(1.0, 1e-6)
    assert plan.maker() == PrivUnit.calibrate(3, plan.per_record)
    assert plan.per_record == pytest.approx(1.5, rel=1e-14)


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
@pytest.mark.parametrize("group", [1, 3])
def test_the_noise_of_a_covariance(mechanism: str, group: int) -> None:
    """Rows that are lengthened by rounding, a step per entry, the rounding of a sum; and the scale covers them."""
    plan = replace(shared(mechanism, 4.0, 0.25, group), dimension=384, records=10**9)
    sensitivity, std, step = plan._moment_noise()
    longer = (1 + math.sqrt(384) * 2.0**-18) ** 2
    entries = group * math.sqrt(2) * longer * (1 + 2**-48)
    assert step == choose_grid_step(entries / plan.moment_mu)
    assert sensitivity == entries + 384 * (step + 1e9 * 2.0**-52)
    assert Fraction(sensitivity) / Fraction(std) < Fraction(plan.moment_mu)
    assert std == pytest.approx(sensitivity / plan.moment_mu, rel=1e-14)


def test_rounded_rows_move_a_moment_by_no_more() -> None:
    """The worst case of g = 1: two orthogonal rows, each as much longer as rounding its entries can make it."""
    sensitivity, _, step = shared("gaussian", 4.0, 0.25)._moment_noise()
    rng = np.random.default_rng(2)
    for _ in range(50):
        pair = np.linalg.qr(rng.standard_normal((6, 2)))[0].T
        whole = np.rint(pair * 2**18) / 2**18
        moved = np.linalg.norm(np.outer(whole[0], whole[0]) - np.outer(whole[1], whole[1]))
        assert moved + 6 * step <= sensitivity


# What is drawn


@pytest.mark.parametrize("block_rows", [1, 4, 5, 12, 100])
def test_a_moment_is_exact(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of whole numbers, whatever the blocks; noise on the diagonal, and once above it, for both places."""
    seen: list[Any] = []

    def add_noise(values: np.ndarray, law: Any, step: float, stream: Any) -> None:
        seen.append((law, step, stream, len(values)))
        values += 100.0 * len(seen) + np.arange(len(values))

    monkeypatch.setattr(index_plan, "add_noise", add_noise)
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 8 * 6 * block_rows)
    plan = make_plan(WIDE, **PCA)
    moment = plan._moment(WIDE, "stream")  # type: ignore[arg-type]
    _, std, step = plan._moment_noise()
    (diagonal, above) = seen
    assert diagonal == (GaussianNoise(std), step, "stream", 6)
    assert above[1:] == (step, "stream", 15)
    # Drawn once for two places: half of the square, rounded up.
    assert Fraction(std) ** 2 <= 2 * Fraction(above[0].std) ** 2 <= Fraction(std) ** 2 * (1 + Fraction(1, 2**47))
    unit = WIDE / np.linalg.norm(WIDE, axis=1, keepdims=True)
    whole = [[int(value) for value in row] for row in np.rint(unit * 2**18)]
    clean = np.array([[float(Fraction(sum(r[i] * r[j] for r in whole), 2**36)) for j in range(6)] for i in range(6)])
    wanted = clean.copy()
    places = np.triu_indices(6, 1)
    wanted[places] += 200.0 + np.arange(15)
    wanted.T[places] = wanted[places]
    wanted[np.arange(6), np.arange(6)] += 100.0 + np.arange(6)
    assert np.array_equal(moment, wanted)


def test_entry_two_places_half_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never less than half, in fractions, for any scale."""
    for std in np.linspace(0.3, 9.0, 30).tolist():
        laws: list[GaussianNoise] = []
        monkeypatch.setattr(index_plan, "add_noise", lambda _, law, *__, laws=laws: laws.append(law))
        monkeypatch.setattr(IndexPlan, "_moment_noise", lambda _, std=std: (2.0, std, 2.0**-20))
        shared("gaussian", 4.0, 0.25)._moment(WIDE, None)  # type: ignore[arg-type]
        whole, half = (Fraction(law.std) ** 2 for law in laws)
        assert whole <= 2 * half <= whole * (1 + Fraction(1, 2**47))


def test_a_moment_beyond_what_doubles_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^17 rows along one axis have a sum of 2^53 units; two more units, one at a time, are not lost."""
    small = np.array([[2.0**-18, 0.0]])
    monkeypatch.setattr(index_plan, "blocks", lambda _: [(0, np.eye(2)[[0] * 2**17]), (1, small), (2, small)])
    monkeypatch.setattr(index_plan, "add_noise", lambda *_: None)
    plan = replace(shared("gaussian", 4.0, 0.25), dimension=2, components=2)
    assert plan._moment(WIDE, None)[0, 0] == (2**53 + 2) * 2.0**-36  # type: ignore[arg-type]


class Words:
    """A stream of two known words."""

    name = "exact"

    def words(self, count: int) -> np.ndarray:
        assert count == 2
        return np.array([-3, 5], dtype=np.int64)


def test_projections_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_plan(WIDE, epsilon=3).projection(WIDE, None) is None  # type: ignore[arg-type]
    basis = np.eye(6)[[3, 1]]
    assert np.array_equal(make_plan(WIDE, epsilon=3, reduction=basis).projection(WIDE, None), basis)  # type: ignore
    drawn = make_plan(WIDE, epsilon=3, components=4).projection(WIDE, Words())  # type: ignore[arg-type]
    rng = np.random.default_rng([2**63 - 3, 5])
    assert np.array_equal(drawn, index_plan._orthonormal(rng.standard_normal((4, 6))))  # type: ignore[arg-type]
    asked: list[Any] = []

    def moment(_: IndexPlan, *given: Any) -> np.ndarray:
        asked.append(given)
        return np.diag([3.0, 9.0, 1.0, 7.0, 0.0, 2.0])

    monkeypatch.setattr(IndexPlan, "_moment", moment)
    leading = make_plan(WIDE, **PCA).projection(WIDE, "stream")  # type: ignore[arg-type]
    assert leading is not None
    assert np.abs(leading).tolist() == np.eye(6)[[1, 3, 0]].tolist()
    assert leading.flags.c_contiguous
    assert asked == [(WIDE, "stream")]
    # All of the dimensions, in their order of strength.
    whole = make_plan(WIDE, **{**PCA, "components": 6}).projection(WIDE, "stream")  # type: ignore[arg-type]
    assert np.abs(whole).tolist() == np.eye(6)[[1, 3, 0, 5, 2, 4]].tolist()  # type: ignore[arg-type]


def test_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as the bytes of doubles allow, at least one and at most 2^17."""
    unit = WIDE / np.linalg.norm(WIDE, axis=1, keepdims=True)
    for size, wanted in ((1, 1), (8 * 6 * 5, 5), (8 * 6 * 5 - 1, 4), (1 << 25, 12)):
        monkeypatch.setattr(index_plan, "_BLOCK_BYTES", size)
        found = list(index_plan.blocks(WIDE.astype(np.float32)))
        assert [start for start, _ in found] == list(range(0, 12, wanted))
        assert [len(block) for _, block in found] == [min(wanted, 12 - start) for start, _ in found]
        assert np.concatenate([block for _, block in found]) == pytest.approx(unit, abs=1e-6)
        assert found[0][1].dtype == np.float64
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 1 << 40)
    many = np.ones(((1 << 17) + 1, 2), dtype=np.float32)
    assert [start for start, _ in index_plan.blocks(many)] == [0, 1 << 17]
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 8 * 6 * 5)
    bad = WIDE.copy()
    bad[7, 2] = math.nan
    with pytest.raises(ss.InvalidInput, match="Row 7 "):
        list(index_plan.blocks(bad))


# What is promised


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 340.0, 600.0])
def test_a_pure_part_beside_a_gaussian_one(epsilon: float) -> None:
    """Randomised response, then the Gaussian: at 129 knots up to twice epsilon and 20, or 700, and never 0."""
    other, pure = GaussianProfile(0.7), 0.75 * epsilon
    curve = index_plan._add_pure(other, pure, epsilon)
    last = min(700.0, 2 * epsilon + 20)
    assert len(curve.losses) == 129
    assert list(curve.losses) == sorted(set(curve.losses))
    assert (curve.losses[0], curve.losses[64], curve.losses[128]) == (0.0, epsilon, last)
    assert curve.losses[:65] == pytest.approx(np.linspace(0, epsilon, 65))
    assert curve.losses[64:] == pytest.approx(np.linspace(epsilon, last, 65))

    def both_signs(loss: float) -> float:
        # Of the Gaussian beyond e^loss; a negative loss by symmetry.
        if loss >= 0:
            return other.delta_at(loss)
        return 1 - math.exp(loss) * (1 - other.delta_at(-loss))

    p = math.exp(pure) / (1 + math.exp(pure))
    for loss, delta in zip(curve.losses, curve.deltas, strict=True):
        wanted = p * both_signs(loss - pure) + math.exp(-pure) * p * both_signs(loss + pure)
        assert delta == pytest.approx(max(wanted, LEAST_DELTA), rel=1e-9, abs=1e-15)
        assert 0 < delta <= 1
    assert all(a >= b for a, b in zip(curve.deltas, curve.deltas[1:], strict=False))


def test_small_deltas_beside_pure_part_keep() -> None:
    """Small deltas beside a pure part keep their digits."""
    other = GaussianProfile(0.1)
    curve = index_plan._add_pure(other, 3.0, 4.0)
    p, checked = 1 / (1 + math.exp(-3.0)), 0
    for loss, delta in zip(curve.losses, curve.deltas, strict=True):
        if 3.0 <= loss < 4.0:
            assert delta == pytest.approx(p * other.delta_at(loss - 3.0), rel=1e-9, abs=0)
            checked += 1
    assert checked == 16


def test_the_least_delta_beside_a_pure_part() -> None:
    curve = index_plan._add_pure(GaussianProfile(0.01), 3.0, 4.0)
    assert curve.deltas[-1] == LEAST_DELTA
    with pytest.raises(ss.InvalidInput, match="at most 600"):
        index_plan._add_pure(GaussianProfile(0.01), 3.0, math.nextafter(600.0, 601))


def test_profiles_of_each_kind() -> None:
    assert make_plan(WIDE, epsilon=3).profile() == PrivUnit.calibrate(6, 3.0).profile
    assert make_plan(WIDE, epsilon=3, components=4).profile() == PrivUnit.calibrate(4, 3.0).profile
    assert make_plan(WIDE, epsilon=3, adjacency=RAW).profile() == PureProfile(3.0)
    gaussian = make_plan(WIDE, epsilon=3, delta=1e-6, mechanism="gaussian", adjacency=RAW)
    assert gaussian.profile() == GaussianProfile(find_mu(3.0, 1e-6))
    plan = make_plan(WIDE, **PCA, adjacency=RAW, pca_share=0.3)
    assert plan.profile() == index_plan._add_pure(
        GaussianProfile(find_mu(4.0 * 0.3, 1e-6)), plan.per_record * 3, plan.epsilon
    )
    assert plan.per_record * 3 == pytest.approx(2.8)


CASES: dict[str, dict[str, Any]] = {
    "all dimensions": {"epsilon": 3.0},
    "random": {"epsilon": 3.0, "components": 4},
    "basis": {"epsilon": 3.0, "reduction": np.eye(6)[:4]},
    "pca": {**PCA, "pca_share": 0.2},
    "pca, all dimensions": {**PCA, "components": 6},
    "identities": {"epsilon": 3.0, "adjacency": RAW},
    "gaussian": {"epsilon": 3.0, "delta": 1e-6, "mechanism": "gaussian"},
    "gaussian identities": {"epsilon": 3.0, "delta": 1e-6, "mechanism": "gaussian", "adjacency": RAW},
    "gaussian pca": {**PCA, "mechanism": "gaussian"},
}
NAMES = {"all dimensions": "none", "random": "random", "basis": "public basis", "pca": "pca"}
NAMES |= {"pca, all dimensions": "pca", "gaussian pca": "pca"}


@pytest.mark.parametrize("name", CASES)
def test_an_index_states(name: str) -> None:
    """The whole guarantee, and what the account is asked for."""
    options, account = CASES[name], Account()
    index = release_index(WIDE, **options, rng=4, ledger=account)
    plan = make_plan(WIDE, **options)
    maker, group = plan.maker(), 3 if "identities" in name else 1
    details: dict[str, Any] = {"score_std": maker.std, "reduction": NAMES.get(name, "none")}
    if "pca" in name:
        sensitivity, std, _ = plan._moment_noise()
        details["pca_share"] = options.get("pca_share", 0.1)
        details |= {"covariance_sensitivity": sensitivity, "covariance_std": std}
    gaussian = "gaussian" in name
    clean = on_grid = 2 * math.sqrt(group)
    if isinstance(maker, PrivUnit):
        details |= {"cap_probability": maker.p, "cap_height": maker.gamma, "shrinkage": maker.mean}
        details["epsilon_per_record"] = maker.epsilon
    else:
        clean, on_grid = maker.sensitivity, max(maker.grid_sensitivity, plan.mu * maker.std)
    adjacency = options.get("adjacency", ss.Replacement())
    assert index.guarantee == Guarantee(
        epsilon=options["epsilon"],
        delta=options.get("delta", 0.0),
        mechanism="gaussian" if gaussian else "privunit",
        calibration="analytic" if "delta" in options else "pure",
        adjacency=adjacency.drop_labels(),
        regime="index",
        shape=index.vectors.shape,
        score_range=(-1.0, 1.0),
        sensitivity=clean,
        grid_sensitivity=on_grid,
        scale=maker.std,
        grid=maker.step,
        noise=GaussianNoise(maker.std) if gaussian else None,
        profile=plan.profile(),
        sampler="research",
        details=details,
    )
    assert (account.guarantees, account.adjacency, account.paid) == ([index.guarantee], adjacency, True)
    assert index.score_std == maker.std
    assert index.is_intact()
    if gaussian:
        assert index.guarantee.grid_sensitivity >= index.guarantee.mu * index.guarantee.scale


# The index itself


def test_each_option_of_an_index_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def prepare(*given: Any, **options: Any) -> Any:
        seen.append((given, options))
        return SimpleNamespace(release=lambda ledger: ledger, guarantee=None)

    monkeypatch.setattr(indexing, "prepare_index", prepare)
    monkeypatch.setattr(indexing._embeddings, "find_shape", lambda _: (1, 1))
    monkeypatch.setattr(indexing, "check_index_worth", lambda *_: None)
    options: dict[str, Any] = {
        "epsilon": 3.0,
        "delta": 0.25,
        "mechanism": "gaussian",
        "use": "pairs",
        "components": 4,
        "reduction": "pca",
        "pca_share": 0.3,
        "center": "private",
        "center_share": 0.2,
        "codebook": "book",
        "adjacency": RAW,
        "rng": 7,
        "progress": print,
    }
    assert release_index("rows", ledger="account", **options) == "account"  # type: ignore[arg-type]
    assert seen == [(("rows",), options)]
    assert release_index("rows", epsilon=3.0) is None  # type: ignore[arg-type]
    assert seen[1][1] == {
        "epsilon": 3.0,
        "delta": 0.0,
        "mechanism": "privunit",
        "use": "search",
        "components": None,
        "reduction": "random",
        "pca_share": 0.1,
        "center": "none",
        "center_share": None,
        "codebook": None,
        "adjacency": ss.Replacement(),
        "rng": None,
        "progress": None,
    }


def test_defaults_of_a_prepared_index() -> None:
    g = indexing.prepare_index(WIDE, epsilon=3.0).guarantee
    assert (g.mechanism, g.delta, g.shape, g.adjacency, g.sampler) == (
        "privunit",
        0.0,
        (12, 6),
        ss.Replacement(),
        "exact",
    )
    assert g.details["reduction"] == "none"
    assert indexing.prepare_index(WIDE, epsilon=3.0, components=3).guarantee.details["reduction"] == "random"
    assert indexing.prepare_index(WIDE, **PCA).guarantee.details["pca_share"] == 0.1


def test_rows_are_checked_before_they_are_drawn() -> None:
    bad = WIDE.copy()
    bad[3, 1] = math.inf
    prepared = indexing.prepare_index(bad, epsilon=3.0)
    with pytest.raises(ss.InvalidInput, match="Row 3 "):
        prepared.compute()


def test_each_block_is_reduced_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of length one in the subspace reach the mechanism block by block, and progress counts them."""
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 8 * 6 * 5)
    given: list[Any] = []

    def release(_: Any, rows: np.ndarray, stream: Stream, out: np.ndarray) -> None:
        given.append((rows.copy(), stream.name))
        assert out.shape == rows.shape
        out[:] = len(given)

    monkeypatch.setattr(PrivUnit, "release", release)
    steps: list[tuple[int, int]] = []
    basis = np.eye(6)[[4, 1, 2]]
    index = release_index(WIDE, epsilon=3.0, reduction=basis, rng=1, progress=lambda *at: steps.append(at))
    assert steps == [(5, 12), (10, 12), (12, 12)]
    reduced = WIDE @ basis.T
    reduced /= np.linalg.norm(reduced, axis=1, keepdims=True)
    assert np.concatenate([rows for rows, _ in given]) == pytest.approx(reduced)
    assert {name for _, name in given} == {"research"}
    assert index.vectors[:, 0].tolist() == [1.0] * 5 + [2.0] * 5 + [3.0] * 2
    assert index.vectors.dtype == np.float32
    assert np.array_equal(index.projection, basis)  # type: ignore[arg-type]
    given.clear()
    assert release_index(WIDE, epsilon=3.0, rng=1).projection is None
    assert np.concatenate([rows for rows, _ in given]) == pytest.approx(
        WIDE / np.linalg.norm(WIDE, axis=1, keepdims=True)
    )
    assert release_index(ROWS, epsilon=3.0, adjacency=PEOPLE).vectors.shape == (4, 2)


@pytest.fixture
def index() -> IndexRelease:
    """Six known vectors of two dimensions behind a projection of three."""
    made = release_index(np.eye(6, 3), epsilon=3.0, reduction=np.eye(3)[:2], rng=1)
    grid = made.guarantee.grid
    vectors = np.float32(grid) * np.array([[3, 0], [0, 2], [-4, 0], [3, 0], [5, 5], [1, -6]], dtype=np.float32)
    return IndexRelease(made.guarantee, vectors, made.projection)


def test_what_an_index_answers(index: IndexRelease) -> None:
    step = index.guarantee.grid
    assert index.dimension == 3
    assert index.scores([2.0, 0.0, 5.0]) == pytest.approx(step * np.array([3, 0, -4, 3, 5, 1]))
    batch = index.scores([[2.0, 0.0, 5.0], [0.0, 3.0, 0.0]])
    assert batch == pytest.approx(step * np.array([[3, 0, -4, 3, 5, 1], [0, 2, 0, 0, 5, -6]]))
    assert batch.dtype == np.float64
    large = IndexRelease(index.guarantee, index.vectors * np.float32(0.5 / step), index.projection)
    assert large.scores([1.0, 0, 0], clip=True).tolist() == [1.0, 0.0, -1.0, 1.0, 1.0, 0.5]
    assert large.scores([1.0, 0, 0]).tolist() == [1.5, 0.0, -2.0, 1.5, 2.5, 0.5]
    bare = IndexRelease(index.guarantee, index.vectors, None)
    assert bare.dimension == 2
    assert bare.scores([0.0, 7.0]) == pytest.approx(step * np.array([0, 2, 0, 0, 5, -6]))
    for query in ([0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0]):
        with pytest.raises(ss.InvalidInput, match="query"):
            index.scores(query)
        with pytest.raises(ss.InvalidInput, match="query"):
            index.search(query, 1)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 6, 100])
def test_the_best_of_an_index(index: IndexRelease, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Best first, equal ones in the order of the records, whatever the blocks."""
    monkeypatch.setattr(indexing, "SEARCH_ROWS", rows)
    step, query = index.guarantee.grid, [2.0, 0.0, 5.0]
    for k, wanted in ((1, [4]), (2, [4, 0]), (3, [4, 0, 3]), (6, [4, 0, 3, 5, 1, 2]), (99, [4, 0, 3, 5, 1, 2])):
        found = index.search(query, k)
        assert found.indices.tolist() == wanted
        assert found.scores == pytest.approx(step * np.array([3, 0, -4, 3, 5, 1])[wanted])
        assert found.scores.dtype == np.float64
        assert found.indices.dtype == np.intp
    both = index.search([query, [0.0, 1.0, 0.0]], 2)
    assert both.indices.tolist() == [[4, 0], [4, 1]]
    assert both.scores == pytest.approx(step * np.array([[5, 3], [5, 2]]))


def test_the_best_of_equal_columns() -> None:
    scores, indices = np.array([[1.0, 3.0, 2.0]]), np.array([[7, 8, 9]])
    for k, wanted in ((1, [8]), (2, [8, 9]), (3, [7, 8, 9]), (4, [7, 8, 9])):
        found, places = indexing._select_best(scores, indices, k)
        assert places.tolist() == [wanted]
        assert found.tolist() == [[scores[0, number - 7] for number in wanted]]


def test_the_best_of_many_columns() -> None:
    scores = np.random.default_rng(1).permuted(np.arange(6000.0).reshape(2, 3000), axis=1)
    for k in (1, 2, 7, 300, 1500, 2999, 3000, 3001):
        found, places = indexing._select_best(scores, np.tile(np.arange(3000), (2, 1)), k)
        for row in (0, 1):
            assert places[row].tolist() == sorted(np.argsort(-scores[row])[:k].tolist())
            assert found[row].tolist() == scores[row][places[row]].tolist()


def test_the_gram_matrix_of_an_index(index: IndexRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(indexing, "check_memory", lambda *given: asked.append(given))
    monkeypatch.setattr(indexing, "project_elliptope", lambda matrix: SimpleNamespace(matrix=[matrix]))
    gram = index.gram()
    rows = index.vectors.astype(np.float64)
    wanted = rows @ rows.T
    np.fill_diagonal(wanted, 1.0)
    assert np.array_equal(gram, wanted)
    assert gram.dtype == np.float64
    (projected,) = index.gram(project=True)
    assert np.array_equal(projected, wanted)
    assert [given[:3] for given in asked] == [(6, "none", "cpu"), (6, "auto", "cpu")]


def test_what_holds_together(index: IndexRelease) -> None:
    guarantee, vectors, projection = index.guarantee, index.vectors, index.projection
    assert projection is not None
    assert index.is_intact()
    assert not IndexRelease(guarantee, vectors, None).is_intact()  # the guarantee states a reduction
    scores = ss.release_scores(np.eye(6), np.ones(6), epsilon=1, delta=0.1).guarantee
    within, beyond = projection.copy(), projection.copy()
    within[0, 0] += 4e-10  # moves the product with itself by twice that
    beyond[0, 0] += 6e-10
    assert IndexRelease(guarantee, vectors, within).is_intact()
    for broken in (
        IndexRelease(replace(guarantee, regime="scores"), vectors, projection),
        IndexRelease(scores, vectors, projection),
        IndexRelease(guarantee, vectors.astype(np.float64), projection),  # type: ignore[arg-type]
        IndexRelease(guarantee, vectors[:5], projection),
        IndexRelease(guarantee, vectors[0], projection),
        IndexRelease(guarantee, vectors + np.float32(guarantee.grid / 4), projection),
        IndexRelease(guarantee, vectors, projection[0]),
        IndexRelease(guarantee, vectors, projection.astype(np.float32)),  # type: ignore[arg-type]
        IndexRelease(guarantee, vectors, np.eye(3)),
        IndexRelease(guarantee, vectors, np.eye(3)[:1]),
        IndexRelease(guarantee, vectors, 2 * projection),
        IndexRelease(guarantee, vectors, beyond),
        IndexRelease(guarantee, vectors, np.ones((2, 3)) / math.sqrt(3)),
    ):
        assert not broken.is_intact()


def test_the_least_loss_of_pairs() -> None:
    """By the formula over all numbers of components, where the search stops early."""

    def loss(r: int, epsilon: float) -> float:
        maker = PrivUnit.calibrate(r, epsilon)
        along = maker.second_moment
        return (1 / r + along**2 + (1 - along) ** 2 / (r - 1)) / maker.mean**4

    for epsilon, dimension in ((1.0, 6), (8.0, 14), (12.0, 24), (30.0, 5)):
        losses = {r: loss(r, epsilon) for r in range(2, dimension + 1)}
        assert pair_components(epsilon, dimension) == min(losses, key=losses.__getitem__)
    assert pair_components(1.0, 2) == 2
    for dimension in (1, 0, 2.0):
        with pytest.raises(ss.InvalidInput, match="'dimension'"):
            pair_components(1.0, dimension)  # type: ignore[arg-type]


def test_the_number_of_components_follows_the_use() -> None:
    """Pairs take the best number for the budget of one record; an explicit number and a public basis stay."""
    rows = np.random.default_rng(3).standard_normal((8, 40))
    labels = np.array([0, 0, 1, 2, 3, 4, 5, 6])

    def count(**options: Any) -> int:
        return int(release_index(rows, rng=1, **options).guarantee.shape[1])

    assert count(epsilon=10) == count(epsilon=10, use="search") == 40
    assert count(epsilon=10, use="pairs") == pair_components(10, 40) == 6
    assert count(epsilon=20, use="pairs", adjacency=ss.Identity(labels)) == pair_components(10, 40)
    assert count(epsilon=20, use="pairs", adjacency=ss.Identity(labels, centroids=True)) == pair_components(20, 40)
    assert count(epsilon=10, use="pairs", components=9) == count(epsilon=10, components=9) == 9
    assert count(epsilon=10, use="pairs", reduction=np.eye(40)[:7]) == 7
    with pytest.raises(ss.InvalidInput, match="'use'"):
        count(epsilon=10, use="pair")
    with pytest.raises(ss.InvalidInput, match="private PCA"):
        count(epsilon=10, delta=1e-6, use="pairs", reduction="pca")


@pytest.mark.parametrize("epsilon", [5.0, 40.0, 200.0])
def test_gaussian_pairs_have_the_least_variance(epsilon: float) -> None:
    """By the formula over all numbers of components."""
    rows = np.random.default_rng(3).standard_normal((3, 30))
    index = release_index(rows, epsilon=epsilon, delta=1e-6, mechanism="gaussian", use="pairs", rng=1)
    scale = index.guarantee.scale
    losses = {r: 1 / r + 2 * r * scale**4 for r in range(2, 31)}
    best = min(losses, key=losses.__getitem__)
    assert losses[index.guarantee.shape[1]] <= losses[best] * 1.01
    index.gram()  # without a warning


@pytest.mark.parametrize(
    ("options", "is_noisy"),
    [
        ({"epsilon": 5.0}, True),
        ({"epsilon": 5.0, "use": "pairs"}, False),
        ({"epsilon": 5.0, "components": 4}, False),
        ({"epsilon": 5.0, "components": 12}, True),
        ({"epsilon": 60.0}, False),
        ({"epsilon": 20.0, "delta": 1e-6, "mechanism": "gaussian"}, True),
        ({"epsilon": 20.0, "delta": 1e-6, "mechanism": "gaussian", "use": "pairs"}, False),
    ],
)
def test_pairs_of_an_index_for_search_have_a_warning(options: dict[str, Any], is_noisy: bool, tmp_path: Path) -> None:
    index = release_index(np.random.default_rng(3).standard_normal((4, 40)), rng=1, **options)
    index.save(tmp_path / "index.npz")
    for one in (index, cast("IndexRelease", ss.load(tmp_path / "index.npz"))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            one.gram()
        assert len(caught) == is_noisy
        for warning in caught:
            assert 'use="pairs"' in str(warning.message)
            assert warning.filename == __file__


def test_the_search_for_components_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """At twice the best so far and one: a larger number has never been better."""
    asked: list[int] = []
    losses = {2: 5.0, 3: 4.0, 4: 4.5, 5: 4.2, 6: 3.0}

    def calibrate(r: int, _: float) -> Any:
        asked.append(r)
        return SimpleNamespace(second_moment=0.5, mean=losses.get(r, 9.0) ** -0.25)

    monkeypatch.setattr(index_pairs, "PrivUnit", SimpleNamespace(calibrate=calibrate))
    # Unrelated and equal add up to nearly the same for each r here, so the mean decides.
    assert pair_components(1.0, 100) == 6
    assert asked == list(range(2, 14))


def test_the_loss_of_pairs_counts_both_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 / r for unrelated records, along^2 + (1 - along)^2 / (r - 1) for equal ones, over the mean to the fourth."""
    for along in (0.0, 0.25, 0.5):
        for factor, wanted in ((0.99, 3), (1.01, 2)):  # of the loss at three components over that at two

            def calibrate(r: int, _: float, along: float = along, factor: float = factor) -> Any:
                both = 1 / r + along**2 + (1 - along) ** 2 / (r - 1)
                loss = {2: 1.0, 3: factor}.get(r, 5.0)
                return SimpleNamespace(second_moment=along, mean=(both / loss) ** 0.25)

            monkeypatch.setattr(index_pairs, "PrivUnit", SimpleNamespace(calibrate=calibrate))
            assert pair_components(1.0, 9) == wanted
