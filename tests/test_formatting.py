"""Numbers are written as people read them, and bounds are rounded to the safe side."""

from __future__ import annotations

import math

import pytest

from scoreshield._formatting import (
    format_advantage,
    format_compact,
    format_measurement,
    format_number,
    format_rate,
    format_rate_pair,
    format_timing,
    typeset_attack_rate,
    typeset_delta,
    typeset_duration,
    typeset_interval,
    typeset_lower_bound,
    typeset_number,
    typeset_percent,
    typeset_power,
    typeset_text,
    typeset_upper_bound,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.3672, "0.3672"),
        (-0.25, "\N{MINUS SIGN}0.25"),
        (12345.6, "12,350"),
        (1_234_567.0, "1,235,000"),
        (2.5e-7, "2.5 × 10⁻⁷"),
        (0.0, "0"),
        (math.nan, "out of reach"),
        (math.inf, "out of reach"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    """A number on a page has a few digits; what is no number is written in words."""
    assert typeset_number(value).replace("\N{NO-BREAK SPACE}", " ") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.9999999, "over 99.9 %"),
        (0.99949, "99.9 %"),
        (0.2393, "23.9 %"),
        (1e-3, "0.1 %"),
        (1e-6, "1 in 1,000,000"),
        (math.nan, "out of reach"),
    ],
)
def test_rates(value: float, shown: str) -> None:
    """A rate on a page is a percentage, and one in so many where it is rare."""
    assert typeset_percent(value).replace("\N{NO-BREAK SPACE}", " ") == shown


def test_columns_align() -> None:
    """Numbers of a column keep their zeros."""
    assert [typeset_number(value, 3, aligned=True) for value in (0.67, 49.0, 366.3, 0.5)] == [
        "0.670",
        "49.0",
        "366",
        "0.500",
    ]
    assert typeset_percent(0.57, aligned=True).startswith("57.0")
    assert typeset_power(1e-6) == "10⁻⁶"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (format_number(0.36721), "0.3672"),
        (format_number(1_176_123), "1,176,000"),
        (format_number(1e-6), "1e-6"),
        (format_rate(1e-3), "0.1 %"),
        (format_rate(1.23e-5), "1.2e-5"),
        (format_rate(math.nan), "unknown"),
        (format_advantage(0.9999), "over 99.9 %"),
        (format_advantage(0.994), "99.4 %"),
        (format_measurement(0.12345), "0.123"),
        (format_measurement(12345.6), "1.23e+04"),
        (format_compact(6.17e-5), "6.2e-05"),
        (format_compact(17.3912), "17.39"),
        (format_compact(1234.5), "1,234"),
        (format_timing(0.012345), "0.0123"),
        (format_timing(1234.5), "1,234"),
        (format_timing(math.nan), "—"),
    ],
)
def test_plain_text(text: str, shown: str) -> None:
    """Sentences and tables of results hold plain numbers."""
    assert text == shown


def test_rate_pair() -> None:
    """Two rates that are compared are written in enough digits that they differ."""
    assert format_rate_pair(0.9, 0.5) == ("90 %", "50 %")
    assert format_rate_pair(0.90001, 0.90002) == ("90.001 %", "90.002 %")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (typeset_interval((-1.0, 0.5)), "[−1, 0.5]"),
        (typeset_delta(1e-6), "δ = 10⁻⁶"),
        (typeset_delta(0.0), "δ = 0"),
        (typeset_duration(3.0), "3 seconds"),
        (typeset_duration(180.0), "3 minutes"),
        (typeset_duration(9000.0), "2.5 hours"),
        (typeset_text("1 % of 2"), "1\N{NO-BREAK SPACE}% of 2"),
        (typeset_attack_rate(1.0), "over 99.9 %"),
    ],
)
def test_typeset_text(text: str, shown: str) -> None:
    """Pages hold typeset numbers, with units that stay on the line of their number."""
    assert text.replace("\N{NO-BREAK SPACE}", " ") == shown.replace("\N{NO-BREAK SPACE}", " ")


def test_bounds() -> None:
    """A lower bound is never rounded up, an upper bound never down."""
    assert typeset_lower_bound(0.98765) == "0.987"
    assert typeset_upper_bound(1.23410) == "1.235"
