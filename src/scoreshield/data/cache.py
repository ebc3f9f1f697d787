"""Official files on this machine: found, checked, and downloaded only where they are missing.

A file lies at ``<root>/<set>/<file>``, where root is the argument, else ``$SCORESHIELD_DATA``, else the user's cache
folder. Beside it ``<file>.checked`` remembers a passed check, so that a large file is not read each time; for a file
without a published checksum it also holds the SHA-256 of the first one seen, from which later ones must not differ.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from scoreshield import _checks
from scoreshield.data.catalogue import CATALOGUE, RemoteFile
from scoreshield.errors import FileError, InvalidInput
from scoreshield.io import write_whole

Progress = Callable[[str, int, int | None], object]  # file, bytes so far, bytes in all if known

_BLOCK = 1 << 20
_MOST = 4 << 30  # bytes; no set here comes near it, and a body without end must end somewhere


def fetch(
    name: str, *, root: str | Path | None = None, offline: bool = False, progress: Progress | None = None
) -> dict[str, Path]:
    """The files of an official set, by their names; downloaded where they are missing, checked in any case.

    Parameters
    ----------
    name : a key of ``CATALOGUE``, such as "cifar-10".
    root : the folder of all sets; None means ``$SCORESHIELD_DATA``, or else the user's cache folder.
    offline : True never asks the network.
    progress : called with the file, the bytes so far and the bytes in all (None if unknown).
    """
    official = CATALOGUE[_checks.one_of(name, "name", "fetch", CATALOGUE)]
    return {file.name: fetch_file(name, file.name, root, offline, progress) for file in official.files}


def fetch_file(
    name: str, file_name: str, root: str | Path | None = None, offline: bool = False, progress: Progress | None = None
) -> Path:
    """One file of an official set; see `fetch`."""
    file, path = CATALOGUE[name].file(file_name), set_folder(name, root) / file_name
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
    return path


def set_folder(name: str, root: str | Path | None = None) -> Path:
    """The folder of one set."""
    if root is None:
        root = os.environ.get("SCORESHIELD_DATA") or _user_cache() / "scoreshield"
    elif not isinstance(root, str | Path) or not str(root):
        _checks.reject("root", "fetch", "a folder, or None for the usual one", root)
    return Path(root) / name


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base) if base else Path.home() / ".cache"
    except RuntimeError:
        raise InvalidInput("No home folder is known; name the folder of the data sets in SCORESHIELD_DATA.") from None


def verify(path: Path, file: RemoteFile) -> None:
    """Refuse a file that is not the one the catalogue means; what passed is remembered by its size and time."""
    record = path.with_name(path.name + ".checked")
    known = _recall(record, pinned=file.checksum is None)
    try:
        state = path.stat()
        expected = file.checksum or known.get("checksum")
        stamp = {"checksum": expected, "size": state.st_size, "time": state.st_mtime_ns}
        if expected is not None and known == stamp:
            return
        found = _digest(path, (expected or "sha256:").partition(":")[0])
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    if expected is not None and found != expected:
        whose = "the published one" if file.checksum else f"that of the first file seen, in {record.name},"
        raise InvalidInput(
            f"{path} is not used: its checksum {found} is not {whose} {expected}; "
            f"move it away and get it again from {file.address}."
        )
    _remember(record, {**stamp, "checksum": found})


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
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {path.parent}: {error.strerror}.") from None
    try:
        write_whole({path: lambda out: _stream(file, out, progress, timeout, local_http)})
    except _Failed as failure:
        by_hand = f"get it from {file.address} by hand and put it at {path}"
        raise FileError(f"Cannot download {file.name}: {failure}; nothing was kept; {by_hand}.") from None
    verify(path, file)


class _Failed(Exception):
    """Why a download came to nothing. Not an OSError, which `write_whole` would take for trouble with the disk."""


def _stream(file: RemoteFile, out: BinaryIO, progress: Progress | None, timeout: float, local_http: bool) -> None:
    algorithm, _, expected = (file.checksum or "sha256:").partition(":")
    digest, done = hashlib.new(algorithm, usedforsecurity=False), 0
    response = _receive(lambda: _open(file.address, timeout, local_http))
    with response:
        length = response.headers.get("Content-Length")
        total = int(length) if length is not None and length.isdigit() else None
        while block := _receive(lambda: response.read(_BLOCK)):
            out.write(block)
            digest.update(block)
            done += len(block)
            if done > _MOST:
                raise _Failed(f"the server sent more than {_MOST} bytes")
            if progress is not None:
                progress(file.name, done, total)
    if total is not None and done != total:
        raise _Failed(f"the connection ended after {done} of {total} bytes")
    if not done:
        raise _Failed("the server sent nothing")
    if expected and digest.hexdigest() != expected:
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
    with path.open("rb") as raw:
        digest = hashlib.file_digest(raw, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _recall(record: Path, *, pinned: bool) -> dict[str, Any]:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict) or not isinstance(known.get("checksum"), str):
        if not pinned:
            return {}  # it only saved time
        raise InvalidInput(f"{record} is damaged; delete it, and the file beside it is checked anew.")
    return known


def _remember(record: Path, stamp: dict[str, Any]) -> None:
    text = json.dumps(stamp).encode()
    try:
        write_whole({record: lambda out: out.write(text)})
    except FileError:
        return  # a folder that cannot be written to: the file is checked each time


def _missing(path: Path, file: RemoteFile) -> str:
    return f"There is no file {path}; download {file.address} and put it there"


def _words(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
