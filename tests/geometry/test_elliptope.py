"""What every projection must take, refuse and leave behind."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import assert_feasible, noisy_gram, torch_sees_a_gpu

import scoreshield as ss
from scoreshield.geometry import elliptope
from scoreshield.releases import gram
from scoreshield.releases import index as index_module

Array = np.ndarray


def test_a_valid_matrix_is_left_alone() -> None:
    """A valid matrix is unchanged."""
    matrix = noisy_gram(10, 0.0, 1)
    for method in ("newton", "aap", "dykstra"):
        result = ss.project_elliptope(matrix, method)
        assert result.converged
        assert result.iterations <= 1
        assert np.abs(result.matrix - matrix).max() < 1e-13
        assert result.distance < 1e-12


@pytest.mark.parametrize(
    "matrix",
    [
        np.array([[5.0]]),
        np.array([[-3.0]]),
        np.zeros((4, 4)),
        -np.eye(4),
        np.full((6, 6), 1e90),
        -np.full((6, 6), 1e-200),
        np.eye(3, dtype=int),
        np.eye(3, dtype=np.float32),
    ],
)
def test_odd_matrices_still_give_a_valid_one(matrix: Array) -> None:
    """Odd matrices still give a valid one."""
    for method in ("newton", "aap", "dykstra"):
        assert_feasible(ss.project_elliptope(matrix, method, max_iterations=20).matrix)


@given(st.integers(1, 12), st.floats(1e-6, 1e4), st.integers(0, 2**32 - 1))
def test_always_feasible(n: int, noise: float, seed: int) -> None:
    """The result is always a valid cosine matrix."""
    assert_feasible(ss.project_elliptope(noisy_gram(n, noise, seed), max_iterations=25).matrix)


def test_input_is_never_modified() -> None:
    """Input is never modified."""
    matrix = noisy_gram(8, 1.0, 2)
    matrix.flags.writeable = False
    before = matrix.copy()
    ss.project_elliptope(matrix)
    assert np.array_equal(matrix, before)


def test_progress_is_reported() -> None:
    """Progress is reported."""
    seen: list[tuple[int, int]] = []
    ss.project_elliptope(noisy_gram(6, 1.0, 4), "aap", max_iterations=7, progress=lambda *done: seen.append(done))
    assert seen == [(i, 7) for i in range(1, 8)]
    seen.clear()
    result = ss.project_elliptope(noisy_gram(30, 0.3, 4), progress=lambda *done: seen.append(done))
    assert seen == [(i, 100) for i in range(1, result.iterations + 1)]


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
    """A matrix that is not valid raises an error."""
    with pytest.raises(ss.InvalidInput, match=message):
        ss.project_elliptope(matrix)


@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "magic"},
        {"tol": 0},
        {"max_iterations": 0},
        {"max_iterations": 2.5},
        {"device": "tpu"},
        {"device": 3},
        {"method": "sdp", "solver": "abacus"},
        {"method": "sdp", "time_limit": -1},
    ],
)
def test_bad_options(arguments: dict[str, object]) -> None:
    """An option that is not valid raises an error."""
    with pytest.raises(ss.InvalidInput):
        ss.project_elliptope(np.eye(2), **arguments)  # type: ignore[arg-type]


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory is reported before starting."""
    monkeypatch.setattr(elliptope, "_find_available_memory", lambda: 10_000)
    with pytest.raises(ss.InvalidInput, match=r"needs about .* GiB for a matrix of 50 rows"):
        ss.project_elliptope(np.eye(50))
    assert ss.project_elliptope(np.eye(3)).converged

    def never(*_: object) -> None:
        raise AssertionError("noise was drawn for a release that cannot be finished")

    monkeypatch.setattr(gram, "_add_symmetric_noise", never)
    with pytest.raises(ss.InvalidInput, match="needs about"):
        ss.release_gram(np.eye(50), epsilon=1, delta=1e-6)
    monkeypatch.setattr(elliptope, "_find_available_memory", lambda: None)
    assert ss.project_elliptope(np.eye(50)).converged


def test_too_little_memory_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the GPU is looked at too, before a release is charged."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    matrix = 8 * 400 * 400
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 * matrix)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: matrix)
    free = {"cuda:0": 1.2 * matrix, "cuda:1": 0.9 * matrix}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (free[str(place)], 9 * matrix))
    elliptope.check_memory(400, "auto", "cuda:0")
    for method, device in (("auto", "cuda:1"), ("newton", "cuda:0")):
        with pytest.raises(ss.InvalidInput, match=f"'{method}' needs about .* GiB of the GPU for a matrix of 400 rows"):
            elliptope.check_memory(400, method, device)


def test_memory_of_an_index_for_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of an index reserve one matrix, and their projection what the method holds."""
    rows = np.random.default_rng(0).standard_normal((320, 8))
    index = ss.release_index(rows, epsilon=12, use="pairs", rng=0)
    matrix = 8 * 320 * 320
    for free, is_projected, is_enough in ((1, False, True), (0.99, False, False), (4, True, True), (3.9, True, False)):
        monkeypatch.setattr(elliptope, "_find_available_memory", lambda free=free: int(free * matrix))
        if is_enough:
            # The projection itself has its own test of memory; here only the reservation counts.
            monkeypatch.setattr(index_module, "project_elliptope", lambda gram: ss.Projection(gram, *[None] * 7))
            assert index.gram(project=is_projected).shape == (320, 320)
        else:
            with pytest.raises(ss.InvalidInput, match="needs about"):
                index.gram(project=is_projected)


@pytest.mark.skipif(torch_sees_a_gpu(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    """A missing GPU raises an error."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(ss.InvalidInput, match="PyTorch sees no GPU"):
        ss.project_elliptope(np.eye(3), device="cuda")


def test_without_pytorch_or_cvxpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library raises an error that names the extra."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ss.InvalidInput, match=r"scoreshield\[gpu\]"):
        ss.project_elliptope(np.eye(3), device="cuda")
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ss.InvalidInput, match=r"scoreshield\[sdp\]"):
        ss.project_elliptope(np.eye(3), "sdp")
