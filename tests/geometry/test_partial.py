"""The projection from the positive eigenvectors: against Newton's method, the SDP and the optimality conditions."""

from __future__ import annotations

import math
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import GPU, assert_feasible, cosines, noisy_gram

import scoreshield as ss
from scoreshield.geometry import arrays, elliptope, low_rank, newton, partial
from scoreshield.geometry.spectrum import find_leading_pairs

Array = np.ndarray


def bound_distance(result: ss.Projection) -> float:
    """The proved bound on the Frobenius distance from the nearest matrix."""
    return math.sqrt(2 * result.gap * max(result.distance**2 / 2, 1.0))


def assert_agrees(matrix: Array, device: str = "cpu") -> ss.Projection:
    """The result is valid and proved, and Newton's is within the proved distance and within rounding of it."""
    found, old = ss.project_elliptope(matrix, "partial", device=device), ss.project_elliptope(matrix, "newton")
    assert_feasible(found.matrix)
    assert found.distance == pytest.approx(np.linalg.norm(found.matrix - matrix), rel=1e-12, abs=1e-9)
    size = np.linalg.norm(old.matrix)
    if found.method != "partial":
        assert np.array_equal(found.matrix, old.matrix) or device != "cpu"
        return found
    assert found.converged
    assert found.gap <= 1e-7
    assert found.factor is not None
    assert np.abs(found.factor @ found.factor.T - found.matrix).max() < 1e-12
    difference = np.linalg.norm(found.matrix - old.matrix)
    if old.converged:
        assert difference <= bound_distance(found) + 1e-6 * size
        assert difference <= 1e-5 * size
        assert found.distance <= old.distance * (1 + 1e-9) + 1e-6
    return found


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e3, 1e4, 1e6])
@pytest.mark.parametrize(("n", "rank"), [(60, 8), (250, 64), (400, 3)])
def test_agrees_with_newton_at_every_noise_level(n: int, rank: int, noise: float) -> None:
    """Both solvers find the same matrix."""
    found = assert_agrees(cosines(n, noise, rank))
    if n >= 250 and 1 <= noise <= 1e4:
        assert found.method == "partial"
        assert found.eigendecompositions == 0
        assert found.residual <= 1e-6


@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize("noise", [0.0, 0.3, 2.0, 100.0])
def test_agrees_on_duplicates_and_noisy_diagonals(n: int, noise: float) -> None:
    """Duplicate rows, nearly duplicate rows and noise on the diagonal change nothing."""
    rng = np.random.default_rng(n)
    places = np.arange(n) // 2
    copies = cosines(n, noise)[np.ix_(places, places)]
    assert_agrees(copies)
    jitter = 1e-9 * rng.standard_normal((n, n))
    assert_agrees(copies + jitter + jitter.T)
    noisy = cosines(n, noise)
    noisy[np.diag_indices(n)] += max(noise, 0.1) * rng.standard_normal(n)
    assert_agrees(noisy)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 30, 350])
@pytest.mark.parametrize("name", ["identity", "ones", "minus ones", "zero", "minus identity", "huge", "spiked"])
def test_agrees_on_extreme_matrices(name: str, n: int) -> None:
    """Matrices without noise, and very large ones."""
    signs = np.sign(np.random.default_rng(0).standard_normal(n))
    matrix = {
        "identity": np.eye(n),
        "ones": np.ones((n, n)),
        "minus ones": -np.ones((n, n)),
        "zero": np.zeros((n, n)),
        "minus identity": -np.eye(n),
        "huge": 1e6 * np.ones((n, n)),
        "spiked": np.outer(signs, signs) + cosines(n, 0.3) - np.eye(n),
    }[name]
    assert_agrees(matrix)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 70),
    st.floats(-3, 6),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
)
def test_agrees_on_random_matrices(n: int, log_noise: float, rank: int, seed: int) -> None:
    """Random sizes, noise levels, ranks and seeds."""
    assert_agrees(cosines(n, 10**log_noise, rank, seed))


@pytest.mark.parametrize(("n", "noise"), [(8, 0.5), (20, 1.0), (30, 5.0), (30, 50.0)])
def test_agrees_with_the_semidefinite_program(n: int, noise: float) -> None:
    """An interior-point method finds the same matrix."""
    pytest.importorskip("cvxpy", reason="CVXPY is not installed")
    matrix = cosines(n, noise, 4)
    found, program = ss.project_elliptope(matrix, "partial"), ss.project_elliptope(matrix, "sdp", 1e-9)
    assert found.distance == pytest.approx(program.distance, rel=1e-7)
    assert np.abs(found.matrix - program.matrix).max() < 1e-3


