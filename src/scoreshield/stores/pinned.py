"""A store's records as releases read them: fixed ids in a fixed order, checked once, of one version.

A guarantee is about a collection whose size is fixed and public. A pinned copy is that collection. When the store
changes, the next reading makes a new version. Public are the ids, the number of records and the times at which they
change. Vectors and scores are not public.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._locks import ThreadLock
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.stores.protocol import Convention, Records, Store, StoreScores, has_attribute, is_store, read_store

Pin = Literal["auto", "copy", "view", "scores"]
PINS: tuple[str, ...] = get_args(Pin)
#: How far a store's own scores may be from the cosines of its vectors: stores keep at least eight bits per entry.
TOLERANCE = 0.02
#: Rows that are normalised at once; in double precision they are a few times this.
_BLOCK = 4_096
#: The state of a store that has certainly changed.
_UNKNOWN = object()


@dataclass(frozen=True, repr=False)
class Snapshot:
    """One version of a collection.

    Attributes:
        store: The store.
        ids: Of the records, in the order of the rows.
        rows: (n, d), float32 and of unit length, or a view of the store's own; None where the store computes the
            scores.
        version: 1, 2, ... of this pinned copy.
        state: The store's token when it was read.
        on_change: Called when the store holds other records than these, and its state did not show it.
    """

    store: Store
    ids: tuple[Any, ...]
    rows: NDArray[Any] | None
    version: int
    state: Hashable
    on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<Snapshot of {self.store.name}: {len(self):,} records, version {self.version}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A pinned copy holds private vectors and is not pickled.")

    @clear_frames_on_error
    def make_problem(self, query: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Make what a release function takes for one unit query: embeddings, and the query to score them with.

        Where the store computes the scores itself, each score becomes a unit vector of the plane, at that cosine to
        the first axis. Such a row depends on its own record and the public query alone, so the release's guarantee
        holds.
        """
        if self.rows is not None:
            return self.rows, query
        cosines = np.clip(self._read_cosines(query.astype(np.float32)), -1, 1)
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1), np.array([1.0, 0.0])

    def _read_cosines(self, query: NDArray[np.float32]) -> NDArray[np.float64]:
        ids, values = read_store(self.store, "scoring a query", lambda: self.store.scores(query))
        values = _check_scores(self.store, ids, values)
        if tuple(ids) != self.ids:
            place = {one: number for number, one in enumerate(ids)}
            if not len(place) == len(ids) == len(self.ids) or any(one not in place for one in self.ids):
                self.on_change()
                raise StoreError(
                    f"{self.store.name} had {len(self.ids):,} records and now scores {len(ids):,}, or others: it "
                    "changed while it was read; nothing was released: try again."
                )
            values = values[[place[one] for one in self.ids]]
        return self.store.convention.to_cosine(values)


