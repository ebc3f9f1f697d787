"""Private search: three modes, what is charged and when, versions, files, and what an error may carry."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import pickle
import secrets
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield import compose, release_index, release_matches, release_scores
from scoreshield.errors import BudgetExceeded, FileError, InvalidInput, LedgerError, StoreError
from scoreshield.privacy.adjacency import Identity
from scoreshield.privacy.ledger import Account, Ledger, PendingCharge
from scoreshield.search import Hits, IndexNotSaved, PrivateSearch, index_files, totals
from scoreshield.search.index import IndexSearch, LoadedIndexSearch
from scoreshield.search.query import QuerySearch
from scoreshield.search.screening import ScreeningSearch
from scoreshield.stores import ArrayStore, Convention, PinnedStore, Records, StoreScores

N, DIMENSION = 80, 12
RNG = np.random.default_rng(31)
ROWS = RNG.standard_normal((N, DIMENSION)).astype(np.float32)
IDS = [f"doc-{number}" for number in range(N)]
QUERY = ROWS[17] + 0.3 * RNG.standard_normal(DIMENSION)
UNIT = QUERY / np.linalg.norm(QUERY)
CLEAN = np.array([row @ UNIT / np.sqrt(row @ row) for row in ROWS.astype(np.float64)])
QUERIES = np.stack([QUERY, -QUERY, ROWS[3]])


class Memory:
    """A store that can change, fail and be asked what it was asked."""

    name, convention, zero_copy, dimension = "The memory", Convention.COSINE, False, DIMENSION

    def __init__(self) -> None:
        self.rows, self.ids, self.token = ROWS.copy(), list(IDS), 1
        self.scorings = 0
        self.fails_at: int | None = None

    def state(self) -> int:
        return self.token

    def scores(self, query: Any) -> StoreScores:
        self.scorings += 1
        if self.scorings == self.fails_at:
            raise ConnectionResetError(f"clean {CLEAN[:3]}")
        rows = self.rows.astype(np.float64)
        return StoreScores(self.ids, (rows @ query / np.linalg.norm(rows, axis=1)).astype(np.float32))

    def records(self) -> Records:
        return Records(self.ids, self.rows)

    def close(self) -> None:
        """From now on it must not be read."""

        def fail(*_: Any) -> Any:
            raise AssertionError("it was read")

        self.state = self.scores = self.records = fail  # type: ignore[method-assign]

    def put(self, one: str, row: Any) -> None:
        self.ids, self.rows = [*self.ids, one], np.vstack([self.rows, row]).astype(np.float32)
        self.token += 1

    def remove(self, one: str) -> None:
        place = self.ids.index(one)
        self.ids, self.rows = self.ids[:place] + self.ids[place + 1 :], np.delete(self.rows, place, axis=0)
        self.token += 1


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100.0, delta=1e-6).account("people")


def make_search(mode: str, **options: Any) -> PrivateSearch:
    """In research mode, of the array under its ids."""
    extra = {"threshold": 0.3} if mode == "screening" else {}
    return PrivateSearch(ArrayStore(ROWS, IDS), epsilon=8.0, mode=mode, rng=5, **extra, **options)


class TestModes:
    """Each mode is its release function, with ids for row numbers."""

    def test_classes(self, tmp_path: Path) -> None:
        """Each mode is one class, and a loaded index is a class without a store."""
        kinds = {mode: type(make_search(mode)._search) for mode in ("index", "query", "screening")}
        assert kinds == {"index": IndexSearch, "query": QuerySearch, "screening": ScreeningSearch}
        assert {mode: kind.mode for mode, kind in kinds.items()} == {mode: mode for mode in kinds}
        make_search("index").save(tmp_path / "index.npz")
        loaded = PrivateSearch.load(tmp_path / "index.npz")
        assert (type(loaded), type(loaded._search), loaded.mode) == (PrivateSearch, LoadedIndexSearch, "index")

    def test_query(self) -> None:
        hits = make_search("query").search(QUERY, 7)
        unit = (ROWS.astype(np.float64) / np.linalg.norm(ROWS.astype(np.float64), axis=1, keepdims=True)).astype("f4")
        release = release_scores(
            unit, QUERY, epsilon=8.0, mechanism="auto", for_="ranking", rng=np.random.default_rng(5)
        )
        best = release.top_k(7)
        assert hits.ids == tuple(IDS[i] for i in best)
        np.testing.assert_array_equal(hits.noisy, release.noisy[best])
        assert hits.guarantee == release.guarantee
        assert (len(hits), hits.version) == (7, 1)

    def test_screening(self) -> None:
        hits = make_search("screening").search(QUERY, N)
        release = release_matches(_read_unit_rows(), QUERY, 0.3, epsilon=8.0, rng=np.random.default_rng(5))
        assert hits.ids == tuple(IDS[i] for i in release.indices)
        assert hits.scores is hits.noisy is None
        assert hits.guarantee == release.guarantee
        assert len(make_search("screening").search(QUERY, 2)) == 2

    def test_refine(self) -> None:
        """Screening with refine releases the scores of the candidates."""
        hits = make_search("screening", refine=0.5).search(QUERY, N)
        release = release_matches(_read_unit_rows(), QUERY, 0.3, epsilon=8.0, refine=0.5, rng=np.random.default_rng(5))
        assert hits.ids == tuple(IDS[i] for i in release.indices)
        assert hits.noisy is not None
        np.testing.assert_array_equal(hits.noisy, -np.sort(-release.noisy))
        np.testing.assert_array_equal(hits.scores, np.clip(hits.noisy, -1, 1))

    def test_index(self) -> None:
        search = make_search("index")
        index = release_index(_read_unit_rows(), epsilon=8.0, rng=np.random.default_rng(5))
        found = index.search(QUERY, 7)
        hits = search.search(QUERY, 7)
        assert hits.ids == tuple(IDS[i] for i in found.indices)
        np.testing.assert_array_equal(hits.noisy, found.scores)
        assert hits.noise_std == pytest.approx(index.score_std)
        assert hits.guarantee == index.guarantee == search.guarantee
        assert (search.ids, search.dimension, search.version) == (tuple(IDS), DIMENSION, 1)

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_batch_answers(self, mode: str) -> None:
        """At an epsilon that leaves next to no noise, each of five records is the best one for itself."""
        extra = {"threshold": 0.2, "refine": 0.5} if mode == "screening" else {}
        search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=400.0, mode=mode, rng=5, **extra)
        batch = search.search_batch(ROWS[20:25], 1)
        assert [hits.ids for hits in batch] == [(one,) for one in IDS[20:25]]

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_batch_shapes_and_k(self, mode: str) -> None:
        batch = make_search(mode).search_batch(QUERIES, 4)
        assert [type(hits) for hits in batch] == [Hits] * 3
        assert all(len(hits) <= 4 for hits in batch)
        assert len(make_search(mode).search_batch(QUERY, 1)) == 1
        if mode != "screening":
            assert len(make_search(mode).search(QUERY[None], 10 * N)) == N

    def test_score_range(self) -> None:
        hits = make_search("query", score_range=(0, 0.5)).search(QUERY, N)
        assert hits.guarantee.score_range == (0, 0.5)
        assert hits.scores is not None
        assert hits.scores.min() >= 0
        assert hits.scores.max() <= 0.5

    def test_index_options(self) -> None:
        """An index takes a mechanism and a number of components."""
        search = PrivateSearch(ROWS, epsilon=8, delta=1e-6, mechanism="gaussian", components=4)
        assert search.guarantee.mechanism == "gaussian"
        assert search.guarantee.shape == (N, 4)
        assert search.dimension == DIMENSION

    def test_progress(self) -> None:
        seen: list[tuple[int, int]] = []
        PrivateSearch(ROWS, epsilon=8, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (N, N)


def _read_unit_rows() -> Any:
    return PinnedStore(ArrayStore(ROWS)).take_snapshot().rows


class TestPins:
    """How records are held changes nothing of what is released."""

    @pytest.mark.parametrize("mode", ["query", "screening"])
    @pytest.mark.parametrize("refine", [0.0, 0.5])
    def test_all_pins(self, mode: str, refine: float, tmp_path: Path) -> None:
        """A copy, a view and the store's own scores give the same release."""
        np.save(tmp_path / "rows.npy", ROWS)
        options = {"refine": refine} if mode == "screening" else {}
        found = []
        for store, pin in (
            (ArrayStore(ROWS, IDS), "copy"),
            (ArrayStore(tmp_path / "rows.npy", IDS), "view"),
            (ArrayStore(ROWS, IDS), "scores"),
            (Memory(), "scores"),
        ):
            extra = {"threshold": 0.3} if mode == "screening" else {}
            search = PrivateSearch(store, epsilon=6.0, mode=mode, rng=9, pin=pin, **extra, **options)
            found.append(search.search_batch(QUERIES, N))
        for other in found[1:]:
            for mine, theirs in zip(found[0], other, strict=True):
                assert mine.guarantee == theirs.guarantee
                assert sorted(mine.ids) == sorted(theirs.ids)
                if mine.noisy is not None:
                    assert theirs.noisy is not None
                    a = dict(zip(mine.ids, mine.noisy, strict=True))
                    b = dict(zip(theirs.ids, theirs.noisy, strict=True))
                    np.testing.assert_allclose([a[i] for i in IDS if i in a], [b[i] for i in IDS if i in b], atol=1e-6)

    def test_index_pins(self, tmp_path: Path) -> None:
        """A copy and a view give the same index."""
        np.save(tmp_path / "rows.npy", ROWS)
        store = ArrayStore(tmp_path / "rows.npy")
        a, b = (PrivateSearch(store, epsilon=6.0, rng=9, pin=pin).search(QUERY, N) for pin in ("copy", "view"))
        np.testing.assert_allclose(np.sort(a.noisy), np.sort(b.noisy), atol=1e-4)

    def test_pin_scores(self) -> None:
        """An index and centroids need vectors, and pin='scores' has none."""
        with pytest.raises(InvalidInput, match="An index is made of vectors: pin='scores' has none"):
            PrivateSearch(Memory(), epsilon=1, pin="scores")
        with pytest.raises(InvalidInput, match="Centroids are made of vectors, and pin='scores' has none"):
            PrivateSearch(Memory(), epsilon=1, mode="query", rng=1, pin="scores", identity_of=str, centroids=True)

    def test_a_pinned_store(self, account: Account) -> None:
        pinned = PinnedStore(Memory(), pin="copy")
        search = PrivateSearch(pinned, epsilon=1, mode="query", ledger=account)
        search.search(QUERY)
        assert pinned.version == 1
        with pytest.raises(InvalidInput, match="has its own 'pin' and 'check_every'"):
            PrivateSearch(pinned, epsilon=1, mode="query", ledger=account, pin="copy")


