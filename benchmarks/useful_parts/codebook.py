"""Codebook index: half of SciFact as the public corpus, the other half private; recall@10 of its queries.

Each seed is another random half, and fresh noise. Nothing was tuned on SciFact. "Before" is PrivUnit on these halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval

import scoreshield as ss

K = 10
GOALS = {8.0: 0.256, 10.0: 0.47, 12.0: 0.529, 15.0: 0.542, 20.0: 0.68, 30.0: 0.727}
LOG = 150


class Half:
    """One half of a retrieval set as private records with the queries that they answer, and the rest as public."""

    def __init__(self, whole: Retrieval, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(whole.records))
        self.public, private = whole.records[order[: len(order) // 2]], order[len(order) // 2 :]
        places = {number: place for place, number in enumerate(private.tolist())}
        relevant = [{places[one] for one in answers if one in places} for answers in whole.relevant]
        asked = [number for number, answers in enumerate(relevant) if answers]
        self.queries, self.relevant = whole.queries[asked], [relevant[number] for number in asked]
        self.other_queries = np.delete(whole.queries, asked, axis=0)
        self.records = whole.records[private]

    def recall(self, index: ss.CodebookRelease | ss.IndexRelease) -> float:
        return self._compare(index.search(self.queries, K).indices)

    def recall_clean(self) -> float:
        return self._compare(np.argsort(-(self.queries @ self.records.T), axis=1)[:, :K])

    def _compare(self, named: np.ndarray) -> float:
        pairs = zip(self.relevant, named, strict=True)
        return float(np.mean([len(one & set(row.tolist())) / len(one) for one, row in pairs]))


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    scifact, frames = Retrieval.scifact(folder), Retrieval.frames(folder)
    halves = [Half(scifact, seed) for seed in range(seeds)]
    books = [ss.PublicCodebook(half.public, source="Half of the documents of SciFact.") for half in halves]
    yield Figure("the private halves without privacy, recall@10", [half.recall_clean() for half in halves])
    for epsilon, goal in GOALS.items():
        yield Figure(
            f"documents as codebook, recall@10, epsilon {epsilon:g}",
            [_release(half, book, epsilon) for half, book in zip(halves, books, strict=True)],
            goal,
            [half.recall(ss.release_index(half.records, epsilon=epsilon)) for half in halves],
        )
    pairs = zip(halves, books, strict=True)
    predicted = [book.try_on(half.other_queries, epsilon=20.0, repeats=1).recall for half, book in pairs]
    yield Figure("documents as codebook, predicted agreement, epsilon 20", predicted)
    whole, before = zip(*(_release_with_log(scifact, seed) for seed in range(seeds)), strict=True)
    yield Figure("150 past queries as codebook, recall@10, epsilon 20", whole, 0.378, before)
    titles = ss.PublicCodebook(frames.records, source="Titles of FRAMES.")
    values = [_release(half, titles, 10.0) for half in halves]
    yield Figure("other domain (FRAMES) as codebook, recall@10, epsilon 10", values)
    trials = [titles.try_on(half.other_queries, half.public, epsilon=10.0, repeats=1) for half in halves]
    yield Figure("the same, predicted agreement", [trial.recall for trial in trials])
    useless = [float(not trial.is_useful) for trial in trials]
    yield Figure("the same, share of trials that say it is useless", useless, 1.0)


def _release(half: Half, book: ss.PublicCodebook, epsilon: float) -> float:
    return half.recall(ss.release_index(half.records, epsilon=epsilon, codebook=book))


def _release_with_log(scifact: Retrieval, seed: int) -> tuple[float, float]:
    """All documents private, half of the queries a public log, recall of the other half; then that of PrivUnit."""
    order = np.random.default_rng(seed).permutation(len(scifact.queries))
    book = ss.PublicCodebook(scifact.queries[order[:LOG]], source="A log of past queries.")
    found = []
    for options in ({"codebook": book}, {}):
        named = ss.release_index(scifact.records, epsilon=20.0, **options).search(scifact.queries, K).indices
        found.append(scifact.recall(named.__getitem__, K, order[LOG:].tolist()))
    return found[0], found[1]
