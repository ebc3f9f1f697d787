"""One release, many coins: the bound counts right guesses, and nothing else tells it the coins."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

import scoreshield as ss
from scoreshield.audit import Claim, audit_one_run, bounds
from scoreshield.audit.one_run import one_run_detectable
from scoreshield.errors import InvalidInput

M, N, D = 400, 500, 6


@pytest.fixture
def rows(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((N, D))


@pytest.fixture
def canaries(query: np.ndarray) -> np.ndarray:
    """The worst case for scores: the query itself, against its opposite."""
    return np.tile(query[:D], (M, 1))


def told(query: np.ndarray, keep: float, seed: int) -> Any:
    """Randomised response on the sign of each score, told truly with probability ``keep``."""

    def release(collection: np.ndarray) -> np.ndarray:
        flips = np.random.default_rng(seed).random(len(collection)) >= keep
        return np.where(flips, -1.0, 1.0) * np.sign(collection @ query[:D])

    return release


def test_release_without_noise(rows, canaries, query) -> None:
    """A release that reveals everything is bounded by the binomial tail."""
    found = audit_one_run(told(query, 1.0, 0), rows, canaries, Claim(1.0), query=query[:D], guesses=200)
    assert found.broken
    assert found.epsilon_lower == pytest.approx(math.log(0.05 ** (1 / 200) / (1 - 0.05 ** (1 / 200))), rel=1e-9)
    assert (found.auc[0], found.releases, found.canaries) == (1.0, 1, M)
    assert "200 of 200 guesses right" in found.statistic
    assert found.counts_in.sum() + found.counts_out.sum() == M
    assert 150 < found.counts_in.sum() < 250  # fair coins: outside has a chance below 1e-6


def test_right_guesses(rows, canaries) -> None:
    """The collection itself is the output, so the coins can be read off and the count be made by hand."""
    seen: list[np.ndarray] = []

    def release(collection: np.ndarray) -> np.ndarray:
        seen.append(collection[:M] @ collection[0] > 0.5)
        return collection

    scores = np.random.default_rng(3).permutation(M).astype(float)
    found = audit_one_run(release, rows, canaries, Claim(1.0), guess=lambda *_: scores, guesses=100, seed=8)
    heads = seen[0] if found.counts_in.sum() == seen[0].sum() else ~seen[0]
    order = np.argsort(scores)
    right = heads[order[-50:]].sum() + (~heads[order[:50]]).sum()
    assert f"{right} of 100 guesses right" in found.statistic
    assert found.epsilon_lower == bounds.one_run_epsilon(100, int(right), 0.0, 0.95, M)
    assert len(seen) == 1  # one run


def test_several_guess_counts(rows, canaries, query) -> None:
    """Several numbers of guesses share the confidence."""
    release = told(query, 1.0, 0)
    alone = audit_one_run(release, rows, canaries, Claim(1.0), query=query[:D], guesses=320)
    shared = audit_one_run(release, rows, canaries, Claim(1.0), query=query[:D])
    assert alone.epsilon_lower == bounds.one_run_epsilon(320, 320, 0.0, 0.95, M)
    assert shared.epsilon_lower == bounds.one_run_epsilon(320, 320, 0.0, 1 - 0.05 / 4, M)
    assert shared.epsilon_lower < alone.epsilon_lower


def test_a_claimed_delta_lowers_the_bound(rows, canaries, query) -> None:
    release = told(query, 1.0, 0)
    found = audit_one_run(release, rows, canaries, Claim(1.0, 1e-4), query=query[:D], guesses=200)
    assert found.epsilon_lower == bounds.one_run_epsilon(200, 200, 1e-4, 0.95, M)
    assert found.epsilon_lower < bounds.one_run_epsilon(200, 200, 0.0, 0.95, M) - 0.01
    assert found.detectable == one_run_detectable(200, 1.0, 1e-4, 0.95, M)


def test_clean_scores_separate(rows, rng: np.random.Generator, query) -> None:
    """Only a score measured from half way between the two expected values has one sign for heads, one for tails."""
    canaries, others = rng.standard_normal((M, D)), rng.standard_normal((M, D))
    found = audit_one_run(
        lambda x: x @ query[:D] / np.linalg.norm(query[:D]),
        rows,
        canaries,
        Claim(1.0),
        alternatives=others,
        query=query[:D],
    )
    assert found.auc[0] == 1.0


def test_null_releases_give_zero(rows, canaries, query) -> None:
    """They ignore their input. Each bound would be above 0 with probability at most 1e-6."""
    for seed in range(8):
        for output in (np.zeros(N), np.random.default_rng(99).random(N)):
            found = audit_one_run(
                lambda _, output=output: output,
                rows,
                canaries,
                Claim(1.0),
                query=query[:D],
                confidence=1 - 1e-6,
                seed=seed,
            )
            assert found.epsilon_lower == 0
            assert not found.broken


@pytest.mark.parametrize("seed", range(5))
def test_coins_have_own_stream(rows, canaries, query, seed: int) -> None:
    """A predictable generator with the audit's own seed, which ignores its input, must not look like a leak."""

    def release(_: np.ndarray) -> np.ndarray:
        return (np.random.default_rng(seed).random(N) < 0.5).astype(float)

    for sign in (1, -1):
        found = audit_one_run(
            release, rows, sign * canaries, Claim(1.0), query=query[:D], seed=seed, confidence=1 - 1e-6
        )
        assert found.epsilon_lower == 0


