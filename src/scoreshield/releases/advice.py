"""Say before a charge what a release is worth, and which change would make a useless one useful.

All predictions read public facts only: the budget, the numbers of records and dimensions, k, and public scores.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from scoreshield.decisions.laws import make_privunit_law
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.ranking import choose_for_ranking
from scoreshield.decisions.worth import USEFUL_SHARE, Worth, check_recall, find_population, predict_law
from scoreshield.errors import InvalidInput, UselessRelease
from scoreshield.privacy.levels.tables import randomised_response
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit

#: How a release answers a search.
Kind = Literal["index", "query", "scores", "screening", "hits", "batch", "codebook"]

#: Budgets that are suggested, up to the largest that is worth suggesting.
_EPSILONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)
_PACKAGE = str(Path(__file__).parents[1])
#: A batch of so many queries is compared.
_BATCH = 30

_NAMES = {
    "index": "an index",
    "codebook": "an index over this codebook",
    "query": "each query",
    "scores": "a release of scores",
    "screening": "a screening",
    "hits": "a hit budget",
    "batch": "a batch",
}


@dataclass(frozen=True)
class Adviser:
    """Check the worth of a release before it is charged, and suggest what would help.

    Attributes:
        kind: How the release answers a search.
        epsilon: Of the release.
        dimension: Of the embeddings.
        public_scores: The caller's public scores.
        require_recall: The least predicted recall that the caller accepts.
        is_automatic: Whether the mechanism for scores was chosen by its predicted recall.
        group: How many records share epsilon.
    """

    kind: Kind
    epsilon: float
    dimension: int
    public_scores: QueryScores | None = None
    require_recall: float | None = None
    is_automatic: bool = True
    group: int = 1

    def check(self, worth: Worth, *, is_charged: bool = True) -> None:
        """Raise an error below the required recall, and warn where the ranking would be noise.

        Args:
            worth: The prediction.
            is_charged: Whether the release is private, so that it costs something. Research mode is tried for its own
                sake, and gets no warning.

        Raises:
            InvalidInput: Less recall is predicted than the caller requires. Nothing was released or charged.
        """
        check_recall(worth, self.require_recall)
        if is_charged and not worth.is_useful:
            warnings.warn(self.describe(worth), UselessRelease, stacklevel=_find_caller())

    def describe(self, worth: Worth) -> str:
        """Write the warning, in one sentence."""
        return (
            f"At epsilon {self.epsilon:g} {_NAMES[self.kind]} ranks mostly by noise: it is predicted to find "
            f"{worth.recall:.2f} ± {worth.error:.2f} of the relevant records among the best {worth.k:,} of "
            f"{worth.records:,}, and {worth.clean:.2f} are found without privacy; {self._suggest(worth)}."
        )

    def _suggest(self, worth: Worth) -> str:
        """Name the cheapest change that helps: another release at the same epsilon, and then a larger epsilon."""
        wanted = USEFUL_SHARE * worth.clean
        found = []
        if self.kind == "scores" or (self.kind == "query" and not self.is_automatic):
            value = self._predict_query(self.epsilon, worth)
            if value >= wanted:
                how = "mechanism='auto' with for_='ranking'" if self.kind == "scores" else "mechanism='auto'"
                found.append(f"{how} finds {value:.2f} at the same epsilon")
        elif self.kind != "query":
            value = self._predict_query(self.epsilon, worth)
            if value >= wanted:
                found.append(f"mode='query' with a ledger finds {value:.2f} at epsilon {self.epsilon:g} for each query")
            value = self._predict_batch(self.epsilon, worth)
            if self.kind != "batch" and value >= wanted:
                found.append(f"a batch of {_BATCH} queries that are known now finds {value:.2f} at the same epsilon")
        larger = self._find_epsilon(worth, wanted)
        if larger is not None:
            found.append(f"epsilon {larger:g} finds half of what is found without privacy")
        if not found:
            return f"no epsilon up to {_EPSILONS[-1]} is predicted to help, so use fewer records or a larger k"
        return f"{found[0]}" if len(found) == 1 else f"{found[0]}, or {found[1]}"

    def _find_epsilon(self, worth: Worth, wanted: float) -> float | None:
        """Find the least epsilon of the list at which the same kind of release is useful; None where there is none."""
        predict = self._choose_predictor(worth)
        larger = [float(one) for one in _EPSILONS if one > self.epsilon]
        place = _bisect(larger, lambda epsilon: predict(epsilon) >= wanted)
        return larger[place] if place < len(larger) else None

    def _choose_predictor(self, worth: Worth) -> Callable[[float], float]:
        match self.kind:
            case "index" | "codebook":
                return lambda epsilon: self._predict_index(epsilon, worth)
            case "batch":
                return lambda epsilon: self._predict_batch(epsilon, worth)
            case "hits":
                return lambda epsilon: self._predict_bit(0.75 * epsilon, worth)
            case "screening":
                return lambda epsilon: self._predict_bit(epsilon, worth)
            case _:
                return lambda epsilon: self._predict_query(epsilon, worth)

    def _predict_index(self, epsilon: float, worth: Worth) -> float:
        each = epsilon / self.group
        if not SMALLEST_EPSILON <= each <= LARGEST_EPSILON:
            return 0.0
        scores = find_population(self.public_scores, self.dimension).scores
        unit = PrivUnit.calibrate(self.dimension, each)
        law = make_privunit_law(unit.std, unit.mean, self.dimension, unit.p)
        return predict_law(law, scores, records=worth.records, k=worth.k).value

    def _predict_query(self, epsilon: float, worth: Worth) -> float:
        return choose_for_ranking(
            epsilon,
            records=worth.records,
            k=worth.k,
            public_scores=self.public_scores,
            dimension=self.dimension,
        ).prediction.value

    def _predict_bit(self, epsilon: float, worth: Worth) -> float:
        scores = find_population(self.public_scores, self.dimension).scores
        cut = float(np.median(scores.find_score(worth.k, worth.records)))
        return predict_law(randomised_response(epsilon, [cut]), scores, records=worth.records, k=worth.k).value

    def _predict_batch(self, epsilon: float, worth: Worth) -> float:
        from scoreshield.releases.batch import estimate_share  # which builds on this module

        return worth.clean * estimate_share(epsilon / self.group, worth.records, _BATCH, worth.k)


def _find_caller() -> int:
    """Find the stack level of the caller's code, outside this package, for a warning of the calling function."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _bisect(values: list[float], is_enough: Callable[[float], bool]) -> int:
    """Find the place of the first value that is enough; values that are enough come last."""
    first, last = 0, len(values)
    while first < last:
        middle = (first + last) // 2
        try:
            enough = is_enough(values[middle])
        except InvalidInput:  # a budget that the mechanism does not take
            enough = False
        first, last = (first, middle) if enough else (middle + 1, last)
    return first
