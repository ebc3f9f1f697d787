"""A lock for objects that call their user's code: stores, progress callbacks, functions that name identities."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator

from scoreshield.errors import InvalidInput


class ThreadLock:
    """A lock that raises an error where the thread that holds it asks for it again.

    A plain lock would wait forever there. In a forked process the lock is free, even if another thread of the parent
    process held it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held = False
        _locks.add(self)

    @contextlib.contextmanager
    def hold(self, action: str) -> Iterator[None]:
        """Hold the lock.

        Args:
            action: The name of what runs under the lock, for the error message, such as "refresh()".

        Raises:
            InvalidInput: This thread holds the lock already.
        """
        with self._lock:  # an RLock lets its own thread in again, so that the error can be raised
            if self._is_held:
                raise InvalidInput(
                    f"{action} was called from a callback or signal handler while the same search or store was at work "
                    "in this thread; call it when that work is done."
                )
            try:
                self._is_held = True
                yield
            finally:
                self._is_held = False

    def free_from_other_threads(self) -> None:
        """Free the lock, unless this thread holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._is_held = threading.RLock(), False


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _free_after_fork() -> None:
    """Free the locks of other threads in a forked process, because those threads do not exist there."""
    for lock in list(_locks):
        lock.free_from_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_after_fork)
