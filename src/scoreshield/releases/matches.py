"""Screening: release which records score above a public threshold.

One record moves one score, so what is private for the answer of a single record is private for the whole set.

* Screening: each record's bit "score > threshold" is kept with probability `e^ε / (1 + e^ε)`
  (randomised response, Warner 1965). About `n / (1 + e^ε)` of the other records are released too.
* Screen and refine: one share of the budget screens. The records that pass are scored with staircase noise by the rest
  of the budget. The answer of a record is its bit, and its score if the bit is one. The two factors multiply, so the
  budgets add up.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Norm, Rng
from scoreshield._validation import Check, check_epsilon, constrain, one_of, validate
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import WORTH_CHECKS
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Replacement, check_score_range
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.noise import StaircaseNoise, add_noise, choose_grid_step
from scoreshield.privacy.profiles import PureProfile, round_down
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.advice import Adviser, check_guarantee_worth, make_public_rows
from scoreshield.releases.pipeline import PendingRelease, check_single_query, count_steps, draw_tie_break
from scoreshield.releases.results import MatchRelease

Float = NDArray[np.float64]


def _check_threshold(value: Any, name: str) -> float:
    return _validation.check_real(value, name, "a number inside the score range")


def _check_share(value: Any, name: str) -> float:
    share = _validation.check_real(value, name, "a share in [0, 1)")
    if not 0 <= share < 1:
        _validation.reject(name, "a share in [0, 1)", share)
    return share


MATCH_CHECKS: dict[str, Check] = {
    "epsilon": check_epsilon,
    "score_range": check_score_range,
    "threshold": _check_threshold,
    "refine": _check_share,
    "norm": one_of(_embeddings.NORMS),
}


@clear_frames_on_error
@validate(**MATCH_CHECKS, **WORTH_CHECKS)
def release_matches(
    embeddings: ArrayLike,
    query: ArrayLike,
    threshold: float,
    *,
    epsilon: float,
    refine: float = 0.0,
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    k: int = 10,
    public_scores: QueryScores | None = None,
    require_recall: float | None = None,
    rng: Rng = None,
    ledger: AccountLike | None = None,
) -> MatchRelease:
    """Release which records score above a public threshold, under pure epsilon.

    Args:
        embeddings: The collection, as in `release_scores`.
        query: One public query.
        threshold: Public, and chosen without a look at the collection.
        epsilon: The whole budget.
        refine: The share of the budget, in [0, 1), that scores the records which passed, with staircase noise. With 0
            they are only named.
        adjacency: As in `release_scores`.
        score_range: For refined scores, the public range that they are clamped to. Scores of records that pass are
            clamped to [threshold, upper end], which is also public and narrower.
        norm: As in `release_scores`.
        k: How many of the released records will be read. Predictions are made for it.
        public_scores: As in `release_scores`.
        require_recall: As in `release_scores`.
        rng: As in `release_scores`.
        ledger: As in `release_scores`.

    Returns:
        A MatchRelease with ``.candidates`` (the released records in the order of the collection), ``.indices`` (the
        same by falling score if refined, in a random order otherwise), ``.noisy`` (the scores of the candidates, empty
        if not refined), ``.expected_false``, ``.count`` (unbiased), ``.count_interval(confidence)`` and
        ``.guarantee``.

    Warns:
        UselessRelease: Mostly false records are predicted among the first ``k``. It is given before anything is
            charged, and not in research mode.
    """
    prepare = partial(
        prepare_matches,
        query=query,
        threshold=threshold,
        refine=refine,
        adjacency=adjacency,
        score_range=score_range,
        norm=norm,
    )
    pending = prepare(embeddings, epsilon=epsilon, rng=rng)
    if require_recall is not None or rng is None:
        rows = make_public_rows(*_embeddings.find_shape(embeddings))
        check_guarantee_worth(
            Adviser("screening", epsilon, rows.shape[1], public_scores, require_recall, score_range=score_range),
            k,
            lambda other: prepare(rows, epsilon=other, rng=0).guarantee,
            guarantee=pending.guarantee,
            is_charged=rng is None,
        )
    return pending.release(ledger)


@constrain(**MATCH_CHECKS)
def prepare_matches(
    embeddings: ArrayLike,
    query: ArrayLike,
    threshold: float,
    *,
    epsilon: float,
    refine: float = 0.0,
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    rng: Rng = None,
) -> PendingRelease[Float, MatchRelease]:
    """Prepare a screening before its charge, with the arguments of `release_matches`."""
    low, high = score_range
    if not low <= threshold < high:
        _validation.reject("threshold", f"in [{low:g}, {high:g})", threshold)
    source, queries = check_single_query(embeddings, query, adjacency)
    sampler = name_sampler(rng)

    screen_budget, refine_budget = epsilon, 0.0
    if refine:
        screen_budget = _validation.check_epsilon(epsilon * (1 - refine))
        # Both are drawn as exact rationals, so they must add up to at most epsilon, to the last bit.
        refine_budget = _validation.check_epsilon(round_down(Fraction(epsilon) - Fraction(screen_budget)))
    law, step = _calibrate_staircase(refine_budget, threshold, high) if refine else (None, 2.0**-20)
    guarantee = Guarantee.for_mechanism(
        ReleaseFacts(source.adjacency, "matches", (source.size,), (low, high), sampler),
        epsilon=epsilon,
        delta=0.0,
        mechanism="screen-and-refine" if refine else "randomised-response",
        sensitivity=1.0,
        grid_sensitivity=1.0,
        scale=1.0 if law is None else law.scale,
        grid=step,
        profile=PureProfile(epsilon),
        details={"threshold": threshold, "screening_epsilon": screen_budget, "refining_epsilon": refine_budget},
    )

    def compute() -> Float:
        scores: Float = _embeddings.compute_scores(source.rows(), queries, norm)[0]
        np.clip(scores, low, high, out=scores)
        return scores

    def draw(scores: Float, stream: Stream) -> MatchRelease:
        candidates, values = screen_scores(scores, guarantee, stream)
        return MatchRelease(guarantee=guarantee, candidates=candidates, noisy=values, tie_break=draw_tie_break(stream))

    return PendingRelease(guarantee, source.adjacency, rng, compute, draw)


def screen_scores(scores: Float, guarantee: Guarantee, stream: Stream) -> tuple[NDArray[np.intp], Float]:
    """Draw which records are named, and the noisy scores of those that are if the budget has a share for them.

    What is drawn for a record depends on its own score only.

    Args:
        scores: Clean scores within the range of the guarantee.
        guarantee: What `prepare_matches` stated.
        stream: The random bits.
    """
    threshold, high = guarantee.details["threshold"], guarantee.score_range[1]
    is_kept = _keep_bits(stream, guarantee.details["screening_epsilon"], len(scores))
    candidates = np.flatnonzero((scores > threshold) ^ ~is_kept)
    if not guarantee.details["refining_epsilon"]:
        return candidates, np.empty(0)
    law, step = _calibrate_staircase(guarantee.details["refining_epsilon"], threshold, high)
    values = np.clip(scores[candidates], threshold, high)
    add_noise(values, law, step, stream)
    return candidates, values


def _keep_bits(stream: Stream, epsilon: float, count: int) -> NDArray[np.bool_]:
    """Draw coins of probability e^epsilon / (1 + e^epsilon), exactly."""
    return discrete.flip_coins(
        stream, discrete.enclose(lambda iv: 1 / (1 + iv.exp(-discrete.make_rational(iv, epsilon)))), count
    )


def _calibrate_staircase(epsilon: float, low: float, high: float) -> tuple[StaircaseNoise, float]:
    step = choose_grid_step(StaircaseNoise.calibrate(epsilon, high - low).std)
    return StaircaseNoise.calibrate(epsilon, count_steps(low, high, step) * step, step), step
