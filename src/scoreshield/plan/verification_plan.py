"""Plan a matcher: the noise for a contract, the threshold that keeps a false-match rate, and what is lost.

Scores of one query under record replacement have the width of the enforced public range as their sensitivity. The
arithmetic is :mod:`scoreshield.decisions`; nothing here is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scoreshield import _validation, decisions
from scoreshield._formatting import format_number, format_rate, format_rate_pair
from scoreshield._validation import validate
from scoreshield.decisions.scores import Float, Sample, check_target
from scoreshield.errors import InvalidInput
from scoreshield.plan.alternatives import MatchNeed, Outcome, Rule, alternatives, end_of_range
from scoreshield.plan.base import (
    RANGES,
    Plan,
    check_least,
    finite,
    least_epsilon_sentence,
    take_ranges,
    take_scores,
    take_source,
    warnings_for,
)
from scoreshield.plan.contracts import Contract, contract
from scoreshield.privacy.adjacency import check_score_range
from scoreshield.privacy.noise import GaussianNoise


@dataclass(frozen=True)
class VerificationPlan(Plan):
    """A threshold to set, and what it does.

    Attributes
    ----------
    rule : how decisions are made.
    recalibration : the threshold and its shift, and all that :class:`decisions.Recalibration` says.
    rate_error : standard error of the false-match rate as an estimate from this sample; 0 for a distribution.
    clean_tar, tar : true-match rate at the target, without and with noise; NaN without genuine scores.
    least_epsilon : the least that meets the need; infinity where none does, and ``answer`` says why.
    alternatives : the same need with one choice changed at a time; the first is the plan itself.
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
    alternatives: tuple[Outcome, ...]

    def to_dict(self) -> dict[str, Any]:
        moved = {name: finite(value) for name, value in vars(self.recalibration).items()}
        clean, noisy = self.roc(0), self.roc(self.noise)
        curves = {
            name: None if curve is None else {"auc": curve.auc, "eer": curve.eer}
            for name, curve in (("clean", clean), ("private", noisy))
        }
        return {
            **super().to_dict(),
            "rule": str(self.rule),
            "target_fmr": self.target_fmr,
            "target_tar": self.target_tar,
            "recalibration": moved,
            "rate_error": self.rate_error,
            "clean_tar": finite(self.clean_tar),
            "tar": finite(self.tar),
            "critical_scale": finite(self.critical_scale),
            "roc": curves,
            "alternatives": [outcome.to_dict() for outcome in self.alternatives],
        }

    @cached_property
    def shift_curve(self) -> tuple[Float, Float, Float]:
        """Noise scales, the shift on noisy scores, and the small-noise law."""
        edge = self.critical_scale if math.isfinite(self.critical_scale) and self.critical_scale > 0 else self.scale
        scales = np.geomspace(min(edge, self.scale) / 30, 1.6 * max(edge, self.scale), 60)
        shifts = [decisions.recalibrate(self.impostor, self.target_fmr, scale, clipped=False).shift for scale in scales]
        curvature = self.impostor.log_slope(self.recalibration.clean_threshold)
        return scales, np.array(shifts), -0.5 * scales**2 * curvature


@validate()
def verification(
    impostor: object,
    genuine: object = None,
    *,
    target_fmr: float,
    delta: float,
    epsilon: float | None = None,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    target_tar: float | None = None,
    score_range: tuple[float, float] = (-1.0, 1.0),
    calibration: str = "analytic",
    endpoint: str = "strict",
    clipped: bool = False,
    source: str | None = None,
    compare_ranges: Sequence[tuple[float, float]] = RANGES,
) -> VerificationPlan:
    """Plan a matcher that accepts a pair when its private score exceeds a threshold.

    Parameters
    ----------
    impostor, genuine : clean scores in [-1, 1] of pairs that do not match and (optional) that do: arrays, or
        ``decisions.Distribution`` where only parameters are known.
    target_fmr : the false-match rate to keep. target_tar : the true-match rate needed with it, if any.
    epsilon, delta : the contract; or ``max_advantage``; or ``max_tpr`` with ``at_fpr``: the most an attacker who tests
        for one record may achieve. Without any, the plan finds the least epsilon that meets ``target_tar``.
    score_range : the public range that clean scores are clamped to before noise; its width is the sensitivity.
    calibration : the rule for the noise; textbook rules are refused where they are false.
    endpoint, clipped : the decision rule; by default on noisy scores, which reach every target.
    source : where the scores come from: "public", "released" under a guarantee, assumed "parameters", or "private",
        which samples are taken to be if nothing is said, and which is warned about: a plan made of them reveals them.
    """
    impostors = take_scores(impostor, "impostor")
    genuines = None if genuine is None else take_scores(genuine, "genuine")
    source = take_source(source, impostors, genuines)
    ranges = take_ranges(compare_ranges)
    target = check_target(target_fmr, "target_fmr")
    if target_tar is not None:
        target_tar = _validation.check_probability(target_tar, "target_tar", zero=False)
        if genuines is None:
            raise InvalidInput("A true-match target needs genuine scores: give them beside the impostor ones.")
    chosen_range = check_score_range(score_range)
    rule = Rule(bool(clipped), _validation.check_option(endpoint, "endpoint", decisions.ENDPOINTS))
    impostors.clean_threshold(target)
    promise = contract(
        delta=delta,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
    )
    need = MatchNeed(impostors, genuines, target, target_tar, delta)
    least = need.least_epsilon(chosen_range, rule, calibration)
    searched = promise is None
    if promise is None:
        if target_tar is None and not clipped:
            raise InvalidInput(
                "Without a contract the plan looks for the least epsilon, and on noisy scores every false-match target "
                "is met at any epsilon: give a true-match target, or a contract (epsilon, or an attack bound)."
            )
        check_least(least, need.obstacle(chosen_range, rule))
        promise = contract(delta=delta, epsilon=least * (1 + 1e-9), calibration=calibration)
        assert promise is not None
    return _verified(need, promise, least, chosen_range, rule, source, ranges, searched)


