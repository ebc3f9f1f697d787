"""LlamaIndex: a private retriever, and a private vector store for what is built on one.

``PrivateRetriever.from_index(index, epsilon=8, similarity_top_k=4)`` stands where
``index.as_retriever(similarity_top_k=4)`` stood. Scores are released cosines; filters and restrictions act on the
released ranking; what comes back are copies of the nodes without their vectors, with the guarantee in the metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _checks, stores
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import KEY, annotated, refuse, scrub
from scoreshield.search import Hits, PrivateSearch
from scoreshield.stores import ArrayStore, Convention, Records, Scored, Store
from scoreshield.stores.protocol import need

try:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import (
        BaseNode,
        IndexNode,
        MediaResource,
        NodeWithScore,
        QueryBundle,
        QueryType,
        RelatedNodeInfo,
    )
    from llama_index.core.vector_stores import SimpleVectorStore
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import build_metadata_filter_fn
except ImportError:
    raise need("llama-index", "The LlamaIndex adapter") from None

#: From the id of a record to its node; None where there is none (any more).
NodeOf = Callable[[Any], BaseNode | None]
Keep = Callable[[BaseNode], bool]

_UNSEEN = "its result has no guarantee"
_NO_PICKLE = "It may hold private vectors and is not pickled or copied; save an index with search.save() instead."


class PrivateRetriever(BaseRetriever):
    """Retrieves nodes by released scores.

    Parameters
    ----------
    search : what releases.
    nodes : a mapping or a function from the search's ids to nodes.
    embed_model : of the queries; without it, a query must bring its embedding.
    similarity_top_k : how many nodes to return.
    filters, node_ids, doc_ids : which nodes may be returned: the best of these by released score.
    """

    def __init__(
        self,
        search: PrivateSearch,
        nodes: Mapping[Any, BaseNode] | NodeOf,
        embed_model: BaseEmbedding | None = None,
        *,
        similarity_top_k: int = 2,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        self._search, self._node_of = _checked(search, nodes, "PrivateRetriever")
        self._embed_model = embed_model
        self.similarity_top_k = _checks.count(similarity_top_k, "similarity_top_k", "PrivateRetriever")
        self._keep = _keeper(filters, node_ids, doc_ids)
        super().__init__(callback_manager=callback_manager, verbose=verbose)

    @classmethod
    def from_index(
        cls,
        index: VectorStoreIndex,
        *,
        epsilon: float,
        similarity_top_k: int = 2,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        store: Store | None = None,
        embed_model: BaseEmbedding | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> PrivateRetriever:
        """In the place of ``index.as_retriever()``.

        Parameters
        ----------
        epsilon, options : of :class:`scoreshield.search.PrivateSearch`: mode, ledger, delta, file and so on.
        store : where the vectors are, if this package cannot tell from the index; its ids are those of the nodes.
        """
        search, node_of = _private(index, store, epsilon, options, "PrivateRetriever.from_index")
        return cls(
            search,
            node_of,
            embed_model if embed_model is not None else index._embed_model,
            similarity_top_k=similarity_top_k,
            filters=filters,
            node_ids=node_ids,
            doc_ids=doc_ids,
            callback_manager=callback_manager if callback_manager is not None else index._callback_manager,
            verbose=verbose,
        )

    @property
    def search(self) -> PrivateSearch:
        """What releases: its guarantee, ``stale``, ``refresh()`` and ``save()``."""
        return self._search

    def __reduce__(self) -> Any:
        raise InvalidInput(_NO_PICKLE)

    def retrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """The nodes of each query; where queries are charged, all are charged together or none is answered.

        Batches raise no retrieval events.
        """
        vectors = [self._vector(one) for one in _bundles(queries)]
        return _find(self._search, self._node_of, np.stack(vectors), self.similarity_top_k, self._keep)

    async def aretrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """:meth:`retrieve_batch`, the embedding awaited and the release in a thread of its own."""
        vectors = [await self._avector(one) for one in _bundles(queries)]
        return await asyncio.to_thread(
            _find, self._search, self._node_of, np.stack(vectors), self.similarity_top_k, self._keep
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = self._vector(query_bundle)
        return _find(self._search, self._node_of, vector[None], self.similarity_top_k, self._keep)[0]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = await self._avector(query_bundle)
        work = (self._search, self._node_of, vector[None], self.similarity_top_k, self._keep)
        return (await asyncio.to_thread(_find, *work))[0]

    def _vector(self, bundle: QueryBundle) -> NDArray[Any]:
        given = bundle.embedding
        if given is None:
            given = self._model(bundle).get_agg_embedding_from_queries(bundle.embedding_strs)
        return _query_vector(given, self._search)

    async def _avector(self, bundle: QueryBundle) -> NDArray[Any]:
        given = bundle.embedding
        if given is None:
            given = await self._model(bundle).aget_agg_embedding_from_queries(bundle.embedding_strs)
        return _query_vector(given, self._search)

    def _model(self, bundle: QueryBundle) -> BaseEmbedding:
        if self._embed_model is None or not bundle.embedding_strs:
            raise InvalidInput("The query has no embedding, and there is no text or no embed_model to make one from.")
        return self._embed_model


class PrivateVectorStore(BasePydanticVectorStore):
    """A vector store that answers with released scores, for ``VectorStoreIndex.from_vector_store(store)``.

    Parameters
    ----------
    search, nodes : as in :class:`PrivateRetriever`.
    """

    stores_text: bool = True
    _search: PrivateSearch = PrivateAttr()
    _node_of: NodeOf = PrivateAttr()
    _wrapped: VectorStoreIndex | None = PrivateAttr(default=None)

    def __init__(self, search: PrivateSearch, nodes: Mapping[Any, BaseNode] | NodeOf) -> None:
        super().__init__(stores_text=True)
        self._search, self._node_of = _checked(search, nodes, "PrivateVectorStore")

    @classmethod
    def from_index(
        cls, index: VectorStoreIndex, *, epsilon: float, store: Store | None = None, **options: Any
    ) -> PrivateVectorStore:
        """Over the vector store of an index; parameters as in :meth:`PrivateRetriever.from_index`."""
        made = cls(*_private(index, store, epsilon, options, "PrivateVectorStore.from_index"))
        made._wrapped = index
        return made

    @classmethod
    def class_name(cls) -> str:
        return "PrivateVectorStore"

    @property
    def client(self) -> None:
        """None: the client of the wrapped store would answer without noise."""
        return

    @property
    def search(self) -> PrivateSearch:
        """What releases: its guarantee, ``stale``, ``refresh()`` and ``save()``."""
        return self._search

    def __reduce__(self) -> Any:
        raise InvalidInput(_NO_PICKLE)

    def __copy__(self) -> PrivateVectorStore:
        raise InvalidInput(_NO_PICKLE)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> PrivateVectorStore:
        raise InvalidInput(_NO_PICKLE)

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The ``similarity_top_k`` best nodes by released score; filters and lists of ids act on that ranking."""
        for name in kwargs:
            refuse(f"The option {name!r} of a query", _UNSEEN)
        if query.mode != VectorStoreQueryMode.DEFAULT:
            refuse(f"The query mode {VectorStoreQueryMode(query.mode).value!r}", "it ranks by clean vectors or text")
        for name in ("alpha", "mmr_threshold", "sparse_top_k", "hybrid_top_k", "output_fields", "embedding_field"):
            if getattr(query, name) is not None:
                refuse(f"{name!r} in a query", _UNSEEN)
        if query.query_embedding is None:
            raise InvalidInput("The query has no embedding.")
        vector = _query_vector(query.query_embedding, self._search)[None]
        keep = _keeper(query.filters, query.node_ids, query.doc_ids)
        k = _checks.count(query.similarity_top_k, "similarity_top_k", "query")
        found = _find(self._search, self._node_of, vector, k, keep)[0]
        scores = [one.score for one in found if one.score is not None]
        return VectorStoreQueryResult(
            nodes=[one.node for one in found],
            similarities=scores if len(scores) == len(found) else None,
            ids=[one.node.node_id for one in found],
        )

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """:meth:`query` in a thread of its own."""
        return await asyncio.to_thread(self.query, query, **kwargs)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes without vectors or scores, in the order asked for or that of the store."""
        keep = _keeper(filters, None, None)
        wanted = self._search.ids if node_ids is None else node_ids
        nodes = (_fetch(self._node_of, one) for one in wanted)
        return [_copy(node, scrub(node.metadata)) for node in nodes if node is not None and keep(node)]

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Into the wrapped index. That is a new version: an index answers from the old one until ``search.refresh()``,
        which pays again; the other modes see it at the next query."""
        for name in kwargs:
            refuse(f"The option {name!r} of add", "the wrapped index adds its own way")
        self._index.insert_nodes(nodes)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """From the wrapped index. No answer names these nodes again; what was released of them stays released."""
        self._index.delete_ref_doc(ref_doc_id, **delete_kwargs)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """As :meth:`delete`, by the nodes' own ids."""
        if node_ids is None or filters is not None:
            refuse("Deleting nodes by filters", "name them by 'node_ids', or delete in the wrapped index itself")
        self._index.delete_nodes(node_ids, **delete_kwargs)

    @property
    def _index(self) -> VectorStoreIndex:
        if self._wrapped is None:
            raise InvalidInput("This store was made of a search and cannot change: change what the search reads.")
        return self._wrapped


