"""Windows around a private quantile of the scores of one query: the two laws, and the privacy of both together.

Where the best scores of a query lie depends on the query and the collection. How the scores fall off from there hardly
does. So a small part of the budget finds a place on the scale of scores, and the rest says where each score lies
relative to that place:

1. The anchor t is a point of a public grid, drawn by the exponential mechanism (McSherry & Talwar 2007): its weight
   falls with the distance of the count `#{s > t}` from a public rank. One record moves each count by at most one.
2. Each record's score chooses a window on a public scale of cells below ``t + offset``, and one cell is released by
   `WindowResponse`.

The weights of the first part are whole numbers that are rounded so that no ratio exceeds its bound: the law that is
proved is the law that is drawn. docs/proofs/anchored.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield._validation import check_count, check_epsilon, check_positive, check_real, reject, validate
from scoreshield.privacy.profiles import CurveProfile, Profile, PureProfile, round_up
from scoreshield.privacy.response import WindowResponse
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

Float = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Anchors are multiples of this step.
ANCHOR_STEP = 2.0**-8
#: Offsets and widths of cells are multiples of twice this step, and released scores of this step.
GRID_STEP = 2.0**-24
#: The cells of one window.
WINDOW = 64
#: The weight of an anchor whose count is the rank: large, so that weights of far counts still fall.
_LARGEST_WEIGHT = 2**1000
#: Counts farther than this from the rank count as this far.
_FARTHEST = 4096
#: The last knot that the profile of a file may have.
_LAST_KNOT = 700.0


@dataclass(frozen=True)
class RankAnchor:
    """The exponential mechanism for a place above which about `rank` scores lie, on multiples of 2^-8.

    Attributes:
        epsilon: The privacy of one record.
        rank: The public rank.
        low: The first point of the grid.
        high: The last point of the grid.
    """

    epsilon: float
    rank: int
    low: float = -1.0
    high: float = 1.0

    @validate()
    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_count(self.rank, "rank")
        first, last = check_real(self.low, "low"), check_real(self.high, "high")
        if not -1 <= first < last <= 1 or math.fmod(first, ANCHOR_STEP) or math.fmod(last, ANCHOR_STEP):
            reject("low", "below high, both multiples of 2^-8 in [-1, 1]", (self.low, self.high))

    @classmethod
    def over(cls, epsilon: float, rank: int, score_range: tuple[float, float]) -> RankAnchor:
        """Make the law on the least grid that covers a public range."""
        low, high = score_range
        return cls(
            epsilon, rank, math.floor(low / ANCHOR_STEP) * ANCHOR_STEP, math.ceil(high / ANCHOR_STEP) * ANCHOR_STEP
        )

    def count_above(self, scores: Float) -> Ints:
        """Count the scores above each point of the grid, in one pass.

        A score is above the points below `ceil(s / step)`, which is exact: the step is a power of two.
        """
        first, last = round(self.low / ANCHOR_STEP), round(self.high / ANCHOR_STEP)
        with np.errstate(all="ignore"):
            cells = scores * (1 / ANCHOR_STEP)  # as exact as the quotient: both are powers of two
            np.ceil(cells, out=cells)
        cells -= first
        np.clip(cells, 0, last - first + 1, out=cells)
        below = np.cumsum(np.bincount(cells.astype(np.int64), minlength=last - first + 2))
        return np.asarray(len(scores) - below[:-1], dtype=np.int64)

    def weigh(self, counts: Ints) -> list[int]:
        """The whole weight of each point of the grid, from the number of scores above it."""
        table = _make_weights(self.epsilon)
        return [table[gap] for gap in np.minimum(np.abs(counts - self.rank), len(table) - 1).tolist()]

    def draw(self, stream: Stream, scores: Float) -> float:
        """Draw the anchor."""
        place = discrete.draw_weighted(stream, self.weigh(self.count_above(scores)))
        return self.low + place * ANCHOR_STEP


@lru_cache(maxsize=256)
def _make_weights(epsilon: float) -> tuple[int, ...]:
    """Weights for the distances 0, 1, ..., each at least e^(-epsilon/2) times the one before and at most equal to it.

    Each weight is rounded up, so no ratio of neighbouring weights exceeds e^(epsilon/2). Far away the rounding keeps
    the weight constant, and the table ends there.
    """
    bits = 1024
    shrink = discrete.enclose(lambda iv: iv.exp(-discrete.make_rational(iv, epsilon) / 2))(bits)[1]
    weights = [_LARGEST_WEIGHT]
    while len(weights) <= _FARTHEST:
        weight = -(-weights[-1] * shrink >> bits)
        if weight == weights[-1]:
            break
        weights.append(weight)
    return tuple(weights)


@dataclass(frozen=True)
class AnchoredLaw:
    """Both laws of one release: an anchor, and windows below ``anchor + offset``.

    A score s has the window of 64 cells that starts ``(anchor + offset - s) / cell_width`` cells below the top.
    Scores beyond the ends have the first or the last window.

    Attributes:
        anchor: The law of the anchor.
        response: The law of the cells.
        offset: How far above the anchor the first window ends, a multiple of 2^-23.
        cell_width: The width of a cell on the scale of scores, a multiple of 2^-23.
    """

    anchor: RankAnchor
    response: WindowResponse
    offset: float
    cell_width: float

    @validate()
    def __post_init__(self) -> None:
        offset, width = check_real(self.offset, "offset"), check_positive(self.cell_width, "cell_width")
        if abs(offset) > 4 or math.fmod(offset, 2 * GRID_STEP):
            reject("offset", "a multiple of 2^-23 in [-4, 4]", self.offset)
        if width > 4 or math.fmod(width, 2 * GRID_STEP):
            reject("cell_width", "a multiple of 2^-23, at most 4", self.cell_width)
        if self.response.window % 2 or self.response.cells > 2**20:
            reject("response", "of an even window and at most 2^20 cells", self.response)

    @property
    def window_width(self) -> float:
        """The width of a window on the scale of scores."""
        return self.response.window * self.cell_width

    def release(self, stream: Stream, scores: Float) -> Float:
        """Overwrite clean scores with released ones: the middle of the scores whose window is centred on the cell.

        The number of random words does not depend on the scores, except for the rejections of uniform integers and,
        with probability below 2^-54, for the words that decide a close draw of the anchor.
        """
        top = self.anchor.draw(stream, scores) + self.offset
        with np.errstate(all="ignore"):  # an underflow must not raise, whatever the caller set for NumPy
            np.subtract(top, scores, out=scores)
            scores /= self.cell_width
        np.clip(scores, 0, self.response.cells - self.response.window, out=scores)
        cells = self.response.release(stream, scores.astype(np.int64))
        # Whole numbers of half cells, then of steps: every operation is exact.
        cells *= 2
        cells += 1 - self.response.window
        np.multiply(cells, self.cell_width / 2, out=scores)
        return np.subtract(top, scores, out=scores)

    @property
    def step(self) -> float:
        """The grid of the released scores."""
        return GRID_STEP

    def to_details(self) -> dict[str, Any]:
        """The public facts of the law, for a guarantee."""
        return {
            "anchor_epsilon": self.anchor.epsilon,
            "window_epsilon": self.response.epsilon,
            "anchor_rank": self.anchor.rank,
            "offset": self.offset,
            "window_width": self.window_width,
            "cells": self.response.cells,
            "window": self.response.window,
        }

    @classmethod
    def from_details(cls, details: dict[str, Any], score_range: tuple[float, float]) -> AnchoredLaw:
        """The law that a guarantee states."""
        response = WindowResponse(details["window_epsilon"], details["cells"], details["window"])
        anchor = RankAnchor.over(details["anchor_epsilon"], details["anchor_rank"], score_range)
        return cls(anchor, response, details["offset"], details["window_width"] / response.window)

    @property
    def profile(self) -> Profile:
        """A bound on the profile of both parts: the worst law of the anchor's epsilon, and the exact one of windows."""
        return compose_profile(self.anchor.epsilon, self.response)


