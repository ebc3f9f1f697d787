"""Qdrant collections as a store: in memory, in a local folder or on a server.

Scores are Qdrant's own, by an exact search (a full scan of the original vectors) for more records than there are, so
that none is chosen by its score. Qdrant scores by cosine (it keeps such vectors at unit length), by inner product or by
Euclidean distance, which is squared here; Manhattan distance is no function of the cosine and is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _checks
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.protocol import Convention, Records, Scored, need, reading

_CONVENTIONS = {
    "Cosine": Convention.COSINE,
    "Dot": Convention.INNER_PRODUCT,
    "Euclid": Convention.SQUARED_L2,
}
_PAGE = 2_000


class QdrantStore:
    """One collection of a Qdrant client.

    Parameters
    ----------
    client : a ``QdrantClient``, of local mode or of a server. Its time-out and its key are its own affair.
    collection : its name.
    vector_name : which of the named vectors; nothing where the collection has one without a name.
    timeout : whole seconds that a server may take for one request, where that is not the client's own.

    ``state`` sees the number of records, which is all that Qdrant tells cheaply. A vector replaced under its id, or as
    many inserts as deletes between two looks, is not seen: call :meth:`changed` then.
    """

    zero_copy = False

    def __init__(
        self, client: Any, collection: str, *, vector_name: str | None = None, timeout: int | None = None
    ) -> None:
        try:
            from qdrant_client import QdrantClient
        except ImportError:
            raise need("qdrant", "QdrantStore") from None
        if not isinstance(client, QdrantClient):
            _checks.reject("client", "QdrantStore", "a qdrant_client.QdrantClient", type(client))
        if not isinstance(collection, str) or not collection:
            _checks.reject("collection", "QdrantStore", "the name of a collection", collection)
        self._timeout = None if timeout is None else _checks.count(timeout, "timeout", "QdrantStore")
        self.name = f"The Qdrant collection {collection!r}"
        self._client, self._collection, self._vector = client, collection, vector_name
        self._told = 0
        params = self._params()
        if params.multivector_config is not None:
            raise InvalidInput(f"{self.name} keeps several vectors a record, which have no one cosine with a query.")
        distance = str(params.distance.value)
        if distance not in _CONVENTIONS:
            raise InvalidInput(
                f"{self.name} scores by {distance} distance, which is no function of the cosine; make a collection "
                "with Cosine."
            )
        self.convention, self._dimension = _CONVENTIONS[distance], int(params.size)
        self._squared = distance == "Euclid"

    @property
    def dimension(self) -> int:
        return self._dimension

    def changed(self) -> None:
        """Say that records were replaced, so that the next reading is of a new version."""
        self._told += 1

    def state(self) -> Hashable:
        return self._count(), self._told

    def scores(self, query: NDArray[np.float32]) -> Scored:
        n = self._count()
        if not n:
            raise StoreError(f"{self.name} holds no records.")
        found = self._client.query_points(
            self._collection,
            query=query.tolist(),
            using=self._vector,
            limit=n + 1,  # of n + 1 records, the n best would be a choice by true score
            with_payload=False,
            with_vectors=False,
            **self._exactly(),
        ).points
        if len(found) != n:
            raise StoreError(f"{self.name} gave {len(found):,} scores for {n:,} records; nothing was released.")
        found.sort(key=lambda point: _place(point.id))
        values = np.fromiter((point.score for point in found), dtype=np.float32, count=n)
        return Scored([point.id for point in found], values**2 if self._squared else values)

    def records(self) -> Records:
        n, ids, parts, offset = self._count(), [], [], None
        while True:
            page, offset = self._client.scroll(
                self._collection,
                limit=_PAGE,
                offset=offset,
                with_payload=False,
                with_vectors=True if self._vector is None else [self._vector],
                timeout=self._timeout,
            )
            ids += [point.id for point in page]
            if page:
                parts.append(self._rows([point.vector for point in page]))
            if offset is None:
                break
        if len(ids) != n:
            raise StoreError(f"{self.name} gave {len(ids):,} vectors for {n:,} records; nothing was released.")
        rows = np.concatenate(parts) if parts else np.empty((0, self._dimension), dtype=np.float32)
        order = sorted(range(n), key=lambda i: _place(ids[i]))
        return Records([ids[i] for i in order], rows[order])

    def _rows(self, vectors: Sequence[Any]) -> NDArray[np.float32]:
        if self._vector is not None:
            vectors = [(vector or {}).get(self._vector) for vector in vectors]
        if any(vector is None or len(vector) != self._dimension for vector in vectors):
            raise StoreError(f"{self.name} has records without a vector of {self._dimension} numbers.")
        return np.array(vectors, dtype=np.float32)

    def _count(self) -> int:
        return int(self._client.count(self._collection, exact=True, timeout=self._timeout).count)

    def _exactly(self) -> dict[str, Any]:
        """No index and no quantised vectors: their codes depend on other records. Local mode has neither, and warns."""
        from qdrant_client import models

        options = self._client.init_options
        if options.get("path") is not None or options.get("location") == ":memory:":
            return {}
        full = models.SearchParams(exact=True, quantization=models.QuantizationSearchParams(ignore=True))
        return {"search_params": full, "timeout": self._timeout}

    def _params(self) -> Any:
        if not reading(self, "being opened", lambda: self._client.collection_exists(self._collection)):
            raise StoreError(f"{self.name} does not exist.")
        vectors = reading(self, "being opened", lambda: self._client.get_collection(self._collection))
        config: Any = vectors.config.params.vectors
        if not isinstance(config, dict):
            if self._vector is not None or config is None:
                raise InvalidInput(f"{self.name} has no dense vectors named {self._vector!r}.")
            return config
        if self._vector not in config:
            named = ", ".join(map(repr, config)) or "none"
            raise InvalidInput(f"{self.name} has named vectors ({named}); say which one by 'vector_name'.")
        return config[self._vector]


def _place(one: Any) -> tuple[bool, Any]:
    """Ids are whole numbers or UUIDs as text: the numbers come first."""
    return (False, one) if isinstance(one, int) else (True, str(one))
