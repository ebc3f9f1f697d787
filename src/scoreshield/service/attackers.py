"""What the best attacker finds out about one record: from one answer, from all charges, and from a whole budget."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from scoreshield._formatting import format_bound
from scoreshield.privacy.certificate import format_ceiling
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.verdicts import FALSE_ALARMS, choose_verdict, format_right_guesses


class AttackerRates(NamedTuple):
    """What the best attacker achieves against one record, at most, as texts in percent.

    Attributes:
        right: How often the attacker is right between two candidates for one record; 50 % is a coin toss.
        detected: The share of changes of one record that are detected at 1 % false alarms.
        verdict: The word for both.
    """

    right: str
    detected: str
    verdict: str

    @property
    def sentence(self) -> str:
        """The verdict and its reason, in the words of certificates."""
        return (
            f"{self.verdict.capitalize()}. An attacker who knows everything else and must choose between two "
            f"candidates for one record is right at most {self.right} of the time (50 % is a coin toss)."
        )


def describe_rates(guarantee: Guarantee) -> AttackerRates:
    """Describe what one release lets the best attacker find out about one record."""
    profile = guarantee.record_profile()
    return _write_rates(profile.advantage, float(profile.tpr_at(FALSE_ALARMS)))


def bound_rates(epsilon: float, delta: float) -> AttackerRates:
    """Bound what all releases together let the best attacker find out, from their total epsilon and delta alone.

    The bounds are those of the region of Kairouz, Oh and Viswanath (2015) for (epsilon, delta).
    """
    if epsilon == 0 and delta == 0:
        return _write_rates(0.0, FALSE_ALARMS)
    factor = math.exp(-epsilon)
    advantage = (1 - factor + 2 * delta * factor) / (1 + factor)
    steep = math.exp(min(epsilon, 50.0)) * FALSE_ALARMS + delta
    return _write_rates(min(1.0, advantage), min(1.0, steep, 1 - factor * (1 - delta - FALSE_ALARMS)))


def _write_rates(advantage: float, detected: float) -> AttackerRates:
    share = format_ceiling(100 * detected, 2).replace("100.00", "100")
    return AttackerRates(format_right_guesses(advantage), f"{share} %", choose_verdict(advantage, detected))


def describe_charges(name: str, ledger: Ledger, offered: Guarantee, head: str) -> dict[str, Any]:
    """Write the certificate of all charges of a collection, as the ledger composes them.

    Args:
        name: The collection.
        ledger: Its ledger.
        offered: The guarantee of one answer of the collection, which says what a neighbour is.
        head: The head of its chain. It was read before, so that the epsilon covers all entries up to it.
    """
    spent = ledger.spent_on(name)
    delta = ledger.delta if spent else 0.0
    rates = bound_rates(spent, delta)
    charges = int(head.partition(":")[0])
    lines = [
        f"Certificate of all charges of collection {name}",
        f"Charges: {charges:,}, up to the head {head}",
        f"Promise: all answers together are ({format_bound(spent)}, {format_bound(delta)})-differentially private.",
        f"Protects: whether {offered.adjacency.describe()}. One record is what one place of the collection held in "
        "all versions of the data.",
        f"Verdict: {rates.sentence}",
        f"At 1 % false alarms this attacker detects at most {rates.detected} of the changes of one record.",
        f"Budget: epsilon {ledger.epsilon:g} at delta {ledger.delta:g}. It can never be exceeded.",
    ]
    return {
        "head": head,
        "charges": charges,
        "certificate": "\n".join(lines) + "\n",
        "guarantee": {
            "epsilon": spent,
            "delta": delta,
            "adjacency": offered.adjacency.drop_labels().to_dict(),
            "verdict": rates.verdict,
        },
        "budget": {"epsilon": ledger.epsilon, "delta": ledger.delta},
    }
