"""Files in and out: embeddings from .npy, .npz and .parquet; releases to .npz; every write whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

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
    with _reading(path), Path(path).open("rb") as raw:
        file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile) or "meta" not in file:
            raise InvalidInput(f"{path} is not a ScoreShield release: it holds no guarantee.")
        meta = json.loads(str(file["meta"]))
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise InvalidInput(f"{path} is a release of another format than this version reads ({FORMAT}).")
        arrays = {name: file[name] for name in file.files if name != "meta"}
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
    with _reading(path):
        return readers[suffix]()


def _read_npy(path: str | Path, mapped: bool) -> NDArray[Any]:
    if mapped:
        return np.lib.format.open_memmap(path, mode="r")
    with Path(path).open("rb") as raw:
        return np.lib.format.read_array(raw, allow_pickle=False)


def _read_npz(path: str | Path, name: str | None) -> NDArray[Any]:
    with Path(path).open("rb") as raw:
        file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InvalidInput(f"{path} is not an .npz file, whatever its name says.")
        names = file.files
        if name is None:
            usual = [option for option in ("embeddings", "emb", "query") if option in names]
            if len(names) != 1 and not usual:
                raise InvalidInput(f"{path} holds several arrays ({', '.join(names)}); say which one by name.")
            name = names[0] if len(names) == 1 else usual[0]
        if name not in names:
            raise InvalidInput(f"{path} holds no array {name!r}; it holds {', '.join(names) or 'nothing'}.")
        array: NDArray[Any] = file[name]
        return array


def _read_parquet(path: str | Path, name: str | None) -> NDArray[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidInput(f"Reading {path} needs the 'parquet' extra: pip install 'scoreshield[parquet]'.") from None
    try:
        table = parquet.read_table(path, columns=None if name is None else [name])
    except pa.ArrowException as error:
        raise InvalidInput(f"{path} is not a readable Parquet file: {_first_line(error)}") from None
    if name is not None and not table.num_columns:
        raise InvalidInput(f"{path} holds no column {name!r}.")
    lists = [column for column in table.columns if _is_list(pa, column.type)]
    if len(lists) > 1:
        raise InvalidInput(f"{path} holds {len(lists)} columns of lists; say which one by name.")
    if lists:
        column = lists[0].combine_chunks()
        flat = column.flatten().to_numpy(zero_copy_only=False)
        if column.null_count or not len(column) or len(flat) % len(column):
            raise InvalidInput(f"{path}: the embedding column must hold lists of one length, none missing.")
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != lengths[0]).any():
            raise InvalidInput(f"{path}: the embedding column must hold lists of one length.")
        matrix: NDArray[Any] = flat.reshape(len(column), -1)
        return matrix
    numeric = [column.to_numpy() for column in table.columns if _is_number(pa, column.type)]
    if not numeric:
        raise InvalidInput(f"{path} holds neither a column of lists nor numeric columns.")
    return np.column_stack(numeric)


def _is_list(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Turn what can go wrong while reading into one sentence."""
    try:
        yield
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise FileError(f"There is no file {path}.") from None
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or _first_line(error)}.") from None
    except Exception as error:  # a damaged file can make its reader fail in any way at all
        raise InvalidInput(f"{path} is corrupt, truncated or of another kind: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
