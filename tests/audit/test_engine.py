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
from scoreshield.audit import statistics
from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import audit, audit_outputs
from scoreshield.audit.neighbours import Pair, drift_pair, from_canaries, replace_record, worst_pairs
from scoreshield.audit.outputs import Source, flatten_output
from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise import LaplaceNoise
from scoreshield.privacy.profiles import GaussianProfile

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
def test_bound_of_randomised_response(statistic: str) -> None:
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


def test_small_claim_is_broken() -> None:
    """A claim that is too small is broken."""
    result = audit(partial(told_bit, epsilon=1.5), Claim(1.3), neighbours=PAIR, releases=40_000, confidence=1 - 1e-6)
    assert result.broken
    assert result.epsilon_lower > 1.3
    assert "1.3 was claimed" in result.verdict


def test_identical_collections_give_zero() -> None:
    for release in (partial(told_bit, epsilon=1.5), scaled, partial(ss.release_scores, query=Q, epsilon=5, delta=1e-5)):
        result = audit(release, Claim(0.0), neighbours=NULL, releases=4_000, confidence=0.999)
        assert result.epsilon_lower == 0
        assert not result.broken


def test_no_difference_gives_zero() -> None:
    """Outputs without any difference give a bound of zero."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        del rows
        return np.array([1.0, float(rng.integers(2))])

    result = audit(release, Claim(0.5), neighbours=PAIR, releases=400, confidence=0.999)
    assert result.epsilon_lower == 0


def test_false_alarm_rate() -> None:
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


def test_likelihood_ratio_is_constant() -> None:
    """Beyond both centres; scattered by rounding errors, a threshold would part it, and most of the bound with it."""
    x = np.random.default_rng(0).laplace(1.0, 2.0, (2_000, 1))
    ratio = statistics.fit_likelihood(x, x - 2, statistics.OutputFacts(LaplaceNoise.calibrate(1.0, 2.0), 1))
    assert ratio is not None
    top = ratio(x[x[:, 0] > 1.5])
    assert len(top) > 500
    assert len(np.unique(top)) == 1


@pytest.mark.parametrize("drifting", ["counter", "counter modulo 100", "offset", "noise"])
@pytest.mark.parametrize("watched", [False, True])
def test_release_that_changes(drifting: str, watched: bool) -> None:
    """The same collection twice: whatever depends on the number of the call must not tell its two sides apart."""
    calls = 0

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        nonlocal calls
        calls += 1
        scores = rows @ Q + rng.laplace(0, 2.0 + calls / 200 * (drifting == "noise"), len(rows))
        added = {"counter": calls, "counter modulo 100": calls % 100, "offset": calls / 200}.get(drifting, 0.0)
        return np.append(np.rint(scores * 2**20) / 2**20, added)

    progress = (lambda *_: None) if watched else None
    result = audit(release, Claim(0.0), neighbours=NULL, releases=1_000, confidence=0.999, progress=progress)
    assert result.epsilon_lower == 0


def test_a_bulk_release_takes_turns_too() -> None:
    """One number a call, which grows with every call: the collections must not take turns one after the other."""
    calls: list[bytes] = []

    def release(rows: np.ndarray, repeats: int) -> np.ndarray:
        calls.append(rows.tobytes())
        return np.random.default_rng(len(calls)).random((repeats, 1)) + len(calls)

    audit(release, Claim(5.0), neighbours=PAIR, releases=20_000, confidence=0.9)
    turns = np.array([call == PAIR.first.tobytes() for call in calls[2:]])
    assert abs(turns.sum() - (~turns).sum()) <= 1
    assert len(turns) > 500
    half = len(turns) // 2
    assert abs(turns[:half].mean() - 0.5) < 0.02  # each has had as many turns half-way
    assert 0.35 < (turns[1:] != turns[:-1]).mean() < 0.7  # and they do not just alternate


def test_a_million_releases_take_seconds() -> None:
    """Below ten seconds on one core; twice that is allowed, for a busy machine."""
    release = partial(ss.release_scores, query=Q, epsilon=1.0, delta=1e-6)
    start = time.process_time()
    audit(release, Claim.of(release(PAIR.first)), neighbours=PAIR, releases=1_000_000)
    assert time.process_time() - start < 20


def test_bulk_and_single_law() -> None:
    """Kolmogorov-Smirnov on every entry, 20 comparisons at 1e-8 each."""
    for release in (
        partial(ss.release_scores, query=Q, epsilon=2.0, mechanism="staircase"),
        partial(ss.release_index, epsilon=4.0),
        partial(ss.release_matches, query=Q, threshold=0.5, epsilon=1.0),
    ):
        assert Source(release, seed=1, timeout=None).is_bulk

        def single(rows: np.ndarray, rng: Any, inner: Callable[..., Any] = release) -> Any:
            return inner(rows, rng=rng)

        bulk = Source(release, seed=1, timeout=None).draw(PAIR.first, 3_000)
        alone = Source(single, seed=2, timeout=None)
        assert not alone.is_bulk
        one_by_one = alone.draw(PAIR.first, 1_000)
        assert bulk.shape[1] == one_by_one.shape[1]
        for column in range(bulk.shape[1]):
            assert ks_2samp(bulk[:, column], one_by_one[:, column]).pvalue > 1e-8


def test_releases_drawn_singly() -> None:
    """Releases whose records share noise are not drawn in bulk."""
    labels = ss.Identity([0, 0, 1])
    for release in (
        partial(ss.release_scores, query=np.eye(D)[:2], epsilon=1.0, delta=1e-6),
        partial(ss.release_scores, query=Q, epsilon=1.0, delta=1e-6, adjacency=labels),
        partial(ss.release_index, epsilon=4.0, components=2),
        partial(ss.release_matches, query=Q, threshold=0.5, epsilon=1.0, refine=0.5),
        partial(ss.release_top_k, query=Q, k=1, epsilon=1.0),
    ):
        assert not Source(release, seed=1, timeout=None).is_bulk


def test_same_seed() -> None:
    """The same seed gives the same result."""
    results = [audit(scaled, Claim(1.0), neighbours=PAIR, releases=2_000, seed=4).to_dict() for _ in range(2)]
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]


def test_a_result_holds_what_a_report_needs() -> None:
    calls: list[tuple[int, int, float]] = []
    result = audit(
        scaled,
        Claim(1.0),
        neighbours=PAIR,
        releases=4_000,
        progress=lambda *said: calls.append(said),
        name="mine",
    )
    assert (result.name, result.releases, result.neighbours) == ("mine", 4_000, PAIR.description)
    assert result.counts_in.sum() == result.counts_out.sum() == 2_000
    assert result.trajectory[-1] == (4_000, result.epsilon_lower)
    assert result.trajectory[0][0] > 2_000
    assert result.auc[1] < result.auc[0] < result.auc[2]
    assert calls[-1][:2] == (4_000, 4_000)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][2] > 0


def test_best_pair_is_audited() -> None:
    """Of several pairs, the one whose outputs differ most is audited."""
    result = audit(scaled, Claim(1.0), neighbours=[NULL, PAIR, NULL], releases=4_000)
    assert result.neighbours == PAIR.description


def test_worst_cases_are_tried() -> None:
    """Without neighbours the worst cases are tried."""
    query = np.array([1.0, 2.0, -1.0])
    release = partial(ss.release_scores, query=query, epsilon=2.0, mechanism="laplace")
    result = audit(release, Claim(2.0), releases=10_000, shape=(4, 9))  # the length is the query's
    assert result.epsilon_lower > 1.5
    assert "equal to the query" in result.neighbours


def test_climbs_without_query() -> None:
    """Without neighbours and query the pair is searched by climbing."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return rows @ np.array([0.6, 0.0, 0.8]) + rng.laplace(0, 0.5, (repeats, len(rows)))

    result = audit(release, Claim(1.0), releases=8_000, shape=(3, 3), confidence=1 - 1e-6)
    assert "climbing" in result.neighbours
    assert result.broken


