"""The exact projection: against Dykstra, interior points and its own optimality conditions, over a wide battery."""

from __future__ import annotations

import numpy as np
import pytest
from support import GPU, assert_feasible, noisy_gram

import scoreshield as ss
from scoreshield.geometry import newton

Array = np.ndarray

#: Published matrices that are no correlation matrices: Higham 2002 (twice), Turkay et al. 2003, Bhansali & Wise 2001,
#: Finger 1997 (the last three by way of Higham & Strabic's collection).
PUBLISHED = {
    "high02": [[1, 1, 0], [1, 1, 1], [0, 1, 1]],
    "tridiagonal": [[2, -1, 0, 0], [-1, 2, -1, 0], [0, -1, 2, -1], [0, 0, -1, 2]],
    "tec03": [[1, -0.55, -0.15, -0.1], [-0.55, 1, 0.9, 0.9], [-0.15, 0.9, 1, 0.9], [-0.1, 0.9, 0.9, 1]],
    "bhwi01": [
        [1, -0.5, -0.3, -0.25, -0.7],
        [-0.5, 1, 0.9, 0.3, 0.7],
        [-0.3, 0.9, 1, 0.25, 0.2],
        [-0.25, 0.3, 0.25, 1, 0.75],
        [-0.7, 0.7, 0.2, 0.75, 1],
    ],
    "fing97": [
        [1, 0.18, -0.13, -0.26, 0.19, -0.25, -0.12],
        [0.18, 1, 0.22, -0.14, 0.31, 0.16, 0.09],
        [-0.13, 0.22, 1, 0.06, -0.08, 0.04, 0.04],
        [-0.26, -0.14, 0.06, 1, 0.85, 0.85, 0.85],
        [0.19, 0.31, -0.08, 0.85, 1, 0.85, 0.85],
        [-0.25, 0.16, 0.04, 0.85, 0.85, 1, 0.85],
        [-0.12, 0.09, 0.04, 0.85, 0.85, 0.85, 1],
    ],
}


