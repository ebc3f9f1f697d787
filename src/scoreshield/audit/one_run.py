"""Audit an expensive mechanism by one release: many canaries, and a fair coin for each.

Each canary has a slot in the collection. Heads puts the canary there, tails puts a public alternative there, so a flip
of one coin replaces one record. Every canary gets a score from the one output. The highest are guessed "in", the lowest
"out", and the rest are not guessed. An (epsilon, delta)-private release limits how many guesses are right, even if one
output entry depends on many coins (Steinke, Nasr & Jagielski 2023). `scoreshield.audit.bounds.one_run_epsilon` computes
a bound from the number of right guesses.

The price is strength. r guesses can show at most an epsilon of about ln(r / 3). For Gaussian noise the bound stays well
below the true epsilon, since each canary affects one noisy entry.

The default score of a canary: if a released entry is expected at a with the canary c in its slot and at b with its
alternative c', the log-likelihood ratio of Gaussian noise on an entry x is (x - (a + b)/2)(a - b)/σ². The
score is its sum over the entries that move, without the common factor. For other noise that is not the likelihood
ratio, but still a valid score, which only has to be higher with the canary in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, betaincinv, logit

from scoreshield import _validation
from scoreshield._loading import describe_error
from scoreshield._validation import check_inside_unit, optional, validate, whole_from
from scoreshield.audit.bounds import auc, one_run_epsilon, one_run_p_value, tpr_at, tradeoff
from scoreshield.audit.claims import Claim, check_claim
from scoreshield.audit.result import BINS, POINTS, POWER, AuditResult
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.releases.index import IndexRelease
from scoreshield.releases.index_plan import subtract_center
from scoreshield.releases.results import GramRelease, RowRelease, ScoreRelease

Float = NDArray[np.float64]
#: From an output, the canaries and their slots to one score per canary.
Guess = Callable[[Any, Float, NDArray[np.intp]], ArrayLike]

#: Default shares of the canaries that are guessed: many for a clear trace, few for a faint one. Never all: half of the
#: guesses are "in", and fewer than half of the coins may be heads.
_SHARES = (0.8, 0.4, 0.2, 0.1)
# The coins have their own stream: a release that is seeded with the same number must not share its bits with them.
_COINS, _TIES = 0x636F696E, 0x74696573


def _check_release(value: Any, name: str) -> Callable[[Any], Any]:
    if not callable(value):
        _validation.reject(name, "a callable from embeddings to an output", value)
    return cast("Callable[[Any], Any]", value)


def _check_guess(value: Any, name: str) -> Guess:
    if not callable(value):
        _validation.reject(name, "a callable or None", value)
    return cast("Guess", value)


@validate(
    release=_check_release,
    claim=check_claim,
    guess=optional(_check_guess),
    confidence=check_inside_unit,
    seed=whole_from(0),
)
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
    """Call `release` once, and bound its epsilon from below.

    Args:
        release: A callable from an (n, d) array to an output. It is called once, with float64 unit rows.
        embeddings: The collection, (n, d). A copy is changed at `slots`.
        canaries: (m, d), m <= n: the records that heads puts in.
        claim: The claim to contradict.
        guess: `guess(output, canaries, slots)` returns one score per canary, higher where the canary seems to be in.
            It does not get the coins. None takes the default of a ScoreShield score, row, Gram or index release, or of
            an array of n scores.
        alternatives: (m, d): the records that tails puts in. None takes the opposite of each canary, which is farthest
            away.
        slots: m different positions in the collection; None takes the first m.
        query: For the default guess on scores: the public query, or the batch of queries, that was answered.
        guesses: How many coins are guessed, half of them "in". Several numbers share the confidence. None takes 80, 40,
            20 and 10 % of the canaries.
        confidence: That the bound holds.
        seed: The seed of the coins and of the order of equal scores.
        name: The name in the result; None takes the name of `release`.

    Returns:
        A result with one release. Its area and true-positive rate have the interval [0, 1], since one output gives no
        interval.
    """
    start = time.perf_counter()
    if alternatives is None and not claim.is_replacement:
        raise InvalidInput(
            "The claim is about other neighbours than a record and its opposite "
            f"({claim.adjacency}): give alternatives that it covers."
        )
    canary_set = Canaries.check(embeddings, canaries, alternatives, slots)
    m = len(canary_set.slots)
    counts = _check_guess_counts(guesses, m)

    heads = np.random.default_rng([seed, _COINS]).random(m) < 0.5
    output = _call(lambda: release(canary_set.make_collection(heads)), "release")
    score = make_default_guess(output, canary_set, query) if guess is None else guess
    scores = _check_scores(_call(lambda: score(output, canary_set.inside, canary_set.slots), "guess"), m)

    ties = np.random.default_rng([seed, _TIES]).random(m)
    right = [_count_right(scores, ties, heads, r) for r in counts]
    share = 1 - (1 - confidence) / len(counts)
    epsilons = [one_run_epsilon(r, v, claim.delta, share, m) for r, v in zip(counts, right, strict=True)]
    best = int(np.argmax(epsilons))
    edges, counts_in, counts_out = _count_bins(scores, heads)
    fpr, tpr, area, rate = _compute_curve(scores, heads)
    return AuditResult(
        name=str(name or getattr(release, "__name__", "release")),
        claim=claim,
        releases=1,
        confidence=confidence,
        epsilon_lower=epsilons[best],
        checks=(),
        auc=(area, 0.0, 1.0),
        tpr_at_1_percent=(rate, 0.0, 1.0),
        fpr=fpr,
        tpr=tpr,
        edges=edges,
        counts_in=counts_in,
        counts_out=counts_out,
        trajectory=((1, epsilons[best]),),
        detectable=min(one_run_detectable(r, claim.epsilon, claim.delta, share, m) for r in counts),
        statistic=f"one score a canary; {right[best]:,} of {counts[best]:,} guesses right",
        neighbours=f"{m:,} canaries, each in its slot or replaced by a fair coin",
        seconds=time.perf_counter() - start,
        canaries=m,
    )


def one_run_detectable(guesses: int, epsilon: float, delta: float, confidence: float, canaries: int) -> float:
    """Find the least true epsilon that contradicts the claim `epsilon` with probability 90 %.

    This is for the mechanism that leaks most, randomised response on each record. Then the number of right guesses is
    binomial, as long as enough canaries look in and enough look out. The result is infinite where even no wrong guess
    would contradict the claim.
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
    # The number of canaries that look in is a fair binomial. Too few of either kind counts as not found.
    more = guesses - guesses // 2
    missing = 2 * float(betaincc(more, canaries - more + 1, 0.5))
    target = POWER + missing
    if target >= 1:
        return math.inf
    # P[binomial(guesses, right) >= enough] = target, solved for right; logit turns it into epsilon, rounded up.
    right = float(betaincinv(enough, guesses - enough + 1, target))
    return max(0.0, float(logit(right))) * (1 + 1e-9) if right < 1 else math.inf