def test_other_neighbours_must_be_given() -> None:
    """All records equal, one against its opposite, is far outside a Gram radius of 1."""
    release = partial(ss.release_gram, epsilon=1.0, delta=1e-6, projection="none", adjacency=ss.GramRadius(1.0))
    claim = Claim.of(release(PAIR.first))
    with pytest.raises(InvalidInput, match=r"moves? its Gram matrix by at most 1 .*drift_pair") as caught:
        audit(release, claim, releases=300, shape=(4, D))
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="other neighbours"):
        audit(scaled, Claim(1.0, adjacency="add or remove one record"), releases=300)
    assert not audit(release, claim, neighbours=drift_pair(4, D, 1.0), releases=600, confidence=1 - 1e-6).broken
    for words in ("replace", "Replace-one record", ss.Replacement()):
        assert audit(scaled, Claim(1.0, adjacency=words), releases=300, query=Q).releases == 300


def test_long_rows_may_be_rejected() -> None:
    """A release may reject a pair of long rows, but no other."""

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


def test_audit_outputs() -> None:
    """Outputs that were drawn before give the same result."""
    source = Source(scaled, seed=0, timeout=None)
    first, second = source.draw(PAIR.first, 4_000), source.draw(PAIR.second, 4_500)
    result = audit_outputs(first, second, Claim(0.3), confidence=1 - 1e-6)
    assert result.broken
    assert result.releases == 4_000


def test_classifier() -> None:
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
    assert flatten_output({0, 2}, 3).tolist() == [1, 0, 1]
    assert flatten_output((np.array([1.5]), {1}), 2).tolist() == [1.5, 0, 1]


def test_entries_of_large_outputs() -> None:
    """Of a large output the entries that move are used."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        out = rng.standard_normal(2_000)
        out[1_234] += 3 * float(rows[0] @ Q)
        return out

    result = audit(release, Claim(1.0), neighbours=PAIR, releases=2_000, confidence=1 - 1e-6)
    assert result.broken


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
        (scaled, {"claim": Claim(60.0)}, "no feasible number of releases is enough"),
        (scaled, {"claim": Claim(1e3)}, "no feasible number of releases is enough"),
        (lambda rows: rows @ Q, {"claim": Claim(100.0, 1e-4, profile=GaussianProfile(10.0))}, "is not random: "),
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


def test_constant_release_allowed() -> None:
    """At epsilon 40 randomised response hardly ever lies: that is no reason to refuse it."""
    claim = Claim(40.0, 1e-6, profile=GaussianProfile(1.0))
    result = audit(partial(told_bit, epsilon=40.0), claim, neighbours=PAIR, releases=1_000)
    assert result.auc[0] == 1.0


def test_too_few_releases() -> None:
    """Too few releases raise an error that says how many are needed."""
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


def test_replace_record() -> None:
    """A pair has the two records at the position, and the same rows elsewhere."""
    pair = replace_record(np.eye(3), 2, [1, 0, 0], [0, 1, 0], "by hand")
    assert pair.first[2].tolist() == [1, 0, 0]
    assert pair.second[2].tolist() == [0, 1, 0]
