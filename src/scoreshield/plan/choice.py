"""Choose a mechanism for a need under a contract: a ranked table of predicted utilities, and the best attacker's gain.

The contract is (epsilon, delta), or the most that an attacker may achieve. At the same (epsilon, delta) a pure
mechanism reaches its privacy loss often and a Gaussian rarely, so the two kinds of contract rank mechanisms
differently. Each mechanism is calibrated to the contract as it was stated. Predictions are closed forms of
`decisions` on public scores, or of the mechanism's own error. Nothing is simulated, and nothing is read from
private data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _validation, decisions
from scoreshield._formatting import format_advantage, format_number, format_rate
from scoreshield._validation import check_count, check_delta, one_of, optional, validate, whole_from
from scoreshield.decisions.recall import check_benchmark
from scoreshield.decisions.scores import Law, Scores, ScoresLike, check_target
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import (
    PRIVATE_SCORES_WARNING,
    ScoreRange,
    Source,
    as_plain_value,
    check_order,
    check_plan_scores,
    check_ranges,
    check_source,
)
from scoreshield.plan.contracts import CONTRACT_CHECKS, Contract, make_contract
from scoreshield.privacy.levels.bits import accept_bit
from scoreshield.privacy.levels.tables import (
    optimal_channel,
    randomised_response,
    retrieval_cuts,
    thinned_response,
)
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile, Profile, PureProfile, StepProfile

Need = Literal["scores", "verification", "retrieval", "matches", "top-k", "many queries", "gram", "operating point"]
NEEDS: tuple[str, ...] = get_args(Need)


@dataclass(frozen=True)
class GumbelNoise:
    """Gumbel noise, whose k best scores are k rounds of the exponential mechanism. It only serves predictions."""

    scale: float

    @property
    def std(self) -> float:
        """The standard deviation."""
        return self.scale * math.pi / math.sqrt(6)

    def cdf(self, x: ArrayLike) -> Any:
        """Compute P[W <= x]."""
        with np.errstate(over="ignore"):
            return np.exp(-np.exp(-np.asarray(x, dtype=np.float64) / self.scale))

    def sf(self, x: ArrayLike) -> Any:
        """Compute P[W > x]."""
        with np.errstate(over="ignore"):
            return -np.expm1(-np.exp(-np.asarray(x, dtype=np.float64) / self.scale))


@dataclass(frozen=True)
class Candidate:
    """One mechanism under the contract, with its predicted utility.

    Attributes:
        mechanism: The name of the mechanism.
        call: The call that makes the release.
        utility: The predicted figure.
        epsilon: The epsilon of the mechanism.
        delta: The delta of the mechanism.
        advantage: The advantage of the best membership test against one release.
        score_range: The public score range.
        note: What the reader must know about the prediction.
    """

    mechanism: str
    call: str
    utility: float
    epsilon: float
    delta: float
    advantage: float
    score_range: ScoreRange
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A value that is no finite number is null."""
        values = {**vars(self), "score_range": list(self.score_range)}
        return {name: as_plain_value(value) for name, value in values.items()}


