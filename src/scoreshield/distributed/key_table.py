"""The keys of releases that are not whole yet, in a table beside the entries of a ledger.

The driver keeps the key before the manifest that it seals, and notes the charge beside it in the transaction of the
charge. So a driver that was killed can go on with the same noise. The key is destroyed when the release is whole.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scoreshield._loading import make_printable
from scoreshield.distributed.key_folder import remove_abandoned_keys, remove_key_files
from scoreshield.errors import LedgerError, LedgerWarning
from scoreshield.privacy.ledger.database import RELEASE_KEYS, Session
from scoreshield.privacy.sampling.stream import KEY_BYTES

if TYPE_CHECKING:
    from scoreshield.privacy.ledger.accounts import Ledger
    from scoreshield.privacy.ledger.entries import Entry

_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {RELEASE_KEYS} (release TEXT PRIMARY KEY, folder TEXT NOT NULL, entry TEXT NOT NULL, "
    "manifest TEXT NOT NULL, place TEXT NOT NULL, secret TEXT)"
)


@dataclass(frozen=True)
class KeptKey:
    """What a ledger knows of the key of a release.

    Attributes:
        folder: The folder of the release. The key belongs to no other.
        entry: The entry of the charge, ``"NUMBER:HASH"``; empty before the charge.
        manifest: The SHA-256 of the manifest that was charged; empty before the charge.
        final: The SHA-256 of the last file of the release; empty before it is whole, and for releases of earlier
            versions of this package.
        places: The folders of keys that workers read the key from, one for each that a driver of the release used.
        secret: The key; None if it was destroyed.
    """

    folder: str
    entry: str
    manifest: str
    final: str
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
        """Delete the key of a release that was not charged; return False if it was charged, or is not there.

        The database overwrites what it deletes. Killed drivers of this machine may have left the key in a folder of
        keys, and it is removed there.
        """
        found = self.read(release)

        def delete(session: Session) -> bool:
            kept = _read(session, release)
            if kept is None or kept.entry:
                return False
            session.execute(f"DELETE FROM {RELEASE_KEYS} WHERE release = ?", (release,))
            return True

        is_dropped = self._ledger.write_beside(delete)
        for place in found.places if found is not None and is_dropped else ():
            with contextlib.suppress(OSError):
                remove_abandoned_keys(Path(place))
        return is_dropped

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
        return {release: kept for release, kept in self.list_kept().items() if kept.entry}

    def list_kept(self) -> dict[str, KeptKey]:
        """List the releases that have a key."""

        def read(session: Session) -> dict[str, KeptKey]:
            session.execute(_TABLE)
            choice = f"SELECT release FROM {RELEASE_KEYS} WHERE secret IS NOT NULL"
            names = [row[0] for row in session.execute(choice).fetchall()]
            return {name: kept for name in names if (kept := _read(session, name)) is not None}

        return self._ledger.write_beside(read)

    def destroy(self, release: str, final: str = "") -> None:
        """Destroy the key of a release, here and in each folder of keys. Its entry stays.

        A folder that this machine does not have may be one of another machine, with the key in it: a warning names it.

        Args:
            release: Its id.
            final: The SHA-256 of its last file, which the ledger keeps; empty if the release is not whole.

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
            remove_key_files(Path(place), release)

        def overwrite(session: Session) -> None:
            if _read(session, release) is not None:
                # The same number of bytes first, so that they take the place of the key in the file.
                change = f"UPDATE {RELEASE_KEYS} SET secret = ? WHERE release = ? AND secret IS NOT NULL"
                session.execute(change, ("0" * (2 * KEY_BYTES), release))
                if final:
                    note = (
                        f"UPDATE {RELEASE_KEYS} SET manifest = manifest || ? WHERE release = ? AND secret IS NOT NULL"
                    )
                    session.execute(note, (f":{final}", release))
                session.execute(change.replace("secret = ?", "secret = NULL"), (release,))

        self._ledger.write_beside(overwrite)


def find_kept_key(ledger: Ledger, release: str) -> KeptKey | None:
    """Find what a ledger knows of a release without writing to the ledger; None if it knows nothing."""
    try:
        return ledger.read_beside(lambda session: _select(session, release))
    except LedgerError:  # no distributed release was ever charged to it, and there is no table
        return None


def _read(session: Session, release: str) -> KeptKey | None:
    session.execute(_TABLE)
    return _select(session, release)


def _select(session: Session, release: str) -> KeptKey | None:
    choice = f"SELECT folder, entry, manifest, place, secret FROM {RELEASE_KEYS} WHERE release = ?"
    row = session.execute(choice, (release,)).fetchone()
    if row is None:
        return None
    # Both digests are in one column, because the tables of ledgers already written have no other.
    manifest, _, final = row[2].partition(":")
    secret = None if row[4] is None else bytes.fromhex(row[4])
    return KeptKey(row[0], row[1], manifest, final, _read_places(row[3]), secret)


def _read_places(text: str) -> tuple[str, ...]:
    """Read the folders of keys: a list, or the one path that ledgers held at first."""
    if not text.startswith("["):
        return (text,) if text else ()
    return tuple(json.loads(text))
