"""Targets of an audit: functions by name, files of outputs, and a real HTTP server that misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.audit import targets
from scoreshield.errors import FileError, InvalidInput

ROWS = np.eye(3, 4, dtype=np.float32)
QUERY = np.array([0.5, 0.5, 0.5, 0.5], dtype=np.float32)


# ---- Functions by name.

SERVICE = """
import numpy as np
def release(embeddings): return embeddings.sum()
def asked(embeddings, query): return embeddings @ query
def turned(embeddings, query): return embeddings @ query.T
def settled(embeddings, query=np.eye(1, 4, 1)[0]): return embeddings @ query
class Store:
    @staticmethod
    def scores(embeddings): return embeddings[:, 0]
constant = 3
async def waits(embeddings): return embeddings
async def streams(embeddings): yield embeddings
def hands_on(embeddings): return waits(embeddings)
class Asked:
    async def __call__(self, embeddings): return embeddings
asked_object = Asked()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    (tmp_path / "audited_service.py").write_text(SERVICE)
    (tmp_path / "audited_broken.py").write_text("1 / 0\n")
    (tmp_path / "audited_exit.py").write_text("raise SystemExit('bye')\n")
    (tmp_path / "audited_rude.py").write_text("raise ValueError('\\x1b[2Jgone\\x07')\n")
    (tmp_path / "audited_needy.py").write_text("import no_such_package_at_all\n")
    yield tmp_path
    for name in ("service", "broken", "exit", "needy", "rude"):
        sys.modules.pop(f"audited_{name}", None)


@pytest.mark.usefixtures("folder")
def test_load_function() -> None:
    """A function is loaded by name from the working folder."""
    assert targets.load_function("audited_service:release")(ROWS) == 3
    assert targets.load_function("audited_service:Store.scores")(ROWS).tolist() == [1, 0, 0]


@pytest.mark.usefixtures("folder")
def test_load_function_with_query() -> None:
    """A function with a parameter query gets the query."""
    release = targets.load_function("audited_service:asked", query=QUERY)
    assert release(ROWS).tolist() == [0.5, 0.5, 0.5]
    assert targets.load_function("audited_service:asked", dimensions=4)(ROWS).tolist() == [1, 0, 0]  # the first axis
    assert targets.load_function("audited_service:settled")(ROWS).tolist() == [0, 1, 0]  # it has one of its own
    assert targets.load_function("audited_service:settled", query=QUERY)(ROWS).tolist() == [0.5, 0.5, 0.5]
    batch = targets.load_function("audited_service:turned", query=np.stack([QUERY, -QUERY]))
    assert batch(ROWS).tolist() == [[0.5, -0.5]] * 3
    for bad in ([np.nan], [[[1.0]]], []):
        with pytest.raises(InvalidInput, match="The 'query' parameter of load_function must be a vector of finite"):
            targets.load_function("audited_service:asked", query=bad)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("audited_service", "must be of the form module:function. Got 'audited_service' instead."),
        ("audited_service:", "must be of the form module:function"),
        ("audited service:f", "must be of the form module:function"),
        ("a:b:c", "must be of the form module:function"),
        (7, "must be of the form module:function. Got 7 instead."),
        ("audited_service:nothing", "The module audited_service holds no function 'nothing'."),
        ("audited_service:Store.nothing", "holds no function 'Store.nothing'"),
        ("audited_service:constant", "must be a function from an (n, d) array to an output. Got a int."),
        ("audited_nowhere:f", "There is no module 'audited_nowhere'"),
        ("audited_broken:f", "The module audited_broken cannot be imported: ZeroDivisionError: division by zero"),
        ("audited_exit:f", "The module audited_exit cannot be imported: SystemExit: bye"),
        ("audited_rude:f", "The module audited_rude cannot be imported: ValueError: ?[2Jgone?"),
        ("audited_service:waits", "audited_service:waits is asynchronous (async def); wrap it in a plain function"),
        ("audited_service:streams", "audited_service:streams is asynchronous (async def)"),
        ("audited_service:asked_object", "audited_service:asked_object is asynchronous (async def)"),
        (
            "audited_needy:f",
            "The module audited_needy cannot be imported: ModuleNotFoundError: No module named 'no_such",
        ),
    ],
)
def test_load_function_errors(text: str, words: str) -> None:
    """A name without a function raises an error in one sentence."""
    with pytest.raises(InvalidInput, match=re.escape(words)) as caught:
        targets.load_function(text)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("folder")
