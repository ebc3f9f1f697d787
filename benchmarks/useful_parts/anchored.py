"""One query by anchored windows: recall on SciFact, with every parameter from FRAMES."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval

import scoreshield as ss

#: k, epsilon, the goal, and the best of what was offered before: levels with cuts from FRAMES, screening for k = 50.
CASES: tuple[tuple[int, float, float | None, float | None], ...] = (
    (10, 7.0, 0.58, None),
    (10, 8.0, 0.70, 0.529),
    (10, 9.0, 0.74, None),
    (10, 10.0, 0.76, 0.556),
    (10, 12.0, 0.78, 0.708),
    (50, 6.0, 0.83, 0.731),
    (50, 7.0, 0.86, None),
)
_RECORDS, _DIMENSION, _TIMES = 100_000, 384, 30


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    """Measure recall at each budget, that of staircase noise beside it, and the time of a release."""
    scifact = Retrieval.scifact(folder)
    for k, epsilon, goal, before in CASES:
        for mechanism, name in ((ss.AnchoredWindows(k=k), "anchored"), ("staircase", "  staircase noise")):
            values = [_measure_recall(scifact, mechanism, epsilon, k, seed) for seed in range(seeds)]
            is_new = name == "anchored"
            yield Figure(f"{name}, recall@{k} at epsilon {epsilon:g}", values, *((goal, before) if is_new else ()))
    ratios = _compare_times()
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    name = f"time of a release of {_RECORDS:,} records, over that of staircase noise"
    yield Figure(f"{name}: median {middle:.2f}, 10 % {low:.2f}, 90 % {high:.2f}; mean", ratios)


def _measure_recall(data: Retrieval, mechanism: ss.AnchoredWindows | str, epsilon: float, k: int, seed: int) -> float:
    def answer(query: int) -> np.ndarray:
        rng = np.random.default_rng([seed, query])
        made = ss.release_scores(
            data.records,
            data.queries[query],
            epsilon=epsilon,
            mechanism=mechanism,  # type: ignore[arg-type]
            rng=rng,
        )
        return made.top_k(k)

    return data.recall(answer, k)


def _compare_times() -> list[float]:
    """The quotients of the times of secure releases, made in turn, each with the staircase release after it."""
    rng = np.random.default_rng(0)
    rows, query = rng.standard_normal((_RECORDS, _DIMENSION), dtype=np.float32), rng.standard_normal(_DIMENSION)

    def take_time(mechanism: str) -> float:
        start = time.perf_counter()
        ss.release_scores(rows, query, epsilon=8.0, mechanism=mechanism)  # type: ignore[arg-type]
        return time.perf_counter() - start

    for mechanism in ("anchored", "staircase"):
        take_time(mechanism)  # the first release loads libraries
    return [take_time("anchored") / take_time("staircase") for _ in range(_TIMES)]
