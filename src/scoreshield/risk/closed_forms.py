"""Bounds on the expected squared error of a projected release, and its closed form for clipped scores.

The model is `ŝ = P_C(s + w)` with s in the convex feasible set C and w Gaussian, of standard deviation sigma
along every direction of the space that C spans. The risk is `E|ŝ - s|^2`, over all entries.

    regime       C                                     noise
    ``scores``   [a, b]^n                              N(0, sigma^2) on each score
    ``row``      the same, own entry fixed at 1        the same, none on the own entry
    ``gram``     the elliptope                         N(0, sigma^2 / 2) above the diagonal, mirrored, none on it

Sources: Oymak & Hassibi 2016 and Amelunxen et al. 2014 for cones; the ScoreShield paper for the local, the fourfold
global and the rank-aware bounds. The others are ours; docs/risk.md proves them. With H(x) = E min(max(z, 0), x)^2
for a standard normal z, the risk of one clipped score is exactly sigma^2 [H((b - s)/sigma) + H((s - a)/sigma)].

Nothing here is private: a figure that is computed from clean scores reveals something about them. Use public data, or
bounds that take only public facts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammainc, ndtr

from scoreshield import _validation
from scoreshield._validation import check_positive, one_of, validate, whole_from
from scoreshield.privacy.adjacency import FULL_RANGE, REGIMES, check_score_range

Float = NDArray[np.float64]
Range = tuple[float, float]
Regime = Literal["scores", "row", "gram"]
RankBound = Literal["rank", "rank-aware", "rank-aware (loose)"]

SMOOTHNESS = (
    "Gram-smoothness: the tangent cone of the elliptope at S equals the tangent space of the rank-r matrices there, "
    "which fails at every S of rank below n"
)
RANK_BOUNDS: tuple[str, ...] = get_args(RankBound)
FEASIBLE = 1e-8  # the rounding that is allowed in clean scores


def check_sigma(value: Any, name: str) -> float:
    """Check for a standard deviation whose square neither vanishes nor overflows."""
    sigma = check_positive(value, name)
    if not 1e-100 <= sigma <= 1e100:
        _validation.reject(name, "between 1e-100 and 1e100, where squares neither vanish nor overflow", sigma)
    return sigma


@dataclass(frozen=True)
class Bound:
    """An upper bound on the risk.

    Attributes:
        name: The name of the bound.
        value: Its value.
        formula: Its formula.
        condition: What must hold besides the model and the arguments; empty where nothing must.
    """

    name: str
    value: float
    formula: str
    condition: str = ""

    @property
    def conditional(self) -> bool:
        """Whether the bound has a condition. A conditional bound may be below the risk."""
        return bool(self.condition)


@dataclass(frozen=True, repr=False)
class Bounds:
    """Every bound on one risk, in ``all``. ``bounds["global"]`` is a bound by name."""

    regime: Regime
    n: int
    sigma: float
    all: tuple[Bound, ...]

    @property
    def valid(self) -> tuple[Bound, ...]:
        """The unconditional bounds."""
        return tuple(bound for bound in self.all if not bound.conditional)

    @property
    def conditional(self) -> tuple[Bound, ...]:
        """The conditional bounds."""
        return tuple(bound for bound in self.all if bound.conditional)

    @property
    def best(self) -> Bound:
        """The least of the unconditional bounds. The pointwise minimum of valid bounds is valid."""
        return min(self.valid, key=lambda bound: bound.value)

    def __getitem__(self, name: str) -> Bound:
        by_name = {bound.name: bound for bound in self.all}
        return by_name[_validation.check_option(name, "name", by_name)]

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.all)

    def __repr__(self) -> str:
        best = self.best
        return f"<Bounds {self.regime}, n = {self.n:,}, sigma = {self.sigma:g}: {best.value:.4g} ({best.name})>"

    def __str__(self) -> str:
        marks = {self.best.name: "least"} | {bound.name: "conditional" for bound in self.conditional}
        rows = [(b.name, f"{b.value:.4g}", marks.get(b.name, ""), b.formula) for b in self.all]
        return write_table(f"{self.regime}, n = {self.n:,}, sigma = {self.sigma:g}", rows, self.conditional)


@validate(regime=one_of(REGIMES), sigma=check_sigma, active=whole_from(0))
def bounds(
    regime: Regime,
    n: int,
    sigma: float,
    *,
    active: int = 0,
    rank: int | None = None,
    diagonal_noise: bool = False,
    score_range: Range = FULL_RANGE,
) -> Bounds:
    """Compute every known upper bound on the risk of the projected release.

    Args:
        regime: "scores", "row" or "gram".
        n: The number of records.
        sigma: The calibrated scale. For a Gram matrix it is that of the Frobenius sensitivity, with standard deviation
            sigma / sqrt(2) per entry.
        active: For scores and row: the number of clean scores (besides the row's own) at an end of the range. 0 is
            always valid, and the only public choice.
        rank: For gram: the rank of the clean matrix. The bound named "rank" also holds with any upper bound on it,
            such as the public dimension of the embeddings.
        diagonal_noise: For row and gram: the naive release of the paper, with noise on the self-similarities too. The
            projection removes that noise, so the other bounds stay.
        score_range: For scores and row: the public range that scores are clamped to.
    """
    n = check_record_count(n, regime)
    low, high = check_regime_range(score_range, regime)
    if not isinstance(diagonal_noise, bool | np.bool_) or (diagonal_noise and regime == "scores"):
        _validation.reject("diagonal_noise", "False for scores, True or False for row and gram", diagonal_noise)
    free = n if regime == "scores" else n - 1
    if active > (0 if regime == "gram" else free):
        must = "0 for a Gram matrix" if regime == "gram" else f"at most {free}, the number of free scores"
        _validation.reject("active", must, active)
    if rank is not None:
        rank = check_rank(rank, regime, n)
    complexity = gaussian_complexity(regime, n, score_range=(low, high))
    shared = (
        Bound("global (paper)", 4 * sigma * complexity, "4 sigma GC(C)"),
        Bound("global", sigma * complexity, "sigma GC(C)"),
    )
    if regime == "gram":
        every = _list_gram_bounds(n, sigma, rank, bool(diagonal_noise), shared)
    else:
        every = _list_box_bounds(free, active, sigma, (high - low) / 2, bool(diagonal_noise), shared)
    return Bounds(regime, n, sigma, every)


def _list_box_bounds(
    free: int, active: int, sigma: float, half: float, own_noise: bool, shared: tuple[Bound, ...]
) -> tuple[Bound, ...]:
    middle, end = 2 * _compute_half_risk(half, sigma), _compute_half_risk(2 * half, sigma)
    worst = active * end + (free - active) * max(middle, end)
    return (
        Bound("naive", sigma**2 * (free + own_noise), "sigma^2 times the noisy entries"),
        Bound("local", sigma**2 * (free - active / 2), "sigma^2 (free entries - active / 2)"),
        *shared,
        Bound("size", 2 * free * half**2, "free entries times (b - a)^2 / 2"),
        Bound("worst case", worst, "active R(b) + (free entries - active) max(R(b), R((a + b) / 2)), R the exact risk"),
    )


def _list_gram_bounds(
    n: int, sigma: float, rank: int | None, diagonal_noise: bool, shared: tuple[Bound, ...]
) -> tuple[Bound, ...]:
    pairs = n * (n - 1) // 2
    general = (
        Bound(
            "naive", sigma**2 * (pairs + n * diagonal_noise), f"sigma^2 n (n {'+' if diagonal_noise else '-'} 1) / 2"
        ),
        Bound("dimension", sigma**2 * pairs, "sigma^2 n (n - 1) / 2"),
        *shared,
        Bound("size", 2.0 * n**2, "2 n^2"),
    )
    if rank is None:
        return general
    tight, loose = (_compute_rank_dimension(name, n, rank) for name in ("rank-aware", "rank-aware (loose)"))
    return (
        *general,
        Bound("rank", sigma**2 * _compute_rank_dimension("rank", n, rank), "sigma^2 (3 r (n - r) + r (r + 3) / 2)"),
        Bound("rank-aware", sigma**2 * tight, "sigma^2 (n (r - 1) - r (r - 1) / 2)", SMOOTHNESS),
        Bound("rank-aware (loose)", sigma**2 * loose, "sigma^2 n r", SMOOTHNESS),
    )


def _compute_rank_dimension(name: str, n: int, r: int) -> float:
    if name == "rank":
        return 3 * r * (n - r) + r * (r + 3) / 2
    return n * (r - 1) - r * (r - 1) / 2 if name == "rank-aware" else float(n * r)


@validate(n=whole_from(2), sigma=check_sigma, name=one_of(RANK_BOUNDS))
def crossover_rank(n: int, sigma: float, *, name: RankBound = "rank-aware") -> int:
    """Find the largest rank at which a rank bound is at most the best bound that uses no rank.

    Args:
        n: The number of records.
        sigma: The calibrated scale.
        name: "rank" (unconditional), "rank-aware" or "rank-aware (loose)" (both conditional).

    Returns:
        The rank, or 0 where there is none.
    """
    best = bounds("gram", n, sigma).best.value
    # Each bound grows with r, or is above n (n - 1) / 2 and so above the best. So bisection is valid.
    return bisect_right(range(1, n + 1), 0, key=lambda r: int(sigma**2 * _compute_rank_dimension(name, n, r) > best))


@validate(regime=one_of(REGIMES))
def gaussian_complexity(regime: Regime, n: int, *, score_range: Range = FULL_RANGE) -> float:
    """Compute GC(C) = E sup_{x in C} <z, x> for a standard Gaussian z of the space that C spans.

    It is exact for scores, (b - a) n / sqrt(2 pi), and for a row. For the elliptope it is an upper bound: n sqrt(2 n),
    tight to first order as n grows, or n (n - 1) / sqrt(pi) from the entries alone, which is less up to n = 8 and exact
    at n = 2.
    """
    n = check_record_count(n, regime)
    low, high = check_regime_range(score_range, regime)
    if regime == "gram":
        return min(n * math.sqrt(2 * n), n * (n - 1) / math.sqrt(math.pi))
    return (n if regime == "scores" else n - 1) * (high - low) / math.sqrt(2 * math.pi)


@validate()
def statistical_dimension_box(
    x: ArrayLike, score_range: Range = FULL_RANGE, multipliers: ArrayLike | None = None, tol: float = 0.0
) -> float:
    """Compute the statistical dimension of the box's critical cone at x.

    A free entry counts 1, an active one 1/2, and a strictly active one 0.

    Args:
        x: A point of the box.
        score_range: The box.
        multipliers: y - x, where x is the projection of y. An active entry is strictly active where this is not 0.
            None means all 0. The cone is then the tangent cone, which bounds the risk at a clean x.
        tol: Entries this near to an end are active, and multipliers this near to 0 are 0.
    """
    return float(_count_dimensions(x, score_range, multipliers, tol, None).sum())


@validate(index=whole_from(0))
def statistical_dimension_row(
    x: ArrayLike,
    index: int,
    score_range: Range = FULL_RANGE,
    multipliers: ArrayLike | None = None,
    tol: float = 0.0,
) -> float:
    """Compute the same for the row of record ``index``, whose own entry is fixed at 1 and counts 0."""
    return float(_count_dimensions(x, score_range, multipliers, tol, index).sum())


def _count_dimensions(
    x: ArrayLike, score_range: Range, multipliers: ArrayLike | None, tol: float, index: int | None
) -> Float:
    low, high = check_score_range(score_range)
    tol = _validation.check_real(tol, "tol", "a finite number, at least 0")
    if tol < 0:
        _validation.reject("tol", "a finite number, at least 0", tol)
    point = check_clean_scores(x, "x", (low, high), index)
    active = (point <= low + tol) | (point >= high - tol)
    dimensions = np.where(active, 0.5, 1.0)
    if multipliers is not None:
        must = "an array like 'x' of finite numbers, 0 wherever 'x' is inside the range"
        pull = _validation.check_array(multipliers, "multipliers", must)
        if pull.shape != point.shape or pull.dtype.kind not in "fiu" or not np.isfinite(pull).all():
            _validation.reject("multipliers", must, pull)
        strict = np.abs(pull) > tol
        if np.any(strict & ~active):
            _validation.reject("multipliers", must, pull)
        dimensions[strict] = 0.0
    if index is not None:
        dimensions[index] = 0.0
    return dimensions


@validate(sigma=check_sigma, score_range=check_score_range)
def exact_risk(
    clean_scores: ArrayLike, sigma: float, score_range: Range = FULL_RANGE, index: int | None = None
) -> float:
    """Compute the exact risk of clipped Gaussian noise at these scores: sum_j E (clip(s_j + w_j, a, b) - s_j)^2.

    The value is accurate to rounding at any sigma. It depends on the clean scores, so it is no more public than they
    are.

    Args:
        clean_scores: The clean scores.
        sigma: The standard deviation of the noise.
        score_range: The public range.
        index: The position of the row's own entry, which is released as the constant 1; None for scores.
    """
    low, high = score_range
    scores = check_clean_scores(clean_scores, "clean_scores", (low, high), index)
    if index is not None:
        scores = np.delete(scores, index)
    return float((_compute_half_risk(high - scores, sigma) + _compute_half_risk(scores - low, sigma)).sum())


def _compute_half_risk(room: Any, sigma: float) -> Any:
    """Compute E min(max(w, 0), room)^2 for w ~ N(0, sigma^2).

    This is the integral of w^2 up to ``room`` plus room^2 P[w > room]. The textbook form of the first, Phi(x) - 1/2 -
    x phi(x), cancels for small x. The incomplete gamma function does not.
    """
    x = room / sigma
    return sigma**2 / 2 * gammainc(1.5, x**2 / 2) + room**2 * ndtr(-x)


def check_clean_scores(value: ArrayLike, name: str, ends: Range, index: int | None) -> Float:
    """Check for finite scores within a range, with 1 at the row's own entry."""
    must = f"finite scores, shape (n,), within [{ends[0]:g}, {ends[1]:g}] (clip them first)"
    array = _validation.check_array(value, name, must)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "fiu":
        _validation.reject(name, must, array)
    scores = array.astype(np.float64)
    inside = (scores >= ends[0]) & (scores <= ends[1])
    if index is not None:
        if _validation.check_count(index, "index", least=0) >= len(scores) or len(scores) < 2:
            _validation.reject("index", "a position in a row of at least 2 scores", index)
        if not abs(scores[index] - 1) <= FEASIBLE:
            _validation.reject(name, "1 at 'index', a record's similarity with itself", scores[index])
        scores[index], inside[index] = 1.0, True
    if not inside.all():
        _validation.reject(name, must, array)
    return scores


def check_record_count(n: int, regime: Regime) -> int:
    """Check for a number of records."""
    return _validation.check_count(n, "n", least=1 if regime == "scores" else 2)


def check_regime_range(score_range: Range, regime: Regime) -> Range:
    """Check for a public range, which is (-1, 1) for a Gram matrix."""
    ends = check_score_range(score_range)
    if regime == "gram" and ends != FULL_RANGE:
        # A clamped cosine matrix may not be positive semidefinite, and every bound needs the truth in the feasible set.
        _validation.reject("score_range", "(-1, 1) for a Gram matrix", score_range)
    return ends


def check_rank(value: int | None, regime: Regime, n: int) -> int:
    """Check for the rank of a Gram matrix of n records."""
    must = f"a whole number from 1 to {n}, for a Gram matrix"
    if regime != "gram" or value is None:
        _validation.reject("rank", must if regime == "gram" else "None for scores and row", value)
    rank = _validation.check_count(value, "rank")
    if rank > n:
        _validation.reject("rank", must, value)
    return rank


def write_table(head: str, rows: Sequence[tuple[str, ...]], conditional: tuple[Bound, ...]) -> str:
    """Write rows in aligned columns, with the conditions of the conditional bounds below."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"conditional: {condition}" for condition in sorted({bound.condition for bound in conditional})]
    return "\n".join([head, *("  " + line for line in lines), *notes])
