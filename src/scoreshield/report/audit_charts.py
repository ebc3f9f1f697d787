"""The charts of an audit's page, each with the sentence that says what to see in it.

What was measured is drawn as ``private``, what the claim allows or the neighbour gives as ``clean``, and what the claim
forbids is hatched: a measured line inside the hatching is what a broken claim looks like.
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
from scoreshield.report.svg import Axis, Chart

Float = NDArray[np.float64]

#: Where a claim lets a test find more than this share of members at 1 % false alarms, only rare alarms tell anything.
_STEEP = 0.5


#: The test statistics in words; others speak for themselves.
_STATISTICS = {
    "likelihood": "log-likelihood ratio",
    "linear": "linear discriminant",
    "table": "log ratio of histograms",
    "membership": "the record's own entry",
    "classifier": "a trained classifier",
    "low bits": "the last bits of the outputs",
    "noiseless": "a combination without noise",
}


def statistic_words(result: AuditResult) -> str:
    return _STATISTICS.get(result.statistic, result.statistic)


def tradeoff_chart(result: AuditResult) -> Chart:
    """True positives against false positives, measured and claimed, with the region that the claim forbids."""
    allowed = float(result.claim.tpr_at(0.01))
    log = allowed > _STEEP
    low = _least_rate(result)
    rates = np.geomspace(low, 1.0, 241) if log else np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 241)])
    found = result.tpr_at_1_percent[0]
    chart = Chart(
        "What the test finds, against what the claim allows",
        Axis(
            "false alarms: without the record, called with",
            low if log else 0.0,
            1.0,
            log=log,
            text=typeset_percent_tick,
        ),
        Axis("found: with the record, called with", 0.0, 1.0, text=typeset_percent_tick),
        f"At 1 % false alarms the test recognised {typeset_percent(found)} of the outputs that were made with the "
        "record; the "
        f"claim allows up to {typeset_attack_rate(allowed)}. A measured line well inside the hatching would break the "
        "claim; "
        "near its edge it may stray by chance.",
    )
    ceiling = np.asarray(result.claim.tpr_at(rates), dtype=np.float64)
    chart.area(rates, ceiling, 1.0, "forbidden by the claim", "aux hatched")
    chart.line(rates, ceiling, "the most that the claim allows", "clean")
    chart.line(*_climbing(result, log), "measured", "private")
    chart.line(rates, rates, "guessing", "aux dashed")
    chart.point(0.01, found, f"{typeset_percent(found)} at {typeset_percent(0.01)}", "private")
    return chart


def _least_rate(result: AuditResult) -> float:
    """Where a logarithmic axis begins: at what can be measured, or farther down, where the claim forbids something."""
    least = min(1 / max(result.releases, 100), 0.1 * math.exp(-min(result.claim.epsilon, 20.0)))
    return 10.0 ** math.floor(math.log10(least))


def _climbing(result: AuditResult, log: bool) -> tuple[list[float], list[float]]:
    """The measured curve; on a logarithmic axis from its least rate on, below which a sample knows nothing."""
    order = np.lexsort((result.tpr, result.fpr))
    fpr, tpr = result.fpr[order], result.tpr[order]
    if log and (fpr > 0).any():
        start = int(np.argmax(fpr > 0))
        fpr, tpr = fpr[start:], tpr[start:]
    return fpr.tolist(), tpr.tolist()


def histogram_chart(result: AuditResult) -> Chart:
    """How the test statistic falls with the record and without it."""
    edges = result.edges
    shares = [_shares(counts) for counts in (result.counts_in, result.counts_out)]
    top = max(float(share.max(initial=0.0)) for share in shares)
    overlap = float(np.minimum(*shares).sum())
    chart = Chart(
        "The outputs, seen by the test",
        Axis(f"test statistic: {statistic_words(result)}", *_ends(edges)),
        Axis("share of the outputs", 0.0, 1.08 * top or 1.0, text=typeset_percent_tick),
        f"Each output becomes one number. The two histograms share {typeset_percent(overlap)} of their area: the more "
        "they "
        "share, the less an output says about whose data it was made from.",
    )
    x = np.repeat(edges, 2)[1:-1]
    for share, name, style in zip(shares, ("with the record", "without it"), ("private", "clean"), strict=True):
        y = np.repeat(share, 2)
        chart.area(x, 0.0, y, "", style)
        chart.line(x, y, name, style)
    return chart


def _shares(counts: Float) -> Float:
    """Counts over their sum; nothing counted is no share."""
    return counts / max(float(counts.sum()), 1.0)


def _ends(edges: Float) -> tuple[float, float]:
    low, high = float(edges[0]), float(edges[-1])
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def bound_chart(result: AuditResult) -> Chart:
    """The lower bound on epsilon against the number of releases, with the claimed epsilon as a line."""
    releases = [float(count) for count, _ in result.trajectory]
    bounds = [float(bound) for _, bound in result.trajectory]
    claimed, last = result.claim.epsilon, result.epsilon_lower
    confidence = typeset_percent(result.confidence)
    top = 1.15 * max([claimed, last, *bounds])
    log = len(releases) > 1 and releases[0] > 0 and releases[-1] / releases[0] > 20
    first = releases[0] if releases and log else 0.0
    chart = Chart(
        "The bound, release by release",
        Axis("releases on each side", first, max([*releases, first + 1.0]), log=log),
        Axis("epsilon, at least", 0.0, top or 1.0),
        f"With confidence {confidence} the true epsilon is at least what the line says at its end, "
        f"{typeset_lower_bound(last)}. "
        f"The claim is {typeset_number(claimed)}. More releases let the bound rise towards the truth.",
    )
    chart.area([chart.x.low, chart.x.high], claimed, chart.y.high, "would break the claim", "aux hatched")
    if releases and not log and releases[0] > result.releases / 4:
        chart.band(0.0, releases[0], "taught the test", "aux")
    chart.line(releases, bounds, f"lower bound ({confidence})", "private")
    chart.horizontal(claimed, f"claimed ε = {typeset_exact(float(f'{claimed:.4g}'))}", "clean")
    if releases:
        chart.point(releases[-1], bounds[-1], f"at least {typeset_lower_bound(bounds[-1])}", "private")
    return chart
