"""Exported index: recall@10 of FAISS HNSW against exact search on the same private vectors, SciFact and FRAMES."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from useful_parts import Figure, Retrieval

import scoreshield as ss


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    for name, data in (("SciFact", Retrieval.scifact(folder)), ("FRAMES", Retrieval.frames(folder))):
        for epsilon in (10.0, 20.0, 50.0, 200.0):
            values, kept = [], []
            for _ in range(seeds):
                index = ss.release_index(data.records, epsilon=epsilon)
                exact = index.search(data.queries, 10).indices
                _, found = index.to_faiss(kind="hnsw").search(index.reduce_query(data.queries), 10)
                pairs = zip(exact.tolist(), found.tolist(), strict=True)
                values.append(float(np.mean([len(set(a) & set(b)) / 10 for a, b in pairs])))
                kept.append(data.recall(found.__getitem__, 10) - data.recall(exact.__getitem__, 10))
            yield Figure(f"{name}, HNSW against exact search, epsilon {epsilon:g}", values)
            yield Figure(f"{name}, relevant records lost or won by HNSW, epsilon {epsilon:g}", kept)
