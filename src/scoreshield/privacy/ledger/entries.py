"""The entries of a ledger: frozen facts, their canonical text and their place in the hash chain.

The rule of this format: **a kind never changes meaning**. An entry of format 1 and kind "charge" means the same
forever. Anything new gets a new kind or a new format number. A version that does not support it rejects the ledger.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from scoreshield.errors import LedgerError
from scoreshield.privacy.profiles import Profile, profile_from_dict

#: The format of ledgers and of their entries. A number never changes meaning.
FORMAT = 1
#: A draw of an index costs its profile if the largest count of any record rose, and nothing otherwise.
CHARGE, DRAW, FREE_DRAW = "charge", "draw", "free-draw"
KINDS = (CHARGE, DRAW, FREE_DRAW)
DRAW_KINDS = (DRAW, FREE_DRAW)
#: The most characters that one text in a ledger may have. A curve of 100,000 knots has half as many.
_LONGEST = 8_000_000
#: The most characters that are written: the sums of an account repeat the profile of its only entry, and more.
LONGEST_WRITTEN = _LONGEST // 2


def shorten(value: object) -> str:
    """Write a value of a database for a message: short, and without control characters."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def read_json(text: str) -> Any:
    """Read JSON without NaN and Infinity. What cannot be read, or is nested too deeply, raises a ValueError."""
    if len(text) > _LONGEST:
        raise ValueError("it is too long")

    def reject(name: str) -> Any:
        raise ValueError(f"{name} is not a number")

    try:
        return json.loads(text, parse_constant=reject)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_canonical_json(value: Any) -> str:
    """Write the canonical JSON of a value: sorted keys, no spaces, ASCII, shortest numbers that read back equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def hash_canonical_json(value: Any) -> str:
    """Compute the SHA-256 hash of the canonical text, in hexadecimal."""
    return hashlib.sha256(write_canonical_json(value).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One charge: what was charged, to which collection, and why.

    Attributes:
        id: 1, 2, 3, ...: the order of the chain.
        format: What the other fields mean. It never changes meaning.
        kind: What the other fields mean. It never changes meaning.
        time: UTC, by the clock of the charging machine. The order is that of ``id``, not of clocks.
        note: Empty, or how far this clock was behind that of the entry above.
        dataset: A name, or a keyed fingerprint of an earlier version; None counts against every dataset.
        unit: What is protected, by the name of the adjacency.
        who: Free text.
        why: Free text.
        profile: The privacy profile, as canonical JSON.
        guarantee: The guarantee, as canonical JSON.
        previous: The hash of the entry above; for the first entry, the hash of the facts of the ledger.
        hash: The hash of this entry.
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

    def seal(self) -> Entry:
        """Return this entry with its hash."""
        return replace(self, hash=self.compute_hash())

    def compute_hash(self) -> str:
        """Compute the hash of the other fields."""
        facts = {name: value for name, value in vars(self).items() if name != "hash"}
        try:
            return hash_canonical_json(facts)
        except (TypeError, ValueError, RecursionError):  # a damaged database may hold anything
            return ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with profile and guarantee as objects."""
        try:
            return {**vars(self), "profile": read_json(self.profile), "guarantee": read_json(self.guarantee)}
        except (ValueError, TypeError):
            raise LedgerError(f"Entry {shorten(self.id)} holds a profile or guarantee that cannot be read.") from None

    def find_fault(self, previous: str) -> str | None:
        """Return what is wrong with this entry, if the one above has the hash ``previous``; None if nothing is."""
        if self.previous != previous:
            return "does not follow the entry above it: something was removed, inserted or moved there"
        if not self.hash or self.compute_hash() != self.hash:  # what cannot be hashed has the hash ''
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


def verify_export(data: dict[str, Any]) -> tuple[str, str | None]:
    """Compute the chain of an exported ledger again; return its head and what is wrong with it, or None."""
    last, number = hash_canonical_json(data["ledger"]), 0
    for facts in data["entries"]:
        try:
            texts = {name: write_canonical_json(facts[name]) for name in ("profile", "guarantee")}
            entry = Entry(**{**facts, **texts})
        except (KeyError, TypeError, ValueError, RecursionError):
            return f"{number}:{last}", f"Entry {number + 1} of the file is not complete or not valid."
        fault = entry.find_fault(last)
        if fault is None and entry.id != number + 1:
            fault = "does not have the number that follows"
        if fault is not None:
            return f"{number}:{last}", f"Entry {shorten(entry.id)} {fault}."
        last, number = entry.hash, number + 1
    return f"{number}:{last}", None


def is_time(text: object) -> bool:
    """Return whether this is a time with its zone, as entries have it."""
    try:
        return datetime.fromisoformat(str(text)).tzinfo is not None
    except ValueError:
        return False


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Entry))


def read_profile(text: str) -> Profile:
    """Read the profile of an entry."""
    try:
        return profile_from_dict(read_json(text))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise LedgerError(f"The ledger holds a privacy profile that this version cannot read: {error}") from None
