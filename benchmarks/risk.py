"""Risk bounds beside the risk itself: exact for scores, simulated for Gram matrices.

OMP_NUM_THREADS=1 python benchmarks/risk.py    (ten seconds on one core)
"""

from __future__ import annotations

import numpy as np

import scoreshield as ss
from scoreshield import risk

CONFIDENCE = 0.999
CASES = [(200, 5, s) for s in (1e-3, 0.1, 1.0, 10.0, 300.0)] + [(200, 1, 0.1), (200, 40, 0.1), (200, 200, 0.1)]


def gram(n: int, r: int) -> np.ndarray:
    """Cosines of n Gaussian vectors of r dimensions."""
    rows = np.random.default_rng(0).standard_normal((n, r))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def scores() -> None:
    print("\nOne clipped score on [-1, 1]: the exact risk, and the bounds at active = 0")
    names = ("naive", "global (paper)", "global", "size", "worst case")
    print(f"{'sigma':>7}{'at s = 0':>10}{'at s = 1':>10}" + "".join(f"{name:>16}" for name in names))
    for sigma in (0.05, 0.25, 0.5, 1.0, 2.0, 8.449, 61.5):
        table = risk.bounds("scores", 1, sigma)
        exact = (risk.exact_risk([s], sigma) for s in (0.0, 1.0))
        print(
            f"{sigma:>7g}"
            + "".join(f"{value:>10.4g}" for value in exact)
            + "".join(f"{table[name].value:>16.4g}" for name in names)
        )


def matrices() -> None:
    print(f"\nGram matrices of Gaussian vectors: simulated risk ({CONFIDENCE:g} interval, 40 trials) and bounds")
    names = ("naive", "global (paper)", "global", "size", "rank", "rank-aware", "rank-aware (loose)")
    print(f"{'n':>4}{'r':>4}{'sigma':>7}  {'projection':<34}{'rank':<12}" + "".join(f"{name:>20}" for name in names))
    for n, r, sigma in CASES:
        clean = gram(n, r)
        found = risk.compare("gram", clean, sigma, rank=r, trials=40, rng=1, confidence=CONFIDENCE)
        truncated = risk.simulate("gram", clean, sigma, estimator="rank", rank=r, trials=40, rng=1)
        estimate = found.estimate
        assert estimate.unconverged == 0
        interval = f"{estimate.mean:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
        cells = (f"{found.bounds[name].value:.4g} {found.verdicts[name]}" for name in names)
        print(
            f"{n:>4}{r:>4}{sigma:>7g}  {interval:<34}{truncated.mean:<12.3g}" + "".join(f"{c:>20}" for c in cells),
            flush=True,
        )


def crossovers() -> None:
    print("\nLargest rank at which a rank bound is at most the best one without a rank")
    print(f"{'n':>6}{'sigma':>7}" + "".join(f"{name:>20}" for name in risk.RANK_BOUNDS))
    for n in (200, 2552):
        for sigma in (0.01, 0.1, 1.0, 10.0):
            ranks = (risk.crossover_rank(n, sigma, name=name) for name in risk.RANK_BOUNDS)
            print(f"{n:>6}{sigma:>7g}" + "".join(f"{rank:>20}" for rank in ranks))


if __name__ == "__main__":
    print(f"ScoreShield {ss.__version__}, NumPy {np.__version__}")
    scores()
    matrices()
    crossovers()
