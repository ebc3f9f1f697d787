"""The audit: find two neighbours whose outputs differ, draw outputs of both, and evaluate them.

Pilots choose the position of the record and, of several pairs of neighbours, the one whose outputs differ most. The
outputs of pilots are not used again. Then outputs of both sides are drawn in a random order.
`scoreshield.audit.evidence` learns a test on the first half and bounds epsilon from the second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_inside_unit, one_of, optional, validate, whole_from
from scoreshield.audit import bounds
from scoreshield.audit.claims import Claim, check_claim
from scoreshield.audit.evidence import MAIN_SHARE, apply_best_statistic, evaluate_outputs
from scoreshield.audit.neighbours import Pair, choose_places, climb, random_pair, worst_pairs
from scoreshield.audit.outputs import Source, classify_output, find_noise_law
from scoreshield.audit.result import AuditResult
from scoreshield.audit.statistics import (
    STATISTICS,
    OutputFacts,
    StatisticName,
    estimate_advantage,
    fit_low_bits,
    fit_statistics,
    measure_moves,
)
from scoreshield.decisions.confidence import count_hits
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.releases.results import Release

Float = NDArray[np.float64]
#: Called with (releases done on each side, all releases on each side, the bound so far).
AuditProgress = Callable[[int, int, float], None]

#: The most entries of an output that are used, and how many releases on each side choose them.
_ENTRIES, _SCREEN = 256, 64
#: The most releases between two calls of `progress`.
_CHUNK = 1 << 16
_FEWEST = 40
# The order of the two sides has its own stream: a release that is seeded with the same number must not share it.
_ORDER = 0x6F72646572
#: How many outputs are drawn to see whether a release varies.
_PROBED = 16


def _check_outputs(value: Any, name: str) -> Float:
    must = "an array of finite numbers, one row per release"
    array = _validation.check_array(value, name, must)
    if array.ndim < 1 or not array.size or array.dtype.kind not in "fiub":
        _validation.reject(name, must, value)
    rows = array.reshape(len(array), -1).astype(np.float64)
    if not np.isfinite(rows).all():
        _validation.reject(name, must, "NaN or infinities")
    return rows


@validate(
    releases=check_count,
    claim=check_claim,
    confidence=check_inside_unit,
    statistic=one_of(STATISTICS),
    seed=optional(whole_from(0)),
)
def audit(
    release: Callable[..., Any],
    claim: Claim,
    *,
    neighbours: Pair | Sequence[Pair] | None = None,
    releases: int = 2000,
    confidence: float = 0.95,
    statistic: StatisticName = "auto",
    seed: int | None = 0,
    progress: AuditProgress | None = None,
    timeout: float | None = None,
    name: str | None = None,
    shape: tuple[int, int] = (8, 8),
    query: ArrayLike | None = None,
    plain: bool = False,
) -> AuditResult:
    """Try to contradict a privacy claim about a release.

    Args:
        release: A callable from an (n, d) float32 array to an output: a ScoreShield release, numbers, an array of them,
            a set of positions, or a tuple of these. With a parameter `rng` it gets a numpy Generator. With
            `repeats` it returns that number of independent outputs at once, one per row.
            `functools.partial(scoreshield.release_scores, query=q, epsilon=1.0, delta=1e-6)`, and the same for
            matches and an index, is drawn in bulk automatically.
        claim: The claim. `Claim.of(guarantee)` is that of a ScoreShield guarantee.
        neighbours: A pair; or several, of which the one whose outputs differ most is audited; or None for the worst
            cases of `shape`, for claims about one replaced record.
        releases: Outputs on each side.
        confidence: That the bound and all checks of the result hold together. The intervals of the area and of the
            true-positive rate each have it by themselves.
        statistic: "auto", or one of "likelihood", "linear", "table", "membership", "classifier".
        seed: The seed of the generators. None passes no generator to a release that takes `rng`; ScoreShield releases
            then use the secure sampler.
        progress: Called with (done, total, bound so far).
        timeout: Seconds that one call may take; None sets no limit.
        name: The name in the result; None takes the name of `release`.
        shape: For `neighbours=None`: how many records of which length.
        query: For `neighbours=None`: the public query, or the batch of queries, where one is known. Without it the
            pair is searched by climbing.
        plain: For a claim of Gaussian noise: whether outputs are the clean values plus noise and nothing else, neither
            clipped nor projected nor selected. Then the scale of the noise may break the claim. At a large epsilon
            nothing else can. For ScoreShield releases this is known.

    Returns:
        The result. `result.broken` says whether the claim is contradicted.

    Raises:
        InvalidInput: The release fails, is not random or returns no finite numbers, or there are too few releases to
            contradict the claim.
    """
    start = time.perf_counter()
    _require_enough(releases, claim, confidence)
    source = Source(release, seed=seed, timeout=timeout)
    # Fixed also without a seed: a resumed audit must continue in the order that it began with.
    rng = np.random.default_rng([seed or 0, _ORDER])
    pairs = _list_pairs(source, release, claim, neighbours, shape, query, releases, seed or 0, rng)
    pair, example = _choose_pair(source, pairs, releases, rng)
    law, law_entries = find_noise_law(example)
    index: int | None = pair.index
    entries = _choose_entries(source, pair, rng)
    if entries is not None:  # in their order, so that those with the law come first
        law_entries = int((entries < law_entries).sum())
        law, index = law if law_entries else None, next(iter(np.flatnonzero(entries == pair.index).tolist()), None)
    facts = OutputFacts(law, law_entries, index, not isinstance(example, Release), bool(plain), seed or 0)
    first, second = _draw_outputs(source, pair, releases, entries, claim, confidence, progress, rng)
    if name is None:
        name = _find_name(release)

    def probe() -> Float:
        n, d = pair.first.shape
        return source.draw(random_pair(n, d, seed or 0).first, _PROBED)

    return evaluate_outputs(first, second, claim, confidence, statistic, facts, name, pair.description, start, probe)


@validate(
    first=_check_outputs,
    second=_check_outputs,
    claim=check_claim,
    confidence=check_inside_unit,
    statistic=one_of(STATISTICS),
    seed=whole_from(0),
)
def audit_outputs(
    first: ArrayLike,
    second: ArrayLike,
    claim: Claim,
    *,
    confidence: float = 0.95,
    statistic: StatisticName = "auto",
    seed: int = 0,
    name: str = "outputs",
    neighbours: str = "as given",
    plain: bool = False,
) -> AuditResult:
    """Audit outputs that were drawn before, of a collection and of its neighbour.

    The rows are shuffled, since the outputs that teach a test must be like those that it is counted on. The longer side
    is cut. Both sides should have been drawn in turns: otherwise a change between them looks like a leak.

    Args:
        first: Outputs of the collection, one row per release. Rows must be independent.
        second: Outputs of its neighbour, rows of the same length.
        claim: The claim.
        confidence: As in `audit`.
        statistic: As in `audit`.
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
    rows = [rng.permutation(side)[:releases] for side in sides]
    facts = OutputFacts(is_opaque=True, is_plain=bool(plain), seed=seed)
    return evaluate_outputs(rows[0], rows[1], claim, confidence, statistic, facts, name, neighbours, start)


