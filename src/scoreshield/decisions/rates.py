r"""What noise does to decisions by a threshold, exactly, for any noise law through its CDF.

A pair is accepted when its released score exceeds a threshold t. With clean scores S and noise W, the rate of
acceptance is :math:`E\,P[W > t - S]` (:mod:`scoreshield.decisions.scores` says how it is summed). Released cosines are
clipped to their public range, and that changes decisions at its upper end alone: with the strict rule (score > t)
nothing passes t = 1, with the non-strict rule (score >= t) the share

.. math:: L(\sigma) = E\,P[W \ge 1 - S]

passes. No threshold below 1 has a smaller rate than L, so a false-match target below it is out of reach on clipped
scores, though not on the noisy ones, which are as private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from scoreshield import _validation
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
from scoreshield.decisions.roots import first_crossing, least_threshold
from scoreshield.decisions.scores import (
    AdditiveLaw,
    Law,
    Scores,
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


@validate()
def flip_probability(
    score: ArrayLike, threshold: ArrayLike, noise: object, *, endpoint: str = "strict", clipped: bool = True
) -> Any:
    """The probability that noise turns the decision on a clean score around.

    For Gaussian noise and a threshold inside (-1, 1) it is Q(|s - t| / sigma). On clipped scores nothing exceeds 1, so
    at t >= 1 a strict rule never flips the decision on a cosine.

    Parameters
    ----------
    score, threshold : numbers or arrays that broadcast.
    noise : a standard deviation (Gaussian) or a noise law.
    endpoint : "strict" accepts score > threshold, "nonstrict" score >= threshold.
    clipped : whether released scores are clipped to [-1, 1]; a clean score beyond is no cosine and is not clipped.
    """
    s, t = _numbers(score, "score"), _numbers(threshold, "threshold")
    _broadcast(s, t)
    law = as_law(noise)
    inclusive = _inclusive(endpoint)
    accepted = pass_probability(law, t, s, inclusive=inclusive)
    clean = (s >= t) if inclusive else (s > t)
    flips = np.where(clean, 1 - accepted, accepted)
    if isinstance(law, GaussianNoise):  # no cancellation in 1 - accepted
        flips = law.sf(np.abs(s - t))
    if clipped:
        never = ((t > 1) if inclusive else (t >= 1)) & (s <= 1)
        always = ((t <= -1) if inclusive else (t < -1)) & (s >= -1)
        flips = np.where(never, clean, np.where(always, ~clean, flips)).astype(np.float64)
    return float(flips) if flips.ndim == 0 else flips


@validate()
def mills_bound(score: ArrayLike, threshold: ArrayLike, noise: object) -> Any:
    """An upper bound on the flip probability under Gaussian noise: exp(-k^2/2) / (k sqrt(2 pi)), k = |s - t| / sigma.

    It is infinite at k = 0, where it says nothing.
    """
    law = as_law(noise)
    if not isinstance(law, GaussianNoise):
        _validation.reject("noise", "Gaussian: Mills's bound is about Gaussian tails", noise)
    s, t = _numbers(score, "score"), _numbers(threshold, "threshold")
    _broadcast(s, t)
    k = np.minimum(np.abs(s - t) / law.std, 1e150)
    with np.errstate(divide="ignore", under="ignore"):
        bound = np.exp(-0.5 * k * k) / (k * math.sqrt(2 * math.pi))
    return float(bound) if bound.ndim == 0 else bound


@validate()
def false_match_rate(
    impostor: object,
    threshold: ArrayLike,
    noise: object = 0.0,
    *,
    endpoint: str = "strict",
    clipped: bool = False,
    lower: float = -1.0,
    upper: float = 1.0,
) -> Any:
    """The share of impostor scores that are accepted after noise, E P[W > t - S]; with ``noise=0``, the clean share.

    Parameters
    ----------
    impostor : clean scores of pairs that do not match: an array, or a ``Sample`` or ``Distribution``.
    threshold : one, or an array of them.
    noise : a standard deviation (Gaussian) or a noise law.
    endpoint, clipped, lower, upper : with ``clipped``, decisions are made on scores cut to [lower, upper]: from the
        upper end on a strict rule accepts nothing, below the lower end it accepts all; between, clipping changes no
        decision.
    """
    scores, law = as_scores(impostor, "impostor"), as_law(noise)
    t = _numbers(threshold, "threshold")
    inclusive = _inclusive(endpoint)
    rates = scores.rate(t, law, inclusive=inclusive)
    if clipped:
        low, high = _ends(lower, upper)
        rates = np.where((t > high) if inclusive else (t >= high), 0.0, rates)
        rates = np.where((t <= low) if inclusive else (t < low), 1.0, rates)
    return float(rates) if np.ndim(rates) == 0 else rates


@validate()
def endpoint_limit(impostor: object, noise: object, *, upper: float = 1.0) -> float:
    """L = E P[W >= 1 - S]: what a threshold at the upper end still accepts; the least reachable rate below it."""
    scores, law = as_scores(impostor, "impostor"), as_law(noise)
    return float(scores.rate(_validation.check_real(upper, "upper"), law, inclusive=True))


@dataclass(frozen=True)
class Recalibration:
    """Where a threshold must move so that the false-match rate after noise is the one asked for.

    Attributes
    ----------
    target : the false-match rate asked for.
    clean_threshold : inf {t : P[S > t] <= target}, the threshold without noise.
    threshold, shift : the threshold that restores the target on the scores as released, and how far it moved; NaN where
        ``feasible`` is false.
    feasible : whether a threshold within the range of released scores reaches the target.
    limit : L, the rate that a threshold at the upper end has (:func:`endpoint_limit`).
    rate_before : the private false-match rate if the clean threshold is kept.
    rate : the private false-match rate at the new threshold, never above the target.
    unclipped_threshold, unclipped_shift : the same on noisy scores that are not clipped: every target is reachable.
    small_noise_shift : -(var / 2) f'(t) / f(t), the law for small noise; from a sample the density is an estimate.
    endpoint, clipped : the rule that was asked about.
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
    endpoint: str
    clipped: bool