class PinnedStore:
    """The present version of a store's records. It is read again when the store's state changes.

    Args:
        store: An adapter of this package, or any object with the members of `Store`.
        pin: ``"copy"`` holds contiguous unit float32 rows (n d 4 bytes). ``"view"`` reads the memory of a store that
            has it (NumPy, FAISS). ``"scores"`` holds ids only, and the store computes all n scores at each query.
            ``"auto"`` is the view where there is one and the copy elsewhere.
        check_every: Seconds between two readings of the store's state; 0 reads it before every release. The default is
            the adapter's ``look_every``, or else 0. A view is taken and checked each time, because the store may have
            moved it.
    """

    @clear_frames_on_error
    @validate()
    def __init__(self, store: Store, *, pin: Pin = "auto", check_every: float | None = None) -> None:
        if not is_store(store):
            _validation.reject("store", "a store of scoreshield.stores, or an object with the same members", store)
        _validation.check_option(pin, "pin", PINS)
        self.pin: Pin = pin
        if pin == "view" and not store.zero_copy:
            raise InvalidInput(f"{store.name} gives no view of its vectors; use pin='copy'.")
        if check_every is None:
            check_every = getattr(store, "look_every", 0.0)
        self._check_every = _validation.check_real(check_every, "check_every", "a number of seconds, 0 or more")
        if self._check_every < 0:
            _validation.reject("check_every", "a number of seconds, 0 or more", check_every)
        self.store = store
        self._lock = ThreadLock()
        self._checked_at = -np.inf
        self._snapshot: Snapshot | None = None
        self._version, self._state = 0, None  # type: tuple[int, Hashable]

    def __repr__(self) -> str:
        store = getattr(self, "store", None)  # an error tracker may show an object whose constructor failed
        return f"<PinnedStore {getattr(store, 'name', 'nothing')}, version {getattr(self, '_version', 0)}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A pinned copy holds private vectors and is not pickled.")

    @property
    def version(self) -> int:
        """The version that was read last; 0 before the first reading."""
        return self._version

    @clear_frames_on_error
    def is_stale(self) -> bool:
        """Whether the store's state changed since it was read."""
        return not self._version or read_store(self.store, "giving its state", self.store.state) != self._state

    @clear_frames_on_error
    def take_snapshot(self) -> Snapshot:
        """Take the present records: the pinned ones, or new ones if the store changed."""
        with self._lock.hold("Reading the store"):
            return self._update()

    @clear_frames_on_error
    def list_ids(self) -> tuple[tuple[Any, ...], Hashable]:
        """Read the present ids and the store's state. No further vectors are kept in memory."""
        with self._lock.hold("Reading the store"):
            if has_attribute(self.store, "ids") and callable(self.store.ids):  # type: ignore[attr-defined]
                return self._read_ids()
            is_held = self._snapshot is not None
            try:
                snapshot = self._update()
            finally:
                if not is_held:
                    self._snapshot = None
            return snapshot.ids, snapshot.state

    def _read_ids(self) -> tuple[tuple[Any, ...], Hashable]:
        state = read_store(self.store, "giving its state", self.store.state)
        store: Any = self.store
        ids = read_store(store, "giving its ids", lambda: tuple(store.ids()))
        _check_ids(self.store, ids)
        return ids, state

    def _update(self) -> Snapshot:
        snapshot = self._snapshot
        if snapshot is not None and not self._uses_view and time.monotonic() - self._checked_at < self._check_every:
            return snapshot
        state = read_store(self.store, "giving its state", self.store.state)
        is_changed = not self._version or state != self._state
        if snapshot is None or is_changed:
            snapshot = self._snapshot = None  # memory may be too small for two copies
            snapshot = self._read(state, self._version + is_changed)
            self._version, self._state = snapshot.version, state
        elif snapshot.rows is not None and self._uses_view:
            snapshot = self._renew_view(snapshot)
        self._snapshot, self._checked_at = snapshot, time.monotonic()
        return snapshot

    def forget(self) -> None:
        """Drop the vectors, until they are read again."""
        with self._lock.hold("Reading the store"):
            self._snapshot = None

    def _require_new_version(self) -> None:
        """Make the next reading a new version, also where the store's state stays the same."""
        with self._lock.hold("Reading the store"):
            self._snapshot, self._state = None, _UNKNOWN

    @property
    def _uses_view(self) -> bool:
        return self.store.zero_copy and self.pin in ("auto", "view")

    def _renew_view(self, snapshot: Snapshot) -> Snapshot:
        """Take the same records through a new view: the store may have moved them in memory."""
        records = read_store(self.store, "giving its vectors", self.store.records)
        if records is None or snapshot.rows is None or np.shape(records.vectors) != snapshot.rows.shape:
            raise StoreError(f"{self.store.name} changed while it was read; nothing was released.")
        return Snapshot(self.store, snapshot.ids, records.vectors, snapshot.version, snapshot.state)

    def _read(self, state: Hashable, version: int) -> Snapshot:
        if self.pin == "scores":
            probe = _make_probe(self.store.dimension)
            scores = self._score_probe(probe)
            _check_opposite(self.store, scores, self._score_probe(-probe))
            return Snapshot(self.store, tuple(scores.ids), None, version, state, self._require_new_version)
        records = _read_checked_records(self.store)
        if records is None:
            raise InvalidInput(f"{self.store.name} cannot give its vectors; use pin='scores'.")
        rows = records.vectors
        if self._uses_view:
            places = _check_rows(rows, self.store)
        else:
            rows, places = _copy_unit_rows(rows, self.store)
        snapshot = Snapshot(self.store, tuple(records.ids), rows, version, state)
        zero = {snapshot.ids[place] for place in places}
        _check_convention(self.store, snapshot, self._score_probe(_make_probe(rows.shape[1]), zero), zero)
        if read_store(self.store, "giving its state", self.store.state) != state:
            raise StoreError(f"{self.store.name} changed while it was read; nothing was released: try again.")
        return snapshot

    def _score_probe(self, query: NDArray[np.float32], zero: Set[Any] = frozenset()) -> StoreScores:
        ids, values = read_store(self.store, "scoring a probe", lambda: self.store.scores(query))
        return StoreScores(ids, _check_scores(self.store, ids, values, zero))


def _make_probe(dimension: int) -> NDArray[np.float32]:
    """Make a public unit vector, the same each time."""
    probe = np.random.default_rng(20_231).standard_normal(dimension)
    return (probe / np.linalg.norm(probe)).astype(np.float32)


