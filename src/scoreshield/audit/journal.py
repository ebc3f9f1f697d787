"""The folder of one audit: what the target released is appended as it comes, so that a killed audit goes on.

An audit asks for outputs of collections that it makes up, in an order that its settings fix. The journal answers with
what was released for the same collection before, as long as there is any, and asks the target for the rest. Releases
of the audited mechanism are thus never drawn twice, and a resumed audit sees what an uninterrupted one would have seen.

The folder holds ``settings.json``, ``releases.jsonl`` (one line a release: a checksum of the collection, and the
output), ``report.html`` and ``report.json`` at the end, and ``.lock``, which keeps a second audit out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from scoreshield import io
from scoreshield.audit.outputs import numbers
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError
from scoreshield.experiments.runner import only_one

SETTINGS, RELEASES, LOCK = "settings.json", "releases.jsonl", ".lock"
#: Seconds of releases that a kill may cost.
_KEPT_EVERY = 1.0


class Journal:
    """The releases of one audit, on disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RELEASES
        self._before = _read(self.path)
        self.known = sum(map(len, self._before.values()))
        self.added = 0
        self._file = self._opened()
        self._flushed = time.monotonic()

    def recording(self, release: Callable[..., Any]) -> Callable[[NDArray[Any]], Any]:
        """The same release, which answers from the journal first and writes down what it is asked for beyond."""
        started: set[str] = set()

        def recorded(embeddings: NDArray[Any]) -> Any:
            key = _key(embeddings)
            first = key not in started
            started.add(key)
            if before := self._before.get(key):
                kept = before.popleft()
                # Of a ScoreShield release its numbers are kept, not its guarantee: an audit asks for that at first.
                if "numbers" not in kept or not first:
                    return _decoded(kept)
            output = release(embeddings)
            self._append({"on": key} | _encoded(output, len(embeddings)))
            return output

        return recorded

    def close(self) -> None:
        """Bring what was written to disk."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            if time.monotonic() - self._flushed > _KEPT_EVERY:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror}; the releases before are kept.") from None
        self.added += 1

    def _opened(self) -> BinaryIO:
        try:
            file = self.path.open("ab+")
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # a line that was cut short
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror}.") from None
        return file


@contextlib.contextmanager
def opened(folder: Path, asked: dict[str, Any], plan: Callable[[], int]) -> Iterator[tuple[Journal, int]]:
    """The journal of an audit with these settings, and how many releases it takes.

    Parameters
    ----------
    asked : the settings; an audit with others is refused and left as it is.
    plan : gives the number of releases where the folder is new; it is kept with the settings.
    """
    there = folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise FileError(f"Cannot use the folder {folder}: {error.strerror}.") from None
    if SETTINGS not in names and any(name != LOCK and not name.endswith(".part") for name in names):
        raise InvalidInput(f"The folder {folder} holds other files and no audit; name an empty or a new one.")
    fresh = SETTINGS not in names
    journal = None
    try:
        with only_one(folder / LOCK):
            releases = _settled(folder / SETTINGS, asked, plan)
            journal = Journal(folder)
            try:
                yield journal, releases
            finally:
                journal.close()
    except ScoreShieldError:
        if fresh and (journal is None or not journal.added):  # refused before the first release: leave no trace
            _forget(folder, whole=not there)
        raise


def _settled(path: Path, asked: dict[str, Any], plan: Callable[[], int]) -> int:
    if not path.exists():
        releases = plan()
        content = json.dumps({"asked": asked, "releases": releases}, indent=2).encode()
        io.write_whole({path: lambda file: file.write(content)})
        return releases
    try:
        before = json.loads(path.read_bytes())
        made, planned = dict(before["asked"]), before["releases"]
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        made, planned = {}, None
    wanted = json.loads(json.dumps(asked))
    if made != wanted or not isinstance(planned, int):
        changed = next((name for name in wanted if made.get(name) != wanted[name]), "those of another version")
        raise InvalidInput(
            f"The audit in {path.parent} was begun with other settings ({changed}); name another folder, or move that "
            "one away."
        )
    return planned


def _forget(folder: Path, *, whole: bool) -> None:
    with contextlib.suppress(OSError):
        for name in (SETTINGS, RELEASES, LOCK):
            (folder / name).unlink(missing_ok=True)
        if whole:
            folder.rmdir()


def _read(path: Path) -> dict[str, deque[dict[str, Any]]]:
    """What was released before, by collection, in order; a last line that was cut short is left aside."""
    found: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return found
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None
    for line in content.split(b"\n")[:-1]:
        try:
            kept = json.loads(line)
            _decoded(kept)
            found[str(kept["on"])].append(kept)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidInput(f"{path} is damaged: a line holds no release; move the folder away.") from None
    return found


def _key(embeddings: NDArray[Any]) -> str:
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    return hashlib.sha256(repr(rows.shape).encode() + rows.tobytes()).hexdigest()[:16]


def _encoded(output: Any, records: int) -> dict[str, Any]:
    """An output as JSON values that `_decoded` brings back: arrays and sets as they are, all else as its numbers."""
    if isinstance(output, set | frozenset):
        numbers(output, records)  # which refuses what are no positions
        return {"set": sorted(int(place) for place in output)}
    if isinstance(output, np.ndarray | int | float | np.number) and np.asarray(output).dtype.kind in "fiub":
        return {"array": np.asarray(output).tolist()}
    return {"numbers": numbers(output, records).tolist()}


def _decoded(kept: dict[str, Any]) -> Any:
    if "set" in kept:
        return {int(place) for place in kept["set"]}
    array = np.asarray(kept["array"] if "array" in kept else kept["numbers"])
    if array.dtype.kind not in "fiub":
        raise ValueError
    return array
