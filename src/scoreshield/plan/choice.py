"""Which mechanism for a contract and a need: a ranked table of predicted utilities, and what the best attacker gains.

The contract is (epsilon, delta), or the most an attacker may achieve. At the same (epsilon, delta) a pure mechanism
spends its whole allowance where a Gaussian spends it rarely, so the two currencies rank mechanisms differently: each
mechanism is calibrated to the currency that was given. Predictions are closed forms of :mod:`decisions` on public
scores, or of the mechanism's own error; nothing is simulated and nothing is read off private data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from scoreshield import _validation, decisions
from scoreshield._formatting import format_advantage, format_number, format_rate
from scoreshield._validation import one_of, validate
from scoreshield.decisions.scores import Scores, check_target
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import UNPAID, finite, take_ranges, take_scores, take_source
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.levels.tables import optimal_channel, randomised_response, retrieval_cuts
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile, Profile, PureProfile, StepProfile

Need = Literal["scores", "verification", "retrieval", "matches", "top-k", "many queries", "gram", "operating point"]
NEEDS: tuple[str, ...] = get_args(Need)


@dataclass(frozen=True)
class GumbelNoise:
    """The law whose k best are k rounds of the exponential mechanism: for predictions alone."""

    scale: float

    @property
    def std(self) -> float:
        return self.scale * math.pi / math.sqrt(6)

    def cdf(self, x: ArrayLike) -> Any:
        with np.errstate(over="ignore"):
            return np.exp(-np.exp(-np.asarray(x, dtype=np.float64) / self.scale))

    def sf(self, x: ArrayLike) -> Any:
        with np.errstate(over="ignore"):
            return -np.expm1(-np.exp(-np.asarray(x, dtype=np.float64) / self.scale))


@dataclass(frozen=True)
class Promise:
    """A contract in the currency it was given in, and what each kind of mechanism may spend under it."""

    stated: str
    delta: float
    epsilon: float | None = None
    advantage: float | None = None
    rates: tuple[float, float] | None = None  # the most true positives, at so many false ones

    def pure(self, profile: Callable[[float], Profile] = PureProfile) -> float:
        """The largest epsilon for a family of pure mechanisms."""
        if self.epsilon is not None:
            return self.epsilon

        def over(log_epsilon: float) -> float:
            made = profile(math.exp(log_epsilon))
            if self.advantage is not None:
                return made.advantage - self.advantage
            assert self.rates is not None
            return float(made.tpr_at(self.rates[1])) - self.rates[0]

        if over(math.log(1e3)) <= 0:
            return 1e3
        return math.exp(float(brentq(over, math.log(1e-9), math.log(1e3), xtol=1e-13))) * (1 - 1e-9)

    def mu(self) -> float | None:
        """The largest mu for Gaussian noise; None where the contract leaves no delta for it."""
        if self.epsilon is not None:
            return None if self.delta == 0 else 1 / gaussian.calibrate(self.epsilon, self.delta, 1.0)

        def over(mu: float) -> float:
            made = GaussianProfile(mu)
            if self.advantage is not None:
                return made.advantage - self.advantage
            assert self.rates is not None
            return float(made.tpr_at(self.rates[1])) - self.rates[0]

        return float(brentq(over, 1e-12, 60.0, xtol=1e-14)) * (1 - 1e-9)


@dataclass(frozen=True)
class Candidate:
    """One mechanism under the contract: what it is predicted to be worth, and what it costs.

    Attributes
    ----------
    mechanism : by name; ``call`` is how to ask for it.
    utility : the predicted figure; ``larger`` says whether more of it is better.
    epsilon, delta : the pair it has; ``advantage`` what the best membership test gains against it.
    """

    mechanism: str
    call: str
    utility: float
    epsilon: float
    delta: float
    advantage: float
    score_range: tuple[float, float]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: finite(list(value) if isinstance(value, tuple) else value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Choice:
    """The ranked table, best first, and the answer in two sentences."""

    need: str
    metric: str
    larger: bool
    promise: Promise
    candidates: tuple[Candidate, ...]
    floor: float
    source: str
    warnings: tuple[str, ...]

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    @property
    def answer(self) -> str:
        best = self.chosen
        value = (
            format_number(best.utility)
            if self.need in ("scores", "many queries", "gram")
            else format_rate(best.utility)
        )
        sentence = f"With {self.promise.stated}, {best.mechanism} is predicted to do best: {self.metric} {value}."
        if self.floor > 0:
            sentence = (
                f"Below epsilon {self.floor:.3g} no mechanism at all reaches that. " + sentence
                if self.promise.epsilon is not None and self.floor <= self.promise.epsilon
                else sentence
            )
        return (
            f"{sentence} The best membership test still has an advantage of {format_advantage(best.advantage)} against "
            "one release of it (0 % is guessing)."
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "choice",
            "need": self.need,
            "metric": self.metric,
            "answer": self.answer,
            "stated": self.promise.stated,
            "floor": self.floor,
            "source": self.source,
            "warnings": list(self.warnings),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        return self.answer


@validate(need=one_of(NEEDS))
def choose(
    need: str,
    irrelevant: object = None,
    relevant: object = None,
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
    ranges: Sequence[tuple[float, float]] = ((-1.0, 1.0), (0.0, 0.8)),
    source: str | None = None,
) -> Choice:
    """Rank the mechanisms for one need under one contract.

    Parameters
    ----------
    need : ``"scores"`` (root mean squared error of a score), ``"verification"`` (true-match rate at ``target_fmr``),
        ``"retrieval"``, ``"matches"`` or ``"top-k"`` (recall at ``k`` of ``records``), ``"many queries"`` (error of a
        score when ``queries`` are answered from vectors of ``dimension``), ``"gram"`` (error of a pairwise score),
        ``"operating point"`` (error of a false-match rate over ``records``).
    irrelevant, relevant : public scores of pairs that do not match and that do; for verification and retrieval.
    benchmark : for retrieval, a public benchmark instead: all scores, (queries, records), and the pairs (query, record)
        that answer. Predictions are then for those queries as they are (:func:`decisions.recall_of_queries`).
    epsilon, delta : the contract; or ``max_advantage``; or ``max_tpr`` with ``at_fpr``. With delta 0 no Gaussian.
    ranges : public score ranges to consider.
    """
    promise = _promise(epsilon, delta, max_advantage, max_tpr, at_fpr)
    within = take_ranges(ranges) or [(-1.0, 1.0)]
    far = None if irrelevant is None else take_scores(irrelevant, "irrelevant")
    near = None if relevant is None else take_scores(relevant, "relevant")
    if benchmark is None:
        source = take_source(source, far, near) if far is not None else "parameters"
    else:
        source = take_source(source or "private")
    floor = 0.0
    match need:
        case "scores":
            metric, larger, found = "root mean squared error", False, list(_score_errors(promise, within))
        case "verification":
            if far is None or near is None or target_fmr is None:
                raise InvalidInput("Verification needs irrelevant (impostor) and relevant scores, and target_fmr.")
            target = check_target(target_fmr, "target_fmr")
            far.clean_threshold(target)
            metric, larger = f"true matches at a false-match rate of {format_rate(target)}", True
            found = list(_verification(promise, far, near, target, within))
        case "retrieval" | "matches" | "top-k":
            if benchmark is not None:
                far, near, records = _of_benchmark(benchmark)
            if far is None or near is None or records is None or k is None:
                raise InvalidInput(
                    "Retrieval needs k, and a benchmark, or records with irrelevant and relevant scores."
                )
            records = _validation.check_count(records, "records", least=2)
            k = _validation.check_count(k, "k")
            metric, larger = f"recall among the best {k:,} of {records:,}", True
            found = list(_retrieval(promise, far, near, records, k, within, benchmark))
            best = max(candidate.utility for candidate in found)
            floor = math.log(max(1.0, records * (best - promise.delta) / k))
        case "gram":
            if records is None or dimension is None:
                raise InvalidInput("A Gram matrix needs the number of records and the dimension of the vectors.")
            records = _validation.check_count(records, "records", least=2)
            dimension = _validation.check_count(dimension, "dimension", least=2)
            metric, larger = "root mean squared error of a pairwise score", False
            found = list(_gram(promise, records, dimension))
        case "many queries":
            queries = _validation.check_count(queries, "queries")
            if dimension is None:
                raise InvalidInput("Many queries need the dimension of the vectors.")
            dimension = _validation.check_count(dimension, "dimension", least=2)
            metric, larger = f"root mean squared error of a score, {queries:,} queries answered", False
            found = list(_many(promise, queries, dimension, within))
        case _:
            if records is None:
                raise InvalidInput("An operating point needs the number of records.")
            records = _validation.check_count(records, "records", least=2)
            metric, larger = "error of the false-match rate", False
            found = list(_operating(promise, records))
    if not found:
        raise InvalidInput("No mechanism fits this contract: Gaussian noise needs delta > 0, and the others epsilon.")
    found.sort(key=lambda candidate: -candidate.utility if larger else candidate.utility)
    warnings = (UNPAID,) if source == "private" else ()  # how much is promised, the answer says
    return Choice(need, metric, larger, promise, tuple(found), floor, source, warnings)


def _promise(epsilon: Any, delta: Any, max_advantage: Any, max_tpr: Any, at_fpr: Any) -> Promise:
    delta = _validation.check_probability(delta, "delta", zero=True)
    given = (epsilon is not None) + (max_advantage is not None) + (max_tpr is not None or at_fpr is not None)
    if given != 1:
        raise InvalidInput("Give one contract: epsilon, or max_advantage, or max_tpr with at_fpr.")
    if epsilon is not None:
        epsilon = _validation.check_epsilon(epsilon)
        words = f"epsilon {format_number(epsilon)}" + (f", delta {format_number(delta)}" if delta else "")
        return Promise(words, delta, epsilon=epsilon)
    if max_advantage is not None:
        advantage = _validation.check_probability(max_advantage, "max_advantage", zero=False)
        return Promise(f"an attacker's advantage of at most {advantage:g}", delta, advantage=advantage)
    tpr = _validation.check_probability(max_tpr, "max_tpr", zero=False)
    fpr = _validation.check_probability(at_fpr, "at_fpr", zero=False)
    if tpr <= fpr:
        raise InvalidInput(f"max_tpr ({tpr:g}) must exceed at_fpr ({fpr:g}): guessing reaches that much.")
    return Promise(f"at most {tpr:g} true positives at {fpr:g} false positives", delta, rates=(tpr, fpr))


def _additive(promise: Promise, within: tuple[float, float]) -> Iterator[tuple[str, str, Any, Profile]]:
    """Noise laws for one query's scores on a range: name, call, law, profile."""
    width = within[1] - within[0]
    window = "" if within == (-1.0, 1.0) else f", score_range=({within[0]:g}, {within[1]:g})"
    mu = promise.mu()
    if mu is not None:
        pair = GaussianProfile(mu)
        budget = f"epsilon={pair.epsilon_at(promise.delta):.6g}, delta={promise.delta:g}" if promise.delta else "..."
        yield "gaussian", f"release_scores({budget}{window})", GaussianNoise(width / mu), pair
    spend = promise.pure(LaplaceProfile)
    call = f'release_scores(epsilon={spend:.6g}, mechanism="laplace"{window})'
    yield "laplace", call, LaplaceNoise.calibrate(spend, width), LaplaceProfile(spend)
    spend = promise.pure(staircase_profile)
    call = f'release_scores(epsilon={spend:.6g}, mechanism="staircase"{window})'
    yield "staircase", call, StaircaseNoise.calibrate(spend, width), staircase_profile(spend)


