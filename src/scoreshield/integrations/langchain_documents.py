"""What the LangChain adapter reads: the documents of a vector store by id, filters on them, and all its vectors.

Vectors go into a release and nowhere else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations.core import RecordSource, choose_look_interval
from scoreshield.integrations.fields import PublicFields, scrub_metadata
from scoreshield.stores.protocol import Convention, Records, Store, StoreScores

#: From ids to what is there: Documents, or objects that have their ``page_content`` and ``metadata``.
FetchDocuments = Callable[[Sequence[Any]], Mapping[Any, Any]]
_VECTOR = operator.itemgetter("vector")
#: The fewest entries of a store in memory whose vectors are compared at each look.
_SAMPLE = 1024


# ---- Documents by id.


class TextRecord(NamedTuple):
    """A document without scores and vectors. The text is None where the record has none."""

    page_content: Any
    metadata: dict[str, Any]


class DocumentSource(RecordSource[TextRecord]):
    """Reads documents through a function from ids to documents."""

    def __init__(self, fetch: FetchDocuments) -> None:
        self._fetch = fetch

    @classmethod
    def from_documents(cls, documents: Any) -> DocumentSource:
        """Read from a mapping of ids, or through a function like ``VectorStore.get_by_ids``."""
        if isinstance(documents, Mapping):
            return cls(lambda ids: {one: documents[one] for one in ids if one in documents})
        if not callable(documents):
            must = "a mapping of ids or a function like get_by_ids"
            _validation.reject("documents", must, documents)

        def fetch(ids: Sequence[Any]) -> dict[Any, Document]:
            # LangChain's ids are strings. Those of the store may be numbers.
            ids_by_name = {str(one): one for one in ids}
            fetched = documents(list(ids))
            return {ids_by_name[document.id]: document for document in fetched if document.id in ids_by_name}

        return cls(fetch)

    def fetch(self, ids: Sequence[Any]) -> dict[Any, TextRecord]:
        fetched = self._fetch(ids)
        documents = ((one, fetched[one]) for one in ids if one in fetched)
        return {
            one: TextRecord(document.page_content, scrub_metadata(document.metadata)) for one, document in documents
        }

    def get_metadata(self, record: TextRecord) -> dict[str, Any]:
        return record.metadata

    def has_text(self, record: TextRecord) -> bool:
        return isinstance(record.page_content, str)

    def describe_failure(self, error: Exception) -> str:
        return f"The documents could not be read ({type(error).__name__})."

    def describe_mismatch(self, ids: Sequence[Any], *, has_records: bool) -> str:
        if has_records:
            return f"None of the {len(ids):,} records has a text: a retriever answers with documents."
        return (
            f"None of the {len(ids):,} records has the id of a document (the first is {ids[0]!r}): documents need the "
            "ids that the store, or the saved index, has; without any, LangChain draws new ones each time."
        )


# ---- Filters.


class DocumentView:
    """A document as a filter function sees it: its id, and the fields that are filterable."""

    def __init__(self, one: Any, record: TextRecord, fields: PublicFields) -> None:
        self.id = str(one)
        self.metadata: Mapping[str, Any] = _MetadataView(record.metadata, fields)
        self._record, self._fields = record, fields

    @property
    def page_content(self) -> str:
        self._fields.require(["page_content"])
        return str(self._record.page_content)


class _MetadataView(Mapping[str, Any]):
    def __init__(self, metadata: Mapping[str, Any], fields: PublicFields) -> None:
        self._metadata, self._fields = metadata, fields

    def __getitem__(self, key: str) -> Any:
        self._fields.require([key])
        return self._metadata[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._metadata if key in self._fields.filterable)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DocumentFilter:
    """A test of documents. It may be a function, so it has no key."""

    key = None

    def __init__(self, test: Callable[[Any, TextRecord], bool]) -> None:
        self._test = test

    def allows(self, one: Any, record: TextRecord) -> bool:
        return self._test(one, record)


def build_filter(condition: Any, fields: PublicFields) -> DocumentFilter | None:
    """Build a filter from a function of a Document, or from metadata that must be equal.

    Raises:
        InvalidInput: If the filter names a field that is not filterable.
    """
    if condition is None:
        return None
    if not isinstance(condition, Mapping):
        if not callable(condition):
            _validation.reject("filter", "a function of a Document, or metadata that must be equal", condition)
        if not fields.filterable:
            raise InvalidInput(
                "A filter function needs 'filterable', the list of the fields that it looks at, because a filter "
                "reveals them of every record exactly."
            )
        return DocumentFilter(lambda one, record: bool(condition(DocumentView(one, record, fields))))
    if any(str(key).startswith("$") or isinstance(value, Mapping) for key, value in condition.items()):
        raise InvalidInput(
            "A filter with operators is written in the language of one store: give a function of a Document instead."
        )
    fields.require(map(str, condition))
    return DocumentFilter(lambda _, record: all(record.metadata.get(key) == value for key, value in condition.items()))


# ---- Vector stores.


class StoreAdapter(NamedTuple):
    """A vector store as a private search needs it."""

    store: Store
    source: DocumentSource


def adapt_vectorstore(vectorstore: VectorStore, store: Store | None = None, *, holds: bool = False) -> StoreAdapter:
    """Find the vectors and documents of a LangChain vector store.

    Args:
        vectorstore: The vector store.
        store: A store of `scoreshield.stores` that has the vectors. The documents then come from the vector
            store's ``get_by_ids``.
        holds: As in `InMemoryStore`.
    """
    if store is not None:
        return StoreAdapter(store, DocumentSource.from_documents(vectorstore.get_by_ids))
    if isinstance(vectorstore, InMemoryVectorStore):
        return StoreAdapter(InMemoryStore(vectorstore, holds=holds), _read_memory(vectorstore))
    # By name, so that none of these packages is imported for the others.
    for cls in type(vectorstore).__mro__:
        adapt = _ADAPTERS.get((cls.__module__.split(".")[0], cls.__name__))
        if adapt is not None:
            return adapt(vectorstore)
    raise InvalidInput(
        f"There is no adapter for a {type(vectorstore).__name__}: say where its vectors are with 'store', one of "
        "scoreshield.stores or your own, whose ids are those of its documents."
    )


class InMemoryStore:
    """The vectors of LangChain's store in memory.

    Documents that were added, replaced or deleted are seen. Entries that were changed by hand may not be seen. With
    ``holds``, another vector in an old entry is seen in at least 1,024 of the entries, and numbers that were changed
    within a vector are not seen. Without, a vector is known by its address, its first number and its last number. Call
    `mark_changed` after such a change.

    Args:
        vectorstore: The store.
        holds: Whether to hold the entries between two looks. A look is then fifty times faster, and entries that were
            deleted are freed at the next look. For modes that look at every query.
    """

    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, vectorstore: InMemoryVectorStore, *, holds: bool = False) -> None:
        self.name = "The InMemoryVectorStore"
        self._vectorstore, self._holds = vectorstore, holds
        self._snapshot: _EntrySnapshot | None = None
        self._changes = 0

    @property
    def dimension(self) -> int:
        for entry in self._vectorstore.store.values():
            return len(entry["vector"])
        raise StoreError(f"{self.name} holds no records.")

    @property
    def look_every(self) -> float:
        return choose_look_interval(len(self._vectorstore.store))

    def state(self) -> Hashable:
        store = self._vectorstore.store
        if self._holds:
            if self._snapshot is None or not self._snapshot.matches(store):
                self.mark_changed()
                self._snapshot = _EntrySnapshot.take(store)
            return self._changes
        entries = dict(store)
        # An address alone may be that of an entry that was deleted. So numbers of the vectors are compared too.
        ends = tuple((id(entry), entry["vector"][0], entry["vector"][-1]) for entry in entries.values())
        return self._changes, hash((tuple(entries), ends))

    def mark_changed(self) -> None:
        """Report that entries were changed by hand."""
        self._changes += 1
        self._snapshot = None

    def ids(self) -> Sequence[Any]:
        return list(self._vectorstore.store)

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        ranking = self._vectorstore.similarity_search_with_score_by_vector(
            query.tolist(), k=max(1, len(self._vectorstore.store))
        )
        # They come best first, and leave in the order of the records.
        scores = {document.id: score for document, score in ranking}
        ids = [one for one in self._vectorstore.store if one in scores]
        return StoreScores(ids, np.array([scores[one] for one in ids], dtype=np.float32))

    def records(self) -> Records:
        entries = dict(self._vectorstore.store)
        if len({len(entry["vector"]) for entry in entries.values()}) > 1:
            raise StoreError(f"{self.name} mixes vectors of different lengths.")
        return Records(list(entries), np.array([entry["vector"] for entry in entries.values()], dtype=np.float32))


class _EntrySnapshot(NamedTuple):
    """The entries of a store in memory at one time. An entry holds its id, and LangChain makes a new one per write."""

    store: dict[str, Any]
    entries: list[Any]
    last: Any
    sample: list[Any]
    vectors: list[Any]

    @classmethod
    def take(cls, store: dict[str, Any]) -> _EntrySnapshot:
        entries = list(store.values())
        sample = entries[:: max(1, len(entries) // _SAMPLE)]
        return cls(store, entries, next(reversed(store), None), sample, list(map(_VECTOR, sample)))

    def matches(self, store: dict[str, Any]) -> bool:
        """Compare without reading every entry, which would take as long as the release."""
        return (
            store is self.store
            and len(store) == len(self.entries)
            and next(reversed(store), None) == self.last
            and all(map(operator.is_, store.values(), self.entries))
            and all(map(operator.is_, map(_VECTOR, self.sample), self.vectors))
        )


def _read_memory(vectorstore: InMemoryVectorStore) -> DocumentSource:
    """Read the entries as they are, since making Documents of them would take most of a filter's time."""
    if type(vectorstore).get_by_ids is not InMemoryVectorStore.get_by_ids:
        return DocumentSource.from_documents(vectorstore.get_by_ids)  # a subclass may read other documents

    def fetch(ids: Sequence[Any]) -> dict[Any, TextRecord]:
        entries = ((one, vectorstore.store.get(one)) for one in ids)
        return {one: TextRecord(entry["text"], entry["metadata"]) for one, entry in entries if entry}

    return DocumentSource(fetch)


