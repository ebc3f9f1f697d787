"""Broken mechanisms, each of which the audit must catch at its stated cost, and which must pass once they are fixed.

Every audit here is at confidence 1 - 1e-7: a fixed mechanism fails by chance less than once in a million times, and
the seeds are fixed. "Cost" is releases on each side and about how long they take on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import audit, audit_outputs
from scoreshield.audit.neighbours import Pair, replace_record, worst_pairs
from scoreshield.audit.result import AuditResult
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profiles import GaussianProfile

CONFIDENCE = 1 - 1e-7
D = 4
Q = np.eye(D)[0]
SCORES, ZERO, LONG = worst_pairs(6, D, "scores", Q)

Mechanism = Callable[..., np.ndarray]


def run(release: Mechanism, claim: Claim, pair: Pair, releases: int, **options: object) -> AuditResult:
    return audit(release, claim, neighbours=pair, releases=releases, confidence=CONFIDENCE, seed=7, **options)


def audit_both(
    broken: Mechanism, fixed: Mechanism, claim: Claim, pair: Pair, releases: int, **options: object
) -> tuple[AuditResult, AuditResult]:
    """Audit a broken mechanism and its fixed form."""
    return run(broken, claim, pair, releases, **options), run(fixed, claim, pair, releases, **options)


def is_caught(result: AuditResult, check: str | None = None) -> bool:
    """Whether the claim is broken, and by the named check where one is named."""
    return result.broken and (check is None or any(c.name == check and not c.passed for c in result.checks))


def is_clean(result: AuditResult) -> bool:
    """Whether everything passed, which is no proof."""
    return not result.broken and "evidence, not proof" in result.verdict


def clean(rows: np.ndarray, query: np.ndarray = Q) -> np.ndarray:
    """Clamped cosines, as a careful program computes them."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.clip(unit @ query, -1.0, 1.0)


def on_grid(values: np.ndarray) -> np.ndarray:
    """Rounded to a public grid, as a careful program does; without it the low bits would break every mechanism here."""
    return np.rint(values * 2.0**20) / 2.0**20


def gaussian_claim(epsilon: float, delta: float) -> Claim:
    return Claim(epsilon, delta, profile=GaussianProfile(gaussian.find_mu(epsilon, delta)))


def test_sigma_ten_per_cent_low() -> None:
    """Cost: 500,000 releases in bulk, and as many calls that confirm what they show; half a minute."""
    pair = worst_pairs(2, D, "scores", Q)[0]
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float) -> np.ndarray:
        return on_grid(clean(rows) + share * sigma * rng.standard_normal((repeats, len(rows))))

    # The scale may be checked where outputs are nothing but clean scores and noise.
    found, passed = audit_both(
        partial(draw, share=0.9), partial(draw, share=1.0), gaussian_claim(1.0, 1e-6), pair, 500_000, plain=True
    )
    assert is_caught(found, "noise scale"), str(found)
    # The outputs alone, without assuming Gaussian noise, catch it too.
    assert is_caught(found, "amount of noise"), str(found)
    assert is_clean(passed), str(passed)
    assert "the claimed curve" in found.verdict
    assert found.statistic in ("linear", "table", "summaries")


@pytest.mark.parametrize(("epsilon", "true"), [(20.0, 25.0), (100.0, 334.0)])
def test_the_paper_s_calibration(epsilon: float, true: float) -> None:
    """Cost: 4,000 releases, below a second. The guarantee of our own reproduction says the same."""
    delta = 1e-4
    options = {"query": Q, "delta": delta, "epsilon": epsilon}
    broken = partial(ss.release_scores, calibration="conservative", unsafe_reproduce_paper=True, **options)
    found, passed = audit_both(
        broken, partial(ss.release_scores, **options), gaussian_claim(epsilon, delta), SCORES, 4_000
    )
    assert is_caught(found, "noise scale"), str(found)
    assert is_clean(passed), str(passed)
    assert broken(SCORES.first).guarantee.epsilon > true
    assert "epsilon of at least" in next(c.detail for c in found.checks if c.name == "noise scale")


