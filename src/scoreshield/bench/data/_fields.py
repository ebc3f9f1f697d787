"""Fields of data sets: what each must be, declared beside its name, and the model that holds them.

A declaration such as ``Annotated[Whole, indices(below="class_names")]`` checks a field against those before it, and
gives it one form: read-only arrays, and tuples instead of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, ValidationInfo

from scoreshield._validation import check_array, check_count, reject
from scoreshield.errors import InvalidInput, InvalidParameter

Float32 = NDArray[np.float32]
Float = NDArray[np.float64]
Whole = NDArray[np.int64]
Items = Sequence[Any] | NDArray[Any]  # what an embedder reads, one per record


class DataSet(BaseModel):
    """A frozen set of fields that were checked against each other.

    Raises:
        InvalidParameter: A field is not what its declaration says. The message names the field and shows no content.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    name: str

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _first_problem(error, type(self).__name__) from None

    __eq__ = object.__eq__  # arrays have no single truth value
    __hash__ = object.__hash__

    def replace(self, **changes: Any) -> Self:
        """Make the same set with some other fields, which are checked as in a new set."""
        return type(self)(**(dict(self) | changes))


def _first_problem(error: ValidationError, model: str) -> InvalidInput:
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidParameter):
        cause.name_function(model)
        return cause
    if isinstance(cause, InvalidInput):
        return cause
    field = ".".join(map(str, first["loc"])) or "name"
    return InvalidParameter(field, f"is not what the set needs: {first['msg']}.", model)


def _declare(check: Callable[[Any, str, Mapping[str, Any]], Any]) -> PlainValidator:
    """Make a pydantic validator of a check that takes the value, its name and the fields before it."""

    def run(value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return check(value, info.field_name, info.data)

    return PlainValidator(run)


def _size(fields: Mapping[str, Any], name: str | None) -> int | None:
    """Return the number that an earlier field gives: its value or its length. None where it is unknown."""
    value = None if name is None else fields.get(name)
    return value if value is None or isinstance(value, int) else len(value)


def texts(*, length: str | None = None) -> PlainValidator:
    """Declare at least one text. With ``length``, the field of that name gives their number, and None is valid too."""

    def check(value: Any, name: str, fields: Mapping[str, Any]) -> tuple[str, ...] | None:
        size = _size(fields, length)
        if value is None and length is not None:
            return None
        must = "a list of texts, at least one" if size is None else f"{size} texts"
        if isinstance(value, str) or not isinstance(value, list | tuple | np.ndarray):
            reject(name, must, value)
        if not len(value) or not all(isinstance(text, str) for text in value) or size not in (None, len(value)):
            reject(name, must, value)
        return tuple(str(text) for text in value)

    return _declare(check)


def indices(*, below: str | None = None, length: str | None = None) -> PlainValidator:
    """Declare whole numbers from 0. Other fields give their upper limit (``below``) and their number (``length``)."""
    return _declare(
        lambda value, name, fields: check_indices(value, name, below=_size(fields, below), length=_size(fields, length))
    )


def check_indices(value: Any, name: str, *, below: int | None = None, length: int | None = None) -> Whole:
    """Check for a vector of whole numbers from 0, and make it read-only."""
    size = "at least one whole number" if length is None else f"{length} whole numbers"
    must = f"{size} from 0" + ("" if below is None else f" to {below - 1}")
    array = check_array(value, name, must)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array) or length not in (None, len(array)):
        reject(name, must, value)
    if array.min() < 0 or array.max() >= (2**62 if below is None else below):
        reject(name, must, value)
    return freeze_array(array.astype(np.int64, copy=False))


def index_lists(*, below: str, length: str) -> PlainValidator:
    """Declare one array of whole numbers for each record of the field ``length``."""

    def check(value: Any, name: str, fields: Mapping[str, Any]) -> tuple[Whole, ...]:
        size = _size(fields, length)
        if not isinstance(value, list | tuple) or size not in (None, len(value)):
            reject(name, f"one array of numbers of {below} for each of {size} {length}", value)
        return tuple(check_indices(part, name, below=_size(fields, below)) for part in value)

    return _declare(check)


def reals() -> PlainValidator:
    """Declare a vector of finite numbers, at least one."""

    def check(value: Any, name: str, _: Mapping[str, Any]) -> Float:
        must = "a vector of finite numbers, at least one"
        array = check_array(value, name, must)
        if array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array) or not np.isfinite(array).all():
            reject(name, must, value)
        return freeze_array(array.astype(np.float64, copy=False))

    return _declare(check)


def flags(*, length: str) -> PlainValidator:
    """Declare truth values, as many as the field ``length`` says."""

    def check(value: Any, name: str, fields: Mapping[str, Any]) -> NDArray[np.bool_]:
        size = _size(fields, length)
        must = f"{size} truth values, one per pair"
        array = check_array(value, name, must)
        if array.dtype != np.bool_ or (size is not None and array.shape != (size,)):
            reject(name, must, value)
        return freeze_array(array)

    return _declare(check)


def matrix(*, rows: str, width: str | None = None) -> PlainValidator:
    """Declare embeddings, or None: float32, one row per record of ``rows``, as wide as the matrix ``width``."""

    def check(value: Any, name: str, fields: Mapping[str, Any]) -> Float32 | None:
        if value is None:
            return None
        size = _size(fields, rows)
        must = f"a matrix of finite numbers with {size} rows"
        array = check_array(value, name, must)
        if array.ndim != 2 or array.dtype.kind not in "fiu" or size not in (None, len(array)) or not array.shape[1]:
            reject(name, must, value)
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, dtype=np.float32)
        if not np.isfinite(array).all():
            reject(name, must + " that float32 can hold", value)
        other = None if width is None else fields.get(width)
        if other is not None and other.shape[1] != array.shape[1]:
            reject(name, f"rows as long as those of {width}, {other.shape[1]}", value)
        return freeze_array(array)

    return _declare(check)


def embedder_items(*, length: str) -> PlainValidator:
    """Declare what an embedder reads, one per record, or None."""

    def check(value: Any, name: str, fields: Mapping[str, Any]) -> Items | None:
        if value is None:
            return None
        size = _size(fields, length)
        is_sized = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
        if not is_sized or size not in (None, len(value)):
            reject(name, f"a list, tuple or array of {size} items", value)
        return freeze_array(value) if isinstance(value, np.ndarray) else tuple(value)

    return _declare(check)


def total() -> PlainValidator:
    """Declare a whole number, at least 1."""
    return _declare(lambda value, name, _: check_count(value, name))


def freeze_array(array: NDArray[Any]) -> NDArray[Any]:
    """Make a read-only copy, or return the array itself if it cannot be written to."""
    if array.flags.writeable or array.base is not None:
        array = array.copy()
    array.flags.writeable = False
    return array
