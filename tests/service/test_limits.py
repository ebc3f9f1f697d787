"""Limits of requests: their size, their time, their number at once, and their rate on all replicas together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import httpx
import uvicorn
from pydantic import ValidationError
from service_support import TestClient, make_headers, make_policy, make_query, open_service, serve, write_policy

from scoreshield.service import rates
from scoreshield.service.application import ServiceMiddleware, create_app
from scoreshield.service.core import Service
from scoreshield.service.key_paths import NewKeyBody
from scoreshield.service.mcp_tools import SearchArguments
from scoreshield.service.policy import RatePolicy
from scoreshield.service.problems import UNKNOWN_MEMBER, ServiceProblem
from scoreshield.service.qdrant import QdrantBatch, QdrantQuery, QdrantVectorBatch
from scoreshield.service.rates import SharedRateLimiter
from scoreshield.service.rest import EstimateBody, SearchBody
from scoreshield.service.server import limit_connections
from scoreshield.service.tables import InstallationDatabase
from scoreshield.service.vector_stores import TextQuery

SEARCH = "/v1/collections/docs/search"
_schemas = itertools.count()


def open_limited(folder: Path, **limits: Any) -> Service:
    content = write_policy()
    content["installation"] |= limits
    return open_service(folder, content)


def exchange(address: str, *parts: bytes, wait: float = 15.0) -> bytes:
    """Send parts on one connection, and read until the service closes it."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received


def test_slow_body(tmp_path: Path) -> None:
    """A body that does not arrive in time is 408, the connection is closed, and nothing is charged."""
    service = open_limited(tmp_path, request_seconds=0.3)
    key = make_headers(service)["authorization"].encode()
    head = b"POST " + SEARCH.encode() + b" HTTP/1.1\r\nhost: here\r\nauthorization: " + key
    head += b"\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    with serve(service) as address:
        answer = exchange(address, head, b'{"query": [')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_too_slow"' in answer
    assert service.collections["docs"].account.spent == 0


def test_cut_off_body(tmp_path: Path) -> None:
    """A body that a lost connection cuts off is not answered, even if it could be a whole one."""
    service = open_limited(tmp_path)
    whole = json.dumps({"query": make_query(1)}).encode()
    key = make_headers(service)["authorization"].encode()
    headers = [(b"authorization", key), (b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "POST"}
    scope |= {"path": SEARCH, "raw_path": SEARCH.encode(), "query_string": b"", "headers": headers}
    sent: list[Any] = []

    def ask(*messages: dict[str, Any]) -> int:
        async def receive() -> dict[str, Any]:
            return next(left)

        async def send(message: Any) -> None:
            sent.append(message)

        left = iter(messages)
        asyncio.run(create_app(service)({**scope, "state": {}}, receive, send))
        return int(next(one["status"] for one in reversed(sent) if "status" in one))

    part = {"type": "http.request", "body": whole, "more_body": True}
    assert ask(part, {"type": "http.disconnect"}) == 400
    assert service.collections["docs"].account.spent == 0
    assert ask(part, {"type": "http.request", "body": b"", "more_body": False}) == 200
    assert service.collections["docs"].account.spent == 1


def test_held_back_byte_does_not_shift_the_time(tmp_path: Path) -> None:
    """An answer leaves a multiple of the time step after the last byte, whenever that was sent."""
    service = open_limited(tmp_path, time_step=0.6)
    body = json.dumps({"query": make_query(1)}).encode()
    key = make_headers(service)["authorization"].encode()
    head = b"POST " + SEARCH.encode() + b" HTTP/1.1\r\nhost: here\r\nconnection: close\r\nauthorization: " + key
    head += b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with serve(service) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=15) as connection:
            connection.sendall(head + body[:-1])
            time.sleep(0.3)
            begin = time.monotonic()
            connection.sendall(body[-1:])
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert time.monotonic() - begin >= 0.59


