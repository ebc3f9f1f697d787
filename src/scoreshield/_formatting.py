"""Write numbers for people, and calls as their reader makes them.

A function named ``format_*`` writes plain text, for sentences, terminals and tables of results. A function named
``typeset_*`` writes text for pages and charts, with superscripts, minus signs and no-break spaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import ROUND_CEILING, Context

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_IS_COMMAND: ContextVar[bool] = ContextVar("_IS_COMMAND", default=False)


# ---- Calls.


def choose_words(python: str, command: str) -> str:
    """Choose how a message names a call: as Python or, while a command runs, as the user of that command writes it."""
    return command if _IS_COMMAND.get() else python


@contextmanager
def speak_commands() -> Iterator[None]:
    """Name calls as commands and options within the block; see `choose_words`."""
    token = _IS_COMMAND.set(True)
    try:
        yield
    finally:
        _IS_COMMAND.reset(token)


# ---- Plain text.


def format_number(value: float) -> str:
    """Write a number in four digits: 0.3672, 1,176,000, 1e-6."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else (f"{value:.4g}", "")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return f"{value:.4g}" if abs(value) < 10_000 else f"{float(f'{value:.4g}'):,.0f}"


def format_bound(value: float) -> str:
    """Write an epsilon, a delta or another bound in six digits, never below its value: 2, 1e-06, 4.42353."""
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(repr(value))):g}"


def format_rate(value: float) -> str:
    """Write a rate in percent, or as a small number: 1 %, 0.1 %, 96.9 %, 1e-5."""
    if math.isnan(value):
        return "unknown"
    return f"{100 * value:.3g} %" if value == 0 or value >= 1e-4 else format_number(float(f"{value:.2g}"))


def format_advantage(value: float) -> str:
    """Write an attack's advantage in percent; a value near one is "over 99.9 %"."""
    return "over 99.9 %" if value > 0.999 else format_rate(value)


def format_rate_pair(first: float, second: float) -> tuple[str, str]:
    """Write two rates that are compared, in enough digits that they differ."""
    for digits in (3, 5, 8, 12):
        pair = f"{100 * first:.{digits}g} %", f"{100 * second:.{digits}g} %"
        if pair[0] != pair[1]:
            break
    return pair if min(first, second) >= 1e-4 else (format_rate(first), format_rate(second))


def format_measurement(value: float) -> str:
    """Write a measured value in three decimals; a value from 1,000 on in three digits."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"


def format_compact(value: float) -> str:
    """Write a computed fact, such as an epsilon or a delta, for a narrow column: 6.2e-05, 17.39, 1,234."""
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def format_timing(value: float) -> str:
    """Write a timed or counted value in three digits, a whole number from 100 on; a missing value is a dash."""
    return "—" if math.isnan(value) else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


# ---- Typeset text.


def typeset_exact(value: float) -> str:
    """Typeset a round number without rounding it: 0.25, −1, 5,000."""
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}") if value else "0"


def typeset_power(value: float) -> str:
    """Typeset a very small or large number as a power of ten: 10⁻⁶, 2.5 × 10⁻⁷."""
    digits, exponent = f"{value:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    if float(digits) == 1:
        return power
    return f"{typeset_exact(float(digits))}{NO_BREAK_SPACE}×{NO_BREAK_SPACE}{power}"


def typeset_number(value: float, digits: int = 4, *, aligned: bool = False) -> str:
    """Typeset a number in a few digits.

    Args:
        value: a number; "out of reach" is written for infinity and NaN.
        digits: how many significant digits are kept.
        aligned: whether zeros at the end are kept, for columns.
    """
    if not math.isfinite(value):
        return "out of reach"
    if value and not 1e-4 <= abs(value) < 1e7:
        return typeset_power(value)
    if aligned and abs(value) < 10 ** (digits - 1):
        return f"{value:#.{digits}g}".replace("-", "\N{MINUS SIGN}")
    return typeset_exact(float(f"{value:.{digits}g}"))


def typeset_percent(value: float, *, aligned: bool = False) -> str:
    """Typeset a rate in percent, or as "1 in n" where it is rare; a rate below one is never rounded to 100 %."""
    if math.isnan(value):
        return "out of reach"
    if 0.9995 <= value < 1:
        return f"over 99.9{NO_BREAK_SPACE}%"
    if 0 < value < 1e-4:
        return f"1 in {typeset_number(1 / value, 3)}"
    return f"{typeset_number(100 * value, 3, aligned=aligned and value > 0)}{NO_BREAK_SPACE}%"


def typeset_percent_tick(value: float) -> str:
    """Typeset a rate at the tick of an axis, in percent."""
    return f"{typeset_number(100 * value)}{NO_BREAK_SPACE}%"


def typeset_attack_rate(value: float) -> str:
    """Typeset a rate of the best attack, which is below one even where the nearest double is 1."""
    return typeset_percent(min(value, 1 - 1e-12))


def typeset_lower_bound(value: float) -> str:
    """Typeset a lower bound in three decimals, rounded down."""
    return typeset_exact(math.floor(value * 1000) / 1000) if value < 1e7 else typeset_number(value)


def typeset_upper_bound(value: float) -> str:
    """Typeset an upper bound in three decimals, rounded up."""
    return typeset_exact(math.ceil(value * 1000) / 1000)


def typeset_interval(ends: tuple[float, float]) -> str:
    """Typeset a closed interval: [−1, 1]."""
    return f"[{typeset_exact(ends[0])},{NO_BREAK_SPACE}{typeset_exact(ends[1])}]"


def typeset_delta(value: float) -> str:
    """Typeset a delta with its name: δ = 10⁻⁶, δ = 0."""
    return f"δ{NO_BREAK_SPACE}={NO_BREAK_SPACE}{typeset_power(value) if value else 0}"


def typeset_duration(seconds: float) -> str:
    """Typeset a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{typeset_number(seconds, 2)} seconds"
    if seconds < 7200:
        return f"{typeset_number(seconds / 60, 2)} minutes"
    return f"{typeset_number(seconds / 3600, 2)} hours"


def typeset_text(text: str) -> str:
    """Keep the percent signs of a text on the line of their numbers."""
    return text.replace(" %", f"{NO_BREAK_SPACE}%")
