"""A proof that a matrix is nearly the nearest valid cosine matrix, by one Cholesky factorisation.

Let A be the input, X a matrix with unit diagonal, Z symmetric, y a vector and S = Z - A - Diag y. If S + τ I has no
negative eigenvalue, every valid cosine matrix has half a squared distance from A of at least

    (1/2) |X - A|^2 - (1/2) |X - Z|^2 - <S, X> - n τ.

So X is within `(1/2) |X - Z|^2 + <S, X> + n τ` of the least value. The solver's Z is (A + Diag y)_+, and X is Z scaled
to unit diagonal, for which all three terms are small of second order. A Cholesky factorisation that succeeds in
floating point proves a τ (Rump 2006; Higham 2002, theorem 10.3). docs/projection.md has the proof, with all rounding
errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from scoreshield.geometry.arrays import (
    Array,
    diagonal,
    fill_outer_square,
    has_cholesky_factor,
    list_panels,
    norm,
    row_dots,
    to_numpy,
)

_UNIT = 2.0**-53  # the unit roundoff of double precision
_ATTEMPTS = 4
_SHORTEST = 1e-100  # rows: products of shorter ones could underflow, so that nothing is proved


@dataclass
class GapProof:
    """A matrix with unit diagonal and what is proved of it.

    Attributes:
        matrix: The cosines: exactly symmetric, with unit diagonal and entries in [-1, 1].
        rows: The unit rows whose cosines they are.
        distance: Its Frobenius distance from the input.
        gap: The proved bound on half the squared distance less the least possible; infinite where nothing is proved.
        scale: What a gap has to be small against: n times half the least squared distance of a row, without the
            diagonal, or 1 if that is smaller. Under even noise it is half the squared distance. One huge entry or a
            large diagonal adds nearly the same to the distance of all valid matrices, and must not excuse a gap.
        factorisations: The number of Cholesky factorisations.
    """

    matrix: Array
    rows: Array
    distance: float
    gap: float
    scale: float
    factorisations: int

    @property
    def relative_gap(self) -> float:
        """The gap, relative to half the squared distance, or to 1 where that is smaller."""
        return self.gap / max(self.distance**2 / 2, 1.0)

    def is_within(self, tol: float) -> bool:
        """Whether the gap is at most a multiple of its scale."""
        return self.gap <= tol * self.scale


def prove_gap(matrix: Array, factor: Array, multipliers: Array, lift: float, allowed: float) -> GapProof:
    """Form the matrix of the cosines of the rows of F, and prove how near it is to the nearest matrix.

    With Z = F F^T and S = Z - A - Diag y, S + t I is factored for rising t, until the factorisation succeeds or the gap
    exceeds what is allowed. Two matrices of the size of the input are held at once, the input included.

    Args:
        matrix: The input A, exactly symmetric. It is not modified.
        factor: F, with no zero row.
        multipliers: y.
        lift: An estimate of the t that is needed.
        allowed: The largest gap that is of use, as a multiple of its scale.
    """
    xp = array_namespace(matrix)
    n, rank = factor.shape
    lengths = xp.sqrt(row_dots(factor, factor))
    rows = factor / xp.clip(lengths, _SHORTEST, None)[:, None]
    work = xp.empty_like(matrix)
    slack = _form_slack(matrix, factor, lengths, work)
    # What is stored on the diagonal defines the true y_i, so that its rounding does not matter.
    base = lengths * lengths - diagonal(matrix) - multipliers
    scale = max(n * slack.least / 2, 1.0)
    # The cosines are computed twice, here and for the result: an entry may differ by twice the rounding of one.
    drift = 2 * n * _gamma(rank + 6)
    rounding = _bound_cholesky_error(n, float(xp.sum(xp.abs(base))))
    infeasible = n * _gamma(rank + 6)  # no eigenvalue of the returned matrix is below minus this
    distance = slack.distance + drift
    fixed = infeasible * n * (distance + infeasible * n) + (math.sqrt(slack.change) + drift) ** 2 / 2
    # A gap above its scale is of no use, and a very large shift would overflow.
    limit = max(0.5 * min(allowed, 1.0) * scale / n, 4 * rounding)
    shift = min(max(2 * lift, 4 * rounding), limit)
    gap, attempts = math.inf, 0
    while float(xp.min(lengths)) > _SHORTEST and attempts < _ATTEMPTS:
        attempts += 1
        entries = base + shift
        diagonal(work)[:] = entries
        trace = float(xp.sum(entries))
        if float(xp.min(entries)) > 0 and has_cholesky_factor(work):
            norm_of_slack = math.sqrt(slack.squares + float(entries @ entries))
            negative = _bound_cholesky_error(n, trace) + 2 * _UNIT * norm_of_slack
            inner = slack.inner + trace + _gamma(2 * n) * (slack.size + trace) + drift * norm_of_slack
            gap = 1.01 * (max(inner, 0.0) + n * negative + fixed)
            break
        if shift >= limit:
            break
        shift = min(30 * shift, limit)
        slack = _form_slack(matrix, factor, lengths, work)
    fill_cosines(rows, work)
    return GapProof(work, rows, slack.distance, gap, scale, attempts)


def fill_cosines(rows: Array, out: Array) -> None:
    """Write the inner products of unit rows: exactly symmetric, in [-1, 1], with unit diagonal."""
    xp = array_namespace(rows)
    fill_outer_square(rows, out)
    for start, end in list_panels(rows.shape[0]):
        out[start:end, :] = xp.clip(out[start:end, :], -1.0, 1.0)
    diagonal(out)[:] = 1.0


@dataclass
class _Slack:
    """Sums over the entries off the diagonal of S = Z - A and of the returned X, and |X - A|_F with the diagonal."""

    distance: float
    change: float  # |X - Z|^2
    inner: float  # <S, X>
    size: float  # a bound on the sum of |S_ij X_ij|
    squares: float  # |S|^2
    least: float  # the least squared distance of a row, without the diagonal


def _form_slack(matrix: Array, factor: Array, lengths: Array, out: Array) -> _Slack:
    """Write Z - A, for Z = F F^T as it is computed, by panels; and compare with the cosines, Z_ij over both lengths."""
    xp = array_namespace(matrix)
    fill_outer_square(factor, out)
    inverse = 1 / xp.clip(lengths, _SHORTEST, None)
    own = 1 - diagonal(matrix)
    sums: list[list[float]] = [[float(own @ own)], [], [], [], []]
    n, least = matrix.shape[0], math.inf
    for start, end in list_panels(n):
        panel = out[start:end, :]
        cosines = panel * inverse[start:end, None]
        cosines *= inverse
        own = cosines.reshape(-1)[start :: n + 1]  # the diagonal of the whole matrix, as a view
        own[:] = 1.0
        sums[1].append(norm(cosines - panel) ** 2)
        panel -= matrix[start:end, :]
        panel.reshape(-1)[start :: n + 1][:] = 0.0
        own[:] = 0.0
        sums[2].append(math.fsum(to_numpy(row_dots(panel, cosines))))
        sums[3].append(norm(cosines) ** 2)
        sums[4].append(norm(panel) ** 2)
        cosines -= matrix[start:end, :]
        own[:] = 0.0
        squares = row_dots(cosines, cosines)
        least = min(least, float(xp.min(squares)))
        sums[0].append(float(xp.sum(squares)))
    distance, change, inner, cosine_squares, slack_squares = (math.fsum(values) for values in sums)
    size = math.sqrt(slack_squares) * math.sqrt(cosine_squares)  # by Cauchy's inequality
    return _Slack(math.sqrt(distance), change, inner, size, slack_squares, least)


def _gamma(count: float) -> float:
    """Higham's constant: a bound on the relative error of ``count`` roundings."""
    return count * _UNIT / (1 - count * _UNIT)


def _bound_cholesky_error(n: int, trace: float) -> float:
    """Bound the negative eigenvalues of a matrix of this trace whose factorisation succeeds.

    `L L^T = S + E` with `|E_ij| <= g sqrt(S_ii S_jj)`, so `|E|_2 <= g trace S`, where g = γ/(1 - γ) and γ = γ_{n+2}.
    The second 1 in n + 2 is for a division that is done as a product with the reciprocal.
    """
    gamma = _gamma(n + 2)
    return gamma / (1 - gamma) * trace + n * float(np.finfo(float).tiny)
