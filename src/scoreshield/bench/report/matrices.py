"""The sections of the results page on released matrices: sentences, ratings, images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scoreshield.bench.experiments import table
from scoreshield.bench.experiments.gram import EQUAL, NOTHING
from scoreshield.bench.report import experiments as pictures
from scoreshield.bench.report.results_page import Picture, ResultTable, Section
from scoreshield.bench.report.runs import Run, sentence
from scoreshield.bench.report.tables import attack_table, gram_table, spread_text

#: The paper's own noise: as it is, after its projection, after the exact one.
AS_PUBLISHED = ("noisy (paper)", "aap (paper)", "exact, on the paper's noise")
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


def sentences(run: Run) -> Section:
    return _matrix(
        run,
        "Sentence similarity",
        "Released entries of the similarity matrix of STS-B's sentences, compared with human judgements.",
        drawn=("spearman",),
        tabled=("spearman", "squared error"),
        notes=[_NO_PURE],
    )


def ratings(run: Run) -> Section:
    bare = sentence(
        "Without similarities: ",
        [
            (f"each user's own mean ({NOTHING}) has RMSE {{}}", run.said(method=NOTHING, metric="rmse")),
            (
                f"that mean plus the mean deviation of the item's raters, with equal weights ({EQUAL}), has {{}}",
                run.said(method=EQUAL, metric="rmse"),
            ),
        ],
    )  # fmt: skip
    return _matrix(
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


def images(run: Run) -> Section:
    return _matrix(
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


def _matrix(
    run: Run, title: str, intro: str, *, drawn: Sequence[str], tabled: Sequence[str], notes: Sequence[str]
) -> Section:
    shown: list[Picture] = []
    tables: list[ResultTable] = []
    for dataset in run.datasets():
        for metric in drawn:
            shown += _matrix_pictures(run, dataset, metric)
        for metric in tabled:
            rows, folded = run.where(dataset=dataset, metric=metric), bool(tables)
            caption = f"{dataset}: {metric} at equal (ε, δ), {run.promise}"
            tables += gram_table(rows, _GRAM_METHODS, caption=caption, command=run.command, folded=folded)
            caption = f"{dataset}: {metric} at equal attack, one whole record"
            tables += attack_table(rows, _GRAM_METHODS, caption=caption, command=run.command)
    said = f"{intro} {run.sizes()}"
    return Section(title, said, pictures=shown, tables=tables, notes=[*notes, _ONE_RADIUS])


def _matrix_pictures(run: Run, dataset: str, metric: str) -> list[Picture]:
    rows = run.where(dataset=dataset, metric=metric)
    whole = table.where(rows, setting="contract", radius=None)
    high = max((row["epsilon"] for row in whole), default=math.nan)
    stem = f"{run.name}-{pictures.slug(dataset)}-{pictures.slug(metric)}"
    pieces = [
        (f"{words} {{}}", spread_text(table.where(whole, method=method, epsilon=high)))
        for words, method in (("noisy", "noisy"), ("projected", "exact"), ("private index", "index"))
    ]
    pieces += [
        (f"{words} {{}}", spread_text(table.where(rows, setting="clean", method=method)))
        for words, method in (("without privacy", "non-private"), (NOTHING, NOTHING), (EQUAL, EQUAL))
    ]
    return [
        *run.picture(
            f"{stem}-paper",
            f"{metric} as published against epsilon, {dataset}",
            f"{dataset}, {metric}, as published. Hollow marks: the claimed ε does not hold for a replaced record "
            "(first table).",
        ),
        *run.picture(
            stem,
            f"{metric} with exactly calibrated noise, against epsilon, {dataset}",
            sentence(f"{dataset}, {metric}, for one whole record at ε = {high:g}, {run.promise}: ", pieces)
            if whole
            else f"{dataset}, {metric}.",
        ),
        *run.picture(
            f"{stem}-attack",
            f"{metric} against the advantage of the best attacker, {dataset}",
            f"At equal attack, one whole record. {run.at_equal_attack(dataset, metric)}",
        ),
    ]
