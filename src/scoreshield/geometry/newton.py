"""The exact projection onto the elliptope: semismooth Newton on the dual, from a start that fits the noise.

The nearest matrix with unit diagonal and no negative eigenvalue is `(A + Diag y)_+`, where y minimises
the convex function (Qi & Sun 2006; Borsdorf & Higham 2010)

    θ(y) = (1/2) |(A + Diag y)_+|_F^2 - Σ_i y_i,
    ∇θ(y) = diag (A + Diag y)_+ - 1.

Each Newton step solves with the generalised Hessian by preconditioned conjugate gradients, in the smaller of the
positive and negative eigenspaces, and is made safe by Armijo's rule. Two starts replace the textbook's y = 1 - diag(A):

* *Moderate noise*: y = -c, with c such that the positive part of A - c I has trace n. It saves a step.
* *Heavy noise* (that positive part has rank below 1.2 sqrt(2n)): the solution then has low rank (about sqrt(2n),
  Pataki 1998), and X = V V^T with unit rows is found by gradient steps of Barzilai & Borwein's length, which need
  products with A but no eigendecomposition (Burer & Monteiro 2003). Its multipliers are the start, which Newton steps
  then refine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from array_api_compat import array_namespace

from scoreshield.geometry.arrays import Array, Progress, diagonal, like, norm, normalise_factor, outer_square, row_dots
from scoreshield.geometry.conjugate import solve_by_gradients

STEPS = 100  # more steps are needed only after a stall
_LOW_RANK = 1.2  # times sqrt(2n): below this rank the low-rank start is used
_PRODUCTS = 1500  # the most products with A in the low-rank start
_CG_STEPS = 300
_SMALLEST_STEP = 2.0**-20


@dataclass
class Point:
    """The dual function at one y, from one eigendecomposition."""

    y: Array
    values: Array
    vectors: Array  # None after they are released, to save memory
    positive: int  # the number of positive eigenvalues
    objective: float
    gradient: Array

    @classmethod
    def evaluate(cls, matrix: Array, y: Array) -> Point:
        """Evaluate the dual function at y. The diagonal of the matrix is shifted meanwhile, which saves a copy."""
        xp = array_namespace(matrix)
        before = xp.asarray(diagonal(matrix), copy=True)
        try:
            diagonal(matrix)[:] += y
            values, vectors = xp.linalg.eigh(matrix)
        finally:
            diagonal(matrix)[:] = before
        return cls.from_spectrum(y, values, vectors)

    @classmethod
    def from_spectrum(cls, y: Array, values: Array, vectors: Array) -> Point:
        """Compute the dual function and its gradient from the eigenvalues and eigenvectors of A + Diag y."""
        xp = array_namespace(values)
        positive = int(xp.sum(values > 0))
        kept, space = values[len(values) - positive :], vectors[:, len(values) - positive :]
        gradient = row_dots(space * kept, space) - 1
        return cls(y, values, vectors, positive, float(kept @ kept) / 2 - float(xp.sum(y)), gradient)

    @property
    def residual(self) -> float:
        """The root mean square violation of the unit diagonal."""
        return norm(self.gradient) / math.sqrt(len(self.y))

    def compute_matrix(self) -> Array:
        """Compute the primal candidate, (A + Diag y)_+."""
        split = len(self.values) - self.positive
        return outer_square(self.vectors[:, split:] * array_namespace(self.y).sqrt(self.values[split:]))


@dataclass
class DualSolution:
    """What the solver found: a positive semidefinite matrix, its dual objective, and the work."""

    matrix: Array
    objective: float
    residual: float
    iterations: int
    eigendecompositions: int
    start: Literal["shifted", "low-rank", "stalled"]  # "stalled": low-rank, after the shifted start stopped early


def solve_dual(matrix: Array, tol: float, limit: int, progress: Progress | None = None) -> DualSolution:
    """Minimise the dual to a residual of ``tol``, with at most ``limit`` Newton steps."""
    xp = array_namespace(matrix)
    n = matrix.shape[0]
    first = Point.evaluate(matrix, xp.zeros_like(diagonal(matrix)))
    shift = find_trace_shift(first.values)
    spent, stalled = 1, None
    if n <= 8 or float(xp.sum(first.values > shift)) > _LOW_RANK * math.sqrt(2 * n):
        first = Point.from_spectrum(first.y - shift, first.values - shift, first.vectors)
        solution = _iterate(matrix, first, spent, tol, limit, progress)
        if solution.residual <= tol or n == 1 or solution.iterations == limit < STEPS:
            return solution  # converged, or stopped by the caller's limit rather than stalled
        first = Point.evaluate(matrix, xp.zeros_like(first.y))
        spent, stalled = solution.eigendecompositions + 1, solution
    factor, y = _find_low_rank_start(matrix, first, shift)
    del first
    solution = _iterate(matrix, Point.evaluate(matrix, y), spent + 1, tol, limit, progress)
    solution.start = "low-rank" if stalled is None else "stalled"
    if stalled is not None and stalled.residual < solution.residual:
        solution.matrix, solution.objective, solution.residual = stalled.matrix, stalled.objective, stalled.residual
    if solution.residual > tol:
        # The factor is feasible. Keep the nearer of the two once the other is made feasible.
        solution.matrix = scale_to_unit_diagonal(solution.matrix)
        low_rank = outer_square(factor)
        if norm(low_rank - matrix) < norm(solution.matrix - matrix):
            solution.matrix = low_rank
    return solution


def find_trace_shift(values: Array) -> float:
    """Find the c with sum (value - c)_+ = n, for ascending eigenvalues."""
    xp = array_namespace(values)
    n = len(values)
    falling = xp.flip(values)
    shifts = (xp.cumulative_sum(falling) - n) / like(np.arange(1.0, n + 1), values)
    return float(shifts[int(xp.sum(falling > shifts)) - 1])


def scale_to_unit_diagonal(matrix: Array) -> Array:
    """Scale a positive semidefinite matrix, which is overwritten, to unit diagonal.

    Where the diagonal has a zero, a small multiple of the identity is added first.
    """
    xp = array_namespace(matrix)
    if float(xp.min(diagonal(matrix))) <= 0:
        diagonal(matrix)[:] += max(1e-8 * norm(matrix) / matrix.shape[0], 1e-300)
    root = xp.sqrt(diagonal(matrix))
    matrix /= root[:, None]
    matrix /= root[None, :]
    mirrored = matrix + matrix.T
    mirrored /= 2
    mirrored = xp.clip(mirrored, -1.0, 1.0)
    diagonal(mirrored)[:] = 1.0
    return mirrored


def _iterate(
    matrix: Array, point: Point, spent: int, tol: float, limit: int, progress: Progress | None
) -> DualSolution:
    """Take Newton steps from a point. Its eigenvectors are released once a direction is known, to save memory."""
    steps = 0
    while point.residual > tol and steps < limit:
        accuracy = max(min(0.1, point.residual), 0.3 * tol / point.residual)
        direction = _newton_direction(point, accuracy)
        slope, length = float(point.gradient @ direction), 1.0
        if not slope < 0:
            break
        point.vectors = None
        while True:
            trial = Point.evaluate(matrix, point.y + length * direction)
            spent += 1
            # The last term bounds the rounding of the objective.
            if trial.objective <= point.objective + 1e-4 * length * slope + 1e-13 * abs(point.objective):
                break
            trial.vectors = None
            length /= 2
            if length < _SMALLEST_STEP:
                return _make_solution(Point.evaluate(matrix, point.y), steps, spent + 1)
        if trial.residual >= 0.9 * point.residual and abs(slope) <= 1e-13 * abs(point.objective):
            point = trial
            break  # rounding prevents further progress
        point = trial
        steps += 1
        if progress is not None:
            progress(steps, limit)
    return _make_solution(point, steps, spent)


def _make_solution(point: Point, steps: int, spent: int) -> DualSolution:
    residual = point.residual
    matrix = point.compute_matrix()
    point.vectors = None
    return DualSolution(matrix, point.objective, residual, steps, spent, "shifted")


def _newton_direction(point: Point, accuracy: float) -> Array:
    """Solve V d = -gradient to a relative accuracy, V the generalised Hessian.

    With P the positive and N the other eigenvectors, V h is the diagonal of
    `P P^T H P P^T + P (Ω ∘ P^T H N) N^T + N (Ω ∘ P^T H N)^T P^T`, H = Diag h and
    `Ω_ij = λ_i / (λ_i - λ_j)`; or h less the same with P and N exchanged and 1 - Omega.
    """
    xp = array_namespace(point.y)
    split = len(point.values) - point.positive
    below, above = point.values[:split], point.values[split:]
    weights = above[:, None] / (above[:, None] - below[None, :])
    small, large = point.vectors[:, split:], point.vectors[:, :split]
    complement = point.positive > split
    if complement:
        small, large, weights = large, small, (1 - weights).T
    squares = small * small
    scaling = xp.sum(squares, axis=1) ** 2 + 2 * row_dots(squares @ weights, large * large)
    del squares
    scaling = xp.clip(1 - scaling if complement else scaling, 1e-8, None)

    def hessian(h: Array) -> Array:
        rows = small.T * h
        within, across = rows @ small, rows @ large
        across *= weights
        product = row_dots(small @ within, small) + 2 * row_dots(small @ across, large)
        return (h - product if complement else product) + 1e-12 * h

    return solve_by_gradients(hessian, -point.gradient, scaling, accuracy, _CG_STEPS)


def _find_low_rank_start(matrix: Array, point: Point, shift: float) -> tuple[Array, Array]:
    """Find unit rows V that make <A, V V^T> - |V V^T|^2 / 2 stationary, and their multipliers y."""
    xp = array_namespace(matrix)
    n = matrix.shape[0]
    rank = min(n, math.ceil(math.sqrt(2 * n)) + 1)
    top = point.values[n - rank :]
    spread = xp.sqrt(xp.clip(top - shift, 0.0, None) + 1e-3 * (float(point.values[n - 1]) - shift))
    jitter = np.random.default_rng(0).standard_normal((n, rank)) * (1e-3 / math.sqrt(rank))
    factor = normalise_factor(point.vectors[:, n - rank :] * spread + like(jitter, matrix))
    gradient, multipliers, tangent = _compute_ascent(matrix, factor)
    length = 1 / max(float(xp.mean(xp.abs(multipliers))), 1e-300)
    # The multipliers matter on the scale of the solution's own eigenvalues, not on that of the noise.
    tol = max(1e-10, min(1e-4, 1 / max(abs(shift), 1e-300)))
    for step in range(_PRODUCTS):
        if norm(tangent) <= tol * norm(gradient):
            break
        trial = normalise_factor(factor + length * tangent)
        gradient, multipliers, new_tangent = _compute_ascent(matrix, trial)
        moved, turned = trial - factor, tangent - new_tangent
        inner = abs(float(xp.sum(moved * turned)))
        long, short = norm(moved) ** 2, norm(turned) ** 2
        if inner == 0 or short == 0:
            break
        length = long / inner if step % 2 else inner / short
        factor, tangent = trial, new_tangent
    return factor, -multipliers


def _compute_ascent(matrix: Array, factor: Array) -> tuple[Array, Array, Array]:
    """Compute half the gradient, its component along each row, and the rest, which is tangent to the spheres."""
    gradient = matrix @ factor - factor @ (factor.T @ factor)
    along = row_dots(gradient, factor)
    return gradient, along, gradient - along[:, None] * factor
