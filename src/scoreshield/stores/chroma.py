"""Chroma collections as a store: in memory, in a folder or on a server.

Chroma answers queries from an HNSW index, which may miss records: of 20,000 random vectors of 384 numbers, asked for
them all, it gave 19,533 (chromadb 1.5.9, a small index). What it leaves out depends on the other records, so its
answers are not used. Cosines are computed here from the vectors that Chroma holds. The collection's own space (cosine,
l2 or ip) does not matter, and vectors may be of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.stores.base import BaseStore
from scoreshield.stores.protocol import Records, StoreScores, explain_missing_extra, read_store

_PAGE = 1_000


def _compute_cosines(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute each cosine from a record and the unit query alone, in double precision, where no square overflows."""
    wide = rows.astype(np.float64)
    wide[~wide.any(axis=1), 0] = 1.0  # as a release takes a zero vector
    with np.errstate(all="ignore"):
        cosines = np.vecdot(wide, query.astype(np.float64)) / np.sqrt(np.vecdot(wide, wide))
    return np.asarray(cosines, dtype=np.float32)


class ChromaStore(BaseStore):
    """One Chroma collection.

    Every ``scores`` reads all vectors: keep a pinned copy (``pin="copy"``, the default) unless memory is too small.

    ``state`` detects changes of the number of records, the only thing that Chroma gives cheaply. It does not detect a
    vector that is replaced under its id, or as many inserts as deletes between two readings: call `mark_changed`
    then. Counting takes Chroma milliseconds, so without ``check_every`` a search reads the state once per second
    (``look_every``).

    Args:
        collection: As ``get_collection`` returns it, of any client that is not asynchronous.
    """

    look_every = 1.0

    @clear_frames_on_error
    @validate()
    def __init__(self, collection: Any) -> None:
        try:
            from chromadb.api.models.Collection import Collection
        except ImportError:
            raise explain_missing_extra("chroma", "ChromaStore") from None
        if not isinstance(collection, Collection):
            _validation.reject("collection", "a collection of chromadb, not asynchronous", type(collection))
        self.name = f"The Chroma collection {collection.name!r}"
        self._collection = collection
        self._dimension = read_store(self, "being opened", self._measure)

    def read_state(self) -> Hashable:
        return str(self._collection.id), int(self._collection.count())

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        return StoreScores(*self._read_pages(lambda rows: _compute_cosines(rows, query)))

    @clear_frames_on_error
    def records(self) -> Records:
        return Records(*self._read_pages(lambda rows: rows))

    def _read_pages(
        self, use: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    ) -> tuple[list[str], NDArray[np.float32]]:
        """Read every id, sorted, and use the vectors a page at a time.

        Pages are read by their ids: a page that is read by its place moves when a record before it is removed.
        """
        ids = self._list_ids()
        if not ids:
            raise self._empty_error()
        parts: list[NDArray[np.float32]] = []
        for start in range(0, len(ids), _PAGE):
            chunk = ids[start : start + _PAGE]
            page = self._collection.get(ids=chunk, include=["embeddings"])
            order = sorted(range(len(page["ids"])), key=page["ids"].__getitem__)
            if [page["ids"][i] for i in order] != chunk:
                raise self._change_error()
            parts.append(use(self._convert_page(page)[order]))
        if self._list_ids() != ids:
            raise self._change_error()
        return ids, np.concatenate(parts)

    def _list_ids(self) -> list[str]:
        return sorted(self._collection.get(include=[])["ids"])

    def _convert_page(self, page: Any) -> NDArray[np.float32]:
        vectors = page["embeddings"]
        if vectors is None or len(vectors) != len(page["ids"]) or any(len(row) != self._dimension for row in vectors):
            raise self._missing_vector_error()
        return np.asarray(vectors, dtype=np.float32).reshape(-1, self._dimension)

    def _measure(self) -> int:
        first = self._collection.get(include=["embeddings"], limit=1)["embeddings"]
        if first is None or not len(first):
            raise self._empty_error()
        return len(first[0])