def test_noise_only_on_the_true_top_k() -> None:
    """Cost: 2,000 releases, below a second."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, *, late: bool) -> np.ndarray:
        scores, noise = clean(rows), on_grid(sigma * rng.standard_normal(len(rows)))
        order = np.argsort(-(scores + noise) if late else -scores, kind="stable")
        out = np.zeros(len(rows))
        out[order[:2]] = (scores + noise)[order[:2]]
        return out

    found, passed = audit_both(
        partial(draw, late=False), partial(draw, late=True), gaussian_claim(1.0, 1e-6), SCORES, 2_000
    )
    assert is_caught(found, "amount of noise"), str(found)
    assert is_clean(passed), str(passed)


def test_no_clamping() -> None:
    """Rows that nobody normalised score 3 and -3. Cost: 20,000 releases, below a second."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, clamp: bool) -> np.ndarray:
        scores = rows @ Q
        scores = np.clip(scores, -1.0, 1.0) if clamp else scores
        return on_grid(scores + sigma * rng.standard_normal((repeats, len(rows))))

    broken, fixed = partial(draw, clamp=False), partial(draw, clamp=True)
    claim = gaussian_claim(1.0, 1e-6)
    found, passed = audit_both(broken, fixed, claim, LONG, 20_000, plain=True)
    assert is_caught(found, "noise scale"), str(found)
    assert is_clean(passed), str(passed)
    found, passed = audit_both(broken, fixed, claim, LONG, 20_000)
    assert is_caught(found, "amount of noise"), str(found)
    assert is_clean(passed), str(passed)
    # Unit rows do not show it.
    assert not run(broken, claim, SCORES, 20_000).broken


def test_noise_reused_between_two_queries() -> None:
    """Cost: 2,000 releases, below a second."""
    other = np.eye(D)[1]
    sigma = ss.calibrate(1.0, 1e-6, 2.0 * math.sqrt(2))
    pair = replace_record(np.tile(np.eye(D)[2], (4, 1)), 0, Q, other, "a record equal to one query against the other")

    def draw(rows: np.ndarray, rng: np.random.Generator, *, shared: bool) -> np.ndarray:
        noise = sigma * rng.standard_normal((1 if shared else 2, len(rows)))
        return on_grid(np.stack([clean(rows, Q), clean(rows, other)]) + noise)

    found, passed = audit_both(
        partial(draw, shared=True), partial(draw, shared=False), gaussian_claim(1.0, 1e-6), pair, 2_000
    )
    assert is_caught(found, "noise in every direction"), str(found)
    assert is_clean(passed), str(passed)


def test_a_float_sampler() -> None:
    """Cost: 40,000 releases, below a second. A score of 0 keeps bits that a score of 1 rounds away."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, step: float) -> np.ndarray:
        noisy = clean(rows) + sigma * rng.standard_normal((repeats, len(rows)))
        return np.rint(noisy / step) * step if step else noisy

    claim = gaussian_claim(1.0, 1e-6)
    found, passed = audit_both(partial(draw, step=0.0), partial(draw, step=2.0**-23), claim, ZERO, 40_000)
    assert is_caught(found, "low bits"), str(found)
    assert is_clean(passed), str(passed)
    # Ours, from the secure sampler.
    ours = partial(ss.release_scores, query=Q, epsilon=1.0, delta=1e-6)
    assert not audit(ours, claim, neighbours=ZERO, releases=40_000, confidence=CONFIDENCE, seed=None).broken


def test_a_predictable_generator() -> None:
    """A fresh generator a call, from one of 4,096 seeds. Cost: 2,000 releases, below a second."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, *, seeds: int) -> np.ndarray:
        return on_grid(clean(rows) + sigma * np.random.default_rng(rng.integers(seeds)).standard_normal(len(rows)))

    found, passed = audit_both(
        partial(draw, seeds=2**12), partial(draw, seeds=2**62), gaussian_claim(1.0, 1e-6), SCORES, 2_000
    )
    assert is_caught(found, "fresh noise"), str(found)
    assert is_clean(passed), str(passed)


