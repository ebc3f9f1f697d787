"""The facts of a partitioned collection: its files, how many rows each has, and what identifies their state.

The size and the state of a file may depend on the records in it: a Parquet file whose records differ has another size,
and an ETag may be a checksum. So they are sealed by the key of the release before they are written anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scoreshield.errors import InvalidInput

#: Seals the path, the size and the state of a file.
Seal = Callable[[str, int, str], str]


@dataclass(frozen=True)
class FileFacts:
    """One file of a collection.

    Attributes:
        path: The path or address of the file.
        rows: How many records it holds.
        size: Its bytes; 0 where they are sealed.
        state: What changes whenever the file changes: an ETag, a checksum, or the times that its file system keeps.
            Sealed, it means something to those with the key only.
    """

    path: str
    rows: int
    size: int
    state: str


@dataclass(frozen=True)
class SourceFacts:
    """The facts of a collection. They are part of every key, so that changed data gets other noise.

    Attributes:
        kind: How it is read: ``"files"``, or the name of a table format.
        address: What the caller named.
        column: The column of the vectors; empty for the only one.
        version: The version of a table; empty for files.
        files: The files in the order of the records.
        dimension: The length of each vector.
        dtype: The type of the numbers: ``"float32"`` or ``"float64"``.
        ids: The column of the records' public ids; empty if the number of a record names it.
    """

    kind: str
    address: str
    column: str
    version: str
    files: tuple[FileFacts, ...]
    dimension: int
    dtype: str
    ids: str = ""

    @property
    def rows(self) -> int:
        """How many records there are."""
        return sum(file.rows for file in self.files)

    def list_starts(self) -> list[int]:
        """List the number of the first record of each file, and the number of records at the end."""
        return [0, *itertools.accumulate(file.rows for file in self.files)]

    def seal(self, seal: Seal) -> SourceFacts:
        """Return the public facts: sizes and states are sealed."""
        sealed = [replace(file, size=0, state=seal(file.path, file.size, file.state)) for file in self.files]
        return replace(self, files=tuple(sealed))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> SourceFacts:
        """Read what `to_dict` wrote."""
        try:
            files = tuple(FileFacts(**file) for file in data["files"])
            return cls(**{**data, "files": files})
        except (KeyError, TypeError):
            raise InvalidInput("The manifest of the release does not describe a collection.") from None


def agree(kinds: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """Return the dimension and the number type that all files have.

    Raises:
        InvalidInput: They differ, or there is no file with records.
    """
    if not kinds:
        raise InvalidInput("The collection holds no records.")
    if len({dimension for dimension, _ in kinds}) > 1:
        raise InvalidInput("The files of the collection hold vectors of different lengths.")
    dtypes = {dtype for _, dtype in kinds}
    return kinds[0][0], "float32" if dtypes == {"float32"} else "float64"
