"""The first hour of a user with a cluster: addresses of tables, wrong names, and workers that return late."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_support import make_account, release, wait_until, write_collection

from scoreshield.distributed.sources.opening import describe_again, describe_source
from scoreshield.errors import InvalidInput

pa: Any = pytest.importorskip("pyarrow", reason="the 'parquet' extra is not installed")
parquet: Any = pytest.importorskip("pyarrow.parquet", reason="the 'parquet' extra is not installed")

LATE = "distributed.deploy.lost-worker-timeout"


def make_table() -> Any:
    vectors = pa.array([[1.0, 2.0, 3.0, float(row)] for row in range(10)], pa.list_(pa.float32()))
    return pa.table({"doc_id": list(range(10)), "vector": vectors, "title_vector": vectors})


class TestTables:
    def test_a_delta_table_by_an_address_of_a_file(self, tmp_path: Path) -> None:
        """Files that an overwrite removed from the table still lie in its folder."""
        deltalake: Any = pytest.importorskip("deltalake", reason="the 'delta' extra is not installed")
        table = tmp_path / "table"
        deltalake.write_deltalake(table, make_table())
        deltalake.write_deltalake(table, make_table().slice(0, 3), mode="overwrite")
        facts = describe_source(f"file://{table}", "vector")
        assert (facts.kind, facts.rows) == ("delta", 3)
        assert describe_again(facts) == facts
        assert describe_source(f"file://{table}@0", "vector").rows == 10

    def test_a_folder_of_delta_tables_stops(self, tmp_path: Path) -> None:
        parquet.write_table(make_table(), tmp_path / "loose.parquet")
        (tmp_path / "inner" / "_delta_log").mkdir(parents=True)
        with pytest.raises(InvalidInput, match=r"inner is a Delta table, .*: give delta://PATH, not a folder"):
            describe_source(tmp_path)

    def test_an_iceberg_table_by_the_location_that_its_catalog_names(self, tmp_path: Path) -> None:
        catalogs: Any = pytest.importorskip("pyiceberg.catalog.sql", reason="the 'iceberg' extra is not installed")
        catalog = catalogs.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/house")
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", make_table().schema)
        table.append(make_table())
        table.overwrite(make_table().slice(0, 3))
        where = table.metadata_location
        catalog.close()
        assert where.startswith("file://")
        facts = describe_source(where, "vector")
        assert (facts.kind, facts.rows) == ("iceberg", 3)
        assert describe_again(facts) == facts
        folder = Path(where.removeprefix("file://")).parent.parent
        with pytest.raises(InvalidInput, match=r"is an Iceberg table, .*: give the path of its newest"):
            describe_source(folder)
        shutil.rmtree(folder / "metadata")
        assert describe_source(folder, "vector").rows == 13  # what the folder holds is not what the table holds

    def test_a_folder_of_a_table_on_a_storage_stops(self) -> None:
        fsspec: Any = pytest.importorskip("fsspec", reason="the 'fsspec' extra is not installed")
        storage = fsspec.filesystem("memory")
        try:
            storage.pipe("/hour/d/part.parquet", b"")
            storage.pipe("/hour/d/_delta_log/0.json", b"")
            with pytest.raises(InvalidInput, match=r"memory:.*/d is a Delta table"):
                describe_source("memory://hour")
            storage.rm("/hour/d/_delta_log", recursive=True)
            storage.pipe("/hour/d/metadata/0.metadata.json", b"")
            with pytest.raises(InvalidInput, match=r"memory:.*/d is an Iceberg table"):
                describe_source("memory://hour/d")
        finally:
            storage.rm("/hour", recursive=True)


def test_a_wrong_column_is_answered_by_the_right_ones(tmp_path: Path) -> None:
    parquet.write_table(make_table(), tmp_path / "part.parquet")
    with pytest.raises(InvalidInput, match=r"holds no column 'emb'; its columns of lists: vector, title_vector\.$"):
        describe_source(tmp_path, "emb")


def test_a_missing_storage_package_is_named() -> None:
    pytest.importorskip("fsspec", reason="the 'fsspec' extra is not installed")
    with pytest.raises(InvalidInput, match="such as s3fs for s3://"):
        describe_source("nowhere://bucket/data")


def test_workers_that_return_late(tmp_path: Path) -> None:
    """All workers are killed. Dask would give them up, and wait forever, before a busy machine has started others."""
    pytest.importorskip("distributed", reason="the 'dask' extra is not installed")
    dask: Any = pytest.importorskip("dask", reason="the 'dask' extra is not installed")
    from scoreshield.distributed.engines.dask import DaskEngine

    source, account = tmp_path / "vectors", make_account(tmp_path)
    write_collection(source)
    killed: list[int] = []

    with dask.config.set({LATE: "10 ms"}):
        with DaskEngine() as engine:

            def kill(*facts: object) -> None:
                if facts[:2] == ("check", 1):
                    killed.extend(engine._client.run(os.getpid).values())
                    for process in killed:
                        os.kill(process, signal.SIGKILL)

            found = release(source, tmp_path / "out", engine=engine, ledger=account, progress=kill, seed=None)
        assert dask.config.get(LATE) == "10 ms"
    assert killed
    assert len(account.entries()) == 1
    assert np.isfinite(found.scores()).all()


def test_a_cluster_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask waits for a worker without a word. The driver says so once, and goes on when one comes."""
    distributed: Any = pytest.importorskip("distributed", reason="the 'dask' extra is not installed")
    from scoreshield.distributed.engines import dask as engines

    monkeypatch.setattr(engines, "_PATIENCE", 0.1)
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        engine = engines.DaskEngine(client)
        assert [one.result() for one in engine._wait_for([client.submit(abs, -1)])] == [1]
        cluster.scale(0)
        wait_until(lambda: not client.scheduler_info()["workers"])
        said: list[str] = []

        def warn(text: str, **_: object) -> None:
            said.append(text)
            cluster.scale(1)

        monkeypatch.setattr(engines.warnings, "warn", warn)
        assert [one.result() for one in engine._wait_for([client.submit(abs, number) for number in (-2, -3)])] == [2, 3]
        assert [text.partition(":")[0] for text in said] == ["The Dask cluster has no worker"]
