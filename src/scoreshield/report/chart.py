"""Charts for pages, drawn by Matplotlib as SVG inside HTML.

A page is one file without scripts, for screens, phones, dark mode and paper. So colours and text sizes belong to its
style sheet: Matplotlib draws in the sheet's light colours, and each of them is then replaced by its CSS variable. Text
stays text, with a class that the sheet sizes. Labels take the place where they cover the least ink and no other label.
Their widths are estimated on the wide side, because the fonts of readers differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._formatting import typeset_exact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Float = NDArray[np.float64]
Box = tuple[float, float, float, float]  # left, top, right, bottom
#: What a mark stands for, and so its colour: without noise, with noise, an aid to reading, or plain ink.
Role = Literal["clean", "private", "aux", "ink"]

WIDTH, HEIGHT = 440.0, 312.0
#: The largest text that the style sheet may set, in units of the view box. The layout makes room for it.
FONT, LINE = 14.0, 17.0
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|()[]\N{NO-BREAK SPACE} "), frozenset("%mwMW")
#: A group of this id becomes a group of this class in the page.
_CLASS = "class:"


def estimate_text_width(text: str) -> float:
    """Estimate the width of a text in the largest font, rather too wide than too narrow."""
    narrow, wide = sum(letter in _NARROW for letter in text), sum(letter in _WIDE for letter in text)
    return FONT * (0.62 * len(text) - 0.26 * narrow + 0.33 * wide)


@cache
def read_palette() -> dict[str, str]:
    """Read the light colours of the style sheet, by name."""
    text = files("scoreshield.report").joinpath("templates", "colours.css").read_text("utf-8")
    return dict(re.findall(r"--([\w-]+): (#\w+);", text[: text.index("}")]))


@dataclass(frozen=True)
class Axis:
    """A scale from ``low`` to ``high``, linear or logarithmic, with round ticks or given ones, and their texts."""

    label: str
    low: float
    high: float
    log: bool = False
    format_tick: Callable[[float], str] = typeset_exact
    ticks: tuple[float, ...] = ()

    def contains(self, value: float) -> bool:
        """Whether a value lies on the axis; NaN does not."""
        low, high, at = self.low, self.high, value
        if self.log:
            if value <= 0:
                return False
            low, high, at = math.log(low), math.log(high), math.log(value)
        return -1e-6 <= (at - low) / (high - low) <= 1 + 1e-6

    def find_ticks(self) -> list[float]:
        """Find round values within the axis, the most important first."""
        from matplotlib.ticker import LogLocator, MaxNLocator

        if self.ticks:
            return list(self.ticks)
        decades = np.log10(self.high / self.low) if self.log else 0.0
        if decades < 0.7:
            ticks = list(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1).tick_values(self.low, self.high))
            reach = 1e-9 * (self.high - self.low)
            return [float(f"{tick:.12g}") for tick in ticks if self.low - reach <= tick <= self.high + reach]
        digits = (1.0, 2.0, 5.0) if decades < 2.7 else (1.0,)
        ticks = [
            float(f"{tick:.12g}")
            for digit in digits
            for tick in LogLocator(subs=[digit], numticks=9).tick_values(self.low, self.high)
        ]
        return [tick for tick in ticks if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


@dataclass(frozen=True)
class Curve:
    """A line through points, with its name in the legend."""

    x: Float
    y: Float
    label: str
    role: Role
    is_dashed: bool = False
    is_thin: bool = False


@dataclass(frozen=True)
class Area:
    """The area between two curves, with its name in the legend; hatching says that it is out of reach."""

    x: Float
    low: Float
    high: Float
    label: str
    role: Role
    is_hatched: bool = False


@dataclass(frozen=True)
class Mark:
    """A dot, or a rule across the plot where one of the two places is None.

    The label of a dot lies beyond ``reach``, which is how far a bar through the dot extends to each side.
    """

    x: float | None
    y: float | None
    label: str
    role: Role
    is_hollow: bool = False
    reach: float = 0.0


class Chart:
    """What a chart shows, in the units of the data; `render_svg` draws it.

    A mark that is not finite, or not on the axes, is left out, so that callers need not check.
    """

    def __init__(self, title: str, x: Axis, y: Axis, caption: str = "") -> None:
        self.title, self.x, self.y, self.caption = title, x, y, caption
        self.lines: list[Curve] = []
        self.areas: list[Area] = []
        self.marks: list[Mark] = []
        self.top: tuple[str, list[tuple[float, str]]] | None = None

    def add_line(
        self, x: ArrayLike, y: ArrayLike, label: str, role: Role, *, dashed: bool = False, thin: bool = False
    ) -> None:
        """Add a curve; without a label it stays out of the legend."""
        across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if np.isfinite(across + up).any():
            self.lines.append(Curve(across, up, label, role, dashed, thin))

    def add_area(
        self, x: ArrayLike, low: ArrayLike, high: ArrayLike, label: str, role: Role, *, hatched: bool = False
    ) -> None:
        """Shade between two curves."""
        across = np.asarray(x, dtype=np.float64)
        below, above = (np.broadcast_to(np.asarray(end, dtype=np.float64), across.shape) for end in (low, high))
        self.areas.append(Area(across, below, above, label, role, hatched))

    def add_band(self, low: float, high: float, label: str, role: Role, *, hatched: bool = False) -> None:
        """Shade all between two values of x, as far as the axis shows them."""
        low, high = max(low, self.x.low), min(high, self.x.high)
        if low < high:
            self.add_area([low, high], self.y.low, self.y.high, label, role, hatched=hatched)

    def add_vertical(self, x: float, label: str, role: Role) -> None:
        """Add a rule at one x from bottom to top."""
        self._add_mark(Mark(x, None, label, role))

    def add_horizontal(self, y: float, label: str, role: Role) -> None:
        """Add a rule at one y from side to side."""
        self._add_mark(Mark(None, y, label, role))

    def add_point(
        self, x: float, y: float, label: str, role: Role, *, hollow: bool = False, reach: float = 0.0
    ) -> None:
        """Add a dot, or a ring if it is hollow; its label lies beyond ``reach`` on either side."""
        self._add_mark(Mark(x, y, label, role, hollow, reach))

    def set_top_axis(self, label: str, ticks: Iterable[tuple[float, str]]) -> None:
        """Put a second scale over the plot: texts at values of x, the most important first."""
        self.top = (label, list(ticks))

    def _add_mark(self, mark: Mark) -> None:
        places = ((mark.x, self.x), (mark.y, self.y))
        if all(axis.contains(place) for place, axis in places if place is not None):
            self.marks.append(mark)

    @property
    def legend(self) -> list[Curve | Area]:
        """The curves and areas that have a name."""
        items: list[Curve | Area] = [*self.lines, *self.areas]
        return [item for item in items if item.label]

    @property
    def description(self) -> str:
        """The chart in words, for readers who do not see it."""
        names = "; ".join(item.label for item in self.legend)
        marks = "; ".join(mark.label for mark in self.marks if mark.label)
        across, up = (
            f"{axis.label}, {axis.format_tick(axis.low)} to {axis.format_tick(axis.high)}" for axis in (self.x, self.y)
        )
        text = f"Left to right: {across}. Bottom to top: {up}. Drawn: {names}."
        return f"{text} Marked: {marks}." if marks else text

    def render_svg(self, ident: str) -> str:
        """Draw the chart as an ``svg`` element for a page.

        Args:
            ident: begins every id of the element, so it must be unique in its page.
        """
        from matplotlib import rc_context

        with rc_context({"svg.fonttype": "none", "svg.hashsalt": ident, "hatch.linewidth": 1.0}):
            return _write_svg(_Drawing(self).draw(), self, ident)


class _Drawing:
    """One chart on a Matplotlib figure whose points are the units of the view box, counted from the top."""

    def __init__(self, chart: Chart) -> None:
        from matplotlib.figure import Figure

        self.chart, self.palette = chart, read_palette()
        self.left = 10 + max(estimate_text_width(chart.y.format_tick(tick)) for tick in chart.y.find_ticks())
        self.right = WIDTH - 16
        self.upper = LINE + 11 + (LINE + 2 if chart.top else 0)
        self.lower = HEIGHT - 2 * LINE - 8
        self.figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
        self.axes = self.figure.add_axes(
            (
                self.left / WIDTH,
                1 - self.lower / HEIGHT,
                (self.right - self.left) / WIDTH,
                (self.lower - self.upper) / HEIGHT,
            )
        )
        self.axes.set(xlim=(chart.x.low, chart.x.high), ylim=(chart.y.low, chart.y.high))
        for axis, name in ((chart.x, "x"), (chart.y, "y")):
            if axis.log:
                self.axes.set(**{f"{name}scale": "log"})
        self.axes.set_axis_off()
        self.figure.patch.set_visible(False)
        self.taken: list[Box] = []

    def draw(self) -> Figure:
        self._draw_axes()
        for area in self.chart.areas:
            self._draw_area(area)
        for mark in self.chart.marks:
            self._draw_mark(mark)
        for line in self.chart.lines:
            self._draw_line(line)
        ink = self._find_ink()
        dots = [mark for mark in self.chart.marks if mark.x is not None and mark.y is not None]
        rules = [mark for mark in self.chart.marks if mark not in dots]
        for mark in (*dots, *rules):
            if mark.label:
                self._draw_label(mark, ink)
        return self.figure

    def _place(self, x: ArrayLike, y: ArrayLike) -> tuple[Float, Float]:
        """Find where data lie in the view box; what is far outside is cut, what is not a number stays so."""
        points = np.stack(np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)), -1)
        across, up = np.moveaxis(self.axes.transData.transform(points.reshape(-1, 2)), -1, 0)
        return np.clip(across, -3 * WIDTH, 4 * WIDTH), np.clip(HEIGHT - up, -3 * HEIGHT, 4 * HEIGHT)

    def _find_corner(self, mark: Mark) -> tuple[float | None, float | None]:
        """Find where a mark is in the view box."""
        x, y = self._place(
            self.chart.x.low if mark.x is None else mark.x, self.chart.y.low if mark.y is None else mark.y
        )
        return None if mark.x is None else float(x[0]), None if mark.y is None else float(y[0])

    # ---- Axes.

    def _draw_axes(self) -> None:
        chart = self.chart
        for tick in chart.y.find_ticks():
            y = float(self._place(chart.x.low, tick)[1][0])
            self._draw_stroke([self.left, self.right], [y, y], "grid", color=self.palette["rule"], linewidth=0.8)
            self._write(self.left - 6, y + 4.5, chart.y.format_tick(tick), "tick", "right")
        above, below = self.upper - 12 - (LINE + 2 if chart.top else 0), self.lower + 2 * LINE + 3
        self._write(0, above, chart.y.label, "name", "left")
        self._write((self.left + self.right) / 2, below, chart.x.label, "name", "center")
        self._draw_scale(((tick, chart.x.format_tick(tick)) for tick in chart.x.find_ticks()), self.lower, 1)
        if chart.top:
            self._write(WIDTH, above, chart.top[0], "name", "right")
            self._draw_scale(chart.top[1], self.upper, -1)

    def _draw_scale(self, ticks: Iterable[tuple[float, str]], y: float, way: int) -> None:
        """Draw a line along x with ticks below (1) or above (-1), without texts that would touch an earlier one."""
        look = {"color": self.palette["aux"], "linewidth": 1.0}
        self._draw_stroke([self.left, self.right], [y, y], "axis", **look)
        taken: list[Box] = []
        for tick, text in ticks:
            x, half = float(self._place(tick, self.chart.y.high)[0][0]), estimate_text_width(text) / 2 + 3
            at = min(max(x, half - 3), WIDTH - half + 3)
            box = (at - half, 0.0, at + half, 1.0)
            if self.left - 0.5 <= x <= self.right + 0.5 and not _overlaps(box, taken):
                taken.append(box)
                self._draw_stroke([x, x], [y, y + 4 * way], "mark", **look)
                self._write(at, y + (LINE + 1 if way > 0 else -8), text, "tick", "center")

    def _draw_stroke(self, x: list[float], y: list[float], name: str, **look: Any) -> None:
        """Draw a stroke in the units of the view box."""
        from matplotlib.lines import Line2D

        across, up = [at / WIDTH for at in x], [1 - at / HEIGHT for at in y]
        self.figure.add_artist(Line2D(across, up, solid_capstyle="butt", gid=_CLASS + name, zorder=0, **look))

    def _write(self, x: float, y: float, text: str, name: str, side: Literal["left", "center", "right"]) -> None:
        """Write a text whose baseline is at y; its size, weight and colour are the style sheet's."""
        self.figure.text(
            x / WIDTH, 1 - y / HEIGHT, text, gid=_CLASS + name, ha=side, va="baseline", fontsize=FONT, parse_math=False
        )

    # ---- Data.

    def _draw_area(self, area: Area) -> None:
        colour = self.palette["private" if area.role == "private" else "aux"]
        outline = np.concatenate([area.x, area.x[::-1]]), np.concatenate([area.low, area.high[::-1]])
        look: dict[str, Any] = {"linewidth": 0, "zorder": 1}
        self.axes.fill(*outline, color=colour, alpha=0.1, gid=f"{_CLASS}area {area.role}", **look)
        if area.is_hatched:
            look |= {"facecolor": "none", "edgecolor": (self.palette["aux"], 0.3)}
            self.axes.fill(*outline, hatch="//", gid=f"{_CLASS}hatch", **look)

    def _draw_line(self, line: Curve) -> None:
        width = 1.2 if line.is_thin else 1.7 if line.is_dashed else 2.5 if line.role == "private" else 2.0
        self.axes.plot(
            line.x,
            line.y,
            color=self.palette[line.role],
            linewidth=width,
            linestyle=_dash(5, 4, width) if line.is_dashed else "-",
            solid_capstyle="round",
            gid=f"{_CLASS}line {line.role}",
            zorder=3,
        )

    def _draw_mark(self, mark: Mark) -> None:
        from matplotlib.patches import Ellipse

        colour = self.palette[mark.role]
        rule: dict[str, Any] = {"color": colour, "linewidth": 1.3, "linestyle": _dash(4, 3, 1.3), "zorder": 2}
        rule["gid"] = f"{_CLASS}rule {mark.role}"
        x, y = self._find_corner(mark)
        if x is None:
            self.axes.axhline(mark.y or 0.0, **rule)
        elif y is None:
            self.axes.axvline(mark.x or 0.0, **rule)
        else:
            face, edge = (self.palette["surface"], colour) if mark.is_hollow else (colour, self.palette["surface"])
            # A marker would become a reference inside the file, which a page cannot keep apart from a link.
            dot = Ellipse((x / WIDTH, 1 - y / HEIGHT), 9 / WIDTH, 9 / HEIGHT, facecolor=face, edgecolor=edge)
            dot.set(linewidth=2.2 if mark.is_hollow else 1.6, gid=f"{_CLASS}dot {mark.role}", zorder=4)
            dot.set_transform(self.figure.transFigure)
            self.figure.add_artist(dot)

    # ---- Labels.

    def _draw_label(self, mark: Mark, ink: tuple[Float, Float]) -> None:
        """Write a label where it does the least harm among the places around its mark."""
        boxes = self._find_boxes(mark, 1.1 * estimate_text_width(mark.label))  # labels are bold
        best = min(enumerate(boxes), key=lambda choice: self._score(choice[1], ink) + 0.6 * choice[0])[1]
        self.taken.append(best)
        # The text starts at the side of its mark, so that a font narrower than the estimate leaves no gap there.
        x = self._find_corner(mark)[0]
        ends = best[2] <= (self.right if x is None else x)
        self._write(best[2 * ends], best[3] - 4.5, mark.label, f"label {mark.role}", "right" if ends else "left")

    def _find_boxes(self, mark: Mark, width: float) -> list[Box]:
        """Find the boxes that a label may take, the preferred first."""
        x, y = self._find_corner(mark)
        if x is None and y is not None:
            lefts, tops = np.linspace(self.right - 4 - width, self.left + 4, 12), np.array([y - LINE - 1, y + 2])
            corners = [(left, top) for left in lefts.tolist() for top in tops.tolist()]
        else:
            across, gap = x or 0.0, 6.0 if y is None else 9.0
            if mark.x is not None and mark.reach > 0:
                gap += float(self._place(mark.x + mark.reach, self.chart.y.low)[0][0]) - across
            rows = np.arange(self.upper + 3, self.lower - LINE, LINE / 2)
            if y is not None:
                rows = y + LINE * np.array([-0.5, -1.2, 0.2, -1.7, 0.7, -2.4, 1.4, -3.1, 2.1])
            corners = [(left, top) for top in rows.tolist() for left in (across + gap, across - gap - width)]
            # Farther away, where lines meet at the dot and there is no room on either side.
            corners += [(across + gap + far * LINE, top) for far in (3, 5) for top in rows[:3].tolist()]
        return [(left, top, left + width, top + LINE) for left, top in corners]

    def _score(self, box: Box, ink: tuple[Float, Float]) -> float:
        """Score the harm that a label in this box does."""
        outside = max(0.0, self.left + 2 - box[0]) + max(0.0, box[2] - self.right)
        outside += max(0.0, self.upper - box[1]) + max(0.0, box[3] - self.lower)
        x, y = ink
        covered = np.count_nonzero((x > box[0] - 2) & (x < box[2] + 2) & (y > box[1]) & (y < box[3]))
        return 40 * outside + 1000 * _overlaps(box, self.taken) + 6.0 * float(covered)

    def _find_ink(self) -> tuple[Float, Float]:
        """Find points along every curve and rule, a few units apart, and many on every dot."""
        tracks = [self._place(line.x, line.y) for line in self.chart.lines]
        for mark in self.chart.marks:
            x, y = self._find_corner(mark)
            across = [self.left, self.right] if x is None else [x - 4, x + 4] * 20 if y is not None else [x, x]
            up = [self.upper, self.lower] if y is None else [y] * len(across)
            tracks.append((np.array(across), np.array(up)))
        points = [np.empty((2, 0)), *(np.array(_sample_track(*track)) for track in tracks)]
        x_ink, y_ink = np.concatenate(points, axis=1)
        return x_ink, y_ink


