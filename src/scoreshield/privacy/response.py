"""Randomised response over large alphabets: sets of public names, and windows of a public scale.

Each record sends one symbol. The true symbol gets `e^ε` times the weight of any other one, so replacing a record
changes the probability of each output by a factor of at most `e^ε`, whatever the symbols mean (Warner 1965; Kairouz,
Oh & Viswanath 2014). One record sends one symbol, so the promise covers everything that the symbol says together.

Both laws are drawn the same way, exactly: a coin decides between a draw around the true symbol and a uniform draw over
all symbols. Every draw is made for every record, so the number of random words does not depend on the records, apart
from the rejections of uniform integers. docs/proofs/responses.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_epsilon, validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import StepProfile
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

Ints = NDArray[np.int64]

#: Room for the rounding of probabilities, which are computed through logarithms of up to `_LARGEST_LOG`.
_UP = 1 + 2.0**-40
#: The largest logarithm of the number of symbols, so that their probabilities stay far from the smallest double.
_LARGEST_LOG = 600.0


#: The most names of a set: drawing one takes time in proportion to the square of their number.
LARGEST_SIZE = 256


class Symbols(NamedTuple):
    """One symbol per record: the names of its set in increasing order, and the level of each name, both (n, T).

    Levels count from 0. A record that sends the bottom symbol has -1 in all places of both arrays.
    """

    names: Ints
    levels: Ints


@dataclass(frozen=True)
class SetResponse:
    """Randomised response over all sets of `size` names out of `names`, with one of `levels` levels for each name.

    Attributes:
        epsilon: The privacy of each record.
        names: K, the number of public names.
        size: T, the number of names in a set.
        levels: L, the number of public levels of a name.
        has_bottom: Whether there is one more symbol, which names nothing.
    """

    epsilon: float
    names: int
    size: int = 1
    levels: int = 1
    has_bottom: bool = False

    @validate()
    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_count(self.names, "names")
        check_count(self.size, "size")
        check_count(self.levels, "levels")
        if self.size > self.names:
            _validation.reject("size", f"at most the number of names, {self.names:,}", self.size)
        if self.size > LARGEST_SIZE:
            _validation.reject("size", f"at most {LARGEST_SIZE}, so that drawing a set takes little time", self.size)
        sets = estimate_log_sets(self.names, self.size) + self.size * math.log(self.levels)
        if sets > _LARGEST_LOG:  # before the whole number is computed, which may have millions of digits
            raise InvalidInput(
                f"There are about e^{sets:.0f} sets of {self.size:,} of {self.names:,} names with {self.levels:,} "
                f"levels each. At most e^{_LARGEST_LOG:.0f} are supported: ask for smaller sets."
            )
        if self.symbols < 2:
            raise InvalidInput("One symbol says nothing: give at least two names, two levels or a bottom symbol.")

    @cached_property
    def symbols(self) -> int:
        """N = C(K, T) L^T, one more with a bottom symbol; an exact whole number of any size."""
        sets: int = math.comb(self.names, self.size) * self.levels**self.size
        return sets + int(self.has_bottom)

    @property
    def log_symbols(self) -> float:
        return math.log(self.symbols)

    @property
    def truth(self) -> float:
        """The probability that a record sends its true symbol, e^epsilon / (e^epsilon + N - 1)."""
        return 1 / (1 + math.exp(min(math.log(self.symbols - 1) - self.epsilon, 700.0)))

    @property
    def uniform(self) -> float:
        """The probability that a record's symbol is drawn from all symbols: N / (e^epsilon + N - 1)."""
        return 1 / (1 + math.exp(self.log_expm1 - self.log_symbols)) if self.log_expm1 - self.log_symbols < 700 else 0.0

    @property
    def log_expm1(self) -> float:
        return self.epsilon + math.log(-math.expm1(-self.epsilon))

    @property
    def false_names(self) -> float:
        """The expected number of records, of one, that name a given name by chance."""
        named = (self.symbols - int(self.has_bottom)) / self.symbols
        return self.uniform * named * self.size / self.names

    @property
    def profile(self) -> StepProfile:
        """The exact profile of one record: no test gains more than (e^epsilon - 1) / (e^epsilon + N - 1)."""
        return StepProfile(self.epsilon, self.truth * _UP)

    def release(self, stream: Stream, true: Symbols) -> Symbols:
        """Draw one symbol for each record, given the true ones."""
        names, levels = (np.asarray(part, dtype=np.int64) for part in true)
        self._check_symbols(names, levels)
        keep = discrete.flip_coins(stream, discrete.enclose(self._keep_probability()), len(names))
        drawn = self.draw_uniform(stream, len(names))
        order = np.argsort(names, axis=1, kind="stable")  # a set has no order, and the output must not show one
        return Symbols(
            np.where(keep[:, None], np.take_along_axis(names, order, 1), drawn.names),
            np.where(keep[:, None], np.take_along_axis(levels, order, 1), drawn.levels),
        )

    def draw_uniform(self, stream: Stream, count: int) -> Symbols:
        """Draw symbols uniformly from all of them: a set by Floyd's algorithm, its levels, and the bottom by a coin."""
        names = np.empty((count, self.size), dtype=np.int64)
        for place, last in enumerate(range(self.names - self.size, self.names)):
            chosen = discrete.draw_below(stream, np.full(count, last + 1))
            is_taken = (names[:, :place] == chosen[:, None]).any(axis=1)
            names[:, place] = np.where(is_taken, last, chosen)
        names.sort(axis=1)
        levels = discrete.draw_below(stream, np.full(count * self.size, self.levels)).reshape(names.shape)
        if self.has_bottom:
            is_bottom = discrete.flip_coins(stream, discrete.enclose(lambda iv: iv.mpf(1) / self.symbols), count)
            names[is_bottom] = levels[is_bottom] = -1
        return Symbols(names, levels)

    def _keep_probability(self) -> Callable[[Any], Any]:
        """(e^epsilon - 1) / (e^epsilon + N - 1), as a formula for interval arithmetic."""

        def compute(iv: Any) -> Any:
            shrunk = iv.exp(-discrete.make_rational(iv, self.epsilon))
            return (1 - shrunk) / (1 + (self.symbols - 1) * shrunk)

        return compute

    def _check_symbols(self, names: Ints, levels: Ints) -> None:
        """Raise an error unless the symbols are those of this alphabet. The message shows none of them."""
        if names.shape != levels.shape or names.ndim != 2 or names.shape[1] != self.size:
            raise ValueError("names and levels must be of shape (records, size)")
        is_bottom = (names == -1).all(axis=1) & (levels == -1).all(axis=1) & self.has_bottom
        inside = ((names >= 0) & (names < self.names) & (levels >= 0) & (levels < self.levels)).all(axis=1)
        distinct = (np.diff(np.sort(names, axis=1), axis=1) > 0).all(axis=1)
        if not (is_bottom | (inside & distinct)).all():
            raise ValueError("a record's symbol is not one of this alphabet")


