"""The Haystack component and its documents: what is gone, what cannot be read or written, and what each look costs."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
pytest.importorskip("haystack")

from haystack import Document
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils.filters import document_matches_filter

from scoreshield.errors import DocumentsNotRead, FileError, InvalidInput, StoreError
from scoreshield.integrations.haystack import PrivateRetriever
from scoreshield.integrations.haystack_documents import HaystackStore, remove_hash
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import index_files

N, D = 30, 6
ROWS = np.random.default_rng(5).standard_normal((N, D))
QUERY = (ROWS[7] / np.linalg.norm(ROWS[7])).tolist()
BEST = np.argsort(-(ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)) @ QUERY).tolist()
#: So much budget that the noise is below the gaps between scores: the released order is then the clean one.
PLENTY = 500.0


def documents() -> list[Document]:
    return [
        Document(id=str(place), content=f"text {place}", meta={"parity": place % 2}, embedding=row.tolist())
        for place, row in enumerate(ROWS)
    ]


def in_memory(written: list[Document] | None = None) -> InMemoryDocumentStore:
    store = InMemoryDocumentStore(shared=False)
    store.write_documents(documents() if written is None else written)
    return store


class Server:
    """A store of which only the number of documents tells that something changed; it can fail after some readings."""

    def __init__(self) -> None:
        self.written = {one.id: one for one in documents()}
        self.asked: list[int] = []  # how many documents each reading by ids wanted
        self.fails_after = 10**9

    def count_documents(self) -> int:
        return len(self.written)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        if filters is not None:
            if len(self.asked) >= self.fails_after:
                raise ConnectionError("password=secret")
            self.asked.append(len(filters["value"]))
        return [one for one in self.written.values() if not filters or document_matches_filter(filters, one)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        del policy
        self.written |= {one.id: one for one in documents}
        return len(documents)

    def delete_documents(self, document_ids: list[str]) -> None:
        for one in document_ids:
            del self.written[one]

    def to_dict(self) -> dict[str, Any]:
        return {}


def account_in(folder: Path, epsilon: float = 10_000.0) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=epsilon, delta=0.0).account("notes")


def names(found: dict[str, list[Document]]) -> list[int]:
    return [int(one.id) for one in found["documents"]]


# ---- What is gone is never answered.


@pytest.mark.parametrize("kind", [Server, in_memory])
@pytest.mark.parametrize("filters", [None, {"field": "meta.parity", "operator": "<=", "value": 1}])
def test_deleted_document(kind: Any, filters: Any, tmp_path: Path) -> None:
    """In modes that charge, a deleted document is not named, and others replace it."""
    store = kind()
    options: dict[str, Any] = {"mode": "query", "ledger": account_in(tmp_path), "check_every": 3600.0}
    only = {"filters": filters, "filterable": ["parity"]}
    retriever = PrivateRetriever(store, epsilon=PLENTY, top_k=4, **only, **options)
    assert names(retriever.run(QUERY)) == BEST[:4]
    store.delete_documents([str(BEST[1])])
    store.write_documents([Document(id="99", content="new", meta={"parity": 0}, embedding=QUERY)])  # as many as before
    changed = replace(documents()[BEST[0]], content="changed")
    store.write_documents([changed], policy=DuplicatePolicy.OVERWRITE)
    found = retriever.run(QUERY)
    assert names(found) == [BEST[0], *BEST[2:5]]
    assert found["documents"][0].content == "changed"


def test_document_left_filter(tmp_path: Path) -> None:
    """A document that does not pass the filter any more is not shown."""
    store = Server()
    even = {"field": "meta.parity", "operator": "==", "value": 0}
    options: dict[str, Any] = {"mode": "query", "ledger": account_in(tmp_path), "filters": even, "top_k": 3}
    retriever = PrivateRetriever(store, epsilon=PLENTY, filterable=["parity"], **options)
    wanted = [one for one in BEST if one % 2 == 0]
    assert names(retriever.run(QUERY)) == wanted[:3]
    store.write_documents([replace(documents()[wanted[0]], meta={"parity": 1})])
    assert names(retriever.run(QUERY)) == wanted[1:4]


def test_changed_metadata(tmp_path: Path) -> None:
    """Filters see metadata that changed within a document."""
    store = in_memory()
    options: dict[str, Any] = {"mode": "query", "ledger": account_in(tmp_path), "filterable": ["parity"]}
    retriever = PrivateRetriever(store, epsilon=PLENTY, top_k=2, **options)
    five = {"field": "meta.parity", "operator": "==", "value": 5}
    assert names(retriever.run(QUERY, filters=five)) == []
    store.update_by_filter({"field": "id", "operator": "==", "value": "3"}, {"parity": 5})  # the same object
    assert names(retriever.run(QUERY, filters=five)) == [3]


# ---- What a query costs.


def test_empty_filter(tmp_path: Path) -> None:
    """A filter that nothing passes is not charged."""
    account = account_in(tmp_path)
    none = {"field": "meta.parity", "operator": "==", "value": 7}
    for store in (Server(), in_memory()):
        retriever = PrivateRetriever(store, epsilon=1, mode="query", ledger=account, filterable=["parity"])
        assert retriever.run(QUERY, filters=none) == {"documents": []}
        assert retriever.run_batch([QUERY, QUERY], filters=none) == {"documents": [[], []]}
        assert account.spent == 0
        index = PrivateRetriever(store, epsilon=1, filterable=["parity"])
        assert index.run(QUERY, filters=none) == {"documents": []}


def test_failure_before_charge(tmp_path: Path) -> None:
    """Documents that cannot be read before the charge cost nothing."""
    store, account = Server(), account_in(tmp_path)
    retriever = PrivateRetriever(store, epsilon=1, mode="query", ledger=account)
    retriever.warm_up()
    store.fails_after = 0
    with pytest.raises(StoreError, match=r"failed while giving documents by their ids \(ConnectionError\)\. Nothing"):
        retriever.run(QUERY)
    assert account.spent == 0


def test_failure_before_index(tmp_path: Path) -> None:
    """An index of documents that cannot be read by their ids is not charged."""
    store, account = Server(), account_in(tmp_path)
    store.fails_after = 0
    with pytest.raises(StoreError, match=r"failed while giving documents by their ids \(ConnectionError\)\. Nothing"):
        PrivateRetriever(store, epsilon=1, ledger=account).run(QUERY)
    assert account.spent == 0


@pytest.mark.parametrize("mode", ["index", "query"])
@pytest.mark.parametrize("kind", ["server", "memory"])
def test_documents_without_metadata_are_found(kind: str, mode: str, tmp_path: Path) -> None:
    """Documents without metadata are found."""
    account = account_in(tmp_path)
    bare = [Document(id=one.id, content=one.content, embedding=one.embedding) for one in documents()]
    for one in bare:
        object.__setattr__(one, "meta", None)  # Haystack warns of a plain assignment
    if kind == "server":
        store: Any = Server()
        store.written = {one.id: one for one in bare}
    else:
        store = InMemoryDocumentStore()
        store.storage.update({one.id: one for one in bare})
    found = PrivateRetriever(store, epsilon=1, mode=mode, ledger=account, top_k=3).run(QUERY)["documents"]
    assert len(found) == 3
    assert all(set(one.meta) == {"scoreshield"} for one in found)
    assert account.spent == pytest.approx(1)


@pytest.mark.parametrize("filters", [None, {"field": "meta.parity", "operator": "==", "value": 1}])
def test_failure_after_charge(filters: Any, tmp_path: Path) -> None:
    """Documents that cannot be read after the charge are not charged again."""
    store, account = Server(), account_in(tmp_path)
    options: dict[str, Any] = {"mode": "query", "ledger": account, "filterable": ["parity"]}
    retriever = PrivateRetriever(store, epsilon=1, top_k=3, **options)
    store.fails_after = 1  # the one that is tried before
    for _ in range(2):
        with pytest.raises(DocumentsNotRead, match=r"The query was charged and released the records '") as told:
            retriever.run(QUERY, filters=filters)
        assert "secret" not in str(told.value)
        assert "nothing was released" not in str(told.value)
        assert account.spent == pytest.approx(1)
    store.fails_after = 10**9
    assert told.value.ids == (tuple(one.id for one in retriever.run(QUERY, filters=filters)["documents"]),)
    assert account.spent == pytest.approx(1)
    retriever.run(QUERY, filters=filters)
    assert account.spent == pytest.approx(2)  # what was shown is not kept


def test_reads_per_query(tmp_path: Path) -> None:
    """A query reads the documents that it shows, and not all."""
    store = Server()
    for options in ({"mode": "query", "ledger": account_in(tmp_path)}, {}):
        retriever = PrivateRetriever(store, epsilon=PLENTY, top_k=4, **options)  # type: ignore[arg-type]
        retriever.warm_up()
        store.asked.clear()
        retriever.run(QUERY)
        assert sum(store.asked) <= 5
    # An index is asked for more until enough pass: the best two of four documents take few readings.
    four = {"field": "id", "operator": "in", "value": [str(one) for one in BEST[-4:]]}
    store.asked.clear()
    assert names(retriever.run(QUERY, filters=four, top_k=2)) == BEST[-4:-2]
    assert len(store.asked) <= 8


# ---- An index that was paid for and not written.


def test_unwritten_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that could not be written is not charged again."""
    account, file = account_in(tmp_path), tmp_path / "index.npz"
    retriever = PrivateRetriever(in_memory(), epsilon=3, ledger=account, file=file)

    def full(*_: Any, **__: Any) -> None:
        raise FileError("Cannot write: no space left.")

    with monkeypatch.context() as patch:
        patch.setattr(index_files._files, "write_whole", full)
        for _ in range(3):
            with pytest.raises(FileError, match="no space left"):
                retriever.run(QUERY)
        assert account.spent == pytest.approx(3)
        assert retriever.search.guarantee.epsilon == 3  # it is at hand, to be saved elsewhere
    found = names(retriever.run(QUERY))
    assert len(found) == 10
    assert names(PrivateRetriever(in_memory(), epsilon=3, ledger=account, file=file).run(QUERY)) == found
    assert account.spent == pytest.approx(3)


