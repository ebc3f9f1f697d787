"""Projections that are kept for comparison with Newton's method in `scoreshield.geometry.newton`.

The paper's averaged projections, Dykstra's algorithm and the earlier work's set alternate between positive semidefinite
matrices, which takes one eigendecomposition, and bounded entries, which takes none. The semidefinite program is solved
by CVXPY (the 'sdp' extra), for small matrices only.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput
from scoreshield.geometry.arrays import Array, Progress, diagonal, norm, outer_square

Float = NDArray[np.float64]
Solver = Literal["clarabel", "scs"]


def take_positive_part(matrix: Array) -> Array:
    """Return the nearest positive semidefinite matrix, rebuilt from the smaller of the two eigenspaces."""
    xp = array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    split = int(xp.sum(values <= 0))
    if len(values) - split <= split:
        return outer_square(vectors[:, split:] * xp.sqrt(values[split:]))
    return matrix + outer_square(vectors[:, :split] * xp.sqrt(-values[:split]))


def clip_to_unit_box(matrix: Array) -> Array:
    """Return the nearest matrix with unit diagonal and entries in [-1, 1]."""
    boxed = array_namespace(matrix).clip(matrix, -1.0, 1.0)
    diagonal(boxed)[:] = 1.0
    return boxed


def scale_into_ball(matrix: Array) -> Array:
    """Scale the matrix to Frobenius norm n where its norm is larger."""
    length, n = norm(matrix), matrix.shape[0]
    return matrix * (n / length) if length > n else matrix


def project_by_averages(
    matrix: Array, tol: float, limit: int, frobenius_ball: bool, progress: Progress | None
) -> tuple[Array, int, float]:
    """Run the paper's Algorithm 3 (averaged alternating projections) up to its return step.

    Returns:
        The positive part of the last average, the number of steps, and the stopping measure.
    """
    current, residual, steps = matrix, math.inf, 0
    while steps < limit and residual > tol:
        positive = take_positive_part(current)
        if frobenius_ball:
            positive = scale_into_ball(positive)
        boxed = clip_to_unit_box(current)
        outside = max(norm(current - positive), norm(current - boxed))
        positive += boxed
        positive /= 2
        residual = max(outside, norm(positive - current))
        current = positive
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return take_positive_part(current), steps, residual


def project_by_dykstra(matrix: Array, tol: float, limit: int, progress: Progress | None) -> tuple[Array, int, float]:
    """Run Dykstra's algorithm: the same two projectors, each corrected so that the limit is the nearest point.

    It stops when both sets are reached and the last round moved little, both by at most ``tol`` sqrt(n).

    Returns:
        A positive semidefinite matrix, the number of steps, and the stopping measure.
    """
    xp = array_namespace(matrix)
    current, residual, steps = matrix, math.inf, 0
    first, second = xp.zeros_like(matrix), xp.zeros_like(matrix)
    positive = matrix
    while steps < limit and residual > tol:
        first += current
        positive = take_positive_part(first)
        first -= positive
        second += positive
        boxed = clip_to_unit_box(second)
        second -= boxed
        residual = max(norm(boxed - positive), norm(boxed - current)) / math.sqrt(matrix.shape[0])
        current = boxed
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return positive, steps, residual


def project_without_diagonal(
    matrix: Array, tol: float, limit: int, progress: Progress | None
) -> tuple[Array, int, float]:
    """Project onto the set of Cohen-Addad et al. (2024) by the same averaging.

    The set holds positive semidefinite matrices of Frobenius norm at most n with entries in [-1, 1], *without* a unit
    diagonal.

    Returns:
        The matrix, the number of steps, and the stopping measure.
    """
    xp = array_namespace(matrix)
    current, residual, steps = matrix, math.inf, 0
    while steps < limit and residual > tol:
        positive = scale_into_ball(take_positive_part(current))
        boxed = xp.clip(current, -1.0, 1.0)
        average = (positive + boxed) / 2
        residual = max(norm(current - positive), norm(current - boxed), norm(average - current))
        current = average
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return xp.clip(take_positive_part(current), -1.0, 1.0), steps, residual


def project_by_program(
    matrix: Float, tol: float, limit: int, solver: Solver, time_limit: float | None
) -> tuple[Float, int, bool]:
    """Solve the projection as a semidefinite program.

    Returns:
        The solver's matrix, its number of iterations, and whether the solver reports an optimal solution.
    """
    try:
        import cvxpy
    except ImportError:
        raise InvalidInput("The method 'sdp' needs the 'sdp' extra: pip install 'scoreshield[sdp]'.") from None
    cp: Any = cvxpy
    variable = cp.Variable(matrix.shape, PSD=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(variable - matrix)), [cp.diag(variable) == 1])
    options: dict[str, float] = {}
    if solver == "clarabel":
        options = {"tol_feas": tol, "tol_gap_abs": tol, "tol_gap_rel": tol, "max_iter": limit}
        if time_limit is not None:
            options["time_limit"] = time_limit
    else:
        options = {"eps_abs": tol, "eps_rel": tol, "max_iters": 100 * limit}
        if time_limit is not None:
            options["time_limit_secs"] = time_limit
    try:
        with warnings.catch_warnings():
            # A solver that stops at its limit has an inaccurate solution. The returned flag says so.
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            problem.solve(solver=solver.upper(), **options)
    except cp.SolverError:
        return np.eye(len(matrix)), 0, False
    steps = int(problem.solver_stats.num_iters or 0)
    if variable.value is None:
        return np.eye(len(matrix)), steps, False
    return np.asarray(variable.value, dtype=np.float64), steps, problem.status == cp.OPTIMAL
