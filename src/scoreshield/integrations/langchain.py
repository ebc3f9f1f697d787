"""LangChain: a vector store and a retriever whose scores and order are differentially private.

They answer from a `PrivateSearch` over the user's vector store. All n records are scored and
released, the ranking comes from the released values, and documents are then fetched by id. Requests that would read
the clean vectors again raise an error: MMR, candidates chosen before the noise, embeddings beside the documents.
"""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from scoreshield.stores.protocol import explain_missing_extra

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.config import get_config_list, get_executor_for_config, run_in_executor
    from langchain_core.runnables.utils import gather_with_concurrency
    from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever
    from pydantic import PrivateAttr
except ImportError:
    raise explain_missing_extra("langchain", "scoreshield.integrations.langchain") from None

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.decisions.worth import Worth
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.integrations.core import (
    Answer,
    RetrievalCore,
    check_search_options,
    open_retrieval,
    reject_bypass,
)
from scoreshield.integrations.fields import PublicFields
from scoreshield.integrations.langchain_documents import (
    DocumentSource,
    TextRecord,
    adapt_vectorstore,
    build_filter,
)
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.search import ModeChoice, PrivateSearch
from scoreshield.stores.protocol import Store

__all__ = ["PrivateRetriever", "PrivateVectorStore"]

#: One document and its score; None where only names were released.
ScoredDocument = tuple[Document, float | None]
#: The parameters of every search.
_SEARCH_PARAMETERS = frozenset({"k", "filter"})
_SEARCH_TYPES = ("similarity", "similarity_score_threshold")
_MAY_ACT_BEFORE = "it may act before the noise"


