"""Utility against privacy as the paper draws it: for each method a mean and a band of one standard deviation.

Everything here reads tidy rows, one plain dict for each (setting, repeat, metric): what was measured (``dataset``,
``task``, ``metric``, ``better``, ``value``, where NaN is out of reach), by what (``method``), under which promise
(``setting``, ``radius``, ``epsilon``, ``delta``, ``target_advantage``) and what that promise is worth
(``true_epsilon``, ``attack_advantage``). The paper draws every point alike. Here one whose claimed epsilon is below
its true one is hollow, and one out of reach is a cross at the foot of its panel, so that neither passes unseen.
"""

from __future__ import annotations

import math
import numbers
import textwrap
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from scoreshield import _validation
from scoreshield._formatting import typeset_power
from scoreshield._validation import validate
from scoreshield.errors import InvalidParameter
from scoreshield.report.sheet import INK, NOT_PRIVATE, SHADE, finish, legend_key, sheet
from scoreshield.report.styles import METHOD_STYLE, method_style
from scoreshield.report.tidy import (
    Row,
    checked,
    chosen_methods,
    grouped,
    is_clean,
    key_of,
    mean_and_sd,
    number_of,
    of_metric,
    summary,
    values_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["METHOD_STYLE", "advantage_chart", "band_grid", "bars", "mean_and_sd", "method_style"]

#: A point is the repeats of one thing: rows that agree in all of these. Not in n: a fresh sample may differ in size.
_IDENTITY = ("experiment", "dataset", "task", "setting", "radius", "epsilon", "delta", "target_advantage")
_BUDGET = ("setting", "radius", "epsilon", "delta", "target_advantage")  # says nothing of a clean value
_ADVANTAGES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999)
_X_LABEL = {"epsilon": "ε (log scale)", "attack_advantage": "advantage of the best attack"}
_HOLLOW, _OUT_OF_REACH = "hollow: the claimed ε is not the true one", "some or all repeats out of reach"


@validate()
def band_grid(
    rows: Sequence[Row],
    *,
    metric: str,
    title: str,
    caption: str,
    rows_by: str | None = "radius",
    columns_by: str | None = "delta",
    x: str = "epsilon",
    methods: Sequence[str] | None = None,
    ylabel: str | None = None,
    clean: bool = True,
) -> Figure:
    """One panel for each pair of ``rows_by`` and ``columns_by``; in it, each method's mean over x and its band.

    Parameters
    ----------
    rows : tidy rows; those of another metric are left out.
    rows_by, columns_by : columns that tell panels apart; None for one row or column of panels.
    x : "epsilon" on a log scale, or "attack_advantage" from 0 to 1.
    methods : which ones, in the order of the legend; all unless told otherwise.
    clean : whether values without privacy (setting "clean") are drawn, as dashed lines across.
    """
    _validation.check_option(x, "x", tuple(_X_LABEL))
    fields = [name for name in (rows_by, columns_by) if name is not None]
    chosen = of_metric(checked(rows, ("metric", "method", "value", "better")), metric)
    private = chosen_methods([row for row in chosen if not is_clean(row)], methods)
    if not private:
        _validation.reject("rows", f"rows of which some have the metric '{metric}' and a method with privacy", rows)
    checked(private, (x, "epsilon", "true_epsilon", *fields))
    without = [row for row in chosen if is_clean(row)] if clean else []
    names = list(dict.fromkeys(methods or (row["method"] for row in private)))
    down, across = values_of(private, rows_by), values_of(private, columns_by)
    size = (6.6, 4.1) if len(across) == 1 else (4.6, 3.2) if len(across) == 2 else (3.7, 2.8)
    figure, panels = sheet(len(down), len(across), size, sharex="all", sharey="all")
    drawn: list[tuple[Axes, dict[str, list[_Point]]]] = []
    for line, upper in zip(panels, down, strict=True):
        for axes, right in zip(line, across, strict=True):
            place = {name: at for name, at in ((rows_by, upper), (columns_by, right)) if name is not None}
            inside = [row for row in private if all(key_of(row, name) == at for name, at in place.items())]
            drawn.append((axes, _curves(inside, x)))
            _panel(*drawn[-1], names, place)
            _clean_lines(axes, without, place)
    points = [point for _, curves in drawn for curve in curves.values() for point in curve]
    _scale(panels[0, 0], x, [point.x for point in points])
    if not without and not any(math.isfinite(point.mean) for point in points):
        panels[0, 0].set_ylim(0, 1)
    with np.errstate(over="ignore"):  # Matplotlib asks a logit axis for limits far outside of it
        _crosses(drawn, names)
    for axes in panels[-1]:
        axes.set_xlabel(_X_LABEL[x])
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel or f"{metric} ({chosen[0]['better']} is better)")
    _finish(figure, title, caption, names, points, list(dict.fromkeys(row["method"] for row in without)))
    return figure


