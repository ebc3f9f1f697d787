"""A refresh reads one document before it pays, and a hidden record is never named again, in every framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import DocumentsNotRead, InvalidInput, ScoreShieldError
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

N, D = 12, 5
ROWS = np.random.default_rng(4).standard_normal((2 * N, D))
IDS = [f"n{place}" for place in range(2 * N)]
VECTORS = dict(zip(IDS, ROWS.tolist(), strict=True))


def account_in(folder: Path) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=10, delta=0).account("notes")


class Case:
    """A private index over a framework's store, whose documents can be taken away or all replaced."""

    def __init__(self, refresh: Any, ask: Any, lose: Any, replace: Any) -> None:
        self.refresh, self.ask, self.lose, self.replace = refresh, ask, lose, replace


def langchain(account: Any) -> Case:
    documents = pytest.importorskip("langchain_core.documents")
    embeddings = pytest.importorskip("langchain_core.embeddings")
    memory = pytest.importorskip("langchain_core.vectorstores")
    from scoreshield.integrations.langchain import PrivateVectorStore

    lost: list[bool] = []

    class Memory(memory.InMemoryVectorStore):  # type: ignore[misc, name-defined]
        def get_by_ids(self, ids: Any) -> list[Any]:
            return [] if lost else super().get_by_ids(ids)

    store = Memory(embeddings.DeterministicFakeEmbedding(size=D))
    store.add_documents([documents.Document(id=one, page_content=one) for one in IDS[:N]])
    private = PrivateVectorStore.from_vectorstore(store, epsilon=1, ledger=account)

    def lose() -> None:
        lost.append(True)

    def replace() -> None:
        store.delete(IDS[:N])
        store.add_documents([documents.Document(id=one, page_content=one) for one in IDS[N:]])

    return Case(private.refresh, lambda: [one.id for one in private.similarity_search("query", k=3)], lose, replace)


def llama_index(account: Any) -> Case:
    core = pytest.importorskip("llama_index.core")
    schema = pytest.importorskip("llama_index.core.schema")
    from scoreshield.integrations.llama_index import PrivateRetriever

    def nodes(ids: list[str]) -> list[Any]:
        return [schema.TextNode(id_=one, text=one, embedding=VECTORS[one]) for one in ids]

    index = core.VectorStoreIndex(nodes(IDS[:N]), embed_model=core.MockEmbedding(embed_dim=D))
    retriever = PrivateRetriever.from_index(index, epsilon=1, similarity_top_k=3, ledger=account)

    def lose() -> None:
        for one in list(index.docstore.docs):
            index.docstore.delete_document(one)

    def replace() -> None:
        index.delete_nodes(IDS[:N], delete_from_docstore=True)
        index.insert_nodes(nodes(IDS[N:]))

    query = schema.QueryBundle("query", embedding=ROWS[0].tolist())
    return Case(
        lambda: retriever.search.refresh(),
        lambda: [one.node.node_id for one in retriever.retrieve(query)],
        lose,
        replace,
    )


