"""The elliptope (positive semidefinite matrices with unit diagonal) and ways to reach it from a noisy matrix.

``aap`` is Algorithm 3 of the ScoreShield paper, averaged alternating projections. It ends on a valid cosine matrix,
though not on the nearest one. All of it reads the noisy matrix alone, so it is post-processing and costs no
privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from scoreshield import _checks
from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]
Progress = Callable[[int, int], None]

Method = Literal["aap"]
METHODS: tuple[str, ...] = get_args(Method)
_AAP_ITERATIONS = 500


@dataclass(frozen=True)
class Projection:
    """Where a projection ended.

    Attributes
    ----------
    matrix : symmetric, diagonal exactly 1.0, entries in [-1, 1], positive semidefinite to rounding.
    iterations, eigendecompositions : the work done.
    residual : the largest of the method's own stopping measures at the end.
    converged : whether they all fell below the tolerance.
    """

    matrix: Float
    iterations: int
    eigendecompositions: int
    residual: float
    converged: bool


def project_elliptope(
    matrix: ArrayLike,
    method: str = "aap",
    *,
    tol: float = 1e-7,
    max_iterations: int | None = None,
    frobenius_ball: bool = False,
    progress: Progress | None = None,
) -> Projection:
    """A valid cosine matrix near a symmetric one.

    Parameters
    ----------
    matrix : square, symmetric up to rounding, finite; never modified.
    method : ``"aap"``.
    tol : absolute tolerance, in Frobenius norm, on each of the method's stopping measures.
    max_iterations : give up (and say so in ``converged``) after so many; None is 500.
    frobenius_ball : also keep the positive semidefinite iterate within Frobenius norm n, the paper's option.
    progress : called with (iterations done, most there can be).
    """
    function = "project_elliptope"
    array = _symmetric(matrix, function)
    _checks.one_of(method, "method", function, METHODS)
    tol = _checks.positive(tol, "tol", function)
    limit = _AAP_ITERATIONS if max_iterations is None else _checks.count(max_iterations, "max_iterations", function)
    return _aap(array, tol, limit, frobenius_ball, progress)


def _aap(start: Float, tol: float, limit: int, frobenius_ball: bool, progress: Progress | None) -> Projection:
    n = len(start)
    current, residual, steps = start, np.inf, 0
    while steps < limit and residual > tol:
        positive = _positive_part(current)
        if frobenius_ball:
            positive *= min(1.0, n / max(float(np.linalg.norm(positive)), np.finfo(float).tiny))
        box = np.clip(current, -1, 1)
        np.fill_diagonal(box, 1)
        outside = max(float(np.linalg.norm(current - positive)), float(np.linalg.norm(current - box)))
        positive += box
        positive /= 2
        residual = max(outside, float(np.linalg.norm(positive - current)))
        current = positive
        steps += 1
        if progress is not None:
            progress(steps, limit)
    end = _unit_diagonal(_positive_part(current))
    return Projection(end, steps, steps + 1, residual, residual <= tol)


def _positive_part(matrix: Float) -> Float:
    """The nearest positive semidefinite matrix: negative eigenvalues set to zero, exactly symmetric."""
    values, vectors = eigh(matrix, driver="evd", check_finite=False)
    # Rebuild from the smaller of the two eigenspaces.
    if (values > 0).sum() * 2 <= len(values):
        kept = vectors[:, values > 0] * np.sqrt(values[values > 0])
        part: Float = kept @ kept.T
    else:
        removed = vectors[:, values < 0] * np.sqrt(-values[values < 0])
        part = matrix + removed @ removed.T
    return part


def _unit_diagonal(matrix: Float) -> Float:
    """Scale a positive semidefinite matrix to unit diagonal, after adding a little identity if it has zeros there."""
    n = len(matrix)
    if matrix.diagonal().min() <= 0:
        matrix = matrix + max(1e-8 * float(np.linalg.norm(matrix)) / n, np.finfo(float).tiny) * np.eye(n)
    root = np.sqrt(matrix.diagonal())
    matrix = matrix / root
    matrix /= root[:, None]
    matrix += matrix.T
    matrix /= 2
    np.clip(matrix, -1, 1, out=matrix)
    np.fill_diagonal(matrix, 1)
    return matrix


def _symmetric(matrix: ArrayLike, function: str) -> Float:
    array = _checks.array(matrix, "matrix", function, "a square matrix of real numbers")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0 or array.dtype.kind not in "fiu":
        _checks.reject("matrix", function, "a square matrix of real numbers", array)
    array = np.array(array, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InvalidInput(f"The 'matrix' parameter of {function} holds a NaN or an infinity.")
    if np.abs(array).max() > 1e150:
        raise InvalidInput(f"The 'matrix' parameter of {function} holds entries above 1e150; scale it down first.")
    if np.abs(array - array.T).max() > 1e-8 * max(1.0, float(np.abs(array).max())):
        raise InvalidInput(
            f"The 'matrix' parameter of {function} is not symmetric; symmetrise it first, (A + A.T) / 2."
        )
    array += array.T.copy()
    array /= 2
    return array
