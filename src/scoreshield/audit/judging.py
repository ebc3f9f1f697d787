"""From outputs on two sides to a result: fit a test, fix it, count it on fresh outputs, and say what that shows.

A quarter of the outputs fits the statistics of `statistics`, a quarter chooses among them and sets thresholds, and the
other half, which nothing has seen, is counted. The error that the confidence leaves is shared: half for that test, a
sixth each for the low-bit, noiseless and noise-scale checks, so that all statements of a result hold together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit import bounds, checks
from scoreshield.audit.claim import Claim
from scoreshield.audit.result import BINS, POINTS, AuditResult, Check
from scoreshield.audit.statistics import Setting, Statistic, candidates, linear, low_bits, noiseless
from scoreshield.privacy.profile import GaussianProfile

Float = NDArray[np.float64]

#: The share of the error that the main test takes, and each of the three checks beside it.
MAIN, BESIDE = 1 / 2, 1 / 6
#: Outputs on each side that statistics are compared on, at most.
_RANKED = 50_000


@dataclass(frozen=True)
class Evidence:
    """What one fixed test gave on fresh outputs: its scores, and the bound at its share of the confidence."""

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

    def _counts(self, cut: float, rows: int | None) -> tuple[int, int, int, int]:
        inside, outside = self.inside[:rows], self.outside[:rows]
        return int((inside >= cut).sum()), len(inside), int((outside >= cut).sum()), len(outside)


def judged(
    first: Float,
    second: Float,
    claim: Claim,
    confidence: float,
    statistic: str,
    setting: Setting,
    name: str,
    neighbours: str,
    start: float,
) -> AuditResult:
    """Fit on a quarter, choose on a quarter, bound on a half, and put the result together."""
    checks.require_random(first, second, claim)
    quarter, half = len(first) // 4, len(first) // 2
    fit = first[:quarter], second[:quarter]
    choose = first[quarter:half], second[quarter:half]
    fresh = first[half:], second[half:]
    error = 1 - confidence
    main = fixed(candidates(statistic, *fit, setting), choose, fresh, claim, error * MAIN)
    bits = fixed([low_bits(*fit)], choose, fresh, claim, error * BESIDE)
    silent = fixed([noiseless(*fit)], choose, fresh, claim, error * BESIDE)
    found = _checks_of(main, bits, silent, claim)
    law = "gaussian" if isinstance(claim.profile, GaussianProfile) and claim.delta > 0 else "pure"
    share = 1 - error * MAIN if main is None else main.confidence
    least = bounds.detectable(len(fresh[0]), claim.delta, share, epsilon=claim.epsilon, law=law)
    # All entries with Gaussian noise, however little each moves: what is stated to be detectable counts on them.
    noisy = setting.covered if getattr(setting.law, "name", "") == "gaussian" else None
    direction = linear(fit[0][:, :noisy], fit[1][:, :noisy])
    loss = 2 * len(getattr(direction, "columns", ())) / quarter
    scale = checks.noise_scale(direction, fresh, claim, error * BESIDE, loss)
    if scale is not None:
        found.append(scale[0])
        least = min(least, scale[1])
    found.append(checks.fresh_noise((first, second)))
    best = max((one for one in (main, bits, silent) if one is not None), key=lambda one: one.bound(claim), default=None)
    if best is None:  # the two sides never differ, in any entry
        best = Evidence(_Constant(), np.zeros(len(fresh[0])), np.zeros(len(fresh[1])), (0.0,), confidence)
    edges, counts_in, counts_out = _histogram(best.inside, best.outside)
    fpr, tpr = bounds.tradeoff(best.inside, best.outside, points=POINTS)
    return AuditResult(
        name=name,
        claim=claim,
        releases=len(first),
        confidence=confidence,
        epsilon_lower=best.bound(claim),
        checks=tuple(found),
        auc=bounds.auc(best.inside, best.outside, confidence),
        tpr_at_1_percent=bounds.tpr_at(best.inside, best.outside, 0.01, confidence),
        fpr=fpr,
        tpr=tpr,
        edges=edges,
        counts_in=counts_in,
        counts_out=counts_out,
        trajectory=_trajectory(best, claim, half),
        detectable=least,
        statistic=best.statistic.name,
        neighbours=neighbours,
        seconds=time.perf_counter() - start,
    )


class _Constant:
    """The statistic of outputs that never differ."""

    name = "none: no entry differs between the two collections"

    def __call__(self, outputs: Float) -> Float:
        return np.zeros(len(outputs))


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
    return float((smaller.max() + cut) / 2) if len(smaller) else float(cut) - 1.0


def _checks_of(main: Evidence | None, bits: Evidence | None, silent: Evidence | None, claim: Claim) -> list[Check]:
    found = []
    if main is not None and claim.profile is not None:
        excess, fpr, tpr = main.excess(claim)
        detail = (
            f"at a false-positive rate of at most {fpr:.4g} the claim allows {claim.tpr_at(fpr):.4g} true positives, "
            f"and at least {tpr:.4g} were found"
        )
        found.append(Check("trade-off curve", excess <= 0, detail))
    found.append(
        checks.bounded(
            "low bits",
            0.0 if bits is None else bits.bound(claim),
            claim,
            "the last bits of the outputs tell the collections apart",
            "the last bits of the outputs tell no more than is claimed",
        )
    )
    found.append(
        checks.bounded(
            "noise in every direction",
            0.0 if silent is None else silent.bound(claim),
            claim,
            "a combination of outputs carries no noise and moves with the record",
            "no combination of outputs moves without noise",
        )
    )
    return found


def _trajectory(evidence: Evidence, claim: Claim, before: int) -> tuple[tuple[int, float], ...]:
    """The bound after so many releases in all, at about doubling numbers of fresh ones."""
    last = len(evidence.inside)
    steps = np.unique(np.rint(np.geomspace(min(10, last), last, 12)).astype(int))
    return tuple((before + int(step), evidence.bound(claim, int(step))) for step in steps)


def _histogram(inside: Float, outside: Float) -> tuple[Float, Float, Float]:
    """Counts on both sides over the middle 99.8 %, with what lies beyond in the end bins."""
    pooled = np.concatenate([inside, outside])
    low, high = np.quantile(pooled, [0.001, 0.999])
    if not low < high:
        low, high = pooled.min(), pooled.max()
    if not low < high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts = [np.histogram(np.clip(side, low, high), edges)[0].astype(np.float64) for side in (inside, outside)]
    return edges, counts[0], counts[1]