def _check_guess_counts(guesses: Any, m: int) -> list[int]:
    """Check how many coins to guess: different numbers of at least 2 and at most the canaries."""
    if guesses is None:
        return sorted({max(2, 2 * int(m * share / 2)) for share in _SHARES})
    several = list(guesses) if isinstance(guesses, list | tuple) else [guesses]
    if not several:
        _validation.reject("guesses", "a whole number or several", guesses)
    counts = {_validation.check_count(count, "guesses", least=2) for count in several}
    if max(counts) > m:
        _validation.reject("guesses", f"at most the {m} canaries", max(counts))
    return sorted(counts)


def _count_right(scores: Float, ties: Float, heads: NDArray[np.bool_], guesses: int) -> int:
    """Count right guesses: the highest scores are guessed in, the lowest out; ties are in random order."""
    order = np.lexsort((ties, scores))
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(heads[high].sum() + (~heads[low]).sum())


def _call(call: Callable[[], Any], what: str) -> Any:
    """Call the user's code, and describe any failure of it in one sentence."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"The given {what} failed with {type(error).__name__}: {describe_error(error)}") from error


def _check_scores(value: Any, m: int) -> Float:
    must = f"{m} finite scores, one per canary"
    array = _validation.check_array(value, "guess", must)
    if array.shape != (m,) or array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        _validation.reject("guess", "a callable that returns " + must, value)
    return np.clip(array.astype(np.float64), -1e300, 1e300)  # so that differences stay finite


def _count_bins(scores: Float, heads: NDArray[np.bool_]) -> tuple[Float, Float, Float]:
    bins = min(BINS, max(1, round(math.sqrt(len(scores)))))
    edges = np.linspace(scores.min(), scores.max(), bins + 1)
    if np.diff(edges).min() <= 0:  # all equal, or but for rounding
        edges = np.array([scores.min() - 0.5, scores.max() + 0.5])
    inside, outside = np.histogram(scores[heads], edges)[0], np.histogram(scores[~heads], edges)[0]
    return edges, inside.astype(np.float64), outside.astype(np.float64)


def _compute_curve(scores: Float, heads: NDArray[np.bool_]) -> tuple[Float, Float, float, float]:
    """Compute the empirical curve, its area and its height at 1 %; the diagonal where all coins are equal."""
    if heads.all() or not heads.any():
        return np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.5, 0.01
    inside, outside = scores[heads], scores[~heads]
    fpr, tpr = tradeoff(inside, outside, points=POINTS)
    return fpr, tpr, auc(inside, outside, 0.5)[0], tpr_at(inside, outside, 0.01, 0.5)[0]


# ---- Canaries, and the trace that each leaves in a release.


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canaries, their alternatives, and their slots in a collection.

    Attributes:
        rows: The collection, unit rows, (n, d).
        inside: The canaries, unit rows, (m, d).
        outside: Their alternatives, unit rows, (m, d).
        slots: Their m positions in the collection.
    """

    rows: Float
    inside: Float
    outside: Float
    slots: NDArray[np.intp]

    @classmethod
    def check(
        cls,
        embeddings: ArrayLike,
        canaries: ArrayLike,
        alternatives: ArrayLike | None,
        slots: ArrayLike | None,
    ) -> Canaries:
        """Check and normalise canaries; the defaults are the opposite of each canary and the first slots."""
        rows = _check_unit_rows(embeddings, "embeddings")
        inside = _check_unit_rows(canaries, "canaries")
        n, m = len(rows), len(inside)
        if inside.shape[1] != rows.shape[1] or not 2 <= m <= n:
            must = f"2 to {n} rows of length {rows.shape[1]}, as the embeddings have"
            _validation.reject("canaries", must, inside)
        outside = -inside if alternatives is None else _check_unit_rows(alternatives, "alternatives")
        if outside.shape != inside.shape:
            _validation.reject("alternatives", f"of shape {inside.shape}, as the canaries are", outside)
        return cls(rows, inside, outside, _check_slots(slots, m, n))

    def make_collection(self, heads: NDArray[np.bool_]) -> Float:
        """Put each canary into its slot where its coin is heads, and its alternative where the coin is tails."""
        rows = self.rows.copy()
        rows[self.slots] = np.where(heads[:, None], self.inside, self.outside)
        return rows


