"""From a LangChain vector store to what a private search reads: all its vectors, and its documents by id.

Vectors go into a release and nowhere else.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import look_every
from scoreshield.integrations.langchain_answers import Fetch, Plain, fetching
from scoreshield.stores.protocol import Convention, Records, Store, StoreScores

_VECTOR = operator.itemgetter("vector")
_SAMPLE = 1024  # entries that are looked into at the least


class Adapted(NamedTuple):
    """A vector store as a private search needs it."""

    store: Store
    fetch: Fetch


def adapted(vectorstore: VectorStore, store: Store | None = None, *, hold: bool = False) -> Adapted:
    """The vectors and documents of a LangChain vector store.

    With a ``store`` of :mod:`scoreshield.stores` the vectors come from there, and the documents by the vector store's
    ``get_by_ids``. ``hold`` is that of :class:`InMemoryStore`.
    """
    if store is not None:
        return Adapted(store, fetching(vectorstore.get_by_ids))
    if isinstance(vectorstore, InMemoryVectorStore):
        return Adapted(InMemoryStore(vectorstore, hold=hold), _from_memory(vectorstore))
    # By name, so that none of these packages is imported for the sake of the others.
    known = {"langchain_chroma": _chroma, "langchain_qdrant": _qdrant, "langchain_community": _faiss}
    for cls in type(vectorstore).__mro__:
        package = cls.__module__.split(".")[0]
        if (package, cls.__name__) in _CLASSES:
            return known[package](vectorstore)
    raise InvalidInput(
        f"There is no adapter for a {type(vectorstore).__name__}: say where its vectors are with 'store', one of "
        "scoreshield.stores or your own, whose ids are those of its documents."
    )


_CLASSES = {
    ("langchain_chroma", "Chroma"),
    ("langchain_qdrant", "QdrantVectorStore"),
    ("langchain_community", "FAISS"),
}


class InMemoryStore:
    """LangChain's own store in memory.

    Parameters
    ----------
    vectorstore : the store.
    hold : whether to hold on to the entries seen last, which tells fifty times faster whether there are others now;
        what was deleted is then let go at the next look, as a pinned copy of it is. For modes that look at every query.

    Documents that were added, replaced or deleted are seen, by whomever. Entries that were written into by hand may not
    be: with ``hold``, another vector in an old entry is seen in 1,024 of them at the least, and numbers written into a
    vector are not; without, a vector is known by its place in memory, its first number and its last. Then say
    :meth:`mark_changed`.
    """

    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, vectorstore: InMemoryVectorStore, *, hold: bool = False) -> None:
        self.name = "The InMemoryVectorStore"
        self._vectorstore, self._hold = vectorstore, hold
        self._seen: _Seen | None = None
        self._told = 0

    @property
    def dimension(self) -> int:
        for entry in self._vectorstore.store.values():
            return len(entry["vector"])
        raise StoreError(f"{self.name} holds no records.")

    @property
    def look_every(self) -> float:
        return look_every(len(self._vectorstore.store))

    def state(self) -> Hashable:
        store = self._vectorstore.store
        if self._hold:
            if self._seen is None or not self._seen.still(store):
                self.mark_changed()
                self._seen = _Seen.of(store)
            return self._told
        entries = dict(store)
        # An address alone may be that of something that was deleted: hence numbers of the vectors too.
        ends = tuple((id(entry), entry["vector"][0], entry["vector"][-1]) for entry in entries.values())
        return self._told, hash((tuple(entries), ends))

    def mark_changed(self) -> None:
        """Say that entries were written into."""
        self._told += 1
        self._seen = None

    def ids(self) -> Sequence[Any]:
        return list(self._vectorstore.store)

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        found = self._vectorstore.similarity_search_with_score_by_vector(
            query.tolist(), k=max(1, len(self._vectorstore.store))
        )
        # They come best first, and leave in the order of the records.
        scores = {document.id: score for document, score in found}
        ids = [one for one in self._vectorstore.store if one in scores]
        return StoreScores(ids, np.array([scores[one] for one in ids], dtype=np.float32))

    def records(self) -> Records:
        entries = dict(self._vectorstore.store)
        if len({len(entry["vector"]) for entry in entries.values()}) > 1:
            raise StoreError(f"{self.name} mixes vectors of different lengths.")
        return Records(list(entries), np.array([entry["vector"] for entry in entries.values()], dtype=np.float32))


class _Seen(NamedTuple):
    """The entries of a store in memory as they were at one time; its id is in each, and LangChain makes each anew."""

    store: dict[str, Any]
    entries: list[Any]
    last: Any
    sample: list[Any]
    vectors: list[Any]

    @classmethod
    def of(cls, store: dict[str, Any]) -> _Seen:
        entries = list(store.values())
        sample = entries[:: max(1, len(entries) // _SAMPLE)]
        return cls(store, entries, next(reversed(store), None), sample, list(map(_VECTOR, sample)))

    def still(self, store: dict[str, Any]) -> bool:
        """Without reading the entries: looking into each would take as long as the release."""
        return (
            store is self.store
            and len(store) == len(self.entries)
            and next(reversed(store), None) == self.last
            and all(map(operator.is_, store.values(), self.entries))
            and all(map(operator.is_, map(_VECTOR, self.sample), self.vectors))
        )


def _from_memory(vectorstore: InMemoryVectorStore) -> Fetch:
    """Its entries as they are, since making Documents of them would take most of a filter's time."""
    if type(vectorstore).get_by_ids is not InMemoryVectorStore.get_by_ids:
        return fetching(vectorstore.get_by_ids)  # someone's own, which may know better

    def fetch(ids: Sequence[Any]) -> dict[Any, Plain]:
        found = ((one, vectorstore.store.get(one)) for one in ids)
        return {one: Plain(entry["text"], entry["metadata"]) for one, entry in found if entry}

    return fetch


