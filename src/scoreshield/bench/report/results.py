"""The results page: what the runs of all experiments show, in words that are filled from the tables.

Every number in the text is read from the rows, so that a page of other runs says other numbers. What is claimed without
a number is a theorem, and the page says which. A section shows its pictures before its tables, and is made only of what
was run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from scoreshield._formatting import format_timing, typeset_power
from scoreshield.bench.data import compact
from scoreshield.bench.experiments import EXPERIMENTS
from scoreshield.bench.experiments.gram import EQUAL, NOTHING
from scoreshield.bench.experiments.mechanisms import MECHANISMS
from scoreshield.bench.report.frames import drop_gap, select_rows
from scoreshield.bench.report.negatives import AS_PUBLISHED, list_negatives
from scoreshield.bench.report.pictures import describe_release, draw_true_epsilons, make_slug
from scoreshield.bench.report.results_page import Picture, ResultsPage, ResultTable, Section, save_results_page
from scoreshield.bench.report.runs import Run, find_best_method, join_sentence, read_runs, summarise_environment
from scoreshield.bench.report.tables import (
    build_attack_table,
    build_gram_table,
    build_score_table,
    compute_mean,
    format_spread,
)
from scoreshield.decisions.models import ScoreSet
from scoreshield.report import figures, plots

_LEAD = """\
The page has the paper's experiments as far as data allow, the true promise of each number, and other mechanisms under
the same contract.

Every table has the paper's setting as published, with its true ε and δ when one whole record is replaced, and our
result under the stated contract. Every comparison is made twice: at equal (ε, δ), and at equal advantage of the best
attacker, because the same ε leaves different advantages with different mechanisms. Text and tables are at one δ, the
smallest of each run. A `results.csv` has each value with its exact guarantee, seed and environment.

