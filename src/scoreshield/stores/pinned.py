"""A store's records as releases read them: fixed ids in a fixed order, checked once, of one version.

A guarantee speaks of a collection whose size is fixed and public. A pinned copy is that collection; when the store
changes, the next reading makes a new version. Ids, the number of records and when they change are public; vectors and
scores are not.
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
#: How far a store's own scores may be from the cosines of its vectors: stores keep eight bits an entry at the least.
TOLERANCE = 0.02
#: Rows that are normalised at once; in double precision they are a few times this.
_BLOCK = 4_096
#: The state of a store that is known to have changed.
_UNKNOWN = object()


@dataclass(frozen=True, repr=False)
class Snapshot:
    """One version of a collection.

    Attributes
    ----------
    ids : of the records, in the order of the rows.
    rows : (n, d), float32 and of unit length, or a view of the store's own; None where scores are asked of the store.
    version : 1, 2, ... of this pinned copy.
    state : the store's token when it was read.
    moved : called when the store turns out to hold other records than these, unseen by its state.
    """

    store: Store
    ids: tuple[Any, ...]
    rows: NDArray[Any] | None
    version: int
    state: Hashable
    moved: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<Snapshot of {self.store.name}: {len(self):,} records, version {self.version}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A pinned copy holds private vectors and is not pickled.")

    @clear_frames_on_error
    def make_problem(self, query: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """What a release function takes for one unit query: embeddings, and the query to score them with.

        Where the store computes the scores itself, each becomes a unit vector of the plane, at that cosine to the
        first axis: its row depends on its own record and the public query alone, so the release's guarantee holds.
        """
        if self.rows is not None:
            return self.rows, query
        cosines = np.clip(self._cosines(query.astype(np.float32)), -1, 1)
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1), np.array([1.0, 0.0])

    def _cosines(self, query: NDArray[np.float32]) -> NDArray[np.float64]:
        ids, values = read_store(self.store, "scoring a query", lambda: self.store.scores(query))
        values = _check_scored(self.store, ids, values)
        if tuple(ids) != self.ids:
            place = {one: number for number, one in enumerate(ids)}
            if not len(place) == len(ids) == len(self.ids) or any(one not in place for one in self.ids):
                self.moved()
                raise StoreError(
                    f"{self.store.name} had {len(self.ids):,} records and now scores {len(ids):,}, or others: it "
                    "changed under way; nothing was released, ask again."
                )
            values = values[[place[one] for one in self.ids]]
        return self.store.convention.to_cosine(values)


class PinnedStore:
    """The current version of a store's records, made anew when the store says that it changed.

    Parameters
    ----------
    store : an adapter of this package, or anything that keeps the :class:`Store` protocol.
    pin : ``"copy"`` holds contiguous unit float32 rows (n d 4 bytes); ``"view"`` reads the memory of a store that
        has it (NumPy, FAISS); ``"scores"`` holds ids only and asks the store for all n scores at each query;
        ``"auto"`` is the view where there is one and the copy elsewhere.
    check_every : seconds between looks at whether the store changed; 0 looks before every release; without it, what the
        adapter says (``look_every``), or else 0. A view is taken anew each time, and looked at each time: the store may
        have moved it.
    """

    @clear_frames_on_error
    @validate()
    def __init__(self, store: Store, *, pin: str = "auto", check_every: float | None = None) -> None:
        if not is_store(store):
            _validation.reject("store", "a store of scoreshield.stores, or what keeps its protocol", store)
        self.pin = _validation.check_option(pin, "pin", PINS)
        if pin == "view" and not store.zero_copy:
            raise InvalidInput(f"{store.name} gives no view of its vectors; use pin='copy'.")
        if check_every is None:
            check_every = getattr(store, "look_every", 0.0)
        self._every = _validation.check_real(check_every, "check_every", "a number of seconds, 0 or more")
        if self._every < 0:
            _validation.reject("check_every", "a number of seconds, 0 or more", check_every)
        self.store = store
        self._lock = ThreadLock()
        self._looked = -np.inf
        self._snapshot: Snapshot | None = None
        self._version, self._state = 0, None  # type: tuple[int, Hashable]

    def __repr__(self) -> str:
        store = getattr(self, "store", None)  # an error tracker may show one that was refused half-way
        return f"<PinnedStore {getattr(store, 'name', 'nothing')}, version {getattr(self, '_version', 0)}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A pinned copy holds private vectors and is not pickled.")

    @property
    def version(self) -> int:
        """Of what was read last; 0 before anything was."""
        return self._version

    @clear_frames_on_error
    def is_stale(self) -> bool:
        """Whether the store says that it changed since it was read."""
        return not self._version or read_store(self.store, "telling its state", self.store.state) != self._state

    @clear_frames_on_error
    def take_snapshot(self) -> Snapshot:
        """The records as they are now: as pinned, or read anew where the store changed."""
        with self._lock.hold("Reading the store"):
            return self._current()

    @clear_frames_on_error
    def list_ids(self) -> tuple[tuple[Any, ...], Hashable]:
        """The ids as they are now, and the store's state; no vectors are kept that were not held before."""
        with self._lock.hold("Reading the store"):
            if has_attribute(self.store, "ids") and callable(self.store.ids):  # type: ignore[attr-defined]
                return self._listed()
            held = self._snapshot is not None
            try:
                found = self._current()
            finally:
                if not held:
                    self._snapshot = None
            return found.ids, found.state

    def _listed(self) -> tuple[tuple[Any, ...], Hashable]:
        state = read_store(self.store, "telling its state", self.store.state)
        store: Any = self.store
        ids = read_store(store, "giving its ids", lambda: tuple(store.ids()))
        _check_ids(self.store, ids)
        return ids, state

    def _current(self) -> Snapshot:
        known = self._snapshot
        if known is not None and not self._views and time.monotonic() - self._looked < self._every:
            return known
        state = read_store(self.store, "telling its state", self.store.state)
        changed = not self._version or state != self._state
        if known is None or changed:
            known = self._snapshot = None  # two copies at once may be more than there is room for
            known = self._read(state, self._version + changed)
            self._version, self._state = known.version, state
        elif known.rows is not None and self._views:
            known = self._view(known)
        self._snapshot, self._looked = known, time.monotonic()
        return known

    def forget(self) -> None:
        """Let go of the vectors, until they are read again."""
        with self._lock.hold("Reading the store"):
            self._snapshot = None

    def _moved(self) -> None:
        """The next reading is of a new version, whatever the store's state says."""
        with self._lock.hold("Reading the store"):
            self._snapshot, self._state = None, _UNKNOWN

    @property
    def _views(self) -> bool:
        return self.store.zero_copy and self.pin in ("auto", "view")

    def _view(self, known: Snapshot) -> Snapshot:
        """The same records through a fresh view: the store may have moved them in memory."""
        records = read_store(self.store, "giving its vectors", self.store.records)
        if records is None or known.rows is None or np.shape(records.vectors) != known.rows.shape:
            raise StoreError(f"{self.store.name} changed while it was read; nothing was released.")
        return Snapshot(self.store, known.ids, records.vectors, known.version, known.state)

    def _read(self, state: Hashable, version: int) -> Snapshot:
        if self.pin == "scores":
            probe = _probe(self.store.dimension)
            scored = self._scored(probe)
            _check_opposite(self.store, scored, self._scored(-probe))
            return Snapshot(self.store, tuple(scored.ids), None, version, state, self._moved)
        records = _checked_records(self.store)
        if records is None:
            raise InvalidInput(f"{self.store.name} cannot give its vectors; use pin='scores'.")
        rows = records.vectors
        if self._views:
            _check_rows(rows, self.store)
        else:
            rows = _unit_copy(rows, self.store)
        found = Snapshot(self.store, tuple(records.ids), rows, version, state)
        zero = {found.ids[place] for place in np.flatnonzero(~records.vectors.any(axis=1))}
        _check_convention(self.store, found, self._scored(_probe(rows.shape[1]), zero), zero)
        if read_store(self.store, "telling its state", self.store.state) != state:
            raise StoreError(f"{self.store.name} changed while it was read; nothing was released: try again.")
        return found

    def _scored(self, query: NDArray[np.float32], zero: Set[Any] = frozenset()) -> StoreScores:
        ids, values = read_store(self.store, "scoring a probe", lambda: self.store.scores(query))
        return StoreScores(ids, _check_scored(self.store, ids, values, zero))


