"""The risk bounds against closed forms, quadrature and simulation.

A simulated risk is judged at confidence 1 - 1e-7, so a test that is right raises a false alarm once in ten million; the
seeds are fixed besides. Each such test also meets a near miss that it must reject.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import STRICT

import scoreshield as ss
from scoreshield import risk
from scoreshield.risk import simulation

Array = np.ndarray
SURE = 1 - 1e-7


def gram(n: int, r: int, seed: int = 0) -> Array:
    """Cosines of n Gaussian vectors of r dimensions."""
    rows = np.random.default_rng(seed).standard_normal((n, r))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def with_active(n: int, active: int, rng: np.random.Generator) -> Array:
    scores = rng.uniform(-0.999, 0.999, n)
    scores[:active] = rng.choice([-1.0, 1.0], active)
    return scores


def hollow(n: int, rng: np.random.Generator) -> Array:
    """Standard Gaussian in the space of symmetric matrices with zero diagonal."""
    upper = np.triu(rng.standard_normal((n, n)), 1) / math.sqrt(2)
    return upper + upper.T


def deviation(samples: Array, expected: float) -> float:
    """The mean less what is expected, in standard errors."""
    return float((samples.mean() - expected) / samples.std(ddof=1) * math.sqrt(len(samples)))


# ---- closed forms


def quadrature(score: float, sigma: float, low: float = -1, high: float = 1) -> float:
    """E (clip(s + sigma z) - s)^2 to 30 digits, by integrating the definition piece by piece."""
    with mpmath.workdps(30):
        s, w, a, b = (mpmath.mpf(value) for value in (score, sigma, low, high))
        left, right = (a - s) / w, (b - s) / w
        tails = (a - s) ** 2 * mpmath.ncdf(left) + (b - s) ** 2 * mpmath.ncdf(-right)
        cuts = [left, *(mpmath.mpf(cut) for cut in range(-20, 21) if left < cut < right), right]
        inside = mpmath.quad(lambda z: (w * z) ** 2 * mpmath.npdf(z), [c for c in cuts if abs(c) <= 41] or [0, 0])
        return float(tails + inside)


@pytest.mark.parametrize("sigma", [1e-8, 1e-3, 0.1, 1.0, 10.0, 1e4, 1e8])
@pytest.mark.parametrize("score", [-1.0, -0.999999, -0.3, 0.0, 1 - 1e-9, 1.0])
def test_exact_risk_is_the_integral(score: float, sigma: float) -> None:
    """Exact risk is the integral."""
    assert risk.exact_risk([score], sigma) == pytest.approx(quadrature(score, sigma), rel=3e-15, abs=0)


@pytest.mark.parametrize(("score", "sigma"), [(0.2, 0.3), (0.6, 0.3), (0.0, 1e6)])
def test_exact_risk_on_another_range(score: float, sigma: float) -> None:
    """The exact risk on another range is the integral."""
    value = risk.exact_risk([score, 0.1], sigma, (0, 0.6))
    assert value == pytest.approx(quadrature(score, sigma, 0, 0.6) + quadrature(0.1, sigma, 0, 0.6), rel=3e-15)


@pytest.mark.parametrize("sigma", [1e-100, 1e100])
def test_exact_risk_at_the_ends_of_sigma(sigma: float) -> None:
    """The exact risk is right for tiny and huge sigma."""
    small = sigma < 1
    assert risk.exact_risk([0.0], sigma) == pytest.approx(sigma**2 if small else 1, rel=1e-15, abs=0)
    assert risk.exact_risk([1.0], sigma) == pytest.approx(sigma**2 / 2 if small else 2, rel=1e-15, abs=0)
    assert risk.exact_risk([0.5], sigma) == pytest.approx(sigma**2 if small else 1.25, rel=1e-15, abs=0)


def test_the_own_entry_of_a_row_has_no_risk() -> None:
    """The own entry of a row has no risk."""
    assert risk.exact_risk([0.1, 1.0, -0.4], 0.5, index=1) == risk.exact_risk([0.1, -0.4], 0.5)
    assert risk.exact_risk([0.1, 1.0, 0.4], 0.5, (0, 0.6), index=1) == risk.exact_risk([0.1, 0.4], 0.5, (0, 0.6))


@pytest.mark.parametrize("regime", ["scores", "row"])
@pytest.mark.parametrize("sigma", [0.05, 0.7, 5.0])
def test_simulation_agrees_closed_form(regime: str, sigma: float, rng: np.random.Generator) -> None:
    """The simulation agrees with the closed form."""
    clean = with_active(30, 10, rng)
    index = None
    if regime == "row":
        index, clean[4] = 4, 1.0
    found = risk.simulate(regime, clean, sigma, trials=60_000, rng=1, index=index, confidence=SURE)
    assert found.low < risk.exact_risk(clean, sigma, index=index) < found.high
    for near_miss in (0.97, 1.03):
        wrong = near_miss * risk.exact_risk(clean, sigma, index=index)
        assert not found.low < wrong < found.high
    naive = risk.simulate(regime, clean, sigma, trials=20_000, rng=2, index=index, confidence=SURE, estimator="none")
    entries = len(clean) - (index is not None)
    assert naive.low < entries * sigma**2 < naive.high
    assert not naive.low < (entries + 1) * sigma**2 < naive.high


# ---- bounds for scores and row


@given(
    st.integers(1, 40),
    st.floats(1e-6, 1e4),
    st.floats(0, 1),
    st.sampled_from(["scores", "row"]),
    st.sampled_from([(-1.0, 1.0), (0.0, 0.6), (-0.25, 1.0)]),
    st.integers(0, 2**32 - 1),
)
def test_every_bound_on_clipped_scores_holds(
    n: int, sigma: float, share: float, regime: str, ends: tuple[float, float], seed: int
) -> None:
    """No chance involved: the risk has a closed form."""
    active = int(share * n)
    unit = with_active(n, active, np.random.default_rng(seed))
    scores = np.where(np.abs(unit) == 1, np.where(unit > 0, ends[1], ends[0]), np.interp(unit, [-1, 1], ends))
    index = None
    if regime == "row":
        scores, index = np.append(scores, 1.0), n
    exact = risk.exact_risk(scores, sigma, ends, index)
    table = risk.bounds(regime, len(scores), sigma, active=active, score_range=ends)
    assert not table.conditional
    for bound in table.valid:
        assert exact <= bound.value * (1 + 1e-14)
    assert table.best.name in ("worst case", "naive", "local")  # which agree where the noise is small
    assert table["worst case"].value <= min(bound.value for bound in table) * (1 + 1e-14)


@pytest.mark.parametrize("sigma", np.geomspace(1e-3, 1e3, 61))
def test_worst_score_middle_or_end(sigma: float) -> None:
    """The worst score is the middle or an end."""
    places = np.concatenate([np.linspace(-1, 1, 2001), 1 - np.geomspace(1e-12, 1, 200)])
    risks = np.array([risk.exact_risk([place], sigma) for place in places[::7]])
    worst = risk.bounds("scores", 1, sigma)["worst case"].value
    assert risks.max() <= worst * (1 + 1e-14)
    assert worst == max(risk.exact_risk([0.0], sigma), risk.exact_risk([1.0], sigma))


def test_near_misses_of_score_bounds() -> None:
    """Each bound is nearly reached somewhere, so a smaller constant would be false."""

    def exact(score: float, sigma: float) -> float:
        return risk.exact_risk([score], sigma)

    assert exact(0.0, 0.01) > 0.99 * risk.bounds("scores", 1, 0.01)["naive"].value
    assert exact(1.0, 0.01) > 0.99 * risk.bounds("scores", 1, 0.01, active=1)["local"].value
    assert exact(0.999, 1e-5) > 0.99e-10  # near an end is not at the end: the half holds for active scores alone
    assert exact(1.0, 1e4) > 0.99 * risk.bounds("scores", 1, 1e4)["size"].value
    largest = max(exact(1.0, sigma) / risk.bounds("scores", 1, sigma)["global"].value for sigma in np.geomspace(1, 9))
    assert 0.6 < largest < 0.7


def test_values_of_the_bounds_on_scores() -> None:
    """The bounds on scores have their stated values."""
    table = risk.bounds("scores", 10, 0.5, active=4)
    assert [bound.name for bound in table] == ["naive", "local", "global (paper)", "global", "size", "worst case"]
    assert table["naive"].value == pytest.approx(2.5)
    assert table["local"].value == pytest.approx(0.25 * 8)
    assert table["global"].value == pytest.approx(5 * math.sqrt(2 / math.pi))
    assert table["global (paper)"].value == pytest.approx(20 * math.sqrt(2 / math.pi))
    assert table["size"].value == 20
    assert table["worst case"].value == pytest.approx(risk.exact_risk([1.0] * 4 + [0.0] * 6, 0.5))
    row = risk.bounds("row", 10, 0.5, active=4, diagonal_noise=True)
    assert row["naive"].value == pytest.approx(2.5)
    assert risk.bounds("row", 10, 0.5)["naive"].value == pytest.approx(0.25 * 9)
    assert row["local"].value == pytest.approx(0.25 * 7)
    assert row["global"].value == pytest.approx(0.5 * 9 * math.sqrt(2 / math.pi))
    assert risk.bounds("scores", 10, 0.5, score_range=(0, 0.5))["size"].value == pytest.approx(10 / 8)


# ---- bounds for Gram matrices


@cache
def measured(n: int, r: int, sigma: float, trials: int = 16) -> risk.Comparison:
    return risk.compare("gram", gram(n, r), sigma, rank=r, trials=trials, rng=n + r, confidence=SURE)


CASES = [(n, r) for n in (2, 3, 12, 40) for r in sorted({1, 2, n // 3 or 1, n})]


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize(("n", "r"), CASES)
def test_no_unconditional_bound_gram(n: int, r: int, sigma: float) -> None:
    """No unconditional bound on Gram matrices fails."""
    found = measured(n, r, sigma)
    assert found.estimate.unconverged == 0
    for bound in found.bounds.valid:
        assert found.verdicts[bound.name] != "fails"


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("r", [1, 5, 60])
def test_best_gram_bound_holds(r: int, sigma: float) -> None:
    """The best bound on Gram matrices is seen to hold."""
    found = measured(60, r, sigma, 30)
    best = found.bounds.best
    assert found.verdicts[best.name] == "holds"
    assert best.value < 10 * found.estimate.mean  # and says something


def test_bound_ten_percent_too_low_rejected() -> None:
    """Inside the elliptope and with little noise, the projection does nothing: the naive bound is the risk."""
    found = measured(60, 60, 1e-5, 60)
    bound = found.bounds["naive"]
    assert found.verdicts["naive"] == "not decided"
    assert simulation._judge_bound(0.9 * bound.value, found.estimate) == "fails"
    assert simulation._judge_bound(1.1 * bound.value, found.estimate) == "holds"


def test_paper_rank_bound_fails() -> None:
    """About 2.0e-3 against a bound of 1.0e-3."""
    found = measured(200, 5, 1e-3, 40)
    assert found.estimate.mean == pytest.approx(2.0e-3, rel=0.04)
    assert found.bounds["rank-aware (loose)"].value == pytest.approx(1.0e-3)
    assert found.bounds["rank-aware"].value == pytest.approx(7.9e-4)
    assert found.bounds["rank"].value == pytest.approx(2.945e-3)
    assert found.verdicts["rank-aware"] == found.verdicts["rank-aware (loose)"] == "fails"
    assert found.verdicts["rank"] == "holds"
    assert found.bounds.best.name == "rank"
    assert simulation._judge_bound(0.9 * found.estimate.mean, found.estimate) == "fails"


def test_rank_truncation_gets_below_it() -> None:
    """Rank truncation has a risk below the bound."""
    found = risk.simulate("gram", gram(200, 5), 1e-3, estimator="rank", rank=5, trials=40, rng=3, confidence=SURE)
    assert found.low < 7.9e-4 < found.high
    assert found.high < risk.bounds("gram", 200, 1e-3, rank=5)["rank-aware (loose)"].value
    for near_miss in (0.9, 1.1):
        assert not found.low < near_miss * 7.9e-4 < found.high


@pytest.mark.parametrize(("n", "r"), [(40, 2), (40, 13), (60, 30)])
def test_rank_bound_below_full_rank(n: int, r: int) -> None:
    """The rank aware bound fails below full rank."""
    found = measured(n, r, 1e-3, 60)
    assert found.verdicts["rank-aware"] == "fails"
    assert found.verdicts["rank"] == "holds"


def test_rank_bound_at_full_rank() -> None:
    """At full rank the rank aware bound is the naive one."""
    table = risk.bounds("gram", 30, 0.3, rank=30)
    assert table["rank-aware"].value == table["naive"].value == table["dimension"].value


def test_values_bounds_gram_matrices() -> None:
    """The bounds on Gram matrices have their stated values."""
    table = risk.bounds("gram", 50, 0.5, rank=4)
    assert table["naive"].value == pytest.approx(0.25 * 1225)
    assert risk.bounds("gram", 50, 0.5, diagonal_noise=True)["naive"].value == pytest.approx(0.25 * 1275)
    assert risk.bounds("gram", 50, 0.5, diagonal_noise=True)["dimension"].value == pytest.approx(0.25 * 1225)
    assert table["global"].value == pytest.approx(0.5 * 50 * 10)
    assert table["global (paper)"].value == pytest.approx(2 * 50 * 10)
    assert table["size"].value == 5000
    assert table["rank"].value == pytest.approx(0.25 * (12 * 46 + 14))
    assert table["rank-aware"].value == pytest.approx(0.25 * (150 - 6))
    assert table["rank-aware (loose)"].value == pytest.approx(0.25 * 200)


@given(st.integers(2, 400), st.floats(1e-4, 1e3), st.data())
def test_a_conditional_bound_never_wins(n: int, sigma: float, data: st.DataObject) -> None:
    """A conditional bound never wins."""
    table = risk.bounds("gram", n, sigma, rank=data.draw(st.integers(1, n)))
    assert [bound.name for bound in table.conditional] == ["rank-aware", "rank-aware (loose)"]
    assert set(table.valid).isdisjoint(table.conditional)
    assert table.best.value == min(bound.value for bound in table.valid)
    for bound in table.conditional:
        assert "Gram-smoothness" in bound.condition
        assert table.best is not bound


@given(st.integers(2, 300), st.floats(1e-4, 1e3), st.data())
def test_a_loose_rank_does_no_harm(n: int, sigma: float, data: st.DataObject) -> None:
    """The best bound does not shrink when the rank that is known grows."""
    r = data.draw(st.integers(1, n))
    s = data.draw(st.integers(r, n))
    assert risk.bounds("gram", n, sigma, rank=r).best.value <= risk.bounds("gram", n, sigma, rank=s).best.value


@given(st.integers(2, 120), st.floats(1e-3, 1e3), st.sampled_from(risk.RANK_BOUNDS))
def test_crossover_is_where_the_curves_cross(n: int, sigma: float, name: str) -> None:
    """Crossover is where the curves cross."""
    best = risk.bounds("gram", n, sigma).best.value
    below = [r for r in range(1, n + 1) if risk.bounds("gram", n, sigma, rank=r)[name].value <= best]
    assert risk.crossover_rank(n, sigma, name=name) == len(below)
    assert below == list(range(1, len(below) + 1))


def test_crossover_rate() -> None:
    """Crossover goes like the root of n over sigma."""
    ranks = [risk.crossover_rank(n, 1.0, name="rank-aware (loose)") for n in (10_000, 40_000)]
    assert ranks == [int(math.sqrt(2 * n)) for n in (10_000, 40_000)]


# ---- what the proofs rest on


@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0])
def test_projection_firmly_non_expansive(noise: float, rng: np.random.Generator) -> None:
    """|D|^2 <= <W, D>: twice as sharp as the paper's |D|^2 <= 2 <W, D>; three quarters of it would be false."""
    ratios = []
    for trial in range(20):
        clean, noisy_part = gram(15, 1 + trial % 15, trial), noise * hollow(15, rng)
        moved = ss.project_elliptope(clean + noisy_part, tol=1e-11).matrix - clean
        ratios.append((moved**2).sum() / (noisy_part * moved).sum())
    assert max(ratios) <= 1 + 1e-6
    assert noise > 1 or max(ratios) > 0.75


