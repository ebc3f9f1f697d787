"""Gaussian noise, the public grid of released values, and the function that adds noise to a clean array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile, Profile
from scoreshield.privacy.sampling.gaussian import fill_rounded_gaussian
from scoreshield.privacy.sampling.parallel import BLOCK, draw_blocks, has_blocks
from scoreshield.privacy.sampling.stream import Stream

#: A grid step is a power of two, at least this number of halvings below the standard deviation of the noise.
GRID_BITS = 26
#: No step is smaller than this, so that every released value is fewer than 2^53 whole steps.
FINEST_STEP = 2.0**-50
#: Research streams are read in blocks of this size, which decides what a seed draws.
_RESEARCH_BLOCK = 1 << 20


@dataclass(frozen=True)
class GaussianNoise:
    """Additive Gaussian noise of standard deviation ``std`` on every released entry."""

    std: float

    name: ClassVar[str] = "gaussian"

    @validate()
    def __post_init__(self) -> None:
        object.__setattr__(self, "std", _validation.check_positive(self.std, "std"))

    def cdf(self, x: ArrayLike) -> Any:
        """Compute P[noise <= x]."""
        return ndtr(np.asarray(x, dtype=np.float64) / self.std)

    def sf(self, x: ArrayLike) -> Any:
        """Compute P[noise > x], accurate in the far tail."""
        return ndtr(-np.asarray(x, dtype=np.float64) / self.std)

    def quantile(self, p: ArrayLike) -> Any:
        """Compute the x with P[noise <= x] = p."""
        return self.std * ndtri(np.asarray(p, dtype=np.float64))

    def profile(self, sensitivity: float) -> Profile:
        return GaussianProfile(sensitivity / self.std)

    def fill(self, stream: Stream, step: float, out: NDArray[np.float64]) -> None:
        """Fill an array with independent draws, in whole steps of the grid."""
        fill_rounded_gaussian(stream, self.std / step, out)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "std": self.std}


def choose_grid_step(std: float) -> float:
    """Choose the step of the public grid for this standard deviation: a power of two near std / 2^26."""
    if not math.isfinite(std):
        raise InvalidInput("This contract needs infinite noise; choose a larger epsilon or delta.")
    step = max(math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS), FINEST_STEP)
    if step > 1:
        raise InvalidInput(
            f"This contract needs noise of standard deviation {std:.3g}, which hides every cosine (the largest allowed "
            f"is {2 ** (GRID_BITS + 1):,}); choose a larger epsilon or delta, or a weaker adjacency."
        )
    return step


class _DrawableLaw(Protocol):
    def fill(self, stream: Stream, step: float, out: NDArray[np.float64]) -> None: ...


def add_noise(values: NDArray[np.float64], law: _DrawableLaw, step: float, stream: Stream) -> None:
    """Replace clean values, in place, by round(value / step) * step plus exact noise on the same grid.

    ``values`` is one-dimensional. Each result is a multiple of ``step`` and exact in double precision. The noise is
    drawn without reading the values, so neither its time nor its randomness depends on them. Secure noise is drawn in
    blocks by several threads (`scoreshield.privacy.sampling.parallel`).
    """
    size = BLOCK if has_blocks(stream) else _RESEARCH_BLOCK
    rooms: list[NDArray[np.float64]] = []  # one per thread
    inverse, is_power = 1 / step, math.frexp(step)[0] == 0.5

    def add(part: NDArray[np.float64], stream: Stream) -> None:
        try:
            room = rooms.pop()
        except IndexError:
            room = np.empty(min(size, len(values)))
        draws = room[: len(part)]
        law.fill(stream, step, draws)
        if is_power:
            part *= inverse  # exact, as the quotient is, and faster
        else:
            part /= step
        np.rint(part, out=part)
        part += draws
        part += 0.0  # make -0.0 positive: it arises only from a clean score near 0, and would reveal it
        part *= step
        rooms.append(room)

    starts = range(0, len(values), size)
    draw_blocks(stream, (values[start : start + size] for start in starts), len(starts), add)