def test_awaitable_output() -> None:
    """An output that must be awaited raises an error in one sentence, and no warning."""
    release = targets.reject_awaitables(targets.load_function("audited_service:hands_on"))
    with pytest.raises(targets.TargetError, match="The release under audit is asynchronous; wrap it in a function"):
        release(ROWS)
    gc.collect()  # where a coroutine that was never awaited would warn
    assert targets.reject_awaitables(targets.load_function("audited_service:release"))(ROWS) == 3


@pytest.mark.usefixtures("folder")
def test_wrapped_release_with_another_query() -> None:
    """A wrapped function can be asked another query, if it takes one."""
    release = targets.reject_awaitables(targets.load_function("audited_service:asked", query=QUERY))
    other = release.with_query(2 * QUERY)
    assert other(ROWS).tolist() == [1, 1, 1]
    assert other.with_query(4 * QUERY)(ROWS).tolist() == [2, 2, 2]
    assert release(ROWS).tolist() == [0.5, 0.5, 0.5]
    for without in ("release", "settled"):
        assert not hasattr(targets.reject_awaitables(targets.load_function(f"audited_service:{without}")), "with_query")


def test_digest_code(folder: Path) -> None:
    """The checksum of a function's code changes with its modules."""
    targets.load_function("audited_service:release")
    before = targets.digest_code("audited_service:release")
    assert targets.digest_code("audited_service:asked") == before  # one file
    (folder / "audited_other.py").write_text("x = 1\n")  # which nothing imports
    assert targets.digest_code("audited_service:release") == before
    (folder / "audited_service.py").write_text(SERVICE + "# changed\n")
    assert targets.digest_code("audited_service:release") != before


# ---- Files of outputs.