def make_default_guess(output: Any, canary_set: Canaries, query: ArrayLike | None) -> Guess:
    """Choose how to score canaries in this kind of output; reject an output that needs a `guess`."""
    if isinstance(output, IndexRelease):
        return lambda *_: _score_in_index(output, canary_set)
    if isinstance(output, GramRelease):
        return lambda *_: _score_in_gram(output, canary_set)
    if isinstance(output, RowRelease):
        if output.index in canary_set.slots:
            raise InvalidInput(f"A canary sits at the row that was released ({output.index}); give it another slot.")
        anchor = canary_set.rows[output.index][None]
        return lambda *_: _score_in_scores(output.noisy[None], anchor, output.guarantee.score_range, canary_set)
    if isinstance(output, ScoreRelease):
        queries = _check_queries(query, canary_set)
        noisy = np.atleast_2d(output.noisy)
        return lambda *_: _score_in_scores(noisy, queries, output.guarantee.score_range, canary_set)
    if not (isinstance(output, np.ndarray) and output.shape == (len(canary_set.rows),) and output.dtype.kind in "fiu"):
        must = "given for this kind of output: a callable guess(output, canaries, slots) that scores each canary"
        _validation.reject("guess", must, _validation.Words(f"None with an output of type {type(output).__name__}"))
    queries = _check_queries(query, canary_set)
    return lambda *_: _score_in_scores(output[None].astype(np.float64), queries, FULL_RANGE, canary_set)


