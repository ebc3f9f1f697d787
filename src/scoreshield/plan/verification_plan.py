"""Plan a matcher: the noise for a contract, the threshold that keeps a false-match rate, and the true-match rate.

Scores of one query under record replacement have the width of the public range as their sensitivity. All figures are
computed by `scoreshield.decisions`. Nothing is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scoreshield import decisions
from scoreshield._formatting import format_number, format_rate, format_rate_pair
from scoreshield._types import Calibration
from scoreshield._validation import check_inside_unit, one_of, optional, validate
from scoreshield.decisions.scores import Float, Sample, ScoresLike, check_target
from scoreshield.errors import InvalidInput
from scoreshield.plan.alternatives import Alternative, MatchNeed, Rule, list_alternatives, state_range_end
from scoreshield.plan.base import (
    RANGES,
    Plan,
    ScoreRange,
    Source,
    as_plain_value,
    check_order,
    check_plan_scores,
    check_ranges,
    check_source,
    settle_terms,
    state_least_epsilon,
)
from scoreshield.plan.choice import Choice, choose
from scoreshield.plan.contracts import CONTRACT_CHECKS
from scoreshield.plan.targets import LARGEST_EPSILON, Goal, MatchTarget
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import check_score_range
from scoreshield.privacy.noise import GaussianNoise


@dataclass(frozen=True, kw_only=True, repr=False)
class VerificationPlan(Plan):
    """A threshold to set, and the rates it gives.

    Attributes:
        rule: The decision rule.
        target_fmr: The false-match rate to keep.
        target_tar: The true-match rate that is needed with it, or None.
        recalibration: The threshold and its shift, as `decisions.recalibrate` finds them.
        rate_error: The standard error of the false-match rate as an estimate from this sample; 0 for a distribution.
        clean_tar: The true-match rate at the target without noise; NaN without genuine scores.
        tar: The true-match rate at the target with noise; NaN without genuine scores.
        critical_scale: The least noise scale at which clipped scores cannot meet the false-match target.
        least_epsilon: The least epsilon that meets the need; infinity where none does, and ``answer`` states why.
        alternatives: The same need with one choice changed; the first is the plan itself.
    """

    kind = "verification"

    rule: Rule
    target_fmr: float
    target_tar: float | None
    recalibration: decisions.Recalibration
    rate_error: float
    clean_tar: float
    tar: float
    critical_scale: float
    alternatives: tuple[Alternative, ...]
    need: MatchNeed = field(repr=False)

    def _list_alternatives(self) -> tuple[Alternative, ...]:
        return self.alternatives

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A value that is no finite number is null."""
        curves = {
            name: None if curve is None else {"auc": curve.auc, "eer": curve.eer}
            for name, curve in (("clean", self.roc(0)), ("private", self.roc(self.noise)))
        }
        return {
            **super().to_dict(),
            "rule": str(self.rule),
            "target_fmr": self.target_fmr,
            "target_tar": self.target_tar,
            "recalibration": {name: as_plain_value(value) for name, value in vars(self.recalibration).items()},
            "rate_error": self.rate_error,
            "clean_tar": as_plain_value(self.clean_tar),
            "tar": as_plain_value(self.tar),
            "critical_scale": as_plain_value(self.critical_scale),
            "roc": curves,
            "alternatives": [row.to_dict() for row in self.alternatives],
        }

    @cached_property
    def shift_curve(self) -> tuple[Float, Float, Float]:
        """Noise scales, the shift on noisy scores, and the law for small noise."""
        edge = self.critical_scale if math.isfinite(self.critical_scale) and self.critical_scale > 0 else self.scale
        scales = np.geomspace(min(edge, self.scale) / 30, 1.6 * max(edge, self.scale), 60)
        shifts = [decisions.recalibrate(self.impostor, self.target_fmr, scale, clipped=False).shift for scale in scales]
        curvature = self.impostor.log_slope(self.recalibration.clean_threshold)
        return scales, np.array(shifts), -0.5 * scales**2 * curvature

    def _write_answer(self) -> str:
        moved, contract = self.recalibration, self.contract
        fmr = format_rate(self.target_fmr)
        usual = "For comparison, " if self.is_surpassed else f"With {contract.stated}: "
        opening = (
            f"The least epsilon at which Gaussian noise meets the need is {format_number(contract.epsilon)} (delta "
            f"{format_number(contract.delta)}): "
            if self.is_searched
            else usual
        )
        noise = f"Gaussian noise of standard deviation {format_number(self.scale)}"
        if not moved.feasible:
            return (
                f"{opening}a false-match rate of {fmr} is not reachable on {self.rule}, because under {noise} a "
                f"threshold {state_range_end(self.rule, self.score_range)} still passes {format_rate(moved.limit)}; on "
                f"noisy scores the threshold {format_number(moved.unclipped_threshold)} reaches it."
                f"{state_least_epsilon(self)}"
            )
        if self.is_surpassed:
            return (
                f"{opening}{noise} would keep {format_rate(self.tar)} of true matches (clean: "
                f"{format_rate(self.clean_tar)}), with a threshold of {format_number(moved.threshold)} (clean: "
                f"{format_number(moved.clean_threshold)}).{self._judge_target()}"
            )
        answer = (
            f"{opening}add {noise} and accept when the {'clipped' if self.rule.clipped else 'noisy'} score "
            f"{'reaches' if self.rule.is_inclusive else 'exceeds'} {format_number(moved.threshold)} (clean: "
            f"{format_number(moved.clean_threshold)}): false matches stay at {fmr}"
        )
        if self.genuine is not None:
            answer += f", and true matches go from {format_rate(self.clean_tar)} to {format_rate(self.tar)}"
        return f"{answer}.{self._judge_target()}"

    def _judge_target(self) -> str:
        """Write whether the plan meets its true-match target; empty without one."""
        if self.target_tar is None or (self.met and self.is_searched):
            return ""
        subject = "It" if self.is_surpassed else "That"
        if self.met:
            return f" {subject} meets the {format_rate(self.target_tar)} asked for.{state_least_epsilon(self)}"
        missed = f" {subject} misses the {format_rate_pair(self.tar, self.target_tar)[1]} true matches asked for"
        if math.isnan(self.least_epsilon):
            return f"{missed}, and where it would meet them this calibration is not private; use the analytic one."
        if math.isinf(self.least_epsilon):
            return f"{missed}, and no epsilon reaches them: {self.need.explain_obstacle(self.score_range)}."
        return f"{missed}.{state_least_epsilon(self)}"


