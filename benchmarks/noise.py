"""Speed of the exact secure sampler against NumPy's insecure one and two peer libraries, in one run.

python benchmarks/noise.py            (needs the 'peers' extra)
"""

from __future__ import annotations

import timing  # first: it pins the threads

import memory
import multiprocessing
import time

import numpy as np

import scoreshield as ss
from scoreshield.privacy.sampling import gaussian
from scoreshield.privacy.noise import choose_grid_step
from scoreshield.privacy.sampling.gaussian import fill_rounded_gaussian
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream

MILLION = 1_000_000
SCALE = ss.calibrate(1, 1e-6, 2.0)


def ours(stream: SecureStream | ResearchStream, size: int = MILLION) -> float:
    out = np.empty(size)
    return timing.best(lambda: fill_rounded_gaussian(stream, SCALE / choose_grid_step(SCALE), out))


def undecided() -> tuple[float, float]:
    """How many pairs a million draws leave to interval arithmetic, on average over ten million, and the time of one."""
    count, decide = 0, gaussian._decide

    def counted(stream: SecureStream, x: int, y: int, scale: float) -> tuple[int, int]:
        nonlocal count
        count += 1
        return decide(stream, x, y, scale)

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

    pairs, interval = undecided()
    share = pairs * interval / secure
    print(f"left to interval arithmetic: {pairs:.0f} pairs, {1e6 * interval:.0f} us each, {share:.0%} of the time")

    timing.heading("The triangle of a 16,384-square Gram matrix, product and noise, no projection")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, matrices = pool.apply(triangle, (16_384,))
    draws = 16_384 * 16_383 // 2
    print(f"{seconds:.1f} s, {1e9 * seconds / draws:.0f} ns a draw; peak memory {matrices:.2f} matrices of that size")


def _numpy() -> float:
    generator, out = np.random.default_rng(0), np.empty(MILLION)
    return timing.best(lambda: generator.standard_normal(out=out))


if __name__ == "__main__":
    main()
