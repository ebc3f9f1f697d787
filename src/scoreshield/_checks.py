"""Argument checks, one message form for all: "The 'x' parameter of f must be ... Got ... instead." """

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput


def reject(name: str, function: str, must: str, got: object) -> NoReturn:
    """Raise the one form of complaint about an argument."""
    raise InvalidInput(f"The '{name}' parameter of {function} must be {must}. Got {_brief(got)} instead.")


def real(value: Any, name: str, function: str, must: str = "a finite number") -> float:
    """A finite Python float, or a refusal; bools, strings and arrays are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        reject(name, function, must, value)
    try:
        number = float(value)
    except OverflowError:
        reject(name, function, must, value)
    if not math.isfinite(number):
        reject(name, function, must, value)
    return number


def positive(value: Any, name: str, function: str) -> float:
    number = real(value, name, function, "a positive finite number")
    if number <= 0:
        reject(name, function, "a positive finite number", value)
    return number


def budget(value: Any, function: str) -> float:
    """An epsilon that means something: beyond these ends a release is pure noise, or not private at all."""
    number = positive(value, "epsilon", function)
    if not 1e-9 <= number <= 1e9:
        reject("epsilon", function, "between 1e-9 and 1e9", value)
    return number


def probability(value: Any, name: str, function: str, *, zero: bool) -> float:
    """A number in [0, 1) or, without ``zero``, in (0, 1)."""
    must = "a number in [0, 1)" if zero else "a number strictly between 0 and 1"
    number = real(value, name, function, must)
    if not (0 <= number < 1) or (number == 0 and not zero):
        reject(name, function, must, value)
    return number


def count(value: Any, name: str, function: str, *, least: int = 1) -> int:
    must = f"a whole number, at least {least} and below 2^53"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) < 2**53:
        reject(name, function, must, value)
    return int(value)


def one_of(value: Any, name: str, function: str, options: Collection[str]) -> str:
    if not isinstance(value, str) or value not in options:
        reject(name, function, "one of " + ", ".join(repr(option) for option in options), value)
    return value


def array(value: Any, name: str, function: str, must: str) -> NDArray[Any]:
    """The value as a NumPy array, or a refusal of what is ragged, masked or no array at all."""
    if isinstance(value, np.ma.MaskedArray):
        reject(name, function, "an array without a mask", value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        reject(name, function, must, value)


def _brief(got: object) -> str:
    """What was got, short, on one line, and never the content of an array."""
    shape = getattr(got, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape} and type {getattr(got, 'dtype', '?')}"
    if isinstance(got, list | tuple | dict | set):
        return f"a {type(got).__name__} of length {len(got)}"
    text = " ".join(repr(got).split())
    return text if len(text) <= 80 else text[:77] + "..."
