"""Every release charges an account before a random bit is drawn, and draws nothing that was not charged."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import cli
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.provenance import Provenance
from scoreshield.privacy.sampling.stream import SecureStream, Words

RELEASES: dict[str, Callable[..., Any]] = {
    "gaussian": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, delta=1e-6, **k),
    "laplace": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, mechanism="laplace", **k),
    "staircase": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, mechanism="staircase", **k),
    "optimal": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, mechanism="optimal", **k),
    "levels": lambda rows, q, **k: ss.release_scores(
        rows, q, epsilon=1, mechanism=ss.randomised_response(1, [0.1, 0.4]), **k
    ),
    "auto": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, mechanism="auto", **k),
    "batch": lambda rows, q, **k: ss.release_scores(rows, np.stack([q, -q[::-1]]), epsilon=1, delta=1e-6, **k),
    "centroids": lambda rows, q, **k: ss.release_scores(
        rows, q, epsilon=1, mechanism="laplace", adjacency=ss.Identity(np.arange(40) // 4, centroids=True), **k
    ),
    "row": lambda rows, _, **k: ss.release_row(rows, 0, epsilon=1, delta=1e-6, **k),
    "gram": lambda rows, _, **k: ss.release_gram(rows, epsilon=1, delta=1e-6, projection="none", **k),
    "matches": lambda rows, q, **k: ss.release_matches(rows, q, 0.1, epsilon=1, **k),
    "refined": lambda rows, q, **k: ss.release_matches(rows, q, 0.1, epsilon=1, refine=0.5, **k),
    "top-k": lambda rows, q, **k: ss.release_top_k(rows, q, 2, epsilon=1, **k),
    "gumbel": lambda rows, q, **k: ss.release_top_k(rows, q, 2, epsilon=1, mechanism="gumbel", **k),
    "names": lambda rows, q, **k: ss.release_batch(rows, np.stack([q, -q]), epsilon=1, k=2, **k),
    "histogram": lambda rows, q, **k: ss.release_histogram(rows, q, epsilon=1, **k),
    "pairs": lambda rows, _, **k: ss.release_histogram(rows, None, epsilon=1, delta=1e-6, mechanism="gaussian", **k),
    "index": lambda rows, _, **k: ss.release_index(rows, epsilon=1, **k),
    "random index": lambda rows, _, **k: ss.release_index(rows, epsilon=1, components=4, **k),
    "gaussian index": lambda rows, _, **k: ss.release_index(rows, epsilon=1, delta=1e-6, mechanism="gaussian", **k),
    "pca index": lambda rows, _, **k: ss.release_index(rows, epsilon=1, delta=1e-6, components=3, reduction="pca", **k),
}


class Book:
    """An account that writes down what happens, in order; it can fail at either step."""

    dataset = "faces"

    def __init__(self, order: list[str], fails: str = "") -> None:
        self.order, self.fails = order, fails
        self.asked: list[Any] = []

    def reserve(self, guarantees: Any, *, adjacency: ss.Adjacency, same_people: bool = False) -> Book:
        assert isinstance(adjacency, ss.Adjacency)
        assert same_people in (True, False)
        self.asked += guarantees
        return self._step("reserve")

    def commit(self) -> list[Any]:
        self._step("commit")
        return []

    def _step(self, name: str) -> Book:
        self.order.append(name)
        if self.fails == name:
            raise ss.LedgerError("the disk is full")
        return self


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a release does, in order: the two steps of the payment, clean scores, keys and words of the stream."""
    happened: list[str] = []

    def watch(owner: Any, name: str, what: str) -> None:
        real = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            happened.append(what)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(SecureStream, "words", "draw")
    watch(os, "urandom", "draw")
    clean = (
        "compute_scores",
        "compute_row_scores",
        "compute_upper_gram",
        "normalise_rows",
        "compute_centroids",
        "check_finite",
    )
    for name in clean:
        watch(_embeddings, name, "clean")
    return happened


