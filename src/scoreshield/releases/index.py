"""A private index: you spend epsilon once, and its vectors answer every later query as post-processing.

One record is one vector, so replacing it moves one row and nothing else. PrivUnit (`scoreshield.privacy.privunit`)
makes each row private by itself, purely. Gaussian noise on all rows has Frobenius sensitivity 2, as one score vector
has. Vectors can be reduced first: to a public random subspace, which costs nothing, to the caller's public basis,
or to the leading directions of a private covariance, which costs a stated share of the budget. A center can be
subtracted first: a public vector, or a private mean for a stated share of the budget. With a public codebook
(`scoreshield.releases.codebook`) each record becomes a set of public vectors instead. docs/index-release.md has the
proofs and measurements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._rows import release_pages
from scoreshield._types import AccountLike, Rng
from scoreshield._validation import check_count, check_progress, constrain, one_of, validate
from scoreshield._views import Columns
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import WORTH_CHECKS, Worth, check_public_scores, predict_worth
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.geometry.elliptope import check_memory, project_elliptope
from scoreshield.geometry.windows import check_finite_windows, convert_when_read, normalise_window
from scoreshield.privacy.adjacency import Adjacency, Identity, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.sampling.parallel import draw_blocks, has_blocks
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.advice import Adviser, make_public_rows
from scoreshield.releases.exports import VectorExports
from scoreshield.releases.index_pairs import choose_gaussian_components, pair_components, warn_of_noisy_pairs
from scoreshield.releases.index_plan import (
    INDEX_CHECKS,
    MECHANISMS,
    PUBLIC_BASIS,
    REDUCTIONS,
    GaussianRows,
    IndexMechanism,
    IndexPlan,
    IndexUse,
    check_index_source,
    count_block_rows,
    is_stated_center,
    subtract_center,
)
from scoreshield.releases.pipeline import PendingRelease, PrivateCollection
from scoreshield.releases.results import Release

if TYPE_CHECKING:
    from scoreshield.releases.codebook import CodebookRelease, PublicCodebook
    from scoreshield.releases.versions import CodebookVersion, IndexVersion

Float = NDArray[np.float64]

#: How many records are scored at once in a search.
SEARCH_ROWS = 65_536
#: How many entries of records a block of secure draws has. A thread needs some 12 doubles for each.
_BLOCK_ENTRIES = 1 << 18


class BestRecords(NamedTuple):
    """The best records of each query, best first: scores and indices, in that order, as FAISS returns them."""

    scores: Float
    indices: NDArray[np.intp]


@dataclass(frozen=True, eq=False, repr=False)
class PrivateIndex(VectorExports, Release):
    """A release that answers any number of queries: one private vector, or one private code, per record."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The dimension of the queries."""

    @abstractmethod
    def _read_queries(self, query: ArrayLike) -> tuple[NDArray[np.float32], bool]:
        """Turn queries into what `_score_rows` takes; also return whether there is one query or a batch."""

    @abstractmethod
    def _score_rows(self, queries: NDArray[np.float32], rows: slice) -> NDArray[np.float32]:
        """Compute the scores of every query with some records, (m, rows)."""

    @abstractmethod
    def _list_vectors(self) -> NDArray[np.float32]:
        """List one vector per record, whose products are the pairwise scores."""

    @validate()
    def scores(self, query: ArrayLike, *, clip: bool = False) -> Float:
        """Compute the scores of one query, (n,), or of a batch, (m, n).

        `clip` cuts them to [-1, 1]: for display, not for ranking.
        """
        queries, single = self._read_queries(query)
        scores = self._score_rows(queries, slice(None)).astype(np.float64)
        if clip:
            np.clip(scores, -1, 1, out=scores)
        return scores[0] if single else scores

    @validate(k=check_count)
    def search(self, query: ArrayLike, k: int) -> BestRecords:
        """Return the `k` best records of one query, (k,), or of each query of a batch, (m, k), best first."""
        count = self.guarantee.shape[0]
        queries, single = self._read_queries(query)
        starts = range(0, count, SEARCH_ROWS)
        windows = ((start, self._score_rows(queries, slice(start, start + SEARCH_ROWS))) for start in starts)
        return rank_windows(windows, min(k, count), single=single)

    @validate(k=check_count, public_scores=check_public_scores)
    def worth(self, k: int = 10, *, public_scores: QueryScores | None = None) -> Worth:
        """Predict what `search` finds of the relevant records of a query, from public facts (`decisions.Worth`).

        Args:
            k: How many records are returned.
            public_scores: Public scores of the same model; None takes those that ship, with a larger error.
        """
        return self._predict_worth(k, public_scores)

    def _predict_worth(self, k: int, public_scores: QueryScores | None) -> Worth:
        return predict_index_worth(self.guarantee, self.dimension, k, public_scores, None)

    def update(self, *args: Any, **changes: Any) -> Any:
        """Raise an error: only an index whose changes are public is updated (`IndexVersion.update`).

        Raises:
            InvalidInput: Always.
        """
        del args, changes
        raise InvalidInput(
            "This index has no updates: release it with changes='public' and ids, if the ids of its records and the "
            "times of their changes are public."
        )

    @validate()
    def gram(self, *, project: bool = False) -> Float:
        """Compute pairwise scores, (n, n): the public 1 on the diagonal, products of the private vectors off it.

        Rows have independent noise. `project` returns the valid cosine matrix nearest to that. An index for search has
        too many components for pairs; a warning says so. Make the index for pairs with ``use="pairs"``.
        """
        warn_of_noisy_pairs(self.guarantee, self.dimension)
        check_memory(self.guarantee.shape[0], "auto" if project else "none", "cpu")
        rows = self._list_vectors().astype(np.float64)
        gram = rows @ rows.T
        np.fill_diagonal(gram, 1.0)
        return project_elliptope(gram).matrix if project else gram

    def _list_values(self) -> NDArray[Any]:
        return self._list_vectors()

    def _list_columns(self) -> Columns:
        ids = getattr(self, "ids", None)
        vectors = self._list_vectors()
        columns: Columns = {"id": np.arange(len(vectors)) if ids is None else ids}
        return columns | {f"x{place}": column for place, column in enumerate(vectors.T)}


