"""How a private index spends its budget: the noise of its vectors, its reduction, its center, and their guarantee.

The covariance of a private PCA is the second moment of the unit rows. Replacing a row e by f moves it by
|e e^T - f f^T|_F = sqrt(2 - 2 <e, f>^2) <= sqrt 2; g rows by at most g sqrt 2. A private center is the mean of the unit
rows. Replacing a row moves their sum by |e - f| <= 2; g rows by at most 2 g. docs/index-release.md has the proofs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import Check, check_delta, check_epsilon, check_inside_unit, one_of, optional
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, GramRadius, Identity, NullRecord
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.noise import GaussianNoise, add_noise, choose_grid_step
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, Profile, PureProfile
from scoreshield.privacy.sampling.stream import Stream
from scoreshield.releases.pipeline import PrivateCollection

Float = NDArray[np.float64]


IndexMechanism = Literal["privunit", "gaussian"]
MECHANISMS: tuple[str, ...] = get_args(IndexMechanism)
IndexUse = Literal["search", "pairs"]
INDEX_USES: tuple[str, ...] = get_args(IndexUse)
Reduction = Literal["random", "pca"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)
#: The name of a reduction by a matrix that the caller gives.
PUBLIC_BASIS = "public basis"
CENTERS = ("none", "private")
#: What a private center takes of epsilon, unless the caller gives a share, or this is more than a tenth.
_CENTER_EPSILON = 0.5
#: The constraints on the arguments of an index that do not depend on the collection.
INDEX_CHECKS: dict[str, Check] = {
    "epsilon": check_epsilon,
    "delta": check_delta,
    "mechanism": one_of(MECHANISMS),
    "use": one_of(INDEX_USES),
    "pca_share": check_inside_unit,
    "center_share": optional(check_inside_unit),
}
#: Rows are read, reduced and made private in blocks of about this many bytes of double precision.
_BLOCK_BYTES = 1 << 25
#: Steps of the grid to one standard deviation of Gaussian noise; 256 deviations are exact in single precision.
_GAUSSIAN_BITS = 16
#: The second moment and the sum are over entries rounded to this step, so that they are exact in any order.
_MOMENT_STEP = 2.0**-18


class GaussianRows:
    """Gaussian noise on unit rows: sensitivity 2 sqrt(g) in Frobenius norm, exact on a grid that float32 holds."""

    name = "gaussian"

    def __init__(self, components: int, group: int, mu: float) -> None:
        # Rows are of length one up to rounding; rounding to the grid moves each of the g r entries by one step more.
        self.sensitivity = 2 * math.sqrt(group) * (1 + (components + 8) * 2.0**-53)
        rough = self.sensitivity / mu
        choose_grid_step(rough)  # rejects noise that is larger than any score
        self.step = math.ldexp(1.0, math.frexp(rough)[1] - 1 - _GAUSSIAN_BITS)
        if 2.0**24 * self.step < 2:
            raise InvalidInput("At this epsilon the noise is too small for single precision to hold it; ask for less.")
        self.grid_sensitivity = self.sensitivity + self.step * math.sqrt(group * components)
        self.std = self.grid_sensitivity / mu * (1 + 2**-48)

    def release(self, rows: Float, stream: Stream, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Draw private rows, in ``out`` if it is given; the memory of ``rows`` is used."""
        values = np.ascontiguousarray(rows).reshape(-1)
        add_noise(values, GaussianNoise(self.std), self.step, stream)
        np.clip(values, -(2.0**24) * self.step, 2.0**24 * self.step, out=values)
        if out is None:
            return values.reshape(rows.shape).astype(np.float32)
        out[:] = values.reshape(rows.shape)
        return out


