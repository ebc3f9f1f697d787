"""Error and time of the analytic calibration against mpmath and two peer libraries, in one run.

    python benchmarks/calibration.py      (needs the 'peers' extra)

For each library: at how many points of the grid its scale gives a larger delta than asked for, and by what factor at
worst; at how many it fails; how far it lies from the optimal scale where it does neither; and the time of a call.
"""

from __future__ import annotations

import timing  # first: it pins the threads

import time
import warnings
from collections.abc import Callable

import mpmath

import scoreshield as ss

EPSILONS = [1e-3, 1e-2, 0.1, 0.5, 1, 2, 5, 10, 20, 35, 50, 100, 200, 300, 500, 700, 1000]
DELTAS = [1e-300, 1e-100, 1e-30, 1e-12, 1e-8, 1e-6, 1e-4, 1e-2]


def exact_log_delta(epsilon: float, sigma: mpmath.mpf) -> mpmath.mpf:
    mu = 2 / sigma
    first = mpmath.erfc((epsilon / mu - mu / 2) / mpmath.sqrt(2)) / 2
    return mpmath.log(first - mpmath.exp(epsilon) * mpmath.erfc((epsilon / mu + mu / 2) / mpmath.sqrt(2)) / 2)


def optimal(epsilon: float, delta: float) -> mpmath.mpf:
    """The least scale for sensitivity 2, to twelve digits, by bisection around ours."""
    target = mpmath.log(mpmath.mpf(delta))
    start = mpmath.mpf(ss.calibrate(epsilon, delta, 2.0))
    low, high = start * (1 - mpmath.mpf("1e-5")), start * (1 + mpmath.mpf("1e-5"))
    for _ in range(32):
        middle = (low + high) / 2
        low, high = (low, middle) if exact_log_delta(epsilon, middle) <= target else (middle, high)
    return high


def dp_accounting_scale(epsilon: float, delta: float) -> float:
    from dp_accounting import get_sigma_gaussian

    return 2 * float(get_sigma_gaussian(epsilon, delta))


def diffprivlib_scale(epsilon: float, delta: float) -> float:
    from diffprivlib.mechanisms import GaussianAnalytic

    return float(GaussianAnalytic(epsilon=epsilon, delta=delta, sensitivity=2.0)._scale)


def main() -> None:
    points = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]
    timing.heading(f"Analytic Gaussian calibration at {len(points)} points (epsilon, delta), sensitivity 2")
    mpmath.mp.dps = 60
    best = {point: optimal(*point) for point in points}
    libraries: tuple[tuple[str, Callable[[float, float], float]], ...] = (
        ("ScoreShield", lambda epsilon, delta: ss.calibrate(epsilon, delta, 2.0)),
        ("dp-accounting", dp_accounting_scale),
        ("diffprivlib", diffprivlib_scale),
    )
    print(f"{'':<16}{'delta too large':>16}{'by at most':>12}{'failed':>8}{'excess noise':>14}{'mean time':>12}")
    for name, scale in libraries:
        over, failed, elapsed = 0, 0, 0.0
        factor, excess = mpmath.mpf(1), mpmath.mpf(0)
        scale(1.0, 1e-5)
        for point in points:
            start = time.perf_counter()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    sigma = mpmath.mpf(scale(*point))
            except Exception:
                failed += 1
                continue
            finally:
                elapsed += time.perf_counter() - start
            ratio = mpmath.exp(exact_log_delta(point[0], sigma)) / mpmath.mpf(point[1])
            if ratio > 1:
                over, factor = over + 1, max(factor, ratio)
            else:
                excess = max(excess, sigma / best[point] - 1)
        mean = elapsed / len(points)
        by = "" if over == 0 else f"1 + {mpmath.nstr(factor - 1, 2)}"
        print(f"{name:<16}{over:>16}{by:>12}{failed:>8}{mpmath.nstr(excess, 2):>14}{1e3 * mean:>9.3f} ms")


if __name__ == "__main__":
    main()
