"""Dask on real local clusters: workers, tasks, drivers and schedulers that end, and where the key is not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster_support
import numpy as np
import pytest
from cluster_support import (
    QUERY,
    RELEASE,
    SECRET,
    has_key,
    holds_secret,
    make_account,
    read_files,
    release,
    wait_until,
    write_collection,
)

import scoreshield as ss
import scoreshield.distributed as sd
from scoreshield.distributed import blocks, driver, storage
from scoreshield.distributed.blocks import BlockTask
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.keys import KeyHandle, share_in_process
from scoreshield.errors import InvalidInput

distributed: Any = pytest.importorskip("distributed", reason="the 'dask' extra is not installed")
cloudpickle: Any = pytest.importorskip("cloudpickle", reason="the 'dask' extra is not installed")
dask: Any = pytest.importorskip("dask", reason="the 'dask' extra is not installed")
from scoreshield.distributed.engines.dask import DaskEngine  # noqa: E402

ROWS = (150_000, 100, 170_000)
BLOCKS = 5


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "vectors"
    write_collection(folder, ROWS)
    return folder


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of files that the workers write for themselves."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def find_client(workplace: Path) -> Iterator[Callable[[], Any]]:
    """Find a client of a cluster with two processes that have no faults.

    The tests share one cluster. If Dask does not replace a worker that a test killed, another cluster is started.
    """
    clients: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("OMP_NUM_THREADS", "1")
        # Dask gives a worker up that is away this long after it was killed, also if it is away for a second time.
        stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}))

        def find() -> Any:
            for client in clients[-1:]:
                with contextlib.suppress(OSError):
                    client.wait_for_workers(2, timeout=20)
                    client.run(cluster_support.restore_worker)
                    return client
            cluster = distributed.LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                local_directory=str(workplace),
                scheduler_kwargs={"allowed_failures": 10},
            )
            stack.enter_context(cluster)
            clients.append(stack.enter_context(distributed.Client(cluster)))
            return clients[-1]

        yield find


@pytest.fixture
def client(find_client: Callable[[], Any]) -> Any:
    return find_client()


@pytest.fixture(autouse=True)
def _same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "make_secret", lambda: SECRET)
    monkeypatch.setattr(driver, "make_release_id", lambda: RELEASE)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parts of the same release on one machine."""
    to = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "make_secret", lambda: SECRET)
        patch.setattr(driver, "make_release_id", lambda: RELEASE)
        release(source, to, ledger=make_account(to.parent))
    assert len(read_files(to)) == BLOCKS
    return read_files(to)


def find_workers(client: Any) -> list[str]:
    return sorted(client.scheduler_info()["workers"])


def list_workers(client: Any) -> list[str]:
    """List the workers that the scheduler knows now; the client's own list may be old."""
    return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.workers))


def once(step: str, work: Callable[[], object], after: int = 1) -> Callable[[str, int, int], None]:
    """Return a progress function that does something after the first block of a step, or after a later one."""

    def act(current: str, done: int, _: int) -> None:
        if (current, done) == (step, after):
            work()

    return act


def kill_worker(client: Any, address: str) -> None:
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)


def list_tasks(client: Any) -> list[str]:
    return client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])


