"""One query, or several, against every record of a collection (regime i)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Rng
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    ReleaseShape,
    Replacement,
    check_score_range,
    spectral_norm,
)
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel
from scoreshield.privacy.noise import StaircaseNoise, add_noise
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.pipeline import PendingRelease, PrivacyRequest, PrivateCollection, draw_tie_break
from scoreshield.releases.results import ScoreRelease

Mechanism = Literal["gaussian", "laplace", "staircase", "optimal", "auto"]
Float = NDArray[np.float64]


@clear_frames_on_error
@validate()
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
    rng: Rng = None,
    ledger: AccountLike | None = None,
    unsafe_reproduce_paper: bool = False,
) -> ScoreRelease:
    """Release the cosine similarities of a public query, or of a batch, with every record (regime i).

    Args:
        embeddings: The collection, (n, d), float32 or float64, of any strides; never modified.
        query: One public query (d,) or a batch (m, d). A batch is one release, calibrated to 2 |Q|_2 (spectral norm);
            docs/noise.md says when not to use it.
        epsilon: The epsilon of the promise. There is no default.
        delta: The delta of the promise. Gaussian noise needs delta > 0; the pure mechanisms need none.
        mechanism: ``"gaussian"``; ``"laplace"`` or ``"staircase"`` for one query, where one record moves one score.
            These are pure and have far less noise at the same epsilon (docs/mechanisms.md says what that means).
            ``"optimal"`` is the best table of 41 levels for squared error and a uniform prior. It can also be a table
            of `scoreshield.optimal_channel` or `scoreshield.randomised_response`. ``"auto"`` takes Gaussian noise (if
            delta allows it) or staircase noise, whichever has the smaller standard deviation.
        calibration: ``"analytic"`` (the least noise), ``"conservative"`` or ``"classical"`` (textbook rules, which
            raise an error where they are false).
        adjacency: Who is protected: ``Replacement()`` or ``Identity(labels)``. With ``Identity(labels,
            centroids=True)`` one score per identity is released, in sorted order of the labels.
        score_range: A public range that clean scores are clamped to before the noise; a narrower one needs less noise.
        norm: ``"unit"`` normalises rows, and replaces a zero row by the first basis vector; ``"ball"`` only shortens
            rows longer than one.
        rng: None for the secure sampler; a seed or a numpy Generator for research mode, which repeats and is not
            private.
        ledger: ``ledger.account(name)`` of a `scoreshield.Ledger`, charged before any random bit is drawn. The name is
            that of the collection. A row that is not finite is found before the charge and costs nothing.
        unsafe_reproduce_paper: Use a textbook rule even where it is false. The guarantee then holds the true pair.

    Returns:
        A ScoreRelease with ``.scores`` (feasible), ``.noisy`` (for ranking), ``.guarantee`` and ``.top_k(k,
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
    rng: Rng = None,
    unsafe_reproduce_paper: bool = False,
) -> PendingRelease[Float, ScoreRelease]:
    """Prepare a score release without a charge; the arguments are those of `release_scores`."""
    if not isinstance(mechanism, str | LevelChannel):
        _validation.reject("mechanism", "a name or a LevelChannel", mechanism)
    if mechanism == "auto":
        mechanism, delta = _smaller_noise(embeddings, query, epsilon, delta, adjacency, score_range)
    if mechanism == "optimal" or isinstance(mechanism, LevelChannel):
        return _prepare_levels(
            embeddings, query, epsilon, delta, mechanism, calibration, adjacency, score_range, norm, rng
        )
    contract = PrivacyRequest.check(epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    norm = _validation.check_option(norm, "norm", _embeddings.NORMS)
    source = PrivateCollection.check(embeddings, adjacency)
    queries, single = _embeddings.as_queries(query, source.dimension)
    sampler = name_sampler(rng)

    released = ReleaseShape(
        "scores", source.size, contract.width, len(queries), spectral_norm(queries), source.rounding
    )
    noise = contract.calibrate(source.adjacency.bound_sensitivity(released))
    shape = (source.size,) if single else (len(queries), source.size)
    guarantee = contract.guarantee(noise, source.adjacency, "scores", shape, sampler)

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        add_noise(values, noise.law, noise.step, stream)
        return ScoreRelease(noisy=values.reshape(shape), guarantee=guarantee, tie_break=draw_tie_break(stream))

    score = _clamped_scores(source, queries, norm, contract.score_range)
    return PendingRelease(guarantee, source.adjacency, rng, score, draw)


def _clamped_scores(
    source: PrivateCollection, queries: Float, norm: str, score_range: tuple[float, float]
) -> Callable[[], Float]:
    """Return a function that computes the clean scores of all queries, clamped to the public range."""

    def score() -> Float:
        values = _embeddings.compute_scores(source.rows(), queries, norm)
        return np.clip(values, *score_range, out=values).reshape(-1)

    return score


def _smaller_noise(
    embeddings: ArrayLike,
    query: ArrayLike,
    epsilon: Any,
    delta: Any,
    adjacency: Any,
    score_range: Any,
) -> tuple[str, float]:
    """Choose Gaussian or staircase noise by standard deviation, from public facts; staircase noise needs no delta."""
    epsilon = _validation.check_epsilon(epsilon)
    delta = _validation.check_probability(delta, "delta", zero=True)
    low, high = check_score_range(score_range)
    source = PrivateCollection.check(embeddings, adjacency)
    queries, _ = _embeddings.as_queries(query, source.dimension)
    one = source.adjacency.bound_sensitivity(ReleaseShape("scores", source.size, queries=len(queries))).moved == 1
    if delta == 0 or (
        one and StaircaseNoise.calibrate(epsilon, high - low).std < gaussian.calibrate(epsilon, delta, high - low)
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
    rng: Rng,
) -> PendingRelease[Float, ScoreRelease]:
    """Prepare scores drawn from a level table: one record moves one score, and the draws of the others cancel."""
    epsilon = _validation.check_epsilon(epsilon)
    delta = _validation.check_probability(delta, "delta", zero=True)
    low, high = check_score_range(score_range)
    if calibration != "analytic":
        raise InvalidInput("Calibration rules are for Gaussian noise: leave them out for a table of levels.")
    norm = _validation.check_option(norm, "norm", _embeddings.NORMS)
    source = PrivateCollection.check(embeddings, adjacency)
    queries, single = _embeddings.as_queries(query, source.dimension)
    if source.adjacency.bound_sensitivity(ReleaseShape("scores", source.size, queries=len(queries))).moved > 1:
        raise InvalidInput(
            "A table of levels is private where one record moves one score: one query, no raw identities."
        )
    sampler = name_sampler(rng)
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
        adjacency=source.adjacency.drop_labels(),
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
        return ScoreRelease(noisy=values.reshape(shape), guarantee=guarantee, tie_break=draw_tie_break(stream))

    score = _clamped_scores(source, queries, norm, (low, high))
    return PendingRelease(guarantee, source.adjacency, rng, score, draw)
