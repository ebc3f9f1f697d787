"""Types of arguments that many public functions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from scoreshield.privacy.adjacency import Adjacency
    from scoreshield.privacy.guarantee import Guarantee
    from scoreshield.privacy.sampling.stream import ReleaseKey

#: None draws from the secure sampler. A seed or a generator is research mode: results repeat and are not private. A
#: `ReleaseKey` is the secure sampler under a secret key: the service repeats a release with it after a crash.
Rng: TypeAlias = "int | np.random.Generator | ReleaseKey | None"

#: How the standard deviation of Gaussian noise is found.
Calibration: TypeAlias = Literal["analytic", "conservative", "classical"]

#: "unit" normalises rows; "ball" only shortens rows longer than one.
Norm: TypeAlias = Literal["unit", "ball"]


class Reservation(Protocol):
    """A charge that fits the budget and is not written yet."""

    def commit(self) -> Sequence[Any]:
        """Write the charge, and return its ledger entries."""


class AccountLike(Protocol):
    """What a release charges: ``ledger.account(name)``, or another object with the same two members."""

    @property
    def dataset(self) -> str | None:
        """The name of the collection that is charged."""

    def reserve(
        self, items: Sequence[Guarantee], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> Reservation:
        """Check that the guarantees fit the budget, all of them together. Nothing is written before ``commit()``."""
