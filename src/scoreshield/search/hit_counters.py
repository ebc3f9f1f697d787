"""How often each record has answered: secret counters, in memory or in a file.

A record that had its counters back would have a second life, so they are written before an answer is returned. The file
has two slots. A new state goes to the slot that holds the older one, and is brought to the disk. A process that dies in
the middle leaves a slot whose hash does not fit; the other slot then holds the state of the last answer that anyone
saw.

The file is written in place: its size never changes, and a copy of it, or a backup that was restored as a new file, is
another file to the operating system. Such a file holds counters that may have grown elsewhere, and raises an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scoreshield import _loading
from scoreshield._files import sync_folder
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.hit_budget import Counts
from scoreshield.privacy.sampling.stream import check_process, identify_process
from scoreshield.search.totals import make_write_error

T = TypeVar("T")

#: A state of the counters: the next one, and what may be shown of the step that led there.
Step = Callable[[Counts], tuple[Counts, T]]

_MAGIC = b"scoreshield hit counters 1\n"
_PAGE = 4096
_HASH = 32
#: The bytes that a rehearsal keeps for the reference to a charge: a name of a dataset and a hash.
_MOST_PAID = 4096


class HitCounters(ABC):
    """The secret counter of each record. No method returns them and no text shows them."""

    @abstractmethod
    def update(self, step: Step[T]) -> T:
        """Replace the counters by the next ones, durably, and then return what may be shown."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("The counters of a hit budget are secret and are not pickled or copied.")


class MemoryCounters(HitCounters):
    """Counters that end with their object. A fork of the process has a copy of them, and may not use it.

    Args:
        records: Their number.
    """

    def __init__(self, records: int) -> None:
        self._process = identify_process()
        self.__counts = make_counts(records)

    def update(self, step: Step[T]) -> T:
        if self._process != identify_process():
            raise InvalidInput(
                "This search was made in another process and keeps its counters in memory: search there, or give it a "
                "'file', which processes share."
            )
        counts, shown = step(self.__counts)
        self.__counts = counts
        return shown


class CounterHeader(NamedTuple):
    """The public facts in front of the counters.

    Attributes:
        facts: What the counters belong to: the guarantee, the ids, the charge.
        records: The number of records.
    """

    facts: Mapping[str, Any]
    records: int


class CounterFile(HitCounters):
    """Counters in a file, which several processes may use in turn.

    Args:
        path: The file, made by `create_counters`.

    Attributes:
        header: Its public facts.

    Raises:
        FileError: The file cannot be read.
        InvalidInput: It holds no counters, or is a copy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0  # the number of the last state that this object read or wrote
        with self._open() as file:
            self._layout, self.header = _read_layout(file, path)
            self._read_state(file)

    def update(self, step: Step[T]) -> T:
        process = identify_process()
        with self._open() as file:
            if not self._layout.fits(file):
                raise InvalidInput(
                    f"{self._path} is not the file that this search was made with; nothing was released."
                )
            number, place, counts = self._read_state(file)
            counts, shown = step(counts)
            check_process(process)
            content = _encode_slot(number + 1, counts, self._layout.digest)
            try:
                _write_at(file, content, self._layout.offsets[1 - place])
                os.fsync(file)
            except OSError as error:
                raise make_write_error(self._path, error) from None
            self._seen = number + 1
            return shown

    def _read_state(self, file: int) -> tuple[int, int, Counts]:
        """Read the newest whole state: its number, its slot and the counters."""
        layout = self._layout
        slots = [
            (*_decode_slot(os.pread(file, layout.slot_bytes, offset), layout), place)
            for place, offset in enumerate(layout.offsets)
        ]
        number, counts, place = max(slots, key=lambda slot: slot[0])
        if counts is None:
            raise InvalidInput(f"The counters in {self._path} are damaged: make a new search, which is charged again.")
        if number < self._seen:
            raise InvalidInput(
                f"{self._path} holds older counters than this search has seen: it was restored from a backup, and "
                "records would answer more often than was promised. Make a new search, which is charged again."
            )
        self._seen = number
        return number, place, counts

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """Open the file and hold it alone. Other processes and threads wait."""
        import fcntl

        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise FileError(
                f"Cannot open the counters in {self._path}: {error.strerror}; nothing was released."
            ) from None
        process = identify_process()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            if identify_process() == process:  # a fork has a copy of the lock, which belongs to the parent
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


class _Layout(NamedTuple):
    """Where the parts of a file are."""

    file: int  # its number in the file system
    start_bytes: int
    digest: bytes  # of the start
    records: int
    offsets: tuple[int, int]
    slot_bytes: int

    @property
    def size(self) -> int:
        return self.offsets[1] + self.slot_bytes

    def fits(self, file: int) -> bool:
        """Whether a file is the one that has this layout."""
        facts = os.fstat(file)
        is_same = (facts.st_ino, facts.st_size) == (self.file, self.size)
        return is_same and os.pread(file, _HASH, self.start_bytes) == self.digest


def make_counts(records: int) -> Counts:
    """Make counters that stand at 0."""
    return np.zeros(records, dtype=np.uint8)


def check_file_locks() -> None:
    """Raise an error on a system without file locks: two processes could give a record two lives."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "The 'file' of mode 'hits' needs file locks, which Windows does not have; leave it out."
        ) from None


