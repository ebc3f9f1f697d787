"""The numbers of the dashboard. Each comes from the ledger, the policy or a public fact, and none from a record.

The ledger gives what is spent, by whom and when. The policy gives budgets, costs and allowances. The guarantee of an
offer, which is public, gives the rates of attackers and the predicted worth.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from scoreshield.privacy.filters import PrivacyFilter, Sums, compute_cost
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import FREE_DRAW, Entry, read_profile
from scoreshield.service.core import ServedCollection
from scoreshield.service.policy import AllowancePolicy, Policy

#: The days of which the rate of spending is taken.
RATE_DAYS = 7
#: The most weeks that a budget is said to last.
MOST_WEEKS = 520
ENTRIES_PER_PAGE = 20
#: More collections are shown as a table.
MOST_CARDS = 8
_AFTER_ALL = 2**62


class DaySpending(NamedTuple):
    """The charges of one day, and the epsilon that is spent at its end."""

    day: date
    charges: int
    spent: float


@dataclass(frozen=True)
class SpendingHistory:
    """What was spent on a collection over time.

    Attributes:
        days: The days with charges, in order.
        recent: How many charges the last days have.
        weeks_left: How many more weeks like the last one the budget covers, up to `MOST_WEEKS`; None without recent
            charges.
    """

    days: tuple[DaySpending, ...]
    recent: int
    weeks_left: int | None


@dataclass(frozen=True)
class OfferFacts:
    """One action of a collection: what an answer costs, and how many are left.

    Attributes:
        action: Its name.
        label: Its name for people, of several answers.
        one: The same, of one answer.
        guarantee: The guarantee of one answer.
        is_free: Whether an answer costs nothing more.
        left: How many fresh answers the budget covers; None for any number.
    """

    action: str
    label: str
    one: str
    guarantee: Guarantee
    is_free: bool
    left: int | None


@dataclass(frozen=True)
class CollectionFacts:
    """What the overview shows about a collection.

    Attributes:
        name: The collection.
        version: The number of the state of the data.
        records: How many records it has, which is public.
        dimension: Of its vectors.
        epsilon: The budget.
        delta: The delta that epsilon is counted at.
        spent: The epsilon that is spent, at that delta.
        offers: What it answers.
        history: What was spent over time.
        head: The head of the hash chain, to be noted elsewhere.
    """

    name: str
    version: int
    records: int
    dimension: int
    epsilon: float
    delta: float
    spent: float
    offers: tuple[OfferFacts, ...]
    history: SpendingHistory
    head: str

    @property
    def left(self) -> float:
        """The budget minus what is spent."""
        return max(0.0, self.epsilon - self.spent)

    @property
    def share_left(self) -> float:
        """The share of the budget that is left."""
        return self.left / self.epsilon

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget covers no new answer of any action."""
        charged = [offer.left for offer in self.offers if not offer.is_free]
        return bool(charged) and not any(charged)


@dataclass(frozen=True)
class EntryFacts:
    """One entry of the ledger, for a row of a table."""

    number: int
    hash: str
    time: datetime
    caller: str
    action: str
    epsilon: float
    delta: float
    mechanism: str


@dataclass(frozen=True)
class AllowanceFacts:
    """What one caller has spent on a collection, and what the policy allows."""

    caller: str
    queries: int
    epsilon: Decimal
    allowance: AllowancePolicy | None

    @property
    def share_left(self) -> float | None:
        """The smallest share of the allowance that is left; None without an allowance."""
        limits = self.allowance
        if limits is None:
            return None
        pairs = [(float(self.epsilon), limits.epsilon), (self.queries, limits.queries)]
        shares = [1 - used / most if most else 0.0 for used, most in pairs if most is not None]
        return min((min(1.0, max(0.0, share)) for share in shares), default=None)

    def count_left(self, epsilon: float) -> int | None:
        """Count how many answers of this cost the allowance covers; None without an allowance."""
        return None if self.allowance is None else self.allowance.count_left(self.queries, self.epsilon, epsilon)


#: The names of actions for people: of several answers, and of one.
_ACTION_LABELS = {
    "search": ("searches", "one search"),
    "matches": ("match answers", "one match answer"),
    "top_k": ("top-k answers", "one top-k answer"),
    "index": ("index", "the index"),
}


def collect_facts(served: ServedCollection) -> CollectionFacts:
    """Collect the facts of a collection."""
    ledger = served.account.ledger
    data = served.data
    return CollectionFacts(
        served.name,
        served.version,
        data.size,
        data.dimension,
        ledger.epsilon,
        ledger.delta,
        served.account.spent,
        tuple(describe_offer(served, action) for action in served.policy.list_actions()),
        read_history(served),
        ledger.head(),
    )


