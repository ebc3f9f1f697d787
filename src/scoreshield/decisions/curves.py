"""The operating curve of a score after noise: ROC, areas under it, and equal error rate.

The curve runs through (false-match rate, true-match rate) as the threshold moves. Where scores tie, a fair coin gives
the straight line between two of its points. For Gaussian noise every figure is exact: the area is the probability that
a noisy genuine score exceeds a noisy impostor score, `E Φ((G - I)/(σ√2))`, and points are found by
bisection. For other laws, and without noise, the curve is a polygon. Without noise its vertices are the scores
themselves. With noise it is refined until neighbouring vertices lie closer than 1/1024 in both rates and 5 % in the
false-match rate, on scores binned to a 1024th of the noise, which is accurate to about 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from scoreshield import _validation
from scoreshield._validation import validate, whole_from
from scoreshield.decisions.rates import check_share, find_least_threshold
from scoreshield.decisions.scores import (
    Float,
    Law,
    NoiseLike,
    Sample,
    Scores,
    ScoresLike,
    as_law,
    as_scores,
    check_target,
)
from scoreshield.privacy.noise import GaussianNoise


@dataclass(frozen=True)
class Roc:
    """The curve of true-match against false-match rate as the threshold moves, on noisy scores.

    Clipping scores changes no point of the curve below the threshold 1. Rank and decide on noisy scores to have the
    whole curve.
    """

    genuine: Scores
    impostor: Scores
    noise: Law | None

    def tpr(self, threshold: ArrayLike) -> Any:
        """Compute the share of genuine pairs accepted (score > threshold)."""
        return self.genuine.rate(threshold, self.noise)

    def fpr(self, threshold: ArrayLike) -> Any:
        """Compute the share of impostor pairs accepted (score > threshold)."""
        return self.impostor.rate(threshold, self.noise)

    @validate(fpr=check_target)
    def threshold_at(self, fpr: float) -> float:
        """Find the least threshold whose false-match rate is at most ``fpr``."""
        if self.noise is None:
            return self.impostor.clean_threshold(fpr)
        low, high = self._range
        return find_least_threshold(lambda t: float(self.fpr(t)) - fpr, (low + high) / 2, max((high - low) / 4, 1e-300))

    @validate()
    def tpr_at(self, fpr: ArrayLike) -> Any:
        """Compute the true-match rate at a false-match rate in (0, 1), or at each of several."""
        rates = _validation.check_array(fpr, "fpr", "in (0, 1)")
        if rates.dtype.kind not in "fiu":
            _validation.reject("fpr", "in (0, 1)", fpr)
        values = [float(self.tpr(self.threshold_at(float(rate)))) for rate in rates.ravel()]
        return values[0] if rates.ndim == 0 else np.array(values).reshape(rates.shape)

    @cached_property
    def auc(self) -> float:
        """The probability that a genuine score exceeds an impostor score. A tie counts one half."""
        if not isinstance(self.noise, GaussianNoise):
            return self._integrate(1.0)
        both = GaussianNoise(math.sqrt(2) * self.noise.std)  # the noise of a difference
        points, weights = self.genuine.nodes(both)
        return float(np.clip(1 - weights @ np.asarray(self.impostor.rate(points, both)), 0.0, 1.0))

    @cached_property
    def eer(self) -> float:
        """The rate at which false matches and false non-matches are equally frequent (equal error rate)."""
        if isinstance(self.noise, GaussianNoise):
            low, high = self._range
            gap = lambda t: float(self.fpr(t)) - (1 - float(self.tpr(t)))  # noqa: E731
            return float(self.fpr(find_least_threshold(gap, (low + high) / 2, max((high - low) / 4, 1e-300))))
        fpr, tpr, _ = self._vertices
        over = fpr - (1 - tpr)  # rises from -1 to 1
        after = int(np.argmax(over >= 0))
        if after == 0 or over[after] == over[after - 1]:
            return float(fpr[after])
        share = -over[after - 1] / (over[after] - over[after - 1])
        return float(fpr[after - 1] + share * (fpr[after] - fpr[after - 1]))

    @validate(a=check_share)
    def partial_auc(self, a: float) -> float:
        """Compute the area under the curve up to a false-match rate of ``a``, in (0, 1]; at most a."""
        return self.auc if a == 1 else self._integrate(a)

    def evaluate(self, fpr: Float) -> Float:
        """Evaluate the curve, with ties broken by a fair coin: true-match rates at false-match rates in [0, 1]."""
        if not isinstance(self.noise, GaussianNoise):
            rates, tpr, _ = self._vertices
            values: Float = np.interp(fpr, rates, tpr)
            return values
        return np.asarray(self.tpr(self._find_thresholds(fpr)))

    def _find_thresholds(self, fpr: Float) -> Float:
        """Find the thresholds of many false-match rates at once, under Gaussian noise.

        On the scale of normal quantiles the rate is nearly a straight line in the threshold. A table gives a start, and
        Newton's method refines it. Where it does not converge, bisection finds the threshold.
        """
        table, z, slope = self._quantiles
        target = ndtri(np.clip(fpr, 1e-300, 1 - 1e-16))
        t: Float = np.interp(-target, -z, table)
        for _ in range(4):
            with np.errstate(invalid="ignore", divide="ignore"):
                miss = ndtri(np.clip(np.asarray(self.fpr(t)), 1e-300, 1 - 1e-16)) - target
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
        """Compute false-match rates, true-match rates and thresholds, in order of falling threshold."""
        low, high = self._range
        thresholds = np.linspace(high, low, points)
        if self.noise is None:
            thresholds[-1] = np.nextafter(low, -np.inf)  # so that the last score passes too
        return np.asarray(self.fpr(thresholds)), np.asarray(self.tpr(thresholds)), thresholds

    @property
    def _range(self) -> tuple[float, float]:
        ends = self.genuine.reach(self.noise), self.impostor.reach(self.noise)
        return min(end[0] for end in ends), max(end[1] for end in ends)

    def _integrate(self, a: float) -> float:
        """Integrate the curve over [0, a]."""
        if not isinstance(self.noise, GaussianNoise):
            fpr, tpr, _ = self._vertices
            inside = fpr < a
            x = np.append(fpr[inside], a)
            return float(np.trapezoid(np.append(tpr[inside], np.interp(a, fpr, tpr)), x))
        # In the quantiles of the noisy impostors the integrand is smooth but steep at 0: panels shrink towards 0.
        edges = a * np.append(0.0, 4.0 ** np.arange(-24.0, 1))
        points, weights = panel_quadrature(edges)
        return float(weights @ self.evaluate(points))

    @cached_property
    def _vertices(self) -> tuple[Float, Float, Float]:
        """The polygon: rates in order of falling threshold, from (0, 0) to (1, 1)."""
        if self.noise is None and isinstance(self.genuine, Sample) and isinstance(self.impostor, Sample):
            thresholds = np.unique(np.concatenate([self.genuine.values, self.impostor.values]))[::-1]
        elif self.noise is None:
            thresholds = np.linspace(*self._range[::-1], 200_001)
        else:
            thresholds = self._refine_thresholds()
        ends = np.concatenate([[np.inf], thresholds, [-np.inf]])
        fpr, tpr = np.zeros(len(ends)), np.zeros(len(ends))
        fpr[1:-1], tpr[1:-1] = self._compute_rates(thresholds)
        fpr[-1] = tpr[-1] = 1.0
        return np.maximum.accumulate(fpr), np.maximum.accumulate(tpr), ends

    def _compute_rates(self, thresholds: Float) -> tuple[Float, Float]:
        return (
            np.asarray(self.impostor.coarsen(self.noise).rate(thresholds, self.noise)),
            np.asarray(self.genuine.coarsen(self.noise).rate(thresholds, self.noise)),
        )

    def _refine_thresholds(self) -> Float:
        """Find falling thresholds that are close enough for the polygon through them to approximate the curve."""
        low, high = self._range
        t = np.linspace(high, low, 257)
        fpr, tpr = self._compute_rates(t)
        for _ in range(50):
            step = np.abs(np.diff(fpr))
            wide = (step > 2**-10) | (np.abs(np.diff(tpr)) > 2**-10) | ((step > 0.05 * fpr[1:]) & (fpr[1:] > 1e-10))
            wide &= -np.diff(t) > 1e-13 * (high - low)
            if not wide.any() or len(t) > 40_000:
                break
            fresh = ((t[:-1] + t[1:]) / 2)[wide]
            order = np.argsort(-np.concatenate([t, fresh]), kind="stable")
            more = self._compute_rates(fresh)
            t = np.concatenate([t, fresh])[order]
            fpr, tpr = np.concatenate([fpr, more[0]])[order], np.concatenate([tpr, more[1]])[order]
        return t


@validate()
def roc(genuine: ScoresLike, impostor: ScoresLike, noise: NoiseLike = 0.0) -> Roc:
    """Make the operating curve after noise.

    Args:
        genuine: Clean scores of pairs that match: an array, a sample or a distribution.
        impostor: Clean scores of pairs that do not match.
        noise: A standard deviation (Gaussian) or a noise law; 0 gives the clean curve.
    """
    return Roc(as_scores(genuine, "genuine"), as_scores(impostor, "impostor"), as_law(noise))


def panel_quadrature(edges: Float, order: int = 12) -> tuple[Float, Float]:
    """Compute Gauss-Legendre points and weights on each interval between the edges."""
    x, w = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + edges[1:, None]) / 2 + half * x
    return points.ravel(), (half * w).ravel()