def _probe(dimension: int) -> NDArray[np.float32]:
    """A public unit vector, the same each time."""
    probe = np.random.default_rng(20_231).standard_normal(dimension)
    return (probe / np.linalg.norm(probe)).astype(np.float32)


def _check_scored(store: Store, ids: Sequence[Any], given: Any, zero: Set[Any] = frozenset()) -> NDArray[Any]:
    """One finite score for each record; what a store says of a zero vector does not matter."""
    values: NDArray[Any] = np.asarray(given)
    if values.ndim != 1 or len(values) != len(ids) or values.dtype.kind != "f":
        raise StoreError(f"{store.name} did not give one score a record.")
    if not len(values):
        raise StoreError(f"{store.name} holds no records.")
    if zero:
        values = np.where([one in zero for one in ids], 0.0, values)
    if not np.isfinite(values).all():
        raise StoreError(f"{store.name} gave scores that are not finite numbers; nothing was released.")
    return values


def _checked_records(store: Store) -> Records | None:
    records = read_store(store, "giving its vectors", store.records)
    if records is None:
        return None
    ids = records.ids
    try:
        vectors = np.asarray(records.vectors)
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
        raise StoreError(f"{store.name} has ids that cannot be told apart; they must be numbers or strings.") from None
    if repeated:
        raise StoreError(f"{store.name} holds the same id more than once; ids must be of one record each.")