class TestOneView:
    """One charge, and the bytes of one machine, whatever ends."""

    @pytest.fixture(autouse=True)
    def _check(self, tmp_path: Path, whole: dict[str, bytes]) -> Iterator[None]:
        self.account, self.to = make_account(tmp_path), tmp_path / "out"
        yield
        assert read_files(self.to) == whole
        assert len(self.account.entries()) == 1
        kept = ReleaseKeyTable(self.account.ledger).read(RELEASE)
        assert kept is not None
        assert kept.secret is None

    def release(self, source: Path, engine: Any, **options: Any) -> Any:
        return release(source, self.to, engine=engine, ledger=self.account, **options)

    def test_collected_twice(self, client: Any, source: Path) -> None:
        """A second release reads what the first one left, and neither leaves a task or a key on the cluster."""
        seen: list[tuple[str, int, int]] = []
        first = self.release(source, client, progress=lambda *facts: seen.append(facts))
        assert seen == [(step, done, BLOCKS) for step in ("check", "release") for done in range(1, BLOCKS + 1)]
        again = self.release(source, client)
        assert np.array_equal(first.scores(), again.scores())
        assert np.array_equal(first.scores(), first.scores())
        assert list_tasks(client) == []
        assert not any(client.run(has_key, RELEASE).values())

    @pytest.fixture(params=[True, False], ids=["encrypted blocks", "computed blocks"])
    def any_client(self, client: Any, request: pytest.FixtureRequest) -> Any:
        """Blocks are computed before the charge, and opened after it; or computed after it."""
        if not request.param:
            client.run(cluster_support.keep_no_blocks)
        return client

    @pytest.mark.parametrize("step", ["check", "release"])
    def test_killed_worker_that_holds_results(self, any_client: Any, source: Path, step: str) -> None:
        client = any_client
        client.run(cluster_support.slow_down, 0.1)
        killed: list[str] = []

        def kill() -> None:
            holders = client.run_on_scheduler(
                lambda dask_scheduler: [worker.address for worker in dask_scheduler.workers.values() if worker.has_what]
            )
            kill_worker(client, holders[0])
            killed.append(holders[0])

        self.release(source, client, progress=once(step, kill))
        assert killed  # the fixture compares the release with one that nothing disturbed

    @pytest.mark.parametrize("prefix", ["parts/", "checks/"])
    def test_task_that_dies_after_it_wrote(self, client: Any, source: Path, tmp_path: Path, prefix: str) -> None:
        mark = tmp_path / "died"
        client.run(cluster_support.die_after_writing, str(mark), prefix)
        self.release(source, client)
        assert mark.exists()

    def test_restart(self, any_client: Any, source: Path) -> None:
        """A cluster that is restarted during a release ends it with a sentence, and the same call goes on."""
        client = any_client
        client.run(cluster_support.slow_down, 0.1)
        with pytest.raises(InvalidInput, match=r"The cluster was restarted, .*; start the same release again to go on"):
            # Without waiting: on a busy machine Dask may give up a worker that a test before this one killed.
            self.release(source, client, progress=once("release", lambda: client.restart(wait_for_workers=False)))
        assert not (self.to / "release.json").exists()
        self.release(source, client)

    def test_scheduler_that_goes_away(self, source: Path) -> None:
        """The driver says so, and the release goes on elsewhere."""
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
            distributed.LocalCluster(
                n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
            ) as cluster,
            distributed.Client(cluster.scheduler_address, timeout=1) as client,
        ):
            stop = once("release", lambda: cluster.sync(cluster.scheduler.close))
            with pytest.raises(InvalidInput, match="its scheduler is gone; start the same release again to go on"):
                self.release(source, client, progress=stop)
        self.release(source, None)

    @pytest.mark.parametrize("after", [1, BLOCKS], ids=["before the charge", "after it"])
    def test_full_disk_on_one_worker(self, client: Any, source: Path, after: int) -> None:
        limited = find_workers(client)[:1]
        client.run(cluster_support.slow_down, 0.25)  # so that blocks are left when the disk is full
        fill = once("check", lambda: client.run(cluster_support.limit_files, 1000, workers=limited), after)
        with pytest.raises(ss.errors.FileError, match=r"^Cannot write .*: File too large; start the same") as caught:
            self.release(source, client, progress=fill)
        assert "\n" not in str(caught.value)
        assert len(self.account.entries()) == (after == BLOCKS)
        client.run(cluster_support.restore_worker)
        self.release(source, client)

    def test_worker_without_the_package(self, client: Any, source: Path) -> None:
        """It is found before the charge, also if no row is read before it."""
        client.run(cluster_support.hide_package, workers=find_workers(client)[:1])
        for check_rows in (True, False):
            with pytest.raises(InvalidInput, match=r"^A worker has no scoreshield: install the same version on every"):
                self.release(source, client, check_rows=check_rows)
        assert not self.to.exists()
        assert self.account.entries() == []
        client.run(cluster_support.restore_worker)
        self.release(source, client)

    def test_worker_of_another_version(self, client: Any, source: Path) -> None:
        change = once("check", lambda: client.run(cluster_support.change_version, workers=find_workers(client)[:1]))
        with pytest.raises(InvalidInput, match="install the same version on every worker"):
            self.release(source, client, progress=change)
        client.run(cluster_support.restore_worker)
        self.release(source, client)


