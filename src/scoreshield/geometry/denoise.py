"""Denoisers of a noisy Gram matrix: post-processing that improves accuracy and costs no privacy.

The model is Y = S + W. S is a cosine Gram matrix (positive semidefinite, unit diagonal, rank at most the public
dimension of the embeddings), W is symmetric with independent N(0, std^2) entries above a diagonal of zeros, and std
is public. Every method reads only Y and public facts.

    method         what it does                                           what it is for
    ``none``       Y itself, mean squared error std^2, not feasible       unbiased entries
    ``projection`` the nearest valid cosine matrix, blind to rank, std    rank not small beside n, moderate noise:
                                                                          least squared error and best ordering
    ``rank``       best approximation of the public rank, rows to         an even spectrum well above the noise
                   length one
    ``shrinkage``  Frobenius-optimal shrinkage of the eigenvalues         a small rank and an uneven spectrum: the
                                                                          least squared error
    ``identity``   pull towards the identity as far as std says, project  noise so strong that no eigenvalue stands
                                                                          out
    ``sure``       the one of these with the least estimated risk         an unknown spectrum

The right-hand column states what the tests measure on Gaussian embeddings of 200 records. It claims nothing else. Where
``identity`` is best, its squared error is that of I itself, and no method orders the pairs well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, validate
from scoreshield.errors import InvalidParameter

Float = NDArray[np.float64]
Project = Callable[[Float], Float]

Denoiser = Literal["none", "projection", "rank", "shrinkage", "identity", "sure"]
METHODS: tuple[str, ...] = get_args(Denoiser)
_CANDIDATES = ("projection", "rank", "shrinkage", "identity")  # of "sure", besides "none", whose risk is known
_STEP = 0.03  # the step of the finite difference, in units of std
_PROBED_ENTRIES = 10_000
_MOST_PROBES = 16


@dataclass(frozen=True)
class DenoisedGram:
    """An estimate of a clean Gram matrix.

    Attributes:
        matrix: Unless the method is ``"none"``: symmetric, diagonal exactly 1.0, entries in [-1, 1], positive
            semidefinite up to rounding.
        method: The method used; for ``"sure"`` the method it chose.
        risks: For ``"sure"``: the estimated mean squared error per entry off the diagonal, of every candidate. The
            estimates are unbiased, so a small one may be negative. Empty for the other methods.
    """

    matrix: Float
    method: str
    risks: dict[str, float] = field(default_factory=dict)


@validate(std=check_positive, method=one_of(METHODS), rank=check_count)
def denoise(noisy: ArrayLike, std: float, method: Denoiser, *, rank: int, project: Project) -> DenoisedGram:
    """Estimate the clean Gram matrix behind a noisy one.

    ``rank`` and ``shrinkage`` share one eigendecomposition, of the leading eigenvectors only. ``projection`` and
    ``identity`` call ``project`` once each. ``sure`` does all of this once, and once more per probe.

    Args:
        noisy: Y, square, symmetric up to rounding, finite, diagonal exactly 1. It is not modified.
        std: The standard deviation of the noise on each entry above the diagonal.
        method: ``"none"``, ``"projection"``, ``"rank"``, ``"shrinkage"``, ``"identity"`` or ``"sure"``; see the module.
        rank: A public bound on the rank of the clean matrix: the dimension of the embeddings.
        project: A function that maps a symmetric matrix to the nearest valid cosine matrix.

    Returns:
        The estimate, with the method that made it.
    """
    array = _check_noisy(noisy)
    if not 1e-100 <= std <= 1e100:
        _validation.reject("std", "between 1e-100 and 1e100, where squares neither vanish nor overflow", std)
    if method == "none":
        return DenoisedGram(array, method)
    if method == "sure":
        return _choose_least_risk(array, std, rank, project)
    return DenoisedGram(_estimate(array, std, rank, project, (method,))[method], method)


def _estimate(noisy: Float, std: float, rank: int, project: Project, methods: Collection[str]) -> dict[str, Float]:
    estimates = {}
    if "projection" in methods:
        estimates["projection"] = project(noisy)
    if "identity" in methods:
        estimates["identity"] = project(_pull_towards_identity(noisy, std))
    if "rank" in methods or "shrinkage" in methods:
        values, vectors = _find_leading_pairs(noisy, rank)
        if "rank" in methods:
            estimates["rank"] = _multiply_unit_rows(vectors * np.sqrt(values))
        if "shrinkage" in methods:
            estimates["shrinkage"] = _multiply_short_rows(vectors * np.sqrt(_shrink(values, std, len(noisy))))
    return estimates


def _find_leading_pairs(matrix: Float, rank: int) -> tuple[Float, Float]:
    """Find the ``rank`` largest eigenvalues that are positive, and their vectors."""
    n = len(matrix)
    if 2 * rank < n:
        values, vectors = eigh(matrix, driver="evr", subset_by_index=[n - rank, n - 1], check_finite=False)
    else:
        values, vectors = eigh(matrix, driver="evd", check_finite=False)
    keep = values > 0
    keep[: max(0, len(values) - rank)] = False
    return values[keep], vectors[:, keep]


def _shrink(values: Float, std: float, n: int) -> Float:
    """Map l to sqrt(l^2 - 4 n std^2) above the noise edge 2 std sqrt(n), and to 0 below it.

    Let e = std sqrt(n). An eigenvalue s > e of S shows in Y at l = s + e^2 / s, and the squared cosine between its
    eigenvector in S and in Y is c^2 = 1 - e^2 / s^2, as n grows with the rank fixed (Benaych-Georges & Nadakuditi
    2011). The multiple t of v v^T nearest to s u u^T in Frobenius norm has t = s <u, v>^2 = s c^2 = s - e^2 / s, and
    (s - e^2 / s)^2 = (s + e^2 / s)^2 - 4 e^2 = l^2 - 4 e^2. Eigenvalues of S below e leave no trace at the edge of Y.
    This is the symmetric case of Gavish & Donoho, "Optimal shrinkage of singular values" (2017).

    The function shrinks Y, not Y - I. A noiseless diagonal does not change the noise's semicircle, so Y is low rank
    plus noise, whereas S - I is far from low rank. The tests measure this where eigenvalues stand out: shrinking
    Y - I gives 1.1 to 2.1 times the squared error, even with its diagonal overwritten and the result not feasible.
    """
    edge = 2 * std * math.sqrt(n)
    above = np.maximum(values, edge)
    # The product of two roots: the squares lose digits at the edge and overflow far from it.
    return np.sqrt(above - edge) * np.sqrt(above + edge)


def _multiply_unit_rows(factor: Float) -> Float:
    """Compute F F^T with the rows of F scaled to length one: D^-1/2 X D^-1/2 for X = F F^T and D its diagonal.

    A zero row has no direction. It becomes a unit vector that is similar to no other record.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", factor, factor))
    vanished = lengths <= 1e-14 * max(lengths.max(), np.finfo(float).tiny)
    factor = factor / np.where(vanished, 1, lengths)[:, None]
    factor[vanished] = 0
    return _multiply_and_fill(factor)


