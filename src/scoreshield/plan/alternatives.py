"""A matcher's need, asked again for every choice: calibration, decision rule, score range, noise law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scoreshield import decisions
from scoreshield._formatting import format_advantage, format_number, format_rate, format_rate_pair
from scoreshield.decisions.rates import find_first_crossing
from scoreshield.decisions.scores import Law, Scores
from scoreshield.errors import InvalidCalibration
from scoreshield.plan.base import SMALLEST, finite
from scoreshield.plan.contracts import Contract
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise


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
class MatchNeed:
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
        return min(limit, find_first_crossing(lost, spread / 4, smallest=SMALLEST * spread, largest=1e6))

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

        found = find_first_crossing(lost, 0.1, smallest=1e-2, largest=1e6)
        return math.inf if found == 0 else 0.0 if math.isinf(found) else 1 / found

    def obstacle(self, score_range: tuple[float, float], rule: Rule) -> str:
        """Why no epsilon serves."""
        best = self.clean_tar(score_range)
        if self.target_tar is not None and best < self.target_tar:
            found, asked = format_rate_pair(best, self.target_tar)
            return (
                f"without any noise the true-match rate at a false-match rate of {format_rate(self.target)} is "
                f"{found}, "
                f"below the {asked} asked for"
            )
        if rule.clipped and self.largest_scale(score_range, rule) == 0:
            return (
                f"more than {format_rate(self.target)} of the clean impostor scores already lie at {score_range[1]:g}"
            )
        return f"it takes scores with noise below {SMALLEST:g} of their spread, which is no noise at all"


def alternatives(
    need: MatchNeed,
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
    need: MatchNeed, promise: Contract, mechanism: str, rule: Rule, score_range: tuple[float, float]
) -> Outcome:
    """Pure noise under the same contract: the same epsilon without delta, or the same attack advantage."""
    width = score_range[1] - score_range[0]
    kind: type[LaplaceNoise] | type[StaircaseNoise] = LaplaceNoise if mechanism == "laplace" else StaircaseNoise
    epsilon = promise.epsilon
    if promise.calibration == "attack":
        advantage = min(promise.attack_advantage, 1 - 1e-12)
        epsilon = -2 * math.log1p(-advantage) if mechanism == "laplace" else 2 * math.atanh(advantage)

    def make(spend: float) -> LaplaceNoise | StaircaseNoise:
        return kind.calibrate(spend, width)

    law = make(epsilon)
    impostor, genuine = need.clamped(score_range)
    moved = decisions.recalibrate(
        impostor, need.target, law, rule.endpoint, rule.clipped, lower=score_range[0], upper=score_range[1]
    )
    most = format_advantage(law.profile(width).advantage)
    note = f"pure epsilon {format_number(epsilon)}, best attack's advantage {most}"
    if not moved.feasible:
        note += f"; out of reach: a threshold {end_of_range(rule, score_range)} still passes {format_rate(moved.limit)}"
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
    need: MatchNeed, promise: Contract, change: str, calibration: str, rule: Rule, score_range: tuple[float, float]
) -> Outcome:
    sensitivity = score_range[1] - score_range[0]
    note, private = "", True
    if calibration == promise.calibration or (calibration == "analytic" and promise.calibration == "attack"):
        scale = promise.scale(sensitivity)
    elif calibration == "analytic":
        scale = gaussian.calibrate(promise.epsilon, promise.delta, sensitivity)
    else:
        mu = gaussian.compute_rule_mu(promise.epsilon, promise.delta, calibration)
        scale = sensitivity / mu
        if gaussian.bound_excess(promise.epsilon, mu, math.log(promise.delta)) > 0:
            private = False
            note = f"not private: its true epsilon is {format_number(gaussian.find_epsilon(promise.delta, mu))}"
    impostor, genuine = need.clamped(score_range)
    moved = decisions.recalibrate(
        impostor, need.target, scale, rule.endpoint, rule.clipped, lower=score_range[0], upper=score_range[1]
    )
    tar = need.tar(genuine, moved.threshold, scale, rule)
    if not moved.feasible:
        note = (
            note
            or f"out of reach: a threshold {end_of_range(rule, score_range)} still passes {format_rate(moved.limit)}"
        )
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


def end_of_range(rule: Rule, score_range: tuple[float, float]) -> str:
    """Where the least rate is: the strict rule passes nothing at the end itself."""
    return f"{'at' if rule.endpoint == 'nonstrict' else 'just below'} {score_range[1]:g}"
