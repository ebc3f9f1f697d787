r"""Releases that name records instead of scoring them: screening by a threshold, and the k best.

One record moves one score, so what is private for a single record's answer is private for the whole set.

* Screening: each record's bit "score > threshold" is kept with probability :math:`e^\epsilon / (1 + e^\epsilon)`
  (randomised response, Warner 1965). About :math:`n / (1 + e^\epsilon)` of the others get in.
* Screen and refine: a share of the budget screens; those that pass are scored with staircase noise by the rest. A
  record's answer is its bit, and its score if the bit is one: the two factors multiply, so the budgets add up.
* The k best: permute-and-flip (McKenna & Sheldon 2020), or one-shot Gumbel noise (Durfee & Rogers 2019), with scale
  :math:`D/\epsilon` for one selection instead of :math:`2D/\epsilon`, because replacing a record raises no other score.
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

    Parameters
    ----------
    embeddings, query, adjacency, norm, rng, ledger : as in :func:`scoreshield.release_scores`; one query.
    threshold : public, chosen without looking at the collection.
    epsilon : the whole budget.
    refine : the share of it, in [0, 1), that scores the records which passed, with staircase noise; 0 names them only.
    score_range : for refined scores, the public range they are clamped to. Those that pass the screen are clamped to
        [threshold, upper end] instead, which is as public and narrower.

    Returns
    -------
    MatchRelease with ``.candidates`` (the released records in their own order), ``.indices`` (the same by falling
    score where refined, in a random order otherwise), ``.noisy`` (the candidates' scores, empty where not refined),
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
    """A screening that nothing was charged for yet; the parameters are those of :func:`release_matches`."""
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

    Parameters
    ----------
    k : how many; the budget is split evenly over k selections, each from the records not yet chosen.
    mechanism : ``"permute-and-flip"`` (never worse than the exponential mechanism) or ``"gumbel"`` (the law of one-shot
        Gumbel noise, which is that of k rounds of the exponential mechanism).
    score_range : public; its width over a selection's budget is the scale of the noise.
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
    """The checked collection and query, the name of the sampler, and the norm."""
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
    """Coins of probability e^epsilon / (1 + e^epsilon), exactly."""
    return discrete.flip_coins(
        stream, discrete.enclose(lambda iv: 1 / (1 + iv.exp(-discrete.make_rational(iv, epsilon)))), count
    )


def _staircase(epsilon: float, low: float, high: float) -> tuple[StaircaseNoise, float]:
    step = choose_grid_step(StaircaseNoise.calibrate(epsilon, high - low).std)
    return StaircaseNoise.calibrate(epsilon, count_steps(low, high, step) * step, step), step


def _at_most(value: Fraction) -> float:
    """The largest float that is not above a fraction."""
    found = float(value)
    return found if Fraction(found) <= value else math.nextafter(found, 0.0)


def _gumbel(stream: Stream, steps: NDArray[np.float64], scale: float) -> int:
    """One round of the exponential mechanism, whose k rounds are what one draw of Gumbel noise gives: exactly.

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
    """In a random order, the first record whose coin of probability e^((score - best) / scale) shows heads.

    Gaps are whole numbers of steps, so a coin is whether a geometric variable reaches the gap: all coins are drawn at
    once, exactly, and nothing about their number depends on the scores.
    """
    order = _random_order(stream, len(steps))
    gap = steps.max() - steps[order]
    heads = discrete.draw_geometric(stream, 1.0 / scale, len(steps))[0] >= gap  # P[G >= j] = e^(-j / scale)
    return int(order[int(np.argmax(heads))])


def _random_order(stream: Stream, count: int) -> NDArray[np.intp]:
    """A uniform permutation: that of random keys, all drawn again while two agree (equal keys have no random order)."""
    while True:
        keys = discrete.draw_below(stream, np.full(count, _KEYS))
        order = np.argsort(keys, kind="stable")
        if np.diff(keys[order]).all():
            return order
