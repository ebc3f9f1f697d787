"""Collections of clean scores, and how noise smooths their tail.

All figures about decisions use one function: the share of scores S that pass a threshold after noise W,

    P[S + W > t] = E [F̄_W(t - S)],    F̄_W(x) = P[W > x].

Summing a million scores for every t would be slow. For Gaussian noise the smoothed function is analytic on the
scale of sigma, so the scores of each bin of width h <= sigma/4 are replaced by eight Chebyshev nodes whose weights
reproduce the bin's average of every polynomial up to degree seven. With Cramer's bound |He_k| phi <= 0.4335 sqrt(k!)
the interpolation error is at most 0.4335 sqrt(7!) (h / (2 sigma))^8 / (2^7 8!) < 4e-13, uniformly in t and for any
sample. Laplace and staircase noise and level tables have short forms that are exact (`scoreshield.decisions.tails`).
Other laws are summed over all scores.
"""

from __future__ import annotations

import copy
import math
import numbers
from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.decisions.tails import TailSums, make_tail_sums
from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise

Float = NDArray[np.float64]

#: The most that the binning of a sample changes a rate under Gaussian noise.
BINNING_ERROR = 4e-13
#: Scores further out than this many standard deviations are not binned: rounding the positions would cost more.
_LARGEST_RATIO = 2.0**12

_NODES = 8
_CHEBYSHEV = np.cos((np.arange(_NODES) + 0.5) * np.pi / _NODES)
#: A Gaussian tail beyond this number of standard deviations is below 1e-19.
_REACH = 9.0
#: How many noise laws a sample keeps the sums of.
_MOST_TAIL_SUMS = 4
#: The number of doubles in memory at once while a rate is summed.
_BLOCK = 1 << 21


@runtime_checkable
class AdditiveLaw(Protocol):
    """Noise that is added to a score and does not depend on it, given by its CDF and its standard deviation."""

    @property
    def std(self) -> float:
        """The standard deviation."""

    def cdf(self, x: ArrayLike) -> Any:
        """Compute P[W <= x]."""


@runtime_checkable
class Channel(Protocol):
    """A release of single scores that is not additive, such as randomised response or a level table."""

    @property
    def std(self) -> float:
        """The standard deviation."""

    def exceed(self, threshold: ArrayLike, score: ArrayLike, inclusive: bool = False) -> Any:
        """Compute P[released > threshold | clean score], or >= if ``inclusive``."""


Law = AdditiveLaw | Channel
#: What functions of decisions take as noise: a standard deviation (Gaussian), or a noise law.
NoiseLike = float | Law


def as_law(noise: NoiseLike) -> Law | None:
    """Return a noise law from a law or from the standard deviation of a Gaussian; None for 0, which is no noise."""
    must = "a standard deviation (0, or between 1e-100 and 1e100) or a noise law (std and a vectorised cdf)"
    if isinstance(noise, AdditiveLaw | Channel):
        return _check_law(noise, must)
    std = _validation.check_real(noise, "noise", must)
    if std != 0 and not 1e-100 <= std <= 1e100:
        _validation.reject("noise", must, noise)
    return GaussianNoise(std) if std else None


def _check_law(law: Law, must: str) -> Law:
    """Check a noise law. A frozen distribution of SciPy, whose std is a method, is accepted too."""
    if callable(law.std):
        law = _FrozenLaw(law)
    std = law.std
    if isinstance(std, bool) or not isinstance(std, numbers.Real) or not 1e-100 <= float(std) <= 1e100:
        _validation.reject("noise", must, law)
    if isinstance(law, GaussianNoise):
        return law
    two = np.zeros(2)
    try:
        shape = np.shape(law.exceed(two, two) if isinstance(law, Channel) else law.cdf(two))
    except (TypeError, ValueError):
        shape = ()
    if shape != (2,):
        _validation.reject("noise", must, law)
    return law


class _FrozenLaw:
    """A frozen distribution of SciPy as a noise law."""

    def __init__(self, law: Any) -> None:
        self.cdf, self.sf = law.cdf, law.sf
        self.std = float(law.std())


def check_target(value: Any, name: str) -> float:
    """Check for a target rate: above 0, and far enough below 1 for a threshold to exist in floats."""
    target = _validation.check_probability(value, name, zero=False)
    if target > 1 - 1e-9:
        _validation.reject(name, "below 1 - 1e-9", value)
    return target


