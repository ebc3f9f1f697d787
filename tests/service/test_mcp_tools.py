"""MCP: the real client lists and calls the tools, with the same answers, charges and errors as elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")
pytest.importorskip("mcp", reason="the 'service' extra is not installed")

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from service_support import (
    DIMENSION,
    TestClient,
    make_headers,
    make_key,
    make_query,
    open_service,
    serve,
    spent,
    write_collection,
    write_policy,
)

from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.problems import ServiceProblem

CALLERS = {"other": {"role": "reader", "collections": {"docs": {"actions": ["matches"]}}}}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    content = write_policy(callers=CALLERS, collection={"embedder": "hashing", "budget": {"epsilon": 3.0}})
    return open_service(tmp_path, content)


def ask(service: Service, work: Callable[[Client], Awaitable[None]], caller: str = "app", mode: str = "auto") -> None:
    """Serve, connect the real client with a key, and let it work."""

    async def connect(address: str) -> None:
        headers = {"authorization": f"Bearer {make_key(service, caller)}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=20) as http,
            Client(streamable_http_client(f"{address}/mcp", http_client=http), mode=mode) as client,
        ):
            await work(client)

    with serve(service) as address:
        anyio.run(connect, address)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_real_client(service: Service, mode: str) -> None:
    """The real client lists the tools and calls them, in the newest and in the older form of the protocol."""

    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == {"search", "budget"}
        assert tools["search"].input_schema["properties"]["collection"]["enum"] == ["docs"]
        arguments: dict[str, Any] = {"collection": "docs", "query": make_query(1), "k": 5}
        first = await client.call_tool("search", arguments)
        assert not first.is_error, first
        assert len(first.structured_content["hits"]) == 5
        again = await client.call_tool("search", arguments)
        assert again.content == first.content
        assert find_signature_fault(first.structured_content, service.key.signing_keys[0].public) is None
        text = await client.call_tool("search", {"collection": "docs", "query": "a text", "filter": {"year": 2001}})
        assert {hit["fields"]["year"] for hit in text.structured_content["hits"]} == {2001}
        left = await client.call_tool("budget", {"collection": "docs"})
        assert left.structured_content["queries_left"]["search"] == 1
        assert left.structured_content["spent"] == {"epsilon": 2.0}

    ask(service, work, mode=mode)
    assert spent(service) == 2.0


def test_no_place_for_those_without_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text waits for the embedder only where the caller may search. A busy collection is not told from a missing one.

    Otherwise a caller could take the places of a collection that it may not see, and learn that it is there.
    """
    docs = write_policy()["collections"]["docs"]
    content = write_policy(callers=CALLERS, collection={"embedder": "hashing"})
    content["collections"]["secret"] = {**docs, "file": "secret.npz", "embedder": "hashing"}
    write_collection(tmp_path / "secret.npz", seed=9)
    service = open_service(tmp_path, content)
    asked: list[str] = []

    def reject(served: Any) -> Any:
        asked.append(served.name)
        raise ServiceProblem("too_busy")

    monkeypatch.setattr(service, "find_text_threads", reject)
    cases = {("app", "secret"): "unknown_collection", ("other", "docs"): "action_not_allowed"}
    cases |= {("app", "cats"): "unknown_collection", ("app", "docs"): "too_busy"}
    with TestClient(create_app(service)) as client:
        for (caller, name), code in cases.items():
            params = {"name": "search", "arguments": {"collection": name, "query": "a text"}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {**make_headers(service, caller), "accept": "application/json, text/event-stream"}
            answer = client.post("/mcp", json=message, headers=headers).json()
            assert answer["result"]["structuredContent"]["code"] == code, (caller, name)
    assert asked == ["docs"]


def test_errors_are_results(service: Service) -> None:
    """What is wrong is a result with a stable code, and is free. The end of the budget is one too."""
    bad: list[tuple[str, dict[str, Any], str]] = [
        ("search", {"collection": "cats", "query": make_query(1)}, "unknown_collection"),
        ("search", {"collection": "docs", "query": [1.0]}, "wrong_dimension"),
        ("search", {"collection": "docs", "query": [0.0] * DIMENSION}, "zero_query"),
        ("search", {"collection": "docs", "query": " "}, "zero_query"),
        ("search", {"collection": "docs"}, "invalid_request"),
        ("search", {"collection": "docs", "query": make_query(1), "vectors": True}, "invalid_request"),
        ("search", {"collection": "docs", "query": make_query(1), "k": 51}, "k_too_large"),
        ("search", {"collection": "docs", "query": make_query(1), "filter": {"ids": 1}}, "unknown_field"),
        ("budget", {"collection": "cats"}, "unknown_collection"),
        ("budget", {}, "invalid_request"),
        ("scroll", {"collection": "docs"}, "not_offered"),
    ]

    async def work(client: Client) -> None:
        for name, arguments, code in bad:
            answer = await client.call_tool(name, arguments)
            assert answer.is_error
            assert answer.structured_content["code"] == code
            assert json.loads(answer.content[0].text) == answer.structured_content
        assert spent(service) == 0.0
        for seed in range(4):
            answer = await client.call_tool("search", {"collection": "docs", "query": make_query(seed)})
            assert answer.is_error == (seed == 3)
        assert answer.structured_content["code"] == "budget_exhausted"

    ask(service, work)
    assert spent(service) == 3.0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999", "[2001, NaN]", "9" * 5000])
def test_numbers_that_cannot_be_signed_cost_nothing(service: Service, value: str) -> None:
    """A filter with a value that JSON does not know, or that is too long, is rejected before the charge."""
    body = f'{{"collection": "docs", "query": {make_query(1)}, "filter": {{"year": {value}}}}}'
    call = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {{"name": "search", "arguments": {body}}}}}'
    headers = {**make_headers(service), "accept": "application/json, text/event-stream"}
    headers |= {"content-type": "application/json", "mcp-protocol-version": "2025-06-18"}
    with TestClient(create_app(service)) as client:
        answer = client.post("/mcp", content=call, headers=headers)
    assert answer.status_code == 400 or answer.json()["result"]["structuredContent"]["code"] == "invalid_request"
    assert spent(service) == 0.0


