"""LangChain: a vector store and a retriever whose scores and order are differentially private."""

from __future__ import annotations

from scoreshield.stores.protocol import explain_missing_extra

try:
    import langchain_core.vectorstores  # noqa: F401
except ImportError:
    raise explain_missing_extra("langchain", "scoreshield.integrations.langchain") from None

from scoreshield.integrations.langchain_retriever import PrivateRetriever
from scoreshield.integrations.langchain_vectorstore import PrivateVectorStore

__all__ = ["PrivateRetriever", "PrivateVectorStore"]
