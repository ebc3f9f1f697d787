"""Numbers in sentences: for the answers and warnings of a plan."""

from __future__ import annotations

import math


def number_text(value: float) -> str:
    """A number in a sentence: 0.3672, 1,176,000, 1e-6."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else (f"{value:.4g}", "")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return f"{value:.4g}" if abs(value) < 10_000 else f"{float(f'{value:.4g}'):,.0f}"


def rate_text(value: float) -> str:
    """A rate as a person writes it: 1 %, 0.1 %, 96.9 %, 1e-05."""
    if math.isnan(value):
        return "unknown"
    return f"{100 * value:.3g} %" if value == 0 or value >= 1e-4 else number_text(float(f"{value:.2g}"))


def advantage_text(value: float) -> str:
    return "over 99.9 %" if value > 0.999 else rate_text(value)


def rates_text(first: float, second: float) -> tuple[str, str]:
    """Two rates that are compared, in as many digits as it takes to tell them apart."""
    for digits in (3, 5, 8, 12):
        pair = f"{100 * first:.{digits}g} %", f"{100 * second:.{digits}g} %"
        if pair[0] != pair[1]:
            break
    return pair if min(first, second) >= 1e-4 else (rate_text(first), rate_text(second))
