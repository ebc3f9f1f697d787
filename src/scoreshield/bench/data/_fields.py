"""Checks of the parts of a data set: each gives the part in its one form, read-only, or refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput

Float32 = NDArray[np.float32]
Float = NDArray[np.float64]
Whole = NDArray[np.int64]
MOST_RATED = 1_000_000  # the largest number of a user or item that is believed; MovieLens 100K has 943 and 1,682

Items = Sequence[Any] | NDArray[Any]  # what an embedder reads, one a record


def numeral(text: str, most: int) -> int | None:
    """The number that a text of plain digits 0 to 9 stands for, or None where it is none or beyond ``most``."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:  # int() refuses thousands of digits with an error
        return None
    return int(text) if int(text) <= most else None


def keep(owner: object, name: str, value: object) -> None:
    object.__setattr__(owner, name, value)  # a frozen dataclass has no other way to keep the checked value


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only copy, or the array itself where nobody can write to it."""
    if array.flags.writeable or array.base is not None:
        array = array.copy()
    array.flags.writeable = False
    return array


def needed(items: Items | None, what: str, name: str) -> Items:
    if items is None:
        raise InvalidInput(
            f"The set {name} holds no {what} to embed, only embeddings; load it from the official files."
        )
    return items


def texts(value: Any, name: str, length: int | None = None) -> tuple[str, ...]:
    must = "a list of texts, at least one" if length is None else f"{length} texts"
    if isinstance(value, str) or not isinstance(value, list | tuple | np.ndarray):
        _validation.reject(name, must, value)
    texts = tuple(value)
    if not all(isinstance(text, str) for text in texts) or not texts or length not in (None, len(texts)):
        _validation.reject(name, must, value)
    return tuple(str(text) for text in texts)


def whole(value: Any, name: str, *, below: int | None = None, length: int | None = None) -> Whole:
    """Whole numbers from 0, so many and below so much where that is known."""
    size = "at least one whole number" if length is None else f"{length} whole numbers"
    must = f"{size} from 0" + ("" if below is None else f" to {below - 1}")
    array = _validation.check_array(value, name, must)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array) or length not in (None, len(array)):
        _validation.reject(name, must, value)
    if array.min() < 0 or array.max() >= (2**62 if below is None else below):
        _validation.reject(name, must, value)
    return frozen(array.astype(np.int64, copy=False))


def reals(value: Any, name: str) -> Float:
    must = "a vector of finite numbers, at least one"
    array = _validation.check_array(value, name, must)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array) or not np.isfinite(array).all():
        _validation.reject(name, must, value)
    return frozen(array.astype(np.float64, copy=False))


def rows(value: Any, name: str, records: int) -> Float32 | None:
    """Embeddings as float32, or None where there are none yet."""
    if value is None:
        return None
    must = f"a matrix of finite numbers with {records} rows"
    array = _validation.check_array(value, name, must)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or len(array) != records or not array.shape[1]:
        _validation.reject(name, must, value)
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(array).all():
        _validation.reject(name, must + " that float32 can hold", value)
    return frozen(array)


def items(value: Any, records: int) -> Items | None:
    if value is None:
        return None
    sized = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if not sized or len(value) != records:
        _validation.reject("items", f"a list, tuple or array of {records} items", value)
    return frozen(value) if isinstance(value, np.ndarray) else tuple(value)
