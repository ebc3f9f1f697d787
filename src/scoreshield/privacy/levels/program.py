"""The linear program of the best discrete channel, and how its solution is rounded to whole numbers.

A channel x gives output j for input level i with probability `x_ij`. Under record replacement a score can move
from any level to any other, so pure epsilon requires `x_ij ≤ e^ε x_kj` for all i, k, j. With a cap
`u_j` for each column, this is `e^(-ε) u_j ≤ x_ij ≤ u_j`. With
`x_ij = e^(-ε) u_j + (1 - e^(-ε)) v_ij` it becomes `0 ≤ v_ij ≤ u_j`: one constraint per entry, with coefficients of
size one for every epsilon. Only the caps are taken from the solver. Given the caps, the best row is filled greedily,
the cheapest output first, in multiples of 2^-62. So no float decides whether a constraint holds.

Sources: Ghosh, Roughgarden & Sundararajan 2012 (optimal mechanisms as linear programs); Kairouz, Oh & Viswanath 2016
(extreme points are staircases). docs/optimal.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.optimize import linprog

from scoreshield import _validation
from scoreshield.errors import ScoreShieldError
from scoreshield.privacy.levels.cuts import tail
from scoreshield.privacy.sampling import intervals

Float = NDArray[np.float64]
Rows = list[list[int]]

UTILITIES = ("squared", "absolute", "threshold")

#: A probability is a whole number (its weight) divided by this.
WHOLE = 2**62
#: At this epsilon the least weight is below 2^-57, so the same channel is used for every larger epsilon.
LARGEST_EPSILON = 40.0
#: The largest number of entries of the pure program, and of (pair, output) terms of the program with delta.
LARGEST_PURE, LARGEST_PAIRS = 10_201, 9_300
#: Where delta e^-epsilon is below this, the solver is not accurate enough for the general program: use the mixture.
FINEST_DELTA = 1e-7

_BITS = 192
_TOLERANCES = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True)
class Solution:
    """The solution of the pure program.

    Attributes:
        caps: The largest entry of each column.
        value: The least expected cost that the solver reports.
        bound: A lower bound on the cost of *every* epsilon-private channel, from the dual values (docs/optimal.md).
    """

    caps: Float
    value: float
    bound: float


def floor_ratio(epsilon: float) -> Fraction:
    """Compute a rational number just below e^epsilon, by interval arithmetic.

    It is at most e^64. No ratio of two weights is larger than that.
    """
    exact = Fraction(min(epsilon, 64.0))
    with intervals.LOCK:
        iv = intervals.INTERVALS
        iv.prec = _BITS + 128
        power = iv.exp(iv.mpf(exact.numerator) / exact.denominator)
        return Fraction(int((power * 2**_BITS).a), 2**_BITS)


def solve_pure(epsilon: float, costs: Float) -> Solution:
    """Find the caps of the best epsilon-private channel for costs (prior times cost, inputs x outputs) that are >= 0.

    The program is solved twice. The tolerances of a solver are absolute, so the second run scales the costs by the
    value that the first run found.
    """
    first = _solve_pure(epsilon, costs, 1 / (costs.max() or 1.0))
    if first.value <= 0:
        return first
    second = _solve_pure(epsilon, costs, 10 / first.value)
    return max(first, second, key=lambda one: one.bound)


def _solve_pure(epsilon: float, costs: Float, scale: float) -> Solution:
    n, m = costs.shape
    low, rest = math.exp(-epsilon), -math.expm1(-epsilon)
    objective = np.concatenate([rest * costs.ravel(), low * costs.sum(axis=0)]) * scale
    below_cap = sparse.hstack([sparse.eye_array(n * m), -sparse.kron(np.ones((n, 1)), sparse.eye_array(m))])
    row_sums = sparse.hstack([rest * sparse.kron(sparse.eye_array(n), np.ones((1, m))), np.full((n, m), low)])
    result = _run(objective, below_cap.tocsr(), np.zeros(n * m), row_sums.tocsr(), np.ones(n))
    duals = np.asarray(result.eqlin.marginals) / scale
    gaps = costs - duals[:, None]
    column = (gaps + math.expm1(epsilon) * np.minimum(gaps, 0.0)).sum(axis=0)
    bound = float(duals.sum() + min(0.0, float(column.min())))
    return Solution(np.maximum(result.x[n * m :], 0.0), float(result.fun) / scale, bound)


def solve_approximate(epsilon: float, delta: float, costs: Float) -> Float:
    """Find the best (epsilon, delta) channel, with one slack for each ordered pair of inputs and each output.

    The slacks satisfy s_ikj >= x_ij - e^epsilon x_kj, and their sum over j is at most delta. Both are divided by
    e^epsilon.
    """
    n, m = costs.shape
    first, second = (side[~np.eye(n, dtype=bool)] for side in np.indices((n, n)))
    pairs = len(first)
    term, output = np.arange(pairs * m), np.tile(np.arange(m), pairs)
    shrink, one = np.full(pairs * m, math.exp(-epsilon)), np.ones(pairs * m)
    places = (np.repeat(first, m) * m + output, np.repeat(second, m) * m + output, n * m + term)
    shape = (pairs * m, n * m + pairs * m)
    entries = (np.concatenate([shrink, -one, -one]), (np.tile(term, 3), np.concatenate(places)))
    excess = sparse.csr_array(entries, shape=shape)
    totals = sparse.hstack(
        [sparse.csr_array((pairs, n * m)), sparse.kron(sparse.eye_array(pairs), np.ones((1, m)))]
    ).tocsr()
    row_sums = sparse.hstack(
        [sparse.kron(sparse.eye_array(n), np.ones((1, m))), sparse.csr_array((n, pairs * m))]
    ).tocsr()
    result = _run(
        np.concatenate([costs.ravel() / (costs.max() or 1.0), np.zeros(pairs * m)]),
        sparse.vstack([excess, totals]).tocsr(),
        np.concatenate([np.zeros(pairs * m), np.full(pairs, delta * math.exp(-epsilon))]),
        row_sums,
        np.ones(n),
    )
    return np.asarray(np.maximum(result.x[: n * m], 0.0).reshape(n, m))


def _run(objective: Float, upper: Any, limits: Float, equal: Any, ones: Float) -> Any:
    result = linprog(objective, A_ub=upper, b_ub=limits, A_eq=equal, b_eq=ones, method="highs-ds", options=_TOLERANCES)
    if result.status != 0:
        raise ScoreShieldError(f"The linear program of the optimal channel was not solved: {result.message}")
    return result


def round_pure(caps: Float, costs: Float, ratio: Fraction, whole: int = WHOLE) -> Rows:
    """Find the best channel in whole numbers: rows sum to ``whole``, and columns have floors near caps / ratio.

    Every entry of column j lies between the floor l_j and int(ratio l_j), so the constraint holds exactly. Within
    these limits, each row is filled with the cheapest output first, which is optimal for the row.
    """
    floors = [math.ceil(Fraction(float(cap)) * whole / ratio) if cap > 1e-13 else 0 for cap in caps]
    while (total := sum(int(ratio * floor) for floor in floors)) < whole:
        floors = [floor and floor * whole // total + 1 for floor in floors]
    if (total := sum(floors)) > whole:
        floors = [max(1, floor * whole // total) if floor else 0 for floor in floors]
    room = [int(ratio * floor) - floor for floor in floors]
    return [_fill(floors, room, order, whole) for order in np.argsort(costs, axis=1, kind="stable")]


def _fill(floors: list[int], room: list[int], order: NDArray[np.intp], whole: int) -> list[int]:
    row, rest = list(floors), whole - sum(floors)
    for j in order:
        take = min(rest, room[j])
        row[j] += take
        rest -= take
    return row


def compute_usable_delta(delta: float) -> int:
    """Compute the usable part of delta, in units of 2^-62.

    It is a little less than delta, so that a profile that is rounded up stays within delta.
    """
    whole = Fraction(delta)
    return int(max(whole / 2, whole * (1 - Fraction(1, 2**40)) - Fraction(1, 2**46)) * WHOLE)


def round_mixture(caps: Float, costs: Float, ratio: Fraction, delta: float) -> Rows:
    """Mix a pure channel with the best output, of probability delta: (epsilon, delta) for every pair."""
    open_share = compute_usable_delta(delta)
    rows = round_pure(caps, costs, ratio, WHOLE - open_share)
    for row, best in zip(rows, np.argmin(costs, axis=1), strict=True):
        row[best] += open_share
    return rows


def round_approximate(channel: Float, costs: Float, ratio: Fraction, delta: float) -> Rows | None:
    """Round a float channel to whole numbers, and mix it with a constant output until the constraint holds exactly.

    The excess over e^epsilon is convex and 0 for a constant channel, so moving a share (H - delta) / H of the way ends
    at most at delta, up to the next rounding. The result is None if six steps are not enough.
    """
    limit = compute_usable_delta(delta)
    constant = int(np.argmin(costs.sum(axis=0)))
    rows = [_round_to_whole([Fraction(float(p)) for p in row], constant) for row in channel]
    for _ in range(6):
        excess = find_worst_excess(rows, ratio)
        if excess <= limit:
            return rows
        share = Fraction(limit) / excess * (1 - Fraction(1, 2**44))
        rows = [_round_to_whole(_mix_with_constant(row, share, constant), constant) for row in rows]
    return None


def _mix_with_constant(row: list[int], share: Fraction, constant: int) -> list[Fraction]:
    return [share * weight + ((1 - share) * WHOLE if j == constant else 0) for j, weight in enumerate(row)]


def _round_to_whole(row: list[Fraction], rest: int) -> list[int]:
    """Round to whole numbers that sum to 2^62. Each is rounded down, and ``out[rest]`` takes the remainder."""
    total = sum(row)
    out = [int(value * WHOLE / total) for value in row]
    out[rest] += WHOLE - sum(out)
    return out


def find_worst_excess(rows: Sequence[Sequence[int]], ratio: Fraction) -> Fraction:
    """Find the largest sum of (w_ij - ratio w_kj)_+ over all ordered pairs of inputs, with exact integers."""
    scaled = np.array([[weight * ratio.denominator for weight in row] for row in rows], dtype=object)
    against = np.array([[weight * ratio.numerator for weight in row] for row in rows], dtype=object)
    worst = max(int(np.maximum(row - against, 0).sum(axis=1).max()) for row in scaled)
    return Fraction(worst, ratio.denominator)


def compute_expected_cost(rows: Sequence[Sequence[int]], costs: Float) -> float:
    """Compute the expected cost of a channel in units of 2^-62, for costs that include the prior."""
    return float((np.array(rows, dtype=np.float64) / WHOLE * costs).sum())


def check_threshold(threshold: Any, low: float, high: float) -> float:
    must = f"a number in [{low:g}, {high:g})"
    t = _validation.check_real(threshold, "threshold", must)
    if not low <= t < high:
        _validation.reject("threshold", must, threshold)
    return t


def build_costs(utility: Any, inputs: Any, outputs: Any, threshold: float | None) -> Float:
    """Compute the cost of each output at each level."""
    levels, values = np.asarray(inputs)[:, None], np.asarray(outputs)
    if isinstance(utility, str):
        match _validation.check_option(utility, "utility", UTILITIES):
            case "squared":
                return np.asarray((levels - values) ** 2)
            case "absolute":
                return np.asarray(np.abs(levels - values))
        t = check_threshold(threshold, float(levels[0, 0]), float(levels[-1, 0]))
        return np.asarray((levels > t) != (values > t), dtype=np.float64)
    must = f"one of {', '.join(map(repr, UTILITIES))}, or finite costs of shape {(len(levels), len(values))}"
    matrix = _validation.check_array(utility, "utility", must)
    if matrix.shape != (len(levels), len(values)) or matrix.dtype.kind not in "fiu":
        _validation.reject("utility", must, utility)
    if not (np.abs(matrix := matrix.astype(np.float64)) <= 1e100).all():
        _validation.reject("utility", must, utility)
    return matrix


def build_masses(prior: Any, inputs: Any, cuts: Any) -> Float:
    """Compute the public probability of each level."""
    must = f"None, a density, a distribution or {len(inputs)} weights: finite, and positive at every level"
    if prior is None:
        return np.full(len(inputs), 1 / len(inputs))
    if callable(getattr(prior, "sf", None)) and callable(getattr(prior, "cdf", None)):
        below, above = np.asarray(prior.cdf(cuts)), np.asarray(prior.sf(cuts))
        masses = np.diff(np.concatenate([[0.0], below, [1.0]]))
        upper = -np.diff(np.concatenate([[1.0], above, [0.0]]))
        masses = np.where(np.concatenate([[0.0], below]) > 0.5, upper, masses)  # no cancellation in either tail
    elif callable(getattr(prior, "clean_rate", None)):
        masses = -np.diff(np.concatenate([[1.0], tail(prior, np.asarray(cuts), "prior"), [0.0]]))
    else:
        values = [prior(level) for level in inputs] if callable(prior) else prior
        masses = _validation.check_array(values, "prior", must)
    if masses.shape != (len(inputs),) or masses.dtype.kind not in "fiu":
        _validation.reject("prior", must, prior)
    masses = masses.astype(np.float64)
    with np.errstate(over="ignore"):
        total = float(masses.sum())
    if not (np.isfinite(masses).all() and (masses > 0).all() and math.isfinite(total)):
        _validation.reject("prior", must, prior)
    return np.asarray(masses / total)
