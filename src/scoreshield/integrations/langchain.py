"""LangChain: a vector store and a retriever whose scores and order are differentially private.

Both answer from a :class:`~scoreshield.search.PrivateSearch` over the user's own vector store: all n records are scored
and released, the ranking comes from what was released, and only then are documents fetched, by id. Whatever would read
the clean vectors again (MMR, candidates chosen before the noise, embeddings beside the documents) is refused.
"""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from scoreshield.stores.protocol import Store, need

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
    raise need("langchain", "scoreshield.integrations.langchain") from None

from scoreshield import _checks
from scoreshield.errors import InvalidInput
from scoreshield.integrations._common import refuse
from scoreshield.integrations.langchain_stores import SIMILARITY, Answers, Found, adapted, fetching, refuse_unknown
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.search import PrivateSearch

__all__ = ["PrivateRetriever", "PrivateVectorStore"]

_OPTIONS = frozenset(inspect.signature(PrivateSearch).parameters) - {"store", "epsilon"}
_SEARCHES = ("similarity", "similarity_score_threshold")
_MAY_ACT = "it may act before the noise"
_WHY_NOT_MMR = "it compares clean vectors with each other and with the query, outside what was released"


class PrivateVectorStore(VectorStore):
    """A LangChain vector store that answers from released scores alone.

    Parameters
    ----------
    search : what is searched; its ids are those of the documents.
    embedding : the model that embeds queries; the one the records were embedded with.
    documents : by id: a mapping, or a function like ``VectorStore.get_by_ids``.

    Most users want :meth:`from_vectorstore`.
    """

    def __init__(
        self,
        search: PrivateSearch,
        embedding: Embeddings,
        documents: Mapping[Any, Document] | Callable[[Sequence[Any]], Iterable[Document]],
    ) -> None:
        if not isinstance(search, PrivateSearch):
            _checks.reject("search", "PrivateVectorStore", "a scoreshield.search.PrivateSearch", type(search))
        self._search = search
        self._embedding = _checked_embedding(embedding)
        self._answers = Answers(search, fetching(documents))
        self._wrapped: VectorStore | None = None
        self._source: Store | None = None

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        *,
        epsilon: float,
        store: Store | None = None,
        embedding: Embeddings | None = None,
        **options: Any,
    ) -> PrivateVectorStore:
        """Make the vector store of a working pipeline private.

        Parameters
        ----------
        vectorstore : an InMemoryVectorStore, Chroma, QdrantVectorStore or FAISS; with ``store``, any.
        epsilon : of the index, once; or of each query (``mode``). There is no default.
        store : of :mod:`scoreshield.stores`: where the vectors are, if the vector store is none of the above.
        embedding : the model that embeds queries; without it, the vector store's own.
        options : of :class:`~scoreshield.search.PrivateSearch`: ``delta``, ``mode``, ``ledger``, ``file``, ...
        """
        function = "from_vectorstore"
        if isinstance(vectorstore, PrivateVectorStore):
            raise InvalidInput("This vector store is private already; use its as_retriever().")
        if not isinstance(vectorstore, VectorStore):
            _checks.reject("vectorstore", function, "a LangChain VectorStore", type(vectorstore))
        refuse_unknown(options, _OPTIONS, function, "it is no option of PrivateSearch")
        if options.get("centroids"):
            raise InvalidInput("With centroids the hits are people and not documents; use PrivateSearch itself.")
        embedding = vectorstore.embeddings if embedding is None else embedding
        if embedding is None:
            raise InvalidInput("The vector store has no embedding model for queries: give one as 'embedding'.")
        embedding = _checked_embedding(embedding)
        source = adapted(vectorstore, store)
        search = PrivateSearch(source.store, epsilon=epsilon, **options)
        private = cls(search, embedding, {})
        private._answers, private._wrapped, private._source = Answers(search, source.fetch), vectorstore, source.store
        return private

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> PrivateVectorStore:
        """Embed texts into an InMemoryVectorStore and make that private; ``epsilon`` and options as above."""
        wrapped = InMemoryVectorStore(_checked_embedding(embedding))
        wrapped.add_texts(texts, metadatas, ids=ids)
        return cls.from_vectorstore(wrapped, **kwargs)

    def __repr__(self) -> str:
        return f"<PrivateVectorStore over {self._search!r}>"

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

    def refresh(self) -> None:
        """Make a new index of the wrapped store as it is now, and pay its full price again."""
        self._search.refresh()

    def save(self, path: str | Path) -> None:
        """Write the private index to a file, for ``file=`` or ``PrivateSearch.load``; no clean vector is in it."""
        self._search.save(path)

    def hide(self, ids: Sequence[Any]) -> None:
        """Never answer with these documents again, from now on; at no cost."""
        self._search.hide(ids)

    # ---- Searching: everything ends in `_answers`.

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """The k best documents with their released cosines, best first (also where the wrapped store has distances).

        ``filter``, a function of a Document or a mapping of metadata to be equal, cuts the released ranking.
        """
        self._check_scored("similarity_search_with_score")
        vector = self._embed(query)
        return _scored(self._answers.find([vector], "similarity_search_with_score", k=k, **kwargs)[0])

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """:meth:`similarity_search_with_score`, with the model's own async call and the search in a thread."""
        self._check_scored("similarity_search_with_score")
        vector = await self._aembed(query)
        found = await run_in_executor(None, self._answers.find, [vector], "similarity_search_with_score", k=k, **kwargs)
        return _scored(found[0])

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The k best documents by released scores; ``filter`` as in :meth:`similarity_search_with_score`."""
        vector = self._embed(query)
        return [document for document, _ in self._answers.find([vector], "similarity_search", k=k, **kwargs)[0]]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """:meth:`similarity_search`, with the model's own async call and the search in a thread."""
        vector = await self._aembed(query)
        found = await run_in_executor(None, self._answers.find, [vector], "similarity_search", k=k, **kwargs)
        return [document for document, _ in found[0]]

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """The same for a query that is embedded already, which is public."""
        found = self._answers.find([embedding], "similarity_search_by_vector", k=k, **kwargs)
        return [document for document, _ in found[0]]

    def similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The same with (1 + released cosine) / 2, in [0, 1]; ``score_threshold`` cuts what was released."""
        threshold = _checked_threshold(kwargs.pop("score_threshold", None))
        return _relevant(self.similarity_search_with_score(query, k, **kwargs), threshold)

    async def asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """:meth:`similarity_search_with_relevance_scores`, likewise."""
        threshold = _checked_threshold(kwargs.pop("score_threshold", None))
        return _relevant(await self.asimilarity_search_with_score(query, k, **kwargs), threshold)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return _relevance

    def max_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Refused, whatever is asked for."""
        refuse("Maximal marginal relevance", _WHY_NOT_MMR)

    async def amax_marginal_relevance_search(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        """Refused, whatever is asked for."""
        refuse("Maximal marginal relevance", _WHY_NOT_MMR)

    max_marginal_relevance_search_by_vector = max_marginal_relevance_search
    amax_marginal_relevance_search_by_vector = amax_marginal_relevance_search

    def as_retriever(self, **kwargs: Any) -> PrivateRetriever:
        """A retriever; ``search_type``, ``search_kwargs``, ``tags`` and ``metadata`` as in LangChain."""
        return PrivateRetriever(vectorstore=self, **{"tags": self._get_retriever_tags(), **kwargs})

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids, in their order, without scores or vectors."""
        return self._answers.documents(ids)

    # ---- Changing the wrapped store.

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Add documents to the wrapped store, which is a new version of the collection.

        An index answers from the old version until :meth:`refresh`, which pays again; the other modes see the new
        version at the next query.
        """
        ids = self._changed("Adding documents").add_documents(documents, **kwargs)
        self._tell(added=True)
        return ids

    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """:meth:`add_documents`, by the wrapped store's own async call."""
        ids = await self._changed("Adding documents").aadd_documents(documents, **kwargs)
        self._tell(added=True)
        return ids

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
        told = getattr(self._source, "changed", None)
        if callable(told):
            told()
        if added and self.mode == "index":
            warnings.warn(
                "The private index does not find what was added until refresh(), which pays its epsilon again.",
                stacklevel=3,
            )

    # ---- From query vectors to documents.

    def _check_scored(self, function: str) -> None:
        """Refuse before anything is charged."""
        if self._search.mode == "screening" and not self._search._recipe.refine:
            raise InvalidInput(f"{function} needs scores, and screening without 'refine' releases names alone.")

    def _embed(self, query: str) -> list[float]:
        return self._embedding.embed_query(_checked_query(query))

    async def _aembed(self, query: str) -> list[float]:
        return await self._embedding.aembed_query(_checked_query(query))

    def _retrieve(self, vectors: Sequence[Any], search_type: str, kwargs: dict[str, Any]) -> list[list[Document]]:
        """What a retriever returns for each of several queries."""
        if search_type == "similarity":
            return [[document for document, _ in found] for found in self._answers.find(vectors, "batch", **kwargs)]
        self._check_scored("A score threshold")
        threshold = kwargs.pop("score_threshold")
        answers = [_relevant(_scored(found), threshold) for found in self._answers.find(vectors, "batch", **kwargs)]
        return [[document for document, _ in found] for found in answers]


class PrivateRetriever(VectorStoreRetriever):
    """A LangChain retriever over a :class:`PrivateVectorStore`.

    In modes that charge a ledger, ``batch`` and ``abatch`` charge for all their queries at once, or answer none.
    """

    vectorstore: PrivateVectorStore
    allowed_search_types: ClassVar[tuple[str, ...]] = _SEARCHES
    #: Answers that a batch has paid for together, by query.
    _ready: dict[str, deque[list[Document] | Exception]] | None = PrivateAttr(default=None)

    def __init__(self, **data: Any) -> None:
        search_type = data.get("search_type", "similarity")
        data["search_kwargs"] = _checked_search(search_type, data.get("search_kwargs") or {})
        if not isinstance(data.get("vectorstore"), PrivateVectorStore):
            _checks.reject("vectorstore", "PrivateRetriever", "a PrivateVectorStore", type(data.get("vectorstore")))
        super().__init__(**data)

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        *,
        epsilon: float,
        k: int = 4,
        search_type: str = "similarity",
        search_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> PrivateRetriever:
        """In place of ``vectorstore.as_retriever(...)``; options as in :meth:`PrivateVectorStore.from_vectorstore`."""
        # Before an index is paid for.
        search_kwargs = _checked_search(search_type, {"k": k, **(search_kwargs or {})})
        store = PrivateVectorStore.from_vectorstore(vectorstore, epsilon=epsilon, **options)
        return store.as_retriever(search_type=search_type, search_kwargs=search_kwargs)

    @classmethod
    def from_search(
        cls,
        search: PrivateSearch,
        embedding: Embeddings,
        documents: Mapping[Any, Document] | Callable[[Sequence[Any]], Iterable[Document]],
        *,
        k: int = 4,
    ) -> PrivateRetriever:
        """Over a search and documents of your own: see :class:`PrivateVectorStore`."""
        return PrivateVectorStore(search, embedding, documents).as_retriever(search_kwargs={"k": k})

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        if self._ready is not None:
            return _paid(self._ready[query].popleft())
        kwargs.pop("verbose", None)  # for the callbacks
        return super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        if self._ready is not None:
            return _paid(self._ready[query].popleft())
        kwargs.pop("verbose", None)
        return await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """Several queries at once; where a ledger is charged, for all of them or for none."""
        one_by_one = super().batch
        if self.vectorstore.mode != "index" and inputs:
            try:
                with get_executor_for_config(get_config_list(config, len(inputs))[0]) as executor:
                    vectors = list(executor.map(self.vectorstore._embed, inputs))
                answers = self._together(vectors, kwargs)
            except Exception as error:
                answers = [error] * len(inputs)
            one_by_one = super(PrivateRetriever, self._with(inputs, answers)).batch
        return one_by_one(inputs, config, return_exceptions=return_exceptions, **kwargs)

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """:meth:`batch`, with the model's own async calls and the search in a thread."""
        one_by_one = super().abatch
        if self.vectorstore.mode != "index" and inputs:
            limit = get_config_list(config, len(inputs))[0].get("max_concurrency")
            try:
                vectors = await gather_with_concurrency(limit, *map(self.vectorstore._aembed, inputs))
                answers = await run_in_executor(None, self._together, vectors, kwargs)
            except Exception as error:
                answers = [error] * len(inputs)
            one_by_one = super(PrivateRetriever, self._with(inputs, answers)).abatch
        return await one_by_one(inputs, config, return_exceptions=return_exceptions, **kwargs)

    def _together(self, vectors: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        given = {name: value for name, value in (self.search_kwargs | kwargs).items() if name != "verbose"}
        return self.vectorstore._retrieve(vectors, self.search_type, _checked_search(self.search_type, given))

    def _with(self, inputs: list[str], answers: list[Any]) -> PrivateRetriever:
        """This retriever with its answers ready, so that callbacks and traces are those of single queries."""
        ready: dict[str, deque[Any]] = defaultdict(deque)
        for query, answer in zip(inputs, answers, strict=True):
            ready[query].append(answer)
        prepared = self.model_copy()
        prepared._ready = ready
        return prepared


def _relevance(score: float) -> float:
    return (1 + score) / 2


def _relevant(found: list[tuple[Document, float]], threshold: float | None) -> list[tuple[Document, float]]:
    """Cutting the k best is the same as taking the k best of what passes, since both follow the released score."""
    relevant = [(document, _relevance(score)) for document, score in found]
    return [pair for pair in relevant if threshold is None or pair[1] >= threshold]


def _scored(found: list[Found]) -> list[tuple[Document, float]]:
    return [(document, score) for document, score in found if score is not None]


def _paid(answer: list[Document] | Exception) -> list[Document]:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _checked_search(search_type: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of every search of a retriever."""
    if search_type == "mmr":
        refuse("Maximal marginal relevance", _WHY_NOT_MMR)
    _checks.one_of(search_type, "search_type", "PrivateRetriever", _SEARCHES)
    checked = dict(given)
    if "k" in checked:
        checked["k"] = _checks.count(checked["k"], "k", "PrivateRetriever")
    if search_type == "similarity_score_threshold":
        checked["score_threshold"] = _checked_threshold(given.get("score_threshold", "nothing"))
        refuse_unknown(given, SIMILARITY | {"score_threshold"}, "search_kwargs", _MAY_ACT)
    else:
        refuse_unknown(given, SIMILARITY, "search_kwargs", _MAY_ACT)
    return checked


def _checked_threshold(threshold: Any) -> float | None:
    if threshold is None:
        return None
    must = "a relevance in [0, 1], that is (1 + cosine) / 2"
    number = _checks.real(threshold, "score_threshold", "the retriever", must)
    if not 0 <= number <= 1:
        _checks.reject("score_threshold", "the retriever", must, threshold)
    return number


def _checked_query(query: Any) -> str:
    if not isinstance(query, str):
        _checks.reject("query", "a search", "a text", query)
    return query


def _checked_embedding(embedding: Any) -> Embeddings:
    if not isinstance(embedding, Embeddings):
        _checks.reject("embedding", "PrivateVectorStore", "a LangChain Embeddings", type(embedding))
    return embedding


def _named(ids: Any, kwargs: Mapping[str, Any]) -> list[str]:
    refuse_unknown(kwargs, frozenset(), "delete", "documents are deleted by their ids")
    if not isinstance(ids, list | tuple) or not ids:
        _checks.reject("ids", "delete", "a list of ids", ids)
    return list(ids)