@pytest.mark.parametrize("noise", [0.5, 3.0, 200.0])
def test_optimality_conditions(noise: float) -> None:
    """X is nearest if and only if A - X + Diag y is negative semidefinite and orthogonal to X for some y."""
    matrix = cosines(320, noise)
    found = ss.project_elliptope(matrix, "partial")
    assert found.method == "partial"
    x = found.matrix
    slack = matrix - x - np.diag(np.sum((matrix - x) * x, axis=1))
    assert np.linalg.norm(slack @ x) < 1e-4 * np.linalg.norm(matrix)
    assert np.linalg.eigvalsh(slack)[-1] < 1e-4 * max(1.0, noise)


def test_default_depends_on_the_input() -> None:
    """Large noisy matrices are projected by the positive part, small ones and nearly valid ones by Newton's method."""
    assert ss.project_elliptope(cosines(400, 1.0)).method == "partial"
    assert ss.project_elliptope(cosines(299, 1.0)).method == "newton"
    assert ss.project_elliptope(cosines(400, 1e-3, 64)).method.startswith("newton")
    assert ss.project_elliptope(cosines(400, 1.0), tol=1e-12).method.startswith("newton")


def test_limit_is_kept() -> None:
    """A limit is kept and reported, and nothing is called proved."""
    result = ss.project_elliptope(cosines(400, 1.0), max_iterations=1)
    assert (result.method, result.iterations, result.converged) == ("partial", 1, False)
    assert result.gap > 1e-7
    assert_feasible(result.matrix)


@pytest.mark.parametrize("tol", [1.0, 1e3, 1e300])
def test_a_huge_tolerance_is_harmless(tol: float) -> None:
    """A tolerance above 1 gives no larger gap than 1 does, and nothing overflows."""
    with np.errstate(all="raise"):
        result = ss.project_elliptope(cosines(320, 1.0), "partial", tol=tol)
    assert result.converged
    assert result.gap < 1
    assert_feasible(result.matrix)


def test_progress_is_reported() -> None:
    """Progress is reported."""
    seen: list[tuple[int, int]] = []
    result = ss.project_elliptope(cosines(400, 1.0), progress=lambda *done: seen.append(done))
    assert result.method == "partial"
    assert seen == [(i, partial.STEPS) for i in range(1, result.iterations + 1)]


def test_falls_back_to_newton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the block breaks down, or nothing is proved, Newton's method runs."""
    matrix = cosines(350, 1.0)

    def breakdown(*_: object) -> None:
        raise FloatingPointError

    with monkeypatch.context() as patch:
        patch.setattr(partial.PartialSolver, "_separate", breakdown)
        assert ss.project_elliptope(matrix, "partial").method.startswith("newton")
    with monkeypatch.context() as patch:
        patch.setattr(elliptope, "prove_gap", lambda *a: _unproved(*a))
        result = ss.project_elliptope(matrix, "partial")
        assert result.method.startswith("newton")
        assert result.converged


def test_result_stands_where_newton_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is not proved is returned as such where Newton's method does not fit into the memory.

    The noise of a Gram release is paid for by then, so that an error would lose it.
    """
    matrix = cosines(350, 1.0)
    nearest = ss.project_elliptope(matrix).matrix
    free = iter([10 * matrix.nbytes, 3.9 * matrix.nbytes, 4.9 * matrix.nbytes])
    monkeypatch.setattr(elliptope, "_find_available_memory", lambda: next(free))
    with monkeypatch.context() as patch:
        patch.setattr(elliptope, "prove_gap", lambda *a: _unproved(*a))
        result = ss.project_elliptope(matrix)
    assert (result.method, result.converged, result.gap) == ("partial", False, math.inf)
    assert np.abs(result.matrix - nearest).max() < 1e-5
    with pytest.raises(ss.InvalidInput, match="method 'newton' needs about"):
        elliptope.project_array(cosines(350, 0.001))  # its positive part is too wide


def test_work_is_limited() -> None:
    """Where the block converges slowly, the default does not spend more on it than eigendecompositions cost."""
    matrix = cosines(320, 1.0)
    scales = np.exp(3 * np.random.default_rng(2).standard_normal(320))
    uneven = matrix * np.sqrt(np.outer(scales, scales))
    solver = partial.PartialSolver(uneven, most=5)
    first = solver.solve(1e-9)
    assert solver.is_spent
    assert first is not None
    assert first.residual > 1e-9
    assert solver.columns < 15 * 320
    assert solver.solve(1e-12).iterations == first.iterations
    found, old = ss.project_elliptope(uneven), ss.project_elliptope(uneven, "newton")
    assert found.converged
    assert np.abs(found.matrix - old.matrix).max() <= 1e-3


def _unproved(_: Array, factor: Array, *__: object) -> elliptope.GapProof:
    rows = factor / np.linalg.norm(factor, axis=1, keepdims=True)
    return elliptope.GapProof(rows @ rows.T, rows, 1.0, math.inf, 1.0, 1)


@pytest.mark.parametrize("device", ["torch", GPU])
@pytest.mark.parametrize("noise", [0.3, 2.0, 50.0, 1000.0, 1e6])
def test_pytorch(device: str, noise: float) -> None:
    """PyTorch runs the same algorithm."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found = assert_agrees(cosines(320, noise), device)
    assert found.method == "partial"
    assert isinstance(found.matrix, np.ndarray)
    assert isinstance(found.factor, np.ndarray)


