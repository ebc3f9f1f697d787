"""LlamaIndex: a private retriever, and a private vector store for what is built on one.

``PrivateRetriever.from_index(index, epsilon=8, similarity_top_k=4)`` replaces
``index.as_retriever(similarity_top_k=4)``. Scores are released cosines. Filters act on the released ranking. Answers
are copies of the nodes without their vectors, with the guarantee in the metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.search import PrivateSearch
from scoreshield.stores import Store
from scoreshield.stores.protocol import explain_missing_extra

try:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
except ImportError:
    raise explain_missing_extra("llama-index", "The LlamaIndex adapter") from None

from scoreshield.integrations.core import (
    Answer,
    RetrievalCore,
    check_search_options,
    open_retrieval,
    reject_bypass,
)
from scoreshield.integrations.fields import PublicFields
from scoreshield.integrations.llama_index_nodes import (
    NodeFilter,
    NodeSource,
    PrivateMarker,
    adapt_index,
    copy_node,
    declare_node_fields,
)

#: From the id of a record to its node; None where there is none, or none any more.
GetNode = Callable[[Any], BaseNode | None]

_NO_GUARANTEE = "its result has no guarantee"
_NO_PICKLE = "It may hold private vectors and is not pickled or copied; save an index with search.save() instead."


class PrivateRetriever(PrivateMarker, BaseRetriever):
    """Retrieves nodes by released scores.

    Args:
        search: The search that releases.
        nodes: A mapping or a function from the search's ids to nodes.
        embed_model: The model that embeds queries. Without it, a query must bring its embedding.
        similarity_top_k: How many nodes to return.
        filters: Which nodes may be returned. Filters choose the best of them by released score.
        node_ids: The nodes that may be returned.
        doc_ids: The documents whose nodes may be returned.
        filterable: The metadata fields that filters may name, and ``"doc_id"`` for ``doc_ids``. None by default,
            because a filter reveals its field of every node exactly.
        visible: The metadata fields that answers carry; all by default.
        callback_manager: As in other retrievers.
        verbose: As in other retrievers.
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        search: PrivateSearch,
        nodes: Mapping[Any, BaseNode] | GetNode,
        embed_model: BaseEmbedding | None = None,
        *,
        similarity_top_k: int = 2,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        fields = declare_node_fields(filterable, visible)
        self._core = _build_core(search, nodes, fields)
        self._filter = NodeFilter(fields, filters, node_ids, doc_ids)
        self.similarity_top_k = _check_request(similarity_top_k, embed_model, callback_manager)
        self._embed_model = embed_model
        super().__init__(callback_manager=callback_manager, verbose=verbose)

    @classmethod
    @clear_frames_on_error
    @validate()
    def from_index(
        cls,
        index: VectorStoreIndex,
        *,
        epsilon: float,
        similarity_top_k: int = 2,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        store: Store | None = None,
        embed_model: BaseEmbedding | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> PrivateRetriever:
        """Make a private retriever in place of ``index.as_retriever()``.

        Args:
            index: The index of a working pipeline.
            epsilon: Of the private index, once; or of each query (``mode``). There is no default.
            similarity_top_k: As in `PrivateRetriever`, like the parameters that are not listed here.
            filters: As above.
            node_ids: As above.
            doc_ids: As above.
            filterable: As above.
            visible: As above.
            store: A store of `scoreshield.stores` that has the vectors, if this package does not know those of the
                index. Its ids are those of the nodes.
            embed_model: The model that embeds queries; by default that of the index.
            callback_manager: By default that of the index.
            verbose: As above.
            options: Of `PrivateSearch`: ``mode``, ``ledger``, ``delta``, ``file``, ...

        Raises:
            InvalidInput: If an option is wrong, or no id of the store names a node. Nothing was charged.
        """
        # Errors in the request are raised before an index is charged.
        fields = declare_node_fields(filterable, visible)
        NodeFilter(fields, filters, node_ids, doc_ids)
        _check_request(similarity_top_k, embed_model, callback_manager)
        core = _open_index(index, store, epsilon, {"k": similarity_top_k, **options}, fields)
        retriever = cls(
            core.search,
            {},
            index._embed_model if embed_model is None else embed_model,
            similarity_top_k=similarity_top_k,
            filters=filters,
            node_ids=node_ids,
            doc_ids=doc_ids,
            filterable=filterable,
            visible=visible,
            callback_manager=index._callback_manager if callback_manager is None else callback_manager,
            verbose=verbose,
        )
        retriever._core = core
        return retriever

    @property
    def search(self) -> PrivateSearch:
        """The search that releases: its guarantee, ``stale``, ``refresh()`` and ``save()``."""
        return self._core.search

    def __reduce__(self) -> Any:
        raise InvalidInput(_NO_PICKLE)

    @clear_frames_on_error
    def retrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """Retrieve the nodes of each query. Where queries are charged, all are charged or none is answered.

        Batches raise no retrieval events.
        """
        vectors = [self._embed(one) for one in _check_batch(queries)]
        return self._find(np.stack(vectors))

    @clear_frames_on_error
    async def aretrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """`retrieve_batch`, with async embedding and the release in a thread."""
        vectors = [await self._aembed(one) for one in _check_batch(queries)]
        return await asyncio.to_thread(self._find, np.stack(vectors))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.retrieve_batch([query_bundle])[0]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self.aretrieve_batch([query_bundle]))[0]

    def _find(self, queries: NDArray[Any]) -> list[list[NodeWithScore]]:
        return _find_nodes(self._core, queries, self.similarity_top_k, self._filter)

    def _embed(self, bundle: QueryBundle) -> NDArray[Any]:
        vector = bundle.embedding
        if vector is None:
            vector = self._get_model(bundle).get_agg_embedding_from_queries(bundle.embedding_strs)
        return _check_vector(vector, self.search)

    async def _aembed(self, bundle: QueryBundle) -> NDArray[Any]:
        vector = bundle.embedding
        if vector is None:
            vector = await self._get_model(bundle).aget_agg_embedding_from_queries(bundle.embedding_strs)
        return _check_vector(vector, self.search)

    def _get_model(self, bundle: QueryBundle) -> BaseEmbedding:
        if self._embed_model is None or not bundle.embedding_strs:
            raise InvalidInput("The query has no embedding, and there is no text or no embed_model to make one from.")
        return self._embed_model


