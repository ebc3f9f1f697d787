"""Read files from untrusted sources: regular files only, within limits, with one-sentence errors.

A compressed file of a few megabytes can become gigabytes. The size that a file states is compared with `find_limit`
before anything is read, and no more than that is read. The limit is `LARGEST` bytes, or `TIMES` times the size on disk
if that is more, so that an uncompressed file of any size passes. For real files that compress better, the environment
variable `VARIABLE` sets another limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import FileError, InvalidInput

LARGEST = 2**30
TIMES = 4
VARIABLE = "SCORESHIELD_LARGEST_BYTES"

_KINDS = "biufcmMSU"  # of arrays: numbers, dates and texts; never objects, whose reading could run code
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_MOST_AXES = 32


class MissingFile(FileError):
    """There is no file of this name."""


def find_limit(on_disk: int) -> int:
    """Return how many bytes a file of this size may take in memory."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return max(LARGEST, TIMES * on_disk)
    if not (given.isascii() and given.isdecimal()) or len(given) > 18:
        raise InvalidInput(f"The environment variable {VARIABLE} must be a number of bytes. Got {given[:40]!r}.")
    return int(given)


def check_size(needed: int, on_disk: int, path: str | Path) -> None:
    """Raise InvalidInput if a file would take more memory than `find_limit`."""
    most = find_limit(on_disk)
    if needed > most:
        raise InvalidInput(
            f"{path} would take {needed:,} bytes in memory, more than the {most:,} that are allowed for a file of "
            f"{on_disk:,} bytes; if it is no mistake, set the environment variable {VARIABLE} to a larger number."
        )


@contextlib.contextmanager
def open_regular_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; a problem within the block becomes a one-sentence error.

    Raises:
        FileError: The file is missing, forbidden, or fails while it is read.
        InvalidInput: It is a folder, a pipe or a device, or its content is damaged.
    """
    with explain_read_errors(path), open(os.fspath(path), "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput(f"{path} is not a regular file; a pipe or a device cannot be read here.")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe without a writer would wait forever


@contextlib.contextmanager
def explain_read_errors(path: str | Path) -> Iterator[None]:
    """Turn every error of the block into a one-sentence error about the file."""
    try:
        yield
    except (FileError, InvalidInput):
        raise
    except FileNotFoundError:
        raise MissingFile(f"There is no file {make_printable(str(path))}.") from None
    except OSError as error:
        raise FileError(
            f"Cannot read {make_printable(str(path))}: {error.strerror or describe_error(error)}."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can make its reader fail in any way
        raise InvalidInput(
            f"{make_printable(str(path))} is corrupt, truncated or of another kind: {describe_error(error)}"
        ) from None


def read_bytes(path: str | Path, *, most: int | None = None, growing: bool = False) -> bytes:
    """Read a regular file, of at most ``most`` bytes.

    A file that grows while it is read raises an error, because it may be read half-written. With
    ``growing`` the bytes that it had when it was opened are returned instead: for files to which
    another process only appends.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            name = make_printable(str(path))
            raise InvalidInput(f"{name} has {size:,} bytes, and a file of this kind has at most {most:,}.")
        content = file.read(size if growing else size + 1)
        if len(content) > size:
            raise InvalidInput(f"{path} grew while it was read; read it when no other process writes to it.")
        return content


def compute_checksum(path: str | Path) -> str:
    """Compute the SHA-256 of a regular file, in hexadecimal, without holding the file in memory."""
    with open_regular_file(path) as file:
        digest = hashlib.sha256()
        while part := file.read(2**24):
            digest.update(part)
        return digest.hexdigest()


