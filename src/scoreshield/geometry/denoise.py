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
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, validate
from scoreshield.errors import InvalidParameter
from scoreshield.geometry.arrays import Array, diagonal, like, norm, outer_square, row_dots
from scoreshield.geometry.spectrum import find_leading_pairs

Float = NDArray[np.float64]
#: Maps a symmetric matrix to the nearest valid cosine matrix, on the device of the matrix.
Project = Callable[[Array], Array]

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
        factor: Unit rows whose cosines are ``matrix``, where the method has them: ``"rank"``.
    """

    matrix: Float
    method: str
    risks: dict[str, float] = field(default_factory=dict)
    factor: Float | None = None


@dataclass
class _Estimates:
    """The estimates of several methods, and what they have in common.

    Attributes:
        matrices: The estimate of each method.
        factors: The unit rows of an estimate, where the method has them.
        leading: The leading eigenvectors of the noisy matrix, where they were needed.
    """

    matrices: dict[str, Array] = field(default_factory=dict)
    factors: dict[str, Array] = field(default_factory=dict)
    leading: Array = None


@validate(std=check_positive, method=one_of(METHODS), rank=check_count)
def denoise(noisy: ArrayLike, std: float, method: Denoiser, *, rank: int, project: Project) -> DenoisedGram:
    """Estimate the clean Gram matrix behind a noisy one.

    ``rank`` and ``shrinkage`` share the leading eigenvectors. ``shrinkage`` alone needs only those above the edge of
    the noise. ``projection`` and ``identity`` call ``project`` once each. ``sure`` does all of this once, and once more
    per probe, which starts from the eigenvectors of the first time.

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
    return denoise_array(array, std, method, rank=rank, project=project)


def denoise_array(noisy: Array, std: float, method: Denoiser, *, rank: int, project: Project) -> DenoisedGram:
    """Do the work of `denoise` for a checked matrix on any device. The estimate stays on that device."""
    if method == "none":
        return DenoisedGram(noisy, method)
    if method == "sure":
        return _choose_least_risk(noisy, std, rank, project)
    estimates = _estimate(noisy, std, rank, project, (method,))
    return DenoisedGram(estimates.matrices[method], method, factor=estimates.factors.get(method))


def _estimate(
    noisy: Array, std: float, rank: int, project: Project, methods: Collection[str], near: Array | None = None
) -> _Estimates:
    """Compute the estimates of several methods. ``near`` is the leading eigenvectors of a matrix near this one."""
    estimates = _Estimates()
    if "projection" in methods:
        estimates.matrices["projection"] = project(noisy)
    if "identity" in methods:
        estimates.matrices["identity"] = project(_pull_towards_identity(noisy, std))
    xp = array_namespace(noisy)
    n = noisy.shape[0]
    if "rank" in methods:
        values, vectors = find_leading_pairs(noisy, rank, near=near)
        rows, is_whole = _scale_rows(vectors * xp.sqrt(values))
        estimates.matrices["rank"] = _multiply_and_fill(rows)
        if is_whole:
            estimates.factors["rank"] = rows
    elif "shrinkage" in methods:
        # Eigenvalues up to the noise edge shrink to zero, so that only those above it are needed.
        values, vectors = find_leading_pairs(noisy, rank, _find_edge(std, n), near)
    if "shrinkage" in methods:
        estimates.leading = vectors
        above = values > _find_edge(std, n)
        values, vectors = values[above], vectors[:, above]
        estimates.matrices["shrinkage"] = _multiply_short_rows(vectors * xp.sqrt(_shrink(values, std, n)))
    return estimates


def _find_edge(std: float, n: int) -> float:
    """Compute the edge of the spectrum of the noise, 2 std sqrt(n)."""
    return 2 * std * math.sqrt(n)


def _shrink(values: Array, std: float, n: int) -> Array:
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
    xp = array_namespace(values)
    edge = _find_edge(std, n)
    above = xp.clip(values, edge, None)
    # The product of two roots: the squares lose digits at the edge and overflow far from it.
    return xp.sqrt(above - edge) * xp.sqrt(above + edge)


