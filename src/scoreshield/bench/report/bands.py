"""Utility against privacy as the paper draws it: for each method a mean and a band of one standard deviation.

Everything here reads tidy rows, one plain dict for each (setting, repeat, metric): what was measured (``dataset``,
``task``, ``metric``, ``better``, ``value``, where NaN is out of reach), by what (``method``), under which promise
(``setting``, ``radius``, ``epsilon``, ``delta``, ``target_advantage``) and what that promise is worth
(``true_epsilon``, ``attack_advantage``). The paper draws all points in the same way. Here a point is hollow if its
claimed epsilon is below its true one. A point that is out of reach is a cross at the bottom of its panel.

A panel has at most six curves, counting the lines of the values without privacy. If the rows have more methods, a
figure draws those to keep and those with the best mean rank over its points. Its caption says so.
"""

from __future__ import annotations

import math
import numbers
import textwrap
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scoreshield import _validation
from scoreshield._formatting import typeset_power
from scoreshield._validation import validate
from scoreshield.bench.report.frames import (
    Row,
    Summary,
    drop_gap,
    list_values,
    make_frame,
    select_rows,
    summarise,
)
from scoreshield.errors import InvalidParameter
from scoreshield.report.plots import (
    AMBER,
    BLUE,
    INK,
    NOT_PRIVATE,
    RED,
    SHADE,
    VIOLET,
    add_captions,
    make_legend_key,
    make_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SLATE, TEAL, SKY = "#86909a", "#11866f", "#4fa3d9"
#: Chosen to be far from the others, and from one another, for any colour vision.
PALE, OLIVE, PLUM, FOREST, NAVY, ROYAL = "#7eb2e6", "#737306", "#4c173f", "#044c04", "#2c0899", "#456de6"
_DASH, _DOT, _DASH_DOT, _LONG = (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (4, 1.4, 1.2, 1.4)), (0, (8, 2))


def _make_style(colour: str, marker: str, line: Any = "-") -> dict[str, Any]:
    return {"color": colour, "marker": marker, "linestyle": line}


#: One look per method in every figure. What is drawn together differs in colour, and all differ in marker or line.
METHOD_STYLE: dict[str, dict[str, Any]] = {
    "non-private": _make_style(INK, "", _DASH),
    "noisy": _make_style(SLATE, "o", _DOT),
    "noisy (paper)": _make_style(SLATE, "o", _DASH),
    "aap (paper)": _make_style(AMBER, "s", _DASH),
    "exact, on the paper's noise": _make_style(BLUE, "o", _DASH),
    "gaussian (paper)": _make_style(RED, "X", _DASH),
    "gaussian, clamped": _make_style(PALE, "p", _DASH),
    "staircase, clamped": _make_style(OLIVE, ">", _LONG),
    "levels": _make_style(PLUM, "h", _DASH_DOT),
    "screen and refine": _make_style(FOREST, "<", _DASH),
    "selection": _make_style(NAVY, "*", _DOT),
    "gaussian index": _make_style(PLUM, "d", _DASH_DOT),
    "no similarities": _make_style("#5c636a", "", _DOT),
    "equal similarities": _make_style(OLIVE, "", _DASH),
    "exact": _make_style(BLUE, "o"),
    "rank": _make_style(OLIVE, "^", _DASH_DOT),
    "shrinkage": _make_style(VIOLET, "D", _LONG),
    "identity": _make_style(SKY, "v", _DOT),
    "sure": _make_style(RED, "X", _LONG),
    "gaussian": _make_style(VIOLET, "o"),
    "laplace": _make_style(SLATE, "s", _DASH),
    "staircase": _make_style(AMBER, "^", _DASH_DOT),
    "optimal": _make_style(BLUE, "D", _LONG),
    "screening": _make_style(ROYAL, "v", _DOT),
    "index": _make_style(TEAL, "P"),
    "newton": _make_style(BLUE, "h"),
    "aap": _make_style(AMBER, "p", _DASH),
    "dykstra": _make_style(TEAL, "<", _DOT),
    "sdp": _make_style(VIOLET, "X", _DASH_DOT),
}


def choose_style(method: str) -> dict[str, Any]:
    """Choose the colour, marker and line of a method; an unknown name gets the same ones in every figure."""
    if method in METHOD_STYLE:
        return METHOD_STYLE[method]
    code = zlib.crc32(method.encode())
    colours, markers, lines = (BLUE, RED, AMBER, VIOLET, TEAL, SLATE), "<>hpX*d8", ("-", _DASH, _DOT, _DASH_DOT, _LONG)
    return _make_style(colours[code % 6], markers[code // 6 % 8], lines[code // 48 % 5])


# ---- Figures.

#: A point is the repeats of one thing: rows that agree in all of these. Not in n: a fresh sample may differ in size.
_IDENTITY = ("experiment", "dataset", "task", "setting", "radius", "epsilon", "delta", "target_advantage")
_BUDGET = ("setting", "radius", "epsilon", "delta", "target_advantage")  # says nothing of a clean value
_ADVANTAGES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999)
_X_LABEL = {"epsilon": "ε (log scale)", "attack_advantage": "advantage of the best attack"}
#: In one panel.
MOST_CURVES = 6
_HOLLOW, _OUT_OF_REACH = "hollow: the claimed ε is not the true one", "some or all repeats out of reach"


def _select_methods(frame: pd.DataFrame, methods: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    """Select the rows of some methods, which must all be there, and list their names."""
    names = frame["method"].unique().tolist()
    if methods is None:
        return frame, names
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not methods:
        _validation.reject("methods", "a list of names, at least one", methods)
    for name in methods:
        _validation.check_option(name, "methods", sorted(map(str, names)))
    return select_rows(frame, method=list(methods)), list(dict.fromkeys(methods))


def _choose_methods(
    frame: pd.DataFrame, names: list[str], keep: Sequence[str], room: int, place: list[str]
) -> list[str]:
    """Choose the methods to keep and those with the best mean rank, in their order, where not all names have room.

    Methods are ranked by their mean value at each point of each panel; a point out of reach has the last rank.

    Args:
        frame: the rows of these methods.
        names: of the methods.
        keep: which of them are chosen first.
        room: how many are drawn.
        place: the columns that distinguish the points: those of the panel, and the budget.
    """
    if len(names) <= room:
        return names
    means = frame.groupby([*place, "method"], sort=False, dropna=False)["value"].mean().reset_index()
    points = means.groupby(place, sort=False, dropna=False)["value"]
    ranks = points.rank(ascending=frame["better"].iloc[0] != "higher", na_option="bottom")
    mean_ranks = ranks.groupby(means["method"], sort=False).mean()
    order = sorted(names, key=lambda name: (name not in keep, float(mean_ranks[name])))
    return [name for name in names if name in order[:room]]


def _describe_choice(names: list[str], chosen: list[str], keep: Sequence[str]) -> str:
    """Say which methods are drawn of all that there are."""
    kept = [name for name in chosen if name in keep]
    count = len(chosen) - len(kept)
    best = "the best" if count == 1 else f"the {count} best"
    others = f"{best}{' of the others' if kept else ''} by mean rank" if count else ""
    listed = " and ".join(filter(None, (", ".join(kept), others)))
    return f"Drawn of {len(names)} methods: {listed}. The tables have all."


@validate()
def draw_bands(
    rows: Sequence[Row] | pd.DataFrame,
    *,
    metric: str,
    title: str,
    caption: str,
    rows_by: str | None = "radius",
    columns_by: str | None = "delta",
    x: str = "epsilon",
    methods: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    ylabel: str | None = None,
    clean: bool = True,
) -> Figure:
    """Draw each method's mean over x and its band, with a panel for each pair of ``rows_by`` and ``columns_by``.

    More than three panels in one line are wrapped.

    Args:
        rows: one row per measured value; rows of another metric are left out.
        metric: which metric is drawn.
        title: above the panels.
        caption: below the panels.
        rows_by: the column with one row of panels per value; None for one row of panels.
        columns_by: the column with one column of panels per value; None for one column of panels.
        x: "epsilon" on a log scale, or "attack_advantage" from 0 to 1.
        methods: which ones, in the order of the legend; all by default. Six curves are drawn at most.
        keep: methods that are drawn first if there are more; the others are chosen by mean rank.
        ylabel: the name of the y axis; the metric by default.
        clean: whether values without privacy (setting "clean") are drawn, as dashed lines across.
    """
    _validation.check_option(x, "x", tuple(_X_LABEL))
    fields = [name for name in (rows_by, columns_by) if name is not None]
    frame = make_frame(rows, ("metric", "method", "better"), value="value")
    _validation.check_option(metric, "metric", sorted(map(str, frame["metric"].unique())))
    frame = select_rows(frame, metric=metric)
    is_clean = frame["method"] == "non-private"
    if "setting" in frame:
        is_clean |= frame["setting"] == "clean"
    private, names = _select_methods(frame[~is_clean], methods)
    if private.empty:
        _validation.reject("rows", f"rows of which some have the metric '{metric}' and a method with privacy", rows)
    private = make_frame(private, (x, "epsilon", "true_epsilon", *fields))
    references = frame[is_clean] if clean else frame[:0]
    budget = "target_advantage" if x == "attack_advantage" and "target_advantage" in private else x
    room = max(1, MOST_CURVES - references["method"].nunique())
    chosen = _choose_methods(private, names, keep, room, list(dict.fromkeys([*fields, budget])))
    if len(chosen) < len(names):
        caption = f"{caption} {_describe_choice(names, chosen, keep)}"
    private, names = select_rows(private, method=chosen), chosen
    places = [
        {name: at for name, at in ((rows_by, upper), (columns_by, right)) if name is not None}
        for upper, right in product(list_values(private, rows_by), list_values(private, columns_by))
    ]
    across = len(list_values(private, columns_by))
    if across in (1, len(places)):  # one line of panels
        across = len(places) if len(places) <= 3 else math.ceil(math.sqrt(len(places)))
    size = (6.6, 4.1) if across == 1 else (4.6, 3.2) if across == 2 else (3.7, 2.8)
    figure, panels = make_panels(math.ceil(len(places) / across), across, size, sharex="all", sharey="all")
    for axes in panels.flat[len(places) :]:
        axes.remove()
    drawn: list[tuple[Axes, dict[str, list[_Point]]]] = []
    for axes, place in zip(panels.flat, places, strict=False):
        drawn.append((axes, _find_curves(select_rows(private, **place), x)))
        _draw_panel(*drawn[-1], names, place)
        _draw_references(axes, references, place)
    points = [point for _, curves in drawn for curve in curves.values() for point in curve]
    _set_scale(panels[0, 0], x, [point.place for point in points])
    if references.empty and not any(math.isfinite(point.mean) for point in points):
        panels[0, 0].set_ylim(0, 1)
    with np.errstate(over="ignore"):  # Matplotlib asks a logit axis for limits far outside of it
        _draw_crosses(drawn, names)
    for axes, _ in drawn[-across:]:  # the lowest of each column
        axes.set_xlabel(_X_LABEL[x])
        axes.tick_params(labelbottom=True)
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel or f"{metric} ({frame['better'].iloc[0]} is better)")
    _add_legend(figure, title, caption, names, points, references["method"].unique().tolist())
    return figure


def draw_bands_by_advantage(
    rows: Sequence[Row] | pd.DataFrame,
    *,
    metric: str,
    title: str,
    caption: str,
    columns_by: str | None = "radius",
    **options: Any,
) -> Figure:
    """Draw each method by the advantage of the best attack on it, so that promises of different kinds compare.

    Panels keep adjacencies apart: an attack on a whole record and one on a small change are not the same attack.
    ``options`` are those of `draw_bands`: ``methods``, ``keep``, ``ylabel``, ``clean``.
    """
    same: dict[str, Any] = {"metric": metric, "title": title, "caption": caption, "columns_by": columns_by}
    return draw_bands(rows, **same, **options, rows_by=None, x="attack_advantage")


@validate()
def draw_bars(
    rows: Sequence[Row] | pd.DataFrame,
    *,
    title: str,
    caption: str,
    value: str = "seconds",
    group: str = "n",
    methods: Sequence[str] | None = None,
    limit: float | None = None,
    xlabel: str = "seconds (log scale)",
) -> Figure:
    """Draw horizontal bars on a log axis, a group per ``group`` (the size) and in it a bar per method.

    NaN is written as "over the limit", a pair without rows as "not run". Whiskers show one standard deviation.
    """
    frame = make_frame(rows, ("method", group), value=value)
    frame, names = _select_methods(frame, methods)
    limit = None if limit is None else _validation.check_positive(limit, "limit")
    if (frame[value] <= 0).any():
        _validation.reject(value, "a positive number, or NaN", frame[value].min())
    found = {key: summarise(part[value]) for key, part in frame.groupby(["method", group], sort=False, dropna=False)}
    sizes, height = list_values(frame, group), len(names) + 0.8
    figure, panels = make_panels(1, 1, (8.4, 0.27 * len(sizes) * height + 0.9))
    axes = panels[0, 0]
    reached = [each.mean + shift * each.sd for each in found.values() if each.count for shift in (0, 1)]
    ends = [*reached, *([] if limit is None else [limit])] or [1.0, 10.0]
    left, right = min(ends) / 3, max(ends)
    axes.set(xscale="log", xlim=(left, right * (right / left) ** 0.12), xlabel=xlabel)
    for place, size in enumerate(sizes):
        for rank, name in enumerate(names):
            y = place * height + rank
            _draw_bar(axes, y, name, found.get((name, size)), left)
    axes.set_yticks(
        [place * height + (len(names) - 1) / 2 for place in range(len(sizes))],
        [_name_place(group, size) for size in sizes],
    )
    axes.set_ylim(len(sizes) * height - 0.9, -0.9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    axes.grid(axis="x", color="#e6e9ec", linewidth=0.8)
    _quiet_frame(axes)
    keys = [make_legend_key(color=choose_style(name)["color"], linewidth=7, label=name) for name in names]
    if limit is not None:
        axes.axvline(limit, color=NOT_PRIVATE, linewidth=1, linestyle=":")
        keys.append(make_legend_key(color=NOT_PRIVATE, linewidth=1, linestyle=":", label=f"the limit, {limit:g}"))
    add_captions(figure, _wrap_title(title, figure), caption, keys, columns=min(4, len(keys)))
    return figure


# ---- Rows.


@dataclass(frozen=True)
class _Point:
    """Where a mark is drawn, and what it stands for."""

    x: float
    summary: Summary
    is_private: bool
    identity: dict[str, Any]

    @property
    def place(self) -> float:
        """Where the x axis must reach: a mechanism that leaks far less than its target does not stretch it."""
        target = self.identity["target_advantage"]
        return self.x if target is None else float(target)

    @property
    def mean(self) -> float:
        return self.summary.mean

    @property
    def sd(self) -> float:
        return self.summary.sd


def _find_curves(frame: pd.DataFrame, x: str) -> dict[str, list[_Point]]:
    """Find the points of each method, and check that they are one curve."""
    if frame.empty:
        return {}
    frame = frame.reindex(columns=[*frame.columns, *(name for name in _IDENTITY if name not in frame)])
    frame = frame.assign(position=_find_positions(frame, x), keeps_promise=_find_kept_promises(frame))
    curves: dict[str, list[_Point]] = {}
    for key, members in frame.groupby(["method", *_IDENTITY], sort=False, dropna=False):
        identity = {name: drop_gap(part) for name, part in zip(_IDENTITY, key[1:], strict=True)}
        kept = bool(members["keeps_promise"].all())
        point = _Point(float(members["position"].mean()), summarise(members["value"]), kept, identity)
        curves.setdefault(str(key[0]), []).append(point)
    for method, points in curves.items():
        points.sort(key=lambda point: point.x)
        for one, other in pairwise(points):
            _check_one_curve(method, one, other, x)
    return curves


def _check_one_curve(method: str, one: _Point, other: _Point, x: str) -> None:
    """Check that two points of a curve are not at one place; budgets that give an attacker everything may coincide."""
    differ = {name for name in _IDENTITY if one.identity[name] != other.identity[name]}
    own = {"epsilon", "delta", "target_advantage"} if x == "attack_advantage" else set()
    if math.isclose(one.x, other.x, rel_tol=1e-9) and differ - own:
        name = sorted(differ - own)[0]
        raise InvalidParameter(
            "rows",
            f"must hold one curve for each method and panel. Got '{method}' twice "
            f"at {x} = {one.x:g}, with {name} {one.identity[name]!r} and {other.identity[name]!r}: leave one out, or "
            f"put '{name}' into rows_by or columns_by.",
        )


def _find_positions(frame: pd.DataFrame, x: str) -> list[float]:
    """Find where rows stand on the x axis; a row that is out of reach stands at its target advantage."""
    if x == "epsilon":
        return [_validation.check_positive(value, x) for value in frame[x]]
    places = [
        _validation.check_real(value, x, "a number in [0, 1]") for value in frame[x].fillna(frame["target_advantage"])
    ]
    for place in places:
        if not -1e-12 <= place <= 1 + 1e-12:
            _validation.reject(x, "a number in [0, 1]", place)
    return places


def _find_kept_promises(frame: pd.DataFrame) -> list[bool]:
    """Say of each row whether the true epsilon is at most the claimed one, up to rounding."""
    kept = []
    for value, epsilon, true in zip(frame["value"], frame["epsilon"], frame["true_epsilon"], strict=True):
        if pd.isna(value):  # nothing is drawn of it
            kept.append(True)
            continue
        if isinstance(true, bool) or not isinstance(true, numbers.Real) or math.isnan(true):
            _validation.reject("true_epsilon", "a number or infinity where a value was measured", true)
        kept.append(bool(true <= _validation.check_positive(epsilon, "epsilon") * (1 + 1e-9)))
    return kept


# ---- Panels.


def _draw_panel(axes: Axes, curves: dict[str, list[_Point]], names: list[str], place: dict[str, Hashable]) -> None:
    points = [point for curve in curves.values() for point in curve]
    for name in names:
        if name in curves:
            _draw_curve(axes, curves[name], name)
    if not any(math.isfinite(point.mean) for point in points):
        said = "every point is out of reach" if points else "no data"
        axes.text(0.5, 0.6, said, transform=axes.transAxes, ha="center", va="center", color=NOT_PRIVATE)
    axes.set_title(", ".join(_name_place(name, value) for name, value in place.items()), fontsize=10)
    axes.grid(color="#e6e9ec", linewidth=0.8)
    _quiet_frame(axes)


def _draw_curve(axes: Axes, points: list[_Point], name: str) -> None:
    style = choose_style(name)
    x, mean, sd = (np.array([getattr(point, field) for point in points]) for field in ("x", "mean", "sd"))
    if (sd > 0).any():
        axes.fill_between(x, mean - sd, mean + sd, color=style["color"], alpha=0.16, linewidth=0)
    axes.plot(x, mean, color=style["color"], linestyle=style["linestyle"], linewidth=1.7, label=name)
    dots: dict[str, Any] = {"linestyle": "none", "marker": style["marker"], "zorder": 3}
    kept = np.array([point.is_private for point in points])
    axes.plot(x[kept], mean[kept], **dots, color=style["color"], markersize=4.5, label=f"{name}, private")
    hollow: dict[str, Any] = {
        "markerfacecolor": "white",
        "markeredgecolor": NOT_PRIVATE,
        "markeredgewidth": 1.3,
        "markersize": 5.5,
    }
    axes.plot(x[~kept], mean[~kept], **dots, **hollow, label=f"{name}, not private")


def _draw_crosses(drawn: list[tuple[Axes, dict[str, list[_Point]]]], names: list[str]) -> None:
    """Draw a strip at the bottom of each panel, with a cross for each method that is out of reach."""
    lost = [name for name in names if any(point.summary.unreachable for _, c in drawn for point in c.get(name, []))]
    if not lost:
        return
    from matplotlib.patches import Rectangle

    step = 0.04
    strip = step * (len(lost) + 0.4)
    low, high = drawn[0][0].get_ylim()
    drawn[0][0].set_ylim(high - (high - low) / (1 - strip), high)
    for axes, curves in drawn:
        inside = axes.get_xaxis_transform()
        foot: dict[str, Any] = {"transform": axes.transAxes, "color": SHADE, "linewidth": 0, "zorder": 0}
        axes.add_artist(Rectangle((0, 0), 1, strip, **foot, label="out of reach"))
        for rank, name in enumerate(lost):
            x = [point.x for point in curves.get(name, []) if point.summary.unreachable]
            y, label = [step * (rank + 0.7)] * len(x), f"{name}, out of reach"
            look: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 5, "transform": inside}
            axes.plot(x, y, **look, color=choose_style(name)["color"], label=label)


def _draw_references(axes: Axes, frame: pd.DataFrame, place: dict[str, Hashable]) -> None:
    """Draw the values without privacy; they do not depend on a budget, so each panel has them."""
    inside = select_rows(frame, **{name: value for name, value in place.items() if name not in _BUDGET})
    for name, members in inside.groupby("method", sort=False):
        for column in ("dataset", "task"):
            if len(list_values(members, column)) > 1:
                raise InvalidParameter(
                    "rows",
                    f"must hold one clean value for each panel. Got '{name}' with "
                    f"several of '{column}': leave some out, or put '{column}' into rows_by or columns_by.",
                )
        # One repeat may stand there once for each budget.
        once = members.drop_duplicates([key for key in ("repeat", "seed", "value") if key in members])
        summary, style = summarise(once["value"]), choose_style(str(name))
        axes.axhline(summary.mean, color=style["color"], linestyle=style["linestyle"], linewidth=1.2, label=str(name))
        if summary.sd > 0:
            reach = summary.mean - summary.sd, summary.mean + summary.sd
            axes.axhspan(*reach, color=style["color"], alpha=0.1, linewidth=0)


def _set_scale(axes: Axes, x: str, places: list[float]) -> None:
    """Set the x axis that all panels share."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if x == "attack_advantage":
        inside = [place for place in places if 0 < place < 1]
        if len(inside) == len(places) and max(inside, default=0.0) > 0.95:  # the last percent is where it matters
            axes.set(xlim=(min(inside) * 0.8, 1 - (1 - max(inside)) * 0.7))  # first, or the scale looks for its own
            axes.set_xscale("logit")
            axes.xaxis.set_major_locator(
                FixedLocator([at for at in _ADVANTAGES if min(inside) * 0.9 <= at <= max(inside) + 1e-6])
            )
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        else:
            axes.set(xlim=(-0.03, 1.03))
        return
    low, high = min(places, default=1.0), max(places, default=1.0)
    margin = max((high / low) ** 0.05, 1.15) if high > low else 2.0
    decades = [10.0**k for k in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
    few = sorted(set(places)) or [1.0]
    ticks = decades if len(decades) > 2 else few[:: math.ceil(len(few) / 6)]
    axes.set(xscale="log", xlim=(low / margin, high * margin))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def _draw_bar(axes: Axes, y: float, name: str, summary: Summary | None, left: float) -> None:
    """Draw one bar from the left end with its value, or write the words that stand in its place."""
    if summary is None or not summary.count:
        words = "not run" if summary is None else "over the limit"
        axes.text(left * 1.06, y, words, va="center", fontsize=8.5, color=NOT_PRIVATE, style="italic")
        return
    mean, sd = summary.mean, summary.sd
    axes.barh(y, mean - left, left=left, height=0.82, color=choose_style(name)["color"], label=name)
    low = min(sd, mean * (1 - 1e-3))  # a log axis has no zero
    if sd:
        axes.errorbar(mean, y, xerr=[[low], [sd]], color=INK, linewidth=1, capsize=2)
    lost = f" ({summary.unreachable} over the limit)" if summary.unreachable else ""
    axes.text((mean + sd) * 1.06, y, f"{mean:.3g}{lost}", va="center", fontsize=8.5, color=INK)


def _name_place(name: str, value: Any) -> str:
    """Name a panel or a group by the value that distinguishes it, for people."""
    if name == "radius":
        return "one whole record" if value is None else f"$D_G$ = {value:g}"
    if value is None:
        return f"no {name}"
    if name == "delta":
        return f"δ = {typeset_power(value) if value else 0}"
    if isinstance(value, numbers.Real):
        return f"{'ε' if name == 'epsilon' else name} = {float(value):,.10g}"
    return str(value)


def _quiet_frame(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _wrap_title(title: str, figure: Figure) -> str:
    return "\n".join(textwrap.wrap(title, max(20, int(figure.get_size_inches()[0] * 8.5))))


def _add_legend(
    figure: Figure, title: str, caption: str, names: list[str], points: list[_Point], without: list[str]
) -> None:
    keys = [make_legend_key(**choose_style(name), linewidth=1.7, markersize=4.5, label=name) for name in names]
    keys += [make_legend_key(**choose_style(name), linewidth=1.2, label=name) for name in without]
    if any(not point.is_private for point in points):
        edge = {"markerfacecolor": "white", "markeredgecolor": NOT_PRIVATE, "markeredgewidth": 1.3}
        keys.append(make_legend_key(linestyle="none", marker="o", **edge, label=_HOLLOW))
    if any(point.summary.unreachable for point in points):
        keys.append(make_legend_key(linestyle="none", marker="x", color=INK, label=_OUT_OF_REACH))
    columns = max(1, min(len(keys), int(figure.get_size_inches()[0] / 3.2)))
    add_captions(figure, _wrap_title(title, figure), caption, keys, columns=columns)
