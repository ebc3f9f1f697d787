"""Attacks that say whether a record is in: they win where nothing protects, and stay below the ceiling elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom, norm
from support import STRICT

import scoreshield as ss
from scoreshield.attack import distinguishing, membership
from scoreshield.attack.membership import Targets, evaluate_statistic, make_game, observe, score_attack
from scoreshield.privacy.profiles import GaussianProfile

POSITION = ("position", "rank", "likelihood at position")


def records(n: int = 600, d: int = 32, seed: int = 1) -> np.ndarray:
    """A topic that all share, and much of their own: neighbours score about 0.2."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) + 0.5


def gaussian(collection: np.ndarray, epsilon: float, seed: int = 0, **more: Any) -> Callable[[Any], ss.ScoreRelease]:
    rng = np.random.default_rng(seed)
    return lambda query: ss.release_scores(collection, query, epsilon=epsilon, delta=1e-6, rng=rng, **more)


def fixed(vector: list[float]) -> Callable[[Any], Any]:
    return lambda _: np.array(vector)


class TestStatistics:
    """By hand, on one answer."""

    SCORES = (0.1, 0.7, 0.4, -0.2)

    def of(self, *names: str) -> list[float]:
        targets = Targets(np.ones((1, 3)), np.array([2]), np.ones(1), np.array([[0.3, 0.5]]))
        seen = observe(fixed(list(self.SCORES)), targets, statistics=names)
        assert seen.profile is None
        return [float(seen.values[name][0]) for name in names]

    def test_of_scores(self) -> None:
        expected = [0.7, 0.3, 1.0, 0.2, 0.4, -1.0]
        assert self.of("best", "gap", "total", "calibrated", "position", "rank") == pytest.approx(expected)

    def test_likelihood_is_mixture_ratio(self, collection: np.ndarray, query: np.ndarray) -> None:
        """The likelihood is the ratio of the two mixtures."""
        own, others = np.array([0.9, 0.7]), np.array([[0.1, -0.2, 0.3]])
        targets = Targets(query[None], np.array([5]), own, others)
        seen: list[ss.ScoreRelease] = []

        def answer(asked: np.ndarray) -> ss.ScoreRelease:
            seen.append(gaussian(collection, 8.0, len(seen))(asked))
            return seen[-1]

        values = observe(answer, targets, statistics=("likelihood at position", "likelihood"), rounds=2).values
        noisy, sigma = np.stack([release.noisy for release in seen]), seen[0].guarantee.scale
        inside, outside = (
            np.mean([norm.pdf(noisy, mean, sigma).prod(axis=0) for mean in means], axis=0) for means in (own, others[0])
        )
        ratio = inside / outside
        assert values["likelihood at position"][0] == pytest.approx(math.log(ratio[5]), abs=0.01)
        assert values["likelihood"][0] == pytest.approx(math.log(ratio.mean()), abs=0.01)

    def test_likelihood_knows_the_clamped_range(self) -> None:
        rows = np.eye(3)
        targets = Targets(rows[:1], np.array([0]), np.ones(1), np.zeros((1, 1)))
        seen: list[ss.ScoreRelease] = []

        def answer(asked: np.ndarray) -> ss.ScoreRelease:
            seen.append(gaussian(rows, 20.0, score_range=(0.0, 0.5))(asked))
            return seen[-1]

        value = observe(answer, targets, statistics="likelihood at position").values["likelihood at position"][0]
        y, sigma = seen[0].noisy[0], seen[0].guarantee.scale
        assert value == pytest.approx(norm.logpdf(y, 0.5, sigma) - norm.logpdf(y, 0.0, sigma), abs=0.01)

    def test_reference_quantiles(self, collection: np.ndarray, query: np.ndarray) -> None:
        """Many reference scores are summarised by quantiles."""
        many = np.random.default_rng(3).normal(0.1, 0.2, (1, 4000))
        values = [
            observe(
                gaussian(collection, 20.0), Targets(query[None], np.array([1]), np.ones(1), others),
                statistics="likelihood at position",
            ).values["likelihood at position"][0]
            for others in (many, np.quantile(many, (np.arange(32) + 0.5) / 32, axis=1).T)
        ]  # fmt: skip
        assert values[0] == values[1]

    def test_averages_over_rounds_and_composes(self, collection: np.ndarray, query: np.ndarray) -> None:
        seen: list[ss.ScoreRelease] = []
        answer = gaussian(collection, 1.0)

        def kept(asked: np.ndarray) -> ss.ScoreRelease:
            seen.append(answer(asked))
            return seen[-1]

        got = observe(kept, Targets(query[None], np.array([3])), statistics="position", rounds=9)
        assert got.values["position"][0] == pytest.approx(np.mean([release.noisy[3] for release in seen]))
        assert len(seen) == 9
        assert isinstance(got.profile, GaussianProfile)
        assert got.profile.mu == pytest.approx(3 * seen[0].guarantee.mu)

    def test_reads_matches_and_the_k_best(self) -> None:
        rows, query = np.eye(6), np.eye(6)[4] + 0.1 * np.eye(6)[2]
        for answer, expected in (
            (lambda q: ss.release_matches(rows, q, 0.5, epsilon=60.0, rng=1), [1.0, 1.0]),
            (lambda q: ss.release_top_k(rows, q, 2, epsilon=5000.0, rng=1), [2.0, 3.0]),
        ):
            seen = observe(answer, Targets(query[None], np.array([4])), statistics=("position", "total"))
            assert [float(v[0]) for v in seen.values.values()] == expected
            assert seen.profile is not None

    def test_refined_matches_rank_first(self) -> None:
        """Refined matches rank above all other records."""
        rows = np.eye(6)
        answer = ss.release_matches(rows, rows[4], 0.5, epsilon=2000.0, refine=0.5, rng=1)
        seen = observe(lambda _: answer, Targets(rows[:2], np.array([4, 0])), statistics=("position", "rank"))
        assert seen.values["position"][0] == pytest.approx(1.0, abs=0.01)
        assert seen.values["position"][0] > seen.values["position"][1]
        assert list(seen.values["rank"]) == [0.0, -1.0]