def pass_probability(law: Law | None, threshold: ArrayLike, score: ArrayLike, *, inclusive: bool = False) -> Any:
    """Compute P[released > threshold] for each clean score, or P[released >= threshold] if ``inclusive``."""
    t, s = np.asarray(threshold, dtype=np.float64), np.asarray(score, dtype=np.float64)
    if law is None:
        return ((s >= t) if inclusive else (s > t)).astype(np.float64)
    if isinstance(law, Channel):
        return law.exceed(t, s, inclusive)
    gap = t - s
    if isinstance(law, GaussianNoise):
        return law.sf(gap)
    # P[W >= x] = P[W > x-]: laws on a grid have atoms.
    gap = np.nextafter(gap, -np.inf) if inclusive else gap
    tail = getattr(law, "sf", None)
    return tail(gap) if tail is not None else 1 - np.asarray(law.cdf(gap))


class Scores(ABC):
    """The clean scores of one kind of pair: a sample, or a distribution."""

    lowest: float
    highest: float
    spread: float

    @abstractmethod
    def clean_rate(self, thresholds: Float, inclusive: bool) -> Float:
        """Compute P[S > t], or P[S >= t] if ``inclusive``."""

    @abstractmethod
    def clean_threshold(self, target: float) -> float:
        """Find inf {t : P[S > t] <= target}."""

    @abstractmethod
    def nodes(self, law: Law) -> tuple[Float, Float]:
        """Return sorted points and weights whose weighted sum of P[W > t - point] is P[S + W > t]."""

    @abstractmethod
    def clamp(self, low: float, high: float) -> Scores:
        """Clamp the scores to a public range, as a release with this range does."""

    def coarsen(self, law: Law | None) -> Scores:
        """Return the scores in fewer points, for many thresholds where an error of 1e-6 is acceptable."""
        del law
        return self

    @abstractmethod
    def log_slope(self, threshold: float) -> float:
        """Compute f'(t) / f(t) of the density of the scores."""

    def rate(self, thresholds: ArrayLike, law: Law | None, *, inclusive: bool = False) -> Any:
        """Compute P[S + W > t] at one threshold or at many; >= if ``inclusive``."""
        t = np.asarray(thresholds, dtype=np.float64)
        flat = np.atleast_1d(t).ravel()
        rates = self.clean_rate(flat, inclusive) if law is None else self._sum_tails(flat, law, inclusive)
        rates = np.clip(rates, 0.0, 1.0)
        return float(rates[0]) if t.ndim == 0 else rates.reshape(t.shape)

    def _sum_tails(self, thresholds: Float, law: Law, inclusive: bool) -> Float:
        return _sum_pass_probabilities(*self.nodes(law), thresholds, law, inclusive)

    def reach(self, law: Law | None) -> tuple[float, float]:
        """Return an interval outside which the noisy scores have almost no mass."""
        margin = 0.0 if law is None else (_REACH if isinstance(law, GaussianNoise) else 40.0) * law.std
        return self.lowest - margin, self.highest + margin