class _NamedIndex(NamedTuple):
    """A FAISS index under the ids that its records had at one time."""

    index: Any
    places: list[int]
    ids: list[Any]
    store: Store
    state: Hashable

    def matches(self, index: Any, ids: Mapping[int, Any]) -> bool:
        is_same = index is self.index and list(ids) == self.places and list(ids.values()) == self.ids
        return is_same and self.store.state() == self.state


class _FaissVectors:
    """The index of a LangChain FAISS store, under the ids that its documents have now."""

    def __init__(self, vectorstore: Any) -> None:
        self._vectorstore, self._changes = vectorstore, 0
        self._named: _NamedIndex | None = None
        store = self._get_store()
        self.name, self.convention, self.zero_copy = store.name, store.convention, store.zero_copy

    def _get_store(self) -> Store:
        """Return the store, or make another one where the index, its records or their ids changed."""
        index, ids, known = self._vectorstore.index, self._vectorstore.index_to_docstore_id, self._named
        if known is not None and known.matches(index, ids):
            return known.store
        from scoreshield.stores.faiss import FaissStore

        ids = dict(ids)
        store = FaissStore(index, ids=[ids.get(place) for place in range(len(ids))])
        self._changes += 1
        self._named = _NamedIndex(index, list(ids), list(ids.values()), store, store.state())
        return store

    @property
    def dimension(self) -> int:
        return int(self._vectorstore.index.d)

    def state(self) -> Hashable:
        self._get_store()
        return self._changes

    def mark_changed(self) -> None:
        """Report that documents were added or deleted through the private store."""
        self._named = None

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        return self._get_store().scores(query)

    def records(self) -> Records | None:
        return self._get_store().records()


