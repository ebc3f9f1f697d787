"""A collection in files: one .npy file, one .parquet file, or a folder of them, where all workers can read them.

Files of a table format are read by the same class, after its module listed them.
"""

from __future__ import annotations

import bisect
import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield import _files, _parquet
from scoreshield._loading import make_printable
from scoreshield._rows import RowSource, release_pages
from scoreshield.distributed import filesystems
from scoreshield.distributed.sources.facts import FileFacts, Seal, SourceFacts, agree
from scoreshield.distributed.sources.ids import ParquetIds, agree_ids
from scoreshield.distributed.sources.streams import explain_errors, open_file_stream
from scoreshield.errors import FileError, InvalidInput

_ENDINGS = (".parquet", ".npy")
#: How many files of a storage are described at once.
_THREADS = 16


def describe_files(address: str, column: str, ids: str = "", *, begun: SourceFacts | None = None) -> SourceFacts:
    """Describe one file, or the files of a folder in the order of their paths. Of vectors, only the first are read.

    Names that begin with a dot or an underscore are left out, as other programs do. Of a folder whose release was
    begun, only the files of that release are described, so that it can go on after others were added.
    """
    if filesystems.is_remote(address):
        place, paths = address.rstrip("/"), _list_remote(address)
    else:
        path = Path(address.removeprefix("file://")).absolute()
        place, paths = str(path), _list_paths(path)
    if begun is not None and (begun.kind, begun.address) == ("files", place):
        known = {file.path for file in begun.files}
        paths = [path for path in paths if path in known] or paths
    return describe_paths("files", place, paths, column, ids)


def describe_paths(
    kind: str, address: str, paths: Sequence[str], column: str, ids: str, version: str = ""
) -> SourceFacts:
    """Describe a collection in files that are listed already. Files without rows are left out.

    Raises:
        InvalidInput: The files do not fit together, or have no such column.
    """
    for path in paths:
        filesystems.check_path_text(path)
    # A storage answers each request late, and several at once.
    threads = _THREADS if any(map(filesystems.is_remote, paths)) else 1
    with ThreadPoolExecutor(threads) as pool:
        described = list(pool.map(lambda path: _describe_file(path, column, ids), paths))
    kept = [one for one in described if one.facts.rows]
    dimension, dtype = agree([(one.dimension, one.dtype) for one in kept])
    if len({one.columns for one in kept if one.columns}) > 1:
        raise InvalidInput(
            "The files of the collection hold their vectors in columns of other names, or in another order: write them "
            "with the same columns."
        )
    agree_ids([one.id_kind for one in kept])
    files = tuple(one.facts for one in kept)
    return SourceFacts(kind, address, column, version, files, dimension, dtype, ids)


class _DescribedFile(NamedTuple):
    """One file, and what must be the same in all files."""

    facts: FileFacts
    dimension: int
    dtype: str
    columns: tuple[str, ...]
    id_kind: str


def _describe_file(path: str, column: str, ids: str) -> _DescribedFile:
    size, state = read_state(path)
    rows = _open(path, size, column)
    id_kind = ParquetIds(path, ids).kind if ids and len(rows) else ""
    if read_state(path) != (size, state):
        raise InvalidInput(f"{make_printable(path)} changed while it was read; nothing was charged.")
    dtype = "float64" if rows.dtype.itemsize == 8 else "float32"  # smaller types are converted part by part
    columns = rows.columns if isinstance(rows, _parquet.ParquetRows) else ()
    return _DescribedFile(FileFacts(path, len(rows), size, state), int(rows.shape[1]), dtype, columns, id_kind)


class FileRows(RowSource):
    """The records of several files, one after the other. Each read checks that the files are those of the facts.

    Args:
        facts: What `describe_paths` found, on this machine or on another.
        is_lenient: Whether a missing vector, or one of another length, is a row of zeros and no error.
        seal: Seals states, to compare them with sealed facts. None compares nothing: the driver does it.
    """

    def __init__(self, facts: SourceFacts, is_lenient: bool = False, seal: Seal | None = None) -> None:
        super().__init__((facts.rows, facts.dimension), facts.dtype)
        self._facts, self._starts, self._is_lenient, self._seal = facts, facts.list_starts(), is_lenient, seal
        self._open: tuple[int, Any] = (-1, None)  # the file that was read last

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read rows; into ``out``, which has at least as many, where it is given: new memory is slow to get."""
        rows = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out[: stop - start]
        done = 0
        for number, first, end in split_range(self._facts, self._starts, start, stop):
            self._read_file(number, first, end, rows[done : done + end - first])
            done += end - first
        return rows

    def _read_file(self, number: int, start: int, stop: int, out: NDArray[Any]) -> None:
        file = self._facts.files[number]
        if self._open[0] != number:
            size = check_state(self._facts, file, self._seal)
            opened = _open(file.path, size, self._facts.column, self.shape[1], self._is_lenient)
            self._open = (number, opened)
        source = self._open[1]
        if len(source) != file.rows or source.shape[1] != self.shape[1]:
            raise _make_change_error(file)
        with explain_errors(file.path):
            if isinstance(source, _parquet.ParquetRows) and source.dtype == self.dtype:
                source.read(start, stop, out)
            else:
                found = source[start:stop]
                out[...] = found  # before the second look: a mapped part is read when it is copied
                release_pages(found)
        check_state(self._facts, file, self._seal)


class FileIds:
    """The ids of the records of several files, one after the other.

    Args:
        facts: What `describe_paths` found.
    """

    def __init__(self, facts: SourceFacts, seal: Seal | None = None) -> None:
        self._facts, self._starts, self._seal = facts, facts.list_starts(), seal
        self._open: tuple[int, ParquetIds | None] = (-1, None)

    def read(self, start: int, stop: int) -> list[str] | list[int]:
        """Read the ids of the records from ``start`` up to ``stop``."""
        found: list[Any] = []
        for number, first, end in split_range(self._facts, self._starts, start, stop):
            file = self._facts.files[number]
            if self._open[0] != number:
                check_state(self._facts, file, self._seal)
                self._open = (number, ParquetIds(file.path, self._facts.ids))
            source = self._open[1]
            assert source is not None  # it was opened above
            found += source.read(first, end)
            check_state(self._facts, file, self._seal)
        return found


def split_range(facts: SourceFacts, starts: list[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Split a range of records into ranges of files: the number of each file, its first record and its end."""
    found = []
    while start < stop:
        number = bisect.bisect_right(starts, start) - 1
        first = start - starts[number]
        end = min(facts.files[number].rows, first + stop - start)
        found.append((number, first, end))
        start += end - first
    return found


