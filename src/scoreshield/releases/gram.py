"""All pairwise similarities of a collection, projected onto the valid cosine matrices (regime ii)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Calibration, Rng
from scoreshield._validation import check_count, check_progress, one_of, optional, validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import denoise as post
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress, to_device
from scoreshield.geometry.denoise import METHODS as DENOISERS
from scoreshield.geometry.denoise import Denoiser
from scoreshield.geometry.elliptope import Method, check_memory, project_elliptope
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    ReleaseShape,
    Replacement,
)
from scoreshield.privacy.guarantee import ReleaseFacts
from scoreshield.privacy.noise import add_noise
from scoreshield.privacy.noise.laws import CalibratedNoise
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
    place. The projection holds about six matrices while it runs, and leaves one.

    Args:
        adjacency: Also ``GramRadius(radius)``, a promise about the matrix that need not cover a whole record.
        projection: ``"exact"`` (the nearest valid cosine matrix), ``"dykstra"`` (the same, slowly), ``"aap"`` (the
            paper's) or ``"none"``, which leaves ``.gram`` noisy.
        denoise: The estimate from the noisy matrix, whose noise law is public: ``"projection"`` as above, ``"rank"``,
            ``"shrinkage"``, ``"identity"``, ``"sure"`` or ``"none"``; docs/projection.md compares them.
        max_iterations: The limit of the projection.
        device: The device of the projection; ``"cuda"`` runs it on a GPU.
        progress: Called with (done, total) while the noise is drawn and then while the projection runs.
    """
    contract = PrivacyRequest(epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    contract.require_gaussian("a Gram matrix")
    if projection == "none" and denoise not in ("projection", "none"):
        raise InvalidInput(f"denoise={denoise!r} ends on a valid cosine matrix; leave projection='none' out.")
    source = PrivateCollection.check(embeddings, adjacency, least=2)
    sampler = name_sampler(rng)
    method = cast("Method", "newton" if projection == "exact" else projection)
    if "none" not in (projection, denoise):
        # Reject a missing device, or too little memory, before any noise is drawn.
        to_device(np.zeros((1, 1)), device)
        check_memory(source.size, method, device)

    rounding = _embeddings.bound_rounding_error(source.dimension, np.float64)
    released = ReleaseShape("gram", source.size, contract.width, rounding=rounding)
    noise = contract.calibrate(source.adjacency.bound_sensitivity(released), entries_per_draw=2)
    shape = (source.size, source.size)
    guarantee = contract.state_guarantee(
        noise, ReleaseFacts(source.adjacency, "gram", shape, contract.score_range, sampler)
    )

    def score() -> Float:
        clean = _embeddings.compute_gram(source.rows())
        return np.clip(clean, *contract.score_range, out=clean)

    def draw(noisy: Float, stream: Stream) -> GramRelease:
        _add_symmetric_noise(noisy, noise, stream, progress)
        if "none" in (projection, denoise):
            return GramRelease(guarantee, noisy, noisy, "none", "none", {}, 0, 0.0, True)
        project = _Projector(method, max_iterations, device, progress)
        end = post.denoise(noisy, noise.law.std, denoise, rank=source.dimension, project=project)
        return GramRelease(
            guarantee,
            noisy,
            end.matrix,
            projection,
            end.method,
            end.risks,
            project.iterations,
            project.residual,
            project.converged,
        )

    return PendingRelease(guarantee, source.adjacency, rng, score, draw).release(ledger)


@dataclass
class _Projector:
    """A projection as a function that counts the work of its calls."""

    method: Method
    max_iterations: int | None
    device: str
    progress: Progress | None
    iterations: int = 0
    residual: float = 0.0
    converged: bool = True

    def __call__(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        end = project_elliptope(
            matrix, self.method, max_iterations=self.max_iterations, device=self.device, progress=self.progress
        )
        self.iterations += end.iterations
        self.residual = max(self.residual, end.residual)
        self.converged = self.converged and end.converged
        return end.matrix


def _add_symmetric_noise(
    matrix: NDArray[np.float64], noise: CalibratedNoise, stream: Stream, progress: Progress | None
) -> None:
    """Add noise to the upper triangle in place, tile by tile, and mirror it; the diagonal is the public 1."""
    n = len(matrix)
    for start in range(0, n, _TILE):
        end = min(start + _TILE, n)
        above = np.triu_indices(end - start, 1)
        corner = matrix[start:end, start:end]
        values = np.concatenate([corner[above], matrix[start:end, end:].reshape(-1)])
        add_noise(values, noise.law, noise.step, stream)
        corner[above] = values[: len(above[0])]
        corner.T[above] = values[: len(above[0])]
        matrix[start:end, end:] = values[len(above[0]) :].reshape(end - start, n - end)
        matrix[end:, start:end] = matrix[start:end, end:].T
        if progress is not None:
            progress(end, n)
    np.fill_diagonal(matrix, 1.0)
