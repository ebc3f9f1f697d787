"""What a private search may be asked for: the options that go together, the ledger, whose records, the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Identity, Replacement, check_score_range
from scoreshield.privacy.ledger import Account
from scoreshield.releases.pipeline import check_account
from scoreshield.search.answers import Names
from scoreshield.stores.arrays import ArrayStore
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import is_store

Mode = Literal["index", "query", "screening"]
MODES: tuple[str, ...] = get_args(Mode)


def check_options(
    mode: str, delta: Any, threshold: Any, refine: Any, mechanism: Any, score_range: Any, components: Any, file: Any
) -> None:
    if (threshold is not None) != (mode == "screening"):
        raise InvalidInput("A 'threshold' is given for mode='screening', and for no other; search() takes one too.")
    if refine and mode != "screening":
        raise InvalidInput("'refine' is for mode='screening'.")
    if delta and mode == "screening":
        _validation.reject("delta", "0 (left out) for screening, which is private without it", delta)
    if mechanism is not None and mode == "screening":
        raise InvalidInput("Screening has one mechanism, randomised response; leave 'mechanism' out.")
    if mode == "index" and check_score_range(score_range) != FULL_RANGE:
        raise InvalidInput("An index has no score range: its vectors are released, not scores.")
    if mode != "index" and (components is not None or file is not None):
        raise InvalidInput("'components' and 'file' are for mode='index'.")


def check_identities(identity_of: Any, centroids: Any, pin: str) -> None:
    if identity_of is not None and not isinstance(identity_of, Mapping) and not callable(identity_of):
        _validation.reject("identity_of", "a mapping or a function from ids to identities", identity_of)
    if not isinstance(centroids, bool):
        _validation.reject("centroids", "True or False", centroids)
    if centroids and identity_of is None:
        raise InvalidInput("Centroids are of identities: say whose record an id is with 'identity_of'.")
    if centroids and pin == "scores":
        raise InvalidInput("Centroids are made of vectors, and pin='scores' has none; use pin='copy'.")


class _Named(NamedTuple):
    """Whose the records of one version are."""

    ids: Names
    labels: NDArray[Any]
    names: Names
    adjacency: Adjacency


class Whose:
    """Whose record an id is: what hits are called, and who is protected.

    With ``stays``, a record keeps its owner: what is spent on one grouping of the records does not count for another.
    """

    def __init__(
        self,
        identity_of: Mapping[Any, Any] | Callable[[Any], Any] | None,
        centroids: bool,
        pin: str,
        stays: bool = True,
    ) -> None:
        check_identities(identity_of, centroids, pin)
        self.given, self.centroids = identity_of is not None, centroids
        self._of: Any = identity_of
        self._known: _Named | None = None
        self._stays, self._owners = stays, dict[Any, Any]()

    def names(self, ids: Names) -> tuple[Names, Adjacency]:
        """A mapping is looked at each time, as it may be written to; a function is asked once for each version."""
        of, known = self._of, self._known
        if of is None:
            return ids, Replacement()
        if known is None or known.ids is not ids or isinstance(of, Mapping):
            try:
                labels = np.asarray([of[one] if isinstance(of, Mapping) else of(one) for one in ids])
            except Exception:
                raise InvalidInput("'identity_of' does not say whose record every id is.") from None
            if known is None or known.ids is not ids or not np.array_equal(known.labels, labels):
                self._check_owners(ids, labels)
                adjacency = Identity(labels, centroids=self.centroids)
                names = tuple(np.unique(labels).tolist()) if self.centroids else ids
                known = self._known = _Named(ids, labels, names, adjacency)
        return known.names, known.adjacency

    def _check_owners(self, ids: Names, labels: NDArray[Any]) -> None:
        """Raise an error for a record that changed hands."""
        owners = dict(zip(ids, labels.tolist(), strict=True))
        if self._stays and any(self._owners.get(one, owner) != owner for one, owner in owners.items()):
            raise InvalidInput(
                "'identity_of' says that a record belongs to someone else than before: promises about different groups "
                "do not add up, so give the record another id."
            )
        self._owners |= owners


def pinned(store: Any, pin: str, check_every: float | None) -> PinnedStore:
    if isinstance(store, PinnedStore):
        if pin != "auto" or check_every:
            raise InvalidInput("A pinned store has its own 'pin' and 'check_every': leave them out.")
        return store
    if not is_store(store):
        if not isinstance(store, str | Path | list | tuple) and not hasattr(store, "__array__"):
            must = "a store of scoreshield.stores, or what keeps its protocol, or an (n, d) array"
            _validation.reject("store", must, store)
        store = ArrayStore(store)
    return PinnedStore(store, pin=pin, check_every=check_every)


def check_ledger(ledger: Any, mode: str, rng: Any) -> Account | None:
    if ledger is None and (mode == "index" or rng is not None):
        return None
    if ledger is not None and rng is not None:
        raise InvalidInput(
            "'rng' is research mode, which is not private, and no ledger takes it: leave one of them out."
        )
    must = "ledger.account(name), with the name of the collection"
    if ledger is None:
        raise InvalidInput(f"In mode {mode!r} every query spends: the 'ledger' of PrivateSearch must be {must}.")
    check_account(ledger)
    account: Account = ledger
    if account.dataset is not None and account.dataset.startswith("hmac-sha256:"):
        raise InvalidInput(
            "A ledger for a store needs a name, ledger.account('name'): a fingerprint is another one after every "
            "insert, and the budget of the records that stay would start anew."
        )
    return account
