"""The center of an index: public or private, what it spends, what it moves, and what its file states."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from release_support import make_plan

import scoreshield as ss
from scoreshield.privacy.calibration import find_mu
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.sampling.stream import open_stream
from scoreshield.releases import index_plan

Array = np.ndarray
PRIVATE: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-6, "center": "private"}


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def rows(rng: np.random.Generator) -> Array:
    """Rows with a clear mean direction."""
    return rng.standard_normal((3000, 16)) + np.linspace(0, 0.8, 16)


def test_a_public_center_is_subtracted(rows: Array, rng: np.random.Generator) -> None:
    """At a large epsilon the vectors are the centred directions, and scores those of turned queries."""
    center, query = unit(rows).mean(axis=0), rng.standard_normal(16)
    index = ss.release_index(rows[:200], epsilon=400, center=center, rng=1)
    wanted = unit(unit(rows[:200]) - center)
    assert np.abs(index.vectors - wanted).max() < 0.15
    axis = center / np.linalg.norm(center)
    turned = unit(unit(query) - (unit(query) @ axis) * axis)
    assert index.scores(query) == pytest.approx(index.vectors @ turned, abs=1e-5)
    assert abs(turned @ axis) < 1e-12
    assert index.guarantee.delta == 0
    assert index.guarantee.details["center"] == "public"
    assert np.array_equal(index.center, center)


def test_without_a_center_nothing_changes(rows: Array) -> None:
    """Neither the draws nor what the guarantee states."""
    plain, named = ss.release_index(rows, epsilon=5, rng=1), ss.release_index(rows, epsilon=5, center="none", rng=1)
    assert plain == named
    assert plain.center is None
    assert "center" not in plain.guarantee.details


def test_center_then_projection(rows: Array) -> None:
    basis = np.eye(5, 16)
    center = unit(rows).mean(axis=0)
    index = ss.release_index(rows[:100], epsilon=300, center=center, reduction=basis, rng=1)
    wanted = unit((unit(rows[:100]) - center)[:, :5])
    assert np.abs(index.vectors - wanted).max() < 0.1


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
def test_the_private_center_has_the_stated_noise(mechanism: str, rows: Array) -> None:
    """The noise on the sum, over many draws: mean 0 and the stated standard deviation. False alarm 1e-7 each."""
    plan = make_plan(rows, **PRIVATE, mechanism=mechanism)
    _, std, step = plan._center_noise()
    total = unit(rows).sum(axis=0)
    sums = np.array([plan._sum(rows, open_stream(seed)) for seed in range(400)])
    noise = sums - total
    assert abs(noise.mean()) < 5.4 * std / math.sqrt(noise.size)
    ratio = float(np.mean(noise**2)) / std**2
    assert abs(ratio - 1) < 5.4 * math.sqrt(2 / noise.size)
    assert abs(ratio / 0.9**2 - 1) > 5.4 * math.sqrt(2 / noise.size)  # noise of nine tenths is noticed
    assert np.array_equal(sums / step, np.rint(sums / step))


def test_the_sum_is_exact_in_any_order(rows: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(rows, **PRIVATE)
    whole = plan.find_center(rows, open_stream(1))
    assert np.array_equal(plan.find_center(rows[::-1], open_stream(1)), whole)
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 8 * 16 * 7)
    assert np.array_equal(plan.find_center(rows, open_stream(1)), whole)


@pytest.mark.parametrize("group", [1, 3])
def test_the_sensitivity_of_the_sum_is_attained_and_not_passed(group: int) -> None:
    """Opposite rows move the rounded sum by nearly 2 g; random ones by less."""
    rng = np.random.default_rng(3)
    labels = np.arange(12) // group
    adjacency = ss.Replacement() if group == 1 else ss.Identity(labels)
    plan = make_plan(rng.standard_normal((12, 8)), **PRIVATE, adjacency=adjacency)
    stated = plan._center_noise()[0]
    step = index_plan._MOMENT_STEP

    def total(some: Array) -> Array:
        return np.rint(unit(some) / step).sum(axis=0) * step

    furthest = 0.0
    for _ in range(200):
        some = rng.standard_normal((group, 8))
        some[:] = some[0]
        furthest = max(furthest, float(np.linalg.norm(total(some) - total(-some))))
    assert 2 * group * (1 - 1e-5) < furthest <= stated


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("share", [None, 0.3, 1 / 3])
def test_the_parts_are_within_the_whole(group: int, share: float | None) -> None:
    """PrivUnit: epsilons add up to at most epsilon. Gaussian: squares of mu add up to at most mu squared."""
    adjacency = ss.Replacement() if group == 1 else ss.Identity(np.arange(12) // group)
    given: dict[str, Any] = {"adjacency": adjacency, "center_share": share}
    plan = make_plan(np.eye(12, 8), **PRIVATE, **given)
    part = 0.025 if share is None else share
    assert plan.share == part
    assert Fraction(plan.per_record) * group + Fraction(plan.epsilon) * Fraction(part) <= Fraction(plan.epsilon)
    assert plan.mu == find_mu(20.0 * part, 1e-6)
    sensitivity, std, _ = plan._center_noise()
    assert sensitivity / std <= plan.mu
    noisy = make_plan(np.eye(12, 8), **PRIVATE, **given, mechanism="gaussian")
    sensitivity, std, _ = noisy._center_noise()
    maker = noisy.maker()
    spent = Fraction(sensitivity) ** 2 / Fraction(std) ** 2
    spent += Fraction(maker.grid_sensitivity) ** 2 / Fraction(maker.std) ** 2
    assert spent <= Fraction(find_mu(20.0, 1e-6)) ** 2


def test_default_share() -> None:
    assert make_plan(np.eye(12, 8), **{**PRIVATE, "epsilon": 2.0}).share == 0.1
    assert make_plan(np.eye(12, 8), **{**PRIVATE, "epsilon": 100.0}).share == 0.005


def test_profile_is_that_of_both(rows: Array) -> None:
    """The composition of the center's Gaussian with randomised response, at every point."""
    plan = make_plan(rows, **PRIVATE)
    profile, beside, pure = plan.profile(), GaussianProfile(plan.mu), plan.per_record
    p = 1 / (1 + math.exp(-pure))
    for epsilon in (0.0, 5.0, 19.0, 20.0, 25.0):
        low = epsilon - pure
        first = beside.delta_at(low) if low >= 0 else -math.expm1(low) + math.exp(low) * beside.delta_at(-low)
        wanted = p * first + (1 - p) * beside.delta_at(epsilon + pure)
        assert profile.delta_at(epsilon) >= wanted * (1 - 1e-9)
        assert profile.delta_at(epsilon) <= wanted * 1.2 + 1e-12
    assert profile.delta_at(20.0) <= 1e-6


