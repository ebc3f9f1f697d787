"""Rows that are measured once, and passes that the queries of several threads share."""

from __future__ import annotations

import threading
import time
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
        while len(measured._waiting) < 11:
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
