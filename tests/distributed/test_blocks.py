"""One block without an engine: the same bytes for any size of blocks, streams that never meet, and the stated law."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_support import QUERY, RELEASE, SECRET, holds_secret, read_files, release, write_collection
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from laws import Staircase
from scipy import stats

import scoreshield as ss
import scoreshield.distributed as sd
from scoreshield.distributed import blocks, driver, keys
from scoreshield.distributed.engines.base import LocalEngine
from scoreshield.distributed.keys import KeyHandle, share_in_process
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.distributed.sources.opening import describe_source
from scoreshield.errors import InvalidInput


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "vectors"
    write_collection(folder)
    return folder


@pytest.fixture(scope="module")
def rows(source: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(source.iterdir())])


@pytest.fixture(scope="module")
def manifest(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The manifest of a private release, with the key of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "make_secret", lambda: SECRET)
        return release(source, tmp_path_factory.mktemp("private") / "out").manifest


def unseal(manifest: Manifest) -> Manifest:
    """Return the request of a manifest, which another key can seal."""
    return dataclasses.replace(manifest, source=describe_source(manifest.source.address), snapshot="")


class TestSameBytes:
    @pytest.mark.parametrize("queries", [QUERY, np.stack([QUERY, -QUERY[::-1], QUERY**3])], ids=["one", "batch"])
    def test_any_size_of_blocks(self, source: Path, tmp_path: Path, queries: np.ndarray) -> None:
        """The parts of small blocks, one after the other, hold the values of one large block."""
        options = {"query": queries, "seed": 3, "mechanism": "gaussian", "delta": 1e-6}
        found = [
            release(source, tmp_path / str(tiles), block_rows=tiles * TILE_ROWS, **options).scores()
            for tiles in (1, 2, 16)
        ]
        assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
        assert found[0].shape == (*queries.shape[:-1], 160_010)

    def test_best_records_of_any_size_of_blocks(self, source: Path, tmp_path: Path) -> None:
        found = [
            release(source, tmp_path / str(tiles), block_rows=tiles * TILE_ROWS, seed=3, best=50).top_k(50)
            for tiles in (1, 3)
        ]
        assert np.array_equal(found[0], found[1])

    def test_threads_change_nothing(self, source: Path, tmp_path: Path) -> None:
        """Neither the threads of BLAS nor those that draw change a bit of a batch of queries."""
        script = (
            "import sys, numpy as np, scoreshield.distributed as sd; "
            "sd.release_scores(sys.argv[1], np.random.default_rng(1).standard_normal((40, 64)), to=sys.argv[2], "
            "epsilon=2, delta=1e-6, mechanism='gaussian', seed=3)"
        )
        digests = set()
        for threads in ("1", "2", "3"):
            variables = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SCORESHIELD_THREADS"}
            environment = os.environ | dict.fromkeys(variables, threads)
            small = source.parent / "small"
            if not small.exists():
                small.mkdir()
                np.save(small / "0.npy", np.random.default_rng(2).standard_normal((3_000, 64), dtype=np.float32))
            to = tmp_path / threads
            subprocess.run([sys.executable, "-c", script, small, to], env=environment, check=True, timeout=60)
            digests.add(hashlib.sha256(b"".join(read_files(to).values())).hexdigest())
        assert len(digests) == 1

    def test_twice(self, manifest: Manifest) -> None:
        with share_in_process(manifest.release, SECRET) as handle:
            first, second = (sd.release_block(manifest, handle, 1) for _ in range(2))
            assert first == second != sd.release_block(manifest, handle, 2)
        assert unseal(manifest).seal(manifest.release, SECRET) == manifest
        with share_in_process(manifest.release, SECRET[::-1]) as handle:
            other = unseal(manifest).seal(manifest.release, SECRET[::-1])
            assert sd.release_block(other, handle, 1) != first
            with pytest.raises(InvalidInput, match="changed since the release began"):
                sd.release_block(manifest, handle, 1)

    @pytest.mark.parametrize("place", [(-1, 0), (3, 0), (0, 1), (0, -1), (1, 1), (2**70, 0)], ids=str)
    def test_no_such_block(self, manifest: Manifest, place: tuple[int, int]) -> None:
        """A second number that no block has would give other noise on the same scores."""
        with share_in_process(manifest.release, SECRET) as handle:
            assert sd.release_block(manifest, handle, 2) == sd.release_block(manifest, handle, 2, 0)
            with pytest.raises(InvalidInput, match=r"The release has no block"):
                sd.release_block(manifest, handle, *place)


class TestStreams:
    def test_streams_never_meet(self, manifest: Manifest) -> None:
        """A fact that changes the clean values, the law or the place changes the stream."""
        asked = unseal(manifest)
        source = asked.source
        touched = dataclasses.replace(source.files[1], state="later")
        other_file = dataclasses.replace(source, files=(source.files[0], touched, source.files[2]))
        longer = dataclasses.replace(source.files[1], size=source.files[1].size + 1)
        other_size = dataclasses.replace(source, files=(source.files[0], longer, source.files[2]))
        weaker = {**manifest.guarantee, "epsilon": 1.5}
        changes: dict[str, dict[str, Any]] = {
            "snapshot": {"source": other_file},
            "size of a file": {"source": other_size},
            "version of the table": {"source": dataclasses.replace(source, version="8")},
            "query": {"queries": manifest.queries + 1e-12},
            "more queries": {"queries": np.concatenate([manifest.queries] * 2)},
            "mechanism": {"guarantee": weaker},
            "norm": {"options": {**manifest.options, "norm": "ball"}},
            "kind": {"kind": "matches"},
        }
        manifests = {"itself": manifest, "release": asked.seal("f" * 32, SECRET)} | {
            name: dataclasses.replace(asked, **change).seal(manifest.release, SECRET)
            for name, change in changes.items()
        }
        with share_in_process(manifest.release, SECRET) as handle:
            words = {
                (name, kind, i, j): blocks._open_tile(one, handle, kind, i, j).words(4).tobytes()
                for name, one in manifests.items()
                for kind in (one.kind, "ties")
                for i, j in ((0, 0), (1, 0), (0, 1), (1, 1), (11, 0), (1, 10))
            }
        assert len(set(words.values())) == len(words) == 10 * 2 * 6

    def test_size_of_blocks_and_id_in_research(self, manifest: Manifest) -> None:
        """What changes no released value changes no stream, and a research stream repeats for every id."""
        other = dataclasses.replace(manifest, block_rows=7 * TILE_ROWS)
        with share_in_process(manifest.release, SECRET) as handle:
            first = blocks._open_tile(manifest, handle, "scores", 2, 0).words(4)
            assert np.array_equal(first, blocks._open_tile(other, handle, "scores", 2, 0).words(4))
        research = dataclasses.replace(manifest, guarantee={**manifest.guarantee, "sampler": "research"})
        assert research.stream_name == dataclasses.replace(research, release="f" * 32).stream_name == "research"
        assert manifest.stream_name == manifest.release

    def test_derivation(self) -> None:
        """HKDF-SHA256 by its definition, and AES-256-CTR, give the words of a tile."""
        facts = ("scoreshield tile key 1", RELEASE, "snapshot", "mechanism", "scores", "3", "0")

        def compute_mac(key: bytes, text: bytes) -> bytes:
            mac = hmac.HMAC(key, hashes.SHA256())
            mac.update(text)
            return mac.finalize()

        info = b"".join(len(fact).to_bytes(8, "big") + fact.encode() for fact in facts)
        extracted = compute_mac(bytes(32), SECRET)
        first = compute_mac(extracted, info + b"\x01")
        second = compute_mac(extracted, first + info + b"\x02")
        cipher = Cipher(algorithms.AES(first), modes.CTR(second[:16])).encryptor()
        expected = np.frombuffer(cipher.update(bytes(800)), dtype="<i8")
        with share_in_process(RELEASE, SECRET) as handle:
            assert np.array_equal(handle.open_stream(*facts[1:]).words(100), expected)

    def test_no_key(self) -> None:
        with pytest.raises(InvalidInput, match="has no key"):
            KeyHandle(RELEASE).open_stream("a")

    def test_a_key_ends_with_its_context(self) -> None:
        with share_in_process(RELEASE, SECRET) as handle:
            handle.open_stream("a")
        with pytest.raises(InvalidInput, match="has no key"):
            handle.open_stream("a")

    def test_key_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "keys"
        with keys.share_in_folder(folder, RELEASE, SECRET) as handle:
            assert (folder / RELEASE).stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700
            words = handle.open_stream("a").words(4)
            assert not holds_secret(pickle.dumps(handle) + repr(handle).encode(), SECRET)
        assert list(folder.iterdir()) == []
        with share_in_process(RELEASE, SECRET) as other:
            assert np.array_equal(words, other.open_stream("a").words(4))
        folder.chmod(0o755)
        with pytest.raises(InvalidInput, match="Others may read"), keys.share_in_folder(folder, RELEASE, SECRET):
            pass


def test_law(source: Path, rows: np.ndarray, tmp_path: Path) -> None:
    """The noise of all tiles has the law that the same release on one machine states, and not one 4 % wider.

    Kolmogorov and Smirnov's test: a correct law fails with probability 1e-7.
    """
    found = release(source, tmp_path / "out", seed=5)
    stated = ss.release_scores(rows[:10], QUERY, epsilon=2.0, mechanism="staircase").guarantee
    assert found.guarantee.noise == stated.noise
    assert found.guarantee.grid == stated.grid
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = found.scores() - unit.astype(float) @ (QUERY / np.linalg.norm(QUERY))
    assert stats.kstest(noise, Staircase(2.0).cdf).pvalue > 1e-7
    assert stats.kstest(noise * 1.04, Staircase(2.0).cdf).pvalue < 1e-7
    # Two tiles, and two halves of a tile, share no noise: a correct release fails with probability 1e-7.
    pairs = [(noise[:TILE_ROWS], noise[TILE_ROWS : 2 * TILE_ROWS]), (noise[:30_000], noise[30_000:60_000])]
    for one, other in pairs:
        assert abs(stats.pearsonr(one, other).statistic) < 5.4 / len(one) ** 0.5
    assert stats.pearsonr(noise[:TILE_ROWS], noise[:TILE_ROWS] + noise[TILE_ROWS : 2 * TILE_ROWS]).statistic > 0.1


def test_rows_that_are_not_finite(tmp_path: Path) -> None:
    """With check_rows=False such a row counts as a zero row, and no other value changes."""
    folder = tmp_path / "vectors"
    vectors = write_collection(folder, (70_000, 500))
    vectors[70_100] = 0
    np.save(folder / "1.npy", vectors[70_000:])
    options = {"seed": 5, "check_rows": False}
    zero = release(folder, tmp_path / "zero", **options)
    bad = vectors[70_000:].copy()
    bad[100, 2] = np.nan
    np.save(folder / "1.npy", bad)
    manifest = dataclasses.replace(release(folder, tmp_path / "nan", **options).manifest, source=zero.manifest.source)
    # The files have another state, and so other noise. With the same facts the noise is the same.
    engine_free = []
    for content in (bad, vectors[70_000:]):
        np.save(folder / "1.npy", content)
        with share_in_process(manifest.release, SECRET) as handle, pytest.MonkeyPatch.context() as patch:
            patch.setattr("scoreshield.distributed.sources.files.check_state", lambda *_: None)
            engine_free.append(sd.release_block(manifest, handle, 1))
    assert engine_free[0] == engine_free[1]


def test_errors_of_other_libraries_stay_on_the_worker(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error shows its type, and neither its text nor its variables."""

    def fail(*_: Any) -> bytes:
        clean = [0.123456789]
        raise ArithmeticError(f"{clean}")

    monkeypatch.setattr(blocks, "release_block", fail)
    with pytest.raises(InvalidInput, match="failed with ArithmeticError") as caught:
        release(source, tmp_path / "out", engine=LocalEngine())
    assert "0.123456789" not in str(caught.value)
    context = caught.value.__context__  # what the runner of the tests handled before may be there
    while context is not None:
        assert not isinstance(context, ArithmeticError)
        context = context.__context__
    assert caught.value.__cause__ is None
