"""Choose the mechanism that ranks the scores of one query best, from public facts.

Noise on scores, windows around a private quantile and level tables are compared by their predicted recall on public
scores. Level tables take part only if the caller gives public scores: fixed cuts are of no use for a model whose scores
lie elsewhere, and windows find their place by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from scoreshield.decisions.queries import Prediction, QueryLaw, QueryScores
from scoreshield.decisions.worth import find_population, predict_law
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.levels.tables import LevelChannel, randomised_response
from scoreshield.privacy.noise import GaussianNoise, StaircaseNoise
from scoreshield.privacy.tails import AnchoredWindows, TailShape, WindowSetting

ScoreRange = tuple[float, float]

#: Noise on scores is chosen if its predicted recall is this near to the best: its values are nearest to the clean ones.
_NEARLY_BEST = 0.005
#: The numbers of levels of a table, and the ranks of its lowest cut in multiples of k.
_LEVELS = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 40)
_LOWEST_RANKS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0)
#: The highest cut is at this quantile of the relevant scores.
_HIGHEST = 0.8
#: Tables are compared on so many queries.
_QUERIES = 150
#: The epsilons between which a mechanism is chosen by its predicted recall. Below there is nothing to predict.
_LEAST_EPSILON = 1e-3


class RankingChoice(NamedTuple):
    """The mechanism with the best predicted ranking.

    Attributes:
        mechanism: As for `scoreshield.release_scores`.
        delta: The delta that it spends.
        prediction: Its predicted recall, without the error of an unknown population.
        reason: Why it was chosen, in one sentence.
    """

    mechanism: str | LevelChannel | AnchoredWindows
    delta: float
    prediction: Prediction
    reason: str


class _Candidate(NamedTuple):
    name: str
    mechanism: str | LevelChannel | AnchoredWindows
    delta: float
    law: QueryLaw


@lru_cache(maxsize=256)
@np.errstate(all="ignore")
def choose_for_ranking(
    epsilon: float,
    delta: float = 0.0,
    *,
    records: int,
    k: int = 10,
    score_range: ScoreRange = (-1.0, 1.0),
    public_scores: QueryScores | None = None,
    dimension: int | None = None,
    may_anchor: bool = True,
) -> RankingChoice:
    """Choose the mechanism for the scores of one query whose best k records are asked for.

    Args:
        epsilon: The epsilon of the release.
        delta: The delta of the release. With 0 there is no Gaussian noise. The other mechanisms spend none.
        records: The number of records.
        k: How many best records are asked for.
        score_range: The public range of scores.
        public_scores: Public scores of the same model. None takes those that ship, and considers no table.
        dimension: Of the embeddings.
        may_anchor: Whether windows around a private quantile may be chosen, which need all scores at once.
    """
    population = find_population(public_scores, dimension)
    found = []
    for one in _list_candidates(epsilon, delta, records, k, score_range, public_scores, may_anchor):
        prediction = predict_law(one.law, population.scores, records=records, k=k, score_range=score_range)
        found.append((prediction, one))
    best = max(prediction.value for prediction, _ in found)
    # Noise on scores comes first in the list.
    prediction, chosen = next(pair for pair in found if pair[0].value >= best - _NEARLY_BEST)
    others = sorted(((other.value, one.name) for other, one in found if one.name != chosen.name), reverse=True)
    compared = f", {others[0][1]} {others[0][0]:.2f}" if others else ""
    reason = f"{chosen.name} is predicted to find {prediction.value:.2f} of the best {k:,} of {records:,}{compared}"
    return RankingChoice(chosen.mechanism, chosen.delta, prediction, reason)


def _list_candidates(
    epsilon: float,
    delta: float,
    records: int,
    k: int,
    score_range: ScoreRange,
    public_scores: QueryScores | None,
    may_anchor: bool,
) -> Iterator[_Candidate]:
    width = score_range[1] - score_range[0]
    yield _Candidate("staircase noise", "staircase", 0.0, StaircaseNoise.calibrate(epsilon, width))
    if delta:
        law = GaussianNoise(gaussian.calibrate(epsilon, delta, width))
        yield _Candidate("Gaussian noise", "gaussian", delta, law)
    if epsilon < _LEAST_EPSILON:
        return
    for windows in _list_windows(k, records, public_scores) if may_anchor else ():
        choice = windows.choose(epsilon, records, score_range)
        if choice.law is not None:
            yield _Candidate("windows around a private quantile", windows, 0.0, choice.law)
    if public_scores is not None and k < records:
        table = _find_table(epsilon, records, k, score_range, public_scores)
        if table is not None:
            yield _Candidate(f"a table of {len(table.inputs)} levels", table, 0.0, table)


def _list_windows(k: int, records: int, public_scores: QueryScores | None) -> Iterator[AnchoredWindows]:
    """List the windows for the shape of the tail that ships, and for the same shape at the slope of public scores."""
    shape = TailShape.default(k)
    yield AnchoredWindows(k)
    if public_scores is None or records < 2 * shape.rank:
        return
    near, far = max(1, k // 2), shape.rank
    scores = [float(np.median(public_scores.find_score(rank, records))) for rank in (near, far)]
    slope = (scores[0] - scores[1]) / math.log(far / near)
    if slope <= 2.0**-16:
        return
    factor = slope / shape.slope
    settings = tuple(
        WindowSetting(one.excess, one.anchor_epsilon, factor * one.offset, factor * one.width, one.span, one.recall)
        for one in shape.settings
    )
    origin = f"{shape.origin}, at the slope of {public_scores.origin}"
    try:
        yield AnchoredWindows(tail=replace(shape, slope=slope, settings=settings, origin=origin, dimension=None))
    except InvalidInput:  # a slope that windows cannot have
        return


def _find_table(
    epsilon: float, records: int, k: int, score_range: ScoreRange, public_scores: QueryScores
) -> LevelChannel | None:
    """Find the table of evenly spaced levels with the best predicted recall: how many, and from which rank on."""
    low, high = score_range
    scores = _sample_queries(public_scores)
    top = float(np.quantile(scores.relevant, _HIGHEST))
    best: tuple[float, LevelChannel] | None = None
    for rank in _LOWEST_RANKS:
        if rank * k >= records:
            continue
        first = float(np.median(scores.find_score(rank * k, records)))
        for levels in _LEVELS:
            cuts = np.linspace(first, top, levels - 1) if levels > 2 else np.array([first])
            if not (low < cuts[0] and cuts[-1] < high) or (levels > 2 and top - first < 1e-3):
                continue
            table = randomised_response(epsilon, cuts, score_range=score_range)
            value = scores.predict_recall(table, k=k, records=records, score_range=score_range).value
            if best is None or value > best[0]:
                best = value, table
    return None if best is None else best[1]


def _sample_queries(scores: QueryScores) -> QueryScores:
    if scores.is_pooled or scores.queries <= _QUERIES:
        return scores
    return scores.choose_queries(np.linspace(0, scores.queries - 1, _QUERIES).round().astype(np.intp))
