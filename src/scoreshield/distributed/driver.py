"""The driver of a distributed release: it charges once, runs the blocks, and makes the release whole.

The order is: key in the ledger, manifest, check of the rows, charge, blocks, last file, end of the key. The check may
compute blocks already; they stay encrypted until the charge. A driver that is killed at any point is followed by
another with the same arguments. That one finds in the folder and in the ledger how far the first one came, and goes on:
without a second charge, and with the same noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield._loading import make_printable
from scoreshield._types import AccountLike
from scoreshield.distributed import storage
from scoreshield.distributed.blocks import BlockFacts, BlockTask, Step, draw_last_values
from scoreshield.distributed.duplicates import find_duplicates
from scoreshield.distributed.engines.base import Engine
from scoreshield.distributed.key_table import ChargedBefore, KeptKey, ReleaseKeyTable
from scoreshield.distributed.keys import KeyHandle, make_release_id, make_secret, seal_text, share_in_process
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
#: The format of the last file. A number never changes meaning. Format 1 has no seal; it can be read, and is not made.
_FORMAT = 2


@dataclass(frozen=True)
class Driver:
    """Makes one release.

    Attributes:
        folder: Where the release goes.
        engine: What runs the tasks.
        account: What is charged; None charges nothing.
        seed: None for a secret key. A research seed gives a key that anyone can compute, for experiments.
        progress: Called after each block.
        device: Where the workers multiply pairs of records.
    """

    folder: ReleaseFolder
    engine: Engine
    account: Account | None
    seed: int | None
    progress: StepProgress | None = None
    device: str = "cpu"

    def make(self, wanted: Manifest) -> None:
        """Make the release, or go on with it, until its folder is whole.

        Args:
            wanted: What is asked for, not sealed. If the folder holds a begun release of the same request, it goes on.
        """
        if self.seed is not None:  # two seeds are two releases
            wanted = replace(wanted, options=wanted.options | {"seed": self.seed})
        self._sweep()
        begun = self._begin(wanted)
        if begun is None:  # it is whole already
            return None
        manifest, secret = begun
        try:
            with self._share_key(manifest, secret) as handle:
                provenance = self._charge(manifest, wanted.source, handle)
                facts = self._run(manifest, handle, "release")
                last = self._draw_last_values(manifest, secret, facts)
            self._check_not_abandoned(manifest)
            self._finish(manifest, secret, facts, provenance, last)
        except ChargedBefore:  # by a driver that runs at the same time, or given up by it
            if self.folder.read(storage.MANIFEST) is None:
                _remove_checks(self.folder)  # tasks of this driver may have written after that one removed the files
            return self.make(wanted)
        except ScoreShieldError:
            # A driver that made the same release at the same time has ended the key, or removed what this one wrote.
            if not self._is_finished(manifest, secret):
                raise
        self._destroy_key(manifest.release)
        self._tidy(manifest.release)
        return None

    def _begin(self, wanted: Manifest) -> tuple[Manifest, bytes] | None:
        """Begin the release, or find its manifest and key; None if it is whole.

        Raises:
            InvalidInput: The folder holds something else, or a release whose key this driver does not have.
        """
        where = make_printable(self.folder.address)
        found = self.folder.read(storage.MANIFEST)
        if found is None:
            if not all(map(storage.is_left_over, self.folder.list_names())):
                if self.folder.read(storage.MANIFEST) is not None:  # another driver began just now
                    return self._begin(wanted)
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
            self._tidy(begun.release)
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
        try:
            is_first = self.folder.put_or_read(storage.MANIFEST, manifest.to_bytes()) == manifest.to_bytes()
        except ScoreShieldError:
            if self._table is not None and self.folder.read(storage.MANIFEST) is None:
                self._table.drop(release)
            raise
        if is_first:
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
        final = read_final(self.folder)[1]
        if self._table is None:
            return
        if kept is None or not is_of_charge(self.folder, kept):
            where = make_printable(self.folder.address)
            if kept is not None and kept.secret is not None and _names_charge(final, kept):
                raise _make_final_error(self.folder)
            raise InvalidInput(
                f"The release in {where} was not charged to this ledger, was copied, or was changed after it was "
                "charged: open it with open_release, or name a new folder."
            )
        self._state_provenance(kept.entry)
        self._destroy_key(manifest.release)

    def _check_not_abandoned(self, manifest: Manifest) -> None:
        """Raise an error if the key was destroyed while the tasks ran: the ledger would not take the last file."""
        kept = self._read_key(manifest.release)
        if kept is not None and kept.secret is None:  # by `abandon_release`, or by a driver that made the release whole
            raise self._make_lost_error(kept)

    def _is_finished(self, manifest: Manifest, secret: bytes) -> bool:
        """Whether the folder holds this release, made whole by another driver."""
        with contextlib.suppress(ScoreShieldError):
            found, final = read_final(self.folder)
            return found.to_bytes() == manifest.to_bytes() and _has_seal(final, secret)
        return False

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

    def _charge(self, manifest: Manifest, source: SourceFacts, handle: KeyHandle) -> Provenance | None:
        """Charge the release, unless it was charged.

        Raises:
            ScoreShieldError: The budget does not cover it, a row is wrong, or the charge failed. Then the folder is
                empty again.
            ChargedBefore: Another driver charged it, or gave it up, at the same time.
        """
        has_parts = self._has_parts()  # looked for first: another driver may charge now, and then write parts
        kept, digest = self._read_key(manifest.release), storage.compute_digest(manifest.to_bytes())
        if kept is not None and kept.entry:
            if kept.manifest != digest:
                raise InvalidInput("The manifest of this release was changed after the charge; name a new folder.")
            return self._state_provenance(kept.entry)
        if self.seed is None and has_parts:
            raise self._make_lost_error(None)
        try:
            # First, so that a budget that is too small is found before all rows are read.
            pending = self._reserve(manifest)
            self._check(manifest, source, handle)
            return None if pending is None else self._commit(pending, manifest.release, digest)
        except ChargedBefore:
            raise
        except ScoreShieldError:
            self._give_up(manifest)
            kept = self._read_key(manifest.release)
            if kept is not None and kept.entry:  # by a driver that runs at the same time: what failed was decided there
                raise ChargedBefore("Another driver charged this release; nothing was charged now.") from None
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

        Drivers that make the same release at once share one row of the ledger. Without the row none can charge. Where
        there is no ledger, parts show that another driver is beyond its check.
        """
        is_given_up = not self._has_parts() if self._table is None else self._table.drop(manifest.release)
        if is_given_up:
            # The manifest first: a task that still runs removes what it wrote if there is none.
            self.folder.remove(storage.MANIFEST)
            _remove_checks(self.folder)
            self.engine.remove_keys(manifest.release)

    def _has_parts(self) -> bool:
        return any(name.startswith(f"{storage.PARTS}/") for name in self.folder.list_names())

    def _sweep(self) -> None:
        """End the keys of releases that are whole, where a driver was killed before it could."""
        if self._table is None:
            return
        for release, kept in self._table.list_charged().items():
            with contextlib.suppress(Exception):  # a folder that is not whole, damaged, or not reached now
                if is_of_charge(storage.open_folder(kept.folder), kept):
                    self._destroy_key(release, storage.open_folder(kept.folder))
                    self.engine.remove_keys(release)

    @contextlib.contextmanager
    def _share_key(self, manifest: Manifest, secret: bytes) -> Iterator[KeyHandle]:
        """Give the key to the workers. The ledger knows the place first, so that the key is removed there.

        Raises:
            ScoreShieldError: The workers cannot have it. If the release was not charged, its folder is empty again.
        """
        if self._table is not None and self.engine.key_place:
            self._table.note_place(manifest.release, self.engine.key_place)
        with contextlib.ExitStack() as at_end:
            try:
                handle = at_end.enter_context(self.engine.share_key(manifest.release, secret))
            except ScoreShieldError:
                if not self._has_parts():
                    self._give_up(manifest)
                raise
            yield handle

    def _check(self, manifest: Manifest, source: SourceFacts, handle: KeyHandle) -> None:
        """Let the workers read all rows and ids before the charge, and see that no file changed meanwhile."""
        try:
            if self.device != "cpu":
                self.engine.check_device(self.device)
            self._run(manifest, handle, "check")
            if manifest.source.ids:
                find_duplicates(self.folder, handle.name, manifest.count_blocks, manifest.source.rows)
        except ScoreShieldError:
            with contextlib.suppress(FileError):
                self._check_state(source)  # a file that changed is the reason for most errors, and the better sentence
            raise
        self._check_state(source)

    @staticmethod
    def _check_state(source: SourceFacts) -> None:
        if describe_again(source) != source:
            raise InvalidInput("A file of the collection changed while it was checked; nothing was charged.") from None

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

    def _run(self, manifest: Manifest, handle: KeyHandle, step: Step) -> list[BlockFacts]:
        task = BlockTask(self.folder.address, storage.compute_digest(manifest.to_bytes()), handle, step, self.device)
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
        self,
        manifest: Manifest,
        secret: bytes,
        facts: list[BlockFacts],
        provenance: Provenance | None,
        last: dict[str, Any],
    ) -> None:
        # What a killed task left could differ from the part in the last bit of a clean score.
        for name in filter(storage.is_temporary, self.folder.list_names()):
            if not any(kept in name for kept in (storage.CERTIFICATE, storage.FINAL)):  # another driver may write them
                self.folder.remove(name)
        _remove_checks(self.folder)  # what is in them is in the parts now, or a killed driver left it
        guarantee = replace(manifest.read_guarantee(), provenance=provenance)
        content = {
            "format": _FORMAT,
            "manifest": storage.compute_digest(manifest.to_bytes()),
            "guarantee": guarantee.to_dict(),
            **last,
            "parts": [{"size": one.size, "sha256": one.digest} for one in facts],
        }
        self.folder.put_or_read(storage.CERTIFICATE, str(guarantee).encode())
        ours = json.dumps(content | {"seal": _seal_final(content, secret)}).encode()
        # Another driver of this release writes the same, but for the name of who runs it.
        if self.folder.put_or_read(storage.FINAL, ours) != ours and not self._is_finished(manifest, secret):
            raise _make_final_error(self.folder)
        self._repair_certificate()

    def _repair_certificate(self) -> None:
        """Replace a certificate that is not the one of the whole release: of another driver, or put there."""
        certificate = make_certificate(read_final(self.folder)[1])
        if self.folder.read(storage.CERTIFICATE) != certificate:
            self.folder.remove(storage.CERTIFICATE)
            self.folder.put_or_read(storage.CERTIFICATE, certificate)

    def _tidy(self, release: str) -> None:
        """Remove what drivers that were killed, or overtaken, left of a whole release. No one can open it anymore."""
        _remove_checks(self.folder)
        self.engine.remove_keys(release)

    def _destroy_key(self, release: str, folder: ReleaseFolder | None = None) -> None:
        """End the key of a whole release, and note in the ledger which last file it has.

        Raises:
            InvalidInput: The last file was replaced since it was checked. Then the key stays.
        """
        if self._table is None:
            return
        place = folder or self.folder
        final, kept = place.read(storage.FINAL), self._table.read(release)
        if final is None or (kept is not None and kept.secret is not None and not _is_last_file(final, place, kept)):
            raise _make_final_error(place)
        self._table.destroy(release, storage.compute_digest(final))


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
    """Destroy the key of a release that cannot go on, for example because a file of its collection changed.

    A charge stays in the ledger, and parts that are in the folder stay as they are, because they were charged. Of a
    release that was not charged, all that is left is removed, so that the folder takes another one. No driver can go on
    with the release, and nothing can be drawn with its key again. The folder need not exist anymore. If the release is
    whole already, it stays valid.

    End the driver of the release first, if it runs. After the charge it stops before the last file. Before the charge
    it begins the same release again, and charges it.

    Args:
        folder: The folder of the release, as it was given to the release.
        ledger: The ledger that the release is charged to.

    Returns:
        How many keys were destroyed.

    Raises:
        InvalidInput: The ledger holds no key of a release in this folder.
        FileError: A folder of keys still holds the key.
    """
    opened, table = storage.open_folder(folder), ReleaseKeyTable(ledger)
    releases = {release: kept for release, kept in table.list_kept().items() if kept.folder == opened.address}
    if not releases:
        raise InvalidInput(
            f"The ledger holds no key of a release in {make_printable(opened.address)}: the release is whole, was "
            "abandoned before, or was made in another folder or with another ledger."
        )
    for release, kept in releases.items():
        if kept.entry or not table.drop(release):
            table.destroy(release, _find_last_file(opened, kept))
        else:
            _empty_folder(opened, release)
    return len(releases)


