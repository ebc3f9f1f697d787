"""From outputs on two sides to a result: fit a test, fix it, count it on fresh outputs, and state what that shows.

A quarter of the outputs fits the statistics of `scoreshield.audit.statistics`. A quarter chooses among them and
sets thresholds. The other half was not used before, and is counted. The error that the confidence leaves is shared:
half for the main test, and an eighth each for the checks of low bits, noiseless directions, repeated outputs and the
noise scale. So the bound and all checks hold together, and a check that fails by chance is as rare as a bound that
exceeds the truth. The intervals of the area and of the true-positive rate are apart from that: each has the stated
confidence by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from scoreshield.audit import bounds
from scoreshield.audit.claims import Claim
from scoreshield.audit.result import BINS, POINTS, AuditCheck, AuditResult, CheckName
from scoreshield.audit.statistics import (
    REPEAT_CUTS,
    OutputFacts,
    Statistic,
    StatisticName,
    WeightedSum,
    count_searchable_entries,
    fit_linear,
    fit_low_bits,
    fit_noiseless,
    fit_repeats,
    fit_statistics,
)
from scoreshield.decisions.confidence import count_hits
from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.privacy.profiles import GaussianProfile

Float = NDArray[np.float64]
#: Outputs of the two collections.
Sides = tuple[Float, Float]

#: The share of the error that the main test takes, and that of each of the four checks.
MAIN_SHARE, CHECK_SHARE = 1 / 2, 1 / 8
#: The most outputs on each side that statistics are compared on.
_RANKED = 50_000


# ---- One fixed test on fresh outputs.


@dataclass(frozen=True)
class Evidence:
    """The scores of one fixed test on fresh outputs, and what they show about epsilon and the claimed curve.

    Attributes:
        statistic: The test statistic.
        inside: Its scores on outputs of the first collection.
        outside: Its scores on outputs of the second collection.
        cuts: The thresholds, fixed beforehand.
        confidence: That of the statement at each threshold.
    """

    statistic: Statistic
    inside: Float
    outside: Float
    cuts: tuple[float, ...]
    confidence: float

    def bound_epsilon(self, claim: Claim, rows: int | None = None) -> float:
        """Bound epsilon from below, with the first `rows` outputs of each side or with all."""
        return max(
            (bounds.epsilon_lower(*self._count(cut, rows), claim.delta, self.confidence) for cut in self.cuts),
            default=0.0,
        )

    def measure_excess(self, claim: Claim) -> tuple[float, float, float]:
        """Measure the largest distance above the claimed curve.

        Returns:
            (excess, fpr, tpr): the distance, and the bounds on the rates at which it was found.
        """
        excesses = []
        for cut in self.cuts:
            counts = self._count(cut, None)
            error = (1 - self.confidence) / 2
            low = bounds.clopper_pearson(counts[0], counts[1], 1 - error, side="lower")[0]
            high = bounds.clopper_pearson(counts[2], counts[3], 1 - error, side="upper")[1]
            excesses.append((bounds.curve_excess(*counts, claim.tpr_at, self.confidence), high, low))
        return max(excesses)

    def can_break(self, claim: Claim) -> bool:
        """Whether this number of outputs breaks the claim if the test is never wrong."""
        return is_breakable(claim, min(len(self.inside), len(self.outside)), self.confidence)

    def _count(self, cut: float, rows: int | None) -> tuple[int, int, int, int]:
        inside, outside = self.inside[:rows], self.outside[:rows]
        return int((inside >= cut).sum()), len(inside), int((outside >= cut).sum()), len(outside)


def is_breakable(claim: Claim, outputs: int, confidence: float) -> bool:
    """Whether a test that is never wrong breaks the claim with this number of fresh outputs per side."""
    return float(bounds.curve_excess(outputs, outputs, 0, outputs, claim.tpr_at, confidence)) > 0


def apply_best_statistic(
    choices: Sequence[Statistic | None], choose: Sides, fresh: Sides, claim: Claim, error: float
) -> Evidence | None:
    """Choose a statistic and its thresholds on some outputs, and apply it to fresh ones.

    Args:
        choices: Fitted statistics; None stands for one that could not be fitted.
        choose: The outputs for choosing.
        fresh: Outputs that were not used before.
        claim: The claim that the statistic should contradict.
        error: The share of the error that the test takes.

    Returns:
        The evidence, or None where there is no statistic.
    """
    present = [statistic for statistic in choices if statistic is not None]
    if not present:
        return None
    few = choose[0][:_RANKED], choose[1][:_RANKED]
    # max returns the first of equals, so the order of the statistics decides between them.
    statistic = (
        present[0]
        if len(present) == 1
        else max(present, key=lambda s: _choose_cuts(s(few[0]), s(few[1]), claim, error)[0])
    )
    cuts = _choose_cuts(statistic(choose[0]), statistic(choose[1]), claim, error)[1]
    return apply_statistic(statistic, fresh, cuts, error)


def apply_statistic(statistic: Statistic, fresh: Sides, cuts: tuple[float, ...], error: float) -> Evidence:
    """Apply a statistic with fixed thresholds to fresh outputs. The thresholds share the error."""
    return Evidence(statistic, statistic(fresh[0]), statistic(fresh[1]), cuts, 1 - error / len(cuts))


def _choose_cuts(inside: Float, outside: Float, claim: Claim, error: float) -> tuple[float, tuple[float, ...]]:
    """Choose the thresholds at which a statistic comes nearest to breaking the claim.

    One threshold makes the bound on epsilon largest. Where a whole curve is claimed, another one has the largest excess
    over it, in units of what chance can do.

    Returns:
        How near the statistic comes, and the thresholds.
    """
    pooled = np.concatenate([inside, outside])
    tails = np.geomspace(1 / len(pooled), 0.5, 100)
    levels = np.unique(np.concatenate([tails, 1 - tails, np.linspace(0, 1, 101)]))
    cuts = np.unique(np.quantile(pooled, levels, method="lower"))
    hits = [count_hits(side, cuts) for side in (inside, outside)]
    totals = [np.full(len(cuts), len(side)) for side in (inside, outside)]
    epsilons = bounds.epsilon_lower(hits[0], totals[0], hits[1], totals[1], claim.delta, 1 - error)
    if not np.any(epsilons > 0):  # too few outputs for a bound: take the likeliest threshold
        epsilons = bounds.epsilon_lower(hits[0], totals[0], hits[1], totals[1], claim.delta, 0.5)
    place = int(np.argmax(epsilons))
    value = float(epsilons[place]) / max(claim.epsilon, 1e-9)
    if claim.profile is None:
        return value, (_move_between(pooled, cuts[place]),)
    low = bounds.clopper_pearson(hits[0], totals[0], 1 - error / 2, side="lower")[0]
    high = bounds.clopper_pearson(hits[1], totals[1], 1 - error / 2, side="upper")[1]
    tpr, fpr = hits[0] / totals[0], hits[1] / totals[1]
    above = tpr - claim.tpr_at(fpr)
    chance = (tpr - low) + (claim.tpr_at(high) - claim.tpr_at(fpr))
    ratios = above / np.maximum(chance, 1e-12)
    other = int(np.argmax(ratios))
    both = tuple({_move_between(pooled, cuts[place]), _move_between(pooled, cuts[other])})
    return max(value, float(ratios[other])), both


def _move_between(values: Float, cut: float) -> float:
    """Move a cut half-way to the next smaller value, so that rounding puts no fresh output on the wrong side."""
    smaller = values[values < cut]
    return float(smaller.max() / 2 + cut / 2) if len(smaller) else float(np.nextafter(cut, -np.inf))


# ---- Checks.


def require_randomness(first: Float, second: Float, claim: Claim, probe: Callable[[], Float] | None = None) -> None:
    """Reject a release that gives the same output for the same input in every call.

    An honest release with a large epsilon seldom varies. Where the claim allows that, nothing is rejected, with one
    exception: Gaussian noise may vanish in a bit that is computed from it, but not in a number that is not whole.

    Args:
        first: Outputs of the first collection.
        second: Outputs of the second collection.
        claim: The claim.
        probe: A function that draws a few outputs of a collection without whole cosines. None where none can be drawn.

    Raises:
        InvalidInput: The release is not random.
    """
    if not (_is_constant(first) and _is_constant(second)):
        return
    if claim.epsilon + 3 > math.log(len(first) + len(second)):
        if not isinstance(claim.profile, GaussianProfile):
            return
        sample = np.concatenate([first[:1], second[:1]]) if probe is None else probe()
        if (probe is not None and not _is_constant(sample)) or np.array_equal(sample, np.rint(sample)):
            return
    raise InvalidInput(
        f"The release under audit is not random: {len(first):,} calls with one collection gave the same output, and "
        f"{len(second):,} calls with its neighbour gave the same output; a private release draws fresh noise on every "
        "call."
    )


def _is_constant(side: Float) -> bool:
    return bool(np.all(side == side[0]))


def make_bound_check(
    name: CheckName, evidence: Evidence | None, claim: Claim, violation: str, nothing: str
) -> AuditCheck:
    """Make a check that fails where its own test contradicts the claim, by its bound or by the claimed curve.

    Args:
        name: The name of the check.
        evidence: The evidence of the test, or None where there was nothing to test.
        claim: The claim.
        violation: What a failure means, in words.
        nothing: What is stated where nothing was found.
    """
    if evidence is None:
        return AuditCheck(name, True, nothing)
    bound = evidence.bound_epsilon(claim)
    if bound > claim.epsilon:
        detail = f"{violation}: by this check alone, epsilon is at least {math.floor(bound * 1000) / 1000:g}"
        return AuditCheck(name, False, detail)
    excess, fpr, tpr = evidence.measure_excess(claim)
    if excess > 0 and claim.profile is not None:
        return AuditCheck(name, False, f"{violation}: {_describe_excess(claim, fpr, tpr)}")
    if not evidence.can_break(claim):
        return AuditCheck(name, True, f"not tested: {_describe_releases_needed(claim, evidence)}")
    return AuditCheck(name, True, nothing)


def _describe_excess(claim: Claim, fpr: float, tpr: float) -> str:
    return (
        f"at a false-positive rate of at most {fpr:.4g} the claim allows {claim.tpr_at(fpr):.4g} true positives, and "
        f"at least {tpr:.4g} were found"
    )


def _describe_releases_needed(claim: Claim, evidence: Evidence) -> str:
    """Describe how many releases this check needs to fail if everything leaks. Half of the releases are counted."""
    few, many = len(evidence.inside), 2 * len(evidence.inside)
    while not is_breakable(claim, many, evidence.confidence):
        few, many = many, 2 * many
        if many > 10**12:
            return "no feasible number of releases would let this check contradict the claim"
    while many - few > max(1, few // 1000):
        middle = (few + many) // 2
        few, many = (few, middle) if is_breakable(claim, middle, evidence.confidence) else (middle, many)
    return f"this check needs at least {2 * many:,} releases on each side to contradict the claim"


def make_scale_check(
    direction: WeightedSum | None,
    fresh: Sides,
    claim: Claim,
    error: float,
    loss: float = 0.0,
    *,
    is_plain: bool = True,
) -> tuple[AuditCheck, float] | None:
    """For a claim of Gaussian noise: check whether outputs move by more of its standard deviations than claimed.

    Along a direction fixed beforehand, with N outputs per side, means that differ by D and the larger deviation s,

        μ ≥ D / (s √(f / χ²(f, a))) - z_b √(2/N),  f = N - 1,  a + b = error,

    exactly, if the outputs are clean values plus Gaussian noise and `direction` is linear. (With two deviations, the
    test at the mean of the narrower side is at least as good as with the larger one on both.) This finds violations
    that no count can show: at a large epsilon, both the claimed and the true mechanism are separated without errors.

    Args:
        direction: The direction, or None where nothing moves.
        fresh: Outputs that were not used before.
        claim: The claim.
        error: The share of the error that the check takes.
        loss: 2 k / N for a direction of k entries that was learnt from N outputs per side. The cosine of such a
            direction with the best one is about mu / sqrt(mu^2 + loss).
        is_plain: Whether outputs are clean values plus noise and nothing else. Clipping or projecting outputs makes
            them narrower and no less private, so without this the check only states what it measures, and passes.

    Returns:
        The check, and the least true epsilon that it finds with probability 90 %. None where Gaussian noise is not
        claimed, or the outputs do not look Gaussian.
    """
    if not isinstance(claim.profile, GaussianProfile) or direction is None:
        return None
    inside, outside = direction(fresh[0]), direction(fresh[1])
    sides = [side - side.mean() for side in (inside, outside)]
    if not all(map(_looks_gaussian, sides)) or any(_has_pile(side[:, direction.columns]) for side in fresh):
        return None
    freedom = min(map(len, sides)) - 1
    deviation = max(math.sqrt(float(side @ side) / (len(side) - 1)) for side in sides)
    per_mean = math.sqrt(1 / len(inside) + 1 / len(outside))
    # The error is divided so that a small excess over the claimed mu shows; for a large mu, the deviation matters most.
    means = error * np.linspace(0.05, 0.95, 19)
    widths = np.sqrt(freedom / chdtri(freedom, 1 - (error - means)))
    reaches = -ndtri(means) * per_mean
    place = int(np.argmin((claim.profile.mu + reaches) * widths))
    wider, reach = float(widths[place]), float(reaches[place])
    mu = max(0.0, (float(inside.mean()) - float(outside.mean())) / (deviation * wider) - reach)
    epsilon = GaussianProfile(mu).epsilon_at(claim.delta) if claim.delta > 0 and mu > 0 else None
    detail = (
        f"the outputs move by at least {mu:.4g} standard deviations of the noise, {claim.profile.mu:.4g} are claimed"
    )
    if epsilon is not None:
        detail += f"; with Gaussian noise that is an epsilon of at least {epsilon:.4g}"
    if not is_plain:
        reason = "measured only, no verdict, because clipped or projected outputs look narrower than their noise"
        return AuditCheck("noise scale", True, f"{reason}: {detail}", epsilon), math.inf
    # It is found if the means differ enough and the deviation is small enough; each fails in one of 20 cases.
    unlucky = wider * math.sqrt(float(chdtri(freedom, 0.025)) / freedom)
    needed = (claim.profile.mu + reach) * unlucky + 1.645 * per_mean
    needed = math.sqrt((needed**2 + math.sqrt(needed**4 + 4 * needed**2 * loss)) / 2)  # mu times that cosine suffices
    least = GaussianProfile(needed).epsilon_at(claim.delta) if claim.delta > 0 else math.inf
    return AuditCheck("noise scale", mu <= claim.profile.mu * (1 + 1e-9), detail, epsilon), least


def _looks_gaussian(residuals: Float) -> bool:
    """Whether skewness and kurtosis are those of Gaussian noise, within five standard errors."""
    n, spread = len(residuals), float(residuals.std())
    if n < 50 or not spread > 0:
        return False
    z = residuals / spread
    skewness, kurtosis = float(np.mean(z**3)), float(np.mean(z**4)) - 3
    return abs(skewness) < 5 * math.sqrt(6 / n) and abs(kurtosis) < 5 * math.sqrt(24 / n)


def _has_pile(values: Float) -> bool:
    """Whether an entry takes its largest or its smallest value too often for noise that was not clipped."""
    often = 5 + len(values) // 100
    ends = np.stack([(values == values.max(axis=0)).sum(axis=0), (values == values.min(axis=0)).sum(axis=0)])
    return bool(np.any((ends > often) & (np.ptp(values, axis=0) > 0)))


# ---- The result.


def evaluate_outputs(
    first: Float,
    second: Float,
    claim: Claim,
    confidence: float,
    statistic: StatisticName,
    facts: OutputFacts,
    name: str,
    neighbours: str,
    start: float,
    probe: Callable[[], Float] | None = None,
) -> AuditResult:
    """Fit on a quarter of the outputs, choose on a quarter, bound on a half, and make the result.

    Args:
        first: Outputs of the first collection, one row per release.
        second: Outputs of the second collection, the same number.
        claim: The claim.
        confidence: That the bound and all checks hold together.
        statistic: The name of the statistic, or "auto".
        facts: What is known of the outputs.
        name: The name of what is audited.
        neighbours: The two collections, in words.
        start: When the audit began, by `time.perf_counter`.
        probe: As in `require_randomness`.
    """
    require_randomness(first, second, claim, probe)
    quarter, half = len(first) // 4, len(first) // 2
    fit = first[:quarter], second[:quarter]
    choose = first[quarter:half], second[quarter:half]
    fresh = first[half:], second[half:]
    error = 1 - confidence
    main = apply_best_statistic(fit_statistics(statistic, *fit, facts), choose, fresh, claim, error * MAIN_SHARE)
    bits = apply_best_statistic([fit_low_bits(*fit)], choose, fresh, claim, error * CHECK_SHARE)
    silent = apply_best_statistic([fit_noiseless(*fit)], choose, fresh, claim, error * CHECK_SHARE)
    repeats = apply_statistic(fit_repeats(first[:half], second[:half]), fresh, REPEAT_CUTS, error * CHECK_SHARE)
    checks = _make_checks(main, bits, silent, repeats, claim, _describe_search(fit[0]))
    # All entries with Gaussian noise count, also those that move little: the stated detectable epsilon relies on them.
    is_gaussian = isinstance(facts.law, GaussianNoise)
    noisy = facts.law_entries if is_gaussian else None
    direction = fit_linear(fit[0][:, :noisy], fit[1][:, :noisy])
    loss = 2 * len(direction.columns) / quarter if direction is not None else 0.0
    share = 1 - error * MAIN_SHARE if main is None else main.confidence
    law = None if facts.law is None else facts.law.name
    least, assuming = bounds.find_least_detectable(claim, len(fresh[0]), share, law, loss)
    is_plain = is_gaussian or facts.is_plain
    scale = make_scale_check(direction, fresh, claim, error * CHECK_SHARE, loss, is_plain=is_plain)
    if scale is not None:
        checks.append(scale[0])
        least = min(least, scale[1])
    tests = [one for one in (main, bits, silent, repeats) if one is not None]
    best = max(tests, key=lambda one: one.bound_epsilon(claim))
    if main is None and not best.bound_epsilon(claim):  # the two sides never differ, in any entry
        best = Evidence(_Constant(), np.zeros(len(fresh[0])), np.zeros(len(fresh[1])), (0.0,), confidence)
    edges, counts_in, counts_out = _count_bins(best.inside, best.outside)
    fpr, tpr = bounds.tradeoff(best.inside, best.outside, points=POINTS)
    return AuditResult(
        name=name,
        claim=claim,
        releases=len(first),
        confidence=confidence,
        epsilon_lower=best.bound_epsilon(claim),
        checks=tuple(checks),
        auc=bounds.auc(best.inside, best.outside, confidence),
        tpr_at_1_percent=bounds.tpr_at(best.inside, best.outside, 0.01, confidence),
        fpr=fpr,
        tpr=tpr,
        edges=edges,
        counts_in=counts_in,
        counts_out=counts_out,
        trajectory=_trace_bound(best, claim, half),
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


def _describe_search(fit: Float) -> str:
    """Describe where directions without noise were searched, if not everywhere."""
    entries, most = fit.shape[1], count_searchable_entries(len(fit))
    return "" if entries <= most else f" (searched the {most:,} of {entries:,} entries that move most)"


def _make_checks(
    main: Evidence | None,
    bits: Evidence | None,
    silent: Evidence | None,
    repeats: Evidence,
    claim: Claim,
    searched: str,
) -> list[AuditCheck]:
    checks = []
    if main is not None and claim.profile is not None:
        excess, fpr, tpr = main.measure_excess(claim)
        checks.append(AuditCheck("trade-off curve", excess <= 0, _describe_excess(claim, fpr, tpr)))
    checks.append(
        make_bound_check(
            "low bits",
            bits,
            claim,
            "the last bits of the outputs distinguish the collections",
            "the last bits of the outputs distinguish the collections no better than the claim allows"
            if bits is not None
            else "not tested: outputs are whole numbers, or all have the same last bit",
        )
    )
    checks.append(
        make_bound_check(
            "noise in every direction",
            silent,
            claim,
            "a combination of outputs carries no noise and moves with the record",
            f"no combination of outputs moves without noise{searched}",
        )
    )
    checks.append(
        make_bound_check(
            "fresh noise",
            repeats,
            claim,
            "outputs of one collection occur again on that collection only: the noise repeats, or is too small",
            "repeated outputs distinguish the collections no better than the claim allows",
        )
    )
    return checks


def _trace_bound(evidence: Evidence, claim: Claim, before: int) -> tuple[tuple[int, float], ...]:
    """Compute the bound after each total number of releases, at about doubling numbers of fresh ones."""
    last = len(evidence.inside)
    steps = np.unique(np.rint(np.geomspace(min(10, last), last, 12)).astype(int))
    return tuple((before + int(step), evidence.bound_epsilon(claim, int(step))) for step in steps)


def _count_bins(inside: Float, outside: Float) -> tuple[Float, Float, Float]:
    """Count both sides in bins over the middle 99.8 %. The end bins also count all values beyond them."""
    pooled = np.concatenate([inside, outside])
    low, high = np.quantile(pooled, [0.001, 0.999])
    if not low < high:
        low, high = pooled.min(), pooled.max()
    if not low < high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts = [np.histogram(np.clip(side, low, high), edges)[0].astype(np.float64) for side in (inside, outside)]
    return edges, counts[0], counts[1]