def test_heavy_noise_needs_no_eigendecomposition() -> None:
    """Matrices whose dual steps stall from the first low-rank start: the search for a start goes on."""
    for n, seed in ((600, 0), (600, 1), (1200, 0)):
        found = ss.project_elliptope(noisy_gram(n, 1e6, seed))
        assert found.method == "partial"
        assert found.converged
        assert found.residual <= 1e-6


def test_a_nearer_start_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is far off makes the steps stall; without further searches, Newton's method has to run."""
    monkeypatch.setattr(partial, "_SEARCH_TOL", 3e5)
    matrix = noisy_gram(320, 1e6, 3)
    assert ss.project_elliptope(matrix).method == "partial"
    monkeypatch.setattr(partial, "_RESTARTS", 0)
    assert ss.project_elliptope(matrix).method.startswith("newton")


def test_low_rank_search_finds_the_solution() -> None:
    """The rows that the search finds have the cosines of the nearest matrix; a search that is cut short does not."""
    matrix = noisy_gram(300, 50.0, 2)
    nearest = ss.project_elliptope(matrix, "newton").matrix
    start = np.random.default_rng(0).standard_normal((300, 30))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    errors = []
    for steps in (20, 600):
        search = low_rank.LowRankDescent(matrix.diagonal(), start, np.float64)
        rows, y = search.run(lambda block: matrix @ block, 1e-10, steps)
        errors.append(np.linalg.norm(rows @ rows.T - nearest) / np.linalg.norm(nearest))
    assert errors[1] <= 1e-6
    assert errors[0] > 1e-3
    slack = rows @ rows.T - matrix - np.diag(y)
    assert np.linalg.eigvalsh(slack)[0] >= -1e-6 * np.abs(y).max()


@pytest.mark.parametrize("device", ["torch", GPU])
def test_a_large_copy_from_a_device_is_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large matrix is copied from a device by panels of rows, and none is missing or moved."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(arrays, "_LARGE", 1 << 12)
    matrix = np.random.default_rng(1).standard_normal((301, 17))
    assert np.array_equal(arrays.to_numpy(arrays.to_device(matrix, device)), matrix)


@pytest.mark.parametrize(
    ("noise", "diagonal", "entry"),
    [(0.3, 1e4, None), (0.3, 1e5, None), (1.0, 1e6, None), (0.3, 0.0, ((0, 0), 1e9)), (1.0, 0.0, ((0, 0), 1e9))]
    + [(0.3, 0.0, ((0, 1), value)) for value in (1e6, -1e6, 1e9)],
)
def test_large_entries_excuse_no_error(
    noise: float, diagonal: float, entry: tuple[tuple[int, int], float] | None
) -> None:
    """A few huge entries, or a large diagonal, add the same to every distance, and make no gap relatively small."""
    matrix = cosines(320, noise, 8)
    matrix[np.diag_indices(320)] += diagonal * np.random.default_rng(7).standard_normal(320)
    if entry is not None:
        (i, j), value = entry
        matrix[i, j] = matrix[j, i] = value
    found, old = ss.project_elliptope(matrix), ss.project_elliptope(matrix, "newton")
    assert found.converged
    assert np.abs(found.matrix - old.matrix).max() <= 1e-4


