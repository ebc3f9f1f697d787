"""Methods that write a private index to the engine that will serve it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._validation import validate
from scoreshield.privacy.draws import check_ids
from scoreshield.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from scoreshield.stores.export import ExportContent, ExportMetadata


class VectorExports:
    """What a release of private vectors can be exported to. Everything here is post-processing and costs nothing."""

    guarantee: Guarantee

    @validate()
    def reduce_query(self, query: ArrayLike) -> NDArray[np.float32]:
        """Normalise and reduce one query, (d,), or a batch, (m, d), as the records were.

        The inner products with the vectors are the scores of the index, so an engine that serves the vectors must be
        asked with this.
        """
        return self._describe_metadata().reduce_query(query)

    @validate()
    def to_faiss(
        self,
        path: str | Path | None = None,
        *,
        kind: Literal["flat", "hnsw"] = "flat",
        ids: Iterable[int | str] | None = None,
    ) -> Any:
        """Make a FAISS index of the private vectors, by inner product.

        Args:
            path: Where to write it, with the metadata and the ids in ``PATH.json`` beside it; None writes nothing.
            kind: ``"flat"`` is exact, ``"hnsw"`` approximate and faster.
            ids: The names of the rows in the metadata; None for those of the index, or else row numbers.

        Returns:
            The FAISS index. It numbers the rows as the private index does.
        """
        from scoreshield.stores.export import make_faiss

        return make_faiss(self._describe_export(ids), path, kind)

    @validate()
    def to_parquet(self, path: str | Path, *, ids: Iterable[int | str] | None = None) -> None:
        """Write a Parquet file with the columns ``id`` and ``vector``, and the metadata in its schema."""
        from scoreshield.stores.export import write_parquet

        write_parquet(self._describe_export(ids), path)

    @validate()
    def to_lance(self, path: str | Path, *, ids: Iterable[int | str] | None = None) -> None:
        """Write a LanceDB table, a folder that ends in .lance, with the metadata in its schema."""
        from scoreshield.stores.export import write_lance

        write_lance(self._describe_export(ids), path)

    @validate()
    def to_qdrant(self, client: Any, name: str, *, ids: Iterable[int | str] | None = None) -> None:
        """Make a Qdrant collection of this name, and a collection ``NAME_certificate`` that holds the metadata."""
        from scoreshield.stores.export import fill_qdrant

        fill_qdrant(self._describe_export(ids), client, name)

    @validate()
    def to_pgvector(self, connection: Any, table: str, *, ids: Iterable[int | str] | None = None) -> None:
        """Make a table of PostgreSQL with the columns ``id`` and ``embedding``, and the metadata in its comment."""
        from scoreshield.stores.export import fill_pgvector

        fill_pgvector(self._describe_export(ids), connection, table)

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The dimension of the queries."""

    @abstractmethod
    def _list_vectors(self) -> NDArray[np.float32]:
        """List one vector per record."""

    def _list_reductions(self) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """List the projection of queries, and the center that they are turned away from."""
        return None, None

    def _describe_export(self, ids: Iterable[int | str] | None) -> ExportContent:
        from scoreshield.stores.export import ExportContent

        if ids is None:
            own: Any = getattr(self, "ids", None)
            names: list[Any] = list(range(self.guarantee.shape[0])) if own is None else own.tolist()
        else:
            names = list(check_ids(ids, "ids", self.guarantee.shape[0]))
        return ExportContent(self._list_vectors(), names, self._describe_metadata())

    def _describe_metadata(self) -> ExportMetadata:
        from scoreshield.stores.export import ExportMetadata

        projection, center = self._list_reductions()
        components = self.dimension if projection is None else len(projection)
        return ExportMetadata(self.guarantee, components, projection, center)
