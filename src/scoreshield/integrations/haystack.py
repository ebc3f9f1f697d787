"""Haystack: a private retriever over any document store.

``PrivateRetriever(document_store, epsilon=8)`` replaces ``InMemoryEmbeddingRetriever(document_store)``. The vectors are
read through ``filter_documents()`` when the component warms up. Scores are released cosines. Filters act on the
released ranking. The documents of an answer hold no vector, and have the guarantee in their ``meta``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._locks import ThreadLock
from scoreshield._validation import validate
from scoreshield.decisions.queries import QueryScores
from scoreshield.errors import InvalidInput
from scoreshield.integrations.core import (
    Answer,
    RetrievalCore,
    check_search_options,
    open_retrieval,
    reject_bypass,
)
from scoreshield.privacy.adjacency import Adjacency, adjacency_from_dict
from scoreshield.privacy.ledger import Account, Ledger
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.sampling.stream import open_stream
from scoreshield.privacy.tails import AnchoredWindows, TailShape
from scoreshield.releases.batch import PublicLevels
from scoreshield.search import MODES, IndexNotSaved, ModeOption, PrivateSearch
from scoreshield.search.index_files import has_saved_index, resolve_path
from scoreshield.search.sources import check_identities, check_ledger
from scoreshield.stores.protocol import explain_missing_extra

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.types import DocumentStore, FilterPolicy, apply_filter_policy
except ImportError:
    raise explain_missing_extra("haystack", "The Haystack adapter") from None

from scoreshield.integrations.haystack_documents import (
    ConditionFilter,
    HaystackStore,
    check_conditions,
    declare_document_fields,
)

_log = logging.getLogger(__name__)
_SERIALISABLE = (str, int, float, bool, type(None))
#: The name of windows around a private quantile in a file.
_WINDOWS = "anchored"


@component
class PrivateRetriever:
    """Retrieves documents by released scores.

    An index is made, or read from ``file``, when the component warms up or first runs. It is made once. If it could not
    be written to its file, later runs write it and are not charged again.

    Args:
        document_store: Any document store. Its documents must have embeddings.
        epsilon: Of the index, once; or of each query (``mode``). There is no default.
        mode: As in `PrivateSearch`.
        ledger: The account that is charged.
        top_k: How many documents to return.
        filters: As in other retrievers. They act on the released ranking.
        scale_score: Whether to return (1 + cosine) / 2, in [0, 1].
        return_embedding: Raises an error if it is true.
        filter_policy: As in other retrievers.
        filterable: The fields that filters may name: ``"meta.year"`` or ``"year"``, and ``"content"``. None by default,
            because a filter reveals its field of every document exactly. Ids are public and need no declaration.
        visible: The metadata fields that answers carry; all by default.
        options: Of `PrivateSearch`: ``delta``, ``file``, ``threshold``, ...
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        document_store: DocumentStore,
        *,
        epsilon: float,
        mode: ModeOption = "index",
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
            _reject_embeddings()
        check_search_options(options)
        if not isinstance(filter_policy, FilterPolicy):
            _validation.reject("filter_policy", "a FilterPolicy", filter_policy)
        self.top_k = _validation.check_count(top_k, "top_k")
        self._fields = declare_document_fields(filterable, visible)
        self.scale_score, self._policy = scale_score, filter_policy
        self._filters = check_conditions(filters, self._fields)
        _validation.check_option(mode, "mode", MODES)
        self._mode = mode
        self._ledger, self._epsilon, self._options = ledger, _validation.check_epsilon(epsilon), options
        _rehearse(self._mode, self._epsilon, ledger, options)
        self._store = HaystackStore(document_store, holds=self._mode != "index")
        self._core: RetrievalCore[Document] | None = None
        self._unsaved: PrivateSearch | None = None  # an index that was charged and is not written yet
        self._is_loaded, self._lock = False, ThreadLock()

    @property
    def search(self) -> PrivateSearch:
        """The search that releases: its guarantee, ``stale``, ``refresh()`` and ``save()``.

        Raises:
            InvalidInput: Before the warm-up.
        """
        search = self._unsaved if self._core is None else self._core.search
        if search is None:
            raise InvalidInput(
                "The component has not read its documents yet: warm_up() does, and so does the first run."
            )
        return search

    @clear_frames_on_error
    def changed(self) -> None:
        """Report that embeddings were replaced under their ids, which a store on a server does not show."""
        self._store.mark_changed()

    def __reduce__(self) -> Any:
        raise InvalidInput("It may hold private vectors and is not pickled or copied; see to_dict() and 'file'.")

    @clear_frames_on_error
    def warm_up(self) -> None:
        """Read the documents; make the index, or load it from ``file``. Later calls do nothing."""
        with self._lock.hold("warm_up() or run()"):
            if self._core is not None:
                return
            try:
                core = self._open()
                _ = core.search.ids  # modes without an index read the store here, and release nothing
            finally:
                self._store.drop_vectors()
            self._core, self._unsaved = core, None

    @clear_frames_on_error
    async def warm_up_async(self) -> None:
        """`warm_up` in a thread."""
        await asyncio.to_thread(self.warm_up)

    @clear_frames_on_error
    def to_dict(self) -> dict[str, Any]:
        """Return the parameters, for ``Pipeline.dumps``, without vectors and passwords.

        Public scores, level tables, windows, public levels and adjacencies are written with all their numbers, which
        are public. Other objects raise an error that says what to do.

        A component that is loaded from them reads a saved index if there is a ``file``. Without one its first run makes
        a new release, which is charged in full again.
        """
        options = {name: _option_to_plain(name, value) for name, value in self._options.items()}
        return default_to_dict(
            self,
            document_store=self._store.wrapped,
            epsilon=self._epsilon,
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
    @clear_frames_on_error
    def from_dict(cls, data: dict[str, Any]) -> PrivateRetriever:
        """Make a component from the result of `to_dict`. Nothing is read or released yet. A ledger must exist."""
        parameters = dict(data.get("init_parameters", {}))
        if parameters.get("filter_policy") is not None:
            parameters["filter_policy"] = FilterPolicy.from_str(parameters["filter_policy"])
        for name, read in _READERS.items():
            if isinstance(parameters.get(name), dict):
                parameters[name] = read(parameters[name])
        if isinstance(parameters.get("score_range"), list):
            parameters["score_range"] = tuple(parameters["score_range"])
        if parameters.get("ledger") is not None:
            account = parameters["ledger"]
            ledger = Ledger.open(account["url"])
            parameters["ledger"] = ledger.account(account["dataset"], who=account["who"], why=account["why"])
        retriever = default_from_dict(cls, {**data, "init_parameters": parameters})
        retriever._is_loaded = True
        return retriever

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
        """Retrieve the ``top_k`` best documents by released score."""
        vector = _check_vectors(query_embedding, "query_embedding", 1, "a vector of real numbers")
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
        """`run` in a thread."""
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
        """Answer several queries. Where queries are charged, all are charged or none is answered."""
        must = "a list of vectors of real numbers, all of one length"
        vectors = _check_vectors(query_embeddings, "query_embeddings", 2, must)
        return {"documents": self._run(vectors, filters, top_k, scale_score, None)}

    def _run(
        self, queries: Any, filters: Any, top_k: int | None, scale_score: bool | None, return_embedding: bool | None
    ) -> list[list[Document]]:
        if return_embedding:
            _reject_embeddings()
        k = self.top_k if top_k is None else _validation.check_count(top_k, "top_k")
        checked = check_conditions(filters, self._fields)
        conditions = check_conditions(apply_filter_policy(self._policy, self._filters, checked), self._fields)
        self.warm_up()
        assert self._core is not None
        record_filter = None
        if conditions is not None:
            is_strict = bool(getattr(self._store.wrapped, "strict_datetime_comparison", False))
            record_filter = ConditionFilter(conditions, is_strict=is_strict)
        is_scaled = self.scale_score if scale_score is None else scale_score
        translate = partial(self._translate, is_scaled=is_scaled)
        return self._core.find(queries, k, record_filter, translate=translate)

    def _translate(self, answer: Answer[Document], *, is_scaled: bool) -> Document:
        blob, score = answer.record.blob, answer.score
        if blob is not None:
            blob = replace(blob, meta=self._fields.select(blob.meta))
        if is_scaled and score is not None:
            score = (1 + score) / 2
        return replace(answer.record, meta=answer.metadata, blob=blob, score=score)

    def _open(self) -> RetrievalCore[Document]:
        """Make the search. An index that was charged and not written is written now, and not made again."""
        if self._unsaved is not None:
            self._unsaved.save(self._options["file"])
            self._unsaved = None  # it is loaded from there
        self._warn_of_charge()
        try:
            return open_retrieval(
                self._store,
                self._store,
                self._fields,
                epsilon=self._epsilon,
                options={"mode": self._mode, "ledger": self._ledger, "k": self.top_k, **self._options},
                reads_now=False,
            )
        except IndexNotSaved as error:
            self._unsaved = error.search
            raise

    def _warn_of_charge(self) -> None:
        """Log a warning before a loaded component makes an index that may have been charged before."""
        file = self._options.get("file")
        is_saved = file is not None and has_saved_index(file)
        if self._is_loaded and self._mode == "index" and not is_saved:
            _log.warning(
                "A PrivateRetriever that was loaded finds no saved index and makes a new release, which is charged in "
                "full again; with 'file' it is made once."
            )


def _rehearse(mode: ModeOption, epsilon: float, ledger: Any, options: Mapping[str, Any]) -> None:
    """Check the options on two public records. Nothing is read or released."""
    trial = dict(options)
    file, rng, identity_of = (trial.pop(name, None) for name in ("file", "rng", "identity_of"))
    open_stream(rng)
    check_ledger(ledger, rng)
    check_identities(identity_of, False, trial.get("pin", "auto"))
    if file is not None:
        resolve_path(file)
    if mode in ("query", "screening"):
        trial |= {"ledger": ledger, "rng": rng, "file": file}
    else:  # modes that charge when they are made
        trial["rng"] = 0
        # These depend on the dimension of vectors that were not read.
        if trial.get("components") is not None:
            trial["components"] = min(2, _validation.check_count(trial["components"], "components", least=2))
        for name, default in (("reduction", "random"), ("center", "none")):
            if not isinstance(trial.get(name, default), str):
                del trial[name]
        trial.pop("codebook", None)
        if np.ndim(trial.get("queries", 0)):
            trial["queries"] = np.eye(1, 4)
    trial.pop("require_recall", None)  # which depends on the number of records
    PrivateSearch(np.eye(2, 4), epsilon=epsilon, mode=mode, **trial)


def _check_vectors(vectors: Any, name: str, axes: int, must: str) -> NDArray[Any]:
    """Check the form of queries before an index is charged."""
    checked = _validation.check_array(vectors, name, must)
    if checked.ndim != axes or not checked.size or checked.dtype.kind not in "iuf":
        _validation.reject(name, must, vectors)
    return checked


def _reject_embeddings() -> None:
    reject_bypass("return_embedding", "a document's embedding gives its clean score with every query")


def _option_to_plain(name: str, value: Any) -> Any:
    """Convert an option of a search to what a file can hold."""
    if isinstance(value, Path):
        return str(value)
    if name in ("score_range", "cuts") and isinstance(value, list | tuple):
        return [float(number) for number in value]
    if isinstance(value, QueryScores | LevelChannel) or (name == "adjacency" and isinstance(value, Adjacency)):
        return value.to_dict()
    if isinstance(value, AnchoredWindows):
        return {"name": _WINDOWS, "k": value.k, "tail": None if value.tail is None else value.tail.to_dict()}
    if isinstance(value, PublicLevels):
        return asdict(value)
    if not isinstance(value, _SERIALISABLE):
        raise InvalidInput(
            f"A PrivateRetriever with {name!r} given as a {type(value).__name__} is not serialised: leave it out of "
            "the pipeline that is written, and add it in Python to the pipeline that was loaded."
        )
    return value


def _read_mechanism(data: dict[str, Any]) -> LevelChannel | AnchoredWindows:
    if data.get("name") != _WINDOWS:
        return LevelChannel.from_dict(data)
    tail = data.get("tail")
    return AnchoredWindows(data.get("k"), None if tail is None else TailShape.from_dict(tail))


def _read_levels(data: dict[str, Any]) -> PublicLevels:
    names = {field.name for field in fields(PublicLevels)}
    if set(data) != names:
        raise InvalidInput(f"The 'cuts' are no public levels: they need {', '.join(sorted(names))}.")
    return PublicLevels(**data)


#: From the plain values of an option to its object.
_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "adjacency": adjacency_from_dict,
    "cuts": _read_levels,
    "mechanism": _read_mechanism,
    "public_scores": QueryScores.from_dict,
}


def _ledger_to_dict(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    if not account.ledger.name.startswith("sqlite:"):
        # An address without its password and options may be another ledger's.
        raise InvalidInput(
            "A PrivateRetriever with a ledger on a server is not serialised: its address has a password."
        )
    return {"url": account.ledger.name, "dataset": account.dataset, "who": account.who, "why": account.why}
