"""Hit budget: 300 queries in a row, each record named truly for a few of them (SciFact recall@10).

All settings are the defaults of `PrivateSearch(mode="hits")`, which were chosen on FRAMES. Each seed asks the queries
in another random order. Cuts by `PublicLevels` stand beside the default ones: of FRAMES on SciFact, and on images of
CIFAR-10, another model, fitted to public images.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Images, Retrieval, normalise

import scoreshield as ss
from scoreshield.search import PrivateSearch

#: Epsilon under record replacement, and the goal. What was offered before is an index at the same epsilon.
BUDGETS = ((16.0, 0.46), (32.0, 0.58), (48.0, 0.622))


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    data = Retrieval.scifact(folder)
    for epsilon, goal in BUDGETS:
        values = [_ask_in_a_row(data, epsilon, seed) for seed in range(seeds)]
        yield Figure(
            f"hit budget, 300 queries in a row, epsilon {epsilon:g}", values, goal, data.measure_index(epsilon, seeds)
        )
    frames = Retrieval.frames(folder)
    levels = ss.PublicLevels.fit(normalise(frames.queries) @ normalise(frames.records).T)
    for epsilon, _ in BUDGETS:
        values = [_ask_in_a_row(data, epsilon, seed, levels) for seed in range(seeds)]
        yield Figure(f"  the same with cuts fitted to FRAMES, epsilon {epsilon:g}", values)
    fitted, default = zip(*(_compare_cuts(folder, seed) for seed in range(seeds)), strict=True)
    yield Figure("CIFAR-10, 100 queries, epsilon 32, overlap@10, fitted cuts", fitted)
    yield Figure("  the same with the default cuts", default)


def _compare_cuts(folder: Path, seed: int) -> tuple[float, float]:
    """Compute how many of the ten best images remain, with cuts fitted to public images and with default ones."""
    images, found = Images.split(folder, np.random.default_rng(seed), 100), []
    for cuts in (ss.PublicLevels.fit(images.known @ images.public.T), None):
        search = PrivateSearch(images.private, mode="hits", epsilon=32.0, cuts=cuts, rng=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the default cuts name too many images
            answers = search.search_batch(images.asked, k=10)
        found.append(images.compute_overlap([hits.ids for hits in answers], 10))
    return found[0], found[1]


def _ask_in_a_row(data: Retrieval, epsilon: float, seed: int, cuts: ss.PublicLevels | None = None) -> float:
    order = np.random.default_rng(seed).permutation(len(data.queries))
    search = PrivateSearch(data.records, mode="hits", epsilon=epsilon, cuts=cuts, rng=seed)
    answers = dict(zip(order.tolist(), search.search_batch(data.queries[order], k=10), strict=True))
    return data.recall(lambda query: np.array(answers[query].ids, dtype=int), 10)
