"""Convert a cosine matrix of low numerical rank to unit vectors, and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

_NEGLIGIBLE = 1e-9  # of the largest eigenvalue: below it, an eigenvalue is rounding


def unit_factor(gram: Float, rank: int | None = None) -> Float:
    """Return unit rows, of `rank` dimensions or the numerical rank, whose inner products are (nearly) the matrix."""
    values, vectors = np.linalg.eigh(gram)
    kept = max(1, int((values > _NEGLIGIBLE * values[-1]).sum()))
    if rank is not None:
        kept = min(rank, kept)
    factor = np.ascontiguousarray(vectors[:, : -kept - 1 : -1] * np.sqrt(np.maximum(values[: -kept - 1 : -1], 0)))
    lengths = np.linalg.norm(factor, axis=1, keepdims=True)
    # A row without a part in the kept dimensions becomes the first of them.
    factor[lengths[:, 0] == 0, 0] = lengths[lengths == 0] = 1.0
    factor /= lengths
    return factor


def unit_gram(factor: Float) -> Float:
    """Compute the inner products of unit rows: symmetric, in [-1, 1], with a diagonal of exactly one."""
    gram: Float = factor @ factor.T
    np.clip(gram, -1, 1, out=gram)
    np.fill_diagonal(gram, 1.0)
    return gram