class RowByRow(Embeddings):
    """Embeds one document per call, so that a row depends on its own text alone.

    Args:
        model: The model that embeds.
    """

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

    Most users want `from_vectorstore`.

    Args:
        search: The search that releases. Its ids are those of the documents.
        embedding: The model that embeds queries; the one that embedded the records.
        documents: The documents by id: a mapping, or a function like ``VectorStore.get_by_ids``.
        filterable: The fields that filters may name: names of metadata, and ``"page_content"``. None by default,
            because a filter reveals its field of every document exactly.
        visible: The metadata fields that answers carry; all by default.
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
        self._embedding = _check_embedding(embedding)
        fields = PublicFields.declare(filterable, visible)
        source = DocumentSource.from_documents(documents)
        del documents  # so that the frames of an error do not hold what lies beside them
        source.find_readable(search.ids)  # reads the store where there is no index, and releases nothing
        self._core = RetrievalCore(search, source, fields)
        self._wrapped: VectorStore | None = None

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

        Args:
            vectorstore: An InMemoryVectorStore, Chroma, QdrantVectorStore or FAISS; with ``store``, any.
            epsilon: Of the index, once; or of each query (``mode``). There is no default.
            store: A store of `scoreshield.stores` that has the vectors, if the vector store is none of the above.
            embedding: The model that embeds queries; by default that of the vector store.
            filterable: As in `PrivateVectorStore`.
            visible: As in `PrivateVectorStore`.
            options: Of `PrivateSearch`: ``delta``, ``mode``, ``ledger``, ``file``, ...

        Raises:
            InvalidInput: If an option is wrong, or no record has a document. Nothing was charged.
        """
        if isinstance(vectorstore, PrivateVectorStore):
            raise InvalidInput("This vector store is private already; use its as_retriever().")
        if not isinstance(vectorstore, VectorStore):
            _validation.reject("vectorstore", "a LangChain VectorStore", type(vectorstore))
        check_search_options(options)
        embedding = vectorstore.embeddings if embedding is None else embedding
        if embedding is None:
            raise InvalidInput("The vector store has no embedding model for queries: give one as 'embedding'.")
        embedding = _check_embedding(embedding)
        fields = PublicFields.declare(filterable, visible)
        adapter = adapt_vectorstore(vectorstore, store, holds=options.get("mode", "index") != "index")
        private = cls.__new__(cls)
        private._embedding, private._wrapped = embedding, vectorstore
        private._core = open_retrieval(
            adapter.store,
            adapter.source,
            fields,
            epsilon=epsilon,
            options=options,
            reads_now=store is not None,
        )
        return private

    @classmethod
    @clear_frames_on_error
    @validate()
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> PrivateVectorStore:
        """Embed texts into an InMemoryVectorStore and make that private.

        Each text is embedded by a call of its own, so that a row depends on its own text alone.

        Args:
            texts: The texts.
            embedding: The model that embeds texts and queries.
            metadatas: One mapping per text.
            ids: One id per text.
            kwargs: ``epsilon`` and the options of `from_vectorstore`.
        """
        wrapped = InMemoryVectorStore(RowByRow(_check_embedding(embedding)))
        wrapped.add_texts(texts, metadatas, ids=ids)
        return cls.from_vectorstore(wrapped, **kwargs)

    def __repr__(self) -> str:
        core = vars(self).get("_core")  # an error tracker may show a store whose constructor failed
        return f"<PrivateVectorStore over {'nothing' if core is None else core.search!r}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidInput("A private vector store may hold private vectors and is not pickled; save() an index.")

    # A copy is the same store: there is one search with one budget, and no vector is copied.
    def __copy__(self) -> PrivateVectorStore:
        return self

    def __deepcopy__(self, memo: Any) -> PrivateVectorStore:
        return self

    @property
    def embeddings(self) -> None:
        """None. The model is not handed out, since one that caches holds the documents' vectors."""
        return

    @property
    def mode(self) -> str:
        """The mode of the search: ``"index"``, ``"query"``, ``"screening"``, ``"hits"`` or ``"batch"``."""
        return self._core.search.mode

    @property
    @clear_frames_on_error
    def worth(self) -> Worth | None:
        """What the search is predicted to find, from public facts (`PrivateSearch.worth`)."""
        return self._core.search.worth

    @property
    def choice(self) -> ModeChoice | None:
        """What ``mode="auto"`` picked, and why; None in the other modes."""
        return self._core.search.choice

    @property
    @clear_frames_on_error
    def guarantee(self) -> Guarantee:
        """The guarantee of the index. In the other modes each document's metadata has that of its query."""
        return self._core.search.guarantee

    @property
    @clear_frames_on_error
    def stale(self) -> bool | None:
        """Whether the wrapped store changed since the version that answers now; None for an index from a file."""
        return self._core.search.stale

    @clear_frames_on_error
    def refresh(self) -> None:
        """Make a new index of the wrapped store as it is now. It is charged in full again."""
        self._core.refresh()

    @clear_frames_on_error
    def save(self, path: str | Path) -> None:
        """Write the private index to a file, for ``file=`` or ``PrivateSearch.load``. It holds no clean vector."""
        self._core.search.save(path)

    @clear_frames_on_error
    def hide(self, ids: Sequence[Any]) -> None:
        """Leave these documents out of all later answers, at no cost."""
        self._core.search.hide(ids)

    # ---- Searching: everything ends in `_find`.

    @clear_frames_on_error
    @validate()
    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Find the k best documents with their scores, best first, whatever the wrapped store scores by.

        A score is the expected clean cosine, given the released one (`Hits.scores`).

        Args:
            query: The text to search for.
            k: How many documents to return.
            kwargs: ``filter``: a function of a Document, or metadata that must be equal. It cuts the released ranking
                and may look at the fields that are filterable.
        """
        self._check_has_scores()
        return _drop_unscored(self._find_text(query, k=k, **kwargs))

    @clear_frames_on_error
    @validate()
    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """`similarity_search_with_score`, with the model's async call and the search in a thread."""
        self._check_has_scores()
        return _drop_unscored(await self._afind_text(query, k=k, **kwargs))

    @clear_frames_on_error
    @validate()
    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Find the k best documents by released scores; ``filter`` as in `similarity_search_with_score`."""
        return _drop_scores(self._find_text(query, k=k, **kwargs))

    @clear_frames_on_error
    @validate()
    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """`similarity_search`, with the model's async call and the search in a thread."""
        return _drop_scores(await self._afind_text(query, k=k, **kwargs))

    @clear_frames_on_error
    @validate()
    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """`similarity_search` for a query that is embedded already. The query is public."""
        return _drop_scores(self._find([embedding], k=k, **kwargs)[0])

    @clear_frames_on_error
    @validate()
    def similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Find the k best documents with (1 + score) / 2, in [0, 1].

        ``score_threshold`` cuts these scores, which come from released ones.
        """
        threshold = _check_threshold(kwargs.pop("score_threshold", None))
        return _to_relevance(self.similarity_search_with_score(query, k, **kwargs), threshold)

    @clear_frames_on_error
    @validate()
    async def asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """`similarity_search_with_relevance_scores`, with the model's async call and the search in a thread."""
        threshold = _check_threshold(kwargs.pop("score_threshold", None))
        return _to_relevance(await self.asimilarity_search_with_score(query, k, **kwargs), threshold)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return _compute_relevance

    @clear_frames_on_error
    def max_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Raise an error: maximal marginal relevance compares clean vectors."""
        _reject_mmr()

    @clear_frames_on_error
    async def amax_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Raise an error: maximal marginal relevance compares clean vectors."""
        _reject_mmr()

    max_marginal_relevance_search_by_vector = max_marginal_relevance_search
    amax_marginal_relevance_search_by_vector = amax_marginal_relevance_search

    @clear_frames_on_error
    def as_retriever(self, **kwargs: Any) -> PrivateRetriever:
        """Return a retriever; ``search_type``, ``search_kwargs``, ``tags`` and ``metadata`` as in LangChain."""
        return PrivateRetriever(vectorstore=self, **{"tags": self._get_retriever_tags(), **kwargs})

    @clear_frames_on_error
    @validate()
    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents of these ids, in their order, without scores or vectors."""
        records = self._core.source.read(_check_ids(ids))
        select = self._core.fields.select
        return [_build_document(one, record, select(record.metadata)) for one, record in records.items()]

    # ---- Changing the wrapped store.

    @clear_frames_on_error
    @validate()
    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Add documents to the wrapped store, which makes a new version of the collection.

        An index answers from the old version until `refresh`, which is charged again. The other modes see the new
        version at the next query. Documents are added one by one, since a store that embeds several texts together lets
        each text change the last bits of the others.
        """
        wrapped, ids = self._get_wrapped("Adding documents"), list[str]()
        try:
            for document, options in _split_batch(documents, kwargs):
                ids += wrapped.add_documents([document], **options)
        finally:
            if ids:
                self._report_change(is_addition=True)
        return ids

    @clear_frames_on_error
    @validate()
    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """`add_documents`, by the wrapped store's async call."""
        wrapped, ids = self._get_wrapped("Adding documents"), list[str]()
        try:
            for document, options in _split_batch(documents, kwargs):
                ids += await wrapped.aadd_documents([document], **options)
        finally:
            if ids:
                self._report_change(is_addition=True)
        return ids

    @clear_frames_on_error
    @validate()
    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents from the wrapped store. No later answer has them; that costs nothing."""
        is_done = self._get_wrapped("Deleting").delete(_check_deleted_ids(ids, kwargs))
        self._report_change()
        return is_done

    @clear_frames_on_error
    @validate()
    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """`delete`, by the wrapped store's async call."""
        is_done = await self._get_wrapped("Deleting").adelete(_check_deleted_ids(ids, kwargs))
        self._report_change()
        return is_done

    def _get_wrapped(self, what: str) -> VectorStore:
        if self._wrapped is None:
            raise InvalidInput(f"{what} needs a vector store: this one was made of a search and documents.")
        return self._wrapped

    def _report_change(self, *, is_addition: bool = False) -> None:
        """Report a change to the store, and warn where an index does not answer with the addition."""
        self._core.report_change()
        if is_addition and self.mode == "index":
            warnings.warn(
                "The private index does not find what was added until refresh(), which charges its epsilon again.",
                stacklevel=3,
            )

    # ---- From queries to documents.

    def _find_text(self, query: str, **kwargs: Any) -> list[ScoredDocument]:
        """Embed one text and find its documents."""
        vector = self._embed(query)
        return self._find([vector], **kwargs)[0]

    async def _afind_text(self, query: str, **kwargs: Any) -> list[ScoredDocument]:
        """`_find_text`, with the model's async call and the search in a thread."""
        vector = await self._aembed(query)
        answers = await run_in_executor(None, self._find, [vector], **kwargs)
        return answers[0]

    def _find(
        self, vectors: Sequence[Any], *, k: int = 4, filter: Any = None, **unknown: Any
    ) -> list[list[ScoredDocument]]:
        """Find the k best documents of each query vector. All vectors are charged together."""
        _reject_unknown(unknown, _SEARCH_PARAMETERS, f"{_MAY_ACT_BEFORE}; 'k' and 'filter' act after it")
        k = _validation.check_count(k, "k")
        record_filter = build_filter(filter, self._core.fields)
        queries: Any = vectors
        if self.mode != "index":
            queries = _validation.check_array(vectors, "embedding", "vectors of one length")
        return self._core.find(queries, k, record_filter, translate=_translate)

    def _check_has_scores(self) -> None:
        """Raise an error before anything is charged."""
        if not self._core.search.releases_scores:
            raise InvalidInput("This call needs scores, and screening without 'refine' releases names alone.")

    def _check_filter(self, condition: Any) -> None:
        """Raise an error where a filter names what is not filterable."""
        build_filter(condition, self._core.fields)

    def _embed(self, query: str) -> list[float]:
        return self._embedding.embed_query(_check_query(query))

    async def _aembed(self, query: str) -> list[float]:
        return await self._embedding.aembed_query(_check_query(query))

    @clear_frames_on_error
    def _retrieve(self, vectors: Sequence[Any], search_type: str, kwargs: dict[str, Any]) -> list[list[Document]]:
        """Answer several queries of a retriever."""
        if search_type == "similarity":
            return [_drop_scores(answer) for answer in self._find(vectors, **kwargs)]
        self._check_has_scores()
        threshold = kwargs.pop("score_threshold")
        scored = (_drop_unscored(answer) for answer in self._find(vectors, **kwargs))
        return [_drop_scores(_to_relevance(answer, threshold)) for answer in scored]


