"""The ledger and its accounts: what was spent on the privacy of each collection.

A release is charged *before* its noise is drawn: its guarantee is checked against the budget, its clean scores are
computed, the charge is committed, and only then are random bits drawn. A crash after the commit costs budget and
releases nothing. The `PrivacyFilter` of the entries decides a charge, under the
lock of the database, so racing processes cannot pass the limit together. Entries are frozen and chained by SHA-256.
docs/accounting.md says what the chain shows and what it does not show.
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
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

from scoreshield import _files, _validation
from scoreshield._formatting import choose_words, format_bound
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import check_text, validate
from scoreshield._views import SHOWN_ROWS, Columns, NotebookObject, ObjectSummary
from scoreshield.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerWarning
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.privacy.draws import DrawCounts, DrawStep
from scoreshield.privacy.filters import RULES, Headroom, PrivacyFilter, check_budget
from scoreshield.privacy.ledger.books import AccountAudit, Books, LedgerLimit
from scoreshield.privacy.ledger.database import LedgerDatabase, PagedSession, Session
from scoreshield.privacy.ledger.entries import (
    CHARGE,
    COLUMNS,
    FORMAT,
    FREE_DRAW,
    Entry,
    hash_canonical_json,
    is_time,
    read_json,
    shorten,
    write_canonical_json,
)
from scoreshield.privacy.ledger.histories import DrawFacts, find_later_draws, replay_draws, write_draws
from scoreshield.privacy.ledger.names import normalise_name
from scoreshield.privacy.ledger.postgres import PostgresDatabase
from scoreshield.privacy.ledger.sqlite import SQLiteDatabase
from scoreshield.privacy.ledger.units import make_charge
from scoreshield.privacy.profiles import Profile

__all__ = ["Account", "BudgetExceeded", "Entry", "Ledger", "LedgerError", "LedgerVerification", "PendingCharge"]


#: Work in the transaction of a charge: what may forbid it, and what writes rows beside its entries.
SessionCheck: TypeAlias = Callable[[Session], None]
SessionRecord: TypeAlias = Callable[[Session, list[Entry]], None]
T = TypeVar("T")

#: How many links at the end of the chain each charge checks. ``verify`` checks all.
_LOOK_BACK = 16


@dataclass(frozen=True)
class LedgerVerification:
    """The result of a check of the whole chain. It is true if nothing is wrong.

    Attributes:
        entries: How many entries are good, from the first one on.
        head: The address of the last good one, ``"NUMBER:HASH"``. Keep it elsewhere for ``verify(head=...)``.
        first_bad: The number of the first wrong entry; None if the fault is not in a single entry.
        reason: What is wrong, in a sentence; empty if nothing is wrong.
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
        if self.entries == 0:
            return f"There is no entry yet; head {self.head}."
        if self.entries == 1:
            return f"The one entry is as it was written, and within the limit; head {self.head}."
        return f"All {self.entries} entries are as they were written, in order and within the limit; head {self.head}."


class PendingCharge:
    """Guarantees that were checked against a budget and are not charged yet."""

    def __init__(self, charge: Callable[..., list[Entry]]) -> None:
        self._charges = [charge]

    def commit(self, *, check: SessionCheck | None = None, record: SessionRecord | None = None) -> list[Entry]:
        """Charge them, all or none.

        Args:
            check: Runs first in the transaction of the charge, under its lock. If it raises an error, nothing is
                charged.
            record: Runs last in the same transaction, and writes rows beside the entries. If it raises an error,
                nothing is charged.

        Returns:
            The entries. They are on the disk when this returns, so noise may be drawn.

        Raises:
            LedgerError: ``commit`` was called before, with or without success.
        """
        try:
            charge = self._charges.pop()  # of two threads, one gets it
        except IndexError:
            raise LedgerError(
                "This charge was committed before, or failed; reserve another one to charge again."
            ) from None
        given = {"check": check, "record": record}
        return charge(**{name: work for name, work in given.items() if work is not None})

    def write_in(
        self, session: Session, *, check: SessionCheck | None = None, record: SessionRecord | None = None
    ) -> list[Entry]:
        """Charge them in a transaction that the caller runs by `Ledger.write_beside`, together with other charges.

        A database may run the transaction again after a conflict, so this method can too. Noise may be drawn when
        the transaction is committed. The arguments are those of `commit`.
        """
        return self._charges[0](check=check, record=record, session=session)


