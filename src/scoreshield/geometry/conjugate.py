"""Conjugate gradients for the steps of both projection solvers, on any device."""

from __future__ import annotations

from collections.abc import Callable

from array_api_compat import array_namespace

from scoreshield.geometry.arrays import Array, norm


def solve_by_gradients(
    operator: Callable[[Array], Array], target: Array, scaling: Array, accuracy: float, limit: int
) -> Array:
    """Solve a positive definite system by preconditioned conjugate gradients.

    Args:
        operator: Multiplies a vector by the matrix of the system.
        target: The right-hand side.
        scaling: The diagonal of the matrix, or an estimate of it: the preconditioner.
        accuracy: The residual at which to stop, relative to the right-hand side.
        limit: The most steps.

    Returns:
        The solution so far. Where rounding makes the first curvature negative, the scaled right-hand side.
    """
    solution = array_namespace(target).zeros_like(target)
    left = target
    enough = accuracy * norm(target)
    scaled = left / scaling
    search = scaled
    energy = float(left @ scaled)
    for step in range(limit):
        if norm(left) <= enough:
            break
        image = operator(search)
        curvature = float(search @ image)
        if curvature <= 0:
            return search if step == 0 else solution
        length = energy / curvature
        solution = solution + length * search
        left = left - length * image
        scaled = left / scaling
        fresh = float(left @ scaled)
        search = scaled + (fresh / energy) * search
        energy = fresh
    return solution
