"""What a release is worth for a search: the predicted recall with its error, from public facts only.

The facts are those of the guarantee: the mechanism, the budget and the number of records. What scores look like comes
from public scores (`QueryScores`). Without the caller's own, those that ship are taken. Then the population is unknown,
and the stated error also covers how far the data sets at hand lie from each other. ``benchmarks/worth.py`` prints it.
With the caller's own, the error holds no change of population: queries and records of another kind have other scores,
also under the same model.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from scoreshield._validation import Check, check_count, check_inside_unit, optional, reject, validate
from scoreshield._views import Columns, NotebookObject, ObjectSummary
from scoreshield.decisions.laws import find_law_within_basis, find_ranking_law, has_unknown_basis
from scoreshield.decisions.queries import Prediction, QueryLaw, QueryScores
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import LevelChannel, randomised_response

Float = NDArray[np.float64]

#: The dimension of the model whose scores ship.
DEFAULT_DIMENSION = 384
#: A ranking that keeps less than this share of the clean recall is called noise.
USEFUL_SHARE = 0.5
#: Nine times in ten, predictions from the scores that ship were this near on other data sets, at each of these
#: predicted recalls. Printed by benchmarks/worth.py.
PREDICTED = (0.0, 0.1, 0.25, 0.5, 0.75)
_UNKNOWN = (0.17, 0.28, 0.53, 0.44, 0.35)
#: The kinds of release that name some records, and leave out the others.
_NAMING = ("matches", "hits")
#: An epsilon at which randomised response is practically never false.
_CERTAIN = 40.0
#: The mean over so many queries lies within the error.
_ASKED = 100
#: A screening must name a relevant record with at least so many times the odds of any other record.
_LEAST_ODDS = 2.0
#: The estimated share s of a batch is off by up to the first times s (1 - s), or the second times s. It was set so that
#: the batches of benchmarks/worth.py, from epsilon 4 on, lie inside.
_SHARE_ERRORS = (0.9, 0.1)
#: The recall of a hit budget is off by this much where it is small.
_HIT_ERROR = 0.05


class Population(NamedTuple):
    """The public scores of a prediction.

    Attributes:
        scores: The scores.
        basis: Where they come from, for people.
        spread: How far predictions for the private population may lie from those for these scores, at each recall of
            `PREDICTED`.
        is_known: Whether they are of the model of the records, as far as is known.
        is_own: Whether the caller gave them.
    """

    scores: QueryScores
    basis: str
    spread: tuple[float, ...]
    is_known: bool
    is_own: bool = False


@dataclass(frozen=True, repr=False)
class Worth(NotebookObject):
    """What a search by a release is predicted to find, from public facts.

    Attributes:
        recall: The predicted share of the relevant records that are among the k best.
        error: Half the width of an interval around it that holds the mean recall of 100 queries nine times in ten. With
            the caller's public scores, it holds no change of population.
        k: How many records are returned for a query.
        records: The number of records.
        sentence: The prediction in one sentence.
        basis: Which public scores it comes from.
        clean: The predicted share of the same search without privacy. Of a screening, that of its threshold.
        chance: Of a screening, the predicted share of irrelevant records that are returned; otherwise 0.
        is_known: Whether the public scores are of the model of the records, as far as is known.
    """

    recall: float
    error: float
    k: int
    records: int
    sentence: str
    basis: str
    clean: float
    chance: float = 0.0
    is_known: bool = True

    @property
    def is_useful(self) -> bool:
        """Whether the search is predicted to find at least half of what it would find without privacy.

        A screening must also name relevant records with twice the odds of irrelevant ones.
        """
        is_better = self.recall * (1 - self.chance) >= _LEAST_ODDS * self.chance * (1 - self.recall)
        return self.recall >= USEFUL_SHARE * self.clean and is_better

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval that holds the recall nine times in ten."""
        return max(self.recall - self.error, 0.0), min(self.recall + self.error, 1.0)

    @property
    def asked(self) -> str:
        """What is asked for, as text: ``the best 10 of 2,000``, or ``all 8``."""
        return f"the best {self.k:,} of {self.records:,}" if self.k < self.records else f"all {self.records:,}"

    @property
    def figure(self) -> str:
        """The predicted recall with its error, as text: ``0.53 ± 0.04``, or ``0.27 (between 0 and 0.80)``."""
        if self.error == 0 or self.error <= self.recall <= 1 - self.error:
            return f"{self.recall:.2f} ± {self.error:.2f}"
        low, high = ("0" if end == 0 else "1" if end == 1 else f"{end:.2f}" for end in self.interval)
        return f"{self.recall:.2f} (between {low} and {high})"

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

    def __repr__(self) -> str:
        return f"<Worth: recall {self.figure} for {self.asked}, and {self.clean:.2f} without privacy>"

    def _summarise(self) -> ObjectSummary:
        facts = {"Recall": self.figure, "Without privacy": f"{self.clean:.2f}", "From": self.basis}
        return ObjectSummary(f"Worth of a search for {self.asked}", self.sentence, facts)

    def _list_columns(self) -> Columns:
        return {name: [value] for name, value in self.to_dict().items()}


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


