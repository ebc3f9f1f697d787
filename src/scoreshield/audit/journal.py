"""The folder of one audit: every release is appended as it comes, so that a killed audit can be resumed.

An audit asks for outputs of collections that it constructs. The journal answers with earlier outputs of the same
collection as long as there are any, and asks the target for the rest. So no release of the audited mechanism is drawn
twice. Only an unfinished audit can be resumed: a report describes the target at the time of the audit, and is no
evidence about the target of today.

The folder holds `settings.json`, `releases.jsonl` (one line per release: a checksum of the collection, and the
output), `report.html` and `report.json` at the end, and `.lock`, which keeps a second audit out.

A line holds small outputs as plain JSON numbers, and large ones packed: the bytes of the numbers, all first bytes
before all second ones (so that the equal signs and exponents are together), compressed, in base 64; of a symmetric
matrix, one half. Every number is restored bit for bit.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import secrets
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield._files import RunFolder
from scoreshield.audit.outputs import flatten_output
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

SETTINGS, RELEASES, LOCK = RunFolder.SETTINGS, "releases.jsonl", RunFolder.LOCK
REPORTS = ("report.html", "report.json")
#: How the files of an earlier audit are named in its folder until a new audit there has a release.
_BEFORE = ".before-"
#: Outputs of more numbers than this are packed.
_PLAIN = 64
#: The most bytes of one unpacked output: a packed line of a megabyte could claim a thousand.
LARGEST = 2**28
#: The most bytes of one line.
_LONGEST = 4 * LARGEST
#: A kill loses the releases of at most this number of seconds.
_FLUSH_SECONDS = 1.0


class Journal:
    """The releases of one audit, on disk.

    Args:
        folder: The folder of the audit.
        begun: When the audit was begun. No release in the folder is older.

    Attributes:
        begun: When the audit was begun.
        releases_before: How many releases were in the folder before.
        releases_added: How many were added since.
        requests_repeated: How many requests earlier runs of this audit had to repeat.
    """

    def __init__(self, folder: Path, begun: datetime) -> None:
        self.path, self.begun = folder / RELEASES, begun
        self._before, self._width, self.requests_repeated, end = _read_releases(self.path)
        self.releases_before = sum(map(len, self._before.values()))
        self.releases_added = 0
        self._file = self._open(end)
        self._flushed = time.monotonic()

    def record(self, release: Callable[..., Any]) -> Callable[[NDArray[Any]], Any]:
        """Wrap a release so that it answers from the journal first, and writes down every further output.

        An output that no audit can use (not finite, or of another width than those before) is returned and not written.
        """
        started: set[str] = set()

        def release_or_replay(embeddings: NDArray[Any]) -> Any:
            key = _digest_rows(embeddings)
            is_first = key not in started
            started.add(key)
            if before := self._before.get(key):
                line = before.popleft()
                # The journal has the numbers of a ScoreShield release and not its guarantee, which an audit needs once.
                if "numbers" not in line or not is_first:
                    return decode_output(line)
            output = self._call(release, embeddings)
            encoding = encode_output(output, len(embeddings))
            if encoding is not None and self._width in (None, encoding[1]):
                self._width = encoding[1]
                self._append({"on": key} | encoding[0])
                self.releases_added += 1
            return output

        return release_or_replay

    def note_repeated(self, requests: int) -> None:
        """Write down how many requests had to be repeated, for later runs of this audit."""
        if requests:
            self._append({"repeated": requests})

    def close(self) -> None:
        """Write everything to disk."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _call(self, release: Callable[..., Any], embeddings: NDArray[Any]) -> Any:
        before = getattr(release, "retried", 0)
        try:
            return release(embeddings)
        finally:
            self.note_repeated(getattr(release, "retried", 0) - before)

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n")
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror}; the earlier releases are saved.") from None

    def _open(self, end: int) -> BinaryIO:
        """Open the file to append to, readable only by its owner; what follows `end` is a line that was cut short."""
        try:
            file = open(self.path, "ab", opener=_open_for_owner)  # noqa: SIM115
            file.truncate(end)
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror}.") from None
        return file


