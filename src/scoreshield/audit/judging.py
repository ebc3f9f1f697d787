"""From outputs on two sides to a result: fit a test, fix it, count it on fresh outputs, and say what that shows.

A quarter of the outputs fits the statistics of `statistics`, a quarter chooses among them and sets thresholds, and the
other half, which nothing has seen, is counted. The error that the confidence leaves is shared: half for that test, an
eighth each for the low-bit, noiseless, repeated-output and noise-scale checks, so that the bound and all checks hold
together. The intervals of the area and the true-positive rate are beside that, each at the stated confidence by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit import bounds, checks, repeats
from scoreshield.audit.claim import Claim
from scoreshield.audit.directions import linear, most_entries, noiseless
from scoreshield.audit.evidence import Evidence, counted, fixed
from scoreshield.audit.power import least_found
from scoreshield.audit.result import BINS, POINTS, AuditResult, Check
from scoreshield.audit.statistics import Setting, candidates, low_bits

Float = NDArray[np.float64]

#: The share of the error that the main test takes, and each of the four checks beside it.
MAIN, BESIDE = 1 / 2, 1 / 8


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
    probe: Callable[[], Float] | None = None,
) -> AuditResult:
    """Fit on a quarter, choose on a quarter, bound on a half, and put the result together."""
    checks.require_random(first, second, claim, probe)
    quarter, half = len(first) // 4, len(first) // 2
    fit = first[:quarter], second[:quarter]
    choose = first[quarter:half], second[quarter:half]
    fresh = first[half:], second[half:]
    error = 1 - confidence
    main = fixed(candidates(statistic, *fit, setting), choose, fresh, claim, error * MAIN)
    bits = fixed([low_bits(*fit)], choose, fresh, claim, error * BESIDE)
    silent = fixed([noiseless(*fit)], choose, fresh, claim, error * BESIDE)
    again = counted(repeats.seen(first[:half], second[:half]), fresh, repeats.CUTS, error * BESIDE)
    found = _checks_of(main, bits, silent, again, claim, _searched(fit[0]))
    # All entries with Gaussian noise, however little each moves: what is stated to be detectable counts on them.
    known = getattr(setting.law, "name", "") == "gaussian"
    noisy = setting.covered if known else None
    direction = linear(fit[0][:, :noisy], fit[1][:, :noisy])
    loss = 2 * len(direction.columns) / quarter if direction is not None else 0.0
    share = 1 - error * MAIN if main is None else main.confidence
    least, assuming = least_found(claim, len(fresh[0]), share, getattr(setting.law, "name", None), loss)
    scale = checks.noise_scale(direction, fresh, claim, error * BESIDE, loss, plain=known or setting.plain)
    if scale is not None:
        found.append(scale[0])
        least = min(least, scale[1])
    tests = [one for one in (main, bits, silent, again) if one is not None]
    best = max(tests, key=lambda one: one.bound(claim))
    if main is None and not best.bound(claim):  # the two sides never differ, in any entry
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
        assuming=assuming,
    )


class _Constant:
    """The statistic of outputs that never differ."""

    name = "none: no entry differs between the two collections"

    def __call__(self, outputs: Float) -> Float:
        return np.zeros(len(outputs))


def _searched(fit: Float) -> str:
    """Where directions without noise were looked for, if not everywhere."""
    entries, most = fit.shape[1], most_entries(len(fit))
    return "" if entries <= most else f" (looked for among {most:,} of {entries:,} entries, those that move most)"


def _checks_of(
    main: Evidence | None,
    bits: Evidence | None,
    silent: Evidence | None,
    again: Evidence,
    claim: Claim,
    searched: str,
) -> list[Check]:
    found = []
    if main is not None and claim.profile is not None:
        excess, fpr, tpr = main.excess(claim)
        found.append(Check("trade-off curve", excess <= 0, checks.above_curve(claim, fpr, tpr)))
    found.append(
        checks.bounded(
            "low bits",
            bits,
            claim,
            "the last bits of the outputs tell the collections apart",
            "the last bits of the outputs tell no more than is claimed"
            if bits is not None
            else "not tested: outputs are whole numbers, or all have the same last bit",
        )
    )
    found.append(
        checks.bounded(
            "noise in every direction",
            silent,
            claim,
            "a combination of outputs carries no noise and moves with the record",
            f"no combination of outputs moves without noise{searched}",
        )
    )
    found.append(
        checks.bounded(
            "fresh noise",
            again,
            claim,
            "outputs that one collection gave before come back on that one alone: the noise repeats, or is too little",
            "outputs that came before tell no more than is claimed",
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
