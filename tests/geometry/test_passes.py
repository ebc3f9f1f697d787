"""Rows that are measured once, and passes that the queries of several threads share."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from scoreshield.geometry import embeddings, passes
from scoreshield.geometry.passes import MeasuredRows


def make_queries(count: int, dimension: int, seed: int = 0) -> Any:
    return embeddings.normalise_rows(np.random.default_rng(seed).standard_normal((count, dimension)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_agree_with_the_other_computation(dtype: Any) -> None:
    """Within the stated error, odd rows included."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((500, 48)).astype(dtype) * rng.uniform(0.01, 100, (500, 1)).astype(dtype)
    rows[7] = 0
    rows[8] *= dtype(1e-25)
    rows[9] *= dtype(1e20)
    query = make_queries(1, 48)
    measured = MeasuredRows(rows)
    found = measured.score(query[0])
    exact = embeddings.compute_scores(rows.astype(np.float64), query, "unit")[0]
    assert np.abs(found - exact).max() <= embeddings.bound_rounding_error(48, dtype)
    assert found[7] == query[0, 0]  # a zero row is taken as the first basis vector
    if dtype == np.float32:
        assert measured._odd.tolist() == [7, 8, 9]


def test_a_score_depends_on_its_own_row_alone() -> None:
    """Another record, zero, huge or ordinary, moves no other score, not even in its last bit."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((300, 33)).astype(np.float32)
    query = make_queries(1, 33)[0]
    before = MeasuredRows(rows).score(query)
    for place in (0, 150, 299):
        for row in (np.zeros(33), np.full(33, 1e30), rng.standard_normal(33), np.full(33, 1e-30)):
            other = rows.copy()
            other[place] = row
            after = MeasuredRows(other).score(query)
            assert np.flatnonzero(before != after).tolist() in ([place], [])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("count", "dimension"), [(1, 3), (255, 384), (256, 384), (5000, 100), (2100, 768)])
def test_a_score_does_not_depend_on_other_queries(dtype: Any, count: int, dimension: int) -> None:
    """An answer that is computed again after a crash, alone or beside others, has the same clean scores, bit by bit."""
    rows = np.random.default_rng(5).standard_normal((count, dimension)).astype(dtype)
    rows[count // 2] = 0
    measured, queries = MeasuredRows(rows), make_queries(8, dimension)
    alone = [measured.score(query) for query in queries]
    for size in (2, 3, 8):
        products = measured._multiply(queries[:size])
        for place, query in enumerate(queries[:size]):
            assert np.array_equal(measured._divide(products, place, query), alone[place])


def test_threads_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that wait are computed together, up to a number, and each thread gets its own scores."""
    rows = np.random.default_rng(6).standard_normal((1000, 24)).astype(np.float32)
    measured, queries = MeasuredRows(rows), make_queries(12, 24)
    wanted = [MeasuredRows(rows).score(query) for query in queries]
    sizes: list[int] = []
    multiply = measured._multiply
    has_begun, may_end = threading.Event(), threading.Event()

    def run(group: Any) -> Any:
        sizes.append(len(group))
        has_begun.set()
        assert may_end.wait(30)
        return multiply(group)

    monkeypatch.setattr(measured, "_multiply", run)
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(measured.score, queries[0])
        assert has_begun.wait(30)
        later = [pool.submit(measured.score, query) for query in queries[1:]]
        while len(measured._queue._waiting) < 12:  # with the one that is computed
            time.sleep(0.001)
        may_end.set()
        found = [one.result(30) for one in (first, *later)]
    assert sizes == [1, passes._MOST, 11 - passes._MOST]
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_each_thread_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that fails is repeated by each thread alone; one bad query does not fail the others."""
    measured, queries = MeasuredRows(np.eye(4)), make_queries(3, 4)
    multiply = measured._multiply

    def run(group: Any) -> Any:
        if any(np.array_equal(one, queries[1]) for one in group):
            raise MemoryError
        return multiply(group)

    monkeypatch.setattr(measured, "_multiply", run)
    group = [passes._WaitingQuery(query) for query in queries]
    measured._run_pass(group)
    assert all(one.is_done and one.found is None for one in group)
    assert np.array_equal(measured.score(queries[0]), MeasuredRows(np.eye(4)).score(queries[0]))
    with pytest.raises(MemoryError):
        measured.score(queries[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("count", "dimension"), [(1, 3), (9_000, 768), (70_001, 96), (33_333, 1000)])
def test_the_number_of_threads_changes_no_score(dtype: Any, count: int, dimension: int) -> None:
    """Whoever takes which blocks: that depends on how fast each thread is."""
    rows = np.random.default_rng(7).standard_normal((count, dimension), dtype=dtype)
    queries = make_queries(12, dimension)
    one = MeasuredRows(rows)
    wanted = [one.score(query) for query in queries]
    for threads in (2, 3, 8):
        several, has_ended = MeasuredRows(rows, threads=threads), threading.Event()

        def help_always(measured: MeasuredRows = several, end: threading.Event = has_ended) -> None:
            while not end.is_set():
                measured.help()
                time.sleep(0.0001)

        with ThreadPoolExecutor(12) as pool:
            helpers = [pool.submit(help_always) for _ in range(4)]
            try:
                found = list(pool.map(several.score, queries))
            finally:
                has_ended.set()
            assert [helper.result(30) for helper in helpers] == [None] * 4
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("blocks", [0, 1, passes._FEWEST_BLOCKS, 390, 100_000])
def test_turns_cover_each_block_once(blocks: int, threads: int) -> None:
    turns = passes._Turns(blocks, threads)
    taken = list(iter(turns.take, None))
    assert [place for part in taken for place in range(part.start, part.stop)] == list(range(blocks))
    assert turns.take() is None
    if threads == 1:
        assert len(taken) == (blocks > 0)
    else:  # no thread is left with most of a pass
        assert all(part.stop - part.start <= max(passes._FEWEST_BLOCKS, blocks // (2 * threads)) for part in taken)


@pytest.fixture
def rows() -> Any:
    return np.random.default_rng(8).standard_normal((40_000, 384), dtype=np.float32)


@pytest.fixture
def held_turns(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the thread that computes a pass wait after its first turn: events that it has begun, and that it may end."""
    has_begun, may_go_on = threading.Event(), threading.Event()

    class HeldTurns(passes._Turns):
        def take(self) -> slice | None:
            if has_begun.is_set() and threading.current_thread().name.startswith("pass"):
                assert may_go_on.wait(30)
            found = super().take()
            has_begun.set()
            return found

    monkeypatch.setattr(passes, "_Turns", HeldTurns)
    return has_begun, may_go_on


