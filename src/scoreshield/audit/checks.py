"""What an audit looks at beside its main test: randomness, and the scale of Gaussian noise; and how a check is put.

A check takes a share of the audit's error and fails only where that share allows it: one that fails by chance is as
rare as a bound that exceeds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from scoreshield.audit.claim import Claim
from scoreshield.audit.directions import Weighted
from scoreshield.audit.evidence import Evidence, breaks
from scoreshield.audit.result import Check
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile

Float = NDArray[np.float64]


def require_random(first: Float, second: Float, claim: Claim, probe: Callable[[], Float] | None = None) -> None:
    """Refuse a release that answers the same input with the same output, call after call.

    An honest release with a large epsilon seldom varies: where the claim allows as much, nothing is refused, with one
    exception. Gaussian noise may vanish in a bit that is made of it, but not in a number that is no whole one.

    Parameters
    ----------
    probe : draws a few outputs of a collection without whole cosines; None where none can be drawn.
    """
    if not (_constant(first) and _constant(second)):
        return
    if claim.epsilon + 3 > math.log(len(first) + len(second)):
        if not isinstance(claim.profile, GaussianProfile):
            return
        shown = np.concatenate([first[:1], second[:1]]) if probe is None else probe()
        if (probe is not None and not _constant(shown)) or np.array_equal(shown, np.rint(shown)):
            return
    raise InvalidInput(
        f"The release under audit is not random: {len(first):,} calls with one collection gave one and the same "
        "output, and so did as many calls with its neighbour; a private release draws fresh noise on every call."
    )


def _constant(side: Float) -> bool:
    return bool(np.all(side == side[0]))


def bounded(name: str, evidence: Evidence | None, claim: Claim, found: str, nothing: str) -> Check:
    """A check that fails where its own test contradicts the claim, by its bound or by the claimed curve."""
    if evidence is None:
        return Check(name, True, nothing)
    bound = evidence.bound(claim)
    if bound > claim.epsilon:
        return Check(name, False, f"{found}: epsilon is at least {math.floor(bound * 1000) / 1000:g} by this alone")
    excess, fpr, tpr = evidence.excess(claim)
    if excess > 0 and claim.profile is not None:
        return Check(name, False, f"{found}: {above_curve(claim, fpr, tpr)}")
    if not evidence.could_break(claim):
        return Check(name, True, f"not tested: {_needed(claim, evidence)}")
    return Check(name, True, nothing)


def above_curve(claim: Claim, fpr: float, tpr: float) -> str:
    return (
        f"at a false-positive rate of at most {fpr:.4g} the claim allows {claim.tpr_at(fpr):.4g} true positives, and "
        f"at least {tpr:.4g} were found"
    )


def _needed(claim: Claim, evidence: Evidence) -> str:
    """How many releases it would take for this check to fail, where everything leaks; half of them are counted."""
    few, many = len(evidence.inside), 2 * len(evidence.inside)
    while not breaks(claim, many, evidence.confidence):
        few, many = many, 2 * many
        if many > 10**12:
            return "no number of releases that can be drawn would contradict the claim by it"
    while many - few > max(1, few // 1000):
        middle = (few + many) // 2
        few, many = (few, middle) if breaks(claim, middle, evidence.confidence) else (middle, many)
    return f"at least {2 * many:,} releases on each side are needed to contradict the claim by it"


def noise_scale(
    direction: Weighted | None,
    fresh: tuple[Float, Float],
    claim: Claim,
    error: float,
    loss: float = 0.0,
    *,
    plain: bool = True,
) -> tuple[Check, float] | None:
    r"""Where Gaussian noise is claimed: whether outputs move by more of its standard deviations than the claim says.

    Along a direction fixed beforehand, with N outputs a side, means that differ by D and the larger deviation s,

    .. math:: \mu \ge D / \left(s \sqrt{f / \chi^2_{f, a}}\right) - z_b \sqrt{2/N}, \qquad f = N - 1, \; a + b = error,

    exactly, if the outputs are clean values plus Gaussian noise and ``direction`` is linear. (With two deviations the
    test at the mean of the narrower side does at least as well as with the larger one on both.) It finds violations
    that no count can show: at a large epsilon both the claimed and the true mechanism are told apart without a mistake.

    Clipping or projecting outputs makes them narrower and no less private, so the check may fail only where they are
    ``plain``. Otherwise it tells what it sees.

    Returns
    -------
    The check, and the least true epsilon that it finds with probability 90 %; None where outputs do not look Gaussian.
    A direction of k entries learnt from N outputs a side has a cosine of about mu / sqrt(mu^2 + ``loss``) with the best
    one, where ``loss`` is 2 k / N.
    """
    if not isinstance(claim.profile, GaussianProfile) or direction is None:
        return None
    inside, outside = direction(fresh[0]), direction(fresh[1])
    sides = [side - side.mean() for side in (inside, outside)]
    if not all(map(_looks_gaussian, sides)) or any(_piled_up(side[:, direction.columns]) for side in fresh):
        return None
    freedom = min(map(len, sides)) - 1
    deviation = max(math.sqrt(float(side @ side) / (len(side) - 1)) for side in sides)
    per_mean = math.sqrt(1 / len(inside) + 1 / len(outside))
    # The error is divided so that the claimed mu is exceeded as soon as possible: for a large one the deviation counts.
    means = error * np.linspace(0.05, 0.95, 19)
    widths = np.sqrt(freedom / chdtri(freedom, 1 - (error - means)))
    reaches = -ndtri(means) * per_mean
    place = int(np.argmin((claim.profile.mu + reaches) * widths))
    wider, reach = float(widths[place]), float(reaches[place])
    found = max(0.0, (float(inside.mean()) - float(outside.mean())) / (deviation * wider) - reach)
    detail = (
        f"the outputs move by at least {found:.4g} standard deviations of the noise, {claim.profile.mu:.4g} are claimed"
    )
    if claim.delta > 0 and found > 0:
        detail += (
            f"; with Gaussian noise that is an epsilon of at least {GaussianProfile(found).epsilon_at(claim.delta):.4g}"
        )
    if not plain:
        said = "told, not judged, since outputs that are clipped or projected look narrower than their noise"
        return Check("noise scale", True, f"{said}: {detail}"), math.inf
    # Found if the means differ by no less, and the deviation is no more, than each is 19 times of 20.
    unlucky = wider * math.sqrt(float(chdtri(freedom, 0.025)) / freedom)
    needed = (claim.profile.mu + reach) * unlucky + 1.645 * per_mean
    needed = math.sqrt((needed**2 + math.sqrt(needed**4 + 4 * needed**2 * loss)) / 2)  # mu times that cosine suffices
    least = GaussianProfile(needed).epsilon_at(claim.delta) if claim.delta > 0 else math.inf
    return Check("noise scale", found <= claim.profile.mu * (1 + 1e-9), detail), least


def _looks_gaussian(residuals: Float) -> bool:
    """Whether skewness and kurtosis are those of Gaussian noise, within five standard errors."""
    n, spread = len(residuals), float(residuals.std())
    if n < 50 or not spread > 0:
        return False
    z = residuals / spread
    skewness, kurtosis = float(np.mean(z**3)), float(np.mean(z**4)) - 3
    return abs(skewness) < 5 * math.sqrt(6 / n) and abs(kurtosis) < 5 * math.sqrt(24 / n)


def _piled_up(values: Float) -> bool:
    """Whether an entry takes its largest or its smallest value too often for noise that has not been clipped."""
    often = 5 + len(values) // 100
    ends = np.stack([(values == values.max(axis=0)).sum(axis=0), (values == values.min(axis=0)).sum(axis=0)])
    return bool(np.any((ends > often) & (np.ptp(values, axis=0) > 0)))