@lru_cache(maxsize=256)
def compose_profile(anchor_epsilon: float, response: WindowResponse) -> Profile:
    """Compose the worst pure law of one epsilon with the exact profile of windows.

    With p = e^a / (1 + e^a) for the anchor's epsilon a, the composition has
    `δ(ε) = p δ_w(ε - a) + (1 - p) δ_w(ε + a)`, where δ_w is the windows' profile on the whole line. It is convex in e^ε
    and has knots where one of the two terms has one.
    """
    total = round_up(Fraction(anchor_epsilon) + Fraction(response.epsilon))
    if total > _LAST_KNOT:
        return PureProfile(total)
    knots = sorted({0.0, anchor_epsilon, abs(response.epsilon - anchor_epsilon)})
    p = 1 / (1 + math.exp(-anchor_epsilon))
    windows = response.profile

    def extend(epsilon: float) -> float:
        if epsilon >= 0:
            return windows.delta_at(epsilon)
        return -math.expm1(epsilon) + math.exp(epsilon) * windows.delta_at(-epsilon)

    deltas = [
        min(1.0, (p * extend(knot - anchor_epsilon) + (1 - p) * extend(knot + anchor_epsilon)) * (1 + 1e-12))
        for knot in knots
    ]
    return CurveProfile((*knots, total), (*deltas, 0.0))
