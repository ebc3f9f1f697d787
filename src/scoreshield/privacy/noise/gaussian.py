"""Noise laws, the public grid that released values live on, and how noise is put on a clean array."""

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
from scoreshield.privacy.sampling.stream import Stream

#: A grid step is a power of two, and this many halvings below the noise's standard deviation (at least).
GRID_BITS = 26
#: No step is finer than this, so that every released value is a whole number of steps below 2^53.
FINEST_STEP = 2.0**-50


@dataclass(frozen=True)
class GaussianNoise:
    """Additive Gaussian noise of standard deviation ``std`` on every released entry."""

    std: float

    name: ClassVar[str] = "gaussian"

    @validate()
    def __post_init__(self) -> None:
        object.__setattr__(self, "std", _validation.check_positive(self.std, "std"))

    def cdf(self, x: ArrayLike) -> Any:
        """P[noise <= x]."""
        return ndtr(np.asarray(x, dtype=np.float64) / self.std)

    def sf(self, x: ArrayLike) -> Any:
        """P[noise > x], accurate in the far tail."""
        return ndtr(-np.asarray(x, dtype=np.float64) / self.std)

    def quantile(self, p: ArrayLike) -> Any:
        """The x with P[noise <= x] = p."""
        return self.std * ndtri(np.asarray(p, dtype=np.float64))

    def profile(self, sensitivity: float) -> Profile:
        return GaussianProfile(sensitivity / self.std)

    def fill(self, stream: Stream, step: float, out: NDArray[np.float64]) -> None:
        """Independent draws, in whole steps of the grid."""
        fill_rounded_gaussian(stream, self.std / step, out)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "std": self.std}


def choose_grid_step(std: float) -> float:
    """The public grid for noise of this size: a power of two near std / 2^26."""
    if not math.isfinite(std):
        raise InvalidInput("This contract takes infinite noise; ask for a larger epsilon or delta.")
    step = max(math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS), FINEST_STEP)
    if step > 1:
        raise InvalidInput(
            f"This contract takes noise of standard deviation {std:.3g}, which drowns any cosine (the most is "
            f"{2 ** (GRID_BITS + 1):,}); ask for a larger epsilon or delta, or protect less."
        )
    return step


class _DrawableLaw(Protocol):
    def fill(self, stream: Stream, step: float, out: NDArray[np.float64]) -> None: ...


def add_noise(values: NDArray[np.float64], law: _DrawableLaw, step: float, stream: Stream) -> None:
    """Replace clean values, in place, by round(value / step) * step plus exact noise on the same grid.

    ``values`` is one-dimensional. Each result is a multiple of ``step`` and exact in double precision. The noise is
    drawn without looking at the values, so neither its time nor its randomness depends on them.
    """
    block = 1 << 20
    noise = np.empty(min(block, len(values)))
    for start in range(0, len(values), block):
        part = values[start : start + block]
        drawn = noise[: len(part)]
        law.fill(stream, step, drawn)
        part /= step
        np.rint(part, out=part)
        part += drawn
        part += 0.0  # -0.0 is the sum of two such zeros only, and would reveal a clean score near 0
        part *= step
