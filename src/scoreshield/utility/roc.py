r"""The operating curve of a score after noise: ROC, areas under it, equal error rate, and recall at rank k.

Both score distributions are smoothed by the same noise law, and every figure is an integral of one smoothed tail
against the other,

.. math:: \int F(t)\,(-dG(t)), \qquad F = P[\text{genuine} + W > t],\quad G = P[\text{impostor} + W > t].

It is taken panel by panel: on each, F and G are interpolated at twelve Chebyshev points and the product of one with
the derivative of the other is integrated exactly. Panels of half a sigma make the error smaller than 1e-12 for
Gaussian noise; a law with kinks gets panels of an eighth of its std, for about 1e-6. Without noise the curve is the
empirical one, by counting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc

from scoreshield import _checks
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.utility._roots import least_threshold
from scoreshield.utility.scores import Float, Law, Sample, Scores, as_law, as_scores

_ORDER = 12


def _product_rule() -> tuple[Float, Float]:
    """Chebyshev points on [-1, 1], upward, and B with f' B g = the integral of p_f times the derivative of p_g."""
    points = -np.cos(np.arange(_ORDER) * np.pi / (_ORDER - 1))
    vandermonde = np.polynomial.legendre.legvander(points, _ORDER - 1)
    inverse = np.linalg.inv(vandermonde)  # columns: Legendre coefficients of each Lagrange polynomial
    x, w = np.polynomial.legendre.leggauss(_ORDER)
    values = np.polynomial.legendre.legvander(x, _ORDER - 1) @ inverse
    slopes = np.polynomial.legendre.legval(x, np.polynomial.legendre.legder(inverse)).T
    return points, np.einsum("q,qi,qj->ij", w, values, slopes)


_POINTS, _PRODUCT = _product_rule()


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

    def threshold_at(self, fpr: float) -> float:
        """The least threshold whose false-match rate is at most ``fpr``."""
        fpr = _checks.probability(fpr, "fpr", "threshold_at", zero=False)
        if self.noise is None:
            return self.impostor.clean_threshold(fpr)
        return self._solve(lambda t: float(self.fpr(t)) - fpr)

    def tpr_at(self, fpr: ArrayLike) -> Any:
        """The true-match rate at a false-match rate, or at each of several, in (0, 1)."""
        rates = _checks.array(fpr, "fpr", "tpr_at", "in (0, 1)")
        found = [float(self.tpr(self.threshold_at(float(rate)))) for rate in rates.ravel()]
        return found[0] if rates.ndim == 0 else np.array(found).reshape(rates.shape)

    @cached_property
    def auc(self) -> float:
        """The probability that a genuine score beats an impostor one, ties counting one half."""
        if self.noise is None:
            return self._clean_area(1.0)
        return self._area(self._range[0])

    @cached_property
    def eer(self) -> float:
        """The rate at which false matches and false non-matches are equally frequent."""
        if self.noise is None:
            return self._clean_eer()
        threshold = self._solve(lambda t: float(self.fpr(t)) - (1 - float(self.tpr(t))))
        return float(self.fpr(threshold))

    def partial_auc(self, a: float) -> float:
        """The area under the curve up to a false-match rate of ``a``, in (0, 1]; at most a."""
        if a == 1:
            return self.auc
        a = _checks.probability(a, "a", "partial_auc", zero=False)
        return self._clean_area(a) if self.noise is None else self._area(self.threshold_at(a))

    def curve(self, points: int = 512) -> tuple[Float, Float, Float]:
        """False-match rates, true-match rates and thresholds, thresholds falling."""
        points = _checks.count(points, "points", "curve", least=2)
        low, high = self._range
        thresholds = np.linspace(high, low, points)
        if self.noise is None:
            thresholds[-1] = np.nextafter(low, -np.inf)  # where the last score passes too
        return np.asarray(self.fpr(thresholds)), np.asarray(self.tpr(thresholds)), thresholds

    @property
    def _range(self) -> tuple[float, float]:
        ends = self.genuine.reach(self.noise), self.impostor.reach(self.noise)
        return min(end[0] for end in ends), max(end[1] for end in ends)

    def _solve(self, excess: Callable[[float], float]) -> float:
        low, high = self._range
        return least_threshold(excess, (low + high) / 2, (high - low) / 4)

    def _area(self, start: float) -> float:
        return stieltjes(self.tpr, self.fpr, start, self._range[1], self.noise)

    def _clean_points(self) -> tuple[Float, Float]:
        """Vertices of the curve of two samples, threshold falling."""
        if isinstance(self.genuine, Sample) and isinstance(self.impostor, Sample):
            thresholds = np.unique(np.concatenate([self.genuine.values, self.impostor.values]))[::-1]
        else:
            low, high = self._range
            thresholds = np.linspace(high, low, 200_001)
        ends = np.concatenate([thresholds, [-np.inf]])
        return self.impostor.clean_rate(ends, False), self.genuine.clean_rate(ends, False)

    def _clean_area(self, a: float) -> float:
        fpr, tpr = self._clean_points()
        if a < 1:
            inside = fpr <= a
            tpr = np.append(tpr[inside], np.interp(a, fpr, tpr))
            fpr = np.append(fpr[inside], a)
        return float(np.trapezoid(tpr, fpr))

    def _clean_eer(self) -> float:
        fpr, tpr = self._clean_points()
        gap = fpr - (1 - tpr)  # rises from -1 to 1
        after = int(np.argmax(gap >= 0))
        if after == 0 or gap[after] == gap[after - 1]:
            return float(fpr[after])
        share = -gap[after - 1] / (gap[after] - gap[after - 1])
        return float(fpr[after - 1] + share * (fpr[after] - fpr[after - 1]))