**Bold** marks the best value of a column, and values within its spread or their own. A bold value is also better than
no similarities (or a guess) by more than one standard deviation of the difference."""

_OPENING = """\
This page measures what private similarity scores are still good for, on public data. Noise hides each single record.
More noise hides more and keeps fewer answers. The number ε says how much a release may reveal about one record: 0 is
nothing, and each step up reveals more."""

# ---- Claims.

_FIGURE_SETS = ("faceres_centred", "dlib_centred", "mobileface")
_OPTIMAL = (
    "“optimal” is the pure level table with the least mean squared error on 21 levels over [−1, 1], for evenly "
    "spread scores. It is optimal for that, not for this task."
)


def build_truths(runs: dict[str, Run]) -> Section | None:
    """Build the section on the claimed and the true epsilon of everything that was run as published."""
    published = {name: select_rows(run.rows, setting="paper", repeat=0) for name, run in runs.items()}
    involved = [runs[name] for name, part in published.items() if not part.empty]
    if not involved:
        return None
    rows = pd.concat([part for part in published.values() if not part.empty], ignore_index=True)
    rows["released"] = list(map(describe_release, rows["radius"], rows["n"]))
    commands = "\n".join(run.command for run in involved)
    path = involved[0].folder / "figures" / "claimed-and-true.png"
    plots.save_picture(draw_true_epsilons(rows), path)
    columns = sorted(rows["epsilon"].unique().tolist())
    lines = []
    for (released, delta), part in rows.groupby(["released", "delta"]):
        true = dict(zip(part["epsilon"], part["true_epsilon"], strict=True))
        texts = [f"{true[epsilon]:,.3g}" if epsilon in true else "·" for epsilon in columns]
        lines.append([str(released), typeset_power(delta), *texts])
    return Section(
        "What the paper promises, and what is true",
        "The paper's rule, σ = Δ √(2 ln(2/δ))/ε, is stated for every ε but holds only up to ε = 8 to 10, depending "
        "on δ. Its Gram radius Δ states how far a whole matrix may move. Replacing one record moves it by up to "
        "2√(2(n − 1)). This page runs both as published, and states the true ε and δ when one record is replaced.",
        pictures=[
            Picture(
                path, "True epsilon against claimed epsilon, for score vectors and Gram matrices", commands,
                _describe_worst_claims(rows),
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


def _describe_worst_claims(rows: pd.DataFrame) -> str:
    """Describe the largest claim for scores and the smallest for a matrix, each at the strictest delta of its kind."""
    sentences = []
    for kind, article, is_scores in (
        (rows[rows["radius"].isna()], "the", True),
        (rows.dropna(subset="radius"), "a", False),
    ):
        if kind.empty:
            continue
        strict = kind[kind["delta"] == kind["delta"].min()]
        worst = strict.sort_values(["epsilon", "true_epsilon"], ascending=[not is_scores, False], kind="stable").iloc[0]
        sentences.append(
            f"Claimed ({worst['epsilon']:g}, {typeset_power(worst['delta'])}) for {article} {worst['released']}: the "
            f"true ε at that δ is {worst['true_epsilon']:,.3g} when one record is replaced."
        )
    return " ".join(sentences)


def build_faces(run: Run) -> Section:
    tables: list[ResultTable] = []
    ceiling = (
        "upper limit of a pure mechanism, equal numbers of genuine and impostor pairs",
        lambda e: 1 / (1 + math.exp(-e)),
    )
    for dataset in run.list_datasets():
        tables += _build_tables(run, dataset, ("accuracy", "tar@1e-2"), {"accuracy": ceiling}, shown=not tables)
    return Section(
        "Face verification",
        "A pair of faces is accepted if its score passes a threshold (the paper's DP-FR). The data are LFW's "
        "official 6,000 pairs in ten folds, with embeddings of public models. The paper's own models and IJB-B/C "
        f"are unavailable. {run.describe_sizes()}",
        pictures=[
            *run.find_picture(
                "dp-fr-accuracy", "Accuracy against epsilon for each mechanism and score set", _describe_faces(run)
            ),
            *run.find_picture(
                "dp-fr-accuracy-attack",
                "Accuracy against the advantage of the best attacker",
                f"The same comparison at equal attack. {run.describe_equal_attack(run.list_datasets()[0], 'accuracy')}",
            ),
            *run.find_picture(
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


def _describe_faces(run: Run) -> str:
    dataset, low, five = run.list_datasets()[0], run.find_nearest_epsilon(1.0), run.find_nearest_epsilon(5.0)

    def at(epsilon: float, method: str, setting: str = "contract") -> str:
        return run.format_spread(dataset=dataset, metric="accuracy", setting=setting, method=method, epsilon=epsilon)

    ours = ("gaussian", "gaussian, clamped", "staircase", "levels")
    shares = join_sentence(
        f"{dataset}, {run.promise}, share of correctly decided pairs at ε = {five:g}: ",
        [
            ("the paper's mechanism {}", at(five, "gaussian (paper)", "paper")),
            *((f"{method} {{}}", at(five, method)) for method in ours),
            ("without privacy {}", run.format_spread(dataset=dataset, metric="accuracy", setting="clean")),
        ],
    )
    most = f"where a pure mechanism reaches at most {1 / (1 + math.exp(-low)):.3f} on average"
    return f"{shares} {join_sentence('', [(f'At ε = {low:g} levels reach {{}}, {most}', at(low, 'levels'))])}".strip()


def _build_tables(
    run: Run,
    dataset: str,
    metrics: tuple[str, ...],
    ceilings: Mapping[str, tuple[str, Callable[[float], float]]],
    *,
    shown: bool,
) -> list[ResultTable]:
    """Build both comparisons for each metric of a data set. The first is folded unless ``shown``; all others are."""
    tables: list[ResultTable] = []
    for metric in metrics:
        rows = run.select(dataset=dataset, metric=metric)
        tables += build_score_table(
            rows, MECHANISMS, caption=f"{dataset}: {metric} at equal (ε, δ), {run.promise}", command=run.command,
            ceiling=ceilings.get(metric), folded=bool(tables) or not shown,
        )  # fmt: skip
        caption = f"{dataset}: {metric} at equal attack"
        tables += build_attack_table(rows, MECHANISMS, caption=caption, command=run.command)
    return tables


def build_operating_points(data_dir: Path | None, folder: Path) -> Section | None:
    """Draw the paper's figures of thresholds and false-match rates from LFW scores, where they are available."""
    if data_dir is None:
        return None
    sets = []
    for name in _FIGURE_SETS:
        scores = compact.load_compact_lfw_scores(data_dir, name)
        sets.append(ScoreSet(f"LFW {name}", scores.impostor, scores.genuine))
    drawn = {
        "lfw-fmr-overlays": (
            figures.draw_fmr_overlays(sets),
            "False-match rate against the threshold after noise, by calibration",
            "Noise moves the false-match curve to the right. Grey, dotted: a rule that does not give the privacy it "
            "claims.",
        ),
        "lfw-shift-against-scale": (
            figures.draw_shift_by_scale(sets),
            "Shift of the threshold against the noise scale, infeasible region shaded",
            "The shift of the threshold that keeps the rate. In the shaded part clipped scores cannot reach the rate.",
        ),
        "lfw-shift-against-epsilon": (
            figures.draw_shift_by_epsilon(sets),
            "Shift of the threshold against epsilon, by calibration",
            "The same against ε. Unclipped scores are as private and reach every rate.",
        ),
    }
    shown = []
    for stem, (figure, alt, reading) in drawn.items():
        path = folder / "figures" / f"{stem}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        plots.save_picture(figure, path)
        shown.append(Picture(path, alt, "scoreshield report results --data-dir DIR", reading))
    return Section(
        "Operating points",
        "The paper's figures of thresholds, computed exactly (no simulation) from LFW's clean scores. `scoreshield "
        "report figures` draws them for synthetic scores.",
        pictures=shown,
    )  # fmt: skip


