"""Laplace noise: pure epsilon for releases in which one record moves one score (see `laws`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.privacy.profiles import LaplaceProfile, Profile, round_up
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

Float = NDArray[np.float64]


@dataclass(frozen=True)
class LaplaceNoise:
    """Additive Laplace noise of scale ``b``: density e^(-|x| / b) / (2 b)."""

    b: float

    name: ClassVar[str] = "laplace"

    @validate()
    def __post_init__(self) -> None:
        object.__setattr__(self, "b", _validation.check_positive(self.b, "b"))

    @classmethod
    def calibrate(cls, epsilon: float, sensitivity: float, step: float | None = None) -> LaplaceNoise:
        """Compute the scale for pure epsilon, rounded up. It is the same on every grid."""
        del step
        return cls(sensitivity / epsilon * (1 + 2**-48))

    @property
    def std(self) -> float:
        return math.sqrt(2) * self.b

    @property
    def scale(self) -> float:
        return self.b

    def cdf(self, x: ArrayLike) -> Any:
        z = np.asarray(x, dtype=np.float64) / self.b
        tail = 0.5 * np.exp(-np.abs(z))
        return np.where(z < 0, tail, 1 - tail)

    def sf(self, x: ArrayLike) -> Any:
        return self.cdf(-np.asarray(x, dtype=np.float64))

    def quantile(self, p: ArrayLike) -> Any:
        u = np.asarray(p, dtype=np.float64)
        with np.errstate(divide="ignore"):
            return np.where(u < 0.5, self.b * np.log(2 * u), -self.b * np.log(2 * (1 - u)))

    def profile(self, sensitivity: float) -> Profile:
        return LaplaceProfile(round_up(Fraction(float(sensitivity)) / Fraction(self.b)))

    def fill(self, stream: Stream, step: float, out: Float) -> None:
        """Fill an array with independent draws, in whole steps of the grid."""
        discrete.fill_rounded_laplace(stream, self.b / step, out)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "b": self.b, "std": self.std}
