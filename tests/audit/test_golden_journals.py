"""Folders of audits that an earlier version began: they are resumed, and mean what they meant then."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield import cli
from scoreshield.audit import journal
from scoreshield.audit.result import AuditResult
from scoreshield.errors import InvalidInput

GOLDEN = Path(__file__).parent / "golden"
ROWS, OTHER_ROWS = np.eye(3, 4, dtype=np.float32), np.ones((3, 4), dtype=np.float32)
SETTINGS = {"target": "a:b", "epsilon": 1.0}
SECRET = "https://host.example/scores?key=s3cr3t"
ARGUMENTS = ["audit", "golden_target:release", "--epsilon", "1", "--adjacency", "replace", "--releases", "200"]


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


def drop_words(result: dict[str, Any]) -> dict[str, Any]:
    """Keep the numbers of a result, and which checks passed: later versions may use other words."""
    words = ("assuming", "facts", "files", "neighbours", "seconds", "statistic", "verdict")
    checks = [(check["name"], check["passed"]) for check in result["checks"]]
    return {name: value for name, value in result.items() if name not in words} | {"checks": checks}


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


def test_command_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line resumes an audit of an earlier version, and ends as if it had never been stopped."""
    import golden_target

    golden_target.calls = 300
    monkeypatch.setattr(sys, "argv", ["scoreshield", *ARGUMENTS, "--out", "stopped", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["facts"]["Resumed"].startswith("300 releases were there before; the audit was begun at 2026-11-16 ")
    whole = json.loads((folder / "result.json").read_text())
    assert AuditResult.from_dict(whole | {"seconds": 0.0}).broken
    assert drop_words(shown) == drop_words(whole)


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
