"""What a ledger's entries add up to, account by account.

Each account has a row with the sums of its entries up to one of them, so that a charge reads that row and not the
entries. The row is written with the entry, in one transaction, and carries an HMAC under the ledger's key over the sums
and the hash of the entry they go up to. Entries beyond it, which an earlier version wrote, are added when it is read; a
row that is not there is made of the entries. So a row of the past, put back, changes nothing.
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
from scoreshield.privacy.ledger.entries import (
    FORMAT,
    KINDS,
    Entry,
    read_json,
    read_profile,
    shorten,
    write_canonical_json,
)
from scoreshield.privacy.ledger.stores import Session
from scoreshield.privacy.ledger.units import check_units
from scoreshield.privacy.profiles import Profile

_ALTERED = "The ledger has been altered: run verify to see where; nothing was charged."


@dataclass(frozen=True)
class LedgerLimit:
    """The limit of a ledger and the book of rules that it is judged by."""

    epsilon: float
    delta: float
    rules: int


@dataclass(frozen=True)
class Balance:
    """What one account's entries add up to.

    Attributes:
        last: The number of the last entry that is counted; 0 where there is none.
        sums: What the entries add up to.
        unit: Who the first entry protects.
        other: The first unit that differs from it. Several are of the same people, of whom some came and went.
    """

    last: int = 0
    sums: Sums = field(default_factory=Sums)
    unit: str | None = None
    other: str | None = None

    def plus(self, number: int, unit: str, cost: Sums) -> Balance:
        """With one more entry."""
        first = unit if self.unit is None else self.unit
        other = unit if self.other is None and unit != first else self.other
        return Balance(number, self.sums + cost, first, other)

    @property
    def units(self) -> list[str]:
        return [unit for unit in (self.unit, self.other) if unit is not None]

    def to_text(self) -> str:
        return write_canonical_json({"sums": self.sums.to_dict(), "unit": self.unit, "other": self.other})

    @classmethod
    def from_text(cls, last: int, text: str) -> Balance:
        """What :meth:`to_text` wrote; a KeyError, TypeError or ValueError for anything else."""
        data = read_json(text)
        return cls(last, Sums.from_dict(data["sums"]), data["unit"], data["other"])


class Books:
    """The accounts of a ledger, inside one transaction."""

    def __init__(self, session: Session, budget: LedgerLimit, key: bytes) -> None:
        self._session, self._budget, self._key = session, budget, key
        self._has_rows = session.has_accounts()
        self._balances: dict[str | None, Balance] = {}
        self._names: list[str] | None = None

    def balance(self, dataset: str | None) -> Balance:
        """An account as its row and the entries beyond it say."""
        if dataset not in self._balances:
            self._balances[dataset] = self._caught_up(dataset, self._row(dataset))
        return self._balances[dataset]

    def names(self) -> list[str]:
        """The accounts that have entries."""
        if self._names is None:
            last = self._session.last()
            if last is not None:
                check_kind(last.format, last.kind)
            self._names = sorted(self._session.datasets())
        return self._names

    def filters(self, dataset: str | None) -> list[PrivacyFilter]:
        """The budgets that a charge to this account must fit: its own, or all of them where it names none."""
        return [self._filter(self.balance(name)) for name in self._concerned(dataset)]

    def fits(self, dataset: str | None, profile: Profile) -> bool:
        """Whether every budget that this charge counts against covers it."""
        for name in self._concerned(dataset):
            budget = self._filter(self.balance(name))
            if self._budget.rules > 1:
                fits = budget.would_fit(profile)
            else:
                fits = budget.would_fit_by_book_1(profile, lambda name=name: self._charged(name))  # type: ignore[misc]
            if not fits:
                return False
        return True

    def check_units(self, dataset: str | None, unit: str, *, same_people: bool) -> None:
        """Promises about different changes of the records do not add up."""
        names: Iterable[str | None] = [None, *([dataset] if dataset is not None else self.names())]
        check_units({one for name in names for one in self.balance(name).units}, unit, same_people=same_people)

    def add(self, dataset: str | None, number: int, unit: str, profile: Profile) -> None:
        """One more entry."""
        cost = compute_cost(profile, self._budget.epsilon, self._budget.delta)
        self._balances[dataset] = self.balance(dataset).plus(number, unit, cost)

    def write(self, dataset: str | None, last: Entry) -> tuple[int, str, str] | None:
        """Keep the row of an account whose last entry this is; what was written, where the ledger has such rows."""
        if not self._has_rows:
            return None
        balance = self.balance(dataset)
        text = balance.to_text()
        row = (balance.last, text, self.seal(dataset, balance.last, last.hash, text))
        self._session.set_account(dataset or "", row)
        return row

    def seal(self, dataset: str | None, last: int, entry: str, text: str) -> str:
        """HMAC over the sums, whose they are, and the entry that they go up to."""
        content = write_canonical_json(["scoreshield account 1", dataset, last, entry, text])
        return hmac.new(self._key, content.encode("ascii"), hashlib.sha256).hexdigest()

    def _concerned(self, dataset: str | None) -> list[str | None]:
        return [dataset] if dataset is not None else [*self.names()] or [None]

    def _filter(self, balance: Balance) -> PrivacyFilter:
        unnamed = self.balance(None)
        sums = balance.sums if balance is unnamed else balance.sums + unnamed.sums
        return PrivacyFilter.at(self._budget.epsilon, self._budget.delta, sums)

    def _row(self, dataset: str | None) -> Balance:
        row = self._session.account(dataset or "") if self._has_rows else None
        if row is None:
            return Balance()
        last, text, seal = row
        entry = self._session.entry(last)
        if entry is None or entry.dataset != dataset:
            raise LedgerError(_ALTERED)
        check_kind(entry.format, entry.kind)
        if not is_text(text, entry.hash) or self.seal(dataset, last, entry.hash, text) != seal:
            raise LedgerError(_ALTERED)
        try:
            return Balance.from_text(last, text)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise LedgerError("The ledger holds sums, or a privacy profile that this version cannot read.") from None

    def _caught_up(self, dataset: str | None, balance: Balance) -> Balance:
        latest = self._session.latest(dataset)
        if latest < balance.last:
            raise LedgerError(_ALTERED)
        if latest == balance.last:
            return balance
        since = balance.last
        if self._session.count(since) != self._session.last_number() - since:
            raise LedgerError(_ALTERED)  # an entry that these sums would hold may be gone
        for number, unit, form, kind, text in self._session.charges(dataset, since):
            check_kind(form, kind)
            if not is_text(unit):
                raise LedgerError(_ALTERED)
            cost = compute_cost(read_profile(text), self._budget.epsilon, self._budget.delta)
            balance = balance.plus(number, unit, cost)
        return balance

    def _charged(self, dataset: str | None) -> Counter[Profile]:
        """Every charge to an account, unnamed ones included: what only rules of the first book may need."""
        found: Counter[Profile] = Counter()
        for name in {dataset, None}:
            found.update(read_profile(text) for *_, text in self._session.charges(name, 0))
        return found


class AccountAudit:
    """The accounts, added up anew from all entries, for ``verify``."""

    def __init__(self, session: Session, budget: LedgerLimit, key: bytes) -> None:
        self._books, self._budget = Books(session, budget, key), budget
        rows = session.accounts() if session.has_accounts() else []
        # Only '' stands for charges without a dataset: NULL and an empty blob are rows that no charge reads.
        self._rows: dict[Any, tuple[int, str, str]] = {}
        self._foreign: list[Any] = []
        for name, last, text, seal in rows:
            if is_text(name):
                self._rows[name or None] = (last, text, seal)
            else:
                self._foreign.append(name)
        self._balances: dict[str | None, Balance] = {None: Balance()}
        self._charged: dict[str | None, Counter[Profile]] = {None: Counter()}

    def add(self, entry: Entry) -> str | None:
        """Count one entry; what is wrong with its account's row, if that goes up to here."""
        profile, name = read_profile(entry.profile), entry.dataset
        cost = compute_cost(profile, self._budget.epsilon, self._budget.delta)
        balance = self._balances.get(name, Balance()).plus(entry.id, entry.unit, cost)
        self._balances[name] = balance
        if self._budget.rules == 1:
            self._charged.setdefault(name, Counter())[profile] += 1
        if name in self._rows and self._rows[name][0] == entry.id:
            _, text, seal = self._rows.pop(name)
            try:
                row = Balance.from_text(entry.id, text)
                good = row.sums.is_near(balance.sums) and replace(row, sums=balance.sums) == balance
                good = good and seal == self._books.seal(name, entry.id, entry.hash, text)
            except (KeyError, TypeError, ValueError, AttributeError, LedgerError):
                good = False
            if not good:
                return _wrong_sums(name)
        return None

    def fault(self) -> str | None:
        """What is wrong once all entries were counted; None if nothing is."""
        for name in self._rows:
            return _wrong_sums(name)
        for name in self._foreign:
            return f"There are sums for {shorten(name)}, which is no name of an account."
        over = [name for name in self._balances if not self._holds(name)]
        if over:
            names = ", ".join(shorten(name) for name in sorted(filter(None, over))[:3])
            return "The entries add up to more than the limit" + (f" for {names}." if names else ".")
        return None

    def _holds(self, name: str | None) -> bool:
        unnamed = self._balances[None].sums
        sums = unnamed if name is None else self._balances[name].sums + unnamed
        budget = PrivacyFilter.at(self._budget.epsilon, self._budget.delta, sums)
        if self._budget.rules > 1:
            return budget.holds()
        charged = self._charged[None] if name is None else self._charged[name] + self._charged[None]
        return budget.holds_by_book_1(charged)


def check_kind(form: Any, kind: Any) -> None:
    """Raise an error for an entry that only a later version can read."""
    if form != FORMAT or kind not in KINDS:
        raise LedgerError(
            f"The ledger holds an entry of format {shorten(form)} and kind {shorten(kind)}, which this version does "
            "not know; use a newer one."
        )


def is_text(*values: object) -> bool:
    """Whether these are texts: a damaged database may hold anything at all."""
    return all(isinstance(value, str) for value in values)


def _wrong_sums(name: str | None) -> str:
    of = "charges without a dataset" if name is None else shorten(name)
    return f"The sums that are kept for {of} are not what the entries add up to."
