"""The results page: what the runs of all experiments show, pictures first, in words that are filled from the tables.

Every number in the text is read off the rows, so that a page made from other runs says other numbers. What is claimed
without a number is a theorem, and says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from scoreshield.privacy import calibration
from scoreshield.report import result_matrices as matrices
from scoreshield.report import result_sections as parts
from scoreshield.report.result_runs import Run, read
from scoreshield.report.results_page import ResultsPage, Section, write

_LEAD = """\
What private similarity scores are worth, measured on real data: the paper's experiments as far as data allow,
each beside what its numbers really promise and beside mechanisms that do better under the same contract.

Every table holds **both truths**: the paper's setting as published, with the ε and δ it really gives when one whole
record is replaced, and ours under the stated contract. Every comparison is made twice: at equal (ε, δ), and at equal
advantage of the best attacker, because at the same ε a pure mechanism gives an attacker more than Gaussian noise does.
Each value lies in a `results.csv` with its exact guarantee, seed and environment."""

_SECTIONS: dict[str, Callable[[Run], Section]] = {
    "dp-fr": parts.faces,
    "dp-rag": parts.retrieval,
    "gram-sts": matrices.sentences,
    "gram-movielens": matrices.ratings,
    "gram-vision": matrices.images,
    "runtime": parts.runtime,
    "noise": parts.noise,
}


def make(runs: Path, *, markdown: Path, html: Path, images: Path, data_dir: Path | None = None) -> ResultsPage:
    """Read the run folders under ``runs``, one an experiment, and write the page in both forms.

    With ``data_dir``, the paper's operating-point figures are drawn of real score sets too.
    """
    page = compose(read(runs), operating_points=parts.operating_points(data_dir, runs))
    write(page, markdown=markdown, html=html, images=images)
    return page


def compose(runs: dict[str, Run], *, operating_points: Section | None = None) -> ResultsPage:
    """The page, from whatever runs there are."""
    sections = [parts.truths(runs)]
    for name, run in runs.items():
        sections.append(_SECTIONS[name](run))
        if name == "dp-fr":
            sections.append(operating_points)
    sections.append(parts.left_out(runs))
    environment = next((run.environment for run in runs.values() if run.environment), {})
    return ResultsPage(
        title="The evidence",
        lead=_LEAD,
        sections=[section for section in sections if section is not None],
        environment={**environment, "made from": ", ".join(runs)},
        negatives=_negatives(runs),
        made_by="Made by `scoreshield report results`, the runs by the commands above; `make bench-quick` does both.",
    )


def _negatives(runs: dict[str, Run]) -> list[tuple[str, str]]:
    found = [_at_epsilon_one(runs)]
    if "gram-sts" in runs:
        found += [_projection(runs["gram-sts"]), _record_level(runs["gram-sts"])]
    if "dp-rag" in runs and runs["dp-rag"].where(setting="advantage"):
        found.append(_equal_attack(runs["dp-rag"]))
    return found


def _at_epsilon_one(runs: dict[str, Run]) -> tuple[str, str]:
    n = runs["dp-rag"].rows[0]["n"] if "dp-rag" in runs else 5183
    return (
        "At ε = 1 nothing about a single record survives, and no mechanism can change that",
        "What is returned for one collection is returned for each of its neighbours with at least e⁻ᵋ of the "
        "probability. So k records out of n hold the relevant one with probability at most eᵋ k/n, plus δ: "
        f"{math.e * 10 / n:.3f} for ten of {n:,} records at ε = 1; recall 0.7 needs ε ≥ {math.log(0.7 * n / 10):.1f}. "
        "And a yes or no about one record is right at most eᵋ/(1 + eᵋ) of the time, 73.1 % at ε = 1.",
    )


def _projection(run: Run) -> tuple[str, str]:
    def average(method: str, metric: str) -> float:
        return run.value(setting="paper", method=method, metric=metric)

    noisy, paper, exact = (average(method, "spearman") for method in matrices.AS_PUBLISHED)
    errors = [average(method, "squared error") for method in matrices.AS_PUBLISHED]
    helps = max(paper, exact) > noisy
    return (
        f"Projection {'raises' if helps else 'does not help'} the STS-B correlation",
        f"As published, averaged over the budgets of the run, the Spearman correlation is {noisy:.3f} for the noisy "
        f"matrix, {paper:.3f} after the paper's projection and {exact:.3f} after the exact one. The squared error of "
        f"an entry does fall: {errors[0]:.3g}, {errors[1]:.3g} and {errors[2]:.3g}.",
    )


def _record_level(run: Run) -> tuple[str, str]:
    whole = run.where(setting="contract", radius=None, metric="spearman")
    largest = max(row["epsilon"] for row in whole)
    noise = next(row for row in whole if row["method"] == "noisy" and row["epsilon"] == largest)
    here = {"setting": "contract", "radius": None, "metric": "spearman", "epsilon": largest}
    return (
        "Gram noise that protects a whole record is hopeless",
        f"One record moves n − 1 similarities, so the noise grows with √n. With n = {noise['n']:,} and ε = "
        f"{largest:g} each entry carries noise of standard deviation {noise['noise_std']:.2g}, and the correlation "
        f"is {run.value(**here, method='exact'):.3f} after projection. A private index gives "
        f"{run.value(**here, method='index'):.3f} under the same promise.",
    )


def _equal_attack(run: Run) -> tuple[str, str]:
    rows = run.where(setting="advantage", metric="recall@10")
    low = min(row["target_advantage"] for row in rows)
    best = max((run.value(setting="advantage", metric="recall@10", method=m, target_advantage=low), m)
               for m in dict.fromkeys(row["method"] for row in rows))  # fmt: skip
    gaussian = calibration.attack_advantage(2 / calibration.calibrate(10.0, 1e-6, 2.0))
    return (
        "Where the attacker gains little, so does the user",
        f"At an attack advantage of {low:g} the best recall@10 of all mechanisms is {best[0]:.3f} ({best[1]}). Part "
        "of the gain at equal ε is that pure mechanisms spend their whole allowance: at ε = 10 their best attacker "
        f"has an advantage of {math.tanh(5):.4f}, against Gaussian noise at (10, 10⁻⁶) one of {gaussian:.2f}.",
    )
