"""Pairwise scores of one index whose components follow its use: Spearman correlation on STS-B, pure epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import scoreshield as ss
from useful_parts import Figure, Retrieval


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    with np.load(folder / "stsb_test_minilm.npz") as file:
        rows, i, j, scores = (file[name] for name in ("emb", "i", "j", "score"))

    def correlate(index: ss.IndexRelease) -> float:
        vectors = index.vectors.astype(np.float64)
        pairs = np.einsum("ij,ij->i", vectors[i], vectors[j])  # the entries of index.gram() that are needed
        return float(spearmanr(pairs, scores).statistic)

    for epsilon, goal in ((5.0, 0.26), (10.0, 0.48), (20.0, 0.63), (50.0, 0.74)):
        before, values = (
            [correlate(ss.release_index(rows, epsilon=epsilon, use=use, rng=seed)) for seed in range(seeds)]
            for use in ("search", "pairs")
        )
        yield Figure(f'use="pairs", STS-B Spearman, epsilon {epsilon:g}', values, goal, before)
    yield from _measure_search(folder, seeds)


def _measure_search(folder: Path, seeds: int) -> Iterator[Figure]:
    """Search keeps all components: fewer of them on FRAMES, for comparison."""
    frames = Retrieval.frames(folder)
    for epsilon in (20.0, 50.0):
        for components in (64, 256, None):
            values = []
            for seed in range(seeds):
                index = ss.release_index(frames.records, epsilon=epsilon, components=components, rng=seed)
                best = index.search(frames.queries, 10).indices
                values.append(frames.recall(lambda query, best=best: best[query], 10))
            yield Figure(f"search, FRAMES recall@10, {components or 'all'} components, epsilon {epsilon:g}", values)
