"""A Gram matrix in blocks on Dask: workers that multiply on the CPUs, beside a worker for each GPU.

python benchmarks/cluster_gpu.py [--rows 32768] [--dimension 768] [--repeats 5] [--folder DIR]

The GPUs need `pip install dask-cuda` and the `gpu` extra. The collection is one .npy file of random vectors in the page
cache, and the releases have one research key. The jobs alternate in one run, and each keeps its cluster. All draw the
noise on the CPUs: the table shows what the products cost, and that both devices release the same values.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from dask_cuda import LocalCUDACluster
from distributed import Client, LocalCluster

from scoreshield import distributed as sd


def start_clusters(cores: int) -> dict[str, tuple[Any, str]]:
    """Start the clusters that are compared, each with the device of its workers."""
    quiet: dict[str, Any] = {"dashboard_address": None}
    here = LocalCluster(n_workers=cores, threads_per_worker=1, **quiet)
    there = LocalCUDACluster(threads_per_worker=cores, **quiet)
    return {
        f"{cores} processes, CPU": (here, "cpu"),
        "dask-cuda, CPU": (there, "cpu"),
        "dask-cuda, GPU": (there, "cuda"),
    }


def compare(folder: Path, rows: int, dimension: int, repeats: int, cores: int) -> None:
    source = folder / "rows.npy"
    np.save(source, np.random.default_rng(0).standard_normal((rows, dimension), dtype=np.float32))
    print(f"{rows:,} x {dimension}, {cores} cores, median of {repeats} (least to most)\n")
    times: dict[str, list[float]] = {}
    first: np.ndarray | None = None
    differing: dict[str, float] = {}
    clusters = start_clusters(cores)
    clients = {name: (Client(cluster), device) for name, (cluster, device) in clusters.items()}
    for repeat in range(repeats + 1):  # the first one loads the modules and starts the GPU
        for name, (client, device) in clients.items():
            start = time.perf_counter()
            release = sd.release_gram(
                source, to=folder / "out", epsilon=20.0, delta=1e-6, engine=client, seed=1, device=device
            )
            if repeat:
                times.setdefault(name, []).append(time.perf_counter() - start)
            else:
                block = release.block(1, 0)
                first = block if first is None else first
                differing[name] = float((block != first).mean())
            shutil.rmtree(folder / "out")
    base = statistics.median(next(iter(times.values())))
    print(f"{'cluster':<22}{'seconds':>22}{'/ CPU':>8}{'entries that differ':>22}")
    for name, found in times.items():
        middle = statistics.median(found)
        spread = f"{middle:.2f} ({min(found):.2f}-{max(found):.2f})"
        print(f"{name:<22}{spread:>22}{middle / base:>8.2f}{differing[name]:>22.1e}")
    for client, _ in clients.values():
        client.close()
    for cluster in {id(cluster): cluster for cluster, _ in clusters.values()}.values():
        cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32_768)
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        compare(Path(name), arguments.rows, arguments.dimension, arguments.repeats, arguments.cores)


if __name__ == "__main__":
    main()
