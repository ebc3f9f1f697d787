"""What a process keeps in memory of things that never change, such as stored answers."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class SizedCache(Generic[T]):
    """The values that were used last, up to a number of bytes. Values never change, so none is ever out of date."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._values: OrderedDict[str, tuple[int, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> T | None:
        """Return a value; None if it is not here."""
        with self._lock:
            found = self._values.get(name)
            if found is None:
                return None
            self._values.move_to_end(name)
            return found[1]

    def put(self, name: str, value: T, size: int) -> None:
        """Keep a value of this size, and forget those that were not used for the longest time."""
        with self._lock:
            if name in self._values or size > self._most:
                return
            self._values[name] = (size, value)
            self._bytes += size
            while self._bytes > self._most:
                _, (removed, _) = self._values.popitem(last=False)
                self._bytes -= removed


class KnownBody(NamedTuple):
    """The body of a response that was sent before.

    Attributes:
        action: What a caller must be allowed to do to get it.
        content: The bytes. The same request gets them again.
        route: The route that answered, which logs name.
    """

    action: str
    content: bytes
    route: Any


def hash_request(path: str, body: bytes) -> str:
    """Compute what a response is kept under: a hash of the path and the body of its request."""
    place = path.encode("utf-8", "surrogateescape")
    return hashlib.sha256(b"%d\n%b\n%b" % (len(place), place, body)).hexdigest()
