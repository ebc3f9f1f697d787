"""The retrieval core, without a framework: what it reads, when it charges, what it keeps and what its errors say."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import BudgetExceeded, DocumentsNotRead, InvalidInput, InvalidParameter, StoreError
from scoreshield.integrations.core import (
    ChangeCounter,
    RecordSource,
    RecordsUnreadable,
    RetrievalCore,
    annotate,
    check_search_options,
    choose_look_interval,
    hash_addresses,
    open_retrieval,
    split_growing,
)
from scoreshield.integrations.fields import GUARANTEE_FIELD, PublicFields, scrub_metadata
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore, PinnedStore

N, D = 40, 6
ROWS = np.random.default_rng(2).standard_normal((N, D))
IDS = [f"n{place}" for place in range(N)]
QUERIES = ROWS[:2]
#: So much budget that the noise is far below the gaps between scores: the released order is then the clean one.
PLENTY: dict[str, Any] = {"epsilon": 1e7, "mode": "query", "mechanism": "laplace", "rng": 1}
BEST = [IDS[place] for place in np.argsort(-(ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)) @ ROWS[0])]


class Shelf(RecordSource[str]):
    """Texts by id. It notes each reading with what was spent then, and can fail."""

    def __init__(self, spent: Callable[[], float] = lambda: 0.0) -> None:
        self.texts: dict[str, str] = {one: f"text of {one}" for one in IDS}
        self.spent, self.reads = spent, list[tuple[list[str], float]]()
        self.error: Exception | None = None
        self.fails_after = 0

    def fetch(self, ids: Sequence[Any]) -> Mapping[Any, str]:
        if self.error is not None and len(self.reads) >= self.fails_after:
            raise self.error
        self.reads.append((list(ids), self.spent()))
        return {one: self.texts[one] for one in reversed(ids) if one in self.texts}

    def get_metadata(self, record: str) -> dict[str, Any]:
        return {"text": record, "score": 0.5}

    def has_text(self, record: str) -> bool:
        return bool(record)

    def describe_failure(self, error: Exception) -> str:
        return f"The shelf is closed ({type(error).__name__})."

    def describe_mismatch(self, ids: Sequence[Any], *, has_records: bool) -> str:
        return f"The shelf has none of {len(ids)} books ({'blank' if has_records else 'absent'})."


@dataclass
class Even:
    """Lets records with an even place pass."""

    key: Hashable | None

    def allows(self, one: Any, record: str) -> bool:
        assert record == f"text of {one}"
        return int(one[1:]) % 2 == 0


def account_in(folder: Path, epsilon: float = 10.0) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=epsilon, delta=0).account("notes")


def core_of(shelf: Shelf, **options: Any) -> RetrievalCore[str]:
    search = PrivateSearch(ArrayStore(ROWS, ids=IDS), **options)
    return RetrievalCore(search, shelf, PublicFields())


def charged_core(folder: Path, epsilon: float = 1.0) -> tuple[RetrievalCore[str], Shelf, Any]:
    account = account_in(folder)
    shelf = Shelf(lambda: account.spent)
    return core_of(shelf, epsilon=epsilon, mode="query", ledger=account), shelf, account


def ids_of(answers: list[Any]) -> list[str]:
    return [one.id for one in answers]


# ---- The order of steps.


def test_step_order(tmp_path: Path) -> None:
    """One record is read before the charge, and the released ones after it."""
    core, shelf, account = charged_core(tmp_path)
    answers = core.find(QUERIES, 3)
    assert [(len(ids), spent) for ids, spent in shelf.reads] == [(1, 0), (len({*ids_of(answers[0] + answers[1])}), 2)]
    assert account.spent == 2


@pytest.mark.parametrize("key", ["even", None])
def test_filter_order(tmp_path: Path, key: Any) -> None:
    """Under a filter all records are read in their public order before the charge; with a key, shown ones again."""
    core, shelf, account = charged_core(tmp_path)
    (answer,) = core.find(QUERIES[:1], 3, Even(key))
    assert all(int(one.id[1:]) % 2 == 0 for one in answer)
    assert (shelf.reads[0], account.spent) == ((IDS, 0), 1)
    assert [spent for _, spent in shelf.reads[1:]] == ([] if key is None else [1])


def test_empty_filter(tmp_path: Path) -> None:
    """A filter that no record passes costs nothing."""

    class Nothing(Even):
        def allows(self, one: Any, record: str) -> bool:
            del one, record
            return False

    core, _, account = charged_core(tmp_path)
    assert core.find(QUERIES, 3, Nothing("none")) == core.find(QUERIES, 3, Nothing(None)) == [[], []]
    assert account.spent == 0


def test_budget(tmp_path: Path) -> None:
    """Queries are charged together or not at all."""
    core, _, account = charged_core(tmp_path, epsilon=6)
    with pytest.raises(BudgetExceeded):
        core.find(QUERIES, 3)
    assert account.spent == 0


# ---- Answers.


def test_answers() -> None:
    """An answer has the record, the visible metadata, the guarantee and the released cosine."""
    core = core_of(Shelf(), **PLENTY)
    (answer,) = core.find(QUERIES[:1], 2)
    assert ids_of(answer) == BEST[:2]
    assert [one.record for one in answer] == [f"text of {one}" for one in BEST[:2]]
    assert set(answer[0].metadata) == {"text", GUARANTEE_FIELD}
    assert answer[0].score == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("options", [{"epsilon": 1}, PLENTY])
def test_absent_records(options: dict[str, Any]) -> None:
    """Records that are gone, or have no text, are left out, and the next ones are answered with."""
    shelf = Shelf()
    core = core_of(shelf, **options)
    best = core.search.search(QUERIES[0], N).ids  # an index gives the same ranking again, and so does PLENTY
    del shelf.texts[best[0]]
    shelf.texts[best[2]] = ""
    assert ids_of(core.find(QUERIES[:1], 3)[0]) == [best[1], *best[3:5]]


def test_index_reads_once() -> None:
    """An index is asked for more hits until enough pass, and no record is read twice."""
    shelf = Shelf()
    core = core_of(shelf, epsilon=1)
    even = [one for one in core.search.search(QUERIES[0], N).ids if int(one[1:]) % 2 == 0]
    assert ids_of(core.find(QUERIES[:1], len(even), Even(None))[0]) == even
    read = [one for ids, _ in shelf.reads for one in ids]
    assert len(read) == len(set(read))


def test_annotate() -> None:
    """The guarantee, the released score and its noise join the metadata."""
    search = PrivateSearch(ROWS, epsilon=5)
    hits = search.search(ROWS[0], 2)
    assert hits.noisy is not None
    metadata = annotate(scrub_metadata({"year": np.int64(2021), "score": 1.0}), search, hits, 1)
    facts = {**search.facts(hits), "noisy_score": float(hits.noisy[1]), "noise_std": hits.noise_std}
    assert metadata == {"year": 2021, GUARANTEE_FIELD: facts}
    assert facts["epsilon"] == 5


# ---- Failures.


def test_failure_before_charge(tmp_path: Path) -> None:
    """A failure before the charge costs nothing, and its sentence says so."""
    core, shelf, account = charged_core(tmp_path)
    shelf.error = ConnectionError("secret")
    for record_filter in (None, Even("even"), Even(None)):
        with pytest.raises(StoreError, match=r"^The shelf is closed \(ConnectionError\)\. Nothing was released\.$"):
            core.find(QUERIES, 3, record_filter)
    assert account.spent == 0


@pytest.mark.parametrize("record_filter", [None, Even("even")])
@pytest.mark.parametrize("error", [ConnectionError("secret"), StoreError("Nothing was released."), KeyError(3)])
def test_failure_after_charge(tmp_path: Path, record_filter: Any, error: Exception) -> None:
    """A failure after the charge names the released ids. It does not say that nothing was released."""
    core, shelf, account = charged_core(tmp_path)
    shelf.error, shelf.fails_after = error, 1
    for _ in range(2):
        with pytest.raises(DocumentsNotRead, match=r"\. The query was charged and released the records 'n") as caught:
            core.find(QUERIES, 3, record_filter)
        assert "secret" not in str(caught.value)
        assert "Nothing was" not in str(caught.value)
        assert type(error).__name__ in str(caught.value)
        assert account.spent == 2
    shelf.error = None
    assert caught.value.ids == tuple(tuple(ids_of(one)) for one in core.find(QUERIES, 3, record_filter))
    assert account.spent == 2  # the ranking was kept
    core.find(QUERIES, 3, record_filter)
    assert account.spent == 4


@pytest.mark.parametrize("change", ["query", "k", "filter"])
def test_kept_ranking_key(tmp_path: Path, change: str) -> None:
    """A kept ranking answers the same query, k and filter alone."""
    core, shelf, account = charged_core(tmp_path)
    shelf.error, shelf.fails_after = ConnectionError(), 1
    with pytest.raises(DocumentsNotRead):
        core.find(QUERIES[:1], 3, Even("even"))
    shelf.error = None
    queries, k, key = QUERIES[:1], 3, "even"
    queries, k, key = {"query": (QUERIES[1:], k, key), "k": (queries, 4, key), "filter": (queries, k, "odd")}[change]
    core.find(queries, k, Even(key))
    assert account.spent == 2


def test_no_records(tmp_path: Path) -> None:
    """Where no record can be answered with, an error says why before the charge."""
    core, shelf, account = charged_core(tmp_path)
    shelf.texts = dict.fromkeys(IDS, "")
    for record_filter in (None, Even("even"), Even(None)):
        with pytest.raises(InvalidInput, match=r"none of 40 books \(blank\)"):
            core.find(QUERIES, 3, record_filter)
    shelf.texts = {}
    with pytest.raises(InvalidInput, match=r"none of 40 books \(absent\)"):
        core.find(QUERIES, 3)
    assert account.spent == 0


def test_read_order_and_pages() -> None:
    """Records come in the order of the ids, each once, in pages of at most 256."""
    shelf = Shelf()
    ids = [*IDS[::-1], *IDS, *(f"other {place}" for place in range(500))]
    assert list(shelf.read(ids)) == IDS[::-1]
    assert [len(one) for one, _ in shelf.reads] == [256, 256, 28]
    assert shelf.read([]) == {}


def test_failure_frames() -> None:
    """An error of a source leaves by its type alone, without the frames that hold records."""
    shelf = Shelf()
    shelf.error = ConnectionError("secret")
    with pytest.raises(RecordsUnreadable, match=r"^The shelf is closed \(ConnectionError\)\.$") as caught:
        shelf.read(IDS)
    assert caught.value.__cause__ is caught.value.__context__ is None
    shelf.error = own = StoreError("The shelf is gone.")
    with pytest.raises(StoreError) as same:
        shelf.read(IDS)
    assert same.value is own


# ---- Opening.


def open_core(shelf: Shelf, store: Any = None, **options: Any) -> RetrievalCore[str]:
    arguments: dict[str, Any] = {"epsilon": 1.0, "reads_now": False}
    arguments |= {name: options.pop(name) for name in list(options) if name in arguments}
    store = ArrayStore(ROWS, ids=IDS) if store is None else store
    return open_retrieval(store, shelf, PublicFields(), options=options, **arguments)


def test_open_index(tmp_path: Path) -> None:
    """One record is read before an index is charged, and again before a refresh."""
    account = account_in(tmp_path)
    shelf = Shelf(lambda: account.spent)
    core = open_core(shelf, ledger=account)
    core.search.refresh()
    assert [(len(ids), spent) for ids, spent in shelf.reads] == [(1, 0), (1, 1)]
    shelf.error = ConnectionError()
    for work in (core.search.refresh, core.refresh, lambda: open_core(shelf, ledger=account)):
        with pytest.raises(StoreError, match=r"Nothing was released\.$"):
            work()
    assert account.spent == 2


@pytest.mark.parametrize("reads_now", [True, False])
def test_open_query_mode(tmp_path: Path, reads_now: bool) -> None:
    """In the modes that charge each query, one record is read at once if the adapter says so."""
    shelf = Shelf()
    open_core(shelf, mode="query", ledger=account_in(tmp_path), reads_now=reads_now)
    assert [len(ids) for ids, _ in shelf.reads] == ([1] if reads_now else [])


def test_open_saved(tmp_path: Path) -> None:
    """A saved index must name some of the records. Loading it costs nothing."""
    account, file = account_in(tmp_path), tmp_path / "index.npz"
    open_core(Shelf(), ledger=account, file=file)
    shelf = Shelf()
    open_core(shelf, ledger=account, file=file)
    assert [len(ids) for ids, _ in shelf.reads] == [1]
    shelf.texts = {}
    with pytest.raises(InvalidInput, match="none of 40 books"):
        open_core(shelf, ledger=account, file=file)
    assert account.spent == 1


def test_open_forgets() -> None:
    """A pinned store keeps no vector after an index was made, or after a failure."""
    for texts, options in (({}, {}), ({}, {"mode": "query", "rng": 1, "reads_now": True}), (None, {})):
        pinned, shelf = PinnedStore(ArrayStore(ROWS, ids=IDS)), Shelf()
        if texts is not None:
            shelf.texts = texts
            with pytest.raises(InvalidInput):
                open_core(shelf, pinned, **options)
        else:
            open_core(shelf, pinned)
        assert pinned._snapshot is None


def test_option_names() -> None:
    """An option that the search does not have is rejected and not ignored."""
    check_search_options({"delta": 0.0, "centroids": False})
    with pytest.raises(InvalidParameter, match=r"^The 'fetch_k' parameter is unknown\.$"):
        check_search_options({"fetch_k": 3})
    with pytest.raises(InvalidParameter, match=r"^The 'centroids' parameter is rejected: "):
        check_search_options({"centroids": True})


# ---- Looks at a store in memory.


def test_growing_pages() -> None:
    """Pages grow and hold every id once."""
    pages = list(split_growing(range(1_000)))
    assert [len(page) for page in pages] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 233]
    assert [one for page in pages for one in page] == list(range(1_000))


def test_look_interval() -> None:
    """A look at a large store takes a millisecond or more. Small stores are looked at before every release."""
    assert choose_look_interval(20_000) == 0.0
    assert choose_look_interval(20_001) == 1.0


@pytest.mark.parametrize("state", [ChangeCounter().count, lambda values: hash_addresses(values, lambda one: one[0])])
def test_memory_state(state: Callable[[dict[str, Any]], int]) -> None:
    """Values that were added, replaced, deleted or renamed make another state."""
    values: dict[str, Any] = {one: [float(place)] for place, one in enumerate("abc")}
    states = [state(values)]
    for change in (
        lambda: values.update(d=[9.0]),
        lambda: values.update(a=np.array([1.0, 2.0])),
        lambda: values.update(a=np.array([1.0, 3.0])),
        lambda: values.pop("b"),
        lambda: values.update(e=values.pop("d")),
    ):
        change()
        states.append(state(values))
        assert state(values) == states[-1]
    assert len(set(states)) == len(states)
