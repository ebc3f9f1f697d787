"""The optimal channel beside Laplace, staircase and randomised response, on the same levels and the same utility.

Each rival is given the same 41 levels of [-1, 1]: additive noise is rounded to the nearest level and clamped to the
range, which costs no privacy; randomised response chooses among the levels. "remapped" is the best of the three after
its outputs are moved to the levels that the public prior makes best, which is free too; the saving is over that.

OMP_NUM_THREADS=1 python benchmarks/optimal.py    (five seconds on one core)
"""

from __future__ import annotations

from timing import best, heading

import numpy as np
from scipy.stats import norm

from scoreshield.privacy.levels.tables import optimal_channel, randomised_response
from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise

LEVELS = 41
THRESHOLD = 0.3
PRIORS = {"uniform": None, "N(0, 0.15)": norm(0, 0.15)}
UTILITIES = {"squared": None, "absolute": None, "threshold": THRESHOLD}


def additive(law: object, levels: np.ndarray) -> np.ndarray:
    """Noise added to each level, then moved to the nearest level."""
    edges = (levels[:-1] + levels[1:]) / 2 - levels[:, None]
    below = np.concatenate([np.zeros((LEVELS, 1)), law.cdf(edges), np.ones((LEVELS, 1))], axis=1)
    return np.diff(below, axis=1)


def costs(utility: str, levels: np.ndarray) -> np.ndarray:
    gaps = levels[:, None] - levels
    accepted = levels > THRESHOLD
    return {"squared": gaps**2, "absolute": np.abs(gaps), "threshold": accepted[:, None] != accepted}[utility] * 1.0


def table() -> None:
    rivals = ("Laplace", "staircase", "response")
    print(
        f"{'prior':<12}{'utility':<11}{'eps':>4}"
        + "".join(f"{name:>12}" for name in (*rivals, "remapped", "optimal", "saving"))
    )
    for name, prior in PRIORS.items():
        for utility, threshold in UTILITIES.items():
            for epsilon in (1.0, 2.0, 5.0, 10.0):
                channel = optimal_channel(epsilon, levels=LEVELS, prior=prior, utility=utility, threshold=threshold)
                levels = np.array(channel.inputs)
                tables = [
                    additive(LaplaceNoise(2 / epsilon), levels),
                    additive(StaircaseNoise.calibrate(epsilon, 2.0), levels),
                    randomised_response(epsilon, channel.cuts).probabilities,
                ]
                edges = np.concatenate([[-np.inf], channel.cuts, [np.inf]])
                masses = np.full(LEVELS, 1 / LEVELS) if prior is None else np.diff(prior.cdf(edges))
                weighted = masses[:, None] * costs(utility, levels)
                found = [float((t * weighted).sum()) for t in tables]
                remapped = min(float((t.T @ weighted).min(axis=1).sum()) for t in tables)
                cost = channel.expected_cost(prior, utility, threshold)
                print(
                    f"{name:<12}{utility:<11}{epsilon:>4g}"
                    + "".join(f"{value:>12.4g}" for value in (*found, remapped, cost))
                    + f"{round(1 - cost / remapped, 4) + 0.0:>12.1%}"
                )


def speed() -> None:
    print("\nmilliseconds to solve, round and verify, eps = 2, squared error")
    for delta, sizes in ((0.0, (21, 41, 61, 101)), (1e-3, (11, 21))):
        for levels in sizes:
            spent = best(lambda levels=levels, delta=delta: optimal_channel(2, delta, levels=levels), repeats=3)
            print(f"delta {delta:<8g}{levels:>4} levels{1e3 * spent:>10.0f}")


if __name__ == "__main__":
    heading("Optimal channels")
    table()
    speed()
