"""ScoreShield for LangChain: a private retriever and a private vector store.

The classes are those of ``scoreshield.integrations.langchain``.
"""

from scoreshield.integrations.langchain import PrivateRetriever, PrivateVectorStore

__all__ = ["PrivateRetriever", "PrivateVectorStore"]
