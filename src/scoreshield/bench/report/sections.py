"""The sections of the results page on released scores, and those around them: pictures, readings, tables, notes.

Readings are filled from the rows, and made only of what was run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scoreshield._formatting import typeset_power
from scoreshield.bench.data import compact
from scoreshield.bench.experiments import EXPERIMENTS, table
from scoreshield.bench.experiments.mechanisms import MECHANISMS
from scoreshield.bench.report import experiments as pictures
from scoreshield.bench.report.results_page import Picture, ResultTable, Section
from scoreshield.bench.report.runs import Run, best_method, sentence
from scoreshield.bench.report.tables import attack_table, mean, score_table, spread_text
from scoreshield.decisions.models import ScoreSet
from scoreshield.report import figures, plots

Row = dict[str, Any]

_FIGURE_SETS = ("faceres_centred", "dlib_centred", "mobileface")
_OPTIMAL = (
    "“optimal” is the pure level table with the least mean squared error on 21 levels over [−1, 1], for evenly "
    "spread scores. It is optimal for that, not for this task."
)


def truths(runs: dict[str, Run]) -> Section | None:
    """The claimed and the true epsilon of everything that was run as published."""
    published = {name: table.where(run.rows, setting="paper", repeat=0) for name, run in runs.items()}
    rows = [row for part in published.values() for row in part]
    if not rows:
        return None
    involved = [runs[name] for name, part in published.items() if part]
    commands = "\n".join(run.command for run in involved)
    path = involved[0].folder / "figures" / "claimed-and-true.png"
    plots.save(pictures.claimed_and_true(rows), path)
    columns = sorted({row["epsilon"] for row in rows})
    found: dict[tuple[str, float], dict[float, Row]] = {}
    for row in rows:
        found.setdefault((pictures.released(row), row["delta"]), {})[row["epsilon"]] = row
    lines = []
    for (what, delta), at in sorted(found.items()):
        texts = [f"{at[e]['true_epsilon']:,.3g}" if e in at else "·" for e in columns]
        lines.append([what, typeset_power(delta), *texts])
    return Section(
        "What the paper promises, and what is true",
        "The paper's rule, σ = Δ √(2 ln(2/δ))/ε, is stated for every ε but holds only up to ε = 8 to 10, depending "
        "on δ. Its Gram radius Δ states how far a whole matrix may move. Replacing one record moves it by up to "
        "2√(2(n − 1)). This page runs both as published, and states the true ε and δ when one record is replaced.",
        pictures=[
            Picture(
                path, "True epsilon against claimed epsilon, for score vectors and Gram matrices", commands,
                _worst_claims(rows),
            )
        ],
        tables=[
            ResultTable(
                caption="The true ε, at the same δ, when one record is replaced",
                header=["released as published", "δ", *(f"claimed {e:g}" for e in columns)],
                rows=lines,
                command=commands,
                folded=True,
            )
        ],
        notes=[
            "If the true ε is below the claimed one, the rule adds more noise than necessary. The exact calibration "
            "adds neither too much nor too little."
        ],
    )  # fmt: skip


def _worst_claims(rows: list[Row]) -> str:
    """The largest claim for scores and the smallest for a matrix, each at the strictest delta of its kind."""
    words = []
    kinds = [row for row in rows if row["radius"] is None], [row for row in rows if row["radius"] is not None]
    for kind, sign in zip(kinds, (-1, 1), strict=True):
        strict = [row for row in kind if row["delta"] == min(row["delta"] for row in kind)]
        if strict:
            row = min(strict, key=lambda row: (sign * row["epsilon"], -row["true_epsilon"]))
            words.append(
                f"Claimed ({row['epsilon']:g}, {typeset_power(row['delta'])}) for {'the' if sign < 0 else 'a'} "
                f"{pictures.released(row)}: the true ε at that δ is {row['true_epsilon']:,.3g} when one "
                "record is replaced."
            )
    return " ".join(words)


def faces(run: Run) -> Section:
    tables: list[ResultTable] = []
    ceiling = (
        "upper limit of a pure mechanism, equal numbers of genuine and impostor pairs",
        lambda e: 1 / (1 + math.exp(-e)),
    )
    for dataset in run.datasets():
        tables += _tables(run, dataset, ("accuracy", "tar@1e-2"), {"accuracy": ceiling}, shown=not tables)
    return Section(
        "Face verification",
        "A pair of faces is accepted if its score passes a threshold (the paper's DP-FR). The data are LFW's "
        "official 6,000 pairs in ten folds, with embeddings of public models. The paper's own models and IJB-B/C "
        f"are unavailable. {run.sizes()}",
        pictures=[
            *run.picture(
                "dp-fr-accuracy", "Accuracy against epsilon for each mechanism and score set", _faces_reading(run)
            ),
            *run.picture(
                "dp-fr-accuracy-attack",
                "Accuracy against the advantage of the best attacker",
                f"The same comparison at equal attack. {run.at_equal_attack(run.datasets()[0], 'accuracy')}",
            ),
            *run.picture(
                "dp-fr-tar-1e-2",
                "True-accept rate at a false-accept rate of one in a hundred against epsilon",
                "The share of accepted genuine pairs if one impostor in a hundred is accepted. The paper's clipped "
                "scores cannot reach this rate while noise is large (0 there). The same noise without clipping can. "
                "One accept bit has one operating point, which may lie above this rate.",
            ),
        ],
        tables=tables,
        notes=[
            "The upper limit, eᵋ/(1 + eᵋ), is for δ = 0 and equal numbers of genuine and impostor pairs. It is a "
            "mean, so a measured value may pass it by chance.",
            "Clamped variants enforce a public range, and the accept bit (“levels”) a public threshold: round "
            "numbers in the grid, chosen by people who have seen such scores. The other mechanisms use only the "
            "contract.",
            _OPTIMAL,
            "“Centred” sets subtract the mean over the same images. This page takes that mean as public.",
            "With 3,000 impostors, rates below 1e-3 cannot be estimated and are left out.",
        ],
    )  # fmt: skip


def _faces_reading(run: Run) -> str:
    dataset, low, five = run.datasets()[0], run.nearest(1.0), run.nearest(5.0)

    def at(epsilon: float, method: str, setting: str = "contract") -> str:
        return run.said(dataset=dataset, metric="accuracy", setting=setting, method=method, epsilon=epsilon)

    ours = ("gaussian", "gaussian, clamped", "staircase", "levels")
    shares = sentence(
        f"{dataset}, {run.promise}, share of correctly decided pairs at ε = {five:g}: ",
        [
            ("the paper's mechanism {}", at(five, "gaussian (paper)", "paper")),
            *((f"{method} {{}}", at(five, method)) for method in ours),
            ("without privacy {}", run.said(dataset=dataset, metric="accuracy", setting="clean")),
        ],
    )
    most = f"where a pure mechanism reaches at most {1 / (1 + math.exp(-low)):.3f} on average"
    return f"{shares} {sentence('', [(f'At ε = {low:g} levels reach {{}}, {most}', at(low, 'levels'))])}".strip()


def _tables(
    run: Run,
    dataset: str,
    metrics: tuple[str, ...],
    ceilings: Mapping[str, tuple[str, Callable[[float], float]]],
    *,
    shown: bool,
) -> list[ResultTable]:
    """Both comparisons for each metric of a data set; all but the first folded, and that too unless ``shown``."""
    tables: list[ResultTable] = []
    for metric in metrics:
        rows = run.where(dataset=dataset, metric=metric)
        tables += score_table(
            rows, MECHANISMS, caption=f"{dataset}: {metric} at equal (ε, δ), {run.promise}", command=run.command,
            ceiling=ceilings.get(metric), folded=bool(tables) or not shown,
        )  # fmt: skip
        caption = f"{dataset}: {metric} at equal attack"
        tables += attack_table(rows, MECHANISMS, caption=caption, command=run.command)
    return tables


def operating_points(data_dir: Path | None, folder: Path) -> Section | None:
    """The paper's figures of thresholds and false-match rates, drawn of LFW scores, where those are at hand."""
    if data_dir is None:
        return None
    sets = []
    for name in _FIGURE_SETS:
        scores = compact.load_compact_lfw_scores(data_dir, name)
        sets.append(ScoreSet(f"LFW {name}", scores.impostor, scores.genuine))
    drawn = {
        "lfw-fmr-overlays": (
            figures.fmr_overlays(sets),
            "False-match rate against the threshold after noise, by calibration",
            "Noise moves the false-match curve to the right. Grey, dotted: a rule that does not give the privacy it "
            "claims.",
        ),
        "lfw-shift-against-scale": (
            figures.shift_against_scale(sets),
            "Shift of the threshold against the noise scale, infeasible region shaded",
            "The shift of the threshold that keeps the rate. In the shaded part clipped scores cannot reach the rate.",
        ),
        "lfw-shift-against-epsilon": (
            figures.shift_against_epsilon(sets),
            "Shift of the threshold against epsilon, by calibration",
            "The same against ε. Unclipped scores are as private and reach every rate.",
        ),
    }
    shown = []
    for stem, (figure, alt, reading) in drawn.items():
        path = folder / "figures" / f"{stem}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        plots.save(figure, path)
        shown.append(Picture(path, alt, "scoreshield report results --data-dir DIR", reading))
    return Section(
        "Operating points",
        "The paper's figures of thresholds, computed exactly (no simulation) from LFW's clean scores. `scoreshield "
        "report figures` draws them for synthetic scores.",
        pictures=shown,
    )  # fmt: skip


