"""The results page: what the runs of all experiments show, pictures first, in words that are filled from the tables.

Every number in the text is read off the rows, so that a page made from other runs says other numbers. What is claimed
without a number is a theorem, and says which.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scoreshield.bench.report import matrices, timing
from scoreshield.bench.report import sections as parts
from scoreshield.bench.report.negatives import negatives
from scoreshield.bench.report.results_page import ResultsPage, Section, save_results_page
from scoreshield.bench.report.runs import Run, environment, read

_LEAD = """\
This page measures private similarity scores on real data. It has the paper's experiments as far as data allow,
the true promise of each number, and other mechanisms under the same contract.

Every table has the paper's setting as published, with its true ε and δ when one whole record is replaced, and our
result under the stated contract. Every comparison is made twice: at equal (ε, δ), and at equal advantage of the best
attacker, because the same ε leaves different advantages with different mechanisms. Text and tables are at one δ, the
smallest of each run. A `results.csv` has each value with its exact guarantee, seed and environment.

**Bold** marks the best value of a column, and values within its spread or their own. A bold value is also better than
no similarities (or a guess) by more than one standard deviation of the difference."""

_SECTIONS: dict[str, Callable[[Run], Section]] = {
    "dp-fr": parts.faces,
    "dp-rag": parts.retrieval,
    "gram-sts": matrices.sentences,
    "gram-movielens": matrices.ratings,
    "gram-vision": matrices.images,
    "runtime": timing.runtime,
    "noise": timing.noise,
}


def make(runs: Path, *, markdown: Path, html: Path, images: Path, data_dir: Path | None = None) -> ResultsPage:
    """Read the run folders under ``runs``, one an experiment, and write the page in both forms.

    With ``data_dir``, the paper's operating-point figures are drawn of real score sets too.
    """
    page = compose(read(runs), operating_points=parts.operating_points(data_dir, runs))
    save_results_page(page, markdown=markdown, html=html, images=images)
    return page


def compose(runs: dict[str, Run], *, operating_points: Section | None = None) -> ResultsPage:
    """The page, from whatever runs there are."""
    sections = [parts.truths(runs)]
    for name, run in runs.items():
        sections.append(_SECTIONS[name](run))
        if name == "dp-fr":
            sections.append(operating_points)
    sections.append(parts.left_out(runs))
    return ResultsPage(
        title="The evidence",
        lead=_LEAD,
        sections=[section for section in sections if section is not None],
        environment={**environment(runs), "made from": ", ".join(runs)},
        negatives=negatives(runs),
        made_by="`scoreshield report results` made this page from the runs of the commands above. `make "
        "bench-quick` does both.",
    )
