"""Stores as a source, and reloads: changed data are a new version on the same account; a fault changes nothing."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import uvicorn
from service_support import (
    DIMENSION,
    TestClient,
    make_headers,
    make_policy,
    make_query,
    make_rows,
    open_service,
    write_collection,
    write_policy,
)

from scoreshield.errors import InvalidInput, ScoreShieldError, StoreError
from scoreshield.service import collection
from scoreshield.service.answers import Payer
from scoreshield.service.application import create_app
from scoreshield.service.collection import load_collection
from scoreshield.service.core import Service
from scoreshield.service.policy import CollectionPolicy, Policy, find_contradictions
from scoreshield.service.server import reload_service

SEARCH = "/v1/collections/docs/search"
RECORDS = 60


def write_faiss(path: Path, rows: Any) -> dict[str, Any]:
    faiss = pytest.importorskip("faiss", reason="the 'faiss' extra is not installed")
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(DIMENSION))
    index.add_with_ids(rows, 100 + np.arange(len(rows)))
    faiss.write_index(index, str(path / "docs.faiss"))
    return {"kind": "faiss", "path": "docs.faiss"}


def write_duckdb(path: Path, rows: Any) -> dict[str, Any]:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect(str(path / "docs.duckdb")) as connection:
        connection.execute(f"CREATE OR REPLACE TABLE docs (id INTEGER, embedding FLOAT[{DIMENSION}])")
        pairs = [(100 + place, row) for place, row in enumerate(rows.tolist())]
        connection.executemany("INSERT INTO docs VALUES (?, ?)", pairs[::-1])  # another order than the others
    return {"kind": "duckdb", "path": "docs.duckdb", "name": "docs"}


def write_qdrant(path: Path, rows: Any) -> dict[str, Any]:
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    from qdrant_client.models import Distance, PointStruct, VectorParams

    client = qdrant.QdrantClient(path=str(path / "qdrant"))
    client.create_collection("docs", VectorParams(size=DIMENSION, distance=Distance.COSINE))
    client.upsert("docs", [PointStruct(id=100 + place, vector=row.tolist()) for place, row in enumerate(rows)])
    client.close()
    return {"kind": "qdrant", "path": "qdrant", "name": "docs"}


def write_lancedb(path: Path, rows: Any) -> dict[str, Any]:
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    table = [{"id": 100 + place, "vector": row} for place, row in enumerate(rows)]
    lancedb.connect(str(path / "lance")).create_table("docs", table)
    return {"kind": "lancedb", "path": "lance", "name": "docs"}


def write_chroma(path: Path, rows: Any) -> dict[str, Any]:
    chromadb = pytest.importorskip("chromadb", reason="chromadb is not installed")
    from chromadb.config import Settings

    client = chromadb.PersistentClient(path=str(path / "chroma"), settings=Settings(anonymized_telemetry=False))
    made = client.create_collection("docs", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None)
    made.add(ids=[str(100 + place) for place in range(len(rows))], embeddings=rows)
    return {"kind": "chroma", "path": "chroma", "name": "docs"}


def write_usearch(path: Path, rows: Any) -> dict[str, Any]:
    index = pytest.importorskip("usearch.index", reason="the 'usearch' extra is not installed")
    made = index.Index(ndim=DIMENSION, metric="cos", dtype="f32")
    made.add(100 + np.arange(len(rows)), rows)
    made.save(str(path / "docs.usearch"))
    return {"kind": "usearch", "path": "docs.usearch"}


STORES = {
    "faiss": write_faiss,
    "duckdb": write_duckdb,
    "qdrant": write_qdrant,
    "lancedb": write_lancedb,
    "chroma": write_chroma,
    "usearch": write_usearch,
}


def make_store_policy(folder: Path, store: dict[str, Any], **changes: Any) -> Policy:
    source = {"file": None, "ids": None, "fields": [], "store": store, **changes}
    return make_policy(folder, write_policy(collection=source))


@pytest.mark.parametrize("kind", STORES)
def test_stores(tmp_path: Path, kind: str) -> None:
    """Each store gives the same records, in the order of their ids."""
    rows = make_rows(records=RECORDS)
    policy = make_store_policy(tmp_path, STORES[kind](tmp_path, rows)).collections["docs"]
    data = load_collection("docs", policy)
    wanted = range(100, 100 + RECORDS)
    assert data.ids == [str(one) for one in wanted] if kind == "chroma" else data.ids == list(wanted)
    assert np.allclose(data.vectors, rows, atol=1e-6)
    again = load_collection("docs", policy)  # what was opened is closed, and can be opened again
    assert np.array_equal(again.vectors, data.vectors)


def test_pgvector(tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a server, with its password, comes from an environment variable."""
    psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    rows = make_rows(records=RECORDS)
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("CREATE SCHEMA sources")
        connection.execute(f"CREATE TABLE sources.docs (id INTEGER PRIMARY KEY, embedding vector({DIMENSION}))")
        for place, row in enumerate(rows.tolist()):
            connection.execute("INSERT INTO sources.docs VALUES (%s, %s)", (place, str(row)))
    store = {"kind": "pgvector", "url_variable": "SCORESHIELD_TEST_STORE", "name": "docs", "namespace": "sources"}
    policy = make_store_policy(tmp_path, store)
    assert any("SCORESHIELD_TEST_STORE" in fault for fault in find_contradictions(policy))
    monkeypatch.setenv("SCORESHIELD_TEST_STORE", postgres)
    assert not list(find_contradictions(policy))
    data = load_collection("docs", policy.collections["docs"])
    assert np.allclose(data.vectors, rows, atol=1e-6)
    assert postgres not in json.dumps(policy.describe_public())


