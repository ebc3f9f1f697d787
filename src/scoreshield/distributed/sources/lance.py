"""A version of a Lance data set. Its records are in the order of its fragments' numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _parquet
from scoreshield._loading import make_printable
from scoreshield._rows import RowSource
from scoreshield.distributed.filesystems import explain_storage_errors
from scoreshield.distributed.sources.facts import FileFacts, Seal, SourceFacts, agree
from scoreshield.distributed.sources.files import read_state, split_range
from scoreshield.distributed.sources.ids import find_id_kind, list_ids
from scoreshield.distributed.sources.streams import BatchWindow
from scoreshield.errors import FileError, InvalidInput

#: The bytes that are decoded at once, and the batches that are decoded ahead.
_BATCH_BYTES, _AHEAD = 2**22, 2


def describe_lance(address: str, version: str, column: str, ids: str) -> SourceFacts:
    """Describe a version of a Lance data set; empty for the newest. No vector is read.

    Raises:
        InvalidInput: It has no such column, or vectors of no fixed length.
        FileError: There is no such version.
    """
    data, where = _open_version(address, version), make_printable(address)
    pa, _ = _parquet.import_arrow(address)
    lists = [field for field in data.schema if pa.types.is_fixed_size_list(field.type) and column in ("", field.name)]
    if len(lists) != 1:
        named = f"no column {column!r} of vectors of a fixed length" if column else "no single column of vectors"
        raise InvalidInput(f"{where} has {named}; name the column of the vectors.")
    kind = lists[0].type.value_type
    if not pa.types.is_floating(kind):
        raise InvalidInput(f"{where} must hold vectors of floating-point numbers.")
    if ids:
        if ids not in data.schema.names:
            raise InvalidInput(f"{where} holds no column {ids!r}.")
        find_id_kind(data.schema.field(ids).type)
    dtype = "float64" if pa.types.is_float64(kind) else "float32"
    files = _list_fragments(data, address)
    dimension, dtype = agree([(int(lists[0].type.list_size), dtype)] if files else [])
    return SourceFacts("lance", address, lists[0].name, str(data.version), files, dimension, dtype, ids)


class LanceRows(RowSource):
    """The records of a version of a Lance data set.

    Args:
        facts: What `describe_lance` found, on this machine or on another.
        is_lenient: Whether a missing vector is a row of zeros and no error.
        seal: As for `scoreshield.distributed.sources.opening.open_source`.
    """

    def __init__(self, facts: SourceFacts, is_lenient: bool = False, seal: Seal | None = None) -> None:
        super().__init__((facts.rows, facts.dimension), facts.dtype)
        self._is_lenient, self._where = is_lenient, make_printable(facts.address)
        rows = max(2**10, _BATCH_BYTES // (facts.dimension * self.itemsize))
        self._batches = _FragmentBatches(facts, facts.column, rows, seal)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        rows, done = np.empty((stop - start, self.shape[1]), dtype=self.dtype), 0
        with explain_storage_errors(self._where, "read"):
            for part in self._batches.read(start, stop):
                matrix = _parquet.make_vector_rows(self._where, part, self.shape[1], is_lenient=self._is_lenient)
                rows[done : done + len(matrix)] = matrix
                done += len(matrix)
        return rows


class LanceIds:
    """The ids of the records of a version of a Lance data set.

    Args:
        facts: What `describe_lance` found.
    """

    def __init__(self, facts: SourceFacts, seal: Seal | None = None) -> None:
        self._address = facts.address
        self._batches = _FragmentBatches(facts, facts.ids, 2**14, seal)

    def read(self, start: int, stop: int) -> list[Any]:
        """Read the ids of the records from ``start`` up to ``stop``."""
        with explain_storage_errors(self._address, "read"):
            return list_ids(self._batches.read(start, stop))


class _FragmentBatches:
    """One column of a data set, whose fragments are those of the facts."""

    def __init__(self, facts: SourceFacts, column: str, batch_rows: int, seal: Seal | None) -> None:
        data = _open_version(facts.address, facts.version)
        with explain_storage_errors(facts.address, "read"):
            now = replace(facts, files=_list_fragments(data, facts.address))
            hide: Seal = seal or (lambda *_: "")  # without a seal, the driver compares states
            if now.seal(hide) != (facts if seal is not None else facts.seal(hide)):
                raise InvalidInput(
                    f"Version {facts.version} of {make_printable(facts.address)} is another one than when the release "
                    "began, and the same noise on other data would give away the difference: make a new release."
                )
            fragments = {str(fragment.fragment_id): fragment for fragment in data.get_fragments()}
        self._facts, self._starts = facts, facts.list_starts()
        self._fragments, self._column, self._batch_rows = fragments, column, batch_rows
        self._open: tuple[int, BatchWindow | None] = (-1, None)

    def read(self, start: int, stop: int) -> list[Any]:
        parts: list[Any] = []
        for number, first, end in split_range(self._facts, self._starts, start, stop):
            if self._open[0] != number:
                self._open = (number, BatchWindow(self._begin(number)))
            window = self._open[1]
            assert window is not None  # it was opened above
            parts += window.read(first, end)
        return parts

    def _begin(self, number: int) -> Any:
        file = self._facts.files[number]
        fragment = self._fragments[file.path]

        def begin(start: int) -> tuple[int, Iterator[Any]]:
            batches = fragment.scanner(
                columns=[self._column],
                batch_size=self._batch_rows,
                batch_readahead=_AHEAD,
                offset=start,
                limit=file.rows - start,
            ).to_batches()
            return start, (batch.column(0) for batch in batches)

        return begin


def _list_fragments(data: Any, address: str) -> tuple[FileFacts, ...]:
    """Describe the fragments with records, by the names of their files and the states of these."""
    found = []
    for fragment in sorted(data.get_fragments(), key=lambda one: int(one.fragment_id)):
        rows = int(fragment.count_rows())
        if rows:
            names = [str(file.path) for file in fragment.data_files()]
            states = [str(read_state(f"{address.rstrip('/')}/data/{name}")) for name in names]
            state = ",".join([*names, *states, str(fragment.deletion_file() or "")])
            found.append(FileFacts(str(fragment.fragment_id), rows, 0, state))
    return tuple(found)


def _open_version(address: str, version: str) -> Any:
    try:
        import lance
    except ImportError:
        raise InvalidInput("A Lance data set needs pylance: pip install 'scoreshield[lance]'") from None
    where = make_printable(address)
    with explain_storage_errors(address, "read"):
        try:
            return lance.dataset(address, version=int(version) if version else None)
        except ValueError:  # what Lance raises for a version or a folder that is not there
            which = f" has no version {version}, or it was cleaned up since" if version else " is no Lance data set"
            raise FileError(f"{where}{which}.") from None
