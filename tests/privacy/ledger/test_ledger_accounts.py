"""The sums that a ledger keeps for each account: exact, checked, constant in cost, and no way to hide a charge."""

from __future__ import annotations

import itertools
import math
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_support import Promise, gaussian, pure

import scoreshield as ss
from scoreshield.errors import LedgerError
from scoreshield.privacy import filters
from scoreshield.privacy.filters import PrivacyFilter, Sums, compute_cost
from scoreshield.privacy.ledger import Ledger, database
from scoreshield.privacy.ledger import books as ledger_books
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger.create(url, epsilon=10.0, delta=1e-6)


def execute(url: str, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


PROFILES: list[Profile] = [
    GaussianProfile(0.1),
    GaussianProfile(0.3),
    PureProfile(0.1),
    PureProfile(1 / 3),
    LaplaceProfile(0.7),
    StepProfile(0.9, 0.4),
    CurveProfile((0.0, 0.1, 0.3), (0.02, 0.01, 0.0)),
    CurveProfile((0.0, 0.4), (0.1, 1e-12)),
]


class TestSums:
    def test_they_are_exact_and_have_no_order(self) -> None:
        charges = PROFILES * 7
        costs = [compute_cost(profile, 10.0, 1e-6) for profile in charges]
        for seed in range(5):
            random.Random(seed).shuffle(costs)
            total = Sums()
            for cost in costs:
                total += cost
            assert total.pure == math.inf, "Gaussian noise is not pure"
            assert total == PrivacyFilter.from_charges(10.0, 1e-6, Counter(charges))._sums
            assert Sums.from_dict(total.to_dict()) == total
        only_pure = PrivacyFilter.from_charges(10.0, 0.0, {PureProfile(0.1): 3, PureProfile(0.2): 1})._sums
        assert only_pure.pure == 3 * Fraction(0.1) + Fraction(0.2)

    @pytest.mark.parametrize(
        "text", ["", "p", "1", "1p", "1p-2", "1p9999", "gp1", "inff", "nan", "1p" + "1" * 5000, "f" * 2000 + "p1"]
    )
    def test_what_is_no_number_is_rejected(self, text: str) -> None:
        with pytest.raises(ValueError):  # noqa: PT011
            filters._from_text(text)

    @settings(max_examples=60)
    @given(
        st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(1, 40)), min_size=1, max_size=6),
        st.sampled_from([(10.0, 1e-6), (2.0, 1e-5), (30.0, 1e-9)]),
    )
    def test_two_books_rules_agree_not_hair_apart(
        self, charged: list[tuple[Profile, int]], budget: tuple[float, float]
    ) -> None:
        """Book 1 as it was written down before there were sums: products rounded, then added up."""
        counts: Counter[Profile] = Counter()
        for profile, number in charged:
            counts[profile] += number
        now = PrivacyFilter.from_charges(*budget, counts)
        old = now._add_up_by_rules_1(counts)
        new = filters._RoundedSums.from_sums(now._sums)
        for one, other in zip(
            (old.pure, old.squared_mu, old.residual, *old.moments),
            (new.pure, new.squared_mu, new.residual, *new.moments),
            strict=True,
        ):
            assert one == other or math.isclose(one, other, rel_tol=2.0**-51)
        for profile in PROFILES:
            by_hand = now._fits(now._add_up_by_rules_1(counts + Counter([profile])), profile)
            assert now.would_fit_by_rules_1(profile, lambda: counts) == by_hand

    def test_hair_apart_first_book_decides_ledger(self) -> None:
        """Epsilons whose rounded products add up to the limit, and whose exact sum is a little more, or less."""
        seen = set()
        for first, second in itertools.product(range(1, 60), repeat=2):
            charged = {PureProfile(0.1): first, PureProfile(0.7): second}
            exact = first * Fraction(0.1) + second * Fraction(0.7)
            rounded = math.fsum([first * 0.1, second * 0.7])
            if rounded == float(exact):
                continue
            limit = min(rounded, float(exact))
            budget = PrivacyFilter.from_charges(limit, 0.0, charged)
            assert budget.is_within_limit() == (float(exact) <= limit)
            assert budget.is_within_limit_by_rules_1(charged) == (rounded <= limit)
            assert budget.is_within_limit() != budget.is_within_limit_by_rules_1(charged)
            before = PrivacyFilter.from_charges(limit, 0.0, {PureProfile(0.1): first, PureProfile(0.7): second - 1})
            kept = {PureProfile(0.1): first, PureProfile(0.7): second - 1}
            assert before.would_fit_by_rules_1(PureProfile(0.7), lambda kept=kept: kept) == (rounded <= limit)
            seen.add(rounded <= limit)
        assert seen == {True, False}, "both ways"


