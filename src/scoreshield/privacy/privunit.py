"""PrivUnit: a private version of a unit vector, a random direction that is likely to be near it.

For a unit vector v in `R^d`, the released direction u is uniform on the cap
`{u : ⟨u, v⟩ ≥ γ}` with probability p, and uniform on the rest of the sphere otherwise
(Bhowmick, Duchi, Freudiger, Kapoor & Rogers 2018). The density of u takes two values, so replacing v by another vector
changes it by at most their ratio. The release is pure epsilon-differentially private if and only if

    ln(p/(1-p)) + ln((1-P)/P) ≤ ε,    P = Pr[cap] =
    (1/2) I_(1-γ^2)(((d-1)/2), (1/2)).

With `m = E⟨u, v⟩`, u / m is unbiased for v, and its mean square error is `1/m^2 - 1`. So the best split
of epsilon between the coin p and the cap makes m largest. This is where `γ = m`. Asi, Feldman & Talwar (2022) prove
that no unbiased epsilon-private release of a unit vector has a smaller error. The closed forms are, with
`A = (1-γ^2)^((d-1)/2) / ((d-1) B((d-1)/2, 1/2))`:

    m = A (p/P - (1-p)/(1-P)),
    E⟨u, v⟩^2 = (1 + (d-1)γ m)/d.

`scoreshield.privacy.sampling.sphere` draws u / m exactly, rounded to a public grid;
docs/index-release.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from mpmath import MPContext
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, betaln, expit

from scoreshield import _validation
from scoreshield._validation import check_positive, validate, whole_from
from scoreshield.privacy.profiles import Profile, StepProfile
from scoreshield.privacy.sampling import intervals, sphere
from scoreshield.privacy.sampling.stream import Stream

Float = NDArray[np.float64]

#: An epsilon outside raises an error: below, an index is only noise; above, the cap is smaller than the grid.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 500.0
LARGEST_DIMENSION = 65_536
#: No cap is narrower than this (an angle of about 2e-5). The coin gets the rest of epsilon.
_LARGEST_GAMMA = 1 - 2.0**-32
#: One standard deviation of a released entry is about 2^this grid steps. Rounding adds less than 1e-4 of the variance,
#: mostly far less.
_GRID_BITS = 10
#: A released entry is a whole number of steps below this, exact in single precision.
_LARGEST_STEPS = 2.0**23
_DIGITS = 50


@dataclass(frozen=True)
class PrivUnit:
    """The mechanism for one dimension and budget.

    Attributes:
        dimension: d, at least 2.
        epsilon: The pure epsilon of the release of one vector.
        coin: The part of epsilon that the coin takes: p = 1 / (1 + e^-coin).
        gamma: The height at which the cap begins, in [0, 1).
    """

    dimension: int
    epsilon: float
    coin: float
    gamma: float

    name = "privunit"

    @classmethod
    @validate(dimension=whole_from(2), epsilon=check_positive)
    def calibrate(cls, dimension: int, epsilon: float) -> PrivUnit:
        """Make the best unbiased mechanism for this dimension and epsilon.

        Its epsilon is computed with 50 digits. Rounding never makes it exceed ``epsilon``.
        """
        if dimension > LARGEST_DIMENSION:
            _validation.reject("dimension", f"at most {LARGEST_DIMENSION}", dimension)
        if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
            must = f"between {SMALLEST_EPSILON:g} and {LARGEST_EPSILON:g} for one vector"
            _validation.reject("epsilon", must, epsilon)
        return _calibrate(dimension, epsilon)

    @property
    def p(self) -> float:
        """The probability of the cap."""
        return float(expit(self.coin))

    @property
    def cap(self) -> float:
        """The cap's share P of the sphere."""
        return _cap_share(self.dimension, self.gamma)

    @cached_property
    def mean(self) -> float:
        """m, the mean of <u, v>."""
        return _mean(self.dimension, self.epsilon, self.gamma)

    @property
    def second_moment(self) -> float:
        """The mean of <u, v>^2."""
        return (1 + (self.dimension - 1) * self.gamma * self.mean) / self.dimension

    @property
    def std(self) -> float:
        """The standard deviation of a score with the true value 0. Up to rounding, no other score has a larger one."""
        return math.sqrt((1 - self.gamma * self.mean) / self.dimension) / self.mean

    def score_std(self, score: ArrayLike) -> Any:
        """Compute the standard deviation of <u / m, x> for a unit x with <v, x> = ``score``."""
        square = np.asarray(score, dtype=np.float64) ** 2
        along = self.second_moment / self.mean**2 - 1
        return np.sqrt(np.maximum(0.0, square * along + (1 - square) * self.std**2))

    @cached_property
    def step(self) -> float:
        """The public grid of the released entries: a power of two near std / 2^10."""
        least = max(self.std * 2.0**-_GRID_BITS, 1 / (self.mean * _LARGEST_STEPS))
        return math.ldexp(1.0, math.frexp(least)[1])

    @property
    def profile(self) -> Profile:
        """The privacy profile. The density takes two values, so the loss is epsilon, 0 or -epsilon.

        The loss is epsilon only in the cap.
        """
        return StepProfile(self.epsilon, self.p * (1 + 1e-12))

    def compute_epsilon(self) -> Any:
        """Compute the exact epsilon of (coin, gamma), in 50 digits. It must not exceed ``epsilon``."""
        return self.coin + _cap_cost(self.dimension, self.gamma)

    def release(self, rows: Float, stream: Stream, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Draw an unbiased private version of each unit row: round(u / (m step)) step, exact in single precision.

        Args:
            rows: Unit rows.
            stream: Where the random words come from.
            out: Where the result is written; a new array by default.
        """
        cap = sphere.Cap(self.dimension, self.coin, self.gamma, 1 / (self.mean * self.step), self.cap)
        steps: NDArray[np.float32] = np.empty(rows.shape, dtype=np.float32) if out is None else out
        sphere.lean(cap, rows, stream, steps)
        steps *= np.float32(self.step)  # whole numbers below 2^24, times a power of two: exact
        return steps


@lru_cache(maxsize=256)
def _calibrate(dimension: int, epsilon: float) -> PrivUnit:
    """Solve gamma = m(gamma), then give the rest of epsilon to the coin."""

    def surplus(gamma: float) -> float:
        return _mean(dimension, epsilon, gamma) - gamma

    gamma = _find_widest_cap(dimension, epsilon)
    if surplus(gamma) < 0:
        gamma = float(brentq(surplus, 0.0, gamma, xtol=1e-18, rtol=1e-15, maxiter=500))
    rest = epsilon - _cap_cost(dimension, gamma)
    # The conversion rounds to the nearest float, so the next smaller float is below the number of 50 digits.
    return PrivUnit(dimension, epsilon, math.nextafter(float(rest), -math.inf), gamma)


def _find_widest_cap(dimension: int, epsilon: float) -> float:
    """Find the height at which a cap begins that takes the whole epsilon."""
    a = (dimension - 1) / 2
    if epsilon < 1:
        gamma = math.sqrt(betaincinv(0.5, a, math.tanh(epsilon / 2)))
    else:
        gamma = math.sqrt(max(0.0, 1 - betaincinv(a, 0.5, 2 * expit(-epsilon))))
    return min(gamma, _LARGEST_GAMMA)


def _cap_share(dimension: int, gamma: float) -> float:
    """Compute P, the cap's share of the sphere."""
    a = (dimension - 1) / 2
    tail = 0.5 * float(betainc(a, 0.5, (1 - gamma) * (1 + gamma)))
    return tail if tail < 0.25 else 0.5 - 0.5 * float(betainc(0.5, a, gamma * gamma))


def _mean(dimension: int, epsilon: float, gamma: float) -> float:
    """Compute m of a mechanism that takes the whole epsilon: A (p/P - q/(1-P)) = A/P p (1 - e^-epsilon)."""
    a = (dimension - 1) / 2
    share = _cap_share(dimension, gamma)
    height = a * (math.log1p(-gamma) + math.log1p(gamma)) - math.log(2 * a) - betaln(a, 0.5) - math.log(share)
    coin = epsilon - math.log1p(-share) + math.log(share)
    return float(math.exp(height) * expit(coin) * -math.expm1(-epsilon))


def _cap_cost(dimension: int, gamma: float) -> Any:
    """Compute ln((1 - P) / P) with 50 digits."""
    with intervals.LOCK:
        mp = MPContext()
        mp.dps = _DIGITS
        # Convert from whole numbers: mpmath's conversion of a float catches every exception, also an interrupt.
        numerator, denominator = gamma.as_integer_ratio()
        height = mp.mpf(numerator) / denominator
        cap = mp.betainc(mp.mpf(dimension - 1) / 2, mp.mpf(1) / 2, 0, 1 - height * height, regularized=True) / 2
        return mp.log((1 - cap) / cap)