class TestRandomness:
    def test_fresh_noise(self) -> None:
        """Each query of one search has its own noise."""
        search = make_search("query")
        one, two = search.search_batch(np.stack([QUERY, QUERY]), N)
        three = search.search(QUERY, N)
        for a, b in ((one, two), (two, three)):
            noise = [dict(zip(hits.ids, hits.noisy, strict=True)) for hits in (a, b)]
            assert np.mean([noise[0][i] == noise[1][i] for i in IDS]) < 0.5

    def test_seed(self) -> None:
        """A seed repeats all answers of a search."""
        a, b = (make_search("query").search_batch(QUERIES, 5) for _ in range(2))
        assert [hits.ids for hits in a] == [hits.ids for hits in b]

    def test_no_seed(self, account: Account) -> None:
        """Without a seed the noise is exact and does not repeat."""
        search = PrivateSearch(ROWS, epsilon=2, mode="query", ledger=account)
        a, b = search.search(QUERY, N), search.search(QUERY, N)
        assert a.guarantee.sampler == "exact"
        assert not np.array_equal(a.noisy, b.noisy)

    def test_research_ledger(self, account: Account) -> None:
        """Research mode needs no ledger, and rejects one."""
        assert make_search("query").search(QUERY).guarantee.sampler == "research"
        for mode in ("query", "index"):
            with pytest.raises(InvalidInput, match=r"'rng' is research mode, .* no ledger takes it"):
                PrivateSearch(ROWS, epsilon=1, mode=mode, rng=1, ledger=account)
        assert account.spent == 0


