"""The denoisers against closed forms, brute force and the truth, and Stein's estimate against the true loss."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.stats import spearmanr
from support import STRICT

import scoreshield as ss
from scoreshield.geometry.denoise import METHODS, DenoisedGram, _shrink, denoise

Array = np.ndarray
CANDIDATES = ("projection", "rank", "shrinkage", "identity")


def clean_gram(n: int, d: int, decay: float, rng: np.random.Generator) -> Array:
    """Cosines of Gaussian rows whose coordinates have standard deviations exp(-decay * k)."""
    rows = rng.standard_normal((n, d)) * np.exp(-decay * np.arange(d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    gram = rows @ rows.T
    np.fill_diagonal(gram, 1)
    return gram


def with_noise(clean: Array, std: float, rng: np.random.Generator) -> Array:
    noise = np.triu(rng.standard_normal(clean.shape) * std, 1)
    return clean + noise + noise.T


def to_unit_diagonal(matrix: Array) -> Array:
    root = np.sqrt(matrix.diagonal())
    matrix = np.clip(matrix / np.outer(root, root), -1, 1)
    np.fill_diagonal(matrix, 1)
    return (matrix + matrix.T) / 2


def positive_part(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0)) @ vectors.T


def nearest(matrix: Array) -> Array:
    """The exact projection, by quasi-Newton steps on its dual (Malick 2004)."""

    def dual(y: Array) -> tuple[float, Array]:
        part = positive_part(matrix + np.diag(y))
        return float((part**2).sum() / 2 - y.sum()), part.diagonal() - 1

    options = {"gtol": 1e-7, "ftol": 1e-15, "maxiter": 300}
    y = minimize(dual, np.zeros(len(matrix)), jac=True, method="L-BFGS-B", options=options).x
    return to_unit_diagonal(positive_part(matrix + np.diag(y)))


def quick(matrix: Array) -> Array:
    """A feasible matrix at the price of one eigendecomposition; Stein's estimate holds for it just as well."""
    return to_unit_diagonal(positive_part(matrix))


def loss(matrix: Array, clean: Array) -> float:
    """Mean squared error per entry off the diagonal."""
    n = len(clean)
    return float(((matrix - clean) ** 2).sum() / (n * (n - 1)))


def assert_feasible(matrix: Array) -> None:
    assert np.array_equal(matrix, matrix.T)
    assert np.all(matrix.diagonal() == 1.0)
    assert np.abs(matrix).max() <= 1.0
    assert np.linalg.eigvalsh(matrix)[0] >= -1e-10 * len(matrix)


@cache
def case(n: int, d: int, decay: float, std: float) -> tuple[Array, Array, dict[str, DenoisedGram]]:
    rng = np.random.default_rng(n + d)
    clean = clean_gram(n, d, decay, rng)
    noisy = with_noise(clean, std, rng)
    return clean, noisy, {method: denoise(noisy, std, method, rank=d, project=nearest) for method in METHODS}


def losses(n: int, d: int, decay: float, std: float) -> dict[str, float]:
    clean, _, results = case(n, d, decay, std)
    return {method: loss(results[method].matrix, clean) / std**2 for method in ("none", *CANDIDATES)}


UNEVEN = (200, 8, 0.3, 0.3)  # small rank, uneven spectrum, moderate noise
EVEN = (200, 8, 0.0, 0.05)  # small rank, even spectrum, little noise
WIDE = (200, 64, 0.0, 0.1)  # rank not small beside n
DROWNED = (200, 64, 0.0, 1.0)  # every eigenvalue below the noise edge
CASES = [UNEVEN, EVEN, WIDE, DROWNED]


@pytest.mark.parametrize("setting", CASES)
def test_each_result_is_feasible(setting: tuple[int, int, float, float]) -> None:
    """Each result is a valid cosine matrix."""
    _, noisy, results = case(*setting)
    assert np.array_equal(results["none"].matrix, noisy)
    for method in (*CANDIDATES, "sure"):
        assert_feasible(results[method].matrix)
    for method in ("none", *CANDIDATES):
        assert results[method].method == method
        assert results[method].risks == {}


@given(
    st.integers(2, 12),
    st.floats(1e-6, 1e4),
    st.integers(1, 15),
    st.sampled_from([*CANDIDATES, "sure"]),
    st.integers(0, 2**32 - 1),
)
def test_always_feasible(n: int, std: float, rank: int, method: str, seed: int) -> None:
    """The result is always a valid cosine matrix."""
    rng = np.random.default_rng(seed)
    result = denoise(with_noise(clean_gram(n, 3, 0, rng), std, rng), std, method, rank=rank, project=quick)
    if result.method != "none":
        assert_feasible(result.matrix)


