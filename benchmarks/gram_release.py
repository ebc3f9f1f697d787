"""A whole Gram release of real sentences: time, squared error and rank correlation of what each denoiser makes of it.

python benchmarks/gram_release.py --data-dir DIR     (a folder with stsb_test_minilm.npz: emb, i, j, score)
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import scoreshield as ss

METHODS = ("none", "projection", "rank", "shrinkage", "identity", "sure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=20.0)
    parser.add_argument("--radius", type=float, default=2.0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    with np.load(arguments.data_dir / "stsb_test_minilm.npz") as file:
        rows, i, j, human = file["emb"], file["i"], file["j"], file["score"]
    unit = rows.astype(float) / np.linalg.norm(rows, axis=1, keepdims=True)
    clean = unit @ unit.T
    print(f"\nSTS-B, n = {len(rows):,}, epsilon {arguments.epsilon:g}, delta 1e-5, Gram radius {arguments.radius:g}")
    print(f"clean: Spearman {spearmanr(clean[i, j], human).statistic:.3f}")
    off = ~np.eye(len(rows), dtype=bool)
    for method in METHODS:
        start = time.perf_counter()
        release = ss.release_gram(
            rows,
            epsilon=arguments.epsilon,
            delta=1e-5,
            adjacency=ss.GramRadius(arguments.radius),
            denoise=method,
            device=arguments.device,
            rng=0,
        )
        seconds = time.perf_counter() - start
        error = float(np.mean((release.gram - clean)[off] ** 2))
        rank = spearmanr(release.gram[i, j], human).statistic
        chosen = f" (chose {release.denoise})" if method == "sure" else ""
        print(
            f"{method + chosen:<28}{seconds:>7.1f} s   mean squared error {error:.4f}   Spearman {rank:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
