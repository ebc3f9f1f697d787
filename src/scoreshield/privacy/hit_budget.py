"""The hit budget: each record is named truly for a limited number of queries, whatever the number of queries.

Each record has a level for a query, on public cuts. A query goes down the levels, one round for each level, until
enough records are named. In a round, a record that has this level is *hot*; all others are *cold*. A cold record is
named with a small probability f, a hot one with a larger probability p. A hot record that is named has a *hit*. A hot
record that is not named has a *miss*. After m hits, or one miss, a record is cold forever. A secret counter of each
record holds this.

With `p = e^a f` and `1 - f = e^b (1 - p)`, the logarithm of the likelihood ratio of a record against one that is always
cold lies between `-b` and `m a`, for every sequence of answers. That is `max(m a, b)` against a null record, and
`m a + b` between any two records. docs/proofs/hits.md has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_epsilon, validate
from scoreshield.privacy.levels import program
from scoreshield.privacy.levels.program import WHOLE
from scoreshield.privacy.profiles import round_down, round_up
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

Counts = NDArray[np.uint8]
Bools = NDArray[np.bool_]

#: The largest number of hits, which a counter of one byte can hold.
MOST_HITS = 250
#: The part of a budget that misses get, and the most that they get: where false names are rare, a hot record is
#: then missed in about 1.8 % of its rounds.
_MISS_SHARE, _MOST_FOR_MISSES = 0.25, 4.0
#: A hit's epsilon is at least this much above the logarithm of the number of records, where the budget allows it: then
#: a round names less than 0.4 records falsely, on average. Chosen on public data (FRAMES).
_CLEARANCE = 1.0


@dataclass(frozen=True)
class HitBudget:
    """The budget of each record, and the law of one round.

    Attributes:
        hits: m, how many rounds may name a record while it is hot.
        hit_epsilon: a, the most that one hit costs.
        miss_epsilon: b, the most that the miss costs.
    """

    hits: int
    hit_epsilon: float
    miss_epsilon: float

    @validate()
    def __post_init__(self) -> None:
        if check_count(self.hits, "hits") > MOST_HITS:
            _validation.reject("hits", f"a whole number from 1 to {MOST_HITS}", self.hits)
        check_epsilon(self.hit_epsilon, "hit_epsilon")
        check_epsilon(self.miss_epsilon, "miss_epsilon")

    @classmethod
    def split(cls, epsilon: float, hits: int, *, is_null: bool = False) -> HitBudget:
        """Split an epsilon into hits and the miss.

        Args:
            epsilon: The whole budget.
            hits: m.
            is_null: Whether epsilon is against a null record, where hits and the miss do not add up. Otherwise it is
                between any two records.

        Returns:
            A budget with a total of at most epsilon, to the last bit.
        """
        epsilon = check_epsilon(epsilon)
        if check_count(hits, "hits") > MOST_HITS:
            _validation.reject("hits", f"a whole number from 1 to {MOST_HITS}", hits)
        miss = epsilon if is_null else min(_MISS_SHARE * epsilon, _MOST_FOR_MISSES)
        rest = Fraction(epsilon) - (0 if is_null else Fraction(miss))
        hit = round_down(rest / hits)
        if hit < 1e-6 or miss < 1e-6:
            must = f"large enough for {hits:,} hits: each gets an epsilon of at least 1e-6"
            _validation.reject("epsilon", must, epsilon)
        return cls(int(hits), hit, miss)

    @classmethod
    def choose(cls, epsilon: float, records: int, *, is_null: bool = False) -> HitBudget:
        """Split an epsilon into as many hits as leave a round with less than 0.4 false names, at least one."""
        one = cls.split(epsilon, 1, is_null=is_null)
        needed = math.log(records) + _CLEARANCE
        return cls.split(epsilon, min(max(1, math.floor(one.hit_epsilon / needed)), MOST_HITS), is_null=is_null)

    @property
    def null_epsilon(self) -> float:
        """The epsilon against a null record, rounded up: the larger one of all hits and the miss."""
        return max(round_up(self.hits * Fraction(self.hit_epsilon)), self.miss_epsilon)

    @property
    def replacement_epsilon(self) -> float:
        """The epsilon between any two records, rounded up: all hits of one and the miss of the other."""
        return round_up(self.hits * Fraction(self.hit_epsilon) + Fraction(self.miss_epsilon))

    @cached_property
    def weights(self) -> tuple[int, int]:
        """The probabilities of naming a cold and a hot record, in whole 2^-62nds, rounded to the private side."""
        hit, miss = program.floor_ratio(self.hit_epsilon), program.floor_ratio(self.miss_epsilon)
        # p = hit f and 1 - f = miss (1 - p) together give f = (miss - 1) / (hit miss - 1).
        cold = math.ceil(WHOLE * (miss - 1) / (hit * miss - 1))
        hot = min(math.floor(hit * cold), WHOLE - math.ceil((WHOLE - cold) / miss))
        return cold, hot

    @property
    def false_probability(self) -> float:
        """f, the probability that a round names a cold record."""
        return self.weights[0] / WHOLE

    @property
    def true_probability(self) -> float:
        """p, the probability that a round names a hot record."""
        return self.weights[1] / WHOLE

    @cached_property
    def _cumulative(self) -> NDArray[np.uint64]:
        """Row 0 is of cold records and row 1 of hot ones; column 0 is not named, column 1 named."""
        return np.array([[WHOLE - weight, WHOLE] for weight in self.weights], dtype=np.uint64)

    def draw_round(self, stream: Stream, is_hot: Bools, used: Counts) -> Bools:
        """Draw which records one round names, and count hits and misses in place.

        One word of the stream is read for each record, whatever it is.

        Args:
            stream: Where random bits come from.
            is_hot: Which records have the level of the round and are asked.
            used: The counters. Records whose counter is at `hits` are cold.

        Returns:
            Which records are named.
        """
        is_hot = is_hot & (used < self.hits)
        is_named: Bools = discrete.draw_columns(stream, self._cumulative, is_hot.astype(np.int64)) == 1
        used += (is_hot & is_named).astype(np.uint8)
        used[is_hot & ~is_named] = self.hits
        return is_named


def name_records(
    budget: HitBudget,
    stream: Stream,
    levels: NDArray[np.int64],
    used: Counts,
    is_asked: Bools,
    *,
    rounds: int,
    enough: int,
) -> NDArray[np.int64]:
    """Answer one query: go down the levels until enough records are named.

    A record is hot in the round of its own level, unless an earlier round of the query has named it. So each record is
    hot in at most one round of a query. Where to stop depends on names alone, which are released.

    Args:
        budget: The budget of each record.
        stream: Where random bits come from.
        levels: The level of each record; 0 is the bottom, which has no round.
        used: The counters, changed in place.
        is_asked: Which records the query asks; a public choice. Others are neither hot nor named.
        rounds: The number of levels above the bottom.
        enough: How many names end the query.

    Returns:
        The level at which each record is named; 0 where it is not.
    """
    released = np.zeros(len(levels), dtype=np.int64)
    for level in range(rounds, 0, -1):
        is_left = is_asked & (released == 0)
        is_named = budget.draw_round(stream, is_left & (levels == level), used)
        released[is_left & is_named] = level
        if np.count_nonzero(released) >= enough:
            break
    return released
