"""Plan a search: how often the relevant record stays among the k best, and a bound that holds for every mechanism.

Under record replacement any record could become the relevant one. A released set of k records on average that holds the
relevant record with probability p therefore needs epsilon >= ln(n (p - delta) / k), for every mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from scoreshield._formatting import format_number, format_rate, format_rate_pair
from scoreshield._types import Calibration
from scoreshield._validation import check_count, check_inside_unit, one_of, optional, validate, whole_from
from scoreshield.decisions.rates import find_first_crossing
from scoreshield.decisions.recall import recall_at_k
from scoreshield.decisions.scores import Float, Sample, Scores, ScoresLike
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import (
    RANGES,
    SMALLEST,
    Plan,
    PlanNeed,
    ScoreRange,
    Source,
    as_plain_value,
    check_order,
    check_plan_scores,
    check_ranges,
    check_source,
    settle_terms,
)
from scoreshield.plan.choice import Choice, choose
from scoreshield.plan.contracts import CONTRACT_CHECKS
from scoreshield.plan.targets import LARGEST_EPSILON, Goal, SearchTarget
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import check_score_range


@dataclass(frozen=True)
class SearchNeed(PlanNeed):
    """The scores of a search, its size, and the recall it must reach."""

    irrelevant: Scores
    relevant: Scores
    records: int
    k: int
    target_recall: float | None
    delta: float

    def compute_recall(self, scale: float, score_range: ScoreRange) -> float:
        """Compute the recall under Gaussian noise; ``scale`` 0 is no noise."""
        relevant, irrelevant = self.relevant.clamp(*score_range), self.irrelevant.clamp(*score_range)
        return recall_at_k(relevant, irrelevant, scale, records=self.records, k=self.k)

    def find_largest_scale(self, score_range: ScoreRange) -> float:
        """Find the most noise that still reaches the target recall: 0 where none does, NaN without a target."""
        if self.target_recall is None:
            return math.nan
        target, spread = self.target_recall, max(self.irrelevant.spread, 1e-6)
        return find_first_crossing(
            lambda scale: target - self.compute_recall(scale, score_range),
            spread,
            smallest=SMALLEST * spread,
            largest=1e6,
        )

    def explain_obstacle(self, score_range: ScoreRange) -> str:
        """Explain why no epsilon reaches the target recall."""
        clean, target = format_rate_pair(self.compute_recall(0.0, score_range), cast("float", self.target_recall))
        return (
            f"without any noise the relevant record is among the best {self.k:,} of {self.records:,} in {clean} of the "
            f"queries, where {target} is asked for"
        )


class RangeAlternative(NamedTuple):
    """A search with another public score range: its noise, its recall, and the least epsilon for the target."""

    score_range: ScoreRange
    scale: float
    recall: float
    least_epsilon: float


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievalPlan(Plan):
    """How often the relevant record is among the k best.

    Attributes:
        records: The number of records.
        k: The number of records returned.
        target_recall: The recall that the plan must reach, or None.
        recall: The probability, with noise, that the one relevant record of a query is returned.
        clean_recall: The same without noise.
        floor: ln(records (p - delta) / k). Below this epsilon no mechanism reaches recall p.
        least_epsilon: The least epsilon at which Gaussian noise reaches the target.
        alternatives: The same need with other public score ranges; the first is the plan itself.
    """

    kind = "retrieval"

    genuine: Scores = field(repr=False)
    records: int
    k: int
    target_recall: float | None
    recall: float
    clean_recall: float
    floor: float
    alternatives: tuple[RangeAlternative, ...]

    def _list_alternatives(self) -> tuple[RangeAlternative, ...]:
        return self.alternatives

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A value that is no finite number is null."""
        return {
            **super().to_dict(),
            "records": self.records,
            "k": self.k,
            "target_recall": self.target_recall,
            "recall": self.recall,
            "clean_recall": self.clean_recall,
            "floor": as_plain_value(self.floor),
            "alternatives": [
                {
                    "score_range": list(row.score_range),
                    "scale": row.scale,
                    "recall": row.recall,
                    "least_epsilon": as_plain_value(row.least_epsilon),
                }
                for row in self.alternatives
            ],
        }

    @cached_property
    def recall_curve(self) -> tuple[Float, Float]:
        """Epsilons, and the recall of Gaussian noise at each."""
        centre = max(self.contract.epsilon, 1e-3)
        end = 1.3 * self.least_epsilon if math.isfinite(self.least_epsilon) else 0.0
        epsilons = np.geomspace(min(1.0, centre / 2), min(max(200.0, 2 * centre, end), 1e9), 40)
        recalls = [
            recall_at_k(
                self.genuine,
                self.impostor,
                gaussian.calibrate(float(epsilon), self.contract.delta, self.sensitivity),
                records=self.records,
                k=self.k,
            )
            for epsilon in epsilons
        ]
        return epsilons, np.array(recalls)

    def _write_floor(self) -> str:
        return "" if self.target_recall is None else self._write_bound()

    def _write_bound(self) -> str:
        target = self.recall if self.target_recall is None else self.target_recall
        if not self.floor > 0:
            return ""
        return (
            f"No mechanism returns the relevant record among {self.k:,} of {self.records:,} in "
            f"{format_rate(target)} of the queries below epsilon {self.floor:.3g}, since every record must be able "
            "to become the relevant one."
        )

    def _write_answer(self) -> str:
        contract = self.contract
        answer = (
            f"The least epsilon at which Gaussian noise meets the need is {format_number(contract.epsilon)} "
            f"(delta {format_number(contract.delta)}): "
            if self.is_searched
            else "For comparison, "
            if self.is_surpassed
            else f"With {contract.stated}, "
        )
        answer += (
            f"Gaussian noise of standard deviation {format_number(self.scale)} "
            f"{'would return' if self.is_surpassed else 'returns'} the relevant record in "
            f"{format_rate(self.recall)} of the queries (clean: {format_rate(self.clean_recall)})."
        )
        if self.target_recall is None or self.met:
            return answer
        if math.isnan(self.least_epsilon):
            return answer + " Where it would meet the need this calibration is not private; use the analytic one."
        if math.isinf(self.least_epsilon):
            return answer + " Gaussian noise meets the need at no epsilon."
        return answer + f" Gaussian noise needs epsilon {format_number(self.least_epsilon)}."


