"""Releases on a cluster of this machine, beside the same engine computing clean cosines; and a large case on paper.

python benchmarks/cluster.py [--rows 2000000] [--workers 1 2 4] [--repeats 3] [--folder DIR]
python benchmarks/cluster.py --rows 10000000 --workers 2 --repeats 1     (10,000,000 x 128)
python benchmarks/cluster.py --paper             (a billion records on 100 machines, from a short measurement)

The collection is a folder of Parquet files, read from the page cache. Each worker is a process with one thread. *clean*
reads the same files with pyarrow, computes the cosines with NumPy and writes them as Parquet files of the same columns;
it protects nothing. Its times and those of the release alternate in one run. Where other programs use the machine, the
seconds of the processor that the workers took (with those of the driver) say more than the seconds that passed.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from distributed import Client, LocalCluster

from scoreshield import distributed as sd

DIMENSION = 128
FILE_ROWS = 2**18
CLEAN = "clean cosines"
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False}


def write_collection(folder: Path, rows: int, dimension: int = DIMENSION) -> None:
    """Write random vectors as Parquet files of 262,144 records, in groups of 65,536."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - start)
        values = rng.standard_normal((count, dimension), dtype=np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dimension)
        path = folder / f"part-{number:05d}.parquet"
        parquet.write_table(pa.table({"v": column}), path, row_group_size=2**16, **PLAIN)


def compute_clean(paths: list[str], query: np.ndarray, target: str) -> int:
    """Compute the clean cosines of some files, and write them: what a job without privacy does."""
    rows = 0
    schema = pa.schema([("row", pa.int64()), ("score", pa.float64())])
    options = PLAIN | {"column_encoding": {"row": "DELTA_BINARY_PACKED"}, "write_statistics": False}
    for path in paths:
        with parquet.ParquetWriter(Path(target) / Path(path).name, schema, **options) as writer:
            for batch in parquet.ParquetFile(path).iter_batches(2**16, use_threads=False):
                column = batch.column(0)
                vectors = column.flatten().to_numpy().reshape(len(column), -1)
                scores = (vectors @ query) / np.sqrt(np.vecdot(vectors, vectors))
                numbers = np.arange(rows, rows + len(scores))
                writer.write_table(pa.table({"row": numbers, "score": scores.astype(np.float64)}))
                rows += len(scores)
    return rows


def run_clean(client: Client, source: Path, query: np.ndarray, target: Path, files_per_task: int) -> None:
    target.mkdir()
    paths = sorted(map(str, source.glob("*.parquet")))
    unit = (query / np.linalg.norm(query)).astype(np.float32)
    parts = [paths[first : first + files_per_task] for first in range(0, len(paths), files_per_task)]
    futures = [client.submit(compute_clean, part, unit, str(target), pure=False) for part in parts]
    client.gather(futures)