def retrieval(run: Run) -> Section:
    first = run.datasets()[0]
    tables: list[ResultTable] = []
    for dataset in run.datasets():
        n = run.where(dataset=dataset)[0]["n"]
        label = "upper limit, averaged over the possible relevant records, without δ"
        ceilings = {f"recall@{k}": (label, partial(_most_found, k=k, n=n)) for k in (10, 50)}
        metrics = ("recall@10", "recall@50", "recall@20, t=0.35", "recall@50, t=0.25", "recall@10, t=0.25")
        tables += _tables(run, dataset, metrics, ceilings, shown=not tables)
    return Section(
        "Retrieval for generation",
        "This measures which records reach the prompt (the paper's DP-RAG), without a generator. **Scope of the "
        "guarantee:** which records are named is private. Their texts, and answers made from them, are not. Each "
        f"query is one release, so m queries cost m releases. The index is one release for all queries. {run.sizes()}",
        pictures=[
            *run.picture(
                "dp-rag-recall-10",
                "Recall at ten against epsilon for each mechanism",
                _retrieval_reading(run, first, "recall@10"),
            ),
            *run.picture(
                "dp-rag-recall-10-attack",
                "Recall at ten against the advantage of the best attacker",
                f"At equal attack. {run.at_equal_attack(first, 'recall@10')} {_useful(run, first, 'recall@10')} An "
                "advantage alone is not enough as a contract: it allows a mechanism that sometimes reveals "
                "everything.",
            ),
            *run.picture(
                "dp-rag-recall-50",
                "Recall at fifty against epsilon",
                _retrieval_reading(run, first, "recall@50"),
            ),
        ],
        tables=tables,
        notes=[
            "The upper limit, eᵋ k/n, is an average over all possible relevant records, without δ. A measured "
            "recall may pass it by chance, especially with few queries, or if public facts distinguish relevant "
            "records from others.",
            "Cuts between levels on one set are chosen on the other; the screening threshold and the clamping range "
            "are round public numbers, chosen by people who have seen such scores.",
            _OPTIMAL,
            "“selection” names ten records and has no scores. It is in the tables of recall@10, but in no picture.",
            "FRAMES compares questions with the titles of their pages, because the set has no page texts. With page "
            "texts, `scoreshield rag` runs the whole pipeline, from chunks to the judge.",
        ],
    )  # fmt: skip


