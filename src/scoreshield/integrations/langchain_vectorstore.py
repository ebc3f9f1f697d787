"""A LangChain vector store whose scores and order are differentially private.

It answers from a :class:`~scoreshield.search.PrivateSearch` over the user's own vector store: all n records are scored
and released, the ranking comes from what was released, and only then are documents fetched, by id. Whatever would read
the clean vectors again (MMR, candidates chosen before the noise, embeddings beside the documents) is refused.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.integrations._common import Fields, refuse
from scoreshield.integrations.langchain_answers import (
    Answers,
    Fetch,
    Found,
    any_document,
    fetching,
    filter_of,
    refuse_unknown,
)
from scoreshield.integrations.langchain_stores import adapted
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.search import PrivateSearch
from scoreshield.search.index_files import has_saved_index
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import Store

if TYPE_CHECKING:
    from scoreshield.integrations.langchain_retriever import PrivateRetriever

_WHY_NOT_MMR = "it compares clean vectors with each other and with the query, outside what was released"
_OPTIONS = frozenset(inspect.signature(PrivateSearch).parameters) - {"store", "epsilon"}


class RowByRow(Embeddings):
    """A model that is given one document at a time, so that a row depends on its own text alone."""

    def __init__(self, model: Embeddings) -> None:
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._model.embed_documents([text])[0] for text in texts]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return [(await self._model.aembed_documents([text]))[0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._model.embed_query(text)

    async def aembed_query(self, text: str) -> list[float]:
        return await self._model.aembed_query(text)


class PrivateVectorStore(VectorStore):
    """A LangChain vector store that answers from released scores alone.

    Parameters
    ----------
    search : what is searched; its ids are those of the documents.
    embedding : the model that embeds queries; the one the records were embedded with.
    documents : by id: a mapping, or a function like ``VectorStore.get_by_ids``.
    filterable : the fields that filters may name: names of metadata, and ``"page_content"``. None by default, because
        whoever filters on a field learns it of every document exactly.
    visible : the metadata fields that answers carry; all by default.

    Most users want :meth:`from_vectorstore`.
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        search: PrivateSearch,
        embedding: Embeddings,
        documents: Mapping[Any, Document] | Callable[[Sequence[Any]], Iterable[Document]],
        *,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
    ) -> None:
        if not isinstance(search, PrivateSearch):
            _validation.reject("search", "a scoreshield.search.PrivateSearch", type(search))
        self._search = search
        self._embedding = _checked_embedding(embedding)
        fields = Fields.checked(filterable, visible)
        self._answers = Answers(search, fetching(documents), fields)
        del documents  # so that the frames of an error do not hold what lies beside them
        any_document(search.ids, self._answers.fetch)  # reads the store where there is no index, and releases nothing
        self._wrapped: VectorStore | None = None
        self._pinned: PinnedStore | None = None

    @classmethod
    @clear_frames_on_error
    @validate()
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        *,
        epsilon: float,
        store: Store | None = None,
        embedding: Embeddings | None = None,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        **options: Any,
    ) -> PrivateVectorStore:
        """Make the vector store of a working pipeline private.

        Parameters
        ----------
        vectorstore : an InMemoryVectorStore, Chroma, QdrantVectorStore or FAISS; with ``store``, any.
        epsilon : of the index, once; or of each query (``mode``). There is no default.
        store : of :mod:`scoreshield.stores`: where the vectors are, if the vector store is none of the above.
        embedding : the model that embeds queries; without it, the vector store's own.
        filterable, visible : as in :class:`PrivateVectorStore`.
        options : of :class:`~scoreshield.search.PrivateSearch`: ``delta``, ``mode``, ``ledger``, ``file``, ...
        """
        if isinstance(vectorstore, PrivateVectorStore):
            raise InvalidInput("This vector store is private already; use its as_retriever().")
        if not isinstance(vectorstore, VectorStore):
            _validation.reject("vectorstore", "a LangChain VectorStore", type(vectorstore))
        refuse_unknown(options, _OPTIONS, "it is no option of PrivateSearch")
        if options.get("centroids"):
            raise InvalidInput("With centroids the hits are people and not documents; use PrivateSearch itself.")
        embedding = vectorstore.embeddings if embedding is None else embedding
        if embedding is None:
            raise InvalidInput("The vector store has no embedding model for queries: give one as 'embedding'.")
        embedding = _checked_embedding(embedding)
        fields = Fields.checked(filterable, visible)
        source = adapted(vectorstore, store, hold=options.get("mode", "index") != "index")
        pinned = _pinned(source.store, options)
        pays = options.get("mode", "index") == "index"
        file = options.get("file")
        saved = pays and file is not None and has_saved_index(file)
        if store is not None or (pays and not saved):
            _check_documents(pinned, source.fetch)
        private = cls.__new__(cls)
        private._embedding, private._wrapped, private._pinned = embedding, vectorstore, pinned
        private._search = PrivateSearch(pinned, epsilon=epsilon, **options)
        private._answers = Answers(private._search, source.fetch, fields)
        if saved:  # nothing was paid
            any_document(private._search.ids, source.fetch)
        return private

    @classmethod
    @clear_frames_on_error
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> PrivateVectorStore:
        """Embed texts into an InMemoryVectorStore and make that private; ``epsilon`` and options as above.

        Each text is embedded by a call of its own, so that a row depends on its own text alone.
        """
        wrapped = InMemoryVectorStore(RowByRow(_checked_embedding(embedding)))
        wrapped.add_texts(texts, metadatas, ids=ids)
        return cls.from_vectorstore(wrapped, **kwargs)

    def __repr__(self) -> str:
        return f"<PrivateVectorStore over {getattr(self, '_search', 'nothing')!r}>"  # while it is being made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidInput("A private vector store may hold private vectors and is not pickled; save() an index.")

    # One search, one budget: a copy is the same store, and no vector is ever copied.
    def __copy__(self) -> PrivateVectorStore:
        return self

    def __deepcopy__(self, memo: Any) -> PrivateVectorStore:
        return self

    @property
    def embeddings(self) -> None:
        """None: the model is not handed out, since one that caches holds the documents' vectors."""
        return

    @property
    def mode(self) -> str:
        """``"index"``, ``"query"`` or ``"screening"``."""
        return self._search.mode

    @property
    def guarantee(self) -> Guarantee:
        """Of the index; in the other modes each document's metadata says what its query cost."""
        return self._search.guarantee

    @property
    def stale(self) -> bool | None:
        """Whether the wrapped store changed since the version that answers now; None for an index from a file."""
        return self._search.stale

    @clear_frames_on_error
    def refresh(self) -> None:
        """Make a new index of the wrapped store as it is now, and pay its full price again."""
        self._search.check_before_refresh(self._answers.try_one)
        self._search.refresh()

    def save(self, path: str | Path) -> None:
        """Write the private index to a file, for ``file=`` or ``PrivateSearch.load``; no clean vector is in it."""
        self._search.save(path)

    def hide(self, ids: Sequence[Any]) -> None:
        """Never answer with these documents again, from now on; at no cost."""
        self._search.hide(ids)

    # ---- Searching: everything ends in `_answers`.

    @clear_frames_on_error
    @validate()
    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """The k best documents with their released cosines, best first (also where the wrapped store has distances).

        ``filter``, a function of a Document or a mapping of metadata to be equal, cuts the released ranking. It may
        look at the fields that are filterable.
        """
        self._check_scored()
        vector = self._embed(query)
        return _scored(self._answers.find([vector], k=k, **kwargs)[0])

    @clear_frames_on_error
    @validate()
    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """:meth:`similarity_search_with_score`, with the model's own async call and the search in a thread."""
        self._check_scored()
        vector = await self._aembed(query)
        found = await run_in_executor(None, self._answers.find, [vector], k=k, **kwargs)
        return _scored(found[0])

    @clear_frames_on_error
    @validate()
    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The k best documents by released scores; ``filter`` as in :meth:`similarity_search_with_score`."""
        vector = self._embed(query)
        return [document for document, _ in self._answers.find([vector], k=k, **kwargs)[0]]

    @clear_frames_on_error
    @validate()
    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """:meth:`similarity_search`, with the model's own async call and the search in a thread."""
        vector = await self._aembed(query)
        found = await run_in_executor(None, self._answers.find, [vector], k=k, **kwargs)
        return [document for document, _ in found[0]]

    @clear_frames_on_error
    @validate()
    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """The same for a query that is embedded already, which is public."""
        found = self._answers.find([embedding], k=k, **kwargs)
        return [document for document, _ in found[0]]

    @clear_frames_on_error
    def similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The same with (1 + released cosine) / 2, in [0, 1]; ``score_threshold`` cuts what was released."""
        threshold = checked_threshold(kwargs.pop("score_threshold", None))
        return _relevant(self.similarity_search_with_score(query, k, **kwargs), threshold)

    @clear_frames_on_error
    async def asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """:meth:`similarity_search_with_relevance_scores`, likewise."""
        threshold = checked_threshold(kwargs.pop("score_threshold", None))
        return _relevant(await self.asimilarity_search_with_score(query, k, **kwargs), threshold)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return _relevance

    def max_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Refused, whatever is asked for."""
        refuse_mmr()

    async def amax_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Refused, whatever is asked for."""
        refuse_mmr()

    max_marginal_relevance_search_by_vector = max_marginal_relevance_search
    amax_marginal_relevance_search_by_vector = amax_marginal_relevance_search

    def as_retriever(self, **kwargs: Any) -> PrivateRetriever:
        """A retriever; ``search_type``, ``search_kwargs``, ``tags`` and ``metadata`` as in LangChain."""
        from scoreshield.integrations.langchain_retriever import PrivateRetriever

        return PrivateRetriever(vectorstore=self, **{"tags": self._get_retriever_tags(), **kwargs})

    @clear_frames_on_error
    @validate()
    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids, in their order, without scores or vectors."""
        return self._answers.documents(_checked_ids(ids))

    # ---- Changing the wrapped store.

    @clear_frames_on_error
    @validate()
    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Add documents to the wrapped store, which is a new version of the collection.

        An index answers from the old version until :meth:`refresh`, which pays again; the other modes see the new
        version at the next query. Documents are added one by one, since a store that embeds several texts together lets
        each change the others' last bits.
        """
        wrapped, ids = self._changed("Adding documents"), list[str]()
        try:
            for document, options in _one_by_one(documents, kwargs):
                ids += wrapped.add_documents([document], **options)
        finally:
            if ids:
                self._tell(added=True)
        return ids

    @clear_frames_on_error
    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """:meth:`add_documents`, by the wrapped store's own async call."""
        wrapped, ids = self._changed("Adding documents"), list[str]()
        try:
            for document, options in _one_by_one(documents, kwargs):
                ids += await wrapped.aadd_documents([document], **options)
        finally:
            if ids:
                self._tell(added=True)
        return ids

    @validate()
    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents from the wrapped store; they are not answered with from now on, at no cost."""
        done = self._changed("Deleting").delete(_named(ids, kwargs))
        self._tell()
        return done

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """:meth:`delete`, by the wrapped store's own async call."""
        done = await self._changed("Deleting").adelete(_named(ids, kwargs))
        self._tell()
        return done

    def _changed(self, what: str) -> VectorStore:
        if self._wrapped is None:
            raise InvalidInput(f"{what} needs a vector store: this one was made of a search and documents.")
        return self._wrapped

    def _tell(self, *, added: bool = False) -> None:
        """Stores that do not see every change are told; and whoever adds to what an index answers from."""
        assert self._pinned is not None
        told = getattr(self._pinned.store, "mark_changed", None)
        if callable(told):
            told()
        self._pinned.forget()  # so that it looks at once, whenever it would have
        if added and self.mode == "index":
            warnings.warn(
                "The private index does not find what was added until refresh(), which pays its epsilon again.",
                stacklevel=3,
            )

    # ---- From query vectors to documents.

    def _check_scored(self) -> None:
        """Raise an error before anything is charged."""
        if not self._search.releases_scores:
            raise InvalidInput("This call needs scores, and screening without 'refine' releases names alone.")

    def _check_filter(self, given: Any) -> None:
        """Raise an error where a filter names what is not filterable."""
        filter_of(given, self._answers.fields)

    def _embed(self, query: str) -> list[float]:
        return self._embedding.embed_query(_checked_query(query))

    async def _aembed(self, query: str) -> list[float]:
        return await self._embedding.aembed_query(_checked_query(query))

    @clear_frames_on_error
    def _retrieve(self, vectors: Sequence[Any], search_type: str, kwargs: dict[str, Any]) -> list[list[Document]]:
        """What a retriever returns for each of several queries."""
        if search_type == "similarity":
            return [[document for document, _ in found] for found in self._answers.find(vectors, **kwargs)]
        self._check_scored()
        threshold = kwargs.pop("score_threshold")
        answers = [_relevant(_scored(found), threshold) for found in self._answers.find(vectors, **kwargs)]
        return [[document for document, _ in found] for found in answers]


