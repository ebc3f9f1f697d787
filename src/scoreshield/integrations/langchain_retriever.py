"""A LangChain retriever over a private vector store."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list, get_executor_for_config, run_in_executor
from langchain_core.runnables.utils import gather_with_concurrency
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from pydantic import PrivateAttr

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.integrations._common import Fields
from scoreshield.integrations.langchain_answers import SIMILARITY, filter_of, refuse_unknown
from scoreshield.integrations.langchain_vectorstore import PrivateVectorStore, checked_threshold, refuse_mmr
from scoreshield.search import PrivateSearch

_SEARCHES = ("similarity", "similarity_score_threshold")
_MAY_ACT = "it may act before the noise"


class PrivateRetriever(VectorStoreRetriever):
    """A LangChain retriever over a :class:`PrivateVectorStore`.

    In modes that charge a ledger, ``batch`` and ``abatch`` charge for all their queries at once, or answer none.
    """

    vectorstore: PrivateVectorStore
    allowed_search_types: ClassVar[tuple[str, ...]] = _SEARCHES
    #: Answers that a batch has paid for together, by query.
    _ready: dict[str, deque[list[Document]]] | None = PrivateAttr(default=None)
    #: Why a batch has none.
    _failed: Exception | None = PrivateAttr(default=None)

    @validate()
    def __init__(self, **data: Any) -> None:
        search_type = data.get("search_type", "similarity")
        data["search_kwargs"] = _checked_search(search_type, data.get("search_kwargs") or {})
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
        """In place of ``vectorstore.as_retriever(...)``; options as in :meth:`PrivateVectorStore.from_vectorstore`."""
        # Before an index is paid for.
        search_kwargs = _checked_search(search_type, {"k": k, **(search_kwargs or {})})
        filter_of(search_kwargs.get("filter"), Fields.checked(filterable, visible))
        store = PrivateVectorStore.from_vectorstore(
            vectorstore, epsilon=epsilon, filterable=filterable, visible=visible, **options
        )
        return store.as_retriever(search_type=search_type, search_kwargs=search_kwargs)

    @classmethod
    @clear_frames_on_error
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
        """Over a search and documents of your own: see :class:`PrivateVectorStore`."""
        store = PrivateVectorStore(search, embedding, documents, filterable=filterable, visible=visible)
        return store.as_retriever(search_kwargs={"k": k})

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        ready = self._prepared(query)
        if ready is not None:
            return ready
        kwargs.pop("verbose", None)  # for the callbacks
        return super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        ready = self._prepared(query)
        if ready is not None:
            return ready
        kwargs.pop("verbose", None)
        return await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)

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
        """Several queries at once; where a ledger is charged, for all of them or for none."""
        one_by_one = super().batch
        if self._charged(inputs):
            configs = get_config_list(config, len(inputs))
            try:
                with get_executor_for_config(configs[0]) as executor:
                    vectors = list(executor.map(self.vectorstore._embed, inputs))
                prepared = self._with(inputs, self._together(vectors, kwargs))
            except Exception as error:
                prepared = self._without(error)
            one_by_one = super(PrivateRetriever, prepared).batch
        return one_by_one(inputs, config, return_exceptions=return_exceptions, **kwargs)

    @clear_frames_on_error
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
        if self._charged(inputs):
            configs = get_config_list(config, len(inputs))
            try:
                limit = configs[0].get("max_concurrency")
                vectors = await gather_with_concurrency(limit, *map(self.vectorstore._aembed, inputs))
                prepared = self._with(inputs, await run_in_executor(None, self._together, vectors, kwargs))
            except Exception as error:
                prepared = self._without(error)
            one_by_one = super(PrivateRetriever, prepared).abatch
        return await one_by_one(inputs, config, return_exceptions=return_exceptions, **kwargs)

    def _charged(self, inputs: Any) -> bool:
        if not isinstance(inputs, list | tuple):
            _validation.reject("inputs", "a list of texts", inputs)
        return self.vectorstore.mode != "index" and bool(inputs)

    def _together(self, vectors: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        given = {name: value for name, value in (self.search_kwargs | kwargs).items() if name != "verbose"}
        return self.vectorstore._retrieve(vectors, self.search_type, _checked_search(self.search_type, given))

    def _with(self, inputs: Sequence[str], answers: list[Any]) -> PrivateRetriever:
        """This retriever with its answers ready, so that callbacks and traces are those of single queries."""
        ready: dict[str, deque[Any]] = defaultdict(deque)
        for query, answer in zip(inputs, answers, strict=True):
            ready[query].append(answer)
        prepared = self.model_copy()
        prepared._ready = ready
        return prepared

    def _without(self, error: Exception) -> PrivateRetriever:
        """The same where the batch failed: so does each of its queries, whatever they are."""
        prepared = self.model_copy()
        prepared._failed = error
        return prepared

    def _prepared(self, query: str) -> list[Document] | None:
        if self._failed is not None:
            raise self._failed
        return None if self._ready is None else self._ready[query].popleft()


def _checked_search(search_type: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of every search of a retriever."""
    if search_type == "mmr":
        refuse_mmr()
    _validation.check_option(search_type, "search_type", _SEARCHES)
    checked = dict(given)
    if "k" in checked:
        checked["k"] = _validation.check_count(checked["k"], "k")
    if search_type == "similarity_score_threshold":
        checked["score_threshold"] = checked_threshold(given.get("score_threshold", "nothing"))
        refuse_unknown(given, SIMILARITY | {"score_threshold"}, _MAY_ACT)
    else:
        refuse_unknown(given, SIMILARITY, _MAY_ACT)
    return checked
