"""One collection that answers many single queries: rows measured once, and one pass over them for queries that wait.

A product of one query with all rows reads every row from memory, and memory is what it waits for. So queries of several
threads share a pass: a block of rows stays in the cache of a core while all of them are multiplied with it. Each query
is multiplied with each block by the same call of the same shape, whether it is alone or not. So its scores do not
depend on the other queries, not even in their last bits.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield.geometry.embeddings import SAFE_SQUARES, Rows, compute_odd_scores

Float = NDArray[np.float64]
#: A block of rows stays in the second-level cache of a core.
_BLOCK_BYTES = 3 << 17
#: The most queries of one pass, so that the first of them does not wait for long.
_MOST = 8


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


class MeasuredRows:
    """The rows of a collection, whose lengths are measured once.

    Args:
        rows: The records, float32 or float64. They must not change.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = np.ascontiguousarray(rows)
        low, high = SAFE_SQUARES[rows.dtype.itemsize]
        with np.errstate(all="ignore"):
            squares = np.vecdot(self.rows, self.rows)
            self._lengths = np.sqrt(squares)
        # Zero, huge and tiny rows need more care.
        self._odd = np.flatnonzero(~((squares > low) & (squares < high)))  # also where a square is NaN
        self._lengths[self._odd] = 1
        self._waiting: deque[_WaitingQuery] = deque()
        self._lock = threading.Lock()

    def score(self, query: Float) -> Float:
        """Compute the clean cosines of one query with every row, (n,), before clamping.

        Queries of other threads that wait meanwhile are computed in the next pass together. The order of summation
        depends on the shape of the rows and on the place of the row, neither on the other rows nor on other queries.
        It may differ from that of `compute_scores` in the last digits, which `bound_rounding_error` covers.

        Args:
            query: A public unit row.
        """
        waiting = _WaitingQuery(query)
        self._waiting.append(waiting)
        with self._lock:
            while not waiting.is_done:
                self._run_pass([self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))])
        products, place = waiting.found or (self._multiply(query[None]), 0)
        return self._divide(products, place, query)

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
        with np.errstate(all="ignore"):
            # The outer loop is over blocks and the inner one over queries, so the cache keeps a block for all of them.
            whole = np.matmul(rows[: blocks * size].reshape(blocks, 1, size, dimension), columns)
            rest = np.matmul(rows[None, blocks * size :], columns)
        return _Products(whole[..., 0], rest[..., 0])

    def _divide(self, products: _Products, place: int, query: Float) -> Float:
        """Divide the products of one query by the lengths of the rows."""
        blocks, _, size = products.blocks.shape
        scores = np.empty(len(self.rows), dtype=self.rows.dtype)
        scores[: blocks * size].reshape(blocks, size)[...] = products.blocks[:, place]
        scores[blocks * size :] = products.rest[place]
        with np.errstate(all="ignore"):
            scores /= self._lengths
        found = scores.astype(np.float64)
        if len(self._odd):
            found[self._odd] = compute_odd_scores(self.rows[self._odd], self._odd, query[None], "unit")[0]
        return found
