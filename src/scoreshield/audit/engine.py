"""The audit: find two neighbours that a release tells apart, draw outputs on both, and judge them.

Pilots pick the place of the record and, of several pairs of neighbours, the one that is told apart best; their outputs
are not used again. Outputs are then drawn on both sides in a random order, and `judging` learns a test on the first
half and bounds epsilon from the second.
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
from scoreshield._validation import check_count, validate, whole_from
from scoreshield.audit import bounds
from scoreshield.audit.claim import Claim
from scoreshield.audit.directions import relative_moves
from scoreshield.audit.evidence import fixed
from scoreshield.audit.judging import MAIN, judged
from scoreshield.audit.neighbours import Pair, climb, places, random_pair, worst_pairs
from scoreshield.audit.outputs import Source, kind_of, law_of
from scoreshield.audit.power import MOST_RELEASES
from scoreshield.audit.result import AuditResult
from scoreshield.audit.statistics import (
    STATISTICS,
    Setting,
    candidates,
    low_bits,
    quick_advantage,
)
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.releases.results import Release

Float = NDArray[np.float64]
#: Called with (releases done on each side, releases in all, the bound so far).
Progress = Callable[[int, int, float], None]

#: Entries of an output that are kept where there are more, and releases on each side that choose them.
_ENTRIES, _SCREEN = 256, 64
#: Releases between two reports of progress, at most.
_CHUNK = 1 << 16
_FEWEST = 40
# The order of the two sides comes from its own stream: a release that is seeded with the same number must not share it.
_ORDER = 0x6F72646572
#: Releases that are looked at where a release never seems to vary.
_PROBED = 16


@validate(releases=check_count)
def audit(
    release: Callable[..., Any],
    claim: Claim,
    *,
    neighbours: Pair | Sequence[Pair] | None = None,
    releases: int = 2000,
    confidence: float = 0.95,
    statistic: str = "auto",
    seed: int | None = 0,
    progress: Progress | None = None,
    timeout: float | None = None,
    name: str | None = None,
    shape: tuple[int, int] = (8, 8),
    query: ArrayLike | None = None,
    plain: bool = False,
) -> AuditResult:
    """Try to contradict a privacy claim about a release.

    Parameters
    ----------
    release : a callable from an (n, d) float32 array to an output: a ScoreShield release, numbers, an array of them, a
        set of positions, or a tuple of these. With a parameter ``rng`` it is handed a numpy Generator; with ``repeats``
        it returns so many independent outputs at once, one a row. ``functools.partial(scoreshield.release_scores,
        query=q, epsilon=1.0, delta=1e-6)``, and the like for matches and an index, is drawn in bulk by itself.
    claim : what is claimed; ``Claim.of(guarantee)`` for our own.
    neighbours : a pair, or several of which the most telling is audited, or None for the worst cases of ``shape``, for
        claims about one replaced record.
    releases : outputs on each side.
    confidence : that the bound and all checks of the result hold together; the intervals of the area and of the
        true-positive rate each have it by themselves.
    statistic : "auto", or one of "likelihood", "linear", "table", "membership", "classifier".
    seed : of the generators; None leaves a release that takes ``rng`` to its own, which for ours is the secure one.
    progress : called with (done, total, bound so far).
    timeout : seconds that one call may take; None does not watch.
    shape, query : for ``neighbours=None``: how many records of which length, and the public query, or the batch of
        them, where one is known. Without it the pair is searched for by climbing.
    plain : for a claim of Gaussian noise: whether outputs are the clean values plus noise and nothing else, neither
        clipped nor projected nor chosen. Then the scale of the noise may break the claim, which at a large epsilon
        nothing else can. Of ScoreShield releases it is known.
    """
    start = time.perf_counter()
    claim, confidence, statistic = _settings(claim, confidence, statistic)
    _enough(releases, claim, confidence)
    if seed is not None:
        seed = _validation.check_count(seed, "seed", least=0)
    source = Source(release, seed=seed, timeout=timeout)
    # Fixed where no seed is given too: an audit that is stopped and goes on asks in the order it began with.
    rng = np.random.default_rng([seed or 0, _ORDER])
    pairs = _pairs(source, release, claim, neighbours, shape, query, releases, seed or 0, rng)
    pair, example = _most_telling(source, pairs, releases, rng)
    law, covered = law_of(example)
    index: int | None = pair.index
    entries = _screened(source, pair, rng)
    if entries is not None:  # their order is kept, so that those with the law come first
        covered = int((entries < covered).sum())
        law, index = law if covered else None, next(iter(np.flatnonzero(entries == pair.index).tolist()), None)
    setting = Setting(law, covered, index, not isinstance(example, Release), bool(plain), seed or 0)
    first, second = _drawn(source, pair, releases, entries, claim, confidence, progress, rng)
    called = name if name is not None else _name(release)

    def probe() -> Float:
        n, d = pair.first.shape
        return source.draw(random_pair(n, d, seed or 0).first, _PROBED)

    return judged(first, second, claim, confidence, statistic, setting, called, pair.description, start, probe)


@validate(seed=whole_from(0))
def audit_outputs(
    first: ArrayLike,
    second: ArrayLike,
    claim: Claim,
    *,
    confidence: float = 0.95,
    statistic: str = "auto",
    seed: int = 0,
    name: str = "outputs",
    neighbours: str = "as given",
    plain: bool = False,
) -> AuditResult:
    """The same on outputs that were drawn before: one row a release, from one collection and from its neighbour.

    Rows must be independent. They are shuffled, since what teaches a test must look like what judges it, and sides of
    unequal length are cut. Both sides should have been drawn in turns: what changed between them otherwise looks like a
    leak. ``plain`` says that outputs are clean values plus Gaussian noise and nothing else, see `audit`.
    """
    start = time.perf_counter()
    claim, confidence, statistic = _settings(claim, confidence, statistic)
    sides = [_as_outputs(side, called) for side, called in ((first, "first"), (second, "second"))]
    if sides[0].shape[1] != sides[1].shape[1]:
        _validation.reject("second", f"rows of {sides[0].shape[1]} numbers, as the first side has", sides[1])
    releases = min(map(len, sides))
    _enough(releases, claim, confidence)
    shuffled = np.random.default_rng([seed, _ORDER])
    rows = [shuffled.permutation(side)[:releases] for side in sides]
    setting = Setting(opaque=True, plain=bool(plain), seed=seed)
    return judged(rows[0], rows[1], claim, confidence, statistic, setting, name, neighbours, start)


def _settings(claim: Any, confidence: Any, statistic: Any) -> tuple[Claim, float, str]:
    if not isinstance(claim, Claim):
        _validation.reject("claim", "a Claim, such as Claim(1.0, 1e-6) or Claim.of(release)", claim)
    confidence = _validation.check_probability(confidence, "confidence", zero=False)
    return claim, confidence, _validation.check_option(statistic, "statistic", STATISTICS)


def fewest(claim: Claim, confidence: float) -> float:
    """With fewer releases on each side no leak at all could contradict the claim; may be infinite."""
    share = 1 - (1 - confidence) * MAIN / (1 if claim.profile is None else 2)
    asked = 0.0 if isinstance(claim.profile, GaussianProfile) else claim.epsilon
    return max(_FEWEST, 2 * bounds.releases_needed(asked, claim.delta, share) + 2)


def _enough(releases: int, claim: Claim, confidence: float) -> None:
    needed = fewest(claim, confidence)
    if releases < needed:
        enough = f"at least {needed:,.0f} on each side are needed"
        if needed > MOST_RELEASES:
            enough = "no number of releases that can be drawn would do"
        raise InvalidInput(
            f"{releases:,} releases are too few to contradict an epsilon of {claim.epsilon:g} at confidence "
            f"{confidence:.10g}, even if everything leaks: {enough}."
        )


def _pairs(
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
    if not claim.replaces_one:
        raise InvalidInput(
            f"The claim is about other neighbours than an audit makes up, which differ by the replacement of one "
            f"record ({claim.adjacency}): give a pair that it covers as neighbours=, such as drift_pair for a Gram "
            "radius."
        )
    if query is None and isinstance(release, partial):
        query = release.keywords.get("query")
    n, d = _shape(shape, query)
    start = partial(random_pair, n, d, seed)
    kind = kind_of(source.one(start().first), n)
    searching = query is None and kind not in ("gram", "index")

    def at(index: int) -> list[Pair]:
        return [start(index=index)] if searching else worst_pairs(n, d, kind, query, index=index)

    chosen = at(_telling_place(source, [at(index)[0] for index in places(n, seed)], releases, rng))
    return [climb(source, chosen[0], seed=seed)] if searching else chosen


def _telling_place(source: Source, pairs: list[Pair], releases: int, rng: np.random.Generator) -> int:
    """The place of the record at which a small pilot tells a pair apart best; the first unless another does more."""
    pilot = min(max(64, releases // 50), 4096)
    gains = [_gain(*source.both(pair.first, pair.second, pilot, rng)) for pair in pairs if len(pairs) > 1] or [0.0]
    best = int(np.argmax(gains))
    return pairs[best if gains[best] > gains[0] + 1 / math.sqrt(pilot) else 0].index


def _shape(shape: Any, query: Any) -> tuple[int, int]:
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        _validation.reject("shape", "two whole numbers, records and dimensions", shape)
    n, d = (_validation.check_count(size, "shape") for size in shape)
    return n, d if query is None else int(np.shape(query)[-1])


def _most_telling(source: Source, pairs: list[Pair], releases: int, rng: np.random.Generator) -> tuple[Pair, Any]:
    """The pair whose outputs a pilot tells apart best, and one output of it.

    A release may refuse rows that are not unit vectors; such a pair is then left out.
    """
    pilot = min(max(64, 3 * releases // (10 * max(3, len(pairs)))), 4096)
    margin = 1 / math.sqrt(pilot)  # of two pairs that do about as well, the one that was named first
    best: tuple[float, Pair, Any] | None = None
    for pair in pairs:
        try:
            example = source.one(pair.first)
            gain = 0.0 if len(pairs) == 1 else _gain(*source.both(pair.first, pair.second, pilot, rng))
        except InvalidInput:
            if pair.has_unit_rows or len(pairs) == 1:
                raise
            continue
        if best is None or gain > best[0] + margin:
            best = gain, pair, example
    if best is None:
        raise InvalidInput("The release under audit refused every pair of neighbours it was given.")
    return best[1], best[2]


def _gain(first: Float, second: Float) -> float:
    """What a pilot ranks pairs by: the advantage of a quick test, or the log ratio that low bits give, if larger."""
    half = len(first) // 2
    bits = low_bits(first[:half], second[:half])
    odds = 0.0
    if bits is not None:
        inside, outside = bits(first[half:]), bits(second[half:])
        cuts = np.unique(np.concatenate([inside, outside]))
        hits = [len(side) - np.searchsorted(np.sort(side), cuts, "left") for side in (inside, outside)]
        odds = float(np.max(bounds.epsilon_lower(hits[0], len(inside), hits[1], len(outside), 0.0, 0.99)))
    return max(quick_advantage(first, second), math.tanh(odds / 2) / 2)


def _screened(source: Source, pair: Pair, rng: np.random.Generator) -> NDArray[np.intp] | None:
    """Which entries to keep where an output holds many: those that move most in a few releases of their own."""
    if source.draw(pair.first, 1).shape[1] <= _ENTRIES:
        return None
    moves = relative_moves(*source.both(pair.first, pair.second, _SCREEN, rng))
    return np.sort(np.argsort(-moves, kind="stable")[:_ENTRIES])


def _drawn(
    source: Source,
    pair: Pair,
    releases: int,
    entries: NDArray[np.intp] | None,
    claim: Claim,
    confidence: float,
    progress: Progress | None,
    rng: np.random.Generator,
) -> tuple[Float, Float]:
    """Outputs on both sides, in a random order, a part of them at a time."""
    sides: tuple[list[Float], list[Float]] = ([], [])
    chunk, done = min(_CHUNK, max(50, releases // 40)), 0
    while done < releases:
        count = min(chunk, releases - done)
        for drawn, side in zip(source.both(pair.first, pair.second, count, rng), sides, strict=True):
            side.append(drawn if entries is None else drawn[:, entries])
        if done and sides[0][-1].shape[1] != sides[0][0].shape[1]:
            raise InvalidInput("The release under audit changed the shape of its outputs between calls.")
        done += count
        if progress is not None:
            progress(done, releases, _so_far(sides, claim, confidence))
    first, second = (np.concatenate(side) for side in sides)
    if first.shape != second.shape:
        raise InvalidInput(
            f"The release under audit returned {first.shape[1]} numbers for one collection and {second.shape[1]} for "
            "its neighbour; outputs of one shape are needed, and a shape that depends on the records tells about them."
        )
    return first, second


def _so_far(sides: tuple[list[Float], list[Float]], claim: Claim, confidence: float) -> float:
    """A rough bound for the progress line: a linear or table test, learnt on the first half."""
    first, second = (np.concatenate(side)[-20_000:] for side in sides)
    if len(first) < _FEWEST or first.shape != second.shape:
        return 0.0
    half, quarter = len(first) // 2, len(first) // 4
    parts = [(first[a:b], second[a:b]) for a, b in ((0, quarter), (quarter, half), (half, len(first)))]
    evidence = fixed(candidates("auto", *parts[0], Setting()), parts[1], parts[2], claim, 1 - confidence)
    return 0.0 if evidence is None else evidence.bound(claim)


def _as_outputs(side: ArrayLike, name: str) -> Float:
    must = "an array of finite numbers, one row a release"
    array = _validation.check_array(side, name, must)
    if array.ndim < 1 or not array.size or array.dtype.kind not in "fiub":
        _validation.reject(name, must, side)
    rows = array.reshape(len(array), -1).astype(np.float64)
    if not np.isfinite(rows).all():
        _validation.reject(name, must, "NaN or infinities")
    return rows


def _name(release: Any) -> str:
    inner = release.func if isinstance(release, partial) else release
    return str(getattr(inner, "__name__", type(inner).__name__))
