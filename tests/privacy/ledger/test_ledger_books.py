"""The sums of accounts in small pieces, on a database in memory."""

from __future__ import annotations

import hashlib
import hmac
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest

import scoreshield as ss
from scoreshield.privacy.filters import PrivacyFilter, Sums, compute_cost
from scoreshield.privacy.ledger.books import AccountAudit, Balance, Books, LedgerLimit, check_kind, is_text
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import Entry, write_canonical_json
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile

KEY = bytes(range(32))
BUDGET = LedgerLimit(10.0, 1e-6, 2)
FIRST_BOOK = LedgerLimit(10.0, 1e-6, 1)
ALTERED = "has been altered"


def cost(profile: Profile) -> Sums:
    return compute_cost(profile, BUDGET.epsilon, BUDGET.delta)


class Database:
    """A session in memory, and a way to charge through the books, as a ledger does."""

    def __init__(self, has_accounts: bool = True) -> None:
        self.execute = sqlite3.connect(":memory:", isolation_level=None).execute
        self.session = Session(self.execute, has_accounts=False)
        self.session.create("{}", "", "")
        if not has_accounts:
            self.execute("DROP TABLE scoreshield_accounts")
            self.session = Session(self.execute, has_accounts=False)

    def books(self, budget: LedgerLimit = BUDGET) -> Books:
        return Books(self.session, budget, KEY)

    def check(self, budget: LedgerLimit = BUDGET) -> AccountAudit:
        return AccountAudit(self.session, budget, KEY)

    def charge(self, dataset: str | None, profile: Profile, unit: str = "replacement", keep: bool = True) -> Entry:
        number, text = self.session.read_last_number() + 1, write_canonical_json(profile.to_dict())
        entry = Entry(number, 1, "charge", "now", "", dataset, unit, "", "", text, "{}", "").seal()
        books = self.books()
        books.add(dataset, number, unit, profile)
        self.session.append(entry)
        if keep:
            books.write_row(dataset, entry)
        return entry

    def checked(self, budget: LedgerLimit = BUDGET) -> list[str | None]:
        """What a check says of each entry, and at the end."""
        check = self.check(budget)
        return [*(check.add(entry) for entry in self.session.read_entries()), check.find_fault()]


@pytest.fixture
def database() -> Database:
    return Database()


def test_balance() -> None:
    """The first unit, the first other one, the last number, and the sums."""
    one, two = cost(PureProfile(1.0)), cost(GaussianProfile(0.2))
    first = Balance().add(4, "u", one)
    assert first == Balance(4, one, "u", None)
    assert first.add(5, "u", two) == Balance(5, one + two, "u", None)
    both = first.add(6, "v", two)
    assert both == Balance(6, one + two, "u", "v")
    assert both.add(7, "w", one) == Balance(7, one + two + one, "u", "v")
    assert both.add(8, "u", one) == Balance(8, one + two + one, "u", "v")
    assert (Balance().units, first.units, both.units) == ([], ["u"], ["u", "v"])


def test_balance_as_text() -> None:
    balance = Balance(3, cost(PureProfile(0.5)), "u", "v")
    assert json.loads(balance.to_text()) == {"sums": balance.sums.to_dict(), "unit": "u", "other": "v"}
    assert Balance.from_text(3, balance.to_text()) == balance
    for name in ("sums", "unit", "other"):
        data = json.loads(balance.to_text())
        del data[name]
        with pytest.raises(KeyError):
            Balance.from_text(3, write_canonical_json(data))


def test_seal(database: Database) -> None:
    """What is sealed never changes, or the rows of old ledgers would not be read."""
    text = '["scoreshield account 1","a",3,"ff","sums"]'
    books = database.books()
    assert books.seal("a", 3, "ff", "sums") == hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()
    text = text.replace('"a"', "null")
    assert books.seal(None, 3, "ff", "sums") == hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("dataset", ["a", None])
