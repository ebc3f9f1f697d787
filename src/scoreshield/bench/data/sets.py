"""Data sets of experiments: private embeddings, and the public truth that a release is compared with.

Every set is frozen, its arrays are read-only, and its fields are checked against each other when it is made. Embeddings
are None until they are made (``set.embed(embedder)``) or given (``set.with_embeddings(array)``); they are float32 and
kept as they are given, since a release normalises them.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator

from scoreshield._validation import check_array, reject, validate, whole_from
from scoreshield.bench.data._fields import (
    DataSet,
    Float,
    Float32,
    Items,
    Whole,
    check_indices,
    embedder_items,
    flags,
    index_lists,
    indices,
    matrix,
    reals,
    texts,
    total,
)
from scoreshield.errors import InvalidInput


class ItemEmbedder(Protocol):
    """The part of an embedder (`scoreshield.bench.data.embedders`) that a set needs."""

    def embed(self, items: Items) -> Float32: ...


class _RecordSet(DataSet):
    """A set with one embedding per record."""

    def with_embeddings(self, embeddings: ArrayLike) -> Self:
        """Make the same set with these embeddings, one row per record."""
        return self.replace(embeddings=embeddings)

    def embed(self, embedder: ItemEmbedder) -> Self:
        """Make the same set with the embeddings that ``embedder`` makes of its records."""
        return self.with_embeddings(embedder.embed(self._embedder_items()))

    def _embedder_items(self) -> Items:
        items: Items | None = getattr(self, "items", None)
        if items is None:
            raise InvalidInput(
                f"The set {self.name} holds no items to embed, only embeddings; load it from the official files."
            )
        return items


class LabelledSet(_RecordSet):
    """Records of known classes, such as images.

    Attributes:
        name: The name of the set.
        class_names: The name of each class number.
        labels: (n,) class numbers from 0.
        items: What an embedder reads, one per record: paths, or an (n, height, width, 3) uint8 array.
        embeddings: (n, d) float32.
    """

    class_names: Annotated[tuple[str, ...], texts()]
    labels: Annotated[Whole, indices(below="class_names")]
    items: Annotated[Items | None, embedder_items(length="labels")] = None
    embeddings: Annotated[Float32 | None, matrix(rows="labels")] = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, records: ArrayLike) -> Self:
        """Make the set of these records only, by number."""
        chosen = check_indices(records, "records", below=len(self))
        items = self.items
        if items is not None:
            items = items[chosen] if isinstance(items, np.ndarray) else tuple(items[place] for place in chosen)
        rows = None if self.embeddings is None else self.embeddings[chosen]
        return self.replace(labels=self.labels[chosen], items=items, embeddings=rows)


class SentencePairs(_RecordSet):
    """Pairs of sentences whose similarity people rated.

    Attributes:
        name: The name of the set.
        sentences: The distinct sentences, one per record.
        human: (m,) how similar people found the two sentences of a pair, from 0 to 5.
        first: (m,) the number of the first sentence of each pair.
        second: (m,) the number of the second.
        embeddings: (n, d) float32, one row per sentence.
    """

    sentences: Annotated[tuple[str, ...], texts()]
    human: Annotated[Float, reals()]
    first: Annotated[Whole, indices(below="sentences", length="human")]
    second: Annotated[Whole, indices(below="sentences", length="human")]
    embeddings: Annotated[Float32 | None, matrix(rows="sentences")] = None

    @property
    def pairs(self) -> Whole:
        """(m, 2) sentence numbers."""
        return np.column_stack([self.first, self.second])

    def _embedder_items(self) -> Items:
        return self.sentences


class RetrievalSet(DataSet):
    """Queries, the documents that are searched, and which documents are relevant to which query.

    Attributes:
        name: The name of the set.
        documents: The texts of the documents.
        queries: The texts of the queries.
        relevant: One array of document numbers per query; none may be empty.
        titles: The documents' titles, where they have any.
        answers: The right answer to each query, where the queries are questions.
        document_embeddings: float32, one row per document.
        query_embeddings: float32, one row per query.
    """

    documents: Annotated[tuple[str, ...], texts()]
    queries: Annotated[tuple[str, ...], texts()]
    relevant: Annotated[tuple[Whole, ...], index_lists(below="documents", length="queries")]
    titles: Annotated[tuple[str, ...] | None, texts(length="documents")] = None
    answers: Annotated[tuple[str, ...] | None, texts(length="queries")] = None
    document_embeddings: Annotated[Float32 | None, matrix(rows="documents")] = None
    query_embeddings: Annotated[Float32 | None, matrix(rows="queries", width="document_embeddings")] = None

    @property
    def pairs(self) -> Whole:
        """(m, 2) numbers (query, document), query by query."""
        queries = np.repeat(np.arange(len(self.relevant)), [len(part) for part in self.relevant])
        return np.column_stack([queries, np.concatenate(self.relevant)])

    def with_embeddings(self, documents: ArrayLike, queries: ArrayLike) -> Self:
        """Make the same set with these embeddings."""
        return self.replace(document_embeddings=documents, query_embeddings=queries)

    def embed(self, embedder: ItemEmbedder) -> Self:
        """Make the same set with the embeddings that ``embedder`` makes of its documents and queries."""
        return self.with_embeddings(embedder.embed(self.documents), embedder.embed(self.queries))


class Ratings(DataSet):
    """Ratings of items by users, with the official folds.

    Attributes:
        name: The name of the set.
        user_count: How many users there are, with or without ratings.
        item_count: How many items there are.
        ratings: (m,) the ratings.
        users: (m,) the user of each rating, from 0.
        items: (m,) the item of each rating, from 0.
        fold: (m,) the fold in which a rating is tested, from 1.
    """

    user_count: Annotated[int, total()]
    item_count: Annotated[int, total()]
    ratings: Annotated[Float, reals()]
    users: Annotated[Whole, indices(below="user_count", length="ratings")]
    items: Annotated[Whole, indices(below="item_count", length="ratings")]
    fold: Annotated[Whole, indices(length="ratings")]

    def __len__(self) -> int:
        return len(self.ratings)

    @validate(fold=whole_from(0))
    def split(self, fold: int) -> tuple[Self, Self]:
        """Split into the ratings to learn from and those to test on: all other folds, and this one."""
        is_tested = self.fold == fold
        if not is_tested.any() or is_tested.all():
            there = ", ".join(str(number) for number in np.unique(self.fold))
            raise InvalidInput(f"Fold {fold} of {self.name} cannot be split off: the folds are {there}.")
        return self._select(~is_tested), self._select(is_tested)

    def _select(self, mask: NDArray[np.bool_]) -> Self:
        parts: dict[str, Any] = {name: getattr(self, name)[mask] for name in ("users", "items", "ratings", "fold")}
        return self.replace(**parts)


class FacePairs(_RecordSet):
    """Pairs of faces, of the same person or not, in the folds of a verification protocol.

    Attributes:
        name: The name of the set.
        identity: (n,) the person of each record, as a number.
        first: (m,) the first record of each pair.
        second: (m,) the second.
        same: (m,) whether both are of one person.
        fold: (m,) from 0.
        items: What an embedder reads, one per record: paths.
        embeddings: (n, d) float32.
    """

    identity: Annotated[Whole, indices()]
    first: Annotated[Whole, indices(below="identity")]
    second: Annotated[Whole, indices(below="identity", length="first")]
    same: Annotated[NDArray[np.bool_], flags(length="first")]
    fold: Annotated[Whole, indices(length="first")]
    items: Annotated[Items | None, embedder_items(length="identity")] = None
    embeddings: Annotated[Float32 | None, matrix(rows="identity")] = None

    @model_validator(mode="after")
    def _check_same(self) -> Self:
        if not np.array_equal(self.same, self.identity[self.first] == self.identity[self.second]):
            raise InvalidInput(f"The parts of {self.name} disagree: 'same' is not what the identities of a pair say.")
        return self

    @property
    def pairs(self) -> Whole:
        """(m, 2) record numbers."""
        return np.column_stack([self.first, self.second])


class ScorePairs(DataSet):
    """Scores of genuine and impostor pairs, with the folds of the protocol.

    Attributes:
        name: The name of the set.
        genuine: The scores of genuine pairs.
        impostor: The scores of impostor pairs.
        genuine_fold: The fold of each genuine score, from 0.
        impostor_fold: The fold of each impostor score, from 0.
    """

    genuine: Annotated[Float, reals()]
    impostor: Annotated[Float, reals()]
    genuine_fold: Annotated[Whole, indices(length="genuine")]
    impostor_fold: Annotated[Whole, indices(length="impostor")]

    @property
    def scores(self) -> Float:
        """All scores, the genuine ones first."""
        return np.concatenate([self.genuine, self.impostor])

    @property
    def same(self) -> NDArray[np.bool_]:
        """Whether each of ``scores`` is of one person."""
        return np.arange(len(self.genuine) + len(self.impostor)) < len(self.genuine)

    @property
    def fold(self) -> Whole:
        """The fold of each of ``scores``."""
        return np.concatenate([self.genuine_fold, self.impostor_fold])


def group_by_query(pairs: ArrayLike, queries: int) -> tuple[Whole, ...]:
    """Turn pairs (query, document) into one sorted array of document numbers per query, each document once."""
    must = "pairs (query, document) of whole numbers"
    table = check_array(pairs, "pairs", must)
    if table.ndim != 2 or table.shape[1:] != (2,) or table.dtype.kind not in "iu":
        reject("pairs", must, pairs)
    if len(table) and not (table[:, 0].min() >= 0 and table[:, 0].max() < queries):
        reject("pairs", f"pairs whose queries lie in 0..{queries - 1}", pairs)
    unique = np.unique(table.astype(np.int64), axis=0)
    return tuple(np.split(unique[:, 1], np.searchsorted(unique[:, 0], np.arange(1, queries))))
