"""Adapters for stores of embeddings. Each one is imported when it is first used."""

from importlib import import_module as _import_module
from typing import Any as _Any

from scoreshield.errors import StoreError
from scoreshield.stores.arrays import ArrayStore
from scoreshield.stores.pinned import PinnedStore, Snapshot
from scoreshield.stores.protocol import Convention, Records, Store, StoreScores

_ADAPTERS = {
    "ChromaStore": "chroma",
    "DuckDBStore": "duck",
    "FaissStore": "faiss",
    "LanceStore": "lance",
    "ParquetStore": "duck",
    "PgVectorStore": "pgvector",
    "QdrantStore": "qdrant",
    "UsearchStore": "usearch",
}

__all__ = [
    "ArrayStore",
    "ChromaStore",
    "Convention",
    "DuckDBStore",
    "FaissStore",
    "LanceStore",
    "ParquetStore",
    "PgVectorStore",
    "PinnedStore",
    "QdrantStore",
    "Records",
    "Snapshot",
    "Store",
    "StoreError",
    "StoreScores",
    "UsearchStore",
]


def __getattr__(name: str) -> _Any:
    if name in _ADAPTERS:
        return getattr(_import_module(f"scoreshield.stores.{_ADAPTERS[name]}"), name)
    raise AttributeError(f"module 'scoreshield.stores' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
