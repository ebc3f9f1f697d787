"""What a release is worth for a search: the predicted recall with its error, from public facts only.

The facts are those of the guarantee: the mechanism, the budget and the number of records. What scores look like comes
from public scores (`QueryScores`). Without the caller's own, those that ship are taken. Then the population is unknown,
and the stated error also covers how far the data sets at hand lie from each other. ``benchmarks/worth.py`` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from scoreshield._validation import Check, check_count, check_inside_unit, optional, reject, validate
from scoreshield.decisions.laws import find_ranking_law
from scoreshield.decisions.queries import Prediction, QueryLaw, QueryScores
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import randomised_response

#: The dimension of the model whose scores ship.
DEFAULT_DIMENSION = 384
#: A ranking that keeps less than this share of the clean recall is called noise.
USEFUL_SHARE = 0.5
#: Nine times in ten, predictions from the scores that ship were this near on other data sets, at each of these
#: predicted recalls. Printed by benchmarks/worth.py.
PREDICTED = (0.0, 0.1, 0.25, 0.5, 0.75)
_UNKNOWN = (0.17, 0.28, 0.53, 0.44, 0.35)
#: An epsilon at which randomised response is practically never false.
_CERTAIN = 40.0
#: The mean over so many queries lies within the error.
_ASKED = 100


class Population(NamedTuple):
    """The public scores of a prediction.

    Attributes:
        scores: The scores.
        basis: Where they come from, for people.
        spread: How far predictions for the private population may lie from those for these scores, at each recall of
            `PREDICTED`.
        is_known: Whether they are of the model of the records, as far as is known.
    """

    scores: QueryScores
    basis: str
    spread: tuple[float, ...]
    is_known: bool


@dataclass(frozen=True)
class Worth:
    """What a search by a release is predicted to find, from public facts.

    Attributes:
        recall: The predicted share of the relevant records that are among the k best.
        error: Half the width of an interval around it that holds the mean recall of 100 queries nine times in ten.
        k: How many records are returned for a query.
        records: The number of records.
        sentence: The prediction in one sentence.
        basis: Which public scores it comes from.
        clean: The predicted share of the same search without privacy. Of a screening, that of its threshold.
    """

    recall: float
    error: float
    k: int
    records: int
    sentence: str
    basis: str
    clean: float

    @property
    def is_useful(self) -> bool:
        """Whether the search is predicted to find at least half of what it would find without privacy."""
        return self.recall >= USEFUL_SHARE * self.clean

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**vars(self), "is_useful": self.is_useful}

    def summarise(self) -> dict[str, Any]:
        """Return the numbers alone, for the metadata of each hit."""
        names = ("recall", "error", "clean", "k", "records", "is_useful")
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in self.to_dict().items()
            if name in names
        }

    def __str__(self) -> str:
        return self.sentence


def check_public_scores(value: Any, name: str) -> QueryScores | None:
    """Check for public scores, or None."""
    if value is not None and not isinstance(value, QueryScores):
        reject(name, "a scoreshield.decisions.QueryScores of public scores, or None", value)
    return value


#: The constraints on the arguments about a release's worth.
WORTH_CHECKS: dict[str, Check] = {
    "k": check_count,
    "public_scores": check_public_scores,
    "require_recall": optional(check_inside_unit),
}


def check_recall(worth: Worth, least: float | None) -> None:
    """Raise an error where less recall is predicted than the caller requires.

    Raises:
        InvalidInput: Less is predicted. Nothing was released or charged.
    """
    if least is not None and worth.recall < least:
        raise InvalidInput(
            f"A recall of {least:g} is required, and {worth.recall:.2g} ± {worth.error:.2g} is predicted for the best "
            f"{worth.k:,} of {worth.records:,} records; nothing was released or charged."
        )


def find_population(public_scores: QueryScores | None, dimension: int | None) -> Population:
    """Find the public scores for records of this dimension: the caller's, or those that ship."""
    if public_scores is not None:
        return Population(public_scores, public_scores.origin, (0.0,) * len(PREDICTED), True)
    scores = QueryScores.default()
    if dimension in (None, DEFAULT_DIMENSION):
        return Population(scores, f"{scores.origin}, because no public scores were given", _UNKNOWN, True)
    basis = f"{scores.origin}, another model than that of these {dimension}-dimensional records"
    return Population(scores, f"{basis}: give public scores of it", _UNKNOWN, False)


