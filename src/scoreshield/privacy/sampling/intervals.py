"""Interval arithmetic that encloses: mpmath's, with every function that it only approximates widened.

mpmath computes +, -, x, / and square roots of intervals in whole numbers and rounds outward. Its exp, log, sin, cos
and pi are series with a few guard bits, rounded outward without a proof of the series' error: ``iv.exp`` misses the
true value at about one point in a thousand, by up to 3e-4 of the last place. Here each of them is computed with 64
more bits than asked for and widened by one part in 2^(precision - 1). The result encloses the true value as long as
mpmath's error stays below that, which is 2^64 times the error that mpmath aims at. docs/noise.md says what rests on
this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from mpmath import libmp
from mpmath.ctx_iv import MPIntervalContext

#: Bits beyond those asked for, with which a function is computed before it is widened.
_GUARD = 64


class Intervals:
    """The part of mpmath's interval context that the samplers use, with enclosures that do not rest on guard bits."""

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
        """An interval from a number, or from a pair [low, high]."""
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
        """The square root of what of an interval is not negative: a widened bound may reach below a true zero."""
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
        """A function's interval, computed with 64 more bits and widened by 2^(1 - precision) on either side.

        Relative, so that the logarithm of 1 stays 0 and is never positive; absolute for sine and cosine, whose relative
        error near a zero is another assumption.
        """
        precision = self.prec
        margin = self.mpf([-1, 1]) / (1 << (precision - 1))
        self.prec = precision + _GUARD
        try:
            found = function()
            found = found * (1 + margin) if relative else found + margin
        finally:
            self.prec = precision
        return +found  # rounds outward


#: A context's precision is state: one context for all, under a lock.
INTERVALS = Intervals()
LOCK = threading.Lock()
# mpmath caches a constant in two steps, between which another thread or a fork may read it wrongly. What is cached here
# is never computed again up to this precision, which no sampler reaches.
for _constant in (libmp.pi_fixed, libmp.ln2_fixed):
    _constant(1 << 14)


def _renew() -> None:
    """Give a forked process a context and a lock of its own: another thread may have held them at the fork."""
    global INTERVALS, LOCK
    INTERVALS, LOCK = Intervals(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
