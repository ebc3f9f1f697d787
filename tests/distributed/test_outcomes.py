"""What the tasks of Spark and Ray report, and where their workers find the key. No cluster is needed."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines import outcomes
from scoreshield.distributed.engines.opening import choose_engine
from scoreshield.distributed.engines.outcomes import FolderEngine, Outcome, find_local_folder, make_runner, run_block
from scoreshield.distributed.keys import KeyHandle
from scoreshield.errors import FileError, InvalidInput, LedgerError

RELEASE = "ab" * 16
TEXT = "0.0318447 of a row"


class Reports(BlockTask):
    """It does nothing but answer, or raise what a test wants."""

    def run(self, number: int) -> BlockFacts:
        if number == 0:
            return BlockFacts(0, 10, "00")
        raise [FileError("No space."), LedgerError("A sentence."), ZeroDivisionError(TEXT), MemoryError(TEXT)][
            number - 1
        ]


TASK = Reports("folder", "0" * 64, KeyHandle(RELEASE))


@pytest.mark.parametrize(
    ("number", "kind", "sentence"),
    [
        (1, FileError, r"^No space\.$"),
        (2, InvalidInput, r"^A sentence\.$"),
        (
            3,
            InvalidInput,
            r"with ZeroDivisionError \(test_outcomes.py, line \d+\); start the release again to go on\.$",
        ),
        (4, InvalidInput, r"with MemoryError .*more memory"),
    ],
)
def test_errors_are_values(number: int, kind: type[Exception], sentence: str) -> None:
    """An error becomes plain values, which hold our own sentence or the class and line of another error."""
    outcome = run_block(TASK, number)
    assert (outcome.number, outcome.size, outcome.digest) == (number, 0, "")
    assert TEXT not in repr(outcome)
    with pytest.raises(kind, match=sentence):
        outcome.read_facts()


def test_interrupt_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that stops a worker is obeyed."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reports, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_block(TASK, 0)


def test_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner takes places, also as other integer types, and says that a worker has no package."""
    monkeypatch.setattr(pickle, "loads", lambda _: TASK)  # a class of a test has no name that can be imported
    monkeypatch.setattr(pickle, "dumps", lambda _: b"")
    run_places = make_runner(TASK, [7, 0, 0])
    assert run_places([1, 2]) == {
        "number": [0, 0],
        "size": [10, 10],
        "digest": ["00", "00"],
        "error": ["", ""],
        "sentence": ["", ""],
    }
    monkeypatch.setitem(sys.modules, "scoreshield.distributed.engines.outcomes", None)
    columns = run_places([0])
    assert columns["error"] == ["ImportError"]
    with pytest.raises(InvalidInput, match="cannot import scoreshield: install the same version on every worker"):
        Outcome(**{name: values[0] for name, values in columns.items()}).read_facts()


class Nowhere(FolderEngine):
    """An engine without workers."""

    name = "nowhere"

    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        del task, numbers
        yield from ()


def test_other_machines_need_folder(tmp_path: Path) -> None:
    """Without a folder for the key, all workers must be on this machine."""
    with pytest.raises(InvalidInput, match="name a folder for the key"):
        Nowhere(None, is_local=False)
    with Nowhere(tmp_path / "keys", is_local=False).share_key(RELEASE, bytes(32)) as handle:
        assert Path(handle.folder) == (tmp_path / "keys").resolve()


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder on this machine is private, the same for each driver, and empty after a release."""
    monkeypatch.setattr(outcomes, "_MEMORY", tmp_path)
    engine = Nowhere(None, is_local=True)
    with engine.share_key(RELEASE, bytes(32)) as handle:
        folder = Path(handle.folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / handle.name).stat().st_mode & 0o777 == 0o600
        assert folder == find_local_folder()
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(outcomes, "_MEMORY", tmp_path / "missing")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert find_local_folder().parent == tmp_path / "temporary"


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder or a link that somebody else put in the place is not used."""
    monkeypatch.setattr(outcomes, "_MEMORY", tmp_path)
    folder = find_local_folder()
    folder.rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(InvalidInput, match="belongs to another user"):
        find_local_folder()
    folder.unlink()
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    folder.rename(tmp_path / f"scoreshield-keys-{os.getuid()}")
    with pytest.raises(InvalidInput, match="belongs to another user"):
        find_local_folder()


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_folders_are_checked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine checks its folder of keys when it is opened, because nothing is charged then."""
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="Others may read the folder of keys"):
        choose_engine("local", key_folder=tmp_path / "open")
    with pytest.raises(FileError, match=r"Cannot make the folder of keys .*file: File exists"):
        choose_engine("local", key_folder=tmp_path / "file")
    monkeypatch.setattr(outcomes, "_MEMORY", tmp_path)
    (tmp_path / f"scoreshield-keys-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(InvalidInput, match="Others may read the folder of keys"):
        Nowhere(None, is_local=True)


@pytest.mark.parametrize(("name", "package"), [("spark", "pyspark"), ("ray", "ray")])
def test_missing_package(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package of an engine, the error names the extra."""
    module = f"scoreshield.distributed.engines.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for loaded in [package, *(key for key in sys.modules if key.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, loaded, None)
    with pytest.raises(InvalidInput, match=rf"is not installed: pip install 'scoreshield\[{name}\]'"):
        choose_engine(name)
    with pytest.raises(InvalidInput):
        importlib.import_module(module)
