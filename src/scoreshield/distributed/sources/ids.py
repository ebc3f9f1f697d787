"""Public ids of records: a column of texts or of integers beside the vectors. They are released as they are."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from scoreshield import _parquet
from scoreshield.distributed.sources.streams import explain_errors, open_file_stream, open_parquet_batches
from scoreshield.errors import InvalidInput

_BATCH_ROWS = 2**14


class IdSource(Protocol):
    """Reads the ids of records."""

    def read(self, start: int, stop: int) -> list[Any]:
        """Read the ids of the records from ``start`` up to ``stop``: all texts, or all integers."""


class ParquetIds:
    """The ids in one Parquet file.

    Args:
        path: The file, on this machine or by an address.
        column: The column of the ids.
    """

    def __init__(self, path: str, column: str) -> None:
        if path.lower().endswith(".npy"):
            raise InvalidInput("A .npy file holds no ids; leave 'ids' out, or give Parquet files.")
        stream = open_file_stream(path)
        weakref.finalize(self, stream.close)
        schema, self._window = open_parquet_batches(path, stream, column, _BATCH_ROWS)
        self._path, self.kind = path, find_id_kind(schema.field(column).type)
        types = _parquet.import_arrow(path)[0].types
        if not any(types.is_nested(field.type) for field in schema):  # else the ids would be a part of the vectors
            raise InvalidInput("Ids need vectors that are lists in one column, not numbers in several columns.")

    def read(self, start: int, stop: int) -> list[Any]:
        """Read the ids of the rows from ``start`` up to ``stop`` of the file."""
        with explain_errors(self._path):
            return list_ids(self._window.read(start, stop))


def find_id_kind(found: Any) -> str:
    """Return ``"text"`` or ``"integer"`` for the Arrow type of a column of ids.

    Raises:
        InvalidInput: It is of another type.
    """
    types = _parquet.import_arrow("ids")[0].types
    if types.is_dictionary(found):
        found = found.value_type
    if types.is_string(found) or types.is_large_string(found) or types.is_string_view(found):
        return "text"
    if types.is_integer(found) and not types.is_uint64(found):
        return "integer"
    raise InvalidInput("The ids of records must be texts, or integers of at most 64 bits with a sign.")


def agree_ids(kinds: Sequence[str]) -> None:
    """Raise an error unless all files have ids of one kind."""
    if len(set(kinds)) > 1:
        raise InvalidInput("The ids of records are texts in some files and integers in others.")


def list_ids(parts: Sequence[Any]) -> list[Any]:
    """Turn Arrow arrays of ids into a list.

    Raises:
        InvalidInput: An id is missing, or is not text in UTF-8.
    """
    if any(part.null_count for part in parts):
        raise InvalidInput("The collection holds records without an id.")
    try:
        return [one for part in parts for one in part.to_pylist()]
    except UnicodeDecodeError:
        pass
    raise InvalidInput("The collection holds ids that are not valid UTF-8.")  # without the first error, which has one
