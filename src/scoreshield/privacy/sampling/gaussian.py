"""Exact sampling of Gaussian noise on a grid: the real-valued Gaussian, rounded to the nearest integer.

The sampler returns `round(s Z)`, where Z is a true standard normal and s is the scale in grid steps. The proof never
replaces Z by a float: Z is a function of two infinite strings of random bits (Box & Muller 1958),

    X, Y ∼ U[-1, 1),    Z = sgn(X) √(-2 ln |X|)   (cos, sin)(π Y / 2).

The sampler reads the first 64 bits of each. Double precision then gives `s Z` with an error of at most ``s * ERROR``,
for all values of the unread bits. For nearly all values this decides the rounding. For about 30 values in a million it
does not: then the sampler reads more bits, and interval arithmetic decides. Before the decision, the sampler uses only
operations that IEEE 754 rounds correctly (+, -, x, /, square root), with its own series for the logarithm and the sine.
So the error bound is proved, not measured, and holds on every machine. docs/noise.md has the proof.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.sampling import intervals
from scoreshield.privacy.sampling.stream import Stream, Words

Float = NDArray[np.float64]

#: Bound on the error of the fast path's standard normal, in units of one; docs/noise.md derives 470 * 2^-53.
ERROR = 640 * 2.0**-53
#: The bound of the fast path does not hold for |X| or a radius below these; interval arithmetic decides there.
_SMALLEST_X = 2.0**44
_SMALLEST_RADIUS = 2.0**-7
#: Above this scale, interval arithmetic would have to decide too often. Releases have far smaller scales.
LARGEST_SCALE = 2.0**32

_PAIRS = 8192  # a block of this size fits into the second-level cache
_CENTRE = math.sqrt(0.5)  # logarithms are taken around this point; any double near it would do
_LOG_CENTRE = math.log(_CENTRE)
_LOG_2 = math.log(2)
_ATANH = tuple(2 / (2 * i + 1) for i in range(10))
_SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(8))
_TO_HALF_ANGLE = math.pi / 4 * 2.0**-63


def fill_rounded_gaussian(stream: Stream, scale: float, out: Float) -> None:
    """Fill a one-dimensional array with independent draws of round(N(0, scale^2)), as whole floats."""
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be in (0, 2^32], got {scale!r}")
    margin = 0.5 - scale * ERROR
    for start in range(0, len(out), 2 * _PAIRS):
        chunk = out[start : start + 2 * _PAIRS]
        pairs = (len(chunk) + 1) // 2
        words = stream.words(2 * pairs)
        first, second, undecided = _normal_pairs(words[:pairs], words[pairs:])
        first = _round(first, scale, margin, undecided)
        second = _round(second, scale, margin, undecided)
        for pair in np.flatnonzero(undecided):
            first[pair], second[pair] = _decide(stream, int(words[pair]), int(words[pairs + pair]), scale)
        chunk[:pairs] = first
        chunk[pairs:] = second[: len(chunk) - pairs]


def _normal_pairs(x: Words, y: Words) -> tuple[Float, Float, NDArray[np.bool_]]:
    """Compute both normals of each pair with errors up to ERROR, and a mask of pairs for which that bound fails."""
    value, logarithm = compute_log_magnitude(x)
    logarithm *= -2
    np.maximum(logarithm, 0, out=logarithm)
    radius = np.sqrt(logarithm)
    outside = radius < _SMALLEST_RADIUS
    outside |= np.abs(value) < _SMALLEST_X
    np.copysign(radius, value, out=radius)

    # sin and cos of pi Y / 2 from the sine of half that angle, which is at most pi/4.
    sine = _odd_series(_SINE, y.astype(np.float64) * _TO_HALF_ANGLE)
    square = sine * sine
    cosine = 1 - 2 * square
    np.subtract(1, square, out=square)
    np.sqrt(square, out=square)
    sine *= square
    sine *= 2

    cosine *= radius
    sine *= radius
    return cosine, sine, outside


def compute_log_magnitude(x: Words) -> tuple[Float, Float]:
    """Convert x to double, and compute ln(|x| / 2^63).

    The error is at most 571 u where |x| >= 2^44, with u = 2^-53 (docs/noise.md). With |x| = m 2^e the logarithm is
    (e - 63) ln 2 + ln c + 2 atanh((m - c) / (m + c)).
    """
    value = x.astype(np.float64)
    mantissa, exponent = np.frexp(value)
    np.abs(mantissa, out=mantissa)
    ratio = mantissa - _CENTRE
    mantissa += _CENTRE
    ratio /= mantissa
    logarithm = _odd_series(_ATANH, ratio)
    logarithm += (exponent - 63) * _LOG_2 + _LOG_CENTRE
    return value, logarithm


def _odd_series(coefficients: tuple[float, ...], x: Float) -> Float:
    """Compute x (c0 + c1 x^2 + c2 x^4 + ...) by Horner's rule."""
    square = x * x
    total = square * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total += coefficient
        total *= square
    total += coefficients[0]
    total *= x
    return total


def _round(normal: Float, scale: float, margin: float, undecided: NDArray[np.bool_]) -> Float:
    """Round to the nearest whole number of steps. Mark in ``undecided`` the values that are too near to a half."""
    normal *= scale
    nearest = np.rint(normal)
    normal -= nearest
    undecided |= np.abs(normal) >= margin
    return nearest


def _decide(stream: Stream, x: int, y: int, scale: float) -> tuple[int, int]:
    """Round one pair in interval arithmetic; read further bits until both roundings are decided."""
    exact_scale = Fraction(scale)
    bits = 63  # x <= X 2^bits <= x + 1, and the same for Y
    while True:
        more = [int(word) & (2**64 - 1) for word in stream.words(2)]
        x, y, bits = (x << 64) + more[0], (y << 64) + more[1], bits + 64
        magnitude = x if x >= 0 else -x - 1
        if magnitude == 0:
            continue  # the logarithm has no lower bound yet
        with intervals.LOCK:
            iv = intervals.INTERVALS
            iv.prec = bits + 64
            uniform = iv.mpf([magnitude, magnitude + 1]) / (1 << bits)
            angle = iv.pi * iv.mpf([y, y + 1]) / (2 << bits)
            radius = iv.sqrt(-2 * iv.log(uniform)) * exact_scale.numerator / exact_scale.denominator
            if x < 0:
                radius = -radius
            first, second = _nearest(radius * iv.cos(angle)), _nearest(radius * iv.sin(angle))
        if first is not None and second is not None:
            return first, second


def _nearest(value: Any) -> int | None:
    """Find the integer that every point of the interval rounds to; None if there is none."""
    iv = intervals.INTERVALS
    half = iv.mpf(1) / 2
    middle = int(value.mid)
    for candidate in (middle - 1, middle, middle + 1):
        if iv.is_below(candidate - half, value) and iv.is_below(value, candidate + half):
            return candidate
    return None
