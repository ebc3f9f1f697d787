"""The proof of the gap: it accepts what is nearest, bounds the true gap, and never proves what is false."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from support import GPU, cosines

import scoreshield as ss
from scoreshield.geometry import arrays, gap_proof, newton
from scoreshield.geometry.arrays import fill_outer_square, has_cholesky_factor

Array = np.ndarray


def solve(matrix: Array) -> tuple[Array, Array]:
    """Solve the dual with full eigendecompositions, and return F with F F^T = (A + Diag y)_+ and y."""
    y = np.full(len(matrix), -newton.find_trace_shift(np.linalg.eigvalsh(matrix)))
    for _ in range(30):
        point = newton.Point.evaluate(matrix, y)
        if point.residual < 1e-10:
            break
        y = y + newton._newton_direction(point, 1e-8)
    split = len(y) - point.positive
    return point.vectors[:, split:] * np.sqrt(point.values[split:]), y


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_proves_the_nearest(noise: float) -> None:
    """The exact solution has a gap of rounding alone."""
    matrix = cosines(80, noise)
    factor, y = solve(matrix)
    proof = gap_proof.prove_gap(matrix, factor, y, 0.0, 1e-7)
    assert proof.factorisations == 1
    assert proof.relative_gap < 1e-10
    assert proof.distance == pytest.approx(np.linalg.norm(proof.matrix - matrix), rel=1e-13)


@pytest.mark.parametrize("error", [1e-5, 1e-3])
def test_bounds_the_true_gap(error: float) -> None:
    """The gap of a disturbed solution is at least the true one, whatever y is used."""
    matrix = cosines(60, 0.5)
    factor, y = solve(matrix)
    least = ss.project_elliptope(matrix, "newton", tol=1e-12).distance ** 2 / 2
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = factor + error * rng.standard_normal(factor.shape)
        proof = gap_proof.prove_gap(matrix, moved, y + error * rng.standard_normal(len(y)), error, 1.0)
        assert math.isfinite(proof.gap)
        assert proof.gap >= proof.distance**2 / 2 - least
        assert proof.gap < 100 * error * len(y)  # and not by far more


def test_does_not_prove_what_is_false() -> None:
    """A valid matrix that is farther than the nearest has a gap of at least the difference."""
    matrix = cosines(60, 0.5)
    factor, y = solve(matrix)
    nearest = ss.project_elliptope(matrix, "newton", tol=1e-12)
    narrow = factor[:, 5:]  # stationary in no direction that was left out
    proof = gap_proof.prove_gap(matrix, narrow, y, 0.0, 1e-7)
    assert proof.gap == math.inf
    loose = gap_proof.prove_gap(matrix, narrow, y, 0.0, 10.0)
    assert loose.gap >= loose.distance**2 / 2 - nearest.distance**2 / 2


def test_saddle_point_is_not_proved() -> None:
    """A stationary matrix of too low a rank has multipliers, but S has a negative eigenvalue."""
    matrix = cosines(40, 1.0)
    signs = np.sign(np.linalg.eigh(matrix)[1][:, -1])[:, None]
    y = ((signs @ signs.T - matrix) * (signs @ signs.T)).sum(axis=1)  # S signs = 0 row by row
    assert gap_proof.prove_gap(matrix, signs, y, 0.0, 1e-7).gap == math.inf


@pytest.mark.parametrize("where", ["beside", "in place", "torch", GPU])
@pytest.mark.parametrize("n", [3, 40, 600, 3000])
def test_cholesky_error_is_within_its_bound(n: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """|L L^T - S| <= g sqrt(s_ii s_jj) for each entry: the inequality that the proof rests on."""
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, n + 2)) * np.geomspace(1, 1e-4, n)[:, None]
    slack = np.empty((n, n))
    fill_outer_square(rows, slack)
    there = slack.copy()
    if where in ("torch", "cuda"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
        there = arrays.to_device(there, where)
    if where == "in place":
        monkeypatch.setattr(arrays, "_SMALL", 0)
    assert has_cholesky_factor(there)
    # In place, the other triangle still holds S, or zeros.
    lower = arrays.factor_cholesky(slack) if where == "beside" else np.triu(arrays.to_numpy(there)).T
    sizes = np.sqrt(slack.diagonal())
    bound = gap_proof._bound_cholesky_error(n, 1.0)
    # Longer arithmetic makes the error of this product negligible. Of many rows, some are looked at.
    chosen = np.arange(n) if n <= 600 else np.linspace(0, n - 1, 20).astype(int)
    product = lower[chosen].astype(np.longdouble) @ lower.T.astype(np.longdouble)
    assert np.all(np.abs(product - slack[chosen]) <= bound * np.outer(sizes[chosen], sizes))


@pytest.mark.parametrize("small", [2000, 0])
def test_cholesky_of_a_nan_fails(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS reports success for a NaN on the diagonal."""
    monkeypatch.setattr(arrays, "_SMALL", small)
    for n, place in ((3, 1), (300, 299), (300, 0)):
        matrix = np.eye(n)
        assert has_cholesky_factor(matrix.copy())
        matrix[place, place] = math.nan
        assert not has_cholesky_factor(matrix)


