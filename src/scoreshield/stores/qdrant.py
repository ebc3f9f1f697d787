"""Qdrant collections as a store: in memory, in a local folder or on a server.

Scores are Qdrant's own, by an exact search (a full scan of the original vectors) for more records than there are, so
that none is chosen by its score. Qdrant scores by cosine (it keeps such vectors at unit length), by inner product x.q
or by Euclidean distance |x - q|. From the latter two the cosine with a unit query follows by the record's own length:
x.q / |x| and (|x|^2 + 1 - |x - q|^2) / (2 |x|). Manhattan distance is no function of the cosine and raises an error.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.base import BaseStore
from scoreshield.stores.protocol import Records, StoreScores, explain_missing_extra, read_store

_DISTANCES = ("Cosine", "Dot", "Euclid")
#: Of the lengths from which a Euclidean distance of single precision gives the cosine to four digits.
_SHORTEST, _LONGEST = 0.01, 100.0
_PAGE = 2_000


class QdrantStore(BaseStore):
    """One collection of a Qdrant client.

    ``state`` detects changes of the number of records, the only thing that Qdrant gives cheaply. It does not detect a
    vector that is replaced under its id, or as many inserts as deletes between two readings: call `mark_changed`
    then. Where the collection is not by cosine, ``scores`` reads all vectors once per state, for their lengths.

    Args:
        client: A ``QdrantClient``, of local mode or of a server, with a time-out and a key of its own.
        collection: The name of the collection.
        vector_name: The name of the vectors; None where the collection has one vector without a name.
        timeout: Whole seconds that a server may take for one request, where that is not the client's own time-out.
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self, client: Any, collection: str, *, vector_name: str | None = None, timeout: int | None = None
    ) -> None:
        try:
            from qdrant_client import QdrantClient
        except ImportError:
            raise explain_missing_extra("qdrant", "QdrantStore") from None
        if not isinstance(client, QdrantClient):
            _validation.reject("client", "a qdrant_client.QdrantClient", type(client))
        if not isinstance(collection, str) or not collection:
            _validation.reject("collection", "the name of a collection", collection)
        self._timeout = None if timeout is None else _validation.check_count(timeout, "timeout")
        self.name = f"The Qdrant collection {collection!r}"
        self._client, self._collection, self._vector = client, collection, vector_name
        params = self._read_params()
        if params.multivector_config is not None:
            raise InvalidInput(f"{self.name} keeps several vectors per record, and so several cosines; use one.")
        distance = str(params.distance.value)
        if distance not in _DISTANCES:
            raise InvalidInput(
                f"{self.name} scores by {distance} distance, which is no function of the cosine; make a collection "
                "with Cosine."
            )
        self._distance, self._dimension = distance, int(params.size)
        self._lengths: tuple[Hashable, list[Any], NDArray[np.float64]] | None = None

    def read_state(self) -> Hashable:
        return self._count()

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        n = self._count()
        if not n:
            raise self._empty_error()
        points = self._client.query_points(
            self._collection,
            query=query.tolist(),
            using=self._vector,
            limit=n + 1,  # of n + 1 records, the n best would be a choice by true score
            with_payload=False,
            with_vectors=False,
            **self._make_exact_options(),
        ).points
        self._check_count(len(points), n, "scores")
        points.sort(key=lambda point: _make_sort_key(point.id))
        ids = [point.id for point in points]
        values = np.fromiter((point.score for point in points), dtype=np.float64, count=n)
        return StoreScores(ids, self._convert_scores(ids, values).astype(np.float32))

    def _convert_scores(self, ids: list[Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._distance == "Cosine":
            return values
        state = len(ids), self._changes
        if self._lengths is None or self._lengths[:2] != (state, ids):
            names, vectors = self.records()
            self._lengths = state, list(names), np.linalg.norm(vectors.astype(np.float64), axis=1)
        if self._lengths[1] != ids:
            raise self._change_error()
        lengths = self._lengths[2]
        if not lengths.min() > 0:
            raise self._length_error()
        if self._distance == "Dot":
            return values / lengths
        if lengths.min() < _SHORTEST or lengths.max() > _LONGEST:
            raise StoreError(
                f"{self.name} has vectors that are not between {_SHORTEST:g} and {_LONGEST:g} long: Euclidean "
                "distances are too coarse for them; use pin='copy'."
            )
        return (lengths**2 + 1 - values**2) / (2 * lengths)

    @clear_frames_on_error
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
                parts.append(self._convert_vectors([point.vector for point in page]))
            if offset is None:
                break
        self._check_count(len(ids), n, "vectors")
        rows = np.concatenate(parts) if parts else np.empty((0, self._dimension), dtype=np.float32)
        order = sorted(range(n), key=lambda i: _make_sort_key(ids[i]))
        return Records([ids[i] for i in order], rows[order])

    def _convert_vectors(self, vectors: Sequence[Any]) -> NDArray[np.float32]:
        if self._vector is not None:
            vectors = [(vector or {}).get(self._vector) for vector in vectors]
        if any(vector is None or len(vector) != self._dimension for vector in vectors):
            raise self._missing_vector_error()
        return np.array(vectors, dtype=np.float32)

    def _count(self) -> int:
        return int(self._client.count(self._collection, exact=True, timeout=self._timeout).count)

    def _make_exact_options(self) -> dict[str, Any]:
        """Ask for a search without an index and quantised vectors, whose codes depend on other records.

        Local mode has neither, and warns about these options.
        """
        from qdrant_client import models

        options = self._client.init_options
        if options.get("path") is not None or options.get("location") == ":memory:":
            return {}
        full = models.SearchParams(exact=True, quantization=models.QuantizationSearchParams(ignore=True))
        return {"search_params": full, "timeout": self._timeout}

    def _read_params(self) -> Any:
        if not read_store(self, "being opened", lambda: self._client.collection_exists(self._collection)):
            raise StoreError(f"{self.name} does not exist.")
        vectors = read_store(self, "being opened", lambda: self._client.get_collection(self._collection))
        config: Any = vectors.config.params.vectors
        if not isinstance(config, dict):
            if self._vector is not None or config is None:
                raise InvalidInput(f"{self.name} has no dense vectors named {self._vector!r}.")
            return config
        if self._vector not in config:
            options = ", ".join(map(repr, config)) or "none"
            raise InvalidInput(f"{self.name} has named vectors ({options}); give one of them as 'vector_name'.")
        return config[self._vector]


def _make_sort_key(one: Any) -> tuple[bool, Any]:
    """Make a key that sorts numbers before UUIDs, which are texts."""
    return (False, one) if isinstance(one, int) else (True, str(one))
