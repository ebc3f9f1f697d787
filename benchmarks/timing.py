"""One core, best of several runs, ratios from one run: what every benchmark here shares. Import it before NumPy."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def best(run: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the fastest of several runs."""
    shortest = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def heading(title: str) -> None:
    import numpy as np
    import scipy

    print(f"\n{title}\n{'-' * len(title)}")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, one core")