def test_write(database: Database, dataset: str | None) -> None:
    """The row of an account holds its last entry, its sums and their seal."""
    database.charge(dataset, PureProfile(1.0))
    entry = database.charge(dataset, PureProfile(2.0), "other")
    sums = cost(PureProfile(1.0)) + cost(PureProfile(2.0))
    text = Balance(2, sums, "replacement", "other").to_text()
    books = database.books()
    row = (2, text, books.seal(dataset, 2, entry.hash, text))
    assert books.write_row(dataset, entry) == row
    assert database.session.read_accounts() == [(dataset or "", *row)]
    assert books.read_balance(dataset) == Balance.from_text(2, text)


def test_write_without_a_table() -> None:
    """Who may not make the table of sums still charges: everything is added up anew."""
    database = Database(has_accounts=False)
    entry = database.charge("a", PureProfile(1.0))
    database.charge("a", PureProfile(2.0), "other")
    assert database.books().write_row("a", entry) is None
    assert database.books().read_balance("a") == Balance(
        2, cost(PureProfile(1.0)) + cost(PureProfile(2.0)), "replacement", "other"
    )
    assert database.checked() == [None, None, None]


@pytest.mark.parametrize("keep", [False, True])
def test_catching_up(database: Database, keep: bool) -> None:
    """Entries beyond the row are added to it, those of other accounts are not."""
    database.charge("a", PureProfile(1.0))
    database.charge("b", PureProfile(0.25))
    database.charge("a", PureProfile(2.0), "v", keep=keep)
    database.charge("a", PureProfile(0.5), "w", keep=keep)
    database.charge(None, PureProfile(0.125), keep=keep)
    sums = cost(PureProfile(1.0)) + cost(PureProfile(2.0)) + cost(PureProfile(0.5))
    books = database.books()
    assert books.read_balance("a") == Balance(4, sums, "replacement", "v")
    assert books.read_balance("b") == Balance(2, cost(PureProfile(0.25)), "replacement")
    assert books.read_balance(None) == Balance(5, cost(PureProfile(0.125)), "replacement")
    assert books.read_balance("c") == Balance()
    books.add("a", 6, "x", PureProfile(0.5))
    assert books.read_balance("a") == Balance(6, sums + cost(PureProfile(0.5)), "replacement", "v")
    assert database.checked() == [None] * 6


def test_sums_are_those_of_the_budget() -> None:
    """The moments are taken at orders that the budget fixes."""
    database, budget = Database(), LedgerLimit(3.0, 1e-4, 2)
    database.charge("a", PureProfile(0.5), keep=False)
    books = database.books(budget)
    one = compute_cost(PureProfile(0.5), 3.0, 1e-4)
    assert books.read_balance("a").sums == one
    books.add("a", 2, "replacement", PureProfile(0.5))
    assert books.read_balance("a").sums == one + one
    (found,) = books.make_filters("a")
    assert (found.epsilon, found.delta, found.spent) == (3.0, 1e-4, PrivacyFilter.from_sums(3.0, 1e-4, one + one).spent)


def test_filters(database: Database) -> None:
    """Charges without a name count against every account, and an account against itself alone."""
    assert [one.spent for one in database.books().make_filters(None)] == [0.0]
    database.charge(None, PureProfile(0.5))
    assert [one.spent for one in database.books().make_filters(None)] == [0.5]
    database.charge("b", PureProfile(2.0))
    database.charge("a", PureProfile(1.0))
    books = database.books()
    assert books.list_names() == ["a", "b"]
    assert [one.spent for one in books.make_filters(None)] == [1.5, 2.5]
    assert [[one.spent for one in books.make_filters(name)] for name in ("a", "b", "c")] == [[1.5], [2.5], [0.5]]


@pytest.mark.parametrize("budget", [BUDGET, FIRST_BOOK])
def test_fits(database: Database, budget: LedgerLimit) -> None:
    """Every account that a charge counts against must have room for it."""
    database.charge("a", PureProfile(4.0))
    database.charge("b", PureProfile(9.0))
    books = database.books(budget)
    assert books.fits("a", PureProfile(6.0))
    assert not books.fits("a", PureProfile(6.5))
    assert books.fits("b", PureProfile(1.0))
    assert books.fits("c", PureProfile(10.0))
    assert books.fits(None, PureProfile(1.0))
    assert not books.fits(None, PureProfile(1.5))


