"""Collections that are read part by part: equal releases from arrays, mapped files and Parquet, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import _files, _parquet, _rows
from scoreshield._rows import RowSource, read_windows, release_pages
from scoreshield.errors import InvalidRow
from scoreshield.geometry import embeddings, windows
from scoreshield.stores.arrays import ArrayStore

ROWS = np.random.default_rng(4).standard_normal((5000, 12)).astype(np.float32)
ROWS[77] = 0  # no direction
ROWS[4321] *= np.float32(1e-30)  # squares that vanish
QUERIES = np.random.default_rng(5).standard_normal((3, 12))
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and a POSIX system that takes pages back")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and windows in a small file."""
    monkeypatch.setattr(embeddings, "_BLOCK_BYTES", 48 * 100)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 48 * 700)
    monkeypatch.setattr(_parquet, "_BATCH", 130)
    monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1)


def write_parquet(path: Path, rows: Any, *, group: int = 900) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    column = pa.array(list(rows), type=pa.list_(pa.float32()))
    parquet.write_table(pa.table({"id": np.arange(len(rows)), "embedding": column}), path, row_group_size=group)
    return path


def sources(folder: Path) -> dict[str, Any]:
    """The same rows from an array, a mapped file and a Parquet file."""
    np.save(folder / "rows.npy", ROWS)
    found = {
        "array": ROWS,
        "mapped": np.load(folder / "rows.npy", mmap_mode="r"),
        "read": _files.read_array(folder / "rows.npy", mapped=True),
        "parquet": _files.read_array(write_parquet(folder / "rows.parquet", ROWS), mapped=True),
    }
    assert isinstance(found["mapped"], np.memmap)
    assert isinstance(found["parquet"], RowSource)
    return found


RELEASES: dict[str, Any] = {
    "one query": lambda rows: ss.release_scores(rows, QUERIES[0], epsilon=1, delta=1e-6, rng=3),
    "a batch": lambda rows: ss.release_scores(rows, QUERIES, epsilon=1, delta=1e-6, rng=3),
    "a ball": lambda rows: ss.release_scores(rows, QUERIES[0], epsilon=1, mechanism="laplace", norm="ball", rng=3),
    "levels": lambda rows: ss.release_scores(rows, QUERIES[0], epsilon=1, mechanism="optimal", rng=3),
    "centroids": lambda rows: ss.release_scores(
        rows,
        QUERIES[0],
        epsilon=1,
        delta=1e-6,
        adjacency=ss.Identity(np.arange(len(rows)) % 40, centroids=True),
        rng=3,
    ),
    "matches": lambda rows: ss.release_matches(rows, QUERIES[0], 0.4, epsilon=5, rng=3),
    "top k": lambda rows: ss.release_top_k(rows, QUERIES[0], 5, epsilon=20, rng=3),
    "index": lambda rows: ss.release_index(rows, epsilon=20, use="pairs", components=12, rng=3),
    "index, private center": lambda rows: ss.release_index(rows, epsilon=20, delta=1e-6, center="private", rng=3),
}


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("name", RELEASES)
def test_a_seed_gives_one_release_from_every_source(name: str, tmp_path: Path) -> None:
    found = {kind: RELEASES[name](rows) for kind, rows in sources(tmp_path).items()}
    first = found.pop("array")
    for kind, release in found.items():
        assert release.guarantee == first.guarantee
        for field in ("noisy", "vectors", "indices"):
            if hasattr(first, field):
                assert np.array_equal(getattr(release, field), getattr(first, field)), (kind, field)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("norm", ["unit", "ball"])
