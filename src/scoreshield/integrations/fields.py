"""Which fields of a record a caller may learn: what filters may name, and what answers carry.

Records are read by their ids, so no store adds the score of a query. Scores and vectors that a store keeps beside a
record are dropped from its metadata here.
"""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoreshield import _validation
from scoreshield.errors import InvalidInput

#: The metadata field that holds the guarantee of an answer.
GUARANTEE_FIELD = "scoreshield"
#: The names that stores and frameworks give to scores and vectors that they put beside a record.
_SCORE_NAMES = frozenset(
    {
        "_additional", "_distance", "_node_embedding", "_relevance_score", "_score", "cosine", "distance", "embedding",
        "embeddings", "query_similarity_score", "rank", "relevance", "relevance_score", "score", "similarity",
        "similarity_score", "sub_similarity_scores", "vector", "vectors", GUARANTEE_FIELD,
    }
)  # fmt: skip
#: A list or mapping with this many numbers counts as a vector.
_VECTOR_LENGTH = 8
#: The types of values that answers carry. A value of any other type may hold a vector.
_PLAIN = (
    str, numbers.Number, type(None), dt.date, dt.time, dt.timedelta, uuid.UUID,
    decimal.Decimal, np.datetime64, np.timedelta64,
)  # fmt: skip
_CONTAINERS = (Mapping, list, tuple, set, frozenset)


@dataclass(frozen=True)
class PublicFields:
    """The fields that a curator declared as public.

    A filter is an exact oracle: it reveals its field of every record to the person who chooses it. So a field is
    filterable only if the curator declares it.

    Attributes:
        filterable: Fields that filters may name; none by default.
        visible: Metadata fields that answers carry; None for all.
    """

    filterable: frozenset[str] = frozenset()
    visible: frozenset[str] | None = None

    @classmethod
    def declare(cls, filterable: Any, visible: Any) -> PublicFields:
        """Check the options ``filterable`` and ``visible`` of a constructor."""
        names = None if visible is None else _check_names(visible, "visible")
        return cls(_check_names(filterable, "filterable"), names)

    def require(self, fields: Iterable[str]) -> None:
        """Raise an error if a filter names a field that is not filterable."""
        for field in sorted(set(fields) - self.filterable):
            raise InvalidInput(
                f"A filter on the field {field!r} needs filterable=[{field!r}], because a filter reveals that field "
                "of every record exactly."
            )

    def select(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the part of a record's metadata that an answer carries."""
        plain = scrub_metadata(metadata)
        return plain if self.visible is None else {key: plain[key] for key in plain if key in self.visible}


def scrub_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the plain values of metadata, at any depth.

    Fields with the names of scores and vectors are dropped. So are lists and mappings with as many numbers as a vector,
    and values of types that may hold one.
    """
    plain = ((key, _to_plain(value)) for key, value in (metadata or {}).items())
    return {str(key): _scrub_value(value) for key, value in plain if _may_stay(key, value)}


def _check_names(names: Any, parameter: str) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(one, str) for one in names):
        _validation.reject(parameter, "a list of names of fields", names)
    return frozenset(names)


def _may_stay(key: Any, value: Any) -> bool:
    if str(key).lower() in _SCORE_NAMES:
        return False
    if isinstance(value, _CONTAINERS):
        return _count_numbers(value) < _VECTOR_LENGTH
    return _is_plain(value)


def _count_numbers(value: Any) -> int:
    """Count the numbers of a list or mapping, also in the short lists within it: a vector may be cut into pairs.

    A long list within it is dropped by itself and does not count. A mapping within it does not count either.
    """
    if not isinstance(value, _CONTAINERS):
        return int(_is_number(_to_plain(value)))
    parts = value.values() if isinstance(value, Mapping) else value
    counts = (_count_numbers(part) for part in parts if not isinstance(part, Mapping))
    return sum(count for count in counts if count < _VECTOR_LENGTH)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) and (not hasattr(value, "__array__") or _is_scalar(value))


def _to_plain(value: Any) -> Any:
    """Convert a single number of NumPy to a Python number, since it is no vector."""
    return value.item() if _is_scalar(value) and value.dtype.kind not in "mM" else value


def _is_scalar(value: Any) -> bool:
    """Return whether a NumPy value is one number, text or time. A record or an object may hold a vector."""
    is_single = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return is_single and value.dtype.kind in "biufcSUmM"


def _scrub_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return scrub_metadata(value)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_scrub_value(one) for one in map(_to_plain, value) if _may_stay("", one)]
        return next(kind(parts) for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)
