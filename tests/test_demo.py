"""The demonstration end to end: what it finds, picture, releases, certificates."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from rich.console import Console

import scoreshield as ss
from scoreshield import demo


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> demo.DemoSummary:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ss.UselessRelease)  # the demo warns of none of its own releases
        return demo.run_demo(tmp_path_factory.mktemp("demo") / "out")


def test_demo_writes_releases_certificates_and_a_picture(summary: demo.DemoSummary) -> None:
    """Every release loads again, has exact noise and a certificate beside it."""
    picture, *files = summary.files
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
    for line, path, certificate in zip(summary.releases, files[::2], files[1::2], strict=True):
        assert ss.load(path) == line.release
        assert line.release.guarantee.sampler == "exact"
        assert str(line.release.guarantee).strip() in certificate.read_text(encoding="utf-8")


def test_demo_shows_what_works_and_what_cannot(summary: demo.DemoSummary) -> None:
    """Levels and an index keep nearly the clean answers, and Gaussian noise at the same epsilon does not.

    Over 40 runs the means were 8.77, 9.28 and 1.97 with standard deviations of 0.12, 0.13 and 0.21, so these limits
    are more than eight of them away.
    """
    levels, index, gaussian = (line.counts.mean() for line in summary.releases)
    assert summary.clean.mean() > 9.5
    assert levels > 7.5
    assert index > 8.2
    assert gaussian < 3.8
    assert summary.chance == pytest.approx(1.0, abs=0.1)


def test_demo_ends_with_a_success_that_can_be_repeated(summary: demo.DemoSummary, tmp_path: Path) -> None:
    """The last line is a command, and the lines before it say what was found, and what cannot work and why."""
    with (tmp_path / "log").open("w") as log:
        console = Console(record=True, width=120, file=log)
        summary.show(console)
        text = console.export_text()
    assert "pure 6-differential privacy" in text
    assert "Cannot work: all pairwise scores" in text
    assert "One decision: an accept bit" in text
    assert text.splitlines()[-1].startswith("On your own vectors: scoreshield release scores")
    assert set(summary.to_dict()) == {"releases", "same_digit_in_best_10", "gram", "decision", "files"}


def test_demo_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ss.InvalidInput, match=r"scoreshield\[demo\]"):
        demo.run_demo(tmp_path)


def test_demo_into_an_impossible_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ss.FileError, match="Cannot make the folder"):
        demo.run_demo(tmp_path / "file")
