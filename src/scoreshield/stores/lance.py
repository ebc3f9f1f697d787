"""LanceDB tables as a store.

Scores are LanceDB's own cosine distances, by a flat search that bypasses any vector index and asks for more records
than there are, so that none is chosen by its score. LanceDB squares lengths in single precision, which holds lengths
from about 1e-19 to 1e19. Beyond, it answers 1 or infinity (lancedb 0.40), so lengths are checked before scores are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores.base import BaseStore, sort_ids
from scoreshield.stores.protocol import Convention, Records, StoreScores, explain_missing_extra, read_store

#: Of the lengths whose squares single precision holds with all their digits.
_SHORTEST, _LONGEST = 1e-18, 1e18
_PAGE = 10_000


class LanceStore(BaseStore):
    """One LanceDB table.

    ``state`` is the table's version, which every change increases, and the identity of its folder. A table that is
    dropped and made again begins at version 1; where the table is in no folder of this machine, the version's time
    shows that. For changes that are not detected, call `mark_changed`.

    The table object sees at once what is written through it. It sees what others write as its connection's
    ``read_consistency_interval`` says: at once with ``lancedb.connect(uri, read_consistency_interval=timedelta(0))``,
    and never without it.

    Args:
        table: As ``open_table`` returns it.
        id_column: The column of the ids.
        vector_column: The column of the vectors: lists of one fixed size, of half, single or double precision.
    """

    convention = Convention.COSINE_DISTANCE

    @clear_frames_on_error
    @validate()
    def __init__(self, table: Any, id_column: str = "id", vector_column: str = "vector") -> None:
        try:
            import pyarrow as pa
            from lancedb.table import Table
        except ImportError:
            raise explain_missing_extra("lancedb", "LanceStore") from None
        if not isinstance(table, Table):
            _validation.reject("table", "a table of lancedb, opened and not asynchronous", type(table))
        self.name = f"The LanceDB table {table.name!r}"
        self._table: Any = table
        self._id, self._column = id_column, vector_column
        schema = read_store(self, "being opened", lambda: table.schema)
        for column in (id_column, vector_column):
            if column not in schema.names:
                raise InvalidInput(f"{self.name} has no column {column!r}.")
        kind = schema.field(vector_column).type
        if not pa.types.is_fixed_size_list(kind) or not pa.types.is_floating(kind.value_type):
            must = "must hold lists of one fixed size of floating-point numbers"
            raise InvalidInput(f"{self.name}: the column {vector_column!r} {must}, not {kind}.")
        self._dimension = int(kind.list_size)
        self._checked_state: Hashable = None

    def read_state(self) -> Hashable:
        return int(self._table.version), self._read_identity()

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        n = self._count()
        self._check_lengths()
        answer = (
            self._table.search(query, vector_column_name=self._column)
            .distance_type("cosine")
            .bypass_vector_index()
            .select([self._id, "_distance"])
            .limit(n + 1)  # of n + 1 records, the n best would be a choice by true score
            .to_arrow()
        )
        # LanceDB leaves out a zero vector and a missing one, which have no distance.
        self._check_count(len(answer), n, "scores")
        ids, order = self._sort(answer)
        values = answer.column("_distance").to_numpy().astype(np.float32)
        return StoreScores(ids, values[order])

    @clear_frames_on_error
    def records(self) -> Records:
        n = self._count()
        answer = self._table.search().select([self._id, self._column]).limit(n + 1).to_arrow()
        self._check_count(len(answer), n, "vectors")
        ids, order = self._sort(answer)
        vectors = answer.column(self._column).combine_chunks()
        flat = vectors.flatten()
        if vectors.null_count or flat.null_count:
            raise StoreError(f"{self.name} has rows without a whole vector; nothing was released.")
        rows = flat.to_numpy(zero_copy_only=False).reshape(n, self._dimension)
        return Records(ids, rows[order])

    def _read_identity(self) -> Hashable:
        with contextlib.suppress(OSError):
            facts = Path(self._table.uri).stat()
            return facts.st_ino, facts.st_mtime_ns
        return str(max(one["timestamp"] for one in self._table.list_versions()))  # 0.3 ms per version

    def _check_lengths(self) -> None:
        """Check the lengths, once per state: LanceDB answers a length that it cannot square like a right angle."""
        state = self.state()
        if state == self._checked_state:
            return
        for page in self._table.search().select([self._column]).limit(self._count()).to_batches(_PAGE):
            vectors = page.column(0)
            flat = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
            if vectors.null_count or not np.isfinite(flat).all():
                raise StoreError(
                    f"{self.name} has rows without a whole vector of finite numbers; nothing was released."
                )
            lengths = np.linalg.norm(flat.reshape(-1, self._dimension), axis=1)
            if not ((lengths >= _SHORTEST) & (lengths <= _LONGEST)).all():
                raise StoreError(
                    f"{self.name} has vectors that are zero or not finite numbers, or whose lengths LanceDB cannot "
                    "square; use pin='copy'."
                )
        self._checked_state = state

    def _count(self) -> int:
        n = int(self._table.count_rows())
        if not n:
            raise self._empty_error()
        return n

    def _sort(self, rows: Any) -> tuple[list[Any], list[int]]:
        """Sort the ids of the rows: return them in their own order, and the row of each."""
        ids = rows.column(self._id).to_pylist()
        if any(one is None for one in ids):
            raise StoreError(f"{self.name} has rows without an id; nothing was released.")
        return sort_ids(ids)
