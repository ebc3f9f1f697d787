"""How long a plan of many scores takes, on one core: Gaussian plans with their rankings, and rankings alone.

OMP_NUM_THREADS=1 python benchmarks/plan_speed.py [--scores 100000] [--rounds 3]

Each line has the least, the median and the longest time of the rounds, and the answer's mechanism. The scores are drawn
anew in each round, so that nothing is cached.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import scoreshield as ss

MATCH: dict[str, Any] = {"target_fmr": 0.01, "source": "public"}
SEARCH: dict[str, Any] = {"records": 5183, "k": 10, "source": "public"}
CASES: dict[str, Callable[..., Any]] = {
    "verification, epsilon 5": lambda *s: ss.plan.verification(*s, epsilon=5, delta=1e-6, **MATCH),
    "verification, epsilon 5, TAR 0.9": lambda *s: ss.plan.verification(
        *s, epsilon=5, delta=1e-6, target_tar=0.9, **MATCH
    ),
    "verification, least epsilon": lambda *s: ss.plan.verification(*s, delta=1e-6, target_tar=0.9, **MATCH),
    "retrieval, epsilon 8": lambda *s: ss.plan.retrieval(*s, epsilon=8, delta=1e-6, **SEARCH),
    "retrieval, epsilon 8, recall 0.6": lambda *s: ss.plan.retrieval(
        *s, epsilon=8, delta=1e-6, target_recall=0.6, **SEARCH
    ),
    "retrieval, least epsilon": lambda *s: ss.plan.retrieval(*s, delta=1e-6, target_recall=0.6, **SEARCH),
    "--need verification, epsilon 5": lambda *s: ss.plan.choose("verification", *s, epsilon=5, delta=1e-6, **MATCH),
    "--need retrieval, epsilon 8": lambda *s: ss.plan.choose("retrieval", *s, epsilon=8, delta=1e-6, **SEARCH),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{arguments.scores:,} impostor and {arguments.scores:,} genuine scores")
    for name, make in CASES.items():
        times = []
        for seed in range(arguments.rounds):
            rng = np.random.default_rng(seed)
            scores = [rng.normal(mean, sd, arguments.scores).clip(-1, 1) for mean, sd in ((0.05, 0.1), (0.55, 0.14))]
            start = time.perf_counter()
            made = make(*scores)
            times.append(time.perf_counter() - start)
        best = (made if isinstance(made, ss.plan.Choice) else made.choice).chosen.mechanism
        print(f"{name:36} {min(times):6.2f} {statistics.median(times):6.2f} {max(times):6.2f} s  {best}", flush=True)


if __name__ == "__main__":
    main()
