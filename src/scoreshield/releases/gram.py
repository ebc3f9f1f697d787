"""All pairwise similarities of a collection, projected onto the valid cosine matrices (regime ii)."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Calibration, Rng
from scoreshield._validation import check_count, check_progress, one_of, optional, validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import denoise as post
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Array, Progress, check_device, to_device, to_numpy
from scoreshield.geometry.denoise import METHODS as DENOISERS
from scoreshield.geometry.denoise import Denoiser
from scoreshield.geometry.elliptope import Method, check_memory, project_array
from scoreshield.geometry.partial import WarmStart
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    ReleaseShape,
    Replacement,
)
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.noise import add_noise
from scoreshield.privacy.noise.laws import CalibratedNoise
from scoreshield.privacy.sampling.parallel import draw_blocks
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.pipeline import (
    PRIVACY_CHECKS,
    AdditiveMechanism,
    PendingRelease,
    PrivacyRequest,
    PrivateCollection,
)
from scoreshield.releases.results import GramRelease

GramProjection = Literal["exact", "aap", "dykstra", "none"]
GRAM_PROJECTIONS: tuple[str, ...] = get_args(GramProjection)
Float = NDArray[np.float64]
_TILE = 256  # rows of a Gram matrix that get their noise at once
#: What a projection raises that does not fit into the memory which is free by then.
_NO_MEMORY = (InvalidInput, MemoryError)


@clear_frames_on_error
@validate(
    **PRIVACY_CHECKS,
    progress=check_progress,
    projection=one_of(GRAM_PROJECTIONS),
    denoise=one_of(DENOISERS),
    max_iterations=optional(check_count),
)
def release_gram(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: AdditiveMechanism = "gaussian",
    calibration: Calibration = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    projection: GramProjection = "exact",
    denoise: Denoiser = "projection",
    max_iterations: int | None = None,
    device: str = "cpu",
    rng: Rng = None,
    ledger: AccountLike | None = None,
    unsafe_reproduce_paper: bool = False,
    progress: Progress | None = None,
) -> GramRelease:
    """Release all pairwise cosine similarities (regime ii).

    The other arguments are those of `release_scores`. The noisy release needs one (n, n) float64 matrix, drawn in
    place. The projection holds two to six matrices while it runs, and leaves one.

    Args:
        adjacency: Also ``GramRadius(radius)``, a promise about the matrix that need not cover a whole record.
        projection: ``"exact"`` (the nearest valid cosine matrix), ``"dykstra"`` (the same, slowly), ``"aap"`` (the
            paper's) or ``"none"``, which leaves ``.gram`` noisy.
        denoise: The estimate from the noisy matrix, whose noise law is public: ``"projection"`` as above, ``"rank"``,
            ``"shrinkage"``, ``"identity"``, ``"sure"`` or ``"none"``; docs/projection.md compares them.
        max_iterations: The limit of the projection.
        device: The device of the projection and the denoiser; ``"cuda"`` runs both on a GPU.
        progress: Called with (done, total) while the noise is drawn and then while the projection runs, both after the
            charge. An error that it raises ends the release, which stays charged.

    Warns:
        UserWarning: A GPU fails, and the CPU goes on. Or the memory, which is checked before the charge, does not
            suffice after it: ``.gram`` is the noisy matrix, ``.projection`` is ``"none"`` and ``.converged`` is False.
    """
    contract = PrivacyRequest(epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    contract.require_gaussian("a Gram matrix")
    if projection == "none" and denoise not in ("projection", "none"):
        raise InvalidInput(f"denoise={denoise!r} ends on a valid cosine matrix; leave projection='none' out.")
    source = PrivateCollection.check(embeddings, adjacency, least=2)
    estimator = GramEstimator(projection, denoise, source.dimension, max_iterations, device, progress)
    estimator.check(source.size)
    noise, guarantee = calibrate_gram(source, contract, name_sampler(rng))

    def score() -> Float:
        return _embeddings.compute_upper_gram(source.rows(), contract.score_range)

    def draw(noisy: Float, stream: Stream) -> GramRelease:
        _add_symmetric_noise(noisy, noise, stream, progress)
        return estimator.make_release(noisy, guarantee)

    return PendingRelease(guarantee, source.adjacency, rng, score, draw).release(ledger)


def _warn(text: str) -> None:
    """Warn about a release that is charged. A filter that turns the warning into an error must not lose it."""
    with contextlib.suppress(Warning):
        warnings.warn(text, stacklevel=2)


def calibrate_gram(
    source: PrivateCollection, contract: PrivacyRequest, sampler: str
) -> tuple[CalibratedNoise, Guarantee]:
    """Calibrate the noise of a Gram matrix, and state what it promises, from public facts."""
    rounding = _embeddings.bound_rounding_error(source.dimension, np.float64)
    released = ReleaseShape("gram", source.size, contract.width, rounding=rounding)
    noise = contract.calibrate(source.adjacency.bound_sensitivity(released), entries_per_draw=2)
    facts = ReleaseFacts(source.adjacency, "gram", (source.size, source.size), contract.score_range, sampler)
    return noise, contract.state_guarantee(noise, facts)


@dataclass(frozen=True)
class GramEstimator:
    """Makes a release of a noisy Gram matrix, by a projection or a denoiser; the arguments of `release_gram`.

    Attributes:
        projection: The name of the projection.
        denoise: The name of the denoiser.
        rank: The largest rank of the clean matrix, which is the dimension of the records.
        max_iterations: The limit of the projection.
        device: Where both run.
        progress: Called while the projection runs.
    """

    projection: GramProjection
    denoise: Denoiser
    rank: int
    max_iterations: int | None = None
    device: str = "cpu"
    progress: Progress | None = None

    @property
    def _method(self) -> Method:
        return cast("Method", "auto" if self.projection == "exact" else self.projection)

    def check(self, size: int) -> None:
        """Reject a missing device, or too little memory, before any noise is drawn."""
        if "none" not in (self.projection, self.denoise):
            check_device(self.device)
            check_memory(size, self._method, self.device)

    def make_release(self, noisy: Float, guarantee: Guarantee) -> GramRelease:
        """Estimate the clean matrix from the noisy one, which is exactly symmetric.

        The release is charged by now and must not be lost. So where a GPU fails, the CPU goes on, and where the memory
        does not suffice after all, the noisy matrix is released as it is.
        """
        if "none" in (self.projection, self.denoise):
            return GramRelease(guarantee, noisy, noisy, "none", "none", {}, 0, 0.0, True)
        try:
            return self._estimate(noisy, guarantee, self.device)
        except _NO_MEMORY as error:
            reason = type(error).__name__
        except RuntimeError as error:  # of PyTorch: a full GPU raises several classes, and a broken one more
            if self.device == "cpu":
                raise
            _warn(f"The device {self.device!r} failed with {type(error).__name__}: the projection runs on the CPU.")
            try:
                return self._estimate(noisy, guarantee, "cpu")
            except _NO_MEMORY as second:
                reason = type(second).__name__
        again = "project_elliptope(release.noisy) tries it again and says why"
        _warn(f"The projection failed with {reason}: the noisy matrix is released without it; {again}.")
        return GramRelease(guarantee, noisy, noisy, "none", "none", {}, 0, 0.0, False)

    def _estimate(self, noisy: Float, guarantee: Guarantee, device: str) -> GramRelease:
        project = _Projector(self._method, self.max_iterations, self.progress)
        # Moved once. The noise on both triangles is the same number, so that the matrix is exactly symmetric.
        there = to_device(noisy, device)
        end = post.denoise_array(there, guarantee.noise_std, self.denoise, rank=self.rank, project=project)
        release = GramRelease(
            guarantee,
            noisy,
            to_numpy(end.matrix),
            self.projection,
            end.method,
            end.risks,
            project.iterations,
            project.residual,
            project.converged,
        )
        rows = project.find_factor(end.matrix) if end.factor is None else end.factor
        return release if rows is None else release.keep_rows(to_numpy(rows))


@dataclass
class _Projector:
    """A projection as a function that counts the work of its calls.

    The denoiser "sure" projects the noisy matrix and one that is pulled towards the identity, and then both again with
    a small change for each probe. So the factors of the first two calls are kept, and each call starts where the last
    but one ended. The other denoisers project once.
    """

    method: Method
    max_iterations: int | None
    progress: Progress | None
    iterations: int = 0
    residual: float = 0.0
    converged: bool = True
    _factors: list[tuple[Array, Array]] = field(default_factory=list)
    _starts: tuple[WarmStart, WarmStart] = field(default_factory=lambda: (WarmStart(), WarmStart()))
    _calls: int = 0

    def __call__(self, matrix: Array) -> Array:
        warm = self._starts[self._calls % 2]
        self._calls += 1
        end = project_array(matrix, self.method, max_iterations=self.max_iterations, progress=self.progress, warm=warm)
        self.iterations += end.iterations
        self.residual = max(self.residual, end.residual)
        self.converged = self.converged and end.converged
        if end.factor is not None and self._calls <= 2:
            self._factors.append((end.matrix, end.factor))
        return end.matrix

    def find_factor(self, matrix: Array) -> Array | None:
        """Return the unit rows of a matrix that this projection made, where it has them."""
        return next((factor for made, factor in self._factors if made is matrix), None)


def _add_symmetric_noise(
    matrix: NDArray[np.float64], noise: CalibratedNoise, stream: Stream, progress: Progress | None
) -> None:
    """Add noise to the triangle above the diagonal, in place and tile by tile, and mirror it.

    The diagonal is the public 1. What is below it is overwritten. Several threads draw secure noise, a tile each.
    """
    n = len(matrix)
    starts = range(0, n, _TILE)

    def draw(start: int, stream: Stream) -> None:
        end = min(start + _TILE, n)
        above = np.triu_indices(end - start, 1)
        corner = matrix[start:end, start:end]
        values = np.concatenate([corner[above], matrix[start:end, end:].reshape(-1)])
        add_noise(values, noise.law, noise.step, stream)
        corner[above] = values[: len(above[0])]
        corner.T[above] = values[: len(above[0])]
        matrix[start:end, end:] = values[len(above[0]) :].reshape(end - start, n - end)
        matrix[end:, start:end] = matrix[start:end, end:].T

    def report(done: int) -> None:
        if progress is not None:
            progress(min(done * _TILE, n), n)

    draw_blocks(stream, starts, len(starts), draw, report)
    np.fill_diagonal(matrix, 1.0)
