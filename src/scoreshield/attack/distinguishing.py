"""Measure how well a statistic distinguishes two samples, with intervals and the ceiling that a guarantee sets.

Nothing is resampled. The intervals hold for any two laws (`scoreshield.decisions.confidence`). Chernoff's bound gives
that of the area: every θ with min(m, n) KL(auc ‖ θ) ≤ ln(2/α). For the true-positive rate, order statistics bracket
the threshold, and Clopper & Pearson (1934) bracket the hits beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_inside_unit, validate
from scoreshield.decisions.confidence import bound_area, bound_true_positives
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
    auc, auc_low, auc_high = bound_area(inside, outside, confidence)
    hits = _count_members_above(inside, outside)
    return MembershipResult(
        statistic=statistic,
        trials=(len(inside), len(outside)),
        auc=auc,
        auc_interval=(auc_low, auc_high),
        tpr_at_1_percent=float(hits[int(FALSE_POSITIVES * len(outside))] / len(inside)),
        tpr_interval=bound_true_positives(hits, hits, len(inside), FALSE_POSITIVES, confidence),
        ceiling_auc=1.0 if profile is None else float(profile.auc),
        ceiling_tpr=1.0 if profile is None else float(profile.tpr_at(FALSE_POSITIVES)),
        confidence=confidence,
    )


def _count_members_above(inside: Float, outside: Float) -> NDArray[np.intp]:
    """Count the members above each non-member, from the largest non-member down. Ties are broken at random."""
    pooled = np.concatenate([inside, outside])
    order = np.lexsort((np.random.default_rng(_TIES).random(len(pooled)), pooled))[::-1]
    is_member = order < len(inside)
    return np.cumsum(is_member, dtype=np.intp)[~is_member]


def check_finite_array(values: Any, name: str, must: str, dimensions: int, length: int | None = None) -> Float:
    """Return a float64 array of this many dimensions. Raise an error if it is empty or holds NaN or infinities."""
    array = _validation.check_array(values, name, must)
    fits = array.ndim == dimensions and array.size and array.dtype.kind in "fiu" and length in (None, len(array))
    if not fits or not np.isfinite(array).all():
        _validation.reject(name, must, values)
    return array.astype(np.float64)
