"""Entries of draws: their facts, their cost, and what ``verify`` finds in an edited series."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.draws import DrawCounts
from scoreshield.privacy.ledger.entries import Entry, write_canonical_json
from scoreshield.privacy.ledger.histories import HistoryAudit, find_later_draws, replay_draws
from scoreshield.privacy.profiles import PureProfile

ROWS = np.random.default_rng(6).normal(size=(3, 4))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> ss.Ledger:
    """A ledger with four versions of one index: a draw, a draw, a free draw and a draw."""
    made = ss.Ledger.create(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}", epsilon=100.0, delta=1e-6)
    account = made.account("records")
    index: Any = ss.release_index(ROWS, epsilon=2.0, changes="public", ids=["a", "b", "c"], ledger=account)
    for one in ("a", "b", "a"):
        index = index.update(changed={one: ROWS[0]}, ledger=account)
    ss.release_scores(ROWS, ROWS[0], epsilon=1.0, delta=1e-6, ledger=account)
    return made


def edit(entry: Entry, **facts: Any) -> Entry:
    content = json.loads(entry.guarantee)
    content["draws"] |= facts
    return dataclasses.replace(entry, guarantee=write_canonical_json(content)).seal()


def find_fault(entries: list[Entry]) -> str | None:
    audit = HistoryAudit()
    return next((fault for entry in entries if (fault := audit.add(entry)) is not None), None)


def test_the_series_as_it_was_written(ledger: ss.Ledger) -> None:
    assert [entry.kind for entry in ledger.entries()] == ["draw", "draw", "free-draw", "draw", "charge"]
    assert find_fault(ledger.entries()) is None
    assert ledger.verify()


@pytest.mark.parametrize(
    ("place", "facts", "fault"),
    [
        (0, {"largest": 2}, "states another number of draws"),
        (0, {"previous": "0" * 64}, "no entry has begun"),
        (1, {"previous": "0" * 64}, "does not continue the counts of its index"),
        (1, {"ids": [], "counts": []}, "does not continue the counts of its index"),
        (1, {"largest": 1}, "states another number of draws"),
        (2, {"largest": 3}, "states another number of draws"),
        (2, {"counts": [3]}, "does not cost"),
        (3, {"counts": [2]}, "does not cost"),
        (3, {"ids": ["b"]}, None),
        (3, {"ids": ["b", "a"], "counts": [2, 3]}, "does not continue the count of a record"),
        (3, {"ids": ["c"]}, "does not continue the count of a record"),
        (3, {"history": "another"}, "no entry has begun"),
        (2, {"counts": [2, 2]}, "cannot be read"),
        (2, {"counts": ["2"]}, "cannot be read"),
        (2, {"state": 3}, "cannot be read"),
        (2, {"more": 3}, "cannot be read"),
    ],
)
def test_an_edited_series(ledger: ss.Ledger, place: int, facts: dict[str, Any], fault: str | None) -> None:
    """An entry that was edited and hashed again does not continue the series."""
    entries = ledger.entries()
    entries[place] = edit(entries[place], **facts)
    found = find_fault(entries)
    assert found is None if fault is None else fault in str(found)


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("fact", ["scale", "grid", "mechanism", "epsilon_per_draw", "shrinkage", "profile"])
def test_a_draw_of_another_price(ledger: ss.Ledger, place: int, fact: str) -> None:
    """All draws of one index have the price of the first."""
    entries = ledger.entries()
    content = json.loads(entries[place].guarantee)
    where = content["promise"] if fact in content["promise"] else content["promise"]["details"]
    where[fact] = "codebook" if fact == "mechanism" else 100.0
    edited = dataclasses.replace(entries[place], guarantee=write_canonical_json(content))
    if fact == "profile":
        edited = dataclasses.replace(entries[place], profile=write_canonical_json(PureProfile(100.0).to_dict()))
    entries[place] = edited.seal()
    assert "another price" in str(find_fault(entries))


def test_a_promise_of_fewer_draws(ledger: ss.Ledger) -> None:
    entries = ledger.entries()
    content = json.loads(entries[3].guarantee)
    content["promise"]["details"]["largest_draws"] = 2
    entries[3] = dataclasses.replace(entries[3], guarantee=write_canonical_json(content)).seal()
    assert "states another number of draws" in str(find_fault(entries))


@pytest.mark.parametrize(("place", "kind"), [(1, "free-draw"), (2, "draw"), (0, "free-draw")])
def test_an_edited_kind(ledger: ss.Ledger, place: int, kind: str) -> None:
    """A draw that raised the largest count cannot be made free."""
    entries = ledger.entries()
    entries[place] = dataclasses.replace(entries[place], kind=kind).seal()
    assert find_fault(entries) is not None


def test_an_edit_in_the_database(tmp_path: Path) -> None:
    made = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100.0, delta=0.0)
    account = made.account("records")
    index: Any = ss.release_index(ROWS, epsilon=2.0, changes="public", ids=["a", "b", "c"], ledger=account)
    index.update(changed={"a": ROWS[0]}, ledger=account)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE scoreshield_entries SET kind = 'free-draw' WHERE id = 2")
    connection.close()
    assert not made.verify()
    with pytest.raises(LedgerError):
        index.update(changed={"b": ROWS[0]}, ledger=account)


def test_a_series_written_again(tmp_path: Path) -> None:
    """An attacker who rewrites an entry, the chain and the row of the ledger is found by the series itself."""
    made = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100.0, delta=0.0)
    account = made.account("records")
    index: Any = ss.release_index(ROWS, epsilon=2.0, changes="public", ids=["a", "b", "c"], ledger=account)
    index.update(changed={"a": ROWS[0]}, ledger=account)
    edited = dataclasses.replace(made.entries()[1], kind="free-draw").seal()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE scoreshield_entries SET kind = ?, hash = ? WHERE id = 2", (edited.kind, edited.hash))
        connection.execute("UPDATE scoreshield_ledger SET head = ?", (edited.hash,))
        connection.execute("DELETE FROM scoreshield_accounts")
    connection.close()
    found = made.verify()
    assert not found
    assert "does not cost what its draws cost" in found.reason


def test_replay(ledger: ss.Ledger) -> None:
    entries = ledger.entries()[3::-1]
    history = json.loads(entries[0].guarantee)["draws"]["history"]
    first = DrawCounts({"a": 1, "b": 1, "c": 1})
    later = find_later_draws(entries, history, first.compute_hash())
    assert dict(replay_draws(first, later).counts) == {"a": 3, "b": 2, "c": 1}
    with pytest.raises(InvalidInput, match="no charge"):
        find_later_draws(entries, history, "0" * 64)
    with pytest.raises(InvalidInput, match="no charge"):
        find_later_draws(entries, "0" * 32, first.compute_hash())
    with pytest.raises(LedgerError, match="altered"):
        replay_draws(first, later[1:])
    with pytest.raises(LedgerError, match="altered"):
        find_later_draws([dataclasses.replace(entries[0], guarantee="{}")], history, "0" * 64)


def test_too_many_rows_for_one_entry(ledger: ss.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    account = ledger.account("many")
    index: Any = ss.release_index(ROWS, epsilon=2.0, changes="public", ids=["a", "b", "c"], ledger=account)
    monkeypatch.setattr("scoreshield.privacy.ledger.histories.LONGEST_WRITTEN", 300)
    with pytest.raises(InvalidInput, match="split it"):
        index.update(changed={"a": ROWS[0]}, ledger=account)
    assert account.spent == 2.0


def test_on_postgres(postgres: str) -> None:
    """A server keeps the counts as a file does."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA histories")
    url = f"{postgres}&options=-csearch_path%3Dhistories"
    account = ss.Ledger.create(url, epsilon=100.0, delta=0.0).account("records")
    first: Any = ss.release_index(ROWS, epsilon=2.0, changes="public", ids=["a", "b", "c"], ledger=account)
    for one in ("a", "b", "a"):
        last = first.update(changed={one: ROWS[0]}, ledger=account)
    assert dict(last.counts.counts) == {"a": 3, "b": 2, "c": 1}
    assert account.spent == last.guarantee.epsilon == 6.0
    assert account.ledger.verify()
