"""Read the public scores of a plan: arrays, columns of tables in text, matrices of a benchmark, and its relevant pairs.

No message shows the content of a cell, since the scores may be private.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield import _files
from scoreshield._loading import make_printable
from scoreshield._text_tables import read_text_table
from scoreshield.decisions import Distribution
from scoreshield.decisions.models import parse_score_model
from scoreshield.geometry import embeddings

_TEXT = (".csv", ".txt")
_NAMED = (".npz", ".parquet", *_TEXT)


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
    table = read_text_table(path)
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


def _is_text(path: Path) -> bool:
    return path.suffix.lower() in _TEXT


def _read_text_column(path: Path, name: str | None) -> NDArray[np.float64]:
    table = read_text_table(path)
    column = table.find_column(name)
    return np.array([table.read_number(row, column) for row in table.rows], dtype=np.float64)