class Sample(Scores):
    """A finite set of scores, sorted once. Pass it to several functions to sort only once.

    Args:
        scores: Any finite numbers, at least two.
        name: The parameter that errors name.
    """

    def __init__(self, scores: ArrayLike, name: str = "scores") -> None:
        must = "a one-dimensional array of at least two finite numbers"
        values = _validation.check_array(scores, name, must)
        if values.ndim != 1 or len(values) < 2 or values.dtype.kind not in "fiu":
            _validation.reject(name, must, scores)
        values = values.astype(np.float64)
        usable = np.abs(values) <= 1e100
        if not usable.all():
            bad = int(np.flatnonzero(~usable)[0])
            _validation.reject(name, f"finite and at most 1e100 in size (entry {bad} is not)", scores)
        values.sort()
        values.flags.writeable = False
        self.values = values
        self.lowest, self.highest = float(values[0]), float(values[-1])
        self.spread = float(values.std())
        self._binned: dict[float, tuple[Float, Float]] = {}
        self._slopes: dict[float, float] = {}
        self._clamped: dict[tuple[float, float], Sample] = {}
        self._coarsened: dict[float, Sample] = {}
        self._tail_sums: dict[Law, TailSums | None] = {}

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Sample of {len(self):,} scores in [{self.lowest:.4g}, {self.highest:.4g}]>"

    def clean_rate(self, thresholds: Float, inclusive: bool) -> Float:
        below = np.searchsorted(self.values, thresholds, side="left" if inclusive else "right")
        return (len(self) - below) / len(self)

    def clean_threshold(self, target: float) -> float:
        n = len(self)
        if target < 1 / n:
            raise InvalidInput(
                f"A target of {target:g} cannot be measured with {n:,} scores: the smallest target they support is "
                f"1/{n} = {1 / n:.3g}; give at least {min(1 / target, 1e300):,.0f} scores or a larger target."
            )
        passing = math.floor(target * n)
        passing += (passing + 1) / n <= target  # a product like 0.07 * 100 may fall just short of a whole number
        return float(self.values[n - 1 - min(passing, n - 1)])

    def nodes(self, law: Law) -> tuple[Float, Float]:
        if isinstance(law, Channel) and callable(getattr(law, "level_of", None)):
            return self._weigh_levels(law)
        if not isinstance(law, GaussianNoise):
            return self._weigh_points()
        width = math.ldexp(1.0, math.frexp(law.std)[1] - 3)  # the power of two in (sigma/8, sigma/4]
        if (self.highest - self.lowest) / width * _NODES > len(self):
            return self._weigh_points()
        if max(-self.lowest, self.highest) > _LARGEST_RATIO * law.std:
            return self._weigh_points()
        if width not in self._binned:
            self._binned[width] = _bin_values(self.values, width)
        return self._binned[width]

    def _weigh_points(self) -> tuple[Float, Float]:
        return self.values, np.broadcast_to(np.float64(1 / len(self)), len(self))

    def _weigh_levels(self, law: Any) -> tuple[Float, Float]:
        """Return one score of each level, with the weight of all scores on it."""
        points, weights = self._weigh_points()
        levels = law.level_of(points)
        starts = np.flatnonzero(np.r_[True, levels[1:] != levels[:-1]])
        return points[starts], np.add.reduceat(weights, starts)

    def _sum_tails(self, thresholds: Float, law: Law, inclusive: bool) -> Float:
        if not isinstance(law, LaplaceNoise | StaircaseNoise):
            return super()._sum_tails(thresholds, law, inclusive)
        if law not in self._tail_sums:
            if len(self._tail_sums) >= _MOST_TAIL_SUMS:
                self._tail_sums.pop(next(iter(self._tail_sums)))
            self._tail_sums[law] = make_tail_sums(*self._weigh_points(), law)
        sums = self._tail_sums[law]
        return super()._sum_tails(thresholds, law, inclusive) if sums is None else sums.evaluate(thresholds)

    def clamp(self, low: float, high: float) -> Sample:
        if low <= self.lowest and self.highest <= high:
            return self
        if (low, high) not in self._clamped:
            self._clamped[low, high] = Sample(np.clip(self.values, low, high))
        return self._clamped[low, high]

    def coarsen(self, law: Law | None) -> Scores:
        """Replace each bin by its mean, for noise that is not Gaussian; a bin is a 1024th of the noise wide."""
        if law is None or isinstance(law, GaussianNoise | Channel):
            return self
        width = math.ldexp(1.0, math.frexp(law.std)[1] - 11)
        if (self.highest - self.lowest) / width > len(self) / 2:
            return self
        if width not in self._coarsened:
            place = np.floor(self.values / width)
            starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
            if len(starts) < 2:
                return self
            counts = np.diff(np.r_[starts, len(self)])
            self._coarsened[width] = _WeightedSample(np.add.reduceat(self.values, starts) / counts, counts / len(self))
        return self._coarsened[width]

    def log_slope(self, threshold: float) -> float:
        """Estimate f'(t) / f(t) by local likelihood: a log-quadratic density under a Gaussian kernel (Loader 1996).

        Such a density times the kernel is normal, with mean t + f'/f times its variance: the kernel-weighted
        mean and variance of the scores give the slope, without bias where the tail is Gaussian.
        """
        if threshold not in self._slopes:
            bandwidth = self.spread * len(self) ** (-1 / 9)
            gap = self.values - threshold
            with np.errstate(divide="ignore", invalid="ignore"):
                kernel = np.exp(-0.5 * (gap / bandwidth) ** 2)
                mean = float(gap @ kernel / kernel.sum())
                variance = float((gap - mean) ** 2 @ kernel / kernel.sum())
            self._slopes[threshold] = mean / variance if variance > 0 else math.nan
        return self._slopes[threshold]

    def standard_error(self, threshold: float, law: Law | None) -> float:
        """Compute the standard error of the rate at a threshold, as an estimate from independent scores."""
        passing = pass_probability(law, threshold, self.values)
        return float(np.std(passing)) / math.sqrt(len(self))


