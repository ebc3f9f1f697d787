"""The driver: one charge and one view, wherever a process ends, and one sentence where it cannot go on."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from cluster_support import (
    DIMENSION,
    QUERY,
    RELEASE,
    RELEASES,
    SECRET,
    Killed,
    act_after,
    fail_after,
    fail_at_write,
    holds_secret,
    lose_encrypted_blocks,
    make_account,
    read_files,
    read_folder,
    read_key_rows,
    release,
    use_same_key,
    write_collection,
)

import scoreshield as ss
import scoreshield.distributed as sd
from scoreshield.distributed import driver, storage
from scoreshield.distributed.engines.base import LocalEngine
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.storage import LocalFolder
from scoreshield.errors import BudgetExceeded, FileError, InvalidInput, LedgerError
from scoreshield.privacy.ledger.accounts import PendingCharge


@pytest.fixture(scope="module")
def kept_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "vectors"
    write_collection(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A collection that a test may change."""
    write_collection(tmp_path / "vectors", (100, 50))
    return tmp_path / "vectors"


@pytest.fixture
def same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    use_same_key(monkeypatch)


def find_url(account: Any) -> str:
    return str(account.ledger.name)


def read_ledger(account: Any) -> bytes:
    """Read the file of a ledger, and what a killed process may have left beside it."""
    path = Path(find_url(account).removeprefix("sqlite:///"))
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


#: Where a driver ends: what is called, or which file is written; how often; and whether the last call does not happen.
STEPS: dict[str, tuple[Any, str, int, bool]] = {
    "before the key is kept": (ReleaseKeyTable, "add", 1, True),
    "after the key is kept": (ReleaseKeyTable, "add", 1, False),
    "before the manifest": (LocalFolder, "manifest.json", 1, True),
    "after the manifest": (LocalFolder, "manifest.json", 1, False),
    "after the budget is checked": (driver.Driver, "_reserve", 1, False),
    "before a block is encrypted": (LocalFolder, "checks/", 2, True),
    "after a block is encrypted": (LocalFolder, "checks/", 2, False),
    "after all blocks are encrypted": (LocalFolder, "checks/", 3, False),
    "after the check": (driver, "describe_again", 1, False),
    "in the transaction": (ReleaseKeyTable, "charge", 1, False),
    "after the charge": (driver.Provenance, "of_entry", 1, True),
    "after the key is shared": (LocalEngine, "share_key", 1, False),
    "before a block is written": (LocalFolder, "parts/", 2, True),
    "after a block is written": (LocalFolder, "parts/", 2, False),
    "before the last values": (driver, "draw_last_values", 1, True),
    "before the encrypted blocks are removed": (driver, "_remove_checks", 1, True),
    "before the certificate": (LocalFolder, "certificate.txt", 1, True),
    "after the certificate": (LocalFolder, "certificate.txt", 1, False),
    "before the last file": (LocalFolder, "release.json", 1, True),
    "after the last file": (LocalFolder, "release.json", 1, False),
    "before the key ends": (ReleaseKeyTable, "destroy", 1, True),
    "after the key ended": (ReleaseKeyTable, "destroy", 1, False),
    "when it is opened": (driver, "read_final", 1, True),
}


#: Where a driver leaves no manifest, so that the next one draws another id.
EARLY = ["before the key is kept", "after the key is kept", "before the manifest"]


