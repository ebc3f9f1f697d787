"""Entries of an index whose changes are public: which rows were drawn, and whether the largest count rose.

An entry of the kind "draw" costs one draw, because the largest number of draws of any record of its index rose by one.
An entry of the kind "free-draw" costs nothing: rows were drawn, and none of them became the most drawn record. Each
entry holds a hash of all counts after it, and the ids and counts of the rows that it drew, except for the first entry,
which drew all rows once. So the entries are the true counts, even if a version of the index was lost in a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.draws import DrawCounts, DrawStep, RecordId
from scoreshield.privacy.ledger.entries import (
    DRAW,
    DRAW_KINDS,
    FREE_DRAW,
    LONGEST_WRITTEN,
    Entry,
    read_json,
    write_canonical_json,
)


class DrawFacts(NamedTuple):
    """What an entry states about the draws of an index.

    Attributes:
        history: The name of the index and of all its versions.
        state: The hash of all counts after these draws.
        previous: The hash of all counts before them; None for the first version.
        largest: The draws of the record that was drawn most often.
        ids: The records that were drawn; empty for the first version, which drew all.
        counts: How often each of them was drawn by now.
    """

    history: str
    state: str
    previous: str | None
    largest: int
    ids: tuple[RecordId, ...]
    counts: tuple[int, ...]

    @classmethod
    def of_step(cls, step: DrawStep) -> DrawFacts:
        """Collect the facts of draws that are not charged yet."""
        after = step.before.add(step.ids)
        is_first = not step.before.counts
        return cls(
            step.history,
            after.compute_hash(),
            None if is_first else step.before.compute_hash(),
            after.largest,
            () if is_first else step.ids,
            () if is_first else tuple(after.counts[one] for one in step.ids),
        )

    @classmethod
    def of_entry(cls, text: str) -> DrawFacts:
        """Read the facts of an entry. What holds none raises a KeyError, a TypeError or a ValueError."""
        facts = cls(**read_json(text)["draws"])
        facts = facts._replace(ids=tuple(facts.ids), counts=tuple(facts.counts))
        hashes = [facts.history, facts.state] + [facts.previous] * (facts.previous is not None)
        if not all(isinstance(one, str) for one in hashes) or len(facts.ids) != len(facts.counts):
            raise ValueError("no draws")
        if not all(type(number) is int and number > 0 for number in (facts.largest, *facts.counts)):
            raise ValueError("no counts")
        if not all(type(one) in (int, str) for one in facts.ids):
            raise ValueError("no ids")
        return facts

    @staticmethod
    def find_price(profile: str, promise: dict[str, Any]) -> str:
        """Find what all draws of one history have in common, as text: the profile of one draw, and its noise.

        Args:
            profile: The profile of one draw, as text.
            promise: The guarantee of a version.
        """
        facts = {name: promise[name] for name in ("mechanism", "adjacency", "delta", "scale", "grid")}
        details = {name: value for name, value in dict(promise["details"]).items() if name != "largest_draws"}
        return profile + write_canonical_json(facts | {"details": details, "row": promise["shape"][1:]})

    def find_kind(self, before: int) -> str:
        """Find the kind of the entry, from the largest count before it."""
        return DRAW if self.largest > before else FREE_DRAW


def write_draws(step: DrawStep) -> tuple[str, str]:
    """Return the kind of the entry, and its guarantee and draws as text."""
    facts = DrawFacts.of_step(step)
    text = write_canonical_json({"promise": step.total.to_dict(), "draws": facts._asdict()})
    if len(text) > LONGEST_WRITTEN:
        raise InvalidInput(
            f"An update of {len(step.ids):,} rows is too long for one entry of a ledger; split it into smaller ones."
        )
    return facts.find_kind(step.before.largest), text


def find_later_draws(entries: Iterable[Entry], history: str, state: str, price: str | None = None) -> list[DrawFacts]:
    """Find the draws of a history after the version whose counts have this hash.

    Args:
        entries: The entries of the account that hold draws, the newest first.
        history: The name of the index.
        state: The hash of the counts of the version that is at hand.
        price: What one more draw of it costs (`DrawFacts.find_price`); None if none is made.

    Returns:
        The later draws, the oldest first.

    Raises:
        InvalidInput: The account has no such version, or it was charged for draws of another price.
    """
    later: list[DrawFacts] = []
    for entry in entries:
        try:
            facts = DrawFacts.of_entry(entry.guarantee)
            is_other = facts.history == history and price not in (None, read_price(entry))
        except (KeyError, TypeError, ValueError):
            raise LedgerError("The ledger has been altered: run verify to see where; nothing was charged.") from None
        if is_other:
            raise InvalidInput(
                "The ledger was charged for an index with another epsilon or other noise under the name of this "
                "history; update a version as it was released."
            )
        if facts.history == history:
            if facts.state == state:
                return later[::-1]
            later.append(facts)
    raise InvalidInput(
        "The ledger has no charge for this version of the index: update a version that was charged to this account, "
        "with its counts as they were."
    )


def read_price(entry: Entry) -> str:
    """Read the price of a draw from an entry. What holds none raises a KeyError, a TypeError or a ValueError."""
    return DrawFacts.find_price(entry.profile, read_json(entry.guarantee)["promise"])


def replay_draws(counts: DrawCounts, later: list[DrawFacts]) -> DrawCounts:
    """Add draws that the ledger holds to the counts of an earlier version."""
    for facts in later:
        counts = counts.add(facts.ids)
        if counts.compute_hash() != facts.state:
            raise LedgerError("The ledger has been altered: run verify to see where; nothing was charged.")
    return counts


class HistoryAudit:
    """The counts of all indexes whose changes are public, computed again from the entries, for ``verify``."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str | None, str], DrawFacts] = {}
        self._prices: dict[tuple[str | None, str], str] = {}
        self._counts: dict[tuple[str | None, str], dict[RecordId, int]] = {}

    def add(self, entry: Entry) -> str | None:
        """Count one entry, and return what is wrong with it; None if nothing is."""
        if entry.kind not in DRAW_KINDS:
            return None
        try:
            facts, price = DrawFacts.of_entry(entry.guarantee), read_price(entry)
            stated = read_json(entry.guarantee)["promise"]["details"]["largest_draws"]
        except (KeyError, TypeError, ValueError):
            return "holds draws that cannot be read"
        key = (entry.dataset, facts.history)
        newest = self._newest.get(key)
        counts = self._counts.setdefault(key, {})
        self._newest[key] = facts
        if price != self._prices.setdefault(key, price):
            return "draws at another price than the first version of its index"
        if stated != facts.largest:
            return "states another number of draws than it counts"
        if newest is None:
            is_first = facts.previous is None and facts.largest == 1 and not facts.ids and entry.kind == DRAW
            return None if is_first else "continues an index that no entry has begun"
        if facts.previous != newest.state or not facts.ids:
            return "does not continue the counts of its index"
        if facts.largest != max(newest.largest, *facts.counts) or entry.kind != facts.find_kind(newest.largest):
            return "does not cost what its draws cost"
        for one, count in zip(facts.ids, facts.counts, strict=True):
            # A record that no update has drawn was drawn once by the first version, or never.
            if count not in ((counts[one] + 1,) if one in counts else (1, 2)):
                return "does not continue the count of a record"
            counts[one] = count
        return None
