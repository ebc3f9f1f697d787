"""The two pictures of docs/projection.md: convergence of the projections, and the risk of each denoiser.

python benchmarks/projection_figures.py          (writes docs/images/convergence.png and docs/images/risk.png)
python benchmarks/projection_figures.py convergence                   (the first alone)

OMP_NUM_THREADS=1 measures the work of the first on one core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from projection import noisy_gram

import scoreshield as ss
from scoreshield.geometry.denoise import denoise
from scoreshield.report import plots

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
COLOURS = {"partial": "#000000", "newton": "#1b6ca8", "dykstra": "#2e933c", "aap": "#d1495b"}


def convergence(n: int = 500) -> None:
    """Excess distance over the nearest matrix against the work, at moderate and at heavy noise."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for place, noise in enumerate((0.5, 20.0)):
        matrix = noisy_gram(n, noise)
        nearest = ss.project_elliptope(matrix, "newton", tol=1e-11).distance
        unit = min(time_run(lambda: np.linalg.eigh(matrix)) for _ in range(5))  # noqa: B023
        axes = figure.add_subplot(1, 2, place + 1)
        for method, most in (("partial", 12), ("newton", 8), ("dykstra", 100), ("aap", 100)):
            tol, points = 1e-9 if method == "partial" else 1e-11, []
            for limit in sorted({round(1.35**k) for k in range(40) if 1.35**k <= most} | {most}):
                start = time.process_time()
                result = ss.project_elliptope(matrix, method, tol=tol, max_iterations=limit)
                work = (time.process_time() - start) / unit
                points.append((work, max(result.distance / nearest - 1, 1e-16)))
                if result.converged or not result.method.startswith(method):
                    break
            axes.loglog(*zip(*points, strict=True), "o-", label=method, color=COLOURS[method], markersize=4)
        axes.set(
            title=f"n = {n}, noise sd {noise:g}",
            xlabel="processor time, in eigendecompositions of the matrix",
            ylabel="distance over the nearest, less one",
            ylim=(5e-17, 10),
        )
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    plots.save_picture(figure, IMAGES / "convergence.png")


def time_run(run: Callable[[], object]) -> float:
    """Measure the processor time of a call, in seconds."""
    start = time.process_time()
    run()
    return time.process_time() - start


def risk() -> None:
    """Mean squared error per entry against the noise, for each denoiser, with the bounds of the theory."""
    n, d, repeats = 200, 16, 2  # 39,800 entries each, so more repeats change no curve visibly
    deviations = np.geomspace(0.01, 10, 13)
    rng = np.random.default_rng(0)
    methods = ("none", "aap", "projection", "rank", "shrinkage", "identity", "sure")
    errors = {method: np.zeros(len(deviations)) for method in methods}
    for place, std in enumerate(deviations):
        for seed in range(repeats):
            rows = rng.standard_normal((n, d)) * 0.85 ** np.arange(d)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            clean = rows @ rows.T
            upper = np.triu(rng.standard_normal((n, n)) * std, 1)
            noisy = clean + upper + upper.T
            np.fill_diagonal(noisy, 1)
            for method in methods:
                if method == "aap":
                    found = ss.project_elliptope(noisy, "aap", max_iterations=100).matrix
                else:
                    found = denoise(
                        noisy, float(std), method, rank=d, project=lambda m: ss.project_elliptope(m).matrix
                    ).matrix
                errors[method][place] += np.sum((found - clean) ** 2) / (n * (n - 1)) / repeats
            del seed
    sigma = deviations * math.sqrt(2)  # of (W + W^T)/2 with independent entries
    scale = n * (n - 1)
    curves = {
        "noisy": (errors["none"], "-", "#777777"),
        "exact projection": (errors["projection"], "-", "#1b6ca8"),
        "aap": (errors["aap"], "-", "#d1495b"),
        "rank": (errors["rank"], "-", "#2e933c"),
        "shrinkage": (errors["shrinkage"], "-", "#edae49"),
        "identity": (errors["identity"], "-", "#8d5a97"),
        "sure (chosen by estimated risk)": (errors["sure"], ":", "#000000"),
        "bound, any matrix": (4 * sigma * n * math.sqrt(2 * n) / scale, "--", "#1b6ca8"),
        "rank-aware bound (may fail)": (sigma**2 * (n * (d - 1) - d * (d - 1) / 2) / scale, "-.", "#1b6ca8"),
    }
    panels = {  # at most six curves each
        "denoisers": ("noisy", "exact projection", "rank", "shrinkage", "identity", "sure (chosen by estimated risk)"),
        "projections and bounds": (
            "noisy",
            "exact projection",
            "aap",
            "bound, any matrix",
            "rank-aware bound (may fail)",
        ),
    }
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    figure.suptitle(f"n = {n}, rank {d}, uneven spectrum, mean of {repeats}")
    for place, (title, names) in enumerate(panels.items()):
        axes = figure.add_subplot(1, 2, place + 1)
        for name in names:
            values, dashes, colour = curves[name]
            axes.loglog(deviations, values, dashes, label=name, color=colour)
        axes.set(
            title=title,
            xlabel="standard deviation of the noise on each entry",
            ylabel="mean squared error per entry",
            ylim=(1e-6, 200),
        )
        # A legend below its panel covers no data.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8, ncols=3, frameon=False)
        axes.grid(alpha=0.3)
    plots.save_picture(figure, IMAGES / "risk.png")
    print(f"{'std':>8}" + "".join(f"{method:>12}" for method in methods))
    for place, std in enumerate(deviations):
        print(f"{std:>8.3f}" + "".join(f"{errors[method][place]:>12.2e}" for method in methods))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", default=["convergence", "risk"], choices=["convergence", "risk"])
    for name in parser.parse_args().figures:
        {"convergence": convergence, "risk": risk}[name]()