def check_recall(worth: Worth, least: float | None, advice: str = "") -> None:
    """Raise an error where less recall is predicted than the caller requires.

    Args:
        worth: The prediction.
        least: The least recall that the caller accepts; None for any.
        advice: What is predicted to help, where it is known: it ends the message. Whether a larger epsilon helps is not
            known from the prediction at one epsilon.

    Raises:
        InvalidInput: Less is predicted. Nothing was released or charged.
    """
    if least is not None and worth.recall < least:
        end = f"Without privacy it is {worth.clean:.2f}"
        if worth.clean < least:
            other = " or a lower threshold" if worth.chance else " or a larger k" if worth.k < worth.records else ""
            end = f"{end}, so no epsilon reaches it: ask for a lower recall{other}"
        elif advice:
            end = f"{end}; {advice}"
        if not worth.is_known:
            end = f"{end}; these figures are those of another model, so give public scores of this one"
        raise InvalidInput(
            f"A recall of {least:g} is required, and {worth.figure} is predicted for {worth.asked} records; nothing "
            f"was released or charged. {end}."
        )


def find_population(public_scores: QueryScores | None, dimension: int | None) -> Population:
    """Find the public scores for records of this dimension: the caller's, or those that ship."""
    if public_scores is not None:
        return Population(public_scores, public_scores.origin, (0.0,) * len(PREDICTED), is_known=True, is_own=True)
    scores = QueryScores.default()
    if dimension in (None, DEFAULT_DIMENSION):
        return Population(scores, f"{scores.origin}, because no public scores were given", _UNKNOWN, is_known=True)
    basis = f"{scores.origin}, another model than that of these {dimension}-dimensional records"
    return Population(scores, f"{basis}: give public scores of it", _UNKNOWN, is_known=False)


@validate(k=check_count, public_scores=check_public_scores)
def predict_worth(
    guarantee: Guarantee,
    *,
    k: int = 10,
    dimension: int | None = None,
    public_scores: QueryScores | None = None,
    law: QueryLaw | None = None,
    share: float | None = None,
    other_laws: Sequence[QueryLaw] = (),
    note: str = "",
) -> Worth:
    """Predict what a search by a release with this guarantee finds. It reads public facts only.

    Args:
        guarantee: Of scores, a row, matches, the k best, an index or hits.
        k: How many records are returned for a query.
        dimension: Of the embeddings, where it is known. The scores that ship are of a model with 384 dimensions.
        public_scores: Public scores of the same model, of queries and records like the private ones: the error holds no
            change of population. None takes those that ship, with a larger error.
        law: The law of the released scores, where the guarantee does not determine it.
        share: The share of the clean recall that remains, where a release has no law of scores.
        other_laws: Laws that are as possible as `law`. The error reaches the recall of each.
        note: What ends the sentence.

    Raises:
        InvalidInput: The release answers no search.
    """
    records = count_records(guarantee)
    population = find_population(public_scores, dimension)
    if law is None and share is None:
        with np.errstate(all="ignore"):
            found = find_ranking_law(guarantee, dimension)
        if found is None:
            raise InvalidInput(f"A release of kind {guarantee.regime!r} by {guarantee.mechanism} answers no search.")
        law = found
    scores, within = population.scores, guarantee.score_range
    clean_law = _find_clean_law(guarantee)
    names_some = guarantee.regime in _NAMING
    clean = predict_law(clean_law, scores, records=records, k=k, names_some=names_some and clean_law != 0.0)
    chance = _find_chance(law, scores, records=records, k=k) if guarantee.regime == "matches" else 0.0
    if share is not None:
        kept = _predict_share(share, clean, scores, records=records, k=k)
    else:
        assert law is not None
        fewest = _count_answers(guarantee, k)
        kept = predict_law(law, scores, records=records, k=fewest, score_range=within, names_some=names_some)
        if guarantee.regime == "hits":  # a round that names enough may name more
            most = predict_law(law, scores, records=records, k=k, score_range=within, names_some=True)
            kept = kept._replace(error=math.hypot(kept.error, most.value - kept.value, _HIT_ERROR))
    if law is not None and has_unknown_basis(guarantee) and guarantee.shape[1] != dimension:
        other_laws = (find_law_within_basis(guarantee),)  # at best, the basis keeps all that matters
        note = f"; what its basis keeps is unknown, so as {guarantee.shape[1]:,} random dimensions keep it"
    others = [predict_law(one, scores, records=records, k=k, score_range=within).value for one in other_laws]
    farthest = max((abs(one - kept.value) for one in others), default=0.0)
    kept = kept._replace(error=math.hypot(kept.error, farthest))
    return state_worth(kept, clean, population, k=k, records=records, chance=chance, note=note)


