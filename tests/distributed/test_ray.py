"""Ray holds to the contract of engines, and its own files hold no key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.data", reason="Ray is not installed")

import ray
from engine_contract import TESTS, EngineContract, find_key, find_text, ledger, make_scores, secret, source, task
from ray import cloudpickle

from scoreshield.distributed.blocks import BlockTask
from scoreshield.distributed.engines import ray as ray_engine
from scoreshield.distributed.engines.opening import choose_engine
from scoreshield.distributed.engines.outcomes import Outcome, make_runner
from scoreshield.distributed.engines.ray import RayEngine, _make_mapper
from scoreshield.errors import InvalidInput

__all__ = ["ledger", "secret", "source", "task"]  # pytest finds fixtures by their names

# Of Ray's own sockets and of what it imports.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """A cluster of two cores on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        started = ray.init(
            address="local", num_cpus=2, include_dashboard=False, object_store_memory=2**27, log_to_driver=False
        )
        try:
            yield started
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def engine(connection: Any) -> RayEngine:
    del connection  # it must be there
    return RayEngine()


def list_stores() -> list[Path]:
    """List the shared memory of the object store, which has no name in the file system."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if "raylet" in (process / "comm").read_text():
                    found += [path for path in (process / "fd").iterdir() if "plasma" in str(path.readlink())]
            except OSError:
                continue
    return found


class TestRay(EngineContract):
    name = "ray"

    @pytest.fixture
    def traces(self, connection: Any) -> list[Path]:
        return [Path(connection.address_info["session_dir"]), *list_stores()]

    def collect(self, engine: Any, task: BlockTask, numbers: list[int]) -> list[list[Any]]:
        data = engine.make_dataset(task, numbers)
        return [[tuple(row.values()) for row in data.take_all()] for _ in range(2)]

    def dump_task(self, task: BlockTask) -> bytes:
        content: bytes = cloudpickle.dumps(_make_mapper(task, range(4)))
        return content

    def run_with(self, engine: Any, task: BlockTask, path: Path) -> None:
        assert engine is not None
        remote: Any = ray.remote(make_runner(task, [0]))
        called = remote.options(runtime_env={"env_vars": {"PYTHONPATH": str(path)}}).remote([0])
        columns = ray.get(called, timeout=60)
        Outcome(**{name: values[0] for name, values in columns.items()}).read_facts()

    def test_planted_key_is_found(self, connection: Any, secret: bytes) -> None:
        """The search finds a key in the object store, and in the log of a worker that prints it."""
        kept = ray.put(secret * 2**15)
        assert find_key(secret, list_stores())
        del kept

        def show() -> None:
            print("key:", secret.hex(), flush=True)

        remote: Any = ray.remote(show)
        ray.get(remote.remote(), timeout=60)
        assert find_key(secret, [Path(connection.address_info["session_dir"]) / "logs"])

    def test_raised_text_is_found(self, traces: list[Path]) -> None:
        """The logs of Ray hold the text of an error that a task raises, so the search for it can fail."""

        def fail(_: Any) -> Any:
            raise ZeroDivisionError("0.0127731 of a row")

        with pytest.raises(ray.exceptions.RayTaskError):
            ray.data.range(1).map_batches(fail).take_all()
        assert find_text(b"0.0127731 of a row", traces)

    @pytest.mark.usefixtures("engine")
    def test_given_connection(self, source: Path, tmp_path: Path) -> None:
        """The connection of this process is used, and goes on."""
        assert len(make_scores(source, to=tmp_path / "a", engine="ray")) == 4
        assert ray.is_initialized()

    @pytest.mark.usefixtures("engine")
    def test_other_machines_need_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cluster with another machine needs a folder for the key, before anything is charged."""
        nodes = [*ray.nodes(), {"Alive": True, "NodeManagerAddress": "198.51.100.7"}]
        monkeypatch.setattr(ray_engine.cluster, "nodes", lambda: nodes)
        with pytest.raises(InvalidInput, match=r"cluster of Ray may be on other machines: name a folder for the key"):
            RayEngine()
        RayEngine(key_folder=tmp_path)
        nodes[-1]["Alive"] = False
        RayEngine()
        with pytest.raises(InvalidInput, match="connected to another cluster of Ray"):
            choose_engine("ray", scheduler="198.51.100.7:6379")

    def test_given_up(self, engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where Ray gives up, its own text is left out."""

        class Data:
            def iter_rows(self) -> Iterator[Any]:
                raise ray.exceptions.RaySystemError("0.0318447")
                yield

        monkeypatch.setattr(engine, "make_dataset", lambda *_: Data())
        task: Any = None
        with pytest.raises(InvalidInput, match="Ray stopped the tasks with RaySystemError") as caught:
            list(engine.run(task, [0]))
        assert "0.0318447" not in str(caught.value)
        assert caught.value.__cause__ is None