@pytest.mark.parametrize("setting", CASES)
def test_the_noisy_matrix_is_worst(setting: tuple[int, int, float, float]) -> None:
    """The noisy matrix is worst."""
    error = losses(*setting)
    assert error["none"] == pytest.approx(1, abs=0.1)
    assert max(error[method] for method in CANDIDATES) < 0.8 * error["none"]


def test_shrinkage_least_error_spectrum() -> None:
    """Shrinkage has the least error where the spectrum is uneven."""
    error = losses(*UNEVEN)
    assert error["shrinkage"] < 0.9 * min(error["rank"], error["projection"], error["identity"])


def test_rank_least_error_spectrum_even() -> None:
    """Rank has the least error where the spectrum is even and the noise small."""
    error = losses(*EVEN)
    assert error["rank"] < 0.98 * error["shrinkage"]
    assert error["shrinkage"] < 0.9 * min(error["projection"], error["identity"])


def spearman(setting: tuple[int, int, float, float]) -> dict[str, float]:
    clean, _, results = case(*setting)
    above = np.triu_indices(len(clean), 1)
    return {method: spearmanr(results[method].matrix[above], clean[above])[0] for method in ("none", *CANDIDATES)}


def test_projection_best_rank_not_small() -> None:
    """Projection is best where the rank is not small."""
    error, order = losses(*WIDE), spearman(WIDE)
    assert error["projection"] < 0.95 * min(error[method] for method in ("rank", "shrinkage", "identity"))
    assert order["projection"] > 0.01 + max(order[method] for method in ("none", "rank", "shrinkage", "identity"))


def test_identity_best_in_strong_noise() -> None:
    """Identity has the least error where nothing stands out."""
    error = losses(*DROWNED)
    assert error["identity"] == min(error.values())
    clean = case(*DROWNED)[0]
    assert error["identity"] == pytest.approx(loss(np.eye(len(clean)), clean), rel=0.05)
    assert max(spearman(DROWNED).values()) < 0.2


@pytest.mark.parametrize("setting", [UNEVEN, EVEN, WIDE])
def test_shrink_y_not_y_less_identity(setting: tuple[int, int, float, float]) -> None:
    """Even with the diagonal simply overwritten, which is the kindest to it and not feasible."""
    n, d, _, std = setting
    clean, noisy, results = case(*setting)
    values, vectors = np.linalg.eigh(noisy - np.eye(n))
    values = _shrink(np.maximum(values, 0), std, n) * (np.arange(n) >= n - d)
    other = (vectors * values) @ vectors.T
    np.fill_diagonal(other, 1)
    print(
        "RATIO",
        setting,
        loss(other, clean) / loss(results["shrinkage"].matrix, clean),
        loss(to_unit_diagonal(np.eye(n) + (vectors * values) @ vectors.T), clean)
        / loss(results["shrinkage"].matrix, clean),
    )
    assert 1.1 < loss(other, clean) / loss(results["shrinkage"].matrix, clean) < 2.1


@pytest.mark.parametrize("setting", [UNEVEN, WIDE])
def test_filling_diagonal_beats_scaling(setting: tuple[int, int, float, float]) -> None:
    """Filling the diagonal beats scaling to it."""
    n, d, _, std = setting
    clean, noisy, results = case(*setting)
    values, vectors = eigh(noisy, subset_by_index=[n - d, n - 1])
    scaled = to_unit_diagonal((vectors * _shrink(values, std, n)) @ vectors.T)
    assert loss(results["shrinkage"].matrix, clean) < 0.95 * loss(scaled, clean)


def test_shrinker_is_best_scaling() -> None:
    """Large n: the multiple of v v^T nearest to S is v^T S v, since the v v^T are orthonormal."""
    n, d, std = 1500, 4, 1.5
    rng = np.random.default_rng(8)
    clean = clean_gram(n, d, 0.4, rng)
    values, vectors = eigh(with_noise(clean, std, rng), subset_by_index=[n - d, n - 1])
    best = np.einsum("ij,ij->j", vectors, clean @ vectors)
    edge = 2 * std * np.sqrt(n)
    assert np.all(values > 1.05 * edge)
    np.testing.assert_allclose(_shrink(values, std, n), best, rtol=0.03)
    for near_miss in (values, values - edge, _shrink(values, 1.3 * std, n)):
        assert np.abs(near_miss / best - 1).max() > 0.09


def test_shrinker_is_the_formula() -> None:
    """Shrinker is the formula."""
    values = np.array([0.0, 1.9, 2.0, 2.5, 1e90])
    np.testing.assert_allclose(_shrink(values, 0.1, 100), [0, 0, 0, 1.5, 1e90], rtol=1e-14)


