"""Exact bounds on a binomial probability (Clopper & Pearson 1934), for one count or for arrays of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from scoreshield import _validation
from scoreshield._validation import check_inside_unit, one_of, validate

Float = NDArray[np.float64]

SIDES = ("both", "lower", "upper")


@validate(confidence=check_inside_unit, side=one_of(SIDES))
def clopper_pearson(successes: ArrayLike, trials: ArrayLike, confidence: float, *, side: str = "both") -> Any:
    """The exact interval for a binomial probability.

    Parameters
    ----------
    successes, trials : whole numbers, or arrays of them.
    side : "both" splits the error over two ends; "lower" and "upper" put it all on one, and the other is 1 or 0.

    Returns
    -------
    (low, high), floats or arrays.
    """
    hits, total = as_counts(successes, trials, "successes", "trials")
    error = (1 - confidence) / (2 if side == "both" else 1)
    shape = np.broadcast(hits, total).shape
    low = lower(hits, total, error) if side != "upper" else np.zeros(shape)
    high = upper(hits, total, error) if side != "lower" else np.ones(shape)
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def lower(hits: ArrayLike, total: ArrayLike, error: float) -> Float:
    """A lower bound that fails with probability at most ``error``: P[binomial(total, bound) >= hits] = error."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(total, dtype=np.float64)
    return np.asarray(np.where(k <= 0, 0.0, betaincinv(np.where(k <= 0, 1.0, k), n - k + 1, error)), dtype=np.float64)


def upper(hits: ArrayLike, total: ArrayLike, error: float) -> Float:
    """An upper bound that fails with probability at most ``error``: P[binomial(total, bound) <= hits] = error."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(total, dtype=np.float64)
    rest = n - k
    return np.asarray(
        np.where(rest <= 0, 1.0, betainccinv(k + 1, np.where(rest <= 0, 1.0, rest), error)), dtype=np.float64
    )


def as_counts(hits: ArrayLike, trials: ArrayLike, name: str, total: str) -> tuple[Float, Float]:
    """Two arrays of whole numbers that fit each other, or a refusal that names the one at fault."""
    must = "a whole number, at least 0, or an array of them"
    found = []
    for value, called in ((hits, name), (trials, total)):
        array = _validation.check_array(value, called, must)
        if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0:
            _validation.reject(called, must, value)
        found.append(array)
    if found[1].min() < 1:
        _validation.reject(total, "at least 1", trials)
    try:
        fits = bool(np.all(found[0] <= found[1]))
    except ValueError:
        _validation.reject(name, f"of a shape that fits '{total}'", hits)
    if not fits:
        _validation.reject(name, f"at most '{total}'", hits)
    return found[0].astype(np.float64), found[1].astype(np.float64)
