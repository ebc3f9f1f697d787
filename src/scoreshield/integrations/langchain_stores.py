"""From a LangChain vector store to what a private search reads: all its vectors, and its documents by id.

Vectors go into a release and nowhere else. Documents are fetched after the ranking was released, and are copied without
what stores put beside them (scores, distances, vectors).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from numpy.typing import NDArray

from scoreshield import _checks
from scoreshield.errors import InvalidInput, ScoreShieldError, StoreError
from scoreshield.integrations._common import annotated, refuse, scrub
from scoreshield.search import Hits, PrivateSearch
from scoreshield.stores.protocol import Convention, Records, Scored, Store, bare

#: Documents of these ids, those that there are.
Fetch = Callable[[Sequence[Any]], Mapping[Any, Document]]
#: One document and its released cosine; None where only names were released.
Found = tuple[Document, float | None]
#: What every search takes.
SIMILARITY = frozenset({"k", "filter"})
_LARGEST_PAGE = 512
#: Hits beyond k that are released with them and stand in for documents deleted meanwhile.
_SPARE = 16
#: Paid rankings that are kept where their documents could not be read.
_MOST_UNREAD = 256


class Adapted(NamedTuple):
    """A vector store as a private search needs it."""

    store: Store
    fetch: Fetch


def adapted(vectorstore: VectorStore, store: Store | None = None) -> Adapted:
    """The vectors and documents of a LangChain vector store.

    With a ``store`` of :mod:`scoreshield.stores` the vectors come from there, and the documents by the vector store's
    ``get_by_ids``.
    """
    if store is not None:
        return Adapted(store, fetching(vectorstore.get_by_ids))
    if isinstance(vectorstore, InMemoryVectorStore):
        return Adapted(InMemoryStore(vectorstore), fetching(vectorstore.get_by_ids))
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


def fetching(documents: Any) -> Fetch:
    """Documents from a mapping of ids, or through a function like ``VectorStore.get_by_ids``."""
    if isinstance(documents, Mapping):
        return lambda ids: {one: documents[one] for one in ids if one in documents}
    if not callable(documents):
        _checks.reject("documents", "PrivateVectorStore", "a mapping of ids or a function like get_by_ids", documents)

    def fetch(ids: Sequence[Any]) -> dict[Any, Document]:
        # LangChain's ids are strings; the store's own may be numbers.
        named = {str(one): one for one in ids}
        return {named[document.id]: document for document in documents(list(ids)) if document.id in named}

    return fetch


def documents_of(fetch: Fetch, ids: Sequence[Any]) -> dict[Any, Document]:
    """Copies of the documents without scores and vectors; a failure is told by its type, as its text may hold data."""
    try:
        return _copies(fetch, ids)
    except ScoreShieldError as known:
        failure: ScoreShieldError = known
    except Exception as error:
        failure = StoreError(f"The documents could not be read ({type(error).__name__}).")
    raise bare(failure)


def _copies(fetch: Fetch, ids: Sequence[Any]) -> dict[Any, Document]:
    found = fetch(ids) if ids else {}
    return {
        one: Document(id=str(one), page_content=found[one].page_content, metadata=scrub(found[one].metadata))
        for one in ids
        if one in found
    }


def filter_of(given: Any) -> Callable[[Document], bool] | None:
    """A test of one document: a function as it is, or metadata that must be equal."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        if not callable(given):
            _checks.reject("filter", "a search", "a function of a Document, or metadata that must be equal", given)
        return lambda document: bool(given(document))
    if any(str(key).startswith("$") or isinstance(value, Mapping) for key, value in given.items()):
        raise InvalidInput("A filter with operators is a store's own language: give a function of a Document instead.")
    return lambda document: all(document.metadata.get(key) == value for key, value in given.items())