@pytest.mark.parametrize("n", [2, 5, 30, 150])
def test_largest_eigenvalue(n: int) -> None:
    """E max <= sqrt(2 n) with and without a diagonal, less without; E max^2 <= 2 n + 1."""
    rng = np.random.default_rng(n)
    top = np.empty((400, 2))
    for draw in top:
        matrix = hollow(n, rng)
        draw[:] = [np.linalg.eigvalsh(matrix)[-1], np.linalg.eigvalsh(matrix + np.diag(rng.standard_normal(n)))[-1]]
    for column in top.T:
        assert deviation(column, math.sqrt(2 * n)) < STRICT
        assert deviation(column**2, 2 * n + 1) < STRICT
    assert deviation(top[:, 1] - top[:, 0], 0) > -STRICT
    if n == 150:
        assert deviation(top[:, 0], 0.9 * math.sqrt(2 * n)) > STRICT
        assert deviation(top[:, 0] ** 2, 0.9 * (2 * n + 1)) > STRICT


def test_complexity_of_the_box_and_the_row(rng: np.random.Generator) -> None:
    """The complexity of the box and the row is exact."""
    samples = np.abs(rng.standard_normal((100_000, 6)))
    for regime, entries in (("scores", 6), ("row", 5)):
        reached = samples[:, :entries].sum(axis=1)
        assert abs(deviation(reached, risk.gaussian_complexity(regime, 6))) < STRICT
        assert abs(deviation(reached, 1.02 * risk.gaussian_complexity(regime, 6))) > STRICT
    assert risk.gaussian_complexity("scores", 6, score_range=(0, 0.5)) == risk.gaussian_complexity("scores", 6) / 4


