"""The sections of the results page on released matrices: sentences, ratings, images."""

from __future__ import annotations

from collections.abc import Sequence

from scoreshield.experiments import table
from scoreshield.report import experiments as pictures
from scoreshield.report.result_runs import Run
from scoreshield.report.result_tables import attack_table, gram_table, mean
from scoreshield.report.results_page import Picture, ResultTable, Section

#: The paper's own noise: as it is, after its projection, after the exact one.
AS_PUBLISHED = ("noisy (paper)", "aap (paper)", "exact, on the paper's noise")
_GRAM_METHODS = (
    *AS_PUBLISHED, "noisy", "aap", "exact", "rank", "shrinkage", "identity", "sure", "index", "gaussian index",
)  # fmt: skip
_NO_PURE = (
    "Laplace, staircase, optimal tables and screening are for score vectors, where one record moves one score. In a "
    "matrix it moves n − 1, and pure noise would have to grow with n."
)


def sentences(run: Run) -> Section:
    return _matrix(
        run,
        "Sentence similarity",
        "Released entries of the similarity matrix of STS-B's sentences against human judgements.",
        drawn=("spearman",),
        tabled=("spearman", "squared error"),
        notes=[_NO_PURE],
    )


def ratings(run: Run) -> Section:
    nothing = run.value(setting="clean", method="no similarities", metric="rmse")
    return _matrix(
        run,
        "Recommendation",
        "Ratings of MovieLens-100K predicted from released similarities of users; lower is better. The guarantee "
        "covers the similarities: the ratings that are averaged are the recommender's own.",
        drawn=("rmse",),
        tabled=("rmse", "squared error"),
        notes=[
            f"Without similarities the prediction is each user's mean, with RMSE {nothing:.3f}: what lies above that "
            "is worse than nothing.",
            _NO_PURE,
        ],
    )  # fmt: skip


def images(run: Run) -> Section:
    return _matrix(
        run,
        "Images",
        "Verification, five nearest neighbours, instance retrieval and spectral clusters of CIFAR-10 images, from "
        "the matrix alone. A fresh sample of images in every repeat, as in the paper.",
        drawn=("auc", "nmi"),
        tabled=("auc", "nmi", "5-nn accuracy", "recall@1", "map", "squared error"),
        notes=[
            "The dotted line is what the task makes of a matrix that says nothing: the NMI of a random clustering "
            "of few images is far above 0.",
            _NO_PURE,
        ],
    )  # fmt: skip


def _matrix(
    run: Run, title: str, intro: str, *, drawn: Sequence[str], tabled: Sequence[str], notes: Sequence[str]
) -> Section:
    shown: list[Picture] = []
    tables: list[ResultTable] = []
    for dataset in run.datasets():
        for metric in drawn:
            shown += _matrix_pictures(run, dataset, metric)
        for metric in tabled:
            rows = run.where(dataset=dataset, metric=metric)
            if not rows:
                continue
            folded = bool(tables)
            caption = f"{dataset}: {metric}"
            tables.append(gram_table(rows, _GRAM_METHODS, caption=caption, command=run.command, folded=folded))
            if table.where(rows, setting="advantage"):
                caption += " at equal attack, one whole record"
                tables.append(attack_table(rows, _GRAM_METHODS, caption=caption, command=run.command))
    return Section(title, intro, pictures=shown, tables=tables, notes=notes)


def _matrix_pictures(run: Run, dataset: str, metric: str) -> list[Picture]:
    rows = run.where(dataset=dataset, metric=metric)
    whole = table.where(rows, setting="contract", radius=None)
    if not whole:
        return []
    high = max(row["epsilon"] for row in whole)
    stem = f"{run.name}-{pictures.slug(dataset)}-{pictures.slug(metric)}"
    noisy, exact, index = (
        mean(table.where(whole, method=method, epsilon=high)) for method in ("noisy", "exact", "index")
    )
    clean = mean(table.where(rows, setting="clean", method="non-private"))
    return [
        *run.picture(
            f"{stem}-paper",
            f"{metric} as published against epsilon, {dataset}",
            f"{dataset}, {metric}, as published. Hollow marks: that ε is not what a replaced record gets (first "
            "table).",
        ),
        *run.picture(
            stem,
            f"{metric} under contracts that hold, against epsilon, {dataset}",
            f"{dataset}, {metric}. For one whole record at ε = {high:g}: noisy {noisy:.3f}, projected {exact:.3f}, "
            f"private index {index:.3f}; without privacy {clean:.3f}.",
        ),
        *run.picture(
            f"{stem}-attack",
            f"{metric} against the advantage of the best attacker, {dataset}",
            f"At equal attack, one whole record. {run.at_equal_attack(dataset, metric)}",
        ),
    ]  # fmt: skip
