"""Charts as SVG text, without a drawing library: for pages that are one file, on a phone, on paper, in the dark.

Colours are left to the page: every mark carries a class (``clean``, ``private``, ``aux``) and draws in the text colour
where no style sheet says otherwise. Text stays text. Labels are set where they cover least ink and no other label;
their widths are estimated on the wide side, because fonts differ. An ``svg`` element inside HTML needs no namespace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]
Box = tuple[float, float, float, float]  # left, top, right, bottom

WIDTH, HEIGHT = 440.0, 312.0
#: The largest text that a style sheet may set, in units of the view box: what the layout makes room for.
FONT, LINE = 14.0, 17.0
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|()[]\N{NO-BREAK SPACE} "), frozenset("%mwMW")


def plain(value: float) -> str:
    """A tick as people write it: 0.25, −1, 5,000."""
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}") if value else "0"


def text_width(text: str) -> float:
    """About how wide a text is, rather too wide than too narrow."""
    narrow, wide = sum(letter in _NARROW for letter in text), sum(letter in _WIDE for letter in text)
    return FONT * (0.62 * len(text) - 0.26 * narrow + 0.33 * wide)


@dataclass(frozen=True)
class Axis:
    """A scale from ``low`` to ``high``, linear or logarithmic, and how its ticks are written."""

    label: str
    low: float
    high: float
    log: bool = False
    text: Callable[[float], str] = plain

    def fraction(self, values: ArrayLike) -> Float:
        """Where values lie, 0 at the low end and 1 at the high one; far outside is cut, no number stays none."""
        data = np.asarray(values, dtype=np.float64)
        low, high = self.low, self.high
        if self.log:
            with np.errstate(divide="ignore"):
                data = np.log(np.where(data < 0, 0.0, data))
            low, high = math.log(low), math.log(high)
        return np.clip((data - low) / (high - low), -3.0, 4.0)

    def ticks(self) -> list[float]:
        """Round values within the axis, the most important first."""
        decades = math.log10(self.high / self.low) if self.log else 0.0
        if decades < 0.7:
            return _round_steps(self.low, self.high)
        stride = math.ceil(decades / 7)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [10.0**power for power in powers if power % stride == 0]
        if decades < 2.7:
            found += [digit * 10.0**power for digit in (2, 5) for power in powers]
        return [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


def _round_steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


@dataclass(frozen=True)
class Curve:
    """A line through points, or with ``upper`` an area between two lines; its name in the legend and its class."""

    x: Float
    y: Float
    label: str
    style: str
    upper: Float | None = None

    def key(self, ident: str) -> str:
        """What stands for it in the legend."""
        if self.upper is None:
            shape = f'<path class="line {self.style}" d="M1 6h22" fill="none" stroke="currentColor"/>'
        else:
            shape = _filled('<rect {} x="1" y="0" width="22" height="12"/>', self.style, ident)
        swatch = f'<svg class="swatch" viewBox="0 0 24 12" width="24" height="12" aria-hidden="true">{shape}</svg>'
        return f"<li>{swatch}{escape(self.label)}</li>"


@dataclass(frozen=True)
class Mark:
    """A dot, or a rule across the plot where one of the two is None."""

    x: float | None
    y: float | None
    label: str
    style: str


class Chart:
    """What is to be seen, in the units of the data; :meth:`render` makes a picture of it.

    Marks that are no finite numbers, or off the axes, are left out, so that callers need not ask.
    """

    def __init__(self, title: str, x: Axis, y: Axis, caption: str = "") -> None:
        self.title, self.x, self.y, self.caption = title, x, y, caption
        self.lines: list[Curve] = []
        self.areas: list[Curve] = []
        self.marks: list[Mark] = []
        self.top: tuple[str, list[tuple[float, str]]] | None = None

    def line(self, x: ArrayLike, y: ArrayLike, label: str, style: str) -> None:
        """A curve; without a label it stays out of the legend."""
        drawn = Curve(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), label, style)
        if np.isfinite(drawn.x + drawn.y).any():
            self.lines.append(drawn)

    def area(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, label: str, style: str) -> None:
        """Shade between two curves; "hatched" in the style adds strokes, for what is out of reach."""
        across = np.asarray(x, dtype=np.float64)
        below, above = (np.broadcast_to(np.asarray(end, dtype=np.float64), across.shape) for end in (low, high))
        self.areas.append(Curve(across, below, label, style, above))

    def band(self, low: float, high: float, label: str, style: str) -> None:
        """Shade all between two values of x, as far as the axis shows them."""
        low, high = max(low, self.x.low), min(high, self.x.high)
        if low < high:
            self.area([low, high], self.y.low, self.y.high, label, style)

    def vertical(self, x: float, label: str, style: str) -> None:
        """A rule at one x from bottom to top."""
        self._mark(Mark(x, None, label, style))

    def horizontal(self, y: float, label: str, style: str) -> None:
        """A rule at one y from side to side."""
        self._mark(Mark(None, y, label, style))

    def point(self, x: float, y: float, label: str, style: str) -> None:
        """A dot; "hollow" in the style makes it a ring."""
        self._mark(Mark(x, y, label, style))

    def top_axis(self, label: str, ticks: Iterable[tuple[float, str]]) -> None:
        """A second scale over the plot: texts at values of x, the most important first."""
        self.top = (label, list(ticks))

    def _mark(self, mark: Mark) -> None:
        ends = ((mark.x, self.x), (mark.y, self.y))
        places = [float(axis.fraction(value)) for value, axis in ends if value is not None]
        if all(-1e-6 <= place <= 1 + 1e-6 for place in places):
            self.marks.append(mark)

    @property
    def summary(self) -> str:
        """The chart in words, for those who do not see it."""
        named = "; ".join(item.label for item in (*self.lines, *self.areas) if item.label)
        marked = "; ".join(mark.label for mark in self.marks if mark.label)
        across, up = (f"{axis.label}, {axis.text(axis.low)} to {axis.text(axis.high)}" for axis in (self.x, self.y))
        text = f"Left to right: {across}. Bottom to top: {up}. Drawn: {named}."
        return f"{text} Marked: {marked}." if marked else text

    def legend(self, ident: str) -> str:
        """The legend as an HTML list, which wraps as its place allows; ``ident`` as for :meth:`render`."""
        keys = "".join(item.key(escape(ident)) for item in (*self.lines, *self.areas) if item.label)
        return f'<ul class="legend">{keys}</ul>'

    def render(self, ident: str) -> str:
        """The picture; ``ident`` must be unique in its page."""
        return _Drawing(self, escape(ident)).svg()


class _Drawing:
    """One chart on paper: places in the view box, and labels that keep out of one another's way."""

    def __init__(self, chart: Chart, ident: str) -> None:
        self.chart, self.ident = chart, ident
        self.left = 10 + max(text_width(chart.y.text(tick)) for tick in chart.y.ticks())
        self.right = WIDTH - 16
        self.upper = LINE + 11 + (LINE + 2 if chart.top else 0)
        self.lower = HEIGHT - 2 * LINE - 8
        self.taken: list[Box] = []
        self.ink = self._ink()

    def px(self, values: ArrayLike) -> Float:
        return self.left + self.chart.x.fraction(values) * (self.right - self.left)

    def py(self, values: ArrayLike) -> Float:
        return self.lower - self.chart.y.fraction(values) * (self.lower - self.upper)

    def at(self, mark: Mark) -> tuple[float | None, float | None]:
        """Where a mark is, in the view box."""
        x = None if mark.x is None else float(self.px(mark.x))
        return x, None if mark.y is None else float(self.py(mark.y))

    def svg(self) -> str:
        chart, ident = self.chart, self.ident
        frame = f"M{self.left:.2f} {self.upper:.2f}H{self.right:.2f}V{self.lower:.2f}H{self.left:.2f}Z"
        rules = [mark for mark in chart.marks if mark.x is None or mark.y is None]
        dots = [mark for mark in chart.marks if mark not in rules]
        parts = (
            f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="100%" role="img" '
            f'aria-label="{escape(chart.title)}" aria-describedby="{ident}-about">',
            f'<title>{escape(chart.title)}</title><desc id="{ident}-about">{escape(chart.summary)}</desc>',
            f'<defs><clipPath id="{ident}-frame"><path d="{frame}"/></clipPath><pattern id="{ident}-hatch" width="7" '
            'height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0V7" '
            'stroke="currentColor"/></pattern></defs>',
            *self._axes(),
            f'<g clip-path="url(#{ident}-frame)">',
            *(_filled(f'<path {{}} d="{self._outline(area)}"/>', area.style, ident) for area in chart.areas),
            *(self._rule(mark) for mark in rules),
            *(_stroke(f"line {line.style}", _path(self.px(line.x), self.py(line.y))) for line in chart.lines),
            "</g>",
            *(self._dot(mark) for mark in dots),
            *(self._label(mark) for mark in (*dots, *rules) if mark.label),
            "</svg>",
        )
        return "\n".join(parts)

    def _axes(self) -> list[str]:
        chart, parts = self.chart, []
        for tick in chart.y.ticks():
            y = float(self.py(tick))
            parts.append(_stroke("grid", f"M{self.left:.1f} {y:.2f}H{self.right:.1f}"))
            parts.append(_text(self.left - 6, y + 4.5, chart.y.text(tick), "tick", "end"))
        above, below = self.upper - 12 - (LINE + 2 if chart.top else 0), self.lower + 2 * LINE + 3
        parts.append(_text(0, above, chart.y.label, "name"))
        parts.append(_text((self.left + self.right) / 2, below, chart.x.label, "name", "middle"))
        parts += self._scale(((tick, chart.x.text(tick)) for tick in chart.x.ticks()), self.lower, 1)
        if chart.top:
            parts.append(_text(WIDTH, above, chart.top[0], "name", "end"))
            parts += self._scale(chart.top[1], self.upper, -1)
        return parts

    def _scale(self, ticks: Iterable[tuple[float, str]], y: float, way: int) -> list[str]:
        """A line along x with ticks below (1) or above (-1); a text that would touch an earlier one is left out."""
        parts = [_stroke("axis", f"M{self.left:.1f} {y:.1f}H{self.right:.1f}")]
        taken: list[Box] = []
        for tick, text in ticks:
            x, half = float(self.px(tick)), text_width(text) / 2 + 3
            at = min(max(x, half - 3), WIDTH - half + 3)
            box = (at - half, 0.0, at + half, 1.0)
            if self.left - 0.5 <= x <= self.right + 0.5 and not _hits(box, taken):
                taken.append(box)
                parts.append(_stroke("axis", f"M{x:.2f} {y:.1f}v{4 * way}"))
                parts.append(_text(at, y + (LINE + 1 if way > 0 else -8), text, "tick", "middle"))
        return parts

    def _outline(self, area: Curve) -> str:
        upper = area.y if area.upper is None else area.upper
        x, y = np.concatenate([area.x, area.x[::-1]]), np.concatenate([area.y, upper[::-1]])
        return _path(self.px(x), self.py(y)) + "Z"

    def _rule(self, mark: Mark) -> str:
        x, y = self.at(mark)
        vertical = f"M{x or 0:.2f} {self.upper:.2f}V{self.lower:.2f}"
        return _stroke(f"rule {mark.style}", vertical if y is None else f"M{self.left:.2f} {y:.2f}H{self.right:.2f}")

    def _dot(self, mark: Mark) -> str:
        x, y = self.at(mark)
        return f'<circle class="dot {mark.style}" cx="{x:.2f}" cy="{y:.2f}" r="4.5"/>'

    def _label(self, mark: Mark) -> str:
        """The label where it does least harm among the places around its mark."""
        places = self._places(mark, 1.1 * text_width(mark.label))  # labels are set bold
        best = min(enumerate(places), key=lambda place: self._harm(place[1]) + 0.6 * place[0])[1]
        self.taken.append(best)
        # Anchored on the side of its mark, so that a font narrower than the estimate leaves no gap there.
        x = self.at(mark)[0]
        ends = best[2] <= (self.right if x is None else x)
        return _text(best[2 * ends], best[3] - 4.5, mark.label, f"label {mark.style}", "end" if ends else "start")

    def _places(self, mark: Mark, width: float) -> list[Box]:
        """Boxes that a label may take, the preferred first."""
        x, y = self.at(mark)
        if x is None and y is not None:
            lefts, tops = np.linspace(self.right - 4 - width, self.left + 4, 12), np.array([y - LINE - 1, y + 2])
            corners = [(left, top) for left in lefts.tolist() for top in tops.tolist()]
        else:
            across, gap = x or 0.0, 6 if y is None else 9
            rows = np.arange(self.upper + 3, self.lower - LINE, LINE / 2)
            if y is not None:
                rows = y + LINE * np.array([-0.5, -1.2, 0.2, -1.7, 0.7, -2.4, 1.4, -3.1, 2.1])
            corners = [(left, top) for top in rows.tolist() for left in (across + gap, across - gap - width)]
        return [(left, top, left + width, top + LINE) for left, top in corners]

    def _harm(self, box: Box) -> float:
        outside = max(0.0, self.left + 2 - box[0]) + max(0.0, box[2] - self.right)
        outside += max(0.0, self.upper - box[1]) + max(0.0, box[3] - self.lower)
        x, y = self.ink
        covered = np.count_nonzero((x > box[0] - 2) & (x < box[2] + 2) & (y > box[1]) & (y < box[3]))
        return 40 * outside + 1000 * _hits(box, self.taken) + 1.5 * float(covered)

    def _ink(self) -> tuple[Float, Float]:
        """Points along every curve and rule, a few units apart, and many on every dot."""
        tracks = [(self.px(line.x), self.py(line.y)) for line in self.chart.lines]
        for mark in self.chart.marks:
            x, y = self.at(mark)
            across = [self.left, self.right] if x is None else [x - 4, x + 4] * 20 if y is not None else [x, x]
            up = [self.upper, self.lower] if y is None else [y] * len(across)
            tracks.append((np.array(across), np.array(up)))
        points = [np.empty((2, 0)), *(np.array(_dense(*track)) for track in tracks)]
        x, y = np.concatenate(points, axis=1)
        return x, y


def _dense(x: Float, y: Float) -> tuple[Float, Float]:
    known = np.isfinite(x + y)
    x, y = x[known], y[known]
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    steps = np.arange(0.0, along[-1], 5.0)
    return np.interp(steps, along, x), np.interp(steps, along, y)


def _path(x: Float, y: Float) -> str:
    """A path through the points, broken where one is no number."""
    parts, pen = [], "M"
    for across, up in zip(x.tolist(), y.tolist(), strict=True):
        known = math.isfinite(across + up)
        if known:
            parts.append(f"{pen}{across:.2f} {up:.2f}")
        pen = "L" if known else "M"
    return "".join(parts)


def _hits(box: Box, others: Sequence[Box]) -> bool:
    return any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in others)


def _stroke(style: str, path: str) -> str:
    return f'<path class="{style}" d="{path}" fill="none" stroke="currentColor"/>'


def _filled(shape: str, style: str, ident: str) -> str:
    """A shape in its colour, and once more with strokes if the style says so."""
    drawn = shape.format(f'class="area {style}" fill="currentColor" fill-opacity=".15"')
    return drawn + shape.format(f'fill="url(#{ident}-hatch)"') if "hatched" in style else drawn


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
