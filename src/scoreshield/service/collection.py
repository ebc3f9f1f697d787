"""The records of a served collection, their public ids and fields, and the version of the data.

A version is found by a keyed hash of everything that was read. The hash stays inside: a plain hash of private records
would let an attacker who knows all records but one test guesses of that one. Callers see the number of the version.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from scoreshield import _files, _loading
from scoreshield._frames import clear_frames_on_error
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.service.dummy import find_dummy_shape, make_dummy_columns, make_dummy_vectors
from scoreshield.service.installation import InstallationKey
from scoreshield.service.policy import CollectionPolicy, StorePolicy
from scoreshield.stores.opening import open_store
from scoreshield.stores.pinned import PinnedStore

T = TypeVar("T")
FieldValue = str | int | float | bool | None
_HASHED_ROWS = 10_000  # converted at a time
_READINGS = 3  # of a file that is replaced meanwhile


@dataclass(frozen=True, repr=False, eq=False)
class CollectionData:
    """The records of a collection as they were read. They do not change while the service runs.

    Attributes:
        vectors: The private vectors, (n, d).
        ids: The public id of each record.
        fields: For each public field, its value for each record.
    """

    vectors: NDArray[Any]
    ids: Sequence[str | int]
    fields: dict[str, Sequence[FieldValue]]

    @property
    def size(self) -> int:
        return int(self.vectors.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    def describe_record(self, place: int) -> dict[str, FieldValue]:
        """Return the public fields of a record."""
        return {name: values[place] for name, values in self.fields.items()}

    def compute_snapshot(self, key: InstallationKey) -> str:
        """Compute the keyed hash of the records with ids and public fields, which names this state of the data."""
        mac = hmac.new(key.derive_secret("snapshot"), digestmod=hashlib.sha256)
        facts = {"dtype": self.vectors.dtype.str, "shape": list(self.vectors.shape), "ids": list(self.ids)}
        mac.update(write_canonical_json({**facts, "fields": {n: list(v) for n, v in self.fields.items()}}).encode())
        mac.update(b"\0")
        mac.update(self.vectors.data.cast("B"))
        return mac.hexdigest()

    def hash_vectors(self, key: InstallationKey) -> tuple[str, str]:
        """Compute the keyed hashes of the vectors in single precision, which find the same records again.

        The first one is of the vectors in any order: the sum of the keyed hashes of all rows, modulo 2^64 in each of
        four parts. The second one, of the vectors in their order, is what earlier versions of the library kept.
        """
        secret, ordered = key.derive_secret("rows"), key.derive_secret("vectors")
        total = np.zeros(4, dtype="<u8")
        for part in self._list_parts():
            rows = _narrow(part) + np.float32(0)  # no -0.0
            digests = b"".join(hashlib.sha256(secret + row.tobytes()).digest() for row in rows)
            total += np.frombuffer(digests, dtype="<u8").reshape(-1, 4).sum(axis=0, dtype="<u8")
        facts = write_canonical_json({"shape": list(self.vectors.shape)}).encode()
        unordered = hmac.digest(secret, facts + b"\0" + total.tobytes(), "sha256").hex()
        return unordered, self._hash_vectors(ordered, "<f4")

    def hash_values(self, key: InstallationKey) -> str:
        """Compute the keyed hash of the values of the vectors, whatever their type. Answers are found by it.

        Neither ids nor public fields change it: they are looked up when an answer is sent.
        """
        is_single = all(np.array_equal(part, _narrow(part)) for part in self._list_parts())
        return self._hash_vectors(key.derive_secret("values"), "<f4" if is_single else "<f8")

    def _hash_vectors(self, secret: bytes, kind: str) -> str:
        mac = hmac.new(secret, digestmod=hashlib.sha256)
        mac.update(write_canonical_json({"shape": list(self.vectors.shape), "kind": kind}).encode() + b"\0")
        for part in self._list_parts():
            values = _narrow(part) if kind == "<f4" else part.astype(kind)
            mac.update((values + values.dtype.type(0)).tobytes())  # no -0.0
        return mac.hexdigest()

    def _list_parts(self) -> list[NDArray[Any]]:
        """List the rows in parts, so that no whole copy of another type is made."""
        return [self.vectors[start : start + _HASHED_ROWS] for start in range(0, self.size, _HASHED_ROWS)]


def _narrow(part: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return part.astype("<f4")


@clear_frames_on_error
def load_collection(name: str, policy: CollectionPolicy) -> CollectionData:
    """Read the records of a collection, or make those of a dummy. The errors are for the operator alone."""
    if policy.dummy:
        shape = find_dummy_shape(name, policy)
        return _check_data(name, policy, make_dummy_vectors(shape), make_dummy_columns(policy, shape))
    if policy.store is not None:
        return _read_store(name, policy, policy.store)
    assert policy.file is not None
    file = policy.file
    vectors, found = _read_unchanged(name, file, lambda: _read_file(file, policy))
    return _check_data(name, policy, vectors, found)


def _read_unchanged(name: str, path: Path, read: Callable[[], T]) -> T:
    """Read a file that is opened several times, again if it was replaced meanwhile: ids must be those of their rows."""
    for _ in range(_READINGS):
        before, found = _identify_content(path), read()
        if _identify_content(path) == before:
            return found
    raise InvalidInput(f"The file {path} of collection {name} changed each time that it was read.")


def _read_file(path: Path, policy: CollectionPolicy) -> tuple[NDArray[Any], dict[str, list[Any]]]:
    """Read the vectors of a file, and then its ids and public fields, which opens it again."""
    vectors = np.array(_embeddings.as_rows(_files.read_array(path, name=policy.array)), order="C")
    _embeddings.check_finite(vectors)
    columns = [*([policy.ids] if policy.ids is not None else []), *policy.fields]
    return vectors, _read_columns(path, columns) if columns else {}


def _identify_content(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or written; None if it cannot be seen, which reading explains."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _check_data(
    name: str, policy: CollectionPolicy, vectors: NDArray[Any], found: Mapping[str, Sequence[Any]]
) -> CollectionData:
    """Check ids and public fields, and fix the vectors."""
    vectors.flags.writeable = False
    for column, values in found.items():
        if len(values) != len(vectors):
            raise InvalidInput(f"The field {column} of collection {name} has another length than the vectors.")
        if not all(value is None or isinstance(value, str | int | float | bool) for value in values):
            raise InvalidInput(f"The field {column} of collection {name} must hold texts, numbers or truth values.")
        if any(isinstance(value, float) and not np.isfinite(value) for value in values):
            raise InvalidInput(f"The field {column} of collection {name} holds a NaN or an infinity.")
    ids: Sequence[Any] = range(len(vectors)) if policy.ids is None else found[policy.ids]
    if policy.ids is not None and not all(isinstance(one, str | int) and not isinstance(one, bool) for one in ids):
        raise InvalidInput(f"The ids of collection {name} must be texts or whole numbers.")
    if len(set(ids)) != len(ids):
        raise InvalidInput(f"Two records of collection {name} have the same id.")
    return CollectionData(vectors, ids, {column: found[column] for column in policy.fields})


def _read_store(name: str, policy: CollectionPolicy, store: StorePolicy) -> CollectionData:
    """Read all records of a store once, as they are now, in the order of their ids.

    Stores may list the same records in another order next time, which must not be another version.
    """
    with open_store(store.find_address()) as opened:
        snapshot = PinnedStore(opened, pin="copy").take_snapshot()
    assert snapshot.rows is not None
    ids = [_convert_id(name, one) for one in snapshot.ids]
    order = sorted(range(len(ids)), key=lambda place: (isinstance(ids[place], str), ids[place]))
    ids, vectors = [ids[place] for place in order], np.array(snapshot.rows[order], order="C")
    if policy.public_file is None or policy.ids is None:
        vectors.flags.writeable = False
        return CollectionData(vectors, ids, {})
    file, wanted = policy.public_file, [policy.ids, *policy.fields]
    found = _read_unchanged(name, file, lambda: _read_columns(file, wanted))
    places = {_convert_id(name, one): place for place, one in enumerate(found[policy.ids])}
    if set(places) != set(ids) or len(places) != len(found[policy.ids]):
        raise InvalidInput(f"The public_file of collection {name} must hold each id of its store once, and no other.")
    columns = {column: [values[places[one]] for one in ids] for column, values in found.items()}
    return _check_data(name, policy, vectors, {**columns, policy.ids: ids})


def _convert_id(name: str, value: Any) -> str | int:
    """Convert the id of a store to a text or a whole number."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise InvalidInput(f"The ids of collection {name} must be texts, whole numbers or UUIDs.")


