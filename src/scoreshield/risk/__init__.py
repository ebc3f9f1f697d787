"""The distance of a release from the truth: bounds with their conditions, closed forms, and simulation."""

from scoreshield.risk.closed_forms import (
    RANK_BOUNDS,
    SMOOTHNESS,
    Bound,
    Bounds,
    bounds,
    crossover_rank,
    exact_risk,
    gaussian_complexity,
    statistical_dimension_box,
    statistical_dimension_row,
)
from scoreshield.risk.simulation import Comparison, Estimate, compare, simulate

__all__ = [
    "RANK_BOUNDS",
    "SMOOTHNESS",
    "Bound",
    "Bounds",
    "Comparison",
    "Estimate",
    "bounds",
    "compare",
    "crossover_rank",
    "exact_risk",
    "gaussian_complexity",
    "simulate",
    "statistical_dimension_box",
    "statistical_dimension_row",
]


def __dir__() -> list[str]:
    return list(__all__)
