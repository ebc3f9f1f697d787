"""Simulate, on public scores, the releases whose records are shared among queries: batches and hit budgets.

A record of a batch names a few queries, and a record with a hit budget answers a few of them. So the recall depends on
how many queries want the same records. The law of one query's scores does not show this; the public matrix of scores
does. A simulation draws the mechanism on it, which costs nothing and reads nothing private.

If more private records are stated than public ones, further records are draws from the public ones. The pairs of a
query and a drawn record are irrelevant: where the public record is relevant, the score of another one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield.decisions.queries import JointScores, Prediction, QueryScores
from scoreshield.decisions.worth import Worth, find_population, predict_law, state_worth
from scoreshield.privacy.hit_budget import HitBudget
from scoreshield.privacy.response import SetResponse, Symbols
from scoreshield.privacy.sampling.stream import open_stream

Float = NDArray[np.float64]
Places = NDArray[np.intp]

#: The mean over so many queries lies within the error.
ASKED = 100
#: A run has at most so many scores. Of more records, some stand for all.
_MOST_SCORES = 4_000_000
#: At least so many runs, and at most; together they answer about so many queries.
_RUNS, _MOST_RUNS, _ANSWERS = 3, 40, 120
#: The simulated recall of a hit budget is off by this much where all queries find the same share.
_HIT_ERROR = 0.05
#: Nine values in ten of a normal law lie so many standard deviations from its mean.
_NINE_IN_TEN = 1.645


class Simulation(NamedTuple):
    """What the runs of a simulation found.

    Attributes:
        shares: For each run, the share of relevant records that each query found.
        groups: For each run, the group of each query: queries of one group want the same record.
        clean: The mean share that the same queries find without privacy.
        records: How many records were simulated.
        queries: How many queries one run answered.
        known: How many different queries all runs answered.
        unsure: How far the mean share may lie from that of a release, apart from sampling.
    """

    shares: tuple[Float, ...]
    groups: tuple[Places, ...]
    clean: float
    records: int
    queries: int
    known: int
    unsure: float

    def predict(self, clean: float, *, asked: int, factor: float = 1.0) -> Prediction:
        """Predict the recall where the same queries find ``clean`` without privacy.

        Args:
            clean: The predicted recall without privacy, for the stated number of records.
            asked: Over how many queries the released recall will be the mean.
            factor: What sizes that were not simulated change, by an estimate. Half of the change is an error.
        """
        mean = float(np.concatenate(self.shares).mean())
        kept = min(mean / self.clean, 1.0) * clean if self.clean > 0 else 0.0
        value = min(kept * factor, clean)
        spread = np.mean([_sum_groups(one - mean, group) for one, group in zip(self.shares, self.groups, strict=True)])
        sampling = _NINE_IN_TEN * math.sqrt(float(spread) * (1 / self.known + 1 / asked))
        # A rate near 0 or 1 moves in whole records, as in Wilson's interval.
        whole = _NINE_IN_TEN**2 / (2 * asked)
        return Prediction(value, math.hypot(sampling, (value - kept) / 2, self.unsure, whole))


def state_simulated_worth(
    simulation: Simulation,
    public_scores: QueryScores,
    *,
    k: int,
    records: int,
    asked: int = ASKED,
    factor: float = 1.0,
    note: str,
) -> Worth:
    """State the worth of a release that was simulated on the caller's public scores.

    Args:
        simulation: What was found.
        public_scores: The scores that it was drawn on.
        k: How many records are returned for a query.
        records: The number of private records.
        asked: Over how many queries the released recall will be the mean.
        factor: What sizes that were not simulated change.
        note: A sentence that says what was simulated.
    """
    clean = predict_law(0.0, public_scores, records=records, k=k)
    kept = simulation.predict(clean.value, asked=asked, factor=factor)
    return add_note(state_worth(kept, clean, find_population(public_scores, None), k=k, records=records), note)


def add_note(worth: Worth, note: str, *, further: float = 0.0) -> Worth:
    """Add a sentence to a prediction, and an error that the note explains."""
    if not further:
        return replace(worth, sentence=f"{worth.sentence} {note}")
    wider = replace(worth, error=min(math.hypot(worth.error, further), 1.0))
    return replace(wider, sentence=f"{worth.sentence.replace(worth.figure, wider.figure, 1)} {note}")


def simulate_batch(
    scores: QueryScores, response: SetResponse, cuts: Sequence[float], *, records: int, k: int
) -> Simulation:
    """Answer batches of public queries, as many as the response has names.

    A search also shows the records of similar queries. How similar public queries are is estimated from their scores,
    and half of what this adds to the recall is an error.

    Args:
        scores: Public scores that are known as a matrix.
        response: The randomised response. It names at most as many queries as are public.
        cuts: The lower edges of the levels.
        records: The number of private records.
        k: How many records are returned for a query.
    """
    return _simulate_batch(scores, response, tuple(cuts), records, k)


@lru_cache(maxsize=64)
def _simulate_batch(
    scores: QueryScores, response: SetResponse, cuts: tuple[float, ...], records: int, k: int
) -> Simulation:
    runs, gaps = [], []
    heights = np.append(np.array(cuts) - min(cuts[0], 0.0), 0.0)
    for rng, matrix, wanted, clean, groups in _draw_collections(scores, response.names, records, k):
        best = np.argpartition(-matrix, response.size - 1, axis=0)[: response.size].T.astype(np.int64)
        height = np.searchsorted(cuts, np.take_along_axis(matrix.T, best, 1), side="right").astype(np.int64) - 1
        if response.has_bottom:
            best = np.where(height == -1, -1, best)
        else:
            height = np.maximum(height, 0)
        names, levels = response.release(open_stream(rng), Symbols(best, height))
        shares, apart = np.zeros(len(matrix)), np.zeros(len(matrix))
        likeness, unlike = _estimate_likeness(matrix), np.eye(len(matrix))
        for place, relevant in enumerate(wanted):
            for found, alike in ((shares, likeness), (apart, unlike)):
                first = _rank_named(names, levels, alike[place], place, heights, k, rng)
                found[place] = np.isin(relevant, first).mean()
        runs.append((shares, groups, clean, matrix.shape))
        gaps.append(float(shares.mean() - apart.mean()))
    return _collect(scores, runs, abs(float(np.mean(gaps))) / 2)


def _estimate_likeness(matrix: NDArray[np.float32]) -> Float:
    """Estimate the cubed cosines of queries: by the correlation of their scores, which tends to lie above them."""
    centred = matrix - matrix.mean(axis=1, keepdims=True)
    centred -= centred.mean(axis=0)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9)
    return np.asarray(np.maximum(centred @ centred.T, 0.0).astype(np.float64) ** 3)


def _rank_named(
    names: NDArray[np.int64],
    levels: NDArray[np.int64],
    likeness: Float,
    query: int,
    heights: Float,
    k: int,
    rng: np.random.Generator,
) -> Places:
    """Find the k best records of one query, as a search of a batch does."""
    weights = np.append(likeness, 0.0)[names] * heights[levels]
    is_own = names == query
    found = np.flatnonzero((is_own | (weights > 0)).any(axis=1))
    scores = weights[found].max(axis=1)
    order = np.lexsort((rng.random(len(found)), -scores))[:k]
    return np.asarray(found[order])


def simulate_hits(
    scores: QueryScores, budget: HitBudget, cuts: Sequence[float], *, records: int, k: int, enough: int, queries: int
) -> Simulation:
    """Answer public queries in a row, in a random order, under one hit budget.

    It draws what `scoreshield.privacy.hit_budget.name_records` draws. False names are drawn by their number, so that
    only the records above the lowest cut are looked at one by one.

    Args:
        scores: Public scores that are known as a matrix.
        budget: The budget of each record.
        cuts: The cuts between levels.
        records: The number of private records.
        k: How many records are returned for a query at most.
        enough: How many names end a query.
        queries: How many queries are asked in a row; all public ones where they are fewer.
    """
    return _simulate_hits(scores, budget, tuple(cuts), records, k, enough, queries)


@lru_cache(maxsize=64)
def _simulate_hits(
    scores: QueryScores, budget: HitBudget, cuts: tuple[float, ...], records: int, k: int, enough: int, queries: int
) -> Simulation:
    runs = []
    for rng, matrix, wanted, clean, groups in _draw_collections(scores, queries, records, k):
        levels = np.searchsorted(cuts, matrix, side="left").astype(np.uint8)
        used = np.zeros(matrix.shape[1], dtype=np.uint8)
        shares = np.zeros(len(matrix))
        for place in rng.permutation(len(matrix)):
            named = _name_records(budget, rng, levels[place], used, len(cuts), enough)
            shares[place] = np.isin(wanted[place], named[:k]).mean()
        runs.append((shares, groups, clean, matrix.shape))
    return _collect(scores, runs, _HIT_ERROR)


def _name_records(
    budget: HitBudget,
    rng: np.random.Generator,
    levels: NDArray[np.uint8],
    used: NDArray[np.uint8],
    rounds: int,
    enough: int,
) -> Places:
    """Name the records of one query, the highest level first, and count hits and misses in place."""
    above = np.flatnonzero(levels)
    above = above[np.argsort(levels[above], kind="stable")]
    edges = np.searchsorted(levels[above], np.arange(rounds + 2))
    is_named, named, number = np.zeros(len(levels), dtype=np.bool_), [], 0
    for level in range(rounds, 0, -1):
        hot = above[edges[level] : edges[level + 1]]
        hot = hot[(used[hot] < budget.hits) & ~is_named[hot]]
        is_hit = rng.random(len(hot)) < budget.true_probability
        used[hot[is_hit]] += 1
        used[hot[~is_hit]] = budget.hits
        cold = len(levels) - number - len(hot)
        false = rng.integers(len(levels), size=rng.binomial(cold, budget.false_probability))
        false = np.setdiff1d(false[~is_named[false]], hot)
        found = rng.permutation(np.concatenate([hot[is_hit], false]))
        is_named[found] = True
        named.append(found)
        number += len(found)
        if number >= enough:
            break
    return np.concatenate(named)


def _draw_collections(
    scores: QueryScores, queries: int, records: int, k: int
) -> Iterator[tuple[np.random.Generator, NDArray[np.float32], list[Places], float, Places]]:
    """Draw some queries and a collection, for each run.

    Returns:
        A generator of the run, the scores (queries, records), the relevant records of each query, the mean share that
        is found without privacy, and the group of each query.
    """
    joint = scores.joint
    assert joint is not None
    number = min(queries, len(joint.scores))
    runs = min(max(_RUNS, math.ceil(_ANSWERS / number)), _MOST_RUNS)
    order = np.random.default_rng(len(joint.scores)).permutation(len(joint.scores))
    for run in range(runs):
        rng = np.random.default_rng([run, number, records])
        chosen = np.sort(order[(run * number + np.arange(number)) % len(order)])
        matrix, wanted = _draw_records(joint, chosen, records, rng)
        clean = np.mean([_find_clean_share(row, relevant, k) for row, relevant in zip(matrix, wanted, strict=True)])
        yield rng, matrix, wanted, float(clean), np.array([joint.groups[one] for one in chosen])


def _draw_records(
    joint: JointScores, chosen: Places, records: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], list[Places]]:
    """Draw the stated number of records from the public ones; the relevant ones of the chosen queries stay."""
    wanted = [joint.find_relevant(int(query)) for query in chosen]
    size = max(min(records, _MOST_SCORES // len(chosen)), 2)
    public = joint.scores.shape[1]
    if size < public:
        kept = np.unique(np.concatenate(wanted))
        others = np.setdiff1d(np.arange(public), kept)
        extra = rng.choice(others, size=min(max(size - len(kept), 0), len(others)), replace=False)
        columns = np.sort(np.concatenate([kept, extra]))
        return joint.scores[np.ix_(chosen, columns)], [np.searchsorted(columns, relevant) for relevant in wanted]
    extra = rng.integers(public, size=size - public)
    further = joint.scores[np.ix_(chosen, extra)]
    for place, relevant in enumerate(wanted):
        again = np.flatnonzero(np.isin(extra, relevant))
        others = np.setdiff1d(np.arange(public), relevant)
        further[place, again] = joint.scores[chosen[place], rng.choice(others, size=len(again))]
    return np.concatenate([joint.scores[chosen], further], axis=1), wanted


def _find_clean_share(row: NDArray[np.float32], relevant: Places, k: int) -> float:
    """Find the share of the relevant records that are among the k best."""
    if k >= len(row):
        return 1.0
    least = np.partition(row, len(row) - k)[len(row) - k]
    return float((row[relevant] >= least).mean())


def _collect(
    scores: QueryScores, runs: list[tuple[Float, Places, float, tuple[int, ...]]], unsure: float
) -> Simulation:
    assert scores.joint is not None
    queries, records = runs[0][3]
    return Simulation(
        tuple(shares for shares, *_ in runs),
        tuple(groups for _, groups, *_ in runs),
        float(np.mean([clean for _, _, clean, _ in runs])),
        records,
        queries,
        min(queries * len(runs), len(scores.joint.scores)),
        unsure,
    )


def _sum_groups(deviations: Float, groups: Places) -> float:
    """The variance of one query's share, as it counts for a mean: queries of one group do not vary independently."""
    _, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, weights=deviations)
    return float((sums**2).sum() / len(deviations))
