"""Dask: one task for each block, on a cluster of this machine or on any other."""

from __future__ import annotations

import asyncio
import contextlib
import pydoc
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scoreshield import _version
from scoreshield._loading import describe_error
from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines.base import Engine
from scoreshield.distributed.keys import KeyHandle, drop_secret, hold_secret, make_driver_name
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.geometry.arrays import check_device

try:
    import distributed as _distributed
    from dask import config
    from distributed import WorkerPlugin
except ImportError:
    raise InvalidInput("Dask is not installed: pip install 'scoreshield[dask]'") from None

#: Dask has no types for the functions that are called here.
cluster: Any = _distributed
#: A worker that dies takes its tasks with it. A cluster that is started here gives a block up after this many deaths.
_DEATHS = 10
#: How long a worker may take to come back. Dask would end it after 15 seconds, which a busy machine needs to start it,
#: and would wait forever once the last one is gone.
_RETURN_TIME = {"distributed.deploy.lost-worker-timeout": "1 day"}
#: A worker that is started here ignores Ctrl-C. Otherwise each one prints a traceback over the driver's sentence.
_WORKER_SETUP = "scoreshield.distributed.engines.dask_worker"
#: After so many seconds without the end of a task, the workers are counted.
_PATIENCE = 30.0
#: Between two looks at the tasks.
_PAUSE = 0.02
_NO_WORKERS = (
    "The Dask cluster has no worker: the release waits for one. If none comes, end it, and start the same release "
    "again on another cluster to go on."
)
_GO_ON = "start the same release again to go on"