@validate(
    target_fmr=check_target,
    delta=check_inside_unit,
    **CONTRACT_CHECKS,
    target_tar=optional(check_inside_unit),
    score_range=check_score_range,
    calibration=one_of(gaussian.METHODS),
    endpoint=one_of(decisions.ENDPOINTS),
    compare_ranges=check_ranges,
)
def verification(
    impostor: ScoresLike,
    genuine: ScoresLike | None = None,
    *,
    target_fmr: float,
    delta: float,
    epsilon: float | None = None,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    target_tar: float | None = None,
    score_range: ScoreRange = (-1.0, 1.0),
    calibration: Calibration = "analytic",
    endpoint: decisions.Endpoint = "strict",
    clipped: bool = False,
    source: Source | None = None,
    compare_ranges: Sequence[ScoreRange] = RANGES,
) -> VerificationPlan:
    """Plan a matcher that accepts a pair when its private score exceeds a threshold.

    Args:
        impostor: Clean scores in [-1, 1] of pairs that do not match: an array, or a ``decisions.Distribution`` where
            only parameters are known.
        genuine: Clean scores of pairs that match, or None.
        target_fmr: The false-match rate to keep.
        delta: The delta of the contract.
        epsilon: The epsilon of the contract. Without any contract, the plan finds the least epsilon that meets
            ``target_tar``.
        max_advantage: Instead: the largest advantage of a test for one record.
        max_tpr: Instead, with ``at_fpr``: the largest true-positive rate of such a test.
        at_fpr: The false-positive rate for ``max_tpr``.
        target_tar: The true-match rate that is needed with the false-match rate, or None.
        score_range: The public range that clean scores are clamped to before noise. Its width is the sensitivity.
        calibration: The rule that sets the noise. A textbook rule raises an error where it is not private.
        endpoint: "strict" accepts score > threshold, "nonstrict" accepts score >= threshold.
        clipped: Whether decisions are made on clipped scores. By default they are made on noisy scores, which reach
            every target.
        source: Where the scores come from: "public", "released" under a guarantee, assumed "parameters", or "private".
            Without it, samples count as private. A plan from private scores reveals them and has a warning.
        compare_ranges: Other public ranges to compare.
    """
    impostors = check_plan_scores(impostor, "impostor")
    genuines = None if genuine is None else check_plan_scores(genuine, "genuine")
    check_order(impostors, genuines)
    origin = check_source(source, impostors, genuines)
    if target_tar is not None and genuines is None:
        raise InvalidInput("A true-match target needs genuine scores: give them beside the impostor ones.")
    impostors.clean_threshold(target_fmr)  # raises an error for a target that the sample cannot support
    need = MatchNeed(impostors, genuines, target_fmr, target_tar, delta, Rule(bool(clipped), endpoint))
    no_target = (
        "Without a contract the plan looks for the least epsilon, and on noisy scores every false-match target "
        "is met at any epsilon: give a true-match target, or a contract (epsilon, or an attack bound)."
    )
    terms = settle_terms(
        need,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
        score_range=score_range,
        compare_ranges=compare_ranges,
        no_target=no_target if target_tar is None and not clipped else None,
    )
    choice, goal = None, None
    if genuines is not None and (epsilon is None or epsilon <= LARGEST_EPSILON):
        bounds = {"epsilon": epsilon, "max_advantage": max_advantage, "max_tpr": max_tpr, "at_fpr": at_fpr}
        choice, goal = _rank_mechanisms(need, bounds, origin)
    clamped = impostors.clamp(*score_range)
    recalibration, tar = need.recalibrate(score_range, terms.scale)
    rate_error = 0.0
    if isinstance(clamped, Sample):
        rate_error = clamped.standard_error(recalibration.unclipped_threshold, GaussianNoise(terms.scale))
    return VerificationPlan(
        **terms.list_plan_fields(origin, impostors, genuines, target_fmr),
        met=recalibration.feasible and (target_tar is None or tar >= target_tar * (1 - 1e-9)),
        rule=need.rule,
        target_fmr=target_fmr,
        target_tar=target_tar,
        recalibration=recalibration,
        rate_error=rate_error,
        clean_tar=need.compute_clean_tar(score_range),
        tar=tar,
        critical_scale=decisions.critical_scale(clamped, target_fmr, upper=score_range[1]),
        alternatives=list_alternatives(need, terms.contract, score_range, terms.ranges),
        need=need,
        choice=choice,
        goal=goal,
    )


def _rank_mechanisms(
    need: MatchNeed, bounds: dict[str, float | None], source: Source
) -> tuple[Choice | None, Goal | None]:
    """Rank all mechanisms for a matcher: under the contract, or at the least epsilon that meets the true-match rate."""
    assert need.genuine is not None
    impostor, genuine = need.impostor, need.genuine

    def choose_at(epsilon: float | None = None) -> Choice:
        terms = bounds if epsilon is None else {"epsilon": epsilon}
        return choose(
            "verification", impostor, genuine, delta=need.delta, target_fmr=need.target, source=source, **terms
        )

    is_searched = all(value is None for value in bounds.values())
    if need.target_tar is None:
        return (None if is_searched else choose_at()), None
    clean = float(genuine.rate(impostor.clean_threshold(need.target), None))
    target = MatchTarget(need.target_tar, clean, need.delta, choose_at, impostor, genuine, need.target)
    choice = target.find_least() if is_searched else choose_at()
    return choice, target.judge(choice)
