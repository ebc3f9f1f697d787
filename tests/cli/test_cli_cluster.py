"""`scoreshield release --engine`: every kind of release in a folder of parts, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster_support import act_after, lose_encrypted_blocks
from source_support import make_vectors, write_file

import scoreshield as ss
from scoreshield import distributed
from scoreshield.cli import main
from scoreshield.cli.cluster import _INTERRUPTED, _LOST, restore_address
from scoreshield.distributed.blocks import BlockTask
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
        act_after(patch, PendingCharge, "commit", lambda: lose_encrypted_blocks(folder / "out"))
        act_after(patch, PendingCharge, "commit", (folder / "vectors" / "part-1.parquet").unlink)
        assert run(*command, "--ledger", "l.db", "--dataset", "docs") == 2
    capsys.readouterr()
    assert run("ledger", "abandon", "l.db", "out") == 0
    assert capsys.readouterr().out == "The release in out is abandoned; a charge stays.\n"
    assert len(ledger.entries()) == 1
    assert run("ledger", "abandon", "l.db", "out", "--json") == 2
    assert "no key of a release" in capsys.readouterr().err


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
        ("--engine", "local", "--keep-best", "0"): "--keep-best must be a whole number, at least 1. Got 0",
    }.items():
        assert run(*scores, *given) != 0
        assert sentence in capsys.readouterr().err
        assert not (folder / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_folder_needs_an_engine(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names what is missing, also for an address, and nothing is written."""
    for source in ("vectors", "s3://bucket/vectors"):
        assert run("release", kind, source, *KINDS[kind], "--output", "out") == 2
        err = capsys.readouterr().err
        assert f"{source} is a folder, a table or an address: give --engine" in err
        assert len(err.splitlines()) == 1
    assert not (folder / "out").exists()


@pytest.mark.usefixtures("folder")
def test_errors_of_engines_name_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine says of a parameter names the option of the command."""

    def stop(*_: object, **__: object) -> None:
        raise ss.InvalidInput("Name a folder for the key (key_folder); smaller blocks (block_rows); a word (of_two).")

    monkeypatch.setattr("scoreshield.distributed.requests.choose_engine", stop)
    assert run("release", "scores", "vectors", *KINDS["scores"], "--engine", "dask", "--output", "out") != 0
    shown = capsys.readouterr().err
    assert "Name a folder for the key (--key-folder); smaller blocks (--block-rows); a word (of_two)." in shown


@pytest.mark.filterwarnings("ignore::scoreshield.UselessRelease")
@pytest.mark.usefixtures("folder")
def test_interrupt_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """With a ledger or a seed the same command goes on; otherwise a new folder is needed."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    ss.Ledger.create("sqlite:///l.db", epsilon=100, delta=1e-5)
    command = ["release", "scores", "vectors", *KINDS["scores"], "--engine", "local", "--output"]
    charged = [*command, "out", "--ledger", "l.db", "--dataset", "docs"]
    with pytest.MonkeyPatch.context() as patch:
        act_after(patch, PendingCharge, "commit", interrupt)
        assert run(*charged) == 130
    first = capsys.readouterr().err.splitlines()
    assert first[-2:] == [_INTERRUPTED, "scoreshield: Interrupted; no file was left half-written."]
    assert run(*charged) == 0
    assert len(ss.Ledger.open("sqlite:///l.db").entries()) == 1
    with pytest.MonkeyPatch.context() as patch:
        act_after(patch, BlockTask, "run", interrupt)
        assert run(*command, "other") == 130
    assert _LOST in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        act_after(patch, BlockTask, "run", interrupt)
        assert run(*command, "repeatable", "--seed", "1") == 130
    assert _INTERRUPTED in capsys.readouterr().err
    assert run(*command, "repeatable", "--seed", "1") == 0


@pytest.mark.parametrize("address", ["s3://bucket/folder", "/data/docs", "docs", "delta://docs@3", "iceberg://c/n.t"])
def test_addresses(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path object loses a slash of an address."""
    monkeypatch.chdir(tmp_path)
    assert restore_address(Path(address)) == address


@pytest.mark.parametrize("scheme", ["file", "lance", "delta", "iceberg"])
def test_addresses_of_paths(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute path stays one, also of a folder that is made later. One in the current folder is relative."""
    monkeypatch.chdir(tmp_path)
    for address in (f"{scheme}://{tmp_path}/new", f"{scheme}://{tmp_path}@3", f"{scheme}://docs/new"):
        assert restore_address(Path(address)) == address
    first = tmp_path.parts[1]
    (tmp_path / first).mkdir()
    assert restore_address(Path(f"{scheme}://{first}/new")) == f"{scheme}://{first}/new"