def staircase_profile(epsilon: float) -> Profile:
    return StaircaseNoise.calibrate(epsilon, 1.0).profile(1.0)  # the same at every width


def unit_profile(dimension: int) -> Callable[[float], Profile]:
    """The profile of PrivUnit in so many dimensions, by epsilon; beyond its budgets, that of any pure mechanism."""

    def profile(epsilon: float) -> Profile:
        if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
            return PureProfile(epsilon)
        return PrivUnit.calibrate(dimension, epsilon).profile

    return profile


def response_profile(bins: int) -> Callable[[float], Profile]:
    """The profile of randomised response on so many bins, by epsilon."""
    return lambda epsilon: StepProfile(epsilon, 1 / (1 + (bins - 1) * math.exp(-epsilon)))


def _candidate(
    name: str, call: str, utility: float, profile: Profile, promise: Promise, within: Any, note: str = ""
) -> Candidate:
    pure = not isinstance(profile, GaussianProfile)
    delta = 0.0 if pure else promise.delta
    epsilon = profile.epsilon_at(delta) if pure or delta else math.inf
    return Candidate(name, call, float(utility), epsilon, delta, profile.advantage, within, note)


def _score_errors(promise: Promise, ranges: Sequence[tuple[float, float]]) -> Iterator[Candidate]:
    for within in ranges[:1]:
        for name, call, law, profile in _additive(promise, within):
            yield _candidate(name, call, law.std, profile, promise, within)
        spend = promise.pure()
        if spend <= 40:
            best = optimal_channel(spend, score_range=within, levels=33)
            call = f"release_scores(epsilon={spend:.6g}, mechanism=optimal_channel({spend:.6g}, levels=33))"
            error = math.sqrt(best.expected_cost(None, "squared"))
            note = "for a uniform public prior, on 33 levels"
            yield _candidate("optimal", call, error, best.profile(), promise, within, note)


