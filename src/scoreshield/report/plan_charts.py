"""The charts of a plan's page, each with a caption that says what to see in it."""

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
from scoreshield.plan.candidates import Candidate
from scoreshield.plan.choice import Choice
from scoreshield.plan.contracts import Contract
from scoreshield.plan.retrieval_plan import RetrievalPlan
from scoreshield.plan.sentences import get_error
from scoreshield.plan.verification_plan import VerificationPlan
from scoreshield.privacy import calibration
from scoreshield.report.chart import Axis, Chart, Role

#: How many mechanisms the chart of a ranking has room for.
_MOST_RANKED = 9


def build_fmr_chart(plan: VerificationPlan) -> Chart:
    """Show the false-match rate by threshold, clean and private, with both thresholds and the target."""
    recalibration, end, target = plan.recalibration, plan.score_range[1], typeset_percent(plan.target_fmr)
    clean, private = recalibration.clean_threshold, recalibration.unclipped_threshold
    low = min(max(plan.score_range[0], clean - 3 * plan.impostor.spread), private)
    high = max(end, private, clean)
    low, high = min(low, high - 0.1), high + 0.08 * (high - low)
    kept = typeset_percent(recalibration.rate_before)
    caption = f"If the threshold stays where it was, it passes {kept} of the impostors, not {target}. "
    if recalibration.feasible:
        passed = typeset_percent(recalibration.rate)
        caption += f"Moved to {typeset_number(private, 3)}, it passes {passed} again."
    else:
        caption += (
            f"On clipped scores a threshold {describe_range_end(plan)} still passes "
            f"{typeset_percent(recalibration.limit)}; on noisy scores {typeset_number(private, 3)} passes {target}."
        )
    chart = Chart(
        "False-match rate by threshold",
        Axis("threshold", low, high),
        Axis(
            "false-match rate",
            _floor_to_decade(plan.target_fmr / 10),
            1.0,
            log=True,
            format_tick=typeset_percent_tick,
        ),
        caption,
    )
    chart.add_band(end, high, "only on noisy scores", "aux", hatched=True)
    t = np.linspace(low, high, 321)
    # A rate of zero has no place on a logarithmic axis: the curve of a sample falls through the floor.
    chart.add_line(t, decisions.false_match_rate(plan.impostor, t), "clean", "clean")
    rates = decisions.false_match_rate(plan.impostor, t, plan.noise, endpoint=plan.rule.endpoint)
    beyond = (t > end) & plan.rule.clipped
    chart.add_line(t, np.where(beyond, np.nan, rates), "private", "private")
    chart.add_line(t, np.where(beyond, rates, np.nan), "", "private", dashed=True)
    chart.add_horizontal(plan.target_fmr, f"target {target}", "aux")
    chart.add_vertical(clean, f"clean {typeset_number(clean, 3)}", "clean")
    if recalibration.feasible:
        chart.add_vertical(private, f"private {typeset_number(private, 3)}", "private")
    else:
        chart.add_vertical(private, f"noisy scores only: {typeset_number(private, 3)}", "aux")
    chart.add_point(clean, recalibration.rate_before, f"if kept: {kept}", "private", hollow=True)
    return chart


def build_shift_chart(plan: VerificationPlan) -> Chart:
    """Show the shift of the threshold by noise, with the noise at which clipped scores cannot reach the target."""
    scales, shifts, law = plan.shift_curve
    known = shifts[np.isfinite(shifts)]
    top, bottom = float(known.max(initial=1e-3)), float(known.min(initial=0.0))
    target = typeset_percent(plan.target_fmr)
    caption = f"The more noise, the farther the threshold must move to keep {target} false matches."
    if 0 < plan.critical_scale < math.inf:
        caption += (
            f" Above a noise of {typeset_number(plan.critical_scale, 3)} no threshold reaches it on clipped scores; on "
            "noisy scores one always does."
        )
    chart = Chart(
        "Threshold shift by noise",
        Axis("noise standard deviation σ", 3 * float(scales[0]), float(scales[-1]), log=True),  # less moves nothing
        Axis("shift of the threshold", 1.05 * bottom, 1.08 * top),
        caption,
    )
    chart.add_band(plan.critical_scale, math.inf, "out of reach on clipped scores", "aux", hatched=True)
    chart.add_line(scales, shifts, "exact", "private")
    chart.add_line(scales, law, "small-noise law", "aux", dashed=True)
    chart.add_vertical(plan.scale, "", "aux")
    here = f"this plan: σ = {typeset_number(plan.scale, 3)}"
    chart.add_point(plan.scale, plan.recalibration.unclipped_shift, here, "private")
    chart.set_top_axis("ε, at the same δ", _find_epsilon_ticks(chart.x, plan))
    return chart