def test_address_stays_out_of_the_record(tmp_path: Path) -> None:
    """The record of policies holds no address of a store, which may have a password."""
    store = {"kind": "pgvector", "url": "postgresql://user:hunter2@host/db", "name": "docs"}
    policy = make_store_policy(tmp_path, store)
    assert "hunter2" not in json.dumps(policy.describe_public())
    assert "hunter2" not in repr(policy.collections["docs"].store.find_address())  # type: ignore[union-attr]


def test_store_faults(tmp_path: Path) -> None:
    """Wrong addresses are one sentence each, without the text of a client."""
    for store, word in (
        ({"kind": "faiss"}, "needs a path"),
        ({"kind": "duckdb", "path": "a", "url": "b", "name": "c"}, "needs a path"),
        ({"kind": "qdrant", "url": "http://127.0.0.1:1"}, "needs the name"),
    ):
        assert any(word in fault for fault in find_contradictions(make_store_policy(tmp_path, store)))
    both = make_policy(tmp_path, write_policy(collection={"store": {"kind": "faiss", "path": "docs.faiss"}}))
    assert any("a file or a store, and not both" in fault for fault in find_contradictions(both))
    pytest.importorskip("faiss", reason="the 'faiss' extra is not installed")
    missing = make_store_policy(tmp_path, {"kind": "faiss", "path": "nowhere.faiss"}).collections["docs"]
    with pytest.raises(
        StoreError, match=r"^The faiss store failed while being opened \(\w+\); nothing was released\.$"
    ):
        load_collection("docs", missing)


SAME_PLACES = [
    ({"kind": "qdrant", "url": "http://host:6333", "name": "a"}, {"url": "HTTP://Host/"}),
    ({"kind": "qdrant", "url": "http://localhost:6333", "name": "a"}, {"url": "http://127.0.0.1:6333/"}),
    ({"kind": "qdrant", "url": "http://host", "name": "a"}, {"vector_column": "title"}),
    ({"kind": "pgvector", "url": "postgresql://ada@host/db", "name": "a"}, {"url": "postgres://host:5432/db"}),
    ({"kind": "pgvector", "url": "postgresql://host/db", "name": "a"}, {"namespace": "public", "id_column": "key"}),
    ({"kind": "pgvector", "url": "postgresql://host/db", "name": "a"}, {"url": None, "url_variable": "SOURCE_URL"}),
    ({"kind": "pgvector", "url": "postgresql://host/db", "name": "a"}, {"url": "postgresql:///db?host=host"}),
    ({"kind": "duckdb", "path": "a.duckdb", "name": "a"}, {"path": "folder/../a.duckdb", "namespace": "main"}),
    ({"kind": "lancedb", "url": "s3://bucket/a", "name": "a"}, {"url": "s3://bucket/a/"}),
]
OTHER_PLACES = [
    ({"kind": "qdrant", "url": "http://host:6333", "name": "a"}, {"name": "b"}),
    ({"kind": "qdrant", "url": "http://host:6333", "name": "a"}, {"url": "http://host:6334"}),
    ({"kind": "pgvector", "url": "postgresql://host/db", "name": "a"}, {"namespace": "other"}),
    (
        {"kind": "pgvector", "url": "postgresql://host/db", "name": "a"},
        {"url": "postgresql://host/db?options=-csearch_path%3Dother"},
    ),
    ({"kind": "lancedb", "url": "s3://bucket/a", "name": "a"}, {"url": "gs://bucket/a"}),
    ({"kind": "faiss", "path": "a.faiss"}, {"path": "b.faiss"}),
]


