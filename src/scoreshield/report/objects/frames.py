"""Data frames of pandas and polars (the 'frames' extra)."""

from __future__ import annotations

from typing import Any

from scoreshield._views import Columns, FrameLibrary
from scoreshield.errors import InvalidInput


def make_data_frame(columns: Columns, library: FrameLibrary) -> Any:
    """Make a data frame of columns.

    Raises:
        InvalidInput: The library is not installed.
    """
    try:
        if library == "pandas":
            import pandas as pd

            return pd.DataFrame(columns)
        import polars as pl
    except ImportError:
        raise InvalidInput(
            f"A data frame of {library} needs the 'frames' extra: pip install 'scoreshield[frames]'."
        ) from None
    return pl.DataFrame(columns, strict=False)  # ids may be numbers and texts