@dataclass(frozen=True)
class Choice:
    """The ranked mechanisms, best first, and the answer in a few sentences.

    Attributes:
        need: The need.
        metric: What the utilities measure.
        larger: Whether a larger utility is better.
        contract: The contract.
        candidates: The mechanisms, best first.
        floor: Below this epsilon no mechanism reaches the best recall; 0 where no such bound is known.
        source: Where the scores come from.
        warnings: What the reader must not overlook.
    """

    need: Need
    metric: str
    larger: bool
    contract: Contract
    candidates: tuple[Candidate, ...]
    floor: float
    source: Source
    warnings: tuple[str, ...]

    @property
    def chosen(self) -> Candidate:
        """The best mechanism."""
        return self.candidates[0]

    @property
    def answer(self) -> str:
        """The ranking in a few sentences."""
        best = self.chosen
        value = (
            format_number(best.utility)
            if self.need in ("scores", "many queries", "gram")
            else format_rate(best.utility)
        )
        sentence = f"With {self.contract.stated}, {best.mechanism} is predicted to do best: {self.metric} {value}."
        if self.floor > 0:
            sentence = (
                f"Below epsilon {self.floor:.3g} no mechanism at all reaches that. " + sentence
                if self.contract.calibration != "attack" and self.floor <= self.contract.epsilon
                else sentence
            )
        return (
            f"{sentence} The best membership test still has an advantage of {format_advantage(best.advantage)} against "
            "one release of it (0 % is guessing)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "kind": "choice",
            "need": self.need,
            "metric": self.metric,
            "answer": self.answer,
            "stated": self.contract.stated,
            "floor": self.floor,
            "source": self.source,
            "warnings": list(self.warnings),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        return self.answer


def _check_benchmark_pair(value: Any, name: str) -> tuple[ArrayLike, ArrayLike]:
    """Check for the scores of a benchmark with its relevant pairs."""
    if not isinstance(value, tuple) or len(value) != 2:
        _validation.reject(name, "a pair (scores, relevant)", value)
    return check_benchmark(*value)


@validate(
    need=one_of(NEEDS),
    **CONTRACT_CHECKS,
    delta=check_delta,
    records=optional(whole_from(2)),
    k=optional(check_count),
    target_fmr=optional(check_target),
    benchmark=optional(_check_benchmark_pair),
    queries=check_count,
    dimension=optional(whole_from(2)),
    ranges=check_ranges,
)
def choose(
    need: Need,
    irrelevant: ScoresLike | None = None,
    relevant: ScoresLike | None = None,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    records: int | None = None,
    k: int | None = None,
    target_fmr: float | None = None,
    benchmark: tuple[ArrayLike, ArrayLike] | None = None,
    queries: int = 1,
    dimension: int | None = None,
    ranges: Sequence[ScoreRange] = ((-1.0, 1.0), (0.0, 0.8)),
    source: Source | None = None,
) -> Choice:
    """Rank the mechanisms for one need under one contract.

    Args:
        need: ``"scores"`` (root mean squared error of a score), ``"verification"`` (true-match rate at ``target_fmr``),
            ``"retrieval"``, ``"matches"`` or ``"top-k"`` (recall at ``k`` of ``records``), ``"many queries"`` (error of
            a score when ``queries`` are answered from vectors of ``dimension``), ``"gram"`` (error of a pairwise
            score), ``"operating point"`` (error of a false-match rate over ``records``).
        irrelevant: Public scores of pairs that do not match, for verification and retrieval.
        relevant: Public scores of pairs that match, for verification and retrieval.
        epsilon: The epsilon of the contract.
        delta: The delta of the contract. With 0 there is no Gaussian mechanism.
        max_advantage: Instead of epsilon: the largest advantage of a membership test. With epsilon, a mechanism must
            keep both, and retrieval considers thinned tables.
        max_tpr: Instead, with ``at_fpr``: the largest true-positive rate of a membership test.
        at_fpr: The false-positive rate for ``max_tpr``.
        records: The number of records.
        k: The number of records returned.
        target_fmr: The false-match rate to keep.
        benchmark: For retrieval, a public benchmark instead of scores: all scores, (queries, records), and the pairs
            (query, record) that answer. The predictions are then for these queries
            (`decisions.recall_of_queries`).
        queries: The number of queries to answer.
        dimension: The dimension of the vectors.
        ranges: Public score ranges to consider.
        source: Where the scores come from, as in `verification`.
    """
    contract = make_contract(delta=delta, epsilon=epsilon, max_advantage=max_advantage, max_tpr=max_tpr, at_fpr=at_fpr)
    if contract is None:
        raise InvalidInput("Give one contract: epsilon, or max_advantage, or max_tpr with at_fpr.")
    windows = ranges or ((-1.0, 1.0),)
    far = None if irrelevant is None else check_plan_scores(irrelevant, "irrelevant")
    near = None if relevant is None else check_plan_scores(relevant, "relevant")
    if far is not None:
        check_order(far, near)
    if benchmark is not None:
        origin = check_source(source or "private")
    else:
        origin = check_source(source, far, near) if far is not None else "parameters"
    floor = 0.0
    match need:
        case "scores":
            metric, larger = "root mean squared error", False
            candidates = list(_predict_score_errors(contract, windows))
        case "verification":
            if far is None or near is None or target_fmr is None:
                raise InvalidInput("Verification needs irrelevant (impostor) and relevant scores, and target_fmr.")
            far.clean_threshold(target_fmr)
            metric, larger = f"true matches at a false-match rate of {format_rate(target_fmr)}", True
            candidates = list(_predict_true_matches(contract, far, near, target_fmr, windows))
        case "retrieval" | "matches" | "top-k":
            if benchmark is not None:
                far, near, records = _read_benchmark(benchmark)
            if far is None or near is None or records is None or k is None:
                raise InvalidInput(
                    "Retrieval needs k, and a benchmark, or records with irrelevant and relevant scores."
                )
            metric, larger = f"recall among the best {k:,} of {records:,}", True
            candidates = list(_predict_recall(contract, far, near, records, k, windows, benchmark))
            best = max(candidate.utility for candidate in candidates)
            floor = math.log(max(1.0, records * (best - contract.delta) / k))
        case "gram":
            if records is None or dimension is None:
                raise InvalidInput("A Gram matrix needs the number of records and the dimension of the vectors.")
            metric, larger = "root mean squared error of a pairwise score", False
            candidates = list(_predict_pair_errors(contract, records, dimension))
        case "many queries":
            if dimension is None:
                raise InvalidInput("Many queries need the dimension of the vectors.")
            metric, larger = f"root mean squared error of a score, {queries:,} queries answered", False
            candidates = list(_predict_index_errors(contract, queries, dimension, windows))
        case _:
            if records is None:
                raise InvalidInput("An operating point needs the number of records.")
            metric, larger = "error of the false-match rate", False
            candidates = list(_predict_rate_errors(contract, records))
    if not candidates:
        raise InvalidInput("No mechanism fits this contract: Gaussian noise needs delta > 0, and the others epsilon.")
    candidates.sort(key=lambda candidate: -candidate.utility if larger else candidate.utility)
    warnings = (PRIVATE_SCORES_WARNING,) if origin == "private" else ()  # the answer states how weak the contract is
    return Choice(need, metric, larger, contract, tuple(candidates), floor, origin, warnings)


def _list_noise_laws(contract: Contract, within: ScoreRange) -> Iterator[tuple[str, str, Law, Profile]]:
    """List the noise laws for one query's scores on a range: name, call, law, profile."""
    width = within[1] - within[0]
    window = "" if within == (-1.0, 1.0) else f", score_range=({within[0]:g}, {within[1]:g})"
    if contract.mu > 0:
        profile = GaussianProfile(contract.mu)
        budget = "..."
        if contract.delta > 0:
            budget = f"epsilon={profile.epsilon_at(contract.delta):.6g}, delta={contract.delta:g}"
        yield "gaussian", f"release_scores({budget}{window})", GaussianNoise(width / contract.mu), profile
    spend = contract.find_pure_epsilon(LaplaceProfile)
    call = f'release_scores(epsilon={spend:.6g}, mechanism="laplace"{window})'
    yield "laplace", call, LaplaceNoise.calibrate(spend, width), LaplaceProfile(spend)
    spend = contract.find_pure_epsilon(make_staircase_profile)
    call = f'release_scores(epsilon={spend:.6g}, mechanism="staircase"{window})'
    yield "staircase", call, StaircaseNoise.calibrate(spend, width), make_staircase_profile(spend)


def make_staircase_profile(epsilon: float) -> Profile:
    """Make the profile of staircase noise at an epsilon."""
    return StaircaseNoise.calibrate(epsilon, 1.0).profile(1.0)  # the same at every width


def make_unit_profiles(dimension: int) -> Callable[[float], Profile]:
    """Make the function from epsilon to the profile of PrivUnit in this dimension.

    Outside PrivUnit's range of epsilon, the profile is that of any pure mechanism.
    """

    def profile(epsilon: float) -> Profile:
        if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
            return PureProfile(epsilon)
        return PrivUnit.calibrate(dimension, epsilon).profile

    return profile


def make_response_profiles(bins: int) -> Callable[[float], Profile]:
    """Make the function from epsilon to the profile of randomised response on this number of bins."""
    return lambda epsilon: StepProfile(epsilon, 1 / (1 + (bins - 1) * math.exp(-epsilon)))


def _make_candidate(
    name: str, call: str, utility: float, profile: Profile, contract: Contract, within: ScoreRange, note: str = ""
) -> Candidate:
    is_pure = not isinstance(profile, GaussianProfile)
    delta = 0.0 if is_pure else contract.delta
    epsilon = profile.epsilon_at(delta) if is_pure or delta else math.inf
    return Candidate(name, call, float(utility), epsilon, delta, profile.advantage, within, note)


def _predict_score_errors(contract: Contract, ranges: Sequence[ScoreRange]) -> Iterator[Candidate]:
    for within in ranges[:1]:
        for name, call, law, profile in _list_noise_laws(contract, within):
            yield _make_candidate(name, call, law.std, profile, contract, within)
        spend = contract.find_pure_epsilon()
        if spend <= 40:
            best = optimal_channel(spend, score_range=within, levels=33)
            call = f"release_scores(epsilon={spend:.6g}, mechanism=optimal_channel({spend:.6g}, levels=33))"
            error = math.sqrt(best.expected_cost(None, "squared"))
            note = "for a uniform public prior, on 33 levels"
            yield _make_candidate("optimal", call, error, best.profile(), contract, within, note)


def _predict_true_matches(
    contract: Contract, far: Scores, near: Scores, target: float, ranges: Sequence[ScoreRange]
) -> Iterator[Candidate]:
    for within in ranges:
        impostor, genuine = far.clamp(*within), near.clamp(*within)
        for name, call, law, profile in _list_noise_laws(contract, within):
            yield _make_candidate(
                name, call, decisions.roc(genuine, impostor, law).tpr_at(target), profile, contract, within
            )
    spend = contract.find_pure_epsilon()
    bit = accept_bit(spend, impostor=far, genuine=near, false_match_rate=target)
    made = f"accept_bit({spend:.6g}, impostor=..., genuine=..., false_match_rate={target:g}).table"
    call = f"release_scores(epsilon={spend:.6g}, mechanism={made})"
    note = f"one decision, at the threshold {bit.threshold:.4g}"
    yield _make_candidate("accept bit", call, bit.true_match_rate, bit.table.profile(), contract, (-1.0, 1.0), note)


def _read_benchmark(benchmark: tuple[ArrayLike, ArrayLike]) -> tuple[Scores, Scores, int]:
    """Read the two populations and the number of records of a benchmark."""
    scores, pairs = np.asarray(benchmark[0], dtype=np.float64), np.asarray(benchmark[1])
    others = np.ones(scores.shape, dtype=np.bool_)
    others[pairs[:, 0], pairs[:, 1]] = False
    near = check_plan_scores(scores[pairs[:, 0], pairs[:, 1]], "benchmark")
    return check_plan_scores(scores[others], "benchmark"), near, scores.shape[1]


def _predict_recall(
    contract: Contract,
    far: Scores,
    near: Scores,
    records: int,
    k: int,
    ranges: Sequence[ScoreRange],
    benchmark: tuple[ArrayLike, ArrayLike] | None,
) -> Iterator[Candidate]:
    def recall(law: Law, within: ScoreRange = (-1.0, 1.0)) -> float:
        if benchmark is not None:
            return decisions.recall_of_queries(np.clip(benchmark[0], *within), benchmark[1], law, k=k)
        return decisions.recall_at_k(near.clamp(*within), far.clamp(*within), law, records=records, k=k)

    for within in ranges:
        for name, call, law, profile in _list_noise_laws(contract, within):
            yield _make_candidate(name, call, recall(law, within), profile, contract, within)
    full = (-1.0, 1.0)
    for bins in (2, 3, 4, 5, 6):
        make_profile = make_response_profiles(bins)
        spend = contract.find_pure_epsilon(make_profile)
        cuts = retrieval_cuts(spend, records, k, far, near, bins)
        reached = cuts.recall if benchmark is None else recall(randomised_response(spend, cuts.cuts))
        shown = ", ".join(f"{cut:.3g}" for cut in cuts.cuts)
        if bins == 2:
            call = f"release_matches(threshold={cuts.cuts[0]:.3g}, epsilon={spend:.6g})"
            yield _make_candidate("screening", call, reached, make_profile(spend), contract, full)
            continue
        call = f"release_scores(epsilon={spend:.6g}, mechanism=randomised_response({spend:.6g}, [{shown}]))"
        name = f"randomised response on {bins} levels"
        yield _make_candidate(name, call, reached, make_profile(spend), contract, full)
        if contract.max_epsilon is not None and contract.max_advantage is not None:
            yield _predict_thinned_recall(contract, recall, records, k, far, near, bins)
    spend = contract.find_pure_epsilon()
    call = f"release_top_k(k={k}, epsilon={spend:.6g})"
    note = "predicted by the exponential mechanism, which permute-and-flip does not fall below"
    law = GumbelNoise(2.0 * k / spend)
    yield _make_candidate("selection of the k best", call, recall(law), PureProfile(spend), contract, full, note)


def _predict_thinned_recall(
    contract: Contract,
    recall: Callable[[Law], float],
    records: int,
    k: int,
    far: Scores,
    near: Scores,
    bins: int,
) -> Candidate:
    """Predict the recall of a thinned table, which keeps an advantage and an epsilon at once."""
    epsilon, advantage = contract.max_epsilon, contract.max_advantage
    assert epsilon is not None
    assert advantage is not None
    cuts = retrieval_cuts(epsilon, records, k, far, near, bins).cuts
    table = thinned_response(epsilon, cuts, advantage=advantage)
    shown = ", ".join(f"{cut:.3g}" for cut in cuts)
    made = f"thinned_response({epsilon:.6g}, [{shown}], advantage={advantage:g})"
    return _make_candidate(
        f"thinned response on {bins} levels",
        f"release_scores(epsilon={epsilon:.6g}, mechanism={made})",
        recall(table),
        table.profile(),
        contract,
        (-1.0, 1.0),
        f"answers for {format_rate(table.share)} of the records, each exposed as under epsilon {epsilon:.6g}",
    )


def _predict_index_errors(
    contract: Contract, queries: int, dimension: int, ranges: Sequence[ScoreRange]
) -> Iterator[Candidate]:
    within = ranges[0]
    width = within[1] - within[0]
    spend, mu = contract.find_pure_epsilon(make_unit_profiles(dimension)), contract.mu
    note = "the same for any number of queries, known in advance or not"
    unit = PrivUnit.calibrate(dimension, spend)
    call = f'release_index(epsilon={spend:.6g}, mechanism="privunit")'
    yield _make_candidate("privunit index", call, unit.std, unit.profile, contract, (-1.0, 1.0), note)
    spend = contract.find_pure_epsilon()
    each = StaircaseNoise.calibrate(spend / queries, width)
    call = f'{queries} times release_scores(epsilon={spend / queries:.6g}, mechanism="staircase")'
    yield _make_candidate("staircase, query by query", call, each.std, PureProfile(spend), contract, within)
    if mu > 0:
        call = f'release_index(mechanism="gaussian", delta={contract.delta:g})'
        yield _make_candidate("gaussian index", call, 2 / mu, GaussianProfile(mu), contract, (-1.0, 1.0), note)
        call = f"{queries} times release_scores, mu {mu / math.sqrt(queries):.4g} each"
        std = width * math.sqrt(queries) / mu
        yield _make_candidate("gaussian, query by query", call, std, GaussianProfile(mu), contract, within)


def _predict_pair_errors(contract: Contract, records: int, dimension: int) -> Iterator[Candidate]:
    """Predict the error of a pairwise score.

    The product of two noisy vectors of r dimensions, each with variance e^2 along every direction, has variance
    2 e^2 + r e^4. A random subspace adds (1 - s^2)^2 / r, at most 1 / r.
    """
    full, spend, mu = (-1.0, 1.0), contract.find_pure_epsilon(), contract.mu

    def error(e: float, r: int) -> float:
        return math.sqrt((1 / r if r < dimension else 0.0) + 2 * e**2 + r * e**4)

    sizes = sorted({min(dimension, max(2, round(2 ** (j / 2)))) for j in range(2, 26)})
    pure = min((error(PrivUnit.calibrate(r, spend).std, r), r) for r in sizes)
    call = f"release_index(epsilon={spend:.6g}, components={pure[1]}).gram()"
    yield _make_candidate("privunit index", call, pure[0], PureProfile(spend), contract, full)
    if mu > 0:
        noisy = min((error(2 / mu, r), r) for r in sizes)
        call = f'release_index(mechanism="gaussian", components={noisy[1]}, delta={contract.delta:g}).gram()'
        yield _make_candidate("gaussian index", call, noisy[0], GaussianProfile(mu), contract, full)
        entry = 2 * math.sqrt(records - 1) / mu
        note = "before the projection, which brings it to at most 1 and no signal back"
        call = f"release_gram(delta={contract.delta:g})"
        yield _make_candidate("gaussian Gram matrix", call, entry, GaussianProfile(mu), contract, full, note)


def _predict_rate_errors(contract: Contract, records: int) -> Iterator[Candidate]:
    spend, mu, bins = contract.find_pure_epsilon(), contract.mu, 64
    note = f"standard error at an edge in the middle of {bins} bins"
    q = math.exp(-spend / 2)
    error = math.sqrt(2 * q) / (1 - q) * math.sqrt(bins) / 2 / records
    call = f"release_histogram(epsilon={spend:.6g})"
    yield _make_candidate("histogram, geometric", call, error, PureProfile(spend), contract, (-1.0, 1.0), note)
    if mu > 0:
        error = math.sqrt(2) / mu * math.sqrt(bins) / 2 / records
        call = f'release_histogram(mechanism="gaussian", delta={contract.delta:g})'
        yield _make_candidate("histogram, gaussian", call, error, GaussianProfile(mu), contract, (-1.0, 1.0), note)
