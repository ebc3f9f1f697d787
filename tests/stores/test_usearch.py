"""usearch: its metrics and precisions, in memory and viewed from a file; what is refused."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

# FAISS first, where it is there: loaded after usearch 2.26, faiss-cpu 1.15 crashes in index_factory.
with contextlib.suppress(ImportError):
    import faiss  # noqa: F401

usearch = pytest.importorskip("usearch.index")

from stores.store_checks import DIMENSION, StoreChecks, cosines, make_query, patch_to_raise, unit  # noqa: E402

from scoreshield.errors import InvalidInput, StoreError  # noqa: E402
from scoreshield.privacy.ledger import Ledger  # noqa: E402
from scoreshield.search import PrivateSearch  # noqa: E402
from scoreshield.stores import Convention, PinnedStore, UsearchStore  # noqa: E402

D = 16
RNG = np.random.default_rng(22)
ROWS = (RNG.standard_normal((200, D)) * RNG.uniform(0.5, 4, (200, 1))).astype(np.float32)
KEYS = 3 * RNG.permutation(200)
QUERY = make_query(D)
#: How far cosines by each precision may be from the true ones.
PRECISION = {"f64": 1e-6, "f32": 1e-6, "f16": 1e-3, "bf16": 6e-3, "i8": 2e-2}
KINDS = [(metric, dtype) for metric in ("cos", "ip", "l2sq") for dtype in PRECISION if (metric, dtype) != ("ip", "i8")]
KINDS.remove(("l2sq", "i8"))


def measure_peak(work: Callable[[], Any]) -> int:
    """The most memory that Python and NumPy hold at once while it runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def build(metric: str = "cos", dtype: str = "f32", **options: Any) -> Any:
    index = usearch.Index(ndim=D, metric=metric, dtype=dtype, **options)
    index.add(KEYS, ROWS, threads=1)
    return index