def find_least_releases(claim: Claim, confidence: float) -> float:
    """Find how many releases on each side an audit needs to contradict the claim if everything leaks.

    Returns:
        A whole number, which may be infinite.
    """
    share = 1 - (1 - confidence) * MAIN_SHARE / (1 if claim.profile is None else 2)
    epsilon = 0.0 if isinstance(claim.profile, GaussianProfile) else claim.epsilon
    return max(_FEWEST, 2 * bounds.releases_needed(epsilon, claim.delta, share) + 2)


def _require_enough(releases: int, claim: Claim, confidence: float) -> None:
    needed = find_least_releases(claim, confidence)
    if releases < needed:
        enough = f"at least {needed:,.0f} on each side are needed"
        if needed > bounds.MOST_RELEASES:
            enough = "no feasible number of releases is enough"
        raise InvalidInput(
            f"{releases:,} releases are too few to contradict an epsilon of {claim.epsilon:g} at confidence "
            f"{confidence:.10g}, even if everything leaks: {enough}."
        )


def _list_pairs(
    source: Source,
    release: Any,
    claim: Claim,
    neighbours: Any,
    shape: Any,
    query: ArrayLike | None,
    releases: int,
    seed: int,
    rng: np.random.Generator,
) -> list[Pair]:
    if isinstance(neighbours, Pair):
        return [neighbours]
    if neighbours is not None:
        if not isinstance(neighbours, Sequence) or not neighbours or not all(isinstance(p, Pair) for p in neighbours):
            _validation.reject("neighbours", "a Pair, a non-empty list of Pairs or None", neighbours)
        return list(neighbours)
    if not claim.is_replacement:
        raise InvalidInput(
            f"The claim is about other neighbours than an audit constructs, which differ by the replacement of one "
            f"record ({claim.adjacency}): give a pair that it covers as neighbours=, such as drift_pair for a Gram "
            "radius."
        )
    if query is None and isinstance(release, partial):
        query = release.keywords.get("query")
    n, d = _check_shape(shape, query)
    start = partial(random_pair, n, d, seed)
    kind = classify_output(source.draw_one(start().first), n)
    is_search = query is None and kind not in ("gram", "index")

    def make_pairs(index: int) -> list[Pair]:
        return [start(index=index)] if is_search else worst_pairs(n, d, kind, query, index=index)

    chosen = make_pairs(
        _choose_place(source, [make_pairs(index)[0] for index in choose_places(n, seed)], releases, rng)
    )
    return [climb(source, chosen[0], seed=seed)] if is_search else chosen


