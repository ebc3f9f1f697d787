"""Pictures drawn by Matplotlib (the 'plots' extra): new figures, colours, panels with legend and caption, files."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _files
from scoreshield.errors import InvalidCalibration, InvalidInput
from scoreshield.privacy import calibration
from scoreshield.releases.results import GramRelease, RowRelease, ScoreRelease

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Float = NDArray[np.float64]

# Clean, noisy and projected scores are blue, grey and red. All colours differ from one another for any colour vision.
BLUE, GREY, RED, AMBER, VIOLET, INK = "#1b6ca8", "#b0b7bf", "#d1495b", "#e09f1f", "#6a4c93", "#22272b"
NOT_PRIVATE, SHADE, FAINT = "#626b73", "#f4e3e1", "#eef1f3"
PICTURE_DPI = 220
_CLEAN, _NOISY, _PROJECTED = BLUE, GREY, RED


def draw_three_regimes(
    *,
    scores: tuple[Float, ScoreRelease],
    row: tuple[Float, RowRelease],
    gram: tuple[Float, GramRelease],
    note: str,
) -> Figure:
    """Draw clean, noisy and projected scores of each regime. It takes clean scores, so it is for public data only."""
    figure = make_figure(12, 11)
    grid = figure.add_gridspec(3, 3, height_ratios=[1, 1, 1.25])
    for place, (name, clean, release) in enumerate(
        (("Scores of a query", *scores), ("Row of a record", *row)),
    ):
        order = np.argsort(clean)
        _draw_row(figure, grid, place, name, clean[order], release.noisy[order], release.scores[order], release)
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
                _describe_promise(released)
                + "\n(not a whole record)" * (not released.guarantee.covers_record_replacement)
            )
            axes.set_xlabel("records, ordered by digit")
        if column == 2:
            figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("What a private release of similarity scores looks like", fontsize=15)
    figure.text(0.5, 0.006, note, ha="center", fontsize=9, color="#555555")
    return figure


def draw_best_matches(
    *,
    query: Float,
    records: Float,
    is_same: NDArray[np.bool_],
    best: dict[str, NDArray[np.intp]],
    counts: dict[str, Float],
    chance: float,
    note: str,
) -> Figure:
    """Draw the best matches of one query by each release as pictures, and how many are right over all queries.

    It shows records and which of them match, so it is for public data only.

    Args:
        query: The picture of the query, (height, width).
        records: The pictures of the records, (records, height, width).
        is_same: Whether each record matches the query.
        best: For each release, the numbers of the records that it names, best first.
        counts: For each release, how many of the named records match, for each of several queries.
        chance: How many match by chance.
        note: A line below the picture.
    """
    figure = make_figure(12, 0.7 + 0.95 * len(best))
    shown = max(len(places) for places in best.values())
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[2.3, 1])[0]
    axes = left.subplots(len(best), shown + 1, squeeze=False)
    left.suptitle("a query, and its best matches by each release; a red frame marks a wrong one", fontsize=10)
    for line, (name, places) in zip(axes, best.items(), strict=True):
        for place, one in enumerate(line):
            one.set(xticks=[], yticks=[])
            picture = query if place == 0 else records[places[place - 1]]
            one.imshow(picture, cmap="Greys", interpolation="nearest")
            is_right = place == 0 or bool(is_same[places[place - 1]])
            for edge in one.spines.values():
                edge.set(color=INK if place == 0 else BLUE if is_right else RED, linewidth=1 if is_right else 2.5)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    bars = right.subplots()
    means = [float(np.mean(values)) for values in counts.values()]
    errors = [float(np.std(values, ddof=1)) for values in counts.values()]
    heights = np.arange(len(counts))[::-1]
    bars.barh(heights, means, xerr=errors, color=[GREY, *[BLUE] * (len(counts) - 1)], error_kw={"ecolor": INK})
    bars.axvline(chance, color=RED, linestyle="--")
    bars.set(yticks=[], xlim=(0, 1.25 * shown), xticks=range(0, shown + 1, 2))
    for height, mean in zip(heights, means, strict=True):
        bars.annotate(f"{mean:.1f}", (1.22 * shown, height), ha="right", va="center")
    bars.set_title(f"right among {shown}: mean, spread; dashed: chance", fontsize=10)
    figure.supxlabel(note, fontsize=9, color="#555555")
    return figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all, in 256 colours: a third of the size, without a visible difference.

    The resolution is twice that of a page, so that the picture is sharp on a dense screen and when it is enlarged.
    """
    from PIL import Image  # which Matplotlib brings

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=PICTURE_DPI)
    with Image.open(drawn) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    dpi = (PICTURE_DPI, PICTURE_DPI)
    _files.write_whole({path: lambda file: small.save(file, format="png", optimize=True, dpi=dpi)})


