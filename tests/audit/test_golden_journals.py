"""Folders of audits that an earlier version began: they are resumed, and mean what they meant then."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield import cli
from scoreshield.audit import journal
from scoreshield.audit.encoding import Failure, take_apart, to_numbers
from scoreshield.audit.result import AuditResult
from scoreshield.errors import InvalidInput

GOLDEN = Path(__file__).parent / "golden"
ROWS, OTHER_ROWS = np.eye(3, 4, dtype=np.float32), np.ones((3, 4), dtype=np.float32)
SETTINGS = {"target": "a:b", "epsilon": 1.0}
SECRET = "https://host.example/scores?key=s3cr3t"
ARGUMENTS = ["audit", "golden_target:release", "--epsilon", "1", "--adjacency", "replace", "--releases", "200"]


@dataclass
class Hit:
    """An output of a class that a journal does not know."""

    id: str
    score: Decimal


def make_outputs(name: str) -> list[Any]:
    """Make the outputs that a golden folder holds again."""
    small, large = np.random.default_rng(1), np.random.default_rng(2).standard_normal((10, 10))
    return {
        "outputs": [
            small.standard_normal((3, 3)),
            small.standard_normal(9).astype(np.float32),
            np.arange(9),
            np.arange(9) % 2 == 0,
        ],
        "large": [large, large.astype(np.float32), large + large.T],
    }[name]


def make_other_outputs() -> list[Any]:
    """Make the outputs of other kinds that a golden folder holds again."""
    return [
        [{"id": "a", "score": 0.5}, {"id": "b", "score": math.nan}],
        "0.25 of 3 records",
        ("high", 1.5, None, True, 10**30),
        {"ids": {3, 1}, "scores": np.array([1.0, np.inf])},
        Failure("ValueError", "row 3 is not a unit vector"),
        [0.1 * number for number in range(70)],
        np.array(["a", None, 2], dtype=object),
        {"count": np.float32(0.1), "hit": Hit("a", Decimal("2.5"))},
        None,
        np.array([1.0, np.nan, -np.inf]),
    ]


def fail(_: np.ndarray) -> Any:
    raise AssertionError("a release of the journal was drawn again")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with copies of the golden ones and the target."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(entry for entry in sys.path if entry)])
    yield tmp_path
    sys.modules.pop("golden_target", None)


def run_command(*arguments: str) -> int:
    """Run the command line, and return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["scoreshield", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("folder")
def test_command_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line resumes an audit of an earlier version, and uses its outputs of the same collections."""
    import golden_target

    golden_target.calls = 300
    assert run_command(*ARGUMENTS, "--confidence", "0.95", "--out", "stopped", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["facts"]["Resumed"].startswith("300 releases were there before; the audit was begun at 2026-11-16 ")
    assert shown["broken"] is True
    drawn = golden_target.calls - 300
    assert shown["calls"] - drawn > 50  # the others were there before
    assert len(Path("stopped", journal.RELEASES).read_bytes().splitlines()) == 300 + drawn


def test_other_confidence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default confidence is another one today: then it is another audit."""
    before = (folder / "stopped" / journal.RELEASES).read_bytes()
    assert run_command(*ARGUMENTS, "--out", "stopped") == 2
    assert "was begun with other settings (confidence); name another folder" in capsys.readouterr().err
    assert run_command(*ARGUMENTS, "--confidence", "0.95", "--rows", "unit", "--out", "stopped") == 2
    assert "was begun with other settings (rows)" in capsys.readouterr().err
    assert (folder / "stopped" / journal.RELEASES).read_bytes() == before


def test_old_result_loads(folder: Path) -> None:
    """A result of an earlier version is read with its numbers and its verdict."""
    whole = json.loads((folder / "result.json").read_text())
    result = AuditResult.from_dict(whole | {"seconds": 0.0})
    assert result.broken
    assert not result.broken_by_rows
    assert result.epsilon_lower == whole["epsilon_lower"]
    assert [check.name for check in result.checks] == [check["name"] for check in whole["checks"]]
    assert result.verdict.startswith("The claim is broken: at 95 % confidence the true epsilon is at least ")


@pytest.mark.parametrize(("name", "repeated"), [("outputs", 3), ("large", 0)])
def test_arrays_load(folder: Path, name: str, repeated: int) -> None:
    """Every array of an old journal is restored bit for bit; the line that was cut short is removed."""
    before = (folder / name / journal.RELEASES).read_bytes()
    with journal.open_journal(folder / name, SETTINGS, lambda: 99, secret=SECRET) as (kept, releases):
        release = kept.record(fail)
        assert (releases, kept.requests_repeated) == (7, repeated)
        assert kept.releases_before == len(make_outputs(name))
        for number, output in enumerate(make_outputs(name)):
            restored = release(ROWS if number % 2 == 0 else OTHER_ROWS)
            assert restored.shape == output.shape
            assert np.array_equal(restored, output)
    assert (folder / name / journal.RELEASES).read_bytes() == before[: before.rfind(b"\n") + 1]


def test_other_outputs_load(folder: Path) -> None:
    """Outputs of all kinds of an old journal read as they did when they were made."""
    with journal.open_journal(folder / "others", SETTINGS, lambda: 99, secret=SECRET) as (kept, _):
        release = kept.record(fail)
        for number, output in enumerate(make_other_outputs()):
            restored = release(ROWS if number % 2 == 0 else OTHER_ROWS)
            for records in (1, 3):
                assert repr(take_apart(restored, records)) == repr(take_apart(output, records))
            assert repr(to_numbers(restored)) == repr(to_numbers(output))


def test_releases_and_sets_load(folder: Path) -> None:
    """The numbers of old ScoreShield releases are used after one fresh call, and sets are restored."""
    fresh = [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])]  # one for each collection
    numbers = [1.4885734617710114, 1.4694011509418488, 7.470172017812729]
    with journal.open_journal(folder / "guaranteed", SETTINGS, lambda: 99, secret=SECRET) as (kept, _):
        assert kept.releases_before == 4
        release = kept.record(lambda _: fresh.pop(0))
        assert release(ROWS).tolist() == [1, 2, 3]
        assert release(ROWS).tolist() == numbers
        assert release(OTHER_ROWS).tolist() == [4, 5, 6]
        assert release(OTHER_ROWS) == {0, 2}


def test_other_settings(folder: Path) -> None:
    """An old folder with other settings, or another secret, is left as it is."""
    before = {path.name: path.read_bytes() for path in (folder / "outputs").iterdir()}
    for settings, secret, words in (
        (SETTINGS | {"epsilon": 2.0}, SECRET, r"other settings \(epsilon\)"),
        (SETTINGS, "https://host.example/scores?key=other", r"other settings \(what follows the address\)"),
    ):
        with (
            pytest.raises(InvalidInput, match=words),
            journal.open_journal(folder / "outputs", settings, lambda: 99, secret=secret),
        ):
            pass
    (folder / "outputs" / journal.LOCK).unlink(missing_ok=True)
    assert {path.name: path.read_bytes() for path in (folder / "outputs").iterdir()} == before
