"""The queue of works: an error that ends a thread at any line leaves the works of the others to the next thread."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from scoreshield import _queues
from scoreshield._queues import WorkQueue


class Work:
    """A work that counts how often it was begun."""

    def __init__(self) -> None:
        self.is_done, self.begun = False, 0


def do_all(group: list[Work]) -> None:
    for work in group:
        work.begun += 1
        work.is_done = True


def is_counted(frame: FrameType, event: str) -> bool:
    """Return whether an interrupt can come here. Python checks for none between the end of a block and its lock."""
    return event == "line" and "with self._lock" not in linecache.getline(_queues.__file__, frame.f_lineno)


def count_lines() -> int:
    """Count the lines that a thread runs in the queue with one other work before its own."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != _queues.__file__:
            return None
        lines += is_counted(frame, event)
        return trace

    queue: WorkQueue[Work] = WorkQueue(8)
    queue._waiting.append(Work())
    sys.settrace(trace)
    try:
        queue.wait_for(Work(), do_all)
    finally:
        sys.settrace(None)
    return lines


LINES = count_lines()


@pytest.mark.parametrize("line", range(1, LINES + 1))
def test_interrupt_at_any_line_leaves_no_thread_waiting(line: int) -> None:
    """An error at each line of the thread that does the works of others: the next thread finds all of them."""
    queue: WorkQueue[Work] = WorkQueue(8)
    other, seen = Work(), 0
    queue._waiting.append(other)  # of a thread that waits for the lock

    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != _queues.__file__:
            return None
        seen += is_counted(frame, event)
        if is_counted(frame, event) and seen == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            queue.wait_for(Work(), do_all)
    finally:
        sys.settrace(None)
    assert not queue._lock.locked()
    thread = threading.Thread(target=queue.wait_for, args=(Work(), do_all), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "the thread waits for a work that no thread does"
    assert other.is_done


def test_works_are_done_together_and_forgotten() -> None:
    """Works that wait form groups up to a number. None is done twice, and the queue keeps none."""
    queue: WorkQueue[Work] = WorkQueue(5)
    works, sizes = [Work() for _ in range(12)], []

    def do_group(group: list[Work]) -> None:
        sizes.append(len(group))
        do_all(group)

    with ThreadPoolExecutor(12) as pool, queue._lock:
        futures = [pool.submit(queue.wait_for, work, do_group) for work in works]
        while len(queue._waiting) < 12:
            time.sleep(0.001)
    for one in futures:
        one.result(10)
    assert sizes == [5, 5, 2]
    assert [work.begun for work in works] == [1] * 12
    assert not queue._waiting