def _adapt_faiss(vectorstore: Any) -> StoreAdapter:
    def fetch(ids: Sequence[Any]) -> dict[Any, Document]:
        answers = {one: vectorstore.docstore.search(one) for one in ids}
        # For an id that is not there, the docstore returns a sentence.
        return {one: document for one, document in answers.items() if isinstance(document, Document)}

    return StoreAdapter(_FaissVectors(vectorstore), DocumentSource(fetch))


def _adapt_chroma(vectorstore: Any) -> StoreAdapter:
    from scoreshield.stores.chroma import ChromaStore

    collection = vectorstore._collection

    def fetch(ids: Sequence[Any]) -> dict[Any, TextRecord]:
        # Not by get_by_ids, which raises an error where a record has no metadata.
        columns = collection.get(ids=list(ids), include=["documents", "metadatas"])
        texts, metadatas = (columns[part] or [None] * len(columns["ids"]) for part in ("documents", "metadatas"))
        return {one: TextRecord(*rest) for one, *rest in zip(columns["ids"], texts, metadatas, strict=True)}

    return StoreAdapter(ChromaStore(collection), DocumentSource(fetch))


def _adapt_qdrant(vectorstore: Any) -> StoreAdapter:
    from scoreshield.stores.qdrant import QdrantStore

    if str(getattr(vectorstore.retrieval_mode, "value", vectorstore.retrieval_mode)) != "dense":
        raise InvalidInput(
            "Only a QdrantVectorStore with retrieval_mode='dense' can be made private: sparse scores are no cosines of "
            f"vectors. Got {vectorstore.retrieval_mode!r} instead."
        )

    def fetch(ids: Sequence[Any]) -> dict[Any, TextRecord]:
        # Not by get_by_ids, which raises an error where a point has no payload and invents a text where it has none.
        points = vectorstore.client.retrieve(vectorstore.collection_name, list(ids), with_payload=True)
        payloads: dict[Any, Any] = {point.id: point.payload or {} for point in points}
        text, metadata = vectorstore.content_payload_key, vectorstore.metadata_payload_key
        return {one: TextRecord(payload.get(text), payload.get(metadata)) for one, payload in payloads.items()}

    vector = {"vector_name": vectorstore.vector_name} if vectorstore.vector_name else {}
    store = QdrantStore(vectorstore.client, vectorstore.collection_name, **vector)
    return StoreAdapter(store, DocumentSource(fetch))


#: By package and class.
_ADAPTERS: dict[tuple[str, str], Callable[[Any], StoreAdapter]] = {
    ("langchain_chroma", "Chroma"): _adapt_chroma,
    ("langchain_qdrant", "QdrantVectorStore"): _adapt_qdrant,
    ("langchain_community", "FAISS"): _adapt_faiss,
}
