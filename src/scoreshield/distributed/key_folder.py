"""A folder of keys, for engines whose workers read the key of a release from a file.

The driver that shares a key holds a lock on its file as long as it runs. The system releases the lock of a process that
is killed, so that the next driver on the machine finds the file and removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scoreshield._loading import make_printable
from scoreshield.distributed.keys import KeyHandle, make_driver_name
from scoreshield.errors import FileError, InvalidInput

try:
    import fcntl as _fcntl
except ImportError:  # Windows
    fcntl: Any = None
else:
    fcntl = _fcntl

_FILE = re.compile(r"\.?[0-9a-f]{32}-([0-9a-f]{8})[0-9a-f]{8}")
#: A file that a driver is about to lock is younger than this many seconds.
_UNLOCKED_SECONDS = 3_600


def open_key_folder(folder: Path) -> None:
    """Make a folder of keys, unless it is there, and check that it is private.

    Raises:
        InvalidInput: Others may read the folder.
        FileError: The folder cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_open = os.name == "posix" and folder.stat().st_mode & 0o077
    except OSError as error:
        raise FileError(f"Cannot make the folder of keys {folder}: {error.strerror}.") from None
    if is_open:
        raise InvalidInput(f"Others may read the folder of keys {folder}: run chmod 700 on it, or name another folder.")


@contextlib.contextmanager
def share_in_folder(folder: Path, release: str, secret: bytes) -> Iterator[KeyHandle]:
    """Write the key into a folder of keys, as a file that only the owner may read, and remove it at the end.

    Raises:
        InvalidInput: Others may read the folder.
        FileError: The folder cannot be written.
    """
    open_key_folder(folder)
    remove_abandoned_keys(folder)
    handle = KeyHandle(release, str(folder.resolve()), make_driver_name(_name_machine()))
    path = folder / handle.name
    try:
        file = _write_locked(path, secret)
    except OSError as error:
        raise FileError(f"Cannot write a key into {make_printable(str(folder))}: {error.strerror}.") from None
    try:
        yield handle
    finally:
        with contextlib.suppress(OSError):  # the end of the release tries again, and reports it
            _unlink(path)
        os.close(file)


def remove_key_files(folder: Path, release: str) -> None:
    """Remove the keys of a release from a folder of keys, also what a killed driver had not put in its place yet.

    Raises:
        FileError: One cannot be removed.
    """
    for left in (folder / release, *folder.glob(f"{release}-*"), *folder.glob(f".{release}*")):
        try:
            _unlink(left)
        except OSError as error:
            raise FileError(
                f"Cannot remove the key {make_printable(str(left))}: {error.strerror}; remove it."
            ) from None


def _write_locked(path: Path, secret: bytes) -> int:
    """Write a file that is locked before it has its name, and return it open."""
    temporary = path.with_name(f".{path.name}")
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _lock(file)
        os.write(file, secret)
        os.fsync(file)
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            _unlink(temporary)
        os.close(file)
        raise
    return file


def remove_abandoned_keys(folder: Path) -> None:
    """Remove the keys that killed drivers of this machine left. Locks of another machine may not be seen from here."""
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is None or match[1] != _name_machine():
            continue
        with contextlib.suppress(OSError):
            if path.name.startswith(".") and time.time() - path.stat().st_mtime < _UNLOCKED_SECONDS:
                continue
            file = os.open(path, os.O_RDWR)
            try:
                if _lock(file):
                    _unlink(path)
            finally:
                os.close(file)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _lock(file: int) -> bool:
    """Lock an open file; return False if another process has locked it, or if there are no locks here."""
    try:
        if fcntl is None:
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _name_machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
