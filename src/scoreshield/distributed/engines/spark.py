"""Spark: `mapInPandas` over the numbers of the blocks, in a session of this machine or of a cluster."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from scoreshield._loading import describe_error
from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines.outcomes import FolderEngine, Outcome, make_runner
from scoreshield.errors import InvalidInput

try:
    import pyspark.errors
    import pyspark.sql
except ImportError:
    raise InvalidInput("Spark is not installed: pip install 'scoreshield[spark]'") from None

#: The types of Spark need pandas and more, which not every reader of this code has.
spark: Any = pyspark
_COLUMNS = "number long, size long, digest string, error string, sentence string"
#: Spark reports at the end of a job. Several smaller jobs report on the way, and some at once keep all workers busy.
_JOBS_AT_ONCE = 3
#: How often a session of this machine runs a block whose workers die. The default is once.
_ATTEMPTS = 5


class SparkEngine(FolderEngine):
    """Runs tasks in a Spark session.

    Args:
        session: A session, also of Spark Connect. None takes the active one, or starts one on this machine until
            `close`.
        master: The address of a cluster, in place of a session; ``sc://host`` for Spark Connect.
        key_folder: As for `FolderEngine`.
    """

    name = "spark"

    def __init__(self, session: Any = None, *, master: str | None = None, key_folder: str | Path | None = None) -> None:
        found = session or spark.sql.SparkSession.getActiveSession()
        self._owns_session = found is None
        self._session: Any = found or _start_session(master or f"local[*,{_ATTEMPTS}]")
        context = getattr(self._session, "sparkContext", None)  # Spark Connect has none
        # Two blocks for each worker, where the number of workers is known.
        self._blocks_per_job = 64 if context is None else 2 * int(context.defaultParallelism)
        try:
            address = "the one of Spark Connect" if context is None else str(context.master)
            if master not in (None, address) and not self._owns_session:
                raise InvalidInput(
                    f"A Spark session of another cluster runs in this process: stop it, or name {address}."
                )
            super().__init__(key_folder, is_local=address.startswith("local"))
        except BaseException:
            self.close()
            raise

    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        tag, size = f"scoreshield-{secrets.token_hex(8)}", self._blocks_per_job
        groups = [numbers[first : first + size] for first in range(0, len(numbers), size)]
        pool = ThreadPoolExecutor(_JOBS_AT_ONCE)
        try:
            jobs = {pool.submit(self._run_job, task, group, tag) for group in groups}
            while jobs:
                done, jobs = wait(jobs, return_when=FIRST_COMPLETED)
                for job in done:
                    yield from _read_job(job)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            with suppress(Exception):  # the cluster may be gone
                self._session.interruptTag(tag)
            pool.shutdown()

    def close(self) -> None:
        if self._owns_session:
            self._session.stop()

    def make_frame(self, task: BlockTask, numbers: Sequence[int]) -> Any:
        """Make the frame of the outcomes of some blocks. Spark runs the tasks whenever it needs a row of it."""
        places = self._session.range(0, len(numbers), 1, len(numbers))
        return places.mapInPandas(_make_mapper(task, numbers), _COLUMNS)

    def _run_job(self, task: BlockTask, numbers: Sequence[int], tag: str) -> list[Outcome]:
        self._session.addTag(tag)
        return [Outcome(*row) for row in self.make_frame(task, numbers).collect()]


def _make_mapper(task: BlockTask, numbers: Sequence[int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    run_places = make_runner(task, numbers)

    def map_frames(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield frame.assign(**run_places(frame["id"])).drop(columns="id")

    return map_frames


def _read_job(job: Future[list[Outcome]]) -> Iterator[BlockFacts]:
    error = job.exception()
    if isinstance(error, spark.errors.PythonException):  # not of a task, which returns its error
        raise InvalidInput(
            "The workers of Spark cannot run Python of this driver: install the same versions of Python, PySpark, "
            "pandas and scoreshield on every worker."
        ) from None
    if error is not None:
        raise InvalidInput(
            "Spark gave up a block, probably because its workers ended for lack of memory: give workers more "
            "memory, and start the same release again; smaller blocks (block_rows) need a new folder and a new charge."
        ) from None
    for outcome in job.result():
        yield outcome.read_facts()


def _start_session(master: str) -> Any:
    is_unset = "PYSPARK_PYTHON" not in os.environ
    if is_unset:  # Spark would start the python3 of the search path
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = spark.sql.SparkSession.builder.appName("scoreshield")
    builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    try:
        return builder.config(map=quiet).getOrCreate()
    except Exception as error:
        raise InvalidInput(f"No Spark session starts at {master}: {describe_error(error)}") from None
    finally:
        if is_unset:
            del os.environ["PYSPARK_PYTHON"]
