"""A connection to an audited service, with one deadline for each request.

The time-outs of httpx start again with every byte, so that a server which sends one now and then could hold an audit
forever. The connection here passes the time that is left to the socket before each read and write. It uses httpcore,
the transport of httpx, without a client: a client logs the whole address, which may hold a key, and sends cookies back.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import httpcore
import httpx
from httpx import InvalidURL as InvalidURL


class HttpAnswer(NamedTuple):
    """The status and the body of an answer (None if it is too large), and the pause that the server asks for."""

    status: int
    body: bytes | None
    pause: float


class Deadline:
    """The time when the current request must have ended."""

    def __init__(self) -> None:
        self._end = 0.0

    def start(self, timeout: float) -> None:
        self._end = time.monotonic() + timeout

    def compute_rest(self) -> float:
        """Return the seconds that are left, or raise TimeoutError."""
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        return rest


class Connection:
    """One connection to a server, opened by the first request and kept for the next.

    Args:
        url: The address.
        largest: The most bytes of an answer.
    """

    def __init__(self, url: str, largest: int) -> None:
        self._largest = largest
        parts = httpx.URL(url)
        self._url = httpcore.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=parts.raw_path)
        self._deadline = Deadline()
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=1,
            network_backend=_DeadlineBackend(self._deadline),
        )

    def post(self, headers: dict[str, str], body: bytes, timeout: float) -> HttpAnswer:
        """Send a request and read the answer.

        Raises:
            TimeoutError: The whole answer is not there in time.
            ConnectionError: The server cannot be reached, breaks the connection off, or does not speak HTTP.
        """
        self._deadline.start(timeout)
        try:
            with self._pool.stream("POST", self._url, headers=list(headers.items()), content=body) as response:
                return HttpAnswer(
                    response.status, self._read_body(response.iter_stream()), _read_pause(response.headers)
                )
        except (TimeoutError, httpcore.TimeoutException):
            failure: OSError = TimeoutError()
        except (OSError, httpcore.NetworkError, httpcore.ProtocolError):
            failure = ConnectionError()
        raise failure  # outside the handlers, so that no context keeps the headers

    def close(self) -> None:
        """Close the connection. A later request opens another one."""
        self._pool.close()

    def _read_body(self, parts: Iterable[bytes]) -> bytes | None:
        body = bytearray()
        for part in parts:
            body += part
            if len(body) > self._largest:
                return None
        return bytes(body)


class _DeadlineBackend(httpcore.SyncBackend):
    """Opens sockets whose reads and writes end at a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.NetworkStream:
        return _DeadlineStream(super().connect_tcp(host, port, timeout=self._deadline.compute_rest()), self._deadline)


class _DeadlineStream(httpcore.NetworkStream):
    """A stream whose reads and writes end at a deadline. The time-outs that httpcore passes are not used."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline
        self._socket = stream.get_extra_info("socket")

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        self._socket.settimeout(self._deadline.compute_rest())
        part: bytes = self._socket.recv(max_bytes)
        return part

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        rest = memoryview(buffer)
        while rest:
            self._socket.settimeout(self._deadline.compute_rest())
            rest = rest[self._socket.send(rest) :]

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        rest = self._deadline.compute_rest()
        return _DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, rest), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _read_pause(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Read Retry-After in seconds. Its other form, a date, counts as 0."""
    value = next((value for name, value in headers if name.lower() == b"retry-after"), b"")
    return float(value) if value.isdigit() else 0.0