def test_a_center_that_is_noise_is_dropped() -> None:
    """Few records without a mean: what is left of the noisy center is far shorter than its noise."""
    few = np.concatenate([np.eye(16), -np.eye(16)])
    for seed in range(20):
        center = ss.release_index(few, **PRIVATE, rng=seed).center
        noise = make_plan(few, **PRIVATE)._center_noise()[1] * 4 / len(few)
        assert center is not None
        assert np.linalg.norm(center) < 0.7 * noise


def test_a_private_center_helps(rng: np.random.Generator) -> None:
    """Records with a common direction: more of the clean answers are kept, in every one of five pairs."""
    shared = rng.standard_normal(64)
    some = rng.standard_normal((4000, 64)) + 1.2 * shared
    queries = some[:60] + 0.3 * rng.standard_normal((60, 64))
    clean = np.argsort(-(unit(queries) @ unit(some).T), axis=1)[:, :20]
    for seed in range(5):
        kept = []
        for options in ({"epsilon": 20.0}, PRIVATE):
            found = ss.release_index(some, **options, rng=seed).search(queries, 20).indices
            kept.append(np.mean([len(set(a) & set(b)) for a, b in zip(found, clean, strict=True)]))
        assert kept[1] > 1.1 * kept[0]


@pytest.mark.parametrize(
    "options",
    [PRIVATE, {**PRIVATE, "mechanism": "gaussian"}, {"epsilon": 5.0, "center": np.full(16, 0.1), "components": 4}],
)
def test_saved_and_loaded_equal(options: dict[str, Any], rows: Array, tmp_path: Path) -> None:
    index = ss.release_index(rows, **options, rng=1)
    index.save(tmp_path / "i.npz")
    back = ss.load(tmp_path / "i.npz")
    assert back == index
    assert np.array_equal(back.center, index.center)
    assert np.array_equal(back.scores(rows[:3]), index.scores(rows[:3]))
    assert Guarantee.from_dict(index.guarantee.to_dict()) == index.guarantee