@dataclass(frozen=True)
class IndexPlan:
    """The checked arguments, and how the budget is divided."""

    epsilon: float
    delta: float
    mechanism: IndexMechanism
    components: int
    dimension: int
    reduction: str | Float  # a matrix is public and orthonormal
    share: float  # of the budget, for the covariance or the center
    adjacency: Adjacency
    group: int  # how many rows one neighbour can move
    records: int
    center: str | Float = "none"  # a vector is public, and subtracted from the unit rows

    @classmethod
    def check(
        cls,
        source: PrivateCollection,
        epsilon: float,
        delta: float,
        mechanism: IndexMechanism,
        components: int | None,
        reduction: str | ArrayLike,
        pca_share: float,
        center: str | ArrayLike = "none",
        center_share: float | None = None,
    ) -> IndexPlan:
        """Check that arguments, each checked by `INDEX_CHECKS`, fit together and fit the collection."""
        check_index_source(source)
        d = source.dimension
        basis, kept = _check_reduction(reduction, components, d)
        origin = check_center(center, d)
        has_pca = isinstance(basis, str) and basis == "pca"
        has_private_center = isinstance(origin, str) and origin == "private"
        if has_pca and has_private_center:
            raise InvalidInput("A private center and a private PCA cannot share one index: ask for one of them.")
        if center_share is not None and not has_private_center:
            _validation.reject("center_share", "left out unless center='private'", center_share)
        share = pca_share if has_pca else 0.0
        if has_private_center:
            share = min(_CENTER_EPSILON / epsilon, 0.1) if center_share is None else center_share
        if delta == 0 and (mechanism == "gaussian" or share):
            need = "a private PCA, whose covariance takes Gaussian noise" if has_pca else "a private center"
            need = "Gaussian noise" if mechanism == "gaussian" else need
            _validation.reject("delta", f"above 0 for {need} (1e-6, say)", delta)
        if delta and mechanism == "privunit" and not share:
            _validation.reject("delta", "0 (left out) for PrivUnit, which is private without it", delta)
        group = source.adjacency.largest if isinstance(source.adjacency, Identity) else 1
        plan = cls(
            epsilon,
            delta,
            mechanism,
            kept,
            d,
            basis,
            share,
            source.adjacency,
            group,
            source.size,
            origin,
        )
        if mechanism == "privunit" and not SMALLEST_EPSILON <= plan.per_record <= LARGEST_EPSILON:
            must = f"such that PrivUnit spends between {SMALLEST_EPSILON:g} and {LARGEST_EPSILON:g} on each vector"
            _validation.reject("epsilon", must, epsilon)
        plan.maker()  # rejects a budget outside its range before any row is read
        return plan

    @property
    def mu(self) -> float:
        """Of the whole release by Gaussian noise, or of the covariance or the center beside PrivUnit."""
        epsilon = self.epsilon if self.mechanism == "gaussian" else self.epsilon * self.share
        return gaussian.find_mu(epsilon, self.delta)

    @property
    def has_private_center(self) -> bool:
        return isinstance(self.center, str) and self.center == "private"

    @property
    def moment_mu(self) -> float:
        """Of the covariance or the center, where one of them is private."""
        return self.mu * (math.sqrt(self.share) * (1 - 2**-50) if self.mechanism == "gaussian" else 1.0)

    @property
    def per_record(self) -> float:
        """What PrivUnit spends on each record: an identity's records share what covariance or center leave."""
        return self.epsilon * (1 - self.share) / self.group * (1 - (2**-50 if self.share or self.group > 1 else 0))

    def maker(self) -> PrivUnit | GaussianRows:
        if self.mechanism == "privunit":
            return PrivUnit.calibrate(self.components, self.per_record)
        share = math.sqrt(1 - self.share) * (1 - 2**-50) if self.share else 1.0
        return GaussianRows(self.components, self.group, self.mu * share)

    def projection(self, rows: _embeddings.Rows, stream: Stream) -> Float | None:
        if not isinstance(self.reduction, str):
            return self.reduction
        if self.reduction == "pca":
            values, vectors = np.linalg.eigh(self._moment(rows, stream))
            del values
            return np.ascontiguousarray(vectors[:, ::-1][:, : self.components].T)
        if self.components == self.dimension:
            return None
        # Public and independent of the rows, so an ordinary generator serves; its seed is fresh.
        rng = np.random.default_rng([int(word) & (2**63 - 1) for word in stream.words(2)])
        return _orthonormal(rng.standard_normal((self.components, self.dimension)))

    def _moment_noise(self) -> tuple[float, float, float]:
        """Sensitivity, standard deviation and step of the noise on the second moment."""
        # |e e' - f f'|_F <= sqrt 2 for unit rows; entries rounded to the moment's step lengthen them a little.
        longer = (1 + math.sqrt(self.dimension) * _MOMENT_STEP) ** 2
        sensitivity = self.group * math.sqrt(2) * longer * (1 + 2**-48)
        step = choose_grid_step(sensitivity / self.moment_mu)
        # d^2 entries, each one step more, and the rounding of a sum of n products to double precision.
        sensitivity += self.dimension * (step + self.records * 2.0**-52)
        return sensitivity, sensitivity / self.moment_mu * (1 + 2**-48), step

    def _moment(self, rows: _embeddings.Rows, stream: Stream) -> Float:
        """The second moment of the unit rows, with Gaussian noise of Frobenius scale, drawn once and mirrored."""
        d = self.dimension
        total = np.zeros((d, d), dtype=np.int64)
        for _, block in blocks(rows):
            whole = np.rint(block / _MOMENT_STEP)
            # Whole numbers below 2^53 however they are summed: at most 2^18 rows a block, 2^36 each at most.
            total += (whole.T @ whole).astype(np.int64)
        moment = total.astype(np.float64) * _MOMENT_STEP**2
        _, std, step = self._moment_noise()
        above, diagonal = np.triu_indices(d, 1), moment.diagonal().copy()
        upper = moment[above]
        add_noise(diagonal, GaussianNoise(std), step, stream)
        add_noise(upper, GaussianNoise(std * math.sqrt(0.5) * (1 + 2**-50)), step, stream)
        moment[above] = upper
        moment.T[above] = upper
        np.fill_diagonal(moment, diagonal)
        return moment

    def find_center(self, rows: _embeddings.Rows, stream: Stream) -> Float | None:
        """The public center, or the private one: the mean of the unit rows with Gaussian noise, shrunk towards 0.

        The shrinkage is that of James and Stein. It reads the noisy mean and the public noise alone, and leaves nothing
        of a center that is mostly noise.
        """
        if not isinstance(self.center, str):
            return self.center
        if self.center == "none":
            return None
        total = self._sum(rows, stream)
        _, std, _ = self._center_noise()
        kept = 1 - self.dimension * std**2 / max(float(total @ total), 1e-300)
        return total * (max(kept, 0.0) / self.records)

    def _sum(self, rows: _embeddings.Rows, stream: Stream) -> Float:
        """The sum of the unit rows with Gaussian noise."""
        whole = np.zeros(self.dimension, dtype=np.int64)
        for _, block in blocks(rows):
            # Whole numbers below 2^53 however they are summed: at most 2^17 rows a block, 2^18 each at most.
            whole += np.rint(block / _MOMENT_STEP).sum(axis=0).astype(np.int64)
        total = whole.astype(np.float64) * _MOMENT_STEP
        _, std, step = self._center_noise()
        add_noise(total, GaussianNoise(std), step, stream)
        return total

    def _center_noise(self) -> tuple[float, float, float]:
        """Sensitivity, standard deviation and step of the noise on the sum of the unit rows."""
        # |e - f| <= 2 for unit rows; entries rounded to the moment's step lengthen them a little.
        longer = 1 + math.sqrt(self.dimension) * _MOMENT_STEP
        sensitivity = self.group * 2 * longer * (1 + 2**-48)
        step = choose_grid_step(sensitivity / self.moment_mu)
        # d entries, each one step more, and the rounding of a sum of n rows to double precision.
        sensitivity += math.sqrt(self.dimension) * (step + self.records * 2.0**-52)
        return sensitivity, sensitivity / self.moment_mu * (1 + 2**-48), step

    def profile(self) -> Profile:
        if self.mechanism == "gaussian":
            return GaussianProfile(self.mu)
        if not self.share:
            alone = self.group == 1
            return PrivUnit.calibrate(self.components, self.epsilon).profile if alone else PureProfile(self.epsilon)
        return _add_pure(GaussianProfile(self.mu), self.per_record * self.group, self.epsilon)

    def state_guarantee(self, maker: PrivUnit | GaussianRows, shape: tuple[int, ...], sampler: str) -> Guarantee:
        profile = self.profile()
        details: dict[str, Any] = {"score_std": maker.std, "reduction": self._reduction_name()}
        if self.has_private_center:
            sensitivity, std, _ = self._center_noise()
            details |= {"center": "private", "center_share": self.share}
            details |= {"center_sensitivity": sensitivity, "center_std": std}
        elif self.share:
            sensitivity, std, _ = self._moment_noise()
            details |= {"pca_share": self.share, "covariance_sensitivity": sensitivity, "covariance_std": std}
        if not isinstance(self.center, str):
            details |= {"center": "public", "center_fingerprint": hash_center(self.center)}
        if isinstance(maker, PrivUnit):
            details |= {"cap_probability": maker.p, "cap_height": maker.gamma, "shrinkage": maker.mean}
            details |= {"epsilon_per_record": maker.epsilon}
            noise, scale, clean = None, maker.std, 2 * math.sqrt(self.group)
            on_grid = clean
        else:
            noise, scale, clean, on_grid = (
                GaussianNoise(maker.std),
                maker.std,
                maker.sensitivity,
                maker.grid_sensitivity,
            )
            if isinstance(profile, GaussianProfile):
                # With a covariance or a center beside it: the sensitivity of both together, in units of this noise.
                on_grid = max(on_grid, profile.mu * scale)
        return Guarantee.for_mechanism(
            ReleaseFacts(self.adjacency, "index", shape, FULL_RANGE, sampler),
            epsilon=self.epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            sensitivity=clean,
            grid_sensitivity=on_grid,
            scale=maker.std,
            grid=maker.step,
            noise=noise,
            profile=profile,
            details=details,
        )

    def _reduction_name(self) -> str:
        if not isinstance(self.reduction, str):
            return PUBLIC_BASIS
        return "none" if self.components == self.dimension and self.reduction != "pca" else self.reduction