@pytest.mark.parametrize("method", ["partial", "newton"])
@pytest.mark.parametrize("n", [3, 120, 320])
@pytest.mark.parametrize("spread", [1e3, 1e8, -1e8, 1e12])
def test_the_diagonal_costs_nothing(n: int, spread: float, method: str) -> None:
    """The diagonal of the input changes neither the result nor the work, however large it is."""
    matrix = cosines(n, 1.0)
    np.fill_diagonal(matrix, 1.0)
    plain = elliptope.project_elliptope(matrix, method)
    extra = spread * np.abs(np.random.default_rng(n).standard_normal(n)) * (np.arange(n) % 3 == 0)
    given = matrix + np.diag(extra)
    found = elliptope.project_elliptope(given, method)
    assert np.array_equal(found.matrix, plain.matrix)
    assert (found.method, found.iterations, found.converged) == (plain.method, plain.iterations, True)
    assert found.distance == pytest.approx(np.linalg.norm(found.matrix - given), rel=1e-12)
    absolute = [max(one.distance**2 / 2, 1.0) * one.gap for one in (found, plain)]
    assert absolute[0] == pytest.approx(absolute[1], rel=1e-12)


def test_the_diagonal_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix of the caller is as it was, also after an interrupt."""
    matrix = cosines(320, 1.0)
    before = matrix.copy()
    elliptope.project_array(matrix)
    assert np.array_equal(matrix, before)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(elliptope, "prove_gap", interrupt)
    with pytest.raises(KeyboardInterrupt):
        elliptope.project_array(matrix)
    assert np.array_equal(matrix, before)


def test_double_precision_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver of a device without fast single precision, such as a GPU, finds the same matrix."""
    monkeypatch.setattr(partial, "is_single_faster", lambda _: False)
    for noise in (0.5, 5.0, 500.0):
        assert assert_agrees(cosines(320, noise)).method == "partial"


def test_spectrum_is_estimated() -> None:
    """The estimated ends enclose the spectrum, and the estimated rank is near the true one."""
    matrix = cosines(600, 1.0, 64)
    spectrum = partial.PartialSolver(matrix).spectrum
    values = np.linalg.eigvalsh(matrix)
    assert spectrum.low <= values[0]
    assert spectrum.high >= values[-1]
    shift = newton.find_trace_shift(values)
    assert spectrum.shift == pytest.approx(shift, rel=0.05)
    assert spectrum.rank == pytest.approx((values > shift).sum(), rel=0.4)


