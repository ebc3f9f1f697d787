"""ScoreShield for Haystack: a private retriever over any document store."""

from haystack_integrations.components.retrievers.scoreshield.retriever import PrivateRetriever

__all__ = ["PrivateRetriever"]