def test_large_head(tmp_path: Path) -> None:
    """Headers or a path that are too large are 431, before a key is looked up."""
    service = open_limited(tmp_path, largest_head=2048)
    with TestClient(create_app(service)) as client:
        for answer in (
            client.get("/v1/collections", headers={"x-long": "a" * 3000}),
            client.get(f"/v1/collections?{'a' * 3000}"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (431, "head_too_large")
        assert client.get("/v1/collections", headers=make_headers(service)).status_code == 200
    service.close()


@contextlib.contextmanager
def serve_limited(folder: Path, http: str, largest: int, seconds: float, app: Any = None) -> Iterator[str]:
    """Serve with limits of connections, by one of Uvicorn's parsers; yields the address."""
    implementation = pytest.importorskip(f"uvicorn.protocols.http.{http}_impl", reason=f"needs: pip install {http}")
    base = implementation.H11Protocol if http == "h11" else implementation.HttpToolsProtocol
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scoreshield.service.server.AutoHTTPProtocol", base)
        protocol = limit_connections(largest, seconds)
    app = create_app(open_service(folder)) if app is None else app
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, ws="none", http=protocol, timeout_keep_alive=1)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


WHOLE = b"GET /livez HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_slow_head(tmp_path: Path, http: str) -> None:
    """A connection whose head does not arrive in time is closed, also after a whole request; others are answered."""
    with serve_limited(tmp_path, http, 2048, 0.4) as address:
        assert exchange(address) == b""  # nothing is sent
        assert exchange(address, b"GET /livez HTTP/1.1\r\nx-a: b") == b""
        assert exchange(address, WHOLE, WHOLE).count(b"200 OK") == 2
        assert exchange(address, WHOLE, b"GET /livez HTTP/1.1\r\nx-a: b").count(b"200 OK") == 1


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_head_without_end(tmp_path: Path, http: str) -> None:
    """A connection whose head is too large is closed by its size, long before its time is over."""
    with serve_limited(tmp_path, http, 2048, 600.0) as address:
        assert exchange(address, WHOLE, WHOLE).count(b"200 OK") == 2
        parts = [b"GET /livez HTTP/1.1\r\n", *[b"x-a: " + b"b" * 1000 + b"\r\n"] * 20]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # closed while the rest was sent
            assert b" 200 " not in exchange(address, *parts)  # a connection that stays open fails by its time-out


def open_slow_reader(address: str, request: bytes) -> socket.socket:
    """Send a request on a connection whose buffer for answers is small, and read nothing."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(15)
    connection.connect((host, int(port)))
    connection.sendall(request)
    return connection


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_clients_that_read_nothing(tmp_path: Path, http: str) -> None:
    """Clients that take no answer lose their connection, so they do not hold all requests at a time."""
    service = open_limited(tmp_path, most_requests=3)
    with serve_limited(tmp_path, http, 2048, 0.5, create_app(service)) as address:
        request = b"GET /openapi.json HTTP/1.1\r\nhost: here\r\n\r\n"
        slow = [open_slow_reader(address, request * 100) for _ in range(3)]

        def ask() -> bytes:
            time.sleep(0.1)
            return exchange(address, b"GET /v1/collections HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")[:12]

        end = time.monotonic() + 20
        while ask() != b"HTTP/1.1 503" and time.monotonic() < end:  # until nothing more fits into their buffers
            pass
        while (last := [ask() for _ in range(5)]) != [b"HTTP/1.1 401"] * 5:
            assert time.monotonic() < end, last
        for connection in slow:
            connection.close()


CONTENT = b"a" * 2**24


async def send_content(scope: Any, receive: Any, send: Any) -> None:
    """Answer with more bytes than the system keeps for a connection."""
    del receive
    if scope["type"] == "http":
        headers = [(b"content-length", str(len(CONTENT)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": CONTENT})


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("end", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
@pytest.mark.parametrize("most", [2**16, 2**26], ids=["waits", "is written"])
def test_rest_of_an_answer(tmp_path: Path, http: str, end: bytes, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose client takes nothing ends, while the application waits and after all was written."""
    implementation = pytest.importorskip(f"uvicorn.protocols.http.{http}_impl", reason=f"needs: pip install {http}")
    base = implementation.H11Protocol if http == "h11" else implementation.HttpToolsProtocol
    begin = base.connection_made

    def connect(self: Any, transport: Any) -> None:
        transport.set_write_buffer_limits(most)
        begin(self, transport)

    monkeypatch.setattr(base, "connection_made", connect)
    with serve_limited(tmp_path, http, 2048, 0.5, send_content) as address:
        with open_slow_reader(address, b"GET / HTTP/1.1\r\nhost: here\r\n" + end + b"\r\n") as connection:
            time.sleep(3)  # longer than an idle connection lives
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(2**18):
                    received += len(part)
        assert 0 < received < len(CONTENT)


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_client_that_reads_slowly(tmp_path: Path, http: str) -> None:
    """A client that takes a large answer in small parts gets all of it, however long that takes."""
    with serve_limited(tmp_path, http, 2048, 0.5, send_content) as address:
        begin, received = time.monotonic(), 0
        with open_slow_reader(address, b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n") as connection:
            while part := connection.recv(2**18):
                received += len(part)
                time.sleep(0.0002)
        assert received > len(CONTENT)
        assert time.monotonic() - begin > 0.6


def test_requests_at_a_time(tmp_path: Path) -> None:
    """Beyond the number at a time, requests are 503, except the one that asks whether the process lives."""
    service = open_limited(tmp_path, most_requests=2)
    app = create_app(service)
    middleware: Any = ServiceMiddleware(app, service, [])
    statuses: list[tuple[str, int]] = []

    async def ask(path: str, receive: Any) -> None:
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [], "scheme": "http", "app": app, "http_version": "1.1", "root_path": "", "state": {}}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append((path, message["status"]))

        await middleware(scope, receive, send)

    async def run() -> None:
        release = asyncio.Event()

        async def wait() -> Any:
            await release.wait()
            return {"type": "http.request", "body": b""}

        async def give() -> Any:
            return {"type": "http.request", "body": b""}

        held = [asyncio.create_task(ask("/v1/collections", wait)) for _ in range(2)]
        await asyncio.sleep(0)
        await ask("/v1/collections", give)
        await ask("/livez", give)
        release.set()
        await asyncio.gather(*held)
        await ask("/v1/collections", give)

    asyncio.run(run())
    assert statuses[0] == ("/v1/collections", 503)
    assert statuses[1] == ("/livez", 200)
    assert [status for _, status in statuses[2:]] == [401, 401, 401]
    service.close()


def read_until(connection: socket.socket, end: bytes) -> None:
    """Read what a service sends until a text has arrived."""
    received = b""
    while end not in received:
        piece = connection.recv(4096)
        assert piece, received
        received += piece


def test_places_of_bodies_that_do_not_arrive(tmp_path: Path) -> None:
    """Clients without a key cannot take all places by bodies that they hold back: the oldest one makes room."""
    service = open_limited(tmp_path, most_requests=4)
    headers = make_headers(service)
    with serve(service) as address, contextlib.ExitStack() as sockets:
        host, port = address.removeprefix("http://").split(":")
        head = b"POST " + SEARCH.encode() + b" HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n"
        held = [sockets.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(4)]
        for one in held:
            one.sendall(head)
            time.sleep(0.01)
        time.sleep(0.5)
        answer = httpx.get(f"{address}/v1/collections", headers=headers, trust_env=False)
        assert answer.status_code == 200
        read_until(held[0], b"body_too_slow")
        held[3].sendall(b"{}       ")  # the others keep their places
        read_until(held[3], b"missing_key")


WRONG_BODIES = {
    "numbers": (SearchBody, {"query": ["a"] * 60_000}),
    "batch": (SearchBody, {"queries": [["a"] * 100] * 900}),
    "filter values": (SearchBody, {"filter": {"year": [[1]] * 50_000}}),
    "filter fields": (SearchBody, {"filter": {str(n): [[]] for n in range(20_000)}}),
    "empty filter fields": (SearchBody, {"filter": {str(n): [] for n in range(20_000)}}),
    "members": (SearchBody, {str(n): 0 for n in range(20_000)}),
    "members of an estimate": (EstimateBody, {str(n): 0 for n in range(20_000)}),
    "Qdrant's members": (QdrantQuery, {str(n): 0 for n in range(20_000)}),
    "Qdrant's payload": (QdrantQuery, {"with_payload": {str(n): [1, 1] for n in range(20_000)}}),
    "Qdrant's batch": (QdrantBatch, {"searches": [{"with_payload": [1] * 99}] * 900}),
    "Qdrant's older batch": (QdrantVectorBatch, {"searches": [{"with_payload": [1] * 99}] * 900}),
    "OpenAI's members": (TextQuery, {str(n): 0 for n in range(20_000)}),
    "OpenAI's ranking": (TextQuery, {"query": "a", "ranking_options": {str(n): 0 for n in range(20_000)}}),
    "members of a tool": (SearchArguments, {str(n): 0 for n in range(20_000)}),
    "members of a key": (NewKeyBody, {str(n): 0 for n in range(20_000)}),
    "collections of a key": (NewKeyBody, {"caller": "app", "collections": ["A"] * 1000, "actions": ["x"] * 10}),
}


@pytest.mark.parametrize("kind", WRONG_BODIES)
def test_wrong_body_has_few_errors(kind: str) -> None:
    """A body with very many faults ends the check early. A megabyte of them took the event loop ten seconds."""
    model, content = WRONG_BODIES[kind]
    with pytest.raises(ValidationError) as caught:
        model.model_validate(content)
    assert caught.value.error_count() <= 5


def test_sentence_about_many_unknown_members(tmp_path: Path) -> None:
    """A body with more members than its path takes gets the sentence of an unknown member, in every interface."""
    service = open_service(tmp_path, write_policy(collection={"embedder": "hashing"}))
    content = {f"member{n}": 0 for n in range(200)}
    with TestClient(create_app(service)) as client:
        headers = make_headers(service)
        for path in (SEARCH, "/collections/docs/points/query", "/v1/vector_stores/docs/search"):
            response = client.post(path, json=content, headers=headers)
            assert (response.status_code, UNKNOWN_MEMBER in response.text) == (422, True), path
            assert "member1" not in response.text


def count_allowed(limiters: list[SharedRateLimiter], rate: RatePolicy, requests: int) -> int:
    def ask(place: int) -> bool:
        try:
            limiters[place % len(limiters)].count("key", rate)
        except ServiceProblem as problem:
            rejected.append(problem)
            return False
        return True

    rejected: list[ServiceProblem] = []
    with ThreadPoolExecutor(4) as pool:
        allowed = sum(pool.map(ask, range(requests)))
    assert all(problem.code == "rate_limited" and int(problem.headers["retry-after"]) >= 1 for problem in rejected)
    return allowed


def test_shared_rate_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas allow one rate together; it refills evenly, and another key has its own."""
    now = 1_000_000.0
    monkeypatch.setattr(rates.time, "time", lambda: now)
    limiters = [SharedRateLimiter(InstallationDatabase(f"sqlite:///{tmp_path / 'one.db'}")) for _ in range(2)]
    rate = RatePolicy(requests=4, seconds=8.0)
    assert count_allowed(limiters, rate, 12) == 4
    limiters[0].count("other", rate)
    now += 1.9
    assert count_allowed(limiters, rate, 2) == 0
    now += 0.2
    assert count_allowed(limiters, rate, 2) == 1
    now += 1000
    assert count_allowed(limiters, rate, 12) == 4


def test_shared_rate_on_postgres(postgres: str) -> None:
    psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    schema = f"rates{next(_schemas)}"
    with psycopg.connect(postgres) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    url = f"{postgres}&options=-csearch_path%3D{schema}"
    databases = [InstallationDatabase(url) for _ in range(2)]
    limiters = [SharedRateLimiter(database) for database in databases]
    assert count_allowed(limiters, RatePolicy(requests=5, seconds=3600.0), 40) == 5
    for database in databases:
        database.close()


def test_shared_rate_over_http(tmp_path: Path) -> None:
    """Two services on one database count a key together."""
    content = write_policy()
    content["installation"]["shared_rates"] = True
    content["callers"]["app"]["rate"] = {"requests": 3, "seconds": 3600}
    replicas = [Service(make_policy(tmp_path, content)) for _ in range(2)]
    headers = make_headers(replicas[0])
    clients = [TestClient(create_app(replica), headers=headers) for replica in replicas]
    codes = [clients[place % 2].post(SEARCH, json={"query": make_query(1)}).status_code for place in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    for replica in replicas:
        replica.close()
