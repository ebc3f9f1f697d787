"""The sections of the results page, one an experiment: pictures, a reading filled from the rows, tables, notes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from scoreshield.data import compact
from scoreshield.experiments import EXPERIMENTS, table
from scoreshield.report import experiments as pictures
from scoreshield.report import figures, plots
from scoreshield.report.result_runs import Run
from scoreshield.report.result_tables import attack_table, mean, score_table
from scoreshield.report.results_page import Picture, ResultTable, Section
from scoreshield.report.sheet import power_of_ten
from scoreshield.utility.synthetic import ScoreSet

Row = dict[str, Any]

_SCORE_METHODS = (
    "gaussian", "gaussian, clamped", "laplace", "staircase", "staircase, clamped", "optimal", "levels", "screening",
    "screen and refine", "selection", "index",
)  # fmt: skip
_FIGURE_SETS = ("faceres_centred", "dlib_centred", "mobileface")


def truths(runs: dict[str, Run]) -> Section | None:
    """The claimed and the true epsilon of everything that was run as published."""
    rows = [row for run in runs.values() for row in run.where(setting="paper", repeat=0)]
    if not rows:
        return None
    first = next(run for run in runs.values() if run.where(setting="paper"))
    path = first.folder / "figures" / "claimed-and-true.png"
    plots.save(pictures.claimed_and_true(rows), path)
    columns = sorted({row["epsilon"] for row in rows})
    found: dict[tuple[str, float], dict[float, Row]] = {}
    for row in rows:
        found.setdefault((pictures.released(row), row["delta"]), {})[row["epsilon"]] = row
    lines = []
    for (what, delta), at in sorted(found.items()):
        texts = [f"{at[e]['true_epsilon']:,.3g}" if e in at else "·" for e in columns]
        lines.append([what, power_of_ten(delta), *texts])
    vector = [row for row in rows if row["radius"] is None]
    matrix = [row for row in rows if row["radius"] is not None]
    worst = max(vector or rows, key=lambda row: row["epsilon"])
    words = (
        f"Claimed ({worst['epsilon']:g}, {power_of_ten(worst['delta'])}) for {pictures.released(worst)}: the true ε "
        f"at that δ is {worst['true_epsilon']:,.0f}."
    )
    if matrix:
        least = min(matrix, key=lambda row: (row["epsilon"], -row["true_epsilon"]))
        words += (
            f" Claimed ε = {least['epsilon']:g} for a {pictures.released(least)}: {least['true_epsilon']:,.3g} when "
            "one record is replaced."
        )
    return Section(
        "What the paper promises, and what is true",
        "The paper's rule, σ = Δ √(2 ln(2/δ))/ε, is stated for every ε and holds up to about 10. Its Gram radius Δ "
        "says how far a whole matrix may move; replacing one record moves it by up to 2√(2(n − 1)). Both are run "
        "here as published; this is what one replaced record really gets.",
        pictures=[Picture(path, (
            "True epsilon against claimed epsilon, for score vectors and Gram matrices"
        ), first.command, words)],
        tables=[
            ResultTable(
                caption="The true ε, at the same δ, when one record is replaced",
                header=["released as published", "δ", *(f"claimed {e:g}" for e in columns)],
                rows=lines,
                command=first.command,
                folded=True,
            )
        ],
        notes=["Where the true ε is below the claimed one, the rule wastes noise; the exact calibration does neither."],
    )  # fmt: skip


def faces(run: Run) -> Section:
    dataset = run.datasets()[0]
    here = {"dataset": dataset, "metric": "accuracy"}
    low, five = run.nearest(1.0), run.nearest(5.0)

    def at(method: str, epsilon: float, setting: str = "contract") -> str:
        return f"{run.value(**here, setting=setting, method=method, epsilon=epsilon):.3f}"

    reading = (
        f"{dataset}: at ε = {five:g} the paper's mechanism decides {at('gaussian (paper)', five, 'paper')} of the "
        f"pairs rightly, staircase noise {at('staircase', five)}, one randomised accept bit {at('levels', five)}; "
        f"without privacy {run.value(**here, setting='clean'):.3f}. At ε = {low:g} the bit reaches "
        f"{at('levels', low)}, and no pure mechanism can exceed {math.exp(low) / (1 + math.exp(low)):.3f}."
    )
    tables = []
    for metric in ("accuracy", "tar@1e-2"):
        rows = run.where(dataset=dataset, metric=metric)
        ceiling = ("most that any pure mechanism can reach", lambda e: math.exp(e) / (1 + math.exp(e)))
        tables += [
            score_table(
                rows, _SCORE_METHODS, caption=f"{dataset}: {metric} at equal (ε, δ)", command=run.command,
                ceiling=ceiling if metric == "accuracy" else None, folded=metric != "accuracy",
            ),
            attack_table(rows, _SCORE_METHODS, caption=f"{dataset}: {metric} at equal attack", command=run.command),
        ]  # fmt: skip
    return Section(
        "Face verification",
        "Pairs of faces, accepted where their score passes a threshold (the paper's DP-FR). LFW's official 6,000 "
        "pairs in ten folds, with embeddings of public models; the paper's own models and IJB-B/C are not to be had.",
        pictures=[
            *run.picture("dp-fr-accuracy", "Accuracy against epsilon for each mechanism and score set", reading),
            *run.picture(
                "dp-fr-accuracy-attack",
                "Accuracy against the advantage of the best attacker",
                "The same where every mechanism is equally easy to attack. "
                f"{run.at_equal_attack(dataset, 'accuracy')}",
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
            "Clamped variants enforce a public range, and the accept bit a public threshold: round numbers in the "
            "grid, picked by people who have seen such scores.",
            "“Centred” sets subtract the mean over the very images; here that mean is taken as public.",
            "With 3,000 impostors, rates below 1e-3 cannot be estimated and are left out.",
        ],
    )  # fmt: skip


def operating_points(data_dir: Path | None, folder: Path) -> Section | None:
    """The paper's figures of thresholds and false-match rates, drawn of LFW scores, where those are at hand."""
    if data_dir is None:
        return None
    sets = []
    for name in _FIGURE_SETS:
        scores = compact.lfw_scores(data_dir, name)
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
    dataset = run.datasets()[0]
    rows = run.where(dataset=dataset, metric="recall@10")
    n, ten = rows[0]["n"], run.nearest(10.0)
    ours = table.where(rows, setting="contract", epsilon=ten)
    best = max((mean(table.where(ours, method=m)), m) for m in dict.fromkeys(row["method"] for row in ours))
    reading = (
        f"{dataset}, {n:,} records: at ε = {ten:g} the paper's mechanism finds "
        f"{mean(table.where(rows, setting='paper', epsilon=ten)):.3f} of the relevant records among ten, Gaussian "
        f"noise with exact calibration {mean(table.where(ours, method='gaussian')):.3f}, {best[1]} {best[0]:.3f}; "
        f"without privacy {mean(table.where(rows, setting='clean')):.3f}."
    )
    tables: list[ResultTable] = []
    for metric, k in (("recall@10", 10), ("recall@50", 50)):
        part = run.where(dataset=dataset, metric=metric)
        most = ("most that any mechanism can reach, δ aside", lambda e, k=k: min(1.0, math.exp(e) * k / n))
        tables += [
            score_table(
                part, _SCORE_METHODS, caption=f"{dataset}: {metric} at equal (ε, δ)", command=run.command, ceiling=most,
                folded=k != 10,
            ),
            attack_table(part, _SCORE_METHODS, caption=f"{dataset}: {metric} at equal attack", command=run.command),
        ]  # fmt: skip
    for metric in ("recall@20, t=0.35", "recall@50, t=0.25", "recall@10, t=0.25"):
        if part := run.where(dataset=dataset, metric=metric):
            caption = f"{dataset}: {metric}, the paper's (threshold, k)"
            tables.append(score_table(part, _SCORE_METHODS, caption=caption, command=run.command, folded=True))
    return Section(
        "Retrieval for generation",
        "Which records reach the prompt (the paper's DP-RAG), measured without any generator. **Scope of the "
        "guarantee:** which records are named is private; their texts, and answers made from them, are not. Each "
        "query is one release, so m queries cost m of them; the index is one release for all queries.",
        pictures=[
            *run.picture("dp-rag-recall-10", "Recall at ten against epsilon for each mechanism", reading),
            *run.picture(
                "dp-rag-recall-10-attack",
                "Recall at ten against the advantage of the best attacker",
                f"At equal attack. {run.at_equal_attack(dataset, 'recall@10')} Useful retrieval begins where the "
                "attacker is nearly certain: that is the bound above, not a weakness of one mechanism.",
            ),
            *run.picture(
                "dp-rag-recall-50",
                "Recall at fifty against epsilon",
                "Where only membership in the answer matters, one randomised bit a record (screening) serves at the "
                "smallest ε.",
            ),
        ],
        tables=tables,
        notes=[
            "Cuts between levels on one set are chosen on the other; the screening threshold and the clamping range "
            "are round public numbers, picked by people who have seen such scores.",
            "FRAMES here is questions against the titles of their pages: the page texts are not part of the set. "
            "`scoreshield rag` runs the whole pipeline, chunks to judge, where they are.",
        ],
    )  # fmt: skip