class _SimpleStore:
    """A SimpleVectorStore. ``state`` sees inserts, deletes and replaced vectors, not a list changed in place."""

    name = "The SimpleVectorStore"
    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, vector_store: SimpleVectorStore) -> None:
        self._vector_store = vector_store

    @property
    def dimension(self) -> int:
        for vector in self._vector_store.data.embedding_dict.values():
            return len(vector)
        raise StoreError(f"{self.name} holds no records.")

    def state(self) -> Hashable:
        vectors = self._vector_store.data.embedding_dict
        held = list(vectors.values())
        # An address alone may be that of a list which is gone.
        return hash((tuple(vectors), tuple(map(id, held)), tuple(map(itemgetter(0), held))))

    def records(self) -> Records:
        vectors = dict(self._vector_store.data.embedding_dict)
        if len({len(vector) for vector in vectors.values()}) > 1:
            raise StoreError(f"{self.name} mixes vectors of different lengths.")
        return Records(list(vectors), np.array(list(vectors.values()), dtype=np.float64))

    def scores(self, query: NDArray[np.float32]) -> Scored:
        ids, vectors = self.records()
        return ArrayStore(vectors, ids).scores(query)


def _private(
    index: Any, store: Store | None, epsilon: float, options: Mapping[str, Any], function: str
) -> tuple[PrivateSearch, NodeOf]:
    """The search over an index's vectors, and where its nodes are."""
    if not isinstance(index, VectorStoreIndex):
        raise InvalidInput(f"{function} takes a VectorStoreIndex. Got {type(index).__name__} instead.")
    if options.get("centroids"):
        refuse("'centroids' for a retriever", "it answers with nodes, and a centroid is of several")
    found, node_of = _source(index) if store is None else (store, _from_docstore(index, lambda one: one))
    search = PrivateSearch(found, epsilon=epsilon, **options)
    if options.get("file") is not None and all(_fetch(node_of, one) is None for one in search.ids):
        raise InvalidInput("The saved index names none of these nodes: nodes that are made anew need the ids they had.")
    return search, _followed(index, node_of)


