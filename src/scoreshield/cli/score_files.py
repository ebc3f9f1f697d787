"""Read the public scores of a plan: arrays, columns of tables in text, matrices of a benchmark, and its relevant pairs.

No message shows the content of a cell, since the scores may be private.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield import _files, _loading
from scoreshield._loading import make_printable
from scoreshield.decisions import Distribution
from scoreshield.decisions.models import parse_score_model
from scoreshield.geometry import embeddings

_TEXT = (".csv", ".txt")
_NAMED = (".npz", ".parquet", *_TEXT)
_DELIMITERS = ("\t", ";", ",")


def read_score_file(text: str) -> NDArray[Any] | Distribution:
    """Read scores: a model such as normal:0,0.2, a file, or FILE:NAME for one array or column of it."""
    model = parse_score_model(text)
    if model is not None:
        return model
    path, name = split_array_name(text)
    if _is_text(path):
        return _read_text_column(path, name)
    if path.suffix.lower() not in (".npy", *_NAMED):
        raise ss.InvalidInput(
            f"{make_printable(str(path))} must be a .npy, .npz, .parquet, .csv or .txt file, by its ending."
        )
    array = _files.read_array(path, name=name)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array  # a column of a table has two dimensions


def read_matrix(text: str) -> NDArray[Any]:
    """Read a matrix from FILE, or from FILE:NAME."""
    path, name = split_array_name(text)
    return _files.read_array(path, name=name)


def read_relevant_pairs(text: str) -> NDArray[Any]:
    """Read pairs of whole numbers (query, record), counted from 0, from FILE or FILE:NAME."""
    path, name = split_array_name(text)
    if not _is_text(path):
        return _files.read_array(path, name=name)
    if name is not None:
        raise ss.InvalidInput(
            f"{make_printable(str(path))} must hold two columns, query and record: leave {name!r} out."
        )
    table = _read_text(path)
    if table.width != 2:
        raise ss.InvalidInput(f"{table.title} must hold two columns, query and record. It has {table.width}.")
    pairs = np.array([[table.read_number(row, column) for column in (0, 1)] for row in table.rows])
    wrong = np.flatnonzero((pairs != np.floor(pairs)).any(axis=1) | (np.abs(pairs) >= 2**53).any(axis=1))
    if len(wrong):
        line = table.rows[int(wrong[0])].line
        raise ss.InvalidInput(f"Line {line} of {table.title} must hold two whole numbers, query and record.")
    return pairs.astype(np.int64)


def compute_benchmark_scores(records: str, queries: str) -> NDArray[np.float64]:
    """Compute the cosines of public queries with public records, one row per query."""
    rows, vectors = (
        embeddings.normalise_rows(embeddings.as_rows(np.atleast_2d(read_matrix(text)))) for text in (records, queries)
    )
    if rows.shape[1] != vectors.shape[1]:
        raise ss.InvalidInput(
            f"The vectors of --embeddings have {rows.shape[1]:,} dimensions and those of --query-embeddings "
            f"{vectors.shape[1]:,}: give vectors of one model."
        )
    return np.clip(vectors @ rows.T, -1.0, 1.0)


def split_array_name(text: str) -> tuple[Path, str | None]:
    """Split FILE or FILE:NAME into the file and the name of an array or column."""
    has_name = any(f"{ending}:" in text.lower() for ending in _NAMED)
    path, _, name = text.rpartition(":") if has_name else (text, "", "")
    return Path(path), name or None


# ---- Tables in text.


class _Row(NamedTuple):
    """One row of a table: the number of its line in the file, and its cells."""

    line: int
    cells: list[str]


class _TextTable(NamedTuple):
    """A table of numbers in text, with the names of its columns where its first line has them."""

    title: str
    names: list[str] | None
    rows: list[_Row]
    width: int

    def read_number(self, row: _Row, column: int) -> float:
        """Read the finite number in one cell of a row."""
        if len(row.cells) != self.width:
            raise ss.InvalidInput(
                f"Line {row.line} of {self.title} has {len(row.cells)} cells, where the table has {self.width} columns."
            )
        value = _parse_number(row.cells[column])
        if value is None:
            where = f", column {column + 1}," if self.width > 1 else ""
            raise ss.InvalidInput(
                f"Line {row.line}{where} of {self.title} is not a finite number: write one with a decimal point, or "
                "remove the line."
            )
        return value

    def find_column(self, name: str | None) -> int:
        """Find a column by its name, or the only one."""
        known = ", ".join(make_printable(known[:40]) for known in (self.names or [])[:10])
        if name is None:
            if self.width > 1:
                raise ss.InvalidInput(
                    f"{self.title} has {self.width} columns{f' ({known})' if known else ''}: name one, as FILE:NAME, "
                    "or give a file of one column."
                )
            return 0
        if self.names is None:
            raise ss.InvalidInput(f"{self.title} has no header line, so it has no column {make_printable(name)!r}.")
        if self.names.count(name) != 1:
            problem = f"{self.names.count(name) or 'no'} column{'s' * (name in self.names)} {make_printable(name)!r}"
            raise ss.InvalidInput(f"{self.title} has {problem}; its columns are {known}.")
        return self.names.index(name)


def _is_text(path: Path) -> bool:
    return path.suffix.lower() in _TEXT


def _read_text_column(path: Path, name: str | None) -> NDArray[np.float64]:
    table = _read_text(path)
    column = table.find_column(name)
    return np.array([table.read_number(row, column) for row in table.rows], dtype=np.float64)


def _read_text(path: Path) -> _TextTable:
    """Read a table: cells between tabs, semicolons or commas, in .txt also spaces; lines with # in front are notes."""
    title = make_printable(str(path))
    with _loading.explain_read_errors(path):
        rows = list(_split_rows(_loading.read_bytes(path).decode("utf-8-sig"), path.suffix.lower() == ".txt"))
    if not rows:
        raise ss.InvalidInput(f"{title} is empty: give a file with one number per line.")
    first = rows[0].cells
    has_names = any(_parse_number(cell, finite=False) is None for cell in first)
    names = [cell.strip() for cell in first] if has_names else None
    return _TextTable(title, names, rows[1:] if has_names else rows, len(first))


def _split_rows(text: str, splits_spaces: bool) -> Iterator[_Row]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    filled = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    delimiter = next((sign for sign in _DELIMITERS if sign in filled), None)
    cells: Iterable[list[str]] = (line.split() for line in lines)
    if delimiter is not None or not splits_spaces:
        cells = csv.reader(lines, delimiter=delimiter or ",")
    for number, row in enumerate(cells, start=1):
        if any(cell.strip() for cell in row) and not row[0].startswith("#"):
            yield _Row(number, row)


def _parse_number(cell: str, *, finite: bool = True) -> float | None:
    """Parse a number; None where the cell holds none, or an infinite one or NaN although it must be finite."""
    try:
        value = float(cell) if "_" not in cell else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) or not finite else None