@pytest.mark.parametrize(
    ("store", "change", "is_same"),
    [(*pair, True) for pair in SAME_PLACES] + [(*pair, False) for pair in OTHER_PLACES],
)
def test_two_addresses_of_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: dict[str, Any], change: dict[str, Any], is_same: bool
) -> None:
    """Two collections of one store are a contradiction, however its address is written; of two stores they are none."""
    monkeypatch.setenv("SOURCE_URL", "postgresql://ada:secret@host:5432/db")
    content = write_policy(collection={"file": None, "ids": None, "fields": [], "store": store})
    content["collections"]["other"] = {**content["collections"]["docs"], "store": {**store, **change}}
    faults = [fault for fault in find_contradictions(make_policy(tmp_path, content)) if "read the same store" in fault]
    assert len(faults) == is_same
    assert "secret" not in "".join(faults)


def test_public_file(tmp_path: Path) -> None:
    """Public fields of a store's records come from a file, by id; ids that differ are an error."""
    store = write_faiss(tmp_path, make_rows(records=RECORDS))
    ids = np.arange(100, 100 + RECORDS)[::-1]
    np.savez(tmp_path / "public.npz", ids=ids, year=ids + 1900)
    fields = {"ids": "ids", "fields": ["year"], "public_file": "public.npz"}
    policy = make_store_policy(tmp_path, store, **fields)
    assert not list(find_contradictions(policy))
    data = load_collection("docs", policy.collections["docs"])
    assert [data.describe_record(place)["year"] for place in (0, 1)] == [2000, 2001]
    np.savez(tmp_path / "public.npz", ids=ids + 1, year=ids)
    with pytest.raises(InvalidInput, match="must hold each id of its store once"):
        load_collection("docs", policy.collections["docs"])


@pytest.mark.parametrize("times", [1, 100])
def test_file_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Vectors and ids are of one file, which is read again if it was replaced in between, and not forever."""
    policy = make_policy(tmp_path).collections["docs"]
    rows, ids = make_rows(seed=1)[::-1], np.array([f"new{place}" for place in range(len(make_rows()))])
    read, left = collection._read_columns, times

    def replace_first(path: Path, columns: list[str]) -> Any:
        nonlocal left
        if left:
            left -= 1
            np.savez(tmp_path / "fresh.npz", embeddings=rows, ids=ids, year=np.arange(len(ids)))
            (tmp_path / "fresh.npz").replace(path)
        return read(path, columns)

    monkeypatch.setattr(collection, "_read_columns", replace_first)
    if times > 1:
        with pytest.raises(InvalidInput, match="changed each time that it was read"):
            load_collection("docs", policy)
        return
    data = load_collection("docs", policy)
    assert data.ids[0] == "new0"
    assert np.array_equal(data.vectors, rows)


def test_versions_of_a_store(tmp_path: Path) -> None:
    """The same records keep their version and answers; changed ones are a new version on the same account."""
    rows = make_rows(records=RECORDS)
    policy = make_store_policy(tmp_path, write_faiss(tmp_path, rows))
    service = Service(policy)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        first = client.post(SEARCH, json={"query": make_query(1)})
        assert first.json()["version"] == 1
        service.reload(policy)
        assert client.post(SEARCH, json={"query": make_query(1)}).content == first.content
        write_faiss(tmp_path, -rows)
        assert client.post(SEARCH, json={"query": make_query(1)}).content == first.content  # pinned until a reload
        service.reload(policy)
        second = client.post(SEARCH, json={"query": make_query(1)})
        assert second.json()["version"] == 2
        assert service.collections["docs"].account.spent == 2.0
        write_faiss(tmp_path, rows)
        service.reload(policy)
        assert client.post(SEARCH, json={"query": make_query(1)}).content == first.content  # of version 1 again
        assert service.collections["docs"].account.spent == 2.0


def test_old_version_answers_during_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While new records are read, requests are answered from the old ones."""
    service = open_service(tmp_path)
    is_reading, is_allowed = threading.Event(), threading.Event()
    load = load_collection

    def load_slowly(name: str, policy: CollectionPolicy) -> Any:
        is_reading.set()
        assert is_allowed.wait(10)
        return load(name, policy)

    monkeypatch.setattr("scoreshield.service.core.load_collection", load_slowly)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        write_collection(tmp_path / "docs.npz", seed=1)
        thread = threading.Thread(target=service.reload, args=(service.policy,))
        thread.start()
        assert is_reading.wait(10)
        assert client.post(SEARCH, json={"query": make_query(1)}).json()["version"] == 1
        is_allowed.set()
        thread.join(10)
        assert client.post(SEARCH, json={"query": make_query(1)}).json()["version"] == 2


