"""Pictures say what they show, and are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from PIL import Image

import scoreshield as ss
from scoreshield.report import plots


def figure(radius: float | None, collection: np.ndarray, query: np.ndarray) -> object:
    contract = {"epsilon": 3, "delta": 1e-6, "rng": 1}
    adjacency = ss.Replacement() if radius is None else ss.GramRadius(radius)
    unit = collection / np.linalg.norm(collection, axis=1, keepdims=True)
    return plots.draw_three_regimes(
        scores=(unit @ query / np.linalg.norm(query), ss.release_scores(collection, query, **contract)),
        row=(unit @ unit[0], ss.release_row(collection, 0, **contract)),
        gram=(unit @ unit.T, ss.release_gram(collection, **contract, adjacency=adjacency, max_iterations=2)),
        note="public data",
    )


@pytest.mark.parametrize(("radius", "warned"), [(1.0, True), (None, False)])
def test_nine_panels_that_name_the_promise(
    radius: float | None, warned: bool, collection: np.ndarray, query: np.ndarray
) -> None:
    drawn = figure(radius, collection, query)
    panels = [axes for axes in drawn.axes if axes.get_title()]
    assert len(panels) == 9
    labels = [axes.get_ylabel() for axes in panels if axes.get_ylabel()]
    assert len(labels) == 3
    assert all("ε = 3, δ = 1e-06" in label for label in labels)
    assert ("not a whole record" in labels[2]) == warned
    assert any("public data" in text.get_text() for text in drawn.texts)


def test_wrong_matches_have_a_red_frame() -> None:
    """One picture for each match; the frame says whether it is right."""
    pictures = np.zeros((4, 2, 2))
    drawn = plots.draw_best_matches(
        query=pictures[0],
        records=pictures,
        is_same=np.array([True, False, True, False]),
        best={"clean": np.array([0, 2]), "noisy": np.array([1, 2])},
        counts={"clean": np.array([2.0, 2.0]), "noisy": np.array([1.0, 0.0])},
        chance=1.0,
        note="public data",
    )
    frames = [panel.spines["left"].get_edgecolor() for panel in drawn.subfigs[0].axes]
    red = to_rgba(plots.RED)
    assert [frame == red for frame in frames] == [False, False, False, False, True, False]


def test_twice_the_resolution_of_a_page(tmp_path: Path) -> None:
    plots.save_picture(plots.make_figure(4, 2), tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as image:
        assert image.size == (880, 440)
        assert image.info["dpi"] == pytest.approx((220, 220), abs=0.1)


def test_a_picture_that_cannot_be_written(tmp_path: Path, collection: np.ndarray, query: np.ndarray) -> None:
    with pytest.raises(ss.FileError):
        plots.save_picture(figure(1.0, collection, query), tmp_path / "none" / "picture.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ss.InvalidInput, match=r"scoreshield\[plots\]"):
        plots.make_figure(1, 1)
