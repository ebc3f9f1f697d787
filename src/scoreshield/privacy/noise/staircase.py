"""Staircase noise (Geng & Viswanath 2014): the least noise with pure epsilon where one score moves (see `laws`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.privacy.profiles import Profile, PureProfile, StepProfile, round_up
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

Float = NDArray[np.float64]


@dataclass(frozen=True)
class StaircaseNoise:
    """Additive staircase noise: uniform on steps of width ``sensitivity``, each with an inner and an outer part.

    Attributes:
        epsilon: The density falls by the factor e^-epsilon from the inner to the outer part of each step. The outer
            part and the inner part of the next step have equal density.
        sensitivity: The width D of a step.
        gamma: The share of the inner part. With 1 / (1 + e^(epsilon / 2)) the mean absolute noise is least.
    """

    epsilon: float
    sensitivity: float
    gamma: float

    name: ClassVar[str] = "staircase"

    @validate()
    def __post_init__(self) -> None:
        for field in ("epsilon", "sensitivity"):
            object.__setattr__(self, field, _validation.check_positive(getattr(self, field), field))
        if not 0 < self.gamma <= 1:
            _validation.reject("gamma", "in (0, 1]", self.gamma)

    @classmethod
    def calibrate(cls, epsilon: float, sensitivity: float, step: float | None = None) -> StaircaseNoise:
        """Choose the law with the least mean absolute noise.

        With a grid ``step``, the inner part is a whole number of steps, at least one.
        """
        gamma = 1 / (1 + math.exp(min(epsilon / 2, 700.0)))
        if step is not None:
            width = round(sensitivity / step)
            gamma = max(1, round(gamma * width)) / width
        return cls(epsilon, sensitivity, gamma)

    @property
    def std(self) -> float:
        q = math.exp(-self.epsilon)
        inside = self.gamma / (self.gamma + (1 - self.gamma) * q)
        first = inside * self.gamma / 2 + (1 - inside) * (1 + self.gamma) / 2
        second = inside * self.gamma**2 / 3 + (1 - inside) * (1 + self.gamma + self.gamma**2) / 3
        steps, squares = q / -math.expm1(-self.epsilon), q * (1 + q) / math.expm1(-self.epsilon) ** 2
        return self.sensitivity * math.sqrt(squares + 2 * steps * first + second)

    @property
    def scale(self) -> float:
        return self.std

    def cdf(self, x: ArrayLike) -> Any:
        x = np.asarray(x, dtype=np.float64)
        tail = 0.5 * self._compute_tail(np.abs(x))
        return np.where(x < 0, tail, 1 - tail)

    def sf(self, x: ArrayLike) -> Any:
        return self.cdf(-np.asarray(x, dtype=np.float64))

    def _compute_tail(self, size: Any) -> Any:
        """P[|W| > size]."""
        q = math.exp(-self.epsilon)
        whole = self.gamma + (1 - self.gamma) * q
        steps = np.floor(size / self.sensitivity)
        part = size / self.sensitivity - steps
        used = (np.minimum(part, self.gamma) + q * np.maximum(part - self.gamma, 0.0)) / whole
        with np.errstate(under="ignore"):
            return np.exp(-self.epsilon * steps) * (1 - used * -math.expm1(-self.epsilon))

    def quantile(self, p: ArrayLike) -> Any:
        u = np.asarray(p, dtype=np.float64)
        beyond = 2 * np.minimum(u, 1 - u)
        logs = np.log(np.where(beyond == 0, 1.0, beyond))
        steps = np.floor(-logs / self.epsilon)
        q = math.exp(-self.epsilon)
        used = np.expm1(logs + self.epsilon * steps) / math.expm1(-self.epsilon) * (self.gamma + (1 - self.gamma) * q)
        part = np.where(used <= self.gamma, used, self.gamma + (used - self.gamma) / q)
        return np.sign(u - 0.5) * self.sensitivity * np.where(beyond == 0, math.inf, steps + part)

    def profile(self, sensitivity: float) -> Profile:
        """Return the privacy of this noise on an entry that one change moves by at most ``sensitivity``.

        A move by up to one step has the loss epsilon, 0 or -epsilon. A longer move costs at most epsilon per step. The
        density falls with |x|, so a move by s gives the best test an advantage of P[|W| <= s / 2], which is largest at
        s = D. On the grid it is a little less if the inner part is at most half a step (docs/mechanisms.md).
        """
        steps = max(1, math.ceil(sensitivity / self.sensitivity * (1 - 1e-12)))
        if steps > 1 or self.gamma > 0.5:
            return PureProfile(round_up(steps * Fraction(self.epsilon)))
        q = math.exp(-self.epsilon)
        inside = (self.gamma + (0.5 - self.gamma) * q) / (self.gamma + (1 - self.gamma) * q)
        return StepProfile(self.epsilon, inside * (1 + 2**-45))

    def fill(self, stream: Stream, step: float, out: Float) -> None:
        width = round(self.sensitivity / step)
        discrete.fill_staircase(stream, self.epsilon, width, max(1, round(self.gamma * width)), out)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "epsilon": self.epsilon,
            "sensitivity": self.sensitivity,
            "gamma": self.gamma,
            "std": self.std,
        }
