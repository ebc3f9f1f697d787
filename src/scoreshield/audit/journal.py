"""The folder of one audit: every release is appended as it comes, so that a killed audit can be resumed.

An audit asks for outputs of collections that it constructs. The journal answers with earlier outputs of the same
collection as long as there are any, and asks the target for the rest. So no release of the audited mechanism is drawn
twice. Only an unfinished audit can be resumed: a report describes the target at the time of the audit, and is no
evidence about the target of today.

The folder holds `settings.json`, `releases.jsonl` (one line per release: a checksum of the collection, and the
output as `scoreshield.audit.output_lines` writes it), `report.html` and `report.json` at the end, and `.lock`, which
keeps a second audit out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield._files import RunFolder
from scoreshield.audit.encoding import Failure
from scoreshield.audit.output_lines import LARGEST, convert_as_early, decode_output, encode_output
from scoreshield.audit.plain_values import is_a, make_failure
from scoreshield.audit.targets import Endpoint, ReleaseFunction, ReleaseWrapper, TargetError
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError
from scoreshield.releases.results import Release

SETTINGS, RELEASES, LOCK = RunFolder.SETTINGS, "releases.jsonl", RunFolder.LOCK
REPORTS = ("report.html", "report.json")
#: How the files of an earlier audit are named in its folder until a new audit there has a release.
_BEFORE = ".before-"
#: Settings that every earlier audit had: what is ignored, and what is added where it is missing.
_DROPPED, _ADDED = {"statistic": "auto"}, {"rows": "any"}
#: The most bytes of one line.
_LONGEST = 4 * LARGEST
#: A file of releases grows no further than about this; later releases are drawn again when an audit is resumed.
MOST_BYTES = 2**26
#: A kill loses the releases of at most this number of seconds.
_FLUSH_SECONDS = 1.0


class UnwritableJournal(FileError, TargetError):
    """A release cannot be written down. Like a target that does not answer, this ends an audit: it is no output."""


class Journal:
    """The releases of one audit, on disk.

    Args:
        folder: The folder of the audit.
        begun: When the audit was begun. No release in the folder is older.
        is_early: Whether a version began it that saved numbers as arrays, whatever they were in.

    Attributes:
        begun: When the audit was begun.
        releases_before: How many releases were in the folder before.
        releases_added: How many were added since.
        has_new_output: Whether one of these is more than an exception.
        requests_repeated: How many requests earlier runs of this audit had to repeat.
    """

    def __init__(self, folder: Path, begun: datetime, *, is_early: bool = False) -> None:
        self.path, self.begun, self._is_early = folder / RELEASES, begun, is_early
        self._before, self.requests_repeated, end = _read_releases(self.path)
        self.releases_before = sum(map(len, self._before.values()))
        self.releases_added, self.has_new_output = 0, False
        self._file, self._size = self._open(end), end
        self._flushed = time.monotonic()

    def record(self, release: ReleaseFunction) -> ReleaseFunction:
        """Wrap a release so that it answers from the journal first, and writes down every further output.

        An exception of the release is an output too, unless the target itself cannot be reached. An output that is too
        large to be read back is not written, and no output is written once the file has `MOST_BYTES`. Outputs are
        returned as they would be read back, so that an audit reads old and new ones alike; only ScoreShield releases
        are returned as they are, with their guarantee.
        """
        if self.releases_before and isinstance(release, Endpoint):
            release.has_answered = True
        return ReleaseWrapper(release, self._wrap)

    def _wrap(self, release: ReleaseFunction, query: Any) -> ReleaseFunction:
        started: set[str] = set()

        def release_or_replay(embeddings: NDArray[Any]) -> Any:
            key = _digest_rows(embeddings, query)
            is_first = key not in started
            started.add(key)
            if before := self._before.get(key):
                line = before.popleft()
                # The journal has the numbers of a ScoreShield release and not its guarantee, which an audit needs once.
                if "numbers" not in line or not is_first:
                    return decode_output(line)
            output = self._call(release, embeddings)
            output = convert_as_early(output) if self._is_early else output
            encoded = encode_output(output, len(embeddings))
            if encoded is None:
                return output
            if self._append({"on": key} | encoded):
                self.releases_added += 1
                self.has_new_output = self.has_new_output or not is_a(output, Failure)
            is_kept = is_a(output, Release) or type(output) is np.ndarray
            return output if is_kept else decode_output(encoded)

        return release_or_replay

    def note_repeated(self, requests: int) -> None:
        """Write down how many requests had to be repeated, for later runs of this audit."""
        if requests:
            self._append({"repeated": requests})

    def close(self) -> None:
        """Write everything to disk."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _call(self, release: ReleaseFunction, embeddings: NDArray[Any]) -> Any:
        before = getattr(release, "retried", 0)
        try:
            return release(embeddings)
        except TargetError:
            raise
        except BaseException as error:  # the release is not our code; it may even call sys.exit()
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user pressed Ctrl-C; in another thread only the release itself can raise it
            return make_failure(error)
        finally:
            self.note_repeated(getattr(release, "retried", 0) - before)

    def _append(self, line: dict[str, Any]) -> bool:
        """Write a line, and return whether it was written: an output must be short, and the file must not be full."""
        if self._size > MOST_BYTES and "on" in line:
            return False
        text = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(text) > _LONGEST:
            return False
        self._size += len(text)
        try:
            self._file.write(text)
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            message = f"Cannot write {self.path}: {error.strerror}; the earlier releases are saved."
            raise UnwritableJournal(message) from None
        return True

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
        again: Start again in the folder of an earlier audit, which is removed at the end of the new one. It is restored
            if the new one fails without any output but exceptions.

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
            begun, releases, is_early = _start_or_resume(run_folder, settings, plan, secret)
            journal = Journal(folder, begun, is_early=is_early)
            try:
                yield journal, releases
            finally:
                journal.close()
        except ScoreShieldError:
            if is_start and (journal is None or not journal.has_new_output):  # nothing was released: leave no trace
                _remove_traces(folder, with_folder=is_new, with_lock=not again)
                _rename_files(folder, _BEFORE, "")
            raise
        for name in (SETTINGS, RELEASES, *REPORTS):
            with contextlib.suppress(OSError):
                (folder / f"{_BEFORE}{name}").unlink(missing_ok=True)