def test_unwritable_file(tmp_path: Path) -> None:
    """A file that cannot be written raises an error before anything is charged."""
    account = account_in(tmp_path)
    (tmp_path / "taken.ids.json").mkdir()
    for name in ("taken.npz", "x" * 300 + ".npz", "no folder/x.npz"):
        retriever = PrivateRetriever(in_memory(), epsilon=3, ledger=account, file=tmp_path / name)
        for _ in range(2):
            with pytest.raises(FileError, match="Cannot write"):
                retriever.run(QUERY)
    assert account.spent == 0


# ---- Ids that are a hash over the embedding.


def test_same_text_ids() -> None:
    """The same text with and without an embedding in the id are two documents."""
    later = replace(Document(content="same"), embedding=[1.0] * D)
    at_once = [Document(content="same", embedding=[2.0 + extra] + [1.0] * (D - 1)) for extra in range(2)]
    plain = Document(content="same").id
    for written in ([later, *at_once], [*at_once, later]):
        found = PrivateRetriever(in_memory(written), epsilon=PLENTY).run(QUERY)["documents"]
        assert {one.id for one in found} == {plain, f"{plain}-2", f"{plain}-3"}
        store = HaystackStore(in_memory(written), holds=False)
        store.records()
        assert store.ids_by_name[plain] == later.id  # an id that tells nothing stays with its document


