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
from scoreshield.audit import engine, statistics
from scoreshield.audit.claims import Claim
from scoreshield.audit.encoding import take_apart
from scoreshield.audit.engine import audit, audit_outputs
from scoreshield.audit.neighbours import Pair, drift_pair, from_canaries, replace_record, worst_pairs
from scoreshield.audit.outputs import Source
from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise import LaplaceNoise

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


def test_bound_of_randomised_response() -> None:
    """The bound exceeds 1.5 with probability at most 1e-6, and lies within 0.15 of it at this number."""
    result = audit(partial(told_bit, epsilon=1.5), Claim(1.5), neighbours=PAIR, releases=40_000, confidence=1 - 1e-6)
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
    ratio = statistics.fit_likelihood(x, x - 2, LaplaceNoise.calibrate(1.0, 2.0), 1)
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
    turns = np.array([call == PAIR.first.tobytes() for call in calls[30:]])
    assert len(turns) > 100
    assert abs(turns.mean() - 0.5) < 0.1
    assert 0.3 < (turns[1:] != turns[:-1]).mean() < 0.75  # they do not just alternate


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
        one_by_one = np.stack(alone.draw(PAIR.first, 1_000))
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
    said: list[tuple[float, float]] = []
    result = audit(
        scaled,
        Claim(1.0),
        neighbours=PAIR,
        releases=4_000,
        progress=lambda *state: said.append(state),
        name="mine",
    )
    assert (result.name, result.neighbours, result.pairs) == ("mine", PAIR.description, 1)
    assert 7_900 <= result.calls <= 9_000  # a few more calls measured the pace
    assert abs(result.releases - 4_000) < 100
    assert result.counts_in.sum() + result.counts_out.sum() > 1_000
    assert result.trajectory[-1][1] == result.epsilon_lower
    assert result.auc[1] < result.auc[0] < result.auc[2]
    assert said[-1][0] == 1.0
    assert [share for share, _ in said] == sorted(share for share, _ in said)
    assert said[-1][1] > 0


def test_best_pair_is_audited() -> None:
    """Of several pairs, the one whose outputs differ most gets most of the outputs."""
    result = audit(scaled, Claim(1.0), neighbours=[NULL, PAIR, NULL], releases=4_000)
    assert result.neighbours == PAIR.description


def test_worst_cases_are_tried() -> None:
    """Without neighbours the worst cases are tried."""
    query = np.array([1.0, 2.0, -1.0])
    release = partial(ss.release_scores, query=query, epsilon=2.0, mechanism="laplace")
    result = audit(release, Claim(2.0), releases=10_000, shape=(4, 9))  # the length is the query's
    assert result.epsilon_lower > 1.5
    assert result.pairs > 100


