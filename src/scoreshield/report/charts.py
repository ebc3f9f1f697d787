"""The charts of a plan's page, each with the sentence that says what to see in it."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from scoreshield import decisions
from scoreshield._formatting import (
    typeset_attack_rate,
    typeset_exact,
    typeset_number,
    typeset_percent,
    typeset_percent_tick,
)
from scoreshield.plan.base import Plan
from scoreshield.plan.contracts import Contract
from scoreshield.plan.retrieval_plan import RetrievalPlan
from scoreshield.plan.verification_plan import VerificationPlan
from scoreshield.privacy import calibration
from scoreshield.report.svg import Axis, Chart


def fmr_chart(plan: VerificationPlan) -> Chart:
    """False-match rate against the threshold, clean and private, with both thresholds and the target."""
    moved, end, target = plan.recalibration, plan.score_range[1], typeset_percent(plan.target_fmr)
    private = moved.unclipped_threshold
    low = min(max(plan.score_range[0], moved.clean_threshold - 3 * plan.impostor.spread), private)
    high = max(end, private, moved.clean_threshold)
    low, high = min(low, high - 0.1), high + 0.08 * (high - low)
    chart = Chart(
        "False-match rate by threshold",
        Axis("threshold", low, high),
        Axis("false-match rate", _decade(plan.target_fmr / 10), 1.0, log=True, text=typeset_percent_tick),
        f"Left where it was, the threshold would pass {typeset_percent(moved.rate_before)} of the impostors, not "
        f"{target}. "
        + (
            f"Moved to {typeset_number(private, 3)}, it passes {typeset_percent(moved.rate)} again."
            if moved.feasible
            else f"On clipped scores a threshold {at_the_end(plan)} still passes {typeset_percent(moved.limit)}; on "
            "noisy "
            f"scores {typeset_number(private, 3)} passes {target}."
        ),
    )
    chart.band(end, high, "only on noisy scores", "aux hatched")
    t = np.linspace(low, high, 321)
    # A rate of zero has no place on a logarithmic axis: the curve of a sample falls through the floor.
    chart.line(t, decisions.false_match_rate(plan.impostor, t), "clean", "clean")
    rates = decisions.false_match_rate(plan.impostor, t, plan.noise, endpoint=plan.rule.endpoint)
    beyond = (t > end) & plan.rule.clipped
    chart.line(t, np.where(beyond, np.nan, rates), "private", "private")
    chart.line(t, np.where(beyond, rates, np.nan), "", "private dashed")
    chart.horizontal(plan.target_fmr, f"target {target}", "aux")
    chart.vertical(moved.clean_threshold, f"clean {typeset_number(moved.clean_threshold, 3)}", "clean")
    name, style = ("private", "private") if moved.feasible else ("noisy scores only:", "aux")
    chart.vertical(private, f"{name} {typeset_number(private, 3)}", style)
    chart.point(
        moved.clean_threshold, moved.rate_before, f"if kept: {typeset_percent(moved.rate_before)}", "private hollow"
    )
    return chart


def shift_chart(plan: VerificationPlan) -> Chart:
    """How far the threshold moves against the noise, with what clipped scores cannot reach."""
    scales, shifts, law = plan.shift_curve
    known = shifts[np.isfinite(shifts)]
    top, bottom = float(known.max(initial=1e-3)), float(known.min(initial=0.0))
    caption = (
        f"The more noise, the farther the threshold must move to keep {typeset_percent(plan.target_fmr)} false matches."
    )
    if 0 < plan.critical_scale < math.inf:
        caption += (
            f" Beyond a noise of {typeset_number(plan.critical_scale, 3)} no threshold serves on clipped scores; on "
            "noisy ones "
            "there always is one."
        )
    chart = Chart(
        "Threshold shift by noise",
        Axis("noise standard deviation σ", 3 * float(scales[0]), float(scales[-1]), log=True),  # less moves nothing
        Axis("shift of the threshold", 1.05 * bottom, 1.08 * top),
        caption,
    )
    chart.band(plan.critical_scale, math.inf, "out of reach on clipped scores", "aux hatched")
    chart.line(scales, shifts, "exact", "private")
    chart.line(scales, law, "small-noise law", "aux dashed")
    chart.vertical(plan.scale, "", "aux")
    chart.point(
        plan.scale, plan.recalibration.unclipped_shift, f"this plan: σ = {typeset_number(plan.scale, 3)}", "private"
    )
    chart.top_axis("ε, at the same δ", _epsilon_ticks(chart.x, plan))
    return chart


def _epsilon_ticks(scales: Axis, plan: Plan) -> list[tuple[float, str]]:
    """Round epsilons within the reach of an axis of noise scales, each at the scale that it takes."""
    delta, sensitivity = plan.contract.delta, plan.sensitivity
    least, most = (calibration.epsilon_of(delta, sensitivity / scale) for scale in (scales.high, scales.low))
    if most <= 0:  # so much noise that delta alone covers it
        return []
    powers = range(math.floor(math.log10(max(least, most * 1e-4))), math.ceil(math.log10(most)) + 1)
    epsilons = [digit * 10.0**power for digit in (1, 2, 5) for power in powers]
    shown = [epsilon for epsilon in epsilons if least <= epsilon <= most]
    return [(sensitivity / calibration.mu_of(epsilon, delta), typeset_exact(epsilon)) for epsilon in shown]


def roc_chart(plan: VerificationPlan | RetrievalPlan) -> Chart | None:
    """The operating curves, clean and private, with the operating point; None without genuine scores."""
    if isinstance(plan, RetrievalPlan):
        at, title = plan.k / plan.records, "Relevant against irrelevant records"
        names = ("irrelevant records passed", "relevant records passed")
    else:
        at, title, names = plan.target_fmr, "True matches by false matches", ("false matches", "true matches")
    clean, private = plan.roc(0), plan.roc(plan.noise)
    if clean is None or private is None:
        return None
    low = _decade(at / 10)
    across = Axis(names[0], low, 1.0, log=True, text=typeset_percent_tick)
    chart = Chart(title, across, Axis(names[1], 0.0, 1.0, text=typeset_percent_tick))
    for curve, name in ((clean, "clean"), (private, "private")):
        fpr, tpr, _ = curve.curve(1200)
        start = np.flatnonzero(fpr <= fpr[fpr > 0].min())[-1]  # below its least rate a sample knows nothing
        chart.line(fpr[start:], tpr[start:], name, name)
    chance = np.geomspace(low, 1.0, 60)
    chart.line(chance, chance, "chance", "aux dashed")
    if isinstance(plan, RetrievalPlan):
        _mark_returned(chart, plan, at)
    else:
        _mark_operating_point(chart, plan, float(private.tpr(plan.recalibration.unclipped_threshold)))
    return chart


def _mark_returned(chart: Chart, plan: RetrievalPlan, share: float) -> None:
    chart.vertical(share, f"{plan.k:,} of {plan.records:,}", "aux")
    chart.caption = (
        f"How well one score tells a relevant record from an irrelevant one. Returning {plan.k:,} of {plan.records:,} "
        f"leaves room for {typeset_percent(share)} of the irrelevant ones."
    )


def _mark_operating_point(chart: Chart, plan: VerificationPlan, tar: float) -> None:
    """``tar`` is the rate on noisy scores, which reach the target where clipped ones do not."""
    at, feasible = plan.target_fmr, plan.recalibration.feasible
    chart.vertical(at, "", "aux")
    if plan.target_tar is not None:
        chart.horizontal(plan.target_tar, f"asked for {typeset_percent(plan.target_tar)}", "aux")
    chart.point(at, plan.clean_tar, f"clean {typeset_percent(plan.clean_tar)}", "clean")
    name, style = ("private", "private") if feasible else ("noisy scores only:", "private hollow")
    chart.point(at, tar, f"{name} {typeset_percent(tar)}", style)
    chart.caption = (
        f"At {typeset_percent(at)} false matches{'' if feasible else ' decided on noisy scores'}, noise leaves "
        f"{typeset_percent(tar)} "
        f"of the true matches; without noise it is {typeset_percent(plan.clean_tar)}."
    )


def attack_chart(promise: Contract) -> Chart:
    """The trade-off curve of the best membership test, with its advantage."""
    chart = Chart(
        "What the best attack achieves",
        Axis("false alarms: non-members called members", 0.0, 1.0, text=typeset_percent_tick),
        Axis("members found", 0.0, 1.0, text=typeset_percent_tick),
        "The most that any test for one record can achieve against this release. The height over the diagonal is what "
        f"the release gives away: at most {typeset_attack_rate(promise.attack_advantage)}.",
    )
    fpr = np.concatenate([[0.0], np.geomspace(1e-9, 1e-2, 60), np.linspace(1e-2, 1.0, 199)[1:]])
    tpr = np.asarray(promise.tpr_at(fpr))
    chart.area(fpr, fpr, tpr, "", "private")
    chart.line(fpr, tpr, "best membership test", "private")
    chart.line(fpr, fpr, "guessing", "aux dashed")
    low, high = float(ndtr(-promise.mu / 2)), float(ndtr(promise.mu / 2))
    chart.line([low, low], [low, high], "", "ink thin")
    chart.point(low, high, f"advantage {typeset_attack_rate(promise.attack_advantage)}", "private")
    return chart


def recall_chart(plan: RetrievalPlan) -> Chart:
    """Recall against epsilon, with the corner that no mechanism reaches: recall p needs ln(n (p - delta) / k)."""
    epsilons, recalls = plan.recall_curve
    caption = (
        f"At ε = {typeset_number(plan.contract.epsilon)} the relevant record is returned for "
        f"{typeset_percent(plan.recall)} of the "
        "queries. The hatched corner is out of reach for every mechanism, this one included"
    )
    if plan.target_recall is not None and plan.floor > 0:
        caption += f": a recall of {typeset_percent(plan.target_recall)} needs an ε of at least "
        f"{typeset_number(plan.floor, 3)}"
    if math.isfinite(plan.least_epsilon):
        caption += f". Gaussian noise needs {typeset_number(plan.least_epsilon, 3)} for it, with scores as they are "
        "clamped here"
    chart = Chart(
        "Recall by epsilon",
        Axis("epsilon", float(epsilons[0]), float(epsilons[-1]), log=True),
        Axis(f"recall among the best {plan.k:,}", 0.0, 1.0, text=typeset_percent_tick),
        f"{caption}.",
    )
    grid = np.geomspace(epsilons[0], epsilons[-1], 200)
    best = np.minimum(1.0, plan.k / plan.records * np.exp(np.minimum(grid, 700.0)) + plan.contract.delta)
    chart.area(grid, best, 1.0, "impossible for every mechanism", "aux hatched")
    chart.line(epsilons, recalls, "Gaussian noise", "private")
    chart.horizontal(plan.clean_recall, f"clean {typeset_percent(plan.clean_recall)}", "clean")
    if plan.target_recall is not None:
        chart.horizontal(plan.target_recall, f"asked for {typeset_percent(plan.target_recall)}", "aux")
    chart.vertical(plan.floor, f"floor {typeset_number(plan.floor, 3)}", "aux")
    chart.point(plan.contract.epsilon, plan.recall, f"this plan: {typeset_percent(plan.recall)}", "private")
    return chart


def at_the_end(plan: VerificationPlan) -> str:
    """Where clipped scores have their least rate but zero: a strict rule at the very end passes nothing at all."""
    return ("just below " if plan.rule.endpoint == "strict" else "at ") + typeset_exact(plan.score_range[1])


def _decade(value: float) -> float:
    """The power of ten at or below a value."""
    return 10.0 ** math.floor(math.log10(value) + 1e-9)
