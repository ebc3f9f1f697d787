"""Qdrant: local mode as it is, and the client for servers against a small server that speaks what it asks for."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from stores.store_checks import DIMENSION, MARKER, N, StoreChecks, cosines, make_query, patch_to_raise, unit

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.search import PrivateSearch
from scoreshield.stores import Convention, PinnedStore, QdrantStore
from scoreshield.stores import qdrant as adapter

pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
from qdrant_client import QdrantClient, models

KEY = "k3y-of-the-server"


class LocalChecks(StoreChecks):
    holds: ClassVar[frozenset[str]] = frozenset({"zero"})
    scores_zero: ClassVar[bool] = True
    sees_updates: ClassVar[bool] = False
    distance: ClassVar[Any] = models.Distance.COSINE
    vector_name: ClassVar[str | None] = None
    client: QdrantClient

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        if not self.client.collection_exists("people"):
            params: Any = models.VectorParams(size=DIMENSION, distance=self.distance)
            self.client.create_collection(
                "people", vectors_config=params if self.vector_name is None else {self.vector_name: params}
            )
        points = [
            models.PointStruct(id=one, vector=self.name_vector(vector), payload={"text": "t"})
            for one, vector in zip(ids, vectors, strict=True)
        ]
        self.client.upsert("people", points)

    def name_vector(self, vector: Any) -> Any:
        row = np.asarray(vector).tolist()
        return row if self.vector_name is None else {self.vector_name: row}

    def change(self, one: Any, vector: Any) -> None:
        self.client.upsert("people", [models.PointStruct(id=one, vector=self.name_vector(vector))])

    def remove(self, one: Any) -> None:
        self.client.delete("people", [one])

    def empty(self) -> None:
        self.client.delete("people", list(self.ids))

    def open(self) -> QdrantStore:
        return QdrantStore(self.client, "people", vector_name=self.vector_name)

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG002
        error = {"dropped": ConnectionError, "late": TimeoutError}[kind]
        with patch_to_raise(patch, self.client, "count", "scroll", "query_points", error=error):
            yield


class TestMemory(LocalChecks):
    @pytest.fixture(autouse=True)
    def _client(self) -> None:
        self.client = QdrantClient(":memory:")


class TestFolder(LocalChecks):
    """On disk, named vectors, ids of both kinds, Euclidean distance."""

    ids: ClassVar[Sequence[Any]] = [
        *(str(uuid.UUID(int=int(i) + 2**64)) for i in np.random.default_rng(1).permutation(N // 2)),
        *(int(i) for i in np.random.default_rng(2).permutation(N // 2)),
    ]
    vector_name: ClassVar[str | None] = "face"
    distance: ClassVar[Any] = models.Distance.EUCLID
    takes_zero: ClassVar[frozenset[str]] = frozenset()
    scores_zero: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _client(self, tmp_path: Path) -> Iterator[None]:
        self.client = QdrantClient(path=str(tmp_path / "qdrant"))
        yield
        self.client.close()

    def sort_records(self) -> tuple[list[Any], Any]:
        order = sorted(range(N), key=lambda i: (isinstance(self.ids[i], str), self.ids[i]))
        return [self.ids[i] for i in order], self.vectors()[order]


class Server(ThreadingHTTPServer):
    """The few requests that the adapter makes, answered by local mode as Qdrant's REST API answers them."""

    daemon_threads = True

    def __init__(self, backing: QdrantClient) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.backing, self.fault = backing, ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.passing = 0  # how many requests still pass before the fault

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        parts = path.partition("?")[0].strip("/").split("/")
        name, action = parts[1], parts[-1]
        with self.lock:
            if action == "exists":
                return {"exists": self.backing.collection_exists(name)}
            if action == "count":
                return self.backing.count(name)
            if action == "scroll":
                page, offset = self.backing.scroll(
                    name,
                    limit=body["limit"],
                    offset=body.get("offset"),
                    with_payload=body["with_payload"],
                    with_vectors=body["with_vector"],
                )
                return {"points": [json.loads(p.model_dump_json()) for p in page], "next_page_offset": offset}
            if action == "query":
                return self.backing.query_points(
                    name,
                    query=body["query"]["nearest"],
                    using=body.get("using"),
                    limit=body["limit"],
                    with_payload=body["with_payload"],
                    with_vectors=body["with_vector"],
                )
            return self.backing.get_collection(name)

    lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.server.asked.append((self.path, body))
        server = self.server
        fault, server.passing = ("", server.passing - 1) if server.passing else (server.fault, 0)
        if fault == "late":
            time.sleep(1.2)
        if fault == "refused":
            self.send(500, {"status": {"error": f"{MARKER} 0.123456789"}, "time": 0.1})
            return
        found = server.answer(self.path, body)
        result = json.loads(found.model_dump_json()) if hasattr(found, "model_dump_json") else found
        self.send(200, {"result": result, "status": "ok", "time": 0.001}, cut=fault == "dropped")

    def send(self, status: int, content: Any, *, cut: bool = False) -> None:
        text = json.dumps(content).encode()
        with contextlib.suppress(OSError):  # the client may be gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[: len(text) // 2] if cut else text)
        self.close_connection = cut


