"""The similarities of one record with every other record (regime iii)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Calibration, Rng
from scoreshield._validation import check_count, optional, validate
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import WORTH_CHECKS
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    ReleaseShape,
    Replacement,
)
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.noise import add_noise
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.advice import Adviser, check_guarantee_worth
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
@validate(**PRIVACY_CHECKS, **{**WORTH_CHECKS, "k": optional(check_count)})
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
    k: int | None = None,
    public_scores: QueryScores | None = None,
    require_recall: float | None = None,
    rng: Rng = None,
    ledger: AccountLike | None = None,
    unsafe_reproduce_paper: bool = False,
) -> RowRelease:
    """Release the similarities of the record at a public index with every record (regime iii).

    The record's own similarity is the public constant 1. Replacing that record moves all the others, so the
    sensitivity is 2 sqrt(n - 1). If the record's embedding is public, `release_scores` with it as the query needs
    far less noise. The other arguments are those of `release_scores`. With ``Identity(labels, centroids=True)``
    the index counts identities in sorted order of the labels.

    Args:
        embeddings: The private collection, one record per row.
        index: Which record; public.
        epsilon: The privacy budget.
        delta: Slack added to every probability; Gaussian noise needs it.
        mechanism: ``"gaussian"``; a row moves as a whole, and no other noise is offered for it.
        calibration: The rule that sets the noise.
        adjacency: Who is protected.
        score_range: A public range that scores are clamped to.
        k: How many of the best records will be read from the row, where it will be ranked: what to expect is then
            predicted before anything is charged.
        public_scores: Public scores of the same model, for the prediction; None takes those that ship.
        require_recall: With ``k``, the least predicted recall that is accepted.
        rng: A seed for research mode, which is not private.
        ledger: The account that is charged.
        unsafe_reproduce_paper: Allow the paper's calibration, which does not keep its promise.

    Raises:
        InvalidInput: An argument is wrong, or less recall is predicted than is required. Nothing was charged.

    Warns:
        UselessRelease: With ``k``, the ranking is predicted to be mostly noise.
    """
    contract = PrivacyRequest(epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    contract.require_gaussian("the row of a record")
    source = PrivateCollection.check(embeddings, adjacency, least=2)
    index = _position(index, source.size)
    sampler = name_sampler(rng)

    sensitivity = source.adjacency.bound_sensitivity(ReleaseShape("row", source.size, contract.width))
    facts = ReleaseFacts(source.adjacency, "row", (source.size,), contract.score_range, sampler)
    noise = contract.calibrate(sensitivity)
    guarantee = contract.state_guarantee(noise, facts)
    if k is None and require_recall is not None:
        raise InvalidInput("'require_recall' needs 'k', which says how many records are read from the row.")
    if k is not None:

        def state(other: float) -> Guarantee:
            changed = replace(contract, epsilon=other)
            return changed.state_guarantee(changed.calibrate(sensitivity), facts)

        check_guarantee_worth(
            Adviser("row", epsilon, source.dimension, public_scores, require_recall, score_range=contract.score_range),
            k,
            state,
            guarantee=guarantee,
            is_charged=rng is None,
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