def _unit_copy(rows: NDArray[Any], store: Store) -> NDArray[np.float32]:
    out = np.empty(rows.shape, dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        _check_rows(part, store)
        out[start : start + _BLOCK] = _embeddings.unit_rows(part)
    out.flags.writeable = False
    return out


def _check_rows(rows: NDArray[Any], store: Store) -> None:
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        if not np.isfinite(np.abs(part).max(axis=1)).all():
            raise StoreError(f"{store.name} holds vectors that are not finite numbers; nothing was released.")


def _check_convention(store: Store, found: Snapshot, scored: StoreScores, zero: Set[Any]) -> None:
    """The store's own scores of a probe must be what its convention says of its vectors that are not zero."""
    assert found.rows is not None
    place = {one: number for number, one in enumerate(scored.ids)}
    if len(place) != len(found) or any(one not in place for one in found.ids):
        raise StoreError(f"{store.name} scores other records than it lists: it changed while it was read; try again.")
    probe = _probe(found.rows.shape[1])
    cosines = _embeddings.scores(found.rows, probe[None].astype(np.float64), "unit")[0]
    compared = [number for number, one in enumerate(found.ids) if one not in zero]
    values, cosines = scored.values[[place[found.ids[number]] for number in compared]], cosines[compared]
    agree = [c for c in Convention if np.abs(c.to_cosine(values) - cosines).max(initial=0) <= TOLERANCE]
    if store.convention not in agree:
        advice = f"they are {agree[0].value!r}" if agree else "its vectors may not be of unit length"
        raise StoreError(
            f"{store.name} is said to score by {store.convention.value!r}, and on a probe its scores are something "
            f"else: {advice}."
        )


def _check_opposite(store: Store, one: StoreScores, other: StoreScores) -> None:
    """Without vectors: a query and its opposite have cosines that cancel, within [-1, 1]."""
    if tuple(one.ids) != tuple(other.ids):
        raise StoreError(f"{store.name} answers two queries in different orders of its records, or changed under way.")
    _check_ids(store, one.ids)
    first, second = (store.convention.to_cosine(scored.values) for scored in (one, other))
    if np.abs(first + second).max() > TOLERANCE or np.abs(first).max() > 1 + TOLERANCE:
        raise StoreError(
            f"{store.name} is said to score by {store.convention.value!r}, and on two probes its scores are something "
            "else, or its vectors are not of unit length."
        )
