"""One query by anchored windows: recall on SciFact, with every parameter from FRAMES.

Before, the best were levels with cuts from FRAMES or staircase noise, and for k = 50 screening.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval
from useful_parts.tables import measure_before

import scoreshield as ss

#: k, epsilon and the goal.
CASES: tuple[tuple[int, float, float], ...] = (
    (10, 7.0, 0.58),
    (10, 8.0, 0.70),
    (10, 9.0, 0.74),
    (10, 10.0, 0.76),
    (10, 12.0, 0.78),
    (50, 6.0, 0.83),
    (50, 7.0, 0.86),
)
#: The best threshold of screening on SciFact.
_THRESHOLD = 0.44
_RECORDS, _DIMENSION, _TIMES = 100_000, 384, 30


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    """Measure recall at each budget, that of the best mechanism before it, and the time of a release."""
    scifact, frames = Retrieval.scifact(folder), Retrieval.frames(folder)
    for k, epsilon, goal in CASES:
        values = scifact.measure_scores(seeds, k, epsilon=epsilon, mechanism=ss.AnchoredWindows(k=k))
        before = (
            measure_before(scifact, frames, epsilon, seeds)
            if k == 10
            else _measure_screening(scifact, epsilon, k, seeds)
        )
        yield Figure(f"anchored, recall@{k} at epsilon {epsilon:g}", values, goal, before)
    for epsilon in (8.0, 10.0):
        yield Figure(
            f"anchored, share of queries with none of the clean ten at epsilon {epsilon:g}",
            _count_misses(scifact, epsilon, seeds),
        )
    ratios = _compare_times()
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    name = f"time of a release of {_RECORDS:,} records, over that of staircase noise"
    yield Figure(f"{name}: median {middle:.2f}, 10 % {low:.2f}, 90 % {high:.2f}; mean", ratios)


def _count_misses(data: Retrieval, epsilon: float, seeds: int) -> list[float]:
    """The share of queries that find none of the ten clean best: their private quantile lies far off."""
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (data.queries, data.records)]
    clean = np.argsort(-(unit[0] @ unit[1].T), axis=1)[:, :10]
    values = []
    for seed in range(seeds):
        misses = 0
        for number, query in enumerate(data.queries):
            release = ss.release_scores(
                data.records, query, epsilon=epsilon, mechanism="anchored", rng=seed * 1000 + number
            )
            misses += not np.isin(release.top_k(10), clean[number]).any()
        values.append(misses / len(data.queries))
    return values


def _measure_screening(data: Retrieval, epsilon: float, k: int, seeds: int) -> list[float]:
    values = []
    for seed in range(seeds):
        named = [
            ss.release_matches(data.records, query, _THRESHOLD, epsilon=epsilon, rng=seed * 1000 + number).indices
            for number, query in enumerate(data.queries)
        ]
        values.append(data.recall(named.__getitem__, k))
    return values


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
