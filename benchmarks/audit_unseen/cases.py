"""What the faults and the honest mechanisms share: the record of a case, generators, noise, and a public step.

Scores become whole numbers of steps before noise is added. So their low bits are clean in no case.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from audit_battery.cases import QUERY, Array, Case, ReleaseFunction
from scoreshield.audit import Claim
from scoreshield.privacy.profiles import GaussianProfile

#: The number of steps between the scores 0 and 1.
STEPS = 1000


@dataclass(frozen=True)
class UnseenCase(Case):
    """One release of this set; `source` is the kind of the fault or of the mechanism.

    Attributes:
        rates: For a fault: how often the event of its docstring happens on the first and on the second collection.
    """

    rates: tuple[float, float] = (0.0, 0.0)

    @property
    def target(self) -> str:
        """What `scoreshield audit` is called with, in the folder of the benchmarks."""
        return f"{self.release.__module__}:{self.release.__name__}"


def add_case(
    group: list[UnseenCase],
    source: str,
    *,
    epsilon: float = 1.0,
    delta: float = 0.0,
    is_gaussian: bool = False,
    query: Array | None = QUERY,
    rates: tuple[float, float] = (0.0, 0.0),
    is_honest: bool = False,
    findable: bool = True,
    note: str = "",
) -> Callable[[ReleaseFunction], ReleaseFunction]:
    """Make a decorator that adds a release to a group; the first line of a fault's docstring says what is wrong."""

    def add(release: ReleaseFunction) -> ReleaseFunction:
        profile = GaussianProfile(compute_mu(epsilon, delta)) if is_gaussian else None
        claim = Claim(epsilon, delta, profile=profile)
        fault = "" if is_honest else (inspect.getdoc(release) or "").partition("\n")[0]
        name = release.__name__.replace("_", "-")
        group.append(UnseenCase(name, release, claim, query, source, is_honest, fault, findable, note, rates=rates))
        return release

    return add


def compute_mu(epsilon: float, delta: float) -> float:
    """Compute the mu of the Gaussian mechanism that is exactly (epsilon, delta)-private, by bisection."""
    low, high = 1e-6, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        reached = norm.cdf(-epsilon / middle + middle / 2) - math.exp(epsilon) * norm.cdf(
            -epsilon / middle - middle / 2
        )
        low, high = (middle, high) if reached < delta else (low, middle)
    return low


def make_generator(rng: np.random.Generator | None = None) -> np.random.Generator:
    """Make a fresh generator, unless there is one."""
    return np.random.default_rng() if rng is None else rng


def draw_geometric(rng: np.random.Generator, scale: float, size: Any = None) -> Any:
    """Draw two-sided geometric (discrete Laplace) noise, where k has the weight exp(-|k| / scale)."""
    p = -math.expm1(-1.0 / scale)
    noise = rng.geometric(p, size) - rng.geometric(p, size)
    return int(noise) if size is None else noise
