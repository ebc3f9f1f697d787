"""What an audit says it would have found is found: a fault of the stated size, of each kind, at two sizes of audits.

A stated size is that of an honest release under the same audit. The fault of just that size is planted then. Of 100
audits of each case at least 99 found it. Even at a power of 97 %, fewer than 80 of 100 audits find a fault with a
probability below 1e-11, and fewer than 22 of 30 with one below 1e-6. At a power of 65 %, 80 of 100 audits find it with
a probability of 1e-3 only.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from scoreshield.audit import engine, power
from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import AuditRun, audit
from scoreshield.audit.evidence import make_result
from scoreshield.audit.neighbours import worst_pairs
from scoreshield.audit.outputs import Source
from scoreshield.audit.result import AuditResult
from scoreshield.audit.trials import Trial
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profiles import GaussianProfile

D = 4
Q = np.eye(D)[0]
PAIR, _, LONG = worst_pairs(2, D, "scores", Q)
#: Releases on each side, how many audits are made, and how many of them must find the fault.
SIZES = ((400, 100, 80), (1_000, 30, 22))
PURE = Claim(1.0)
NORMAL = Claim(2.0, 1e-6, profile=GaussianProfile(gaussian.find_mu(2.0, 1e-6)))


def on_grid(values: Any) -> np.ndarray:
    """Round to a public grid, without which the low bits would show every record."""
    return np.rint(np.asarray(values) * 2.0**20) / 2.0**20


def draw_laplace(rows: np.ndarray, rng: np.random.Generator, repeats: int, times: float = 1.0) -> np.ndarray:
    return on_grid(np.clip(rows @ Q, -1, 1) + rng.laplace(0, 2.0 / times, (repeats, len(rows))))


def draw_gaussian(rows: np.ndarray, rng: np.random.Generator, repeats: int, times: float = 1.0) -> np.ndarray:
    return on_grid(np.clip(rows @ Q, -1, 1) + rng.normal(0, 2 / NORMAL.profile.mu / times, (repeats, len(rows))))


def draw_fine(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float = 0.0) -> np.ndarray:
    """Return values with random last bits, which show the record in a share of the outputs."""
    bits = 2.0 ** -rng.integers(31, 36, (repeats, len(rows)))
    bits[:, 0] = np.where(rng.random(repeats) < share, 2.0**-40 if rows[0] @ Q > 0 else 2.0**-41, bits[:, 0])
    return draw_laplace(rows, rng, repeats) + bits


def draw_direction(rows: np.ndarray, rng: np.random.Generator, repeats: int, share: float = 0.0) -> np.ndarray:
    """Let x - y/3 be the score without noise, in a share of the outputs."""
    noise = rng.laplace(0, 2.0, repeats)
    other = np.where(rng.random(repeats) < share, 3 * noise, rng.laplace(0, 2.0, repeats))
    return on_grid(np.stack([rows[0] @ Q + noise, other], axis=1))


@cache
def list_states(count: int) -> np.ndarray:
    return np.random.default_rng(0).laplace(0, 2.0, (count, 2))


def draw_states(rows: np.ndarray, rng: np.random.Generator, repeats: int, states: int) -> np.ndarray:
    return on_grid(rows @ Q + list_states(states)[rng.integers(0, states, repeats)])


def draw_form(rows: np.ndarray, rng: np.random.Generator, share: float = 0.0) -> Any:
    if rng.random() < share:
        return None if rows[0] @ Q > 0 else "x"
    return float(on_grid(rows[0] @ Q + rng.laplace(0, 2.0)))


CASES: dict[str, tuple[Claim, Callable[..., Any], str]] = {
    "amount of noise": (PURE, draw_laplace, "times"),
    "amount of Gaussian noise": (NORMAL, draw_gaussian, "times"),
    "low bits": (PURE, draw_fine, "share"),
    "noise in every direction": (PURE, draw_direction, "share"),
    "fresh noise": (PURE, draw_states, "states"),
    "form of the output": (PURE, draw_form, "share"),
}


def read_size(detail: str) -> float:
    """Read the size that a check states, as the parameter of the release with the fault."""
    if said := re.search(r"in 1 of ([\d,]+) ", detail):
        return 1 / float(said[1].replace(",", ""))
    said = re.search(r"noise ([\d.]+) times too small|up to ([\d,]+) states", detail)
    assert said is not None, detail
    return float((said[1] or said[2]).replace(",", ""))


def get_detail(result: AuditResult, name: str) -> str:
    check = next(check for check in result.checks if check.name == name)
    assert check.passed, str(result)
    return check.detail


@pytest.mark.parametrize(("releases", "audits", "least"), SIZES)
@pytest.mark.parametrize("case", CASES)
def test_stated_size_is_found(case: str, releases: int, audits: int, least: int) -> None:
    claim, release, name = CASES[case]
    honest = draw_laplace if name == "states" else release
    check = case.replace(" Gaussian", "")
    size = read_size(get_detail(audit(honest, claim, neighbours=PAIR, releases=releases), check))
    planted = partial(release, **{name: int(size) if name == "states" else size})
    found = [audit(planted, claim, neighbours=PAIR, releases=releases, seed=seed).broken for seed in range(audits)]
    assert sum(found) >= least


def play(trials: list[Trial], calls: int, seed: int = 0, *, query_is_known: bool = True) -> AuditRun:
    """Play against the pure claim on these trials, with a number of calls."""
    budget = engine._Budget(None, math.inf, time.perf_counter(), calls=calls)
    run = AuditRun(PURE, 0.99, trials, seed, budget, None, query_is_known=query_is_known)
    run.play()
    return run


def make_calls_that_share_noise(seed: int, share: float) -> Source:
    """Return a release whose second call of three has the noise of the call before, in a share of the cases."""
    rng, noise, calls = np.random.default_rng(seed), np.zeros(2), 0

    def release(rows: np.ndarray) -> np.ndarray:
        nonlocal noise, calls
        calls += 1
        if calls % 3 != 2 or rng.random() >= share:
            noise = rng.laplace(0, 2.0, len(rows))
        return on_grid(np.clip(rows @ Q, -1, 1) + noise)

    return Source(release, seed=None, timeout=None)


def test_shared_noise_of_the_stated_share_is_found() -> None:
    """In sessions of three calls; 300 of them."""
    honest = play([Trial(PAIR, make_calls_that_share_noise(0, 0.0), "between public")], 900)
    assert not honest.is_broken
    detail = power.describe_power("several calls", PURE, honest.trials, 0.99)
    assert detail is not None
    share = read_size(detail)
    assert 0.1 < share < 0.5
    trials = [[Trial(PAIR, make_calls_that_share_noise(seed, share), "between public")] for seed in range(30)]
    assert sum(play(trial, 900, seed).is_broken for seed, trial in enumerate(trials)) >= 22
    # Single calls tell nothing about it, so that none is described.
    single = play([Trial(PAIR, Source(draw_laplace, seed=0, timeout=None))], 600)
    assert power.describe_power("several calls", PURE, single.trials, 0.99) is None


def draw_unclamped(rows: np.ndarray, rng: np.random.Generator, repeats: int) -> np.ndarray:
    return on_grid(rows @ Q + rng.laplace(0, 2.0, (repeats, len(rows))))


def test_long_rows_are_found_with_the_stated_outputs() -> None:
    """Where the check of rows of other lengths may pass, an unclamped score of such rows is found."""
    found, calls = 0, 1_200  # just enough for the check
    for seed in range(100):
        sources = [Source(draw_unclamped, seed=[seed, place], timeout=None) for place in range(2)]
        run = play([Trial(PAIR, sources[0]), Trial(LONG, sources[1], is_covered=False)], calls, seed)
        assert not run.is_broken
        found += run.is_broken_by_rows
    assert found >= 80
    honest = [Trial(PAIR, Source(draw_laplace, seed=0, timeout=None))]
    honest.append(Trial(LONG, Source(draw_laplace, seed=1, timeout=None), is_covered=False))
    check = next(check for check in make_result(play(honest, calls), "", plain=False).checks if "rows" in check.name)
    assert check.passed, check.detail
    few = [Trial(one.pair, one.source, is_covered=one.is_covered) for one in honest]
    check = next(check for check in make_result(play(few, 600), "", plain=False).checks if "rows" in check.name)
    assert check.passed is None
    assert "too few" in check.detail


def test_outputs_of_calls_that_fail_do_not_count() -> None:
    """Where most calls fail, the stated size is larger, or none is stated and the check says why."""

    def release(rows: np.ndarray, rng: np.random.Generator, failing: float) -> float:
        if rng.random() < failing:
            raise TimeoutError
        return float(on_grid(rows[0] @ Q + rng.laplace(0, 2.0)))

    sizes = [
        read_size(get_detail(audit(partial(release, failing=share), PURE, neighbours=PAIR, releases=1_000), kind))
        for share in (0.0, 0.7)
        for kind in ("form of the output", "amount of noise")
    ]
    assert sizes[2] > 2 * sizes[0]
    assert sizes[3] - 1 > 1.4 * (sizes[1] - 1)
    result = audit(partial(release, failing=0.9), PURE, neighbours=PAIR, releases=400)
    check = next(check for check in result.checks if check.name == "amount of noise")
    assert check.passed is None
    assert re.match(r"\d+ % of the calls failed", check.detail)


def test_unknown_query_is_not_tested() -> None:
    """Where no query is known or found, the pairs may not move the outputs, and the checks say so."""
    release = Source(lambda _, rng: float(on_grid(rng.laplace(0, 2.0))), seed=0, timeout=None)
    result = make_result(play([Trial(PAIR, release)], 2_000, query_is_known=False), "", plain=False)
    for check in result.checks:
        assert check.passed is (True if check.name == "fresh noise" else None)
        assert ("no query is known" in check.detail) == (check.name != "fresh noise")

    def hidden(rows: np.ndarray, rng: np.random.Generator) -> list[float]:
        return [float(on_grid(rng.laplace(0, 2.0)))] * len(rows)

    result = audit(hidden, PURE, shape=(3, 64), releases=300)
    assert "no query is known" in next(check for check in result.checks if check.name == "amount of noise").detail
    known = audit(hidden, PURE, query=np.eye(64)[0], releases=300)
    assert "would be found" in next(check for check in known.checks if check.name == "amount of noise").detail
