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

from scoreshield.privacy.calibration import calibrate
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.report import chart as charts
from scoreshield.report.certificate_page import build_detection_chart
from scoreshield.report.chart import Axis, Chart


def make_chart(log_x: bool = False, log_y: bool = False) -> Chart:
    x = Axis("across", 0.01 if log_x else -1.0, 2.0, log=log_x)
    return Chart("A chart", x, Axis("up", 1e-3 if log_y else 0.0, 1.0, log=log_y))


def parse(drawn: Chart, ident: str = "one") -> ET.Element:
    return ET.fromstring(drawn.render_svg(ident))


def find_class(root: ET.Element, name: str) -> list[ET.Element]:
    """The only child of each group of a class: a path or a text."""
    return [group[0] for group in root.iter("g") if name in group.get("class", "").split()]


def read_points(path: ET.Element) -> np.ndarray:
    return np.array(
        [[float(end) for end in pair.split()] for pair in re.findall(r"[ML] ([-\d.e ]+)", path.get("d", ""))]
    )


def fit_scale(root: ET.Element, axis: Axis, side: int) -> tuple[float, float]:
    """The slope and intercept that take an axis's transformed value to a place, from its own ticks."""
    anchor = "middle" if side == 0 else "end"
    ticks = [item for item in find_class(root, "tick") if anchor in item.get("style", "")]
    places = [read_points(item)[0, side] for item in find_class(root, "mark" if side == 0 else "grid")]
    values = [float((item.text or "").replace("\N{MINUS SIGN}", "-")) for item in ticks]
    assert len(values) == len(places) >= 3
    return tuple(np.polyfit(np.log(values) if axis.log else values, places, 1))