@validate()
def recalibrate(
    impostor: object,
    target: float,
    noise: object,
    endpoint: str = "strict",
    clipped: bool = True,
    *,
    lower: float = -1.0,
    upper: float = 1.0,
) -> Recalibration:
    """The threshold at which the false-match rate after noise is ``target`` again, by bracketing.

    Parameters
    ----------
    impostor : clean scores of pairs that do not match: an array, or a ``Sample`` or ``Distribution``.
    target : the false-match rate, in (0, 1), and at least one over the number of scores.
    noise : a standard deviation (Gaussian) or a noise law. With atoms, the threshold is the least whose rate does not
        exceed the target.
    endpoint : "strict" accepts score > threshold, "nonstrict" score >= threshold. It matters at the upper end.
    clipped : whether decisions are made on scores clipped to [lower, upper], or on the noisy ones.
    """
    scores, law = as_scores(impostor, "impostor"), as_law(noise)
    target = check_target(target, "target")
    inclusive = _inclusive(endpoint)
    lower, upper = _ends(lower, upper)
    clean = scores.clean_threshold(target)
    limit = float(scores.rate(upper, law, inclusive=True))
    moved = clean
    if law is None and inclusive and scores.rate(clean, None, inclusive=True) > target:
        moved = math.nextafter(clean, math.inf)
    if law is not None:
        moved = least_threshold(lambda t: scores.rate(t, law, inclusive=inclusive) - target, clean, law.std)
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


@validate(upper=check_real)
def critical_scale(
    impostor: object, target: float, *, upper: float = 1.0, family: Callable[[float], Law] = GaussianNoise
) -> float:
    """The least noise scale at which the endpoint limit L reaches ``target``: with more, clipped scores cannot meet it.

    Infinite where no noise does that (a target of one half or more), 0 where clean scores at the upper end already do.

    Parameters
    ----------
    family : the noise law of a given scale; Gaussian of that standard deviation unless told otherwise.
    """
    scores = as_scores(impostor, "impostor")
    target = check_target(target, "target")
    if not callable(family):
        _validation.reject("family", "a function from a scale to a noise law", family)
    scores.clean_threshold(target)  # refuses a target that the sample cannot support

    def excess(scale: float) -> float:
        return float(scores.rate(upper, family(scale), inclusive=True)) - target

    start = max(upper - scores.highest, scores.spread, 1e-9)
    return first_crossing(excess, start, smallest=1e-9, largest=1e9)


