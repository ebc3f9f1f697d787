"""The folder of a distributed release: files that are written once, and a last file that makes it whole.

``manifest.json`` is written before the charge and says what is released. Each block is one file under ``parts``.
``release.json`` is written last, and a folder without it holds no release. No file is ever overwritten: of two tasks
that write one block, the first wins, and both continue with what the winner wrote. A second task could have computed a
clean score that differs in its last bit, and so would show a second view.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

from scoreshield import _files
from scoreshield._loading import make_printable
from scoreshield.distributed.filesystems import check_path_text
from scoreshield.errors import FileError, InvalidInput

MANIFEST = "manifest.json"
CERTIFICATE = "certificate.txt"
FINAL = "release.json"
PARTS = "parts"
#: What the check of rows writes before the charge, and the driver removes when the release is whole.
CHECKS = "checks"
_TEMPORARY = ".part"
#: What a file system without hard links answers to a link, such as exFAT or a mounted object storage.
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
#: What a path object makes of an address such as s3://bucket/folder. It would name a folder of this machine.
_SHORTENED = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/[^/]")
#: The names of the encrypted blocks of a check, of its hashes of ids, and of its empty files.
_CHECK = re.compile(rf"{CHECKS}/(block-\d{{8,}}\.encrypted|[0-9a-f]{{32}}-[0-9a-f]{{16}}-\d{{8,}}\.(ids|trial))")


class ReleaseFolder(ABC):
    """A place on storage where each name is written at most once.

    Attributes:
        address: What opens the folder again, on this machine or on another.
    """

    address: str

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write a file that does not exist yet, completely or not at all; return False if it exists."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none."""

    @abstractmethod
    def list_names(self) -> list[str]:
        """List the names of all files in the folder, also those of other programs, in order."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file that holds no released values of its own. It may be gone already."""

    def put_or_read(self, name: str, content: bytes) -> bytes:
        """Write a file unless another process wrote it before, and return what the file holds."""
        if self.put_if_absent(name, content):
            return content
        found = self.read(name)
        if found is None:
            raise FileError(f"{name} of the release vanished while it was written; was the folder deleted?")
        return found


class LocalFolder(ReleaseFolder):
    """A folder of a file system that all workers share: one machine's own, or a network's.

    Args:
        path: The folder. It is made when the first file is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.address = str(self._path)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        target = self._path / name
        temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                return False
            try:
                with temporary.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, target)  # fails if there is one, in a single step
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink()
            with contextlib.suppress(PermissionError):
                _files.sync_folder(target.parent)
        except FileExistsError:
            return False
        except OSError as error:
            if target.exists():  # the driver removes temporary files when all parts are there
                return False
            reason = f"{error.strerror}; start the same release again to go on"
            if error.filename2 is not None and error.errno in _NO_LINKS:
                reason = "its file system has no hard links, by which a file is written once; name a folder on another"
            raise FileError(f"Cannot write {make_printable(str(target))}: {reason}.") from None
        return True

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(f"Cannot read {make_printable(str(self._path / name))}: {error.strerror}.") from None

    def remove(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"Cannot remove {make_printable(str(self._path / name))}: {error.strerror}.") from None

    def list_names(self) -> list[str]:
        try:
            # A link could lead to another folder, whose files no one would tidy.
            found = [path for path in self._path.rglob("*") if path.is_symlink() or path.is_file()]
        except OSError as error:
            raise FileError(f"Cannot read {make_printable(self.address)}: {error.strerror}.") from None
        return sorted(str(PurePosixPath(path.relative_to(self._path))) for path in found)


def open_folder(address: str | Path) -> ReleaseFolder:
    """Open the folder of a release: a path, or an address of `fsspec` such as ``s3://bucket/folder``."""
    text = str(address)
    if "\0" in text:
        raise InvalidInput("The address of a release holds a NUL character, which no path has.")
    check_path_text(text)
    if "://" in text and not text.startswith("file://"):
        from scoreshield.distributed.remote import open_remote_folder

        return open_remote_folder(text)
    path = Path(text.removeprefix("file://"))
    if _SHORTENED.match(text) and not Path(path.parts[0]).is_dir():
        raise InvalidInput(
            f"{make_printable(text)} lost a slash of its address: give the address as text, not as a Path."
        )
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"{make_printable(text)} is a file; name a folder for the release.")
    return LocalFolder(path)


def name_part(number: int) -> str:
    """Name the file of a block."""
    return f"{PARTS}/part-{number:08d}.parquet"


def name_hashes(check: str, number: int) -> str:
    """Name the file of the hashes of a block's ids, of one check."""
    return f"{CHECKS}/{check}-{number:08d}.ids"


def name_trial(check: str, number: int) -> str:
    """Name the empty file by which a task of a check tries whether it can write."""
    return f"{CHECKS}/{check}-{number:08d}.trial"


def name_prepared(number: int) -> str:
    """Name the encrypted file of a block that was computed before the charge."""
    return f"{CHECKS}/block-{number:08d}.encrypted"


def is_temporary(name: str) -> bool:
    """Whether a file is what a process left that was killed while it wrote. No reader takes it for a part."""
    return PurePosixPath(name).name.startswith(".") and name.endswith(_TEMPORARY)


def is_read_by_others(name: str) -> bool:
    """Whether other programs take a file for one of the parts. They skip names that begin with . or _."""
    first, *inner = PurePosixPath(name).parts
    return first == PARTS and not any(part.startswith((".", "_")) for part in inner)


def is_left_over(name: str) -> bool:
    """Whether a file is what a task or a driver left that ended before a charge. No release reads it."""
    return is_temporary(name) or _CHECK.fullmatch(name) is not None


def compute_digest(content: bytes) -> str:
    """Compute the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