@pytest.fixture(scope="module")
def wholes(kept_source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The parts of releases that nothing interrupts, by the id."""
    found = {}
    for name in RELEASES[:2]:
        to = tmp_path_factory.mktemp("whole") / "out"
        with pytest.MonkeyPatch.context() as patch:
            use_same_key(patch, [name])
            release(kept_source, to, ledger=make_account(to.parent))
        found[name] = read_files(to)
    assert [len(parts) for parts in found.values()] == [3, 3]
    assert found[RELEASES[0]] != found[RELEASES[1]]
    return found


@pytest.mark.usefixtures("same_key")
class TestGoingOn:
    @pytest.mark.parametrize("step", STEPS)
    def test_after_an_end_at_every_step(
        self, kept_source: Path, tmp_path: Path, wholes: dict[str, dict[str, bytes]], step: str
    ) -> None:
        owner, name, calls, before = STEPS[step]
        account = make_account(tmp_path)
        to = tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            if owner is LocalFolder:
                fail_at_write(patch, name, calls, before=before)
            else:
                fail_after(patch, owner, name, calls, before=before)
            if owner is driver and name == "read_final":
                patch.setattr("scoreshield.distributed.results.read_final", getattr(driver, name))
            with pytest.raises(Killed):
                release(kept_source, to, ledger=account)
        if not (to / "release.json").exists():
            with pytest.raises(InvalidInput, match=r"no (whole )?release"):
                sd.open_release(to)
        assert len(account.entries()) <= 1
        found = release(kept_source, to, ledger=account)
        name = RELEASES[1] if step in EARLY else RELEASE
        assert read_files(to) == wholes[name]
        assert len(account.entries()) == 1
        assert account.spent == pytest.approx(2.0)
        entry = account.entries()[0]
        assert found.guarantee.provenance is not None
        assert found.guarantee.provenance.entry == f"{entry.id}:{entry.hash}"
        facts = json.loads(entry.guarantee)["details"]
        assert (facts["release"], facts["snapshot"]) == (name, found.manifest.snapshot)
        assert name in str(found.guarantee)
        assert not holds_secret(read_ledger(account), SECRET)
        assert [(row["release"], row["secret"]) for row in read_key_rows(account)] == [(name, None)]
        assert account.ledger.verify()

    def test_the_key_is_kept_until_then(self, kept_source: Path, tmp_path: Path) -> None:
        """The search above finds a key that is there."""
        account = make_account(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            fail_after(patch, ReleaseKeyTable, "destroy", 1, before=True)
            with pytest.raises(Killed):
                release(kept_source, tmp_path / "out", ledger=account)
        assert holds_secret(read_ledger(account), SECRET)

    def test_twice(self, kept_source: Path, tmp_path: Path, wholes: dict[str, dict[str, bytes]]) -> None:
        account = make_account(tmp_path)
        for _ in range(2):
            release(kept_source, tmp_path / "out", ledger=account)
        assert read_files(tmp_path / "out") == wholes[RELEASE]
        assert len(account.entries()) == 1

    def test_what_killed_tasks_left_is_removed(self, kept_source: Path, tmp_path: Path) -> None:
        """A file that was written and not named yet could be a second view of a block."""
        account, to = make_account(tmp_path), tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", _raise_killed)
            patch.setattr(Path, "unlink", _raise_killed)  # the process is gone before it can tidy
            with pytest.raises(Killed):
                release(kept_source, to, ledger=account)
        assert len(list(to.rglob(".*.part"))) == 1
        release(kept_source, to, ledger=account)
        assert list(to.rglob(".*")) == []


def _raise_killed(*_: Any, **__: Any) -> None:
    raise Killed


class TestFilesThatWereAdded:
    """A folder gets more files while a release of it is not whole."""

    def test_after_the_charge(self, source: Path, tmp_path: Path) -> None:
        """The next driver goes on with the files that were charged, and no later call takes the release for more."""
        account, to = make_account(tmp_path), tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            fail_after(patch, PendingCharge, "commit", 1)
            with pytest.raises(Killed):
                release(source, to, ledger=account)
        np.save(source / "0a.npy", np.ones((7, DIMENSION), dtype=np.float32))  # it comes between the others
        lose_encrypted_blocks(to)
        whole = release(source, to, ledger=account)
        assert whole.read()["row"].tolist() == list(range(150))
        assert len(account.ledger.entries()) == 1
        assert read_key_rows(account)[0]["secret"] is None
        with pytest.raises(InvalidInput, match="begun with other arguments, or of files that changed"):
            release(source, to, ledger=account)

    def test_before_the_charge(self, source: Path, tmp_path: Path) -> None:
        """The release stops, and the call after it begins with all files."""
        account, to = make_account(tmp_path), tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            fail_after(patch, PendingCharge, "commit", 1, before=True)
            with pytest.raises(Killed):
                release(source, to, ledger=account)
        np.save(source / "2.npy", np.ones((7, DIMENSION), dtype=np.float32))
        with pytest.raises(InvalidInput, match="changed while it was checked; nothing was charged"):
            release(source, to, ledger=account)
        assert not account.ledger.entries()
        assert len(release(source, to, ledger=account).read()["row"]) == 157
        assert len(account.ledger.entries()) == 1


WHOLE = ("manifest.json", "certificate.txt", "release.json")


class TestDriversAtOnce:
    @pytest.mark.parametrize(
        ("owner", "name"), [(PendingCharge, "commit"), (ReleaseKeyTable, "add")], ids=["charge", "key"]
    )
    def test_same_request(
        self, kept_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
    ) -> None:
        """Two drivers that both find no charge, or no manifest: one charges, and both return the same release."""
        account, to = make_account(tmp_path), tmp_path / "out"
        barrier = threading.Barrier(2)
        work = getattr(owner, name)
        found: list[np.ndarray] = []

        def work_together(*arguments: Any, **options: Any) -> Any:
            barrier.wait(30)
            return work(*arguments, **options)

        monkeypatch.setattr(owner, name, work_together)

        def run() -> None:
            ledger = ss.Ledger.open(find_url(account)).account("people")
            found.append(release(kept_source, to, ledger=ledger).scores())

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 2
        assert np.array_equal(*found)
        assert len(account.entries()) == 1
        assert [row["secret"] for row in read_key_rows(account)] == [None]
        assert account.ledger.verify()

    @pytest.mark.parametrize("step", ["check", "release"])
    @pytest.mark.parametrize("has_folder", [True, False], ids=["key folder", "memory"])
    def test_one_overtakes_the_other(self, tmp_path: Path, step: str, has_folder: bool) -> None:
        """A driver finishes while another checks ids or runs tasks: it takes neither the files nor the key of that one.

        The driver that was overtaken finds the release whole, and returns it.
        """
        account, to, keys, done = make_account(tmp_path), tmp_path / "out", tmp_path / "keys", []
        rows = np.random.default_rng(1).standard_normal((70_000, DIMENSION)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIMENSION)
        parquet.write_table(pa.table({"vector": column, "name": np.arange(70_000)}), tmp_path / "rows.parquet")
        options = {"ids": "name", "key_folder": keys if has_folder else None}

        def overtake(now: str, *_: int) -> None:
            if now == step and not done:
                done.append(1)
                other = ss.Ledger.open(find_url(account)).account("people", who="another person")
                done.append(release(tmp_path / "rows.parquet", to, ledger=other, **options).scores())

        first = release(tmp_path / "rows.parquet", to, ledger=account, progress=overtake, **options)
        assert np.array_equal(first.scores(), done[1])
        assert len(account.entries()) == 1
        assert [row["secret"] for row in read_key_rows(account)] == [None]
        assert not has_folder or list(keys.iterdir()) == []
        assert sorted(path.name for path in to.iterdir() if path.is_file()) == sorted(WHOLE)
        assert not any(name.startswith("checks/") for name in read_folder(to))
        first.check_certificate()
        assert first.check_charge(account.ledger)

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_one_charges_while_the_other_looks(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
    ) -> None:
        """A driver that finds parts of one that charges just now goes on with it, and does not call its key lost."""
        account, to, look, done = make_account(tmp_path), tmp_path / "out", driver.Driver._has_parts, []

        def overtake(driver_: Any) -> bool:
            if not done:
                done.append(1)
                with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
                    if not is_whole:
                        fail_at_write(patch, "parts/")
                    release(source, to, ledger=account)
            return look(driver_)

        monkeypatch.setattr(driver.Driver, "_has_parts", overtake)
        assert len(release(source, to, ledger=account).scores()) == 150
        assert len(account.entries()) == 1

    def test_one_begins_while_the_other_looks(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A driver that finds no manifest, and then the files of one that begins just now, goes on with that one."""
        account, to, look, done = make_account(tmp_path), tmp_path / "out", LocalFolder.list_names, []

        def overtake(folder: Any) -> list[str]:
            if not done:
                done.append(1)
                release(source, to, ledger=account)
            return look(folder)

        monkeypatch.setattr(LocalFolder, "list_names", overtake)
        assert len(release(source, to, ledger=account).scores()) == 150
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_one_fails_its_check_while_the_other_goes_on(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
    ) -> None:
        """Without a ledger too, the driver that fails leaves what the other one made."""
        to, check, done = tmp_path / "out", driver.Driver._check, []

        def fail_late(driver_: Any, *arguments: Any) -> None:
            if done:
                return check(driver_, *arguments)
            done.append(1)
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
                if not is_whole:
                    fail_at_write(patch, "release.json", before=True)
                release(source, to, seed=1)
            raise FileError("Cannot write a file of the check.")

        monkeypatch.setattr(driver.Driver, "_check", fail_late)
        with contextlib.nullcontext() if is_whole else pytest.raises(FileError, match="Cannot write a file"):
            release(source, to, seed=1)
        assert len(release(source, to, seed=1).scores()) == 150

    def test_other_request(self, source: Path, tmp_path: Path) -> None:
        """A driver that waits between its manifest and its charge keeps its folder."""
        account, to = make_account(tmp_path), tmp_path / "out"

        def begin_other(step: str, *_: int) -> None:
            if step == "check":
                with pytest.raises(InvalidInput, match="begun with other arguments"):
                    release(source, to, epsilon=1.0, ledger=account)

        first = release(source, to, ledger=account, progress=begin_other)
        assert first.guarantee.epsilon == 2.0
        assert account.spent == pytest.approx(2.0)


class TestOneTransaction:
    def test_failed_record_charges_nothing(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        account = make_account(tmp_path)

        def fail(*_: Any) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patch:
            patch.setattr(ReleaseKeyTable, "charge", fail)
            with pytest.raises(LedgerError):
                release(source, tmp_path / "out", ledger=account)
        assert account.entries() == []
        assert read_folder(tmp_path / "out") == {}
        assert read_key_rows(account) == []
        release(source, tmp_path / "out", ledger=account)
        assert len(account.entries()) == 1

    def test_failed_charge_leaves_no_key(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "make_secret", lambda: SECRET)
        account = make_account(tmp_path)

        def spend(step: str, *_: int) -> None:
            """Take the budget after it was checked and before the charge."""
            if step == "check":
                release(source, tmp_path / "other", epsilon=9.0, ledger=account)

        with pytest.raises(BudgetExceeded):
            release(source, tmp_path / "out", ledger=account, progress=spend)
        assert read_folder(tmp_path / "out") == {}
        assert [row["folder"] for row in read_key_rows(account)] == [str(tmp_path / "other")]
        assert not holds_secret(read_ledger(account), SECRET)
        assert len(account.entries()) == 1
        release(source, tmp_path / "out", epsilon=1.0, ledger=account)
        assert account.spent == pytest.approx(10.0)

    def test_budget_is_checked_before_rows_are_read(self, source: Path, tmp_path: Path) -> None:
        """The folder is free for a smaller release then."""
        account, to = make_account(tmp_path), tmp_path / "out"
        steps: list[str] = []
        with pytest.raises(BudgetExceeded):
            release(source, to, epsilon=11.0, ledger=account, progress=lambda step, *_: steps.append(step))
        assert steps == []
        assert read_folder(to) == {}
        assert read_key_rows(account) == []
        assert release(source, to, epsilon=9.0, ledger=account).guarantee.epsilon == 9.0
        assert account.spent == pytest.approx(9.0)

    def test_postgres(self, postgres: str, kept_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same with a server: the key with the charge, one charge after an end, and no key afterwards."""
        monkeypatch.setattr(driver, "make_secret", lambda: SECRET)
        schema = "distributed_keys"
        import psycopg

        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            connection.execute(f"CREATE SCHEMA {schema}")
        mark = "&" if "?" in postgres else "?"
        url = f"{postgres}{mark}options=-csearch_path%3D{schema}"
        account = ss.Ledger.create(url, epsilon=10.0, delta=0.0).account("people")
        to = tmp_path / "out"

        def read_rows() -> list[Any]:
            with psycopg.connect(url) as connection:
                return connection.execute("SELECT release, secret FROM scoreshield_release_keys").fetchall()

        with monkeypatch.context() as patch:
            fail_after(patch, ReleaseKeyTable, "add", 1)
            with pytest.raises(Killed):
                release(kept_source, to, ledger=account)
        assert [secret for _, secret in read_rows()] == [SECRET.hex()]
        with monkeypatch.context() as patch:
            patch.setattr(ReleaseKeyTable, "charge", _fail_transaction)
            with pytest.raises(LedgerError, match="the disk is full"):
                release(kept_source, to, ledger=account)
        assert account.entries() == []
        assert read_folder(to) == {}
        assert len(read_rows()) == 1  # of the first driver
        with monkeypatch.context() as patch:
            fail_at_write(patch, "parts/")
            with pytest.raises(Killed):
                release(kept_source, to, ledger=account)
        first = (to / "parts" / "part-00000000.parquet").read_bytes()
        assert [secret for _, secret in read_rows()] == [SECRET.hex()]
        release(kept_source, to, ledger=account)
        assert [secret for _, secret in read_rows()] == [None]
        assert len(account.entries()) == 1
        assert read_files(to)["part-00000000.parquet"] == first
        assert account.ledger.verify()


def _fail_transaction(*_: Any) -> None:
    raise LedgerError("the disk is full")


def read_parts(folder: Path) -> list[Path]:
    return list(folder.glob("parts/*"))


class TestStops:
    def test_without_a_ledger(self, kept_source: Path, tmp_path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            fail_at_write(patch, "parts/")
            with pytest.raises(Killed):
                release(kept_source, tmp_path / "out")
        with pytest.raises(InvalidInput, match="whose key is lost: without a ledger"):
            release(kept_source, tmp_path / "out")
        with pytest.raises(InvalidInput, match="whose key is lost"):
            release(kept_source, tmp_path / "out", ledger=make_account(tmp_path))

    def test_another_account(self, kept_source: Path, tmp_path: Path) -> None:
        account = make_account(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            fail_at_write(patch, "parts/")
            with pytest.raises(Killed):
                release(kept_source, tmp_path / "out", ledger=account)
        with pytest.raises(InvalidInput, match="another account"):
            release(kept_source, tmp_path / "out", ledger=account.ledger.account("others"))
        assert len(account.ledger.entries()) == 1

    def test_edited_manifest(self, kept_source: Path, tmp_path: Path) -> None:
        """A charge of one query does not give the answer to another, whatever the folder says."""
        account, path = make_account(tmp_path), tmp_path / "out" / "manifest.json"
        with pytest.MonkeyPatch.context() as patch:
            fail_at_write(patch, "parts/")
            with pytest.raises(Killed):
                release(kept_source, path.parent, ledger=account)
        release(kept_source, tmp_path / "other", query=-QUERY, seed=1)
        queries = json.loads((tmp_path / "other" / "manifest.json").read_bytes())["queries"]
        edited = driver.Manifest.from_bytes(path.read_bytes())
        path.write_bytes(dataclasses.replace(edited, queries=np.array(queries)).to_bytes())
        shutil.rmtree(path.parent / "parts")
        with pytest.raises(InvalidInput, match="was changed after the charge"):
            release(kept_source, path.parent, query=-QUERY, ledger=account)
        assert read_parts(path.parent) == []

    def test_lost_last_file(self, source: Path, tmp_path: Path) -> None:
        account = make_account(tmp_path)
        release(source, tmp_path / "out", ledger=account)
        (tmp_path / "out" / "release.json").unlink()
        with pytest.raises(LedgerError, match="key destroyed"):
            release(source, tmp_path / "out", ledger=account)
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("name", ["notes.txt", "parts/part-00000000.parquet", ".hidden", "deep/er/file"])
    def test_folder_not_empty(self, source: Path, tmp_path: Path, name: str) -> None:
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True)
        path.write_text("x")
        account = make_account(tmp_path)
        with pytest.raises(InvalidInput, match=r"not empty; name a new folder\.$"):
            release(source, tmp_path / "out", ledger=account)
        assert account.entries() == []
        assert path.read_text() == "x"

    @pytest.mark.parametrize("name", ["parts", "checks", "manifest.json", "release.json"])
    @pytest.mark.parametrize("is_there", [True, False])
    def test_links_in_the_folder(self, source: Path, tmp_path: Path, name: str, is_there: bool) -> None:
        """A link is found before the charge: what lies behind it would not be tidied, or could not be written."""
        account = make_account(tmp_path)
        (tmp_path / "out").mkdir()
        if is_there and "." not in name:
            (tmp_path / "elsewhere").mkdir()
        (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InvalidInput, match=r"not empty; name a new folder\.$"):
            release(source, tmp_path / "out", ledger=account)
        assert account.entries() == []
        assert read_key_rows(account) == []

    @pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
    def test_file_system_without_hard_links(self, source: Path, tmp_path: Path, number: int) -> None:
        """It is found before the charge, and the ledger keeps no key for it."""
        account = make_account(tmp_path)

        def link(path: Any, target: Any) -> None:
            raise OSError(number, os.strerror(number), str(path), None, str(target))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", link)
            with pytest.raises(FileError, match=r"its file system has no hard links, .*; name a folder on another\."):
                release(source, tmp_path / "out", ledger=account)
        assert account.entries() == []
        assert read_key_rows(account) == []
        assert read_folder(tmp_path / "out") == {}

    @pytest.mark.skipif(sys.platform != "linux", reason="needs file names of POSIX that are no text")
    def test_names_that_are_no_text(self, source: Path, tmp_path: Path) -> None:
        """A manifest and a ledger hold text: other names of files are found before anything is written."""
        account, odd = make_account(tmp_path), os.fsdecode(b"\xff")
        with pytest.raises(InvalidInput, match=r"^The name of .*\? is not valid UTF-8; rename it\.$"):
            release(source, tmp_path / odd, ledger=account)
        np.save(tmp_path / f"{odd}.npy", np.ones((3, DIMENSION)))
        shutil.copy(source / "0.npy", source / f"{odd}.npy")
        for wrong in (source, tmp_path / f"{odd}.npy"):
            with pytest.raises(InvalidInput, match=r"^The name of .*\?\.npy is not valid UTF-8; rename it\.$"):
                release(wrong, tmp_path / "out", ledger=account)
        assert not (tmp_path / "out").exists()
        assert read_key_rows(account) == []

    @pytest.mark.parametrize(
        "options",
        [{"query": -QUERY}, {"epsilon": 1.0}, {"norm": "ball"}, {"best": 5}, {"seed": 2}, {"check_rows": False}],
        ids=str,
    )
    def test_folder_of_another_release(self, source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        account = make_account(tmp_path)
        seed = 1 if "seed" in options else None
        ledger = None if "seed" in options else account
        release(source, tmp_path / "out", ledger=ledger, seed=seed)
        with pytest.raises(InvalidInput, match="begun with other arguments"):
            release(source, tmp_path / "out", **({"ledger": ledger} | options))
        assert len(account.entries()) == (ledger is not None)

    def test_a_file_in_place_of_the_folder(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("x")
        with pytest.raises(InvalidInput, match="is a file"):
            release(source, tmp_path / "out")

    @pytest.mark.parametrize("to", ["vectors/out", "link/out", "vectors/../vectors/out", "other/../vectors"])
    def test_folder_in_the_collection(self, source: Path, tmp_path: Path, to: str) -> None:
        (tmp_path / "link").symlink_to(source)
        (tmp_path / "other").mkdir()
        with pytest.raises(InvalidInput, match="lies in the collection"):
            release(source, tmp_path / to)
        assert sorted(path.name for path in source.iterdir()) == ["0.npy", "1.npy"]

    @pytest.mark.parametrize("restores_time", [False, True])
    def test_changed_file_after_the_charge(
        self, source: Path, tmp_path: Path, restores_time: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other content of the same size and the same time of change stops the release, and so does going on.

        Before the charge, the folder is empty again and takes the changed collection.
        """
        account, path = make_account(tmp_path), source / "1.npy"

        def change(*_: Any) -> None:
            before = path.stat()
            content = np.load(path)
            content[7] *= -1
            np.save(path, content)
            if restores_time:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert path.stat().st_size == before.st_size

        with pytest.raises(InvalidInput, match="changed while it was checked; nothing was charged"):
            release(source, tmp_path / "out", ledger=account, progress=change)
        assert account.entries() == []
        assert read_folder(tmp_path / "out") == {}

        def lose_and_change() -> None:
            lose_encrypted_blocks(tmp_path / "out")
            change()

        with monkeypatch.context() as patch:
            act_after(patch, PendingCharge, "commit", lose_and_change)
            with pytest.raises(InvalidInput, match=r"1\.npy changed since the release began") as caught:
                release(source, tmp_path / "out", ledger=account)
        assert "\n" not in str(caught.value)
        assert len(account.entries()) == 1
        assert read_parts(tmp_path / "out") == []
        with pytest.raises(InvalidInput, match="files that changed since"):
            release(source, tmp_path / "out", ledger=account)
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("is_gone", [False, True])
    def test_abandoned_release(
        self, source: Path, tmp_path: Path, is_gone: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A charged release that cannot go on loses its key, also where its folder is gone. The charge stays."""
        account = make_account(tmp_path)

        def lose_files() -> None:
            lose_encrypted_blocks(tmp_path / "out")
            (source / "1.npy").unlink()

        with monkeypatch.context() as patch:
            act_after(patch, PendingCharge, "commit", lose_files)
            with pytest.raises(FileError, match=r"Cannot read .*1\.npy"):
                release(source, tmp_path / "out", ledger=account)
        [(name, kept)] = ReleaseKeyTable(account.ledger).list_charged().items()
        assert kept.secret is not None
        assert kept.secret.hex().encode() in read_ledger(account)
        if is_gone:
            shutil.rmtree(tmp_path / "out")
        with pytest.raises(InvalidInput, match="no key of a release"):
            sd.abandon_release(tmp_path / "other", ledger=account.ledger)
        assert ReleaseKeyTable(account.ledger).list_charged() != {}
        assert sd.abandon_release(tmp_path / "out", ledger=account.ledger) == 1
        assert kept.secret.hex().encode() not in read_ledger(account)
        found = ReleaseKeyTable(account.ledger).read(name)
        assert found is not None
        assert found.secret is None
        assert len(account.entries()) == 1
        assert account.spent == pytest.approx(2.0)
        with pytest.raises(InvalidInput, match="no key of a release"):
            sd.abandon_release(tmp_path / "out", ledger=account.ledger)
        np.save(source / "1.npy", np.load(source / "0.npy"))
        if not is_gone:
            with pytest.raises(LedgerError, match="was abandoned, or its last file is gone"):
                release(source, tmp_path / "out", ledger=account)

    @pytest.mark.parametrize("blocks", [1, 2])
    def test_release_that_is_abandoned_while_it_runs(self, tmp_path: Path, blocks: int) -> None:
        """Its driver stops without a last file: the ledger does not take one anymore, and `verify` would reject it."""
        write_collection(tmp_path / "vectors", (70_000,))
        account, to, destroyed = make_account(tmp_path), tmp_path / "out", []

        def abandon(step: str, done: int, _: int) -> None:
            if (step, done) == ("release", blocks):
                destroyed.append(sd.abandon_release(to, ledger=account.ledger))

        for progress in (abandon, None):
            with pytest.raises(LedgerError, match="was abandoned, or its last file is gone"):
                release(tmp_path / "vectors", to, ledger=account, progress=progress)
        assert destroyed == [1]
        assert not (to / "release.json").exists()
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("is_planted", [False, True])
    def test_whole_release_that_is_abandoned(self, source: Path, tmp_path: Path, is_planted: bool) -> None:
        """A release whose driver was killed before it ended the key stays valid; a planted last file does not count."""
        account, to = make_account(tmp_path), tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            fail_after(patch, ReleaseKeyTable, "destroy", 1, before=True)
            with pytest.raises(Killed):
                release(source, to, ledger=account)
        if is_planted:
            final = json.loads((to / "release.json").read_bytes())
            (to / "release.json").write_text(json.dumps(final | {"tie_break": 1}))
        assert sd.abandon_release(to, ledger=account.ledger) == 1
        [row] = read_key_rows(account)
        assert row["secret"] is None
        if is_planted:
            with pytest.raises(InvalidInput, match="not those of the release that the ledger was charged for"):
                sd.open_release(to).check_charge(account.ledger)
        else:
            assert release(source, to, ledger=account).check_charge(account.ledger)
        assert len(account.entries()) == 1

    def test_key_that_a_killed_driver_left_with_the_workers(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next driver of any release ends the key of a whole one everywhere, also in the memory of workers."""
        account = make_account(tmp_path)
        removed: list[str] = []

        class Workers(LocalEngine):
            def remove_keys(self, release: str) -> None:
                removed.append(release)

        with monkeypatch.context() as patch:
            fail_after(patch, driver.Driver, "_destroy_key", 1, before=True)
            with pytest.raises(Killed):
                release(source, tmp_path / "first", ledger=account, engine=Workers())
        [first] = ReleaseKeyTable(account.ledger).list_charged()
        assert removed == []
        release(source, tmp_path / "second", ledger=account, engine=Workers())
        assert removed[0] == first
        assert len(removed) == 2

    def test_keys_in_several_folders(self, source: Path, tmp_path: Path) -> None:
        """A driver that goes on with another folder of keys removes the key of the killed one too."""
        account = make_account(tmp_path)

        def kill(step: str, *_: int) -> None:
            if step == "release":
                raise Killed

        for name in ("k1", "k2"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("scoreshield.distributed.key_folder._unlink", lambda _: None)  # as after SIGKILL
                with pytest.raises(Killed):
                    release(source, tmp_path / "out", ledger=account, key_folder=tmp_path / name, progress=kill)
            assert len(list((tmp_path / name).iterdir())) == 1
        shutil.move(tmp_path / "k1", tmp_path / "moved")
        with pytest.warns(ss.LedgerWarning, match=r"no folder .*k1: if another one has, remove [0-9a-f]{32} in it"):
            release(source, tmp_path / "out", ledger=account)
        assert list((tmp_path / "k2").iterdir()) == []
        assert len(account.entries()) == 1

    def test_place_of_an_older_ledger(self, tmp_path: Path) -> None:
        """Ledgers held one path before they held a list."""
        table = ReleaseKeyTable(make_account(tmp_path).ledger)
        table.add(RELEASE, SECRET, "out")
        with sqlite3.connect(tmp_path / "ledger.db") as database:
            database.execute("UPDATE scoreshield_release_keys SET place = '/keys'")
        table.note_place(RELEASE, "/other")
        table.note_place(RELEASE, "/keys")
        kept = table.read(RELEASE)
        assert kept is not None
        assert kept.places == ("/keys", "/other")

    @pytest.mark.parametrize("is_parsed", [True, False])
    def test_foreign_last_file(self, source: Path, tmp_path: Path, is_parsed: bool) -> None:
        """A last file that someone puts into the folder neither ends the key nor loses the charge."""
        account = make_account(tmp_path)
        release(source, tmp_path / "model", ledger=account)
        content = (tmp_path / "model" / "release.json").read_bytes() if is_parsed else b"{"

        def plant(step: str, *_: int) -> None:
            if step == "release":
                (tmp_path / "out" / "release.json").write_bytes(content)

        with pytest.raises(InvalidInput, match=r"holds a release\.json that this release did not write: remove"):
            release(source, tmp_path / "out", ledger=account, progress=plant)
        (tmp_path / "out" / "release.json").unlink()
        assert release(source, tmp_path / "out", ledger=account).guarantee.provenance is not None
        assert len(account.entries()) == 2
        assert ReleaseKeyTable(account.ledger).list_charged() == {}

    def test_damaged_folder_of_another_release(self, source: Path, tmp_path: Path) -> None:
        """A manifest and a last file that anyone can plant stop no other release of the ledger."""
        account = make_account(tmp_path)

        def kill(step: str, *_: int) -> None:
            if step == "release":
                raise Killed

        with pytest.raises(Killed):
            release(source, tmp_path / "begun", ledger=account, progress=kill)
        manifest = json.loads((tmp_path / "begun" / "manifest.json").read_bytes()) | {"block_rows": 0}
        written = json.dumps(manifest).encode()
        (tmp_path / "begun" / "manifest.json").write_bytes(written)
        final = {"format": 1, "manifest": storage.compute_digest(written), "tie_break": 1, "guarantee": {}, "parts": []}
        (tmp_path / "begun" / "release.json").write_text(json.dumps(final))
        release(source, tmp_path / "out", ledger=account)
        with pytest.raises(InvalidInput, match="damaged"):
            sd.open_release(tmp_path / "begun")

    @pytest.mark.parametrize(
        "field",
        [
            {"block_rows": 0},
            {"block_rows": 1.5},
            {"kind": []},
            {"kind": "index"},
            {"kind": "histogram"},
            {"options": None},
            {"options": {"best": "3"}},
            {"version": 3},
        ],
        ids=str,
    )
    def test_damaged_manifest(self, source: Path, tmp_path: Path, field: dict[str, Any]) -> None:
        release(source, tmp_path / "out")
        path = tmp_path / "out" / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | field))
        final = json.loads((tmp_path / "out" / "release.json").read_bytes())
        final["manifest"] = storage.compute_digest(path.read_bytes())
        (tmp_path / "out" / "release.json").write_text(json.dumps(final))
        with pytest.raises(InvalidInput, match="damaged"):
            sd.open_release(tmp_path / "out")

    @pytest.mark.parametrize("options", [{"progress": 3}, {"key_folder": 3}], ids=str)
    def test_wrong_types(self, source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        """Arguments of a wrong type are errors before the charge."""
        account = make_account(tmp_path)
        with pytest.raises(InvalidInput, match=f"{next(iter(options))}.* must be"):
            release(source, tmp_path / "out", ledger=account, check_rows=False, **options)
        with pytest.raises(InvalidInput, match="NUL"):
            release(source, tmp_path / "a\0b", ledger=account)
        assert account.entries() == []

    def test_vanished_file(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        account = make_account(tmp_path)
        act_after(monkeypatch, PendingCharge, "commit", lambda: lose_encrypted_blocks(tmp_path / "out"))
        act_after(monkeypatch, PendingCharge, "commit", (source / "1.npy").unlink)
        with pytest.raises(FileError, match=r"Cannot read .*1\.npy"):
            release(source, tmp_path / "out", ledger=account)
        assert read_parts(tmp_path / "out") == []

    def test_file_that_vanishes_during_the_check(self, source: Path, tmp_path: Path) -> None:
        account = make_account(tmp_path)
        with pytest.raises(InvalidInput, match="changed while it was checked; nothing was charged"):
            release(source, tmp_path / "out", ledger=account, progress=lambda *_: (source / "1.npy").unlink())
        assert account.entries() == []
        assert read_folder(tmp_path / "out") == {}

    def test_not_finite(self, source: Path, tmp_path: Path) -> None:
        """A NaN in one file is found before the charge, and the error names no record."""
        vectors = np.load(source / "1.npy")
        vectors[37, 1] = np.nan
        np.save(source / "1.npy", vectors)
        account = make_account(tmp_path)
        with pytest.raises(InvalidInput, match="NaN or an infinity; nothing was charged") as caught:
            release(source, tmp_path / "out", ledger=account)
        assert not any(text in str(caught.value) for text in ("37", "137", "1.npy"))
        assert account.entries() == []
        release(source, tmp_path / "other", ledger=account, check_rows=False)
        assert account.spent == pytest.approx(2.0)

    def test_other_version(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        account = make_account(tmp_path)
        with monkeypatch.context() as patch:
            fail_at_write(patch, "parts/", before=True)
            with pytest.raises(Killed):
                release(source, tmp_path / "out", ledger=account)
        path = tmp_path / "out" / "manifest.json"
        path.write_bytes(path.read_bytes().replace(b'"version":"0', b'"version":"99.0', 1))
        with pytest.raises(InvalidInput, match="install the same version"):
            release(source, tmp_path / "out", ledger=account)
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("has_space_before", [True, False])
    def test_full_disk(
        self, kept_source: Path, tmp_path: Path, has_space_before: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No space for a block ends with one sentence, leaves nothing half-written, and goes on later.

        Space for a block is needed before the charge too, and then nothing is charged.
        """
        account, to = make_account(tmp_path), tmp_path / "out"
        sync, is_full = os.fsync, [not has_space_before]

        def fail(descriptor: int) -> None:
            if os.fstat(descriptor).st_size > 100_000 and is_full[0]:
                raise OSError(28, "No space left on device")
            sync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            act_after(patch, PendingCharge, "commit", lambda: is_full.insert(0, True))
            with pytest.raises(FileError, match=r"No space left on device; start the same release again to go on\.$"):
                release(kept_source, to, ledger=account)
        assert [name for name in read_folder(to) if not name.startswith("checks/block")] == (
            ["manifest.json"] if has_space_before else []
        )
        assert len(account.entries()) == has_space_before
        release(kept_source, to, ledger=account)
        assert len(account.entries()) == 1


class TestDamage:
    @pytest.fixture
    def whole(self, source: Path, tmp_path: Path) -> Path:
        release(source, tmp_path / "out", seed=1)
        return tmp_path / "out"

    @pytest.fixture(params=["gone", "cut", "flipped", "swapped"])
    def damaged(self, whole: Path, request: pytest.FixtureRequest) -> Path:
        path = whole / storage.name_part(0)
        content = path.read_bytes()
        if request.param == "gone":
            path.unlink()
        elif request.param == "cut":
            path.write_bytes(content[:-1])
        elif request.param == "swapped":
            shutil.copy(whole / "manifest.json", path)
        else:
            path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        return whole

    def test_part(self, damaged: Path) -> None:
        """A damaged part is an error when it is read."""
        with pytest.raises(InvalidInput, match="Part 0 of the release is missing or damaged"):
            sd.open_release(damaged).scores()

    @pytest.mark.parametrize("name", ["manifest.json", "release.json"])
    def test_not_whole(self, whole: Path, name: str) -> None:
        content = (whole / name).read_bytes()
        (whole / name).unlink()
        with pytest.raises(InvalidInput, match=r"holds no (whole )?release"):
            sd.open_release(whole)
        (whole / name).write_bytes(content[:-9])
        with pytest.raises(InvalidInput, match="damaged"):
            sd.open_release(whole)

    def test_fewer_parts(self, whole: Path) -> None:
        """A last file that names fewer parts than the manifest has is an error."""
        final = json.loads((whole / "release.json").read_bytes())
        (whole / "release.json").write_text(json.dumps({**final, "parts": []}))
        with pytest.raises(InvalidInput, match="damaged"):
            sd.open_release(whole)

    def test_manifest_of_another_release(self, whole: Path, source: Path, tmp_path: Path) -> None:
        release(source, tmp_path / "other", seed=9)
        shutil.copy(tmp_path / "other" / "manifest.json", whole / "manifest.json")
        with pytest.raises(InvalidInput, match="damaged"):
            sd.open_release(whole)


def test_progress(kept_source: Path, tmp_path: Path) -> None:
    """The progress function gets each block of each step, in order."""
    seen: list[tuple[str, int, int]] = []
    release(kept_source, tmp_path / "out", seed=1, progress=lambda *facts: seen.append(facts))
    assert seen == [(step, done, 3) for step in ("check", "release") for done in (1, 2, 3)]


def test_driver_without_an_answer_of_a_block(kept_source: Path, tmp_path: Path) -> None:
    """An engine that loses a block does not make a release whole."""

    class Forgetful(LocalEngine):
        def run(self, task: Any, numbers: Any) -> Any:
            return super().run(task, list(numbers)[1:])

    with pytest.raises(FileError, match="1 of 3 blocks did not report"):
        release(kept_source, tmp_path / "out", seed=1, engine=Forgetful())
    assert not (tmp_path / "out" / "release.json").exists()


@pytest.mark.parametrize("has_ledger", [True, False])
def test_two_owners(has_ledger: bool, kept_source: Path, tmp_path: Path) -> None:
    """Of drivers with different ledgers, or without one, the first to write its manifest has the folder.

    The other stops before its charge: parts under two keys would be a mixture of two releases.
    """
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = make_account(tmp_path / "a"), make_account(tmp_path / "b") if has_ledger else None
    stopped: list[str] = []

    def make_other(step: str, *_: int) -> None:
        before = read_folder(tmp_path / "out")
        with pytest.raises(InvalidInput, match="whose key is lost: without a ledger, or with another one"):
            release(kept_source, tmp_path / "out", ledger=second)
        assert read_folder(tmp_path / "out") == before
        stopped.append(step)

    found = release(kept_source, tmp_path / "out", ledger=first, progress=make_other)
    assert stopped == ["check"] * 3 + ["release"] * 3
    assert len(found.scores()) == 160_010
    assert len(first.entries()) == 1
    if second is not None:
        assert second.entries() == []
        assert read_key_rows(second) == []
