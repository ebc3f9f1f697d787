"""Measure how well a statistic distinguishes two samples, with intervals and the ceiling that a guarantee sets.

Nothing is resampled. The area under the curve is a Mann-Whitney statistic, an average of means of min(m, n)
independent values in [0, 1]. So Chernoff's bound holds for it (Hoeffding 1963, section 5), for any two laws: the
interval is every θ with min(m, n) KL(auc ‖ θ) ≤ ln(2/α). For the true-positive rate, order statistics bracket the
threshold, and Clopper & Pearson (1934) bracket the hits beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv, xlogy
from scipy.stats import rankdata

from scoreshield import _validation
from scoreshield._validation import check_inside_unit, validate
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.losses import extract_profile
from scoreshield.privacy.profiles import Profile
from scoreshield.releases.results import Release

Float = NDArray[np.float64]

#: What sets the ceiling of an attack.
CeilingSource = Guarantee | Release | Profile
#: The false-positive rate of ``tpr_at_1_percent``.
FALSE_POSITIVES = 0.01
_TIES = 7  # the seed that breaks ties: a randomised test, the same on every run


@dataclass(frozen=True)
class MembershipResult:
    """How well a statistic distinguishes members from non-members, and the upper bound that the guarantee sets.

    Attributes:
        trials: The numbers of members and non-members that were tested.
        auc: The probability that a member's statistic is above a non-member's; ties count half.
        auc_interval: The confidence interval of `auc`.
        tpr_at_1_percent: The share of members found at a false-positive rate of 1 %.
        tpr_interval: The confidence interval of `tpr_at_1_percent`.
        ceiling_auc: The largest AUC that the guarantee allows; 1 without a guarantee.
        ceiling_tpr: The largest true-positive rate at 1 % that the guarantee allows; 1 without a guarantee.
        confidence: The confidence of each interval. If the promise is kept, `violation` is true with a probability of
            at most 1 - confidence.
    """

    statistic: str
    trials: tuple[int, int]
    auc: float
    auc_interval: tuple[float, float]
    tpr_at_1_percent: float
    tpr_interval: tuple[float, float]
    ceiling_auc: float
    ceiling_tpr: float
    confidence: float

    @property
    def violation(self) -> bool:
        """Whether an interval lies wholly above its ceiling."""
        return self.auc_interval[0] > self.ceiling_auc or self.tpr_interval[0] > self.ceiling_tpr

    def __str__(self) -> str:
        verdict = "the ceiling is broken" if self.violation else "no violation found"
        return (
            f"{self.statistic}: AUC {self.auc:.3f} [{self.auc_interval[0]:.3f}, {self.auc_interval[1]:.3f}], at most "
            f"{self.ceiling_auc:.3f} allowed; true positives at 1 % false ones {self.tpr_at_1_percent:.3f} "
            f"[{self.tpr_interval[0]:.3f}, {self.tpr_interval[1]:.3f}], at most {self.ceiling_tpr:.3f} allowed; "
            f"{verdict} in {self.trials[0]:,} members and {self.trials[1]:,} non-members."
        )


@validate(confidence=check_inside_unit)
def evaluate_statistic(
    members: ArrayLike,
    non_members: ArrayLike,
    *,
    ceiling: CeilingSource | None = None,
    confidence: float = 0.95,
    statistic: str = "statistic",
) -> MembershipResult:
    """Compute the area of one statistic and its height at 1 % false positives, with intervals and the ceiling."""
    inside = check_finite_array(members, "members", "a vector of finite numbers", 1)
    outside = check_finite_array(non_members, "non_members", "a vector of finite numbers", 1)
    profile = None if ceiling is None else extract_profile(ceiling)
    m, n = len(inside), len(outside)
    ranks = rankdata(np.concatenate([inside, outside]))
    area = float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))
    tpr, tpr_interval = _bound_true_positives(inside, outside, 1 - confidence)
    return MembershipResult(
        statistic=statistic,
        trials=(m, n),
        auc=area,
        auc_interval=_find_chernoff_interval(area, min(m, n), 1 - confidence),
        tpr_at_1_percent=tpr,
        tpr_interval=tpr_interval,
        ceiling_auc=1.0 if profile is None else float(profile.auc),
        ceiling_tpr=1.0 if profile is None else float(profile.tpr_at(FALSE_POSITIVES)),
        confidence=confidence,
    )


def _find_chernoff_interval(value: float, pairs: int, alpha: float) -> tuple[float, float]:
    """Find all theta with pairs · KL(value || theta) <= ln(2 / alpha), by bisection on either side."""
    bound = math.log(2 / alpha) / pairs
    entropy = float(xlogy(value, value) + xlogy(1 - value, 1 - value))

    def end(inner: float, outer: float) -> float:
        for _ in range(60):
            middle = (inner + outer) / 2
            distance = entropy - float(xlogy(value, middle) + xlogy(1 - value, 1 - middle))
            inner, outer = (middle, outer) if distance <= bound else (inner, middle)
        return outer  # the side that covers more

    return (0.0 if value == 0 else end(value, 0.0)), (1.0 if value == 1 else end(value, 1.0))


def _bound_true_positives(inside: Float, outside: Float, alpha: float) -> tuple[float, tuple[float, float]]:
    """Compute the share of members above the threshold that 1 % of non-members pass; four errors of alpha / 4 each.

    A fresh non-member exceeds the k-th largest of n with a probability that follows Beta(k, n - k + 1). So one k is
    surely low enough and another surely high enough. Ties are broken at random.
    """
    m, n = len(inside), len(outside)
    pooled = np.concatenate([inside, outside])
    order = np.lexsort((np.random.default_rng(_TIES).random(m + n), pooled))[::-1]
    is_member = order < m
    hits_above = np.cumsum(is_member)[~is_member]  # the members above each non-member, from the largest down
    k = np.arange(1, n + 1)
    chance_low = betainc(k, n - k + 1, FALSE_POSITIVES)  # that the k-th threshold has at most 1 % above it
    sure, enough = np.flatnonzero(chance_low >= 1 - alpha / 4), np.flatnonzero(chance_low <= alpha / 4)
    low, high = 0.0, 1.0
    if len(sure) and (hits := int(hits_above[sure[-1]])):
        low = float(betaincinv(hits, m - hits + 1, alpha / 4))
    if len(enough) and (hits := int(hits_above[enough[0]])) < m:
        high = float(betaincinv(hits + 1, m - hits, 1 - alpha / 4))
    return float(hits_above[int(FALSE_POSITIVES * n)] / m), (low, high)


def check_finite_array(values: Any, name: str, must: str, dimensions: int, length: int | None = None) -> Float:
    """Return a float64 array of this many dimensions. Raise an error if it is empty or holds NaN or infinities."""
    array = _validation.check_array(values, name, must)
    fits = array.ndim == dimensions and array.size and array.dtype.kind in "fiu" and length in (None, len(array))
    if not fits or not np.isfinite(array).all():
        _validation.reject(name, must, values)
    return array.astype(np.float64)