class Ledger(NotebookObject):
    """The budget of one collection, or of several, in a database.

    Make one with `create` and open it with `open`. The constructor does either: it opens a ledger that
    exists, and otherwise makes one with a `LedgerWarning`. A dataset is a name. Collections that
    share records must share a name. A charge without a name counts against all.

    Args:
        url: ``sqlite:///PATH`` (``sqlite:////PATH`` from the root) or ``postgresql://...``. A path is made absolute.
        epsilon: The most that may ever be spent on one dataset. It is given once, when the ledger is made. Later calls
            give the same value or none.
        delta: The delta that epsilon is counted at. With 0, only pure mechanisms can be charged.
    """

    @clear_frames_on_error  # an address may hold a password
    @validate()
    def __init__(self, url: str, *, epsilon: float | None = None, delta: float | None = None) -> None:
        database = open_database(url)
        if not database.exists():
            if epsilon is None and delta is None:
                raise LedgerError(f"There is no ledger at {database.name}; {_describe_creation()}.")
            if _create(database, *check_budget(epsilon, delta)):
                warnings.warn(
                    f"There was no ledger at {database.name}, so a new one was made. Ledger.create makes one without "
                    "this warning, and Ledger.open never makes one.",
                    LedgerWarning,
                    stacklevel=5,  # past the frames of the two decorators
                )
        self._read(database)
        if (epsilon is not None and epsilon != self.epsilon) or (delta is not None and delta != self.delta):
            given = " and ".join(f"{n} {v!r}" for n, v in (("epsilon", epsilon), ("delta", delta)) if v is not None)
            raise InvalidInput(
                f"The ledger {self._database.name} has the limit epsilon {self.epsilon!r} at delta {self.delta!r}, "
                f"which cannot be changed. Got {given}."
            )

    @classmethod
    @clear_frames_on_error
    @validate()
    def create(cls, url: str, *, epsilon: float, delta: float) -> Ledger:
        """Make a new ledger.

        Args:
            url: As for the class.
            epsilon: The most that may ever be spent on one dataset. It cannot be changed later.
            delta: The delta that epsilon is counted at.

        Returns:
            The new ledger.

        Raises:
            LedgerError: There is a ledger, or another file, of that name.
        """
        database, budget = open_database(url), check_budget(epsilon, delta)
        if database.exists() or not _create(database, *budget):
            how = choose_words("open it with Ledger.open", "`scoreshield ledger status` shows it")
            raise LedgerError(f"There is a ledger at {database.name}; {how}.")
        return cls._open_in(database)

    @classmethod
    @clear_frames_on_error
    def open(cls, url: str) -> Ledger:
        """Open a ledger that exists.

        Args:
            url: As for the class.

        Returns:
            The ledger, with its own limit.

        Raises:
            LedgerError: There is none. Nothing is made.
        """
        database = open_database(url)
        if not database.exists():
            raise LedgerError(f"There is no ledger at {database.name}; {_describe_creation()}.")
        return cls._open_in(database)

    @classmethod
    def _open_in(cls, database: LedgerDatabase) -> Ledger:
        ledger = cls.__new__(cls)
        ledger._read(database)
        return ledger

    def _read(self, database: LedgerDatabase) -> None:
        self._database = database
        row = database.read(_read_row)
        self._facts, self._key = row.facts, row.key
        self._genesis = hash_canonical_json(self._facts)
        self.epsilon = float(self._facts["epsilon"])
        self.delta = float(self._facts["delta"])
        self._limit = LedgerLimit(self.epsilon, self.delta, int(self._facts["rules"]))

    def __repr__(self) -> str:
        return f"<Ledger {self._short_name}: {self._describe_limit()} for each dataset>"

    @property
    def _short_name(self) -> str:
        """The name of the file, or the address of a server without a password."""
        return self.name.rpartition("/")[2] if self.name.startswith("sqlite:") else self.name

    def _describe_limit(self) -> str:
        return f"at most epsilon {format_bound(self.epsilon)} at delta {format_bound(self.delta)}"

    @property
    def name(self) -> str:
        """The address, without a password."""
        return self._database.name

    @property
    def id(self) -> str:
        """The random id that the ledger got when it was made."""
        return str(self._facts["id"])

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
        """Charge a guarantee or a release once, or raise an error and charge nothing.

        Args:
            item: A guarantee, or a release that has one. Research mode is rejected.
            dataset: The name of the collection; None counts against all.
            who: A note of who charges. The default is the user and the host that the operating system names.
            why: A note of the purpose.
            adjacency: The adjacency of the release. An identity adjacency has labels, which a guarantee does not keep.
                Their keyed hash distinguishes one grouping of the records from another.
            same_people: States that the identities are the people of earlier charges, apart from some who came or
                went. Then charges with other labels, or with unknown ones, add up.

        Returns:
            The entry, which is on the disk.

        Raises:
            BudgetExceeded: The charge would pass the limit. The error says what is spent and what would still fit.
            LedgerError: The ledger cannot be read or written, or has been altered. Then nothing may be released.
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
        """Charge several guarantees or releases at once, with one entry per item: all of them, or none."""
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
        """Check that guarantees or releases can be charged and fit the budget now. Nothing is written.

        ``commit()`` of the result charges them, all or none. It can still raise `BudgetExceeded` if another
        process took the budget in between. ``check=False`` leaves the check to ``commit()``. The other arguments are
        those of `spend`.
        """
        made = [make_charge(item, adjacency, self._key, same_people=same_people) for item in items]
        notes = (_name_user() if who is None else check_text(who, "who"), check_text(why, "why"))
        charges = [_Charge(CHARGE, *charge) for charge in made]
        return self._reserve(charges, self._find_name(dataset), notes, same_people=same_people, check=check)

    def reserve_draws(
        self, step: DrawStep, *, dataset: str | None = None, who: str | None = None, why: str = ""
    ) -> PendingCharge:
        """Check that a drawing of rows of an index whose changes are public fits the budget now. Nothing is written.

        The charge is one draw if the largest number of draws of any record rises, and nothing otherwise. Either way
        ``commit()`` writes an entry with the counts, so that no draw is lost.

        Args:
            step: The draws, which continue the newest counts of the ledger (`read_draws`).
            dataset: As for `spend`.
            who: As for `spend`.
            why: As for `spend`.
        """
        profile, unit, _ = make_charge(step.single, None, self._key, same_people=False)
        price = DrawFacts.find_price(write_canonical_json(profile.to_dict()), step.total.to_dict())
        kind, text = write_draws(step)
        where = self._find_name(dataset)
        notes = (_name_user() if who is None else check_text(who, "who"), check_text(why, "why"))

        def check_newest(session: Session) -> None:
            entries = session.read_draws(where)
            if not step.before.counts:
                if any(_is_of_history(entry, step.history) for entry in entries):
                    raise InvalidInput("This index was charged before; update it.")
            elif find_later_draws(entries, step.history, step.before.compute_hash(), price):
                raise LedgerError("Another process has updated this index just now; nothing was charged. Try again.")

        return self._reserve([_Charge(kind, profile, unit, text)], where, notes, check_first=check_newest)

    def read_draws(self, history: str, counts: DrawCounts, *, dataset: str | None = None) -> DrawCounts:
        """Bring the counts of a version of an index to those of the ledger, which also holds draws that were lost.

        Raises:
            InvalidInput: The account has no charge for an index with these counts.
        """
        where = self._find_name(dataset)
        state = counts.compute_hash()
        later = self._database.read(lambda session: find_later_draws(session.read_draws(where), history, state))
        return replay_draws(counts, later)

    def _reserve(
        self,
        charges: list[_Charge],
        where: str | None,
        notes: tuple[str, str],
        *,
        same_people: bool = False,
        check: bool = True,
        check_first: Callable[[Session], None] | None = None,
    ) -> PendingCharge:
        """Check charges against the budget; ``commit()`` of the result writes them."""

        def add_charges(session: Session, number: int) -> Books:
            """Add these charges to the books, from this number on; raise an error if they do not fit."""
            books = self._open_books(session)
            if check_first is not None:
                check_first(session)
            for place, (kind, profile, unit, _) in enumerate(charges):
                books.check_units(where, unit, same_people=same_people)
                if kind != FREE_DRAW and not books.fits(where, profile):
                    before = self._open_books(session).make_filters(where)  # without those of these charges
                    raise _make_budget_error(before, books.make_filters(where), profile, len(charges))
                books.add(where, number + place, unit, profile, kind)
            return books

        def write_charges(
            session: Session, check_beside: SessionCheck | None, record: SessionRecord | None
        ) -> list[Entry]:
            if check_beside is not None:
                check_beside(session)
            previous, above = self._check_head(session)
            number = 1 if above is None else above.id + 1
            books = add_charges(session, number)
            entries: list[Entry] = []
            for place, (kind, profile, unit, promise) in enumerate(charges):
                time, note = _read_clock(above)
                text = write_canonical_json(profile.to_dict())
                fields = (number + place, FORMAT, kind, time, note, where, unit, *notes, text, promise, previous)
                above = Entry(*fields).seal()
                session.append(above)
                previous = above.hash
                entries.append(above)
            if above is not None and entries:
                session.advance(above)
                row = books.write_row(where, above)
                self._read_back(session, entries, where, row)
            if record is not None:
                record(session, entries)
            return entries

        def charge(
            check: SessionCheck | None = None, record: SessionRecord | None = None, session: Session | None = None
        ) -> list[Entry]:
            if session is not None:
                return write_charges(session, check, record)
            return self._database.write(lambda own: write_charges(own, check, record))

        pending = PendingCharge(charge)
        if check:
            self._database.read(lambda session: add_charges(session, session.read_last_number() + 1))
        return pending

    @validate()
    def account(self, name: str, *, who: str | None = None, why: str = "") -> Account:
        """Return the account of one collection, for the ``ledger=`` argument of a release.

        Args:
            name: The name of the collection. docs/accounting.md says which names are allowed. "Faces" and "faces" are
                two names.
            who: A note of who charges. The default is the user and the host that the operating system names.
            why: A note of the purpose. The certificate of a release states the name, `why`, and `who` if it is given.

        Returns:
            The account.

        Raises:
            InvalidInput: This is not a name, or it could be mistaken for another one.
        """
        if not isinstance(name, str):
            _validation.reject("name", "the collection's name, a string", name)
        return Account(self, self._find_name(name), who, why)

    @property
    def spent(self) -> float:
        """Epsilon spent at the ledger's delta, on the dataset on which most is spent."""
        return self.spent_on(None)

    @property
    def remaining(self) -> float:
        """The limit minus what is spent. `headroom` says what one more release may cost."""
        return max(0.0, self.epsilon - self.spent)

    @validate()
    def spent_on(self, dataset: str | None) -> float:
        """Return the epsilon spent on one dataset, with the charges that name none."""
        return max(budget.spent for budget in self._filters(dataset))

    def remaining_on(self, dataset: str | None) -> float:
        """Return the limit minus what is spent on one dataset."""
        return max(0.0, self.epsilon - self.spent_on(dataset))

    @property
    def headroom(self) -> Headroom:
        """The largest pure and the largest Gaussian mechanism that would still fit."""
        return self.headroom_on(None)

    @validate()
    def headroom_on(self, dataset: str | None) -> Headroom:
        """Return the headroom of one dataset."""
        headrooms = [budget.headroom for budget in self._filters(dataset)]
        return Headroom(*(min(values) for values in zip(*((h.pure, h.mu, h.gaussian) for h in headrooms), strict=True)))

    @validate()
    def count_fitting(self, item: Any, *, dataset: str | None = None, most: int = 10**6) -> int:
        """Count how many more charges of a guarantee fit the budget of one dataset now, up to ``most``."""
        return min(budget.count_fitting(item, most) for budget in self._filters(dataset))

    def keep_connections(self, most: int) -> None:
        """Keep up to this many connections to the database open, for a process that charges often."""
        self._database.keep_connections(most)

    def read_beside(self, work: Callable[[Session], T]) -> T:
        """Run work on tables beside the ledger, on one consistent state, and return its result."""
        return self._database.read(work)

    def write_beside(self, work: Callable[[Session], T]) -> T:
        """Run work on tables beside the ledger, under its lock, and return its result."""
        return self._database.write(work)

    def datasets(self) -> list[str]:
        """List the names that were charged. Earlier versions also charged fingerprints, which start "hmac-sha256:"."""
        return self._database.read(lambda session: self._open_books(session).list_names())

    def entries(self) -> list[Entry]:
        """List all entries, in order."""
        return self._database.read(lambda session: list(session.read_entries()))

    def entry(self, hash: str) -> Entry | None:
        """Find the entry with this hash by an index; return None if there is none."""
        return self._database.read(lambda session: session.find_entry(hash))

    def head(self) -> str:
        """Return ``"NUMBER:HASH"`` of the last entry. Keep it where the owner of the ledger cannot change it."""
        row = self._database.read(_read_row)
        return f"{row.entries}:{row.head}"

    @validate()
    def verify(self, *, head: str | None = None) -> LedgerVerification:
        """Check every entry, the chain, the limit and, if given, that an earlier ``head`` is still in the chain.

        The chain shows a change, a removal in the middle, an insertion and a swap. An attacker who can also rewrite the
        row of the ledger can cut off entries at the end, and the shorter chain is valid. Only an earlier head shows
        that.
        """
        return self._database.read(lambda session: self._verify(session, _parse_head(head)))

    def verify_in_use(self, kept: list[Entry] | None = None) -> LedgerVerification:
        """Check the same as `verify`, of a ledger that others charge meanwhile.

        `verify` of a SQLite ledger lets no charge through until it is done. This check lets them through after each
        page of entries, and leaves out the entries that they add.

        Args:
            kept: A list to which the entries are added that were checked.
        """
        return self._verify(PagedSession(self._database, kept), None)

    def export(self, path: str | Path) -> None:
        """Write all entries to a .csv or .json file, completely or not at all, which only its owner can read.

        A .csv cell that a spreadsheet would take for a formula gets an apostrophe before it. A .json file has every
        entry unchanged.
        """
        path = Path(path)
        if self._database.is_at(path):
            raise InvalidInput(f"{path} is the ledger itself; export it to another file.")
        writers: dict[str, Callable[[list[Entry]], str]] = {".csv": _write_csv, ".json": self._write_json}
        if path.suffix.lower() not in writers:
            raise InvalidInput(f"A ledger is exported to a file that ends in .csv or .json. Got {path}.")
        content = writers[path.suffix.lower()](self.entries()).encode("utf-8", "backslashreplace")

        def write(file: BinaryIO) -> None:
            file.write(content)

        _files.write_whole({path: write}, private=True)

    def list_totals(self) -> dict[str, float]:
        """List what is spent on each dataset, by its name; with "all" for charges that name none."""
        spent = {name: self.spent_on(name) for name in self.datasets()}
        return spent or {"all": self.spent}

    def _summarise(self) -> ObjectSummary:
        title = f"Ledger {self.name}"
        limit = f"{self._describe_limit()}, for each dataset"
        try:
            entries, totals = self.entries(), self.list_totals()
        except LedgerError as error:  # a notebook shows an object, and raises nothing
            return ObjectSummary(title, facts={"Limit": limit}, warnings=(str(error),))
        largest = sorted(totals, key=lambda name: -totals[name])
        names = largest[:SHOWN_ROWS]
        columns: Columns = {
            "dataset": names,
            "spent epsilon": [totals[name] for name in names],
            "left": [max(0.0, self.epsilon - totals[name]) for name in names],
        }
        count = f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}"
        caption = f"{len(names):,} of {len(totals):,} datasets, the most spent first"
        return ObjectSummary(title, "", {"Limit": limit, "Holds": count}, columns, caption)

    def _list_columns(self) -> Columns:
        return _list_entry_columns(self.entries())

    def _find_name(self, name: Any) -> str | None:
        """Return the name that is charged: an old one as it was written, a new one in its one spelling."""
        if name is None:
            return None
        try:
            composed = normalise_name(name)
        except InvalidInput:
            if not isinstance(name, str) or not self._has_entries(name):
                raise
            return name
        return name if name != composed and self._has_entries(name) else composed

    def _has_entries(self, name: str) -> bool:
        return name.isprintable() and self._database.read(lambda session: session.read_latest(name)) > 0

    def _open_books(self, session: Session) -> Books:
        if _read_row(session).facts != self._facts:  # another ledger took the place of the one that was opened
            raise LedgerError(f"The ledger {self.name} is not the one that was opened, or has been altered.")
        return Books(session, self._limit, self._key)

    def _filters(self, dataset: str | None) -> list[PrivacyFilter]:
        where = self._find_name(dataset)
        return self._database.read(lambda session: self._open_books(session).make_filters(where))

    def _check_head(self, session: Session) -> tuple[str, Entry | None]:
        """Check both ends of the chain against the row of the ledger; return the last hash and the last entry."""
        row, above, first = _read_row(session), session.read_last(), session.read_first()
        whole = (above is None and (row.entries, row.head) == (0, self._genesis)) or (
            above is not None and above.id == row.entries and above.hash == row.head == above.compute_hash() != ""
        )
        whole = whole and (first is None or (first.id, first.previous) == (1, self._genesis))
        whole = whole and (above is None or is_time(above.time))
        links = session.read_links(_LOOK_BACK)
        for (number, previous, _), (number_before, _, hash_) in itertools.pairwise(links):
            whole = whole and (number, previous) == (number_before + 1, hash_)
        if hash_canonical_json(row.facts) != self._genesis or not whole:
            raise LedgerError(f"The ledger {self.name} has been altered: run verify to see where; nothing was charged.")
        return row.head, above

    def _read_back(
        self, session: Session, entries: list[Entry], where: str | None, row: tuple[int, str, str] | None
    ) -> None:
        """Check before the commit that the database holds what was written."""
        facts, last = _read_row(session), entries[-1]
        same = list(session.read_entries(after=entries[0].id - 1)) == entries
        same = same and (facts.entries, facts.head) == (last.id, last.hash) and facts.facts == self._facts
        if not same or (row is not None and session.read_account(where or "") != row):
            raise LedgerError(f"The ledger {self.name} does not keep what is written to it; nothing was charged.")

    def _verify(self, session: Session, pinned: tuple[int, str] | None) -> LedgerVerification:
        row = _read_row(session)
        last, good = hash_canonical_json(row.facts), 0
        if hashlib.sha256(row.key).hexdigest() != row.facts.get("key") or last != self._genesis:
            return LedgerVerification(0, f"0:{last}", None, "The facts of the ledger (limit, key) were changed.")
        if pinned == (0, last):
            pinned = None
        accounts, sums = AccountAudit(session, self._limit, row.key), None
        names: set[str | None] = set()
        for entry in session.read_entries():
            fault = entry.find_fault(last)
            if entry.id != good + 1 and fault is None:
                fault = "does not have the number that follows: something was removed, inserted or moved there"
            if fault is None and pinned is not None and pinned[0] == entry.id and pinned[1] != entry.hash:
                fault = "differs from the given head: the chain was rewritten"
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
                f"The row of the ledger says {row.entries} entries and the chain has {good}: its end was cut off or "
                "changed."
            )
            return LedgerVerification(good, here, good + 1, reason)
        if pinned is not None and pinned[0] > good:
            reason = f"The given head has {pinned[0]} entries and the chain has {good}: the end was cut off."
            return LedgerVerification(good, here, good + 1, reason)
        if pinned is not None and pinned[0] == 0:
            return LedgerVerification(good, here, None, "The given head is of another ledger.")
        if set(session.read_datasets()) != names - {None}:
            return LedgerVerification(good, here, None, "The index lists other datasets than the entries have.")
        return LedgerVerification(good, here, None, sums or accounts.find_fault() or _explain_damage(session))

    def _write_json(self, entries: list[Entry]) -> str:
        content = {"ledger": self._facts, "entries": [entry.to_dict() for entry in entries]}
        return json.dumps(content, indent=1) + "\n"


