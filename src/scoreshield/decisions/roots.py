"""Where a falling or rising function crosses zero: bracket, Brent's method, then a step to the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq


def least_threshold(excess: Callable[[float], float], start: float, step: float) -> float:
    """The least t with excess(t) <= 0, for a function that falls with t; ``start`` and ``step`` place the bracket.

    At a jump it is the point just after, so that a rate never ends above its target; on a plateau, its beginning.
    """
    low = high = start
    width = step
    while excess(low) <= 0:
        low, width = low - width, 2 * width
    width = step
    while excess(high) > 0:
        high, width = high + width, 2 * width
    if low == high:
        return low
    size = max(1.0, abs(low), abs(high))
    root = float(brentq(excess, low, high, xtol=1e-15 * size, rtol=1e-14, maxiter=500))
    nudge = 1e-15 * size
    while excess(root) > 0:
        root, nudge = root + nudge, 2 * nudge
    if excess(root - 1e-12 * size) > 0:
        return root
    while root - low > 1e-15 * size:  # Brent's method stops anywhere on a plateau
        middle = (low + root) / 2
        low, root = (low, middle) if excess(middle) <= 0 else (middle, root)
    return root


def first_crossing(excess: Callable[[float], float], start: float, *, smallest: float, largest: float) -> float:
    """The least x > 0 where a function, negative near 0, turns non-negative.

    0 where it is not negative even at ``smallest``, infinity where it still is at ``largest``.
    """
    low = high = start
    while excess(high) < 0:
        low, high = high, 2 * high
        if high > largest:
            return math.inf
    while low == high or excess(low) >= 0:
        high, low = low, low / 2
        if low < smallest:
            return 0.0
    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))
