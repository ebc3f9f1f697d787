"""A matcher's need, and what each other choice gives: calibration, decision rule, score range, noise law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from scoreshield import decisions
from scoreshield._formatting import format_advantage, format_number, format_rate, format_rate_pair
from scoreshield._types import Calibration
from scoreshield.decisions.rates import Endpoint, find_first_crossing, find_least_threshold
from scoreshield.decisions.scores import Law, NoiseLike, Scores
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import SMALLEST, PlanNeed, ScoreRange, as_plain_value
from scoreshield.plan.contracts import Contract
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.levels.bits import accept_bit, find_accept_epsilon
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise

#: The least epsilon of pure noise is searched up to this one; beyond, staircase noise is too small to compute with.
LARGEST_PURE_EPSILON = 400.0


@dataclass(frozen=True)
class Rule:
    """A decision rule: on clipped or noisy scores, and whether a score at the threshold is accepted."""

    clipped: bool
    endpoint: Endpoint

    @property
    def is_inclusive(self) -> bool:
        """Whether a score at the threshold is accepted."""
        return self.endpoint == "nonstrict"

    def __str__(self) -> str:
        if not self.clipped:
            return "noisy scores"
        return f"clipped scores, {'strict (>)' if self.endpoint == 'strict' else 'non-strict (>=)'}"


@dataclass(frozen=True)
class Alternative:
    """A matcher with one choice changed: its noise, threshold and rates.

    Attributes:
        change: What differs from the plan.
        calibration: The calibration rule, or "pure".
        rule: The decision rule.
        score_range: The public range.
        sensitivity: The width of the range.
        scale: The standard deviation of the noise.
        threshold: The threshold; NaN where the target is out of reach, and ``note`` then states why.
        shift: The distance from the clean threshold; NaN likewise.
        rate_kept: The false-match rate if the clean threshold is kept.
        tar: The true-match rate; NaN likewise, and without genuine scores.
        least_epsilon: The least epsilon that meets the need with this choice.
        private: Whether the calibration rule is private at this epsilon.
        note: What the reader must know about this choice.
        mechanism: The noise law.
    """

    change: str
    calibration: str
    rule: Rule
    score_range: ScoreRange
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

    def describe_missing_epsilon(self, clean_tar: float, target_tar: float | None) -> str:
        """Say why the least epsilon is infinite: the search for pure noise ended, or not even clean scores suffice."""
        if self.calibration == "pure" and target_tar is not None and clean_tar >= target_tar:
            return f"over {LARGEST_PURE_EPSILON:g}"
        return "none"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A value that is no finite number is null."""
        values = {**vars(self), "rule": str(self.rule), "score_range": list(self.score_range)}
        return {name: as_plain_value(value) for name, value in values.items()}