class Lookup:
    """Which ids a ranking may show: those whose documents are there and pass the filter.

    Documents are read as they are asked about. Under a filter more and more are read at a time, in the public order of
    the ids, so that a rare match does not take one reading a record.
    """

    def __init__(self, fetch: Fetch, keep: Callable[[Document], bool] | None, search: PrivateSearch) -> None:
        self.found: dict[Any, Document] = {}
        self.filters = keep is not None
        self._fetch, self._keep = fetch, keep
        self._seen: set[Any] = set()
        self._rest = iter(search.ids) if keep is not None else iter(())
        self._page = 1

    def load(self, ids: Sequence[Any]) -> None:
        new = [one for one in dict.fromkeys(ids) if one not in self._seen]
        self.found.update(documents_of(self._fetch, new))
        self._seen.update(new)

    def __call__(self, one: Any) -> bool:
        if one not in self._seen:
            others = (other for other in self._rest if other != one and other not in self._seen)
            self.load([one, *islice(others, self._page - 1)])
            self._page = min(2 * self._page, _LARGEST_PAGE)
        return one in self.found and (self._keep is None or self._keep(self.found[one]))


class Answers:
    """From query vectors to documents: every search of the vector store ends here."""

    def __init__(self, search: PrivateSearch, fetch: Fetch) -> None:
        self._search, self._fetch = search, fetch
        self._unread: dict[tuple[bytes, int], list[Hits]] = {}

    def documents(self, ids: Sequence[Any]) -> list[Document]:
        """Those that there are, in the order of the ids."""
        return list(documents_of(self._fetch, list(dict.fromkeys(ids))).values())

    def find(
        self, vectors: Sequence[Any], function: str, *, k: int = 4, filter: Any = None, **unknown: Any
    ) -> list[list[Found]]:
        """The k best documents of each query vector: one charge for all of them, where there is one."""
        refuse_unknown(unknown, SIMILARITY, function, "it may act before the noise; 'k' and 'filter' act after it")
        k = _checks.count(k, "k", function)
        lookup = Lookup(self._fetch, filter_of(filter), self._search)
        if self._search.mode == "index" or lookup.filters:
            return self._read(self._hits(vectors, k, lookup), lookup, k)
        # Documents are read after the charge, so that nothing about an unpaid ranking is seen. Where that fails, what
        # was paid for is kept: asking the same again reads on from there.
        queries = _checks.array(vectors, "embedding", function, "vectors of one length")
        asked = queries.tobytes(), k
        hits = self._unread.pop(asked, None) or self._search.search_batch(queries, k + _SPARE)
        try:
            return self._read(hits, lookup, k)
        except StoreError as error:
            self._unread = dict([*self._unread.items(), (asked, hits)][-_MOST_UNREAD:])
            told = str(error).removesuffix(".")
        raise StoreError(f"{told}; the query was charged, and asking the same again costs nothing.")

    def _hits(self, vectors: Sequence[Any], k: int, lookup: Lookup) -> list[Hits]:
        """Of an index, or under a filter: documents that may not be shown are left out at no cost, or before it."""
        if lookup.filters:
            return self._search.search_batch(vectors, k, where=lookup)
        hits = self._search.search_batch(vectors, k)
        ids = [one for found in hits for one in found.ids]
        lookup.load(ids)
        return hits if all(map(lookup, ids)) else self._search.search_batch(vectors, k, where=lookup)

    def _read(self, hits: list[Hits], lookup: Lookup, k: int) -> list[list[Found]]:
        lookup.load([one for found in hits for one in found.ids[:k]])
        shown = ((found, islice((place for place, one in enumerate(found.ids) if lookup(one)), k)) for found in hits)
        return [[self._found(found, place, lookup) for place in places] for found, places in shown]

    def _found(self, hits: Hits, place: int, lookup: Lookup) -> Found:
        plain = lookup.found[hits.ids[place]]
        metadata = annotated(plain.metadata, self._search, hits, place)
        score = None if hits.scores is None else float(hits.scores[place])
        return Document(id=plain.id, page_content=plain.page_content, metadata=metadata), score


