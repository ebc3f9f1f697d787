"""The file of one block: columns of released values, as Parquet."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _parquet
from scoreshield.errors import InvalidInput

#: Released columns by their names. A matrix is a column of lists of one length.
Columns = dict[str, NDArray[Any]]


def write_part(columns: Columns) -> bytes:
    """Write columns of one length as a Parquet file."""
    pa, parquet = _parquet.import_arrow("the parts of a release")
    arrays = [_to_arrow(pa, values) for values in columns.values()]
    table = pa.Table.from_arrays(arrays, names=list(columns))
    raw = pa.BufferOutputStream()
    # Noise does not compress. Numbers of records rise by one, and take little space as differences.
    parquet.write_table(
        table,
        raw,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        column_encoding={"row": "DELTA_BINARY_PACKED"} if "row" in columns else None,
    )
    content: bytes = raw.getvalue().to_pybytes()
    return content


def read_part(content: bytes) -> Columns:
    """Read what `write_part` wrote."""
    pa, parquet = _parquet.import_arrow("the parts of a release")
    try:
        # In this thread: a scanner of Arrow leaves threads behind, which abort a process that ends soon afterwards.
        table = parquet.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except pa.ArrowException:
        raise InvalidInput("A part of the release is damaged.") from None
    return {name: _to_numpy(pa, table.column(name)) for name in table.column_names}


def join_columns(parts: list[Columns]) -> Columns:
    """Join the columns of several parts, in their order."""
    if len(parts) == 1:  # saves a copy
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def encode_matrix(matrix: NDArray[np.float64] | None) -> dict[str, Any] | None:
    """Write public doubles, of any shape, as a value of a manifest; None stays None."""
    if matrix is None:
        return None
    raw = np.ascontiguousarray(matrix, dtype="<f8").tobytes()
    return {"shape": list(matrix.shape), "doubles": base64.b64encode(raw).decode()}


def decode_matrix(value: Any) -> NDArray[np.float64] | None:
    """Read what `encode_matrix` wrote."""
    if value is None:
        return None
    try:
        raw = base64.b64decode(value["doubles"], validate=True)
        return np.frombuffer(raw, dtype="<f8").reshape(value["shape"]).astype(np.float64)
    except (KeyError, TypeError, ValueError):
        raise InvalidInput("The manifest of the release holds no valid matrix.") from None


def _to_arrow(pa: Any, values: NDArray[Any]) -> Any:
    if values.dtype.kind == "O":
        return pa.array(values, pa.string())  # also where there are none
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def _to_numpy(pa: Any, column: Any) -> NDArray[Any]:
    whole = column.combine_chunks()
    if pa.types.is_fixed_size_list(whole.type):
        values: NDArray[Any] = whole.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(-1, whole.type.list_size)
    found: NDArray[Any] = whole.to_numpy(zero_copy_only=False)
    return found
