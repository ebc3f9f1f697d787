"""Say before a charge what a release is worth, and which change would make a useless one useful.

All predictions read public facts only: the budget, the numbers of records and dimensions, k, and public scores.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from scoreshield._formatting import choose_words
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import Worth, check_recall, predict_worth
from scoreshield.errors import ScoreShieldError, UselessRelease
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.guarantee import Guarantee

#: How a release answers a search.
Kind = Literal["index", "query", "scores", "row", "screening", "top-k", "hits", "batch", "codebook"]

#: Whether a prediction is enough; None is not.
Condition = Callable[[Worth | None], TypeGuard[Worth]]

#: Budgets that are suggested, up to the largest that is worth suggesting.
_EPSILONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)
_PACKAGE = str(Path(__file__).parents[1])
#: A batch of so many queries is compared, unless the number is known.
_BATCH = 30

_NAMES = {
    "index": "an index",
    "codebook": "an index over this codebook",
    "query": "each query",
    "scores": "a release of scores",
    "row": "the row of a record",
    "screening": "a screening",
    "top-k": "a release of the best records",
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
        is_automatic: Whether the caller named no mechanism.
        is_grouped: Whether one neighbour changes several records, so that they share epsilon.
        queries: How many queries one release answers.
        may_query: Whether a release per query may be suggested. Where ``mode="auto"`` picked the mode, it was compared
            or ruled out by something else than a missing ledger.
        score_range: The public range of scores.
        repeat: Predicts the worth of the same release, with all its other arguments, at another epsilon. None where it
            cannot be repeated. No epsilon is then suggested.
    """

    kind: Kind
    epsilon: float
    dimension: int
    public_scores: QueryScores | None = None
    require_recall: float | None = None
    is_automatic: bool = True
    is_grouped: bool = False
    queries: int = 1
    may_query: bool = True
    score_range: tuple[float, float] = FULL_RANGE
    repeat: Callable[[float], Worth] | None = None

    def check(self, worth: Worth, *, is_charged: bool = True) -> None:
        """Raise an error below the required recall, and warn where the ranking would be noise.

        Args:
            worth: The prediction.
            is_charged: Whether the release is private, so that it costs something. Research mode is tried for its own
                sake, and gets no warning.

        Raises:
            InvalidInput: Less recall is predicted than the caller requires. Nothing was released or charged.
        """
        least = self.require_recall
        if least is not None and worth.recall < least <= worth.clean:
            check_recall(worth, least, self._suggest(worth, least))
        check_recall(worth, least)
        if is_charged and not worth.is_useful:
            warnings.warn(self.describe(worth), UselessRelease, stacklevel=_find_caller())

    def describe(self, worth: Worth) -> str:
        """Write the warning, in one sentence."""
        public = choose_words("public_scores", "--public-scores")
        if worth.is_known:
            claim = "ranks mostly by noise: it is predicted to find"
            own = f"; {public} of your model on public data like yours make the prediction sharper"
            unknown = own if self.public_scores is None else ""
        else:
            claim = "probably ranks mostly by noise: for another model it is predicted to find"
            unknown = f"; this model is unknown, and {public} of it give a prediction of its own"
        return (
            f"At epsilon {self.epsilon:g} {_NAMES[self.kind]} {claim} "
            f"{worth.figure} of the relevant records among {worth.asked}, and {worth.clean:.2f} are found without "
            f"privacy; {self._suggest(worth)}{unknown}."
        )

    def _suggest(self, worth: Worth, least: float | None = None) -> str:
        """Name the cheapest change that helps: another release at the same epsilon, and then a larger epsilon.

        A change helps if the recall that it is predicted to have is useful, or at least what the caller requires.
        """

        def is_enough(other: Worth | None) -> TypeGuard[Worth]:
            return other is not None and (other.is_useful if least is None else other.recall >= least)

        found = list(filter(None, (self._suggest_query(worth, is_enough), self._suggest_batch(worth, is_enough))))[:1]
        if self.repeat is None:
            return found[0] if found else "use a larger epsilon, fewer records or a larger k"
        larger = self._find_epsilon(self.repeat, is_enough)
        if larger is not None:
            what = "half of what is found without privacy" if least is None else f"at least {least:g}"
            found.append(f"epsilon {larger:g} is predicted to find {what}")
        if not found:
            return f"no epsilon up to {_EPSILONS[-1]} is predicted to help, so use fewer records or a larger k"
        return ", or ".join(found)

    def _suggest_query(self, worth: Worth, is_enough: Condition) -> str | None:
        """Suggest the mechanism that is best for the scores of one query, where it is another and is useful."""
        is_best_already = self.kind in ("query", "scores") and self.is_automatic
        if self.is_grouped or self.queries > 1 or not self.may_query or is_best_already:
            return None
        other = _try(lambda: self._predict_query(worth))
        if not is_enough(other):
            return None
        ranking = choose_words("release_scores with for_='ranking'", "scoreshield release scores --for ranking")
        if self.kind == "query":
            return f"mechanism='auto' is predicted to find {other.recall:.2f} at the same epsilon"
        if self.kind == "row":
            return (
                f"{ranking} and the record as its query is predicted to find "
                f"{other.recall:.2f} at the same epsilon, where that record is public"
            )
        if self.kind in ("scores", "top-k"):
            return f"{ranking} is predicted to find {other.recall:.2f} at the same epsilon"
        mode = "mode='query'" if self.is_automatic else "mode='query', mechanism='auto'"
        how = choose_words(f"{ranking}, or {mode} with a ledger", ranking)
        return (
            f"a release per query ({how}) is predicted to find {other.recall:.2f} at epsilon "
            f"{self.epsilon:g} for each query"
        )

    def _suggest_batch(self, worth: Worth, is_enough: Condition) -> str | None:
        """Suggest a batch instead of another release for all queries, where it is useful."""
        is_open = self.kind in ("index", "codebook", "hits", "screening")
        if self.is_grouped or not (is_open or (self.kind == "scores" and self.queries > 1)):
            return None
        other = _try(lambda: self._predict_batch(worth))
        if not is_enough(other):
            return None
        if self.queries > 1:
            batch = choose_words("release_batch", "scoreshield release batch")
            return f"{batch} is predicted to find {other.recall:.2f} at the same epsilon"
        how = choose_words("", " (scoreshield release batch)")
        return f"a batch of {_BATCH} queries that are known now{how} is predicted to find {other.recall:.2f}"

    def _find_epsilon(self, repeat: Callable[[float], Worth], is_enough: Condition) -> float | None:
        """Find the least epsilon of the list at which the same release is enough; None where there is none."""
        larger = [float(one) for one in _EPSILONS if one > self.epsilon]
        place = _bisect(larger, lambda epsilon: is_enough(_try(lambda: repeat(epsilon))))
        return larger[place] if place < len(larger) else None

    def _predict_query(self, worth: Worth) -> Worth:
        from scoreshield.releases.scores import prepare_scores  # which builds on this module

        rows = make_public_rows(worth.records, self.dimension)
        pending = prepare_scores(
            rows,
            rows[0],
            epsilon=self.epsilon,
            for_="ranking",
            k=worth.k,
            public_scores=self.public_scores,
            score_range=self.score_range,
            rng=0,
        )
        return predict_worth(pending.guarantee, k=worth.k, dimension=self.dimension, public_scores=self.public_scores)

    def _predict_batch(self, worth: Worth) -> Worth:
        from scoreshield.releases.batch import predict_batch_worth, prepare_batch  # which builds on this module

        rows = make_public_rows(worth.records, self.dimension)
        queries = make_public_rows(self.queries if self.queries > 1 else _BATCH, self.dimension)
        pending = prepare_batch(rows, queries, epsilon=self.epsilon, k=worth.k, rng=0)
        return predict_batch_worth(pending.guarantee, self.dimension, worth.k, self.public_scores)