def refuse_unknown(given: Mapping[str, Any], known: AbstractSet[str], function: str, why: str) -> None:
    for name in sorted(set(given) - known):
        refuse(f"The {name!r} parameter of {function}", why)


class InMemoryStore:
    """LangChain's own store in memory.

    Documents that were added, replaced or deleted are seen; a vector that is changed in place is not, unless in its
    first entry or its last.
    """

    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, vectorstore: InMemoryVectorStore) -> None:
        self.name = "The InMemoryVectorStore"
        self._vectorstore = vectorstore

    @property
    def dimension(self) -> int:
        for entry in self._vectorstore.store.values():
            return len(entry["vector"])
        raise StoreError(f"{self.name} holds no records.")

    def state(self) -> Hashable:
        # An address alone may be that of something that was deleted: hence the entries of the vectors too.
        entries = list(self._vectorstore.store.values())
        ends = tuple((id(entry), entry["vector"][0], entry["vector"][-1]) for entry in entries)
        return hash((tuple(self._vectorstore.store), ends))

    def scores(self, query: NDArray[np.float32]) -> Scored:
        found = self._vectorstore.similarity_search_with_score_by_vector(
            query.tolist(), k=max(1, len(self._vectorstore.store))
        )
        # They come best first, and leave in the order of the records.
        scores = {document.id: score for document, score in found}
        ids = [one for one in self._vectorstore.store if one in scores]
        return Scored(ids, np.array([scores[one] for one in ids], dtype=np.float32))

    def records(self) -> Records:
        entries = dict(self._vectorstore.store)
        if len({len(entry["vector"]) for entry in entries.values()}) > 1:
            raise StoreError(f"{self.name} mixes vectors of different lengths.")
        return Records(list(entries), np.array([entry["vector"] for entry in entries.values()], dtype=np.float32))


class _FaissVectors:
    """The index of a LangChain FAISS store, under the ids that its documents have now."""

    def __init__(self, vectorstore: Any) -> None:
        self._vectorstore, self._told = vectorstore, 0
        inner = self._inner()
        self.name, self.convention, self.zero_copy = inner.name, inner.convention, inner.zero_copy

    def _inner(self) -> Store:
        from scoreshield.stores.faiss import FaissStore

        places = self._vectorstore.index_to_docstore_id
        return FaissStore(self._vectorstore.index, ids=[places.get(place) for place in range(len(places))])

    @property
    def dimension(self) -> int:
        return int(self._vectorstore.index.d)

    def state(self) -> Hashable:
        return self._told, self._inner().state(), hash(tuple(self._vectorstore.index_to_docstore_id.values()))

    def changed(self) -> None:
        """Documents were added or deleted through the private store."""
        self._told += 1

    def scores(self, query: NDArray[np.float32]) -> Scored:
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

    return Adapted(ChromaStore(vectorstore._collection), fetching(vectorstore.get_by_ids))


def _qdrant(vectorstore: Any) -> Adapted:
    from scoreshield.stores.qdrant import QdrantStore

    if str(getattr(vectorstore.retrieval_mode, "value", vectorstore.retrieval_mode)) != "dense":
        raise InvalidInput(
            "Only a QdrantVectorStore with retrieval_mode='dense' can be made private: sparse scores are no cosines of "
            f"vectors. Got {vectorstore.retrieval_mode!r} instead."
        )

    def fetch(ids: Sequence[Any]) -> dict[Any, Document]:
        # Its documents carry their ids in the metadata alone.
        return {document.metadata["_id"]: document for document in vectorstore.get_by_ids(list(ids))}

    named = {"vector_name": vectorstore.vector_name} if vectorstore.vector_name else {}
    return Adapted(QdrantStore(vectorstore.client, vectorstore.collection_name, **named), fetch)
