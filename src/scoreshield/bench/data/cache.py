"""The files of official data sets on this machine: found, checked, and downloaded only where they are missing.

A file lies at ``<root>/<set>/<file>``, where root is the argument, else ``$SCORESHIELD_DATA``, else the user's cache
folder. In the same folder, ``<file>.checked`` records a passed check, so that a large file is not read each time, and
``TERMS.txt`` states the terms of use.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from scoreshield import _loading, _validation
from scoreshield._files import make_folder, replace_file
from scoreshield._validation import validate
from scoreshield.bench.data import archives
from scoreshield.bench.data.catalogue import CATALOGUE, OfficialSet, RemoteFile
from scoreshield.errors import FileError, InvalidInput

Progress = Callable[[str, int, int | None], object]  # file, bytes so far, bytes in all if known

_BLOCK = 1 << 20
_MOST = 4 << 30  # bytes; no set here comes near it, and a body without end must end somewhere


@validate()
def fetch(
    name: str, *, root: str | Path | None = None, offline: bool = False, progress: Progress | None = None
) -> dict[str, Path]:
    """Get the files of an official set, by their names. Missing files are downloaded, and all are checked.

    The loaders fetch for themselves what they need; this gets a whole set beforehand, for work offline.

    Args:
        name: A key of ``CATALOGUE``, such as "cifar-10".
        root: The folder of all sets; None means ``$SCORESHIELD_DATA``, or else the user's cache folder.
        offline: True never asks the network.
        progress: Called with the file, the bytes so far and the bytes in all (None if unknown).
    """
    official = CATALOGUE[_validation.check_option(name, "name", CATALOGUE)]
    return {file.name: fetch_file(name, file.name, root, offline, progress) for file in official.files}


@validate()
def fetch_file(
    name: str, file_name: str, root: str | Path | None = None, offline: bool = False, progress: Progress | None = None
) -> Path:
    """Get one file of an official set; see `fetch`."""
    official = CATALOGUE[_validation.check_option(name, "name", CATALOGUE)]
    known = [file.name for file in official.files]
    file = official.file(_validation.check_option(file_name, "file_name", known))
    path = find_set_folder(name, root) / file_name
    try:
        there = path.is_file()
    except OSError as error:
        raise FileError(f"Cannot look for {path}: {error.strerror}.") from None
    if there:
        verify_checksum(path, file)
        return path
    if offline:
        raise FileError(f"{_describe_missing_file(path, file)} (offline: nothing was downloaded).")
    download_file(file, path, progress)
    _write_terms(official, path.parent)
    return path


def find_set_folder(name: str, root: str | Path | None = None) -> Path:
    """Return the folder of one set."""
    if root is None:
        root = os.environ.get("SCORESHIELD_DATA") or _user_cache() / "scoreshield"
    return archives.check_path(root, "root", "a folder, or None for the usual one") / name


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base) if base else Path.home() / ".cache"
    except RuntimeError:
        raise InvalidInput("No home folder is known; name the folder of the data sets in SCORESHIELD_DATA.") from None


def verify_checksum(path: Path, file: RemoteFile) -> None:
    """Raise InvalidInput where a file is not the one that the catalogue means.

    A check that passed is remembered. It holds while the file has the same size, inode, time of writing and time of
    change. A user who may write the file cannot set the time of change back.
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
        if _read_record(record) == stamp:
            return
        found = _compute_checksum(path, file.checksum.partition(":")[0])
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    if found != file.checksum:
        raise InvalidInput(
            f"{path} is not used: its checksum {found} is not the published one {file.checksum}; "
            f"move it away and get it again from {file.address}."
        )
    with contextlib.suppress(FileError):  # where the folder cannot be written to, the file is checked each time
        replace_file(record, lambda out: out.write(json.dumps(stamp).encode()))


