"""`scoreshield release --engine`: every kind of release in a folder of parts, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster_support import act_after
from source_support import make_vectors, write_file

import scoreshield as ss
from scoreshield import distributed
from scoreshield.cli import main
from scoreshield.cli.cluster import restore_address
from scoreshield.privacy.ledger.accounts import PendingCharge

QUERY = ["--query", "q.npy"]
KINDS = {
    "scores": [*QUERY, "--epsilon", "9", "--mechanism", "staircase", "--top-k", "3"],
    "matches": [*QUERY, "--epsilon", "4", "--threshold", "0.4"],
    "batch": ["--queries", "qs.npy", "--epsilon", "9", "--k", "5", "--print-best"],
    "histogram": [*QUERY, "--epsilon", "2", "--bins", "8", "--target-fmr", "0.1"],
    "index": ["--epsilon", "30"],
    "gram": ["--epsilon", "20", "--delta", "1e-6"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    vectors = make_vectors(500)
    for part in (0, 1):
        write_file(tmp_path / "vectors" / f"part-{part}.parquet", vectors[250 * part : 250 * part + 250])
    np.save("q.npy", vectors[3])
    np.save("qs.npy", vectors[3:6])
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["scoreshield", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


@pytest.mark.filterwarnings("ignore::scoreshield.UselessRelease")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One charge, a folder that opens, and the same release when the command is given again."""
    ledger = ss.Ledger.create("sqlite:///l.db", epsilon=100, delta=1e-5)
    command = ["release", kind, "vectors", *KINDS[kind], "--engine", "local", "--output", "out"]
    for _ in range(2):
        assert run(*command, "--ledger", "l.db", "--dataset", "docs", "--json") == 0, capsys.readouterr().err
        facts = json.loads(capsys.readouterr().out)
        assert facts["folder"] == str(folder / "out")
    assert len(ledger.entries()) == 1
    release = distributed.open_release("out")
    assert release.manifest.kind == kind
    assert release.guarantee.provenance is not None
    assert (folder / "out" / "certificate.txt").read_text() == str(release.guarantee)
    assert run(*command, "--ledger", "l.db", "--dataset", "docs") == 0
    shown = capsys.readouterr().out
    assert str(release.guarantee) in shown
    assert "Written" in shown


@pytest.mark.filterwarnings("ignore::scoreshield.UselessRelease")
def test_abandoned_release(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A release that stops after its charge is ended by one command, and a second one says that there is no key."""
    ledger = ss.Ledger.create("sqlite:///l.db", epsilon=100, delta=1e-5)
    command = ["release", "scores", "vectors", *KINDS["scores"], "--engine", "local", "--output", "out"]
    with pytest.MonkeyPatch.context() as patch:
        act_after(patch, PendingCharge, "commit", (folder / "vectors" / "part-1.parquet").unlink)
        assert run(*command, "--ledger", "l.db", "--dataset", "docs") == 2
    capsys.readouterr()
    assert run("ledger", "abandon", "l.db", "out") == 0
    assert capsys.readouterr().out == "The release in out is abandoned; its charge stays.\n"
    assert len(ledger.entries()) == 1
    assert run("ledger", "abandon", "l.db", "out", "--json") == 2
    assert "no key of a charged release" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::scoreshield.UselessRelease")
def test_what_a_cluster_does_not_take(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, before anything is charged or written."""
    scores = ["release", "scores", "vectors", *KINDS["scores"], "--output", "out"]
    np.save("labels.npy", np.arange(500))
    for given, sentence in {
        ("--scheduler", "x"): "need --engine",
        ("--engine", "local", "--labels", "labels.npy"): "--labels cannot be used with --engine",
        ("--engine", "local", "--force"): "name a new folder",
        ("--engine", "local", "--dataset", "docs"): "need --ledger",
        ("--engine", "local", "--block-rows", "1000"): "multiple of 65,536",
        ("--engine", "local", "--array", "none"): "none",
    }.items():
        assert run(*scores, *given) != 0
        assert sentence in capsys.readouterr().err
        assert not (folder / "out").exists()


@pytest.mark.parametrize("address", ["s3://bucket/folder", "/data/docs", "docs", "delta:///data/docs@3"])
def test_addresses(address: str) -> None:
    """A path object loses a slash of an address."""
    assert restore_address(Path(address)) in (address, address.replace(":///", "://"))
