"""Numbers as people read them: for pages, not for machines."""

from __future__ import annotations

import math
from html import escape

from scoreshield.report.svg import plain

GAP = "\N{NO-BREAK SPACE}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 4, *, aligned: bool = False) -> str:
    """A number in a few digits; what is none, in words. ``aligned`` keeps zeros at the end, for columns."""
    if not math.isfinite(value):
        return "out of reach"
    if value and not 1e-4 <= abs(value) < 1e7:
        return power(value)
    if aligned and abs(value) < 10 ** (digits - 1):
        return f"{value:#.{digits}g}".replace("-", "\N{MINUS SIGN}")
    return plain(float(f"{value:.{digits}g}"))


def power(value: float) -> str:
    """A very small or large number: 10⁻⁶, 2.5 × 10⁻⁷."""
    digits, exponent = f"{value:.2e}".split("e")
    ten = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return ten if float(digits) == 1 else f"{plain(float(digits))}{GAP}×{GAP}{ten}"


def percent(value: float, *, aligned: bool = False) -> str:
    """A rate in percent, one in so many where it is rare; never rounded to certainty."""
    if math.isnan(value):
        return "out of reach"
    if 0.9995 <= value < 1:
        return f"over 99.9{GAP}%"
    if 0 < value < 1e-4:
        return f"1 in {number(1 / value, 3)}"
    return f"{number(100 * value, 3, aligned=aligned and value > 0)}{GAP}%"


def percent_tick(value: float) -> str:
    return f"{number(100 * value)}{GAP}%"


def attack_rate(value: float) -> str:
    """A rate of the best attack: certainty is never reached, though a double may not tell it from 1."""
    return percent(min(value, 1 - 1e-12))


def prose(text: str) -> str:
    """Escaped text, whose percent signs stay with their numbers."""
    return escape(text).replace(" %", f"{GAP}%")


def interval(ends: tuple[float, float]) -> str:
    return f"[{plain(ends[0])},{GAP}{plain(ends[1])}]"


def delta_text(value: float) -> str:
    return f"δ{GAP}={GAP}{power(value)}"


# ---- The frame.