def test_an_edited_center_is_rejected(rows: Array, tmp_path: Path) -> None:
    public = ss.release_index(rows[:20], epsilon=5.0, center=np.full(16, 0.1), rng=1)
    private = ss.release_index(rows[:20], **PRIVATE, rng=1)
    plain = ss.release_index(rows[:20], epsilon=5.0, rng=1)
    for index, center in (
        (public, np.full(16, 0.2)),
        (public, None),
        (public, np.full(15, 0.1)),
        (private, None),
        (private, np.full(16, math.nan)),
        (private, np.full(16, 0.1, dtype=np.float32)),
        (plain, np.full(16, 0.1)),
    ):
        replace(index, center=center).save(tmp_path / "e.npz")
        with pytest.raises(ss.InvalidInput, match="does not hold together"):
            ss.load(tmp_path / "e.npz")


def test_certificates_name_the_center(rows: Array) -> None:
    private = str(ss.release_index(rows, **PRIVATE, rng=1).guarantee)
    assert "Center: private." in " ".join(private.split())
    noisy = str(ss.release_index(rows, **PRIVATE, mechanism="gaussian", rng=1).guarantee)
    assert "with rounding to the grid and the center" in " ".join(noisy.split())
    public = str(ss.release_index(rows, epsilon=5.0, center=np.full(16, 0.1), rng=1).guarantee)
    assert "What is taken as public: the center, the number" in " ".join(public.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 5.0, "center": "private"}, "above 0 for a private center"),
        ({"epsilon": 5.0, "center": "mean"}, "'none', 'private'"),
        ({"epsilon": 5.0, "center": np.zeros(15)}, "a public vector of 16 finite numbers"),
        ({"epsilon": 5.0, "center": np.full(16, math.nan)}, "finite numbers"),
        ({"epsilon": 5.0, "center": np.ones(16)}, "of length below 1"),
        ({"epsilon": 5.0, "center": np.zeros(16), "delta": 1e-6}, "delta"),
        ({**PRIVATE, "center_share": 0.0}, "center_share"),
        ({**PRIVATE, "center_share": 1.0}, "center_share"),
        ({**PRIVATE, "components": 3, "reduction": "pca"}, "cannot share one index"),
        ({**PRIVATE, "epsilon": 1000.0}, "epsilon"),
        ({**PRIVATE, "epsilon": 1e-5}, "'epsilon' parameter of release_index must be such that PrivUnit spends"),
        ({"epsilon": 5.0, "center_share": 0.1}, "left out unless center='private'"),
    ],
)
def test_bad_centers_charge_nothing(options: dict[str, Any], words: str, rows: Array, tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=5000, delta=1e-3)
    with pytest.raises(ss.InvalidInput, match=words):
        ss.release_index(rows, ledger=ledger.account("rows"), **options)
    assert ledger.spent == 0


def test_a_query_along_the_center_is_rejected(rows: Array) -> None:
    index = ss.release_index(rows, epsilon=5.0, center=0.5 * np.eye(16)[0], rng=1)
    with pytest.raises(ss.InvalidInput, match="Query 1 points along the center"):
        index.scores(np.stack([rows[0], np.eye(16)[0]]))
    assert ss.release_index(rows, epsilon=5.0, center=np.zeros(16), rng=1).scores(np.eye(16)[0]).shape == (3000,)


def test_a_row_at_the_center_gets_the_first_direction() -> None:
    """No error distinguishes a record that equals the center."""
    index = ss.release_index(np.array([[0.5, 0.0], [0.0, 1.0]]), epsilon=300, center=[1 - 1e-12, 0.0], rng=1)
    assert np.abs(index.vectors[0] - [1, 0]).max() < 0.2


def test_a_canary_is_compared_as_it_was_centred(rows: Array) -> None:
    """A guess about planted records subtracts the center of the release from them."""
    from scoreshield.audit.one_run import Canaries, make_default_guess

    canaries, center = rows[:6], unit(rows).mean(axis=0)
    planted = Canaries.check(rows[:20], canaries, None, None)
    index = ss.release_index(planted.make_collection(np.ones(6, dtype=bool)), epsilon=300, center=center, rng=1)
    assert (make_default_guess(index, planted, None)(index, canaries, planted.slots) > 0).all()


def test_a_share_without_a_private_center_is_rejected() -> None:
    """The share was ignored before, although the caller asked for a center."""
    rows = np.random.default_rng(1).standard_normal((20, 8))
    for center in ("none", np.full(8, 0.1)):
        with pytest.raises(ss.InvalidInput, match="left out unless center='private'"):
            ss.release_index(rows, epsilon=1.0, center=center, center_share=0.1)


def test_an_unknown_center_names_all_three_kinds() -> None:
    with pytest.raises(ss.InvalidInput, match="'none', 'private' or a public vector of 8 finite numbers"):
        ss.release_index(np.eye(8), epsilon=1.0, center="mean")