def test_query_is_searched() -> None:
    """Without neighbours and query, the direction that moves the outputs is found by regression."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return np.round(rows @ np.array([0.6, 0.0, 0.8]) + rng.laplace(0, 1.4, (repeats, len(rows))), 3)

    # The first axis alone shows 0.6 of the move, an epsilon of 0.86.
    result = audit(release, Claim(1.1), releases=40_000, shape=(3, 3), confidence=1 - 1e-6)
    assert result.broken, str(result)


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
        assert not audit(scaled, Claim(1.0, adjacency=words), releases=300, query=Q).broken


def test_long_rows_may_be_rejected() -> None:
    """A release may reject rows that are no unit vectors, and a pair that it rejects cannot be audited."""

    def strict(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if np.abs(np.linalg.norm(rows, axis=1) - 1).max() > 0.1:
            raise ValueError("rows must be unit vectors")
        return np.round(rows @ Q + rng.laplace(0, 2, len(rows)), 3)

    result = audit(strict, Claim(1.0), query=Q, releases=1_000)
    assert not result.broken
    assert not result.broken_by_rows
    assert next(c for c in result.checks if c.name == "rows of other lengths").detail.startswith("the release rejects")
    with pytest.raises(InvalidInput, match="ValueError"):
        audit(strict, Claim(1.0), neighbours=worst_pairs(3, D, "scores", Q)[2], releases=1_000)


def unclamped(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
    return np.rint((rows @ Q + rng.laplace(0, 2.0, (repeats, len(rows)))) * 2**20) / 2**20


def test_rows_of_other_lengths_are_a_finding_of_their_own() -> None:
    result = audit(unclamped, Claim(1.0), query=Q, releases=20_000, confidence=1 - 1e-6)
    assert result.broken_by_rows
    assert not result.broken
    assert result.verdict.startswith("No violation found for unit rows")
    assert "Normalise or clamp rows" in result.verdict
    result = audit(unclamped, Claim(1.0), query=Q, releases=4_000, rows="unit")
    assert not result.broken_by_rows
    assert all(check.name != "rows of other lengths" for check in result.checks)
    # A pair that is given is covered by the claim, whatever its rows.
    long = worst_pairs(3, D, "scores", Q)[2]
    assert audit(unclamped, Claim(1.0), neighbours=long, releases=20_000, confidence=1 - 1e-6).broken


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
    # Coins choose the sides until one has no more outputs; all of them sharpen the bound.
    assert 3_800 < result.releases <= 4_000
    assert 7_600 < result.calls <= 8_000


def test_classifier() -> None:
    """Two fair bits whose exclusive-or is the secret, told truly nine times of ten: epsilon is ln 9 = 2.197."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        mask = rng.integers(0, 2, repeats)
        told = (rows[0] @ Q > 0) ^ (rng.random(repeats) < 0.1)
        return np.stack([mask, mask ^ told, rng.integers(0, 1000, repeats)], axis=1)

    found = audit(release, Claim(1.5), neighbours=PAIR, releases=8_000, confidence=1 - 1e-6)
    assert found.statistic in ("classifier", "summaries")
    assert found.broken
    assert found.epsilon_lower <= math.log(9)


def test_sets_and_tuples_are_read() -> None:
    def release(rows: np.ndarray, rng: np.random.Generator) -> Any:
        kept = {int(i) for i in np.flatnonzero((rows @ Q > 0.5) ^ (rng.random(len(rows)) < 0.1))}
        return kept, rng.random(2)

    result = audit(release, Claim(1.0), neighbours=PAIR, releases=2_000, confidence=1 - 1e-6)
    assert result.broken
    assert list(take_apart({0, 2}, 3).places) == ["0", "2"]


# ---- Outputs of any kind.


def leak_by_none(rows: np.ndarray, rng: np.random.Generator) -> Any:
    return None if rows[0] @ Q > 0 and rng.random() < 0.3 else "ok"


def leak_by_error(rows: np.ndarray, rng: np.random.Generator) -> Any:
    if rows[0] @ Q > 0 and rng.random() < 0.3:
        raise KeyError("no record")
    return 1.0


def leak_by_length(rows: np.ndarray, rng: np.random.Generator) -> Any:
    return [float(rng.integers(9))] * int((rows @ Q > 0.5).sum())


def leak_by_order(rows: np.ndarray, rng: np.random.Generator) -> Any:
    order = np.argsort(-(rows @ Q), kind="stable")
    return [(int(i), round(float(rng.laplace(0, 9)), 2)) for i in order]


def leak_by_key(rows: np.ndarray, rng: np.random.Generator) -> Any:
    return {f"doc{i}": round(float(rng.laplace(0, 9)), 2) for i in np.flatnonzero(rows @ Q > 0.5)}


def leak_by_text(rows: np.ndarray, rng: np.random.Generator) -> Any:
    return f"best score {float((rows @ Q).max()):.2f}, noise {rng.random():.3f}"


@pytest.mark.parametrize(
    "leak", [leak_by_none, leak_by_error, leak_by_length, leak_by_order, leak_by_key, leak_by_text]
)
def test_leaks_in_outputs_of_any_kind(leak: Callable[..., Any]) -> None:
    """Each shows the first record; asked about the second one, or about equal collections, it passes."""
    found = audit(leak, Claim(1.0), neighbours=PAIR, releases=1_000, confidence=1 - 1e-6)
    assert found.broken, str(found)
    assert not audit(leak, Claim(1.0), neighbours=NULL, releases=1_000, confidence=1 - 1e-6).broken