def unit_noise(n: int, noise: float, rank: int = 50, seed: int = 0) -> Array:
    """A cosine matrix of a given rank plus noise of a given standard deviation, on the scale that releases have."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, rank))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    upper = np.triu(rng.standard_normal((n, n)) * noise, 1)
    matrix = rows @ rows.T + upper + upper.T
    np.fill_diagonal(matrix, 1)
    return matrix


def battery() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    signs = np.sign(rng.standard_normal(40))
    blocks = np.kron(np.eye(5), np.full((8, 8), 1.4)) + 0.05 * noisy_gram(40, 1.0, 3)
    copies = noisy_gram(10, 0.5, 2)[np.ix_(np.arange(30) % 10, np.arange(30) % 10)]  # duplicate records
    singular = np.ones((25, 25)) + 1e-7 * noisy_gram(25, 1.0, 4)  # a nearly singular Hessian
    return {
        "rank one": np.outer(signs, signs),
        "rank one, noisy": np.outer(signs, signs) + 0.3 * noisy_gram(40, 1.0, 5),
        "blocks": blocks,
        "constant": np.full((20, 20), 3.0),
        "constant, negative": np.full((20, 20), -0.7),
        "duplicates": copies,
        "singular": singular,
        "scaled up": 1e9 * noisy_gram(20, 1.0, 6),
        "scaled down": 1e-9 * noisy_gram(20, 1.0, 7),
        "indefinite": noisy_gram(30, 1.0, 8) - 4 * np.eye(30),
        "identity": np.eye(15),
        **{name: np.array(matrix, dtype=float) for name, matrix in PUBLISHED.items()},
        **{f"n = {n}": unit_noise(n, 0.5, seed=n) for n in (1, 2, 3, 9, 17, 120)},
        "n = 500": unit_noise(500, 0.05),
        **{f"rank {r}": unit_noise(60, 0.2, rank=r) for r in (1, 2, 5, 30, 60)},
        **{f"noise {noise:g}": unit_noise(60, noise, rank=8) for noise in (1e-6, 1e-4, 1e-2, 1, 1e2, 1e4)},
    }


BATTERY = battery()


@pytest.mark.parametrize("name", BATTERY)
def test_newton_agrees_dykstra_never_farther(name: str) -> None:
    """Newton agrees with Dykstra and is never farther."""
    matrix = BATTERY[name]
    exact = ss.project_elliptope(matrix, "newton")
    slow = ss.project_elliptope(matrix, "dykstra", tol=1e-9, max_iterations=20_000 if len(matrix) < 50 else 4000)
    assert_feasible(exact.matrix)
    assert exact.converged == (exact.residual <= 1e-7)
    assert exact.converged or name == "scaled up"  # where rounding alone moves the diagonal by that much
    assert exact.distance == pytest.approx(np.linalg.norm(exact.matrix - matrix), rel=1e-12, abs=1e-12)
    assert exact.distance <= slow.distance * (1 + 1e-9) + 1e-7
    if slow.converged:
        assert exact.distance == pytest.approx(slow.distance, rel=1e-6, abs=1e-6)
    assert exact.gap <= 1e-6


@pytest.mark.parametrize("solver", ["clarabel", "scs"])
@pytest.mark.parametrize("name", ["high02", "tridiagonal", "tec03", "bhwi01", "fing97", "n = 17", "blocks"])
def test_newton_agrees_semidefinite(name: str, solver: str) -> None:
    """Newton agrees with semidefinite programming."""
    matrix = BATTERY[name]
    exact = ss.project_elliptope(matrix, "newton")
    program = ss.project_elliptope(matrix, "sdp", 1e-9 if solver == "clarabel" else 1e-8, solver=solver)
    assert program.converged
    assert_feasible(program.matrix)
    assert exact.distance == pytest.approx(program.distance, rel=1e-6)
    assert np.abs(exact.matrix - program.matrix).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "row"), [("high02", [1, 0.7607, 0.1573]), ("tridiagonal", [1, -0.8084, 0.1916, 0.1068])]
)
def test_published_solutions(name: str, row: list[float]) -> None:
    """First rows to the four digits in Higham (2002), "Computing the nearest correlation matrix"."""
    result = ss.project_elliptope(np.array(PUBLISHED[name], dtype=float), "newton")
    assert result.matrix[0] == pytest.approx(row, abs=6e-5)


def test_optimality_conditions() -> None:
    """X is nearest if and only if A - X + Diag y is negative semidefinite and orthogonal to X for some y."""
    matrix = unit_noise(80, 0.5)

    def violation(x: Array) -> float:
        # The y that fits best makes (A - X + Diag y) X as small as can be, row by row.
        y = -np.sum((matrix - x) * x, axis=1)
        slack = matrix - x + np.diag(y)
        return max(float(np.linalg.norm(slack @ x)), float(np.linalg.eigvalsh(slack)[-1]))

    exact = ss.project_elliptope(matrix, "newton")
    assert violation(exact.matrix) < 1e-4
    assert violation(ss.project_elliptope(matrix, "aap").matrix) > 1e-2


@pytest.mark.parametrize("n", [100, 300, 500])
@pytest.mark.parametrize(
    ("noise", "most"), [(1e-3, 15), (0.3, 15), (1, 15), (5, 15), (20, 15), (100, 15), (300, 30), (1000, 30)]
)
def test_few_eigendecompositions(n: int, noise: float, most: int) -> None:
    """Few eigendecompositions are enough at every noise level."""
    result = ss.project_elliptope(unit_noise(n, noise), "newton")
    assert result.converged
    assert result.eigendecompositions <= most
    assert result.gap < 1e-9
    assert ("low-rank" in result.method) == (noise >= 5)


@pytest.mark.parametrize("noise", [1e4, 1e6, 1e8])
def test_huge_noise(noise: float) -> None:
    """Noise beyond reason is still projected correctly."""
    matrix = unit_noise(80, noise)
    result = ss.project_elliptope(matrix, "newton")
    assert_feasible(result.matrix)
    assert result.converged == (result.residual <= 1e-7)
    slow = ss.project_elliptope(matrix, "dykstra", max_iterations=500)
    assert result.distance <= slow.distance * (1 + 1e-12)
    averaged = ss.project_elliptope(matrix, "aap")
    # Nearly all of the distance is noise that nothing removes; compare what is left after that.
    assert np.sum(matrix * result.matrix) >= np.sum(matrix * averaged.matrix)


def test_restart_after_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled run starts again from the low-rank start."""
    matrix = unit_noise(60, 0.5)
    whole = ss.project_elliptope(matrix, "newton")
    real = newton._newton_direction
    calls = []

    def uphill(point: newton.Point, accuracy: float) -> Array:
        calls.append(1)
        direction = real(point, accuracy)
        return -direction if len(calls) == 2 else direction

    monkeypatch.setattr(newton, "_newton_direction", uphill)
    mended = ss.project_elliptope(matrix, "newton")
    assert mended.method == "newton (low-rank start after a stall)"
    assert mended.converged
    assert mended.distance == pytest.approx(whole.distance, rel=1e-9)
    assert mended.eigendecompositions > whole.eigendecompositions


