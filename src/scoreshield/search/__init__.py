"""Private search over a store."""

from scoreshield.search.base import MODES, Hit, Hits, Mode, ModeOption
from scoreshield.search.choice import ModeChoice
from scoreshield.search.index import IndexNotSaved
from scoreshield.search.private_search import PrivateSearch

__all__ = ["MODES", "Hit", "Hits", "IndexNotSaved", "Mode", "ModeChoice", "ModeOption", "PrivateSearch"]


def __dir__() -> list[str]:
    return list(__all__)