def _scale_rows(factor: Array) -> tuple[Array, bool]:
    """Scale rows to length one, so that F F^T becomes D^-1/2 X D^-1/2 for X = F F^T and D its diagonal.

    A zero row has no direction. It stays zero, and the filled diagonal makes it a unit vector that is similar to no
    other record.

    Returns:
        The rows, and whether none is zero.
    """
    xp = array_namespace(factor)
    if factor.shape[1] == 0:
        return factor, False
    lengths = xp.sqrt(row_dots(factor, factor))
    vanished = lengths <= 1e-14 * max(float(xp.max(lengths)), np.finfo(float).tiny)
    factor = factor / xp.where(vanished, xp.ones_like(lengths), lengths)[:, None]
    factor[vanished, :] = 0
    return factor, not bool(xp.any(vanished))


def _multiply_short_rows(factor: Array) -> Array:
    """Compute F F^T with rows of F longer than one scaled to length one, and then set the diagonal to one.

    Setting the diagonal adds a nonnegative diagonal matrix, so the result stays positive semidefinite and the
    shrunken entries do not change. Scaling short rows to length one as well would undo the shrinkage: with equal
    eigenvalues it gives ``rank`` again, and for a record that the eigenvectors hardly touch it amplifies the noise.
    """
    lengths = array_namespace(factor).sqrt(row_dots(factor, factor))
    return _multiply_and_fill(factor / array_namespace(factor).clip(lengths, 1.0, None)[:, None])


def _multiply_and_fill(factor: Array) -> Array:
    """Compute F F^T with unit diagonal, for rows of F no longer than one."""
    matrix = array_namespace(factor).clip(outer_square(factor), -1.0, 1.0)
    diagonal(matrix)[:] = 1.0
    return matrix


def _pull_towards_identity(noisy: Array, std: float) -> Array:
    """Compute I + a (Y - I), a = max(0, 1 - n (n - 1) std^2 / |Y - I|_F^2): positive-part James-Stein off the diagonal.

    Of all multiples of Y - I, that with a = 1 - m std^2 / |y|^2 over the m = n (n - 1) / 2 free entries y has the least
    estimated risk, up to the 2 in James and Stein's m - 2. The result is indefinite unless a (1 - l) <= 1 for
    the smallest eigenvalue l of Y, so it is projected afterwards; an exact projection onto a convex set that holds S
    only brings it nearer to S.
    """
    n = noisy.shape[0]
    shrunk = array_namespace(noisy).asarray(noisy, copy=True)
    diagonal(shrunk)[:] = 0.0
    size = norm(shrunk)
    noise = std * math.sqrt(n * (n - 1))
    shrunk *= 1 - (noise / size) ** 2 if size > noise else 0.0
    diagonal(shrunk)[:] = 1.0
    return shrunk


def _choose_least_risk(noisy: Array, std: float, rank: int, project: Project) -> DenoisedGram:
    """Find the candidate f with the least of Stein's unbiased risk estimates (Stein 1981).

    Over the m = n (n - 1) / 2 free entries, SURE = (|f(Y) - Y|^2 + 2 std^2 div f(Y)) / m - std^2. The divergence is
    the Monte-Carlo one of Ramani, Blu & Unser (2008), b . (f(Y + h b) - f(Y)) / h for random signs b, averaged over
    probes. A finite h also sees the jumps of ``rank`` (rows that change sign, eigenvalues that cross), where the
    derivative alone would miss them. The estimate is then noisier.

    With 200 records the estimates are off by 1 to 2 % of std^2 (root mean square), so methods closer together than
    that are not distinguished reliably.
    """
    xp = array_namespace(noisy)
    n = noisy.shape[0]
    entries = n * (n - 1) / 2
    estimates = _estimate(noisy, std, rank, project, _CANDIDATES)
    divergence = dict.fromkeys(_CANDIDATES, 0.0)
    probes = _draw_probes(n)
    for signs in probes:
        probe = like(signs, noisy)
        perturbed = _estimate(noisy + _STEP * std * probe, std, rank, project, _CANDIDATES, estimates.leading)
        for name in _CANDIDATES:
            along = float(xp.sum(row_dots(probe, perturbed.matrices[name] - estimates.matrices[name]))) / 2
            divergence[name] += along / (_STEP * std) / len(probes)
    risks = {"none": std * std}
    for name in _CANDIDATES:
        distance = norm(estimates.matrices[name] - noisy) ** 2 / 2
        risks[name] = (distance + 2 * std * std * divergence[name]) / entries - std * std
    best = min(risks, key=risks.__getitem__)
    estimates.matrices["none"] = noisy
    return DenoisedGram(estimates.matrices[best], best, risks, estimates.factors.get(best))


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
