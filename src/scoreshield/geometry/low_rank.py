"""Unit rows whose cosines are near the nearest valid matrix under heavy noise (Burer & Monteiro 2003).

Under heavy noise that matrix has a rank of about sqrt(2n). Its rows V minimise `|V V^T|^2 / 4 - <A, V V^T> / 2` over
the product of n spheres, by quasi-Newton steps (L-BFGS, Nocedal 1980) that are taken tangent to the spheres. A step
costs one product of A with V. The curvature of row i is about its multiplier, which scales the steps.

The steps need inner products of their pairs only (Chen, Wang & Zhou 2014). They are computed together, because a GPU
takes longer to return a number than to compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from scoreshield.geometry.arrays import Array, normalise_factor, row_dots, to_numpy

Multiply = Callable[[Array], Array]

_MEMORY = 8  # secant pairs
_NARROWED = 20  # steps between two looks for columns that can be left out
_NEGLIGIBLE = 1e-4  # of the largest eigenvalue of V^T V: such a column may be left out
_SPARE = 6  # columns that are kept all the same, because they may grow again
_SINGLE_TOL = 1e-5  # the violation at which single precision ends
_LEAST_CURVATURE = 0.05  # of the average
_SMALLEST_STEP = 1e-6


@dataclass
class _Point:
    """Unit rows, the function that they minimise, and its gradient along the spheres."""

    rows: Array
    gradient: Array
    multipliers: Array
    curvature: Array  # of each row, estimated by its multiplier for a matrix with a zero diagonal
    numbers: Array  # what follows from these, on their device; `finish` reads it
    value: float = math.nan
    violation: float = math.nan  # the gradient relative to the average curvature

    def finish(self, numbers: list[float]) -> _Point:
        """Set the value and the violation from the numbers."""
        self.value, squares, curvature = numbers
        self.violation = math.sqrt(squares * len(self.rows)) / max(curvature, 1e-300)
        return self


class LowRankDescent:
    """A search for unit rows near the solution.

    Args:
        diagonal: The diagonal of A. It does not influence the rows.
        rows: Where the search starts. In single precision, it goes on in double when it comes near.
        double: The type of double precision.
    """

    def __init__(self, diagonal: Array, rows: Array, double: Any) -> None:
        self._diagonal, self._rows, self._double = diagonal, rows, double

    @property
    def width(self) -> int:
        """The number of columns of the rows."""
        return int(self._rows.shape[1])

    def run(self, multiply: Multiply, tol: float, limit: int) -> tuple[Array, Array]:
        """Go on until the violation is at most ``tol``, for a limited number of steps. It can go on again later.

        Args:
            multiply: Multiplies the matrix A by a block of columns, in the precision of the block. It is not kept.
            tol: The violation at which to stop, relative to the average multiplier.
            limit: The most steps.

        Returns:
            The rows and their multipliers, in double precision.
        """
        xp = array_namespace(self._rows)
        at, pairs = self._evaluate(multiply, self._rows), _Pairs()
        for step in range(1, limit + 1):
            if at.violation <= tol:
                break
            if at.violation <= _SINGLE_TOL and at.rows.dtype != self._double:
                at = self._evaluate(multiply, normalise_factor(xp.astype(at.rows, self._double)))
                pairs.convert(self._double)
            following = self._step(multiply, at, pairs)
            if following is not None:
                at = following
            elif len(pairs) > 0:
                pairs.clear()
            else:
                break
            if step % _NARROWED == 0:
                narrow = _narrow(at.rows, self._double)
                if narrow is not None:
                    at = self._evaluate(multiply, narrow)
                    pairs.clear()
        self._rows = at.rows
        return xp.astype(at.rows, self._double), xp.astype(at.multipliers, self._double)

    def _evaluate(self, multiply: Multiply, rows: Array) -> _Point:
        point = self._begin(multiply, rows)
        return point.finish(to_numpy(point.numbers).tolist())

    def _begin(self, multiply: Multiply, rows: Array) -> _Point:
        """Compute a point up to the numbers, for which a GPU would have to be waited for."""
        xp = array_namespace(rows)
        image, inner = multiply(rows), rows.T @ rows
        value = _dot(inner, inner) / 4 - _dot(rows, image) / 2
        gradient = rows @ inner
        gradient -= image
        multipliers = row_dots(gradient, rows)
        gradient -= multipliers[:, None] * rows
        curvature = -multipliers - xp.astype(self._diagonal, rows.dtype, copy=False)
        least = _LEAST_CURVATURE * abs(curvature).mean() + 1e-30
        curvature = xp.where(curvature > least, curvature, least)
        numbers = xp.stack([value, _dot(gradient, gradient), curvature.sum()])
        return _Point(rows, gradient, multipliers, curvature, numbers)

    def _step(self, multiply: Multiply, at: _Point, pairs: _Pairs) -> _Point | None:
        """Take a step, and remember it. Return None if none helps."""
        xp = array_namespace(at.rows)
        direction = _make_tangent(-pairs.apply_inverse(at.gradient, at.curvature), at.rows)
        start = _dot(direction, at.gradient)
        # Rounding of the value: near the solution only its slope shows where the least value is.
        slack = (1e-12 if at.rows.dtype == self._double else 1e-6) * abs(at.value)
        length = 1.0
        while length >= _SMALLEST_STEP:
            trial = self._begin(multiply, normalise_factor(at.rows + length * direction))
            ends = xp.stack([start, _dot(trial.gradient, direction)])
            *numbers, slope, end = to_numpy(xp.concat([trial.numbers, ends])).tolist()
            if not slope < 0:
                return None
            if trial.finish(numbers).value <= at.value + slack and end <= 0.9 * abs(slope):
                pairs.remember(at, trial, length * direction)
                return trial
            length *= max(0.1, min(0.5, slope / (slope - end))) if end > 0 else 0.4
        return None


class _Pairs:
    """The latest steps, the changes of the gradient along them, and the inverse Hessian that they describe.

    Older pairs are not turned to the tangent space at the latest point: that was tried, and saved no steps.
    """

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._order)

    def clear(self) -> None:
        """Forget all pairs."""
        self._steps: Array = None  # places, rows, columns
        self._changes: Array = None
        self._order: list[int] = []  # the places of the pairs, the oldest first

    def convert(self, dtype: Any) -> None:
        """Convert the pairs to another precision."""
        if self._order:
            xp = array_namespace(self._steps)
            self._steps, self._changes = xp.astype(self._steps, dtype), xp.astype(self._changes, dtype)

    def apply_inverse(self, gradient: Array, curvature: Array) -> Array:
        """Multiply the gradient by the approximate inverse Hessian: the two loops of L-BFGS."""
        scaled = gradient / curvature[:, None]
        count = len(self._order)
        if count == 0:
            return scaled
        xp = array_namespace(gradient)
        steps = self._steps[:count, :, :].reshape(count, -1)
        changes = self._changes[:count, :, :].reshape(count, -1)
        weighted = (self._changes[:count, :, :] / curvature[:, None]).reshape(count, -1)
        flat = gradient.reshape(-1)
        parts = [steps @ changes.T, (steps @ flat)[:, None], weighted @ changes.T, (weighted @ flat)[:, None]]
        products = to_numpy(xp.concat(parts, axis=1)).astype(np.float64)[self._order, :]
        columns = [*self._order, count]
        scale, along, across = _solve(products[:, columns], products[:, count + 1 :][:, columns])
        weights = np.empty((2, count))
        weights[:, self._order] = -scale * along, across
        onto = xp.asarray(weights, dtype=gradient.dtype, device=gradient.device)
        scaled *= scale
        scaled += (onto[0, :] @ weighted).reshape(gradient.shape)
        scaled += (onto[1, :] @ steps).reshape(gradient.shape)
        return scaled

    def remember(self, before: _Point, after: _Point, moved: Array) -> None:
        """Keep the pair of a step, in the place of the oldest where there are enough."""
        xp = array_namespace(moved)
        step = _make_tangent(moved, after.rows)
        change = after.gradient - _make_tangent(before.gradient, after.rows)
        sizes = xp.stack([_dot(step, change), _dot(step, step), _dot(change, change)])
        inner, squares, changes = to_numpy(sizes).tolist()
        if not inner > 1e-12 * math.sqrt(squares * changes):
            return
        if self._steps is None:
            self._steps, self._changes = xp.stack([step] * _MEMORY), xp.stack([change] * _MEMORY)
        place = len(self._order) if len(self._order) < _MEMORY else self._order.pop(0)
        self._order.append(place)
        self._steps[place, :, :], self._changes[place, :, :] = step, change


def _solve(
    steps: NDArray[np.float64], weighted: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Run the two loops of L-BFGS on inner products.

    Args:
        steps: Of each step with each change, and with the gradient in the last column.
        weighted: Of each change over the curvature, with the same.

    Returns:
        The scale between the loops, and the coefficients of the changes before it and of the steps after it.
    """
    count = len(steps)
    inner = np.diagonal(steps)
    scale = inner[-1] / weighted[-1, -2]
    along, across = np.zeros(count), np.zeros(count)
    for i in reversed(range(count)):
        along[i] = (steps[i, -1] - steps[i, :-1] @ along) / inner[i]
    for i in range(count):
        image = scale * (weighted[i, -1] - weighted[i, :-1] @ along) + steps[:, i] @ across
        across[i] = along[i] - image / inner[i]
    return float(scale), along, across


def _narrow(rows: Array, double: Any) -> Array | None:
    """Turn unit rows so that negligible columns can be left out; None where few could be."""
    xp = array_namespace(rows)
    values, rotation = xp.linalg.eigh(xp.astype(rows.T @ rows, double))
    kept = int(xp.sum(values > _NEGLIGIBLE * float(values[-1]))) + _SPARE
    if kept >= 0.8 * rows.shape[1]:
        return None
    return normalise_factor(rows @ xp.astype(rotation[:, -kept:], rows.dtype))


def _make_tangent(block: Array, rows: Array) -> Array:
    """Return the part of a block that is tangent to the spheres of the rows."""
    return block - row_dots(block, rows)[:, None] * rows


def _dot(a: Array, b: Array) -> Array:
    """Compute the inner product of two blocks, on their device."""
    return a.reshape(-1) @ b.reshape(-1)
