"""Where the secret key of a release is: beside its charge in the ledger, and with the workers while they draw.

The driver keeps the key before the manifest that it seals, and notes the charge beside it in the transaction of the
charge. So a driver that was killed can go on with the same noise. The key is destroyed when the release is whole. A
task is given a `KeyHandle`, which names the release and holds no secret. What a task is given lies in graphs,
dashboards, object stores and event files. The worker finds the key by the handle: in the memory of its process, where
an engine's plugin put it, or in a folder that only the owner may read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scoreshield import _files, _loading
from scoreshield._loading import make_printable
from scoreshield.errors import FileError, InvalidInput, LedgerError, LedgerWarning
from scoreshield.privacy.ledger.database import RELEASE_KEYS, Session
from scoreshield.privacy.sampling.stream import KEY_BYTES, KeyedStream, derive_stream

if TYPE_CHECKING:
    from scoreshield.privacy.ledger.accounts import Ledger
    from scoreshield.privacy.ledger.entries import Entry

#: The first part of what the key of a tile is derived for. Another meaning of the other parts gets another version.
_VERSION = "scoreshield tile key 1"
_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {RELEASE_KEYS} (release TEXT PRIMARY KEY, folder TEXT NOT NULL, entry TEXT NOT NULL, "
    "manifest TEXT NOT NULL, place TEXT NOT NULL, secret TEXT)"
)
_RELEASE = re.compile("[0-9a-f]{32}")
#: Closures, because the values of a dictionary appear in every dump of variables.
_held: dict[str, Callable[[], bytes]] = {}


@dataclass(frozen=True)
class KeyHandle:
    """The name of a release's key, which holds no secret and may be sent to workers.

    Attributes:
        release: The id of the release.
        folder: A folder that the workers can read, with the key in a file of the release's name; empty if an engine
            gives the key to the process of each worker.
    """

    release: str
    folder: str = ""

    def open_stream(self, *facts: str) -> KeyedStream:
        """Open the stream of one tile: the facts say which, and of which release.

        Raises:
            InvalidInput: This process has no key of the release.
        """
        return derive_stream(self._find_secret(), _VERSION, *facts)

    def seal(self, path: str, size: int, state: str) -> str:
        """Seal the state of a file, as `seal_state` does."""
        return seal_state(self._find_secret(), path, size, state)

    def _find_secret(self) -> bytes:
        held = _held.get(self.release)
        if held is not None:
            return held()
        if self.folder:
            try:
                secret = _loading.read_bytes(Path(self.folder) / self.release, most=KEY_BYTES)
            except (_loading.MissingFile, InvalidInput, OSError):
                secret = b""
            if len(secret) == KEY_BYTES:
                return secret
        raise InvalidInput(
            "This worker has no key of the release: it ended, or the folder of keys cannot be read from this machine."
        )


def hold_secret(release: str, secret: bytes) -> None:
    """Keep the key of a release in the memory of this process."""
    _held[release] = lambda: secret


def drop_secret(release: str) -> None:
    """Forget the key of a release in this process."""
    _held.pop(release, None)


@contextlib.contextmanager
def share_in_process(release: str, secret: bytes) -> Iterator[KeyHandle]:
    """Hold the key in this process, for tasks that run in it."""
    hold_secret(release, secret)
    try:
        yield KeyHandle(release)
    finally:
        drop_secret(release)


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
    path = folder / release
    _files.write_whole({path: lambda file: file.write(secret)}, private=True)
    try:
        yield KeyHandle(release, str(folder.resolve()))
    finally:
        with contextlib.suppress(FileError):  # the end of the release tries again, and reports it
            remove_key_file(folder, release)


def remove_key_file(folder: Path, release: str) -> None:
    """Remove the key of a release from a folder of keys, also what a killed driver had not put in its place yet.

    Raises:
        FileError: It cannot be removed.
    """
    for left in (folder / release, *folder.glob(f".{release}*")):
        try:
            left.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(
                f"Cannot remove the key {make_printable(str(left))}: {error.strerror}; remove it."
            ) from None


@dataclass(frozen=True)
class KeptKey:
    """What a ledger knows of the key of a release.

    Attributes:
        folder: The folder of the release. The key belongs to no other.
        entry: The entry of the charge, ``"NUMBER:HASH"``; empty before the charge.
        manifest: The SHA-256 of the manifest that was charged; empty before the charge.
        places: The folders of keys that workers read the key from, one for each that a driver of the release used.
        secret: The key; None if it was destroyed.
    """

    folder: str
    entry: str
    manifest: str
    places: tuple[str, ...]
    secret: bytes | None

    def __repr__(self) -> str:
        return f"<KeptKey of entry {self.entry[:20]}>"


class ChargedBefore(LedgerError):
    """Another driver charged the same release first."""


class ReleaseKeyTable:
    """The keys of releases that are not whole yet, in a table beside the entries of a ledger.

    Args:
        ledger: The ledger that the releases are charged to.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def read(self, release: str) -> KeptKey | None:
        """Read the key of a release; None if no driver began it with this ledger."""
        return self._ledger.write_beside(lambda session: _read(session, release))

    def add(self, release: str, secret: bytes, folder: str) -> None:
        """Keep the key of a release that is about to begin. Nothing is charged, and nothing may be drawn yet."""

        def insert(session: Session) -> None:
            session.execute(_TABLE)
            row = (release, folder, "", "", "", secret.hex())
            session.execute(f"INSERT INTO {RELEASE_KEYS} VALUES (?, ?, ?, ?, ?, ?)", row)

        self._ledger.write_beside(insert)

    def charge(self, session: Session, release: str, entry: Entry, manifest: str) -> None:
        """Note the charge of a release, in the transaction of the charge, for a manifest with this SHA-256.

        Raises:
            ChargedBefore: Another driver charged the release first, or gave it up.
        """
        kept = _read(session, release)
        if kept is None or kept.entry:
            raise ChargedBefore("Another driver charged this release first, or gave it up; nothing was charged now.")
        change = f"UPDATE {RELEASE_KEYS} SET entry = ?, manifest = ? WHERE release = ?"
        session.execute(change, (f"{entry.id}:{entry.hash}", manifest, release))
        # The folder is this release's now. A driver that was killed before its manifest left a key without a use.
        session.execute(f"DELETE FROM {RELEASE_KEYS} WHERE folder = ? AND entry = ''", (kept.folder,))

    def drop(self, release: str) -> bool:
        """Delete the key of a release that was not charged; return False if it was charged, or is not there."""

        def delete(session: Session) -> bool:
            kept = _read(session, release)
            if kept is None or kept.entry:
                return False
            session.execute(f"DELETE FROM {RELEASE_KEYS} WHERE release = ?", (release,))
            return True

        return self._ledger.write_beside(delete)

    def note_place(self, release: str, place: str) -> None:
        """Note in which folder workers will find the key, so that it is removed there whatever happens.

        A driver that goes on with a release may name another folder. The key of a killed one is in the first one still.
        """

        def change(session: Session) -> None:
            kept = _read(session, release)
            if kept is not None and place not in kept.places:
                text = json.dumps([*kept.places, place])
                session.execute(f"UPDATE {RELEASE_KEYS} SET place = ? WHERE release = ?", (text, release))

        self._ledger.write_beside(change)

    def list_charged(self) -> dict[str, KeptKey]:
        """List the releases that were charged and still have a key."""

        def read(session: Session) -> dict[str, KeptKey]:
            session.execute(_TABLE)
            choice = f"SELECT release FROM {RELEASE_KEYS} WHERE entry <> '' AND secret IS NOT NULL"
            names = [row[0] for row in session.execute(choice).fetchall()]
            return {name: kept for name in names if (kept := _read(session, name)) is not None}

        return self._ledger.write_beside(read)

    def destroy(self, release: str) -> None:
        """Destroy the key of a release that is whole, here and in each folder of keys. Its entry stays.

        A folder that this machine does not have may be one of another machine, with the key in it: a warning names it.

        Raises:
            FileError: A folder of keys still holds it.
        """
        kept = self.read(release)
        for place in () if kept is None or kept.secret is None else kept.places:
            if not Path(place).is_dir():
                sentence = (
                    f"This machine has no folder {make_printable(place)}: if another one has, remove {release} in it."
                )
                warnings.warn(sentence, LedgerWarning, stacklevel=2)
            remove_key_file(Path(place), release)

        def overwrite(session: Session) -> None:
            if _read(session, release) is not None:
                # The same number of bytes first, so that they take the place of the key in the file.
                change = f"UPDATE {RELEASE_KEYS} SET secret = ? WHERE release = ? AND secret IS NOT NULL"
                session.execute(change, ("0" * (2 * KEY_BYTES), release))
                session.execute(change.replace("secret = ?", "secret = NULL"), (release,))

        self._ledger.write_beside(overwrite)