def create_counters(
    path: Path, records: int, facts: Mapping[str, Any], charge: Callable[[], Mapping[str, Any] | None]
) -> None:
    """Make the file of new counters.

    The whole file is written once before the charge, and written over after it, so that a full disk costs nothing.

    Args:
        path: The file, which must not exist.
        records: How many records have counters.
        facts: The public facts for the header.
        charge: Charges the budget, and returns the reference to the charge, which the header holds as ``paid``.

    Raises:
        FileError: The file cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    charged = False
    try:
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, {**facts, "paid": " " * _MOST_PAID}, records)
            paid = charge()
            charged = True
            _write_all(file, {**facts, "paid": paid}, records)
        finally:
            os.close(file)
        fresh.replace(path)
        sync_folder(path.parent)
    except FileNotFoundError:
        raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.") from None
    except OSError as error:
        if isinstance(error, FileError):
            raise
        if charged:
            raise FileError(
                f"Cannot write {path}: {error.strerror}; the hit budget was charged, and nothing was released."
            ) from None
        raise make_write_error(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def _write_all(file: int, facts: Mapping[str, Any], records: int) -> None:
    number = os.fstat(file).st_ino
    header = json.dumps({"file": number, "records": records, "facts": facts}).encode()
    start = _MAGIC + len(header).to_bytes(8, "big") + header
    layout, counts = _make_layout(number, start, records), make_counts(records)
    _write_at(file, start + layout.digest, 0)
    for place, offset in enumerate(layout.offsets):
        _write_at(file, _encode_slot(place, counts, layout.digest), offset)
    os.ftruncate(file, layout.size)  # after the writing: the space of a rehearsal stays in use
    os.fsync(file)


def _make_layout(number: int, start: bytes, records: int) -> _Layout:
    first = _round_up_to_page(len(start) + _HASH)
    slot = 8 + records + _HASH
    offsets = (first, first + _round_up_to_page(slot))
    return _Layout(number, len(start), hashlib.sha256(start).digest(), records, offsets, slot)


def _round_up_to_page(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _read_layout(file: int, path: Path) -> tuple[_Layout, CounterHeader]:
    """Read the header, and check that this is the file that it was written to."""
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidInput(f"{path} is not a regular file.")
    layout = header = None
    front = len(_MAGIC) + 8
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        start = os.pread(file, front, 0)
        length = int.from_bytes(start[len(_MAGIC) :], "big")
        if start[: len(_MAGIC)] == _MAGIC and front + length + _HASH <= facts.st_size:
            start = os.pread(file, front + length, 0)
            content = _loading.parse_json(start[front:])
            header = CounterHeader(content["facts"], content["records"])
            layout = _make_layout(content["file"], start, header.records)
    if layout is None or header is None or not layout._replace(file=facts.st_ino).fits(file):
        raise InvalidInput(f"{path} holds no counters of a hit budget, or was changed.")
    if layout.file != facts.st_ino:
        raise InvalidInput(
            f"{path} is a copy or was restored from a backup, so that its counters may be old: use the file itself, or "
            "make a new search, which is charged again."
        )
    return layout, header


def _encode_slot(number: int, counts: Counts, digest: bytes) -> bytes:
    content = number.to_bytes(8, "big") + np.ascontiguousarray(counts, dtype=np.uint8).tobytes()
    return content + hashlib.sha256(digest + content).digest()


def _decode_slot(slot: bytes, layout: _Layout) -> tuple[int, Counts | None]:
    """Read the number and the counters of a slot; (-1, None) where its writing was cut short."""
    content, found = slot[:-_HASH], slot[-_HASH:]
    if len(slot) != layout.slot_bytes or hashlib.sha256(layout.digest + content).digest() != found:
        return -1, None
    counts = np.frombuffer(content, dtype=np.uint8, offset=8)
    return int.from_bytes(content[:8], "big"), counts


def _write_at(file: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
