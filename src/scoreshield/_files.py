"""Files in and out: embeddings from .npy, .npz and .parquet; releases to .npz; every write whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield.errors import FileError, InvalidInput

FORMAT = 1  # of saved releases; a number never changes meaning


def write_whole(files: Mapping[Path, Callable[[BinaryIO], object]], *, private: bool = False) -> None:
    """Write several files so that they appear together, complete, or not at all.

    Each is written under a temporary name beside its own and brought to disk. Only when all are done does each take its
    place, what stood there being set aside until the last has; whatever goes wrong, everything is put back. With
    ``private``, only their owner may read them, from the first byte on.
    """
    mode = 0o600 if private else 0o666  # which the umask lessens
    ending = f".{secrets.token_hex(8)}.part"
    fresh = {path: path.parent / f".{path.name}{ending}" for path in files}
    aside = {path: path.parent / f".{path.name}.old{ending}" for path in files}
    placed: list[Path] = []
    path = None
    try:
        for path, write in files.items():
            with open(fresh[path], "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            placed.append(path)
            with contextlib.suppress(FileNotFoundError):
                path.rename(aside[path])
            fresh[path].rename(path)
        placed.clear()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FileError(f"Cannot write {path}: {reason}; nothing was changed there.") from error
    finally:
        for path in placed:  # only if something went wrong
            with contextlib.suppress(OSError):
                if aside[path].exists():
                    aside[path].replace(path)
                elif not fresh[path].exists():
                    path.unlink()
        for leftover in (*fresh.values(), *aside.values()):
            with contextlib.suppress(OSError, ValueError):
                leftover.unlink()


def rehearse(path: Path) -> None:
    """Before anything is paid for: raise an OSError or a ValueError where :func:`write_whole` could not write here."""
    probe = path.parent / f".{path.name}.old.{secrets.token_hex(8)}.part"  # the longest name that it takes
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with probe.open("xb") as file:
            file.write(b"rehearsal")
    finally:
        with contextlib.suppress(OSError, ValueError):
            probe.unlink()


#: How a cell begins that a spreadsheet would take for a formula, and the mark that makes it a text.
_FORMULAS, _MARK = ("=", "+", "-", "@", "\t", "\r", "\n"), "'"


def csv_text(text: str) -> str:
    """A text as a cell of a CSV table: one that a spreadsheet would run as a formula gets an apostrophe in front.

    Carriage returns become line feeds: Python's writer does not quote them, and they would end the row.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _MARK + text if _needs_mark(text) else text


def from_csv_text(cell: str) -> str:
    """The text that :func:`csv_text` made the cell of."""
    return cell[1:] if cell.startswith(_MARK) and _needs_mark(cell[1:]) else cell


def _needs_mark(text: str) -> bool:
    """Some spreadsheets ignore spaces in front of a formula."""
    return text.lstrip(" ").startswith((*_FORMULAS, _MARK))


def release_writer(
    kind: str, guarantee: dict[str, Any], facts: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> Callable[[BinaryIO], None]:
    """What writes one .npz: the arrays, and a JSON text with the kind, the guarantee and the small facts."""
    meta = json.dumps({"format": FORMAT, "kind": kind, "guarantee": guarantee, "facts": facts})
    return lambda file: np.savez(file, meta=np.array(meta), **arrays)  # type: ignore[arg-type]


def read_release(
    path: str | Path,
) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, NDArray[Any]]]:
    """The parts that ``release_writer`` wrote."""
    with _loading.opened(path) as raw:
        archive = _loading.Archive(raw, path)
        if "meta" not in archive.names:
            raise InvalidInput(f"{path} is not a ScoreShield release: it holds no guarantee.")
        meta = _loading.parse_json(str(archive["meta"]))
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise InvalidInput(f"{path} is a release of another format than this version reads ({FORMAT}).")
        arrays = {name: archive[name] for name in archive.names if name != "meta"}
        return str(meta["kind"]), dict(meta["guarantee"]), dict(meta["facts"]), arrays


def read_array(path: str | Path, *, name: str | None = None, mapped: bool = False) -> NDArray[Any]:
    """Embeddings or a query from a file.

    .npy holds one array. From .npz, ``name`` chooses; without it the file must hold one array, or one named
    "embeddings", "emb" or "query". From .parquet, a column of fixed-length lists, or else all numeric columns.
    """
    readers: dict[str, Callable[[], NDArray[Any]]] = {
        ".npy": lambda: _read_npy(path, mapped),
        ".npz": lambda: _read_npz(path, name),
        ".parquet": lambda: _read_parquet(path, name),
    }
    suffix = Path(path).suffix.lower()
    if suffix not in readers:
        raise InvalidInput(f"{path} must be a .npy, .npz or .parquet file, by its ending.")
    if suffix == ".npy" and name is not None:
        raise InvalidInput(f"{path} is an .npy file and holds one array without a name; leave {name!r} out.")
    return readers[suffix]()