def _find_last_file(folder: ReleaseFolder, kept: KeptKey) -> str:
    """Find the SHA-256 of the last file, if a driver wrote it and was killed before it ended the key; else empty."""
    with contextlib.suppress(ScoreShieldError):  # a folder that is gone, or not reached now
        final = folder.read(storage.FINAL)
        if final is not None and kept.secret is not None and _is_last_file(final, folder, kept):
            return storage.compute_digest(final)
    return ""


def _empty_folder(folder: ReleaseFolder, release: str) -> None:
    """Remove what a release without a charge left in its folder."""
    with contextlib.suppress(InvalidInput):  # of a file that is no manifest
        if Manifest.from_bytes(folder.read(storage.MANIFEST) or b"").release == release:
            folder.remove(storage.MANIFEST)
    _remove_checks(folder)


def _remove_checks(folder: ReleaseFolder) -> None:
    for name in folder.list_names():
        if name.startswith(f"{storage.CHECKS}/"):
            folder.remove(name)


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
        if content["format"] not in range(1, _FORMAT + 1) or content["manifest"] != storage.compute_digest(written):
            raise ValueError
        manifest = Manifest.from_bytes(written)
        if content["format"] != manifest.format:
            raise ValueError
        facts = [(part["sha256"], part["size"]) for part in content["parts"]]
        kinds = (content["tie_break"], int), (content["guarantee"], dict), *((name, str) for name, _ in facts)
        if len(facts) != manifest.count_parts or not all(isinstance(value, kind) for value, kind in kinds):
            raise ValueError
        if content["tie_break"] < 0:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"The last file of the release in {where} is damaged or of a later version.") from None
    return manifest, content


