"""What did not work, computed from the rows of the runs. A finding that its rows do not support is left out."""

from __future__ import annotations

import math

import pandas as pd

from scoreshield._formatting import typeset_power
from scoreshield.bench.experiments.gram import EQUAL
from scoreshield.bench.report.frames import Summary, select_rows, summarise
from scoreshield.bench.report.runs import Run, find_best_method, join_sentence
from scoreshield.bench.report.tables import beats_reference, find_references, format_spread

#: The paper's own noise: as it is, after its projection, after the exact one.
AS_PUBLISHED = ("noisy (paper)", "aap (paper)", "exact, on the paper's noise")
Finding = tuple[str, str]


def list_negatives(runs: dict[str, Run]) -> list[Finding]:
    """List what did not work, with a title and a text each."""
    findings = [_state_limit(runs.get("dp-rag"))]
    for name, find in (
        ("gram-sts", _judge_projection),
        ("gram-sts", _judge_record_level),
        ("gram-movielens", _judge_ratings),
        ("dp-rag", _judge_equal_attack),
    ):
        if name in runs:
            findings.append(find(runs[name]))
    return [finding for finding in findings if finding is not None]


def _state_limit(run: Run | None) -> Finding | None:
    """State a theorem; the run only gives the size of its first collection."""
    n, what = (1000, "") if run is None else (int(run.rows["n"].iloc[0]), f" ({run.list_datasets()[0]})")
    return (
        "At ε = 1 almost nothing about a single record is left, and no mechanism can change that",
        "An output for one collection has at least e⁻ᵋ of its probability for each neighbour, without δ. So k "
        "records out of n hold the relevant one with probability at most eᵋ k/n, averaged over the possible "
        f"relevant records: {math.e * 10 / n:.3f} for ten of {n:,} records{what} at ε = 1; recall 0.7 needs ε ≥ "
        f"{math.log(0.7 * n / 10):.1f}. A yes or no about one record, with equal odds beforehand, is right at most "
        f"eᵋ/(1 + eᵋ) of the time for δ = 0, {1 / (1 + math.exp(-1)):.1%} at ε = 1. These limits are means: a "
        "measured value may pass them by chance.",
    )


def _find_gains(rows: pd.DataFrame, method: str) -> pd.Series[float]:
    """Find what a projection changes, matrix by matrix: the value after it less that of the same noisy matrix."""
    keys = ["dataset", "radius", "epsilon", "delta", "repeat"]
    noisy, projected = (
        select_rows(rows, method=name).dropna(subset="value")[[*keys, "value"]] for name in (AS_PUBLISHED[0], method)
    )
    pairs = projected.merge(noisy, on=keys, suffixes=("", "_noisy"))
    return pairs["value"] - pairs["value_noisy"]


def _judge_projection(run: Run) -> Finding | None:
    rows = run.select(setting="paper", metric="spearman")
    changes = {method: summarise(_find_gains(rows, method)) for method in AS_PUBLISHED[1:]}
    known = {method: change for method, change in changes.items() if change.count}
    if not known:
        return None
    names = dict(zip(AS_PUBLISHED, ("the noisy matrix", "the paper's projection", "the exact one"), strict=True))
    verdicts = {names[method]: _name_effect(change) for method, change in known.items()}
    text = join_sentence(
        "Each projection is compared with the same noisy matrix (the paper's noise), over repeats and budgets. The "
        "Spearman correlation changes by ",
        [(f"{{}} with {names[m]}", f"{c.mean:+.3f} ± {c.sd:.3f}") for m, c in known.items()],
    )
    errors = run.select(setting="paper", metric="squared error")
    text += join_sentence(
        " The squared error of an entry, averaged over the budgets, is ",
        [
            (f"{{}} for {names[m]}" if m == AS_PUBLISHED[0] else f"{{}} after {names[m]}", f"{c.mean:.3g}")
            for m, c in ((m, summarise(select_rows(errors, method=m)["value"])) for m in AS_PUBLISHED)
            if c.count
        ],
    )
    title = f"Projection {next(iter(verdicts.values()))} the STS-B correlation"
    if len(set(verdicts.values())) > 1:
        title = "The STS-B correlation: " + ", ".join(f"{name} {said} it" for name, said in verdicts.items())
    return (
        title,
        f"{text} [The experiments page](experiments.md) has a run at the full size of the set.",
    )


