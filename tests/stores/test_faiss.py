"""FAISS: the indexes whose exact vectors are read, those that are refused, and what a view may not do."""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

faiss = pytest.importorskip("faiss")

from stores.store_checks import DIMENSION, StoreChecks, cosines, make_query, patch_to_raise, unit  # noqa: E402

from scoreshield.errors import InvalidInput, StoreError  # noqa: E402
from scoreshield.privacy.ledger import Ledger  # noqa: E402
from scoreshield.search import PrivateSearch  # noqa: E402
from scoreshield.stores import Convention, FaissStore, PinnedStore  # noqa: E402

RNG = np.random.default_rng(21)
D = 16
ROWS = (RNG.standard_normal((400, D)) * RNG.uniform(0.5, 20, (400, 1))).astype(np.float32)
QUERY = make_query(D)
#: Factory strings, how far their cosines may be from the true ones, and whether they are read in place.
READ = {
    "Flat": (1e-6, True),
    "IDMap,Flat": (1e-6, True),
    "IDMap2,Flat": (1e-6, True),
    "IVF8,Flat": (1e-6, False),
    "IDMap,IVF8,Flat": (1e-6, False),
    "IVF40_HNSW8,Flat": (1e-6, False),
    "HNSW8": (1e-6, True),
    "IDMap2,HNSW8": (1e-6, True),
    "NSG8,Flat": (1e-6, True),
    "PQ4x4,RFlat": (1e-6, True),
    "SQfp16": (5e-4, False),
    "SQbf16": (5e-3, False),
    "HNSW8_SQfp16": (5e-4, False),
}
REFUSED = {
    "PQ4x4": "codes in place of vectors",
    "SQ8": "codes in place of vectors",
    "HNSW8_SQ8": "codes in place of vectors",
    "HNSW8_PQ4x4": "codes in place of vectors",
    "IVF8,PQ4x4": "codes in place of vectors",
    "IVF8,SQfp16": "codes in place of vectors",  # of what a trained centroid leaves over
    "LSH": "codes in place of vectors",
    "RaBitQ": "codes in place of vectors",
    "PCA8,Flat": "changes vectors before it keeps them",
    "OPQ4,PQ4x4": "changes vectors before it keeps them",
    "IDMap,PQ4x4": "codes in place of vectors",
    "IVF8,FlatDedup": "is not an index whose exact vectors FaissStore can read",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    faiss.omp_set_num_threads(1)


def measure_peak(work: Callable[[], Any]) -> int:
    """The most memory that Python and NumPy hold at once while it runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def build(factory: str, metric: int = faiss.METRIC_INNER_PRODUCT, rows: Any = ROWS) -> Any:
    index = faiss.index_factory(D, factory, metric)
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        lists.cp.min_points_per_centroid = 1
    if not index.is_trained:
        index.train(ROWS)
    if factory.startswith("IDMap"):
        index.add_with_ids(rows, 7 * np.arange(len(rows))[::-1].copy())
    else:
        index.add(rows)
    return index


class FaissChecks(StoreChecks):
    takes_zero: ClassVar[frozenset[str]] = frozenset({"auto", "copy", "view", "scores"})
    holds = frozenset({"nan", "zero", "twice"})
    metric: ClassVar[int] = faiss.METRIC_INNER_PRODUCT

    def new_index(self) -> Any:
        raise NotImplementedError

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        if not hasattr(self, "index"):
            self.index = self.new_index()
        self.index.add_with_ids(np.array(vectors, dtype=np.float32), np.array(ids, dtype=np.int64))

    def change(self, one: Any, vector: Any) -> None:
        self.remove(one)
        self.put([one], [vector])

    def remove(self, one: Any) -> None:
        assert self.index.remove_ids(np.array([one])) == 1

    def open(self) -> Any:
        return FaissStore(self.index)

    def break_readings(
        self, kind: str, store: Any, patch: pytest.MonkeyPatch
    ) -> contextlib.AbstractContextManager[None]:
        error = {"dropped": RuntimeError, "late": MemoryError}[kind]
        return patch_to_raise(patch, store._vectors, "all", "numbers", "state", "pages", error=error)


class TestFlat(FaissChecks):
    def new_index(self) -> Any:
        return faiss.IndexIDMap2(faiss.IndexFlat(DIMENSION, self.metric))

    def sort_records(self) -> tuple[list[Any], Any]:
        return list(self.ids), self.vectors()  # as they lie


class TestFlatByL2(TestFlat):
    metric = faiss.METRIC_L2


class TestLists(FaissChecks):
    def new_index(self) -> Any:
        index = faiss.index_factory(DIMENSION, "IVF4,Flat", self.metric)
        index.cp.min_points_per_centroid = 1
        index.train(self.vectors().astype(np.float32))
        return index


class TestEveryIndex:
    @pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2], ids=["ip", "l2"])
    @pytest.mark.parametrize("factory", READ)
    def test_contents(self, factory: str, metric: int) -> None:
        """Ids, vectors and scores are those of the index."""
        atol, in_place = READ[factory]
        index = build(factory, metric)
        store = FaissStore(index)
        ids = 7 * np.arange(400)[::-1] if factory.startswith("IDMap") else np.arange(400)
        truth = dict(zip(ids.tolist(), cosines(ROWS, QUERY), strict=True))
        records, scored = store.records(), store.scores(QUERY)
        assert sorted(records.ids) == sorted(truth)
        assert list(scored.ids) == list(records.ids)
        assert store.convention is Convention.COSINE
        expected = [truth[one] for one in records.ids]
        np.testing.assert_allclose(unit(records.vectors) @ QUERY, expected, atol=atol)
        np.testing.assert_allclose(store.convention.to_cosine(scored.values), expected, atol=atol)
        assert store.zero_copy is in_place
        snapshot = PinnedStore(store).take_snapshot()
        assert all(type(one) is int for one in snapshot.ids)
        rows, asked = snapshot.make_problem(QUERY.astype(np.float64))
        np.testing.assert_allclose(unit(rows) @ asked, expected, atol=atol)

    @pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF8,Flat", "SQfp16"])
    def test_given_ids(self, factory: str) -> None:
        names = [f"doc {i}" for i in range(400)]
        snapshot = PinnedStore(FaissStore(build(factory), ids=names)).take_snapshot()
        assert snapshot.ids == tuple(names)
        with pytest.raises(StoreError, match="holds 400 records, and 399 ids were given"):
            PinnedStore(FaissStore(build(factory), ids=names[1:])).take_snapshot()
        with pytest.raises(InvalidInput, match="has its own ids; leave 'ids' out"):
            FaissStore(build("IDMap,Flat"), ids=names)

    @pytest.mark.parametrize("factory", READ)
    def test_unchanged_index(self, factory: str) -> None:
        """Reading does not change the index."""
        index = build(factory)
        before = faiss.serialize_index(index).tobytes()
        FaissStore(index).records()
        FaissStore(index).scores(QUERY)
        FaissStore(index).state()
        assert faiss.serialize_index(index).tobytes() == before

    @pytest.mark.parametrize("factory", ["HNSW8", "IVF8,Flat"])
    def test_all_records(self, factory: str) -> None:
        """Records that an approximate search misses are scored."""
        index = build(factory)
        missed = 400 - len(set(index.search(QUERY[None], 400)[1][0].tolist()) - {-1})
        if factory == "IVF8,Flat":
            assert missed > 100  # one list of eight is searched
        assert len(FaissStore(index).scores(QUERY).ids) == 400

    def test_a_quantiser_that_misses_lists(self) -> None:
        """An approximate coarse quantiser does not find all lists, even if all are asked for."""
        rng = np.random.default_rng(8)
        rows = rng.standard_normal((2_000, D)).astype(np.float32)
        index = faiss.index_factory(D, "IVF200_HNSW8,Flat", faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1
        index.train(rows)
        index.add(rows)
        every = faiss.SearchParametersIVF(nprobe=200)
        assert len(index.range_search(QUERY[None], -np.inf, params=every)[2]) < 1_900
        given, asked = (
            PinnedStore(FaissStore(index), pin="scores").take_snapshot().make_problem(QUERY.astype(np.float64))
        )
        np.testing.assert_allclose(given @ asked, cosines(rows, QUERY), atol=1e-6)

    @pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2], ids=["ip", "l2"])
    @pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "SQbf16"])
    @pytest.mark.parametrize("length", [1e-25, 1e6, 1e15])
    def test_any_length(self, factory: str, metric: int, length: float) -> None:
        """Vectors may be of any length."""
        rows = (length * unit(ROWS)).astype(np.float32)
        scored = FaissStore(build(factory, metric, rows)).scores(QUERY)
        np.testing.assert_allclose(scored.values, cosines(ROWS, QUERY), atol=READ[factory][0])

    @pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "SQfp16"])
    def test_memory(self, factory: str) -> None:
        """Scores need a page of memory, and records one copy."""
        n, d = 40_000, 64
        index = faiss.index_factory(d, factory, faiss.METRIC_INNER_PRODUCT)
        rows = np.random.default_rng(3).standard_normal((n, d)).astype(np.float32)
        if not index.is_trained:
            index.train(rows[:1_000])
        index.add(rows)
        store, query = FaissStore(index), make_query(d)
        assert measure_peak(lambda: store.scores(query)) < 0.4 * 4 * n * d  # a page, and some numbers a record
        assert measure_peak(store.records) < 1.4 * 4 * n * d

    def test_lists_with_any_ids(self) -> None:
        index = build("IVF8,Flat", rows=ROWS[:0])
        index.add_with_ids(ROWS[:50], np.arange(50) * 10**12)
        assert PinnedStore(FaissStore(index)).take_snapshot().ids == tuple(range(0, 50 * 10**12, 10**12))

    def test_from_a_file_mapped(self, tmp_path: Path) -> None:
        faiss.write_index(build("Flat"), str(tmp_path / "index"))
        index = faiss.read_index(str(tmp_path / "index"), faiss.IO_FLAG_MMAP_IFC)
        rows, asked = PinnedStore(FaissStore(index)).take_snapshot().make_problem(QUERY.astype(np.float64))
        np.testing.assert_allclose(unit(rows) @ asked, cosines(ROWS, QUERY), atol=1e-6)


class TestGivenIds:
    """FAISS moves later records up when one is removed: the same number of ids may be of other records then."""

    NAMES: ClassVar[list[str]] = [f"doc {i}" for i in range(400)]

    @pytest.mark.parametrize("pin", ["auto", "copy", "scores"])
    @pytest.mark.parametrize("factory", ["Flat", "SQfp16"])
    @pytest.mark.parametrize("gone", [0, 200, 398, 399])
    def test_remove_and_add(self, factory: str, gone: int, pin: str) -> None:
        """A removal and an addition between two readings are detected."""
        index, names = build(factory), list(self.NAMES)
        store = FaissStore(index, ids=names)
        pinned = PinnedStore(store, pin=pin)
        pinned.take_snapshot()
        index.remove_ids(np.array([gone]))
        index.add(-ROWS[:1])
        for _ in range(2):
            with pytest.raises(
                StoreError, match=r"given ids may be of other records .* mark_changed\(ids\), or use an IDMap"
            ):
                pinned.take_snapshot()
        store.mark_changed()  # says nothing of ids
        with pytest.raises(StoreError, match="given ids may be of other records"):
            pinned.take_snapshot()
        del names[gone]
        store.mark_changed([*names, "new"])
        snapshot = pinned.take_snapshot()
        rows, asked = snapshot.make_problem(QUERY.astype(np.float64))
        expected = cosines(np.vstack([np.delete(ROWS, gone, axis=0), -ROWS[:1]]), QUERY)
        assert snapshot.ids == (*names, "new")
        np.testing.assert_allclose(unit(rows) @ asked, expected, atol=READ[factory][0])

    def test_before_first_reading(self) -> None:
        """A change before the first reading is detected."""
        index = build("Flat")
        store = FaissStore(index, ids=self.NAMES)
        index.remove_ids(np.array([3]))
        index.add(ROWS[:1])
        with pytest.raises(StoreError, match="given ids may be of other records"):
            store.scores(QUERY)

    def test_growing_list(self) -> None:
        """A list of ids may grow along with the index."""
        index, names = build("Flat"), list(self.NAMES)
        pinned = PinnedStore(FaissStore(index, ids=names))
        pinned.take_snapshot()
        index.add(ROWS[:2])
        with pytest.raises(StoreError, match="holds 402 records, and 400 ids were given"):
            pinned.take_snapshot()
        names += ["one", "two"]
        assert pinned.take_snapshot().ids == tuple(names)
        index.remove_ids(np.array([400]))  # of those that came later
        index.add(-ROWS[:1])
        with pytest.raises(StoreError, match="given ids may be of other records"):
            pinned.take_snapshot()

    def test_remove(self) -> None:
        """A removal makes given ids raise an error."""
        index, names = build("Flat"), list(self.NAMES)
        store = FaissStore(index, ids=names)
        index.remove_ids(np.array([3]))
        names.pop()  # the wrong one
        with pytest.raises(StoreError, match="given ids may be of other records"):
            store.records()

    def test_ivf_numbers(self) -> None:
        """IVF lists keep their numbers."""
        index = build("IVF8,Flat")
        pinned = PinnedStore(FaissStore(index, ids=self.NAMES))
        pinned.take_snapshot()
        index.remove_ids(np.array([3]))
        index.add_with_ids(-ROWS[3:4], np.array([3]))
        rows, asked = pinned.take_snapshot().make_problem(QUERY.astype(np.float64))
        expected = np.where(np.arange(400) == 3, -1, 1) * cosines(ROWS, QUERY)
        np.testing.assert_allclose(rows @ asked, expected, atol=1e-6)

    @pytest.mark.parametrize("ids", ["abc", b"abc", bytearray(b"abc"), {"a": 1}, {1, 2, 3}, 3, np.ones((3, 1))])
    def test_bad_ids(self, ids: Any) -> None:
        """Ids that are no sequence raise an error."""
        index = build("Flat", rows=ROWS[:3])
        with pytest.raises(InvalidInput, match="'ids' parameter of FaissStore must be a sequence, one id per record"):
            FaissStore(index, ids=ids)
        with pytest.raises(InvalidInput, match=r"'ids' parameter of FaissStore\.mark_changed must be a sequence"):
            FaissStore(index).mark_changed(ids)

    def test_an_array_of_ids(self) -> None:
        index = build("Flat", rows=ROWS[:3])
        ids = PinnedStore(FaissStore(index, ids=np.array([7, 8, 9]))).take_snapshot().ids
        assert ids == (7, 8, 9)
        assert all(type(one) is int for one in ids)


class TestView:
    def test_own_memory(self) -> None:
        """A view is FAISS's own memory, and cannot be written to."""
        index = build("Flat")
        view = PinnedStore(FaissStore(index)).take_snapshot().rows
        own = faiss.rev_swig_ptr(index.get_xb(), 400 * D)
        assert np.shares_memory(view, own)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1  # type: ignore[index]

    def test_moved_memory(self) -> None:
        """Memory that FAISS moves is viewed anew."""
        index = build("Flat")
        pinned = PinnedStore(FaissStore(index), check_every=3600)
        pinned.take_snapshot()
        index.add(np.repeat(ROWS, 50, axis=0))  # moves everything
        gc.collect()
        snapshot = pinned.take_snapshot()
        assert (len(snapshot), snapshot.version) == (400 * 51, 2)
        np.testing.assert_array_equal(snapshot.rows[:400], ROWS)  # type: ignore[index]

    def test_lifetime(self) -> None:
        """The store keeps the index alive."""
        index = build("IDMap2,Flat")
        pinned = PinnedStore(FaissStore(index))
        snapshot = pinned.take_snapshot()
        del index
        gc.collect()
        np.testing.assert_array_equal(snapshot.rows, ROWS)
        assert len(pinned.take_snapshot()) == 400


class TestState:
    @pytest.mark.parametrize("factory", [name for name in READ if name != "NSG8,Flat"])  # which takes no more
    def test_stable_state(self, factory: str) -> None:
        """The state stays the same until a record changes."""
        index = build(factory)
        store = FaissStore(index)
        token = store.state()
        store.scores(QUERY)
        assert store.state() == token
        if factory.startswith("IDMap"):
            index.add_with_ids(ROWS[:1], np.array([10**6]))
        else:
            index.add(ROWS[:1])
        assert store.state() != token

    @pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "IDMap2,Flat", "SQfp16"])
    @pytest.mark.parametrize("gone", [0, 200, 399])
    def test_remove_and_add(self, factory: str, gone: int) -> None:
        """A removal and an addition between two readings are detected."""
        index = build(factory)
        store = FaissStore(index)
        token = store.state()
        if factory.startswith(("IDMap", "IVF")):
            one = np.array([7 * gone if factory.startswith("IDMap") else gone])
            index.remove_ids(one)
            index.add_with_ids(-ROWS[:1], one)
        else:
            index.remove_ids(np.array([gone]))
            index.add(-ROWS[:1])
        assert index.ntotal == 400
        assert store.state() != token

    def test_replaced_last(self) -> None:
        """The last record of a list that is replaced under its number is detected."""
        index = build("IVF8,Flat")
        store = FaissStore(index)
        token, number = store.state(), index.quantizer.search(ROWS[:1], 1)[1][0, 0]
        size = index.invlists.list_size(int(number))
        last = faiss.rev_swig_ptr(index.invlists.get_ids(int(number)), size)[-1:].copy()
        before = store.records().ids.tolist()
        index.remove_ids(last)
        index.add_with_ids(1.5 * ROWS[last], last)  # by inner product it falls into the same list
        assert store.records().ids.tolist() == before
        assert store.state() != token

    def test_ids_alone(self) -> None:
        index = build("IDMap2,Flat")
        store = FaissStore(index)
        token = store.state()
        faiss.copy_array_to_vector(np.arange(400, dtype=np.int64), index.id_map)
        assert store.state() != token

    def test_mark_changed(self) -> None:
        """A vector that is written over in place is reported by mark_changed()."""
        index = build("Flat")
        store = FaissStore(index)
        token = store.state()
        faiss.rev_swig_ptr(index.get_xb(), 400 * D).reshape(400, D)[5] = 1
        assert store.state() == token  # as the documentation says
        store.mark_changed()
        assert store.state() != token


