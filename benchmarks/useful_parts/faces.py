"""Pairs of faces, both private: LFW dlib, a public basis and mean from other people, pure epsilon.

What was offered before is an index for pairs in a random subspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

import scoreshield as ss
from useful_parts import Figure

#: Numbers of components to try on pairs of the public people.
_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    with np.load(folder / "lfw_dlib.npz") as file:
        faces, people, pairs = file["emb"].astype(np.float64), file["identity"], file["pairs"]
    faces /= np.linalg.norm(faces, axis=1, keepdims=True)
    for epsilon, goal in ((5.0, 0.823), (10.0, 0.941), (20.0, 0.980)):
        values, plain = [], []
        for seed in range(seeds):
            public = np.random.default_rng(seed).permutation(people.max() + 1)[: (people.max() + 1) // 2]
            is_public = np.isin(people, public)
            mean, basis = find_basis(faces[is_public])
            both = pairs[~is_public[pairs[:, 0]] & ~is_public[pairs[:, 1]]]
            own = pairs[is_public[pairs[:, 0]] & is_public[pairs[:, 1]]]
            r = choose_components(faces, own, epsilon, mean, basis, seed)
            index = ss.release_index(faces, epsilon=epsilon, center=mean, reduction=basis[:r], rng=seed)
            values.append(compute_auc(index, both))
            plain.append(compute_auc(ss.release_index(faces, epsilon=epsilon, use="pairs", rng=seed), both))
        name = f"public basis and mean, pairs of faces AUC, epsilon {epsilon:g}"
        yield Figure(name, values, goal, plain)


def find_basis(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the public faces, and their principal directions, leading first."""
    mean = faces.mean(axis=0)
    centred = faces - mean
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    return mean, np.linalg.svd(centred, full_matrices=False)[2]


def choose_components(
    faces: np.ndarray, pairs: np.ndarray, epsilon: float, mean: np.ndarray, basis: np.ndarray, seed: int
) -> int:
    """The number of components with the largest AUC on pairs of public people, which costs nothing."""
    places = np.unique(pairs[:, :2])
    rows, small = faces[places], pairs.copy()
    small[:, :2] = np.searchsorted(places, pairs[:, :2])
    found = {}
    for r in _COUNTS:
        options = {"epsilon": epsilon, "center": mean, "reduction": basis[:r]}
        runs = [ss.release_index(rows, rng=100 * seed + run, **options) for run in range(2)]
        found[r] = np.mean([compute_auc(index, small) for index in runs])
    return max(found, key=found.__getitem__)


def compute_auc(index: ss.IndexRelease, pairs: np.ndarray) -> float:
    vectors = index.vectors.astype(np.float64)
    scores = np.einsum("ij,ij->i", vectors[pairs[:, 0]], vectors[pairs[:, 1]])
    same = pairs[:, 2] == 1
    count, other = same.sum(), (~same).sum()
    return float((rankdata(scores)[same].sum() - count * (count + 1) / 2) / (count * other))
