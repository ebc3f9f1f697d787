"""A histogram in parts: its tiles are encrypted, and the noise is added once, to the sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import distributed
from scoreshield.distributed import blocks
from scoreshield.distributed.driver import Driver
from scoreshield.distributed.manifest import TILE_ROWS

ROWS, DIMENSION = 2 * TILE_ROWS + 900, 5
QUERY = np.array([0.5, -1.0, 2.0, 0.1, 1.0])


@pytest.fixture(scope="module")
def records() -> np.ndarray:
    return np.random.default_rng(6).standard_normal((ROWS, DIMENSION)).astype(np.float32)


@pytest.fixture(scope="module")
def source(records: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collection") / "rows.npy"
    np.save(path, records)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((400, DIMENSION)))
    return tmp_path / "rows.npy"


def count_clean(records: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Count by a straight comparison with each edge."""
    unit = records / np.linalg.norm(records.astype(float), axis=1)[:, None]
    scores = unit @ QUERY / np.linalg.norm(QUERY)
    above = np.array([np.sum(scores > edge) for edge in edges])
    above[0], above[-1] = len(scores), 0
    return above[:-1] - above[1:]


@pytest.mark.parametrize("options", [{}, {"mechanism": "gaussian", "delta": 1e-6}], ids=["geometric", "gaussian"])
def test_blocks_change_nothing_and_the_promise_is_that_of_one_machine(source, records, tmp_path, options):
    found = [
        distributed.release_histogram(
            source,
            QUERY,
            to=tmp_path / str(tiles),
            bins=32,
            epsilon=1.0,
            seed=1,
            block_rows=tiles * TILE_ROWS,
            **options,
        ).to_histogram()
        for tiles in (1, 2)
    ]
    assert np.array_equal(found[0].counts, found[1].counts)
    alone = ss.release_histogram(records, QUERY, bins=32, epsilon=1.0, rng=1, **options)
    assert np.array_equal(found[0].edges, alone.edges)
    for fact in ("epsilon", "delta", "mechanism", "scale", "noise", "shape", "sensitivity", "profile"):
        assert getattr(found[0].guarantee, fact) == getattr(alone.guarantee, fact), fact
    assert found[0].total == alone.total == ROWS
    assert found[0].threshold(0.01) == pytest.approx(alone.threshold(0.01), abs=0.01)


def test_counts_are_exact_where_noise_is_zero_and_no_part_holds_them(source, records, tmp_path):
    edges = np.array([-1.0, -0.4, 0.0, 0.3, 0.8, 1.0])
    # Noise of rate 100 is 0 but once in 10^43.
    release = distributed.release_histogram(
        source, QUERY, to=tmp_path / "out", bins=edges, epsilon=200.0, block_rows=TILE_ROWS
    )
    assert release.to_histogram().counts.tolist() == count_clean(records, edges).tolist()
    padded = release.read()["padded"]
    assert padded.shape == (3, 5)
    assert padded.dtype == np.uint64
    # Of 25 uniform words, one is below 2^32 less than once in a million releases. Counts are below 2^17.
    assert padded.min() > 2**32
    # Nor does a sum of parts hold them: each tile has a pad of its own.
    assert (padded.sum(axis=0, dtype=np.uint64) > 2**32).all()
    assert ((padded[0] - padded[1]) > 2**32).all()


def test_noise_has_the_stated_scale(small, tmp_path):
    bins = 40_000
    found = distributed.release_histogram(small, QUERY, to=tmp_path / "out", bins=bins, epsilon=1.0, seed=3)
    counts = found.to_histogram().counts
    noise = counts - count_clean(np.load(small), np.linspace(-1, 1, bins + 1))

    def expect(epsilon: float) -> float:
        q = np.exp(-epsilon / 2)
        return float(2 * q / (1 - q) ** 2)

    error = expect(1.0) * np.sqrt(5.2 / bins)  # the kurtosis is about 6
    assert abs(np.var(noise) - expect(1.0)) < 5.5 * error  # exceeded less than once in a million
    assert abs(np.var(noise) - expect(1.1)) > 5.5 * error


def test_a_driver_that_stops_before_the_last_file_repeats_its_noise(small, tmp_path, monkeypatch):
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=5.0, delta=1e-6)
    seen = []

    def stop(self, manifest, secret, facts, provenance, last):
        del self, manifest, secret, facts, provenance
        seen.append(last["counts"])
        raise KeyboardInterrupt

    def release():
        return distributed.release_histogram(
            small, QUERY, to=tmp_path / "out", bins=8, epsilon=0.5, ledger=ledger.account("x")
        )

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_finish", stop)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                release()
    with pytest.raises(ss.InvalidInput, match=r"no (whole )?release"):
        distributed.open_release(tmp_path / "out")
    assert release().to_histogram().counts.tolist() == seen[0] == seen[1]
    assert release().to_histogram().counts.tolist() == seen[0]
    assert len(ledger.entries()) == 1
    assert ledger.account("x").spent == pytest.approx(0.5)


def test_a_changed_part_stops_the_driver(small, tmp_path, monkeypatch):
    reading = blocks._read_written

    def damage(folder, facts):
        part = tmp_path / "out" / "parts" / "part-00000000.parquet"
        part.write_bytes(part.read_bytes()[:-1] + b"x")
        return reading(folder, facts)

    monkeypatch.setattr(blocks, "_read_written", damage)
    with pytest.raises(ss.InvalidInput, match="changed after it was written"):
        distributed.release_histogram(small, QUERY, to=tmp_path / "out", bins=8, epsilon=0.5, seed=1)


def test_all_pairs_are_not_for_clusters(small, tmp_path):
    with pytest.raises(ss.InvalidInput, match="one query"):
        distributed.release_histogram(small, None, to=tmp_path / "out", epsilon=1.0)
    with pytest.raises(ss.InvalidInput, match="one query"):
        distributed.release_histogram(small, np.ones((2, DIMENSION)), to=tmp_path / "out", epsilon=1.0)
    assert not (tmp_path / "out").exists()


def test_tiles_with_the_same_counts_show_nothing_of_it(tmp_path):
    """The hash of a tile's counts is in its part. Equal hashes would say that two tiles have equal counts."""
    rows = np.random.default_rng(2).standard_normal((TILE_ROWS, 4)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", np.concatenate([rows, rows]))
    options = {"epsilon": 1.0, "bins": 4, "block_rows": TILE_ROWS, "seed": 3}
    made = distributed.release_histogram(tmp_path / "vectors.npy", np.ones(4), to=tmp_path / "out", **options)
    first, second = made.parts()
    assert first["hash"][0] != second["hash"][0]
    assert (first["padded"] != second["padded"]).all()
    again = distributed.release_histogram(tmp_path / "vectors.npy", np.ones(4), to=tmp_path / "again", **options)
    assert [part["hash"][0] for part in again.parts()] == [first["hash"][0], second["hash"][0]]  # it repeats