@dataclass(frozen=True)
class MatchNeed(PlanNeed):
    """The scores of a matcher, its decision rule, and the rates it must keep."""

    impostor: Scores
    genuine: Scores | None
    target: float
    target_tar: float | None
    delta: float
    rule: Rule
    _crossings: dict[ScoreRange, float] = field(default_factory=dict, repr=False, compare=False)

    def clamp(self, score_range: ScoreRange) -> tuple[Scores, Scores | None]:
        """Clamp impostor and genuine scores to a public range."""
        return (
            self.impostor.clamp(*score_range),
            None if self.genuine is None else self.genuine.clamp(*score_range),
        )

    def recalibrate(self, score_range: ScoreRange, noise: NoiseLike) -> tuple[decisions.Recalibration, float]:
        """Find the threshold that keeps the false-match rate under this noise, and the true-match rate there."""
        impostor, genuine = self.clamp(score_range)
        moved = decisions.recalibrate(
            impostor,
            self.target,
            noise,
            self.rule.endpoint,
            self.rule.clipped,
            lower=score_range[0],
            upper=score_range[1],
        )
        return moved, self._compute_tar(genuine, moved.threshold, noise)

    def compute_clean_tar(self, score_range: ScoreRange) -> float:
        """Compute the true-match rate without noise; NaN without genuine scores."""
        impostor, genuine = self.clamp(score_range)
        return math.nan if genuine is None else float(genuine.rate(impostor.clean_threshold(self.target), None))

    def find_largest_scale(self, score_range: ScoreRange) -> float:
        """Find the most noise that still meets the need; 0 where none does."""
        impostor, genuine = self.clamp(score_range)
        limit = math.inf
        if self.rule.clipped:
            limit = decisions.critical_scale(impostor, self.target, upper=score_range[1])
        if self.target_tar is None or genuine is None:
            return limit
        target = self.target_tar
        if genuine.rate(impostor.clean_threshold(self.target), None, inclusive=True) < target:
            return 0.0  # even if every tie were accepted

        clean = impostor.clean_threshold(self.target)

        def find_shortfall(scale: float) -> float:
            law = GaussianNoise(scale)
            moved = find_least_threshold(lambda t: impostor.rate(t, law) - self.target, clean, scale)
            return target - float(genuine.rate(moved, law))

        if score_range not in self._crossings:  # the same for every rule and calibration
            spread = max(impostor.spread, 1e-6)
            self._crossings[score_range] = find_first_crossing(
                find_shortfall, spread / 4, smallest=SMALLEST * spread, largest=1e6
            )
        return min(limit, self._crossings[score_range])

    def find_least_pure_epsilon(self, make: Callable[[float], Law], score_range: ScoreRange) -> float:
        """Find the least epsilon at which a family of pure noise meets the need; infinity where none up to 400 does.

        Args:
            make: A function from epsilon to the noise law.
            score_range: The public range.
        """
        if self.target_tar is None:
            if not self.rule.clipped:
                return 0.0
            impostor = self.clamp(score_range)[0]
            return decisions.minimum_epsilon(impostor, self.target, 0.5, upper=score_range[1], family=make)
        target = self.target_tar

        def find_shortfall(inverse: float) -> float:  # noise grows with 1 / epsilon
            moved, tar = self.recalibrate(score_range, make(min(1 / inverse, LARGEST_PURE_EPSILON)))
            return target - (tar if moved.feasible else 0.0)

        crossing = find_first_crossing(find_shortfall, 0.1, smallest=0.1 / 2**12, largest=1e6)
        if crossing * LARGEST_PURE_EPSILON < 1:
            return math.inf
        return 0.0 if math.isinf(crossing) else 1 / crossing

    def explain_obstacle(self, score_range: ScoreRange) -> str:
        """Explain why no epsilon meets the need."""
        best = self.compute_clean_tar(score_range)
        if self.target_tar is not None and best < self.target_tar:
            clean, target = format_rate_pair(best, self.target_tar)
            return (
                f"without any noise the true-match rate at a false-match rate of {format_rate(self.target)} is "
                f"{clean}, below the {target} asked for"
            )
        if self.rule.clipped and self.find_largest_scale(score_range) == 0:
            return (
                f"more than {format_rate(self.target)} of the clean impostor scores already lie at {score_range[1]:g}"
            )
        return f"it takes scores with noise below {SMALLEST:g} of their spread, which is no noise at all"

    def _compute_tar(self, genuine: Scores | None, threshold: float, noise: NoiseLike) -> float:
        if genuine is None or math.isnan(threshold):
            return math.nan
        law = GaussianNoise(noise) if isinstance(noise, float) else noise
        return float(genuine.rate(threshold, law, inclusive=self.rule.is_inclusive))


def list_alternatives(
    need: MatchNeed, contract: Contract, score_range: ScoreRange, ranges: Sequence[ScoreRange]
) -> tuple[Alternative, ...]:
    """List the plan itself, and then the plan with one choice changed: calibration, rule, range, noise law."""
    calibration: Calibration = "analytic" if contract.calibration == "attack" else contract.calibration
    choices = [("this plan", calibration, need, score_range)]
    for other in get_args(Calibration):
        if other != calibration and contract.epsilon > 0:
            choices.append((f"{other} calibration", other, need, score_range))
    for rule in (Rule(False, "strict"), Rule(True, "strict"), Rule(True, "nonstrict")):
        if str(rule) != str(need.rule):
            choices.append((f"on {rule}", calibration, replace(need, rule=rule), score_range))
    for within in dict.fromkeys(ranges):
        if within != score_range:
            choices.append((f"range [{within[0]:g}, {within[1]:g}]", calibration, need, within))
    rows = [_make_gaussian_alternative(contract, *choice) for choice in choices]
    if 1e-6 < contract.epsilon <= 100:  # outside, pure noise is almost none or hides everything
        rows += [
            _make_pure_alternative(contract, "laplace", LaplaceNoise, need, score_range),
            _make_pure_alternative(contract, "staircase", StaircaseNoise, need, score_range),
        ]
    bit = _make_bit_alternative(contract, need)
    return (*rows, bit) if bit is not None else tuple(rows)


