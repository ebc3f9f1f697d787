"""One line of a ledger: a frozen fact, its canonical text and its place in the hash chain.

The rule of this format: **a kind never changes meaning**. What an entry of format 1 and kind "charge" says, it says
forever; anything new gets a new kind or a new format number, and a version that does not know one rejects the ledger.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from scoreshield import _validation
from scoreshield.errors import LedgerError
from scoreshield.privacy.profiles import Profile, profile_from_dict

#: Of ledgers and their entries; a number never changes meaning.
FORMAT = 1
KINDS = ("charge",)
#: Of one text in a ledger, in characters: a curve of 100,000 knots has half as many.
_LONGEST = 8_000_000
#: Of what is written: the sums of an account repeat the profile of its only entry, and more.
LONGEST_WRITTEN = _LONGEST // 2


def shorten(value: object) -> str:
    """A value of a database for a message: short, and nothing that a terminal acts on."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def read_json(text: str) -> Any:
    """JSON as this package writes it: no NaN or Infinity; a ValueError for what cannot be read, however deep it is."""
    if len(text) > _LONGEST:
        raise ValueError("it is too long")

    def reject(name: str) -> Any:
        raise ValueError(f"{name} is not a number")

    try:
        return json.loads(text, parse_constant=reject)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII, shortest numbers that read back equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def hash_canonical_json(value: Any) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(write_canonical_json(value).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Entry:
    """What was charged, for whom and why.

    Attributes
    ----------
    id : 1, 2, 3, ...: the order of the chain.
    format, kind : what the other fields mean; they never change meaning.
    time : UTC, as the charging machine's clock had it; the order is that of ``id``, not of clocks.
    note : empty, or that this clock stood before that of the entry above, and by how much.
    dataset : a name, or a keyed fingerprint of an earlier version; None counts against every dataset.
    unit : who is protected, by the name of the adjacency.
    who, why : free text.
    profile, guarantee : what was promised, as canonical JSON.
    previous, hash : the hash of the entry above (of the ledger's own facts, for the first), and of this one.
    """

    id: int
    format: int
    kind: str
    time: str
    note: str
    dataset: str | None
    unit: str
    who: str
    why: str
    profile: str
    guarantee: str
    previous: str
    hash: str = ""

    def sealed(self) -> Entry:
        """This entry with its hash."""
        return Entry(**{**asdict(self), "hash": self.own_hash()})

    def own_hash(self) -> str:
        """The hash that the other fields have."""
        facts = asdict(self)
        del facts["hash"]
        try:
            return hash_canonical_json(facts)
        except (TypeError, ValueError, RecursionError):  # a damaged database may hold anything at all
            return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with profile and guarantee as objects."""
        try:
            return {**asdict(self), "profile": read_json(self.profile), "guarantee": read_json(self.guarantee)}
        except (ValueError, TypeError):
            raise LedgerError(f"Entry {shorten(self.id)} holds a profile or guarantee that cannot be read.") from None

    def fault(self, previous: str) -> str | None:
        """What is wrong with this entry where the one above has the hash ``previous``; None if nothing is."""
        if self.previous != previous:
            return "does not follow the entry above it: something was removed, inserted or moved there"
        if not self.hash or self.own_hash() != self.hash:  # what cannot be hashed has the hash ''
            return "was changed after it was written"
        if self.format != FORMAT or self.kind not in KINDS:
            return (
                f"is of format {shorten(self.format)} and kind {shorten(self.kind)}, which this version does not know"
            )
        if not is_time(self.time):
            return "holds a time that cannot be read"
        try:
            read_profile(self.profile)
            read_json(self.guarantee)
        except (LedgerError, ValueError, TypeError):
            return "holds a privacy profile or guarantee that cannot be read"
        return None


def is_time(text: object) -> bool:
    """Whether this is a time with its zone, as entries have it."""
    try:
        return datetime.fromisoformat(str(text)).tzinfo is not None
    except ValueError:
        return False


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Entry))


def read_profile(text: str) -> Profile:
    """The profile of an entry."""
    try:
        return profile_from_dict(read_json(text))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise LedgerError(f"The ledger holds a privacy profile that this version cannot read: {error}") from None


def check_text(value: Any, name: str, *, least: int = 0, most: int = 1000) -> str:
    """Free text that every database can hold."""
    must = f"text of {least} to {most} printable characters"
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        _validation.reject(name, must, value)
    return value
