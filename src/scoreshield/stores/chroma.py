"""Chroma collections as a store: in memory, in a folder or on a server.

Chroma answers queries from an HNSW index, which may miss records: of 20,000 random vectors of 384 numbers, asked for
them all, it gave 19,533 (chromadb 1.5.9, a small index). What it leaves out depends on the other records, so its
answers are not used: cosines are computed here from the vectors that Chroma holds, whatever the collection's own space
(cosine, l2 or ip) is, so that vectors may be of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import StoreError
from scoreshield.stores.protocol import Convention, Records, StoreScores, explain_missing_extra, read_store

_PAGE = 1_000


def _cosines(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each of a record and the unit query alone; double precision holds the square of any single one."""
    wide = rows.astype(np.float64)
    wide[~wide.any(axis=1), 0] = 1.0  # as a release takes a zero vector
    with np.errstate(all="ignore"):
        cosines = np.vecdot(wide, query.astype(np.float64)) / np.sqrt(np.vecdot(wide, wide))
    return np.asarray(cosines, dtype=np.float32)


class ChromaStore:
    """One Chroma collection.

    Parameters
    ----------
    collection : as ``get_collection`` gives it, of any client that is not asynchronous.

    Every ``scores`` reads all vectors: hold a pinned copy (``pin="copy"``, the default) unless memory forbids it.

    ``state`` sees the number of records, which is all that Chroma tells cheaply. A vector replaced under its id, or as
    many inserts as deletes between two looks, is not seen: call :meth:`mark_changed` then. Counting takes Chroma
    milliseconds, so without ``check_every`` a search looks once a second (``look_every``).
    """

    zero_copy = False
    convention = Convention.COSINE
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
        self._collection, self._told = collection, 0
        self._dimension = read_store(self, "being opened", self._measure)

    @property
    def dimension(self) -> int:
        return self._dimension

    def mark_changed(self) -> None:
        """Say that records were replaced, so that the next reading is of a new version."""
        self._told += 1

    def state(self) -> Hashable:
        return str(self._collection.id), self._count(), self._told

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        return StoreScores(*self._pages(lambda rows: _cosines(rows, query)))

    @clear_frames_on_error
    def records(self) -> Records:
        return Records(*self._pages(lambda rows: rows))

    def _pages(
        self, use: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    ) -> tuple[list[str], NDArray[np.float32]]:
        """Every id, sorted, and what is made of the vectors, a page at a time.

        Pages are asked for by their ids: one that is asked for by its place moves when a record before it goes.
        """
        ids = self._ids()
        if not ids:
            raise StoreError(f"{self.name} holds no records.")
        parts: list[NDArray[np.float32]] = []
        for start in range(0, len(ids), _PAGE):
            asked = ids[start : start + _PAGE]
            page = self._collection.get(ids=asked, include=["embeddings"])
            order = sorted(range(len(page["ids"])), key=page["ids"].__getitem__)
            if [page["ids"][i] for i in order] != asked:
                raise self._changed()
            parts.append(use(self._rows(page)[order]))
        if self._ids() != ids:
            raise self._changed()
        return ids, np.concatenate(parts)

    def _ids(self) -> list[str]:
        return sorted(self._collection.get(include=[])["ids"])

    def _changed(self) -> StoreError:
        return StoreError(f"{self.name} changed while it was read; nothing was released: try again.")

    def _rows(self, page: Any) -> NDArray[np.float32]:
        found = page["embeddings"]
        if found is None or len(found) != len(page["ids"]) or any(len(row) != self._dimension for row in found):
            raise StoreError(f"{self.name} has records without a vector of {self._dimension} numbers.")
        return np.asarray(found, dtype=np.float32).reshape(-1, self._dimension)

    def _count(self) -> int:
        return int(self._collection.count())

    def _measure(self) -> int:
        first = self._collection.get(include=["embeddings"], limit=1)["embeddings"]
        if first is None or not len(first):
            raise StoreError(f"{self.name} holds no records.")
        return len(first[0])
