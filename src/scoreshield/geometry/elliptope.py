"""The elliptope (positive semidefinite matrices with unit diagonal): projections onto it, and its factored form.

Every method reads the noisy matrix alone. It is post-processing and costs no privacy.

    method     what it finds                                                        eigendecompositions
    newton     the nearest valid matrix                                             4 to 7 up to noise sd 1,000
    dykstra    the nearest valid matrix, in the limit                               hundreds or thousands
    aap        a valid matrix, the paper's Algorithm 3                              hundreds, 501 at most
    sdp        the nearest valid matrix, by CVXPY, small n                          those of an interior-point method
    pnp        a matrix of an earlier work's set, without a unit diagonal           hundreds, 501 at most
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, optional, validate
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.geometry import comparison, newton
from scoreshield.geometry.arrays import Array, Progress, like, norm, to_device, to_numpy
from scoreshield.geometry.comparison import Solver

Float = NDArray[np.float64]

Method = Literal["newton", "aap", "dykstra", "sdp", "pnp"]
METHODS: tuple[str, ...] = get_args(Method)
_LIMITS = {"newton": newton.STEPS, "aap": 500, "dykstra": 10_000, "sdp": 200, "pnp": 500}
_LARGEST_ENTRY = 1e100
_NEGLIGIBLE = 1e-9  # of the largest eigenvalue: a smaller eigenvalue is rounding
#: Matrices of the input's size that the method holds at its peak, the input's copy and LAPACK's work included.
_MATRICES = {"newton": 6, "aap": 7, "dykstra": 9, "sdp": 60, "pnp": 7}


@dataclass(frozen=True)
class Projection:
    """The result of a projection.

    Attributes:
        matrix: Exactly symmetric, diagonal exactly 1.0, entries in [-1, 1], smallest eigenvalue at least -1e-10 n. For
            ``pnp`` the diagonal is not set to 1.
        method: The method that ran: "newton (low-rank start)" where the noise was heavy, and "newton (low-rank start
            after a stall)" where a first run stopped early.
        iterations: The number of steps.
        eigendecompositions: The number of eigendecompositions.
        residual: The method's stopping measure at the end: the root mean square violation of the unit diagonal for
            newton, the largest of the algorithm's three measures for aap, NaN for sdp.
        gap: The duality gap, relative to half the squared distance: 0 at the nearest matrix, NaN without a dual.
        distance: The Frobenius distance from the input.
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


