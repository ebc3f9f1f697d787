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
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.sampling import fixed, intervals
from scoreshield.privacy.sampling.stream import BlockStream, SecureStream, Stream, Words

Float = NDArray[np.float64]

#: Bound on the error of the fast path's standard normal, in units of one; docs/noise.md derives 470 * 2^-53.
ERROR = 640 * 2.0**-53
#: The bound of the fast path does not hold for |X| or a radius below these; interval arithmetic decides there.
_SMALLEST_X = 2.0**44
_SMALLEST_EXPONENT = 45  # of frexp, for |X| from the smallest on
_SMALLEST_RADIUS = 2.0**-7
#: Above this scale, interval arithmetic would have to decide too often. Releases have far smaller scales.
LARGEST_SCALE = 2.0**32

_PAIRS = 8192  # a chunk of this size fits into the second-level cache
# Threads take turns at Python's lock, once per operation on a chunk. So the chunk of a block is the whole block.
_BLOCK_PAIRS = 1 << 17
_CENTRE = math.sqrt(0.5)  # logarithms are taken around this point; any double near it would do
_LOG_CENTRE = math.log(_CENTRE)
_LOG_2 = math.log(2)
_ATANH = tuple(2 / (2 * i + 1) for i in range(10))
_SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(8))
_SINE_SHARES = np.array([[0.5], [0.25]])  # of (2 sin)^2: 2 sin^2 and sin^2
_MASK = 2**64 - 1
_TO_HALF_ANGLE = math.pi / 4 * 2.0**-63


class Scratch:
    """Room for the intermediate values of up to ``pairs`` pairs, so that a chunk takes no new memory."""

    def __init__(self, pairs: int) -> None:
        # Two rows each: of the series of the logarithm and of the sine, and then of the two normals of a pair.
        self.arguments, self.series, self.normals, self.values = np.empty((4, 2, pairs))
        self.exponents = np.empty(pairs, dtype=np.intc)
        # Of pairs: undecided, outside of the bound, and two rows for values near a half.
        self.marks = np.empty((4, pairs), dtype=np.bool_)
        self.words = np.empty(2 * pairs + 2, dtype=np.int64)

    @classmethod
    def take(cls, stream: Stream, pairs: int) -> Self:
        """Take room for this number of pairs out of the rooms of the release, or make it where there is none.

        While it is taken, another thread cannot get it, nor a release that a signal handler makes.
        """
        try:
            scratch = stream.rooms.pop() if isinstance(stream, SecureStream) else cls(pairs)
        except IndexError:
            return cls(pairs)
        return scratch if isinstance(scratch, cls) and len(scratch.exponents) >= pairs else cls(pairs)

    def put_back(self, stream: Stream) -> None:
        """Let later draws of the release take this room."""
        if isinstance(stream, SecureStream):
            stream.rooms.append(self)

    def read_words(self, stream: Stream, count: int) -> Words:
        """Read the next words of a stream, in this room if the stream can do so."""
        return stream.words(count, self.words) if isinstance(stream, SecureStream) else stream.words(count)