def test_which_book(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of the first book is judged by its rules, with all charges to the account; a later one is not."""
    database.charge("a", PureProfile(1.0))
    database.charge("b", PureProfile(3.0))
    database.charge(None, PureProfile(2.0))
    database.charge("a", PureProfile(1.0))
    asked: list[Any] = []

    def by_book_1(self: PrivacyFilter, profile: Profile, charged: Callable[[], Mapping[Profile, int]]) -> bool:
        asked.append((self.spent, profile, charged()))
        return True

    monkeypatch.setattr(PrivacyFilter, "would_fit_by_rules_1", by_book_1)
    database.books(BUDGET).fits(None, PureProfile(0.5))
    assert asked == []
    assert database.books(FIRST_BOOK).fits(None, PureProfile(0.5))
    assert asked == [
        (4.0, PureProfile(0.5), Counter({PureProfile(1.0): 2, PureProfile(2.0): 1})),
        (5.0, PureProfile(0.5), Counter({PureProfile(3.0): 1, PureProfile(2.0): 1})),
    ]


def test_units(database: Database) -> None:
    """A charge must promise the same as the account, and as charges to all; one to all, the same as every account."""
    database.charge("a", PureProfile(1.0), "u")
    database.charge("b", PureProfile(1.0), "u")
    books = database.books()
    for dataset in ("a", "b", None):
        books.check_units(dataset, "u", same_people=False)
        with pytest.raises(ss.InvalidInput):
            books.check_units(dataset, "v", same_people=False)
    books.check_units("c", "v", same_people=False)
    database.charge(None, PureProfile(1.0), "u")
    with pytest.raises(ss.InvalidInput):
        database.books().check_units("c", "v", same_people=False)
    identity = "identity centroids False identities {} largest 2 labels " + "a" * 64
    database.charge("d", PureProfile(1.0), identity.format(3))
    with pytest.raises(ss.InvalidInput):
        database.books().check_units("d", "u", same_people=False)


def test_same_people() -> None:
    database, identity = Database(), "identity centroids False identities {} largest 2 labels " + "a" * 64
    database.charge("d", PureProfile(1.0), identity.format(3))
    database.books().check_units("d", identity.format(4), same_people=True)
    with pytest.raises(ss.InvalidInput):
        database.books().check_units("d", identity.format(4), same_people=False)


def forged(database: Database, dataset: str, text: str) -> None:
    """Other sums with a seal that fits."""
    entry = database.session.read_last()
    assert entry is not None
    seal = database.books().seal(dataset, entry.id, entry.hash, text)
    database.execute("UPDATE scoreshield_accounts SET sums = ?, seal = ?", (text, seal))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE scoreshield_accounts SET last = 9",
        "UPDATE scoreshield_accounts SET last = 1",
        "UPDATE scoreshield_accounts SET sums = replace(sums, '\"count\":1', '\"count\":0')",
        "UPDATE scoreshield_accounts SET sums = CAST(sums AS BLOB)",
        "UPDATE scoreshield_accounts SET seal = 'ff'",
        "UPDATE scoreshield_accounts SET seal = upper(seal)",
        "UPDATE scoreshield_entries SET hash = 'ff' WHERE id = 2",
        "UPDATE scoreshield_entries SET hash = CAST(hash AS BLOB) WHERE id = 2",
        "UPDATE scoreshield_entries SET dataset = 'b' WHERE id = 2",
        "UPDATE scoreshield_entries SET dataset = NULL WHERE id = 2",
    ],
)
def test_damaged_rows(database: Database, damage: str) -> None:
    database.charge("b", PureProfile(1.0), keep=False)
    database.charge("a", PureProfile(1.0))
    database.execute(damage)
    with pytest.raises(ss.LedgerError, match=ALTERED):
        database.books().read_balance("a")


def test_a_damaged_row_of_charges_to_all(database: Database) -> None:
    database.charge(None, PureProfile(1.0))
    database.execute("UPDATE scoreshield_accounts SET seal = 'ff'")
    for dataset in (None, "a"):
        with pytest.raises(ss.LedgerError, match=ALTERED):
            database.books().make_filters(dataset)


def test_a_row_of_a_later_version(database: Database) -> None:
    database.charge("a", PureProfile(1.0))
    for text in ("{}", '{"sums":{},"unit":"u","other":null}', "7", "[", '{"sums":7,"unit":"u","other":null}'):
        forged(database, "a", text)
        with pytest.raises(ss.LedgerError, match="cannot read"):
            database.books().read_balance("a")
    database.execute("UPDATE scoreshield_entries SET kind = 'refund'")
    with pytest.raises(ss.LedgerError, match="newer"):
        database.books().read_balance("a")


def test_entries_that_are_gone(database: Database) -> None:
    """A row that goes beyond its account's entries, or a gap among those that it does not hold, stops a charge."""
    for _ in range(2):
        database.charge("a", PureProfile(1.0))
    database.charge("b", PureProfile(1.0))
    for _ in range(2):
        database.charge("a", PureProfile(1.0), keep=False)
    assert database.books().read_balance("a").sums.count == 4
    database.execute("DELETE FROM scoreshield_entries WHERE id = 1")
    assert database.books().read_balance("a").sums.count == 4, "the row has counted it"
    database.execute("DELETE FROM scoreshield_entries WHERE id = 4")
    with pytest.raises(ss.LedgerError, match=ALTERED):
        database.books().read_balance("a")


def test_an_index_that_hides_the_last_entry(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        database.charge("a", PureProfile(1.0))
    monkeypatch.setattr(Session, "read_latest", lambda *_: 1)
    with pytest.raises(ss.LedgerError, match=ALTERED):
        database.books().read_balance("a")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE scoreshield_entries SET unit = x'00' WHERE id = 2", ALTERED),
        ("UPDATE scoreshield_entries SET kind = 'refund' WHERE id = 2", "newer"),
        ("UPDATE scoreshield_entries SET format = 2 WHERE id = 2", "newer"),
        ("UPDATE scoreshield_entries SET profile = '{}' WHERE id = 2", "cannot read"),
    ],
)
def test_damaged_entries(database: Database, damage: str, words: str) -> None:
    for _ in range(3):
        database.charge("a", PureProfile(1.0), keep=False)
    database.execute(damage)
    with pytest.raises(ss.LedgerError, match=words):
        database.books().read_balance("a")