def test_cholesky_success_implies_the_bound() -> None:
    """Singular and slightly indefinite matrices that are factored have no eigenvalue below the bound."""
    rng = np.random.default_rng(1)
    accepted = rejected = 0
    for least in np.concatenate([np.zeros(10), -np.geomspace(1e-20, 1e-12, 60)]):
        basis, _ = np.linalg.qr(rng.standard_normal((30, 30)))
        values = np.append(rng.random(29), least)
        matrix = (basis * values) @ basis.T
        matrix = (matrix + matrix.T) / 2
        allowed = gap_proof._bound_cholesky_error(30, matrix.trace())
        if has_cholesky_factor(matrix.copy()):
            accepted += 1
            assert np.linalg.eigvalsh(matrix)[0] >= -allowed - 1e-14
        else:
            rejected += 1
    assert accepted
    assert rejected
    assert not has_cholesky_factor(np.diag([1.0, -gap_proof._bound_cholesky_error(2, 1.0)]))


def test_inner_product_is_enclosed() -> None:
    """The computed <S, X> differs from the exact one by less than the allowance, in rational arithmetic."""
    matrix = cosines(24, 30.0)
    factor, _ = solve(matrix)
    lengths = np.linalg.norm(factor, axis=1)
    work = np.empty_like(matrix)
    slack = gap_proof._form_slack(matrix, factor, lengths, work)
    square = np.empty_like(matrix)
    gap_proof.fill_cosines(factor / lengths[:, None], square)
    pairs = [
        (Fraction(float(work[i, j])), Fraction(float(square[i, j]))) for i in range(24) for j in range(24) if i != j
    ]
    exact = sum((first * second for first, second in pairs), Fraction(0))
    drift = 2 * 24 * gap_proof._gamma(factor.shape[1] + 6) * np.sqrt(slack.squares)
    assert abs(float(exact) - slack.inner) <= gap_proof._gamma(2 * 24) * slack.size + drift
    assert float(sum(abs(first * second) for first, second in pairs)) <= slack.size
    assert drift < 1e-9 * slack.size


@pytest.mark.parametrize("rank", [1, 2, 30])
def test_cosines_of_the_proof_are_those_of_the_result(rank: int) -> None:
    """An entry of Z over both lengths differs from the returned cosine by no more than the proof allows."""
    rng = np.random.default_rng(rank)
    factor = rng.standard_normal((200, rank)) * 10.0 ** rng.uniform(-3, 3, (200, 1))
    factor[100:] = factor[:100] * rng.uniform(0.5, 2, (100, 1))  # cosines of 1
    lengths = np.sqrt(np.vecdot(factor, factor))
    square, result = np.empty((200, 200)), np.empty((200, 200))
    fill_outer_square(factor, square)
    gap_proof.fill_cosines(factor / lengths[:, None], result)
    inverse = 1 / lengths
    difference = np.abs(square * inverse[:, None] * inverse - result)
    np.fill_diagonal(difference, 0)
    assert 0 < difference.max() <= 2 * gap_proof._gamma(rank + 6)


@pytest.mark.parametrize("length", [0.0, 1e-200, 1e-120])
def test_a_row_without_length_proves_nothing(length: float) -> None:
    """A row whose products underflow gives a valid matrix and no proof."""
    matrix = cosines(24, 0.3)
    factor, multipliers = solve(matrix)
    factor[3] *= length
    proof = gap_proof.prove_gap(matrix, factor, multipliers, 1.0, 1e9)
    assert proof.gap == np.inf
    assert not proof.is_within(1e9)
    assert np.linalg.eigvalsh(proof.matrix)[0] >= -1e-10
    assert np.abs(proof.matrix).max() == 1
    assert np.all(proof.matrix.diagonal() == 1)


@pytest.mark.parametrize("n", [1, 5, 511, 512, 513, 1100])
def test_panels(n: int) -> None:
    """Products by panels are exactly symmetric and right at every size."""
    rows = np.random.default_rng(n).standard_normal((n, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    out = np.empty((n, n))
    fill_outer_square(rows, out)
    assert np.array_equal(out, out.T)
    assert np.allclose(out, rows @ rows.T, atol=1e-14)
    gap_proof.fill_cosines(rows, out)
    assert np.all(out.diagonal() == 1.0)
    assert np.abs(out).max() <= 1.0
