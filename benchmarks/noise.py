"""Speed of the exact secure sampler against NumPy's insecure one and two peer libraries, in one run.

python benchmarks/noise.py            (needs the 'peers' extra)
python benchmarks/noise.py --threads  (only the times on several cores)
"""

from __future__ import annotations

import timing  # first: it pins the threads

import argparse
import memory
import multiprocessing
import time
from typing import Any

import numpy as np

import scoreshield as ss
from scoreshield.privacy.sampling import gaussian
from scoreshield.privacy.noise import GaussianNoise, add_noise, choose_grid_step
from scoreshield.privacy.sampling.gaussian import fill_rounded_gaussian
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream

MILLION = 1_000_000
SCALE = ss.calibrate(1, 1e-6, 2.0)


def ours(stream: SecureStream | ResearchStream, size: int = MILLION) -> float:
    out = np.empty(size)
    return timing.best(lambda: fill_rounded_gaussian(stream, SCALE / choose_grid_step(SCALE), out))


def undecided() -> tuple[float, float]:
    """How many pairs of a million draws double precision leaves open, on average over ten million; the time of one."""
    count, decide = 0, gaussian._decide

    def counted(*given: Any) -> tuple[int, int]:
        nonlocal count
        count += 1
        return decide(*given)

    gaussian._decide = counted
    try:
        fill_rounded_gaussian(SecureStream(), SCALE / choose_grid_step(SCALE), np.empty(10 * MILLION))
    finally:
        gaussian._decide = decide
    stream = SecureStream()
    seconds = timing.best(lambda: [decide(stream, 1 << 62, 12345, 1e8) for _ in range(100)]) / 100
    return count / 10, seconds


def opendp(size: int) -> float:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    mechanism = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=SCALE, k=-40)
    clean = [0.0] * size
    return timing.best(lambda: mechanism(clean), repeats=1)


def diffprivlib(size: int) -> float:
    from diffprivlib.mechanisms import GaussianAnalytic

    mechanism = GaussianAnalytic(epsilon=1.0, delta=1e-6, sensitivity=2.0)
    return timing.best(lambda: [mechanism.randomise(0.0) for _ in range(size)], repeats=1) * (MILLION / size)


def triangle(n: int) -> tuple[float, float]:
    """Seconds and peak memory (in n x n float64 matrices, above the start) of a whole unprojected Gram release."""
    rows = np.random.default_rng(0).standard_normal((n, 64), dtype=np.float32)
    ss.release_gram(rows[:300], epsilon=1, delta=1e-6, projection="none")
    before = memory.peak_memory()
    start = time.perf_counter()
    ss.release_gram(rows, epsilon=1, delta=1e-6, projection="none")
    seconds = time.perf_counter() - start
    return seconds, (memory.peak_memory() - before) / (8 * n * n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", action="store_true", help="only the table of threads")
    if parser.parse_args().threads:
        timing.heading("Noise added to scores, rounded to the grid, secure", "all cores")
        show_threads()
        return
    timing.heading("A million draws of Gaussian noise")
    secure = ours(SecureStream())
    rows = [
        ("ScoreShield, exact, AES-256 stream", secure),
        ("ScoreShield, exact, research stream", ours(ResearchStream(np.random.default_rng(0)))),
        ("NumPy standard_normal (float, predictable)", _numpy()),
        ("diffprivlib GaussianAnalytic (float, one by one)", diffprivlib(20_000)),
        ("OpenDP vector Gaussian, k = -40 (exact)", opendp(MILLION)),
    ]
    for name, seconds in rows:
        print(f"{name:<50} {1e3 * seconds:12.1f} ms {seconds / secure:10.1f} x")

    pairs, each = undecided()
    share = pairs * each / secure
    print(f"left to fixed-point arithmetic: {pairs:.0f} pairs, {1e6 * each:.0f} us each, {share:.0%} of the time")

    timing.heading("Noise added to scores, rounded to the grid, secure", "all cores")
    show_threads()

    timing.heading("The triangle of a 16,384-square Gram matrix, product and noise, no projection")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, matrices = pool.apply(triangle, (16_384,))
    draws = 16_384 * 16_383 // 2
    print(f"{seconds:.1f} s, {1e9 * seconds / draws:.0f} ns a draw; peak memory {matrices:.2f} matrices of that size")


def show_threads() -> None:
    """Print the time for several sizes and numbers of threads, all of one run, taken in turn."""
    counts, law, step = timing.list_thread_counts(), GaussianNoise(SCALE), choose_grid_step(SCALE)
    print(f"{'draws':>12}" + "".join(f"{count:>9} thr." for count in counts) + "   ratio to one thread")
    for size, rounds in ((1_000, 200), (10_000, 200), (100_000, 50), (MILLION, 20), (10 * MILLION, 10)):
        values = np.zeros(size)
        shortest = dict.fromkeys(counts, float("inf"))
        for _ in range(rounds):
            for count in counts:
                with timing.use_threads(count):
                    start = time.perf_counter()
                    add_noise(values, law, step, SecureStream())
                    seconds = time.perf_counter() - start
                shortest[count] = min(shortest[count], seconds)
        times = "".join(f"{1e3 * shortest[count]:10.2f} ms" for count in counts)
        print(f"{size:>12,}{times}   " + ", ".join(f"{shortest[1] / shortest[count]:.2f}" for count in counts))
    with timing.use_threads(1):  # processes inherit the cores
        alone, together = (_draw_in_processes(count) for count in (1, 2))
    print(f"\nTwo processes, which share no lock, draw {2 * alone / together:.2f} times as fast as one.")


def _draw_in_processes(count: int) -> float:
    """Seconds of five million draws in each of several processes at once."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(count), context.Queue()
    processes = [context.Process(target=_draw_at_once, args=(barrier, queue)) for _ in range(count)]
    for process in processes:
        process.start()
    seconds = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    return max(seconds)


def _draw_at_once(barrier: Any, queue: Any) -> None:
    values, law, step, shortest = np.ones(5 * MILLION), GaussianNoise(SCALE), choose_grid_step(SCALE), float("inf")
    with timing.use_threads(1):
        for _ in range(10):
            barrier.wait()
            start = time.perf_counter()
            add_noise(values, law, step, SecureStream())
            shortest = min(shortest, time.perf_counter() - start)
    queue.put(shortest)


def _numpy() -> float:
    generator, out = np.random.default_rng(0), np.empty(MILLION)
    return timing.best(lambda: generator.standard_normal(out=out))


if __name__ == "__main__":
    main()
