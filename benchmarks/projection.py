"""Projections onto the elliptope: every method on the same matrices in one run.

python benchmarks/projection.py                  (two cores; needs the 'sdp' and 'peers' extras)
python benchmarks/projection.py --device cuda    (one GPU: sizes, times and peak memory; --sizes, --noises)
python benchmarks/projection.py --large          (n = 2,552 and 8,192 on the CPU)
python benchmarks/projection.py --sizes 300 1000 --noises 0.3 20      (old against new solver only)
python benchmarks/projection.py --reuse [--sizes 2552]                (leading eigenvectors, and warm starts)

On a machine that does other work, OMP_NUM_THREADS=1 and CLOCK=cpu measure processor time on one core.
"""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh

import scoreshield as ss
from scoreshield.geometry.elliptope import project_array
from scoreshield.geometry.partial import WarmStart
from scoreshield.geometry.spectrum import find_leading_pairs

NOISES = (0.3, 1.0, 5.0, 20.0, 100.0, 1000.0)
CPU_TIME = os.environ.get("CLOCK") == "cpu"
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
    clock = time.process_time if CPU_TIME else time.perf_counter
    start = clock()
    result = run()
    return result, clock() - start


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


def measure(run: Callable[[], Any], nbytes: int, repeats: int = 1) -> tuple[Any, float, float]:
    """Run, and return the result, the shortest time and the peak of the arrays beyond the input, in matrices."""
    shortest = float("inf")
    for _ in range(repeats if repeats > 1 else 0):
        shortest = min(shortest, timed(run)[1])
    tracemalloc.start()  # the resident memory would not show what is allocated again
    result, seconds = timed(run)  # a long run is done once; tracing slows short ones down
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, seconds if repeats == 1 else shortest, peak / nbytes


def _describe_end(found: ss.Projection) -> str:
    """Say whether a gap is proved, and whether newton took over, which has no proof."""
    if not found.method.startswith("partial"):
        return "newton"
    return "yes" if found.converged else "no"


def compare(sizes: tuple[int, ...], noises: tuple[float, ...], with_newton: bool, seed: int = 0) -> None:
    """Old and new solver on the same matrices, in units of one eigendecomposition of the same matrix."""
    print(
        f"\n{'n':>7}{'noise sd':>9}{'one eigh':>11}{'newton':>10}{'units':>7}{'eigs':>6}{'partial':>11}{'units':>7}"
        f"{'steps':>7}{'rank':>6}{'peak':>6}{'gap':>10}  proved   difference"
    )
    for n in sizes:
        repeats = 3 if n <= 1000 else 1
        for noise in noises:
            matrix = noisy_gram(n, noise, seed)
            unit = min(timed(partial(np.linalg.eigh, matrix))[1] for _ in range(repeats))
            found, seconds, peak = measure(partial(ss.project_elliptope, matrix, "partial"), matrix.nbytes, repeats)
            line = f"{n:>7}{noise:>9g}{unit:>9.2f} s"
            difference = ""
            if with_newton:
                old, old_seconds = timed(partial(ss.project_elliptope, matrix, "newton"))
                line += f"{old_seconds:>8.2f} s{old_seconds / unit:>7.1f}{old.eigendecompositions:>6}"
                difference = f"{np.linalg.norm(found.matrix - old.matrix) / np.linalg.norm(old.matrix):.0e}"
            else:
                line += f"{'':>10}{'':>7}{'':>6}"
            rank = 0 if found.factor is None else found.factor.shape[1]
            print(
                f"{line}{seconds:>9.2f} s{seconds / unit:>7.2f}{found.iterations:>7}{rank:>6}{peak:>6.1f}"
                f"{found.gap:>10.0e}  {_describe_end(found):<7}  {difference}",
                flush=True,
            )


def reuse(sizes: tuple[int, ...], noises: tuple[float, ...]) -> None:
    """What a denoiser needs besides: eigenvectors well above the noise, and the projection of a matrix nearby."""
    for n in sizes:
        matrix = noisy_gram(n, 0.02)
        unit = timed(partial(np.linalg.eigh, matrix))[1]
        found = timed(partial(find_leading_pairs, matrix, 64))[1]
        subset = [n - 64, n - 1]
        lapack = timed(partial(eigh, matrix, driver="evr", subset_by_index=subset, check_finite=False))[1]
        print(f"\nn = {n}: 64 eigenvectors above noise of sd 0.02, in units of one eigh ({unit:.2f} s)")
        print(f"a filtered block {found / unit:.2f}, LAPACK {lapack / unit:.2f}")
        print(f"{'noise sd':>9}{'first':>10}{'nearby':>10}{'started warm':>15}{'saved':>8}")
        for noise in noises:
            matrix = noisy_gram(n, noise)
            signs = np.triu(2.0 * np.random.default_rng(n).integers(0, 2, (n, n)) - 1, 1)
            near, warm = matrix + 0.03 * noise * (signs + signs.T), WarmStart()
            first = timed(lambda matrix=matrix, warm=warm: project_array(matrix, warm=warm))[1]
            cold = timed(lambda near=near: project_array(near))[1]
            started = timed(lambda near=near, warm=warm: project_array(near, warm=warm))[1]
            print(f"{noise:>9g}{first:>8.2f} s{cold:>8.2f} s{started:>13.2f} s{1 - started / cold:>8.0%}", flush=True)