def test_identity_is_james_stein() -> None:
    """Where it is feasible before the projection."""
    rng = np.random.default_rng(3)
    noisy = with_noise(np.eye(30), 0.05, rng)
    away = noisy - np.eye(30)
    weight = 1 - 30 * 29 * 0.045**2 / np.linalg.norm(away) ** 2
    assert 0 < weight < 1
    result = denoise(noisy, 0.045, "identity", rank=30, project=lambda m: m)
    np.testing.assert_allclose(result.matrix, np.eye(30) + weight * away, atol=1e-15)


@cache
def estimated_and_true(draws: int, n: int, std: float) -> dict[str, Array]:
    """For each method (draw, [estimated risk, true loss, divergence term]).

    The probes are the same in each draw, so Stein's estimate is unbiased only over records whose signs are random
    too, as the fresh Gaussian ones of each draw are: E d_i d_j d_k d_l = 0 unless the pairs are one pair.
    """
    rng = np.random.default_rng(21)
    rows: dict[str, list[tuple[float, float, float]]] = {method: [] for method in CANDIDATES}
    for _ in range(draws):
        clean = clean_gram(n, 3, 0.2, rng)
        noisy = with_noise(clean, std, rng)
        risks = denoise(noisy, std, "sure", rank=3, project=quick).risks
        for method in CANDIDATES:
            matrix = denoise(noisy, std, method, rank=3, project=quick).matrix
            rows[method].append((risks[method], loss(matrix, clean), risks[method] - loss(matrix, noisy) + std**2))
    return {method: np.array(values) for method, values in rows.items()}


def standard_errors(differences: Array) -> float:
    return float(differences.mean() / differences.std(ddof=1) * np.sqrt(len(differences)))


@pytest.mark.parametrize("method", CANDIDATES)
def test_risk_estimate_is_unbiased(method: str) -> None:
    """Risk estimate is unbiased."""
    risk, true, divergence = estimated_and_true(400, 16, 0.3)[method].T
    assert abs(standard_errors(risk - true)) < STRICT
    for missing in (0.5, 0.2):  # half of the divergence, and even a fifth of it
        assert abs(standard_errors(risk - missing * divergence - true)) > 2 * STRICT


def test_no_denoising_has_a_known_risk() -> None:
    """No denoising has a known risk."""
    _, noisy, _ = case(*UNEVEN)
    assert denoise(noisy, 0.3, "sure", rank=8, project=quick).risks["none"] == 0.3**2


@pytest.mark.parametrize("setting", CASES)
def test_sure_picks_a_method_near_the_best(setting: tuple[int, int, float, float]) -> None:
    """ "sure" picks a method near the best."""
    error, chosen = losses(*setting), case(*setting)[2]["sure"]
    assert set(chosen.risks) == {"none", *CANDIDATES}
    assert chosen.risks[chosen.method] == min(chosen.risks.values())
    assert error[chosen.method] <= 1.05 * min(error.values())
    assert np.array_equal(chosen.matrix, case(*setting)[2][chosen.method].matrix)


def test_sure_does_not_always_pick_the_same() -> None:
    """ "sure" does not always pick the same."""
    assert len({case(*setting)[2]["sure"].method for setting in CASES}) >= 3


def test_rank_one_truth() -> None:
    """A clean matrix of rank one is recovered."""
    rng = np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], 80)
    clean = np.outer(signs, signs)
    noisy = with_noise(clean, 1.0, rng)
    assert np.array_equal(denoise(noisy, 1.0, "rank", rank=1, project=quick).matrix, clean)
    assert loss(denoise(noisy, 1.0, "shrinkage", rank=1, project=quick).matrix, clean) < 0.05
    assert denoise(noisy, 1.0, "sure", rank=1, project=quick).method == "rank"


@pytest.mark.parametrize("score", [-1.7, -0.6, 0.3, 1.2])
def test_two_records(score: float) -> None:
    """Two records are enough for every method."""
    noisy = np.array([[1, score], [score, 1]])
    std = 0.25

    def found(method: str) -> float:
        result = denoise(noisy, std, method, rank=1, project=nearest).matrix
        assert_feasible(result)
        return float(result[0, 1])

    assert found("projection") == pytest.approx(np.clip(score, -1, 1), abs=1e-6)
    assert found("identity") == pytest.approx(np.clip(max(0, 1 - std**2 / score**2) * score, -1, 1), abs=1e-6)
    assert found("rank") == pytest.approx(np.sign(score), abs=1e-12)
    top = 1 + abs(score)
    assert abs(found("shrinkage")) == pytest.approx(min(1, np.sqrt(top**2 - 8 * std**2) / 2), abs=1e-12)
    risks = denoise(noisy, std, "sure", rank=1, project=nearest).risks
    inside = abs(score) < 1
    assert risks["projection"] == pytest.approx(std**2 if inside else (abs(score) - 1) ** 2 - std**2, abs=1e-5)


