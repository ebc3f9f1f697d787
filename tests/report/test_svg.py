"""Charts put data where the axes say, keep labels apart, and stay well-formed whatever they are given."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.report import svg


def chart(log_x: bool = False, log_y: bool = False) -> svg.Chart:
    x = svg.Axis("across", 0.01 if log_x else -1.0, 2.0, log=log_x)
    return svg.Chart("A chart", x, svg.Axis("up", 1e-3 if log_y else 0.0, 1.0, log=log_y))


def parsed(drawn: svg.Chart, ident: str = "one") -> ET.Element:
    return ET.fromstring(drawn.render(ident))


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [item for item in root.iter() if name in item.get("class", "").split()]


def points(path: ET.Element) -> np.ndarray:
    return np.array([[float(end) for end in pair.split()] for pair in re.split("[ML]", path.get("d", ""))[1:]])


def scale(root: ET.Element, axis: svg.Axis, side: int) -> tuple[float, float]:
    """The slope and intercept that take an axis's transformed value to a place, from its own ticks."""
    anchor = "middle" if side == 0 else "end"
    ticks = [item for item in of_class(root, "tick") if item.get("text-anchor") == anchor]
    marks = [item for item in of_class(root, "axis" if side == 0 else "grid") if ("v4" in item.get("d", "")) != side]
    places = [[float(v) for v in re.findall(r"[\d.]+", item.get("d", ""))][side] for item in marks]
    values = [float(item.text.replace("\N{MINUS SIGN}", "-")) for item in ticks]
    assert len(values) == len(places) >= 3
    return tuple(np.polyfit(np.log(values) if axis.log else values, places, 1))


@pytest.mark.parametrize(("log_x", "log_y"), list(itertools.product([False, True], repeat=2)))
def test_a_curve_lies_where_the_ticks_say(log_x: bool, log_y: bool) -> None:
    drawn = chart(log_x, log_y)
    x = np.linspace(0.02, 1.9, 7)
    y = np.linspace(0.9, 0.01, 7)
    drawn.line(x, y, "curve", "clean")
    root = parsed(drawn)
    found = points(of_class(root, "line")[0])
    for side, (axis, data) in enumerate(((drawn.x, x), (drawn.y, y))):
        slope, intercept = scale(root, axis, side)
        np.testing.assert_allclose(found[:, side], slope * (np.log(data) if axis.log else data) + intercept, atol=0.1)
        assert (slope > 0) == (side == 0), "x runs right and y runs up"


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (svg.Axis("", 0.0, 1.0), [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (svg.Axis("", -0.5, 0.5), [-0.4, -0.2, 0, 0.2, 0.4]),
        (svg.Axis("", 3.0, 3.3), [3, 3.1, 3.2, 3.3]),
        (svg.Axis("", 1e-3, 1.0, log=True), [1e-3, 1e-2, 1e-1, 1]),
        (svg.Axis("", 0.9, 25.0, log=True), [1, 2, 5, 10, 20]),
        (svg.Axis("", 2.0, 6.0, log=True), [2, 3, 4, 5, 6]),
    ],
)
def test_ticks_are_round(axis: svg.Axis, ticks: list[float]) -> None:
    np.testing.assert_allclose(sorted(axis.ticks()), ticks, atol=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_every_axis_has_a_few_ticks_within_it(low: float, width: float) -> None:
    axis = svg.Axis("", low, low + width)
    if axis.high - axis.low < 1e-9 * abs(low):
        return
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 7
    assert all(-1e-6 <= float(axis.fraction(tick)) <= 1 + 1e-6 for tick in ticks)


@given(st.floats(-9, 3), st.floats(0.01, 12))
def test_every_logarithmic_axis_has_ticks_within_it(start: float, decades: float) -> None:
    axis = svg.Axis("", 10**start, 10 ** (start + decades), log=True)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 10 or decades >= 0.7
    assert 1 <= len(ticks) <= 12
    assert all(axis.low * (1 - 1e-6) <= tick <= axis.high * (1 + 1e-6) for tick in ticks)


def test_what_is_no_number_breaks_the_curve_and_nothing_else() -> None:
    drawn = chart(log_y=True)
    drawn.line([-1, 0, 0.5, 1, 2], [0.5, 0.2, math.nan, 0.1, 0.0], "curve", "clean")
    drawn.line([0, 1], [math.nan, math.nan], "nothing", "clean")
    drawn.vertical(math.nan, "no threshold", "private")
    drawn.horizontal(math.inf, "no rate", "private")
    drawn.point(5.0, 0.5, "off the axis", "private")
    text = drawn.render("one")
    root = ET.fromstring(text)
    (path,) = of_class(root, "line")
    assert path.get("d", "").count("M") == 2
    assert not re.search("nan|inf", text)
    assert points(path)[-1, 1] > svg.HEIGHT, "a rate of zero falls through the floor of a logarithmic axis"
    assert not {"no threshold", "no rate", "off the axis"} & {item.text for item in root.iter("text")}
    assert "nothing" not in drawn.legend("one")
    clipped = [item for item in root.iter("g") if item.get("clip-path") == "url(#one-frame)"]
    assert path in list(clipped[0])


def test_regions_reach_as_far_as_the_axis() -> None:
    drawn = chart()
    drawn.band(1.0, math.inf, "out of reach", "aux hatched")
    drawn.band(math.inf, math.inf, "never", "aux")
    (area,) = of_class(parsed(drawn), "area")
    corners = np.array([[float(v) for v in pair.split()] for pair in re.findall(r"[ML]([\d. ]+)", area.get("d", ""))])
    drawn.line([1.0, 2.0], [0.0, 1.0], "", "ink")
    diagonal = points(of_class(parsed(drawn), "line")[0])
    np.testing.assert_allclose([corners.min(0), corners.max(0)], [diagonal.min(0), diagonal.max(0)], atol=0.02)
    assert "one-hatch" in drawn.render("one")
    assert "one-hatch" in drawn.legend("one")


def boxes(root: ET.Element) -> list[tuple[str, float, float, float]]:
    found = []
    for item in of_class(root, "label"):
        width = 1.1 * svg.text_width(item.text)
        left = float(item.get("x", 0)) - (width if item.get("text-anchor") == "end" else 0)
        found.append((item.text, left, left + width, float(item.get("y", 0))))
    return found


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.1, 0.4])
def test_labels_keep_apart_and_inside(gap: float) -> None:
    drawn = chart(log_y=True)
    drawn.line([-1, 2], [1.0, 1e-3], "private", "private")
    for place in range(3):
        drawn.vertical(0.3 + gap * place, f"threshold {place}", "clean")
        drawn.point(0.3 + gap * place, 0.1, f"point {place}", "private")
    drawn.horizontal(0.1, "target 10 %", "aux")
    found = boxes(parsed(drawn))
    assert len(found) == 7
    for one, other in itertools.combinations(found, 2):
        assert one[1] >= other[2] - 0.1 or other[1] >= one[2] - 0.1 or abs(one[3] - other[3]) >= svg.LINE - 0.1, (
            one,
            other,
        )
    assert all(left >= 0 and right <= svg.WIDTH and 0 < base < svg.HEIGHT for _, left, right, base in found)


