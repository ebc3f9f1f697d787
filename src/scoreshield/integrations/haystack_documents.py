"""A Haystack document store as a store of vectors, and its documents without theirs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from haystack import Document
from haystack.dataclasses import ByteStream
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DocumentStore
from haystack.errors import FilterError
from haystack.utils.filters import document_matches_filter
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import growing_pages, look_every, scrub
from scoreshield.stores import ArrayStore, Convention, Records, StoreScores
from scoreshield.stores.protocol import read_store

_PAGE = 256
_HASH = 64  # letters of the id that Haystack gives


class Documents:
    """The vectors of a document store, and its documents by the names that answers give them.

    ``state`` sees what was written to an InMemoryDocumentStore or deleted from it, and not what is changed within a
    document that stays: its ``embedding``, set to another, is told by :meth:`mark_changed`. Of other stores it sees the
    number of documents alone.

    Parameters
    ----------
    often : whether the state is asked for at each query. The documents in memory are then kept until the next look,
        which compares them many times faster than it would write down where they are. Vectors are pinned in these
        modes anyway; an index keeps none.
    """

    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, document_store: DocumentStore, *, often: bool) -> None:
        self.wrapped, self._often = document_store, often
        self.name = f"The {type(document_store).__name__}"
        self.keys: dict[str, str] = {}  # by a document's name in answers: its id in the store
        self._copies: dict[str, _Copy] = {}  # for filters
        self._plain: dict[str, str | None] = {}  # ids that were looked at
        self._told = self._changes = 0
        self._seen: list[Any] = []
        self._dimension: int | None = None
        self._fresh: Records | None = None  # what was read a moment ago, for who asks next
        self._state: Hashable = None  # that it was read in

    def mark_changed(self) -> None:
        self._told += 1

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            # An error leaves without the frames that hold vectors.
            read_store(self, "giving its documents", self.records)
        assert self._dimension is not None
        return self._dimension

    @property
    def look_every(self) -> float:
        return look_every(len(self.wrapped.storage)) if isinstance(self.wrapped, InMemoryDocumentStore) else 0.0

    def state(self) -> Hashable:
        if not isinstance(self.wrapped, InMemoryDocumentStore):
            return self.wrapped.count_documents(), self._told
        storage = self.wrapped.storage
        if self._often:
            # Whatever gets another name moves to the end, so that one name stands for all.
            now = [*islice(reversed(storage), 1), *storage.values()]
            if not _same(now, self._seen):
                self._changes += 1
            self._seen = now
            return self._changes, self._told
        # An address alone may be that of a document that is gone.
        held = list(storage.values())
        first = tuple(one.embedding[0] if one.embedding else None for one in held)
        return hash((tuple(storage), tuple(map(id, held)), first)), self._told

    def ids(self) -> Sequence[str]:
        return self.records().ids

    def records(self) -> Records:
        state = self.state()
        if self._fresh is None or state != self._state:
            self._fresh, self._state = self._read(), state
        return self._fresh

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        ids, vectors = self.records()
        self.let_go()  # a reading ends with the scores of a probe
        return ArrayStore(vectors, ids).scores(query)

    def let_go(self) -> None:
        """Keep no clean vector."""
        self._fresh = None

    def fetch(self, names: Iterable[str]) -> dict[str, Document]:
        """The documents as they are in the store now; those that it has no more are left out."""
        known = self.keys
        keys = {known[one]: one for one in names if one in known}
        if isinstance(self.wrapped, InMemoryDocumentStore):
            storage = self.wrapped.storage
            found = [storage[key] for key in keys if key in storage]
        else:
            found = read_store(self, "giving documents by their ids", lambda: self._pages(list(keys)))
        return {keys[one.id]: strip_frames(one, keys[one.id]) for one in found if one.id in keys}

    def try_one(self) -> None:
        """Read one document by its id, so that a store which cannot give documents is seen before a charge."""
        if not any(map(self.fetch, growing_pages(list(self.keys)))):
            raise InvalidInput(
                f"{self.name} gives none of its {len(self.keys):,} documents by its id: every answer would be empty."
            )

    def judged(self, names: Sequence[str]) -> dict[str, Document]:
        """All of these documents, for a filter to look at: as they are now, or as they were read with their vectors."""
        if isinstance(self.wrapped, InMemoryDocumentStore):
            storage, before = self.wrapped.storage, self._copies
            found = ((name, storage.get(self.keys.get(name, ""))) for name in names)
            self._copies = {name: _copied(one, name, before.get(name)) for name, one in found if one is not None}
        copies = self._copies
        return {name: copies[name].document for name in names if name in copies}

    def filter(self, filters: dict[str, Any] | None) -> Callable[[Document], bool]:
        strict = bool(getattr(self.wrapped, "strict_datetime_comparison", False))

        def keep(document: Document) -> bool:
            if not filters:
                return True
            try:
                return document_matches_filter(filters, document, strict_datetime_comparison=strict)
            except (FilterError, TypeError, ValueError) as error:
                name = type(error).__name__
            raise InvalidInput(f"The filters do not fit the documents' metadata ({name}).")

        return keep

    def _pages(self, keys: list[str]) -> list[Document]:
        found: list[Document] = []
        for start in range(0, len(keys), _PAGE):
            wanted = {"field": "id", "operator": "in", "value": keys[start : start + _PAGE]}
            found += self.wrapped.filter_documents(wanted)
        return found

    def _read(self) -> Records:
        memory = isinstance(self.wrapped, InMemoryDocumentStore)
        if isinstance(self.wrapped, InMemoryDocumentStore):
            documents = list(self.wrapped.storage.values())
        else:
            documents = read_store(self, "giving its documents", self.wrapped.filter_documents)
        if not documents:
            raise StoreError(f"{self.name} holds no records.")
        missing = sum(one.embedding is None for one in documents)
        if missing:
            raise StoreError(
                f"{self.name} has {missing:,} of {len(documents):,} documents without an embedding: embed them, or "
                "have the store return embeddings."
            )
        vectors = [one.embedding for one in documents if one.embedding is not None]
        if len({len(vector) for vector in vectors}) > 1:
            raise StoreError(f"{self.name} mixes vectors of different lengths.")
        names = self._names(documents)
        self.keys = {name: one.id for name, one in zip(names, documents, strict=True)}
        if self._often and not memory:
            self._copies = {name: _copied(one, name, None) for name, one in zip(names, documents, strict=True)}
        self._dimension = len(vectors[0])
        return Records(names, np.array(vectors, dtype=np.float64))

    def _names(self, documents: Sequence[Document]) -> list[str]:
        """What the documents are called: by their ids, but for those that are a hash over the embedding."""
        for one in documents:
            if one.id not in self._plain:
                self._plain[one.id] = plain_id(one)
        taken = {one.id for one in documents if self._plain[one.id] is None}
        count: dict[str, int] = {}
        return [_free_name(one.id, self._plain[one.id], taken, count) for one in documents]


class _Copy(NamedTuple):
    """A document without its vectors, and what it was made of."""

    meta: dict[str, Any]
    content: str | None
    blob: ByteStream | None
    document: Document


def _copied(document: Document, name: str, before: _Copy | None) -> _Copy:
    """A copy; the one from before where nothing that a filter looks at has changed."""
    content, blob, meta = document.content, document.blob, document.meta or {}
    if before is not None and before.content is content and before.blob is blob and before.meta == meta:
        return before
    return _Copy(dict(meta), content, blob, strip_frames(document, name))


def _same(now: list[Any], before: list[Any]) -> bool:
    """Whether these are the same things, or equal; the same are told by their addresses alone."""
    try:
        return now == before
    except Exception:  # arrays, which do not say whether they are equal
        return False


def _free_name(own: str, plain: str | None, taken: set[str], count: dict[str, int]) -> str:
    if plain is None:
        return own
    name = plain
    while name in taken:
        count[plain] = count.get(plain, 1) + 1
        name = f"{plain}-{count[plain]}"
    taken.add(name)
    return name


def plain_id(document: Document) -> str | None:
    """Where a document's id is a hash over its embedding, the hash without it; else None.

    A document that is made with an embedding and no id gets such a one, and whoever guesses the vector can check it.
    Metadata may have been added since: keys that stand last are left out in turn.
    """
    if len(document.id) != _HASH or document.id == replace(document, id="", embedding=None, sparse_embedding=None).id:
        return None
    written: Any = str(document.embedding)  # once: it is the longest part of what is hashed
    meta = document.meta or {}
    for size in range(len(meta), -1, -1):
        made = replace(document, id="", meta=dict(islice(meta.items(), size)), embedding=written)
        if made.id == document.id:
            return replace(made, id="", embedding=None, sparse_embedding=None).id
    return None


def strip_frames(document: Document, name: str) -> Document:
    """The document without its vectors and whatever score it was stored with."""
    blob = document.blob
    return Document(
        id=name,
        content=document.content,
        blob=None if blob is None else replace(blob, meta=scrub(blob.meta)),
        meta=scrub(document.meta),
    )
