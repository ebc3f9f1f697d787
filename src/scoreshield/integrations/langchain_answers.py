"""From query vectors to LangChain documents: every search of the private vector store ends here.

Documents are fetched after the ranking was released (under a filter: in no order of merit, before it), and are copied
without what stores put beside them (scores, distances, vectors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.documents import Document
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput, InvalidParameter, ScoreShieldError, StoreError
from scoreshield.integrations._common import (
    Fields,
    annotated,
    growing_pages,
    not_charged,
    not_read,
    scrub,
    take_unread,
)
from scoreshield.search import Hits, PrivateSearch
from scoreshield.stores.protocol import strip_frames

#: What these ids name, as far as it is there: Documents, or what has their ``page_content`` and ``metadata``.
Fetch = Callable[[Sequence[Any]], Mapping[Any, Any]]
#: One document and its released cosine; None where only names were released.
Found = tuple[Document, float | None]
#: What every search takes.
SIMILARITY = frozenset({"k", "filter"})
_LARGEST_PAGE = 512
#: Hits beyond k that are released with them and stand in for documents deleted meanwhile.
_SPARE = 16
#: Paid rankings that are kept where their documents could not be read.
_MOST_UNREAD = 256


class Plain(NamedTuple):
    """A document without scores and vectors: its text, and its metadata."""

    page_content: str
    metadata: dict[str, Any]

    def as_document(self, one: Any) -> Document:
        return Document(id=str(one), page_content=self.page_content, metadata=self.metadata)


def fetching(documents: Any) -> Fetch:
    """Documents from a mapping of ids, or through a function like ``VectorStore.get_by_ids``."""
    if isinstance(documents, Mapping):
        return lambda ids: {one: documents[one] for one in ids if one in documents}
    if not callable(documents):
        _validation.reject("documents", "a mapping of ids or a function like get_by_ids", documents)

    def fetch(ids: Sequence[Any]) -> dict[Any, Document]:
        # LangChain's ids are strings; the store's own may be numbers.
        named = {str(one): one for one in ids}
        return {named[document.id]: document for document in documents(list(ids)) if document.id in named}

    return fetch


def documents_of(fetch: Fetch, ids: Sequence[Any]) -> dict[Any, Plain]:
    """The documents that have a text, without scores and vectors."""
    return {one: plain for one, plain in _records_of(fetch, ids).items() if isinstance(plain.page_content, str)}


def _records_of(fetch: Fetch, ids: Sequence[Any]) -> dict[Any, Plain]:
    """The same with those that have none; a failure is told by its type alone, as its text may hold data."""
    try:
        return _fetched(fetch, ids)
    except ScoreShieldError as known:
        failure: ScoreShieldError = known
    except Exception as error:
        failure = StoreError(f"The documents could not be read ({type(error).__name__}).")
    raise strip_frames(failure)


def _fetched(fetch: Fetch, ids: Sequence[Any]) -> dict[Any, Plain]:
    found = fetch(ids) if ids else {}
    return {one: Plain(found[one].page_content, scrub(found[one].metadata)) for one in ids if one in found}


def any_document(ids: Sequence[Any], fetch: Fetch) -> Any:
    """The id of some record whose document can be read.

    Where there is none, every answer would be empty, and charged: that raises an error which says why.
    """
    without_text = False
    for page in growing_pages(ids):
        for one, plain in _records_of(fetch, page).items():
            if isinstance(plain.page_content, str):
                return one
            without_text = True
    if without_text:
        raise InvalidInput(f"None of the {len(ids):,} records has a text: a retriever answers with documents.")
    raise InvalidInput(
        f"None of the {len(ids):,} records is called as a document is (the first is {ids[0]!r}): documents need "
        "the ids that the store, or the saved index, has; without any, LangChain draws new ones each time."
    )


# ---- Filters.


class FilterView:
    """What a filter function sees of a document: its id, and the fields that are filterable."""

    def __init__(self, one: Any, plain: Plain, fields: Fields) -> None:
        self.id = str(one)
        self.metadata: Mapping[str, Any] = _FilterableMetadata(plain.metadata, fields)
        self._plain, self._fields = plain, fields

    @property
    def page_content(self) -> str:
        self._fields.require(["page_content"])
        return self._plain.page_content


class _FilterableMetadata(Mapping[str, Any]):
    def __init__(self, metadata: Mapping[str, Any], fields: Fields) -> None:
        self._metadata, self._fields = metadata, fields

    def __getitem__(self, key: str) -> Any:
        self._fields.require([key])
        return self._metadata[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._metadata if key in self._fields.filterable)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def filter_of(given: Any, fields: Fields) -> Callable[[Any, Plain], bool] | None:
    """A test of one document: a function of what is filterable of it, or metadata that must be equal."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        if not callable(given):
            _validation.reject("filter", "a function of a Document, or metadata that must be equal", given)
        if not fields.filterable:
            raise InvalidInput(
                "A filter function needs 'filterable', the list of the fields that it looks at, because whoever "
                "filters learns them of every record exactly."
            )
        return lambda one, plain: bool(given(FilterView(one, plain, fields)))
    if any(str(key).startswith("$") or isinstance(value, Mapping) for key, value in given.items()):
        raise InvalidInput("A filter with operators is a store's own language: give a function of a Document instead.")
    fields.require(map(str, given))
    return lambda _, plain: all(plain.metadata.get(key) == value for key, value in given.items())


