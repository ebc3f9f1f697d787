"""Runs the cells of a grid over several cores, each recorded as soon as it is done, so that a killed run goes on.

A run folder holds ``settings.json`` (the version, the grid, and the checksums of the data), ``cells.jsonl`` (one line
per finished cell, appended and brought to disk), and, at the end, ``results.csv``, ``results.parquet`` and
``environment.json``, which says where the cells were run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield._files import RunFolder
from scoreshield.bench.experiments import table
from scoreshield.bench.experiments.cells import Experiment, ExperimentCell, make_rows
from scoreshield.bench.experiments.custom_laws import hash_custom_laws
from scoreshield.bench.experiments.grid import Grid
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.geometry.arrays import Progress

SETTINGS, CELLS, ENVIRONMENT = RunFolder.SETTINGS, "cells.jsonl", "environment.json"
#: What a run writes into its folder, pictures apart.
FILES = (SETTINGS, CELLS, ENVIRONMENT, RunFolder.LOCK, "results.csv", "results.parquet")
#: Libraries of linear algebra start as many threads as there are cores; here each process, timed ones too, gets one.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_experiment(
    experiment: Experiment,
    grid: Grid,
    out: Path,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[table.Row]:
    """Run what is not done yet, and write the tables.

    Args:
        out: The run folder, made if it is not there; a run that was stopped goes on where it was.
        data_dir: The folder of the compact data sets.
        workers: Processes; as many as there are cores by default, and one for what is timed.
        progress: Called with (cells done, cells in all).
    """
    cells = experiment.list_cells(grid)
    if not cells:
        raise InvalidInput(f"The grid of {experiment.name} holds no cell: give it data sets, mechanisms and budgets.")
    settings = {"version": version("scoreshield"), "grid": grid.to_dict()}
    settings["data"] = _compute_checksums(experiment, data_dir)
    if laws := hash_custom_laws(experiment.laws, grid):
        settings["laws"] = laws
    if not (out / SETTINGS).exists():
        experiment.load(grid, data_dir)  # missing data is one sentence, before anything is written
    with RunFolder(out).lock() as folder:
        folder.start_or_resume(settings)
        done = {line["cell"]: line["rows"] for line in _read_cells(folder)}
        todo = [cell for cell in cells if cell.key not in done]
        if progress is not None:
            progress(len(cells) - len(todo), len(cells))
        for cell, rows in _run_cells(experiment, grid, data_dir, todo, workers):
            folder.append_line(CELLS, {"cell": cell.key, "rows": rows})
            done[cell.key] = rows
            if progress is not None:
                progress(len(done), len(cells))
        results = [row for cell in cells for row in done[cell.key]]
        folder.write({ENVIRONMENT: json.dumps(_collect_environments(results), indent=2).encode()})
        table.write_results(out, results)
    return results


def describe_environment() -> dict[str, Any]:
    """Describe where a run is made, as columns of its table."""
    return {
        "scoreshield": version("scoreshield"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "machine": platform.system() + " " + platform.machine(),
        "processor": _name_processor(),
        "cores": os.cpu_count() or 1,
    }


def _collect_environments(results: Sequence[table.Row]) -> dict[str, Any]:
    """Collect where the rows were made, by column; a run that went on elsewhere has several values of one."""
    found = {name: list(dict.fromkeys(row[name] for row in results)) for name in table.ENVIRONMENT}
    return {name: values[0] if len(values) == 1 else "; ".join(map(str, values)) for name, values in found.items()}


def _name_processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _compute_checksums(experiment: Experiment, data_dir: Path | None) -> dict[str, str]:
    """Compute checksums of the files that the experiment reads; its loader reports those that are missing."""
    if data_dir is None:
        return {}
    found = {}
    for name in experiment.files:
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(_loading.read_bytes(data_dir / name)).hexdigest()
    return found


def _read_cells(folder: RunFolder) -> list[dict[str, Any]]:
    """Read the cells that were recorded."""
    lines = folder.read_lines(CELLS)
    if not all(_is_line(line) for line in lines):
        raise InvalidInput(
            f"{folder.path / CELLS} is damaged: a line holds no rows of a table; move the run folder away."
        )
    return lines


def _is_line(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and isinstance(line.get("cell"), str)
        and isinstance(line.get("rows"), list)
        and all(table.is_row(row) for row in line["rows"])
    )


# ---- The processes.

_shared: dict[str, Any] = {}


def _run_cells(
    experiment: Experiment, grid: Grid, data_dir: Path | None, cells: Sequence[ExperimentCell], workers: int | None
) -> Iterator[tuple[ExperimentCell, list[table.Row]]]:
    """Run cells in processes, and yield each with its rows when it is done."""
    if not cells:
        return
    count = 1 if experiment.serial else min(workers or os.cpu_count() or 1, len(cells))
    with _limit_threads():
        pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(experiment, grid, data_dir)
        )
        try:
            yield from _drain(pool, list(cells), 1 if experiment.serial else 2 * count)
        except BrokenProcessPool:
            raise ScoreShieldError(
                "A process of the run was killed, perhaps because memory ran out; what is done is kept. Run it again, "
                "with fewer --workers."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _drain(
    pool: ProcessPoolExecutor, cells: list[ExperimentCell], ahead: int
) -> Iterator[tuple[ExperimentCell, list[table.Row]]]:
    waiting: dict[Future[list[table.Row]], ExperimentCell] = {}
    queue = iter(cells)
    while True:
        while len(waiting) < ahead and (cell := next(queue, None)) is not None:
            waiting[pool.submit(_work, cell)] = cell
        if not waiting:
            return
        finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in finished:
            yield waiting.pop(future), future.result()


@contextlib.contextmanager
def _limit_threads() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _prepare(experiment: Experiment, grid: Grid, data_dir: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the pool
    _shared.update(
        experiment=experiment, grid=grid, data=experiment.load(grid, data_dir), environment=describe_environment()
    )


def _work(cell: ExperimentCell) -> list[table.Row]:
    return _measure_cell(_shared["experiment"], _shared["grid"], _shared["data"], cell, _shared["environment"])


def _measure_cell(
    experiment: Experiment, grid: Grid, data: Any, cell: ExperimentCell, facts: Mapping[str, Any]
) -> list[table.Row]:
    start = time.perf_counter()
    outcome = experiment.measure(cell, grid, data)
    return make_rows(experiment, grid, cell, outcome, time.perf_counter() - start, facts)