def fill_rounded_gaussian(stream: Stream, scale: float, out: Float) -> None:
    """Fill a one-dimensional array with independent draws of round(N(0, scale^2)), as whole floats."""
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be in (0, 2^32], got {scale!r}")
    margin = 0.5 - scale * ERROR
    most = _BLOCK_PAIRS if isinstance(stream, BlockStream) else _PAIRS
    scratch = Scratch.take(stream, min(most, (len(out) + 1) // 2))
    for start in range(0, len(out), 2 * most):
        _fill_chunk(stream, scale, margin, out[start : start + 2 * most], scratch)
    scratch.put_back(stream)


def _fill_chunk(stream: Stream, scale: float, margin: float, chunk: Float, scratch: Scratch) -> None:
    pairs = (len(chunk) + 1) // 2
    words = scratch.read_words(stream, 2 * pairs)
    _normal_pairs(words[:pairs], words[pairs:], scratch)
    is_even = len(chunk) == 2 * pairs and chunk.flags.c_contiguous
    nearest = chunk.reshape(2, pairs) if is_even else scratch.arguments[:, :pairs]
    marks = scratch.marks[:, :pairs]
    _round(scratch.normals[:, :pairs], scale, margin, nearest, marks[2:])
    places = _find_marks(np.logical_or.reduce(marks[1:], out=marks[0]))
    # One call reads what all of them need next: each call lets other threads take Python's lock.
    following = stream.words(2 * len(places)).tolist() if places else []
    for number, pair in enumerate(places):
        more = following[2 * number : 2 * number + 2]
        nearest[:, pair] = _decide(stream, int(words[pair]), int(words[pairs + pair]), scale, more)
    if not is_even:
        chunk[:pairs] = nearest[0]
        chunk[pairs:] = nearest[1, : len(chunk) - pairs]


def _find_marks(marks: NDArray[np.bool_]) -> list[int]:
    """List the places of a few marks. NumPy's search takes several times as long."""
    places, found = [], marks.tobytes()
    place = found.find(1)
    while place >= 0:
        places.append(place)
        place = found.find(1, place + 1)
    return places


def _normal_pairs(
    x: Words, y: Words, scratch: Scratch | None = None, out: Float | None = None
) -> tuple[Float, Float, NDArray[np.bool_]]:
    """Compute both normals of each pair with errors up to ERROR, and a mask of pairs for which that bound fails.

    The normals are written to ``out``, two arrays of any shape; by default they are in ``scratch.normals``. Both series
    are computed together: threads wait for Python's lock once per operation, so that few long ones are best.
    """
    room, pairs = Scratch(len(x)) if scratch is None else scratch, len(x)
    arguments, series, normals = room.arguments[:, :pairs], room.series[:, :pairs], room.normals[:, :pairs]
    signed, other = room.values[:, :pairs]
    outside, mark = room.marks[1:3, :pairs]
    exponent = room.exponents[:pairs]

    _split(x, signed, exponent, arguments[0], other)
    np.multiply(y, _TO_HALF_ANGLE, out=arguments[1])
    square = np.multiply(arguments, arguments, out=normals)
    longer, shorter, both = _scale_coefficients(_ATANH, _SINE)
    _sum_series(longer, square[0], series[0])
    series[1] = shorter
    for coefficients in both:
        series *= square
        series += coefficients
    series *= arguments

    radius, sine = series  # minus twice the logarithm, and twice the sine
    np.less(exponent, _SMALLEST_EXPONENT, out=outside)
    _add_exponent(exponent, radius, other, -2.0)
    np.abs(radius, out=radius)  # only a radius that is outside of the bound can have been negative
    np.sqrt(radius, out=radius)
    np.less(radius, _SMALLEST_RADIUS, out=mark)
    outside |= mark
    np.copysign(radius, signed, out=radius)

    # sin and cos of pi Y / 2 from twice the sine of half that angle, which is at most pi/4.
    np.multiply(sine, sine, out=other)
    np.multiply(other, _SINE_SHARES, out=normals)
    np.subtract(1, normals, out=normals)
    np.sqrt(normals[1], out=normals[1])
    normals[1] *= sine

    result = normals if out is None else out
    np.multiply(normals.reshape(result.shape), radius.reshape(result.shape[1:]), out=result)
    return result[0], result[1], outside


def compute_log_magnitude(x: Words) -> tuple[Float, Float]:
    """Convert x to double, and compute ln(|x| / 2^63).

    The error is at most 571 u where |x| >= 2^44, with u = 2^-53 (docs/noise.md). With |x| = m 2^e the logarithm is
    (e - 63) ln 2 + ln c + 2 atanh((m - c) / (m + c)).
    """
    signed, ratio, square, logarithm = (np.empty(len(x)) for _ in range(4))
    exponent = np.empty(len(x), dtype=np.intc)
    _split(x, signed, exponent, ratio, square)
    np.multiply(ratio, ratio, out=square)
    _sum_series(_ATANH, square, logarithm)
    logarithm *= ratio
    _add_exponent(exponent, logarithm, square)
    signed[:] = x
    return signed, logarithm


def _split(x: Words, signed: Float, exponent: NDArray[np.intc], ratio: Float, room: Float) -> None:
    """Convert x to double, and split it: x = signed 2^exponent, ratio = (|signed| - c) / (|signed| + c)."""
    np.frexp(x, out=(signed, exponent))
    np.abs(signed, out=room)
    np.subtract(room, _CENTRE, out=ratio)
    room += _CENTRE
    ratio /= room


def _add_exponent(exponent: NDArray[np.intc], logarithm: Float, room: Float, factor: float = 1.0) -> None:
    """Add (exponent - 63) ln 2 + ln c, times plus or minus a power of two, to a logarithm times the same."""
    exponent -= 63
    np.multiply(exponent, factor * _LOG_2, out=room)
    room += factor * _LOG_CENTRE
    logarithm += room


def _sum_series(coefficients: tuple[float, ...], square: Float, total: Float) -> None:
    """Compute c0 + c1 q + c2 q^2 + ... by Horner's rule, for the square q of the argument."""
    np.multiply(square, coefficients[-1], out=total)
    for coefficient in coefficients[-2:0:-1]:
        total += coefficient
        total *= square
    total += coefficients[0]


@lru_cache(maxsize=4)
def _scale_coefficients(
    logarithm: tuple[float, ...], sine: tuple[float, ...]
) -> tuple[tuple[float, ...], float, list[Float]]:
    """Return the coefficients of minus twice the logarithm, and of twice the sine. No other rounding follows from it.

    Returns:
        Of the logarithm those that the sine has not, and the one after them; the last of the sine; and what comes
        before, one column for both, from the last.
    """
    first, second = [-2 * value for value in logarithm], [2 * value for value in sine]
    last = len(second) - 1
    columns = [np.array([[first[place]], [second[place]]]) for place in range(last - 1, -1, -1)]
    return tuple(first[last:]), second[last], columns


def _round(normals: Float, scale: float, margin: float, nearest: Float, near: NDArray[np.bool_]) -> None:
    """Round to the nearest whole number of steps. Mark the values that are too near to a half.

    Args:
        normals: They are overwritten.
        scale: In steps.
        margin: The largest distance from the nearest number that is decided.
        nearest: Where the whole numbers are written.
        near: Where the marks are written.
    """
    normals *= scale
    np.rint(normals, out=nearest)
    normals -= nearest
    np.abs(normals, out=normals)
    np.greater_equal(normals, margin, out=near)


def _decide(stream: Stream, x: int, y: int, scale: float, more: list[int] | None = None) -> tuple[int, int]:
    """Round one pair; read further bits until fixed-point or interval arithmetic decides both roundings.

    The first two further words may be given as ``more``.
    """
    bits = 63  # x <= X 2^bits <= x + 1, and the same for Y
    while True:
        first_word, second_word = stream.words(2).tolist() if more is None else more
        more = None
        x, y, bits = (x << 64) + (first_word & _MASK), (y << 64) + (second_word & _MASK), bits + 64
        magnitude = x if x >= 0 else -x - 1
        if magnitude == 0:
            continue  # the logarithm has no lower bound yet
        if bits == fixed.BITS and (rounded := fixed.round_pair(x, y, scale)) is not None:
            return rounded
        with intervals.LOCK:
            iv = intervals.INTERVALS
            iv.prec = bits + 64
            uniform = iv.mpf([magnitude, magnitude + 1]) / (1 << bits)
            angle = iv.pi * iv.mpf([y, y + 1]) / (2 << bits)
            numerator, denominator = scale.as_integer_ratio()
            radius = iv.sqrt(-2 * iv.log(uniform)) * numerator / denominator
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
