"""What the indexes of one search spent together, where no ledger keeps the total.

Each new index releases every record that stayed once more, and the noise of many indexes averages out.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoreshield import _validation
from scoreshield.errors import BudgetExceeded, InvalidInput
from scoreshield.privacy.filters import PrivacyFilter
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import Profile

#: The privacy profile of each index that was counted, by a random name. Two counts that share indexes are joined
#: without losing one or counting one twice.
Charges = Mapping[str, Profile]


class Total:
    """The indexes that were counted, and the most that they may spend together at one delta."""

    def __init__(self, epsilon: float, delta: float, charged: Charges) -> None:
        self.limit, self.delta = epsilon, delta
        self.charged = dict(charged)

    @property
    def spent(self) -> float:
        """The epsilon of all of them together, at the total's delta."""
        return self._filter().spent

    def with_one_more(self, guarantee: Guarantee) -> dict[str, Profile]:
        """What is counted once this index is too. Research mode is not private, and is not counted."""
        return self.charged | charge(guarantee, secrets.token_hex(8))

    def join(self, charged: Charges) -> None:
        """Take in what another process has counted in the same file."""
        self.charged |= charged

    def check(self, guarantee: Guarantee, counted_in: Path | None) -> None:
        """Raise BudgetExceeded where one more does not fit; the first one always does."""
        budget = self._filter()
        if guarantee.sampler == "research" or not self.charged or budget.would_fit(guarantee):
            return
        asked, spent = budget.asked(guarantee), budget.spent
        counted = "" if counted_in is None else f", by the indexes that are counted in {counted_in}"
        raise BudgetExceeded(
            f"A new index releases every record that stayed again: it costs epsilon {asked:.6g}, and {spent:.6g} of "
            f"{self.limit:.6g} is spent at delta {self.delta:g}{counted}. Give a ledger, which keeps the total, or "
            "allow more with 'max_epsilon'.",
            spent=spent,
            asked=asked,
            limit=self.limit,
        )

    def _filter(self) -> PrivacyFilter:
        return PrivacyFilter.of(self.limit, self.delta, Counter(self.charged.values()))


def charge(guarantee: Guarantee, name: str) -> dict[str, Profile]:
    """The count of one index."""
    return {} if guarantee.sampler == "research" else {name: guarantee.profile}


def check_limit(max_epsilon: Any, epsilon: float, mode: str, ledger: Any) -> float:
    """The most that the indexes of a search may spend together: one index, unless more is allowed."""
    if max_epsilon is None:
        return epsilon
    if mode != "index" or ledger is not None:
        raise InvalidInput("'max_epsilon' is for an index without a ledger: a ledger has a limit of its own.")
    limit = _validation.check_real(max_epsilon, "max_epsilon")
    if not epsilon <= limit <= 1e9:
        _validation.reject("max_epsilon", f"at least epsilon, {epsilon:g}, and at most 1e9", max_epsilon)
    return limit
