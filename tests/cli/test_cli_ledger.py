"""`scoreshield ledger`: in process, and once as a real process."""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ledger_support import gaussian, pure

import scoreshield as ss
from scoreshield import cli
from scoreshield.privacy.ledger import Ledger

URL = "sqlite:///ledger.db"
LIMIT = ["--epsilon", "10", "--delta", "1e-6"]


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["scoreshield", "ledger", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ledger() -> Ledger:
    book = Ledger.create(URL, epsilon=10.0, delta=1e-6)
    book.spend(pure(2.0), dataset="faces", who="ada", why="a [bold] reason")
    book.spend(gaussian(0.3), dataset="faces")
    book.spend(pure(1.0))
    return book


def test_init_and_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The init command makes a ledger, and status reads it."""
    assert run("init", URL, *LIMIT, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "limit      epsilon 10 at delta 1e-06" in text
    assert "spent      epsilon 0 " in text
    assert "a pure epsilon up to 10 or Gaussian noise up to epsilon" in text
    for limit in (LIMIT, ["--epsilon", "11", "--delta", "1e-6"]):
        assert run("init", URL, *limit, monkeypatch=monkeypatch) == 2, "making a ledger is not opening one"
        error = capsys.readouterr().err
        assert "There is a ledger at sqlite:////" in error
        assert "`scoreshield ledger status` shows it" in error
        assert error.count("\n") == 1


def test_status_for_machines(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status as JSON holds all facts."""
    assert run("status", URL, "--json", monkeypatch=monkeypatch) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["spent"] == ledger.spent
    assert facts["remaining"] == ledger.remaining
    assert facts["fits"]["pure"] == ledger.headroom.pure
    assert (facts["limit"], facts["delta"], facts["datasets"]) == (10.0, 1e-6, ["faces"])
    assert facts["head"] == ledger.head()
    assert run("status", URL, "--dataset", "voices", "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["spent"] == 1.0


@pytest.mark.usefixtures("ledger")
def test_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The list command prints every charge."""
    assert run("list", URL, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    for word in ("faces", "ada", "a [bold] reason", "all", "time (UTC)"):
        assert word in text
    assert run("list", URL, "--dataset", "voices", "--json", monkeypatch=monkeypatch) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in entries] == [3], "what names no dataset counts against each"
    assert entries[0]["profile"] == {"kind": "pure", "epsilon": 1.0}


def test_list_draws(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Draws of an index with public changes are listed with what they charge: one draw, or nothing."""
    book = Ledger.create(URL, epsilon=100.0, delta=0.0)
    account, rows = book.account("faces"), np.eye(5, 4) + 1.0
    index = ss.release_index(rows, epsilon=7.0, changes="public", ids=list(range(5)), ledger=account)
    assert isinstance(index, ss.IndexVersion)
    index.update(changed={1: rows[0]}, ledger=account).update(changed={2: rows[0]}, ledger=account)
    assert run("list", URL, monkeypatch=monkeypatch) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "privunit" in line]
    assert [[cell.strip() for cell in line.split("│")[6:9]] for line in lines] == [
        ["privunit", epsilon, "0"] for epsilon in ("7", "7", "0")
    ]
    assert book.spent == 14.0


def test_list_control_characters(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No charge can hold such text; an edited database can."""
    with sqlite3.connect("ledger.db") as connection:
        connection.execute("UPDATE scoreshield_entries SET why = ?", ("\x1b[2Jx\x07\u202e",))
    connection.close()
    assert not ledger.verify()
    assert run("list", URL, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "\\x1b[2Jx\\x07\\u202e" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_verify_counts_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    book = Ledger.create(URL, epsilon=10.0, delta=0.0)
    assert run("verify", URL, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"There is no entry yet; head {book.head()}.\n"
    book.spend(pure(2.0))
    assert run("verify", URL, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert said == f"The one entry is as it was written, and within the limit; head {book.head()}.\n"


def test_verify(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The verify command checks the chain and the head."""
    head = ledger.head()
    assert run("verify", URL, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith("All 3 entries are as they were written")
    assert run("verify", URL, "--head", head, "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "entries": 3, "head": head}
    with sqlite3.connect("ledger.db") as connection:
        connection.execute("UPDATE scoreshield_entries SET why = 'other' WHERE id = 2")
    connection.close()
    for more in ([], ["--json"]):
        assert run("verify", URL, *more, monkeypatch=monkeypatch) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == "scoreshield: Entry 2 was changed after it was written.\n"


def test_export(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The export command writes a table and a JSON file."""
    assert run("export", URL, "--output", "out.csv", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"Wrote out.csv; head {ledger.head()}.\n"
    with Path("out.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 3
    assert run("export", URL, "--output", "out.csv", monkeypatch=monkeypatch) == 2
    assert "exists already" in capsys.readouterr().err
    assert run("export", URL, "--output", "out.csv", "--force", monkeypatch=monkeypatch) == 0
    assert run("export", URL, "--output", "out.json", "--json", monkeypatch=monkeypatch) == 0
    assert len(json.loads(Path("out.json").read_text())["entries"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", URL], "There is no ledger at sqlite:////"),
        (["status", "http://ledger.db"], "a ledger is a file, sqlite:///FILE or postgresql://HOST/DATABASE"),
        (["init", URL], "Missing option '--epsilon'"),
        (["init", URL, "--epsilon", "0", "--delta", "0"], "positive finite"),
        (["init", "sqlite:///no/such/ledger.db", *LIMIT], "No such file or directory"),
        (["export", URL, "--output", "no/such/out.csv"], "There is no folder no/such"),
        (["export", URL, "--output", "out.txt"], "There is no ledger"),
        (["burn", URL], "No such command 'burn'"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bad input prints one line."""
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("scoreshield: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("guarantee", ["{}", "[]", "null", '{"mechanism":"m","epsilon":"x","delta":0}'])
def test_unlistable_guarantee(
    ledger: Ledger,
    folder: Path,
    guarantee: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A guarantee that cannot be listed prints one line."""
    assert ledger.verify()
    connection = sqlite3.connect(folder / "ledger.db", isolation_level=None)
    connection.execute("UPDATE scoreshield_entries SET guarantee = ? WHERE id = 2", (guarantee,))
    connection.close()
    assert run("list", URL, monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err == "scoreshield: Entry 2 holds no guarantee that can be listed.\n"


def test_as_a_process_and_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger commands run as a process and have help."""
    command = [sys.executable, "-m", "scoreshield.cli", "ledger"]
    done = subprocess.run(
        [*command, "init", URL, *LIMIT, "--json"], capture_output=True, text=True, cwd=folder, check=True
    )
    assert json.loads(done.stdout)["limit"] == 10.0
    for name in ("init", "status", "list", "verify", "export"):
        assert run(name, "--help", monkeypatch=monkeypatch) == 0
        assert f"scoreshield ledger {name}" in capsys.readouterr().out
