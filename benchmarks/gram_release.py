"""A whole Gram release of real sentences: time, squared error and rank correlation of what each denoiser makes of it.

python benchmarks/gram_release.py --data-dir DIR     (a folder with stsb_test_minilm.npz: emb, i, j, score)
python benchmarks/gram_release.py --sizes 2552 8192 --device cuda     (times of a release and of its parts; no data)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import scoreshield as ss
from scoreshield.privacy.noise import GaussianNoise, add_noise, choose_grid_step
from scoreshield.privacy.sampling.stream import SecureStream

METHODS = ("none", "projection", "rank", "shrinkage", "identity", "sure")


def show_parts(n: int, device: str, dimension: int = 384) -> None:
    """Compare a whole release with its projection alone and its noise alone, the fastest of three runs each."""
    rows = np.random.default_rng(0).standard_normal((n, dimension), dtype=np.float32)
    release = partial(ss.release_gram, rows, delta=1e-6, device=device)
    draws = np.zeros(n * (n - 1) // 2)
    for name, adjacency, epsilon in (
        ("Gram radius 2", ss.GramRadius(2.0), 20.0),
        ("one record", ss.Replacement(), 6.0),
    ):
        made = release(epsilon=epsilon, adjacency=adjacency)
        law = GaussianNoise(made.guarantee.noise_std)
        noisy = made.noisy
        whole = min(timed(partial(release, epsilon=epsilon, adjacency=adjacency)) for _ in range(3))
        alone = min(timed(partial(ss.project_elliptope, noisy, device=device)) for _ in range(3))
        step = choose_grid_step(law.std)
        noise = min(timed(partial(add_noise, draws, law, step, SecureStream())) for _ in range(3))
        allowed = 1.5 * alone + noise
        print(
            f"{n:>7}  {name:<14}{law.std:>8.3g}{whole:>10.2f} s{alone:>12.2f} s{noise:>9.2f} s{whole / allowed:>10.2f}",
            flush=True,
        )


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", help="times of releases of this many random records")
    parser.add_argument("--epsilon", type=float, default=20.0)
    parser.add_argument("--radius", type=float, default=2.0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.sizes:
        print(
            f"\n{'n':>7}  {'hidden':<14}{'std':>8}{'release':>12}{'projection':>14}{'noise':>11}"
            "   release / (1.5 projection + noise)"
        )
        for n in arguments.sizes:
            show_parts(n, arguments.device)
        return
    if arguments.data_dir is None:
        parser.error("give --data-dir, or --sizes")
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