def _verification(
    promise: Promise, far: Scores, near: Scores, target: float, ranges: Sequence[tuple[float, float]]
) -> Iterator[Candidate]:
    for within in ranges:
        impostor, genuine = far.clamp(*within), near.clamp(*within)
        for name, call, law, profile in _additive(promise, within):
            yield _candidate(name, call, decisions.roc(genuine, impostor, law).tpr_at(target), profile, promise, within)


def _of_benchmark(benchmark: Any) -> tuple[Scores, Scores, int]:
    """The two populations and the number of records of a benchmark."""
    if not isinstance(benchmark, tuple) or len(benchmark) != 2:
        _validation.reject("benchmark", "a pair (scores, relevant)", benchmark)
    decisions.recall_of_queries(*benchmark, 0, k=1)  # refuses what is no benchmark
    scores, pairs = np.asarray(benchmark[0], dtype=np.float64), np.asarray(benchmark[1])
    others = np.ones(scores.shape, dtype=np.bool_)
    others[pairs[:, 0], pairs[:, 1]] = False
    near = take_scores(scores[pairs[:, 0], pairs[:, 1]], "benchmark")
    return take_scores(scores[others], "benchmark"), near, scores.shape[1]


def _retrieval(
    promise: Promise,
    far: Scores,
    near: Scores,
    records: int,
    k: int,
    ranges: Sequence[tuple[float, float]],
    benchmark: tuple[ArrayLike, ArrayLike] | None,
) -> Iterator[Candidate]:
    def recall(law: Any, within: tuple[float, float] = (-1.0, 1.0)) -> float:
        if benchmark is not None:
            return decisions.recall_of_queries(np.clip(benchmark[0], *within), benchmark[1], law, k=k)
        return decisions.recall_at_k(near.clamp(*within), far.clamp(*within), law, records=records, k=k)

    for within in ranges:
        for name, call, law, profile in _additive(promise, within):
            yield _candidate(name, call, recall(law, within), profile, promise, within)
    spend, full = promise.pure(), (-1.0, 1.0)
    for bins in (2, 3, 4, 5, 6):
        spend = promise.pure(response_profile(bins))
        cuts = retrieval_cuts(spend, records, k, far, near, bins)
        reached = cuts.recall if benchmark is None else recall(randomised_response(spend, cuts.cuts))
        shown = ", ".join(f"{cut:.3g}" for cut in cuts.cuts)
        if bins == 2:
            call = f"release_matches(threshold={cuts.cuts[0]:.3g}, epsilon={spend:.6g})"
            yield _candidate("screening", call, reached, response_profile(2)(spend), promise, full)
            continue
        call = f"release_scores(epsilon={spend:.6g}, mechanism=randomised_response({spend:.6g}, [{shown}]))"
        yield _candidate(
            f"randomised response on {bins} levels", call, reached, response_profile(bins)(spend), promise, full
        )
    spend = promise.pure()
    call = f"release_top_k(k={k}, epsilon={spend:.6g})"
    note = "predicted by the exponential mechanism, which permute-and-flip does not fall below"
    law = GumbelNoise(2.0 * k / spend)
    yield _candidate("selection of the k best", call, recall(law), PureProfile(spend), promise, full, note)