class TestLedger:
    @pytest.mark.parametrize("mode", ["query", "screening"])
    def test_ledger_by_name(self, mode: str, account: Account) -> None:
        """A mode that charges each query needs an account with a name."""
        options: dict[str, Any] = {"threshold": 0.3} if mode == "screening" else {}
        ledger = account.ledger
        for given, says in (
            (None, "every query spends: the 'ledger' of PrivateSearch must be ledger.account"),
            (ledger, r"'ledger' parameter of PrivateSearch must be ledger.account\(name\)"),
            (Account(ledger, None), "'ledger' parameter"),
            ("people", "'ledger' parameter"),
            (Account(ledger, "hmac-sha256:" + 64 * "0"), "A fingerprint changes with every insert"),
        ):
            with pytest.raises(InvalidInput, match=says):
                PrivateSearch(ROWS, epsilon=1, mode=mode, ledger=given, **options)

    def test_index_charge(self, account: Account) -> None:
        """An index is charged when it is made, and its answers cost nothing."""
        search = PrivateSearch(ROWS, epsilon=3, ledger=account)
        for _ in range(5):
            search.search_batch(QUERIES, threshold=0.1, where=lambda one: one % 2 == 0)
        assert account.spent == pytest.approx(3)
        search.refresh()
        assert account.spent == pytest.approx(6)
        assert search.version == 2

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_charge_before_noise(self, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch is reserved and committed as a whole, and a commit that fails finds nothing drawn."""
        order: list[str] = []

        class Book:
            dataset = "people"
            fails = False

            def reserve(self, guarantees: Any, **_: Any) -> Book:
                order.append(f"reserve {len(guarantees)}")
                return self

            def commit(self) -> list[Any]:
                order.append("commit")
                if self.fails:
                    raise LedgerError("The disk is full.")
                return []

        def watched(count: int) -> bytes:
            order.append("draw")
            return secrets.token_bytes(count)

        book, options = Book(), {"threshold": 0.3} if mode == "screening" else {}
        monkeypatch.setattr("os.urandom", watched)
        search = PrivateSearch(ROWS, epsilon=1, mode=mode, ledger=book, **options)  # type: ignore[arg-type]
        if mode != "index":
            assert order == []
            search.search_batch(QUERIES)
        assert order[:2] == [f"reserve {1 if mode == 'index' else len(QUERIES)}", "commit"]
        assert set(order[2:]) == {"draw"}
        order.clear()
        book.fails = True
        with pytest.raises(LedgerError) as caught:
            search.refresh() if mode == "index" else search.search_batch(QUERIES)
        assert order[-1] == "commit"
        assert "draw" not in order
        _assert_no_arrays(caught.value)

    def test_query_charge(self, account: Account) -> None:
        """Each query of mode 'query' is one entry of the ledger."""
        search = PrivateSearch(ROWS, epsilon=3, mode="query", ledger=account)
        search.search(QUERY)
        assert account.spent == pytest.approx(3)
        search.search_batch(QUERIES)
        assert account.spent == pytest.approx(12)
        assert len(account.ledger.entries()) == 4

    @pytest.mark.parametrize("mode", ["query", "screening"])
    def test_repeated_query(self, mode: str, account: Account) -> None:
        """A query that is repeated in a batch is charged each time."""
        extra = {"threshold": 0.2, "refine": 0.5} if mode == "screening" else {}
        search = PrivateSearch(ROWS, epsilon=2, mode=mode, ledger=account, **extra)
        search.search_batch(np.stack([QUERY, QUERY, QUERY]))
        assert len(account.ledger.entries()) == 3
        assert account.spent == pytest.approx(6)

    def test_screening_charge(self, account: Account) -> None:
        """Screening and refining together cost epsilon."""
        PrivateSearch(ROWS, epsilon=2, mode="screening", threshold=0.2, refine=0.5, ledger=account).search(QUERY)
        assert account.spent == pytest.approx(2)

    def test_batch_over_limit(self, account: Account) -> None:
        """A batch over the limit is neither answered nor charged."""
        search = PrivateSearch(ROWS, epsilon=30, mode="query", ledger=account)
        search.search(QUERY)
        with pytest.raises(BudgetExceeded) as caught:
            search.search_batch(QUERIES)  # two would fit, three do not
        assert account.spent == pytest.approx(30)
        assert len(account.ledger.entries()) == 1
        assert caught.value.limit == 100.0
        _assert_no_arrays(caught.value)
        assert len(search.search_batch(QUERIES[:2])) == 2

    def test_store_failure(self, account: Account) -> None:
        """A store that fails at the second query of a batch costs nothing."""
        store = Memory()
        search = PrivateSearch(store, epsilon=1, mode="query", ledger=account, pin="scores")
        store.fails_at = 4  # two probes, the first query, the second
        with pytest.raises(StoreError, match=r"failed while scoring a query \(ConnectionResetError\)") as caught:
            search.search_batch(QUERIES)
        assert account.spent == 0
        assert account.ledger.entries() == []
        _assert_no_arrays(caught.value)
        search.search_batch(QUERIES)
        assert account.spent == pytest.approx(3)

    def test_commit_failure(self, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the charge cannot be written, nothing is released."""
        search = PrivateSearch(ROWS, epsilon=1, mode="query", ledger=account)
        order: list[Any] = []

        def refuse(*_: Any, **__: Any) -> Any:
            raise LedgerError("The disk is full.")

        monkeypatch.setattr(PendingCharge, "commit", refuse)
        with pytest.raises(LedgerError, match="The disk is full") as caught:
            search.search(QUERY, where=lambda one: order.append(one) or True)  # type: ignore[func-returns-value]
        assert order == list(range(N))  # asked in the public order, not in that of the ranking
        _assert_no_arrays(caught.value)

    def test_where_failure(self, account: Account) -> None:
        """A filter that raises an error costs nothing."""
        search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=1, mode="query", ledger=account)
        seen: list[str] = []

        def where(one: str) -> bool:
            seen.append(one)
            raise KeyError(one)

        with pytest.raises(KeyError):
            search.search(QUERY, where=where)
        assert seen == IDS[:1]
        assert account.spent == 0

    @pytest.mark.parametrize("centroids", [True, False])
    def test_changed_identity(self, account: Account, centroids: bool) -> None:
        """The search says to the ledger that these are the same people, so it looks whether they are."""
        store, of = Memory(), dict(PEOPLE)
        search = PrivateSearch(
            store, epsilon=5, delta=1e-7, mode="query", ledger=account, identity_of=of, centroids=centroids
        )
        search.search(QUERY)
        ids = list(of)
        of[ids[0]], of[ids[-1]] = of[ids[-1]], of[ids[0]]
        with pytest.raises(InvalidInput, match="gives a record another identity than before"):
            search.search(QUERY)
        assert len(account.ledger.entries()) == 1
        of[ids[0]], of[ids[-1]] = of[ids[-1]], of[ids[0]]
        search.search(QUERY)
        assert len(account.ledger.entries()) == 2

    @pytest.mark.parametrize("centroids", [True, False])
    def test_growing_identities(self, account: Account, centroids: bool) -> None:
        """How many persons there are, and of how many records, is no part of what each is promised."""
        store, of = Memory(), dict(PEOPLE)
        options: dict[str, Any] = {"epsilon": 5, "delta": 1e-7, "identity_of": of, "centroids": centroids}
        search = PrivateSearch(store, mode="query", ledger=account, **options)
        first = search.search(QUERY).guarantee
        of["new"] = "new person"
        store.put("new", QUERY)
        second = search.search(QUERY).guarantee
        of["newer"] = "person 0"
        store.put("newer", QUERY)
        third = search.search(QUERY).guarantee
        sizes = [(one.adjacency.identities, one.adjacency.largest) for one in (first, second, third) if one]
        assert sizes == ([(20, 1), (21, 1), (21, 1)] if centroids else [(20, 4), (21, 4), (21, 5)])
        assert [entry.unit.partition(" labels ")[0] for entry in account.ledger.entries()] == [
            f"identity centroids {centroids} identities {persons} largest {most}" for persons, most in sizes
        ]
        assert len(account.ledger.entries()) == 3
        assert account.ledger.verify()
        index = PrivateSearch(store, epsilon=5, identity_of=of, centroids=centroids, ledger=account)
        store.remove("newer")
        index.refresh()
        assert len(account.ledger.entries()) == 5

    @pytest.mark.parametrize("refine", [0.0, 0.5])
    @pytest.mark.parametrize("hidden", [True, False])
    def test_empty_filter(self, account: Account, refine: float, hidden: bool) -> None:
        """A filter that accepts no record releases nothing and costs nothing."""
        for options in ({"mode": "query"}, {"mode": "screening", "threshold": 0.3, "refine": refine}):
            search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=1, ledger=account, **options)  # type: ignore[arg-type]
            if hidden:
                search.hide(IDS)
            where = None if hidden else lambda _: False
            for hits in search.search_batch(QUERIES, 3, where=where):
                assert (hits.ids, hits.guarantee, hits.version) == ((), None, 1)
                assert (hits.scores is None) == (hits.noisy is None) == (not search.releases_scores)
                facts = json.loads(json.dumps(search.facts(hits)))
                assert facts == {"mode": options["mode"], "covers": "nothing, as nothing was released", "version": 1}
        assert account.ledger.entries() == []
        index = PrivateSearch(ROWS, epsilon=1)
        assert index.search(QUERY, where=lambda _: False).guarantee == index.guarantee

    def test_cancelled_query(self, account: Account) -> None:
        """Documented: the thread goes on, and what it drew has been paid for."""
        store = Memory()
        search = PrivateSearch(store, epsilon=3, mode="query", ledger=account)
        search.search(QUERY)
        asked, go_on = threading.Event(), threading.Event()

        def state() -> int:
            asked.set()
            assert go_on.wait(10)
            return store.token

        store.state = state  # type: ignore[method-assign]

        async def cancelled() -> None:
            task = asyncio.create_task(search.asearch(QUERY))
            await asyncio.to_thread(asked.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(cancelled())  # which waits for its threads
        assert account.spent == pytest.approx(6)


class TestVersions:
    def test_insert_and_delete(self, account: Account) -> None:
        """An insert and a delete make new versions, charged to the same name."""
        store = Memory()
        search = PrivateSearch(store, epsilon=20, mode="query", ledger=account)
        assert search.version == 0
        assert search.search(QUERY, 1).version == 1
        store.put("new", QUERY)
        hits = search.search(QUERY, 1)
        assert (hits.ids, hits.version, search.version) == (("new",), 2, 2)
        assert len(search.ids) == N + 1
        store.remove("new")
        assert "new" not in search.search(QUERY, N).ids
        assert search.version == 3
        assert account.spent == pytest.approx(60)

    def test_refresh(self) -> None:
        """An index answers from the records it was made of until it is refreshed."""
        store = Memory()
        search = PrivateSearch(store, epsilon=300, max_epsilon=600)
        assert search.stale is False
        store.put("new", QUERY)
        assert search.stale is True
        assert "new" not in search.search(QUERY, N + 1).ids
        assert search.version == 1
        search.refresh()
        assert search.stale is False
        assert search.search(QUERY, 1).ids == ("new",)
        assert search.version == 2

    def test_refresh_over_limit(self, account: Account) -> None:
        """A refresh over the limit leaves the index stale, and drops the vectors."""
        pinned = PinnedStore(Memory(), pin="copy")
        search = PrivateSearch(pinned, epsilon=60, ledger=account)
        pinned.store.put("new", QUERY)  # type: ignore[attr-defined]
        with pytest.raises(BudgetExceeded):
            search.refresh()
        assert search.stale is True
        assert pinned._snapshot is None
        assert len(search.search(QUERY, 2 * N)) == N

    def test_shared_pinned_store(self) -> None:
        """A search does not make another search of the same pinned store fresh."""
        pinned = PinnedStore(Memory(), pin="copy")
        index = PrivateSearch(pinned, epsilon=5)
        query = PrivateSearch(pinned, epsilon=5, mode="query", rng=1)
        assert index.stale is False
        pinned.store.put("new", QUERY)  # type: ignore[attr-defined]
        query.search(QUERY)
        assert index.stale is True
        assert query.stale is False

    def test_vectors_dropped(self) -> None:
        """An index that is made keeps no clean vector."""
        pinned = PinnedStore(Memory(), pin="copy")
        held = weakref.ref(pinned.take_snapshot().rows)  # type: ignore[arg-type]
        assert held() is not None
        search = PrivateSearch(pinned, epsilon=5)
        gc.collect()
        assert held() is None
        assert search.search(QUERY, 3).version == 1

    def test_refresh_query_mode(self) -> None:
        """Only an index is refreshed."""
        with pytest.raises(InvalidInput, match="Only an index with a store is refreshed"):
            make_search("query").refresh()


class TestPostProcessing:
    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_hide(self, mode: str) -> None:
        options = {"refine": 0.5} if mode == "screening" else {}
        plain = make_search(mode, **options).search(QUERY, N).ids
        search = make_search(mode, **options)
        search.hide(plain[:2])
        search.hide({plain[4]})
        assert search.search(QUERY, N).ids == tuple(one for one in plain if one not in {*plain[:2], plain[4]})
        assert search.search(QUERY, 1).ids[0] not in plain[:2] or mode != "index"

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    @pytest.mark.parametrize("ids", [["3"], [999], [3, 80], [None]])
    def test_hide_unknown(self, mode: str, ids: Any) -> None:
        """An unknown id raises an error, and hides nothing."""
        extra = {"threshold": 0.3} if mode == "screening" else {}
        search = PrivateSearch(ROWS, epsilon=8, mode=mode, rng=1, **extra)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"hide\(\) found no record .*; ids are those of 'ids'"):
            search.hide(ids)
        assert search._search.hidden == frozenset()
        search.hide(np.array([3]))
        search.hide([3, 4])
        assert {3, 4}.isdisjoint(search.search(QUERY, N).ids)

    @pytest.mark.parametrize("ids", ["doc-1", 5, None, [[1]], b"x"])
    def test_hide_takes_a_list(self, ids: Any) -> None:
        with pytest.raises(InvalidInput, match=r"'ids' parameter of PrivateSearch\.hide must be a list of ids"):
            make_search("query").hide(ids)

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_where(self, mode: str) -> None:
        """A filter keeps the k best of the records that pass it."""
        options = {"refine": 0.5} if mode == "screening" else {}
        passing = set(IDS[::3])
        plain = make_search(mode, **options).search(QUERY, N).ids
        found = make_search(mode, **options).search(QUERY, 4, where=passing.__contains__)
        assert found.ids == tuple(one for one in plain if one in passing)[:4]
        assert len(make_search(mode, **options).search(QUERY, 4, where=lambda _: False)) == 0

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_threshold(self, mode: str) -> None:
        """A threshold cuts released scores."""
        options = {"refine": 0.5} if mode == "screening" else {}
        plain = make_search(mode, **options).search(QUERY, N)
        assert plain.noisy is not None
        cut = float(np.median(plain.noisy))
        found = make_search(mode, **options).search(QUERY, N, threshold=cut)
        assert found.noisy is not None
        assert len(found) == (plain.noisy >= cut).sum() < len(plain)
        assert set(found.ids) == {one for one, value in zip(plain.ids, plain.noisy, strict=True) if value >= cut}
        assert (
            len(make_search(mode, **options).search(QUERY, N, threshold=cut, where=lambda one: one == found.ids[1]))
            == 1
        )

    def test_noisy_threshold(self) -> None:
        """At a small budget records of every true score pass: cutting before the release would leave only the best."""
        search = PrivateSearch(ROWS, epsilon=0.5, mode="query", rng=1)
        passed = [hits.ids for hits in search.search_batch(np.tile(QUERY, (40, 1)), N, threshold=0.5)]
        counts = np.bincount(np.concatenate(passed).astype(int), minlength=N)
        assert counts.min() > 0
        assert CLEAN.min() < -0.3

    def test_screening_threshold(self, account: Account) -> None:
        """Screening without refine has no scores that a threshold could cut."""
        search = PrivateSearch(ROWS, epsilon=1, mode="screening", threshold=0.2, ledger=account)
        with pytest.raises(InvalidInput, match="releases no scores that a threshold could cut"):
            search.search(QUERY, threshold=0.5)
        assert account.spent == 0

    def test_facts(self, account: Account) -> None:
        """The facts about a guarantee are public and fit into JSON."""
        search = PrivateSearch(ROWS, epsilon=3, mode="query", mechanism="staircase", ledger=account)
        facts = json.loads(json.dumps(search.facts(search.search(QUERY))))
        assert facts.pop("worth")["recall"] == pytest.approx(search.worth.recall, abs=1e-4)
        assert facts == {
            "mode": "query", "covers": "this query", "epsilon": 3.0, "delta": 0.0, "mechanism": "staircase",
            "adjacency": "replacement", "sampler": "exact", "version": 1,
        }  # fmt: skip
        search = PrivateSearch(ROWS, epsilon=3)
        assert search.facts(search.search(QUERY))["covers"] == "every query to this index"


