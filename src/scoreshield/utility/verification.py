"""Plan a matcher: the noise for a contract, the threshold that keeps a false-match rate, and what is lost.

Scores of one query under record replacement have the width of the enforced public range as their sensitivity. The
arithmetic is :mod:`scoreshield.utility.decisions`; nothing here is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scoreshield import _checks
from scoreshield.errors import InvalidCalibration, InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import check_score_range
from scoreshield.privacy.laws import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.utility import decisions
from scoreshield.utility._roots import first_crossing
from scoreshield.utility.contract import Contract, contract
from scoreshield.utility.planning import (
    RANGES,
    SMALLEST,
    Plan,
    check_least,
    finite,
    least_epsilon_sentence,
    take_ranges,
    take_scores,
    take_source,
    warnings_for,
)
from scoreshield.utility.scores import Float, Law, Sample, Scores, check_target
from scoreshield.utility.words import advantage_text, number_text, rate_text, rates_text


@dataclass(frozen=True)
class Rule:
    """How a decision is made: on which scores, and what happens at the threshold itself."""

    clipped: bool
    endpoint: str

    def __str__(self) -> str:
        if not self.clipped:
            return "noisy scores"
        return f"clipped scores, {'strict (>)' if self.endpoint == 'strict' else 'non-strict (>=)'}"


@dataclass(frozen=True)
class Outcome:
    """What one choice of calibration, rule and score range comes to.

    ``change`` names what differs from the plan. ``threshold`` and what follows are NaN where the target is out of
    reach; ``note`` then says why.
    """

    change: str
    calibration: str
    rule: Rule
    score_range: tuple[float, float]
    sensitivity: float
    scale: float
    threshold: float
    shift: float
    rate_kept: float
    tar: float
    least_epsilon: float
    private: bool
    note: str
    mechanism: str = "gaussian"

    def to_dict(self) -> dict[str, Any]:
        values = {**vars(self), "rule": str(self.rule), "score_range": list(self.score_range)}
        return {name: finite(value) for name, value in values.items()}


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
    function = "verification"
    impostors = take_scores(impostor, "impostor", function)
    genuines = None if genuine is None else take_scores(genuine, "genuine", function)
    source = take_source(source, function, impostors, genuines)
    ranges = take_ranges(compare_ranges, function)
    target = check_target(target_fmr, "target_fmr", function)
    if target_tar is not None:
        target_tar = _checks.probability(target_tar, "target_tar", function, zero=False)
        if genuines is None:
            raise InvalidInput("A true-match target needs genuine scores: give them beside the impostor ones.")
    chosen_range = check_score_range(score_range, function)
    rule = Rule(bool(clipped), _checks.one_of(endpoint, "endpoint", function, decisions.ENDPOINTS))
    impostors.clean_threshold(target)
    promise = contract(
        delta=delta,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
        function=function,
    )
    need = _Need(impostors, genuines, target, target_tar, delta)
    least = need.least_epsilon(chosen_range, rule, calibration)
    searched = promise is None
    if promise is None:
        if target_tar is None and not clipped:
            raise InvalidInput(
                "Without a contract the plan looks for the least epsilon, and on noisy scores every false-match target "
                "is met at any epsilon: give a true-match target, or a contract (epsilon, or an attack bound)."
            )
        check_least(least, need.obstacle(chosen_range, rule))
        promise = contract(delta=delta, epsilon=least * (1 + 1e-9), calibration=calibration, function=function)
        assert promise is not None
    return _verified(need, promise, least, chosen_range, rule, source, ranges, searched)


def _verified(
    need: _Need,
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
    table = _alternatives(need, promise, chosen_range, rule, rule_name, compare_ranges)
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


@dataclass(frozen=True)
class _Need:
    """Scores and targets, asked again for every choice that a plan compares."""

    impostor: Scores
    genuine: Scores | None
    target: float
    target_tar: float | None
    delta: float

    def clamped(self, score_range: tuple[float, float]) -> tuple[Scores, Scores | None]:
        return (
            self.impostor.clamp(*score_range),
            None if self.genuine is None else self.genuine.clamp(*score_range),
        )

    def tar(self, genuine: Scores | None, threshold: float, noise: float | Law, rule: Rule) -> float:
        if genuine is None or math.isnan(threshold):
            return math.nan
        law = GaussianNoise(noise) if isinstance(noise, float) else noise
        return float(genuine.rate(threshold, law, inclusive=rule.endpoint == "nonstrict"))

    def clean_tar(self, score_range: tuple[float, float]) -> float:
        impostor, genuine = self.clamped(score_range)
        return math.nan if genuine is None else float(genuine.rate(impostor.clean_threshold(self.target), None))

    def largest_scale(self, score_range: tuple[float, float], rule: Rule) -> float:
        """The most noise that still meets the need; 0 where none does."""
        impostor, genuine = self.clamped(score_range)
        limit = decisions.critical_scale(impostor, self.target, upper=score_range[1]) if rule.clipped else math.inf
        if self.target_tar is None or genuine is None:
            return limit
        wanted = self.target_tar
        if genuine.rate(impostor.clean_threshold(self.target), None, inclusive=True) < wanted:
            return 0.0  # not even if every tie went the right way

        def lost(scale: float) -> float:
            moved = decisions.recalibrate(impostor, self.target, scale, clipped=False)
            return wanted - self.tar(genuine, moved.threshold, scale, rule)

        spread = max(impostor.spread, 1e-6)
        return min(limit, first_crossing(lost, spread / 4, smallest=SMALLEST * spread, largest=1e6))

    def least_epsilon(self, score_range: tuple[float, float], rule: Rule, calibration: str) -> float:
        """NaN where the rule for the noise is false at the epsilon it would take."""
        scale = self.largest_scale(score_range, rule)
        try:
            return decisions.epsilon_for_scale(scale, self.delta, score_range[1] - score_range[0], calibration)
        except InvalidCalibration:
            return math.nan

    def least_pure(self, make: Callable[[float], Law], score_range: tuple[float, float], rule: Rule) -> float:
        """The least epsilon at which a family of pure noise meets the need; infinity where none below 100 does."""
        if self.target_tar is None:
            if not rule.clipped:
                return 0.0
            impostor = self.clamped(score_range)[0]
            return decisions.minimum_epsilon(impostor, self.target, 0.5, upper=score_range[1], family=make)
        impostor, genuine = self.clamped(score_range)
        wanted = self.target_tar

        def lost(tightness: float) -> float:  # noise grows with 1 / epsilon
            law = make(1 / tightness)
            moved = decisions.recalibrate(
                impostor, self.target, law, rule.endpoint, rule.clipped, lower=score_range[0], upper=score_range[1]
            )
            return wanted - (self.tar(genuine, moved.threshold, law, rule) if moved.feasible else 0.0)

        found = first_crossing(lost, 0.1, smallest=1e-2, largest=1e6)
        return math.inf if found == 0 else 0.0 if math.isinf(found) else 1 / found

    def obstacle(self, score_range: tuple[float, float], rule: Rule) -> str:
        """Why no epsilon serves."""
        best = self.clean_tar(score_range)
        if self.target_tar is not None and best < self.target_tar:
            found, asked = rates_text(best, self.target_tar)
            return (
                f"without any noise the true-match rate at a false-match rate of {rate_text(self.target)} is {found}, "
                f"below the {asked} asked for"
            )
        if rule.clipped and self.largest_scale(score_range, rule) == 0:
            return f"more than {rate_text(self.target)} of the clean impostor scores already lie at {score_range[1]:g}"
        return f"it takes scores with noise below {SMALLEST:g} of their spread, which is no noise at all"


def _alternatives(
    need: _Need,
    promise: Contract,
    score_range: tuple[float, float],
    rule: Rule,
    calibration: str,
    ranges: Sequence[tuple[float, float]],
) -> tuple[Outcome, ...]:
    """The plan itself, then one choice changed at a time: calibration, rule, range."""
    choices = [("this plan", calibration, rule, score_range)]
    for other in gaussian.METHODS:
        if other != calibration and promise.epsilon > 0:
            choices.append((f"{other} calibration", other, rule, score_range))
    for decided in (Rule(False, "strict"), Rule(True, "strict"), Rule(True, "nonstrict")):
        if str(decided) != str(rule):
            choices.append((f"on {decided}", calibration, decided, score_range))
    for within in dict.fromkeys(ranges):
        if within != score_range:
            choices.append((f"range [{within[0]:g}, {within[1]:g}]", calibration, rule, within))
    rows = [_outcome(need, promise, *choice) for choice in choices]
    if 1e-6 < promise.epsilon <= 100:  # beyond, pure noise is none, or all there is
        rows += [_pure_outcome(need, promise, name, rule, score_range) for name in ("laplace", "staircase")]
    return tuple(rows)


def _pure_outcome(
    need: _Need, promise: Contract, mechanism: str, rule: Rule, score_range: tuple[float, float]
) -> Outcome:
    """Pure noise under the same contract: the same epsilon without delta, or the same attack advantage."""
    width = score_range[1] - score_range[0]
    kind: type[LaplaceNoise] | type[StaircaseNoise] = LaplaceNoise if mechanism == "laplace" else StaircaseNoise
    epsilon = promise.epsilon
    if promise.calibration == "attack":
        advantage = min(promise.attack_advantage, 1 - 1e-12)
        epsilon = -2 * math.log1p(-advantage) if mechanism == "laplace" else 2 * math.atanh(advantage)

    def make(spend: float) -> LaplaceNoise | StaircaseNoise:
        return kind.calibrated(spend, width)

    law = make(epsilon)
    impostor, genuine = need.clamped(score_range)
    moved = decisions.recalibrate(
        impostor, need.target, law, rule.endpoint, rule.clipped, lower=score_range[0], upper=score_range[1]
    )
    note = (
        f"pure epsilon {number_text(epsilon)}, best attack's advantage {advantage_text(law.profile(width).advantage)}"
    )
    if not moved.feasible:
        note += f"; out of reach: a threshold {_end(rule, score_range)} still passes {rate_text(moved.limit)}"
    return Outcome(
        change=f"{mechanism} noise",
        calibration="pure",
        rule=rule,
        score_range=score_range,
        sensitivity=width,
        scale=law.std,
        threshold=moved.threshold,
        shift=moved.shift,
        rate_kept=moved.rate_before,
        tar=need.tar(genuine, moved.threshold, law, rule),
        least_epsilon=need.least_pure(make, score_range, rule),
        private=True,
        note=note,
        mechanism=mechanism,
    )


def _outcome(
    need: _Need, promise: Contract, change: str, calibration: str, rule: Rule, score_range: tuple[float, float]
) -> Outcome:
    sensitivity = score_range[1] - score_range[0]
    note, private = "", True
    if calibration == promise.calibration or (calibration == "analytic" and promise.calibration == "attack"):
        scale = promise.scale(sensitivity)
    elif calibration == "analytic":
        scale = gaussian.calibrate(promise.epsilon, promise.delta, sensitivity)
    else:
        mu = gaussian.rule_mu(promise.epsilon, promise.delta, calibration)
        scale = sensitivity / mu
        if gaussian.exceeds(promise.epsilon, mu, math.log(promise.delta)) > 0:
            private = False
            note = f"not private: its true epsilon is {number_text(gaussian.epsilon_of(promise.delta, mu))}"
    impostor, genuine = need.clamped(score_range)
    moved = decisions.recalibrate(
        impostor, need.target, scale, rule.endpoint, rule.clipped, lower=score_range[0], upper=score_range[1]
    )
    tar = need.tar(genuine, moved.threshold, scale, rule)
    if not moved.feasible:
        note = note or f"out of reach: a threshold {_end(rule, score_range)} still passes {rate_text(moved.limit)}"
    elif moved.clean_threshold >= score_range[1]:
        note = (
            note
            or f"the clean threshold lies at the range's end: [{score_range[0]:g}, {score_range[1]:g}] is too narrow"
        )
    return Outcome(
        change=change,
        calibration=calibration,
        rule=rule,
        score_range=score_range,
        sensitivity=sensitivity,
        scale=scale,
        threshold=moved.threshold,
        shift=moved.shift,
        rate_kept=moved.rate_before,
        tar=tar,
        least_epsilon=need.least_epsilon(score_range, rule, calibration),
        private=private,
        note=note,
    )


def _end(rule: Rule, score_range: tuple[float, float]) -> str:
    """Where the least rate is: the strict rule passes nothing at the end itself."""
    return f"{'at' if rule.endpoint == 'nonstrict' else 'just below'} {score_range[1]:g}"


def _verification_answer(plan: VerificationPlan, need: _Need, searched: bool) -> str:
    moved, promise = plan.recalibration, plan.contract
    fmr = rate_text(need.target)
    opening = (
        f"The least epsilon that meets the need is {number_text(promise.epsilon)} (delta "
        f"{number_text(promise.delta)}): "
        if searched
        else f"With {promise.stated}: "
    )
    noise = f"Gaussian noise of standard deviation {number_text(plan.scale)}"
    if not moved.feasible:
        answer = (
            f"{opening}a false-match rate of {fmr} is not reachable on {plan.rule}, because under {noise} a "
            f"threshold {_end(plan.rule, plan.score_range)} still passes {rate_text(moved.limit)}; on noisy scores the "
            f"threshold {number_text(moved.unclipped_threshold)} reaches it."
        )
        return answer + least_epsilon_sentence(plan)
    answer = (
        f"{opening}add {noise} and accept when the {'clipped' if plan.rule.clipped else 'noisy'} score "
        f"{'reaches' if plan.rule.endpoint == 'nonstrict' else 'exceeds'} {number_text(moved.threshold)} (clean: "
        f"{number_text(moved.clean_threshold)}): false matches stay at {fmr}"
    )
    if plan.genuine is not None:
        answer += f", and true matches go from {rate_text(plan.clean_tar)} to {rate_text(plan.tar)}"
    answer += "."
    if need.target_tar is None:
        return answer
    if plan.met:
        return answer + (
            "" if searched else f" That meets the {rate_text(need.target_tar)} asked for.{least_epsilon_sentence(plan)}"
        )
    missing = f" That misses the {rates_text(plan.tar, need.target_tar)[1]} true matches asked for"
    if math.isnan(plan.least_epsilon):
        return f"{answer}{missing}, and where it would meet them this calibration is not private; use the analytic one."
    if math.isinf(plan.least_epsilon):
        return f"{answer}{missing}, and no epsilon reaches them: {need.obstacle(plan.score_range, plan.rule)}."
    return f"{answer}{missing}.{least_epsilon_sentence(plan)}"
