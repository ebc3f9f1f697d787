"""ScoreShield for LlamaIndex: a private retriever and a private vector store.

The classes are those of ``scoreshield.integrations.llama_index``.
"""

from scoreshield.integrations.llama_index import PrivateRetriever, PrivateVectorStore

__all__ = ["PrivateRetriever", "PrivateVectorStore"]
