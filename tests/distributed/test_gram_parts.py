"""A Gram matrix in parts: each pair once, one keyed stream for two tiles, the promise of the matrix in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support import GPU

import scoreshield as ss
from scoreshield import distributed
from scoreshield.distributed import driver, requests
from scoreshield.distributed.blocks import release_block
from scoreshield.distributed.engines.base import LocalEngine
from scoreshield.distributed.keys import share_in_process
from scoreshield.distributed.manifest import TILE_ROWS
from scoreshield.distributed.parts import read_part
from scoreshield.geometry import arrays
from scoreshield.geometry.embeddings import normalise_rows

ROWS, DIMENSION, SIDE = 130, 6, 48  # three tiles, the last one smaller


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAIR_ROWS", SIDE)


@pytest.fixture
def records() -> np.ndarray:
    rows = np.random.default_rng(7).standard_normal((ROWS, DIMENSION))
    rows[5] = 0  # counts as the first basis vector
    return rows


@pytest.fixture
def source(records: np.ndarray, tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", records)
    return tmp_path / "rows.npy"


def compute_cosines(records: np.ndarray) -> np.ndarray:
    rows = records.copy()
    rows[~rows.any(axis=1), 0] = 1
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    return unit @ unit.T


def test_the_promise_and_the_estimate_are_those_of_one_machine(source, records, tmp_path):
    release = distributed.release_gram(source, to=tmp_path / "a", epsilon=5.0, delta=1e-6, seed=1)
    assert len(release) == 6
    again = distributed.release_gram(
        source, to=tmp_path / "b", epsilon=5.0, delta=1e-6, seed=1, block_rows=2 * TILE_ROWS
    )
    here = release.to_gram(project=False)
    assert np.array_equal(here.noisy, again.to_gram(project=False).noisy)
    alone = ss.release_gram(records, epsilon=5.0, delta=1e-6, rng=1)
    for fact in ("epsilon", "delta", "mechanism", "scale", "grid", "noise", "shape", "sensitivity", "profile"):
        assert getattr(release.guarantee, fact) == getattr(alone.guarantee, fact), fact
    assert here.is_intact()
    assert np.array_equal(here.noisy, here.noisy.T)
    assert (here.noisy.diagonal() == 1).all()
    projected = release.to_gram()
    assert projected.projection == "exact"
    assert projected.converged
    assert np.linalg.eigvalsh(projected.gram).min() > -1e-8
    assert np.array_equal(projected.noisy, here.noisy)
    projected.save(tmp_path / "gram.npz")
    assert np.array_equal(ss.load(tmp_path / "gram.npz").gram, projected.gram)


def test_values_are_the_cosines_where_noise_is_small(source, records, tmp_path):
    release = distributed.release_gram(source, to=tmp_path / "out", epsilon=1e8, delta=1e-6)
    noisy = release.to_gram(project=False).noisy
    assert np.abs(noisy - compute_cosines(records)).max() < 8 * release.guarantee.noise_std < 0.05
    assert "value" in next(release.parts())  # steps of so fine a grid need more than 32 bits


def test_blocks_and_rows_are_those_of_the_matrix(source, tmp_path):
    release = distributed.release_gram(source, to=tmp_path / "out", epsilon=5.0, delta=1e-6)
    assert next(release.parts())["steps"].dtype == np.int32
    noisy = release.to_gram(project=False).noisy
    for i in range(3):
        for j in range(3):
            place = np.s_[i * SIDE : (i + 1) * SIDE, j * SIDE : (j + 1) * SIDE]
            assert np.array_equal(release.block(i, j), noisy[place])
    for record in (0, 47, 48, 129):
        assert np.array_equal(release.row(record), noisy[record])
    with pytest.raises(ss.InvalidInput, match="3 tiles"):
        release.block(0, 3)
    with pytest.raises(ss.InvalidInput, match="130 records"):
        release.row(130)


def test_noise_has_the_certified_deviation_and_no_two_blocks_share_it(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "PAIR_ROWS", 256)
    rows = np.random.default_rng(1).standard_normal((600, 4))
    np.save(tmp_path / "rows.npy", rows)
    release = distributed.release_gram(tmp_path / "rows.npy", to=tmp_path / "out", epsilon=5.0, delta=1e-6, seed=2)
    noise = (release.to_gram(project=False).noisy - compute_cosines(rows))[np.triu_indices(600, 1)]
    std = release.guarantee.noise_std
    error = 5 / np.sqrt(2 * len(noise))  # exceeded less than once in a million
    assert abs(noise.std() / std - 1) < error
    assert abs(1.02 * noise.std() / std - 1) > error
    # The certificate states the deviation of a row's noise in Frobenius norm; an entry is drawn once for two places.
    assert std == pytest.approx(release.guarantee.scale / np.sqrt(2))
    blocks = [release.block(0, 1), release.block(1, 2)[:, :88], release.block(0, 2)]
    for one, other in ((blocks[0][:, :88], blocks[1]), (blocks[0][:, :88], blocks[2]), (blocks[1], blocks[2])):
        # 256 x 88 products of independent noise have a mean correlation within 5.5 standard errors of 0.
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5.5 / np.sqrt(one.size)


def test_two_tiles_in_either_order_are_the_same_block(source, tmp_path):
    release = distributed.release_gram(source, to=tmp_path / "out", epsilon=5.0, delta=1e-6, seed=1)
    with share_in_process(release.manifest.release, driver._make_research_secret(1)) as handle:
        assert release_block(release.manifest, handle, 0, 2) == release_block(release.manifest, handle, 2, 0)
        assert read_part(release_block(release.manifest, handle, 2, 2))["steps"].size == 34 * 33 // 2
        for place in ((0, 3), (3, 0), (-1, 0), (0, -1)):
            with pytest.raises(ss.InvalidInput, match="The release has no block"):
                release_block(release.manifest, handle, *place)
    numbered = [release.manifest.find_tiles(part) for part in range(6)]
    assert numbered == [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize("device", ["torch", GPU])
def test_products_on_a_gpu(device, source, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    ask = {"epsilon": 5.0, "delta": 1e-6, "seed": 1}
    here = distributed.release_gram(source, to=tmp_path / "cpu", **ask)
    there = distributed.release_gram(source, to=tmp_path / "gpu", device=device, **ask)
    gap = np.abs(here.to_gram(project=False).noisy - there.to_gram(project=False).noisy)
    assert gap.max() <= here.guarantee.grid  # a product that differs in its last bit may round to the next step
    assert (gap > 0).mean() < 1e-6
    # A release goes on where another device began it.
    assert distributed.release_gram(source, to=tmp_path / "gpu", **ask).guarantee.to_dict() == there.guarantee.to_dict()


@pytest.mark.parametrize("device", ["torch", GPU])
def test_a_product_on_a_gpu_depends_on_its_two_records_alone(device):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    rows = np.random.default_rng(3).normal(size=(700, 96))
    changed = rows.copy()
    changed[350] = np.linspace(-1e150, 1e-150, 96)
    unit = [arrays.to_device(normalise_rows(some), device) for some in (rows, changed)]
    before, after = (arrays.to_numpy(some @ some.T) for some in unit)
    others = np.delete(np.arange(700), 350)
    assert np.array_equal(before[np.ix_(others, others)], after[np.ix_(others, others)])
    assert not np.array_equal(before[350], after[350])


def test_a_gpu_that_no_worker_has(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50.0, delta=1e-5)
    ask = {"to": tmp_path / "out", "epsilon": 5.0, "delta": 1e-6, "ledger": ledger.account("x")}
    for is_checked in (True, False):
        with pytest.raises(ss.InvalidInput, match=r"needs the 'gpu' extra"):
            distributed.release_gram(source, device="cuda", check_rows=is_checked, **ask)
    with pytest.raises(ss.InvalidInput, match=r"'device'.*'cuda:N'"):
        distributed.release_gram(source, device="gpu", **ask)
    ray = LocalEngine()
    ray.name = "ray"
    with pytest.raises(ss.InvalidInput, match="Spark and Ray have no GPU"):
        distributed.release_gram(source, device="cuda", engine=ray, **ask)
    assert not ledger.entries()
    assert len(distributed.release_gram(source, **ask)) == 6  # the folder is empty again
    assert len(ledger.entries()) == 1


def test_one_charge_and_rows_that_are_not_finite(source, records, tmp_path):
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50.0, delta=1e-5)
    made = [
        distributed.release_gram(source, to=tmp_path / "out", epsilon=5.0, delta=1e-6, ledger=ledger.account("x"))
        for _ in range(2)
    ]
    assert np.array_equal(made[0].block(0, 1), made[1].block(0, 1))
    assert len(ledger.entries()) == 1
    records[3, 2] = np.nan
    np.save(tmp_path / "bad.npy", records)
    with pytest.raises(ss.InvalidInput, match="nothing was charged"):
        distributed.release_gram(
            tmp_path / "bad.npy", to=tmp_path / "bad", epsilon=5.0, delta=1e-6, ledger=ledger.account("x")
        )
    assert len(ledger.entries()) == 1
    unchecked = distributed.release_gram(
        tmp_path / "bad.npy", to=tmp_path / "any", epsilon=1e8, delta=1e-6, check_rows=False, seed=1
    )
    records[3] = 0
    assert np.abs(unchecked.to_gram(project=False).noisy - compute_cosines(records)).max() < 0.05
