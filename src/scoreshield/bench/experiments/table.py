"""Tidy tables: one row per measured value, as CSV always and as Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from scoreshield import _files, _loading
from scoreshield.bench.experiments.cells import COLUMNS
from scoreshield.errors import InvalidInput

Row = dict[str, Any]

_WORDS = ("experiment", "dataset", "task", "metric", "better", "setting", "mechanism", "projection", "method")
_WHOLE = ("n", "repeat", "seed", "cores")
#: Where a row was made: columns that follow the others.
ENVIRONMENT = ("scoreshield", "python", "numpy", "scipy", "machine", "processor", "cores")
_TEXTS = (*_WORDS, "facts", "guarantee", *(name for name in ENVIRONMENT if name not in _WHOLE), "device")


def write_results(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write ``results.csv`` and, with pyarrow, ``results.parquet``: together, whole, or not at all."""
    import pandas as pd

    columns = [*COLUMNS, *(name for name in (rows[0] if rows else ()) if name not in COLUMNS)]
    frame = pd.DataFrame({name: pd.array([row.get(name) for row in rows], _find_dtype(name)) for name in columns})
    texts = [name for name in columns if name in _TEXTS]
    safe = frame.assign(**{name: frame[name].map(_files.csv_text, na_action="ignore") for name in texts})
    files: dict[Path, Callable[[BinaryIO], object]] = {
        folder / "results.csv": lambda file: file.write(safe.to_csv(index=False, lineterminator="\n").encode())
    }
    if find_spec("pyarrow") is not None:
        files[folder / "results.parquet"] = lambda file: frame.to_parquet(
            file, index=False, schema=_make_schema(columns)
        )
    _files.write_whole(files)
    return list(files)


def read_results(path: Path) -> list[Row]:
    """Read the rows that `write_results` wrote, from the CSV file, with numbers as numbers and gaps as None.

    Raises:
        InvalidInput: The file is not a results table, or is cut short.
    """
    content = _loading.read_bytes(path)
    try:
        csv.field_size_limit(2**27)  # a guarantee with a level table is long
        reader = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        header = next(reader, [])
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise InvalidInput(f"{path} is not a results table: it lacks the column {missing[0]!r}.")
        if not content.endswith(b"\n"):
            raise ValueError("the last line is cut short")
        # pandas would fill a short line with gaps.
        return [{name: _parse_cell(name, text) for name, text in zip(header, cells, strict=True)} for cells in reader]
    except InvalidInput:
        raise
    except (ValueError, csv.Error):
        raise InvalidInput(f"{path} is not a whole results table; run the experiment again.") from None


def is_row(row: Any) -> bool:
    """Tell whether this is a row of a table: every column, each of its kind or a gap."""
    return (
        isinstance(row, Mapping)
        and {*COLUMNS, *ENVIRONMENT} <= row.keys()
        and all(
            value is None or (isinstance(value, _find_kind(name)) and not isinstance(value, bool))
            for name, value in row.items()
        )
    )


def _find_kind(name: str) -> type | tuple[type, ...]:
    return str if name in _TEXTS else int if name in _WHOLE else (int, float)


def _parse_cell(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in _TEXTS:
        return _files.from_csv_text(text)
    return int(text) if name in _WHOLE else float(text)


def _find_dtype(name: str) -> str:
    return "string" if name in _TEXTS else "Int64" if name in _WHOLE else "Float64"


def _make_schema(columns: Sequence[str]) -> Any:
    import pyarrow as pa

    kinds = {"string": pa.string(), "Int64": pa.int64(), "Float64": pa.float64()}
    return pa.schema([(name, kinds[_find_dtype(name)]) for name in columns])