def find_maker(guarantee: Guarantee) -> PrivUnit | GaussianRows:
    """Find what draws the vectors of a promise that has neither a private PCA nor a private center.

    Raises:
        InvalidInput: Here the same budget gives other noise than the promise states, by another version of a library.
    """
    maker: PrivUnit | GaussianRows
    if guarantee.mechanism == "privunit":
        maker = PrivUnit.calibrate(guarantee.shape[1], guarantee.details["epsilon_per_record"])
        is_stated = maker.gamma == guarantee.details["cap_height"]
    else:
        assert isinstance(guarantee.profile, GaussianProfile)
        group = guarantee.adjacency.largest if isinstance(guarantee.adjacency, Identity) else 1
        maker = GaussianRows(guarantee.shape[1], group, guarantee.profile.mu)
        is_stated = maker.grid_sensitivity <= guarantee.grid_sensitivity
    if not is_stated or (maker.std, maker.step) != (guarantee.scale, guarantee.grid):
        raise InvalidInput("The noise of the index is another one here: install the same NumPy and SciPy everywhere.")
    return maker


def check_index_source(source: PrivateCollection) -> None:
    """Raise an error for a collection or an adjacency that no index is made for."""
    if isinstance(source.adjacency, NullRecord):
        source.adjacency.sensitivity("scores", source.size)  # raises the error of this adjacency
    if isinstance(source.adjacency, GramRadius):
        must = "Replacement() or Identity(labels): a Gram radius says nothing about vectors"
        _validation.reject("adjacency", must, source.adjacency)
    if source.dimension < 2:
        raise InvalidInput("An index needs vectors of at least two dimensions: in one, all cosines are 1 or -1.")


