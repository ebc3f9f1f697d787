"""A private histogram of scores, and the false-match curve computed from it.

Replacing one record moves one score of a query from one bin to another. Two counts change by one: l1 sensitivity 2
and l2 √2. Over all pairs of n records it moves n - 1 scores: 2 (n - 1) and √2 (n - 1). Two-sided geometric noise
(Ghosh, Roughgarden & Sundararajan 2012) gives pure epsilon, rounded Gaussian noise gives (epsilon, delta). Counts stay
whole.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Norm, Rng
from scoreshield._validation import Check, check_delta, check_epsilon, constrain, one_of, validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, ReleaseShape, Replacement, check_score_range
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.gaussian import fill_rounded_gaussian
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.pipeline import PendingRelease, PrivateCollection
from scoreshield.releases.results import HistogramRelease

Float = NDArray[np.float64]
HistogramMechanism = Literal["geometric", "gaussian"]
HISTOGRAM_MECHANISMS: tuple[str, ...] = get_args(HistogramMechanism)
_ROWS = 1024


#: The constraints on the arguments of a histogram that do not depend on the collection.
HISTOGRAM_CHECKS: dict[str, Check] = {
    "epsilon": check_epsilon,
    "delta": check_delta,
    "mechanism": one_of(HISTOGRAM_MECHANISMS),
    "score_range": check_score_range,
    "norm": one_of(_embeddings.NORMS),
}


@clear_frames_on_error
@validate(**HISTOGRAM_CHECKS)
def release_histogram(
    embeddings: ArrayLike,
    query: ArrayLike | None,
    *,
    bins: int | ArrayLike = 64,
    epsilon: float,
    delta: float = 0.0,
    mechanism: HistogramMechanism = "geometric",
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    rng: Rng = None,
    ledger: AccountLike | None = None,
) -> HistogramRelease:
    """Release the number of scores in each public bin.

    `embeddings`, `adjacency`, `norm`, `rng` and `ledger` are as in `scoreshield.release_scores`.

    Args:
        query: One public query, whose n scores are counted; None counts all n (n - 1) / 2 pairs of records.
        bins: The number of equal bins over the score range, or their edges, rising; public. Scores outside count at the
            ends.
        epsilon: The epsilon of the promise.
        delta: The delta of the promise.
        mechanism: ``"geometric"`` is pure (delta 0), ``"gaussian"`` needs delta > 0.

    Returns:
        A HistogramRelease with ``.counts``, ``.edges``, ``.guarantee``; ``.rate(t)``, ``.threshold(target)``,
        ``.error(confidence)`` and ``.distribution()`` for plans.
    """
    pending = prepare_histogram(
        embeddings,
        query,
        bins=bins,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        adjacency=adjacency,
        score_range=score_range,
        norm=norm,
        rng=rng,
    )
    return pending.release(ledger)


@constrain(**HISTOGRAM_CHECKS)
def prepare_histogram(
    embeddings: ArrayLike,
    query: ArrayLike | None,
    *,
    bins: int | ArrayLike = 64,
    epsilon: float,
    delta: float = 0.0,
    mechanism: HistogramMechanism = "geometric",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    rng: Rng = None,
) -> PendingRelease[NDArray[np.int64], HistogramRelease]:
    """Prepare a histogram before its charge, with the arguments of `release_histogram`."""
    if (mechanism == "gaussian") != (delta > 0):
        _validation.reject("delta", "above 0 for Gaussian noise and 0 for geometric", delta)
    low, high = score_range
    edges = find_edges(bins, low, high)
    source = PrivateCollection.check(embeddings, adjacency, least=1 if query is not None else 2)
    if source.adjacency.bound_sensitivity(ReleaseShape("scores", source.size)).moved > 1:
        raise InvalidInput("A histogram protects single records, or identities with centroids=True.")
    if query is None and norm != "unit":
        raise InvalidInput("All pairs need unit rows: leave norm='ball' out, or give a query.")
    queries = None
    if query is not None:
        queries, single = _embeddings.as_queries(query, source.dimension)
        if not single and len(queries) != 1:
            raise InvalidInput("A histogram takes one query, or None for all pairs.")
    sampler = name_sampler(rng)
    moved = 1 if query is not None else source.size - 1
    profile: Profile
    if mechanism == "geometric":
        sensitivity = 2.0 * moved
        scale, profile = sensitivity / epsilon * (1 + 2**-48), PureProfile(epsilon)
    else:
        sensitivity = math.sqrt(2) * moved
        scale = gaussian.calibrate(epsilon, delta, sensitivity)
        profile = GaussianProfile(sensitivity / scale)
    if scale > 2.0**31:
        raise InvalidInput(
            f"This contract takes noise of scale {scale:.3g} on counts, which is larger than any count: raise epsilon."
        )
    total = source.size if query is not None else source.size * (source.size - 1) // 2
    guarantee = Guarantee.for_mechanism(
        ReleaseFacts(source.adjacency, "histogram", (len(edges) - 1,), (low, high), sampler),
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        sensitivity=sensitivity,
        grid_sensitivity=sensitivity,
        scale=scale,
        grid=1.0,
        profile=profile,
        details={"scores": total},
    )

    def draw(counts: NDArray[np.int64], stream: Stream) -> HistogramRelease:
        add_count_noise(counts, guarantee, stream)
        return HistogramRelease(guarantee=guarantee, counts=counts, edges=edges)

    def count() -> NDArray[np.int64]:
        return _count(source, queries, edges, norm)

    return PendingRelease(guarantee, source.adjacency, rng, count, draw)


def add_count_noise(counts: NDArray[np.int64], guarantee: Guarantee, stream: Stream) -> None:
    """Add the noise of a promise to whole counts, in place."""
    if guarantee.mechanism == "geometric":
        counts += _two_sided_geometric(stream, 1 / guarantee.scale, len(counts))
    else:
        noise = np.empty(len(counts))
        fill_rounded_gaussian(stream, guarantee.scale, noise)
        counts += noise.astype(np.int64)


def count_scores(rows: _embeddings.Rows, queries: Float, edges: Float, norm: str) -> NDArray[np.int64]:
    """Count the scores of one query in each bin (left, right]; scores outside count at the ends."""
    scores = _embeddings.compute_scores(rows, queries, norm)[0]
    places = np.searchsorted(edges[1:-1], scores, side="left")
    return np.bincount(places, minlength=len(edges) - 1).astype(np.int64)


def find_edges(bins: Any, low: float, high: float) -> Float:
    """Check the edges of public bins, or place them over the score range."""
    if isinstance(bins, int | np.integer) and not isinstance(bins, bool):
        count = _validation.check_count(bins, "bins", least=2)
        if count > 1_000_000:
            _validation.reject("bins", "at most a million", bins)
        return np.linspace(low, high, count + 1)
    must = "a number of bins, at least 2, or their edges: finite, rising, at least three"
    edges = _validation.check_array(bins, "bins", must)
    if edges.ndim != 1 or len(edges) < 3 or edges.dtype.kind not in "fiu" or not np.all(np.diff(edges) > 0):
        _validation.reject("bins", must, bins)
    if not np.isfinite(edges).all():
        _validation.reject("bins", must, bins)
    return edges.astype(np.float64)


def _count(source: PrivateCollection, queries: Float | None, edges: Float, norm: str) -> NDArray[np.int64]:
    """Count the scores in each bin (left, right], as thresholds cut them; scores outside count at the ends."""
    inner = edges[1:-1]
    bins = len(edges) - 1
    if queries is not None:
        return count_scores(source.rows(), queries, edges, norm)
    rows = _embeddings.normalise_rows(source.rows())
    counts = np.zeros(bins, dtype=np.int64)
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS] @ rows[start:].T
        above = np.triu(np.ones(block.shape, dtype=np.bool_), 1)
        counts += np.bincount(np.searchsorted(inner, block[above], side="left"), minlength=bins)
    return counts


def _two_sided_geometric(stream: Stream, rate: float, count: int) -> NDArray[np.int64]:
    """Draw whole numbers with P[k] proportional to e^(-rate |k|), exactly; a minus sign on 0 is drawn again."""
    out = np.empty(count, dtype=np.int64)
    todo = np.arange(count)
    while len(todo):
        size, minus = discrete.draw_geometric(stream, rate, len(todo))
        good = ~(minus & (size == 0))
        out[todo[good]] = np.where(minus, -size, size)[good]
        todo = todo[~good]
    return out