@dataclass(frozen=True, eq=False, repr=False)
class IndexRelease(PrivateIndex):
    """Private vectors, one per record, that answer any number of queries.

    Scores are unbiased for the cosines of the reduced vectors, unless they are clipped; pairwise scores off the
    diagonal are too. With a center, they are those of the centred records and of the queries without their component
    along the center.

    Attributes:
        vectors: (n, r), float32, every entry a multiple of ``guarantee.grid``; rows are unbiased for the centred and
            reduced records.
        projection: (r, d) with orthonormal rows, which reduce records and queries; None without a reduction.
        center: (d,), what was subtracted from the unit records; None for nothing.
    """

    kind = "index"

    vectors: NDArray[np.float32]
    projection: Float | None
    center: Float | None = None

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1] if self.projection is None else self.projection.shape[1])

    @property
    def score_std(self) -> float:
        """The standard deviation of the noise on a score whose clean value is 0."""
        return float(self.guarantee.details["score_std"])

    def is_intact(self) -> bool:
        steps = self.vectors / np.float32(self.guarantee.grid)
        if self.projection is not None:
            if self.projection.ndim != 2 or self.projection.dtype != np.float64:
                return False
            product = self.projection @ self.projection.T
            if len(product) != self.vectors.shape[-1]:
                return False
            if np.abs(product - np.eye(len(product))).max() > 1e-9:
                return False
        reduction = self.guarantee.details.get("reduction")
        return (
            self.guarantee.regime == IndexRelease.kind
            and self.guarantee.mechanism in MECHANISMS
            and self.vectors.dtype == np.float32
            and self.vectors.shape == self.guarantee.shape
            and reduction in ("none", *REDUCTIONS, PUBLIC_BASIS)
            and (self.projection is None) == (reduction == "none")
            and is_stated_center(self.center, self.dimension, self.guarantee)
            and np.array_equal(steps, np.rint(steps))
        )

    def _read_queries(self, query: ArrayLike) -> tuple[NDArray[np.float32], bool]:
        return reduce_queries(query, self.dimension, self.projection, self.center)

    def _score_rows(self, queries: NDArray[np.float32], rows: slice) -> NDArray[np.float32]:
        return queries @ self.vectors[rows].T

    def _list_reductions(self) -> tuple[Float | None, Float | None]:
        return self.projection, self.center

    def _list_vectors(self) -> NDArray[np.float32]:
        return self.vectors