def check_guarantee_worth(
    adviser: Adviser, k: int, state: Callable[[float], Guarantee], *, guarantee: Guarantee, is_charged: bool
) -> None:
    """Check the worth of a release whose guarantee says what it finds.

    Args:
        adviser: Says what the release is. Its ``repeat`` is set here.
        k: How many records are read.
        state: Returns the guarantee of the same release at another epsilon.
        guarantee: That of the release itself.
        is_charged: As in `Adviser.check`.
    """

    def predict(stated: Guarantee) -> Worth:
        return predict_worth(stated, k=k, dimension=adviser.dimension, public_scores=adviser.public_scores)

    replace(adviser, repeat=lambda epsilon: predict(state(epsilon))).check(predict(guarantee), is_charged=is_charged)


def make_public_rows(count: int, dimension: int) -> NDArray[np.float64]:
    """Make equal rows of this shape, so that a release is prepared for a prediction and no record can enter it."""
    return np.broadcast_to(np.eye(1, dimension)[0], (count, dimension))


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
        first, last = (first, middle) if is_enough(values[middle]) else (middle + 1, last)
    return first


def _try(predict: Callable[[], Worth]) -> Worth | None:
    """Predict a worth; None for a budget or other arguments that the release does not take."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a release that is not made
            return predict()
    except ScoreShieldError:
        return None