class PrivateRetriever(VectorStoreRetriever):
    """A LangChain retriever over a `PrivateVectorStore`.

    In modes that charge a ledger, ``batch`` and ``abatch`` charge for all their queries at once, or answer none.

    Args:
        data: The fields of a ``VectorStoreRetriever``: ``vectorstore``, ``search_type``, ``search_kwargs``, ``tags``
            and ``metadata``; and ``k``, which is short for ``search_kwargs={"k": k}``.
    """

    vectorstore: PrivateVectorStore
    allowed_search_types: ClassVar[tuple[str, ...]] = _SEARCH_TYPES
    #: Answers of a batch that was charged as a whole, by query.
    _batch_answers: dict[str, deque[list[Document]]] | None = PrivateAttr(default=None)
    #: The error of a batch.
    _batch_error: Exception | None = PrivateAttr(default=None)

    @clear_frames_on_error
    @validate()
    def __init__(self, **data: Any) -> None:
        search_type = data.get("search_type", "similarity")
        short = {"k": data.pop("k")} if "k" in data else {}
        data["search_kwargs"] = _check_search(search_type, {**short, **(data.get("search_kwargs") or {})})
        # Pydantic would ignore an unknown field.
        _reject_unknown(data, frozenset(type(self).model_fields), _MAY_ACT_BEFORE)
        if not isinstance(data.get("vectorstore"), PrivateVectorStore):
            _validation.reject("vectorstore", "a PrivateVectorStore", type(data.get("vectorstore")))
        data["vectorstore"]._check_filter(data["search_kwargs"].get("filter"))
        super().__init__(**data)

    @classmethod
    @clear_frames_on_error
    @validate()
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        *,
        epsilon: float,
        k: int = 4,
        search_type: str = "similarity",
        search_kwargs: dict[str, Any] | None = None,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        **options: Any,
    ) -> PrivateRetriever:
        """Make a private retriever in place of ``vectorstore.as_retriever(...)``.

        Args:
            vectorstore: As in `PrivateVectorStore.from_vectorstore`.
            epsilon: Of the index, once; or of each query (``mode``). There is no default.
            k: How many documents to return.
            search_type: ``"similarity"`` or ``"similarity_score_threshold"``.
            search_kwargs: ``k``, ``filter``, and ``score_threshold`` where there is one.
            filterable: As in `PrivateVectorStore`.
            visible: As in `PrivateVectorStore`.
            options: As in `PrivateVectorStore.from_vectorstore`.
        """
        # Before an index is charged.
        search_kwargs = _check_search(search_type, {"k": k, **(search_kwargs or {})})
        build_filter(search_kwargs.get("filter"), PublicFields.declare(filterable, visible))
        options = {"k": search_kwargs["k"], **options}
        store = PrivateVectorStore.from_vectorstore(
            vectorstore, epsilon=epsilon, filterable=filterable, visible=visible, **options
        )
        return store.as_retriever(search_type=search_type, search_kwargs=search_kwargs)

    @classmethod
    @clear_frames_on_error
    @validate()
    def from_search(
        cls,
        search: PrivateSearch,
        embedding: Embeddings,
        documents: Mapping[Any, Document] | Callable[[Sequence[Any]], Iterable[Document]],
        *,
        k: int = 4,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
    ) -> PrivateRetriever:
        """Make a retriever over a search and documents of your own; parameters as in `PrivateVectorStore`."""
        store = PrivateVectorStore(search, embedding, documents, filterable=filterable, visible=visible)
        return store.as_retriever(search_kwargs={"k": k})

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        answer = self._take_batch_answer(query)
        if answer is None:
            answer = super()._get_relevant_documents(query, run_manager=run_manager, **_drop_verbose(kwargs))
        return answer

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        answer = self._take_batch_answer(query)
        if answer is None:
            answer = await super()._aget_relevant_documents(query, run_manager=run_manager, **_drop_verbose(kwargs))
        return answer

    @clear_frames_on_error
    @validate()
    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Answer several queries. Where a ledger is charged, all are charged or none is answered."""
        retriever = self
        if self._charges(inputs):
            first = get_config_list(config, len(inputs))[0]
            try:
                with get_executor_for_config(first) as executor:
                    vectors = list(executor.map(self.vectorstore._embed, inputs))
                retriever = self._answer_batch(inputs, vectors, kwargs)
            except Exception as error:
                retriever = self._copy_with_error(error)
        return super(PrivateRetriever, retriever).batch(inputs, config, return_exceptions=return_exceptions, **kwargs)

    @clear_frames_on_error
    @validate()
    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """`batch`, with the model's async calls and the search in a thread."""
        retriever = self
        if self._charges(inputs):
            limit = get_config_list(config, len(inputs))[0].get("max_concurrency")
            try:
                vectors = await gather_with_concurrency(limit, *map(self.vectorstore._aembed, inputs))
                retriever = await run_in_executor(None, self._answer_batch, inputs, vectors, kwargs)
            except Exception as error:
                retriever = self._copy_with_error(error)
        answer_singly = super(PrivateRetriever, retriever).abatch
        return await answer_singly(inputs, config, return_exceptions=return_exceptions, **kwargs)

    def _charges(self, inputs: Any) -> bool:
        if not isinstance(inputs, list | tuple):
            _validation.reject("inputs", "a list of texts", inputs)
        return self.vectorstore.mode != "index" and bool(inputs)

    def _answer_batch(self, inputs: Sequence[str], vectors: Sequence[Any], kwargs: dict[str, Any]) -> PrivateRetriever:
        """Copy this retriever with the answers, so that callbacks and traces are those of single queries."""
        arguments = _check_search(self.search_type, _drop_verbose(self.search_kwargs | kwargs))
        answers = self.vectorstore._retrieve(vectors, self.search_type, arguments)
        by_query: dict[str, deque[list[Document]]] = defaultdict(deque)
        for query, answer in zip(inputs, answers, strict=True):
            by_query[query].append(answer)
        prepared = self.model_copy()
        prepared._batch_answers = by_query
        return prepared

    def _copy_with_error(self, error: Exception) -> PrivateRetriever:
        """Copy this retriever with the error of its batch, which each query of the batch then raises."""
        prepared = self.model_copy()
        prepared._batch_error = error
        return prepared

    def _take_batch_answer(self, query: str) -> list[Document] | None:
        if self._batch_error is not None:
            raise self._batch_error
        return None if self._batch_answers is None else self._batch_answers[query].popleft()


