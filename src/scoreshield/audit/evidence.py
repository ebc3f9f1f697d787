"""From a finished audit to its result: the verdict, what broke the claim, what was tried, and what was not.

The result states what the bets showed. Every kind of fault that was looked for is one check. A check that failed names
the pair of collections and the reason; one that passed says what size of fault it would have found; one that could not
be made says why.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from scoreshield.audit import bounds, power
from scoreshield.audit.claims import Claim
from scoreshield.audit.learning import OutputHistory, learn_accounts
from scoreshield.audit.result import BINS, POINTS, ROWS_CHECK, AuditCheck, AuditResult
from scoreshield.audit.statistics import WeightedSum, find_lowest_bit, fit_linear
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.privacy.profiles import GaussianProfile

if TYPE_CHECKING:
    from scoreshield.audit.engine import AuditRun, Player
    from scoreshield.audit.trials import Trial

Float = NDArray[np.float64]
#: Outputs of the two collections.
Sides = tuple[Float, Float]
#: The share of the error that the check of the noise scale takes.
SCALE_SHARE = 0.1
#: The least and the largest share of the outputs that fixes the direction of this check.
_SCALE_FIT = 0.1, 0.4
#: The fewest outputs of each side that measure the scale.
_FEWEST_FOR_SCALE = 50
#: The outputs of one call each that confirm the scale which outputs in bulk showed: after how many it is looked at.
_SCALE_CONFIRMED = 125_000, 500_000, 2_000_000
#: Seconds that an audit of outputs in bulk has at least to confirm a break with one output per call.
CONFIRMING = 30.0
#: The share of the error for rows of other lengths, where they are tested.
ROWS_SHARE = 0.1

#: What a failure of each kind means.
_MEANINGS = {
    "amount of noise": "the outputs distinguish the collections better than the claim allows",
    "low bits": "the last bits of the outputs distinguish the collections",
    "noise in every direction": "a combination of outputs carries no noise and moves with the record",
    "fresh noise": "outputs of one collection occur again on that collection only: the noise repeats, or is too small",
    "form of the output": "the type, the length, the order or the errors of the outputs depend on the record",
    "several calls": "answers to several calls together distinguish the collections better than the claim allows: they "
    "share their noise, or have too little of it",
}
#: From the most specific kind of fault to the most general.
_SPECIFIC = ("form of the output", "low bits", "noise in every direction", "fresh noise", "amount of noise")
#: Kinds of faults that every difference of values brings along.
_IMPLIED = ("low bits", "fresh noise")
#: The share of the growth that a specific fault must explain to be named.
_EXPLAINS = 0.6
#: The growth that a trial of single calls must promise to explain what a session showed.
_CONVINCING = 4.0
#: How many random collections are asked about to see whether their numbers are copied.
_PROBED = 64
#: The most trials whose sizes such collections have.
_MOST_PROBES = 8
#: The share of these numbers that occur once, from which on they are copied.
_UNIQUE = 0.99
#: A number that is no multiple of 2 to this power may be copied; scores in single precision are such.
_PRECISE = -20
#: Outputs that are multiples of 2 to this power have no last bits that rounding could leave marks in.
_COARSE = -30
_ENDED = "the audit ended early, when the claim was broken"
_NO_QUERY = "no query is known, so the pairs may not move the outputs; give the audit the query"
_TOO_FEW = "too few outputs to contradict an epsilon as large as the claimed one"


def make_result(run: AuditRun, name: str, *, plain: bool) -> AuditResult:
    """Make the result of an audit.

    Args:
        run: The finished rounds.
        name: The name of what was audited.
        plain: Whether outputs are clean values plus noise and nothing else.
    """
    best = _find_best(run, is_covered=True)
    trial = best[0] if best is not None else max(run.trials, key=lambda one: one.outputs)
    inside, outside = _measure_last(best, trial)
    fpr, tpr = bounds.tradeoff(inside, outside, points=POINTS)
    edges, counts_in, counts_out = _count_bins(inside, outside)
    before = _count_calls(run)
    checks = _make_checks(run, best)
    scale = _check_scale(run, plain)
    if scale is not None:
        checks.append(scale)
    rows = _check_rows(run)
    if rows is not None:
        checks.append(rows)
    silent = _find_silence(run, plain)
    if silent is not None:
        # What else failed is a consequence.
        rest = [check for check in checks if check.name not in (silent.name, ROWS_CHECK)]
        rest = [AuditCheck(one.name, None, _ENDED) if one.passed is False else one for one in rest]
        checks = [*rest, silent, *(check for check in checks if check.name == ROWS_CHECK)]
    releases = max(1, trial.outputs // 2)
    return AuditResult(
        name=name,
        claim=run.claim,
        releases=releases,
        confidence=run.confidence,
        epsilon_lower=run.bound(),
        checks=tuple(checks),
        auc=bounds.auc(inside, outside, run.confidence),
        tpr_at_1_percent=bounds.tpr_at(inside, outside, 0.01, run.confidence),
        fpr=fpr,
        tpr=tpr,
        edges=edges,
        counts_in=counts_in,
        counts_out=counts_out,
        trajectory=tuple(run.trajectory) or ((releases, 0.0),),
        detectable=power.find_detectable(run.claim, releases, run.confidence),
        statistic=best[1].statistic.name if best is not None else "none: no entry differs between the two collections",
        neighbours=trial.description,
        seconds=time.perf_counter() - run.budget.start,
        calls=run.budget.used + _count_calls(run) - before,
        pairs=sum(1 for one in run.trials if one.outputs),
        composed=trial.composed,
    )


def _count_calls(run: AuditRun) -> int:
    """Count all calls so far, of which those for the checks are not in the budget."""
    return sum(source.calls for source in {id(trial.source): trial.source for trial in run.trials}.values())


def _find_best(run: AuditRun, *, is_covered: bool) -> Player | None:
    """Find who staked most against the claim in the last round, or promised most where no one staked anything.

    What happened in that round does not count, so that its outputs can be measured without a choice among them.
    """
    players, stakes = run.stakes.get(is_covered, ([], np.empty((0, 0))))
    if not players:
        return None
    places = [place for place, (trial, account) in enumerate(players) if account in trial.played]
    places = places or list(range(len(players)))  # a round that was cut short
    staked = np.logaddexp.reduce(stakes[places][:, run.follows], axis=1)
    if not (run.is_broken if is_covered else run.is_broken_by_rows):
        staked = np.array([players[place][1].stakes.expected[: run.grid].sum() for place in places])
    return players[places[int(np.argmax(staked))]]


def _measure_last(best: Player | None, trial: Trial) -> Sides:
    """Compute the best statistic on the outputs that it was last played on."""
    if trial.last is None:
        return np.zeros(1), np.zeros(1)
    rows, sides = trial.last
    values = np.zeros(len(rows)) if best is None else best[1].statistic(rows)
    values = np.clip(values, -1e300, 1e300)
    inside, outside = values[sides], values[~sides]
    return (inside if len(inside) else np.zeros(1)), (outside if len(outside) else np.zeros(1))


def _make_checks(run: AuditRun, best: Player | None) -> list[AuditCheck]:
    """Make one check for each kind of fault."""
    checks = []
    broke = None if best is None or not run.is_broken else _name_fault(run, best)
    for name, meaning in _MEANINGS.items():
        if name == broke:
            checks.append(AuditCheck(name, False, meaning + _describe_break(run), run.bound()))
            continue
        reason = _ENDED if run.is_broken else _find_untested(run, name)
        size = None if reason else power.describe_power(name, run.claim, run.covered, run.confidence)
        if size is not None:
            checks.append(AuditCheck(name, True, size))
        else:
            checks.append(AuditCheck(name, None, reason or _explain_few(run)))
    return checks


def _explain_few(run: AuditRun) -> str:
    """Explain why there are too few outputs: the claimed epsilon is large, or most calls failed."""
    trial = max(run.covered, key=lambda one: one.outputs)
    failed = 1 - power.count_informative(trial) / max(1, trial.outputs)
    return (
        _TOO_FEW
        if failed < 0.5
        else f"{failed:.0%}".replace("%", " % of the calls failed, which leaves too few outputs")
    )


def _name_fault(run: AuditRun, best: Player) -> str:
    """Name the fault that broke the claim: the most specific one that explains most of what was won."""
    trial = best[0]
    won = _list_won(run, trial)
    if trial.session != "single":
        single = _find_explaining_call(run, trial)
        if single is None:
            return "several calls"
        won = _list_promised(run, single, single.outputs)
    most, plain = max(won.values(), default=0.0), won.get("amount of noise", 0.0)
    for kind in _SPECIFIC:
        # Values that differ have other last bits and recur on one side only, so these two must explain more.
        is_enough = kind not in _IMPLIED or plain < _EXPLAINS * won.get(kind, 0.0)
        if is_enough and won.get(kind, -math.inf) >= _EXPLAINS * most > 0:
            return kind
    return best[1].kind


def _list_won(run: AuditRun, trial: Trial) -> dict[str, float]:
    """List the most that each kind of account won against the claim on a trial."""
    won: dict[str, float] = {}
    for (owner, kind, *_), growth in run.records.items():
        if owner == id(trial):
            won[kind] = max(won.get(kind, -math.inf), float(np.max(growth[run.follows])))
    return won


def _find_explaining_call(run: AuditRun, session: Trial) -> Trial | None:
    """Find a trial of single calls that shows the record about as clearly as a session does, from as many outputs.

    An audit that ends early has few outputs of most trials, and played on none of them. So what its outputs promise is
    compared, and no winnings.
    """
    singles = [trial for trial in run.covered if trial.session == "single" and trial.outputs]
    for trial in singles:
        promised = max(_list_promised(run, trial, trial.outputs).values(), default=0.0)
        if promised < _CONVINCING + math.log(len(singles)) / 2:  # the best of many looks better than it is
            continue
        size = min(trial.outputs, session.outputs)
        own, other = (max(_list_promised(run, one, size).values(), default=0.0) for one in (trial, session))
        if own >= _EXPLAINS * other:
            return trial
    return None


def _list_promised(run: AuditRun, trial: Trial, outputs: int) -> dict[str, float]:
    """List the growth against the claim that some of a trial's outputs promise, for each kind of account."""
    assert trial.history is not None
    first, second = (side[: outputs // 2] for side in trial.history.join())
    history = OutputHistory(trial.history.is_number, [first], [second])
    promised: dict[str, float] = {}
    for account in learn_accounts(history, run.hypotheses.compose(trial.composed)):
        growth = float(np.max(account.promise(outputs)[run.follows]))
        promised[account.kind] = max(promised.get(account.kind, 0.0), growth)
    return promised


def _describe_break(run: AuditRun) -> str:
    """Describe the evidence where the bound does not say it: the point of the curve that it breaks."""
    bound = run.bound()
    if bound > run.claim.epsilon:
        return ""
    if bound == run.claim.epsilon:
        return f" (epsilon is more than the claimed {bound:g})"
    peak = run.portfolios[True].log_peak[run.follows]
    place = run.follows[int(np.argmax(peak))]
    epsilon, delta = run.hypotheses.epsilons[place], run.hypotheses.deltas[place]
    return f" (the claimed curve has delta {delta:.3g} at epsilon {epsilon:.3g}, which the outputs contradict)"


def _find_untested(run: AuditRun, name: str) -> str | None:
    """Find why a kind of fault was not looked for; None where it was."""
    if name != "fresh noise" and not run.query_is_known:
        return _NO_QUERY
    trials = [trial for trial in run.covered if trial.outputs]
    if name == "several calls":
        if any(trial.session != "single" for trial in trials):
            return None
        return "one call at a time was made, because the pair was given or the calls were few"
    if name == "low bits" and not any(map(_has_low_bits, trials)):
        return "the outputs are whole numbers or lie on a grid, so that their last bits say nothing more"
    return None


def _has_low_bits(trial: Trial) -> bool:
    """Whether the last bits of outputs vary below what noise on a public grid shows."""
    if trial.last is None or trial.history is None:
        return False
    rows = trial.last[0][:1000][:, trial.history.is_number]
    return bool(np.any(find_lowest_bit(rows[np.isfinite(rows)]) < _COARSE))


def _check_rows(run: AuditRun) -> AuditCheck | None:
    """Make the check of rows that are no unit vectors, where there were any."""
    trials = [trial for trial in run.trials if not trial.is_covered]
    if not trials:
        return None
    if run.is_broken and not run.is_broken_by_rows:
        return AuditCheck(ROWS_CHECK, None, _ENDED)
    if run.is_broken_by_rows:
        best = _find_best(run, is_covered=False)
        where = best[0].description if best is not None else "one of these rows"
        bound = run.bound(is_covered=False)
        detail = (
            f"{where} moves the outputs further than a unit row can (epsilon is at least "
            f"{math.floor(bound * 1000) / 1000:g}), because rows are not normalised or clamped"
        )
        return AuditCheck(ROWS_CHECK, False, detail, bound)
    if all(trial in run.rejected or not trial.outputs for trial in trials):
        return AuditCheck(ROWS_CHECK, True, "the release rejects rows that are not unit vectors")
    # This check has its own share of the error.
    confidence = 1 - run.error * ROWS_SHARE
    outputs, needed = (
        max(map(power.count_informative, trials)),
        power.find_needed_outputs_for_rows(run.claim, confidence),
    )
    if math.isinf(needed):
        return AuditCheck(ROWS_CHECK, None, _TOO_FEW)
    if outputs < needed:
        reason = f"{outputs:,} outputs of such rows are too few; about {needed:,.0f} are needed, so give more releases"
        return AuditCheck(ROWS_CHECK, None, reason)
    tried = f"{outputs:,} outputs of rows that are too long, too short or zero"
    detail = f"{tried} showed no more than the claim; a score that grows with the length of its row would be found"
    return AuditCheck(ROWS_CHECK, True, detail)


def _find_silence(run: AuditRun, plain: bool) -> AuditCheck | None:
    """Find a release without any randomness, which a large claimed epsilon cannot be contradicted by.

    Outputs of full precision that never vary on a collection, and differ between collections, are copied from it. An
    honest release with a large epsilon may seldom vary too, but it answers with one of few public values. Outputs that
    are clean values plus Gaussian noise and nothing else always vary, so that there no more calls are needed.
    """
    probes = 0
    for trial in run.covered:
        if trial.history is None or not trial.history.is_number.any() or trial.session != "single":
            continue
        first, second = trial.history.join()
        if min(len(first), len(second)) < 8 or not (_is_constant(first) and _is_constant(second)):
            continue
        numbers = [side[0][trial.history.is_number] for side in (first, second)]
        if np.array_equal(numbers[0], numbers[1], equal_nan=True):
            continue
        # Clipped values repeat the ends of a range, so that several different numbers are copied ones.
        is_varied = all(len(np.unique(side[np.isfinite(side)])) > 1 for side in numbers)
        must_vary = isinstance(run.claim.profile, GaussianProfile) and (plain or (trial.is_saved and is_varied))
        if must_vary or _copies_numbers(trial):
            calls = len(first) + len(second)
            detail = (
                f"the release is not random: {calls:,} calls gave one output per collection, a number that differs "
                "between collections; this is a rule, to which the confidence does not apply"
            )
            return AuditCheck("fresh noise", False, detail)
        probes += 1
        if probes == _MOST_PROBES:
            break
    return None


def _copies_numbers(trial: Trial) -> bool:
    """Whether answers about random collections never vary, differ between collections and have full precision."""
    probes = trial.probe(_PROBED)
    if probes is None:
        return False
    answers = [np.unique(probe[np.isfinite(probe)]) for probe in probes]
    numbers, counts = np.unique(np.concatenate(answers), return_counts=True)
    is_public = counts > len(answers) / 2  # such as a number in an id
    numbers, counts = numbers[~is_public], counts[~is_public]
    # An honest release answers with one of its public values, which recur.
    if not len(numbers) or len(numbers) < _UNIQUE * counts.sum():
        return False
    return bool(np.any(find_lowest_bit(numbers) < _PRECISE))


def _is_constant(side: Float) -> bool:
    return bool(np.all((side == side[0]) | (np.isnan(side) & np.isnan(side[0]))))


def _check_scale(run: AuditRun, plain: bool) -> AuditCheck | None:
    """Check the scale of Gaussian noise on outputs of the pair that moves most, where it is claimed.

    The first outputs fix the direction, and the others measure the scale. How many there are depends on calls and time,
    and on the outputs only where the bets broke the claim, which is accounted for.
    """
    if not isinstance(run.claim.profile, GaussianProfile):
        return None
    trials = [one for one in run.covered if one.session == "single" and one.outputs >= 200]
    if not trials:
        return None
    trial = max(trials, key=lambda one: (one.is_anchor, one.outputs))
    assert trial.history is not None
    is_gaussian = isinstance(trial.law, GaussianNoise)
    columns = np.flatnonzero(trial.history.is_number)
    columns = columns[: trial.law_entries] if is_gaussian else columns
    first, second = (side[:, columns] for side in trial.history.join())
    least, most = (int(share * min(len(first), len(second))) for share in _SCALE_FIT)
    size = min(max(least, 10 * len(columns)), most)
    earlier, fresh = (first[:size], second[:size]), (first[size:], second[size:])
    if min(map(len, earlier)) < 2 or min(map(len, fresh)) < _FEWEST_FOR_SCALE:
        return None
    direction = fit_linear(*earlier)
    error = run.error * SCALE_SHARE
    check = partial(make_scale_check, direction, claim=run.claim, is_plain=plain or is_gaussian)
    found = check(fresh, error=error)
    if found is None or found.passed is not False or not trial.source.takes_repeats:
        return found
    # Outputs in bulk may have a common part, so that outputs of one call each must show it too.
    trial.source.draw_singly()
    trial.source.end = max(run.budget.deadline, time.perf_counter() + CONFIRMING)
    rng, most = np.random.default_rng(run.seed), len(fresh[0]) + len(fresh[1])
    rows, sides = np.empty((0, first.shape[1])), np.empty(0, bool)
    for outputs in _SCALE_CONFIRMED:
        size = min(outputs, most) - len(rows)
        if size <= 0:
            break
        further, further_sides = trial.draw(size, rng)
        run.budget.used += len(further)
        rows, sides = np.concatenate([rows, further[:, columns]]), np.concatenate([sides, further_sides])
        found = None
        if _FEWEST_FOR_SCALE <= sides.sum() <= len(sides) - _FEWEST_FOR_SCALE:
            found = check((rows[sides], rows[~sides]), error=error / len(_SCALE_CONFIRMED))
        if trial.source.is_late or (found is not None and found.passed is False):
            break
    return found


def make_scale_check(
    direction: WeightedSum | None,
    fresh: Sides,
    claim: Claim,
    error: float,
    *,
    is_plain: bool = True,
) -> AuditCheck | None:
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
        is_plain: Whether outputs are clean values plus noise and nothing else. Clipping or projecting outputs makes
            them narrower and no less private, so without this the check only states what it measures, and passes.

    Returns:
        The check. None where Gaussian noise is not claimed, or the outputs do not look Gaussian.
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
        return AuditCheck("noise scale", None, f"{reason}: {detail}", epsilon)
    return AuditCheck("noise scale", mu <= claim.profile.mu * (1 + 1e-9), detail, epsilon)


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
    return bool(np.any((ends > often) & (values.max(axis=0) > values.min(axis=0))))


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