def test_names_of_a_later_version(database: Database) -> None:
    database.charge("a", PureProfile(1.0))
    assert database.books().list_names() == ["a"]
    database.execute("UPDATE scoreshield_entries SET format = 2")
    with pytest.raises(ss.LedgerError, match="newer"):
        database.books().list_names()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: d.execute("UPDATE scoreshield_accounts SET seal = 'ff' WHERE dataset = 'a'"), "for 'a' "),
        (lambda d: d.execute("UPDATE scoreshield_accounts SET seal = 'ff' WHERE dataset = ''"), "without a dataset"),
        (lambda d: d.execute("UPDATE scoreshield_accounts SET sums = '{' WHERE dataset = 'a'"), "for 'a' "),
        (lambda d: d.execute("UPDATE scoreshield_accounts SET sums = x'00' WHERE dataset = 'a'"), "for 'a' "),
    ],
)
def test_check_of_rows(database: Database, damage: Callable[[Database], object], words: str) -> None:
    """A row is compared with the entries when the last of its entries is reached."""
    for name in ("a", None, "a", None):
        database.charge(name, PureProfile(1.0))
    damage(database)
    place = 3 if words.startswith("without") else 2
    found = database.checked()
    assert words in (found[place] or "")
    assert [*found[:place], *found[place + 1 :]] == [None] * 4


@pytest.mark.parametrize("field", ["count", "pure", "unit", "other"])
def test_check_of_forged_sums(database: Database, field: str) -> None:
    """Whoever has the key can seal other sums; the entries tell."""
    database.charge("a", PureProfile(1.0))
    database.charge("a", PureProfile(0.5))
    assert database.checked() == [None, None, None]
    good = database.books().read_balance("a")
    data = json.loads(good.to_text())
    if field in ("unit", "other"):
        data[field] = "another"
    else:
        data["sums"] = Sums(**{**vars(good.sums), field: {"count": 3, "pure": Fraction(1)}[field]}).to_dict()
    forged(database, "a", write_canonical_json(data))
    assert "for 'a' " in (database.checked()[1] or "")


