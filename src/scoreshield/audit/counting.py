"""A bound from outputs that are all there: rules that are fixed beforehand and counted on most of them at once.

Bets may stop at any time, and that has a cost. Where a number of outputs is given beforehand, fixed rules can be
counted instead. A rule guesses the side of an output, or abstains. If the release is ε-private and a fair coin chose
each side, every guess is right with a chance of at most e^ε/(1 + e^ε), whatever the others are. So the number of right
guesses bounds ε, exactly (`scoreshield.audit.bounds.one_run_epsilon`, which also takes a delta).

The rules guess at both ends of a statistic, or at one of them. Where the ends begin is taken from all outputs without
their sides, so that it costs nothing. The rules share the error. Outputs of one number are their own statistic; for
others, a part of the outputs chooses one and is not counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.betting import Hypotheses
from scoreshield.audit.bounds import one_run_epsilon
from scoreshield.audit.learning import OutputHistory, learn_accounts

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: The share of the outputs that chooses a statistic, and the fewest that do.
_TEACHING, _FEWEST = 0.12, 120
#: Shares of outputs at each end of a statistic that rules guess on.
_TAILS = (0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.06, 0.03, 0.01)


def bound_by_counting(
    rows: Float, sides: Flags, is_number: Flags, hypotheses: Hypotheses, delta: float, error: float, seed: int
) -> float:
    """Bound epsilon by the guesses of fixed rules.

    Args:
        rows: Outputs in a random order, whose sides were chosen by fair coins.
        sides: True where the first collection made the output.
        is_number: For each column, whether it holds numbers and no tokens.
        hypotheses: What the statistics are compared by.
        delta: The delta that the bound is for.
        error: The probability with which the bound may exceed the truth.
        seed: The seed of the classifier.

    Returns:
        The bound, 0 where nothing differs.
    """
    if int(is_number.sum()) == 1:
        values, is_oriented = rows[:, is_number][:, 0], False
    else:
        teaching = max(_FEWEST, int(_TEACHING * len(rows)))
        history = OutputHistory(is_number)
        history.add(rows[:teaching], sides[:teaching])
        accounts = learn_accounts(history, hypotheses, seed=seed)
        if not accounts or teaching >= len(rows):
            return 0.0
        best = max(accounts, key=lambda account: float(account.stakes.expected.sum()))
        rows, sides = rows[teaching:], sides[teaching:]
        values, is_oriented = best.statistic(rows), True
    rules = _list_rules(values, is_oriented)
    share = 1 - error / max(1, len(rules))
    return max((_bound(guesses, sides, delta, share) for guesses in rules), default=0.0)


def _list_rules(values: Float, is_oriented: bool) -> list[NDArray[np.int8]]:
    """List different rules: for each output 1 to guess the first side, -1 to guess the second, 0 to abstain."""
    rules: dict[bytes, NDArray[np.int8]] = {}
    for share in _TAILS:
        low, high = np.quantile(values, [share, 1 - share], method="inverted_cdf")
        top, bottom = values >= high, values <= low
        if share == 0.5 or low >= high:
            top, bottom = values > low, values <= low
        top, bottom = top.astype(np.int8), bottom.astype(np.int8)
        for rule in (top - bottom, top, -bottom):
            for sign in (1,) if is_oriented else (1, -1):
                guesses = (sign * rule).astype(np.int8)
                if guesses.any():
                    rules.setdefault(guesses.tobytes(), guesses)
    return list(rules.values())


def _bound(guesses: NDArray[np.int8], sides: Flags, delta: float, confidence: float) -> float:
    correct = int(((guesses > 0) & sides).sum() + ((guesses < 0) & ~sides).sum())
    return one_run_epsilon(int((guesses != 0).sum()), correct, delta, confidence, len(guesses))
