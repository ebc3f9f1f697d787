"""The audit: play against a claim, on many pairs of neighbouring collections, until it is broken or the time is up.

An audit goes in rounds. In each round every trial (a pair of collections and a way of asking) draws as many new outputs
as it has already, and the accounts that its earlier outputs suggest are played on them (`scoreshield.audit.betting`).
Then the trials whose outputs promise the smallest epsilon are left out. So each trial is small at first, and in the end
nearly all outputs come from the few that show most. What is played, on which pair, and when to stop may depend on all
earlier outputs: the capital of the bets accounts for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import (
    check_count,
    check_inside_unit,
    check_positive,
    one_of,
    optional,
    validate,
    whole_from,
)
from scoreshield.audit.betting import BetAccount, Hypotheses, Portfolio, bound_epsilon
from scoreshield.audit.claims import Claim, check_claim
from scoreshield.audit.counting import bound_by_counting
from scoreshield.audit.encoding import Failure, OutputReader
from scoreshield.audit.evidence import CONFIRMING, ROWS_SHARE, SCALE_SHARE, make_result
from scoreshield.audit.learning import learn_accounts
from scoreshield.audit.neighbours import Pair, list_diagonal_pairs, list_pairs, random_pair, worst_pairs
from scoreshield.audit.outputs import Source, classify_output, find_noise_law
from scoreshield.audit.power import find_least_releases, find_needed_outputs_for_rows
from scoreshield.audit.result import AuditResult
from scoreshield.audit.targets import TargetError, bind_query
from scoreshield.audit.trials import Trial, list_sessions
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile

Float = NDArray[np.float64]
#: A trial and one of its accounts.
Player = tuple[Trial, BetAccount]
#: Called with (the share of the work that is done, the bound so far).
AuditProgress = Callable[[float, float], None]
#: Which rows a claim covers: unit vectors alone, or rows of any length.
RowDomain = Literal["any", "unit"]
DOMAINS: tuple[RowDomain, ...] = ("any", "unit")

#: How long an audit takes where nothing else is said, and its confidence.
MINUTES, CONFIDENCE = 2.0, 0.99
#: Calls in all for each release per side: trials that are left out take the other half.
CALLS_PER_RELEASE = 4
#: The most numbers that are kept in memory, and the most calls of an audit that is limited by its time.
_MOST_NUMBERS, _MOST_CALLS = 4e7, 6e6
#: Seconds that an output costs besides its call.
_OVERHEAD = 1e-5
#: For so many seconds, and for so many outputs at a time, the pace of a release is measured.
_PACE_SECONDS, _PACE_OUTPUTS = 0.3, 256
#: The least and the most outputs of the first round of each trial.
_START, _LARGE_START = 32, 400
#: The largest share of all calls that the first round may take, with the least and with more outputs.
_FIRST_ROUND, _LARGE_ROUND = 0.1, 0.05
#: The share of all calls that the first round of a session may take. Few trials are sessions, and nothing else shows
#: what they show.
_SESSION_ROUND = 0.005
#: The share of trials that stay after a round, and the fewest that do.
_KEPT, _FEWEST = 0.7, 4
#: For the first outputs, where choosing the pairs took longer than the audit may take.
_LEAST_SECONDS = 0.5
#: After this share of the calls or of the time, only the best trial is played, in rounds that are smaller.
_FOCUS, _LATE_FOCUS, _STEP = 0.3, 0.5, 0.3
#: From this number of calls on, trials may be compared for longer.
_MANY_CALLS = 1e5
#: From this number of outputs on, more of them teach little.
_LEARNT = 20_000
#: How much growth a trial must promise to be preferred to others, and how much the first must.
_CONVINCING, _PROMISING = 4.0, 1.5
#: How much growth lets a trial be ranked by the epsilon where it is promised.
_HINT = 1.0
#: How many more rounds sharpen the bound once the claim is broken.
_SHARPEN = 3
#: A round that would take more than this share of the calls that are left takes them all.
_LAST_ROUND = 0.6
#: After how many outputs the capital is looked at within a round: the most, and the first ones of one call each.
_CHUNK, _SMALL_CHUNK = 1 << 15, 500
#: The least and the largest share of the calls and of the time that is held back for rows of other lengths, and for how
#: many of their pairs.
_ROWS_CALLS, _MOST_ROWS_CALLS, _ROWS_PAIRS = 0.1, 0.2, 4
#: Where their check needs more than this share, nothing is held back.
_TOO_MANY_ROWS_CALLS = 0.6
#: The share of the error for the bound by counting, where all outputs are there at the beginning: without a delta, and
#: with one, which costs counted guesses more than bets.
_COUNTED_SHARE, _COUNTED_WITH_DELTA = 0.75, 0.25
#: The order of the two sides has its own stream: a release that is seeded with the same number must not share it.
_ORDER = 0x6F72646572
#: The most calls that search for the query of a release that does not say it, their largest share of all calls and of
#: the time, and the least significance.
_SEARCH, _SEARCH_SHARE, _SIGNIFICANT = 40_000, 0.1, 6.0
#: Trials with trees among their statistics.
_WITH_TREES = 5


def _check_outputs(value: Any, name: str) -> Float:
    must = "an array of finite numbers, one row per release"
    array = _validation.check_array(value, name, must)
    if array.ndim < 1 or not array.size or array.dtype.kind not in "fiub":
        _validation.reject(name, must, value)
    rows = array.reshape(len(array), -1).astype(np.float64)
    if not np.isfinite(rows).all():
        _validation.reject(name, must, _validation.Words("NaN or infinities"))
    return rows


@validate(
    releases=optional(check_count),
    minutes=check_positive,
    claim=check_claim,
    confidence=check_inside_unit,
    seed=optional(whole_from(0)),
    rows=one_of(DOMAINS),
)
def audit(
    release: Callable[..., Any],
    claim: Claim,
    *,
    neighbours: Pair | Sequence[Pair] | None = None,
    releases: int | None = None,
    minutes: float = MINUTES,
    confidence: float = CONFIDENCE,
    seed: int | None = 0,
    progress: AuditProgress | None = None,
    timeout: float | None = None,
    name: str | None = None,
    shape: tuple[int, int] = (8, 8),
    query: ArrayLike | None = None,
    plain: bool = False,
    rows: RowDomain = "any",
) -> AuditResult:
    """Try to contradict a privacy claim about a release.

    The audit ends as soon as the claim is broken, or when its time is up.

    Args:
        release: A callable from an (n, d) float32 array to an output of any kind: numbers, arrays, strings, lists,
            dicts, sets, None; an exception counts as an output. With a parameter `query` it gets the query, with `rng`
            a numpy Generator. With `repeats` it returns that number of independent outputs at once, one per row.
            `functools.partial(scoreshield.release_scores, query=q, epsilon=1.0, delta=1e-6)`, and the same for
            matches and an index, is drawn in bulk automatically.
        claim: The claim. `Claim.of(guarantee)` is that of a ScoreShield guarantee.
        neighbours: A pair, or several; or None for many pairs of about `shape`, for claims about one replaced record.
        releases: At most this number of outputs on each side of one pair; about four times as many calls in all where
            pairs are searched. None sets no limit but the time.
        minutes: How long the audit may take.
        confidence: That a claim which is called broken is broken, and that the bound holds.
        seed: The seed of the generators. None passes no generator to a release that takes `rng`; ScoreShield releases
            then use the secure sampler.
        progress: Called with (share of the work that is done, bound so far).
        timeout: Seconds that one call may take; None sets no limit.
        name: The name in the result; None takes the name of `release`.
        shape: For `neighbours=None`: how many records of which length most collections have.
        query: For `neighbours=None`: the public query, or the batch of queries, where one is known. Without it the
            audit searches for it.
        plain: For a claim of Gaussian noise: whether outputs are the clean values plus noise and nothing else, neither
            clipped nor projected nor selected. Then the scale of the noise may break the claim. At a large epsilon
            nothing else can. For ScoreShield releases this is known.
        rows: "any" also tries rows that are no unit vectors, and reports what they show as a finding of its own; "unit"
            leaves them out.

    Returns:
        The result. `result.broken` says whether the claim is contradicted.

    Raises:
        InvalidInput: The release fails on every collection, or there are too few releases to contradict the claim.
    """
    start = time.perf_counter()
    if releases is not None:
        _require_enough(releases, claim, confidence)
    if query is None and isinstance(release, partial):
        query = release.keywords.get("query")
    release = bind_query(release, query, _check_shape(shape, query)[1])
    source = Source(release, seed=seed, timeout=timeout)
    budget = _Budget(releases, start + 60 * minutes, start)
    trials, query_is_known = _list_trials(source, claim, neighbours, shape, query, seed or 0, rows, budget)
    if neighbours is not None:
        budget.calls += source.calls - budget.used  # a look at one output takes none from the given pairs
    budget.used = source.calls
    run = AuditRun(claim, confidence, trials, seed or 0, budget, progress, query_is_known=query_is_known)
    run.play()
    return make_result(run, _find_name(release) if name is None else name, plain=bool(plain))


@validate(
    first=_check_outputs, second=_check_outputs, claim=check_claim, confidence=check_inside_unit, seed=whole_from(0)
)
def audit_outputs(
    first: ArrayLike,
    second: ArrayLike,
    claim: Claim,
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    name: str = "outputs",
    neighbours: str = "as given",
    plain: bool = False,
) -> AuditResult:
    """Audit outputs that were drawn before, of a collection and of its neighbour.

    The rows are shuffled, since the outputs that teach a test must be like those that it is played on. The longer side
    is cut. Both sides should have been drawn in turns: otherwise a change between them looks like a leak.

    Args:
        first: Outputs of the collection, one row per release. Rows must be independent.
        second: Outputs of its neighbour, rows of the same length.
        claim: The claim.
        confidence: As in `audit`.
        seed: The seed of the order and of the classifier.
        name: The name in the result.
        neighbours: The two collections, in words.
        plain: As in `audit`.
    """
    start = time.perf_counter()
    sides = [np.asarray(first), np.asarray(second)]
    if sides[0].shape[1] != sides[1].shape[1]:
        _validation.reject("second", f"rows of {sides[0].shape[1]} numbers, as the first side has", sides[1])
    releases = min(map(len, sides))
    _require_enough(releases, claim, confidence)
    rng = np.random.default_rng([seed, _ORDER])
    shuffled = [rng.permutation(side)[:releases] for side in sides]
    trial = SavedOutputs(shuffled[0], shuffled[1], neighbours, rng)
    share = _COUNTED_WITH_DELTA if claim.delta else _COUNTED_SHARE
    run = AuditRun(claim, confidence, [trial], seed, _Budget(releases, math.inf, start), None, 1 - share)
    error = (1 - confidence) * share
    run.counted = bound_by_counting(*trial.outputs_and_sides, trial.is_number, run.hypotheses, claim.delta, error, seed)
    run.play()
    run.is_broken = run.is_broken or run.counted > claim.epsilon
    return make_result(run, name, plain=bool(plain))


def _require_enough(releases: int, claim: Claim, confidence: float) -> None:
    needed = find_least_releases(claim, confidence)
    if releases < needed:
        enough = f"at least {needed:,.0f} on each side are needed"
        if math.isinf(needed):
            enough = "no feasible number of releases is enough"
        raise InvalidInput(
            f"{releases:,} releases are too few to contradict an epsilon of {claim.epsilon:g} at confidence "
            f"{confidence:.10g}, even if everything leaks: {enough}."
        )


@dataclass
class _Budget:
    """How many calls and how much time are left.

    Attributes:
        releases: The most releases on each side of one pair; None sets no limit.
        deadline: When the time is up, by `time.perf_counter`.
        start: When the audit began.
        calls: The most calls in all.
        used: Calls so far.
        held: The share of calls and time that is held back.
        begun: When the choice of the pairs ended. A little time is left after it, whatever the choice took.
    """

    releases: int | None
    deadline: float
    start: float
    calls: float = math.inf
    used: int = 0
    held: float = 0.0
    begun: float = -math.inf

    @property
    def left(self) -> float:
        """How many calls are left."""
        return self.calls * (1 - self.held) - self.used

    @property
    def end(self) -> float:
        """When the time is up that is not held back."""
        end = self.deadline - self.held * (self.deadline - self.start) if self.held else self.deadline
        return max(end, self.begun + _LEAST_SECONDS)

    @property
    def is_spent(self) -> bool:
        return self.left <= 0 or time.perf_counter() >= self.end

    @property
    def share(self) -> float:
        """The share of the work that is done."""
        by_time = (time.perf_counter() - self.start) / max(1e-9, self.deadline - self.start)
        return min(1.0, max(by_time, self.used / self.calls))


class SavedOutputs(Trial):
    """Outputs that were made before, as a trial.

    A fair coin chooses the side of each next output, until one side has no more.
    """

    def __init__(self, first: Float, second: Float, description: str, rng: np.random.Generator) -> None:
        collection = np.eye(1, 2, dtype=np.float32)
        super().__init__(Pair(collection, collection, 0, description), Source(len, seed=None, timeout=None))
        examples = first[:64], second[:64]
        self._open(list(np.concatenate(examples)), np.arange(sum(map(len, examples))) < len(examples[0]))
        sides = rng.random(len(first) + len(second)) < 0.5
        taken = np.cumsum(sides), np.cumsum(~sides)
        sides = sides[(taken[0] <= len(first)) & (taken[1] <= len(second))]
        rows = np.empty((len(sides), first.shape[1]))
        rows[sides], rows[~sides] = first[: sides.sum()], second[: (~sides).sum()]
        assert self.reader is not None
        self.outputs_and_sides = self.reader.read(rows), sides
        self._next = 0

    @property
    def is_saved(self) -> bool:
        """Whether the outputs were made before."""
        return True

    @property
    def is_number(self) -> NDArray[np.bool_]:
        """For each column, whether it holds numbers and no tokens."""
        assert self.reader is not None
        return self.reader.is_number

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Float, NDArray[np.bool_]]:
        """Take the next outputs."""
        del rng
        start, self._next = self._next, self._next + count
        rows, sides = self.outputs_and_sides
        return rows[start : self._next], sides[start : self._next]


def _list_trials(
    source: Source,
    claim: Claim,
    neighbours: Any,
    shape: Any,
    query: ArrayLike | None,
    seed: int,
    rows: RowDomain,
    budget: _Budget,
) -> tuple[list[Trial], bool]:
    """List the trials, the most important first, and set the number of calls.

    Returns:
        The trials, and whether their pairs are for a query that is known or was found.
    """
    if isinstance(neighbours, Pair):
        neighbours = [neighbours]
    if neighbours is not None:
        if not isinstance(neighbours, Sequence) or not neighbours or not all(isinstance(p, Pair) for p in neighbours):
            _validation.reject("neighbours", "a Pair, a non-empty list of Pairs or None", neighbours)
        trials = [Trial(pair, source) for pair in neighbours]
        _limit_calls(source, trials[0].pair.first, budget, 2 if len(trials) == 1 else CALLS_PER_RELEASE)
        _attach_law(source, trials)
        return trials, True
    if not claim.is_replacement:
        raise InvalidInput(
            f"The claim is about other neighbours than an audit constructs, which differ by the replacement of one "
            f"record ({claim.adjacency}): give a pair that it covers as neighbours=, such as drift_pair for a Gram "
            "radius."
        )
    n, d = _check_shape(shape, query)
    _limit_calls(source, random_pair(n, d, seed).first, budget, CALLS_PER_RELEASE)
    kind = classify_output(source.draw_one(random_pair(n, d, seed).first), n)
    asked = query
    if query is None and kind not in ("gram", "index"):
        query = _search_query(source, n, d, seed, budget)
    pairs = worst_pairs(n, d, kind, query)[:2]
    pairs += list_pairs(n, d, query)
    if asked is None and query is not None:
        pairs = pairs[:-1] + list_pairs(n, d, None)[:12] + pairs[-1:]
    pairs[6:6] = list_diagonal_pairs(n, d) if asked is None and d > 1 else []
    if rows == "unit":
        pairs = [pair for pair in pairs if pair.has_unit_rows]
    pairs = sorted(pairs, key=lambda pair: not pair.has_unit_rows)
    trials = [Trial(pair, source, is_covered=pair.has_unit_rows) for pair in pairs]
    for trial in trials[:2]:
        trial.is_anchor = True
    sessions = list_sessions(source, trials[0].pair, asked)
    for session in sessions:
        session.is_anchor = True  # nothing else shows noise that calls share
    trials[4:4] = sessions
    most = budget.calls * _FIRST_ROUND / _START
    if len(trials) > most:
        others = [trial for trial in trials if not trial.is_covered][:2]
        trials = [trial for trial in trials if trial.is_covered][: max(_FEWEST, int(most) - len(others))] + others
    _attach_law(source, trials)
    return trials, query is not None or kind in ("gram", "index")


def _limit_calls(source: Source, rows: Any, budget: _Budget, per_release: int) -> None:
    """Set the number of calls: as given, or as many as the time allows at the pace of the first ones."""
    source.draw_one(rows)
    count, pace, begin = 1, 0.0, time.perf_counter()
    while count <= _PACE_OUTPUTS and time.perf_counter() - begin < _PACE_SECONDS:
        start = time.perf_counter()
        outputs = source.draw(rows, count)
        pace, count = (time.perf_counter() - start) / count, 2 * count
    budget.used = source.calls
    if budget.releases is not None:
        budget.calls = budget.releases * per_release + budget.used
        return
    left = max(_LEAST_SECONDS, budget.deadline - time.perf_counter())
    numbers = OutputReader(list(outputs), len(rows)).is_number.size
    budget.calls = budget.used + int(min(left / (pace + _OVERHEAD), _MOST_NUMBERS / numbers, _MOST_CALLS))


def _attach_law(source: Source, trials: list[Trial]) -> None:
    """Note the noise law of ScoreShield releases, whose guarantee names it."""
    try:
        law, entries = find_noise_law(source.draw_one(trials[0].pair.first))
    except TargetError:
        raise
    except InvalidInput:  # that it fails there may be what the audit finds
        return
    for trial in trials:
        if law is not None and trial.session == "single" and trial.pair.first.shape == trials[0].pair.first.shape:
            trial.law, trial.law_entries = law, entries


def _search_query(source: Source, n: int, d: int, seed: int, budget: _Budget) -> Float | None:
    """Search for the direction of a record that moves an output most, by regression on random records.

    In half of the calls only the first record is random, in the other half all are. With all of them, the sum of the
    records may move an output, or each record a number of its own, which gives n times as many observations.

    Returns:
        A unit vector, or None where nothing moves significantly.
    """
    count = int(min(_SEARCH, _SEARCH_SHARE * budget.left, _MOST_NUMBERS / 2 / (n * d)))
    rng = np.random.default_rng([seed, d])
    base = random_pair(n, d, seed).first
    until = time.perf_counter() + _SEARCH_SHARE * (budget.deadline - budget.start)
    collections, outputs = np.empty((count, n, d), dtype=np.float32), list[Any]()
    for number in range(count):
        rows = rng.standard_normal((n, d))
        collections[number] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        if number % 2 == 0:
            collections[number, 1:] = base[1:]
        outputs.append(source.draw(collections[number], 1)[0])
        if time.perf_counter() > until:
            break
    kept = [number for number, output in enumerate(outputs) if not isinstance(output, Failure)]
    if len(kept) < 4 * d:
        return None
    outputs, collections = [outputs[number] for number in kept], collections[kept].astype(np.float64)
    is_one = np.array(kept) % 2 == 0
    reader = OutputReader(outputs, n)
    values = reader.read(outputs)[:, reader.is_number]
    values = values[:, np.isfinite(values).all(axis=0)]
    regressions = [(collections[is_one, 0], values[is_one]), (collections[~is_one].sum(axis=1), values[~is_one])]
    if values.shape[1] >= n > 1:  # the first n numbers may be one per record
        own = values[~is_one, :n] - values[~is_one, :n].mean(axis=0)
        regressions.append((collections[~is_one].reshape(-1, d), own.reshape(-1, 1)))
    found = max((_regress(*both) for both in regressions), key=lambda result: result[0])
    if found[0] < _SIGNIFICANT:
        return None
    strength, axis = found[0] * math.sqrt(2 * d) + d, int(np.argmax(np.abs(found[1])))
    # An axis, if the rest of the slope is no longer than chance makes it.
    if (1 - found[1][axis] ** 2) * strength < d - 1 + 3 * math.sqrt(2 * d):
        return np.asarray(np.eye(d)[axis] * np.sign(found[1][axis]))
    return found[1]


def _regress(records: Float, values: Float) -> tuple[float, Float]:
    """Regress each column of values on records.

    Returns:
        For the column that depends most on them: how many standard deviations its slope is longer than without any
        effect, and the direction of its slope.
    """
    d = records.shape[1]
    values = values - values.mean(axis=0)
    spread = values.std(axis=0)
    values = values[:, spread > 0] / spread[spread > 0]
    if not values.shape[1] or len(values) < 4 * d:
        return 0.0, np.zeros(d)
    records = records / math.sqrt(float(np.mean(records**2)))
    slopes, *_ = np.linalg.lstsq(records, values, rcond=None)
    # Under no effect the squared length of a slope, times the rows, is about chi-square with d degrees of freedom.
    strength = (slopes**2).sum(axis=0) * len(values)
    best = int(np.argmax(strength))
    direction = slopes[:, best] / max(float(np.linalg.norm(slopes[:, best])), 1e-300)
    return float(strength[best] - d) / math.sqrt(2 * d), np.asarray(direction)


def _check_shape(shape: Any, query: Any) -> tuple[int, int]:
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        _validation.reject("shape", "two whole numbers, records and dimensions", shape)
    n, d = (_validation.check_count(size, "shape") for size in shape)
    return n, d if query is None else int(_validation.to_array(query).shape[-1])


def _find_name(release: Any) -> str:
    inner = release.func if isinstance(release, partial) else release
    return str(getattr(inner, "__name__", type(inner).__name__))


# ---- The rounds.


def list_hypotheses(claim: Claim) -> tuple[Hypotheses, NDArray[np.intp]]:
    """List what is played against: epsilons at the claimed delta for the bound, and the points of a claimed curve.

    Returns:
        The hypotheses, those of the bound first and rising; and the positions of those that follow from the claim.
    """
    around = max(claim.epsilon, 0.25) * np.concatenate([np.linspace(0.05, 2, 40), np.geomspace(2.2, 6, 8)])
    beyond = claim.epsilon + np.geomspace(0.1, 14, 16)
    epsilons = np.unique(np.round(np.concatenate([[0.0], around, beyond]), 6))
    epsilons = np.unique(np.concatenate([epsilons[np.abs(epsilons - claim.epsilon) > 1e-5], [claim.epsilon]]))
    place = int(np.flatnonzero(epsilons == claim.epsilon)[0])
    deltas = np.full(len(epsilons), claim.delta)
    follows = [place]
    if claim.profile is not None:
        points = np.unique(claim.epsilon * np.array([0.0, 0.1, 0.25, 0.5, 0.75, 1.25, 1.5]))
        follows += list(range(len(epsilons), len(epsilons) + len(points)))
        epsilons = np.concatenate([epsilons, points])
        deltas = np.concatenate([deltas, [min(1.0, float(claim.profile.delta_at(e))) for e in points]])
    return Hypotheses(epsilons, deltas), np.array(follows)


@dataclass
class AuditRun:
    """The rounds of one audit.

    Attributes:
        claim: The claim.
        confidence: That of the verdict.
        trials: All trials.
        seed: The seed of the order of sides.
        budget: Calls and time.
        progress: Called now and then.
        share: The share of the error that is for the bets.
        is_confirming: Whether outputs are drawn one per call, because outputs in bulk contradicted the claim.
        active: The trials that are still played.
        trajectory: (releases on each side of the largest trial, bound) after each round.
        is_broken: Whether the claim is broken on unit rows.
        is_broken_by_rows: Whether it is broken on rows of other lengths.
        counted: A bound by counting, where all outputs were there at the beginning.
        query_is_known: Whether the pairs are for a query that is known or was found.
        stakes: For each portfolio, who played in its last round, and the logarithm of what each staked.
    """

    claim: Claim
    confidence: float
    trials: list[Trial]
    seed: int
    budget: _Budget
    progress: AuditProgress | None
    share: float = 1.0
    trajectory: list[tuple[int, float]] = field(default_factory=list)
    is_broken: bool = False
    is_broken_by_rows: bool = False
    counted: float = 0.0
    query_is_known: bool = True
    is_confirming: bool = False

    def __post_init__(self) -> None:
        self.hypotheses, self.follows = list_hypotheses(self.claim)
        self.grid = _count_grid(self.hypotheses)
        self.active = list(self.trials)
        self.rejected: list[Trial] = []
        self._rng = np.random.default_rng([self.seed, _ORDER])
        self.portfolios = {is_covered: self._open_portfolio(is_covered) for is_covered in (True, False)}
        self.stakes: dict[bool, tuple[list[Player], Float]] = {}
        self.records: dict[tuple[int, str, str, str], Float] = {}

    def _open_portfolio(self, is_covered: bool) -> Portfolio:
        """Begin with the whole capital of unit rows, or of other rows."""
        if not is_covered:
            return Portfolio(self.hypotheses, ROWS_SHARE)
        main = 1.0
        if any(not trial.is_covered for trial in self.trials):
            main -= ROWS_SHARE
        if isinstance(self.claim.profile, GaussianProfile):
            main -= SCALE_SHARE
        return Portfolio(self.hypotheses, main)

    @property
    def covered(self) -> list[Trial]:
        """The trials that the claim surely covers."""
        return [trial for trial in self.trials if trial.is_covered]

    @property
    def error(self) -> float:
        """The probability of a false alarm that the confidence leaves to the bets."""
        return (1 - self.confidence) * self.share

    @property
    def threshold(self) -> float:
        """The logarithm of the capital that breaks a claim, or that moves the bound.

        Where a curve is claimed, these are two statements that share the error.
        """
        return -math.log(self.error if self.claim.profile is None else self.error / 2)

    def bound(self, is_covered: bool = True) -> float:
        """Return the lower bound on epsilon so far."""
        peak = self.portfolios[is_covered].log_peak[: self.grid]
        bound = bound_epsilon(self.hypotheses.epsilons[: self.grid], peak, self.threshold)
        return max(bound, self.counted) if is_covered else bound

    def measure_capital(self, log_capital: Float) -> float:
        """Return the logarithm of the capital against the claim: of all hypotheses that follow from it, on average."""
        values = log_capital[self.follows]
        return float(np.logaddexp.reduce(values) - math.log(len(values)))

    def play(self) -> None:
        """Play rounds until the claim is broken, the calls or the time are used, or nothing is left to play."""
        has_rows = any(not trial.is_covered for trial in self.trials)
        self.budget.begun = time.perf_counter()
        self.budget.held = self._choose_held() if has_rows else 0.0
        self._play_all()
        if has_rows and not self.is_broken:
            self.budget.held = 0.0
            self._play_rows()
        if (self.is_broken or self.is_broken_by_rows) and self.trials[0].source.draw_singly():
            self._begin_confirming()
            self._play_all()
        if not any(trial.outputs and not trial.is_useless for trial in self.trials):
            failed = next((trial.failures[0] for trial in self.trials if trial.failures), None)
            if failed is None:
                raise InvalidInput("The time was up before the release under audit gave an output: give more minutes.")
            raise InvalidInput(
                f"The release under audit raised {failed.kind} ({failed.message}) on every collection; it must return "
                "an output for collections of unit rows."
            )

    def _choose_held(self) -> float:
        """Choose the share of the calls that is held back for rows of other lengths: what their check needs.

        Where it needs most of them, nothing is held back, because it would find nothing.
        """
        needed = find_needed_outputs_for_rows(self.claim, 1 - self.error * ROWS_SHARE) + _ROWS_PAIRS * _START
        share = needed / self.budget.calls
        return 0.0 if share > _TOO_MANY_ROWS_CALLS else float(np.clip(share, _ROWS_CALLS, _MOST_ROWS_CALLS))

    def _play_all(self) -> None:
        sharpened = 0
        while self.active and not self.budget.is_spent:
            self._play_round()
            best = max(self.trials, key=lambda trial: trial.outputs)
            self.trajectory.append((max(1, best.outputs // 2), self.bound()))
            if self.progress is not None:
                self.progress(self.budget.share, self.bound())
            if self.is_broken and not isinstance(self.trials[0], SavedOutputs):
                sharpened += 1
                if sharpened > _SHARPEN or self.bound() > self.claim.epsilon * 1.05:
                    return
            self._leave_out()

    def _begin_confirming(self) -> None:
        """Begin again with one output per call, on the trials that broke the claim with outputs in bulk.

        A function may draw the outputs of one call with a common part, or change from call to call. Then a difference
        between two calls is no difference between two collections. What the outputs in bulk taught stays, and nothing
        that they won.
        """
        broken = [is_covered for is_covered in (True, False) if self._is_broken(is_covered)]
        trials = [[trial for trial in self.trials if trial.is_covered is is_covered] for is_covered in broken]
        self.active = [max(group, key=self._measure_gain) for group in trials]
        self.is_broken, self.is_broken_by_rows, self.is_confirming = False, False, True
        self.budget.held = 0.0
        self.budget.calls = max(self.budget.calls, 2 * self.budget.used)
        self.budget.deadline = max(self.budget.deadline, time.perf_counter() + CONFIRMING)
        for is_covered in broken:
            self.portfolios[is_covered] = self._open_portfolio(is_covered)
            self.stakes.pop(is_covered, None)
        self.records, self.trajectory = {}, []
        self._leave_out()

    def _play_rows(self) -> None:
        """Play on rows of other lengths alone, until they break the claim and the bound is above it."""
        others = [trial for trial in self.trials if not trial.is_covered and trial not in self.rejected]
        self.active = sorted(others, key=self._measure_promise, reverse=True)[:_ROWS_PAIRS]
        sharpened = 0
        while self.active and not self.budget.is_spent:
            if self.is_broken_by_rows:
                sharpened += 1
                if sharpened > _SHARPEN or self.bound(is_covered=False) > self.claim.epsilon * 1.05:
                    return
            self._play_round()
            if self.progress is not None:
                self.progress(self.budget.share, self.bound())
            self.rejected += [trial for trial in self.active if trial.is_useless]
            self.active = [trial for trial in self.active if not trial.is_useless]
            self._learn()
            key: Callable[[Trial], Any] = self._measure_gain if self.is_broken_by_rows else self._measure_promise
            ranked = sorted(self.active, key=key, reverse=True)
            self.active = ranked[: max(1, math.ceil(len(ranked) / 2))]

    def _play_round(self) -> None:
        sizes = self._choose_sizes()
        for is_covered in (True, False):
            trials = [trial for trial in self.active if trial.is_covered is is_covered]
            if trials:
                self._play_portfolio(self.portfolios[is_covered], trials, sizes, is_covered)
            if self.is_broken:
                return  # rows of other lengths add nothing

    def _choose_sizes(self) -> dict[int, int]:
        """Choose how many outputs each trial draws: as many as it has, less where few calls are left."""
        is_young = len(self.active) == 1 and self.active[0].outputs < _LEARNT
        step = _STEP if is_young and not self.is_broken else 1.0
        start = int(np.clip(_LARGE_ROUND * self.budget.calls / len(self.trials), _START, _LARGE_START))
        start = _START if len(self.trials) == 1 else start
        session = int(np.clip(_SESSION_ROUND * self.budget.calls, start, _LARGE_START))
        wanted = {
            id(trial): max(start if trial.session == "single" else session, int(step * trial.outputs))
            for trial in self.active
        }
        cost = sum(wanted[id(trial)] * trial.calls_per_output for trial in self.active)
        left = self.budget.left
        if cost > _LAST_ROUND * left and math.isfinite(left):  # no small round is left over
            wanted = {key: max(1, int(size * left / cost)) for key, size in wanted.items()}
        return wanted

    def _play_portfolio(
        self, portfolio: Portfolio, trials: list[Trial], sizes: dict[int, int], is_covered: bool
    ) -> None:
        """Draw the outputs of one round, and play the accounts of one portfolio on them."""
        players = [(trial, account) for trial in trials for account in trial.accounts]
        results = np.zeros((len(players), len(self.hypotheses)))
        stakes = self._divide_capital(portfolio, players, sizes) if players else None
        was_broken = self._is_broken(is_covered)
        for trial in trials:
            own = [place for place, player in enumerate(players) if player[0] is trial]
            blocks = []
            for rows, sides in self._draw_blocks(trial, sizes[id(trial)]):
                blocks.append((rows, sides))
                for place in own:
                    results[place] += players[place][1].play(rows, sides)
                if stakes is not None and not was_broken:
                    self._judge(portfolio.peek(stakes, results), is_covered)
                if self._is_broken(is_covered) and not was_broken:
                    break
            if blocks:
                trial.add(np.concatenate([rows for rows, _ in blocks]), np.concatenate([sides for _, sides in blocks]))
            if self._is_broken(is_covered) and not was_broken:
                break
        if stakes is not None:
            portfolio.settle(stakes, results)
            self.stakes[is_covered] = players, stakes
            for player, result in zip(players, results, strict=True):
                self.records[_make_key(player)] = self._get_record(player) + result

    def _divide_capital(self, portfolio: Portfolio, players: list[Player], sizes: dict[int, int]) -> Float:
        promises = [account.promise(sizes[id(trial)]) for trial, account in players]
        records = [self._get_record(player) + player[1].prior for player in players]
        return portfolio.divide(promises, records)

    def _get_record(self, player: Player) -> Float:
        """Return what a player won or lost so far, as a logarithm."""
        return self.records.get(_make_key(player), np.zeros(len(self.hypotheses)))

    def _draw_blocks(self, trial: Trial, size: int) -> Iterator[tuple[Float, NDArray[np.bool_]]]:
        """Draw outputs of a trial, some at a time, as long as there are calls and time left."""
        chunk = _SMALL_CHUNK if self.is_confirming else _CHUNK
        while size > 0 and not (self.budget.is_spent and any(one.outputs for one in self.trials)):
            trial.source.end = self.budget.end  # calls may become slower than the first ones
            rows, sides = trial.draw(min(size, chunk), self._rng)
            chunk = min(2 * chunk, _CHUNK)
            if not len(rows):
                self.budget.calls = self.budget.used  # saved outputs are at their end
                return
            size -= len(rows)
            self.budget.used += len(rows) * trial.calls_per_output
            yield rows, sides

    def _is_broken(self, is_covered: bool) -> bool:
        return self.is_broken if is_covered else self.is_broken_by_rows

    def _judge(self, log_capital: Float, is_covered: bool) -> None:
        """Look whether the claim is broken by now."""
        is_broken = self.measure_capital(log_capital) >= self.threshold
        if is_covered:
            self.is_broken = self.is_broken or is_broken
        else:
            self.is_broken_by_rows = self.is_broken_by_rows or is_broken

    def _leave_out(self) -> None:
        """Learn from all outputs, and leave out trials that reject the collections or promise little."""
        useless = [trial for trial in self.active if trial.is_useless]
        self.rejected += useless
        self.active = [trial for trial in self.active if trial not in useless]
        if self.is_broken_by_rows:
            self.active = [trial for trial in self.active if trial.is_covered]
        if self.is_broken:
            self.active = [max(self.covered_active, key=self._measure_gain)]
        self._learn()
        if self.budget.is_spent or self.is_confirming:
            return
        if self.budget.share > (_FOCUS if self.budget.calls < _MANY_CALLS else _LATE_FOCUS):
            self._focus()
            return
        ranked = sorted(self.active, key=self._measure_promise, reverse=True)
        kept = max(_FEWEST, math.ceil(_KEPT * len(ranked)))
        others = [trial for trial in ranked if not trial.is_covered][:2]
        self.active = [
            trial for place, trial in enumerate(ranked) if place < kept or trial.is_anchor or trial in others
        ]
        cost = sum(max(_START, trial.outputs) * trial.calls_per_output for trial in self.active)
        if self.budget.calls >= _MANY_CALLS and cost > _LAST_ROUND * self.budget.left:
            self._focus()  # or else a round of many trials would take all that is left

    def _focus(self) -> None:
        """Leave out all trials but the best."""
        self.active = sorted(self.covered_active, key=self._rank, reverse=True)[:1]

    def _learn(self) -> None:
        """Open the accounts that the outputs of each active trial suggest."""
        few = len(self.active) <= _WITH_TREES
        for trial in self.active:
            assert trial.history is not None
            trial.accounts = learn_accounts(
                trial.history, self.hypotheses.compose(trial.composed), law=trial.law, law_entries=trial.law_entries,
                with_trees=few, seed=self.seed,
            )  # fmt: skip
            if self.budget.is_spent:
                return

    @property
    def covered_active(self) -> list[Trial]:
        """The active trials that the claim surely covers."""
        return [trial for trial in self.active if trial.is_covered]

    def _measure_gain(self, trial: Trial) -> float:
        """Measure the most that one of a trial's players won against the claim."""
        won = [float(np.max(record[self.follows])) for key, record in self.records.items() if key[0] == id(trial)]
        return max(won, default=0.0)

    def _measure_promise(self, trial: Trial) -> tuple[float, float]:
        """Measure the largest epsilon that a trial promises to reach, then how much it promises in all."""
        if not trial.accounts:
            return 0.0, 0.0
        expected = np.stack([account.stakes.expected[: self.grid] for account in trial.accounts])
        reached = np.flatnonzero(expected.max(axis=0) > _HINT)
        return float(self.hypotheses.epsilons[reached[-1]]) if len(reached) else 0.0, float(expected.sum(axis=1).max())

    def _rank(self, trial: Trial) -> tuple[float, float]:
        """Rank a trial by how fast it promises to break the claim, then by the epsilon that it promises to reach."""
        if not trial.accounts:
            return 0.0, 0.0
        growth = np.max([account.stakes.expected / max(1, account.outputs) for account in trial.accounts], axis=0)
        total = np.max([account.stakes.expected for account in trial.accounts], axis=0)
        breaking = float((growth * (total > _CONVINCING))[self.follows].max())
        # The best of many trials looks better than it is, so that others must show more than the first.
        reached = np.flatnonzero(
            total[: self.grid] > (_PROMISING if trial is self.trials[0] and trial.is_anchor else _CONVINCING)
        )
        return breaking, float(self.hypotheses.epsilons[reached[-1]]) if len(reached) else 0.0


def _make_key(player: Player) -> tuple[int, str, str, str]:
    return id(player[0]), *player[1].key


def _count_grid(hypotheses: Hypotheses) -> int:
    """Count the hypotheses of the bound, which rise."""
    steps = np.flatnonzero(np.diff(hypotheses.epsilons) <= 0)
    return int(steps[0]) + 1 if len(steps) else len(hypotheses)
