"""The worth of a release on the command line: printed, warned of, and required before a charge."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import cli


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((1_200, 32))
    np.save(tmp_path / "docs.npy", rows)
    np.save(tmp_path / "q.npy", rows[3])
    np.save(tmp_path / "qs.npy", rows[:4])
    ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100, delta=1e-6)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["scoreshield", "release", *arguments, "--output", "out.npz", "--force"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    return int(stopped.value.code or 0)


COMMANDS = {
    "scores": ("scores", "docs.npy", "--query", "q.npy", "--mechanism", "staircase"),
    "index": ("index", "docs.npy"),
    "batch": ("batch", "docs.npy", "--queries", "qs.npy", "--k", "5"),
    "top-k": ("top-k", "docs.npy", "--query", "q.npy", "--k", "5"),
    "matches": ("matches", "docs.npy", "--query", "q.npy", "--threshold", "0.4"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_required(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Below the required recall, one line says so, nothing is charged and nothing is written."""
    ledger = ("--ledger", "sqlite:///ledger.db", "--dataset", "docs")
    assert run(monkeypatch, *COMMANDS[name], "--epsilon", "1", "--require-recall", "0.5", *ledger) == 2
    error = capsys.readouterr().err
    assert "A recall of 0.5 is required" in error
    assert "nothing was released or charged" in error
    assert error.count("\n") == 1
    assert not Path("out.npz").exists()
    assert ss.Ledger.open("sqlite:///ledger.db").spent_on("docs") == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_printed(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The worth is one of the printed facts, for people and for machines."""
    assert run(monkeypatch, *COMMANDS[name], "--epsilon", "60", "--require-recall", "0.01", "--json") == 0
    assert json.loads(capsys.readouterr().out)["worth"].startswith("Unknown for this model. Predicted")
    assert run(monkeypatch, *COMMANDS[name], "--epsilon", "60") == 0
    assert "worth           Unknown for this model. Predicted" in capsys.readouterr().out


def test_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning is one line on standard error, without the line of code that gave it."""
    before = warnings.showwarning
    assert run(monkeypatch, "index", "docs.npy", "--epsilon", "2", "--json") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("UselessRelease: At epsilon 2 an index probably ranks mostly by noise")
    assert captured.err.count("\n") == 1
    json.loads(captured.out)
    assert warnings.showwarning is before


def test_use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--for chooses the mechanism of --mechanism auto."""
    base = ("scores", "docs.npy", "--query", "q.npy", "--epsilon", "8", "--mechanism", "auto")
    assert run(monkeypatch, *base, "--for", "ranking") == 0
    assert ss.load("out.npz").guarantee.mechanism == "anchored"
    assert run(monkeypatch, *base, "--for", "threshold", "--threshold", "0.4") == 0
    assert ss.load("out.npz").guarantee.details["levels"] == 2
    assert run(monkeypatch, *base) == 0
    assert ss.load("out.npz").guarantee.mechanism == "staircase"
    capsys.readouterr()
    assert run(monkeypatch, *base, "--threshold", "0.4") == 2
    assert "--threshold needs --top-k" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("scores", "--epsilon", "2", "--for", "ranking", "--top-k", "10"),
        ("scores", "--epsilon", "8", "--delta", "1e-6", "--top-k", "10"),
        ("top-k", "--epsilon", "8", "--k", "10"),
        ("matches", "--epsilon", "1", "--threshold", "0.4"),
    ],
)
def test_printed_lists(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has the best records printed is told that they are noise."""
    command, *options = arguments
    assert run(monkeypatch, command, "docs.npy", "--query", "q.npy", *options) == 0
    assert capsys.readouterr().err.startswith("UselessRelease: At epsilon ")


def test_values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores that are not ranked give no warning."""
    assert run(monkeypatch, "scores", "docs.npy", "--query", "q.npy", "--epsilon", "2", "--delta", "1e-6") == 0
    assert capsys.readouterr().err == ""


def test_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row whose best records are printed is judged before the charge; one that is not ranked is not."""
    row = ("row", "docs.npy", "--index", "3", "--epsilon", "5", "--delta", "1e-6")
    ledger = ("--ledger", "sqlite:///ledger.db", "--dataset", "docs")
    assert run(monkeypatch, *row, "--top-k", "5") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("UselessRelease: At epsilon 5 the row of a record probably ranks mostly by noise")
    assert "worth           Unknown for this model. Predicted" in captured.out
    assert run(monkeypatch, *row) == 0
    assert capsys.readouterr().err == ""
    assert run(monkeypatch, *row, "--top-k", "5", "--require-recall", "0.5", *ledger) == 2
    assert "A recall of 0.5 is required" in capsys.readouterr().err
    assert run(monkeypatch, *row, "--require-recall", "0.5", *ledger) == 2
    assert "--require-recall needs --top-k" in capsys.readouterr().err
    assert ss.Ledger.open("sqlite:///ledger.db").spent_on("docs") == 0


class TestPublicScores:
    """Public scores of the same model, in files."""

    FILES = ("--public-scores", "public.npy", "--public-relevant", "relevant.csv")

    @pytest.fixture(autouse=True)
    def files(self, folder: Path) -> None:
        rng = np.random.default_rng(8)
        scores = rng.uniform(-0.3, 0.3, (30, 200))
        scores[np.arange(30), np.arange(30)] = 0.9
        np.save(folder / "public.npy", scores)
        (folder / "relevant.csv").write_text("".join(f"{one},{one}\n" for one in range(30)))

    @pytest.mark.parametrize("name", COMMANDS)
    def test_predicts(self, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(monkeypatch, *COMMANDS[name], "--epsilon", "60", *self.FILES) == 0
        assert "(by public.npy, if private queries and records are like these)" in capsys.readouterr().out

    def test_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Relevant records far above the others are found with little budget, and the shipped scores do not know it."""
        command = (*COMMANDS["scores"][:4], "--for", "ranking", "--epsilon", "9", "--require-recall", "0.9")
        assert run(monkeypatch, *command) == 2
        assert run(monkeypatch, *command, *self.FILES) == 0

    @pytest.mark.parametrize("part", [FILES[:2], FILES[2:]])
    def test_alone(
        self, part: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(monkeypatch, *COMMANDS["scores"], "--epsilon", "9", *part) == 2
        assert "Give --public-scores with --public-relevant" in capsys.readouterr().err


def test_suggestions_are_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a warning suggests on the command line is a command."""
    np.save("wide.npy", np.random.default_rng(1).standard_normal((2_000, 384)))
    for command in (("index", "wide.npy"), ("top-k", "wide.npy", "--query", "wide-q.npy", "--k", "10")):
        np.save("wide-q.npy", np.ones(384))
        assert run(monkeypatch, *command, "--epsilon", "8") == 0
        error = capsys.readouterr().err
        assert "scoreshield release scores --for ranking" in error
        assert not re.search(r"\w='|release_scores", error), error


def test_several_queries(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores of several queries need Gaussian noise and rank by it: the error and the warning name a batch."""
    np.save("wide.npy", np.random.default_rng(1).standard_normal((2_000, 384)))
    np.save("wide-qs.npy", np.random.default_rng(2).standard_normal((5, 384)))
    base = ("scores", "wide.npy", "--query", "wide-qs.npy", "--for", "ranking", "--epsilon", "8")
    assert run(monkeypatch, *base) == 2
    assert "`scoreshield release batch` answers several queries" in capsys.readouterr().err
    assert run(monkeypatch, *base, "--delta", "1e-6") == 0
    assert "scoreshield release batch is predicted to find 0." in capsys.readouterr().err


def test_records_as_codebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A codebook is published, so the file of the records is not taken as one."""
    Path("link.npy").symlink_to("docs.npy")
    for name in ("docs.npy", "link.npy"):
        assert run(monkeypatch, "index", "docs.npy", "--epsilon", "8", "--codebook", name) == 2
        assert "--codebook is the file of the records" in capsys.readouterr().err
    assert not Path("out.npz").exists()
