"""What one fixed test gives on fresh outputs: counts, and what they say about epsilon and the claimed curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit import bounds
from scoreshield.audit.claim import Claim
from scoreshield.audit.statistics import Statistic

Float = NDArray[np.float64]

#: Outputs on each side that statistics are compared on, at most.
_RANKED = 50_000


@dataclass(frozen=True)
class Evidence:
    """What one fixed test gave on fresh outputs: its scores, and the bound at its share of the confidence.

    Attributes
    ----------
    inside, outside : the scores on the two sides.
    cuts : the thresholds, fixed beforehand.
    confidence : of what is said at each of them.
    """

    statistic: Statistic
    inside: Float
    outside: Float
    cuts: tuple[float, ...]
    confidence: float

    def bound(self, claim: Claim, rows: int | None = None) -> float:
        return max(
            (bounds.epsilon_lower(*self._counts(cut, rows), claim.delta, self.confidence) for cut in self.cuts),
            default=0.0,
        )

    def excess(self, claim: Claim) -> tuple[float, float, float]:
        """The largest distance above the claimed curve, with the rates where it is: (excess, fpr, tpr), bounded."""
        found = []
        for cut in self.cuts:
            counts = self._counts(cut, None)
            error = (1 - self.confidence) / 2
            low = bounds.clopper_pearson(counts[0], counts[1], 1 - error, side="lower")[0]
            high = bounds.clopper_pearson(counts[2], counts[3], 1 - error, side="upper")[1]
            found.append((bounds.curve_excess(*counts, claim.tpr_at, self.confidence), high, low))
        return max(found)

    def could_break(self, claim: Claim) -> bool:
        """Whether so many outputs break the claim if the test is never wrong."""
        return breaks(claim, min(len(self.inside), len(self.outside)), self.confidence)

    def _counts(self, cut: float, rows: int | None) -> tuple[int, int, int, int]:
        inside, outside = self.inside[:rows], self.outside[:rows]
        return int((inside >= cut).sum()), len(inside), int((outside >= cut).sum()), len(outside)


def breaks(claim: Claim, outputs: int, confidence: float) -> bool:
    """Whether a test that is never wrong breaks the claim with so many fresh outputs on each side."""
    return float(bounds.curve_excess(outputs, outputs, 0, outputs, claim.tpr_at, confidence)) > 0


def fixed(
    choices: Sequence[Statistic | None],
    choose: tuple[Float, Float],
    fresh: tuple[Float, Float],
    claim: Claim,
    error: float,
) -> Evidence | None:
    """The most telling of the statistics, its thresholds fixed on the outputs for choosing, applied to fresh ones."""
    present = [statistic for statistic in choices if statistic is not None]
    if not present:
        return None
    few = choose[0][:_RANKED], choose[1][:_RANKED]
    # max keeps the first of equals, so the order of the candidates decides between them.
    statistic = (
        present[0] if len(present) == 1 else max(present, key=lambda s: _cuts(s(few[0]), s(few[1]), claim, error)[0])
    )
    cuts = _cuts(statistic(choose[0]), statistic(choose[1]), claim, error)[1]
    return counted(statistic, fresh, cuts, error)


def counted(statistic: Statistic, fresh: tuple[Float, Float], cuts: tuple[float, ...], error: float) -> Evidence:
    """A statistic with its thresholds, all fixed before, applied to fresh outputs; the thresholds share the error."""
    return Evidence(statistic, statistic(fresh[0]), statistic(fresh[1]), cuts, 1 - error / len(cuts))


def _cuts(inside: Float, outside: Float, claim: Claim, error: float) -> tuple[float, tuple[float, ...]]:
    """How near the statistic comes to breaking the claim, and the thresholds at which it comes nearest.

    One threshold makes the bound on epsilon largest. Where a whole curve is claimed, another one lies farthest above
    it, in units of what chance could do.
    """
    pooled = np.concatenate([inside, outside])
    tails = np.geomspace(1 / len(pooled), 0.5, 100)
    levels = np.unique(np.concatenate([tails, 1 - tails, np.linspace(0, 1, 101)]))
    cuts = np.unique(np.quantile(pooled, levels, method="lower"))
    hits = [len(side) - np.searchsorted(np.sort(side), cuts, "left") for side in (inside, outside)]
    totals = [np.full(len(cuts), len(side)) for side in (inside, outside)]
    epsilons = bounds.epsilon_lower(hits[0], totals[0], hits[1], totals[1], claim.delta, 1 - error)
    if not np.any(epsilons > 0):  # too little to bound anything yet: the likeliest place
        epsilons = bounds.epsilon_lower(hits[0], totals[0], hits[1], totals[1], claim.delta, 0.5)
    place = int(np.argmax(epsilons))
    value = float(epsilons[place]) / max(claim.epsilon, 1e-9)
    if claim.profile is None:
        return value, (_between(pooled, cuts[place]),)
    low = bounds.clopper_pearson(hits[0], totals[0], 1 - error / 2, side="lower")[0]
    high = bounds.clopper_pearson(hits[1], totals[1], 1 - error / 2, side="upper")[1]
    tpr, fpr = hits[0] / totals[0], hits[1] / totals[1]
    above = tpr - claim.tpr_at(fpr)
    chance = (tpr - low) + (claim.tpr_at(high) - claim.tpr_at(fpr))
    ratios = above / np.maximum(chance, 1e-12)
    other = int(np.argmax(ratios))
    return max(value, float(ratios[other])), tuple({_between(pooled, cuts[place]), _between(pooled, cuts[other])})


def _between(values: Float, cut: float) -> float:
    """Half-way from the next smaller value to the cut, so that no rounding puts fresh outputs on the wrong side."""
    smaller = values[values < cut]
    return float(smaller.max() / 2 + cut / 2) if len(smaller) else float(np.nextafter(cut, -np.inf))
