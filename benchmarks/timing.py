"""One core, best of several runs, ratios from one run: what every benchmark here shares. Import it before NumPy."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

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


def peak_memory() -> int:
    """Bytes this process has held at most. (Linux only: `ru_maxrss` would count the parent that started it.)"""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def heading(title: str) -> None:
    import numpy as np
    import scipy

    print(f"\n{title}\n{'-' * len(title)}")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, one core")


def current_memory() -> int:
    """Bytes this process holds now (Linux only)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def reset_peak_memory() -> None:
    """Start the peak anew from what is held now (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")
