"""A ledger of what was spent on the privacy of a collection: it lasts, cannot be overdrawn, and can be checked.

A release is charged *before* its noise is drawn: its guarantee is checked against the budget, its clean scores are
computed, the charge is committed, and only then are random bits drawn. A crash after the commit costs budget and
releases nothing. Charges are decided by the :class:`~scoreshield.privacy.filters.PrivacyFilter` that the entries add
up to, under the database's lock, so racing processes cannot pass the limit together. Entries are frozen and chained by
SHA-256. docs/accounting.md says what that shows, and what it cannot.
"""

from __future__ import annotations

import contextlib
import csv
import getpass
import hashlib
import io as text_io
import itertools
import json
import re
import secrets
import socket
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from scoreshield import _files, _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerWarning
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.privacy.filters import RULES, Headroom, PrivacyFilter, check_budget
from scoreshield.privacy.ledger.books import AccountAudit, Books, LedgerLimit
from scoreshield.privacy.ledger.entries import (
    COLUMNS,
    FORMAT,
    KINDS,
    Entry,
    check_text,
    hash_canonical_json,
    is_time,
    read_json,
    shorten,
    write_canonical_json,
)
from scoreshield.privacy.ledger.names import normalise_name
from scoreshield.privacy.ledger.stores import LedgerStore, Session, open_store
from scoreshield.privacy.ledger.units import make_charge
from scoreshield.privacy.profiles import Profile

__all__ = ["Account", "BudgetExceeded", "Entry", "Ledger", "LedgerError", "LedgerVerification", "PendingCharge"]


#: How many links at the end of the chain each charge looks at; ``verify`` looks at all.
_LOOK_BACK = 16


@dataclass(frozen=True)
class LedgerVerification:
    """What a check of the whole chain found; true if nothing is wrong.

    Attributes
    ----------
    entries : how many entries are good, from the first on.
    head : the address of the last good one, ``"NUMBER:HASH"``; pin it elsewhere and give it to ``verify(head=...)``.
    first_bad : the number of the first entry that is wrong; None where no single entry is to blame.
    reason : what is wrong, in a sentence; empty if nothing is.
    """

    entries: int
    head: str
    first_bad: int | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        return f"All {self.entries} entries are as they were written, in order and within the limit; head {self.head}."


class PendingCharge:
    """Guarantees that were checked against a budget and are not charged yet."""

    def __init__(self, charge: Callable[[], list[Entry]]) -> None:
        self._charges = [charge]

    def commit(self) -> list[Entry]:
        """Charge them, all or none; the entries are on the disk when this returns, and noise may be drawn after it.

        Raises:
            LedgerError: If ``commit`` was called before, whether or not that call succeeded.
        """
        try:
            charge = self._charges.pop()  # of two threads, one gets it
        except IndexError:
            raise LedgerError(
                "This charge was committed already, or failed; reserve another one to charge again."
            ) from None
        return charge()


