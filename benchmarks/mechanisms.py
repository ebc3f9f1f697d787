"""What the same budget buys with each mechanism: SciFact retrieval, through the public API, one run.

python benchmarks/mechanisms.py --data-dir DIR     (a folder with scifact_minilm.npz; about three minutes)
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
            self.records, self.queries, pairs = file["doc_emb"], file["query_emb"], file["qrels"]
        self.relevant: dict[int, set[int]] = {}
        for query, record in pairs:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    data = SciFact(parser.parse_args().data_dir)
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
    print("\nrecall@10 by private selection of ten")
    for epsilon in (50, 100, 200):
        found = data.recall(
            10, lambda q, e=epsilon: ss.release_top_k(data.records, data.queries[q], 10, epsilon=e, rng=q).indices
        )
        print(f"eps {epsilon:>3}: permute-and-flip {found:.3f}", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