@contextlib.contextmanager
def open_journal(
    folder: Path, settings: dict[str, Any], plan: Callable[[], int], *, secret: str | None = None, again: bool = False
) -> Iterator[tuple[Journal, int]]:
    """Open the journal of an audit within the block.

    Args:
        folder: The folder of the audit, which may exist.
        settings: The settings of the audit. A folder whose audit has other settings, or is finished, is left as it is.
        plan: Returns the number of releases of a new audit. It is saved with the settings.
        secret: A setting that must not be written down, such as an address with a key in it. The folder holds a slow,
            salted digest of it.
        again: Start again in the folder of an earlier audit, which is removed after the first release of the new one.

    Yields:
        The journal, and the number of releases on each side.

    Raises:
        InvalidInput: The folder holds another audit, a finished one or other files, another run uses it, or filelock is
            not installed.
        FileError: The folder cannot be used.
    """
    is_new = not folder.exists()
    with contextlib.ExitStack() as stack:
        run_folder = RunFolder(folder, job="audit", extra="audit", is_private=True, leftovers=(_BEFORE,))
        try:
            stack.enter_context(run_folder.lock())
        except ScoreShieldError:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        is_start = again or not (folder / SETTINGS).exists()
        journal = None
        try:
            if again:
                _rename_files(folder, "", _BEFORE)
            begun, releases = _start_or_resume(run_folder, settings, plan, secret)
            journal = Journal(folder, begun)
            try:
                yield journal, releases
            finally:
                journal.close()
        except ScoreShieldError:
            if is_start and (journal is None or not journal.releases_added):  # nothing was released: leave no trace
                _remove_traces(folder, with_folder=is_new, with_lock=not again)
                _rename_files(folder, _BEFORE, "")
            raise
        for name in (SETTINGS, RELEASES, *REPORTS):
            with contextlib.suppress(OSError):
                (folder / f"{_BEFORE}{name}").unlink(missing_ok=True)


def _start_or_resume(
    run_folder: RunFolder, settings: dict[str, Any], plan: Callable[[], int], secret: str | None
) -> tuple[datetime, int]:
    """Write the settings of a new audit, or check those of the audit in the folder.

    Returns:
        When the audit was begun, and its number of releases.
    """
    before = run_folder.read_settings()
    if before is None:
        releases, begun, salt = plan(), datetime.now(UTC), secrets.token_hex(16)
        run_folder.write_settings(
            {
                "asked": settings,
                "releases": releases,
                "begun": begun.isoformat(timespec="seconds"),
                "salt": salt,
                "address": _digest_secret(secret, salt),
            }
        )
        return begun, releases
    difference, begun, planned = _compare_settings(before, settings, secret)
    if difference is not None:
        raise run_folder.settings_error(difference)
    if any((run_folder.path / name).exists() for name in REPORTS):
        raise InvalidInput(
            f"The audit in {run_folder.path} is finished, and its report is about the target of that day; name a "
            "new folder, or start again there with --again."
        )
    return begun, planned


def _compare_settings(
    before: dict[str, Any], settings: dict[str, Any], secret: str | None
) -> tuple[str | None, datetime, int]:
    """Compare settings with those in the folder.

    Returns:
        Which setting differs, when the audit in the folder was begun, and its number of releases.
    """
    wanted = json.loads(json.dumps(settings))
    other = "those of another version", datetime.now(UTC), 0
    try:
        made, planned, begun = dict(before["asked"]), before["releases"], datetime.fromisoformat(before["begun"])
        is_same_address = before["address"] == _digest_secret(secret, before["salt"])
    except (ValueError, KeyError, TypeError):
        return other
    if made == wanted and is_same_address and type(planned) is int and planned > 0 and begun.tzinfo is not None:
        return None, begun, planned
    difference = next((name for name in wanted if made.get(name) != wanted[name]), None)
    return (difference or (other[0] if is_same_address else "what follows the address"), *other[1:])


def _digest_secret(secret: str | None, salt: str) -> str | None:
    """Compute a digest that is slow to compute, so that a short secret cannot be guessed quickly."""
    if secret is None:
        return None
    return hashlib.scrypt(secret.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1, dklen=32).hex()


def _rename_files(folder: Path, old: str, new: str) -> None:
    for name in (SETTINGS, RELEASES, *REPORTS):
        try:
            (folder / f"{old}{name}").replace(folder / f"{new}{name}")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FileError(f"Cannot use the folder {folder}: {error.strerror}.") from None


