"""Recall against epsilon for each mechanism on SciFact, with what no mechanism can reach: docs/images/mechanisms.png.

python benchmarks/mechanism_figure.py --data-dir DIR     (a folder with scifact_minilm.npz; a minute)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import scoreshield as ss
from scoreshield.decisions import QueryScores
from scoreshield.report import plots

K, DELTA = 10, 1e-6
EPSILONS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20])
CUTS = (0.35, 0.45, 0.55, 0.65)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/images/mechanisms.png"))
    arguments = parser.parse_args()
    with np.load(arguments.data_dir / "scifact_minilm.npz") as file:
        scores, pairs = (file["query_emb"] @ file["doc_emb"].T).astype(np.float64), file["qrels"]
    queries, records = QueryScores(scores.clip(-1, 1), pairs), scores.shape[1]
    full = (-1.0, 1.0)
    windows = ss.AnchoredWindows(k=K)
    curves = {  # six with the line of clean scores
        "Gaussian, δ = 10⁻⁶": ("#6a4c93", lambda e: ss.GaussianNoise(ss.calibrate(e, DELTA, 2.0))),
        "Laplace": ("#7d868e", lambda e: ss.LaplaceNoise.calibrate(e, 2.0)),
        "staircase": ("#e09f1f", lambda e: ss.StaircaseNoise.calibrate(e, 2.0)),
        "randomised response, five levels": ("#1b6ca8", lambda e: ss.randomised_response(e, CUTS)),
        "anchored windows": ("#2a9d6f", lambda e: windows.choose(e, records, full).law),
    }
    figure = plots.make_figure(8.5, 5.2)
    axes = figure.add_subplot()
    fine = np.linspace(0, 20, 400)
    impossible = np.minimum(1.0, np.exp(fine) * K / scores.shape[1])
    axes.fill_between(fine, impossible, 1, color="#eef1f3", label="impossible for every mechanism")
    clean = queries.predict_recall(0, k=K).value
    axes.axhline(clean, color="#22272b", linewidth=1, linestyle=":", label=f"without noise, {clean:.3f}")
    for name, (colour, make) in curves.items():
        laws = [make(float(epsilon)) for epsilon in EPSILONS]
        found = [queries.predict_recall(law, k=K, score_range=full).value for law in laws]
        axes.plot(EPSILONS, found, color=colour, marker="o", markersize=4, linewidth=1.8, label=name)
        print(f"{name:<34}" + " ".join(f"{value:.3f}" for value in found), flush=True)
    axes.set(xlabel="ε", ylabel=f"recall among the best {K}", xlim=(0, 20), ylim=(0, 1))
    axes.set_title(f"SciFact, {scores.shape[1]:,} abstracts, one private release a query", fontsize=12)
    figure.legend(loc="outside lower center", fontsize=9, ncols=3)
    plots.save_picture(figure, arguments.out)


if __name__ == "__main__":
    main()
