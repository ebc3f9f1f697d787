"""The exact projection onto the elliptope from the positive eigenvectors alone, without a full eigendecomposition.

The dual function `θ(y) = (1/2) |(A + Diag y)_+|_F^2 - Σ_i y_i` and its gradient need only the positive part of
A + Diag y. Under noise that part has low rank. A block of eigenvectors follows it from one y to the next:

* *Block.* A polynomial of A + Diag y (Chebyshev's, Zhou et al. 2006) enlarges the wanted eigenvectors, and a small
  eigenproblem (Rayleigh and Ritz) separates them. The degree adapts to the accuracy that the next step needs.
* *Step.* The generalised Hessian of Newton's method is exact between the eigenvectors of the block. The other
  eigenvalues enter by an average that has their mean and their variance. Secant pairs (L-BFGS) correct the rest.
* *Heavy noise.* The solution has rank about sqrt(2n). Unit rows V with V V^T near it are found first
  (`scoreshield.geometry.low_rank`).

The filter multiplies residuals, in single precision where that is faster. The last small eigenproblems use double.
Nothing here is proved: `scoreshield.geometry.gap_proof` proves the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from scoreshield.geometry.arrays import (
    Array,
    Progress,
    diagonal,
    draw_normal,
    factor_cholesky,
    invert_triangle,
    is_single_faster,
    like,
    list_panels,
    norm,
    normalise_factor,
    row_dots,
    to_numpy,
)
from scoreshield.geometry.conjugate import solve_by_gradients
from scoreshield.geometry.low_rank import LowRankDescent

STEPS = 60
WIDEST = 0.4  # of n: a wider block costs more than full eigendecompositions
_ORTHOGONAL = 0.9  # such a distance: nearly orthonormal columns
_COARSE = 3e-3  # below this, products in single precision are too inexact to make columns orthogonal
_NEARLY_DEPENDENT = 1e-5  # distance of a unit column from those before it: below this, QR by reflections
_LOW_RANK = 0.35  # times sqrt(2n): below this rank of the first block the low-rank start is used
_HEAVY = 0.5  # of the shift: under heavy noise no kept eigenvalue exceeds this
_WIDE_NOISE = 2.0  # with less noise than this on the spectrum, Newton's method needs few steps
_WIDTH = 1.3  # of the rank: the width of the block
_SPARE = 15  # columns of the block beyond that
_SEARCH_TOL = 3.0  # of the solution's own scale: the accuracy of the low-rank start
_WARM = 0.3  # the largest residual of a warm start
_SEARCH_STEPS = 600  # the most steps of one search for a low-rank start
_RESTARTS = 3  # the most further searches of one projection, each for a nearer start
_FINEST_SEARCH = 1e-13  # near rounding: a start of this accuracy is not improved
_SLOW_STEPS = 12  # steps over which the residual must halve
_ACCURACY = 0.03  # of the residual: the error of the next gradient
_ROUNDS = 12  # the most rounds of filter and Rayleigh-Ritz for one y
_SINGLE = 4e-7  # the error of products in single precision, with a margin
_CURVATURE = 1e-3  # the accuracy of the Hessian
_LEADING_WIDTH = 1.25  # of the number of leading eigenvectors: the width of their block
_LEADING_COST = 1.5  # times n: the most columns that are multiplied, on a CPU, before a decomposition is faster
_LEADING_SINGLE = 1e-5  # of the largest eigenvalue: the residual at which single precision ends
_NEAR = 1e-2  # the residual of a block that is near the wanted one
_MEMORY = 8  # secant pairs
_CG_STEPS = 120
_NARROW = 0.1  # of n: in a block up to this width, a step is tried within the block before it is taken
_FEW = 50  # or this many columns
_DOUBT = 3.0  # times the residual: a step that is predicted to exceed this is replaced
_TRIALS = 6  # the most such trials for one step
_SEED = 0x9E3779B97F4A7C15
_SMALLEST_STEP = 2.0**-12
_SMALLEST_TRIAL = 2.0**-30
_FAR = 1.6  # half-widths of the damped interval above its middle: eigenvalues beyond are filtered on their own
_GROWTH = 9.0  # the logarithm of the largest growth of a column relative to the others


@dataclass
class Spectrum:
    """Ends of the spectrum of a matrix, its density, and the shift and rank of the scalar start, all estimated."""

    low: float
    high: float
    shift: float  # c with trace (A - c I)_+ = n
    rank: float  # the number of eigenvalues above c
    nodes: NDArray[np.float64]  # points of the spectrum in falling order
    mass: NDArray[np.float64]  # the number of eigenvalues near each

    def count_above(self, floor: float) -> float:
        """Estimate the number of eigenvalues above a floor."""
        return float(self.mass[self.nodes > floor].sum())

    def find_quantile(self, count: float) -> float:
        """Estimate the eigenvalue that is exceeded by this number of others."""
        return float(np.interp(count, np.cumsum(self.mass) - self.mass / 2, self.nodes))


@dataclass
class PositivePart:
    """The dual function at one y, from a block of approximate eigenpairs in falling order."""

    y: Array
    values: Array
    vectors: Array  # in single precision where that is accurate enough
    images: Array  # A times the vectors, without Diag y; None after they are released, to save memory
    error: float  # an estimate of the root mean square error of the gradient
    lift: float  # an estimate of how far (A + Diag y)_+ - A - Diag y is from being positive semidefinite

    def __post_init__(self) -> None:
        xp = array_namespace(self.values)
        self.rank = int(xp.sum(self.values > 0))
        kept = xp.astype(self.values[: self.rank], self.vectors.dtype)
        squares = self.vectors[:, : self.rank] ** 2
        self.gradient = xp.astype(squares @ kept, self.y.dtype) - 1

    @property
    def residual(self) -> float:
        """The root mean square violation of the unit diagonal."""
        return norm(self.gradient) / math.sqrt(len(self.y))


@dataclass
class WarmStart:
    """The end of an earlier projection, from which that of a nearby matrix starts; empty before the first."""

    multipliers: Array = None
    vectors: Array = None


@dataclass
class PartialSolution:
    """What the solver found, and the work.

    Attributes:
        factor: F with F F^T = (A + Diag y)_+. Its rows are nearly of unit length.
        multipliers: y.
        residual: The root mean square violation of the unit diagonal.
        lift: An estimate of how far F F^T - A - Diag y is from being positive semidefinite.
        products: The columns that were multiplied by the matrix, over its size.
    """

    factor: Array
    multipliers: Array
    residual: float
    lift: float
    iterations: int
    products: float


class _FilterShape(NamedTuple):
    """Chebyshev's polynomial that is small on [low, cut] and 1 at the top."""

    low: float
    cut: float
    top: float
    degree: int

    @property
    def half(self) -> float:
        """Half the length of the interval."""
        return (self.cut - self.low) / 2

    @property
    def middle(self) -> float:
        """The middle of the interval."""
        return (self.cut + self.low) / 2