@validate(k=check_count, public_scores=check_public_scores)
def predict_worth(
    guarantee: Guarantee,
    *,
    k: int = 10,
    dimension: int | None = None,
    public_scores: QueryScores | None = None,
    law: QueryLaw | None = None,
    share: float | None = None,
) -> Worth:
    """Predict what a search by a release with this guarantee finds. It reads public facts only.

    Args:
        guarantee: Of scores, a row, matches, the k best, an index or hits.
        k: How many records are returned for a query.
        dimension: Of the embeddings, where it is known. The scores that ship are of a model with 384 dimensions.
        public_scores: Public scores of the same model. None takes those that ship, with a larger error.
        law: The law of the released scores, where the guarantee does not determine it.
        share: The share of the clean recall that remains, where a release has no law of scores.

    Raises:
        InvalidInput: The release answers no search.
    """
    records = count_records(guarantee)
    population = find_population(public_scores, dimension)
    if law is None and share is None:
        with np.errstate(all="ignore"):
            found = find_ranking_law(guarantee)
        if found is None:
            raise InvalidInput(f"A release of kind {guarantee.regime!r} by {guarantee.mechanism} answers no search.")
        law = found
    asked_k = _count_answers(guarantee, k)
    clean = predict_law(_find_clean_law(guarantee), population.scores, records=records, k=k)
    if k >= records:
        kept = Prediction(1.0, 0.0)
    elif share is not None:
        kept = Prediction(share * clean.value, max(share * clean.error, 0.1 * share))
    else:
        assert law is not None
        kept = predict_law(law, population.scores, records=records, k=asked_k, score_range=guarantee.score_range)
    return state_worth(kept, clean, population, k=k, records=records)


def state_worth(kept: Prediction, clean: Prediction, population: Population, *, k: int, records: int) -> Worth:
    """State a prediction, with the error of its population, in one sentence."""
    further = float(np.interp(kept.value, PREDICTED, population.spread)) if k < records else 0.0
    error = min(math.hypot(kept.error, further), 1.0)
    sentence = (
        f"Predicted to find {kept.value:.2f} ± {error:.2f} of the relevant records among the best {k:,} of "
        f"{records:,}, and {clean.value:.2f} without privacy (by {population.basis})."
    )
    return Worth(kept.value, error, k, records, sentence, population.basis, clean.value)


def count_records(guarantee: Guarantee) -> int:
    """Count the records that a search by a release ranks."""
    match guarantee.regime:
        case "scores" | "row":
            return int(guarantee.shape[-1])
        case "top-k":
            return int(guarantee.details["records"])
        case _:
            return int(guarantee.shape[0])


def _find_clean_law(guarantee: Guarantee) -> QueryLaw:
    """Find what the same search does without privacy: a screening names the records above its threshold."""
    if guarantee.regime != "matches" or guarantee.details["refining_epsilon"]:
        return 0.0
    (low, high), threshold = guarantee.score_range, guarantee.details["threshold"]
    cut = max(threshold, low + (high - low) * 2.0**-20)
    return randomised_response(_CERTAIN, [cut], score_range=(low, high))


def _count_answers(guarantee: Guarantee, k: int) -> int:
    """Count the records that a query names. With few hits a query names fewer than it is asked for."""
    if guarantee.regime == "top-k":
        return min(k, int(guarantee.details["selections"]))
    if guarantee.regime != "hits":
        return k
    share: float = min(1.0, guarantee.details["hits"] / 4)
    return max(1, math.ceil(k * share))


def predict_law(
    law: QueryLaw,
    scores: QueryScores,
    *,
    records: int,
    k: int,
    score_range: tuple[float, float] = FULL_RANGE,
) -> Prediction:
    """Predict the recall of one law, once for the same arguments."""
    return _predict(cast("Hashable", law), scores, records, k, score_range)


@lru_cache(maxsize=512)
@np.errstate(all="ignore")  # what the caller set for NumPy must not stop a prediction
def _predict(law: Any, scores: QueryScores, records: int, k: int, score_range: tuple[float, float]) -> Prediction:
    return scores.predict_recall(law, k=k, records=records, asked=_ASKED, score_range=score_range)