def test_outputs_of_varying_length_are_no_leak_by_themselves() -> None:
    result = audit(varying, Claim(0.5), neighbours=PAIR, releases=1_000, confidence=1 - 1e-6)
    assert not result.broken


def test_noise_that_repeats_between_calls() -> None:
    """The noise of one second, say, is used for every call in it; a public collection takes it away."""
    calls = 0

    def release(rows: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        rng = np.random.default_rng(calls // 40)  # seeds differ from any output that came before
        return np.round(np.clip(rows @ Q, -1, 1) + rng.laplace(0, 2.0, len(rows)), 6)

    assert audit(release, Claim(1.0), query=Q, releases=4_000).broken


def test_noise_that_two_queries_share() -> None:
    """Noise from the collection alone: a single answer is never the same for two queries, but their noise is."""
    state = {"rows": b"", "noise": np.zeros(1)}
    rng = np.random.default_rng(0)

    def release(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
        if state["rows"] != rows.tobytes() or rng.random() < 0.5:
            state.update(rows=rows.tobytes(), noise=rng.laplace(0, 2.0, len(rows)))
        return np.round(np.clip(rows @ query, -1, 1) + state["noise"], 6)

    assert audit(partial(release, query=Q), Claim(1.0), releases=8_000).broken


def test_time_limit() -> None:
    """An audit without a number of releases takes about its time, and stops early once the claim is broken."""
    start = time.perf_counter()
    assert not audit(scaled, Claim(1.0), query=Q, minutes=0.02).broken
    assert time.perf_counter() - start < 15
    begin = time.perf_counter()
    assert audit(partial(scaled, b=0.5), Claim(1.0), query=Q, minutes=5).broken
    assert time.perf_counter() - begin < 60


def test_large_claims_get_no_verdict_by_time() -> None:
    """With a time limit, a claim that nothing can contradict is no error, and the verdict says so."""
    result = audit(scaled, Claim(60.0), query=Q, minutes=0.02)
    assert not result.broken
    assert "even if everything leaks" in result.verdict
    assert all(check.passed is not True or check.name == "rows of other lengths" for check in result.checks)


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
        (lambda rows, repeats: np.zeros((repeats + 2, len(rows))), {}, "array of . outputs|array of .* outputs"),
        (42, {}, "a callable"),
        (scaled, {"claim": 1.0}, "a Claim"),
        (scaled, {"releases": 20}, "at least 54 on each side are needed"),
        (scaled, {"releases": 2_000, "claim": Claim(9.0)}, "2,000 releases are too few .* at least "),
        (scaled, {"claim": Claim(60.0)}, "no feasible number of releases is enough"),
        (scaled, {"claim": Claim(1e3)}, "no feasible number of releases is enough"),
        (scaled, {"confidence": 1.0}, "strictly between 0 and 1"),
        (scaled, {"rows": "long"}, "one of 'any'"),
        (scaled, {"minutes": 0}, "positive"),
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
    """At epsilon 40 randomised response hardly ever lies: that is no reason to reject it."""
    claim = Claim(40.0, 1e-6)
    result = audit(partial(told_bit, epsilon=40.0), claim, neighbours=PAIR, minutes=0.02)
    assert not result.broken


@pytest.mark.parametrize("epsilon", [1.0, 12.0, 100.0])
def test_release_without_randomness_is_broken(epsilon: float) -> None:
    """Whatever is claimed; a release that ignores the collection may be constant."""
    result = audit(lambda rows: rows @ Q, Claim(epsilon), query=Q, minutes=0.05)
    assert result.broken
    if epsilon > 20:
        assert "is not random" in result.verdict
    assert not audit(lambda _: np.zeros(2), Claim(epsilon), query=Q, minutes=0.02).broken


def test_too_few_releases() -> None:
    """Too few releases raise an error that says how many are needed."""
    with pytest.raises(InvalidInput) as caught:
        audit(scaled, Claim(3.0), neighbours=PAIR, releases=60)
    needed = int(str(caught.value).rpartition("at least ")[2].split()[0].replace(",", ""))
    assert not audit(scaled, Claim(3.0), neighbours=PAIR, releases=needed).broken
    with pytest.raises(InvalidInput):
        audit(scaled, Claim(3.0), neighbours=PAIR, releases=needed - 1)

    # With so many, a release without any protection is caught.
    def bare(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return np.stack([np.full(repeats, rows[0] @ Q), rng.random(repeats)], axis=1)

    assert audit(bare, Claim(3.0), neighbours=PAIR, releases=needed).broken


def test_replace_record() -> None:
    """A pair has the two records at the position, and the same rows elsewhere."""
    pair = replace_record(np.eye(3), 2, [1, 0, 0], [0, 1, 0], "by hand")
    assert pair.first[2].tolist() == [1, 0, 0]
    assert pair.second[2].tolist() == [0, 1, 0]


# ---- Outputs in bulk, and releases with a state.


def draw_one_coin_per_call(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
    """All outputs of a call are one coin, which has nothing to do with the collection."""
    del rows
    return np.full((repeats, 1), float(rng.integers(2)))


def count_broken_coins() -> int:
    results = [
        audit(draw_one_coin_per_call, Claim(0.1), neighbours=PAIR, releases=2_000, seed=seed, confidence=1 - 1e-7)
        for seed in range(12)
    ]
    return sum(result.broken for result in results)


def test_bulk_outputs_with_a_common_part() -> None:
    """Outputs of one call that depend on each other accuse no one. At most 12 in 10^7 runs fail by chance."""
    assert count_broken_coins() == 0


def test_bulk_outputs_without_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The near miss: without one output per call in the end, the coins break the claim."""
    monkeypatch.setattr(Source, "draw_singly", lambda _: False)
    assert count_broken_coins() > 0


def test_bulk_break_is_confirmed() -> None:
    """A release in bulk with too little noise is still broken, on unit rows and on others."""
    broken = audit(partial(scaled, b=1.0), Claim(1.0), query=Q, shape=(3, D), releases=20_000, confidence=1 - 1e-6)
    assert broken.broken
    assert broken.epsilon_lower > 1
    only_rows = audit(scaled, Claim(1.0), query=Q, shape=(3, D), releases=20_000, confidence=1 - 1e-6)
    assert not only_rows.broken
    assert only_rows.broken_by_rows


def test_release_that_changes_its_argument() -> None:
    """Each call gets a collection of its own, so that one which is normalised in place stays as it was."""
    pair = worst_pairs(3, D, "scores", Q)[0]
    before = pair.first.copy(), pair.second.copy()

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        rows *= 0.5
        return np.rint((rows @ Q + rng.laplace(0, 0.5, len(rows))) * 2**20) / 2**20

    result = audit(release, Claim(1.5), neighbours=pair, releases=4_000, confidence=1 - 1e-6)
    assert result.broken  # the true epsilon is 2
    assert np.array_equal(pair.first, before[0])
    assert np.array_equal(pair.second, before[1])


@pytest.mark.parametrize("is_broken", [True, False])
def test_answer_about_the_previous_call(is_broken: bool) -> None:
    """A release that remembers the last collection, and shows it in its next answer. The near miss remembers noise."""
    remembered = [0.0]

    def release(rows: np.ndarray, query: np.ndarray, rng: np.random.Generator) -> list[float]:
        noisy = np.rint((np.clip(rows @ query, -1, 1) + rng.laplace(0, 2, len(rows))) * 2**20) / 2**20
        before = remembered[0]
        remembered[0] = float(np.round(rows[0] @ query)) if is_broken else float(noisy[0])
        return [*noisy, before]

    result = audit(release, Claim(1.0), query=Q, shape=(3, D), releases=8_000, confidence=1 - 1e-6, rows="unit")
    assert result.broken is is_broken, str(result)
    if is_broken:
        assert "several calls" in result.verdict


@pytest.mark.parametrize("is_broken", [True, False])
def test_cache_of_the_last_collection(is_broken: bool) -> None:
    """A release that answers the same collection twice with the same noise. The near miss draws again."""
    last: list[Any] = [b"", None]

    def release(rows: np.ndarray, query: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if last[0] != rows.tobytes() or not is_broken:
            noisy = np.rint((np.clip(rows @ query, -1, 1) + rng.laplace(0, 2, len(rows))) * 2**20) / 2**20
            last[:] = rows.tobytes(), noisy
        else:
            last[0] = b""  # once
        return np.asarray(last[1])

    result = audit(release, Claim(1.0), query=Q, shape=(3, D), releases=4_000, confidence=1 - 1e-6, rows="unit")
    assert result.broken is is_broken, str(result)


def test_random_errors_do_not_hide_long_rows() -> None:
    """A release that fails now and then, and does not clamp its rows, is broken for long rows."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() < 0.1:
            raise RuntimeError("try again")
        return np.rint((rows @ Q + rng.laplace(0, 2, len(rows))) * 2**20) / 2**20

    result = audit(release, Claim(1.0), query=Q, shape=(3, D), releases=20_000, confidence=1 - 1e-6)
    assert not result.broken
    assert result.broken_by_rows


@pytest.mark.parametrize("kind", ["scores", "mean"])
def test_query_of_many_dimensions_is_searched(kind: str) -> None:
    """In 64 dimensions, an unknown query is found in all scores and in their mean."""
    query = np.random.default_rng(5).standard_normal(64)
    query /= np.linalg.norm(query)

    def release(rows: np.ndarray, rng: np.random.Generator) -> Any:
        scores = rows @ query
        noisy = scores.mean() + rng.laplace(0, 0.05) if kind == "mean" else scores + rng.laplace(0, 0.5, len(rows))
        return np.round(noisy, 3)

    result = audit(release, Claim(1.0), shape=(8, 64), releases=60_000, confidence=1 - 1e-6)
    assert result.broken, str(result)


def test_all_calls_are_counted() -> None:
    calls = [0]

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        calls[0] += 1
        return np.rint((np.clip(rows @ Q, -1, 1) + rng.laplace(0, 2, len(rows))) * 2**20) / 2**20

    for query in (Q, None):
        calls[0] = 0
        result = audit(release, Claim(1.0), query=query, shape=(3, D), releases=1_000)
        assert result.calls == calls[0]


def test_calls_that_become_slow_end_near_the_time_limit() -> None:
    """The number of calls is chosen by the time of the first ones, so the time is looked at within a round too."""
    start = time.perf_counter()

    def release(rows: np.ndarray, rng: np.random.Generator) -> float:
        if time.perf_counter() - start > 4:
            time.sleep(0.01)
        return float(np.rint((rows[0] @ Q + rng.laplace(0, 2.0)) * 2**20) / 2**20)

    assert not audit(release, Claim(1.0, 0.0), query=Q, minutes=0.1).broken
    assert time.perf_counter() - start < 15  # a round of all calls may take minutes


@pytest.mark.parametrize("given", [{"query": Q}, {"neighbours": replace_record(np.eye(D), 0, Q, -Q, "opposite")}])
def test_time_that_the_choice_of_pairs_used_up(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A little time is left for the first outputs. Without it the error says what to change."""

    def release(rows: np.ndarray, rng: np.random.Generator) -> float:
        return float(np.rint((rows[0] @ Q + rng.laplace(0, 2.0)) * 2**20) / 2**20)

    result = audit(release, Claim(1.0, 0.0), minutes=1e-9, **given)
    assert result.calls > 0
    assert not result.broken
    monkeypatch.setattr(engine, "_LEAST_SECONDS", -1.0)
    with pytest.raises(InvalidInput, match=r"The time was up before the release .* give more minutes\."):
        audit(release, Claim(1.0, 0.0), minutes=1e-9, **given)