def _make_bit_alternative(contract: Contract, need: MatchNeed) -> Alternative | None:
    """Describe one randomised decision per pair; None without genuine scores, or where no table keeps the rate."""
    if need.genuine is None:
        return None
    epsilon = contract.find_pure_epsilon()
    public: dict[str, Any] = {
        "impostor": need.impostor,
        "genuine": need.genuine,
        "false_match_rate": need.target,
    }
    try:
        bit = accept_bit(epsilon, **public)
    except InvalidInput:
        return None
    most = format_advantage(bit.table.profile().advantage)
    return Alternative(
        change="accept bit",
        calibration="pure",
        rule=Rule(False, "strict"),
        score_range=(-1.0, 1.0),
        sensitivity=2.0,
        scale=bit.table.std,
        threshold=bit.threshold,
        shift=bit.threshold - need.impostor.clean_threshold(need.target),
        rate_kept=math.nan,
        tar=bit.true_match_rate,
        least_epsilon=0.0 if need.target_tar is None else find_accept_epsilon(need.target_tar, **public),
        private=True,
        note=f"one decision per pair, no score; pure epsilon {format_number(epsilon)}, best attack's advantage {most}",
        mechanism="accept bit",
    )


def _make_pure_alternative(
    contract: Contract,
    mechanism: str,
    kind: type[LaplaceNoise] | type[StaircaseNoise],
    need: MatchNeed,
    score_range: ScoreRange,
) -> Alternative:
    """Describe pure noise under the same contract: the same epsilon without delta, or the same attack advantage."""
    width = score_range[1] - score_range[0]
    epsilon = contract.epsilon
    if contract.calibration == "attack":
        advantage = min(contract.attack_advantage, 1 - 1e-12)
        epsilon = -2 * math.log1p(-advantage) if mechanism == "laplace" else 2 * math.atanh(advantage)

    if contract.max_epsilon is not None:
        epsilon = min(epsilon, contract.max_epsilon)

    def make(spend: float) -> LaplaceNoise | StaircaseNoise:
        return kind.calibrate(spend, width)

    law = make(epsilon)
    moved, tar = need.recalibrate(score_range, law)
    most = format_advantage(law.profile(width).advantage)
    note = f"pure epsilon {format_number(epsilon)}, best attack's advantage {most}"
    if not moved.feasible:
        note += f"; {_state_clipping_limit(need.rule, score_range, moved)}"
    return Alternative(
        change=f"{mechanism} noise",
        calibration="pure",
        rule=need.rule,
        score_range=score_range,
        sensitivity=width,
        scale=law.std,
        threshold=moved.threshold,
        shift=moved.shift,
        rate_kept=moved.rate_before,
        tar=tar,
        least_epsilon=need.find_least_pure_epsilon(make, score_range),
        private=True,
        note=note,
        mechanism=mechanism,
    )


def _make_gaussian_alternative(
    contract: Contract, change: str, calibration: Calibration, need: MatchNeed, score_range: ScoreRange
) -> Alternative:
    """Describe Gaussian noise by one calibration rule, decision rule and range."""
    sensitivity = score_range[1] - score_range[0]
    note, is_private = "", True
    if calibration == contract.calibration or (calibration == "analytic" and contract.calibration == "attack"):
        scale = contract.scale(sensitivity)
    elif calibration == "analytic":
        scale = gaussian.calibrate(contract.epsilon, contract.delta, sensitivity)
    else:
        mu = gaussian.compute_rule_mu(contract.epsilon, contract.delta, calibration)
        scale = sensitivity / mu
        if gaussian.bound_excess(contract.epsilon, mu, math.log(contract.delta)) > 0:
            is_private = False
            note = f"not private: its true epsilon is {format_number(gaussian.find_epsilon(contract.delta, mu))}"
    moved, tar = need.recalibrate(score_range, scale)
    if not note and not moved.feasible:
        note = _state_clipping_limit(need.rule, score_range, moved)
    elif not note and moved.clean_threshold >= score_range[1]:
        note = f"the clean threshold lies at the range's end: [{score_range[0]:g}, {score_range[1]:g}] is too narrow"
    return Alternative(
        change=change,
        calibration=calibration,
        rule=need.rule,
        score_range=score_range,
        sensitivity=sensitivity,
        scale=scale,
        threshold=moved.threshold,
        shift=moved.shift,
        rate_kept=moved.rate_before,
        tar=tar,
        least_epsilon=need.find_least_epsilon(score_range, calibration),
        private=is_private,
        note=note,
    )


def _state_clipping_limit(rule: Rule, score_range: ScoreRange, moved: decisions.Recalibration) -> str:
    end = state_range_end(rule, score_range)
    return f"out of reach: a threshold {end} still passes {format_rate(moved.limit)}"


def state_range_end(rule: Rule, score_range: ScoreRange) -> str:
    """Describe the threshold with the least rate: the strict rule accepts nothing at the end itself."""
    return f"{'at' if rule.is_inclusive else 'just below'} {score_range[1]:g}"
