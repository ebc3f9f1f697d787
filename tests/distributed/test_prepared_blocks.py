"""Blocks that are computed before the charge: what their files show, and what becomes of them without a charge."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
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
    SECRET,
    Killed,
    act_after,
    fail_after,
    fail_at_write,
    holds_secret,
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
from scoreshield.distributed import blocks, driver, prepared, storage
from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines.base import LocalEngine
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.keys import share_in_process
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.distributed.storage import LocalFolder
from scoreshield.errors import BudgetExceeded, FileError, InvalidInput, LedgerError
from scoreshield.privacy.ledger.accounts import PendingCharge

QUERIES = np.stack([QUERY, -QUERY[::-1], QUERY**3])

#: How each kind that is computed before the charge is made.
KINDS: dict[str, Callable[..., Any]] = {
    "scores": release,
    "scores of a batch": lambda source, to, **more: release(
        source, to, query=QUERIES, mechanism="gaussian", delta=1e-6, **more
    ),
    "levels": lambda source, to, **more: release(source, to, mechanism=None, for_="threshold", threshold=0.5, **more),
    "best": lambda source, to, **more: release(source, to, best=40, **more),
    "best of a batch": lambda source, to, **more: release(
        source, to, query=QUERIES, mechanism="gaussian", delta=1e-6, best=40, **more
    ),
    "matches": lambda source, to, **more: sd.release_matches(source, QUERY, 0.4, to=to, epsilon=2.0, **more),
    "refined matches": lambda source, to, **more: sd.release_matches(
        source, QUERY, 0.4, to=to, epsilon=2.0, refine=0.5, **more
    ),
    "batch": lambda source, to, **more: sd.release_batch(source, QUERIES, to=to, epsilon=2.0, k=5, **more),
    "histogram": lambda source, to, **more: sd.release_histogram(source, QUERY, to=to, epsilon=1.0, **more),
}
pytestmark = pytest.mark.filterwarnings("ignore::scoreshield.errors.UselessRelease")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A collection of two tiles, the second one short."""
    write_collection(tmp_path / "vectors", (70_000,))
    return tmp_path / "vectors"


@pytest.fixture
def account(tmp_path: Path) -> Any:
    return ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10.0, delta=1e-5).account("people")


def stop_before_charge(make: Callable[..., Any], source: Path, to: Path, account: Any, **more: Any) -> dict[str, bytes]:
    """Make a release whose driver is killed between its check and its charge, and return what is in its folder."""
    with pytest.MonkeyPatch.context() as patch:
        fail_after(patch, PendingCharge, "commit", 1, before=True)
        with pytest.raises(Killed):
            make(source, to, ledger=account, **more)
    assert account.entries() == []
    found = read_folder(to)
    assert not any(name.startswith("parts/") for name in found)
    return found


def write_ids(path: Path, count: int) -> Path:
    """Write a collection with a column of ids."""
    rows = np.random.default_rng(2).standard_normal((count, DIMENSION)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), DIMENSION)
    parquet.write_table(pa.table({"vector": column, "name": [f"{number}" for number in range(count)]}), path)
    return path


def open_blocks(to: Path, secret: bytes) -> list[bytes | None]:
    """Decrypt all blocks in the folder of a release, as a task does."""
    manifest = Manifest.from_bytes((to / "manifest.json").read_bytes())
    with share_in_process(manifest.release, secret) as handle:
        parts = range(manifest.count_parts)
        return [prepared.open_block(manifest, handle, LocalFolder(to), number) for number in parts]


