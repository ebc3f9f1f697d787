"""One collection that answers many single queries: rows measured once, and one pass over them for queries that wait.

A product of one query with all rows reads every row from memory, and memory is what it waits for. So queries of several
threads share a pass: a block of rows stays in the cache of a core while all of them are multiplied with it. Each query
is multiplied with each block by the same call of the same shape, whether it is alone or not. So its scores do not
depend on the other queries, not even in their last bits.

One core cannot read memory as fast as all of them. So a thread that waits for scores may help with their pass. It is no
additional thread: where threads are more than cores, one that holds Python's lock waits for a core, and all others for
it. The calls stay the same, so the number of threads changes no score either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield._queues import WorkQueue
from scoreshield.geometry.embeddings import SAFE_SQUARES, Rows, compute_odd_scores

Float = NDArray[np.float64]
#: A block of rows stays in the second-level cache of a core.
_BLOCK_BYTES = 3 << 17
#: The most queries of one pass, so that the first of them does not wait for long.
_MOST = 8
#: The fewest blocks that a thread takes at a time, where several compute a pass. They take less than a millisecond.
_FEWEST_BLOCKS = 32


class _Products(NamedTuple):
    """The products of several queries with all rows: of whole blocks (blocks, queries, rows), and of the rows after."""

    blocks: Rows
    rest: Rows


class _WaitingQuery:
    """A query, and its place in the products of a pass when they are computed; none if the pass failed."""

    def __init__(self, query: Float) -> None:
        self.query = query
        self.is_done = False
        self.found: tuple[_Products, int] | None = None


class _Turns:
    """Which blocks of a pass a thread takes next.

    One thread takes all of them. Several take fewer each time, so that all end at nearly the same time.
    """

    def __init__(self, blocks: int, threads: int) -> None:
        self._blocks, self._threads = blocks, threads
        self._next, self._lock = 0, threading.Lock()

    def take(self) -> slice | None:
        """Take the next blocks; None if no block is left."""
        with self._lock:
            begin, left = self._next, self._blocks - self._next
            share = left if self._threads == 1 else max(_FEWEST_BLOCKS, left // (2 * self._threads))
            self._next += min(left, share)
            return slice(begin, self._next) if left else None


class _Pass:
    """A pass that a thread computes, and that others may help with."""

    def __init__(self, blocks: int, threads: int, multiply: Callable[[slice], None]) -> None:
        self._blocks, self._multiply = blocks, multiply
        self._turns = _Turns(blocks, threads)
        self._done, self._helpers, self._change = 0, 0, threading.Condition()

    def compute(self) -> None:
        """Multiply the blocks that helpers leave, and wait for those that they have taken."""
        self._take_turns()
        with self._change:
            self._change.wait_for(lambda: self._helpers == 0)
        if self._done < self._blocks:  # a helper failed, so it is unknown which blocks are missing
            self._multiply(slice(0, self._blocks))

    def help(self) -> None:
        """Multiply blocks until none is left. After an error the thread that computes the pass does it alone."""
        with self._change:
            self._helpers += 1
        try:
            with contextlib.suppress(Exception):
                self._take_turns()
        finally:
            with self._change:
                self._helpers -= 1
                self._change.notify_all()

    def _take_turns(self) -> None:
        while (part := self._turns.take()) is not None:
            self._multiply(part)
            with self._change:
                self._done += part.stop - part.start


class MeasuredRows:
    """The rows of a collection, whose lengths are measured once.

    Args:
        rows: The records, float32 or float64. They must not change.
        threads: How many threads compute one pass, at least 1. The number changes no score.
    """

    def __init__(self, rows: Rows, *, threads: int = 1) -> None:
        self.rows = np.ascontiguousarray(rows)
        low, high = SAFE_SQUARES[rows.dtype.itemsize]
        with np.errstate(all="ignore"):
            squares = np.vecdot(self.rows, self.rows)
            self._lengths = np.sqrt(squares)
        # Zero, huge and tiny rows need more care.
        self._odd = np.flatnonzero(~((squares > low) & (squares < high)))  # also where a square is NaN
        self._lengths[self._odd] = 1
        self._queue: WorkQueue[_WaitingQuery] = WorkQueue(_MOST)
        self._threads = threads
        self._pass: _Pass | None = None
        self._seats = threading.Semaphore(threads - 1)  # of helpers

    def score(self, query: Float) -> Float:
        """Compute the clean cosines of one query with every row, (n,), before clamping.

        Queries of other threads that wait meanwhile are computed in the next pass together. The order of summation
        depends on the shape of the rows and on the place of the row, neither on the other rows nor on other queries.
        It may differ from that of `compute_scores` in the last digits, which `bound_rounding_error` covers.

        Args:
            query: A public unit row.
        """
        waiting = _WaitingQuery(query)
        self._queue.wait_for(waiting, self._run_pass)
        products, place = waiting.found or (self._multiply(query[None]), 0)
        waiting.found = None
        return self._divide(products, place, query)

    def help(self) -> None:
        """Take blocks of the pass that another thread computes now, if there is one that needs help."""
        if self._pass is not None and self._seats.acquire(blocking=False):
            try:
                if (current := self._pass) is not None:  # otherwise it has ended
                    current.help()
            finally:
                self._seats.release()

    def _run_pass(self, group: list[_WaitingQuery]) -> None:
        """Multiply the queries of a group. If that fails, each thread does it alone, and raises its own error."""
        try:
            products = self._multiply(np.array([one.query for one in group]))
            for place, one in enumerate(group):
                one.found = (products, place)
        except Exception:  # each thread finds out by itself
            for one in group:
                one.found = None
        finally:
            for one in group:
                one.is_done = True

    def _multiply(self, queries: Float) -> _Products:
        """Multiply queries with all rows, in one pass."""
        rows, (count, dimension) = self.rows, self.rows.shape
        size = max(1, _BLOCK_BYTES // (dimension * rows.itemsize))
        blocks = count // size
        columns = queries.astype(rows.dtype)[:, :, None]
        stacked = rows[: blocks * size].reshape(blocks, 1, size, dimension)
        whole = np.empty((blocks, len(queries), size, 1), dtype=rows.dtype)

        def multiply(part: slice) -> None:
            with np.errstate(all="ignore"):  # it counts for one thread
                # The outer loop is over blocks and the inner one over queries, so the cache keeps a block for all.
                np.matmul(stacked[part], columns, out=whole[part])

        current = self._pass = _Pass(blocks, self._threads, multiply)
        try:
            with np.errstate(all="ignore"):
                rest = np.matmul(rows[None, blocks * size :], columns)
            current.compute()
        finally:
            self._pass = None
        return _Products(whole[..., 0], rest[..., 0])

    def _divide(self, products: _Products, place: int, query: Float) -> Float:
        """Divide the products of one query by the lengths of the rows."""
        blocks, _, size = products.blocks.shape
        found, end = np.empty(len(self.rows)), blocks * size
        whole, lengths = (values[:end].reshape(blocks, size) for values in (found, self._lengths))
        with np.errstate(all="ignore"):  # quotients in the precision of the rows, which are then converted
            np.divide(products.blocks[:, place], lengths, out=whole)
            np.divide(products.rest[place], self._lengths[end:], out=found[end:])
        if len(self._odd):
            found[self._odd] = compute_odd_scores(self.rows[self._odd], self._odd, query[None], "unit")[0]
        return found