def read_stream(path: str | Path) -> bytes:
    """Read a regular file, or a pipe until it ends, up to `LARGEST` bytes."""
    with explain_read_errors(path), open(path, "rb") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else find_limit(0)
        content = file.read(size + 1)
        if len(content) > size:
            raise InvalidInput(f"{path} gives more than {size:,} bytes; write it to a file that stays as it is.")
        return content


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: It is not JSON, is nested too deeply, names a member of an object twice, or holds NaN, an infinity
            or a number of thousands of digits.
    """
    try:
        return json.loads(text, parse_constant=_reject_number, parse_float=_finite, object_pairs_hook=_collect_members)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def _collect_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object. Of two members with one name, readers differ in which one counts."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object of the JSON text names a member twice")
    return members


def _reject_number(text: str) -> NoReturn:
    raise ValueError(f"JSON has no number {text[:20]}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _reject_number(text)
    return value


def describe_error(error: BaseException) -> str:
    """Return the message of an error as one printable line, even if its class raises in `__str__`."""
    try:
        lines = str(error).splitlines()
    except BaseException:  # an untrusted class may raise anything here
        lines = []
    return make_printable(lines[0][:200] if lines else type(error).__name__)


def make_printable(line: str) -> str:
    """Replace control characters: those of an untrusted text could move the cursor and overwrite earlier output."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def join_names(names: list[str]) -> str:
    """List the first ten names that a file gives to its parts."""
    return ", ".join(make_printable(name[:40]) for name in names[:10]) + (", ..." if len(names) > 10 else "")


# ---- Arrays.


class Header(NamedTuple):
    """The form of one array in the .npy format."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes]) -> Header:
    """Read the form of the array in a stream of the .npy format.

    Raises:
        ValueError: It is no such stream, or its array type is not allowed: Python objects, compound values, or values
            without size.
    """
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"the .npy format {version[0]}.{version[1]} is unknown")
    try:
        shape, fortran, dtype = readers[version](stream)
    except (MemoryError, RecursionError):  # Python's parser, on deeply nested brackets
        raise ValueError("the header of the array is nested too deeply") from None
    if dtype.kind not in _KINDS or dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ValueError(f"arrays of type {str(dtype)[:40]} are not read")
    if len(shape) > _MOST_AXES or any(length < 0 for length in shape):
        raise ValueError("the array has no possible shape")
    return Header(dtype, tuple(int(length) for length in shape), bool(fortran))


def read_values(stream: IO[bytes], header: Header) -> NDArray[Any]:
    """Read the array of this form that follows in a stream."""
    flat = np.empty(math.prod(header.shape), header.dtype)
    target = memoryview(flat.view(np.uint8))  # type: ignore[arg-type]
    done = 0
    while done < len(target):
        part = stream.read(min(len(target) - done, 2**24))
        if not part:
            raise ValueError("the array ends before its last value")
        target[done : done + len(part)] = part
        done += len(part)
    return flat.reshape(header.shape[::-1]).T if header.fortran else flat.reshape(header.shape)


class Archive:
    """The arrays of an .npz file by name. Each is read at its first use.

    Args:
        file: An open file.
        path: Its name, for messages.
    """

    def __init__(self, file: BinaryIO, path: str | Path) -> None:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            is_disguised = Path(path).suffix.lower() != ".npy"
            kind = "is an .npy file in spite of its name" if is_disguised else "is an .npy file, which holds one array"
            raise InvalidInput(f"{path} {kind}, and no .npz file.")
        self._zip = zipfile.ZipFile(file)
        entries = self._zip.infolist()
        self._entries = {entry.filename.removesuffix(".npy"): entry for entry in entries}
        if len(self._entries) < len(entries):
            raise InvalidInput(f"{path} is not a sound .npz file: it holds one name twice.")
        if any(entry.compress_type not in _METHODS or entry.flag_bits & _ENCRYPTED for entry in entries):
            raise InvalidInput(f"{path} is not a sound .npz file: it is encrypted, or compressed by another method.")
        check_size(sum(entry.file_size for entry in entries), os.fstat(file.fileno()).st_size, path)

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each array, as the file states them."""
        return {name: entry.file_size for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self._entries[name]
        with self._zip.open(entry) as member:  # returns at most the stated bytes and checks their CRC
            header = read_header(member)
            if header.nbytes != entry.file_size - member.tell():
                raise ValueError(f"the array {make_printable(name[:40])} is not of the size that its header says")
            array = read_values(member, header)
            member.read(1)
            return array
