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

from scoreshield import _checks
from scoreshield.errors import InvalidCalibration, InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import check_score_range
from scoreshield.utility import decisions
from scoreshield.utility._roots import first_crossing
from scoreshield.utility.contract import contract
from scoreshield.utility.planning import RANGES, Plan, finite, take_scores, take_source, warnings_for
from scoreshield.utility.roc import recall_at_k
from scoreshield.utility.scores import Float
from scoreshield.utility.words import number_text, rate_text


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
        centre = self.contract.epsilon
        end = 1.3 * self.least_epsilon if math.isfinite(self.least_epsilon) else 0.0
        epsilons = np.geomspace(min(1.0, centre / 2), max(200.0, 2 * centre, end), 40)
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
    source: str = "private",
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
    function = "retrieval"
    noise_scores = take_scores(irrelevant, "irrelevant", function)
    signal = take_scores(relevant, "relevant", function)
    source = take_source(source, function)
    records = _checks.count(records, "records", function, least=2)
    k = _checks.count(k, "k", function)
    if k >= records:
        raise InvalidInput(f"With k = {k:,} of {records:,} records every record is returned: choose a smaller k.")
    if target_recall is not None:
        target_recall = _checks.probability(target_recall, "target_recall", function, zero=False)
    chosen = check_score_range(score_range, function)
    promise = contract(
        delta=delta,
        epsilon=epsilon,
        max_advantage=max_advantage,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        calibration=calibration,
        function=function,
    )

    def recall(scale: float, within: tuple[float, float]) -> float:
        found, others = signal.clamp(*within), noise_scores.clamp(*within)
        return recall_at_k(found, others, scale, records=records, k=k)

    def least(within: tuple[float, float]) -> float:
        if target_recall is None:
            return math.nan
        if recall(0.0, within) < target_recall:
            return math.inf
        wanted = target_recall
        scale = first_crossing(lambda s: wanted - recall(s, within), 0.1, smallest=1e-6, largest=1e6)
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
        if not 1e-9 <= least_epsilon <= 1e9:
            raise InvalidInput(
                f"No epsilon meets this need: without any noise the relevant record is among the best {k:,} of "
                f"{records:,} in {rate_text(recall(0.0, chosen))} of the queries, below the "
                f"{rate_text(target_recall)} asked for."
            )
        promise = contract(delta=delta, epsilon=least_epsilon * (1 + 1e-9), calibration=calibration, function=function)
        assert promise is not None
    width = chosen[1] - chosen[0]
    scale = promise.scale(width)
    reached, clean = recall(scale, chosen), recall(0.0, chosen)
    aimed = reached if target_recall is None else target_recall
    floor = max(0.0, math.log(max(records * (aimed - delta) / k, 1.0)))
    ranges = [chosen, *(check_score_range(other, function) for other in compare_ranges)]
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
    opening = (
        f"The least epsilon that meets the need with Gaussian noise is {number_text(promise.epsilon)} (delta "
        f"{number_text(promise.delta)})"
        if searched
        else f"With {promise.stated}"
    )
    answer = (
        f"{opening}: noise of standard deviation {number_text(plan.scale)} leaves the relevant record among the best "
        f"{plan.k:,} "
        f"of {plan.records:,} in {rate_text(plan.recall)} of the queries (clean: {rate_text(plan.clean_recall)})."
    )
    if plan.target_recall is not None:
        answer += (
            f" No mechanism at all reaches {rate_text(plan.target_recall)} below epsilon {plan.floor:.3g}: every "
            "record must be able to become the relevant one."
        )
        if not plan.met:
            if math.isfinite(plan.least_epsilon):
                answer += f" Gaussian noise needs {number_text(plan.least_epsilon)}."
            else:
                answer += " Gaussian noise reaches it at no epsilon, since clean scores do not."
    return answer
