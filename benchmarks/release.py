"""How long a whole private release takes, against reading every row of the collection once, in one run.

python benchmarks/release.py
"""

from __future__ import annotations

import timing  # first: it pins the threads

import numpy as np

import scoreshield as ss
from scoreshield.geometry import embeddings

N, D = 100_000, 384


def main() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((N, D), dtype=np.float32)
    query = rng.standard_normal(D).astype(np.float32)
    contract = {"epsilon": 1.0, "delta": 1e-6}
    unit, _ = embeddings.as_queries(query, D)

    timing.heading(f"Scores of one query: n = {N:,}, d = {D}, float32")
    read = timing.best(rows.max, repeats=15)
    for name, run in (
        ("read every row once (max)", rows.max),
        ("einsum('ij,j->i')", lambda: np.einsum("ij,j->i", rows, query)),
        ("X @ q in C order", lambda: rows @ query),
        ("clean cosines, validated and normalised", lambda: embeddings.compute_scores(rows, unit, "unit")),
        ("the whole private release, secure noise", lambda: ss.release_scores(rows, query, **contract)),
    ):
        seconds = timing.best(run, repeats=15)
        print(f"{name:<50} {1e3 * seconds:12.2f} ms {seconds / read:10.2f} x")

    timing.heading("A batch of queries against the same collection")
    for m in (16, 64):
        queries = rng.standard_normal((m, D)).astype(np.float32)
        product = timing.best(lambda queries=queries: rows @ queries.T, repeats=5)
        release = timing.best(lambda queries=queries: ss.release_scores(rows, queries, **contract), repeats=3)
        print(
            f"m = {m:3d}: product {1e3 * product:8.1f} ms, release {1e3 * release:8.1f} ms ({release / product:.2f} x)"
        )

    timing.heading("Gram matrix, n = 4,000, no projection")
    some = rows[:4000]
    double = some.astype(np.float64)
    product = timing.best(lambda: double @ double.T, repeats=3)
    release = timing.best(lambda: ss.release_gram(some, **contract, projection="none"), repeats=3)
    square = timing.best(lambda: rng.standard_normal((4000, 4000)), repeats=3)
    print(f"float64 product {1e3 * product:.0f} ms; NumPy noise for the full square {1e3 * square:.0f} ms")
    print(f"the whole private release {1e3 * release:.0f} ms ({release / product:.2f} x the product)")


if __name__ == "__main__":
    main()