@pytest.mark.parametrize(("n", "share"), [(2, 0.98), (4, 0.7), (8, 0.55), (30, 0.75), (80, 0.82)])
def test_complexity_of_the_elliptope(n: int, share: float) -> None:
    """The projection of a huge matrix is nearly the maximiser; the bound is exact at n = 2 and tight as n grows."""
    rng = np.random.default_rng(n)
    reached = np.empty(2000 if n == 2 else 60 if n == 80 else 120)
    for trial in range(len(reached)):
        z = hollow(n, rng)
        # For two records the maximiser is known.
        found = np.sign(z) if n == 2 else ss.project_elliptope(300 * z).matrix
        reached[trial] = (z * found).sum()
    bound = risk.gaussian_complexity("gram", n)
    assert deviation(reached, bound) < STRICT
    assert deviation(reached, (0.85 if n == 2 else 0.9 * share) * bound) > STRICT


def test_bound_elliptope_taken() -> None:
    """The smaller bound on the elliptope is used."""
    assert risk.gaussian_complexity("gram", 2) == pytest.approx(2 / math.sqrt(math.pi))
    assert risk.gaussian_complexity("gram", 8) == pytest.approx(56 / math.sqrt(math.pi))
    assert risk.gaussian_complexity("gram", 9) == pytest.approx(9 * math.sqrt(18))