@pytest.mark.parametrize(("log_x", "log_y"), list(itertools.product([False, True], repeat=2)))
def test_curve_position(log_x: bool, log_y: bool) -> None:
    """A curve lies where the ticks say."""
    drawn = make_chart(log_x, log_y)
    x, y = np.array([0.02, 0.2, 0.4, 0.9, 1.0, 1.4, 1.9]), np.array([0.9, 0.1, 0.6, 0.3, 0.7, 0.01, 0.5])
    drawn.add_line(x, y, "curve", "clean")
    root = parse(drawn)
    found = read_points(find_class(root, "line")[0])
    assert len(found) == len(x)
    for side, (axis, data) in enumerate(((drawn.x, x), (drawn.y, y))):
        slope, intercept = fit_scale(root, axis, side)
        np.testing.assert_allclose(found[:, side], slope * (np.log(data) if axis.log else data) + intercept, atol=0.1)
        assert (slope > 0) == (side == 0), "x runs right and y runs up"


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis("", 0.0, 1.0), [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Axis("", -0.5, 0.5), [-0.4, -0.2, 0, 0.2, 0.4]),
        (Axis("", 3.0, 3.3), [3, 3.1, 3.2, 3.3]),
        (Axis("", 1e-3, 1.0, log=True), [1e-3, 1e-2, 1e-1, 1]),
        (Axis("", 0.9, 25.0, log=True), [1, 2, 5, 10, 20]),
        (Axis("", 2.0, 6.0, log=True), [2, 3, 4, 5, 6]),
    ],
)
def test_round_ticks(axis: Axis, ticks: list[float]) -> None:
    """Ticks are round numbers."""
    np.testing.assert_allclose(sorted(axis.find_ticks()), ticks, atol=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_tick_count(low: float, width: float) -> None:
    """Every axis has a few ticks within it."""
    axis = Axis("", low, low + width)
    if axis.high - axis.low < 1e-9 * abs(low):
        return
    ticks = axis.find_ticks()
    assert 2 <= len(ticks) <= 7
    assert all(axis.contains(tick) for tick in ticks)


@given(st.floats(-9, 3), st.floats(0.01, 12))
def test_log_tick_count(start: float, decades: float) -> None:
    """Every logarithmic axis has ticks within it."""
    axis = Axis("", 10**start, 10 ** (start + decades), log=True)
    ticks = axis.find_ticks()
    assert 2 <= len(ticks) <= 10 or decades >= 0.7
    assert 1 <= len(ticks) <= 12
    assert all(axis.low * (1 - 1e-6) <= tick <= axis.high * (1 + 1e-6) for tick in ticks)


def test_missing_numbers() -> None:
    """What is not a number breaks the curve and nothing else."""
    drawn = make_chart(log_y=True)
    drawn.add_line([-1, 0, 0.5, 1, 2], [0.5, 0.2, math.nan, 0.1, 0.0], "curve", "clean")
    drawn.add_line([0, 1], [math.nan, math.nan], "nothing", "clean")
    drawn.add_vertical(math.nan, "no threshold", "private")
    drawn.add_horizontal(math.inf, "no rate", "private")
    drawn.add_point(5.0, 0.5, "off the axis", "private")
    text = drawn.render_svg("one")
    root = ET.fromstring(text)
    (path,) = find_class(root, "line")
    assert path.get("d", "").count("M") == 2
    assert not re.search("nan|inf", text)
    floor = read_points(find_class(root, "axis")[0])[0, 1]
    assert read_points(path)[-1, 1] > floor, "a rate of zero falls through the floor of a logarithmic axis"
    assert not {"no threshold", "no rate", "off the axis"} & {item.text for item in root.iter("text")}
    assert "nothing" not in {item.label for item in drawn.legend}
    (frame,) = [item for item in root.iter("clipPath") if path.get("clip-path") == f"url(#{item.get('id')})"]
    assert float(frame[0].get("y", 0)) + float(frame[0].get("height", 0)) == pytest.approx(floor)


def test_region() -> None:
    """A region reaches as far as the axis."""
    drawn = make_chart()
    drawn.add_band(1.0, math.inf, "out of reach", "aux", hatched=True)
    drawn.add_band(math.inf, math.inf, "never", "aux")
    (area,) = find_class(parse(drawn), "area")
    corners = read_points(area)
    drawn.add_line([1.0, 2.0], [0.0, 1.0], "", "ink")
    diagonal = read_points(find_class(parse(drawn), "line")[0])
    np.testing.assert_allclose([corners.min(0), corners.max(0)], [diagonal.min(0), diagonal.max(0)], atol=0.02)
    root = parse(drawn)
    (hatch,) = find_class(root, "hatch")
    (pattern,) = root.iter("pattern")
    assert f"url(#{pattern.get('id')})" in hatch.get("style", "")
    assert [item.label for item in drawn.legend] == ["out of reach"]


def find_boxes(root: ET.Element) -> list[tuple[str, float, float, float]]:
    found = []
    for item in find_class(root, "label"):
        width = 1.1 * charts.estimate_text_width(item.text or "")
        left = float(item.get("x", 0)) - (width if "end" in item.get("style", "") else 0)
        found.append((item.text or "", left, left + width, float(item.get("y", 0))))
    return found


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.1, 0.4])
def test_label_places(gap: float) -> None:
    """Labels keep apart and inside."""
    drawn = make_chart(log_y=True)
    drawn.add_line([-1, 2], [1.0, 1e-3], "private", "private")
    for place in range(3):
        drawn.add_vertical(0.3 + gap * place, f"threshold {place}", "clean")
        drawn.add_point(0.3 + gap * place, 0.1, f"point {place}", "private")
    drawn.add_horizontal(0.1, "target 10 %", "aux")
    found = find_boxes(parse(drawn))
    assert len(found) == 7
    for one, other in itertools.combinations(found, 2):
        assert one[1] >= other[2] - 0.1 or other[1] >= one[2] - 0.1 or abs(one[3] - other[3]) >= charts.LINE - 0.1, (
            one,
            other,
        )
    assert all(left >= 0 and right <= charts.WIDTH and 0 < base < charts.HEIGHT for _, left, right, base in found)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 3.0])
