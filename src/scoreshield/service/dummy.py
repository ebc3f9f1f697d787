"""Dummy collections: synthetic records of the same shape, so that a program can be built without touching a budget.

The shape of a collection is public: its number of records, its dimension, and the names and types of its public fields.
A dummy collection takes it from the policy, or from the header of the file. It reads no record. The mechanism and the
noise are those of the real collection. The vectors, ids and fields come from a public seed.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scoreshield import _loading
from scoreshield.errors import InvalidInput
from scoreshield.service.policy import CollectionPolicy, Policy

_SEED = 15_021_984  # public: the records of a dummy collection are no secret
#: Values of a synthetic field repeat, so that filters have something to choose.
_KINDS_OF_VALUE = 10
_VECTOR_NAMES = ("embeddings", "emb", "query")


class CollectionShape(NamedTuple):
    """The public shape of a collection.

    Attributes:
        records: Their number.
        dimension: Of the vectors.
        types: The type of the ids and of each public field, where it is known.
    """

    records: int
    dimension: int
    types: dict[str, type]


def make_dummy_policy(policy: Policy, folder: Path) -> Policy:
    """Make the policy of a dummy installation: the same collections and callers, with a database of its own.

    It shows no reports, which are about the real records. No one signs in at a provider of identities, and it sends no
    traces, because both would be told of a process that is not the service.

    Args:
        policy: The policy of the real installation. Its database, its key and its ledgers are not opened.
        folder: Where the database and the key of the dummy are kept.
    """
    here = policy.installation.model_copy(
        update={
            "database": f"sqlite:///{folder / 'dummy.db'}",
            "key_file": folder / "dummy.key",
            "reports": None,
            "oidc": None,
            "traces": None,
        }
    )
    collections = {name: one.model_copy(update={"dummy": True}) for name, one in policy.collections.items()}
    return policy.model_copy(update={"installation": here, "collections": collections})


def find_dummy_shape(name: str, policy: CollectionPolicy) -> CollectionShape:
    """Find the shape of a dummy collection, from the policy or from the header of the file.

    Raises:
        InvalidInput: The shape is neither in the policy nor in the header.
    """
    if policy.records is not None and policy.dimension is not None:
        return CollectionShape(policy.records, policy.dimension, {})
    if policy.file is None:
        raise InvalidInput(f"The dummy collection {name} needs records and dimension, or a file whose header has them.")
    suffix = policy.file.suffix.lower()
    if suffix not in _READERS:
        raise InvalidInput(f"{policy.file} has no header with its shape; give records and dimension of {name}.")
    try:
        with _loading.open_regular_file(policy.file) as file:
            found = _READERS[suffix](file, policy)
    except (ValueError, KeyError, zipfile.BadZipFile):
        found = None
    if found is None:
        raise InvalidInput(f"The header of {policy.file} does not say its shape; give records and dimension of {name}.")
    records, dimension = policy.records or found.records, policy.dimension or found.dimension
    return CollectionShape(records, dimension, found.types)


def make_dummy_columns(policy: CollectionPolicy, shape: CollectionShape) -> dict[str, Sequence[Any]]:
    """Make synthetic ids and public fields, of the types of the real ones where they are known, else texts."""
    numbers = range(shape.records)
    columns: dict[str, Sequence[Any]] = {}
    if policy.ids is not None:
        is_number = shape.types.get(policy.ids, str) is int
        columns[policy.ids] = numbers if is_number else [f"dummy-{place}" for place in numbers]
    for field in policy.fields:
        make = _VALUES[shape.types.get(field, str)]
        columns[field] = [make(field, place) for place in numbers]
    return columns


def make_dummy_vectors(shape: CollectionShape) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Make synthetic unit vectors, the same for the same shape."""
    rng = np.random.default_rng([_SEED, shape.records, shape.dimension])
    rows = rng.standard_normal((shape.records, shape.dimension), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


_VALUES: dict[type, Callable[[str, int], Any]] = {
    str: lambda field, place: f"{field} {place % _KINDS_OF_VALUE}",
    int: lambda _, place: place % _KINDS_OF_VALUE,
    float: lambda _, place: place % _KINDS_OF_VALUE / 2,
    bool: lambda _, place: place % 2 == 0,
}
_NUMPY_TYPES = {"U": str, "S": str, "i": int, "u": int, "f": float, "b": bool}


def _read_npy_shape(file: Any, _: CollectionPolicy) -> CollectionShape | None:
    shape = _loading.read_header(file).shape
    return CollectionShape(*shape, {}) if len(shape) == 2 else None


def _read_npz_shape(file: Any, policy: CollectionPolicy) -> CollectionShape | None:
    with zipfile.ZipFile(file) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}

        def read(name: str) -> _loading.Header:
            with archive.open(members[name]) as member:
                return _loading.read_header(member)

        usual = [name for name in _VECTOR_NAMES if name in members]
        name = policy.array or (next(iter(members)) if len(members) == 1 else usual[0] if usual else "")
        shape = read(name).shape
        wanted = [column for column in (policy.ids, *policy.fields) if column is not None]
        types = {column: _NUMPY_TYPES.get(read(column).dtype.kind, str) for column in wanted}
    return CollectionShape(*shape, types) if len(shape) == 2 else None


def _read_parquet_shape(file: Any, policy: CollectionPolicy) -> CollectionShape | None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        opened = parquet.ParquetFile(file)
    except pa.ArrowException:
        return None
    schema, records = opened.schema_arrow, int(opened.metadata.num_rows)
    lists = [
        field
        for field in schema
        if pa.types.is_fixed_size_list(field.type) and (policy.array is None or field.name == policy.array)
    ]
    types = {field.name: _find_arrow_type(pa, field.type) for field in schema}
    dimension = int(lists[0].type.list_size) if len(lists) == 1 else policy.dimension
    return None if dimension is None else CollectionShape(records, dimension, types)


def _find_arrow_type(pa: Any, kind: Any) -> type:
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        return int
    return float if pa.types.is_floating(kind) else str


_READERS: dict[str, Callable[[Any, CollectionPolicy], CollectionShape | None]] = {
    ".npy": _read_npy_shape,
    ".npz": _read_npz_shape,
    ".parquet": _read_parquet_shape,
}
