"""Compare AAP with a literal transcription of the paper's Algorithm 3, and test Dykstra and the earlier set."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import assert_feasible, noisy_gram

import scoreshield as ss

Array = np.ndarray


def literal_aap(matrix: Array, tol: float, limit: int, ball: bool) -> tuple[Array, int, bool]:
    """Algorithm 3 line by line, with NumPy's general eigensolver and no reuse."""
    x, n, steps = matrix.copy(), len(matrix), 0
    for _ in range(limit):
        steps += 1
        y = (x + x.T) / 2
        values, vectors = np.linalg.eigh(y)
        p = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
        if ball and np.linalg.norm(p) > n:
            p = p * n / np.linalg.norm(p)
        q = np.clip(y, -1, 1)
        q[np.diag_indices(n)] = 1
        new = (p + q) / 2
        change, psd, box = (np.linalg.norm(new - x), np.linalg.norm(y - p), np.linalg.norm(y - q))
        x = new
        if change <= tol and max(psd, box) <= tol:
            break
    values, vectors = np.linalg.eigh((x + x.T) / 2)
    s = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    if s.diagonal().min() <= 0:
        s = s + 1e-8 * np.linalg.norm(s) / n * np.eye(n)
    scale = np.diag(s.diagonal() ** -0.5)
    return scale @ s @ scale, steps, bool(max(change, psd, box) <= tol)


@pytest.mark.parametrize("ball", [False, True])
@pytest.mark.parametrize(("n", "noise", "limit"), [(2, 0.5, 500), (12, 0.1, 500), (30, 1.0, 40), (20, 50.0, 300)])
def test_aap_is_the_papers_algorithm(n: int, noise: float, limit: int, ball: bool) -> None:
    """AAP is the paper's algorithm."""
    matrix = noisy_gram(n, noise, n)
    ours = ss.project_elliptope(matrix, "aap", tol=1e-7, max_iterations=limit, frobenius_ball=ball)
    theirs, steps, converged = literal_aap(matrix, 1e-7, limit, ball)
    assert ours.iterations == steps
    assert ours.eigendecompositions == steps + 1
    assert ours.converged == converged
    assert np.abs(ours.matrix - theirs).max() < 1e-7
    assert_feasible(ours.matrix)


def test_frobenius_ball() -> None:
    """Frobenius ball matters where the paper says."""
    matrix = noisy_gram(20, 50.0, 3)
    with_ball = ss.project_elliptope(matrix, "aap", frobenius_ball=True, max_iterations=30).matrix
    without = ss.project_elliptope(matrix, "aap", max_iterations=30).matrix
    assert np.abs(with_ball - without).max() > 1e-3


def test_converged_is_honest() -> None:
    """``converged`` is True only where the residual is within the tolerance."""
    matrix = noisy_gram(30, 1.0, 0)
    short = ss.project_elliptope(matrix, "aap", max_iterations=3)
    assert not short.converged
    assert short.residual > 1e-7
    assert short.iterations == 3
    assert_feasible(short.matrix)
    done = ss.project_elliptope(matrix, "aap", tol=1e-3)
    assert done.converged
    assert done.residual <= 1e-3


def test_dykstra_finds_the_nearest_matrix() -> None:
    """Optimality by the variational inequality: no valid matrix lies on the near side of the one found."""
    matrix = noisy_gram(12, 0.7, 1)
    nearest = ss.project_elliptope(matrix, "dykstra", tol=1e-10)
    assert nearest.converged
    assert math.isnan(nearest.gap)
    assert_feasible(nearest.matrix)
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.standard_normal((12, rng.integers(1, 12)))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        assert np.sum((matrix - nearest.matrix) * (rows @ rows.T - nearest.matrix)) <= 1e-7
    averaged = ss.project_elliptope(matrix, "aap")  # near miss: feasible, but not the nearest
    assert averaged.distance > nearest.distance * (1 + 1e-4)


def test_earlier_set_no_unit_diagonal() -> None:
    """The earlier set has no unit diagonal."""
    matrix = noisy_gram(15, 3.0, 2)
    result = ss.project_elliptope(matrix, "pnp")
    assert np.abs(result.matrix).max() <= 1
    assert np.linalg.norm(result.matrix) <= 15 * (1 + 1e-12)
    assert np.linalg.eigvalsh(result.matrix)[0] >= -1e-5
    assert np.abs(result.matrix.diagonal() - 1).max() > 1e-3
    assert np.array_equal(result.matrix, result.matrix.T)
