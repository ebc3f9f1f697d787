"""The releases: compute, perturb, project, in the paper's own order, each with the guarantee that is true of it.

A release (1) checks its arguments, (2) finds the sensitivity from the adjacency and public facts, (3) calibrates
the noise and its grid and states its guarantee, (4) reserves that guarantee in the ledger, (5) computes the clean
scores and clamps them to the public range, (6) commits the charge, (7) overwrites the scores with their noisy version,
and (8) projects that onto the valid cosine objects. Each ``prepare_`` function does steps 1 to 3 and returns the rest
as a :class:`~scoreshield.releases.pipeline.Prepared`. Between steps 5 and 7 clean scores live in local arrays that are
overwritten or freed; nothing returned, raised or stored holds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _checks
from scoreshield._frames import clear_frames_on_error
from scoreshield.errors import InvalidInput
from scoreshield.geometry import denoise as post
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress, to_device
from scoreshield.geometry.denoise import METHODS as DENOISERS
from scoreshield.geometry.elliptope import needs_memory, project_elliptope
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    Released,
    Replacement,
    check_score_range,
    spectral_norm,
)
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel
from scoreshield.privacy.noise import add_noise
from scoreshield.privacy.noise.laws import StaircaseNoise
from scoreshield.privacy.sampling.stream import Stream, sampler_name
from scoreshield.releases.pipeline import Collection, Contract, Noise, Prepared, tie_break
from scoreshield.releases.results import GramRelease, RowRelease, ScoreRelease

Mechanism = Literal["gaussian", "laplace", "staircase", "optimal", "auto"]
GramProjection = Literal["exact", "aap", "dykstra", "none"]
Float = NDArray[np.float64]
GRAM_PROJECTIONS: tuple[str, ...] = get_args(GramProjection)
_TILE = 256  # rows of a Gram matrix that get their noise at once


@clear_frames_on_error
def release_scores(
    embeddings: ArrayLike,
    query: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: str | LevelChannel = "gaussian",
    calibration: str = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    score_range: tuple[float, float] = FULL_RANGE,
    norm: str = "unit",
    rng: Any = None,
    ledger: Any = None,
    unsafe_reproduce_paper: bool = False,
) -> ScoreRelease:
    """Release the cosine similarities of a public query, or a batch of them, with every record (regime i).

    Parameters
    ----------
    embeddings : the collection, (n, d), float32 or float64, of any strides; never modified.
    query : one public query (d,) or a batch (m, d). A batch is one release, calibrated to 2 |Q|_2 (spectral norm);
        docs/noise.md says when that is the wrong tool.
    epsilon, delta : the contract. Gaussian noise needs delta > 0, the pure ones none; there is no default epsilon.
    mechanism : ``"gaussian"``; ``"laplace"`` or ``"staircase"`` for one query, where one record moves one score: pure
        epsilon, without delta, and far less noise at the same epsilon (docs/mechanisms.md says what that means);
        ``"optimal"``, the best table of 41 levels for squared error and a uniform prior, or any table that
        :func:`scoreshield.optimal_channel` or :func:`scoreshield.randomised_response` makes; ``"auto"``, of Gaussian
        (where delta allows it) and staircase noise the one of the smaller standard deviation.
    calibration : ``"analytic"`` (the least noise), ``"conservative"`` or ``"classical"`` (textbook rules, refused
        where false).
    adjacency : who is protected: ``Replacement()`` or ``Identity(labels)``. With ``Identity(labels, centroids=True)``
        one score per identity is released, in sorted order of the labels.
    score_range : a public range that clean scores are clamped to before the noise; a narrower one takes less noise.
    norm : ``"unit"`` normalises rows, and takes a zero row as the first basis vector; ``"ball"`` only shortens rows
        longer than one.
    rng : None for the secure sampler; a seed or a numpy Generator for research mode, which repeats and is not private.
    ledger : ``ledger.account(name)`` of a :class:`scoreshield.Ledger`, charged before any random bit is drawn. The name
        is the collection's. A row that is not finite is found before the charge and costs nothing.
    unsafe_reproduce_paper : use a refused textbook rule all the same. The guarantee then carries the true pair.

    Returns
    -------
    ScoreRelease with ``.scores`` (feasible), ``.noisy`` (for ranking), ``.guarantee`` and ``.top_k(k,
    threshold=None)``.
    """
    return prepare_scores(
        embeddings,
        query,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=adjacency,
        score_range=score_range,
        norm=norm,
        rng=rng,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    ).release(ledger)


def prepare_scores(
    embeddings: ArrayLike,
    query: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: str | LevelChannel = "gaussian",
    calibration: str = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: str = "unit",
    rng: Any = None,
    unsafe_reproduce_paper: bool = False,
) -> Prepared[Float, ScoreRelease]:
    """A score release that nothing was charged for yet; the parameters are those of :func:`release_scores`."""
    function = "release_scores"
    if not isinstance(mechanism, str | LevelChannel):
        _checks.reject("mechanism", function, "a name or a LevelChannel", mechanism)
    if mechanism == "auto":
        mechanism, delta = _smaller_noise(embeddings, query, epsilon, delta, adjacency, score_range, function)
    if mechanism == "optimal" or isinstance(mechanism, LevelChannel):
        return _prepare_levels(
            embeddings, query, epsilon, delta, mechanism, calibration, adjacency, score_range, norm, rng
        )
    contract = Contract.check(function, epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    norm = _checks.one_of(norm, "norm", function, _embeddings.NORMS)
    source = Collection.check(embeddings, adjacency, function)
    queries, single = _embeddings.as_queries(query, source.dimension, function)
    sampler = sampler_name(rng, function)

    released = Released("scores", source.size, contract.width, len(queries), spectral_norm(queries), source.rounding)
    noise = contract.calibrate(source.adjacency.of(released))
    shape = (source.size,) if single else (len(queries), source.size)
    guarantee = contract.guarantee(noise, source.adjacency, "scores", shape, sampler)

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        add_noise(values, noise.law, noise.step, stream)
        return ScoreRelease(noisy=values.reshape(shape), guarantee=guarantee, tie_break=tie_break(stream))

    score = _clamped_scores(source, queries, norm, contract.score_range)
    return Prepared(function, guarantee, source.adjacency, rng, score, draw)


def _clamped_scores(
    source: Collection, queries: Float, norm: str, score_range: tuple[float, float]
) -> Callable[[], Float]:
    """The clean scores of all queries, one after the other, clamped to the public range, when called."""

    def score() -> Float:
        values = _embeddings.scores(source.rows(), queries, norm, source.function)
        return np.clip(values, *score_range, out=values).reshape(-1)

    return score


def _smaller_noise(
    embeddings: ArrayLike,
    query: ArrayLike,
    epsilon: Any,
    delta: Any,
    adjacency: Any,
    score_range: Any,
    function: str,
) -> tuple[str, float]:
    """Gaussian or staircase, by standard deviation, from public facts; staircase noise leaves delta unspent."""
    epsilon = _checks.budget(epsilon, function)
    delta = _checks.probability(delta, "delta", function, zero=True)
    low, high = check_score_range(score_range, function)
    source = Collection.check(embeddings, adjacency, function)
    queries, _ = _embeddings.as_queries(query, source.dimension, function)
    one = source.adjacency.of(Released("scores", source.size, queries=len(queries))).moved == 1
    if delta == 0 or (
        one and StaircaseNoise.calibrated(epsilon, high - low).std < gaussian.calibrate(epsilon, delta, high - low)
    ):
        return "staircase", 0.0
    return "gaussian", delta


def _prepare_levels(
    embeddings: ArrayLike,
    query: ArrayLike,
    epsilon: float,
    delta: float,
    mechanism: str | LevelChannel,
    calibration: str,
    adjacency: Adjacency,
    score_range: tuple[float, float],
    norm: str,
    rng: Any,
) -> Prepared[Float, ScoreRelease]:
    """Scores drawn from a table of levels: one record moves one score, and the others' draws cancel."""
    function = "release_scores"
    epsilon = _checks.budget(epsilon, function)
    delta = _checks.probability(delta, "delta", function, zero=True)
    low, high = check_score_range(score_range, function)
    if calibration != "analytic":
        raise InvalidInput("Calibration rules are for Gaussian noise: leave them out for a table of levels.")
    norm = _checks.one_of(norm, "norm", function, _embeddings.NORMS)
    source = Collection.check(embeddings, adjacency, function)
    queries, single = _embeddings.as_queries(query, source.dimension, function)
    if source.adjacency.of(Released("scores", source.size, queries=len(queries))).moved > 1:
        raise InvalidInput(
            "A table of levels is private where one record moves one score: one query, no raw identities."
        )
    sampler = sampler_name(rng, function)
    name = "levels"
    if not isinstance(mechanism, LevelChannel):
        name, mechanism = "optimal", optimal_channel(epsilon, delta, score_range=(low, high))
    if mechanism.epsilon > epsilon or mechanism.delta > delta:
        raise InvalidInput(
            f"The table is private at ({mechanism.epsilon:g}, {mechanism.delta:g}), which the contract ({epsilon:g}, "
            f"{delta:g}) "
            "does not cover: make one for the contract."
        )
    shape = (source.size,) if single else (len(queries), source.size)
    guarantee = Guarantee(
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        mechanism=name,
        calibration="pure" if mechanism.delta == 0 else "analytic",
        adjacency=source.adjacency.public(),
        regime="scores",
        shape=shape,
        score_range=(low, high),
        sensitivity=high - low,
        grid_sensitivity=high - low,
        scale=mechanism.std,
        grid=mechanism.step,
        noise=mechanism,
        profile=mechanism.profile(),
        sampler=sampler,
        details={"levels": len(mechanism.inputs)},
    )
    table = mechanism

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        values[...] = table.release(stream, values)
        return ScoreRelease(noisy=values.reshape(shape), guarantee=guarantee, tie_break=tie_break(stream))

    score = _clamped_scores(source, queries, norm, (low, high))
    return Prepared(function, guarantee, source.adjacency, rng, score, draw)


