"""Constraints on arguments, declared once on a public function.

A check takes a value and the name of its parameter, and returns the value in its final type or raises
`InvalidParameter`. A public function declares the checks of its parameters::

    @validate(epsilon=check_epsilon, k=check_count)
    def release(embeddings, *, epsilon, k): ...

All messages have one form: "The 'k' parameter of release must be ... Got ... instead." The decorator adds the name of
the function, also to what checks deep inside the function raise, so that no function passes its name on.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from scoreshield._rows import RowSource
from scoreshield.errors import InvalidParameter

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[Any, str], Any]

#: Below this epsilon a release is pure noise.
LEAST_EPSILON = 1e-9
#: Parameters that take private data. Messages show no text and no fraction that was given for one of them.
# fmt: off
DATA_PARAMETERS = frozenset((
    "X", "canaries", "clean", "clean_scores", "corpus", "documents", "embedding", "embeddings", "first",
    "genuine", "guess", "guesses", "human", "ids", "impostor", "inputs", "irrelevant", "items", "labels",
    "matrix", "members", "messages", "nodes", "noisy", "non_members", "others", "pairs", "query",
    "query_embedding", "query_labels", "queries", "questions", "records", "relevant", "rows", "scores",
    "second", "texts", "users", "vectors", "view",
))
# fmt: on


def validate(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the constraints of a public function's parameters.

    The parameters are checked as in `constrain`. An `InvalidParameter` that names no function yet
    gets this one's name: ``Class.method``, and ``Class`` for a constructor.

    Args:
        checks: For each parameter, a function of the value and the parameter's name.

    Returns:
        A decorator that keeps the function's name, signature and docstring.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        checked = constrain(**checks)(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return checked(*args, **kwargs)
            except InvalidParameter as error:
                error.name_function(_public_name(function, args))
                raise

        @functools.wraps(function)
        async def await_call(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return await cast("Any", checked(*args, **kwargs))
            except InvalidParameter as error:
                error.name_function(_public_name(function, args))
                raise

        return cast("Callable[P, R]", await_call) if inspect.iscoroutinefunction(function) else call

    return decorate


def constrain(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the constraints of a function that several public functions call. Its errors get the public name.

    Every declared parameter that the caller gives is checked, in the order of the declaration, and replaced by what its
    check returns. A default is taken as it is.

    Args:
        checks: For each parameter, a function of the value and the parameter's name.

    Returns:
        A decorator that keeps the function's name, signature and docstring.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not checks:
            return function
        places = list(inspect.signature(function).parameters)
        indices = {name: places.index(name) for name in checks}

        @functools.wraps(function)
        def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
            positional: list[Any] = list(args)
            for name, check in checks.items():
                index = indices[name]
                if index < len(positional):
                    positional[index] = check(positional[index], name)
                elif name in kwargs:
                    kwargs[name] = check(kwargs[name], name)
            return cast("Callable[..., R]", function)(*positional, **kwargs)

        return check_and_call

    return decorate


def _public_name(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Name a function as its caller wrote it: ``Class`` for a constructor, ``Class.method`` for a method.

    A method that several classes share has the name of the class of its object.
    """
    name = function.__qualname__.rpartition("<locals>.")[2]
    owner, _, method = name.rpartition(".")
    if method in ("__init__", "__post_init__", "__call__"):
        return owner
    if args and owner in {base.__name__ for base in type(args[0]).__mro__}:
        return f"{type(args[0]).__name__}.{method}"
    return name


class Words(str):
    """What was given, in words of our own: a message shows them as they are, for every parameter."""

    __slots__ = ()


def reject(name: str, must: str, got: object) -> NoReturn:
    """Raise the error of a parameter whose value breaks its constraint.

    Args:
        name: The parameter.
        must: What it must be, such as "a positive number".
        got: What the caller gave. The message shows None, truth values, numbers and short texts, and of everything else
            the type alone. For a parameter that takes data it shows no text and no fraction either.
    """
    raise InvalidParameter(name, f"must be {must}. Got {_describe(got, is_data=name in DATA_PARAMETERS)} instead.")


