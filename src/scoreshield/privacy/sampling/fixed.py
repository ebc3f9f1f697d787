"""Both normals of one pair from 127 bits of X and of Y, in whole numbers, with a proved error.

Double precision leaves some tens of pairs in a million undecided. Interval arithmetic decides every pair, but slowly.
This module comes between the two: it computes the formula of `scoreshield.privacy.sampling.gaussian` in fixed point,
with 120 bits after the binary point, and knows its error. Python's whole numbers have no rounding of their own, so that
each operation here is off by less than one unit of 2^-120. docs/noise.md has the proof.
"""

from __future__ import annotations

import math
from typing import Any

from scoreshield.privacy.sampling import intervals

#: How many bits of X and Y are known: an integer x stands for all X with x <= X 2^127 <= x + 1.
BITS = 127
#: Bits after the binary point.
_POINT = 120
#: The error of a normal is at most 2^-this. docs/noise.md derives 2^-96.8.
ERROR_BITS = 88
#: The bound does not hold for |X| below 2^-24, or a squared radius below 2^-32.
_SMALLEST_X = 1 << (BITS - 24)
_SMALLEST_SQUARE = 1 << (_POINT - 32)
#: Logarithms are taken around 181/256, which is near the square root of one half.
_CENTRE = 181 << (_POINT - 8)
#: The number one in fixed point, and the bound on the error of a normal.
ONE = 1 << _POINT
ERROR = 1 << (_POINT - ERROR_BITS)


def _find_constant(value: Any) -> int:
    """Round the middle of an enclosure to fixed point."""
    return int(value.mid * (1 << _POINT))


with intervals.LOCK:
    intervals.INTERVALS.prec = 256
    _LOG_2 = _find_constant(intervals.INTERVALS.log(intervals.INTERVALS.mpf(2)))
    _LOG_CENTRE = _find_constant(intervals.INTERVALS.log(intervals.INTERVALS.mpf(181) / 256))
    _QUARTER_PI = _find_constant(intervals.INTERVALS.pi / 4)


def compute_normals(x: int, y: int) -> tuple[int, int] | None:
    """Compute both normals of a pair in units of 2^-120, each with an error of at most 2^-ERROR_BITS.

    Returns:
        None where the bound does not hold.
    """
    magnitude = x if x >= 0 else -x - 1
    if magnitude < _SMALLEST_X:
        return None
    square = -2 * _compute_log(magnitude)
    if square < _SMALLEST_SQUARE:
        return None
    radius = math.isqrt(square * ONE)
    if x < 0:
        radius = -radius
    sine = _compute_sine(_QUARTER_PI * (2 * y + 1) >> BITS + 1)
    square = sine * sine >> _POINT
    cosine = math.isqrt((ONE - square) * ONE)
    return (ONE - 2 * square) * radius >> _POINT, (2 * sine * cosine >> _POINT) * radius >> _POINT


def compute_floats(x: int, y: int) -> tuple[float, float] | None:
    """Compute both normals as floats, rounded to the nearest up to 2^-ERROR_BITS; None as for `compute_normals`."""
    normals = compute_normals(x, y)
    return None if normals is None else (math.ldexp(normals[0], -_POINT), math.ldexp(normals[1], -_POINT))


def round_pair(x: int, y: int, scale: float) -> tuple[int, int] | None:
    """Round both normals times the scale to the nearest whole number; None where the error leaves one open."""
    normals = compute_normals(x, y)
    if normals is None:
        return None
    numerator, denominator = scale.as_integer_ratio()
    unit = denominator << _POINT
    slack = numerator * ERROR
    rounded = []
    for normal in normals:
        value = normal * numerator
        nearest = (2 * value + unit) // (2 * unit)
        if 2 * (abs(value - nearest * unit) + slack) >= unit:
            return None
        rounded.append(nearest)
    return rounded[0], rounded[1]


def _compute_log(magnitude: int) -> int:
    """Compute ln((magnitude + 1/2) / 2^127) in fixed point, as for doubles: around one centre, by 2 artanh."""
    length = magnitude.bit_length()
    mantissa = (2 * magnitude + 1) << _POINT >> length + 1  # in [1/2, 1]
    ratio = (mantissa - _CENTRE) * ONE // (mantissa + _CENTRE)
    square = ratio * ratio >> _POINT
    power, total, place = ratio, 0, 1
    while power > 1 or power < -1:
        total += power // place
        power = power * square >> _POINT
        place += 2
    return (length - BITS) * _LOG_2 + _LOG_CENTRE + 2 * total


def _compute_sine(angle: int) -> int:
    """Compute the sine of an angle of at most pi/4 by its series."""
    square = angle * angle >> _POINT
    term, total, place = angle, 0, 1
    while term > 1 or term < -1:
        total += term
        term = -(term * square >> _POINT) // ((place + 1) * (place + 2))
        place += 2
    return total
