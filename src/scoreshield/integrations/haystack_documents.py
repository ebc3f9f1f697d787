"""What the Haystack adapter reads: the vectors of a document store, its documents by name, and filters on them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields as fields_of
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
from scoreshield.integrations.core import ChangeCounter, RecordSource, choose_look_interval, hash_addresses
from scoreshield.integrations.fields import PublicFields, scrub_metadata
from scoreshield.stores import ArrayStore, Convention, Records, StoreScores
from scoreshield.stores.protocol import read_store

_HASH_LENGTH = 64  # letters of an id that Haystack computes


class HaystackStore(RecordSource[Document]):
    """The vectors of a document store, and its documents by the names that answers give them.

    A document's name is its id, except where the id is a hash over the embedding (`remove_hash`).

    ``state`` sees documents that were written to an InMemoryDocumentStore or deleted from it. It does not see a change
    within a document, such as another ``embedding``: call `mark_changed` after that. Of other stores it sees the
    number of documents alone.

    Args:
        document_store: The document store.
        holds: Whether to hold the documents in memory between two looks
            (`ChangeCounter`), for modes that look at every query. Vectors are
            pinned in these modes anyway; an index keeps none.
    """

    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, document_store: DocumentStore, *, holds: bool) -> None:
        self.wrapped, self._holds = document_store, holds
        self.name = f"The {type(document_store).__name__}"
        self.ids_by_name: dict[str, str] = {}
        self._counter = ChangeCounter() if holds else None
        self._copies: dict[str, _DocumentCopy] = {}  # for filters
        self._plain_ids: dict[str, str | None] = {}  # by id: the result of remove_hash
        self._changes = 0
        self._dimension: int | None = None
        self._fresh: Records | None = None  # the last reading, for the step that follows it
        self._fresh_state: Hashable = None

    # ---- As a store of vectors.

    def mark_changed(self) -> None:
        """Report that documents were changed in a way that ``state`` does not see."""
        self._changes += 1

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            read_store(
                self, "giving its documents", self.records
            )  # an error leaves without the frames that hold vectors
        assert self._dimension is not None
        return self._dimension

    @property
    def look_every(self) -> float:
        if not isinstance(self.wrapped, InMemoryDocumentStore):
            return 0.0
        return choose_look_interval(len(self.wrapped.storage))

    def state(self) -> Hashable:
        if not isinstance(self.wrapped, InMemoryDocumentStore):
            return self.wrapped.count_documents(), self._changes
        storage = self.wrapped.storage
        if self._counter is not None:
            return self._counter.count(storage), self._changes
        return hash_addresses(storage, lambda one: one.embedding[0] if one.embedding else None), self._changes

    def ids(self) -> Sequence[str]:
        return self.records().ids

    def records(self) -> Records:
        state = self.state()
        if self._fresh is None or state != self._fresh_state:
            self._fresh, self._fresh_state = self._read_vectors(), state
        return self._fresh

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        ids, vectors = self.records()
        self.drop_vectors()  # a reading ends with the scores of a probe
        return ArrayStore(vectors, ids).scores(query)

    def drop_vectors(self) -> None:
        """Keep no clean vector."""
        self._fresh = None

    # ---- As a source of documents.

    def fetch(self, ids: Sequence[str]) -> dict[str, Document]:
        """Fetch the documents of these names as they are in the store now, without their vectors."""
        names = {self.ids_by_name[name]: name for name in ids if name in self.ids_by_name}
        if isinstance(self.wrapped, InMemoryDocumentStore):
            storage = self.wrapped.storage
            documents = [storage[one] for one in names if one in storage]
        elif names:
            documents = self.wrapped.filter_documents({"field": "id", "operator": "in", "value": list(names)})
        else:
            documents = []
        return {names[one.id]: copy_document(one, names[one.id]) for one in documents if one.id in names}

    def get_metadata(self, record: Document) -> dict[str, Any]:
        return record.meta

    def describe_failure(self, error: Exception) -> str:
        return f"{self.name} failed while giving documents by their ids ({type(error).__name__})."

    def describe_mismatch(self, ids: Sequence[str], *, has_records: bool) -> str:
        del has_records
        if self.ids_by_name.keys().isdisjoint(ids):
            return "The saved index names none of these documents; their ids must be what they were."
        return f"{self.name} gives none of its {len(ids):,} documents by its id: every answer would be empty."

    def find_readable(self, ids: Sequence[str]) -> str:
        if not self.ids_by_name:
            self.ids()  # an index from a file may not have read them
        return str(super().find_readable(ids))

    def survey(self, ids: Sequence[str]) -> dict[str, Document]:
        """Return all documents for a filter: as they are in memory, or as they were read with their vectors."""
        self.find_readable(ids)
        if isinstance(self.wrapped, InMemoryDocumentStore):
            storage, before = self.wrapped.storage, self._copies
            documents = ((name, storage.get(self.ids_by_name.get(name, ""))) for name in ids)
            present = ((name, one) for name, one in documents if one is not None)
            self._copies = {name: _reuse_copy(one, name, before.get(name)) for name, one in present}
        copies = self._copies
        return {name: copies[name].document for name in ids if name in copies}

    def _read_vectors(self) -> Records:
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
        names = self._choose_names(documents)
        self.ids_by_name = {name: one.id for name, one in zip(names, documents, strict=True)}
        if self._holds and not isinstance(self.wrapped, InMemoryDocumentStore):
            self._copies = {name: _reuse_copy(one, name, None) for name, one in zip(names, documents, strict=True)}
        self._dimension = len(vectors[0])
        return Records(names, np.array(vectors, dtype=np.float64))

    def _choose_names(self, documents: Sequence[Document]) -> list[str]:
        for one in documents:
            if one.id not in self._plain_ids:
                self._plain_ids[one.id] = remove_hash(one)
        taken = {one.id for one in documents if self._plain_ids[one.id] is None}
        counts: dict[str, int] = {}
        return [_choose_name(one.id, self._plain_ids[one.id], taken, counts) for one in documents]


class _DocumentCopy(NamedTuple):
    """A document without its vectors, and the parts that it was made of."""

    meta: dict[str, Any]
    content: str | None
    blob: ByteStream | None
    document: Document


def _reuse_copy(document: Document, name: str, before: _DocumentCopy | None) -> _DocumentCopy:
    """Copy a document, or return the copy from before if nothing has changed that a filter looks at."""
    content, blob, meta = document.content, document.blob, document.meta or {}
    if before is not None and before.content is content and before.blob is blob and before.meta == meta:
        return before
    return _DocumentCopy(dict(meta), content, blob, copy_document(document, name))


def copy_document(document: Document, name: str) -> Document:
    """Copy a document without its vectors and without a score that was stored with it."""
    blob = document.blob
    return Document(
        id=name,
        content=document.content,
        blob=None if blob is None else replace(blob, meta=scrub_metadata(blob.meta)),
        meta=scrub_metadata(document.meta),
    )


# ---- Ids that are a hash over the embedding.


def remove_hash(document: Document) -> str | None:
    """Return the id without the embedding, where a document's id is a hash over it; None for other ids.

    A document that is made with an embedding and no id gets such an id, which would confirm a guess of the vector.
    Metadata may have been added since: the keys that stand last are left out in turn.
    """
    plain = replace(document, id="", embedding=None, sparse_embedding=None)
    if len(document.id) != _HASH_LENGTH or document.id == plain.id:
        return None
    written: Any = str(document.embedding)  # once, since it is the longest part of what is hashed
    meta = document.meta or {}
    for size in range(len(meta), -1, -1):
        candidate = replace(document, id="", meta=dict(islice(meta.items(), size)), embedding=written)
        if candidate.id == document.id:
            return replace(candidate, id="", embedding=None, sparse_embedding=None).id
    return None


def _choose_name(document_id: str, plain: str | None, taken: set[str], counts: dict[str, int]) -> str:
    if plain is None:
        return document_id
    name = plain
    while name in taken:
        counts[plain] = counts.get(plain, 1) + 1
        name = f"{plain}-{counts[plain]}"
    taken.add(name)
    return name


# ---- Filters.


class ConditionFilter:
    """Haystack's conditions as a test of documents.

    Args:
        conditions: The conditions, checked by `check_conditions`.
        is_strict: Whether dates are compared strictly, as in an InMemoryDocumentStore.
    """

    def __init__(self, conditions: dict[str, Any], *, is_strict: bool) -> None:
        self._conditions, self._is_strict = conditions, is_strict
        self.key = repr(conditions)

    def allows(self, one: Any, record: Document) -> bool:
        del one
        try:
            return document_matches_filter(self._conditions, record, strict_datetime_comparison=self._is_strict)
        except (FilterError, TypeError, ValueError) as error:
            name = type(error).__name__
        raise InvalidInput(f"The filters do not fit the documents' metadata ({name}).")


def check_conditions(conditions: Any, fields: PublicFields) -> dict[str, Any] | None:
    """Check the form and the fields of filters, before anything is read or released.

    Raises:
        InvalidInput: If they are not well formed, or name a field that is not filterable.
    """
    if conditions is None or conditions == {}:
        return None
    if not isinstance(conditions, dict):
        raise InvalidInput(f"Filters must be a dictionary. Got {type(conditions).__name__} instead.")
    try:
        document_matches_filter(conditions, Document(content=""))
        paths = list(_list_paths(conditions))
    except RecursionError:
        cause = "they are nested too deeply"
    except (FilterError, TypeError, ValueError) as error:
        cause = str(error)
    else:
        fields.require(_find_declared(path, fields) for path in paths)
        return conditions
    raise InvalidInput(f"The filters are not well formed: {cause}")


def declare_document_fields(filterable: Any, visible: Any) -> PublicFields:
    """Declare public fields, filterable ones by the paths that Haystack looks at."""
    fields = PublicFields.declare(filterable, visible)
    return PublicFields(frozenset(map(_to_path, fields.filterable)), fields.visible)


def _list_paths(condition: dict[str, Any]) -> Iterator[str]:
    """List the fields that a filter looks at, at any depth, without the id, which is public.

    Haystack's own check stops at the first condition that settles the answer, so each is looked at here.
    """
    if not isinstance(condition, dict) or not ("field" in condition or isinstance(condition.get("conditions"), list)):
        raise FilterError("each condition must be a dictionary with a 'field' or with a list of 'conditions'")
    if "field" in condition:
        path = _to_path(condition["field"])
        if path != "id":
            yield path
        return
    for one in condition["conditions"]:
        yield from _list_paths(one)


def _to_path(field: str) -> str:
    """Return where Haystack looks for a field: among the attributes of a Document, or else in its metadata."""
    is_path = "." in field or field in (one.name for one in fields_of(Document))
    return field if is_path else f"meta.{field}"


def _find_declared(path: str, fields: PublicFields) -> str:
    """Return the declared field that the path is a part of, or else the path."""
    parts = path.split(".")
    wholes = (".".join(parts[:size]) for size in range(1, len(parts)))
    return next((whole for whole in wholes if whole in fields.filterable), path)
