"""Attacks on a simulated matcher: they work without noise, follow their closed forms, and stop at the stated budget."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from support import STRICT

import scoreshield as ss
from scoreshield.attack import hillclimb as hc

DELTA = 1e-6


def matcher(d: int, sigma: float, seed: int, threshold: float = 0.9) -> hc.Matcher:
    template = np.random.default_rng([seed, 77]).standard_normal(d)
    return hc.Matcher(template, sigma=sigma, threshold=threshold, rng=seed)


def many(attack: str, d: int, queries: int, sigma: float, trials: int, threshold: float = 0.5) -> list[hc.Climb]:
    run = hc.linear_attack if attack == "linear" else hc.hill_climb
    return [run(matcher(d, sigma, seed, threshold), queries=queries, delta=DELTA, rng=seed) for seed in range(trials)]


def cosines(climbs: list[hc.Climb]) -> np.ndarray:
    return np.array([climb.cosine for climb in climbs])


def errors_of_mean(sample: np.ndarray, mean: float) -> float:
    return abs(float(sample.mean()) - mean) / (float(sample.std(ddof=1)) / math.sqrt(len(sample)))


class TestMatcher:
    def test_matcher_noise_and_count(self) -> None:
        """A matcher answers with the stated noise, and counts its answers."""
        template = np.arange(1.0, 9.0)
        m = hc.Matcher(template, sigma=0.3, threshold=0.5, rng=1)
        probes = np.random.default_rng(2).standard_normal((20_000, 8))
        clean = probes @ template / np.linalg.norm(probes, axis=1) / np.linalg.norm(template)
        noise = m.scores(probes) - clean

        def off(sigma: float) -> float:
            return abs(float(np.mean(noise**2)) / sigma**2 - 1) / math.sqrt(2 / len(noise))

        assert off(0.3) < STRICT < min(off(0.3 * 1.05), off(0.3 / 1.05))
        assert m.queries == 20_000
        assert m.cosine(template) == pytest.approx(1.0)
        assert m.scores(template).shape == (1,)
        assert m.queries == 20_001  # the referee's look at the cosine is not one

    def test_matcher_seed(self) -> None:
        """Noise is fresh, and repeats with the seed."""
        first, second = matcher(8, 1.0, 5), matcher(8, 1.0, 5)
        probe = np.ones((1, 8))
        answers = [float(first.scores(probe)[0]) for _ in range(5)]
        assert len(set(answers)) == 5
        assert answers == [float(second.scores(probe)[0]) for _ in range(5)]

    def test_matcher_calibration(self) -> None:
        """A matcher is calibrated to one answer, or to many together."""
        common = {"epsilon": 2, "delta": DELTA, "threshold": 0.5, "rng": 1}
        each = hc.Matcher.calibrate(np.ones(4), **common)
        together = hc.Matcher.calibrate(np.ones(4), **common, queries=100)
        assert each.sigma == ss.calibrate(2, DELTA, 2.0)
        assert together.sigma == pytest.approx(10 * each.sigma, rel=1e-12)
        assert hc.budget_at(100, together.sigma, DELTA) == pytest.approx(2, rel=1e-9)
        assert hc.budget_at(100, each.sigma, DELTA) > 20

    def test_shared_seed(self) -> None:
        """One seed for matcher and attack does not correlate noise and probes."""
        climbs = many("linear", 16, 16, 0.2, 400)
        assert errors_of_mean(cosines(climbs), hc.linear_cosine(16, 16, 0.2)) < STRICT


class TestUnprotected:
    def test_linear_attack_queries(self) -> None:
        """The linear attack needs as many queries as dimensions."""
        for d in (2, 32, 100):
            climb = hc.linear_attack(matcher(d, 0.0, 3), queries=d, delta=DELTA, rng=4)
            assert climb.cosine == pytest.approx(1.0, abs=1e-12)
            assert climb.accepted
            assert climb.queries == d
            assert climb.epsilon == math.inf
        short = hc.linear_attack(matcher(100, 0.0, 3), queries=50, delta=DELTA, rng=4)
        assert short.cosine == pytest.approx(math.sqrt(0.5), abs=0.2)

    def test_hill_climbing_queries(self) -> None:
        """Hill climbing passes 0.9 within ten queries per dimension."""
        climbs = many("climb", 32, 320, 0.0, 100, threshold=0.9)
        assert all(climb.accepted for climb in climbs)
        early = many("climb", 32, 64, 0.0, 100, threshold=0.9)  # near miss: a fifth of the queries is not enough
        assert not any(climb.accepted for climb in early)

    def test_climb_history(self) -> None:
        """A climb repeats with its seed, and has its history."""
        first = hc.hill_climb(matcher(32, 0.1, 1), queries=301, delta=DELTA, rng=2)
        second = hc.hill_climb(matcher(32, 0.1, 1), queries=301, delta=DELTA, rng=2)
        assert np.array_equal(first.probe, second.probe)
        assert first.history == second.history
        assert first.queries == 300  # pairs: the odd one is left
        asked = [queries for queries, _ in first.history]
        assert asked == sorted(set(asked))
        assert first.history[-1] == (300, first.cosine)
        assert np.linalg.norm(first.probe) == pytest.approx(1.0)
        assert first.epsilon == hc.budget_at(300, 0.1, DELTA)
        other = hc.hill_climb(matcher(32, 0.1, 1), queries=301, delta=DELTA, rng=3)
        assert not np.array_equal(first.probe, other.probe)

    def test_two_attacks_spend(self) -> None:
        """Two attacks on one matcher spend together."""
        m = matcher(16, 1.0, 1)
        hc.linear_attack(m, queries=16, delta=DELTA, rng=1)
        second = hc.hill_climb(m, queries=16, delta=DELTA, rng=1)
        assert m.queries == 32
        assert second.epsilon == hc.budget_at(32, 1.0, DELTA) > hc.budget_at(16, 1.0, DELTA)


class TestClosedForms:
    @pytest.mark.parametrize(("d", "queries", "sigma"), [(4, 8, 0.5), (16, 64, 1.0), (32, 128, 0.35), (32, 32, 0.1)])
    def test_linear_attack_cosine(self, d: int, queries: int, sigma: float) -> None:
        """The linear attack has its expected cosine."""
        sample = cosines(many("linear", d, queries, sigma, 1500))
        assert errors_of_mean(sample, hc.linear_cosine(d, queries, sigma)) < STRICT
        assert errors_of_mean(sample, hc.linear_cosine(d, queries, 1.15 * sigma)) > STRICT
        assert errors_of_mean(sample, hc.linear_cosine(d, queries, sigma / 1.15)) > STRICT

    def test_linear_attack_few_dimensions(self) -> None:
        """With few dimensions the cosine is the exact one, and not the approximation."""
        sample = cosines(many("linear", 3, 3, 0.4, 3000))
        assert errors_of_mean(sample, hc.linear_cosine(3, 3, 0.4)) < STRICT
        assert errors_of_mean(sample, 1 / math.sqrt(1 + 9 * 0.4**2 / 3)) > STRICT
        assert errors_of_mean(sample, hc.best_cosine(3, 3, 0.4)) > STRICT

    def test_it_is_accepted_as_often_as_stated(self) -> None:
        d, queries, sigma, trials = 32, 64, 0.3, 1500
        accepted = np.mean([climb.accepted for climb in many("linear", d, queries, sigma, trials, threshold=0.6)])

        def off(p: float) -> float:
            return abs(float(accepted) - p) / math.sqrt(p * (1 - p) / trials)

        assert 0.3 < accepted < 0.9
        assert off(hc.linear_acceptance(d, queries, sigma, 0.6)) < STRICT
        assert off(hc.linear_acceptance(d, queries, 1.1 * sigma, 0.6)) > STRICT
        assert off(hc.linear_acceptance(d, queries, sigma, 0.63)) > STRICT

    @pytest.mark.parametrize("d", [2, 3, 8, 128, 384, 2000])
    def test_bound_is_tight(self, d: int) -> None:
        """The bound holds, and is tight up to a relative error of 1/d."""
        for sigma in np.geomspace(1e-3, 1e3, 25):
            exact, bound = hc.linear_cosine(d, 5 * d, sigma), hc.best_cosine(d, 5 * d, sigma)
            assert exact <= bound * (1 + 1e-12)
            assert exact >= bound * (1 - 1 / d)

    def test_the_exact_cosine_at_its_ends(self) -> None:
        assert hc.linear_cosine(8, 8, 0.0) == 1.0
        assert hc.linear_acceptance(8, 8, 0.0, 0.9) == 1.0
        for d in (2, 3, 50, 384):  # the mean direction of the projected normal law, by its hypergeometric form
            ratio = mpmath.gamma((d + 1) / 2) / mpmath.gamma(d / 2 + 1) / mpmath.sqrt(2)
            for k in (1e-4, 0.1, 1.0, 5.0, 100.0):
                value = k * ratio * mpmath.hyp1f1(0.5, d / 2 + 1, -k * k / 2)
                assert hc.linear_cosine(d, d, 1 / k) == pytest.approx(float(value), rel=1e-11)

    def test_adaptive_attacks(self) -> None:
        """The converse: whatever the probes, the posterior mean of N(0, I/d) is no longer than the bound."""
        rng = np.random.default_rng(5)
        d, m, sigma = 6, 40, 0.8
        for shape in (1.0, 5.0, 50.0):  # from even to lopsided designs, as of an attack that homes in
            probes = rng.standard_normal((m, d)) * np.geomspace(1, shape, d)
            probes /= np.linalg.norm(probes, axis=1, keepdims=True)
            precision = d * np.eye(d) + probes.T @ probes / sigma**2
            length = math.sqrt(1 - np.trace(np.linalg.inv(precision)))
            assert length <= 1 / math.sqrt(1 + d * d * sigma**2 / m) + 1e-12 <= hc.best_cosine(d, m, sigma)
        few = probes[:3]
        precision = d * np.eye(d) + few.T @ few / sigma**2
        assert math.sqrt(1 - np.trace(np.linalg.inv(precision))) <= hc.best_cosine(d, 3, sigma)

    @pytest.mark.parametrize("d", [2, 32, 384])
    @pytest.mark.parametrize("cosine", [0.05, 0.3, 0.7, 0.99])
    @pytest.mark.parametrize("sigma", [0.0, 0.01, 0.1, 1.0, 8.45])
    def test_queries_needed_is_the_least_number(self, d: int, cosine: float, sigma: float) -> None:
        needed = hc.count_needed_queries(d, sigma, cosine)
        assert hc.best_cosine(d, needed, sigma) >= cosine * (1 - 1e-9)
        assert needed == 1 or hc.best_cosine(d, needed - 1, sigma) < cosine

    @pytest.mark.parametrize("queries", [10, 31, 32, 33, 10_000])
    def test_sigma_that_stops_is_the_least_noise(self, queries: int) -> None:
        sigma = hc.compute_stopping_sigma(32, queries, 0.5)
        assert sigma > 0
        assert hc.best_cosine(32, queries, sigma) == pytest.approx(0.5, rel=1e-12)
        assert hc.compute_stopping_sigma(32, 7, 0.5) == 0  # 7 of 32 directions hold less than a quarter of the template

    def test_stopping_budget(self) -> None:
        """The stopping budget depends only on dimension and cosine."""
        for d, cosine in ((32, 0.3), (128, 0.5), (384, 0.7)):
            epsilon = hc.stopping_epsilon(d, cosine, DELTA)
            for queries in (d, 10 * d, 1000 * d, 123_457):
                sigma = hc.compute_stopping_sigma(d, queries, cosine)
                assert hc.budget_at(queries, sigma, DELTA) == pytest.approx(epsilon, rel=1e-9)
            few = hc.compute_stopping_sigma(
                d, d // 2 + 1, cosine
            )  # near miss: with fewer queries a larger budget is safe
            assert hc.budget_at(d // 2 + 1, few, DELTA) > 1.05 * epsilon
        assert hc.stopping_epsilon(128, 0.5, DELTA, sensitivity=1.0) < hc.stopping_epsilon(128, 0.5, DELTA)

    def test_budgets_compose_exactly(self) -> None:
        assert hc.budget_at(1, ss.calibrate(3, DELTA, 2.0), DELTA) == pytest.approx(3, rel=1e-9)
        assert hc.budget_at(9, 3 * ss.calibrate(3, DELTA, 2.0), DELTA) == pytest.approx(3, rel=1e-9)
        assert hc.budget_at(0, 1.0, DELTA) == 0
        assert hc.budget_at(5, 0.0, DELTA) == math.inf


class TestStopping:
    @pytest.mark.parametrize("attack", ["linear", "climb"])
    def test_a_small_total_budget_stops_both(self, attack: str) -> None:
        """Epsilon 10 for all answers together, at any number of them, leaves no more than chance has."""
        d = 32
        for queries in (64, 512):
            sigma = ss.calibrate(10, DELTA, 2 * math.sqrt(queries))
            climbs = many(attack, d, queries, sigma, 200, threshold=0.7)
            assert climbs[0].epsilon == pytest.approx(10, rel=1e-6)
            assert not any(climb.accepted for climb in climbs)
            assert cosines(climbs).mean() < 0.1

    def test_at_stopping_budget(self) -> None:
        """At the stopping budget half of the attacks pass, and at four times the ratio all."""
        d, queries, cosine = 32, 256, 0.5
        sigma = hc.compute_stopping_sigma(d, queries, cosine)
        rates = {
            (attack, factor): np.mean(
                [climb.accepted for climb in many(attack, d, queries, factor * sigma, 200, threshold=cosine)]
            )
            for attack in ("linear", "climb")
            for factor in (2.0, 1.0, 0.25)
        }
        assert rates["linear", 2.0] < 0.1
        assert 0.31 < rates["linear", 1.0] < 0.69  # 0.5 within STRICT standard errors
        assert rates["linear", 0.25] == 1
        assert rates["climb", 2.0] < 0.1
        assert rates["climb", 1.0] < rates["linear", 1.0]  # it spends half of each answer on the height, not the slope
        assert rates["climb", 0.25] > 0.9

    def test_free_queries(self) -> None:
        """Noise stops no attack if queries are free."""
        sigma = 1.0
        assert cosines(many("linear", 16, 16, sigma, 50)).mean() < 0.4
        assert cosines(many("linear", 16, 16 * 1000, sigma, 10)).min() > 0.95
        assert cosines(many("climb", 16, 16 * 500, sigma, 10)).mean() > 0.7


@pytest.mark.parametrize(
    "call",
    [
        lambda: hc.Matcher([1.0], sigma=1, threshold=0.5, rng=1),
        lambda: hc.Matcher(np.ones((2, 3)), sigma=1, threshold=0.5, rng=1),
        lambda: hc.Matcher(np.zeros(3), sigma=1, threshold=0.5, rng=1),
        lambda: hc.Matcher([1.0, math.nan], sigma=1, threshold=0.5, rng=1),
        lambda: hc.Matcher(["a", "b"], sigma=1, threshold=0.5, rng=1),
        lambda: hc.Matcher(np.ones(3), sigma=-1, threshold=0.5, rng=1),
        lambda: hc.Matcher(np.ones(3), sigma=1, threshold=1.0, rng=1),
        lambda: hc.Matcher(np.ones(3), sigma=1, threshold=0.5, rng=None),
        lambda: hc.Matcher(np.ones(3), sigma=1, threshold=0.5, rng=-1),
        lambda: hc.Matcher.calibrate(np.ones(3), epsilon=0, delta=DELTA, threshold=0.5, rng=1),
        lambda: hc.Matcher.calibrate(np.ones(3), epsilon=1, delta=DELTA, threshold=0.5, rng=1, queries=0),
        lambda: matcher(3, 1.0, 1).scores(np.ones(4)),
        lambda: matcher(3, 1.0, 1).scores(np.zeros((2, 3))),
        lambda: matcher(3, 1.0, 1).scores(np.ones((1, 2, 3))),
        lambda: hc.hill_climb(np.ones(3), queries=4, delta=DELTA, rng=1),
        lambda: hc.hill_climb(matcher(3, 1.0, 1), queries=1, delta=DELTA, rng=1),
        lambda: hc.hill_climb(matcher(3, 1.0, 1), queries=4, delta=0, rng=1),
        lambda: hc.hill_climb(matcher(3, 1.0, 1), queries=4, delta=DELTA, rng=1, pairs=0),
        lambda: hc.hill_climb(matcher(3, 1.0, 1), queries=4, delta=DELTA, rng=1, width=0.0),
        lambda: hc.linear_attack(matcher(3, 1.0, 1), queries=0, delta=DELTA, rng=1),
        lambda: hc.linear_attack(matcher(3, 1.0, 1), queries=3, delta=DELTA, rng="seed"),
        lambda: hc.linear_cosine(3, 4, 1.0),
        lambda: hc.linear_acceptance(3, 3, 1.0, 1.5),
        lambda: hc.best_cosine(1, 4, 1.0),
        lambda: hc.count_needed_queries(3, math.inf, 0.5),
        lambda: hc.compute_stopping_sigma(3, 3, 0.0),
        lambda: hc.budget_at(-1, 1.0, DELTA),
        lambda: hc.budget_at(1, 1.0, DELTA, sensitivity=0),
        lambda: hc.stopping_epsilon(3, 0.5, 1.0),
    ],
)
def test_bad_input(call: object) -> None:
    with pytest.raises(ss.InvalidInput):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("sigma", [1e200, 1e-200])
def test_noise_beyond_reason_is_refused(sigma: float) -> None:
    for call in (
        lambda: hc.best_cosine(10, 10, sigma),
        lambda: hc.count_needed_queries(10, sigma, 0.5),
        lambda: hc.linear_cosine(10, 10, sigma),
        lambda: hc.budget_at(10, sigma, 1e-6),
    ):
        with pytest.raises(ss.InvalidInput, match="'sigma'"):
            call()


def test_extremes_have_their_limits() -> None:
    assert hc.linear_acceptance(128, 128, 1e-12, 0.9) == 1
    assert hc.linear_cosine(10, 10, 1e-50) == 1
    assert hc.budget_at(10**9, 1e-50, 1e-6) == np.inf
    with pytest.raises(ss.InvalidInput, match="'cosine'"):
        hc.compute_stopping_sigma(2, 1, 1e-300)
