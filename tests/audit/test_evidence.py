"""What an audit reads off outputs, what it checks, what it calls a fault, and what it says it would have found.

Statistical comparisons use fixed seeds; where one could fail by chance, the rate is stated.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support import STRICT

import scoreshield as ss
from scoreshield.audit import engine, evidence, power
from scoreshield.audit.betting import Hypotheses, open_accounts
from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import AuditRun, audit, audit_outputs
from scoreshield.audit.neighbours import worst_pairs
from scoreshield.audit.outputs import Source, classify_output, find_noise_law, flatten_release
from scoreshield.audit.result import AuditCheck, AuditResult
from scoreshield.audit.statistics import (
    compute_log_density,
    count_searchable_entries,
    find_lowest_bit,
    fit_likelihood,
    fit_linear,
    fit_low_bits,
    fit_noiseless,
    fit_repeats,
    fit_table,
)
from scoreshield.audit.trials import Trial
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profiles import GaussianProfile

D = 4
Q = np.eye(D)[0]
PAIR, ZERO, _ = worst_pairs(3, D, "scores", Q)
KINDS = (
    "amount of noise",
    "low bits",
    "noise in every direction",
    "fresh noise",
    "form of the output",
    "several calls",
)


def told_bit(rows: np.ndarray, rng: np.random.Generator, repeats: int, epsilon: float) -> np.ndarray:
    """Randomised response on whether the first record's score is positive: exactly epsilon."""
    kept = rng.random(repeats) < 1 / (1 + math.exp(-epsilon))
    return np.where(kept, rows[0] @ Q > 0, rows[0] @ Q <= 0)


def on_grid(values: Any) -> np.ndarray:
    """Round to a public grid, without which the low bits would break every mechanism here."""
    return np.rint(np.asarray(values) * 2.0**20) / 2.0**20


def add_laplace(rows: np.ndarray, rng: np.random.Generator, repeats: int, epsilon: float = 1.0) -> np.ndarray:
    return on_grid(np.clip(rows @ Q, -1, 1) + rng.laplace(0, 2 / epsilon, (repeats, len(rows))))


def add_gaussian(rows: np.ndarray, rng: np.random.Generator, repeats: int, mu: float) -> np.ndarray:
    return on_grid(np.clip(rows @ Q, -1, 1) + rng.normal(0, 2 / mu, (repeats, len(rows))))


def claim_gaussian(epsilon: float, delta: float = 1e-6) -> Claim:
    return Claim(epsilon, delta, profile=GaussianProfile(gaussian.find_mu(epsilon, delta)))


def get_check(result: AuditResult, name: str) -> AuditCheck:
    return next(check for check in result.checks if check.name == name)


# ---- What is read off outputs.


def test_classify_output() -> None:
    """Kinds and laws are read off outputs."""
    gram = ss.release_gram(PAIR.first, epsilon=1.0, delta=1e-6, rng=0)
    assert classify_output(gram, 3) == "gram"
    assert find_noise_law(gram) == (gram.guarantee.noise, 3)
    assert len(flatten_release(gram, 3)) == 6  # above the diagonal, noisy and projected
    top = ss.release_top_k(PAIR.first, Q, 2, epsilon=1.0, rng=0)
    assert classify_output(top, 3) == "top-k"
    assert sorted(flatten_release(top, 3)) == [0, 1, 2]
    assert find_noise_law(top) == (None, 0)
    assert classify_output(np.zeros((3, 3)), 3) == "gram"
    assert classify_output(np.zeros((3, 2)), 3) == "index"
    assert classify_output(np.zeros(3), 3) == "scores"
    assert classify_output({1}, 3) == "matches"
    assert classify_output("text", 3) == "scores"


@pytest.mark.parametrize(
    "law",
    [ss.GaussianNoise(1.3), ss.LaplaceNoise(0.7), ss.StaircaseNoise.calibrate(1.0, 2.0)],
    ids=lambda law: law.name,
)
def test_log_densities(law: Any) -> None:
    """Log densities are those of the laws."""
    x = np.array([-4.9, -3.1, -1.7, -0.3, 0.2, 0.5, 1.1, 2.3, 2.9, 4.4])
    density = np.log((law.cdf(x + 1e-5) - law.cdf(x - 1e-5)) / 2e-5)
    gaps = density - compute_log_density(law, x)
    assert gaps == pytest.approx(np.full(len(x), gaps[0]), abs=1e-4)


def test_lowest_bits_of_known_numbers() -> None:
    found = find_lowest_bit(np.array([1.0, 3.0, 0.75, -6.0, 1 + 2**-52, 2.0**-60, 0.0]))
    assert found.tolist() == [0, 0, -2, 1, -52, -60, 2048]


