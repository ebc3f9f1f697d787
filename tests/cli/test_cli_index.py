"""`scoreshield release index` with a codebook or a center."""

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
    rng = np.random.default_rng(6)
    np.save(tmp_path / "records.npy", rng.standard_normal((40, 8)))
    np.save(tmp_path / "public.npy", rng.standard_normal((30, 8)))
    np.save(tmp_path / "center.npy", np.full(8, 0.1))
    np.save(tmp_path / "bad.npy", np.ones((3, 8)))
    ss.PublicCodebook(rng.standard_normal((9, 8)), source="A saved one.", code_size=2).save(tmp_path / "saved.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    base = ["scoreshield", "release", "index", "records.npy", "--output", "out.npz"]
    monkeypatch.setattr(sys, "argv", [*base, *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


@pytest.mark.usefixtures("folder")
def test_a_codebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--epsilon", "12", "--codebook", "public.npy", "--codebook-source", "Past queries.", "--json"]
    assert run(options, monkeypatch) == 0
    answer = json.loads(capsys.readouterr().out)
    release = ss.load("out.npz")
    assert isinstance(release, ss.CodebookRelease)
    assert release.guarantee.details["source"] == "Past queries."
    assert release.guarantee.sampler == "exact"
    assert answer["code_size"] == release.codes.shape[1] == 3
    assert run([*options[:-1], "--code-size", "1", "--force"], monkeypatch) == 0
    assert ss.load("out.npz").codes.shape == (40, 1)


@pytest.mark.usefixtures("folder")
def test_arrays_of_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with several arrays needs the name of one, for a codebook and for a center."""
    np.savez("two.npz", words=np.load("public.npy"), center=np.load("center.npy"))
    codebook = ["--epsilon", "12", "--codebook", "two.npz", "--codebook-source", "Past queries."]
    assert run(codebook, monkeypatch) == 2
    assert "holds several arrays" in capsys.readouterr().err
    assert run([*codebook, "--codebook-array", "words"], monkeypatch) == 0
    assert isinstance(ss.load("out.npz"), ss.CodebookRelease)
    center = ["--epsilon", "12", "--center", "two.npz", "--center-array", "center", "--force"]
    assert run(center, monkeypatch) == 0
    assert ss.load("out.npz").guarantee.details["center"] == "public"


@pytest.mark.usefixtures("folder")
def test_a_saved_codebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["--epsilon", "12", "--codebook", "saved.npz"], monkeypatch) == 0
    details = ss.load("out.npz").guarantee.details
    assert (details["source"], details["code_size"]) == ("A saved one.", 2)
    assert details["fingerprint"] == ss.PublicCodebook.load("saved.npz").fingerprint


@pytest.mark.usefixtures("folder")
def test_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["--epsilon", "12", "--center", "center.npy"], monkeypatch) == 0
    assert np.array_equal(ss.load("out.npz").center, np.full(8, 0.1))
    private = ["--epsilon", "12", "--delta", "1e-6", "--center", "private", "--center-share", "0.2", "--force"]
    assert run(private, monkeypatch) == 0
    assert ss.load("out.npz").guarantee.details["center_share"] == 0.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--codebook", "bad.npy"], "direction of another one"),
        (["--codebook", "missing.npy"], "There is no file missing.npy"),
        (["--codebook", "center.npy"], "two-dimensional"),
        (["--codebook", "saved.npz", "--code-size", "1"], "states its source and code size: leave both out"),
        (["--codebook-source", "Words."], "Give --codebook with --codebook-source"),
        (["--codebook", "public.npy", "--center", "center.npy"], "A codebook replaces the mechanism"),
        (["--codebook", "public.npy", "--codebook-source", ""], "one line of text"),
        (["--center", "private"], "above 0 for a private center"),
        (["--center", "mean"], "--center: mean must be a .npy, .npz, .parquet or .csv file"),
        (["--center", "public.npy"], "public vector of 8 finite numbers"),
    ],
)
def test_bad_input(
    folder: Path, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--epsilon", "5", *options], monkeypatch) == 2
    error = capsys.readouterr().err
    assert words in " ".join(error.split())
    assert "Traceback" not in error
    assert not list(folder.glob("out*"))
