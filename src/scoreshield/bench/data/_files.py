"""Files of data sets: their paths checked, read in one go, written whole, and what goes wrong in one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from scoreshield import _loading, _validation
from scoreshield.errors import FileError, InvalidInput


def path_of(value: Any, name: str = "path", must: str = "the path of a file") -> Path:
    """The argument as a path, or a refusal of what is none."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        _validation.reject(name, must, value)
    return Path(value)


def read(path: Path) -> bytes:
    """What a file holds."""
    return _loading.read_bytes(path)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a missing, forbidden or damaged file does to its reader into one sentence."""
    try:
        yield
    except (InvalidInput, FileError):
        raise
    except FileNotFoundError:
        raise FileError(f"There is no file {path}.") from None
    except MemoryError:
        raise
    except Exception as error:  # zlib, struct, lzma, zipfile, tarfile and csv each have errors of their own
        if isinstance(error, OSError) and error.strerror:
            raise FileError(f"Cannot read {path}: {error.strerror}.") from None
        raise InvalidInput(f"{path} is corrupt, truncated or of another kind: {first_line(error)}.") from None


def place(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write one file whole or not at all, making its folder where there is none.

    The new file takes the place of an old one in a single step, so that there is no moment without a file: several
    processes may write and read the same one at once, which `scoreshield._files.write_whole` does not allow.
    """
    make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with fresh.open("xb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        fresh.replace(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FileError(f"Cannot write {path}: {reason}; nothing was changed there.") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from None


def first_line(error: object) -> str:
    """The first line of what an error says, printable and without its full stop."""
    return (
        _loading.make_printable((str(error).strip().splitlines() or [""])[0][:200].rstrip(".")) or type(error).__name__
    )