def _dash(drawn: float, left_out: float, width: float) -> tuple[float, tuple[float, float]]:
    """Give a dash pattern in units of the view box; Matplotlib takes it in multiples of the line's width."""
    return 0.0, (drawn / width, left_out / width)


def _sample_track(x: Float, y: Float) -> tuple[Float, Float]:
    """Sample points a few units apart along a track."""
    known = np.isfinite(x + y)
    x, y = x[known], y[known]
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    steps = np.arange(0.0, along[-1], 5.0)
    return np.interp(steps, along, x), np.interp(steps, along, y)


def _overlaps(box: Box, others: Sequence[Box]) -> bool:
    return any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in others)


# ---- From Matplotlib's file to an element of a page.


def _write_svg(figure: Figure, chart: Chart, ident: str) -> str:
    """Write a figure as an ``svg`` element that takes its colours and text sizes from the page."""
    from matplotlib.colors import to_hex

    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    source = ET.fromstring(buffer.getvalue())
    about = f"{ident}-about"
    root = ET.Element(
        "svg",
        {
            "class": "chart",
            "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}",
            "width": "100%",
            "role": "img",
            "aria-label": chart.title,
            "aria-describedby": about,
        },
    )
    ET.SubElement(root, "title").text = chart.title
    ET.SubElement(root, "desc", {"id": about}).text = chart.description
    colours = {to_hex(colour): f"var(--{name})" for name, colour in reversed(read_palette().items())}
    for child in source:
        if child.tag.rpartition("}")[2] != "metadata":
            root.extend(_adapt(child, ident, colours))
    return ET.tostring(root, encoding="unicode")