@pytest.mark.parametrize("count", [1, 3])
def test_windows_do_not_change_a_bit(norm: str, count: int) -> None:
    whole = embeddings.compute_scores(ROWS, QUERIES[:count], norm)
    found = np.full_like(whole, np.nan)
    parts = 0
    for places, scores in windows.score_windows(ROWS, QUERIES[:count], norm):
        found[:, places] = scores
        parts += 1
    assert parts == 8
    assert np.array_equal(found, whole)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("row", [0, 699, 700, 4999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_error_names_the_row_of_the_collection(row: int, value: float, tmp_path: Path) -> None:
    """As without windows: the number of the row, and no other fact about it."""
    rows = ROWS.copy()
    rows[row, 3] = value
    sentence = f"Row {row} of 'embeddings' holds a NaN or an infinity; give finite numbers only."
    stored = _files.read_array(write_parquet(tmp_path / "rows.parquet", rows), mapped=True)
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50, delta=1e-5)
    for source in (rows, stored):
        for release in (
            lambda rows: ss.release_scores(rows, QUERIES[0], epsilon=1, delta=1e-6, ledger=ledger.account("people")),
            lambda rows: ss.release_index(rows, epsilon=20, use="pairs", ledger=ledger.account("people")),
        ):
            with pytest.raises(InvalidRow) as caught:
                release(source)
            assert str(caught.value) == sentence
            assert caught.value.row == row
            assert caught.value.__cause__ is None
    assert list(ledger.entries()) == []


class TestNormaliseWindow:
    def test_as_normalise_rows(self) -> None:
        for dtype in (np.float32, np.float64):
            rows = ROWS.astype(dtype)
            out = np.empty(rows.shape)
            windows.normalise_window(rows, 0, out)
            assert out == pytest.approx(embeddings.normalise_rows(rows), abs=1e-15)
            assert np.array_equal(out[77], np.eye(12)[0])

    def test_no_record_changes_another(self) -> None:
        """Extreme neighbours leave the last bit of a row as it is."""
        rows = ROWS.astype(np.float64)
        out, other = np.empty(rows.shape), np.empty(rows.shape)
        windows.normalise_window(rows, 0, out)
        rows[5:9] = [[0.0] * 12, [1e300] * 12, [1e-300] * 12, [1e160] + [0.0] * 11]
        windows.normalise_window(rows, 0, other)
        assert np.array_equal(np.delete(out, range(5, 9), axis=0), np.delete(other, range(5, 9), axis=0))
        assert other[5].tolist() == [1.0] + [0.0] * 11
        assert other[6] == pytest.approx(np.full(12, 12**-0.5))
        assert other[7] == pytest.approx(np.full(12, 12**-0.5))

    def test_a_bad_row_is_named(self) -> None:
        rows = ROWS[:20].copy()
        rows[4], rows[9, 2] = 0, np.nan
        with pytest.raises(InvalidRow, match="Row 1009 "):
            windows.normalise_window(rows, 1000, np.empty(rows.shape))


@pytest.mark.usefixtures("small_windows")
def test_progress_of_scores(tmp_path: Path) -> None:
    """Progress is reported for each window, before the charge, and changes nothing."""
    for rows in sources(tmp_path).values():
        seen: list[tuple[int, int]] = []
        release = ss.release_scores(
            rows, QUERIES[0], epsilon=1, delta=1e-6, rng=3, progress=lambda *done, seen=seen: seen.append(done)
        )
        assert len(seen) > 5
        assert seen == sorted(set(seen))
        assert seen[-1] == (5000, 5000)
        assert {total for _, total in seen} == {5000}
        assert release == RELEASES["one query"](rows)
    with pytest.raises(ss.InvalidInput, match="progress"):
        ss.release_scores(ROWS, QUERIES[0], epsilon=1, delta=1e-6, progress=3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_windows")
def test_interrupted_scores_cost_nothing(tmp_path: Path) -> None:
    """A release that is stopped while it reads the rows is not charged."""
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=1.2, delta=1e-5)
    account = ledger.account("rows")

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ss.release_scores(ROWS, QUERIES[0], epsilon=1, delta=1e-6, ledger=account, progress=stop)
    assert ledger.spent == 0
    ss.release_scores(ROWS, QUERIES[0], epsilon=1, delta=1e-6, ledger=account, progress=lambda *_: None)
    assert ledger.spent > 0


class TestParquetRows:
    @pytest.mark.usefixtures("small_windows")
    def test_any_slice(self, tmp_path: Path) -> None:
        stored: Any = _files.read_array(write_parquet(tmp_path / "rows.parquet", ROWS), mapped=True)
        assert (stored.shape, stored.ndim, stored.dtype, len(stored), stored.itemsize) == (
            ROWS.shape,
            2,
            np.float32,
            5000,
            4,
        )
        rng = np.random.default_rng(2)
        for start, stop in [(0, 5000), (0, 0), (5000, 5000), (899, 901), *rng.integers(0, 5001, (60, 2)).tolist()]:
            assert np.array_equal(stored[start:stop], ROWS[start:stop])
        assert np.array_equal(stored[-7:], ROWS[-7:])
        assert np.array_equal(stored[[5, 1]], ROWS[[5, 1]])
        assert np.array_equal(stored[10:2:-1], ROWS[10:2:-1])
        assert np.array_equal(np.asarray(stored), ROWS)
        assert stored.astype(np.float32, copy=False) is stored
        doubles = stored.astype(np.float64, copy=False)
        assert isinstance(doubles, RowSource)
        assert doubles[3:5].dtype == np.float64
        assert stored.astype(np.float64).dtype == np.float64

    def test_sequential_reads_decode_each_row_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_parquet, "_BATCH", 130)
        monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1)
        stored: Any = _files.read_array(write_parquet(tmp_path / "rows.parquet", ROWS), mapped=True)
        decoded = 0
        original = _parquet._make_matrix

        def count(path: Any, table: Any, pa: Any) -> Any:
            nonlocal decoded
            decoded += table.num_rows
            return original(path, table, pa)

        monkeypatch.setattr(_parquet, "_make_matrix", count)
        for start in range(0, 5000, 37):
            assert np.array_equal(stored[start : start + 37], ROWS[start : start + 37])
        assert decoded <= 5000  # the first batch was decoded when the file was opened

    @pytest.mark.parametrize(
        ("columns", "dtype"),
        [
            ({"a": np.float32, "b": np.float32}, np.float32),
            ({"a": np.float32, "b": np.float64}, np.float64),
            ({"a": np.int32, "b": np.float32}, np.float64),
            ({"a": np.int8, "b": np.int64}, np.float64),
        ],
    )
    def test_numeric_columns(self, columns: dict[str, Any], dtype: Any, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        values = {name: np.arange(1, 401).astype(kind) for name, kind in columns.items()}
        parquet.write_table(pa.table(values), tmp_path / "rows.parquet", row_group_size=77)
        stored: Any = _files.read_array(tmp_path / "rows.parquet", mapped=True)
        assert stored.dtype == dtype
        whole = _files.read_array(tmp_path / "rows.parquet")
        assert np.array_equal(stored[100:300], whole[100:300])
        assert embeddings.as_rows(stored).dtype == embeddings.as_rows(whole.astype(dtype)).dtype

    @pytest.mark.parametrize("kind", ["shorter", "missing"])
    def test_rows_of_other_lengths_cost_nothing(self, kind: str, tmp_path: Path) -> None:
        rows = [row.tolist() for row in ROWS]
        rows[4500] = rows[4500][:-1] if kind == "shorter" else None  # type: ignore[call-overload]
        stored = _files.read_array(write_parquet(tmp_path / "rows.parquet", rows), mapped=True)
        ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=5, delta=1e-5)
        with pytest.raises(ss.InvalidInput, match="must hold lists of one length"):
            ss.release_scores(stored, QUERIES[0], epsilon=1, delta=1e-6, ledger=ledger.account("people"))
        assert list(ledger.entries()) == []

    def test_a_store_scores_it(self, tmp_path: Path) -> None:
        store = ArrayStore(write_parquet(tmp_path / "rows.parquet", ROWS))
        same = ArrayStore(ROWS)
        query = QUERIES[0].astype(np.float32)
        assert np.array_equal(store.scores(query).values, same.scores(query).values)
        assert np.array_equal(store.records().vectors, ROWS)

    def test_missing_values_are_not_finite(self, tmp_path: Path) -> None:
        rows = [row.tolist() for row in ROWS[:50]]
        rows[31][2] = None  # type: ignore[call-overload]
        stored = _files.read_array(write_parquet(tmp_path / "rows.parquet", rows), mapped=True)
        with pytest.raises(InvalidRow, match="Row 31 "):
            ss.release_scores(stored, QUERIES[0], epsilon=1, delta=1e-6)