def client_of(port: int) -> QdrantClient:
    return QdrantClient(url=f"http://127.0.0.1:{port}", api_key=KEY, check_compatibility=False)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection:UserWarning")  # to this very machine
class TestServer(LocalChecks):
    failures: ClassVar[tuple[str, ...]] = ("dropped", "late", "refused")
    secrets: ClassVar[tuple[str, ...]] = (KEY,)

    @pytest.fixture(autouse=True)
    def _client(self) -> Iterator[None]:
        self.client = QdrantClient(":memory:")
        self.server = Server(self.client)
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.remote = client_of(self.server.server_port)
        yield
        self.remote.close()
        self.server.shutdown()
        self.server.server_close()
        thread.join()

    def open(self) -> QdrantStore:
        return QdrantStore(self.remote, "people", timeout=1)

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG002
        self.server.fault = kind
        yield
        self.server.fault = ""

    def test_exact_search_of_all(self) -> None:
        store = self.fill_and_open()
        self.server.asked.clear()
        store.scores(make_query())
        path, body = next((p, b) for p, b in self.server.asked if "/query" in p)
        assert body["params"]["exact"] is True
        assert body["params"]["quantization"]["ignore"] is True
        assert body["limit"] == N + 1
        assert not body["with_payload"]
        assert not body["with_vector"]
        assert "filter" not in body
        assert "score_threshold" not in body
        assert "timeout=1" in path

    @pytest.mark.parametrize("fault", ["dropped", "late", "refused"])
    @pytest.mark.parametrize("pin", ["copy", "scores"])
    def test_half_way(self, fault: str, pin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reading that began well: the third request fails, which is the second page or the scores."""
        monkeypatch.setattr(adapter, "_PAGE", 10)
        account, store = self.account(tmp_path), self.fill_and_open()
        search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account, pin=pin)
        self.server.passing, self.server.fault = 3, fault
        self.assert_rejected(account, lambda: search.search(make_query()), "failed while .*; nothing was released")
        assert any("/scroll" in path or "/query" in path for path, _ in self.server.asked)
        self.server.fault, self.server.passing = "", 0
        assert len(search.search(make_query()).ids) == 10

    def test_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adapter, "_PAGE", 7)
        store = self.fill_and_open()
        assert list(store.records().ids) == sorted(self.ids)
        assert sum("/scroll" in path for path, _ in self.server.asked) == 6

    def test_late_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 41 records the 40 best would be a choice by true score: it is no answer."""
        store = self.fill_and_open()
        usual = store._count

        def count() -> int:
            n = usual()
            self.put([self.new], unit(np.ones((1, DIMENSION))))
            return n

        monkeypatch.setattr(store, "_count", count)
        with pytest.raises(StoreError, match="gave 41 scores for 40 records"):
            store.scores(make_query())
        self.remove(self.new)
        with pytest.raises(StoreError, match="gave 41 vectors for 40 records"):
            store.records()


def collection_of(rows: Any, distance: str) -> QdrantClient:
    client = QdrantClient(":memory:")
    params = models.VectorParams(size=3, distance=getattr(models.Distance, distance))
    client.create_collection("c", vectors_config=params)
    client.upsert("c", [models.PointStruct(id=i, vector=row.tolist()) for i, row in enumerate(rows)])
    return client


@pytest.mark.parametrize("distance", ["COSINE", "DOT", "EUCLID"])
@pytest.mark.parametrize("pin", ["copy", "scores"])
def test_every_distance(distance: str, pin: str) -> None:
    """Every distance of Qdrant gives cosines of vectors of any length."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, 3)) * rng.uniform(0.1, 5, (20, 1))
    client, query = collection_of(rows, distance), make_query(3)
    store = QdrantStore(client, "c")
    assert store.convention is Convention.COSINE
    np.testing.assert_allclose(store.scores(query).values, cosines(rows, query), atol=5e-6)
    pinned = PinnedStore(store, pin=pin)
    for _ in range(2):
        given, asked = pinned.take_snapshot().make_problem(unit(query))
        np.testing.assert_allclose(given @ asked, cosines(rows, query), atol=5e-6)
        rows[3] = [30.0, 40.0, -50.0]  # the lengths are read anew
        client.upsert("c", [models.PointStruct(id=3, vector=rows[3].tolist())])
        store.mark_changed()


def test_lengths_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths are read once per state."""
    client = collection_of(2 * np.eye(3), "DOT")
    store, usual, calls = QdrantStore(client, "c"), client.scroll, []
    monkeypatch.setattr(client, "scroll", lambda *a, **k: (calls.append(1), usual(*a, **k))[1])
    for _ in range(3):
        np.testing.assert_allclose(store.scores(np.eye(3, dtype=np.float32)[1]).values, [0, 1, 0])
    assert len(calls) == 1
    client.delete("c", [0])  # one goes and another comes: the number stays, and the ids tell
    client.upsert("c", [models.PointStruct(id=7, vector=[0.0, 5.0, 0.0])])
    np.testing.assert_allclose(store.scores(np.eye(3, dtype=np.float32)[1]).values, [1, 0, 1])
    assert len(calls) == 2


@pytest.mark.parametrize("length", [0.001, 1000.0])
def test_coarse_distances(length: float) -> None:
    """Lengths for which Euclidean distances are too coarse raise an error."""
    rows = np.eye(3)
    rows[1] *= length
    store = QdrantStore(collection_of(rows, "EUCLID"), "c")
    with pytest.raises(StoreError, match=r"not between 0\.01 and 100 long: .*; use pin='copy'"):
        PinnedStore(store, pin="scores").take_snapshot()


def test_missing_vector() -> None:
    """Records without the named vector raise an error."""
    client = QdrantClient(":memory:")
    params = models.VectorParams(size=3, distance=models.Distance.COSINE)
    client.create_collection("c", vectors_config={"a": params, "b": params})
    client.upsert("c", [models.PointStruct(id=1, vector={"a": [1, 0, 0], "b": [0, 1, 0]})])
    assert QdrantStore(client, "c", vector_name="b").records().vectors.tolist() == [[0, 1, 0]]
    client.upsert("c", [models.PointStruct(id=2, vector={"a": [1, 0, 0]})])
    store = QdrantStore(client, "c", vector_name="b")
    with pytest.raises(StoreError, match="has records without a vector of 3 numbers"):
        store.records()
    with pytest.raises(StoreError, match="gave 1 scores for 2 records"):
        store.scores(make_query(3))


def test_bad_arguments() -> None:
    client = QdrantClient(":memory:")
    params = models.VectorParams(size=3, distance=models.Distance.MANHATTAN)
    client.create_collection("city", vectors_config=params)
    client.create_collection("named", vectors_config={"a": params})
    late = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    client.create_collection(
        "many", vectors_config=models.VectorParams(size=3, distance=models.Distance.DOT, multivector_config=late)
    )
    with pytest.raises(InvalidInput, match="Manhattan distance, which is no function of the cosine"):
        QdrantStore(client, "city")
    with pytest.raises(InvalidInput, match="has no dense vectors named 'face'"):
        QdrantStore(client, "city", vector_name="face")
    with pytest.raises(InvalidInput, match=r"has named vectors \('a'\); give one"):
        QdrantStore(client, "named")
    with pytest.raises(InvalidInput, match="several vectors per record"):
        QdrantStore(client, "many")
    with pytest.raises(StoreError, match="'nobody' does not exist"):
        QdrantStore(client, "nobody")
    with pytest.raises(InvalidInput, match=r"must be a qdrant_client\.QdrantClient"):
        QdrantStore("http://localhost", "c")
    with pytest.raises(InvalidInput, match="the name of a collection"):
        QdrantStore(client, "")
    with pytest.raises(InvalidInput, match="timeout"):
        QdrantStore(client, "city", timeout=0)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection:UserWarning")
def test_no_server() -> None:
    client = client_of(9)
    with pytest.raises(StoreError, match=r"failed while being opened \(ResponseHandlingException\)"):
        QdrantStore(client, "people")
    client.close()