def test_tick_texts_that_would_touch_are_left_out() -> None:
    drawn = chart()
    drawn.top_axis("other", [(0.0, "1,000"), (0.01, "2,000"), (1.0, "10")])
    texts = [item.text for item in of_class(parsed(drawn), "tick")]
    assert "1,000" in texts
    assert "2,000" not in texts
    assert "10" in texts


def test_it_speaks_to_those_who_do_not_see_it() -> None:
    drawn = chart()
    drawn.line([0, 1], [0, 1], "private", "private")
    drawn.vertical(0.5, "threshold 0.5", "private")
    root = parsed(drawn)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext("title") == "A chart"
    about = root.find("desc")
    assert about is not None
    assert root.get("aria-describedby") == about.get("id")
    assert "across, −1 to 2" in (about.text or "")
    assert "private" in (about.text or "")
    assert "threshold 0.5" in (about.text or "")


def test_hostile_text_stays_text() -> None:
    evil = '<script>alert("x")</script>&'
    drawn = svg.Chart(evil, svg.Axis(evil, 0, 1), svg.Axis(evil, 0, 1))
    drawn.line([0, 1], [0, 1], evil, "private")
    drawn.vertical(0.5, evil, "private")
    drawn.top_axis(evil, [(0.5, evil)])
    root = parsed(drawn)
    assert not list(root.iter("script"))
    assert evil in {item.text for item in root.iter("text")}
    legend = ET.fromstring(drawn.legend("one"))
    assert [text for text in legend.itertext() if text.strip()] == [evil]


def test_ids_are_its_own() -> None:
    drawn = chart()
    ids = [{item.get("id") for item in parsed(drawn, name).iter()} - {None} for name in ("one", "two")]
    assert ids[0]
    assert not ids[0] & ids[1]
