"""Tables of numbers in text files, .csv and .txt.

No message shows the content of a cell, since the numbers may be private.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield._loading import make_printable
from scoreshield.errors import InvalidInput

_DELIMITERS = ("\t", ";", ",")


class TextRow(NamedTuple):
    """One row of a table: the number of its line in the file, and its cells."""

    line: int
    cells: list[str]


class TextTable(NamedTuple):
    """A table of numbers in text, with the names of its columns where its first line has them."""

    title: str
    names: list[str] | None
    rows: list[TextRow]
    width: int

    def read_number(self, row: TextRow, column: int) -> float:
        """Read the finite number in one cell of a row."""
        if len(row.cells) != self.width:
            raise InvalidInput(
                f"Line {row.line} of {self.title} has {len(row.cells)} cells, where the table has {self.width} columns."
            )
        value = _parse_number(row.cells[column])
        if value is None:
            where = f", column {column + 1}," if self.width > 1 else ""
            raise InvalidInput(
                f"Line {row.line}{where} of {self.title} is not a finite number: write one with a decimal point, or "
                "remove the line."
            )
        return value

    def read_row(self, row: TextRow) -> NDArray[np.float64]:
        """Read the finite numbers of a whole row."""
        return np.array([self.read_number(row, column) for column in range(self.width)])

    def find_column(self, name: str | None) -> int:
        """Find a column by its name, or the only one."""
        known = ", ".join(make_printable(known[:40]) for known in (self.names or [])[:10])
        if name is None:
            if self.width > 1:
                raise InvalidInput(
                    f"{self.title} has {self.width} columns{f' ({known})' if known else ''}: name one, as FILE:NAME, "
                    "or give a file of one column."
                )
            return 0
        if self.names is None:
            raise InvalidInput(f"{self.title} has no header line, so it has no column {make_printable(name)!r}.")
        if self.names.count(name) != 1:
            problem = f"{self.names.count(name) or 'no'} column{'s' * (name in self.names)} {make_printable(name)!r}"
            raise InvalidInput(f"{self.title} has {problem}; its columns are {known}.")
        return self.names.index(name)


def read_text_matrix(path: str | Path) -> NDArray[np.float64]:
    """Read a table in which every cell is a number, one row per line; the first line may name the columns.

    Returns:
        A matrix, or a vector where the table has one column.

    Raises:
        InvalidInput: A cell holds no finite number, the lines differ in length, or the first line is in doubt: it has
            names and numbers, or it counts the columns as some programs do that write no names.
    """
    rows = _open_rows(Path(path))
    title = make_printable(str(path))
    first = next(rows, None)
    if first is None:
        raise InvalidInput(f"{title} is empty: give a file with one row of numbers per line.")
    numbers = [_parse_number(cell, finite=False) for cell in first.cells]
    table = TextTable(title, None, [], len(first.cells))
    found = []
    if any(number is not None for number in numbers):
        if any(number is None for number in numbers):
            raise InvalidInput(
                f"Line {first.line} of {title} holds numbers and texts: a header names every column, and each other "
                "line holds numbers only."
            )
        if len(numbers) > 1 and numbers in (list(range(len(numbers))), list(range(1, len(numbers) + 1))):
            raise InvalidInput(
                f"Line {first.line} of {title} counts the columns: remove it, or write a name above each column."
            )
        found.append(table.read_row(first))
    found += [table.read_row(row) for row in rows]
    if not found:
        raise InvalidInput(f"{title} holds a header and no numbers.")
    matrix: NDArray[np.float64] = np.stack(found)
    return matrix[:, 0] if table.width == 1 else matrix


def read_text_table(path: Path) -> TextTable:
    """Read a table: cells between tabs, semicolons or commas, in .txt also spaces; lines with # in front are notes."""
    title = make_printable(str(path))
    rows = list(_open_rows(path))
    if not rows:
        raise InvalidInput(f"{title} is empty: give a file with one number per line.")
    first = rows[0].cells
    has_names = any(_parse_number(cell, finite=False) is None for cell in first)
    names = [cell.strip() for cell in first] if has_names else None
    return TextTable(title, names, rows[1:] if has_names else rows, len(first))


def _open_rows(path: Path) -> Iterator[TextRow]:
    with _loading.explain_read_errors(path):
        text = _loading.read_bytes(path).decode("utf-8-sig")
        yield from _split_rows(text, path.suffix.lower() == ".txt")


def _split_rows(text: str, splits_spaces: bool) -> Iterator[TextRow]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    filled = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    delimiter = next((sign for sign in _DELIMITERS if sign in filled), None)
    cells: Iterable[list[str]] = (line.split() for line in lines)
    if delimiter is not None or not splits_spaces:
        cells = csv.reader(lines, delimiter=delimiter or ",")
    for number, row in enumerate(cells, start=1):
        if any(cell.strip() for cell in row) and not row[0].startswith("#"):
            yield TextRow(number, row)


def _parse_number(cell: str, *, finite: bool = True) -> float | None:
    """Parse a number; None where the cell holds none, or an infinite one or NaN although it must be finite."""
    try:
        value = float(cell) if "_" not in cell else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) or not finite else None
