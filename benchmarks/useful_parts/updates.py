"""Index with public changes: draws of the most drawn record after a year in which 1 % of 2,000 records change each day.

One draw costs epsilon, so the number is the total in units of epsilon. Before, every change was a new release of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval

import scoreshield as ss

DAYS, SHARE, RECORDS = 365, 0.01, 2000


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    records = Retrieval.scifact(folder).records[:RECORDS]
    largest: dict[int, list[float]] = {30: [], DAYS: []}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        index = ss.release_index(records, epsilon=10.0, components=2, changes="public", ids=range(RECORDS))
        for day in range(1, DAYS + 1):
            chosen = rng.choice(RECORDS, round(SHARE * RECORDS), replace=False).tolist()
            index = index.update(changed=(chosen, records[chosen]))
            if day in largest:
                largest[day].append(index.guarantee.epsilon / 10.0)
    for day, values in largest.items():
        yield Figure(f"largest total after {day} days, in units of epsilon", values, before=1.0 + day)
