"""What every framework adapter does alike: scrub what a record carries, and say what its score is worth."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from scoreshield.errors import InvalidInput
from scoreshield.search import Hits, PrivateSearch

#: Where the guarantee stands in a record's metadata.
KEY = "scoreshield"
#: What stores and frameworks call scores and vectors when they put them beside a record.
_TELLING = frozenset(
    {
        "_additional", "_distance", "_node_embedding", "_relevance_score", "_score", "cosine", "distance", "embedding",
        "embeddings", "query_similarity_score", "rank", "relevance", "relevance_score", "score", "similarity",
        "similarity_score", "sub_similarity_scores", "vector", "vectors", KEY,
    }
)  # fmt: skip
_LONG = 8  # a list of so many numbers is taken for a vector


#: Above so many records a look takes more than a few per cent of a release.
_MANY = 20_000


def look_every(records: int) -> float:
    """Seconds between two looks at whether a framework's store in memory changed, unless ``check_every`` says."""
    return 1.0 if records > _MANY else 0.0


def scrub(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata without what may be a clean score or a vector, at any depth."""
    plain = ((key, _plain(value)) for key, value in (metadata or {}).items())
    return {str(key): _scrubbed(value) for key, value in plain if _may_stay(key, value)}


def annotated(metadata: Mapping[str, Any] | None, search: PrivateSearch, hits: Hits, place: int) -> dict[str, Any]:
    """Scrubbed metadata with the guarantee of the score at this place, and the score before it was clipped."""
    facts = search.facts(hits)
    if hits.noisy is not None:
        facts["noisy_score"] = float(hits.noisy[place])
    return {**scrub(metadata), KEY: facts}


def refuse(what: str, why: str) -> NoReturn:
    """The one form of a refusal to go around the noise."""
    raise InvalidInput(f"{what} is refused: {why}.")


def _may_stay(key: Any, value: Any) -> bool:
    if str(key).lower() in _TELLING or (hasattr(value, "__array__") and not _single(value)):
        return False
    return not (isinstance(value, list | tuple) and len(value) >= _LONG and all(map(_is_number, value)))


def _plain(value: Any) -> Any:
    """NumPy's single numbers as Python's own: they are no vectors."""
    return value.item() if _single(value) and value.dtype.kind not in "mM" else value


def _single(value: Any) -> bool:
    """Whether it is one number, text or time of NumPy's; a record or an object may hold a vector."""
    scalar = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return scalar and value.dtype.kind in "biufcSUmM"


def _scrubbed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return scrub(value)
    if isinstance(value, list | tuple):
        kept = (_scrubbed(one) for one in map(_plain, value) if _may_stay("", one))
        return tuple(kept) if isinstance(value, tuple) else list(kept)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
