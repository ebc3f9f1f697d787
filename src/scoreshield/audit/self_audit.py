"""The audit of ScoreShield's own releases: every mechanism and regime at three budgets, as one table.

`scoreshield audit --own` draws from the secure sampler, the one that users get, in two processes. `--quick` is the
short form: one budget, from seeded generators. Each audit is at confidence 1 - 1e-6, so that the whole table raises a
false alarm in fewer than one of three thousand runs.

A test compares the list of releases with their public options, so that a new option cannot be left out.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import logistic

from scoreshield._types import Rng
from scoreshield.audit.claims import Claim
from scoreshield.audit.engine import audit
from scoreshield.audit.neighbours import Pair, drift_pair, replace_record, worst_pairs
from scoreshield.audit.outputs import Source
from scoreshield.audit.power import find_least_releases
from scoreshield.audit.result import AuditResult
from scoreshield.audit.targets import ReleaseFunction
from scoreshield.geometry.denoise import METHODS as DENOISERS
from scoreshield.privacy.adjacency import Adjacency, GramRadius, Identity, NullRecord
from scoreshield.privacy.calibration import METHODS as CALIBRATIONS
from scoreshield.privacy.levels.bits import accept_bit, gaussian_bit
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel, randomised_response, thinned_response
from scoreshield.privacy.mechanisms import Regime
from scoreshield.privacy.noise import CustomNoise
from scoreshield.privacy.profiles import GaussianProfile, PureProfile
from scoreshield.privacy.tails import AnchoredWindows, TailShape
from scoreshield.releases.batch import release_batch
from scoreshield.releases.codebook import PublicCodebook
from scoreshield.releases.gram import GRAM_PROJECTIONS, release_gram
from scoreshield.releases.histogram import HISTOGRAM_MECHANISMS, release_histogram
from scoreshield.releases.index import release_index
from scoreshield.releases.matches import release_matches
from scoreshield.releases.row import release_row
from scoreshield.releases.scores import release_scores
from scoreshield.releases.top_k import SELECTIONS, release_top_k
from scoreshield.releases.versions import IndexVersion
from scoreshield.search import PrivateSearch

BUDGETS = (0.5, 2.0, 5.0)
QUICK_BUDGETS = (2.0,)
CONFIDENCE = 1 - 1e-6
#: How a release is drawn and evaluated, which sets the number of releases.
Pace = Literal["bulk", "single", "pure", "slow", "slowest"]
#: Releases on each side, unless more are needed to contradict the claim at all.
_RELEASES: dict[Pace, int] = {"bulk": 200_000, "single": 4_000, "pure": 4_000, "slow": 1_200, "slowest": 200}
_QUICK_RELEASES: dict[Pace, int] = {"bulk": 20_000, "single": 800, "pure": 800, "slow": 300, "slowest": 60}
#: The most expensive first, so that two processes end at about the same time.
_COSTLY: tuple[Pace, ...] = ("slowest", "slow", "pure", "single", "bulk")
_PROCESSES = 2

DELTA = 1e-6
_RECORDS, _LENGTH = 4, 4
_QUERY: NDArray[np.float64] = np.eye(_LENGTH)[0]
_RANGE = (0.0, 0.6)
_CENTER: NDArray[np.float64] = np.full(_LENGTH, 0.1)
#: Both directions of each axis, so that opposite records have different codes.
_CODEWORDS: NDArray[np.float64] = np.concatenate([np.eye(_LENGTH), -np.eye(_LENGTH)])
#: A shape for the best of few records, for embeddings of any dimension.
_FEW = replace(TailShape.default(1), dimension=None)
#: Textbook calibrations are wrong, and rejected, beyond this epsilon.
_TEXTBOOK = 1.0

_Listed = tuple[str, ReleaseFunction, Pair]


def audit_shipped_releases(
    *, quick: bool = False, progress: Callable[[int, int, str], None] | None = None
) -> list[AuditResult]:
    """Audit all releases of `list_shipped_releases`.

    Args:
        quick: One budget, few releases and fixed seeds: the same outcome every time, in about two minutes.
        progress: Called with (done, total, the name of the latest).

    Returns:
        The results, in the order of the list.
    """
    shipped = list_shipped_releases(QUICK_BUDGETS if quick else BUDGETS)
    order = sorted(range(len(shipped)), key=lambda number: _COSTLY.index(shipped[number].pace))
    results: dict[int, AuditResult] = {}
    for number, result in _audit_in_turn(shipped, order) if quick else _audit_in_processes(order):
        results[number] = result
        if progress is not None:
            progress(len(results), len(shipped), result.name)
    return [results[number] for number in range(len(shipped))]


def _audit_in_turn(shipped: Sequence[ShippedRelease], order: Sequence[int]) -> Iterator[tuple[int, AuditResult]]:
    for number in order:
        yield number, _audit_one(shipped[number], _QUICK_RELEASES, number)


def _audit_in_processes(order: Sequence[int]) -> Iterator[tuple[int, AuditResult]]:
    # Fresh processes, so that none inherits a lock or the state of a generator.
    # An executor notices a process that was killed, where a Pool would wait for its answer forever.
    with ProcessPoolExecutor(_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_audit_by_number, number) for number in order]):
            yield done.result()


@cache
def _list_once() -> list[ShippedRelease]:
    """List the releases once per process: they cannot be sent to another process, but their numbers can."""
    return list_shipped_releases(BUDGETS)


def _audit_by_number(number: int) -> tuple[int, AuditResult]:
    return number, _audit_one(_list_once()[number], _RELEASES, None)


def _audit_one(one: ShippedRelease, releases: Mapping[Pace, int], seed: int | None) -> AuditResult:
    needed = math.ceil(1.1 * find_least_releases(one.claim, CONFIDENCE))
    return audit(
        one.release,
        one.claim,
        neighbours=one.pair,
        releases=max(releases[one.pace], needed),
        confidence=CONFIDENCE,
        seed=seed,
        name=one.name,
    )


def format_results(results: Sequence[AuditResult]) -> str:
    """Format one line per audit: the claimed epsilon, the bound, and what would have been found.

    "By scale" is the epsilon of Gaussian noise with the measured scale, where Gaussian noise is claimed.
    """
    width = max(len(result.name) for result in results)
    head = f"{'release':{width}}  claimed    delta  found at least  by scale  detectable  releases  seconds  verdict"
    return "\n".join([head, *(_format_line(result, width) for result in results)])


def _format_line(result: AuditResult, width: int) -> str:
    claim = result.claim
    by_scale = next((f"{check.epsilon:.4g}" for check in result.checks if check.epsilon is not None), "")
    return (
        f"{result.name:{width}}  {claim.epsilon:7.3g}  {claim.delta:7.1g}  {result.epsilon_lower:14.3f}  "
        f"{by_scale:>8}  {result.detectable:10.3f}  {result.releases:8d}  {result.seconds:7.1f}  "
        + ("BROKEN" if result.broken else "no violation found")
    )


# ---- The list of releases.


@dataclass(frozen=True, eq=False)
class ShippedRelease:
    """One release of ScoreShield, its claim, and the neighbours that move it farthest.

    Attributes:
        name: Mechanism, regime and budget.
        release: A callable from a collection to a release, or to a part of one.
        claim: The claim of the release's own guarantee.
        pair: The neighbours.
        pace: How it is drawn and evaluated.
        options: The name of the function, and its options.
    """

    name: str
    release: ReleaseFunction
    claim: Claim
    pair: Pair
    pace: Pace
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleasePart:
    """One part of a release, as an application would pass it on: plain numbers without a guarantee."""

    release: ReleaseFunction
    attribute: str

    def __call__(self, rows: NDArray[Any], rng: Rng = None) -> Any:
        return getattr(self.release(rows, rng=rng), self.attribute)


@dataclass(frozen=True)
class IdentityRelease:
    """A release in which each row stands for an identity of two equal records, which is replaced as a whole."""

    release: ReleaseFunction
    has_centroids: bool

    def __call__(self, rows: NDArray[Any], rng: Rng = None) -> Any:
        labels = np.repeat(np.arange(len(rows)), 2)
        return self.release(np.repeat(rows, 2, axis=0), adjacency=Identity(labels, self.has_centroids), rng=rng)


@dataclass(frozen=True)
class UpdateRun:
    """An index whose changes are public, and an update in which the first record is drawn again.

    Attributes:
        release: Makes the first version, at half of the budget.
    """

    release: partial[Any]

    def make_versions(self, rows: NDArray[Any], rng: Rng = None) -> tuple[IndexVersion, IndexVersion]:
        generator = None if rng is None else np.random.default_rng(cast("int | np.random.Generator", rng))
        first = self.release(rows, changes="public", ids=range(len(rows)), rng=generator)
        return first, first.update(changed=([0], rows[:1]), rng=generator)

    def __call__(self, rows: NDArray[Any], rng: Rng = None) -> NDArray[np.float64]:
        first, second = self.make_versions(rows, rng)
        # All other rows are those of the first version.
        return np.concatenate([second.vectors, first.vectors[:1]]).astype(np.float64)


@dataclass(frozen=True)
class HitRun:
    """A search with a hit budget that is asked several queries in a row.

    Every record has coins of its own, so that one search over many copies of a collection gives as many independent
    outputs: the released value of each record for each query, 0 where it is not named.

    Attributes:
        queries: One per row.
        options: Of the search.
    """

    queries: NDArray[np.float64]
    options: dict[str, Any]

    def search(self, rows: NDArray[Any], rng: Rng = None) -> PrivateSearch:
        return PrivateSearch(rows, mode="hits", cuts=(0.5,), names=len(rows), rng=rng, **self.options)

    def __call__(self, rows: NDArray[Any], rng: Rng = None, repeats: int = 1) -> NDArray[np.float64]:
        search = self.search(np.tile(rows, (repeats, 1)), rng)
        values = np.zeros((len(self.queries), repeats * len(rows)))
        for place, hits in enumerate(search.search_batch(self.queries, k=repeats * len(rows))):
            values[place, list(hits.ids)] = hits.scores
        return values.reshape(len(self.queries), repeats, -1).swapaxes(0, 1).reshape(repeats, -1)


def list_shipped_releases(budgets: Sequence[float]) -> list[ShippedRelease]:
    """List every mechanism and regime of ScoreShield, at each budget."""
    shipped = []
    for epsilon in budgets:
        for name, release, pair in (
            *_list_scores(epsilon),
            *_list_matrices(epsilon),
            *_list_indexes(epsilon),
            *_list_selections(epsilon),
            *_list_batches(epsilon),
            *_list_searches(epsilon),
        ):
            claim, options = Claim.of(_make_whole(release, pair.first)), _describe_options(release)
            pace = _choose_pace(release, claim, options)
            shipped.append(ShippedRelease(f"{name}, epsilon {epsilon:g}", release, claim, pair, pace, options))
    return shipped


def _make_whole(release: Any, rows: NDArray[Any]) -> Any:
    """Make what has the guarantee of a release."""
    if isinstance(release, HitRun):
        return release.search(rows)
    if isinstance(release, UpdateRun):
        return release.make_versions(rows)[-1]
    return release.release(rows) if isinstance(release, ReleasePart) else release(rows)


def _describe_options(release: Any) -> dict[str, Any]:
    if isinstance(release, HitRun):
        return {"function": "PrivateSearch", "mode": "hits", "hits": release.options["hits"]}
    if isinstance(release, ReleasePart):
        return _describe_options(release.release) | {"part": release.attribute}
    if isinstance(release, UpdateRun):
        return _describe_options(release.release) | {"changes": "public"}
    if isinstance(release, IdentityRelease):
        return _describe_options(release.release) | {"adjacency": "centroids" if release.has_centroids else "identity"}
    options = {"function": release.func.__name__}
    for name, value in release.keywords.items():
        if isinstance(value, Adjacency):
            options[name] = value.kind
        elif isinstance(value, LevelChannel):
            options[name] = "levels"
        elif isinstance(value, CustomNoise):
            options[name] = "custom"
        elif isinstance(value, PublicCodebook):
            options[name] = "codebook"
        elif isinstance(value, AnchoredWindows):
            options[name] = "anchored"
        elif isinstance(value, np.ndarray):
            options[name] = "vector" if value.ndim == 1 else "matrix"
        else:
            options[name] = value
    return options


def _choose_pace(release: ReleaseFunction, claim: Claim, options: dict[str, Any]) -> Pace:
    if options.get("denoise") == "sure":
        return "slowest"
    if Source(release, seed=None, timeout=None).is_bulk:
        return "bulk"
    if not isinstance(claim.profile, GaussianProfile):
        return "pure"
    return "slow" if options["function"] == "release_gram" and options.get("projection") != "none" else "single"


def _list_textbook(release: partial[Any], epsilon: float, name: str, pair: Pair) -> Iterator[_Listed]:
    """List the calibrations that are not the default, where they are allowed."""
    for calibration in CALIBRATIONS:
        if calibration != "analytic" and epsilon <= _TEXTBOOK:
            yield f"{name}, {calibration} calibration", partial(release, calibration=calibration), pair


def _list_groups(release: partial[Any], name: str, pair: Pair, *, raw: bool = True) -> Iterator[_Listed]:
    if raw:
        yield f"{name}, identities of two records", IdentityRelease(release, has_centroids=False), pair
    yield f"{name}, centroids of identities", IdentityRelease(release, has_centroids=True), pair


def _make_logistic_noise(epsilon: float) -> CustomNoise:
    """Make logistic noise of scale D / epsilon, which has pure epsilon up to the ends of its table."""
    return CustomNoise.tabulate(logistic(scale=2.0 / epsilon), profile=PureProfile(epsilon))


def _list_scores(epsilon: float) -> Iterator[_Listed]:
    pair, row_pair = _make_worst_pair("scores"), _make_worst_pair("row")
    one = partial(release_scores, query=_QUERY, epsilon=epsilon)
    noisy, staircase = partial(one, delta=DELTA), partial(one, mechanism="staircase")
    yield "scores, gaussian", noisy, pair
    yield "scores, laplace", partial(one, mechanism="laplace"), pair
    yield "scores, staircase", staircase, pair
    yield "scores, auto", partial(noisy, mechanism="auto"), pair
    yield "scores in [0, 0.6], gaussian", partial(noisy, score_range=_RANGE), pair
    yield "scores in [0, 0.6], staircase", partial(staircase, score_range=_RANGE), pair
    # A row within the ball keeps its length, so that a record may be near 0.
    inside = replace_record(pair.first, 0, _QUERY, np.zeros(_LENGTH), "a record equal to the query against none")
    yield "scores, ball, staircase", partial(staircase, norm="ball"), inside
    yield "scores, ball, gaussian", partial(noisy, norm="ball"), pair
    yield "scores, optimal levels", partial(one, mechanism=optimal_channel(epsilon)), pair
    yield "scores, randomised response", partial(one, mechanism=randomised_response(epsilon, cuts=(0.0,))), pair
    thinned = thinned_response(epsilon, cuts=(0.0, 0.5), advantage=min(0.5, math.tanh(epsilon / 2) / 2))
    yield "scores, thinned response", partial(one, mechanism=thinned), pair
    accept = accept_bit(epsilon, impostor=np.linspace(-1, 0.5, 1001), false_match_rate=0.01)
    yield "scores, accept bit", partial(one, mechanism=accept.table), pair
    yield "scores, custom law", partial(noisy, mechanism=_make_logistic_noise(epsilon)), pair
    bit = gaussian_bit(epsilon, DELTA, 0.0, false_share=0.01)
    yield "scores, bit on a Gaussian curve", partial(noisy, mechanism=bit), pair
    anchored = partial(one, mechanism=AnchoredWindows(tail=_FEW))
    yield "scores, anchored", anchored, pair
    yield "scores in [0, 0.6], anchored", partial(anchored, score_range=_RANGE), pair
    yield "scores clipped, gaussian", ReleasePart(noisy, "scores"), pair
    both = np.stack([_QUERY, np.eye(_LENGTH)[1]])
    batch = worst_pairs(_RECORDS, _LENGTH, "scores", both)[0]
    yield "scores of two queries, gaussian", partial(release_scores, query=both, epsilon=epsilon, delta=DELTA), batch
    yield from _list_textbook(noisy, epsilon, "scores, gaussian", pair)
    yield from _list_groups(noisy, "scores, gaussian", pair)
    yield from _list_groups(staircase, "scores, staircase", pair, raw=False)
    yield from _list_groups(anchored, "scores, anchored", pair, raw=False)

    row = partial(release_row, index=0, epsilon=epsilon, delta=DELTA)
    yield "row, gaussian", row, row_pair
    yield "row clipped, gaussian", ReleasePart(row, "scores"), row_pair
    yield "row in [0, 0.6], gaussian", partial(row, score_range=_RANGE), row_pair
    yield from _list_textbook(row, epsilon, "row, gaussian", row_pair)
    yield from _list_groups(row, "row, gaussian", row_pair)


def _list_matrices(epsilon: float) -> Iterator[_Listed]:
    pair = _make_worst_pair("gram")
    gram = partial(release_gram, epsilon=epsilon, delta=DELTA)
    plain = partial(gram, projection="none")
    yield "gram, gaussian", plain, pair
    yield "gram in [0, 0.6], gaussian", partial(plain, score_range=_RANGE), pair
    yield from _list_textbook(plain, epsilon, "gram, gaussian", pair)
    yield from _list_groups(plain, "gram, gaussian", pair)
    drift = drift_pair(_RECORDS, _LENGTH, 1.0)
    yield "gram, gaussian, radius 1", partial(plain, adjacency=GramRadius(1.0)), drift
    yield "gram projected alone, gaussian", ReleasePart(gram, "gram"), pair
    for projection in GRAM_PROJECTIONS:
        if projection != "none":
            steps = {} if projection == "exact" else {"max_iterations": 10}
            yield f"gram, gaussian, {projection} projection", partial(gram, projection=projection, **steps), pair
    for denoise in DENOISERS:
        # Probes make "sure" slow: two records keep it short.
        some = pair if denoise != "sure" else worst_pairs(2, _LENGTH, "gram", _QUERY)[0]
        yield f"gram, gaussian, denoised by {denoise}", partial(gram, denoise=denoise), some


def _list_indexes(epsilon: float) -> Iterator[_Listed]:
    pair = _make_worst_pair("index")
    for mechanism, delta in (("privunit", 0.0), ("gaussian", DELTA)):
        index = partial(release_index, epsilon=epsilon, delta=delta, mechanism=mechanism)
        yield f"index, {mechanism}", index, pair
        yield f"index, {mechanism}, random subspace", partial(index, components=2, reduction="random"), pair
        yield f"index, {mechanism}, for pairs", partial(index, use="pairs"), pair
        yield f"index, {mechanism}, public basis", partial(index, reduction=np.eye(2, _LENGTH)), pair
        yield f"index, {mechanism}, private pca", partial(index, components=2, reduction="pca", delta=DELTA), pair
        yield f"index, {mechanism}, public center", partial(index, center=_CENTER), pair
        yield f"index, {mechanism}, private center", partial(index, center="private", delta=DELTA), pair
        yield from _list_groups(index, f"index, {mechanism}", pair)
    yield "index, privunit, a record drawn twice", UpdateRun(partial(release_index, epsilon=epsilon / 2)), pair
    codes = partial(release_index, epsilon=epsilon, codebook=PublicCodebook(_CODEWORDS))
    yield "index, codebook", codes, pair
    yield "index, codes of one word", partial(codes, codebook=PublicCodebook(_CODEWORDS, code_size=1)), pair
    yield from _list_groups(codes, "index, codebook", pair)


def _list_selections(epsilon: float) -> Iterator[_Listed]:
    passing, first, binned = _make_worst_pair("matches"), _make_worst_pair("top-k"), _make_worst_pair("histogram")
    matches = partial(release_matches, query=_QUERY, threshold=0.5, epsilon=epsilon)
    refined = partial(matches, refine=0.5)
    yield "matches, randomised response", matches, passing
    yield "matches, screen and refine", refined, passing
    yield "matches in [0, 0.6], refined, ball", partial(refined, score_range=_RANGE, norm="ball"), passing
    yield from _list_groups(matches, "matches, randomised response", passing, raw=False)
    best = partial(release_top_k, query=_QUERY, k=1, epsilon=epsilon)
    for mechanism in SELECTIONS:
        yield f"top 1, {mechanism}", partial(best, mechanism=mechanism), first
    yield "top 2, permute-and-flip", partial(best, k=2), first
    yield "top 1 in [0, 0.6], ball", partial(best, score_range=_RANGE, norm="ball"), first
    yield from _list_groups(best, "top 1, permute-and-flip", first, raw=False)
    counts = partial(release_histogram, query=_QUERY, bins=4, epsilon=epsilon)
    for mechanism in HISTOGRAM_MECHANISMS:
        delta = DELTA if mechanism == "gaussian" else 0.0
        yield f"histogram, {mechanism}", partial(counts, mechanism=mechanism, delta=delta), binned
    yield "histogram of all pairs, geometric", partial(counts, query=None), _make_worst_pair("gram")
    yield "histogram in [0, 0.6], ball", partial(counts, score_range=_RANGE, norm="ball"), binned
    yield from _list_groups(counts, "histogram, geometric", binned, raw=False)


def _list_batches(epsilon: float) -> Iterator[_Listed]:
    queries, pair = np.eye(3, _LENGTH), _make_worst_pair("batch")
    chosen = partial(release_batch, queries=queries, epsilon=epsilon, k=2)
    given = partial(chosen, names=1, levels=np.array([0.2, 0.6]))
    yield "batch of three queries", chosen, pair
    yield "batch of one query", partial(chosen, queries=queries[:1]), pair
    yield "batch, one name, given levels", given, pair
    yield "batch, two names, given levels", partial(given, names=2), pair
    inside = replace_record(pair.first, 0, _QUERY, np.zeros(_LENGTH), "a record equal to a query against none")
    yield "batch, ball", partial(given, norm="ball"), inside
    yield from _list_groups(given, "batch, one name", pair)


def _list_searches(epsilon: float) -> Iterator[_Listed]:
    """List searches whose promise covers all queries: the worst records use up their budgets on different ones."""
    first, second = np.eye(_LENGTH)[:2]
    rows = np.tile(np.eye(_LENGTH)[2], (_RECORDS, 1))
    others = replace_record(rows, 0, first, second, "a record near the first queries against one near the last")
    null = replace_record(rows, 0, first, -first, "a record near the queries against a null record")
    near = first + 0.1 * np.eye(_LENGTH)[3]
    one, two = {"epsilon": epsilon, "hits": 1}, {"epsilon": epsilon, "hits": 2}
    yield "hits, one hit", HitRun(np.stack([first, second]), one), others
    yield "hits, two hits", HitRun(np.stack([first, near, second]), two), others
    yield "hits, against a null record", HitRun(np.stack([first, near]), one | {"adjacency": NullRecord()}), null


def _make_worst_pair(kind: Regime) -> Pair:
    return worst_pairs(_RECORDS, _LENGTH, kind, _QUERY)[0]