class Ledger:
    """The budget of one collection, or of several, in a database.

    Make one with :meth:`create` and open it with :meth:`open`. The constructor does either: it opens what is there, and
    makes a ledger with a :class:`~scoreshield.LedgerWarning` where there is none.

    Parameters
    ----------
    url : ``sqlite:///PATH`` (``sqlite:////PATH`` from the root) or ``postgresql://...``. A path is made absolute here.
    epsilon, delta : the most that may ever be spent on one dataset. Given once, when the ledger is made; later openings
        agree or leave them out. With ``delta`` = 0 only pure mechanisms can be charged.

    A dataset is a name: collections that share records must share a name. A charge without one counts against all.
    """

    @clear_frames_on_error  # an address may hold a password
    @validate()
    def __init__(self, url: str, *, epsilon: float | None = None, delta: float | None = None) -> None:
        store = open_store(url)
        if not store.exists():
            if epsilon is None and delta is None:
                raise LedgerError(f"There is no ledger at {store.name}; make one with Ledger.create.")
            if _create(store, *check_budget(epsilon, delta)):
                warnings.warn(
                    f"There was no ledger at {store.name}, so one was made with nothing spent; Ledger.create makes one "
                    "without this warning, and Ledger.open never makes one.",
                    LedgerWarning,
                    stacklevel=5,  # past the frames of the two decorators
                )
        self._read(store)
        if (epsilon is not None and epsilon != self.epsilon) or (delta is not None and delta != self.delta):
            asked = " and ".join(f"{n} {v!r}" for n, v in (("epsilon", epsilon), ("delta", delta)) if v is not None)
            raise InvalidInput(
                f"The ledger {self._store.name} has the limit epsilon {self.epsilon!r} at delta {self.delta!r} for "
                f"good; got {asked}."
            )

    @classmethod
    @clear_frames_on_error
    @validate()
    def create(cls, url: str, *, epsilon: float, delta: float) -> Ledger:
        """Make a ledger where there is none.

        Args:
            url: As for the class.
            epsilon: The most that may ever be spent on one dataset; it cannot be changed later.
            delta: The delta it is counted at.

        Returns:
            The new ledger.

        Raises:
            LedgerError: If there is a ledger already, or anything else by that name.
        """
        store, budget = open_store(url), check_budget(epsilon, delta)
        if store.exists() or not _create(store, *budget):
            raise LedgerError(f"There is a ledger at {store.name} already; open it with Ledger.open.")
        return cls._at(store)

    @classmethod
    @clear_frames_on_error
    def open(cls, url: str) -> Ledger:
        """Open a ledger that is there.

        Args:
            url: As for the class.

        Returns:
            The ledger, with the limit that it was made with.

        Raises:
            LedgerError: If there is none; nothing is made.
        """
        store = open_store(url)
        if not store.exists():
            raise LedgerError(f"There is no ledger at {store.name}; make one with Ledger.create.")
        return cls._at(store)

    @classmethod
    def _at(cls, store: LedgerStore) -> Ledger:
        ledger = cls.__new__(cls)
        ledger._read(store)
        return ledger

    def _read(self, store: LedgerStore) -> None:
        self._store = store
        row = store.read(_row)
        self._facts, self._key = row.facts, row.key
        self._genesis = hash_canonical_json(self._facts)
        self.epsilon = float(self._facts["epsilon"])
        self.delta = float(self._facts["delta"])
        self._budget = LedgerLimit(self.epsilon, self.delta, int(self._facts["rules"]))

    def __repr__(self) -> str:
        return f"Ledger({self._store.name!r}, epsilon={self.epsilon!r}, delta={self.delta!r})"

    @property
    def name(self) -> str:
        """The address, without a password."""
        return self._store.name

    @validate()
    def spend(
        self,
        item: Any,
        *,
        dataset: str | None = None,
        who: str | None = None,
        why: str = "",
        adjacency: Adjacency | None = None,
        same_people: bool = False,
    ) -> Entry:
        """Charge a guarantee or a release once, or raise and charge nothing.

        Parameters
        ----------
        item : a guarantee, or a release that carries one. Research mode is rejected.
        dataset : the collection's name; None counts against all.
        who, why : for the record. Without ``who``, the user and host that the operating system names.
        adjacency : the one that the release was made with. An identity's own knows its labels, which a guarantee does
            not keep; their keyed hash tells one grouping of the records from another.
        same_people : says that identities are the same people as in earlier charges, some of whom came or went, so that
            charges with other labels, or with unknown ones, add up.

        Returns
        -------
        The entry, which is on the disk by then.

        Raises
        ------
        BudgetExceeded
            if the limit would be passed; it says what is spent and what would still fit.
        LedgerError
            if the ledger cannot be read or written, or has been altered. Then nothing may be released.
        """
        return self.spend_all([item], dataset=dataset, who=who, why=why, adjacency=adjacency, same_people=same_people)[
            0
        ]

    def spend_all(
        self,
        items: Iterable[Any],
        *,
        dataset: str | None = None,
        who: str | None = None,
        why: str = "",
        adjacency: Adjacency | None = None,
        same_people: bool = False,
    ) -> list[Entry]:
        """Charge several guarantees or releases at once, an entry each: all of them, or none."""
        return self.reserve(
            items, dataset=dataset, who=who, why=why, adjacency=adjacency, same_people=same_people, check=False
        ).commit()

    def reserve(
        self,
        items: Iterable[Any],
        *,
        dataset: str | None = None,
        who: str | None = None,
        why: str = "",
        adjacency: Adjacency | None = None,
        same_people: bool = False,
        check: bool = True,
    ) -> PendingCharge:
        """Check that guarantees or releases can be charged and fit the budget now; write nothing.

        ``commit()`` of the result charges them, all or none, and can still raise :class:`BudgetExceeded` where another
        process took the budget in between. ``check=False`` leaves the check to ``commit()``. The rest is as for
        :meth:`spend`.
        """
        charges = [make_charge(item, adjacency, self._key, same_people=same_people) for item in items]
        where = self._dataset(dataset)
        who = _default_who() if who is None else check_text(who, "who")
        why = check_text(why, "why")

        def checked(session: Session, number: int) -> Books:
            """The books with these charges in them, from this number on; an error where they do not fit."""
            books = self._books(session)
            before = books.filters(where)
            for place, (profile, unit, _) in enumerate(charges):
                books.check_units(where, unit, same_people=same_people)
                if not books.fits(where, profile):
                    raise _refusal(before, books.filters(where), profile, len(charges))
                books.add(where, number + place, unit, profile)
            return books

        def work(session: Session) -> list[Entry]:
            previous, above = self._head(session)
            number = 1 if above is None else above.id + 1
            books = checked(session, number)
            written: list[Entry] = []
            for place, (profile, unit, promise) in enumerate(charges):
                time, note = _stamp(above)
                text = write_canonical_json(profile.to_dict())
                fields = (number + place, FORMAT, KINDS[0], time, note, where, unit, who, why, text, promise, previous)
                above = Entry(*fields).sealed()
                session.append(above)
                previous = above.hash
                written.append(above)
            if above is not None and written:
                session.advance(above)
                row = books.write(where, above)
                self._read_back(session, written, where, row)
            return written

        pending = PendingCharge(lambda: self._store.write(work))
        if check:
            self._store.read(lambda session: checked(session, session.last_number() + 1))
        return pending

    @validate()
    def account(self, name: str, *, who: str | None = None, why: str = "") -> Account:
        """This ledger for the collection of that name, to hand to release functions as ``ledger=``.

        Args:
            name: The collection's name. docs/accounting.md says which names there are. "Faces" and "faces" are two.
            who: Who charges, for the record; the user and host that the operating system names if left out.
            why: What for, for the record.

        Returns:
            The account.

        Raises:
            InvalidInput: If this is not a name, or one that could be taken for another.
        """
        if not isinstance(name, str):
            _validation.reject("name", "the collection's name, a string", name)
        return Account(self, self._dataset(name), who, why)

    @property
    def spent(self) -> float:
        """Epsilon spent at the ledger's delta, on the dataset on which most is spent."""
        return self.spent_on(None)

    @property
    def remaining(self) -> float:
        """The limit less what is spent; :attr:`headroom` says what one more release may cost."""
        return max(0.0, self.epsilon - self.spent)

    @validate()
    def spent_on(self, dataset: str | None) -> float:
        """The same for one dataset, charges that name none included."""
        return max(budget.spent for budget in self._filters(dataset))

    def remaining_on(self, dataset: str | None) -> float:
        return max(0.0, self.epsilon - self.spent_on(dataset))

    @property
    def headroom(self) -> Headroom:
        """The largest pure and the largest Gaussian mechanism that would still fit."""
        return self.headroom_on(None)

    @validate()
    def headroom_on(self, dataset: str | None) -> Headroom:
        """The same for one dataset."""
        rooms = [budget.headroom for budget in self._filters(dataset)]
        return Headroom(*(min(values) for values in zip(*((r.pure, r.mu, r.gaussian) for r in rooms), strict=True)))

    def datasets(self) -> list[str]:
        """The names that were charged; earlier versions also charged fingerprints, which start "hmac-sha256:"."""
        return self._store.read(lambda session: self._books(session).names())

    def entries(self) -> list[Entry]:
        """All entries, in order."""
        return self._store.read(lambda session: list(session.entries()))

    def entry(self, hash: str) -> Entry | None:
        """The entry with this hash, as fast in a long ledger as in a short one; None where there is none."""
        return self._store.read(lambda session: session.entry_with(hash))

    def head(self) -> str:
        """``"NUMBER:HASH"`` of the last entry. Kept where the ledger's owner cannot change it, it dates the chain."""
        row = self._store.read(_row)
        return f"{row.entries}:{row.head}"

    @validate()
    def verify(self, *, head: str | None = None) -> LedgerVerification:
        """Check every entry, the chain, the limit and, if given, that an earlier ``head`` is still in the chain.

        The chain shows a change, a removal in the middle, an insertion and a swap. Entries cut off at the end by
        someone who can also rewrite the ledger's own row leave a shorter chain that is whole: only a pinned head shows
        that.
        """
        return self._store.read(lambda session: self._verify(session, _parse_head(head)))

    def export(self, path: str | Path) -> None:
        """Write all entries to a .csv or .json file, whole or not at all, for its owner alone.

        A cell of a .csv that a spreadsheet would take for a formula gets an apostrophe before it; .json has every entry
        as it is.
        """
        path = Path(path)
        if self._store.is_at(path):
            raise InvalidInput(f"{path} is the ledger itself; export it to another file.")
        writers: dict[str, Callable[[list[Entry]], str]] = {".csv": _as_csv, ".json": self._as_json}
        if path.suffix.lower() not in writers:
            raise InvalidInput(f"A ledger is exported to a .csv or .json file, by its ending; got {path}.")
        content = writers[path.suffix.lower()](self.entries()).encode("utf-8", "backslashreplace")

        def write(file: BinaryIO) -> None:
            file.write(content)

        _files.write_whole({path: write}, private=True)

    def _dataset(self, name: Any) -> str | None:
        """A name as it is charged: an old one as it was written, a new one in its one spelling."""
        if name is None:
            return None
        try:
            composed = normalise_name(name)
        except InvalidInput:
            if not isinstance(name, str) or not self._has(name):
                raise
            return name
        return name if name != composed and self._has(name) else composed

    def _has(self, name: str) -> bool:
        return name.isprintable() and self._store.read(lambda session: session.latest(name)) > 0

    def _books(self, session: Session) -> Books:
        if _row(session).facts != self._facts:  # another ledger took the place of the one that was opened
            raise LedgerError(f"The ledger {self.name} is not the one that was opened, or has been altered.")
        return Books(session, self._budget, self._key)

    def _filters(self, dataset: str | None) -> list[PrivacyFilter]:
        where = self._dataset(dataset)
        return self._store.read(lambda session: self._books(session).filters(where))

    def _head(self, session: Session) -> tuple[str, Entry | None]:
        """The hash to continue from, after a look at whether both ends of the chain are what the ledger's row says."""
        row, above, first = _row(session), session.last(), session.first()
        whole = (above is None and (row.entries, row.head) == (0, self._genesis)) or (
            above is not None and above.id == row.entries and above.hash == row.head == above.own_hash() != ""
        )
        whole = whole and (first is None or (first.id, first.previous) == (1, self._genesis))
        whole = whole and (above is None or is_time(above.time))
        links = session.links(_LOOK_BACK)
        for (number, previous, _), (one_before, _, hash_) in itertools.pairwise(links):
            whole = whole and (number, previous) == (one_before + 1, hash_)
        if hash_canonical_json(row.facts) != self._genesis or not whole:
            raise LedgerError(f"The ledger {self.name} has been altered: run verify to see where; nothing was charged.")
        return row.head, above

    def _read_back(
        self, session: Session, written: list[Entry], where: str | None, row: tuple[int, str, str] | None
    ) -> None:
        """Before the commit: is what the database holds what was written?"""
        facts, last = _row(session), written[-1]
        same = list(session.entries(after=written[0].id - 1)) == written
        same = same and (facts.entries, facts.head) == (last.id, last.hash) and facts.facts == self._facts
        if not same or (row is not None and session.account(where or "") != row):
            raise LedgerError(f"The ledger {self.name} does not keep what is written to it; nothing was charged.")

    def _verify(self, session: Session, pinned: tuple[int, str] | None) -> LedgerVerification:
        row = _row(session)
        last, good = hash_canonical_json(row.facts), 0
        if hashlib.sha256(row.key).hexdigest() != row.facts.get("key") or last != self._genesis:
            return LedgerVerification(0, f"0:{last}", None, "The ledger's own facts (limit, key) were changed.")
        if pinned == (0, last):
            pinned = None
        accounts, sums = AccountAudit(session, self._budget, row.key), None
        names: set[str | None] = set()
        for entry in session.entries():
            fault = entry.fault(last)
            if entry.id != good + 1 and fault is None:
                fault = "does not have the number that follows: something was removed, inserted or moved there"
            if fault is None and pinned is not None and pinned[0] == entry.id and pinned[1] != entry.hash:
                fault = "is another than the pinned head says: the chain was rewritten"
            if fault is not None:
                return LedgerVerification(good, f"{good}:{last}", entry.id, f"Entry {shorten(entry.id)} {fault}.")
            last, good = entry.hash, entry.id
            names.add(entry.dataset)
            sums = sums or accounts.add(entry)
        here = f"{good}:{last}"
        if session.count() != good:
            return LedgerVerification(good, here, None, "The ledger holds entries without a number.")
        if (good, last) != (row.entries, row.head):
            reason = (
                f"The ledger's row says {row.entries} entries and the chain has {good}: its end was cut off or changed."
            )
            return LedgerVerification(good, here, good + 1, reason)
        if pinned is not None and pinned[0] > good:
            reason = f"The pinned head has {pinned[0]} entries and the chain has {good}: the end was cut off."
            return LedgerVerification(good, here, good + 1, reason)
        if pinned is not None and pinned[0] == 0:
            return LedgerVerification(good, here, None, "The pinned head is of another ledger.")
        if set(session.datasets()) != names - {None}:
            return LedgerVerification(good, here, None, "The index of the entries lists other datasets than they have.")
        return LedgerVerification(good, here, None, sums or accounts.fault() or _damage(session))

    def _as_json(self, entries: list[Entry]) -> str:
        content = {"ledger": self._facts, "entries": [entry.to_dict() for entry in entries]}
        return json.dumps(content, indent=1) + "\n"