def _adapt(element: ET.Element, ident: str, colours: dict[str, str]) -> list[ET.Element]:
    """Adapt an element of Matplotlib's file to a page; a group that says nothing is replaced by its children."""
    tag = element.tag.rpartition("}")[2]
    if tag == "style":  # It would style the whole page.
        return []
    children = [part for child in element for part in _adapt(child, ident, colours)]
    name = element.get("id", "")
    if tag == "g" and not name.startswith(_CLASS):
        return children
    if tag == "defs" and not children:
        return []
    kept = ET.Element(tag)
    for key, value in element.attrib.items():
        if key == "id" and tag == "g":
            kept.set("class", value.removeprefix(_CLASS))
        elif key == "id":
            kept.set("id", f"{ident}-{value}")
        elif key == "d":
            kept.set("d", " ".join(value.split()))
        elif tag == "text" and key == "style":
            anchor = re.search(r"text-anchor: \w+", value)
            kept.set("style", anchor.group() if anchor else "text-anchor: start")
        elif not (tag == "text" and key == "transform"):
            value = re.sub(r"#[0-9a-f]{6}\b", lambda found: colours.get(found.group(), found.group()), value)
            kept.set(key, value.replace("url(#", f"url(#{ident}-"))
    kept.text = element.text if tag == "text" else None
    kept.extend(children)
    return [kept]