def test_noiseless_direction() -> None:
    """The direction without noise is found, and no other."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 3))
    shared = noise[:, [0, 0, 1]]
    found = fit_noiseless(shared + np.eye(3)[0], shared)
    assert found is not None
    assert np.allclose(found(np.eye(3))[:2] / found(np.eye(3))[0], [1, -1])
    assert fit_noiseless(shared + np.array([1.0, 1.0, 0.0]), shared) is None  # moves along the noise only
    assert fit_noiseless(noise + np.eye(3)[0], noise) is None
    # Among more entries than rows can be searched in: the partner does not move itself.
    many = rng.standard_normal((200, 150))
    many[:, 140] = many[:, 7]
    assert count_searchable_entries(200) < 150
    found = fit_noiseless(many + 3 * np.eye(150)[7], many)
    assert found is not None
    assert {7, 140} <= set(found.columns.tolist())
    assert abs(found(np.eye(150)[[140]]) / found(np.eye(150)[[7]]) + 1) < 1e-6
    assert fit_noiseless(rng.standard_normal((200, 150)) + np.eye(150)[7], many[::-1]) is None


def test_whole_numbers_have_no_last_bits() -> None:
    """What they show is shown by other tests; the verdict does not name a float sampler."""
    whole = np.random.default_rng(0).integers(0, 9, (50, 2)).astype(float)
    assert fit_low_bits(whole, whole[::-1]) is None
    assert fit_low_bits(whole / 4, whole[::-1]) is not None
    result = audit(partial(told_bit, epsilon=1.0), Claim(1.0), neighbours=PAIR, releases=1_000)
    assert get_check(result, "low bits").passed is None
    assert "whole numbers" in get_check(result, "low bits").detail
    result = audit(partial(told_bit, epsilon=3.0), Claim(1.0), neighbours=PAIR, releases=2_000)
    assert result.broken
    assert "low bits" not in result.verdict


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e15, 1e300])
def test_outputs_of_any_size(scale: float) -> None:
    """Nothing overflows, which pytest would turn into an error."""
    rng = np.random.default_rng(3)
    sides = [np.rint(rng.laplace(centre, 1.0, (1_000, 3)) * 2**10) / 2**10 for centre in (0.0, 1.5)]
    plain = audit_outputs(*sides, Claim(0.5))
    result = audit_outputs(*[side * scale for side in sides], Claim(0.5))
    assert result.epsilon_lower == pytest.approx(plain.epsilon_lower, rel=0.2)
    assert result.broken


@pytest.mark.parametrize("size", [1e150, 1e300, 1e308, -1.7e308, math.inf])
def test_rare_huge_outputs(size: float) -> None:
    """One of fifty outputs is huge, as a number in a random text may be. Nothing overflows, and nothing is found.

    Where one side is huge more often, that is found. Errors of numpy are raised here, whatever a processor reports.
    """

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float = 0.02) -> np.ndarray:
        plain = add_laplace(rows, rng, repeats)
        is_huge = rng.random(plain.shape) < (0.02 if rows[0] @ Q < 0 else share)
        return np.where(is_huge, size * np.where(rng.random(plain.shape) < 0.5, 1, -1), plain)

    with np.errstate(all="raise", under="ignore"):
        assert not audit(release, Claim(1.0), neighbours=PAIR, releases=1_000, confidence=1 - 1e-6).broken
        found = audit(partial(release, share=0.5), Claim(1.0), neighbours=PAIR, releases=1_000, confidence=1 - 1e-6)
        assert found.broken
    # A claim of Gaussian noise measures the scale too.
    assert not audit(release, claim_gaussian(5.0), neighbours=PAIR, releases=1_000, confidence=1 - 1e-6).broken


def test_no_statistic() -> None:
    """There is no statistic where nothing differs."""
    same = np.ones((50, 2))
    assert fit_linear(same, same) is None
    assert fit_table(same, same) is None
    assert fit_likelihood(same, same, ss.GaussianNoise(1.0), 2) is None
    assert fit_likelihood(same, 2 * same, None, 0) is None
    result = audit_outputs(np.ones((100, 2)), np.ones((100, 2)), Claim(0.5))
    assert result.statistic.startswith("none")
    assert result.auc[0] == 0.5


# ---- The scale of Gaussian noise.

#: Along one entry.
DIRECTION = fit_linear(np.array([[1.0], [1.1]]), np.array([[0.0], [0.1]]))
HALF = Claim(30.0, 1e-6, profile=GaussianProfile(0.5))


def test_noise_scale_is_lower_bound() -> None:
    """1,000 samples with mu 0.5 and an error of 0.1: at most 100 bounds above it expected, 151 has probability 1e-7."""
    rng = np.random.default_rng(8)
    failed, applied = 0, 0
    for _ in range(1_000):
        sides = rng.standard_normal((300, 1)) * 3 + 1.5, rng.standard_normal((300, 1)) * 3
        if (found := evidence.make_scale_check(DIRECTION, sides, HALF, 0.1)) is not None:
            applied += 1
            failed += not found.passed
    assert applied > 950
    assert failed < 100 + STRICT * math.sqrt(1_000 * 0.1 * 0.9)
    assert failed > 10  # an error of 0.1 that is split in two is spent to some extent


def test_noise_scale_of_clipped_outputs() -> None:
    """Honest clipped scores at a large epsilon: their spread is less than that of their noise, and no leak.

    12 audits at a confidence of 1 - 1e-8 each: the false-alarm rate is below 1e-6.
    """
    for epsilon, delta, releases in ((20.0, 1e-6, 400), (100.0, 1e-4, 200)):
        claim = claim_gaussian(epsilon, delta)
        sigma = ss.calibrate(epsilon, delta, 2.0)

        def clip(rows: np.ndarray, rng: np.random.Generator, repeats: int, sigma: float) -> np.ndarray:
            return on_grid(np.clip(rows @ Q + sigma * rng.standard_normal((repeats, len(rows))), -1, 1))

        for plain in (False, True):  # said to be plain, which the pile at the ends denies
            for seed in range(3):
                result = audit(
                    partial(clip, sigma=sigma), claim, neighbours=PAIR, releases=releases, seed=seed, plain=plain,
                    confidence=1 - 1e-8,
                )  # fmt: skip
                assert not result.broken, str(result)


def test_noise_scale_that_is_too_small() -> None:
    """It is stated all the same, and breaks the claim where the outputs are said to be plain."""
    claim = claim_gaussian(20.0)
    half = partial(add_gaussian, mu=2 * claim.profile.mu)
    for plain in (False, True):
        scale = get_check(audit(half, claim, neighbours=PAIR, releases=400, plain=plain), "noise scale")
        assert scale.passed is (False if plain else None)
        assert ("measured only, no verdict" in scale.detail) != plain
        assert "epsilon of at least" in scale.detail
        assert scale.epsilon is not None
        assert 20 < scale.epsilon < GaussianProfile(2 * claim.profile.mu).epsilon_at(1e-6)
    honest = audit(partial(add_gaussian, mu=claim.profile.mu), claim, neighbours=PAIR, releases=400, plain=True)
    assert get_check(honest, "noise scale").passed


def test_noise_scale_of_both_sides() -> None:
    """Skewed one way on one side and the other way on the other: together they look even."""
    rng = np.random.default_rng(2)
    skewed = 5 - rng.gamma(4.0, 1.0, (500, 1)), rng.gamma(4.0, 1.0, (500, 1))
    assert evidence.make_scale_check(DIRECTION, skewed, HALF, 0.1) is None
    # The wider side counts: 2 standard deviations of the narrow one are 0.2 of the wide one.
    sides = rng.standard_normal((4_000, 1)) + 2, 10 * rng.standard_normal((4_000, 1))
    found = evidence.make_scale_check(DIRECTION, sides, HALF, 0.1)
    assert found is not None
    assert found.passed
    assert not evidence.make_scale_check(DIRECTION, (sides[0], sides[1] / 10), HALF, 0.1).passed


def test_noise_scale_needs_gaussian_noise() -> None:
    """The noise scale is checked for claims of Gaussian noise only, where the outputs look like it."""
    rng = np.random.default_rng(8)
    sides = rng.laplace(0, 1, (2_000, 1)) + 5, rng.laplace(0, 1, (2_000, 1))
    assert evidence.make_scale_check(DIRECTION, sides, HALF, 0.1) is None
    fine = rng.standard_normal((2_000, 1)), rng.standard_normal((2_000, 1))
    assert evidence.make_scale_check(DIRECTION, fine, HALF, 0.1).passed
    assert evidence.make_scale_check(DIRECTION, fine, Claim(1.0), 0.1) is None
    assert evidence.make_scale_check(None, fine, HALF, 0.1) is None
    clipped = np.minimum(fine[0], 1.0), np.minimum(fine[1], 1.0)
    assert evidence.make_scale_check(DIRECTION, clipped, HALF, 0.1) is None
    result = audit(add_laplace, Claim(1.0), neighbours=PAIR, releases=400)
    assert all(check.name != "noise scale" for check in result.checks)


# ---- Repeated outputs.


def bet_on_repeats(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    """Bet on repeated outputs: a third is remembered, a third teaches, a third is played. Return the capital."""
    third = len(first) // 3
    cuts = slice(0, third), slice(third, 2 * third), slice(2 * third, None)
    repeats = fit_repeats(first[cuts[0]], second[cuts[0]])
    hypothesis = Hypotheses(np.array([epsilon]), np.zeros(1))
    accounts = open_accounts(repeats, "fresh noise", first[cuts[1]], second[cuts[1]], hypothesis)
    rows = np.concatenate([first[cuts[2]], second[cuts[2]]])
    sides = np.arange(len(rows)) < len(first[cuts[2]])
    return float(np.mean([np.exp(account.play(rows, sides)[0]) for account in accounts])) if accounts else 1.0


def test_repeated_noise() -> None:
    """Repeated noise is distinguished from few values."""
    rng = np.random.default_rng(1)
    few = rng.integers(0, 50, (3_000, 2)).astype(float)  # many coincidences, but entry by entry
    assert bet_on_repeats(few, few[::-1], 1.0) < 1e3
    bank = rng.standard_normal((500, 2))
    repeating = bank[rng.integers(0, 500, 3_000)]
    assert bet_on_repeats(repeating, few, 1.0) > 1e6
    assert bet_on_repeats(few, repeating, 1.0) > 1e6  # on either side
    # One entry is enough, and -0 is 0.
    assert bet_on_repeats(repeating[:, :1], few[:, :1], 1.0) > 1e6
    zeros = np.where(rng.random((3_000, 1)) < 0.5, 0.0, -0.0)
    assert not fit_repeats(zeros[:10], zeros[10:20])(zeros).any()


def test_repeats_on_both_sides() -> None:
    """Entries that depend on each other and outputs with atoms: 400 honest bets, of which 20 % may reach 5.

    At most 80 alarms are expected; 124 have a probability below 1e-7.
    """
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(400):
        sides = []
        for centre in (1, 0):  # a geometric count of epsilon 1, with its share and its complement
            count = centre + rng.geometric(1 - math.exp(-1), 400) - rng.geometric(1 - math.exp(-1), 400)
            sides.append(np.stack([count, count / 8, 8 - count], axis=1).astype(float))
        alarms += bet_on_repeats(*sides, 1.0) >= 5
    assert alarms < 80 + STRICT * math.sqrt(400 * 0.2 * 0.8)


def test_corners_recur() -> None:
    """A tenth of the projected matrices are the same corner at this epsilon; the false-alarm rate is 1e-6."""

    def gram(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return ss.release_gram(rows, epsilon=20.0, delta=1e-6, rng=rng).gram

    result = audit(gram, claim_gaussian(20.0), shape=(4, 4), releases=300, confidence=1 - 1e-6)
    assert not result.broken, str(result)
    assert "fresh noise" in [check.name for check in result.checks]


# ---- Which kinds of faults were looked for, and which one is named.


def test_checks_of_an_honest_release() -> None:
    """Every kind is one check. One that passed states a size, and one that was not made states why."""
    result = audit(add_laplace, Claim(1.0), query=Q, releases=8_000, confidence=1 - 1e-6)
    assert not result.broken
    assert [check.name for check in result.checks] == [*KINDS, "rows of other lengths"]
    for check in result.checks:
        assert check.passed is (None if check.name == "low bits" else True)
        assert ("would be found" in check.detail) == (check.name != "low bits")
    assert re.fullmatch(
        r"noise that two calls share in (1 of \d+ sessions of several calls, or more often,|all sessions of several "
        r"calls) "
        "would be found",
        get_check(result, "several calls").detail,
    )
    assert "showed no more than the claim" in get_check(result, "rows of other lengths").detail


def test_several_calls_need_a_search() -> None:
    """Where a pair is given, each call stands alone, and the check says so."""
    result = audit(add_laplace, Claim(1.0), neighbours=PAIR, releases=500)
    assert get_check(result, "several calls").passed is None
    assert "the pair was given" in get_check(result, "several calls").detail


def test_too_few_outputs_for_a_check() -> None:
    """At a large epsilon the outputs of a short audit contradict nothing, and every check says so."""
    result = audit(add_laplace, Claim(25.0), neighbours=PAIR, minutes=0.01)
    assert not result.broken
    for check in result.checks:
        assert check.passed is None
        if check.name not in ("low bits", "several calls"):
            assert check.detail == "too few outputs to contradict an epsilon as large as the claimed one"
    assert math.isinf(result.detectable)


@pytest.mark.parametrize(("bits", "is_tested"), [(8, False), (30, False), (31, True), (40, True)])
def test_low_bits_on_a_coarse_grid(bits: int, is_tested: bool) -> None:
    """Multiples of 2^-30 have no last bits that rounding could leave marks in, and finer ones have."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return np.rint((rows @ Q + rng.laplace(0, 2.0, (repeats, len(rows)))) * 2.0**bits) / 2.0**bits

    check = get_check(audit(release, Claim(1.0), neighbours=PAIR, releases=1_000, confidence=1 - 1e-6), "low bits")
    assert check.passed is (True if is_tested else None)
    assert ("lie on a grid" in check.detail) != is_tested


