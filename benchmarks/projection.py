"""Projections onto the elliptope: every method on the same matrices in one run.

python benchmarks/projection.py                  (two cores; needs the 'sdp' and 'peers' extras)
python benchmarks/projection.py --device cuda    (one GPU: sizes, times and peak memory)
python benchmarks/projection.py --large          (n = 2,552 and 8,192 on the CPU)
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import memory
import numpy as np

import scoreshield as ss

NOISES = (0.3, 1.0, 5.0, 20.0, 100.0, 1000.0)
SLOW = (0.3, 5.0, 100.0)  # where the paper's method is run beside: a minute each


def noisy_gram(n: int, noise: float, seed: int = 0, d: int = 64) -> np.ndarray:
    """Cosines of random vectors plus symmetric noise of this standard deviation off the diagonal."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    upper = np.triu(rng.standard_normal((n, n)) * noise, 1)
    matrix = rows @ rows.T + upper + upper.T
    np.fill_diagonal(matrix, 1)
    return matrix


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def higham(matrix: np.ndarray, tol: float = 1e-7, limit: int = 5000) -> np.ndarray:
    """Higham's alternating projections of 2002: Dykstra's correction on the cone only."""
    current, correction = matrix.copy(), np.zeros_like(matrix)
    for _ in range(limit):
        shifted = current - correction
        values, vectors = np.linalg.eigh(shifted)
        positive = (vectors * np.maximum(values, 0)) @ vectors.T
        correction = positive - shifted
        current = positive.copy()
        np.fill_diagonal(current, 1)
        if np.linalg.norm(current - positive) <= tol * np.sqrt(len(matrix)):
            break
    return current


def corr_nearest(matrix: np.ndarray) -> np.ndarray:
    from statsmodels.stats.correlation_tools import corr_nearest as peer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it ran out of iterations
        found: np.ndarray = peer(np.clip(matrix, -1, 1), threshold=1e-12)
    return found


def cpu() -> None:
    n = 1000
    print(f"\nn = {n}, one run; times also in units of one eigendecomposition (numpy.linalg.eigh) of the same matrix")
    print(f"{'noise sd':>9} {'method':<30}{'eigs':>6}{'time':>10}{'eigh':>8}{'distance / nearest':>21}  converged")
    for noise in NOISES:
        matrix = noisy_gram(n, noise)
        unit = min(timed(partial(np.linalg.eigh, matrix))[1] for _ in range(3))
        nearest = 0.0
        for method in ("newton", "aap") if noise in SLOW else ("newton",):
            result, seconds = timed(partial(ss.project_elliptope, matrix, method))
            nearest = nearest or result.distance
            print(
                f"{noise:>9g} {result.method:<30}{result.eigendecompositions:>6}{seconds:>8.2f} s{seconds / unit:>8.1f}"
                f"{result.distance / nearest:>21.9f}  {result.converged}",
                flush=True,
            )

    n = 100
    print(f"\nn = {n}, noise sd 1: every method, and what others offer")
    matrix = noisy_gram(n, 1.0)
    nearest = ss.project_elliptope(matrix).distance
    rows: list[tuple[str, Callable[[], np.ndarray]]] = [
        ("newton", lambda: ss.project_elliptope(matrix).matrix),
        ("aap", lambda: ss.project_elliptope(matrix, "aap").matrix),
        ("dykstra", lambda: ss.project_elliptope(matrix, "dykstra").matrix),
        ("Higham 2002", lambda: higham(matrix)),
        ("pnp (another set)", lambda: ss.project_elliptope(matrix, "pnp").matrix),
        ("sdp, Clarabel", lambda: ss.project_elliptope(matrix, "sdp", 1e-8, time_limit=300).matrix),
        ("sdp, SCS", lambda: ss.project_elliptope(matrix, "sdp", 1e-6, solver="scs", time_limit=300).matrix),
        ("statsmodels corr_nearest", lambda: corr_nearest(matrix)),
    ]
    for name, run in rows:
        found, seconds = timed(run)
        distance = float(np.linalg.norm(np.asarray(found) - matrix))
        print(f"{name:<28}{1e3 * seconds:>10.1f} ms   distance / nearest {distance / nearest:.9f}", flush=True)


def large() -> None:
    print(f"\n{'n':>7} {'method':<28}{'eigs':>6}{'time':>10}{'one eigh':>10}{'peak, in matrices':>20}")
    for n in (2552, 8192):
        matrix = noisy_gram(n, 1.0)
        _, unit = timed(partial(np.linalg.eigh, matrix))
        before = memory.current_memory()
        memory.reset_peak_memory()
        result, seconds = timed(partial(ss.project_elliptope, matrix))
        peak = (memory.peak_memory() - before) / matrix.nbytes
        print(
            f"{n:>7} {result.method:<28}{result.eigendecompositions:>6}{seconds:>8.1f} s{unit:>8.1f} s{peak:>20.1f}",
            flush=True,
        )


def gpu(device: str) -> None:
    import torch

    print(f"\n{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}, float64, noise sd 1")
    print(f"{'n':>7} {'method':<28}{'eigs':>6}{'time':>10}{'one eigh':>10}{'peak':>10}  converged")
    ss.project_elliptope(noisy_gram(256, 1.0), device=device)  # wake the device up
    for n, methods in ((2048, ("newton",)), (2552, ("newton", "aap")), (8192, ("newton",)), (16_384, ("newton",))):
        matrix = noisy_gram(n, 1.0)
        there = torch.from_numpy(matrix).to(device)
        _, unit = timed(lambda there=there: (torch.linalg.eigh(there), torch.cuda.synchronize()))
        del there
        for method in methods:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            result, seconds = timed(partial(ss.project_elliptope, matrix, method, device=device))
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"{n:>7} {result.method:<28}{result.eigendecompositions:>6}{seconds:>8.2f} s"
                f"{unit:>8.2f} s{peak:>6.1f} GiB  {result.converged}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--large", action="store_true")
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        gpu(arguments.device)
    elif arguments.large:
        large()
    else:
        cpu()


if __name__ == "__main__":
    main()