def state_worth(
    kept: Prediction,
    clean: Prediction,
    population: Population,
    *,
    k: int,
    records: int,
    chance: float = 0.0,
    note: str = "",
) -> Worth:
    """State a prediction, with the error of its population, in one sentence, which may end with a note."""
    is_certain = k >= records and kept.value == 1
    further = 0.0 if is_certain else float(np.interp(kept.value, PREDICTED, population.spread))
    error = 0.0 if is_certain else min(math.hypot(kept.error, further), 1.0)
    worth = Worth(kept.value, error, k, records, "", population.basis, clean.value, chance, population.is_known)
    found = f"{worth.figure} of the relevant records among {worth.asked}, and {clean.value:.2f} without privacy"
    like = ", if private queries and records are like these" if population.is_own else ""
    sentence = f"Predicted to find {found} (by {population.basis}{like}{note})."
    if not population.is_known:
        sentence = f"Unknown for this model. Predicted for another one: {found} (by {population.basis}{note})."
    return replace(worth, sentence=sentence)


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
    low, high = guarantee.score_range
    return _make_threshold(guarantee.details["threshold"], low, high)


@lru_cache(maxsize=64)
def _make_threshold(threshold: float, low: float, high: float) -> LevelChannel:
    cut = max(threshold, low + (high - low) * 2.0**-20)
    return randomised_response(_CERTAIN, [cut], score_range=(low, high))


@lru_cache(maxsize=64)
def _predict_share(share: float, clean: Prediction, scores: QueryScores, *, records: int, k: int) -> Prediction:
    """Predict the recall of a release that keeps an estimated share of the clean recall."""
    kept = scores.predict(lambda part: share * part.find_rates(0.0, k=k, records=records), asked=_ASKED)
    curved, straight = _SHARE_ERRORS
    unsure = max(curved * share * (1 - share) * clean.value, straight * share)
    return kept._replace(error=math.hypot(kept.error, unsure))


def _find_chance(law: Any, scores: QueryScores, *, records: int, k: int) -> float:
    """Find the probability that a screening returns a record that is drawn at random."""
    values, weights = scores.marginal
    return float(min(k / records, np.average(_find_named(law, values), weights=weights)))


def _find_named(law: Any, scores: Float) -> Float:
    """Find the probability that a record is named: its output in a table is not the lowest."""
    levels = np.searchsorted(np.asarray(law.cuts), scores, side="left")
    named: Float = 1 - np.asarray(law.probabilities)[levels, 0]
    return named


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
    names_some: bool = False,
) -> Prediction:
    """Predict the recall of one law, once for the same arguments.

    Args:
        law: The law of the released scores.
        scores: The public scores.
        records: The number of records.
        k: How many records are returned at most.
        score_range: The public range that scores are clamped to before noise.
        names_some: Whether records with the lowest output of a table are not returned at all.
    """
    return _predict(cast("Hashable", law), scores, records, k, score_range, names_some)


@lru_cache(maxsize=512)
@np.errstate(all="ignore")  # what the caller set for NumPy must not stop a prediction
def _predict(
    law: Any, scores: QueryScores, records: int, k: int, score_range: tuple[float, float], names_some: bool
) -> Prediction:
    def find(part: QueryScores) -> Float:
        rates = part.find_rates(law, k=k, records=records, score_range=score_range)
        if not names_some:
            return rates
        return np.minimum(rates, _find_named(law, part.relevant))

    return scores.predict(find, asked=_ASKED)