class TestJudge:
    def test_by_hand(self) -> None:
        result = evaluate_statistic([3.0, 1.0, 1.5], [0.0, 2.0, 1.5])
        assert result.auc == pytest.approx((3 + 1 + 1.5) / 9)
        assert result.tpr_at_1_percent == pytest.approx(1 / 3)  # only the 3 is above every non-member
        assert result.trials == (3, 3)
        assert (result.ceiling_auc, result.ceiling_tpr) == (1.0, 1.0)
        assert not result.violation

    def test_area_interval_solves_its_equation(self) -> None:
        rng = np.random.default_rng(1)
        result = evaluate_statistic(rng.normal(1, 1, 500), rng.normal(0, 1, 300), confidence=0.9)
        a = result.auc
        for end in result.auc_interval:
            divergence = a * math.log(a / end) + (1 - a) * math.log((1 - a) / (1 - end))
            assert 300 * divergence == pytest.approx(math.log(20), rel=1e-9)
        assert result.auc_interval[0] < a < result.auc_interval[1]

    @pytest.mark.parametrize(
        ("inside", "outside", "auc"), [([2.0], [1.0], 1.0), ([1.0], [2.0], 0.0), ([1.0], [1.0], 0.5)]
    )
    def test_one_of_each_proves_nothing(self, inside: list[float], outside: list[float], auc: float) -> None:
        result = evaluate_statistic(inside, outside, ceiling=GaussianProfile(0.01))
        assert result.auc == auc
        assert result.auc_interval[1] - result.auc_interval[0] > 0.9
        assert result.tpr_interval[0] == 0.0
        assert result.tpr_interval[1] > 0.98
        assert not result.violation

    def test_an_area_just_below_one(self) -> None:
        outside = np.arange(3000.0)
        result = evaluate_statistic(np.append(np.full(2999, 1e4), 2998.5), outside)
        assert 0.99 < result.auc_interval[0] < result.auc < result.auc_interval[1] <= 1.0

    def test_true_positive_interval(self) -> None:
        """The interval of the true-positive rate agrees with an independent computation."""
        rng = np.random.default_rng(2)
        inside, outside = rng.normal(2, 1, 700), rng.normal(0, 1, 1500)
        result, falling = evaluate_statistic(inside, outside), np.sort(outside)[::-1]
        # How many of 1500 exceed the true 1 % threshold is binomial: that names the order statistics on either side.
        sure = int(binom.ppf(0.0125, 1500, 0.01))
        enough = int(binom.ppf(1 - 0.0125, 1500, 0.01)) + 1
        low_hits, high_hits = (int((inside > falling[k - 1]).sum()) for k in (sure, enough))
        assert result.tpr_interval[0] == pytest.approx(beta.ppf(0.0125, low_hits, 700 - low_hits + 1))
        assert result.tpr_interval[1] == pytest.approx(beta.ppf(1 - 0.0125, high_hits + 1, 700 - high_hits))
        assert result.tpr_interval[0] < result.tpr_at_1_percent < result.tpr_interval[1]

    def test_intervals_cover(self) -> None:
        """400 repeats at 80 %; fewer than 320 by more than five deviations has a chance of 1e-7."""
        mu, rng = 1.5, np.random.default_rng(3)
        truth = GaussianProfile(mu)
        area = tpr = 0
        for _ in range(400):
            result = evaluate_statistic(rng.normal(mu, 1, 500), rng.normal(0, 1, 900), confidence=0.8)
            area += result.auc_interval[0] <= truth.auc <= result.auc_interval[1]
            tpr += result.tpr_interval[0] <= float(truth.tpr_at(0.01)) <= result.tpr_interval[1]
        least = 320 - STRICT * math.sqrt(400 * 0.8 * 0.2)
        assert min(area, tpr) > least

    def test_violation_rate(self) -> None:
        """An attack exactly at its ceiling: at most 20 % alarms are stated. One third above it: nearly always found."""
        mu, rng, alarms = 1.5, np.random.default_rng(4), {mu_true: 0 for mu_true in (1.5, 2.0)}
        for mu_true in alarms:
            for _ in range(200):
                values = rng.normal(mu_true, 1, 1500), rng.normal(0, 1, 1500)
                alarms[mu_true] += evaluate_statistic(*values, ceiling=GaussianProfile(mu), confidence=0.8).violation
        assert alarms[1.5] < 40 + STRICT * math.sqrt(200 * 0.2 * 0.8)
        assert alarms[1.5] <= 20  # the bound is loose: far rarer in fact
        assert alarms[2.0] > 190

    def test_a_few_sure_finds_are_a_violation_too(self) -> None:
        """Three members in ten stand out, the others not at all: mu = 1 allows the area, but not the height."""
        rng = np.random.default_rng(5)
        inside = np.where(np.arange(1500) < 450, 10.0, rng.standard_normal(1500))
        result = evaluate_statistic(inside, rng.standard_normal(1500), ceiling=GaussianProfile(1.0))
        assert result.auc_interval[1] < result.ceiling_auc
        assert result.violation
        assert not evaluate_statistic(inside[450:], rng.standard_normal(1500), ceiling=GaussianProfile(1.0)).violation

    def test_ties_are_a_randomised_test(self) -> None:
        """One bit with 80 % and 5 % ones: at 1 % false positives a fifth of the ones are taken, 0.16."""
        n = 40_000
        inside, outside = (np.repeat([1.0, 0.0], [k, n - k]) for k in (int(0.8 * n), int(0.05 * n)))
        result = evaluate_statistic(inside, outside)
        assert result.auc == pytest.approx(0.5 + (0.8 - 0.05) / 2)
        # 400 of 2,000 tied non-members place the threshold: deviation of the share sqrt(0.2 0.8 / 2000) = 0.009
        assert abs(result.tpr_at_1_percent - 0.16) < STRICT * 0.8 * 0.009
        assert result == evaluate_statistic(inside, outside)

    def test_reads_as_a_sentence(self) -> None:
        text = str(
            evaluate_statistic(np.arange(500.0), np.arange(500.0), ceiling=GaussianProfile(1.0), statistic="best")
        )
        assert text.startswith("best: AUC 0.500 [")
        assert "no violation found in 500 members and 500 non-members." in text
        assert "broken" in str(
            evaluate_statistic(np.arange(500.0) + 500, np.arange(500.0), ceiling=GaussianProfile(1.0))
        )


