"""What every plan shares: its frame, where its scores came from, and what to beware of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from scoreshield import _validation
from scoreshield._formatting import format_advantage, format_number
from scoreshield.decisions.curves import Roc, roc
from scoreshield.decisions.scores import Sample, Scores
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.plan.contracts import Contract
from scoreshield.privacy.adjacency import check_score_range
from scoreshield.privacy.noise import GaussianNoise

Source = Literal["public", "released", "parameters", "private"]
SOURCES: tuple[str, ...] = get_args(Source)
#: Public ranges that a plan compares; any other can be asked for. None of them comes from data.
RANGES = ((-1.0, 1.0), (-0.5, 1.0), (0.0, 1.0), (0.0, 0.8))

#: Noise below this part of the scores' spread counts as none when the least epsilon is looked for.
SMALLEST = 1e-4

UNPAID = (
    "The scores behind this plan are private and nobody has paid for them: the threshold and every figure depend on "
    "them. Keep it with the curator, or plan from public or released scores."
)


@dataclass(frozen=True)
class Plan:
    """Common to all plans: the answer in a sentence, the contract, the noise, what to beware of."""

    answer: str
    met: bool
    contract: Contract
    scale: float
    sensitivity: float
    score_range: tuple[float, float]
    least_epsilon: float
    source: str
    warnings: tuple[str, ...]
    impostor: Scores = field(repr=False)
    genuine: Scores | None = field(repr=False)

    kind = "plan"

    @property
    def noise(self) -> GaussianNoise:
        return GaussianNoise(self.scale)

    def roc(self, noise: object) -> Roc | None:
        """The operating curve with this noise (0 for the clean one), on scores clamped to the plan's range."""
        if self.genuine is None:
            return None
        return roc(self.genuine, self.impostor, noise)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what is not a number there is null."""
        return {
            "kind": self.kind,
            "answer": self.answer,
            "met": self.met,
            "contract": self.contract.to_dict(),
            "noise": {"name": "gaussian", "std": self.scale},
            "sensitivity": self.sensitivity,
            "score_range": list(self.score_range),
            "least_epsilon": finite(self.least_epsilon),
            "source": self.source,
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        return self.answer


def take_scores(scores: object, name: str) -> Scores:
    """Cosines for a plan: finite, at least two, in [-1, 1] but for the rounding of single precision."""
    if isinstance(scores, Scores) and not isinstance(scores, Sample):
        if scores.lowest < -1 or scores.highest > 1:
            raise InvalidParameter(name, "must be a distribution of cosines, cut to [-1, 1].")
        return scores
    sample = scores if isinstance(scores, Sample) else Sample(scores, name)  # type: ignore[arg-type]
    if sample.lowest < -1 - 1e-6 or sample.highest > 1 + 1e-6:
        worst = sample.highest if sample.highest > 1 else sample.lowest
        raise InvalidParameter(
            name,
            f"must be cosines, in [-1, 1]. Got a score of {worst:.6g}; convert distances and percentages first.",
        )
    return sample.clamp(-1.0, 1.0)


def take_source(source: str | None, *scores: Scores | None) -> str:
    """Where the scores come from; if nobody says, parameters for distributions and private for samples."""
    if source is None:
        return "private" if any(isinstance(part, Sample) for part in scores) else "parameters"
    return _validation.check_option(source, "source", SOURCES)


def take_ranges(ranges: Any) -> list[tuple[float, float]]:
    if not isinstance(ranges, list | tuple):
        _validation.reject("compare_ranges", "a list of pairs", ranges)
    return [check_score_range(pair) for pair in ranges]


def warnings_for(source: str, impostor: Scores, share: float, promise: Contract) -> tuple[str, ...]:
    """What the reader of a plan must not overlook; ``share`` is the part of the impostor scores that decides."""
    found = []
    if source == "private":
        found.append(UNPAID)
    if isinstance(impostor, Sample) and len(impostor) * share < 10:
        found.append(
            f"Only about {len(impostor) * share:.2g} of the {len(impostor):,} impostor scores lie beyond the clean "
            "threshold: the clean figures are rough, and the private ones rest on the same few scores."
        )
    if promise.epsilon > 20:
        found.append(
            f"At epsilon {format_number(promise.epsilon)} the promise is weak: the best membership test may have an "
            f"advantage of {format_advantage(promise.attack_advantage)}, where 100 % is certainty."
        )
    if promise.delta > 1e-3:
        found.append(
            f"A delta of {format_number(promise.delta)} is large; it should be well below one over the number of "
            "records."
        )
    return tuple(found)


def check_least(least: float, obstacle: str) -> None:
    """Refuse a search for the least epsilon that has no answer, and say which of four ways it has none."""
    if math.isnan(least):
        raise InvalidInput(
            "The calibration rule is not private at the epsilon that this need takes: use the analytic one."
        )
    if least > 1e9:
        raise InvalidInput(f"No epsilon meets this need: {obstacle}.")
    if least < 1e-9:
        raise InvalidInput("Any epsilon meets this need, so there is no least one: choose one by what it promises.")


def least_epsilon_sentence(plan: Plan) -> str:
    if not math.isfinite(plan.least_epsilon):
        return ""
    return (
        f" The least epsilon that meets the need is {format_number(plan.least_epsilon)} "
        f"(delta {format_number(plan.contract.delta)})."
    )


def finite(value: Any) -> Any:
    """Plain values for JSON: what is no number becomes null."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
