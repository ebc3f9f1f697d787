"""Whole distributed releases of one kind each, with what can be asked of them. They read one part at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._validation import check_count, check_flag, validate, whole_from
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import Worth, check_public_scores
from scoreshield.distributed.parts import decode_matrix, read_part
from scoreshield.distributed.results import DistributedRelease
from scoreshield.distributed.storage import ReleaseFolder
from scoreshield.errors import InvalidInput
from scoreshield.geometry.elliptope import check_memory
from scoreshield.privacy.response import Symbols
from scoreshield.releases.batch import (
    BatchRelease,
    SymbolRanking,
    check_asked,
    predict_batch_worth,
    stack_answers,
)
from scoreshield.releases.gram import GramEstimator
from scoreshield.releases.index import (
    SEARCH_ROWS,
    BestRecords,
    IndexRelease,
    predict_index_worth,
    rank_windows,
    reduce_queries,
)
from scoreshield.releases.results import GramRelease, HistogramRelease


class DistributedIndex(DistributedRelease):
    """A private index in parts. It answers any number of queries, and each answer reads all parts once.

    Attributes:
        projection: (r, d) with orthonormal rows, which reduce records and queries; None without a reduction.
        center: (d,), the public vector that was subtracted from the unit records; None for nothing.
    """

    def __init__(self, folder: ReleaseFolder) -> None:
        super().__init__(folder)
        self.projection = decode_matrix(self.manifest.options["projection"])
        self.center = decode_matrix(self.manifest.options["center"])

    @property
    def dimension(self) -> int:
        """The dimension of the queries."""
        return self.manifest.source.dimension

    @validate(k=check_count)
    def search(self, query: ArrayLike, k: int) -> BestRecords:
        """Return the `k` best records of one query, (k,), or of each query of a batch, (m, k), best first.

        The answer is that of `IndexRelease.search` for the same vectors. Memory: one part.
        """
        queries, single = reduce_queries(query, self.dimension, self.projection, self.center)
        return rank_windows(self._score_windows(queries), min(k, self.guarantee.shape[0]), single=single)

    @validate(k=check_count, public_scores=check_public_scores)
    def worth(self, k: int = 10, *, public_scores: QueryScores | None = None) -> Worth:
        """Predict what `search` finds of the relevant records of a query, as `IndexRelease.worth` does."""
        return predict_index_worth(self.guarantee, self.dimension, k, public_scores, None)

    def to_index(self) -> IndexRelease:
        """Read all vectors into memory."""
        vectors, done = np.empty(self.guarantee.shape, dtype=np.float32), 0
        for columns in self.parts():
            part = columns["vector"]
            vectors[done : done + len(part)] = part
            done += len(part)
        return IndexRelease(self.guarantee, vectors, self.projection, self.center)

    def _score_windows(self, queries: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for columns in self.parts():
            first, vectors = int(columns["row"][0]), columns["vector"]
            for start in range(0, len(vectors), SEARCH_ROWS):
                yield first + start, queries @ vectors[start : start + SEARCH_ROWS].T


class DistributedBatch(DistributedRelease):
    """The queries of a batch that each record names, in parts."""

    @property
    def queries(self) -> NDArray[np.float32]:
        """The public queries, (m, d), each of length one."""
        return self.manifest.queries.astype(np.float32)

    @validate(k=check_count, only_named=check_flag)
    def search(self, query: ArrayLike, k: int, *, only_named: bool = False) -> BestRecords:
        """Return the `k` best records of one query of the batch, or of several, best first.

        The answer is that of `BatchRelease.search` for the same names and levels. All queries are answered in one pass
        over the parts. Memory: one part.
        """
        queries, cuts = self.queries, np.array(self.guarantee.details["cuts"])
        asked = check_asked(query, len(queries))
        tie_break = self._final["tie_break"]
        rankings = [
            SymbolRanking(queries, cuts, tie_break, number, k, only_named=only_named)
            for number in asked.reshape(-1).tolist()
        ]
        for columns in self.parts():
            for ranking in rankings:
                ranking.add(Symbols(columns["names"], columns["levels"]))
        found = [ranking.finish() for ranking in rankings]
        return found[0] if asked.ndim == 0 else stack_answers(found)

    @validate(k=check_count, public_scores=check_public_scores)
    def worth(self, k: int = 10, *, public_scores: QueryScores | None = None) -> Worth:
        """Predict what `search` finds of the relevant records of a query, as `BatchRelease.worth` does."""
        return predict_batch_worth(self.guarantee, self.manifest.source.dimension, k, public_scores)

    def to_batch(self) -> BatchRelease:
        """Read all names and levels into memory."""
        columns = self.read()
        return BatchRelease(self.guarantee, self.queries, columns["names"], columns["levels"], self._final["tie_break"])


class DistributedHistogram(DistributedRelease):
    """Private counts of scores in public bins. The parts hold encrypted counts, whose key was destroyed."""

    def to_histogram(self) -> HistogramRelease:
        """Return the histogram, with its curve of rates and its thresholds."""
        edges = decode_matrix(self.manifest.options["edges"])
        assert edges is not None  # `release_histogram` writes them
        try:
            counts = np.array(self._final["counts"], dtype=np.int64)
        except (KeyError, OverflowError, TypeError, ValueError):
            raise InvalidInput("The last file of the release holds no counts.") from None
        release = HistogramRelease(guarantee=self.guarantee, counts=counts, edges=edges)
        if not release.is_intact():
            raise InvalidInput("The counts of the release do not fit its promise.")
        return release


class DistributedGram(DistributedRelease):
    """A noisy Gram matrix in square blocks, each pair of records once. The diagonal is the public 1."""

    @property
    def side(self) -> int:
        """How many records a block has in each direction."""
        return int(self.manifest.options["side"])

    @validate(i=whole_from(0), j=whole_from(0))
    def block(self, i: int, j: int) -> NDArray[np.float64]:
        """Read the noisy scores of the records of tile i with those of tile j; a tile has `side` records.

        Raises:
            InvalidInput: There is no such tile.
        """
        records = self.manifest.source.rows
        if max(i, j) * self.side >= records:
            raise InvalidInput(f"The release has {-(-records // self.side):,} tiles; ask for a number below that.")
        first, second = min(i, j), max(i, j)
        columns = read_part(self._read_file(self.manifest.find_part(first, second)))
        values = columns["steps"] * self.guarantee.grid if "steps" in columns else columns["value"]
        heights = [min(self.side, records - tile * self.side) for tile in (first, second)]
        if first < second:
            matrix = values.reshape(heights)
            return matrix if i == first else np.ascontiguousarray(matrix.T)
        whole = np.eye(heights[0])
        above = np.triu_indices(heights[0], 1)
        whole[above] = values
        whole.T[above] = values
        return whole

    @validate(record=whole_from(0))
    def row(self, record: int) -> NDArray[np.float64]:
        """Read the noisy scores of one record with all records, (n,). It reads one part at a time."""
        records = self.manifest.source.rows
        if record >= records:
            raise InvalidInput(f"The release has {records:,} records, numbered from 0.")
        tile, place = divmod(record, self.side)
        return np.concatenate([self.block(tile, other)[place] for other in range(-(-records // self.side))])

    @validate(project=check_flag)
    def to_gram(self, *, project: bool = True) -> GramRelease:
        """Read the whole matrix into memory, and project it onto the valid cosine matrices.

        Args:
            project: Whether ``.gram`` is the nearest valid cosine matrix, as by `scoreshield.release_gram`, or noisy.

        Raises:
            InvalidInput: It does not fit into this machine's free memory.
        """
        records = self.manifest.source.rows
        estimator = GramEstimator("exact" if project else "none", "projection", self.manifest.source.dimension)
        check_memory(records, "auto" if project else "none", "cpu")
        noisy = np.empty((records, records))
        for part in range(len(self)):
            i, j = self.manifest.find_tiles(part)
            block = self.block(i, j)
            down, across = (slice(tile * self.side, (tile + 1) * self.side) for tile in (i, j))
            noisy[down, across] = block
            noisy[across, down] = block.T
        return estimator.make_release(noisy, self.guarantee)


#: The class of each kind of release that has one of its own.
READERS: dict[str, type[DistributedRelease]] = {
    "index": DistributedIndex,
    "batch": DistributedBatch,
    "histogram": DistributedHistogram,
    "gram": DistributedGram,
}
