"""Chroma: in memory, in a folder, and a real server that these tests start."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from stores.store_checks import DIMENSION, MARKER, N, StoreChecks, cosines, make_query, patch_to_raise, unit

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.search import PrivateSearch
from scoreshield.stores import ChromaStore, Convention, PinnedStore
from scoreshield.stores import chroma as adapter

chromadb = pytest.importorskip("chromadb", reason="chromadb is not installed")

TOKEN = "t0ken-of-the-server"
_names = itertools.count()


def settings() -> Any:
    return chromadb.config.Settings(anonymized_telemetry=False)


class ChromaChecks(StoreChecks):
    takes_zero: ClassVar[frozenset[str]] = frozenset({"auto", "copy", "view", "scores"})
    ids: ClassVar[Sequence[Any]] = [f"p{i}" for i in np.random.default_rng(1).permutation(N)]
    new: ClassVar[Any] = "new"
    space: ClassVar[str] = "cosine"
    sees_updates: ClassVar[bool] = False
    client: Any

    def collection(self) -> Any:
        if not hasattr(self, "made"):
            configuration = {"hnsw": {"space": self.space}}
            name = f"people{next(_names)}"
            self.made = self.client.create_collection(name, configuration=configuration, embedding_function=None)
        return self.made

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        self.collection().add(ids=list(ids), embeddings=[np.asarray(v, dtype=np.float32) for v in vectors])

    def change(self, one: Any, vector: Any) -> None:
        self.collection().update(ids=[one], embeddings=[np.asarray(vector, dtype=np.float32)])

    def remove(self, one: Any) -> None:
        self.collection().delete(ids=[one])

    def empty(self) -> None:
        self.collection().delete(ids=list(self.ids))

    def open(self) -> ChromaStore:
        store = ChromaStore(self.collection())
        store.look_every = 0.0  # these checks look at once
        return store

    def break_readings(
        self,
        kind: str,
        store: Any,  # noqa: ARG002
        patch: pytest.MonkeyPatch,
    ) -> contextlib.AbstractContextManager[None]:
        error = {"dropped": ConnectionError, "late": TimeoutError}[kind]
        return patch_to_raise(patch, self.collection(), "count", "get", error=error)


class TestMemory(ChromaChecks):
    @pytest.fixture(autouse=True)
    def _client(self) -> None:
        self.client = chromadb.EphemeralClient(settings=settings())


class TestFolder(ChromaChecks):
    """On disk, inner product."""

    space: ClassVar[str] = "ip"

    @pytest.fixture(autouse=True)
    def _client(self, tmp_path: Path) -> None:
        self.client = chromadb.PersistentClient(tmp_path / "chroma", settings=settings())


class Server:
    """A real one, on a free port, that forgets everything."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chroma", path=str(Path(sys.executable).parent))
        if program is None:
            pytest.skip("the program 'chroma' is not beside the interpreter")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [program, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        patience = time.monotonic() + 30
        while time.monotonic() < patience and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        self.stop()
        pytest.skip("the Chroma server does not start here")

    def client(self) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return chromadb.HttpClient("127.0.0.1", self.port, headers=headers, settings=settings())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("chroma"))
    yield started
    started.stop()


class TestServer(ChromaChecks):
    """Euclidean distance, which is Chroma's default."""

    space: ClassVar[str] = "l2"
    failures: ClassVar[tuple[str, ...]] = ("dropped", "late", "refused")
    secrets: ClassVar[tuple[str, ...]] = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _client(self, server: Server) -> None:
        self.client = server.client()

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG002
        """At the socket's level: every answer of the server is cut, late or refused."""
        httpx = pytest.importorskip("httpx")

        def handle(_: Any, request: Any) -> Any:
            if kind == "refused":
                return httpx.Response(500, json={"error": "InternalError", "message": f"{MARKER} 0.123456789"})
            raise {"dropped": httpx.RemoteProtocolError, "late": httpx.ReadTimeout}[kind](MARKER, request=request)

        patch.setattr(httpx.HTTPTransport, "handle_request", handle)
        yield


