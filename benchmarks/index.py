"""What a private index is worth on real sentences and abstracts, and how long it takes to build; one core.

python benchmarks/index.py --data-dir DIR [--repeats 5] [--million]
python benchmarks/index.py --million             (only the times, without data)
python benchmarks/index.py --million 200000      (the same of fewer records, at least 100,000)

DIR holds stsb_test_minilm.npz (emb, i, j, score) and scifact_minilm.npz (doc_emb, query_emb, qrels). Means over
``--repeats`` indexes from the secure sampler. Components come from epsilon and the dimension alone, by a rule that was
preferred to another one on STS-B itself: docs/index-release.md.
"""

from __future__ import annotations

import timing  # first: it pins the threads

import argparse
import memory
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import scoreshield as ss
from scoreshield.releases.index import IndexRelease, pair_components, release_index
from scoreshield.privacy.calibration import calibrate

DELTA = 1e-6


def unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def score_error(documents: np.ndarray, queries: np.ndarray) -> None:
    timing.heading("Error of a score (root mean square), d = 384, no reduction")
    clean = unit(queries) @ unit(documents).T
    for epsilon in (5, 10, 20, 50, 100):
        index = release_index(documents, epsilon=epsilon)
        error = float(np.sqrt(np.mean((index.scores(queries) - clean) ** 2)))
        print(
            f"eps {epsilon:3d}: PrivUnit {error:.4f} (predicted {index.score_std:.4f}), "
            f"Gaussian at delta {DELTA:g} {calibrate(epsilon, DELTA, 2.0):.4f}"
        )


def pairs(data: Path, repeats: int) -> None:
    with np.load(data / "stsb_test_minilm.npz") as file:
        rows, first, second, human = file["emb"], file["i"], file["j"], file["score"]
    unit_rows = unit(rows)
    clean = spearmanr(np.vecdot(unit_rows[first], unit_rows[second]), human)[0]
    timing.heading(f"STS-B, n = {len(rows):,}, one index under record replacement: Spearman (clean {clean:.3f})")

    def spearman(**options: object) -> tuple[float, float]:
        found = []
        for _ in range(repeats):
            index: IndexRelease = release_index(rows, **options)  # type: ignore[arg-type]
            vectors = index.vectors.astype(np.float64)
            found.append(spearmanr(np.vecdot(vectors[first], vectors[second]), human)[0])
        return float(np.mean(found)), float(np.std(found))

    def gram(epsilon: float) -> float:
        """The paper's release at the same promise: Gaussian noise on the whole matrix, delta as above."""
        matrix = ss.release_gram(rows, epsilon=epsilon, delta=DELTA, projection="none").noisy
        return float(spearmanr(matrix[first, second], human)[0])

    for epsilon in (5, 10, 20, 50):
        r = pair_components(epsilon, rows.shape[1])
        random = spearman(epsilon=epsilon, components=r)
        pca = spearman(epsilon=epsilon, delta=DELTA, components=r, reduction="pca")
        noisy = spearman(epsilon=epsilon, delta=DELTA, components=r, mechanism="gaussian")
        print(
            f"eps {epsilon:2d}, r = {r:2d}: random, pure {random[0]:.3f} (sd {random[1]:.3f}); private PCA, delta "
            f"{DELTA:g} {pca[0]:.3f}; Gaussian, delta {DELTA:g} {noisy[0]:.3f}; Gram matrix {gram(epsilon):.3f}"
        )


def retrieval(data: Path, repeats: int) -> None:
    with np.load(data / "scifact_minilm.npz") as file:
        documents, queries, qrels = file["doc_emb"], file["query_emb"], file["qrels"]
    relevant: list[list[int]] = [[] for _ in queries]
    for query, document in qrels:
        relevant[query].append(document)

    def recall(ranked: np.ndarray, k: int, count: int) -> float:
        return float(np.mean([np.isin(relevant[q], ranked[q, :k]).mean() for q in range(count)]))

    timing.heading(f"SciFact, {len(documents):,} abstracts: recall@10 / @50, all 300 queries (the first 100)")

    def show(name: str, rankings: list[np.ndarray]) -> None:
        cells = [np.mean([recall(r, k, count) for r in rankings]) for count in (300, 100) for k in (10, 50)]
        print(f"{name:<24} {cells[0]:.3f} / {cells[1]:.3f}   ({cells[2]:.3f} / {cells[3]:.3f})")

    show("clean", [np.argsort(-(unit(queries) @ unit(documents).T), axis=1)[:, :50]])
    for epsilon, r in ((20, 64), (20, None), (50, None), (100, None)):
        found = [
            release_index(documents, epsilon=epsilon, components=r).search(queries, 50).indices for _ in range(repeats)
        ]
        show(f"eps {epsilon}, r = {r or 384}", found)
    score_error(documents, queries)


def building(million: int | None) -> None:
    n = 100_000
    timing.heading(f"Building an index, d = 384, float32 from a memory-mapped file, secure sampler, n = {n:,}")
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        size = max(million or n, n)
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(size, 384))
        for start in range(0, size, 10_000):
            rows[start : start + 10_000] = rng.standard_normal((min(10_000, size - start), 384), dtype=np.float32)
        del rows
        mapped = np.load(path, mmap_mode="r")
        for name, options in (
            ("PrivUnit, eps 10", {"epsilon": 10}),
            ("PrivUnit, eps 10, r = 64", {"epsilon": 10, "components": 64}),
            ("PrivUnit, eps 1", {"epsilon": 1}),
            ("Gaussian, eps 10", {"epsilon": 10, "delta": DELTA, "mechanism": "gaussian"}),
        ):
            start = time.perf_counter()
            release_index(mapped[:n], **options)  # type: ignore[arg-type]
            print(f"{name:<26} {time.perf_counter() - start:6.2f} s for 100,000 vectors")
        if million:
            show_million(mapped, Path(folder))


def show_million(mapped: np.ndarray, folder: Path) -> None:
    """Print the time and memory of an index of all records, for each number of threads, from .npy and Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from scoreshield import _files

    timing.heading(f"An index of {len(mapped):,}, PrivUnit, eps 10, d = 384, secure sampler", "all cores")
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(mapped).reshape(-1)), mapped.shape[1])
    parquet.write_table(pa.table({"embedding": column}), folder / "rows.parquet")
    del column
    for name in ("rows.npy", "rows.parquet"):
        for count in timing.list_thread_counts():
            rows = _files.read_array(folder / name, mapped=True)
            with timing.use_threads(count):
                memory.reset_peak_memory()
                before, start = memory.peak_memory(), time.perf_counter()
                index = release_index(rows, epsilon=10)
                seconds = time.perf_counter() - start
            above = (memory.peak_memory() - before - index.vectors.nbytes) / 10**6
            print(f"{name:<13} {count} threads: {seconds:5.2f} s, peak memory {above:4.0f} MB above the result")
            del index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--million",
        nargs="?",
        type=int,
        const=1_000_000,
        metavar="RECORDS",
        help="also build one index of a million vectors, or of this many",
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ss.UselessRelease)  # which is what some of the rows measure
    if arguments.data_dir is not None:
        pairs(arguments.data_dir, arguments.repeats)
        retrieval(arguments.data_dir, arguments.repeats)
    building(arguments.million)


if __name__ == "__main__":
    main()