def _source(index: VectorStoreIndex) -> tuple[Store, NodeOf]:
    vectors: Any = index.vector_store
    kind = type(vectors).__name__
    if isinstance(vectors, PrivateVectorStore):
        refuse("A private store within a private store", "its scores are released already; use its own retriever")
    if isinstance(vectors, SimpleVectorStore):
        present = _from_docstore(index, index.index_struct.nodes_dict.get)
        return _SimpleStore(vectors), lambda one: present(one) if one in vectors.data.embedding_dict else None
    if kind == "FaissVectorStore":
        return stores.FaissStore(vectors.client), _from_docstore(
            index, lambda one: index.index_struct.nodes_dict.get(str(one))
        )
    if kind == "ChromaVectorStore":
        return stores.ChromaStore(vectors.client), _from_store(vectors)
    if kind == "QdrantVectorStore":
        name = vectors.dense_vector_name or None
        return stores.QdrantStore(vectors.client, vectors.collection_name, vector_name=name), _from_store(vectors)
    raise InvalidInput(
        f"Where a {kind} keeps its vectors is not known: give a 'store' of scoreshield.stores, with the nodes' ids."
    )


def _from_docstore(index: VectorStoreIndex, node_id: Callable[[Any], str | None]) -> NodeOf:
    def node_of(one: Any) -> BaseNode | None:
        named = node_id(one)
        return None if named is None else index.docstore.get_node(named, raise_error=False)

    return node_of


def _from_store(vectors: BasePydanticVectorStore) -> NodeOf:
    def node_of(one: Any) -> BaseNode | None:
        nodes = vectors.get_nodes([str(one)])
        return nodes[0] if nodes else None

    return node_of


def _followed(index: VectorStoreIndex, node_of: NodeOf) -> NodeOf:
    """Nodes with the objects they stand for, which an index keeps beside them."""

    def with_object(one: Any) -> BaseNode | None:
        node = node_of(one)
        if isinstance(node, IndexNode) and node.obj is None and index._object_map:
            return node.model_copy(update={"obj": index._object_map.get(node.index_id)})
        return node

    return with_object


def _checked(search: Any, nodes: Any, function: str) -> tuple[PrivateSearch, NodeOf]:
    if not isinstance(search, PrivateSearch):
        raise InvalidInput(f"{function} takes a PrivateSearch. Got {type(search).__name__} instead.")
    if isinstance(nodes, Mapping):
        return search, nodes.get
    if not callable(nodes):
        raise InvalidInput(f"The 'nodes' of {function} must be a mapping or a function from ids to nodes.")
    return search, nodes