@validate(delta=check_inside_unit, sensitivity=check_positive, method=one_of(calibration.METHODS))
def minimum_epsilon(
    impostor: object,
    target: float,
    delta: float,
    *,
    sensitivity: float = 2.0,
    method: str = "analytic",
    upper: float = 1.0,
    family: Callable[[float], Law] | None = None,
) -> float:
    """The least epsilon at which a false-match target is within reach on clipped scores: where L <= target.

    Parameters
    ----------
    delta, sensitivity, method : the rest of the contract, as :func:`scoreshield.calibrate` takes them.
    family : for other noise than Gaussian, the law at a given epsilon; ``delta`` and ``sensitivity`` are then its own
        business.

    Returns
    -------
    The epsilon: 0 where any does, infinity where none does (clean scores at the upper end exceed the target already).
    """
    scores = as_scores(impostor, "impostor")
    if family is not None:
        return _least_epsilon(scores, target, family, upper)
    scale = critical_scale(scores, target, upper=upper)
    epsilon = epsilon_for_scale(scale, delta, sensitivity, method)
    if not 1e-9 <= epsilon <= 1e9:
        return epsilon
    while (
        scores.rate(upper, GaussianNoise(calibration.calibrate(epsilon, delta, sensitivity, method)), inclusive=True)
        > target
    ):
        epsilon *= 1 + 1e-14  # to the safe side of rounding
    return epsilon


def epsilon_for_scale(scale: float, delta: float, sensitivity: float, method: str = "analytic") -> float:
    """The least epsilon whose calibrated Gaussian noise is no larger than ``scale``."""
    if scale == 0:
        return math.inf
    if math.isinf(scale):
        return 0.0
    if method == "analytic":
        return calibration.find_epsilon(delta, sensitivity / scale)
    epsilon = calibration.compute_rule_mu(1.0, delta, method) ** -1 * sensitivity / scale
    calibration.calibrate(epsilon, delta, sensitivity, method)  # refuses the rule where it is not private
    return epsilon


def _least_epsilon(scores: Scores, target: float, family: Callable[[float], Law], upper: float) -> float:
    target = check_target(target, "target")
    scores.clean_threshold(target)
    if not callable(family):
        _validation.reject("family", "a function from epsilon to a noise law", family)

    def shortfall(tightness: float) -> float:  # noise grows with 1/epsilon
        return float(scores.rate(upper, family(1 / tightness), inclusive=True)) - target

    tightness = first_crossing(shortfall, 1.0, smallest=1e-9, largest=1e9)
    return math.inf if tightness == 0 else 1 / tightness


@dataclass(frozen=True)
class FalseMatchGap:
    """How far the false-match rates of two neighbouring galleries can lie apart.

    Attributes
    ----------
    any_mechanism : tanh(epsilon / 2) + delta, for every mechanism.
    coordinatewise : the same over n, where one record moves one released score.
    attained : what the noise law itself reaches; for a Gaussian of sensitivity 2, erf(1 / (sigma sqrt 2)) / n.
    """

    any_mechanism: float
    coordinatewise: float
    attained: float


@validate(n=check_count, epsilon=check_epsilon, delta=check_delta, sensitivity=check_positive)
def false_match_gap(n: int, noise: object, *, epsilon: float, delta: float, sensitivity: float = 2.0) -> FalseMatchGap:
    """Bounds on what the false-match rate of a gallery of ``n`` says about one of its records."""
    law = as_law(noise)
    bound = min(1.0, math.tanh(epsilon / 2) + delta)
    return FalseMatchGap(bound, bound / n, _total_variation(law, sensitivity) / n)