DRIVER = """
import sys
import numpy as np
import scoreshield as ss
import scoreshield.distributed as sd

if __name__ == "__main__":
    source, to, ledger, scheduler = sys.argv[1:]
    sd.release_scores(
        source, np.array([1.0, -2.0, 0.5, 3.0]), to=to, epsilon=2.0, mechanism="staircase", block_rows=65536,
        ledger=ss.Ledger.open(ledger).account("people"), engine="dask", scheduler=scheduler,
    )
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ended_driver(client: Any, source: Path, tmp_path: Path, how: signal.Signals) -> None:
    """A driver in a process of its own is killed, or interrupted, during its blocks. Another one goes on."""
    client.run(cluster_support.slow_down, 0.25)
    account, to = make_account(tmp_path), tmp_path / "out"
    address = client.scheduler.address
    command = [sys.executable, "-c", DRIVER, str(source), str(to), account.ledger.name, address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        try:
            wait_until(lambda: (to / storage.name_part(0)).exists() or process.poll() is not None)
            process.send_signal(how)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode in (-how, 130), errors.decode()
    assert (b"KeyboardInterrupt" in errors) is (how == signal.SIGINT)
    assert not (to / "release.json").exists()
    assert len(account.entries()) == 1
    found = (to / "manifest.json").read_bytes()
    manifest = driver.Manifest.from_bytes(found)
    kept = ReleaseKeyTable(account.ledger).read(manifest.release)
    assert kept is not None
    assert kept.secret is not None
    assert not holds_secret(errors, kept.secret)
    wait_until(lambda: list_tasks(client) == [])
    if how == signal.SIGINT:
        assert not any(client.run(has_key, manifest.release).values())
    with share_in_process(manifest.release, kept.secret) as handle:
        expected = [blocks.release_block(manifest, handle, number) for number in range(BLOCKS)]
    before = {name: content for name, content in read_files(to).items() if not storage.is_temporary(name)}
    assert before
    release(source, to, engine=client, ledger=account)
    assert list(read_files(to).values()) == expected
    assert before.items() <= read_files(to).items()
    assert len(account.entries()) == 1
    assert (to / "manifest.json").read_bytes() == found
    assert not any(client.run(has_key, manifest.release).values())


@pytest.mark.parametrize("has_other_bits", [False, True])
def test_one_task_on_two_workers_at_once(
    client: Any, source: Path, tmp_path: Path, whole: dict[str, bytes], has_other_bits: bool
) -> None:
    """Both report the same file, also if one of them computes other last bits: the first file is the only view."""
    first, second = find_workers(client)
    client.run(cluster_support.slow_down, 0.3)  # both compute before either writes
    if has_other_bits:
        client.run(cluster_support.change_last_bits, workers=[second])
    to = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        release(source, to, progress=once("check", interrupt))
    digest = storage.compute_digest((to / "manifest.json").read_bytes())
    with DaskEngine(client).share_key(RELEASE, SECRET) as handle:
        task = BlockTask(str(to), digest, handle)
        futures = [
            client.submit(task.run, 0, key=f"twice-{number}", workers=[worker], pure=False)
            for number, worker in enumerate((first, second))
        ]
        reports = [future.result(timeout=30) for future in futures]
        # What each would have written.
        free = [
            client.submit(blocks.release_block, driver.Manifest.from_bytes((to / "manifest.json").read_bytes()),
                          handle, 0, workers=[worker], pure=False).result(timeout=30)
            for worker in (first, second)
        ]  # fmt: skip
    assert reports[0] == reports[1]
    assert len(list(to.glob("parts/*"))) == 1
    written = (to / storage.name_part(0)).read_bytes()
    assert storage.compute_digest(written) == reports[0].digest
    assert written in free
    assert (free[0] != free[1]) is has_other_bits
    assert free[0] == whole["part-00000000.parquet"]


def interrupt() -> None:
    raise KeyboardInterrupt


def test_worker_that_joins_late_gets_the_key(client: Any) -> None:
    old = find_workers(client)
    with DaskEngine(client).share_key(RELEASE, SECRET):
        assert list(client.run(has_key, RELEASE).values()) == [True, True]
        kill_worker(client, old[0])
        wait_until(lambda: len(found := list_workers(client)) == 2 and old[0] not in found)
        assert list(client.run(has_key, RELEASE).values()) == [True, True]
    assert list(client.run(has_key, RELEASE).values()) == [False, False]
    plugins = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins))
    assert not any(RELEASE in name for name in plugins)


def test_workers_that_are_threads_of_one_process() -> None:
    """A worker that leaves does not take the key from the others in its process."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        with DaskEngine(client).share_key(RELEASE, SECRET) as handle:
            cluster.scale(1)
            wait_until(lambda: len(list_workers(client)) == 1)
            assert client.submit(handle.seal_text, "a", "b", pure=False).result(timeout=30)
        assert not has_key(RELEASE)


