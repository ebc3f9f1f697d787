"""NumPy arrays and files as a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import FileError, InvalidInput, StoreError
from scoreshield.geometry import embeddings
from scoreshield.stores import ArrayStore, PinnedStore
from scoreshield.stores import pinned as pinned_module

N, DIMENSION = 30, 6
ROWS = np.random.default_rng(8).standard_normal((N, DIMENSION)) * 3
QUERY = np.random.default_rng(9).standard_normal(DIMENSION)
QUERY /= np.linalg.norm(QUERY)
COSINES = np.array([row @ QUERY / np.sqrt(row @ row) for row in ROWS])


def compute_scores(pinned: PinnedStore) -> Any:
    rows, asked = pinned.take_snapshot().make_problem(QUERY)
    return rows @ asked / np.linalg.norm(rows, axis=1)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ">f4"])
@pytest.mark.parametrize("kind", ["array", "npy", "npz", "mapped"])
def test_ids_scores_vectors(tmp_path: Path, kind: str, dtype: str) -> None:
    rows = ROWS.astype(dtype)
    path = tmp_path / f"rows.{'npz' if kind == 'npz' else 'npy'}"
    np.savez(path, rows) if kind == "npz" else np.save(path, rows)
    source: Any = {"array": rows, "mapped": np.load(tmp_path / "rows.npy", mmap_mode="r")}[kind] if kind in (
        "array", "mapped") else path  # fmt: skip
    store = ArrayStore(source)
    records, scored = store.records(), store.scores(QUERY.astype(np.float32))
    atol = 2e-3 if dtype == "f2" else 1e-6
    assert list(records.ids) == list(scored.ids) == list(range(N))
    np.testing.assert_allclose(records.vectors, ROWS, atol=1e-2 if dtype == "f2" else 1e-5)
    np.testing.assert_allclose(scored.values, COSINES, atol=atol)
    np.testing.assert_allclose(compute_scores(PinnedStore(store)), COSINES, atol=atol)
    assert store.zero_copy == (kind in ("npy", "mapped") and dtype in ("f4", "f8"))
    assert store.dimension == DIMENSION


def test_ids_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    names = [f"r{number}" for number in range(N)]
    for source in (ROWS, tmp_path / "rows.npy"):
        assert list(ArrayStore(source).ids()) == list(range(N))
        assert PinnedStore(ArrayStore(source, names)).list_ids()[0] == tuple(names)


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"embedding": ROWS.tolist()}), tmp_path / "rows.parquet")
    np.testing.assert_allclose(compute_scores(PinnedStore(ArrayStore(tmp_path / "rows.parquet"))), COSINES, atol=1e-6)


def test_parquet_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the store nor a pinned copy reads a Parquet file whole, and zero rows are found in every part."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    from scoreshield._parquet import ParquetRows

    rows = np.random.default_rng(1).standard_normal((40, DIMENSION)).astype(np.float32)
    rows[[3, 38]] = 0
    parquet.write_table(pa.table({"embedding": rows.tolist()}), tmp_path / "rows.parquet")
    monkeypatch.setattr(pinned_module, "_BLOCK", 16)
    monkeypatch.setattr(embeddings, "_BLOCK_BYTES", 16 * 8 * DIMENSION)
    lengths: list[int] = []
    read = ParquetRows.read

    def count(self: ParquetRows, start: int, stop: int) -> Any:
        lengths.append(stop - start)
        return read(self, start, stop)

    monkeypatch.setattr(ParquetRows, "read", count)
    store = ArrayStore(tmp_path / "rows.parquet")
    records = store.records()
    assert not lengths
    assert list(records.ids) == list(range(40))
    copied = PinnedStore(store).take_snapshot().rows
    assert copied is not None
    assert max(lengths) <= 16
    lengths.clear()
    np.testing.assert_allclose(records.vectors, rows)
    assert lengths == [40]
    expected = np.where(rows.any(axis=1)[:, None], rows, np.eye(1, DIMENSION))
    np.testing.assert_allclose(copied, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)


def test_copy_and_view(tmp_path: Path) -> None:
    """An array is copied, and a mapped file is viewed."""
    rows = ROWS.astype(np.float32)
    snapshot = PinnedStore(ArrayStore(rows)).take_snapshot()
    rows[:] = 1
    np.testing.assert_allclose(np.linalg.norm(snapshot.rows, axis=1), 1, atol=1e-6)
    np.save(tmp_path / "rows.npy", ROWS)
    snapshot = PinnedStore(ArrayStore(str(tmp_path / "rows.npy"))).take_snapshot()
    assert isinstance(snapshot.rows, np.ndarray)
    assert isinstance(snapshot.rows.base, np.memmap)


def test_mark_changed() -> None:
    """A change in place is reported by mark_changed()."""
    rows = ROWS.copy()
    store = ArrayStore(rows)
    pinned = PinnedStore(store)
    pinned.take_snapshot()
    rows *= -1
    np.testing.assert_allclose(compute_scores(pinned), COSINES, atol=1e-6)  # not seen
    store.mark_changed()
    assert pinned.is_stale()
    np.testing.assert_allclose(compute_scores(pinned), -COSINES, atol=1e-6)
    assert pinned.version == 2


@pytest.mark.parametrize("ids", [[f"p{i}" for i in range(N)], tuple(range(N, 0, -1)), np.arange(N) * 2])
def test_ids(ids: Any) -> None:
    snapshot = PinnedStore(ArrayStore(ROWS, ids)).take_snapshot()
    assert snapshot.ids == tuple(ids)
    assert type(snapshot.ids[0]) in (int, str)


def test_replaced_file(tmp_path: Path) -> None:
    """A file that is replaced is a new version."""
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    pinned = PinnedStore(ArrayStore(path))
    assert (pinned.take_snapshot().version, pinned.take_snapshot().version) == (1, 1)
    np.save(tmp_path / "next.npy", -ROWS)
    (tmp_path / "next.npy").rename(path)
    assert pinned.is_stale()
    np.testing.assert_allclose(compute_scores(pinned), -COSINES, atol=1e-6)
    assert pinned.version == 2
    np.save(tmp_path / "next.npy", ROWS[:5])
    (tmp_path / "next.npy").rename(path)
    assert (len(pinned.take_snapshot()), pinned.version) == (5, 3)


def test_inode(tmp_path: Path) -> None:
    """A file of the same size and time is detected by its inode."""
    path, other = tmp_path / "rows.npy", tmp_path / "next.npy"
    np.save(path, ROWS)
    before = ArrayStore(path)
    token, facts = before.state(), path.stat()
    np.save(other, -ROWS)
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.rename(path)
    assert before.state() != token


def test_a_file_that_goes(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    pinned = PinnedStore(ArrayStore(path))
    pinned.take_snapshot()
    path.unlink()
    with pytest.raises(StoreError, match=r"The array in rows\.npy is gone"):
        pinned.take_snapshot()


def test_one_row() -> None:
    """One row is a collection."""
    assert len(PinnedStore(ArrayStore(ROWS[:1])).take_snapshot()) == 1


@pytest.mark.parametrize(
    ("embeddings", "ids", "says"),
    [
        ([], None, "'embeddings' parameter of ArrayStore must be a two-dimensional array"),
        (np.empty((0, 4)), None, "'embeddings' parameter"),
        (np.ones(4), None, "'embeddings' parameter"),
        (np.ones((2, 2, 2)), None, "'embeddings' parameter"),
        ([[1.0], [1.0, 2.0]], None, "'embeddings' parameter"),
        ([["a"]], None, "'embeddings' parameter"),
        (object(), None, "'embeddings' parameter"),
        (np.ones((2, 2), dtype=complex), None, "'embeddings' parameter"),
        (ROWS, ["a"], "one id per row, 30 of them; got 1"),
        (ROWS, "abc", "'ids' parameter of ArrayStore must be a sequence"),
        (ROWS, 5, "'ids' parameter"),
        (ROWS, np.ones((N, 2)), "'ids' parameter"),
        (ROWS, {1, 2}, "'ids' parameter"),
    ],
)
def test_bad_arguments(embeddings: Any, ids: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        ArrayStore(embeddings, ids)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        ArrayStore(tmp_path / "none.npy")
    (tmp_path / "rows.npy").write_bytes(b"\x93NUMPY garbage")
    with pytest.raises(InvalidInput, match="corrupt, truncated or of another kind"):
        ArrayStore(tmp_path / "rows.npy")
    with pytest.raises(InvalidInput, match=r"must be a \.npy, \.npz, \.parquet or \.csv file"):
        ArrayStore("rows.xlsx")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("file", [True, False])
def test_bad_rows(tmp_path: Path, bad: float, file: bool) -> None:
    rows = ROWS.copy()
    rows[4] = bad
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(StoreError, match="holds vectors that are not finite numbers; nothing was released"):
        PinnedStore(ArrayStore(tmp_path / "rows.npy" if file else rows)).take_snapshot()


@pytest.mark.parametrize("pin", ["copy", "scores", "auto"])
def test_zero_row(tmp_path: Path, pin: str) -> None:
    """A zero row is scored as the first basis vector."""
    rows = ROWS.copy()
    rows[4] = 0
    np.save(tmp_path / "rows.npy", rows)
    snapshot = PinnedStore(ArrayStore(tmp_path / "rows.npy"), pin=pin).take_snapshot()
    query = QUERY / np.linalg.norm(QUERY)
    given, public = snapshot.make_problem(query)
    assert embeddings.compute_scores(given, public[None], "unit")[0, 4] == pytest.approx(query[0], abs=1e-6)


@pytest.mark.parametrize(("ids", "says"), [([1] * N, "same id more than once"), ([[1]] * N, "cannot be compared")])
def test_bad_ids(ids: Any, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        PinnedStore(ArrayStore(ROWS, ids)).take_snapshot()
