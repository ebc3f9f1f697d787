"""From a LlamaIndex index to a private search: where its vectors are, and how queries are answered with its nodes."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores import SimpleVectorStore
from numpy.typing import NDArray

from scoreshield import _validation, stores
from scoreshield.errors import InvalidInput, InvalidParameter, StoreError
from scoreshield.integrations._common import Fields, annotated, look_every, not_charged, not_read, refuse, take_unread
from scoreshield.integrations.llama_index_nodes import (
    Fetch,
    Released,
    Restriction,
    any_of,
    bare_copy,
    followed,
    from_docstore,
    from_store,
    nodes_of,
)
from scoreshield.search import Hits, PrivateSearch
from scoreshield.search.index_files import has_saved_index
from scoreshield.search.sources import pin_store
from scoreshield.stores import ArrayStore, Convention, Records, Store, StoreScores

#: Hits beyond k that are released with them and stand in for nodes deleted meanwhile.
_SPARE = 16
#: Paid rankings that are kept where their nodes could not be read.
_MOST_UNREAD = 256
_PARAMETERS = inspect.signature(PrivateSearch).parameters


class SimpleStore:
    """A SimpleVectorStore.

    ``state`` sees nodes that were added or deleted, and vectors put in another's place; a list that is changed in place
    is not seen.

    Parameters
    ----------
    often : whether the state is asked for at each query. The lists themselves are then kept until the next look,
        which compares them many times faster than it would write down where they are. Vectors are pinned in these
        modes anyway; an index keeps none.
    """

    name = "The SimpleVectorStore"
    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, vector_store: SimpleVectorStore, *, often: bool) -> None:
        self._vector_store, self._often = vector_store, often
        self._seen: list[Any] = []
        self._changes = 0

    @property
    def dimension(self) -> int:
        for vector in self._vector_store.data.embedding_dict.values():
            return len(vector)
        raise StoreError(f"{self.name} holds no records.")

    @property
    def look_every(self) -> float:
        return look_every(len(self._vector_store.data.embedding_dict))

    def state(self) -> Hashable:
        vectors = self._vector_store.data.embedding_dict
        if not self._often:
            held = list(vectors.values())
            # An address alone may be that of a list which is gone.
            return hash((tuple(vectors), tuple(map(id, held)), tuple(map(itemgetter(0), held))))
        # Whatever gets another name moves to the end, so that one name stands for all.
        now = [*islice(reversed(vectors), 1), *vectors.values()]
        if not _same(now, self._seen):
            self._changes += 1
        self._seen = now
        return self._changes

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


def _same(now: list[Any], before: list[Any]) -> bool:
    """Whether these are the same things, or equal; the same are told by their addresses alone."""
    try:
        return now == before
    except Exception:  # arrays, which do not say whether they are equal
        return False


class Answers:
    """From query vectors to nodes: every query of the retriever and of the vector store ends here.

    What is shown is read after the release, so a node that is gone is never named.
    """

    def __init__(self, search: PrivateSearch, fetch: Fetch, fields: Fields, known: Any = None) -> None:
        self.search, self.fetch, self.fields = search, fetch, fields
        self._known = known  # a record that has a node
        self._unread: dict[Hashable, list[Hits]] = {}

    def find(self, queries: NDArray[Any], k: int, only: Restriction) -> list[list[NodeWithScore]]:
        """The k best nodes of each query, among those that may be returned: one charge for all, where there is one."""
        if self.search.mode == "index":
            return self._from_index(queries, k, only)
        asked = queries.shape, queries.tobytes(), k, only.key
        hits = take_unread(self._unread, asked, self.search) or self._charged(queries, k, only)
        try:
            return self._shown(hits, k, only)[0]
        except BaseException as error:  # an interrupt does not lose what was paid for either
            self._unread = dict([*self._unread.items(), (asked, hits)][-_MOST_UNREAD:])
            if not isinstance(error, StoreError | InvalidInput):
                raise
            failure = not_read(error, hits, k)
        raise failure

    def _from_index(self, queries: NDArray[Any], k: int, only: Restriction) -> list[list[NodeWithScore]]:
        """Asking an index again costs nothing: more is asked for until enough of it may be returned."""
        want = k
        while True:
            hits = self.search.search_batch(queries, want)
            shown, enough = self._shown(hits, k, only)
            if enough or all(len(one) < want for one in hits):
                return shown
            want *= 4

    def _charged(self, queries: NDArray[Any], k: int, only: Restriction) -> list[Hits]:
        """Released and paid for. What can go wrong with nodes and filters is tried before, on no ranking."""
        try:
            if self._known is None or not nodes_of(self.fetch, [self._known]):
                self._known = any_of(self.fetch, self.search.ids)
            found = {} if only.all_pass else nodes_of(self.fetch, self.search.ids)
        except StoreError as error:
            failure = not_charged(error)
        else:
            where = None if only.all_pass else lambda one: one in found and only(found[one])
            return self.search.search_batch(queries, k + _SPARE, where=where)
        raise failure

    def try_one(self, ids: Sequence[Any]) -> None:
        """Read the node of one of these records, so that a store which cannot give nodes is seen before a charge."""
        try:
            self._known = any_of(self.fetch, ids)
            return
        except StoreError as error:
            failure = not_charged(error)
        raise failure

    def _shown(self, hits: list[Hits], k: int, only: Restriction) -> tuple[list[list[NodeWithScore]], bool]:
        """The first k of each ranking that are there and pass, and whether there are k of each."""
        first = [one for each in hits for one in each.ids[:k]]
        found = nodes_of(self.fetch, first)
        if not all(one in found and only(found[one]) for one in first):
            found |= nodes_of(self.fetch, (one for each in hits for one in each.ids[k:]))
        shown = []
        for each in hits:
            passing = (place for place, one in enumerate(each.ids) if one in found and only(found[one]))
            shown.append([self._scored(each, place, found) for place in islice(passing, k)])
        return shown, all(len(one) == k for one in shown)

    def _scored(self, hits: Hits, place: int, found: Mapping[Any, BaseNode]) -> NodeWithScore:
        node = found[hits.ids[place]]
        score = None if hits.scores is None else float(hits.scores[place])
        metadata = annotated(self.fields.shown(node.metadata), self.search, hits, place)
        return NodeWithScore(node=bare_copy(node, metadata, self.fields), score=score)


def private(index: Any, store: Any, epsilon: float, options: Mapping[str, Any], fields: Fields) -> Answers:
    """A search over an index's vectors, and its nodes. Before anything is paid, the ids must name some of them."""
    answers = _private(index, store, epsilon, options, fields)
    answers.search.check_before_refresh(answers.try_one)
    return answers


