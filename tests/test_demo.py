"""The demonstration end to end: picture, releases, certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

import scoreshield as ss
from scoreshield import demo


def test_demo_makes_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "GRAM_RECORDS", 40)  # the projection of the full demo takes seconds
    summary = demo.run_demo(tmp_path / "out")
    assert [line.name for line in summary.releases] == ["scores", "row", "gram"]
    for line in summary.releases:
        back = ss.load(tmp_path / "out" / f"demo-{line.name}.npz")
        assert back == line.release
        assert back.guarantee.sampler == "exact"
        assert line.projected_error < line.noisy_error
    picture = tmp_path / "out" / "demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000
    assert summary.clean_matches >= 9
    console = Console(record=True, width=100, file=(tmp_path / "log").open("w"))
    summary.show(console)
    text = console.export_text()
    assert "(10, 1e-06)-differential privacy" in text
    assert "on public data" in text
    assert f"{summary.clean_matches} show the same digit" in text
    assert set(summary.to_dict()) == {"releases", "same_digit_in_best_10", "plan", "files"}
    assert "Planned as a matcher of digits: With epsilon 10" in text
    assert summary.plan[:40] in (tmp_path / "out" / "demo-plan.html").read_text()
    console.file.close()


def test_demo_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ss.InvalidInput, match=r"scoreshield\[demo\]"):
        demo.run_demo(tmp_path)


def test_demo_into_an_impossible_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ss.FileError, match="Cannot make the folder"):
        demo.run_demo(tmp_path / "file")