def runtime(run: Run) -> Section:
    seconds = run.where(metric="seconds")
    largest, radius = max(row["n"] for row in seconds), seconds[0]["radius"]
    newton, paper = (
        run.value(metric="seconds", method=method, n=largest, radius=radius) for method in ("newton", "aap")
    )
    words = (
        f"At n = {largest:,}: the exact projection takes {newton:.2g} s, the paper's {paper:.2g} s, "
        f"{paper / newton:.0f} times as long. Same input, one core."
    )
    shown = [one for stem in run.pictures for one in run.picture(stem, "Seconds of each projection by size", words)]
    names = ("seconds", "eigendecompositions", "excess distance", "converged")
    lines = []
    keys = dict.fromkeys((row["n"], row["radius"], row["method"]) for row in run.rows)
    for n, at, method in sorted(keys, key=lambda key: (key[0], str(key[1]), str(key[2]))):
        cells = [run.value(n=n, radius=at, method=method, metric=name) for name in names]
        texts = ["—" if math.isnan(cell) else f"{cell:.3g}" for cell in cells]
        lines.append([f"{n:,}", "one record" if at is None else f"radius {at:g}", str(method), *texts])
    return Section(
        "Time of the projections",
        "The same noisy matrix through each projection. Newton is exact and certified by its duality gap; the "
        "paper's averaged projections end nearby; Dykstra is exact and slow; the SDP is CVXPY with Clarabel, with a "
        "time limit.",
        pictures=shown,
        tables=[
            ResultTable(
                caption="Seconds, eigendecompositions, and how much farther than the nearest valid matrix",
                header=["n", "noise for", "method", *names],
                rows=lines,
                command=run.command,
                folded=True,
            )
        ],
        notes=["Converged 0: the method stopped at its limit, 500 steps for the paper's."],
    )


