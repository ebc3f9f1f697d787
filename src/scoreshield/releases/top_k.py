"""The k best records for a query, without their scores.

One record moves one score, so what is private for one selection from all records is private for the collection. The
mechanisms are permute-and-flip (McKenna & Sheldon 2020) and one-shot Gumbel noise (Durfee & Rogers 2019). The scale is
`D/ε` for one selection instead of `2D/ε`, because replacing a record raises no other score.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Norm, Rng
from scoreshield._validation import check_count, check_epsilon, constrain, one_of, validate
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import WORTH_CHECKS
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Replacement, check_score_range
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.noise import choose_grid_step
from scoreshield.privacy.profiles import PureProfile
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.advice import Adviser, check_guarantee_worth, make_public_rows
from scoreshield.releases.pipeline import PendingRelease, check_single_query, count_steps
from scoreshield.releases.results import TopKRelease

Selection = Literal["permute-and-flip", "gumbel"]
SELECTIONS: tuple[str, ...] = get_args(Selection)
Float = NDArray[np.float64]
_KEYS = 2**62  # with this many keys, two of a million are equal once in ten million orders
_REASONS = {
    "permute-and-flip": "its error is never larger than the exponential mechanism's at the same epsilon",
    "gumbel": "asked for; the law of one draw of Gumbel noise for all selections",
}


@clear_frames_on_error
@validate(
    k=check_count,
    epsilon=check_epsilon,
    mechanism=one_of(SELECTIONS),
    score_range=check_score_range,
    norm=one_of(_embeddings.NORMS),
    public_scores=WORTH_CHECKS["public_scores"],
    require_recall=WORTH_CHECKS["require_recall"],
)
def release_top_k(
    embeddings: ArrayLike,
    query: ArrayLike,
    k: int,
    *,
    epsilon: float,
    mechanism: Selection = "permute-and-flip",
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    public_scores: QueryScores | None = None,
    require_recall: float | None = None,
    rng: Rng = None,
    ledger: AccountLike | None = None,
) -> TopKRelease:
    """Release the indices of the k best records, best first, under pure epsilon and without their scores.

    Args:
        embeddings: The collection, as in `release_scores`.
        query: One public query.
        k: How many records. The budget is split evenly over k selections, each from the records not yet chosen.
        epsilon: The whole budget.
        mechanism: ``"permute-and-flip"`` (never worse than the exponential mechanism) or ``"gumbel"`` (the law of
            one-shot Gumbel noise, which is that of k rounds of the exponential mechanism).
        adjacency: As in `release_scores`.
        score_range: A public range. Its width over the budget of one selection is the scale of the noise.
        norm: As in `release_scores`.
        public_scores: As in `release_scores`.
        require_recall: As in `release_scores`.
        rng: As in `release_scores`.
        ledger: As in `release_scores`.

    Returns:
        A TopKRelease with ``.indices`` and ``.guarantee``.

    Warns:
        UselessRelease: The records are predicted to be chosen mostly by noise. It is given before anything is charged,
            and not in research mode.
    """
    prepare = partial(
        prepare_top_k, query=query, k=k, mechanism=mechanism, adjacency=adjacency, score_range=score_range, norm=norm
    )
    pending = prepare(embeddings, epsilon=epsilon, rng=rng)
    if require_recall is not None or rng is None:
        rows = make_public_rows(*_embeddings.find_shape(embeddings))
        check_guarantee_worth(
            Adviser("top-k", epsilon, rows.shape[1], public_scores, require_recall, score_range=score_range),
            k,
            lambda other: prepare(rows, epsilon=other, rng=0).guarantee,
            guarantee=pending.guarantee,
            is_charged=rng is None,
        )
    return pending.release(ledger)


@constrain(
    k=check_count,
    epsilon=check_epsilon,
    mechanism=one_of(SELECTIONS),
    score_range=check_score_range,
    norm=one_of(_embeddings.NORMS),
)
def prepare_top_k(
    embeddings: ArrayLike,
    query: ArrayLike,
    k: int,
    *,
    epsilon: float,
    mechanism: Selection = "permute-and-flip",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    rng: Rng = None,
) -> PendingRelease[Float, TopKRelease]:
    """Prepare a selection before its charge, with the arguments of `release_top_k`."""
    low, high = score_range
    source, queries = check_single_query(embeddings, query, adjacency)
    sampler = name_sampler(rng)
    if k > source.size:
        _validation.reject("k", f"at most the number of records, {source.size:,}", k)
    facts = ReleaseFacts(source.adjacency, "top-k", (k,), (low, high), sampler)
    guarantee = _state_guarantee(facts, source.size, mechanism, epsilon)
    each, step = epsilon / k, guarantee.grid
    width = count_steps(low, high, step)
    select = _permute_and_flip if mechanism == "permute-and-flip" else _gumbel

    def compute() -> Float:
        scores = _embeddings.compute_scores(source.rows(), queries, norm)[0]
        steps: Float = np.rint(np.clip(scores, low, high) / step)
        return steps

    def draw(steps: Float, stream: Stream) -> TopKRelease:
        left, indices = np.arange(source.size), np.empty(k, dtype=np.intp)
        for place in range(k):
            chosen = select(stream, steps[left], width / each * (1 + 2**-48))
            indices[place] = left[chosen]
            left = np.delete(left, chosen)
        return TopKRelease(guarantee=guarantee, indices=indices)

    return PendingRelease(guarantee, source.adjacency, rng, compute, draw)


def _state_guarantee(facts: ReleaseFacts, records: int, mechanism: Selection, epsilon: float) -> Guarantee:
    """State what k selections by this epsilon promise."""
    (k,), (low, high) = facts.shape, facts.score_range
    each = epsilon / k
    step = choose_grid_step((high - low) / each)
    return Guarantee.for_mechanism(
        facts,
        epsilon=epsilon,
        delta=0.0,
        mechanism=mechanism,
        sensitivity=high - low,
        grid_sensitivity=count_steps(low, high, step) * step,
        scale=(high - low) / each,
        grid=step,
        profile=PureProfile(epsilon),
        details={"selections": k, "epsilon_for_each": each, "records": records, "reason": _REASONS[mechanism]},
    )


def _gumbel(stream: Stream, steps: NDArray[np.float64], scale: float) -> int:
    """Draw one round of the exponential mechanism, exactly. Its k rounds have the law of one draw of Gumbel noise.

    Propose a record at random and accept it with probability e^((score - best) / scale). Proposals come in blocks of a
    size that does not depend on the scores, until one is accepted.
    """
    gap = steps.max() - steps
    while True:
        proposed = discrete.draw_below(stream, np.full(4 * len(steps), len(steps)))
        accepted = discrete.draw_geometric(stream, 1.0 / scale, len(proposed))[0] >= gap[proposed]
        if accepted.any():
            return int(proposed[int(np.argmax(accepted))])


def _permute_and_flip(stream: Stream, steps: NDArray[np.float64], scale: float) -> int:
    """Take the first record, in a random order, whose coin of probability e^((score - best) / scale) shows heads.

    Gaps are whole numbers of steps, so a coin shows heads if a geometric variable reaches the gap. All coins are drawn
    at once, exactly, and their number does not depend on the scores.
    """
    order = _random_order(stream, len(steps))
    gap = steps.max() - steps[order]
    heads = discrete.draw_geometric(stream, 1.0 / scale, len(steps))[0] >= gap  # P[G >= j] = e^(-j / scale)
    return int(order[int(np.argmax(heads))])


def _random_order(stream: Stream, count: int) -> NDArray[np.intp]:
    """Draw a uniform permutation by random keys. All keys are drawn again while two are equal: they have no order."""
    while True:
        keys = discrete.draw_below(stream, np.full(count, _KEYS))
        order = np.argsort(keys, kind="stable")
        if np.diff(keys[order]).all():
            return order