class TestWhatShows:
    @pytest.mark.parametrize("kind", KINDS)
    def test_sizes(self, tmp_path: Path, account: Any, kind: str) -> None:
        """Of two collections of one public shape, the files have the same sizes, and share no byte but by chance."""
        rng, found, sizes = np.random.default_rng(2), [], []
        collections = [
            rng.standard_normal((70_000, DIMENSION)),
            np.tile(QUERY, (70_000, 1)),  # all of them match, and all scores are equal
            np.tile(-QUERY, (70_000, 1)),
        ]
        for number, rows in enumerate(collections):
            folder, to = tmp_path / f"vectors-{number}", tmp_path / f"out-{number}"
            folder.mkdir()
            np.save(folder / "0.npy", rows.astype(np.float32))
            files = stop_before_charge(KINDS[kind], folder, to, account, block_rows=TILE_ROWS)
            encrypted = {name: content for name, content in files.items() if name != "manifest.json"}
            assert sorted(encrypted) == [storage.name_prepared(0), storage.name_prepared(1)]
            found.append(encrypted)
            opened = open_blocks(to, bytes.fromhex(read_key_rows(account)[-1]["secret"]))
            sizes.append([len(content or b"") for content in opened])
            assert min(sizes[-1]) > 0
        assert [len(content) for content in found[0].values()] == [len(content) for content in found[1].values()]
        assert [len(content) for content in found[0].values()] == [len(content) for content in found[2].values()]
        if "matches" in kind:  # the near miss: what is encrypted has other sizes
            assert sizes[0] != sizes[1]
        for name, content in found[0].items():
            same = np.frombuffer(content, np.uint8) == np.frombuffer(found[1][name], np.uint8)
            # By chance one byte in 256; a deviation of 8 of its standard deviations is rarer than 10^-14.
            assert abs(same.mean() - 1 / 256) < 8 * (1 / 256 / len(same)) ** 0.5

    def test_the_largest_part_fits(self, tmp_path: Path) -> None:
        """Numbers of records that are as far apart as can be, and all records, stay below the public size."""
        write_collection(tmp_path / "vectors", (70_000,))
        for kind in ("best", "best of a batch", "matches", "refined matches"):
            made = KINDS[kind](tmp_path / "vectors", tmp_path / kind, seed=1, block_rows=2 * TILE_ROWS)
            count = 70_000 if "matches" in kind else 40 * len(made.manifest.queries)
            rng = np.random.default_rng(3)
            columns = {
                name: rng.integers(0, 2**62, count) if values.dtype.kind == "i" else rng.standard_normal(count)
                for name, values in made.read().items()
            }
            with share_in_process(made.manifest.release, SECRET) as handle:
                largest = len(blocks._write_sealed(columns, handle, 0))
            assert largest < prepared._find_room(made.manifest, 0)

    def test_ids_of_chosen_records_are_not_kept(self, tmp_path: Path) -> None:
        """Their lengths have no public bound. The rows of such a release are read twice."""
        (tmp_path / "vectors").mkdir()
        write_ids(tmp_path / "vectors" / "0.parquet", 300)
        for kind in ("scores", "best", "matches"):
            (tmp_path / kind).mkdir()
            ledger, to = make_account(tmp_path / kind), tmp_path / kind / "out"
            files = stop_before_charge(KINDS[kind], tmp_path / "vectors", to, ledger, ids="name")
            assert (storage.name_prepared(0) in files) is (kind == "scores")
            made = KINDS[kind](tmp_path / "vectors", to, ledger=ledger, ids="name")
            assert set(made.read()["id"]) <= {f"{number}" for number in range(300)}

    def test_large_blocks_are_not_kept(self, source: Path, tmp_path: Path, account: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prepared, "_MOST_BYTES", 2**12)
            assert list(stop_before_charge(release, source, tmp_path / "out", account)) == ["manifest.json"]
            assert len(release(source, tmp_path / "out", ledger=account).scores()) == 70_000