PEOPLE = {one: f"person {number // 4}" for number, one in enumerate(IDS)}


class TestIdentities:
    @pytest.mark.parametrize("of", [PEOPLE, PEOPLE.__getitem__])
    def test_identities(self, of: Any) -> None:
        """An identity protects all records of one person."""
        hits = make_search("query", delta=1e-6, mechanism="gaussian", identity_of=of).search(QUERY, 3)
        labels = np.array([PEOPLE[one] for one in IDS])
        release = release_scores(
            _read_unit_rows(), QUERY, epsilon=8.0, delta=1e-6, adjacency=Identity(labels), rng=np.random.default_rng(5)
        )
        assert hits.guarantee == release.guarantee
        assert hits.guarantee.sensitivity == pytest.approx(2 * np.sqrt(4), rel=1e-4)
        assert hits.ids == tuple(IDS[i] for i in release.top_k(3))

    @pytest.mark.parametrize("mode", ["query", "index"])
    def test_centroids(self, mode: str) -> None:
        """With centroids, hits are identities."""
        search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=300, mode=mode, rng=1, identity_of=PEOPLE, centroids=True)
        assert search.ids == tuple(sorted(set(PEOPLE.values())))
        unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
        means = {name: unit[[PEOPLE[one] == name for one in IDS]].mean(axis=0) for name in search.ids}
        truth = {name: mean @ UNIT / np.linalg.norm(mean) for name, mean in means.items()}
        hits = search.search(QUERY, 20)
        assert hits.noisy is not None
        assert set(hits.ids) == set(truth)
        np.testing.assert_allclose(hits.noisy, [truth[one] for one in hits.ids], atol=0.15)
        assert hits.guarantee.adjacency.to_dict()["kind"] == "identity"

    def test_identity_function(self) -> None:
        """A function of identities is called once per version."""
        asked: list[str] = []
        store = Memory()
        of = lambda one: asked.append(one) or PEOPLE.get(one, "new person")  # type: ignore[func-returns-value] # noqa: E731
        search = PrivateSearch(store, epsilon=8, delta=1e-6, mode="query", rng=1, identity_of=of)
        search.search(QUERY)
        search.search(QUERY)
        assert asked == IDS
        store.put("new", QUERY)
        search.search(QUERY)
        assert asked == [*IDS, *IDS, "new"]

    def test_pure_noise_identities(self, account: Account) -> None:
        """Said at once where the store can be read, and at the first query where it could not be."""
        options: dict[str, Any] = {"epsilon": 1, "ledger": account, "identity_of": PEOPLE}
        for mode in (
            {"mode": "query", "mechanism": "staircase"},
            {"mode": "query"},
            {"mode": "screening", "threshold": 0.3},
        ):
            with pytest.raises(InvalidInput, match=r"one record moves one score|several records|centroids"):
                PrivateSearch(ArrayStore(ROWS, IDS), **options, **mode)
        store = Memory()
        store.fails_at = 1
        search = PrivateSearch(store, **options, mode="query", mechanism="staircase")
        with pytest.raises(InvalidInput, match="private only if one record moves one score"):
            search.search(QUERY)
        assert account.spent == 0
        PrivateSearch(ArrayStore(ROWS, IDS), **(options | {"identity_of": str}), mode="query").search(QUERY)
        PrivateSearch(ArrayStore(ROWS, IDS), **options, mode="screening", threshold=0.3, centroids=True)

    @pytest.mark.parametrize("centroids", [True, False])
    def test_identity_mapping(self, centroids: bool) -> None:
        """A mapping of identities is read for each release."""
        of = dict(PEOPLE)
        search = make_search("query", delta=1e-6, mechanism="gaussian", identity_of=of, centroids=centroids)
        assert search.search(QUERY).guarantee.adjacency.identities == 20  # type: ignore[union-attr]
        of[IDS[4]] = "person 0"
        again = search.search(QUERY).guarantee
        assert (again.adjacency.identities, again.adjacency.largest) == (20, 1 if centroids else 5)  # type: ignore[union-attr]
        of[IDS[5]] = "someone else"
        assert search.search(QUERY).guarantee.adjacency.identities == 21  # type: ignore[union-attr]
        assert len(search.ids) == (21 if centroids else N)

    @pytest.mark.parametrize("label", [[1, 2], None, 1.5])
    def test_bad_labels(self, label: Any) -> None:
        """Labels that cannot be compared raise an error."""
        with pytest.raises(InvalidInput, match=r"'labels' parameter|does not give the identity"):
            make_search("query", identity_of=lambda one: [1] if one == IDS[0] else label).search(QUERY)

    @pytest.mark.parametrize("of", [{}, {IDS[0]: "a"}, lambda _: 1 / 0])
    def test_someone_is_missing(self, of: Any) -> None:
        with pytest.raises(InvalidInput, match="'identity_of' does not give the identity of every id"):
            make_search("query", identity_of=of).search(QUERY)

    @pytest.mark.parametrize("mode", ["index", "query", "screening"])
    def test_cancelling_records(self, account: Account, mode: str) -> None:
        """Their centroid is the first basis vector; an error would tell them from their neighbours."""
        rows = np.vstack([ROWS[:2], -ROWS[:2]])
        options: dict[str, Any] = {"threshold": 0.1} if mode == "screening" else {}
        options |= {"identity_of": lambda one: one % 2, "centroids": True}
        hits = PrivateSearch(rows, epsilon=1, mode=mode, ledger=account, **options).search(QUERY)
        assert len(hits) <= 2
        assert account.spent == pytest.approx(1)


def _options(**given: Any) -> dict[str, Any]:
    return {"epsilon": 1, "mode": "query", "rng": 1} | given


BAD_OPTIONS = [
    ({"mode": "all"}, "'mode' parameter of PrivateSearch must be one of 'index', 'query', 'screening'"),
    ({"mode": None}, "'mode' parameter"),
    ({"epsilon": 0}, "'epsilon' parameter"),
    ({"epsilon": None}, "'epsilon' parameter"),
    ({"epsilon": float("nan")}, "'epsilon' parameter"),
    ({"delta": 1}, "'delta' parameter"),
    ({"delta": "0"}, "'delta' parameter"),
    ({"threshold": 0.5}, "A 'threshold' is for mode='screening' alone"),
    ({"mode": "screening"}, "Mode 'screening' needs a 'threshold'"),
    ({"mode": "screening", "threshold": 2}, "'threshold' parameter"),
    ({"mode": "screening", "threshold": "x"}, "'threshold' parameter"),
    ({"mode": "screening", "threshold": 0.1, "refine": 1}, "'refine' parameter"),
    ({"mode": "screening", "threshold": 0.1, "refine": "x"}, "'refine' parameter"),
    ({"mode": "screening", "threshold": 0.1, "mechanism": "gaussian"}, "leave 'mechanism' out"),
    ({"mode": "screening", "threshold": 0.1, "delta": 1e-6}, "'delta' parameter of PrivateSearch must be 0"),
    ({"refine": 0.5}, "'refine' is for mode='screening'"),
    ({"mechanism": "gaussian"}, "'delta' parameter of PrivateSearch must be above 0"),
    ({"mechanism": "staircase", "delta": 1e-6}, "'delta' parameter of PrivateSearch must be 0"),
    ({"mechanism": "privunit"}, "'mechanism' parameter"),
    ({"mechanism": 3}, "'mechanism' parameter"),
    ({"mode": "index", "mechanism": "staircase"}, "'mechanism' parameter"),
    ({"score_range": (0, 2)}, "'score_range' parameter"),
    ({"score_range": None}, "'score_range' parameter"),
    ({"mode": "index", "score_range": None}, "'score_range' parameter"),
    ({"mode": "index", "score_range": (0, 1)}, "An index has no score range"),
    ({"components": 4}, "'components' and 'file' are for mode='index'"),
    ({"file": "x.npz"}, "'components' and 'file' are for mode='index'"),
    ({"mode": "index", "components": 0}, "'components' parameter"),
    ({"centroids": True}, "give the identity of each id with 'identity_of'"),
    ({"centroids": 1, "identity_of": {}}, "'centroids' parameter"),
    ({"identity_of": 5}, "'identity_of' parameter"),
    ({"rng": -1}, "'rng' parameter"),
    ({"rng": True}, "'rng' parameter"),
    ({"rng": "1"}, "'rng' parameter"),
    ({"pin": "none"}, "'pin' parameter"),
    ({"pin": "view"}, "gives no view of its vectors"),
    ({"check_every": -1}, "'check_every' parameter"),
]


