"""The verdict on a promise: one word from what the best attacker achieves against one record.

The limits are a convention of this package, no theorem. They are stated for the advantage of the best attacker and for
the share of changes that it detects at 1 % false alarms. Epsilon has no limit: mechanisms with the same epsilon let an
attacker achieve very different rates.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from scoreshield.privacy.profiles import Profile

VerdictWord = Literal["strong", "moderate", "weak", "hides practically nothing"]

#: The rate of false alarms at which detected changes are counted.
FALSE_ALARMS = 0.01


class VerdictLimit(NamedTuple):
    """One word, and the rates that both must stay below for it.

    Attributes:
        word: The word.
        advantage: The advantage of the best attacker: true-positive minus false-positive rate.
        tpr: The share of changes that the best attacker detects at 1 % false alarms.
    """

    word: VerdictWord
    advantage: float
    tpr: float


#: The best word first. A promise that meets none of these limits hides practically nothing.
LIMITS = (
    VerdictLimit("strong", 0.5, 0.05),
    VerdictLimit("moderate", 0.75, 0.20),
    VerdictLimit("weak", 0.9, 0.9),
)
LAST: VerdictWord = "hides practically nothing"


def choose_verdict(advantage: float, tpr: float) -> VerdictWord:
    """Choose the best word whose two limits hold.

    Args:
        advantage: The advantage of the best attacker.
        tpr: What the best attacker detects at 1 % false alarms.
    """
    return next((limit.word for limit in LIMITS if advantage < limit.advantage and tpr < limit.tpr), LAST)


def judge_profile(profile: Profile) -> VerdictWord:
    """Choose the word for a privacy profile."""
    return choose_verdict(profile.advantage, float(profile.tpr_at(FALSE_ALARMS)))


def bound_right_guesses(advantage: float) -> float:
    """Compute how often an attacker who must choose between two equally likely candidates is right, at most."""
    return (1 + advantage) / 2


def format_right_guesses(advantage: float) -> str:
    """Write that share in percent, rounded up, in enough digits that a share below one is not written as one."""
    share = bound_right_guesses(advantage)
    for digits in (1, 2, 3, 4):
        whole = 10 ** (digits + 2)
        units = math.ceil(whole * (share - 1e-9))  # the margin is for the rounding of the share
        if units < whole:
            return f"{100 * units / whole:.{digits}f} %"
    return "100 %"