def test_record_without_direction() -> None:
    """A record without direction stays alone."""
    noisy = np.array([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1.0]])
    expected = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]])
    assert denoise(noisy, 0.1, "rank", rank=1, project=quick).matrix == pytest.approx(expected, abs=1e-14)


def test_nothing_above_noise_identity() -> None:
    """Nothing above the noise is the identity."""
    noisy = with_noise(np.eye(50), 0.01, np.random.default_rng(0))
    for method in ("shrinkage", "identity"):
        assert np.array_equal(denoise(noisy, 10.0, method, rank=5, project=quick).matrix, np.eye(50))
    assert np.array_equal(denoise(np.eye(5), 0.1, "identity", rank=5, project=quick).matrix, np.eye(5))


@pytest.mark.parametrize("std", [1e-5, 1e-9])
@pytest.mark.parametrize("method", METHODS)
def test_a_clean_matrix_is_left_alone(method: str, std: float) -> None:
    """A clean matrix is unchanged."""
    clean = clean_gram(60, 5, 0.2, np.random.default_rng(4))
    result = denoise(clean, std, method, rank=5, project=quick).matrix
    assert np.abs(result - clean).max() < 10 * std


@pytest.mark.parametrize("method", METHODS)
def test_a_loose_rank_is_allowed(method: str) -> None:
    """A loose rank is allowed."""
    rng = np.random.default_rng(6)
    noisy = with_noise(clean_gram(20, 3, 0, rng), 0.2, rng)
    loose, full = (denoise(noisy, 0.2, method, rank=rank, project=quick).matrix for rank in (1000, 20))
    assert np.array_equal(loose, full)


@pytest.mark.parametrize("n", [7, 150])
def test_results_repeat(n: int) -> None:
    """Results repeat."""
    rng = np.random.default_rng(n)
    noisy = with_noise(clean_gram(n, 3, 0, rng), 0.2, rng)
    noisy.flags.writeable = False
    before = noisy.copy()
    first, second = (denoise(noisy, 0.2, "sure", rank=3, project=quick) for _ in range(2))
    assert first.risks == second.risks
    assert np.array_equal(first.matrix, second.matrix)
    assert np.array_equal(noisy, before)
    assert not np.shares_memory(denoise(noisy, 0.2, "none", rank=3, project=quick).matrix, noisy)


def test_with_project_elliptope() -> None:
    """The denoisers work with project_elliptope."""
    rng = np.random.default_rng(2)
    noisy = with_noise(clean_gram(25, 3, 0.2, rng), 0.2, rng)
    for method in (*CANDIDATES, "sure"):
        result = denoise(noisy, 0.2, method, rank=3, project=lambda m: ss.project_elliptope(m).matrix)
        assert_feasible(result.matrix)


@pytest.mark.parametrize(
    ("noisy", "message"),
    [
        (np.ones((2, 3)), "symmetric matrix"),
        (np.ones((1, 1)), "at least 2 by 2"),
        (np.array([[1, 2j], [2j, 1]]), "real"),
        (np.array([[1, 0.5], [0.4, 1]]), "symmetric"),
        (np.array([[1, 0.5], [0.5, 1.1]]), "unit diagonal"),
        (np.array([[1, np.nan], [np.nan, 1]]), "NaN"),
        (np.array([[1, 1e200], [1e200, 1]]), "overflow"),
        ([[1.0], [1.0, 2.0]], "symmetric matrix"),
    ],
)
def test_bad_matrices(noisy: Array, message: str) -> None:
    """A matrix that is not valid raises an error."""
    with pytest.raises(ss.InvalidInput, match=message):
        denoise(noisy, 0.1, "rank", rank=1, project=quick)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"std": 0}, "std"),
        ({"std": -1.0}, "std"),
        ({"std": float("nan")}, "std"),
        ({"std": 5e-324}, "std"),
        ({"std": 1e200}, "std"),
        ({"method": "magic"}, "method"),
        ({"method": None}, "method"),
        ({"rank": 0}, "rank"),
        ({"rank": 2.5}, "rank"),
    ],
)
def test_bad_options(arguments: dict[str, object], name: str) -> None:
    """An option that is not valid raises an error."""
    options: dict[str, object] = {"std": 0.1, "method": "rank", "rank": 1, "project": quick, **arguments}
    with pytest.raises(ss.InvalidInput, match=rf"The '{name}' parameter of denoise must be .* Got .* instead\."):
        denoise(np.eye(3), **options)  # type: ignore[arg-type]
