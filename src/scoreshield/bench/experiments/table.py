"""Tidy tables: one row a measured value, as CSV always and as Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io as text_io
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def write(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """``results.csv`` and, with pyarrow, ``results.parquet``: together, whole, or not at all."""
    columns = [*COLUMNS, *(name for name in (rows[0] if rows else ()) if name not in COLUMNS)]
    files: dict[Path, Callable[[BinaryIO], object]] = {
        folder / "results.csv": lambda file: file.write(_csv(rows, columns))
    }
    parquet = _parquet(rows, columns)
    if parquet is not None:
        files[folder / "results.parquet"] = parquet
    _files.write_whole(files)
    return list(files)


def read(path: Path) -> list[Row]:
    """The rows that :func:`write` wrote, from the CSV file, with numbers as numbers and gaps as None."""
    content = _loading.read_bytes(path)
    try:
        csv.field_size_limit(2**27)  # a guarantee with a table of levels is long
        reader = csv.DictReader(text_io.StringIO(content.decode(), newline=""))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidInput(f"{path} is not a results table: it lacks the column {missing[0]!r}.")
        return [{name: _value(name, text) for name, text in row.items()} for row in reader]
    except InvalidInput:
        raise
    except (UnicodeDecodeError, ValueError, TypeError, csv.Error):
        raise InvalidInput(f"{path} is not a whole results table; run the experiment again.") from None


def is_row(row: Any) -> bool:
    """Whether this is a row of a table: every column, each of its kind or a gap."""
    return (
        isinstance(row, Mapping)
        and {*COLUMNS, *ENVIRONMENT} <= row.keys()
        and all(
            value is None or (isinstance(value, _kind(name)) and not isinstance(value, bool))
            for name, value in row.items()
        )
    )


def _kind(name: str) -> type | tuple[type, ...]:
    return str if name in _TEXTS else int if name in _WHOLE else (int, float)


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that agree with every given value; a tuple or list means any of them."""
    return [
        row
        for row in rows
        if all(
            row[name] in value if isinstance(value, tuple | list) else row[name] == value
            for name, value in wanted.items()
        )
    ]


def _value(name: str, text: str | None) -> Any:
    if text is None:
        raise ValueError("a short line")
    if text == "":
        return None
    if name in _TEXTS:
        return _files.from_csv_text(text)
    return int(text) if name in _WHOLE else float(text)


def _csv(rows: Sequence[Row], columns: Sequence[str]) -> bytes:
    buffer = text_io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row.get(name)) for name in columns})
    return buffer.getvalue().encode()


def _cell(value: Any) -> Any:
    return "" if value is None else _files.csv_text(value) if isinstance(value, str) else value


def _parquet(rows: Sequence[Row], columns: Sequence[str]) -> Callable[[BinaryIO], object] | None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        return None
    kinds = {
        name: pa.string() if name in _TEXTS else pa.int64() if name in _WHOLE else pa.float64() for name in columns
    }
    table = pa.table({name: pa.array([row.get(name) for row in rows], kinds[name]) for name in columns})
    return lambda file: parquet.write_table(table, file)
