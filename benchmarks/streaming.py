"""All scores of a collection in a file: time against reading the file, and memory. One core.

python benchmarks/streaming.py [--gigabytes 1.5] [--folder DIR]

The file is read once before, so that the page cache holds what it can. With a file larger than memory, the figures are
those of the disk.
"""

from __future__ import annotations

import timing  # first: it pins the threads

import argparse
import memory
import tempfile
import time
from pathlib import Path

import numpy as np

import scoreshield as ss
from scoreshield import _files

DIMENSION = 384


def write_files(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng, size = np.random.default_rng(0), 20_000
    mapped = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=np.float32, shape=(rows, DIMENSION))
    schema = pa.schema([("embedding", pa.list_(pa.float32(), DIMENSION))])
    with parquet.ParquetWriter(folder / "rows.parquet", schema) as writer:
        for start in range(0, rows, size):
            part = rng.standard_normal((min(size, rows - start), DIMENSION), dtype=np.float32)
            mapped[start : start + len(part)] = part
            column = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), DIMENSION)
            writer.write_table(pa.table([column], schema=schema))
    mapped.flush()


def read_file(path: Path) -> float:
    """Seconds to read every byte of a file, into a buffer that stays in the cache."""
    buffer = bytearray(1 << 20)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.5)
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed again")
    arguments = parser.parse_args()
    rows = int(arguments.gigabytes * 10**9 / (4 * DIMENSION))
    query = np.ones(DIMENSION)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write_files(folder, rows)
        timing.heading(f"All scores of {rows:,} records, d = {DIMENSION}, float32, secure noise, best of three")
        read_file(folder / "rows.npy")
        reading = min(read_file(folder / "rows.npy") for _ in range(3))
        print(f"{'reading the .npy file':<28} {reading:6.2f} s  {rows * DIMENSION * 4 / reading / 1e9:5.1f} GB/s")
        for kind in ("rows.npy", "rows.parquet"):
            ss.release_scores(_files.read_array(folder / kind, mapped=True)[:1000], query, epsilon=1, delta=1e-6)
            memory.reset_peak_memory()
            before, seconds = memory.peak_memory(), float("inf")
            for _ in range(3):
                start = time.perf_counter()
                released = ss.release_scores(
                    _files.read_array(folder / kind, mapped=True), query, epsilon=1, delta=1e-6
                )
                seconds = min(seconds, time.perf_counter() - start)
            above = (memory.peak_memory() - before) / 10**6
            speed = rows * DIMENSION * 4 / seconds / 1e9
            print(
                f"{'release from ' + kind:<28} {seconds:6.2f} s  {speed:5.1f} GB/s  "
                f"{seconds / reading:5.1f} x reading; peak memory {above:.0f} MB, "
                f"of which the scores {released.noisy.nbytes / 10**6:.0f} MB"
            )
            del released


if __name__ == "__main__":
    main()