def test_a_thread_that_waits_helps(rows: Any, held_turns: tuple[threading.Event, threading.Event]) -> None:
    """It multiplies blocks of the pass in work, alone: the other thread takes one turn."""
    has_begun, may_go_on = held_turns
    query = make_queries(1, 384)[0]
    measured = MeasuredRows(rows, threads=2)
    with ThreadPoolExecutor(1, "pass") as pool:
        found = pool.submit(measured.score, query)
        assert has_begun.wait(30)
        current = measured._pass
        assert current is not None
        measured.help()
        assert current._turns._next == current._blocks  # nothing is left for the other thread
        may_go_on.set()
        assert np.array_equal(found.result(30), MeasuredRows(rows).score(query))
    measured.help()  # without a pass


@pytest.mark.parametrize("threads", [1, 2])
def test_no_more_threads_help_than_may(
    rows: Any, held_turns: tuple[threading.Event, threading.Event], threads: int
) -> None:
    has_begun, may_go_on = held_turns
    measured, query = MeasuredRows(rows, threads=threads), make_queries(1, 384)[0]
    seats = [measured._seats.acquire(blocking=False) for _ in range(2)]  # of other helpers
    assert seats == [threads == 2, False]
    with ThreadPoolExecutor(1, "pass") as pool:
        found = pool.submit(measured.score, query)
        assert has_begun.wait(30)
        current = measured._pass
        assert current is not None
        taken = current._turns._next
        measured.help()
        assert current._turns._next == taken
        may_go_on.set()
        assert np.array_equal(found.result(30), MeasuredRows(rows).score(query))


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_blocks_that_a_helper_fails_to_multiply(
    rows: Any,
    held_turns: tuple[threading.Event, threading.Event],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the pass multiplies them: no score is what the memory held before."""
    has_begun, may_go_on = held_turns
    measured, query = MeasuredRows(rows, threads=2), make_queries(1, 384)[0]
    wanted = MeasuredRows(rows).score(query)
    has_begun.clear()
    matmul, main = np.matmul, threading.current_thread()

    def fail(*given: Any, **named: Any) -> Any:
        if threading.current_thread() is main:
            raise error
        return matmul(*given, **named)

    monkeypatch.setattr(np, "matmul", fail)
    with ThreadPoolExecutor(1, "pass") as pool:
        found = pool.submit(measured.score, query)
        assert has_begun.wait(30)
        if error is MemoryError:
            measured.help()
        else:
            with pytest.raises(KeyboardInterrupt):
                measured.help()
        may_go_on.set()
        assert np.array_equal(found.result(30), wanted)
    assert measured._seats.acquire(blocking=False)


def test_nothing_keeps_products(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products of a pass are clean values: nothing holds them when the scores are returned."""
    measured = MeasuredRows(rows, threads=2)
    found: list[weakref.ref[Any]] = []
    multiply = measured._multiply

    def run(queries: Any) -> Any:
        products = multiply(queries)
        found.append(weakref.ref(products.blocks.base))
        return products

    monkeypatch.setattr(measured, "_multiply", run)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(measured.score, make_queries(30, 384)))
    assert measured._pass is None
    assert found
    assert all(one() is None for one in found)
