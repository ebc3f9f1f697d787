"""A run goes on after a kill, refuses other settings, and loses nothing."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import find_rows

import scoreshield as ss
from scoreshield._files import read_json_lines
from scoreshield.bench.experiments import EXPERIMENTS, run_experiment, runner, table
from scoreshield.bench.experiments.cells import COLUMNS, ExperimentCell

NOISE = EXPERIMENTS["noise"]
SMALL = {"epsilon": [1, 10], "mechanism": ["gaussian", "laplace"], "repeats": 2, "options": {"draws": 200}}


def small(**changes: Any) -> Any:
    return NOISE.make_grid(SMALL | changes)


def test_a_run_writes_tables_that_read_back(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    rows = run_experiment(NOISE, small(), tmp_path / "run", progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, 8)
    assert calls[-1] == (8, 8)
    assert len(rows) == 8 * 4
    read = table.read_results(tmp_path / "run" / "results.csv")
    assert read == json.loads(json.dumps(rows))  # the same numbers, to the last bit
    assert set(COLUMNS) <= set(read[0])
    import pyarrow.parquet as parquet

    stored = parquet.read_table(tmp_path / "run" / "results.parquet").to_pylist()
    assert [row["value"] for row in stored] == [row["value"] for row in rows]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["numpy"]


def test_every_row_carries_exact_guarantee(tmp_path: Path) -> None:
    """Every row carries its exact guarantee."""
    for row in run_experiment(NOISE, small(), tmp_path / "run"):
        guarantee = ss.Guarantee.from_dict(json.loads(row["guarantee"]))
        assert guarantee.epsilon == row["epsilon"]
        assert row["true_epsilon"] == pytest.approx(row["epsilon"], rel=1e-9)
        assert row["attack_advantage"] == guarantee.attack_advantage
        assert row["scoreshield"] == ss.__version__


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run_experiment(NOISE, small(), tmp_path / "run")
    again = run_experiment(NOISE, small(), tmp_path / "run")
    assert again == json.loads(json.dumps(first))  # timings included: nothing was measured anew


def test_a_line_cut_short_is_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run_experiment(NOISE, small(), folder)
    lines = (folder / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "cells.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    again = run_experiment(NOISE, small(), folder)
    assert len(again) == len(first)
    kept = {json.loads(line)["cell"] for line in lines[:3]}
    cells = NOISE.list_cells(small())
    for place, cell in enumerate(cells):
        same = again[4 * place : 4 * place + 4] == json.loads(json.dumps(first[4 * place : 4 * place + 4]))
        assert same or cell.key not in kept
    assert all(json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines())


def test_damage_before_the_end_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_experiment(NOISE, small(), folder)
    content = (folder / "cells.jsonl").read_bytes()
    (folder / "cells.jsonl").write_bytes(b"{broken}\n" + content)
    with pytest.raises(ss.InvalidInput, match="damaged before its end"):
        run_experiment(NOISE, small(), folder)
    assert (folder / "cells.jsonl").read_bytes() == b"{broken}\n" + content


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"epsilon": [1, 11]}, "epsilon"), ({"seed": 2}, "seed"), ({"options": {"draws": 201}}, "options.draws")],
)
def test_folder_other_settings_rejected_left(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    """A folder of other settings is rejected and left alone."""
    folder = tmp_path / "run"
    run_experiment(NOISE, small(), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ss.InvalidInput, match=rf"other settings \(grid\.{name}\)"):
        run_experiment(NOISE, small(**changes), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_folder_another_version_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another version is rejected."""
    run_experiment(NOISE, small(), tmp_path / "run")
    monkeypatch.setattr(runner, "version", lambda _: "99.0")
    with pytest.raises(ss.InvalidInput, match=rf"other settings \(version {re.escape(ss.__version__)}, not 99.0\)"):
        run_experiment(NOISE, small(), tmp_path / "run")