def _translate(answer: Answer[TextRecord]) -> ScoredDocument:
    return _build_document(answer.id, answer.record, answer.metadata), answer.score


def _build_document(one: Any, record: TextRecord, metadata: dict[str, Any]) -> Document:
    return Document(id=str(one), page_content=record.page_content, metadata=metadata)


def _compute_relevance(score: float) -> float:
    return (1 + score) / 2


def _to_relevance(answer: list[tuple[Document, float]], threshold: float | None) -> list[tuple[Document, float]]:
    """Cut the k best, which is the same as to take the k best that pass: both follow the released score."""
    relevant = [(document, _compute_relevance(score)) for document, score in answer]
    return [pair for pair in relevant if threshold is None or pair[1] >= threshold]


def _drop_scores(answer: Sequence[ScoredDocument]) -> list[Document]:
    return [document for document, _ in answer]


def _drop_unscored(answer: list[ScoredDocument]) -> list[tuple[Document, float]]:
    return [(document, score) for document, score in answer if score is not None]


def _reject_mmr() -> NoReturn:
    reject_bypass(
        "Maximal marginal relevance",
        "it compares clean vectors with each other and with the query, outside what was released",
    )


def _reject_unknown(arguments: Mapping[str, Any], known: AbstractSet[str], why: str) -> None:
    for name in sorted(set(arguments) - known):
        raise InvalidParameter(name, f"is rejected: {why}.")


