"""What an experiment works on: private embeddings beside the public truth that a release is judged by.

Every set is frozen, its arrays are read-only, and its parts are checked against each other when it is made. Embeddings
are None until they are made (``set.embedded(embedder)``) or given (``set.with_embeddings(array)``); they are float32
and kept as they are given: normalising is the business of a release.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate, whole_from
from scoreshield.bench.data import _fields
from scoreshield.bench.data._fields import Float, Float32, Items, Whole
from scoreshield.errors import InvalidInput


class Embeds(Protocol):
    """As much of an embedder (`scoreshield.bench.data.embedders`) as a set needs."""

    def embed(self, items: Items) -> Float32: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledSet:
    """Records of known classes, such as images.

    Attributes
    ----------
    name : what the set is called.
    labels : (n,) class numbers from 0.
    class_names : what the numbers stand for.
    items : what an embedder reads, one a record: paths, or a (n, height, width, 3) uint8 array.
    embeddings : (n, d) float32.
    """

    name: str
    labels: Whole
    class_names: tuple[str, ...]
    items: Items | None = None
    embeddings: Float32 | None = None

    @validate()
    def __post_init__(self) -> None:
        _fields.keep(self, "class_names", _fields.texts(self.class_names, "class_names"))
        _fields.keep(self, "labels", _fields.whole(self.labels, "labels", below=len(self.class_names)))
        _fields.keep(self, "items", _fields.items(self.items, len(self.labels)))
        _fields.keep(self, "embeddings", _fields.rows(self.embeddings, "embeddings", len(self.labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def with_embeddings(self, embeddings: ArrayLike) -> Self:
        """The same set with these embeddings."""
        return dataclasses.replace(self, embeddings=embeddings)  # type: ignore[arg-type]

    def embedded(self, embedder: Embeds) -> Self:
        """The same set with the embeddings that ``embedder`` makes of its items."""
        return self.with_embeddings(embedder.embed(_fields.needed(self.items, "items", self.name)))

    def take(self, records: ArrayLike) -> Self:
        """The set of these records only, by number."""
        chosen = _fields.whole(records, "records", below=len(self))
        items = self.items
        if items is not None:
            items = items[chosen] if isinstance(items, np.ndarray) else tuple(items[place] for place in chosen)
        rows = None if self.embeddings is None else self.embeddings[chosen]
        return dataclasses.replace(self, labels=self.labels[chosen], items=items, embeddings=rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class SentencePairs:
    """Pairs of sentences that people judged.

    Attributes
    ----------
    sentences : the distinct sentences, one a record.
    first, second : (m,) sentence numbers of each pair.
    human : (m,) how similar people found them, from 0 to 5.
    embeddings : (n, d) float32, one row a sentence.
    """

    name: str
    sentences: tuple[str, ...]
    first: Whole
    second: Whole
    human: Float
    embeddings: Float32 | None = None

    @validate()
    def __post_init__(self) -> None:
        _fields.keep(self, "sentences", _fields.texts(self.sentences, "sentences"))
        records = len(self.sentences)
        _fields.keep(self, "human", _fields.reals(self.human, "human"))
        _fields.keep(self, "first", _fields.whole(self.first, "first", below=records, length=len(self.human)))
        _fields.keep(self, "second", _fields.whole(self.second, "second", below=records, length=len(self.human)))
        _fields.keep(self, "embeddings", _fields.rows(self.embeddings, "embeddings", records))

    @property
    def pairs(self) -> Whole:
        """(m, 2) sentence numbers."""
        return np.column_stack([self.first, self.second])

    def with_embeddings(self, embeddings: ArrayLike) -> Self:
        """The same set with these embeddings of its sentences."""
        return dataclasses.replace(self, embeddings=embeddings)  # type: ignore[arg-type]

    def embedded(self, embedder: Embeds) -> Self:
        """The same set with the embeddings that ``embedder`` makes of its sentences."""
        return self.with_embeddings(embedder.embed(self.sentences))


@dataclass(frozen=True, eq=False, kw_only=True)
class RetrievalSet:
    """Queries, the documents they are searched in, and which documents answer which query.

    Attributes
    ----------
    documents, queries : the texts to embed.
    relevant : one array of document numbers a query; none may be empty.
    titles : the documents' titles, where they have any.
    answers : the right answer to each query, where the set is one of questions.
    document_embeddings, query_embeddings : float32, one row a document, one row a query.
    """

    name: str
    documents: tuple[str, ...]
    queries: tuple[str, ...]
    relevant: tuple[Whole, ...]
    titles: tuple[str, ...] | None = None
    answers: tuple[str, ...] | None = None
    document_embeddings: Float32 | None = None
    query_embeddings: Float32 | None = None

    @validate()
    def __post_init__(self) -> None:
        _fields.keep(self, "documents", _fields.texts(self.documents, "documents"))
        _fields.keep(self, "queries", _fields.texts(self.queries, "queries"))
        n, m = len(self.documents), len(self.queries)
        if not isinstance(self.relevant, list | tuple) or len(self.relevant) != m:
            _validation.reject("relevant", f"one array of document numbers for each of {m} queries", self.relevant)
        _fields.keep(self, "relevant", tuple(_fields.whole(part, "relevant", below=n) for part in self.relevant))
        if self.titles is not None:
            _fields.keep(self, "titles", _fields.texts(self.titles, "titles", n))
        if self.answers is not None:
            _fields.keep(self, "answers", _fields.texts(self.answers, "answers", m))
        documents = _fields.rows(self.document_embeddings, "document_embeddings", n)
        queries = _fields.rows(self.query_embeddings, "query_embeddings", m)
        if documents is not None and queries is not None and documents.shape[1] != queries.shape[1]:
            must = f"rows as long as those of the documents, {documents.shape[1]}"
            _validation.reject("query_embeddings", must, queries)
        _fields.keep(self, "document_embeddings", documents)
        _fields.keep(self, "query_embeddings", queries)

    @property
    def pairs(self) -> Whole:
        """(m, 2) numbers (query, document), query by query."""
        queries = np.repeat(np.arange(len(self.relevant)), [len(part) for part in self.relevant])
        return np.column_stack([queries, np.concatenate(self.relevant)])

    def with_embeddings(self, documents: ArrayLike, queries: ArrayLike) -> Self:
        """The same set with these embeddings."""
        return dataclasses.replace(self, document_embeddings=documents, query_embeddings=queries)  # type: ignore[arg-type]

    def embedded(self, embedder: Embeds) -> Self:
        """The same set with the embeddings that ``embedder`` makes of its documents and queries."""
        return self.with_embeddings(embedder.embed(self.documents), embedder.embed(self.queries))


@dataclass(frozen=True, eq=False, kw_only=True)
class Ratings:
    """Ratings of items by users, with the official folds.

    Attributes
    ----------
    users, items : (m,) numbers from 0, below ``user_count`` and ``item_count``.
    ratings : (m,) the ratings.
    fold : (m,) the fold in which a rating is tested, from 1.
    """

    name: str
    users: Whole
    items: Whole
    ratings: Float
    fold: Whole
    user_count: int
    item_count: int

    @validate()
    def __post_init__(self) -> None:
        user_count = _validation.check_count(self.user_count, "user_count")
        item_count = _validation.check_count(self.item_count, "item_count")
        _fields.keep(self, "ratings", _fields.reals(self.ratings, "ratings"))
        m = len(self.ratings)
        _fields.keep(self, "users", _fields.whole(self.users, "users", below=user_count, length=m))
        _fields.keep(self, "items", _fields.whole(self.items, "items", below=item_count, length=m))
        _fields.keep(self, "fold", _fields.whole(self.fold, "fold", length=m))

    def __len__(self) -> int:
        return len(self.ratings)

    @validate(fold=whole_from(0))
    def split(self, fold: int) -> tuple[Self, Self]:
        """The ratings to learn from and those to test on: all other folds, and this one."""
        tested = self.fold == fold
        if not tested.any() or tested.all():
            there = ", ".join(str(number) for number in np.unique(self.fold))
            raise InvalidInput(f"Fold {fold} of {self.name} cannot be split off: the folds are {there}.")
        return self._where(~tested), self._where(tested)

    def _where(self, mask: NDArray[np.bool_]) -> Self:
        parts: dict[str, Any] = {name: getattr(self, name)[mask] for name in ("users", "items", "ratings", "fold")}
        return dataclasses.replace(self, **parts)


@dataclass(frozen=True, eq=False, kw_only=True)
class FacePairs:
    """Pairs of faces, of the same person or not, in the folds of a verification protocol.

    Attributes
    ----------
    first, second : (m,) record numbers of each pair.
    same : (m,) whether both are of one person.
    fold : (m,) from 0.
    identity : (n,) whose face each record is, as a number.
    items : what an embedder reads, one a record: paths.
    embeddings : (n, d) float32.
    """

    name: str
    first: Whole
    second: Whole
    same: NDArray[np.bool_]
    fold: Whole
    identity: Whole
    items: Items | None = None
    embeddings: Float32 | None = None

    @validate()
    def __post_init__(self) -> None:
        _fields.keep(self, "identity", _fields.whole(self.identity, "identity"))
        records = len(self.identity)
        _fields.keep(self, "first", _fields.whole(self.first, "first", below=records))
        m = len(self.first)
        _fields.keep(self, "second", _fields.whole(self.second, "second", below=records, length=m))
        _fields.keep(self, "fold", _fields.whole(self.fold, "fold", length=m))
        same = _validation.check_array(self.same, "same", "an array of truth values")
        if same.dtype != np.bool_ or same.shape != (m,):
            _validation.reject("same", f"{m} truth values, one a pair", self.same)
        if not np.array_equal(same, self.identity[self.first] == self.identity[self.second]):
            raise InvalidInput(f"The parts of {self.name} disagree: 'same' is not what the identities of a pair say.")
        _fields.keep(self, "same", _fields.frozen(same))
        _fields.keep(self, "items", _fields.items(self.items, records))
        _fields.keep(self, "embeddings", _fields.rows(self.embeddings, "embeddings", records))

    @property
    def pairs(self) -> Whole:
        """(m, 2) record numbers."""
        return np.column_stack([self.first, self.second])

    def with_embeddings(self, embeddings: ArrayLike) -> Self:
        """The same set with these embeddings."""
        return dataclasses.replace(self, embeddings=embeddings)  # type: ignore[arg-type]

    def embedded(self, embedder: Embeds) -> Self:
        """The same set with the embeddings that ``embedder`` makes of its items."""
        return self.with_embeddings(embedder.embed(_fields.needed(self.items, "items", self.name)))


@dataclass(frozen=True, eq=False, kw_only=True)
class ScorePairs:
    """Scores of genuine and impostor pairs, with the folds of the protocol.

    Attributes
    ----------
    genuine, impostor : the scores.
    genuine_fold, impostor_fold : the fold of each score, from 0.
    """

    name: str
    genuine: Float
    impostor: Float
    genuine_fold: Whole
    impostor_fold: Whole

    @validate()
    def __post_init__(self) -> None:
        for side in ("genuine", "impostor"):
            _fields.keep(self, side, _fields.reals(getattr(self, side), side))
            fold = _fields.whole(getattr(self, f"{side}_fold"), f"{side}_fold", length=len(getattr(self, side)))
            _fields.keep(self, f"{side}_fold", fold)

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


@validate()
def grouped(pairs: ArrayLike, queries: int) -> tuple[Whole, ...]:
    """Pairs (query, document) as one sorted array of document numbers a query, each document once."""
    table = _validation.check_array(pairs, "pairs", "pairs (query, document) of whole numbers")
    if table.ndim != 2 or table.shape[1:] != (2,) or table.dtype.kind not in "iu":
        _validation.reject("pairs", "pairs (query, document) of whole numbers", pairs)
    if len(table) and not (table[:, 0].min() >= 0 and table[:, 0].max() < queries):
        _validation.reject("pairs", f"pairs whose queries lie in 0..{queries - 1}", pairs)
    unique = np.unique(table.astype(np.int64), axis=0)
    return tuple(np.split(unique[:, 1], np.searchsorted(unique[:, 0], np.arange(1, queries))))
