"""The pinned copy: versions, checks, pin modes, and every way in which a store can be wrong."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Hashable
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from stores.store_checks import PINS, find_arrays

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores import Convention, PinnedStore, Records, StoreScores

N, DIMENSION = 60, 5


class Memory:
    """A store whose every answer can be set."""

    def __init__(self, rows: Any = None, **facts: Any) -> None:
        rng = np.random.default_rng(3)
        self.rows = rng.standard_normal((N, DIMENSION)).astype(np.float32) if rows is None else np.asarray(rows)
        self.name, self.convention, self.zero_copy = "The memory", Convention.COSINE, False
        self.ids: Any = [f"r{number}" for number in range(len(self.rows))]
        self.token: Hashable = 1
        self.reads = self.scorings = self.looks = 0
        self.convert = lambda cosines: cosines
        self.order = slice(None)
        vars(self).update(facts)

    @property
    def dimension(self) -> int:
        return DIMENSION

    def state(self) -> Hashable:
        self.looks += 1
        return self.token

    def scores(self, query: Any) -> StoreScores:
        self.scorings += 1
        rows = self.rows.astype(np.float64)
        with np.errstate(all="ignore"):
            cosines = rows @ query.astype(np.float64) / np.linalg.norm(rows, axis=1)
        ids = list(self.ids)[self.order] if isinstance(self.order, slice) else [self.ids[i] for i in self.order]
        return StoreScores(ids, self.convert(cosines[self.order]).astype(np.float32))

    def records(self) -> Records | None:
        self.reads += 1
        return Records(self.ids, self.rows)


QUERY = np.random.default_rng(4).standard_normal(DIMENSION)
QUERY /= np.linalg.norm(QUERY)


def cosines(rows: Any) -> Any:
    return np.array([row @ QUERY / np.sqrt(row @ row) for row in np.asarray(rows, dtype=np.float64)])


class TestSnapshot:
    def test_copy(self) -> None:
        """A copy is contiguous, of unit float32 rows, and cannot be written to."""
        snapshot = PinnedStore(Memory(), pin="copy").take_snapshot()
        rows = snapshot.rows
        assert rows is not None
        assert (rows.dtype, rows.flags.c_contiguous, rows.flags.writeable) == (np.float32, True, False)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
        given, asked = snapshot.make_problem(QUERY)
        np.testing.assert_allclose(given @ asked, cosines(Memory().rows), atol=1e-6)
        assert (len(snapshot), snapshot.version, snapshot.ids[:2]) == (N, 1, ("r0", "r1"))

    @pytest.mark.parametrize("convention", Convention)
    def test_scores_as_vectors(self, convention: Convention) -> None:
        """Scores become unit vectors of the plane at their cosines."""
        convert = {
            Convention.COSINE_DISTANCE: lambda c: 1 - c,
            Convention.SQUARED_L2: lambda c: 2 - 2 * c,
        }.get(convention, lambda c: c)
        store = Memory(convention=convention, convert=convert)
        snapshot = PinnedStore(store, pin="scores").take_snapshot()
        rows, asked = snapshot.make_problem(QUERY)
        assert snapshot.rows is None
        assert rows.shape == (N, 2)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-12)
        np.testing.assert_allclose(rows @ asked, cosines(store.rows), atol=1e-6)
        assert store.reads == 0

    def test_clipped_scores(self) -> None:
        """Scores that rounding moves out of the range are clipped."""
        store = Memory(np.tile(QUERY, (3, 1)), convert=lambda c: c * 1.0000004)
        rows, asked = PinnedStore(store, pin="scores").take_snapshot().make_problem(QUERY)
        assert (rows @ asked).max() == 1.0
        assert np.isfinite(rows).all()

    def test_reordered_scores(self) -> None:
        """Scores in another order are sorted by their ids."""
        store = Memory()
        snapshot = PinnedStore(store, pin="scores").take_snapshot()
        store.order = np.random.default_rng(1).permutation(N)
        rows, asked = snapshot.make_problem(QUERY)
        np.testing.assert_allclose(rows @ asked, cosines(store.rows), atol=1e-6)

    def test_repr_and_pickle(self) -> None:
        """A snapshot shows no vector, and is not pickled."""
        pinned = PinnedStore(Memory())
        snapshot = pinned.take_snapshot()
        assert repr(snapshot) == "<Snapshot of The memory: 60 records, version 1>"
        assert repr(pinned) == "<PinnedStore The memory, version 1>"
        for thing in (snapshot, pinned):
            with pytest.raises(InvalidInput, match="is not pickled"):
                pickle.dumps(thing)


class TestVersions:
    def test_read_once(self) -> None:
        """Records are read once, until the state changes."""
        store = Memory()
        pinned = PinnedStore(store)
        assert (pinned.version, pinned.is_stale()) == (0, True)
        first = pinned.take_snapshot()
        assert pinned.take_snapshot() is first
        assert (store.reads, store.scorings, pinned.is_stale()) == (1, 1, False)
        store.rows, store.ids, store.token = store.rows[:10], store.ids[:10], 2
        assert pinned.is_stale()
        second = pinned.take_snapshot()
        assert (second.version, len(second), len(first), store.reads) == (2, 10, N, 2)
        store.token = 1  # back to what it was before: another version all the same
        assert pinned.take_snapshot().version == 3

    @pytest.mark.parametrize("token", [None, 0, "", ()])
    def test_any_state(self, token: Hashable) -> None:
        """A state may be any value that can be compared."""
        pinned = PinnedStore(Memory(token=token))
        assert [pinned.take_snapshot().version for _ in range(2)] == [1, 1]
        assert not pinned.is_stale()

    def test_check_every(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr("scoreshield.stores.pinned.time.monotonic", lambda: now[0])
        store = Memory()
        pinned = PinnedStore(store, check_every=10)
        pinned.take_snapshot()
        looked, store.token = store.looks, 2
        now[0] = 109.9
        assert (pinned.take_snapshot().version, store.looks) == (1, looked)
        now[0] = 110.1
        assert pinned.take_snapshot().version == 2

    def test_look_every(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An adapter has a default for check_every."""
        now = [100.0]
        monkeypatch.setattr("scoreshield.stores.pinned.time.monotonic", lambda: now[0])
        for look_every, given, looks in ((10.0, None, 0), (10.0, 0, 1), (10.0, 3, 1), (None, None, 1), (None, 10, 0)):
            store = Memory() if look_every is None else Memory(look_every=look_every)
            pinned = PinnedStore(store) if given is None else PinnedStore(store, check_every=given)
            pinned.take_snapshot()
            before = store.looks
            now[0] += 5
            pinned.take_snapshot()
            assert store.looks - before == looks, (look_every, given)
        with pytest.raises(InvalidInput, match="'check_every' parameter"):
            PinnedStore(Memory(look_every=-1))

    @pytest.mark.parametrize("pin", ["copy", "scores"])
    def test_snapshot_state(self, pin: str) -> None:
        """A snapshot has the state that it was read in."""
        store = Memory()
        pinned = PinnedStore(store, pin=pin)
        first = pinned.take_snapshot()
        store.token = "next"
        assert (first.state, pinned.take_snapshot().state) == (1, "next")
        view = PinnedStore(Memory(zero_copy=True, token=5))
        assert [view.take_snapshot().state for _ in range(2)] == [5, 5]

    def test_list_ids(self) -> None:
        """list_ids() keeps no vector that was not held before."""
        store = Memory()
        pinned = PinnedStore(store)
        assert pinned.list_ids() == (tuple(store.ids), 1)
        assert pinned._snapshot is None
        held = pinned.take_snapshot()
        assert pinned.list_ids() == (held.ids, 1)
        assert pinned.take_snapshot() is held
        store.token, store.rows = 2, np.full((N, DIMENSION), np.nan, dtype=np.float32)
        with pytest.raises(StoreError, match="not finite"):
            pinned.list_ids()
        assert pinned._snapshot is None

    def test_cheap_ids(self) -> None:
        """list_ids() reads ids alone where an adapter can give them."""

        class Listing(Memory):
            def __init__(self) -> None:
                super().__init__()
                self.names = self.ids
                del self.ids

            def ids(self) -> Any:  # type: ignore[no-redef]
                return self.names

        store = Listing()
        pinned = PinnedStore(store)
        assert pinned.list_ids() == (tuple(store.names), 1)
        assert (store.reads, store.scorings, pinned.version) == (0, 0, 0)
        store.names = ["a", "a"]
        with pytest.raises(StoreError, match="the same id more than once"):
            pinned.list_ids()
        store.names = None
        with pytest.raises(StoreError, match=r"failed while giving its ids \(TypeError\)"):
            pinned.list_ids()

    def test_forget(self) -> None:
        """forget() drops the vectors and keeps the version."""
        store = Memory()
        pinned = PinnedStore(store)
        pinned.take_snapshot()
        pinned.forget()
        assert pinned.take_snapshot().version == 1
        assert store.reads == 2

    def test_failed_reading(self) -> None:
        """A reading that fails is repeated, and the old version does not answer."""
        store = Memory()
        pinned = PinnedStore(store)
        pinned.take_snapshot()
        good = store.rows
        store.token, store.rows = 2, np.full((N, DIMENSION), np.nan, dtype=np.float32)
        for _ in range(2):
            with pytest.raises(StoreError, match="not finite"):
                pinned.take_snapshot()
        store.rows = good
        assert pinned.take_snapshot().version == 2

    def test_threads(self) -> None:
        """Several threads read a version once."""
        store = Memory()
        pinned, found = PinnedStore(store), []
        threads = [threading.Thread(target=lambda: found.append(pinned.take_snapshot())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.reads == 1
        assert len({id(snapshot) for snapshot in found}) == 1


class TestViews:
    def test_view(self) -> None:
        """A view is the store's own memory, taken anew each time."""
        store = Memory(zero_copy=True)
        pinned = PinnedStore(store, check_every=3600)
        assert np.shares_memory(pinned.take_snapshot().rows, store.rows)
        store.rows = store.rows.copy()  # moved: what was viewed before may be gone, whatever check_every says
        snapshot = pinned.take_snapshot()
        assert np.shares_memory(snapshot.rows, store.rows)
        assert snapshot.version == 1

    def test_view_lengths(self) -> None:
        """Rows of any length are viewed as they are."""
        store = Memory(zero_copy=True)
        rows, asked = PinnedStore(store, pin="view").take_snapshot().make_problem(QUERY)
        assert rows is store.rows
        assert asked is QUERY

    def test_copy_on_request(self) -> None:
        store = Memory(zero_copy=True)
        assert not np.shares_memory(PinnedStore(store, pin="copy").take_snapshot().rows, store.rows)

    def test_silent_size_change(self) -> None:
        """A size that changes while the state stays raises an error."""
        store = Memory(zero_copy=True)
        pinned = PinnedStore(store)
        pinned.take_snapshot()
        store.rows = store.rows[:-1]
        with pytest.raises(StoreError, match="changed while it was read"):
            pinned.take_snapshot()

    def test_no_view_to_be_had(self) -> None:
        with pytest.raises(InvalidInput, match="gives no view of its vectors; use pin='copy'"):
            PinnedStore(Memory(), pin="view")

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_bad_rows(self, bad: float) -> None:
        store = Memory(zero_copy=True)
        store.rows[N - 1] = bad
        with pytest.raises(StoreError, match="not finite"):
            PinnedStore(store).take_snapshot()


def _set(store: Memory, **facts: Any) -> Memory:
    vars(store).update(facts)
    return store


BAD = {
    "empty": (lambda s: _set(s, rows=s.rows[:0], ids=[]), "holds no records"),
    "no rows at all": (lambda s: _set(s, rows=np.empty(0), ids=[]), "holds no records"),
    "nan": (lambda s: s.rows.__setitem__((3, 2), np.nan), "not finite numbers"),
    "infinite": (lambda s: s.rows.__setitem__((3, 2), np.inf), "not finite numbers"),
    "the same id twice": (lambda s: s.ids.__setitem__(0, "r1"), "the same id more than once"),
    "ids that cannot be told apart": (lambda s: s.ids.__setitem__(0, ["r0"]), "cannot be compared"),
    "too few ids": (lambda s: s.ids.pop(), "gave 59 ids and 60 vectors|one score per record"),
}


class TestBadStores:
    # Without any rows this store has no scores either.
    @pytest.mark.parametrize(
        ("fault", "pin"), [case for case in product(BAD, PINS) if case != ("no rows at all", "scores")]
    )
    def test_bad_records(self, fault: str, pin: str) -> None:
        """Records that cannot be released raise an error of one sentence."""
        spoil, says = BAD[fault]
        store = Memory()
        spoil(store)
        with pytest.raises(StoreError, match=says) as caught:
            PinnedStore(store, pin=pin).take_snapshot()
        assert str(caught.value).startswith("The memory ")
        assert "\n" not in str(caught.value)
        assert find_arrays(caught.value) == []

    @pytest.mark.parametrize(
        "rows",
        [
            [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0]],
            np.ones((4, DIMENSION + 1)),
            np.ones((4, DIMENSION), dtype=np.int64),
            np.array([["a"] * DIMENSION] * 4),
            np.ones((4, DIMENSION), dtype=object),
        ],
    )
    def test_bad_vectors(self, rows: Any) -> None:
        """Vectors of another kind raise an error."""
        store = Memory()
        store.records = lambda: Records(["a", "b", "c", "d"][: len(rows)], rows)  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="mixes vectors of different lengths"):
            PinnedStore(store).take_snapshot()

    @pytest.mark.parametrize("pin", ["copy", "scores"])
    @pytest.mark.parametrize(
        "values", [np.ones((N, 1), dtype=np.float32), np.ones(N - 1, dtype=np.float32), np.ones(N, dtype=np.int64)]
    )
    def test_bad_scores(self, values: Any, pin: str) -> None:
        """Scores of another shape raise an error."""
        store = Memory()
        store.scores = lambda _: StoreScores(store.ids, values)  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="did not give one score per record"):
            PinnedStore(store, pin=pin).take_snapshot()

    def test_change_while_reading(self) -> None:
        """A store that changes while it is read raises an error."""
        store = Memory()
        tokens = iter(range(9))
        store.state = lambda: next(tokens)  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="changed while it was read; nothing was released: try again"):
            PinnedStore(store).take_snapshot()

    def test_other_scores(self) -> None:
        """A store that scores other records than it lists raises an error."""
        store = Memory()
        store.scores = lambda _: StoreScores([f"s{i}" for i in range(N)], np.ones(N, dtype=np.float32))  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="scores other records than it lists"):
            PinnedStore(store).take_snapshot()

    def test_probe_orders(self) -> None:
        """Two probes in two orders raise an error."""
        store, plain = Memory(), Memory.scores

        def scores(query: Any) -> StoreScores:
            store.order = np.random.default_rng(store.scorings).permutation(N)
            return plain(store, query)

        store.scores = scores  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="in different orders"):
            PinnedStore(store, pin="scores").take_snapshot()

    @pytest.mark.parametrize("step", [-1, 1])
    def test_size_between_queries(self, step: int) -> None:
        """A size that changes between two queries raises an error."""
        store = Memory()
        snapshot = PinnedStore(store, pin="scores").take_snapshot()
        rows = np.vstack([store.rows, store.rows[:1]])[: N + step]
        _set(store, rows=rows, ids=[f"r{i}" for i in range(N + step)])
        with pytest.raises(StoreError, match=f"had 60 records and now scores {N + step}"):
            snapshot.make_problem(QUERY)

    @pytest.mark.parametrize("other", ["new", "r1"])
    def test_records_between_queries(self, other: str) -> None:
        """Unseen by its state: the question is refused, and the next one is of a new version."""
        store = Memory()
        pinned = PinnedStore(store, pin="scores")
        snapshot = pinned.take_snapshot()
        store.ids = [other, *store.ids[1:]]
        assert pinned.take_snapshot() is snapshot
        with pytest.raises(
            StoreError, match="had 60 records and now scores 60, or others: it changed while it was read"
        ):
            snapshot.make_problem(QUERY)
        if other == "new":
            assert pinned.take_snapshot().version == 2
            assert pinned.take_snapshot().ids == tuple(store.ids)
            pinned.take_snapshot().make_problem(QUERY)

    def test_nan_between_queries(self) -> None:
        """A NaN between two queries raises an error."""
        store = Memory()
        snapshot = PinnedStore(store, pin="scores").take_snapshot()
        store.rows[3] = np.nan
        with pytest.raises(StoreError, match="not finite numbers; nothing was released"):
            snapshot.make_problem(QUERY)

    def test_no_vectors(self) -> None:
        """A store without vectors needs pin='scores'."""
        store = Memory()
        store.records = lambda: None  # type: ignore[method-assign]
        with pytest.raises(InvalidInput, match="use pin='scores'"):
            PinnedStore(store).take_snapshot()
        assert len(PinnedStore(store, pin="scores").take_snapshot()) == N

    @pytest.mark.parametrize("method", ["state", "records", "scores"])
    def test_its_client_fails(self, method: str) -> None:
        store = Memory()

        def fail(*_: Any) -> Any:
            raise TimeoutError(f"secret {store.rows[0, 0]}")

        setattr(store, method, fail)
        with pytest.raises(StoreError, match=r"failed while .* \(TimeoutError\); nothing was released") as caught:
            PinnedStore(store).take_snapshot()
        assert "secret" not in "".join(traceback.format_exception(caught.value))
        assert find_arrays(caught.value) == []


