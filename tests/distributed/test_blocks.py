"""One block without an engine: the same bytes for any size of blocks, streams that never meet, and the stated law."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac as std_hmac
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_support import QUERY, RELEASE, SECRET, holds_secret, read_files, release, use_same_key, write_collection
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from laws import Staircase
from scipy import stats

import scoreshield as ss
import scoreshield.distributed as sd
from scoreshield.distributed import blocks, driver, key_folder, keys
from scoreshield.distributed.engines.base import LocalEngine
from scoreshield.distributed.keys import KeyHandle, share_in_process
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.distributed.parts import read_part
from scoreshield.distributed.sources.files import read_state
from scoreshield.distributed.sources.opening import describe_source
from scoreshield.errors import InvalidInput
from scoreshield.privacy import ciphers


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

    def test_best_records_of_a_batch(self, source: Path, tmp_path: Path) -> None:
        """Each query has its own best records, whatever the blocks, and a column names the query."""
        queries = np.stack([QUERY, -QUERY[::-1], QUERY**3])
        options = {"query": queries, "seed": 3, "epsilon": 60.0, "mechanism": "gaussian", "delta": 1e-6}
        whole = release(source, tmp_path / "all", **options)
        expected = np.argsort(-whole.scores(), axis=1, kind="stable")[:, :20]
        assert np.array_equal(whole.top_k(20).indices, expected)
        assert np.array_equal(whole.top_k(20).scores, np.take_along_axis(whole.scores(), expected, axis=1))
        found = [
            release(source, tmp_path / str(tiles), block_rows=tiles * TILE_ROWS, best=50, **options) for tiles in (1, 3)
        ]
        assert found[0].top_k(50).indices.shape == (3, 50)
        assert np.array_equal(found[0].top_k(50), found[1].top_k(50))
        columns = next(iter(found[0].parts()))
        assert columns["query"].tolist() == [0] * 50 + [1] * 50 + [2] * 50
        with pytest.raises(InvalidInput, match="keeps the 50 best"):
            found[0].top_k(51)
        clean = queries @ np.concatenate([np.load(path) for path in sorted(source.iterdir())]).T
        assert all(clean[row, found[0].top_k(50).indices[row]].mean() > clean[row].mean() for row in range(3))

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
        """A block has the same bytes each time. Another key gives others, and does not fit the manifest."""
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
                (name, kind, i, j, rows): blocks._open_tile(one, handle, kind, i, j, rows).words(4).tobytes()
                for name, one in manifests.items()
                for kind in (one.kind, "ties")
                for i, j in ((0, 0), (1, 0), (0, 1), (1, 1), (11, 0), (1, 10))
                for rows in ("", "a", "b")
            }
        assert len(set(words.values())) == len(words) == 10 * 2 * 6 * 3

    def test_size_of_blocks_and_id_in_research(self, manifest: Manifest) -> None:
        """What changes no released value changes no stream, and a research stream repeats for every id."""
        other = dataclasses.replace(manifest, block_rows=7 * TILE_ROWS)
        with share_in_process(manifest.release, SECRET) as handle:
            first = blocks._open_tile(manifest, handle, "scores", 2, 0, "a").words(4)
            assert np.array_equal(first, blocks._open_tile(other, handle, "scores", 2, 0, "a").words(4))
        research = dataclasses.replace(manifest, guarantee={**manifest.guarantee, "sampler": "research"})
        assert research.stream_name == dataclasses.replace(research, release="f" * 32).stream_name == "research"
        assert manifest.stream_name == manifest.release

    def test_derivation(self) -> None:
        """HKDF-SHA256 by its definition, and AES-256-CTR, give the words of a tile."""
        facts = ("scoreshield tile key 2", RELEASE, "snapshot", "mechanism", "scores", "3", "0", "hash")

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
        """A process that was not given the key opens no stream."""
        with pytest.raises(InvalidInput, match="has no key"):
            KeyHandle(RELEASE).open_stream("a")

    def test_a_key_ends_with_its_context(self) -> None:
        with share_in_process(RELEASE, SECRET) as handle:
            handle.open_stream("a")
        with pytest.raises(InvalidInput, match="has no key"):
            handle.open_stream("a")

    def test_key_folder(self, tmp_path: Path) -> None:
        """The file of a key is private and is gone at the end. A folder that others may read takes no key."""
        folder = tmp_path / "keys"
        with key_folder.share_in_folder(folder, RELEASE, SECRET) as handle:
            assert (folder / handle.name).stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700
            words = handle.open_stream("a").words(4)
            assert not holds_secret(pickle.dumps(handle) + repr(handle).encode(), SECRET)
        assert list(folder.iterdir()) == []
        with share_in_process(RELEASE, SECRET) as other:
            assert np.array_equal(words, other.open_stream("a").words(4))
        folder.chmod(0o755)
        with pytest.raises(InvalidInput, match="Others may read"), key_folder.share_in_folder(folder, RELEASE, SECRET):
            pass


class TestHashes:
    def test_by_its_definition(self) -> None:
        """GMAC by its definition, a polynomial over GF(2^128), and HMAC-SHA256 of the tags."""
        rng = np.random.default_rng(1)
        arrays = [rng.standard_normal((5, 3)), rng.integers(0, 9, 7, dtype=np.int32), np.empty((0, 4), np.float32)]
        key = HKDF(hashes.SHA256(), 32, salt=None, info=b"scoreshield hash of values 1").derive(SECRET)
        tags = [compute_gmac(key, array.tobytes()).hex() for array in arrays]
        facts = json.dumps([["<f8", [5, 3], tags[0]], ["<i4", [7], tags[1]], ["<f4", [0, 4], tags[2]]])
        expected = std_hmac.new(SECRET, f"scoreshield seal 1 rows {facts}".encode(), "sha256").hexdigest()
        assert keys.hash_values(SECRET, "rows", *arrays) == expected

    def test_every_fact_counts(self) -> None:
        """Values of another shape, type or last bit have another hash; the layout in memory does not matter."""
        rows = np.arange(12.0).reshape(3, 4)
        touched = rows.copy()
        touched[2, 3] = np.nextafter(11.0, 12.0)
        others = [rows.reshape(4, 3), rows.reshape(-1), rows.view(np.int64), touched, rows[:2], rows.astype(np.float32)]
        found = [keys.hash_values(SECRET, "rows", one) for one in (rows, *others)]
        found += [keys.hash_values(SECRET, "counts", rows), keys.hash_values(SECRET[::-1], "rows", rows)]
        found += [keys.hash_values(SECRET, "rows", rows, rows), keys.hash_values(SECRET, "rows", rows[:1], rows[1:])]
        assert len(set(found)) == len(found)
        assert keys.hash_values(SECRET, "rows", np.asfortranarray(rows)) == found[0]

    def test_parts_of_large_arrays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = np.arange(1000.0)
        whole = keys.hash_values(SECRET, "rows", rows)
        monkeypatch.setattr(ciphers, "_PART_BYTES", 48)
        assert keys.hash_values(SECRET, "rows", rows) == whole


def compute_gmac(key: bytes, content: bytes) -> bytes:
    """Compute the tag of AES-GCM without a message, by NIST SP 800-38D, with a nonce of zeros."""

    def encrypt(block: bytes) -> int:
        return int.from_bytes(Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block), "big")

    def multiply(x: int, y: int) -> int:
        product = 0
        for bit in range(127, -1, -1):
            if x >> bit & 1:
                product ^= y
            y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
        return product

    point, total = encrypt(bytes(16)), 0
    blocks_ = [content[start : start + 16].ljust(16, b"\0") for start in range(0, len(content), 16)]
    for block in [*blocks_, (8 * len(content)).to_bytes(8, "big") + bytes(8)]:
        total = multiply(total ^ int.from_bytes(block, "big"), point)
    return (total ^ encrypt(bytes(15) + b"\1")).to_bytes(16, "big")


class TestChangedRows:
    """A mapped .npy file can be written without a new time. The same noise on other rows would show the difference."""

    @pytest.fixture
    def vectors(self, tmp_path: Path) -> Iterator[Path]:
        """A file of two tiles, whose state seems to be the same all the time."""
        path = tmp_path / "vectors" / "0.npy"
        write_collection(path.parent, (70_000,))
        shown = read_state(str(path))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scoreshield.distributed.sources.files.read_state", lambda _: shown)
            yield path

    @staticmethod
    def release_three_times(path: Path, manifest: Manifest, factor: float) -> list[list[dict[str, Any]]]:
        """Release all blocks: of the rows as they are, with one row changed, and as they are again."""
        found = []
        with share_in_process(manifest.release, driver._make_research_secret(3)) as handle:
            for change in (1.0, factor, 1 / factor):
                rows = np.load(path, mmap_mode="r+")
                rows[5, 0] *= change
                rows.flush()
                parts = range(manifest.count_parts)
                found.append([read_part(sd.release_block(manifest, handle, number)) for number in parts])
        return found

    @pytest.mark.parametrize("options", [{}, {"best": 50}], ids=["all", "best"])
    def test_noise(self, vectors: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        """A tile whose rows changed gets other noise, and the other tiles keep theirs."""
        manifest = release(vectors, tmp_path / "out", seed=3, **options).manifest
        before, after, again = self.release_three_times(vectors, manifest, 0.5)
        assert all(equal_columns(one, other) for one, other in zip(before, again, strict=True))
        assert equal_columns(before[1], after[1])  # a tile without a change has the same noise
        assert (before[0]["score"][:50] == after[0]["score"][:50]).mean() < 0.5  # few values meet by chance

    def test_pairs(self, vectors: Path, tmp_path: Path) -> None:
        """A tile of pairs whose rows changed gets other noise."""
        np.save(vectors, np.load(vectors)[:40])
        manifest = sd.release_gram(vectors, to=tmp_path / "out", epsilon=1, delta=1e-6, seed=3).manifest
        before, after, again = self.release_three_times(vectors, manifest, 0.5)
        assert equal_columns(before[0], again[0])
        assert (before[0]["steps"] == after[0]["steps"]).mean() < 0.1

    def test_pads(self, vectors: Path, tmp_path: Path) -> None:
        """A pad hides one list of counts. Under one pad for two, their difference would be small."""
        options = {"epsilon": 1.0, "bins": 8, "seed": 3, "block_rows": TILE_ROWS}
        manifest = sd.release_histogram(vectors, QUERY, to=tmp_path / "out", **options).manifest
        before, after, again = self.release_three_times(vectors, manifest, -64.0)
        assert equal_columns(before[0], again[0])
        difference = (after[0]["padded"] - before[0]["padded"]).view(np.int64)
        assert (np.abs(difference) > 2**32).all()  # by chance false once in 10^8
        assert equal_columns(before[1], after[1])

    def test_noise_of_a_histogram(self, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its noise is for one sum of counts: the same noise on another would show the difference of both."""
        use_same_key(monkeypatch, [RELEASE] * 3)
        found = []
        for number, change in enumerate((1.0, -64.0, -1 / 64)):
            rows = np.load(vectors, mmap_mode="r+")
            rows[5, 0] *= change
            rows.flush()
            to = tmp_path / f"out-{number}"
            counts = sd.release_histogram(vectors, QUERY, to=to, epsilon=1e-4, bins=8).to_histogram().counts
            found.append(counts)
        assert np.array_equal(found[0], found[2])
        # With the same noise, two bins would differ. By chance three of eight meet less than once in 10^9.
        assert (np.abs(found[0] - found[1]) > 2).sum() >= 6


