"""The folder of one audit: what the target released is appended as it comes, so that a killed audit goes on.

An audit asks for outputs of collections that it makes up. The journal answers with what was released for the same
collection before, as long as there is any, and asks the target for the rest. Releases of the audited mechanism are thus
never drawn twice. Only an audit that was not finished goes on: a report says how the target was when it was audited,
and must not answer for the target as it is today.

The folder holds ``settings.json``, ``releases.jsonl`` (one line a release: a checksum of the collection, and the
output), ``report.html`` and ``report.json`` at the end, and ``.lock``, which keeps a second audit out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from scoreshield import _files, _loading
from scoreshield.audit.lines import LARGEST, decoded, encoded
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

SETTINGS, RELEASES, LOCK = "settings.json", "releases.jsonl", ".lock"
REPORTS = ("report.html", "report.json")
#: What an audit that begins afresh leaves of the one before, until it has a release of its own.
_BEFORE = ".before-"
#: Bytes of one line: an output of the largest size, in text.
_LONGEST = 4 * LARGEST
#: Seconds of releases that a kill may cost.
_KEPT_EVERY = 1.0


class Journal:
    """The releases of one audit, on disk.

    Attributes
    ----------
    begun : when the audit was begun; no release in the folder is older.
    known, added : releases that were there before, and those added since.
    repeated : requests that earlier runs of this audit had to repeat.
    """

    def __init__(self, folder: Path, begun: datetime) -> None:
        self.path, self.begun = folder / RELEASES, begun
        self._before, self._width, self.repeated, end = _read(self.path)
        self.known = sum(map(len, self._before.values()))
        self.added = 0
        self._file = self._opened(end)
        self._flushed = time.monotonic()

    def recording(self, release: Callable[..., Any]) -> Callable[[NDArray[Any]], Any]:
        """The same release, which answers from the journal first and writes down what it is asked for beyond.

        An output that no audit can use (not finite, or of another width than those before) is handed on and not kept.
        """
        started: set[str] = set()

        def recorded(embeddings: NDArray[Any]) -> Any:
            key = _key(embeddings)
            first = key not in started
            started.add(key)
            if before := self._before.get(key):
                kept = before.popleft()
                # Of a ScoreShield release its numbers are kept, not its guarantee: an audit asks for that at first.
                if "numbers" not in kept or not first:
                    return decoded(kept)
            output = self._asked(release, embeddings)
            found = encoded(output, len(embeddings))
            if found is not None and self._width in (None, found[1]):
                self._width = found[1]
                self._append({"on": key} | found[0])
                self.added += 1
            return output

        return recorded

    def note_repeated(self, requests: int) -> None:
        """Write down that so many requests had to be repeated, for a later run of this audit to know."""
        if requests:
            self._append({"repeated": requests})

    def close(self) -> None:
        """Bring what was written to disk."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _asked(self, release: Callable[..., Any], embeddings: NDArray[Any]) -> Any:
        before = getattr(release, "retried", 0)
        try:
            return release(embeddings)
        finally:
            self.note_repeated(getattr(release, "retried", 0) - before)

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n")
            if time.monotonic() - self._flushed > _KEPT_EVERY:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror}; the releases before are kept.") from None

    def _opened(self, end: int) -> BinaryIO:
        """The file to append to, for its owner alone; what stands after ``end`` is a line that was cut short."""
        try:
            file = open(self.path, "ab", opener=_owner_only)  # noqa: SIM115
            file.truncate(end)
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror}.") from None
        return file


@contextlib.contextmanager
def opened(
    folder: Path, asked: dict[str, Any], plan: Callable[[], int], *, secret: str | None = None, again: bool = False
) -> Iterator[tuple[Journal, int]]:
    """The journal of an audit with these settings, and how many releases it takes.

    Parameters
    ----------
    asked : the settings; an audit with others is refused and left as it is, and so is one that is finished.
    plan : gives the number of releases where the folder is new; it is kept with the settings.
    secret : a setting that must not be written down, such as an address with a key in it: a slow, salted digest is.
    again : begin afresh in the folder of an earlier audit, which goes with the first release of the new one.
    """
    there = folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise FileError(f"Cannot use the folder {folder}: {error.strerror}.") from None
    if SETTINGS not in names and any(not _is_ours(name) for name in names):
        raise InvalidInput(f"The folder {folder} holds other files and no audit; name an empty or a new one.")
    with _files.lock_file(folder / LOCK, extra="audit", is_private=True):
        fresh = again or not (folder / SETTINGS).exists()
        journal = None
        try:
            if again:
                _renamed(folder, "", _BEFORE)
            begun, releases = _settled(folder, asked, plan, secret)
            journal = Journal(folder, begun)
            try:
                yield journal, releases
            finally:
                journal.close()
        except ScoreShieldError:
            if fresh and (journal is None or not journal.added):  # refused before the first release: leave no trace
                _forget(folder, whole=not there, lock=not again)
                _renamed(folder, _BEFORE, "")
            raise
        for name in (SETTINGS, RELEASES, *REPORTS):
            with contextlib.suppress(OSError):
                (folder / f"{_BEFORE}{name}").unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return name == LOCK or name.endswith(".part") or name.startswith(_BEFORE)


