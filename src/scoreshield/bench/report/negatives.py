"""What did not work, as the rows of the runs tell it; each finding is left out where its rows do not bear it out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scoreshield._formatting import typeset_power
from scoreshield.bench.experiments import table
from scoreshield.bench.experiments.gram import EQUAL
from scoreshield.bench.report.matrices import AS_PUBLISHED
from scoreshield.bench.report.runs import Row, Run, best_method, sentence
from scoreshield.bench.report.tables import clears, measured, spread_text, without_similarities

Finding = tuple[str, str]


def negatives(runs: dict[str, Run]) -> list[Finding]:
    """A title and a text for each."""
    found = [_at_epsilon_one(runs.get("dp-rag"))]
    for name, finding in (
        ("gram-sts", _projection),
        ("gram-sts", _record_level),
        ("gram-movielens", _ratings),
        ("dp-rag", _equal_attack),
    ):
        if name in runs:
            found.append(finding(runs[name]))
    return [one for one in found if one is not None]


def _at_epsilon_one(run: Run | None) -> Finding | None:
    """A theorem; the run only lends the size of its first collection."""
    n, what = (1000, "") if run is None else (run.rows[0]["n"], f" ({run.datasets()[0]})")
    return (
        "At ε = 1 almost nothing about a single record is left, and no mechanism can change that",
        "An output for one collection has at least e⁻ᵋ of its probability for each neighbour, without δ. So k "
        "records out of n hold the relevant one with probability at most eᵋ k/n, averaged over the possible "
        f"relevant records: {math.e * 10 / n:.3f} for ten of {n:,} records{what} at ε = 1; recall 0.7 needs ε ≥ "
        f"{math.log(0.7 * n / 10):.1f}. A yes or no about one record, with equal odds beforehand, is right at most "
        f"eᵋ/(1 + eᵋ) of the time for δ = 0, {1 / (1 + math.exp(-1)):.1%} at ε = 1. These limits are means: a "
        "measured value may pass them by chance.",
    )


def _gains(rows: Sequence[Row], method: str) -> list[Row]:
    """What a projection changes, matrix by matrix: the value after it less that of the same noisy matrix."""

    def key(row: Row) -> tuple[object, ...]:
        return tuple(row[name] for name in ("dataset", "radius", "epsilon", "delta", "repeat"))

    noisy = {key(row): row["value"] for row in table.where(rows, method=AS_PUBLISHED[0]) if row["value"] is not None}
    return [
        row | {"value": row["value"] - noisy[key(row)]}
        for row in table.where(rows, method=method)
        if row["value"] is not None and key(row) in noisy
    ]


def _projection(run: Run) -> Finding | None:
    rows = run.where(setting="paper", metric="spearman")
    changes = {method: measured(_gains(rows, method)) for method in AS_PUBLISHED[1:]}
    known = {method: change for method, change in changes.items() if change["count"]}
    if not known:
        return None
    names = dict(zip(AS_PUBLISHED, ("the noisy matrix", "the paper's projection", "the exact one"), strict=True))
    verdicts = {names[method]: _verdict(change) for method, change in known.items()}
    text = sentence(
        "Each projection is compared with the same noisy matrix (the paper's noise), over repeats and budgets. The "
        "Spearman correlation changes by ",
        [(f"{{}} with {names[m]}", f"{c['mean']:+.3f} ± {c['sd']:.3f}") for m, c in known.items()],
    )
    errors = run.where(setting="paper", metric="squared error")
    text += sentence(
        " The squared error of an entry, averaged over the budgets, is ",
        [
            (f"{{}} for {names[m]}" if m == AS_PUBLISHED[0] else f"{{}} after {names[m]}", f"{c['mean']:.3g}")
            for m, c in ((m, measured(table.where(errors, method=m))) for m in AS_PUBLISHED)
            if c["count"]
        ],
    )
    title = f"Projection {next(iter(verdicts.values()))} the STS-B correlation"
    if len(set(verdicts.values())) > 1:
        title = "The STS-B correlation: " + ", ".join(f"{name} {said} it" for name, said in verdicts.items())
    return (
        title,
        f"{text} [The experiments page](experiments.md) has a run at the full size of the set.",
    )


def _verdict(change: dict[str, float]) -> str:
    if abs(change["mean"]) <= change["sd"]:
        return "does not help"  # not beyond the spread
    return "helps" if change["mean"] > 0 else "lowers"


def _record_level(run: Run) -> Finding | None:
    """Noise on the matrix itself, for a whole record; told only while it beats nothing."""
    whole = run.where(setting="contract", radius=None, metric="spearman")
    high = max((row["epsilon"] for row in whole), default=math.nan)
    here = table.where(whole, epsilon=high)
    matrix = table.where(here, method=("noisy", "exact"))
    reference = without_similarities(run.where())
    if not matrix or any(clears(table.where(matrix, method=m), reference) for m in ("noisy", "exact")):
        return None
    sizes = sorted({row["n"] for row in matrix})
    index = spread_text(table.where(here, method="index"))
    return (
        "Gram noise that protects a whole record is useless",
        "One record moves n − 1 similarities, so the noise grows with √n. "
        + sentence(
            f"With n = {' to '.join(f'{n:,}' for n in dict.fromkeys((sizes[0], sizes[-1])))} and ε = {high:g} each "
            f"entry carries noise of standard deviation {matrix[0]['noise_std']:.2g}, and the correlation is ",
            [
                (f"{{}} {words}", spread_text(table.where(matrix, method=m)))
                for words, m in (("as it is", "noisy"), ("after projection", "exact"))
            ],
        )
        + (f" A private index gives {index} under the same promise." if index else ""),
    )


def _ratings(run: Run) -> Finding | None:
    """Told only while no release that protects a record clears what is had without similarities."""
    bare = run.where(setting="clean", method=EQUAL, metric="rmse")
    record = [row for row in run.where(setting=("contract", "advantage"), metric="rmse") if row["radius"] is None]
    reference = without_similarities(run.where(metric="rmse"))
    kept = ("dataset", "setting", "method", "epsilon", "target_advantage")
    cells: dict[tuple[object, ...], list[Row]] = {}
    for row in record:
        cells.setdefault(tuple(row[name] for name in kept), []).append(row)
    if not bare or not record or any(clears(cell, reference) for cell in cells.values()):
        return None
    dataset = bare[0]["dataset"]
    here = table.where(record, dataset=dataset, setting="contract")
    high = max((row["epsilon"] for row in here), default=math.nan)
    here = table.where(here, epsilon=high)
    best = best_method(here)
    told = sentence(
        f"{dataset}, RMSE: ",
        [
            ("{} with all similarities taken as equal", spread_text(table.where(bare, dataset=dataset))),
            (f"{{}} for the best release at ε = {high:g}, {best}", spread_text(table.where(here, method=best))),
            ("{} without privacy", run.said(dataset=dataset, setting="clean", method="non-private", metric="rmse")),
        ],
    )
    return (
        "On MovieLens no release that protects a record is better than no similarities",
        f"{told} Compared on the same samples of users, none is better by more than the spread of the difference.",
    )


def _equal_attack(run: Run) -> Finding | None:
    dataset = run.datasets()[0]
    rows = run.where(dataset=dataset, setting="advantage", metric="recall@10")
    low = min((row["target_advantage"] for row in rows), default=math.nan)
    here = table.where(rows, target_advantage=low)
    best = best_method(here)
    if best is None:
        return None
    ten = run.nearest(10.0)
    spent = [row for row in run.where(dataset=dataset, setting="contract", epsilon=ten) if row["attack_advantage"]]
    pure = sorted(row["attack_advantage"] for row in spent if not row["delta"])
    gaussian = [row["attack_advantage"] for row in spent if row["delta"]]
    part = ""
    if pure and gaussian:
        part = (
            f" A part of the gain at equal ε comes from a weaker protection: at ε = {ten:g} the best attacker has an "
            f"advantage of {pure[0]:.4g} to {pure[-1]:.4g} against pure mechanisms, and of {max(gaussian):.2g} "
            f"against Gaussian noise at δ = {typeset_power(run.delta or 0.0)}."
        )
    return (
        "If the attacker gains little, the user gains little too, for the mechanisms here",
        f"{dataset}: at an attack advantage of {low:g} the best recall@10 is "
        f"{spread_text(table.where(here, method=best))} ({best}). An advantage alone is not enough as a contract: it "
        f"allows a mechanism that reveals everything with that probability.{part}",
    )
