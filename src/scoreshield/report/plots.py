"""Pictures, with Matplotlib (the 'plots' extra), written whole or not at all."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _files
from scoreshield.errors import InvalidInput
from scoreshield.releases.results import GramRelease, RowRelease, ScoreRelease

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

_CLEAN, _NOISY, _PROJECTED = "#1b6ca8", "#b0b7bf", "#d1495b"


def three_regimes(
    *,
    scores: tuple[Float, ScoreRelease],
    row: tuple[Float, RowRelease],
    gram: tuple[Float, GramRelease],
    note: str,
) -> Figure:
    """Clean against noisy against projected, for each regime. Takes clean scores: for public data only."""
    figure = new_figure(12, 11)
    grid = figure.add_gridspec(3, 3, height_ratios=[1, 1, 1.25])
    for place, (name, clean, release) in enumerate(
        (("Scores of a query", *scores), ("Row of a record", *row)),
    ):
        order = np.argsort(clean)
        _curves(figure, grid, place, name, clean[order], release.noisy[order], release.scores[order], release)
    clean_gram, released = gram
    for column, (title, matrix) in enumerate(
        (
            ("clean", clean_gram),
            ("noisy", released.noisy),
            (f"projected ({released.projection})", released.gram),
        )
    ):
        axes = figure.add_subplot(grid[2, column])
        image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        axes.set(title=f"Gram matrix, {title}", xticks=[], yticks=[])
        if column == 0:
            axes.set_ylabel(
                _promise(released) + "\n(not a whole record)" * (not released.guarantee.covers_record_replacement)
            )
            axes.set_xlabel("records, ordered by digit")
        if column == 2:
            figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("What a private release of similarity scores looks like", fontsize=15)
    figure.text(0.5, 0.006, note, ha="center", fontsize=9, color="#555555")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all, in 256 colours: a third of the size, and the eye sees none of it."""
    from PIL import Image  # which Matplotlib brings

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    with Image.open(drawn) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    _files.write_whole({path: lambda file: small.save(file, format="png", optimize=True)})


def _curves(
    figure: Any,
    grid: Any,
    place: int,
    name: str,
    clean: Float,
    noisy: Float,
    projected: Float,
    release: ScoreRelease,
) -> None:
    """Three panels of one vector: records ordered by clean score along x."""
    panels = (
        ("clean", clean, _CLEAN),
        ("noisy", noisy, _NOISY),
        ("projected to the valid range", projected, _PROJECTED),
    )
    reach = 1.05 * float(np.abs(noisy).max())
    for column, (title, values, colour) in enumerate(panels):
        axes = figure.add_subplot(grid[place, column])
        axes.axhspan(-1, 1, color="#eef3f7", zorder=0)
        axes.plot(values, ".", markersize=3, color=colour, alpha=0.8)
        if column:
            axes.plot(clean, color=_CLEAN, linewidth=1.2, label="clean")
            axes.legend(loc="lower right", fontsize=8)
        limit = reach if column == 1 else 1.15
        axes.set(title=f"{name}, {title}", ylim=(-limit, limit), xlim=(0, len(clean)))
        if column == 0:
            axes.set(ylabel=_promise(release), xlabel="records, ordered by clean score")


def _promise(release: ScoreRelease | GramRelease) -> str:
    g = release.guarantee
    return f"ε = {g.epsilon:g}, δ = {g.delta:g}, noise sd {g.noise.std:.2f}"


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput("Pictures need the 'plots' extra: pip install 'scoreshield[plots]'.") from None
    return Figure(figsize=(width, height), layout="constrained")