class TestBadInput:
    @pytest.mark.parametrize(("given", "says"), BAD_OPTIONS)
    def test_options(self, given: dict[str, Any], says: str) -> None:
        """Refused before the store is read."""
        store = Memory()
        store.close()
        source: Any = ROWS if given.get("mode") == "index" else store
        with pytest.raises(InvalidInput, match=says):
            PrivateSearch(source, **_options(**given))

    @pytest.mark.parametrize("store", [None, 5, object(), {}])
    def test_no_store(self, store: Any) -> None:
        with pytest.raises(InvalidInput, match="'store' parameter of PrivateSearch must be a store"):
            PrivateSearch(store, epsilon=1)

    @pytest.mark.parametrize("store", ["rows", [], np.ones(3), np.empty((0, 3)), [["a"]]])
    def test_no_embeddings(self, store: Any) -> None:
        with pytest.raises(InvalidInput, match=r"two-dimensional array|must be a \.npy"):
            PrivateSearch(store, epsilon=1)

    @pytest.mark.parametrize("mode", ["index", "query"])
    @pytest.mark.parametrize(
        "query", [None, "text", 5, [], [1.0], np.full(DIMENSION, np.nan), np.zeros(DIMENSION), np.ones((2, 3))]
    )
    def test_queries(self, mode: str, query: Any) -> None:
        with pytest.raises(InvalidInput, match="query"):
            make_search(mode).search(query)
        with pytest.raises(InvalidInput, match="query"):
            make_search(mode).search_batch(query)

    def test_one_query(self) -> None:
        """search() takes one query."""
        with pytest.raises(InvalidInput, match="search takes one query; search_batch takes several"):
            make_search("query").search(QUERIES)

    @pytest.mark.parametrize("mode", ["index", "query"])
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"k": 0}, "'k' parameter"),
            ({"k": 2.5}, "'k' parameter"),
            ({"threshold": float("nan")}, "'threshold' parameter"),
            ({"threshold": "0.5"}, "'threshold' parameter"),
            ({"where": "doc-1"}, "'where' parameter"),
        ],
    )
    def test_what_is_wanted(self, mode: str, given: dict[str, Any], says: str) -> None:
        with pytest.raises(InvalidInput, match=says):
            make_search(mode).search(QUERY, **given)

    def test_no_default_epsilon(self) -> None:
        with pytest.raises(TypeError, match="epsilon"):
            PrivateSearch(ROWS)  # type: ignore[call-arg]

    @pytest.mark.parametrize("mode", ["index", "query"])
    def test_bad_rows(self, mode: str, account: Account) -> None:
        rows = ROWS.copy()
        rows[5, 2] = np.nan
        with pytest.raises(StoreError, match="vectors that are not finite numbers; nothing was released"):
            PrivateSearch(rows, epsilon=1, mode=mode, ledger=account).search(QUERY)
        assert account.spent == 0

    def test_a_row_that_goes_bad_in_a_view(self, account: Account, tmp_path: Path) -> None:
        """The release's own complaint names the row; whoever searches does not read it."""
        np.save(tmp_path / "rows.npy", ROWS)
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r+")
        search = PrivateSearch(mapped, epsilon=1, mode="query", mechanism="staircase", ledger=account)
        search.search(QUERY)
        mapped[5] = np.nan
        with pytest.raises(StoreError, match="holds vectors that cannot be scored; nothing was released") as caught:
            search.search(QUERY)
        assert "5" not in str(caught.value)
        assert account.spent == pytest.approx(1)
        _assert_no_arrays(caught.value)


class TestTotal:
    """Without a ledger, an index and its refreshes stay within what the caller allowed."""

    def test_default_limit(self) -> None:
        """Without max_epsilon one index is allowed."""
        store = Memory()
        search = PrivateSearch(store, epsilon=3)
        assert search.spent == 3
        before = search.search(QUERY, N)
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="Give a ledger, which keeps the total, or allow more") as caught:
                search.refresh()
        assert (caught.value.spent, caught.value.asked, caught.value.limit) == (3, 3, 3)
        _assert_no_arrays(caught.value)
        assert (search.version, search.spent) == (1, 3)
        np.testing.assert_array_equal(search.search(QUERY, N).noisy, before.noisy)

    def test_pure_limit(self) -> None:
        """Pure indexes add up to the limit and not beyond."""
        search = PrivateSearch(Memory(), epsilon=3, max_epsilon=10)
        for total in (6, 9):
            search.refresh()
            assert search.spent == total
            assert f"total epsilon {total}>" in repr(search)
            assert search.facts(search.search(QUERY))["total_epsilon"] == total
        with pytest.raises(BudgetExceeded):
            search.refresh()
        assert search.spent == 9

    @pytest.mark.parametrize("options", [{"mechanism": "gaussian"}, {"reduction": "pca", "components": 3}], ids=str)
    def test_gaussian_limit(self, options: dict[str, Any]) -> None:
        """Gaussian indexes compose within the limit."""
        search = PrivateSearch(Memory(), epsilon=1, delta=1e-6, max_epsilon=4, **options)
        assert search.spent <= 1.001
        search.refresh()
        both = compose([search.guarantee, search.guarantee]).epsilon_at(1e-6)
        assert both * (1 - 1e-9) <= search.spent <= 1.2 * both
        made = 2
        with contextlib.suppress(BudgetExceeded):
            while made < 100:
                search.refresh()
                made += 1
        assert 2 < made < 16
        assert search.spent <= 4

    def test_mean_of_refreshes(self) -> None:
        """400 refreshes averaged to a correlation of 0.997 with the clean vectors; now there is one index."""
        search = PrivateSearch(ROWS, epsilon=4)
        seen = [search._search.index.release.vectors.copy()]  # type: ignore[union-attr]
        for _ in range(400):
            with contextlib.suppress(BudgetExceeded):
                search.refresh()
                seen.append(search._search.index.release.vectors.copy())  # type: ignore[union-attr]
        assert len(seen) == 1

    def test_shared_file(self, tmp_path: Path) -> None:
        """The total in a file survives a restart, and processes share it."""
        options: dict[str, Any] = {"epsilon": 3, "max_epsilon": 9, "file": tmp_path / "index.npz"}
        one, other = (PrivateSearch(Memory(), **options) for _ in range(2))
        one.refresh()
        assert (one.spent, other.spent) == (6, 3)
        other.refresh()  # it reads what the other one spent
        assert other.spent == 9
        again = PrivateSearch(Memory(), **options)
        assert again.spent == PrivateSearch.load(options["file"]).spent == 9
        for search in (one, other, again):
            with pytest.raises(BudgetExceeded):
                search.refresh()
        again.hide(IDS[:1])  # which writes the ids anew
        again.save(tmp_path / "copy.npz")
        assert PrivateSearch.load(tmp_path / "copy.npz").spent == PrivateSearch.load(options["file"]).spent == 9

    def test_format_without_total(self, tmp_path: Path) -> None:
        """A file without a total counts its own index."""
        path, beside = tmp_path / "index.npz", tmp_path / "index.ids.json"
        PrivateSearch(Memory(), epsilon=3, file=path)
        totals.locate_total(path).unlink()
        facts = json.loads(beside.read_text())
        del facts["charged"], facts["format"], facts["index"]
        facts |= {"format": 2, "index": index_files._hash_index(index_files.read_index(path).release, facts)}
        beside.write_text(json.dumps(facts))
        search = PrivateSearch(Memory(), epsilon=3, file=path)
        assert search.spent == 3
        with pytest.raises(BudgetExceeded):
            search.refresh()
        facts["format"] = 3  # a total that was cut out by hand
        beside.write_text(json.dumps(facts))
        with pytest.raises(InvalidInput, match="does not hold the ids"):
            PrivateSearch.load(path)

    def test_ledger_limit(self, account: Account, tmp_path: Path) -> None:
        """With a ledger, the ledger's limit counts."""
        path = tmp_path / "index.npz"
        search = PrivateSearch(Memory(), epsilon=3, ledger=account, file=path)
        search.refresh()
        assert search.spent == account.spent == pytest.approx(6)
        without = PrivateSearch(Memory(), epsilon=3, file=path)  # opened without the ledger, it keeps the total
        with pytest.raises(BudgetExceeded):
            without.refresh()

    def test_research_total(self) -> None:
        """Research mode counts nothing."""
        search = PrivateSearch(ROWS, epsilon=3, rng=1)
        search.refresh()
        assert (search.spent, search.version) == (0, 2)
        with pytest.raises(InvalidInput, match="the ledger keeps the total"):
            _ = make_search("query").spent

    @pytest.mark.parametrize("limit", [2.9, 0, -1, float("nan"), float("inf"), "10", True, 2e9])
    def test_bad_limits(self, limit: Any) -> None:
        with pytest.raises(InvalidInput, match="'max_epsilon'"):
            PrivateSearch(ROWS, epsilon=3, max_epsilon=limit)

    def test_no_limit(self, account: Account) -> None:
        """max_epsilon is for an index without a ledger."""
        for options in ({"ledger": account}, {"mode": "query", "ledger": account}, {"mode": "query", "rng": 1}):
            with pytest.raises(InvalidInput, match="'max_epsilon' is for"):
                PrivateSearch(ROWS, epsilon=3, max_epsilon=9, **options)


