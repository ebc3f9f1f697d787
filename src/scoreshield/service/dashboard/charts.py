"""The charts of the dashboard, as elements of a page without style attributes, which its security policy forbids."""

from __future__ import annotations

import re
import threading
from datetime import date, timedelta
from functools import lru_cache
from xml.etree import ElementTree as ET

from scoreshield._formatting import format_number
from scoreshield.report.chart import Axis, Chart
from scoreshield.service.dashboard.facts import DaySpending

#: Matplotlib keeps its settings in one place for all threads.
_DRAWING = threading.Lock()
_DECLARATION = re.compile(r"([a-z-]+): *([^;]+)")


@lru_cache(maxsize=64)
def draw_spending(days: tuple[DaySpending, ...], budget: float, today: date) -> str:
    """Draw the epsilon that is spent over time, as an ``svg`` element."""
    chart = build_spending_chart(days, budget, today)
    with _DRAWING:
        return move_styles_to_attributes(chart.render_svg("spending"))


def build_spending_chart(days: tuple[DaySpending, ...], budget: float, today: date) -> Chart:
    """Show the spent epsilon at the end of each day, below the budget."""
    first = days[0].day if days else today
    last = max([today, *(one.day for one in days)])
    low, high = first.toordinal(), last.toordinal() + 1
    step = max(1, -(-(high - low) // 4))
    ticks = tuple(float(place) for place in range(low, high + 1, step))
    chart = Chart(
        "Epsilon spent over time",
        Axis("day (UTC)", float(low), float(high), format_tick=_write_day, ticks=ticks),
        Axis("spent epsilon", 0.0, 1.12 * budget, format_tick=format_number),
    )
    across, up = [float(low)], [0.0]
    for one in days:
        place = float(one.day.toordinal())
        across += [place, place + 1]
        up += [up[-1], one.spent]
    chart.add_line([*across, float(high)], [*up, up[-1]], "spent", "private")
    chart.add_horizontal(budget, "budget", "ink")
    return chart


def move_styles_to_attributes(svg: str) -> str:
    """Turn each style attribute of an element into presentation attributes, which mean the same."""
    root = ET.fromstring(svg)
    for element in root.iter():
        for name, value in _DECLARATION.findall(element.attrib.pop("style", "")):
            element.set(name, value.strip())
    return ET.tostring(root, encoding="unicode")


def _write_day(place: float) -> str:
    day = date.fromordinal(1) + timedelta(days=int(place) - 1)
    return f"{day.day} {day:%b}"