def cone_projection(z: Array, x: Array, strict: Array, fixed: int | None) -> Array:
    found = np.where(x == 1, np.minimum(z, 0), np.where(x == -1, np.maximum(z, 0), z))
    found[:, strict] = 0
    if fixed is not None:
        found[:, fixed] = 0
    return found


@pytest.mark.parametrize("fixed", [None, 3])
def test_statistical_dimension_expected(fixed: int | None, rng: np.random.Generator) -> None:
    """Statistical dimension is the expected length."""
    x = np.array([0.2, -1.0, 1.0, 1.0, -0.9, -1.0, 1.0])
    multipliers = np.array([0, -0.4, 0, 0.3, 0, 0, 0.1])
    z = rng.standard_normal((200_000, 7))

    def dimension(pull: Array | None) -> float:
        if fixed is None:
            return risk.statistical_dimension_box(x, multipliers=pull)
        return risk.statistical_dimension_row(x, fixed, multipliers=pull)

    for pull, expected in ((None, 4.5 - 0.5 * (fixed is not None)), (multipliers, 3.0)):
        strict = np.zeros(7, dtype=bool) if pull is None else pull != 0
        assert dimension(pull) == expected
        lengths = (cone_projection(z, x, strict, fixed) ** 2).sum(axis=1)
        assert abs(deviation(lengths, expected)) < STRICT
        assert abs(deviation(lengths, expected + 0.1)) > STRICT


