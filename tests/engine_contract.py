"""What every engine must hold to, whatever fails: one view, one charge, and a key that is nowhere to be read.

`EngineContract` is the base of a test class for each engine, which has two fixtures: ``engine``, started once for all
tests of a module, and ``traces``, the folders and files in which the engine leaves anything.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import engine_tasks
import numpy as np
import pytest

from scoreshield import distributed
from scoreshield.distributed import DistributedRelease, driver, open_release, release_matches, release_scores, storage
from scoreshield.distributed.blocks import BlockTask
from scoreshield.distributed.driver import Driver
from scoreshield.distributed.engines.base import Engine
from scoreshield.distributed.engines.outcomes import find_local_folder
from scoreshield.distributed.key_folder import share_in_folder
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.keys import KeyHandle
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.ledger import Ledger

TESTS = Path(__file__).resolve().parent
ROWS, DIMENSION = 3 * TILE_ROWS + 1000, 4
QUERY = np.arange(1.0, DIMENSION + 1)

#: How each kind of release is made, from a collection, with further arguments.
RELEASES: dict[str, Callable[..., DistributedRelease]] = {
    "scores": lambda source, **more: release_scores(source, QUERY, epsilon=2, mechanism="staircase", **more),
    "batch": lambda source, **more: release_scores(
        source, np.stack([QUERY, -QUERY]), epsilon=2, delta=1e-6, mechanism="gaussian", **more
    ),
    "best": lambda source, **more: release_scores(source, QUERY, epsilon=40, mechanism="staircase", best=5, **more),
    "matches": lambda source, **more: release_matches(source, QUERY, 0.4, epsilon=4, refine=0.5, **more),
}
if hasattr(distributed, "release_index"):
    RELEASES["index"] = lambda source, **more: distributed.release_index(source, epsilon=8, **more)

#: A driver in a process of its own, which is killed after the first block of a step that is reported.
_DYING_DRIVER = """
import os, signal, sys
from engine_contract import make_scores
from scoreshield.privacy.ledger import Ledger

def die(step, done, total):
    if step == sys.argv[5]:
        os.kill(os.getpid(), signal.SIGKILL)