def _pinned(store: Store | PinnedStore, options: dict[str, Any]) -> PinnedStore:
    if isinstance(store, PinnedStore):
        return store
    return PinnedStore(store, **{name: options.pop(name) for name in ("pin", "check_every") if name in options})


def _check_documents(pinned: PinnedStore, fetch: Fetch) -> None:
    """Read one document before anything is paid; where none can be read, keep nothing of the store."""
    try:
        any_document(pinned.take_snapshot().ids, fetch)
    except ScoreShieldError:
        pinned.forget()
        raise


def refuse_mmr() -> NoReturn:
    refuse("Maximal marginal relevance", _WHY_NOT_MMR)


def _relevance(score: float) -> float:
    return (1 + score) / 2


def _relevant(found: list[tuple[Document, float]], threshold: float | None) -> list[tuple[Document, float]]:
    """Cutting the k best is the same as taking the k best of what passes, since both follow the released score."""
    relevant = [(document, _relevance(score)) for document, score in found]
    return [pair for pair in relevant if threshold is None or pair[1] >= threshold]


def _scored(found: list[Found]) -> list[tuple[Document, float]]:
    return [(document, score) for document, score in found if score is not None]


def checked_threshold(threshold: Any) -> float | None:
    if threshold is None:
        return None
    must = "a relevance in [0, 1], that is (1 + cosine) / 2"
    number = _validation.check_real(threshold, "score_threshold", must)
    if not 0 <= number <= 1:
        _validation.reject("score_threshold", must, threshold)
    return number


