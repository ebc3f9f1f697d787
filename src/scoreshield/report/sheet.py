"""What the paper's figures share: colours, a grid of panels with legend and caption below, and honest calibrations."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from scoreshield.errors import InvalidCalibration
from scoreshield.privacy import calibration
from scoreshield.report import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Blue, grey and red as in plots.py; amber and violet keep apart from them, and from one another, for any colour vision.
BLUE, GREY, RED, AMBER, VIOLET, INK = "#1b6ca8", "#b0b7bf", "#d1495b", "#e09f1f", "#6a4c93", "#22272b"
NOT_PRIVATE, SHADE, FAINT = "#626b73", "#f4e3e1", "#eef1f3"


@dataclass(frozen=True)
class Calibrated:
    """The scale that a rule asks for at (epsilon, delta), and the epsilon that this scale really has there."""

    method: str
    scale: float
    epsilon: float
    true_epsilon: float

    @property
    def private(self) -> bool:
        """Whether the rule keeps its word."""
        return self.true_epsilon <= self.epsilon


def calibrated(method: str, epsilon: float, delta: float, sensitivity: float) -> Calibrated:
    """What ``scoreshield.calibrate`` gives, or would have given had it not refused: for pictures, not for releases."""
    try:
        return Calibrated(method, calibration.calibrate(epsilon, delta, sensitivity, method), epsilon, epsilon)
    except InvalidCalibration as error:
        scale = sensitivity / calibration.compute_rule_mu(epsilon, delta, method)
        return Calibrated(method, scale, epsilon, error.true_epsilon)


def legend_key(**style: Any) -> Line2D:
    """An entry of the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def sheet(rows: int, columns: int, panel: tuple[float, float], **shared: Any) -> tuple[Figure, NDArray[Any]]:
    """An empty grid of panels of so many inches each."""
    figure = plots.new_figure(columns * panel[0], rows * panel[1] + 0.4)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def finish(figure: Figure, title: str, caption: str, keys: Iterable[Line2D], columns: int = 4) -> None:
    """A title above; below, outside the panels, the legend and a caption, for which the figure grows."""
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
