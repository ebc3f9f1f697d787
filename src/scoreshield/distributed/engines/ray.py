"""Ray: `map_batches` of Ray Data over the numbers of the blocks, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scoreshield._loading import describe_error
from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines.outcomes import FolderEngine, Outcome, make_runner
from scoreshield.errors import InvalidInput

try:
    import ray as _ray
    import ray.data as _data
except ImportError:
    raise InvalidInput("Ray is not installed: pip install 'scoreshield[ray]'") from None

#: Ray has no types for some functions that are called here.
cluster: Any = _ray
data: Any = _data


class RayEngine(FolderEngine):
    """Runs tasks on a Ray cluster: the one that this process is connected to, another, or one of this machine.

    Ray runs a block again as long as its workers die. If a block needs more memory than any worker has, interrupt the
    release, give the workers more memory, and start it again.

    Args:
        address: The address of a cluster. None takes the connection of this process, then the environment variable
            RAY_ADDRESS, and otherwise starts Ray on this machine until `close`.
        key_folder: As for `FolderEngine`.
    """

    name = "ray"

    def __init__(self, *, address: str | None = None, key_folder: str | Path | None = None) -> None:
        self._owns_connection = not cluster.is_initialized()
        if self._owns_connection:
            _connect(address or os.environ.get("RAY_ADDRESS") or "local")
        elif address not in (None, "auto", cluster.get_runtime_context().gcs_address):
            raise InvalidInput("This process is connected to another cluster of Ray: call ray.shutdown() first.")
        try:
            super().__init__(key_folder, is_local=_is_local())
        except BaseException:
            self.close()
            raise

    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        context = data.DataContext.get_current().copy()
        context.enable_progress_bars = context.print_on_execution_start = False
        with data.DataContext.current(context):
            rows = self.make_dataset(task, numbers).iter_rows()
        for row in _stop_at_failure(rows):
            yield Outcome(**row).read_facts()

    def make_dataset(self, task: BlockTask, numbers: Sequence[int]) -> Any:
        """Make the data set of the outcomes of some blocks. Ray runs the tasks when rows of it are read."""
        places = data.range(len(numbers), override_num_blocks=len(numbers))
        return places.map_batches(_make_mapper(task, numbers), batch_size=1, num_cpus=1)

    def close(self) -> None:
        if self._owns_connection:
            cluster.shutdown()


def _make_mapper(task: BlockTask, numbers: Sequence[int]) -> Callable[[dict[str, Any]], dict[str, list[Any]]]:
    run_places = make_runner(task, numbers)

    def map_batch(batch: dict[str, Any]) -> dict[str, list[Any]]:
        return run_places(batch["id"])

    return map_batch


def _stop_at_failure(rows: Iterator[Any]) -> Iterator[Any]:
    """Read rows. Where Ray raises an error, its text could show more than our sentence, and is left out."""
    try:
        yield from rows
    except Exception as error:
        raise InvalidInput(
            f"Ray stopped the tasks with {type(error).__name__}; start the release again to go on. The log of Ray says "
            "more."
        ) from None


def _connect(address: str) -> None:
    options = {"include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use to its authors
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        cluster.init(address=address, log_to_driver=False, logging_level="error", **options)
    except Exception as error:
        raise InvalidInput(f"No cluster of Ray answers at {address}: {describe_error(error)}") from None


def _is_local() -> bool:
    """Whether all machines of the cluster are this one."""
    if cluster.util.client.ray.is_connected():
        return False
    here = cluster.util.get_node_ip_address()
    return all(node["NodeManagerAddress"] == here for node in cluster.nodes() if node["Alive"])