def _score_in_scores(noisy: Float, queries: Float, bounds: tuple[float, float], canary_set: Canaries) -> Float:
    if noisy.shape != (len(queries), len(canary_set.rows)):
        must = f"the {len(noisy)} that were answered, over {noisy.shape[1]} records"
        _validation.reject("query", must, _validation.Words(f"{len(queries)} over {len(canary_set.rows)}"))
    a = np.clip(canary_set.inside @ queries.T, *bounds)
    b = np.clip(canary_set.outside @ queries.T, *bounds)
    return _sum_traces(noisy[:, canary_set.slots].T, a, b)


def _score_in_gram(output: GramRelease, canary_set: Canaries) -> Float:
    others = np.setdiff1d(np.arange(len(canary_set.rows)), canary_set.slots)
    if not len(others):
        must = "fewer than the records, because a canary of a Gram matrix is compared with records that are known"
        _validation.reject("canaries", must, canary_set.inside)
    low, high = output.guarantee.score_range
    a = np.clip(canary_set.inside @ canary_set.rows[others].T, low, high)
    b = np.clip(canary_set.outside @ canary_set.rows[others].T, low, high)
    return _sum_traces(output.noisy[np.ix_(canary_set.slots, others)], a, b)


def _score_in_index(output: IndexRelease, canary_set: Canaries) -> Float:
    a, b = canary_set.inside, canary_set.outside
    if output.center is not None:
        a, b = (subtract_center(rows.copy(), output.center) for rows in (a, b))
    if output.projection is not None:
        a, b = a @ output.projection.T, b @ output.projection.T
    return _sum_traces(output.vectors[canary_set.slots].astype(np.float64), a, b)


def _sum_traces(noisy: Float, a: Float, b: Float) -> Float:
    total: Float = ((noisy - (a + b) / 2) * (a - b)).sum(axis=1)
    return total


def _check_queries(query: ArrayLike | None, canary_set: Canaries) -> Float:
    if query is None:
        must = "the query that was answered (or give a 'guess'), so that scores can be compared with what is expected"
        _validation.reject("query", must, query)
    return _embeddings.as_queries(query, canary_set.rows.shape[1])[0]


def _check_unit_rows(rows: ArrayLike, name: str) -> Float:
    array = _embeddings.as_rows(rows, name)
    if not np.isfinite(array).all():
        _validation.reject(name, "an array of finite numbers", array)
    return _embeddings.normalise_public_rows(array, name)


def _check_slots(slots: ArrayLike | None, m: int, n: int) -> NDArray[np.intp]:
    if slots is None:
        return np.arange(m)
    must = f"{m} different whole numbers from 0 to {n - 1}, one per canary"
    places = _validation.check_array(slots, "slots", must)
    if places.shape != (m,) or places.dtype.kind not in "iu" or places.min() < 0 or places.max() >= n:
        _validation.reject("slots", must, slots)
    if len(np.unique(places)) < m:
        _validation.reject("slots", must, slots)
    return places.astype(np.intp)