@validate(
    method=one_of(METHODS),
    tol=check_positive,
    max_iterations=optional(check_count),
    solver=one_of(get_args(Solver)),
    time_limit=optional(check_positive),
)
def project_elliptope(
    matrix: ArrayLike,
    method: Method = "newton",
    tol: float = 1e-7,
    max_iterations: int | None = None,
    device: str = "cpu",
    *,
    frobenius_ball: bool = False,
    solver: Solver = "clarabel",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Projection:
    """Find the valid cosine matrix nearest to a symmetric matrix, or one near it by a method kept for comparison.

    Args:
        matrix: Square, symmetric up to rounding, finite. It is not modified.
        method: ``"newton"`` (exact), ``"dykstra"`` (exact, slow), ``"aap"`` (the paper's), ``"sdp"`` or ``"pnp"``.
        tol: The tolerance on the method's stopping measure.
        max_iterations: Stop after this number of steps, with ``converged`` False. None is the method's own limit.
        device: ``"cpu"``, ``"cuda"`` (the 'gpu' extra), or ``"torch"`` for PyTorch on the CPU.
        frobenius_ball: For aap: also keep the positive semidefinite iterate within Frobenius norm n, as the paper
            offers.
        solver: For sdp: ``"clarabel"`` or ``"scs"``.
        time_limit: For sdp: seconds.
        progress: Called with the steps done and the largest possible number of steps.

    Returns:
        The valid matrix, with the work it took.
    """
    limit = _LIMITS[method] if max_iterations is None else max_iterations
    array = _validation.check_array(matrix, "matrix", "a square matrix of real numbers")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0 or array.dtype.kind not in "fiu":
        _validation.reject("matrix", "a square matrix of real numbers", array)
    check_memory(len(array), method, device)
    start = _symmetrise(to_device(np.ascontiguousarray(array, dtype=np.float64), device))
    if method == "newton":
        return _project_by_newton(start, tol, limit, progress)
    extra = 0
    if method == "sdp":
        solution, steps, is_optimal = comparison.project_by_program(to_numpy(start), tol, limit, solver, time_limit)
        # A solver's tolerance allows small negative eigenvalues.
        positive = comparison.take_positive_part(like(solution, start))
        return _make_projection(start, positive, method, steps, 0, math.nan, is_optimal)
    if method == "dykstra":
        end, steps, residual = comparison.project_by_dykstra(start, tol, limit, progress)
    else:
        extra = 1
        end, steps, residual = (
            comparison.project_by_averages(start, tol, limit, frobenius_ball, progress)
            if method == "aap"
            else comparison.project_without_diagonal(start, tol, limit, progress)
        )
    return _make_projection(start, end, method, steps, steps + extra, residual, residual <= tol)


def _project_by_newton(start: Array, tol: float, limit: int, progress: Progress | None) -> Projection:
    solution = newton.solve_dual(start, tol, limit, progress)
    end = newton.scale_to_unit_diagonal(solution.matrix)
    distance = norm(end - start)
    # Both sides carry half the square of the input, which cancels: 1/2 |X|^2 - <A, X> against -theta(y).
    primal = norm(end) ** 2 / 2 - float((end * start).sum())
    gap = max(0.0, primal + solution.objective) / max(distance**2 / 2, 1.0)
    starts = {"shifted": "", "low-rank": " (low-rank start)", "stalled": " (low-rank start after a stall)"}
    return Projection(
        to_numpy(end),
        "newton" + starts[solution.start],
        solution.iterations,
        solution.eigendecompositions,
        solution.residual,
        gap,
        distance,
        solution.residual <= tol,
    )


def _make_projection(
    start: Array, end: Array, method: str, iterations: int, eigendecompositions: int, residual: float, converged: bool
) -> Projection:
    if method != "pnp":
        end = newton.scale_to_unit_diagonal(end)
    distance = norm(end - start)
    return Projection(to_numpy(end), method, iterations, eigendecompositions, residual, math.nan, distance, converged)


def _symmetrise(array: Array) -> Array:
    """Return the symmetric part as a new array. Reject entries that are not finite or too large, and asymmetry."""
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


def check_memory(n: int, method: str, device: str) -> None:
    """Raise an error where the projection does not fit into this machine's free memory."""
    needed = 8 * n * n * (_MATRICES[method] if device == "cpu" else 2)
    available = _find_available_memory()
    if available is not None and needed > available:
        raise InvalidInput(
            f"The projection needs about {needed / 2**30:.1f} GiB for a matrix of {n:,} rows by method {method!r}; "
            f"{available / 2**30:.1f} GiB are free."
        )


def _find_available_memory() -> int | None:
    """Read the number of free bytes; None where the system does not report it."""
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def factor_gram(gram: Float, rank: int | None = None) -> Float:
    """Find unit rows whose inner products are nearly the given cosine matrix.

    Args:
        gram: A valid cosine matrix.
        rank: The number of dimensions; None is the numerical rank of the matrix.

    Returns:
        The rows. A row that is zero in these dimensions points along the first of them.
    """
    values, vectors = np.linalg.eigh(gram)
    dimensions = max(1, int((values > _NEGLIGIBLE * values[-1]).sum()))
    if rank is not None:
        dimensions = min(rank, dimensions)
    last = -dimensions - 1
    factor = np.ascontiguousarray(vectors[:, :last:-1] * np.sqrt(np.maximum(values[:last:-1], 0)))
    lengths = np.linalg.norm(factor, axis=1, keepdims=True)
    factor[lengths[:, 0] == 0, 0] = lengths[lengths == 0] = 1.0
    factor /= lengths
    return factor


def multiply_factor(factor: Float) -> Float:
    """Compute the inner products of unit rows: symmetric, in [-1, 1], with unit diagonal exactly."""
    gram: Float = factor @ factor.T
    np.clip(gram, -1, 1, out=gram)
    np.fill_diagonal(gram, 1.0)
    return gram