def _settled(folder: Path, asked: dict[str, Any], plan: Callable[[], int], secret: str | None) -> tuple[datetime, int]:
    path = folder / SETTINGS
    if not path.exists():
        releases, begun, salt = plan(), datetime.now(UTC), secrets.token_hex(16)
        settings = {
            "asked": asked,
            "releases": releases,
            "begun": begun.isoformat(timespec="seconds"),
            "salt": salt,
            "address": _slow_digest(secret, salt),
        }
        content = json.dumps(settings, indent=2).encode()
        _files.write_whole({path: lambda file: file.write(content)}, private=True)
        return begun, releases
    changed, begun, planned = _compared(path, asked, secret)
    if changed is not None:
        raise InvalidInput(
            f"The audit in {folder} was begun with other settings ({changed}); name another folder, or move that one "
            "away."
        )
    if any((folder / name).exists() for name in REPORTS):
        raise InvalidInput(
            f"The audit in {folder} is finished and answers for the day it was made; name a new folder, or begin "
            "afresh there with --again."
        )
    return begun, planned


def _compared(path: Path, asked: dict[str, Any], secret: str | None) -> tuple[str | None, datetime, int]:
    """Which setting differs from those in the file, when the audit there was begun, and its number of releases."""
    wanted = json.loads(json.dumps(asked))
    other = "those of another version", datetime.now(UTC), 0
    try:
        before = _loading.parse_json(_loading.read_bytes(path))
        made, planned, begun = dict(before["asked"]), before["releases"], datetime.fromisoformat(before["begun"])
        address = before["address"] == _slow_digest(secret, before["salt"])
    except FileError:
        raise
    except (ValueError, KeyError, TypeError):
        return other
    if made == wanted and address and type(planned) is int and planned > 0 and begun.tzinfo is not None:
        return None, begun, planned
    changed = next((name for name in wanted if made.get(name) != wanted[name]), None)
    return (changed or (other[0] if address else "what follows the address"), *other[1:])


def _slow_digest(secret: str | None, salt: str) -> str | None:
    """A digest that a short secret cannot be guessed from in a hurry."""
    if secret is None:
        return None
    return hashlib.scrypt(secret.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1, dklen=32).hex()


def _renamed(folder: Path, old: str, new: str) -> None:
    for name in (SETTINGS, RELEASES, *REPORTS):
        try:
            (folder / f"{old}{name}").replace(folder / f"{new}{name}")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FileError(f"Cannot use the folder {folder}: {error.strerror}.") from None


def _forget(folder: Path, *, whole: bool, lock: bool) -> None:
    with contextlib.suppress(OSError):
        for name in (SETTINGS, RELEASES) + (LOCK,) * (lock or whole):
            (folder / name).unlink(missing_ok=True)
        if whole:
            folder.rmdir()


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read(path: Path) -> tuple[dict[str, deque[dict[str, Any]]], int | None, int, int]:
    """What was released before, by collection, in order; its width; requests repeated; and where the last line ends.

    A last line that was cut short is left aside.
    """
    found: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
    wide, repeated, end = None, 0, 0
    try:
        with _loading.open_regular_file(path) as file:
            while (line := file.readline(_LONGEST + 1)).endswith(b"\n"):
                end += len(line)
                try:
                    kept = _loading.parse_json(line)
                    if "repeated" in kept:
                        repeated += int(kept["repeated"])
                        continue
                    output = decoded(kept)
                    size = wide if isinstance(output, set) else np.size(output)
                    wide = size if wide is None else wide
                    if size != wide:
                        raise ValueError
                    found[str(kept["on"])].append(kept)
                except (ValueError, KeyError, TypeError, OverflowError):
                    raise _damaged(path) from None
            if len(line) > _LONGEST:
                raise _damaged(path)
    except _loading.MissingFile:
        return found, None, 0, 0
    return found, wide, repeated, end


def _damaged(path: Path) -> InvalidInput:
    return InvalidInput(f"{path} is damaged: a line holds no release; move the folder away.")


def _key(embeddings: NDArray[Any]) -> str:
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    return hashlib.sha256(repr(rows.shape).encode() + rows.tobytes()).hexdigest()[:16]
