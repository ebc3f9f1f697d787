"""The projection as a semidefinite program, through CVXPY (the 'sdp' extra), for small matrices and comparisons."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]


def solve(matrix: Float, tol: float, limit: int, solver: str, time_limit: float | None) -> tuple[Float, int, bool]:
    """Solve the program with `solver` "clarabel" or "scs".

    Returns:
        The solver's matrix, its iterations, and whether the solver reports success.
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
            # What a solver at its limit has is inaccurate: the flag returned below says so.
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            problem.solve(solver=solver.upper(), **options)
    except cp.SolverError:
        return np.eye(len(matrix)), 0, False
    steps = int(problem.solver_stats.num_iters or 0)
    if variable.value is None:
        return np.eye(len(matrix)), steps, False
    return np.asarray(variable.value, dtype=np.float64), steps, problem.status == cp.OPTIMAL