def test_hash_after_metadata() -> None:
    """Metadata that was added later does not bring the hash back."""
    made = Document(content="x", meta={"page": 3}, embedding=[1.0] * D)
    plain = Document(content="x", meta={"page": 3}).id
    assert remove_hash(made) == plain
    for more in ({"a": 1}, {"a": 1, "b": [2]}):
        assert remove_hash(replace(made, meta={**made.meta, **more})) == plain
    (found,) = PrivateRetriever(in_memory([replace(made, meta={"page": 3, "a": 1})]), epsilon=8).run(QUERY)["documents"]
    assert found.id == plain
    assert found.meta["a"] == 1
    # Ids that tell nothing of the embedding are left alone.
    assert remove_hash(replace(Document(content="x"), embedding=[1.0] * D, meta={"a": 1})) is None
    assert remove_hash(Document(id=hashlib.sha256(b"mine").hexdigest(), content="x", embedding=[1.0] * D)) is None


# ---- What a look at the store sees.


@pytest.mark.parametrize("often", [True, False])
def test_the_state_of_a_store_in_memory(often: bool) -> None:
    """The state shows what changed in a store in memory."""
    store = in_memory()
    looked = HaystackStore(store, holds=often)
    seen = [looked.state()]
    assert looked.state() == seen[0]
    store.write_documents([replace(documents()[3], embedding=[1.0] * D)], policy=DuplicatePolicy.OVERWRITE)
    seen.append(looked.state())
    store.write_documents([Document(id="99", content="new", embedding=QUERY)])
    seen.append(looked.state())
    store.delete_documents(["99"])
    store.write_documents([Document(id="98", content="new", embedding=QUERY)])
    seen.append(looked.state())
    looked.mark_changed()
    seen.append(looked.state())
    assert len(set(seen)) == len(seen)
    assert looked.state() == seen[-1]


