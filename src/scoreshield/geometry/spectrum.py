"""The leading eigenpairs of a symmetric matrix, on any device: all of them, or only those above a floor."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from scipy.linalg import eigh

from scoreshield.geometry.arrays import Array
from scoreshield.geometry.partial import PartialSolver

_LEAST = 300  # rows: below this, an eigendecomposition is faster
_RESIDUAL = 1e-11  # of the largest eigenvalue: the residual of a pair that counts as found


def find_leading_pairs(matrix: Array, count: int, floor: float = 0.0, near: Array | None = None) -> tuple[Array, Array]:
    """Find the ``count`` largest eigenvalues above a floor that is not negative, in rising order, and their vectors.

    Where they stand out, a filtered block of vectors finds them. Otherwise the matrix is decomposed, on a CPU for the
    leading pairs only.

    Args:
        matrix: Symmetric.
        count: The most pairs.
        floor: Eigenvalues up to this are not wanted.
        near: Vectors near the wanted ones, such as those of a matrix near this one.
    """
    n = matrix.shape[0]
    xp = array_namespace(matrix)
    if n >= _LEAST:
        found = PartialSolver(matrix).find_leading(count, floor, _RESIDUAL, near)
        if found is not None:
            return xp.flip(found[0]), xp.flip(found[1], axis=1)
    if not isinstance(matrix, np.ndarray):
        values, vectors = xp.linalg.eigh(matrix)
    elif 2 * count < n:
        values, vectors = eigh(matrix, driver="evr", subset_by_index=[n - count, n - 1], check_finite=False)
    else:
        values, vectors = eigh(matrix, driver="evd", check_finite=False)
    start = max(len(values) - count, int(xp.sum(values <= floor)))
    return values[start:], vectors[:, start:]
