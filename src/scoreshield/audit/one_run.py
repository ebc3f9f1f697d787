r"""Audit an expensive mechanism by one release: many canaries, a fair coin for each.

Each canary has a slot in the collection. Heads puts it there, tails puts a public alternative there, so flipping one
coin replaces one record. From the one output every canary gets a score, the highest are guessed "in", the lowest
"out", and the middle is left alone. An (epsilon, delta)-private release lets few guesses be right, however the coins'
traces mix in it (Steinke, Nasr & Jagielski 2023); `bounds.one_run_epsilon` turns their number into a bound.

The price is strength: the bound cannot see more than r guesses allow, about ln(r / 3), and for Gaussian noise it stays
well below the true epsilon, since each canary is judged by one noisy look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, betaincinv, logit

from scoreshield import _validation
from scoreshield._validation import check_inside_unit, validate, whole_from
from scoreshield.audit.bounds import auc, one_run_epsilon, one_run_p_value, tpr_at, tradeoff
from scoreshield.audit.claim import Claim
from scoreshield.audit.result import BINS, POINTS, POWER, AuditResult
from scoreshield.audit.traces import Canaries, default_guess
from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]
Guess = Callable[[Any, Float, NDArray[np.intp]], ArrayLike]


#: Shares of the canaries that are guessed, unless asked otherwise: many for a clear trace, few for a faint one. Never
#: all: half of the guesses say "in", and fewer coins than half may have fallen so.
_SHARES = (0.8, 0.4, 0.2, 0.1)
# Coins come from their own stream: a release that is seeded with the same number must not share its bits with them.
_COINS, _TIES = 0x636F696E, 0x74696573


@validate(confidence=check_inside_unit, seed=whole_from(0))
def audit_one_run(
    release: Callable[[Any], Any],
    embeddings: ArrayLike,
    canaries: ArrayLike,
    claim: Claim,
    *,
    guess: Guess | None = None,
    alternatives: ArrayLike | None = None,
    slots: ArrayLike | None = None,
    query: ArrayLike | None = None,
    guesses: int | tuple[int, ...] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    name: str | None = None,
) -> AuditResult:
    """Call ``release`` once and bound its epsilon from below.

    Parameters
    ----------
    release : from an (n, d) array to an output; called once, with float64 unit rows.
    embeddings : the collection, (n, d); the rows at ``slots`` are overwritten in a copy.
    canaries : (m, d), m <= n: what heads puts in.
    guess : ``guess(output, canaries, slots)`` gives one score a canary, higher where it seems to be in, without knowing
        the coins. None for the default of a ScoreShield score, row, Gram or index release, or of an array of n scores.
    alternatives : (m, d): what tails puts in; None for the opposite of each canary, which is farthest away.
    slots : m different places in the collection; None for the first m.
    query : for the default guess on scores: the public query, or the batch, that was answered.
    guesses : how many coins are guessed, half of them "in"; several numbers share the confidence. None for 80, 40, 20
        and 10 % of the canaries.
    seed : of the coins and of the order of equal scores.

    Returns
    -------
    AuditResult
        With one release. Its AUC and true-positive rate have the interval [0, 1], since one output gives them none.
    """
    start = time.perf_counter()
    if not callable(release):
        _validation.reject("release", "a callable from embeddings to an output", release)
    if not isinstance(claim, Claim):
        _validation.reject("claim", "a Claim", claim)
    if guess is not None and not callable(guess):
        _validation.reject("guess", "a callable or None", guess)
    if alternatives is None and not claim.replaces_one:
        raise InvalidInput(
            "The claim is about other neighbours than a record and its opposite "
            f"({claim.adjacency}): give alternatives that it covers."
        )
    planted = Canaries.planted(embeddings, canaries, alternatives, slots)
    m = len(planted.slots)
    numbers = _guess_counts(guesses, m)

    heads = np.random.default_rng([seed, _COINS]).random(m) < 0.5
    output = _called(lambda: release(planted.collection(heads)), "release")
    look = default_guess(output, planted, query) if guess is None else guess
    scores = _as_scores(_called(lambda: look(output, planted.inside, planted.slots), "guess"), m)

    ties = np.random.default_rng([seed, _TIES]).random(m)
    right = [_correct(scores, ties, heads, r) for r in numbers]
    share = 1 - (1 - confidence) / len(numbers)
    found = [one_run_epsilon(r, v, claim.delta, share, m) for r, v in zip(numbers, right, strict=True)]
    best = int(np.argmax(found))
    edges, counts_in, counts_out = _histogram(scores, heads)
    fpr, tpr, area, rate = _curve(scores, heads)
    return AuditResult(
        name=str(name or getattr(release, "__name__", "release")),
        claim=claim,
        releases=1,
        confidence=confidence,
        epsilon_lower=found[best],
        checks=(),
        auc=(area, 0.0, 1.0),
        tpr_at_1_percent=(rate, 0.0, 1.0),
        fpr=fpr,
        tpr=tpr,
        edges=edges,
        counts_in=counts_in,
        counts_out=counts_out,
        trajectory=((1, found[best]),),
        detectable=min(one_run_detectable(r, claim.epsilon, claim.delta, share, m) for r in numbers),
        statistic=f"one score a canary; {right[best]:,} of {numbers[best]:,} guesses right",
        neighbours=f"{m:,} canaries, each in its slot or replaced by a fair coin",
        seconds=time.perf_counter() - start,
        canaries=m,
    )


def one_run_detectable(guesses: int, epsilon: float, delta: float, confidence: float, canaries: int) -> float:
    """The least true epsilon that contradicts the claim ``epsilon`` with probability 90 %.

    For the mechanism that tells most, randomised response on each record: then the number of right guesses is binomial,
    as long as enough canaries look in and enough look out. Infinite where even all right would not do.
    """
    error = 1 - confidence
    too_few, enough = 0, guesses + 1
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if one_run_p_value(guesses, middle, epsilon, delta, canaries) < error:
            enough = middle
        else:
            too_few = middle
    if enough > guesses:
        return math.inf
    # With a fair coin as many look in as a fair binomial; too few of either kind counts as not found.
    more = guesses - guesses // 2
    missing = 2 * float(betaincc(more, canaries - more + 1, 0.5))
    target = POWER + missing
    if target >= 1:
        return math.inf
    # P[binomial(guesses, right) >= enough] = target, solved for right; logit turns it into epsilon, rounded up.
    right = float(betaincinv(enough, guesses - enough + 1, target))
    return max(0.0, float(logit(right))) * (1 + 1e-9) if right < 1 else math.inf


def _guess_counts(guesses: Any, m: int) -> list[int]:
    """How many coins to guess, each number once, at most the canaries and at least two."""
    if guesses is None:
        return sorted({max(2, 2 * int(m * share / 2)) for share in _SHARES})
    several = list(guesses) if isinstance(guesses, list | tuple) else [guesses]
    if not several:
        _validation.reject("guesses", "a whole number or several", guesses)
    numbers = {_validation.check_count(number, "guesses", least=2) for number in several}
    if max(numbers) > m:
        _validation.reject("guesses", f"at most the {m} canaries", max(numbers))
    return sorted(numbers)


def _correct(scores: Float, ties: Float, heads: NDArray[np.bool_], guesses: int) -> int:
    """How many are right if the highest half is called in and the lowest half out; equal scores in random order."""
    order = np.lexsort((ties, scores))
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(heads[high].sum() + (~heads[low]).sum())


def _called(call: Callable[[], Any], what: str) -> Any:
    """The user's code, with any failure of it as one sentence."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InvalidInput(f"The given {what} failed with {type(error).__name__}: {reason}") from error