class TestFiles:
    def test_saved_and_loaded(self, tmp_path: Path) -> None:
        search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=9)
        search.save(tmp_path / "index.npz")
        found = PrivateSearch.load(tmp_path / "index.npz")
        assert (found.ids, found.version, found.guarantee) == (search.ids, search.version, search.guarantee)
        for k, options in ((5, {}), (N, {"threshold": 0.1}), (3, {"where": lambda one: one > "doc-5"})):
            a, b = (one.search(QUERY, k, **options) for one in (search, found))  # type: ignore[arg-type]
            assert a.ids == b.ids
            np.testing.assert_array_equal(a.noisy, b.noisy)
        assert found.stale is None
        assert repr(found) == "<PrivateSearch of a saved index: mode 'index', version 1, total epsilon 9>"
        found.hide(IDS[:1])
        assert IDS[0] not in found.search(QUERY, N).ids
        with pytest.raises(InvalidInput, match="Only an index with a store is refreshed"):
            found.refresh()

    def test_no_clean_vector(self, tmp_path: Path) -> None:
        """The files of an index hold no clean vector."""
        PrivateSearch(ArrayStore(ROWS, IDS), epsilon=9).save(tmp_path / "index.npz")
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        clean = _read_unit_rows()
        assert not any(row.tobytes() in content for row in np.vstack([ROWS, clean]))

    def test_file_once(self, tmp_path: Path, account: Account) -> None:
        """The first search makes the file, and later ones read it at no cost."""
        path = tmp_path / "index.npz"
        options: dict[str, Any] = {"epsilon": 9, "ledger": account, "file": path}
        first = PrivateSearch(Memory(), **options)
        assert first.stale is False
        broken = Memory()
        broken.close()
        again = PrivateSearch(broken, **options)
        assert account.spent == pytest.approx(9)
        assert again.search(QUERY, 5).ids == first.search(QUERY, 5).ids
        assert again.stale is None
        fresh = PrivateSearch(Memory(), **options)
        fresh.refresh()
        assert (fresh.version, fresh.stale, account.spent) == (2, False, pytest.approx(18))

    @pytest.mark.parametrize(
        ("other", "says"),
        [
            ({"epsilon": 8}, r"holds an index at \(9, 0\), and \(8, 0\) was requested"),
            ({"store": ROWS[:, :6]}, "of another dimension than the store"),
            ({"components": 5}, "with another number of components"),
            ({"mechanism": "gaussian"}, "with another mechanism or adjacency"),
            ({"identity_of": PEOPLE}, "with another mechanism or adjacency"),
            ({"rng": 3}, "by the exact sampler, and another was requested"),
        ],
    )
    def test_other_request(self, tmp_path: Path, other: dict[str, Any], says: str) -> None:
        """A saved index that does not match the request raises an error."""
        path = tmp_path / "index.npz"
        PrivateSearch(ROWS, epsilon=9, file=path)
        before = path.read_bytes()
        store = other.pop("store", ROWS)
        with pytest.raises(InvalidInput, match=says):
            PrivateSearch(store, **({"epsilon": 9, "file": path} | other))
        assert path.read_bytes() == before

    def test_research_index(self, tmp_path: Path) -> None:
        """A research index is not loaded as a private one."""
        PrivateSearch(ROWS, epsilon=9, file=tmp_path / "index.npz", rng=1)
        with pytest.raises(InvalidInput, match="by the research sampler, and another was requested"):
            PrivateSearch(ROWS, epsilon=9, file=tmp_path / "index.npz")

    def test_other_adjacency(self, tmp_path: Path) -> None:
        """An index of records is not loaded as one of centroids."""
        store = ArrayStore(ROWS, IDS)
        PrivateSearch(store, epsilon=9, file=tmp_path / "index.npz", identity_of=PEOPLE)
        with pytest.raises(InvalidInput, match="with another mechanism or adjacency"):
            PrivateSearch(store, epsilon=9, file=tmp_path / "index.npz", identity_of=PEOPLE, centroids=True)

    @pytest.mark.parametrize("part", ["index.npz", "index.ids.json"])
    @pytest.mark.parametrize("harm", ["gone", "empty", "cut", "garbage"])
    def test_damaged(self, tmp_path: Path, part: str, harm: str, account: Account) -> None:
        path = tmp_path / "index.npz"
        PrivateSearch(ROWS, epsilon=9, file=path)
        content = (tmp_path / part).read_bytes()
        (tmp_path / part).unlink()
        if harm != "gone":
            (tmp_path / part).write_bytes(
                {"empty": b"", "cut": content[: len(content) // 2], "garbage": b"\xff" * 99}[harm]
            )
        with pytest.raises((InvalidInput, FileError)) as caught:
            PrivateSearch.load(path)
        assert "index" in str(caught.value)
        assert "\n" not in str(caught.value)
        if part != "index.npz" or harm != "gone":
            with pytest.raises((InvalidInput, FileError)):
                PrivateSearch(ROWS, epsilon=9, file=path, ledger=account)
        assert account.spent == 0

    def test_foreign_ids(self, tmp_path: Path) -> None:
        """The ids of another index raise an error."""
        for name in ("one", "two"):
            PrivateSearch(ROWS, epsilon=9, file=tmp_path / f"{name}.npz")
        (tmp_path / "one.ids.json").write_bytes((tmp_path / "two.ids.json").read_bytes())
        with pytest.raises(InvalidInput, match=r"one\.ids\.json does not hold the ids of the index"):
            PrivateSearch.load(tmp_path / "one.npz")

    @pytest.mark.parametrize("change", [{"ids": [1]}, {"version": "x"}, {"format": 9}, {"index": "0"}, {"ids": 5}])
    def test_ids_that_do_not_fit(self, tmp_path: Path, change: dict[str, Any]) -> None:
        PrivateSearch(ROWS, epsilon=9, file=tmp_path / "index.npz")
        beside = tmp_path / "index.ids.json"
        beside.write_text(json.dumps(json.loads(beside.read_text()) | change))
        with pytest.raises(InvalidInput, match="does not hold the ids of the index"):
            PrivateSearch.load(tmp_path / "index.npz")

    def test_other_release(self, tmp_path: Path) -> None:
        """A release of another kind is no index."""
        release_scores(ROWS, QUERY, epsilon=1, mechanism="staircase").save(tmp_path / "scores.npz")
        with pytest.raises(InvalidInput, match="holds a scores release and no index"):
            PrivateSearch.load(tmp_path / "scores.npz")

    def test_unsavable(self, tmp_path: Path, account: Account) -> None:
        """An index that cannot be saved is not charged."""
        with pytest.raises(FileError, match="there is no folder"):
            PrivateSearch(ROWS, epsilon=9, ledger=account, file=tmp_path / "no" / "index.npz")
        odd = ArrayStore(ROWS, [(number,) for number in range(N)])
        with pytest.raises(InvalidInput, match="ids that are whole numbers or strings"):
            PrivateSearch(odd, epsilon=9, ledger=account, file=tmp_path / "index.npz")
        assert account.spent == 0
        assert [path.name for path in tmp_path.iterdir() if path.suffix != ".db"] == []

    def test_unwritable(self, tmp_path: Path, account: Account) -> None:
        """An index whose files cannot be written is not charged."""
        (tmp_path / "a.ids.json").mkdir()
        (tmp_path / "b.npz").mkdir()
        for name in ("a.npz", "b.npz", "x" * 300 + ".npz", "y" * 235 + ".npz", "no\0name"):
            with pytest.raises(FileError) as caught:
                PrivateSearch(ROWS, epsilon=9, ledger=account, file=tmp_path / name)
            assert "\n" not in str(caught.value)
        for file in (5, "", b"x"):
            with pytest.raises(InvalidInput, match="'file' parameter of PrivateSearch must be the path of a file"):
                PrivateSearch(ROWS, epsilon=9, ledger=account, file=file)  # type: ignore[arg-type]
        assert account.spent == 0
        assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".db") == ["a.ids.json", "b.npz"]

    def test_unsaved_index(self, tmp_path: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        """An index that was charged and could not be written is in the error, and can be saved."""
        path = tmp_path / "index.npz"

        def fail(*_: Any) -> None:
            raise FileError("Cannot write: the disk is full.")

        store = Memory()
        with monkeypatch.context() as full:
            full.setattr("scoreshield.search.index.write_index", fail)
            with pytest.raises(IndexNotSaved, match=r"disk is full\. The index has been made and charged") as caught:
                PrivateSearch(store, epsilon=9, ledger=account, file=path)
        _assert_no_arrays(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is FileError
        search: PrivateSearch = caught.value.search
        first = search.search(QUERY, N)
        search.save(path)
        np.testing.assert_array_equal(
            PrivateSearch(store, epsilon=9, ledger=account, file=path).search(QUERY, N).noisy, first.noisy
        )
        assert account.spent == pytest.approx(9)
        with pytest.raises(InvalidInput, match="Only an index with a store is refreshed"):
            search.refresh()  # an error that is kept somewhere must not lead to clean vectors
        search = PrivateSearch(store, epsilon=9, ledger=account, file=path)
        with monkeypatch.context() as full:
            full.setattr("scoreshield.search.index.write_index", fail)
            with pytest.raises(IndexNotSaved):
                search.refresh()
        assert (search.version, account.spent) == (2, pytest.approx(18))  # the new one answers, and can be saved
        search.save(path)
        assert PrivateSearch.load(path).version == 2

    def test_refresh_file(self, tmp_path: Path, account: Account) -> None:
        """A refresh writes the file."""
        store = Memory()
        options: dict[str, Any] = {"epsilon": 9, "ledger": account, "file": tmp_path / "index.npz"}
        search = PrivateSearch(store, **options)
        store.put("new", QUERY)
        search.refresh()
        again = PrivateSearch(store, **options)
        assert (again.version, len(again.ids), account.spent) == (2, N + 1, pytest.approx(18))
        np.testing.assert_array_equal(again.search(QUERY, N).noisy, search.search(QUERY, N).noisy)
        again.refresh()
        assert PrivateSearch.load(tmp_path / "index.npz").version == 3

    def test_hidden_file(self, tmp_path: Path) -> None:
        """Hidden records stay hidden in the file and in copies of it."""
        options: dict[str, Any] = {"epsilon": 9, "file": tmp_path / "index.npz", "max_epsilon": 18}
        one, other = (PrivateSearch(ArrayStore(ROWS, IDS), **options) for _ in range(2))
        before = (tmp_path / "index.npz").read_bytes()
        one.hide(IDS[:2])
        other.hide([IDS[5]])  # another process: both are kept
        assert (tmp_path / "index.npz").read_bytes() == before
        gone = {*IDS[:2], IDS[5]}
        for again in (PrivateSearch.load(options["file"]), PrivateSearch(ArrayStore(ROWS, IDS), **options)):
            assert set(again.search(QUERY, N).ids) == set(IDS) - gone
        one.refresh()
        assert set(one.search(QUERY, N).ids) == set(IDS) - gone
        one.save(tmp_path / "copy.npz")
        copied = PrivateSearch.load(tmp_path / "copy.npz")
        copied.hide(IDS[7:8])  # of a copy that was loaded: until it is saved
        assert set(PrivateSearch.load(tmp_path / "copy.npz").search(QUERY, N).ids) == set(IDS) - gone
        copied.save(tmp_path / "copy.npz")
        assert IDS[7] not in PrivateSearch.load(tmp_path / "copy.npz").search(QUERY, N).ids

    def test_smaller_identities(self, tmp_path: Path) -> None:
        """An index that protects smaller identities is not loaded."""
        options: dict[str, Any] = {"epsilon": 9, "file": tmp_path / "index.npz"}
        PrivateSearch(ROWS, identity_of=lambda one: one // 2, **options)
        for of in (lambda one: one % 2, lambda one: one, lambda one: min(one // 2, 30)):
            with pytest.raises(InvalidInput, match="protects 40 identities of up to 2 records, and 'identity_of' now"):
                PrivateSearch(ROWS, identity_of=of, **options)
        assert PrivateSearch(ROWS, identity_of=lambda one: one // 2, **options).stale is None

    def test_outgrown_index(self, tmp_path: Path) -> None:
        """A person with more records than the index protects raises an error."""
        store = Memory()
        options: dict[str, Any] = {"epsilon": 9, "file": tmp_path / "index.npz"}
        PrivateSearch(store, identity_of=PEOPLE, **options)
        store.put("new", QUERY)
        assert PrivateSearch(store, identity_of=PEOPLE | {"new": "new"}, **options).stale is True
        with pytest.raises(InvalidInput, match="up to 4 records, and 'identity_of' now gives 20 of up to 5"):
            PrivateSearch(store, identity_of=PEOPLE | {"new": "person 0"}, **options)
        broken = Memory()
        broken.close()
        with pytest.raises(StoreError, match="failed while giving its state"):
            PrivateSearch(broken, identity_of=PEOPLE, **options)

    def test_other_identities(self, tmp_path: Path) -> None:
        """Centroids of other identities raise an error."""
        options: dict[str, Any] = {"epsilon": 9, "file": tmp_path / "index.npz", "centroids": True}
        PrivateSearch(ArrayStore(ROWS, IDS), identity_of=PEOPLE, **options)
        assert PrivateSearch(ArrayStore(ROWS, IDS), identity_of=PEOPLE, **options).stale is None
        assert PrivateSearch(ArrayStore(ROWS[:40], IDS[:40]), identity_of=PEOPLE, **options).stale is True
        with pytest.raises(InvalidInput, match="names none of these records"):
            PrivateSearch(ArrayStore(ROWS, IDS), identity_of=str.upper, **options)

    def test_other_records(self, tmp_path: Path) -> None:
        """An index of other records raises an error."""
        path = tmp_path / "index.npz"
        PrivateSearch(ROWS, epsilon=9, file=path)
        with pytest.raises(InvalidInput, match="an index of 80 numbered rows, and now there are 5"):
            PrivateSearch(ROWS[:5], epsilon=9, file=path)
        with pytest.raises(InvalidInput, match="names none of these records; their ids must be what they were"):
            PrivateSearch(ArrayStore(ROWS, IDS), epsilon=9, file=path)
        longer = PrivateSearch(np.vstack([ROWS, ROWS]), epsilon=9, file=path)  # appended to
        assert (longer.stale, len(longer.ids)) == (True, N)

    def test_stale_on_start(self, tmp_path: Path) -> None:
        """Records that come and go between two starts make the index stale."""
        options: dict[str, Any] = {"epsilon": 9, "file": tmp_path / "index.npz", "max_epsilon": 18}
        store = Memory()
        PrivateSearch(store, **options)
        again = PrivateSearch(store, **options)
        assert again.stale is None
        assert again._search._records._snapshot is None  # no clean vector is kept
        store.token += 1
        assert again.stale is True
        assert PrivateSearch(store, **options).stale is None
        store.remove(IDS[3])
        assert PrivateSearch(store, **options).stale is True
        store.put(IDS[3], ROWS[3])
        assert PrivateSearch(store, **options).stale is None
        store.put("new", QUERY)
        found = PrivateSearch(store, **options)
        assert found.stale is True
        found.refresh()
        assert found.stale is False

    def test_ledger_of_index(self, tmp_path: Path, account: Account) -> None:
        """An index is opened with the ledger that was charged, or without one."""
        unpaid, paid = tmp_path / "unpaid.npz", tmp_path / "paid.npz"
        PrivateSearch(ROWS, epsilon=9, file=unpaid)
        PrivateSearch(ROWS, epsilon=9, file=paid, ledger=account)
        other = Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", epsilon=100, delta=0)
        PrivateSearch(ROWS, epsilon=9, file=tmp_path / "elsewhere.npz", ledger=other.account("people"))
        for path, ledger in ((unpaid, account), (paid, other.account("people"))):
            with pytest.raises(InvalidInput, match=r"that the ledger .* has no charge for"):
                PrivateSearch(ROWS, epsilon=9, file=path, ledger=ledger)
        with pytest.raises(InvalidInput, match="charged to 'people', and the ledger is given for 'others'"):
            PrivateSearch(ROWS, epsilon=9, file=paid, ledger=account.ledger.account("others"))
        PrivateSearch(ROWS, epsilon=9, file=paid)
        search = PrivateSearch(ROWS, epsilon=9, file=paid, ledger=account)
        search.save(unpaid)  # who paid goes with it
        PrivateSearch(ROWS, epsilon=9, file=unpaid, ledger=account)
        assert account.spent == pytest.approx(9)

    @pytest.mark.parametrize(
        "change",
        [
            {"ids": list(range(N))[::-1]}, {"ids": ["7"] * N}, {"ids": "a" * N}, {"ids": [None] * N},
            {"ids": [1.5] * N}, {"ids": [[1]] * N}, {"ids": [True, *range(1, N)]}, {"hidden": [1]}, {"hidden": None},
            {"hidden": [[1]]}, {"version": 2}, {"version": True}, {"paid": {"dataset": "a", "entry": "b"}},
            {"paid": {"x": 1}}, {"paid": "x"}, {"format": 1},
        ],
    )  # fmt: skip
    def test_edited_ids(self, tmp_path: Path, change: dict[str, Any]) -> None:
        """An edited file of ids raises an error."""
        PrivateSearch(ROWS, epsilon=9, file=tmp_path / "index.npz")
        beside = tmp_path / "index.ids.json"
        beside.write_text(json.dumps(json.loads(beside.read_text()) | change))
        with pytest.raises(InvalidInput, match=r"index\.ids\.json does not hold the ids of the index"):
            PrivateSearch.load(tmp_path / "index.npz")

    def test_repeated_ids(self, tmp_path: Path) -> None:
        """Repeated ids raise an error, also with the right hash."""
        path = tmp_path / "index.npz"
        PrivateSearch(ROWS, epsilon=9, file=path)
        saved = index_files.read_index(path)
        index_files.write_index(path, saved._replace(ids=tuple(range(N))[::-1]))
        assert PrivateSearch.load(path).ids == tuple(range(N))[::-1]
        for change in ({"ids": ("7",) * N}, {"ids": (1, *range(1, N))}, {"ids": saved.ids[1:]}):
            index_files.write_index(path, saved._replace(**change))  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="does not hold the ids of the index"):
                PrivateSearch.load(path)

    def test_save_query_mode(self, tmp_path: Path) -> None:
        """Only an index is saved."""
        with pytest.raises(InvalidInput, match="Only an index is saved"):
            make_search("query").save(tmp_path / "x.npz")
        with pytest.raises(InvalidInput, match="each query has its own guarantee"):
            _ = make_search("query").guarantee

    def test_numbers_as_ids(self, tmp_path: Path) -> None:
        """Ids that are numbers stay numbers in the files."""
        ids: list[Any] = [*range(N - 1), "last"]
        PrivateSearch(ArrayStore(ROWS, ids), epsilon=9, file=tmp_path / "index.npz")
        assert PrivateSearch.load(tmp_path / "index.npz").ids == tuple(ids)


def _assert_no_arrays(error: BaseException | None) -> None:
    """No frame, context or cause of an error holds scores, vectors or a store's own words."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if Path(frame.f_code.co_filename) == Path(__file__):
                continue
            for value in _list_values(frame.f_locals):
                if isinstance(value, np.ndarray) and value.size >= N:
                    pytest.fail(f"{frame.f_code.co_name} holds an array of shape {value.shape}")
        assert "clean" not in str(error)
        error = error.__cause__ or error.__context__


def _list_values(held: dict[str, Any]) -> list[Any]:
    """What an error tracker sees of a frame: its variables, what is in their lists and attributes, one level down."""
    found = list(held.values())
    for value in list(found):
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, list | tuple):
            found += value
        elif not isinstance(value, PrivateSearch | Memory | type) and hasattr(value, "__dict__"):
            found += vars(value).values()
    return found


class TestErrors:
    def test_near_miss(self) -> None:
        """The same search with frames left on: the check must fail on it."""
        search = PrivateSearch(ROWS, epsilon=1, mode="query", rng=1)
        wrong: Any = type("Wrong", (), {"k": math.inf, "threshold": None, "accepts_all": True})()
        with pytest.raises(InvalidInput) as caught:
            search._search.answer(UNIT[None], wrong)
        with pytest.raises(pytest.fail.Exception, match="holds an array of shape"):
            _assert_no_arrays(caught.value)

    def test_not_pickled(self) -> None:
        """Neither a search nor the object inside it is pickled."""
        for search in (make_search("index"), make_search("query")):
            for one in (search, search._search):
                with pytest.raises(InvalidInput, match="is not pickled; save"):
                    pickle.dumps(one)

    def test_repr_says_no_number(self) -> None:
        search = make_search("query")
        search.search(QUERY)
        assert repr(search) == "<PrivateSearch of the array: mode 'query', version 1>"

    @pytest.mark.parametrize(
        "options", [{"epsilon": 0}, {"mode": 5}, {"file": 5}, {"check_every": -1}, {"epsilon": 1e9}]
    )
    def test_failed_repr(self, options: dict[str, Any]) -> None:
        """An object whose constructor failed has a repr."""
        search = PrivateSearch.__new__(PrivateSearch)
        assert repr(search) == "<PrivateSearch of nothing yet: mode None, version 0>"
        with contextlib.suppress(InvalidInput):
            search.__init__(Memory(), **({"epsilon": 1, "mode": "query", "rng": 1} | options))  # type: ignore[misc]
        assert repr(search).startswith("<PrivateSearch of ")

    def test_lazy_store(self) -> None:
        """A store is recognised without reading it."""

        class Costly(Memory):
            @property
            def dimension(self) -> int:  # type: ignore[override]
                raise AssertionError("it was read")

        store = Costly()
        store.close()
        PrivateSearch(store, epsilon=1, mode="query", rng=1)

    def test_releases_scores(self, tmp_path: Path) -> None:
        assert [make_search(mode).releases_scores for mode in ("index", "query", "screening")] == [True, True, False]
        assert make_search("screening", refine=0.5).releases_scores
        make_search("index").save(tmp_path / "index.npz")
        assert PrivateSearch.load(tmp_path / "index.npz").releases_scores

    @pytest.mark.parametrize(
        "ask",
        [
            lambda search: search.search(QUERY),
            lambda search: search.search_batch(QUERIES),
            lambda search: search.ids,
            lambda search: asyncio.run(search.asearch(QUERY)),
        ],
    )
    @pytest.mark.parametrize("fault", ["convention", "twice", "nan", "lost"])
    def test_query_errors(self, ask: Callable[[PrivateSearch], Any], fault: str, account: Account) -> None:
        """The errors of a query hold no clean score."""
        store = Memory()
        if fault == "convention":
            store.convention = Convention.SQUARED_L2
        elif fault == "twice":
            store.ids[1] = store.ids[0]
        elif fault == "nan":
            store.rows[3] = np.nan
        else:
            store.fails_at = 1
        search = PrivateSearch(store, epsilon=1, mode="query", ledger=account)
        with pytest.raises(StoreError) as caught:
            ask(search)
        _assert_no_arrays(caught.value)
        assert account.spent == 0

    def test_index_errors(self) -> None:
        """The errors of an index hold no clean vector."""
        store = Memory()
        store.convention = Convention.SQUARED_L2
        with pytest.raises(StoreError) as caught:
            PrivateSearch(store, epsilon=1)
        _assert_no_arrays(caught.value)
        store = Memory()
        search = PrivateSearch(store, epsilon=1)
        store.put("new", np.full(DIMENSION, np.nan))
        with pytest.raises(StoreError) as caught:
            search.refresh()
        _assert_no_arrays(caught.value)
        assert search.search(QUERY, 3).version == 1  # the old one answers on

    def test_failing_dimension(self) -> None:
        """A store that fails to give its dimension raises a StoreError."""

        class Broken(Memory):
            @property
            def dimension(self) -> int:  # type: ignore[override]
                if self.token == 2:
                    raise ConnectionError("clean 0.1234567")
                return DIMENSION

        search = PrivateSearch(Broken(), epsilon=1, mode="query", rng=1)
        search._search._records.store.token = 2  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match=r"failed while giving its dimension \(ConnectionError\)") as caught:
            search.search(QUERY)
        _assert_no_arrays(caught.value)


class TestConcurrency:
    def test_threads(self, account: Account) -> None:
        search = PrivateSearch(Memory(), epsilon=1, mode="query", mechanism="staircase", ledger=account)
        found: list[Hits] = []
        threads = [threading.Thread(target=lambda: found.append(search.search(QUERY, 5))) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 12
        assert {hits.version for hits in found} == {1}
        assert account.spent == pytest.approx(12)

    def test_atomic_refresh(self) -> None:
        """While others search, refreshes change the number of records: ids always are those of the index."""
        store = Memory()
        search = PrivateSearch(store, epsilon=500, max_epsilon=1e6)
        stop, wrong = threading.Event(), []

        def work() -> None:
            while not stop.is_set():
                hits = search.search(QUERY, 200)
                expected = N + hits.version - 1
                if len(hits) != expected or len(set(hits.ids)) != expected:
                    wrong.append((hits.version, len(hits)))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(15):
            store.put(f"new {number}", ROWS[number])
            search.refresh()
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert search.version == 16

    def test_concurrent_start(self, tmp_path: Path, account: Account) -> None:
        """Of several searches that start with one file, one is charged."""
        found: list[PrivateSearch] = []
        options: dict[str, Any] = {"epsilon": 9, "ledger": account, "file": tmp_path / "index.npz"}
        threads = [threading.Thread(target=lambda: found.append(PrivateSearch(Memory(), **options))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert account.spent == pytest.approx(9)
        assert len({one.search(QUERY, N).noisy.tobytes() for one in found}) == 1  # type: ignore[union-attr]
        assert len(found) == 6
        assert {path.name for path in tmp_path.iterdir()} == {
            "index.npz", "index.ids.json", "index.total.json", "ledger.db",
        }  # fmt: skip

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no such lock")
    def test_process_waits(self, tmp_path: Path) -> None:
        """It is started while the lock is held and no file is there; it finds the one that was made meanwhile."""
        path = tmp_path / "index.npz"
        code = (
            "import sys, numpy as np; from scoreshield.search import PrivateSearch; print('ready', flush=True);"
            f"made = PrivateSearch(np.ones(({N}, {DIMENSION})), epsilon=9, file=sys.argv[1]); print(made.version)"
        )
        with index_files.lock_index(path):
            other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.3)
            made = PrivateSearch(ROWS, epsilon=9)
            inner: Any = made._search
            inner.index = inner.index._replace(version=7)
            index_files.write_index(path, inner.make_saved())
        assert other.communicate(timeout=60)[0] == "7\n"
        assert other.returncode == 0

    def test_no_lock_file(self, tmp_path: Path, account: Account) -> None:
        """Where no lock file can be made, an existing index is read and none is made."""
        PrivateSearch(ROWS, epsilon=9, file=tmp_path / "index.npz")
        for name in ("index", "other"):
            (tmp_path / f".{name}.npz.lock").mkdir()
        assert PrivateSearch(ROWS, epsilon=9, file=tmp_path / "index.npz").version == 1
        with pytest.raises(FileError, match=r"Cannot write .*other\.npz: .*; nothing was released"):
            PrivateSearch(ROWS, epsilon=9, file=tmp_path / "other.npz", ledger=account)
        assert account.spent == 0

    def test_async(self, account: Account) -> None:
        search = PrivateSearch(ROWS, epsilon=1, mode="query", ledger=account)

        async def both() -> Any:
            return await asyncio.gather(
                search.asearch(QUERY, 3, threshold=-5), search.asearch_batch(QUERIES, 2, where=lambda one: one < 40)
            )

        one, several = asyncio.run(both())
        assert len(one) == 3
        assert [max(hits.ids) < 40 for hits in several] == [True] * 3
        assert account.spent == pytest.approx(4)