def advantage_chart(
    rows: Sequence[Row],
    *,
    metric: str,
    title: str,
    caption: str,
    columns_by: str | None = "radius",
    **options: Any,
) -> Figure:
    """Each method against the advantage of the best attack on it, so that promises of different kinds compare.

    Panels keep adjacencies apart: an attack on a whole record and one on a small change are not the same attack.
    ``options`` are those of :func:`band_grid`: ``methods``, ``ylabel``, ``clean``.
    """
    same: dict[str, Any] = {"metric": metric, "title": title, "caption": caption, "columns_by": columns_by}
    return band_grid(rows, **same, **options, rows_by=None, x="attack_advantage")


@validate()
def bars(
    rows: Sequence[Row],
    *,
    title: str,
    caption: str,
    value: str = "seconds",
    group: str = "n",
    methods: Sequence[str] | None = None,
    limit: float | None = None,
    xlabel: str = "seconds (log scale)",
) -> Figure:
    """Horizontal bars on a log axis, a group for each ``group`` (the size) and in it a bar for each method.

    A value of NaN is written as "over the limit", a pair without rows as "not run". Whiskers: one standard deviation.
    """
    members = chosen_methods(checked(rows, ("method", value, group)), methods)
    limit = None if limit is None else _validation.check_positive(limit, "limit")
    names = list(dict.fromkeys(methods or (row["method"] for row in members)))
    found = {key: summary(part, value) for key, part in grouped(members, ("method", group)).items()}
    if any(row[value] <= 0 for row in members):
        _validation.reject(value, "a positive number, or NaN", min(row[value] for row in members))
    sizes, height = values_of(members, group), len(names) + 0.8
    figure, panels = sheet(1, 1, (8.4, 0.27 * len(sizes) * height + 0.9))
    axes = panels[0, 0]
    reached = [each["mean"] + shift * each["sd"] for each in found.values() if each["count"] for shift in (0, 1)]
    ends = [*reached, *([] if limit is None else [limit])] or [1.0, 10.0]
    left, right = min(ends) / 3, max(ends)
    axes.set(xscale="log", xlim=(left, right * (right / left) ** 0.12), xlabel=xlabel)
    for place, size in enumerate(sizes):
        for rank, name in enumerate(names):
            y = place * height + rank
            _bar(axes, y, name, found.get((name, size)), left)
    axes.set_yticks(
        [place * height + (len(names) - 1) / 2 for place in range(len(sizes))],
        [_place_name(group, size) for size in sizes],
    )
    axes.set_ylim(len(sizes) * height - 0.9, -0.9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    axes.grid(axis="x", color="#e6e9ec", linewidth=0.8)
    _calm(axes)
    keys = [legend_key(color=method_style(name)["color"], linewidth=7, label=name) for name in names]
    if limit is not None:
        axes.axvline(limit, color=NOT_PRIVATE, linewidth=1, linestyle=":")
        keys.append(legend_key(color=NOT_PRIVATE, linewidth=1, linestyle=":", label=f"the limit, {limit:g}"))
    finish(figure, _wrapped(title, figure), caption, keys, columns=min(4, len(keys)))
    return figure


# ---- Rows.


@dataclass(frozen=True)
class _Point:
    """Where a mark is drawn, and what it stands for."""

    x: float
    mean: float
    sd: float
    unreachable: int
    private: bool
    identity: dict[str, Any]


def _curves(rows: list[Row], x: str) -> dict[str, list[_Point]]:
    curves: dict[str, list[_Point]] = {}
    for key, members in grouped(rows, ("method", *_IDENTITY)).items():
        found = summary(members, "value")
        at = float(np.mean([_position(row, x) for row in members]))
        kept = all(_keeps_promise(row) for row in members)
        point = _Point(
            at, found["mean"], found["sd"], found["unreachable"], kept, dict(zip(_IDENTITY, key[1:], strict=True))
        )
        curves.setdefault(str(key[0]), []).append(point)
    for method, points in curves.items():
        points.sort(key=lambda point: point.x)
        for one, other in pairwise(points):
            _refuse_two_in_one(method, one, other, x)
    return curves


def _refuse_two_in_one(method: str, one: _Point, other: _Point, x: str) -> None:
    """Two points of a curve at one place are two curves; though many a budget gives an attacker all there is."""
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


def _position(row: Row, x: str) -> float:
    if x == "epsilon":
        return _validation.check_positive(row[x], x)
    known = isinstance(row[x], numbers.Real) and not math.isnan(row[x])
    at = row[x] if known else row.get("target_advantage")  # out of reach: where it was aimed at
    at = _validation.check_real(at, x, "a number in [0, 1]")
    if not -1e-12 <= at <= 1 + 1e-12:
        _validation.reject(x, "a number in [0, 1]", row[x])
    return at


def _keeps_promise(row: Row) -> bool:
    """Whether the true epsilon is at most the claimed one, up to rounding."""
    if math.isnan(number_of(row["value"], "value")):
        return True  # nothing is drawn of it
    true = row["true_epsilon"]
    if isinstance(true, bool) or not isinstance(true, numbers.Real) or math.isnan(true):
        _validation.reject("true_epsilon", "a number or infinity where a value was measured", true)
    return bool(true <= _validation.check_positive(row["epsilon"], "epsilon") * (1 + 1e-9))


# ---- Panels.


def _panel(axes: Axes, curves: dict[str, list[_Point]], names: list[str], place: dict[str, Hashable]) -> None:
    points = [point for curve in curves.values() for point in curve]
    for name in names:
        if name in curves:
            _curve(axes, curves[name], name)
    if not any(math.isfinite(point.mean) for point in points):
        said = "every point is out of reach" if points else "no data"
        axes.text(0.5, 0.6, said, transform=axes.transAxes, ha="center", va="center", color=NOT_PRIVATE)
    axes.set_title(", ".join(_place_name(name, value) for name, value in place.items()), fontsize=10)
    axes.grid(color="#e6e9ec", linewidth=0.8)
    _calm(axes)


def _curve(axes: Axes, points: list[_Point], name: str) -> None:
    style = method_style(name)
    x, mean, sd = (np.array([getattr(point, field) for point in points]) for field in ("x", "mean", "sd"))
    if (sd > 0).any():
        axes.fill_between(x, mean - sd, mean + sd, color=style["color"], alpha=0.16, linewidth=0)
    axes.plot(x, mean, color=style["color"], linestyle=style["linestyle"], linewidth=1.7, label=name)
    dots: dict[str, Any] = {"linestyle": "none", "marker": style["marker"], "zorder": 3}
    kept = np.array([point.private for point in points])
    axes.plot(x[kept], mean[kept], **dots, color=style["color"], markersize=4.5, label=f"{name}, private")
    hollow: dict[str, Any] = {
        "markerfacecolor": "white",
        "markeredgecolor": NOT_PRIVATE,
        "markeredgewidth": 1.3,
        "markersize": 5.5,
    }
    axes.plot(x[~kept], mean[~kept], **dots, **hollow, label=f"{name}, not private")


def _crosses(drawn: list[tuple[Axes, dict[str, list[_Point]]]], names: list[str]) -> None:
    """A strip at the foot of each panel, below every curve, where a cross says that a method is out of reach."""
    lost = [name for name in names if any(point.unreachable for _, c in drawn for point in c.get(name, []))]
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
            x = [point.x for point in curves.get(name, []) if point.unreachable]
            y, label = [step * (rank + 0.7)] * len(x), f"{name}, out of reach"
            look: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 5, "transform": inside}
            axes.plot(x, y, **look, color=method_style(name)["color"], label=label)