def _as_scores(value: Any, m: int) -> Float:
    must = f"{m} finite scores, one a canary"
    array = _validation.check_array(value, "guess", must)
    if array.shape != (m,) or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        _validation.reject("guess", "a callable that returns " + must, value)
    return np.clip(array.astype(np.float64), -1e300, 1e300)  # so that differences stay finite


def _histogram(scores: Float, heads: NDArray[np.bool_]) -> tuple[Float, Float, Float]:
    bins = min(BINS, max(1, round(math.sqrt(len(scores)))))
    edges = np.linspace(scores.min(), scores.max(), bins + 1)
    if np.diff(edges).min() <= 0:  # all equal, or but for rounding
        edges = np.array([scores.min() - 0.5, scores.max() + 0.5])
    inside, outside = np.histogram(scores[heads], edges)[0], np.histogram(scores[~heads], edges)[0]
    return edges, inside.astype(np.float64), outside.astype(np.float64)


def _curve(scores: Float, heads: NDArray[np.bool_]) -> tuple[Float, Float, float, float]:
    """The empirical curve, its area and its height at 1 %; the diagonal where all coins fell alike."""
    if heads.all() or not heads.any():
        return np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.5, 0.01
    inside, outside = scores[heads], scores[~heads]
    fpr, tpr = tradeoff(inside, outside, points=POINTS)
    return fpr, tpr, auc(inside, outside, 0.5)[0], tpr_at(inside, outside, 0.01, 0.5)[0]
