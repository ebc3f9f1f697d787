"""The charts of an audit's page, each with a caption that says what to see in it.

What was measured is drawn as ``private``, what the claim allows or the neighbour gives as ``clean``. What the claim
forbids is hatched: a measured line inside the hatching shows a broken claim.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from scoreshield._formatting import (
    typeset_attack_rate,
    typeset_exact,
    typeset_lower_bound,
    typeset_number,
    typeset_percent,
    typeset_percent_tick,
)
from scoreshield.audit.result import AuditResult
from scoreshield.report.chart import Axis, Chart

Float = NDArray[np.float64]

#: Where a claim lets a test find more than this share of members at 1 % false alarms, only rarer alarms say anything.
_STEEP = 0.5
#: A curve and histograms of fewer outputs than this show chance above all.
_FEW = 100
#: The test statistics in words; a statistic that is not listed is shown by its name.
_STATISTICS = {
    "likelihood": "log-likelihood ratio",
    "linear": "linear discriminant",
    "table": "log ratio of histograms",
    "summaries": "log ratio of histograms of sums and extremes",
    "membership": "the record's own entry",
    "classifier": "a trained classifier",
    "low bits": "the last bits of the outputs",
    "form": "the form of the outputs: type, length, order, errors",
    "noiseless": "a combination without noise",
    "noiseless ratio": "a ratio without noise",
    "outputs that came before": "whether an output came before on one collection only",
}
#: How the statistic of an audit begins that found no test.
_NONE = "none: "


def has_test(result: AuditResult) -> bool:
    """Whether there was anything to test: outputs that could differ between the two collections."""
    return not result.statistic.startswith(_NONE)


def describe_statistic(result: AuditResult) -> str:
    """Describe the test statistic of an audit in words."""
    if not has_test(result):
        return f"no test, because {result.statistic.removeprefix(_NONE)}"
    return _STATISTICS.get(result.statistic, result.statistic)


def count_shown_outputs(result: AuditResult) -> int:
    """Count the outputs that the curve and the histograms are of."""
    return int(result.counts_in.sum() + result.counts_out.sum())


def build_tradeoff_chart(result: AuditResult) -> Chart:
    """Show true positives by false positives, measured and claimed, with the region that the claim forbids."""
    allowed = float(result.pictured_claim.tpr_at(0.01))
    log = allowed > _STEEP
    low = _find_least_rate(result) if log else 0.0
    rates = np.geomspace(low, 1.0, 241) if log else np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 241)])
    found = result.tpr_at_1_percent[0]
    rows = " on unit rows" if result.broken_by_rows else ""
    chart = Chart(
        f"What the best test finds{rows}, against what the claim allows",
        Axis("false alarms: without the record, called with", low, 1.0, log=log, format_tick=typeset_percent_tick),
        Axis("found: with the record, called with", 0.0, 1.0, format_tick=typeset_percent_tick),
        f"{_describe_measured(result)}At 1 % false alarms the test recognised {typeset_percent(found)} of the outputs "
        f"that were made with the record; the claim allows up to {typeset_attack_rate(allowed)}. A measured line well "
        "inside the hatching shows a broken claim. Near its edge the line may stray by chance."
        f"{_describe_rest(result)}",
    )
    ceiling = np.asarray(result.pictured_claim.tpr_at(rates), dtype=np.float64)
    chart.add_area(rates, ceiling, 1.0, "forbidden by the claim", "aux", hatched=True)
    chart.add_line(rates, ceiling, "the most that the claim allows", "clean")
    chart.add_line(*_sort_measured_rates(result, log), "measured", "private")
    chart.add_line(rates, rates, "guessing", "aux", dashed=True)
    chart.add_point(0.01, found, f"{typeset_percent(found)} at {typeset_percent(0.01)}", "private")
    return chart


def _describe_measured(result: AuditResult) -> str:
    """Describe the outputs that the curve and the histograms of a betting audit are of."""
    if not result.calls:
        return ""
    count = count_shown_outputs(result)
    caution = " So few outputs say little by themselves." if count < _FEW else ""
    return f"The best test on the last {count:,} outputs of its pair, which did not teach it.{caution} "


def _describe_rest(result: AuditResult) -> str:
    return " The verdict comes from bets on all outputs, and not from this curve alone." if result.calls else ""


def _find_least_rate(result: AuditResult) -> float:
    """Find where a logarithmic axis begins: the least rate that can be measured, or that the claim limits."""
    least = min(1 / max(result.releases, 100), 0.1 * math.exp(-min(result.pictured_claim.epsilon, 20.0)))
    return 10.0 ** math.floor(math.log10(least))


def _sort_measured_rates(result: AuditResult, log: bool) -> tuple[list[float], list[float]]:
    """Sort the measured curve; a logarithmic axis shows it from its least rate on."""
    order = np.lexsort((result.tpr, result.fpr))
    fpr, tpr = result.fpr[order], result.tpr[order]
    if log and (fpr > 0).any():
        start = int(np.argmax(fpr > 0))
        fpr, tpr = fpr[start:], tpr[start:]
    return fpr.tolist(), tpr.tolist()


def build_histogram_chart(result: AuditResult) -> Chart:
    """Show the distribution of the test statistic with the record and without it."""
    edges = result.edges
    shares = [_divide_by_sum(counts) for counts in (result.counts_in, result.counts_out)]
    top = max(float(share.max(initial=0.0)) for share in shares)
    overlap = float(np.minimum(*shares).sum())
    chart = Chart(
        "The outputs, seen by the best test",
        Axis(f"test statistic: {describe_statistic(result)}", *_find_ends(edges)),
        Axis("share of the outputs", 0.0, 1.08 * top or 1.0, format_tick=typeset_percent_tick),
        f"{_describe_measured(result)}Each output becomes one number. The two histograms share "
        f"{typeset_percent(overlap)} of their area: the more they share, the less an output says about the collection "
        "that it was made from.",
    )
    x, (inside, outside) = np.repeat(edges, 2)[1:-1], (np.repeat(share, 2) for share in shares)
    chart.add_area(x, 0.0, inside, "", "private")
    chart.add_line(x, inside, "with the record", "private")
    chart.add_area(x, 0.0, outside, "", "clean")
    chart.add_line(x, outside, "without it", "clean")
    return chart


def _divide_by_sum(counts: Float) -> Float:
    return counts / max(float(counts.sum()), 1.0)


def _find_ends(edges: Float) -> tuple[float, float]:
    low, high = float(edges[0]), float(edges[-1])
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def build_bound_chart(result: AuditResult) -> Chart:
    """Show the lower bound on epsilon by the number of releases, with the claimed epsilon as a line."""
    releases = [float(count) for count, _ in result.trajectory]
    bounds = [float(bound) for _, bound in result.trajectory]
    claimed, last = result.claim.epsilon, result.epsilon_lower
    confidence = typeset_percent(result.confidence)
    top = 1.15 * max([claimed, last, *bounds])
    log = len(releases) > 1 and releases[0] > 0 and releases[-1] / releases[0] > 20
    first = releases[0] if releases and log else 0.0
    chart = Chart(
        "The bound, by the number of outputs",
        Axis(_name_outputs(result), first, max([*releases, first + 1.0]), log=log),
        Axis("epsilon, at least", 0.0, top or 1.0),
        f"With confidence {confidence} the true epsilon is at least the value at the end of the line, "
        f"{typeset_lower_bound(last)}. The claim is {typeset_number(claimed)}. {_describe_rise(result)}",
    )
    chart.add_area([chart.x.low, chart.x.high], claimed, chart.y.high, "would break the claim", "aux", hatched=True)
    if releases and not result.calls and not log and releases[0] > result.releases / 4:
        chart.add_band(0.0, releases[0], "taught the test", "aux")
    chart.add_line(releases, bounds, f"lower bound ({confidence})", "private")
    chart.add_horizontal(claimed, f"claimed ε = {typeset_exact(float(f'{claimed:.4g}'))}", "clean")
    if releases:
        chart.add_point(releases[-1], bounds[-1], f"at least {typeset_lower_bound(bounds[-1])}", "private")
    return chart


def _name_outputs(result: AuditResult) -> str:
    if result.canaries:
        return "releases"
    return "outputs on each side of the pair with most" if result.calls else "releases on each side"


def _describe_rise(result: AuditResult) -> str:
    if result.calls:
        return (
            "The bound is of the bets on all pairs. It rises while bets are won, and it holds wherever the audit stops."
        )
    return "With more releases the bound rises towards the true epsilon."