def _clean_lines(axes: Axes, rows: list[Row], place: dict[str, Hashable]) -> None:
    """What there is without privacy: a budget says nothing of it, so each panel has it."""
    here = {name: value for name, value in place.items() if name not in _BUDGET}
    inside = [row for row in rows if all(key_of(row, name) == value for name, value in here.items())]
    for (name,), members in grouped(inside, ("method",)).items():
        for column in ("dataset", "task"):
            if len(values_of(members, column)) > 1:
                raise InvalidParameter(
                    "rows",
                    f"must hold one clean value for each panel. Got '{name}' with "
                    f"several of '{column}': leave some out, or put '{column}' into rows_by or columns_by.",
                )
        # One repeat may stand there once for each budget.
        once = {(key_of(row, "repeat"), key_of(row, "seed"), key_of(row, "value")): row for row in members}
        found, style = summary(once.values(), "value"), method_style(str(name))
        axes.axhline(found["mean"], color=style["color"], linestyle=style["linestyle"], linewidth=1.2, label=str(name))
        if found["sd"] > 0:
            reach = found["mean"] - found["sd"], found["mean"] + found["sd"]
            axes.axhspan(*reach, color=style["color"], alpha=0.1, linewidth=0)


def _scale(axes: Axes, x: str, places: list[float]) -> None:
    """The one x axis of all panels."""
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


