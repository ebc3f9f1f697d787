"""Outputs that were made before an audit, read from files: one row a release, with the record and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _files
from scoreshield.errors import InvalidInput


def saved_outputs(with_record: str | Path, without_record: str | Path | None = None) -> tuple[Any, Any]:
    """Outputs that were made before: one row a release, with the record and without it, as (m, k) float64 arrays.

    Two .npy, .npz or .parquet files, or one .npz that holds both as arrays named "with" and "without". Columns of two
    .parquet files are matched by name, in the order of the first.
    """
    if without_record is None:
        if Path(with_record).suffix.lower() != ".npz":
            raise InvalidInput(
                f"{with_record} holds the outputs with the record; a second file must hold those without it."
            )
        both = [_files.read_array(with_record, name=name) for name in ("with", "without")]
    else:
        both = [_files.read_array(path) for path in (with_record, without_record)]
    paths = (with_record, with_record if without_record is None else without_record)
    first, second = (_outputs(array, path) for array, path in zip(both, paths, strict=True))
    shapes = [array.shape[1:] or (1,) for array in both]  # before they are flattened: (2, 4) is not (4, 2)
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"Both sides must hold outputs of one shape. Got {shapes[0]} with the record and {shapes[1]} without it."
        )
    if all(Path(path).suffix.lower() == ".parquet" for path in paths):
        second = second[:, _places(*map(_columns, paths))]
    return first, second


def _columns(path: str | Path) -> list[str]:
    """The names of the columns that `io.read_array` reads of a .parquet file, in its order."""
    import pyarrow.parquet as parquet
    from pyarrow import types

    fields = list(parquet.read_schema(path))
    lists = [
        field.name
        for field in fields
        if types.is_list(field.type) or types.is_large_list(field.type) or types.is_fixed_size_list(field.type)
    ]
    return lists or [field.name for field in fields if types.is_floating(field.type) or types.is_integer(field.type)]


def _places(first: list[str], second: list[str]) -> Any:
    """Where the columns of the first file stand in the second."""
    if first == second:
        return slice(None)
    if len(set(first)) < len(first) or sorted(first) != sorted(second):
        apart = sorted(set(first) ^ set(second)) or first
        raise InvalidInput(f"Both .parquet files must have the same columns, each once. They differ in {apart[0]!r}.")
    return [second.index(name) for name in first]


def _outputs(array: NDArray[Any], path: str | Path) -> NDArray[np.float64]:
    if array.dtype.kind not in "fiub" or array.ndim < 1 or not array.size:
        raise InvalidInput(f"{path} must hold numbers, one row a release. Got shape {array.shape}, type {array.dtype}.")
    rows = array.astype(np.float64).reshape(len(array), -1)
    if not np.isfinite(rows).all():
        raise InvalidInput(
            f"{path} must hold finite numbers. Got NaN or infinities in {_bad(rows)} of {len(rows)} rows."
        )
    return rows


def _bad(rows: NDArray[np.float64]) -> int:
    return int((~np.isfinite(rows)).any(axis=1).sum())
