"""Reading embeddings: every format, and every way a file can be wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import scoreshield as ss
from scoreshield import _files

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(path: Path, table: dict[str, object]) -> Path:
    parquet.write_table(pa.table(table), path)
    return path


def test_npy_plain_and_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    assert np.array_equal(_files.read_array(tmp_path / "a.npy"), ROWS)
    mapped = _files.read_array(tmp_path / "a.npy", mapped=True)
    assert isinstance(mapped, np.memmap)
    assert np.array_equal(mapped, ROWS)


def test_npz_by_name_by_habit_or_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", whatever=ROWS)
    np.savez(tmp_path / "two.npz", emb=ROWS, labels=np.arange(4))
    np.savez(tmp_path / "odd.npz", a=ROWS, b=ROWS + 1)
    assert np.array_equal(_files.read_array(tmp_path / "one.npz"), ROWS)
    assert np.array_equal(_files.read_array(tmp_path / "two.npz"), ROWS)
    assert np.array_equal(_files.read_array(tmp_path / "odd.npz", name="b"), ROWS + 1)
    with pytest.raises(ss.InvalidInput, match=r"several arrays \(a, b\)"):
        _files.read_array(tmp_path / "odd.npz")
    with pytest.raises(ss.InvalidInput, match="no array 'c'"):
        _files.read_array(tmp_path / "odd.npz", name="c")


def test_parquet_lists_or_numbers(tmp_path: Path) -> None:
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 3)
    for column in (fixed, pa.array(ROWS.tolist(), type=pa.list_(pa.float32()))):
        path = write(tmp_path / "lists.parquet", {"id": pa.array([1, 2, 3, 4]), "vector": column})
        assert np.array_equal(_files.read_array(path), ROWS)
        assert _files.read_array(path).dtype == np.float32
        assert np.array_equal(_files.read_array(path, name="vector"), ROWS)
    path = write(tmp_path / "columns.parquet", {"x": ROWS[:, 0], "y": ROWS[:, 1], "name": pa.array(list("abcd"))})
    assert np.array_equal(_files.read_array(path), ROWS[:, :2])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"v": pa.array([[1.0, 2.0], [3.0]])}, "lists of one length"),
        ({"v": pa.array([[1.0, 2.0], None])}, "lists of one length"),
        ({"v": pa.array([[1.0], [3.0, 4.0, 5.0]])}, "lists of one length"),
        ({"v": pa.array([[1.0]]), "w": pa.array([[1.0]])}, "several columns of lists"),
        ({"name": pa.array(["a"])}, "neither a column of lists nor numeric columns"),
    ],
)
def test_parquet_that_is_no_matrix(tmp_path: Path, table: dict[str, object], message: str) -> None:
    with pytest.raises(ss.InvalidInput, match=message):
        _files.read_array(write(tmp_path / "bad.parquet", table))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_corrupt_truncated_and_missing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, ROWS)
    elif suffix == ".npz":
        np.savez(path, a=ROWS)
    else:
        write(path, {"v": pa.array(ROWS.tolist())})
    content = path.read_bytes()
    for damaged in (b"", b"junk", content[:20], content[:-10]):
        path.write_bytes(damaged)
        for mapped in (False, True):
            with pytest.raises(ss.InvalidInput) as caught:
                _files.read_array(path, mapped=mapped)
            assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ss.FileError, match="There is no file"):
        _files.read_array(path)
    path.mkdir()
    with pytest.raises(ss.ScoreShieldError):
        _files.read_array(path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", a=np.array([{"a": 1}], dtype=object))
    for name in ("a.npy", "a.npz"):
        for mapped in (False, True):
            with pytest.raises(ss.InvalidInput):
                _files.read_array(tmp_path / name, mapped=mapped)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_damage_anywhere_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    """Random damage makes NumPy's readers fail in many ways; each must end as one of ours."""
    path, rng = tmp_path / f"a{suffix}", np.random.default_rng(0)
    if suffix == ".npy":
        np.save(path, ROWS)
    else:
        np.savez_compressed(path, a=np.tile(ROWS, (50, 1)))
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    refused = 0
    for _ in range(600):
        damaged = content.copy()
        places = rng.integers(len(content) if suffix == ".npz" else 128, size=3)
        damaged[places] = rng.integers(256, size=3)
        path.write_bytes(damaged.tobytes())
        try:
            _files.read_array(path)
        except ss.ScoreShieldError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017
    assert refused > 200


