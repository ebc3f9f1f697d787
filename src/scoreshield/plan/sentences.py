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
    return f"{100 * candidate.utility:.{digits}f} ± {100 * error:.{digits}f} %"


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
    verb = describe_rate(choice)[0] + ("" if is_plural else "s")
    kept = f"{'they' if is_plural else 'it'} {verb} {format_utility(choice, best)} {describe_rate(choice)[1]}"
    if top.utility <= best.utility or format_rate(top.utility) == format_rate(best.utility):
        return f"{opening} predicted to do best: {kept}."
    return (
        f"{opening} recommended: {kept}, within one point of the best ({format_rate(top.utility)}), and a shift of the "
        f"scores harms {'them' if is_plural else 'it'} least."
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
        sentences = [floor or state_floor(goal), state_least(choice)]
    else:
        first, after = (floor, "") if floor else (choice.impossible, "")
        if not floor and choice.bound >= CERTAIN:
            first, after = "", choice.impossible
        sentences = [first, state_best(choice), "" if goal is None else goal.sentence, after]
    return " ".join(part for part in (*sentences, state_attack(choice), choice.advice) if part)
