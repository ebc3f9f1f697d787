"""The nodes of a LlamaIndex index: fetched by id in batches, judged by filters, copied without their vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, MediaResource, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, FilterCondition, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from scoreshield import _validation
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import KEY, Fields, growing_pages, scrub

#: Nodes of these ids, those that there are.
Fetch = Callable[[Sequence[Any]], Mapping[Any, BaseNode]]
_PAGE = 256
#: What LlamaIndex calls the document that a node is of.
_DOCUMENT = ("doc_id", "document_id", "ref_doc_id")


class Released:
    """Marks what answers with released scores alone: it may be followed to, and is not wrapped again."""


# ---- Where nodes come from.


def fetching(nodes: Any) -> Fetch:
    """From a mapping of ids, or a function from one id to its node or None."""
    if isinstance(nodes, Mapping):
        return _one_by_one(nodes.get)
    if not callable(nodes):
        _validation.reject("nodes", "a mapping or a function from ids to nodes", type(nodes))
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
        nodes = vectors.get_nodes([one])
        return nodes[0] if nodes and not _is_empty(nodes[0]) else None

    def fetch(ids: Sequence[Any]) -> dict[Any, BaseNode]:
        named = {str(one): one for one in ids}
        nodes = [node for node in vectors.get_nodes(list(ids)) if not _is_empty(node)]
        found = {named[node.node_id]: node for node in nodes if node.node_id in named}
        if len(found) < len(nodes):  # a store may write an id in another way than the node does
            found |= _one_by_one(node_of)([one for one in ids if one not in found])
        return found

    return fetch


def _is_empty(node: BaseNode) -> bool:
    """Whether a store made this node of a record that LlamaIndex did not write and that holds a vector alone."""
    return type(node) is TextNode and not node.text and not node.metadata


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
        cause = type(error).__name__
        if isinstance(error, TypeError | ValueError | KeyError | AttributeError):  # what came is no node
            cause += ", as from a record that has no text"
    raise StoreError(f"The nodes of the records could not be fetched ({cause}).")


def any_of(fetch: Fetch, ids: Sequence[Any], what: str = "The store") -> Any:
    """The id of some record that has a node; where none has, an error says so before anything is paid."""
    for page in growing_pages(ids):
        for one in nodes_of(fetch, page):
            return one
    raise InvalidInput(
        f"{what} names none of these nodes: its ids must be theirs, also where nodes are made anew, and a node must "
        "have a text or metadata."
    )


# ---- Which nodes may be returned.


class Restriction:
    """Which nodes may be returned. An empty list of ids restricts nothing, as indexes over a store pass it.

    What a filter names must be filterable, and ``"doc_id"`` where documents are named. The nodes' own ids are public.
    """

    def __init__(self, fields: Fields, filters: Any = None, node_ids: Any = None, doc_ids: Any = None) -> None:
        if filters is not None and not isinstance(filters, MetadataFilters):
            raise InvalidInput(f"Filters must be MetadataFilters. Got {type(filters).__name__} instead.")
        self._filters = filters
        self._nodes, self._documents = _ids(node_ids, "node_ids"), _ids(doc_ids, "doc_ids")
        try:
            named = _named_in(filters)
        except RecursionError:
            named = None
        if named is None:
            raise InvalidInput("The filters are nested too deeply.")
        fields.require(named | ({_DOCUMENT[0]} if self._documents else set()))
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
        document = dict.fromkeys(_DOCUMENT, node.ref_doc_id or "None")
        try:
            return _passes(self._filters, {**scrub(node.metadata), **document})
        except (TypeError, ValueError) as error:
            name = type(error).__name__
        raise InvalidInput(f"The filters do not fit the nodes' metadata ({name}).")


def checked_fields(filterable: Any, visible: Any) -> Fields:
    """The declared fields, the document under one name."""
    fields = Fields.checked(filterable, visible)
    return Fields(frozenset(map(_one_name, fields.filterable)), fields.visible)


def _named_in(filters: MetadataFilters | None) -> set[str]:
    """The fields that filters look at, at any depth."""
    found: set[str] = set()
    for one in filters.filters if filters is not None else ():
        found |= _named_in(one) if isinstance(one, MetadataFilters) else {_one_name(one.key)}
    return found


def _one_name(field: str) -> str:
    return _DOCUMENT[0] if field in _DOCUMENT else field


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


def bare_copy(node: BaseNode, metadata: dict[str, Any], fields: Fields) -> BaseNode:
    """A copy that holds no vector; the guarantee goes neither to the LLM nor into an embedding."""
    changes: dict[str, Any] = {}
    known = _known_fields(type(node))
    for name in type(node).model_fields:
        value = getattr(node, name)
        if "embedding" in name:
            changes[name] = None
        elif name not in known:  # of a class of the user's own, which may keep a vector there
            changes[name] = fields.shown({name: value}).get(name)
        elif isinstance(value, MediaResource):
            changes[name] = value.model_copy(update={"embeddings": None})
    changes["metadata"] = metadata
    for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
        changes[name] = [*(key for key in getattr(node, name) if key != KEY), KEY]
    changes["relationships"] = {kind: _related(others, fields) for kind, others in node.relationships.items()}
    if isinstance(node, IndexNode):
        # What another retriever or query engine says has no guarantee, so it is not followed.
        inner = node.obj
        if isinstance(inner, BaseNode):
            changes["obj"] = bare_copy(inner, {**fields.shown(inner.metadata), KEY: metadata.get(KEY)}, fields)
        else:
            changes["obj"] = inner if isinstance(inner, Released) and isinstance(inner, BaseRetriever) else None
    copied = node.model_copy(update=changes)
    if copied.__pydantic_private__:
        copied.__pydantic_private__ = {}
    return copied


def _known_fields(cls: type[BaseNode]) -> frozenset[str]:
    """The fields that LlamaIndex itself gives a node of this class."""
    own = (
        base for base in cls.__mro__ if base.__module__.startswith("llama_index.core.") and issubclass(base, BaseNode)
    )
    return frozenset(name for base in own for name in base.model_fields)


def _related(others: RelatedNodeInfo | list[RelatedNodeInfo], fields: Fields) -> Any:
    if isinstance(others, list):
        return [_related(one, fields) for one in others]
    # The hash is over all metadata: whoever has it can try what a field that is not shown may hold.
    return others.model_copy(update={"metadata": fields.shown(others.metadata), "hash": None})