@dataclass(frozen=True)
class WindowResponse:
    """Randomised response on a public scale of `cells` cells: the true window of `window` cells is more likely.

    A record's window starts at a cell a. Each cell in [a, a + window) has e^epsilon times the weight of any other cell.
    The total weight, window e^epsilon + cells - window, does not depend on a.

    Attributes:
        epsilon: The privacy of each record.
        cells: M, the number of cells.
        window: w, the number of cells of a window, less than M.
    """

    epsilon: float
    cells: int
    window: int

    @validate()
    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_count(self.cells, "cells")
        check_count(self.window, "window")
        if self.window >= self.cells:
            _validation.reject("window", f"less than the number of cells, {self.cells:,}", self.window)

    @property
    def truth(self) -> float:
        """The probability that the drawn cell lies in the true window."""
        return 1 / (1 + math.exp(min(math.log(self.cells / self.window - 1) - self.epsilon, 700.0)))

    @property
    def profile(self) -> StepProfile:
        """The exact profile of one record: two windows that overlap as little as possible."""
        apart = min(self.window, self.cells - self.window) / self.window
        return StepProfile.of_advantage(self.epsilon, apart * self.truth * -math.expm1(-self.epsilon))

    def release(self, stream: Stream, starts: Ints) -> Ints:
        """Draw one cell for each record, given the first cell of its window."""
        starts = np.asarray(starts, dtype=np.int64)
        if starts.ndim != 1 or (len(starts) and not 0 <= starts.min() <= starts.max() <= self.cells - self.window):
            raise ValueError("a window does not lie in the cells")

        keep = discrete.flip_coins(stream, _enclose_truth(self.epsilon, self.cells, self.window), len(starts))
        inside = discrete.draw_below(stream, np.broadcast_to(np.int64(self.window), len(starts)))
        inside += starts
        anywhere = discrete.draw_below(stream, np.broadcast_to(np.int64(self.cells), len(starts)))
        np.copyto(anywhere, inside, where=keep)
        return anywhere


@lru_cache(maxsize=256)
def _enclose_truth(epsilon: float, cells: int, window: int) -> Callable[[int], tuple[int, int]]:
    """Enclose the probability that a cell of the true window is drawn for being one, for a number of bits.

    Each enclosure is computed once: a service answers many queries by one law.
    """

    def compute(iv: Any) -> Any:
        shrunk = iv.exp(-discrete.make_rational(iv, epsilon))
        return window * (1 - shrunk) / (window + (cells - window) * shrunk)

    return lru_cache(maxsize=16)(discrete.enclose(compute))


def estimate_log_sets(names: int, size: int) -> float:
    """Estimate ln C(names, size) in double precision."""
    return math.lgamma(names + 1) - math.lgamma(size + 1) - math.lgamma(names - size + 1)
