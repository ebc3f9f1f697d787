"""Work in the transaction of a charge: it may forbid the charge, and its rows and the entry are written together."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_support import gaussian, pure

from scoreshield.errors import BudgetExceeded, LedgerError
from scoreshield.privacy.filters import PrivacyFilter
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import Entry

TABLE = "scoreshield_service_notes"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=3.0, delta=0.0)
    ledger.write_beside(lambda session: session.execute(f"CREATE TABLE {TABLE} (hash TEXT PRIMARY KEY)"))
    return ledger


def note(session: Session, entries: list[Entry]) -> None:
    for entry in entries:
        session.execute(f"INSERT INTO {TABLE} (hash) VALUES (?)", (entry.hash,))


def read_notes(ledger: Ledger) -> list[str]:
    return ledger.read_beside(lambda session: [row[0] for row in session.execute(f"SELECT hash FROM {TABLE}")])


def test_row_and_entry_are_written_together(ledger: Ledger) -> None:
    entries = ledger.reserve([pure(1.0), pure(0.5)], dataset="a").commit(record=note)
    assert sorted(read_notes(ledger)) == sorted(entry.hash for entry in entries)
    assert ledger.spent == 1.5
    assert ledger.verify()


def test_veto_and_failed_record_charge_nothing(ledger: Ledger) -> None:
    """An error of the check or of the record rolls everything back, and passes through as it is."""

    class Veto(Exception):
        pass

    def forbid(session: Session) -> None:
        session.execute(f"INSERT INTO {TABLE} (hash) VALUES ('x')")
        raise Veto

    def fail(session: Session, entries: list[Entry]) -> None:
        note(session, entries)
        raise Veto

    for hooks in ({"check": forbid}, {"record": fail}):
        with pytest.raises(Veto):
            ledger.reserve([pure(1.0)], dataset="a").commit(**hooks)  # type: ignore[arg-type]
    assert (ledger.spent, read_notes(ledger), ledger.entries()) == (0.0, [], [])


def test_budget_error_rolls_check_back(ledger: Ledger) -> None:
    """A charge that does not fit leaves nothing of the check behind, and the record does not run."""

    def write(session: Session) -> None:
        session.execute(f"INSERT INTO {TABLE} (hash) VALUES ('x')")

    with pytest.raises(BudgetExceeded):
        ledger.reserve([pure(4.0)], dataset="a", check=False).commit(check=write, record=note)
    assert read_notes(ledger) == []


def test_sql_error_of_a_record_is_a_ledger_error(ledger: Ledger) -> None:
    def fail(session: Session, entries: list[Entry]) -> None:
        del entries
        session.execute("INSERT INTO nothing VALUES (1)")

    with pytest.raises(LedgerError):
        ledger.reserve([pure(1.0)], dataset="a").commit(record=fail)
    assert ledger.spent == 0.0


@pytest.mark.parametrize(("limit", "delta"), [(3.0, 0.0), (3.0, 1e-6), (10.0, 1e-6)])
@pytest.mark.parametrize("promise", [pure(0.5), pure(0.1), gaussian(0.2), pure(2.0), pure(11.0)])
def test_count_is_what_really_fits(limit: float, delta: float, promise: object) -> None:
    """The count is the number of charges that the filter then accepts, one after another."""
    counted = PrivacyFilter(limit, delta).count_fitting(promise, 10_000)
    budget, really = PrivacyFilter(limit, delta), 0
    while really < 10_000 and budget.would_fit(promise):
        budget.spend(promise)
        really += 1
    assert counted == really
    assert PrivacyFilter(limit, delta).count_fitting(promise, 2) == min(2, really)


def test_count_after_charges(ledger: Ledger) -> None:
    account = ledger.account("a")
    assert account.count_fitting(pure(0.5)) == 6
    account.spend(pure(0.7))
    assert account.count_fitting(pure(0.5)) == 4
    assert ledger.count_fitting(pure(0.5), dataset="b") == 6
    assert len(ledger.id) == 32
