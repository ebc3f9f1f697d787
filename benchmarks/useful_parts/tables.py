"""Level tables: the accept bit of a face matcher, fixed levels, thinned tables, and a bit on a Gaussian's curve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import scoreshield as ss
from useful_parts import Figure, Retrieval

#: Cuts that were seen on SciFact by whoever set the goals; the figures with them are marked.
_SEEN = (0.30, 0.37, 0.44, 0.51, 0.58)

#: The scores of this face model lie above it.
LOWEST = 0.7


def measure(folder: Path, seeds: int) -> Iterator[Figure]:
    yield from _measure_faces(folder, seeds)
    scifact, frames = Retrieval.scifact(folder), Retrieval.frames(folder)
    levels = {
        (8.0, 0.717): _SEEN,
        (10.0, 0.766): 0.30 + 0.04 * np.arange(12),
        (12.0, 0.784): 0.30 + 0.025 * np.arange(19),
    }
    for (epsilon, goal), cuts in levels.items():
        table = ss.randomised_response(epsilon, cuts)
        name = f"{len(table.cuts) + 1} fixed levels (seen), SciFact recall@10, epsilon {epsilon:g}"
        yield Figure(name, _search(scifact, table, seeds), goal, measure_before(scifact, frames, epsilon, seeds))
    name = "thinned (seen cuts), recall@10, advantage 0.5, epsilon 8"
    gaussian = _search_with_gaussian(scifact, advantage=0.5, seeds=seeds)
    yield Figure(name, _search(scifact, ss.thinned_response(8, _SEEN, advantage=0.5), seeds), 0.36, gaussian)
    cuts = _choose_cuts(frames, len(scifact.records))
    name = "thinned (cuts from FRAMES), advantage 0.5, epsilon 8"
    yield Figure(name, _search(scifact, ss.thinned_response(8, cuts, advantage=0.5), seeds), None, gaussian)
    share = 7 / len(scifact.records)
    bit = ss.gaussian_bit(20, 1e-6, _choose_threshold(frames, len(scifact.records)), false_share=share)
    name = "bit on the Gaussian's curve (20, 1e-6), threshold from FRAMES"
    before = scifact.measure_scores(seeds, epsilon=20, delta=1e-6, mechanism="gaussian", score_range=(0.0, 0.8))
    yield Figure(name, _search(scifact, bit, seeds, delta=1e-6), 0.285, before)


def _measure_faces(folder: Path, seeds: int) -> Iterator[Figure]:
    """Thresholds from one half of the folds, as public pairs; rates on the other half, drawn through a release."""
    with np.load(folder / "lfw_scores.npz") as file:
        genuine, impostor = file["dlib_genuine"].astype(np.float64), file["dlib_impostor"].astype(np.float64)
        folds = file["fold_genuine"], file["fold_impostor"]
    for epsilon, goal in ((4.0, 0.50), (5.0, 0.97), (6.0, None), (8.0, None)):
        noise = ss.LaplaceNoise.calibrate(epsilon, 1 - LOWEST)  # predicted, for scores on a public range
        before = float(ss.decisions.roc(genuine.clip(LOWEST, 1), impostor.clip(LOWEST, 1), noise).tpr_at(0.01))
        rates = []
        for seed in range(seeds):
            chosen = np.random.default_rng(seed).permutation(10)[:5]
            public = [np.isin(fold, chosen) for fold in folds]
            bit = ss.accept_bit(
                epsilon, impostor=impostor[public[1]], genuine=genuine[public[0]], false_match_rate=0.01
            )
            rates.append(
                [
                    _accept(bit, scores[~side], epsilon, seed)
                    for scores, side in zip((genuine, impostor), public, strict=True)
                ]
            )
        true, false = np.array(rates).T
        yield Figure(f"accept bit, LFW dlib true matches at FMR 1 %, epsilon {epsilon:g}", true, goal, before)
        yield Figure(f"  false matches measured, epsilon {epsilon:g}", false)


def _accept(bit: ss.AcceptBit, scores: np.ndarray, epsilon: float, seed: int) -> float:
    """The share of pairs that are accepted: a record with each score, released through the table."""
    rows = np.stack([scores, np.sqrt(np.maximum(0.0, 1 - scores**2))], axis=1)
    release = ss.release_scores(rows, np.array([1.0, 0.0]), epsilon=epsilon, mechanism=bit.table, rng=seed)
    return float(np.mean(release.noisy > bit.threshold))


def _search(data: Retrieval, table: ss.LevelChannel, seeds: int, delta: float = 0.0) -> list[float]:
    return data.measure_scores(seeds, epsilon=max(table.epsilon, 1.0), delta=delta, mechanism=table)


def measure_before(data: Retrieval, public: Retrieval, epsilon: float, seeds: int) -> list[float]:
    """The better one of six levels with cuts from public scores and staircase noise on a narrow range."""
    cuts = _choose_cuts(public, len(data.records), epsilon)
    levels = _search(data, ss.randomised_response(epsilon, cuts), seeds)
    noisy = data.measure_scores(seeds, epsilon=epsilon, mechanism="staircase", score_range=(0.0, 0.8))
    return max(levels, noisy, key=np.mean)


def _search_with_gaussian(data: Retrieval, advantage: float, seeds: int) -> list[float]:
    """Gaussian noise that leaves the best membership test this advantage."""
    contract = ss.plan.make_contract(delta=1e-6, max_advantage=advantage)
    return data.measure_scores(seeds, epsilon=contract.epsilon, delta=1e-6, mechanism="gaussian")


def _read_scores(data: Retrieval) -> tuple[np.ndarray, np.ndarray]:
    """Public scores: of relevant pairs, and of the others."""
    scores = data.queries @ data.records.T
    mask = np.zeros(scores.shape, dtype=bool)
    for query, records in enumerate(data.relevant):
        mask[query, list(records)] = True
    return scores[mask].astype(np.float64), scores[~mask][::17].astype(np.float64)


def _choose_cuts(data: Retrieval, records: int, epsilon: float = 8.0) -> tuple[float, ...]:
    relevant, irrelevant = _read_scores(data)
    return ss.retrieval_cuts(epsilon, records, 10, irrelevant, relevant, 6).cuts


def _choose_threshold(data: Retrieval, records: int) -> float:
    """The threshold of the best predicted recall for the bit, by the rates of the public pairs."""
    relevant, irrelevant = _read_scores(data)
    best = []
    for threshold in np.arange(0.3, 0.7, 0.01):
        bit = ss.gaussian_bit(20, 1e-6, float(threshold), false_share=7 / records)
        recall = ss.decisions.recall_at_k(relevant, irrelevant, bit, records=records, k=10)
        best.append((recall, float(threshold)))
    return max(best)[1]
