"""OpenAI's search of vector stores: its own client works, and its retries neither pay twice nor see other noise."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import httpx
from service_support import (
    RECORDS,
    TestClient,
    make_headers,
    make_key,
    open_service,
    serve,
    spent,
    write_collection,
    write_policy,
)

from scoreshield.errors import InvalidInput
from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.service import core
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.embedding import hash_texts

SEARCH = "/v1/vector_stores/docs/search"
WORDS = ["river", "harbour", "winter", "letter", "garden", "station", "bridge", "paper", "answer", "teacher"]
TEXTS = [f"{one} {two} {number}" for number in range(3) for one in WORDS for two in WORDS]
DIMENSION = 32


def open_texts(folder: Path, **collection: Any) -> Service:
    """Open a service whose records are texts, with vectors from the hashing embedder."""
    np.savez(
        folder / "docs.npz",
        embeddings=hash_texts(TEXTS, DIMENSION).astype(np.float32),
        ids=np.array([f"r{place}" for place in range(len(TEXTS))]),
        year=np.arange(len(TEXTS)) % 5 + 2000,
        text=np.array(TEXTS),
        secret=np.arange(len(TEXTS)),
    )
    settings = {"fields": ["year", "text"], "text": "text", "embedder": "hashing", **collection}
    return open_service(folder, write_policy(collection=settings))


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return open_texts(tmp_path)


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        yield client


class LosingProxy:
    """Runs each request to its end, keeps the body of the answer, and loses the first answers on their way."""

    def __init__(self, app: Any, losses: int) -> None:
        self._app, self._losses = app, losses
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: list[Any] = []

        async def keep(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        self.bodies.append(b"".join(message.get("body", b"") for message in messages))
        if len(self.bodies) <= self._losses:
            messages = [{"type": "http.response.start", "status": 502, "headers": [(b"retry-after-ms", b"1")]}]
            messages.append({"type": "http.response.body", "body": b"lost"})
        for message in messages:
            await send(message)


def test_real_client(service: Service) -> None:
    """The real client searches by a text, with a filter, and pays once."""
    openai = pytest.importorskip("openai", reason="the 'rag' extra is not installed")
    with serve(service) as address, openai.OpenAI(base_url=f"{address}/v1", api_key=make_key(service)) as client:
        page = client.vector_stores.search("docs", query="river bridge", max_num_results=5)
        assert len(page.data) == 5
        scores = [one.score for one in page.data]
        assert scores == sorted(scores, reverse=True)
        for one in page:
            place = int(one.file_id[1:])
            assert one.content[0].text == TEXTS[place]
            assert one.attributes == {"year": place % 5 + 2000}
        condition: Any = {"type": "gte", "key": "year", "value": 2003}
        late = client.vector_stores.search("docs", query="river bridge", filters=condition)
        assert {one.attributes["year"] for one in late} <= {2003, 2004}
        assert len(late.data) == 10
        options: Any = {"score_threshold": scores[1]}
        best = client.vector_stores.search("docs", query=["river bridge"], max_num_results=5, ranking_options=options)
        assert [one.file_id for one in best] == [one.file_id for one in page.data[:2]]
        assert spent(service) == 1.0
        with pytest.raises(openai.PermissionDeniedError):
            client.vector_stores.files.list("docs")
        with pytest.raises(openai.NotFoundError):
            client.vector_stores.search("cats", query="river bridge")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="ss_none").vector_stores.search("docs", query="river bridge")


def test_real_client_lists_stores(tmp_path: Path) -> None:
    """The real client lists and describes the collections with an embedder that its key opens, from public facts."""
    openai = pytest.importorskip("openai", reason="the 'rag' extra is not installed")
    content = write_policy()
    content["collections"] = {
        f"c{place}": {**content["collections"]["docs"], "file": f"c{place}.npz", "embedder": "hashing"}
        for place in range(5)
    }
    del content["collections"]["c4"]["embedder"]
    for place in range(5):
        write_collection(tmp_path / f"c{place}.npz", seed=place)
    grants = {f"c{place}": {"actions": ["search"]} for place in (0, 1, 2, 4)}
    content["callers"] = {"app": {"role": "reader", "collections": grants, "rate": {"requests": 1000}}}
    service = open_service(tmp_path, content)
    with serve(service) as address, openai.OpenAI(base_url=f"{address}/v1", api_key=make_key(service)) as client:
        assert [store.id for store in client.vector_stores.list()] == ["c2", "c1", "c0"]
        first = client.vector_stores.list(limit=2, order="asc")
        assert [store.id for store in first.data] == ["c0", "c1"]
        assert first.has_more
        assert [store.id for store in client.vector_stores.list(limit=2, order="asc")] == [
            "c0",
            "c1",
            "c2",
        ]  # all pages
        assert [store.id for store in client.vector_stores.list(before="c1").data] == ["c2"]
        store = client.vector_stores.retrieve("c1")
        assert (store.name, store.status, store.created_at) == ("c1", "completed", 0)
        assert (store.file_counts.total, store.usage_bytes) == (RECORDS, 0)
        for name in ("c3", "none"):
            with pytest.raises(openai.NotFoundError):
                client.vector_stores.retrieve(name)
        with pytest.raises(openai.UnprocessableEntityError, match="no embedder"):
            client.vector_stores.retrieve("c4")
        with pytest.raises(openai.PermissionDeniedError, match="No collection can be made"):
            client.vector_stores.create(name="new")
        with pytest.raises(openai.PermissionDeniedError, match="No collection can be made"):
            client.vector_stores.delete("c1")
        with pytest.raises(openai.NotFoundError, match="nothing at this path"):
            client.models.list()
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="ss_none").vector_stores.list()
    assert all(served.account.spent == 0.0 for served in service.collections.values())


@pytest.mark.parametrize(
    "filters",
    [
        {"type": ["eq"], "key": "year", "value": 2003},
        {"type": {"eq": 1}, "filters": []},
        {"type": None, "key": "year", "value": 2003},
        {"type": "eq", "key": ["year"], "value": 2003},
        {"type": "in", "key": "year", "value": [[2003]]},
        {"type": "or", "filters": [{"type": "eq", "key": "year", "value": 2003}] * 100},
        {"type": "and", "filters": [{"type": "or", "filters": []}] * 100},
    ],
)
def test_wrong_filters(http: TestClient, service: Service, filters: Any) -> None:
    """A filter of a wrong form, or with more than 100 conditions, is one sentence, and is free."""
    answer = http.post(SEARCH, json={"query": "river bridge", "filters": filters})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    assert spent(service) == 0.0


def test_retries_are_free(service: Service) -> None:
    """The client retries by itself where answers are lost: all of them have the same bytes, and one is charged."""
    openai = pytest.importorskip("openai", reason="the 'rag' extra is not installed")
    proxy = LosingProxy(create_app(service), losses=2)
    with serve(service, proxy) as address, openai.OpenAI(base_url=f"{address}/v1", api_key=make_key(service)) as client:
        page = client.vector_stores.search("docs", query="winter letter")
    assert len(proxy.bodies) == 3
    assert len(set(proxy.bodies)) == 1
    assert [one["file_id"] for one in json.loads(proxy.bodies[0])["data"]] == [one.file_id for one in page]
    assert spent(service) == 1.0


def test_exhausted_budget_is_not_retried(tmp_path: Path) -> None:
    """After the end of the budget the client asks once and raises its error. A stored answer stays free."""
    openai = pytest.importorskip("openai", reason="the 'rag' extra is not installed")
    service = open_texts(tmp_path, budget={"epsilon": 1.0})
    proxy = LosingProxy(create_app(service), losses=0)
    key = make_key(service)
    with (
        serve(service, proxy) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=5) as client,
    ):
        client.vector_stores.search("docs", query="paper")
        with pytest.raises(openai.PermissionDeniedError) as error:
            client.vector_stores.search("docs", query="answer")
        assert len(proxy.bodies) == 2
        assert error.value.code == "budget_exhausted"
        assert error.value.response.headers["x-should-retry"] == "false"
        client.vector_stores.search("docs", query="paper")
    assert spent(service) == 1.0


def test_answer_is_that_of_the_vector(http: TestClient, service: Service, tmp_path: Path) -> None:
    """A text is its vector: the answer of /v1 is the same, after a restart too, and bodies are signed."""
    first = http.post(SEARCH, json={"query": "garden station"})
    vector = hash_texts(["garden station"], DIMENSION)[0].tolist()
    own = http.post("/v1/collections/docs/search", json={"query": vector}).json()
    assert [one["file_id"] for one in first.json()["data"]] == [hit["id"] for hit in own["hits"]]
    public = http.get("/v1/signing-keys").json()["keys"][0]
    assert find_signature_fault(first.json(), public) is None
    other = open_texts(tmp_path)
    with TestClient(create_app(other), headers=http.headers) as second:
        assert second.post(SEARCH, json={"query": "garden station"}).content == first.content
    assert spent(other) == spent(service) == 1.0


FILTERS: dict[str, tuple[Any, set[int]]] = {
    "eq": ({"type": "eq", "key": "year", "value": 2001}, {1}),
    "ne": ({"type": "ne", "key": "year", "value": 2001}, {0, 2, 3, 4}),
    "in": ({"type": "in", "key": "year", "value": [2001, 2002]}, {1, 2}),
    "nin": ({"type": "nin", "key": "year", "value": [2001, 2002]}, {0, 3, 4}),
    "lt": ({"type": "lt", "key": "year", "value": 2001}, {0}),
    "and": (
        {
            "type": "and",
            "filters": [
                {"type": "gt", "key": "year", "value": 2000},
                {"type": "lte", "key": "year", "value": 2002},
            ],
        },
        {1, 2},
    ),
    "or": (
        {"type": "or", "filters": [{"type": "eq", "key": "year", "value": 2000 + one} for one in (0, 4)]},
        {0, 4},
    ),
}


@pytest.mark.parametrize("case", FILTERS.values(), ids=FILTERS.keys())
def test_filters(http: TestClient, service: Service, case: tuple[Any, set[int]]) -> None:
    """A filter chooses among the released records."""
    condition, years = case
    found = http.post(SEARCH, json={"query": "river", "max_num_results": 50, "filters": condition}).json()["data"]
    assert {one["attributes"]["year"] - 2000 for one in found} == years
    assert spent(service) == 1.0


def nest_deeply() -> dict[str, Any]:
    content: dict[str, Any] = {"type": "eq", "key": "year", "value": 2001}
    for _ in range(20):
        content = {"type": "and", "filters": [content]}
    return content


BAD_BODIES: dict[str, tuple[Any, str]] = {
    "no query": ({}, "invalid_request"),
    "empty": ({"query": ""}, "invalid_request"),
    "blank": ({"query": " \n"}, "zero_query"),
    "two texts": ({"query": ["a", "b"]}, "invalid_request"),
    "vector": ({"query": [1.0] * DIMENSION}, "invalid_request"),
    "rewritten": ({"query": "a", "rewrite_query": True}, "invalid_request"),
    "too many": ({"query": "a", "max_num_results": 51}, "k_too_large"),
    "none wanted": ({"query": "a", "max_num_results": 0}, "invalid_request"),
    "private field": ({"query": "a", "filters": {"type": "eq", "key": "secret", "value": 1}}, "unknown_field"),
    "no type": ({"query": "a", "filters": {"key": "year", "value": 1}}, "invalid_request"),
    "other type": ({"query": "a", "filters": {"type": "like", "key": "year", "value": 1}}, "invalid_request"),
    "no bound": ({"query": "a", "filters": {"type": "gt", "key": "year", "value": "x"}}, "invalid_request"),
    "deep": ({"query": "a", "filters": nest_deeply()}, "invalid_request"),
    "unknown": ({"query": "a", "vectors": True}, "invalid_request"),
}


@pytest.mark.parametrize("case", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_bodies(http: TestClient, service: Service, case: tuple[Any, str]) -> None:
    """A wrong body is one sentence in OpenAI's form, and is free."""
    body, code = case
    answer = http.post(SEARCH, json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"].endswith(".")
    assert spent(service) == 0.0


def test_collection_without_embedder(tmp_path: Path) -> None:
    service = open_texts(tmp_path, embedder=None)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        answer = client.post(SEARCH, json={"query": "river"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "no_embedder")


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> str:
    (folder / f"{name}.py").write_text(f"def encode(texts):\n    {body}\n")
    monkeypatch.syspath_prepend(str(folder))
    return f"{name}:encode"


def test_own_embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of one's own embeds texts. Where it fails, nothing is charged and its message is not shown."""
    body = "return [[float(len(text)) if text != 'bad' else 1 / 0] * 32 for text in texts]"
    service = open_texts(tmp_path, embedder=write_module(tmp_path, monkeypatch, "own_embedder", body))
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        first = client.post(SEARCH, json={"query": "three"})
        assert first.status_code == 200, first.text
        failed = client.post(SEARCH, json={"query": "bad"})
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "embedder_failed")
    assert "division" not in failed.text
    assert spent(service) == 1.0


@contextlib.contextmanager
def hold_embedder(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Let the embedder wait until the block ends; yields what is released for each text that has begun."""
    embedder, may_end, begun = service.collections["docs"]._embedder, threading.Event(), threading.Semaphore(0)
    assert embedder is not None
    embed = embedder.embed

    def embed_slowly(text: str) -> list[float]:
        begun.release()
        assert may_end.wait(60)
        return embed(text)

    monkeypatch.setattr(embedder, "embed", embed_slowly)
    try:
        yield begun
    finally:
        may_end.set()


def test_slow_embedder_holds_up_its_texts_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """While more texts wait for an embedder than there are threads, a query with a vector is answered."""
    tool = {"name": "search", "arguments": {"collection": "docs", "query": "a text by a tool"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool}
    headers = {**make_headers(service), "accept": "application/json, text/event-stream"}
    limits = httpx.Limits(max_connections=60)
    with (
        serve(service) as address,
        httpx.Client(trust_env=False, base_url=address, headers=headers, limits=limits, timeout=60) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        with hold_embedder(service, monkeypatch) as begun:
            texts = [pool.submit(client.post, SEARCH, json={"query": f"text {place % 5}"}) for place in range(45)]
            texts += [pool.submit(client.post, "/mcp", json=call) for _ in range(5)]
            assert begun.acquire(timeout=30)
            path, query = "/v1/collections/docs/search", hash_texts(["river bridge"], DIMENSION)[0].tolist()
            assert client.post(path, json={"query": query}, timeout=20).status_code == 200
        assert {one.result(60).status_code for one in texts} == {200}
    assert spent(service) == 7.0


def test_texts_take_a_share_of_the_requests(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts beyond a share of the requests at a time are 503, so that an embedder that hangs leaves room for others."""
    monkeypatch.setattr(core, "_WAITING_SHARE", 128)  # 8 of 1,024
    limits = httpx.Limits(max_connections=60)
    with (
        serve(service) as address,
        httpx.Client(
            trust_env=False, base_url=address, headers=make_headers(service), limits=limits, timeout=60
        ) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        with hold_embedder(service, monkeypatch) as begun:
            texts = [pool.submit(client.post, SEARCH, json={"query": f"text {place % 5}"}) for place in range(40)]
            assert begun.acquire(timeout=30)
            end = time.monotonic() + 30
            while sum(one.done() for one in texts) < 40 - 16 - 8:
                assert time.monotonic() < end
                time.sleep(0.01)
            rejected = [one.result() for one in texts if one.done()]
        assert {(one.status_code, one.json()["error"]["code"]) for one in rejected} == {(503, "too_busy")}
        assert len(rejected) == 40 - 16 - 8
        assert sum(one.result(60).status_code == 200 for one in texts) == 16 + 8
    assert spent(service) <= 5


def test_wrong_embedder_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="cannot be imported"):
        open_texts(tmp_path, embedder="no_such_module:encode")
    short = write_module(tmp_path, monkeypatch, "short_embedder", "return [[1.0, 2.0] for _ in texts]")
    with pytest.raises(InvalidInput, match="rows of 32 numbers"):
        open_texts(tmp_path, embedder=short)
    with pytest.raises(InvalidInput, match="not one of its public fields"):
        open_texts(tmp_path, text="secret")


def test_hashed_texts() -> None:
    """Rows have length one, depend on their text alone, and are zero for blank texts only."""
    rows = hash_texts(["a b", "b a", "A  B", "...", "\ud800", " "], 64)
    assert np.allclose(np.linalg.norm(rows, axis=1), [1, 1, 1, 1, 1, 0])
    assert np.array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[1], hash_texts(["b a"], 64)[0])
    # Later versions must give the same numbers: they are the vectors of collections that exist.
    river = hash_texts(["River bridge"], 64)[0] * np.sqrt(3)
    assert {int(place): round(river[place]) for place in np.flatnonzero(river)} == {11: 1, 15: 1, 19: -1}


def test_strange_texts(http: TestClient) -> None:
    """Texts that are no proper Unicode, or hold unusual characters, are answered or rejected, and never fail."""
    for content in (b'{"query": "\\ud800"}', b'{"query": "\\u0000"}', '{"query": "Fluß 橋 🌉"}'.encode()):
        answer = http.post(SEARCH, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 422), answer.text