@overload
def release_index(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    codebook: PublicCodebook,
    k: int = ...,
    public_scores: QueryScores | None = ...,
    require_recall: float | None = ...,
    adjacency: Adjacency = ...,
    changes: Literal["private"] = ...,
    rng: Rng = ...,
    ledger: AccountLike | None = ...,
    progress: Progress | None = ...,
) -> CodebookRelease: ...
@overload
def release_index(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    delta: float = ...,
    mechanism: IndexMechanism = ...,
    use: IndexUse = ...,
    components: int | None = ...,
    reduction: str | ArrayLike = ...,
    pca_share: float = ...,
    center: str | ArrayLike = ...,
    center_share: float | None = ...,
    codebook: None = ...,
    k: int = ...,
    public_scores: QueryScores | None = ...,
    require_recall: float | None = ...,
    adjacency: Adjacency = ...,
    changes: Literal["private"] = ...,
    rng: Rng = ...,
    ledger: AccountLike | None = ...,
    progress: Progress | None = ...,
) -> IndexRelease: ...
@overload
def release_index(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    codebook: PublicCodebook,
    k: int = ...,
    public_scores: QueryScores | None = ...,
    require_recall: float | None = ...,
    adjacency: Adjacency = ...,
    changes: Literal["public"],
    ids: Iterable[int | str],
    rng: Rng = ...,
    ledger: AccountLike | None = ...,
    progress: Progress | None = ...,
) -> CodebookVersion: ...
@overload
def release_index(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    delta: float = ...,
    mechanism: IndexMechanism = ...,
    use: IndexUse = ...,
    components: int | None = ...,
    reduction: str | ArrayLike = ...,
    center: str | ArrayLike = ...,
    codebook: None = ...,
    k: int = ...,
    public_scores: QueryScores | None = ...,
    require_recall: float | None = ...,
    adjacency: Adjacency = ...,
    changes: Literal["public"],
    ids: Iterable[int | str],
    rng: Rng = ...,
    ledger: AccountLike | None = ...,
    progress: Progress | None = ...,
) -> IndexVersion: ...


