"""The driver of a distributed release: it charges once, runs the blocks, and makes the release whole.

The order is: key in the ledger, manifest, check of the rows, charge, blocks, last file, end of the key. A driver that
is killed at any point is followed by another with the same arguments. That one finds in the folder and in the ledger
how far the first one came, and goes on: without a second charge, and with the same noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield._loading import make_printable
from scoreshield._types import AccountLike
from scoreshield.distributed import storage
from scoreshield.distributed.blocks import BlockFacts, BlockTask, draw_last_values
from scoreshield.distributed.duplicates import find_duplicates
from scoreshield.distributed.engines.base import Engine
from scoreshield.distributed.keys import (
    ChargedBefore,
    KeptKey,
    KeyHandle,
    ReleaseKeyTable,
    make_release_id,
    make_secret,
    share_in_process,
)
from scoreshield.distributed.manifest import Manifest
from scoreshield.distributed.sources.facts import SourceFacts
from scoreshield.distributed.sources.opening import describe_again
from scoreshield.distributed.storage import ReleaseFolder
from scoreshield.errors import FileError, InvalidInput, LedgerError, ScoreShieldError
from scoreshield.privacy.adjacency import Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.accounts import Account, Ledger, PendingCharge
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.privacy.provenance import Provenance

#: Called with the name of the step, how many blocks are done, and how many there are.
StepProgress = Callable[[str, int, int], None]
#: The format of the last file. A number never changes meaning.
_FORMAT = 1


@dataclass(frozen=True)
class Driver:
    """Makes one release.

    Attributes:
        folder: Where the release goes.
        engine: What runs the tasks.
        account: What is charged; None charges nothing.
        seed: None for a secret key. A research seed gives a key that anyone can compute, for experiments.
        progress: Called after each block.
    """

    folder: ReleaseFolder
    engine: Engine
    account: Account | None
    seed: int | None
    progress: StepProgress | None = None

    def make(self, wanted: Manifest) -> None:
        """Make the release, or go on with it, until its folder is whole.

        Args:
            wanted: What is asked for, not sealed. If the folder holds a begun release of the same request, it goes on.
        """
        if self.seed is not None:  # two seeds are two releases
            wanted = replace(wanted, options=wanted.options | {"seed": self.seed})
        self._sweep()
        try:
            begun = self._begin(wanted)
            if begun is None:  # it is whole already
                return None
            manifest, secret = begun
            provenance = self._charge(manifest, wanted)
        except ChargedBefore:  # by a driver that runs at the same time
            return self.make(wanted)
        with self._share_key(manifest, secret) as handle:
            facts = self._run(manifest, handle, "release")
            last = self._draw_last_values(manifest, secret, facts)
        self._finish(manifest, facts, provenance, last)
        self._destroy_key(manifest.release)
        return None

    def _begin(self, wanted: Manifest) -> tuple[Manifest, bytes] | None:
        """Begin the release, or find its manifest and key; None if it is whole.

        Raises:
            InvalidInput: The folder holds something else, or a release whose key this driver does not have.
        """
        where = make_printable(self.folder.address)
        found = self.folder.read(storage.MANIFEST)
        if found is None:
            if any(not storage.is_temporary(name) for name in self.folder.list_names()):
                raise InvalidInput(f"{where} is not empty; name a new folder.")
            return self._write_manifest(wanted)
        begun = Manifest.from_bytes(found)
        kept = self._read_key(begun.release)
        secret = kept.secret if self.seed is None and kept is not None else None
        if self.seed is not None:
            secret = _make_research_secret(self.seed)
        is_whole = self.folder.read(storage.FINAL) is not None
        if secret is None and not is_whole:
            begun.check_version()
            raise self._make_lost_error(kept)
        expected = begun if secret is None else wanted.seal(begun.release, secret)
        is_same = begun.describe_request() == wanted.describe_request()
        if not is_same or (not is_whole and expected.to_bytes() != found):
            begun.check_version()
            # It is never replaced: another driver may be about to charge it, and would write its parts here.
            raise InvalidInput(
                f"{where} holds a release that was begun with other arguments, or of files that changed since: give "
                "the same arguments, or name another folder."
            )
        if is_whole:
            self._check_whole(begun, kept)
            return None
        if secret is None:
            raise self._make_lost_error(kept)
        return expected, secret

    def _write_manifest(self, wanted: Manifest) -> tuple[Manifest, bytes] | None:
        """Keep a new key in the ledger, and write the manifest that it seals."""
        release = make_release_id()
        secret = make_secret() if self.seed is None else _make_research_secret(self.seed)
        manifest = wanted.seal(release, secret)
        if self._table is not None:
            self._table.add(release, secret, self.folder.address)
        if self.folder.put_or_read(storage.MANIFEST, manifest.to_bytes()) == manifest.to_bytes():
            return manifest, secret
        if self._table is not None:  # another driver was first
            self._table.drop(release)
        return self._begin(wanted)

    def _make_lost_error(self, kept: KeptKey | None) -> ScoreShieldError:
        if kept is not None:
            return LedgerError(
                "This release was charged and its key destroyed, but it is not whole: it was abandoned, or its last "
                "file is gone. Name a new folder."
            )
        return InvalidInput(
            f"{make_printable(self.folder.address)} holds a release whose key is lost: without a ledger, or with "
            "another one, a release cannot go on in a new process. Name a new folder."
        )

    def _check_whole(self, manifest: Manifest, kept: KeptKey | None) -> None:
        """Check that a whole release is the one that was charged, and end its key."""
        _, final = read_final(self.folder)
        if self._table is None:
            return
        if kept is None or not _is_of_charge(final, kept):
            raise InvalidInput(
                f"The release in {make_printable(self.folder.address)} was not charged to this ledger, or was copied: "
                "open it with open_release, or name a new folder."
            )
        self._state_provenance(kept.entry)
        self._destroy_key(manifest.release)

    @property
    def _table(self) -> ReleaseKeyTable | None:
        return None if self.account is None or self.seed is not None else ReleaseKeyTable(self.account.ledger)

    def _read_key(self, release: str) -> KeptKey | None:
        kept = None if self._table is None else self._table.read(release)
        if kept is not None and kept.folder != self.folder.address:
            raise InvalidInput(
                "This release was begun in another folder, and a key is for one folder: go on there, or name a new one."
            )
        return kept

    def _charge(self, manifest: Manifest, wanted: Manifest) -> Provenance | None:
        """Charge the release, unless it was charged.

        Raises:
            ScoreShieldError: The budget does not cover it, a row is wrong, or the charge failed. Then the folder is
                empty again.
            ChargedBefore: Another driver charged it, or gave it up, at the same time.
        """
        kept, digest = self._read_key(manifest.release), storage.compute_digest(manifest.to_bytes())
        if kept is not None and kept.entry:
            if kept.manifest != digest:
                raise InvalidInput("The manifest of this release was changed after the charge; name a new folder.")
            return self._state_provenance(kept.entry)
        if self.seed is None and any(name.startswith(storage.PARTS) for name in self.folder.list_names()):
            raise self._make_lost_error(None)
        try:
            # First, so that a budget that is too small is found before all rows are read.
            pending = self._reserve(manifest)
            self._check(manifest, wanted.source)
            return None if pending is None else self._commit(pending, manifest.release, digest)
        except ChargedBefore:
            raise
        except ScoreShieldError:
            self._give_up(manifest)
            raise

    def _commit(self, pending: PendingCharge, release: str, digest: str) -> Provenance:
        """Charge the release, and note it beside its key in the same transaction."""
        account, table = self.account, self._table
        assert account is not None  # only an account reserves
        assert table is not None  # and it takes no research seed

        def note_charge(session: Session, entries: Sequence[Entry]) -> None:
            table.charge(session, release, entries[0], digest)

        return Provenance.of_entry(pending.commit(record=note_charge)[0], account.who)

    def _give_up(self, manifest: Manifest) -> None:
        """Empty the folder of a release that was not charged, so that it takes another one.

        Drivers that make the same release at once share one row of the ledger. Without the row none can charge.
        """
        if self._table is None or self._table.drop(manifest.release):
            self._remove_checks()
            self.folder.remove(storage.MANIFEST)

    def _remove_checks(self) -> None:
        for name in self.folder.list_names():
            if name.startswith(f"{storage.CHECKS}/"):
                self.folder.remove(name)

    def _sweep(self) -> None:
        """End the keys of releases that are whole, where a driver was killed before it could."""
        if self._table is None:
            return
        for release, kept in self._table.list_charged().items():
            with contextlib.suppress(Exception):  # a folder that is not whole, damaged, or not reached now
                if _is_of_charge(read_final(storage.open_folder(kept.folder))[1], kept):
                    self._destroy_key(release)

    def _share_key(self, manifest: Manifest, secret: bytes) -> AbstractContextManager[KeyHandle]:
        """Give the key to the workers. The ledger knows the place first, so that the key is removed there."""
        if self._table is not None and self.engine.key_place:
            self._table.note_place(manifest.release, self.engine.key_place)
        return self.engine.share_key(manifest.release, secret)

    def _check(self, manifest: Manifest, source: SourceFacts) -> None:
        """Let the workers read all rows and ids before the charge, and see that no file changed meanwhile."""
        if manifest.options["checked"] or manifest.source.ids:
            self._run(manifest, KeyHandle(manifest.release), "check")
        if manifest.source.ids:
            digest = storage.compute_digest(manifest.to_bytes())
            find_duplicates(self.folder, digest, manifest.count_blocks, manifest.source.rows)
        if describe_again(source) != source:
            raise InvalidInput("A file of the collection changed while it was checked; nothing was charged.")

    def _reserve(self, manifest: Manifest) -> PendingCharge | None:
        if self.account is None:
            return None
        return self.account.reserve([manifest.read_guarantee()], adjacency=Replacement())

    def _state_provenance(self, text: str) -> Provenance:
        assert self.account is not None  # a kept key comes from its ledger
        entry = self.account.ledger.entry(text.partition(":")[2])
        if entry is None:
            raise LedgerError("The ledger has lost the entry of this release; verify the ledger.")
        if entry.dataset != self.account.dataset:
            raise InvalidInput("This release was charged to another account of the ledger; name that one to go on.")
        return Provenance.of_entry(entry, self.account.who)

    def _run(self, manifest: Manifest, handle: KeyHandle, step: Any) -> list[BlockFacts]:
        task = BlockTask(self.folder.address, storage.compute_digest(manifest.to_bytes()), handle, step)
        total = manifest.count_blocks if step == "check" else manifest.count_parts
        found: dict[int, BlockFacts] = {}
        with contextlib.ExitStack() as at_end:
            answers = self.engine.run(task, range(total))
            if isinstance(answers, Generator):
                at_end.callback(answers.close)  # an error of the progress function ends the tasks before the key goes
            for facts in answers:
                found[facts.number] = facts
                if self.progress is not None:
                    self.progress(step, len(found), total)
        if len(found) != total:
            raise FileError(f"{total - len(found):,} of {total:,} blocks did not report; start the release again.")
        return [found[number] for number in range(total)]

    def _draw_last_values(self, manifest: Manifest, secret: bytes, facts: list[BlockFacts]) -> dict[str, Any]:
        with share_in_process(manifest.release, secret) as handle:
            return draw_last_values(manifest, handle, self.folder, facts)

    def _finish(
        self, manifest: Manifest, facts: list[BlockFacts], provenance: Provenance | None, last: dict[str, Any]
    ) -> None:
        # What a killed task left could differ from the part in the last bit of a clean score.
        for name in filter(storage.is_temporary, self.folder.list_names()):
            if not any(last in name for last in (storage.CERTIFICATE, storage.FINAL)):  # another driver may write them
                self.folder.remove(name)
        guarantee = replace(manifest.read_guarantee(), provenance=provenance)
        content = {
            "format": _FORMAT,
            "manifest": storage.compute_digest(manifest.to_bytes()),
            "guarantee": guarantee.to_dict(),
            **last,
            "parts": [{"size": one.size, "sha256": one.digest} for one in facts],
        }
        self.folder.put_or_read(storage.CERTIFICATE, str(guarantee).encode())
        ours = json.dumps(content).encode()
        written = self.folder.put_or_read(storage.FINAL, ours)
        # Another driver of this release writes the same, but for the name of who runs it.
        if written != ours and _describe_final(written) != _describe_final(ours):
            raise InvalidInput(
                f"{make_printable(self.folder.address)} holds a {storage.FINAL} that this release did not write: "
                "remove that file, and start the same release again to go on."
            )

    def _destroy_key(self, release: str) -> None:
        if self._table is not None:
            self._table.destroy(release)


def begin_manifest(guarantee: Guarantee, **facts: Any) -> Manifest:
    """Make the manifest of a request, which gets an id and a snapshot when it is sealed."""
    # Through JSON, so that it is equal to the manifest when it is read back.
    return Manifest(release="", guarantee=json.loads(json.dumps(guarantee.to_dict())), **facts)


def check_cluster_account(ledger: AccountLike | None) -> Account | None:
    """Check for an account whose ledger keeps the key of a release beside its charge."""
    if ledger is not None and not isinstance(ledger, Account):
        raise InvalidInput("A distributed release is charged to an account of a Ledger: ledger.account(name).")
    return ledger


def abandon_release(folder: str | Path, *, ledger: Ledger) -> int:
    """Destroy the key of a charged release that cannot go on, for example because a file of its collection changed.

    The charge stays in the ledger. Parts that are in the folder stay as they are, because they were charged. No driver
    can go on with the release, and nothing can be drawn with its key again. The folder need not exist anymore.

    Args:
        folder: The folder of the release, as it was given to the release.
        ledger: The ledger that the release was charged to.

    Returns:
        How many keys were destroyed.

    Raises:
        InvalidInput: The ledger holds no key of a charged release in this folder.
        FileError: A folder of keys still holds the key.
    """
    address, table = storage.open_folder(folder).address, ReleaseKeyTable(ledger)
    releases = [release for release, kept in table.list_charged().items() if kept.folder == address]
    if not releases:
        raise InvalidInput(
            f"The ledger holds no key of a charged release in {make_printable(address)}: the release is whole, was "
            "never charged, or was made in another folder."
        )
    for release in releases:
        table.destroy(release)
    return len(releases)


def read_final(folder: ReleaseFolder) -> tuple[Manifest, dict[str, Any]]:
    """Read the manifest and the last file of a whole release.

    Raises:
        InvalidInput: The release is not whole, or damaged.
    """
    where = make_printable(folder.address)
    written, final = folder.read(storage.MANIFEST), folder.read(storage.FINAL)
    if written is None:
        raise InvalidInput(f"{where} holds no release in parts.")
    if final is None:
        raise InvalidInput(f"{where} holds no whole release; make the release again with the same arguments to go on.")
    try:
        content = _loading.parse_json(final)
        if content["format"] != _FORMAT or content["manifest"] != storage.compute_digest(written):
            raise ValueError
        manifest = Manifest.from_bytes(written)
        facts = [(part["sha256"], part["size"]) for part in content["parts"]]
        kinds = (content["tie_break"], int), (content["guarantee"], dict), *((name, str) for name, _ in facts)
        if len(facts) != manifest.count_parts or not all(isinstance(value, kind) for value, kind in kinds):
            raise ValueError
        if content["tie_break"] < 0:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"The last file of the release in {where} is damaged or of a later version.") from None
    return manifest, content


def _is_of_charge(final: dict[str, Any], kept: KeptKey) -> bool:
    """Whether a last file is of the release that was charged. Anyone who can write to the folder can plant one."""
    provenance = final["guarantee"].get("provenance")
    entry = provenance.get("entry") if isinstance(provenance, dict) else None
    return bool(kept.entry) and (entry, final["manifest"]) == (kept.entry, kept.manifest)


def _describe_final(written: bytes) -> str | None:
    """Return the content of a last file as a text, without who made it; None if it is damaged."""
    try:
        final = _loading.parse_json(written)
        guarantee = dict(final["guarantee"])
        provenance = guarantee.pop("provenance", {})
        return json.dumps([final | {"guarantee": guarantee}, provenance.get("entry")], sort_keys=True)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _make_research_secret(seed: int) -> bytes:
    return hashlib.sha256(f"scoreshield research key {seed}".encode()).digest()