def test_dead_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that dies during a reading raises a StoreError and costs nothing."""
    monkeypatch.setattr(adapter, "_PAGE", 10)
    server = Server(tmp_path / "chroma")
    checks = TestServer()
    try:
        checks.client = server.client()
        store = checks.fill_and_open()
        account = checks.account(tmp_path)
        search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account, pin="scores")
        search.search(make_query())
        usual, pages = store._convert_page, []

        def rows(page: Any) -> Any:
            pages.append(len(page["ids"]))
            if len(pages) == 2:
                server.stop()
            return usual(page)

        monkeypatch.setattr(store, "_convert_page", rows)
        checks.assert_rejected(account, lambda: search.search(make_query()), r"failed while scoring a query \(\w+\)")
        assert pages == [10, 10]
        checks.assert_rejected(account, lambda: search.search(make_query()), r"failed while giving its state \(\w+\)")
        assert account.spent == 1.0
    finally:
        server.stop()


@pytest.mark.parametrize("space", ["cosine", "ip", "l2", None])
@pytest.mark.parametrize("pin", ["copy", "scores"])
def test_every_space(space: str | None, pin: str) -> None:
    """Every space of Chroma gives cosines of vectors of any length."""
    client = chromadb.EphemeralClient(settings=settings())
    configuration = None if space is None else {"hnsw": {"space": space}}
    collection = client.create_collection(f"people{next(_names)}", configuration=configuration, embedding_function=None)
    rows = np.random.default_rng(0).standard_normal((20, DIMENSION)).astype(np.float32)
    rows *= np.geomspace(1e-15, 1e15, 20, dtype=np.float32)[:, None]
    collection.add(ids=[f"p{i:02}" for i in range(20)], embeddings=rows)
    store, query = ChromaStore(collection), make_query()
    assert store.convention is Convention.COSINE
    np.testing.assert_allclose(store.scores(query).values, cosines(rows, query), atol=2e-6)
    given, asked = PinnedStore(store, pin=pin).take_snapshot().make_problem(unit(query))
    np.testing.assert_allclose(given @ asked, cosines(rows, query), atol=2e-6)


def test_look_every() -> None:
    """A search reads Chroma's state once per second."""
    checks = TestMemory()
    checks.client = chromadb.EphemeralClient(settings=settings())
    checks.fill_and_open()
    store = ChromaStore(checks.collection())
    assert store.look_every == 1.0
    pinned, eager = PinnedStore(store), PinnedStore(store, check_every=0)
    assert len(pinned.take_snapshot()) == len(eager.take_snapshot()) == N
    checks.remove(checks.ids[0])
    assert (len(pinned.take_snapshot()), len(eager.take_snapshot())) == (N, N - 1)
    pinned._checked_at -= 1.0  # a second later
    assert len(pinned.take_snapshot()) == N - 1


@pytest.mark.parametrize("what", ["come", "go"])
def test_change_between_pages(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that comes or goes between two pages raises an error."""
    monkeypatch.setattr(adapter, "_PAGE", 10)
    checks = TestMemory()
    checks.client = chromadb.EphemeralClient(settings=settings())
    store = checks.fill_and_open()
    assert len(store.records().ids) == N
    usual, pages = store._convert_page, []

    def rows(page: Any) -> Any:
        pages.append(len(page["ids"]))
        if len(pages) == 2 and what == "go":
            checks.remove(checks.ids[0])
        elif len(pages) == 2:
            checks.put([checks.new], unit(np.ones((1, DIMENSION))))
        return usual(page)

    monkeypatch.setattr(store, "_convert_page", rows)
    with pytest.raises(StoreError, match="changed while it was read; nothing was released"):
        store.records()


@pytest.mark.parametrize("late", [False, True])
def test_swap_between_pages(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number stays: by places, a live record is missed and a gone one kept."""
    monkeypatch.setattr(adapter, "_PAGE", 10)
    checks = TestMemory()
    checks.client = chromadb.EphemeralClient(settings=settings())
    store = checks.fill_and_open()
    usual, pages = store._convert_page, []

    def rows(page: Any) -> Any:
        pages.append(len(page["ids"]))
        if len(pages) == (4 if late else 1):
            checks.remove(page["ids"][0])
            checks.put([checks.new], unit(np.ones((1, DIMENSION))))
        return usual(page)

    monkeypatch.setattr(store, "_convert_page", rows)
    with pytest.raises(StoreError, match="changed while it was read; nothing was released"):
        store.scores(make_query())


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="a collection of chromadb, not asynchronous"):
        ChromaStore("people")
    client = chromadb.EphemeralClient(settings=settings())
    name = f"people{next(_names)}"
    collection = client.create_collection(name, embedding_function=None)
    with pytest.raises(StoreError, match=f"The Chroma collection '{name}' holds no records"):
        ChromaStore(collection)
    collection.add(ids=["a"], embeddings=[[1.0, 0.0]])
    store = ChromaStore(collection)
    client.delete_collection(name)
    with pytest.raises(StoreError, match=r"failed while giving its state \(NotFoundError\)"):
        PinnedStore(store).take_snapshot()
