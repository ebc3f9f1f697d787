"""What every store's adapter must do, as tests to inherit.

A test file says in a class ``Test...(StoreChecks)`` how its store is filled, changed, opened and broken; everything
below then runs on the real package. Vectors are made by NumPy here, and cosines are recomputed by NumPy here.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from scoreshield.errors import StoreError
from scoreshield.geometry import embeddings
from scoreshield.privacy.ledger import Account, Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore, Convention, PinnedStore, Store

Float = NDArray[np.float64]

N, DIMENSION = 40, 8
#: What a broken store's own error says; nobody but the curator may read it.
MARKER = "text-of-the-store"
PINS = ("copy", "scores")
#: Values alike: what one says of a probe, the other says too.
_ALIKE = {Convention.COSINE, Convention.INNER_PRODUCT}


def unit(rows: Any) -> Float:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def cosines(rows: Any, query: Any) -> Float:
    """The second implementation that stores are compared with."""
    return unit(rows) @ unit(query)


def make_query(dimension: int = DIMENSION) -> NDArray[np.float32]:
    return unit(np.random.default_rng(5).standard_normal(dimension)).astype(np.float32)


def reveals(text: str, values: Any) -> list[str]:
    """The numbers of a text that are one of the values, to six decimals and more."""
    known = np.abs(np.asarray(values, dtype=np.float64).ravel())
    numbers = re.findall(r"\d*\.\d{6,}(?:[eE][-+]?\d+)?", text)
    return [number for number in numbers if np.abs(known - float(number)).min() < 5e-7]


def find_arrays(error: BaseException | None) -> list[str]:
    """Where arrays of numbers hang on an error's frames inside the package, for an error tracker to collect."""
    found = []
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "scoreshield" in Path(frame.f_code.co_filename).parts:
                held = [k for k, v in frame.f_locals.items() if isinstance(v, np.ndarray) and v.size >= N]
                found += [f"{frame.f_code.co_name}.{name}" for name in held]
        error = error.__cause__ or error.__context__
    return found