def roc(genuine: object, impostor: object, noise: object = 0.0) -> Roc:
    """The operating curve after noise; ``noise=0`` is the clean one.

    Parameters
    ----------
    genuine, impostor : clean scores of pairs that match and of pairs that do not: arrays, samples or distributions.
    noise : a standard deviation (Gaussian) or a noise law.
    """
    return Roc(as_scores(genuine, "genuine", "roc"), as_scores(impostor, "impostor", "roc"), as_law(noise, "roc"))


def recall_at_k(genuine: object, impostor: object, noise: object, *, records: int, k: int) -> float:
    """The probability that one relevant record is among the k best of ``records`` by noisy score.

    The other records score like impostors, independently: with G their smoothed tail, the relevant record at noisy
    score t stays in place if at most k - 1 of them exceed it, P[Binomial(records - 1, G(t)) < k].
    """
    function = "recall_at_k"
    records = _checks.count(records, "records", function)
    k = _checks.count(k, "k", function)
    curve = roc(genuine, impostor, noise)
    if k >= records:
        return 1.0

    def kept(t: ArrayLike) -> Any:
        return betainc(records - k, k, 1 - np.asarray(curve.fpr(t)))

    if curve.noise is None:
        points, weights = (
            (curve.genuine.values, 1 / len(curve.genuine))
            if isinstance(curve.genuine, Sample)
            else curve.genuine.nodes(GaussianNoise(1e-3))
        )
        return float(np.sum(kept(points) * weights))
    return stieltjes(kept, curve.tpr, *curve._range, curve.noise)


def stieltjes(f: Callable[[Float], Any], g: Callable[[Float], Any], low: float, high: float, law: Law | None) -> float:
    """The integral of f (-dg) over [low, high], both smooth on the scale of the noise."""
    width = (law.std if law is not None else (high - low) / 1000) * (0.5 if isinstance(law, GaussianNoise) else 1 / 8)
    panels = max(1, math.ceil((high - low) / width))
    edges = np.linspace(low, high, min(panels, 40_000) + 1)
    half = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + edges[1:, None]) / 2 + half * _POINTS
    return -float(np.einsum("pi,ij,pj->", np.asarray(f(points)), _PRODUCT, np.asarray(g(points))))
