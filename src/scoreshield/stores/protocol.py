"""The protocol that every store of embeddings is adapted to.

A store gives all n scores of a query, in its own convention, and, where it can, all its vectors. Its answers are not
private. `PinnedStore` reads what an adapter returns, and passes it to a release alone.

Each score must depend on its own record and the query alone. Then replacing one record moves one score. So an adapter
never asks a store for its nearest records. It rejects indexes whose scores depend on other records, such as those with
a codebook that was trained on them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scoreshield._frames import clear_frames
from scoreshield.errors import InvalidInput, ScoreShieldError, StoreError

T = TypeVar("T")


class Convention(StrEnum):
    """The meaning of a store's numbers. For unit vectors each is a linear function of the cosine."""

    COSINE = "cosine"
    INNER_PRODUCT = "inner product"  # of unit vectors
    COSINE_DISTANCE = "cosine distance"  # 1 - cosine
    SQUARED_L2 = "squared l2"  # |x - q|^2 = 2 - 2 cosine, of unit vectors

    def to_cosine(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Convert a store's numbers to cosines. The release clamps them to its range."""
        cosines = values.astype(np.float64)
        if self is Convention.COSINE_DISTANCE:
            return 1 - cosines
        if self is Convention.SQUARED_L2:
            return 1 - cosines / 2
        return cosines


class StoreScores(NamedTuple):
    """All n scores of one query, in the store's own order and convention."""

    ids: Sequence[Any]
    values: NDArray[np.float32]


class Records(NamedTuple):
    """All n vectors, in the store's own order, of any length; an array, or rows of a file that are read in parts."""

    ids: Sequence[Any]
    vectors: NDArray[Any]


@runtime_checkable
class Store(Protocol):
    """What an adapter offers.

    An adapter may have two more members. ``ids()`` gives every id in the order of ``records``, where that is cheaper
    than to give the vectors. ``look_every`` is the default number of seconds between two readings of ``state``, for a
    store that takes long to read it.

    Attributes:
        name: What the store is and where, for messages, without passwords.
        convention: What ``scores`` returns. It is checked on a probe.
        zero_copy: Whether ``records`` is a view of memory that the store holds anyway, and costs nothing to take again.
    """

    name: str
    convention: Convention
    zero_copy: bool

    @property
    def dimension(self) -> int:
        """The dimension of the vectors."""

    def state(self) -> Hashable:
        """Read a token that changes when records do, as far as that is cheap. An adapter documents what it detects."""

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        """Compute the scores of all records with a unit query, exactly, in an order that does not depend on them."""

    def records(self) -> Records | None:
        """Read every record's vector, or return None where the store cannot give them."""


_NAMES = ("name", "convention", "zero_copy", "dimension", "state", "scores", "records")


def is_store(thing: Any) -> TypeGuard[Store]:
    """Check that an object has the members of a store, without reading any: a dimension may need a connection."""
    return not isinstance(thing, type) and all(has_attribute(thing, name) for name in _NAMES)


def has_attribute(thing: Any, name: str) -> bool:
    """Check that an attribute exists, without computing it (as Python's check of a protocol does from 3.12)."""
    try:
        inspect.getattr_static(thing, name)
    except AttributeError:
        return False
    return True


def read_store(store: Store, action: str, read: Callable[[], T]) -> T:
    """Run one reading of a store.

    Args:
        store: The store.
        action: What the store is doing, for the error, such as "giving its vectors".
        read: The reading.

    Raises:
        StoreError: The store's client raised an error. The message names its type alone, because its text may hold
            data.
    """
    callers = sys.exception()
    try:
        return read()
    except ScoreShieldError as known:
        failure: ScoreShieldError = known
    except Exception as error:
        clear_frames(error, callers)
        failure = StoreError(f"{store.name} failed while {action} ({type(error).__name__}); nothing was released.")
    raise strip_frames(failure, callers)


def strip_frames(error: Exception, callers: BaseException | None = None) -> Exception:
    """Remove the frames of an error: their variables hold clean scores, and error trackers collect them."""
    clear_frames(error, callers)
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def explain_missing_extra(extra: str, feature: str) -> InvalidInput:
    """Make the error for an optional package that is not installed."""
    return InvalidInput(f"{feature} needs the '{extra}' extra: pip install 'scoreshield[{extra}]'.")
