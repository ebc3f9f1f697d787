"""One output as a line of the journal, and back: small ones as plain JSON numbers, large ones packed.

Packed are the bytes of the numbers, all first bytes before all second ones (so that the equal signs and exponents stand
together), compressed, in base 64; of a symmetric matrix, one half. Every number comes back bit for bit.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.outputs import numbers

#: Outputs of more numbers than this are packed.
_PLAIN = 64
#: Bytes of one output, unpacked: a packed line of a megabyte could name a thousand.
LARGEST = 2**28


def encoded(output: Any, records: int) -> tuple[dict[str, Any], int] | None:
    """JSON values that `decoded` brings back: arrays and sets as they are, all else as its numbers; and how many.

    None where they are not all finite, or too many to be read back.
    """
    row = numbers(output, records)  # which refuses what holds no numbers
    if not np.isfinite(row).all() or row.nbytes > LARGEST:
        return None
    if isinstance(output, set | frozenset):
        return {"set": sorted(int(place) for place in output)}, len(row)
    if isinstance(output, np.ndarray | int | float | np.number) and np.asarray(output).dtype.kind in "fiub":
        return {"array": _values(np.asarray(output))}, len(row)
    return {"numbers": _values(row)}, len(row)


def decoded(kept: dict[str, Any]) -> Any:
    """The output that a line holds; ValueError, KeyError, TypeError or OverflowError where it holds none."""
    if "set" in kept:
        return {int(place) for place in kept["set"]}
    values = kept["array"] if "array" in kept else kept["numbers"]
    array = _unpacked(values) if isinstance(values, dict) else np.asarray(values)
    if array.dtype.kind not in "fiub" or not array.size or not np.isfinite(array).all():
        raise ValueError
    return array


def _values(array: NDArray[Any]) -> Any:
    array = array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array
    return array.tolist() if array.size <= _PLAIN else _packed(array)


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    half = array.ndim == 2 and array.shape[0] == array.shape[1] and np.array_equal(array, array.T)
    flat = array[np.triu_indices(len(array))] if half else array.ravel()
    flat = flat.astype(flat.dtype.newbyteorder("<"))
    by_place = flat.view(np.uint8).reshape(len(flat), -1).T
    content = base64.b64encode(zlib.compress(by_place.tobytes(), 1)).decode()
    return {"type": flat.dtype.str, "shape": list(array.shape), "half": half, "packed": content}


def _unpacked(values: dict[str, Any]) -> NDArray[Any]:
    kind, shape = np.dtype(str(values["type"])), tuple(int(size) for size in values["shape"])
    if kind.kind not in "fiub" or any(size < 1 for size in shape) or math.prod(shape) * kind.itemsize > LARGEST:
        raise ValueError
    size = len(shape) == 2 and shape[0] * (shape[0] + 1) // 2 if values["half"] else math.prod(shape)
    content = _inflated(base64.b64decode(values["packed"], validate=True), size * kind.itemsize)
    by_place = np.frombuffer(content, np.uint8).reshape(kind.itemsize, -1)
    flat = np.ascontiguousarray(by_place.T).view(kind).ravel()
    if not values["half"]:
        return flat.reshape(shape)
    found = np.empty(shape, kind)
    upper = np.triu_indices(shape[0])
    found[upper] = found.T[upper] = flat
    return found


def _inflated(content: bytes, size: int) -> bytes:
    """Exactly so many bytes out of compressed ones; what would give more is not unpacked any further."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(content, size + 1)
    except zlib.error:
        raise ValueError from None
    if len(found) != size or not stream.eof:
        raise ValueError
    return found
