"""What an audit looks at beside its main test: randomness, repeated noise, low bits, silent directions, the scale.

Each returns a `Check`. Those that rest on counts take a share of the audit's error and fail only where that share
allows it: a check that fails by chance is as rare as a bound that exceeds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from scoreshield.audit.claim import Claim
from scoreshield.audit.result import Check
from scoreshield.audit.statistics import Statistic
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profile import GaussianProfile

Float = NDArray[np.float64]
#: Outputs that are compared with each other.
_COMPARED = 4096


def require_random(first: Float, second: Float, claim: Claim) -> None:
    """Refuse a release that answers the same input with the same output, call after call.

    An honest release with a large epsilon seldom varies: where the claim allows as much, nothing is refused.
    """
    if claim.epsilon + 3 > math.log(len(first) + len(second)):
        return
    if np.all(first == first[0]) and np.all(second == second[0]):
        raise InvalidInput(
            f"The release under audit is not random: {len(first):,} calls with one collection gave one and the same "
            "output, and so did as many calls with its neighbour; a private release draws fresh noise on every call."
        )


def fresh_noise(sides: Sequence[Float]) -> Check:
    """Whether whole outputs come back: the mark of a generator with few states, or seeded anew from a clock.

    Where entries are drawn afresh, two outputs that agree in one entry agree in all the others by rare chance only;
    where the generator repeats, they always do. Entries that take few values cannot tell, and are left out.
    """
    name = "fresh noise"
    repeats = 0
    for side in sides:
        rows = side[:_COMPARED]
        pairs = len(rows) * (len(rows) - 1) / 2
        single = [_coincidences(rows[:, column]) for column in range(rows.shape[1])]
        used = [column for column, count in enumerate(single) if count < pairs / 4]
        if len(used) < 2:
            return Check(name, True, "not tested: the outputs hold fewer than two entries of many values")
        whole = _coincidences(rows[:, used])
        if whole >= 8 and whole > 0.9 * min(single[column] for column in used):
            repeats += whole
    if not repeats:
        return Check(name, True, "no output came back whole")
    return Check(name, False, f"{repeats:,} pairs of outputs of one collection agree in every entry: the noise repeats")


def _coincidences(values: Float) -> int:
    """How many pairs of rows are equal."""
    _, counts = np.unique(values, axis=0, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def noise_scale(
    direction: Statistic | None, fresh: tuple[Float, Float], claim: Claim, error: float, loss: float = 0.0
) -> tuple[Check, float] | None:
    r"""Where Gaussian noise is claimed: whether outputs move by more of its standard deviations than the claim says.

    Along a direction fixed beforehand, with N outputs a side, means that differ by D and a pooled deviation s,

    .. math:: \mu \ge D / \left(s \sqrt{f / \chi^2_{f, \mathrm{error}/2}}\right) - z_{\mathrm{error}/2} \sqrt{2/N},
       \qquad f = 2 N - 2,

    exactly, if the noise is Gaussian and ``direction`` is linear. It finds violations that no count can show: at a
    large epsilon both the claimed and the true mechanism are told apart without a mistake.

    Returns
    -------
    The check, and the least true epsilon that it finds with probability 90 %; None where outputs do not look Gaussian.
    A direction of k entries learnt from N outputs a side has a cosine of about mu / sqrt(mu^2 + ``loss``) with the best
    one, where ``loss`` is 2 k / N.
    """
    if not isinstance(claim.profile, GaussianProfile) or direction is None:
        return None
    inside, outside = direction(fresh[0]), direction(fresh[1])
    residuals = np.concatenate([inside - inside.mean(), outside - outside.mean()])
    if not _looks_gaussian(residuals):
        return None
    freedom = len(residuals) - 2
    deviation = math.sqrt(float(residuals @ residuals) / freedom)
    wider = math.sqrt(freedom / float(chdtri(freedom, 1 - error / 2)))
    per_mean = math.sqrt(1 / len(inside) + 1 / len(outside))
    reach = -float(ndtri(error / 2)) * per_mean
    found = max(0.0, (float(inside.mean()) - float(outside.mean())) / (deviation * wider) - reach)
    detail = (
        f"the outputs move by at least {found:.4g} standard deviations of the noise, {claim.profile.mu:.4g} are claimed"
    )
    if claim.delta > 0 and found > 0:
        detail += (
            f"; with Gaussian noise that is an epsilon of at least {GaussianProfile(found).epsilon_at(claim.delta):.4g}"
        )
    # Found if the means differ by no less, and the deviation is no more, than each is 19 times of 20.
    unlucky = wider * math.sqrt(float(chdtri(freedom, 0.05)) / freedom)
    needed = (claim.profile.mu + reach) * unlucky + 1.645 * per_mean
    needed = math.sqrt((needed**2 + math.sqrt(needed**4 + 4 * needed**2 * loss)) / 2)  # mu times that cosine suffices
    least = GaussianProfile(needed).epsilon_at(claim.delta) if claim.delta > 0 else math.inf
    return Check("noise scale", found <= claim.profile.mu * (1 + 1e-9), detail), least


def _looks_gaussian(residuals: Float) -> bool:
    """Whether skewness and kurtosis are those of Gaussian noise, within six standard errors."""
    n, spread = len(residuals), float(residuals.std())
    if n < 100 or not spread > 0:
        return False
    z = residuals / spread
    skewness, kurtosis = float(np.mean(z**3)), float(np.mean(z**4)) - 3
    return abs(skewness) < 6 * math.sqrt(6 / n) and abs(kurtosis) < 6 * math.sqrt(24 / n)


def bounded(name: str, bound: float, claim: Claim, found: str, nothing: str) -> Check:
    """A check that fails where the bound of its own test exceeds the claim."""
    if bound <= claim.epsilon:
        return Check(name, True, nothing)
    return Check(name, False, f"{found}: epsilon is at least {math.floor(bound * 1000) / 1000:g} by this alone")