def check_state(facts: SourceFacts, file: FileFacts, seal: Seal | None) -> int:
    """Raise an error if a file is not the one that was described, and return its size."""
    try:
        size, state = read_state(file.path)
    except FileError:
        if facts.kind == "files":
            raise
        raise FileError(
            f"Version {facts.version} of {make_printable(facts.address)} is gone or cannot be read: a file of it was "
            "removed from the table since the release began."
        ) from None
    if seal is not None and seal(file.path, size, state) != file.state:
        raise _make_change_error(file)
    return size


def _make_change_error(file: FileFacts) -> InvalidInput:
    return InvalidInput(
        f"{make_printable(file.path)} changed since the release began, and the same noise on other data would give "
        "away the difference: make a new release."
    )


def _list_paths(path: Path) -> list[str]:
    if path.is_file():
        return [str(path)]
    if not path.is_dir():
        raise FileError(f"There is no file or folder {make_printable(str(path))}.")
    found: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=_stop_at_folder):
        _check_no_table(Path(folder, name).as_posix() for name in (*(f"{inner}/_" for inner in folders), *names))
        folders[:] = [name for name in folders if not _is_hidden(name)]
        if any(Path(folder, name).is_symlink() for name in folders):  # other programs read it; two links could repeat
            raise InvalidInput(
                f"{make_printable(folder)} holds a link to a folder: put the files themselves there, or leave it out."
            )
        found += [Path(folder, name) for name in names if not _is_hidden(name) and name.lower().endswith(_ENDINGS)]
    if not found:
        raise InvalidInput(f"{make_printable(str(path))} holds no .parquet or .npy files.")
    return [str(inner) for inner in sorted(found)]


def _stop_at_folder(error: OSError) -> None:
    """Raise an error for a folder that cannot be listed: without its files, the collection would be another one."""
    raise FileError(f"Cannot read the folder {make_printable(str(error.filename))}: {error.strerror}.") from None


def _list_remote(address: str) -> list[str]:
    base = address.rstrip("/")
    found = filesystems.list_files(base)
    if found == [base]:
        return found
    root = filesystems.open_filesystem(base)
    _check_no_table(found)
    prefix = str(root[0].unstrip_protocol(root[1])).rstrip("/") + "/"
    inside = [name for name in found if not any(map(_is_hidden, name.removeprefix(prefix).split("/")))]
    inside = [name for name in inside if name.lower().endswith(".parquet")]
    if not inside:
        raise InvalidInput(f"{make_printable(address)} holds no .parquet files.")
    return inside


def _check_no_table(paths: Iterable[str]) -> None:
    """Raise an error for files of a table format: the files beside them may hold records that the table does not."""
    for path in paths:
        folder, _, name = path.rpartition("/")
        table, _, inner = folder.rpartition("/")
        if inner == "_delta_log":
            kind, address = "a Delta table", "delta://PATH"
        elif inner == "metadata" and name.endswith(".metadata.json"):
            kind, address = "an Iceberg table", "the path of its newest .metadata.json"
        else:
            continue
        raise InvalidInput(
            f"{make_printable(table)} is {kind}, and its files may hold deleted records: give {address}, not a folder."
        )


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _open(path: str, size: int, column: str, columns: int | None = None, is_lenient: bool = False) -> Any:
    """Open the vectors of one file. The length of the vectors is given once it is known."""
    where, name = make_printable(path), column or None
    if path.lower().endswith(".npy") and not filesystems.is_remote(path):
        rows: Any = _files.read_array(path, name=name, mapped=True)
    else:
        rows = _parquet.open_parquet_stream(
            where,
            open_file_stream(path),
            size,
            name,
            explain_errors,
            columns=columns,
            is_lenient=is_lenient,
            request_bytes=_parquet.STREAM_BYTES if filesystems.is_remote(path) else _parquet.FILE_BYTES,
        )
        rows.check_list_sizes()
    if len(rows.shape) != 2 or rows.dtype.kind != "f" or rows.dtype.itemsize > 8:
        raise InvalidInput(f"{where} must hold vectors of floating-point numbers.")
    return rows


def read_state(path: str) -> tuple[int, str]:
    """Read the size of a file and what its file system keeps of its state.

    Of the two times that a file system of this machine keeps, programs cannot set the second.
    """
    if filesystems.is_remote(path):
        return filesystems.read_remote_state(path)
    try:
        found = Path(path).stat()
    except OSError as error:
        raise FileError(f"Cannot read {make_printable(path)}: {error.strerror}.") from None
    if not stat.S_ISREG(found.st_mode):  # reading from a pipe would wait
        raise FileError(f"{make_printable(path)} is not a file.")
    return found.st_size, f"{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"
