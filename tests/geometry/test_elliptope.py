"""AAP against a literal transcription of the paper's Algorithm 3, and what it must leave behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def noisy_gram(n: int, noise: float, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    w = rng.standard_normal((n, n)) * noise
    return rows @ rows.T + (w + w.T) / 2


def assert_feasible(matrix: Array) -> None:
    assert np.array_equal(matrix, matrix.T)
    assert np.all(matrix.diagonal() == 1.0)
    assert np.abs(matrix).max() <= 1.0
    assert np.linalg.eigvalsh(matrix)[0] >= -1e-10 * len(matrix)


@pytest.mark.parametrize("ball", [False, True])
@pytest.mark.parametrize(("n", "noise", "limit"), [(2, 0.5, 500), (12, 0.1, 500), (30, 1.0, 40), (20, 50.0, 300)])
def test_aap_is_the_papers_algorithm(n: int, noise: float, limit: int, ball: bool) -> None:
    matrix = noisy_gram(n, noise, n)
    ours = ss.project_elliptope(matrix, "aap", tol=1e-7, max_iterations=limit, frobenius_ball=ball)
    theirs, steps, converged = literal_aap(matrix, 1e-7, limit, ball)
    assert ours.iterations == steps
    assert ours.eigendecompositions == steps + 1
    assert ours.converged == converged
    assert np.abs(ours.matrix - theirs).max() < 1e-7
    assert_feasible(ours.matrix)


def test_frobenius_ball_matters_where_the_paper_says() -> None:
    matrix = noisy_gram(20, 50.0, 3)
    with_ball = ss.project_elliptope(matrix, frobenius_ball=True, max_iterations=30).matrix
    without = ss.project_elliptope(matrix, max_iterations=30).matrix
    assert np.abs(with_ball - without).max() > 1e-3


def test_converged_is_honest() -> None:
    matrix = noisy_gram(30, 1.0, 0)
    short = ss.project_elliptope(matrix, max_iterations=3)
    assert not short.converged
    assert short.residual > 1e-7
    assert short.iterations == 3
    assert_feasible(short.matrix)
    done = ss.project_elliptope(matrix, tol=1e-3)
    assert done.converged
    assert done.residual <= 1e-3


def test_a_valid_matrix_is_left_alone() -> None:
    matrix = noisy_gram(10, 0.0, 1)
    result = ss.project_elliptope(matrix)
    assert result.converged
    assert result.iterations == 1
    assert np.abs(result.matrix - matrix).max() < 1e-14


@pytest.mark.parametrize(
    "matrix",
    [
        np.array([[5.0]]),
        np.array([[-3.0]]),
        np.zeros((4, 4)),
        -np.eye(4),
        np.full((6, 6), 1e140),
        -np.full((6, 6), 1e-200),
        np.eye(3, dtype=int),
        np.eye(3, dtype=np.float32),
    ],
)
def test_odd_matrices_still_give_a_valid_one(matrix: Array) -> None:
    assert_feasible(ss.project_elliptope(matrix, max_iterations=20).matrix)


@given(st.integers(1, 12), st.floats(1e-6, 1e4), st.integers(0, 2**32 - 1))
def test_always_feasible(n: int, noise: float, seed: int) -> None:
    assert_feasible(ss.project_elliptope(noisy_gram(n, noise, seed), max_iterations=25).matrix)


def test_input_is_never_modified() -> None:
    matrix = noisy_gram(8, 1.0, 2)
    matrix.flags.writeable = False
    before = matrix.copy()
    ss.project_elliptope(matrix)
    assert np.array_equal(matrix, before)


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    ss.project_elliptope(noisy_gram(6, 1.0, 4), max_iterations=7, progress=lambda *done: seen.append(done))
    assert seen == [(i, 7) for i in range(1, 8)]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(3), "square"),
        (np.empty((0, 0)), "square"),
        (np.array([["a", "b"], ["c", "d"]]), "square matrix of real numbers"),
        (np.array([[1, 2j], [2j, 1]]), "real"),
        (np.array([[1, 0.5], [0.4, 1]]), "not symmetric"),
        (np.array([[1, np.nan], [np.nan, 1]]), "NaN"),
        (np.array([[1, np.inf], [np.inf, 1]]), "infinity"),
        (np.array([[1, 1e200], [1e200, 1]]), "scale it down"),
        ([[1.0], [1.0, 2.0]], "square matrix"),
    ],
)
def test_bad_matrices(matrix: Array, message: str) -> None:
    with pytest.raises(ss.InvalidInput, match=message):
        ss.project_elliptope(matrix)


@pytest.mark.parametrize("arguments", [{"method": "magic"}, {"tol": 0}, {"max_iterations": 0}, {"max_iterations": 2.5}])
def test_bad_options(arguments: dict[str, object]) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.project_elliptope(np.eye(2), **arguments)  # type: ignore[arg-type]