def _checked_query(query: Any) -> str:
    if not isinstance(query, str):
        _validation.reject("query", "a text", query)
    return query


def _checked_embedding(embedding: Any) -> Embeddings:
    if not isinstance(embedding, Embeddings):
        _validation.reject("embedding", "a LangChain Embeddings", type(embedding))
    return embedding


def _one_by_one(documents: Sequence[Document], kwargs: Mapping[str, Any]) -> Iterator[tuple[Document, dict[str, Any]]]:
    """Each document with its own options: its id where ids are given, else the same for all."""
    ids = kwargs.get("ids")
    if ids is None:
        return ((document, dict(kwargs)) for document in documents)
    if len(ids) != len(documents):
        _validation.reject("ids", f"{len(documents):,} ids, one for each document", ids)
    return ((document, {**kwargs, "ids": [one]}) for document, one in zip(documents, ids, strict=True))


def _named(ids: Any, kwargs: Mapping[str, Any]) -> list[str]:
    refuse_unknown(kwargs, frozenset(), "documents are deleted by their ids")
    if not ids:
        _validation.reject("ids", "a list of ids", ids)
    return _checked_ids(ids)


def _checked_ids(ids: Any) -> list[str]:
    if not isinstance(ids, list | tuple) or not all(isinstance(one, Hashable) for one in ids):
        _validation.reject("ids", "a list of ids", ids)
    return list(ids)
