"""The audit itself: what it bounds, what it refuses, and that its promises of confidence hold.

Statistical comparisons use fixed seeds; where one could fail by chance, the rate is stated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp
from support import STRICT

import scoreshield as ss
from scoreshield.audit import checks, own
from scoreshield.audit.claim import Claim
from scoreshield.audit.engine import audit, audit_outputs
from scoreshield.audit.judging import judged
from scoreshield.audit.neighbours import Pair, from_canaries, replaced, worst_pairs
from scoreshield.audit.outputs import Source, kind_of, law_of, numbers
from scoreshield.audit.statistics import Setting, likelihood, linear, log_density, lowest_bit, noiseless, table
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profile import GaussianProfile

D = 4
Q = np.eye(D)[0]
PAIR = worst_pairs(3, D, "scores", Q)[0]
NULL = Pair(PAIR.first, PAIR.first, 0, "the same collection twice")


def told_bit(rows: np.ndarray, rng: np.random.Generator, repeats: int, epsilon: float) -> np.ndarray:
    """Randomised response on whether the first record's score is positive: exactly epsilon."""
    kept = rng.random(repeats) < 1 / (1 + math.exp(-epsilon))
    return np.where(kept, rows[0] @ Q > 0, rows[0] @ Q <= 0)


def scaled(rows: np.ndarray, rng: np.random.Generator, repeats: int, b: float = 2.0) -> np.ndarray:
    return np.rint((rows @ Q + rng.laplace(0, b, (repeats, len(rows)))) * 2**20) / 2**20


# ---- What is bounded.


@pytest.mark.parametrize("statistic", ["auto", "linear", "table", "membership"])
def test_randomised_response_is_bounded_from_below_and_closely(statistic: str) -> None:
    """The bound exceeds 1.5 with probability at most 1e-6, and lies within 0.15 of it at this number."""
    result = audit(
        partial(told_bit, epsilon=1.5),
        Claim(1.5),
        neighbours=PAIR,
        releases=40_000,
        confidence=1 - 1e-6,
        statistic=statistic,
    )
    assert 1.35 < result.epsilon_lower <= 1.5
    assert not result.broken


def test_a_claim_that_is_too_small_is_broken() -> None:
    result = audit(partial(told_bit, epsilon=1.5), Claim(1.3), neighbours=PAIR, releases=40_000, confidence=1 - 1e-6)
    assert result.broken
    assert result.epsilon_lower > 1.3
    assert "1.3 was claimed" in result.verdict


def test_identical_collections_give_zero() -> None:
    for release in (partial(told_bit, epsilon=1.5), scaled, partial(ss.release_scores, query=Q, epsilon=5, delta=1e-5)):
        result = audit(release, Claim(0.0), neighbours=NULL, releases=4_000, confidence=0.999)
        assert result.epsilon_lower == 0
        assert not result.broken


def test_outputs_without_any_difference_give_zero() -> None:
    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        del rows
        return np.array([1.0, float(rng.integers(2))])

    result = audit(release, Claim(0.5), neighbours=PAIR, releases=400, confidence=0.999)
    assert result.epsilon_lower == 0


def test_false_alarms_are_as_rare_as_the_confidence_says() -> None:
    """120 honest audits at 60 % confidence: of at most 48 expected alarms, 77 have a probability below 1e-7.

    A test that is counted on the outputs it was learnt on raises many more.
    """
    rng = np.random.default_rng(3)
    honest = [
        audit_outputs(rng.integers(0, 3, (200, 8)), rng.integers(0, 3, (200, 8)), Claim(0.0), confidence=0.6).broken
        for _ in range(120)
    ]
    assert sum(honest) < 48 + STRICT * math.sqrt(120 * 0.4 * 0.6)


@pytest.mark.parametrize(("mechanism", "delta"), [("gaussian", 1e-6), ("laplace", 0.0), ("staircase", 0.0)])
@pytest.mark.parametrize("seed", [11, None])
def test_our_scores_are_audited_in_bulk(mechanism: str, delta: float, seed: int | None) -> None:
    """A hundred thousand releases of eight records, from the seeded and from the secure sampler."""
    release = partial(ss.release_scores, query=Q, epsilon=1.0, delta=delta, mechanism=mechanism)
    pair = worst_pairs(8, D, "scores", Q)[0]
    claim = Claim.of(release(pair.first))
    start = time.perf_counter()
    result = audit(release, claim, neighbours=pair, releases=100_000, confidence=1 - 1e-6, seed=seed)
    assert time.perf_counter() - start < 20
    assert not result.broken
    assert result.epsilon_lower > (0.85 if delta == 0 else 0.1)


