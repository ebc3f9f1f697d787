r"""What an audit can find: its power, the least leak it finds, and how many releases a claim needs at least.

`bounds.epsilon_lower` exceeds a claimed epsilon exactly where the lower bound on true positives lies above the claimed
curve at the upper bound on false positives. Both counts are binomial, so the chance of that is a finite sum, computed
here rather than simulated. Where the sum is long, neighbouring terms share the worst of their conditions: the power
stated is never above the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc

from scoreshield import _checks
from scoreshield.audit.claim import curve
from scoreshield.audit.intervals import lower, upper
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profile import GaussianProfile, Profile, PureProfile, StepProfile

Float = NDArray[np.float64]

LAWS = ("pure", "gaussian")
_BLOCKS = 400
#: Beyond this distance from the claim nothing is looked for.
_FARTHEST = 256.0


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
    function = "power"
    if not isinstance(profile, Profile):
        _checks.reject("profile", function, "a privacy profile, such as GaussianProfile(1.0)", profile)
    releases, epsilon, delta, confidence = _settings(releases, epsilon, delta, confidence, function)
    if fpr is None:
        fpr = _good_rate(profile, releases, delta, confidence)
    fpr = _checks.probability(fpr, "fpr", function, zero=True)
    return _chance(fpr, float(profile.tpr_at(fpr)), releases, epsilon, delta, confidence)


def detectable(
    releases: int, delta: float, confidence: float, power: float = 0.9, *, epsilon: float, law: str = "pure"
) -> float:
    """The least true epsilon at ``delta`` for which the audit contradicts the claim ``epsilon`` with this power.

    Parameters
    ----------
    releases : on each side, not counting those that the test was chosen on.
    law : how the mechanism leaks: "pure", the most telling way at its epsilon (randomised response, which with
        probability delta tells all), or "gaussian", a Gaussian mechanism with that epsilon at that delta.

    Returns
    -------
    The epsilon, rounded up; infinite where no leak at all would be found (see `releases_needed`).
    """
    function = "detectable"
    releases, epsilon, delta, confidence = _settings(releases, epsilon, delta, confidence, function)
    target = _checks.probability(power, "power", function, zero=False)
    law = _checks.one_of(law, "law", function, LAWS)
    if law == "gaussian" and delta == 0:
        _checks.reject("delta", function, "above 0 for Gaussian noise, which has no epsilon at 0", delta)
    search = _worst_case if law == "pure" else _gaussian
    return _least(lambda true: search(true, releases, epsilon, delta, confidence) >= target, epsilon)


def releases_needed(epsilon: float, delta: float, confidence: float, factor: float = 1.0) -> float:
    """How many releases on each side the bound needs to exceed ``factor`` times ``epsilon`` if everything leaks.

    With N right answers of N on both sides, both rates are bounded by r = error^(1/N), and the bound exceeds e where
    1 - r < (1 - delta) / (1 + e^e). A whole number, as a float beyond 2^53 and infinite beyond what a float holds.
    """
    function = "releases_needed"
    _, epsilon, delta, confidence = _settings(1, epsilon, delta, confidence, function)
    asked = epsilon * _checks.positive(factor, "factor", function)
    if asked > 700:
        return math.inf
    error = (1 - confidence) / 2
    needed = math.log(error) / math.log1p(-(1 - delta) / (1 + math.exp(asked)))
    if needed > 2**53:
        return needed
    return math.floor(needed) + 1


def _settings(
    releases: int, epsilon: float, delta: float, confidence: float, function: str
) -> tuple[int, float, float, float]:
    must = "a finite number, at least 0"
    epsilon = _checks.real(epsilon, "epsilon", function, must)
    if epsilon < 0:
        _checks.reject("epsilon", function, must, epsilon)
    return (
        _checks.count(releases, "releases", function),
        epsilon,
        _checks.probability(delta, "delta", function, zero=True),
        _checks.probability(confidence, "confidence", function, zero=False),
    )


def _chance(fpr: float, tpr: float, n: int, epsilon: float, delta: float, confidence: float) -> float:
    """P[the bound exceeds epsilon] for a test with these rates and n releases on each side."""
    mean, spread = n * fpr, math.sqrt(n * fpr * (1 - fpr))
    first, last = max(0, math.floor(mean - 10 * spread - 20)), min(n, math.ceil(mean + 10 * spread + 20))
    ends = np.unique(np.linspace(first, last, min(_BLOCKS, last - first + 1)).astype(np.int64))
    mass = np.diff(_at_most(ends, n, fpr), prepend=_at_most(np.array([first - 1]), n, fpr))
    error = (1 - confidence) / 2
    needed = _hits_needed(curve(epsilon, delta, upper(ends, n, error)), n, error)
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
    tail = np.geomspace(0.1 / n, 0.5, 120)
    rates = np.concatenate([tail, 1 - tail, _corners(profile)])
    hits = np.asarray(profile.tpr_at(rates), dtype=np.float64) * n
    error = (1 - confidence) / 2
    low, high, miss = lower(hits, n, error), upper(rates * n, n, error), upper(n - hits, n, error)
    ratio = np.maximum((low - delta) / high, (1 - high - delta) / miss)
    return float(rates[int(np.argmax(ratio))])


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
    return _chance(corner, 1 - corner, n, epsilon, delta, confidence)


def _gaussian(true: float, n: int, epsilon: float, delta: float, confidence: float) -> float:
    profile = GaussianProfile(gaussian.mu_of(true, delta))
    return power(profile, n, epsilon=epsilon, delta=delta, confidence=confidence)


def _least(found: Callable[[float], bool], claimed: float) -> float:
    """The least epsilon above the claimed one that is found; infinite where none is."""
    low, step = claimed, 0.25
    while not found(claimed + step):
        low, step = claimed + step, 2 * step
        if step > _FARTHEST:
            return math.inf
    high = claimed + step
    while high - low > 1e-5 * (1 + claimed):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high