def _drop_verbose(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the argument that is for the callbacks."""
    return {name: value for name, value in arguments.items() if name != "verbose"}


def _check_search(search_type: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of every search of a retriever."""
    if search_type == "mmr":
        _reject_mmr()
    _validation.check_option(search_type, "search_type", _SEARCH_TYPES)
    checked = dict(arguments)
    if "k" in checked:
        checked["k"] = _validation.check_count(checked["k"], "k")
    known = _SEARCH_PARAMETERS
    if search_type == "similarity_score_threshold":
        checked["score_threshold"] = _check_threshold(arguments.get("score_threshold", "nothing"))
        known |= {"score_threshold"}
    _reject_unknown(arguments, known, _MAY_ACT_BEFORE)
    return checked


def _check_threshold(threshold: Any) -> float | None:
    if threshold is None:
        return None
    must = "a relevance in [0, 1], that is (1 + cosine) / 2"
    number = _validation.check_real(threshold, "score_threshold", must)
    if not 0 <= number <= 1:
        _validation.reject("score_threshold", must, threshold)
    return number


def _check_query(query: Any) -> str:
    if not isinstance(query, str):
        _validation.reject("query", "a text", query)
    return query


def _check_embedding(embedding: Any) -> Embeddings:
    if not isinstance(embedding, Embeddings):
        _validation.reject("embedding", "a LangChain Embeddings", type(embedding))
    return embedding


def _split_batch(documents: Sequence[Document], kwargs: Mapping[str, Any]) -> Iterator[tuple[Document, dict[str, Any]]]:
    """Give each document its own options: its id where ids are given, and the same options for all."""
    ids = kwargs.get("ids")
    if ids is None:
        return ((document, dict(kwargs)) for document in documents)
    if len(ids) != len(documents):
        _validation.reject("ids", f"{len(documents):,} ids, one for each document", ids)
    return ((document, {**kwargs, "ids": [one]}) for document, one in zip(documents, ids, strict=True))


def _check_deleted_ids(ids: Any, kwargs: Mapping[str, Any]) -> list[str]:
    _reject_unknown(kwargs, frozenset(), "documents are deleted by their ids")
    if not ids:
        _validation.reject("ids", "a list of ids", ids)
    return _check_ids(ids)


def _check_ids(ids: Any) -> list[str]:
    if not isinstance(ids, list | tuple) or not all(isinstance(one, Hashable) for one in ids):
        _validation.reject("ids", "a list of ids", ids)
    return list(ids)