def describe_offer(served: ServedCollection, action: str) -> OfferFacts:
    """Describe one action of a collection."""
    offer = served.find_offer(action)
    is_free = offer.action == "index"
    return OfferFacts(action, *_ACTION_LABELS[action], offer.guarantee, is_free, served.count_left(action))


class _HistoryCache:
    """The history of each collection, which is read again after a new charge or at a new day."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[ServedCollection, tuple[tuple[str, date], SpendingHistory]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def read(self, served: ServedCollection) -> SpendingHistory:
        place = (served.account.ledger.head(), datetime.now(UTC).date())
        with self._lock:
            known = self._known.get(served)
        if known is not None and known[0] == place:
            return known[1]
        history = compute_history(served, today=place[1])
        with self._lock:
            self._known[served] = (place, history)
        return history


_HISTORIES = _HistoryCache()


def read_history(served: ServedCollection) -> SpendingHistory:
    """Read what was spent on a collection over time."""
    return _HISTORIES.read(served)


def compute_history(served: ServedCollection, *, today: date) -> SpendingHistory:
    """Replay the ledger day by day, by the rules of the budget."""
    ledger = served.account.ledger
    rows = ledger.read_beside(lambda session: session.count_by_day(served.name))
    total, recent, recent_charges = Sums(), Sums(), 0
    first = (today - timedelta(days=RATE_DAYS - 1)).isoformat()
    days: dict[str, DaySpending] = {}
    for day, kind, profile, number in rows:
        cost = Sums() if kind == FREE_DRAW else compute_cost(read_profile(profile), ledger.epsilon, ledger.delta)
        total = total + cost.times(number)
        if day >= first:
            recent, recent_charges = recent + cost.times(number), recent_charges + number
        charges = number + (days[day].charges if day in days else 0)
        spent = PrivacyFilter.from_sums(ledger.epsilon, ledger.delta, total).spent
        days[day] = DaySpending(date.fromisoformat(day), charges, spent)

    def lasts(weeks: int) -> bool:
        return PrivacyFilter.from_sums(ledger.epsilon, ledger.delta, total + recent.times(weeks)).is_within_limit()

    weeks_left = None
    if recent.count:
        low, high = 0, MOST_WEEKS + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if lasts(middle) else (low, middle)
        weeks_left = low
    return SpendingHistory(tuple(days.values()), recent_charges, weeks_left)


def list_newest_entries(served: ServedCollection, before: int | None = None) -> tuple[list[EntryFacts], int | None]:
    """List entries, the newest first, and the number before which the next page starts; None at the end."""
    start = _AFTER_ALL if before is None else before
    found = served.account.ledger.read_beside(
        lambda session: session.read_newest(served.name, start, ENTRIES_PER_PAGE + 1)
    )
    for entry in found[:ENTRIES_PER_PAGE]:
        served.check_entry(entry)
    shown = [describe_entry(entry) for entry in found[:ENTRIES_PER_PAGE]]
    return shown, shown[-1].number if len(found) > ENTRIES_PER_PAGE else None


def describe_entry(entry: Entry) -> EntryFacts:
    """Describe one entry of the ledger. Draws of an index, which another program may charge, name their promise."""
    stated = entry.to_dict()["guarantee"]
    guarantee = stated.get("promise", stated)
    return EntryFacts(
        entry.id,
        entry.hash,
        datetime.fromisoformat(entry.time),
        entry.who,
        entry.why.removeprefix("service: "),
        float(guarantee["epsilon"]),
        float(guarantee["delta"]),
        str(guarantee["mechanism"]),
    )


def list_versions(served: ServedCollection) -> list[tuple[int, datetime]]:
    """List the versions of the data with the time of their first start, the newest first."""

    def read(session: Session) -> list[Any]:
        statement = "SELECT version, time FROM scoreshield_service_versions ORDER BY version DESC"
        return list(session.execute(statement).fetchall())

    rows = served.account.ledger.read_beside(read)
    return [(int(number), datetime.fromisoformat(time)) for number, time in rows]


def list_allowances(served: ServedCollection, policy: Policy) -> list[AllowanceFacts]:
    """List what callers have spent, with those who have spent nothing yet."""

    def read(session: Session) -> list[Any]:
        statement = "SELECT caller, queries, epsilon FROM scoreshield_service_allowances"
        return list(session.execute(statement).fetchall())

    spent = {row[0]: (int(row[1]), Decimal(row[2])) for row in served.account.ledger.read_beside(read)}
    asking = {
        name
        for name, caller in policy.callers.items()
        if served.name in caller.collections and set(caller.collections[served.name].actions) - {"entries"}
    }
    found = []
    for name in sorted(asking | set(spent)):
        grant = policy.find_grant(name, served.name)
        queries, epsilon = spent.get(name, (0, Decimal(0)))
        found.append(AllowanceFacts(name, queries, epsilon, None if grant is None else grant.allowance))
    return found
