r"""What an audit can find: its power, the least leak it finds, and how many releases a claim needs at least.

`bounds.epsilon_lower` exceeds a claimed epsilon exactly where the lower bound on true positives lies above the claimed
curve at the upper bound on false positives. Both counts are binomial, so the chance of that is a finite sum, computed
here rather than simulated. Where the sum is long, neighbouring terms share the worst of their conditions: the power
stated is never above that of the test at the rate considered. An audit learns where to put its threshold, so what it
states is an average over the rates at which that may end up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc

from scoreshield import _validation
from scoreshield._validation import one_of, validate
from scoreshield.audit.claim import Claim, curve
from scoreshield.audit.intervals import lower, upper
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.noise import StaircaseNoise
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile, Profile, PureProfile, StepProfile

Float = NDArray[np.float64]
Ceiling = Callable[[Float], Float]

LAWS = ("pure", "gaussian", "laplace", "staircase")
#: More releases than this are not worth a number.
MOST_RELEASES = 1e15
#: What the power of an audit supposes of a release of which no law is known, after "if".
ASSUMING = "the release shows it on these collections as plainly as randomised response does"
_BLOCKS, _POWER = 400, 0.9
#: Thresholds within so many of the best, in units of chance, are as likely to be chosen.
_NEAR = 0.5
#: Beyond this distance from the claim nothing is looked for.
_FARTHEST = 256.0


@validate()
def power(
    profile: Profile, releases: int, *, epsilon: float, delta: float, confidence: float, fpr: float | None = None
) -> float:
    """The chance that an audit contradicts the claim (epsilon, delta) of a mechanism with this true profile.

    Parameters
    ----------
    profile : what the mechanism really leaks, such as ``GaussianProfile(mu)`` or ``PureProfile(epsilon)``.
    releases : on each side, not counting those that the test was chosen on.
    fpr : the false-positive rate of the best test that is used; None for one that makes the expected bound large.
    """
    if not isinstance(profile, Profile):
        _validation.reject("profile", "a privacy profile, such as GaussianProfile(1.0)", profile)
    releases, epsilon, delta, confidence = _settings(releases, epsilon, delta, confidence)
    ceiling = _pair(epsilon, delta)
    if fpr is None:
        fpr = _good_rate(profile, releases, delta, confidence)
    fpr = _validation.check_probability(fpr, "fpr", zero=True)
    return _chance(fpr, float(profile.tpr_at(fpr)), releases, ceiling, confidence)


@validate(law=one_of(LAWS))
def detectable(
    releases: int, delta: float, confidence: float, power: float = 0.9, *, epsilon: float, law: str = "pure"
) -> float:
    """The least true epsilon at ``delta`` for which the audit contradicts the claim ``epsilon`` with this power.

    Parameters
    ----------
    releases : on each side, not counting those that the test was chosen on.
    law : how the mechanism leaks: "pure", the most telling way at its epsilon (randomised response, which with
        probability delta tells all), or noise with that epsilon at that delta: "gaussian", "laplace" or "staircase".

    Returns
    -------
    The epsilon, rounded up; infinite where no leak at all would be found (see `releases_needed`).
    """
    releases, epsilon, delta, confidence = _settings(releases, epsilon, delta, confidence)
    target = _validation.check_probability(power, "power", zero=False)
    if law == "gaussian" and delta == 0:
        _validation.reject("delta", "above 0 for Gaussian noise, which has no epsilon at 0", delta)
    if law == "pure":
        return _least(lambda true: _worst_case(true, releases, epsilon, delta, confidence) >= target, epsilon)
    family, ceiling = _family(law, delta), _pair(epsilon, delta)

    def found(true: float) -> bool:
        profile = family(true)
        rate = _good_rate(profile, releases, delta, confidence)
        return _chance(rate, float(profile.tpr_at(rate)), releases, ceiling, confidence) >= target

    return _least(found, epsilon)


def least_found(claim: Claim, outputs: int, confidence: float, law: str | None, loss: float) -> tuple[float, str]:
    """The least true epsilon that contradicts a claim with probability 90 %, and what that supposes, after "if".

    Parameters
    ----------
    outputs : fresh ones on each side.
    law : the name of the noise's law, where it is known.
    loss : what is lost by learning a direction: mu is seen as mu^2 / sqrt(mu^2 + loss), see `checks.noise_scale`.
    """
    if isinstance(claim.profile, GaussianProfile) and claim.delta > 0:
        law = "gaussian"
    if law not in LAWS or (law == "gaussian" and claim.delta == 0):
        return _least_pure(outputs, claim.delta, confidence, claim.epsilon), ASSUMING
    name = law if law == "staircase" else law.capitalize()
    return _least_noise(claim, outputs, confidence, law, loss), f"the outputs carry {name} noise, only too little of it"


# Kept, because audits of one size and claim are often made in a row.
@lru_cache(maxsize=64)
def _least_pure(outputs: int, delta: float, confidence: float, epsilon: float) -> float:
    return detectable(outputs, delta, confidence, epsilon=epsilon)


@lru_cache(maxsize=64)
def _least_noise(claim: Claim, outputs: int, confidence: float, law: str, loss: float) -> float:
    family = _family(law, claim.delta, loss)
    ceiling: Ceiling = claim.tpr_at  # of the profile, where one is claimed

    def found(true: float) -> bool:
        profile = family(true)
        rates = _likely_rates(profile, outputs, ceiling, confidence)
        chances = [_chance(rate, float(profile.tpr_at(rate)), outputs, ceiling, confidence, 100) for rate in rates]
        return float(np.mean(chances)) >= _POWER

    return _least(found, claim.epsilon, 2e-4)


@validate()
def releases_needed(epsilon: float, delta: float, confidence: float, factor: float = 1.0) -> float:
    """How many releases on each side the bound needs to exceed ``factor`` times ``epsilon`` if everything leaks.

    With N right answers of N on both sides, both rates are bounded by r = error^(1/N), and the bound exceeds e where
    1 - r < (1 - delta) / (1 + e^e). A whole number, as a float beyond 2^53 and infinite beyond what a float holds.
    """
    _, epsilon, delta, confidence = _settings(1, epsilon, delta, confidence)
    asked = epsilon * _validation.check_positive(factor, "factor")
    if asked > 700:
        return math.inf
    error = (1 - confidence) / 2
    needed = math.log(error) / math.log1p(-(1 - delta) / (1 + math.exp(asked)))
    if needed > 2**53:
        return needed
    return math.floor(needed) + 1


def _settings(releases: int, epsilon: float, delta: float, confidence: float) -> tuple[int, float, float, float]:
    must = "a finite number, at least 0"
    epsilon = _validation.check_real(epsilon, "epsilon", must)
    if epsilon < 0:
        _validation.reject("epsilon", must, epsilon)
    return (
        _validation.check_count(releases, "releases"),
        epsilon,
        _validation.check_probability(delta, "delta", zero=True),
        _validation.check_probability(confidence, "confidence", zero=False),
    )


def _pair(epsilon: float, delta: float) -> Ceiling:
    return lambda fpr: curve(epsilon, delta, fpr)


def _chance(fpr: float, tpr: float, n: int, ceiling: Ceiling, confidence: float, blocks: int = _BLOCKS) -> float:
    """P[the lower bound lies above the ceiling] for a test with these rates and n releases on each side."""
    mean, spread = n * fpr, math.sqrt(n * fpr * (1 - fpr))
    first, last = max(0, math.floor(mean - 10 * spread - 20)), min(n, math.ceil(mean + 10 * spread + 20))
    ends = np.unique(np.linspace(first, last, min(blocks, last - first + 1)).astype(np.int64))
    mass = np.diff(_at_most(ends, n, fpr), prepend=_at_most(np.array([first - 1]), n, fpr))
    error = (1 - confidence) / 2
    needed = _hits_needed(np.asarray(ceiling(upper(ends, n, error))), n, error)
    found = np.where(needed > n, 0.0, _at_least(np.minimum(needed, n), n, tpr))
    return float(np.clip(mass @ found, 0.0, 1.0))


def _hits_needed(ceiling: Float, n: int, error: float) -> NDArray[np.int64]:
    """The least number of hits whose lower bound lies above each ceiling; n + 1 where none does."""
    too_few, enough = np.zeros(len(ceiling), dtype=np.int64), np.full(len(ceiling), n + 1, dtype=np.int64)
    while np.any(enough - too_few > 1):
        middle = (too_few + enough) // 2
        above = _at_least(np.maximum(middle, 1), n, ceiling) < error
        open_ = enough - too_few > 1
        enough = np.where(open_ & above, middle, enough)
        too_few = np.where(open_ & ~above, middle, too_few)
    return enough


def _at_least(k: NDArray[np.int64], n: int, p: float | Float) -> Float:
    """P[binomial(n, p) >= k] for 1 <= k <= n."""
    return np.asarray(betainc(k, n - k + 1, p), dtype=np.float64)


def _at_most(k: NDArray[np.int64], n: int, p: float) -> Float:
    """P[binomial(n, p) <= k] for -1 <= k <= n."""
    inner = betaincc(np.maximum(k, 0) + 1, np.maximum(n - k, 1), p)
    return np.asarray(np.where(k < 0, 0.0, np.where(k >= n, 1.0, inner)), dtype=np.float64)


def _good_rate(profile: Profile, n: int, delta: float, confidence: float) -> float:
    """A false-positive rate at which the bound is large if every count is as expected."""
    rates, hits, low, high = _expected(profile, n, confidence)
    miss = upper(n - hits, n, (1 - confidence) / 2)
    ratio = np.maximum((low - delta) / high, (1 - high - delta) / miss)
    return float(rates[int(np.argmax(ratio))])


def _likely_rates(profile: Profile, n: int, ceiling: Ceiling, confidence: float) -> Float:
    """False-positive rates at which a threshold may end up that is learnt from fewer releases than these.

    Thresholds are judged by how far the test is above the claimed curve there, in units of what chance could do. What
    the outputs for choosing say of that is itself subject to chance, so those that come near the best are as likely.
    """
    rates, hits, low, high = _expected(profile, n, confidence, 48)
    above = hits / n - np.asarray(ceiling(rates))
    chance = hits / n - low + np.asarray(ceiling(high)) - np.asarray(ceiling(rates))
    ratios = above / np.maximum(chance, 1e-12)
    near = np.sort(rates[ratios >= ratios.max() - _NEAR])
    return np.asarray(near[np.unique(np.linspace(0, len(near) - 1, 5).astype(int))])


def _expected(profile: Profile, n: int, confidence: float, points: int = 120) -> tuple[Float, Float, Float, Float]:
    """False-positive rates to choose from, the hits expected there, and the bounds on both rates."""
    tail = np.geomspace(0.1 / n, 0.5, points)
    rates = np.concatenate([tail, 1 - tail, _corners(profile)])
    hits = np.asarray(profile.tpr_at(rates), dtype=np.float64) * n
    error = (1 - confidence) / 2
    return rates, hits, lower(hits, n, error), upper(rates * n, n, error)


def _family(law: str, delta: float, loss: float = 0.0) -> Callable[[float], Profile]:
    """From an epsilon at delta to the profile of noise that has it."""

    def noisy(epsilon: float) -> Profile:
        mu = gaussian.find_mu(epsilon, delta)
        return GaussianProfile(mu**2 / math.sqrt(mu**2 + loss))

    # Pure noise has its epsilon at delta 0; at a delta above it has less.
    return {
        "gaussian": noisy,
        "laplace": LaplaceProfile,
        "staircase": lambda epsilon: StaircaseNoise.calibrate(epsilon, 1.0).profile(1.0),
    }[law]


def _corners(profile: Profile) -> list[float]:
    """Where a curve of straight pieces bends first, which is where it tells most."""
    if isinstance(profile, PureProfile):
        return [1 / (1 + math.exp(min(profile.epsilon, 700.0)))]
    if isinstance(profile, StepProfile):
        return [profile.mass * math.exp(-profile.epsilon)]
    return []


def _worst_case(true: float, n: int, epsilon: float, delta: float, confidence: float) -> float:
    """Power against the mechanism whose curve is the whole of (true, delta), tested in its corner."""
    corner = (1 - delta) / (1 + math.exp(min(true, 700.0)))
    return _chance(corner, 1 - corner, n, _pair(epsilon, delta), confidence)


def _least(found: Callable[[float], bool], claimed: float, precision: float = 1e-5) -> float:
    """The least epsilon above the claimed one that is found; infinite where none is."""
    low, step = claimed, 0.25
    while not found(claimed + step):
        low, step = claimed + step, 2 * step
        if step > _FARTHEST:
            return math.inf
    high = claimed + step
    while high - low > precision * (1 + claimed):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high
