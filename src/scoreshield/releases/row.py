"""The similarities of one record with every other record (regime iii)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Calibration, Rng
from scoreshield._validation import validate
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    ReleaseShape,
    Replacement,
)
from scoreshield.privacy.guarantee import ReleaseFacts
from scoreshield.privacy.noise import add_noise
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.pipeline import (
    PRIVACY_CHECKS,
    AdditiveMechanism,
    PendingRelease,
    PrivacyRequest,
    PrivateCollection,
    draw_tie_break,
)
from scoreshield.releases.results import RowRelease

Float = NDArray[np.float64]


@clear_frames_on_error
@validate(**PRIVACY_CHECKS)
def release_row(
    embeddings: ArrayLike,
    index: int,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: AdditiveMechanism = "gaussian",
    calibration: Calibration = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    rng: Rng = None,
    ledger: AccountLike | None = None,
    unsafe_reproduce_paper: bool = False,
) -> RowRelease:
    """Release the similarities of the record at a public index with every record (regime iii).

    The record's own similarity is the public constant 1. Replacing that record moves all the others, so the
    sensitivity is 2 sqrt(n - 1). If the record's embedding is public, `release_scores` with it as the query needs
    far less noise. The other arguments are those of `release_scores`. With ``Identity(labels, centroids=True)``
    the index counts identities in sorted order of the labels.
    """
    contract = PrivacyRequest(epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    contract.require_gaussian("the row of a record")
    source = PrivateCollection.check(embeddings, adjacency, least=2)
    index = _position(index, source.size)
    sampler = name_sampler(rng)

    noise = contract.calibrate(source.adjacency.bound_sensitivity(ReleaseShape("row", source.size, contract.width)))
    guarantee = contract.state_guarantee(
        noise, ReleaseFacts(source.adjacency, "row", (source.size,), contract.score_range, sampler)
    )

    def score() -> Float:
        rows = source.rows()
        own = _embeddings.normalise_rows(rows[index : index + 1], first=index)
        values: Float = _embeddings.compute_scores(rows, own, "unit")[0]
        np.clip(values, *contract.score_range, out=values)
        return values

    def draw(values: Float, stream: Stream) -> RowRelease:
        add_noise(values, noise.law, noise.step, stream)
        values[index] = 1.0
        return RowRelease(noisy=values, guarantee=guarantee, tie_break=draw_tie_break(stream), index=index)

    return PendingRelease(guarantee, source.adjacency, rng, score, draw).release(ledger)


def _position(index: Any, n: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or not -n <= index < n:
        _validation.reject("index", f"a whole number from 0 to {n - 1}", index)
    return int(index) % n