def test_a_name_for_a_file_without_names(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    with pytest.raises(ss.InvalidInput, match="without a name"):
        _files.read_array(tmp_path / "a.npy", name="emb")


def test_unknown_endings(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match=r"\.npy, \.npz, \.parquet or \.csv"):
        _files.read_array(tmp_path / "embeddings.xlsx")


def test_csv_with_and_without_a_header(tmp_path: Path) -> None:
    """A .csv file holds one row of numbers per line; one column or one line is a vector where one is asked for."""
    np.savetxt(tmp_path / "plain.csv", ROWS + 0.5, delimiter=",")
    np.savetxt(tmp_path / "named.csv", ROWS + 0.5, delimiter=";", header="a;b;c", comments="")
    np.savetxt(tmp_path / "column.csv", ROWS[:, 1])
    assert np.array_equal(_files.read_array(tmp_path / "plain.csv", mapped=True), ROWS + 0.5)
    assert np.array_equal(_files.read_array(tmp_path / "named.csv"), ROWS + 0.5)
    assert np.array_equal(_files.read_array(tmp_path / "column.csv"), ROWS[:, 1])
    with pytest.raises(ss.InvalidInput, match="without a name"):
        _files.read_array(tmp_path / "plain.csv", name="a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "a header and no numbers"),
        ("0.1,0.2\n0.3\n", r"Line 2 of .* has 1 cells, where the table has 2 columns"),
        ("0.1,0.2\n0.3,secret\n", r"Line 2, column 2, of .* is not a finite number"),
        ("0.1,0.2\n0.3,nan\n", r"Line 2, column 2, of .* is not a finite number"),
        ("0.1,secret\n0.3,0.4\n", "Line 1 .* numbers and texts"),
        (",0,1\n0,0.3,0.4\n", "Line 1 .* numbers and texts"),  # how pandas writes a frame without names
        ("0,1,2\n0.3,0.4,0.5\n", "Line 1 .* counts the columns"),
        ("1,2,3\n0.3,0.4,0.5\n", "Line 1 .* counts the columns"),
        ("\x00\x01,\udcff\n", "corrupt, truncated or of another kind"),
    ],
)
def test_csv_that_is_no_matrix(tmp_path: Path, text: str, message: str) -> None:
    """A table with a doubtful cell raises one sentence that shows no cell; no row is dropped silently."""
    (tmp_path / "rows.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ss.InvalidInput, match=message) as caught:
        _files.read_array(tmp_path / "rows.csv")
    assert "secret" not in str(caught.value)


def test_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    def good(file: object) -> None:
        file.write(b"good")  # type: ignore[attr-defined]

    def bad(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ss.FileError, match="No space left"):
        _files.write_whole({tmp_path / "a": good, tmp_path / "b": bad})
    assert list(tmp_path.iterdir()) == []
    _files.write_whole({tmp_path / "a": good, tmp_path / "b": good})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_private_files_are_their_owners_alone(tmp_path: Path) -> None:
    seen: list[int] = []

    def good(file: object) -> None:
        seen.append(os.fstat(file.fileno()).st_mode & 0o777)  # type: ignore[attr-defined]
        file.write(b"good")  # type: ignore[attr-defined]

    before = os.umask(0o022)
    try:
        _files.write_whole({tmp_path / "open": good})
        _files.write_whole({tmp_path / "private": good}, private=True)
        _files.write_whole({tmp_path / "open": good}, private=True)  # over one that all could read
    finally:
        os.umask(before)
    assert seen == [0o644, 0o600, 0o600]
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("open", "private")] == [0o600, 0o600]


@pytest.mark.parametrize("text", ["=1+1", " =1+1", "  @sum", "'=1", " 'x", "-2", "\ta", "a\rb", "", " plain", "a=1"])
def test_no_cell_is_a_formula_and_each_reads_back(text: str) -> None:
    """Some spreadsheets ignore spaces in front of a formula."""
    cell = _files.csv_text(text)
    assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
    assert _files.from_csv_text(cell) == text.replace("\r", "\n")