def test_check_of_sums_of_another_computer(database: Database) -> None:
    """Its library of mathematics may round moments otherwise."""
    database.charge("a", GaussianProfile(0.2))
    good = database.books().read_balance("a")
    moments = tuple(moment * (1 + Fraction(1, 2**45)) for moment in good.sums.moments)
    forged(database, "a", Balance(1, Sums(**{**vars(good.sums), "moments": moments}), good.unit).to_text())
    assert database.checked() == [None, None]


def test_check_of_rows_without_entries(database: Database) -> None:
    """A row that goes beyond the entries, one of an account that has none, and rows under what is no name."""
    database.charge("a", PureProfile(1.0))
    add = "INSERT INTO scoreshield_accounts VALUES (?, 1, '', '')"
    for name in (None, b"", b"a"):
        database.execute("DELETE FROM scoreshield_accounts WHERE last = 1 AND sums = ''")
        database.execute(add, (name,))
        assert f"There are sums for {name!r}, " in (database.checked()[-1] or "")
    database.execute("DELETE FROM scoreshield_accounts WHERE last = 1 AND sums = ''")
    database.execute(add, ("b",))
    assert "for 'b' " in (database.checked()[-1] or "")
    database.execute("UPDATE scoreshield_accounts SET dataset = '' WHERE dataset = 'b'")
    assert "without a dataset" in (database.checked()[-1] or "")
    database.execute("DELETE FROM scoreshield_accounts WHERE dataset = ''")
    database.execute("UPDATE scoreshield_accounts SET last = 2")
    assert "for 'a' " in (database.checked()[-1] or "")


@pytest.mark.parametrize("budget", [BUDGET, FIRST_BOOK])
def test_check_of_the_limit(budget: LedgerLimit) -> None:
    """Each account with what was charged to all; the names of three that are over, in order."""
    database = Database()
    for name in "edcba":
        database.charge(name, PureProfile(8.0))
    database.charge(None, PureProfile(2.0))
    assert database.checked(budget)[-1] is None, "exactly full"
    for name in "edb":
        database.charge(name, PureProfile(0.001))
    said = database.checked(budget)[-1] or ""
    assert "more than the limit for 'b', 'd', 'e'." in said
    database.charge("c", PureProfile(0.001))
    assert "more than the limit for 'b', 'c', 'd'." in (database.checked(budget)[-1] or "")


@pytest.mark.parametrize("budget", [BUDGET, FIRST_BOOK])
def test_check_of_the_limit_without_names(database: Database, budget: LedgerLimit) -> None:
    database.charge(None, PureProfile(10.0))
    assert database.checked(budget)[-1] is None
    database.charge(None, PureProfile(0.001))
    assert (database.checked(budget)[-1] or "").endswith("more than the limit.")


def test_check_by_the_first_book(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.charge("a", PureProfile(1.0))
    database.charge("a", PureProfile(1.0))
    database.charge(None, PureProfile(2.0))
    asked: list[Any] = []
    monkeypatch.setattr(
        PrivacyFilter, "is_within_limit_by_rules_1", lambda self, charged: asked.append((self.spent, charged)) or True
    )
    database.checked(BUDGET)
    assert asked == []
    assert database.checked(FIRST_BOOK) == [None] * 4
    both = Counter({PureProfile(1.0): 2, PureProfile(2.0): 1})
    assert sorted(asked, key=lambda one: one[0]) == [(2.0, Counter([PureProfile(2.0)])), (4.0, both)]


def test_kinds() -> None:
    check_kind(1, "charge")
    for form, kind in ((2, "charge"), (0, "charge"), (1, "refund"), (None, "charge"), (1, None)):
        with pytest.raises(ss.LedgerError, match="newer"):
            check_kind(form, kind)


def test_texts() -> None:
    assert is_text("a", "")
    assert not is_text("a", b"")
    assert not is_text(None, "a")