def _read_npy(path: str | Path, mapped: bool) -> NDArray[Any]:
    with _loading.opened(path) as raw:
        header = _loading.read_header(raw)
        if header.nbytes > os.fstat(raw.fileno()).st_size - raw.tell():
            raise ValueError("it is shorter than its header says")
        if not mapped or not header.nbytes:
            return _loading.read_values(raw, header)
        order: Literal["F", "C"] = "F" if header.fortran else "C"
        return np.memmap(raw, header.dtype, "r", raw.tell(), header.shape, order)


def _read_npz(path: str | Path, name: str | None) -> NDArray[Any]:
    with _loading.opened(path) as raw:
        archive = _loading.Archive(raw, path)
        names = archive.names
        if name is None:
            usual = [option for option in ("embeddings", "emb", "query") if option in names]
            if len(names) != 1 and not usual:
                raise InvalidInput(f"{path} holds several arrays ({_listed(names)}); say which one by name.")
            name = names[0] if len(names) == 1 else usual[0]
        if name not in names:
            raise InvalidInput(f"{path} holds no array {name!r}; it holds {_listed(names) or 'nothing'}.")
        return archive[name]


def _listed(names: list[str]) -> str:
    return ", ".join(_loading.printable(name[:40]) for name in names[:10]) + (", ..." if len(names) > 10 else "")


def _read_parquet(path: str | Path, name: str | None) -> NDArray[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidInput(f"Reading {path} needs the 'parquet' extra: pip install 'scoreshield[parquet]'.") from None
    with _loading.opened(path) as raw:
        try:
            # The open file and not its name, which Arrow might take for an address or a folder of files.
            table = _parquet_table(path, raw, parquet.ParquetFile(raw), pa, name)
        except pa.ArrowException as error:
            raise InvalidInput(f"{path} is not a readable Parquet file: {_loading.first_line(error)}") from None
        return _parquet_matrix(path, table, pa)


def _parquet_table(path: str | Path, raw: BinaryIO, file: Any, pa: Any, name: str | None) -> Any:
    """The column of lists, or the numeric columns; no other is read."""
    fields = [field for field in file.schema_arrow if name in (None, field.name)]
    if name is not None and not fields:
        raise InvalidInput(f"{path} holds no column {name!r}.")
    chosen = [field for field in fields if _is_list(pa, field.type)]
    if len(chosen) > 1:
        raise InvalidInput(f"{path} holds {len(chosen)} columns of lists; say which one by name.")
    chosen = chosen or [field for field in fields if _is_number(pa, field.type)]
    if not chosen:
        raise InvalidInput(f"{path} holds neither a column of lists nor numeric columns.")
    names = [field.name for field in chosen]
    if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
        raise InvalidInput(f"{path} holds two columns of one name.")
    on_disk, size, parts = os.fstat(raw.fileno()).st_size, 0, []
    _loading.check_size(_parquet_size(file, chosen, pa), on_disk, path)
    for batch in file.iter_batches(batch_size=2**12, columns=names):
        size += batch.nbytes
        _loading.check_size(size, on_disk, path)
        parts.append(batch)
    return pa.Table.from_batches(parts, schema=pa.schema(chosen)).select(names)


def _parquet_size(file: Any, chosen: list[Any], pa: Any) -> int:
    """Bytes of these columns in memory, by the file's own account: repeated values take almost none on disk.

    A list of any length counts as one value; what such columns really hold is counted while they are read. (Arrow knows
    more of each column, and ends the process where a damaged file is asked for it.)
    """
    lengths = [field.type.list_size if pa.types.is_fixed_size_list(field.type) else 1 for field in chosen]
    return 8 * int(file.metadata.num_rows) * sum(lengths)


def _parquet_matrix(path: str | Path, table: Any, pa: Any) -> NDArray[Any]:
    if not _is_list(pa, table.schema.field(0).type):
        return np.column_stack([column.to_numpy() for column in table.columns])
    column = table.column(0).combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if column.null_count or not len(column) or len(flat) % len(column):
        raise InvalidInput(f"{path}: the embedding column must hold lists of one length, none missing.")
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if (lengths != lengths[0]).any():
        raise InvalidInput(f"{path}: the embedding column must hold lists of one length.")
    matrix: NDArray[Any] = flat.reshape(len(column), -1)
    return matrix


def _is_list(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


@contextlib.contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Keep a second run out of a folder while this one writes into it.

    Args:
        path: The lock's file in that folder. It is never renamed: a lock belongs to a file and not to a name.

    Raises:
        InvalidInput: Another run holds the lock.
        FileError: The file cannot be opened.
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror}.") from None
    with file:
        try:
            import fcntl
        except ImportError:  # Windows: without the lock
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                f"Another run is writing into {path.parent}; wait for it or name another folder."
            ) from None
        yield