make_scores(sys.argv[1], to=sys.argv[2], ledger=Ledger(sys.argv[3]).account("people"), engine=sys.argv[4], progress=die)
"""


def make_scores(source: Any, **more: Any) -> DistributedRelease:
    """Make the release of scores that most tests make: four blocks."""
    return RELEASES["scores"](source, block_rows=TILE_ROWS, **more)


def read_parts(folder: Path) -> dict[str, bytes]:
    """Read the files of the blocks that are in the folder of a release."""
    return {path.name: path.read_bytes() for path in (folder / storage.PARTS).glob("part-*")}


def list_writings(secret: bytes) -> list[bytes]:
    """List the ways in which a file could hold a key."""
    texts = [secret.hex(), secret.hex().upper(), str(list(secret)), repr(secret)[2:-1]]
    starts = [base64.b64encode(b"\0" * shift + secret)[8:32] for shift in range(3)]  # wherever it begins
    return [secret, *(text.encode() for text in texts), *starts]


def find_key(secret: bytes, traces: Iterable[Path]) -> list[Path]:
    """Find the files, also below folders, that hold a key."""
    writings, found = list_writings(secret), []
    for path in list_files(traces):
        content = path.read_bytes()
        found += [path] * any(writing in content for writing in writings)
    return found


def find_text(text: bytes, traces: Iterable[Path]) -> list[Path]:
    """Find the files, also below folders, that hold a text."""
    return [path for path in list_files(traces) if text in path.read_bytes()]


def list_files(traces: Iterable[Path]) -> list[Path]:
    """List files, and the files below folders."""
    found = itertools.chain.from_iterable(path.rglob("*") if path.is_dir() else [path] for path in traces)
    return [path for path in found if path.is_file()]


def read_processes() -> bytes:
    """Read the arguments and the environments of all processes that this user can look at."""
    found = []
    for path in [*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")]:
        with contextlib.suppress(OSError):  # it ended, or is of another user
            found.append(path.read_bytes())
    return b"\n".join(found)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of four tiles, the last of them short."""
    path = tmp_path_factory.mktemp("collection") / "vectors.npy"
    np.save(path, np.random.default_rng(5).standard_normal((ROWS, DIMENSION)).astype(np.float32))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=100, delta=0)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The key of all releases of a test, known to the test only."""
    key = os.urandom(32)
    monkeypatch.setattr(driver, "make_secret", lambda: key)
    return key


@pytest.fixture
def task(source: Path, tmp_path: Path, secret: bytes) -> Iterator[BlockTask]:
    """The task of a release that is begun, with its key in a folder."""
    taken: list[Manifest] = []

    class Stop(Exception):
        pass

    def stop(self: Driver, manifest: Manifest) -> None:
        begun = self._begin(manifest)
        assert begun is not None
        taken.append(begun[0])
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Driver, "make", stop)
        with pytest.raises(Stop):
            make_scores(source, to=tmp_path / "begun")
    digest = storage.compute_digest(taken[0].to_bytes())
    with share_in_folder(tmp_path / "keys", taken[0].release, secret) as handle:
        yield BlockTask(str(tmp_path / "begun"), digest, handle)


class EngineContract:
    """The tests of one engine."""

    name: str

    @pytest.fixture
    def traces(self) -> list[Path]:
        """Where the engine leaves anything."""
        raise NotImplementedError

    def collect(self, engine: Any, task: BlockTask, numbers: list[int]) -> list[list[Any]]:
        """Let the engine compute one lazy result twice, and return both."""
        raise NotImplementedError

    def dump_task(self, task: BlockTask) -> bytes:
        """Return what the engine sends to a worker."""
        raise NotImplementedError

    def run_with(self, engine: Any, task: BlockTask, path: Path) -> None:
        """Run a task on workers whose search path for modules begins with another folder."""
        raise NotImplementedError

    @pytest.mark.parametrize("kind", RELEASES)
    def test_same_as_local(self, engine: Engine, source: Path, tmp_path: Path, kind: str) -> None:
        """A research seed gives the same bytes on this engine and in this process, for blocks of any size."""
        make = RELEASES[kind]
        here = make(source, to=tmp_path / "here", seed=7, block_rows=2 * TILE_ROWS)
        there = make(source, to=tmp_path / "there", seed=7, block_rows=2 * TILE_ROWS, engine=engine)
        smaller = make(source, to=tmp_path / "smaller", seed=7, block_rows=TILE_ROWS, engine=engine)
        assert read_parts(tmp_path / "here") == read_parts(tmp_path / "there")
        assert len(smaller) == 4
        if kind != "best":  # the best of each block
            for name, values in here.read().items():
                assert np.array_equal(values, there.read()[name])
                assert np.array_equal(values, smaller.read()[name])

    def test_one_charge(self, engine: Engine, source: Path, tmp_path: Path, ledger: Ledger) -> None:
        """One call charges once and reports each block; the same call again charges nothing and changes nothing."""
        steps: list[tuple[str, int, int]] = []
        account = ledger.account("people")
        first = make_scores(
            source, to=tmp_path / "a", ledger=account, engine=engine, progress=lambda *step: steps.append(step)
        )
        assert steps == [(step, done, 4) for step in ("check", "release") for done in (1, 2, 3, 4)]
        parts = read_parts(tmp_path / "a")
        make_scores(source, to=tmp_path / "a", ledger=account, engine=engine)
        assert ledger.spent == 2
        assert read_parts(tmp_path / "a") == parts
        kept = ReleaseKeyTable(ledger).read(first.manifest.release)
        assert kept is not None
        assert kept.secret is None

    def test_other_noise_each_time(self, engine: Engine, source: Path, tmp_path: Path) -> None:
        """Without a seed two releases differ, so the equality in other tests is not that of a constant."""
        one = make_scores(source, to=tmp_path / "a", engine=engine)
        other = make_scores(source, to=tmp_path / "b", engine=engine)
        assert (one.scores() != other.scores()).mean() > 0.9

    def test_collects_twice(self, engine: Engine, task: BlockTask) -> None:
        """A lazy result that is computed twice gives one view, also where the first one was lost."""
        first, second = self.collect(engine, task, [0, 1, 2, 3])
        assert sorted(first) == sorted(second)
        parts = read_parts(Path(task.address))
        assert len(parts) == 4
        for path in (Path(task.address) / storage.PARTS).iterdir():
            path.unlink()
        assert sorted(self.collect(engine, task, [0, 1, 2, 3])[0]) == sorted(first)
        assert read_parts(Path(task.address)) == parts

    def test_task_runs_twice_at_once(self, engine: Engine, task: BlockTask) -> None:
        """Copies of a task that run at once report one file."""
        found = list(engine.run(task, [0, 0, 1, 1, 0, 1]))
        assert sorted(facts.number for facts in found) == [0, 0, 0, 1, 1, 1]
        assert len(set(found)) == 2
        assert len(read_parts(Path(task.address))) == 2

    @pytest.mark.parametrize("kind", [engine_tasks.DiesBefore, engine_tasks.DiesAfter])
    def test_killed_worker(
        self, engine: Engine, source: Path, tmp_path: Path, kind: type[BlockTask], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker that is killed before or after it wrote a block changes nothing."""
        make_scores(source, to=tmp_path / "here", seed=7)
        monkeypatch.setattr(driver, "BlockTask", kind)
        make_scores(source, to=tmp_path / "there", seed=7, engine=engine)
        assert (tmp_path / "there.died").exists()
        assert read_parts(tmp_path / "here") == read_parts(tmp_path / "there")

    @pytest.mark.parametrize("step", ["check", "release"])
    def test_killed_driver(self, engine: Engine, source: Path, tmp_path: Path, ledger: Ledger, step: str) -> None:
        """A driver that was killed is followed by another: the same blocks, one charge, and no key is left."""
        is_charged = step == "release"
        address = f"sqlite:///{tmp_path}/ledger.db"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-c", _DYING_DRIVER, str(source), str(tmp_path / "a"), address, self.name, step]
        done = subprocess.run(command, env=environment, timeout=120, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        parts = read_parts(tmp_path / "a")
        assert bool(parts) is is_charged
        assert (tmp_path / "a" / storage.CHECKS).exists()  # encrypted blocks
        assert ledger.spent == 2 * is_charged
        with pytest.raises(InvalidInput, match=r"no (whole )?release"):
            open_release(tmp_path / "a")
        release = make_scores(source, to=tmp_path / "a", ledger=ledger.account("people"), engine=engine)
        assert ledger.spent == 2
        assert len(release) == 4
        assert parts.items() <= read_parts(tmp_path / "a").items()
        assert list((tmp_path / "a" / storage.CHECKS).iterdir()) == []
        assert [path for path in find_local_folder().iterdir() if release.manifest.release in path.name] == []

    def test_interrupt(self, engine: Engine, source: Path, tmp_path: Path, ledger: Ledger, secret: bytes) -> None:
        """Ctrl-C ends the tasks and removes the key; the same call goes on, without a second charge."""

        def interrupt(step: str, *_: int) -> None:
            if step == "release":
                raise KeyboardInterrupt

        account = ledger.account("people")
        with pytest.raises(KeyboardInterrupt):
            make_scores(source, to=tmp_path / "a", ledger=account, engine=engine, progress=interrupt)
        parts = read_parts(tmp_path / "a")
        assert parts
        release = make_scores(source, to=tmp_path / "a", ledger=account, engine=engine)
        assert ledger.spent == 2
        assert parts.items() <= read_parts(tmp_path / "a").items()
        assert find_key(secret, [find_local_folder()]) == []
        assert len(release) == 4

    def test_changed_file(self, engine: Engine, tmp_path: Path, ledger: Ledger) -> None:
        """A file that changes after the check stops the tasks with our sentence."""
        source = tmp_path / "vectors.npy"
        np.save(source, np.ones((ROWS, DIMENSION), dtype=np.float32))

        def change(step: str, done: int, total: int) -> None:
            if (step, done) == ("check", total):
                np.save(source, np.zeros((ROWS, DIMENSION), dtype=np.float32))

        account = ledger.account("people")
        with pytest.raises(InvalidInput, match="changed"):
            make_scores(source, to=tmp_path / "a", ledger=account, engine=engine, progress=change)
        assert read_parts(tmp_path / "a") == {}

    def test_row_that_is_not_finite(self, engine: Engine, tmp_path: Path, ledger: Ledger) -> None:
        """The check before the charge runs on the engine, and names no row."""
        rows = np.ones((ROWS, DIMENSION), dtype=np.float32)
        rows[ROWS - 1, 2] = np.nan
        np.save(tmp_path / "vectors.npy", rows)
        with pytest.raises(InvalidInput, match="a NaN or an infinity; nothing was charged"):
            make_scores(tmp_path / "vectors.npy", to=tmp_path / "a", ledger=ledger.account("people"), engine=engine)
        assert ledger.spent == 0

    def test_errors_of_tasks(self, engine: Engine, task: BlockTask, traces: list[Path]) -> None:
        """Our error arrives as it is; of another one only its class and line, and nothing of it in any file."""
        facts = (task.address, task.digest, task.handle)
        with pytest.raises(FileError, match="No space left on device"):
            list(engine.run(engine_tasks.FindsDiskFull(*facts), [0, 1]))
        with pytest.raises(InvalidInput, match=r"ZeroDivisionError \(engine_tasks.py, line \d+\)") as caught:
            list(engine.run(engine_tasks.Fails(*facts), [0, 1]))
        assert engine_tasks.ROW_TEXT not in str(caught.value)
        assert caught.value.__cause__ is None
        assert find_text(engine_tasks.ROW_TEXT.encode(), traces) == []

    def test_no_key(self, engine: Engine, task: BlockTask, tmp_path: Path) -> None:
        """A worker that cannot read the folder of keys says so."""
        wrong = BlockTask(task.address, task.digest, KeyHandle(task.handle.release, str(tmp_path / "elsewhere")))
        with pytest.raises(InvalidInput, match="This worker has no key of the release"):
            list(engine.run(wrong, [0]))

    def test_worker_without_package(self, engine: Engine, task: BlockTask, tmp_path: Path) -> None:
        """A worker that cannot import the package says so."""
        (tmp_path / "path" / "scoreshield").mkdir(parents=True)
        (tmp_path / "path" / "scoreshield" / "__init__.py").write_text("raise ImportError('0.0318447')\n")
        with pytest.raises(InvalidInput, match=r"^A worker cannot import scoreshield: install the same version"):
            self.run_with(engine, task, tmp_path / "path")

    def test_worker_of_another_version(self, engine: Engine, task: BlockTask, tmp_path: Path) -> None:
        """A worker with another version says so."""
        import scoreshield

        package = tmp_path / "path" / "scoreshield"
        package.mkdir(parents=True)
        for entry in Path(scoreshield.__file__).parent.iterdir():
            if entry.name != "_version.py":
                (package / entry.name).symlink_to(entry)
        (package / "_version.py").write_text('VERSION = "9.9.9"\n__version__ = VERSION\n')
        with pytest.raises(InvalidInput, match=r"this process has 9\.9\.9: install the same version on every worker"):
            self.run_with(engine, task, tmp_path / "path")

    def test_key_folder(self, engine: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder for the key that the caller names is used, must be private, and is empty at the end."""
        seen: list[list[Path]] = []
        folder = tmp_path / "keys"
        folder.mkdir(mode=0o755)
        monkeypatch.setattr(engine, "_key_folder", folder)
        with pytest.raises(InvalidInput, match="Others may read the folder of keys"):
            make_scores(source, to=tmp_path / "a", engine=engine)
        folder.chmod(0o700)

        def look(*_: Any) -> None:
            seen.append(list(folder.iterdir()))

        release = make_scores(source, to=tmp_path / "b", engine=engine, progress=look)
        assert len(seen) == 8
        for paths in seen:  # also during the check, which encrypts what it computes
            assert [path.name.partition("-")[0] for path in paths] == [release.manifest.release]
        assert list(folder.iterdir()) == []

    def test_key_is_nowhere(
        self, engine: Engine, source: Path, tmp_path: Path, ledger: Ledger, secret: bytes, traces: list[Path]
    ) -> None:
        """After a whole release the key is in no file of the engine, the release or the ledger.

        While it runs, the key is in no argument and no environment of a process.
        """
        processes: list[bytes] = []
        release = make_scores(
            source,
            to=tmp_path / "a",
            ledger=ledger.account("people"),
            engine=engine,
            progress=lambda *_: processes.append(read_processes()),
        )
        assert len(processes) == 8
        assert all(b"python" in found for found in processes)
        assert not any(writing in found for found in processes for writing in list_writings(secret))
        task = BlockTask(release.address, "0" * 64, KeyHandle(release.manifest.release, str(tmp_path)))
        assert not any(writing in self.dump_task(task) for writing in list_writings(secret))
        assert len(list_files(traces)) >= 3
        assert find_key(secret, [*traces, tmp_path]) == []

    def test_carried_key_is_found(self, task: BlockTask, secret: bytes) -> None:
        """The search of what is sent finds a key that travels with a task."""
        wrong = engine_tasks.CarriesKey(task.address, task.digest, task.handle, secret=secret)
        assert any(writing in self.dump_task(wrong) for writing in list_writings(secret))