class HaystackServer:
    """A document store that is asked for documents by their ids."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self.make, self.ids, self.gives = make, IDS[:N], True

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Any]:
        asked = self.ids if filters is None else [one for one in filters["value"] if self.gives]
        return [self.make(one) for one in asked if one in self.ids]

    def count_documents(self) -> int:
        return len(self.ids)


def haystack(account: Any) -> Case:
    module = pytest.importorskip("haystack")
    from scoreshield.integrations.haystack import PrivateRetriever

    store: Any = HaystackServer(lambda one: module.Document(id=one, content=one, embedding=VECTORS[one]))
    retriever = PrivateRetriever(store, epsilon=1, top_k=3, ledger=account)
    retriever.warm_up()

    def lose() -> None:
        store.gives = False

    def replace() -> None:
        store.ids = IDS[N:]
        retriever.changed()

    return Case(
        lambda: retriever.search.refresh(),
        lambda: [one.id for one in retriever.run(ROWS[0].tolist())["documents"]],
        lose,
        replace,
    )


FRAMEWORKS = [langchain, llama_index, haystack]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_refresh_without_documents(framework: Any, tmp_path: Path) -> None:
    """A refresh without documents costs nothing."""
    account = account_in(tmp_path)
    case = framework(account)
    assert account.spent == 1
    case.lose()
    with pytest.raises(ScoreShieldError, match=r"none|None|could not be (read|fetched)"):
        case.refresh()
    assert account.spent == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_refresh_after_replacement(framework: Any, tmp_path: Path) -> None:
    """The document that is read is one of the new version: none of the old one is there any more."""
    account = account_in(tmp_path)
    case = framework(account)
    case.replace()
    case.refresh()
    assert account.spent == 2
    found = case.ask()
    assert len(found) == 3
    assert set(found) <= set(IDS[N:])


@pytest.mark.parametrize("mode", ["index", "query"])
def test_unreadable_haystack(mode: str, tmp_path: Path) -> None:
    """Haystack documents that cannot be read by their ids cost nothing."""
    module = pytest.importorskip("haystack")
    from scoreshield.integrations.haystack import PrivateRetriever

    account = account_in(tmp_path)
    store: Any = HaystackServer(lambda one: module.Document(id=one, content=one, embedding=VECTORS[one]))
    store.gives = False
    retriever = PrivateRetriever(store, epsilon=1, mode=mode, ledger=account)
    with pytest.raises(InvalidInput, match="gives none of its 12 documents by its id: every answer would be empty"):
        retriever.run(ROWS[0].tolist())
    assert account.spent == 0


class Source:
    """Documents by their ids; while it fails, one at a time and no more."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self.make, self.fails = make, True

    def __call__(self, ids: Any) -> list[Any]:
        if self.fails and len(ids) > 1:
            raise ConnectionError
        return [self.make(one) for one in ids]


def langchain_query(account: Any) -> tuple[Source, PrivateSearch, Callable[[], list[str]]]:
    documents = pytest.importorskip("langchain_core.documents")
    embeddings = pytest.importorskip("langchain_core.embeddings")
    from scoreshield.integrations.langchain import PrivateVectorStore

    search = PrivateSearch(ArrayStore(ROWS, ids=IDS), epsilon=1, mode="query", ledger=account)
    source = Source(lambda one: documents.Document(id=one, page_content=one))
    store = PrivateVectorStore(search, embeddings.DeterministicFakeEmbedding(size=D), source)
    return source, search, lambda: [str(one.id) for one in store.similarity_search("query", k=3)]


def llama_index_query(account: Any) -> tuple[Source, PrivateSearch, Callable[[], list[str]]]:
    schema = pytest.importorskip("llama_index.core.schema")
    from scoreshield.integrations.llama_index import PrivateRetriever
    from scoreshield.integrations.llama_index_nodes import NodeSource

    search = PrivateSearch(ArrayStore(ROWS, ids=IDS), epsilon=1, mode="query", ledger=account)
    source = Source(lambda one: schema.TextNode(id_=one, text=one))
    retriever = PrivateRetriever(search, {}, similarity_top_k=3)
    retriever._core.source = NodeSource(lambda ids: dict(zip(ids, source(ids), strict=True)))
    query = schema.QueryBundle("query", embedding=ROWS[0].tolist())
    return source, search, lambda: [one.node.node_id for one in retriever.retrieve(query)]


def haystack_query(account: Any) -> tuple[Source, PrivateSearch, Callable[[], list[str]]]:
    module = pytest.importorskip("haystack")
    from scoreshield.integrations.haystack import PrivateRetriever

    store: Any = HaystackServer(lambda one: module.Document(id=one, content=one, embedding=VECTORS[one]))
    source = Source(store.make)
    read = store.filter_documents
    store.filter_documents = lambda filters=None: read() if filters is None else source(filters["value"])
    retriever = PrivateRetriever(store, epsilon=1, mode="query", top_k=3, ledger=account)
    retriever.warm_up()
    return source, retriever.search, lambda: [one.id for one in retriever.run(ROWS[0].tolist())["documents"]]


@pytest.mark.parametrize("framework", [langchain_query, llama_index_query, haystack_query])
def test_hidden_in_kept_ranking(framework: Any, tmp_path: Path) -> None:
    """A ranking whose documents could not be read is kept, and shown when the same is asked again."""
    account = account_in(tmp_path)
    source, search, ask = framework(account)
    with pytest.raises(DocumentsNotRead) as told:
        ask()
    first, *others = told.value.ids[0]
    search.hide([first])
    source.fails = False
    found = ask()
    assert account.spent == 1
    assert found[:2] == list(others)
    assert len(found) == 3
    assert first not in found