def _bundles(queries: Any) -> list[QueryBundle]:
    if isinstance(queries, str | QueryBundle) or not len(queries):
        raise InvalidInput("A batch is a list of at least one query.")
    return [QueryBundle(one) if isinstance(one, str) else one for one in queries]


def _query_vector(given: ArrayLike, search: PrivateSearch) -> NDArray[Any]:
    """One query, checked here so that a bad one is told before anything is read."""
    vector = _checks.array(given, "query", "retrieve", f"a vector of {search.dimension} real numbers")
    if vector.shape != (search.dimension,):
        _checks.reject("query", "retrieve", f"a vector of {search.dimension} real numbers", vector)
    return vector


def _find(
    search: PrivateSearch, node_of: NodeOf, queries: NDArray[Any], k: int, keep: Keep
) -> list[list[NodeWithScore]]:
    """The nodes of each query by released score. All are at hand before a charge is made."""
    found: dict[Any, BaseNode] = {}

    def where(one: Any) -> bool:
        node = _fetch(node_of, one)
        if node is None or not keep(node):
            return False
        found[one] = node
        return True

    return [_scored(search, hits, found) for hits in search.search_batch(queries, k, where=where)]


def _fetch(node_of: NodeOf, one: Any) -> BaseNode | None:
    try:
        return node_of(one)
    except Exception as error:
        name = type(error).__name__
    raise StoreError(f"The node of a record could not be fetched ({name}); nothing was released.")


def _scored(search: PrivateSearch, hits: Hits, found: Mapping[Any, BaseNode]) -> list[NodeWithScore]:
    scores = [None] * len(hits) if hits.scores is None else hits.scores.tolist()
    return [
        NodeWithScore(node=_copy(found[one], annotated(found[one].metadata, search, hits, place)), score=score)
        for place, (one, score) in enumerate(zip(hits.ids, scores, strict=True))
    ]


def _copy(node: BaseNode, metadata: dict[str, Any]) -> BaseNode:
    """A copy that holds no vector; the guarantee goes neither to the LLM nor into an embedding."""
    changes: dict[str, Any] = {}
    for name in type(node).model_fields:
        value = getattr(node, name)
        if "embedding" in name:
            changes[name] = None
        elif isinstance(value, MediaResource):
            changes[name] = value.model_copy(update={"embeddings": None})
    changes["metadata"] = metadata
    for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
        changes[name] = [*(key for key in getattr(node, name) if key != KEY), KEY]
    changes["relationships"] = {kind: _related(others) for kind, others in node.relationships.items()}
    if isinstance(node, IndexNode):
        # What another retriever or query engine says has no guarantee, so it is not followed.
        obj = _copy(node.obj, {**scrub(node.obj.metadata), KEY: metadata.get(KEY)}) if _is_node(node.obj) else node.obj
        changes["obj"] = obj if _is_node(obj) or isinstance(obj, PrivateRetriever) else None
    return node.model_copy(update=changes)


def _is_node(value: Any) -> bool:
    return isinstance(value, BaseNode)


def _related(others: RelatedNodeInfo | list[RelatedNodeInfo]) -> Any:
    if isinstance(others, list):
        return [_related(one) for one in others]
    return others.model_copy(update={"metadata": scrub(others.metadata)})


def _keeper(filters: MetadataFilters | None, node_ids: Collection[str] | None, doc_ids: Collection[str] | None) -> Keep:
    """Whether a node may be returned. An empty list of ids restricts nothing, as indexes over a store pass it."""
    if filters is not None and not isinstance(filters, MetadataFilters):
        raise InvalidInput(f"Filters must be MetadataFilters. Got {type(filters).__name__} instead.")
    nodes, documents = frozenset(node_ids or ()), frozenset(doc_ids or ())

    def keep(node: BaseNode) -> bool:
        if (nodes and node.node_id not in nodes) or (documents and node.ref_doc_id not in documents):
            return False
        if filters is None:
            return True
        document = dict.fromkeys(("doc_id", "document_id", "ref_doc_id"), node.ref_doc_id or "None")
        try:
            return _passes(filters, {**scrub(node.metadata), **document})
        except (TypeError, ValueError) as error:
            name = type(error).__name__
        raise InvalidInput(f"The filters do not fit the nodes' metadata ({name}).")

    return keep


def _passes(filters: MetadataFilters, metadata: Mapping[str, Any]) -> bool:
    told = [
        _passes(one, metadata)
        if isinstance(one, MetadataFilters)
        else build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[one]))("")
        for one in filters.filters
    ]
    if filters.condition == FilterCondition.OR:
        return any(told)
    return not any(told) if filters.condition == FilterCondition.NOT else all(told)
