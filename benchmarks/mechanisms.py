"""What the same budget buys with each mechanism: SciFact retrieval through the public API, mean and spread over seeds.

python benchmarks/mechanisms.py --data-dir DIR [--seeds 10]    (scifact_minilm.npz and frames_minilm.npz; minutes)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import scoreshield as ss


class SciFact:
    def __init__(self, folder: Path, seeds: int) -> None:
        self.seeds = seeds
        with np.load(folder / "scifact_minilm.npz") as file:
            self.records, self.queries, self.pairs = file["doc_emb"], file["query_emb"], file["qrels"]
        self.relevant: dict[int, set[int]] = {}
        for query, record in self.pairs:
            self.relevant.setdefault(int(query), set()).add(int(record))

    def recall(self, k: int, answer: Callable[[int], np.ndarray]) -> float:
        """Mean share of a query's relevant records among the first k named."""
        shares = []
        for query, wanted in self.relevant.items():
            shares.append(len(wanted & set(answer(query)[:k].tolist())) / len(wanted))
        return float(np.mean(shares))

    def repeat(self, k: int, answer: Callable[[int, int], np.ndarray]) -> str:
        """Mean and spread over the seeds of the recall of a private answer to (query, seed)."""
        found = [
            self.recall(k, lambda q, seed=seed: answer(q, 1_000 * seed + q))  # type: ignore[misc]
            for seed in range(self.seeds)
        ]
        return f"{np.mean(found):.3f} ± {np.std(found, ddof=1):.3f}"

    def scores(self, k: int, **contract: Any) -> str:
        return self.repeat(
            k, lambda q, seed: ss.release_scores(self.records, self.queries[q], rng=seed, **contract).top_k(k)
        )

    def matches(self, k: int, threshold: float, **contract: Any) -> str:
        return self.repeat(
            k,
            lambda q, seed: ss.release_matches(self.records, self.queries[q], threshold, rng=seed, **contract).indices,
        )


def frames(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Scores of FRAMES questions with page titles that do not answer them, and that do."""
    with np.load(folder / "frames_minilm.npz") as file:
        scores, pairs = file["query_emb"] @ file["title_emb"].T, file["qrels"]
    others = np.ones(scores.shape, dtype=bool)
    others[pairs[:, 0], pairs[:, 1]] = False
    return scores[others].clip(-1, 1), scores[pairs[:, 0], pairs[:, 1]].clip(-1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    folder = arguments.data_dir
    data = SciFact(folder, arguments.seeds)
    start = time.perf_counter()
    clean = data.queries @ data.records.T
    print(
        f"\nSciFact, {len(data.records):,} records, {len(data.relevant)} queries, "
        f"one release a query (research mode), {data.seeds} seeds"
    )
    for k in (10, 50):
        print(f"clean recall@{k}: {data.recall(k, lambda q, k=k: np.argsort(-clean[q])[:k]):.3f}")
    print("\nrecall@10 from released scores")
    for epsilon in (5, 8, 10, 12, 15, 20):
        cells = [
            f"gaussian (delta 1e-6) {data.scores(10, epsilon=epsilon, delta=1e-6)}",
            f"laplace {data.scores(10, epsilon=epsilon, mechanism='laplace')}",
            f"staircase {data.scores(10, epsilon=epsilon, mechanism='staircase')}",
            f"staircase on [0, 0.8] {data.scores(10, epsilon=epsilon, mechanism='staircase', score_range=(0, 0.8))}",
        ]
        print(f"eps {epsilon:>3}: " + "   ".join(cells), flush=True)
    print("\nrecall@50 by screening")
    for epsilon in (4, 5, 6, 7):
        cells = [f"threshold {t:g}: {data.matches(50, t, epsilon=epsilon)}" for t in (0.40, 0.44, 0.48)]
        print(f"eps {epsilon:>3}: " + "   ".join(cells), flush=True)
    print("\nrecall@10 by screening and refining half of the budget")
    for epsilon in (8, 10, 12):
        cells = [f"threshold {t:g}: {data.matches(10, t, epsilon=epsilon, refine=0.5)}" for t in (0.40, 0.45)]
        print(f"eps {epsilon:>3}: " + "   ".join(cells), flush=True)
    print("\nrecall@10 by randomised response on public levels: released (predicted)")
    for epsilon, cuts in (
        (7, (0.4, 0.5, 0.6)),
        (8, (0.35, 0.45, 0.55, 0.65)),
        (10, (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)),
    ):
        table = ss.randomised_response(epsilon, cuts)
        told = ss.decisions.recall_of_queries(clean, data.pairs, table, k=10)
        found = data.scores(10, epsilon=epsilon, mechanism=table)
        print(f"eps {epsilon:>3}: cuts {cuts}: {found} ({told:.3f})", flush=True)
    print("\nthe same with cuts chosen on another public set (FRAMES questions and page titles), six levels")
    irrelevant, relevant = frames(folder)
    for epsilon in (8, 10):
        cuts = ss.retrieval_cuts(epsilon, len(data.records), 10, irrelevant, relevant, 6).cuts
        found = data.scores(10, epsilon=epsilon, mechanism=ss.randomised_response(epsilon, cuts))
        print(f"eps {epsilon:>3}: cuts {', '.join(f'{cut:.2f}' for cut in cuts)}: {found}", flush=True)
    print("\nrecall@10 by private selection of ten")
    for epsilon in (50, 100, 200):
        found = data.repeat(
            10,
            lambda q, seed, e=epsilon: ss.release_top_k(data.records, data.queries[q], 10, epsilon=e, rng=seed).indices,  # type: ignore[misc]
        )
        print(f"eps {epsilon:>3}: permute-and-flip {found}", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
