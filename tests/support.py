"""What several test modules share."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

#: Two-sided Gaussian quantile whose false-alarm rate is 1e-7: one in ten million for each such comparison.
STRICT = 5.33


def noisy_gram(n: int, noise: float, seed: int, d: int = 5) -> np.ndarray:
    """Cosines of random vectors plus symmetric noise; the diagonal is noisy too."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    w = rng.standard_normal((n, n)) * noise
    return rows @ rows.T + (w + w.T) / 2


def cosines(n: int, noise: float, rank: int = 8, seed: int = 0) -> np.ndarray:
    """Cosines of random vectors plus symmetric noise of this standard deviation off the diagonal."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, rank))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    upper = np.triu(rng.standard_normal((n, n)) * noise, 1)
    matrix = rows @ rows.T + upper + upper.T
    np.fill_diagonal(matrix, 1)
    return matrix


def assert_feasible(matrix: np.ndarray) -> None:
    """A valid cosine matrix, in the sense that every projection promises."""
    assert np.array_equal(matrix, matrix.T)
    assert np.all(matrix.diagonal() == 1.0)
    assert np.abs(matrix).max() <= 1.0
    assert np.linalg.eigvalsh(matrix)[0] >= -1e-10 * len(matrix)


def find_rows(rows: Iterable[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """Find the rows of a results table that agree with every given value."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def torch_sees_a_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


#: A parameter for tests of a device.
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch_sees_a_gpu(), reason="no GPU here"))
