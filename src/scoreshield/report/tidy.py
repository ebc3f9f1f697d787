"""Tidy rows, one plain dict for each measured value: checked, put together, and summarised by mean and spread."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, InvalidParameter

Row = Mapping[str, Any]

_GROUP = ("dataset", "task", "metric", "better", "method", "setting", "radius", "delta", "epsilon")


def checked(rows: Any, columns: Iterable[str]) -> list[Row]:
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Mapping) for row in rows):
        _validation.reject("rows", "a list of dicts, at least one", rows)
    for name in columns:
        if any(name not in row for row in rows):
            raise InvalidParameter(
                "rows",
                f"must be dicts with the key '{name}'. "
                f"Got one with {', '.join(sorted(map(str, next(row for row in rows if name not in row)))) or 'none'}.",
            )
    return list(rows)


def of_metric(rows: list[Row], metric: str) -> list[Row]:
    _validation.check_option(metric, "metric", sorted({str(row["metric"]) for row in rows}))
    return [row for row in rows if row["metric"] == metric]


def chosen_methods(rows: list[Row], methods: Sequence[str] | None) -> list[Row]:
    """The rows of the methods asked for, all of which must be there."""
    if methods is None:
        return rows
    if isinstance(methods, str) or not isinstance(methods, Sequence) or not methods:
        _validation.reject("methods", "a list of names, at least one", methods)
    for name in methods:
        _validation.check_option(name, "methods", sorted({str(row["method"]) for row in rows}))
    return [row for row in rows if row["method"] in methods]


def is_clean(row: Row) -> bool:
    return row.get("setting") == "clean" or row["method"] == "non-private"


def key_of(row: Row, name: str) -> Hashable:
    """A column as a key; NaN, which equals nothing, counts as None."""
    value = row.get(name)
    if not isinstance(value, Hashable):
        raise InvalidInput(f"The column '{name}' must hold numbers, texts or None. Got {type(value).__name__} instead.")
    return None if isinstance(value, numbers.Real) and math.isnan(value) else value


def grouped(rows: Iterable[Row], by: Sequence[str]) -> dict[tuple[Hashable, ...], list[Row]]:
    groups: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(key_of(row, name) for name in by), []).append(row)
    return groups


def summary(rows: Iterable[Row], value: str) -> dict[str, Any]:
    numbers_ = [number_of(row[value], value) for row in rows]
    known = np.array([number for number in numbers_ if not math.isnan(number)])
    return {
        "mean": float(known.mean()) if len(known) else math.nan,
        "sd": float(known.std(ddof=1)) if len(known) > 1 else 0.0 if len(known) else math.nan,
        "count": len(known),
        "unreachable": len(numbers_) - len(known),
    }


def number_of(value: Any, name: str) -> float:
    if isinstance(value, numbers.Real) and math.isnan(value):
        return math.nan
    return _validation.check_real(value, name, "a finite number, or NaN where it is out of reach")


def values_of(rows: Iterable[Row], name: str | None) -> list[Any]:
    """The different values of a column: numbers by size, then texts as they come, then None."""
    if name is None:
        return [None]
    found: list[Any] = list(dict.fromkeys(key_of(row, name) for row in rows))
    sized = sorted(value for value in found if isinstance(value, numbers.Real))
    named = [value for value in found if not isinstance(value, numbers.Real) and value is not None]
    return [*sized, *named, *([None] if None in found else [])] or [None]


@validate()
def mean_and_sd(rows: Sequence[Row], by: Sequence[str] = _GROUP, *, value: str = "value") -> list[dict[str, Any]]:
    """Rows put together by the columns ``by``, in the order in which they first appear.

    Returns
    -------
    One dict a group: its columns; ``mean`` and ``sd`` (n - 1 in the divisor, 0 for one value) of the values that are
    numbers, NaN where none is; ``count`` of these, and ``unreachable``, the count of those that are NaN.
    """
    if isinstance(by, str) or not isinstance(by, Sequence) or not all(isinstance(name, str) for name in by):
        _validation.reject("by", "a sequence of column names", by)
    groups = grouped(checked(rows, (*by, value)), by)
    return [{**dict(zip(by, key, strict=True)), **summary(members, value)} for key, members in groups.items()]