def equal_columns(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class TestKeyFolder:
    def test_two_drivers(self, tmp_path: Path) -> None:
        """The first driver to end does not take the key from the workers of the other."""
        folder = tmp_path / "keys"
        with key_folder.share_in_folder(folder, RELEASE, SECRET) as first:
            with key_folder.share_in_folder(folder, RELEASE, SECRET) as second:
                assert len(list(folder.iterdir())) == 2
            first.open_stream("a")
            with pytest.raises(InvalidInput, match="has no key"):
                second.open_stream("a")
        with share_in_process(RELEASE, SECRET) as first:
            with share_in_process(RELEASE, SECRET):
                pass
            first.open_stream("a")
        assert list(folder.iterdir()) == []

    def test_key_of_a_killed_driver(self, tmp_path: Path) -> None:
        """The next driver of this machine removes it, and neither a live driver's nor another file."""
        folder = tmp_path / "keys"
        code = (
            "import os, sys; from pathlib import Path; from scoreshield.distributed import key_folder\n"
            "with key_folder.share_in_folder(Path(sys.argv[1]), 'a' * 32, bytes(32)):\n"
            "    print('held', flush=True)\n"
            "    sys.stdin.read() if sys.argv[2] == 'waits' else os._exit(9)\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        assert subprocess.run([*command, "dies"], capture_output=True, text=True, check=False).stdout == "held\n"
        (left,) = folder.iterdir()
        with subprocess.Popen([*command, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as live:
            assert live.stdout is not None
            assert live.stdout.readline() == "held\n"
            assert not left.exists()
            (held,) = folder.iterdir()
            others = [folder / "notes", folder / ("b" * 32), folder / f"{'b' * 32}-{'0' * 16}"]
            for other in others:
                other.write_bytes(bytes(32))
            with key_folder.share_in_folder(folder, RELEASE, SECRET) as handle:
                assert set(folder.iterdir()) == {held, *others, folder / handle.name}
            live.communicate("")
        assert set(folder.iterdir()) == set(others)

    def test_a_name_without_a_lock_yet(self, tmp_path: Path) -> None:
        """A temporary file is left alone while its driver may be about to lock it."""
        folder = tmp_path / "keys"
        folder.mkdir(mode=0o700)
        young, old = (folder / f".{digit * 32}-{key_folder._name_machine()}{digit * 8}" for digit in "ab")
        for path in (young, old):
            path.write_bytes(b"")
        os.utime(old, (0, 0))
        with key_folder.share_in_folder(folder, RELEASE, SECRET):
            assert young.exists()
            assert not old.exists()


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

    def fail(*_: Any, **__: Any) -> bytes:
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