def cpu() -> None:
    print("\nOld and new solver, one run; the peak is in matrices beyond the input; the difference of the results is")
    print("relative to the norm of newton's")
    compare((300, 1000), (0.3, 1.0, 5.0, 20.0, 100.0, 1000.0), with_newton=True)

    n = 1000
    print(f"\nn = {n}: the paper's method; times also in units of one eigendecomposition (numpy.linalg.eigh)")
    print(f"{'noise sd':>9} {'method':<30}{'eigs':>6}{'time':>10}{'eigh':>8}{'distance / nearest':>21}  converged")
    for noise in SLOW:
        matrix = noisy_gram(n, noise)
        unit = min(timed(partial(np.linalg.eigh, matrix))[1] for _ in range(3))
        nearest = ss.project_elliptope(matrix).distance
        result, seconds = timed(partial(ss.project_elliptope, matrix, "aap"))
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
        ("newton", lambda: ss.project_elliptope(matrix, "newton").matrix),
        ("partial", lambda: ss.project_elliptope(matrix, "partial").matrix),
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


def noisy_gram_on(device: str, n: int, noise: float, seed: int = 0, d: int = 64) -> Any:
    """The matrix of `noisy_gram`, drawn on a GPU by panels, because a large one has room for few more."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    rows = torch.randn(n, d, generator=generator, device=device, dtype=torch.float64)
    rows /= rows.norm(dim=1, keepdim=True)
    matrix = rows @ rows.T
    for start in range(0, n, 1024):
        end = min(start + 1024, n)
        panel = matrix[start:end, start:]
        drawn = torch.randn(panel.shape, generator=generator, device=device, dtype=torch.float64)
        panel += noise * drawn.triu(1)
        corner = panel[:, : end - start].triu(1)
        panel[:, : end - start] = corner + corner.T
        matrix[end:, start:end] = panel[:, end - start :].T
    matrix.fill_diagonal_(1)
    return matrix


def gpu(device: str, sizes: tuple[int, ...], noises: tuple[float, ...]) -> None:
    """Time on the device, from a matrix there to a result there; the peak counts the matrix that is projected."""
    import torch

    def waited(run: Callable[[], Any]) -> tuple[Any, float]:
        torch.cuda.synchronize(device)
        return timed(lambda: (run(), torch.cuda.synchronize(device))[0])

    print(f"\n{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}, float64")
    print(
        f"{'n':>7}{'noise sd':>9} {'method':<26}{'eigs':>6}{'steps':>6}{'rank':>6}{'time':>10}{'one eigh':>10}"
        f"{'units':>7}{'peak':>10}{'gap':>9}  proved"
    )
    project_array(noisy_gram_on(device, 1024, 1.0), "partial")  # wake the device up
    for n in sizes:
        for noise in noises:
            matrix = noisy_gram_on(device, n, noise)
            unit = float("nan")
            if n <= 16_384:
                torch.linalg.eigh(matrix[:512, :512])
                unit = waited(partial(torch.linalg.eigh, matrix))[1]
            for method in ("partial", "newton") if noise == 1.0 and n <= 8192 else ("partial",):
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                result, seconds = waited(partial(project_array, matrix, method))
                peak = torch.cuda.max_memory_allocated() / (8 * n * n)
                rank = 0 if result.factor is None else result.factor.shape[1]
                print(
                    f"{n:>7}{noise:>9g} {result.method:<26}{result.eigendecompositions:>6}{result.iterations:>6}"
                    f"{rank:>6}{seconds:>8.2f} s{unit:>8.2f} s{seconds / unit:>7.2f}{peak:>6.2f} mat{result.gap:>9.0e}"
                    f"  {_describe_end(result)}",
                    flush=True,
                )
                del result
            del matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--reuse", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", help="these sizes; on a CPU, only old against new")
    parser.add_argument("--noises", type=float, nargs="+", default=NOISES)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        gpu(arguments.device, tuple(arguments.sizes or (2552, 8192, 16_384, 32_768)), tuple(arguments.noises))
    elif arguments.reuse:
        reuse(tuple(arguments.sizes or (2552,)), tuple(arguments.noises))
    elif arguments.sizes:
        compare(tuple(arguments.sizes), tuple(arguments.noises), max(arguments.sizes) <= 4000, arguments.seed)
    elif arguments.large:
        compare((2552,), tuple(arguments.noises), with_newton=True)
        compare((8192,), (1.0,), with_newton=False)
    else:
        cpu()


if __name__ == "__main__":
    main()