def check_real(value: Any, name: str, must: str = "a finite number") -> float:
    """Check for a finite number, and return it as a Python float. Bools, strings and arrays are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        reject(name, must, value)
    try:
        number = float(value)
    except OverflowError:
        reject(name, must, value)
    if not math.isfinite(number):
        reject(name, must, value)
    return number


def check_positive(value: Any, name: str) -> float:
    """Check for a positive finite number."""
    number = check_real(value, name, "a positive finite number")
    if number <= 0:
        reject(name, "a positive finite number", value)
    return number


def check_epsilon(value: Any, name: str = "epsilon") -> float:
    """Check for an epsilon from 1e-9 to 1e9: below, a release is pure noise; above, it is not private."""
    number = check_positive(value, name)
    if not LEAST_EPSILON <= number <= 1e9:
        reject(name, "between 1e-9 and 1e9", value)
    return number


def check_probability(value: Any, name: str, *, zero: bool) -> float:
    """Check for a number in [0, 1) or, without ``zero``, in (0, 1)."""
    must = "a number in [0, 1)" if zero else "a number strictly between 0 and 1"
    number = check_real(value, name, must)
    if not (0 <= number < 1) or (number == 0 and not zero):
        reject(name, must, value)
    return number


def check_delta(value: Any, name: str = "delta") -> float:
    """Check for a delta: a number in [0, 1)."""
    return check_probability(value, name, zero=True)


def check_inside_unit(value: Any, name: str) -> float:
    """Check for a number strictly between 0 and 1."""
    return check_probability(value, name, zero=False)


def check_count(value: Any, name: str, *, least: int = 1) -> int:
    """Check for a whole number from ``least`` to 2^53."""
    must = f"a whole number, at least {least} and below 2^53"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) < 2**53:
        reject(name, must, value)
    return int(value)


def check_option(value: Any, name: str, options: Collection[str]) -> str:
    """Check for one of a few words."""
    if not isinstance(value, str) or value not in options:
        reject(name, "one of " + ", ".join(repr(option) for option in options), value)
    return value


def one_of(options: Collection[str]) -> Check:
    """Make a check for one of a few words."""
    return functools.partial(check_option, options=options)


def whole_from(least: int) -> Check:
    """Make a check for a whole number from ``least`` on."""
    return functools.partial(check_count, least=least)


def check_flag(value: Any, name: str) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        reject(name, "True or False", value)
    return value


def check_text(value: Any, name: str, *, least: int = 0, most: int = 1000) -> str:
    """Check free text: printable characters on one line, which terminals, pages and databases can all show."""
    must = f"text of {least} to {most} printable characters"
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        reject(name, must, value)
    return value


def check_progress(value: Any, name: str) -> Any:
    """Check for a function that is called with what is done and what there is in all, or None."""
    if value is not None and not callable(value):
        reject(name, "a function of (done, total), or None", value)
    return value


def optional(check: Check) -> Check:
    """Make a check that lets None pass."""
    return lambda value, name: None if value is None else check(value, name)


def check_array(value: Any, name: str, must: str) -> NDArray[Any]:
    """Convert the value to a NumPy array; reject a ragged or masked one and what is no array.

    A release is rejected: it would be taken for clean data. The same holds for what a sequence holds. `to_array` lists
    what can be converted.
    """
    if type(value) is np.ndarray and value.dtype.kind in "fiub":  # by far the most frequent
        return value
    reject_mixed_frame(value, name)
    is_masked = False
    try:
        kinds = _find_types(value)
        is_masked = any(issubclass(kind, np.ma.MaskedArray) for kind in kinds)
        if not is_masked and not any("guarantee" in getattr(kind, "__dataclass_fields__", ()) for kind in kinds):
            return to_array(value)
    except (MemoryError, OSError):
        raise
    except Exception:  # whatever the library of this array raises; its message may show a value
        pass
    reject(name, "an array without a mask" if is_masked else must, value)


def _find_types(value: Any, depth: int = 3) -> set[type]:
    """Find the types of a value and of what it holds, for a sequence of up to three levels and a column of vectors."""
    kind = type(value)
    is_sequence = hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and not hasattr(kind, "__array__")
    if is_sequence:
        is_sequence = not issubclass(kind, str | bytes | bytearray | memoryview | dict)
    elif issubclass(kind, _find_classes("pandas.Series", "polars.Series")):
        is_sequence = str(value.dtype).lower() == "object"
    if not is_sequence or not depth:
        return {kind}
    inner = set(map(type, value))
    if inner <= {float, int, str}:  # by far the most frequent
        return {kind} | inner
    return {kind}.union(*(_find_types(one, depth - 1) for one in value))


def reject_mixed_frame(value: Any, name: str) -> None:
    """Raise an error that helps for a lazy frame, and for a frame that holds its vectors in one column."""
    if isinstance(value, _find_classes("polars.LazyFrame")):
        raise InvalidParameter(name, "must be a frame that is in memory: collect() it first.")
    frame: Any = value
    if not isinstance(value, _find_classes("pandas.DataFrame", "polars.DataFrame")) or not len(frame):
        return
    columns = [column for column in frame.columns if _holds_vectors(frame[column])]
    if columns:
        raise InvalidParameter(
            name,
            "must be numbers. Got a frame with vectors in a column: pass the column that holds the vectors, such as "
            f"frame[{_describe(columns[0], is_data=False)}].",
        )


def _holds_vectors(column: Any) -> bool:
    """Whether each cell of a column is a vector, by the type of the column or of its first cell."""
    if str(column.dtype).startswith(("List", "Array")):
        return True
    return str(column.dtype) == "object" and isinstance(column.iloc[0], list | tuple | np.ndarray)


def to_array(value: Any) -> NDArray[Any]:
    """Convert a value to a NumPy array, without a copy where that is possible.

    Beside what NumPy converts, this reads a PyTorch tensor on any device, with a gradient and in half precision of
    either kind; a list or tuple of such tensors; a data frame of pandas with nullable numbers, where a missing one is
    NaN; and a column of pandas or polars that holds one vector, or one text, per row.
    """
    if isinstance(value, RowSource):  # which has what is used of an array, and is read part by part
        return cast("NDArray[Any]", value)
    tensors = _find_classes("torch.Tensor")
    if isinstance(value, tensors):
        return _read_tensor(value)
    if isinstance(value, list | tuple) and tensors and any(isinstance(one, tensors) for one in value):
        return np.asarray([_read_tensor(one) if isinstance(one, tensors) else one for one in value])
    array = np.asarray(value)
    if array.dtype.kind != "O" or isinstance(value, np.ndarray | list | tuple):
        return array
    frame: Any = value
    if isinstance(value, _find_classes("pandas.DataFrame")) and all(dtype.kind in "fiu" for dtype in frame.dtypes):
        return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    if isinstance(value, _find_classes("pandas.Series")) and frame.dtype.kind in "fiu":
        return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    if array.ndim == 1 and isinstance(value, _find_classes("pandas.Series", "polars.Series")):
        nested = to_array(list(array))
        # One row must not change the precision of the others.
        return nested.astype(np.float64) if nested.dtype.kind == "f" else nested
    return array


def _find_classes(*names: str) -> tuple[type, ...]:
    """Find classes of libraries that may not be installed. A library that is not loaded has made no value."""
    places = [name.split(".") for name in names]
    found = [getattr(sys.modules.get(library), name, None) for library, name in places]
    return tuple(one for one in found if isinstance(one, type))


def _read_tensor(tensor: Any) -> NDArray[Any]:
    """Convert a tensor of PyTorch; NumPy has no bfloat16, and single precision holds each of its values."""
    plain = tensor.detach().cpu()
    if str(plain.dtype) == "torch.bfloat16":
        plain = plain.float()
    return np.asarray(plain.numpy())


def _describe(got: object, *, is_data: bool) -> str:
    """Describe a value on one short line, without any content that may be private."""
    if isinstance(got, Words):
        return str(got)
    shape = getattr(got, "shape", None)
    if isinstance(shape, tuple) and shape:
        dtype = getattr(got, "dtype", "?")
        kind = str(dtype) if isinstance(dtype, np.dtype) else str(dtype).partition("(")[0]  # polars lists categories
        return f"an array of shape {tuple(shape)} and type {kind}"
    if isinstance(got, list | tuple | dict | set):
        return f"a {type(got).__name__} of length {len(got)}"
    if isinstance(got, type):
        return type.__repr__(got)
    if got is None or isinstance(got, numbers.Integral if is_data else numbers.Number | str):
        with contextlib.suppress(ValueError):  # a whole number of too many digits to print
            text = " ".join(repr(got).split())
            if len(text) <= 80:
                return text
    return f"a text of {len(got)} characters" if isinstance(got, str) else repr(type(got))