def test_randomised_response(rows, canaries, query) -> None:
    """Each bound is above 2 with probability at most 1e-4; together at most one in a thousand."""
    found = [
        audit_one_run(
            told(query, expit(2.0), seed), rows, canaries, Claim(0.5), query=query[:D], confidence=1 - 1e-4, seed=seed
        )
        for seed in range(10)
    ]
    assert max(f.epsilon_lower for f in found) <= 2.0
    assert min(f.epsilon_lower for f in found) > 0.5
    assert all(f.broken for f in found)


def test_detectable() -> None:
    """The detectable epsilon follows from the binomial laws."""
    m, r, claimed, confidence = 600, 300, 1.0, 0.95
    least = one_run_detectable(r, claimed, 0.0, confidence, m)
    enough = next(v for v in range(r + 1) if bounds.one_run_epsilon(r, v, 0.0, confidence, m) > claimed)
    missing = 2 * binom.cdf(r // 2 - 1, m, 0.5)
    assert binom.sf(enough - 1, r, expit(least)) - missing == pytest.approx(0.9, abs=1e-6)
    assert one_run_detectable(r, claimed, 1e-3, confidence, m) > least
    assert one_run_detectable(r, 7.0, 0.0, confidence, m) == math.inf  # ln(300 / 3) is below 7
    assert one_run_detectable(m, claimed, 0.0, confidence, m) == math.inf  # half of the coins need not be heads


def releases(query: np.ndarray) -> dict[str, Any]:
    exact = {"epsilon": 40.0, "rng": 1}
    return {
        "scores": lambda x: ss.release_scores(x, query[:D], mechanism="staircase", **exact),
        "batch": lambda x: ss.release_scores(x, np.eye(D)[:3], delta=1e-6, **exact),
        "row": lambda x: ss.release_row(x, N - 1, epsilon=50_000.0, delta=1e-6, rng=1),
        "gram": lambda x: ss.release_gram(x, epsilon=50_000.0, delta=1e-6, projection="none", rng=1),
        "index": lambda x: ss.release_index(x, **exact),
        "reduced index": lambda x: ss.release_index(x, components=4, **exact),
    }


@pytest.mark.parametrize("kind", ["scores", "batch", "row", "gram", "index", "reduced index"])
def test_default_guesses(kind: str, rows, rng: np.random.Generator, query) -> None:
    """At a budget that hides nothing a default that looks at the wrong place, or the wrong way round, would fail."""
    canaries = rng.standard_normal((M, D))
    slots = rng.permutation(N - 1)[:M]
    asked = {"scores": query[:D], "batch": np.eye(D)[:3]}.get(kind)
    found = audit_one_run(releases(query)[kind], rows, canaries, Claim(1.0), slots=slots, query=asked)
    assert found.auc[0] > 0.85
    assert found.broken
    others = rng.standard_normal((M, D))
    again = audit_one_run(
        releases(query)[kind], rows, canaries, Claim(1.0), slots=slots, query=asked, alternatives=others
    )
    assert again.auc[0] > (0.99 if kind == "gram" else 0.7)


def test_gram_uses_known_records(rng: np.random.Generator) -> None:
    """Two known records, last in the collection, and hardly any noise: any other column would mislead."""
    rows, canaries, others = (rng.standard_normal((count, D)) for count in (62, 60, 60))
    found = audit_one_run(
        lambda x: ss.release_gram(x, epsilon=1e8, delta=1e-6, projection="none", rng=1),
        rows,
        canaries,
        Claim(1.0),
        alternatives=others,
    )
    assert found.auc[0] > 0.999


def test_gaussian_scores_pass(rows, canaries, query) -> None:
    """The true epsilon is exceeded with probability at most 1e-6."""
    claim = Claim(2.0, 1e-5)
    found = audit_one_run(
        lambda x: ss.release_scores(x, query[:D], epsilon=2.0, delta=1e-5, rng=4),
        rows,
        canaries,
        claim,
        query=query[:D],
        confidence=1 - 1e-6,
        name="scores",
    )
    assert not found.broken
    assert found.name == "scores"
    assert "one release and 400 canaries" in found.verdict


def test_slots_and_alternatives(rows, rng: np.random.Generator) -> None:
    """Canaries and alternatives take their slots, and the rest of the collection stays."""
    canaries, others, slots = rng.standard_normal((3, D)), rng.standard_normal((3, D)), [7, 2, 30]
    seen: list[np.ndarray] = []
    audit_one_run(
        lambda x: seen.append(x),
        rows,
        canaries,
        Claim(1.0),
        guess=lambda *_: [1, 2, 3],
        alternatives=others,
        slots=slots,
        seed=2,
    )
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (rows, canaries, others)]
    rest = np.setdiff1d(np.arange(N), slots)
    np.testing.assert_allclose(seen[0][rest], unit[0][rest], rtol=1e-12)
    for place, slot in enumerate(slots):
        assert min(np.abs(seen[0][slot] - side[place]).max() for side in unit[1:]) < 1e-12