@pytest.mark.parametrize("fault", ["file", "policy", "database", "unforeseen"])
def test_failed_reload(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload that fails leaves everything as it was, with one line of log."""
    service = open_service(tmp_path)
    content = write_policy()
    if fault == "file":
        (tmp_path / "docs.npz").write_bytes(b"nothing")
    elif fault == "policy":
        content["callers"]["app"]["collections"] = {"other": {"actions": ["search"]}}
    elif fault == "database":
        content["installation"]["database"] = "sqlite:///other.db"
    else:

        def fail(*_: Any) -> Any:
            raise RuntimeError("hidden text")

        monkeypatch.setattr("scoreshield.service.core.load_collection", fail)
    before = service.collections["docs"], service.policy
    logger = logging.getLogger("scoreshield.service")
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.INFO, "scoreshield.service"):
        reload_service(service, lambda: make_policy(tmp_path, content), uvicorn.Config(lambda: None))
    assert [record.message for record in caplog.records] == ["reload failed"]
    reason = caplog.records[0].facts["reason"]  # type: ignore[attr-defined]
    assert "hidden" not in reason
    assert (service.collections["docs"], service.policy) == before
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        assert client.post(SEARCH, json={"query": make_query(1)}).status_code == 200
    assert not (tmp_path / "other.db").exists()


def test_damaged_tls_files_stop_a_reload(tmp_path: Path) -> None:
    """New records are not served if the certificate that comes with them cannot be read."""
    service = open_service(tmp_path)
    write_collection(tmp_path / "docs.npz", seed=1)
    (tmp_path / "damaged.pem").write_text("nothing")
    content = write_policy()
    content["installation"]["tls"] = {"certificate": "damaged.pem", "key": "damaged.pem"}
    service._state = service._state._replace(policy=make_policy(tmp_path, content))  # as if it had been in force
    reload_service(service, lambda: make_policy(tmp_path, content), uvicorn.Config(lambda: None))
    assert service.collections["docs"].version == 1
    sound = write_policy()
    service._state = service._state._replace(policy=make_policy(tmp_path, sound))
    reload_service(service, lambda: make_policy(tmp_path, sound), uvicorn.Config(lambda: None))
    assert service.collections["docs"].version == 2


def test_the_last_reload_reads_last(tmp_path: Path) -> None:
    """Of two reloads at once, the policy that was written last is in force."""
    service = open_service(tmp_path)
    content, is_read, is_written = write_policy(), threading.Event(), threading.Event()

    def read_slowly() -> Policy:
        policy = make_policy(tmp_path, content)
        is_read.set()
        is_written.wait(10)
        return policy

    config = uvicorn.Config(lambda: None)
    first = threading.Thread(target=reload_service, args=(service, read_slowly, config))
    first.start()
    assert is_read.wait(10)
    narrow = write_policy()
    narrow["callers"]["app"]["collections"]["docs"]["actions"] = ["matches"]
    second = threading.Thread(target=reload_service, args=(service, lambda: make_policy(tmp_path, narrow), config))
    second.start()
    second.join(1)  # it ends now only if it did not wait
    is_written.set()
    first.join(10)
    second.join(10)
    assert service.policy.callers["app"].collections["docs"].actions == ("matches",)


def test_log_of_a_reload_names_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = open_service(tmp_path)
    arrays = dict(np.load(tmp_path / "docs.npz"))
    name = next(name for name, values in arrays.items() if values.ndim == 2)
    arrays[name][17, 0] = np.nan
    np.savez(tmp_path / "docs.npz", **arrays)
    monkeypatch.setattr(logging.getLogger("scoreshield.service"), "propagate", True)
    with caplog.at_level(logging.INFO, "scoreshield.service"):
        reload_service(service, lambda: make_policy(tmp_path), uvicorn.Config(lambda: None))
    assert [record.message for record in caplog.records] == ["reload failed"]
    assert "17" not in caplog.records[0].facts["reason"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", ["file", "budget"])
def test_reload_reads_everything_before_it_charges(tmp_path: Path, fault: str) -> None:
    """A new index is charged when all collections can be served, and not before one that cannot."""
    content = write_policy(collection={"index": {"epsilon": 4.0}})
    content["collections"]["more"] = {**content["collections"]["docs"], "file": "more.npz"}
    write_collection(tmp_path / "more.npz", seed=5)
    service = open_service(tmp_path, content)
    docs, more = (service.collections[name] for name in ("docs", "more"))
    assert (docs.account.spent, more.account.spent) == (4.0, 4.0)
    write_collection(tmp_path / "docs.npz", seed=6)  # a new index, of 4
    if fault == "file":
        (tmp_path / "more.npz").write_bytes(b"no collection")
    else:
        write_collection(tmp_path / "more.npz", seed=7)
        for seed in range(13):  # 3 of 20 are left
            more.search(Payer("app"), "search", [more.read_query(make_query(seed))], 1)
    with pytest.raises(ScoreShieldError):
        service.reload(service.policy)
    assert docs.account.spent == 4.0
    assert service.collections["docs"] is docs
    write_collection(tmp_path / "more.npz", seed=5)
    service.reload(service.policy)
    assert (docs.account.spent, more.account.spent) == (8.0, 4.0 if fault == "file" else 17.0)


def list_traces(folder: Path, service: Service) -> tuple[list[str], list[Any], list[Any]]:
    """List the ledgers, the pinned facts and the policies on record."""
    facts = service.database.read("SELECT name, value FROM scoreshield_service_facts ORDER BY name")
    policies = service.database.read("SELECT digest FROM scoreshield_service_policies ORDER BY digest")
    return sorted(path.name for path in folder.glob("*.ledger.db")), facts, policies


@pytest.mark.parametrize("fault", ["cost", "next file", "same vectors", "next limit", "next index"])
def test_rejected_reload_leaves_no_trace(tmp_path: Path, fault: str) -> None:
    """A reload that is rejected makes no ledger, pins no vectors and charges no index, of whichever collection."""
    content = write_policy()
    content["collections"]["old"] = {**content["collections"]["docs"], "file": "old.npz", "budget": {"epsilon": 2.0}}
    write_collection(tmp_path / "old.npz", seed=3)
    service = open_service(tmp_path, content)
    old = service.collections["old"]
    for seed in range(2):
        old.search(Payer("app"), "search", [old.read_query(make_query(seed))])
    before = list_traces(tmp_path, service)
    for place, name in enumerate(("fresh", "next")):
        write_collection(tmp_path / f"{name}.npz", seed=5 + place)
    collections = dict(content["collections"])
    new = {**collections["docs"], "index": {"epsilon": 1.0}}
    changed = {**content, "collections": {"fresh": {**new, "file": "fresh.npz"}, **collections}}
    if fault == "cost":
        changed["collections"]["fresh"]["expected_queries"] = 99
    elif fault == "next file":
        np.savez(tmp_path / "next.npz", embeddings=make_rows(seed=9), ids=np.zeros(300, int), year=np.zeros(300, int))
        changed["collections"]["next"] = {**new, "file": "next.npz"}
    elif fault == "same vectors":
        rows = dict(np.load(tmp_path / "fresh.npz"))
        np.savez(tmp_path / "next.npz", **rows)
        changed["collections"]["next"] = {**new, "file": "next.npz"}
    elif fault == "next limit":
        changed["collections"]["old"] = {**collections["old"], "budget": {"epsilon": 5.0}}
    else:
        changed["collections"]["old"] = {**collections["old"], "index": {"epsilon": 1.0}}  # all of it is spent
    with pytest.raises(InvalidInput):
        service.reload(make_policy(tmp_path, changed))
    assert list_traces(tmp_path, service) == before
    assert old.account.spent == 2.0
    sound = {**content, "collections": {"fresh": {**collections["docs"], "file": "fresh.npz"}, **collections}}
    service.reload(make_policy(tmp_path, sound))  # neither the limit nor the name is frozen
    assert service.collections["fresh"].account.spent == 0.0


def test_rejected_start_leaves_no_ledger(tmp_path: Path) -> None:
    """A first start that is rejected fixes no limit."""
    with pytest.raises(InvalidInput, match="expects 99 queries"):
        open_service(tmp_path, write_policy(collection={"expected_queries": 99}))
    assert not list(tmp_path.glob("*.ledger.db"))
    assert open_service(tmp_path, write_policy(collection={"budget": {"epsilon": 99.0}, "expected_queries": 99}))
