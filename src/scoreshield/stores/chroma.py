"""Chroma collections as a store: in memory, in a folder or on a server.

Chroma answers queries from an HNSW index, which may miss records: of 20,000 random vectors of 384 numbers, asked for
them all, it gave 19,533 (chromadb 1.5.9, a small index). What it leaves out depends on the other records, so its
answers are not used: distances are computed here from the vectors that Chroma holds, by the collection's own space
(cosine, l2 or ip).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _checks
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.protocol import Convention, Records, Scored, need, reading

Float = NDArray[np.float64]

_PAGE = 1_000


def _cosine(rows: Float, query: Float) -> Float:
    with np.errstate(all="ignore"):  # zero vectors become NaN, which is refused
        return np.asarray(1 - np.vecdot(rows, query) / np.sqrt(np.vecdot(rows, rows)))


def _inner_product(rows: Float, query: Float) -> Float:
    return np.asarray(1 - np.vecdot(rows, query))


def _squared_l2(rows: Float, query: Float) -> Float:
    apart = rows - query
    return np.asarray(np.vecdot(apart, apart))


#: Chroma's distances, each of a record and the query alone.
_SPACES: dict[str, tuple[Convention, Callable[[Float, Float], Float]]] = {
    "cosine": (Convention.COSINE_DISTANCE, _cosine),
    "ip": (Convention.COSINE_DISTANCE, _inner_product),
    "l2": (Convention.SQUARED_L2, _squared_l2),
}


class ChromaStore:
    """One Chroma collection.

    Parameters
    ----------
    collection : as ``get_collection`` gives it, of any client that is not asynchronous.

    Every ``scores`` reads all vectors: hold a pinned copy (``pin="copy"``, the default) unless memory forbids it.

    ``state`` sees the number of records, which is all that Chroma tells cheaply. A vector replaced under its id, or as
    many inserts as deletes between two looks, is not seen: call :meth:`changed` then.
    """

    zero_copy = False

    def __init__(self, collection: Any) -> None:
        try:
            from chromadb.api.models.Collection import Collection
        except ImportError:
            raise need("chroma", "ChromaStore") from None
        if not isinstance(collection, Collection):
            _checks.reject("collection", "ChromaStore", "a collection of chromadb, not asynchronous", type(collection))
        self.name = f"The Chroma collection {collection.name!r}"
        self._collection, self._told = collection, 0
        space = _space(collection)
        if space not in _SPACES:
            raise InvalidInput(f"{self.name} has the space {space!r}, which is none of {', '.join(_SPACES)}.")
        self.convention, self._distance = _SPACES[space]
        self._dimension = reading(self, "being opened", self._measure)

    @property
    def dimension(self) -> int:
        return self._dimension

    def changed(self) -> None:
        """Say that records were replaced, so that the next reading is of a new version."""
        self._told += 1

    def state(self) -> Hashable:
        return str(self._collection.id), self._count(), self._told

    def scores(self, query: NDArray[np.float32]) -> Scored:
        wide = query.astype(np.float64)
        ids, parts = self._pages(lambda rows: self._distance(rows.astype(np.float64), wide).astype(np.float32))
        order = sorted(range(len(ids)), key=ids.__getitem__)
        return Scored([ids[i] for i in order], np.concatenate(parts)[order])

    def records(self) -> Records:
        ids, parts = self._pages(lambda rows: rows)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        return Records([ids[i] for i in order], np.concatenate(parts)[order])

    def _pages(self, use: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> tuple[list[str], list[Any]]:
        """Every id, and what is made of the vectors, a page at a time."""
        n = self._count()
        if not n:
            raise StoreError(f"{self.name} holds no records.")
        ids: list[str] = []
        parts: list[Any] = []
        for start in range(0, n, _PAGE):
            page = self._collection.get(include=["embeddings"], limit=_PAGE, offset=start)
            ids += page["ids"]
            parts.append(use(self._rows(page)))
        if len(ids) != n or len(set(ids)) != n or self._count() != n:
            raise StoreError(f"{self.name} changed while it was read; nothing was released: try again.")
        return ids, parts

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


def _space(collection: Any) -> Any:
    """From the configuration, or, in collections of old, from the metadata; Chroma's default is l2."""
    configuration = collection.configuration_json or {}
    for index in ("hnsw", "spann"):
        settings = configuration.get(index)
        if settings and settings.get("space"):
            return settings["space"]
    return (collection.metadata or {}).get("hnsw:space", "l2")
