"""The LlamaIndex adapter and its nodes: what is told before it is paid for, what is gone, and what each look costs."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.core")

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery

from scoreshield.errors import DocumentsNotRead, FileError, InvalidInput
from scoreshield.integrations.llama_index import PrivateRetriever, PrivateVectorStore
from scoreshield.integrations.llama_index_nodes import NodeSource, SimpleStore, fetch_from_store
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

N, D = 30, 6
ROWS = np.random.default_rng(5).standard_normal((N, D))
UNITS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
QUERY = QueryBundle("what?", embedding=UNITS[7].tolist())
BEST = np.argsort(-UNITS @ UNITS[7]).tolist()
EVEN = MetadataFilters(filters=[MetadataFilter(key="parity", value=0)])
NONE = MetadataFilters(filters=[MetadataFilter(key="parity", value=7)])
#: So much budget that the noise is below the gaps between scores: the released order is then the clean one.
PLENTY = 500.0


def nodes() -> list[TextNode]:
    return [
        TextNode(id_=f"n{place}", text="", metadata={"parity": place % 2}, embedding=row.tolist())
        for place, row in enumerate(ROWS)
    ]


def index_of() -> VectorStoreIndex:
    return VectorStoreIndex(nodes(), embed_model=MockEmbedding(embed_dim=D))


def names(found: list[NodeWithScore]) -> list[int]:
    return [int(one.node.node_id[1:]) for one in found]


def account_in(folder: Path) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=10_000.0, delta=0.0).account("notes")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the nodes that are read from a document store."""
    seen: list[str] = []
    plain = SimpleDocumentStore.get_document

    def noted(self: Any, doc_id: str, raise_error: bool = True) -> Any:
        seen.append(doc_id)
        return plain(self, doc_id, raise_error)

    monkeypatch.setattr(SimpleDocumentStore, "get_document", noted)
    return seen


# ---- Told before it is paid for.


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"similarity_top_k": 0}, "similarity_top_k"),
        ({"similarity_top_k": "4"}, "similarity_top_k"),
        ({"filters": {"parity": 0}}, "Filters must be MetadataFilters"),
        ({"node_ids": "n1"}, "'node_ids'"),
        ({"node_ids": [1]}, "'node_ids'"),
        ({"doc_ids": 3}, "'doc_ids'"),
        ({"embed_model": "local"}, "'embed_model'"),
        ({"callback_manager": 3}, "'callback_manager'"),
        ({"top_k": 4}, "'top_k' parameter of PrivateRetriever.from_index is unknown"),
    ],
)
def test_wrong_request(asked: dict[str, Any], told: str, tmp_path: Path) -> None:
    """A wrong request raises an error before an index is made."""
    account, file = account_in(tmp_path), tmp_path / "index.npz"
    with pytest.raises(InvalidInput, match=told):
        PrivateRetriever.from_index(index_of(), epsilon=1, ledger=account, file=file, **asked)
    assert account.spent == 0
    assert not file.exists()
    with pytest.raises(InvalidInput, match=r"'top_k' parameter of PrivateVectorStore\.from_index is unknown"):
        PrivateVectorStore.from_index(index_of(), epsilon=1, top_k=4)


@pytest.mark.parametrize("options", [{}, {"mode": "query"}, {"mode": "screening", "threshold": 0.2}])
def test_mismatched_ids(options: dict[str, Any], tmp_path: Path) -> None:
    """A store whose ids name no node is rejected before a charge."""
    account, index = account_in(tmp_path), index_of()
    kinds: tuple[Any, ...] = (PrivateRetriever, PrivateVectorStore)
    for kind in kinds:
        for store in (ArrayStore(ROWS), ArrayStore(ROWS, [f"other {place}" for place in range(N)]), ROWS):
            with pytest.raises(InvalidInput, match="The store, or the saved index, names none of these nodes"):
                kind.from_index(index, epsilon=1, store=store, ledger=account, **options)
    assert account.spent == 0
    given = ArrayStore(ROWS, [f"n{place}" for place in range(N)])
    made = PrivateRetriever.from_index(index, epsilon=PLENTY, store=given, ledger=account, **options)
    assert len(made.retrieve(QUERY)) == 2
    # The same where a search is given, which charges at a query.
    if options:
        search = PrivateSearch(ROWS, epsilon=1, ledger=account, **options)
        before = account.spent
        with pytest.raises(InvalidInput, match="names none of these nodes"):
            PrivateRetriever(search, {}).retrieve(QUERY)
        assert account.spent == before


def test_unwritable_file(tmp_path: Path) -> None:
    """A file that cannot be written raises an error before anything is charged."""
    account = account_in(tmp_path)
    for name in ("x" * 300 + ".npz", "no folder/x.npz"):
        with pytest.raises(FileError, match="Cannot write"):
            PrivateRetriever.from_index(index_of(), epsilon=3, ledger=account, file=tmp_path / name)
    assert account.spent == 0


def test_bad_batch() -> None:
    """A bad batch raises an error of one sentence."""
    retriever = PrivateRetriever.from_index(index_of(), epsilon=1)
    for bad in (None, 3, [1, 2], ["a", None], [], "text", QUERY, {"a": 1}):
        with pytest.raises(InvalidInput, match="A batch is a list of at least one query"):
            retriever.retrieve_batch(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="A batch is a list of at least one query"):
            asyncio.run(retriever.aretrieve_batch(bad))  # type: ignore[arg-type]


# ---- What is gone is never answered.