def test_two_files_of_outputs(tmp_path: Path) -> None:
    np.save(tmp_path / "with.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(tmp_path / "without.npy", np.ones((4, 2), dtype=np.int64))
    first, second = targets.read_saved_outputs(tmp_path / "with.npy", tmp_path / "without.npy")
    assert first.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert second.tolist() == [[1, 1]] * 4
    assert first.dtype == second.dtype == np.float64


def test_saved_outputs_one_file(tmp_path: Path) -> None:
    """One file may hold both sides, with outputs of any shape."""
    np.savez(tmp_path / "both.npz", **{"with": np.arange(5.0), "without": np.zeros(3)})
    first, second = targets.read_saved_outputs(tmp_path / "both.npz")
    assert first.tolist() == [[0], [1], [2], [3], [4]]
    assert second.shape == (3, 1)
    np.savez(tmp_path / "matrices.npz", **{"with": np.zeros((5, 2, 2)), "without": np.ones((5, 2, 2))})
    assert targets.read_saved_outputs(tmp_path / "matrices.npz")[0].shape == (5, 4)


def test_saved_outputs_shapes(tmp_path: Path) -> None:
    """Shapes are compared before they are flattened."""
    np.savez(tmp_path / "both.npz", **{"with": np.zeros((5, 2, 4)), "without": np.zeros((5, 4, 2))})
    with pytest.raises(InvalidInput, match=re.escape("Got (2, 4) with the record and (4, 2) without it.")):
        targets.read_saved_outputs(tmp_path / "both.npz")
    np.savez(tmp_path / "both.npz", **{"with": np.zeros(5), "without": np.zeros((5, 1))})
    assert targets.read_saved_outputs(tmp_path / "both.npz")[1].shape == (5, 1)


def test_saved_outputs_columns(tmp_path: Path) -> None:
    """Columns of .parquet files are matched by name."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def written(name: str, **columns: Any) -> Path:
        parquet.write_table(pa.table(columns), tmp_path / name)
        return tmp_path / name

    first = written("with.parquet", a=[1.0, 2.0], b=[3, 4], note=["x", "y"])
    second = written("without.parquet", b=[30, 40], a=[10.0, 20.0])
    both = targets.read_saved_outputs(first, second)
    assert [side.tolist() for side in both] == [[[1, 3], [2, 4]], [[10, 30], [20, 40]]]
    with pytest.raises(InvalidInput, match=r"must have the same columns, each once\. They differ in 'b'"):
        targets.read_saved_outputs(first, written("other.parquet", a=[1.0], c=[2.0]))
    lists = [written(f"{name}.parquet", **{name: [[1.0, 2.0]]}) for name in ("scores", "ranks")]
    assert targets.read_saved_outputs(lists[0], lists[0])[1].tolist() == [[1, 2]]
    with pytest.raises(InvalidInput, match="They differ in 'ranks'"):
        targets.read_saved_outputs(*lists)


def test_saved_outputs_errors(tmp_path: Path) -> None:
    """Files without outputs raise an error in one sentence."""
    good = tmp_path / "good.npy"
    np.save(good, np.ones((4, 2)))
    cases: dict[str, tuple[np.ndarray, str]] = {
        "nan": (np.array([[1.0, np.nan], [0, 0], [np.inf, 0]]), "Got NaN or infinities in 2 of 3 rows."),
        "text": (np.array(["a", "b"]), "must hold numbers, one row per release"),
        "empty": (np.empty((0, 2)), r"must hold numbers, one row per release. Got shape (0, 2)"),
        "single": (np.float64(3.0), "one row per release. Got shape ()"),
        "wide": (np.ones((4, 3)), "Got (3,) with the record and (2,) without it."),
    }
    for name, (array, words) in cases.items():
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(InvalidInput, match=re.escape(words)):
            targets.read_saved_outputs(tmp_path / f"{name}.npy", good)
    with pytest.raises(InvalidInput, match="a second file must hold those without it"):
        targets.read_saved_outputs(good)
    with pytest.raises(FileError, match="There is no file"):
        targets.read_saved_outputs(tmp_path / "none.npy", good)
    np.savez(tmp_path / "half.npz", **{"with": np.ones(3)})
    with pytest.raises(InvalidInput, match="holds no array 'without'"):
        targets.read_saved_outputs(tmp_path / "half.npz")


# ---- An endpoint.


class Service:
    """A server that answers as ``script`` says, step by step, and then with the scores of what it was sent."""

    def __init__(self, kind: type[HTTPServer] = ThreadingHTTPServer) -> None:
        self.script: list[Any] = []
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.connections = 0
        self.closing = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                service.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append((dict(self.headers), body))
                step = service.script.pop(0) if service.script else None
                if step == "hang":
                    service.closing.wait(10)
                elif step == "drop":
                    self.connection.shutdown(socket.SHUT_RDWR)
                elif step == "drip":
                    self._drip(pause=0.05)
                elif step == "stall":
                    self._drip(pause=0.8, most=1)
                elif step == "drip head":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                    self._drop_by_drop(b"X-A: 1\r\n", pause=0.05, most=90)
                elif isinstance(step, bytes):
                    self._answer(200, step)
                elif isinstance(step, tuple):
                    self._answer(step[0], step[2] if len(step) > 2 else b"{}", step[1])
                else:
                    scores = np.array(body["embeddings"]) @ np.array(body["query"])
                    self._answer(200, json.dumps({"scores": scores.tolist()}).encode())

            def _drip(self, pause: float, most: int = 100) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self._drop_by_drop(b" ", pause, most)

            def _drop_by_drop(self, drop: bytes, pause: float, most: int) -> None:
                for _ in range(most):
                    if service.closing.wait(pause):
                        return
                    try:
                        self.wfile.write(drop)
                        self.wfile.flush()
                    except OSError:
                        return
                service.closing.wait(10)

            def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = kind(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients that hang up are part of the test
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/scores"

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.close()
    thread.join()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(targets.time, "sleep", taken.append)
    return taken


def test_endpoint_request(service: Service) -> None:
    """An endpoint is sent the collection and the query, and nothing else."""
    endpoint = targets.Endpoint(service.url, QUERY)
    assert endpoint(ROWS).tolist() == [0.5, 0.5, 0.5]
    headers, body = service.requests[0]
    assert body == {"embeddings": ROWS.tolist(), "query": QUERY.tolist()}
    assert set(headers) == {"Host", "Accept-Encoding", "Content-Length", "Content-Type", "Accept"}
    endpoint.close()


def test_one_connection(service: Service) -> None:
    """One connection serves many releases."""
    endpoint = targets.Endpoint(service.url, QUERY)
    for _ in range(20):
        endpoint(ROWS)
    assert service.connections == 1
    assert endpoint.retried == 0
    endpoint.close()
    endpoint(ROWS)
    assert service.connections == 2
    endpoint.close()


def test_endpoint_fields(service: Service) -> None:
    """Fields may have other names; a key and no query can be sent."""
    service.script = [b'{"result": {"values": [[1, 2], [3, 4]]}}']
    endpoint = targets.Endpoint(
        service.url + "?k=3", embeddings_field="vectors", output_field="result.values", bearer="abc"
    )
    assert endpoint(ROWS).tolist() == [[1, 2], [3, 4]]
    headers, body = service.requests[0]
    assert body == {"vectors": ROWS.tolist()}
    assert headers["Authorization"] == "Bearer abc"
    endpoint.close()


def test_temporary_failure(service: Service, pauses: list[float]) -> None:
    """A temporary failure is tried again and counted."""
    service.script = [(503, {}), "drop", (429, {"Retry-After": "7"})]
    endpoint = targets.Endpoint(service.url, QUERY, retries=3)
    assert endpoint(ROWS).tolist() == [0.5, 0.5, 0.5]
    assert endpoint.retried == 3
    assert pauses == [0.25, 0.5, 7.0]
    assert [body for _, body in service.requests] == [service.requests[0][1]] * 4
    endpoint.close()


def test_retry_after(service: Service, pauses: list[float]) -> None:
    """A pause that a server asks for is at most a minute."""
    service.script = [(503, {"Retry-After": "86400"}), (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})]
    endpoint = targets.Endpoint(service.url, QUERY)
    endpoint(ROWS)
    endpoint.close()
    assert pauses == [60.0, 0.5]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ((401, {}), "rejects the request because it has no key (status 401)."),
        ((404, {}), "has no such path (status 404)."),
        ((302, {"Location": "http://127.0.0.1:9/"}), "redirects requests (status 302), which an audit does not"),
        ((418, {}), "answered with status 418."),
        (b"<html>", "answered with something that is not JSON."),
        (b"[" * 100_000, "answered with something that is not JSON."),
        (b'{"values": [1]}', "answered without the field 'scores'; name its field of outputs."),
        (b"[1, 2]", "answered without the field 'scores'"),
        ((422, {}), "does not accept the fields that were sent (status 422)."),
        ((400, {}), "answered with status 400."),
    ],
)
def test_permanent_failure(service: Service, step: Any, words: str) -> None:
    """A permanent failure raises an error at once, in one sentence."""
    service.script = [step]
    endpoint = targets.Endpoint(service.url, QUERY)
    with pytest.raises(targets.TargetError, match=re.escape(words)) as caught:
        endpoint(ROWS)
    assert str(caught.value).startswith(f"The endpoint at {service.url} ")
    assert "\n" not in str(caught.value)
    assert len(service.requests) == 1
    endpoint.close()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[0.25, -3]", [0.25, -3.0]),
        ("[[1, 2], [3, 4]]", [[1.0, 2.0], [3.0, 4.0]]),
        ("[true, false]", [1.0, 0.0]),
        ("3", 3.0),
        ("[1, NaN]", [1.0, np.nan]),
        ("1e999", np.inf),
    ],
)
def test_answer_of_numbers(service: Service, text: str, numbers: Any) -> None:
    """An answer of numbers becomes an array, also where some are not finite."""
    service.script = [f'{{"scores": {text}}}'.encode()]
    with contextlib.closing(targets.Endpoint(service.url, QUERY)) as endpoint:
        found = endpoint(ROWS)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    assert found.shape == np.shape(numbers)
    assert np.array_equal(found, numbers, equal_nan=True)


@pytest.mark.parametrize(
    "text",
    [
        '"high"', "null", "[]", "[[], []]", "[1, null]", '[1, "2"]', '["1", "2"]', "[[1], [2, 3]]", "[1, [2]]", "{}",
        '{"a": 0.5}', '[{"id": "a", "score": 0.5}, {"id": "b", "score": null}]', f"[1{'0' * 400}, 0.5]",
        "[" * 40 + "1" + "]" * 40,
    ],
)  # fmt: skip
def test_answer_of_other_values(service: Service, text: str) -> None:
    """An answer of anything else is its JSON value: texts and null are no numbers."""
    service.script = [f'{{"scores": {text}}}'.encode()]
    with contextlib.closing(targets.Endpoint(service.url, QUERY)) as endpoint:
        found = endpoint(ROWS)
    assert not isinstance(found, np.ndarray)
    assert found == json.loads(text)


@pytest.mark.parametrize("status", [400, 402, 406, 409, 410, 418, 422, 451, 499])
def test_status_as_output(service: Service, status: int) -> None:
    """A service that rejects a collection, after it answered for another, raises an error that an audit counts."""
    service.script = [None, (status, {}), None, (status, {})]
    with contextlib.closing(targets.Endpoint(service.url, QUERY)) as endpoint:
        for _ in range(2):
            assert endpoint(ROWS).tolist() == [0.5, 0.5, 0.5]
            with pytest.raises(targets.StatusError, match=f"^status {status}$") as caught:
                endpoint(ROWS)
            assert caught.value.status == status
            assert not isinstance(caught.value, InvalidInput)
        assert endpoint.retried == 0
    assert service.connections == 1  # the connection stays open


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 413, 425, 429, 301, 500, 501, 503])
def test_status_that_ends_an_audit(service: Service, status: int) -> None:
    """Other statuses say nothing about the collection, and end an audit also after an answer."""
    service.script = [None] + [(status, {})] * 2
    with contextlib.closing(targets.Endpoint(service.url, QUERY, retries=1)) as endpoint:
        endpoint(ROWS)
        with pytest.raises(targets.TargetError, match=f"status {status}"):
            endpoint(ROWS)


def test_rejection_before_any_answer(service: Service) -> None:
    """Before the first answer a rejection is a mistake in the request, unless an earlier run had an answer."""
    service.script = [(422, {}), (422, {})]
    with contextlib.closing(targets.Endpoint(service.url, QUERY)) as endpoint:
        with pytest.raises(targets.TargetError, match="does not accept the fields"):
            endpoint(ROWS)
        endpoint.has_answered = True
        with pytest.raises(targets.StatusError, match="status 422"):
            endpoint(ROWS)


def test_endpoint_batch(service: Service) -> None:
    """A batch of queries is sent as a list of lists."""
    service.script = [b'{"scores": [1]}']
    with contextlib.closing(targets.Endpoint(service.url, [[1, 0, 0, 0], [0, 1, 0, 0]])) as endpoint:
        endpoint(ROWS)
    assert service.requests[0][1]["query"] == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_endpoint_with_another_query(service: Service) -> None:
    """An endpoint with another query sends it over the same connection; requests repeated by both count together."""
    with contextlib.closing(targets.Endpoint(service.url, QUERY, bearer="key", retries=2)) as endpoint:
        endpoint(ROWS)
        other = endpoint.with_query([0.0, 2.0, 0.0, 0.0])
        assert other(ROWS).tolist() == [0, 2, 0]
        assert endpoint(ROWS).tolist() == [0.5, 0.5, 0.5]  # its own query is as before
        assert service.connections == 1
        headers, body = service.requests[1]
        assert headers["Authorization"] == "Bearer key"
        assert body == {"embeddings": ROWS.tolist(), "query": [0, 2, 0, 0]}
        service.script = [(503, {}), (503, {}), None, "drop"]
        other(ROWS)
        endpoint(ROWS)
        third = other.with_query([1, 0, 0, 0])
        service.script = [(503, {})]
        third(ROWS)
        assert (endpoint.retried, other.retried, third.retried) == (4, 3, 1)
        service.script = [(422, {})]
        with pytest.raises(targets.StatusError):  # the service has answered before
            other.with_query(QUERY)(ROWS)
        for bad in ([], [np.nan], "text"):
            with pytest.raises(InvalidInput, match=r"The 'query' parameter of Endpoint\.with_query must be a vector"):
                endpoint.with_query(bad)


def test_closed_together(service: Service) -> None:
    """The end of an endpoint is that of all endpoints that were made from it."""
    endpoint = targets.Endpoint(service.url, QUERY)
    others = [endpoint.with_query(QUERY)]
    others.append(others[0].with_query(QUERY))
    for one in (endpoint, *others):
        one(ROWS)
    endpoint.close()
    assert [one._connection._pool.connections for one in (endpoint, *others)] == [[], [], []]
    assert others[1](ROWS).tolist() == [0.5, 0.5, 0.5]  # a later call opens another connection
    assert service.connections == 2
    endpoint.close()


def test_server_of_one_connection() -> None:
    """A server that serves one connection at a time answers to two queries in turns."""
    with contextlib.closing(Service(HTTPServer)) as service:
        threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        endpoint = targets.Endpoint(service.url, QUERY, timeout=5.0, retries=0)
        other = endpoint.with_query(2 * QUERY)
        for _ in range(3):
            assert endpoint(ROWS).tolist() == [0.5, 0.5, 0.5]
            assert other(ROWS).tolist() == [1.0, 1.0, 1.0]
        endpoint.close()


@pytest.mark.parametrize(("step", "timeout"), [("hang", 0.3), ("drip", 0.3), ("stall", 1.0), ("drip head", 0.3)])
def test_deadline(service: Service, step: str, timeout: float) -> None:
    """A server that is silent, sends byte by byte or stalls ends at the deadline."""
    service.script = [step]
    endpoint = targets.Endpoint(service.url, QUERY, timeout=timeout, retries=0)
    start = time.monotonic()
    with pytest.raises(targets.TargetError, match=re.escape(f"did not answer within {timeout:g} seconds (1 try).")):
        endpoint(ROWS)
    assert timeout <= time.monotonic() - start < timeout + 0.6


def test_nobody_there(service: Service) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = targets.Endpoint(f"http://127.0.0.1:{free.getsockname()[1]}/", QUERY, retries=1)
        with pytest.raises(
            targets.TargetError, match=re.escape("cannot be reached, or broke the connection off (2 tri")
        ):
            endpoint(ROWS)
    with pytest.raises(targets.TargetError, match="cannot be reached"):
        targets.Endpoint("https" + service.url[4:], QUERY, retries=0)(ROWS)  # no TLS there


def test_answer_too_large(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is too large raises an error."""
    monkeypatch.setattr(targets, "_LARGEST", 2**20)
    service.script = [b'{"scores": [' + b"1," * 2**20 + b"1]}"]
    endpoint = targets.Endpoint(service.url, QUERY)
    with pytest.raises(targets.TargetError, match="sent more than 1 MiB for one release"):
        endpoint(ROWS)
    endpoint.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "ftp://host/"}, "must be an address that begins with http://"),
        ({"url": "http://"}, "must be an address"),
        ({"url": "http://user:secret@host/"}, "without a user's name"),
        ({"url": "http://host:99999/"}, "must be an address"),
        ({"url": "http://host/ path"}, "must be an address"),
        ({"url": 3}, "must be an address"),
        ({"query": [[[1.0]]]}, "The 'query' parameter of Endpoint must be a vector of finite numbers, or a batch of"),
        ({"query": [1.0, np.nan]}, "must be a vector of finite numbers, or a batch of such, one per row."),
        ({"timeout": 0}, "The 'timeout' parameter of Endpoint must be a positive finite number. Got 0 instead."),
        ({"timeout": 1e300}, "The 'timeout' parameter of Endpoint must be at most 86,400 seconds."),
        ({"retries": -1}, "The 'retries' parameter of Endpoint must be a whole number, at least 0"),
        ({"output_field": ""}, "The 'output_field' parameter of Endpoint must be the name of a JSON field."),
        ({"query_field": "embeddings"}, "must be another name than embeddings_field"),
        ({"bearer": "a b"}, "must be printable ASCII without spaces"),
        ({"bearer": "abc"}, "A key to host would be sent over plain http, where others can read it: use https."),
    ],
)
def test_endpoint_settings(settings: dict[str, Any], words: str) -> None:
    """Settings that make no sense raise an error without secrets."""
    with pytest.raises(InvalidInput, match=re.escape(words)) as caught:
        targets.Endpoint(**{"url": "http://host/", **settings})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("rows", [np.ones(3), np.full((2, 2), np.nan), np.empty((0, 2)), [["a"]], [[1], [1, 2]]])
