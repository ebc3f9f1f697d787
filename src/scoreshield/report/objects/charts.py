"""Plots of objects: the charts of pages, drawn on ordinary axes of Matplotlib (the 'plots' extra).

A plot shows released data and public facts only. A plan from private scores has no curve of clean scores.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoreshield._formatting import typeset_attack_rate, typeset_interval, typeset_number, typeset_percent_tick
from scoreshield.audit.result import AuditResult
from scoreshield.decisions.worth import Worth
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import Plan
from scoreshield.plan.choice import Choice
from scoreshield.plan.retrieval_plan import RetrievalPlan
from scoreshield.plan.verification_plan import VerificationPlan
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.accounts import Account, Ledger
from scoreshield.privacy.noise import CustomNoise
from scoreshield.releases.batch import BatchRelease
from scoreshield.releases.index import PrivateIndex
from scoreshield.releases.results import (
    FactoredGramRelease,
    GramRelease,
    HistogramRelease,
    MatchRelease,
    Release,
    ScoreRelease,
)
from scoreshield.report.audit_charts import build_tradeoff_chart
from scoreshield.report.chart import Axis, Chart, Curve, Mark, read_palette
from scoreshield.report.plan_charts import (
    build_attack_chart,
    build_fmr_chart,
    build_ranking_chart,
    build_recall_chart,
)
from scoreshield.search.base import Hits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

_WIDTH, _HEIGHT = 7.0, 4.6
_BINS = 40
#: Bins of the density of a noise law: enough for a smooth line, and few enough that each holds many cells.
_DENSITY_STEPS = 120
#: How many hits and datasets one plot has room for.
_MOST_BARS = 20
_RECALL_SIZES = (1, 3, 10, 30, 100)


def draw_object(thing: Any, ax: Axes | None) -> Figure:
    """Draw an object on these axes, or on a new figure.

    Raises:
        InvalidInput: Matplotlib is not installed, `ax` are no axes, or the object holds nothing to draw.
    """
    try:
        from matplotlib.axes import Axes

        from scoreshield.report.objects.notebook_figure import NotebookFigure
    except ImportError:
        raise InvalidInput("A plot needs the 'plots' extra: pip install 'scoreshield[plots]'.") from None
    if ax is not None and not isinstance(ax, Axes):
        raise InvalidInput(f"The 'ax' parameter of plot must be axes of Matplotlib or None. Got {type(ax)} instead.")
    axes = NotebookFigure(figsize=(_WIDTH, _HEIGHT), layout="constrained").subplots() if ax is None else ax
    draw_on_axes(thing, axes)
    figure: Any = axes.get_figure(root=True)
    drawn: Figure = figure
    return drawn


@singledispatch
def draw_on_axes(thing: Any, axes: Axes) -> None:
    """Draw an object on axes."""
    del axes
    raise InvalidInput(f"There is no plot of a {type(thing).__name__}.")


@draw_on_axes.register(Guarantee)
def _draw_guarantee(guarantee: Guarantee, axes: Axes) -> None:
    draw_chart(build_guarantee_chart(guarantee), axes)


@draw_on_axes.register(Release)
def _draw_release(release: Release, axes: Axes) -> None:
    draw_chart(build_guarantee_chart(release.guarantee), axes)


@draw_on_axes.register(ScoreRelease)
def _draw_scores(release: ScoreRelease, axes: Axes) -> None:
    draw_chart(build_scores_chart(release.noisy, release.guarantee), axes)


@draw_on_axes.register(MatchRelease)
def _draw_matches(release: MatchRelease, axes: Axes) -> None:
    has_scores = len(release.noisy) > 0
    chart = (
        build_scores_chart(release.noisy, release.guarantee) if has_scores else build_guarantee_chart(release.guarantee)
    )
    draw_chart(chart, axes)


@draw_on_axes.register(HistogramRelease)
def _draw_histogram(release: HistogramRelease, axes: Axes) -> None:
    top, bottom = float(release.counts.max(initial=1)), float(release.counts.min(initial=0))
    chart = Chart(
        "Private counts of scores",
        Axis("score", float(release.edges[0]), float(release.edges[-1])),
        Axis("count", min(0.0, 1.08 * bottom), 1.08 * max(top, 1.0)),
    )
    _add_steps(chart, release.edges, release.counts.astype(np.float64), "noisy counts")
    draw_chart(chart, axes)


@draw_on_axes.register(GramRelease)
def _draw_gram(release: GramRelease, axes: Axes) -> None:
    _draw_matrix(release.gram, release.guarantee, axes)


@draw_on_axes.register(FactoredGramRelease)
def _draw_factored_gram(release: FactoredGramRelease, axes: Axes) -> None:
    _draw_matrix(release.gram, release.guarantee, axes)


def _draw_matrix(gram: Float, guarantee: Guarantee, axes: Axes) -> None:
    image = axes.imshow(gram, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
    axes.set(title=f"Private pairwise scores, {_describe_promise(guarantee)}", xlabel="record", ylabel="record")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="projected score")


@draw_on_axes.register(PrivateIndex)
@draw_on_axes.register(BatchRelease)
def _draw_recall(release: PrivateIndex | BatchRelease, axes: Axes) -> None:
    """Draw the predicted recall by k, from public facts."""
    records = release.guarantee.shape[0]
    worths = [release.worth(k) for k in _RECALL_SIZES if k < records] or [release.worth(records)]
    sizes = [float(worth.k) for worth in worths]
    chart = Chart(
        "Predicted recall of a search by this release",
        Axis("records returned", min(sizes), max(*sizes, 2.0), log=True, ticks=tuple(sizes)),
        Axis("recall", 0.0, 1.0, format_tick=typeset_percent_tick),
        f"From public facts: {worths[0].basis}.",
    )
    low, high = zip(*(worth.interval for worth in worths), strict=True)
    chart.add_area(sizes, low, high, "holds the recall nine times in ten", "private")
    chart.add_line(sizes, [worth.recall for worth in worths], "predicted recall", "private")
    draw_chart(chart, axes)


@draw_on_axes.register(Hits)
def _draw_hits(hits: Hits, axes: Axes) -> None:
    if hits.scores is None or not len(hits):
        raise InvalidInput("These hits have no scores to plot: only names were released, or nothing was found.")
    shown = min(len(hits), _MOST_BARS)
    places = np.arange(shown)
    palette = read_palette()
    axes.barh(places, hits.scores[:shown], color=palette["private"], label="score")
    if hits.noise_std is not None and hits.noisy is not None:
        style: dict[str, Any] = {"color": palette["ink"], "fmt": ".", "capsize": 2.0}
        label = "released, ± noise standard deviation"
        axes.errorbar(hits.noisy[:shown], places, xerr=hits.noise_std, label=label, **style)
    axes.set_yticks(places, [_shorten(str(one)) for one in hits.ids[:shown]], parse_math=False)
    axes.invert_yaxis()
    axes.set(xlabel="score" if hits.noise_std is not None else "place of the released level", title="Hits, best first")
    _add_legend(axes)


@draw_on_axes.register(CustomNoise)
def _draw_noise(noise: CustomNoise, axes: Axes) -> None:
    """Draw the density of a law, up to its ends or where one draw in ten thousand lies beyond."""
    low, high = (float(noise.quantile(rate)) for rate in (5e-5, 1 - 5e-5))
    steps = np.linspace(low, high, _DENSITY_STEPS + 1)
    heights = np.diff(noise.cdf(steps)) / np.diff(steps)
    chart = Chart(
        f"Noise of {_shorten(noise.label)}, standard deviation {typeset_number(noise.std)}",
        Axis("noise on a score", low, high),
        Axis("density", 0.0, 1.08 * float(heights.max())),
    )
    _add_steps(chart, steps, heights, "custom noise")
    draw_chart(chart, axes)


@draw_on_axes.register(Worth)
def _draw_worth(worth: Worth, axes: Axes) -> None:
    """Draw the predicted recall with its interval, beside that without privacy."""
    palette = read_palette()
    ends = np.abs(np.array(worth.interval) - worth.recall)[:, None]
    axes.barh([0], [worth.recall], xerr=ends, color=palette["private"], label="private, nine times in ten", capsize=3.0)
    axes.barh([1], [worth.clean], color=palette["clean"], label="without privacy")
    axes.set_yticks([0, 1], ["private", "without privacy"])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="recall", title=f"Predicted recall, {worth.asked}")
    _add_legend(axes)


@draw_on_axes.register(Choice)
def _draw_choice(choice: Choice, axes: Axes) -> None:
    draw_chart(build_ranking_chart(choice), axes)
    _mark_private_scores(choice.source, axes)


@draw_on_axes.register(Plan)
def _draw_plan(plan: Plan, axes: Axes) -> None:
    """Draw the ranking of mechanisms, or what Gaussian noise does to the rates, or what an attacker achieves."""
    if plan.choice is not None:
        chart = build_ranking_chart(plan.choice, None if plan.goal is None else plan.goal.target)
    elif plan.source != "private" and isinstance(plan, VerificationPlan):
        chart = build_fmr_chart(plan)
    elif plan.source != "private" and isinstance(plan, RetrievalPlan):
        chart = build_recall_chart(plan)
    else:
        chart = build_attack_chart(plan.contract)
    draw_chart(chart, axes)
    _mark_private_scores(plan.source, axes)


def _mark_private_scores(source: str, axes: Axes) -> None:
    """Write on a plot that its figures come from private scores."""
    if source == "private":
        axes.set_title(f"{axes.get_title()}\nfrom private scores: for the curator only", fontsize=11, parse_math=False)


@draw_on_axes.register(AuditResult)
def _draw_audit(result: AuditResult, axes: Axes) -> None:
    draw_chart(build_tradeoff_chart(result), axes)


@draw_on_axes.register(Ledger)
def _draw_ledger(ledger: Ledger, axes: Axes) -> None:
    _draw_totals(ledger, ledger.list_totals(), axes)


@draw_on_axes.register(Account)
def _draw_account(account: Account, axes: Axes) -> None:
    _draw_totals(account.ledger, {account.dataset or "all": account.spent}, axes)


def _draw_totals(ledger: Ledger, totals: dict[str, float], axes: Axes) -> None:
    """Draw what is spent on each dataset, with the limit."""
    names = sorted(totals, key=lambda name: -totals[name])[:_MOST_BARS]
    places, palette = np.arange(len(names)), read_palette()
    axes.barh(places, [totals[name] for name in names], color=palette["private"], label="spent")
    axes.axvline(ledger.epsilon, color=palette["ink"], linestyle="--", label="limit")
    axes.set_yticks(places, [_shorten(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set(xlim=(0, 1.08 * ledger.epsilon), xlabel=f"epsilon at delta {ledger.delta:g}", title="Spent, by dataset")
    _add_legend(axes)


# ---- Charts.


def build_guarantee_chart(guarantee: Guarantee) -> Chart:
    """Show the trade-off curve of the best test for the change that a guarantee hides, with its advantage."""
    advantage = typeset_attack_rate(guarantee.attack_advantage)
    chart = Chart(
        f"What the best attacker achieves, {_describe_promise(guarantee)}",
        Axis("false alarms", 0.0, 1.0, format_tick=typeset_percent_tick),
        Axis("changes detected", 0.0, 1.0, format_tick=typeset_percent_tick),
        f"The advantage over guessing is at most {advantage}.",
    )
    fpr = np.concatenate([[0.0], np.geomspace(1e-9, 1e-2, 60), np.linspace(1e-2, 1.0, 199)[1:]])
    tpr = np.asarray(guarantee.tpr_at(fpr))
    chart.add_area(fpr, fpr, tpr, "", "private")
    chart.add_line(fpr, tpr, "at most, for any test", "private")
    chart.add_line(fpr, fpr, "guessing", "aux", dashed=True)
    best = int(np.argmax(tpr - fpr))
    chart.add_point(float(fpr[best]), float(tpr[best]), f"advantage {advantage}", "private")
    return chart


def build_scores_chart(noisy: Float, guarantee: Guarantee) -> Chart:
    """Show the distribution of released scores, with the public range."""
    values = noisy.ravel()
    low, high = guarantee.score_range
    ends = min(low, float(values.min())), max(high, float(values.max()))
    counts, edges = np.histogram(values, bins=_BINS, range=ends)
    chart = Chart(
        f"Released scores, {_describe_promise(guarantee)}",
        Axis("noisy score", *ends),
        Axis("records", 0.0, 1.08 * float(counts.max(initial=1))),
    )
    _add_steps(chart, edges, counts.astype(np.float64), "released scores")
    if ends != (low, high):
        chart.add_band(low, high, f"valid range {typeset_interval((low, high))}", "aux", hatched=True)
    return chart


def _add_steps(chart: Chart, edges: Float, counts: Float, label: str) -> None:
    x, y = np.repeat(edges, 2)[1:-1], np.repeat(counts, 2)
    chart.add_area(x, 0.0, y, "", "private")
    chart.add_line(x, y, label, "private")


def _describe_promise(guarantee: Guarantee) -> str:
    delta = "" if not guarantee.delta else f", δ = {typeset_number(guarantee.delta)}"
    return f"ε = {typeset_number(guarantee.epsilon)}{delta}"


def _shorten(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= 30 else f"{plain[:29]}…"


# ---- A chart of a page on ordinary axes.


def draw_chart(chart: Chart, axes: Axes) -> None:
    """Draw a chart on axes of Matplotlib, in the light colours of pages."""
    palette = read_palette()
    for axis, name in ((chart.x, "x"), (chart.y, "y")):
        axes.set(**{f"{name}scale": "log"} if axis.log else {}, **{f"{name}lim": (axis.low, axis.high)})
        ticks = sorted(axis.find_ticks())
        axes.set(**{f"{name}ticks": ticks, f"{name}ticklabels": [axis.format_tick(tick) for tick in ticks]})
        axes.set(**{f"{name}label": axis.label})
    axes.minorticks_off()
    axes.grid(visible=True, color=palette["rule"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(chart.title, fontsize=11, parse_math=False)
    for area in chart.areas:
        look: dict[str, Any] = {"linewidth": 0, "color": palette["private" if area.role == "private" else "aux"]}
        if area.is_hatched:
            look |= {"hatch": "//", "facecolor": "none", "edgecolor": palette["aux"]}
            del look["color"]
        axes.fill_between(area.x, area.low, area.high, alpha=0.15, label=area.label or None, **look)
    for line in chart.lines:
        _draw_line(line, axes, palette)
    has_curve = any(len(line.x) > 2 for line in chart.lines)
    for mark in chart.marks:
        _draw_mark(mark, axes, palette, has_curve)
    if chart.legend:
        _add_legend(axes)


def _add_legend(axes: Axes) -> None:
    """Add a legend below the axes, where it covers no data."""
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)


def _draw_line(line: Curve, axes: Axes, palette: dict[str, str]) -> None:
    style = "--" if line.is_dashed else "-"
    width = 1.0 if line.is_thin or line.is_dashed else 1.8
    axes.plot(line.x, line.y, color=palette[line.role], linestyle=style, linewidth=width, label=line.label or None)


def _draw_mark(mark: Mark, axes: Axes, palette: dict[str, str], has_curve: bool) -> None:
    """Draw a dot or a rule with its label, on the side of it that has more room, and below a curve."""
    colour = palette[mark.role]
    text: dict[str, Any] = {"fontsize": 8, "color": colour, "parse_math": False, "textcoords": "offset points"}
    corner = axes.transData.transform((axes.get_xlim()[0] if mark.x is None else mark.x, axes.get_ylim()[0]))
    is_right = axes.transAxes.inverted().transform(corner)[0] > 0.5
    text["horizontalalignment"] = "right" if is_right else "left"
    if mark.x is not None and mark.y is not None:
        face = "white" if mark.is_hollow else colour
        axes.plot([mark.x], [mark.y], "o", color=colour, markerfacecolor=face, markersize=5)
        axes.annotate(mark.label, (mark.x, mark.y), (-6 if is_right else 6, -11 if has_curve else 5), **text)
    elif mark.x is not None:
        axes.axvline(mark.x, color=colour, linestyle=":", linewidth=1.2)
        across = axes.get_xaxis_transform()
        axes.annotate(mark.label, (mark.x, 1.0), (-3 if is_right else 3, -9), xycoords=across, **text)
    elif mark.y is not None:
        axes.axhline(mark.y, color=colour, linestyle=":", linewidth=1.2)
        axes.annotate(mark.label, (0.0, mark.y), (3, 2), xycoords=axes.get_yaxis_transform(), **text)