def _most_found(epsilon: float, *, k: int, n: int) -> float:
    return min(1.0, math.exp(min(epsilon, 700.0)) * k / n)  # beyond 700 a float would overflow


def _retrieval_reading(run: Run, dataset: str, metric: str) -> str:
    ten = run.nearest(10.0)
    rows = run.where(dataset=dataset, metric=metric)
    ours = table.where(rows, setting="contract", epsilon=ten)
    best = best_method(ours)
    return sentence(
        f"{dataset}, {run.promise}, {metric} at ε = {ten:g}: ",
        [
            ("the paper's mechanism {}", spread_text(table.where(rows, setting="paper", epsilon=ten))),
            ("Gaussian noise with exact calibration {}", spread_text(table.where(ours, method="gaussian"))),
            (f"the best here, {best}, {{}}", spread_text(table.where(ours, method=best))),
            ("without privacy {}", spread_text(table.where(rows, setting="clean"))),
        ],
    )


def _useful(run: Run, dataset: str, metric: str) -> str:
    """Where, for the mechanisms that were run, half of what is had without privacy begins."""
    rows = run.where(dataset=dataset, metric=metric)
    half, tried = mean(table.where(rows, setting="clean")) / 2, table.where(rows, setting="advantage")
    advantages = sorted({row["target_advantage"] for row in tried})
    if not advantages or math.isnan(half):
        return ""
    for advantage in advantages:
        here = table.where(tried, target_advantage=advantage)
        if mean(table.where(here, method=best_method(here))) >= half:
            return f"For the mechanisms here, half of the value without privacy is first reached at {advantage:g}."
    return f"For the mechanisms here, half of the value without privacy is not reached up to {advantages[-1]:g}."


def left_out(runs: dict[str, Run]) -> Section:
    notes = [
        "IJB-B, IJB-C, AgeDB, CFP-FP, CALFW, CPLFW and the paper's ArcFace and ViT models are unavailable. LFW with "
        "public models replaces them.",
        "TAR at false-accept rates of 1e-5 and 1e-6 on real pairs: 3,000 impostors are too few for them.",
        "The classical calibration rule and the sensitivity Δ = 1.5: `scoreshield report figures` draws them, for "
        "synthetic scores.",
        "CIFAR-100 and Oxford-IIIT Pets: `scoreshield.bench.data` has loaders, but the compact data have no "
        "embeddings.",
        "Answers of language models: the pipeline is tested against its own server. No model was available, so no "
        "accuracies are reported.",
        *(f"Not run for this page: `scoreshield bench {name}`." for name in EXPERIMENTS if name not in runs),
    ]  # fmt: skip
    return Section("What is not here", "Results of the paper that are missing here, with the reasons.", notes=notes)
