"""Sentences about a ranking of mechanisms, for answers, tables and pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scoreshield._formatting import format_advantage, format_number, format_rate

if TYPE_CHECKING:
    from scoreshield.plan.candidates import Candidate
    from scoreshield.plan.choice import Choice
    from scoreshield.plan.targets import Goal

#: A bound on every mechanism above this rate says nothing.
CERTAIN = 0.9995
#: A rate with at most so many times the odds of chance is close to it.
_CLOSE = 2.0
#: An interval of a false-match rate is stated from this ratio of its ends on: below about 1,200 impostors for 1 %.
_ROUGH = 2.5
#: Names of mechanisms that need an article, or more words, in a sentence.
_PHRASES = {
    "gaussian": "Gaussian noise",
    "laplace": "Laplace noise",
    "staircase": "staircase noise",
    "optimal": "an optimal level table",
    "accept bit": "an accept bit",
    "gaussian bit": "a Gaussian bit",
    "privunit index": "a PrivUnit index",
    "privunit index with a private center": "a PrivUnit index with a private center",
    "gaussian index": "a Gaussian index",
    "gaussian Gram matrix": "a Gaussian Gram matrix",
    "codebook index": "a codebook index",
    "batch": "a batch",
    "hit budget": "a hit budget",
    "histogram, geometric": "a geometric histogram",
    "histogram, gaussian": "a Gaussian histogram",
}


def format_utility(choice: Choice, candidate: Candidate) -> str:
    """Write the predicted utility of a mechanism, with the half width of its 90 % interval where one is known."""
    write = format_rate if choice.larger else format_number
    error = get_error(candidate)
    if math.isnan(error):
        return write(candidate.utility)
    if not choice.larger:
        return f"{write(candidate.utility)} ± {write(float(f'{error:.2g}'))}"
    digits = max(0, min(4, 1 - math.floor(math.log10(100 * max(error, 1e-6)))))
    if is_cut(candidate):
        low, high = (f"{100 * end:.{digits}f}" if 0 < end < 1 else f"{100 * end:g}" for end in find_interval(candidate))
        return f"{100 * candidate.utility:.{digits}f} % (between {low} and {high} %)"
    return f"{100 * candidate.utility:.{digits}f} ± {100 * error:.{digits}f} %"


def find_interval(candidate: Candidate) -> tuple[float, float]:
    """Find the 90 % interval of a predicted rate, which ends at 0 and 1."""
    return max(candidate.utility - candidate.error, 0.0), min(candidate.utility + candidate.error, 1.0)


def is_cut(candidate: Candidate) -> bool:
    """Whether 0 or 1 cuts the interval of a predicted rate, so that one number does not state it."""
    return not candidate.error <= candidate.utility <= 1 - candidate.error


def get_error(candidate: Candidate) -> float:
    """Return the half width of the 90 % interval of a prediction; NaN where none is known."""
    return candidate.error if candidate.error > 0 else math.nan


def name_mechanism(mechanism: str) -> str:
    """Write the name of a mechanism as a sentence has it, with its article."""
    name, comma, rest = mechanism.partition(", query by query")
    return _PHRASES.get(name, name) + comma + rest


def state_best(choice: Choice) -> str:
    """Write which mechanism to use under the contract, and why where another is predicted to do a little better."""
    best, top = choice.chosen, max(choice.candidates, key=lambda one: one.utility if choice.larger else -one.utility)
    name, is_plural = name_mechanism(best.mechanism), best.mechanism.startswith("anchored windows")
    opening = f"With {choice.contract.stated}, {name} {'are' if is_plural else 'is'}"
    if not choice.larger:
        return f"{opening} predicted to do best: {format_utility(choice, best)} ({choice.metric})."
    if choice.is_chance:
        return (
            f"With {choice.contract.stated}, no mechanism is predicted to do better than chance, which "
            f"{describe_rate(choice)[0]}s {format_rate(choice.chance)} {describe_rate(choice)[1]}: scores without "
            f"noise do not either. The best prediction is that of {name}, {format_utility(choice, best)}."
        )
    verb = describe_rate(choice)[0] + ("" if is_plural else "s")
    kept = f"{'they' if is_plural else 'it'} {verb} {format_utility(choice, best)} {describe_rate(choice)[1]}"
    if top.utility <= best.utility or format_rate(top.utility) == format_rate(best.utility):
        return f"{opening} predicted to do best: {kept}.{_state_chance(choice)}"
    return (
        f"{opening} recommended: {kept}, within one point of the best ({format_rate(top.utility)}), and a shift of the "
        f"scores harms {'them' if is_plural else 'it'} least.{_state_chance(choice)}"
    )


def _state_chance(choice: Choice) -> str:
    """Write what chance reaches where the best mechanism is close to it: at most twice its odds."""
    utility, chance = choice.chosen.utility, choice.chance
    if utility * (1 - chance) > _CLOSE * chance * (1 - utility):
        return ""
    return f" Chance {describe_rate(choice)[0]}s {format_rate(chance)}."


def state_false_matches(choice: Choice) -> str:
    """Write between which ends the false-match rate lies, where few impostor scores set the threshold."""
    ends = choice.chosen.false_matches
    if ends is None or ends[1] <= _ROUGH * ends[0]:
        return ""
    return (
        "Few impostor scores set the threshold: nine times in ten the false-match rate of other impostors lies between "
        f"{100 * ends[0]:.2g} and {100 * ends[1]:.2g} %."
    )


def describe_rate(choice: Choice) -> tuple[str, str]:
    """Return the verb and the object of a sentence about a rate: "find" so much "of the relevant records ..."."""
    if choice.metric.startswith("recall "):
        return "find", f"of the relevant records {choice.metric.removeprefix('recall ')}"
    return "keep", f"of {choice.metric}"


def state_attack(choice: Choice) -> str:
    """Write what the recommended mechanism leaves to an attacker."""
    return (
        "The best membership test still has an advantage of "
        f"{format_advantage(choice.chosen.advantage)} against one release of it (0 % is guessing)."
    )


def state_floor(goal: Goal) -> str:
    """Write below which epsilon no mechanism meets a target."""
    return f"Below epsilon {goal.floor:.3g} no mechanism reaches the {format_rate(goal.target)} asked for."


def state_least(choice: Choice) -> str:
    """Write which mechanism needs the least epsilon, where the contract was found by a search for it."""
    best, epsilon = choice.chosen, format_number(choice.contract.epsilon)
    return (
        f"The least epsilon that meets the need is {epsilon}, with {name_mechanism(best.mechanism)}: "
        f"{format_utility(choice, best)} ({choice.metric})."
    )


def answer_need(choice: Choice, goal: Goal | None, *, is_searched: bool, floor: str = "") -> str:
    """Write the answer to a need without its caution.

    A bound on every mechanism comes first. The epsilon below which no mechanism does as well follows the figure that it
    is about.

    Args:
        choice: The ranking.
        goal: Whether the best mechanism meets a target.
        is_searched: Whether the contract is the least epsilon that meets the target.
        floor: What no mechanism reaches, in place of the ranking's own sentence.
    """
    if is_searched and goal is not None:
        sentences = [floor or state_floor(goal), state_least(choice), state_false_matches(choice)]
    else:
        first, after = (floor, "") if floor else (choice.impossible, "")
        if not floor and choice.bound >= CERTAIN:
            first, after = "", choice.impossible
        verdict = "" if goal is None else goal.sentence
        sentences = [first, state_best(choice), verdict, state_false_matches(choice), after]
    return " ".join(part for part in (*sentences, state_attack(choice), choice.advice) if part)