def test_statistical_dimension_tolerance() -> None:
    """Entries within the tolerance are active."""
    x = [0.6, 0.6 - 1e-9, 0.3, 0.0]
    assert risk.statistical_dimension_box(x, (0, 0.6)) == 3
    assert risk.statistical_dimension_box(x, (0, 0.6), tol=1e-8) == 2.5
    assert risk.statistical_dimension_box(x, (0, 0.6), [1e-9, 0, 0, -1], tol=1e-8) == 2
    assert risk.statistical_dimension_row([0.6, 0.3, 1.0], 2, (0, 0.6)) == 1.5
    assert risk.statistical_dimension_row([0.5, 1 - 1e-9], 1, multipliers=[0, 3]) == 1
    assert risk.bounds("scores", 4, 1.0, active=2)["local"].value == risk.statistical_dimension_box(x, (0, 0.6))


@pytest.mark.parametrize("r", [1, 4])
def test_small_noise_risk(r: int) -> None:
    """risk / sigma^2 tends to the statistical dimension of the elliptope's tangent cone from below."""
    found = risk.simulate("gram", gram(50, r), 1e-4, trials=40, rng=r, confidence=SURE)
    assert found.high / 1e-8 < 3 * r * (50 - r) + r * (r + 3) / 2
    assert found.low / 1e-8 > 1.2 * r * (50 - r)  # no dimension count of the rank-r matrices reaches it


