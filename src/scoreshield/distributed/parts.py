"""The file of one block: columns of released values, as Parquet."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _parquet
from scoreshield.errors import InvalidInput

#: Released columns by their names. A matrix is a column of lists of one length.
Columns = dict[str, NDArray[Any]]
#: Where the seal of a part lies in the facts of its Parquet schema.
_SEAL = b"scoreshield_seal"


def write_part(columns: Columns, seal: str) -> bytes:
    """Write columns of one length as a Parquet file, with a seal beside them."""
    pa, parquet = _parquet.import_arrow("the parts of a release")
    arrays = [_to_arrow(pa, values) for values in columns.values()]
    table = pa.Table.from_arrays(arrays, names=list(columns)).replace_schema_metadata({_SEAL: seal})
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
    """Read the columns that `write_part` wrote."""
    return read_sealed_part(content)[0]


def read_sealed_part(content: bytes) -> tuple[Columns, str]:
    """Read what `write_part` wrote: the columns and the seal, which is empty in parts of earlier versions."""
    pa, parquet = _parquet.import_arrow("the parts of a release")
    try:
        # In this thread: a scanner of Arrow leaves threads behind, which abort a process that ends soon afterwards.
        table = parquet.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except pa.ArrowException:
        raise InvalidInput("A part of the release is damaged.") from None
    columns = {name: _to_numpy(pa, table.column(name)) for name in table.column_names}
    return columns, (table.schema.metadata or {}).get(_SEAL, b"").decode("ascii", "replace")


def list_numbers(columns: Columns) -> list[NDArray[Any]]:
    """List the columns as numbers, which fix all their values: a column of texts as the bytes of one text."""
    return [
        np.frombuffer(json.dumps(values.tolist()).encode(), dtype=np.uint8) if values.dtype.kind == "O" else values
        for values in columns.values()
    ]


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