def _start_or_resume(
    run_folder: RunFolder, settings: dict[str, Any], plan: Callable[[], int], secret: str | None
) -> tuple[datetime, int, bool]:
    """Write the settings of a new audit, or check those of the audit in the folder.

    Returns:
        When the audit was begun, its number of releases, and whether an early version began it.
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
        return begun, releases, False
    difference, begun, planned = _compare_settings(before, settings, secret)
    if difference is not None:
        raise run_folder.settings_error(difference)
    if any((run_folder.path / name).exists() for name in REPORTS):
        raise InvalidInput(
            f"The audit in {run_folder.path} is finished, and its report is about the target of that day; name a "
            "new folder, or start again there with --again."
        )
    return begun, planned, not _DROPPED.keys().isdisjoint(before["asked"])


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
        made, planned = _update_settings(dict(before["asked"]), wanted), before["releases"]
        begun = datetime.fromisoformat(before["begun"])
        is_same_address = before["address"] == _digest_secret(secret, before["salt"])
    except (ValueError, KeyError, TypeError):
        return other
    if made == wanted and is_same_address and type(planned) is int and planned > 0 and begun.tzinfo is not None:
        return None, begun, planned
    difference = next((name for name in wanted | made if made.get(name) != wanted.get(name)), None)
    return (difference or (other[0] if is_same_address else "what follows the address"), *other[1:])


def _update_settings(made: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Convert the settings of an audit that an earlier version began to what they are called now."""
    kept = {name: value for name, value in made.items() if name in wanted or _DROPPED.get(name) != value}
    return {name: value for name, value in _ADDED.items() if name in wanted} | kept


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


def _read_releases(path: Path) -> tuple[dict[str, deque[dict[str, Any]]], int, int]:
    """Read the earlier releases.

    Returns:
        The lines by collection, in order; how many requests were repeated; and where the last whole line ends. A last
        line that was cut short is left out.
    """
    lines: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
    repeated, end = 0, 0
    try:
        with _loading.open_regular_file(path) as file:
            while (text := file.readline(_LONGEST + 1)).endswith(b"\n"):
                end += len(text)
                try:
                    line = _loading.parse_json(text)
                    if "repeated" in line:
                        repeated += int(line["repeated"])
                        continue
                    key = str(line.pop("on"))
                    decode_output(line)
                    lines[key].append(line)
                except (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError):
                    raise _make_damage_error(path) from None
            if len(text) > _LONGEST:
                raise _make_damage_error(path)
    except _loading.MissingFile:
        return lines, 0, 0
    return lines, repeated, end


def _make_damage_error(path: Path) -> InvalidInput:
    return InvalidInput(f"{path} is damaged: a line holds no release; move the folder away.")


def _digest_rows(embeddings: NDArray[Any], query: Any) -> str:
    """Compute a checksum of a collection, and of the query where it is another one than that of the audit."""
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    content = repr(rows.shape).encode() + rows.tobytes()
    if query is not None:
        other = np.ascontiguousarray(query, dtype=np.float64)
        content += repr(other.shape).encode() + other.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]