def test_row_that_is_not_finite(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found on the worker before the charge. No log and no error names the record."""
    vectors = write_collection(tmp_path / "vectors", (70_000, 500))
    vectors[70_123, 2] = np.inf
    np.save(tmp_path / "vectors" / "1.npy", vectors[70_000:])
    account = make_account(tmp_path)
    lines = io.StringIO()  # what the scheduler, which runs in this process, logs as errors
    handler, logger = logging.StreamHandler(lines), logging.getLogger("distributed.core")
    monkeypatch.setattr(logger, "level", logging.ERROR)
    logger.addHandler(handler)
    try:
        sentence = r"^The collection holds vectors with .* a NaN .*; nothing was charged\.$"
        with pytest.raises(InvalidInput, match=sentence):
            release(tmp_path / "vectors", tmp_path / "out", engine=client, ledger=account)
    finally:
        logger.removeHandler(handler)
    assert lines.getvalue() == ""  # the plugin of the key is removed once
    assert account.entries() == []
    assert not (tmp_path / "out" / "parts").exists()
    logs = repr(client.get_worker_logs())
    assert "nothing was charged" in logs
    assert "70123" not in logs
    assert "inf," not in logs
    found = release(tmp_path / "vectors", tmp_path / "other", engine=client, ledger=account, check_rows=False)
    assert np.isfinite(found.scores()).all()


def test_worker_without_a_key(client: Any, source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        release(source, tmp_path / "out", progress=once("check", interrupt))
    digest = storage.compute_digest((tmp_path / "out" / "manifest.json").read_bytes())
    task = BlockTask(str(tmp_path / "out"), digest, KeyHandle(RELEASE))
    with pytest.raises(InvalidInput, match="has no key"):
        list(DaskEngine(client).run(task, [0]))


def test_device_that_one_worker_lacks(client: Any, tmp_path: Path) -> None:
    """Each worker is asked, also where there is one block only, which another worker would check."""
    np.save(tmp_path / "vectors.npy", np.random.default_rng(1).standard_normal((300, 4)).astype(np.float32))
    first, second = find_workers(client)
    for without, having in ((first, second), (second, first)):
        client.run(cluster_support.have_torch, True, workers=[having])
        client.run(cluster_support.have_torch, False, workers=[without])
        for check_rows in (True, False):
            with pytest.raises(InvalidInput, match="needs the 'gpu' extra"):
                sd.release_gram(
                    tmp_path / "vectors.npy",
                    to=tmp_path / "out",
                    epsilon=5.0,
                    delta=1e-6,
                    device="torch",
                    engine=client,
                    check_rows=check_rows,
                )
        assert not (tmp_path / "out" / "manifest.json").exists()
        client.run(cluster_support.restore_worker)


def test_clients_that_cannot_be_used(client: Any) -> None:
    with distributed.Client(client.scheduler.address) as other:
        pass
    with pytest.raises(InvalidInput, match="is closed or asynchronous"):
        DaskEngine(other)

    async def give() -> None:
        async with distributed.Client(client.scheduler.address, asynchronous=True) as other:
            with pytest.raises(InvalidInput, match="is closed or asynchronous"):
                DaskEngine(other)

    asyncio.run(give())


def test_unknown_scheduler() -> None:
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(InvalidInput, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"),
    ):
        DaskEngine(scheduler="tcp://127.0.0.1:9")


class TestKeySearch:
    """The key is in no task, graph, page, log, event or file. The plugin on the scheduler holds it: see the docs."""

    @pytest.mark.parametrize("step", ["check", "release"])
    def test_while_a_release_runs(self, client: Any, source: Path, tmp_path: Path, workplace: Path, step: str) -> None:
        found: dict[str, bytes] = {}

        def search() -> None:
            found.update(client.run_on_scheduler(cluster_support.dump_scheduler))
            found["scheduler logs"] = repr(client.get_scheduler_logs()).encode()
            found["worker logs"] = repr(client.get_worker_logs()).encode()
            found["nanny logs"] = repr(client.get_worker_logs(nanny=True)).encode()
            found["client events"] = repr(client.get_events()).encode()
            found["call stacks"] = repr(client.call_stack()).encode() + repr(client.profile()).encode()
            found["pages"] = read_pages(client)
            found["processes"] = repr(client.run(cluster_support.dump_process)).encode()
            found["local files"] = read_all(workplace)
            found["release"] = read_all(tmp_path / "out")

        release(source, tmp_path / "out", engine=client, seed=None, progress=once(step, search))
        found["whole release"] = read_all(tmp_path / "out")
        assert holds_secret(found.pop("plugins"), SECRET)  # the exception, which also shows that the search works
        assert [name for name, content in found.items() if holds_secret(content, SECRET)] == []
        assert f"scoreshield-{step}".encode() in found["tasks"]
        assert f"scoreshield-{step}".encode() in found["transitions"]
        assert all(len(content) > 20 for name, content in found.items() if name != "nanny logs")
        assert b"OMP_NUM_THREADS" in found["processes"]
        assert b"python" in found["processes"]
        after = client.run_on_scheduler(cluster_support.dump_scheduler)
        assert not any(holds_secret(content, SECRET) for content in after.values())

    def test_task(self) -> None:
        """What Dask sends for a task does not hold the key."""
        task = BlockTask("/folder", "0" * 64, KeyHandle(RELEASE))
        with share_in_process(RELEASE, SECRET):
            assert not holds_secret(cloudpickle.dumps(task.run) + repr(task).encode(), SECRET)

    def test_task_that_carries_the_key_is_found(self, client: Any) -> None:
        """The near miss: the same search finds a key that travels as an argument, in any form, and in a log."""

        def fail(key: Any) -> None:
            raise ValueError(key)

        other = bytes(range(40, 72))  # other tests search the same logs for the usual one
        for form in (other, other.hex(), list(other), other[16:]):
            future = client.submit(fail, form, pure=False)
            assert future.exception(timeout=30) is not None
            dump = client.run_on_scheduler(cluster_support.dump_scheduler)
            assert holds_secret(dump["tasks"], other)
            assert not holds_secret(dump["tasks"], SECRET)
            del future
        assert holds_secret(repr(client.get_worker_logs()).encode(), other)


def read_pages(client: Any) -> bytes:
    """Read the pages of the scheduler's HTTP server that exist without further packages."""
    port = client.scheduler_info()["services"]["dashboard"]
    pages = b""
    names = ["info/main/workers.html", "info/main/logs.html", "info/main/tasks.html", "json/identity.json"]
    for name in [*names, "json/index.html", "metrics", "sitemap.json", "status", "graph", "tasks", "system"]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=10) as answer:
                pages += answer.read()
        except urllib.error.HTTPError as error:
            error.close()  # a page of a package that is not installed
    return pages


