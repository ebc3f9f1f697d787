"""Interval arithmetic whose results enclose the true values: mpmath with wider intervals for approximated functions.

mpmath computes +, -, x, / and square roots of intervals in whole numbers and rounds outward. Its exp, log, sin, cos
and pi are series with a few guard bits, rounded outward without a proof of the series' error: ``iv.exp`` misses the
true value at about one point in a thousand, by up to 3e-4 of the last place. This module computes each of them with 64
more bits than requested and widens the result by one part in 2^(precision - 1). The result encloses the true value if
mpmath's error is below that width, which is 2^64 times the error that mpmath aims at. docs/noise.md says what depends
on this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from mpmath import libmp
from mpmath.ctx_iv import MPIntervalContext

#: Extra bits with which a function is computed before its interval is widened.
_GUARD = 64


class Intervals:
    """The part of mpmath's interval context that the samplers use. Its enclosures do not depend on guard bits."""

    def __init__(self) -> None:
        self._context = MPIntervalContext()

    @property
    def prec(self) -> int:
        """Bits of working precision."""
        return int(self._context.prec)

    @prec.setter
    def prec(self, bits: int) -> None:
        self._context.prec = bits

    def mpf(self, value: Any) -> Any:
        """Make an interval from a number, or from a pair [low, high]."""
        return self._context.mpf(value)

    @property
    def pi(self) -> Any:
        return self._widen(lambda: +self._context.pi, relative=True)

    def exp(self, x: Any) -> Any:
        return self._widen(lambda: self._context.exp(x), relative=True)

    def log(self, x: Any) -> Any:
        return self._widen(lambda: self._context.log(x), relative=True)

    def sin(self, x: Any) -> Any:
        return self._widen(lambda: self._context.sin(x), relative=False)

    def cos(self, x: Any) -> Any:
        return self._widen(lambda: self._context.cos(x), relative=False)

    def sqrt(self, x: Any) -> Any:
        """Compute the square root of the nonnegative part of an interval: widening may move a lower bound below 0."""
        return self._context.sqrt(self.mpf([0 if self.is_below(x.a, 0) else x.a, x.b]))

    def is_below(self, x: Any, y: Any) -> bool:
        """Whether every point of x is below every point of y; each is an interval or a whole number.

        mpmath's own comparison of an interval with a number catches every exception while it converts the number, an
        interrupt too. Here the number becomes an interval first, and end points are compared.
        """
        return bool(libmp.mpf_lt(self._ends(x)[1], self._ends(y)[0]))

    def is_at_most(self, x: Any, y: Any) -> bool:
        """Whether no point of x is above any point of y."""
        return bool(libmp.mpf_le(self._ends(x)[1], self._ends(y)[0]))

    def _ends(self, x: Any) -> tuple[Any, Any]:
        low, high = self.mpf(x)._mpi_ if isinstance(x, int) else x._mpi_
        return low, high

    def _widen(self, function: Callable[[], Any], *, relative: bool) -> Any:
        """Compute a function's interval with 64 more bits, and widen it by 2^(1 - precision) on either side.

        The width is relative, so that the logarithm of 1 stays 0 and is never positive. For sine and cosine it is
        absolute, because their relative error near a zero would need another assumption.
        """
        precision = self.prec
        margin = self.mpf([-1, 1]) / (1 << (precision - 1))
        self.prec = precision + _GUARD
        try:
            interval = function()
            interval = interval * (1 + margin) if relative else interval + margin
        finally:
            self.prec = precision
        return +interval  # rounds outward


#: The precision of a context is mutable state: all callers share one context, under a lock.
INTERVALS = Intervals()
LOCK = threading.Lock()
# mpmath caches a constant in two steps. Between them, another thread or a fork may read a wrong value. These constants
# are cached here up to a precision that no sampler reaches, so they are never computed again.
for _constant in (libmp.pi_fixed, libmp.ln2_fixed):
    _constant(1 << 14)


def _renew() -> None:
    """Give a forked process its own context and lock: at the fork, another thread may have held the lock."""
    global INTERVALS, LOCK
    INTERVALS, LOCK = Intervals(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
