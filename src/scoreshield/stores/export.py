"""Write a private index to the engine that will serve it: FAISS, Parquet, LanceDB, Qdrant or PostgreSQL with pgvector.

The vectors of an index are private already, so what any engine makes of them is post-processing, approximate search by
HNSW included. Scores are inner products of a reduced query with the vectors, whose lengths differ a little, so every
engine must rank by inner product. The guarantee, its certificate and what reduces queries go along as metadata.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _files, _loading, _validation
from scoreshield.errors import FileError, InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.stores.protocol import explain_missing_extra

FaissKind = Literal["flat", "hnsw"]
FAISS_KINDS: tuple[str, ...] = get_args(FaissKind)

#: The name of the metadata in schemas of Parquet and LanceDB files.
METADATA_KEY = "scoreshield"
_FORMAT, _METRIC = 1, "inner product"
_PAGE = 1000
#: Of HNSW: edges per node, and candidates at construction and at search.
_EDGES, _BUILD_DEPTH, _SEARCH_DEPTH = 32, 200, 128


@dataclass(frozen=True, eq=False)
class ExportMetadata:
    """What goes along with exported vectors: the guarantee, and what turns a query into one for the engine.

    Attributes:
        guarantee: The promise of the index.
        components: r, the dimension of the vectors.
        projection: (r, d), which reduces queries; None without a reduction.
        center: (d,), along which queries lose their component; None for nothing.
    """

    guarantee: Guarantee
    components: int
    projection: NDArray[np.float64] | None = None
    center: NDArray[np.float64] | None = None

    @property
    def dimension(self) -> int:
        """The dimension of the queries."""
        return self.components if self.projection is None else int(self.projection.shape[1])

    def reduce_query(self, query: ArrayLike) -> NDArray[np.float32]:
        """Normalise and reduce one query, (d,), or a batch, (m, d), so that inner products are the index's scores."""
        queries, single = _embeddings.as_queries(query, self.dimension)
        if self.center is not None:
            queries = _embeddings.turn_queries(queries, self.center)
        if self.projection is not None:
            queries = _embeddings.normalise_public_rows(queries @ self.projection.T, "query")
        small = queries.astype(np.float32)
        return small[0] if single else small

    def to_json(self) -> str:
        """Write the metadata, with the certificate as a text for people."""
        return json.dumps(
            {
                "format": _FORMAT,
                "metric": _METRIC,
                "certificate": str(self.guarantee),
                "guarantee": self.guarantee.to_dict(),
                "components": self.components,
                "projection": None if self.projection is None else _encode_array(self.projection),
                "center": None if self.center is None else _encode_array(self.center),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportMetadata:
        """Read what `to_json` wrote.

        The guarantee is checked against itself, and the other parts against it. The text of the certificate is not
        read: `guarantee` makes it anew.

        Raises:
            InvalidInput: The text is something else, or its parts do not fit each other.
        """
        must = "This is not the metadata of an exported index, or of another version."
        try:
            data = _loading.parse_json(text if isinstance(text, str) else text.decode())
            if (data["format"], data["metric"]) != (_FORMAT, _METRIC):
                raise ValueError("another format")
            components = _validation.check_count(data["components"], "components")
            parts = [None if data[name] is None else _decode_array(data[name]) for name in ("projection", "center")]
            guarantee = data["guarantee"]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise InvalidInput(must) from None
        found = cls(Guarantee.from_dict(guarantee), components, *parts)
        if not found._is_consistent():
            raise InvalidInput(must)
        return found

    def _is_consistent(self) -> bool:
        """Whether the parts have the shapes that belong to each other and to the guarantee of an index."""
        guarantee, projection, center = self.guarantee, self.projection, self.center
        if guarantee.regime != "index" or len(guarantee.shape) != 2:
            return False
        if guarantee.mechanism == "codebook":  # whose shape is that of the codes, and whose center is not subtracted
            return projection is None and center is None
        return (
            guarantee.shape[1] == self.components
            and (projection is None) == (guarantee.details.get("reduction", "none") == "none")
            and (projection is None or (projection.ndim == 2 and len(projection) == self.components))
            and (center is None) == (guarantee.details.get("center", "none") == "none")
            and (center is None or center.shape == (self.dimension,))
        )


@dataclass(frozen=True, eq=False)
class ExportContent:
    """The rows of an index, their ids and their metadata."""

    vectors: NDArray[np.float32]
    ids: list[Any]
    metadata: ExportMetadata

    @property
    def has_text_ids(self) -> bool:
        return isinstance(self.ids[0], str)

    def pages(self) -> Iterator[tuple[int, list[Any], NDArray[np.float32]]]:
        """Yield the place of the first row, the ids and the vectors, a page at a time."""
        for start in range(0, len(self.ids), _PAGE):
            yield start, self.ids[start : start + _PAGE], self.vectors[start : start + _PAGE]


def make_faiss(content: ExportContent, path: str | Path | None, kind: Any) -> Any:
    """Make a FAISS index, whose row numbers are those of the private index; write it with a file of metadata beside it.

    Returns:
        An ``IndexFlatIP``, or an ``IndexHNSWFlat`` by inner product.
    """
    _validation.check_option(kind, "kind", FAISS_KINDS)
    target = None if path is None else _check_free(path)
    try:
        import faiss
    except ImportError:
        raise explain_missing_extra("faiss", "to_faiss") from None
    dimension = content.vectors.shape[1]
    if kind == "flat":
        index: Any = faiss.IndexFlatIP(dimension)
    else:
        index = faiss.IndexHNSWFlat(dimension, _EDGES, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = _BUILD_DEPTH, _SEARCH_DEPTH
    index.add(np.ascontiguousarray(content.vectors))
    if target is not None:
        beside = _check_free(name_metadata(target))
        facts = {**json.loads(content.metadata.to_json()), "ids": content.ids}
        text, data = json.dumps(facts).encode(), faiss.serialize_index(index)
        _files.write_whole({target: lambda file: file.write(data.tobytes()), beside: lambda file: file.write(text)})
    return index


def name_metadata(path: str | Path) -> Path:
    """Return the file of metadata beside a FAISS file."""
    return Path(f"{path}.json")


def write_parquet(content: ExportContent, path: str | Path) -> None:
    """Write a Parquet file with the columns ``id`` and ``vector``, and the metadata in its schema."""
    target = _check_free(path)
    table = _make_arrow_table(content, "parquet", "to_parquet")
    import pyarrow.parquet as pq

    _files.write_whole({target: lambda file: pq.write_table(table, file)})


def write_lance(content: ExportContent, path: str | Path) -> None:
    """Write a LanceDB table with the columns ``id`` and ``vector``, and the metadata in its schema.

    The folder appears complete or not at all.
    """
    if Path(path).suffix != ".lance":
        _validation.reject("path", "a folder that ends in .lance, as LanceDB names its tables", str(path))
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", Path(path).stem):
        must = "a folder whose name has letters of English, digits, '_', '-' and '.' only, as LanceDB names its tables"
        _validation.reject("path", must, str(path))
    target = _check_free(path)
    try:
        import lancedb
    except ImportError:
        raise explain_missing_extra("lancedb", "to_lance") from None
    table = _make_arrow_table(content, "lancedb", "to_lance")
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        fresh.mkdir()
        lancedb.connect(str(fresh)).create_table(target.stem, data=table)
        (fresh / target.name).rename(target)
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise FileError(f"Cannot write {target}: {reason}; nothing was changed there.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def fill_qdrant(content: ExportContent, client: Any, name: str) -> None:
    """Make a Qdrant collection by inner product, and a collection ``NAME_certificate`` with the metadata.

    Points have the row numbers as their ids, and the ids of the records in the payload. If an upload fails or is
    interrupted, both collections are removed. A collection that another client made meanwhile stays.
    """
    try:
        from qdrant_client import QdrantClient, models
    except ImportError:
        raise explain_missing_extra("qdrant", "to_qdrant") from None
    if not isinstance(client, QdrantClient):
        _validation.reject("client", "a QdrantClient", type(client))
    _check_name(name)
    beside = f"{name}_certificate"
    begun: list[str] = []
    asked: str | None = None
    try:
        for one in (name, beside):
            if client.collection_exists(one):
                raise InvalidInput(f"The Qdrant collection {one!r} exists; name another one.")
        for one, size in ((beside, 1), (name, content.vectors.shape[1])):
            config = models.VectorParams(size=size, distance=models.Distance.DOT)
            asked = one  # the answer may be lost on its way
            client.create_collection(one, vectors_config=config)
            asked = None
            begun.append(one)
        payload = {METADATA_KEY: content.metadata.to_json()}
        client.upsert(beside, [models.PointStruct(id=0, vector=[1.0], payload=payload)], wait=True)
        for start, ids, rows in content.pages():
            points = [
                models.PointStruct(id=start + place, vector=row.tolist(), payload={"id": one})
                for place, (one, row) in enumerate(zip(ids, rows, strict=True))
            ]
            client.upsert(name, points, wait=True)
    except BaseException as error:
        if asked is not None and not _is_conflict(error):
            with contextlib.suppress(Exception):
                if client.count(asked).count == 0:
                    begun.append(asked)
        for one in begun:
            with contextlib.suppress(Exception):
                client.delete_collection(one)
        if isinstance(error, InvalidInput) or not isinstance(error, Exception):
            raise
        raise StoreError(f"The Qdrant collection {name!r} could not be filled: {type(error).__name__}.") from error


def _is_conflict(error: BaseException) -> bool:
    """Whether a server or a local client says that a collection exists."""
    return getattr(error, "status_code", None) == 409 or isinstance(error, ValueError)


def fill_pgvector(content: ExportContent, connection: Any, table: str) -> None:
    """Make a table with the columns ``id`` and ``embedding``, and the metadata in its comment, in one transaction."""
    try:
        import psycopg
        from psycopg import sql
    except ImportError:
        raise explain_missing_extra("pgvector", "to_pgvector") from None
    _check_name(table, "table")
    if not isinstance(connection, psycopg.Connection):
        _validation.reject("connection", "a connection of psycopg", type(connection))
    name, dimension = sql.Identifier(*table.split(".")), sql.Literal(content.vectors.shape[1])
    kind = sql.SQL("text" if content.has_text_ids else "bigint")
    make = sql.SQL("CREATE TABLE {} (id {} PRIMARY KEY, embedding vector({}) NOT NULL)").format(name, kind, dimension)
    comment = sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(content.metadata.to_json()))
    try:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(make)
            cursor.execute(comment)
            with cursor.copy(sql.SQL("COPY {} (id, embedding) FROM STDIN").format(name)) as copy:
                for _, ids, rows in content.pages():
                    for one, row in zip(ids, rows, strict=True):
                        copy.write_row((one, "[" + ",".join(map(repr, row.tolist())) + "]"))
    except psycopg.errors.DuplicateTable:
        raise InvalidInput(f"The table {table!r} exists; name another one.") from None
    except psycopg.Error as error:
        raise StoreError(f"The table {table!r} could not be written: {type(error).__name__}.") from error


def _make_arrow_table(content: ExportContent, extra: str, feature: str) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise explain_missing_extra(extra, feature) from None
    flat = pa.array(np.ascontiguousarray(content.vectors).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(flat, content.vectors.shape[1])
    ids = pa.array(content.ids, type=pa.string() if content.has_text_ids else pa.int64())
    table = pa.table({"id": ids, "vector": vectors})
    return table.replace_schema_metadata({METADATA_KEY: content.metadata.to_json()})


def _check_free(path: str | Path) -> Path:
    if not isinstance(path, str | Path) or not Path(path).name or "\0" in str(path):
        _validation.reject("path", "the path of a file", path)
    target = Path(path)
    if os.path.lexists(target):
        raise InvalidInput(f"{target} exists; name another file.")
    return target


def _check_name(name: Any, parameter: str = "name") -> None:
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 200:
        _validation.reject(parameter, "a name of 1 to 200 printable characters", name)


def _encode_array(array: NDArray[np.float64]) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode("ascii")
    return {"shape": list(array.shape), "type": "<f8", "base64": data}


def _decode_array(data: dict[str, Any]) -> NDArray[np.float64]:
    shape = [_validation.check_count(length, "shape") for length in data["shape"]]
    flat = np.frombuffer(base64.b64decode(data["base64"], validate=True), dtype="<f8")
    if data["type"] != "<f8" or not np.isfinite(flat).all():
        raise ValueError("no projection")
    return flat.reshape(shape)
