"""Targets of a ranking: whether the best mechanism meets one, what no mechanism reaches, and the least epsilon for it.

Two inequalities hold for every (epsilon, delta)-private mechanism. A matcher that accepts an impostor with probability
f accepts a genuine pair with probability at most e^ε f + δ, and at most 1 - (1 - f - δ) e^-ε. The same holds for a
search that returns k of n records on average and the relevant one with some probability, where f = k/n. An attack bound
limits these rates too (`Contract.bound_rate`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scoreshield._formatting import format_rate, format_rate_pair
from scoreshield.decisions.scores import Scores
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import as_plain_value
from scoreshield.plan.choice import Choice
from scoreshield.plan.contracts import Contract, bound_by_epsilon, round_budget_up
from scoreshield.plan.sentences import get_error
from scoreshield.privacy.levels.bits import find_accept_epsilon

#: The search for the least epsilon of a ranking ends where epsilon is known to this share, or the utility to _SLACK.
_PRECISION = 0.01
_SLACK = 0.005
#: How far above the floor of every mechanism the search begins, and how it steps until the target is bracketed.
_USUAL_EXCESS = 1.5
_USUAL_SLOPE = 5.0
#: Mechanisms are ranked up to this epsilon, whose exponential is a double.
LARGEST_EPSILON = 700.0


@dataclass(frozen=True)
class Goal:
    """Whether the best mechanism meets a target.

    Attributes:
        target: The target.
        is_met: Whether the predicted utility of the best mechanism reaches it.
        bound: What no mechanism exceeds under the contract.
        clean: What scores without noise reach.
        floor: Below this epsilon no mechanism reaches the target.
        sentence: The verdict, and what to change where the target is missed.
    """

    target: float
    is_met: bool
    bound: float
    clean: float
    floor: float
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {name: as_plain_value(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Target(ABC):
    """A rate that a release must reach, and how to rank the mechanisms for it at an epsilon.

    Attributes:
        value: The rate.
        clean: What scores without noise reach.
        delta: The delta of the contract.
        choose: A function from epsilon to the ranking.

    Raises:
        InvalidInput: Chance reaches the target.
    """

    value: float
    clean: float
    delta: float
    choose: Callable[[float], Choice]

    name = "rate"
    option = "target"
    remedy = ""

    @property
    @abstractmethod
    def chance(self) -> float:
        """What a release of nothing reaches."""

    def bound(self, epsilon: float, delta: float) -> float:
        """Compute what no (epsilon, delta)-private mechanism exceeds."""
        return bound_by_epsilon(self.chance, epsilon, delta)

    def find_floor(self) -> float:
        """Find the epsilon below which no mechanism reaches the target."""
        grown = math.log(max((self.value - self.delta) / self.chance, 1.0))
        return max(grown, math.log(max((1 - self.chance - self.delta) / (1 - self.value), 1.0)))

    def __post_init__(self) -> None:
        if self.value <= self.chance:
            raise InvalidInput(
                f"A {self.name} of {format_rate(self.value)} says nothing: chance alone reaches "
                f"{format_rate(self.chance)}. Raise {self.option}."
            )

    def check_clean(self) -> None:
        """Raise an error where scores without noise do not reach the target."""
        if self.value > self.clean:
            raise InvalidInput(f"No mechanism meets this need: {self._explain_clean()}.")

    def find_least(self) -> Choice:
        """Rank the mechanisms at the least epsilon at which the best of them reaches the target.

        The search ends where the utility exceeds the target by at most 0.005, or epsilon is known to one part in 100.
        Rankings take long, so each step is a secant: the log-odds of the utility are nearly a straight line in the
        logarithm of epsilon.
        """
        self.check_clean()
        floor, aim = max(self.find_floor(), 1e-3), _log_odds(self.value + _SLACK / 2)
        low, below, high, best = floor, math.nan, math.inf, None
        epsilon = floor + _USUAL_EXCESS
        while True:
            tried = self.choose(epsilon)
            reached = _log_odds(tried.chosen.utility)
            if tried.chosen.utility >= self.value:
                high, above, best = epsilon, reached, tried
            else:
                low, below = epsilon, reached
            if best is not None and (best.chosen.utility <= self.value + _SLACK or high <= low * (1 + _PRECISION)):
                return best
            if low >= LARGEST_EPSILON:
                raise InvalidInput(
                    f"No mechanism reaches a {self.name} of {format_rate(self.value)} below epsilon "
                    f"{LARGEST_EPSILON:g}: lower {self.option}."
                )
            if best is None or math.isnan(below):  # only one side is known, and the slope is a guess
                step = math.exp((aim - reached) / _USUAL_SLOPE)
                epsilon *= min(max(step, 1.05), 2.0) if best is None else max(min(step, 0.95), 0.5)
                epsilon = min(max(epsilon, floor), LARGEST_EPSILON)
            else:
                share = (aim - below) / (above - below) if above > below else 0.5
                epsilon = low * (high / low) ** min(max(share, 0.1), 0.9)

    def judge(self, choice: Choice) -> Goal:
        """Say whether the best mechanism of a ranking meets the target, and if not, what to change."""
        contract, best = choice.contract, choice.chosen
        bound = contract.bound_rate(self.chance)
        is_met = best.utility >= self.value
        target = format_rate_pair(best.utility, self.value)[1]
        if is_met:
            sentence = f"That meets the {target} asked for."
            if best.utility - get_error(best) < self.value:
                sentence = f"That meets the {target} asked for, by less than the error of the prediction."
        elif self.value > self.clean:
            sentence = f"That misses the {target} asked for, and no epsilon reaches it: {self._explain_clean()}."
        elif self.value > bound:
            most = format_rate_pair(bound, self.value)[0]
            remedy = self._list_needed_changes(contract)
            sentence = (
                f"No mechanism reaches the {target} asked for under this contract: the most is {most}. "
                f"{remedy[0].upper()}{remedy[1:]}, or lower {self.option}."
            )
        else:
            sentence = f"That misses the {target} asked for: {contract.remedy}, or lower {self.option}."
        return Goal(self.value, is_met, bound, self.clean, self.find_floor(), sentence)

    def _list_needed_changes(self, contract: Contract) -> str:
        """Write what a contract must allow before any mechanism can reach the target."""
        changes = []
        if contract.max_advantage is not None and self.value > self.chance + contract.max_advantage:
            changes.append(contract.ADVANTAGE_REMEDY)
        if contract.max_rates is not None:
            changes.append(contract.RATE_REMEDY)
        epsilon = contract.epsilon if contract.calibration != "attack" else contract.max_epsilon
        if epsilon is not None and self.value > self.bound(epsilon, contract.delta):
            changes.append(f"raise epsilon to {self.find_floor():.3g} or more")
        return " and ".join(changes)

    def _explain_clean(self) -> str:
        clean, target = format_rate_pair(self.clean, self.value)
        wanted = f"below the {target} asked for; lower {self.option}{self.remedy}"
        return f"without any noise the {self.name} is {clean}, {wanted}"


@dataclass(frozen=True)
class MatchTarget(Target):
    """A true-match rate at a false-match rate."""

    impostor: Scores
    genuine: Scores
    false_match_rate: float

    name = "true-match rate"
    option = "target_tar (--target-tar)"
    remedy = ", raise the false-match rate, or use a better model"

    @property
    def chance(self) -> float:
        return self.false_match_rate

    def find_least(self) -> Choice:
        """Rank the mechanisms at the least epsilon at which one accept bit reaches the target."""
        self.check_clean()
        least = find_accept_epsilon(
            self.value, impostor=self.impostor, genuine=self.genuine, false_match_rate=self.false_match_rate
        )
        if math.isinf(least):  # a sample shows a rate to one part in its size only
            raise InvalidInput(
                f"No mechanism reaches a {self.name} of {format_rate(self.value)} below epsilon {LARGEST_EPSILON:g}: "
                f"lower {self.option}{self.remedy}."
            )
        return self.choose(round_budget_up(least))  # a call states six digits


@dataclass(frozen=True)
class SearchTarget(Target):
    """A recall among the k best of n records."""

    records: int
    k: int

    name = "recall"
    option = "target_recall (--target-recall)"
    remedy = ", return more records, or use a better model"

    @property
    def chance(self) -> float:
        return self.k / self.records


def _log_odds(rate: float) -> float:
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    return math.log(rate / (1 - rate))