def _private(index: Any, store: Any, epsilon: float, options: Mapping[str, Any], fields: Fields) -> Answers:
    if not isinstance(index, VectorStoreIndex):
        _validation.reject("index", "a VectorStoreIndex", type(index))
    for name in options:
        if name not in _PARAMETERS:
            raise InvalidParameter(name, "is unknown.")
    if options.get("centroids"):
        refuse("'centroids' for a retriever", "it answers with nodes, and a centroid is of several")
    pays = options.get("mode", "index") == "index"
    if store is None:
        source, fetch = _source(index, often=not pays)
    else:
        source, fetch = store, from_docstore(index, lambda one: one if isinstance(one, str) else None)
    fetch = followed(index, fetch)
    file = options.get("file")
    if pays and (file is None or not has_saved_index(file)):
        return _paid(source, fetch, epsilon, dict(options), fields)
    search = PrivateSearch(source, epsilon=epsilon, **options)
    return Answers(search, fetch, fields, any_of(fetch, search.ids, "The saved index" if pays else "The store"))


def _paid(source: Any, fetch: Fetch, epsilon: float, options: dict[str, Any], fields: Fields) -> Answers:
    """The store is read once: for a look at its ids, and for the index."""
    looks = [options.pop(name, _PARAMETERS[name].default) for name in ("pin", "check_every")]
    pinned = pin_store(source, *looks)
    try:
        known = any_of(fetch, pinned.take_snapshot().ids)
        return Answers(PrivateSearch(pinned, epsilon=epsilon, **options), fetch, fields, known)
    finally:
        pinned.forget()


def _source(index: VectorStoreIndex, *, often: bool) -> tuple[Store, Fetch]:
    vectors: Any = index.vector_store
    kind = type(vectors).__name__
    if isinstance(vectors, Released):
        refuse("A private store within a private store", "its scores are released already; use its own retriever")
    if isinstance(vectors, SimpleVectorStore):
        return SimpleStore(vectors, often=often), from_docstore(
            index, lambda one: index.index_struct.nodes_dict.get(one) if one in vectors.data.embedding_dict else None
        )
    if kind == "FaissVectorStore":
        return stores.FaissStore(vectors.client), from_docstore(
            index, lambda one: index.index_struct.nodes_dict.get(str(one))
        )
    if kind == "ChromaVectorStore":
        return stores.ChromaStore(vectors.client), from_store(vectors)
    if kind == "QdrantVectorStore":
        name = vectors.dense_vector_name or None
        return stores.QdrantStore(vectors.client, vectors.collection_name, vector_name=name), from_store(vectors)
    raise InvalidInput(
        f"Where a {kind} keeps its vectors is not known: give a 'store' of scoreshield.stores, with the nodes' ids."
    )