class DaskEngine(Engine):
    """Runs tasks on a Dask cluster.

    Args:
        client: A client of a running cluster. None starts one process for each core of this machine, until `close`.
        scheduler: The address of a scheduler, in place of a client.
        key_folder: As for `Engine`. None gives the key to the workers by a plugin, over Dask's own connections: use
            ``tls://`` addresses on a network that others can read.
    """

    name = "dask"

    def __init__(
        self, client: Any = None, *, scheduler: str | None = None, key_folder: str | Path | None = None
    ) -> None:
        super().__init__(key_folder)
        self._cluster: Any = None
        self._settings = contextlib.ExitStack()
        self._owns_client = client is None
        if client is not None:
            if client.asynchronous or client.status != "running":
                raise InvalidInput("The Dask client is closed or asynchronous: give one that is neither.")
            self._client = client
        elif scheduler is not None:
            try:
                self._client = cluster.Client(scheduler)
            except (OSError, ValueError) as error:
                raise InvalidInput(f"No Dask scheduler answers at {scheduler}: {describe_error(error)}") from None
        else:
            self._cluster = _start_cluster()
            self._client = cluster.Client(self._cluster)
            self._settings.enter_context(config.set(_RETURN_TIME))
        try:
            self._check_workers()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _send_key(self, release: str, secret: bytes) -> Iterator[KeyHandle]:
        handle = KeyHandle(release, driver=make_driver_name())
        plugin = _KeyPlugin(handle, secret)
        self._check_workers()
        try:
            try:
                self._client.register_plugin(plugin, name=plugin.name)
            except Exception as error:
                raise _explain(error) from None
            yield handle
        finally:
            self._remove_plugins(plugin.name)

    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        # New names in each run: a cluster could still hold tasks of the same release from a driver that was killed.
        name = f"scoreshield-{task.step}-{task.handle.release[:8]}-{secrets.token_hex(4)}"
        try:
            futures = [
                self._client.submit(task.run, number, key=f"{name}-{number}", pure=False, retries=0)
                for number in numbers
            ]
        except (OSError, RuntimeError, ValueError) as error:
            raise _explain(error) from None
        try:
            for future in self._wait_for(futures):
                try:
                    yield BlockFacts(*future.result())
                except ScoreShieldError:
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    raise _explain(error) from None
        finally:
            self._try(lambda: self._client.cancel(futures))

    def _wait_for(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Yield tasks as they end. Dask waits without a word where no worker is left, so this warns once."""
        ended, moment, is_warned = cluster.as_completed(futures), time.monotonic(), False
        while not ended.is_empty():
            batch = ended.next_batch(block=False)
            yield from batch
            now = time.monotonic()
            if batch:
                moment = now
                continue
            if now - moment > _PATIENCE and not is_warned and not self._client.scheduler_info()["workers"]:
                is_warned = True
                warnings.warn(_NO_WORKERS, stacklevel=2)
            time.sleep(_PAUSE)

    def check_device(self, device: str) -> None:
        try:
            self._client.run(check_device, device)
        except ScoreShieldError:
            raise
        except Exception as error:
            raise _explain(error) from None

    def remove_keys(self, release: str) -> None:
        self._remove_plugins(_name_plugins(release))

    def _remove_plugins(self, prefix: str) -> None:
        """Remove the plugins that are still there. The scheduler logs an error for a name that it does not know."""

        def find_plugins(dask_scheduler: Any) -> list[str]:
            return [name for name in dask_scheduler.worker_plugins if name.startswith(prefix)]

        def remove() -> None:
            for name in self._client.run_on_scheduler(find_plugins):
                self._client.unregister_worker_plugin(name)

        self._try(remove)

    def _check_workers(self) -> None:
        """Raise an error if a worker lacks this package, or has another version of it.

        Dask ends a worker that cannot read a task. So the workers are asked by a function of Python first.
        """
        try:
            found = self._client.run(pydoc.locate, f"{_version.__name__}.VERSION")
        except Exception as error:
            raise _explain(error) from None
        if None in found.values():
            raise _explain(ModuleNotFoundError())
        if any(version != _version.VERSION for version in found.values()):
            raise InvalidInput(
                f"A worker has another version of scoreshield than {_version.VERSION}: install the same version on "
                "every worker."
            )

    def _try(self, work: Callable[[], object]) -> None:
        """Do what only tidies a cluster, if it is still there."""
        if self._client.status == "running":
            with contextlib.suppress(Exception):
                work()

    def close(self) -> None:
        if self._owns_client:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()
        self._settings.close()


class _KeyPlugin(WorkerPlugin):
    """Puts the key of one release into the memory of each worker, also of those that join later."""

    def __init__(self, handle: KeyHandle, secret: bytes) -> None:
        self.name = _name_plugins(handle.release) + handle.driver
        self._handle, self._secret = handle, secret

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def setup(self, worker: Any) -> None:
        hold_secret(self._handle, self._secret, str(worker.id))

    def teardown(self, worker: Any) -> None:
        drop_secret(self._handle, str(worker.id))


def _name_plugins(release: str) -> str:
    """Return how the names of all plugins of a release begin: each driver has one."""
    return f"scoreshield-key-{release}-"


def _list_preloads() -> dict[str, Any]:
    """List what each worker loads first, with its arguments: what the user's configuration of Dask names, and ours."""
    modules, arguments = (config.get(f"distributed.worker.{name}") for name in ("preload", "preload-argv"))
    modules = [modules] if isinstance(modules, str) else list(modules)
    if not arguments or isinstance(arguments[0], str):  # the same for each
        arguments = [list(arguments)] * len(modules)
    return {"preload": [*modules, _WORKER_SETUP], "preload_argv": [*arguments, []]}


def _start_cluster() -> Any:
    """Start one process for each core of this machine. Other users of the machine cannot connect to them."""
    try:
        # Encrypted, with certificates of its own: any local user could otherwise ask the scheduler for its plugins.
        return cluster.LocalCluster(
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tls://",
            security=True,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False, "allowed_failures": _DEATHS},
            silence_logs=50,
            **_list_preloads(),
        )
    except RuntimeError:
        raise InvalidInput(
            "Dask could not start its processes. In a script, put all code under `if __name__ == '__main__':`, because "
            "each process imports the script; or take the local engine."
        ) from None


def _explain(error: BaseException) -> InvalidInput:
    """Say in one sentence why a task could not run. The text of another library could show rows, and is left out."""
    if isinstance(error, cluster.KilledWorker):
        return InvalidInput(
            "A block ended several workers, probably for lack of memory: give the workers more memory, and "
            "start the same release again; smaller blocks (block_rows) need a new folder and a new charge."
        )
    if isinstance(error, cluster.CancelledError | asyncio.CancelledError | OSError):
        return InvalidInput(f"The cluster was restarted, or its scheduler is gone; {_GO_ON}.")
    if isinstance(error, ModuleNotFoundError):
        return InvalidInput("A worker has no scoreshield: install the same version on every worker.")
    return InvalidInput(f"A task failed on a worker with {type(error).__name__}; {_GO_ON}.")
