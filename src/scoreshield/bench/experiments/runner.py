"""Runs the cells of a grid over several cores, each recorded as soon as it is done, so that a killed run goes on.

A run folder holds ``settings.json`` (the version, the grid, and the checksums of the data), ``cells.jsonl`` (one line a
finished cell, appended and brought to disk), and, at the end, ``results.csv``, ``results.parquet`` and
``environment.json``, which says where the cells were run. A folder that was made with other settings is refused, and
left as it is. ``.lock`` keeps a second run out; it is never renamed, since a lock belongs to a file and not to a name.
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

from scoreshield import _files, _loading
from scoreshield.bench.experiments import table
from scoreshield.bench.experiments.cells import Cell, Experiment, rows
from scoreshield.bench.experiments.grid import Grid
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError
from scoreshield.geometry.arrays import Progress

SETTINGS, CELLS, ENVIRONMENT, LOCK = "settings.json", "cells.jsonl", "environment.json", ".lock"
#: What a run writes into its folder, pictures apart.
FILES = (SETTINGS, CELLS, ENVIRONMENT, LOCK, "results.csv", "results.parquet")
#: Libraries of linear algebra start as many threads as there are cores; here each process, timed ones too, gets one.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run(
    experiment: Experiment,
    grid: Grid,
    out: Path,
    *,
    data_dir: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[table.Row]:
    """Run what is not done yet, and write the tables.

    Parameters
    ----------
    out : the run folder, made if it is not there; a run that was stopped goes on where it was.
    data_dir : the folder of the compact data sets.
    workers : processes; as many as there are cores by default, and one for what is timed.
    progress : called with (cells done, cells in all).
    """
    cells = experiment.cells(grid)
    if not cells:
        raise InvalidInput(f"The grid of {experiment.name} holds no cell: give it data sets, mechanisms and budgets.")
    settings = {"version": version("scoreshield"), "grid": grid.to_dict()}
    settings["data"] = _checksums(experiment, data_dir)
    if not (out / SETTINGS).exists():
        experiment.load(grid, data_dir)  # missing data is one sentence, before anything is written
    _make(out)
    with _files.lock_folder(out / LOCK):
        _settle(out / SETTINGS, settings)
        done = {line["cell"]: line["rows"] for line in _finished(out / CELLS)}
        todo = [cell for cell in cells if cell.key not in done]
        if progress is not None:
            progress(len(cells) - len(todo), len(cells))
        for cell, found in _each(experiment, grid, data_dir, todo, workers):
            _append(out / CELLS, {"cell": cell.key, "rows": found})
            done[cell.key] = found
            if progress is not None:
                progress(len(done), len(cells))
        results = [row for cell in cells for row in done[cell.key]]
        facts = json.dumps(_environments(results), indent=2).encode()
        _files.write_whole({out / ENVIRONMENT: lambda file: file.write(facts)})
        table.write(out, results)
    return results


def environment() -> dict[str, Any]:
    """Where a run was made, as columns of its table."""
    return {
        "scoreshield": version("scoreshield"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "machine": platform.system() + " " + platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


def _environments(results: Sequence[table.Row]) -> dict[str, Any]:
    """Where the rows were made, by column; a run that went on elsewhere has several values of one."""
    found = {name: list(dict.fromkeys(row[name] for row in results)) for name in table.ENVIRONMENT}
    return {name: values[0] if len(values) == 1 else "; ".join(map(str, values)) for name, values in found.items()}


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _checksums(experiment: Experiment, data_dir: Path | None) -> dict[str, str]:
    """Of the files that the experiment reads and that are there; its loader speaks of those that are not."""
    if data_dir is None:
        return {}
    found = {}
    for name in experiment.files:
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(_loading.read_bytes(data_dir / name)).hexdigest()
    return found


def _make(out: Path) -> None:
    """Make the run folder, or check that it is one; what a killed write left there is no reason to refuse it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in out.iterdir()}
    except OSError as error:
        raise FileError(f"Cannot use the run folder {out}: {error.strerror}.") from None
    others = [name for name in names if name != LOCK and not (name.startswith(".") and name.endswith(".part"))]
    if others and SETTINGS not in names:
        raise InvalidInput(f"The folder {out} holds other files and no run; name an empty or a new one with --out.")


def _settle(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a new run, or check that these are those of the run that is there."""
    if not path.exists():
        content = json.dumps(settings, indent=2).encode()
        _files.write_whole({path: lambda file: file.write(content)})
        return
    content = _loading.read_bytes(path)
    try:
        before = _loading.parse_json(content)
    except ValueError:
        before = None
    if before != json.loads(json.dumps(settings)):
        raise InvalidInput(
            f"The run folder {path.parent} was made with other settings ({_difference(before, settings)}); name "
            "another with --out, or move it away."
        )


def _difference(before: Any, settings: dict[str, Any]) -> str:
    """The first thing that differs, by name."""
    if not isinstance(before, dict) or not isinstance(before.get("grid"), dict):
        return f"its {SETTINGS} cannot be read"
    if before.get("version") != settings["version"]:
        return f"version {before.get('version', 'unknown')}, not {settings['version']}"
    for name, value in json.loads(json.dumps(settings["grid"])).items():
        if before["grid"].get(name) != value:
            return str(name)
    return "the data files" if before.get("data") != settings["data"] else "more settings than this version knows"


def _finished(path: Path) -> list[dict[str, Any]]:
    """What was recorded; a last line that was cut short is taken off, so that the next one starts clean."""
    lines = table.read_lines(path)
    if not all(_is_line(line) for line in lines):
        raise InvalidInput(f"{path} is damaged: a line holds no rows of a table; move the run folder away.")
    try:
        with path.open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror}.") from None
    return lines


def _is_line(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and isinstance(line.get("cell"), str)
        and isinstance(line.get("rows"), list)
        and all(table.is_row(row) for row in line["rows"])
    )


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with path.open("ab") as file:
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror}; the cells before it are kept.") from None


# ---- The processes.

_shared: dict[str, Any] = {}


def _each(
    experiment: Experiment, grid: Grid, data_dir: Path | None, cells: Sequence[Cell], workers: int | None
) -> Iterator[tuple[Cell, list[table.Row]]]:
    """Cells with their rows, in the order in which they are done."""
    if not cells:
        return
    count = 1 if experiment.serial else min(workers or os.cpu_count() or 1, len(cells))
    with _one_thread_each():
        pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(experiment, grid, data_dir)
        )
        try:
            yield from _drain(pool, list(cells), 1 if experiment.serial else 2 * count)
        except BrokenProcessPool:
            raise ScoreShieldError(
                "A process of the run was killed, perhaps for want of memory; what is done is kept. Run it again, with "
                "fewer --workers."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _drain(pool: ProcessPoolExecutor, cells: list[Cell], ahead: int) -> Iterator[tuple[Cell, list[table.Row]]]:
    waiting: dict[Future[list[table.Row]], Cell] = {}
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
def _one_thread_each() -> Iterator[None]:
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
    _shared.update(experiment=experiment, grid=grid, data=experiment.load(grid, data_dir), environment=environment())


def _work(cell: Cell) -> list[table.Row]:
    return _measured(_shared["experiment"], _shared["grid"], _shared["data"], cell, _shared["environment"])


def _measured(experiment: Experiment, grid: Grid, data: Any, cell: Cell, facts: Mapping[str, Any]) -> list[table.Row]:
    start = time.perf_counter()
    outcome = experiment.measure(cell, grid, data)
    return rows(experiment, grid, cell, outcome, time.perf_counter() - start, facts)
