"""`scoreshield bench` and `report results` as people type them: one line for what is wrong, nothing overwritten."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GRID = "epsilon: [1, 10]\nmechanism: [gaussian, laplace]\nrepeats: 1\noptions: {draws: 200}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "grid.yaml").write_text(GRID)
    return tmp_path


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scoreshield.cli", *arguments], capture_output=True, text=True, cwd=folder, check=False
    )


def test_a_run_a_table_a_picture_and_a_page(folder: Path) -> None:
    done = bench(folder, "bench", "noise", "--grid", "grid.yaml")
    assert done.returncode == 0, done.stderr
    assert "16 values in runs/noise/results.csv, each with its guarantee." in done.stdout
    assert (folder / "runs" / "noise" / "figures" / "noise-std.png").is_file()
    page = bench(folder, "report", "results", "--json")
    assert page.returncode == 0, page.stderr
    assert json.loads(page.stdout)["sections"] == 2
    assert (folder / "results.md").is_file()
    assert (folder / "results.html").is_file()
    assert (folder / "images" / "results" / "noise-std.png").is_file()


def test_scope_said_every_result_retrieval(folder: Path, shared_data: Path) -> None:
    """The scope is said with every result of retrieval."""
    (folder / "one.yaml").write_text(
        "datasets: [frames]\nepsilon: [20]\nadvantage: []\nmechanism: [staircase]\nrepeats: 1\noptions: {queries: 2}\n"
    )
    asked = ("bench", "dp-rag", "--grid", "one.yaml", "--data-dir", str(shared_data), "--out", "rag")
    said = bench(folder, *asked)
    assert said.returncode == 0, said.stderr
    assert "does not cover the texts of retrieved records" in said.stdout
    assert "does not cover the texts" in json.loads(bench(folder, *asked, "--json").stdout)["scope"]


def test_json_for_machines(folder: Path) -> None:
    done = bench(folder, "bench", "noise", "--grid", "grid.yaml", "--out", "here", "--json")
    told = json.loads(done.stdout)
    assert told["rows"] == 16
    assert told["folder"] == "here"
    assert done.stderr == ""


def test_the_grid_can_be_seen_and_given_back(folder: Path) -> None:
    shown = bench(folder, "bench", "dp-rag", "--quick", "--show-grid")
    assert shown.returncode == 0
    (folder / "mine.yaml").write_text(shown.stdout)
    again = bench(folder, "bench", "dp-rag", "--grid", "mine.yaml", "--show-grid")
    assert again.stdout == shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "dp-frr"], "There is no experiment 'dp-frr'"),
        (["bench", "noise", "--grid", "none.yaml"], "There is no file none.yaml"),
        (["bench", "noise", "--grid", "typo.yaml"], "unknown setting 'epsilonn'; did you mean 'epsilon'?"),
        (["bench", "noise", "--grid", "metric.yaml"], "unknown metric 'speeed'"),
        (["bench", "gram-sts", "--quick"], "say where with --data-dir"),
        (["bench", "gram-sts", "--quick", "--data-dir", "."], "There is no file stsb_test.csv in ."),
        (["bench", "noise", "--workers", "0"], "workers"),
        (["bench", "runtime", "--grid", "device.yaml"], "device must be cpu, torch"),
        (["bench", "dp-fr", "--grid", "advantage.yaml"], "advantage must be above the first delta, 0.5"),
        (["report", "results", "--runs", "nowhere"], "There is no finished run under nowhere"),
    ],
)
def test_bad_input_line_leaves_nothing(folder: Path, arguments: list[str], words: str) -> None:
    """Bad input is one line and leaves nothing."""
    (folder / "typo.yaml").write_text("epsilonn: [1]\n")
    (folder / "metric.yaml").write_text("metrics: [speeed]\n")
    (folder / "device.yaml").write_text("options: {device: gpu}\n")
    (folder / "advantage.yaml").write_text("delta: [0.5]\nadvantage: [0.05]\n")
    before = sorted(path.name for path in folder.iterdir())
    done = bench(folder, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    made = sorted(path.name for path in folder.iterdir())
    assert made == before


def test_run_nothing_can_drawn_run(folder: Path) -> None:
    """A run of which nothing can be drawn is a run."""
    (folder / "leak.yaml").write_text(GRID + "metrics: [low-bit leak]\n")
    done = bench(folder, "bench", "noise", "--grid", "leak.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["Nothing of this run can be drawn."]
    again = bench(folder, "bench", "noise", "--grid", "leak.yaml", "--json")
    assert json.loads(again.stdout)["figures"] == json.loads(again.stdout)["left_out"] == []


def test_other_settings_rejected_run_left(folder: Path) -> None:
    """Other settings are rejected and the run is left alone."""
    assert bench(folder, "bench", "noise", "--grid", "grid.yaml").returncode == 0
    before = (folder / "runs" / "noise" / "results.csv").read_bytes()
    done = bench(folder, "bench", "noise", "--quick")
    assert done.returncode == 2
    assert "was begun with other settings (grid.epsilon)" in done.stderr
    assert (folder / "runs" / "noise" / "results.csv").read_bytes() == before


def test_a_damaged_table_is_one_line(folder: Path) -> None:
    assert bench(folder, "bench", "noise", "--grid", "grid.yaml").returncode == 0
    path = folder / "runs" / "noise" / "results.csv"
    path.write_bytes(path.read_bytes()[:-200])
    done = bench(folder, "report", "results")
    assert done.returncode == 2
    assert "is not a whole results table" in done.stderr
    assert not (folder / "results.md").exists()


def test_ctrl_c_keeps_what_is_done(folder: Path) -> None:
    (folder / "long.yaml").write_text("repeats: 200\noptions: {draws: 20000}\n")
    driver = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from scoreshield import cli\nif __name__ == '__main__': cli.main()\n"
    )
    (folder / "driver.py").write_text(driver)
    process = subprocess.Popen(
        [sys.executable, "driver.py", "bench", "noise", "--grid", "long.yaml"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    cells = folder / "runs" / "noise" / "cells.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (cells.exists() and cells.read_bytes().count(b"\n") >= 3):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "scoreshield: Interrupted; no file was left half-written.\n"
    kept = cells.read_bytes()
    assert kept.count(b"\n") >= 3
    assert kept.endswith(b"\n")
    assert not (folder / "runs" / "noise" / "results.csv").exists()
