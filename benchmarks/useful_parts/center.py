"""Center of an index by PrivUnit: none, private or public; SciFact, recall@10 and @50.

The private center takes a fixed share of epsilon and delta 1e-6. The public one is the mean of half of the documents,
and the index is of the other half.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval
from useful_parts.codebook import Half

import scoreshield as ss

GOALS = {(20.0, 10): 0.322, (20.0, 50): 0.540, (100.0, 10): 0.729, (100.0, 50): 0.843}


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    scifact = Retrieval.scifact(folder)
    for epsilon in (20.0, 100.0):
        named = []
        for _ in range(seeds):
            index = ss.release_index(scifact.records, epsilon=epsilon, delta=1e-6, center="private")
            named.append(index.search(scifact.queries, 50).indices)
        for k in (10, 50):
            values = [scifact.recall(one.__getitem__, k) for one in named]
            before = scifact.measure_index(epsilon, seeds, k)
            name = f"private center, recall@{k}, epsilon {epsilon:g}, delta 1e-6"
            yield Figure(name, values, GOALS[epsilon, k], before)
    halves = [Half(scifact, seed) for seed in range(seeds)]
    means = [half.public.mean(axis=0, dtype=np.float64) for half in halves]
    pairs = list(zip(halves, means, strict=True))
    values = [half.recall(ss.release_index(half.records, epsilon=20.0, center=mean)) for half, mean in pairs]
    before = [half.recall(ss.release_index(half.records, epsilon=20.0)) for half in halves]
    yield Figure("public center (half private), recall@10, epsilon 20", values, 0.408, before)