def _many(promise: Promise, queries: int, dimension: int, ranges: Sequence[tuple[float, float]]) -> Iterator[Candidate]:
    within = ranges[0]
    width = within[1] - within[0]
    spend, mu = promise.pure(unit_profile(dimension)), promise.mu()
    note = "the same for any number of queries, known in advance or not"
    unit = PrivUnit.calibrate(dimension, spend)
    call = f'release_index(epsilon={spend:.6g}, mechanism="privunit")'
    yield _candidate("privunit index", call, unit.std, unit.profile, promise, (-1.0, 1.0), note)
    spend = promise.pure()
    each = StaircaseNoise.calibrate(spend / queries, width)
    call = f'{queries} times release_scores(epsilon={spend / queries:.6g}, mechanism="staircase")'
    yield _candidate("staircase, query by query", call, each.std, PureProfile(spend), promise, within)
    if mu is not None:
        call = f'release_index(mechanism="gaussian", delta={promise.delta:g})'
        yield _candidate("gaussian index", call, 2 / mu, GaussianProfile(mu), promise, (-1.0, 1.0), note)
        call = f"{queries} times release_scores, mu {mu / math.sqrt(queries):.4g} each"
        std = width * math.sqrt(queries) / mu
        yield _candidate("gaussian, query by query", call, std, GaussianProfile(mu), promise, within)