@dataclass(frozen=True)
class Account:
    """A ledger for one dataset, with who and why said once."""

    ledger: Ledger
    dataset: str | None
    who: str | None = None
    why: str = ""

    def spend(self, item: Any, *, adjacency: Adjacency | None = None, same_people: bool = False) -> Entry:
        """As :meth:`Ledger.spend`, for this account."""
        return self.spend_all([item], adjacency=adjacency, same_people=same_people)[0]

    def spend_all(
        self, items: Iterable[Any], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> list[Entry]:
        """As :meth:`Ledger.spend_all`, for this account."""
        return self.ledger.spend_all(
            items, dataset=self.dataset, who=self.who, why=self.why, adjacency=adjacency, same_people=same_people
        )

    def reserve(
        self, items: Iterable[Any], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> PendingCharge:
        """As :meth:`Ledger.reserve`, for this account."""
        return self.ledger.reserve(
            items, dataset=self.dataset, who=self.who, why=self.why, adjacency=adjacency, same_people=same_people
        )

    @property
    def spent(self) -> float:
        return self.ledger.spent_on(self.dataset)

    @property
    def remaining(self) -> float:
        return self.ledger.remaining_on(self.dataset)

    @property
    def headroom(self) -> Headroom:
        return self.ledger.headroom_on(self.dataset)


class _Row(NamedTuple):
    """The ledger's own row, read and checked."""

    facts: dict[str, Any]
    key: bytes
    entries: int
    head: str


def _row(session: Session) -> _Row:
    row = session.facts()
    if row is None:
        raise LedgerError("The ledger's own row is gone; it cannot be used.")
    try:
        facts = read_json(row[0])
        form, rules = facts["format"], facts["rules"]
        check_budget(facts["epsilon"], facts["delta"])
        found = _Row(facts, bytes.fromhex(row[1]), int(row[2]), str(row[3]))
        hash_canonical_json(facts)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise LedgerError("The ledger's own row cannot be read; it cannot be used.") from None
    if form != FORMAT or rules not in range(1, RULES + 1):
        raise LedgerError(
            f"The ledger has format {shorten(form)} and rules {shorten(rules)}, which this version ({FORMAT}, up to "
            f"{RULES}) does not know; use a newer one."
        )
    return found


def _damage(session: Session) -> str:
    found = session.damage()
    return "" if found is None else f"The database is damaged or was altered: {shorten(found)}."


def _refusal(before: list[PrivacyFilter], now: list[PrivacyFilter], profile: Profile, number: int) -> BudgetExceeded:
    """By the budget that has least room: what was spent before, and what would still fit."""
    tight = next((place for place, budget in enumerate(now) if not budget.would_fit(profile)), 0)
    return before[tight].refusal(profile, number)


def _create(store: LedgerStore, epsilon: float, delta: float) -> bool:
    key = secrets.token_bytes(32)
    facts = {
        "format": FORMAT,
        "rules": RULES,
        "id": secrets.token_hex(16),
        "created": _now().isoformat(timespec="microseconds"),
        "epsilon": epsilon,
        "delta": delta,
        "key": hashlib.sha256(key).hexdigest(),
    }
    return store.create(write_canonical_json(facts), key.hex(), hash_canonical_json(facts))


def _stamp(above: Entry | None) -> tuple[str, str]:
    """The time now, and a note if the clock stands before that of the entry above: said, never changed."""
    now = _now()
    if above is None:
        return now.isoformat(timespec="microseconds"), ""
    back = (datetime.fromisoformat(above.time) - now).total_seconds()
    note = f"this clock stood {back:.6f} s before that of the entry above" if back > 0 else ""
    return now.isoformat(timespec="microseconds"), note


def _now() -> datetime:
    return datetime.now(UTC)


def _default_who() -> str:
    user = "unknown"
    with contextlib.suppress(OSError, KeyError, ImportError):
        user = getpass.getuser()
    name = f"{user}@{socket.gethostname()}"
    return name if name.isprintable() else "unknown"


def _parse_head(head: str | None) -> tuple[int, str] | None:
    if head is None:
        return None
    if not isinstance(head, str) or not re.fullmatch("[0-9]{1,18}:[0-9a-f]{64}", head):
        _validation.reject("head", "'NUMBER:HASH' as head() gives it", head)
    number, _, value = head.partition(":")
    return int(number), value


def _as_csv(entries: list[Entry]) -> str:
    buffer = text_io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _as_cell(value) for name, value in asdict(entry).items()} for entry in entries)
    return buffer.getvalue()


def _as_cell(value: object) -> object:
    """A value that no spreadsheet takes for a formula, or for the end of a row."""
    return _files.csv_text(value) if isinstance(value, str) else value