def test_collections_that_cannot_be_sent(rows: Any) -> None:
    """A collection that cannot be sent raises an error."""
    with pytest.raises(InvalidInput, match="The 'embeddings' parameter of Endpoint must be"):
        targets.Endpoint("http://127.0.0.1:9/", retries=0)(rows)


def test_no_proxies(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections and keys go to the address that was named, and to nobody that the environment names."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with contextlib.closing(targets.Endpoint(service.url, QUERY, bearer="key")) as endpoint:
            assert endpoint(ROWS).size
        with pytest.raises(targets.TargetError):
            targets.Endpoint("http://host.invalid/", retries=0)(ROWS)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came
            proxy.accept()


def test_no_cookie_and_no_log(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """A cookie is not sent back, and no log holds the key of an address or of a header."""
    caplog.set_level(logging.DEBUG)
    service.script = [(503, {"Set-Cookie": "a=1"})]
    with contextlib.closing(targets.Endpoint(service.url + "?key=s3cr3t", QUERY, bearer="t0ken")) as endpoint:
        endpoint(ROWS)
        endpoint(ROWS)
    assert len(service.requests) == 3
    assert not any("Cookie" in headers for headers, _ in service.requests)
    assert "s3cr3t" not in caplog.text
    assert "t0ken" not in caplog.text


def test_compressed_answer(service: Service) -> None:
    """A compressed answer is not unpacked: its size would be counted too late."""
    packed = gzip.compress(json.dumps({"scores": [1.0]}).encode())
    service.script = [(200, {"Content-Encoding": "gzip"}, packed)]
    with (
        contextlib.closing(targets.Endpoint(service.url, QUERY)) as endpoint,
        pytest.raises(targets.TargetError, match="something that is not JSON"),
    ):
        endpoint(ROWS)


def test_inside_a_loop(service: Service) -> None:
    """An endpoint can be called where an event loop runs already, as in a notebook."""

    async def call() -> list[float]:
        with contextlib.closing(targets.Endpoint(service.url, QUERY)) as endpoint:
            return endpoint(ROWS).tolist()

    assert asyncio.run(call()) == [0.5, 0.5, 0.5]


def test_without_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without httpx the error names the extra."""
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "scoreshield.audit.connection", raising=False)
    monkeypatch.delattr("scoreshield.audit.connection", raising=False)
    with pytest.raises(InvalidInput, match=re.escape("pip install 'scoreshield[audit]'")):
        targets.Endpoint("http://host/")


@pytest.mark.parametrize("given", [{}, {"timeout": -1.0}, {"retries": -1}])
def test_key_of_a_failed_constructor(given: dict[str, Any]) -> None:
    """An endpoint that cannot be made leaves its key in no frame of the library."""
    with pytest.raises(InvalidInput) as caught:
        targets.Endpoint("http://host.example/scores", QUERY, bearer="s3cr3t", **given)
    step, frames = caught.value.__traceback__, []
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    inside = [frame for frame in frames if "scoreshield" in Path(frame.f_code.co_filename).parts[-4:]]
    assert len(inside) > 1
    assert "s3cr3t" not in str([frame.f_locals for frame in inside])