def _total_variation(law: Law | None, shift: float) -> float:
    """Of noise and noise moved by ``shift``: the most that one threshold tells them apart."""
    if law is None:
        return 1.0
    if isinstance(law, GaussianNoise):
        return float(erf(shift / (2 * math.sqrt(2) * law.std)))
    t = np.linspace(-20 * law.std, 20 * law.std + shift, 200_001)
    apart = pass_probability(law, t, shift) - pass_probability(law, t, 0.0)
    return float(np.max(apart))


@dataclass(frozen=True)
class LipschitzBounds:
    """How far noise can move an operating curve whose score CDFs are Lipschitz; eta = L E|W|."""

    eta: float
    tpr: float
    fpr: float
    auc: float
    eer: float

    @validate()
    def partial_auc(self, a: float) -> float:
        """Of the area up to a false-positive rate of ``a``."""
        a = _validation.check_real(a, "a", "in (0, 1]")
        if not 0 < a <= 1:
            _validation.reject("a", "in (0, 1]", a)
        return a * self.eta + min(a, self.eta)


@validate()
def lipschitz_bounds(lipschitz: float, noise: object) -> LipschitzBounds:
    """Bounds on the change of TPR, FPR, AUC, EER and partial AUC, from the largest density of the clean scores.

    ``lipschitz`` bounds both score densities. For Gaussian noise E|W| = sigma sqrt(2 / pi).
    """
    constant = _validation.check_positive(lipschitz, "lipschitz")
    law = as_law(noise)
    eta = constant * _mean_size(law)
    return LipschitzBounds(eta, eta, eta, 2 * eta, eta)


def _mean_size(law: Law | None) -> float:
    """E|W|, from the tails: the integral of P[W > x] + P[W < -x]."""
    if law is None:
        return 0.0
    if isinstance(law, GaussianNoise):
        return law.std * math.sqrt(2 / math.pi)
    if not isinstance(law, AdditiveLaw):
        raise InvalidInput("Lipschitz bounds need additive noise, with a cdf.")
    total, low, high = 0.0, 0.0, 2.0**-20 * law.std
    while True:  # intervals that double, each in many small steps, until both tails are gone
        x, step = np.linspace(low, high, 16_385, retstep=True)
        both = pass_probability(law, x, 0.0) + np.asarray(law.cdf(-x))
        total += float(step * both[:-1].sum())  # from above: the tails fall
        if both[-1] < 1e-17 or high > 1e9 * law.std:
            return total
        low, high = high, 2 * high


@validate()
def euclidean_threshold(cosine: ArrayLike) -> Any:
    """The squared Euclidean distance of unit vectors with this cosine: 2 (1 - t)."""
    return _plain(2 * (1 - _numbers(cosine, "cosine")))


@validate()
def cosine_threshold(squared_euclidean: ArrayLike) -> Any:
    """The cosine of unit vectors at this squared Euclidean distance: 1 - t / 2."""
    return _plain(1 - _numbers(squared_euclidean, "squared_euclidean") / 2)


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _ends(lower: Any, upper: Any) -> tuple[float, float]:
    low, high = _validation.check_real(lower, "lower"), _validation.check_real(upper, "upper")
    if not low < high:
        _validation.reject("lower", f"below the upper end, {high:g}", lower)
    return low, high


def _broadcast(score: Any, threshold: Any) -> None:
    try:
        np.broadcast_shapes(score.shape, threshold.shape)
    except ValueError:
        _validation.reject("threshold", f"of a shape that goes with {score.shape}", threshold)


def _inclusive(endpoint: str) -> bool:
    return _validation.check_option(endpoint, "endpoint", ENDPOINTS) == "nonstrict"


def _numbers(value: ArrayLike, name: str) -> Any:
    must = "a finite number or an array of them"
    numbers = _validation.check_array(value, name, must)
    if numbers.dtype.kind not in "fiu" or not np.isfinite(numbers).all():
        _validation.reject(name, must, value)
    return numbers.astype(np.float64)