@pytest.mark.parametrize("filters", [None, MetadataFilters(filters=[])])
def test_deleted_node(filters: Any, tmp_path: Path) -> None:
    """In modes that charge, a deleted node is not named, and others replace it."""
    index = index_of()
    options: dict[str, Any] = {"mode": "query", "ledger": account_in(tmp_path), "check_every": 3600.0}
    retriever = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=4, filters=filters, **options)
    assert names(retriever.retrieve(QUERY)) == BEST[:4]
    index.delete_nodes([f"n{BEST[1]}"])
    assert names(retriever.retrieve(QUERY)) == [BEST[0], *BEST[2:5]]


# ---- What a query costs.


def test_empty_filter(tmp_path: Path) -> None:
    """A filter that nothing passes is not charged."""
    account, index = account_in(tmp_path), index_of()
    options: dict[str, Any] = {"mode": "query", "ledger": account, "filterable": ["parity"]}
    assert PrivateRetriever.from_index(index, epsilon=1, filters=NONE, **options).retrieve(QUERY) == []
    store = PrivateVectorStore.from_index(index, epsilon=1, **options)
    result = store.query(VectorStoreQuery(query_embedding=UNITS[7].tolist(), similarity_top_k=2, filters=NONE))
    assert (result.nodes, result.ids) == ([], [])
    assert account.spent == 0
    free = PrivateRetriever.from_index(index, epsilon=1, filters=NONE, filterable=["parity"])
    assert free.retrieve(QUERY) == []


def test_failure_after_charge(tmp_path: Path) -> None:
    """Nodes that cannot be read after the charge are not charged again."""
    account, held = account_in(tmp_path), {one.node_id: one for one in nodes()}
    left = [1]  # the one that is tried before the charge

    def node_of(one: str) -> TextNode:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError("secret")
        return held[one]

    search = PrivateSearch(ArrayStore(ROWS, list(held)), epsilon=1, mode="query", ledger=account)
    retriever = PrivateRetriever(search, node_of, similarity_top_k=3)
    for _ in range(2):
        with pytest.raises(DocumentsNotRead, match="The query was charged and released the records 'n") as told:
            retriever.retrieve(QUERY)
        assert "secret" not in str(told.value)
        assert account.spent == pytest.approx(1)
    left[0] = 10**9
    assert told.value.ids == (tuple(one.node.node_id for one in retriever.retrieve(QUERY)),)
    assert account.spent == pytest.approx(1)
    retriever.retrieve(QUERY)
    assert account.spent == pytest.approx(2)


def test_reads_per_query(reads: list[str], tmp_path: Path) -> None:
    """A query reads the nodes that it shows, and not all."""
    index = index_of()
    for options in ({"mode": "query", "ledger": account_in(tmp_path)}, {}):
        retriever = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=4, **options)  # type: ignore[arg-type]
        reads.clear()
        retriever.retrieve(QUERY)
        assert len(reads) <= 5
        assert reads[-4:] == [f"n{place}" for place in BEST[:4]]
    only: dict[str, Any] = {"filters": EVEN, "filterable": ["parity"]}
    filtered = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=4, **only)
    assert names(filtered.retrieve(QUERY)) == [one for one in BEST if one % 2 == 0][:4]


class Kept:
    """A vector store with nodes of its own, which writes some ids in its own way."""

    def __init__(self) -> None:
        self.held = {
            str(uuid.UUID(int=place)): TextNode(id_=uuid.UUID(int=place).hex, text="x") for place in range(600)
        }
        self.held |= {one.node_id: one for one in nodes()}
        self.calls = 0

    def get_nodes(self, node_ids: list[str]) -> list[TextNode]:
        self.calls += 1
        return [self.held[one] for one in reversed(node_ids) if one in self.held]


def test_node_batches() -> None:
    """Nodes in a vector store are read in batches."""
    store: Any = Kept()
    own = [one for one in store.held if one.startswith("n")] * 2
    assert NodeSource(fetch_from_store(store)).read([*own, "gone"]).keys() == set(own)
    assert store.calls == 1
    # Ids that are written in two ways are read one by one, and none gets another's node.
    found = NodeSource(fetch_from_store(store)).read([*list(store.held)[:5], "n3"])
    assert {one: node.node_id for one, node in found.items()} == {
        **{str(uuid.UUID(int=place)): uuid.UUID(int=place).hex for place in range(5)},
        "n3": "n3",
    }


# ---- What a look at the store sees.


@pytest.mark.parametrize("often", [True, False])
def test_the_state_of_a_simple_store(often: bool) -> None:
    """The state shows what changed in a SimpleVectorStore."""
    vectors = SimpleVectorStore()
    vectors.add(nodes())
    held = vectors.data.embedding_dict
    looked = SimpleStore(vectors, holds=often)
    seen = [looked.state()]
    assert looked.state() == seen[0]
    held["n3"] = [9.0] * D
    seen.append(looked.state())
    held["last"] = held.pop(f"n{N - 1}")  # another name for the same vector
    seen.append(looked.state())
    held["first"] = held.pop("n0")
    seen.append(looked.state())
    held.pop("n5")
    seen.append(looked.state())
    vectors.add([TextNode(id_="n5", text="", embedding=[8.0] * D)])  # its list may lie where the other lay
    seen.append(looked.state())
    assert len(set(seen)) == len(seen)
    assert looked.state() == seen[-1]
    assert looked.ids() == list(held)


def test_a_simple_store_of_arrays(tmp_path: Path) -> None:
    """A SimpleVectorStore may hold arrays."""
    index = index_of()
    held: Any = index.vector_store.data.embedding_dict  # type: ignore[attr-defined]
    held.update({name: np.array(vector) for name, vector in held.items()})
    retriever = PrivateRetriever.from_index(index, epsilon=1, mode="query", ledger=account_in(tmp_path))
    versions = []
    for _ in range(2):
        versions += [retriever.retrieve(QUERY)[0].node.metadata["scoreshield"]["version"] for _ in range(2)]
        held["n3"] = np.ones(D)
    assert versions == [1, 1, 2, 2]