def test_a_limit_is_kept_and_said() -> None:
    """A limit is kept and reported."""
    matrix = unit_noise(60, 0.5)
    short = ss.project_elliptope(matrix, "newton", max_iterations=1)
    assert not short.converged
    assert (short.method, short.iterations, short.eigendecompositions) == ("newton", 1, 2)
    assert short.residual > 1e-7
    assert_feasible(short.matrix)
    whole = ss.project_elliptope(matrix, "newton")
    assert short.distance >= whole.distance * (1 - 1e-12)


@pytest.mark.parametrize("device", ["torch", GPU])
@pytest.mark.parametrize("name", ["high02", "blocks", "duplicates", "n = 1", "n = 120", "noise 0.01", "noise 100"])
def test_pytorch(device: str, name: str) -> None:
    """PyTorch runs the same algorithm."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    here, there = (ss.project_elliptope(BATTERY[name], "newton", device=where) for where in ("cpu", device))
    assert there.method == here.method
    assert there.converged
    assert_feasible(there.matrix)
    assert isinstance(there.matrix, np.ndarray)
    assert there.distance == pytest.approx(here.distance, rel=1e-9)
    assert np.abs(there.matrix - here.matrix).max() < 1e-4
    for method in ("aap", "dykstra", "pnp"):
        ours = ss.project_elliptope(BATTERY[name], method, max_iterations=30)
        theirs = ss.project_elliptope(BATTERY[name], method, max_iterations=30, device=device)
        assert np.abs(theirs.matrix - ours.matrix).max() < 1e-9


def test_read_only_input_on_every_device() -> None:
    """Read-only input is accepted on every device."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    matrix = unit_noise(20, 1.0)
    before = matrix.copy()
    matrix.flags.writeable = False
    for device in ("cpu", "torch"):
        for method in ("newton", "partial", "aap", "dykstra", "pnp"):
            ss.project_elliptope(matrix, method, max_iterations=5, device=device)
    assert np.array_equal(matrix, before)


def test_trace_shift() -> None:
    """The positive part of the shifted eigenvalues has trace n."""
    for values in ([-1.0, 2.0, 3.0], [0.0, 0.0, 100.0], [-5.0, -4.0, -3.0], [1.0, 1.0, 1.0]):
        shift = newton.find_trace_shift(np.array(values))
        assert np.maximum(np.array(values) - shift, 0).sum() == pytest.approx(3)
