"""Spark holds to the contract of engines, and its own files hold no key."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")

if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Spark needs a Java", allow_module_level=True)

import engine_tasks
import pyspark.errors
from engine_contract import TESTS, EngineContract, find_key, find_text, ledger, make_scores, secret, source, task
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from scoreshield.distributed.blocks import BlockTask
from scoreshield.distributed.engines.opening import choose_engine
from scoreshield.distributed.engines.spark import SparkEngine, _make_mapper
from scoreshield.errors import InvalidInput

__all__ = ["ledger", "secret", "source", "task"]  # pytest finds fixtures by their names

# Of Spark's own sockets and of what it imports.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Any]:
    """A session of two cores, which writes down everything that happens in it."""
    for name in ("events", "local"):
        (folder / name).mkdir()
    options = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.local.dir": str(folder / "local"),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder: Any = SparkSession.builder
        started = builder.master("local[2,5]").config(map=options).getOrCreate()
        yield started
        started.stop()


@pytest.fixture(scope="module")
def engine(session: Any) -> SparkEngine:
    return SparkEngine(session)


class TestSpark(EngineContract):
    name = "spark"

    @pytest.fixture
    def traces(self, folder: Path) -> list[Path]:
        return [folder / "events", folder / "local"]

    def collect(self, engine: Any, task: BlockTask, numbers: list[int]) -> list[list[Any]]:
        frame = engine.make_frame(task, numbers)
        return [[tuple(row) for row in frame.collect()] for _ in range(2)]

    def dump_task(self, task: BlockTask) -> bytes:
        content: bytes = cloudpickle.dumps(_make_mapper(task, range(4)))
        return content

    def run_with(self, engine: Any, task: BlockTask, path: Path) -> None:
        environment = engine._session.sparkContext.environment
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(environment, "PYTHONPATH", str(path))
            list(engine.run(task, [0]))

    def test_planted_key_is_found(self, session: Any, secret: bytes, folder: Path) -> None:
        """The search finds a key in the event log, as a job's text, and in the local folder, as a broadcast value."""
        context = session.sparkContext
        context.setJobDescription(secret.hex())
        assert context.parallelize([1], 1).count() == 1
        context.setJobDescription("")
        assert find_key(secret, [folder / "events"])
        sent = context.broadcast(secret)
        assert find_key(secret, [folder / "local"])
        sent.destroy()

    def test_raised_text_is_found(self, session: Any, traces: list[Path]) -> None:
        """The event log holds the text of an error that a task raises, so the search for it can fail."""

        def fail(frames: Iterator[Any]) -> Iterator[Any]:
            for _ in frames:
                raise ZeroDivisionError("0.0127731 of a row")
            yield

        with pytest.raises(pyspark.errors.PythonException):
            session.range(1).mapInPandas(fail, "id long").collect()
        assert find_text(b"0.0127731 of a row", traces)

    def test_given_session(self, session: Any, source: Path, tmp_path: Path) -> None:
        """A session that the caller gives, or that is active, is used and goes on."""
        for number, given in enumerate((session, "spark")):
            assert len(make_scores(source, to=tmp_path / str(number), engine=given)) == 4
        assert session.range(3).count() == 3

    def test_other_machines_need_folder(self, session: Any, tmp_path: Path) -> None:
        """A cluster of other machines needs a folder for the key, before anything is charged."""
        other = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077", defaultParallelism=8))
        with pytest.raises(InvalidInput, match=r"cluster of Spark may be on other machines: name a folder for the key"):
            SparkEngine(other)
        SparkEngine(other, key_folder=tmp_path)
        with pytest.raises(InvalidInput, match=r"another cluster runs in this process.* local\[2,5\]"):
            choose_engine("spark", scheduler="spark://host:7077", key_folder=tmp_path)
        assert session.range(3).count() == 3

    def test_block_that_ends_workers(self, engine: SparkEngine, task: BlockTask) -> None:
        """A block that ends every worker is given up, and the session goes on."""
        wrong = engine_tasks.DiesAlways(task.address, task.digest, task.handle)
        with pytest.raises(InvalidInput, match="Spark gave up a block, probably because its workers ended for lack of"):
            list(engine.run(wrong, [0]))
        assert len(list(engine.run(task, [0, 1]))) == 2

    def test_given_up(self, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where Spark gives up, its own text is left out."""

        def fail(error: Exception) -> Any:
            def raise_error(*_: Any) -> Any:
                raise error

            return raise_error

        task: Any = None
        for error, sentence in (
            (pyspark.errors.PythonException("0.0318447"), "same versions of Python"),
            (pyspark.errors.PySparkRuntimeError("0.0318447"), "gave up a block"),
        ):
            monkeypatch.setattr(engine, "make_frame", fail(error))
            with pytest.raises(InvalidInput, match=sentence) as caught:
                list(engine.run(task, [0]))
            assert "0.0318447" not in str(caught.value)
            assert caught.value.__cause__ is None