class TestWithoutACharge:
    def test_rejected_charge(self, source: Path, tmp_path: Path, account: Any) -> None:
        """A budget that is spent during the check: no file and no key is left, and the copies cannot be opened."""
        copies, secrets_ = tmp_path / "copies", []

        def spend(step: str, done: int, total: int) -> None:
            if (step, done) == ("check", total):
                secrets_.append(read_key_rows(account)[0]["secret"])
                shutil.copytree(tmp_path / "out", copies)
                release(source, tmp_path / "other", epsilon=9.0, ledger=account)

        with pytest.raises(BudgetExceeded):
            release(source, tmp_path / "out", ledger=account, progress=spend)
        assert read_folder(tmp_path / "out") == {}
        assert [row["folder"] for row in read_key_rows(account)] == [str(tmp_path / "other")]
        assert None not in open_blocks(copies, bytes.fromhex(secrets_[0]))  # the key opened them while it was there
        left = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
        assert not holds_secret(left, bytes.fromhex(secrets_[0]))

    @pytest.mark.parametrize("is_other", [False, True], ids=["no manifest", "another release"])
    def test_task_that_runs_on(self, tmp_path: Path, account: Any, is_other: bool) -> None:
        """Engines cannot stop every task. One that ends after its release was given up leaves nothing."""
        to = tmp_path / "out"
        stop_before_charge(release, write_ids(tmp_path / "named.parquet", 300), to, account, ids="name")
        (row,) = read_key_rows(account)
        manifest = (to / "manifest.json").read_bytes()
        shutil.rmtree(to / "checks")
        with share_in_process(row["release"], bytes.fromhex(row["secret"])) as handle:
            task = BlockTask(str(to), storage.compute_digest(manifest), handle, "check")
            task.run(0)
            assert len(read_folder(to)) == 3  # the near miss: a release that goes on keeps the block and the hashes
            shutil.rmtree(to / "checks")
            (to / "manifest.json").unlink()
            if is_other:
                (to / "manifest.json").write_bytes(b"{}")
            task.run(0)
        assert list(read_folder(to)) == ["manifest.json"] * is_other

    def test_files_that_were_left(self, source: Path, tmp_path: Path, account: Any) -> None:
        """What tasks and drivers left that were killed does not keep a folder from use. Files of others do."""
        to = tmp_path / "out"
        stop_before_charge(release, source, to, account)
        (to / "manifest.json").unlink()
        (to / "checks" / f"{RELEASE}-{'0' * 16}-00000001.ids").write_bytes(b"left")
        (to / "checks" / "block-notes.txt").write_bytes(b"of the owner")
        with pytest.raises(InvalidInput, match="is not empty"):
            release(source, to, ledger=account)
        (to / "checks" / "block-notes.txt").unlink()
        made = release(source, to, ledger=account)
        assert len(made.scores()) == 70_000
        assert len(account.entries()) == 1
        assert not any(name.startswith("checks/") for name in read_folder(to))

    def test_abandoned(self, source: Path, tmp_path: Path, account: Any) -> None:
        """A release that was never charged is ended by hand: its key goes, and its folder takes another one."""
        keys = tmp_path / "keys"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scoreshield.distributed.key_folder._unlink", lambda _: None)  # it is killed before that
            stop_before_charge(release, source, tmp_path / "out", account, key_folder=keys)
        (row,) = read_key_rows(account)
        assert len(list(keys.iterdir())) == 1
        assert sd.abandon_release(tmp_path / "out", ledger=account.ledger) == 1
        assert read_key_rows(account) == []
        assert read_folder(tmp_path / "out") == {}
        assert list(keys.iterdir()) == []
        left = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
        assert not holds_secret(left, bytes.fromhex(row["secret"]))
        assert len(release(source, tmp_path / "out", query=-QUERY, ledger=account).scores()) == 70_000
        assert len(account.entries()) == 1

    def test_workers_that_get_no_key(self, source: Path, tmp_path: Path, account: Any) -> None:
        """Workers need the key before the charge. Without it nothing is charged, and the folder is empty again."""
        keys = tmp_path / "keys"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scoreshield.distributed.key_folder._write_locked", _fail_to_write)
            for ledger in (account, None):
                with pytest.raises(ss.errors.FileError, match="Cannot write a key"):
                    release(source, tmp_path / "out", ledger=ledger, key_folder=keys)
                assert read_folder(tmp_path / "out") == {}
        assert read_key_rows(account) == []
        assert account.entries() == []


def _fail_to_write(*_: Any) -> int:
    raise OSError(30, "Read-only file system")


MORE_KINDS: dict[str, Callable[..., Any]] = KINDS | {
    "best with ids": lambda source, to, **more: release(source, to, best=40, ids="name", **more),
    "index": lambda source, to, **more: sd.release_index(source, to=to, epsilon=2.0, **more),
    "gram": lambda source, to, **more: sd.release_gram(source, to=to, epsilon=2.0, delta=1e-6, **more),
}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", MORE_KINDS)
def test_a_row_that_is_not_finite(tmp_path: Path, account: Any, kind: str, value: float) -> None:
    """Every kind finds it before the charge, and leaves an empty folder, which takes the corrected release."""
    rows, path = np.random.default_rng(2).standard_normal((300, DIMENSION)), tmp_path / "vectors.parquet"

    def write(last: float) -> None:
        changed = rows.astype(np.float32)
        changed[217, 2] = last
        column = pa.FixedSizeListArray.from_arrays(pa.array(changed.reshape(-1)), DIMENSION)
        parquet.write_table(pa.table({"vector": column, "name": list(range(300))}), path)

    write(value)
    with pytest.raises(InvalidInput, match="a NaN or an infinity; nothing was charged") as caught:
        MORE_KINDS[kind](path, tmp_path / "out", ledger=account)
    assert "217" not in str(caught.value)
    assert account.entries() == []
    assert read_folder(tmp_path / "out") == {}
    write(1.0)
    assert MORE_KINDS[kind](path, tmp_path / "out", ledger=account).guarantee.provenance is not None


