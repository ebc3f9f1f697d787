"""LanceDB: real tables on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from stores.store_checks import DIMENSION, N, StoreChecks, cosines, make_query, patch_to_raise, unit

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores import LanceStore, PinnedStore

lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def table_of(ids: Sequence[Any], vectors: Any, kind: Any = None) -> Any:
    width = len(vectors[0])
    array = pa.array(
        [None if v is None else np.asarray(v).tolist() for v in vectors], pa.list_(kind or pa.float32(), width)
    )
    return pa.table({"id": ids, "vector": array, "text": ["t"] * len(ids)})


class TestLance(StoreChecks):
    takes_zero: ClassVar[frozenset[str]] = frozenset()
    holds: ClassVar[frozenset[str]] = frozenset({"zero", "twice"})
    kind: ClassVar[Any] = pa.float32()

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        self.database = lancedb.connect(tmp_path / "lance")
        self.table: Any = None

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        records = table_of(ids, vectors, self.kind)
        if self.table is None:
            self.table = self.database.create_table("people", records)
        else:
            self.table.add(records)

    def change(self, one: Any, vector: Any) -> None:
        self.table.update(where=f"id = {one!r}", values={"vector": np.asarray(vector).tolist()})

    def remove(self, one: Any) -> None:
        self.table.delete(f"id = {one!r}")

    def empty(self) -> None:
        self.table.delete("true")

    def open(self) -> LanceStore:
        return LanceStore(self.table)

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG002
        error = {"dropped": ConnectionError, "late": TimeoutError}[kind]
        broken = property(lambda _: (_ for _ in ()).throw(error("text-of-the-store 0.123456789")))
        patch.setattr(type(self.table), "version", broken)
        with patch_to_raise(patch, type(self.table), "count_rows", "search", error=error):
            yield


class TestHalf(TestLance):
    """Text for ids, half precision."""

    ids: ClassVar[Sequence[Any]] = [f"p{i}" for i in np.random.default_rng(1).permutation(N)]
    new: ClassVar[Any] = "new"
    kind: ClassVar[Any] = pa.float16()
    tolerance: ClassVar[float] = 2e-3


@pytest.mark.parametrize("kind", ["IvfPq", "HnswSq"])
def test_no_index_answers(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).standard_normal((2000, DIMENSION))
    table = lancedb.connect(tmp_path).create_table("people", table_of(range(2000), rows))
    options = {"num_sub_vectors": 2} if kind == "IvfPq" else {}
    config = getattr(lancedb.index, kind)(distance_type="cosine", num_partitions=4, **options)
    table.create_index("vector", config=config)
    assert "ANN" in table.search(make_query()).distance_type("cosine").limit(9).explain_plan()
    store, plans = LanceStore(table), []
    usual = type(table.search(make_query())).to_arrow

    def to_arrow(builder: Any) -> Any:
        plans.append(builder.explain_plan())
        return usual(builder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(table.search(make_query())), "to_arrow", to_arrow)
        scored = store.scores(make_query())
    assert len(plans) == 1
    assert "KNNVectorDistance: metric=cosine" in plans[0]
    assert "ANN" not in plans[0]
    assert list(scored.ids) == list(range(2000))
    np.testing.assert_allclose(1 - scored.values, cosines(rows, make_query()), atol=2e-6)


def test_other_writers(tmp_path: Path) -> None:
    """What others write is read as the connection's interval says."""
    rows = unit(np.random.default_rng(0).standard_normal((5, DIMENSION)))
    writer = lancedb.connect(tmp_path).create_table("people", table_of(range(5), rows))
    late = PinnedStore(LanceStore(lancedb.connect(tmp_path).open_table("people")))
    soon = PinnedStore(
        LanceStore(lancedb.connect(tmp_path, read_consistency_interval=timedelta(0)).open_table("people"))
    )
    assert len(late.take_snapshot()) == len(soon.take_snapshot()) == 5
    writer.delete("id = 3")
    assert len(late.take_snapshot()) == 5  # as the documentation says
    assert soon.take_snapshot().ids == (0, 1, 2, 4)
    assert soon.version == 2


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_dropped_table(where: str, tmp_path: Path) -> None:
    """It begins at the same version."""
    place = tmp_path if where == "folder" else f"memory://{tmp_path.name}"
    database = lancedb.connect(place, read_consistency_interval=timedelta(0))
    rows = unit(np.random.default_rng(0).standard_normal((5, DIMENSION)))
    table = database.create_table("people", table_of(range(5), rows))
    pinned = PinnedStore(LanceStore(table))
    assert [pinned.take_snapshot().version, pinned.take_snapshot().version] == [1, 1]
    version = table.version
    database.drop_table("people")
    database.create_table("people", table_of(range(5), -rows))
    assert table.version == version
    np.testing.assert_allclose(pinned.take_snapshot().rows, -rows, atol=1e-6)
    assert pinned.version == 2
    assert not pinned.is_stale()
    pinned.store.mark_changed()  # type: ignore[attr-defined]
    assert pinned.is_stale()


@pytest.mark.parametrize("scale", [1e19, 1e25, 1e-25, 1e18])
def test_extreme_lengths(scale: float, tmp_path: Path) -> None:
    """LanceDB gives every one of the long ones the cosine 0."""
    rows = unit(np.random.default_rng(0).standard_normal((5, DIMENSION)))
    rows[3] *= 0.9 * scale
    table = lancedb.connect(tmp_path).create_table("people", table_of(range(5), rows))
    pinned = PinnedStore(LanceStore(table), pin="scores")
    if scale == 1e18:
        given, asked = pinned.take_snapshot().make_problem(unit(make_query()))
        np.testing.assert_allclose(given @ asked, cosines(rows, make_query()), atol=2e-6)
    else:
        with pytest.raises(StoreError, match="whose lengths LanceDB cannot square; use pin='copy'"):
            pinned.take_snapshot()


def test_missing_values(tmp_path: Path) -> None:
    """Missing vectors and ids raise an error."""
    database = lancedb.connect(tmp_path)
    rows = unit(np.random.default_rng(0).standard_normal((3, DIMENSION))).tolist()
    for name, odd in (("vectors", {"id": 3, "vector": None, "text": "t"}), ("ids", {"id": None, "vector": rows[2]})):
        table = database.create_table(name, table_of([1, 2], rows[:2]))
        table.add([odd])
        for pin in ("copy", "scores"):
            with pytest.raises(StoreError, match=r"has rows without|gave 2 scores for 3 records"):
                PinnedStore(LanceStore(table), pin=pin).take_snapshot()


def test_late_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that comes between counting and scoring raises an error."""
    rows = unit(np.random.default_rng(0).standard_normal((6, DIMENSION)))
    table = lancedb.connect(tmp_path).create_table("people", table_of(range(6), rows))
    store = LanceStore(table)
    monkeypatch.setattr(store, "_count", lambda: 5)
    for read in (store.records, lambda: store.scores(make_query())):
        with pytest.raises(StoreError, match=r"gave 6 .* for 5 records"):
            read()


def test_bad_arguments(tmp_path: Path) -> None:
    table = lancedb.connect(tmp_path).create_table("people", table_of([1], [[1.0, 0.0]]))
    for match, arguments in (
        ("has no column 'key'", (table, "key")),
        ("has no column 'face'", (table, "id", "face")),
        ("must hold lists of one fixed size", (table, "id", "text")),
        ("a table of lancedb, opened", (str(tmp_path),)),
    ):
        with pytest.raises(InvalidInput, match=match):
            LanceStore(*arguments)
