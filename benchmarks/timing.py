"""One core, best of several runs, ratios from one run: what every benchmark here shares. Import it before NumPy."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let the process use all its cores, and let releases draw with this number of threads."""
    os.environ["SCORESHIELD_THREADS"] = str(count)
    if _CORES:
        os.sched_setaffinity(0, _CORES)
    try:
        yield
    finally:
        del os.environ["SCORESHIELD_THREADS"]
        if _CORES:
            os.sched_setaffinity(0, {min(_CORES)})


def list_thread_counts() -> list[int]:
    """1, 2, 4, ... up to the cores of this process, and at most 16."""
    return [count for count in (1, 2, 4, 8, 16) if count <= max(1, len(_CORES))]


def best(run: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the fastest of several runs."""
    shortest = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def heading(title: str, cores: str = "one core") -> None:
    import numpy as np
    import scipy

    print(f"\n{title}\n{'-' * len(title)}")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, {cores}")