def _multiply_short_rows(factor: Float) -> Float:
    """Compute F F^T with rows of F longer than one scaled to length one, and then set the diagonal to one.

    Setting the diagonal adds a nonnegative diagonal matrix, so the result stays positive semidefinite and the
    shrunken entries do not change. Scaling short rows to length one as well would undo the shrinkage: with equal
    eigenvalues it gives ``rank`` again, and for a record that the eigenvectors hardly touch it amplifies the noise.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", factor, factor))
    return _multiply_and_fill(factor / np.maximum(lengths, 1)[:, None])


def _multiply_and_fill(factor: Float) -> Float:
    """Compute F F^T with unit diagonal, for rows of F no longer than one."""
    matrix: Float = factor @ factor.T
    matrix += matrix.T.copy()
    matrix /= 2
    np.clip(matrix, -1, 1, out=matrix)
    np.fill_diagonal(matrix, 1)
    return matrix


def _pull_towards_identity(noisy: Float, std: float) -> Float:
    """Compute I + a (Y - I), a = max(0, 1 - n (n - 1) std^2 / |Y - I|_F^2): positive-part James-Stein off the diagonal.

    Of all multiples of Y - I, that with a = 1 - m std^2 / |y|^2 over the m = n (n - 1) / 2 free entries y has the least
    estimated risk, up to the 2 in James and Stein's m - 2. The result is indefinite unless a (1 - l) <= 1 for
    the smallest eigenvalue l of Y, so it is projected afterwards; an exact projection onto a convex set that holds S
    only brings it nearer to S.
    """
    n = len(noisy)
    shrunk = noisy.copy()
    np.fill_diagonal(shrunk, 0)
    size = float(np.linalg.norm(shrunk))
    noise = std * math.sqrt(n * (n - 1))
    shrunk *= 1 - (noise / size) ** 2 if size > noise else 0.0
    np.fill_diagonal(shrunk, 1)
    return shrunk


def _choose_least_risk(noisy: Float, std: float, rank: int, project: Project) -> DenoisedGram:
    """Find the candidate f with the least of Stein's unbiased risk estimates (Stein 1981).

    Over the m = n (n - 1) / 2 free entries, SURE = (|f(Y) - Y|^2 + 2 std^2 div f(Y)) / m - std^2. The divergence is
    the Monte-Carlo one of Ramani, Blu & Unser (2008), b . (f(Y + h b) - f(Y)) / h for random signs b, averaged over
    probes. A finite h also sees the jumps of ``rank`` (rows that change sign, eigenvalues that cross), where the
    derivative alone would miss them. The estimate is then noisier.

    With 200 records the estimates are off by 1 to 2 % of std^2 (root mean square), so methods closer together than
    that are not distinguished reliably.
    """
    n = len(noisy)
    entries = n * (n - 1) / 2
    estimates = _estimate(noisy, std, rank, project, _CANDIDATES)
    divergence = dict.fromkeys(_CANDIDATES, 0.0)
    probes = _draw_probes(n)
    for probe in probes:
        perturbed = _estimate(noisy + _STEP * std * probe, std, rank, project, _CANDIDATES)
        for name in _CANDIDATES:
            along = float(np.vdot(probe, perturbed[name] - estimates[name])) / 2
            divergence[name] += along / (_STEP * std) / len(probes)
    risks = {"none": std * std}
    for name in _CANDIDATES:
        distance = float(np.linalg.norm(estimates[name] - noisy)) ** 2 / 2
        risks[name] = (distance + 2 * std * std * divergence[name]) / entries - std * std
    best = min(risks, key=risks.__getitem__)
    return DenoisedGram(noisy if best == "none" else estimates[best], best, risks)


def _draw_probes(n: int) -> list[Float]:
    """Draw symmetric matrices of random signs with zero diagonal, the same for every matrix of this size.

    One probe of m signs errs by at most about std^2 sqrt(8 / m) in the risk of a nonexpansive denoiser, so there are
    ceil(10 000 / m) probes, at most 16, and one from n = 142 on.
    """
    entries = n * (n - 1) // 2
    rng = np.random.default_rng(n)
    probes = []
    for _ in range(min(_MOST_PROBES, -(-_PROBED_ENTRIES // entries))):
        upper = np.triu(2.0 * rng.integers(0, 2, (n, n), dtype=np.int8) - 1, 1)
        probes.append(upper + upper.T)
    return probes


def _check_noisy(noisy: ArrayLike) -> Float:
    must = "a symmetric matrix of real numbers with unit diagonal, at least 2 by 2"
    array = _validation.check_array(noisy, "noisy", must)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or len(array) < 2 or array.dtype.kind not in "fiu":
        _validation.reject("noisy", must, array)
    array = np.array(array, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InvalidParameter("noisy", "holds a NaN or an infinity.")
    largest = float(np.abs(array).max())
    if largest > 1e100:
        raise InvalidParameter("noisy", "holds entries above 1e100, where squares overflow.")
    if np.abs(array - array.T).max() > 1e-8 * largest or np.any(array.diagonal() != 1):
        _validation.reject("noisy", must, array)
    array += array.T.copy()
    array /= 2
    return array