@clear_frames_on_error
@validate(**INDEX_CHECKS, **WORTH_CHECKS, changes=one_of(("private", "public")), progress=check_progress)
def release_index(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: IndexMechanism = "privunit",
    use: IndexUse = "search",
    components: int | None = None,
    reduction: str | ArrayLike = "random",
    pca_share: float = 0.1,
    center: str | ArrayLike = "none",
    center_share: float | None = None,
    codebook: PublicCodebook | None = None,
    k: int = 10,
    public_scores: QueryScores | None = None,
    require_recall: float | None = None,
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    changes: Literal["private", "public"] = "private",
    ids: Iterable[int | str] | None = None,
    rng: Rng = None,
    ledger: AccountLike | None = None,
    progress: Progress | None = None,
) -> IndexRelease | CodebookRelease:
    """Release private vectors that answer every later query, and all pairwise scores, at no further cost.

    The rows are read once before the charge, so that a row that is not finite costs nothing, and once more afterwards.
    Memory: the (n, r) float32 result and about 25 MB per thread; centroids are computed in memory.

    Args:
        embeddings: The private collection, (n, d), float32 or float64; a memory-mapped array of any real type is read
            block by block, and needs no memory for its rows.
        epsilon: The epsilon of the promise.
        delta: The delta of the promise. PrivUnit is pure (leave delta out) unless the reduction is "pca" or the center
            is "private". Gaussian noise, a private PCA and a private center need delta > 0.
        mechanism: ``"privunit"`` (optimal for unit vectors under pure privacy) or ``"gaussian"``.
        use: What sets the number of components where it is not given: ``"search"`` (queries are compared with records,
            and keeping all is best) or ``"pairs"`` (records are compared with each other; the best number follows from
            the budget, see `pair_components`). The promise does not depend on it.
        components: r, the number of dimensions to keep, at least 2; None leaves it to ``use``.
        reduction: ``"random"`` (a public random subspace, free), ``"pca"`` (the leading directions of a private
            covariance), or a public (r, d) matrix that does not depend on the collection; its rows are orthonormalised.
        pca_share: The share of the budget for the private covariance: of epsilon with PrivUnit, of mu^2 with
            Gaussian noise.
        center: What is subtracted from unit records: ``"none"``, ``"private"`` (their mean with Gaussian noise), or a
            public vector, such as the mean of a public corpus under the same model. Queries lose their component
            along it.
        center_share: The share of the budget for a private center: of epsilon with PrivUnit, of mu^2 with Gaussian
            noise. None takes 0.5 / epsilon, and at most a tenth.
        codebook: Public vectors of the same model. Each record is then released as a set of them. Leave out `delta`,
            `mechanism`, `use`, `components`, `reduction` and `center`. The number of vectors in a set is set by
            ``PublicCodebook(code_size=...)``.
        k: How many records a query will ask for. Predictions are made for it; any number can be asked for later.
        public_scores: Public scores of the same model, for predictions; None takes those that ship.
        require_recall: Raise an error, before anything is charged, unless the predicted recall at `k` is at least this.
        adjacency: ``Replacement()`` or ``Identity(labels)``. With ``centroids=True`` one vector per identity is
            released; without, the records of the largest identity share the budget.
        changes: ``"public"`` declares that the ids of the records and the times of their changes are public. The result
            is then an `IndexVersion`, whose `update` draws only new and changed rows; delta must be 0. With
            ``"private"`` a changed collection is a new release of all records.
        ids: The public ids of the records, for public changes: whole numbers or strings, which stay with the records.
        rng: None for the secure sampler; a seed or a numpy Generator for research mode, which repeats and is not
            private.
        ledger: ``ledger.account(name)`` of a `scoreshield.Ledger`, charged before any random bit is drawn.
        progress: Called with (rows done, rows in all), after the charge. An error that it raises ends the release,
            which stays charged.

    Returns:
        An `IndexRelease`; a `CodebookRelease` with a codebook; an `IndexVersion` or `CodebookVersion` with public
        changes.

    Warns:
        UselessRelease: A search by the index is predicted to rank mostly by noise. It is given before anything is
            charged, and neither for pairs nor in research mode.
    """
    prepare = partial(
        prepare_index,
        delta=delta,
        mechanism=mechanism,
        use=use,
        components=components,
        reduction=reduction,
        pca_share=pca_share,
        center=center,
        center_share=center_share,
        codebook=codebook,
        adjacency=adjacency,
    )
    pending: PendingRelease[_embeddings.Rows, Any] = prepare(embeddings, epsilon=epsilon, rng=rng, progress=progress)
    if require_recall is not None or (use == "search" and rng is None):
        rows = make_public_rows(*_embeddings.find_shape(embeddings))
        check_index_worth(
            pending.guarantee,
            rows.shape[1],
            k,
            public_scores,
            require_recall,
            codebook,
            lambda other: prepare(rows, epsilon=other, rng=0).guarantee,
        )
    if changes == "private":
        if ids is not None:
            _validation.reject("ids", "left out unless changes='public'", ids)
        released: IndexRelease | CodebookRelease = pending.release(ledger)
        return released
    from scoreshield.releases.versions import release_version  # which builds on this module

    return release_version(ids, pending, ledger)


def predict_index_worth(
    guarantee: Guarantee, dimension: int, k: int, public_scores: QueryScores | None, codebook: PublicCodebook | None
) -> Worth:
    """Predict the worth of an index from its guarantee, and from the public codebook where there is one."""
    predict = partial(predict_worth, guarantee, k=k, dimension=dimension, public_scores=public_scores)
    if codebook is None:
        return predict()
    details, note = guarantee.details, "; if the records are like the codewords"
    laws = codebook.describe_scores(details["code_size"], details["epsilon_per_record"])
    best = max(laws, key=lambda one: predict(law=one.law).recall) if len(laws) > 1 else laws[0]
    return predict(law=best.law, other_laws=best.ends, note=note)


