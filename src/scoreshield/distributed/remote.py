"""The folder of a release on object storage, through fsspec.

A block may be written once, so the storage itself must reject a second write of one name. fsspec's own default asks
first and writes then, and two tasks could both write. So only storages are accepted whose package sends the condition
with the data, and the first write of a release tries whether the storage keeps to it. Keys of releases are in the
ledger and with the workers, never here.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Any

from scoreshield._loading import make_printable
from scoreshield.distributed.filesystems import explain_storage_errors, open_filesystem
from scoreshield.distributed.storage import MANIFEST, ReleaseFolder
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

#: Which storages write a name once, by the scheme of the address, and how.
EXCLUSIVE = {
    # s3fs sends "If-None-Match: *" with a put, and with the end of an upload in parts. AWS and most other servers keep
    # to it; one that does not is found by `_check_exclusive`.
    "s3": "s3fs",
    "s3a": "s3fs",
    # gcsfs sends "ifGenerationMatch=0" with both kinds of upload.
    "gs": "gcsfs",
    "gcs": "gcsfs",
    # adlfs uploads without overwriting: the Azure client sends "If-None-Match: *".
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    # The memory of one process, for tests. It asks first and writes then, and so is locked here.
    "memory": "fsspec",
}
_memory_lock = threading.Lock()
#: The folders whose storage this process has tried.
_checked: set[str] = set()
#: How often a write is tried: a lost connection, or the answer of S3 to two writes at one moment.
_TRIES, _WAIT_SECONDS = 3, 0.2


class RemoteFolder(ReleaseFolder):
    """A folder of a release on object storage.

    Args:
        address: Such as ``s3://bucket/folder``.

    Raises:
        InvalidInput: The storage is not known to write a name only once.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        scheme = self.address.partition("://")[0]
        if scheme not in EXCLUSIVE:
            raise InvalidInput(
                f"Releases are not written to {make_printable(scheme)}://, where two tasks could write one block: "
                f"name a folder that all workers share, or one of {', '.join(f'{name}://' for name in EXCLUSIVE)}."
            )
        self._is_memory = scheme == "memory"
        open_filesystem(self.address)  # a missing package is reported before anything is read

    def put_if_absent(self, name: str, content: bytes) -> bool:
        # Before the charge, and by each process: workers may have other versions of the package.
        if name == MANIFEST or self.address not in _checked:
            self._check_exclusive()
            _checked.add(self.address)
        return self._create(name, content)

    def read(self, name: str) -> bytes | None:
        system, path = self._find(name)
        with explain_storage_errors(f"{self.address}/{name}", "read"):
            try:
                found: bytes = system.cat_file(path)
            except FileNotFoundError:
                return None
            return found

    def list_names(self) -> list[str]:
        system, path = open_filesystem(self.address)
        with explain_storage_errors(self.address, "read"):
            try:
                found = system.find(path)
            except FileNotFoundError:
                return []
        start = path.strip("/") + "/"
        return sorted(str(name).strip("/").removeprefix(start) for name in found)

    def remove(self, name: str) -> None:
        system, path = self._find(name)
        with explain_storage_errors(f"{self.address}/{name}", "remove"), contextlib.suppress(FileNotFoundError):
            system.rm_file(path)

    def _create(self, name: str, content: bytes) -> bool:
        """Write a new file. After any error, a file that is there counts: a storage shows whole files only."""
        failure: Exception | None = None
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_WAIT_SECONDS * attempt)
            try:
                system, path = self._find(name)
                with _memory_lock if self._is_memory else contextlib.nullcontext():
                    system.pipe_file(path, content, mode="create")
                return True
            except ScoreShieldError:
                raise
            except FileExistsError:
                return False
            except Exception as error:  # each storage has errors of its own
                failure = error
                if isinstance(error, PermissionError):
                    break
            with contextlib.suppress(FileError):
                if self.read(name) is not None:
                    return False
        assert failure is not None  # no attempt succeeded
        with explain_storage_errors(f"{self.address}/{name}", "write"):
            raise failure

    def _check_exclusive(self) -> None:
        """Write a file twice, to see that the storage rejects the second write."""
        name = f".probe-{secrets.token_hex(8)}.part"
        try:
            if not self._create(name, b"first") or self._create(name, b"second") or self.read(name) != b"first":
                raise InvalidInput(
                    f"The storage of {make_printable(self.address)} overwrites a file although it is told not to, so "
                    "that a block could be seen twice: name a folder on another storage. Nothing was charged."
                )
        finally:
            with contextlib.suppress(FileError):
                self.remove(name)

    def _find(self, name: str) -> tuple[Any, str]:
        return open_filesystem(f"{self.address}/{name}")


def open_remote_folder(address: str) -> ReleaseFolder:
    """Open a folder by its address."""
    return RemoteFolder(address)
