"""What the LlamaIndex adapter reads: the nodes of an index by id, filters on them, its vectors, and safe copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, MediaResource, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, FilterCondition, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from numpy.typing import NDArray

from scoreshield import _validation, stores
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations.core import (
    ChangeCounter,
    RecordSource,
    choose_look_interval,
    hash_addresses,
    reject_bypass,
)
from scoreshield.integrations.fields import GUARANTEE_FIELD, PublicFields, scrub_metadata
from scoreshield.stores import ArrayStore, Convention, Records, Store, StoreScores

#: From ids to the nodes that are there.
FetchNodes = Callable[[Sequence[Any]], Mapping[Any, BaseNode]]
#: The names that LlamaIndex gives to the document of a node.
_DOCUMENT_NAMES = ("doc_id", "document_id", "ref_doc_id")


class PrivateMarker:
    """Marks classes that answer with released scores alone. They may be followed to, and are not wrapped again."""


# ---- Nodes by id.


class NodeSource(RecordSource[BaseNode]):
    """Reads nodes through a function from ids to nodes."""

    def __init__(self, fetch: FetchNodes) -> None:
        self._fetch = fetch

    @classmethod
    def from_nodes(cls, nodes: Any) -> NodeSource:
        """Read from a mapping of ids, or through a function from one id to its node or None."""
        if isinstance(nodes, Mapping):
            return cls(_fetch_singly(nodes.get))
        if not callable(nodes):
            _validation.reject("nodes", "a mapping or a function from ids to nodes", type(nodes))
        return cls(_fetch_singly(nodes))

    @classmethod
    def from_index(cls, index: VectorStoreIndex, fetch: FetchNodes) -> NodeSource:
        """Read the nodes of an index, with the objects that it keeps beside them."""

        def add_object(node: BaseNode) -> BaseNode:
            if isinstance(node, IndexNode) and node.obj is None:
                return node.model_copy(update={"obj": index._object_map.get(node.index_id)})
            return node

        def fetch_with_objects(ids: Sequence[Any]) -> Mapping[Any, BaseNode]:
            nodes = fetch(ids)
            return {one: add_object(node) for one, node in nodes.items()} if index._object_map else nodes

        return cls(fetch_with_objects)

    def fetch(self, ids: Sequence[Any]) -> Mapping[Any, BaseNode]:
        return self._fetch(ids)

    def get_metadata(self, record: BaseNode) -> dict[str, Any]:
        return record.metadata

    def describe_failure(self, error: Exception) -> str:
        cause = type(error).__name__
        if isinstance(error, TypeError | ValueError | KeyError | AttributeError):  # the store made no node
            cause += ", as from a record that has no text"
        return f"The nodes of the records could not be fetched ({cause})."

    def describe_mismatch(self, ids: Sequence[Any], *, has_records: bool) -> str:
        del ids, has_records
        return (
            "The store, or the saved index, names none of these nodes: its ids must be theirs, also where nodes are "
            "made again, and a node must have a text or metadata."
        )


def _fetch_singly(get_node: Callable[[Any], BaseNode | None]) -> FetchNodes:
    def fetch(ids: Sequence[Any]) -> dict[Any, BaseNode]:
        nodes = ((one, get_node(one)) for one in ids)
        return {one: node for one, node in nodes if node is not None}

    return fetch


def fetch_from_docstore(index: VectorStoreIndex, get_node_id: Callable[[Any], str | None]) -> FetchNodes:
    """Fetch nodes from the document store of an index.

    Args:
        index: The index.
        get_node_id: From the id of a record to that of its node; None for a record that is gone.
    """

    def get_node(one: Any) -> BaseNode | None:
        node_id = get_node_id(one)
        return None if node_id is None else index.docstore.get_node(node_id, raise_error=False)

    return _fetch_singly(get_node)


def fetch_from_store(vectors: BasePydanticVectorStore) -> FetchNodes:
    """Fetch nodes from a vector store that keeps the nodes itself."""

    def get_node(one: Any) -> BaseNode | None:
        nodes = vectors.get_nodes([one])
        return nodes[0] if nodes and not _is_empty(nodes[0]) else None

    def fetch(ids: Sequence[Any]) -> dict[Any, BaseNode]:
        ids_by_name = {str(one): one for one in ids}
        nodes = [node for node in vectors.get_nodes(list(ids)) if not _is_empty(node)]
        by_id = {ids_by_name[node.node_id]: node for node in nodes if node.node_id in ids_by_name}
        if len(by_id) < len(nodes):  # a store may write an id in another way than the node does
            by_id |= _fetch_singly(get_node)([one for one in ids if one not in by_id])
        return by_id

    return fetch


def _is_empty(node: BaseNode) -> bool:
    """Return whether a store made this node of a record that LlamaIndex did not write and that holds a vector alone."""
    return type(node) is TextNode and not node.text and not node.metadata


# ---- Filters.


class NodeFilter:
    """Which nodes may be returned. An empty list of ids restricts nothing, as indexes over a store pass it.

    Args:
        fields: The fields that filters may name, and ``"doc_id"`` where documents are named. The ids of nodes are
            public.
        filters: LlamaIndex's filters.
        node_ids: The nodes that may be returned.
        doc_ids: The documents whose nodes may be returned.

    Raises:
        InvalidInput: If a filter names a field that is not filterable.
    """

    def __init__(self, fields: PublicFields, filters: Any = None, node_ids: Any = None, doc_ids: Any = None) -> None:
        if filters is not None and not isinstance(filters, MetadataFilters):
            raise InvalidInput(f"Filters must be MetadataFilters. Got {type(filters).__name__} instead.")
        self._filters = filters
        self._nodes, self._documents = _check_ids(node_ids, "node_ids"), _check_ids(doc_ids, "doc_ids")
        try:
            names = _list_fields(filters)
        except RecursionError:
            names = None
        if names is None:
            raise InvalidInput("The filters are nested too deeply.")
        fields.require(names | ({_DOCUMENT_NAMES[0]} if self._documents else set()))
        self.is_restrictive = filters is not None or bool(self._nodes) or bool(self._documents)
        self.key = repr((filters, sorted(self._nodes), sorted(self._documents)))

    def allows(self, one: Any, record: BaseNode) -> bool:
        del one
        if self._nodes and record.node_id not in self._nodes:
            return False
        if self._documents and record.ref_doc_id not in self._documents:
            return False
        if self._filters is None:
            return True
        document = dict.fromkeys(_DOCUMENT_NAMES, record.ref_doc_id or "None")
        try:
            return _passes(self._filters, {**scrub_metadata(record.metadata), **document})
        except (TypeError, ValueError) as error:
            name = type(error).__name__
        raise InvalidInput(f"The filters do not fit the nodes' metadata ({name}).")


def declare_node_fields(filterable: Any, visible: Any) -> PublicFields:
    """Declare public fields, with one name for the document of a node."""
    fields = PublicFields.declare(filterable, visible)
    return PublicFields(frozenset(map(_unify_name, fields.filterable)), fields.visible)


def _list_fields(filters: MetadataFilters | None) -> set[str]:
    """List the fields that filters look at, at any depth."""
    names: set[str] = set()
    for one in filters.filters if filters is not None else ():
        names |= _list_fields(one) if isinstance(one, MetadataFilters) else {_unify_name(one.key)}
    return names


def _unify_name(field: str) -> str:
    return _DOCUMENT_NAMES[0] if field in _DOCUMENT_NAMES else field


def _check_ids(ids: Any, name: str) -> frozenset[str]:
    if ids is None:
        return frozenset()
    if isinstance(ids, str) or not isinstance(ids, Collection) or not all(isinstance(one, str) for one in ids):
        raise InvalidInput(f"The {name!r} of a retriever must be a list of ids, which are strings.")
    return frozenset(ids)


def _passes(filters: MetadataFilters, metadata: Mapping[str, Any]) -> bool:
    results = [
        _passes(one, metadata)
        if isinstance(one, MetadataFilters)
        else build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[one]))("")
        for one in filters.filters
    ]
    if filters.condition == FilterCondition.OR:
        return any(results)
    return not any(results) if filters.condition == FilterCondition.NOT else all(results)


# ---- Copies without vectors.


def copy_node(node: BaseNode, metadata: dict[str, Any], fields: PublicFields) -> BaseNode:
    """Copy a node without its vectors. The guarantee goes neither to the language model nor into an embedding."""
    changes: dict[str, Any] = {}
    known = _list_known_fields(type(node))
    for name in type(node).model_fields:
        value = getattr(node, name)
        if "embedding" in name:
            changes[name] = None
        elif name not in known:  # a field of the user's class may hold a vector
            changes[name] = fields.select({name: value}).get(name)
        elif isinstance(value, MediaResource):
            changes[name] = value.model_copy(update={"embeddings": None})
    changes["metadata"] = metadata
    for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
        changes[name] = [*(key for key in getattr(node, name) if key != GUARANTEE_FIELD), GUARANTEE_FIELD]
    changes["relationships"] = {kind: _copy_related(others, fields) for kind, others in node.relationships.items()}
    if isinstance(node, IndexNode):
        changes["obj"] = _copy_object(node.obj, metadata.get(GUARANTEE_FIELD), fields)
    copied = node.model_copy(update=changes)
    if copied.__pydantic_private__:
        copied.__pydantic_private__ = {}
    return copied


def _list_known_fields(cls: type[BaseNode]) -> frozenset[str]:
    """List the fields that LlamaIndex itself gives a node of this class."""
    bases = (
        base for base in cls.__mro__ if base.__module__.startswith("llama_index.core.") and issubclass(base, BaseNode)
    )
    return frozenset(name for base in bases for name in base.model_fields)


def _copy_object(inner: Any, facts: Any, fields: PublicFields) -> Any:
    """Copy the object of an IndexNode: a node, or a private retriever. Other retrievers have no guarantee."""
    if isinstance(inner, BaseNode):
        return copy_node(inner, {**fields.select(inner.metadata), GUARANTEE_FIELD: facts}, fields)
    return inner if isinstance(inner, PrivateMarker) and isinstance(inner, BaseRetriever) else None


def _copy_related(others: RelatedNodeInfo | list[RelatedNodeInfo], fields: PublicFields) -> Any:
    if isinstance(others, list):
        return [_copy_related(one, fields) for one in others]
    # The hash covers all metadata, so it would confirm a guess of a field that is not visible.
    return others.model_copy(update={"metadata": fields.select(others.metadata), "hash": None})


# ---- Vectors.


class SimpleStore:
    """The vectors of a SimpleVectorStore.

    ``state`` sees nodes that were added or deleted, and vectors that were replaced. It does not see a list that was
    changed in place.

    Args:
        vector_store: The store.
        holds: Whether to hold the lists between two looks (`ChangeCounter`), for
            modes that look at every query. Vectors are pinned in these modes anyway; an index keeps none.
    """

    name = "The SimpleVectorStore"
    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, vector_store: SimpleVectorStore, *, holds: bool) -> None:
        self._vector_store = vector_store
        self._counter = ChangeCounter() if holds else None

    @property
    def dimension(self) -> int:
        for vector in self._vector_store.data.embedding_dict.values():
            return len(vector)
        raise StoreError(f"{self.name} holds no records.")

    @property
    def look_every(self) -> float:
        return choose_look_interval(len(self._vector_store.data.embedding_dict))

    def state(self) -> Hashable:
        vectors = self._vector_store.data.embedding_dict
        return hash_addresses(vectors, itemgetter(0)) if self._counter is None else self._counter.count(vectors)

    def ids(self) -> Sequence[str]:
        return list(self._vector_store.data.embedding_dict)

    def records(self) -> Records:
        vectors = dict(self._vector_store.data.embedding_dict)
        if len({len(vector) for vector in vectors.values()}) > 1:
            raise StoreError(f"{self.name} mixes vectors of different lengths.")
        return Records(list(vectors), np.array(list(vectors.values()), dtype=np.float64))

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        ids, vectors = self.records()
        return ArrayStore(vectors, ids).scores(query)


def adapt_index(index: VectorStoreIndex, store: Any, *, holds: bool) -> tuple[Any, NodeSource]:
    """Find the vectors and nodes of an index.

    Args:
        index: The index.
        store: A store of `scoreshield.stores` that has the vectors; None to find them.
        holds: As in `SimpleStore`.
    """
    if store is None:
        store, fetch = _find_vectors(index, holds=holds)
    else:
        fetch = fetch_from_docstore(index, lambda one: one if isinstance(one, str) else None)
    return store, NodeSource.from_index(index, fetch)


def _find_vectors(index: VectorStoreIndex, *, holds: bool) -> tuple[Store, FetchNodes]:
    vectors: Any = index.vector_store
    kind = type(vectors).__name__
    if isinstance(vectors, PrivateMarker):
        reject_bypass("A private store within a private store", "its scores are released already; use its retriever")
    if isinstance(vectors, SimpleVectorStore):
        return SimpleStore(vectors, holds=holds), fetch_from_docstore(
            index, lambda one: index.index_struct.nodes_dict.get(one) if one in vectors.data.embedding_dict else None
        )
    if kind == "FaissVectorStore":
        return stores.FaissStore(vectors.client), fetch_from_docstore(
            index, lambda one: index.index_struct.nodes_dict.get(str(one))
        )
    if kind == "ChromaVectorStore":
        return stores.ChromaStore(vectors.client), fetch_from_store(vectors)
    if kind == "QdrantVectorStore":
        name = vectors.dense_vector_name or None
        return stores.QdrantStore(vectors.client, vectors.collection_name, vector_name=name), fetch_from_store(vectors)
    raise InvalidInput(
        f"Where a {kind} keeps its vectors is not known: give a 'store' of scoreshield.stores, with the nodes' ids."
    )
