"""Haystack: a private retriever over any document store.

``PrivateRetriever(document_store, epsilon=8)`` stands where ``InMemoryEmbeddingRetriever(document_store)`` stood. The
vectors are read through ``filter_documents()`` when the component warms up; scores are released cosines, filters act on
the released ranking, and the documents that come back hold no vector, with the guarantee in their ``meta``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield import _checks
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import annotated, refuse, scrub
from scoreshield.privacy.ledger import Account, Ledger
from scoreshield.search import MODES, Hits, PrivateSearch
from scoreshield.stores import ArrayStore, Convention, Records, Scored
from scoreshield.stores.protocol import need, reading

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack.document_stores.types import DocumentStore, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError
    from haystack.utils.filters import document_matches_filter
except ImportError:
    raise need("haystack", "The Haystack adapter") from None

_log = logging.getLogger(__name__)
_OPTIONS = frozenset(inspect.signature(PrivateSearch).parameters) - {"store", "epsilon", "mode", "ledger", "centroids"}
_PLAIN = (str, int, float, bool, type(None))


@component
class PrivateRetriever:
    """Retrieves documents by released scores.

    Parameters
    ----------
    document_store : any document store; its documents must have embeddings.
    epsilon, mode, ledger, options : of :class:`scoreshield.search.PrivateSearch`: delta, file, threshold and so on.
    top_k, filters, filter_policy : as in other retrievers; filters act on the released ranking.
    scale_score : give (1 + cosine) / 2, in [0, 1].
    return_embedding : refused; it is here so that this is said.

    An index is made, or read from ``file``, when the component warms up or first runs; it is made once.
    """

    def __init__(
        self,
        document_store: DocumentStore,
        *,
        epsilon: float,
        mode: str = "index",
        ledger: Account | None = None,
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        scale_score: bool = False,
        return_embedding: bool = False,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
        **options: Any,
    ) -> None:
        if not (hasattr(document_store, "filter_documents") and hasattr(document_store, "count_documents")):
            raise InvalidInput(f"PrivateRetriever takes a document store. Got {type(document_store).__name__} instead.")
        if return_embedding:
            _refuse_embeddings()
        for name in options.keys() - _OPTIONS:
            raise InvalidInput(f"PrivateRetriever has no option {name!r}.")
        self.top_k = _checks.count(top_k, "top_k", "PrivateRetriever")
        self.scale_score, self._filters, self._policy = scale_score, _checked_filters(filters), filter_policy
        self._mode = _checks.one_of(mode, "mode", "PrivateRetriever", MODES)
        self._ledger, self._options = ledger, {"epsilon": _checks.budget(epsilon, "PrivateRetriever"), **options}
        self._documents = _Documents(document_store)
        if mode != "index":
            self._make(np.eye(1, 2))  # tells what is wrong with the options now; nothing is released yet
        self._search: PrivateSearch | None = None
        self._loaded, self._lock = False, threading.Lock()

    @property
    def search(self) -> PrivateSearch:
        """What releases: its guarantee, ``stale``, ``refresh()`` and ``save()``. There is none before the warm-up."""
        if self._search is None:
            raise InvalidInput(
                "The component has not read its documents yet: warm_up() does, and so does the first run."
            )
        return self._search

    def changed(self) -> None:
        """Say that embeddings were replaced under their ids, which a store on a server does not tell."""
        self._documents.told += 1

    def __reduce__(self) -> Any:
        raise InvalidInput("It may hold private vectors and is not pickled or copied; see to_dict() and 'file'.")

    def warm_up(self) -> None:
        """Read the documents; make the index, or load it from ``file``. Once: later calls do nothing."""
        with self._lock:
            if self._search is not None:
                return
            self._announce()
            made = self._make(self._documents)
            ids = made.ids  # modes without an index read the store here, and release nothing
            self._documents.let_go()
            if self._documents.held.keys().isdisjoint(ids):
                raise InvalidInput("The saved index names none of these documents; their ids must be what they were.")
            self._search = made

    async def warm_up_async(self) -> None:
        """:meth:`warm_up` in a thread of its own."""
        await asyncio.to_thread(self.warm_up)

    def to_dict(self) -> dict[str, Any]:
        """The parameters, for ``Pipeline.dumps``: no vector, no password.

        What is loaded from it reads a saved index if there is a ``file``; without one its first run makes a new
        release, at the full price again.
        """
        options = {name: str(value) if isinstance(value, Path) else value for name, value in self._options.items()}
        for name, value in options.items():
            if not isinstance(value, _PLAIN) and not (name == "score_range" and isinstance(value, list | tuple)):
                raise InvalidInput(
                    f"A PrivateRetriever with {name!r} given as a {type(value).__name__} is not serialised."
                )
        return default_to_dict(
            self,
            document_store=self._documents.wrapped,
            mode=self._mode,
            ledger=_ledger_to_dict(self._ledger),
            top_k=self.top_k,
            filters=self._filters,
            scale_score=self.scale_score,
            filter_policy=self._policy.value,
            **options,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PrivateRetriever:
        """What :meth:`to_dict` wrote; nothing is read or released yet. A ledger must be there."""
        given = dict(data.get("init_parameters", {}))
        if given.get("filter_policy") is not None:
            given["filter_policy"] = FilterPolicy.from_str(given["filter_policy"])
        if isinstance(given.get("score_range"), list):
            given["score_range"] = tuple(given["score_range"])
        if given.get("ledger") is not None:
            account = given["ledger"]
            given["ledger"] = Ledger(account["url"]).on(account["dataset"], who=account["who"], why=account["why"])
        made = default_from_dict(cls, {**data, "init_parameters": given})
        made._loaded = True
        return made

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """The ``top_k`` best documents by released score."""
        must = "a vector of real numbers"
        vector = _checks.array(query_embedding, "query_embedding", "PrivateRetriever.run", must)
        if vector.ndim != 1:
            _checks.reject("query_embedding", "PrivateRetriever.run", must, query_embedding)
        return {"documents": self._run(vector[None], filters, top_k, scale_score, return_embedding)[0]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """:meth:`run` in a thread of its own."""
        return await asyncio.to_thread(self.run, query_embedding, filters, top_k, scale_score, return_embedding)

    def run_batch(
        self,
        query_embeddings: Sequence[Sequence[float]],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
    ) -> dict[str, list[list[Document]]]:
        """Several queries: where queries are charged, all are charged together or none is answered."""
        return {"documents": self._run(query_embeddings, filters, top_k, scale_score, None)}

    def _run(
        self, queries: Any, filters: Any, top_k: int | None, scale_score: bool | None, return_embedding: bool | None
    ) -> list[list[Document]]:
        if return_embedding:
            _refuse_embeddings()
        k = self.top_k if top_k is None else _checks.count(top_k, "top_k", "PrivateRetriever.run")
        chosen = _checked_filters(apply_filter_policy(self._policy, self._filters, _checked_filters(filters)))
        self.warm_up()
        scaled = self.scale_score if scale_score is None else scale_score
        return [
            [_shown(self.search, hits, place, documents[one], scaled) for place, one in enumerate(hits.ids)]
            for hits, documents in self._answers(queries, k, self._documents.filter(chosen))
        ]

    def _answers(
        self, queries: Any, k: int, keep: Callable[[Document], bool]
    ) -> list[tuple[Hits, Mapping[Any, Document]]]:
        """Hits with their documents. Where a query is charged, the documents are at hand before it is."""
        gone: set[Any] = set()
        known: dict[Any, Document] = {}

        def where(one: Any) -> bool:
            held = self._documents.held.get(one)
            if held is None or one in gone or not keep(held.document):
                return False
            known[one] = held.document
            return True

        while True:
            answers = self.search.search_batch(queries, k, where=where)
            named = {one for hits in answers for one in hits.ids}
            if self._mode != "index":  # the store's state was read just before the release
                return [(hits, known) for hits in answers]
            now = self._documents.fetch(named)
            lost = {one for one in named if one not in now or not keep(now[one])}
            if not lost:
                return [(hits, now) for hits in answers]
            gone |= lost  # asking an index again costs nothing

    def _make(self, store: Any) -> PrivateSearch:
        return PrivateSearch(store, mode=self._mode, ledger=self._ledger, **self._options)

    def _announce(self) -> None:
        """An index that was paid for before and is made anew is never made in silence."""
        file = self._options.get("file")
        if self._loaded and self._mode == "index" and (file is None or not Path(file).exists()):
            _log.warning(
                "A PrivateRetriever that was loaded finds no saved index and makes a new release, at the full "
                "price again; with 'file' it is made once."
            )


class _Held(NamedTuple):
    key: str  # the document's id in its store
    document: Document


class _Documents:
    """A document store as a store of vectors, and its documents without theirs.

    ``state`` sees every write to an InMemoryDocumentStore; of other stores it sees the number of documents, and
    ``told`` says the rest.
    """

    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, document_store: DocumentStore) -> None:
        self.wrapped = document_store
        self.name = f"The {type(document_store).__name__}"
        self.held: dict[str, _Held] = {}
        self.told = 0
        self._dimension: int | None = None
        self._fresh: Records | None = None  # what was read a moment ago, for who asks next
        self._state: Hashable = None  # that it was read in

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            reading(self, "giving its documents", self.records)  # an error leaves without the frames that hold vectors
        assert self._dimension is not None
        return self._dimension

    def state(self) -> Hashable:
        if isinstance(self.wrapped, InMemoryDocumentStore):
            # Writing a document puts another object in its place; an address alone may be that of one that is gone.
            storage = self.wrapped.storage
            held = list(storage.values())
            first = tuple(one.embedding[0] if one.embedding else None for one in held)
            return hash((tuple(storage), tuple(map(id, held)), first)), self.told
        return self.wrapped.count_documents(), self.told

    def records(self) -> Records:
        state = self.state()
        if self._fresh is None or state != self._state:
            self._fresh, self._state = self._read(), state
        return self._fresh

    def scores(self, query: NDArray[np.float32]) -> Scored:
        ids, vectors = self.records()
        self.let_go()  # a reading ends with the scores of a probe
        return ArrayStore(vectors, ids).scores(query)

    def let_go(self) -> None:
        """Keep no clean vector."""
        self._fresh = None

    def fetch(self, ids: Sequence[Any] | set[Any]) -> dict[Any, Document]:
        """The documents as they are in the store now; those that it has no more are left out."""
        keys = {self.held[one].key: one for one in ids}
        if isinstance(self.wrapped, InMemoryDocumentStore):
            storage = self.wrapped.storage
            found = [storage[key] for key in keys if key in storage]
        elif keys:
            wanted = {"field": "id", "operator": "in", "value": list(keys)}
            found = reading(self, "giving documents by their ids", lambda: self.wrapped.filter_documents(wanted))
        else:
            found = []
        return {keys[one.id]: _bare(one, keys[one.id]) for one in found if one.id in keys}

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

    def _read(self) -> Records:
        if isinstance(self.wrapped, InMemoryDocumentStore):
            documents = list(self.wrapped.storage.values())
        else:
            documents = reading(self, "giving its documents", self.wrapped.filter_documents)
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
        ids = _public_ids(documents)
        self.held = {name: _Held(one.id, _bare(one, name)) for name, one in zip(ids, documents, strict=True)}
        self._dimension = len(vectors[0])
        return Records(ids, np.array(vectors, dtype=np.float64))


def _public_ids(documents: Sequence[Document]) -> list[str]:
    """The documents' ids; where one is a hash over the embedding, the hash without it.

    A document that is made with an embedding and no id gets such a one, and whoever guesses the vector can check it.
    """
    seen: dict[str, int] = {}
    ids = []
    for one in documents:
        name = one.id
        plain = replace(one, id="", embedding=None, sparse_embedding=None).id if len(name) == 64 else name
        if name != plain and name == replace(one, id="").id:
            seen[plain] = seen.get(plain, 0) + 1
            name = plain if seen[plain] == 1 else f"{plain}-{seen[plain]}"
        ids.append(name)
    return ids


def _bare(document: Document, name: str) -> Document:
    """The document without its vectors and whatever score it was stored with."""
    blob = document.blob
    return Document(
        id=name,
        content=document.content,
        blob=None if blob is None else replace(blob, meta=scrub(blob.meta)),
        meta=scrub(document.meta),
    )


def _shown(search: PrivateSearch, hits: Hits, place: int, document: Document, scaled: bool) -> Document:
    score = None if hits.scores is None else float(hits.scores[place])
    if scaled and score is not None:
        score = (1 + score) / 2
    return replace(document, meta=annotated(document.meta, search, hits, place), score=score)


def _refuse_embeddings() -> None:
    refuse("return_embedding", "a document's embedding gives its clean score with every query")


def _checked_filters(filters: Any) -> dict[str, Any] | None:
    """Filters of the right form, told before anything is released."""
    if filters is None or filters == {}:
        return None
    if not isinstance(filters, dict):
        raise InvalidInput(f"Filters must be a dictionary. Got {type(filters).__name__} instead.")
    try:
        document_matches_filter(filters, Document(content=""))
    except (FilterError, TypeError, ValueError) as error:
        told = str(error)
    else:
        return filters
    raise InvalidInput(f"The filters are not well formed: {told}")


def _ledger_to_dict(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    if not account.ledger.name.startswith("sqlite:"):
        # An address without its password and options may be another ledger's.
        raise InvalidInput(
            "A PrivateRetriever with a ledger on a server is not serialised: its address has a password."
        )
    return {"url": account.ledger.name, "dataset": account.dataset, "who": account.who, "why": account.why}
