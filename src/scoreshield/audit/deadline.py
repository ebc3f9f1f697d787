"""An HTTP answer with one deadline for all of it.

The time-out of a socket starts anew with every byte, so that a server which sends one now and then could hold an audit
for ever, by the head of its answer as well as by the body.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any


class Reply(http.client.HTTPResponse):
    """An answer that must be complete by ``end``."""

    def __init__(self, sock: socket.socket, *settings: Any, end: float, **further: Any) -> None:
        super().__init__(sock, *settings, **further)
        self.fp.close()
        self.fp = io.BufferedReader(_Timed(sock, end))


class _Timed(io.RawIOBase):
    """What comes in on a socket, until a moment by `time.monotonic`."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end
        self._stream = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(left(self._end))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


def left(end: float) -> float:
    """Seconds until a moment by `time.monotonic`; TimeoutError when it has passed."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