class TestGame:
    def test_game_split(self) -> None:
        """Half of the records are members, and no record has two roles."""
        rows = records(101)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        collection, members, non_members = make_game(rows, rng=5, reference=0.1)
        assert len(collection) == len(members) == 50
        assert len(non_members) == 101 - 50 - 11
        assert members.others is not None
        assert members.others.shape == (50, 11)
        assert members.positions is not None
        assert np.array_equal(collection[members.positions], members.queries)
        gram = np.vstack([collection, non_members.queries]) @ unit.T
        assert len(np.unique(gram.argmax(axis=1))) == 90  # all distinct records
        known = np.setdiff1d(np.arange(101), gram.argmax(axis=1))
        assert np.allclose(np.sort(members.others[0]), np.sort(unit[known] @ members.queries[0]))
        assert np.array_equal(members.own, [1.0])  # type: ignore[arg-type]
        assert np.array_equal(make_game(rows, rng=5).collection, make_game(rows, rng=5).collection)
        assert not np.array_equal(make_game(rows, rng=5).collection, make_game(rows, rng=6).collection)

    def test_probes_are_what_is_asked(self) -> None:
        rows = records(60)
        probes = rows + 0.3 * np.random.default_rng(8).standard_normal(rows.shape)
        collection, members, _ = make_game(rows, probes=probes, rng=5, reference=0.2)
        genuine = np.vecdot(collection, members.queries)
        assert genuine.max() < 1 - 1e-6
        assert members.own is not None
        assert len(members.own) == 12
        assert abs(genuine.mean() - members.own.mean()) < 0.05

    def test_claimed_positions_fill_the_collection(self) -> None:
        positions = make_game(records(2000), rng=5).non_members.positions
        assert positions is not None
        assert positions.min() < 20
        assert 980 <= positions.max() < 1000