class PrivateVectorStore(PrivateMarker, BasePydanticVectorStore):
    """A vector store that answers with released scores, for ``VectorStoreIndex.from_vector_store(store)``.

    Args:
        search: As in `PrivateRetriever`.
        nodes: As in `PrivateRetriever`.
        filterable: As in `PrivateRetriever`.
        visible: As in `PrivateRetriever`.
    """

    stores_text: bool = True
    _core: RetrievalCore[BaseNode] = PrivateAttr()
    _wrapped: VectorStoreIndex | None = PrivateAttr(default=None)

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        search: PrivateSearch,
        nodes: Mapping[Any, BaseNode] | GetNode,
        *,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
    ) -> None:
        super().__init__(stores_text=True)
        fields = declare_node_fields(filterable, visible)
        self._core = _build_core(search, nodes, fields)

    @classmethod
    @clear_frames_on_error
    @validate()
    def from_index(
        cls,
        index: VectorStoreIndex,
        *,
        epsilon: float,
        store: Store | None = None,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        **options: Any,
    ) -> PrivateVectorStore:
        """Make the vector store of an index private; parameters as in `PrivateRetriever.from_index`."""
        fields = declare_node_fields(filterable, visible)
        core = _open_index(index, store, epsilon, options, fields)
        private = cls(core.search, {})
        private._core, private._wrapped = core, index
        return private

    @classmethod
    def class_name(cls) -> str:
        return "PrivateVectorStore"

    @property
    def client(self) -> None:
        """None. The client of the wrapped store would answer without noise."""
        return

    @property
    def search(self) -> PrivateSearch:
        """The search that releases: its guarantee, ``stale``, ``refresh()`` and ``save()``."""
        return self._core.search

    def __reduce__(self) -> Any:
        raise InvalidInput(_NO_PICKLE)

    def __copy__(self) -> PrivateVectorStore:
        raise InvalidInput(_NO_PICKLE)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> PrivateVectorStore:
        raise InvalidInput(_NO_PICKLE)

    @clear_frames_on_error
    @validate()
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Find the ``similarity_top_k`` best nodes by released score. Filters and lists of ids act on that ranking."""
        for name in kwargs:
            reject_bypass(f"The option {name!r} of a query", _NO_GUARANTEE)
        if query.mode != VectorStoreQueryMode.DEFAULT:
            mode = VectorStoreQueryMode(query.mode).value
            reject_bypass(f"The query mode {mode!r}", "it ranks by clean vectors or text")
        for name in ("alpha", "mmr_threshold", "sparse_top_k", "hybrid_top_k", "output_fields", "embedding_field"):
            if getattr(query, name) is not None:
                reject_bypass(f"{name!r} in a query", _NO_GUARANTEE)
        if query.query_embedding is None:
            raise InvalidInput("The query has no embedding.")
        vector = _check_vector(query.query_embedding, self.search)[None]
        node_filter = NodeFilter(self._core.fields, query.filters, query.node_ids, query.doc_ids)
        k = _validation.check_count(query.similarity_top_k, "similarity_top_k")
        nodes = _find_nodes(self._core, vector, k, node_filter)[0]
        scores = [one.score for one in nodes if one.score is not None]
        return VectorStoreQueryResult(
            nodes=[one.node for one in nodes],
            similarities=scores if len(scores) == len(nodes) else None,
            ids=[one.node.node_id for one in nodes],
        )

    @clear_frames_on_error
    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """`query` in a thread."""
        return await asyncio.to_thread(self.query, query, **kwargs)

    @clear_frames_on_error
    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return nodes without vectors or scores, in the order of ``node_ids`` or of the store."""
        fields = self._core.fields
        node_filter = NodeFilter(fields, filters)
        ids = self.search.ids if node_ids is None else node_ids
        records = self._core.source.read(ids)
        nodes = [records[one] for one in ids if one in records and node_filter.allows(one, records[one])]
        return [copy_node(node, fields.select(node.metadata), fields) for node in nodes]

    @clear_frames_on_error
    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes to the wrapped index, which makes a new version of the collection.

        A private index answers from the old version until ``search.refresh()``, which is charged again. The other modes
        see the new version at the next query. Nodes without an embedding are embedded one by one, since texts that are
        embedded together change the last bits of each other.
        """
        for name in kwargs:
            reject_bypass(f"The option {name!r} of add", "the wrapped index has its own way to add")
        for node in nodes:
            self._index.insert_nodes([node])
        return [node.node_id for node in nodes]

    @clear_frames_on_error
    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete a document from the wrapped index. No later answer names its nodes.

        What was released of them stays released.
        """
        self._index.delete_ref_doc(ref_doc_id, **delete_kwargs)

    @clear_frames_on_error
    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete nodes by their ids, as `delete` does by document."""
        if node_ids is None or filters is not None:
            reject_bypass("Deleting nodes by filters", "name them by 'node_ids', or delete in the wrapped index itself")
        self._index.delete_nodes(node_ids, **delete_kwargs)

    @property
    def _index(self) -> VectorStoreIndex:
        if self._wrapped is None:
            raise InvalidInput("This store was made of a search and cannot change: change what the search reads.")
        return self._wrapped


def _build_core(search: Any, nodes: Any, fields: PublicFields) -> RetrievalCore[BaseNode]:
    if not isinstance(search, PrivateSearch):
        _validation.reject("search", "a PrivateSearch", type(search))
    return RetrievalCore(search, NodeSource.from_nodes(nodes), fields)


def _open_index(
    index: Any, store: Any, epsilon: float, options: Mapping[str, Any], fields: PublicFields
) -> RetrievalCore[BaseNode]:
    """Make a private search over the vectors of an index. Before a charge, its ids must name some of the nodes."""
    if not isinstance(index, VectorStoreIndex):
        _validation.reject("index", "a VectorStoreIndex", type(index))
    check_search_options(options)
    store, source = adapt_index(index, store, holds=options.get("mode", "index") != "index")
    return open_retrieval(store, source, fields, epsilon=epsilon, options=options, reads_now=True)


def _find_nodes(
    core: RetrievalCore[BaseNode], queries: NDArray[Any], k: int, node_filter: NodeFilter
) -> list[list[NodeWithScore]]:
    def translate(answer: Answer[BaseNode]) -> NodeWithScore:
        return NodeWithScore(node=copy_node(answer.record, answer.metadata, core.fields), score=answer.score)

    return core.find(queries, k, node_filter if node_filter.is_restrictive else None, translate=translate)


def _check_request(similarity_top_k: Any, embed_model: Any, callback_manager: Any) -> int:
    if embed_model is not None and not isinstance(embed_model, BaseEmbedding):
        raise InvalidInput(f"The 'embed_model' must be a BaseEmbedding. Got {type(embed_model).__name__} instead.")
    if callback_manager is not None and not isinstance(callback_manager, CallbackManager):
        raise InvalidInput(f"The 'callback_manager' must be a CallbackManager. Got {type(callback_manager).__name__}.")
    return _validation.check_count(similarity_top_k, "similarity_top_k")


def _check_batch(queries: Any) -> list[QueryBundle]:
    is_list = isinstance(queries, Sequence) and not isinstance(queries, str)
    if not is_list or not queries or not all(isinstance(one, str | QueryBundle) for one in queries):
        raise InvalidInput("A batch is a list of at least one query, each a text or a QueryBundle.")
    return [QueryBundle(one) if isinstance(one, str) else one for one in queries]


def _check_vector(vector: ArrayLike, search: PrivateSearch) -> NDArray[Any]:
    """Check one query vector before anything is read."""
    must = f"a vector of {search.dimension} real numbers"
    checked = _validation.check_array(vector, "query", must)
    if checked.shape != (search.dimension,):
        _validation.reject("query", must, checked)
    return checked
