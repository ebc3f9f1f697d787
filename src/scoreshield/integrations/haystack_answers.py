"""From query vectors to Haystack documents: every run of the retriever ends here.

What is shown is read from the store after the release, so a document that is gone is never named.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from itertools import islice
from typing import Any

from haystack import Document
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.integrations._common import Fields, annotated, not_read, take_unread
from scoreshield.integrations.haystack_documents import Documents
from scoreshield.search import Hits, PrivateSearch

#: Hits beyond k that are released with them and stand in for documents deleted meanwhile.
_SPARE = 16
#: Paid rankings that are kept where their documents could not be read.
_MOST_UNREAD = 256


class Answers:
    """The best documents by released score, of a search over a document store."""

    def __init__(self, search: PrivateSearch, documents: Documents, fields: Fields) -> None:
        self.search, self._documents, self._fields = search, documents, fields
        self._unread: dict[Hashable, list[Hits]] = {}

    def find(self, queries: NDArray[Any], k: int, filters: dict[str, Any] | None) -> list[list[Document]]:
        """The k best of each query that pass the filters: one charge for all queries, where there is one."""
        keep = self._documents.filter(filters)
        if self.search.mode == "index":
            return self._from_index(queries, k, keep)
        asked = queries.shape, queries.tobytes(), k, repr(filters)
        hits = take_unread(self._unread, asked, self.search) or self._charged(queries, k, keep if filters else None)
        try:
            return self._shown(hits, k, keep)[0]
        except BaseException as error:  # an interrupt does not lose what was paid for either
            self._unread = dict([*self._unread.items(), (asked, hits)][-_MOST_UNREAD:])
            if not isinstance(error, StoreError | InvalidInput):
                raise
            failure = not_read(error, hits, k)
        raise failure

    def _from_index(self, queries: NDArray[Any], k: int, keep: Callable[[Document], bool]) -> list[list[Document]]:
        """Asking an index again costs nothing: more is asked for until enough of it may be returned."""
        want = k
        while True:
            hits = self.search.search_batch(queries, want)
            shown, enough = self._shown(hits, k, keep)
            if enough or all(len(one) < want for one in hits):
                return shown
            want *= 4

    def _charged(self, queries: NDArray[Any], k: int, keep: Callable[[Document], bool] | None) -> list[Hits]:
        """Released and paid for. What can go wrong with documents and filters is tried before, on no ranking."""
        documents = self._documents
        documents.try_one()
        if keep is None:
            return self.search.search_batch(queries, k + _SPARE)
        judged = documents.judged(self.search.ids)
        return self.search.search_batch(queries, k + _SPARE, where=lambda one: one in judged and keep(judged[one]))

    def _shown(self, hits: list[Hits], k: int, keep: Callable[[Document], bool]) -> tuple[list[list[Document]], bool]:
        """The first k of each ranking that are there and pass, and whether there are k of each."""
        first = [one for each in hits for one in each.ids[:k]]
        found = self._documents.fetch(first)
        if not all(one in found and keep(found[one]) for one in first):
            found |= self._documents.fetch(one for each in hits for one in each.ids[k:])
        shown = []
        for each in hits:
            passing = (place for place, one in enumerate(each.ids) if one in found and keep(found[one]))
            shown.append([self._scored(each, place, found[each.ids[place]]) for place in islice(passing, k)])
        return shown, all(len(one) == k for one in shown)

    def _scored(self, hits: Hits, place: int, document: Document) -> Document:
        score = None if hits.scores is None else float(hits.scores[place])
        meta, blob = annotated(self._fields.shown(document.meta), self.search, hits, place), document.blob
        shown = None if blob is None else replace(blob, meta=self._fields.shown(blob.meta))
        return replace(document, meta=meta, blob=shown, score=score)
