"""`scoreshield release index --changes public`, `release update` and `export`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = np.random.default_rng(6).standard_normal((5, 4))
    np.save(tmp_path / "records.npy", rows)
    np.save(tmp_path / "fresh.npy", rows[:1])
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\ne\n")
    (tmp_path / "b.txt").write_text("b\n")
    (tmp_path / "c.txt").write_text("c\n")
    (tmp_path / "f.txt").write_text("f\n")
    np.save(tmp_path / "numbers.npy", np.arange(5))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["scoreshield", *line.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


@pytest.mark.usefixtures("folder")
def test_update(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    charge = "--ledger sqlite:///ledger.db --dataset records"
    ledger = ss.Ledger.create("sqlite:///ledger.db", epsilon=50.0, delta=0.0)
    first = f"release index records.npy --epsilon 4 --changes public --ids ids.txt --output index.npz {charge}"
    assert run(first, monkeypatch) == 0
    options = "--changed fresh.npy --changed-ids b.txt --added fresh.npy --added-ids f.txt --removed c.txt --json"
    capsys.readouterr()
    assert run(f"release update index.npz --output next.npz {options} {charge}", monkeypatch) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["version"], answer["largest_draws"]) == (2, 2)
    index = ss.load("next.npz")
    assert index.ids.tolist() == ["a", "b", "d", "e", "f"]
    assert ledger.spent_on("records") == 8.0


@pytest.mark.usefixtures("folder")
def test_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    base = "release index records.npy --epsilon 4 --output index.npz --changes public"
    assert run(f"{base} --ids numbers.npy", monkeypatch) == 0
    assert ss.load("index.npz").ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("folder")
def test_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    base = "release index records.npy --epsilon 4 --output index.npz"
    assert run(f"{base} --ids ids.txt", monkeypatch) == 2
    assert "left out unless" in capsys.readouterr().err
    assert run(f"{base} --changes public", monkeypatch) == 2
    assert "5 different ids" in capsys.readouterr().err
    assert run(base, monkeypatch) == 0
    assert run("release update index.npz --removed b.txt --output next.npz", monkeypatch) == 2
    assert "no index with --changes public" in capsys.readouterr().err
    assert run("release update index.npz --changed fresh.npy --output next.npz", monkeypatch) == 2
    assert "--changed with --changed-ids" in capsys.readouterr().err
    assert not Path("next.npz").exists()


@pytest.mark.usefixtures("folder")
def test_export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    assert run("release index records.npy --epsilon 4 --output index.npz", monkeypatch) == 0
    capsys.readouterr()
    assert run("export index.npz --to parquet --output index.parquet --json", monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 5
    assert len(pq.read_table("index.parquet")) == 5
    assert run("export index.npz --to parquet --output index.parquet", monkeypatch) == 2
    assert "exists" in capsys.readouterr().err
    ss.release_scores(np.eye(3), np.ones(3), epsilon=1.0, delta=1e-6).save("scores.npz")
    assert run("export scores.npz --to parquet --output other.parquet", monkeypatch) == 2
    assert "holds a scores release and no index" in capsys.readouterr().err