def leak_by_none(rows: np.ndarray, rng: np.random.Generator) -> Any:
    return None if rows[0] @ Q > 0 and rng.random() < 0.3 else float(on_grid(rng.laplace(0, 2.0)))


def leak_by_error(rows: np.ndarray, rng: np.random.Generator) -> Any:
    if rows[0] @ Q > 0 and rng.random() < 0.3:
        raise KeyError("no record")
    return float(on_grid(rng.laplace(0, 2.0)))


def leak_by_key(rows: np.ndarray, rng: np.random.Generator) -> Any:
    return {f"doc{i}": round(float(rng.laplace(0, 9)), 2) for i in np.flatnonzero(rows @ Q > 0.5)}


def leak_by_floats(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
    return rows @ Q + rng.laplace(0, 2.0, (repeats, len(rows)))


def leak_by_shared_noise(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
    return on_grid(rows @ Q + rng.laplace(0, 2.0, (repeats, 1)))


def leak_by_few_states(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
    bank = np.random.default_rng(0).laplace(0, 2.0, (500, len(rows)))
    return on_grid(rows @ Q) + on_grid(bank[rng.integers(0, 500, repeats)])


@pytest.mark.parametrize(
    ("leak", "pair", "name"),
    [
        (leak_by_none, PAIR, "form of the output"),
        (leak_by_error, PAIR, "form of the output"),
        (leak_by_key, PAIR, "form of the output"),
        (leak_by_floats, ZERO, "low bits"),
        (leak_by_shared_noise, PAIR, "noise in every direction"),
        (leak_by_few_states, PAIR, "fresh noise"),
        (partial(add_laplace, epsilon=3.0), PAIR, "amount of noise"),
        (partial(told_bit, epsilon=3.0), PAIR, "amount of noise"),
    ],
)
def test_faults_are_named(leak: Callable[..., Any], pair: Any, name: str) -> None:
    """Of nine audits most name the fault that was planted, and all name one and test no other kind.

    An audit ends as soon as the claim is broken, with few outputs. So some call a fault by a neighbouring name.
    """
    names: Counter[str] = Counter()
    for seed in range(9):
        result = audit(leak, Claim(1.0), neighbours=pair, releases=4_000, confidence=1 - 1e-6, seed=seed)
        assert result.broken, str(result)
        failed = [check for check in result.checks if check.passed is False]
        assert len(failed) == 1
        names[failed[0].name] += 1
        for check in result.checks:
            assert check.passed is not True
            assert check is failed[0] or check.detail == "the audit ended early, when the claim was broken"
    assert names.most_common(1)[0][0] == name
    assert names[name] >= 5
    assert names["several calls"] == 0


def test_several_calls_are_named() -> None:
    """Noise that two queries about one collection share shows in two calls together."""
    state = {"rows": b"", "query": b"", "noise": np.zeros(1)}
    rng = np.random.default_rng(0)

    def release(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
        if state["rows"] != rows.tobytes() or state["query"] == query.tobytes():
            state.update(rows=rows.tobytes(), query=query.tobytes(), noise=rng.laplace(0, 2.0, len(rows)))
            return np.round(np.clip(rows @ query, -1, 1) + state["noise"], 6)
        state["rows"] = b""  # shared by two calls and no more
        return np.round(np.clip(rows @ query, -1, 1) + state["noise"], 6)

    result = audit(partial(release, query=Q), Claim(1.0), releases=4_000, rows="unit")
    assert result.broken, str(result)
    assert [check.name for check in result.checks if check.passed is False] == ["several calls"]
    assert result.composed == 2
    assert "two queries in a row" in result.neighbours


def test_single_calls_are_no_several_calls() -> None:
    """Scores without noise leak in every call, so that no session is needed to find it."""
    names = {
        check.name
        for seed in range(6)
        for check in audit(lambda rows: np.round(rows @ Q, 3), Claim(1.0), query=Q, releases=2_000, seed=seed).checks
        if check.passed is False
    }
    assert "several calls" not in names


def test_broken_curve_is_described() -> None:
    """Where the bound on epsilon stays below the claim, the verdict names the point of the curve."""
    claim = claim_gaussian(1.0)
    result = audit(partial(add_gaussian, mu=2.5 * claim.profile.mu), claim, neighbours=PAIR, releases=4_000)
    assert result.broken
    if result.epsilon_lower < 1.0:
        assert re.search(
            r"the claimed curve has delta \S+ at epsilon \S+, which the outputs contradict", result.verdict
        )


def test_a_break_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the time ends: where the capital broke the claim, the result says so."""

    class _Ending(engine._Budget):
        run: AuditRun | None = None

        @property
        def is_spent(self) -> bool:
            return self.used >= self.calls or (self.run is not None and self.run.is_broken)

    monkeypatch.setattr(engine, "_CHUNK", 32)
    breaks = 0
    for seed in range(30):
        budget = _Ending(6_000, math.inf, time.perf_counter(), calls=12_000)
        trial = Trial(PAIR, Source(partial(told_bit, epsilon=1.3), seed=seed, timeout=None))
        budget.run = run = AuditRun(Claim(1.0), 0.99, [trial], seed, budget, None)
        run.play()
        breaks += run.is_broken
        assert evidence.make_result(run, "", plain=False).broken is run.is_broken
    assert breaks > 20


# ---- Rows of other lengths.


def test_rows_of_a_broken_release() -> None:
    """A claim that unit rows break is not tested further."""
    result = audit(partial(add_laplace, epsilon=4.0), Claim(1.0), query=Q, releases=2_000)
    assert result.broken
    check = get_check(result, "rows of other lengths")
    assert check.passed is None
    assert check.detail == "the audit ended early, when the claim was broken"


def test_rows_that_are_too_long() -> None:
    """Long rows show much more: the check names them and their bound, and the claim holds for unit rows."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        scores = np.where(np.abs(rows @ Q) > 1.5, 20 * (rows @ Q), rows @ Q)
        return on_grid(scores + rng.laplace(0, 2.0, (repeats, len(rows))))

    result = audit(release, Claim(1.0), query=Q, releases=4_000, confidence=1 - 1e-6)
    check = get_check(result, "rows of other lengths")
    assert check.passed is False
    assert "three times too long" in check.detail
    assert result.broken_by_rows
    assert not result.broken
    assert check.epsilon is not None
    assert check.epsilon > 1 >= result.epsilon_lower


def test_rows_check_passes_with_power_alone() -> None:
    """Rows that are three times too long show three times the epsilon here: the check fails, or was not made."""

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        return on_grid(rows @ Q + rng.laplace(0, 2.0, (repeats, len(rows))))

    for seed in range(3):
        result = audit(release, Claim(1.0), query=Q, releases=2_000, seed=seed)
        assert get_check(result, "rows of other lengths").passed is not True


# ---- Releases without randomness.


def respond_with_level(rows: np.ndarray, rng: np.random.Generator, levels: np.ndarray, epsilon: float) -> float:
    """k-ary randomised response: the level next to the first score, or any other: exactly epsilon."""
    true, k = int(np.argmin(np.abs(levels - rows[0] @ Q))), len(levels)
    is_kept = rng.random() < math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    return float(levels[true if is_kept else (true + rng.integers(1, k)) % k])


@pytest.mark.parametrize("options", [{"query": Q}, {"neighbours": PAIR}], ids=["search", "pair"])
@pytest.mark.parametrize("claim", [Claim(100.0), claim_gaussian(100.0)], ids=["pure", "gaussian"])
def test_silence(claim: Claim, options: dict[str, Any]) -> None:
    """Numbers that are copied from the collection are no release with a large epsilon."""
    result = audit(lambda rows: rows @ Q, claim, minutes=0.01, **options)
    assert result.broken
    assert not audit(lambda _: np.zeros(2), claim, minutes=0.01, **options).broken


def test_silence_is_fresh_noise() -> None:
    """The check is that of fresh noise, and stands once in the result."""
    result = audit(lambda rows: rows @ Q, Claim(100.0), query=Q, minutes=0.01)
    check = get_check(result, "fresh noise")
    assert check.passed is False
    assert "is not random" in check.detail
    assert len({check.name for check in result.checks}) == len(result.checks)


@pytest.mark.parametrize(
    "levels",
    [
        np.linspace(-1, 1, 4097),
        np.arange(-1000.0, 1000.0),
        np.linspace(-1, 1, 3),
        np.round(np.linspace(-1, 1, 201), 2),
        np.round(np.linspace(-1, 1, 1001), 3),
        np.array([-0.9, 0.1, 0.7]),
    ],
    ids=["4097 levels", "2000 whole numbers", "3 levels", "201 decimals", "1001 decimals", "3 decimals"],
)
def test_honest_response_is_no_silence(levels: np.ndarray) -> None:
    """At epsilon 30 a k-ary response hardly ever lies: one in 5e9 calls with two thousand levels."""
    release = partial(respond_with_level, levels=levels, epsilon=30.0)
    for options in ({"query": Q}, {"neighbours": PAIR}):
        assert not audit(release, Claim(30.0), minutes=0.01, **options).broken


def give_dict(rows: np.ndarray) -> Any:
    return dict(enumerate((rows @ Q).tolist()))


def give_list_of_dicts(rows: np.ndarray) -> Any:
    return [{"id": f"doc{place}", "score": score} for place, score in enumerate((rows @ Q).tolist())]


def give_text(rows: np.ndarray) -> Any:
    return f"the best score is {float((rows @ Q).max())!r}"


@pytest.mark.parametrize("release", [give_dict, give_list_of_dicts, give_text])
def test_silence_of_other_outputs(release: Callable[..., Any]) -> None:
    """Copied numbers beside ids or words are copied all the same."""
    for claim in (Claim(100.0), claim_gaussian(100.0)):
        assert audit(release, claim, query=Q, minutes=0.01).broken


def test_names_without_numbers_are_no_silence() -> None:
    """Names that seldom vary at a large epsilon are honest, also where Gaussian noise is claimed."""
    sigma = ss.calibrate(100.0, 1e-6, 2.0)

    def release(rows: np.ndarray, rng: np.random.Generator) -> set[int]:
        return set(np.flatnonzero(rows @ Q + sigma * rng.standard_normal(len(rows)) > 0.5).tolist())

    for options in ({"query": Q}, {"neighbours": PAIR}):
        assert not audit(release, claim_gaussian(100.0), minutes=0.01, **options).broken


# ---- What would have been found.

RELEASES = 400


def count_found(release: Callable[..., Any], claim: Claim, runs: int) -> int:
    """Count how many audits of a pair find a fault."""
    return sum(audit(release, claim, neighbours=PAIR, releases=RELEASES, seed=seed).broken for seed in range(runs))


def is_detected(release: Callable[[float], Callable[..., Any]], claim: Claim) -> bool:
    """Whether a fault of size 1 is found in 32 of 40 audits or more, and one of a third in 15 of 30 or fewer.

    Of 200 audits each, all found every fault below, and 0 to 28 found a third of it. At a power of 98 %, fewer than 32
    of 40 have a probability of 1e-7. At 14 %, more than 15 of 30 have a probability of 5e-7.
    """
    return count_found(release(1.0), claim, 40) >= 32 and count_found(release(1 / 3), claim, 30) <= 15


def test_detectable_is_detected() -> None:
    """Randomised response with the epsilon called detectable is found, and a third of the excess is mostly not."""
    claim = Claim(1.0)
    detectable = power.find_detectable(claim, RELEASES, 0.99)
    assert 1.2 < detectable < 2
    assert is_detected(lambda size: partial(told_bit, epsilon=1.0 + size * (detectable - 1.0)), claim)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_of_the_stated_size_is_found(law: str) -> None:
    """Noise that is too small by the stated factor is found, and a third of the excess is mostly not."""
    claim = Claim(1.0) if law == "laplace" else claim_gaussian(2.0)
    whole = 1.0 if law == "laplace" else claim.profile.mu

    def draw(rows: np.ndarray, rng: np.random.Generator, repeats: int, times: float) -> np.ndarray:
        if law == "laplace":
            return add_laplace(rows[:1], rng, repeats, whole * times)
        return add_gaussian(rows[:1], rng, repeats, whole * times)

    honest = audit(partial(draw, times=1.0), claim, neighbours=PAIR, releases=RELEASES)
    assert not honest.broken
    said = re.fullmatch(r"(\w+) noise ([\d.]+) times too small would be found", get_check(honest, KINDS[0]).detail)
    assert said is not None
    assert said[1].lower() == law
    times = float(said[2])
    assert 1 < times < 3
    assert is_detected(lambda size: partial(draw, times=1 + size * (times - 1)), claim)
    if law == "gaussian":
        mu = gaussian.find_mu(honest.detectable, claim.delta)
        assert mu == pytest.approx(times * claim.profile.mu, rel=0.02)


def show_form(rows: np.ndarray, rng: np.random.Generator, share: float) -> Any:
    if rng.random() < share:
        return None if rows[0] @ Q > 0 else "x"
    return float(on_grid(rows[0] @ Q + rng.laplace(0, 2.0)))


def show_last_bits(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float) -> np.ndarray:
    is_marked = rng.random((repeats, 1)) < share
    return add_laplace(rows[:1], rng, repeats) + is_marked * np.where(rows[0] @ Q > 0, 2.0**-40, 2.0**-41)


def show_direction(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float) -> np.ndarray:
    """Let x - y/3 be the score without noise, in a share of the outputs."""
    noise = rng.laplace(0, 2.0, repeats)
    other = np.where(rng.random(repeats) < share, 3 * noise, rng.laplace(0, 2.0, repeats))
    return on_grid(np.stack([rows[0] @ Q + noise, other], axis=1))


@cache
def list_states(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).laplace(0, 2.0, (count, width))


def repeat_states(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float) -> np.ndarray:
    """Draw from a generator with 1/share states."""
    states = list_states(int(1 / share), len(rows))
    return on_grid(rows @ Q + states[rng.integers(0, len(states), repeats)])


def find_stated_share(name: str, honest: Callable[..., Any]) -> float:
    """Find the share of outputs, or of states, that an audit of an honest release says it would have found."""
    detail = get_check(audit(honest, Claim(1.0), neighbours=PAIR, releases=RELEASES), name).detail
    said = re.search(r"(?:1 of|up to) ([\d,]+) (?:outputs|states)", detail)
    assert said is not None, detail
    return 1 / float(said[1].replace(",", ""))


def test_forms_of_the_stated_share_are_found() -> None:
    """Outputs whose form shows the record in the stated share are found, and in a third of it mostly not."""
    share = find_stated_share("form of the output", partial(show_form, share=0.0))
    assert 0.01 < share <= 0.1
    assert is_detected(lambda size: partial(show_form, share=size * share), Claim(1.0))


def test_generators_of_the_stated_size_are_found() -> None:
    """A generator with the stated number of states is found, and one with three times as many mostly not."""
    share = find_stated_share("fresh noise", add_laplace)
    assert share < 1e-3
    assert is_detected(lambda size: partial(repeat_states, share=size * share), Claim(1.0))


def test_last_bits_of_the_stated_share_are_found() -> None:
    """Marks in the stated share of outputs are found with the stated power of 90 %, in 40 audits."""
    # The grid has no last bits, so the share is that of forms, for which the same is stated.
    share = find_stated_share("form of the output", add_laplace)
    assert count_found(partial(show_last_bits, share=share), Claim(1.0), 40) >= 36


def test_directions_of_the_stated_share_are_found() -> None:
    """The record shows without noise in the stated share of outputs, along a direction: none of 60 audits find it."""
    share = find_stated_share("noise in every direction", add_laplace)
    assert count_found(partial(show_direction, share=share), Claim(1.0), 10) >= 8


def test_power_without_outputs() -> None:
    """Without outputs, or with an epsilon that nothing contradicts, no size is stated."""
    empty = [Trial(PAIR, Source(len, seed=None, timeout=None))]
    for name in KINDS:
        assert power.describe_power(name, Claim(1.0), empty, 0.99) is None
        assert power.describe_power(name, Claim(1.0), [], 0.99) is None
    assert math.isinf(power.find_detectable(Claim(30.0), 10_000, 0.99))
    assert power.find_detectable(Claim(0.0), 10_000, 0.99) < 0.2


def test_power_grows() -> None:
    """More releases, and a lower confidence, find smaller faults; the least number finds a complete leak."""
    claims = (Claim(1.0), Claim(0.1), Claim(5.0, 1e-6), claim_gaussian(1.0), claim_gaussian(8.0))
    for claim in claims:
        sizes = [power.find_detectable(claim, releases, 0.99) for releases in (10**4, 10**5, 10**6)]
        assert sizes[0] > sizes[1] > sizes[2] > claim.epsilon
        assert power.find_detectable(claim, 10**5, 0.9) < sizes[1] < power.find_detectable(claim, 10**5, 0.999_999)
    assert power.find_needed_growth(0.999) - power.find_needed_growth(0.99) == pytest.approx(math.log(10))
    for epsilon in (0.5, 2.0, 4.0):
        claim, least = Claim(epsilon), power.find_least_releases(Claim(epsilon), 0.99)
        assert math.isfinite(least)
        assert power.find_least_releases(claim, 0.999) > least
    assert math.isinf(power.find_least_releases(Claim(50.0), 0.99))


# ---- Rules outside of the bets.


def claim_mu(mu: float) -> Claim:
    profile = GaussianProfile(mu)
    return Claim(profile.epsilon_at(1e-6) * (1 + 1e-9), 1e-6, profile=profile)


@pytest.mark.parametrize("mu", [5.0, 10.0])
def test_answers_that_seldom_vary_are_random(mu: float) -> None:
    """A bit of a noisy score, and a clipped score: at a large epsilon they seldom vary, and a field is a constant."""

    def find_bit(rows: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
        return {"match": int(rows[0] @ Q + rng.normal(0, 2 / mu) > 0), "threshold": 0.3}

    def clip(rows: np.ndarray, rng: np.random.Generator) -> float:
        return float(np.clip(rows[0] @ Q + rng.normal(0, 2 / mu), -0.1, 0.1))

    for release in (find_bit, clip):
        for seed in range(3):
            result = audit(release, claim_mu(mu), query=Q, releases=300, rows="unit", seed=seed)
            assert not result.broken, str(result)


def test_silence_on_other_rows_breaks_no_claim_about_unit_rows() -> None:
    def release(rows: np.ndarray, rng: np.random.Generator) -> float:
        if np.any(np.abs(np.linalg.norm(rows, axis=1) - 1) > 1e-3):
            return float(rows[0] @ Q) * 1.1
        return float(np.round(rows[0] @ Q + rng.normal(0, 2), 6))

    result = audit(release, claim_mu(1.0), query=Q, releases=500)
    assert not result.broken
    assert result.broken_by_rows


@pytest.mark.parametrize(("together", "part", "is_broken"), [(1.0, 0.6, False), (0.7, 0.0, True)])
def test_scale_of_outputs_in_bulk_is_confirmed(together: float, part: float, is_broken: bool) -> None:
    """Noise that the outputs of one call share in part makes bulk outputs narrower; only narrow single ones break."""
    mu = 0.5

    def release(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
        scale = together * 2 / mu
        common, own = rng.normal(0, scale * part**0.5), rng.normal(0, scale * (1 - part) ** 0.5, (repeats, 1))
        return np.round(rows[0] @ Q + common + own, 6)

    pair = worst_pairs(3, len(Q), "scores", Q)[0]
    results = [
        audit(release, claim_mu(mu), neighbours=pair, releases=6_000, seed=seed, plain=True, confidence=1 - 1e-6)
        for seed in range(8)
    ]
    assert all(result.broken is is_broken for result in results)


def test_few_outputs_of_two_numbers() -> None:
    rng = np.random.default_rng(0)
    for size in (56, 60, 64):
        result = audit_outputs(
            rng.standard_normal((size, 2)), rng.standard_normal((size, 2)), Claim(0.5), confidence=0.9
        )
        assert not result.broken