def test_label_in_a_corner(epsilon: float) -> None:
    """The label of a dot in the corner of a certificate's chart covers neither of the two curves that meet there."""
    drawn = build_detection_chart(GaussianProfile(2.0 / calibrate(epsilon, 1e-6, 2.0)))
    root = parse(drawn)
    (label,) = find_class(root, "label")
    left, bottom = float(label.get("x", "nan")), float(label.get("y", "nan"))
    assert "start" in label.get("style", "")
    right, top = left + charts.estimate_text_width(label.text or ""), bottom - 0.7 * charts.LINE
    for path in find_class(root, "line"):
        x, y = charts._sample_track(*read_points(path).T)
        assert not np.any((x > left) & (x < right) & (y > top) & (y < bottom))


def test_crowded_ticks() -> None:
    """A tick text that would touch an earlier one is left out."""
    drawn = make_chart()
    drawn.set_top_axis("other", [(0.0, "1,000"), (0.01, "2,000"), (1.0, "10")])
    texts = [item.text for item in find_class(parse(drawn), "tick")]
    assert "1,000" in texts
    assert "2,000" not in texts
    assert "10" in texts


def test_description() -> None:
    """A chart has a title and a description for readers who do not see it."""
    drawn = make_chart()
    drawn.add_line([0, 1], [0, 1], "private", "private")
    drawn.add_vertical(0.5, "threshold 0.5", "private")
    root = parse(drawn)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext("title") == "A chart"
    about = root.find("desc")
    assert about is not None
    assert root.get("aria-describedby") == about.get("id")
    assert "across, −1 to 2" in (about.text or "")
    assert "private" in (about.text or "")
    assert "threshold 0.5" in (about.text or "")


def test_hostile_text() -> None:
    """Hostile text stays text, in Matplotlib's own notation too."""
    evil = '<script>alert("x")</script>&$\\frac{1}{0$ $x$'
    drawn = Chart(evil, Axis(evil, 0, 1), Axis(evil, 0, 1))
    drawn.add_line([0, 1], [0, 1], evil, "private")
    drawn.add_vertical(0.5, evil, "private")
    drawn.set_top_axis(evil, [(0.5, evil)])
    root = parse(drawn)
    assert not list(root.iter("script"))
    assert [item.text for item in root.iter("text")].count(evil) == 5


def test_ids() -> None:
    """Every id begins with the chart's own, and every reference finds one."""
    drawn = make_chart()
    drawn.add_band(0.0, 1.0, "band", "aux", hatched=True)
    texts = [drawn.render_svg(name) for name in ("one", "two")]
    ids = [{item.get("id") for item in ET.fromstring(text).iter()} - {None} for text in texts]
    assert len(ids[0]) == 3
    assert not ids[0] & ids[1]
    assert set(re.findall(r"url\(#([^)]*)\)", texts[0])) <= ids[0]


def test_colours() -> None:
    """Every colour is a variable of the style sheet, so that a chart follows light, dark and print."""
    drawn = make_chart()
    for role in ("clean", "private", "aux", "ink"):
        drawn.add_line([0, 1], [0, 1], role, role)
        drawn.add_area([0, 1], 0, 1, role, role, hatched=True)
        drawn.add_point(0.5, 0.5, role, role, hollow=role == "private")
    text = drawn.render_svg("one")
    assert not re.search(r"#[0-9a-f]{6}|rgb|black|white", text)
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(charts.read_palette())
    assert {"clean", "private", "aux", "ink", "surface", "rule"} <= set(re.findall(r"var\(--([\w-]+)\)", text))


def test_repeatable() -> None:
    """The same chart is the same text, without time or machine in it."""
    drawn = make_chart()
    drawn.add_band(0.0, 1.0, "band", "aux", hatched=True)
    text = drawn.render_svg("one")
    assert text == drawn.render_svg("one")
    assert not re.search("http|matplotlib|metadata|<style", text)
