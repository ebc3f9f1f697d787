"""Functions that make a noise law for a contract, in a module that other processes can import."""

from __future__ import annotations

from typing import Any

import scipy.stats

from scoreshield.privacy.noise import CustomNoise


def make_logistic(epsilon: float, delta: float) -> CustomNoise:
    del delta
    return CustomNoise.tabulate(scipy.stats.logistic(scale=2.0 / epsilon * (1 + 1e-9)))


def make_wider_logistic(epsilon: float, delta: float) -> CustomNoise:
    del delta
    return CustomNoise.tabulate(scipy.stats.logistic(scale=2.1 / epsilon))


def make_too_little(epsilon: float, delta: float) -> CustomNoise:
    del delta
    return CustomNoise.tabulate(scipy.stats.logistic(scale=1.0 / epsilon))


def make_nothing(epsilon: float, delta: float) -> Any:
    return epsilon, delta