class TestConstantCost:
    @pytest.mark.parametrize("distinct", [False, True])
    def test_charge_spent_room_take_same_steps(self, url: str, distinct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Counted in instructions of SQLite's machine, which no busy processor changes."""
        ledger = Ledger.create(url, epsilon=1e5, delta=1e-6)
        place = itertools.count()
        connect, steps, statements = sqlite3.connect, [0], []

        def charges(number: int) -> list[Promise]:
            return [gaussian(0.001 + 1e-9 * next(place) * distinct) for _ in range(number)]

        def counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = connect(*args, **kwargs)

            def step() -> int:
                steps[0] += 1
                return 0

            connection.set_progress_handler(step, 1)
            connection.set_trace_callback(statements.append)
            return connection

        def cost(work: Callable[[], object]) -> int:
            with monkeypatch.context() as patch:
                patch.setattr(sqlite3, "connect", counted)
                steps[0] = 0
                work()
            return steps[0]

        def costs() -> list[int]:
            account = ledger.account("a")
            return [
                cost(lambda: account.spend(charges(1)[0])),
                cost(lambda: account.spent),
                cost(lambda: account.headroom),
                cost(lambda: account.reserve(charges(1))),
                cost(lambda: ledger.spent),
                cost(lambda: ledger.entry(last.hash)),
                cost(lambda: ledger.entry("of no entry")),
            ]

        for name in ("a", "b"):
            last = ledger.spend_all(charges(30), dataset=name)[-1]
        assert (ledger.entry(last.hash), ledger.entry("of no entry")) == (last, None)
        few = costs()
        statements.clear()
        for name in ("a", "b"):
            ledger.spend_all(charges(3000), dataset=name)
        many = costs()
        print(f"\n{few} {many}")
        for one, other in zip(few, many, strict=True):
            assert other <= one * 1.25 + 50
        assert not [statement for statement in statements if "COUNT" in statement], (
            "one step of that machine counts all"
        )
        assert cost(ledger.entries) > 6000, "what reads all entries would be seen"
        ledger.verify()
        cost(ledger.verify)
        assert [statement for statement in statements if "COUNT" in statement]

    def test_a_batch_writes_what_single_charges_write(self, tmp_path: Path) -> None:
        one, many = (Ledger.create(f"sqlite:///{tmp_path}/{name}.db", epsilon=10.0, delta=1e-6) for name in "ab")
        for profile in PROFILES:
            one.spend(Promise(profile), dataset="d")
        many.spend_all([Promise(profile) for profile in PROFILES], dataset="d")
        rows = [execute(book.name, "SELECT dataset, last, sums FROM scoreshield_accounts") for book in (one, many)]
        assert rows[0] == rows[1]
        assert one.spent == many.spent


def fill(ledger: Ledger) -> None:
    for value in (0.5, 0.6, 0.7):
        ledger.spend(pure(value), dataset="a", who="ada", why="x")
        ledger.spend(gaussian(value / 4), dataset="b", who="ada")
    ledger.spend(pure(0.1), who="ada")


class TestTampering:
    def test_every_edit_every_value_database_seen(self, url: str, ledger: Ledger) -> None:
        """Each value of each row of each table, changed in several ways: verify says so, or the ledger raises."""
        fill(ledger)
        path = Path(url.removeprefix("sqlite:///"))
        whole, edits = path.read_bytes(), 0
        for table in ("scoreshield_ledger", "scoreshield_entries", "scoreshield_accounts"):
            columns = [row[1] for row in execute(url, f"PRAGMA table_info({table})")]
            for rowid, *values in execute(url, f"SELECT rowid, * FROM {table}"):
                for column, value in zip(columns, values, strict=True):
                    for other in set(changes(value)) - {value}:
                        path.write_bytes(whole)
                        try:
                            execute(url, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", other, rowid)
                        except sqlite3.IntegrityError:
                            continue
                        edits += 1
                        assert is_seen(url), (table, rowid, column, value, other)
                path.write_bytes(whole)
                execute(url, f"DELETE FROM {table} WHERE rowid = ?", rowid)
                if table != "scoreshield_accounts":  # a row of sums that is gone is made again from the entries
                    edits += 1
                    assert is_seen(url), (table, rowid)
        path.write_bytes(whole)
        assert Ledger.open(url).verify()
        print(f"\n{edits} edits")
        assert edits > 400

    @pytest.mark.parametrize("name", ["a", "b", ""])
    def test_a_lowered_sum_stops_the_next_charge(self, url: str, ledger: Ledger, name: str) -> None:
        fill(ledger)
        text = execute(url, "SELECT sums FROM scoreshield_accounts WHERE dataset = ?", name)[0][0]
        balance = ledger_books.Balance.from_text(1, text)
        lower = ledger_books.Balance(1, compute_cost(PureProfile(0.001), 10.0, 1e-6), balance.unit).to_text()
        execute(url, "UPDATE scoreshield_accounts SET sums = ? WHERE dataset = ?", lower, name)
        for use in (lambda: ledger.spend(pure(0.1), dataset=name or "c"), lambda: ledger.spent_on(name or None)):
            with pytest.raises(LedgerError, match="has been altered"):
                use()
        assert "saved sums" in ledger.verify().reason

    def test_whoever_has_the_key_is_seen_by_verify(self, url: str, ledger: Ledger) -> None:
        """The next charge believes a sum with a good seal: who can write the database can read the key."""
        fill(ledger)
        last, entry = execute(url, "SELECT MAX(id), hash FROM scoreshield_entries WHERE dataset = 'a'")[0]
        balance = ledger_books.Balance(last, compute_cost(PureProfile(0.001), 10.0, 1e-6), "replacement")
        books = ledger_books.Books.__new__(ledger_books.Books)
        books._key = ledger._key
        seal = books.seal("a", last, entry, balance.to_text())
        statement = "UPDATE scoreshield_accounts SET sums = ?, seal = ? WHERE dataset = 'a'"
        execute(url, statement, balance.to_text(), seal)
        ledger.spend(pure(0.1), dataset="a")
        found = ledger.verify()
        assert found.reason == "The saved sums for 'a' differ from those of the entries."

    def test_a_row_of_the_past_changes_nothing(self, url: str, ledger: Ledger) -> None:
        ledger.spend(pure(4.0), dataset="a")
        (old,) = execute(url, "SELECT * FROM scoreshield_accounts")
        ledger.spend(pure(5.0), dataset="a")
        execute(url, "UPDATE scoreshield_accounts SET last = ?, sums = ?, seal = ?", *old[1:])
        assert ledger.spent_on("a") == 9.0
        with pytest.raises(ss.BudgetExceeded):
            ledger.spend(pure(1.5), dataset="a")
        ledger.spend(pure(1.0), dataset="a")
        assert ledger.verify()
        execute(url, "DELETE FROM scoreshield_accounts")
        assert ledger.spent_on("a") == 10.0
        with pytest.raises(ss.BudgetExceeded):
            ledger.spend(pure(0.1), dataset="a")

    def test_an_entry_and_its_sums_taken_out_together(self, url: str, ledger: Ledger) -> None:
        for value in (1.0, 8.0, 0.5):
            ledger.spend(pure(value), dataset="a")
        for _ in range(40):
            ledger.spend(pure(0.01), dataset="b")
        execute(url, "DELETE FROM scoreshield_entries WHERE id = 2")
        execute(url, "DELETE FROM scoreshield_accounts WHERE dataset = 'a'")
        for use in (lambda: ledger.spend(pure(5.0), dataset="a"), lambda: ledger.spent_on("a")):
            with pytest.raises(LedgerError, match="has been altered"):
                use()
        assert ledger.verify().first_bad == 3

    def test_an_index_that_hides_entries_is_seen(self, url: str, ledger: Ledger) -> None:
        """A charge finds the last entry of its account by an index, so verify looks at the index itself."""
        ledger.spend(pure(4.0), dataset="a")
        (old,) = execute(url, "SELECT * FROM scoreshield_accounts")
        ledger.spend(pure(5.0), dataset="a")
        name = "scoreshield_entries_by_dataset"
        ((statement,),) = execute(url, "SELECT sql FROM sqlite_master WHERE name = ?", name)
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"DROP INDEX {name}")
        connection.execute(f"CREATE INDEX {name} ON scoreshield_entries (dataset, id) WHERE id < 2")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (statement, name))
        connection.execute("UPDATE scoreshield_accounts SET last = ?, sums = ?, seal = ?", old[1:])
        connection.close()
        assert ledger.verify().reason.startswith("The database is damaged or was altered: 'row 2 missing from index")

    @pytest.mark.parametrize("name", [None, b""])
    def test_row_no_charge_reads_hides_no_other(self, url: str, ledger: Ledger, name: object) -> None:
        """'' stands for charges without a dataset; NULL and an empty blob were taken for it by verify alone."""
        fill(ledger)
        ((last, sums, seal),) = execute(url, "SELECT last, sums, seal FROM scoreshield_accounts WHERE dataset = ''")
        execute(url, "INSERT INTO scoreshield_accounts VALUES (?, ?, ?, ?)", name, last, sums, seal)
        assert ledger.verify().reason == f"There are sums for {name!r}, which is not the name of an account."
        execute(url, "UPDATE scoreshield_accounts SET sums = sums || ' ' WHERE dataset = ''")
        assert "saved sums for charges without a dataset" in ledger.verify().reason

    @pytest.mark.parametrize("time", ["some day", "2026-01-01T00:00:00", ""])
    def test_time_none_named_stops_charge(self, url: str, ledger: Ledger, time: str) -> None:
        """In an entry that was written anew, with its hash."""
        fill(ledger)
        forged = replace(ledger.entries()[-1], time=time).seal()
        execute(url, "UPDATE scoreshield_entries SET time = ?, hash = ? WHERE id = ?", time, forged.hash, forged.id)
        execute(url, "UPDATE scoreshield_ledger SET head = ?", forged.hash)
        execute(url, "DELETE FROM scoreshield_accounts")
        assert ledger.verify().reason == f"Entry {forged.id} holds a time that cannot be read."
        with pytest.raises(LedgerError, match="has been altered"):
            ledger.spend(pure(0.1), dataset="a")

    def test_entry_cannot_hashed_no_hash(self, url: str, ledger: Ledger) -> None:
        """An entry that cannot be hashed has no hash."""
        fill(ledger)
        execute(url, "UPDATE scoreshield_entries SET why = ?, hash = '' WHERE id = 7", b"no text")
        execute(url, "UPDATE scoreshield_ledger SET head = ''")
        execute(url, "DELETE FROM scoreshield_accounts")
        assert ledger.verify().reason == "Entry 7 was changed after it was written."
        with pytest.raises(LedgerError, match="has been altered"):
            ledger.spend(pure(0.1), dataset="a")

    def test_another_ledger_same_place_not_read(self, url: str, ledger: Ledger) -> None:
        """Another ledger in the same place is not read as this one."""
        ledger.spend(pure(9.0), dataset="a")
        Path(url.removeprefix("sqlite:///")).unlink()
        Ledger.create(url, epsilon=10.0, delta=1e-6)
        for use in (
            lambda: ledger.spent,
            lambda: ledger.headroom,
            ledger.datasets,
            lambda: ledger.reserve([pure(1.0)]),
        ):
            with pytest.raises(LedgerError, match="is not the one that was opened"):
                use()