class _WeightedSample(Sample):
    """Points with weights that replace a larger sample in sums."""

    def __init__(self, points: Float, weights: Float) -> None:
        super().__init__(points)
        self._weights = weights

    def _weigh_points(self) -> tuple[Float, Float]:
        return self.values, self._weights


def _check_pair(value: Any, name: str) -> tuple[float, float]:
    """Check for a pair (low, high) of finite numbers, low < high."""
    must = "a pair (low, high) of finite numbers, low < high"
    if not isinstance(value, tuple | list) or len(value) != 2:
        _validation.reject(name, must, value)
    low, high = (_validation.check_real(end, name, must) for end in value)
    if not low < high:
        _validation.reject(name, must, value)
    return low, high


class Distribution(Scores):
    """Scores that follow a continuous law, cut to a public range, such as a data sheet or a model gives.

    Args:
        law: A frozen continuous distribution of SciPy (``pdf``, ``cdf``, ``sf``, ``isf``).
        score_range: The range. The mass outside is cut off and the rest is scaled up.
    """

    @validate(score_range=_check_pair)
    def __init__(self, law: Any, score_range: tuple[float, float] = (-1.0, 1.0)) -> None:
        if not all(callable(getattr(law, name, None)) for name in ("pdf", "logpdf", "cdf", "sf", "ppf", "isf", "std")):
            _validation.reject("law", "a frozen continuous distribution of SciPy, like norm(0, 0.2)", law)
        low, high = score_range
        self.law = law
        self._below, self._above = float(law.cdf(low)), float(law.sf(high))
        self._mass = 1 - self._below - self._above
        if not self._mass > 1e-6:
            raise InvalidInput(f"This score distribution has almost no mass in [{low:g}, {high:g}].")
        self.lowest = max(low, float(law.ppf(1e-18)))
        self.highest = min(high, float(law.isf(1e-18)))
        self.spread = min(float(law.std()), (self.highest - self.lowest) / 2)
        self._clamp = (self.lowest, self.highest)
        self._grids: dict[float, tuple[Float, Float]] = {}

    def __repr__(self) -> str:
        name = getattr(getattr(self.law, "dist", None), "name", "law")
        return f"<Distribution {name} cut to [{self.lowest:.4g}, {self.highest:.4g}]>"

    @property
    def cut(self) -> float:
        """The mass outside the range, which was cut off."""
        return 1 - self._mass

    def clean_rate(self, thresholds: Float, inclusive: bool) -> Float:  # noqa: ARG002
        low, high = self._clamp
        inside = self._tail(thresholds)
        return np.where(thresholds >= high, 0.0, np.where(thresholds < low, 1.0, inside))

    def clean_threshold(self, target: float) -> float:
        return float(np.clip(self.law.isf(self._above + target * self._mass), *self._clamp))

    def clamp(self, low: float, high: float) -> Distribution:
        clamped = copy.copy(self)
        clamped._clamp = (float(np.clip(self._clamp[0], low, high)), float(np.clip(self._clamp[1], low, high)))
        clamped._grids = {}
        return clamped

    def nodes(self, law: Law) -> tuple[Float, Float]:
        fine = self.spread / (8 if isinstance(law, GaussianNoise) else 64)
        width = math.ldexp(1.0, math.frexp(min(law.std / 2, fine))[1] - 1)
        if width not in self._grids:
            self._grids[width] = self._make_quadrature(width)
        return self._grids[width]

    def _make_quadrature(self, width: float) -> tuple[Float, Float]:
        """Make ten Gauss-Legendre points per panel, with weights of the density that sum to one."""
        panels = math.ceil((self.highest - self.lowest) / width)
        # A density may be infinite at an end (a Beta law), so panels halve towards both and have their exact mass.
        halves = width * 2.0 ** -np.arange(1.0, 51)
        edges = np.concatenate([np.linspace(self.lowest, self.highest, panels + 1), self._clamp])
        edges = np.unique(np.concatenate([edges, self.lowest + halves, self.highest - halves]))
        edges = edges[(edges >= self.lowest) & (edges <= self.highest)]
        x, w = np.polynomial.legendre.leggauss(10)
        half = np.diff(edges)[:, None] / 2
        points = (edges[:-1, None] + edges[1:, None]) / 2 + half * x
        with np.errstate(divide="ignore", over="ignore"):
            weights = w * np.nan_to_num(np.asarray(self.law.pdf(points)), posinf=0.0) + 1e-300
        mass = -np.diff(np.asarray(self.law.sf(edges)))
        weights *= (np.maximum(mass, 0.0) / weights.sum(axis=1))[:, None]
        return np.clip(points.ravel(), *self._clamp), weights.ravel() / weights.sum()

    def rate(self, thresholds: ArrayLike, law: Law | None, *, inclusive: bool = False) -> Any:
        if law is None or law.std > 1e-4 * self.spread:
            return super().rate(thresholds, law, inclusive=inclusive)
        # Noise this small changes only the atoms that clamping leaves at the ends. The rest changes by 1e-8 of itself.
        t = np.asarray(thresholds, dtype=np.float64)
        low, high = self._clamp
        below = 1 - self._tail(low) if low > self.lowest else 0.0
        above = self._tail(high) if high < self.highest else 0.0
        rates = self._tail(np.clip(t, low, high)) - above
        rates = rates + below * pass_probability(law, t, low, inclusive=inclusive)
        rates = np.clip(rates + above * pass_probability(law, t, high, inclusive=inclusive), 0.0, 1.0)
        return float(rates) if t.ndim == 0 else rates

    def _tail(self, t: Any) -> Any:
        return (np.asarray(self.law.sf(t)) - self._above) / self._mass

    def log_slope(self, threshold: float) -> float:
        step = 1e-4 * self.spread
        ahead, behind = self.law.logpdf(threshold + step), self.law.logpdf(threshold - step)
        return float(ahead - behind) / (2 * step)