class _Named(NamedTuple):
    """A FAISS index under the ids that its records had at one time."""

    index: Any
    places: list[int]
    ids: list[Any]
    store: Store
    state: Hashable

    def still(self, index: Any, named: Mapping[int, Any]) -> bool:
        same = index is self.index and list(named) == self.places and list(named.values()) == self.ids
        return same and self.store.state() == self.state


class _FaissVectors:
    """The index of a LangChain FAISS store, under the ids that its documents have now."""

    def __init__(self, vectorstore: Any) -> None:
        self._vectorstore, self._told = vectorstore, 0
        self._known: _Named | None = None
        inner = self._inner()
        self.name, self.convention, self.zero_copy = inner.name, inner.convention, inner.zero_copy

    def _inner(self) -> Store:
        """Made anew where the index or its records are others, or are called otherwise."""
        index, named, known = self._vectorstore.index, self._vectorstore.index_to_docstore_id, self._known
        if known is not None and known.still(index, named):
            return known.store
        from scoreshield.stores.faiss import FaissStore

        named = dict(named)
        inner = FaissStore(index, ids=[named.get(place) for place in range(len(named))])
        self._told += 1
        self._known = _Named(index, list(named), list(named.values()), inner, inner.state())
        return inner

    @property
    def dimension(self) -> int:
        return int(self._vectorstore.index.d)

    def state(self) -> Hashable:
        self._inner()
        return self._told

    def mark_changed(self) -> None:
        """Documents were added or deleted through the private store."""
        self._known = None

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        return self._inner().scores(query)

    def records(self) -> Records | None:
        return self._inner().records()


def _faiss(vectorstore: Any) -> Adapted:
    def fetch(ids: Sequence[Any]) -> dict[Any, Document]:
        found = {one: vectorstore.docstore.search(one) for one in ids}
        return {one: document for one, document in found.items() if isinstance(document, Document)}  # or a sentence

    return Adapted(_FaissVectors(vectorstore), fetch)


def _chroma(vectorstore: Any) -> Adapted:
    from scoreshield.stores.chroma import ChromaStore

    collection = vectorstore._collection

    def fetch(ids: Sequence[Any]) -> dict[Any, Plain]:
        # Not by get_by_ids, which raises where a record has no metadata.
        found = collection.get(ids=list(ids), include=["documents", "metadatas"])
        texts, metadatas = (found[part] or [None] * len(found["ids"]) for part in ("documents", "metadatas"))
        return {one: Plain(*rest) for one, *rest in zip(found["ids"], texts, metadatas, strict=True)}

    return Adapted(ChromaStore(collection), fetch)


def _qdrant(vectorstore: Any) -> Adapted:
    from scoreshield.stores.qdrant import QdrantStore

    if str(getattr(vectorstore.retrieval_mode, "value", vectorstore.retrieval_mode)) != "dense":
        raise InvalidInput(
            "Only a QdrantVectorStore with retrieval_mode='dense' can be made private: sparse scores are no cosines of "
            f"vectors. Got {vectorstore.retrieval_mode!r} instead."
        )

    def fetch(ids: Sequence[Any]) -> dict[Any, Plain]:
        # Not by get_by_ids, which raises where a point has no payload and makes up a text where it has none.
        points = vectorstore.client.retrieve(vectorstore.collection_name, list(ids), with_payload=True)
        payloads: dict[Any, Any] = {point.id: point.payload or {} for point in points}
        text, metadata = vectorstore.content_payload_key, vectorstore.metadata_payload_key
        return {one: Plain(payload.get(text), payload.get(metadata)) for one, payload in payloads.items()}

    named = {"vector_name": vectorstore.vector_name} if vectorstore.vector_name else {}
    return Adapted(QdrantStore(vectorstore.client, vectorstore.collection_name, **named), fetch)
