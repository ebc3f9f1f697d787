"""Hit budget: 300 queries in a row, each record named truly for a few of them (SciFact recall@10).

All settings are the defaults of `PrivateSearch(mode="hits")`, which were chosen on FRAMES. Each seed asks the queries
in another random order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval

from scoreshield.search import PrivateSearch

#: Epsilon under record replacement, the goal, and what an index has at the same epsilon.
BUDGETS = ((16.0, 0.46, 0.18), (32.0, 0.58, 0.46), (48.0, 0.622, 0.57))


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    data = Retrieval.scifact(folder)
    for epsilon, goal, before in BUDGETS:
        values = [_ask_in_a_row(data, epsilon, seed) for seed in range(seeds)]
        yield Figure(f"hit budget, 300 queries in a row, epsilon {epsilon:g}", values, goal, before)


def _ask_in_a_row(data: Retrieval, epsilon: float, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(len(data.queries))
    search = PrivateSearch(data.records, mode="hits", epsilon=epsilon, rng=seed)
    answers = dict(zip(order.tolist(), search.search_batch(data.queries[order], k=10), strict=True))
    return data.recall(lambda query: np.array(answers[query].ids, dtype=int), 10)