def read_all(folder: Path) -> bytes:
    return b"\n".join(str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_cluster_of_this_machine(source: Path, tmp_path: Path) -> None:
    """By default one is started, encrypted, and ends with the call. The process that used it ends well."""
    script = (
        "import sys, numpy as np, scoreshield.distributed as sd\n"
        "if __name__ == '__main__':\n"
        "    found = sd.release_scores(sys.argv[1], np.array([1.0, -2.0, 0.5, 3.0]), to=sys.argv[2], epsilon=2.0,\n"
        "        mechanism='staircase', block_rows=65536, seed=4, engine='dask')\n"
        "    print(len(found.scores()))\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-W", "error", str(path), str(source), str(tmp_path / "out")]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{sum(ROWS)}\n", "")
    local = release(source, tmp_path / "local", seed=4)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "local")
    assert np.allclose(local.manifest.queries[0], QUERY / np.linalg.norm(QUERY))


@pytest.mark.parametrize("as_list", [True, False])
def test_preloads_of_the_user_stay(tmp_path: Path, as_list: bool) -> None:
    """What the user's configuration of Dask loads in each worker is loaded on the cluster of this machine too."""
    module, mark = tmp_path / "of_user.py", tmp_path / "mark"
    module.write_text(f"def dask_setup(worker):\n    open({str(mark)!r}, 'w').close()\n")
    given = {"preload": [str(module)], "preload-argv": [["--a"]]} if as_list else {"preload": str(module)}
    with dask.config.set({f"distributed.worker.{name}": value for name, value in given.items()}):
        engine = DaskEngine()
    try:
        assert mark.exists()
        assert set(engine._client.run(signal.getsignal, signal.SIGINT).values()) == {signal.SIG_IGN}
    finally:
        engine.close()


def test_interrupt_of_a_terminal_is_for_the_driver_alone(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal. The workers print no tracebacks over the driver's sentence."""
    script = (
        "import time\n"
        "from scoreshield.distributed.engines.dask import DaskEngine\n"
        "if __name__ == '__main__':\n"
        "    engine = DaskEngine()\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(100)\n"
        "    except KeyboardInterrupt:\n"
        "        engine.close()\n"
        "        print('closed')\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    driver = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, like a command in a terminal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "ready\n"
            os.killpg(driver.pid, signal.SIGINT)
            assert driver.communicate(timeout=120) == ("closed\n", "")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0
