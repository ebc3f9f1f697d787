"""The ledger itself in small pieces, on a database in memory."""

from __future__ import annotations

import getpass
import json
import socket
import sqlite3
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ledger_support import pure

import scoreshield as ss
from scoreshield.privacy.filters import PrivacyFilter
from scoreshield.privacy.ledger import Account, Ledger, LedgerVerification, PendingCharge
from scoreshield.privacy.ledger import accounts as module
from scoreshield.privacy.ledger.database import LedgerDatabase, Session
from scoreshield.privacy.ledger.entries import Entry, hash_canonical_json, write_canonical_json
from scoreshield.privacy.profiles import PureProfile

T = Any
ALTERED = "has been altered: run verify to see where"
NOT_KEPT = "does not keep what is written to it"


class MemoryDatabase(LedgerDatabase):
    """A ledger without a file."""

    name = "memory"

    def __init__(self) -> None:
        self.execute = sqlite3.connect(":memory:", isolation_level=None).execute
        self.made: tuple[str, str, str] | None = None

    def exists(self) -> bool:
        return self.made is not None

    def create(self, facts: str, key: str, head: str) -> bool:
        self.made = facts, key, head
        Session(self.execute, has_accounts=False).create(facts, key, head)
        return True

    def read(self, work: Callable[[Session], T]) -> T:
        return work(Session(self.execute, True, "PRAGMA integrity_check(1)"))

    def write(self, work: Callable[[Session], T]) -> T:
        self.execute("BEGIN")
        try:
            answer = work(Session(self.execute, True))
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")
        return answer


@pytest.fixture
def database() -> MemoryDatabase:
    made = MemoryDatabase()
    module._create(made, 10.0, 1e-6)
    return made


@pytest.fixture
def ledger(database: MemoryDatabase) -> Ledger:
    return Ledger._open_in(database)


def identity(people: int) -> Any:
    """A promise to people, whose labels the guarantee has forgotten."""
    return pure(0.5, adjacency=ss.Identity(list(range(people))).drop_labels())


class TestMaking:
    def test_facts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_get_time", lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        database = MemoryDatabase()
        assert module._create(database, 10.0, 1e-6) is True
        assert database.made is not None
        text, key, head = database.made
        facts = json.loads(text)
        assert len(bytes.fromhex(key)) == 32
        assert len(bytes.fromhex(facts.pop("id"))) == 16
        assert len(bytes.fromhex(facts.pop("key"))) == 32
        assert facts == {
            "format": 1,
            "rules": 2,
            "created": "2026-01-02T03:04:05.000000+00:00",
            "epsilon": 10.0,
            "delta": 1e-6,
        }
        assert head == hash_canonical_json(json.loads(text))
        assert text == write_canonical_json(json.loads(text))

    def test_no_two_are_alike(self) -> None:
        databases = [MemoryDatabase(), MemoryDatabase()]
        for database in databases:
            module._create(database, 10.0, 1e-6)
        (one, key, _), (other, other_key, _) = (database.made or ("", "", "") for database in databases)
        assert json.loads(one)["id"] != json.loads(other)["id"]
        assert key != other_key

    def test_what_is_read(self, ledger: Ledger, database: MemoryDatabase) -> None:
        assert database.made is not None
        assert (ledger.epsilon, ledger.delta, ledger.name) == (10.0, 1e-6, "memory")
        assert ledger.head() == f"0:{database.made[2]}"
        assert (ledger.entries(), ledger.datasets(), ledger.spent, ledger.remaining) == ([], [], 0.0, 10.0)

    @pytest.mark.parametrize(
        "change",
        [
            *({name: None} for name in ("format", "rules", "epsilon", "delta")),
            {"epsilon": "much"},
            {"epsilon": -1.0},
            {"delta": 2.0},
            {"delta": "x"},
            {"more": 1e999},
        ],
    )
    def test_facts_that_cannot_be_read(self, ledger: Ledger, database: MemoryDatabase, change: dict[str, Any]) -> None:
        facts = json.loads((database.made or ("",))[0])
        for name, value in change.items():
            if value is None:
                del facts[name]
            else:
                facts[name] = value
        database.execute("UPDATE scoreshield_ledger SET facts = ?", (json.dumps(facts).replace("Infinity", "1e999"),))
        for use in (ledger.head, lambda: Ledger._open_in(database), ledger.verify, lambda: ledger.spent):
            with pytest.raises(ss.LedgerError, match="row of the ledger itself cannot be read"):
                use()

    @pytest.mark.parametrize("change", ["facts = '{'", "facts = '7'", "fingerprint_key = 'xy'", "entries = 'many'"])
    def test_a_row_that_cannot_be_read(self, ledger: Ledger, database: MemoryDatabase, change: str) -> None:
        database.execute(f"UPDATE scoreshield_ledger SET {change}")
        with pytest.raises(ss.LedgerError, match="row of the ledger itself cannot be read"):
            ledger.head()
        database.execute("DELETE FROM scoreshield_ledger")
        with pytest.raises(ss.LedgerError, match="row of the ledger itself is missing"):
            ledger.head()

    @pytest.mark.parametrize(
        ("form", "rules", "known"), [(1, 1, True), (1, 2, True), (1, 0, False), (1, 3, False), (2, 2, False)]
    )
    def test_versions(self, database: MemoryDatabase, form: int, rules: int, known: bool) -> None:
        facts = {**json.loads((database.made or ("",))[0]), "format": form, "rules": rules}
        database.execute("UPDATE scoreshield_ledger SET facts = ?", (write_canonical_json(facts),))
        if known:
            assert Ledger._open_in(database)._limit.rules == rules
        else:
            with pytest.raises(ss.LedgerError, match=f"has format {form} and rules {rules}"):
                Ledger._open_in(database)

    def test_another_ledger_in_its_place(self, ledger: Ledger, database: MemoryDatabase) -> None:
        database.execute("UPDATE scoreshield_ledger SET facts = replace(facts, '10.0', '11.0')")
        with pytest.raises(ss.LedgerError, match="is not the one that was opened"):
            _ = ledger.spent
        with pytest.raises(ss.LedgerError, match=ALTERED):
            ledger.spend(pure(1.0))