class TestAttack:
    def test_without_noise_everybody_is_found(self) -> None:
        collection, members, non_members = make_game(records(), rng=1)
        results = score_attack(
            lambda q: collection @ q, members, non_members,
            statistics=("best", "gap", "calibrated", "position", "rank", "total"),
        )  # fmt: skip
        for name in ("best", "position", "rank"):
            assert results[name].auc > 0.99
        assert results["gap"].auc > 0.9
        assert results["calibrated"].auc > 0.9
        assert 0.4 < results["total"].auc < 0.6  # tells little even so
        # The same leak under a promise is a violation.
        promise = gaussian(collection, 1.0)(members.queries[0]).guarantee
        broken = score_attack(lambda q: collection @ q, members, non_members, ceiling=promise)
        assert broken["best"].violation

    @pytest.mark.parametrize("epsilon", [0.5, 4.0])
    @pytest.mark.parametrize("mechanism", ["gaussian", "staircase", "screening", "index"])
    def test_below_the_ceiling_for_every_statistic(self, mechanism: str, epsilon: float) -> None:
        """56 results at 99.9 %: where all promises are kept, an alarm in one run of 18 at most; seeds are fixed."""
        collection, members, non_members = make_game(records(800), rng=2)
        rng = np.random.default_rng(7)
        index = ss.release_index(collection, epsilon=epsilon, rng=rng)
        answers: dict[str, Callable[[Any], Any]] = {
            "gaussian": lambda q: ss.release_scores(collection, q, epsilon=epsilon, delta=1e-6, rng=rng),
            "staircase": lambda q: ss.release_scores(collection, q, epsilon=epsilon, mechanism="staircase", rng=rng),
            "screening": lambda q: ss.release_matches(collection, q, 0.6, epsilon=epsilon, rng=rng),
            "index": index.scores,
        }
        names = membership.STATISTICS if mechanism in ("gaussian", "staircase") else membership.STATISTICS[:-2]
        ceiling = index.guarantee if mechanism == "index" else None
        results = score_attack(
            answers[mechanism], members, non_members, statistics=names, ceiling=ceiling, confidence=0.999
        )
        for result in results.values():
            assert not result.violation, str(result)
            assert 0.5 < result.ceiling_auc < 1
        if epsilon > 1:
            assert results["position"].auc > results["best"].auc

    @pytest.mark.parametrize(("mechanism", "delta"), [("gaussian", 1e-6), ("staircase", 0.0)])
    @pytest.mark.parametrize("rounds", [1, 4])
    def test_meets_the_ceiling_in_the_worst_case(self, mechanism: str, delta: float, rounds: int) -> None:
        """A place holds the target or its opposite: the likelihood-ratio test is the best there is.

        So the test has power: noise too small by a factor of 1.6 is a violation. Each place of a release is a trial.
        """
        n, rng = 3000, np.random.default_rng(9)
        rows = np.tile([1.0, 0.0], (n, 1))
        targets = Targets(rows, np.arange(n), np.ones(1), -np.ones((n, 1)))

        def seen(sign: int) -> membership.Observation:
            releases = itertools.cycle(
                [
                    ss.release_scores(sign * rows, rows[0], epsilon=1.5, delta=delta, mechanism=mechanism, rng=rng)
                    for _ in range(rounds)
                ]
            )
            return observe(lambda _: next(releases), targets, statistics="likelihood at position", rounds=rounds)

        inside, outside = seen(1), seen(-1)
        values = [one.values["likelihood at position"] for one in (inside, outside)]
        result = evaluate_statistic(*values, ceiling=inside.profile, confidence=0.999)
        assert not result.violation
        assert abs(result.auc - result.ceiling_auc) < 0.03
        if isinstance(inside.profile, GaussianProfile):
            promised_too_much = GaussianProfile(inside.profile.mu / 1.6)
            assert evaluate_statistic(*values, ceiling=promised_too_much, confidence=0.999).violation

    def test_repeated_queries(self) -> None:
        """Repeated queries help against fresh noise, and not against an index."""
        collection, members, non_members = make_game(records(200), rng=3)
        fresh = [
            score_attack(gaussian(collection, 3.0, 4), members, non_members, statistics="position", rounds=m)[
                "position"
            ]
            for m in (1, 16)
        ]
        assert fresh[1].auc > fresh[0].auc + 0.1
        assert fresh[1].ceiling_auc > fresh[0].ceiling_auc + 0.1
        index = ss.release_index(collection, epsilon=3.0, rng=1)
        flat = [
            score_attack(
                index.scores, members, non_members, statistics="position", rounds=m, ceiling=index.guarantee
            )["position"]
            for m in (1, 16)
        ]  # fmt: skip
        assert flat[0].auc == pytest.approx(flat[1].auc, abs=1e-12)
        assert flat[0].ceiling_auc == flat[1].ceiling_auc

    def test_on_real_abstracts(self, shared_data: Path) -> None:
        from scoreshield.bench.data import compact

        embeddings = compact.load_compact_scifact(shared_data).document_embeddings
        assert embeddings is not None
        collection, members, non_members = make_game(embeddings[:1000], rng=1)
        clean = score_attack(lambda q: collection @ q, members, non_members)["best"]
        assert clean.auc > 0.99
        assert clean.tpr_at_1_percent > 0.99
        noisy = score_attack(gaussian(collection, 1.0), members, non_members, statistics=("best", *POSITION))
        for result in noisy.values():
            assert result.auc < 0.6
            assert not result.violation