def _gram(promise: Promise, records: int, dimension: int) -> Iterator[Candidate]:
    """Of two noisy vectors of r dimensions, each with variance e^2 along every direction: 2 e^2 + r e^4 a product.

    A random subspace adds (1 - s^2)^2 / r, at most 1 / r, by itself.
    """
    full, spend, mu = (-1.0, 1.0), promise.pure(), promise.mu()

    def error(e: float, r: int) -> float:
        return math.sqrt((1 / r if r < dimension else 0.0) + 2 * e**2 + r * e**4)

    sizes = sorted({min(dimension, max(2, round(2 ** (j / 2)))) for j in range(2, 26)})
    pure = min((error(PrivUnit.calibrate(r, spend).std, r), r) for r in sizes)
    call = f"release_index(epsilon={spend:.6g}, components={pure[1]}).gram()"
    yield _candidate("privunit index", call, pure[0], PureProfile(spend), promise, full)
    if mu is not None:
        noisy = min((error(2 / mu, r), r) for r in sizes)
        call = f'release_index(mechanism="gaussian", components={noisy[1]}, delta={promise.delta:g}).gram()'
        yield _candidate("gaussian index", call, noisy[0], GaussianProfile(mu), promise, full)
        entry = 2 * math.sqrt(records - 1) / mu
        note = "before the projection, which brings it to at most 1 and no signal back"
        call = f"release_gram(delta={promise.delta:g})"
        yield _candidate("gaussian Gram matrix", call, entry, GaussianProfile(mu), promise, full, note)


def _operating(promise: Promise, records: int) -> Iterator[Candidate]:
    spend, mu, bins = promise.pure(), promise.mu(), 64
    note = f"standard error at an edge in the middle of {bins} bins"
    q = math.exp(-spend / 2)
    error = math.sqrt(2 * q) / (1 - q) * math.sqrt(bins) / 2 / records
    call = f"release_histogram(epsilon={spend:.6g})"
    yield _candidate("histogram, geometric", call, error, PureProfile(spend), promise, (-1.0, 1.0), note)
    if mu is not None:
        error = math.sqrt(2) / mu * math.sqrt(bins) / 2 / records
        call = f'release_histogram(mechanism="gaussian", delta={promise.delta:g})'
        yield _candidate("histogram, gaussian", call, error, GaussianProfile(mu), promise, (-1.0, 1.0), note)
