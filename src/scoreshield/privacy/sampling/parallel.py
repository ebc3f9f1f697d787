"""Draw in blocks, on several threads, with results that do not depend on the number of threads.

A block is a fixed number of draws, or of rows, that depends on public sizes alone. From a `SecureStream`, each block
reads a key stream of its own (`SecureStream.open_blocks`). So it does not matter which thread draws a block, or when.
Research streams are read in one thread and in order, so that a seed repeats what it drew in earlier versions.

The calling thread draws too. Only it calls ``report``, takes interrupts and raises errors. No thread outlives the call,
so that a process can fork between two drawings. A fork during a drawing gets an error in the child.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from scoreshield.privacy.sampling.stream import BlockStream, SecureStream, Stream
from scoreshield.privacy.sampling.threads import count_threads

T = TypeVar("T")

#: How many numbers a block holds. It is part of what a key draws: public, and the same on every machine.
BLOCK = 1 << 18
#: Seconds between two looks for a fork, an interrupt or progress while other threads draw.
_WAIT = 0.1


def has_blocks(stream: Stream) -> bool:
    """Return whether `draw_blocks` gives each block its own stream. If not, blocks are read in order from this one."""
    return isinstance(stream, SecureStream) and not isinstance(stream, BlockStream)


def draw_blocks(
    stream: Stream,
    blocks: Iterable[T],
    count: int,
    draw: Callable[[T, Stream], None],
    report: Callable[[int], None] | None = None,
) -> None:
    """Call ``draw(block, its stream)`` for each block.

    Args:
        stream: The stream of the release.
        blocks: What ``draw`` needs for each block. They are taken one after the other, in order, never by two threads
            at once.
        count: How many blocks there are. One block is drawn from ``stream`` itself.
        draw: Draws one block. It runs in several threads, and must write to the place of its block only.
        report: Called in this thread with the number of blocks that are done.

    Raises:
        InvalidInput: This is a fork of the process that started the release.
    """
    if count > 1 and isinstance(stream, SecureStream) and has_blocks(stream):
        _Drawing(stream, blocks, count, draw, report).run(min(count_threads(), count))
        return
    for done, block in enumerate(blocks, 1):
        draw(block, stream)
        if report is not None:
            report(done)


class _Drawing(Generic[T]):
    """The state that the threads of one drawing share."""

    def __init__(
        self,
        stream: SecureStream,
        blocks: Iterable[T],
        count: int,
        draw: Callable[[T, Stream], None],
        report: Callable[[int], None] | None,
    ) -> None:
        self._stream, self._draw, self._report = stream, draw, report
        self._blocks: Iterator[tuple[int, T]] = enumerate(blocks)
        self._open_block = stream.open_blocks(count)
        self._lock = threading.Lock()  # of the iterator of blocks
        self._done: list[int] = []
        self._reported = 0
        self._errors: list[BaseException] = []
        self._is_stopped = False

    def run(self, size: int) -> None:
        """Draw all blocks with this number of threads, of which this is one."""
        threads = [threading.Thread(target=self._help, daemon=True) for _ in range(size - 1)]
        try:
            for thread in threads:
                try:
                    thread.start()
                except RuntimeError:  # the system has no more threads: draw with those that there are
                    break
            while self._draw_next():
                self._tell()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_WAIT)
                    self._stream.check_process()
                    self._tell()
        finally:
            self._is_stopped = True
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self._errors:
            raise self._errors[0]
        self._stream.check_process()
        self._tell()

    def _help(self) -> None:
        try:
            while self._draw_next():
                pass
        except BaseException as error:  # it is raised again in the thread that waits for this one
            self._errors.append(error)
            self._is_stopped = True

    def _draw_next(self) -> bool:
        """Draw the next block; return False if there is none, or if another thread failed."""
        # In a fork, another thread may have held the lock, and is not there to release it.
        while not self._lock.acquire(timeout=_WAIT):
            self._stream.check_process()
            if self._is_stopped:
                return False
        try:
            if self._is_stopped:
                return False
            found = next(self._blocks, None)
        finally:
            self._lock.release()
        if found is None:
            return False
        place, block = found
        self._draw(block, self._open_block(place))
        self._done.append(place)
        return True

    def _tell(self) -> None:
        """Report how many blocks are done, if there are more than at the last time."""
        done = len(self._done)
        if self._report is not None and done > self._reported:
            self._reported = done
            self._report(done)
