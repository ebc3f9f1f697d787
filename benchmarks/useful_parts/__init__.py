"""The parts of `benchmarks/useful.py`: one module for each mechanism, and what they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scoreshield as ss


@dataclass(frozen=True)
class Figure:
    """One measured figure: its values over the seeds, the goal, and what was offered before, if anything was.

    What was offered before is measured over the same seeds, or is one number where nothing is drawn.
    """

    name: str
    values: Sequence[float]
    goal: float | None = None
    before: float | Sequence[float] | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def spread(self) -> float:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def is_reached(self) -> bool:
        """Whether the mean is at the goal, within three standard errors."""
        return self.goal is None or self.mean >= self.goal - 3 * self.spread / math.sqrt(len(self.values)) - 5e-4

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"  goal {self.goal:.3f}{'' if self.is_reached else ' MISSED'}"
        before = "" if self.before is None else f"  before {format_values(self.before)}"
        return f"{self.name:<58} {format_values(self.values)}{goal}{before}"


def format_values(values: float | Sequence[float]) -> str:
    """Write a number, or the mean and the spread of several."""
    if isinstance(values, float):
        return f"{values:.3f}"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.3f}"


def normalise(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Images(NamedTuple):
    """CIFAR-10 through EfficientNet-Lite0, split at random: public images and queries, and private ones to search."""

    public: np.ndarray
    known: np.ndarray
    private: np.ndarray
    asked: np.ndarray

    @classmethod
    def split(cls, folder: Path, rng: np.random.Generator, asked: int) -> Images:
        with np.load(folder / "cifar10_effnetlite0.npz") as file:
            images, queries = (normalise(file[name].astype(np.float32)) for name in ("gallery_emb", "query_emb"))
        rng.shuffle(images)
        rng.shuffle(queries)
        return cls(images[:1000], queries[:200], images[1000:], queries[200 : 200 + asked])

    def compute_overlap(self, named: Sequence[Collection[int]], k: int) -> float:
        """Compute the mean share of each query's k best images that is named."""
        best = np.argsort(-(self.asked @ self.private.T), axis=1)[:, :k].tolist()
        return float(np.mean([len(set(row) & set(one)) / k for row, one in zip(best, named, strict=True)]))


class Retrieval:
    """A retrieval set: records, queries and which records answer each query."""

    def __init__(self, records: np.ndarray, queries: np.ndarray, pairs: np.ndarray) -> None:
        self.records, self.queries = records, queries
        self.relevant = [set(pairs[pairs[:, 0] == query, 1].tolist()) for query in range(len(queries))]

    @classmethod
    def scifact(cls, folder: Path) -> Retrieval:
        with np.load(folder / "scifact_minilm.npz") as file:
            return cls(file["doc_emb"], file["query_emb"], file["qrels"])

    @classmethod
    def frames(cls, folder: Path) -> Retrieval:
        with np.load(folder / "frames_minilm.npz") as file:
            return cls(file["title_emb"], file["query_emb"], file["qrels"])

    def recall(self, answer: Callable[[int], np.ndarray], k: int, queries: Sequence[int] | None = None) -> float:
        """Compute the mean share of each query's relevant records among the first k that are named."""
        chosen = range(len(self.queries)) if queries is None else queries
        shares = [len(self.relevant[q] & set(answer(q)[:k].tolist())) / len(self.relevant[q]) for q in chosen]
        return float(np.mean(shares))

    def measure_index(self, epsilon: float, seeds: int, k: int = 10) -> list[float]:
        """Measure what an index by PrivUnit keeps, which was offered before for any number of queries."""
        named = [
            ss.release_index(self.records, epsilon=epsilon, rng=seed).search(self.queries, k).indices
            for seed in range(seeds)
        ]
        return [self.recall(one.__getitem__, k) for one in named]

    def measure_scores(self, seeds: int, k: int = 10, **contract: Any) -> list[float]:
        """Measure what one release of scores per query keeps."""
        values = []
        for seed in range(seeds):
            best = [
                ss.release_scores(self.records, query, rng=seed * 1000 + number, **contract).top_k(k)
                for number, query in enumerate(self.queries)
            ]
            values.append(self.recall(best.__getitem__, k))
        return values