class TestConvention:
    TRUE: ClassVar[dict[Convention, Any]] = {
        Convention.COSINE: lambda c: c,
        Convention.COSINE_DISTANCE: lambda c: 1 - c,
        Convention.SQUARED_L2: lambda c: 2 - 2 * c,
    }

    @pytest.mark.parametrize("pin", ["copy", "scores"])
    @pytest.mark.parametrize("real", TRUE)
    @pytest.mark.parametrize("said", TRUE)
    def test_wrong_convention(self, said: Convention, real: Convention, pin: str) -> None:
        """A wrong convention is found on a probe."""
        store = Memory(convention=said, convert=self.TRUE[real])
        if said is real:
            assert len(PinnedStore(store, pin=pin).take_snapshot()) == N
            return
        with pytest.raises(StoreError, match=f"declared to score by '{said.value}'") as caught:
            PinnedStore(store, pin=pin).take_snapshot()
        if pin == "copy":
            assert f"they are '{real.value}'" in str(caught.value)
        assert find_arrays(caught.value) == []

    def test_raw_products(self) -> None:
        """Inner products of long vectors are no cosines."""
        store = Memory()
        store.scores = lambda q: StoreScores(store.ids, (store.rows * 3) @ q)  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="may not be of unit length"):
            PinnedStore(store).take_snapshot()
        with pytest.raises(StoreError, match="or its vectors are not of unit length"):
            PinnedStore(store, pin="scores").take_snapshot()

    def test_tolerance(self) -> None:
        """The tolerance covers eight bits, and not more."""
        noise = np.where(np.arange(N) % 2, 1.0, -1.0)
        assert PinnedStore(Memory(convert=lambda c: c + 0.015 * noise)).take_snapshot().version == 1
        with pytest.raises(StoreError, match="declared to score by"):
            PinnedStore(Memory(convert=lambda c: c + 0.025 * noise)).take_snapshot()


def test_failed_repr() -> None:
    """An object whose constructor failed has a repr."""
    pinned = PinnedStore.__new__(PinnedStore)
    assert repr(pinned) == "<PinnedStore nothing, version 0>"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"pin": "all"}, "'pin' parameter of PinnedStore must be one of 'auto', 'copy', 'view', 'scores'"),
        ({"pin": None}, "'pin' parameter"),
        ({"check_every": -1}, "'check_every' parameter of PinnedStore must be a number of seconds, 0 or more"),
        ({"check_every": float("nan")}, "'check_every' parameter"),
        ({"check_every": "1"}, "'check_every' parameter"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        PinnedStore(Memory(), **arguments)
    with pytest.raises(InvalidInput, match="'store' parameter of PinnedStore must be a store"):
        PinnedStore(np.ones((2, 2)))  # type: ignore[arg-type]