class TestBadInput:
    QUERIES = np.eye(3)

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda _: Targets(np.zeros((0, 3))), "queries"),
            (lambda _: Targets(np.full((2, 3), np.nan)), "queries"),
            (lambda q: Targets(q, np.array([0, 1])), "'positions' parameter of Targets must be 3 whole numbers"),
            (lambda q: Targets(q, np.array([0, 1, -1])), "positions"),
            (lambda q: Targets(q, np.array([0.0, 1.0, 2.0])), "positions"),
            (lambda q: Targets(q, own=np.array([np.nan])), "own"),
            (lambda q: Targets(q, own=np.ones((2, 2))), "own"),
            (lambda q: Targets(q, others=np.ones((2, 4))), "others"),
            (lambda q: Targets(q, others=np.ones((3, 0))), "others"),
            (lambda q: observe(3, q), "a function from a query"),  # type: ignore[arg-type]
            (lambda q: observe(fixed([1.0]), q, statistics="worst"), "one of 'best'"),
            (lambda q: observe(fixed([1.0]), q, statistics=[]), "at least one statistic"),
            (lambda q: observe(fixed([1.0]), q, statistics="position"), "'position' needs targets with positions"),
            (lambda q: observe(fixed([1.0]), q, statistics="likelihood"), "others and own"),
            (lambda q: observe(fixed([1.0]), q, rounds=0), "rounds"),
            (lambda q: observe(fixed([1.0, np.nan]), q), "vector of finite scores"),
            (lambda q: observe(fixed([]), q), "vector of finite scores"),
            (lambda q: observe(lambda _: None, q), "Got None instead"),
            (lambda q: observe(lambda _: np.ones((2, 2)), q), "(2, 2)"),
            (lambda q: observe(lambda _: 1 / 0, q), "failed on a query: ZeroDivisionError"),
            (lambda q: observe(fixed([1.0]), Targets(q, np.array([0, 1, 0])), statistics="rank"), "Target 1"),
            (lambda _: evaluate_statistic([], [1.0]), "members"),
            (lambda _: evaluate_statistic([1.0], [np.inf]), "non_members"),
            (lambda _: evaluate_statistic([[1.0]], [1.0]), "members"),
            (lambda _: evaluate_statistic(["a"], [1.0]), "members"),
            (lambda _: evaluate_statistic([1.0], [1.0], confidence=1.0), "confidence"),
            (lambda _: evaluate_statistic([1.0], [1.0], ceiling="strong"), "evaluate_statistic"),
            (lambda _: make_game(np.ones((7, 3)), rng=1), "at least 8"),
            (lambda _: make_game(np.zeros((9, 3)), rng=1), "records"),
            (lambda _: make_game(np.ones((9, 3)), rng=None), "rng"),  # type: ignore[arg-type]
            (lambda _: make_game(np.ones((9, 3)), rng=1, reference=0.5), "reference"),
            (lambda _: make_game(np.ones((9, 3)), rng=1, probes=np.ones((8, 3))), "(9, 3)"),
        ],
    )  # fmt: skip
    def test_is_one_clear_sentence(self, make: Callable[[np.ndarray], object], says: str) -> None:
        with pytest.raises(ss.InvalidInput) as caught:
            make(self.QUERIES)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_likelihood_without_a_noise_law(self, collection: np.ndarray) -> None:
        q = collection[:1]
        targets = Targets(q, np.array([0]), np.ones(1), np.zeros((1, 2)))
        for answer in (
            lambda x: collection @ x,
            lambda x: ss.release_matches(collection, x, 0.5, epsilon=1.0, rng=1),
            lambda x: ss.release_scores(collection, x, epsilon=1.0, mechanism="optimal", rng=1),
        ):
            with pytest.raises(ss.InvalidInput, match="additive noise"):
                observe(answer, targets, statistics="likelihood")

    def test_inconsistent_answers(self, collection: np.ndarray) -> None:
        """Answers with different guarantees or lengths raise an error."""
        budgets, lengths = iter((1.0, 2.0)), iter((3, 4))
        q = collection[:2]
        with pytest.raises(ss.InvalidInput, match="have the same guarantee"):
            observe(lambda x: gaussian(collection, next(budgets))(x), q)
        with pytest.raises(ss.InvalidInput, match="the same number"):
            observe(lambda _: np.ones(next(lengths)), q, rounds=2)
        answers = iter((collection @ q[0], gaussian(collection, 1.0)(q[0])))
        with pytest.raises(ss.InvalidInput, match="members and non-members"):
            score_attack(lambda _: next(answers), q[:1], q[1:])

    def test_the_library_speaks_for_itself(self, collection: np.ndarray) -> None:
        with pytest.raises(ss.InvalidInput, match="query"):
            observe(gaussian(collection, 1.0), np.ones((1, 3)))


def test_one_percent_is_what_it_says() -> None:
    assert distinguishing.FALSE_POSITIVES == 0.01
