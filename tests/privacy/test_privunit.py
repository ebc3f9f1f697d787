"""PrivUnit: its constraint in 50 digits, its closed forms, its exact sampler. False alarm of each comparison: 1e-7."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import betainc
from support import STRICT

import scoreshield as ss
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.sampling import gaussian, sphere
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream, open_stream

Array = np.ndarray
GRID = [(d, e) for d in (2, 3, 4, 8, 16, 64, 384, 1024, 4096) for e in (0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 200.0)]
#: Kolmogorov's distance times sqrt(n) that a true law exceeds once in ten million.
KOLMOGOROV = math.sqrt(-math.log(0.5e-7) / 2)


def units(n: int, d: int, seed: int = 0) -> Array:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.sqrt(np.vecdot(rows, rows))[:, None]


def research(seed: int) -> ResearchStream:
    return ResearchStream(np.random.default_rng(seed))


def cap_of(maker: PrivUnit, factor: float | None = None) -> sphere.Cap:
    scale = 1 / (maker.mean * maker.step) if factor is None else factor
    return sphere.Cap(maker.dimension, maker.coin, maker.gamma, scale, maker.cap)


class TestParameters:
    @pytest.mark.parametrize(("d", "epsilon"), GRID)
    def test_constraint_holds_fifty_digits_spent(self, d: int, epsilon: float) -> None:
        """The constraint holds in fifty digits and is spent."""
        maker = PrivUnit.calibrate(d, epsilon)
        with mpmath.workdps(150):
            gamma, coin = mpmath.mpf(maker.gamma), mpmath.mpf(maker.coin)
            cap = mpmath.betainc(mpmath.mpf(d - 1) / 2, 0.5, 0, 1 - gamma**2, regularized=True) / 2
            p = 1 / (1 + mpmath.exp(-coin))
            spent = mpmath.log(p / (1 - p)) + mpmath.log((1 - cap) / cap)
            assert spent <= epsilon
            assert epsilon - spent < 1e-14 * (1 + epsilon)
            assert abs(maker.compute_epsilon() - spent) < mpmath.mpf(10) ** -40

    @pytest.mark.parametrize(("d", "gamma"), [(2, 0.9), (3, 0.5), (16, 0.7), (384, 0.165)])
    def test_the_share_of_a_cap_by_integration(self, d: int, gamma: float) -> None:
        maker = PrivUnit(d, 1.0, 0.5, gamma)
        with mpmath.workdps(30):
            angle = mpmath.acos(mpmath.mpf(gamma))
            points = [0, angle / 2, angle]
            cap = mpmath.quad(lambda x: mpmath.sin(x) ** (d - 2), points)
            whole = mpmath.quad(lambda x: mpmath.sin(x) ** (d - 2), [0, mpmath.pi / 2, mpmath.pi])
        assert maker.cap == pytest.approx(float(cap / whole), rel=1e-12)

    @pytest.mark.parametrize(("d", "epsilon"), [(d, e) for d, e in GRID if e <= 20 or d >= 64])
    def test_no_other_split_tells_more(self, d: int, epsilon: float) -> None:
        best = PrivUnit.calibrate(d, epsilon)
        assert best.mean == pytest.approx(best.gamma, rel=1e-12)  # the optimum's own equation
        for factor in (0.95, 0.999, 1.001, 1.05):
            gamma = best.gamma * factor
            if gamma >= 1 or (d, epsilon) == (2, 20.0):
                continue
            cap = 0.5 * betainc((d - 1) / 2, 0.5, 1 - gamma**2)
            other = PrivUnit(d, epsilon, epsilon - math.log((1 - cap) / cap), gamma)
            assert other.mean < best.mean

    def test_known_errors(self) -> None:
        """The figures that the specification states for d = 384."""
        assert PrivUnit.calibrate(384, 10).std == pytest.approx(0.30, abs=0.006)
        assert PrivUnit.calibrate(384, 20).std == pytest.approx(0.19, abs=0.006)
        assert PrivUnit.calibrate(384, 10).std < 0.31

    def test_three_dimensions_by_hand(self) -> None:
        """On the sphere in R^3 heights are uniform: P = (1 - gamma)/2 and the optimum splits the budget evenly."""
        maker = PrivUnit.calibrate(3, 2.0)
        assert maker.cap == pytest.approx((1 - maker.gamma) / 2, rel=1e-14)
        assert maker.coin == pytest.approx(1.0, rel=1e-7)
        assert maker.mean == pytest.approx(math.tanh(0.5), rel=1e-7)

    @pytest.mark.parametrize(
        ("d", "epsilon"), [(1, 1), (0, 1), (2.5, 1), (70_000, 1), (4, 0), (4, -1), (4, 501), (4, 1e-4)]
    )
    def test_bad_parameters(self, d: object, epsilon: object) -> None:
        with pytest.raises(ss.InvalidInput, match=r"The '(dimension|epsilon)' parameter"):
            PrivUnit.calibrate(d, epsilon)  # type: ignore[arg-type]


def deviations(values: Array, mean: float, std: float) -> float:
    return abs(values.mean() - mean) / std * math.sqrt(len(values))


class TestLaw:
    @pytest.mark.parametrize(
        ("d", "epsilon", "n"),
        [(2, 0.1, 200_000), (2, 4, 200_000), (3, 5, 200_000), (16, 10, 200_000), (384, 20, 30_000)],
    )
    def test_unbiased_with_the_stated_variance(self, d: int, epsilon: float, n: int) -> None:
        maker, rows = PrivUnit.calibrate(d, epsilon), units(n, d)
        released = maker.release(rows, research(1)).astype(np.float64)
        along = np.vecdot(released, rows)
        side = units(n, d, 5)
        side -= np.vecdot(side, rows)[:, None] * rows
        side /= np.sqrt(np.vecdot(side, side))[:, None]
        across = np.vecdot(released, side)
        std = float(maker.score_std(1.0))
        assert deviations(along, 1.0, along.std()) < STRICT
        assert deviations(across, 0.0, across.std()) < STRICT
        # Heights are bounded by 1/m, so their squares have a variance; estimate it from the draws.
        for values, wanted in ((across**2, maker.std**2), ((along - 1) ** 2, std**2)):
            assert deviations(values, wanted, values.std()) < STRICT
            assert deviations(values, 1.25 * wanted, values.std()) > STRICT
        if maker.mean > 0.05:
            off = PrivUnit(d, epsilon, maker.coin, 0.95 * maker.gamma)  # near miss: another cap with the same coin
            wrong = off.release(rows, research(2)).astype(np.float64) * off.mean / maker.mean
            heads = np.vecdot(wrong, rows)
            assert deviations(heads, 1.0, heads.std()) > STRICT
        assert np.max(np.abs(released)) <= 1 / maker.mean + maker.step

    @pytest.mark.parametrize(("d", "epsilon"), [(2, 5.0), (3, 10.0), (17, 8.0), (384, 10.0)])
    def test_heights_have_the_law_of_the_cap(self, d: int, epsilon: float) -> None:
        maker, n = PrivUnit.calibrate(d, epsilon), 100_000
        assert cap_of(maker).small
        t = np.sort(sphere._draw_heights(cap_of(maker), research(3), n).t)

        def distance(gamma: float) -> float:
            tail = betainc((d - 1) / 2, 0.5, (1 - t) * (1 + t))
            cdf = 1 - tail / betainc((d - 1) / 2, 0.5, (1 - gamma) * (1 + gamma))
            return float(np.abs(cdf - (np.arange(n) + 0.5) / n).max()) * math.sqrt(n)

        assert distance(maker.gamma) < KOLMOGOROV
        assert distance(0.95 * maker.gamma) > KOLMOGOROV

    @pytest.mark.parametrize(("d", "epsilon"), [(2, 1.0), (3, 0.5), (5, 2.0), (40, 1.5)])
    def test_large_caps_by_rejection_have_it_too(self, d: int, epsilon: float) -> None:
        maker, n = PrivUnit.calibrate(d, epsilon), 100_000
        cap = cap_of(maker, 2.0**20)
        assert not cap.small
        rows = units(n, d)
        t = np.sort(np.clip(np.vecdot(sphere.lean(cap, rows, research(4)) / cap.factor, rows), -1, 1))
        above = t >= maker.gamma

        def cdf(height: Array) -> Array:
            half = 0.5 * betainc((d - 1) / 2, 0.5, (1 - height) * (1 + height))
            return np.where(height < 0, half, 1 - half)

        def distance(p: float) -> float:
            share = maker.cap
            law = np.where(above, 1 - p * (1 - cdf(t)) / share, (1 - p) * cdf(t) / (1 - share))
            return float(np.abs(law - (np.arange(n) + 0.5) / n).max()) * math.sqrt(n)

        assert distance(maker.p) < KOLMOGOROV
        assert distance(0.95 * maker.p) > KOLMOGOROV

    def test_the_side_is_uniform(self) -> None:
        """Around the axis all directions are alike: the angle in a plane orthogonal to it is uniform."""
        maker, n = PrivUnit.calibrate(3, 8.0), 100_000
        axis = np.array([2.0, -1.0, 2.0]) / 3
        first, second = (
            np.array([1.0, 2.0, 0.0]) / math.sqrt(5),
            np.cross(axis, np.array([1.0, 2.0, 0.0])) / math.sqrt(5),
        )
        drawn = sphere.lean(cap_of(maker, 2.0**20), np.tile(axis, (n, 1)), research(5))
        angle = np.sort(np.arctan2(drawn @ first, drawn @ second) / (2 * math.pi) + 0.5)
        assert np.abs(angle - (np.arange(n) + 0.5) / n).max() * math.sqrt(n) < KOLMOGOROV
        tilted = np.sort(np.arctan2(drawn @ first, 1.1 * drawn @ second) / (2 * math.pi) + 0.5)
        assert np.abs(tilted - (np.arange(n) + 0.5) / n).max() * math.sqrt(n) > KOLMOGOROV


class TestPrivacy:
    @pytest.mark.parametrize(("d", "epsilon"), [(2, 1.0), (3, 0.1), (16, 10.0), (384, 20.0), (4096, 200.0)])
    def test_worst_ratio_densities_budget(self, d: int, epsilon: float) -> None:
        """In the cap of v the density is p/P under v and (1-p)/(1-P) under -v: their log-ratio is epsilon."""
        maker = PrivUnit.calibrate(d, epsilon)
        log_ratio = math.log(maker.p) - math.log(maker.cap) - (math.log1p(-maker.p) - math.log1p(-maker.cap))
        assert log_ratio == pytest.approx(epsilon, rel=1e-9)

    @pytest.mark.parametrize(("d", "epsilon"), [(2, 2.0), (8, 3.0), (60, 2.5)])
    def test_audit_of_antipodal_inputs(self, d: int, epsilon: float) -> None:
        """Outputs in the cap of v: a share p under v and (1-p) P / (1-P) under -v; their ratio is e^epsilon."""
        maker, n = PrivUnit.calibrate(d, epsilon), 200_000
        axis = units(1, d, 9)
        cap = cap_of(maker, 2.0**20)
        shares = []
        for sign, wanted in ((1, maker.p), (-1, (1 - maker.p) * maker.cap / (1 - maker.cap))):
            rows = np.tile(sign * axis, (n, 1))
            inside = (sphere.lean(cap, rows, research(6)) @ axis[0] / cap.factor >= maker.gamma).astype(float)
            assert deviations(inside, wanted, math.sqrt(wanted * (1 - wanted))) < STRICT
            off = 1.1 * wanted if sign < 0 else 0.95 * wanted
            assert deviations(inside, off, math.sqrt(wanted * (1 - wanted))) > STRICT
            shares.append(inside.mean())
        error = STRICT * math.sqrt(sum((1 - share) / (share * n) for share in shares))
        assert abs(math.log(shares[0] / shares[1]) - epsilon) < error
        assert error < 0.2

    def test_read_not_depend_vector(self) -> None:
        """How many words a release takes has the same law for every vector; here, the same number on the same bits."""

        class Counting(ResearchStream):
            read = 0

            def words(self, count: int) -> Array:
                self.read += count
                return super().words(count)

        maker, counts = PrivUnit.calibrate(40, 30.0), []  # the coin falls on heads, no rejection from the sphere
        for rows in (units(50, 40), -units(50, 40), np.eye(40)[np.zeros(50, dtype=int)]):
            stream = Counting(np.random.default_rng(3))
            maker.release(rows, stream)
            counts.append(stream.read)
        assert len(set(counts)) == 1


class TestExactness:
    @pytest.mark.parametrize(("d", "epsilon"), [(2, 6.0), (3, 9.0), (7, 10.0), (16, 20.0)])
    @pytest.mark.parametrize("way", ["cap", "sphere"])
    def test_interval_arithmetic_rounds_to_the_same(
        self, d: int, epsilon: float, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fast path and the exact one are one function of the same bits."""
        maker, rows, heads = PrivUnit.calibrate(d, epsilon), units(40, d), np.arange(40) % 3 == 0

        def draw() -> tuple[Array, Array]:
            if way == "cap":
                return sphere._from_cap(cap_of(maker), rows, research(8)), np.ones(40, dtype=bool)
            return sphere._from_sphere(cap_of(maker), rows, heads, research(8))

        fast, kept = draw()
        original = sphere._round

        def doubtful(*arguments: object) -> Array:
            return original(*arguments) | True  # type: ignore[arg-type]

        monkeypatch.setattr(sphere, "_round", doubtful)
        exact, exactly_kept = draw()
        assert np.array_equal(kept, exactly_kept)
        assert np.array_equal(fast[kept], exact[kept])
        assert kept.any()
        assert way == "cap" or not kept.all()

    @pytest.mark.parametrize("d", [2, 5, 64])
    @pytest.mark.parametrize("way", ["cap", "sphere"])
    def test_the_error_bound_holds(self, d: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a grid far finer than doubles can serve, the fast path is off by no more than its bound says."""
        maker = PrivUnit.calibrate(d, 12.0)
        cap, rows, heads = cap_of(maker, 2.0**50), units(30, d), np.zeros(30, dtype=bool)
        seen: list[Array] = []
        original = sphere._round

        def spy(factor: float, values: Array, flat: Array, slope: Array, *more: object) -> Array:
            seen.append(factor * (flat + 1.5 * slope + 8 * 2.0**-53))
            return np.zeros_like(original(factor, values, flat, slope, *more))  # type: ignore[arg-type]

        def draw() -> Array:
            if way == "cap":
                return sphere._from_cap(cap, rows, research(10))
            return sphere._from_sphere(cap, rows, heads, research(10))[0]

        monkeypatch.setattr(sphere, "_round", spy)
        fast = draw()
        monkeypatch.setattr(sphere, "_round", lambda *a: original(*a) | True)
        off = np.abs(fast - draw()).max(axis=1)
        assert np.all(off <= seen[0] + 1)
        assert off.max() > 0  # the grid is fine enough to see an error
        assert np.median(seen[0]) < 2.0**50 * 1e-11  # and the bound is not vacuous

    def test_pairs_fast_path_leaves_read_further(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pairs that the fast path leaves are read further."""
        plain = sphere._Normals.draw(research(11), 20, 9)
        assert not plain.longer
        monkeypatch.setattr(gaussian, "_SMALLEST_RADIUS", 1.0)  # more than a third of all pairs
        careful = sphere._Normals.draw(research(11), 20, 9)
        assert len(careful.longer) > 25
        assert np.abs(plain.values - careful.values).max() < 470 * 2.0**-53
        row, pair = next(iter(careful.longer))
        assert careful.bits(row)[pair] == careful.longer[row, pair]
        assert careful.longer[row, pair][0] >> 64 == int(plain.x[row, pair])

    def test_heights_that_the_fast_path_leaves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cap = cap_of(PrivUnit.calibrate(12, 10.0))
        monkeypatch.setattr(gaussian, "_SMALLEST_X", 2.0**62)
        drawn = sphere._draw_heights(cap, research(12), 300)
        assert 100 < len(drawn.longer) < 200
        rows = units(300, 12)
        values = sphere._from_cap(cap, rows, research(12)) / cap.factor
        assert np.abs(np.vecdot(values, rows) - drawn.t).max() < 2 / cap.factor

    def test_one_minus_exp(self) -> None:
        x = np.concatenate([np.geomspace(1e-12, 27, 400), [0.0]])
        found = sphere._one_minus_exp(x)
        with mpmath.workdps(40):
            for value, got in zip(x, found, strict=True):
                wanted = -mpmath.expm1(-mpmath.mpf(float(value)))
                assert abs(mpmath.mpf(float(got)) - wanted) <= 45 * 2.0**-53 * wanted


class TestOutput:
    @pytest.mark.parametrize(
        ("d", "epsilon"), [(2, 0.1), (2, 200), (3, 0.1), (3, 200), (4096, 0.1), (4096, 200), (16, 500)]
    )
    def test_edges(self, d: int, epsilon: float) -> None:
        maker, rows = PrivUnit.calibrate(d, epsilon), units(8, d)
        for stream in (SecureStream(), research(1)):
            released = maker.release(rows, stream)
            assert released.dtype == np.float32
            assert released.shape == rows.shape
            steps = released.astype(np.float64) / maker.step
            assert np.array_equal(steps, np.rint(steps))
            assert np.abs(steps).max() < 2**24
            assert not np.signbit(released[released == 0]).any()
            lengths = np.linalg.norm(released.astype(np.float64), axis=1) * maker.mean
            assert np.abs(lengths - 1).max() < maker.step * maker.mean * math.sqrt(d)
        if epsilon == 200 and d < 4:
            assert np.abs(released - rows).max() < 1e-3
        assert maker.profile.epsilon_at(0) == epsilon

    def test_axes_and_rows_with_one_entry(self) -> None:
        maker = PrivUnit.calibrate(5, 12.0)
        rows = np.repeat(np.eye(5), 4000, axis=0)
        released = maker.release(rows, research(13)).astype(np.float64)
        means = released.reshape(5, 4000, 5).mean(axis=1)
        assert np.abs(means - np.eye(5)).max() < STRICT * float(maker.score_std(1.0)) / math.sqrt(4000) + 0.02

    def test_research_repeats_and_secure_does_not(self) -> None:
        maker, rows = PrivUnit.calibrate(6, 3.0), units(20, 6)
        assert np.array_equal(maker.release(rows, open_stream(4)), maker.release(rows, open_stream(4)))
        assert not np.array_equal(maker.release(rows, SecureStream()), maker.release(rows, SecureStream()))