def _remove_traces(folder: Path, *, with_folder: bool, with_lock: bool) -> None:
    with contextlib.suppress(OSError):
        for name in (SETTINGS, RELEASES) + (LOCK,) * (with_lock or with_folder):
            (folder / name).unlink(missing_ok=True)
        if with_folder:
            folder.rmdir()


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read_releases(path: Path) -> tuple[dict[str, deque[dict[str, Any]]], int | None, int, int]:
    """Read the earlier releases.

    Returns:
        The lines by collection, in order; the width of the outputs; how many requests were repeated; and where the last
        whole line ends. A last line that was cut short is left out.
    """
    lines: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
    width, repeated, end = None, 0, 0
    try:
        with _loading.open_regular_file(path) as file:
            while (text := file.readline(_LONGEST + 1)).endswith(b"\n"):
                end += len(text)
                try:
                    line = _loading.parse_json(text)
                    if "repeated" in line:
                        repeated += int(line["repeated"])
                        continue
                    output = decode_output(line)
                    size = width if isinstance(output, set) else np.size(output)
                    width = size if width is None else width
                    if size != width:
                        raise ValueError
                    lines[str(line["on"])].append(line)
                except (ValueError, KeyError, TypeError, OverflowError):
                    raise _make_damage_error(path) from None
            if len(text) > _LONGEST:
                raise _make_damage_error(path)
    except _loading.MissingFile:
        return lines, None, 0, 0
    return lines, width, repeated, end


def _make_damage_error(path: Path) -> InvalidInput:
    return InvalidInput(f"{path} is damaged: a line holds no release; move the folder away.")


def _digest_rows(embeddings: NDArray[Any]) -> str:
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    return hashlib.sha256(repr(rows.shape).encode() + rows.tobytes()).hexdigest()[:16]


# ---- One output as a line.


def encode_output(output: Any, records: int) -> tuple[dict[str, Any], int] | None:
    """Convert an output to JSON values from which `decode_output` restores it.

    Arrays and sets are restored as they are, everything else as its numbers.

    Args:
        output: The output.
        records: How many records the collection has.

    Returns:
        The values and how many numbers they hold. None where the numbers are not all finite, or too many to be read.

    Raises:
        InvalidInput: The output holds no numbers.
    """
    row = flatten_output(output, records)
    if not np.isfinite(row).all() or row.nbytes > LARGEST:
        return None
    if isinstance(output, set | frozenset):
        return {"set": sorted(int(place) for place in output)}, len(row)
    if isinstance(output, np.ndarray | int | float | np.number) and np.asarray(output).dtype.kind in "fiub":
        return {"array": _encode_array(np.asarray(output))}, len(row)
    return {"numbers": _encode_array(row)}, len(row)


def decode_output(line: dict[str, Any]) -> Any:
    """Restore the output of a line.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: The line holds no output.
    """
    if "set" in line:
        return {int(place) for place in line["set"]}
    values = line["array"] if "array" in line else line["numbers"]
    array = _unpack(values) if isinstance(values, dict) else np.asarray(values)
    if array.dtype.kind not in "fiub" or not array.size or not np.isfinite(array).all():
        raise ValueError
    return array


def _encode_array(array: NDArray[Any]) -> Any:
    array = array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array
    return array.tolist() if array.size <= _PLAIN else _pack(array)


def _pack(array: NDArray[Any]) -> dict[str, Any]:
    is_half = array.ndim == 2 and array.shape[0] == array.shape[1] and np.array_equal(array, array.T)
    flat = array[np.triu_indices(len(array))] if is_half else array.ravel()
    flat = flat.astype(flat.dtype.newbyteorder("<"))
    by_place = flat.view(np.uint8).reshape(len(flat), -1).T
    content = base64.b64encode(zlib.compress(by_place.tobytes(), 1)).decode()
    return {"type": flat.dtype.str, "shape": list(array.shape), "half": is_half, "packed": content}


def _unpack(values: dict[str, Any]) -> NDArray[Any]:
    kind, shape = np.dtype(str(values["type"])), tuple(int(size) for size in values["shape"])
    if kind.kind not in "fiub" or any(size < 1 for size in shape) or math.prod(shape) * kind.itemsize > LARGEST:
        raise ValueError
    size = len(shape) == 2 and shape[0] * (shape[0] + 1) // 2 if values["half"] else math.prod(shape)
    content = _decompress(base64.b64decode(values["packed"], validate=True), size * kind.itemsize)
    by_place = np.frombuffer(content, np.uint8).reshape(kind.itemsize, -1)
    flat = np.ascontiguousarray(by_place.T).view(kind).ravel()
    if not values["half"]:
        return flat.reshape(shape)
    matrix = np.empty(shape, kind)
    upper = np.triu_indices(shape[0])
    matrix[upper] = matrix.T[upper] = flat
    return matrix


def _decompress(content: bytes, size: int) -> bytes:
    """Decompress exactly this number of bytes; stop if there are more."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(content, size + 1)
    except zlib.error:
        raise ValueError from None
    if len(raw) != size or not stream.eof:
        raise ValueError
    return raw
