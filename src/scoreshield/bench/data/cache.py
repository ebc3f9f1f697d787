"""Official files on this machine: found, checked, and downloaded only where they are missing.

A file lies at ``<root>/<set>/<file>``, where root is the argument, else ``$SCORESHIELD_DATA``, else the user's cache
folder. Beside it ``<file>.checked`` remembers a passed check, so that a large file is not read each time, and
``TERMS.txt`` says what one may do with what was downloaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from scoreshield import _loading, _validation
from scoreshield._validation import validate
from scoreshield.bench.data import _files, archives
from scoreshield.bench.data.catalogue import CATALOGUE, Official, RemoteFile
from scoreshield.errors import FileError, InvalidInput

Progress = Callable[[str, int, int | None], object]  # file, bytes so far, bytes in all if known

_BLOCK = 1 << 20
_MOST = 4 << 30  # bytes; no set here comes near it, and a body without end must end somewhere


@validate()
def fetch(
    name: str, *, root: str | Path | None = None, offline: bool = False, progress: Progress | None = None
) -> dict[str, Path]:
    """The files of an official set, by their names; downloaded where they are missing, checked in any case.

    The loaders fetch for themselves what they need; this gets a whole set beforehand, for work offline.

    Parameters
    ----------
    name : a key of ``CATALOGUE``, such as "cifar-10".
    root : the folder of all sets; None means ``$SCORESHIELD_DATA``, or else the user's cache folder.
    offline : True never asks the network.
    progress : called with the file, the bytes so far and the bytes in all (None if unknown).
    """
    official = CATALOGUE[_validation.check_option(name, "name", CATALOGUE)]
    return {file.name: fetch_file(name, file.name, root, offline, progress) for file in official.files}


@validate()
def fetch_file(
    name: str, file_name: str, root: str | Path | None = None, offline: bool = False, progress: Progress | None = None
) -> Path:
    """One file of an official set; see `fetch`."""
    official = CATALOGUE[_validation.check_option(name, "name", CATALOGUE)]
    known = [file.name for file in official.files]
    file = official.file(_validation.check_option(file_name, "file_name", known))
    path = set_folder(name, root) / file_name
    try:
        there = path.is_file()
    except OSError as error:
        raise FileError(f"Cannot look for {path}: {error.strerror}.") from None
    if there:
        verify(path, file)
        return path
    if offline:
        raise FileError(f"{_missing(path, file)} (offline: nothing was downloaded).")
    download(file, path, progress)
    _tell_terms(official, path.parent)
    return path


def set_folder(name: str, root: str | Path | None = None) -> Path:
    """The folder of one set."""
    if root is None:
        root = os.environ.get("SCORESHIELD_DATA") or _user_cache() / "scoreshield"
    return _files.path_of(root, "root", "a folder, or None for the usual one") / name


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base) if base else Path.home() / ".cache"
    except RuntimeError:
        raise InvalidInput("No home folder is known; name the folder of the data sets in SCORESHIELD_DATA.") from None


def verify(path: Path, file: RemoteFile) -> None:
    """Refuse a file that is not the one the catalogue means.

    A check that passed is remembered, and holds while the file has the same size, inode, time of writing and time of
    change; the last of these cannot be set back by whoever may write the file.
    """
    record = path.with_name(path.name + ".checked")
    try:
        state = path.stat()
        stamp = {
            "checksum": file.checksum,
            "size": state.st_size,
            "inode": state.st_ino,
            "written": state.st_mtime_ns,
            "changed": state.st_ctime_ns,
        }
        if _recall(record) == stamp:
            return
        found = _digest(path, file.checksum.partition(":")[0])
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    if found != file.checksum:
        raise InvalidInput(
            f"{path} is not used: its checksum {found} is not the published one {file.checksum}; "
            f"move it away and get it again from {file.address}."
        )
    _remember(record, stamp)


def download(
    file: RemoteFile, path: Path, progress: Progress | None = None, *, timeout: float = 30.0, local_http: bool = False
) -> None:
    """Fetch one file to its place, whole and checked, or not at all.

    Parameters
    ----------
    timeout : seconds without a single byte after which the server is given up.
    local_http : allow plain http, from 127.0.0.1 only; for tests of this function.
    """
    try:
        _files.place(path, lambda out: _stream(file, out, progress, timeout, local_http))
    except _Failed as failure:
        by_hand = f"get it from {file.address} by hand and put it at {path}"
        raise FileError(f"Cannot download {file.name}: {failure}; nothing was kept; {by_hand}.") from None
    verify(path, file)


class _Failed(Exception):
    """Why a download came to nothing. Not an OSError, which `_files.place` would take for trouble with the disk."""


def _stream(file: RemoteFile, out: BinaryIO, progress: Progress | None, timeout: float, local_http: bool) -> None:
    algorithm, _, expected = file.checksum.partition(":")
    digest, done = hashlib.new(algorithm, usedforsecurity=False), 0
    most = _MOST if file.size is None else file.size
    response = _receive(lambda: _open(file.address, timeout, local_http))
    with response:
        length = response.headers.get("Content-Length")
        total = None if length is None else archives.parse_number(length, 10**18)
        if total is not None and total > most:
            raise _Failed(f"the server offers {total} bytes, more than the {most} that it should have")
        while block := _receive(lambda: response.read(_BLOCK)):
            done += len(block)
            if done > most:
                raise _Failed(f"the server sent more than the {most} bytes that it should have")
            out.write(block)
            digest.update(block)
            if progress is not None:
                progress(file.name, done, total)
    if total is not None and done != total:
        raise _Failed(f"the connection ended after {done} of {total} bytes")
    if not done:
        raise _Failed("the server sent nothing")
    if digest.hexdigest() != expected:
        raise _Failed(f"its checksum {algorithm}:{digest.hexdigest()} is not the published one {file.checksum}")


def _receive(ask: Callable[[], Any]) -> Any:
    """What the network answers, or why it does not, in a few words."""
    try:
        return ask()
    except urllib.error.HTTPError as error:
        error.close()
        raise _Failed(f"the server answered {error.code} {error.reason}".rstrip()) from None
    except urllib.error.URLError as error:
        raise _Failed(_words(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Failed(_words(error)) from None


def _open(address: str, timeout: float, local_http: bool) -> Any:
    handlers: list[urllib.request.BaseHandler] = [_Redirects(local_http)]
    if local_http:
        handlers.append(urllib.request.ProxyHandler({}))
    _allow(address, local_http)
    request = urllib.request.Request(address, headers={"User-Agent": "scoreshield"})
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but never away from https."""

    def __init__(self, local_http: bool) -> None:
        self.local_http = local_http

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        try:
            _allow(newurl, self.local_http)
        except _Failed:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _allow(address: str, local_http: bool) -> None:
    if not (address.startswith("https://") or (local_http and address.startswith("http://127.0.0.1:"))):
        raise _Failed(f"{address} is not an https address")


def _digest(path: Path, algorithm: str) -> str:
    with _loading.open_regular_file(path) as raw:
        digest = hashlib.file_digest(raw, lambda: hashlib.new(algorithm, usedforsecurity=False))  # type: ignore[arg-type]
    return f"{algorithm}:{digest.hexdigest()}"


def _recall(record: Path) -> object:
    try:
        return _loading.parse_json(_loading.read_bytes(record))
    except (OSError, ValueError):
        return None  # it only saves time


def _remember(record: Path, stamp: dict[str, Any]) -> None:
    text = json.dumps(stamp).encode()
    with contextlib.suppress(FileError):  # a folder that cannot be written to: the file is checked each time
        _files.place(record, lambda out: out.write(text))


def _tell_terms(official: Official, folder: Path) -> None:
    sources = "\n".join(f"{file.name} from {file.address}" for file in official.files)
    text = f"{official.title}\n\nTerms: {official.terms}\nCite: {official.citation}\n\n{sources}\n"
    _files.place(folder / "TERMS.txt", lambda out: out.write(text.encode()))


def _missing(path: Path, file: RemoteFile) -> str:
    return f"There is no file {path}; download {file.address} and put it there"


def _words(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _files.first_line(error)
