"""Run the service: Uvicorn with the application, on one address, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from scoreshield.errors import InvalidInput, InvalidRow, ScoreShieldError
from scoreshield.service.application import create_app
from scoreshield.service.audit_mode import AuditService, create_audit_app
from scoreshield.service.core import Service
from scoreshield.service.logs import start_logs
from scoreshield.service.policy import Policy

LOG = logging.getLogger("scoreshield.service")
_GRACE_SECONDS = 30
_RELOADING = threading.Lock()
#: Bytes of a head that the application does not count: the version, and the ends and colons of its lines.
_LINE_ENDS = 4096


def run_server(
    service: Service | AuditService,
    announce: Callable[[str], None],
    read_policy: Callable[[], Policy] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Requests that have begun are answered first. SIGHUP reloads.

    Args:
        service: What is served.
        announce: Called with the address when the port is open.
        read_policy: Reads the policy again, for a reload; by default the policy stays as it is.
    """
    here = service.policy.installation
    start_logs()
    tls = here.tls
    config = uvicorn.Config(
        create_audit_app(service) if isinstance(service, AuditService) else create_app(service),
        host=here.address,
        port=here.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=here.behind_proxy,  # without a proxy, anyone on this computer could choose an address
        ws="none",
        http=limit_connections(here.largest_head, here.request_seconds),
        h11_max_incomplete_event_size=here.largest_head + _LINE_ENDS,
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
    )
    listener = _open_port(here.address, here.port)
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    def reload(*_: object) -> None:
        if isinstance(service, AuditService):
            return  # it reads no records
        # In a thread of its own, because reading takes long and requests are answered meanwhile.
        threading.Thread(target=reload_service, args=(service, read_policy, config), daemon=True).start()

    earlier = signal.signal(signal.SIGTERM, stop)  # Uvicorn raises the signal once more at its end
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, reload)
    try:
        host = f"[{here.address}]" if ":" in here.address else here.address
        announce(f"{'http' if tls is None else 'https'}://{host}:{listener.getsockname()[1]}")
        server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, earlier)
        listener.close()


def reload_service(service: Service, read_policy: Callable[[], Policy] | None, config: uvicorn.Config) -> None:
    """Read the policy, the records and the TLS files again. If that fails, one line of log says so.

    Nothing changes then.

    Args:
        service: What is served.
        read_policy: Reads the policy; None for the one in force.
        config: What the server runs with.
    """
    try:
        with _RELOADING:  # the last request to reload reads last
            policy = service.policy if read_policy is None else read_policy()
            tls = policy.installation.tls
            if tls is not None:
                ssl.create_default_context().load_cert_chain(tls.certificate, tls.key)  # they may be damaged
            service.reload(policy)
            if tls is not None and config.ssl is not None:
                config.ssl.load_cert_chain(tls.certificate, tls.key)
    except Exception as error:
        # The sentences of this package are made for the operator. Other texts may hold anything.
        is_safe = isinstance(error, ScoreShieldError) and not isinstance(error, InvalidRow)
        reason = str(error) if is_safe else type(error).__name__
        LOG.error("reload failed", extra={"facts": {"reason": reason}})
        return
    versions = {name: served.version for name, served in service.collections.items()}
    LOG.info("reloaded", extra={"facts": {"versions": versions}})


def limit_connections(largest: int, seconds: float) -> type[asyncio.Protocol]:
    """Make a protocol of Uvicorn that ends connections with too large or too slow heads, and those that take nothing.

    The application sees a request when its head is whole, so it cannot limit the head itself. It waits for a client
    that does not read its answer, so it cannot end that wait either: such clients would hold all requests at a time.

    Args:
        largest: The most bytes that may arrive before a head is whole.
        seconds: How long a client may take to send a head, and for how long it may take nothing of an answer.
    """
    protocol: Any = AutoHTTPProtocol

    class LimitedProtocol(protocol):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None
        _reading: asyncio.TimerHandle | None = None
        _unread = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def data_received(self, data: bytes) -> None:
            self._unread += len(data)
            super().data_received(data)
            is_whole = self.cycle is not None and not self.cycle.response_complete
            if is_whole:
                self._stop_timer()
            elif self._unread > largest + _LINE_ENDS:
                self.transport.close()
            elif self._timer is None:
                self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._stop_reading()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            """Note that the client has not taken what was written, and look again later."""
            super().pause_writing()
            self._start_reading()

        def resume_writing(self) -> None:
            self._stop_reading()
            super().resume_writing()

        def timeout_keep_alive_handler(self) -> None:
            """Close an idle connection; the rest of its last answer may still wait for the client."""
            super().timeout_keep_alive_handler()
            self._start_reading()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._start_reading()

        def _start_reading(self) -> None:
            """Measure what the client has not taken. Nothing more is written while this timer runs."""
            self._stop_reading()
            left = self.transport.get_write_buffer_size()
            self._reading = asyncio.get_running_loop().call_later(seconds, self._check_reading, left)

        def _check_reading(self, before: int) -> None:
            """End the connection if nothing was taken of what was left before."""
            if self.transport.get_write_buffer_size() >= before:
                self.transport.abort()  # closing would wait for the client
            else:
                self._start_reading()

        def _stop_reading(self) -> None:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None

        def _start_timer(self) -> None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._end)

        def _stop_timer(self) -> None:
            self._unread = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _end(self) -> None:
            self.transport.abort()

    return LimitedProtocol


def _open_port(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # With the protocol named, asyncio sends small parts at once. Otherwise each answer waits for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise InvalidInput(
            f"The service cannot listen on {address} port {port}: {error.strerror}; another port is chosen by --port, "
            "or by installation.port of a policy."
        ) from None
    listener.listen(2048)
    return listener