#: What functions of decisions take as scores: an array, a sample or a distribution.
ScoresLike = ArrayLike | Scores


def as_scores(scores: ScoresLike, name: str) -> Scores:
    """Return scores as they are, or convert an array of them to a sample."""
    return scores if isinstance(scores, Scores) else Sample(scores, name)


def _bin_values(values: Float, width: float) -> tuple[Float, Float]:
    """Compute nodes and weights that replace sorted values, eight in each occupied bin."""
    place = np.floor(values / width)
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    u = 2 * (values / width - place) - 1
    before, now = np.ones_like(u), u
    moments = [np.add.reduceat(before, starts), np.add.reduceat(now, starts)]
    for _ in range(2, _NODES):
        before, now = now, 2 * u * now - before
        moments.append(np.add.reduceat(now, starts))
    order = np.arange(_NODES)
    basis = np.cos(order[:, None] * np.arccos(_CHEBYSHEV)) * (2 / _NODES)  # T_k at node j
    basis[0] /= 2
    weights = np.stack(moments, axis=1) @ basis / len(values)
    points = (place[starts][:, None] + (_CHEBYSHEV + 1) / 2) * width
    flip = slice(None, None, -1)  # Chebyshev points are in falling order
    return points[:, flip].ravel(), weights[:, flip].ravel()


def _sum_pass_probabilities(points: Float, weights: Float, thresholds: Float, law: Law, inclusive: bool) -> Float:
    """Sum the weighted pass probabilities, block by block over sorted thresholds."""
    rates = np.empty(len(thresholds))
    order = np.argsort(thresholds)
    gaussian = isinstance(law, GaussianNoise)
    reach = _REACH * law.std if gaussian else math.inf
    above = np.append(np.cumsum(weights[::-1])[::-1], 0.0) if len(thresholds) > 1 else None
    start = 0
    while start < len(order):
        size = max(1, _BLOCK // len(points)) if not gaussian else 64
        chosen = order[start : start + size]
        t = thresholds[chosen]
        low, high = np.searchsorted(points, (t[0] - reach, t[-1] + reach))
        total = np.full(len(t), float(np.sum(weights[high:])) if above is None else above[high])
        step = max(1, _BLOCK // len(t))
        for first in range(low, high, step):
            part = slice(first, min(first + step, high))
            if gaussian:
                passing = ndtr((points[part] - t[:, None]) / law.std)
            else:
                passing = pass_probability(law, t[:, None], points[part], inclusive=inclusive)
            total += passing @ weights[part]
        rates[chosen] = total
        start += size
    return rates