def check_index_worth(
    guarantee: Guarantee,
    dimension: int,
    k: int,
    public_scores: QueryScores | None,
    require_recall: float | None,
    codebook: PublicCodebook | None,
    repeat: Callable[[float], Guarantee] | None = None,
    *,
    may_query: bool = True,
) -> Worth:
    """Predict the worth of an index before its charge, and warn where a search would rank by noise.

    ``repeat`` states the guarantee of the same index at another epsilon. ``may_query`` says whether a release per query
    may be suggested.
    """

    def predict(stated: Guarantee) -> Worth:
        return predict_index_worth(stated, dimension, k, public_scores, codebook)

    worth = predict(guarantee)
    adviser = Adviser(
        "index" if codebook is None else "codebook",
        guarantee.epsilon,
        dimension,
        public_scores,
        require_recall,
        is_automatic=guarantee.mechanism != "gaussian",
        is_grouped=isinstance(guarantee.adjacency, Identity) and guarantee.adjacency.largest > 1,
        may_query=may_query,
        repeat=None if repeat is None else lambda epsilon: predict(repeat(epsilon)),
    )
    adviser.check(worth, is_charged=guarantee.sampler != "research")
    return worth


@constrain(**INDEX_CHECKS)
def prepare_index(
    embeddings: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: IndexMechanism = "privunit",
    use: IndexUse = "search",
    components: int | None = None,
    reduction: str | ArrayLike = "random",
    pca_share: float = 0.1,
    center: str | ArrayLike = "none",
    center_share: float | None = None,
    codebook: PublicCodebook | None = None,
    adjacency: Adjacency = Replacement(),  # noqa: B008
    rng: Rng = None,
    progress: Progress | None = None,
) -> PendingRelease[_embeddings.Rows, Any]:
    """Prepare an index without a charge; the arguments are those of `release_index`."""
    source = PrivateCollection.check(convert_when_read(embeddings), adjacency)
    if codebook is not None:
        from scoreshield.releases.codebook import prepare_codebook_index  # which builds on this module

        check_index_source(source)
        given = (mechanism, use, components, reduction, center)
        is_plain = all(one is None or isinstance(one, str) for one in given)
        if not is_plain or given != ("privunit", "search", None, "random", "none") or center_share is not None:
            raise InvalidInput(
                "A codebook replaces the mechanism of an index: leave 'mechanism', 'use', 'components', 'reduction', "
                "'center' and 'center_share' out."
            )
        if delta:
            _validation.reject("delta", "0 (left out) for an index over a codebook, which is private without it", delta)
        return prepare_codebook_index(source, codebook, epsilon=epsilon, rng=rng, progress=progress)
    plan = plan_index(
        source,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        use=use,
        components=components,
        reduction=reduction,
        pca_share=pca_share,
        center=center,
        center_share=center_share,
    )
    maker, shape = plan.maker(), (source.size, plan.components)
    guarantee = plan.state_guarantee(maker, shape, name_sampler(rng))

    def check_rows() -> _embeddings.Rows:
        rows = source.rows()
        check_finite_windows(rows)
        return rows

    def draw(rows: _embeddings.Rows, stream: Stream) -> IndexRelease:
        projection, origin = plan.projection(rows, stream), plan.find_center(rows, stream)
        vectors = draw_vectors(maker, rows, projection, origin, stream, progress)
        return IndexRelease(guarantee, vectors, projection, origin)

    return PendingRelease(guarantee, source.adjacency, rng, check_rows, draw)


def plan_index(
    source: PrivateCollection,
    *,
    epsilon: float,
    delta: float,
    mechanism: IndexMechanism,
    use: IndexUse,
    components: int | None,
    reduction: str | ArrayLike,
    pca_share: float = 0.1,
    center: str | ArrayLike = "none",
    center_share: float | None = None,
) -> IndexPlan:
    """Plan an index of vectors from public facts; the arguments are those of `release_index`."""
    plan = IndexPlan.check(source, epsilon, delta, mechanism, components, reduction, pca_share, center, center_share)
    if use == "pairs" and components is None and isinstance(reduction, str):
        plan = replace(plan, components=_choose_pair_components(plan))
    return plan


