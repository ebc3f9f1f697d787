"""The elliptope (positive semidefinite matrices with unit diagonal): projections onto it, and its factored form.

Every method reads the noisy matrix alone. It is post-processing and costs no privacy.

    method     what it finds                                                        eigendecompositions
    partial    the nearest valid matrix, proved by a Cholesky factorisation         none
    newton     the nearest valid matrix                                             4 to 7 up to noise sd 1,000
    dykstra    the nearest valid matrix, in the limit                               hundreds or thousands
    aap        a valid matrix, the paper's Algorithm 3                              hundreds, 501 at most
    sdp        the nearest valid matrix, by CVXPY, small n                          those of an interior-point method
    pnp        a matrix of an earlier work's set, without a unit diagonal           hundreds, 501 at most

The default, auto, is partial for large matrices whose nearest valid matrix has low rank, and newton for the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, optional, validate
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.geometry import comparison, newton, partial
from scoreshield.geometry.arrays import (
    Array,
    Progress,
    check_device,
    diagonal,
    is_single_faster,
    like,
    list_panels,
    norm,
    to_device,
    to_numpy,
)
from scoreshield.geometry.comparison import Solver
from scoreshield.geometry.gap_proof import GapProof, prove_gap

Float = NDArray[np.float64]

Method = Literal["auto", "partial", "newton", "aap", "dykstra", "sdp", "pnp"]
METHODS: tuple[str, ...] = get_args(Method)
_LIMITS = {
    "auto": newton.STEPS,
    "partial": newton.STEPS,
    "newton": newton.STEPS,
    "aap": 500,
    "dykstra": 10_000,
    "sdp": 200,
    "pnp": 500,
}
_LEAST_PARTIAL = 300  # rows: below this, eigendecompositions are faster
_FINEST_PARTIAL = 1e-9  # the least tolerance for which the rounding of a proof is small enough
_ACCURATE = 1e3  # times the tolerance: the largest residual of a result that is not refined by Newton's method
_PRODUCTS = 100  # times n: the most columns that "auto" multiplies, on a CPU, before eigendecompositions are faster
_REFINEMENTS = 3  # the most proofs that one projection attempts
_LARGEST_ENTRY = 1e100
_NEGLIGIBLE = 1e-9  # of the largest eigenvalue: a smaller eigenvalue is rounding
#: Matrices of the input's size that the method holds at its peak, the input's copy and LAPACK's work included.
_MATRICES = {"none": 1, "auto": 4, "partial": 4, "newton": 6, "aap": 7, "dykstra": 9, "sdp": 60, "pnp": 7}


#: The same on a GPU, in matrices there: the least that was measured, so that nothing that fits is rejected.
_MATRICES_ON_GPU = {"none": 0.0, "auto": 2.1, "partial": 2.1, "newton": 6.0}
_LEAST_ON_GPU = 2.0  # of the methods that were not measured


@dataclass(frozen=True)
class Projection:
    """The result of a projection.

    Attributes:
        matrix: Exactly symmetric, diagonal exactly 1.0, entries in [-1, 1], smallest eigenvalue at least -1e-10 n. For
            ``pnp`` the diagonal is not set to 1.
        method: The method that ran: "partial"; or "newton", with "(low-rank start)" where the noise was heavy and
            "(low-rank start after a stall)" where a first run stopped early.
        iterations: The number of steps.
        eigendecompositions: The number of eigendecompositions of matrices of the input's size.
        residual: The method's stopping measure at the end: the root mean square violation of the unit diagonal for
            partial and newton, the largest of the algorithm's three measures for aap, NaN for sdp.
        gap: The duality gap, relative to half the squared distance, or to 1 if that is larger: 0 at the nearest matrix,
            NaN without a dual. For partial it is a proved upper bound, rounding errors included, so that the nearest
            matrix is within sqrt(2 gap) of ``matrix`` in the same units; infinite where nothing could be proved.
        distance: The Frobenius distance from the input.
        converged: For partial, whether the proved gap is at most the tolerance, also if a few entries or the diagonal
            are far larger than the rest: it is compared with the distance of the nearest row. For the other methods,
            whether the residual fell to the tolerance.
        factor: Unit rows whose cosines are ``matrix``, where the method has them: partial.
    """

    matrix: Float
    method: str
    iterations: int
    eigendecompositions: int
    residual: float
    gap: float
    distance: float
    converged: bool
    factor: Float | None = None


@validate(
    method=one_of(METHODS),
    tol=check_positive,
    max_iterations=optional(check_count),
    solver=one_of(get_args(Solver)),
    time_limit=optional(check_positive),
)
def project_elliptope(
    matrix: ArrayLike,
    method: Method = "auto",
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
        method: ``"auto"`` (exact: partial or newton, by the input), ``"partial"`` (exact, with a proof), ``"newton"``
            (exact), ``"dykstra"`` (exact, slow), ``"aap"`` (the paper's), ``"sdp"`` or ``"pnp"``.
        tol: The tolerance on the method's stopping measure; for partial also on the proved gap.
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
    array = _validation.check_array(matrix, "matrix", "a square matrix of real numbers")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0 or array.dtype.kind not in "fiu":
        _validation.reject("matrix", "a square matrix of real numbers", array)
    check_device(device)
    check_memory(len(array), method, device)
    start = _symmetrise(to_device(np.ascontiguousarray(array, dtype=np.float64), device), device == "cpu")
    found = project_array(
        start,
        method,
        tol,
        max_iterations,
        frobenius_ball=frobenius_ball,
        solver=solver,
        time_limit=time_limit,
        progress=progress,
    )
    return replace(
        found, matrix=to_numpy(found.matrix), factor=None if found.factor is None else to_numpy(found.factor)
    )


def project_array(
    start: Array,
    method: Method = "auto",
    tol: float = 1e-7,
    max_iterations: int | None = None,
    *,
    frobenius_ball: bool = False,
    solver: Solver = "clarabel",
    time_limit: float | None = None,
    progress: Progress | None = None,
    warm: partial.WarmStart | None = None,
) -> Projection:
    """Do the work of `project_elliptope` for a checked, exactly symmetric matrix on any device.

    The matrix is not modified. The matrix and the factor of the result stay on its device. A warm start is the end of
    the projection of a matrix near this one; it is replaced by the end of this one.
    """
    limit = _LIMITS[method] if max_iterations is None else max_iterations
    if method in ("auto", "partial", "newton"):
        return _project_by_dual(start, method, tol, limit, progress, warm)
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


def _project_by_dual(
    start: Array,
    method: Method,
    tol: float,
    limit: int,
    progress: Progress | None,
    warm: partial.WarmStart | None,
) -> Projection:
    """Project by partial or newton, with a diagonal of 1 meanwhile.

    Every valid matrix has the same diagonal, so that of the input adds the same to the square of every distance. It
    changes no result, and a large or noisy one would only cost steps and digits.
    """
    n = start.shape[0]
    own = array_namespace(start).asarray(diagonal(start), copy=True)
    beyond = norm(own - 1)
    found = None
    try:
        if beyond > 0:
            diagonal(start)[:] = 1.0
        if method == "partial" or (method == "auto" and n >= _LEAST_PARTIAL and tol >= _FINEST_PARTIAL):
            found, is_final = _project_by_partial(start, tol, limit, method == "partial", progress, warm)
            if not is_final and _is_room_for_newton(start, found):
                found = None
        if found is None:
            found = _project_by_newton(start, tol, limit, progress)
    finally:
        if beyond > 0:
            diagonal(start)[:] = own
    distance = math.hypot(found.distance, beyond)
    gap = found.gap * max(found.distance**2 / 2, 1.0) / max(distance**2 / 2, 1.0)
    return replace(found, distance=distance, gap=gap)


def _project_by_partial(
    start: Array,
    tol: float,
    limit: int,
    is_asked: bool,
    progress: Progress | None,
    warm: partial.WarmStart | None,
) -> tuple[Projection | None, bool]:
    """Project by the positive eigenvectors.

    Returns:
        The result, if there is one, and whether it is final. If it is not, Newton's method should run instead.
    """
    if start.shape[0] < 3:
        return None, False
    most = math.inf
    if not is_asked:
        most = _PRODUCTS if is_single_faster(start) else 10 * _PRODUCTS  # as a GPU decomposes slowly
    solver = partial.PartialSolver(start, min(limit, partial.STEPS), progress, warm, most)
    if not (solver.is_suitable() or is_asked):
        return None, False
    goal = 10 * tol
    best: tuple[partial.PartialSolution, GapProof] | None = None
    for _ in range(_REFINEMENTS):
        solution = solver.solve(goal)
        if solution is None:
            break
        proof = prove_gap(start, solution.factor, solution.multipliers, solution.lift, tol)
        if best is None or proof.gap < best[1].gap:
            best = solution, proof
        if (proof.is_within(tol) and solution.residual <= goal) or solver.is_spent:
            break
        goal = min(goal, solution.residual) / 100
    if best is None:
        return None, False
    solution, proof = best
    is_proved = proof.is_within(tol)
    # Under very heavy noise a small gap allows a large residual; then Newton's steps come nearer.
    is_accurate = solution.residual <= _ACCURATE * tol
    found = Projection(
        proof.matrix,
        "partial",
        solution.iterations,
        0,
        solution.residual,
        proof.relative_gap,
        proof.distance,
        is_proved,
        proof.rows,
    )
    # Otherwise it stalled, rather than being stopped by the caller's limit.
    return found, (is_proved and is_accurate) or solver.iterations >= limit


def _is_room_for_newton(start: Array, found: Projection | None) -> bool:
    """Whether Newton's method fits into the memory. If it does not and nothing was found, that is an error."""
    if not isinstance(start, np.ndarray):
        return True
    try:
        check_memory(len(start), "newton", "cpu", held=1 if found is None else 2)
    except InvalidInput:
        if found is None:
            raise
        return False
    return True


