"""Statistics of an audit: from counts of a test's answers to a lower bound on epsilon, at a stated confidence.

A test reads one output and answers "in" or "out". Its true- and false-positive rates p and q are binomial, so
Clopper & Pearson (1934) bound each without approximation. If the mechanism is (epsilon, delta)-private,

    p ≤ e^ε q + δ,  1 - q ≤ e^ε (1 - p) + δ,

and both fail only where the lower bound on p or the upper bound on q does: half of the allowed error goes to each
(Jagielski, Ullman & Oprea 2020; Nasr et al. 2021). Only `mu_lower` assumes a law of the outputs.
`one_run_epsilon` uses one release with many independent coins instead of many releases (Steinke, Nasr &
Jagielski 2023).

The last part of the module computes what an audit can find: its power, the least leak that it finds, and how many
releases a claim needs. `epsilon_lower` exceeds a claimed epsilon exactly where the lower bound on true positives
lies above the claimed curve at the upper bound on false positives. Both counts are binomial, so the chance of that is a
finite sum, computed and not simulated. Where the sum is long, neighbouring terms share the worst of their conditions,
so the stated power is never above that of the test at the given rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, expit, gammaln, ndtri

from scoreshield import _validation
from scoreshield._validation import (
    check_count,
    check_delta,
    check_inside_unit,
    check_positive,
    one_of,
    optional,
    validate,
    whole_from,
)
from scoreshield.audit.claims import check_nonnegative, compute_tpr_ceiling
from scoreshield.decisions.confidence import bound_above, bound_area, bound_below, bound_true_positives, count_hits
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.noise import StaircaseNoise
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile, Profile, PureProfile, StepProfile

__all__ = [
    "auc",
    "clopper_pearson",
    "curve_excess",
    "detectable",
    "detection_power",
    "epsilon_lower",
    "mu_lower",
    "one_run_epsilon",
    "one_run_p_value",
    "releases_needed",
    "tpr_at",
    "tradeoff",
]

Float = NDArray[np.float64]
#: A ceiling on the true-positive rate, as a function of false-positive rates.
Ceiling = Callable[[Float], Float]
Side = Literal["both", "lower", "upper"]
LawName = Literal["pure", "gaussian", "laplace", "staircase"]
LAWS: tuple[LawName, ...] = get_args(LawName)
#: What the power of an audit assumes of a release of unknown law; it follows "if".
ASSUMING = "the release reveals it on these collections as clearly as randomised response does"
#: The most groups of neighbouring terms that a sum has.
_BLOCKS = 400
#: The largest distance from the claim that is searched.
_FARTHEST = 256.0


def _check_scores(scores: ArrayLike, name: str) -> Float:
    must = "a non-empty one-dimensional array of finite numbers"
    array = _validation.check_array(scores, name, must)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        _validation.reject(name, must, scores)
    return array.astype(np.float64)


# ---- Exact intervals of a binomial probability.


@validate(confidence=check_inside_unit, side=one_of(get_args(Side)))
def clopper_pearson(successes: ArrayLike, trials: ArrayLike, confidence: float, *, side: Side = "both") -> Any:
    """Compute the exact interval for a binomial probability (Clopper & Pearson 1934).

    Args:
        successes: A whole number, or an array of them.
        trials: A whole number of at least `successes`, or an array of them.
        confidence: That the interval contains the probability.
        side: "both" splits the error over two ends. "lower" and "upper" put it all on one end; the other end is 1 or 0.

    Returns:
        (low, high), floats or arrays.
    """
    hits, total = _check_counts(successes, trials, "successes", "trials")
    error = (1 - confidence) / (2 if side == "both" else 1)
    shape = np.broadcast(hits, total).shape
    low = bound_below(hits, total, error) if side != "upper" else np.zeros(shape)
    high = bound_above(hits, total, error) if side != "lower" else np.ones(shape)
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def _check_counts(hits: ArrayLike, trials: ArrayLike, name: str, total: str) -> tuple[Float, Float]:
    """Check for two arrays of whole numbers of fitting shapes; the error names the wrong one."""
    must = "a whole number, at least 0, or an array of them"
    arrays = []
    for value, parameter in ((hits, name), (trials, total)):
        array = _validation.check_array(value, parameter, must)
        if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0:
            _validation.reject(parameter, must, value)
        arrays.append(array)
    if arrays[1].min() < 1:
        _validation.reject(total, "at least 1", trials)
    try:
        fits = bool(np.all(arrays[0] <= arrays[1]))
    except ValueError:
        _validation.reject(name, f"of a shape that fits '{total}'", hits)
    if not fits:
        _validation.reject(name, f"at most '{total}'", hits)
    return arrays[0].astype(np.float64), arrays[1].astype(np.float64)


# ---- Bounds from counts.


@validate(delta=check_delta, confidence=check_inside_unit)
def epsilon_lower(
    in_hits: ArrayLike,
    in_trials: ArrayLike,
    out_hits: ArrayLike,
    out_trials: ArrayLike,
    delta: float,
    confidence: float,
) -> Any:
    """Compute a lower bound on the epsilon at `delta` of any mechanism that gives these counts.

    Args:
        in_hits: How often the test answered "in" on outputs of the first collection.
        in_trials: How many outputs of the first collection there were.
        out_hits: How often the test answered "in" on outputs of the second collection.
        out_trials: How many outputs of the second collection there were.
        delta: The delta that the bound is for.
        confidence: That the bound holds. Several tests must share the error between them.

    Returns:
        A number, at least 0 and finite, or an array of them. If the test was fixed before these outputs were drawn, it
        exceeds the true epsilon with probability at most 1 - confidence.
    """
    low, high, miss = _bound_rates(in_hits, in_trials, out_hits, out_trials, confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        positives = np.log(np.maximum(low - delta, 0.0) / high)
        negatives = np.log(np.maximum(1 - high - delta, 0.0) / miss)
    bound = np.maximum(np.maximum(positives, negatives), 0.0)
    return float(bound) if bound.ndim == 0 else bound


@validate(confidence=check_inside_unit)
def curve_excess(
    in_hits: ArrayLike,
    in_trials: ArrayLike,
    out_hits: ArrayLike,
    out_trials: ArrayLike,
    ceiling: Callable[[Float], ArrayLike],
    confidence: float,
) -> Any:
    """Compute how far a test is above a claimed trade-off curve. Above 0, the claim is broken.

    The bounds on both rates are those of `epsilon_lower`. For an (epsilon, delta) claim the excess is positive
    exactly where that bound exceeds epsilon. For a claimed profile it finds far smaller violations: a claimed pair
    binds in one point of the curve, which for Gaussian noise lies where outputs are rare. A profile binds everywhere.

    Args:
        in_hits: As in `epsilon_lower`.
        in_trials: As in `epsilon_lower`.
        out_hits: As in `epsilon_lower`.
        out_trials: As in `epsilon_lower`.
        ceiling: The claimed curve, such as `claim.tpr_at`.
        confidence: That a positive excess is one of the mechanism.
    """
    low, high, _ = _bound_rates(in_hits, in_trials, out_hits, out_trials, confidence)
    excess = np.asarray(low - np.asarray(ceiling(high), dtype=np.float64))
    return float(excess) if excess.ndim == 0 else excess


@validate(confidence=check_inside_unit)
def mu_lower(
    in_hits: ArrayLike, in_trials: ArrayLike, out_hits: ArrayLike, out_trials: ArrayLike, confidence: float
) -> Any:
    """Compute a lower bound on mu, if the mechanism is mu-Gaussian differentially private for some mu.

    That is an assumption on the mechanism (Nasr et al. 2023). `GaussianProfile(mu).epsilon_at(delta)` converts the
    bound into an epsilon. The arguments are those of `epsilon_lower`.
    """
    low, high, _ = _bound_rates(in_hits, in_trials, out_hits, out_trials, confidence)
    bound = np.where((low > 0) & (high < 1), ndtri(np.maximum(low, 1e-300)) - ndtri(np.minimum(high, 1 - 2**-53)), 0.0)
    bound = np.maximum(bound, 0.0)
    return float(bound) if bound.ndim == 0 else bound


@validate(in_scores=_check_scores, out_scores=_check_scores, points=optional(whole_from(2)))
def tradeoff(in_scores: ArrayLike, out_scores: ArrayLike, *, points: int | None = None) -> tuple[Float, Float]:
    """Compute the empirical trade-off curve of a score: both rates at every cut, from (0, 0) to (1, 1).

    Args:
        in_scores: Scores of outputs of the first collection.
        out_scores: Scores of outputs of the second collection.
        points: The most points of the curve, closest together at both ends, where the low error rates are.

    Returns:
        (fpr, tpr), false- and true-positive rates.
    """
    inside, outside = np.asarray(in_scores), np.asarray(out_scores)
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    fpr = np.concatenate([[0.0], count_hits(outside, cuts) / len(outside)])
    tpr = np.concatenate([[0.0], count_hits(inside, cuts) / len(inside)])
    if points is None or len(fpr) <= points:
        return fpr, tpr
    last, third = len(fpr) - 1, points // 3
    near = np.geomspace(1, last, third) if third else np.empty(0)
    even = np.linspace(0, last, points - 2 * third)
    chosen = np.unique(np.rint(np.concatenate([even, near, last - near])).astype(np.intp))
    return fpr[chosen], tpr[chosen]


@validate(in_scores=_check_scores, out_scores=_check_scores, confidence=check_inside_unit)
def auc(in_scores: ArrayLike, out_scores: ArrayLike, confidence: float) -> tuple[float, float, float]:
    """Compute the area under the trade-off curve, P[in > out] + P[in = out]/2, with a distribution-free interval.

    With k the smaller sample, the estimate is an average of averages of k independent terms in [0, 1], so Chernoff's
    bound for k terms holds (Hoeffding 1963, section 5): the interval is all t with k KL(estimate, t) <= ln(2/error).

    Returns:
        (value, low, high).
    """
    return bound_area(np.asarray(in_scores), np.asarray(out_scores), confidence)


@validate(in_scores=_check_scores, out_scores=_check_scores, fpr=check_inside_unit, confidence=check_inside_unit)
def tpr_at(in_scores: ArrayLike, out_scores: ArrayLike, fpr: float, confidence: float) -> tuple[float, float, float]:
    """Compute the true-positive rate of a score at one false-positive rate, with a distribution-free interval.

    The interval is for the score's true curve. Order statistics of the outside scores give one threshold whose true
    false-positive rate is at most `fpr` and one where it is at least that; Clopper-Pearson bounds the true positives
    at each. A quarter of the error goes to each of the four statements.

    Returns:
        (value, low, high).
    """
    inside, outside = np.asarray(in_scores), np.asarray(out_scores)
    falling = np.sort(outside)[::-1]
    above, at_or_above = count_hits(inside, falling, strict=True), count_hits(inside, falling)
    low, high = bound_true_positives(above, at_or_above, len(inside), fpr, confidence)
    value = _interpolate(*tradeoff(inside, outside), fpr)
    return value, min(low, value), max(high, value)


@validate(
    guesses=whole_from(0),
    correct=whole_from(0),
    delta=check_delta,
    confidence=check_inside_unit,
    canaries=check_count,
)
def one_run_epsilon(guesses: int, correct: int, delta: float, confidence: float, canaries: int) -> float:
    """Compute a lower bound on epsilon from one release and guesses of fair coins.

    Args:
        guesses: How many of the coins were guessed. For delta > 0 it must be fixed beforehand.
        correct: How many of the guesses were correct.
        delta: The delta that the bound is for.
        confidence: That the bound holds.
        canaries: How many coins there were. A coin that is not guessed costs nothing but its delta.
    """
    if not correct <= guesses <= canaries:
        got = f"{correct} correct of {guesses} guesses on {canaries} canaries"
        _validation.reject("correct", "at most the guesses, and these at most the canaries", got)
    error = 1 - confidence
    if one_run_p_value(guesses, correct, 0.0, delta, canaries) >= error:
        return 0.0
    low, high = 0.0, 1.0
    while one_run_p_value(guesses, correct, high, delta, canaries) < error:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if one_run_p_value(guesses, correct, middle, delta, canaries) < error:
            low = middle
        else:
            high = middle
    return low


def one_run_p_value(guesses: int, correct: int, epsilon: float, delta: float, canaries: int) -> float:
    """Compute the largest probability of `correct` or more right guesses, over all (epsilon, delta)-private releases.

    With W binomial(guesses, e^epsilon / (1 + e^epsilon)), v = `correct` and m canaries it is at most (Steinke et al.
    2023, their bound for approximate privacy):

        P[W ≥ v] + 2 m δ max over 1 ≤ i ≤ v of P[v - i ≤ W < v] / i.
    """
    if correct == 0:
        return 1.0
    right = float(expit(epsilon))
    tail = float(betainc(correct, guesses - correct + 1, right))
    if delta == 0:
        return tail
    below = np.cumsum(_pmf(np.arange(correct - 1, -1, -1), guesses, right))
    worst = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * canaries * delta * worst)


def _pmf(k: NDArray[Any], n: int, p: float) -> Float:
    """Compute binomial probabilities; `p` is strictly between 0 and 1, or 1 after rounding."""
    if p == 1:
        return np.where(k == n, 1.0, 0.0)
    logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    return np.asarray(np.exp(logs), dtype=np.float64)


def _bound_rates(
    in_hits: ArrayLike,
    in_trials: ArrayLike,
    out_hits: ArrayLike,
    out_trials: ArrayLike,
    confidence: float,
) -> tuple[Float, Float, Float]:
    """Bound true positives from below, and false positives and misses from above; all bounds hold together."""
    inside = _check_counts(in_hits, in_trials, "in_hits", "in_trials")
    outside = _check_counts(out_hits, out_trials, "out_hits", "out_trials")
    error = (1 - confidence) / 2
    hits, total = inside
    try:
        np.broadcast(hits, total, *outside)
    except ValueError:
        _validation.reject("in_hits", "of a shape that fits 'out_hits'", in_hits)
    # 1 - low would lose digits, so misses get a bound of their own; it is the same event.
    return bound_below(hits, total, error), bound_above(*outside, error), bound_above(total - hits, total, error)


def _interpolate(fpr: Float, tpr: Float, rate: float) -> float:
    """Interpolate the curve at one rate, linearly, as a test that tosses a coin between two cuts."""
    here = int(np.searchsorted(fpr, rate, "right")) - 1
    if here == len(fpr) - 1 or fpr[here] == rate:
        return float(tpr[here])
    share = (rate - fpr[here]) / (fpr[here + 1] - fpr[here])
    return float(tpr[here] + share * (tpr[here + 1] - tpr[here]))


# ---- What an audit can find.


@validate(
    releases=check_count,
    epsilon=check_nonnegative,
    delta=check_delta,
    confidence=check_inside_unit,
    fpr=optional(check_delta),
)
def detection_power(
    profile: Profile, releases: int, *, epsilon: float, delta: float, confidence: float, fpr: float | None = None
) -> float:
    """Compute the probability that an audit contradicts a claim about a mechanism with this true profile.

    Args:
        profile: What the mechanism really leaks, such as `GaussianProfile(mu)` or `PureProfile(epsilon)`.
        releases: Releases on each side, without those that the test was chosen on.
        epsilon: The claimed epsilon.
        delta: The claimed delta.
        confidence: That of the audit.
        fpr: The false-positive rate of the test. None chooses one that makes the expected bound large.
    """
    if not isinstance(profile, Profile):
        _validation.reject("profile", "a privacy profile, such as GaussianProfile(1.0)", profile)
    ceiling = _make_ceiling(epsilon, delta)
    if fpr is None:
        fpr = _choose_rate(profile, releases, delta, confidence)
    return _compute_power(fpr, float(profile.tpr_at(fpr)), releases, ceiling, confidence)


@validate(
    releases=check_count,
    delta=check_delta,
    confidence=check_inside_unit,
    power=check_inside_unit,
    epsilon=check_nonnegative,
    law=one_of(LAWS),
)
def detectable(
    releases: int, delta: float, confidence: float, power: float = 0.9, *, epsilon: float, law: LawName = "pure"
) -> float:
    """Find the least true epsilon at `delta` for which an audit contradicts the claim `epsilon` with this power.

    Args:
        releases: Releases on each side, without those that the test was chosen on.
        delta: The claimed delta.
        confidence: That of the audit.
        power: The probability with which the audit must contradict the claim.
        epsilon: The claimed epsilon.
        law: How the mechanism leaks. "pure" leaks most at its epsilon: randomised response, which with probability
            delta reveals everything. "gaussian", "laplace" and "staircase" are noise with that epsilon at that delta.

    Returns:
        The epsilon, rounded up. It is infinite where no leak at all would be found (see `releases_needed`).
    """
    if law == "gaussian" and delta == 0:
        _validation.reject("delta", "above 0 for Gaussian noise, which has no epsilon at 0", delta)
    if law == "pure":
        return _find_least(
            lambda true: _compute_worst_power(true, releases, epsilon, delta, confidence) >= power, epsilon
        )
    family, ceiling = _choose_family(law, delta), _make_ceiling(epsilon, delta)

    def is_found(true: float) -> bool:
        profile = family(true)
        rate = _choose_rate(profile, releases, delta, confidence)
        return _compute_power(rate, float(profile.tpr_at(rate)), releases, ceiling, confidence) >= power

    return _find_least(is_found, epsilon)


@validate(epsilon=check_nonnegative, delta=check_delta, confidence=check_inside_unit, factor=check_positive)
def releases_needed(epsilon: float, delta: float, confidence: float, factor: float = 1.0) -> float:
    """Compute how many releases on each side the bound needs to exceed `factor * epsilon` if everything leaks.

    With N right answers of N on both sides, both rates are bounded by r = error^(1/N), and the bound exceeds e where
    1 - r < (1 - delta) / (1 + e^e).

    Returns:
        A whole number; a float beyond 2^53; infinite beyond the range of floats.
    """
    goal = epsilon * factor
    if goal > 700:
        return math.inf
    error = (1 - confidence) / 2
    needed = math.log(error) / math.log1p(-(1 - delta) / (1 + math.exp(goal)))
    if needed > 2**53:
        return needed
    return math.floor(needed) + 1


def _make_ceiling(epsilon: float, delta: float) -> Ceiling:
    return lambda fpr: compute_tpr_ceiling(epsilon, delta, fpr)


def _compute_power(fpr: float, tpr: float, n: int, ceiling: Ceiling, confidence: float) -> float:
    """Compute P[the lower bound lies above the ceiling] for a test with these rates and n releases on each side."""
    mean, spread = n * fpr, math.sqrt(n * fpr * (1 - fpr))
    first, last = max(0, math.floor(mean - 10 * spread - 20)), min(n, math.ceil(mean + 10 * spread + 20))
    ends = np.unique(np.linspace(first, last, min(_BLOCKS, last - first + 1)).astype(np.int64))
    mass = np.diff(_chance_at_most(ends, n, fpr), prepend=_chance_at_most(np.array([first - 1]), n, fpr))
    error = (1 - confidence) / 2
    needed = _count_hits_needed(np.asarray(ceiling(bound_above(ends, n, error))), n, error)
    found = np.where(needed > n, 0.0, _chance_at_least(np.minimum(needed, n), n, tpr))
    return float(np.clip(mass @ found, 0.0, 1.0))


def _count_hits_needed(ceiling: Float, n: int, error: float) -> NDArray[np.int64]:
    """Find the least number of hits whose lower bound lies above each ceiling; n + 1 where none does."""
    too_few, enough = np.zeros(len(ceiling), dtype=np.int64), np.full(len(ceiling), n + 1, dtype=np.int64)
    while np.any(enough - too_few > 1):
        middle = (too_few + enough) // 2
        above = _chance_at_least(np.maximum(middle, 1), n, ceiling) < error
        open_ = enough - too_few > 1
        enough = np.where(open_ & above, middle, enough)
        too_few = np.where(open_ & ~above, middle, too_few)
    return enough


def _chance_at_least(k: NDArray[np.int64], n: int, p: float | Float) -> Float:
    """P[binomial(n, p) >= k] for 1 <= k <= n."""
    return np.asarray(betainc(k, n - k + 1, p), dtype=np.float64)


def _chance_at_most(k: NDArray[np.int64], n: int, p: float) -> Float:
    """P[binomial(n, p) <= k] for -1 <= k <= n."""
    inner = betaincc(np.maximum(k, 0) + 1, np.maximum(n - k, 1), p)
    return np.asarray(np.where(k < 0, 0.0, np.where(k >= n, 1.0, inner)), dtype=np.float64)


def _choose_rate(profile: Profile, n: int, delta: float, confidence: float) -> float:
    """Choose a false-positive rate at which the bound is large if every count is as expected."""
    rates, hits, low, high = _expect_counts(profile, n, confidence)
    miss = bound_above(n - hits, n, (1 - confidence) / 2)
    ratio = np.maximum((low - delta) / high, (1 - high - delta) / miss)
    return float(rates[int(np.argmax(ratio))])


def _expect_counts(profile: Profile, n: int, confidence: float) -> tuple[Float, Float, Float, Float]:
    """List false-positive rates to choose from, the hits expected there, and the bounds on both rates."""
    tail = np.geomspace(0.1 / n, 0.5, 120)
    rates = np.concatenate([tail, 1 - tail, _find_corners(profile)])
    hits = np.asarray(profile.tpr_at(rates), dtype=np.float64) * n
    error = (1 - confidence) / 2
    return rates, hits, bound_below(hits, n, error), bound_above(rates * n, n, error)


def _choose_family(law: str, delta: float) -> Callable[[float], Profile]:
    """Choose the function from an epsilon at delta to the profile of noise that has it."""

    # Pure noise has its epsilon at delta 0; at a delta above it has less.
    return {
        "gaussian": lambda epsilon: GaussianProfile(gaussian.find_mu(epsilon, delta)),
        "laplace": LaplaceProfile,
        "staircase": lambda epsilon: StaircaseNoise.calibrate(epsilon, 1.0).profile(1.0),
    }[law]


def _find_corners(profile: Profile) -> list[float]:
    """Find where a curve of straight pieces bends first, which is where it leaks most."""
    if isinstance(profile, PureProfile):
        return [1 / (1 + math.exp(min(profile.epsilon, 700.0)))]
    if isinstance(profile, StepProfile):
        return [profile.mass * math.exp(-profile.epsilon)]
    return []


def _compute_worst_power(true: float, n: int, epsilon: float, delta: float, confidence: float) -> float:
    """Compute the power against the mechanism whose curve is that of (true, delta), tested in its corner."""
    corner = (1 - delta) / (1 + math.exp(min(true, 700.0)))
    return _compute_power(corner, 1 - corner, n, _make_ceiling(epsilon, delta), confidence)


def _find_least(is_found: Callable[[float], bool], claimed: float) -> float:
    """Find the least epsilon above the claimed one that is detected; infinite where none is."""
    low, step = claimed, 0.25
    while not is_found(claimed + step):
        low, step = claimed + step, 2 * step
        if step > _FARTHEST:
            return math.inf
    high = claimed + step
    while high - low > 1e-5 * (1 + claimed):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
