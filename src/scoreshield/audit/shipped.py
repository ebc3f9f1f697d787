"""Every mechanism and regime that ScoreShield ships, each with what it claims and the neighbours that move it farthest.

The list is compared with the public options of the releases by a test, so that a new one cannot be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.claim import Claim
from scoreshield.audit.neighbours import Pair, drift_pair, replaced, worst_pairs
from scoreshield.audit.outputs import Source
from scoreshield.geometry.denoise import METHODS as DENOISERS
from scoreshield.privacy.adjacency import Adjacency, GramRadius, Identity
from scoreshield.privacy.calibration import METHODS as CALIBRATIONS
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel, randomised_response
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.releases.gram import GRAM_PROJECTIONS, release_gram
from scoreshield.releases.histogram import HISTOGRAM_MECHANISMS, release_histogram
from scoreshield.releases.index import release_index
from scoreshield.releases.matches import SELECTIONS, release_matches, release_top_k
from scoreshield.releases.row import release_row
from scoreshield.releases.scores import release_scores

DELTA = 1e-6
_RECORDS, _LENGTH = 4, 4
_QUERY: NDArray[np.float64] = np.eye(_LENGTH)[0]
_RANGE = (0.0, 0.6)
#: Textbook calibrations are false, and refused, beyond this epsilon.
_TEXTBOOK = 1.0

Release = Callable[..., Any]
_Named = tuple[str, Release, Pair]


@dataclass(frozen=True, eq=False)
class Own:
    """One of our releases, what it claims, and the neighbours that move it farthest.

    Attributes
    ----------
    name : mechanism, regime and budget.
    release : a callable from a collection to a release, or to a part of one.
    claim : of the release's own guarantee.
    pair : the neighbours.
    pace : "bulk", "single", "pure", "slow" or "slowest": how it is drawn and judged, which sets how often.
    options : of which function, and with which options.
    """

    name: str
    release: Release
    claim: Claim
    pair: Pair
    pace: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One part of a release alone, as an application would hand it on: plain numbers without a guarantee."""

    release: Release
    attribute: str

    def __call__(self, rows: NDArray[Any], rng: Any = None) -> Any:
        return getattr(self.release(rows, rng=rng), self.attribute)


@dataclass(frozen=True)
class Grouped:
    """Each row stands for an identity of two equal records: replacing a row replaces the identity."""

    release: Release
    centroids: bool

    def __call__(self, rows: NDArray[Any], rng: Any = None) -> Any:
        labels = np.repeat(np.arange(len(rows)), 2)
        return self.release(np.repeat(rows, 2, axis=0), adjacency=Identity(labels, self.centroids), rng=rng)


def own_releases(budgets: Sequence[float]) -> list[Own]:
    """Every mechanism and regime that we ship, at each budget."""
    found = []
    for epsilon in budgets:
        for name, release, pair in (*_scores(epsilon), *_matrices(epsilon), *_indexes(epsilon), *_selections(epsilon)):
            whole = release.release if isinstance(release, Part) else release
            claim, options = Claim.of(whole(pair.first)), _options(release)
            pace = _pace(release, claim, options)
            found.append(Own(f"{name}, epsilon {epsilon:g}", release, claim, pair, pace, options))
    return found


def _options(release: Any) -> dict[str, Any]:
    if isinstance(release, Part):
        return _options(release.release) | {"part": release.attribute}
    if isinstance(release, Grouped):
        return _options(release.release) | {"adjacency": "centroids" if release.centroids else "identity"}
    said = {"function": release.func.__name__}
    for name, value in release.keywords.items():
        if isinstance(value, Adjacency):
            said[name] = value.kind
        elif isinstance(value, LevelChannel):
            said[name] = "levels"
        elif isinstance(value, np.ndarray):
            said[name] = "vector" if value.ndim == 1 else "matrix"
        else:
            said[name] = value
    return said


def _pace(release: Release, claim: Claim, options: dict[str, Any]) -> str:
    if options.get("denoise") == "sure":
        return "slowest"
    if Source(release, seed=None, timeout=None).in_bulk:
        return "bulk"
    if not isinstance(claim.profile, GaussianProfile):
        return "pure"
    return "slow" if options["function"] == "release_gram" and options.get("projection") != "none" else "single"


def _textbook(release: partial[Any], epsilon: float, name: str, pair: Pair) -> Iterator[_Named]:
    """The calibrations that are not the default, where they are allowed."""
    for calibration in CALIBRATIONS:
        if calibration != "analytic" and epsilon <= _TEXTBOOK:
            yield f"{name}, {calibration} calibration", partial(release, calibration=calibration), pair


def _groups(release: partial[Any], name: str, pair: Pair, *, raw: bool = True) -> Iterator[_Named]:
    if raw:
        yield f"{name}, identities of two records", Grouped(release, centroids=False), pair
    yield f"{name}, centroids of identities", Grouped(release, centroids=True), pair


