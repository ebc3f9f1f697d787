"""What a search reads: a store's records, the person of each record, and the account that is charged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames
from scoreshield._types import AccountLike, Rng
from scoreshield.errors import InvalidInput, InvalidParameter, InvalidRow, StoreError
from scoreshield.privacy.adjacency import Adjacency, Identity, Replacement
from scoreshield.releases.pipeline import check_account
from scoreshield.releases.results import Release
from scoreshield.stores.arrays import ArrayStore
from scoreshield.stores.pinned import Pin, PinnedStore
from scoreshield.stores.protocol import Store, is_store

Names = tuple[Any, ...]
T = TypeVar("T")


def pin_store(store: Store | PinnedStore | ArrayLike, pin: Pin, check_every: float | None) -> PinnedStore:
    """Pin a store or an array, or take a store that is pinned already."""
    if isinstance(store, PinnedStore):
        if pin != "auto" or check_every:
            raise InvalidInput("A pinned store has its own 'pin' and 'check_every': leave them out.")
        return store
    if is_store(store):
        return PinnedStore(store, pin=pin, check_every=check_every)
    is_array = isinstance(store, str | Path | list | tuple) or hasattr(store, "__array__")
    if not is_array or isinstance(store, Release):
        _validation.reject_mixed_frame(store, "store")
        must = "a store of scoreshield.stores, an object with the same members, or an (n, d) array"
        _validation.reject("store", must, store)
    return PinnedStore(ArrayStore(cast("ArrayLike", store)), pin=pin, check_every=check_every)


def read_records(store: Store, work: Callable[[], T]) -> T:
    """Run work that reads a store's records.

    An error about the records names a row. It is for the curator of the records, and not for the person who searches.

    Raises:
        StoreError: A release rejected the records. The message holds no row number.
    """
    callers = sys.exception()
    try:
        return work()
    except (InvalidParameter, InvalidRow) as error:
        if error.parameter != "embeddings":
            raise
        clear_frames(error, callers)
    raise StoreError(f"{store.name} holds vectors that cannot be scored; nothing was released.")


def check_ledger(ledger: AccountLike | None, rng: Rng) -> None:
    """Raise an error where a ledger is given that cannot be charged for a store."""
    if ledger is None:
        return
    if rng is not None:
        raise InvalidInput(
            "'rng' is research mode, which is not private, and no ledger takes it: leave one of them out."
        )
    check_account(ledger)
    if str(ledger.dataset).startswith("hmac-sha256:"):
        raise InvalidInput(
            "A ledger for a store needs a name, ledger.account('name'). A fingerprint changes with every insert, and "
            "the budget of the records that stay would start again."
        )


def check_identities(identity_of: Any, centroids: Any, pin: str) -> None:
    """Raise an error where the arguments about identities do not fit together."""
    if identity_of is not None and not isinstance(identity_of, Mapping) and not callable(identity_of):
        _validation.reject("identity_of", "a mapping or a function from ids to identities", identity_of)
    _validation.check_flag(centroids, "centroids")
    if centroids and identity_of is None:
        raise InvalidInput("Centroids are of identities: give the identity of each id with 'identity_of'.")
    if centroids and pin == "scores":
        raise InvalidInput("Centroids are made of vectors, and pin='scores' has none; use pin='copy'.")


class _Grouping(NamedTuple):
    """The identities of the records of one version."""

    ids: Names
    labels: NDArray[Any]
    names: Names
    adjacency: Adjacency


class IdentityMap:
    """The identity of each record. It decides what hits are called and who is protected.

    Args:
        identity_of: As for `PrivateSearch`.
        centroids: Whether hits are identities.
        pin: How the store is pinned.
        fixes_owners: Whether a record must keep its identity. What is spent on one grouping of the records does not
            count for another grouping.
    """

    def __init__(
        self,
        identity_of: Mapping[Any, Any] | Callable[[Any], Any] | None,
        centroids: bool,
        pin: str,
        *,
        fixes_owners: bool,
    ) -> None:
        check_identities(identity_of, centroids, pin)
        self.has_identities, self.centroids = identity_of is not None, centroids
        self._identity_of = identity_of
        self._grouping: _Grouping | None = None
        self._fixes_owners, self._owners = fixes_owners, dict[Any, Any]()

    def group(self, ids: Names) -> tuple[Names, Adjacency]:
        """Find the names of the hits, and the adjacency that protects each identity.

        A mapping is read at each call, because its owner may write to it. A function is called once per version of the
        records.
        """
        identity_of, grouping = self._identity_of, self._grouping
        if identity_of is None:
            return ids, Replacement()
        if grouping is None or grouping.ids is not ids or isinstance(identity_of, Mapping):
            find = identity_of.__getitem__ if isinstance(identity_of, Mapping) else identity_of
            try:
                labels = np.asarray([find(one) for one in ids])
            except Exception:
                raise InvalidInput("'identity_of' does not give the identity of every id.") from None
            if grouping is None or grouping.ids is not ids or not np.array_equal(grouping.labels, labels):
                self._check_owners(ids, labels)
                adjacency = Identity(labels, centroids=self.centroids)
                names = tuple(np.unique(labels).tolist()) if self.centroids else ids
                grouping = self._grouping = _Grouping(ids, labels, names, adjacency)
        return grouping.names, grouping.adjacency

    def _check_owners(self, ids: Names, labels: NDArray[Any]) -> None:
        """Raise an error for a record whose identity changed."""
        owners = dict(zip(ids, labels.tolist(), strict=True))
        if self._fixes_owners and any(self._owners.get(one, owner) != owner for one, owner in owners.items()):
            raise InvalidInput(
                "'identity_of' gives a record another identity than before. Promises about different groups do not add "
                "up: give the record another id."
            )
        self._owners |= owners
