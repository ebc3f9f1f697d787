"""Estimate the clean similarities behind a release, from different knowledge of an attacker.

Let s^2 be the variance of the noise on each entry (``guarantee.noise.std ** 2``; on a Gram matrix that is sigma^2 / 2)
and P = Q Q^T the projector on a known column space of dimension r. Least squares then gives

    known                   estimate                  mean squared error of entry j
    nothing                 y                         s^2
    column space, scores    P y                       s^2 P_jj, on average s^2 r / n
    column space, row i     P y shifted to y_i = 1    s^2 (P_jj - P_ij^2 / P_ii)
    column space, Gram      P Y P, unit diagonal      s^2 (P_jj P_kk + P_jk^2 - 2 sum_a P_ja^2 P_ka^2)
    all but record i        P_{-i} y_{-i}, and y_i    s^2 (P_{-i})_jj, and s^2 at i (0 if y_i is public)
    all but i, and query    E_{-i} q, and y_i         0, and s^2 at i

The source is the paper's appendix on the attacker's reconstruction error. The lines for a row and a Gram matrix on a
known column space are ours: the public 1 carries no noise here, and Gram noise is symmetric. The formulas are those of
linear estimators, so they hold for any noise law with independent entries. An n x n matrix is formed only if the
estimate is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_delta, check_flag, optional, validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.releases.results import GramRelease, RowRelease, ScoreRelease

Float = NDArray[np.float64]
Attackable = ScoreRelease | RowRelease | GramRelease


def _check_release(value: Any, name: str) -> Attackable:
    if not isinstance(value, ScoreRelease | GramRelease):
        _validation.reject(name, "a ScoreRelease, a RowRelease or a GramRelease", value)
    return value


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """An attacker's estimate of clean similarities, and its expected error.

    Attributes:
        estimate: The estimated entries; for a Gram matrix with all but one record known, the unknown record's row.
        expected_mse: The mean squared error of each entry, in closed form, of the same shape.
        knowledge: "nothing", "column space", "all but one record" or "all but one record, and the query".
        exact: Whether `expected_mse` is an equality. False means an upper bound: on each entry for scores and rows, and
            only on the mean for a Gram matrix, since a projection may move error from one entry to another.
    """

    estimate: Float
    expected_mse: Float
    knowledge: str
    exact: bool = True

    def __post_init__(self) -> None:
        for array in (self.estimate, self.expected_mse):
            array.flags.writeable = False

    @validate()
    def mse(self, clean: ArrayLike) -> float:
        """Compute the mean squared error against the clean similarities, for public data."""
        must = f"an array of real numbers of shape {self.estimate.shape}"
        truth = _validation.check_array(clean, "clean", must)
        if truth.shape != self.estimate.shape or truth.dtype.kind not in "fiu":
            _validation.reject("clean", must, truth)
        return float(np.mean((self.estimate - truth) ** 2))


@dataclass(frozen=True, eq=False)
class Template:
    """An attacker's estimate of a record's embedding, from its noisy similarities with known records.

    Attributes:
        estimate: Least squares, unbiased on the span of the known records: their pseudo-inverse times the noisy row.
        covariance: The covariance of its error: s^2 (E^T E)^+ with E the known records.
        expected_squared_error: The trace of that, the mean of |estimate - e|^2 on the span.
        expected_cosine: The cosine of `estimate` with the embedding, 1 / sqrt(1 + expected_squared_error), to first
            order.
        shrunk: The posterior mean (E^T E + d s^2 I)^-1 E^T y under a Gaussian prior N(0, I/d): a better direction.
        attainable_cosine: The upper limit for every estimator under that prior, sqrt(mean of l / (l + d s^2)) over the
            d eigenvalues l of E^T E, as an expected inner product of a unit vector with the embedding.
    """

    estimate: Float
    covariance: Float
    expected_squared_error: float
    expected_cosine: float
    shrunk: Float
    attainable_cosine: float


@validate(release=_check_release, projected=check_flag)
def from_nothing(release: Attackable, *, projected: bool = False) -> Reconstruction:
    """Take the released values as the estimate: `.noisy`, or with `projected` the feasible `.scores` or `.gram`.

    Clipping is a contraction, so it can only lower the error of an entry. Exact projection of a Gram matrix lowers the
    total. Another denoiser guarantees neither and raises an error.
    """
    mse = np.full(release.noisy.shape, release.guarantee.noise_std**2)
    if isinstance(release, RowRelease):
        mse[release.index] = 0.0
    elif isinstance(release, GramRelease):
        np.fill_diagonal(mse, 0.0)
        nearest = release.projection in ("exact", "dykstra") and release.denoise == "projection" and release.converged
        if projected and not nearest:
            must = "False for a Gram matrix that was not projected exactly (no bound is known)"
            _validation.reject("projected", must, projected)
    if not projected:
        return Reconstruction(release.noisy.copy(), mse, "nothing")
    feasible = release.gram if isinstance(release, GramRelease) else release.scores
    return Reconstruction(feasible.copy(), mse, "nothing", exact=False)


@validate(release=_check_release, tolerance=optional(check_delta))
def from_column_space(
    release: Attackable,
    *,
    basis: ArrayLike | None = None,
    embeddings: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Reconstruction:
    """Estimate by least squares on a known column space of the collection: that of the scores, not of the records.

    Give either `basis` or `embeddings`.

    Args:
        release: The release to attack.
        basis: Orthonormal columns, (n, r).
        embeddings: The n records that the basis is derived from. Rows are normalised first, as releases do. For a
            release with ``norm="ball"`` give the basis of its shortened rows instead, and for centroids give the
            centroids.
        tolerance: A singular value counts towards the rank if it is above this share of the largest; None for max(n, d)
            times the unit of rounding of the embeddings' number type.
    """
    _require_full_range(release)
    q = _check_basis(basis, embeddings, tolerance, release.noisy.shape[-1])
    variance = release.guarantee.noise_std**2
    if isinstance(release, GramRelease):
        return _estimate_gram(q, release.noisy, variance)
    if isinstance(release, RowRelease):
        return _estimate_row(q, release.noisy, release.index, variance)
    estimate = (release.noisy @ q) @ q.T
    return Reconstruction(estimate, _broadcast_errors(estimate, variance * _compute_leverage(q)), "column space")


@validate(release=_check_release, tolerance=optional(check_delta))
def from_others(
    release: Attackable,
    others: ArrayLike,
    *,
    index: int | None = None,
    query: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Reconstruction:
    """Estimate with all records known but the one at `index`: the adversary of differential privacy.

    Scores: the other entries are denoised on the column space of the others, and entry i stays as it is. If the public
    `query` is given too, the others are computed instead of estimated, and only entry i is uncertain. This adversary
    knows exactly this in regime (i), so this is the strongest estimate. Row and Gram matrix: the row of record i,
    denoised; its own entry is the public 1. In a Gram matrix all other entries are known. If a row's `index` is not the
    row's own, its record is known and acts as the query.

    Args:
        release: The release to attack.
        others: The other n - 1 records, in order; normalised as releases do.
        index: The position of the unknown record among the n; None for a row's own.
        query: The public query or batch of a ScoreRelease. Other releases have none and raise an error.
        tolerance: The tolerance of the rank, as in `from_column_space`; not used with `query`.
    """
    place = _check_place(release, index)
    rows, default = _check_rows(others, "others", release.noisy.shape[-1] - 1)
    if query is not None and isinstance(release, RowRelease | GramRelease):
        _validation.reject("query", f"left out for a {type(release).__name__}, which has none", query)
    if isinstance(release, RowRelease) and place != release.index:
        known = rows[release.index - (release.index > place)]
        return _estimate_with_query(release, rows, place, known[None], "all but one record")
    if query is not None:
        if tolerance is not None:
            _validation.reject("tolerance", "left out beside 'query', which needs no rank", tolerance)
        queries, _ = _embeddings.as_queries(query, rows.shape[1])
        if len(queries) != release.noisy.size // release.noisy.shape[-1]:
            _validation.reject("query", "the query or batch of queries of the release", np.asarray(query))
        return _estimate_with_query(release, rows, place, queries, "all but one record, and the query")
    _require_full_range(release)
    q = _find_column_space(rows, default, tolerance)
    noisy = release.noisy[place] if isinstance(release, GramRelease) else release.noisy
    variance = release.guarantee.noise_std**2
    estimate = np.insert((np.delete(noisy, place, axis=-1) @ q) @ q.T, place, noisy[..., place], axis=-1)
    own = 0.0 if isinstance(release, RowRelease | GramRelease) else variance
    mse = np.insert(variance * _compute_leverage(q), place, own)
    return Reconstruction(estimate, _broadcast_errors(estimate, mse), "all but one record")


@validate(release=_check_release, tolerance=optional(check_delta))
def template_from_others(
    release: RowRelease | GramRelease, others: ArrayLike, *, index: int | None = None, tolerance: float | None = None
) -> Template:
    """Estimate the embedding of the unknown record by least squares on its noisy similarities with all others.

    `index`, `others` and `tolerance` are those of `from_others`; a row gives only its own record. The part
    outside the span of the others cannot be observed and is estimated as zero.
    """
    if not isinstance(release, RowRelease | GramRelease):
        _validation.reject("release", "a RowRelease or a GramRelease", release)
    place = _check_place(release, index)
    if isinstance(release, RowRelease) and place != release.index:
        _validation.reject("index", f"the row's own, {release.index}", index)
    _require_full_range(release)
    rows, default = _check_rows(others, "others", release.noisy.shape[-1] - 1)
    q = _find_column_space(rows, default, tolerance)
    noisy = release.noisy[place] if isinstance(release, GramRelease) else release.noisy
    variance, d = release.guarantee.noise_std**2, rows.shape[1]
    _, values, directions = np.linalg.svd(q.T @ rows, full_matrices=False)  # r x d: the records on their own span
    squares = values**2
    seen = directions @ (rows.T @ np.delete(noisy, place))
    error = variance * float(np.sum(1 / squares))
    return Template(
        estimate=directions.T @ (seen / squares),
        covariance=(directions.T * (variance / squares)) @ directions,
        expected_squared_error=error,
        expected_cosine=1 / math.sqrt(1 + error),
        shrunk=directions.T @ (seen / (squares + d * variance)),
        attainable_cosine=math.sqrt(float(np.sum(squares / (squares + d * variance))) / d),
    )


def _estimate_gram(q: Float, noisy: Float, variance: float) -> Reconstruction:
    projector = q @ q.T
    squares = projector**2
    leverage = _compute_leverage(q)
    # Each draw enters twice, mirrored; the diagonal has no noise.
    mse = variance * (np.outer(leverage, leverage) + squares - 2 * squares @ squares)
    estimate = (q @ (q.T @ noisy @ q)) @ q.T
    np.fill_diagonal(estimate, 1.0)
    np.fill_diagonal(mse, 0.0)
    return Reconstruction(estimate, np.maximum(mse, 0.0), "column space")


def _estimate_row(q: Float, noisy: Float, index: int, variance: float) -> Reconstruction:
    """Solve least squares among the vectors of the space whose entry at `index` is exactly 1."""
    own = float(q[index] @ q[index])
    if own < 1e-12:
        raise InvalidInput(
            f"The given column space is zero at record {index}, whose own similarity is the public 1; "
            "it is not that of the release."
        )
    coefficients = noisy @ q
    estimate = q @ (coefficients + q[index] * ((1 - q[index] @ coefficients) / own))
    mse = variance * np.maximum(_compute_leverage(q) - (q @ q[index]) ** 2 / own, 0.0)
    estimate[index], mse[index] = 1.0, 0.0
    return Reconstruction(estimate, mse, "column space")


def _estimate_with_query(
    release: Attackable, rows: Float, place: int, queries: Float, knowledge: str
) -> Reconstruction:
    noisy = np.atleast_2d(release.noisy)
    known = np.clip(queries @ rows.T, *release.guarantee.score_range)
    estimate = np.insert(known, place, noisy[:, place], axis=1).reshape(release.noisy.shape)
    mse = np.zeros(release.noisy.shape)
    mse[..., place] = release.guarantee.noise_std**2
    if isinstance(release, RowRelease):
        estimate[release.index] = 1.0
    return Reconstruction(estimate, mse, knowledge)


def _check_basis(basis: Any, embeddings: Any, tolerance: Any, n: int) -> Float:
    if (basis is None) == (embeddings is None):
        raise InvalidInput("Give either 'basis' or 'embeddings', and not both.")
    if embeddings is not None:
        rows, default = _check_rows(embeddings, "embeddings", n)
        return _find_column_space(rows, default, tolerance)
    if tolerance is not None:
        _validation.reject("tolerance", "left out beside 'basis', whose rank is its width", tolerance)
    q = _embeddings.as_rows(basis, "basis").astype(np.float64)
    if len(q) != n or not np.abs(q.T @ q - np.eye(q.shape[1])).max() < 1e-6:
        _validation.reject("basis", f"orthonormal columns of length {n}", q)
    return q


def _check_rows(source: Any, name: str, n: int) -> tuple[Float, float]:
    """Return the known records as unit rows, and the tolerance of their rank at their precision."""
    rows = _embeddings.as_rows(source, name)
    if len(rows) != n:
        _validation.reject(name, f"the {n} known records, one per row", rows)
    return _embeddings.normalise_public_rows(rows, name), max(rows.shape) * float(np.finfo(rows.dtype).eps)


def _find_column_space(rows: Float, default: float, tolerance: float | None) -> Float:
    """Return an orthonormal basis of the column space, with as many columns as the numerical rank."""
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    return np.ascontiguousarray(left[:, values > (default if tolerance is None else tolerance) * values[0]])


def _check_place(release: Attackable, index: Any) -> int:
    n: int = release.noisy.shape[-1]
    if index is None and isinstance(release, RowRelease):
        return release.index
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or not -n <= index < n:
        _validation.reject("index", f"a whole number from 0 to {n - 1}", index)
    return int(index) % n


def _require_full_range(release: Attackable) -> None:
    if release.guarantee.score_range != FULL_RANGE:
        must = "over the full range [-1, 1], since clamped scores leave the column space"
        _validation.reject("release", must, release)


def _compute_leverage(q: Float) -> Float:
    squares: Float = np.vecdot(q, q)
    return squares


def _broadcast_errors(estimate: Float, mse: Float) -> Float:
    return np.broadcast_to(mse, estimate.shape).copy()
