"""One output of a release as JSON values: an audit must read what is restored exactly as it read the output.

None, numbers, texts and lists are the JSON values of the same kind. Everything else is an object with one field, whose
name says what it holds:

* `array`: an array. Small ones are plain numbers, and large ones are packed: the bytes of the numbers, all first bytes
  before all second ones (so that the equal signs and exponents are together), compressed, in base 64; of a symmetric
  matrix, one half. Every number is restored bit for bit.
* `set`, `tuple`, `dict`: as in Python.
* `floats`: a long list of numbers, packed. `float`: NaN or an infinity. `int`: a whole number of more than 64 bits.
  `scalar`: a NumPy number.
* `failure`: an exception, and its attributes where it has some.
* `object`: the class, the text and the content of another object (`scoreshield.audit.plain_values`). Earlier versions
  wrote `group`, `elements`, `sequence`, `mapping`, `key`, `vector`, `fields` and `text`, which still are read.
* `numbers`: the numbers of a ScoreShield release.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.encoding import to_numbers
from scoreshield.audit.outputs import flatten_release
from scoreshield.audit.plain_values import Failure, OutputObject, ReleaseNumbers, is_a, simplify
from scoreshield.releases.results import Release

#: The most bytes of one unpacked array: a packed line of a megabyte could claim a thousand.
LARGEST = 2**28
#: Outputs of more numbers than this are packed.
_PLAIN = 64
#: The types that JSON numbers have as an array; others are packed too.
_PLAIN_TYPES = ("<f8", "<i8", "|b1")


def encode_output(output: Any, records: int) -> dict[str, Any] | None:
    """Convert an output to JSON values from which `decode_output` restores it.

    Args:
        output: The output.
        records: How many records the collection has.

    Returns:
        An object with one field, or None where the output is too large to be read back.
    """
    try:
        if is_a(output, Release):
            return {"numbers": _encode_array(flatten_release(output, records))}
        encoded = _encode(simplify(output))
    except _TooLarge:
        return None
    return encoded if isinstance(encoded, dict) else {"value": encoded}


def decode_output(line: dict[str, Any]) -> Any:
    """Restore the output from what `encode_output` returned.

    Raises:
        ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError: The line holds no output.
    """
    if set(line) == {"value"}:
        return _decode(line["value"])
    return _decode(line)


def convert_as_early(output: Any) -> Any:
    """Convert numbers to the array that earlier versions restored them as.

    They saved lists, tuples and single numbers as arrays. In the folder of such an audit new outputs must read like the
    old ones, or the form of an output would show how many old ones a collection has.
    """
    numbers = to_numbers(output)
    if numbers is None:
        return output
    if not isinstance(output, np.ndarray | int | float | np.number):
        return numbers
    array = np.asarray(output)
    return np.asarray(array.tolist()) if array.size <= _PLAIN else array


class _TooLarge(Exception):
    """An array could not be read back."""


# ---- Values.


def _encode(output: Any) -> Any:
    """Encode plain values, see `scoreshield.audit.plain_values`."""
    match output:
        case None | bool():
            return output
        case Failure():
            content = [output.kind, output.message]
            return {"failure": [*content, _encode(output.attributes)] if output.attributes else content}
        case np.bool_():
            return {"scalar": [output.dtype.str, bool(output)]}
        case np.integer() | np.floating():
            return {"scalar": [output.dtype.str, _encode(output.item())]}
        case str():
            return output
        case int():
            return output if -(2**63) <= output < 2**64 else {"int": hex(output)}
        case float():
            return output if math.isfinite(output) else {"float": repr(output)}
        case np.ndarray():
            return {"array": _encode_array(output)}
        case set():
            return {"set": [_encode(key) for key in output]}
        case dict():
            return {"dict": [[_encode(key), _encode(value)] for key, value in output.items()]}
        case tuple():
            return {"tuple": _encode_items(output)}
        case list():
            return _encode_items(output)
        case OutputObject():
            return {"object": [output.kind, output.text, _encode(output.content)]}
    raise TypeError(type(output).__name__)


def _encode_items(items: list[Any] | tuple[Any, ...]) -> Any:
    is_long = len(items) > _PLAIN and set(map(type, items)) == {float}
    return {"floats": _pack(np.array(items))} if is_long else [_encode(item) for item in items]


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return _DECODERS[name](content)


def _decode_float(content: Any) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueError
    return float(content)


def _decode_scalar(content: Any) -> Any:
    kind, value = np.dtype(str(content[0])), _decode(content[1])
    if kind.kind not in "fiub" or not isinstance(value, int | float):
        raise ValueError
    return kind.type(value)


def _decode_dict(content: Any) -> dict[Any, Any]:
    return {_decode(key): _decode(value) for key, value in content}


def _decode_failure(content: Any) -> Failure:
    kind, message, *attributes = content
    found = _decode(attributes[0]) if attributes else {}
    if len(attributes) > 1 or not isinstance(found, dict):
        raise ValueError
    return Failure(str(kind), str(message), found)


def _decode_object(content: Any) -> OutputObject:
    kind, text, inner = content
    return OutputObject(_check_name(kind), _decode(inner), str(text))


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or "\0" in name:
        raise ValueError
    return name


def _decode_release(content: Any) -> NDArray[Any]:
    return _decode_array(content).view(ReleaseNumbers)


# ---- Kinds of values that earlier versions wrote.


def _decode_elements(content: Any) -> Any:
    _, _, shape, items = content
    array = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        array[place] = _decode(item)
    return array.reshape(tuple(int(size) for size in shape)).tolist()


def _decode_sequence(content: Any) -> OutputObject:
    name, _, is_tuple, items = content
    return OutputObject(_check_name(name), (tuple if is_tuple else list)(_decode(items)))


def _decode_group(content: Any) -> set[Any]:
    _, _, keys = content
    return set(_decode(keys))


def _decode_mapping(content: Any) -> dict[Any, Any]:
    _, _, pairs = content
    return _decode_dict(pairs)


def _decode_vector(content: Any) -> OutputObject:
    name, _, values = content
    return OutputObject(_check_name(name), _decode_array(values))


def _decode_fields(content: Any) -> OutputObject:
    name, _, attributes = content
    return OutputObject(_check_name(name), {str(key): _decode(value) for key, value in attributes.items()})


def _decode_text(content: Any) -> OutputObject:
    name, text = content
    return OutputObject(_check_name(name), text=str(text))


def _decode_key(content: Any) -> OutputObject:
    name, _, shown = content
    return OutputObject(_check_name(name), text=str(shown))


# ---- Arrays.


def _encode_array(array: NDArray[Any]) -> Any:
    array = np.asarray(array)
    array = array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array
    is_plain = array.dtype.str in _PLAIN_TYPES and 0 < array.size <= _PLAIN and np.isfinite(array).all()
    return array.tolist() if is_plain else _pack(array)


def _decode_array(values: Any) -> NDArray[Any]:
    if isinstance(values, dict):
        return _unpack(values)
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or not array.size:
        raise ValueError
    return array


def _pack(array: NDArray[Any]) -> dict[str, Any]:
    if array.nbytes > LARGEST:
        raise _TooLarge
    is_half = array.ndim == 2 and array.shape[0] == array.shape[1] and _is_symmetric(array)
    flat = array[np.triu_indices(len(array))] if is_half else array.ravel()
    flat = flat.astype(flat.dtype.newbyteorder("<"))
    by_place = flat.view(np.uint8).reshape(len(flat), flat.dtype.itemsize).T
    content = base64.b64encode(zlib.compress(by_place.tobytes(), 1)).decode()
    return {"type": flat.dtype.str, "shape": list(array.shape), "half": is_half, "packed": content}


def _is_symmetric(matrix: NDArray[Any]) -> bool:
    """Whether both halves are the same bit for bit, also in the signs of zeros."""
    return np.array_equal(matrix, matrix.T) and (
        matrix.dtype.kind != "f" or np.array_equal(np.signbit(matrix), np.signbit(matrix.T))
    )


def _unpack(values: dict[str, Any]) -> NDArray[Any]:
    kind, shape = np.dtype(str(values["type"])), tuple(int(size) for size in values["shape"])
    if kind.kind not in "fiub" or any(size < 0 for size in shape) or math.prod(shape) * kind.itemsize > LARGEST:
        raise ValueError
    size = len(shape) == 2 and shape[0] * (shape[0] + 1) // 2 if values["half"] else math.prod(shape)
    content = _decompress(base64.b64decode(values["packed"], validate=True), size * kind.itemsize)
    by_place = np.frombuffer(content, np.uint8).reshape(kind.itemsize, size)
    flat = np.ascontiguousarray(by_place.T).view(kind).ravel()
    if not values["half"]:
        return flat.reshape(shape)
    matrix = np.empty(shape, kind)
    upper = np.triu_indices(shape[0])
    matrix[upper] = matrix.T[upper] = flat
    return matrix


def _decompress(content: bytes, size: int) -> bytes:
    """Decompress exactly this number of bytes; stop if there are more."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(content, size + 1)
    except zlib.error:
        raise ValueError from None
    if len(raw) != size or not stream.eof:
        raise ValueError
    return raw


#: How each kind of value is restored.
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "array": _decode_array,
    "dict": _decode_dict,
    "elements": _decode_elements,
    "failure": _decode_failure,
    "fields": _decode_fields,
    "float": _decode_float,
    "floats": lambda content: _unpack(content).tolist(),
    "group": _decode_group,
    "int": lambda content: int(str(content), 16),
    "key": _decode_key,
    "mapping": _decode_mapping,
    "numbers": _decode_release,
    "object": _decode_object,
    "scalar": _decode_scalar,
    "sequence": _decode_sequence,
    "set": lambda content: set(_decode(content)),
    "text": _decode_text,
    "tuple": lambda content: tuple(_decode(content)),
    "vector": _decode_vector,
}
