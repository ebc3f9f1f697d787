"""What every plan shares: its scores, its contract, the search for the least epsilon, its form and its warnings.

A plan is made in the same steps for a matcher and for a search:

1. `check_plan_scores` and `check_source` check the scores. With the targets they are a `PlanNeed`.
2. `settle_terms` makes the contract, or finds the least epsilon that meets the need.
3. The plan computes what the noise does, and compares other choices. Only this step differs.
4. `Plan` writes the answer, the warnings and the plain values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._formatting import choose_words, format_advantage, format_number
from scoreshield._types import Calibration
from scoreshield._views import SHOWN_ROWS, Columns, NotebookObject, ObjectSummary, cut_columns
from scoreshield.decisions.curves import Roc, roc
from scoreshield.decisions.rates import epsilon_for_scale
from scoreshield.decisions.scores import NoiseLike, Sample, Scores, ScoresLike
from scoreshield.errors import InvalidCalibration, InvalidInput, InvalidParameter
from scoreshield.plan.contracts import Contract, make_contract
from scoreshield.plan.sentences import answer_need, state_floor
from scoreshield.privacy.adjacency import check_score_range
from scoreshield.privacy.noise import GaussianNoise

if TYPE_CHECKING:
    from scoreshield.plan.choice import Choice
    from scoreshield.plan.targets import Goal

Source = Literal["public", "released", "parameters", "private"]
SOURCES: tuple[str, ...] = get_args(Source)
ScoreRange = tuple[float, float]
#: Public ranges that a plan compares. None of them comes from data.
RANGES: tuple[ScoreRange, ...] = ((-1.0, 1.0), (-0.5, 1.0), (0.0, 1.0), (0.0, 0.8))

#: A sample of fewer scores says too little about other scores.
FEWEST_SCORES = 20
#: How far below one half the chance that a genuine score exceeds an impostor score may be by accident.
_ORDER_MARGIN = 0.02

#: Noise below this part of the scores' spread counts as none in the search for the least epsilon.
SMALLEST = 1e-4

_PRIVATE_SCORES = (
    "The scores behind this plan count as private unless they are declared public ({how}). "
    "The threshold and every figure depend on them, and no budget was charged for them: keep the plan with the "
    "curator, or plan from public or released scores."
)


def warn_of_private_scores() -> str:
    """Write the warning of a plan whose scores were not declared public."""
    return _PRIVATE_SCORES.format(how=choose_words("source='public'", "--source public"))


class PlanNeed(ABC):
    """What a plan must meet: scores and targets, and how much noise they allow."""

    delta: float

    @abstractmethod
    def find_largest_scale(self, score_range: ScoreRange) -> float:
        """Find the most noise that still meets the need: 0 where none does, NaN where there is no target."""

    @abstractmethod
    def explain_obstacle(self, score_range: ScoreRange) -> str:
        """Explain why no epsilon meets the need."""

    def find_least_epsilon(self, score_range: ScoreRange, calibration: Calibration) -> float:
        """Find the least epsilon that meets the need.

        Returns:
            The epsilon: infinity where none meets the need, and NaN where there is no target or where the calibration
            rule is not private at the epsilon it would take.
        """
        scale = self.find_largest_scale(score_range)
        if math.isnan(scale):
            return math.nan
        try:
            return epsilon_for_scale(scale, self.delta, score_range[1] - score_range[0], calibration)
        except InvalidCalibration:
            return math.nan


@dataclass(frozen=True)
class Terms:
    """The contract of a plan and the public facts that set its noise.

    Attributes:
        contract: The contract.
        is_searched: Whether the contract is the least epsilon that meets the need, found by the plan.
        least_epsilon: The least epsilon that meets the need.
        score_range: The public range that clean scores are clamped to.
        ranges: Other public ranges to compare.
    """

    contract: Contract
    is_searched: bool
    least_epsilon: float
    score_range: ScoreRange
    ranges: tuple[ScoreRange, ...]

    @property
    def sensitivity(self) -> float:
        """The width of the score range."""
        return self.score_range[1] - self.score_range[0]

    @property
    def scale(self) -> float:
        """The standard deviation of the noise."""
        return self.contract.scale(self.sensitivity)

    def list_plan_fields(
        self, source: Source, impostor: Scores, genuine: Scores | None, share: float
    ) -> dict[str, Any]:
        """List the fields of `Plan` that follow from the terms and the scores.

        Args:
            source: Where the scores come from.
            impostor: Clean scores of pairs that do not match.
            genuine: Clean scores of pairs that match.
            share: The part of the impostor scores that decides.
        """
        return {
            "contract": self.contract,
            "is_searched": self.is_searched,
            "scale": self.scale,
            "sensitivity": self.sensitivity,
            "score_range": self.score_range,
            "least_epsilon": self.least_epsilon,
            "source": source,
            "warnings": find_warnings(source, impostor, share, self.contract),
            "impostor": impostor.clamp(*self.score_range),
            "genuine": None if genuine is None else genuine.clamp(*self.score_range),
        }


def settle_terms(
    need: PlanNeed,
    *,
    epsilon: float | None,
    max_advantage: float | None,
    max_tpr: float | None,
    at_fpr: float | None,
    calibration: Calibration,
    score_range: ScoreRange,
    compare_ranges: Sequence[ScoreRange],
    no_target: str | None,
) -> Terms:
    """Settle the contract of a plan: the given one, or the least epsilon that meets the need.

    Args:
        need: The need.
        epsilon: The epsilon of the contract, as in `make_contract`; without any contract the plan finds the least.
        max_advantage: Instead, as in `make_contract`.
        max_tpr: Instead, as in `make_contract`.
        at_fpr: The false-positive rate for ``max_tpr``.
        calibration: The rule that sets the noise.
        score_range: The public range that clean scores are clamped to.
        compare_ranges: Other public ranges.
        no_target: The sentence to raise where there is no contract, if the need states too little for a search.

    Raises:
        InvalidInput: There is neither a contract nor an epsilon that meets the need.
    """
    contract = make_contract(
        delta=need.delta,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
    )
    least = need.find_least_epsilon(score_range, calibration)
    is_searched = contract is None
    if contract is None:
        if no_target is not None:
            raise InvalidInput(no_target)
        _check_least_epsilon(least, lambda: need.explain_obstacle(score_range))
        contract = make_contract(delta=need.delta, epsilon=least * (1 + 1e-9), calibration=calibration)
        assert contract is not None
    return Terms(contract, is_searched, least, score_range, tuple(compare_ranges))


def _check_least_epsilon(least: float, explain: Callable[[], str]) -> None:
    """Raise an error where the search for the least epsilon has no answer, and state which of its reasons holds."""
    if math.isnan(least):
        raise InvalidInput(
            "The calibration rule is not private at the epsilon that this need takes: use the analytic one."
        )
    if least > 1e9:
        raise InvalidInput(f"No epsilon meets this need: {explain()}.")
    if least < 1e-9:
        raise InvalidInput("Any epsilon meets this need, so there is no least one: choose one by what it promises.")


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(NotebookObject, ABC):
    """The common part of all plans.

    Attributes:
        answer: The plan in a few sentences.
        met: Whether the plan meets its targets.
        contract: The privacy contract.
        is_searched: Whether the plan found the contract: the least epsilon that meets the need.
        scale: The standard deviation of the noise.
        sensitivity: The width of the score range.
        score_range: The public range that clean scores are clamped to.
        least_epsilon: The least epsilon that meets the need.
        source: Where the scores come from.
        warnings: What the reader must not overlook.
        impostor: Clean scores of pairs that do not match, clamped to the range.
        genuine: Clean scores of pairs that match, clamped to the range.
        choice: All mechanisms ranked for the same need: under the same contract, or at the least epsilon at which the
            best of them meets the target where the plan found its contract. None without genuine scores, and above
            epsilon 700.
        goal: Whether the best mechanism meets the target; None without a target.
    """

    kind = "plan"

    answer: str = ""
    met: bool
    contract: Contract
    is_searched: bool = field(repr=False)
    scale: float
    sensitivity: float
    score_range: ScoreRange
    least_epsilon: float
    source: Source
    warnings: tuple[str, ...]
    impostor: Scores = field(repr=False)
    genuine: Scores | None = field(repr=False)
    choice: Choice | None = field(default=None, repr=False)
    goal: Goal | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.answer:
            if self.choice is not None and self.is_surpassed:
                lead = answer_need(self.choice, self.goal, is_searched=self.is_searched, floor=self._write_floor())
            else:
                lead = self._write_bound()
            object.__setattr__(self, "answer", f"{lead} {self._write_answer()}".strip())

    def _write_floor(self) -> str:
        """Write what no mechanism reaches, in place of the sentence of the ranking; empty to keep that one."""
        return ""

    def _write_bound(self) -> str:
        """Write what no mechanism reaches; empty where no such bound is known."""
        if self.is_searched:
            return "" if self.goal is None else state_floor(self.goal)
        return "" if self.choice is None else self.choice.impossible

    @property
    def is_surpassed(self) -> bool:
        """Whether another mechanism than Gaussian noise on the plan's range is predicted to do better."""
        if self.choice is None:
            return False
        best = self.choice.chosen
        return best.mechanism != "gaussian" or best.score_range != self.score_range

    @abstractmethod
    def _write_answer(self) -> str:
        """Write what Gaussian noise achieves, in a few sentences: for comparison only where it is surpassed."""

    @property
    def noise(self) -> GaussianNoise:
        """The noise law."""
        return GaussianNoise(self.scale)

    def roc(self, noise: NoiseLike) -> Roc | None:
        """Make the operating curve with this noise (0 for the clean one), on scores clamped to the plan's range."""
        if self.genuine is None:
            return None
        return roc(self.genuine, self.impostor, noise)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A value that is no finite number is null."""
        return {
            "kind": self.kind,
            "answer": self.answer,
            "met": self.met,
            "contract": self.contract.to_dict(),
            "noise": {"name": "gaussian", "std": self.scale},
            "sensitivity": self.sensitivity,
            "score_range": list(self.score_range),
            "least_epsilon": as_plain_value(self.least_epsilon),
            "source": self.source,
            "warnings": list(self.warnings),
            "choice": None if self.choice is None else self.choice.to_dict(),
            "goal": None if self.goal is None else self.goal.to_dict(),
        }

    def __str__(self) -> str:
        return self.answer

    def __repr__(self) -> str:
        contract = self.contract
        return (
            f"<{type(self).__name__} at ({contract.epsilon:.4g}, {contract.delta:g})-DP: targets "
            f"{'met' if self.met else 'not met'} by Gaussian noise of sd {self.scale:.4g}, {self.source} scores>"
        )

    def _summarise(self) -> ObjectSummary:
        columns = self._list_columns()
        facts = {
            "Contract": self.contract.stated,
            "Attacker's advantage": f"at most {format_advantage(self.contract.attack_advantage)}",
            "Targets": "met by Gaussian noise" if self.met else "not met by Gaussian noise",
            "Source of the scores": self.source,
        }
        if self.choice is not None:
            facts["Best mechanism"] = self.choice.chosen.mechanism
        shown = {name: values for name, values in cut_columns(columns, SHOWN_ROWS).items() if name != "note"}
        return ObjectSummary(
            type(self).__name__, self.answer, facts, shown, "The plan, and other choices", self.warnings
        )

    def _list_columns(self) -> Columns:
        rows: list[dict[str, Any]] = [self._describe_alternative(row) for row in self._list_alternatives()]
        return {name: [row[name] for row in rows] for name in rows[0]}

    @abstractmethod
    def _list_alternatives(self) -> Sequence[Any]:
        """List the plan itself and other choices."""

    def _describe_alternative(self, row: Any) -> dict[str, Any]:
        """Return the values of one choice that fit into a table."""
        values = row._asdict() if hasattr(row, "_asdict") else vars(row)
        low, high = values["score_range"]
        kept = {name: value for name, value in values.items() if name != "score_range"}
        return {name: str(value) if name == "rule" else value for name, value in kept.items()} | {
            "low": low,
            "high": high,
        }


def check_plan_scores(value: ScoresLike, name: str) -> Scores:
    """Check for cosines: finite, at least twenty, not all equal, in [-1, 1] up to the rounding of single precision."""
    if isinstance(value, Scores) and not isinstance(value, Sample):
        if value.lowest < -1 or value.highest > 1:
            raise InvalidParameter(name, "must be a distribution of cosines, cut to [-1, 1].")
        return value
    sample = value if isinstance(value, Sample) else Sample(value, name)
    if sample.lowest < -1 - 1e-6 or sample.highest > 1 + 1e-6:
        worst = sample.highest if sample.highest > 1 else sample.lowest
        raise InvalidParameter(
            name,
            f"must be cosines, in [-1, 1]. Got a score of {worst:.6g}; convert distances and percentages first.",
        )
    if len(sample) < FEWEST_SCORES:
        raise InvalidParameter(
            name, f"must be at least {FEWEST_SCORES} scores. Got {len(sample)}; give more of them, or a distribution."
        )
    if sample.lowest == sample.highest:
        raise InvalidParameter(
            name, f"must be scores that differ. Got {len(sample):,} equal ones; check that the right column was read."
        )
    return sample.clamp(-1.0, 1.0)


def check_order(impostor: Scores, genuine: Scores | None) -> None:
    """Raise an error where genuine scores lie below impostor scores, as they do where the two were exchanged.

    The chance that a genuine score exceeds an impostor score must not lie below one half by more than five standard
    errors of independent scores.
    """
    if genuine is None:
        return
    points = genuine.values if isinstance(genuine, Sample) else _list_quantiles(genuine)
    above, reached = (impostor.clean_rate(points, is_inclusive) for is_inclusive in (False, True))
    exceeds = 1 - float(np.mean(above + reached)) / 2
    sizes = [len(scores) for scores in (impostor, genuine) if isinstance(scores, Sample)]
    if exceeds < 0.5 - max(_ORDER_MARGIN, 5 * math.sqrt(sum(1 / size for size in sizes) / 12)):
        raise InvalidInput(
            "The genuine (relevant) scores lie below the impostor (irrelevant) ones: exchange the two, which are "
            "--genuine and --impostor on the command line, or use similarities instead of distances."
        )


def _list_quantiles(scores: Scores, count: int = 400) -> NDArray[np.float64]:
    return np.array([scores.clean_threshold((place + 0.5) / count) for place in range(count)])


def check_source(source: str | None, *scores: Scores | None) -> Source:
    """Check the source of scores. Without one, distributions are "parameters" and samples are "private"."""
    if source is None:
        return "private" if any(isinstance(part, Sample) for part in scores) else "parameters"
    return cast("Source", _validation.check_option(source, "source", SOURCES))


def check_ranges(value: Any, name: str) -> tuple[ScoreRange, ...]:
    """Check for a list of public score ranges."""
    if not isinstance(value, list | tuple):
        _validation.reject(name, "a list of pairs", value)
    return tuple(check_score_range(pair, name) for pair in value)


def find_warnings(source: Source, impostor: Scores, share: float, contract: Contract) -> tuple[str, ...]:
    """Find what the reader of a plan must not overlook; ``share`` is the part of the impostor scores that decides."""
    warnings = []
    if source == "private":
        warnings.append(warn_of_private_scores())
    if isinstance(impostor, Sample) and len(impostor) * share < 10:
        warnings.append(
            f"Only about {len(impostor) * share:.2g} of the {len(impostor):,} impostor scores lie beyond the clean "
            "threshold: the clean figures are rough, and the private ones depend on the same few scores."
        )
    if contract.epsilon > 20:
        warnings.append(
            f"At epsilon {format_number(contract.epsilon)} the promise is weak: the best membership test may have an "
            f"advantage of {format_advantage(contract.attack_advantage)}, where 100 % is certainty."
        )
    if contract.delta > 1e-3:
        warnings.append(
            f"A delta of {format_number(contract.delta)} is large; it should be well below one over the number of "
            "records."
        )
    return tuple(warnings)


def state_least_epsilon(plan: Plan) -> str:
    """Write the sentence about the least epsilon; empty where there is none."""
    if not math.isfinite(plan.least_epsilon):
        return ""
    return (
        f" The least epsilon at which Gaussian noise meets the need is {format_number(plan.least_epsilon)} "
        f"(delta {format_number(plan.contract.delta)})."
    )


def as_plain_value(value: Any) -> Any:
    """Convert a value for JSON. A number that is not finite becomes None."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
