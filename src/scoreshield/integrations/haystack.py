"""Haystack: a private retriever over any document store.

``PrivateRetriever(document_store, epsilon=8)`` stands where ``InMemoryEmbeddingRetriever(document_store)`` stood. The
vectors are read through ``filter_documents()`` when the component warms up; scores are released cosines, filters act on
the released ranking, and the documents that come back hold no vector, with the guarantee in their ``meta``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._locks import ThreadLock
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.integrations._common import Fields, refuse
from scoreshield.privacy.ledger import Account, Ledger
from scoreshield.privacy.sampling.stream import open_stream
from scoreshield.search import MODES, IndexNotSaved, Mode, PrivateSearch
from scoreshield.search.index_files import has_saved_index, resolve_path
from scoreshield.search.sources import check_identities, check_ledger
from scoreshield.stores.protocol import explain_missing_extra, read_store

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.types import DocumentStore, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError
    from haystack.utils.filters import document_matches_filter
except ImportError:
    raise explain_missing_extra("haystack", "The Haystack adapter") from None

from scoreshield.integrations.haystack_answers import Answers
from scoreshield.integrations.haystack_documents import Documents

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
    filterable : the fields that filters may name: ``"meta.year"`` or ``"year"``, and ``"content"``. None by default,
        because whoever filters on a field learns it of every document exactly. Ids are public and need no mention.
    visible : the metadata fields that answers carry; all by default.
    scale_score : give (1 + cosine) / 2, in [0, 1].
    return_embedding : refused; it is here so that this is said.

    An index is made, or read from ``file``, when the component warms up or first runs; it is made once. Where it could
    not be written to its file, later runs write it and do not pay again.
    """

    @validate()
    def __init__(
        self,
        document_store: DocumentStore,
        *,
        epsilon: float,
        mode: Mode = "index",
        ledger: Account | None = None,
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        scale_score: bool = False,
        return_embedding: bool = False,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
        filterable: Collection[str] = (),
        visible: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        if not (hasattr(document_store, "filter_documents") and hasattr(document_store, "count_documents")):
            raise InvalidInput(f"PrivateRetriever takes a document store. Got {type(document_store).__name__} instead.")
        if return_embedding:
            _refuse_embeddings()
        for name in options.keys() - _OPTIONS:
            raise InvalidInput(f"PrivateRetriever has no option {name!r}.")
        if not isinstance(filter_policy, FilterPolicy):
            _validation.reject("filter_policy", "a FilterPolicy", filter_policy)
        self.top_k = _validation.check_count(top_k, "top_k")
        declared = Fields.checked(filterable, visible)
        self._fields = Fields(frozenset(map(_path, declared.filterable)), declared.visible)
        self.scale_score, self._policy = scale_score, filter_policy
        self._filters = _checked_filters(filters, self._fields)
        _validation.check_option(mode, "mode", MODES)
        self._mode = mode
        self._ledger, self._options = ledger, {"epsilon": _validation.check_epsilon(epsilon), **options}
        _rehearse(self._mode, ledger, self._options)
        self._documents = Documents(document_store, often=self._mode != "index")
        self._answers: Answers | None = None
        self._unsaved: PrivateSearch | None = None  # an index that was paid for, and is still to be written
        self._loaded, self._lock = False, ThreadLock()

    @property
    def search(self) -> PrivateSearch:
        """What releases: its guarantee, ``stale``, ``refresh()`` and ``save()``. There is none before the warm-up."""
        found = self._unsaved if self._answers is None else self._answers.search
        if found is None:
            raise InvalidInput(
                "The component has not read its documents yet: warm_up() does, and so does the first run."
            )
        return found

    def changed(self) -> None:
        """Say that embeddings were replaced under their ids, which a store on a server does not tell."""
        self._documents.mark_changed()

    def __reduce__(self) -> Any:
        raise InvalidInput("It may hold private vectors and is not pickled or copied; see to_dict() and 'file'.")

    @clear_frames_on_error
    def warm_up(self) -> None:
        """Read the documents; make the index, or load it from ``file``. Once: later calls do nothing."""
        with self._lock.hold("warm_up() or run()"):
            if self._answers is not None:
                return
            try:
                made = self._made()
                ids = made.ids  # modes without an index read the store here, and release nothing
                if not self._documents.keys:
                    self._documents.ids()
            finally:
                self._documents.let_go()
            if self._documents.keys.keys().isdisjoint(ids):
                raise InvalidInput("The saved index names none of these documents; their ids must be what they were.")
            made.check_before_refresh(lambda _: self._documents.try_one())
            self._answers, self._unsaved = Answers(made, self._documents, self._fields), None

    @clear_frames_on_error
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
            filterable=sorted(self._fields.filterable),
            visible=None if self._fields.visible is None else sorted(self._fields.visible),
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
            ledger = Ledger.open(account["url"])
            given["ledger"] = ledger.account(account["dataset"], who=account["who"], why=account["why"])
        made = default_from_dict(cls, {**data, "init_parameters": given})
        made._loaded = True
        return made

    @component.output_types(documents=list[Document])
    @clear_frames_on_error
    @validate()
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """The ``top_k`` best documents by released score."""
        vector = _vectors(query_embedding, "query_embedding", 1, "a vector of real numbers")
        return {"documents": self._run(vector[None], filters, top_k, scale_score, return_embedding)[0]}

    @component.output_types(documents=list[Document])
    @clear_frames_on_error
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

    @clear_frames_on_error
    @validate()
    def run_batch(
        self,
        query_embeddings: Sequence[Sequence[float]],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
    ) -> dict[str, list[list[Document]]]:
        """Several queries: where queries are charged, all are charged together or none is answered."""
        must = "a list of vectors of real numbers, all of one length"
        vectors = _vectors(query_embeddings, "query_embeddings", 2, must)
        return {"documents": self._run(vectors, filters, top_k, scale_score, None)}

    def _run(
        self, queries: Any, filters: Any, top_k: int | None, scale_score: bool | None, return_embedding: bool | None
    ) -> list[list[Document]]:
        if return_embedding:
            _refuse_embeddings()
        k = self.top_k if top_k is None else _validation.check_count(top_k, "top_k")
        given = _checked_filters(filters, self._fields)
        chosen = _checked_filters(apply_filter_policy(self._policy, self._filters, given), self._fields)
        self.warm_up()
        assert self._answers is not None
        found = self._answers.find(queries, k, chosen)
        scaled = self.scale_score if scale_score is None else scale_score
        return [[_scaled(one) for one in documents] for documents in found] if scaled else found

    def _made(self) -> PrivateSearch:
        """The search; one that was paid for and not written is written now, and not made again."""
        if self._unsaved is not None:
            self._unsaved.save(self._options["file"])
            self._unsaved = None  # and taken from there
        self._announce()
        if self._mode == "index" and not self._is_saved():
            read_store(self._documents, "giving its documents", self._documents.records)
            self._documents.try_one()  # before anything is paid
        try:
            return PrivateSearch(self._documents, mode=self._mode, ledger=self._ledger, **self._options)
        except IndexNotSaved as error:
            self._unsaved = error.search
            raise

    def _announce(self) -> None:
        """An index that was paid for before and is made anew is never made in silence."""
        if self._loaded and self._mode == "index" and not self._is_saved():
            _log.warning(
                "A PrivateRetriever that was loaded finds no saved index and makes a new release, at the full "
                "price again; with 'file' it is made once."
            )

    def _is_saved(self) -> bool:
        file = self._options.get("file")
        return file is not None and has_saved_index(file)


def _rehearse(mode: Mode, ledger: Any, options: dict[str, Any]) -> None:
    """Tell what is wrong with the options now, on two public records: nothing is read or released yet."""
    given = dict(options)
    file, rng, identity_of = (given.pop(name, None) for name in ("file", "rng", "identity_of"))
    open_stream(rng)
    check_ledger(ledger, rng)
    check_identities(identity_of, False, given.get("pin", "auto"))
    if file is not None:
        resolve_path(file)
    if mode != "index":
        given |= {"ledger": ledger, "rng": rng, "file": file}
    else:
        given["rng"] = 0
        # These depend on the dimension of vectors that were not read.
        if given.get("components") is not None:
            given["components"] = min(2, _validation.check_count(given["components"], "components", least=2))
        if not isinstance(given.get("reduction", "random"), str):
            del given["reduction"]
    PrivateSearch(np.eye(2, 4), mode=mode, **given)


@validate()
def _vectors(given: Any, name: str, axes: int, must: str) -> NDArray[Any]:
    """Queries of the right form, told before an index is paid for."""
    found = _validation.check_array(given, name, must)
    if found.ndim != axes or not found.size or found.dtype.kind not in "iuf":
        _validation.reject(name, must, given)
    return found


def _scaled(document: Document) -> Document:
    return document if document.score is None else replace(document, score=(1 + document.score) / 2)


def _refuse_embeddings() -> None:
    refuse("return_embedding", "a document's embedding gives its clean score with every query")


def _checked_filters(filters: Any, fields: Fields) -> dict[str, Any] | None:
    """Filters of the right form, on fields that are filterable, told before anything is read or released."""
    if filters is None or filters == {}:
        return None
    if not isinstance(filters, dict):
        raise InvalidInput(f"Filters must be a dictionary. Got {type(filters).__name__} instead.")
    try:
        document_matches_filter(filters, Document(content=""))
        paths = list(_paths(filters))
    except RecursionError:
        told = "they are nested too deeply"
    except (FilterError, TypeError, ValueError) as error:
        told = str(error)
    else:
        fields.require(_declared(path, fields) for path in paths)
        return filters
    raise InvalidInput(f"The filters are not well formed: {told}")


def _paths(condition: dict[str, Any]) -> Iterator[str]:
    """The fields that a filter looks at, at any depth, but for the id, which is public.

    Haystack's own check stops at the first condition that settles the answer, so each is looked at here.
    """
    if not isinstance(condition, dict) or not ("field" in condition or isinstance(condition.get("conditions"), list)):
        raise FilterError("each condition must be a dictionary with a 'field' or with a list of 'conditions'")
    if "field" in condition:
        path = _path(condition["field"])
        if path != "id":
            yield path
        return
    for one in condition["conditions"]:
        yield from _paths(one)


def _path(field: str) -> str:
    """Where Haystack looks for a field: among the attributes of a Document, or else in its metadata."""
    known = "." in field or field in (one.name for one in fields_of(Document))
    return field if known else f"meta.{field}"


def _declared(path: str, fields: Fields) -> str:
    """The field itself, or what was declared that it is a part of."""
    parts = path.split(".")
    wholes = (".".join(parts[:size]) for size in range(1, len(parts)))
    return next((whole for whole in wholes if whole in fields.filterable), path)


def _ledger_to_dict(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    if not account.ledger.name.startswith("sqlite:"):
        # An address without its password and options may be another ledger's.
        raise InvalidInput(
            "A PrivateRetriever with a ledger on a server is not serialised: its address has a password."
        )
    return {"url": account.ledger.name, "dataset": account.dataset, "who": account.who, "why": account.why}