@pytest.mark.parametrize("name", RELEASES)
def test_reserve_clean_values_commit_noise(
    name: str, order: list[str], collection: np.ndarray, query: np.ndarray
) -> None:
    """Reserve then clean values then commit then noise."""
    book = Book(order)
    release = RELEASES[name](collection, query, ledger=book)
    assert book.asked == [release.guarantee]
    before, after = order[: order.index("commit")], order[order.index("commit") :]
    assert order.count("reserve") == order.count("commit") == 1
    assert "draw" not in before
    assert "draw" in after
    assert "clean" in before[before.index("reserve") :]
    if "index" not in name:  # whose vectors are the release
        assert "clean" not in after
    for fails in ("reserve", "commit"):
        order.clear()
        with pytest.raises(ss.LedgerError, match="the disk is full"):
            RELEASES[name](collection, query, ledger=Book(order, fails))
        assert "draw" not in order
        assert order[-1] == fails


@pytest.fixture
def ledger(tmp_path: Path) -> ss.Ledger:
    return ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=1.2, delta=1e-5)


@pytest.mark.parametrize("name", RELEASES)
def test_release_charged_once_not_fit_not_drawn(
    name: str, ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release is charged once and what does not fit is not drawn."""
    account = ledger.account("faces")
    release = RELEASES[name](collection, query, ledger=account)
    (entry,) = ledger.entries()
    assert json.loads(entry.guarantee) == release.guarantee.drop_provenance().to_dict()
    assert release.guarantee.provenance == Provenance(dataset="faces", entry=f"1:{entry.hash}")
    assert 0 < ledger.spent <= 1.0 + 1e-9
    drawn: list[int] = []
    words = SecureStream.words

    def watched(self: SecureStream, count: int, *room: Words) -> Words:
        drawn.append(count)
        return words(self, count, *room)

    monkeypatch.setattr(SecureStream, "words", watched)
    with pytest.raises(ss.BudgetExceeded) as caught:
        RELEASES[name](collection, query, ledger=account)
    assert drawn == []
    assert caught.value.limit == 1.2
    assert caught.value.asked == pytest.approx(1, rel=0.3)
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("name", RELEASES)
def test_research_mode_wrong_ledgers_refused(
    name: str, ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray
) -> None:
    """Research mode and wrong ledgers are refused."""
    with pytest.raises(ss.InvalidInput, match="research"):
        RELEASES[name](collection, query, ledger=ledger.account("faces"), rng=1)
    for wrong in ("sqlite:///x.db", ledger, object()):  # a ledger without a name is no account
        with pytest.raises(ss.InvalidInput, match=r"'ledger' .* must be ledger\.account\(name\)"):
            RELEASES[name](collection, query, ledger=wrong)
    assert len(ledger.entries()) == 0


def test_bad_rows_cost_nothing(ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray) -> None:
    collection[3] = np.nan
    with pytest.raises(ss.InvalidInput):
        ss.release_scores(collection, query, epsilon=1, delta=1e-6, ledger=ledger.account("faces"))
    assert len(ledger.entries()) == 0


def test_a_named_dataset_keeps_one_budget(ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray) -> None:
    account = ledger.account("faces")
    ss.release_scores(collection, query, epsilon=1, mechanism="laplace", ledger=account)
    with pytest.raises(ss.BudgetExceeded):
        ss.release_scores(collection[:-1], query, epsilon=1, mechanism="laplace", ledger=account)
    assert account.spent == pytest.approx(1)


def test_the_command_line_charges_too(
    tmp_path: Path,
    ledger: ss.Ledger,
    collection: np.ndarray,
    query: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.save(tmp_path / "e.npy", collection)
    np.save(tmp_path / "q.npy", query)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"

    def run(*more: str) -> int:
        arguments = ["release", "matches", str(tmp_path / "e.npy"), "--query", str(tmp_path / "q.npy"), "--threshold"]
        monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments, "0.1", "--epsilon", "1", *more])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0)

    assert run("--ledger", url, "--dataset", "d", "--output", str(tmp_path / "a.npz")) == 0
    assert len(ledger.entries()) == 1
    capsys.readouterr()
    assert run("--ledger", url, "--dataset", "d", "--output", str(tmp_path / "b.npz")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "1.2" in error
    assert not (tmp_path / "b.npz").exists()
    assert run("--dataset", "d", "--output", str(tmp_path / "c.npz")) == 0
    printed = capsys.readouterr()
    assert printed.err == "scoreshield: No ledger was charged for 'd': --ledger says where its budget is kept.\n"
    assert "Ledger entry   None: no ledger was charged." in printed.out
    assert run("--ledger", url, "--output", str(tmp_path / "b.npz")) == 2
    assert "--ledger needs --dataset" in capsys.readouterr().err


def test_the_command_line_asks_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=1, delta=0)
    np.save(tmp_path / "e.npy", np.eye(3))
    files = [str(tmp_path / "e.npy"), "--output", str(tmp_path / "o.npz")]
    charged = ["--epsilon", "1", "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}"]
    monkeypatch.setattr(sys, "argv", ["scoreshield", "release", "index", *files, *charged])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert "--ledger needs --dataset" in capsys.readouterr().err


def test_same_records_another_type_share_budget(ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray) -> None:
    """The same records in another type share a budget by their name."""
    account = ledger.account("faces")
    ss.release_scores(collection, query, epsilon=1, mechanism="laplace", ledger=account)
    changed = collection.copy()
    changed[0] = -changed[0]
    for same in (collection.astype(np.float32), collection * 2, collection[::-1], changed):
        with pytest.raises(ss.BudgetExceeded):
            ss.release_scores(same, query, epsilon=1, mechanism="laplace", ledger=account)


def test_promises_about_other_identities_not_add(ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray) -> None:
    """Promises about other identities do not add up."""
    account = ledger.account("people")
    contract = {"epsilon": 0.3, "delta": 1e-6, "ledger": account}
    ss.release_scores(collection, query, adjacency=ss.Identity(np.arange(40) // 10), **contract)
    for other in (ss.Identity(np.arange(40)), ss.Identity(np.arange(40) // 10, centroids=True), ss.Replacement()):
        with pytest.raises(ss.InvalidInput, match="do not add up"):
            ss.release_scores(collection, query, adjacency=other, **contract)


def test_raised_limit_seen_next_charge(
    tmp_path: Path, ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray
) -> None:
    """A raised limit is seen by the next charge."""
    ss.release_scores(collection, query, epsilon=1, mechanism="laplace", ledger=ledger.account("x"))
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        raised = """replace(facts, '"epsilon":1.2', '"epsilon":50.0')"""
        connection.execute(f"UPDATE scoreshield_ledger SET facts = {raised}")
    connection.close()
    opened = ss.Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(ss.LedgerError, match="altered"):
        ss.release_scores(collection, query, epsilon=20, mechanism="laplace", ledger=opened.account("x"))


@pytest.mark.parametrize(
    "more", [["histogram", "--target-fmr", "2"], ["scores", "--threshold", "0.2"], ["scores", "--top-k", "0"]], ids=str
)
def test_bad_options_are_found_before_the_charge(
    more: list[str],
    tmp_path: Path,
    ledger: ss.Ledger,
    collection: np.ndarray,
    query: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    np.save(tmp_path / "e.npy", collection)
    np.save(tmp_path / "q.npy", query)
    files = [str(tmp_path / "e.npy"), "--query", str(tmp_path / "q.npy"), "--output", str(tmp_path / "o.npz")]
    noise = ["--mechanism", "laplace"] if more[0] == "scores" else []
    charged = ["--epsilon", "1", "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}", "--dataset", "d"]
    monkeypatch.setattr(sys, "argv", ["scoreshield", "release", more[0], *files, *charged, *noise, *more[1:]])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert len(ledger.entries()) == 0
