"""What a ledger's entries add up to, dataset by dataset, and what may be added to them."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from scoreshield import _checks
from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.filters import Filter
from scoreshield.privacy.ledger_entry import FORMAT, KINDS, canonical, read_profile
from scoreshield.privacy.ledger_store import Session
from scoreshield.privacy.losses import profile_of
from scoreshield.privacy.profile import Profile, profile_from_dict

#: How many identities there were, and of what size.
_SIZES = re.compile(r" identities \d+ largest \d+$")


class Books:
    """The entries, added up by dataset."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self._budget = (epsilon, delta)
        self._charged: dict[str | None, Counter[Profile]] = {None: Counter()}
        self._units: dict[str | None, set[str]] = {}

    @classmethod
    def read(cls, session: Session, epsilon: float, delta: float) -> Books:
        books = cls(epsilon, delta)
        for dataset, unit, form, kind, text, number in session.tallies():
            if form != FORMAT or kind not in KINDS:
                raise LedgerError(
                    f"The ledger holds an entry of format {form} and kind {kind!r}, which this version does not know; "
                    "use a newer one."
                )
            books._charged.setdefault(dataset, Counter())[read_profile(text)] += int(number)
            books._units.setdefault(dataset, set()).add(unit)
        return books

    def add(self, dataset: str | None, unit: str, profile: Profile) -> None:
        """One more entry, as if it had been read."""
        self._charged.setdefault(dataset, Counter())[profile] += 1
        self._units.setdefault(dataset, set()).add(unit)

    @property
    def names(self) -> list[str]:
        return sorted(name for name in self._charged if name is not None)

    def filters(self, dataset: str | None) -> list[Filter]:
        """The budgets that a charge to this dataset must fit: its own, or all of them where it names none."""
        unnamed = self._charged[None]
        if dataset is not None:
            return [Filter.of(*self._budget, self._charged.get(dataset, Counter()) + unnamed)]
        return [Filter.of(*self._budget, charged + unnamed) for name, charged in self._charged.items() if name] or [
            Filter.of(*self._budget, unnamed)
        ]

    def check_unit(self, dataset: str | None, unit: str, *, same_people: bool = False) -> None:
        """Promises about different changes of the records do not add up.

        Other numbers of identities are another grouping of the records, unless the caller says that they are the
        ``same_people``, of whom some came and went.
        """
        known = self._units
        others = known if dataset is None else {name: known.get(name, set()) for name in (dataset, None)}
        for earlier in sorted(set().union(*others.values()) - {unit}):
            if same_people and _promise(earlier) == _promise(unit):
                continue
            raise InvalidInput(
                f"This budget counts promises about {earlier!r} and the release makes one about {unit!r}; promises "
                "about different changes do not add up, so release the same records under one adjacency: another name "
                "for them would forget what was spent."
            )


def _promise(unit: str) -> str:
    """What a unit of an entry promises, without how many identities there happened to be."""
    return _SIZES.sub("", unit) if unit.startswith("identity ") else unit


def charge_of(guarantee: Any, function: str) -> tuple[Profile, str, str]:
    """The profile, the unit and the whole guarantee as text, or a refusal of what cannot be charged."""
    if isinstance(guarantee, Profile) or not hasattr(guarantee, "sampler"):
        _checks.reject("item", function, "a guarantee or a release", guarantee)
    if guarantee.sampler != "exact":
        raise InvalidInput(
            f"A ledger does not take a release from the {guarantee.sampler!r} sampler: whoever knows its seed can undo "
            "the noise, so no budget covers it; release with rng=None."
        )
    profile = profile_of(guarantee, function)
    adjacency = guarantee.adjacency.to_dict()
    # All that a guarantee keeps of who is protected: the radius, or how many identities of what size.
    facts = [f"{name} {adjacency[name]!r}" for name in sorted(adjacency) if name != "kind"]
    unit = " ".join([str(adjacency["kind"]), *facts])
    try:
        # What later versions read back must be what is charged now.
        if profile_from_dict(json.loads(canonical(profile.to_dict()))) != profile:
            raise ValueError("it does not read back")
        return profile, unit, canonical(guarantee.to_dict())
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"The guarantee cannot be written to a ledger: {error}") from None
