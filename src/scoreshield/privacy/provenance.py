"""What the owner of a release says about it, for its certificate: the collection, who made it, why, and its charge."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from scoreshield import _validation
from scoreshield._validation import check_text, validate
from scoreshield.errors import InvalidInput

if TYPE_CHECKING:
    from scoreshield.privacy.ledger.entries import Entry

_ENTRY = re.compile("[0-9]{1,18}:[0-9a-f]{64}")


@dataclass(frozen=True)
class Provenance:
    """Where a release comes from. The texts are the owner's words: nothing in a release proves them.

    Attributes:
        dataset: The name of the collection; empty if it is not stated.
        who: Who made the release; empty if it is not stated.
        why: For what purpose; empty if it is not stated.
        entry: The ledger entry of the charge, ``"NUMBER:HASH"`` as `Ledger.verify` takes it; empty without a charge.
    """

    dataset: str = ""
    who: str = ""
    why: str = ""
    entry: str = ""

    @validate()
    def __post_init__(self) -> None:
        for name in ("dataset", "who", "why"):
            check_text(getattr(self, name), name)
        if not isinstance(self.entry, str) or not (self.entry == "" or _ENTRY.fullmatch(self.entry)):
            _validation.reject("entry", "empty, or 'NUMBER:HASH' of a ledger's entry", self.entry)

    @classmethod
    def of_entry(cls, entry: Entry, who: str | None) -> Provenance:
        """State the provenance of a charged release.

        Args:
            entry: The entry of the ledger.
            who: Who charges, as the caller stated it. Where no one is named, the ledger writes the user and the host,
                which do not belong on a certificate.
        """
        return cls(entry.dataset or "", who or "", entry.why, f"{entry.id}:{entry.hash}")

    def annotate(self, *, dataset: str | None, who: str | None, why: str | None) -> Provenance:
        """Return this provenance with other texts. None keeps a text, and an empty text removes it."""
        if self.entry and dataset not in (None, self.dataset):
            raise InvalidInput(
                f"This release was charged to {self.dataset!r}, and its certificate cannot name another dataset."
            )
        return Provenance(
            self.dataset if dataset is None else dataset,
            self.who if who is None else who,
            self.why if why is None else why,
            self.entry,
        )

    def to_dict(self) -> dict[str, str]:
        """Return what is stated as plain values, for JSON."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def from_dict(cls, data: Any) -> Provenance:
        """Read what `to_dict` wrote."""
        if not isinstance(data, dict) or not data.keys() <= {field.name for field in fields(cls)}:
            raise InvalidInput("The provenance in the file is not valid.")
        return cls(**data)