@clear_frames_on_error
def release_row(
    embeddings: ArrayLike,
    index: int,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: str = "gaussian",
    calibration: str = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    rng: Any = None,
    ledger: Any = None,
    unsafe_reproduce_paper: bool = False,
) -> RowRelease:
    """Release the similarities of the record at a public index with every record (regime iii).

    The record's own similarity is the public constant 1. Replacing that record moves all the others, so the
    sensitivity is 2 sqrt(n - 1); if the record's embedding is public, ``release_scores`` with it as the query needs
    far less noise. The parameters are those of :func:`release_scores`; with ``Identity(labels, centroids=True)``
    the index counts identities in sorted order of the labels.
    """
    function = "release_row"
    contract = Contract.check(function, epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    contract.many_move("the row of a record")
    source = Collection.check(embeddings, adjacency, function, least=2)
    index = _position(index, source.size, function)
    sampler = sampler_name(rng, function)

    noise = contract.calibrate(source.adjacency.of(Released("row", source.size, contract.width)))
    guarantee = contract.guarantee(noise, source.adjacency, "row", (source.size,), sampler)

    def score() -> Float:
        rows = source.rows()
        own = _embeddings.unit_rows(rows[index : index + 1], function, first=index)
        values: Float = _embeddings.scores(rows, own, "unit", function)[0]
        np.clip(values, *contract.score_range, out=values)
        return values

    def draw(values: Float, stream: Stream) -> RowRelease:
        add_noise(values, noise.law, noise.step, stream)
        values[index] = 1.0
        return RowRelease(noisy=values, guarantee=guarantee, tie_break=tie_break(stream), index=index)

    return Prepared(function, guarantee, source.adjacency, rng, score, draw).release(ledger)


@clear_frames_on_error
def release_gram(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: str = "gaussian",
    calibration: str = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    projection: str = "exact",
    denoise: str = "projection",
    max_iterations: int | None = None,
    device: str = "cpu",
    rng: Any = None,
    ledger: Any = None,
    unsafe_reproduce_paper: bool = False,
    progress: Progress | None = None,
) -> GramRelease:
    """Release all pairwise cosine similarities (regime ii).

    The parameters are those of :func:`release_scores`, and

    adjacency : also ``GramRadius(radius)``, a promise about the matrix that need not cover a whole record.
    projection : ``"exact"`` (the nearest valid cosine matrix), ``"dykstra"`` (the same, slowly), ``"aap"`` (the
        paper's) or ``"none"``, which leaves ``.gram`` as noisy as it is.
    denoise : what is made of the noisy matrix, since its noise law is public: ``"projection"`` as above, ``"rank"``,
        ``"shrinkage"``, ``"identity"``, ``"sure"`` or ``"none"``; docs/projection.md says what each is good for.
    max_iterations, device : of the projection; ``"cuda"`` runs it on a GPU.
    progress : called with (done, total) while the noise is drawn and then while the projection runs.

    Memory: one (n, n) float64 matrix for the noisy release, drawn in place; the projection holds about six while it
    runs, and leaves one.
    """
    function = "release_gram"
    contract = Contract.check(function, epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    contract.many_move("a Gram matrix")
    projection = _checks.one_of(projection, "projection", function, GRAM_PROJECTIONS)
    denoise = _checks.one_of(denoise, "denoise", function, DENOISERS)
    if projection == "none" and denoise not in ("projection", "none"):
        raise InvalidInput(f"denoise={denoise!r} ends on a valid cosine matrix; leave projection='none' out.")
    if max_iterations is not None:
        max_iterations = _checks.count(max_iterations, "max_iterations", function)
    source = Collection.check(embeddings, adjacency, function, least=2)
    sampler = sampler_name(rng, function)
    method = "newton" if projection == "exact" else projection
    if "none" not in (projection, denoise):
        # Refuse a device that is not there, or too little memory, before any noise is drawn.
        to_device(np.zeros((1, 1)), device, function)
        needs_memory(source.size, method, device, function)

    rounding = _embeddings.rounding_error(source.dimension, np.float64)
    released = Released("gram", source.size, contract.width, rounding=rounding)
    noise = contract.calibrate(source.adjacency.of(released), entries_per_draw=2)
    guarantee = contract.guarantee(noise, source.adjacency, "gram", (source.size, source.size), sampler)

    def score() -> Float:
        clean = _embeddings.gram(source.rows(), function)
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

    return Prepared(function, guarantee, source.adjacency, rng, score, draw).release(ledger)


@dataclass
class _Projector:
    """A projection as a function, which adds up what its calls took."""

    method: str
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


def _add_symmetric_noise(matrix: NDArray[np.float64], noise: Noise, stream: Stream, progress: Progress | None) -> None:
    """Noise on the upper triangle, drawn once, in place, tile by tile, and mirrored; the diagonal is the public 1."""
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


def _position(index: Any, n: int, function: str) -> int:
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or not -n <= index < n:
        _checks.reject("index", function, f"a whole number from 0 to {n - 1}", index)
    return int(index) % n
