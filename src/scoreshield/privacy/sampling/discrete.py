"""Exact sampling of other laws than the Gaussian: Laplace, staircase, coins, and tables of integers.

As for the Gaussian, no float replaces a random real number. A draw is a function of fair bits, and the sampler reads
bits until the draw is decided. Double precision with a proved error bound decides nearly all draws, and interval
arithmetic decides the rest. If X is uniform on [-1, 1), `-ln|X|` is a standard exponential variable, independent of the
fair sign of X:

* Laplace: `round(-s sgn(X) ln |X|)`, the real-valued Laplace law rounded to the grid;
* geometric: `⌊-ln|X| / ε⌋`, at least k with probability `e^(-kε)`;
* a coin of real probability p: compare X's bits with those of p.

docs/mechanisms.md has the proofs.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.sampling import gaussian, intervals
from scoreshield.privacy.sampling.gaussian import Float
from scoreshield.privacy.sampling.stream import Stream, Words

Ints = NDArray[np.int64]

#: Bound on the error of ln|X| in double precision where |X| >= 2^-19: 571 u, and room for one product or quotient.
LOG_ERROR = 640 * 2.0**-53
_CHUNK = 16_384
#: The sum of the whole weights of a noise table.
TABLE_BITS = 128
TABLE_WHOLE = 1 << TABLE_BITS


def fill_rounded_laplace(stream: Stream, scale: float, out: Float) -> None:
    """Fill an array with independent draws of round(L), L Laplace of this scale (in grid steps), as whole floats."""
    if not 0 < scale <= gaussian.LARGEST_SCALE:
        raise ValueError(f"scale must be in (0, 2^32], got {scale!r}")
    for start in range(0, len(out), _CHUNK):
        chunk = out[start : start + _CHUNK]
        words = stream.words(len(chunk))
        value, logarithm = gaussian.compute_log_magnitude(words)
        logarithm *= -scale
        nearest = np.rint(logarithm)
        undecided = np.abs(logarithm - nearest) >= 0.5 - scale * LOG_ERROR
        undecided |= np.abs(value) < gaussian._SMALLEST_X
        for place in np.flatnonzero(undecided):
            nearest[place] = _decide_log(stream, int(words[place]), Fraction(scale), half=True)
        chunk[:] = np.copysign(nearest, value)


def draw_geometric(stream: Stream, epsilon: float, count: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Draw independent G >= 0 with P[G >= k] = e^(-k epsilon), each with an independent fair sign (True for minus)."""
    draws, minus = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.bool_)
    inverse = Fraction(1) / Fraction(epsilon)
    for start in range(0, count, _CHUNK):
        part = slice(start, min(start + _CHUNK, count))
        words = stream.words(part.stop - start)
        value, logarithm = gaussian.compute_log_magnitude(words)
        logarithm /= -epsilon
        whole = np.floor(logarithm)
        margin = LOG_ERROR / epsilon + 2.0**-50 * (whole + 1)
        undecided = (logarithm - whole < margin) | (whole + 1 - logarithm < margin)
        undecided |= np.abs(value) < gaussian._SMALLEST_X
        for place in np.flatnonzero(undecided):
            whole[place] = _decide_log(stream, int(words[place]), inverse, half=False)
        draws[part] = whole
        minus[part] = words < 0
    return draws, minus


def flip_coins(stream: Stream, probability: Callable[[int], tuple[int, int]], count: int) -> NDArray[np.bool_]:
    """Flip independent coins of one real probability p, which is given by enclosures.

    ``probability(bits)`` returns integers (low, high) with low <= p 2^bits <= high. With more bits, the enclosure of p
    becomes as narrow as needed.
    """
    low, high = probability(64)
    words = stream.words(count).view(np.uint64)
    heads = words < np.uint64(low) if low < 2**64 else np.ones(count, dtype=np.bool_)
    first, last = min(low, 2**64 - 1), min(high, 2**64 - 1)
    # Differences of unsigned words wrap, so that one comparison tells whether a word lies in [first, last].
    for place in np.flatnonzero(words - np.uint64(first) <= np.uint64(last - first)):
        heads[place] = _decide_coin(stream, int(words[place]), probability)
    return heads


