"""Result rows as data frames: one row per measured value, checked, selected and summarised by mean and spread."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scoreshield import _validation
from scoreshield.errors import InvalidInput

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """Values over repeats.

    Attributes:
        mean: of the values that are numbers; NaN where there is none.
        sd: their standard deviation, with n - 1 in the divisor; 0 for one value.
        count: how many there are.
        unreachable: how many values are NaN, because they are out of reach.
    """

    mean: float
    sd: float
    count: int
    unreachable: int


def make_frame(rows: Any, columns: Iterable[str], *, value: str | None = None) -> pd.DataFrame:
    """Make a data frame of rows after checking them.

    Args:
        rows: dicts, at least one, or a data frame that was made of them.
        columns: keys that every row must have. They hold numbers, texts or None.
        value: the key of the measured value, a finite number or NaN.
    """
    if isinstance(rows, pd.DataFrame):
        rows = rows.to_dict("records")
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Mapping) for row in rows):
        _validation.reject("rows", "a list of dicts, at least one", rows)
    keys = list(columns)
    for name in keys if value is None else [*keys, value]:
        lacking = next((row for row in rows if name not in row), None)
        if lacking is not None:
            _validation.reject("rows", f"dicts with the key '{name}'", sorted(map(str, lacking)))
    for name in keys:
        odd = next((row[name] for row in rows if not isinstance(row[name], Hashable)), None)
        if odd is not None:
            raise InvalidInput(
                f"The column '{name}' must hold numbers, texts or None. Got {type(odd).__name__} instead."
            )
    if value is not None:
        for row in rows:
            check_measured(row[value], value)
    return pd.DataFrame(list(rows))


def check_measured(value: Any, name: str) -> float:
    """Check a measured value: a finite number, or NaN where it is out of reach."""
    if isinstance(value, numbers.Real) and math.isnan(value):
        return math.nan
    return _validation.check_real(value, name, "a finite number, or NaN where it is out of reach")


def select_rows(frame: pd.DataFrame, **conditions: Any) -> pd.DataFrame:
    """Select the rows that agree with every condition; None matches a gap, a tuple or list matches any of its items."""
    agrees = np.ones(len(frame), dtype=bool)
    for name, wanted in conditions.items():
        options = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
        known = [option for option in options if not pd.isna(option)]
        match = frame[name] == known[0] if len(known) == 1 else frame[name].isin(known)
        if len(known) < len(options):
            match |= frame[name].isna()
        agrees &= match.to_numpy()
    return frame[agrees]


def list_values(frame: pd.DataFrame, name: str | None) -> list[Any]:
    """List the different values of a column: numbers by size, then texts in order of appearance, then None."""
    if name is None or name not in frame:
        return [None]
    values = frame[name].dropna().unique().tolist()
    sized = sorted(value for value in values if isinstance(value, numbers.Real))
    named = [value for value in values if not isinstance(value, numbers.Real)]
    return [*sized, *named, *([None] if frame[name].isna().any() else [])] or [None]


def summarise(values: pd.Series[Any]) -> Summary:
    """Summarise measured values; a gap is out of reach."""
    array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    known = array[~np.isnan(array)]
    if not len(known):
        return Summary(math.nan, math.nan, 0, len(array))
    sd = float(known.std(ddof=1)) if len(known) > 1 else 0.0
    return Summary(float(known.mean()), sd, len(known), len(array) - len(known))


def drop_gap(value: Any) -> Any:
    """Give None for a gap in a frame, and any other value as it is."""
    return None if pd.isna(value) else value