class TestRejected:
    @pytest.mark.parametrize("factory", REFUSED)
    def test_rejected_kinds(self, factory: str) -> None:
        """Every other kind of index raises an error that says why."""
        with pytest.raises(InvalidInput, match=f"An Index.* {REFUSED[factory]}.*; use one that keeps the vectors"):
            FaissStore(faiss.index_factory(D, factory))

    def test_trained_codes(self) -> None:
        """Why: the same records but one, trained and added as a user would, and another's vector comes out changed."""
        found = []
        for first in (ROWS[0], 50 * ROWS[0]):
            rows = np.vstack([first, ROWS[1:]])
            index = faiss.index_factory(D, "SQ8")
            index.train(rows)
            index.add(rows)
            found.append(index.reconstruct(7))
        assert np.abs(found[0] - found[1]).max() > 1e-3

    @pytest.mark.parametrize("metric", [faiss.METRIC_L1, faiss.METRIC_Linf, faiss.METRIC_Canberra])
    def test_other_metrics(self, metric: int) -> None:
        with pytest.raises(InvalidInput, match="by another metric than inner product or L2"):
            FaissStore(faiss.IndexFlat(D, metric))

    def test_on_a_gpu(self) -> None:
        class GpuIndexFlatIP(faiss.IndexFlatIP):
            pass

        with pytest.raises(InvalidInput, match=r"keeps its vectors on a GPU; .* faiss.index_gpu_to_cpu\(index\)"):
            FaissStore(GpuIndexFlatIP(D))

    @pytest.mark.parametrize("index", [None, "index.faiss", np.ones((2, 2)), faiss.IndexBinaryFlat(16), faiss])
    def test_other_objects(self, index: Any) -> None:
        with pytest.raises(
            InvalidInput, match="'index' parameter of FaissStore must be a FAISS index of float vectors"
        ):
            FaissStore(index)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "faiss", None)
        with pytest.raises(InvalidInput, match=r"pip install 'scoreshield\[faiss\]'"):
            FaissStore(None)