@pytest.mark.parametrize("noise", [0.5, 5.0, 1000.0])
def test_filter_needs_no_double_precision(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters multiply residuals in single precision at every accuracy; double precision is for Rayleigh's quotient."""
    columns = {np.float32: 0, np.float64: 0}
    multiply = partial.PartialSolver._multiply

    def count(self: partial.PartialSolver, block: Array) -> Array:
        columns[block.dtype.type] += block.shape[1]
        return multiply(self, block)

    monkeypatch.setattr(partial.PartialSolver, "_multiply", count)
    found = ss.project_elliptope(cosines(500, noise), "partial")
    assert found.method == "partial"
    assert found.residual <= 1e-6
    assert columns[np.float64] <= 0.2 * columns[np.float32]


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_memory(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the input, the solver and the proof hold at most 3.2 matrices, and one more where matrices are small."""
    matrix = cosines(1000, noise, 64)
    peaks = []
    for small in (arrays._SMALL, 0):
        monkeypatch.setattr(arrays, "_SMALL", small)
        tracemalloc.start()
        found = ss.project_elliptope(matrix, "partial")
        peaks.append(tracemalloc.get_traced_memory()[1] / matrix.nbytes)
        tracemalloc.stop()
        assert found.method == "partial"
    assert peaks[0] <= 4
    assert peaks[1] <= 3.2


@pytest.mark.parametrize("seed", [2, 4, 9])
def test_eigenvalues_that_change_their_sign(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under very heavy noise, steps that are tried within the block reach the tolerance in fewer evaluations."""
    matrix = cosines(420, 1e5, 8, seed)
    evaluate = partial.PartialSolver._evaluate
    counts = []
    for few in (partial._FEW, 0):
        calls = [0]

        def count(self: partial.PartialSolver, *a: object, calls: list[int] = calls, **o: object) -> object:
            calls[0] += 1
            return evaluate(self, *a, **o)

        monkeypatch.setattr(partial.PartialSolver, "_evaluate", count)
        monkeypatch.setattr(partial, "_FEW", few)
        monkeypatch.setattr(partial, "_NARROW", 0.1 if few else 0.0)
        result = ss.project_elliptope(matrix, "partial")
        if few:
            assert result.method == "partial"
            assert result.residual <= 1e-6
        counts.append(calls[0])
    assert counts[0] <= counts[1]


@pytest.mark.parametrize("noise", [0.5, 5.0, 100.0])
def test_warm_start(noise: float) -> None:
    """A projection that starts from that of a nearby matrix finds the same matrix with fewer products."""
    first = cosines(400, noise)
    signs = np.triu(np.sign(np.random.default_rng(1).standard_normal(first.shape)), 1)
    second = first + 0.03 * noise * (signs + signs.T)
    warm = partial.WarmStart()
    elliptope.project_array(first, warm=warm)
    solvers = [partial.PartialSolver(second, warm=start) for start in (warm, None)]
    for solver in solvers:
        assert solver.solve(1e-6) is not None
    assert solvers[0].columns < solvers[1].columns
    found = elliptope.project_array(second, warm=warm)
    cold = elliptope.project_array(second)
    assert found.method == cold.method == "partial"
    assert found.converged
    assert np.linalg.norm(found.matrix - cold.matrix) <= 1e-5 * np.linalg.norm(cold.matrix)


def test_warm_start_that_is_far() -> None:
    """A start from another matrix altogether is not used, or does no harm."""
    warm = partial.WarmStart()
    elliptope.project_array(cosines(400, 50.0), warm=warm)
    matrix = cosines(400, 1.0, seed=3)
    found, cold = elliptope.project_array(matrix, warm=warm), elliptope.project_array(matrix)
    assert found.converged
    assert np.linalg.norm(found.matrix - cold.matrix) <= 1e-5 * np.linalg.norm(cold.matrix)


@pytest.mark.parametrize("device", ["cpu", "torch", GPU])
@pytest.mark.parametrize(("n", "noise", "rank"), [(320, 0.3, 8), (320, 20.0, 8), (400, 0.05, 64), (100, 0.3, 5)])
def test_leading_pairs(n: int, noise: float, rank: int, device: str) -> None:
    """The filtered block finds what a full eigendecomposition finds."""
    matrix = cosines(n, noise, rank)
    there = matrix
    if device != "cpu":
        pytest.importorskip("torch", reason="PyTorch is not installed")
        there = arrays.to_device(matrix, device)
    edge = 2 * noise * math.sqrt(n)
    expected = np.linalg.eigvalsh(matrix)
    for count, floor in ((rank, edge), (n, edge), (rank, 0.0)):
        values, vectors = find_leading_pairs(there, count, floor)
        values, vectors = arrays.to_numpy(values), arrays.to_numpy(vectors)
        wanted = expected[expected > floor][-count:]
        assert values == pytest.approx(wanted, rel=1e-10)
        assert np.linalg.norm(matrix @ vectors - vectors * values) <= 1e-8 * expected[-1]


def test_leading_pairs_of_a_block_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of equal records overflow the filter: there is no warning, and a decomposition finds the pairs."""
    groups = np.kron(np.eye(15), np.ones((20, 20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(find_leading_pairs(groups, 64, 40.0)[0]) == 0

    def overflow(*_: object) -> None:
        raise FloatingPointError

    matrix = cosines(320, 0.3, 8)
    expected = find_leading_pairs(matrix, 4)[0]
    monkeypatch.setattr(partial.PartialSolver, "_separate", overflow)
    assert find_leading_pairs(matrix, 4)[0] == pytest.approx(expected, rel=1e-9)


def test_no_pair_above_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no eigenvalue exceeds the floor, the filtered block finds none."""
    monkeypatch.setattr(partial, "_LEADING_COST", math.inf)
    matrix = cosines(320, 20.0, 8)
    top = float(np.linalg.eigvalsh(matrix)[-1])
    for count in (8, 320):
        solver = partial.PartialSolver(matrix)
        found = solver.find_leading(count, 1.01 * top, 1e-11)
        assert found is None or (len(found[0]) == 0 and found[1].shape == (320, 0))
        values, vectors = find_leading_pairs(matrix, count, 1.01 * top)
        assert (len(values), vectors.shape) == (0, (320, 0))
    assert len(find_leading_pairs(matrix, 8, 0.9999 * top)[0]) >= 1


def test_noisy_diagonal_of_the_support_matrix() -> None:
    """The matrices of the other tests, whose diagonal is noisy too."""
    for noise in (0.5, 5.0):
        assert_agrees(noisy_gram(330, noise, 1))