def check_center(center: Any, dimension: int) -> str | Float:
    """Check a center: its name, or a public vector that is subtracted from unit rows."""
    if isinstance(center, str) and center in CENTERS:
        return center
    must = f"'none', 'private' or a public vector of {dimension} finite numbers, of length below 1"
    vector = _validation.check_array(center, "center", must)
    if vector.shape != (dimension,) or vector.dtype.kind not in "fiu":
        _validation.reject("center", must, vector if vector.ndim else center)
    vector = vector.astype(np.float64)
    if not np.isfinite(vector).all() or not np.linalg.norm(vector) < 1:
        _validation.reject("center", must, vector)
    return vector


def hash_center(center: Float) -> str:
    """Compute the SHA-256 of a center, which the certificate states."""
    return hashlib.sha256(np.ascontiguousarray(center, dtype="<f8").tobytes()).hexdigest()


def is_stated_center(center: Any, dimension: int, guarantee: Guarantee) -> bool:
    """Check whether the center of an index is the one that its guarantee states."""
    stated = guarantee.details.get("center", "none")
    if center is None or stated == "none":
        return center is None and stated == "none"
    is_vector = isinstance(center, np.ndarray) and center.shape == (dimension,) and center.dtype == np.float64
    if not is_vector or not np.isfinite(center).all():
        return False
    return bool(stated == "private" or guarantee.details["center_fingerprint"] == hash_center(center))