def _project_by_newton(start: Array, tol: float, limit: int, progress: Progress | None) -> Projection:
    solution = newton.solve_dual(start, tol, limit, progress)
    end = newton.scale_to_unit_diagonal(solution.matrix)
    distance = norm(end - start)
    # Both sides carry half the square of the input, which cancels: 1/2 |X|^2 - <A, X> against -theta(y).
    primal = norm(end) ** 2 / 2 - float((end * start).sum())
    gap = max(0.0, primal + solution.objective) / max(distance**2 / 2, 1.0)
    starts = {"shifted": "", "low-rank": " (low-rank start)", "stalled": " (low-rank start after a stall)"}
    return Projection(
        end,
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
    return Projection(end, method, iterations, eigendecompositions, residual, math.nan, distance, converged)


def _symmetrise(array: Array, is_shared: bool) -> Array:
    """Return the symmetric part. Reject entries that are not finite or too large, and asymmetry.

    Args:
        array: The matrix. It is overwritten unless it is shared.
        is_shared: Whether the caller of the library holds the array.
    """
    xp = array_namespace(array)
    largest = max(float(xp.max(array)), -float(xp.min(array)))
    if not math.isfinite(largest):
        raise InvalidParameter("matrix", "holds a NaN or an infinity.")
    if largest > _LARGEST_ENTRY:
        raise InvalidParameter("matrix", "holds entries above 1e100; scale it down first.")
    mirrored = xp.asarray(array, copy=True) if is_shared else array
    skew = 0.0
    for first, last in list_panels(array.shape[0]):  # because a second matrix would double the memory
        upper, lower = array[first:last, first:], array[first:, first:last].T
        panel = upper + lower
        panel /= 2
        skew = max(skew, float(xp.max(xp.abs(upper - panel))))  # before the entries are overwritten
        mirrored[first:last, first:] = panel
        mirrored[first:, first:last] = panel.T
    if skew > 1e-8 * max(1.0, largest):
        raise InvalidParameter("matrix", "is not symmetric; symmetrise it first, (A + A.T) / 2.")
    return mirrored


def check_memory(n: int, method: str, device: str, held: int = 0) -> None:
    """Raise an error where the projection does not fit into this machine's free memory, less what it already holds.

    Args:
        n: The number of rows.
        method: The method; "auto" counts its first choice, and "none" the matrix alone.
        device: The device. On a GPU, only the input and the result are in this machine's memory; the rest has to fit
            there. A release that did not would be lost after its charge.
        held: The matrices that are held already.
    """
    if method == "auto" and n < _LEAST_PARTIAL:
        method = "newton"
    matrix = 8 * n * n
    free = _find_available_memory()
    _check_room(n, method, matrix * ((_MATRICES[method] if device == "cpu" else 2) - held), free, "")
    if device.startswith("cuda"):
        there = _MATRICES_ON_GPU.get(method, _LEAST_ON_GPU)
        _check_room(n, method, there * matrix, _find_memory_of(device), " of the GPU")


def _check_room(n: int, method: str, needed: float, available: int | None, where: str) -> None:
    if available is not None and needed > available:
        what = "A Gram matrix" if method == "none" else f"The projection by method {method!r}"
        raise InvalidInput(
            f"{what} needs about {needed / 2**30:.1f} GiB{where} for a matrix of {n:,} rows; "
            f"{available / 2**30:.1f} GiB are free."
        )


def _find_memory_of(device: str) -> int | None:
    """Read the number of bytes on a GPU that are free, or that PyTorch holds without use; None without a GPU."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None  # which is reported where a matrix is moved there
    place = torch.device(device)
    unused = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    return int(torch.cuda.mem_get_info(place)[0]) + unused


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


def reduce_rows(rows: Float, rank: int | None = None) -> Float:
    """Turn unit rows to their principal axes and keep the leading ones, as `factor_gram` does for their cosines.

    Args:
        rows: Unit rows, few dimensions.
        rank: The number of dimensions; None is the numerical rank.
    """
    values, rotation = np.linalg.eigh(rows.T @ rows)
    dimensions = max(1, int((values > _NEGLIGIBLE * values[-1]).sum()))
    if rank is not None:
        dimensions = min(rank, dimensions)
    return _scale_rows(np.ascontiguousarray(rows @ rotation[:, : -dimensions - 1 : -1]))


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
    return _scale_rows(np.ascontiguousarray(vectors[:, :last:-1] * np.sqrt(np.maximum(values[:last:-1], 0))))


def _scale_rows(factor: Float) -> Float:
    """Scale rows to length one in place. A zero row points along the first dimension."""
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
