"""What every framework adapter does alike: which fields of a record are public, and what its score is worth."""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from scoreshield import _validation
from scoreshield.errors import DocumentsNotRead, InvalidInput, StoreError
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
_LONG = 8  # a list or mapping with so many numbers is taken for a vector
#: The types of values that metadata may hold; whatever else a store puts there may hold a vector.
_PLAIN = (
    str, numbers.Number, type(None), dt.date, dt.time, dt.timedelta, uuid.UUID,
    decimal.Decimal, np.datetime64, np.timedelta64,
)  # fmt: skip
_LARGEST_PAGE = 256
#: How many released ids an error shows.
_FEW = 10


@dataclass(frozen=True)
class Fields:
    """Which fields of a record whoever queries may learn.

    A filter is an exact oracle: whoever chooses it learns its field of every record. So a field is filterable only
    where the curator has said so.

    Attributes:
        filterable: Fields that filters may name; none by default.
        visible: Metadata fields that answers carry; None for all.
    """

    filterable: frozenset[str] = frozenset()
    visible: frozenset[str] | None = None

    @classmethod
    def checked(cls, filterable: Any, visible: Any) -> Fields:
        """From the options of a constructor."""
        shown = None if visible is None else _names(visible, "visible")
        return cls(_names(filterable, "filterable"), shown)

    def require(self, fields: Iterable[str]) -> None:
        """Raise an error if a filter names a field that is not filterable."""
        for field in sorted(set(fields) - self.filterable):
            raise InvalidInput(
                f"A filter on the field {field!r} needs filterable=[{field!r}], because whoever filters learns that "
                "field of every record exactly."
            )

    def shown(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        """What an answer carries of a record's metadata."""
        plain = scrub(metadata)
        return plain if self.visible is None else {key: plain[key] for key in plain if key in self.visible}


def _names(given: Any, name: str) -> frozenset[str]:
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(one, str) for one in given):
        _validation.reject(name, "a list of names of fields", given)
    return frozenset(given)


#: Above so many records a look takes more than a few per cent of a release.
_MANY = 20_000


def look_every(records: int) -> float:
    """Seconds between two looks at whether a framework's store in memory changed, unless ``check_every`` says."""
    return 1.0 if records > _MANY else 0.0


def scrub(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata's plain values, at any depth, without those whose names or lengths are those of scores and vectors.

    Records are read by their ids, so no store adds the score of a query. What is dropped was stored beside the record.
    """
    plain = ((key, _plain(value)) for key, value in (metadata or {}).items())
    return {str(key): _scrubbed(value) for key, value in plain if _may_stay(key, value)}


def annotated(metadata: Mapping[str, Any], search: PrivateSearch, hits: Hits, place: int) -> dict[str, Any]:
    """Metadata that may be shown, with the guarantee of the score at this place and the score before it was clipped."""
    facts = search.facts(hits)
    if hits.noisy is not None:
        facts["noisy_score"] = float(hits.noisy[place])
    return {**metadata, KEY: facts}


def growing_pages(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """One id, then more and more at a time: the first is nearly always enough to see that documents can be read."""
    start, size = 0, 1
    while start < len(ids):
        yield ids[start : start + size]
        start, size = start + size, min(2 * size, _LARGEST_PAGE)


def not_read(error: Exception, hits: Sequence[Hits], k: int) -> DocumentsNotRead:
    """The error of a query that was charged and whose documents could not be read: it says what was released."""
    ids = tuple(tuple(found.ids[:k]) for found in hits)
    named = [repr(one) for found in ids for one in found]
    few = ", ".join(named[:_FEW]) + (", ..." if len(named) > _FEW else "")
    cause = str(error).removesuffix(".").removesuffix("; nothing was released")
    charged = f"the query was charged and released the records {few or 'none'}"
    return DocumentsNotRead(f"{cause}; {charged}; asking the same again costs nothing.", ids=ids)


def take_unread(unread: dict[Any, list[Hits]], asked: Hashable, search: PrivateSearch) -> list[Hits] | None:
    """The paid ranking whose documents could not be read, less what was hidden since; None where there is none."""
    hits = unread.pop(asked, None)
    return None if hits is None else [search.without_hidden(one) for one in hits]


def not_charged(error: StoreError) -> StoreError:
    """The error of a query whose documents could not be read before it was charged."""
    cause = str(error).removesuffix(".").removesuffix("; nothing was released")
    return StoreError(f"{cause}; nothing was released.")


def refuse(what: str, why: str) -> NoReturn:
    """The one form of a refusal to go around the noise."""
    raise InvalidInput(f"{what} is refused: {why}.")


def _may_stay(key: Any, value: Any) -> bool:
    if str(key).lower() in _TELLING:
        return False
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _numbers_in(value) < _LONG
    return _is_plain(value)


def _numbers_in(value: Any) -> int:
    """How many numbers a list or mapping holds, also in the short lists within it: a vector may be cut into pairs.

    A long list within it is dropped by itself and does not count, and nor does a mapping within it.
    """
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return int(_is_number(_plain(value)))
    parts = value.values() if isinstance(value, Mapping) else value
    counts = (_numbers_in(part) for part in parts if not isinstance(part, Mapping))
    return sum(count for count in counts if count < _LONG)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) and (not hasattr(value, "__array__") or _single(value))


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
    if isinstance(value, list | tuple | set | frozenset):
        kept = [_scrubbed(one) for one in map(_plain, value) if _may_stay("", one)]
        return next(kind(kept) for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)