class PartialSolver:
    """A solver of one projection. It keeps its block, so that a later call continues to a smaller tolerance.

    Args:
        matrix: Symmetric. It is read and not modified.
        limit: The most steps in all.
        progress: Called with the steps done and the limit.
        warm: Where the solver starts, if it is not empty, and where it leaves its end.
        most: The most columns to multiply, over the size of the matrix. No further step is taken after it.
    """

    def __init__(
        self,
        matrix: Array,
        limit: int = STEPS,
        progress: Progress | None = None,
        warm: WarmStart | None = None,
        most: float = math.inf,
    ) -> None:
        self.matrix, self.limit, self.progress = matrix, limit, progress
        self._warm = WarmStart() if warm is None else warm
        self.size = matrix.shape[0]
        self.columns = self.iterations = 0
        self._most_columns = most * self.size
        # Not a seed that a caller is likely to have drawn the matrix from, because the vectors must not depend on it.
        self._rng = np.random.default_rng([_SEED, self.size])
        xp = array_namespace(matrix)
        self._norm = norm(matrix)
        self._trace = float(xp.sum(diagonal(matrix)))
        self._single: Array = None  # a copy in single precision
        self._degree = 6
        self._point: PositivePart | None = None
        self._search: LowRankDescent | None = None
        self._search_tol = math.inf
        self._restarts = _RESTARTS
        self._pairs: list[tuple[Array, Array]] = []
        self._is_single_allowed = is_single_faster(matrix) and 1e-15 < self._norm < 1e15
        self._fast: Any = xp.float32 if self._is_single_allowed else matrix.dtype
        self.spectrum = self._estimate_spectrum()

    @property
    def is_spent(self) -> bool:
        """Whether no further step is allowed."""
        return self.iterations >= self.limit or self.columns >= self._most_columns

    def is_suitable(self) -> bool:
        """Whether the positive part is estimated to be narrow enough for a block, and apart from the rest."""
        spectrum = self.spectrum
        return _WIDTH * spectrum.rank + _SPARE <= WIDEST * self.size and spectrum.low < -_WIDE_NOISE

    def solve(self, tol: float) -> PartialSolution | None:
        """Go on until the residual is at most ``tol``, or no step improves it.

        Returns:
            The solution, or None where the positive part is too wide for a block.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # checked where the block is separated
                start = self._start() if self._point is None else self._point
                if start is not None and start.images is None:
                    start.images = self._multiply(start.vectors)
                point = None if start is None else self._iterate(start, tol)
                point = None if point is None else self._restart(point, tol)
        except FloatingPointError:
            return None
        finally:
            self._single = None  # half a matrix, which the proof needs
        if point is None:
            return None
        self._point = point
        self._warm.multipliers, self._warm.vectors = point.y, point.vectors
        point.images = None  # a later call computes them again, so that the proof has more memory
        xp = array_namespace(point.y)
        return PartialSolution(
            xp.astype(point.vectors[:, : point.rank], point.y.dtype) * xp.sqrt(point.values[: point.rank]),
            point.y,
            point.residual,
            point.lift,
            self.iterations,
            self.columns / self.size,
        )

    def find_leading(
        self, count: int, floor: float, residual: float, near: Array | None = None
    ) -> tuple[Array, Array] | None:
        """Find the largest eigenvalues of the matrix itself, in falling order, and their vectors.

        Args:
            count: The most pairs.
            floor: Eigenvalues up to this are not wanted.
            residual: The allowed residual of each pair, relative to the largest eigenvalue.
            near: Vectors near the wanted ones, such as those of a matrix near this one.

        Returns:
            The values and vectors, or None where an eigendecomposition is estimated to be faster, or is needed.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # checked where the block is separated
                return self._find_leading(count, floor, residual, near)
        except FloatingPointError:
            return None

    def _find_leading(
        self, count: int, floor: float, residual: float, near: Array | None
    ) -> tuple[Array, Array] | None:
        xp = array_namespace(self.matrix)
        n, spectrum = self.size, self.spectrum
        largest = max(-spectrum.low, spectrum.high)
        wanted = min(float(count), spectrum.count_above(floor))
        width = math.ceil(_LEADING_WIDTH * max(wanted, 0 if near is None else near.shape[1])) + _SPARE
        cut = min(spectrum.find_quantile(width), floor if floor > 0 else math.inf)
        half, middle = (cut - spectrum.low) / 2, (cut + spectrum.low) / 2
        edge = max(floor, spectrum.find_quantile(wanted))
        if half <= 1e-9 * largest or edge <= cut:
            return None
        growth = math.acosh((edge - middle) / half)
        needed = math.log((1 if near is None else _NEAR) / residual) / growth
        most = _LEADING_COST if self._is_single_allowed else 10 * _LEADING_COST  # as a GPU decomposes slowly
        if needed * width > most * n:
            return None
        zero = xp.zeros_like(diagonal(self.matrix))
        block = self._draw(width, self._fast)
        if near is not None:
            block[:, : near.shape[1]] = xp.astype(near, self._fast)
        image = self._multiply(block)
        values = xp.zeros_like(zero[:width]) + middle
        reach = math.acosh(max((spectrum.high - middle) / half, 1.001))
        self._degree = max(2, min(8, int(_GROWTH / reach)))
        is_single, before = self._is_single_allowed, math.inf
        for _ in range(4 + math.ceil(3 * needed / 8)):
            values, block, image, residuals = self._separate(
                self._filter_block(values, block, image, zero, cut, spectrum.low, is_single), zero, is_single
            )
            self._degree = 8
            cut = float(values[-1])
            if cut >= floor > 0:
                return None  # more pairs than estimated
            above = min(count, int(xp.sum(values > floor)))
            error = float(xp.max(residuals[: max(1, above)])) / largest  # of the first, where none is wanted
            if not is_single and error <= residual:
                return values[:above], block[:, :above]
            is_single = is_single and error > _LEADING_SINGLE and error < 0.5 * before
            before = error
        return None

    # Products and blocks

    def _multiply(self, block: Array) -> Array:
        """Compute A times a block, in the precision of the block."""
        self.columns += block.shape[1]
        if block.dtype == self.matrix.dtype:
            return self.matrix @ block
        return self._make_single() @ block

    def _make_single(self) -> Array:
        if self._single is None:
            self._single = array_namespace(self.matrix).astype(self.matrix, self._fast)
        return self._single

    def _shift_single(self, shifts: Array | None) -> Callable[[Array], Array]:
        """Return a function that multiplies A + Diag(shifts) by a block in the precision of the filter.

        The shifts are added to the diagonal of the copy in single precision, which saves two passes over the block,
        until this is called with None.
        """
        xp = array_namespace(self.matrix)
        if self._fast == self.matrix.dtype:
            column: Array = None if shifts is None else shifts[:, None]
            return lambda block: self._multiply(block) + column * block
        single = self._make_single()
        own = diagonal(self.matrix)
        diagonal(single)[:] = xp.astype(own if shifts is None else own + shifts, single.dtype)
        return self._multiply

    def _choose_precision(self, accuracy: float, values: Array) -> bool:
        """Whether single precision is enough for a gradient of this accuracy."""
        if not self._is_single_allowed:
            return False
        spread = max(abs(self.spectrum.low), abs(self.spectrum.high))
        kept = values[values > 0]
        typical = norm(kept) / math.sqrt(max(1, len(kept)))
        return accuracy > _SINGLE * spread / max(typical, 1e-300)

    def _draw(self, width: int, dtype: Any = None) -> Array:
        """Draw a random block, in double precision unless another type is given."""
        drawn = draw_normal(self._rng, (self.size, width), self.matrix)
        return array_namespace(drawn).astype(drawn, self.matrix.dtype if dtype is None else dtype, copy=False)

    def _estimate_spectrum(self) -> Spectrum:
        """Estimate the spectrum by Lanczos steps from several random vectors at once."""
        xp = array_namespace(self.matrix)
        n, probes = self.size, 8
        steps = min(20, n)
        current = self._draw(probes, self._fast)
        current = current / xp.sqrt(row_dots(current.T, current.T))
        before, beta = xp.zeros_like(current), xp.zeros_like(current[0, :])
        alphas, betas = [], []
        for _ in range(steps):
            image = self._multiply(current) - beta * before
            alpha = row_dots(current.T, image.T)
            image = image - alpha * current
            beta = xp.sqrt(row_dots(image.T, image.T))
            alphas.append(to_numpy(alpha).astype(float))
            betas.append(to_numpy(beta).astype(float))
            before, current = current, image / xp.clip(beta, 1e-30, None)
        nodes, weights = [], []
        low, high = math.inf, -math.inf
        for probe in range(probes):
            main, side = [a[probe] for a in alphas], [b[probe] for b in betas]
            values, vectors = np.linalg.eigh(np.diag(main) + np.diag(side[:-1], 1) + np.diag(side[:-1], -1))
            nodes.append(values)
            weights.append(n / probes * vectors[0] ** 2)
            reach = np.abs(side[-1] * vectors[-1])
            low, high = min(low, values[0] - reach[0]), max(high, values[-1] + reach[-1])
        order = np.argsort(-np.concatenate(nodes))
        falling, mass = np.concatenate(nodes)[order], np.concatenate(weights)[order]
        shifts = (np.cumsum(falling * mass) - n) / np.maximum(np.cumsum(mass), 1e-300)
        above = max(1, int((falling > shifts).sum()))
        return Spectrum(float(low), float(high), float(shifts[above - 1]), float(mass[:above].sum()), falling, mass)

    def _filter_block(
        self, values: Array, vectors: Array, images: Array, y: Array, cut: float, low: float, is_single: bool
    ) -> Array:
        """Damp the eigenvectors of A + Diag y in [low, cut] within a block of approximate eigenpairs.

        Chebyshev's polynomial grows so fast that an eigenvalue far above the others would leave only its own vector in
        every column. Those vectors are filtered on their own, by a lower degree. In the other columns their
        eigenvalues are moved down to the first of the rest, by a correction of low rank.
        """
        xp = array_namespace(values)
        dtype = xp.float32 if is_single else self.matrix.dtype
        low = min(
            low, cut - 1e-3 * max(abs(float(values[0])), abs(cut), 1e-300)
        )  # damping more than needed is harmless
        shape = _FilterShape(low, cut, max(float(values[0]), cut), self._degree)
        half, middle = shape.half, shape.middle
        own = vectors.dtype
        rest = xp.asarray(images, copy=True)
        for start, end in list_panels(self.size):
            rest[start:end, :] += xp.astype(y[start:end, None] - values, own) * vectors[start:end, :]
        reach = (float(values[0]) - middle) / half
        far = int(xp.sum(values > middle + _FAR * half))
        if far == 0 or self._degree * math.acosh(max(reach, 1.0)) < _GROWTH:
            return self._filter(values, vectors, rest, y, shape, dtype)
        degree = self._degree if far == 1 else max(2, min(self._degree, int(_GROWTH / math.acosh(reach))))
        space, ends = vectors[:, :far], rest[:, :far]
        within = space.T @ (ends + xp.astype(values[:far], own) * space)
        outer = self._filter(values[:far], space, ends, y, _FilterShape(low, cut, float(values[0]), degree), dtype)
        if far == len(values):
            return outer
        shape = shape._replace(top=max(float(values[far]), cut))
        diagonal(within)[:] -= shape.top
        weighted = space @ within
        inside = vectors[:, far:]
        rest = rest[:, far:] - weighted @ (space.T @ inside)
        removed = xp.astype(weighted, self._fast), xp.astype(space, self._fast)
        inner = self._filter(values[far:], inside, rest, y, shape, dtype, removed)
        return xp.concat([outer, inner], axis=1)

    def _filter(
        self,
        values: Array,
        vectors: Array,
        rest: Array,
        y: Array,
        shape: _FilterShape,
        dtype: Any,
        removed: tuple[Array, Array] | None = None,
    ) -> Array:
        """Apply a polynomial p of A + Diag y, less what is removed, to approximate eigenpairs.

        With B the matrix, v a vector, λ its value and r = B v - λ v its residual, p(B) v = p(λ) v + w, where w is
        proportional to r. Only w is multiplied by the matrix, so that the rounding of the products is proportional to
        r too, and single precision is enough wherever it is faster. The residuals are overwritten.
        """
        xp = array_namespace(vectors)
        half, middle = shape.half, shape.middle
        ratio = half / max(shape.top - middle, half)
        scale = ratio
        work = self._fast
        shifts = y - middle
        places = (values - middle) / half
        before, factors = xp.ones_like(places), scale * places
        rest = xp.astype(rest, work, copy=False)
        rest *= 1 / half
        block, current = xp.zeros_like(rest), scale * rest
        multiply = self._shift_single(shifts)
        try:
            for _ in range(shape.degree - 1):
                following = 1 / (2 / ratio - scale)
                fresh = multiply(current)
                if removed is not None:
                    fresh -= removed[0] @ (removed[1].T @ current)
                fresh *= 2 * following / half
                fresh += xp.astype(2 * following * factors, work) * rest
                block *= scale * following
                fresh -= block
                before, factors = factors, 2 * following * places * factors - scale * following * before
                block, current, scale = current, fresh, following
        finally:
            self._shift_single(None)
        del rest, block
        result = xp.astype(current, dtype, copy=False)
        for start, end in list_panels(self.size):
            result[start:end, :] += xp.astype(factors, dtype) * xp.astype(vectors[start:end, :], dtype)
        return result

    def _separate(self, block: Array, y: Array, is_single: bool) -> tuple[Array, Array, Array, Array]:
        """Find the eigenpairs of A + Diag y within the span of a block, their images, and the residual of each.

        The block is overwritten.
        """
        xp = array_namespace(self.matrix)
        dtype = xp.float32 if is_single else self.matrix.dtype
        block, inverse = _condition(xp.astype(block, dtype, copy=False))
        shifts = xp.astype(y, dtype)[:, None]
        image = self._multiply(block)
        for start, end in list_panels(self.size):
            image[start:end, :] += shifts[start:end] * block[start:end, :]
        inner = block.T @ image
        if not bool(xp.all(xp.isfinite(inner))):
            raise FloatingPointError
        if inverse is not None:
            inner = inverse @ inner @ inverse.T
        values, rotation = xp.linalg.eigh((inner + inner.T) / 2)
        values, rotation = xp.flip(values), xp.flip(rotation, axis=1)
        if inverse is not None:
            rotation = inverse.T @ rotation
        squares = xp.zeros_like(values)
        for start, end in list_panels(self.size):  # in place, to save memory
            own, panel = block[start:end, :] @ rotation, image[start:end, :] @ rotation
            rest = panel - own * values
            squares += row_dots(rest.T, rest.T)
            panel -= shifts[start:end] * own
            block[start:end, :], image[start:end, :] = own, panel
        double = self.matrix.dtype
        return xp.astype(values, double), block, image, xp.astype(xp.sqrt(squares), double)

    def _estimate_error(self, values: Array, residuals: Array) -> float:
        """Estimate the error of the gradient: eigenvectors mix with those outside of the block."""
        xp = array_namespace(values)
        kept = xp.clip(values, 0.0, None)
        outside = abs(min(float(values[-1]), 0.0)) + 1e-300
        return 2 * norm(kept * residuals / (kept + outside)) / float(self.size)

    # The start

    def _start(self) -> PositivePart | None:
        """Find the warm start, the scalar start, or the low-rank start under heavy noise."""
        xp = array_namespace(self.matrix)
        if self._warm.vectors is not None:
            point = self._start_warm(self._warm.multipliers, self._warm.vectors)
            if point is not None and point.residual < _WARM:
                return point
        n, spectrum = self.size, self.spectrum
        zero = xp.zeros_like(diagonal(self.matrix))
        width = min(n, math.ceil(_WIDTH * spectrum.rank + _SPARE))
        cut = spectrum.shift - 0.15 * min(spectrum.high - spectrum.shift, spectrum.shift - spectrum.low)
        is_single = self._is_single_allowed
        block = self._draw(width, self._fast)
        image = self._multiply(block)
        half, middle = (cut - spectrum.low) / 2, (cut + spectrum.low) / 2
        if half <= 1e-9 * abs(spectrum.high):
            return None  # nothing to damp, so that no eigenvector stands out
        reach = max((spectrum.high - middle) / half, 1.001)
        self._degree = max(2, min(8, int(_GROWTH / math.acosh(reach))))
        values = xp.zeros_like(zero[:width]) + middle  # unknown, and none far above the others
        for _ in range(_ROUNDS):
            if width > WIDEST * n:
                return None
            values, block, image, residuals = self._separate(
                self._filter_block(values, block, image, zero, cut, spectrum.low, is_single), zero, is_single
            )
            cut = float(values[-1])
            shifts = (xp.cumulative_sum(values) - n) / like(np.arange(1.0, width + 1), values)
            rank = max(1, int(xp.sum(values > shifts)))
            shift = float(shifts[rank - 1])
            error = self._estimate_error(values - shift, residuals)
            self._degree = 6 if float(values[0]) < middle + _FAR * half else 8
            if rank > 0.9 * width:  # too narrow
                extra = self._draw(max(10, width // 3), block.dtype)
                block = xp.concat([block, extra], axis=1)
                image = xp.concat([image, self._multiply(extra)], axis=1)
                values = xp.concat([values, xp.zeros_like(zero[: extra.shape[1]]) + cut])
                width = block.shape[1]
            elif rank < _LOW_RANK * math.sqrt(2 * n) and float(values[0]) - shift < _HEAVY * abs(shift) and error < 0.5:
                return self._start_low_rank(block[:, :rank] * xp.astype(xp.sqrt(values[:rank] - shift), block.dtype))
            elif error < 3e-3:
                break
        width = min(width, math.ceil(_WIDTH * rank + _SPARE))
        return PositivePart(zero - shift, values[:width] - shift, block[:, :width], image[:, :width], error, math.inf)

    def _start_warm(self, y: Array, vectors: Array) -> PositivePart | None:
        """Find the positive part at the end of an earlier projection."""
        xp = array_namespace(self.matrix)
        block = xp.astype(vectors, self._fast)
        values, block, images, _ = self._separate(block, y, self._is_single_allowed)
        return self._evaluate(PositivePart(y, values, block, images, math.inf, math.inf), y, 3e-3)

    def _start_low_rank(self, factor: Array) -> PositivePart | None:
        """Find unit rows V with <A, V V^T> - |V V^T|^2 / 2 nearly stationary, and the point of their multipliers."""
        n = self.size
        width = min(n, math.ceil(max(math.sqrt(2 * n), _WIDTH * max(factor.shape[1], self.spectrum.rank))) + 10)
        spread = 0.05 / math.sqrt(width)
        start = self._draw(width, factor.dtype) * spread
        start[:, : factor.shape[1]] += factor[:, :width]
        self._search = LowRankDescent(diagonal(self.matrix), normalise_factor(start), self.matrix.dtype)
        # The multipliers matter on the scale of the solution's own eigenvalues, not on that of the noise.
        self._search_tol = max(1e-9, min(1e-4, _SEARCH_TOL / max(abs(self.spectrum.shift), 1e-300)))
        return self._enter(*self._run_search(self._search))

    def _run_search(self, search: LowRankDescent) -> tuple[Array, Array]:
        """Search for a low-rank start, or search on, as long as the work is allowed."""
        left = (self._most_columns - self.columns) / search.width
        return search.run(self._multiply, self._search_tol, int(min(_SEARCH_STEPS, max(left, 0))))

    def _restart(self, point: PositivePart, tol: float) -> PositivePart | None:
        """Where the steps stall although the start was of low rank, search on for a nearer start, and step from there.

        An inexact block may have missed an eigenvalue above zero, so that the end of the stalled steps is not better
        than a start that is known to be nearer.
        """
        while self._restarts > 0 and self._search is not None and point.residual > tol:
            if self.is_spent or self._search_tol < _FINEST_SEARCH:
                break
            self._restarts -= 1
            self._search_tol /= 30
            self._pairs.clear()
            start = self._enter(*self._run_search(self._search))
            found = None if start is None else self._iterate(start, tol)
            if found is None or found.residual >= point.residual:
                self._restarts = 0
                break
            point = found
        return point

    def _enter(self, factor: Array, y: Array) -> PositivePart | None:
        """Find the positive part at the multipliers of a low-rank factor."""
        xp = array_namespace(self.matrix)
        values, rotation = xp.linalg.eigh(factor.T @ factor)
        rank = int(xp.sum(values > 1e-3 * float(values[-1])))
        kept = factor @ xp.flip(rotation, axis=1)[:, : rank + 2]
        width = min(self.size, 2 * rank + 20)
        block = xp.concat([normalise_factor(kept.T).T, self._draw(width) / math.sqrt(self.size)], axis=1)[:, :width]
        values, vectors, images, _ = self._separate(block, y, False)
        self._degree = 8
        return self._evaluate(PositivePart(y, values, vectors, images, math.inf, math.inf), y, 1e-3)

    # The iteration

    def _evaluate(self, near: PositivePart, y: Array, accuracy: float) -> PositivePart | None:
        """Find the positive part at y from that at a point near it, to an accuracy of the gradient."""
        xp = array_namespace(self.matrix)
        values, vectors, images = near.values, near.vectors, near.images
        low = self.spectrum.low + float(xp.min(y))
        error = math.inf
        for turn in range(_ROUNDS):
            before = error
            is_single = self._choose_precision(accuracy, values)
            cut = max(min(float(values[-1]), 1e-3 * low), 0.999 * low)
            values, vectors, images, residuals = self._separate(
                self._filter_block(values, vectors, images, y, cut, low, is_single), y, is_single
            )
            error = self._estimate_error(values, residuals)
            rank = int(xp.sum(values > 0))
            width = len(values)
            if rank > 0.87 * width and width < self.size:
                extra = self._draw(min(self.size - width, max(10, width // 4)), vectors.dtype) / math.sqrt(self.size)
                if width + extra.shape[1] > WIDEST * self.size:
                    return None
                values, vectors, images, residuals = self._separate(xp.concat([vectors, extra], axis=1), y, is_single)
                error = math.inf
            elif error <= accuracy:
                if turn == 0 and error < 0.15 * accuracy:
                    self._degree = max(3, self._degree - 1)
                break
            elif error > 0.5 * before:
                break  # rounding, or an error that the estimate does not see
            self._degree = min(self._degree + 2, 24)
        if rank == 0:
            return None
        # By Schur's complement: residuals of the kept pairs couple them to the rest, which begins below zero.
        beyond = max(-float(values[rank]), 0.0) + 1e-300 if rank < len(values) else 1e-300
        lift = norm(residuals[:rank]) ** 2 / beyond
        wide = math.ceil(1.3 * (_WIDTH * rank + _SPARE)) + 10
        wide = max(wide, 2 * rank + 20, math.ceil(0.75 * len(values)))  # a rank may be low for one step only
        if len(values) > wide:
            values, vectors, images = values[:wide], vectors[:, :wide], images[:, :wide]
        return PositivePart(y, values, vectors, images, error, lift)

    def _iterate(self, point: PositivePart, tol: float) -> PositivePart | None:
        """Take quasi-Newton steps from a point."""
        stalls = 0
        before = [point.residual]
        while point.residual > tol and not self.is_spent and stalls < 3:
            if len(before) > _SLOW_STEPS and before[-1] > 0.5 * before[-1 - _SLOW_STEPS]:
                break
            direction = self._find_direction(point)
            if len(point.values) <= max(_NARROW * self.size, _FEW):
                direction = self._refine_direction(point, direction)
            if not float(point.gradient @ direction) < 0:
                if not self._pairs:
                    break
                self._pairs.clear()
                stalls += 1
                continue
            accuracy = max(0.1 * tol, _ACCURACY * point.residual)
            trial, length = _search_line(point, direction, functools.partial(self._evaluate, point, accuracy=accuracy))
            if trial is None:
                return None
            if length < _SMALLEST_STEP:
                stalls += 1
                self._pairs.clear()
                continue
            moved, turned = length * direction, trial.gradient - point.gradient
            is_smooth = trial.rank == point.rank  # the Hessian jumps where an eigenvalue changes its sign
            if is_smooth and float(moved @ turned) > 1e-10 * norm(moved) * norm(turned):
                self._pairs = [*self._pairs[1 - _MEMORY :], (moved, turned)]
            stalls = stalls + 1 if trial.residual >= 0.9 * point.residual and point.residual < 1e-3 else 0
            point = trial
            before.append(point.residual)
            self.iterations += 1
            if self.progress is not None:
                self.progress(self.iterations, self.limit)
        return point

    def _refine_direction(self, point: PositivePart, direction: Array) -> Array:
        """Correct a direction that is bad because eigenvalues change their sign on the way, where Newton's step errs.

        The block gives the positive part at y + d up to its coupling with the rest, which enters as at y. So the step
        is tried, and replaced by several steps of Newton's method where it is bad, without a product with A.
        """
        couple = self._find_coupling(point)
        trial = self._predict(point, point.y + direction, couple)
        if trial is None or trial.residual <= _DOUBT * point.residual:
            return direction
        if self._pairs:  # they are of the other side
            self._pairs.clear()
            direction = self._find_direction(point)
        best = point
        for _ in range(_TRIALS):
            trial, _ = _search_line(best, direction, lambda y: self._predict(point, y, couple), _SMALLEST_TRIAL)
            if trial is None or trial.residual >= best.residual:
                break
            best = trial
            if best.residual <= 0.1 * point.residual:
                break
            direction = self._find_direction(best)
        return direction if best is point else best.y - point.y

    def _predict(self, point: PositivePart, y: Array, couple: Callable[[Array], Array]) -> PositivePart | None:
        """Predict the positive part at y within the block of a point near it; None where it is not finite."""
        xp = array_namespace(y)
        vectors = xp.astype(point.vectors, y.dtype, copy=False)
        moved = y - point.y
        inner = vectors.T @ (moved[:, None] * vectors)
        diagonal(inner)[:] += point.values
        if not bool(xp.all(xp.isfinite(inner))):
            return None
        values, rotation = xp.linalg.eigh(inner)
        values, rotation = xp.flip(values), xp.flip(rotation, axis=1)
        found = PositivePart(y, values, vectors @ rotation, None, math.inf, math.inf)
        found.gradient = found.gradient + couple(moved)
        return found

    def _find_coupling(self, point: PositivePart) -> Callable[[Array], Array]:
        """Return the part of the Hessian that couples the positive eigenvectors with those outside of the block."""
        vectors = array_namespace(point.y).astype(point.vectors, point.y.dtype, copy=False)
        positive = vectors[:, : point.rank]
        average = 2 * self._average_weights(point, point.values[: point.rank])[:, None]
        across = ((positive * positive) @ average)[:, 0]

        def couple(h: Array) -> Array:
            inner = average * ((positive * h[:, None]).T @ vectors)
            return across * h - row_dots(positive @ inner, vectors)

        return couple

    def _find_direction(self, point: PositivePart) -> Array:
        """Solve for a descent direction by conjugate gradients, corrected by the secant pairs (L-BFGS).

        With P the positive eigenvectors, N the other ones of the block and R the rest, the generalised Hessian V h is
        the diagonal of `P P^T H P P^T + 2 P (Ω ∘ P^T H N) N^T + 2 P (Ω ∘ P^T H R) R^T`, H = Diag h and
        `Ω_ij = λ_i / (λ_i - λ_j)`. In the last term Ω_ij is replaced by its average `D_i` over the rest, and
        `R R^T = I - P P^T - N N^T`.
        """
        xp = array_namespace(point.y)
        rank, double = point.rank, point.y.dtype
        # The system is solved to a few digits. Under very heavy noise the least curvature is below single precision.
        dtype = self._fast if self._choose_precision(_CURVATURE, point.values) else double
        vectors = xp.astype(point.vectors, dtype, copy=False)
        positive = vectors[:, :rank]
        above, below = point.values[:rank], -point.values[rank:]
        average = self._average_weights(point, above)[:, None]
        weights = xp.concat(
            [xp.ones_like(above * above[:, None]), 2 * above[:, None] / (above[:, None] + below)], axis=1
        )
        weights = xp.astype(weights - 2 * average, dtype)
        across = xp.astype(2 * ((positive * positive) @ xp.astype(average, dtype))[:, 0], double)
        scaling = xp.clip(self._find_hessian_diagonal(vectors, weights) + across, 1e-8, None)

        def hessian(h: Array) -> Array:
            inner = (positive * xp.astype(h, dtype)[:, None]).T @ vectors
            inner *= weights
            return xp.astype(row_dots(positive @ inner, vectors), double) + across * h

        left, lengths = -point.gradient, []
        for moved, turned in reversed(self._pairs):
            lengths.append(float(moved @ left) / float(moved @ turned))
            left = left - lengths[-1] * turned
        direction = solve_by_gradients(hessian, left, scaling, 0.03, _CG_STEPS)
        for moved, turned in self._pairs:
            direction = direction + moved * (lengths.pop() - float(turned @ direction) / float(moved @ turned))
        return direction

    def _find_hessian_diagonal(self, vectors: Array, weights: Array) -> Array:
        """Compute the diagonal of the part of the Hessian within the block, by panels."""
        parts = []
        for start, end in list_panels(self.size):
            squares = vectors[start:end, :] ** 2
            parts.append(row_dots(squares[:, : weights.shape[0]] @ weights, squares))
        return array_namespace(vectors).concat(parts)

    def _average_weights(self, point: PositivePart, above: Array) -> Array:
        """Average λ / (λ + μ) over the eigenvalues -μ outside of the block.

        Their mean and variance are known from the trace and the norm of A + Diag y. The average is that of two
        values of μ, one of them the least in the block (a Gauss-Radau rule).
        """
        xp = array_namespace(above)
        count = self.size - len(point.values)
        nearest = max(-float(point.values[-1]), 0.0) + 1e-300
        if count == 0:
            return above / (above + nearest)
        y = point.y
        total = self._trace + float(xp.sum(y)) - float(xp.sum(point.values))
        squares = (
            self._norm**2 + 2 * float(diagonal(self.matrix) @ y) + float(y @ y) - float(point.values @ point.values)
        )
        mean = -total / count
        variance = max(squares / count - mean**2, 0.0)
        distance = mean - nearest
        if distance <= 0:
            return above / (above + nearest)
        farther = (variance + distance**2) / distance
        share = 1 - distance / farther
        return share * above / (above + nearest) + (1 - share) * above / (above + nearest + farther)


def _search_line(
    point: PositivePart,
    direction: Array,
    evaluate: Callable[[Array], PositivePart | None],
    smallest: float = _SMALLEST_STEP,
) -> tuple[PositivePart | None, float]:
    """Shorten a step until it is acceptable, and return the point that it leads to and its length."""
    slope, length = float(point.gradient @ direction), 1.0
    while True:
        trial = evaluate(point.y + length * direction)
        if trial is None:
            return None, length
        # The function is convex, so its slope at the trial says on which side of the least value it is. The
        # objective itself would mislead: an inexact block underestimates it.
        end = float(trial.gradient @ direction)
        is_near = end <= 0.8 * abs(slope) and trial.residual < max(4 * point.residual, 0.1)
        if is_near or trial.residual < 0.5 * point.residual:
            return trial, length
        length *= max(0.1, min(0.5, slope / (slope - end))) if end > 0 else 0.5
        if length < smallest:
            return trial, length


def _condition(block: Array) -> tuple[Array, Array | None]:
    """Scale the columns of a block, which is overwritten, and orthonormalise them where they are nearly dependent.

    Returns:
        The columns, and the inverse of their Cholesky factor L, so that `block L^-T` is orthonormal; None where the
        columns are orthonormal already.
    """
    xp = array_namespace(block)
    block /= xp.clip(xp.sqrt(row_dots(block.T, block.T)), 1e-30, None)
    root, dtype = factor_cholesky(block.T @ block), block.dtype
    if root is not None and _find_nearest(root) > 0.1:
        return block, invert_triangle(root)
    # Cholesky's factor of the columns' products, applied twice, is as good as reflections and far faster.
    panels = list_panels(len(block))
    for _ in range(3):
        if dtype == xp.float64 or root is None or _find_nearest(root) < _COARSE:
            dtype = xp.float64
            root = sum(xp.astype(block[i:j, :], dtype).T @ xp.astype(block[i:j, :], dtype) for i, j in panels)
            root = factor_cholesky(root)
            if root is None or not _find_nearest(root) > _NEARLY_DEPENDENT:
                return xp.linalg.qr(block)[0], None
        inverse = invert_triangle(root).T
        for i, j in panels:  # in place, to save memory
            block[i:j, :] = xp.astype(xp.astype(block[i:j, :], dtype) @ inverse, block.dtype)
        root, dtype = factor_cholesky(block.T @ block), xp.float64
        if root is not None and _find_nearest(root) > _ORTHOGONAL:
            return block, invert_triangle(root)
    return block, None


def _find_nearest(root: Array) -> float:
    """Return the least distance of a unit column from the span of those before it, from their Cholesky factor."""
    return float(array_namespace(root).min(diagonal(root)))
