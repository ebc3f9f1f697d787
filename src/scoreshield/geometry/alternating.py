"""Alternating projections: the paper's averaged projections, Dykstra's exact ones, and the set of an earlier work.

All three alternate between positive semidefinite matrices (one eigendecomposition) and bounded entries (none).
"""

from __future__ import annotations

import math

from array_api_compat import array_namespace

from scoreshield.geometry.arrays import Array, Progress, diagonal, norm, outer_square


def positive_part(matrix: Array) -> Array:
    """Return the nearest positive semidefinite matrix, rebuilt from the smaller of the two eigenspaces."""
    xp = array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    split = int(xp.sum(values <= 0))
    if len(values) - split <= split:
        return outer_square(vectors[:, split:] * xp.sqrt(values[split:]))
    return matrix + outer_square(vectors[:, :split] * xp.sqrt(-values[:split]))


def unit_box(matrix: Array) -> Array:
    """Return the nearest matrix with unit diagonal and entries in [-1, 1]."""
    boxed = array_namespace(matrix).clip(matrix, -1.0, 1.0)
    diagonal(boxed)[:] = 1.0
    return boxed


def into_ball(matrix: Array) -> Array:
    """Scale a matrix to Frobenius norm n if its norm is larger."""
    length, n = norm(matrix), matrix.shape[0]
    return matrix * (n / length) if length > n else matrix


def aap(
    matrix: Array, tol: float, limit: int, frobenius_ball: bool, progress: Progress | None
) -> tuple[Array, int, float]:
    """Run the paper's Algorithm 3 up to its return step.

    Returns:
        The positive part of the last average, the number of steps, and the stopping measure.
    """
    current, residual, steps = matrix, math.inf, 0
    while steps < limit and residual > tol:
        positive = positive_part(current)
        if frobenius_ball:
            positive = into_ball(positive)
        boxed = unit_box(current)
        outside = max(norm(current - positive), norm(current - boxed))
        positive += boxed
        positive /= 2
        residual = max(outside, norm(positive - current))
        current = positive
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return positive_part(current), steps, residual


def dykstra(matrix: Array, tol: float, limit: int, progress: Progress | None) -> tuple[Array, int, float]:
    """Run Dykstra's algorithm: the same two projectors, each corrected so that the limit is the nearest point.

    It stops when the two sets are reached together and the last round moved little, both by at most `tol` sqrt(n).
    """
    xp = array_namespace(matrix)
    current, residual, steps = matrix, math.inf, 0
    first, second = xp.zeros_like(matrix), xp.zeros_like(matrix)
    positive = matrix
    while steps < limit and residual > tol:
        first += current
        positive = positive_part(first)
        first -= positive
        second += positive
        boxed = unit_box(second)
        second -= boxed
        residual = max(norm(boxed - positive), norm(boxed - current)) / math.sqrt(matrix.shape[0])
        current = boxed
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return positive, steps, residual


def pnp(matrix: Array, tol: float, limit: int, progress: Progress | None) -> tuple[Array, int, float]:
    """Project onto the set of Cohen-Addad et al. (2024) by the same averaging; kept for comparison.

    The set has positive semidefinite matrices of Frobenius norm at most n with entries in [-1, 1], *without* a unit
    diagonal.
    """
    xp = array_namespace(matrix)
    current, residual, steps = matrix, math.inf, 0
    while steps < limit and residual > tol:
        positive = into_ball(positive_part(current))
        boxed = xp.clip(current, -1.0, 1.0)
        average = (positive + boxed) / 2
        residual = max(norm(current - positive), norm(current - boxed), norm(average - current))
        current = average
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return xp.clip(positive_part(current), -1.0, 1.0), steps, residual
