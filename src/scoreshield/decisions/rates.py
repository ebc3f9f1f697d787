"""How noise changes decisions by a threshold, exactly, for any noise law through its CDF.

A pair is accepted when its released score exceeds a threshold t. With clean scores S and noise W, the rate of
acceptance is `E P[W > t - S]` (`scoreshield.decisions.scores` describes the sum). Released cosines are
clipped to their public range. Clipping changes decisions only at the upper end: with the strict rule (score > t)
nothing passes t = 1, with the non-strict rule (score >= t) the share

    L(σ) = E P[W ≥ 1 - S]

passes. No threshold below 1 has a smaller rate than L. A false-match target below L is out of reach on clipped
scores. It is within reach on noisy scores, which are as private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import erf

from scoreshield import _validation
from scoreshield._types import Calibration
from scoreshield._validation import (
    check_count,
    check_delta,
    check_epsilon,
    check_inside_unit,
    check_positive,
    check_real,
    one_of,
    validate,
)
from scoreshield.decisions.scores import (
    AdditiveLaw,
    Law,
    NoiseLike,
    Scores,
    ScoresLike,
    as_law,
    as_scores,
    check_target,
    pass_probability,
)
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration
from scoreshield.privacy.noise import GaussianNoise

Endpoint = Literal["strict", "nonstrict"]
ENDPOINTS: tuple[str, ...] = get_args(Endpoint)
_check_endpoint = one_of(ENDPOINTS)


def check_share(value: Any, name: str) -> float:
    """Check for a number in (0, 1]."""
    share = check_real(value, name, "in (0, 1]")
    if not 0 < share <= 1:
        _validation.reject(name, "in (0, 1]", value)
    return share


def _check_numbers(value: Any, name: str) -> Any:
    """Check for a finite number or an array of them, and return it as an array of floats."""
    must = "a finite number or an array of them"
    numbers = _validation.check_array(value, name, must)
    if numbers.dtype.kind not in "fiu" or not np.isfinite(numbers).all():
        _validation.reject(name, must, value)
    return numbers.astype(np.float64)


@validate(score=_check_numbers, threshold=_check_numbers, endpoint=_check_endpoint)
def flip_probability(
    score: ArrayLike, threshold: ArrayLike, noise: NoiseLike, *, endpoint: Endpoint = "strict", clipped: bool = True
) -> Any:
    """Compute the probability that noise reverses the decision on a clean score.

    For Gaussian noise and a threshold inside (-1, 1) it is Q(|s - t| / sigma). On clipped scores nothing exceeds 1, so
    at t >= 1 a strict rule never reverses the decision on a cosine.

    Args:
        score: Clean scores, a number or an array.
        threshold: Thresholds, a number or an array that broadcasts with ``score``.
        noise: A standard deviation (Gaussian) or a noise law.
        endpoint: "strict" accepts score > threshold, "nonstrict" accepts score >= threshold.
        clipped: Whether released scores are clipped to [-1, 1]. A clean score outside is no cosine and is not clipped.

    Returns:
        A float, or an array where an array was given.
    """
    s, t = _as_arrays(score, threshold)
    law = as_law(noise)
    inclusive = endpoint == "nonstrict"
    accepted = pass_probability(law, t, s, inclusive=inclusive)
    clean = (s >= t) if inclusive else (s > t)
    flips = np.where(clean, 1 - accepted, accepted)
    if isinstance(law, GaussianNoise):  # the tail has no cancellation, unlike 1 - accepted
        flips = law.sf(np.abs(s - t))
    if clipped:
        never = ((t > 1) if inclusive else (t >= 1)) & (s <= 1)
        always = ((t <= -1) if inclusive else (t < -1)) & (s >= -1)
        flips = np.where(never, clean, np.where(always, ~clean, flips)).astype(np.float64)
    return _unwrap_scalar(flips)


@validate(score=_check_numbers, threshold=_check_numbers)
def mills_bound(score: ArrayLike, threshold: ArrayLike, noise: NoiseLike) -> Any:
    """Bound the flip probability under Gaussian noise: exp(-k^2/2) / (k sqrt(2 pi)) with k = |s - t| / sigma.

    The bound is infinite at k = 0.
    """
    law = as_law(noise)
    if not isinstance(law, GaussianNoise):
        _validation.reject("noise", "Gaussian: Mills's bound is about Gaussian tails", noise)
    s, t = _as_arrays(score, threshold)
    k = np.minimum(np.abs(s - t) / law.std, 1e150)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        bound = np.exp(-0.5 * k * k) / (k * math.sqrt(2 * math.pi))
    return _unwrap_scalar(bound)


@validate(threshold=_check_numbers, endpoint=_check_endpoint, lower=check_real, upper=check_real)
def false_match_rate(
    impostor: ScoresLike,
    threshold: ArrayLike,
    noise: NoiseLike = 0.0,
    *,
    endpoint: Endpoint = "strict",
    clipped: bool = False,
    lower: float = -1.0,
    upper: float = 1.0,
) -> Any:
    """Compute the share of impostor scores that are accepted after noise, E P[W > t - S].

    Args:
        impostor: Clean scores of pairs that do not match: an array, or a ``Sample`` or ``Distribution``.
        threshold: One threshold, or an array of them.
        noise: A standard deviation (Gaussian) or a noise law; 0 gives the clean share.
        endpoint: "strict" accepts score > threshold, "nonstrict" accepts score >= threshold.
        clipped: Whether decisions are made on scores clipped to [lower, upper]. From the upper end on a strict rule
            then accepts nothing, and below the lower end it accepts all. Between, clipping changes no decision.
        lower: The lower end of the range.
        upper: The upper end of the range.

    Returns:
        A float, or an array where an array was given.
    """
    scores, law = as_scores(impostor, "impostor"), as_law(noise)
    t = np.asarray(threshold)
    inclusive = endpoint == "nonstrict"
    rates = scores.rate(t, law, inclusive=inclusive)
    if clipped:
        _check_order(lower, upper)
        rates = np.where((t > upper) if inclusive else (t >= upper), 0.0, rates)
        rates = np.where((t <= lower) if inclusive else (t < lower), 1.0, rates)
    return _unwrap_scalar(rates)


@validate(upper=check_real)
def endpoint_limit(impostor: ScoresLike, noise: NoiseLike, *, upper: float = 1.0) -> float:
    """Compute L = E P[W >= 1 - S], the share that a threshold at the upper end accepts.

    No threshold below the upper end has a smaller rate.
    """
    scores, law = as_scores(impostor, "impostor"), as_law(noise)
    return float(scores.rate(upper, law, inclusive=True))


@dataclass(frozen=True)
class Recalibration:
    """The threshold at which the false-match rate after noise is the target again.

    Attributes:
        target: The false-match rate to reach.
        clean_threshold: inf {t : P[S > t] <= target}, the threshold without noise.
        threshold: The threshold that restores the target on the released scores; NaN where ``feasible`` is false.
        shift: The distance from the clean threshold to the new one; NaN where ``feasible`` is false.
        feasible: Whether a threshold within the range of released scores reaches the target.
        limit: L, the rate of a threshold at the upper end (`endpoint_limit`).
        rate_before: The private false-match rate if the clean threshold is kept.
        rate: The private false-match rate at the new threshold, never above the target.
        unclipped_threshold: The threshold on noisy scores that are not clipped. There every target is reachable.
        unclipped_shift: Its distance from the clean threshold.
        small_noise_shift: -(var / 2) f'(t) / f(t), the limit law for small noise. From a sample, the density is an
            estimate.
        endpoint: The decision rule, "strict" or "nonstrict".
        clipped: Whether decisions are made on clipped scores.
    """

    target: float
    clean_threshold: float
    threshold: float
    shift: float
    feasible: bool
    limit: float
    rate_before: float
    rate: float
    unclipped_threshold: float
    unclipped_shift: float
    small_noise_shift: float
    endpoint: Endpoint
    clipped: bool


@validate(target=check_target, endpoint=_check_endpoint, lower=check_real, upper=check_real)
def recalibrate(
    impostor: ScoresLike,
    target: float,
    noise: NoiseLike,
    endpoint: Endpoint = "strict",
    clipped: bool = True,
    *,
    lower: float = -1.0,
    upper: float = 1.0,
) -> Recalibration:
    """Find the threshold at which the false-match rate after noise is ``target`` again, by bracketing.

    Args:
        impostor: Clean scores of pairs that do not match: an array, or a ``Sample`` or ``Distribution``.
        target: The false-match rate, in (0, 1), and at least one over the number of scores.
        noise: A standard deviation (Gaussian) or a noise law. Under a law with atoms, the threshold is the least whose
            rate does not exceed the target.
        endpoint: "strict" accepts score > threshold, "nonstrict" accepts score >= threshold. They differ at the upper
            end.
        clipped: Whether decisions are made on scores clipped to [lower, upper], or on noisy scores.
        lower: The lower end of the range.
        upper: The upper end of the range.
    """
    scores, law = as_scores(impostor, "impostor"), as_law(noise)
    inclusive = endpoint == "nonstrict"
    _check_order(lower, upper)
    clean = scores.clean_threshold(target)
    limit = float(scores.rate(upper, law, inclusive=True))
    moved = clean
    if law is None and inclusive and scores.rate(clean, None, inclusive=True) > target:
        moved = math.nextafter(clean, math.inf)
    if law is not None:
        moved = find_least_threshold(lambda t: scores.rate(t, law, inclusive=inclusive) - target, clean, law.std)
    feasible = not clipped or (moved <= upper if inclusive else moved < upper)
    threshold = moved if feasible else math.nan
    if clipped and feasible:  # below the lower end everything passes
        threshold = max(moved, math.nextafter(lower, math.inf) if inclusive else lower)
    small = 0.0 if law is None else -0.5 * law.std**2 * scores.log_slope(clean)
    return Recalibration(
        target=target,
        clean_threshold=clean,
        threshold=threshold,
        shift=threshold - clean,
        feasible=bool(feasible),
        limit=limit,
        rate_before=float(scores.rate(clean, law, inclusive=inclusive)),
        rate=float(scores.rate(threshold, law, inclusive=inclusive)) if feasible else math.nan,
        unclipped_threshold=moved,
        unclipped_shift=moved - clean,
        small_noise_shift=small,
        endpoint=endpoint,
        clipped=bool(clipped),
    )


@validate(target=check_target, upper=check_real)
def critical_scale(
    impostor: ScoresLike, target: float, *, upper: float = 1.0, family: Callable[[float], Law] = GaussianNoise
) -> float:
    """Find the least noise scale at which the endpoint limit L reaches ``target``.

    With more noise, no threshold on clipped scores meets the target.

    Args:
        impostor: Clean scores of pairs that do not match: an array, or a ``Sample`` or ``Distribution``.
        target: The false-match rate.
        upper: The upper end of the range.
        family: A function from a scale to a noise law. By default the law is Gaussian and the scale its standard
            deviation.

    Returns:
        The scale: infinity where no noise does that (a target of one half or more), and 0 where clean scores at the
        upper end already do.
    """
    scores = as_scores(impostor, "impostor")
    if not callable(family):
        _validation.reject("family", "a function from a scale to a noise law", family)
    scores.clean_threshold(target)  # raises an error for a target that the sample cannot support

    def excess(scale: float) -> float:
        return float(scores.rate(upper, family(scale), inclusive=True)) - target

    start = max(upper - scores.highest, scores.spread, 1e-9)
    return find_first_crossing(excess, start, smallest=1e-9, largest=1e9)


@validate(target=check_target, delta=check_inside_unit, sensitivity=check_positive, method=one_of(calibration.METHODS))
def minimum_epsilon(
    impostor: ScoresLike,
    target: float,
    delta: float,
    *,
    sensitivity: float = 2.0,
    method: Calibration = "analytic",
    upper: float = 1.0,
    family: Callable[[float], Law] | None = None,
) -> float:
    """Find the least epsilon at which a false-match target is within reach on clipped scores: where L <= target.

    Args:
        impostor: Clean scores of pairs that do not match: an array, or a ``Sample`` or ``Distribution``.
        target: The false-match rate.
        delta: The delta of the contract.
        sensitivity: The sensitivity, as `scoreshield.calibrate` takes it.
        method: The calibration rule, as `scoreshield.calibrate` takes it.
        upper: The upper end of the range.
        family: For noise that is not Gaussian, a function from epsilon to the noise law. ``delta``, ``sensitivity`` and
            ``method`` are then not used.

    Returns:
        The epsilon: 0 where every epsilon is enough, and infinity where none is, because clean scores at the upper end
        already exceed the target.
    """
    scores = as_scores(impostor, "impostor")
    if family is not None:
        return _find_least_epsilon(scores, target, family, upper)
    scale = critical_scale(scores, target, upper=upper)
    epsilon = epsilon_for_scale(scale, delta, sensitivity, method)
    if not 1e-9 <= epsilon <= 1e9:
        return epsilon
    while (
        scores.rate(upper, GaussianNoise(calibration.calibrate(epsilon, delta, sensitivity, method)), inclusive=True)
        > target
    ):
        epsilon *= 1 + 1e-14  # rounding must not leave the rate above the target
    return epsilon


def epsilon_for_scale(scale: float, delta: float, sensitivity: float, method: Calibration = "analytic") -> float:
    """Find the least epsilon whose calibrated Gaussian noise is no larger than ``scale``."""
    if scale == 0:
        return math.inf
    if math.isinf(scale):
        return 0.0
    if method == "analytic":
        return calibration.find_epsilon(delta, sensitivity / scale)
    epsilon = calibration.compute_rule_mu(1.0, delta, method) ** -1 * sensitivity / scale
    calibration.calibrate(epsilon, delta, sensitivity, method)  # raises an error where the rule is not private
    return epsilon


def _find_least_epsilon(scores: Scores, target: float, family: Callable[[float], Law], upper: float) -> float:
    scores.clean_threshold(target)
    if not callable(family):
        _validation.reject("family", "a function from epsilon to a noise law", family)

    def excess(inverse: float) -> float:  # noise grows with 1 / epsilon
        return float(scores.rate(upper, family(1 / inverse), inclusive=True)) - target

    inverse = find_first_crossing(excess, 1.0, smallest=1e-9, largest=1e9)
    return math.inf if inverse == 0 else 1 / inverse


@dataclass(frozen=True)
class FalseMatchGap:
    """Bounds on the difference between the false-match rates of two neighbouring galleries.

    Attributes:
        any_mechanism: tanh(epsilon / 2) + delta, which holds for every mechanism.
        coordinatewise: The same divided by n, where one record moves one released score.
        attained: What the noise law itself reaches; for a Gaussian of sensitivity 2, erf(1 / (sigma sqrt 2)) / n.
    """

    any_mechanism: float
    coordinatewise: float
    attained: float


@validate(n=check_count, epsilon=check_epsilon, delta=check_delta, sensitivity=check_positive)
def false_match_gap(
    n: int, noise: NoiseLike, *, epsilon: float, delta: float, sensitivity: float = 2.0
) -> FalseMatchGap:
    """Bound how much the false-match rate of a gallery of ``n`` records depends on one of them."""
    law = as_law(noise)
    bound = min(1.0, math.tanh(epsilon / 2) + delta)
    return FalseMatchGap(bound, bound / n, _compute_total_variation(law, sensitivity) / n)


def _compute_total_variation(law: Law | None, shift: float) -> float:
    """Compute the largest difference of tails at one threshold between the noise and the noise moved by ``shift``."""
    if law is None:
        return 1.0
    if isinstance(law, GaussianNoise):
        return float(erf(shift / (2 * math.sqrt(2) * law.std)))
    t = np.linspace(-20 * law.std, 20 * law.std + shift, 200_001)
    apart = pass_probability(law, t, shift) - pass_probability(law, t, 0.0)
    return float(np.max(apart))


@dataclass(frozen=True)
class LipschitzBounds:
    """Bounds on the change of an operating curve whose score CDFs are Lipschitz; eta = L E|W|."""

    eta: float
    tpr: float
    fpr: float
    auc: float
    eer: float

    @validate(a=check_share)
    def partial_auc(self, a: float) -> float:
        """Bound the change of the area up to a false-positive rate of ``a``."""
        return a * self.eta + min(a, self.eta)


@validate(lipschitz=check_positive)
def lipschitz_bounds(lipschitz: float, noise: NoiseLike) -> LipschitzBounds:
    """Bound the change of TPR, FPR, AUC, EER and partial AUC from the largest density of the clean scores.

    For Gaussian noise E|W| = sigma sqrt(2 / pi).

    Args:
        lipschitz: A bound on both score densities.
        noise: A standard deviation (Gaussian) or a noise law.
    """
    eta = lipschitz * _compute_mean_size(as_law(noise))
    return LipschitzBounds(eta, eta, eta, 2 * eta, eta)


def _compute_mean_size(law: Law | None) -> float:
    """Compute E|W| from the tails: the integral of P[W > x] + P[W < -x]."""
    if law is None:
        return 0.0
    if isinstance(law, GaussianNoise):
        return law.std * math.sqrt(2 / math.pi)
    if not isinstance(law, AdditiveLaw):
        raise InvalidInput("Lipschitz bounds need additive noise, with a cdf.")
    total, low, high = 0.0, 0.0, 2.0**-20 * law.std
    while True:  # intervals of doubling length, each in many small steps, until both tails vanish
        x, step = np.linspace(low, high, 16_385, retstep=True)
        both = pass_probability(law, x, 0.0) + np.asarray(law.cdf(-x))
        total += float(step * both[:-1].sum())  # an upper sum, since the tails fall
        if both[-1] < 1e-17 or high > 1e9 * law.std:
            return total
        low, high = high, 2 * high


@validate(cosine=_check_numbers)
def euclidean_threshold(cosine: ArrayLike) -> Any:
    """Compute the squared Euclidean distance of unit vectors with this cosine: 2 (1 - t)."""
    return _unwrap_scalar(2 * (1 - np.asarray(cosine)))


@validate(squared_euclidean=_check_numbers)
def cosine_threshold(squared_euclidean: ArrayLike) -> Any:
    """Compute the cosine of unit vectors at this squared Euclidean distance: 1 - t / 2."""
    return _unwrap_scalar(1 - np.asarray(squared_euclidean) / 2)


def _unwrap_scalar(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _check_order(lower: float, upper: float) -> None:
    if not lower < upper:
        _validation.reject("lower", f"below the upper end, {upper:g}", lower)


def _as_arrays(score: ArrayLike, threshold: ArrayLike) -> tuple[Any, Any]:
    """Return two checked arguments as arrays, and raise an error where they do not broadcast."""
    s, t = np.asarray(score), np.asarray(threshold)
    try:
        np.broadcast_shapes(s.shape, t.shape)
    except ValueError:
        _validation.reject("threshold", f"of a shape that broadcasts with {s.shape}", threshold)
    return s, t


def find_least_threshold(excess: Callable[[float], float], start: float, step: float) -> float:
    """Find the least t with excess(t) <= 0, for a function that falls with t.

    At a jump the result is the point just after it, so that a rate never ends above its target. On a plateau the result
    is its beginning. ``start`` and ``step`` place the bracket for Brent's method.
    """
    low = high = start
    width = step
    while excess(low) <= 0:
        low, width = low - width, 2 * width
    width = step
    while excess(high) > 0:
        high, width = high + width, 2 * width
    if low == high:
        return low
    size = max(1.0, abs(low), abs(high))
    root = float(brentq(excess, low, high, xtol=1e-15 * size, rtol=1e-14, maxiter=500))
    nudge = 1e-15 * size
    while excess(root) > 0:
        root, nudge = root + nudge, 2 * nudge
    if excess(root - 1e-12 * size) > 0:
        return root
    while root - low > 1e-15 * size:  # Brent's method may stop anywhere on a plateau
        middle = (low + root) / 2
        low, root = (low, middle) if excess(middle) <= 0 else (middle, root)
    return root


def find_first_crossing(excess: Callable[[float], float], start: float, *, smallest: float, largest: float) -> float:
    """Find the least x > 0 where a function that is negative near 0 becomes non-negative.

    Returns:
        The crossing; 0 where the function is not negative even at ``smallest``, and infinity where it is still negative
        at ``largest``.
    """
    low = high = start
    while excess(high) < 0:
        low, high = high, 2 * high
        if high > largest:
            return math.inf
    while low == high or excess(low) >= 0:
        high, low = low, low / 2
        if low < smallest:
            return 0.0
    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))
