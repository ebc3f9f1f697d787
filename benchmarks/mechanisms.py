"""What the same budget buys with each mechanism: SciFact retrieval, through the public API, one run.

python benchmarks/mechanisms.py --data-dir DIR     (with scifact_minilm.npz and frames_minilm.npz; half a minute)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import scoreshield as ss


class SciFact:
    def __init__(self, folder: Path) -> None:
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

    def scores(self, k: int, **contract: object) -> float:
        return self.recall(
            k,
            lambda q: ss.release_scores(self.records, self.queries[q], rng=q, **contract).top_k(k),  # type: ignore[arg-type]
        )

    def matches(self, k: int, threshold: float, **contract: object) -> float:
        return self.recall(
            k,
            lambda q: ss.release_matches(self.records, self.queries[q], threshold, rng=q, **contract).indices,  # type: ignore[arg-type]
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
    folder = parser.parse_args().data_dir
    data = SciFact(folder)
    start = time.perf_counter()
    clean = data.queries @ data.records.T
    print(
        f"\nSciFact, {len(data.records):,} records, {len(data.relevant)} queries, one release a query (research mode)"
    )
    for k in (10, 50):
        print(f"clean recall@{k}: {data.recall(k, lambda q, k=k: np.argsort(-clean[q])[:k]):.3f}")
    print("\nrecall@10 from released scores")
    for epsilon in (5, 8, 10, 12, 15, 20):
        cells = [
            f"gaussian (delta 1e-6) {data.scores(10, epsilon=epsilon, delta=1e-6):.3f}",
            f"laplace {data.scores(10, epsilon=epsilon, mechanism='laplace'):.3f}",
            f"staircase {data.scores(10, epsilon=epsilon, mechanism='staircase'):.3f}",
            "staircase on [0, 0.8] "
            f"{data.scores(10, epsilon=epsilon, mechanism='staircase', score_range=(0, 0.8)):.3f}",
        ]
        print(f"eps {epsilon:>3}: " + "   ".join(cells), flush=True)
    print("\nrecall@50 by screening")
    for epsilon in (4, 5, 6, 7):
        cells = [f"threshold {t:g}: {data.matches(50, t, epsilon=epsilon):.3f}" for t in (0.40, 0.44, 0.48)]
        print(f"eps {epsilon:>3}: " + "   ".join(cells), flush=True)
    print("\nrecall@10 by screening and refining half of the budget")
    for epsilon in (8, 10, 12):
        cells = [f"threshold {t:g}: {data.matches(10, t, epsilon=epsilon, refine=0.5):.3f}" for t in (0.40, 0.45)]
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
        print(f"eps {epsilon:>3}: cuts {cuts}: {found:.3f} ({told:.3f})", flush=True)
    print("\nthe same with cuts chosen on another public set (FRAMES questions and page titles), six levels")
    irrelevant, relevant = frames(folder)
    for epsilon in (8, 10):
        cuts = ss.retrieval_cuts(epsilon, len(data.records), 10, irrelevant, relevant, 6).cuts
        found = data.scores(10, epsilon=epsilon, mechanism=ss.randomised_response(epsilon, cuts))
        print(f"eps {epsilon:>3}: cuts {', '.join(f'{cut:.2f}' for cut in cuts)}: {found:.3f}", flush=True)
    print("\nrecall@10 by private selection of ten")
    for epsilon in (50, 100, 200):
        found = data.recall(
            10, lambda q, e=epsilon: ss.release_top_k(data.records, data.queries[q], 10, epsilon=e, rng=q).indices
        )
        print(f"eps {epsilon:>3}: permute-and-flip {found:.3f}", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
