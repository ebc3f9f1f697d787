"""Sentences about a ranking of mechanisms, for answers, tables and pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scoreshield._formatting import format_number, format_rate

if TYPE_CHECKING:
    from scoreshield.plan.candidates import Candidate
    from scoreshield.plan.choice import Choice
    from scoreshield.plan.targets import Goal


def format_utility(choice: Choice, candidate: Candidate) -> str:
    """Write the predicted utility of a mechanism, with the half width of its 90 % interval where one is known."""
    write = format_rate if choice.larger else format_number
    error = get_error(candidate)
    if math.isnan(error):
        return write(candidate.utility)
    if not choice.larger or candidate.utility < 1e-4:
        return f"{write(candidate.utility)} ± {write(float(f'{error:.2g}'))}"
    digits = max(0, min(4, 1 - math.floor(math.log10(100 * max(error, 1e-6)))))
    return f"{100 * candidate.utility:.{digits}f} ± {100 * error:.{digits}f} %"


def get_error(candidate: Candidate) -> float:
    """Return the half width of the 90 % interval of a prediction; NaN where none is known."""
    return candidate.error if candidate.error > 0 else math.nan


def state_best(choice: Choice) -> str:
    """Write which mechanism does best under the contract."""
    best = choice.chosen
    return (
        f"With {choice.contract.stated}, {best.mechanism} is predicted to do best: {format_utility(choice, best)} "
        f"({choice.metric})."
    )


def state_floor(goal: Goal) -> str:
    """Write below which epsilon no mechanism meets a target."""
    return f"Below epsilon {goal.floor:.3g} no mechanism at all reaches the {format_rate(goal.target)} asked for."


def state_least(choice: Choice) -> str:
    """Write which mechanism needs the least epsilon, where the contract was found by a search for it."""
    best, epsilon = choice.chosen, format_number(choice.contract.epsilon)
    return (
        f"The least epsilon that meets the need is {epsilon}, with {best.mechanism}: {format_utility(choice, best)} "
        f"({choice.metric})."
    )


def answer_need(choice: Choice, goal: Goal | None, *, is_searched: bool) -> str:
    """Write the answer to a need without its caution: what is impossible, what is best, whether the target is met."""
    if is_searched and goal is not None:
        return f"{state_floor(goal)} {state_least(choice)}"
    answer = choice.answer.removesuffix(choice.caution).strip()
    return answer if goal is None else f"{answer} {goal.sentence}"