# ---- estimates and tables


def test_simulation_repeats_leaves_input(rng: np.random.Generator) -> None:
    """Simulation repeats and leaves its input alone."""
    clean = gram(10, 3)
    clean.flags.writeable = False
    first, second = (risk.simulate("gram", clean, 0.3, trials=5, rng=7) for _ in range(2))
    assert first == second
    assert first != risk.simulate("gram", clean, 0.3, trials=5, rng=8)
    assert risk.simulate("gram", clean, 0.3, trials=5, rng=np.random.default_rng(7)) == first
    scores = with_active(5, 2, rng)
    scores.flags.writeable = False
    assert risk.simulate("scores", scores, 1, trials=9, rng=0).mean > 0


def test_interval_coverage() -> None:
    """The interval covers as often as it says."""
    truth = risk.exact_risk([0.0, 1.0, 0.5], 0.4)
    found = [risk.simulate("scores", [0.0, 1.0, 0.5], 0.4, trials=400, rng=s, confidence=0.8) for s in range(2000)]
    covered = np.array([estimate.low <= truth <= estimate.high for estimate in found], dtype=float)
    assert abs(deviation(covered, 0.8)) < STRICT
    assert abs(deviation(covered, 0.87)) > STRICT
    one = found[0]
    assert one.low < one.mean < one.high
    assert one.high - one.mean == pytest.approx(1.2837 * one.standard_error, rel=1e-3)  # Student's, 399 degrees
    assert (one.trials, one.confidence) == (400, 0.8)


def test_chunks_are_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks use one stream of noise."""
    whole = risk.simulate("scores", [0.1, 0.9, -1.0], 0.5, trials=100, rng=4)
    monkeypatch.setattr(simulation, "_CHUNK", 21)
    assert risk.simulate("scores", [0.1, 0.9, -1.0], 0.5, trials=100, rng=4) == whole


@pytest.mark.parametrize("estimator", ["none", "projection", "rank", "shrinkage", "identity", "sure"])
def test_every_denoiser_can_be_simulated(estimator: str) -> None:
    """Every denoiser can be simulated."""
    trials = 12 if estimator == "sure" else 200
    found = risk.simulate("gram", gram(12, 2), 0.5, estimator=estimator, rank=2, trials=trials, rng=0, confidence=SURE)
    naive = risk.bounds("gram", 12, 0.5)["naive"].value
    if estimator == "none":
        assert found.low < naive < found.high
        assert not found.low < 1.2 * naive < found.high
    else:
        assert found.high < naive


def test_projection_stops_short_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection that stops short is counted."""
    ends = [True, False, True, False, False, True]

    def stopped(matrix: Array, tol: float) -> object:
        return dataclasses.replace(ss.project_elliptope(matrix, tol=tol), converged=ends.pop())

    monkeypatch.setattr(simulation, "project_elliptope", stopped)
    assert risk.simulate("gram", gram(6, 2), 0.3, trials=6, rng=0).unconverged == 3
    assert risk.simulate("gram", gram(6, 2), 0.3, trials=4, rng=0, estimator="rank", rank=2).unconverged == 0


