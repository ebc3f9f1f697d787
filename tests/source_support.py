"""Small collections in files and tables, for the tests of sources and of folders on storages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="the 'parquet' extra is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the 'parquet' extra is not installed")

DIMENSION = 8


def make_vectors(count: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(dtype)


def make_table(vectors: Any, ids: Any = None, kind: Any = None) -> Any:
    """Make an Arrow table: a column of vectors, and a column of ids."""
    if isinstance(vectors, np.ndarray):
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    else:
        column = pa.array(vectors, kind or pa.list_(pa.float32()))
    return pa.table({"vector": column} | ({} if ids is None else {"doc_id": ids}))


def write_file(path: Path, vectors: Any, ids: Any = None, kind: Any = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(make_table(vectors, ids, kind), path, **options)
    return path