def test_run_read_again_keeps_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is read again keeps where it was made."""
    folder = tmp_path / "run"
    run_experiment(NOISE, small(), folder)
    before = (folder / "environment.json").read_bytes()
    monkeypatch.setattr(runner, "describe_environment", lambda: pytest.fail("nothing is run here"))
    run_experiment(NOISE, small(), folder)
    assert (folder / "environment.json").read_bytes() == before
    # Half of it was made elsewhere: both places are named.
    lines = (folder / "cells.jsonl").read_text().splitlines()
    elsewhere = [
        line.replace(f'"processor":"{json.loads(before)["processor"]}"', '"processor":"abacus"') for line in lines
    ]
    (folder / "cells.jsonl").write_text("\n".join([*lines[:4], *elsewhere[4:]]) + "\n")
    run_experiment(NOISE, small(), folder)
    found = json.loads((folder / "environment.json").read_text())
    assert found["processor"] == f"{json.loads(before)['processor']}; abacus"
    assert found["cores"] == json.loads(before)["cores"]


def test_only_seed_makes_again(tmp_path: Path) -> None:
    """Only what a seed makes again has one."""
    rows = run_experiment(NOISE, small(mechanism=["gaussian", "float gaussian"]), tmp_path / "run")
    assert {row["seed"] is None for row in find_rows(rows, method="gaussian")} == {True}
    assert {row["seed"] is None for row in find_rows(rows, method="float gaussian")} == {False}
    assert table.read_results(tmp_path / "run" / "results.csv") == rows


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1, 2]", b"3", b"[" * 100_000])
def test_damaged_settings_are_named(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "run"
    run_experiment(NOISE, small(), folder)
    (folder / "settings.json").write_bytes(content)
    with pytest.raises(ss.InvalidInput, match=r"its settings\.json cannot be read"):
        run_experiment(NOISE, small(), folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line | {"rows": 3},
        lambda line: line | {"rows": [3]},
        lambda line: line | {"cell": None},
        lambda line: {"rows": line["rows"]},
        lambda line: line | {"rows": [{k: v for k, v in line["rows"][0].items() if k != "method"}]},
        lambda line: line | {"rows": [{k: v for k, v in line["rows"][0].items() if k != "numpy"}]},
        lambda line: line | {"rows": [line["rows"][0] | {"value": "much"}]},
        lambda line: line | {"rows": [line["rows"][0] | {"n": 1.5}]},
        lambda line: [line],
    ],
)
def test_damaged_cells_named_left_alone(tmp_path: Path, damage: Callable[[dict[str, Any]], Any]) -> None:
    """Damaged cells are named and left alone."""
    folder = tmp_path / "run"
    run_experiment(NOISE, small(), folder)
    first, *others = (folder / "cells.jsonl").read_text().splitlines(keepends=True)
    content = json.dumps(damage(json.loads(first))) + "\n" + "".join(others)
    (folder / "cells.jsonl").write_text(content)
    with pytest.raises(ss.InvalidInput, match=r"cells\.jsonl is damaged"):
        run_experiment(NOISE, small(), folder)
    assert (folder / "cells.jsonl").read_text() == content


def test_killed_write_left_no_stranger(tmp_path: Path) -> None:
    """What a killed write left is no stranger."""
    (tmp_path / ".settings.json.0123456789abcdef.part").write_text("{")
    (tmp_path / ".lock").touch()
    assert run_experiment(NOISE, small(), tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.part").write_text("not hidden: somebody's")
    with pytest.raises(ss.InvalidInput, match="holds other files"):
        run_experiment(NOISE, small(), other)


def test_folder_something_else_rejected(tmp_path: Path) -> None:
    """A folder of something else is rejected."""
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ss.InvalidInput, match="holds other files and no run"):
        run_experiment(NOISE, small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_settings_cannot_read_rejected(tmp_path: Path) -> None:
    """Settings that cannot be read are rejected."""
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ss.InvalidInput, match=r"its settings\.json cannot be read"):
        run_experiment(NOISE, small(), tmp_path)


def test_other_data_same_place_rejected(tmp_path: Path, shared_data: Path) -> None:
    """Other data in the same place is rejected."""
    experiment = EXPERIMENTS["dp-fr"]
    grid = experiment.make_grid({"datasets": ["lfw/mobileface"], "epsilon": [1], "advantage": [], "mechanism": [],
                            "delta": [1e-4], "repeats": 1})  # fmt: skip
    data = tmp_path / "data"
    data.mkdir()
    (data / "lfw_scores.npz").write_bytes((shared_data / "lfw_scores.npz").read_bytes())
    run_experiment(experiment, grid, tmp_path / "run", data_dir=data, workers=1)
    with (data / "lfw_scores.npz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ss.InvalidInput, match=r"other settings \(data\.lfw_scores\.npz\)"):
        run_experiment(experiment, grid, tmp_path / "run", data_dir=data, workers=1)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "run"
    folder.mkdir()
    with (folder / ".lock").open("ab") as held:  # from before the settings are written
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ss.InvalidInput, match="Another run is writing"):
            run_experiment(NOISE, small(), folder)
        assert [path.name for path in folder.iterdir()] == [".lock"]
    run_experiment(NOISE, small(), folder)


def test_an_empty_grid_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match="holds no cell"):
        run_experiment(NOISE, small(mechanism=[]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """Real processes, killed without warning while cells are being measured."""
    folder = tmp_path / "run"
    driver = (
        "from pathlib import Path\n"
        "from scoreshield.bench.experiments import EXPERIMENTS, run_experiment\n"
        "if __name__ == '__main__':\n"
        "    e = EXPERIMENTS['noise']\n"
        "    g = e.make_grid({'repeats': 40, 'mechanism': ['gaussian'], 'options': {'draws': 20000}})\n"
        f"    run_experiment(e, g, Path({str(folder)!r}))\n"
    )
    script = tmp_path / "driver.py"
    script.write_text(driver)
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(read_json_lines(folder / "cells.jsonl")) < 3:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = read_json_lines(folder / "cells.jsonl")
    grid = NOISE.make_grid({"repeats": 40, "mechanism": ["gaussian"], "options": {"draws": 20000}})
    assert 3 <= len(done) < len(NOISE.list_cells(grid))
    assert not (folder / "results.csv").exists()
    rows = run_experiment(NOISE, grid, folder)
    assert len(rows) == 4 * len(NOISE.list_cells(grid))
    kept = {line["cell"]: line["rows"] for line in done}
    found = {cell.key: rows[4 * place : 4 * place + 4] for place, cell in enumerate(NOISE.list_cells(grid))}
    assert all(found[key] == value for key, value in kept.items())


def test_parallel_and_single_runs_agree(tmp_path: Path, shared_data: Path) -> None:
    experiment = EXPERIMENTS["gram-vision"]
    changes = {"datasets": ["cifar10/32"], "epsilon": [10], "delta": [1e-5], "adjacency": [1, "record"],
               "projection": ["none", "exact", "sure"], "advantage": [0.9], "repeats": 2}  # fmt: skip
    grid = experiment.make_grid(changes)
    one = run_experiment(experiment, grid, tmp_path / "one", data_dir=shared_data, workers=1)
    two = run_experiment(experiment, grid, tmp_path / "two", data_dir=shared_data, workers=2)
    timeless = [[{k: v for k, v in row.items() if k != "seconds"} for row in rows] for rows in (one, two)]
    assert timeless[0] == timeless[1]


def test_missing_data_is_one_sentence(tmp_path: Path) -> None:
    for name in ("dp-fr", "dp-rag", "gram-sts", "gram-movielens", "gram-vision"):
        experiment = EXPERIMENTS[name]
        with pytest.raises(ss.InvalidInput, match="--data-dir"):
            run_experiment(experiment, experiment.make_grid(quick=True), tmp_path / name)
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ss.FileError, match="There is no file"):
            run_experiment(experiment, experiment.make_grid(quick=True), tmp_path / name, data_dir=tmp_path / "empty")
        assert not (tmp_path / name).exists()  # so that the next run is not refused


def test_seed_belongs_noise_not_projection() -> None:
    """A seed belongs to the noise and not to the projection."""
    one = ExperimentCell("x", "contract", "gaussian", "exact", 1.0, 5.0, 1e-5, repeat=1)
    assert one.seed(1) == ExperimentCell("x", "contract", "gaussian", "sure", 1.0, 5.0, 1e-5, repeat=1).seed(1)
    assert one.seed(1) != one.seed(2)
    assert one.seed(1) != ExperimentCell("x", "contract", "gaussian", "exact", 1.0, 5.0, 1e-5, repeat=2).seed(1)
    assert one.sample_seed(1) == ExperimentCell("x", "clean", repeat=1).sample_seed(1)


def test_tables_not_whole_rejected(tmp_path: Path) -> None:
    """Tables that are not whole are rejected."""
    run_experiment(NOISE, small(), tmp_path / "run")
    text = (tmp_path / "run" / "results.csv").read_text()
    for name, content, words in (
        ("short.csv", text[: len(text) // 2], "not a whole results table|lacks"),
        ("other.csv", "a,b\n1,2\n", "lacks the column 'experiment'"),
        ("bytes.csv", "\x00\x00", "lacks the column|not a whole"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ss.InvalidInput, match=words):
            table.read_results(tmp_path / name)
    with pytest.raises(ss.FileError, match="There is no file"):
        table.read_results(tmp_path / "none.csv")


def test_gaps_stay_gaps(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [dict.fromkeys(COLUMNS) | {"value": None, "experiment": "x", "n": 3}]
    table.write_results(tmp_path, rows)
    (found,) = table.read_results(tmp_path / "results.csv")
    assert found["value"] is None
    assert found["n"] == 3
    assert not any(isinstance(value, float) and math.isnan(value) for value in found.values())