def test_action_must_be_granted(service: Service) -> None:
    async def work(client: Client) -> None:
        answer = await client.call_tool("search", {"collection": "docs", "query": make_query(1)})
        assert answer.structured_content["code"] == "action_not_allowed"

    ask(service, work, caller="other")
    assert spent(service) == 0.0


def test_answer_is_shared_with_other_paths(service: Service) -> None:
    """A tool shows the answer of /v1, in the same bytes."""

    async def work(client: Client) -> None:
        answer = await client.call_tool("search", {"collection": "docs", "query": make_query(1)})
        found.append(answer.content[0].text.encode("ascii"))

    found: list[bytes] = []
    key = make_headers(service)
    ask(service, work)
    again = open_service(
        Path(service.policy.installation.key_file).parent, json.loads(service.policy.model_dump_json())
    )
    with TestClient(create_app(again), headers=key) as http:
        assert http.post("/v1/collections/docs/search", json={"query": make_query(1)}).content == found[0]
    assert spent(again) == 1.0


def test_fresh_answers_leave_at_a_coarse_time(tmp_path: Path) -> None:
    """The delay of fresh answers holds on every interface."""
    content = write_policy(collection={"embedder": "hashing"})
    content["installation"]["time_step"] = 0.3
    service = open_service(tmp_path, content)
    arguments = {"collection": "docs", "query": make_query(3)}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": arguments}}
    headers = {"accept": "application/json, text/event-stream", **make_headers(service)}
    with TestClient(create_app(service), headers=headers) as http:
        for path, body in (
            ("/collections/docs/points/query", {"query": make_query(1)}),
            ("/v1/vector_stores/docs/search", {"query": "a text"}),
            ("/mcp", call),
        ):
            begin = time.monotonic()
            answer = http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert time.monotonic() - begin >= 0.3
    assert spent(service) == 3.0


def test_requests_without_a_key(service: Service) -> None:
    """Nothing is read without a key, there are no streams to wait on, and wrong bytes do not fail."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    with TestClient(create_app(service), raise_server_exceptions=False) as http:
        assert http.post("/mcp", json=call, headers=accept).json()["code"] == "missing_key"
        assert http.post("/mcp", json=call, headers={**accept, "authorization": "Bearer x"}).status_code == 401
        headers = {**accept, **make_headers(service), "content-type": "application/json"}
        for method in ("GET", "DELETE", "PUT"):
            assert http.request(method, "/mcp", headers=headers).status_code == 405
        for content in (b"{", b"[]", b"[" * 100_000, b"\xff", b'{"jsonrpc": "2.0"}', b"null"):
            assert 400 <= http.post("/mcp", content=content, headers=headers).status_code < 500
        listed = http.post("/mcp", json=call, headers=headers)
        assert [tool["name"] for tool in listed.json()["result"]["tools"]] == ["search", "budget"]
        assert listed.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "content",
    [
        b'"a private text"',
        b'[1, "a private text"]',
        b'{"jsonrpc": "2.0", "id": 1, "method": ["a private text"]}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": "a private text"}',
        b'{"jsonrpc": "2.0", "id": 1, "a private text',
    ],
)
def test_malformed_message_is_not_repeated(service: Service, content: bytes) -> None:
    """A body that is no JSON-RPC message gets one fixed sentence, without its values."""
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    with TestClient(create_app(service), headers={**headers, **make_headers(service)}) as http:
        answer = http.post("/mcp", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"] == {"code": -32600, "message": "The body is no JSON-RPC message."}


def test_unknown_method_is_not_repeated(service: Service) -> None:
    """A method that the protocol does not know gets a fixed sentence. Those that it knows are no secret."""
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    with TestClient(create_app(service), headers={**headers, **make_headers(service)}) as http:
        answer = http.post("/mcp", json={"jsonrpc": "2.0", "id": 7, "method": "a private text", "params": {}})
        known = http.post("/mcp", json={"jsonrpc": "2.0", "id": 8, "method": "prompts/list", "params": {}})
        note = http.post("/mcp", json={"jsonrpc": "2.0", "method": "another private text"})
    assert answer.status_code == 404
    assert answer.json() == {"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "Method not found"}}
    assert known.json()["error"]["code"] == -32601
    assert "private" not in note.text