def _find_epsilon_ticks(scales: Axis, plan: Plan) -> list[tuple[float, str]]:
    """Find round epsilons within an axis of noise scales, each at the scale that it needs."""
    delta, sensitivity = plan.contract.delta, plan.sensitivity
    least, most = (calibration.find_epsilon(delta, sensitivity / scale) for scale in (scales.high, scales.low))
    if most <= 0:  # so much noise that delta alone covers it
        return []
    powers = range(math.floor(math.log10(max(least, most * 1e-4))), math.ceil(math.log10(most)) + 1)
    epsilons = [digit * 10.0**power for digit in (1, 2, 5) for power in powers]
    shown = [epsilon for epsilon in epsilons if least <= epsilon <= most]
    return [(sensitivity / calibration.find_mu(epsilon, delta), typeset_exact(epsilon)) for epsilon in shown]


def build_roc_chart(plan: VerificationPlan | RetrievalPlan) -> Chart | None:
    """Show the operating curves, clean and private, with the operating point; None without genuine scores."""
    if isinstance(plan, RetrievalPlan):
        at, title = plan.k / plan.records, "Relevant against irrelevant records"
        names = ("irrelevant records passed", "relevant records passed")
    else:
        at, title, names = plan.target_fmr, "True matches by false matches", ("false matches", "true matches")
    clean, private = plan.roc(0), plan.roc(plan.noise)
    if clean is None or private is None:
        return None
    low = _floor_to_decade(at / 10)
    across = Axis(names[0], low, 1.0, log=True, format_tick=typeset_percent_tick)
    chart = Chart(title, across, Axis(names[1], 0.0, 1.0, format_tick=typeset_percent_tick))
    for role, curve in (("clean", clean), ("private", private)):
        fpr, tpr, _ = curve.curve(1200)
        start = np.flatnonzero(fpr <= fpr[fpr > 0].min())[-1]  # a sample says nothing below its least rate
        chart.add_line(fpr[start:], tpr[start:], role, "clean" if role == "clean" else "private")
    chance = np.geomspace(low, 1.0, 60)
    chart.add_line(chance, chance, "chance", "aux", dashed=True)
    if isinstance(plan, RetrievalPlan):
        _mark_returned(chart, plan, at)
    else:
        _mark_operating_point(chart, plan, float(private.tpr(plan.recalibration.unclipped_threshold)))
    return chart


def _mark_returned(chart: Chart, plan: RetrievalPlan, share: float) -> None:
    """Mark the share of records that a search returns."""
    chart.add_vertical(share, f"{plan.k:,} of {plan.records:,}", "aux")
    chart.caption = (
        f"How well one score distinguishes a relevant record from an irrelevant one. Returning {plan.k:,} of "
        f"{plan.records:,} leaves room for {typeset_percent(share)} of the irrelevant ones."
    )


def _mark_operating_point(chart: Chart, plan: VerificationPlan, tar: float) -> None:
    """Mark the target and both true-match rates there.

    Args:
        chart: where the marks and the caption go.
        plan: the plan of the chart.
        tar: the true-match rate on noisy scores, which reach the target where clipped scores do not.
    """
    at, feasible = plan.target_fmr, plan.recalibration.feasible
    clean, private = typeset_percent(plan.clean_tar), typeset_percent(tar)
    chart.add_vertical(at, "", "aux")
    if plan.target_tar is not None:
        chart.add_horizontal(plan.target_tar, f"required: {typeset_percent(plan.target_tar)}", "aux")
    chart.add_point(at, plan.clean_tar, f"clean {clean}", "clean")
    name = "private" if feasible else "noisy scores only:"
    chart.add_point(at, tar, f"{name} {private}", "private", hollow=not feasible)
    where = "" if feasible else " decided on noisy scores"
    chart.caption = (
        f"At {typeset_percent(at)} false matches{where}, noise leaves {private} of the true matches; without noise it "
        f"is {clean}."
    )


def build_ranking_chart(choice: Choice, target: float | None = None) -> Chart:
    """Show the predicted utility of the best mechanisms and of Gaussian noise, each with its interval.

    Args:
        choice: The ranking.
        target: The rate that is required, or None.
    """
    shown = list(choice.candidates[:_MOST_RANKED])
    gaussian = find_gaussian(choice)
    if gaussian is not None and gaussian not in shown:
        shown[-1] = gaussian
    ranks = [choice.candidates.index(row) + 1 for row in shown]
    values = [row.utility for row in shown if math.isfinite(row.utility)]
    most = 1.0 if choice.larger else 1.25 * max([*values, 1e-12])
    places = {-float(place): f"{rank:,}" for place, rank in enumerate(ranks, start=1)}
    chart = Chart(
        f"Predicted {choice.metric}",
        Axis(choice.metric, 0.0, most, format_tick=typeset_percent_tick if choice.larger else typeset_exact),
        Axis("rank", -len(shown) - 0.6, -0.4, format_tick=lambda at: places.get(at, ""), ticks=tuple(places)),
        f"The mechanisms in the order of the table, the best on top. {_describe_interval(shown)}",
    )
    label = "90 % interval of the prediction"
    for place, row in zip(places, shown, strict=True):
        role: Role = "private" if row is choice.chosen else "ink" if row is gaussian else "aux"
        error = get_error(row)
        if not math.isnan(error):
            ends = [max(row.utility - error, 0.0), min(row.utility + error, most)]
            chart.add_line(ends, [place, place], label, role)
            label = ""
        value = typeset_percent(row.utility) if choice.larger else typeset_number(row.utility, 3)
        reach = 0.0 if math.isnan(error) else error
        chart.add_point(row.utility, place, f"{_shorten_name(row, shown)} {value}", role, reach=reach)
    if target is not None:
        chart.add_vertical(target, f"required: {typeset_percent(target)}", "aux")
    return chart


