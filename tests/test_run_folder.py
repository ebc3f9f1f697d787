"""A run folder keeps one job: one writer at a time, one set of settings, whole files and whole lines."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scoreshield import _loading
from scoreshield._files import RunFolder, describe_difference, read_json_lines
from scoreshield.errors import FileError, InvalidInput

SETTINGS = {"version": "1", "grid": {"epsilon": [1.0, 2.0]}, "seed": 3}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_resume(tmp_path: Path) -> None:
    """A job with the same settings goes on, also where a tuple became a list in the file."""
    with RunFolder(tmp_path / "a").lock() as folder:
        assert folder.read_settings() is None
        folder.start_or_resume(SETTINGS | {"grid": {"epsilon": (1.0, 2.0)}})
        folder.append_line("lines.jsonl", {"cell": 1})
    before = contents(tmp_path / "a")
    with RunFolder(tmp_path / "a").lock() as folder:
        folder.start_or_resume(SETTINGS)
        assert folder.read_settings() == SETTINGS
        assert folder.read_lines("lines.jsonl") == [{"cell": 1}]
    assert contents(tmp_path / "a") == before


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"version": "2"}, "version 1, not 2"),
        ({"grid": {"epsilon": [1.0]}}, "grid.epsilon"),
        ({"grid": 3}, "grid"),
        ({"seed": None}, "seed"),
        ({"new": None}, "new"),
    ],
)
def test_other_settings(tmp_path: Path, other: dict[str, object], difference: str) -> None:
    """Another job's folder is left as it is, and the error names the first setting that differs."""
    with RunFolder(tmp_path, job="audit").lock() as folder:
        folder.start_or_resume(SETTINGS)
    before = contents(tmp_path)
    with RunFolder(tmp_path, job="audit").lock() as folder, pytest.raises(InvalidInput) as caught:
        folder.start_or_resume(SETTINGS | other)
    assert f"The audit in {tmp_path} was begun with other settings ({difference}); name another" in str(caught.value)
    assert contents(tmp_path) == before
    assert describe_difference(SETTINGS | {"more": 1}, SETTINGS) == "more settings than this version knows"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_damaged_settings(tmp_path: Path, content: bytes) -> None:
    """Settings that cannot be read are another job's settings."""
    (tmp_path / "settings.json").write_bytes(content)
    with (
        RunFolder(tmp_path).lock() as folder,
        pytest.raises(InvalidInput, match=r"\(its settings\.json cannot be read\)"),
    ):
        folder.start_or_resume(SETTINGS)
    assert (tmp_path / "settings.json").read_bytes() == content


def test_compatible_settings(tmp_path: Path) -> None:
    """Settings that the caller calls compatible are replaced."""
    with RunFolder(tmp_path).lock() as folder:
        folder.start_or_resume(SETTINGS | {"model": None})
        folder.start_or_resume(SETTINGS | {"model": "m"}, compatible=[SETTINGS | {"model": None}])
        assert folder.read_settings() == SETTINGS | {"model": "m"}
        with pytest.raises(InvalidInput, match=r"\(model\)"):
            folder.start_or_resume(SETTINGS | {"model": None})


def test_other_files(tmp_path: Path) -> None:
    """A folder of other files gets no lock file; what an interrupted job left does not count."""
    for name in (".settings.json.0123456789abcdef.part", ".before-report.html"):
        (tmp_path / name).write_text("{")
    with RunFolder(tmp_path, leftovers=(".before-",)).lock():
        pass
    for name in ("thesis.tex", "mine.part", ".before-report.html"):
        other = tmp_path / name.strip(".")
        other.mkdir()
        (other / name).write_text("mine")
        with pytest.raises(InvalidInput, match="holds other files and no audit"), RunFolder(other, job="audit").lock():
            pass
        assert [path.name for path in other.iterdir()] == [name]
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="Cannot use the folder"), RunFolder(tmp_path / "file").lock():
        pass


def test_second_run(tmp_path: Path) -> None:
    """A second run is kept out, from this process or another, until the first ends."""
    code = (
        "import sys; from pathlib import Path; from scoreshield._files import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock(): print('locked')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with RunFolder(tmp_path).lock():
        with pytest.raises(InvalidInput, match="Another run is writing into"), RunFolder(tmp_path).lock():
            pass
        other = subprocess.run(command, capture_output=True, text=True)
        assert "Another run is writing into" in other.stderr
    assert subprocess.run(command, capture_output=True, text=True).stdout == "locked\n"
    with pytest.raises(KeyError), RunFolder(tmp_path).lock():
        raise KeyError
    with RunFolder(tmp_path).lock():
        pass


def test_private_folder(tmp_path: Path) -> None:
    """Only the owner may open a private folder and its files."""
    with RunFolder(tmp_path / "a", is_private=True).lock() as folder:
        folder.start_or_resume(SETTINGS)
        folder.append_line("lines.jsonl", 1)
        folder.write({"bytes": b"1", "written": lambda file: file.write(b"2")})
    for path in ((tmp_path / "a"), *(tmp_path / "a").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert (tmp_path / "a" / "bytes").read_bytes() + (tmp_path / "a" / "written").read_bytes() == b"12"


def test_line_cut_short(tmp_path: Path) -> None:
    """A line that a kill cut short is not read, and the next line replaces it."""
    with RunFolder(tmp_path).lock() as folder:
        assert folder.read_lines("x.jsonl") == []
        folder.append_line("x.jsonl", {"a": 1})
        path = tmp_path / "x.jsonl"
        for rest in (b'{"a": 2', b"{", b""):
            with path.open("ab") as file:
                file.write(rest)
            count = len(folder.read_lines("x.jsonl"))
            folder.append_line("x.jsonl", {"a": count + 1})
        assert folder.read_lines("x.jsonl") == [{"a": number} for number in (1, 2, 3, 4)]
        path.write_bytes(b'{"a": ')
        folder.append_line("x.jsonl", 5)
        assert path.read_bytes() == b"5\n"
        path.write_bytes(b"{broken}\n1\n")
        with pytest.raises(InvalidInput, match="damaged before its end"):
            read_json_lines(path)


def test_line_added_while_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that another process adds between the opening and the reading are left out, and no error."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"1\n2\n")
    measure = os.fstat

    def measure_then_append(descriptor: int) -> os.stat_result:
        before = measure(descriptor)
        with path.open("ab") as file:
            file.write(b"3\n")
        return before

    with monkeypatch.context() as patch:
        patch.setattr(_loading.os, "fstat", measure_then_append)
        assert read_json_lines(path)[:2] == [1, 2]
        with pytest.raises(InvalidInput, match="grew while it was read"):
            _loading.read_bytes(path)
    assert read_json_lines(path)[:3] == [1, 2, 3]


def test_filelock_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without filelock the error names the extra."""
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(InvalidInput, match=r"pip install 'scoreshield\[audit\]'"):
        RunFolder(tmp_path, extra="audit").lock().__enter__()
