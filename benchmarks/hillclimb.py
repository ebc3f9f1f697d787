"""Does noise stop a score-guided attack on a matcher, and at what total budget? Closed forms beside simulation.

    python benchmarks/hillclimb.py      (about four minutes)

Templates are synthetic. Each attack asks 16 d queries; what decides is the total epsilon that they spend together.
"""

from __future__ import annotations

import timing  # first: it pins the threads

import numpy as np

import scoreshield as ss
from scoreshield.attack import hillclimb

DELTA = 1e-6
TRIALS = 200
PASSES = 16
DIMENSIONS = (128, 384)
COSINES = (0.3, 0.5, 0.7)
#: The standard deviation of the noise, as a multiple of the one that stops the attack in the mean.
NOISE = (2.0, 1.25, 1.0, 0.8, 0.5)


def accepted(attack: str, d: int, sigma: float, cosine: float) -> tuple[float, float]:
    """The share of templates for which the attack passes, and its mean cosine."""
    run = hillclimb.linear_attack if attack == "linear" else hillclimb.hill_climb
    climbs = []
    for seed in range(TRIALS):
        template = np.random.default_rng([seed, d]).standard_normal(d)
        matcher = hillclimb.Matcher(template, sigma=sigma, threshold=cosine, rng=seed)
        climbs.append(run(matcher, queries=PASSES * d, delta=DELTA, rng=seed))
    return float(np.mean([c.accepted for c in climbs])), float(np.mean([c.cosine for c in climbs]))


def stopping() -> None:
    timing.heading(f"Total epsilon below which the expected cosine stays under a threshold (delta {DELTA:g})")
    print(f"{'d':>5}{'cosine':>8}{'mu':>10}{'epsilon':>12}{'linear attack there':>22}")
    for d in DIMENSIONS:
        for cosine in COSINES:
            epsilon = hillclimb.stopping_epsilon(d, cosine, DELTA)
            sigma = hillclimb.compute_stopping_sigma(d, PASSES * d, cosine)
            mu = 2 * np.sqrt(PASSES * d) / sigma
            exact = hillclimb.linear_cosine(d, PASSES * d, sigma)
            print(f"{d:>5}{cosine:>8}{mu:>10.1f}{epsilon:>12,.0f}{exact:>22.4f}")


def everyday_budgets() -> None:
    timing.heading(
        f"Bound on the expected cosine at total budgets in use (delta {DELTA:g}); 1/sqrt(d) is one random probe"
    )
    print(f"{'d':>5}{'1/sqrt(d)':>11}" + "".join(f"{f'epsilon {e}':>14}" for e in (1, 10, 100, 1000)))
    for d in DIMENSIONS:
        bounds = [hillclimb.best_cosine(d, d, ss.calibrate(e, DELTA, 2 * np.sqrt(d))) for e in (1, 10, 100, 1000)]
        print(f"{d:>5}{d**-0.5:>11.3f}" + "".join(f"{bound:>14.4f}" for bound in bounds))


def queries() -> None:
    timing.heading("Queries after which the bound reaches a cosine of 0.5, by the noise on each answer")
    print(f"{'noise':<38}{'sigma':>8}" + "".join(f"{f'd = {d}':>12}" for d in DIMENSIONS))
    for name, sigma in (
        ("none", 0.0),
        ("sd 0.1 (a usable match score)", 0.1),
        *((f"(epsilon {e}, delta {DELTA:g}) an answer", ss.calibrate(e, DELTA, 2.0)) for e in (100, 10, 1)),
    ):
        needed = [hillclimb.count_needed_queries(d, sigma, 0.5) for d in DIMENSIONS]
        print(f"{name:<38}{sigma:>8.3f}" + "".join(f"{count:>12,}" for count in needed))


def simulation() -> None:
    timing.heading(
        f"Share of {TRIALS} templates for which the probe passes, {PASSES} d queries; mean cosine in brackets"
    )
    print(f"{'d':>5}{'cosine':>8}{'noise':>7}{'epsilon':>12}{'stated':>9}{'linear':>16}{'hill climbing':>16}")
    for d in DIMENSIONS:
        for cosine in COSINES:
            for factor in NOISE:
                sigma = factor * hillclimb.compute_stopping_sigma(d, PASSES * d, cosine)
                epsilon = hillclimb.budget_at(PASSES * d, sigma, DELTA)
                stated = hillclimb.linear_acceptance(d, PASSES * d, sigma, cosine)
                rates = [accepted(attack, d, sigma, cosine) for attack in ("linear", "climb")]
                shown = "".join(f"{f'{rate:.3f} ({mean:.3f})':>16}" for rate, mean in rates)
                print(f"{d:>5}{cosine:>8}{factor:>7}{epsilon:>12,.0f}{stated:>9.3f}{shown}", flush=True)


if __name__ == "__main__":
    stopping()
    everyday_budgets()
    queries()
    simulation()