def test_compare_counts_what_is_active() -> None:
    """Compare counts what is active."""
    clean = [0.0, 0.6, 0.3, 1.0, 0.6]
    found = risk.compare("row", clean, 0.2, trials=50, rng=0, index=3, score_range=(0, 0.6))
    assert found.bounds == risk.bounds("row", 5, 0.2, active=3, score_range=(0, 0.6))
    assert found.exact == risk.exact_risk(clean, 0.2, (0, 0.6), index=3)
    assert set(found.verdicts) == {bound.name for bound in found.bounds}
    assert set(found.verdicts.values()) <= {"holds", "fails", "not decided"}
    assert found.estimate == risk.simulate("row", clean, 0.2, trials=50, rng=0, index=3, score_range=(0, 0.6))


def test_tables_can_be_read() -> None:
    """Tables can be read."""
    table = risk.bounds("gram", 200, 1e-3, rank=5)
    assert repr(table) == "<Bounds gram, n = 200, sigma = 0.001: 0.002945 (rank)>"
    lines = str(table).splitlines()
    assert len(lines) == 1 + 8 + 1
    assert [line.split("  ")[1] for line in lines[1:-1]] == [bound.name for bound in table]
    assert sum("conditional" in line for line in lines[1:-1]) == 2
    assert sum("least" in line for line in lines) == 1
    assert lines[-1].startswith("conditional: Gram-smoothness")
    text = str(measured(12, 2, 0.1))
    assert "holds" in text
    assert "fails" in text
    assert "trials" in text
    assert "exactly" in str(risk.compare("scores", [0.5, 1.0], 0.1, trials=5, rng=0))
    bound = table["rank-aware"]
    assert bound.conditional
    assert not table["global"].conditional
    with pytest.raises(dataclasses.FrozenInstanceError):
        bound.value = 0.0  # type: ignore[misc]


# ---- what is refused


def complaint(name: str, function: str) -> str:
    return rf"The '{name}' parameter of {function} must be .* Got .* instead\."


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("regime", {"regime": "matrix"}),
        ("regime", {"regime": None}),
        ("n", {"n": 0}),
        ("n", {"n": 1, "regime": "row"}),
        ("n", {"n": 1, "regime": "gram"}),
        ("n", {"n": 2.0}),
        ("n", {"n": True}),
        ("sigma", {"sigma": 0}),
        ("sigma", {"sigma": -1.0}),
        ("sigma", {"sigma": math.nan}),
        ("sigma", {"sigma": math.inf}),
        ("sigma", {"sigma": 1e200}),
        ("sigma", {"sigma": "1"}),
        ("active", {"active": 11}),
        ("active", {"active": -1}),
        ("active", {"active": 10, "regime": "row"}),
        ("active", {"active": 1, "regime": "gram"}),
        ("rank", {"rank": 0, "regime": "gram"}),
        ("rank", {"rank": 11, "regime": "gram"}),
        ("rank", {"rank": 2.0, "regime": "gram"}),
        ("rank", {"rank": 2}),
        ("diagonal_noise", {"diagonal_noise": True}),
        ("diagonal_noise", {"diagonal_noise": 1, "regime": "gram"}),
        ("score_range", {"score_range": (0, 0)}),
        ("score_range", {"score_range": (0, 1), "regime": "gram"}),
    ],
)
def test_bad_arguments_of_bounds(name: str, arguments: dict[str, object]) -> None:
    """A bad argument of bounds raises an error."""
    options: dict[str, object] = {"regime": "scores", "n": 10, "sigma": 1.0, **arguments}
    with pytest.raises(ss.InvalidInput, match=complaint(name, "bounds")):
        risk.bounds(**options)  # type: ignore[arg-type]


def test_unknown_bound() -> None:
    """An unknown bound raises an error with the known names."""
    with pytest.raises(ss.InvalidInput, match="'worst case'"):
        risk.bounds("scores", 3, 1.0)["rank"]


