"""A batch of queries in parts: the same promise, the same symbols for every block size, the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import distributed
from scoreshield.distributed.manifest import TILE_ROWS

ROWS, DIMENSION = 2 * TILE_ROWS + 700, 6
QUERIES = np.random.default_rng(1).standard_normal((12, DIMENSION))
QUERIES[7] = QUERIES[2]  # equal queries share their records


@pytest.fixture(scope="module")
def records() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((ROWS, DIMENSION)).astype(np.float32)


@pytest.fixture(scope="module")
def source(records: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collection") / "rows.npy"
    np.save(path, records)
    return path


@pytest.fixture(scope="module", params=[None, 3], ids=["chosen", "three names"])
def released(request, source: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("released")
    return [
        distributed.release_batch(
            source,
            QUERIES,
            to=folder / str(tiles),
            epsilon=6.0,
            k=10,
            names=request.param,
            seed=1,
            block_rows=tiles * TILE_ROWS,
        )
        for tiles in (1, 2)
    ], request.param


def test_blocks_change_nothing_and_the_promise_is_that_of_one_machine(released, records):
    (first, second), names = released
    one, two = first.to_batch(), second.to_batch()
    assert np.array_equal(one.names, two.names)
    assert np.array_equal(one.levels, two.levels)
    assert one.is_intact()
    alone = ss.release_batch(records, QUERIES, epsilon=6.0, k=10, names=names, rng=1)
    assert alone.names.dtype == one.names.dtype
    for fact in ("epsilon", "delta", "mechanism", "scale", "noise", "shape", "sensitivity", "profile"):
        assert getattr(first.guarantee, fact) == getattr(alone.guarantee, fact), fact
    details = {k: v for k, v in first.guarantee.details.items() if k not in ("release", "snapshot")}
    assert details == alone.guarantee.details


def test_search_answers_as_the_batch_in_memory(released):
    (first, _), _ = released
    whole = first.to_batch()
    for query, k, only_named in (
        (3, 25, False),
        (3, 25, True),
        ([2, 7, 11], 40, False),
        (0, ROWS, True),
        ([], 5, False),
    ):
        asked = np.array(query, dtype=int)
        here, there = (one.search(asked, k, only_named=only_named) for one in (first, whole))
        assert np.array_equal(here.indices, there.indices)
        assert np.array_equal(here.scores, there.scores)
    assert np.array_equal(first.search(3, 10).indices, first.search(3, 25).indices[:10])
    assert first.worth(10).sentence == whole.worth(10).sentence
    with pytest.raises(ss.InvalidInput, match="number of a query"):
        first.search(12, 5)


def test_symbols_are_true_as_often_as_stated(source, records, tmp_path):
    cuts = [-0.2, 0.3, 0.6]
    release = distributed.release_batch(
        source, QUERIES[:6], to=tmp_path / "out", epsilon=4.0, k=10, names=1, levels=cuts, seed=5
    )
    unit = records / np.linalg.norm(records.astype(float), axis=1)[:, None]
    scores = unit @ (QUERIES[:6] / np.linalg.norm(QUERIES[:6], axis=1)[:, None]).T
    best = scores.argmax(axis=1)
    levels = np.searchsorted(cuts, scores.max(axis=1), side="right") - 1
    best[levels < 0] = -1
    found = release.to_batch()
    share = np.mean((found.names[:, 0] == best) & (found.levels[:, 0] == levels))
    symbols = 6 * 3 + 1  # a query with a level, or none

    def expect(epsilon: float) -> float:
        return float(np.exp(epsilon) / (np.exp(epsilon) + symbols - 1))

    error = np.sqrt(expect(4.0) * (1 - expect(4.0)) / ROWS)
    assert abs(share - expect(4.0)) < 5 * error  # exceeded less than once in a million
    assert abs(share - expect(3.9)) > 5 * error


def test_one_charge(tmp_path):
    """The same batch again has the same names, and is charged once."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((200, DIMENSION)))
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=50.0, delta=1e-6)
    made = [
        distributed.release_batch(
            tmp_path / "rows.npy", QUERIES, to=tmp_path / "out", epsilon=12.0, k=5, ledger=ledger.account("x")
        ).to_batch()
        for _ in range(2)
    ]
    assert np.array_equal(made[0].names, made[1].names)
    assert len(ledger.entries()) == 1
    assert ledger.account("x").spent == pytest.approx(12.0)