def _choose_place(source: Source, pairs: list[Pair], releases: int, rng: np.random.Generator) -> int:
    """Choose the position of the record at which outputs of a small pilot differ most, or the first one."""
    pilot = min(max(64, releases // 50), 4096)
    gains = [
        _measure_gain(*source.draw_both(pair.first, pair.second, pilot, rng)) for pair in pairs if len(pairs) > 1
    ] or [0.0]
    best = int(np.argmax(gains))
    return pairs[best if gains[best] > gains[0] + 1 / math.sqrt(pilot) else 0].index


def _check_shape(shape: Any, query: Any) -> tuple[int, int]:
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        _validation.reject("shape", "two whole numbers, records and dimensions", shape)
    n, d = (_validation.check_count(size, "shape") for size in shape)
    return n, d if query is None else int(_validation.to_array(query).shape[-1])


def _choose_pair(source: Source, pairs: list[Pair], releases: int, rng: np.random.Generator) -> tuple[Pair, Any]:
    """Choose the pair whose outputs differ most in a pilot, and draw one output of it.

    A release may reject rows that are not unit vectors. Such a pair is left out.
    """
    pilot = min(max(64, 3 * releases // (10 * max(3, len(pairs)))), 4096)
    margin = 1 / math.sqrt(pilot)  # of two pairs that are about equal, take the first
    best: tuple[float, Pair, Any] | None = None
    for pair in pairs:
        try:
            example = source.draw_one(pair.first)
            gain = 0.0 if len(pairs) == 1 else _measure_gain(*source.draw_both(pair.first, pair.second, pilot, rng))
        except InvalidInput:
            if pair.has_unit_rows or len(pairs) == 1:
                raise
            continue
        if best is None or gain > best[0] + margin:
            best = gain, pair, example
    if best is None:
        raise InvalidInput("The release under audit rejected every pair of neighbours.")
    return best[1], best[2]


def _measure_gain(first: Float, second: Float) -> float:
    """Measure how much outputs differ: by the advantage of a quick test, or by the log ratio of low bits, if larger."""
    half = len(first) // 2
    bits = fit_low_bits(first[:half], second[:half])
    odds = 0.0
    if bits is not None:
        inside, outside = bits(first[half:]), bits(second[half:])
        cuts = np.unique(np.concatenate([inside, outside]))
        hits = [count_hits(side, cuts) for side in (inside, outside)]
        odds = float(np.max(bounds.epsilon_lower(hits[0], len(inside), hits[1], len(outside), 0.0, 0.99)))
    return max(estimate_advantage(first, second), math.tanh(odds / 2) / 2)


def _choose_entries(source: Source, pair: Pair, rng: np.random.Generator) -> NDArray[np.intp] | None:
    """Choose which entries of a large output to use: those that move most in a few separate releases."""
    if source.draw(pair.first, 1).shape[1] <= _ENTRIES:
        return None
    moves = measure_moves(*source.draw_both(pair.first, pair.second, _SCREEN, rng))
    return np.sort(np.argsort(-moves, kind="stable")[:_ENTRIES])


def _draw_outputs(
    source: Source,
    pair: Pair,
    releases: int,
    entries: NDArray[np.intp] | None,
    claim: Claim,
    confidence: float,
    progress: AuditProgress | None,
    rng: np.random.Generator,
) -> tuple[Float, Float]:
    """Draw outputs of both sides in a random order, some at a time."""
    sides: tuple[list[Float], list[Float]] = ([], [])
    chunk, done = min(_CHUNK, max(50, releases // 40)), 0
    while done < releases:
        count = min(chunk, releases - done)
        for drawn, side in zip(source.draw_both(pair.first, pair.second, count, rng), sides, strict=True):
            side.append(drawn if entries is None else drawn[:, entries])
        if done and sides[0][-1].shape[1] != sides[0][0].shape[1]:
            raise InvalidInput("The release under audit changed the shape of its outputs between calls.")
        done += count
        if progress is not None:
            progress(done, releases, _bound_so_far(sides, claim, confidence))
    first, second = (np.concatenate(side) for side in sides)
    if first.shape != second.shape:
        raise InvalidInput(
            f"The release under audit returned {first.shape[1]} numbers for one collection and {second.shape[1]} for "
            "its neighbour; all outputs must have one shape, because a shape that depends on the records leaks."
        )
    return first, second


def _bound_so_far(sides: tuple[list[Float], list[Float]], claim: Claim, confidence: float) -> float:
    """Compute a rough bound for the progress line: a linear or table test, learnt on the first half."""
    first, second = (np.concatenate(side)[-20_000:] for side in sides)
    if len(first) < _FEWEST or first.shape != second.shape:
        return 0.0
    half, quarter = len(first) // 2, len(first) // 4
    parts = [(first[a:b], second[a:b]) for a, b in ((0, quarter), (quarter, half), (half, len(first)))]
    evidence = apply_best_statistic(
        fit_statistics("auto", *parts[0], OutputFacts()), parts[1], parts[2], claim, 1 - confidence
    )
    return 0.0 if evidence is None else evidence.bound_epsilon(claim)


def _find_name(release: Any) -> str:
    inner = release.func if isinstance(release, partial) else release
    return str(getattr(inner, "__name__", type(inner).__name__))
