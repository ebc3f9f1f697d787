"""Every release charges a ledger before its noise is drawn, and draws nothing that was not paid for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import cli
from scoreshield.privacy.stream import SecureStream, Words

RELEASES: dict[str, Callable[..., Any]] = {
    "gaussian": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, delta=1e-6, **k),
    "laplace": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, mechanism="laplace", **k),
    "staircase": lambda rows, q, **k: ss.release_scores(rows, q, epsilon=1, mechanism="staircase", **k),
    "row": lambda rows, _, **k: ss.release_row(rows, 0, epsilon=1, delta=1e-6, **k),
    "gram": lambda rows, _, **k: ss.release_gram(rows, epsilon=1, delta=1e-6, projection="none", **k),
    "matches": lambda rows, q, **k: ss.release_matches(rows, q, 0.1, epsilon=1, **k),
    "refined": lambda rows, q, **k: ss.release_matches(rows, q, 0.1, epsilon=1, refine=0.5, **k),
    "top-k": lambda rows, q, **k: ss.release_top_k(rows, q, 2, epsilon=1, **k),
    "histogram": lambda rows, q, **k: ss.release_histogram(rows, q, epsilon=1, **k),
    "pairs": lambda rows, _, **k: ss.release_histogram(rows, None, epsilon=1, delta=1e-6, mechanism="gaussian", **k),
}


@pytest.fixture
def ledger(tmp_path: Path) -> ss.Ledger:
    return ss.Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=1.2, delta=1e-5)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_charged_once_and_what_does_not_fit_is_not_drawn(
    name: str, ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = RELEASES[name](collection, query, ledger=ledger)
    (entry,) = ledger.entries()
    assert json.loads(entry.guarantee) == release.guarantee.to_dict()
    assert 0 < ledger.spent <= 1.0 + 1e-9
    drawn: list[int] = []
    words = SecureStream.words

    def watched(self: SecureStream, count: int) -> Words:
        drawn.append(count)
        return words(self, count)

    monkeypatch.setattr(SecureStream, "words", watched)
    with pytest.raises(ss.BudgetExceeded) as caught:
        RELEASES[name](collection, query, ledger=ledger)
    assert drawn == []
    assert caught.value.limit == 1.2
    assert caught.value.asked == pytest.approx(1, rel=0.3)
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("name", RELEASES)
def test_research_mode_and_wrong_ledgers_are_refused(
    name: str, ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray
) -> None:
    with pytest.raises(ss.InvalidInput, match="research"):
        RELEASES[name](collection, query, ledger=ledger, rng=1)
    with pytest.raises(ss.InvalidInput, match="'ledger'"):
        RELEASES[name](collection, query, ledger="sqlite:///x.db")
    assert len(ledger.entries()) == 0


def test_bad_rows_cost_nothing(ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray) -> None:
    collection[3] = np.nan
    with pytest.raises(ss.InvalidInput):
        ss.release_scores(collection, query, epsilon=1, delta=1e-6, ledger=ledger)
    assert len(ledger.entries()) == 0


def test_a_named_dataset_keeps_one_budget(ledger: ss.Ledger, collection: np.ndarray, query: np.ndarray) -> None:
    account = ledger.on("faces")
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
    assert run("--dataset", "d", "--output", str(tmp_path / "b.npz")) == 2
    assert "--dataset needs --ledger" in capsys.readouterr().err