def test_clean_scores_in_tie_breaking() -> None:
    """Clipped scores tie at 1, and the clean ones decide. Cost: 2,000 releases, below a second."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, *, by_chance: bool) -> np.ndarray:
        scores = clean(rows)
        noisy = np.clip(scores + sigma * rng.standard_normal(len(rows)), -1, 1)
        return np.lexsort((rng.random(len(rows)) if by_chance else -scores, -noisy))

    found, passed = audit_both(
        partial(draw, by_chance=False), partial(draw, by_chance=True), Claim(1.0, 1e-6), SCORES, 2_000
    )
    assert is_caught(found), str(found)
    assert is_clean(passed), str(passed)


def test_a_data_dependent_range() -> None:
    """The noise is calibrated to the range of the private scores. Cost: 2,000 releases, below a second."""

    def draw(rows: np.ndarray, rng: np.random.Generator, *, public: bool) -> np.ndarray:
        scores = clean(rows)
        width = 2.0 if public else max(float(np.ptp(scores)), 1e-3)
        return on_grid(scores + rng.laplace(0.0, width, len(rows)))

    found, passed = audit_both(partial(draw, public=False), partial(draw, public=True), Claim(1.0), ZERO, 2_000)
    assert is_caught(found), str(found)
    assert is_clean(passed), str(passed)


def test_stopping_rule_reads_clean_matrix() -> None:
    """Steps towards a valid matrix end once it is near the clean one. Cost: 2,000 releases, below a second."""
    n, epsilon, delta = 3, 1.0, 1e-6
    sigma = ss.calibrate(epsilon, delta, ss.Replacement().sensitivity("gram", n).l2)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, blind: bool) -> np.ndarray:
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        noise = np.triu(rng.standard_normal((repeats, n, n)), 1) * sigma / math.sqrt(2)
        current = on_grid(unit @ unit.T + noise + noise.transpose(0, 2, 1))
        for _ in range(20):
            going = np.full(repeats, True) if blind else np.abs(current - unit @ unit.T).max(axis=(1, 2)) > 1.5
            values, vectors = np.linalg.eigh(current[going])
            positive = (vectors * np.maximum(values, 0)[:, None, :]) @ vectors.transpose(0, 2, 1)
            box = np.clip(current[going], -1, 1)
            box[:, np.arange(n), np.arange(n)] = 1.0
            current[going] = (positive + box) / 2
        return on_grid(current)

    broken, fixed = partial(draw, blind=False), partial(draw, blind=True)
    pair = worst_pairs(n, D, "gram")[0]
    found, passed = audit_both(broken, fixed, gaussian_claim(epsilon, delta), pair, 2_000)
    assert is_caught(found, "amount of noise"), str(found)
    assert is_clean(passed), str(passed)


def test_a_retry_that_draws_twice() -> None:
    """Of two draws the one nearer to the clean score is sent. Cost: 100,000 releases, below a second."""
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, tries: int) -> np.ndarray:
        noise = sigma * rng.standard_normal((tries, repeats, len(rows)))
        nearest = np.abs(noise).argmin(axis=0)
        return on_grid(clean(rows) + np.take_along_axis(noise, nearest[None], 0)[0])

    found, passed = audit_both(
        partial(draw, tries=2), partial(draw, tries=1), gaussian_claim(1.0, 1e-6), SCORES, 100_000
    )
    assert is_caught(found, "amount of noise"), str(found)
    assert is_clean(passed), str(passed)


def test_no_noise_on_the_last_record() -> None:
    """Where the audit chooses the neighbours, with a query and without. Cost: 1,000 releases, below a second."""

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, last: float) -> np.ndarray:
        return on_grid(clean(rows) + rng.laplace(0.0, [2.0] * (len(rows) - 1) + [last], (repeats, len(rows))))

    for query in (Q, None):
        options = {"neighbours": None, "query": query, "shape": (12, D), "releases": 1_000, "confidence": CONFIDENCE}
        found = audit(partial(draw, last=0.0), Claim(1.0), **options)
        assert found.broken, str(found)
        assert "record 11 of 12" in found.neighbours
        assert not audit(partial(draw, last=2.0), Claim(1.0), **options).broken


@pytest.mark.parametrize("shared", [(0, 1), (1, 2), (0, 5)])
def test_noise_shared_in_batch(shared: tuple[int, int]) -> None:
    """Whichever two of six. Cost: 600 releases, below a second."""
    queries = np.eye(8)[:6]
    sigma = ss.calibrate(1.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, sharing: bool) -> np.ndarray:
        noise = sigma * rng.standard_normal((repeats, len(queries), len(rows)))
        if sharing:
            noise[:, shared[1]] = noise[:, shared[0]]
        return on_grid(np.stack([clean(rows, q) for q in queries]) + noise)

    options = {"query": queries, "releases": 600, "confidence": CONFIDENCE, "shape": (4, 8)}
    found = audit(partial(draw, sharing=True), gaussian_claim(1.0, 1e-6), **options)
    assert not next(c for c in found.checks if c.name == "noise in every direction").passed, str(found)
    assert not audit(partial(draw, sharing=False), gaussian_claim(1.0, 1e-6), **options).broken


def test_shared_noise_among_many_entries() -> None:
    """60 records and three queries make 180 entries, and 500 releases teach. Cost: 2,000 releases, a second."""
    queries = np.eye(64)[:3]
    sigma = ss.calibrate(1.0, 1e-6, 2.0 * math.sqrt(3))

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, sharing: bool) -> np.ndarray:
        noise = sigma * rng.standard_normal((repeats, len(queries), len(rows)))
        if sharing:
            noise[:, 2] = noise[:, 0]
        return on_grid(np.stack([clean(rows, q) for q in queries]) + noise)

    pair = worst_pairs(60, 64, "scores", queries[0])[0]
    claim = gaussian_claim(1.0, 1e-6)
    found, passed = audit_both(partial(draw, sharing=True), partial(draw, sharing=False), claim, pair, 2_000)
    assert is_caught(found, "noise in every direction"), str(found)
    assert is_clean(passed), str(passed)
    assert found.statistic == "noiseless"


@pytest.mark.parametrize("epsilon", [10.0, 20.0])
def test_shared_noise_at_large_epsilon(epsilon: float) -> None:
    """No bound on epsilon can reach these claims; the claimed curve can. Cost: 40,000 releases, below a second."""
    other, sigma = np.eye(D)[1], ss.calibrate(epsilon, 1e-6, 2.0 * math.sqrt(2))
    pair = replace_record(np.tile(np.eye(D)[2], (4, 1)), 0, Q, other, "a record equal to one query against the other")

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, shared: bool) -> np.ndarray:
        noise = sigma * rng.standard_normal((repeats, 1 if shared else 2, len(rows)))
        return on_grid(np.stack([clean(rows, Q), clean(rows, other)]) + noise)

    claim = gaussian_claim(epsilon, 1e-6)
    check = "noise in every direction"
    found, passed = audit_both(partial(draw, shared=True), partial(draw, shared=False), claim, pair, 4_000)
    assert is_caught(found, check), str(found)
    assert is_clean(passed), str(passed)
    assert found.epsilon_lower < epsilon


def test_a_float_sampler_at_epsilon_ten() -> None:
    """Cost: 40,000 releases, below a second."""
    sigma = ss.calibrate(10.0, 1e-6, 2.0)

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, step: float) -> np.ndarray:
        noisy = clean(rows) + sigma * rng.standard_normal((repeats, len(rows)))
        return np.rint(noisy / step) * step if step else noisy

    claim = gaussian_claim(10.0, 1e-6)
    found, passed = audit_both(partial(draw, step=0.0), partial(draw, step=2.0**-23), claim, ZERO, 40_000)
    assert is_caught(found, "low bits"), str(found)
    assert is_clean(passed), str(passed)


@pytest.mark.parametrize("epsilon", [20.0, 100.0])
def test_no_noise_at_large_epsilon(epsilon: float) -> None:
    """Cost: 200 releases. A bit that is made of Gaussian noise may well look constant, and passes."""
    found = audit(lambda rows: clean(rows), gaussian_claim(epsilon, 1e-4), query=Q, releases=200)
    assert is_caught(found, "fresh noise"), str(found)
    assert "is not random" in found.verdict
    outputs = [np.tile(row, (200, 1)) for row in ([0.25, 0.5], [0.75, 0.5])]
    found = audit_outputs(*outputs, gaussian_claim(epsilon, 1e-4))
    assert is_caught(found, "fresh noise"), str(found)
    assert "is not random" in found.verdict
    sigma = ss.calibrate(epsilon, 1e-4, 2.0)

    def bits(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return clean(rows) + sigma * rng.standard_normal((repeats, len(rows))) > 0.5

    assert not audit(bits, gaussian_claim(epsilon, 1e-4), query=Q, releases=200, shape=(1, D)).broken


def test_generator_with_few_states() -> None:
    """Cost: 1,000,000 releases, some seconds: half a million outputs that came before meet half a million new ones."""

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, bits: int) -> np.ndarray:
        states = rng.integers(0, 2**bits, repeats).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        uniform = ((states >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        noise = np.where(uniform < 0.5, np.log(2 * uniform), -np.log(2 - 2 * uniform))
        return clean(rows)[:1] + 2 * noise[:, None]

    pair = worst_pairs(1, D, "scores", Q)[0]
    found = audit(partial(draw, bits=31), Claim(1.0), neighbours=pair, releases=1_000_000, confidence=CONFIDENCE)
    assert not next(c for c in found.checks if c.name == "fresh noise").passed, str(found)
