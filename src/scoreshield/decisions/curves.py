r"""The operating curve of a score after noise: ROC, areas under it, equal error rate, and recall at rank k.

The curve runs through (false-match rate, true-match rate) as the threshold moves; where scores tie, a fair coin walks
the straight line between two of its points. For Gaussian noise every figure is exact: the area is the chance that one
noisy score beats another, :math:`E\,\Phi((G - I)/(\sigma\sqrt 2))`, and points are found by bisection. For other laws,
and without noise, the curve is a polygon: of the scores themselves where there is no noise, and otherwise refined
until neighbouring vertices lie closer than 1/1024 in both rates and 5 % in the false-match rate, on scores binned to a
1024th of the noise, which is good to about 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from scoreshield import _validation
from scoreshield._validation import check_count, validate, whole_from
from scoreshield.decisions.roots import least_threshold
from scoreshield.decisions.scores import Float, Law, Sample, Scores, as_law, as_scores, check_target
from scoreshield.privacy.noise import GaussianNoise


@dataclass(frozen=True)
class Roc:
    """The curve of true-match against false-match rate as the threshold moves, on noisy scores.

    Clipping scores changes no point of it below the threshold 1; rank and decide on noisy scores to have all of it.
    """

    genuine: Scores
    impostor: Scores
    noise: Law | None

    def tpr(self, threshold: ArrayLike) -> Any:
        """Share of genuine pairs accepted (score > threshold)."""
        return self.genuine.rate(threshold, self.noise)

    def fpr(self, threshold: ArrayLike) -> Any:
        """Share of impostor pairs accepted (score > threshold)."""
        return self.impostor.rate(threshold, self.noise)

    @validate()
    def threshold_at(self, fpr: float) -> float:
        """The least threshold whose false-match rate is at most ``fpr``."""
        fpr = check_target(fpr, "fpr")
        if self.noise is None:
            return self.impostor.clean_threshold(fpr)
        low, high = self._range
        return least_threshold(lambda t: float(self.fpr(t)) - fpr, (low + high) / 2, max((high - low) / 4, 1e-300))

    @validate()
    def tpr_at(self, fpr: ArrayLike) -> Any:
        """The true-match rate at a false-match rate, or at each of several, in (0, 1)."""
        rates = _validation.check_array(fpr, "fpr", "in (0, 1)")
        if rates.dtype.kind not in "fiu":
            _validation.reject("fpr", "in (0, 1)", fpr)
        found = [float(self.tpr(self.threshold_at(float(rate)))) for rate in rates.ravel()]
        return found[0] if rates.ndim == 0 else np.array(found).reshape(rates.shape)

    @cached_property
    def auc(self) -> float:
        """The probability that a genuine score beats an impostor one, ties counting one half."""
        if not isinstance(self.noise, GaussianNoise):
            return self._area(1.0)
        both = GaussianNoise(math.sqrt(2) * self.noise.std)  # the noise of a difference
        points, weights = self.genuine.nodes(both)
        return float(np.clip(1 - weights @ np.asarray(self.impostor.rate(points, both)), 0.0, 1.0))

    @cached_property
    def eer(self) -> float:
        """The rate at which false matches and false non-matches are equally frequent."""
        if isinstance(self.noise, GaussianNoise):
            low, high = self._range
            gap = lambda t: float(self.fpr(t)) - (1 - float(self.tpr(t)))  # noqa: E731
            return float(self.fpr(least_threshold(gap, (low + high) / 2, max((high - low) / 4, 1e-300))))
        fpr, tpr, _ = self._vertices
        over = fpr - (1 - tpr)  # rises from -1 to 1
        after = int(np.argmax(over >= 0))
        if after == 0 or over[after] == over[after - 1]:
            return float(fpr[after])
        share = -over[after - 1] / (over[after] - over[after - 1])
        return float(fpr[after - 1] + share * (fpr[after] - fpr[after - 1]))

    @validate()
    def partial_auc(self, a: float) -> float:
        """The area under the curve up to a false-match rate of ``a``, in (0, 1]; at most a."""
        a = _validation.check_real(a, "a", "in (0, 1]")
        if not 0 < a <= 1:
            _validation.reject("a", "in (0, 1]", a)
        return self.auc if a == 1 else self._area(a)

    def at(self, fpr: Float) -> Float:
        """The curve itself, ties broken by a fair coin: true-match rates at false-match rates in [0, 1]."""
        if not isinstance(self.noise, GaussianNoise):
            rates, tpr, _ = self._vertices
            found: Float = np.interp(fpr, rates, tpr)
            return found
        return np.asarray(self.tpr(self._thresholds_at(fpr)))

    def _thresholds_at(self, fpr: Float) -> Float:
        """Thresholds of many false-match rates at once, under Gaussian noise.

        On the scale of normal quantiles the rate is nearly a straight line in the threshold, so a table gives a start
        and Newton's method the rest; what it does not settle is bisected.
        """
        table, z, slope = self._quantiles
        wanted = ndtri(np.clip(fpr, 1e-300, 1 - 1e-16))
        t: Float = np.interp(-wanted, -z, table)
        for _ in range(4):
            with np.errstate(invalid="ignore", divide="ignore"):
                miss = ndtri(np.clip(np.asarray(self.fpr(t)), 1e-300, 1 - 1e-16)) - wanted
                step = miss / np.interp(t, table, slope)
            t = np.clip(t - np.where(np.isfinite(step), step, 0.0), table[0], table[-1])
        off = np.flatnonzero(np.abs(np.asarray(self.fpr(t)) - fpr) > 1e-11 * (1 + 1e2 * fpr))
        low, high = np.full(len(off), table[0]), np.full(len(off), table[-1])
        for _ in range(60 if len(off) else 0):
            middle = (low + high) / 2
            over = np.asarray(self.fpr(middle)) > fpr[off]
            low, high = np.where(over, middle, low), np.where(over, high, middle)
        t[off] = high
        return t

    @cached_property
    def _quantiles(self) -> tuple[Float, Float, Float]:
        """Rising thresholds, the normal quantile of the false-match rate there, and its slope."""
        low, high = self._range
        table = np.linspace(low, high, 1025)
        rates = np.clip(np.asarray(self.fpr(table)), 1e-300, 1 - 1e-16)
        z = np.minimum.accumulate(ndtri(rates))
        return table, z, np.minimum(np.gradient(z, table), -1e-12 / max(high - low, 1e-300))

    @validate(points=whole_from(2))
    def curve(self, points: int = 512) -> tuple[Float, Float, Float]:
        """False-match rates, true-match rates and thresholds, thresholds falling."""
        low, high = self._range
        thresholds = np.linspace(high, low, points)
        if self.noise is None:
            thresholds[-1] = np.nextafter(low, -np.inf)  # where the last score passes too
        return np.asarray(self.fpr(thresholds)), np.asarray(self.tpr(thresholds)), thresholds

    @property
    def _range(self) -> tuple[float, float]:
        ends = self.genuine.reach(self.noise), self.impostor.reach(self.noise)
        return min(end[0] for end in ends), max(end[1] for end in ends)

    def _area(self, a: float) -> float:
        """The integral of the curve over [0, a]."""
        if not isinstance(self.noise, GaussianNoise):
            fpr, tpr, _ = self._vertices
            inside = fpr < a
            x = np.append(fpr[inside], a)
            return float(np.trapezoid(np.append(tpr[inside], np.interp(a, fpr, tpr)), x))
        # In the noisy impostor's own quantiles the integrand is smooth but steep at 0: panels that halve towards it.
        edges = a * np.append(0.0, 4.0 ** np.arange(-24.0, 1))
        points, weights = _panels(edges)
        return float(weights @ self.at(points))

    @cached_property
    def _vertices(self) -> tuple[Float, Float, Float]:
        """The polygon: rates with threshold falling, from (0, 0) to (1, 1)."""
        if self.noise is None and isinstance(self.genuine, Sample) and isinstance(self.impostor, Sample):
            thresholds = np.unique(np.concatenate([self.genuine.values, self.impostor.values]))[::-1]
        elif self.noise is None:
            thresholds = np.linspace(*self._range[::-1], 200_001)
        else:
            thresholds = self._refined()
        ends = np.concatenate([[np.inf], thresholds, [-np.inf]])
        fpr, tpr = np.zeros(len(ends)), np.zeros(len(ends))
        fpr[1:-1], tpr[1:-1] = self._rates(thresholds)
        fpr[-1] = tpr[-1] = 1.0
        return np.maximum.accumulate(fpr), np.maximum.accumulate(tpr), ends

    def _rates(self, thresholds: Float) -> tuple[Float, Float]:
        return (
            np.asarray(self.impostor.coarse(self.noise).rate(thresholds, self.noise)),
            np.asarray(self.genuine.coarse(self.noise).rate(thresholds, self.noise)),
        )

    def _refined(self) -> Float:
        """Thresholds, falling, so close that the polygon through them is the curve for all purposes."""
        low, high = self._range
        t = np.linspace(high, low, 257)
        fpr, tpr = self._rates(t)
        for _ in range(50):
            step = np.abs(np.diff(fpr))
            wide = (step > 2**-10) | (np.abs(np.diff(tpr)) > 2**-10) | ((step > 0.05 * fpr[1:]) & (fpr[1:] > 1e-10))
            wide &= -np.diff(t) > 1e-13 * (high - low)
            if not wide.any() or len(t) > 40_000:
                break
            fresh = ((t[:-1] + t[1:]) / 2)[wide]
            order = np.argsort(-np.concatenate([t, fresh]), kind="stable")
            more = self._rates(fresh)
            t = np.concatenate([t, fresh])[order]
            fpr, tpr = np.concatenate([fpr, more[0]])[order], np.concatenate([tpr, more[1]])[order]
        return t


@validate()
def roc(genuine: object, impostor: object, noise: object = 0.0) -> Roc:
    """The operating curve after noise; ``noise=0`` is the clean one.

    Parameters
    ----------
    genuine, impostor : clean scores of pairs that match and of pairs that do not: arrays, samples or distributions.
    noise : a standard deviation (Gaussian) or a noise law.
    """
    return Roc(as_scores(genuine, "genuine"), as_scores(impostor, "impostor"), as_law(noise))


@validate(records=check_count, k=check_count)
def recall_at_k(genuine: object, impostor: object, noise: object, *, records: int, k: int) -> float:
    """The probability that one relevant record is among the k best of ``records`` by noisy score, ties at random.

    The other records score like impostors, independently. It is found if its score beats the k-th best of theirs, whose
    place on the impostors' own scale follows Beta(k, records - k): the mean of the curve under that law.
    """
    curve = roc(genuine, impostor, noise)
    if k >= records:
        return 1.0
    # In the law's own quantiles, with panels that shrink towards both ends.
    towards = 4.0 ** -np.arange(12.0, 0, -1) / 1.5
    points, weights = _panels(np.concatenate([[0.0], towards, [0.5], 1 - towards[::-1], [1.0]]), order=8)
    return float(np.clip(weights @ curve.at(betaincinv(k, records - k, points)), 0.0, 1.0))


def _panels(edges: Float, order: int = 12) -> tuple[Float, Float]:
    """Gauss-Legendre points and weights on each interval between the edges."""
    x, w = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + edges[1:, None]) / 2 + half * x
    return points.ravel(), (half * w).ravel()
