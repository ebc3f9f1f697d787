"""Plan a search: how often the relevant record stays among the k best, and the bound that no mechanism passes.

Under record replacement any record could become the relevant one, so a released set of k on average that holds the
relevant record with probability p needs epsilon >= ln(n (p - delta) / k), whatever the mechanism.
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
from scoreshield._validation import check_count, validate, whole_from
from scoreshield.decisions.rates import find_first_crossing
from scoreshield.decisions.recall import recall_at_k
from scoreshield.decisions.scores import Float, Sample
from scoreshield.errors import InvalidCalibration, InvalidInput
from scoreshield.plan.base import (
    RANGES,
    SMALLEST,
    Plan,
    check_least,
    finite,
    take_ranges,
    take_scores,
    take_source,
    warnings_for,
)
from scoreshield.plan.contracts import contract
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import check_score_range


@dataclass(frozen=True)
class RetrievalPlan(Plan):
    """How often the relevant record is among the k best.

    Attributes
    ----------
    records, k, target_recall : the need.
    recall, clean_recall : the probability with noise and without it, one relevant record a query.
    floor : ln(records (p - delta) / k): below this epsilon no mechanism whatever reaches recall p, ours included.
    least_epsilon : the least at which Gaussian noise reaches the target.
    """

    kind = "retrieval"

    records: int
    k: int
    target_recall: float | None
    recall: float
    clean_recall: float
    floor: float
    alternatives: tuple[tuple[tuple[float, float], float, float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "records": self.records,
            "k": self.k,
            "target_recall": self.target_recall,
            "recall": self.recall,
            "clean_recall": self.clean_recall,
            "floor": finite(self.floor),
            "alternatives": [
                {"score_range": list(chosen), "scale": scale, "recall": recall, "least_epsilon": finite(least)}
                for chosen, scale, recall, least in self.alternatives
            ],
        }

    @cached_property
    def recall_curve(self) -> tuple[Float, Float]:
        """Epsilons and the recall of Gaussian noise there."""
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


@validate(records=whole_from(2), k=check_count)
def retrieval(
    irrelevant: object,
    relevant: object,
    *,
    records: int,
    k: int,
    delta: float,
    epsilon: float | None = None,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    target_recall: float | None = None,
    score_range: tuple[float, float] = (-1.0, 1.0),
    calibration: str = "analytic",
    source: str | None = None,
    compare_ranges: Sequence[tuple[float, float]] = RANGES,
) -> RetrievalPlan:
    """Plan a search whose relevant record should be among the k best of ``records`` private scores.

    Parameters
    ----------
    irrelevant, relevant : clean scores in [-1, 1] of queries with records that do not and that do answer them.
    records, k : how many records there are and how many are returned.
    target_recall : the share of queries whose relevant record must be returned, if the plan is to judge that.

    The other arguments are those of :func:`verification`.
    """
    noise_scores = take_scores(irrelevant, "irrelevant")
    signal = take_scores(relevant, "relevant")
    source = take_source(source, noise_scores, signal)
    others = take_ranges(compare_ranges)
    if k >= records:
        raise InvalidInput(f"With k = {k:,} of {records:,} records every record is returned: choose a smaller k.")
    if target_recall is not None:
        target_recall = _validation.check_probability(target_recall, "target_recall", zero=False)
    if isinstance(noise_scores, Sample) and len(noise_scores) * k < records:
        raise InvalidInput(
            f"{k:,} of {records:,} records is a share that {len(noise_scores):,} irrelevant scores cannot show: give "
            f"at least {math.ceil(records / k):,} of them, or a larger k."
        )
    chosen = check_score_range(score_range)
    promise = contract(
        delta=delta,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
    )

    def recall(scale: float, within: tuple[float, float]) -> float:
        found, others = signal.clamp(*within), noise_scores.clamp(*within)
        return recall_at_k(found, others, scale, records=records, k=k)

    def least(within: tuple[float, float]) -> float:
        if target_recall is None:
            return math.nan
        wanted, spread = target_recall, max(noise_scores.spread, 1e-6)
        scale = find_first_crossing(
            lambda s: wanted - recall(s, within), spread, smallest=SMALLEST * spread, largest=1e6
        )
        try:
            return decisions.epsilon_for_scale(scale, delta, within[1] - within[0], calibration)
        except InvalidCalibration:
            return math.nan

    least_epsilon = least(chosen)
    searched = promise is None
    if promise is None:
        if target_recall is None:
            raise InvalidInput(
                "Give a contract (epsilon, or an attack bound), or a target_recall to find the least epsilon for."
            )
        found, asked = format_rate_pair(recall(0.0, chosen), target_recall)
        check_least(
            least_epsilon,
            f"without any noise the relevant record is among the best {k:,} of {records:,} in {found} of the queries, "
            f"where {asked} is asked for",
        )
        promise = contract(delta=delta, epsilon=least_epsilon * (1 + 1e-9), calibration=calibration)
        assert promise is not None
    width = chosen[1] - chosen[0]
    scale = promise.scale(width)
    reached, clean = recall(scale, chosen), recall(0.0, chosen)
    aimed = reached if target_recall is None else target_recall
    floor = max(0.0, math.log(max(records * (aimed - delta) / k, 1.0)))
    ranges = [chosen, *others]
    table = tuple(
        (
            within,
            promise.scale(within[1] - within[0]),
            recall(promise.scale(within[1] - within[0]), within),
            least(within),
        )
        for within in dict.fromkeys(ranges)
    )
    plan = RetrievalPlan(
        answer="",
        met=target_recall is None or reached >= target_recall * (1 - 1e-9),
        contract=promise,
        scale=scale,
        sensitivity=width,
        score_range=chosen,
        least_epsilon=least_epsilon,
        source=source,
        warnings=warnings_for(source, noise_scores, k / records, promise),
        impostor=noise_scores.clamp(*chosen),
        genuine=signal.clamp(*chosen),
        records=records,
        k=k,
        target_recall=target_recall,
        recall=reached,
        clean_recall=clean,
        floor=floor,
        alternatives=table,
    )
    object.__setattr__(plan, "answer", _retrieval_answer(plan, searched))
    return plan


def _retrieval_answer(plan: RetrievalPlan, searched: bool) -> str:
    promise = plan.contract
    aimed = plan.recall if plan.target_recall is None else plan.target_recall
    answer = ""
    if plan.floor > 0:
        answer = (
            f"No mechanism at all returns the relevant record among {plan.k:,} of {plan.records:,} in "
            f"{format_rate(aimed)} of the queries below epsilon {plan.floor:.3g}, since every record must be able to "
            "become the relevant one. "
        )
    answer += (
        f"The least epsilon that meets the need with Gaussian noise is {format_number(promise.epsilon)} "
        f"(delta {format_number(promise.delta)}): "
        if searched
        else f"With {promise.stated}, "
    )
    answer += (
        f"noise of standard deviation {format_number(plan.scale)} leaves it there in {format_rate(plan.recall)} of the "
        f"queries (clean: {format_rate(plan.clean_recall)})."
    )
    if plan.target_recall is None or plan.met:
        return answer
    if math.isnan(plan.least_epsilon):
        return answer + " Where it would meet the need this calibration is not private; use the analytic one."
    if math.isinf(plan.least_epsilon):
        return answer + " Gaussian noise meets the need at no epsilon."
    answer += f" Gaussian noise needs epsilon {format_number(plan.least_epsilon)}."
    return answer
