"""One look for each method in every figure: colour, marker and line."""

from __future__ import annotations

import zlib
from typing import Any

from scoreshield.report.sheet import AMBER, BLUE, INK, RED, VIOLET

SLATE, TEAL, SKY = "#86909a", "#11866f", "#4fa3d9"
#: Chosen to be far from the others, and from one another, for any colour vision.
PALE, OLIVE, PLUM, FOREST, NAVY, ROYAL = "#7eb2e6", "#737306", "#4c173f", "#044c04", "#2c0899", "#456de6"
_DASH, _DOT, _DASH_DOT, _LONG = (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (4, 1.4, 1.2, 1.4)), (0, (8, 2))


def _style(colour: str, marker: str, line: Any = "-") -> dict[str, Any]:
    return {"color": colour, "marker": marker, "linestyle": line}


#: One look for each method in every figure. What is drawn together differs in colour, and all differ in marker or line.
METHOD_STYLE: dict[str, dict[str, Any]] = {
    "non-private": _style(INK, "", _DASH),
    "noisy": _style(SLATE, "o", _DOT),
    "noisy (paper)": _style(SLATE, "o", _DASH),
    "aap (paper)": _style(AMBER, "s", _DASH),
    "exact, on the paper's noise": _style(BLUE, "o", _DASH),
    "gaussian (paper)": _style(RED, "X", _DASH),
    "gaussian, clamped": _style(PALE, "p", _DASH),
    "staircase, clamped": _style(OLIVE, ">", _LONG),
    "levels": _style(PLUM, "h", _DASH_DOT),
    "screen and refine": _style(FOREST, "<", _DASH),
    "selection": _style(NAVY, "*", _DOT),
    "gaussian index": _style(PLUM, "d", _DASH_DOT),
    "no similarities": _style("#5c636a", "", _DOT),
    "equal similarities": _style(OLIVE, "", _DASH),
    "exact": _style(BLUE, "o"),
    "rank": _style(OLIVE, "^", _DASH_DOT),
    "shrinkage": _style(VIOLET, "D", _LONG),
    "identity": _style(SKY, "v", _DOT),
    "sure": _style(RED, "X", _LONG),
    "gaussian": _style(VIOLET, "o"),
    "laplace": _style(SLATE, "s", _DASH),
    "staircase": _style(AMBER, "^", _DASH_DOT),
    "optimal": _style(BLUE, "D", _LONG),
    "screening": _style(ROYAL, "v", _DOT),
    "index": _style(TEAL, "P"),
    "newton": _style(BLUE, "h"),
    "aap": _style(AMBER, "p", _DASH),
    "dykstra": _style(TEAL, "<", _DOT),
    "sdp": _style(VIOLET, "X", _DASH_DOT),
}


def method_style(method: str) -> dict[str, Any]:
    """Colour, marker and line of a method; an unknown name gets the same ones in every figure."""
    if method in METHOD_STYLE:
        return METHOD_STYLE[method]
    code = zlib.crc32(method.encode())
    colours, markers, lines = (BLUE, RED, AMBER, VIOLET, TEAL, SLATE), "<>hpX*d8", ("-", _DASH, _DOT, _DASH_DOT, _LONG)
    return _style(colours[code % 6], markers[code // 6 % 8], lines[code // 48 % 5])