def noise(run: Run) -> Section:
    epsilons = sorted({row["epsilon"] for row in run.rows})
    lines = []
    for method in dict.fromkeys(row["method"] for row in run.rows):
        for metric in ("standard deviation", "low-bit leak", "seconds per million"):
            values = [run.value(method=method, metric=metric, epsilon=epsilon) for epsilon in epsilons]
            lines.append([str(method), metric, *(f"{value:.3g}" for value in values)])
    ten = run.nearest(10.0)
    sds = {
        m: run.value(method=m, metric="standard deviation", epsilon=ten) for m in ("gaussian", "laplace", "staircase")
    }
    leak = run.value(method="float gaussian", metric="low-bit leak", epsilon=epsilons[-1])
    ours = run.value(method="gaussian", metric="low-bit leak", epsilon=epsilons[-1])
    return Section(
        "The noise itself",
        "How large the noise on one score is (sensitivity 2), whether its low bits tell the score, and how long a "
        "million released scores take.",
        pictures=run.picture(
            "noise-std",
            "Standard deviation of Gaussian, Laplace and staircase noise against epsilon",
            f"At ε = {ten:g}: Gaussian {sds['gaussian']:.3g}, Laplace {sds['laplace']:.3g}, staircase "
            f"{sds['staircase']:.3g}.",
        ),
        tables=[
            ResultTable(
                caption="Standard deviation, low-bit leak, seconds per million",
                header=["law", "", *(f"ε = {epsilon:g}" for epsilon in epsilons)],
                rows=lines,
                command=run.command,
                folded=True,
            )
        ],
        notes=[
            f"Low-bit leak: how well “is it a multiple of 2⁻⁵³?” tells a score of 0 from 1. At ε = {epsilons[-1]:g} "
            f"NumPy's floating-point Gaussian gives {leak:.0%} of draws away, noise on a public grid {ours:.0%}."
        ],
    )  # fmt: skip


def left_out(runs: dict[str, Run]) -> Section:
    notes = [
        "IJB-B, IJB-C, AgeDB, CFP-FP, CALFW, CPLFW and the paper's ArcFace and ViT models are not to be had here; "
        "LFW with public models stands in.",
        "CIFAR-100 and Oxford-IIIT Pets: loaders are there (`scoreshield.data`), embeddings of them are not part of "
        "the compact data.",
        "Answers of language models: the pipeline is tested against a server of its own; no model was at hand, so "
        "no accuracies are reported.",
        *(f"Not run for this page: `scoreshield bench {name}`." for name in EXPERIMENTS if name not in runs),
    ]  # fmt: skip
    return Section("What is not here", "What the paper reports and this page does not, and why.", notes=notes)