def build_retrieval(run: Run) -> Section:
    first = run.list_datasets()[0]
    tables: list[ResultTable] = []
    for dataset in run.list_datasets():
        n = int(run.select(dataset=dataset)["n"].iloc[0])
        label = "upper limit, averaged over the possible relevant records, without δ"
        ceilings = {f"recall@{k}": (label, partial(_bound_recall, k=k, n=n)) for k in (10, 50)}
        metrics = ("recall@10", "recall@50", "recall@20, t=0.35", "recall@50, t=0.25", "recall@10, t=0.25")
        tables += _build_tables(run, dataset, metrics, ceilings, shown=not tables)
    return Section(
        "Retrieval for generation",
        "This measures which records reach the prompt (the paper's DP-RAG), without a generator. **Scope of the "
        "guarantee:** which records are named is private. Their texts, and answers made from them, are not. Each "
        "query is one release, so m queries cost m releases. The index is one release for all queries. "
        f"{run.describe_sizes()}",
        pictures=[
            *run.find_picture(
                "dp-rag-recall-10",
                "Recall at ten against epsilon for each mechanism",
                _describe_retrieval(run, first, "recall@10"),
            ),
            *run.find_picture(
                "dp-rag-recall-10-attack",
                "Recall at ten against the advantage of the best attacker",
                f"At equal attack. {run.describe_equal_attack(first, 'recall@10')} "
                f"{_describe_half_value(run, first, 'recall@10')} An "
                "advantage alone is not enough as a contract: it allows a mechanism that sometimes reveals "
                "everything.",
            ),
            *run.find_picture(
                "dp-rag-recall-50",
                "Recall at fifty against epsilon",
                _describe_retrieval(run, first, "recall@50"),
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


def _bound_recall(epsilon: float, *, k: int, n: int) -> float:
    return min(1.0, math.exp(min(epsilon, 700.0)) * k / n)  # beyond 700 a float would overflow


def _describe_retrieval(run: Run, dataset: str, metric: str) -> str:
    ten = run.find_nearest_epsilon(10.0)
    rows = run.select(dataset=dataset, metric=metric)
    ours = select_rows(rows, setting="contract", epsilon=ten)
    best = find_best_method(ours)
    return join_sentence(
        f"{dataset}, {run.promise}, {metric} at ε = {ten:g}: ",
        [
            ("the paper's mechanism {}", format_spread(select_rows(rows, setting="paper", epsilon=ten))),
            ("Gaussian noise with exact calibration {}", format_spread(select_rows(ours, method="gaussian"))),
            (f"the best here, {best}, {{}}", format_spread(select_rows(ours, method=best))),
            ("without privacy {}", format_spread(select_rows(rows, setting="clean"))),
        ],
    )


def _describe_half_value(run: Run, dataset: str, metric: str) -> str:
    """Describe the least attack advantage at which a mechanism has half of the value without privacy."""
    rows = run.select(dataset=dataset, metric=metric)
    half, tried = compute_mean(select_rows(rows, setting="clean")) / 2, select_rows(rows, setting="advantage")
    advantages = sorted(tried["target_advantage"].unique().tolist())
    if not advantages or math.isnan(half):
        return ""
    for advantage in advantages:
        here = select_rows(tried, target_advantage=advantage)
        if compute_mean(select_rows(here, method=find_best_method(here))) >= half:
            return f"Half of the value without privacy is first reached at {advantage:g}, by the mechanisms here."
    return f"Half of the value without privacy is not reached up to {advantages[-1]:g}, by the mechanisms here."


def build_omissions(runs: dict[str, Run]) -> Section:
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


# ---- Matrices.

_GRAM_METHODS = (
    *AS_PUBLISHED, "noisy", "aap", "exact", "rank", "shrinkage", "identity", "sure", "index", "gaussian index",
)  # fmt: skip
_NO_PURE = (
    "Laplace, staircase, optimal tables and screening are for score vectors, where one record moves one score. In a "
    "matrix one record moves n − 1 scores, and pure noise would have to grow with n."
)
_ONE_RADIUS = (
    "Tables have the largest Gram radius of the run, which is the strongest of these promises. Pictures have all of "
    "them."
)


def build_sentences(run: Run) -> Section:
    return _build_matrix(
        run,
        "Sentence similarity",
        "Released entries of the similarity matrix of STS-B's sentences, compared with human judgements.",
        drawn=("spearman",),
        tabled=("spearman", "squared error"),
        notes=[_NO_PURE],
    )


def build_ratings(run: Run) -> Section:
    bare = join_sentence(
        "Without similarities: ",
        [
            (f"each user's own mean ({NOTHING}) has RMSE {{}}", run.format_spread(method=NOTHING, metric="rmse")),
            (
                f"that mean plus the mean deviation of the item's raters, with equal weights ({EQUAL}), has {{}}",
                run.format_spread(method=EQUAL, metric="rmse"),
            ),
        ],
    )  # fmt: skip
    return _build_matrix(
        run,
        "Recommendation",
        "Ratings of MovieLens-100K predicted from released similarities of users; lower is better. The guarantee "
        "covers the similarities. The recommender knows the ratings that it averages.",
        drawn=("rmse",),
        tabled=("rmse", "squared error"),
        notes=[
            *([f"{bare} A value above the lower of these is worse than no similarities."] if bare else []),
            _NO_PURE,
        ],
    )


def build_images(run: Run) -> Section:
    return _build_matrix(
        run,
        "Images",
        "Verification, five nearest neighbours, instance retrieval and spectral clusters of CIFAR-10 images, from "
        "the matrix alone. Every repeat has a fresh sample of images, as in the paper.",
        drawn=("auc", "nmi"),
        tabled=("auc", "nmi", "5-nn accuracy", "recall@1", "map", "squared error"),
        notes=[
            "“no similarities”, the dotted line, is the result of the task on a matrix without information: the NMI "
            "of a random clustering of few images is far above 0.",
            _NO_PURE,
        ],
    )  # fmt: skip


def _build_matrix(
    run: Run, title: str, intro: str, *, drawn: Sequence[str], tabled: Sequence[str], notes: Sequence[str]
) -> Section:
    shown: list[Picture] = []
    tables: list[ResultTable] = []
    for dataset in run.list_datasets():
        for metric in drawn:
            shown += _list_matrix_pictures(run, dataset, metric)
        for metric in tabled:
            rows, folded = run.select(dataset=dataset, metric=metric), bool(tables)
            caption = f"{dataset}: {metric} at equal (ε, δ), {run.promise}"
            tables += build_gram_table(rows, _GRAM_METHODS, caption=caption, command=run.command, folded=folded)
            caption = f"{dataset}: {metric} at equal attack, one whole record"
            tables += build_attack_table(rows, _GRAM_METHODS, caption=caption, command=run.command)
    said = f"{intro} {run.describe_sizes()}"
    return Section(title, said, pictures=shown, tables=tables, notes=[*notes, _ONE_RADIUS])


def _list_matrix_pictures(run: Run, dataset: str, metric: str) -> list[Picture]:
    rows = run.select(dataset=dataset, metric=metric)
    whole = select_rows(rows, setting="contract", radius=None)
    high = max(whole["epsilon"].tolist(), default=math.nan)
    stem = f"{run.name}-{make_slug(dataset)}-{make_slug(metric)}"
    pieces = [
        (f"{words} {{}}", format_spread(select_rows(whole, method=method, epsilon=high)))
        for words, method in (("noisy", "noisy"), ("projected", "exact"), ("private index", "index"))
    ]
    pieces += [
        (f"{words} {{}}", format_spread(select_rows(rows, setting="clean", method=method)))
        for words, method in (("without privacy", "non-private"), (NOTHING, NOTHING), (EQUAL, EQUAL))
    ]
    return [
        *run.find_picture(
            f"{stem}-paper",
            f"{metric} as published against epsilon, {dataset}",
            f"{dataset}, {metric}, as published. Hollow marks: the claimed ε does not hold for a replaced record "
            "(first table).",
        ),
        *run.find_picture(
            stem,
            f"{metric} with exactly calibrated noise, against epsilon, {dataset}",
            join_sentence(f"{dataset}, {metric}, for one whole record at ε = {high:g}, {run.promise}: ", pieces)
            if not whole.empty
            else f"{dataset}, {metric}.",
        ),
        *run.find_picture(
            f"{stem}-attack",
            f"{metric} against the advantage of the best attacker, {dataset}",
            f"At equal attack, one whole record. {run.describe_equal_attack(dataset, metric)}",
        ),
    ]


# ---- Times.

_MEASURES = ("seconds", "eigendecompositions", "excess distance", "converged")


def build_runtime(run: Run) -> Section:
    shown: list[Picture] = []
    for radius in map(drop_gap, run.rows["radius"].unique()):
        stem = f"runtime-{'record' if radius is None else make_slug(f'{radius:g}')}"
        shown += run.find_picture(
            stem, f"Seconds of each projection by size, {_describe_noise(radius)}", _describe_seconds(run, radius)
        )
    lines = []
    groups = run.select().groupby(["n", "radius", "epsilon", "method"], sort=False, dropna=False)
    keys = [(n, drop_gap(radius), epsilon, method) for n, radius, epsilon, method in groups.groups]
    for n, at, epsilon, method in sorted(keys, key=lambda key: (key[0], str(key[1]), key[2], str(key[3]))):
        here = run.select(n=n, radius=at, epsilon=epsilon, method=method)
        texts = [format_timing(compute_mean(select_rows(here, metric=name))) for name in _MEASURES]
        lines.append([f"{n:,}", _describe_noise(at), f"{epsilon:g}", str(method), *texts])
    return Section(
        "Time of the projections",
        "Each projection gets the same noisy matrix. Newton is exact and certified by its duality gap. The paper's "
        "averaged projections (aap) end nearby. Dykstra is exact and slow. The SDP is CVXPY with Clarabel, with a "
        f"time limit. {run.describe_sizes()}",
        pictures=shown,
        tables=[
            ResultTable(
                caption="Seconds, eigendecompositions, and how much farther than the nearest valid matrix, "
                f"{run.promise}",
                header=["n", "noise for", "ε", "method", *_MEASURES],
                rows=lines,
                command=run.command,
                folded=True,
            )
        ],
        notes=["Converged is the share of repeats. If it is 0, the method stopped at its limit of steps or time."],
    )  # fmt: skip


def _describe_noise(radius: float | None) -> str:
    return "one record" if radius is None else f"radius {radius:g}"


def _describe_seconds(run: Run, radius: float | None) -> str:
    """Describe the run time of each projection on the largest matrix at one budget, and whether it converged."""
    here = run.select(radius=radius, epsilon=run.find_nearest_epsilon(10.0))
    timed = select_rows(here, metric="seconds").dropna(subset="value")
    if timed.empty:
        return ""
    largest = timed["n"].max()
    means = timed[timed["n"] == largest].groupby("method", sort=False)["value"].mean()
    seconds = {str(method): float(value) for method, value in means.items()}
    pieces, newton = [], seconds.get("newton")
    for method, value in seconds.items():
        times = f", {value / newton:.3g} times as long as newton" if newton and method != "newton" else ""
        done = compute_mean(select_rows(here, metric="converged", method=method, n=largest))
        end = "" if math.isnan(done) else "; converged" if done == 1 else "; stopped before it converged"
        extra = (times + end).lstrip(",; ")
        pieces.append((f"{method} {{}} s" + (f" ({extra})" if extra else ""), f"{value:.2g}"))
    delta = "" if run.delta is None else f", δ = {typeset_power(run.delta)}"
    words = join_sentence(
        f"Noise for {_describe_noise(radius)} at ε = {run.find_nearest_epsilon(10.0):g}{delta}, n = {largest:,}: ",
        pieces,
    )
    budgets = select_rows(run.rows, radius=radius).groupby(["epsilon", "delta"], dropna=False).ngroups
    return words + (" The bars are means over all budgets of the run." if budgets > 1 else "")


def build_noise(run: Run) -> Section:
    epsilons = sorted(run.select()["epsilon"].unique().tolist())
    lines = []
    for method in run.select()["method"].unique():
        for metric in ("standard deviation", "low-bit leak", "seconds per million"):
            values = [run.compute_mean(method=method, metric=metric, epsilon=epsilon) for epsilon in epsilons]
            lines.append([str(method), metric, *map(format_timing, values)])

    def at(method: str, metric: str, epsilon: float) -> str:
        value = run.compute_mean(method=method, metric=metric, epsilon=epsilon)
        return "" if math.isnan(value) else f"{value:.3g}"

    ten, high = run.find_nearest_epsilon(10.0), epsilons[-1]
    leaks = join_sentence(
        f"At ε = {high:g} it is ",
        [
            ("{} for NumPy's floating-point Gaussian", at("float gaussian", "low-bit leak", high)),
            ("{} for Gaussian noise on a public grid", at("gaussian", "low-bit leak", high)),
        ],
    )
    return Section(
        "The noise itself",
        "The size of the noise on one score (sensitivity 2), whether its low bits reveal the score, and the time "
        "for a million released scores.",
        pictures=run.find_picture(
            "noise-std",
            "Standard deviation of Gaussian, Laplace and staircase noise against epsilon",
            join_sentence(
                f"Standard deviation at ε = {ten:g}, {run.promise}: ",
                [(f"{law} {{}}", at(law, "standard deviation", ten)) for law in ("gaussian", "laplace", "staircase")],
            ),
        ),
        tables=[
            ResultTable(
                caption=f"Standard deviation, low-bit leak, seconds per million, {run.promise}",
                header=["law", "", *(f"ε = {epsilon:g}" for epsilon in epsilons)],
                rows=lines,
                command=run.command,
                folded=True,
            )
        ],
        notes=[
            "Low-bit leak: how much more often “it is a multiple of 2⁻⁵³” holds for a score of 1 than for one of 0, an "
            f"attacker's advantage. {leaks}".strip()
        ],
    )  # fmt: skip


# ---- The page.


def write_message(runs: dict[str, Run]) -> str:
    """Write the plain message of the page: what the best mechanisms keep, what they leave to an attacker, the limit.

    Words come before names and figures.
    """
    found = [_OPENING]
    if "dp-rag" in runs:
        found.append(_describe_best(runs["dp-rag"], "One search", "recall@10", 10.0))
    if "dp-fr" in runs:
        found.append(_describe_best(runs["dp-fr"], "One decision per pair of faces", "accuracy", 5.0, guess=0.5))
    found = [paragraph for paragraph in found if paragraph]
    if any("attacker" in paragraph for paragraph in found):
        found.append(
            "An advantage of 0 is guessing. Near 1, an attacker who knows all other records can almost always tell "
            "which of two candidates the last record is."
        )
    found.append(
        "At ε = 1 almost nothing about a single record is left, for every mechanism. "
        "[What did not work](#what-did-not-work) has the reason."
    )
    return "\n\n".join(found)


def _describe_best(run: Run, question: str, metric: str, epsilon: float, *, guess: float = 0.0) -> str:
    """Describe the best mechanism of the first data set near a budget; an empty text where nothing was measured.

    Args:
        run: The finished experiment.
        question: What is asked of the scores, as a heading.
        metric: The measured quantity.
        epsilon: The budget; the nearest one of the run counts.
        guess: The value that a guess reaches.

    Returns:
        One paragraph: the finding in words, then with names and figures.
    """
    dataset, near = run.list_datasets()[0], run.find_nearest_epsilon(epsilon)
    rows = run.select(dataset=dataset, metric=metric)
    ours = select_rows(rows, setting="contract", epsilon=near)
    best = find_best_method(ours)
    if best is None:
        return ""
    chosen, without = select_rows(ours, method=best), select_rows(rows, setting="clean")
    clean = format_spread(without)
    advantages = chosen["attack_advantage"].dropna().tolist()
    kept = (compute_mean(chosen) - guess) / (compute_mean(without) - guess) if clean else math.nan
    sentences = [
        f"**{question}.**",
        f"The best mechanism keeps {_name_part(kept)} of what the scores are worth without privacy." if clean else "",
        f"An attacker who knows all other records is {_name_guess(max(advantages))} about the last one."
        if advantages
        else "",
        f"In figures: at ε = {near:g} on {dataset}, the best mechanism here, {best}, has {metric} "
        f"{format_spread(chosen)}.",
        f"Without privacy it is {clean}." if clean else "",
        f"The best attacker has an advantage of {max(advantages):.4g}." if advantages else "",
    ]
    return " ".join(filter(None, sentences))


def _name_part(share: float) -> str:
    """Name a share of a whole in words."""
    return "nearly all" if share >= 0.9 else "a large part" if share >= 0.5 else "a small part"


def _name_guess(advantage: float) -> str:
    """Name in words how often an attacker with this advantage is right."""
    return (
        "nearly always right"
        if advantage >= 0.9
        else "mostly right"
        if advantage >= 0.5
        else "little better than a guess"
    )


_SECTIONS: dict[str, Callable[[Run], Section]] = {
    "dp-fr": build_faces,
    "dp-rag": build_retrieval,
    "gram-sts": build_sentences,
    "gram-movielens": build_ratings,
    "gram-vision": build_images,
    "runtime": build_runtime,
    "noise": build_noise,
}


def make_results_page(
    runs: Path, *, markdown: Path, html: Path, images: Path, data_dir: Path | None = None
) -> ResultsPage:
    """Read the run folders under ``runs``, one per experiment, and write the page in both forms.

    Args:
        runs: the folder of the run folders.
        markdown: where the first page goes as Markdown; its parts go into a folder of the same name beside it.
        html: where the page goes as one HTML file.
        images: the folder of the Markdown page's pictures.
        data_dir: the folder of the compact data sets. With it, the paper's operating-point figures are drawn of real
            score sets too.
    """
    operating_points = build_operating_points(data_dir, runs)
    page = compose_results_page(read_runs(runs), operating_points=operating_points)
    save_results_page(page, markdown=markdown, html=html, images=images)
    return page


def compose_results_page(runs: dict[str, Run], *, operating_points: Section | None = None) -> ResultsPage:
    """Compose the page from the runs that are present."""
    sections = [build_truths(runs)]
    for name, run in runs.items():
        sections.append(_SECTIONS[name](run))
        if name == "dp-fr":
            sections.append(operating_points)
    sections.append(build_omissions(runs))
    return ResultsPage(
        title="The evidence",
        lead=f"{write_message(runs)}\n\n{_LEAD}",
        sections=[section for section in sections if section is not None],
        environment={**summarise_environment(runs), "made from": ", ".join(runs)},
        negatives=list_negatives(runs),
        made_by="`scoreshield report results` made this page from the runs of the commands above. `make "
        "bench-quick` does both.",
    )