class Lookup:
    """Which ids a ranking may show: those whose documents are there and pass the filter.

    Documents are read as they are asked about. Under a filter more and more are read at a time, in the public order of
    the ids, so that a rare match does not take one reading a record.
    """

    def __init__(self, fetch: Fetch, keep: Callable[[Any, Plain], bool] | None, search: PrivateSearch) -> None:
        self.found: dict[Any, Plain] = {}
        self.filters = keep is not None
        self._fetch, self._keep = fetch, keep
        self._seen: set[Any] = set()
        self._rest = iter(search.ids) if keep is not None else iter(())
        self._page = 1

    def load(self, ids: Sequence[Any]) -> None:
        new = [one for one in dict.fromkeys(ids) if one not in self._seen]
        self.found.update(documents_of(self._fetch, new))
        self._seen.update(new)

    def __call__(self, one: Any) -> bool:
        if one not in self._seen:
            others = (other for other in self._rest if other != one and other not in self._seen)
            self.load([one, *islice(others, self._page - 1)])
            self._page = min(2 * self._page, _LARGEST_PAGE)
        return one in self.found and (self._keep is None or self._keep(one, self.found[one]))


class Answers:
    """From query vectors to documents: every search of the vector store ends here."""

    def __init__(self, search: PrivateSearch, fetch: Fetch, fields: Fields) -> None:
        self._search, self.fetch, self.fields = search, fetch, fields
        self._known: Any = None  # a record that has a document
        self._unread: dict[tuple[bytes, int], list[Hits]] = {}

    def documents(self, ids: Sequence[Any]) -> list[Document]:
        """Those that there are, in the order of the ids."""
        found = documents_of(self.fetch, list(dict.fromkeys(ids)))
        return [
            plain._replace(metadata=self.fields.shown(plain.metadata)).as_document(one) for one, plain in found.items()
        ]

    def find(self, vectors: Sequence[Any], *, k: int = 4, filter: Any = None, **unknown: Any) -> list[list[Found]]:
        """The k best documents of each query vector: one charge for all of them, where there is one."""
        refuse_unknown(unknown, SIMILARITY, "it may act before the noise; 'k' and 'filter' act after it")
        k = _validation.check_count(k, "k")
        lookup = Lookup(self.fetch, filter_of(filter, self.fields), self._search)
        if self._search.mode == "index" or lookup.filters:
            return self._read(self._hits(vectors, k, lookup), lookup, k)
        # Documents are read after the charge, so that nothing about an unpaid ranking is seen. Where that fails, what
        # was paid for is kept: asking the same again reads on from there.
        queries = _validation.check_array(vectors, "embedding", "vectors of one length")
        asked = queries.tobytes(), k
        hits = take_unread(self._unread, asked, self._search) or self._charged(queries, k)
        try:
            return self._read(hits, lookup, k)
        except BaseException as error:  # an interrupt does not lose what was paid for either
            self._unread = dict([*self._unread.items(), (asked, hits)][-_MOST_UNREAD:])
            if not isinstance(error, StoreError):
                raise
            failure = not_read(error, hits, k)
        raise failure

    def _charged(self, queries: NDArray[Any], k: int) -> list[Hits]:
        """Released and paid for."""
        self.try_one()
        return self._search.search_batch(queries, k + _SPARE)

    def try_one(self, ids: Sequence[Any] | None = None) -> None:
        """Read one document, so that a store which cannot give documents is seen before a charge.

        Args:
            ids: Of the records that are about to be released; by default those of the search.
        """
        try:
            if ids is not None:
                self._known = any_document(ids, self.fetch)
            elif self._known is None or not documents_of(self.fetch, [self._known]):
                self._known = any_document(self._search.ids, self.fetch)
            return
        except StoreError as error:
            failure = not_charged(error)
        raise failure

    def _hits(self, vectors: Sequence[Any], k: int, lookup: Lookup) -> list[Hits]:
        """Of an index, or under a filter: documents that may not be shown are left out at no cost, or before it."""
        if lookup.filters:
            return self._search.search_batch(vectors, k, where=lookup)
        hits = self._search.search_batch(vectors, k)
        ids = [one for found in hits for one in found.ids]
        lookup.load(ids)
        return hits if all(map(lookup, ids)) else self._search.search_batch(vectors, k, where=lookup)

    def _read(self, hits: list[Hits], lookup: Lookup, k: int) -> list[list[Found]]:
        lookup.load([one for found in hits for one in found.ids[:k]])
        shown = ((found, islice((place for place, one in enumerate(found.ids) if lookup(one)), k)) for found in hits)
        return [[self._found(found, place, lookup) for place in places] for found, places in shown]

    def _found(self, hits: Hits, place: int, lookup: Lookup) -> Found:
        one = hits.ids[place]
        plain = lookup.found[one]
        metadata = annotated(self.fields.shown(plain.metadata), self._search, hits, place)
        score = None if hits.scores is None else float(hits.scores[place])
        return plain._replace(metadata=metadata).as_document(one), score


def refuse_unknown(given: Mapping[str, Any], known: AbstractSet[str], why: str) -> None:
    for name in sorted(set(given) - known):
        raise InvalidParameter(name, f"is refused: {why}.")