def measure_memory() -> int:
    """Read the largest resident size of this process so far, in bytes, and start a new measurement."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def sum_processor(client: Client) -> float:
    """Sum the seconds of the processor that the workers and this process have used."""
    return time.process_time() + sum(client.run(time.process_time).values())


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def list_jobs(
    client: Client, source: Path, folder: Path, query: np.ndarray, block: int
) -> Iterator[tuple[str, Callable[[], Any], Path]]:
    """List what is compared, each with the folder that it writes."""

    def release(to: Path, **options: Any) -> Callable[[], Any]:
        common = {"epsilon": 20.0, "mechanism": "staircase", "engine": client, "block_rows": block, "seed": 1}
        return lambda: sd.release_scores(source, query, to=to, **common, **options)

    clean, plain, checked, best = (folder / name for name in ("clean", "plain", "checked", "best"))
    yield CLEAN, lambda: run_clean(client, source, query, clean, block // FILE_ROWS), clean
    yield "release, rows known to be finite", release(plain, check_rows=False), plain
    yield "release, rows checked before the charge", release(checked), checked
    yield "release, best 100 of each block", release(best, check_rows=False, best=100), best


def compare(folder: Path, rows: int, workers: list[int], repeats: int) -> None:
    source = folder / "collection"
    write_collection(source, rows)
    size = sum(path.stat().st_size for path in source.iterdir())
    print(f"{rows:,} x {DIMENSION} float32 in Parquet, {size / 1e9:.2f} GB; {os.cpu_count()} cores\n")
    query = np.random.default_rng(1).standard_normal(DIMENSION)
    block = 2**18 if rows < 4_000_000 else 2**20
    heads = f"{'seconds':>18}{'rows per s':>13}{'/ clean':>9}{'processor s':>13}{'/ clean':>9}"
    heads += f"{'bytes per row':>15}{'MB per worker':>15}"
    print(f"{'workers':>7}  {'job':<42}{heads}")
    for count in workers:
        options: dict[str, Any] = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": None}
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            print_rows(client, count, source, folder / "out", query, block, repeats, rows)


def print_rows(
    client: Client, count: int, source: Path, out: Path, query: np.ndarray, block: int, repeats: int, rows: int
) -> None:
    """Measure all jobs on one cluster, and print a row for each."""
    times: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    sizes: dict[str, float] = {}
    peaks: dict[str, int] = {}
    for repeat in range(repeats + 1):  # the first one loads the modules
        for name, job, target in list_jobs(client, source, out, query, block):
            out.mkdir(exist_ok=True)
            client.run(measure_memory)
            before = sum_processor(client)
            seconds = timed(job)
            used = sum_processor(client) - before
            peaks[name] = max(client.run(measure_memory).values())
            if repeat:
                times.setdefault(name, []).append(seconds)
                processor.setdefault(name, []).append(used)
            sizes[name] = sum(path.stat().st_size for path in target.rglob("*.parquet")) / rows
            shutil.rmtree(target)
    base, least = statistics.median(times[CLEAN]), statistics.median(processor[CLEAN])
    for name, seconds_of_all in times.items():
        middle = statistics.median(seconds_of_all)
        spread = f"{middle:.2f} ({min(seconds_of_all):.2f}-{max(seconds_of_all):.2f})"
        used = statistics.median(processor[name])
        figures = f"{rows / middle:>13,.0f}{middle / base:>9.2f}{used:>13.2f}{used / least:>9.2f}"
        figures += f"{sizes[name]:>15.2f}{peaks[name] / 1e6:>15.0f}"
        print(f"{count:>7}  {name:<42}{spread:>18}{figures}", flush=True)


def estimate(folder: Path) -> None:
    """Print what a billion records would take, from measured blocks. Lines with (measured) were measured here."""
    records, dimension, machines, cores = 10**9, 768, 100, 16
    rows = 2**18
    source = folder / "collection"
    write_collection(source, rows, dimension)
    query = np.random.default_rng(1).standard_normal(dimension)
    options: dict[str, Any] = {"epsilon": 20.0, "mechanism": "staircase", "seed": 1}
    speed = rows / min(
        timed(partial(sd.release_scores, source, query, to=folder / f"out-{repeat}", **options)) for repeat in range(4)
    )
    written = sum(path.stat().st_size for path in (folder / "out-0").rglob("*.parquet")) / rows
    tasks = math.ceil(records / 2**20)
    seconds = records / (speed * machines * cores)
    read = records * dimension * 4
    reading = read / machines / 1e9
    failures = machines * max(seconds, reading) / 3600 / 1000
    lines = {
        "records, dimension": f"{records:,} x {dimension}, {machines} machines of {cores} cores",
        "rows per second of one core": f"{speed:,.0f} (measured, d = {dimension}, page cache)",
        "bytes read": f"{read / 1e12:.2f} TB",
        "time at that speed": f"{seconds:.0f} s",
        "reading speed that this needs": f"{read / machines / seconds / 1e9:.1f} GB/s for each machine",
        "time at 1 GB/s for each machine": f"{reading:.0f} s",
        "bytes written": f"{written:.2f} per record (measured), {records * written / 1e9:.0f} GB",
        "bytes written before the charge": "as many, encrypted, and removed at the end",
        "bytes written, best 100": f"{tasks * 100 * 16 / 1e6:.1f} MB",
        "tasks": f"{tasks:,}, of less than 1 kB each between driver and workers",
        "memory of a worker": f"a tile of {2**16 * dimension * 4 / 1e6:.0f} MB, its reader, and "
        f"{2**20 * 16 / 1e6:.0f} MB of released columns",
        "failures expected": f"{failures:.4f} in {max(seconds, reading):.0f} s, at one for each machine in 1,000 hours",
        "work that a failure repeats": f"at most {cores} tasks of {2**20 / speed:.0f} s",
    }
    for k in (10, 100):
        least = math.log(records * 0.5 / k)
        lines[f"least epsilon that can rank, k = {k}"] = f"{least:.1f}: ln(n p / k) for p = 0.5 of the best {k}"
    for name, value in lines.items():
        print(f"{name:<38}{value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed again")
    parser.add_argument("--paper", action="store_true", help="a billion records on 100 machines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.paper:
            estimate(Path(name))
        else:
            compare(Path(name), arguments.rows, arguments.workers, arguments.repeats)


if __name__ == "__main__":
    main()
