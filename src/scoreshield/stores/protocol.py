"""Where scores come from: one small protocol that every store of embeddings is adapted to.

A store gives all n scores of a query, in its own convention, and, where it can, all its vectors. Nothing it answers is
private. :class:`~scoreshield.stores.PinnedStore` reads what an adapter returns, and passes it to a release alone.

Each score must depend on its own record and the query alone. That is what makes replacing one record move one score, so
an adapter never asks a store for its nearest records, and refuses indexes whose scores depend on other records (a
codebook that was trained on them, for one).
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
    """What a store's number says. For unit vectors each is a straight line in the cosine."""

    COSINE = "cosine"
    INNER_PRODUCT = "inner product"  # of unit vectors
    COSINE_DISTANCE = "cosine distance"  # 1 - cosine
    SQUARED_L2 = "squared l2"  # |x - q|^2 = 2 - 2 cosine, of unit vectors

    def to_cosine(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The cosines, as they come out; the release clamps them to its range."""
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
    """All n vectors, in the store's own order, of any length."""

    ids: Sequence[Any]
    vectors: NDArray[Any]


@runtime_checkable
class Store(Protocol):
    """What an adapter offers.

    Attributes
    ----------
    name : for messages: what the store is and where, without passwords.
    convention : what ``scores`` returns; it is checked on a probe.
    zero_copy : whether ``records`` is a view of memory that the store holds anyway, and costs nothing to take again.

    An adapter may have two more: ``ids()``, every id in the order of ``records``, where that is cheaper than to give
    the vectors; and ``look_every``, the seconds between two looks at ``state`` by default, where it is slow to tell.
    """

    name: str
    convention: Convention
    zero_copy: bool

    @property
    def dimension(self) -> int:
        """Of the vectors."""

    def state(self) -> Hashable:
        """A token that changes when records do, as far as the store tells cheaply; an adapter says what it sees."""

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        """The scores of every record with a unit query: all of them, computed exactly, in no order of merit."""

    def records(self) -> Records | None:
        """Every record's vector, or None where the store cannot give them."""


_NAMES = ("name", "convention", "zero_copy", "dimension", "state", "scores", "records")


def is_store(thing: Any) -> TypeGuard[Store]:
    """Whether it has what a store has, without reading any of it: a dimension may cost a connection to tell."""
    return not isinstance(thing, type) and all(has_attribute(thing, name) for name in _NAMES)


def has_attribute(thing: Any, name: str) -> bool:
    """Whether there is such an attribute, without computing it (as Python's own check of a protocol does from 3.12)."""
    try:
        inspect.getattr_static(thing, name)
    except AttributeError:
        return False
    return True


def read_store(store: Store, what: str, read: Callable[[], T]) -> T:
    """Run one reading of a store; whatever its client raises is told by its type alone, as the text may hold data."""
    callers = sys.exception()
    try:
        return read()
    except ScoreShieldError as known:
        found: ScoreShieldError = known
    except Exception as error:
        clear_frames(error, callers)
        found = StoreError(f"{store.name} failed while {what} ({type(error).__name__}); nothing was released.")
    raise strip_frames(found, callers)


def strip_frames(error: Exception, callers: BaseException | None = None) -> Exception:
    """The error without the frames that raised it: their variables hold clean scores, which error trackers collect."""
    clear_frames(error, callers)
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def explain_missing_extra(extra: str, what: str) -> InvalidInput:
    """The one way to say that an optional package is missing."""
    return InvalidInput(f"{what} needs the '{extra}' extra: pip install 'scoreshield[{extra}]'.")