def _check_reduction(reduction: Any, components: Any, dimension: int) -> tuple[str | Float, int]:
    """The name or the orthonormal public matrix, and the number of components."""
    if components is not None:
        must = f"None, or a whole number from 2 to the embeddings' {dimension} dimensions"
        if isinstance(components, bool) or not isinstance(components, int | np.integer):
            _validation.reject("components", must, components)
        if not 2 <= components <= dimension:
            _validation.reject("components", must, components)
    if isinstance(reduction, str):
        reduction = _validation.check_option(reduction, "reduction", REDUCTIONS)
        if reduction == "pca" and components is None:
            _validation.reject("components", "given for a private PCA: how many directions to keep", components)
        return reduction, dimension if components is None else int(components)
    must = f"'random', 'pca' or a public matrix of 2 to {dimension} independent rows of length {dimension}"
    matrix = _validation.check_array(reduction, "reduction", must)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or not 2 <= len(matrix) <= dimension == matrix.shape[1]:
        _validation.reject("reduction", must, matrix if matrix.ndim else reduction)
    if not np.isfinite(matrix).all() or np.linalg.matrix_rank(matrix) < len(matrix):
        _validation.reject("reduction", must, matrix)
    if components not in (None, len(matrix)):
        _validation.reject("components", f"left out, or the matrix's {len(matrix)} rows", components)
    return _orthonormal(matrix.astype(np.float64)), len(matrix)


def _orthonormal(matrix: Float) -> Float:
    """An orthonormal basis of the rows' span, with the rows' own orientation."""
    q, r = np.linalg.qr(matrix.T)
    return np.ascontiguousarray((q * np.where(np.diag(r) < 0, -1.0, 1.0)).T)


def subtract_center(block: Float, center: Float | None) -> Float:
    """Subtract a center from unit rows and normalise them again, in place; a row at the center has no direction."""
    if center is None:
        return block
    block -= center
    return _embeddings.normalise_directions(block)


def blocks(rows: _embeddings.Rows) -> Iterator[tuple[int, Float]]:
    """Unit rows in double precision, block by block, with the number of each block's first row."""
    size = count_block_rows(rows.shape[1])
    for start in range(0, len(rows), size):
        yield start, _embeddings.normalise_rows(rows[start : start + size], first=start)


def count_block_rows(dimension: int) -> int:
    """Count the rows of a block of `blocks`."""
    return max(1, min(1 << 17, _BLOCK_BYTES // (8 * dimension)))


def _add_pure(other: GaussianProfile, pure: float, epsilon: float) -> CurveProfile:
    """A Gaussian mechanism and a pure one, one after the other: the worst pure one is randomised response.

    delta(e) = p delta'(e - pure) + (1 - p) delta'(e + pure) with p = 1 / (1 + e^-pure).
    """
    if epsilon > 600:
        raise InvalidInput("A private PCA or a private center beside PrivUnit takes an epsilon of at most 600.")
    p = 1 / (1 + math.exp(-pure))

    def delta(e: float) -> float:
        if e >= 0:
            return other.delta_at(e)
        return -math.expm1(e) + math.exp(e) * other.delta_at(-e)

    last = min(700.0, 2 * epsilon + 20)
    losses = [epsilon * i / 64 for i in range(65)] + [epsilon + (last - epsilon) * i / 64 for i in range(1, 65)]
    # Where a product underflows, delta is still not 0: Gaussian noise is never pure.
    deltas = [max(p * delta(e - pure) + (1 - p) * delta(e + pure), gaussian.LEAST_DELTA) for e in losses]
    return CurveProfile(tuple(losses), tuple(np.minimum.accumulate(np.minimum(deltas, 1.0)).tolist()))
