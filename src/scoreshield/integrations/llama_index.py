"""LlamaIndex: a private retriever, and a private vector store for what is built on one.

``PrivateRetriever.from_index(index, epsilon=8, similarity_top_k=4)`` stands where
``index.as_retriever(similarity_top_k=4)`` stood. Scores are released cosines; filters and restrictions act on the
released ranking; what comes back are copies of the nodes without their vectors, with the guarantee in the metadata.
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

from scoreshield.integrations._common import Fields, refuse
from scoreshield.integrations.llama_index_nodes import (
    Released,
    Restriction,
    bare_copy,
    checked_fields,
    fetching,
    nodes_of,
)
from scoreshield.integrations.llama_index_stores import Answers, private

#: From the id of a record to its node; None where there is none (any more).
NodeOf = Callable[[Any], BaseNode | None]

_UNSEEN = "its result has no guarantee"
_NO_PICKLE = "It may hold private vectors and is not pickled or copied; save an index with search.save() instead."


class PrivateRetriever(Released, BaseRetriever):
    """Retrieves nodes by released scores.

    Parameters
    ----------
    search : what releases.
    nodes : a mapping or a function from the search's ids to nodes.
    embed_model : of the queries; without it, a query must bring its embedding.
    similarity_top_k : how many nodes to return.
    filters, node_ids, doc_ids : which nodes may be returned: the best of these by released score.
    filterable : the metadata fields that filters may name, and ``"doc_id"`` for ``doc_ids``. None by default, because
        whoever filters on a field learns it of every node exactly.
    visible : the metadata fields that answers carry; all by default.
    """

    @validate()
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
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        fields = checked_fields(filterable, visible)
        self._answers = _checked(search, nodes, fields)
        self.similarity_top_k, self._only = _checked_asking(
            similarity_top_k, Restriction(fields, filters, node_ids, doc_ids), embed_model, callback_manager
        )
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
        """In the place of ``index.as_retriever()``.

        Parameters
        ----------
        epsilon, options : of :class:`scoreshield.search.PrivateSearch`: mode, ledger, delta, file and so on.
        store : where the vectors are, if this package cannot tell from the index; its ids are those of the nodes.

        A store whose ids name none of the index's nodes is refused before anything is paid.
        """
        asking: dict[str, Any] = {
            "similarity_top_k": similarity_top_k,
            "filters": filters,
            "node_ids": node_ids,
            "doc_ids": doc_ids,
            "filterable": filterable,
            "visible": visible,
            "verbose": verbose,
        }
        # Whatever is wrong with the asking is told before an index is paid for.
        fields = checked_fields(filterable, visible)
        only = Restriction(fields, filters, node_ids, doc_ids)
        _checked_asking(similarity_top_k, only, embed_model, callback_manager)
        answers = private(index, store, epsilon, options, fields)
        asking["embed_model"] = index._embed_model if embed_model is None else embed_model
        asking["callback_manager"] = index._callback_manager if callback_manager is None else callback_manager
        made = cls(answers.search, {}, **asking)
        made._answers = answers
        return made

    @property
    def search(self) -> PrivateSearch:
        """What releases: its guarantee, ``stale``, ``refresh()`` and ``save()``."""
        return self._answers.search

    def __reduce__(self) -> Any:
        raise InvalidInput(_NO_PICKLE)

    @clear_frames_on_error
    def retrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """The nodes of each query; where queries are charged, all are charged together or none is answered.

        Batches raise no retrieval events.
        """
        vectors = [self._vector(one) for one in _bundles(queries)]
        return self._answers.find(np.stack(vectors), self.similarity_top_k, self._only)

    @clear_frames_on_error
    async def aretrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """:meth:`retrieve_batch`, the embedding awaited and the release in a thread of its own."""
        vectors = [await self._avector(one) for one in _bundles(queries)]
        return await asyncio.to_thread(self._answers.find, np.stack(vectors), self.similarity_top_k, self._only)

    @clear_frames_on_error
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = self._vector(query_bundle)
        return self._answers.find(vector[None], self.similarity_top_k, self._only)[0]

    @clear_frames_on_error
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = await self._avector(query_bundle)
        found = await asyncio.to_thread(self._answers.find, vector[None], self.similarity_top_k, self._only)
        return found[0]

    def _vector(self, bundle: QueryBundle) -> NDArray[Any]:
        given = bundle.embedding
        if given is None:
            given = self._model(bundle).get_agg_embedding_from_queries(bundle.embedding_strs)
        return _query_vector(given, self.search)

    async def _avector(self, bundle: QueryBundle) -> NDArray[Any]:
        given = bundle.embedding
        if given is None:
            given = await self._model(bundle).aget_agg_embedding_from_queries(bundle.embedding_strs)
        return _query_vector(given, self.search)

    def _model(self, bundle: QueryBundle) -> BaseEmbedding:
        if self._embed_model is None or not bundle.embedding_strs:
            raise InvalidInput("The query has no embedding, and there is no text or no embed_model to make one from.")
        return self._embed_model


class PrivateVectorStore(Released, BasePydanticVectorStore):
    """A vector store that answers with released scores, for ``VectorStoreIndex.from_vector_store(store)``.

    Parameters
    ----------
    search, nodes, filterable, visible : as in :class:`PrivateRetriever`.
    """

    stores_text: bool = True
    _answers: Answers = PrivateAttr()
    _wrapped: VectorStoreIndex | None = PrivateAttr(default=None)

    @validate()
    def __init__(
        self,
        search: PrivateSearch,
        nodes: Mapping[Any, BaseNode] | NodeOf,
        *,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
    ) -> None:
        super().__init__(stores_text=True)
        fields = checked_fields(filterable, visible)
        self._answers = _checked(search, nodes, fields)

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
        """Over the vector store of an index; parameters as in :meth:`PrivateRetriever.from_index`."""
        fields = checked_fields(filterable, visible)
        answers = private(index, store, epsilon, options, fields)
        made = cls(answers.search, {})
        made._answers, made._wrapped = answers, index
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
        return self._answers.search

    def __reduce__(self) -> Any:
        raise InvalidInput(_NO_PICKLE)

    def __copy__(self) -> PrivateVectorStore:
        raise InvalidInput(_NO_PICKLE)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> PrivateVectorStore:
        raise InvalidInput(_NO_PICKLE)

    @clear_frames_on_error
    @validate()
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
        vector = _query_vector(query.query_embedding, self.search)[None]
        only = Restriction(self._answers.fields, query.filters, query.node_ids, query.doc_ids)
        k = _validation.check_count(query.similarity_top_k, "similarity_top_k")
        found = self._answers.find(vector, k, only)[0]
        scores = [one.score for one in found if one.score is not None]
        return VectorStoreQueryResult(
            nodes=[one.node for one in found],
            similarities=scores if len(scores) == len(found) else None,
            ids=[one.node.node_id for one in found],
        )

    @clear_frames_on_error
    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """:meth:`query` in a thread of its own."""
        return await asyncio.to_thread(self.query, query, **kwargs)

    @clear_frames_on_error
    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes without vectors or scores, in the order asked for or that of the store."""
        fields = self._answers.fields
        only = Restriction(fields, filters)
        wanted = self.search.ids if node_ids is None else node_ids
        found = nodes_of(self._answers.fetch, wanted)
        nodes = [found[one] for one in wanted if one in found and only(found[one])]
        return [bare_copy(node, fields.shown(node.metadata), fields) for node in nodes]

    @clear_frames_on_error
    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Into the wrapped index. That is a new version: an index answers from the old one until ``search.refresh()``,
        which pays again; the other modes see it at the next query.

        Nodes without an embedding are embedded one by one, since texts that are embedded together change each other's
        last bits.
        """
        for name in kwargs:
            refuse(f"The option {name!r} of add", "the wrapped index adds its own way")
        for node in nodes:
            self._index.insert_nodes([node])
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


def _checked(search: Any, nodes: Any, fields: Fields) -> Answers:
    if not isinstance(search, PrivateSearch):
        _validation.reject("search", "a PrivateSearch", type(search))
    return Answers(search, fetching(nodes), fields)


def _checked_asking(
    similarity_top_k: Any, only: Restriction, embed_model: Any, callback_manager: Any
) -> tuple[int, Restriction]:
    if embed_model is not None and not isinstance(embed_model, BaseEmbedding):
        raise InvalidInput(f"The 'embed_model' must be a BaseEmbedding. Got {type(embed_model).__name__} instead.")
    if callback_manager is not None and not isinstance(callback_manager, CallbackManager):
        raise InvalidInput(f"The 'callback_manager' must be a CallbackManager. Got {type(callback_manager).__name__}.")
    return _validation.check_count(similarity_top_k, "similarity_top_k"), only


def _bundles(queries: Any) -> list[QueryBundle]:
    many = isinstance(queries, Sequence) and not isinstance(queries, str)
    if not many or not queries or not all(isinstance(one, str | QueryBundle) for one in queries):
        raise InvalidInput("A batch is a list of at least one query, each a text or a QueryBundle.")
    return [QueryBundle(one) if isinstance(one, str) else one for one in queries]


def _query_vector(given: ArrayLike, search: PrivateSearch) -> NDArray[Any]:
    """One query, checked here so that a bad one is told before anything is read."""
    vector = _validation.check_array(given, "query", f"a vector of {search.dimension} real numbers")
    if vector.shape != (search.dimension,):
        _validation.reject("query", f"a vector of {search.dimension} real numbers", vector)
    return vector