def _scores(epsilon: float) -> Iterator[_Named]:
    pair, row_pair = _worst("scores"), _worst("row")
    one = partial(release_scores, query=_QUERY, epsilon=epsilon)
    noisy, staircase = partial(one, delta=DELTA), partial(one, mechanism="staircase")
    yield "scores, gaussian", noisy, pair
    yield "scores, laplace", partial(one, mechanism="laplace"), pair
    yield "scores, staircase", staircase, pair
    yield "scores, auto", partial(noisy, mechanism="auto"), pair
    yield "scores in [0, 0.6], gaussian", partial(noisy, score_range=_RANGE), pair
    yield "scores in [0, 0.6], staircase", partial(staircase, score_range=_RANGE), pair
    # A row within the ball keeps its length, so that a record may hide near 0.
    inside = replaced(pair.first, 0, _QUERY, np.zeros(_LENGTH), "a record equal to the query against none")
    yield "scores, ball, staircase", partial(staircase, norm="ball"), inside
    yield "scores, ball, gaussian", partial(noisy, norm="ball"), pair
    yield "scores, optimal levels", partial(one, mechanism=optimal_channel(epsilon)), pair
    yield "scores, randomised response", partial(one, mechanism=randomised_response(epsilon, cuts=(0.0,))), pair
    yield "scores clipped, gaussian", Part(noisy, "scores"), pair
    both = np.stack([_QUERY, np.eye(_LENGTH)[1]])
    batch = worst_pairs(_RECORDS, _LENGTH, "scores", both)[0]
    yield "scores of two queries, gaussian", partial(release_scores, query=both, epsilon=epsilon, delta=DELTA), batch
    yield from _textbook(noisy, epsilon, "scores, gaussian", pair)
    yield from _groups(noisy, "scores, gaussian", pair)
    yield from _groups(staircase, "scores, staircase", pair, raw=False)

    row = partial(release_row, index=0, epsilon=epsilon, delta=DELTA)
    yield "row, gaussian", row, row_pair
    yield "row clipped, gaussian", Part(row, "scores"), row_pair
    yield "row in [0, 0.6], gaussian", partial(row, score_range=_RANGE), row_pair
    yield from _textbook(row, epsilon, "row, gaussian", row_pair)
    yield from _groups(row, "row, gaussian", row_pair)


def _matrices(epsilon: float) -> Iterator[_Named]:
    pair = _worst("gram")
    gram = partial(release_gram, epsilon=epsilon, delta=DELTA)
    plain = partial(gram, projection="none")
    yield "gram, gaussian", plain, pair
    yield "gram in [0, 0.6], gaussian", partial(plain, score_range=_RANGE), pair
    yield from _textbook(plain, epsilon, "gram, gaussian", pair)
    yield from _groups(plain, "gram, gaussian", pair)
    drift = drift_pair(_RECORDS, _LENGTH, 1.0)
    yield "gram, gaussian, radius 1", partial(plain, adjacency=GramRadius(1.0)), drift
    yield "gram projected alone, gaussian", Part(gram, "gram"), pair
    for projection in GRAM_PROJECTIONS:
        if projection != "none":
            steps = {} if projection == "exact" else {"max_iterations": 10}
            yield f"gram, gaussian, {projection} projection", partial(gram, projection=projection, **steps), pair
    for denoise in DENOISERS:
        # Probes make "sure" slow: two records keep it short.
        some = pair if denoise != "sure" else worst_pairs(2, _LENGTH, "gram", _QUERY)[0]
        yield f"gram, gaussian, denoised by {denoise}", partial(gram, denoise=denoise), some


def _indexes(epsilon: float) -> Iterator[_Named]:
    pair = _worst("index")
    for mechanism, delta in (("privunit", 0.0), ("gaussian", DELTA)):
        index = partial(release_index, epsilon=epsilon, delta=delta, mechanism=mechanism)
        yield f"index, {mechanism}", index, pair
        yield f"index, {mechanism}, random subspace", partial(index, components=2, reduction="random"), pair
        yield f"index, {mechanism}, public basis", partial(index, reduction=np.eye(2, _LENGTH)), pair
        yield f"index, {mechanism}, private pca", partial(index, components=2, reduction="pca", delta=DELTA), pair
        yield from _groups(index, f"index, {mechanism}", pair)


def _selections(epsilon: float) -> Iterator[_Named]:
    passing, first, binned = _worst("matches"), _worst("top-k"), _worst("histogram")
    matches = partial(release_matches, query=_QUERY, threshold=0.5, epsilon=epsilon)
    refined = partial(matches, refine=0.5)
    yield "matches, randomised response", matches, passing
    yield "matches, screen and refine", refined, passing
    yield "matches in [0, 0.6], refined, ball", partial(refined, score_range=_RANGE, norm="ball"), passing
    yield from _groups(matches, "matches, randomised response", passing, raw=False)
    best = partial(release_top_k, query=_QUERY, k=1, epsilon=epsilon)
    for mechanism in SELECTIONS:
        yield f"top 1, {mechanism}", partial(best, mechanism=mechanism), first
    yield "top 2, permute-and-flip", partial(best, k=2), first
    yield "top 1 in [0, 0.6], ball", partial(best, score_range=_RANGE, norm="ball"), first
    yield from _groups(best, "top 1, permute-and-flip", first, raw=False)
    counts = partial(release_histogram, query=_QUERY, bins=4, epsilon=epsilon)
    for mechanism in HISTOGRAM_MECHANISMS:
        delta = DELTA if mechanism == "gaussian" else 0.0
        yield f"histogram, {mechanism}", partial(counts, mechanism=mechanism, delta=delta), binned
    yield "histogram of all pairs, geometric", partial(counts, query=None), _worst("gram")
    yield "histogram in [0, 0.6], ball", partial(counts, score_range=_RANGE, norm="ball"), binned
    yield from _groups(counts, "histogram, geometric", binned, raw=False)


def _worst(kind: str) -> Pair:
    return worst_pairs(_RECORDS, _LENGTH, kind, _QUERY)[0]