class UsearchChecks(StoreChecks):
    takes_zero: ClassVar[frozenset[str]] = frozenset()
    holds = frozenset({"nan", "zero"})
    sees_updates = True
    metric: ClassVar[str] = "cos"

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        if not hasattr(self, "index"):
            self.index = usearch.Index(ndim=DIMENSION, metric=self.metric, dtype="f32")
        self.index.add(np.array(ids), np.array(vectors, dtype=np.float32), threads=1)

    def change(self, one: Any, vector: Any) -> None:
        self.remove(one)
        self.put([one], [vector])

    def remove(self, one: Any) -> None:
        self.index.remove(one)

    def open(self) -> Any:
        return UsearchStore(self.index)

    @contextlib.contextmanager
    def break_readings(self, kind: str, store: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
        error = {"dropped": RuntimeError, "late": MemoryError}[kind]
        with (
            patch_to_raise(patch, store._index, "search", "get", error=error),
            patch_to_raise(patch, store, "_list_keys", error=error),
        ):
            yield


class TestCosine(UsearchChecks):
    pass


class TestInnerProduct(UsearchChecks):
    metric = "ip"


class TestSquaredL2(UsearchChecks):
    metric = "l2sq"


class TestEveryIndex:
    @pytest.mark.parametrize(("metric", "dtype"), KINDS)
    def test_contents(self, metric: str, dtype: str) -> None:
        """Keys, vectors and scores are those of the index."""
        store, atol = UsearchStore(build(metric, dtype)), PRECISION[dtype]
        order = np.argsort(KEYS)
        truth = cosines(ROWS, QUERY)[order]
        records, scored = store.records(), store.scores(QUERY)
        assert records.ids == scored.ids == KEYS[order].tolist()
        assert store.convention is (Convention.SQUARED_L2 if metric == "l2sq" else Convention.COSINE_DISTANCE)
        np.testing.assert_allclose(unit(records.vectors) @ QUERY, truth, atol=atol)
        np.testing.assert_allclose(store.convention.to_cosine(scored.values), truth, atol=atol)
        assert records.vectors.dtype == (np.float64 if dtype == "f64" else np.float32)
        assert PinnedStore(store).take_snapshot().ids == tuple(KEYS[order])

    def test_independent_codes(self) -> None:
        """Eight bits are by the vector: with other vectors beside it, a vector comes out the same."""
        found = []
        for factor in (1, 50):
            index = usearch.Index(ndim=D, metric="cos", dtype="i8")
            index.add(np.arange(200), np.vstack([ROWS[:1] * factor, ROWS[1:]]), threads=1)
            found.append(UsearchStore(index).records().vectors[1:])
        np.testing.assert_array_equal(*found)

    @pytest.mark.parametrize("view", [True, False])
    def test_from_a_file(self, tmp_path: Path, view: bool) -> None:
        build("ip").save(tmp_path / "index.usearch")
        index = usearch.Index.restore(tmp_path / "index.usearch", view=view)
        snapshot = PinnedStore(UsearchStore(index)).take_snapshot()
        rows, asked = snapshot.make_problem(QUERY.astype(np.float64))
        np.testing.assert_allclose(rows @ asked, cosines(ROWS, QUERY)[np.argsort(KEYS)], atol=1e-6)

    def test_all_records(self) -> None:
        """All records are scored where an approximate search finds fewer."""
        rng = np.random.default_rng(0)
        index = usearch.Index(ndim=D, metric="cos", dtype="f32", connectivity=2, expansion_add=1, expansion_search=1)
        rows = np.repeat(10 * rng.standard_normal((60, D)), 50, axis=0) + 0.01 * rng.standard_normal((3_000, D))
        index.add(np.arange(3_000), rows.astype(np.float32), threads=1)
        assert len(index.search(QUERY, 3_000)) < 2_000  # a graph in pieces
        scored = UsearchStore(index).scores(QUERY)
        assert scored.ids == list(range(3_000))
        np.testing.assert_allclose(1 - scored.values, cosines(rows, QUERY), atol=1e-6)

    def test_lengths_follow_the_records(self) -> None:
        """By ip and l2sq lengths are kept between scorings, as long as nothing changes."""
        for metric in ("ip", "l2sq"):
            index = build(metric)
            store = UsearchStore(index)
            store.scores(QUERY)
            index.remove(int(KEYS[0]))
            index.add(int(KEYS[0]), 7 * ROWS[1])
            index.add(10_000, 9 * ROWS[2])
            scored = store.scores(QUERY)
            found = dict(zip(scored.ids, store.convention.to_cosine(scored.values), strict=True))
            assert found[int(KEYS[0])] == pytest.approx(found[int(KEYS[1])], abs=1e-5)
            assert found[10_000] == pytest.approx(found[int(KEYS[2])], abs=1e-5)

    def test_late_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Were only the count asked for, the worst of the records would be left out: a choice by true scores."""
        index = build()
        search = index.search

        def late(query: Any, count: int, **options: Any) -> Any:
            index.add(10_000, QUERY)
            return search(query, count, **options)

        monkeypatch.setattr(index, "search", late)
        with pytest.raises(StoreError, match="gave 201 scores for 200 records; nothing was released"):
            UsearchStore(index).scores(QUERY)

    @pytest.mark.parametrize("metric", ["cos", "ip", "l2sq"])
    def test_memory(self, metric: str) -> None:
        """Scores need a page of memory, and records one copy."""
        n, d = 20_000, 64
        index = usearch.Index(ndim=d, metric=metric, dtype="f32", connectivity=2, expansion_add=1)
        index.add(np.arange(n), np.random.default_rng(3).standard_normal((n, d)).astype(np.float32), threads=1)
        store, query = UsearchStore(index), make_query(d)
        assert measure_peak(lambda: store.scores(query)) < 1.5 * 4 * n * d  # a page, its lists, and some numbers
        assert measure_peak(lambda: store.scores(query)) < 0.7 * 4 * n * d  # lengths are known
        assert measure_peak(store.records) < 2 * 4 * n * d

    @pytest.mark.parametrize("pin", ["copy", "scores"])
    @pytest.mark.parametrize(("metric", "length"), [("ip", 1e-9), ("l2sq", 1e-9), ("l2sq", 1e7)])
    def test_rounded_lengths(self, metric: str, length: float, pin: str) -> None:
        """1 - <x, q> of a vector of 1e-9 is 1 in float32, which would be read as the cosine 0."""
        index = build(metric)
        index.add(10_000, length * unit(ROWS[0]).astype(np.float32))
        with pytest.raises(
            StoreError, match=r"whose lengths are not all from .*; nothing was released: make it by cos"
        ):
            PinnedStore(UsearchStore(index), pin=pin).take_snapshot()

    @pytest.mark.parametrize(("metric", "length"), [("ip", 0.021), ("ip", 1e9), ("l2sq", 0.51), ("l2sq", 1.9e4)])
    @pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
    def test_sound_lengths(self, metric: str, dtype: str, length: float) -> None:
        """Lengths at which rounding keeps the cosine are scored."""
        index = usearch.Index(ndim=D, metric=metric, dtype=dtype)
        length = min(length, 1e4) if dtype == "f16" else length  # which ends at 65,504
        index.add(np.arange(200), (length * unit(ROWS)).astype(np.float32), threads=1)
        store = UsearchStore(index)
        found = store.convention.to_cosine(store.scores(QUERY).values)
        np.testing.assert_allclose(found, cosines(ROWS, QUERY), atol=0.012)

    @pytest.mark.parametrize(("dtype", "taken"), [("f64", True), ("f32", True), ("f16", False), ("bf16", False)])
    def test_l2_16_bits(self, dtype: str, taken: bool) -> None:
        """Short vectors by L2 in 16 bits raise an error."""
        index = usearch.Index(ndim=D, metric="l2sq", dtype=dtype)
        index.add(np.arange(200), (0.1 * unit(ROWS)).astype(np.float32), threads=1)
        with contextlib.nullcontext() if taken else pytest.raises(StoreError, match=r"not all from 0\.5 to 20000"):
            found = 1 - UsearchStore(index).scores(QUERY).values / 2
            np.testing.assert_allclose(found, cosines(ROWS, QUERY), atol=1e-5)

    @pytest.mark.parametrize("length", [1e-25, 1e25])
    def test_cosine_lengths(self, length: float) -> None:
        """By cosine any length is scored."""
        index = usearch.Index(ndim=D, metric="cos", dtype="f32")
        index.add(np.arange(200), (length * unit(ROWS)).astype(np.float32), threads=1)
        np.testing.assert_allclose(1 - UsearchStore(index).scores(QUERY).values, cosines(ROWS, QUERY), atol=1e-6)


class TestState:
    @pytest.mark.parametrize("n", [1, 2, 7, 64])
    def test_replaced_vector(self, n: int) -> None:
        """A vector that is replaced under its own key is detected."""
        index = usearch.Index(ndim=D, metric="cos", dtype="f32")
        index.add(np.arange(n), ROWS[:n], threads=1)
        store = UsearchStore(index)
        for key in range(n):
            token = store.state()
            index.remove(key)
            index.add(key, -ROWS[key])
            assert store.state() != token

    def test_what_it_sees(self) -> None:
        index = build()
        store = UsearchStore(index)
        seen = [store.state()]
        store.scores(QUERY)
        assert store.state() == seen[0]
        index.add(10_000, ROWS[0])
        seen.append(store.state())
        index.remove(10_000)
        seen.append(store.state())
        index.rename(int(KEYS[4]), 20_000)
        seen.append(store.state())
        store.mark_changed()
        seen.append(store.state())
        assert len(set(seen)) == 5


class TestRejected:
    @pytest.mark.parametrize("metric", ["pearson", "divergence", "haversine"])
    def test_other_metrics(self, metric: str) -> None:
        index = usearch.Index(ndim=2 if metric == "haversine" else D, metric=metric, dtype="f32")
        with pytest.raises(InvalidInput, match=f"by cos, ip or l2sq. Got {metric} instead"):
            UsearchStore(index)

    def test_bits(self) -> None:
        with pytest.raises(InvalidInput, match="Got hamming instead"):
            UsearchStore(usearch.Index(ndim=64, metric="hamming", dtype="b1"))

    @pytest.mark.parametrize("metric", ["ip", "l2sq"])
    def test_integer_scores(self, metric: str) -> None:
        """Integer types whose scores are no cosines raise an error."""
        with pytest.raises(InvalidInput, match=f"Got i8 by {metric} instead"):
            UsearchStore(usearch.Index(ndim=D, metric=metric, dtype="i8"))

    def test_multi_index(self) -> None:
        """Several vectors per key raise an error."""
        with pytest.raises(InvalidInput, match="one vector per key; make the index with multi=False"):
            UsearchStore(usearch.Index(ndim=D, multi=True, dtype="f32"))

    @pytest.mark.parametrize("index", [None, "index.usearch", np.ones((2, 2)), usearch.Index, usearch.Indexes()])
    def test_other_objects(self, index: Any) -> None:
        with pytest.raises(InvalidInput, match=r"'index' parameter of UsearchStore must be a usearch\.index\.Index"):
            UsearchStore(index)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "usearch.index", None)
        with pytest.raises(InvalidInput, match=r"pip install 'scoreshield\[usearch\]'"):
            UsearchStore(None)


@pytest.mark.parametrize("pin", ["auto", "scores"])
def test_empty(pin: str) -> None:
    with pytest.raises(StoreError, match="The usearch index holds no records"):
        PinnedStore(UsearchStore(usearch.Index(ndim=D)), pin=pin).take_snapshot()


@pytest.mark.parametrize("key", [0, 2**63 + 5])
def test_large_keys(key: int) -> None:
    """Keys of any size are Python numbers."""
    index = build()
    if key not in KEYS:
        index.add(key, ROWS[0])
    snapshot = PinnedStore(UsearchStore(index)).take_snapshot()
    assert key in snapshot.ids
    assert all(type(one) is int for one in snapshot.ids)


def test_removed_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is removed during a reading raises an error."""
    index = build()
    get = index.get
    monkeypatch.setattr(index, "get", lambda keys: (*get(keys)[:-1], None))
    with pytest.raises(StoreError, match="changed while it was read; nothing was released"):
        PinnedStore(UsearchStore(index)).take_snapshot()


@pytest.mark.parametrize(("metric", "dtype"), KINDS)
def test_private_search(metric: str, dtype: str, tmp_path: Path) -> None:
    account = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100.0, delta=0.0).account("people")
    store = UsearchStore(build(metric, dtype))
    best = int(KEYS[np.argmax(cosines(ROWS, QUERY))])
    assert best in PrivateSearch(store, epsilon=40, mode="query", ledger=account).search(QUERY, 3).ids
    assert account.spent == pytest.approx(40)
    assert best in PrivateSearch(store, epsilon=400).search(QUERY, 3).ids