def test_bulk_and_single_releases_have_one_law() -> None:
    """Kolmogorov-Smirnov on every entry, 20 comparisons at 1e-8 each."""
    for release in (
        partial(ss.release_scores, query=Q, epsilon=2.0, mechanism="staircase"),
        partial(ss.release_index, epsilon=4.0),
        partial(ss.release_matches, query=Q, threshold=0.5, epsilon=1.0),
    ):
        assert Source(release, seed=1, timeout=None).in_bulk

        def single(rows: np.ndarray, rng: Any, inner: Callable[..., Any] = release) -> Any:
            return inner(rows, rng=rng)

        bulk = Source(release, seed=1, timeout=None).draw(PAIR.first, 3_000)
        alone = Source(single, seed=2, timeout=None)
        assert not alone.in_bulk
        one_by_one = alone.draw(PAIR.first, 1_000)
        assert bulk.shape[1] == one_by_one.shape[1]
        for column in range(bulk.shape[1]):
            assert ks_2samp(bulk[:, column], one_by_one[:, column]).pvalue > 1e-8


def test_other_releases_are_not_repeated_inside() -> None:
    labels = ss.Identity([0, 0, 1])
    for release in (
        partial(ss.release_scores, query=np.eye(D)[:2], epsilon=1.0, delta=1e-6),
        partial(ss.release_scores, query=Q, epsilon=1.0, delta=1e-6, adjacency=labels),
        partial(ss.release_index, epsilon=4.0, components=2),
        partial(ss.release_matches, query=Q, threshold=0.5, epsilon=1.0, refine=0.5),
        partial(ss.release_top_k, query=Q, k=1, epsilon=1.0),
    ):
        assert not Source(release, seed=1, timeout=None).in_bulk


def test_the_same_seed_gives_the_same_result() -> None:
    results = [audit(scaled, Claim(1.0), neighbours=PAIR, releases=2_000, seed=4).to_dict() for _ in range(2)]
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]


def test_a_result_holds_what_a_report_needs() -> None:
    seen: list[tuple[int, int, float]] = []
    result = audit(
        scaled, Claim(1.0), neighbours=PAIR, releases=4_000, progress=lambda *said: seen.append(said), name="mine"
    )
    assert (result.name, result.releases, result.neighbours) == ("mine", 4_000, PAIR.description)
    assert result.counts_in.sum() == result.counts_out.sum() == 2_000
    assert result.trajectory[-1] == (4_000, result.epsilon_lower)
    assert result.trajectory[0][0] > 2_000
    assert result.auc[1] < result.auc[0] < result.auc[2]
    assert seen[-1][:2] == (4_000, 4_000)
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][2] > 0


def test_of_several_pairs_the_most_telling_is_audited() -> None:
    result = audit(scaled, Claim(1.0), neighbours=[NULL, PAIR, NULL], releases=4_000)
    assert result.neighbours == PAIR.description


def test_without_neighbours_the_worst_cases_are_tried() -> None:
    query = np.array([1.0, 2.0, -1.0])
    release = partial(ss.release_scores, query=query, epsilon=2.0, mechanism="laplace")
    result = audit(release, Claim(2.0), releases=10_000, shape=(4, 9))  # the length is the query's
    assert result.epsilon_lower > 1.5
    assert "equal to the query" in result.neighbours


def test_without_neighbours_or_query_it_climbs() -> None:
    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return rows @ np.array([0.6, 0.0, 0.8]) + rng.laplace(0, 0.5, (repeats, len(rows)))

    result = audit(release, Claim(1.0), releases=8_000, shape=(3, 3), confidence=1 - 1e-6)
    assert "climbing" in result.neighbours
    assert result.broken