def draw_below(stream: Stream, bounds: Ints) -> Ints:
    """Draw independent uniform integers, each in [0, bound), by rejection."""
    # One bound for all, as `np.broadcast_to` writes it, is divided by without an array of bounds.
    is_one = len(bounds) > 0 and bounds.strides == (0,)
    limits = (bounds[:1] if is_one else bounds).astype(np.uint64)
    words = stream.words(len(bounds)).view(np.uint64)
    remainders, surplus = _divide(words, limits)
    out = remainders.view(np.int64)
    if not np.any(surplus):  # bounds that are powers of two reject nothing
        return out
    good = words >= surplus
    if good.all():
        return out
    todo = np.flatnonzero(~good)
    while len(todo):
        words = stream.words(len(todo)).view(np.uint64)
        remainders, surplus = _divide(words, limits if is_one else limits[todo])
        good = words >= surplus
        out[todo[good]] = remainders[good].view(np.int64)
        todo = todo[~good]
    return out


def _divide(words: NDArray[np.uint64], bounds: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the remainder of each word by its bound, and 2^64 modulo each bound.

    Words below 2^64 modulo the bound would make small remainders more likely. Most laws have one bound or two, and the
    division of an array by one number is many times as fast as that by another array. The results are the same.
    """
    if not len(bounds):
        return words.copy(), bounds
    least, most = bounds.min(), bounds.max()
    remainders, surplus = _divide_by_one(words, int(least))
    if least == most:
        return remainders, np.asarray(surplus)
    is_least = bounds == least
    if not (is_least | (bounds == most)).all():
        # 2^64 mod bound, computed without 2^64.
        return words % bounds, (np.uint64(2**64 - 1) % bounds + np.uint64(1)) % bounds
    others, other = _divide_by_one(words, int(most))
    return np.where(is_least, remainders, others), np.where(is_least, surplus, other)


def _divide_by_one(words: NDArray[np.uint64], bound: int) -> tuple[NDArray[np.uint64], np.uint64]:
    surplus = np.uint64(2**64 % bound)
    if bound & (bound - 1) == 0:  # a power of two: its remainder is the last bits
        return words & np.uint64(bound - 1), surplus
    divisor = np.uint64(bound)
    quotients = words // divisor
    quotients *= divisor
    return np.subtract(words, quotients, out=quotients), surplus


def draw_weighted(stream: Stream, weights: Sequence[int]) -> int:
    """One index, with probability proportional to its whole weight, of any size.

    A uniform real number in [0, 1) is read 64 bits at a time until it is clear between which two cumulative weights,
    over their total, it lies. One word decides unless it holds a boundary: with probability 1 - len(weights) / 2^64.
    """
    cumulative = list(itertools.accumulate(weights))
    total, word, bits = cumulative[-1], 0, 0
    while True:
        word, bits = (word << 64) + (int(stream.words(1)[0]) & (2**64 - 1)), bits + 64
        index = bisect.bisect_right(cumulative, word * total >> bits)
        if (word + 1) * total <= cumulative[index] << bits:
            return index


def enclose(value: Callable[[Any], Any]) -> Callable[[int], tuple[int, int]]:
    """Make enclosures of a real number in [0, 1] from its formula in mpmath's interval context."""

    def at(bits: int) -> tuple[int, int]:
        with intervals.LOCK:
            iv = intervals.INTERVALS
            iv.prec = bits + 64
            scaled = value(iv) * (1 << bits)
            low, high = int(scaled.a), int(scaled.b) + 1
        return max(0, low), min(1 << bits, high)

    return at


def _decide_coin(stream: Stream, word: int, probability: Callable[[int], tuple[int, int]]) -> bool:
    """Decide whether the uniform number that begins with these 64 bits is below p; read further bits as needed."""
    bits = 64
    while True:
        low, high = probability(bits)
        if word + 1 <= low:
            return True
        if word >= high:
            return False
        word, bits = (word << 64) + (int(stream.words(1)[0]) & (2**64 - 1)), bits + 64


def _decide_log(stream: Stream, x: int, factor: Fraction, *, half: bool) -> int:
    """Round (or, without ``half``, floor) -factor ln|X| for the X that begins with the word x."""
    bits = 63
    while True:
        x, bits = (x << 64) + (int(stream.words(1)[0]) & (2**64 - 1)), bits + 64
        magnitude = x if x >= 0 else -x - 1
        if magnitude == 0:
            continue
        with intervals.LOCK:
            iv = intervals.INTERVALS
            iv.prec = bits + 64
            uniform = iv.mpf([magnitude, magnitude + 1]) / (1 << bits)
            value = -iv.log(uniform) * factor.numerator / factor.denominator
            if half:
                whole = gaussian._nearest(value)
            else:
                low = int(value.a)
                whole = low if iv.is_at_most(low, value) and iv.is_below(value, low + 1) else None
        if whole is not None:
            return whole


def fill_staircase(stream: Stream, epsilon: float, width: int, inner: int, out: Float) -> None:
    """Fill an array with the staircase law on the integers, as whole floats.

    P[i] is proportional to e^(-epsilon l), where |i| = q width + u, l = q for u < inner and l = q + 1 for other u. A
    move by at most ``width`` changes P[i] by a factor of at most e^epsilon. The magnitude is q width + u, where q is
    geometric and u is uniform on one of the two parts of a step. A draw of 0 with a minus sign is repeated, so that 0
    counts once.
    """
    outer = width - inner

    def inside(iv: Any) -> Any:
        return inner / (inner + outer * iv.exp(-make_rational(iv, epsilon)))

    chance = enclose(inside)
    todo = np.arange(len(out))
    while len(todo):
        steps, minus = draw_geometric(stream, epsilon, len(todo))
        if outer:
            first = flip_coins(stream, chance, len(todo))
            place = draw_below(stream, np.where(first, inner, outer)) + np.where(first, 0, inner)
        else:
            place = draw_below(stream, np.full(len(todo), inner))
        size = steps.astype(np.float64) * width + place
        good = ~(minus & (size == 0))
        out[todo[good]] = np.where(minus, -size, size)[good]
        todo = todo[~good]


def make_rational(iv: Any, value: float) -> Any:
    exact = Fraction(value)
    return iv.mpf(exact.numerator) / exact.denominator


def draw_columns(stream: Stream, table: NDArray[np.uint64], rows: Ints) -> Ints:
    """Draw a column for each row index, with exactly the probabilities of that row.

    ``table`` holds cumulative weights in units of 2^-62; each row ends at 2^62.
    """
    columns = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        words: Words = stream.words(len(rows[part]))
        uniform = (words.view(np.uint64) >> np.uint64(2)).astype(np.uint64)
        if table.shape[1] == 2:  # one comparison decides: the last column is above every number
            columns[part] = table[:, 0][rows[part]] <= uniform
        else:
            columns[part] = (table[rows[part]] <= uniform[:, None]).sum(axis=1)
    return columns


def fill_table(stream: Stream, weights: Sequence[int], first: int, out: Float) -> None:
    """Fill an array with independent draws of first + i, each with probability exactly weights[i] / 2^128.

    A draw is the number of cumulative weights that are at most a uniform integer below 2^128. Its first 64 bits decide
    unless they are also the first 64 bits of a cumulative weight; then the other 64 bits are read.
    """
    cumulative = list(itertools.accumulate(weights))
    if cumulative[-1] != TABLE_WHOLE:
        raise ValueError("the weights must sum to 2^128")
    starts = np.array([total >> 64 for total in cumulative[:-1]], dtype=np.uint64)
    for start in range(0, len(out), _CHUNK):
        chunk = out[start : start + _CHUNK]
        words = stream.words(len(chunk)).view(np.uint64)
        places = np.searchsorted(starts, words, side="left")
        for place in np.flatnonzero(places != np.searchsorted(starts, words, side="right")):
            uniform = (int(words[place]) << 64) + (int(stream.words(1)[0]) & (2**64 - 1))
            places[place] = bisect.bisect_right(cumulative, uniform)
        chunk[:] = places + first
