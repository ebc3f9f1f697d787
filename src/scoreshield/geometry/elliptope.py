"""The elliptope (positive semidefinite matrices with unit diagonal) and projections onto it from a noisy matrix.

Every method reads only the noisy matrix, so all of this is post-processing and costs no privacy.

    method     what it finds                                                eigendecompositions
    newton     the nearest valid matrix                                     4 to 7 up to noise sd 1,000
    dykstra    the nearest valid matrix, in the limit                       hundreds or thousands
    aap        a valid matrix, the paper's Algorithm 3                      hundreds, 501 at most
    sdp        the nearest valid matrix, by CVXPY, small n                  those of an interior-point method
    pnp        a matrix of an earlier work's set, without a unit diagonal   hundreds, 501 at most
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_positive, one_of, validate
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.geometry import alternating, newton, sdp
from scoreshield.geometry.arrays import Array, Progress, like, norm, to_device, to_numpy

Float = NDArray[np.float64]

Method = Literal["newton", "aap", "dykstra", "sdp", "pnp"]
METHODS: tuple[str, ...] = get_args(Method)
_LIMITS = {"newton": newton.STEPS, "aap": 500, "dykstra": 10_000, "sdp": 200, "pnp": 500}
_LARGEST_ENTRY = 1e100
#: Matrices of the input's size that the method holds at its peak, the input's copy and LAPACK's work included.
_MATRICES = {"newton": 6, "aap": 7, "dykstra": 9, "sdp": 60, "pnp": 7}


@dataclass(frozen=True)
class Projection:
    """The result of a projection.

    Attributes:
        matrix: Exactly symmetric, diagonal exactly 1.0, entries in [-1, 1], smallest eigenvalue at least -1e-10 n. (For
            ``pnp`` the diagonal is free.)
        method: The method that ran; "newton (low-rank start)" for heavy noise, and "newton (low-rank start after a
            stall)" if a first run stopped early.
        iterations: The number of iterations.
        eigendecompositions: The number of eigendecompositions.
        residual: The method's own stopping measure at the end: root mean square violation of the unit diagonal
            for newton, the largest of the algorithm's three measures for aap; NaN for sdp.
        gap: The duality gap, relative to half the squared distance: 0 at the nearest matrix, NaN if there is no
            dual.
        distance: Frobenius distance from the input.
        converged: Whether the residual fell to the tolerance.
    """

    matrix: Float
    method: str
    iterations: int
    eigendecompositions: int
    residual: float
    gap: float
    distance: float
    converged: bool


@validate(method=one_of(METHODS), tol=check_positive)
def project_elliptope(
    matrix: ArrayLike,
    method: str = "newton",
    tol: float = 1e-7,
    max_iterations: int | None = None,
    device: str = "cpu",
    *,
    frobenius_ball: bool = False,
    solver: str = "clarabel",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Projection:
    """Project a symmetric matrix onto the nearest valid cosine matrix (for ``aap`` and ``pnp``, a near one).

    Args:
        matrix: Square, symmetric up to rounding, finite; never modified.
        method: ``"newton"`` (exact), ``"dykstra"`` (exact, slow), ``"aap"`` (the paper's), ``"sdp"`` or ``"pnp"``.
        tol: Tolerance on the method's stopping measure.
        max_iterations: Stop after so many, with `converged` False; None is the method's own limit.
        device: ``"cpu"``, ``"cuda"`` (the 'gpu' extra), or ``"torch"`` for PyTorch on the CPU.
        frobenius_ball: For aap, also keep the positive semidefinite iterate within Frobenius norm n, the paper's
            option.
        solver: For sdp, ``"clarabel"`` or ``"scs"``.
        time_limit: For sdp, the limit in seconds.
        progress: Called with (iterations done, largest possible number).
    """
    limit = _LIMITS[method]
    if max_iterations is not None:
        limit = _validation.check_count(max_iterations, "max_iterations")
    solver = _validation.check_option(solver, "solver", ("clarabel", "scs"))
    if time_limit is not None:
        time_limit = _validation.check_positive(time_limit, "time_limit")
    array = _validation.check_array(matrix, "matrix", "a square matrix of real numbers")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0 or array.dtype.kind not in "fiu":
        _validation.reject("matrix", "a square matrix of real numbers", array)
    needs_memory(len(array), method, device)
    start = _symmetric(to_device(np.ascontiguousarray(array, dtype=np.float64), device))
    if method == "newton":
        return _newton(start, tol, limit, progress)
    extra = 0
    if method == "sdp":
        found, steps, done = sdp.solve(to_numpy(start), tol, limit, solver, time_limit)
        # A solver's tolerance allows small negative eigenvalues.
        return _finished(start, alternating.positive_part(like(found, start)), method, steps, 0, math.nan, done)
    if method == "dykstra":
        found, steps, residual = alternating.dykstra(start, tol, limit, progress)
    else:
        extra = 1
        found, steps, residual = (
            alternating.aap(start, tol, limit, frobenius_ball, progress)
            if method == "aap"
            else alternating.pnp(start, tol, limit, progress)
        )
    return _finished(start, found, method, steps, steps + extra, residual, residual <= tol)


def _newton(start: Array, tol: float, limit: int, progress: Progress | None) -> Projection:
    outcome = newton.solve(start, tol, limit, progress)
    end = newton.to_unit_diagonal(outcome.matrix)
    distance = norm(end - start)
    # Both sides carry half the square of the input, which cancels: 1/2 |X|^2 - <A, X> against -theta(y).
    primal = norm(end) ** 2 / 2 - float((end * start).sum())
    gap = max(0.0, primal + outcome.objective) / max(distance**2 / 2, 1.0)
    starts = {"shifted": "", "low-rank": " (low-rank start)", "stalled": " (low-rank start after a stall)"}
    return Projection(
        to_numpy(end),
        "newton" + starts[outcome.start],
        outcome.iterations,
        outcome.eigendecompositions,
        outcome.residual,
        gap,
        distance,
        outcome.residual <= tol,
    )


def _finished(
    start: Array, found: Array, method: str, iterations: int, eigendecompositions: int, residual: float, converged: bool
) -> Projection:
    end = found if method == "pnp" else newton.to_unit_diagonal(found)
    distance = norm(end - start)
    return Projection(to_numpy(end), method, iterations, eigendecompositions, residual, math.nan, distance, converged)


def _symmetric(array: Array) -> Array:
    """Copy the symmetric part, or raise an error for an array that is not finite, too large or not symmetric."""
    xp = array_namespace(array)
    largest = max(float(xp.max(array)), -float(xp.min(array)))
    if not math.isfinite(largest):
        raise InvalidParameter("matrix", "holds a NaN or an infinity.")
    if largest > _LARGEST_ENTRY:
        raise InvalidParameter("matrix", "holds entries above 1e100; scale it down first.")
    mirrored = array + array.T
    mirrored /= 2
    skew = array - mirrored
    if max(float(xp.max(skew)), -float(xp.min(skew))) > 1e-8 * max(1.0, largest):
        raise InvalidParameter("matrix", "is not symmetric; symmetrise it first, (A + A.T) / 2.")
    return mirrored


def needs_memory(n: int, method: str, device: str) -> None:
    """Raise an error before the start if the computation does not fit into the memory of this machine."""
    needed = 8 * n * n * (_MATRICES[method] if device == "cpu" else 2)
    there = _available_memory()
    if there is not None and needed > there:
        raise InvalidInput(
            f"The projection needs about {needed / 2**30:.1f} GiB for a matrix of {n:,} rows by method {method!r}; "
            f"{there / 2**30:.1f} GiB are free."
        )


def _available_memory() -> int | None:
    """Return the bytes of free memory, if the system states them."""
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None