def test_a_pair_of_long_rows_may_be_refused_but_no_other() -> None:
    def strict(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if np.linalg.norm(rows, axis=1).max() > 1.1:
            raise ValueError("rows must be unit vectors")
        return rows @ Q + rng.laplace(0, 2, len(rows))

    assert audit(strict, Claim(5.0), neighbours=worst_pairs(3, D, "scores", Q), releases=2_000).releases == 2_000
    with pytest.raises(InvalidInput, match="ValueError"):
        audit(strict, Claim(5.0), neighbours=worst_pairs(3, D, "scores", Q)[2], releases=2_000)


def test_canaries_are_neighbours() -> None:
    rows = np.tile(np.eye(D)[1], (3, 1))
    result = audit(scaled, Claim(1.0), neighbours=from_canaries(rows, np.stack([rows[0], Q])), releases=4_000)
    assert result.neighbours == "canary 1 in place of record 1"


def test_outputs_drawn_before_are_judged_alike() -> None:
    source = Source(scaled, seed=0, timeout=None)
    first, second = source.draw(PAIR.first, 4_000), source.draw(PAIR.second, 4_500)
    result = audit_outputs(first, second, Claim(0.3), confidence=1 - 1e-6)
    assert result.broken
    assert result.releases == 4_000


def test_a_classifier_finds_what_sums_of_entries_miss() -> None:
    """Two fair bits whose exclusive-or is the secret, told truly nine times of ten: epsilon is ln 9 = 2.197."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        mask = rng.integers(0, 2, repeats)
        told = (rows[0] @ Q > 0) ^ (rng.random(repeats) < 0.1)
        return np.stack([mask, mask ^ told], axis=1)

    options: dict[str, Any] = {"neighbours": PAIR, "releases": 8_000, "confidence": 1 - 1e-6}
    assert audit(release, Claim(2.0), statistic="table", **options).epsilon_lower < 0.5
    found = audit(release, Claim(1.5), **options)
    assert found.statistic == "classifier"
    assert found.broken
    assert found.epsilon_lower <= math.log(9)


def test_sets_and_tuples_are_read() -> None:
    def release(rows: np.ndarray, rng: np.random.Generator) -> Any:
        kept = {int(i) for i in np.flatnonzero((rows @ Q > 0.5) ^ (rng.random(len(rows)) < 0.1))}
        return kept, rng.random(2)

    result = audit(release, Claim(1.0), neighbours=PAIR, releases=2_000, confidence=1 - 1e-6)
    assert result.broken
    assert numbers({0, 2}, 3).tolist() == [1, 0, 1]
    assert numbers((np.array([1.5]), {1}), 2).tolist() == [1.5, 0, 1]


def test_large_outputs_are_screened_for_the_entries_that_move() -> None:
    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        out = rng.standard_normal(2_000)
        out[1_234] += 3 * float(rows[0] @ Q)
        return out

    result = audit(release, Claim(1.0), neighbours=PAIR, releases=2_000, confidence=1 - 1e-6)
    assert result.broken


# ---- What is read off outputs.


def test_kinds_and_laws_are_read_off_outputs() -> None:
    gram = ss.release_gram(PAIR.first, epsilon=1.0, delta=1e-6, rng=0)
    assert kind_of(gram, 3) == "gram"
    assert law_of(gram) == (gram.guarantee.noise, 3)
    assert len(numbers(gram, 3)) == 6  # above the diagonal, noisy and projected
    top = ss.release_top_k(PAIR.first, Q, 2, epsilon=1.0, rng=0)
    assert kind_of(top, 3) == "top-k"
    assert sorted(numbers(top, 3)) == [0, 1, 2]
    assert law_of(top) == (None, 0)
    assert kind_of(np.zeros((3, 3)), 3) == "gram"
    assert kind_of(np.zeros((3, 2)), 3) == "index"
    assert kind_of(np.zeros(3), 3) == "scores"
    assert kind_of({1}, 3) == "matches"


@pytest.mark.parametrize(
    "law",
    [ss.GaussianNoise(1.3), ss.LaplaceNoise(0.7), ss.StaircaseNoise.calibrated(1.0, 2.0)],
    ids=lambda law: law.name,
)
def test_log_densities_are_those_of_the_laws(law: Any) -> None:
    x = np.array([-4.9, -3.1, -1.7, -0.3, 0.2, 0.5, 1.1, 2.3, 2.9, 4.4])
    density = np.log((law.cdf(x + 1e-5) - law.cdf(x - 1e-5)) / 2e-5)
    gaps = density - log_density(law, x)
    assert gaps == pytest.approx(np.full(len(x), gaps[0]), abs=1e-4)


def test_lowest_bits_of_known_numbers() -> None:
    found = lowest_bit(np.array([1.0, 3.0, 0.75, -6.0, 1 + 2**-52, 2.0**-60, 0.0]))
    assert found.tolist() == [0, 0, -2, 1, -52, -60, 2048]


def test_the_silent_direction_is_found_and_no_other() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 3))
    shared = noise[:, [0, 0, 1]]
    found = noiseless(shared + np.eye(3)[0], shared)
    assert found is not None
    assert np.allclose(found(np.eye(3))[:2] / found(np.eye(3))[0], [1, -1])
    assert noiseless(shared + np.array([1.0, 1.0, 0.0]), shared) is None  # moves along the noise only
    assert noiseless(noise + np.eye(3)[0], noise) is None


def test_statistics_say_none_where_nothing_differs() -> None:
    same = np.ones((50, 2))
    assert linear(same, same) is None
    assert table(same, same) is None
    assert likelihood(same, same, Setting(ss.GaussianNoise(1.0), 2)) is None


def test_the_noise_scale_is_a_lower_bound_and_a_close_one() -> None:
    """1,000 samples with mu 0.5 and an error of 0.1: at most 100 bounds above it expected, 151 has probability 1e-7."""
    rng = np.random.default_rng(8)
    claim = Claim(30.0, 1e-6, profile=GaussianProfile(0.5))
    direction = linear(np.array([[1.0], [1.1]]), np.array([[0.0], [0.1]]))
    failed, applied = 0, 0
    for _ in range(1_000):
        sides = rng.standard_normal((300, 1)) * 3 + 1.5, rng.standard_normal((300, 1)) * 3
        if (found := checks.noise_scale(direction, sides, claim, 0.1)) is not None:
            applied += 1
            failed += not found[0].passed
    assert applied > 950
    assert failed < 100 + STRICT * math.sqrt(1_000 * 0.1 * 0.9)
    assert failed > 10  # an error of 0.1 that is split in two is spent to some extent


@pytest.mark.parametrize(("entries", "moved"), [(4, 1), (16, 6)])
@pytest.mark.parametrize("known", [True, False])
def test_what_is_stated_to_be_detectable_is_detected(entries: int, moved: int, known: bool) -> None:
    """Gaussian noise with the epsilon that a result calls detectable: 60 audits, of which 54 or more should find it.

    At a power of exactly 90 %, fewer than 41 have a probability below 1e-5; a test that leaves out entries which move
    little finds about half.
    """
    rng = np.random.default_rng(12)
    delta = 1e-6
    claim = Claim(1.0, delta, profile=GaussianProfile(gaussian.mu_of(1.0, delta)))
    setting = Setting(ss.GaussianNoise(1.0), entries) if known else Setting()

    def once(mu: float) -> Any:
        first, second = rng.standard_normal((2, 2_000, entries))
        first[:, :moved] += mu / math.sqrt(moved)
        # On a grid: in floating point the low bits would tell, and rightly.
        sides = [np.rint(side * 2**20) / 2**20 for side in (first, second)]
        return judged(*sides, claim, 0.95, "linear", setting, "", "", time.perf_counter())

    least = once(gaussian.mu_of(1.0, delta)).detectable
    assert 1.5 < least < 3
    assert sum(once(gaussian.mu_of(least, delta)).broken for _ in range(60)) >= 41


def test_the_noise_scale_needs_gaussian_noise() -> None:
    rng = np.random.default_rng(8)
    claim = Claim(30.0, 1e-6, profile=GaussianProfile(0.5))
    direction = linear(np.array([[1.0], [1.1]]), np.array([[0.0], [0.1]]))
    sides = rng.laplace(0, 1, (2_000, 1)) + 5, rng.laplace(0, 1, (2_000, 1))
    assert checks.noise_scale(direction, sides, claim, 0.1) is None
    assert checks.noise_scale(direction, sides, Claim(1.0), 0.1) is None


def test_repeated_noise_is_told_from_few_values() -> None:
    rng = np.random.default_rng(1)
    few = rng.integers(0, 50, (3_000, 2)).astype(float)  # many coincidences, but entry by entry
    assert checks.fresh_noise((few, few[::-1])).passed
    bank = rng.standard_normal((500, 2))
    repeating = checks.fresh_noise((bank[rng.integers(0, 500, 3_000)], few))
    assert not repeating.passed
    assert "repeats" in repeating.detail
    assert "not tested" in checks.fresh_noise((few[:, :1], few[:, :1])).detail


# ---- Bad input.


def hang(rows: np.ndarray) -> np.ndarray:
    time.sleep(30)
    return rows


def varying(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    del rows
    return rng.random(int(rng.integers(1, 4)))


def failing(rows: np.ndarray) -> np.ndarray:
    del rows
    raise RuntimeError("out of order\nsecond line")


@pytest.mark.parametrize(
    ("release", "options", "message"),
    [
        (failing, {}, r"raised RuntimeError \(out of order\)"),
        (hang, {"timeout": 0.2}, "did not return within 0.2 seconds"),
        (lambda rows: rows @ Q, {}, "is not random: "),
        (lambda _: np.zeros(2), {}, "is not random: "),
        (lambda _: np.full(3, np.nan), {}, "NaN or an infinity"),
        (lambda _: None, {}, "Got nothing"),
        (lambda _: "scores", {}, "Got a str"),
        (lambda _: {7}, {}, "positions from 0 to 2"),
        (varying, {}, "one shape"),
        (lambda rows, repeats: np.zeros((repeats + 2, len(rows))), {}, "array of . outputs|array of .* outputs"),
        (42, {}, "a callable"),
        (scaled, {"claim": 1.0}, "a Claim"),
        (scaled, {"releases": 20}, "at least 40 on each side are needed"),
        (scaled, {"releases": 2_000, "claim": Claim(9.0)}, "2,000 releases are too few .* at least "),
        (scaled, {"confidence": 1.0}, "strictly between 0 and 1"),
        (scaled, {"statistic": "magic"}, "one of 'auto'"),
        (scaled, {"statistic": "likelihood"}, "do not say the law"),
        (scaled, {"neighbours": []}, "a Pair"),
        (scaled, {"neighbours": 3}, "a Pair"),
        (scaled, {"neighbours": None, "shape": 3}, "two whole numbers"),
        (scaled, {"seed": -1}, "at least 0"),
        (scaled, {"timeout": 0}, "positive"),
    ],
)
def test_bad_input_is_one_sentence(release: Any, options: dict[str, Any], message: str) -> None:
    given = {"claim": Claim(1.0), "neighbours": PAIR, "releases": 2_000} | options
    with pytest.raises(InvalidInput, match=message) as caught:
        audit(release, given.pop("claim"), **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros((100, 2)), np.zeros((100, 3)), "rows of 2 numbers"),
        (np.full((100, 2), np.inf), np.zeros((100, 2)), "finite"),
        (np.zeros((0, 2)), np.zeros((100, 2)), "finite numbers"),
        (np.array(["a"]), np.zeros((100, 2)), "finite numbers"),
        (np.zeros((10, 2)), np.zeros((10, 2)), "too few"),
    ],
)
def test_bad_outputs_are_refused(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        audit_outputs(first, second, Claim(1.0))


def test_a_claim_that_allows_it_may_look_constant() -> None:
    """At epsilon 40 randomised response hardly ever lies: that is no reason to refuse it."""
    claim = Claim(40.0, 1e-6, profile=GaussianProfile(1.0))
    result = audit(partial(told_bit, epsilon=40.0), claim, neighbours=PAIR, releases=1_000)
    assert result.auc[0] == 1.0


def test_too_few_releases_say_how_many_are_needed() -> None:
    with pytest.raises(InvalidInput) as caught:
        audit(scaled, Claim(3.0), neighbours=PAIR, releases=60)
    needed = int(str(caught.value).rpartition("at least ")[2].split()[0].replace(",", ""))
    assert audit(scaled, Claim(3.0), neighbours=PAIR, releases=needed).releases == needed
    with pytest.raises(InvalidInput):
        audit(scaled, Claim(3.0), neighbours=PAIR, releases=needed - 1)

    # With so many, a release without any protection is caught; with fewer, it could not be.
    def bare(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return np.stack([np.full(repeats, rows[0] @ Q), rng.random(repeats)], axis=1)

    assert audit(bare, Claim(3.0), neighbours=PAIR, releases=needed).broken


# ---- Our own releases.


def test_our_own_releases_in_the_short_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Fixed seeds; with others, one in 40,000 runs would raise a false alarm."""
    assert own.main(["--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(own.own_releases(own.QUICK_BUDGETS))
    assert all(line.endswith("no violation found") for line in lines[1:])


def test_the_audit_of_our_own_would_notice() -> None:
    """Every one of them, claimed to be far less than it is, on about as many releases as the short form takes."""
    unnoticed = []
    for one in own.own_releases((4.0,)):
        guarantee = one.release(one.pair.first).guarantee
        profile = GaussianProfile(guarantee.mu / 4) if isinstance(guarantee.profile, GaussianProfile) else None
        claim = Claim(0.5 if profile is None else profile.epsilon_at(guarantee.delta), guarantee.delta, profile=profile)
        releases = {"bulk": 10_000, "single": 1_000, "slow": 1_000}[one.pace]
        if not audit(one.release, claim, neighbours=one.pair, releases=releases, confidence=0.999, seed=1).broken:
            unnoticed.append(one.name)
    assert unnoticed == []


def test_replaced_is_what_a_reader_would_write() -> None:
    pair = replaced(np.eye(3), 2, [1, 0, 0], [0, 1, 0], "by hand")
    assert pair.first[2].tolist() == [1, 0, 0]
    assert pair.second[2].tolist() == [0, 1, 0]