@dataclass(frozen=True, repr=False)
class Account(NotebookObject):
    """The line of one collection in a ledger, with the notes who and why of its charges."""

    ledger: Ledger
    dataset: str | None
    who: str | None = None
    why: str = ""

    def __repr__(self) -> str:
        of = "all datasets" if self.dataset is None else f"{self.dataset!r}"
        return f"<Account of {of} in {self.ledger._short_name}: {self.ledger._describe_limit()}>"

    def spend(self, item: Any, *, adjacency: Adjacency | None = None, same_people: bool = False) -> Entry:
        """Charge this account; see `Ledger.spend`."""
        return self.spend_all([item], adjacency=adjacency, same_people=same_people)[0]

    def spend_all(
        self, items: Iterable[Any], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> list[Entry]:
        """Charge this account several times at once; see `Ledger.spend_all`."""
        return self.ledger.spend_all(
            items, dataset=self.dataset, who=self.who, why=self.why, adjacency=adjacency, same_people=same_people
        )

    def reserve(
        self, items: Iterable[Any], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> PendingCharge:
        """Check that charges fit this account; see `Ledger.reserve`."""
        return self.ledger.reserve(
            items, dataset=self.dataset, who=self.who, why=self.why, adjacency=adjacency, same_people=same_people
        )

    def reserve_draws(self, step: DrawStep) -> PendingCharge:
        """Check that a drawing of rows fits this account; see `Ledger.reserve_draws`."""
        return self.ledger.reserve_draws(step, dataset=self.dataset, who=self.who, why=self.why)

    def read_draws(self, history: str, counts: DrawCounts) -> DrawCounts:
        """Bring the counts of a version of an index to those of the ledger; see `Ledger.read_draws`."""
        return self.ledger.read_draws(history, counts, dataset=self.dataset)

    @property
    def spent(self) -> float:
        """Epsilon spent at the delta of the ledger."""
        return self.ledger.spent_on(self.dataset)

    @property
    def remaining(self) -> float:
        """The limit minus what is spent."""
        return self.ledger.remaining_on(self.dataset)

    @property
    def headroom(self) -> Headroom:
        """The largest pure and the largest Gaussian mechanism that would still fit."""
        return self.ledger.headroom_on(self.dataset)

    def count_fitting(self, item: Any, *, most: int = 10**6) -> int:
        """Count how many more charges of a guarantee fit; see `Ledger.count_fitting`."""
        return self.ledger.count_fitting(item, dataset=self.dataset, most=most)

    def entries(self) -> list[Entry]:
        """List the entries that count against this account, in order, with those that name no dataset."""
        own = (None, self.dataset)
        return [entry for entry in self.ledger.entries() if self.dataset is None or entry.dataset in own]

    def _summarise(self) -> ObjectSummary:
        title = f"Account {'of all datasets' if self.dataset is None else self.dataset} in {self.ledger.name}"
        limit = self.ledger._describe_limit()
        try:
            entries, spent, remaining = self.entries(), self.spent, self.remaining
            newest = _list_entry_columns(entries[-SHOWN_ROWS:])
        except LedgerError as error:
            return ObjectSummary(title, facts={"Limit": limit}, warnings=(str(error),))
        facts = {"Limit": limit, "Spent": f"{spent:.6g}", "Left": f"{remaining:.6g}"}
        shown = {name: newest[name] for name in ("id", "time", "epsilon", "delta", "mechanism", "who", "why")}
        caption = f"The newest {len(newest['id']):,} of {len(entries):,} entries"
        return ObjectSummary(title, "", facts, shown if entries else {}, caption)

    def _list_columns(self) -> Columns:
        return _list_entry_columns(self.entries())


def _list_entry_columns(entries: list[Entry]) -> Columns:
    """List the columns of entries, with epsilon, delta and mechanism of the guarantee of each."""
    names = ("id", "time", "dataset", "kind", "unit", "who", "why", "note", "hash")
    columns: Columns = {name: [getattr(entry, name) for entry in entries] for name in names}
    facts = [_read_promise(entry) for entry in entries]
    return columns | {name: [one.get(name) for one in facts] for name in ("epsilon", "delta", "mechanism")}


def _read_promise(entry: Entry) -> dict[str, Any]:
    """Read the guarantee of an entry; for a draw of an index, with the epsilon that the draw costs."""
    facts = entry.to_dict()["guarantee"]
    if entry.kind == CHARGE or not isinstance(facts, dict):
        return facts if isinstance(facts, dict) else {}
    total = facts.get("promise", {})
    price = 0.0 if entry.kind == FREE_DRAW else total.get("details", {}).get("epsilon_per_draw")
    return {**total, "epsilon": price}


class _Charge(NamedTuple):
    """What one entry will hold: its kind, its profile, its unit and its guarantee as text."""

    kind: str
    profile: Profile
    unit: str
    promise: str


def _is_of_history(entry: Entry, history: str) -> bool:
    try:
        return DrawFacts.of_entry(entry.guarantee).history == history
    except (KeyError, TypeError, ValueError):
        raise LedgerError("The ledger has been altered: run verify to see where; nothing was charged.") from None


class _LedgerRow(NamedTuple):
    """The row of the ledger itself, after its checks."""

    facts: dict[str, Any]
    key: bytes
    entries: int
    head: str


def _read_row(session: Session) -> _LedgerRow:
    row = session.read_facts()
    if row is None:
        raise LedgerError("The row of the ledger itself is missing; the ledger cannot be used.")
    try:
        facts = _read_facts(row[0])
        form, rules = facts["format"], facts["rules"]
        found = _LedgerRow(facts, bytes.fromhex(row[1]), int(row[2]), str(row[3]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise LedgerError("The row of the ledger itself cannot be read; the ledger cannot be used.") from None
    if form != FORMAT or rules not in range(1, RULES + 1):
        raise LedgerError(
            f"The ledger has format {shorten(form)} and rules {shorten(rules)}, which this version ({FORMAT}, up to "
            f"{RULES}) does not know; use a newer one."
        )
    return found


@lru_cache(maxsize=64)
def _read_facts(text: str) -> dict[str, Any]:
    """Read the facts of a ledger. Each charge reads the same text several times."""
    facts: dict[str, Any] = read_json(text)
    check_budget(facts["epsilon"], facts["delta"])
    hash_canonical_json(facts)
    return facts


def _explain_damage(session: Session) -> str:
    found = session.find_damage()
    return "" if found is None else f"The database is damaged or was altered: {shorten(found)}."


def _make_budget_error(
    before: list[PrivacyFilter], now: list[PrivacyFilter], profile: Profile, number: int
) -> BudgetExceeded:
    """Make the error of the first budget that the charge does not fit: what was spent, and what would still fit."""
    tight = next((place for place, budget in enumerate(now) if not budget.would_fit(profile)), 0)
    return before[tight].make_error(profile, number)


def open_database(url: Any) -> LedgerDatabase:
    """Open the database that an address names."""
    if isinstance(url, str) and url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SQLiteDatabase(url)
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(url)
    got = repr(url) if not isinstance(url, str) or "@" not in url else "another address"
    raise InvalidInput(f"The 'url' parameter of Ledger must be sqlite:///PATH or postgresql://... Got {got} instead.")


def _describe_creation() -> str:
    """Say how a ledger is made."""
    return choose_words("make one with Ledger.create", "make one with `scoreshield ledger init`")


def _create(database: LedgerDatabase, epsilon: float, delta: float) -> bool:
    key = secrets.token_bytes(32)
    facts = {
        "format": FORMAT,
        "rules": RULES,
        "id": secrets.token_hex(16),
        "created": _get_time().isoformat(timespec="microseconds"),
        "epsilon": epsilon,
        "delta": delta,
        "key": hashlib.sha256(key).hexdigest(),
    }
    return database.create(write_canonical_json(facts), key.hex(), hash_canonical_json(facts))


def _read_clock(above: Entry | None) -> tuple[str, str]:
    """Return the time, and a note if it is before the time of the entry above. The time is never changed."""
    now = _get_time()
    if above is None:
        return now.isoformat(timespec="microseconds"), ""
    back = (datetime.fromisoformat(above.time) - now).total_seconds()
    note = f"this clock stood {back:.6f} s before that of the entry above" if back > 0 else ""
    return now.isoformat(timespec="microseconds"), note


def _get_time() -> datetime:
    return datetime.now(UTC)


def _name_user() -> str:
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


def _write_csv(entries: list[Entry]) -> str:
    buffer = text_io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _protect_cell(value) for name, value in asdict(entry).items()} for entry in entries)
    return buffer.getvalue()


def _protect_cell(value: object) -> object:
    """Change a text that a spreadsheet would take for a formula or for the end of a row."""
    return _files.csv_text(value) if isinstance(value, str) else value