class TestWorkersOfNoUse:
    """A worker that cannot do its work after the charge is found before it, whether rows are checked or not."""

    @pytest.mark.parametrize("is_checked", [True, False])
    @pytest.mark.parametrize("kind", MORE_KINDS)
    def test_no_key(self, tmp_path: Path, account: Any, kind: str, is_checked: bool) -> None:
        class OtherMachine(LocalEngine):
            """Its workers do not see the folder of keys."""

            def run(self, task: BlockTask, numbers: Iterable[int]) -> Iterator[BlockFacts]:
                yield from super().run(replace(task, handle=replace(task.handle, folder="/nowhere")), numbers)

        path = write_ids(tmp_path / "vectors.parquet", 300)
        make, more = MORE_KINDS[kind], {"ledger": account, "check_rows": is_checked}
        with pytest.raises(InvalidInput, match="This worker has no key"):
            make(path, tmp_path / "out", engine=OtherMachine(tmp_path / "keys"), **more)
        assert account.entries() == []
        assert read_folder(tmp_path / "out") == {}
        make(path, tmp_path / "out", **more)
        assert len(account.entries()) == 1

    @pytest.mark.parametrize("is_checked", [True, False])
    @pytest.mark.parametrize("kind", MORE_KINDS)
    def test_no_permission_to_write(self, tmp_path: Path, account: Any, kind: str, is_checked: bool) -> None:
        link = os.link

        def deny(source: Any, target: Any) -> None:
            if Path(target).name != storage.MANIFEST:  # which the driver writes
                raise PermissionError(13, "Permission denied")
            link(source, target)

        path = write_ids(tmp_path / "vectors.parquet", 300)
        make, more = MORE_KINDS[kind], {"ledger": account, "check_rows": is_checked}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", deny)
            with pytest.raises(FileError, match=r"Cannot write .*Permission denied"):
                make(path, tmp_path / "out", **more)
        assert account.entries() == []
        assert read_folder(tmp_path / "out") == {}
        make(path, tmp_path / "out", **more)
        assert len(account.entries()) == 1
        assert not any(name.startswith("checks/") for name in read_folder(tmp_path / "out"))

    def test_no_permission_to_remove(self, tmp_path: Path, account: Any) -> None:
        """The sentence names the file and the reason, as on object storage."""
        path, unlink = write_ids(tmp_path / "vectors.parquet", 300), Path.unlink

        def deny(file: Path, **options: Any) -> None:
            if file.suffix == ".trial":
                raise PermissionError(13, "Permission denied")
            unlink(file, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", deny)
            with pytest.raises(FileError, match=r"^Cannot remove .*\.trial: Permission denied\.$"):
                sd.release_index(path, to=tmp_path / "out", epsilon=2.0, ledger=account)
        assert account.entries() == []
        sd.release_index(path, to=tmp_path / "out", epsilon=2.0, ledger=account)
        assert len(account.entries()) == 1

    def test_one_task_twice_at_once(self, tmp_path: Path, account: Any) -> None:
        """A second task of a block finds the empty file of the first one gone when it looks."""
        path, put = write_ids(tmp_path / "vectors.parquet", 300), LocalFolder.put_if_absent

        def overtake(folder: Any, name: str, content: bytes) -> bool:
            if name.endswith(".trial"):
                put(folder, name, content)
                folder.remove(name)
                return False
            return put(folder, name, content)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalFolder, "put_if_absent", overtake)
            release = sd.release_index(path, to=tmp_path / "out", epsilon=2.0, ledger=account)
        assert sum(len(columns["row"]) for columns in release.parts()) == 300
        assert len(account.entries()) == 1