def _bar(axes: Axes, y: float, name: str, found: dict[str, Any] | None, left: float) -> None:
    """One bar from the left end with its value, or the words that stand in its place."""
    if found is None or not found["count"]:
        said = "not run" if found is None else "over the limit"
        axes.text(left * 1.06, y, said, va="center", fontsize=8.5, color=NOT_PRIVATE, style="italic")
        return
    mean, sd = found["mean"], found["sd"]
    axes.barh(y, mean - left, left=left, height=0.82, color=method_style(name)["color"], label=name)
    low = min(sd, mean * (1 - 1e-3))  # a log axis has no zero
    if sd:
        axes.errorbar(mean, y, xerr=[[low], [sd]], color=INK, linewidth=1, capsize=2)
    lost = f" ({found['unreachable']} over the limit)" if found["unreachable"] else ""
    axes.text((mean + sd) * 1.06, y, f"{mean:.3g}{lost}", va="center", fontsize=8.5, color=INK)


def _place_name(name: str, value: Any) -> str:
    """What tells a panel or a group from the others, as people write it."""
    if name == "radius":
        return "one whole record" if value is None else f"$D_G$ = {value:g}"
    if value is None:
        return f"no {name}"
    if name == "delta":
        return f"δ = {typeset_power(value) if value else 0}"
    if isinstance(value, numbers.Real):
        return f"{'ε' if name == 'epsilon' else name} = {float(value):,.10g}"
    return str(value)


def _calm(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _wrapped(title: str, figure: Figure) -> str:
    return "\n".join(textwrap.wrap(title, max(20, int(figure.get_size_inches()[0] * 8.5))))


def _finish(
    figure: Figure, title: str, caption: str, names: list[str], points: list[_Point], without: list[str]
) -> None:
    keys = [legend_key(**method_style(name), linewidth=1.7, markersize=4.5, label=name) for name in names]
    keys += [legend_key(**method_style(name), linewidth=1.2, label=name) for name in without]
    if any(not point.private for point in points):
        edge = {"markerfacecolor": "white", "markeredgecolor": NOT_PRIVATE, "markeredgewidth": 1.3}
        keys.append(legend_key(linestyle="none", marker="o", **edge, label=_HOLLOW))
    if any(point.unreachable for point in points):
        keys.append(legend_key(linestyle="none", marker="x", color=INK, label=_OUT_OF_REACH))
    columns = max(1, min(len(keys), int(figure.get_size_inches()[0] / 3.2)))
    finish(figure, _wrapped(title, figure), caption, keys, columns=columns)
