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
from scoreshield.decisions.synthetic import ScoreSet
from scoreshield.report import figures, plots

Row = dict[str, Any]

_FIGURE_SETS = ("faceres_centred", "dlib_centred", "mobileface")
_OPTIMAL = (
    "“optimal” is the table of least mean squared error among all pure ones on 21 levels over [−1, 1], for scores "
    "spread evenly over them: it is optimal for that, not for this task."
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
        "The paper's rule, σ = Δ √(2 ln(2/δ))/ε, is stated for every ε and holds up to ε = 8 to 10, depending on δ. "
        "Its Gram radius Δ says how far a whole matrix may move; replacing one record moves it by up to 2√(2(n − 1)). "
        "Both are run here as published; this is what one replaced record really gets.",
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
        notes=["Where the true ε is below the claimed one, the rule wastes noise; the exact calibration does neither."],
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
        "most that a pure mechanism can reach, as many genuine as impostor pairs",
        lambda e: 1 / (1 + math.exp(-e)),
    )
    for dataset in run.datasets():
        tables += _tables(run, dataset, ("accuracy", "tar@1e-2"), {"accuracy": ceiling}, shown=not tables)
    return Section(
        "Face verification",
        "Pairs of faces, accepted where their score passes a threshold (the paper's DP-FR). LFW's official 6,000 "
        "pairs in ten folds, with embeddings of public models; the paper's own models and IJB-B/C are not to be had. "
        f"{run.sizes()}",
        pictures=[
            *run.picture(
                "dp-fr-accuracy", "Accuracy against epsilon for each mechanism and score set", _faces_reading(run)
            ),
            *run.picture(
                "dp-fr-accuracy-attack",
                "Accuracy against the advantage of the best attacker",
                "The same where every mechanism is equally easy to attack. "
                f"{run.at_equal_attack(run.datasets()[0], 'accuracy')}",
            ),
            *run.picture(
                "dp-fr-tar-1e-2",
                "True-accept rate at a false-accept rate of one in a hundred against epsilon",
                "The share of genuine pairs accepted where one impostor in a hundred is. Clipped scores, the "
                "paper's, cannot reach such a rate at all while noise is large (0 there); the same noise unclipped "
                "can. One accept bit has one operating point, which may lie above it.",
            ),
        ],
        tables=tables,
        notes=[
            "The most that can be reached, eᵋ/(1 + eᵋ), is for δ = 0 and as many genuine as impostor pairs; it is a "
            "mean, which a measured value may pass by chance.",
            "Clamped variants enforce a public range, and the accept bit (“levels”) a public threshold: round numbers "
            "in the grid, picked by people who have seen such scores. The others know nothing beside the contract.",
            _OPTIMAL,
            "“Centred” sets subtract the mean over the very images; here that mean is taken as public.",
            "With 3,000 impostors, rates below 1e-3 cannot be estimated and are left out.",
        ],
    )  # fmt: skip


def _faces_reading(run: Run) -> str:
    dataset, low, five = run.datasets()[0], run.nearest(1.0), run.nearest(5.0)

    def at(epsilon: float, method: str, setting: str = "contract") -> str:
        return run.said(dataset=dataset, metric="accuracy", setting=setting, method=method, epsilon=epsilon)

    ours = ("gaussian", "gaussian, clamped", "staircase", "levels")
    shares = sentence(
        f"{dataset}, {run.promise}, share of pairs decided rightly at ε = {five:g}: ",
        [
            ("the paper's mechanism {}", at(five, "gaussian (paper)", "paper")),
            *((f"{method} {{}}", at(five, method)) for method in ours),
            ("without privacy {}", run.said(dataset=dataset, metric="accuracy", setting="clean")),
        ],
    )
    most = f"of at most {1 / (1 + math.exp(-low)):.3f} that any pure mechanism has on average"
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
            "After noise the false-match curve moves right. Grey, dotted: a rule that does not give the privacy it "
            "names.",
        ),
        "lfw-shift-against-scale": (
            figures.shift_against_scale(sets),
            "Shift of the threshold against the noise scale, infeasible region shaded",
            "How far the threshold must move to keep the rate; shaded where clipped scores cannot reach it at all.",
        ),
        "lfw-shift-against-epsilon": (
            figures.shift_against_epsilon(sets),
            "Shift of the threshold against epsilon, by calibration",
            "The same against ε. Unclipped scores, as private, reach every rate.",
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
        "report figures` draws them for its synthetic scores.",
        pictures=shown,
    )  # fmt: skip


def retrieval(run: Run) -> Section:
    first = run.datasets()[0]
    tables: list[ResultTable] = []
    for dataset in run.datasets():
        n = run.where(dataset=dataset)[0]["n"]
        label = "most on average over which record is the relevant one, δ aside"
        ceilings = {f"recall@{k}": (label, partial(_most_found, k=k, n=n)) for k in (10, 50)}
        metrics = ("recall@10", "recall@50", "recall@20, t=0.35", "recall@50, t=0.25", "recall@10, t=0.25")
        tables += _tables(run, dataset, metrics, ceilings, shown=not tables)
    return Section(
        "Retrieval for generation",
        "Which records reach the prompt (the paper's DP-RAG), measured without any generator. **Scope of the "
        "guarantee:** which records are named is private; their texts, and answers made from them, are not. Each "
        f"query is one release, so m queries cost m of them; the index is one release for all queries. {run.sizes()}",
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
                "advantage alone is no contract: it admits a mechanism that now and then tells everything.",
            ),
            *run.picture(
                "dp-rag-recall-50",
                "Recall at fifty against epsilon",
                _retrieval_reading(run, first, "recall@50"),
            ),
        ],
        tables=tables,
        notes=[
            "The most that can be reached, eᵋ k/n, is for mechanisms that must work whichever record is the relevant "
            "one, on average over which, and leaves δ aside. A measured recall may pass it by chance, with few "
            "queries all the more, or where something public tells relevant records from others.",
            "Cuts between levels on one set are chosen on the other; the screening threshold and the clamping range "
            "are round public numbers, picked by people who have seen such scores.",
            _OPTIMAL,
            "“selection” names ten records and has no scores: it is in the tables of recall@10 and in no picture.",
            "FRAMES here is questions against the titles of their pages: the page texts are not part of the set. "
            "`scoreshield rag` runs the whole pipeline, chunks to judge, where they are.",
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
        "IJB-B, IJB-C, AgeDB, CFP-FP, CALFW, CPLFW and the paper's ArcFace and ViT models are not to be had here; "
        "LFW with public models stands in.",
        "TAR at false-accept rates of 1e-5 and 1e-6 on real pairs: 3,000 impostors cannot tell them.",
        "The classical calibration rule and the sensitivity Δ = 1.5: `scoreshield report figures` draws them, for "
        "synthetic scores.",
        "CIFAR-100 and Oxford-IIIT Pets: loaders are there (`scoreshield.bench.data`), embeddings of them are not "
        "part of the compact data.",
        "Answers of language models: the pipeline is tested against a server of its own; no model was at hand, so "
        "no accuracies are reported.",
        *(f"Not run for this page: `scoreshield bench {name}`." for name in EXPERIMENTS if name not in runs),
    ]  # fmt: skip
    return Section("What is not here", "What the paper reports and this page does not, and why.", notes=notes)
