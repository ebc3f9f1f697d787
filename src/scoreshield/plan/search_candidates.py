"""The mechanisms for search under one contract, each with its best public settings and its predicted recall.

Ranges, thresholds and cuts are adapted to public scores. Settings that were chosen on the scores that predict their
recall look better than they are. So cuts are chosen on one half of the public queries and evaluated on the other half,
and the prediction is the mean of both ways. The call has the settings that all public queries give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri

from scoreshield._formatting import format_rate
from scoreshield.decisions.laws import GumbelLaw
from scoreshield.decisions.queries import Prediction, QueryLaw, QueryScores
from scoreshield.plan.base import ScoreRange
from scoreshield.plan.candidates import (
    SHIFT,
    Candidate,
    list_noise_laws,
    make_candidate,
    make_response_profiles,
    write_repeated_call,
)
from scoreshield.plan.contracts import Contract, round_budget_down, round_budget_up
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.levels.bits import gaussian_bit
from scoreshield.privacy.levels.tables import randomised_response, thinned_response
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile
from scoreshield.privacy.tail_tables import SLOPE
from scoreshield.privacy.tails import EXCESSES, AnchoredWindows, TailShape, choose_rank

Float = NDArray[np.float64]

#: The numbers of levels that randomised response is tried with.
LEVELS = (3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40)
_THINNED_LEVELS = (3, 4, 5, 6, 8)
#: Settings are chosen on at most so many queries; the prediction reads all.
_TUNING_QUERIES = 120
#: How many tables are tried for each number of levels.
_TRIALS = 28
#: The default shape of the tail serves scores whose slope is within this factor of its own.
_NEAR = 1.25
#: Settings whose predicted recall differs by less are as good as each other.
_AS_GOOD = 0.005


class _TableFit(NamedTuple):
    """A table with the best settings, and the recall that is predicted for it."""

    cuts: tuple[float, ...]
    prediction: Prediction


@dataclass(frozen=True)
class RecallNeed:
    """What a search needs, under one contract.

    Attributes:
        known: The public scores.
        scores: The public scores as a matrix (queries, records), where they are known.
        records: The number of private records.
        k: The number of records returned for a query.
        queries: The number of queries that share the contract.
        asked: Over how many queries the released recall will be the mean.
        contract: The contract.
        ranges: Public score ranges to consider; empty to adapt them to the public scores.
    """

    known: QueryScores
    scores: Float | None
    records: int
    k: int
    queries: int
    asked: int
    contract: Contract
    ranges: tuple[ScoreRange, ...] = ()

    @cached_property
    def sample(self) -> QueryScores:
        """Some of the public queries, evenly spread, to choose settings on."""
        return _thin_queries(self.known)

    def predict(self, law: QueryLaw, within: ScoreRange = FULL_RANGE) -> Prediction:
        """Predict the recall of a law with settings that do not come from these scores."""
        return self.known.predict_recall(law, k=self.k, records=self.records, asked=self.asked, score_range=within)

    def predict_clean(self) -> Prediction:
        """Predict the recall without noise, over all queries that could be asked."""
        rates = self.known.find_rates(0, k=self.k, records=self.records)
        return self.known.summarise(rates, asked=None)

    def predict_shifted(self, law: QueryLaw, within: ScoreRange = FULL_RANGE) -> tuple[float, float]:
        """Predict the recall if all scores lay lower or higher."""
        low, high = (
            float(
                part.summarise(
                    part.find_rates(law, k=self.k, records=self.records, score_range=within), asked=None
                ).value
            )
            for part in (self.sample.shift(-SHIFT), self.sample.shift(SHIFT))
        )
        middle = self.sample.summarise(
            self.sample.find_rates(law, k=self.k, records=self.records, score_range=within), asked=None
        ).value
        return low - middle, high - middle

    def spend(self, profile: Callable[[float], Profile] = PureProfile) -> float:
        """The epsilon of one query under the contract, by pure composition, as a call states it."""
        return self.one_query.find_call_epsilon(profile)

    @cached_property
    def one_query(self) -> Contract:
        """The contract of one query."""
        return self.contract.split(self.queries)


def predict_single_queries(need: RecallNeed) -> Iterator[Candidate]:
    """Predict every mechanism for one query; of several queries each gets a part of the contract."""
    for candidate in _predict_each(need):
        if need.queries == 1:
            yield candidate
            continue
        if candidate.delta == 0:
            whole: Profile = PureProfile(need.queries * candidate.epsilon)
            epsilon = need.queries * candidate.epsilon
        else:
            whole = GaussianProfile(need.one_query.mu * math.sqrt(need.queries))
            epsilon = whole.epsilon_at(candidate.delta)
        yield replace(
            candidate,
            mechanism=f"{candidate.mechanism}, query by query",
            call=write_repeated_call(candidate.call, need.queries),
            epsilon=epsilon,
            advantage=whole.advantage,
        )


def _predict_each(need: RecallNeed) -> Iterator[Candidate]:
    contract = need.one_query
    yield from _predict_noise(need, contract)
    yield from _predict_tables(need, contract)
    yield from _predict_windows(need, contract)
    spend = need.spend()
    note = "predicted by the exponential mechanism, which permute-and-flip does not fall below"
    yield make_candidate(
        "selection of the k best",
        f"release_top_k(rows, query, {need.k}, epsilon={spend:.6g})",
        need.predict(GumbelLaw(2.0 * need.k / spend)),
        PureProfile(spend),
        contract,
        note=note,
    )


# ---- Noise on scores.


def _predict_noise(need: RecallNeed, contract: Contract) -> Iterator[Candidate]:
    """Gaussian noise on the full range, as in the paper, and pure noise on the best range."""
    for name, call, law, profile in list_noise_laws(contract, FULL_RANGE):
        if name == "gaussian":
            yield make_candidate(
                name, call, need.predict(law), profile, contract, note="the paper's mechanism", shifted=(0.0, 0.0)
            )
    for name in ("laplace", "staircase"):
        within = _choose_range(need, contract, name)
        _, call, law, profile = next(one for one in list_noise_laws(contract, within) if one[0] == name)
        yield make_candidate(
            name,
            call,
            need.predict(law, within),
            profile,
            contract,
            within=within,
            shifted=need.predict_shifted(law, within),
        )


def _choose_range(need: RecallNeed, contract: Contract, name: str) -> ScoreRange:
    """Choose the range with the best predicted recall.

    At most twenty ranges are compared, so what the choice adds to the prediction is far below its error.
    """

    def evaluate(within: ScoreRange) -> float:
        law = next(one[2] for one in list_noise_laws(contract, within) if one[0] == name)
        rates = need.sample.find_rates(law, k=need.k, records=need.records, score_range=within)
        return need.sample.summarise(rates, asked=None).value

    if need.ranges:
        return max(need.ranges, key=evaluate)
    ranks = (need.records / 2, need.records / 10, 10 * need.k, 3 * need.k)
    lows = [-1.0, *(float(np.median(need.known.find_score(rank, need.records))) for rank in ranks)]
    highs = [1.0, *np.quantile(need.known.relevant, (0.6, 0.8, 0.95)).tolist()]
    ends = product((math.floor(low * 50) / 50 for low in lows), (min(1.0, math.ceil(end * 50) / 50) for end in highs))
    return _choose_widest([(low, high) for low, high in ends if high > low + 0.04], evaluate)


def _choose_widest(ranges: Sequence[ScoreRange], evaluate: Callable[[ScoreRange], float]) -> ScoreRange:
    """Of the ranges that are as good as the best, choose the widest: scores of other data may lie farther out."""
    values = [evaluate(one) for one in ranges]
    good = [one for one, value in zip(ranges, values, strict=True) if value >= max(values) - _AS_GOOD]
    return max(good, key=lambda one: one[1] - one[0])


# ---- Level tables.


def _predict_tables(need: RecallNeed, contract: Contract) -> Iterator[Candidate]:
    spend = need.spend(make_response_profiles(2))
    found = _cross_fit(need, _respond(spend), (2,))
    threshold = found.cuts[0]
    yield make_candidate(
        "screening",
        f"release_matches(rows, query, {threshold:g}, epsilon={spend:.6g})",
        found.prediction,
        make_response_profiles(2)(spend),
        contract,
        shifted=need.predict_shifted(randomised_response(spend, [threshold])),
    )
    spend = need.spend(make_response_profiles(6))
    found = _cross_fit(need, _respond(spend), LEVELS)
    levels = len(found.cuts) + 1
    exact = need.spend(make_response_profiles(levels))
    table = randomised_response(exact, found.cuts)
    yield make_candidate(
        f"randomised response on {levels} levels",
        f"release_scores(rows, query, epsilon={exact:.6g}, "
        f"mechanism=randomised_response({exact:.6g}, {_write_cuts(found.cuts)}))",
        found.prediction,
        table.profile(),
        contract,
        shifted=need.predict_shifted(table),
    )
    whole = need.contract
    if need.queries == 1 and whole.max_epsilon is not None and whole.max_advantage is not None:
        yield _predict_thinned(need, round_budget_down(whole.max_epsilon), round_budget_down(whole.max_advantage))
    budget = whole.gaussian_budget
    # A bound so tight that delta alone covers it has epsilon 0, which no bit can state.
    if need.queries == 1 and whole.calibration == "attack" and budget is not None and budget[0] > 1e-6:
        yield _predict_gaussian_bit(need, *budget)


def _predict_thinned(need: RecallNeed, epsilon: float, advantage: float) -> Candidate:
    """A thinned table keeps an advantage and an epsilon at once."""

    def make(cuts: Sequence[float]) -> Float:
        rows = _respond(epsilon)(cuts)
        share = min(1.0, advantage / max(float(rows[0, 0] - rows[1, 0]), 1e-300))
        rows = share * rows
        rows[:, 0] += 1 - share
        return rows

    found = _cross_fit(need, make, _THINNED_LEVELS)
    table = thinned_response(epsilon, found.cuts, advantage=advantage)
    return make_candidate(
        f"thinned response on {len(found.cuts) + 1} levels",
        f"release_scores(rows, query, epsilon={epsilon:.6g}, mechanism=thinned_response({epsilon:.6g}, "
        f"{_write_cuts(found.cuts)}, advantage={advantage:.6g}))",
        found.prediction,
        table.profile(),
        need.contract,
        note=f"answers for {format_rate(table.share)} of the records, each exposed as under epsilon {epsilon:.6g}",
        shifted=need.predict_shifted(table),
    )


def _predict_gaussian_bit(need: RecallNeed, epsilon: float, delta: float) -> Candidate:
    """One bit on the trade-off curve of Gaussian noise: the best share of false names and the best threshold.

    The table is made from the numbers that the call states, so the call states what it covers.
    """
    contract = need.contract
    shares = [float(f"{min(0.4, names * need.k / need.records):.3g}") for names in (0.2, 0.4, 0.7, 1.2, 2.0)]

    def make(share: float) -> Callable[[Sequence[float]], Float]:
        power = float(ndtr(ndtri(share) + contract.mu))
        return lambda cuts: np.array([[1 - share, share], [1 - power, power]])  # noqa: ARG005

    def tune(known: QueryScores) -> tuple[float, tuple[float, ...]]:
        return max(
            ((share, _tune_cuts(known, need, make(share), (2,))) for share in shares),
            key=lambda pair: _evaluate(known, need, pair[1], make(pair[0])),
        )

    share, cuts = tune(need.sample)
    prediction = _evaluate_halves(need, tune, lambda setting: (setting[1], make(setting[0])(setting[1])), (share, cuts))
    table = gaussian_bit(epsilon, delta, cuts[0], false_share=share)
    return make_candidate(
        "gaussian bit",
        f"release_scores(rows, query, epsilon={round_budget_up(table.epsilon):.6g}, delta={table.delta:.6g}, "
        f"mechanism=gaussian_bit({epsilon:.6g}, {delta:.6g}, {cuts[0]:g}, false_share={share:.3g}))",
        prediction,
        table.profile(),
        contract,
        note="no test does better than against the Gaussian noise of the contract",
        shifted=need.predict_shifted(table),
    )


def _respond(epsilon: float) -> Callable[[Sequence[float]], Float]:
    """Make the function from cuts to the rows of randomised response, as floats."""

    def make(cuts: Sequence[float]) -> Float:
        levels = len(cuts) + 1
        other = math.exp(-epsilon) / (1 + (levels - 1) * math.exp(-epsilon))
        rows = np.full((levels, levels), other)
        np.fill_diagonal(rows, 1 - (levels - 1) * other)
        return rows

    return make


def _tune_cuts(
    known: QueryScores, need: RecallNeed, make: Callable[[Sequence[float]], Float], levels: Sequence[int]
) -> tuple[float, ...]:
    """Find the first cut, the step and the number of levels with the best predicted recall."""
    first = float(np.median(known.find_score(3.0 * need.k, need.records)))
    last = max(float(np.quantile(known.relevant, 0.8)), first + 0.02)
    spread = last - first
    best: tuple[float, tuple[float, ...]] = (-1.0, ())
    start = np.array([0.0, 1.0])
    for number in levels:
        cache: dict[tuple[float, ...], float] = {}

        def evaluate(place: Float, number: int = number, cache: dict[tuple[float, ...], float] = cache) -> float:
            cuts = _place_cuts(first + spread * place[0], spread * place[1] / max(number - 2, 1), number)
            if cuts is None:
                return 1.0
            if cuts not in cache:
                cache[cuts] = _evaluate(known, need, cuts, make)
            return -cache[cuts]

        simplex = np.vstack([start, start + 0.35 * np.eye(2)])
        options = {"maxfev": _TRIALS, "initial_simplex": simplex, "xatol": 0.01, "fatol": 1e-4}
        found = minimize(evaluate, start, method="Nelder-Mead", options=options)
        if cache:
            cuts = max(cache, key=lambda one, cache=cache: cache[one])  # type: ignore[misc]
            best = max(best, (cache[cuts], cuts))
            start = np.asarray(found.x)
        if best[0] > 0 and cache and max(cache.values()) < best[0] - 0.03:
            break  # more levels only lose from here on
    return best[1]


def _place_cuts(first: float, step: float, levels: int) -> tuple[float, ...] | None:
    """Place equal steps on thousandths; None where they do not fit into [-1, 1]."""
    cuts = np.round(first + max(step, 1e-9) * np.arange(levels - 1), 3)
    if cuts[0] <= -0.999 or cuts[-1] >= 0.999 or (np.diff(cuts) < 5e-4).any():
        return None
    return tuple(cuts.tolist())


def _evaluate(
    known: QueryScores, need: RecallNeed, cuts: tuple[float, ...], make: Callable[[Sequence[float]], Float]
) -> float:
    rates = known.find_table_rates(np.array(cuts), make(cuts), k=need.k, records=need.records)
    return known.summarise(rates, asked=None).value


def _cross_fit(need: RecallNeed, make: Callable[[Sequence[float]], Float], levels: Sequence[int]) -> _TableFit:
    """Choose cuts on all public queries, and predict their recall by halves.

    The halves choose among the number of levels that all queries gave, and its neighbours.
    """
    cuts = _tune_cuts(need.sample, need, make, levels)
    place = levels.index(len(cuts) + 1)
    near = levels[max(place - 1, 0) : place + 2]
    prediction = _evaluate_halves(
        need, lambda known: _tune_cuts(known, need, make, near), lambda cuts: (cuts, make(cuts)), cuts
    )
    return _TableFit(cuts, prediction)


def _evaluate_halves(
    need: RecallNeed,
    tune: Callable[[QueryScores], Any],
    build: Callable[[Any], tuple[tuple[float, ...], Float]],
    setting: Any,
) -> Prediction:
    """Predict the recall of a tuned setting: choose it on each half of the queries, and evaluate it on the other."""

    def find(known: QueryScores, chosen: Any) -> Prediction:
        cuts, rows = build(chosen)
        rates = known.find_table_rates(np.array(cuts), rows, k=need.k, records=need.records)
        return known.summarise(rates, asked=need.asked)

    cuts, rows = build(setting)
    whole = need.known.predict(
        lambda part: part.find_table_rates(np.array(cuts), rows, k=need.k, records=need.records), asked=need.asked
    )
    first, second = need.known.split()
    halves = [find(other, tune(_thin_queries(half))).value for half, other in ((first, second), (second, first))]
    value = float(np.mean(halves))
    return Prediction(value, math.hypot(whole.error, whole.value - value))


def _thin_queries(known: QueryScores) -> QueryScores:
    number = len(known.relevant) if known.is_pooled else known.queries
    if number <= _TUNING_QUERIES:
        return known
    return known.choose_queries(np.linspace(0, number - 1, _TUNING_QUERIES).round().astype(np.intp))


def _write_cuts(cuts: Sequence[float]) -> str:
    """Write equal steps in a short form."""
    values = np.array(cuts)
    if len(cuts) > 4:
        step = round(float(values[-1] - values[0]) / (len(cuts) - 1), 6)
        return f"np.linspace({cuts[0]:g}, {cuts[0] + step * (len(cuts) - 1):g}, {len(cuts)})"
    return "[" + ", ".join(f"{cut:g}" for cut in cuts) + "]"


# ---- Windows around a private quantile.


def _predict_windows(need: RecallNeed, contract: Contract) -> Iterator[Candidate]:
    """Windows with the shape of the tail that ships, where the public scores are near it, or with a fitted one."""
    spend, records = need.spend(), need.records
    if spend < 1e-3:
        return
    windows, call = AnchoredWindows(k=need.k), f"AnchoredWindows(k={need.k})"
    if need.scores is not None and not _is_near_default(need):
        shape = _fit_tail(need, spend)
        if shape is not None:
            windows, call = (
                AnchoredWindows(tail=shape),
                f"AnchoredWindows(tail=TailShape.fit(public_scores, k={need.k}))",
            )
    choice = windows.choose(spend, records, FULL_RANGE)
    if choice.law is None:
        return
    yield make_candidate(
        "anchored windows",
        f"release_scores(rows, query, epsilon={spend:.6g}, mechanism={call})",
        need.predict(choice.law),
        choice.law.profile,
        contract,
        note=f"tail shape: {choice.origin}",
        shifted=(0.0, 0.0),
    )


def _is_near_default(need: RecallNeed) -> bool:
    """Whether the best public scores fall off as those of the shape that ships."""
    assert need.scores is not None
    rank = choose_rank(need.k)
    if need.scores.shape[1] < 2 * rank:
        return True
    middle = max(1, need.k // 2)
    spread = need.known.find_score(middle, need.known.records) - need.known.find_score(rank, need.known.records)
    slope = float(np.median(spread)) / math.log(rank / middle)
    return SLOPE / _NEAR <= slope <= SLOPE * _NEAR


def _fit_tail(need: RecallNeed, epsilon: float) -> TailShape | None:
    """Fit the shape of the tail for one budget; None where the scores have no tail to fit."""
    assert need.scores is not None
    places = np.linspace(0, len(need.scores) - 1, min(len(need.scores), _TUNING_QUERIES)).round().astype(np.intp)
    excess = min(max(math.log(need.records / need.k) - epsilon, EXCESSES[0]), EXCESSES[-1])
    try:
        return TailShape.fit(need.scores[places], need.k, excesses=(excess,))
    except ValueError:
        return None
