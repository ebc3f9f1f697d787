"""Recalibration and operating curves over a million impostor scores: time, and error against the plain sum.

python benchmarks/decisions.py     (half a minute on one core)
"""

from __future__ import annotations

from timing import best, heading

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

import scoreshield as ss
from scoreshield import decisions

EPSILONS = (0.5, 1, 2, 3, 5, 8, 10, 15, 20, 30, 40)
DELTAS = (1e-8, 1e-6, 1e-5)


def plain_threshold(scores: np.ndarray, target: float, sigma: float) -> float:
    """The obvious way: every evaluation of the rate sums all scores."""
    return float(brentq(lambda t: float(ndtr((scores - t) / sigma).mean()) - target, -1, 1 + 10 * sigma, xtol=1e-12))


def main() -> None:
    rng = np.random.default_rng(1)
    impostor = np.clip(rng.normal(0, 0.2, 1_000_000), -0.999, 0.999)
    genuine = np.clip(rng.normal(0.65, 0.2, 1_000_000), -0.999, 0.999)
    heading("Decisions over 1,000,000 impostor scores")
    sigma, target = ss.calibrate(10, 1e-6, 2.0), 1e-2

    ours = best(lambda: decisions.recalibrate(impostor, target, sigma), 3)
    plain = best(lambda: plain_threshold(impostor, target, sigma), 3)
    print(f"one recalibration, from the raw array     {ours:7.3f} s   plain sums {plain:.3f} s ({plain / ours:.1f} x)")

    def grid(scores: object) -> None:
        for delta in DELTAS:
            for epsilon in EPSILONS:
                decisions.recalibrate(scores, target, ss.calibrate(epsilon, delta, 2.0))

    print(f"11 x 3 grid of (eps, delta), raw array    {best(lambda: grid(impostor), 1):7.3f} s")
    print(f"11 x 3 grid, sorted once                  {best(lambda: grid(decisions.Sample(impostor)), 1):7.3f} s")

    worst = 0.0
    sample = decisions.Sample(impostor)
    for scale in (0.01, 0.05, 0.2, 1.0, 8.0):
        for t in (-0.5, 0.0, 0.3, 0.6, 1.0, 1.0 + 2 * scale):
            exact = math.fsum(ndtr((impostor - t) / scale)) / len(impostor)
            worst = max(worst, abs(sample.rate(t, ss.GaussianNoise(scale)) - exact))
    print(f"largest error of a rate                   {worst:7.1e}     stated: {decisions.BINNING_ERROR:.0e}")

    def curve() -> None:
        found = decisions.roc(genuine, sample, sigma)
        _ = found.auc, found.eer, found.partial_auc(0.01), found.tpr_at(1e-4)

    print(f"AUC, EER, partial AUC, TAR at 1e-4        {best(curve, 3):7.3f} s")
    least = best(lambda: decisions.minimum_epsilon(impostor, target, 1e-6), 3)
    print(f"least epsilon for FMR 1e-2, raw array     {least:7.3f} s")

    def plan() -> None:
        ss.plan.verification(
            impostor, genuine, target_fmr=1e-2, target_tar=0.9, epsilon=20, delta=1e-6, source="public"
        )

    print(f"a whole plan with its alternatives        {best(plan, 1):7.3f} s")


if __name__ == "__main__":
    main()