def test_odd_scores_and_equal_coins(rows, canaries) -> None:
    """Odd scores and equal coins give a result."""
    for scores in (np.full(M, 2.0), np.nextafter(1.0, 2.0) - np.arange(M) % 2 * 2**-52, 1e308 * np.linspace(-1, 1, M)):
        found = audit_one_run(lambda x: x, rows, canaries, Claim(1.0), guess=lambda *_, s=scores: s)
        assert found.counts_in.sum() + found.counts_out.sum() == M
    alike = [
        audit_one_run(lambda x: x, rows, canaries[:2], Claim(1.0), guess=lambda *_: [0, 1], seed=s) for s in range(12)
    ]
    assert any(0 in (f.counts_in.sum(), f.counts_out.sum()) for f in alike)


def raises(_: np.ndarray) -> Any:
    raise RuntimeError("no room\nat all")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release": 3}, "'release'"),
        ({"release": raises}, "given release failed with RuntimeError: no room"),
        ({"guess": lambda *_: raises(np.zeros(1))}, "given guess failed"),
        ({"claim": (1.0, 0.0)}, "'claim'"),
        ({"guess": 3}, "'guess'"),
        ({"guess": lambda *_: np.zeros(3)}, "returns 40 finite scores"),
        ({"guess": lambda *_: np.full(40, np.nan)}, "returns 40 finite scores"),
        ({"guess": lambda *_: None}, "returns 40 finite scores"),
        ({"guess": lambda *_: [[1], [1, 2]]}, "40 finite scores"),
        ({"confidence": 1}, "'confidence'"),
        ({"seed": -1}, "'seed'"),
        ({"embeddings": np.full((50, D), np.nan)}, "'embeddings'"),
        ({"embeddings": np.zeros((0, D))}, "'embeddings'"),
        ({"canaries": np.ones((51, D))}, "'canaries'"),
        ({"canaries": np.ones((1, D))}, "'canaries'"),
        ({"canaries": np.ones((40, D + 1))}, "'canaries'"),
        ({"canaries": np.zeros((40, D))}, "canaries"),
        ({"alternatives": np.ones((39, D))}, "'alternatives'"),
        ({"slots": [0] * 40}, "'slots'"),
        ({"slots": np.arange(40) + 20}, "'slots'"),
        ({"slots": np.arange(39)}, "'slots'"),
        ({"guesses": 41}, "'guesses'"),
        ({"guesses": ()}, "'guesses'"),
        ({"guesses": 1}, "'guesses'"),
        ({"guess": None}, "'query'"),
        ({"guess": None, "query": np.eye(D)[:2]}, "'query'"),
        ({"guess": None, "query": np.ones(D + 1)}, "'query'"),
        ({"guess": None, "release": lambda _: "scores"}, "'guess' .* type str"),
        ({"guess": None, "release": lambda _: np.zeros((50, 2))}, "'guess' .* type ndarray"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    rng = np.random.default_rng(1)
    given: dict[str, Any] = {
        "release": lambda x: x[:, 0].copy(),
        "embeddings": rng.standard_normal((50, D)),
        "canaries": rng.standard_normal((40, D)),
        "claim": Claim(1.0),
        "guess": lambda output, _, slots: output[slots],
    } | changes
    with pytest.raises(InvalidInput, match=message) as caught:
        audit_one_run(given.pop("release"), given.pop("embeddings"), given.pop("canaries"), given.pop("claim"), **given)
    assert "\n" not in str(caught.value)


def test_no_known_record(rows, query) -> None:
    """Canaries in all slots raise an error where known records are needed."""
    with pytest.raises(InvalidInput, match="fewer than the records"):
        audit_one_run(releases(query)["gram"], rows[:20], rows[:20], Claim(1.0))
    with pytest.raises(InvalidInput, match="sits at the row"):
        audit_one_run(lambda x: ss.release_row(x, 3, epsilon=1, delta=1e-5, rng=0), rows, rows[:20], Claim(1.0))


def test_other_neighbours_need_alternatives(rows, canaries, query) -> None:
    """A record and its opposite are no neighbours within a small Gram radius."""
    release = told(query, 1.0, 0)
    claim = Claim(1.0, 1e-6, ss.GramRadius(0.5))
    with pytest.raises(InvalidInput, match=r"Gram matrix by at most 0\.5 .*give alternatives") as caught:
        audit_one_run(release, rows, canaries, claim, query=query[:D])
    assert "\n" not in str(caught.value)
    near = canaries + 1e-3 * rows[:M]
    assert audit_one_run(release, rows, canaries, claim, query=query[:D], alternatives=near).canaries == M