def is_of_charge(folder: ReleaseFolder, kept: KeptKey) -> bool:
    """Whether a whole release is the one that was charged. Anyone who can write to the folder can plant its files.

    While the ledger has the key, the seal of the last file shows it. Later the ledger has the digest of that file.

    Raises:
        InvalidInput: The release is not whole, or damaged.
    """
    manifest, final = read_final(folder)
    if not _names_charge(final, kept):
        return False
    if manifest.format == 1:  # before there were seals
        return True
    if kept.secret is not None:
        return _has_seal(final, kept.secret)
    return storage.compute_digest(folder.read(storage.FINAL) or b"") == kept.final


def make_certificate(final: dict[str, Any]) -> bytes:
    """Write the certificate of a whole release from its last file."""
    return str(Guarantee.from_dict(final["guarantee"])).encode()


def _names_charge(final: dict[str, Any], kept: KeptKey) -> bool:
    """Whether a last file names the charge and the manifest that the ledger has."""
    provenance = final["guarantee"].get("provenance")
    entry = provenance.get("entry") if isinstance(provenance, dict) else None
    return bool(kept.entry) and (entry, final["manifest"]) == (kept.entry, kept.manifest)


def _seal_final(content: dict[str, Any], secret: bytes) -> str:
    return seal_text(secret, "release", json.dumps(content, sort_keys=True))


def _has_seal(final: dict[str, Any], secret: bytes) -> bool:
    """Whether a last file has the seal of the key over everything else in it."""
    content = {name: value for name, value in final.items() if name != "seal"}
    return hmac.compare_digest(str(final.get("seal", "")).encode(), _seal_final(content, secret).encode())


def _is_last_file(final: bytes, folder: ReleaseFolder, kept: KeptKey) -> bool:
    """Whether bytes are the last file of a charge, while the ledger has the key: only format 1 has no seal of it."""
    assert kept.secret is not None
    try:
        content = _loading.parse_json(final)
        if content["format"] != 1:
            return _has_seal(content, kept.secret)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    written = folder.read(storage.MANIFEST) or b""
    return storage.compute_digest(written) == kept.manifest and Manifest.from_bytes(written).format == 1


def _make_final_error(folder: ReleaseFolder) -> InvalidInput:
    return InvalidInput(
        f"{make_printable(folder.address)} holds a {storage.FINAL} that this release did not write: remove that file, "
        "and start the same release again to go on."
    )


def _make_research_secret(seed: int) -> bytes:
    return hashlib.sha256(f"scoreshield research key {seed}".encode()).digest()