def _name_effect(change: Summary) -> str:
    if abs(change.mean) <= change.sd:
        return "does not help"  # not beyond the spread
    return "helps" if change.mean > 0 else "lowers"


def _judge_record_level(run: Run) -> Finding | None:
    """Evaluate noise on the matrix itself, for a whole record. The finding is shown only while it has no use."""
    whole = run.select(setting="contract", radius=None, metric="spearman")
    high = max(whole["epsilon"].tolist(), default=math.nan)
    here = select_rows(whole, epsilon=high)
    matrix = select_rows(here, method=("noisy", "exact"))
    references = find_references(run.select())
    if matrix.empty or any(beats_reference(select_rows(matrix, method=m), references) for m in ("noisy", "exact")):
        return None
    sizes = sorted(matrix["n"].unique().tolist())
    index = format_spread(select_rows(here, method="index"))
    return (
        "Gram noise that protects a whole record is useless",
        "One record moves n − 1 similarities, so the noise grows with √n. "
        + join_sentence(
            f"With n = {' to '.join(f'{n:,}' for n in dict.fromkeys((sizes[0], sizes[-1])))} and ε = {high:g} each "
            f"entry carries noise of standard deviation {matrix['noise_std'].iloc[0]:.2g}, and the correlation is ",
            [
                (f"{{}} {words}", format_spread(select_rows(matrix, method=m)))
                for words, m in (("as it is", "noisy"), ("after projection", "exact"))
            ],
        )
        + (f" A private index gives {index} under the same promise." if index else ""),
    )


def _judge_ratings(run: Run) -> Finding | None:
    """Compare releases that protect a record with no similarities. The finding is shown only while none is better."""
    bare = run.select(setting="clean", method=EQUAL, metric="rmse")
    record = run.select(setting=("contract", "advantage"), metric="rmse", radius=None)
    references = find_references(run.select(metric="rmse"))
    kept = ["dataset", "setting", "method", "epsilon", "target_advantage"]
    cells = [cell for _, cell in record.groupby(kept, dropna=False)]
    if bare.empty or not cells or any(beats_reference(cell, references) for cell in cells):
        return None
    dataset = str(bare["dataset"].iloc[0])
    here = select_rows(record, dataset=dataset, setting="contract")
    high = max(here["epsilon"].tolist(), default=math.nan)
    here = select_rows(here, epsilon=high)
    best = find_best_method(here)
    comparison = join_sentence(
        f"{dataset}, RMSE: ",
        [
            ("{} with all similarities taken as equal", format_spread(select_rows(bare, dataset=dataset))),
            (f"{{}} for the best release at ε = {high:g}, {best}", format_spread(select_rows(here, method=best))),
            (
                "{} without privacy",
                run.format_spread(dataset=dataset, setting="clean", method="non-private", metric="rmse"),
            ),
        ],
    )
    return (
        "On MovieLens no release that protects a record is better than no similarities",
        f"{comparison} Compared on the same samples of users, none is better by more than the spread of the "
        "difference.",
    )


def _judge_equal_attack(run: Run) -> Finding | None:
    dataset = run.list_datasets()[0]
    rows = run.select(dataset=dataset, setting="advantage", metric="recall@10")
    low = min(rows["target_advantage"].tolist(), default=math.nan)
    here = select_rows(rows, target_advantage=low)
    best = find_best_method(here)
    if best is None:
        return None
    ten = run.find_nearest_epsilon(10.0)
    spent = run.select(dataset=dataset, setting="contract", epsilon=ten).dropna(subset="attack_advantage")
    is_pure = spent["delta"].isna() | (spent["delta"] == 0)
    pure, gaussian = sorted(spent[is_pure]["attack_advantage"]), spent[~is_pure]["attack_advantage"].tolist()
    part = ""
    if pure and gaussian:
        part = (
            f" A part of the gain at equal ε comes from a weaker protection: at ε = {ten:g} the best attacker has an "
            f"advantage of {pure[0]:.4g} to {pure[-1]:.4g} against pure mechanisms, and of {max(gaussian):.2g} "
            f"against Gaussian noise at δ = {typeset_power(run.delta or 0.0)}."
        )
    return (
        "If the attacker gains little, the user gains little too, for the mechanisms of this experiment",
        f"{dataset}: at an attack advantage of {low:g} the best recall@10 is "
        f"{format_spread(select_rows(here, method=best))} ({best}). An advantage alone is not enough as a contract: it "
        f"allows a mechanism that reveals everything with that probability.{part}",
    )