def _read_columns(path: Path, columns: list[str]) -> dict[str, list[Any]]:
    """Read the ids and the public fields of a file, as plain values."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return {column: _files.read_array(path, name=column).tolist() for column in columns}
    if suffix != ".parquet":
        raise InvalidInput(f"{path} holds vectors only; ids and fields need a .npz or .parquet file.")
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with _loading.open_regular_file(path) as raw:
        try:
            table = parquet.ParquetFile(raw).read(columns=columns)
            missing = [column for column in columns if column not in table.column_names]
            if missing:
                raise InvalidInput(f"{path} holds no column {missing[0]!r}.")
            return {column: table.column(column).to_pylist() for column in columns}
        except pa.ArrowException as error:
            raise InvalidInput(f"{path} is not a readable Parquet file: {_loading.describe_error(error)}") from None


def register_version(ledger: Ledger, snapshot: str) -> int:
    """Find the number of a version of the data, or give it the next one."""

    def work(session: Session) -> int:
        table = "scoreshield_service_versions"
        row = session.execute(f"SELECT version FROM {table} WHERE snapshot = ?", (snapshot,)).fetchone()
        if row is not None:
            return int(row[0])
        number = int(session.execute(f"SELECT COALESCE(MAX(version), 0) + 1 FROM {table}").fetchone()[0])
        now = datetime.now(UTC).isoformat(timespec="seconds")
        session.execute(f"INSERT INTO {table} (version, snapshot, time) VALUES (?, ?, ?)", (number, snapshot, now))
        return number

    return ledger.write_beside(work)
