"""The sums of a ledger's entries, account by account.

Each account has a row with the sums of its entries up to one of them, so that a charge reads that row and not all
entries. The row is written with the entry, in one transaction. It carries an HMAC, under the key of the ledger, of the
sums and of the hash of their last entry. Later entries, which an earlier version wrote, are added when the row is read.
A missing row is computed from the entries. So an old row that is put back changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from scoreshield.errors import LedgerError
from scoreshield.privacy.filters import PrivacyFilter, Sums, compute_cost
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import (
    CHARGE,
    FORMAT,
    FREE_DRAW,
    KINDS,
    Entry,
    read_json,
    read_profile,
    shorten,
    write_canonical_json,
)
from scoreshield.privacy.ledger.histories import HistoryAudit
from scoreshield.privacy.ledger.units import check_units
from scoreshield.privacy.profiles import Profile

_ALTERED = "The ledger has been altered: run verify to see where; nothing was charged."


@dataclass(frozen=True)
class LedgerLimit:
    """The limit of a ledger, and the number of the rules that decide its charges."""

    epsilon: float
    delta: float
    rules: int


@dataclass(frozen=True)
class Balance:
    """The sums of one account.

    Attributes:
        last: The number of the last entry that is counted; 0 if there is none.
        sums: The sums of the entries.
        unit: What the first entry protects.
        other: The first unit that differs from it. Different units are of the same people, of whom some came or went.
    """

    last: int = 0
    sums: Sums = field(default_factory=Sums)
    unit: str | None = None
    other: str | None = None

    def add(self, number: int, unit: str, cost: Sums) -> Balance:
        """Return the balance with one more entry."""
        first = unit if self.unit is None else self.unit
        other = unit if self.other is None and unit != first else self.other
        return Balance(number, self.sums + cost, first, other)

    @property
    def units(self) -> list[str]:
        """The different units, at most two."""
        return [unit for unit in (self.unit, self.other) if unit is not None]

    def to_text(self) -> str:
        """Write the sums and units as canonical JSON."""
        return write_canonical_json({"sums": self.sums.to_dict(), "unit": self.unit, "other": self.other})

    @classmethod
    def from_text(cls, last: int, text: str) -> Balance:
        """Read what `to_text` wrote. Anything else raises a KeyError, a TypeError or a ValueError."""
        data = read_json(text)
        return cls(last, Sums.from_dict(data["sums"]), data["unit"], data["other"])


class Books:
    """The accounts of a ledger, inside one transaction."""

    def __init__(self, session: Session, limit: LedgerLimit, key: bytes) -> None:
        self._session, self._limit, self._key = session, limit, key
        self._has_rows = session.has_accounts()
        self._balances: dict[str | None, Balance] = {}
        self._names: list[str] | None = None

    def read_balance(self, dataset: str | None) -> Balance:
        """Read the balance of an account from its row and the entries after it."""
        if dataset not in self._balances:
            self._balances[dataset] = self._add_later_entries(dataset, self._read_row(dataset))
        return self._balances[dataset]

    def list_names(self) -> list[str]:
        """List the accounts that have entries."""
        if self._names is None:
            last = self._session.read_last()
            if last is not None:
                check_kind(last.format, last.kind)
            self._names = sorted(self._session.read_datasets())
        return self._names

    def make_filters(self, dataset: str | None) -> list[PrivacyFilter]:
        """Make the filters that a charge must fit: that of its account, or all of them if it names none."""
        return [self._make_filter(self.read_balance(name)) for name in self._list_charged_names(dataset)]

    def fits(self, dataset: str | None, profile: Profile) -> bool:
        """Return whether the charge fits every budget that it counts against."""
        for name in self._list_charged_names(dataset):
            budget = self._make_filter(self.read_balance(name))
            if self._limit.rules > 1:
                fits = budget.would_fit(profile)
            else:
                fits = budget.would_fit_by_rules_1(profile, lambda name=name: self._count_charges(name))  # type: ignore[misc]
            if not fits:
                return False
        return True

    def check_units(self, dataset: str | None, unit: str, *, same_people: bool) -> None:
        """Raise an error if the account holds promises about another change of the records: they do not add up."""
        names: Iterable[str | None] = [None, *([dataset] if dataset is not None else self.list_names())]
        check_units({one for name in names for one in self.read_balance(name).units}, unit, same_people=same_people)

    def add(self, dataset: str | None, number: int, unit: str, profile: Profile, kind: str = CHARGE) -> None:
        """Add one entry to an account."""
        cost = _compute_entry_cost(kind, profile, self._limit)
        self._balances[dataset] = self.read_balance(dataset).add(number, unit, cost)

    def write_row(self, dataset: str | None, last: Entry) -> tuple[int, str, str] | None:
        """Write the row of an account whose last entry this is, and return it; None if the ledger has no such rows."""
        if not self._has_rows:
            return None
        balance = self.read_balance(dataset)
        text = balance.to_text()
        row = (balance.last, text, self.seal(dataset, balance.last, last.hash, text))
        self._session.write_account(dataset or "", row)
        return row

    def seal(self, dataset: str | None, last: int, entry: str, text: str) -> str:
        """Compute the HMAC of the sums, the name of their account, and their last entry."""
        content = write_canonical_json(["scoreshield account 1", dataset, last, entry, text])
        return hmac.new(self._key, content.encode("ascii"), hashlib.sha256).hexdigest()

    def _list_charged_names(self, dataset: str | None) -> list[str | None]:
        return [dataset] if dataset is not None else [*self.list_names()] or [None]

    def _make_filter(self, balance: Balance) -> PrivacyFilter:
        unnamed = self.read_balance(None)
        sums = balance.sums if balance is unnamed else balance.sums + unnamed.sums
        return PrivacyFilter.from_sums(self._limit.epsilon, self._limit.delta, sums)

    def _read_row(self, dataset: str | None) -> Balance:
        row = self._session.read_account(dataset or "") if self._has_rows else None
        if row is None:
            return Balance()
        last, text, seal = row
        entry = self._session.read_entry(last)
        if entry is None or entry.dataset != dataset:
            raise LedgerError(_ALTERED)
        check_kind(entry.format, entry.kind)
        if not is_text(text, entry.hash) or self.seal(dataset, last, entry.hash, text) != seal:
            raise LedgerError(_ALTERED)
        try:
            return Balance.from_text(last, text)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise LedgerError("The ledger holds sums or a privacy profile that this version cannot read.") from None

    def _add_later_entries(self, dataset: str | None, balance: Balance) -> Balance:
        latest = self._session.read_latest(dataset)
        if latest < balance.last:
            raise LedgerError(_ALTERED)
        if latest == balance.last:
            return balance
        since = balance.last
        if self._session.count(since) != self._session.read_last_number() - since:
            raise LedgerError(_ALTERED)  # an entry of these sums may be gone
        for number, unit, form, kind, text in self._session.read_charges(dataset, since):
            check_kind(form, kind)
            if not is_text(unit):
                raise LedgerError(_ALTERED)
            cost = _compute_entry_cost(kind, read_profile(text), self._limit)
            balance = balance.add(number, unit, cost)
        return balance

    def _count_charges(self, dataset: str | None) -> Counter[Profile]:
        """Count every charge to an account, with those that name none. Only rules 1 may need this."""
        counts: Counter[Profile] = Counter()
        for name in {dataset, None}:
            charges = self._session.read_charges(name, 0)
            counts.update(read_profile(text) for *_, kind, text in charges if kind != FREE_DRAW)
        return counts


class AccountAudit:
    """The sums of all accounts, computed again from all entries, for ``verify``."""

    def __init__(self, session: Session, limit: LedgerLimit, key: bytes) -> None:
        self._books, self._limit = Books(session, limit, key), limit
        rows = session.read_accounts() if session.has_accounts() else []
        # Only '' stands for charges without a dataset. NULL and an empty blob are rows that no charge reads.
        self._rows: dict[Any, tuple[int, str, str]] = {}
        self._foreign: list[Any] = []
        for name, last, text, seal in rows:
            if is_text(name):
                self._rows[name or None] = (last, text, seal)
            else:
                self._foreign.append(name)
        self._balances: dict[str | None, Balance] = {None: Balance()}
        self._counts: dict[str | None, Counter[Profile]] = {None: Counter()}
        self._histories = HistoryAudit()

    def add(self, entry: Entry) -> str | None:
        """Count one entry. If the row of its account ends here, return what is wrong with the row."""
        profile, name = read_profile(entry.profile), entry.dataset
        cost = _compute_entry_cost(entry.kind, profile, self._limit)
        balance = self._balances.get(name, Balance()).add(entry.id, entry.unit, cost)
        self._balances[name] = balance
        if self._limit.rules == 1 and entry.kind != FREE_DRAW:
            self._counts.setdefault(name, Counter())[profile] += 1
        fault = self._histories.add(entry)
        if fault is not None:
            return f"Entry {entry.id} {fault}."
        if name in self._rows and self._rows[name][0] == entry.id:
            _, text, seal = self._rows.pop(name)
            try:
                row = Balance.from_text(entry.id, text)
                good = row.sums.is_near(balance.sums) and replace(row, sums=balance.sums) == balance
                good = good and seal == self._books.seal(name, entry.id, entry.hash, text)
            except (KeyError, TypeError, ValueError, AttributeError, LedgerError):
                good = False
            if not good:
                return _explain_wrong_sums(name)
        return None

    def find_fault(self) -> str | None:
        """Return what is wrong after all entries were counted; None if nothing is."""
        for name in self._rows:
            return _explain_wrong_sums(name)
        for name in self._foreign:
            return f"There are sums for {shorten(name)}, which is not the name of an account."
        over = [name for name in self._balances if not self._is_within_limit(name)]
        if over:
            names = ", ".join(shorten(name) for name in sorted(filter(None, over))[:3])
            return "The entries add up to more than the limit" + (f" for {names}." if names else ".")
        return None

    def _is_within_limit(self, name: str | None) -> bool:
        unnamed = self._balances[None].sums
        sums = unnamed if name is None else self._balances[name].sums + unnamed
        budget = PrivacyFilter.from_sums(self._limit.epsilon, self._limit.delta, sums)
        if self._limit.rules > 1:
            return budget.is_within_limit()
        counts = self._counts[None] if name is None else self._counts.get(name, Counter()) + self._counts[None]
        return budget.is_within_limit_by_rules_1(counts)


def _compute_entry_cost(kind: str, profile: Profile, limit: LedgerLimit) -> Sums:
    """Compute what an entry adds to the sums. Draws that raise no largest count cost nothing."""
    return Sums() if kind == FREE_DRAW else compute_cost(profile, limit.epsilon, limit.delta)


def check_kind(form: Any, kind: Any) -> None:
    """Raise an error for an entry that only a later version can read."""
    if form != FORMAT or kind not in KINDS:
        raise LedgerError(
            f"The ledger holds an entry of format {shorten(form)} and kind {shorten(kind)}, which this version does "
            "not know; use a newer one."
        )


def is_text(*values: object) -> bool:
    """Return whether these are texts: a damaged database may hold anything."""
    return all(isinstance(value, str) for value in values)


def _explain_wrong_sums(name: str | None) -> str:
    what = "charges without a dataset" if name is None else shorten(name)
    return f"The saved sums for {what} differ from those of the entries."
