"""Private search over a store."""

from scoreshield.search.private_search import MODES, Hits, IndexNotSaved, PrivateSearch

__all__ = ["MODES", "Hits", "IndexNotSaved", "PrivateSearch"]