def changes(value: object) -> list[object]:
    if value is None:
        return ["a"]
    if isinstance(value, int):
        return [value + 1, value - 1, -value - 1, "x"]
    text = str(value)
    half = len(text) // 2
    return [
        text + "0",
        text[1:],
        text[:half] + chr(ord(text[half : half + 1] or "0") ^ 1) + text[half + 1 :],
        "",
        b"\xff",
    ]


def is_seen(url: str) -> bool:
    try:
        return not Ledger.open(url).verify()
    except LedgerError as error:
        return "\n" not in str(error)


FOREIGN = {
    "a trigger": "CREATE TRIGGER cut AFTER INSERT ON scoreshield_entries BEGIN DELETE FROM scoreshield_entries; END",
    "a view": "CREATE VIEW entries AS SELECT * FROM scoreshield_entries",
    "a table": "CREATE TABLE notes (text TEXT)",
    "an index": "CREATE INDEX mine ON scoreshield_entries (who)",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_no_ledger_has_stops_a_charge(url: str, ledger: Ledger, what: str) -> None:
    ledger.spend(pure(1.0), dataset="a")
    execute(url, FOREIGN[what])
    for use in (lambda: ledger.spend(pure(1.0), dataset="a"), lambda: ledger.spent, lambda: Ledger.open(url)):
        with pytest.raises(LedgerError, match=r"holds the .*, which no ledger has.* could change what is charged"):
            use()
    assert execute(url, "SELECT COUNT(*) FROM scoreshield_entries") == [(1,)]


def test_table_ours_more_stops_charge(url: str, ledger: Ledger) -> None:
    """A table of ours with more in it stops a charge."""
    execute(url, "ALTER TABLE scoreshield_accounts ADD COLUMN more TEXT")
    with pytest.raises(LedgerError, match="holds the table scoreshield_accounts, which no ledger has"):
        ledger.spend(pure(1.0), dataset="a")


@pytest.mark.parametrize("step", ["append", "advance", "write_account"])
def test_written_read_back_before_commit(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """What was written is read back before the commit."""
    ledger.spend(pure(1.0), dataset="a")
    with monkeypatch.context() as patch:
        patch.setattr(database.Session, step, lambda *_: None)
        with pytest.raises(LedgerError, match="does not keep what is written to it; nothing was charged"):
            ledger.spend(pure(1.0), dataset="a")
    assert ledger.spent == 1.0
    assert ledger.verify()


def test_entries_earlier_version_added_sums(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the chain and not the table of sums."""
    ledger.spend(pure(1.0), dataset="a")
    with monkeypatch.context() as patch:
        patch.setattr(ledger_books.Books, "write_row", lambda *_: None)
        for name in ("a", "b", None, "a"):
            ledger.spend(pure(2.0), dataset=name)
    assert (ledger.spent_on("a"), ledger.spent_on("b"), ledger.spent_on("c")) == (7.0, 4.0, 2.0)
    assert ledger.datasets() == ["a", "b"]
    assert ledger.verify()
    with pytest.raises(ss.BudgetExceeded):
        ledger.spend(pure(3.5), dataset="a")
    ledger.spend(pure(3.0), dataset="a")
    assert ledger.verify()


@pytest.mark.parametrize("rules", [1, 2])
@pytest.mark.parametrize("over", ["a", "b"])
@pytest.mark.parametrize("how", ["own", "unnamed"])
def test_one_overdrawn_dataset_of_two_is_noticed(
    url: str, monkeypatch: pytest.MonkeyPatch, over: str, rules: int, how: str
) -> None:
    """Whichever it is, whether it was overdrawn by its own charges or by one to all that the other can bear."""
    monkeypatch.setattr("scoreshield.privacy.ledger.accounts.RULES", rules)
    ledger = Ledger.create(url, epsilon=10.0, delta=1e-6)
    monkeypatch.setattr("scoreshield.privacy.ledger.accounts.RULES", 2)
    other = "b" if over == "a" else "a"
    ledger.spend(pure(9.0), dataset=over)
    ledger.spend(pure(2.0), dataset=other)
    ledger.spend(pure(1.0), dataset=over)
    assert ledger.verify(), "exactly full"
    with monkeypatch.context() as patch:
        patch.setattr(ledger_books.Books, "fits", lambda *_: True)
        ledger.spend(pure(0.001), dataset=over if how == "own" else None)
    assert ledger.spent_on(other) < 3
    assert ledger.verify().reason == f"The entries add up to more than the limit for '{over}'."
    assert Ledger.open(url).verify().reason == ledger.verify().reason
    with pytest.raises(ss.BudgetExceeded):
        ledger.spend(pure(0.001), dataset=over)
    with pytest.raises(ss.BudgetExceeded):
        ledger.spend(pure(0.001))
    ledger.spend(pure(0.001), dataset=other)


class TestMixedRuns:
    """An adversary who mixes pure and Gaussian charges gets no more than the rule for both kinds gives."""

    BUDGET = (6.0, 1e-6)

    def fits(self, charged: list[Profile]) -> bool:
        """The rules of docs/accounting.md, written down anew, each sum rounded once."""
        epsilon, delta = self.BUDGET
        limits = filters._compute_limits(epsilon, delta)
        costs = [compute_cost(profile, epsilon, delta) for profile in charged]
        kinds = {cost.gaussians for cost in costs}
        if len(charged) == 1 and charged[0].delta_at(epsilon) <= delta:
            return True
        if kinds == {0} and float(sum(cost.pure for cost in costs)) <= epsilon:
            return True
        if kinds == {1}:
            return float(sum(cost.squared_mu for cost in costs)) <= limits.squared_mu
        caps = limits.mixed_caps if kinds == {0, 1} else limits.caps
        sums = [float(sum(cost.moments[k] for cost in costs)) for k in range(len(caps))]
        residual = float(sum(cost.residual for cost in costs))
        return residual <= 0.001 * delta and any(s <= cap for s, cap in zip(sums, caps, strict=True))

    @pytest.mark.parametrize("seed", range(6))
    def test_whatever_the_order_and_the_mix(self, tmp_path: Path, seed: int) -> None:
        ledger = Ledger.create(f"sqlite:///{tmp_path}/l.db", epsilon=self.BUDGET[0], delta=self.BUDGET[1])
        account, chance, charged = ledger.account("a"), random.Random(seed), []
        budget = PrivacyFilter(*self.BUDGET)
        refused = 0
        for _ in range(60):
            room = account.headroom
            shrink = chance.choice((0.05, 0.3, 0.999, 1.0, 1.000001, 1.01, 1.5))
            kind = chance.choice(("pure", "laplace", "gaussian"))
            profile: Profile
            if kind == "gaussian":
                profile = GaussianProfile(max(room.mu, 1e-4) * shrink * chance.choice((0.3, 1.0)))
            else:
                value = max(room.pure, 1e-4) * shrink * chance.choice((0.3, 1.0))
                profile = PureProfile(value) if kind == "pure" else LaplaceProfile(value)
            expected = self.fits([*charged, profile])
            assert budget.would_fit(profile) == expected
            if expected:
                account.spend(Promise(profile))
                budget.spend(profile)
                charged.append(profile)
            else:
                refused += 1
                with pytest.raises(ss.BudgetExceeded):
                    account.spend(Promise(profile))
        assert refused > 5
        assert len(charged) > 1
        assert account.spent <= self.BUDGET[0]
        assert ledger.verify()
        assert ss.compose(charged).delta_at(self.BUDGET[0]) <= self.BUDGET[1] * (1 + 1e-6) + 2e-10

    def test_near_misses(self) -> None:
        """What would pass if a mixed run were judged by the rule for one kind, or each kind by itself."""
        epsilon, delta = self.BUDGET
        mu = filters._compute_limits(epsilon, delta).squared_mu ** 0.5
        gaussian_run = PrivacyFilter.from_charges(epsilon, delta, {GaussianProfile(mu * (1 - 1e-9)): 1})
        assert gaussian_run.is_within_limit()
        for extra in (PureProfile(0.01), PureProfile(3.0), LaplaceProfile(0.5)):
            assert not gaussian_run.would_fit(extra), "the Gaussian rule is for Gaussian noise alone"
        pure_run = PrivacyFilter.from_charges(epsilon, delta, {PureProfile(epsilon / 4): 4})
        assert pure_run.is_within_limit()
        for extra in (GaussianProfile(0.05), GaussianProfile(mu / 2)):
            assert not pure_run.would_fit(extra), "the pure rule is for runs without Gaussian noise"
        cap = filters._compute_limits(epsilon, delta)
        assert all(mixed < one for mixed, one in zip(cap.mixed_caps, cap.caps, strict=True))
        number = next(
            n
            for n in range(400, 0, -1)
            if PrivacyFilter.from_charges(epsilon, delta, {PureProfile(0.1): n}).is_within_limit()
        )
        assert 400 > number > 60, "by moments, more than the epsilons add up to"
        last = PrivacyFilter.from_charges(epsilon, delta, {PureProfile(0.1): number, GaussianProfile(1e-3): 1})
        assert not last.is_within_limit(), "one Gaussian charge makes it a mixed run, which has a hundredth of delta"


def test_numbers_none_end_sentence(url: str, ledger: Ledger) -> None:
    """Numbers that are none end in one sentence."""
    fill(ledger)
    path = Path(url.removeprefix("sqlite:///"))
    whole = path.read_bytes()
    bad = [
        "NaN",
        "Infinity",
        "[" * 100_000,
        "1" * 10_000,
        '{"kind":"pure","epsilon":NaN}',
        '{"kind":"gaussian","mu":1e999}',
    ]
    places = [("scoreshield_ledger", "facts"), ("scoreshield_entries", "profile"), ("scoreshield_entries", "guarantee")]
    places += [("scoreshield_accounts", "sums"), ("scoreshield_accounts", "seal")]
    places += [("scoreshield_entries", "format"), ("scoreshield_entries", "kind")]
    for (table, column), value in itertools.product(places, [*bad, b"\xff\xfe"]):
        path.write_bytes(whole)
        execute(url, f"UPDATE {table} SET {column} = ?", value)
        for use in (
            lambda book: book.verify().reason,
            lambda book: book.spent,
            lambda book: book.spend(pure(0.1)),
        ):
            try:
                result = use(Ledger.open(url))
            except LedgerError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert len(str(error)) < 400  # noqa: PT017
            else:
                assert result, (table, column, value[:20])
        try:
            [entry.to_dict() for entry in Ledger.open(url).entries()]
        except LedgerError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_labels_many_records_hashed_no_time() -> None:
    """Labels of many records are hashed in no time."""
    from scoreshield.privacy.ledger.units import _hash_labels

    assert len(_hash_labels(np.arange(10**6) // 3, b"key")) == 64


def test_a_pending_charge_is_committed_once(ledger: Ledger) -> None:
    account = ledger.account("people")
    pending = account.reserve([pure(1.0)])
    assert len(pending.commit()) == 1
    for _ in range(2):
        with pytest.raises(LedgerError, match="committed before, or failed"):
            pending.commit()
    assert len(list(ledger.entries())) == 1


def test_a_commit_that_failed_is_not_repeated(ledger: Ledger) -> None:
    account = ledger.account("people")
    first, second = account.reserve([pure(6.0)]), account.reserve([pure(6.0)])
    first.commit()
    with pytest.raises(ss.BudgetExceeded):
        second.commit()
    with pytest.raises(LedgerError, match="committed before, or failed"):
        second.commit()
    assert len(list(ledger.entries())) == 1
