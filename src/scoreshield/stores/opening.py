"""Open a store by the settings of a file, for programs that hold no client of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qsl, urlsplit

from scoreshield.errors import InvalidInput
from scoreshield.stores.protocol import Store, explain_missing_extra, read_store

StoreKind = Literal["chroma", "duckdb", "faiss", "lancedb", "pgvector", "qdrant", "usearch"]
STORE_KINDS: tuple[str, ...] = get_args(StoreKind)


class StoreAddress(NamedTuple):
    """Where the records of a store are.

    Attributes:
        kind: The store.
        path: A file or folder, for a store without a server.
        url: The address of a server. It may hold a password.
        key: The API key of a server.
        name: The collection or the table.
        id_column: The column of the ids, in a table.
        vector_column: The column of the vectors, in a table; in Qdrant the name of the vectors.
        namespace: The schema of a table.
    """

    kind: StoreKind
    path: Path | None = None
    url: str | None = None
    key: str | None = None
    name: str | None = None
    id_column: str | None = None
    vector_column: str | None = None
    namespace: str | None = None

    def __repr__(self) -> str:
        return f"<StoreAddress {self.kind}>"  # an address may hold a password


@contextmanager
def open_store(address: StoreAddress) -> Iterator[Store]:
    """Open a store, and close what was opened for it at the end.

    Raises:
        InvalidInput: The address does not fit the store, or its extra is not installed.
        StoreError: The store cannot be opened. The message names no address.
    """
    fault = find_address_fault(address)
    if fault is not None:
        raise InvalidInput(fault)
    store, close = _OPENERS[address.kind](address)
    try:
        yield store
    finally:
        close()


def find_address_fault(address: StoreAddress) -> str | None:
    """Find what is missing in an address; None if nothing is."""
    places = _PLACES[address.kind]
    given = [place for place in ("path", "url") if getattr(address, place) is not None]
    if len(given) != 1 or given[0] not in places:
        return f"A {address.kind} store needs a {' or a '.join(places)}, and nothing else of the two."
    if address.kind in ("faiss", "usearch"):
        return None if address.name is None else f"A {address.kind} store is one file; omit its name."
    return None if address.name else f"A {address.kind} store needs the name of its collection or table."


def identify_records(address: StoreAddress) -> tuple[str, ...]:
    """Return what is equal for two addresses of the same records, as far as their texts show it.

    An address may be written in several ways: with a default port, with capitals, with a slash at its end, with a user.
    Other vectors of the same records are the same records. Two names of one host are not found.
    """
    place = str(address.path.resolve()) if address.path is not None else _identify_server(address)
    return (address.kind, place, address.name or "", address.namespace or _NAMESPACES.get(address.kind, ""))


def _identify_server(address: StoreAddress) -> str:
    parts = urlsplit(address.url or "")
    given = dict(parse_qsl(parts.query)) if address.kind == "pgvector" else {}
    host = (parts.hostname or given.get("host", "")).lower().rstrip(".")
    try:
        port = parts.port or int(given.get("port", 0)) or _PORTS.get((address.kind, parts.scheme), 0)
    except ValueError:
        return address.url or ""
    place = "localhost" if host in ("127.0.0.1", "::1") else host
    folder = parts.path.strip("/") or given.get("dbname", "")
    scheme = parts.scheme if address.kind == "lancedb" else ""  # of a cloud
    return f"{scheme}://{place}:{port}/{folder}?{given.get('options', '')}"


#: The ports that clients take where an address has none.
_PORTS = {
    ("chroma", "http"): 8000,
    ("chroma", "https"): 443,
    ("pgvector", "postgres"): 5432,
    ("pgvector", "postgresql"): 5432,
    ("qdrant", "http"): 6333,
    ("qdrant", "https"): 6333,
}
#: The schemas that tables are in where an address names none.
_NAMESPACES = {"duckdb": "main", "pgvector": "public"}
#: Where each store may be.
_PLACES: dict[str, tuple[str, ...]] = {
    "chroma": ("path", "url"),
    "duckdb": ("path",),
    "faiss": ("path",),
    "lancedb": ("path", "url"),
    "pgvector": ("url",),
    "qdrant": ("path", "url"),
    "usearch": ("path",),
}
_Opened = tuple[Store, Callable[[], Any]]


class _Opening:
    """What an error names while a store is not open yet."""

    def __init__(self, kind: str) -> None:
        self.name = f"The {kind} store"


def _open(kind: str, read: Callable[[], Any]) -> Any:
    return read_store(_Opening(kind), "being opened", read)  # type: ignore[arg-type]


def _name_columns(address: StoreAddress) -> dict[str, Any]:
    columns: dict[str, Any] = {"id_column": address.id_column, "vector_column": address.vector_column}
    return {name: value for name, value in columns.items() if value is not None}


def _open_chroma(address: StoreAddress) -> _Opened:
    from scoreshield.stores.chroma import ChromaStore

    try:
        import chromadb
        from chromadb.config import Settings
    except ImportError:
        raise explain_missing_extra("chroma", "ChromaStore") from None
    settings = Settings(anonymized_telemetry=False)

    def connect() -> Any:
        if address.path is not None:
            client = chromadb.PersistentClient(path=str(address.path), settings=settings)
        else:
            parts = urlsplit(address.url or "")
            is_tls = parts.scheme == "https"
            headers = {} if address.key is None else {"x-chroma-token": address.key}
            port = parts.port or (443 if is_tls else 8000)
            client = chromadb.HttpClient(parts.hostname or "", port, ssl=is_tls, headers=headers, settings=settings)
        return client.get_collection(address.name or "", embedding_function=None)

    return ChromaStore(_open("chroma", connect)), lambda: None


def _open_duckdb(address: StoreAddress) -> _Opened:
    from scoreshield.stores.duck import DuckDBStore

    assert address.path is not None
    assert address.name is not None
    return DuckDBStore(address.path, address.name, schema=address.namespace, **_name_columns(address)), lambda: None


def _open_faiss(address: StoreAddress) -> _Opened:
    from scoreshield.stores.faiss import FaissStore

    try:
        import faiss
    except ImportError:
        raise explain_missing_extra("faiss", "FaissStore") from None
    return FaissStore(_open("faiss", lambda: faiss.read_index(os.fspath(address.path or "")))), lambda: None


def _open_lancedb(address: StoreAddress) -> _Opened:
    from scoreshield.stores.lance import LanceStore

    try:
        import lancedb
    except ImportError:
        raise explain_missing_extra("lancedb", "LanceStore") from None
    place = address.url if address.path is None else os.fspath(address.path)
    table = _open("lancedb", lambda: lancedb.connect(place).open_table(address.name or ""))
    return LanceStore(table, **_name_columns(address)), lambda: None


def _open_pgvector(address: StoreAddress) -> _Opened:
    from scoreshield.stores.pgvector import PgVectorStore

    assert address.url is not None
    assert address.name is not None
    store = PgVectorStore(address.url, address.name, schema=address.namespace, **_name_columns(address))
    return store, store.close


def _open_qdrant(address: StoreAddress) -> _Opened:
    from scoreshield.stores.qdrant import QdrantStore

    try:
        from qdrant_client import QdrantClient
    except ImportError:
        raise explain_missing_extra("qdrant", "QdrantStore") from None

    def connect() -> Any:
        if address.path is not None:
            return QdrantClient(path=os.fspath(address.path))
        return QdrantClient(url=address.url, api_key=address.key)

    assert address.name is not None
    client = _open("qdrant", connect)
    try:
        return QdrantStore(client, address.name, vector_name=address.vector_column), client.close
    except BaseException:
        client.close()
        raise


def _open_usearch(address: StoreAddress) -> _Opened:
    from scoreshield.stores.usearch import UsearchStore

    try:
        from usearch.index import Index
    except ImportError:
        raise explain_missing_extra("usearch", "UsearchStore") from None
    return UsearchStore(_open("usearch", lambda: Index.restore(os.fspath(address.path or "")))), lambda: None


_OPENERS: dict[str, Callable[[StoreAddress], _Opened]] = {
    "chroma": _open_chroma,
    "duckdb": _open_duckdb,
    "faiss": _open_faiss,
    "lancedb": _open_lancedb,
    "pgvector": _open_pgvector,
    "qdrant": _open_qdrant,
    "usearch": _open_usearch,
}