class TestPages:
    def read_resident(self, mapping: np.ndarray) -> int:
        """The kilobytes of a mapped file that this process holds."""
        address, found = mapping.__array_interface__["data"][0], False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split(" ")[0]:
                low, high = (int(part, 16) for part in line.split(" ")[0].split("-"))
                found = low <= address < high
            elif found and line.startswith("Rss:"):
                return int(line.split()[1])
        raise AssertionError("the file is not mapped")

    @linux
    def test_windows_are_given_back(self, tmp_path: Path) -> None:
        np.save(tmp_path / "rows.npy", np.ones((40_000, 64)))
        rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
        assert rows.sum() == 40_000 * 64
        assert self.read_resident(rows) > 19_000
        release_pages(rows[:0])
        release_pages(rows)
        assert self.read_resident(rows) < 200
        held = []
        for _, window in read_windows(rows, 2000):  # of 1,000 KB
            window.sum()
            held.append(self.read_resident(rows))
        assert 900 < max(held) < 10_000  # two windows, and what the system maps around them
        assert rows.sum() == 40_000 * 64

    @linux
    def test_what_was_written_is_kept(self, tmp_path: Path) -> None:
        """A private or writable mapping is left alone: its pages are the only copy of what was written."""
        np.save(tmp_path / "rows.npy", np.zeros((5000, 64)))
        for mode in ("c", "r+"):
            rows = np.load(tmp_path / "rows.npy", mmap_mode=mode)  # type: ignore[call-overload]
            rows[:] = 3.0
            for _, window in read_windows(rows, 100):
                window.sum()
            assert (rows == 3.0).all()

    def test_other_arrays_are_left_alone(self) -> None:
        for rows in (ROWS, ROWS[::2], ROWS.T, ROWS[:0]):
            release_pages(rows)
        assert [start for start, _ in read_windows(ROWS, 3000)] == [0, 3000]
        assert _rows._find_mapping(ROWS) is None


