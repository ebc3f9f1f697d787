"""The nodes of a LlamaIndex index: fetched by id in batches, judged by filters, copied without their vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, MediaResource, RelatedNodeInfo
from llama_index.core.vector_stores.types import BasePydanticVectorStore, FilterCondition, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import KEY, scrub

#: Nodes of these ids, those that there are.
Fetch = Callable[[Sequence[Any]], Mapping[Any, BaseNode]]
_PAGE = 256


class Released:
    """Marks what answers with released scores alone: it may be followed to, and is not wrapped again."""


# ---- Where nodes come from.


def fetching(nodes: Any, function: str) -> Fetch:
    """From a mapping of ids, or a function from one id to its node or None."""
    if isinstance(nodes, Mapping):
        return _one_by_one(nodes.get)
    if not callable(nodes):
        raise InvalidInput(f"The 'nodes' of {function} must be a mapping or a function from ids to nodes.")
    return _one_by_one(nodes)


def from_docstore(index: VectorStoreIndex, node_id: Callable[[Any], str | None]) -> Fetch:
    """From the index's own document store; ``node_id`` says what a record is called there, or None for gone."""

    def node_of(one: Any) -> BaseNode | None:
        named = node_id(one)
        return None if named is None else index.docstore.get_node(named, raise_error=False)

    return _one_by_one(node_of)


def from_store(vectors: BasePydanticVectorStore) -> Fetch:
    """From a vector store that keeps the nodes itself."""

    def node_of(one: Any) -> BaseNode | None:
        nodes = vectors.get_nodes([str(one)])
        return nodes[0] if nodes else None

    def fetch(ids: Sequence[Any]) -> dict[Any, BaseNode]:
        named = {str(one): one for one in ids}
        nodes = vectors.get_nodes(list(named))
        found = {named[node.node_id]: node for node in nodes if node.node_id in named}
        if len(found) < len(nodes):  # a store may write an id in another way than the node does
            found |= _one_by_one(node_of)([one for one in ids if one not in found])
        return found

    return fetch


def followed(index: VectorStoreIndex, fetch: Fetch) -> Fetch:
    """Nodes with the objects they stand for, which an index keeps beside them."""

    def with_object(node: BaseNode) -> BaseNode:
        if isinstance(node, IndexNode) and node.obj is None:
            return node.model_copy(update={"obj": index._object_map.get(node.index_id)})
        return node

    def with_objects(ids: Sequence[Any]) -> Mapping[Any, BaseNode]:
        found = fetch(ids)
        return {one: with_object(node) for one, node in found.items()} if index._object_map else found

    return with_objects


def _one_by_one(node_of: Callable[[Any], BaseNode | None]) -> Fetch:
    def fetch(ids: Sequence[Any]) -> dict[Any, BaseNode]:
        found = ((one, node_of(one)) for one in ids)
        return {one: node for one, node in found if node is not None}

    return fetch


def nodes_of(fetch: Fetch, ids: Iterable[Any]) -> dict[Any, BaseNode]:
    """The nodes, read in pages; a failure is told by its type alone, as its text may hold data."""
    wanted = list(dict.fromkeys(ids))
    found: dict[Any, BaseNode] = {}
    try:
        for start in range(0, len(wanted), _PAGE):
            found.update(fetch(wanted[start : start + _PAGE]))
        return found
    except Exception as error:
        name = type(error).__name__
    raise StoreError(f"The nodes of the records could not be fetched ({name}).")


def any_of(fetch: Fetch, ids: Sequence[Any], what: str = "The store") -> Any:
    """The id of some record that has a node; where none has, that is told before anything is paid."""
    for start in range(0, len(ids), _PAGE):
        for one in nodes_of(fetch, ids[start : start + _PAGE]):
            return one
    raise InvalidInput(f"{what} names none of these nodes: its ids must be theirs, also where nodes are made anew.")


# ---- Which nodes may be returned.


class Restriction:
    """Which nodes may be returned. An empty list of ids restricts nothing, as indexes over a store pass it."""

    def __init__(self, filters: Any = None, node_ids: Any = None, doc_ids: Any = None) -> None:
        if filters is not None and not isinstance(filters, MetadataFilters):
            raise InvalidInput(f"Filters must be MetadataFilters. Got {type(filters).__name__} instead.")
        self._filters = filters
        self._nodes, self._documents = _ids(node_ids, "node_ids"), _ids(doc_ids, "doc_ids")
        self.all_pass = filters is None and not self._nodes and not self._documents
        #: Says the same of every node as another restriction with this key.
        self.key = repr((filters, sorted(self._nodes), sorted(self._documents)))

    def __call__(self, node: BaseNode) -> bool:
        if self._nodes and node.node_id not in self._nodes:
            return False
        if self._documents and node.ref_doc_id not in self._documents:
            return False
        if self._filters is None:
            return True
        document = dict.fromkeys(("doc_id", "document_id", "ref_doc_id"), node.ref_doc_id or "None")
        try:
            return _passes(self._filters, {**scrub(node.metadata), **document})
        except (TypeError, ValueError) as error:
            name = type(error).__name__
        raise InvalidInput(f"The filters do not fit the nodes' metadata ({name}).")


def _ids(given: Any, name: str) -> frozenset[str]:
    if given is None:
        return frozenset()
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(one, str) for one in given):
        raise InvalidInput(f"The {name!r} of a retriever must be a list of ids, which are strings.")
    return frozenset(given)


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


# ---- What is shown of them.


def bare_copy(node: BaseNode, metadata: dict[str, Any]) -> BaseNode:
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
        inner = node.obj
        if isinstance(inner, BaseNode):
            changes["obj"] = bare_copy(inner, {**scrub(inner.metadata), KEY: metadata.get(KEY)})
        else:
            changes["obj"] = inner if isinstance(inner, Released) and isinstance(inner, BaseRetriever) else None
    return node.model_copy(update=changes)


def _related(others: RelatedNodeInfo | list[RelatedNodeInfo]) -> Any:
    if isinstance(others, list):
        return [_related(one) for one in others]
    return others.model_copy(update={"metadata": scrub(others.metadata)})
