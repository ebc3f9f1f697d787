"""Releases that name records instead of scoring them: screening by a threshold, and the k best.

One record moves one score. So a mechanism that is private for the answer about one record is private for the whole set.

* Screening: each record's bit "score > threshold" is kept with probability e^ε / (1 + e^ε)
  (randomised response, Warner 1965). About n / (1 + e^ε) of the other records are named too.
* Screen and refine: a share of the budget screens. The rest scores the records that pass, with staircase noise. A
  record's answer is its bit, and its score if the bit is one. The two factors multiply, so the budgets add up.
* The k best: permute-and-flip (McKenna & Sheldon 2020), or one-shot Gumbel noise (Durfee & Rogers 2019), with scale
  D/ε for one selection instead of 2D/ε, because replacing a record raises no other score.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Rng
from scoreshield._validation import check_count, check_epsilon, one_of, validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, ReleaseShape, Replacement, check_score_range
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import StaircaseNoise, add_noise, choose_grid_step
from scoreshield.privacy.profiles import PureProfile
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.pipeline import PendingRelease, PrivateCollection, count_steps, draw_tie_break
from scoreshield.releases.results import MatchRelease, TopKRelease

Selection = Literal["permute-and-flip", "gumbel"]
SELECTIONS: tuple[str, ...] = get_args(Selection)
Float = NDArray[np.float64]
_KEYS = 2**62  # so many that two of a million agree once in ten million orders
_REASONS = {
    "permute-and-flip": "its error is never larger than the exponential mechanism's at the same epsilon",
    "gumbel": "asked for; the law of one draw of Gumbel noise for all selections",
}


@clear_frames_on_error
@validate()
def release_matches(
    embeddings: ArrayLike,
    query: ArrayLike,
    threshold: float,
    *,
    epsilon: float,
    refine: float = 0.0,
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    score_range: tuple[float, float] = FULL_RANGE,
    norm: str = "unit",
    rng: Rng = None,
    ledger: AccountLike | None = None,
) -> MatchRelease:
    """Release which records score above a public threshold, under pure epsilon.

    `embeddings`, `adjacency`, `norm`, `rng` and `ledger` are as in `scoreshield.release_scores`.

    Args:
        query: One public query.
        threshold: Public, chosen without looking at the collection.
        epsilon: The whole budget.
        refine: The share of the budget, in [0, 1), that scores the named records, with staircase noise; 0 only names
            them.
        score_range: For refined scores, the public range. Scores of named records are clamped to [threshold, upper end]
            instead, which is as public and narrower.

    Returns:
        A MatchRelease with ``.candidates`` (the released records in their own order), ``.indices`` (the same by falling
        score if refined, in a random order otherwise), ``.noisy`` (the candidates' scores, empty if not refined),
        ``.expected_false``, ``.count`` (unbiased), ``.count_interval(confidence)`` and ``.guarantee``.
    """
    return prepare_matches(
        embeddings,
        query,
        threshold,
        epsilon=epsilon,
        refine=refine,
        adjacency=adjacency,
        score_range=score_range,
        norm=norm,
        rng=rng,
    ).release(ledger)


def prepare_matches(
    embeddings: ArrayLike,
    query: ArrayLike,
    threshold: float,
    *,
    epsilon: float,
    refine: float = 0.0,
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: str = "unit",
    rng: Rng = None,
) -> PendingRelease[Float, MatchRelease]:
    """Prepare a screening without a charge; the arguments are those of `release_matches`."""
    epsilon = _validation.check_epsilon(epsilon)
    low, high = check_score_range(score_range)
    threshold = _validation.check_real(threshold, "threshold", "a number inside the score range")
    if not low <= threshold < high:
        _validation.reject("threshold", f"in [{low:g}, {high:g})", threshold)
    refine = _validation.check_real(refine, "refine", "a share in [0, 1)")
    if not 0 <= refine < 1:
        _validation.reject("refine", "a share in [0, 1)", refine)
    source, queries, sampler, norm = _inputs(embeddings, query, adjacency, norm, rng)

    screen_budget, refine_budget = epsilon, 0.0
    if refine:
        screen_budget = _validation.check_epsilon(epsilon * (1 - refine))
        # Both are drawn as exact rationals, so that they must add up to no more than epsilon, to the last bit.
        refine_budget = _validation.check_epsilon(_at_most(Fraction(epsilon) - Fraction(screen_budget)))
    law, step = _staircase(refine_budget, threshold, high) if refine else (None, 2.0**-20)
    guarantee = Guarantee(
        epsilon=epsilon,
        delta=0.0,
        mechanism="screen-and-refine" if refine else "randomised-response",
        calibration="pure",
        adjacency=source.adjacency.drop_labels(),
        regime="matches",
        shape=(source.size,),
        score_range=(low, high),
        sensitivity=1.0,
        grid_sensitivity=1.0,
        scale=1.0 if law is None else law.scale,
        grid=step,
        noise=None,
        profile=PureProfile(epsilon),
        sampler=sampler,
        details={"threshold": threshold, "screening_epsilon": screen_budget, "refining_epsilon": refine_budget},
    )

    def score() -> Float:
        scores: Float = _embeddings.compute_scores(source.rows(), queries, norm)[0]
        np.clip(scores, low, high, out=scores)
        return scores

    def draw(scores: Float, stream: Stream) -> MatchRelease:
        candidates = np.flatnonzero((scores > threshold) ^ ~_kept(stream, screen_budget, len(scores)))
        values = np.empty(0)
        if law is not None:
            values = np.clip(scores[candidates], threshold, high)
            add_noise(values, law, step, stream)
        return MatchRelease(guarantee=guarantee, candidates=candidates, noisy=values, tie_break=draw_tie_break(stream))

    return PendingRelease(guarantee, source.adjacency, rng, score, draw)


@clear_frames_on_error
@validate(k=check_count, epsilon=check_epsilon, mechanism=one_of(SELECTIONS))
def release_top_k(
    embeddings: ArrayLike,
    query: ArrayLike,
    k: int,
    *,
    epsilon: float,
    mechanism: str = "permute-and-flip",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: str = "unit",
    rng: Rng = None,
    ledger: AccountLike | None = None,
) -> TopKRelease:
    """Release the indices of the k best records, best first, under pure epsilon and without their scores.

    The other arguments are as in `scoreshield.release_scores`.

    Args:
        k: The number of records. The budget is split evenly over k selections, each from the records not yet chosen.
        mechanism: ``"permute-and-flip"`` (never worse than the exponential mechanism) or ``"gumbel"`` (the law of
            one-shot Gumbel noise, which is that of k rounds of the exponential mechanism).
        score_range: A public range. The scale of the noise is its width over the budget of one selection.
    """
    low, high = check_score_range(score_range)
    source, queries, sampler, norm = _inputs(embeddings, query, adjacency, norm, rng)
    if k > source.size:
        _validation.reject("k", f"at most the number of records, {source.size:,}", k)
    each = epsilon / k
    step = choose_grid_step((high - low) / each)
    width = count_steps(low, high, step)
    guarantee = Guarantee(
        epsilon=epsilon,
        delta=0.0,
        mechanism=mechanism,
        calibration="pure",
        adjacency=source.adjacency.drop_labels(),
        regime="top-k",
        shape=(k,),
        score_range=(low, high),
        sensitivity=high - low,
        grid_sensitivity=width * step,
        scale=(high - low) / each,
        grid=step,
        noise=None,
        profile=PureProfile(epsilon),
        sampler=sampler,
        details={"selections": k, "epsilon_for_each": each, "records": source.size, "reason": _REASONS[mechanism]},
    )
    choose = _permute_and_flip if mechanism == "permute-and-flip" else _gumbel

    def score() -> Float:
        scores = _embeddings.compute_scores(source.rows(), queries, norm)[0]
        steps: Float = np.rint(np.clip(scores, low, high) / step)
        return steps

    def draw(steps: Float, stream: Stream) -> TopKRelease:
        left, indices = np.arange(source.size), np.empty(k, dtype=np.intp)
        for place in range(k):
            found = choose(stream, steps[left], width / each * (1 + 2**-48))
            indices[place] = left[found]
            left = np.delete(left, found)
        return TopKRelease(guarantee=guarantee, indices=indices)

    return PendingRelease(guarantee, source.adjacency, rng, score, draw).release(ledger)


def _inputs(
    embeddings: ArrayLike, query: ArrayLike, adjacency: Adjacency, norm: str, rng: Rng
) -> tuple[PrivateCollection, Float, str, str]:
    """Return the checked collection and query, the name of the sampler, and the norm."""
    norm = _validation.check_option(norm, "norm", _embeddings.NORMS)
    source = PrivateCollection.check(embeddings, adjacency)
    queries, single = _embeddings.as_queries(query, source.dimension)
    if not single and len(queries) != 1:
        raise InvalidInput("Give one query; each further one is a release of its own.")
    moved = source.adjacency.bound_sensitivity(ReleaseShape("scores", source.size)).moved
    if moved > 1:
        raise InvalidInput(
            f"This release is private where one record moves one score; an identity moves up to {moved:,} of them: use "
            "Identity(labels, centroids=True)."
        )
    return source, queries, name_sampler(rng), norm


def _kept(stream: Stream, epsilon: float, count: int) -> NDArray[np.bool_]:
    """Flip coins of probability e^epsilon / (1 + e^epsilon), exactly."""
    return discrete.flip_coins(
        stream, discrete.enclose(lambda iv: 1 / (1 + iv.exp(-discrete.make_rational(iv, epsilon)))), count
    )


def _staircase(epsilon: float, low: float, high: float) -> tuple[StaircaseNoise, float]:
    step = choose_grid_step(StaircaseNoise.calibrate(epsilon, high - low).std)
    return StaircaseNoise.calibrate(epsilon, count_steps(low, high, step) * step, step), step


def _at_most(value: Fraction) -> float:
    """Return the largest float that is not above a fraction."""
    found = float(value)
    return found if Fraction(found) <= value else math.nextafter(found, 0.0)


def _gumbel(stream: Stream, steps: NDArray[np.float64], scale: float) -> int:
    """Run one round of the exponential mechanism, exactly; k rounds have the law of one draw of Gumbel noise.

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
    """Return, in a random order, the first record whose coin of probability e^((score - best) / scale) shows heads.

    Gaps are whole numbers of steps, so a coin tests whether a geometric variable reaches the gap. All coins are drawn
    at once, exactly, and their number does not depend on the scores.
    """
    order = _random_order(stream, len(steps))
    gap = steps.max() - steps[order]
    heads = discrete.draw_geometric(stream, 1.0 / scale, len(steps))[0] >= gap  # P[G >= j] = e^(-j / scale)
    return int(order[int(np.argmax(heads))])


def _random_order(stream: Stream, count: int) -> NDArray[np.intp]:
    """Draw a uniform permutation by random keys; all keys are drawn again while two of them agree."""
    while True:
        keys = discrete.draw_below(stream, np.full(count, _KEYS))
        order = np.argsort(keys, kind="stable")
        if np.diff(keys[order]).all():
            return order