class TestBadIndexes:
    @pytest.mark.parametrize("pin", ["auto", "copy", "scores"])
    @pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW8", "SQfp16", "IDMap,Flat"])
    def test_empty_or_untrained(self, factory: str, pin: str) -> None:
        with pytest.raises(StoreError, match="holds no records"):
            PinnedStore(FaissStore(faiss.index_factory(D, factory)), pin=pin).take_snapshot()

    @pytest.mark.parametrize("pin", ["auto", "copy", "scores"])
    @pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "SQfp16"])
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_bad_rows(self, factory: str, bad: float, pin: str) -> None:
        """Rows that are not finite raise an error."""
        index = build(factory)
        index.add(np.full((1, D), bad, dtype=np.float32))
        with pytest.raises(StoreError, match="not finite numbers"):
            PinnedStore(FaissStore(index), pin=pin).take_snapshot()

    def test_repeated_numbers(self) -> None:
        """Numbers that are in two lists raise an error."""
        index = build("IVF8,Flat")
        index.remove_ids(np.array([5]))
        index.add(ROWS[:1])  # FAISS numbers it 399, which is there
        for pin in ("copy", "scores"):
            with pytest.raises(StoreError, match="same id more than once"):
                PinnedStore(FaissStore(index), pin=pin).take_snapshot()


@pytest.mark.parametrize("factory", READ)
def test_private_search(factory: str, tmp_path: Path) -> None:
    account = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100.0, delta=0.0).account("people")
    index = build(factory)
    search = PrivateSearch(FaissStore(index), epsilon=40, mode="query", ledger=account)
    best = int(np.argmax(cosines(ROWS, QUERY)))
    names = 7 * np.arange(400)[::-1] if factory.startswith("IDMap") else np.arange(400)
    assert search.search(QUERY, 3).ids[0] == names[best]
    assert account.spent == pytest.approx(40)
    paid_once = PrivateSearch(FaissStore(index), epsilon=400)
    assert names[best] in paid_once.search(QUERY, 3).ids
