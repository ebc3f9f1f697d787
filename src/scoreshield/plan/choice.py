"""Choose a mechanism for a need under a contract: a ranked table of predicted utilities, and the best attacker's gain.

The contract is (epsilon, delta), or the most that an attacker may achieve. At the same (epsilon, delta) a pure
mechanism reaches its privacy loss often and a Gaussian rarely, so the two kinds of contract rank mechanisms
differently. Each mechanism is calibrated to the contract as it was stated. Predictions are closed forms of
`decisions` on public scores, of the mechanism's own error, or research-mode simulations on public scores. Nothing is
read from private data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._formatting import format_advantage, format_number, format_rate
from scoreshield._validation import check_count, check_delta, check_inside_unit, optional, validate, whole_from
from scoreshield._views import SHOWN_ROWS, Columns, NotebookObject, ObjectSummary
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.recall import check_benchmark
from scoreshield.decisions.scores import Sample, Scores, ScoresLike, check_target
from scoreshield.errors import InvalidInput
from scoreshield.plan.base import (
    ScoreRange,
    Source,
    check_order,
    check_plan_scores,
    check_ranges,
    check_source,
    warn_of_private_scores,
)
from scoreshield.plan.candidates import (
    SHIFT,
    Candidate,
    list_noise_laws,
    make_candidate,
    make_staircase_profile,
    make_unit_profiles,
    write_gaussian_budget,
    write_repeated_call,
)
from scoreshield.plan.contracts import CONTRACT_CHECKS, Contract, make_contract
from scoreshield.plan.match_candidates import find_rate_error, predict_true_matches
from scoreshield.plan.query_sets import predict_query_sets
from scoreshield.plan.search_candidates import RecallNeed, predict_single_queries
from scoreshield.plan.sentences import CERTAIN, answer_need, describe_rate, format_utility, name_mechanism
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.levels.tables import optimal_channel
from scoreshield.privacy.noise import StaircaseNoise
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, PureProfile
from scoreshield.releases.codebook import PublicCodebook

Need = Literal["scores", "verification", "retrieval", "matches", "top-k", "many-queries", "gram", "operating-point"]
NEEDS: tuple[str, ...] = get_args(Need)
_SEARCH_NEEDS = ("retrieval", "matches", "top-k")
_DEFAULT_RANGES: tuple[ScoreRange, ...] = ((-1.0, 1.0), (0.0, 0.8))
#: Over how many queries, or pairs, the released figure is taken as the mean, unless the caller says it.
_ASKED = 100
#: Predicted rates that differ by less cannot be distinguished: two mechanisms on several hundred public queries.
_TIE = 0.01
#: Errors above this exceed the usual differences between the cosines of records that compete for a place.
_COSINE_DIFFERENCE = 0.1
#: A shift that changes the prediction by no more than this share of it, and half a point, does not change it.
_UNCHANGED = 0.02


@dataclass(frozen=True)
class Choice(NotebookObject):
    """The ranked mechanisms, best first, and the answer in a few sentences.

    Attributes:
        need: The need.
        metric: What the utilities measure.
        larger: Whether a larger utility is better.
        contract: The contract.
        candidates: The mechanisms, best first. Of recalls within one point of the best, the one leads that a shift of
            all scores by 0.05 harms least.
        floor: Below this epsilon no mechanism reaches the best recall; 0 where no such bound is known.
        source: Where the scores come from.
        warnings: What the reader must not overlook.
        impossible: What no mechanism can do under the contract; empty where no such bound is known.
        caution: What scores of another population would change; empty where no scores are read.
        bound: The rate that no mechanism exceeds under the contract; 1 where no such bound is known.
        advice: Another need or contract that may serve better; empty where none is known.
        chance: The rate that a release of nothing reaches; 0 where the utility is no rate.
        is_chance: Whether public scores without noise do no better than chance.
    """

    need: Need
    metric: str
    larger: bool
    contract: Contract
    candidates: tuple[Candidate, ...]
    floor: float
    source: Source
    warnings: tuple[str, ...]
    impossible: str = ""
    caution: str = ""
    bound: float = 1.0
    advice: str = ""
    chance: float = 0.0
    is_chance: bool = False

    @property
    def chosen(self) -> Candidate:
        """The best mechanism."""
        return self.candidates[0]

    @property
    def answer(self) -> str:
        """The answer in sentences: the best mechanism, what is impossible, what an attacker may do, and a caution."""
        return f"{answer_need(self, None, is_searched=False)} {self.caution}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "kind": "choice",
            "need": self.need,
            "metric": self.metric,
            "answer": self.answer,
            "impossible": self.impossible,
            "caution": self.caution,
            "advice": self.advice,
            "chance": self.chance,
            "is_chance": self.is_chance,
            "stated": self.contract.stated,
            "floor": self.floor,
            "source": self.source,
            "warnings": list(self.warnings),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        return self.answer

    def __repr__(self) -> str:
        return (
            f"<Choice for {self.need}: {self.chosen.mechanism} is best of {len(self.candidates)}, {self.metric} "
            f"{format_utility(self, self.chosen)}>"
        )

    def _summarise(self) -> ObjectSummary:
        shown = self.candidates[:SHOWN_ROWS]
        columns: Columns = {
            "mechanism": [row.mechanism for row in shown],
            "predicted": [format_utility(self, row) for row in shown],
            "epsilon": [row.epsilon for row in shown],
            "delta": [row.delta for row in shown],
            "attacker's advantage": [format_advantage(row.advantage) for row in shown],
        }
        caption = f"{len(shown)} of {len(self.candidates)} mechanisms, best first, by predicted {self.metric}"
        facts = {"Contract": self.contract.stated, "Source of the scores": self.source, "Call": self.chosen.call}
        return ObjectSummary(f"Choice for {self.need}", self.answer, facts, columns, caption, self.warnings)

    def _list_columns(self) -> Columns:
        rows = [vars(row) for row in self.candidates]
        columns: Columns = {"rank": list(range(1, len(rows) + 1))}
        columns |= {
            name: [row[name] for row in rows]
            for name in ("mechanism", "utility", "error", "epsilon", "delta", "advantage", "call", "note")
        }
        columns |= {
            name: [row.score_range[place] for row in self.candidates] for place, name in enumerate(("low", "high"))
        }
        return columns


def _check_need(value: Any, name: str) -> str:
    """Check for a need. A space in place of the hyphen is accepted."""
    return _validation.check_option(value.replace(" ", "-") if isinstance(value, str) else value, name, NEEDS)


def _check_benchmark_pair(value: Any, name: str) -> tuple[ArrayLike, ArrayLike]:
    """Check for the scores of a benchmark with its relevant pairs."""
    if not isinstance(value, tuple) or len(value) != 2:
        _validation.reject(name, "a pair (scores, relevant)", value)
    return check_benchmark(*value)


def _check_codebook(value: Any, name: str) -> PublicCodebook:
    if not isinstance(value, PublicCodebook):
        _validation.reject(name, "a PublicCodebook", value)
    return value


@validate(
    need=_check_need,
    **CONTRACT_CHECKS,
    delta=check_delta,
    records=optional(whole_from(2)),
    k=optional(check_count),
    target_fmr=optional(check_target),
    target=optional(check_inside_unit),
    benchmark=optional(_check_benchmark_pair),
    queries=check_count,
    asked=optional(check_count),
    dimension=optional(whole_from(2)),
    codebook=optional(_check_codebook),
    ranges=optional(check_ranges),
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
    target: float | None = None,
    benchmark: tuple[ArrayLike, ArrayLike] | None = None,
    queries: int = 1,
    asked: int | None = None,
    dimension: int | None = None,
    codebook: PublicCodebook | None = None,
    public_queries: ArrayLike | None = None,
    ranges: Sequence[ScoreRange] | None = None,
    source: Source | None = None,
) -> Choice:
    """Rank the mechanisms for one need under one contract.

    Args:
        need: ``"scores"`` (root mean squared error of a score), ``"verification"`` (true-match rate at ``target_fmr``),
            ``"retrieval"``, ``"matches"`` or ``"top-k"`` (recall at ``k`` of ``records``), ``"many-queries"`` (error of
            a score when ``queries`` are answered from vectors of ``dimension``), ``"gram"`` (error of a pairwise
            score), ``"operating-point"`` (error of a false-match rate over ``records``).
        irrelevant: Public scores of pairs that do not match, for verification and retrieval.
        relevant: Public scores of pairs that match, for verification and retrieval.
        epsilon: The epsilon of the contract.
        delta: The delta of the contract. With 0 there is no Gaussian mechanism.
        max_advantage: Instead of epsilon: the largest advantage of a membership test. With epsilon, a mechanism must
            keep both, and retrieval considers thinned tables.
        max_tpr: Instead, with ``at_fpr``: the largest true-positive rate of a membership test.
        at_fpr: The false-positive rate for ``max_tpr``.
        records: The number of private records. With a benchmark, None takes the number of its records.
        k: The number of records returned.
        target_fmr: The false-match rate to keep.
        target: The recall, or the true-match rate, that is needed. One that no mechanism can reach raises an error; one
            that no candidate is predicted to reach gives a warning.
        benchmark: For retrieval, a public benchmark instead of two samples: all scores, (queries, records), and the
            pairs (query, record) that answer. The predictions are then made query by query (`decisions.QueryScores`).
        queries: The number of queries that share the contract. With more than one, retrieval also considers a batch, an
            index (with ``dimension``), a hit budget (with ``benchmark``) and a codebook.
        asked: Over how many queries, or genuine pairs, the released figure will be the mean; it sets the error of the
            predictions. By default 100, or ``queries`` where these are more.
        dimension: The dimension of the vectors.
        codebook: For several queries: public vectors of the same domain.
        public_queries: Public queries to try the codebook on.
        ranges: Public score ranges to consider. By default they are adapted to the public scores.
        source: Where the scores come from, as in `verification`.

    Raises:
        InvalidInput: The need contradicts itself, lacks a fact, or has a target that no mechanism can reach.
    """
    contract = make_contract(delta=delta, epsilon=epsilon, max_advantage=max_advantage, max_tpr=max_tpr, at_fpr=at_fpr)
    if contract is None:
        raise InvalidInput("Give one contract: epsilon, or max_advantage, or max_tpr with at_fpr.")
    is_search = need in _SEARCH_NEEDS
    _check_facts(
        need,
        {
            "target_fmr": target_fmr is not None and need != "verification",
            "k": k is not None and not is_search,
            "benchmark": benchmark is not None and not is_search,
            "codebook": codebook is not None and not is_search,
            "target": target is not None and not (is_search or need == "verification"),
            "queries": queries > 1 and not (is_search or need == "many-queries"),
        },
    )
    if benchmark is not None and (irrelevant is not None or relevant is not None):
        raise InvalidInput("Give a benchmark, or irrelevant and relevant scores, but not both.")
    if codebook is not None and public_queries is None:
        raise InvalidInput("A codebook is tried on public queries: give public_queries too.")
    windows = tuple(ranges) if ranges is not None else _DEFAULT_RANGES
    far = None if irrelevant is None else check_plan_scores(irrelevant, "irrelevant")
    near = None if relevant is None else check_plan_scores(relevant, "relevant")
    if far is not None:
        check_order(far, near)
    if benchmark is not None:
        origin = check_source(source or "private")
    else:
        origin = check_source(source, far, near) if far is not None else "parameters"
    floor, bound, chance, is_chance = 0.0, 1.0, 0.0, False
    match need:
        case "scores":
            metric, larger = "root mean squared error", False
            candidates = list(_predict_score_errors(contract, windows))
        case "verification":
            if far is None or near is None or target_fmr is None:
                raise InvalidInput("Verification needs irrelevant (impostor) and relevant scores, and target_fmr.")
            metric, larger = f"true matches at a false-match rate of {format_rate(target_fmr)}", True
            bound, chance = contract.bound_rate(target_fmr), target_fmr
            is_chance = _is_matched_by_chance(far, near, target_fmr)
            _check_reachable(target, bound, contract, f"of true matches at a false-match rate of {target_fmr:g}")
            candidates = list(
                predict_true_matches(
                    contract, far, near, target_fmr, asked or _ASKED, None if ranges is None else windows
                )
            )
        case "retrieval" | "matches" | "top-k":
            search, pairs = _make_search_need(
                contract, far, near, benchmark, records, k, queries, asked, () if ranges is None else windows
            )
            where = f"among the best {search.k:,} of {search.records:,}"
            metric, larger = f"recall {where}", True
            chance = search.k / search.records
            bound = contract.bound_rate(chance)
            clean = search.predict_clean()
            is_chance = clean.value - clean.error <= chance
            _check_reachable(target, bound, contract, f"of the relevant records {where}")
            candidates = list(predict_single_queries(search))
            if queries > 1:
                candidates += predict_query_sets(search, pairs, dimension, codebook, public_queries)
            best = max(candidate.utility for candidate in candidates)
            floor = math.log(max(1.0, search.records * (best - contract.delta) / search.k))
        case "gram":
            if records is None or dimension is None:
                raise InvalidInput("A Gram matrix needs the number of records and the dimension of the vectors.")
            metric, larger = "root mean squared error of a pairwise score", False
            candidates = list(_predict_pair_errors(contract, records, dimension))
        case "many-queries":
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
    if is_search:
        candidates.insert(0, candidates.pop(_find_steadiest(candidates)))
    warnings: tuple[str, ...] = (
        (warn_of_private_scores(),) if origin == "private" else ()
    )  # the answer states how weak the contract is
    chosen = candidates[0]
    if target is not None and chosen.utility < target:
        warnings += (
            f"The best mechanism is predicted to reach {format_rate(chosen.utility)}, below the {format_rate(target)} "
            f"that are needed: {contract.remedy}, or need less.",
        )
    choice = Choice(
        need, metric, larger, contract, tuple(candidates), floor, origin, warnings, chance=chance, is_chance=is_chance
    )
    return replace(
        choice,
        impossible=_state_impossible(choice, bound) if larger else "",
        caution=_state_caution(candidates) if larger else "",
        bound=bound,
        advice=_advise(choice, queries),
    )


def _check_facts(need: str, stray: dict[str, bool]) -> None:
    """Raise an error where an argument belongs to another need."""
    names = [name for name, is_stray in stray.items() if is_stray]
    if names:
        raise InvalidInput(
            f"The need {need!r} does not use {' and '.join(names)}: leave it out, or state another need."
        )


def _is_matched_by_chance(far: Scores, near: Scores, rate: float) -> bool:
    """Whether clean genuine scores pass the threshold of a false-match rate no more often than impostors do."""
    clean = float(near.rate(far.clean_threshold(rate), None))
    return clean - find_rate_error(clean, len(near) if isinstance(near, Sample) else None, None) <= rate


def _make_search_need(
    contract: Contract,
    far: Scores | None,
    near: Scores | None,
    benchmark: tuple[ArrayLike, ArrayLike] | None,
    records: int | None,
    k: int | None,
    queries: int,
    asked: int | None,
    ranges: tuple[ScoreRange, ...],
) -> tuple[RecallNeed, NDArray[np.int64] | None]:
    """Collect what a search needs, and the relevant pairs of a benchmark."""
    scores: NDArray[np.float64] | None = None
    pairs: NDArray[np.int64] | None = None
    if benchmark is not None:
        scores, pairs = np.asarray(benchmark[0], dtype=np.float64), np.asarray(benchmark[1], dtype=np.int64)
        records = scores.shape[1] if records is None else records
    if records is None or k is None or (scores is None and (far is None or near is None)):
        raise InvalidInput("Retrieval needs k, and a benchmark, or records with irrelevant and relevant scores.")
    if k >= records:
        raise InvalidInput(f"All {records:,} records would be returned with k = {k:,}: give a smaller k.")
    if scores is not None and pairs is not None:
        known = QueryScores(scores, pairs)
    else:
        assert far is not None
        assert near is not None
        known = QueryScores.pool(far, near)
    mean_of = max(_ASKED, queries) if asked is None else asked
    return RecallNeed(known, scores, records, k, queries, mean_of, contract, ranges), pairs


def _check_reachable(target: float | None, bound: float, contract: Contract, what: str) -> None:
    """Raise an error where no mechanism reaches the target."""
    if target is not None and target > bound:
        raise InvalidInput(
            f"With {contract.stated}, no mechanism reaches {format_rate(target)} {what}; the most is "
            f"{format_rate(bound)}. Ask for a larger budget, or for less."
        )


def _state_impossible(choice: Choice, bound: float) -> str:
    """Write what no mechanism can do."""
    verb, what = describe_rate(choice)
    if bound < CERTAIN:
        return f"With {choice.contract.stated}, no mechanism {verb}s more than {format_rate(bound)} {what}."
    if choice.floor > 0:
        best = max(candidate.utility for candidate in choice.candidates)
        return f"No mechanism {verb}s {format_rate(best)} below epsilon {choice.floor:.3g}."
    return ""


def _advise(choice: Choice, queries: int) -> str:
    """Write which other need or contract may serve better."""
    contract = choice.contract
    if choice.need == "many-queries" and choice.chosen.utility > _COSINE_DIFFERENCE:
        return (
            f"An error of {format_number(choice.chosen.utility)} exceeds the usual differences between cosines, so a "
            f"ranking by such scores is mostly noise: for a search, state the need 'retrieval' with queries={queries} "
            f"(--need retrieval --queries {queries}) and public scores, which ranks by recall."
        )
    if choice.need in _SEARCH_NEEDS and queries == 1 and contract.max_advantage and contract.max_epsilon is None:
        return (
            "With an epsilon beside the advantage (such as epsilon=8, --epsilon 8), thinned tables are ranked too: "
            "they answer for some of the records only, and may find far more."
        )
    return ""


def _find_steadiest(candidates: Sequence[Candidate]) -> int:
    """Among the predictions that cannot be distinguished from the best, find the one that a shift harms least."""

    def keep(place: int) -> float:
        ends = candidates[place].shifted
        return candidates[place].utility if ends is None else min(*ends, candidates[place].utility)

    return max((i for i, one in enumerate(candidates) if one.utility >= candidates[0].utility - _TIE), key=keep)


def _state_caution(candidates: Sequence[Candidate]) -> str:
    """Write the last sentence: what scores of another population would change."""
    chosen = candidates[0]
    if chosen.shifted is None:
        return "Private scores that differ from the public ones change the prediction."
    low, high = chosen.shifted
    change = max(abs(low - chosen.utility), abs(high - chosen.utility))
    if change <= min(0.005, _UNCHANGED * chosen.utility):
        return f"A shift of all private scores by {SHIFT:g} against the public ones would not change this."
    sentence = (
        f"If all private scores lay {SHIFT:g} lower or higher than the public ones, it would have "
        f"{format_rate(low)} or {format_rate(high)}."
    )
    steady = max(candidates, key=lambda one: -1.0 if one.shifted is None else min(one.shifted))
    if steady is not chosen and steady.shifted is not None and min(steady.shifted) > min(low, high) + 0.02:
        sentence += (
            f" At worst {name_mechanism(steady.mechanism)} would then keep more, {format_rate(min(steady.shifted))}."
        )
    return sentence


def _predict_score_errors(contract: Contract, ranges: Sequence[ScoreRange]) -> Iterator[Candidate]:
    for within in ranges[:1]:
        for name, call, law, profile in list_noise_laws(contract, within):
            yield make_candidate(name, call, law.std, profile, contract, within=within)
        spend = contract.find_call_epsilon()
        if spend <= 40:
            best = optimal_channel(spend, score_range=within, levels=33)
            window = "" if within == FULL_RANGE else f", score_range=({within[0]:g}, {within[1]:g})"
            made = f"optimal_channel({spend:.6g}, levels=33{window})"
            call = f"release_scores(rows, query, epsilon={spend:.6g}, mechanism={made}{window})"
            error = math.sqrt(best.expected_cost(None, "squared"))
            note = "for a uniform public prior, on 33 levels"
            yield make_candidate("optimal", call, error, best.profile(), contract, within=within, note=note)


def _predict_index_errors(
    contract: Contract, queries: int, dimension: int, ranges: Sequence[ScoreRange]
) -> Iterator[Candidate]:
    within = ranges[0]
    width = within[1] - within[0]
    window = "" if within == FULL_RANGE else f", score_range=({within[0]:g}, {within[1]:g})"
    spend, mu = contract.find_call_epsilon(make_unit_profiles(dimension)), contract.mu
    note = "the same for any number of queries, known in advance or not"
    if SMALLEST_EPSILON <= spend <= LARGEST_EPSILON:
        unit = PrivUnit.calibrate(dimension, spend)
        call = f"release_index(rows, epsilon={spend:.6g})"
        yield make_candidate("privunit index", call, unit.std, unit.profile, contract, note=note)
    part = contract.split(queries)
    spend = part.find_call_epsilon(PureProfile if queries > 1 else make_staircase_profile)
    each = StaircaseNoise.calibrate(spend, width)
    call = write_repeated_call(
        f'release_scores(rows, query, epsilon={spend:.6g}, mechanism="staircase"{window})', queries
    )
    profile = PureProfile(queries * spend) if queries > 1 else each.profile(width)
    yield make_candidate("staircase, query by query", call, each.std, profile, contract, within=within)
    budget, share = write_gaussian_budget(contract), write_gaussian_budget(part)
    if budget is not None:
        call = f'release_index(rows, {budget}, mechanism="gaussian")'
        yield make_candidate("gaussian index", call, 2 / mu, GaussianProfile(mu), contract, note=note)
    if share is not None:
        call = write_repeated_call(f"release_scores(rows, query, {share}{window})", queries)
        profile = GaussianProfile(part.mu * math.sqrt(queries))
        yield make_candidate("gaussian, query by query", call, width / part.mu, profile, contract, within=within)


def _predict_pair_errors(contract: Contract, records: int, dimension: int) -> Iterator[Candidate]:
    """Predict the error of a pairwise score.

    The product of two noisy vectors of r dimensions, each with variance e^2 along every direction, has variance
    2 e^2 + r e^4. A random subspace adds (1 - s^2)^2 / r, at most 1 / r.
    """
    spend, mu, budget = contract.find_call_epsilon(), contract.mu, write_gaussian_budget(contract)

    def error(e: float, r: int) -> float:
        return math.sqrt((1 / r if r < dimension else 0.0) + 2 * e**2 + r * e**4)

    sizes = sorted({min(dimension, max(2, round(2 ** (j / 2)))) for j in range(2, 26)})
    pure = min((error(PrivUnit.calibrate(r, spend).std, r), r) for r in sizes)
    call = f"release_index(rows, epsilon={spend:.6g}, components={pure[1]}).gram()"
    yield make_candidate("privunit index", call, pure[0], PureProfile(spend), contract)
    if budget is not None:
        noisy = min((error(2 / mu, r), r) for r in sizes)
        call = f'release_index(rows, {budget}, mechanism="gaussian", components={noisy[1]}).gram()'
        yield make_candidate("gaussian index", call, noisy[0], GaussianProfile(mu), contract)
        entry = 2 * math.sqrt(records - 1) / mu
        note = "before the projection, which brings it to at most 1 and no signal back"
        call = f"release_gram(rows, {budget})"
        yield make_candidate("gaussian Gram matrix", call, entry, GaussianProfile(mu), contract, note=note)


def _predict_rate_errors(contract: Contract, records: int) -> Iterator[Candidate]:
    spend, mu, bins = contract.find_call_epsilon(), contract.mu, 64
    budget = write_gaussian_budget(contract)
    note = f"standard error at an edge in the middle of {bins} bins"
    q = math.exp(-spend / 2)
    error = math.sqrt(2 * q) / (1 - q) * math.sqrt(bins) / 2 / records
    call = f"release_histogram(rows, query, epsilon={spend:.6g})"
    yield make_candidate("histogram, geometric", call, error, PureProfile(spend), contract, note=note)
    if budget is not None:
        error = math.sqrt(2) / mu * math.sqrt(bins) / 2 / records
        call = f'release_histogram(rows, query, {budget}, mechanism="gaussian")'
        yield make_candidate("histogram, gaussian", call, error, GaussianProfile(mu), contract, note=note)