# ---- Options are checked when the component is made.


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mechanism": "nope"}, "'mechanism'"),
        ({"mechanism": "gaussian"}, "'delta'"),
        ({"threshold": 0.3}, "'threshold'"),
        ({"refine": 1.0}, "'refine'"),
        ({"delta": 1e-6}, "'delta'"),
        ({"ledger": "x"}, "'ledger'"),
        ({"components": 1}, "'components'"),
        ({"components": "x"}, "'components'"),
        ({"reduction": "x"}, "'reduction'"),
        ({"score_range": (0, 1)}, "score range"),
        ({"pin": "x"}, "'pin'"),
        ({"check_every": -1}, "'check_every'"),
        ({"rng": "x"}, "'rng'"),
        ({"file": 3}, "'file'"),
        ({"identity_of": 3}, "'identity_of'"),
        ({"filter_policy": "replace"}, "'filter_policy'"),
        ({"mode": "query", "rng": 3, "file": "x.npz"}, "'file'"),
        ({"mode": "query", "rng": 3, "mechanism": "nope"}, "'mechanism'"),
        ({"mode": "screening", "rng": 3}, "'threshold'"),
    ],
)
def test_option_conflicts(options: dict[str, Any], told: str) -> None:
    """Options that do not fit together raise an error at once."""
    with pytest.raises(InvalidInput, match=told):
        PrivateRetriever(in_memory(), epsilon=1, **options)


def test_ledger_and_seed(tmp_path: Path) -> None:
    """A ledger with a seed raises an error at once, and wrong identities before a query."""
    account = account_in(tmp_path)
    for mode in ("index", "query"):
        with pytest.raises(InvalidInput, match="'rng' is research mode"):
            PrivateRetriever(in_memory(), epsilon=1, mode=mode, ledger=account, rng=3)
    # Whose the documents are is known when they are read.
    whose = {str(place): place // 2 for place in range(N)}
    for options, told in (
        ({"mode": "screening", "threshold": 0.2}, "private only if one record moves one score"),
        ({"mode": "query"}, "identities without centroids takes Gaussian noise: give a 'delta' above 0"),
        ({"mode": "query", "mechanism": "staircase"}, "private only if one record moves one score"),
    ):
        retriever = PrivateRetriever(in_memory(), epsilon=1, ledger=account, identity_of=whose, **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=told):
            retriever.warm_up()
    assert len(PrivateRetriever(in_memory(), epsilon=1, identity_of=whose).run(QUERY)["documents"]) == 10
    assert PrivateRetriever(in_memory(), epsilon=1, components=5, reduction=np.eye(5, D)).run(QUERY)["documents"]
    assert account.spent == 0


def test_bad_batch() -> None:
    """A bad batch raises an error of one sentence."""
    retriever = PrivateRetriever(in_memory(), epsilon=1)
    for bad in ([], [[]], None, "text", [1.0] * D, [[1.0], [1.0, 2.0]], [["a"] * D]):
        with pytest.raises(InvalidInput, match="'query_embeddings'"):
            retriever.run_batch(bad)  # type: ignore[arg-type]
