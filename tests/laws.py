"""Other noise laws than the Gaussian, as `decisions` must take them: by their CDF alone, or as a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Laplace:
    b: float

    @property
    def std(self) -> float:
        return 2**0.5 * self.b

    def cdf(self, x: Any) -> Any:
        x = np.asarray(x, dtype=float)
        return np.where(x < 0, 0.5 * np.exp(np.minimum(x, 0) / self.b), 1 - 0.5 * np.exp(-np.maximum(x, 0) / self.b))


@dataclass(frozen=True)
class Staircase:
    """Geng and Viswanath's noise: a density in steps of the sensitivity, falling by e^-epsilon each."""

    epsilon: float
    sensitivity: float = 2.0

    @property
    def gamma(self) -> float:
        return float(1 / (1 + np.exp(self.epsilon / 2)))

    @property
    def std(self) -> float:
        x = np.linspace(0, 60 * self.sensitivity, 400_001)
        return float(np.sqrt(2 * np.trapezoid(2 * x * (1 - self.cdf(x)), x)))

    def cdf(self, x: Any) -> Any:
        x = np.asarray(x, dtype=float)
        q, g = np.exp(-self.epsilon), self.gamma
        height = (1 - q) / (2 * self.sensitivity * (g + q * (1 - g)))
        size = np.abs(x) / self.sensitivity
        step = np.floor(size)
        part = size - step
        per_step = self.sensitivity * height * (g + q * (1 - g))
        mass = per_step * (1 - q**step) / (1 - q)
        mass = mass + self.sensitivity * height * q**step * (np.minimum(part, g) + q * np.maximum(part - g, 0))
        return 0.5 + np.sign(x) * mass


@dataclass(frozen=True)
class GridLaplace:
    """Two-sided geometric noise on a grid: a law with atoms."""

    b: float
    step: float

    @property
    def std(self) -> float:
        q = np.exp(-self.step / self.b)
        return float(self.step * np.sqrt(2 * q) / (1 - q))

    def cdf(self, x: Any) -> Any:
        q = np.exp(-self.step / self.b)
        k = np.floor(np.asarray(x, dtype=float) / self.step)
        return np.where(k < 0, q ** (-np.minimum(k, 0)) / (1 + q), 1 - q ** (np.maximum(k, 0) + 1) / (1 + q))


@dataclass(frozen=True)
class RandomisedResponse:
    """One bit a score: above a public threshold or not, told truly with probability ``keep``; released as 0 or 1."""

    threshold: float
    keep: float

    @property
    def std(self) -> float:
        return float(np.sqrt(self.keep * (1 - self.keep)))

    def exceed(self, threshold: Any, score: Any, inclusive: bool = False) -> Any:
        one = np.where(np.asarray(score) > self.threshold, self.keep, 1 - self.keep)
        t = np.asarray(threshold, dtype=float)
        none, both = ((t > 1), (t <= 0)) if inclusive else ((t >= 1), (t < 0))
        return np.where(none, 0.0, np.where(both, 1.0, one))