class StoreChecks:
    """The conformance tests of an adapter.

    Attributes:
        ids: N of them, in the order in which they are put, which is not their sorted order.
        new: One more id.
        any_length: Whether vectors may have any length.
        holds: What the store itself accepts: "nan", "zero", "twice" (an id), "lengths" (different ones).
        takes_zero: The pins under which a zero vector is scored as the first basis vector. Under others the store
            cannot score one, and raises an error before anything is charged.
        scores_zero: Whether the store gives a zero vector the cosine 0, which is not detected without the vectors.
        failures: The names that :meth:`break_readings` takes.
        sees_updates: Whether ``state`` detects a vector replaced under its id; otherwise ``mark_changed()`` reports it.
        secrets: Texts, such as passwords, that no message may hold.
    """

    ids: ClassVar[Sequence[Any]] = tuple(int(i) for i in np.random.default_rng(1).permutation(np.arange(1, N + 1)))
    new: ClassVar[Any] = 1000
    any_length: ClassVar[bool] = True
    holds: ClassVar[frozenset[str]] = frozenset({"zero"})
    takes_zero: ClassVar[frozenset[str]] = frozenset({"auto", "copy", "view"})
    scores_zero: ClassVar[bool] = False
    failures: ClassVar[tuple[str, ...]] = ("dropped", "late")
    sees_updates: ClassVar[bool] = True
    tolerance: ClassVar[float] = 2e-6
    secrets: ClassVar[tuple[str, ...]] = ()

    # What a subclass defines.

    def put(self, ids: Sequence[Any], vectors: Sequence[Any]) -> None:
        """Add records to this test's own collection, which is made where it is not there."""
        raise NotImplementedError

    def change(self, one: Any, vector: Any) -> None:
        """Replace one record's vector in place."""
        raise NotImplementedError

    def remove(self, one: Any) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        for one in self.ids:
            self.remove(one)

    def open(self) -> Any:
        """The adapter under test, on what was put."""
        raise NotImplementedError

    def break_readings(
        self, kind: str, store: Any, patch: pytest.MonkeyPatch
    ) -> contextlib.AbstractContextManager[None]:
        """While inside, readings fail; the store's own error should say MARKER where a text can be chosen."""
        raise NotImplementedError

    # Helpers.

    def vectors(self, n: int = N) -> Float:
        rng = np.random.default_rng(2)
        rows = unit(rng.standard_normal((n, DIMENSION)))
        lengths = rng.uniform(0.5, 3.0, n) if self.any_length else np.ones(n)
        return (rows * lengths[:, None]).astype(np.float32).astype(np.float64)

    def fill_and_open(self) -> Any:
        self.put(self.ids, self.vectors())
        return self.open()

    def sort_records(self) -> tuple[list[Any], Float]:
        """The ids as adapters give them, sorted, and their vectors."""
        order = sorted(range(N), key=self.ids.__getitem__)
        return [self.ids[i] for i in order], self.vectors()[order]

    def account(self, folder: Path) -> Account:
        return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=20.0, delta=0.0).account("people")

    def assert_rejected(self, account: Account, ask: Callable[[], Any], match: str) -> None:
        """One clear sentence, no budget spent, nothing of the store in it."""
        before = account.spent
        with pytest.raises(StoreError, match=match) as caught:
            ask()
        assert account.spent == before
        self.assert_no_secrets(str(caught.value), "".join(traceback.format_exception(caught.value)))
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith(".")
        assert find_arrays(caught.value) == []

    def assert_no_secrets(self, *texts: str) -> None:
        rows = self.vectors()
        secret = np.concatenate([rows.ravel(), unit(rows).ravel(), cosines(rows, make_query())])
        secret = np.concatenate([secret, 1 - cosines(rows, make_query()), 2 - 2 * cosines(rows, make_query())])
        for text in texts:
            assert reveals(text, secret) == []
            for word in (MARKER, *self.secrets):
                assert word not in text

    # The checks.

    def test_protocol(self) -> None:
        store = self.fill_and_open()
        assert isinstance(store, Store)
        assert store.name.startswith("The ")
        assert store.dimension == DIMENSION
        assert isinstance(store.convention, Convention)
        self.assert_no_secrets(repr(store), store.name)

    def test_ids_and_vectors(self) -> None:
        store = self.fill_and_open()
        ids, rows = self.sort_records()
        for records in (store.records(), store.records()):
            assert list(records.ids) == ids
            assert records.vectors.dtype.kind == "f"
            np.testing.assert_allclose(unit(records.vectors), unit(rows), atol=self.tolerance)

    def test_scores(self) -> None:
        """The store's own scores are all cosines, in a fixed order."""
        store, query = self.fill_and_open(), make_query()
        ids, rows = self.sort_records()
        for probe in (query, -query):  # the order of the one by merit is the other's reversed
            scored = store.scores(probe)
            assert list(scored.ids) == ids
            assert scored.values.dtype == np.float32
            np.testing.assert_allclose(
                store.convention.to_cosine(scored.values), cosines(rows, probe), atol=self.tolerance
            )

    @pytest.mark.parametrize("pin", PINS)
    def test_pinned(self, pin: str) -> None:
        snapshot = PinnedStore(self.fill_and_open(), pin=pin).take_snapshot()
        ids, rows = self.sort_records()
        assert list(snapshot.ids) == ids
        query = unit(make_query())
        given, asked = snapshot.make_problem(query)
        np.testing.assert_allclose(given @ asked, cosines(rows, query), atol=self.tolerance)

    @pytest.mark.parametrize("pin", PINS)
    @pytest.mark.parametrize("said", Convention)
    def test_wrong_convention(self, said: Convention, pin: str) -> None:
        store = self.fill_and_open()
        right = store.convention
        store.convention = said
        if said is right or {said, right} <= _ALIKE:
            assert len(PinnedStore(store, pin=pin).take_snapshot()) == N
        else:
            with pytest.raises(StoreError, match=f"is declared to score by '{said.value}', and its"):
                PinnedStore(store, pin=pin).take_snapshot()

    @pytest.mark.parametrize("pin", PINS)
    def test_empty(self, pin: str, tmp_path: Path) -> None:
        account = self.account(tmp_path)
        store = self.fill_and_open()
        self.empty()
        search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account, pin=pin)
        self.assert_rejected(account, lambda: search.search(make_query()), "holds no records")
        with pytest.raises(StoreError, match="holds no records"):
            PinnedStore(self.open(), pin=pin).take_snapshot()

    @pytest.mark.parametrize("pin", PINS)
    @pytest.mark.parametrize("kind", ["nan", "zero", "twice", "lengths"])
    def test_bad_records(self, kind: str, pin: str, tmp_path: Path) -> None:
        vectors: list[Any] = list(self.vectors())
        ids = list(self.ids)
        if kind == "twice":
            ids[7] = ids[3]
        else:
            vectors[7] = {"nan": np.full(DIMENSION, np.nan), "zero": np.zeros(DIMENSION), "lengths": np.ones(5)}[kind]
        if kind not in self.holds:
            try:
                self.put(ids, vectors)
            except Exception:
                return  # the store itself does not take it
            assert kind == "twice"  # the later one took the place of the earlier
            assert len(PinnedStore(self.open(), pin=pin).take_snapshot()) == N - 1
            return
        self.put(ids, vectors)
        if kind == "zero" and pin == "scores" and self.scores_zero:
            scored = self.open().scores(make_query())
            assert self.open().convention.to_cosine(scored.values)[list(scored.ids).index(ids[7])] == 0
            return
        if kind == "zero" and pin in self.takes_zero:
            snapshot = PinnedStore(self.open(), pin=pin).take_snapshot()
            rows, public = snapshot.make_problem(make_query().astype(np.float64))
            cosines = embeddings.compute_scores(rows, public[None], "unit")[0]
            assert cosines[snapshot.ids.index(ids[7])] == pytest.approx(make_query()[0], abs=self.tolerance)
            return
        account = self.account(tmp_path)

        def ask() -> None:
            PrivateSearch(self.open(), epsilon=1.0, mode="query", ledger=account, pin=pin).search(make_query())

        says = {
            "nan": "not finite numbers|failed while",
            "zero": "zero or not finite|not finite numbers|gave .* scores for|is declared to score by",
            "twice": "same id more than once",
            "lengths": "mixes vectors of different lengths",
        }
        self.assert_rejected(account, ask, says[kind])

    def test_size_changes(self, tmp_path: Path) -> None:
        """A change of the size between two calls raises an error or makes a version."""
        account, store = self.account(tmp_path), self.fill_and_open()
        search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account, pin="scores", check_every=3600)
        search.search(make_query())
        self.put([self.new], unit(np.ones((1, DIMENSION))))
        self.assert_rejected(account, lambda: search.search(make_query()), "had 40 records and now scores 41")
        search.search(make_query())  # of the new version
        self.remove(self.new)
        self.remove(self.ids[0])
        self.assert_rejected(account, lambda: search.search(make_query()), "had 41 records and now scores 39")
        assert account.spent == 2.0

    @pytest.mark.parametrize("pin", PINS)
    def test_versions(self, pin: str) -> None:
        """Inserts, deletes and updates make new versions."""
        store = self.fill_and_open()
        pinned = PinnedStore(store, pin=pin)
        query, fresh = unit(make_query()), unit(np.arange(1, DIMENSION + 1))
        assert [pinned.take_snapshot().version for _ in range(2)] == [1, 1]
        assert not pinned.is_stale()

        def cosine(one: Any) -> float:
            snapshot = pinned.take_snapshot()
            rows, asked = snapshot.make_problem(query)
            return float(rows[snapshot.ids.index(one)] @ asked)

        self.put([self.new], [fresh])
        assert pinned.is_stale()
        assert cosine(self.new) == pytest.approx(cosines(fresh, query), abs=self.tolerance)
        assert (pinned.version, len(pinned.take_snapshot())) == (2, N + 1)

        self.change(self.ids[0], -fresh)
        if not self.sees_updates:
            assert not pinned.is_stale()  # what the adapter's documentation says
            store.mark_changed()
        assert pinned.is_stale()
        assert cosine(self.ids[0]) == pytest.approx(-cosines(fresh, query), abs=self.tolerance)
        assert pinned.version == 3

        self.remove(self.ids[1])
        assert pinned.is_stale()
        assert self.ids[1] not in pinned.take_snapshot().ids
        assert pinned.version == 4

    @pytest.mark.parametrize("pin", PINS)
    def test_failing(self, pin: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """At any moment: before the first reading, and after it."""
        caplog.set_level(logging.DEBUG)
        for kind in self.failures:
            folder = tmp_path / kind
            folder.mkdir()
            account, store = self.account(folder), self.open() if kind != self.failures[0] else self.fill_and_open()
            search = PrivateSearch(store, epsilon=1.0, mode="query", ledger=account, pin=pin)
            with pytest.MonkeyPatch.context() as patch, self.break_readings(kind, store, patch):
                self.assert_rejected(account, lambda s=search: s.search(make_query()), "nothing was released|is gone")
            assert search.version == 0
            assert len(search.search(make_query())) == 10
            assert account.spent == 1.0
            with pytest.MonkeyPatch.context() as patch, self.break_readings(kind, store, patch):
                batch = np.stack([make_query(), -make_query()])
                self.assert_rejected(account, lambda s=search, b=batch: s.search_batch(b), "nothing was|is gone")
            assert account.spent == 1.0
            assert search.search(make_query()).version == 1
            self.assert_no_secrets(repr(search), repr(store), repr(account.ledger))
        self.assert_no_secrets(caplog.text)

    @pytest.mark.parametrize("pin", PINS)
    def test_search_as_in_memory(self, pin: str) -> None:
        """A search of the store answers as one of the same vectors in memory."""
        ids, rows = self.sort_records()
        mine = PrivateSearch(self.fill_and_open(), epsilon=50.0, mode="query", rng=3, pin=pin).search(make_query(), 5)
        other = PrivateSearch(ArrayStore(rows, ids), epsilon=50.0, mode="query", rng=3).search(make_query(), 5)
        assert mine.ids == other.ids
        np.testing.assert_allclose(mine.noisy, other.noisy, atol=10 * self.tolerance)

    def test_threads(self) -> None:
        store = self.fill_and_open()
        query, found = make_query(), []

        def work(sign: int) -> None:
            for _ in range(5):
                found.append((sign, store.convention.to_cosine(store.scores(np.float32(sign) * query).values)))

        threads = [threading.Thread(target=work, args=(sign,)) for sign in (1, -1, 1, -1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        truth = cosines(self.sort_records()[1], query)
        assert len(found) == 20
        for sign, values in found:
            np.testing.assert_allclose(values, sign * truth, atol=self.tolerance)


@contextlib.contextmanager
def patch_to_raise(
    patch: pytest.MonkeyPatch, target: Any, *names: str, error: type[Exception] = ConnectionError
) -> Iterator[None]:
    """The named methods raise, with a text that holds a clean number."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error(f"{MARKER}: {cosines(np.ones(DIMENSION), make_query())}")

    with patch.context() as inner:
        for name in names:
            inner.setattr(target, name, fail)
        yield