def _verified(
    need: MatchNeed,
    promise: Contract,
    least: float,
    chosen_range: tuple[float, float],
    rule: Rule,
    source: str,
    compare_ranges: Sequence[tuple[float, float]],
    searched: bool,
) -> VerificationPlan:
    sensitivity = chosen_range[1] - chosen_range[0]
    scale = promise.scale(sensitivity)
    impostors, genuines = need.clamped(chosen_range)
    moved = decisions.recalibrate(
        impostors, need.target, scale, rule.endpoint, rule.clipped, lower=chosen_range[0], upper=chosen_range[1]
    )
    clean_tar = need.clean_tar(chosen_range)
    tar = need.tar(genuines, moved.threshold, scale, rule)
    rule_name = promise.calibration if promise.calibration != "attack" else "analytic"
    table = alternatives(need, promise, chosen_range, rule, rule_name, compare_ranges)
    met = moved.feasible and (need.target_tar is None or tar >= need.target_tar * (1 - 1e-9))
    error = (
        impostors.standard_error(moved.unclipped_threshold, GaussianNoise(scale))
        if isinstance(impostors, Sample)
        else 0.0
    )
    plan = VerificationPlan(
        answer="",
        met=met,
        contract=promise,
        scale=scale,
        sensitivity=sensitivity,
        score_range=chosen_range,
        least_epsilon=least,
        source=source,
        warnings=warnings_for(source, impostors, need.target, promise),
        impostor=impostors,
        genuine=genuines,
        rule=rule,
        target_fmr=need.target,
        target_tar=need.target_tar,
        recalibration=moved,
        rate_error=error,
        clean_tar=clean_tar,
        tar=tar,
        critical_scale=decisions.critical_scale(impostors, need.target, upper=chosen_range[1]),
        alternatives=table,
    )
    object.__setattr__(plan, "answer", _verification_answer(plan, need, searched))
    return plan


def _verification_answer(plan: VerificationPlan, need: MatchNeed, searched: bool) -> str:
    moved, promise = plan.recalibration, plan.contract
    fmr = format_rate(need.target)
    opening = (
        f"The least epsilon that meets the need is {format_number(promise.epsilon)} (delta "
        f"{format_number(promise.delta)}): "
        if searched
        else f"With {promise.stated}: "
    )
    noise = f"Gaussian noise of standard deviation {format_number(plan.scale)}"
    if not moved.feasible:
        answer = (
            f"{opening}a false-match rate of {fmr} is not reachable on {plan.rule}, because under {noise} a "
            f"threshold {end_of_range(plan.rule, plan.score_range)} still passes {format_rate(moved.limit)}; on noisy "
            f"scores the threshold {format_number(moved.unclipped_threshold)} reaches it."
        )
        return answer + least_epsilon_sentence(plan)
    answer = (
        f"{opening}add {noise} and accept when the {'clipped' if plan.rule.clipped else 'noisy'} score "
        f"{'reaches' if plan.rule.endpoint == 'nonstrict' else 'exceeds'} {format_number(moved.threshold)} (clean: "
        f"{format_number(moved.clean_threshold)}): false matches stay at {fmr}"
    )
    if plan.genuine is not None:
        answer += f", and true matches go from {format_rate(plan.clean_tar)} to {format_rate(plan.tar)}"
    answer += "."
    if need.target_tar is None:
        return answer
    if plan.met:
        return answer + (
            ""
            if searched
            else f" That meets the {format_rate(need.target_tar)} asked for.{least_epsilon_sentence(plan)}"
        )
    missing = f" That misses the {format_rate_pair(plan.tar, need.target_tar)[1]} true matches asked for"
    if math.isnan(plan.least_epsilon):
        return f"{answer}{missing}, and where it would meet them this calibration is not private; use the analytic one."
    if math.isinf(plan.least_epsilon):
        return f"{answer}{missing}, and no epsilon reaches them: {need.obstacle(plan.score_range, plan.rule)}."
    return f"{answer}{missing}.{least_epsilon_sentence(plan)}"
