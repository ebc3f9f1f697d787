"""From any object that a release may return to plain values, which an audit reads, writes down and restores.

Plain values are None, booleans, numbers of Python and NumPy, texts, arrays of numbers, lists, tuples, dicts and sets of
them, `Failure` for an exception that was raised, and `OutputObject` for everything else. The conversion runs code of
the object's class, which is not ours: whatever that raises, the object is then known by the name of its class alone.

Conversion takes a bounded time. Iterators are consumed, up to a limit. Of an output that is very long, its ends, its
length and a checksum are kept; of numbers also their sums.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from types import MemberDescriptorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._loading import describe_error

#: How deep nested outputs are read, and the most values within one.
_DEPTH, _VALUES = 24, 8192
#: The most numbers of a list or an array, and the most letters of a text, that are kept whole.
LONGEST_ARRAY, _LONGEST_TEXT = 2**16, 2**15
#: How many numbers or items at each end of longer ones are kept, and how many of their blocks or steps.
_ENDS, _BLOCKS = 256, 256
#: How many letters at the beginning and at the end of a longer text are kept.
_BEGINNING, _END = 2**14, 2**10
#: The longest list whose sum is computed.
_LONGEST_SUM = 2**24
#: How many causes of an exception are followed.
_CAUSES = 3
#: Kinds of NumPy types that are numbers.
_NUMERIC = "fiub"
_SCALARS = frozenset({bool, int, float, type(None)})
#: Addresses in memory, which differ from call to call and say nothing.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
#: Digits as letters: a checksum is a word, and no number.
_AS_LETTERS = str.maketrans("0123456789", "ghijklmnop")


@dataclass(frozen=True)
class Failure:
    """An exception that a release raised instead of an output.

    Attributes:
        kind: The name of its class.
        message: The first line of its text.
        attributes: Its attributes, further arguments and cause, as plain values. They do not count where failures are
            compared.
    """

    kind: str
    message: str
    attributes: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class OutputObject:
    """An object of a class that an audit does not know.

    Attributes:
        kind: The name of its class.
        content: Its numbers (an array), items (a list or tuple) or attributes (a dict), or None.
        text: What else is known about it, such as its representation where it has no content.
    """

    kind: str
    content: Any = None
    text: str = ""

    def __str__(self) -> str:
        return self.text


class ReleaseNumbers(np.ndarray[Any, np.dtype[Any]]):
    """The numbers of a ScoreShield release, which are kept whole however many there are."""


def make_failure(error: BaseException) -> Failure:
    """Convert an exception that a release raised."""
    return Failure(type(error).__name__, describe_error(error), _Simplifier().describe_exception(error))


def simplify(output: Any) -> Any:
    """Convert an output to plain values; plain values stay as they are."""
    kind = type(output)
    if kind in _SCALARS or (kind is np.ndarray and is_short_array(output)):
        return output
    if kind is ReleaseNumbers:
        return output.view(np.ndarray)
    return _Simplifier().convert(output, 0)


def write_checksum(content: Any) -> str:
    """Compute a checksum of bytes, as a word without digits."""
    return hex(zlib.crc32(content))[2:].translate(_AS_LETTERS)


def is_short_array(array: NDArray[Any]) -> bool:
    """Whether an array is kept as it is: of numbers of at most 64 bits, and not too many."""
    return array.dtype.kind in _NUMERIC and array.dtype.itemsize <= 8 and array.size <= LONGEST_ARRAY


def is_a(value: Any, kind: type[Any]) -> bool:
    """Return whether a value is of a class, without running code of the value as `isinstance` may."""
    return issubclass(type(value), kind)


def _name_class(value: Any) -> str:
    return type(value).__name__


class _Simplifier:
    """Converts one output, within limits.

    Attributes:
        left: How many more values may be read.
        within: The identities of the objects that are being read, to notice one that holds itself.
    """

    def __init__(self) -> None:
        self.left = _VALUES
        self.within: set[int] = set()

    def convert(self, value: Any, depth: int) -> Any:
        """Convert a value at this depth."""
        if type(value) in _SCALARS:
            return value
        self.left -= 1
        if depth > _DEPTH or self.left < 0 or id(value) in self.within:
            return OutputObject(_name_class(value))
        self.within.add(id(value))
        try:
            return self._convert(value, depth)
        except (Exception, SystemExit, GeneratorExit):  # the class of the value is not our code
            return OutputObject(_name_class(value))
        finally:
            self.within.discard(id(value))

    def describe_exception(self, error: BaseException, depth: int = 0) -> dict[str, Any]:
        """Describe what an exception holds besides the first line of its message."""
        if depth > _CAUSES:
            return {}
        try:
            further = _list_further(error) | dict(islice(vars(error).items(), _ENDS))
            found = {str(name): self.convert(value, 1) for name, value in further.items()}
        except (Exception, SystemExit, GeneratorExit):
            found = {}
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            found["cause"] = Failure(
                type(cause).__name__, describe_error(cause), self.describe_exception(cause, depth + 1)
            )
        return found

    def _convert(self, value: Any, depth: int) -> Any:
        match value:
            case OutputObject():
                return value
            case Failure():
                return value
            case Enum() if not isinstance(value, int | str):
                return OutputObject(_name_class(value), self.convert(value.value, depth + 1), value.name)
            case bool() | int() | float():
                return value if isinstance(value, np.generic) else _drop_class(value)
            case str():
                return self._convert_text(str.__str__(value))
            case bytes() | bytearray() | memoryview():
                return self._convert_bytes(bytes(value), _name_class(value))
            case np.generic() if value.dtype.kind in _NUMERIC:
                return value if value.dtype.itemsize <= 8 else np.float64(value)
            case np.ndarray():
                return self._convert_array(value, depth)
            case set() | frozenset():
                return self._convert_set(value)
            case Mapping():
                return self._convert_mapping(value, depth)
            case list() | tuple():
                return self._convert_sequence(value, depth)
            case BaseException():
                content = {"message": self._convert_text(str(value)), **self.describe_exception(value)}
                return OutputObject(_name_class(value), content)
            case Iterator():
                return OutputObject(_name_class(value), self._convert_items(value, depth))
        return self._convert_object(value, depth)

    def _convert_text(self, text: str) -> Any:
        if len(text) <= _LONGEST_TEXT:
            return text
        whole = text.encode("utf-8", "surrogatepass")
        return OutputObject(
            "long text",
            {
                "length": len(text),
                "lines": text.count("\n"),
                "checksum": write_checksum(whole),
                "beginning": text[:_BEGINNING],
                "end": text[-_END:],
            },
        )

    def _convert_bytes(self, content: bytes, name: str) -> OutputObject:
        if len(content) <= _LONGEST_TEXT:
            return OutputObject(name, text=repr(content))
        ends = np.frombuffer(content[:_ENDS] + content[-_ENDS:], np.uint8)
        return OutputObject(
            f"long {name}", {"length": len(content), "checksum": write_checksum(content), "ends": ends.copy()}
        )

    def _convert_array(self, array: NDArray[Any], depth: int) -> Any:
        if isinstance(array, np.ma.MaskedArray):
            return self._convert_masked(array, depth)
        array = np.asarray(array)
        if array.dtype.names is not None:
            fields = {name: self.convert(array[name], depth + 1) for name in array.dtype.names}
            return OutputObject(f"array{array.shape}", fields, str(array.dtype))
        if array.dtype.kind in _NUMERIC:
            array = array if array.dtype.itemsize <= 8 else array.astype(np.float64)
            return array if array.size <= LONGEST_ARRAY else self._condense_array(array)
        if array.dtype.kind == "c" and array.size > _ENDS:
            parts = {"real": array.real, "imag": array.imag}
            return OutputObject("array", {name: self.convert(part, depth + 1) for name, part in parts.items()})
        if array.size > _VALUES:
            flat = array.ravel()
            return OutputObject(
                f"long array{array.shape}", self._convert_items(iter(flat[:: _count_steps(array.size)]), depth)
            )
        return self.convert(array.tolist(), depth)

    def _convert_masked(self, array: Any, depth: int) -> OutputObject:
        content = {"mask": self.convert(np.ma.getmaskarray(array), depth + 1)}
        if array.dtype.kind in _NUMERIC:
            data = np.where(content["mask"], np.nan, np.asarray(array.data, dtype=np.float64))
        else:
            data = np.asarray(array.filled())
        content["data"] = self.convert(data, depth + 1)
        return OutputObject(_name_class(array), content, str(array.dtype))

    def _condense_array(self, array: NDArray[Any]) -> OutputObject:
        flat = np.ascontiguousarray(array).ravel()
        numbers = flat.astype(np.float64)
        starts = np.arange(0, len(flat), _count_steps(len(flat)))
        content = {
            "length": len(flat),
            "sum": float(numbers.sum()),
            "smallest": float(numbers.min()),
            "largest": float(numbers.max()),
            "sums": np.add.reduceat(numbers, starts),
            "some": numbers[starts],
            "ends": np.concatenate([numbers[:_ENDS], numbers[-_ENDS:]]),
            "checksum": write_checksum(flat.view(np.uint8)),
        }
        return OutputObject(f"long array{array.shape} {array.dtype.name}", content)

    def _convert_set(self, value: set[Any] | frozenset[Any]) -> Any:
        self.left -= len(value)
        if len(value) > _VALUES:
            keys = set(map(_simplify_key, islice(value, _VALUES)))
            return OutputObject("long set", {"length": len(value), "keys": keys})
        return set(map(_simplify_key, value))

    def _convert_mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        length = len(value)
        most = max(0, min(length, self.left))
        self.left -= most
        items = {_simplify_key(key): self.convert(content, depth + 1) for key, content in islice(value.items(), most)}
        return items if most == length else OutputObject("long dict", {"length": length, "items": items})

    def _convert_sequence(self, value: list[Any] | tuple[Any, ...], depth: int) -> Any:
        is_tuple = isinstance(value, tuple)
        length = len(value)
        is_known = type(value) is list or type(value) is tuple
        if length > LONGEST_ARRAY:
            return self._condense_sequence(value, depth)
        if set(map(type, value)) <= _SCALARS:
            items: Any = value if is_known else tuple(value) if is_tuple else list(value)
        elif length > self.left:
            return self._condense_sequence(value, depth)
        else:
            self.left -= length
            items = [self.convert(item, depth + 1) for item in value]
            items = tuple(items) if is_tuple else items
        return items if is_known else OutputObject(_name_class(value), items)

    def _condense_sequence(self, value: list[Any] | tuple[Any, ...], depth: int) -> OutputObject:
        ends = max(0, min(_ENDS, self.left // 4))
        chosen = {"beginning": value[:ends], "end": value[-ends:] if ends else []}
        chosen["some"] = value[:: _count_steps(len(value))][: max(0, self.left // 4)]
        types = {type(one) for part in chosen.values() for one in part}
        content: dict[str, Any] = {"length": len(value)}
        if types <= {bool, int, float} and len(value) <= _LONGEST_SUM:
            content["sum"] = _add_up(value)
        content |= {name: self.convert(part, depth + 1) for name, part in chosen.items()}
        return OutputObject(f"long {_name_class(value)}", content)

    def _convert_items(self, items: Iterable[Any], depth: int) -> list[Any]:
        """Take items of an iterator, and the exception that ends it."""
        found: list[Any] = []
        try:
            for item in islice(items, max(0, min(_VALUES // 2, self.left))):
                found.append(self.convert(item, depth + 1))
        except (Exception, SystemExit, GeneratorExit) as error:
            found.append(make_failure(error))
        return found

    def _convert_object(self, value: Any, depth: int) -> OutputObject:
        name = _name_class(value)
        is_frame = type(value).__module__.partition(".")[0] in ("pandas", "polars")
        if (array := _find_numbers(value)) is not None:
            names = _describe_frame(value) if is_frame else str(getattr(value, "dtype", array.dtype))
            return OutputObject(name, self._convert_array(array, depth), f"{names} {array.shape}")
        if is_frame and hasattr(value, "dtypes" if hasattr(value, "columns") else "to_list"):
            return self._convert_frame(value, depth)
        attributes = self._list_attributes(value, depth)
        items = self._convert_items(value, depth) if isinstance(value, Iterable) else None
        if attributes:
            return OutputObject(name, attributes if items is None else attributes | {"items": items})
        if items is not None:
            return OutputObject(name, items)
        return OutputObject(name, text=_ADDRESS.sub("", repr(value)[:_LONGEST_TEXT]))

    def _convert_frame(self, value: Any, depth: int) -> OutputObject:
        """Convert a table or a column of pandas or polars that holds more than numbers."""
        if hasattr(value, "columns"):
            columns = {str(name): value[name] for name in value.columns[:_ENDS]}
        else:
            columns = {str(value.name): value}
        if hasattr(index := getattr(value, "index", None), "to_list"):
            columns["index"] = index
        content = {name: self._convert_column(column, depth + 1) for name, column in columns.items()}
        return OutputObject(_name_class(value), content, _describe_frame(value))

    def _convert_column(self, column: Any, depth: int) -> Any:
        array = np.asarray(column)
        return self.convert(array if array.dtype.kind in _NUMERIC else column.to_list(), depth)

    def _list_attributes(self, value: Any, depth: int) -> dict[str, Any]:
        found = dict(islice(vars(value).items(), _VALUES)) if hasattr(value, "__dict__") else {}
        for parent in type(value).__mro__:
            for name, member in vars(parent).items() if "__slots__" in vars(parent) else ():
                if isinstance(member, MemberDescriptorType) and hasattr(value, name):
                    found.setdefault(name, getattr(value, name))
        self.left -= len(found)
        return {str(name): self.convert(one, depth + 1) for name, one in found.items()}


def _list_further(error: BaseException) -> dict[str, Any]:
    """List the later lines of a message and the later arguments; those of an OSError are in its message."""
    lines = enumerate(str(error)[:_LONGEST_TEXT].splitlines()[1:_ENDS])
    found: dict[str, Any] = {f"line {place + 2}": line for place, line in lines}
    if isinstance(error, OSError):
        return found
    return found | {f"argument {place + 2}": one for place, one in enumerate(error.args[1:_ENDS])}


def _drop_class(value: float) -> Any:
    """Convert a number of a class that is derived from a number of Python."""
    return int(value) if isinstance(value, int) else float(value)


def _simplify_key(key: Any) -> Any:
    """Convert a key of a dict or an element of a set."""
    if type(key) in _SCALARS or type(key) is str:
        return key if type(key) is not str or len(key) <= _END else f"{key[:_END]} {write_checksum(key.encode())}"
    if isinstance(key, np.generic) and key.dtype.kind in _NUMERIC:
        return key
    if isinstance(key, OutputObject):
        return key
    if isinstance(key, str):
        return _simplify_key(str.__str__(key))
    if isinstance(key, int | float):
        return _drop_class(key)
    try:
        return OutputObject(_name_class(key), text=_ADDRESS.sub("", str(key)[:_END]))
    except (Exception, SystemExit, GeneratorExit):
        return OutputObject(_name_class(key), text=_name_class(key))


def _find_numbers(value: Any) -> NDArray[Any] | None:
    """Find the numbers of an object that NumPy or `scoreshield._validation` can convert."""
    if not (hasattr(value, "__array__") or hasattr(value, "__array_interface__") or hasattr(value, "__getitem__")):
        return None
    if type(value) is memoryview or (hasattr(value, "__len__") and len(value) > LONGEST_ARRAY * _BLOCKS):
        return None
    try:
        array = _validation.to_array(value)
    except (Exception, SystemExit, GeneratorExit):
        return None
    return array if array.dtype.kind in _NUMERIC and array.size else None


def _describe_frame(value: Any) -> str:
    """Describe the types, the names and the index of a table or a column of pandas or polars."""
    types = [str(one) for one in value.dtypes] if hasattr(value, "columns") else [str(value.dtype)]
    names = [str(one) for one in value.columns] if hasattr(value, "columns") else [str(value.name)]
    index: Any = getattr(value, "index", None)
    labels = write_checksum(str(index.to_list()).encode()) if hasattr(index, "to_list") else ""
    return " ".join([*types[:_ENDS], *names[:_ENDS], labels])


def _count_steps(length: int) -> int:
    return max(1, -(-length // _BLOCKS))


def _add_up(values: Any) -> float:
    try:
        return float(sum(values))
    except (TypeError, OverflowError, ValueError):
        return float("nan")