class TestGoingOn:
    def test_blocks_that_were_kept_are_released(self, source: Path, tmp_path: Path, account: Any) -> None:
        """After the charge no row is read again, also by another driver and where the files are gone."""
        to = tmp_path / "out"
        before = stop_before_charge(release, source, to, account)
        expected = open_blocks(to, bytes.fromhex(read_key_rows(account)[0]["secret"]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "release_block", _compute_again)
            act_after(patch, PendingCharge, "commit", lambda: shutil.rmtree(source))
            release(source, to, ledger=account)
        assert list(read_files(to).values()) == expected
        assert len(account.entries()) == 1
        assert before["manifest.json"] == (to / "manifest.json").read_bytes()
        assert not any(name.startswith("checks/") for name in read_folder(to))

    @pytest.mark.parametrize("how", ["gone", "edited", "cut", "empty", "planted", "another block", "another key"])
    @pytest.mark.parametrize("is_charged", [True, False])
    def test_files_that_are_not_used(
        self, source: Path, tmp_path: Path, account: Any, how: str, is_charged: bool
    ) -> None:
        """A block whose file is not the one that was kept is computed again: the same bytes."""
        to, path = tmp_path / "out", tmp_path / "out" / storage.name_prepared(0)
        if is_charged:
            with pytest.MonkeyPatch.context() as patch:
                fail_at_write(patch, "parts/", before=True)
                with pytest.raises(Killed):
                    release(source, to, ledger=account)
        else:
            stop_before_charge(release, source, to, account)
        secret = bytes.fromhex(read_key_rows(account)[0]["secret"])
        expected, content = open_blocks(to, secret), path.read_bytes()
        manifest = Manifest.from_bytes((to / "manifest.json").read_bytes())
        path.unlink()
        if how == "another key":
            with share_in_process(manifest.release, secret[::-1]) as handle:
                prepared.keep_block(manifest, handle, LocalFolder(to), 0, b"planted")
        elif how != "gone":
            path.write_bytes(
                {
                    "edited": content[:100] + bytes([content[100] ^ 1]) + content[101:],
                    "cut": content[:-1],
                    "empty": b"",
                    "planted": bytes(len(content)),
                    "another block": (to / storage.name_prepared(1)).read_bytes(),
                }[how]
            )
        assert open_blocks(to, secret) == [None, expected[1]]
        release(source, to, ledger=account)
        assert list(read_files(to).values()) == expected
        assert len(account.entries()) == 1

    def test_another_release(self, source: Path, tmp_path: Path, account: Any) -> None:
        """A file opens for one release, one snapshot, one request and one size of blocks."""
        use = pytest.MonkeyPatch()
        use_same_key(use, [RELEASE] * 9)
        try:
            stop_before_charge(release, source, tmp_path / "out", account)
            (encrypted,) = [c for n, c in read_folder(tmp_path / "out").items() if n == storage.name_prepared(0)]
            others: dict[str, dict[str, Any]] = {
                "query": {"query": -QUERY},
                "epsilon": {"epsilon": 1.0},
                "size": {"block_rows": 2 * TILE_ROWS},
            }
            for name, options in others.items():
                (tmp_path / name).mkdir()
                ledger = make_account(tmp_path / name)
                stop_before_charge(release, source, tmp_path / name / "out", ledger, **options)
                path = tmp_path / name / "out" / storage.name_prepared(0)
                assert open_blocks(tmp_path / name / "out", SECRET)[0] is not None
                path.write_bytes(encrypted)
                assert open_blocks(tmp_path / name / "out", SECRET)[0] is None
        finally:
            use.undo()

    def test_changed_size_of_blocks(self, source: Path, tmp_path: Path, account: Any) -> None:
        """The same call with other blocks is another request."""
        before = stop_before_charge(release, source, tmp_path / "out", account)
        with pytest.raises(InvalidInput, match="begun with other arguments"):
            release(source, tmp_path / "out", ledger=account, block_rows=2 * TILE_ROWS)
        assert read_folder(tmp_path / "out") == before
        assert account.entries() == []

    def test_two_views_of_one_block(self, source: Path, tmp_path: Path, account: Any) -> None:
        """Of two workers that round differently, the file of the first one is kept, and opened by both."""
        to = tmp_path / "out"
        stop_before_charge(release, source, to, account)
        (row,) = read_key_rows(account)
        manifest = (to / "manifest.json").read_bytes()
        before = (to / storage.name_prepared(0)).read_bytes()
        with share_in_process(row["release"], bytes.fromhex(row["secret"])) as handle:
            prepared.keep_block(Manifest.from_bytes(manifest), handle, LocalFolder(to), 0, b"of the second worker")
            task = BlockTask(str(to), storage.compute_digest(manifest), handle, "check")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(blocks, "release_block", _compute_again)
                task.run(0)
        assert (to / storage.name_prepared(0)).read_bytes() == before


def _compute_again(*_: Any, **__: Any) -> bytes:
    raise AssertionError("A block was computed again.")


def test_the_key_ends_with_what_it_opens(source: Path, tmp_path: Path, account: Any) -> None:
    """Where a driver is killed between the end of its key and the end of its files, the files cannot be opened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_remove_checks", _raise_killed)
        patch.setattr(PendingCharge, "commit", _charge_nothing)
        with pytest.raises(Killed):
            release(source, tmp_path / "out", ledger=account)
    assert read_key_rows(account) == []
    assert ReleaseKeyTable(account.ledger).list_kept() == {}
    left = read_folder(tmp_path / "out")
    assert [storage.name_prepared(number) for number in (0, 1)] == list(left)
    assert len(release(source, tmp_path / "out", ledger=account).scores()) == 70_000  # with a key of its own
    assert len(account.entries()) == 1
    assert not any(name.startswith("checks/") for name in read_folder(tmp_path / "out"))


def _raise_killed(*_: Any) -> None:
    raise Killed


def _charge_nothing(*_: Any, **__: Any) -> Any:
    raise LedgerError("The ledger is gone.")