def draw_vectors(
    maker: PrivUnit | GaussianRows,
    rows: _embeddings.Rows,
    projection: Float | None,
    center: Float | None,
    stream: Stream,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Draw the private vectors of some rows. Each depends on its own row, on public facts and on the stream.

    Args:
        maker: Makes unit rows private.
        rows: The records.
        projection: What reduces them; None for nothing.
        center: What is subtracted from the unit rows before; None for nothing.
        stream: The random words.
        progress: Called with (rows done, rows in all).
    """
    dimension = rows.shape[1]
    vectors = np.empty((len(rows), dimension if projection is None else len(projection)), dtype=np.float32)
    size = _choose_block_rows(dimension, stream)
    rooms: list[Float] = []  # one per thread, for unit rows

    def release_block(numbered: tuple[int, _embeddings.Rows], stream: Stream) -> None:
        start, part = numbered
        try:
            room = rooms.pop()
        except IndexError:
            room = np.empty((min(size, len(rows)), dimension))
        block = room[: len(part)]
        normalise_window(part, start, block)
        release_pages(part)
        block = subtract_center(block, center)
        if projection is not None:
            block = _embeddings.normalise_directions(block @ projection.T)
        maker.release(block, stream, vectors[start : start + len(part)])
        rooms.append(room)

    def report(done: int) -> None:
        if progress is not None:
            progress(min(done * size, len(rows)), len(rows))

    starts = range(0, len(rows), size)
    parts = ((start, rows[start : start + size]) for start in starts)
    draw_blocks(stream, parts, len(starts), release_block, report)
    return vectors


def reduce_queries(
    query: ArrayLike, dimension: int, projection: Float | None, center: Float | None
) -> tuple[NDArray[np.float32], bool]:
    """Turn queries into what private vectors are multiplied by; also return whether there is one query or a batch."""
    queries, single = _embeddings.as_queries(query, dimension)
    if center is not None:
        queries = _embeddings.turn_queries(queries, center)
    if projection is not None:
        queries = _embeddings.normalise_public_rows(queries @ projection.T, "query")
    return queries.astype(np.float32), single


def rank_windows(windows: Iterable[tuple[int, NDArray[np.float32]]], k: int, *, single: bool) -> BestRecords:
    """Find the k best records of each query, best first, from the scores of one window of records after the other.

    Args:
        windows: The number of the first record of each window, and the scores of every query with its records.
        k: How many records, at most all.
        single: Whether one query was given, and no batch.
    """
    scores, indices = np.empty((0, 0), dtype=np.float32), np.empty((0, 0), dtype=np.intp)
    for start, window in windows:
        fresh, numbers = window, np.broadcast_to(np.arange(start, start + window.shape[1]), window.shape)
        if start:
            fresh, numbers = np.hstack([scores, fresh]), np.hstack([indices, numbers])
        scores, indices = _select_best(fresh, numbers, k)
    order = np.argsort(-scores, axis=1, kind="stable")
    found = BestRecords(np.take_along_axis(scores, order, 1).astype(np.float64), np.take_along_axis(indices, order, 1))
    return BestRecords(found.scores[0], found.indices[0]) if single else found


def _choose_block_rows(dimension: int, stream: Stream) -> int:
    """Count the rows that are drawn together, from public sizes. It decides what a key or a seed draws."""
    return max(1, _BLOCK_ENTRIES // dimension) if has_blocks(stream) else count_block_rows(dimension)


def _choose_pair_components(plan: IndexPlan) -> int:
    """Choose the number of components that serves pairwise scores best, from the budget and the dimension."""
    if plan.mechanism == "gaussian":
        return choose_gaussian_components(plan.maker().std, plan.dimension)
    return pair_components(plan.per_record, plan.dimension)


def _select_best(scores: Any, indices: Any, k: int) -> tuple[Any, Any]:
    if scores.shape[1] <= k:
        return scores, indices
    chosen = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    return np.take_along_axis(scores, chosen, 1), np.take_along_axis(indices, chosen, 1)