PEAK = """
import sys
from pathlib import Path
import numpy as np
import scoreshield as ss
from scoreshield import _files

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

rows = _files.read_array(sys.argv[1], mapped=True)
query = np.ones(rows.shape[1])
ss.release_scores(rows[:2000], query, epsilon=1, delta=1e-6)
ss.release_index(rows[:2000], epsilon=20, use="pairs", components=4)
before = peak()
scores = ss.release_scores(rows, query, epsilon=1, delta=1e-6)
print(peak() - before, len(scores.noisy))
index = ss.release_index(rows, epsilon=20, use="pairs", components=4)
print(peak() - before, len(index.vectors))
"""


@linux
@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_file_needs_far_less_memory_than_it_holds(kind: str, tmp_path: Path) -> None:
    """A file of 600 MB is scored, and an index of it made, in less than 150 MB. A sparse file takes no disk."""
    count = 300_000
    if kind == "npy":
        path = tmp_path / "rows.npy"
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, 512)}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 4 * 512 * count)
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        path = tmp_path / "rows.parquet"
        part = np.random.default_rng(1).standard_normal((count // 10, 512)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), 512)
        schema = pa.schema([("embedding", column.type)])
        with parquet.ParquetWriter(path, schema) as writer:
            for _ in range(10):
                writer.write_table(pa.table([column], schema=schema))
    command = [sys.executable, "-W", "ignore", "-c", PEAK, str(path)]
    environment = os.environ | {"SCORESHIELD_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    (scored, n), (indexed, m) = (line.split() for line in done.stdout.splitlines())
    assert int(n) == int(m) == count
    assert float(scored) < 150
    assert float(indexed) < 150
