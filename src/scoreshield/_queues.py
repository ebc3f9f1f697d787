"""A queue of works of several threads, of which one thread at a time does several together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class QueuedWork(Protocol):
    """One work of a thread that waits for it."""

    is_done: bool


W = TypeVar("W", bound=QueuedWork)


class WorkQueue(Generic[W]):
    """Works of threads that wait. The thread that gets the lock does the first ones, its own or not, as one group.

    A work stays in the queue until it is done. So an error that ends a thread at any line, such as an interrupt, leaves
    the works of the others to the next thread.

    Args:
        most: The most works of one group, so that the first of them does not wait for long.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[W] = deque()
        self._lock = threading.Lock()

    def wait_for(self, work: W, do_group: Callable[[list[W]], None]) -> None:
        """Wait until a work is done, by this thread or by another one.

        Args:
            work: The work.
            do_group: Does the works of a group, and marks each as done. It may get a work again that an earlier call
                has begun.
        """
        self._waiting.append(work)
        try:
            with self._lock:
                while not work.is_done:
                    do_group(self._find_group())
                    self._forget_done()
        finally:
            work.is_done = True  # nothing waits for it any more

    def _find_group(self) -> list[W]:
        """Find the first works that are not done."""
        self._forget_done()
        # Other threads add works at the end meanwhile, so that the queue cannot be iterated over.
        first = [self._waiting[place] for place in range(min(len(self._waiting), self._most))]
        return [work for work in first if not work.is_done]

    def _forget_done(self) -> None:
        """Remove the works at the front that are done, with what they hold."""
        while self._waiting and self._waiting[0].is_done:
            self._waiting.popleft()