class TestOpening:
    @pytest.fixture
    def databases(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryDatabase]:
        """A database per address."""
        made: dict[str, MemoryDatabase] = {}
        monkeypatch.setattr(module, "open_database", lambda url: made.setdefault(url, MemoryDatabase()))
        return made

    def test_create(self, databases: dict[str, MemoryDatabase]) -> None:
        ledger = Ledger.create("a", epsilon=2, delta=1e-5)
        assert (ledger.epsilon, ledger.delta) == (2.0, 1e-5)
        assert ledger._database is databases["a"]
        with pytest.raises(ss.LedgerError, match="There is a ledger at memory"):
            Ledger.create("a", epsilon=3.0, delta=1e-5)
        assert Ledger.open("a").epsilon == 2.0

    def test_create_at_the_same_time(
        self, databases: dict[str, MemoryDatabase], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process makes it between the look and the creation."""
        Ledger.create("a", epsilon=2.0, delta=1e-5)
        monkeypatch.setattr(MemoryDatabase, "exists", lambda _: False)
        monkeypatch.setattr(MemoryDatabase, "create", lambda *_: False)
        with pytest.raises(ss.LedgerError, match="There is a ledger at memory"):
            Ledger.create("a", epsilon=2.0, delta=1e-5)
        assert Ledger("a", epsilon=2.0, delta=1e-5)._database is databases["a"]

    @pytest.mark.parametrize(
        ("limits", "words"),
        [
            ({"epsilon": 0.0, "delta": 1e-5}, "'epsilon' parameter of {} "),
            ({"epsilon": 1.0, "delta": 1.0}, "'delta' parameter of {} "),
            ({"epsilon": None, "delta": 1e-5}, "Give both"),
            ({"epsilon": 1.0, "delta": None}, "Give both"),
        ],
    )
    def test_bad_limits(self, databases: dict[str, MemoryDatabase], limits: dict[str, Any], words: str) -> None:
        for use, name in ((Ledger.create, "Ledger.create"), (Ledger, "Ledger")):
            with pytest.raises(ss.InvalidInput) as caught:
                use("a", **limits)
            assert words.format(name) in str(caught.value)
        assert not databases["a"].exists()

    def test_open(self, databases: dict[str, MemoryDatabase]) -> None:
        for use in (Ledger.open, Ledger):
            with pytest.raises(ss.LedgerError, match="There is no ledger at memory"):
                use("a")
        assert not databases["a"].exists()
        module._create(databases["a"], 2.0, 1e-5)
        for use in (Ledger.open, Ledger):
            assert (use("a").epsilon, use("a").delta, use("a")._database) == (2.0, 1e-5, databases["a"])

    def test_either(self, databases: dict[str, MemoryDatabase]) -> None:
        with pytest.warns(ss.LedgerWarning, match="There was no ledger at memory"):
            ledger = Ledger("a", epsilon=2.0, delta=1e-5)
        assert (ledger.epsilon, ledger.delta, ledger._database) == (2.0, 1e-5, databases["a"])
        for good in ({}, {"epsilon": 2.0}, {"delta": 1e-5}, {"epsilon": 2, "delta": 1e-5}):
            assert Ledger("a", **good).head() == ledger.head()
        for bad, words in (
            ({"epsilon": 3.0}, "Got epsilon 3.0."),
            ({"delta": 0.5}, "Got delta 0.5."),
            ({"epsilon": 2.0, "delta": 0.5}, "Got epsilon 2.0 and delta 0.5."),
            ({"epsilon": 3.0, "delta": 1e-5}, "Got epsilon 3.0 and delta 1e-05."),
        ):
            with pytest.raises(ss.InvalidInput) as caught:
                Ledger("a", **bad)
            assert str(caught.value).endswith(words)

    def test_repr(self, ledger: Ledger) -> None:
        assert repr(ledger) == "<Ledger memory: at most epsilon 10 at delta 1e-06 for each dataset>"


OPTIONS = {"dataset": "a", "who": "ann", "why": "test", "adjacency": ss.Replacement(), "same_people": True}
DEFAULTS = {"dataset": None, "who": None, "why": "", "adjacency": None, "same_people": False}


class TestOptions:
    """What is asked of a ledger or an account arrives where it is decided."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        seen: list[Any] = []

        def reserve(_: Ledger, items: Any, **options: Any) -> PendingCharge:
            seen.append((items, options))
            return PendingCharge(lambda: ["first", "second"])  # type: ignore[list-item]

        monkeypatch.setattr(Ledger, "reserve", reserve)
        return seen

    @pytest.mark.parametrize("given", [{}, OPTIONS])
    def test_ledger(self, ledger: Ledger, asked: list[Any], given: dict[str, Any]) -> None:
        expected = {**DEFAULTS, **given, "check": False}
        assert ledger.spend("item", **given) == "first"
        assert ledger.spend_all(["item", "more"], **given) == ["first", "second"]
        assert asked == [(["item"], expected), (["item", "more"], expected)]

    @pytest.mark.parametrize("given", [{}, {"adjacency": ss.Replacement(), "same_people": True}])
    @pytest.mark.parametrize("told", [{}, {"who": "ann", "why": "test"}])
    def test_account(self, ledger: Ledger, asked: list[Any], given: dict[str, Any], told: dict[str, Any]) -> None:
        account = ledger.account("a", **told)
        expected = {**DEFAULTS, **told, **given, "dataset": "a"}
        assert account == Account(ledger, "a", told.get("who"), told.get("why", ""))
        assert account.spend("item", **given) == "first"
        assert account.spend_all(["item", "more"], **given) == ["first", "second"]
        assert account.reserve(["item"], **given).commit() == ["first", "second"]
        once = {**expected, "check": False}
        assert asked == [(["item"], once), (["item", "more"], once), (["item"], expected)]

    def test_words(self, ledger: Ledger) -> None:
        """Each error names the parameter and the function that the caller wrote."""
        for use, words in (
            (lambda: ledger.spend(pure(1.0), who="a\n"), "'who' parameter of Ledger.spend "),
            (lambda: ledger.spend(pure(1.0), why="a\n"), "'why' parameter of Ledger.spend "),
            (lambda: ledger.spend(pure(1.0), dataset=" a"), "'dataset' parameter of Ledger.spend "),
            (lambda: ledger.spend(PureProfile(1.0)), "'item' parameter of Ledger.spend "),
            (lambda: ledger.account(" a"), "'dataset' parameter of Ledger.account "),
            (lambda: ledger.account(5), "'name' parameter of Ledger.account "),  # type: ignore[arg-type]
            (lambda: ledger.spent_on(" a"), "'dataset' parameter of Ledger.spent_on "),
            (lambda: ledger.headroom_on(" a"), "'dataset' parameter of Ledger.headroom_on "),
            (lambda: ledger.verify(head="5"), "'head' parameter of Ledger.verify "),
        ):
            with pytest.raises(ss.InvalidInput) as caught:
                use()
            assert words in str(caught.value)


class TestCharging:
    def test_entries(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_get_time", lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        genesis = ledger.head()[2:]
        one, two, three = ledger.spend_all([pure(1.0), pure(2.0), pure(0.5)], dataset="a", who="ann", why="test")
        four = ledger.spend(pure(0.25))
        for number, (entry, promise) in enumerate(zip((one, two, three), (1.0, 2.0, 0.5), strict=True), 1):
            assert entry == replace(
                Entry(
                    number,
                    1,
                    "charge",
                    "2026-01-02T03:04:05.000000+00:00",
                    "",
                    "a",
                    "replacement",
                    "ann",
                    "test",
                    write_canonical_json(PureProfile(promise).to_dict()),
                    write_canonical_json(pure(promise).to_dict()),
                    genesis if number == 1 else (one, two)[number - 2].hash,
                    entry.hash,
                ),
                hash=entry.hash,
            )
            assert entry.compute_hash() == entry.hash
        assert (four.id, four.dataset, four.why, four.previous) == (4, None, "", three.hash)
        assert four.who == module._name_user()
        assert ledger.entries() == [one, two, three, four]
        assert ledger.head() == f"4:{four.hash}"
        assert [ledger.entry(entry.hash) for entry in (one, four)] == [one, four]
        assert ledger.entry("f" * 64) is None
        assert ledger.verify() == LedgerVerification(4, ledger.head())
        assert [row[:2] for row in ledger._database.read(lambda session: session.read_accounts())] == [
            ("a", 3),
            ("", 4),
        ]

    def test_a_clock_that_goes_back(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """Within a batch and between two charges, an entry says that it is from before the one above."""
        start = datetime(2026, 1, 2, tzinfo=UTC)
        clock = iter([5, 6, 4, 3])
        monkeypatch.setattr(module, "_get_time", lambda: start + timedelta(seconds=next(clock)))
        ledger.spend_all([pure(0.5)] * 3)
        ledger.spend(pure(0.5))
        assert [bool(entry.note) for entry in ledger.entries()] == [False, False, True, True]
        assert ledger.verify()

    def test_nothing(self, ledger: Ledger) -> None:
        assert ledger.spend_all([], dataset="a") == []
        ledger.spend(pure(1.0), dataset="a")
        head = ledger.head()
        assert ledger.spend_all([], dataset="a") == []
        assert ledger.head() == head
        assert ledger.verify()

    def test_reserving(self, ledger: Ledger) -> None:
        """Nothing is written before the commit, and the check comes first unless it is left out."""
        pending = ledger.reserve([pure(6.0), pure(4.0)], dataset="a")
        assert ledger.entries() == []
        with pytest.raises(ss.BudgetExceeded):
            ledger.reserve([pure(6.0), pure(4.5)], dataset="a")
        late = ledger.reserve([pure(6.0), pure(4.5)], dataset="a", check=False)
        with pytest.raises(ss.BudgetExceeded):
            late.commit()
        assert ledger.entries() == []
        assert [entry.id for entry in pending.commit()] == [1, 2]
        assert {entry.why for entry in ledger.entries()} == {""}
        with pytest.raises(ss.LedgerError, match="committed before"):
            pending.commit()
        assert len(ledger.entries()) == 2

    def test_people(self, ledger: Ledger) -> None:
        """Labels that are unknown, or others, are a charge only on the caller's word."""
        adjacency = ss.Identity([0, 1, 1])
        promise = pure(0.5, adjacency=adjacency.drop_labels())
        for name, use in (("a", ledger.spend), ("b", lambda item, **o: ledger.reserve([item], **o).commit())):
            with pytest.raises(ss.InvalidInput, match="needs its labels"):
                use(promise, dataset=name)
            use(promise, dataset=name, adjacency=adjacency)
            with pytest.raises(ss.InvalidInput, match="in another way"):
                use(promise, dataset=name, adjacency=ss.Identity([0, 0, 1]))
            use(promise, dataset=name, adjacency=ss.Identity([0, 0, 1]), same_people=True)
            use(promise, dataset=name, same_people=True)
        key, unit = ledger._key, ledger.entries()[0].unit
        assert unit == module.make_charge(promise, adjacency, key, same_people=False)[1]

    def test_what_a_batch_is_told(self) -> None:
        """What was spent before it, what its charge asks for, and how many there are."""
        module._create(database := MemoryDatabase(), 10.0, 0.0)
        ledger = Ledger._open_in(database)
        ledger.spend(pure(5.0), dataset="0")
        ledger.spend(pure(3.0), dataset="a")
        with pytest.raises(ss.BudgetExceeded) as caught:
            ledger.spend_all([pure(2.5)] * 3, dataset="a")
        assert (caught.value.spent, caught.value.asked, caught.value.limit) == (3.0, 2.5, 10.0)
        assert ", 3 times," in str(caught.value)
        with pytest.raises(ss.BudgetExceeded) as caught:
            ledger.spend(pure(7.5), dataset="a")
        assert "times" not in str(caught.value)

    def test_refusal(self) -> None:
        """By the first budget that does not cover it; the first book may say no where the second would not."""
        full, empty = (PrivacyFilter.from_charges(1.0, 0.0, {PureProfile(0.75): number}) for number in (1, 0))
        for now, place in (([empty, full], 1), ([full, empty], 0), ([empty, empty], 0)):
            before = [PrivacyFilter.from_charges(1.0, 0.0, {PureProfile(0.125): number}) for number in (1, 2)]
            assert module._make_budget_error(before, now, PureProfile(0.5), 1).spent == before[place].spent

    def test_what_is_left(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger.spend(pure(1.0), dataset="a")
        ledger.spend(pure(4.0), dataset="b")
        assert (ledger.spent, ledger.remaining) == (4.0, 6.0)
        for name, spent in (("a", 1.0), ("b", 4.0), ("c", 0.0), (None, 4.0)):
            assert (ledger.spent_on(name), ledger.remaining_on(name)) == (spent, 10.0 - spent)
            assert ledger.headroom_on(name).pure == 10.0 - spent
        assert ledger.headroom == ledger.headroom_on("b") == ledger.account("b").headroom
        account = ledger.account("a")
        assert (account.spent, account.remaining, account.headroom.pure) == (1.0, 9.0, 9.0)
        monkeypatch.setattr("scoreshield.privacy.ledger.books.Books.fits", lambda *_: True)
        ledger.spend(pure(9.0), dataset="b")
        assert (ledger.remaining_on("b"), ledger.remaining) == (0.0, 0.0)

    @pytest.mark.parametrize("name", ["cafe\u0301", "two  spaces"])
    def test_old_names(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """A name that earlier versions wrote is found by its exact spelling; a new one gets its one spelling."""
        with monkeypatch.context() as patch:
            patch.setattr(module, "normalise_name", lambda name: name)
            ledger.spend(pure(1.0), dataset=name)
        assert ledger.account(name).dataset == name
        assert ledger.spent_on(name) == 1.0
        assert ledger.account("caf\u00e9").dataset == "caf\u00e9"
        assert ledger.account("tre\u0301s").dataset == "tr\u00e9s"
        for other in (" a", "three   spaces", "\ud800", "a\nb", 5):
            with pytest.raises(ss.InvalidInput):
                ledger.spend(pure(1.0), dataset=other)  # type: ignore[arg-type]


class TestLook:
    """What each charge looks at before it continues the chain."""

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE scoreshield_ledger SET entries = 4",
            "UPDATE scoreshield_ledger SET entries = 6",
            "UPDATE scoreshield_ledger SET head = (SELECT hash FROM scoreshield_entries WHERE id = 4)",
            "UPDATE scoreshield_ledger SET facts = replace(facts, '10.0', '11.0')",
            "UPDATE scoreshield_entries SET who = 'other' WHERE id = 5",
            "UPDATE scoreshield_entries SET hash = 'x' WHERE id = 5; UPDATE scoreshield_ledger SET head = 'x'",
            "UPDATE scoreshield_entries SET hash = 'x' WHERE id = 3",
            "UPDATE scoreshield_entries SET previous = 'x' WHERE id = 3",
            "UPDATE scoreshield_entries SET previous = 'x' WHERE id = 1",
            "UPDATE scoreshield_entries SET id = 0 WHERE id = 1",
            "DELETE FROM scoreshield_entries WHERE id = 5",
            "DELETE FROM scoreshield_entries WHERE id = 3",
            "DELETE FROM scoreshield_entries WHERE id = 1",
            "DELETE FROM scoreshield_entries",
            "UPDATE scoreshield_entries SET who = x'00', hash = '' WHERE id = 5; UPDATE scoreshield_ledger SET head=''",
        ],
    )
    def test_damage(self, ledger: Ledger, database: MemoryDatabase, damage: str) -> None:
        for _ in range(5):
            ledger.spend(pure(0.5), dataset="a")
        for statement in damage.split(";"):
            database.execute(statement)
        with pytest.raises(ss.LedgerError, match=ALTERED):
            ledger.spend(pure(0.5), dataset="b")
        assert not ledger.verify()

    @pytest.mark.parametrize("change", ["entries = 1", "head = 'x'", "entries = 1, head = 'x'"])
    def test_nothing_charged_yet(self, ledger: Ledger, database: MemoryDatabase, change: str) -> None:
        database.execute(f"UPDATE scoreshield_ledger SET {change}")
        with pytest.raises(ss.LedgerError, match=ALTERED):
            ledger.spend(pure(0.5))

    def test_a_gap_with_hashes_that_fit(self, ledger: Ledger, database: MemoryDatabase) -> None:
        write_chain(ledger, database, [1, 2, 4])
        with pytest.raises(ss.LedgerError, match=ALTERED):
            ledger.spend(pure(0.5))

    def test_a_first_entry_with_another_number(self, ledger: Ledger, database: MemoryDatabase) -> None:
        write_chain(ledger, database, [2, 3])
        with pytest.raises(ss.LedgerError, match=ALTERED):
            ledger.spend(pure(0.5))

    def test_a_time_that_is_none(self, ledger: Ledger, database: MemoryDatabase) -> None:
        write_chain(ledger, database, [1, 2], time="yesterday")
        with pytest.raises(ss.LedgerError, match=ALTERED):
            ledger.spend(pure(0.5))


def write_chain(ledger: Ledger, database: MemoryDatabase, numbers: list[int], **fields: Any) -> list[Entry]:
    """A chain whose hashes fit, whatever its numbers are; fields are those of the last entry."""
    template, previous, written = ledger.spend(pure(0.5)), ledger._genesis, []
    database.execute("DELETE FROM scoreshield_entries")
    database.execute("DELETE FROM scoreshield_accounts")
    for number in numbers:
        more = fields if number == numbers[-1] else {}
        entry = replace(template, id=number, previous=previous, **more).seal()
        database.read(lambda session, entry=entry: session.append(entry))
        previous = entry.hash
        written.append(entry)
    database.read(lambda session: session.advance(written[-1]))
    return written


class TestReadingBack:
    """What a database keeps is compared with what was written, before the commit."""

    @pytest.mark.parametrize("batch", [1, 3])
    @pytest.mark.parametrize(
        ("step", "instead"),
        [
            ("append", lambda *_: None),
            ("append", lambda self, entry: APPEND(self, replace(entry, who="other"))),
            ("advance", lambda *_: None),
            ("advance", lambda self, entry: ADVANCE(self, replace(entry, id=entry.id + 1))),
            ("advance", lambda self, entry: ADVANCE(self, replace(entry, hash=entry.previous))),
            ("advance", lambda self, entry: ADVANCE(self, entry) or self._execute(MORE)),
            ("write_account", lambda *_: None),
            ("write_account", lambda self, name, row: SET_ACCOUNT(self, name, (row[0], row[1], "seal"))),
        ],
    )
    @pytest.mark.parametrize("dataset", ["a", None])
    def test_other_things(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, step: str, instead: Any, batch: int, dataset: str | None
    ) -> None:
        ledger.spend(pure(0.5), dataset=dataset)
        head = ledger.head()
        with monkeypatch.context() as patch:
            patch.setattr(Session, step, instead)
            with pytest.raises(ss.LedgerError, match=NOT_KEPT):
                ledger.spend_all([pure(0.5)] * batch, dataset=dataset)
        assert ledger.head() == head
        assert ledger.verify()
        assert len(ledger.spend_all([pure(0.5)] * batch, dataset=dataset)) == batch

    def test_a_database_without_sums(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scoreshield.privacy.ledger.books.Books.write_row", lambda *_: None)
        assert ledger.spend(pure(0.5), dataset="a").id == 1


APPEND, ADVANCE, SET_ACCOUNT = Session.append, Session.advance, Session.write_account
MORE = "UPDATE scoreshield_ledger SET facts = replace(facts, '10.0', '11.0')"


class TestVerifying:
    """All that a check says: how many entries are good, the address of the last, the first bad one, and why."""

    @pytest.fixture
    def entries(self, ledger: Ledger) -> list[Entry]:
        for name in ("a", None, "b", "a"):
            ledger.spend(pure(0.5), dataset=name)
        return ledger.entries()

    def found(self, ledger: Ledger, words: str, **options: Any) -> tuple[int, str, int | None]:
        said = ledger.verify(**options)
        assert not said
        assert words in said.reason
        assert str(said) == said.reason
        return said.entries, said.head, said.first_bad

    def test_good(self, ledger: Ledger, entries: list[Entry]) -> None:
        heads = [f"0:{entries[0].previous}", *(f"{entry.id}:{entry.hash}" for entry in entries)]
        for head in (None, *heads):
            said = ledger.verify(head=head)
            assert said == LedgerVerification(4, heads[-1], None, "")
            assert bool(said) is True
            assert "All 4 entries" in str(said)

    @pytest.mark.parametrize("change", ["facts = replace(facts, '10.0', '11.0')", "fingerprint_key = 'ff'"])
    def test_facts(self, ledger: Ledger, database: MemoryDatabase, entries: list[Entry], change: str) -> None:
        assert entries
        database.execute(f"UPDATE scoreshield_ledger SET {change}")
        facts = json.loads(database.execute("SELECT facts FROM scoreshield_ledger").fetchone()[0])
        assert self.found(ledger, "facts of the ledger") == (0, f"0:{hash_canonical_json(facts)}", None)

    @pytest.mark.parametrize("number", [1, 2, 4])
    def test_one_entry(self, ledger: Ledger, database: MemoryDatabase, entries: list[Entry], number: int) -> None:
        database.execute("UPDATE scoreshield_entries SET who = 'other' WHERE id = ?", (number,))
        above = entries[number - 1].previous
        assert self.found(ledger, f"Entry {number} was changed") == (number - 1, f"{number - 1}:{above}", number)

    def test_numbers(self, ledger: Ledger, database: MemoryDatabase) -> None:
        chain = write_chain(ledger, database, [1, 2, 5])
        assert self.found(ledger, "Entry 5 does not have the number") == (2, f"2:{chain[1].hash}", 5)
        chain = write_chain(Ledger._open_in(fresh := make()), fresh, [0, 1])
        assert self.found(Ledger._open_in(fresh), "Entry 0 does not have the number") == (
            0,
            f"0:{chain[0].previous}",
            0,
        )

    def test_two_faults(self, ledger: Ledger, database: MemoryDatabase) -> None:
        """What an entry is, before where it stands."""
        write_chain(ledger, database, [1, 5], time="yesterday")
        good, _, bad = self.found(ledger, "Entry 5 holds a time")
        assert (good, bad) == (1, 5)

    def test_pinned(self, ledger: Ledger, entries: list[Entry]) -> None:
        here = f"4:{entries[3].hash}"
        rewritten = self.found(ledger, "Entry 2 differs from the given head", head="2:" + "0" * 64)
        assert rewritten == (1, f"1:{entries[0].hash}", 2)
        assert self.found(ledger, "has 5 entries and the chain has 4", head="5:" + "0" * 64) == (4, here, 5)
        assert self.found(ledger, "is of another ledger", head="0:" + "0" * 64) == (4, here, None)

    def test_without_a_number(self, ledger: Ledger, database: MemoryDatabase, entries: list[Entry]) -> None:
        database.read(lambda session: session.append(replace(entries[3], id=None, hash="x")))  # type: ignore[arg-type]
        assert self.found(ledger, "without a number") == (4, f"4:{entries[3].hash}", None)

    @pytest.mark.parametrize("change", ["entries = 3", "entries = 5", "head = 'x'"])
    def test_the_end(self, ledger: Ledger, database: MemoryDatabase, entries: list[Entry], change: str) -> None:
        database.execute(f"UPDATE scoreshield_ledger SET {change}")
        assert self.found(ledger, "and the chain has 4: its end was cut off") == (4, f"4:{entries[3].hash}", 5)

    @pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], []])
    def test_the_index(
        self, ledger: Ledger, entries: list[Entry], names: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Session, "read_datasets", lambda _: names)
        assert self.found(ledger, "The index lists other datasets than the entries have") == (
            4,
            f"4:{entries[3].hash}",
            None,
        )

    @pytest.mark.parametrize("name", ["a", "b", ""])
    def test_sums(self, ledger: Ledger, database: MemoryDatabase, entries: list[Entry], name: str) -> None:
        database.execute("UPDATE scoreshield_accounts SET seal = 'x' WHERE dataset = ?", (name,))
        words = f"for {name!r} differ" if name else "without a dataset differ"
        assert self.found(ledger, words) == (4, f"4:{entries[3].hash}", None)

    def test_first_sums(self, ledger: Ledger, database: MemoryDatabase, entries: list[Entry]) -> None:
        assert entries
        database.execute("UPDATE scoreshield_accounts SET seal = 'x' WHERE dataset IN ('', 'b')")
        self.found(ledger, "without a dataset differ")

    def test_the_limit(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("scoreshield.privacy.ledger.books.Books.fits", lambda *_: True)
            entry = ledger.spend(pure(11.0), dataset="a")
        monkeypatch.setattr(Session, "find_damage", lambda _: None)
        assert self.found(ledger, "more than the limit for 'a'") == (1, f"1:{entry.hash}", None)

    def test_damage(self, ledger: Ledger, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Session, "find_damage", lambda _: "row 3 missing from index")
        assert self.found(ledger, "'row 3 missing from index'") == (4, f"4:{entries[3].hash}", None)

    @pytest.mark.parametrize(
        "head",
        [
            "5",
            ":" + "0" * 64,
            "x:" + "0" * 64,
            "-1:" + "0" * 64,
            "\u0663:" + "0" * 64,
            "1" * 19 + ":" + "0" * 64,
            "5:" + "0" * 63,
            "5:" + "0" * 65,
            "5:" + "A" * 64,
            "5:" + "X" * 64,
            "5:5:" + "0" * 64,
            "5:" + "0" * 64 + "\n",
            5,
            b"5:" + b"0" * 64,
        ],
    )
    def test_no_heads(self, ledger: Ledger, head: Any) -> None:
        with pytest.raises(ss.InvalidInput, match="NUMBER:HASH"):
            ledger.verify(head=head)

    def test_heads(self) -> None:
        assert module._parse_head(None) is None
        for number in (0, 7, 10**18 - 1):
            assert module._parse_head(f"{number}:{'0f' * 32}") == (number, "0f" * 32)


def make() -> MemoryDatabase:
    made = MemoryDatabase()
    module._create(made, 10.0, 1e-6)
    return made


class TestExport:
    def test_json(self, ledger: Ledger, database: MemoryDatabase, tmp_path: Path) -> None:
        ledger.spend_all([pure(0.5), pure(1.0)], dataset="a", why="caf\u00e9")
        for name in ("x.json", "y.JSON"):
            ledger.export(str(tmp_path / name))
            content = {
                "ledger": json.loads((database.made or ("",))[0]),
                "entries": [entry.to_dict() for entry in ledger.entries()],
            }
            assert (tmp_path / name).read_bytes() == json.dumps(content, indent=1).encode() + b"\n"
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

    def test_csv(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Half a pair, which no database of ours gives, is escaped; a formula gets an apostrophe."""
        entry = Entry(1, 1, "charge", "now", "", None, "u", "=1", "\u00e9\ud800", "p", "g", "b", "h")
        monkeypatch.setattr(Ledger, "entries", lambda _: [entry])
        for name in ("x.csv", "y.CSV"):
            ledger.export(tmp_path / name)
            assert (tmp_path / name).read_bytes() == (
                b"id,format,kind,time,note,dataset,unit,who,why,profile,guarantee,previous,hash\n"
                b"1,1,charge,now,,,u,'=1,\xc3\xa9\\ud800,p,g,b,h\n"
            )
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

    def test_not_to(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("x.txt", "x", "csv"):
            with pytest.raises(ss.InvalidInput, match="is exported to a"):
                ledger.export(tmp_path / name)
        monkeypatch.setattr(MemoryDatabase, "is_at", lambda _, path: path == tmp_path / "x.csv")
        with pytest.raises(ss.InvalidInput, match="is the ledger itself"):
            ledger.export(str(tmp_path / "x.csv"))
        assert list(tmp_path.iterdir()) == []


class TestClockAndUser:
    def test_now(self) -> None:
        assert module._get_time().utcoffset() == timedelta(0)

    @pytest.mark.parametrize(
        ("ahead", "note"),
        [
            (-5.0, ""),
            (0.0, ""),
            (1e-6, "this clock stood 0.000001 s before that of the entry above"),
            (0.5, "this clock stood 0.500000 s before that of the entry above"),
            (90.0, "this clock stood 90.000000 s before that of the entry above"),
        ],
    )
    def test_stamp(self, monkeypatch: pytest.MonkeyPatch, ahead: float, note: str) -> None:
        now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        monkeypatch.setattr(module, "_get_time", lambda: now)
        time = "2026-01-02T03:04:05.000000+00:00"
        assert module._read_clock(None) == (time, "")
        above = Entry(1, 1, "", (now + timedelta(seconds=ahead)).isoformat(), "", None, "", "", "", "", "", "")
        assert module._read_clock(above) == (time, note)

    @pytest.mark.parametrize("error", [OSError, KeyError, ImportError])
    def test_unknown_user(self, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
        def getuser() -> str:
            raise error

        monkeypatch.setattr(getpass, "getuser", getuser)
        monkeypatch.setattr(socket, "gethostname", lambda: "host")
        assert module._name_user() == "unknown@host"

    def test_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(getpass, "getuser", lambda: "ann")
        monkeypatch.setattr(socket, "gethostname", lambda: "host")
        assert module._name_user() == "ann@host"
        monkeypatch.setattr(socket, "gethostname", lambda: "ho\nst")
        assert module._name_user() == "unknown"
