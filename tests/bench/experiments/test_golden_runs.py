"""A run folder written before the packages were rearranged is resumed and read with the same meaning."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scoreshield.cli", *arguments], capture_output=True, text=True, cwd=folder, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "noise", tmp_path / "noise")
    shutil.copy(GOLDEN / "noise.yaml", tmp_path)
    return tmp_path


def read_cells(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "noise" / "cells.jsonl").read_text().splitlines()]


def test_complete_run(folder: Path) -> None:
    """A run that was complete computes nothing again, and its table holds the same values."""
    before = read_cells(folder)
    done = run_command(folder, "bench", "noise", "--grid", "noise.yaml", "--out", "noise")
    assert done.returncode == 0, done.stderr
    assert read_cells(folder) == before
    with (GOLDEN / "noise" / "results.csv").open() as old, (folder / "noise" / "results.csv").open() as new:
        assert list(csv.DictReader(new)) == list(csv.DictReader(old))


def test_interrupted_run(folder: Path) -> None:
    """A run that stopped before its last cell computes that cell alone."""
    before = read_cells(folder)
    lines = (folder / "noise" / "cells.jsonl").read_text().splitlines(keepends=True)
    (folder / "noise" / "cells.jsonl").write_text("".join(lines[:-1]))
    done = run_command(folder, "bench", "noise", "--grid", "noise.yaml", "--out", "noise")
    assert done.returncode == 0, done.stderr
    after = read_cells(folder)
    assert after[:-1] == before[:-1]
    assert (len(after), after[-1]["cell"]) == (len(before), before[-1]["cell"])


def test_other_settings(folder: Path) -> None:
    """A run with other settings does not touch the folder."""
    before = read_cells(folder)
    (folder / "other.yaml").write_text("epsilon: [2.0]\nrepeats: 1\noptions: {draws: 1000}\n")
    done = run_command(folder, "bench", "noise", "--grid", "other.yaml", "--out", "noise")
    assert done.returncode == 2
    assert "other settings" in done.stderr
    assert read_cells(folder) == before


def test_results_page(folder: Path) -> None:
    """The results page reads the run's table."""
    (folder / "runs").mkdir()
    shutil.move(folder / "noise", folder / "runs" / "noise")
    done = run_command(folder, "report", "results", "--runs", "runs", "--json")
    assert done.returncode == 0, done.stderr
    assert (folder / "results.md").is_file()