@pytest.mark.parametrize(
    "clean", [[], [math.nan], [1.0000001], [-1.1, 0], [[0.1]], ["a"], 0.5, [[0.1], [0.2, 0.3]], [1j], [True]]
)
def test_bad_scores(clean: object) -> None:
    """Bad scores raise an error."""
    with pytest.raises(ss.InvalidInput, match=complaint("clean_scores", "exact_risk")):
        risk.exact_risk(clean, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidInput, match=complaint("clean", "simulate")):
        risk.simulate("scores", clean, 1.0, trials=2, rng=0)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidInput, match=complaint("x", "statistical_dimension_box")):
        risk.statistical_dimension_box(clean)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "clean",
    [
        [],
        [0.5, 1.0],
        np.ones((2, 3)),
        np.ones((1, 1)),
        [[1, 0.5], [0.4, 1]],
        [[1, 0.5], [0.5, 0.9]],
        [[1, 1.1], [1.1, 1]],
        [[1, math.nan], [math.nan, 1]],
        [[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]],
        [[1, 1j], [-1j, 1]],
    ],
)
def test_bad_gram_matrices(clean: object) -> None:
    """A bad Gram matrix raises an error."""
    with pytest.raises(ss.InvalidInput, match=complaint("clean", "compare")):
        risk.compare("gram", clean, 1.0, trials=2, rng=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("regime", {"regime": "vector"}),
        ("sigma", {"sigma": 0.0}),
        ("trials", {"trials": 1}),
        ("rng", {"rng": None}),
        ("rng", {"rng": -1}),
        ("rng", {"rng": True}),
        ("estimator", {"estimator": "magic"}),
        ("estimator", {"estimator": "rank", "regime": "scores", "clean": [0.1, 0.2]}),
        ("rank", {"estimator": "rank"}),
        ("rank", {"rank": 4}),
        ("rank", {"rank": 1, "regime": "scores", "clean": [0.1, 0.2]}),
        ("confidence", {"confidence": 1.0}),
        ("confidence", {"confidence": 0.0}),
        ("index", {"index": 0}),
        ("index", {"regime": "row", "clean": [1.0, 0.2]}),
        ("index", {"regime": "row", "clean": [1.0, 0.2], "index": 2}),
        ("index", {"regime": "row", "clean": [1.0, 0.2], "index": -1}),
        ("index", {"regime": "row", "clean": [1.0], "index": 0}),
        ("clean", {"regime": "row", "clean": [1.0, 0.2], "index": 1}),
        ("clean", {"regime": "row", "clean": [1.0, math.nan], "index": 0}),
        ("score_range", {"score_range": (0, 1)}),
    ],
)
def test_bad_arguments_of_simulate(name: str, arguments: dict[str, object]) -> None:
    """A bad argument of simulate raises an error."""
    options: dict[str, object] = {
        "regime": "gram",
        "clean": np.eye(3),
        "sigma": 1.0,
        "trials": 2,
        "rng": 0,
        **arguments,
    }
    with pytest.raises(ss.InvalidInput, match=complaint(name, "simulate")):
        risk.simulate(**options)  # type: ignore[arg-type]


def test_rank_below_truth() -> None:
    """A rank below the true rank raises an error."""
    with pytest.raises(ss.InvalidInput, match="at least 3, the rank of 'clean'"):
        risk.compare("gram", gram(8, 3), 1.0, rank=2, trials=2, rng=0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("multipliers", {"multipliers": [0.0]}),
        ("multipliers", {"multipliers": [0.1, 0.0]}),
        ("multipliers", {"multipliers": [0.0, math.nan]}),
        ("tol", {"tol": -1.0}),
        ("tol", {"tol": math.nan}),
        ("score_range", {"score_range": (1, 0)}),
    ],
)
def test_bad_arguments_of_the_dimensions(name: str, arguments: dict[str, object]) -> None:
    """A bad argument of the dimensions raises an error."""
    with pytest.raises(ss.InvalidInput, match=complaint(name, "statistical_dimension_box")):
        risk.statistical_dimension_box([0.5, 1.0], **arguments)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidInput, match=complaint("index", "statistical_dimension_row")):
        risk.statistical_dimension_row([0.5, 1.0], None)  # type: ignore[arg-type]


def test_bad_arguments_of_the_rest() -> None:
    """A bad argument of the other functions raises an error."""
    with pytest.raises(ss.InvalidInput, match=complaint("n", "gaussian_complexity")):
        risk.gaussian_complexity("gram", 1)
    with pytest.raises(ss.InvalidInput, match=complaint("name", "crossover_rank")):
        risk.crossover_rank(10, 1.0, name="naive")
    with pytest.raises(ss.InvalidInput, match=complaint("n", "crossover_rank")):
        risk.crossover_rank(1, 1.0)
    with pytest.raises(ss.InvalidInput, match=complaint("sigma", "exact_risk")):
        risk.exact_risk([0.5], -1.0)
    with pytest.raises(ss.InvalidInput, match=complaint("index", "exact_risk")):
        risk.exact_risk([0.5, 1.0], 1.0, index=5)
