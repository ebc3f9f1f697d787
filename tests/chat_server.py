"""A real HTTP server that speaks /v1/chat/completions and misbehaves on request, for the tests of chat and RAG."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "the-secret-prompt"  # what a test may look for where it must not be
#: What to do with a request: a text (the answer), a status with headers, or one of the misdeeds below.
Step = str | tuple[int, dict[str, str]]
HANG, DROP, BROKEN, HTML, NO_CHOICES, NO_CONTENT, BLANK = (
    "<hang>",
    "<drop>",
    "<broken>",
    "<html>",
    "<none>",
    "<null>",
    "",
)


@dataclass
class Request:
    """What the server saw of one request."""

    body: dict[str, Any]
    raw: bytes
    headers: dict[str, str]
    path: str
    at: float

    @property
    def user(self) -> str:
        return str(self.body["messages"][-1]["content"])


@dataclass
class ChatServer:
    """Answers by ``reply(request)``; ``script`` steps come first, in order, whatever is asked."""

    reply: Callable[[Request], Step] = lambda _: "fine"
    script: list[Step] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closing: threading.Event = field(default_factory=threading.Event)

    def take(self, request: Request) -> Step:
        with self._lock:
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            step = self.script.pop(0) if self.script else None
        return self.reply(request) if step is None else step

    def leave(self) -> None:
        with self._lock:
            self._at_once -= 1


@contextmanager
def running(server: ChatServer) -> Iterator[ChatServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            step = server.take(Request(json.loads(raw), raw, self._lower(), self.path, time.monotonic()))
            try:
                self._do(step)
            finally:
                server.leave()

        def _lower(self) -> dict[str, str]:
            return {name.lower(): value for name, value in self.headers.items()}

        def _do(self, step: Step) -> None:
            if step == HANG:
                server._closing.wait(5)
                self.close_connection = True
            elif step == DROP:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif step == BROKEN:
                self._send(200, b'{"choices": [{"mess')
            elif step == HTML:
                self._send(200, b"<html>Welcome</html>", kind="text/html")
            elif step == NO_CHOICES:
                self._send(200, b'{"choices": []}')
            elif isinstance(step, tuple):
                # A server may repeat what it was sent; none of that may come out in an error.
                repeated = json.dumps({"error": {"message": f"{self.headers['Authorization']} {SECRET}"}}).encode()
                self._send(step[0], repeated, headers=step[1])
            else:
                message = {"role": "assistant", "content": None if step == NO_CONTENT else step}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                facts = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                self._send(200, json.dumps(facts).encode())

        def _send(
            self, status: int, body: bytes, *, kind: str = "application/json", headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server._closing.set()
        http.shutdown()
        thread.join()
        http.server_close()