def _draw_row(
    figure: Any,
    grid: Any,
    place: int,
    name: str,
    clean: Float,
    noisy: Float,
    projected: Float,
    release: ScoreRelease,
) -> None:
    """Draw three panels of one vector: records ordered by clean score along x."""
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
            axes.plot(clean, color=_CLEAN, linewidth=1.2)
            title += " (line: clean)"
        limit = reach if column == 1 else 1.15
        axes.set(title=f"{name}, {title}", ylim=(-limit, limit), xlim=(0, len(clean)))
        if column == 0:
            axes.set(ylabel=_describe_promise(release), xlabel="records, ordered by clean score")


def _describe_promise(release: ScoreRelease | GramRelease) -> str:
    g = release.guarantee
    return f"ε = {g.epsilon:g}, δ = {g.delta:g}, noise sd {g.noise_std:.2f}"


def make_figure(width: float, height: float) -> Figure:
    """Make an empty figure; sizes are in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput("Pictures need the 'plots' extra: pip install 'scoreshield[plots]'.") from None
    return Figure(figsize=(width, height), layout="constrained")


# ---- Panels with a legend and a caption.


@dataclass(frozen=True)
class RuleNoise:
    """The scale that a rule asks for at (epsilon, delta), and the epsilon that this scale really has there."""

    method: str
    scale: float
    epsilon: float
    true_epsilon: float

    @property
    def is_private(self) -> bool:
        """Whether the rule gives the privacy that it names."""
        return self.true_epsilon <= self.epsilon


def calibrate_rule(method: str, epsilon: float, delta: float, sensitivity: float) -> RuleNoise:
    """Calibrate by a rule, also where ``scoreshield.calibrate`` raises an error: for pictures, not for releases."""
    try:
        return RuleNoise(method, calibration.calibrate(epsilon, delta, sensitivity, method), epsilon, epsilon)
    except InvalidCalibration as error:
        scale = sensitivity / calibration.compute_rule_mu(epsilon, delta, method)
        return RuleNoise(method, scale, epsilon, error.true_epsilon)


def make_legend_key(**style: Any) -> Line2D:
    """Make an entry of the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def make_panels(rows: int, columns: int, panel: tuple[float, float], **shared: Any) -> tuple[Figure, NDArray[Any]]:
    """Make an empty grid of panels; sizes are in inches per panel."""
    figure = make_figure(columns * panel[0], rows * panel[1] + 0.4)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def add_captions(figure: Figure, title: str, caption: str, keys: Iterable[Line2D], columns: int = 4) -> None:
    """Add a title above, and a legend and a caption below the panels; the figure grows for them."""
    keys = list(keys)
    width, body = (float(inches) for inches in figure.get_size_inches())
    lines = textwrap.wrap(caption, int(width * 14.5))
    text, legend = 0.15 * len(lines) + 0.12, 0.24 * math.ceil(len(keys) / columns) + 0.1
    height = body + text + legend
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained", rect=(0, (text + legend) / height, 1, body / height))
    figure.suptitle(title, fontsize=14)
    figure.legend(
        handles=keys,
        loc="center",
        bbox_to_anchor=(0.5, (text + legend / 2) / height),
        ncols=columns,
        fontsize=9,
        frameon=False,
        handlelength=2.6,
    )
    figure.text(0.5, 0.06 / height, "\n".join(lines), ha="center", va="bottom", fontsize=8.5, color="#555555")