def find_gaussian(choice: Choice) -> Candidate | None:
    """Find the paper's Gaussian noise in a ranking: the best of its rows."""
    return next((row for row in choice.candidates if "gaussian" in row.mechanism), None)


def _describe_interval(rows: list[Candidate]) -> str:
    if all(math.isnan(get_error(row)) for row in rows):
        return "The predictions have no stated error."
    return "A line spans the interval that holds the released figure nine times in ten, for the same population."


def _shorten_name(row: Candidate, others: list[Candidate]) -> str:
    """Shorten the name of a mechanism to fit beside a dot; its range only distinguishes rows of one name."""
    name = row.mechanism.replace("randomised response on", "response,").replace("response on", "response,")
    if sum(other.mechanism == row.mechanism for other in others) == 1:
        return name
    low, high = row.score_range
    return f"{name} in [{low:.2g}, {high:.2g}]"


def build_attack_chart(contract: Contract) -> Chart:
    """Show the trade-off curve of the best membership test, with its advantage."""
    advantage = typeset_attack_rate(contract.attack_advantage)
    chart = Chart(
        "What the best attack achieves",
        Axis("false alarms: non-members called members", 0.0, 1.0, format_tick=typeset_percent_tick),
        Axis("members found", 0.0, 1.0, format_tick=typeset_percent_tick),
        "The most that any test for one record can achieve against this release. The height over the diagonal is what "
        f"the release gives away: at most {advantage}.",
    )
    fpr = np.concatenate([[0.0], np.geomspace(1e-9, 1e-2, 60), np.linspace(1e-2, 1.0, 199)[1:]])
    tpr = np.asarray(contract.tpr_at(fpr))
    chart.add_area(fpr, fpr, tpr, "", "private")
    chart.add_line(fpr, tpr, "best membership test", "private")
    chart.add_line(fpr, fpr, "guessing", "aux", dashed=True)
    low, high = float(ndtr(-contract.mu / 2)), float(ndtr(contract.mu / 2))
    chart.add_line([low, low], [low, high], "", "ink", thin=True)
    chart.add_point(low, high, f"advantage {advantage}", "private")
    return chart


def build_recall_chart(plan: RetrievalPlan) -> Chart:
    """Show recall by epsilon, with the corner that no mechanism reaches: recall p needs ln(n (p - delta) / k)."""
    epsilons, recalls = plan.recall_curve
    recall = typeset_percent(plan.recall)
    caption = (
        f"At ε = {typeset_number(plan.contract.epsilon)} the relevant record is returned for {recall} of the queries. "
        "The hatched corner is out of reach for every mechanism, this one included"
    )
    if plan.target_recall is not None and plan.floor > 0:
        target = typeset_percent(plan.target_recall)
        caption += f": a recall of {target} needs an ε of at least {typeset_number(plan.floor, 3)}"
    if math.isfinite(plan.least_epsilon):
        least = typeset_number(plan.least_epsilon, 3)
        caption += f". Gaussian noise needs {least} for it, with scores as they are clamped here"
    chart = Chart(
        "Recall by epsilon",
        Axis("epsilon", float(epsilons[0]), float(epsilons[-1]), log=True),
        Axis(f"recall among the best {plan.k:,}", 0.0, 1.0, format_tick=typeset_percent_tick),
        f"{caption}.",
    )
    grid = np.geomspace(epsilons[0], epsilons[-1], 200)
    best = np.minimum(1.0, plan.k / plan.records * np.exp(np.minimum(grid, 700.0)) + plan.contract.delta)
    chart.add_area(grid, best, 1.0, "impossible for every mechanism", "aux", hatched=True)
    chart.add_line(epsilons, recalls, "Gaussian noise", "private")
    chart.add_horizontal(plan.clean_recall, f"clean {typeset_percent(plan.clean_recall)}", "clean")
    if plan.target_recall is not None:
        chart.add_horizontal(plan.target_recall, f"required: {typeset_percent(plan.target_recall)}", "aux")
    chart.add_vertical(plan.floor, f"floor {typeset_number(plan.floor, 3)}", "aux")
    chart.add_point(plan.contract.epsilon, plan.recall, f"this plan: {recall}", "private")
    return chart


def describe_range_end(plan: VerificationPlan) -> str:
    """Say where clipped scores have their least rate above zero: a strict rule passes nothing at the very end."""
    return ("just below " if plan.rule.endpoint == "strict" else "at ") + typeset_exact(plan.score_range[1])


def _floor_to_decade(value: float) -> float:
    """Find the power of ten at or below a value."""
    return 10.0 ** math.floor(math.log10(value) + 1e-9)