def seal_state(secret: bytes, path: str, size: int, state: str) -> str:
    """Compute a keyed hash of the state of a file, in hexadecimal."""
    return seal_text(secret, "file", json.dumps([path, size, state]))


def seal_text(secret: bytes, purpose: str, text: str) -> str:
    """Compute a keyed hash of a text for one purpose, in hexadecimal."""
    content = f"scoreshield seal 1 {purpose} {text}".encode()
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def make_secret() -> bytes:
    """Draw a key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def make_release_id() -> str:
    """Draw the id of a release. It is public."""
    return secrets.token_hex(16)


def check_release_id(text: object) -> str:
    """Check an id that comes from a file: it becomes a file name."""
    if not isinstance(text, str) or not _RELEASE.fullmatch(text):
        raise InvalidInput("The id of the release is not valid.")
    return text


def _read(session: Session, release: str) -> KeptKey | None:
    session.execute(_TABLE)
    choice = f"SELECT folder, entry, manifest, place, secret FROM {RELEASE_KEYS} WHERE release = ?"
    row = session.execute(choice, (release,)).fetchone()
    return (
        None
        if row is None
        else KeptKey(row[0], row[1], row[2], _read_places(row[3]), None if row[4] is None else bytes.fromhex(row[4]))
    )


def _read_places(text: str) -> tuple[str, ...]:
    """Read the folders of keys: a list, or the one path that ledgers held at first."""
    if not text.startswith("["):
        return (text,) if text else ()
    return tuple(json.loads(text))
