"""Batches of public queries for one epsilon (`release_batch`): recall@10 on SciFact, and the time beside clean scores.

All 300 queries are split into batches of one size, in a random order for each seed. The levels come from FRAMES, and
docs/batch.md says what was seen of SciFact. Levels that only FRAMES has chosen stand beside them. What was offered
before is a PrivUnit index at the same epsilon. On images of CIFAR-10, another model, levels that are fitted to public
scores stand beside the default ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import scoreshield as ss
from scoreshield.releases.batch import BatchAlphabet
from useful_parts import Figure, Images, Retrieval

Settings = dict[str, Any]

K = 10
GOALS = {(10, 8.0): 0.69, (10, 10.0): 0.76, (300, 10.0): 0.57, (300, 20.0): 0.71}
REPEATS = 5
#: The lowest and the highest cut that are best on FRAMES, and how far they move for the 5,183 records of SciFact.
FRAMES_ENDS, FRAMES_SHIFT = (0.20, 0.50), 0.038


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    data = Retrieval.scifact(folder)
    before = {epsilon: data.measure_index(epsilon, seeds) for epsilon in (8.0, 10.0, 20.0)}
    for size in (10, 30, 100, 300):
        for epsilon in (8.0, 10.0, 20.0):
            values = [compute_recall(data, size, epsilon, seed) for seed in range(seeds)]
            name = f"batches of {size} queries, epsilon {epsilon:g}, recall@10"
            yield Figure(name, values, GOALS.get((size, epsilon)), before[epsilon])
    for size, epsilon in ((10, 8.0), (10, 10.0), (300, 8.0), (300, 10.0), (300, 20.0)):
        values = [compute_recall(data, size, epsilon, seed, choose_frames_levels) for seed in range(seeds)]
        yield Figure(f"  the same with levels of FRAMES alone, {size} queries, epsilon {epsilon:g}", values)
    fitted, default = zip(*(compare_levels(folder, seed) for seed in range(seeds)), strict=True)
    name = "CIFAR-10, 30 queries, epsilon 10, overlap@10, fitted levels"
    yield Figure(name, fitted, before=default)
    yield Figure(
        "300 queries, 10^5 x 384: clean time / release time (goal: at least a third)", [compare_times()], goal=1 / 3
    )


def choose_frames_levels(data: Retrieval, queries: int, epsilon: float) -> Settings:
    """Take the chosen numbers of names and of levels, and spread the levels between the best ends on FRAMES."""
    chosen = BatchAlphabet.choose(epsilon=epsilon, records=len(data.records), queries=queries, k=K)
    low, high = (end + FRAMES_SHIFT for end in FRAMES_ENDS)
    return {"names": chosen.response.size, "levels": np.linspace(low, high, len(chosen.cuts))}


def compute_recall(
    data: Retrieval, size: int, epsilon: float, seed: int, choose: Callable[..., Settings] | None = None
) -> float:
    """Compute the mean recall over all queries, each batch released with its own budget."""
    rng = np.random.default_rng(seed)  # the figures repeat; the secure sampler draws from the same law
    order = rng.permutation(len(data.queries))
    shares = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        settings = {} if choose is None else choose(data, len(chosen), epsilon)
        release = ss.release_batch(data.records, data.queries[chosen], epsilon=epsilon, k=K, rng=rng, **settings)
        places = {int(query): place for place, query in enumerate(chosen)}
        recall = data.recall(lambda q, r=release, p=places: r.search(p[q], K).indices, K, chosen.tolist())
        shares.append(recall * len(chosen))
    return sum(shares) / len(order)


def compare_levels(folder: Path, seed: int) -> tuple[float, float]:
    """Compute how many of the ten best images remain, with levels fitted to public images and with default ones."""
    rng = np.random.default_rng(seed)
    images, found = Images.split(folder, rng, 30), []
    for levels in (ss.PublicLevels.fit(images.known @ images.public.T), None):
        release = ss.release_batch(images.private, images.asked, epsilon=10.0, k=K, levels=levels, rng=rng)
        named = [release.search(query, K).indices.tolist() for query in range(len(images.asked))]
        found.append(images.compute_overlap(named, K))
    return found[0], found[1]


def compare_times() -> float:
    """Compare the time of the product of all vectors with that of a release: the least of several turns each."""
    rng = np.random.default_rng(0)
    records, queries = (rng.standard_normal((count, 384), dtype=np.float32) for count in (100_000, 300))
    clean, private = [], []
    for _ in range(REPEATS):
        clean.append(take_time(lambda: records @ queries.T))
        private.append(take_time(lambda: ss.release_batch(records, queries, epsilon=10.0, k=K)))
    return min(clean) / min(private)


def take_time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