@validate(
    records=whole_from(2),
    k=check_count,
    delta=check_inside_unit,
    **CONTRACT_CHECKS,
    target_recall=optional(check_inside_unit),
    score_range=check_score_range,
    calibration=one_of(gaussian.METHODS),
    compare_ranges=check_ranges,
)
def retrieval(
    irrelevant: ScoresLike,
    relevant: ScoresLike,
    *,
    records: int,
    k: int,
    delta: float,
    epsilon: float | None = None,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    target_recall: float | None = None,
    score_range: ScoreRange = (-1.0, 1.0),
    calibration: Calibration = "analytic",
    source: Source | None = None,
    compare_ranges: Sequence[ScoreRange] = RANGES,
) -> RetrievalPlan:
    """Plan a search whose relevant record should be among the k best of ``records`` private scores.

    Args:
        irrelevant: Clean scores in [-1, 1] of queries with records that do not answer them.
        relevant: Clean scores in [-1, 1] of queries with records that answer them.
        records: The number of records.
        k: The number of records returned.
        delta: The delta of the contract.
        epsilon: The epsilon of the contract. Without any contract, the plan finds the least epsilon that reaches
            ``target_recall``.
        max_advantage: Instead: the largest advantage of a test for one record.
        max_tpr: Instead, with ``at_fpr``: the largest true-positive rate of such a test.
        at_fpr: The false-positive rate for ``max_tpr``.
        target_recall: The share of queries whose relevant record must be returned, or None.
        score_range: The public range that clean scores are clamped to before noise. Its width is the sensitivity.
        calibration: The rule that sets the noise. A textbook rule raises an error where it is not private.
        source: Where the scores come from, as in `verification`.
        compare_ranges: Other public ranges to compare.
    """
    far = check_plan_scores(irrelevant, "irrelevant")
    near = check_plan_scores(relevant, "relevant")
    check_order(far, near)
    origin = check_source(source, far, near)
    if k >= records:
        raise InvalidInput(f"With k = {k:,} of {records:,} records every record is returned: choose a smaller k.")
    if isinstance(far, Sample) and len(far) * k < records:
        raise InvalidInput(
            f"{k:,} of {records:,} records is a share that {len(far):,} irrelevant scores cannot show: give "
            f"at least {math.ceil(records / k):,} of them, or a larger k."
        )
    need = SearchNeed(far, near, records, k, target_recall, delta)
    no_target = "Give a contract (epsilon, or an attack bound), or a target_recall to find the least epsilon for."
    terms = settle_terms(
        need,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
        score_range=score_range,
        compare_ranges=compare_ranges,
        no_target=no_target if target_recall is None else None,
    )
    recall = need.compute_recall(terms.scale, score_range)
    aim = recall if target_recall is None else target_recall

    def compare(within: ScoreRange) -> RangeAlternative:
        scale = terms.contract.scale(within[1] - within[0])
        least = need.find_least_epsilon(within, calibration)
        return RangeAlternative(within, scale, need.compute_recall(scale, within), least)

    choice, goal = None, None
    if epsilon is None or epsilon <= LARGEST_EPSILON:
        bounds = {"epsilon": epsilon, "max_advantage": max_advantage, "max_tpr": max_tpr, "at_fpr": at_fpr}
        choice, goal = _rank_mechanisms(need, bounds, origin)
    return RetrievalPlan(
        **terms.list_plan_fields(origin, far, near, k / records),
        met=target_recall is None or recall >= target_recall * (1 - 1e-9),
        records=records,
        k=k,
        target_recall=target_recall,
        recall=recall,
        clean_recall=need.compute_recall(0.0, score_range),
        floor=max(0.0, math.log(max(records * (aim - delta) / k, 1.0))),
        alternatives=tuple(compare(within) for within in dict.fromkeys((score_range, *terms.ranges))),
        choice=choice,
        goal=goal,
    )


def _rank_mechanisms(need: SearchNeed, bounds: dict[str, float | None], source: Source) -> tuple[Choice, Goal | None]:
    """Rank all mechanisms for a search: under the contract, or at the least epsilon that reaches the target recall."""

    def choose_at(epsilon: float | None = None) -> Choice:
        terms = bounds if epsilon is None else {"epsilon": epsilon}
        return choose(
            "retrieval",
            need.irrelevant,
            need.relevant,
            delta=need.delta,
            records=need.records,
            k=need.k,
            source=source,
            **terms,
        )

    if need.target_recall is None:
        return choose_at(), None
    clean = need.compute_recall(0.0, (-1.0, 1.0))
    target = SearchTarget(need.target_recall, clean, need.delta, choose_at, need.records, need.k)
    choice = target.find_least() if all(value is None for value in bounds.values()) else choose_at()
    return choice, target.judge(choice)