def _check_scores(store: Store, ids: Sequence[Any], data: Any, zero: Set[Any] = frozenset()) -> NDArray[Any]:
    """Check for one finite score per record. The score of a zero vector does not matter."""
    values: NDArray[Any] = _validation.to_array(data)
    if values.ndim != 1 or len(values) != len(ids) or values.dtype.kind != "f":
        raise StoreError(f"{store.name} did not give one score per record.")
    if not len(values):
        raise StoreError(f"{store.name} holds no records.")
    if zero:
        values = np.where([one in zero for one in ids], 0.0, values)
    if not np.isfinite(values).all():
        raise StoreError(f"{store.name} gave scores that are not finite numbers; nothing was released.")
    return values


def _read_checked_records(store: Store) -> Records | None:
    records = read_store(store, "giving its vectors", store.records)
    if records is None:
        return None
    ids = records.ids
    try:
        vectors = _validation.to_array(records.vectors)
    except ValueError:  # rows of different lengths
        vectors = np.empty(0, dtype=object)
    if vectors.dtype.kind == "f" and not _embeddings.has_own_dtype(records.vectors):
        vectors = vectors.astype(np.float64)  # or else one record could change the precision of all
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1:] != (store.dimension,):
        if not len(ids):
            raise StoreError(f"{store.name} holds no records.")
        raise StoreError(f"{store.name} mixes vectors of different lengths, or holds some that are no numbers.")
    if not len(vectors):
        raise StoreError(f"{store.name} holds no records.")
    if len(ids) != len(vectors):
        raise StoreError(f"{store.name} gave {len(ids):,} ids and {len(vectors):,} vectors.")
    _check_ids(store, ids)
    return Records(ids, vectors)


def _check_ids(store: Store, ids: Sequence[Any]) -> None:
    try:
        repeated = len(set(ids)) != len(ids)
    except TypeError:
        raise StoreError(f"{store.name} has ids that cannot be compared; they must be numbers or strings.") from None
    if repeated:
        raise StoreError(f"{store.name} holds the same id more than once; each record needs its own id.")


def _copy_unit_rows(rows: _embeddings.Rows, store: Store) -> tuple[NDArray[np.float32], list[int]]:
    """Copy rows as unit rows, part by part. Return them and the places of zero rows."""
    out, zero = np.empty(rows.shape, dtype=np.float32), []
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        zero += [start + place for place in _check_rows(part, store)]
        out[start : start + _BLOCK] = _embeddings.normalise_rows(part)
    out.flags.writeable = False
    return out, zero


def _check_rows(rows: _embeddings.Rows, store: Store) -> list[int]:
    """Check that rows are finite, part by part. Return the places of zero rows."""
    zero = []
    for start in range(0, len(rows), _BLOCK):
        largest = np.abs(rows[start : start + _BLOCK]).max(axis=1)
        if not np.isfinite(largest).all():
            raise StoreError(f"{store.name} holds vectors that are not finite numbers; nothing was released.")
        zero += (start + np.flatnonzero(largest == 0)).tolist()
    return zero


def _check_convention(store: Store, snapshot: Snapshot, scores: StoreScores, zero: Set[Any]) -> None:
    """Check that the store's scores of a probe follow its convention, for all vectors that are not zero."""
    assert snapshot.rows is not None
    place = {one: number for number, one in enumerate(scores.ids)}
    if len(place) != len(snapshot) or any(one not in place for one in snapshot.ids):
        raise StoreError(f"{store.name} scores other records than it lists: it changed while it was read; try again.")
    probe = _make_probe(snapshot.rows.shape[1])
    cosines = _embeddings.compute_scores(snapshot.rows, probe[None].astype(np.float64), "unit")[0]
    compared = [number for number, one in enumerate(snapshot.ids) if one not in zero]
    values, cosines = scores.values[[place[snapshot.ids[number]] for number in compared]], cosines[compared]
    agree = [c for c in Convention if np.abs(c.to_cosine(values) - cosines).max(initial=0) <= TOLERANCE]
    if store.convention not in agree:
        advice = f"they are {agree[0].value!r}" if agree else "its vectors may not be of unit length"
        raise StoreError(
            f"{store.name} is declared to score by {store.convention.value!r}, and its scores of a probe are something "
            f"else: {advice}."
        )


def _check_opposite(store: Store, one: StoreScores, other: StoreScores) -> None:
    """Check without vectors that a query and its opposite have cosines that cancel, within [-1, 1]."""
    if tuple(one.ids) != tuple(other.ids):
        raise StoreError(
            f"{store.name} answers two queries in different orders of its records, or changed during them."
        )
    _check_ids(store, one.ids)
    first, second = (store.convention.to_cosine(scores.values) for scores in (one, other))
    if np.abs(first + second).max() > TOLERANCE or np.abs(first).max() > 1 + TOLERANCE:
        raise StoreError(
            f"{store.name} is declared to score by {store.convention.value!r}, and its scores of two probes are "
            "something else, or its vectors are not of unit length."
        )