def download_file(
    file: RemoteFile, path: Path, progress: Progress | None = None, *, timeout: float = 30.0, local_http: bool = False
) -> None:
    """Download one file to its place, whole and checked, or not at all.

    pooch writes to a temporary file, compares the checksum and moves the file to its place. The transfer is our own:
    pooch's would follow a redirection to plain http, send passwords from ~/.netrc, and take a body of any length.

    Args:
        file: What to download.
        path: The place.
        progress: See `fetch`.
        timeout: Seconds without a single byte after which the download fails.
        local_http: Whether plain http is allowed, from 127.0.0.1 only; for tests of this function.
    """
    make_folder(path.parent)

    def transfer(address: str, target: str, _: object) -> None:
        Path(target).unlink()  # the temporary file is for its owner alone; the data follow the umask
        with open(target, "xb") as out:  # noqa: PTH123
            _stream(file, address, out, progress, timeout, local_http)
            out.flush()
            os.fsync(out.fileno())

    pooch = _import_pooch()
    pooch.get_logger().setLevel("WARNING")  # it would print every address
    reason = None
    try:
        pooch.retrieve(file.address, file.checksum, path.name, path.parent, downloader=transfer)
    except _DownloadError as error:
        reason = str(error)
    except ValueError as error:  # another checksum
        reason = str(error).partition(". ")[0]
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}; nothing was changed there.") from error
    if reason is not None:
        by_hand = f"get it from {file.address} by hand and put it at {path}"
        raise FileError(f"Cannot download {file.name}: {reason}; nothing was kept; {by_hand}.")
    verify_checksum(path, file)


class _DownloadError(Exception):
    """Why a download failed. It is no OSError, which would mean trouble with the disk."""


def _stream(
    file: RemoteFile, address: str, out: BinaryIO, progress: Progress | None, timeout: float, local_http: bool
) -> None:
    done, most = 0, _MOST if file.size is None else file.size
    response = _receive(lambda: _open(address, timeout, local_http))
    with response:
        length = response.headers.get("Content-Length")
        total = None if length is None else archives.parse_digits(length, 10**18)
        if total is not None and total > most:
            raise _DownloadError(f"the server offers {total} bytes, more than the {most} that it should have")
        while block := _receive(lambda: response.read(_BLOCK)):
            done += len(block)
            if done > most:
                raise _DownloadError(f"the server sent more than the {most} bytes that it should have")
            out.write(block)
            if progress is not None:
                progress(file.name, done, total)
    if total is not None and done != total:
        raise _DownloadError(f"the connection ended after {done} of {total} bytes")
    if not done:
        raise _DownloadError("the server sent nothing")


def _receive(ask: Callable[[], Any]) -> Any:
    """Return what the network answers, or raise an error with the reason in a few words."""
    try:
        return ask()
    except urllib.error.HTTPError as error:
        error.close()
        raise _DownloadError(f"the server answered {error.code} {error.reason}".rstrip()) from None
    except urllib.error.URLError as error:
        raise _DownloadError(_describe(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _DownloadError(_describe(error)) from None


def _open(address: str, timeout: float, local_http: bool) -> Any:
    handlers: list[urllib.request.BaseHandler] = [_Redirects(local_http)]
    if local_http:
        handlers.append(urllib.request.ProxyHandler({}))
    _check_address(address, local_http)
    request = urllib.request.Request(address, headers={"User-Agent": "scoreshield"})
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but never away from https."""

    def __init__(self, local_http: bool) -> None:
        self.local_http = local_http

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        try:
            _check_address(newurl, self.local_http)
        except _DownloadError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(address: str, local_http: bool) -> None:
    if not (address.startswith("https://") or (local_http and address.startswith("http://127.0.0.1:"))):
        raise _DownloadError(f"{address} is not an https address")


def _import_pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise InvalidInput("Official data sets need the 'bench' extra: pip install 'scoreshield[bench]'.") from None
    return pooch


def _compute_checksum(path: Path, algorithm: str) -> str:
    return f"{algorithm}:{_import_pooch().file_hash(str(path), algorithm)}"


def _read_record(record: Path) -> object:
    try:
        return _loading.parse_json(_loading.read_bytes(record))
    except (OSError, ValueError):
        return None  # it only saves time


def _write_terms(official: OfficialSet, folder: Path) -> None:
    sources = "\n".join(f"{file.name} from {file.address}" for file in official.files)
    text = f"{official.title}\n\nTerms: {official.terms}\nCite: {official.citation}\n\n{sources}\n"
    replace_file(folder / "TERMS.txt", lambda out: out.write(text.encode()))


def _describe_missing_file(path: Path, file: RemoteFile) -> str:
    return f"There is no file {path}; download {file.address} and put it there"


def _describe(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (
        _loading.describe_error(error)
        if isinstance(error, BaseException)
        else _loading.make_printable(str(error)[:200])
    )
