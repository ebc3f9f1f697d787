"""LangChain: what the private store and retriever return, against PrivateSearch and NumPy on the same vectors."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("langchain_core")
from integrations.leak_detector import LeakDetector, catch
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListLLM
from langchain_core.load import dumpd, dumps
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tracers.context import collect_runs
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore, VectorStoreRetriever

import scoreshield as ss
from scoreshield.errors import BudgetExceeded, DocumentsNotRead, InvalidInput, InvalidParameter, StoreError
from scoreshield.integrations.langchain import PrivateRetriever, PrivateVectorStore
from scoreshield.integrations.langchain_documents import InMemoryStore, adapt_vectorstore
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore, PinnedStore

N, D = 30, 12
IDS = [f"id-{i}" for i in range(N)]
TEXTS = [f"text {i}" for i in range(N)]
COSINES = np.random.default_rng(7).permutation(np.linspace(-0.9, 0.9, N))
QUERY = np.random.default_rng(9).standard_normal(D)


def at_cosines(cosines: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Rows of several lengths at these cosines to the query, otherwise in random directions."""
    unit = query / np.linalg.norm(query)
    others = np.random.default_rng(8).standard_normal((len(cosines), len(query)))
    others -= np.outer(others @ unit, unit)
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    rows = cosines[:, None] * unit + np.sqrt(1 - cosines[:, None] ** 2) * others
    return rows * np.linspace(0.5, 2, len(cosines))[:, None]


ROWS = at_cosines(COSINES, QUERY)
BEST = [IDS[i] for i in np.argsort(-COSINES)]
#: So much that what comes back is known: two neighbours in the order of merit, 0.062 apart, change places with a
#: probability below 1e-7 in an index, and far below that where scores are asked for.
CLEAR: dict[str, Any] = {"epsilon": 3e4, "delta": 1e-6, "mechanism": "gaussian"}
ASKED: dict[str, Any] = {"epsilon": 1e7, "mode": "query", "mechanism": "laplace"}


class Model(Embeddings):
    """Texts by a table; other texts are far from everything, at random but the same each time."""

    def __init__(self, only_async: bool = False) -> None:
        self.table = {text: row.tolist() for text, row in zip(TEXTS, ROWS, strict=True)} | {"query": QUERY.tolist()}
        self.only_async = only_async

    def embed_query(self, text: str) -> list[float]:
        if self.only_async:
            raise AssertionError("the sync call of the model was used")
        if text not in self.table:
            seed = int.from_bytes(text.encode()[-8:], "little")
            self.table[text] = np.random.default_rng(seed).standard_normal(D).tolist()
        return self.table[text]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    async def aembed_query(self, text: str) -> list[float]:
        return self.table[text]


def filled(make: Callable[[Embeddings], VectorStore], ids: Sequence[str] = IDS) -> VectorStore:
    store = make(Model())
    store.add_texts(TEXTS, [{"part": i % 3, "score": float(COSINES[i])} for i in range(N)], ids=list(ids))
    return store


@pytest.fixture
def clean() -> InMemoryVectorStore:
    return filled(InMemoryVectorStore)  # type: ignore[return-value]


@pytest.fixture
def ledger(tmp_path: Path) -> ss.Ledger:
    return ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10, delta=0)


def ids_of(documents: Sequence[Document]) -> list[Any]:
    return [document.id for document in documents]


def noisy(document: Document) -> float:
    return float(document.metadata["scoreshield"]["noisy_score"])


# ---- What comes back.


def test_one_line_change(clean: InMemoryVectorStore) -> None:
    """One line changes, and the pipeline works as before."""
    before = clean.as_retriever(search_kwargs={"k": 4})
    after = PrivateRetriever.from_vectorstore(clean, **CLEAR, k=4)
    assert isinstance(after, BaseRetriever)
    prompt, model = PromptTemplate.from_template("{context}\n{question}"), FakeListLLM(responses=["so it is"])
    for retriever in (before, after):
        texts = RunnableLambda(lambda found: [document.page_content for document in found])
        chain = {"context": retriever | texts, "question": RunnablePassthrough()} | prompt | model
        assert chain.invoke("query") == "so it is"
        assert ids_of(retriever.invoke("query")) == BEST[:4]


@pytest.mark.parametrize("options", [{}, {"mode": "query"}, {"mode": "query", "mechanism": "laplace"}])
def test_the_answers_are_those_of_the_search(clean: InMemoryVectorStore, options: dict[str, Any]) -> None:
    """In research mode with one seed, the same noise is drawn on both ways."""
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=2, rng=5, **options)
    search = PrivateSearch(ArrayStore(ROWS.astype(np.float32), ids=IDS), epsilon=2, rng=5, **options)
    hits = search.search(QUERY, 6)
    found = store.similarity_search_with_score("query", k=6)
    assert ids_of([document for document, _ in found]) == list(hits.ids)
    np.testing.assert_allclose([score for _, score in found], hits.scores, atol=1e-6)
    np.testing.assert_allclose([noisy(document) for document, _ in found], hits.noisy, atol=1e-6)
    assert all(document.metadata["scoreshield"].get("noise_std") == hits.noise_std for document, _ in found)
    assert all(-1 < score < 1 for _, score in found)


def test_document_metadata(clean: InMemoryVectorStore) -> None:
    """Documents carry the guarantee and nothing clean."""
    (document,) = PrivateRetriever.from_vectorstore(clean, **CLEAR, k=1).invoke("query")
    number = IDS.index(BEST[0])
    assert (document.id, document.page_content) == (BEST[0], TEXTS[number])
    told = document.metadata.pop("scoreshield")
    assert document.metadata == {"part": number % 3}  # and not the score that the store kept beside it
    assert abs(told.pop("noisy_score") - COSINES[number]) < 0.05
    assert told.pop("total_epsilon") == pytest.approx(3e4)
    assert 0 < told.pop("noise_std") < 0.05
    assert told.pop("worth")["is_useful"]
    assert told == {
        "mode": "index",
        "covers": "every query to this index",
        "epsilon": 3e4,
        "delta": 1e-6,
        "mechanism": "gaussian",
        "adjacency": "replacement",
        "sampler": "exact",
        "version": 1,
    }
    assert clean.store[BEST[0]]["metadata"]["score"] == COSINES[number]  # what is returned is a copy


def test_relevance(clean: InMemoryVectorStore) -> None:
    """Relevance is half of one plus the score."""
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=3)
    relevant = store.similarity_search_with_relevance_scores("query", k=N)
    scored = store.similarity_search_with_score("query", k=N)
    assert [(one.id, score) for one, score in relevant] == [(one.id, (1 + score) / 2) for one, score in scored]
    assert 0 <= min(score for _, score in relevant) <= max(score for _, score in relevant) <= 1
    assert store._select_relevance_score_fn()(-1.0) == 0


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.5, 0.75, 1.0])
def test_a_threshold_cuts_released_scores(clean: InMemoryVectorStore, threshold: float) -> None:
    """A threshold cuts released scores."""
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=3)
    everything = store.similarity_search_with_relevance_scores("query", k=N)
    passing = [document.id for document, score in everything if score >= threshold]
    search_kwargs = {"k": 5, "score_threshold": threshold}
    retriever = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=search_kwargs)
    assert ids_of(retriever.invoke("query")) == passing[:5]
    assert ids_of(asyncio.run(retriever.ainvoke("query"))) == passing[:5]
    assert ids_of(store.search("query", "similarity_score_threshold", **search_kwargs)) == passing[:5]


def test_filters_cut_the_released_ranking(clean: InMemoryVectorStore) -> None:
    """Filters cut the released ranking."""
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=3, filterable=["part"])
    everything = store.similarity_search("query", k=N)
    wanted = [document.id for document in everything if document.metadata["part"] == 1][:4]
    seen: list[Document] = []

    def keep(document: Document) -> bool:
        seen.append(document)
        return bool(document.metadata["part"] == 1)

    assert ids_of(store.similarity_search("query", k=4, filter=keep)) == wanted
    assert ids_of(store.similarity_search("query", k=4, filter={"part": 1})) == wanted
    assert ids_of(store.similarity_search_by_vector(QUERY.tolist(), k=4, filter={"part": 1})) == wanted
    assert store.similarity_search("query", filter={"part": 9}) == []
    assert all(set(document.metadata) == {"part"} for document in seen)  # a filter sees no score


def test_filter_pages() -> None:
    """A filter over many pages reads each document once."""
    asked: list[str] = []
    calls: list[int] = []

    def documents(ids: Sequence[str]) -> list[Document]:
        asked.extend(ids)
        calls.append(len(ids))
        return [Document(id=one, page_content="", metadata={"last": one == "id-2999"}) for one in ids]

    rows = np.random.default_rng(3).standard_normal((3000, D))
    store = ArrayStore(rows, ids=[f"id-{i}" for i in range(3000)])
    for mode in ("index", "query"):
        search = PrivateSearch(store, epsilon=3, mode=mode, rng=1)
        private = PrivateVectorStore(search, Model(), documents, filterable=["last"])
        asked.clear()
        calls.clear()
        found = private.similarity_search("query", filter={"last": True})
        assert ids_of(found) == ["id-2999"]
        assert len(asked) == len(set(asked)) <= 3000
        assert len(calls) < 20  # 1, 2, 4, ... 512, 512


def test_async_uses_the_models_own_calls(clean: InMemoryVectorStore) -> None:
    """Asynchronous calls use those of the model."""
    store = PrivateVectorStore.from_vectorstore(clean, **CLEAR, embedding=Model(only_async=True))

    async def all_of_them() -> list[list[Any]]:
        scored = await store.asimilarity_search_with_score("query", k=3)
        relevant = await store.asimilarity_search_with_relevance_scores("query", k=3, score_threshold=0.0)
        return [
            ids_of(await store.asimilarity_search("query", k=3)),
            ids_of(await store.asimilarity_search_by_vector(QUERY.tolist(), k=3)),
            ids_of(await store.as_retriever(search_kwargs={"k": 3}).ainvoke("query")),
            ids_of((await store.as_retriever(search_kwargs={"k": 3}).abatch(["query"]))[0]),
            ids_of([document for document, _ in scored]),
            ids_of([document for document, _ in relevant]),
        ]

    assert asyncio.run(all_of_them()) == [BEST[:3]] * 6


def test_call_arguments(clean: InMemoryVectorStore) -> None:
    """Arguments of a call go before those of the retriever."""
    search_kwargs = {"k": 2, "filter": {"part": 0}}
    retriever = PrivateRetriever.from_vectorstore(clean, **CLEAR, search_kwargs=search_kwargs, filterable=["part"])
    of_part = [one for one in BEST if IDS.index(one) % 3 == 0]
    assert ids_of(retriever.invoke("query")) == of_part[:2]
    assert ids_of(retriever.invoke("query", k=5, verbose=True)) == of_part[:5]
    assert ids_of(retriever.invoke("query", k=100)) == of_part


def test_get_by_ids(clean: InMemoryVectorStore) -> None:
    """Documents by id come without scores."""
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=1)
    found = store.get_by_ids(["id-7", "nobody", "id-3", "id-7"])
    assert found == [Document(id=f"id-{i}", page_content=f"text {i}", metadata={"part": i % 3}) for i in (7, 3)]
    assert asyncio.run(store.aget_by_ids(["id-7"])) == found[:1]


# ---- Modes and budgets.


def test_spent_budget(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """A query is charged, and rejected when the budget is spent."""
    account = ledger.account("papers")
    retriever = PrivateRetriever.from_vectorstore(clean, epsilon=4, mode="query", ledger=account)
    assert account.spent == 0
    first, second = retriever.invoke("query"), retriever.invoke("query")
    assert account.spent == 8
    assert [noisy(document) for document in first] != [noisy(document) for document in second]
    assert first[0].metadata["scoreshield"]["covers"] == "this query"
    with pytest.raises(BudgetExceeded):
        retriever.invoke("query")
    assert account.spent == 8


class Recorder(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:  # noqa: ARG002
        self.events.append(("start", query))

    def on_retriever_end(self, documents: Sequence[Document], **kwargs: Any) -> None:  # noqa: ARG002
        self.events.append(("end", ids_of(documents)))

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:  # noqa: ARG002
        self.events.append(("error", type(error).__name__))


def both_ways(retriever: Any) -> list[Callable[..., Any]]:
    return [retriever.batch, lambda *args, **kwargs: asyncio.run(retriever.abatch(*args, **kwargs))]


@pytest.mark.parametrize("way", [0, 1])
def test_batch_charge(clean: InMemoryVectorStore, ledger: ss.Ledger, way: int) -> None:
    """A batch is charged as a whole or not at all."""
    account = ledger.account("papers")
    retriever = PrivateRetriever.from_vectorstore(clean, epsilon=3, k=2, mode="query", ledger=account)
    batch = both_ways(retriever)[way]
    recorder = Recorder()
    with pytest.raises(BudgetExceeded):
        batch(["query", "text 1", "text 2", "text 3"])
    refused = batch(["query"] * 4, {"callbacks": [recorder]}, return_exceptions=True)
    assert [type(one) for one in refused] == [BudgetExceeded] * 4
    assert sorted(recorder.events) == [("error", "BudgetExceeded")] * 4 + [("start", "query")] * 4
    assert account.spent == 0

    recorder = Recorder()
    answers = batch(["query", "text 1", "query"], {"callbacks": [recorder]})
    assert account.spent == 9
    assert [len(found) for found in answers] == [2, 2, 2]
    assert noisy(answers[0][0]) != noisy(answers[2][0])  # the same question twice is two releases
    assert sorted(query for event, query in recorder.events if event == "start") == ["query", "query", "text 1"]
    ended = [found for event, found in recorder.events if event == "end"]
    assert sorted(ended) == sorted(map(ids_of, answers))
    assert batch([]) == []


def test_a_chain_batches_its_retriever_whole(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """A chain charges a batch of its retriever as a whole."""
    account = ledger.account("papers")
    retriever = PrivateRetriever.from_vectorstore(clean, epsilon=3, mode="query", ledger=account)
    chain = RunnableLambda(str.lower) | retriever | RunnableLambda(len)
    with pytest.raises(BudgetExceeded):
        chain.batch(["QUERY"] * 4)
    assert account.spent == 0
    assert chain.batch(["QUERY"] * 3) == [4, 4, 4]
    assert account.spent == 9


def test_batches_of_an_index_and_with_thresholds(clean: InMemoryVectorStore) -> None:
    """Batches work over an index and with thresholds."""
    index = PrivateRetriever.from_vectorstore(clean, **CLEAR, k=2)
    assert list(map(ids_of, index.batch(["query", "text 4"]))) == [BEST[:2], ids_of(index.invoke("text 4"))]
    asked = PrivateVectorStore.from_vectorstore(clean, **ASKED, rng=1)
    retriever = asked.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.85, "k": 9}
    )
    expected = [one for one in BEST if (1 + COSINES[IDS.index(one)]) / 2 >= 0.85]
    assert 0 < len(expected) < 9
    assert [ids_of(found) for way in both_ways(retriever) for found in way(["query", "query"])] == [expected] * 4


def test_screening(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """Screening names documents, and has scores only if it refines."""
    account = ledger.account("papers")
    options = {"mode": "screening", "threshold": 0.3, "ledger": account}
    bare = PrivateVectorStore.from_vectorstore(clean, epsilon=2, **options)
    for ask in (bare.similarity_search_with_score, bare.similarity_search_with_relevance_scores):
        with pytest.raises(InvalidInput, match="screening without 'refine' releases names alone"):
            ask("query")
    with pytest.raises(InvalidInput, match="releases names alone"):
        bare.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5}).batch(
            ["query"]
        )
    assert account.spent == 0
    found = bare.similarity_search("query", k=N)
    assert account.spent == 2
    assert all("noisy_score" not in document.metadata["scoreshield"] for document in found)
    refined = PrivateVectorStore.from_vectorstore(clean, epsilon=6, refine=0.5, **options)
    scores = [score for _, score in refined.similarity_search_with_score("query", k=N)]
    assert scores == sorted(scores, reverse=True)


def test_index_file(clean: InMemoryVectorStore, ledger: ss.Ledger, tmp_path: Path) -> None:
    """An index is charged once and kept in a file."""
    account = ledger.account("papers")
    options = {"epsilon": 6, "ledger": account, "file": tmp_path / "index.npz"}
    first = PrivateRetriever.from_vectorstore(clean, **options)  # type: ignore[arg-type]
    again = PrivateRetriever.from_vectorstore(clean, **options)  # type: ignore[arg-type]
    assert again.invoke("query") == first.invoke("query")
    assert account.spent == 6
    assert first.vectorstore.guarantee.epsilon == 6
    first.vectorstore.save(tmp_path / "copy.npz")
    loaded = PrivateSearch.load(tmp_path / "copy.npz")
    alone = PrivateRetriever.from_search(loaded, Model(), clean.get_by_ids)
    assert ids_of(alone.invoke("query")) == ids_of(first.invoke("query"))


def test_failure_after_charge(clean: InMemoryVectorStore, ledger: ss.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to read documents does not lose a paid ranking."""
    account = ledger.account("papers")
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=5, mode="query", ledger=account)
    with monkeypatch.context() as broken:
        broken.setattr(clean, "store", _Unreadable(clean.store, IDS[0]))
        released = []
        for _ in range(3):
            with pytest.raises(
                DocumentsNotRead, match=r"read \(ConnectionError\)\. The query was charged and"
            ) as caught:
                store.similarity_search("query")
            released.append(caught.value.ids)
        assert "text of the store" not in str(caught.value)
    assert account.spent == 5
    assert released[0] == released[1] == released[2]
    (ids,) = released[0]
    assert len(ids) == 4
    assert f"released the records {', '.join(map(repr, ids))}." in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).ids == caught.value.ids
    assert ids_of(store.get_by_ids(list(ids))) == list(ids)  # the caller can read them by other means
    assert len(store.similarity_search("query")) == 4
    assert account.spent == 5
    assert len(store.similarity_search("query")) == 4  # and a new one is a new release
    assert account.spent == 10


class _Unreadable(dict[str, Any]):
    """Entries that can be listed, as for a reading of vectors, but not looked up, except for one."""

    def __init__(self, entries: dict[str, Any], readable: str | None = None) -> None:
        super().__init__(entries)
        self.readable = readable

    def get(self, one: Any, *_: Any) -> Any:
        if one == self.readable:
            return self[one]
        raise ConnectionError("text of the store")


@pytest.mark.parametrize("mode", ["index", "query", "screening"])
def test_unreadable_documents(
    clean: InMemoryVectorStore, ledger: ss.Ledger, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents that cannot be read are not charged."""
    account = ledger.account("papers")
    options: dict[str, Any] = {"epsilon": 5, "mode": mode, "ledger": account}
    if mode == "screening":
        options["threshold"] = 0.0
    monkeypatch.setattr(clean, "store", _Unreadable(clean.store))
    with pytest.raises(StoreError, match=r"^The documents could not be read \(ConnectionError\)"):
        PrivateRetriever.from_vectorstore(clean, **options).invoke("query")
    assert account.spent == 0


def test_a_filter_that_fails_costs_nothing(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """A filter that fails costs nothing."""
    options: dict[str, Any] = {"mode": "query", "ledger": ledger.account("papers"), "filterable": ["nothing"]}
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=5, **options)
    with pytest.raises(KeyError):
        store.similarity_search("query", filter=lambda document: document.metadata["nothing"])
    assert ledger.account("papers").spent == 0


# ---- Changes.


def test_index_version(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """An index answers from its version until it is refreshed."""
    account = ledger.account("papers")
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=5, ledger=account)
    assert store.stale is False
    with pytest.warns(UserWarning, match=r"until refresh\(\), which charges its epsilon again"):
        assert store.add_texts(["new"], ids=["new"]) == ["new"]
    assert store.stale is True
    assert "new" not in ids_of(store.similarity_search("query", k=N + 1))
    store.refresh()
    assert account.spent == 10
    found = store.similarity_search("query", k=N + 1)
    assert "new" in ids_of(found)
    assert found[0].metadata["scoreshield"]["version"] == 2


def test_deleted_documents_are_left_out_at_once(clean: InMemoryVectorStore) -> None:
    """Deleted documents are left out at once."""
    store = PrivateVectorStore.from_vectorstore(clean, **CLEAR, max_epsilon=1e9)
    store.delete(BEST[:2])
    assert ids_of(store.similarity_search("query", k=3)) == BEST[2:5]
    asyncio.run(store.adelete([BEST[2]]))
    clean.delete([BEST[3]])  # not through the private store
    assert ids_of(store.similarity_search("query", k=3)) == BEST[4:7]
    assert list(map(ids_of, store.as_retriever(search_kwargs={"k": 1}).batch(["query", "query"]))) == [[BEST[4]]] * 2
    store.hide([BEST[4]])
    assert ids_of(store.similarity_search("query", k=1)) == [BEST[5]]
    with pytest.warns(UserWarning, match="refresh"):
        asyncio.run(store.aadd_documents([Document(id=BEST[0], page_content="query")]))
    store.refresh()
    assert ids_of(store.similarity_search("query", k=1)) == [BEST[0]]  # back, as someone new


def test_modes_that_charge_see_the_new_version(clean: InMemoryVectorStore) -> None:
    """Modes that charge see the new version."""
    options = {**ASKED, "rng": 1}
    store = PrivateVectorStore.from_vectorstore(clean, **options)  # type: ignore[arg-type]
    assert store.similarity_search("query")[0].metadata["scoreshield"]["version"] == 1
    store.add_documents([Document(id="new", page_content="query")])
    store.delete([BEST[0]])
    found = store.similarity_search("query", k=2)
    assert ids_of(found) == ["new", BEST[1]]
    assert found[0].metadata["scoreshield"]["version"] == 2
    lazy = PrivateVectorStore.from_vectorstore(clean, check_every=1000.0, **options)  # type: ignore[arg-type]
    lazy.similarity_search("query")
    clean.delete(["new"])
    assert ids_of(lazy.similarity_search("query", k=2)) == BEST[1:3]  # the old version, less who is gone
    lazy.add_documents([Document(id="newer", page_content="query")])  # through it: seen at once
    assert ids_of(lazy.similarity_search("query", k=2)) == ["newer", BEST[1]]


@pytest.mark.parametrize("hold", [False, True])
def test_memory_state(clean: InMemoryVectorStore, hold: bool) -> None:
    """The store in memory shows its changes."""
    store = InMemoryStore(clean, holds=hold)
    states = [store.state()]
    assert store.state() == states[0]
    clean.add_texts(["another"], ids=["id-3"])
    states.append(store.state())
    clean.delete(["id-3"])
    states.append(store.state())
    clean.add_texts(["a third"], ids=["id-3"])
    states.append(store.state())
    clean.delete(["id-3"])  # the last, and back at once: the new entry may lie where the old one did
    clean.add_texts(["a fourth"], ids=["id-3"])
    states.append(store.state())
    clean.store["id-5"]["vector"] = [1.0] * D  # by hand, into an old entry
    states.append(store.state())
    clean.store["id-x"] = clean.store.pop("id-3")  # the last, by another name
    states.append(store.state())
    clean.store = {f"{one}-y": entry for one, entry in clean.store.items()}
    states.append(store.state())
    clean.delete(["id-7-y"])
    states.append(store.state())
    store.mark_changed()
    states.append(store.state())
    assert store.state() == states[-1]
    assert len(set(states)) == len(states)


def test_large_store_state() -> None:
    """Each query asks for it: reading them all would cost more than the release."""
    read = 0

    class Entry(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            nonlocal read
            read += 1
            return super().__getitem__(key)

    wrapped = InMemoryVectorStore(Model())
    wrapped.store = {str(i): Entry(id=str(i), vector=[float(i)], text="", metadata={}) for i in range(20_000)}
    store = InMemoryStore(wrapped, holds=True)
    first = store.state()
    read = 0
    assert store.state() == first
    assert 1024 <= read < 2048
    wrapped.store["12345"] = Entry(wrapped.store["12345"])  # whichever it is
    assert store.state() != first


def test_faiss_ids() -> None:
    """The ids of a FAISS store are read once per version."""
    wrapped: Any = filled(in_faiss)
    vectors = adapt_vectorstore(wrapped).store
    inner, state = vectors._get_store(), vectors.state()  # type: ignore[attr-defined]
    assert vectors._get_store() is inner  # type: ignore[attr-defined]
    assert vectors.state() == state
    named = wrapped.index_to_docstore_id
    named[0], named[1] = named[1], named[0]
    assert vectors.state() != state
    assert list(vectors.records().ids)[:2] == [IDS[1], IDS[0]]  # type: ignore[union-attr]
    state = vectors.state()
    last = wrapped.index_to_docstore_id[N - 1]
    wrapped.delete([last])
    wrapped.add_texts(["query"], ids=[last])  # as many as before, of the same names, and not through the private store
    assert vectors.state() != state
    assert list(vectors.records().ids) == list(wrapped.index_to_docstore_id.values())  # type: ignore[union-attr]


def test_memory_order(clean: InMemoryVectorStore) -> None:
    """The store in memory gives everything in the order of its records."""
    store = InMemoryStore(clean)
    ids, values = store.scores((QUERY / np.linalg.norm(QUERY)).astype(np.float32))
    assert list(ids) == IDS  # and in no order of merit
    np.testing.assert_allclose(values, COSINES, atol=1e-6)
    records = store.records()
    assert list(records.ids) == IDS
    np.testing.assert_allclose(records.vectors, ROWS, rtol=1e-6)
    assert store.dimension == D


# ---- Other stores.


class Shelf:
    """The documents of `FaissVectors`. For an id that is not there, it answers with a sentence."""

    def __init__(self) -> None:
        self._dict: dict[str, Document] = {}

    def search(self, one: str) -> Document | str:
        return self._dict.get(one, f"ID {one} not found.")


class FaissVectors(VectorStore):
    """A FAISS index with documents, under the public names that langchain-community gives them.

    That package is archived, and people still use its FAISS. So the adapter stays, and needs no such package.
    """

    def __init__(self, embedding: Embeddings, index: Any) -> None:
        self.embedding, self.index, self.docstore = embedding, index, Shelf()
        self.index_to_docstore_id: dict[int, str] = {}

    @property
    def embeddings(self) -> Embeddings:
        return self.embedding

    def add_documents(self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any) -> list[str]:
        assert not kwargs
        names = [document.id or str(uuid.uuid4()) for document in documents] if ids is None else ids
        texts = [document.page_content for document in documents]
        self.index.add(np.array(self.embedding.embed_documents(texts), dtype=np.float32))
        for name, document in zip(names, documents, strict=True):
            self.index_to_docstore_id[len(self.index_to_docstore_id)] = name
            self.docstore._dict[name] = document
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        assert ids is not None
        assert not kwargs
        gone = [place for place, one in self.index_to_docstore_id.items() if one in ids]
        self.index.remove_ids(np.array(gone, dtype=np.int64))
        kept = [one for place, one in sorted(self.index_to_docstore_id.items()) if place not in gone]
        self.index_to_docstore_id = dict(enumerate(kept))
        for one in ids:
            del self.docstore._dict[one]
        return True

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        raise AssertionError((query, k, kwargs))

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> FaissVectors:
        raise AssertionError((args, kwargs))


def in_faiss(model: Embeddings) -> VectorStore:
    faiss = pytest.importorskip("faiss")
    # The adapter knows the class by its package and its name.
    known = type("FAISS", (FaissVectors,), {"__module__": "langchain_community.vectorstores.faiss"})
    return known(model, faiss.IndexFlatL2(D))  # type: ignore[no-any-return]


def in_qdrant(model: Embeddings) -> VectorStore:
    qdrant = pytest.importorskip("langchain_qdrant")
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    models = pytest.importorskip("qdrant_client.models")
    client.create_collection("papers", models.VectorParams(size=D, distance=models.Distance.COSINE))
    return qdrant.QdrantVectorStore(client, "papers", model)  # type: ignore[no-any-return]


def in_chroma(model: Embeddings, space: str = "cosine") -> VectorStore:
    chroma = pytest.importorskip("langchain_chroma")
    chromadb = pytest.importorskip("chromadb")
    # Clients in memory are one client in a process, whose settings are those of all tests that have one.
    client = chromadb.EphemeralClient(chromadb.config.Settings(anonymized_telemetry=False))
    configuration = {"hnsw": {"space": space}}
    return chroma.Chroma(f"papers-{uuid.uuid4()}", model, client=client, collection_configuration=configuration)  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [InMemoryVectorStore, in_faiss, in_qdrant, in_chroma])
def test_vector_stores(make: Callable[[Embeddings], VectorStore]) -> None:
    """Every vector store is read, and its documents are found."""
    uuids = [f"00000000-0000-0000-0000-{i:012d}" for i in range(N)]  # Qdrant takes no other strings
    wrapped = filled(make, uuids)
    store = PrivateVectorStore.from_vectorstore(wrapped, **CLEAR, max_epsilon=1e9, filterable=["part"])
    best = [uuids[IDS.index(one)] for one in BEST]
    found = store.similarity_search_with_score("query", k=N)
    assert ids_of([document for document, _ in found]) == best
    np.testing.assert_allclose([score for _, score in found], np.sort(COSINES)[::-1], atol=0.05)
    assert [document.page_content for document, _ in found] == [TEXTS[uuids.index(one)] for one in best]
    assert all("score" not in document.metadata and "part" in document.metadata for document, _ in found)
    assert (
        ids_of(store.similarity_search("query", k=2, filter={"part": IDS.index(BEST[5]) % 3}))
        == [one for one in best if uuids.index(one) % 3 == IDS.index(BEST[5]) % 3][:2]
    )
    assert ids_of(store.get_by_ids(uuids[:2])) == uuids[:2]
    store.delete(best[:1])
    assert ids_of(store.similarity_search("query", k=2)) == best[1:3]
    store.refresh()
    assert ids_of(store.similarity_search("query", k=N)) == best[1:]

    asked = PrivateVectorStore.from_vectorstore(wrapped, **ASKED, rng=2)
    assert ids_of(asked.similarity_search("query", k=3)) == best[1:4]
    asked.delete([uuids[-1]] if uuids[-1] != best[1] else [best[1]])
    asked.add_texts(["query"], [{"part": 0}], ids=[uuids[-1]])  # as many as before, and another vector
    assert ids_of(asked.similarity_search("query", k=1)) == [uuids[-1]]


def test_distance_store() -> None:
    """Chroma's default: such a distance says more of a vector than its cosine, and is not used."""
    private = PrivateVectorStore.from_vectorstore(filled(lambda model: in_chroma(model, "l2")), **CLEAR)
    found = private.similarity_search_with_score("query", k=N)
    assert ids_of([document for document, _ in found]) == BEST
    np.testing.assert_allclose([score for _, score in found], np.sort(COSINES)[::-1], atol=0.05)


def test_a_store_with_numbers_for_ids() -> None:
    """Qdrant's own; LangChain's ids are strings."""
    wrapped = in_qdrant(Model())
    models = pytest.importorskip("qdrant_client.models")
    points = [
        models.PointStruct(id=i, vector=ROWS[i].tolist(), payload={"page_content": TEXTS[i], "metadata": {}})
        for i in range(N)
    ]
    wrapped.client.upsert("papers", points)  # type: ignore[attr-defined]
    (document,) = PrivateRetriever.from_vectorstore(wrapped, **CLEAR, k=1).invoke("query")
    number = IDS.index(BEST[0])
    assert (document.id, document.page_content) == (str(number), TEXTS[number])


def test_sparse_retrieval() -> None:
    """Sparse retrieval is rejected."""
    wrapped = in_qdrant(Model())
    wrapped.retrieval_mode = pytest.importorskip("langchain_qdrant").RetrievalMode.HYBRID  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="retrieval_mode='dense'"):
        PrivateVectorStore.from_vectorstore(wrapped, epsilon=1)


class Unknown(InMemoryVectorStore):
    """A vector store of nobody's: its vectors are elsewhere."""


class Stranger(VectorStore):
    embeddings = Model()  # type: ignore[assignment]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        raise AssertionError((query, k, kwargs))

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        return [Document(id=one, page_content=TEXTS[IDS.index(one)]) for one in ids]

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> Stranger:
        raise AssertionError((args, kwargs))


def test_unknown_vector_store() -> None:
    """A vector store that is not known needs a store."""
    with pytest.raises(InvalidInput, match=r"no adapter for a Stranger: say where its vectors are with 'store'"):
        PrivateVectorStore.from_vectorstore(Stranger(), epsilon=1)
    store = ArrayStore(ROWS.astype(np.float32), ids=IDS)
    private = PrivateVectorStore.from_vectorstore(Stranger(), **CLEAR, store=store)
    assert ids_of(private.similarity_search("query", k=3)) == BEST[:3]
    assert ids_of(PrivateVectorStore.from_vectorstore(filled(Unknown), **CLEAR).similarity_search("query"))


@pytest.mark.parametrize("mode", ["index", "query"])
def test_mismatched_ids(clean: InMemoryVectorStore, ledger: ss.Ledger, mode: str) -> None:
    """A store whose ids name no document is rejected before a charge."""
    account = ledger.account("papers")
    options: dict[str, Any] = {"epsilon": 2, "mode": mode, "ledger": account}
    rows = ROWS.astype(np.float32)
    for store in (ArrayStore(rows), PinnedStore(ArrayStore(rows))):  # their ids are row numbers
        with pytest.raises(InvalidInput, match=r"None of the 30 records has the id of a document \(the first is 0\)"):
            PrivateRetriever.from_vectorstore(clean, store=store, **options)  # type: ignore[arg-type]
    assert account.spent == 0
    search = PrivateSearch(rows, epsilon=2, mode=mode, rng=1)
    for documents in ({}, {"id-3": Document(page_content="")}, lambda _: []):
        with pytest.raises(InvalidInput, match="None of the 30 records has the id of a document"):
            PrivateVectorStore(search, Model(), documents)  # type: ignore[arg-type]
    some = ArrayStore(rows, ids=[*range(N - 1), "id-7"])  # the others were deleted, it may be
    assert ids_of(PrivateVectorStore.from_vectorstore(clean, store=some, **options).similarity_search("query", k=N))
    assert account.spent == 2


def test_single_reading(clean: InMemoryVectorStore) -> None:
    """A store is read once for its ids and its vectors."""

    class Counted(ArrayStore):
        readings = 0

        def records(self) -> Any:
            self.readings += 1
            return super().records()

    store = Counted(ROWS.astype(np.float32), ids=IDS)
    private = PrivateVectorStore.from_vectorstore(clean, store=store, pin="copy", check_every=5.0, **CLEAR)
    assert ids_of(private.similarity_search("query", k=3)) == BEST[:3]
    assert store.readings == 1


def test_new_ids(ledger: ss.Ledger, tmp_path: Path) -> None:
    """Without ids LangChain draws them: in the next process the saved ones name nothing."""
    account = ledger.account("papers")
    options: dict[str, Any] = {"epsilon": 4, "ledger": account, "file": tmp_path / "index.npz"}
    first = PrivateRetriever.from_vectorstore(InMemoryVectorStore.from_texts(TEXTS, Model()), **options)
    assert len(first.invoke("query")) == 4
    with pytest.raises(InvalidInput):
        PrivateRetriever.from_vectorstore(InMemoryVectorStore.from_texts(TEXTS, Model()), **options)
    assert account.spent == 4
    shelf = filled(InMemoryVectorStore)
    store = ArrayStore(ROWS.astype(np.float32), ids=list(first.vectorstore._core.search.ids))
    with pytest.raises(InvalidInput, match="None of the 30 records has the id of a document"):
        PrivateRetriever.from_vectorstore(shelf, store=store, **options)
    assert account.spent == 4


# ---- Other ways to make one.


def test_from_a_search_and_documents() -> None:
    """A retriever is made from a search and documents."""
    search = PrivateSearch(ROWS.astype(np.float32), **CLEAR)  # ids are row numbers
    documents = {i: Document(page_content=TEXTS[i]) for i in range(N)}
    best = [str(IDS.index(one)) for one in BEST]
    assert ids_of(PrivateRetriever.from_search(search, Model(), documents, k=3).invoke("query")) == best[:3]
    store = PrivateVectorStore(search, Model(), lambda ids: [Document(id=str(i), page_content="") for i in ids if i])
    assert ids_of(store.similarity_search("query", k=3)) == [one for one in best if one != "0"][:3]
    for change in (lambda: store.add_texts(["new"]), lambda: store.delete(["1"])):
        with pytest.raises(InvalidInput, match="needs a vector store"):
            change()


def test_from_texts_and_documents() -> None:
    """A store is made from texts or documents."""
    made = [
        PrivateVectorStore.from_texts(TEXTS, Model(), ids=IDS, **CLEAR),
        PrivateVectorStore.from_documents(
            [Document(id=one, page_content=text) for one, text in zip(IDS, TEXTS, strict=True)], Model(), **CLEAR
        ),
        asyncio.run(PrivateVectorStore.afrom_texts(TEXTS, Model(), ids=IDS, **CLEAR)),
    ]
    assert [ids_of(store.similarity_search("query", k=3)) for store in made] == [BEST[:3]] * 3


# ---- Bad input.

Make = Callable[[InMemoryVectorStore], Any]
WRONG: list[tuple[Make, str]] = [
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=0), "'epsilon' parameter"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, k=0), "'k' parameter"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, fetch_k=9), "'fetch_k' parameter .* is unknown"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, search_kwargs={"fetch_k": 9}), "'fetch_k'"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, search_type="mmr"), "marginal relevance is rejected"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, search_type="best"), "'search_type' parameter"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, mode="query"), "every query spends"),
    (lambda vs: private(vs).as_retriever(search_type="similarity_score_threshold"), "must be a relevance in"),
    (lambda vs: PrivateRetriever.from_vectorstore(vs, epsilon=1, identity_of={}, centroids=True), "'centroids' param"),
    (lambda _: PrivateRetriever.from_vectorstore([[1.0]], epsilon=1), "a LangChain VectorStore"),  # type: ignore[arg-type]
    (lambda vs: PrivateRetriever(vectorstore=vs), "a PrivateVectorStore"),
    (lambda vs: PrivateVectorStore.from_vectorstore(vs, epsilon=1, embedding="model"), "LangChain Embeddings"),  # type: ignore[arg-type]
    (lambda vs: PrivateVectorStore(vs, Model(), {}), "a scoreshield.search.PrivateSearch"),  # type: ignore[arg-type]
    (lambda vs: PrivateVectorStore(private(vs)._core.search, Model(), 3), "like get_by_ids"),  # type: ignore[arg-type]
    (lambda vs: PrivateVectorStore.from_vectorstore(private(vs), epsilon=1), "private already"),
    (lambda vs: private(vs).similarity_search(3), "'query' parameter"),
    (lambda vs: private(vs).similarity_search("query", k=-1), "'k' parameter of PrivateVectorStore.similarity_search"),
    (lambda vs: private(vs).similarity_search("query", score_threshold=0.5), "'score_threshold' parameter"),
    (lambda vs: private(vs).similarity_search("query", return_embedding=True), "'return_embedding' parameter"),
    (lambda vs: private(vs).similarity_search("query", filter=3), "'filter' parameter"),
    (lambda vs: private(vs).similarity_search("query", filter={"$or": []}), "operators"),
    (lambda vs: private(vs).similarity_search("query", filter={"part": {"$gt": 1}}), "operators"),
    (lambda vs: private(vs).similarity_search_by_vector([1.0, 2.0]), "a vector of 12 real numbers"),
    (lambda vs: private(vs).similarity_search_by_vector([float("nan")] * D), "finite"),
    (lambda vs: private(vs).similarity_search_with_relevance_scores("query", score_threshold=7), "'score_threshold'"),
    (lambda vs: private(vs).as_retriever(search_type="mmr"), "marginal relevance is rejected"),
    (lambda vs: private(vs).as_retriever(search_kwargs={"lambda_mult": 1}), "'lambda_mult'"),
    (lambda vs: private(vs).as_retriever(fetch_k=3), "'fetch_k'"),
    (lambda vs: private(vs).as_retriever(k=0), "'k'"),
    (lambda vs: private(vs).delete(), "'ids' parameter of PrivateVectorStore.delete"),
    (lambda vs: private(vs).delete("id-1"), "'ids' parameter of PrivateVectorStore.delete"),  # type: ignore[arg-type]
    (lambda vs: private(vs).get_by_ids(None), "'ids' parameter of PrivateVectorStore.get_by_ids"),  # type: ignore[arg-type]
    (lambda vs: private(vs).get_by_ids("id-1"), "'ids' parameter of PrivateVectorStore.get_by_ids"),
    (lambda vs: private(vs).get_by_ids([["id-1"]]), "'ids' parameter of PrivateVectorStore.get_by_ids"),  # type: ignore[list-item]
    (lambda vs: private(vs).similarity_search_by_vector(None), "'query' parameter of Private"),  # type: ignore[arg-type]
    (lambda vs: private(vs).delete(["id-1"], where={}), "'where' parameter of PrivateVectorStore.delete"),
    (lambda vs: private(vs, mode="query", rng=1).guarantee, "its own guarantee"),
    (lambda vs: private(vs, mode="query", rng=1).as_retriever().batch(["query"], fetch_k=3), "'fetch_k'"),
]  # fmt: skip


def private(vectorstore: InMemoryVectorStore, **options: Any) -> PrivateVectorStore:
    return PrivateVectorStore.from_vectorstore(vectorstore, epsilon=1, **options)


@pytest.mark.parametrize(("make", "told"), WRONG, ids=[told for _, told in WRONG])
def test_bad_input(clean: InMemoryVectorStore, make: Make, told: str) -> None:
    """Bad input raises an error of one clear sentence."""
    with pytest.raises(InvalidInput, match=told) as caught:
        make(clean)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_repr_while_opening() -> None:
    """A store whose constructor failed has a repr."""
    assert repr(PrivateVectorStore.__new__(PrivateVectorStore)) == "<PrivateVectorStore over 'nothing'>"


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("mode", ["index", "query"])
def test_batch_of_no_texts(clean: InMemoryVectorStore, ledger: ss.Ledger, mode: str, way: int) -> None:
    """A batch of inputs that are no texts raises an error of one sentence."""
    account = ledger.account("papers")
    retriever = PrivateRetriever.from_vectorstore(clean, epsilon=1, mode=mode, ledger=account)
    batch, before = both_ways(retriever)[way], account.spent
    for wrong in ({"a": 1}, ["query"], 5, None):
        with pytest.raises(InvalidInput, match=r"'query' parameter of .* must be a text"):
            batch([wrong])
    answers = batch(["query", {"a": 1}], return_exceptions=True)
    expected = (
        [list, InvalidParameter] if mode == "index" else [InvalidParameter, InvalidParameter]
    )  # all are charged, or none
    assert [type(one) for one in answers] == expected
    for inputs in (None, "query", 5):
        with pytest.raises(
            InvalidInput, match=r"'inputs' parameter of PrivateRetriever.a?batch must be a list of texts"
        ):
            batch(inputs)
    assert account.spent == before


def test_empty_filter(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """A filter that nothing passes is not charged."""
    account = ledger.account("papers")
    options: dict[str, Any] = {"mode": "query", "ledger": account, "filterable": ["part"]}
    store = PrivateVectorStore.from_vectorstore(clean, epsilon=3, **options)
    assert store.similarity_search("query", filter={"part": 9}) == []
    assert store.similarity_search_with_score("query", filter=lambda _: False) == []
    assert store.as_retriever(search_kwargs={"filter": {"part": 9}}).batch(["query", "query"]) == [[], []]
    assert account.spent == 0
    assert len(store.similarity_search("query", filter={"part": 1})) == 4
    assert account.spent == 3


def test_wrong_option_first(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """A wrong option is found before an index is charged."""
    for wrong in ({"search_kwargs": {"fetch_k": 3}}, {"k": 0}, {"search_type": "mmr"}, {"colour": 1}):
        with pytest.raises(InvalidInput):
            PrivateRetriever.from_vectorstore(clean, epsilon=1, ledger=ledger.account("papers"), **wrong)  # type: ignore[arg-type]
    assert ledger.account("papers").spent == 0


def _vector(number: int, value: Any) -> Callable[[InMemoryVectorStore], None]:
    return lambda store: store.store[f"id-{number}"].__setitem__("vector", value)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda store: store.store.clear(), "holds no records"),
        (_vector(3, [1.0] * (D - 1)), "mixes vectors of different lengths"),
        (_vector(3, [float("nan")] * D), "not finite"),
        (_vector(3, ["many"] * D), r"failed while giving its vectors \(ValueError\)"),
        (_vector(3, None), r"failed while .* \(TypeError\)"),
    ],
)
def test_unreadable_store(
    clean: InMemoryVectorStore, ledger: ss.Ledger, spoil: Callable[[InMemoryVectorStore], None], told: str
) -> None:
    """A store that cannot be read raises an error and costs nothing."""
    account = ledger.account("papers")
    asked = PrivateVectorStore.from_vectorstore(clean, epsilon=1, mode="query", ledger=account)
    spoil(clean)
    with pytest.raises(StoreError, match=told):
        PrivateVectorStore.from_vectorstore(clean, epsilon=1, ledger=account)
    with pytest.raises(StoreError, match=told):
        asked.similarity_search("query")
    assert account.spent == 0


def test_a_vector_store_without_a_model_needs_one(clean: InMemoryVectorStore) -> None:
    """A vector store without a model needs one."""
    clean.embedding = None  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="give one as 'embedding'"):
        PrivateVectorStore.from_vectorstore(clean, epsilon=1)


def test_without_the_package_the_extra_is_named() -> None:
    """Without the package the extra is named."""
    program = "import sys; sys.modules['langchain_core'] = None; import scoreshield.integrations.langchain"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "needs the 'langchain' extra: pip install 'scoreshield[langchain]'" in done.stderr


# ---- Fields: a filter is an exact oracle, so what may be filtered on is declared.


@pytest.mark.parametrize("mode", ["index", "query"])
def test_undeclared_field(
    clean: InMemoryVectorStore, ledger: ss.Ledger, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter on a field that was not declared raises an error before anything is read or charged."""
    account = ledger.account("papers")
    options: dict[str, Any] = {"epsilon": 3, "mode": mode, "ledger": account}
    message = r"^A filter on the field 'part' needs filterable=\['part'\], because a filter reveals that field"
    with pytest.raises(InvalidInput, match=message):
        PrivateRetriever.from_vectorstore(clean, **options, search_kwargs={"filter": {"part": 1}})
    assert account.spent == 0
    store = PrivateVectorStore.from_vectorstore(clean, **options, filterable=["year"])
    spent = account.spent
    monkeypatch.setattr(clean, "store", None)  # nothing is read
    for way in (
        lambda: store.similarity_search("query", filter={"part": 1}),
        lambda: store.similarity_search("query", filter={"part": 1, "year": 2020}),
        lambda: store.as_retriever(search_kwargs={"filter": {"part": 1}}),
        lambda: store.as_retriever().invoke("query", filter={"part": 1}),
        lambda: store.as_retriever().batch(["query"], filter={"part": 1}),
        lambda: asyncio.run(store.asimilarity_search("query", filter={"part": 1})),
    ):
        with pytest.raises(InvalidInput, match=message):
            way()
    assert account.spent == spent


def test_filter_function(clean: InMemoryVectorStore, ledger: ss.Ledger) -> None:
    """A filter function sees the declared fields alone."""
    account = ledger.account("papers")
    options: dict[str, Any] = {"epsilon": 3, "mode": "query", "ledger": account}
    none = PrivateVectorStore.from_vectorstore(clean, **options)
    with pytest.raises(InvalidInput, match="A filter function needs 'filterable'"):
        none.similarity_search("query", filter=lambda _: True)
    some = PrivateVectorStore.from_vectorstore(clean, **options, filterable=["year"])
    for undeclared in (
        lambda document: document.metadata["part"] == 1,
        lambda document: document.metadata.get("part") == 1,
        lambda document: "part" in document.metadata,
        lambda document: "text" in document.page_content,
    ):
        with pytest.raises(InvalidInput, match=r"^A filter on the field '(part|page_content)' needs filterable="):
            some.similarity_search("query", filter=undeclared)
    with pytest.raises(AttributeError):
        some.similarity_search("query", filter=lambda document: document.model_dump())
    assert account.spent == 0
    assert some.similarity_search("query", filter=lambda document: len(document.metadata) > 0) == []
    assert len(some.similarity_search("query", k=1, filter=lambda document: document.id == IDS[3])) == 1
    text = PrivateVectorStore.from_vectorstore(clean, **options, filterable=["page_content"])
    found = text.similarity_search("query", filter=lambda document: document.page_content == TEXTS[3])
    assert ids_of(found) == [IDS[3]]


def test_answers_carry_the_visible_fields_alone() -> None:
    """Answers carry the visible fields alone."""
    wrapped = InMemoryVectorStore(Model())
    facts = {"part": 1, "source": "book", "certainty": 0.7, "raw": b"vector", "thing": object()}
    wrapped.add_texts(TEXTS, [dict(facts) for _ in TEXTS], ids=IDS)
    everything = PrivateVectorStore.from_vectorstore(wrapped, epsilon=1)
    assert set(everything.similarity_search("query", k=1)[0].metadata) == {"part", "source", "certainty", "scoreshield"}
    store = PrivateVectorStore.from_vectorstore(wrapped, epsilon=1, visible=["source"], filterable=["part"])
    (found,) = store.similarity_search("query", k=1, filter={"part": 1})
    assert set(found.metadata) == {"source", "scoreshield"}
    assert store.get_by_ids(IDS[:1])[0].metadata == {"source": "book"}
    by_search = PrivateRetriever.from_search(store._core.search, Model(), wrapped.get_by_ids, visible=[])
    assert set(by_search.invoke("query")[0].metadata) == {"scoreshield"}


@pytest.mark.parametrize("wrong", ["part", 3, [1], None])
def test_the_declared_fields_are_a_list_of_names(clean: InMemoryVectorStore, wrong: Any) -> None:
    """The declared fields are a list of names."""
    with pytest.raises(
        InvalidInput, match=r"'filterable' parameter of PrivateVectorStore.from_vectorstore must be a list of names"
    ):
        PrivateVectorStore.from_vectorstore(clean, epsilon=1, filterable=wrong)


# ---- Stores whose records have no metadata, or no text.


def chroma_records(**parts: Any) -> VectorStore:
    wrapped: Any = in_chroma(Model())
    wrapped._collection.add(ids=IDS, embeddings=ROWS.tolist(), **parts)
    return wrapped  # type: ignore[no-any-return]


def qdrant_records(payloads: list[dict[str, Any] | None]) -> VectorStore:
    wrapped: Any = in_qdrant(Model())
    models = pytest.importorskip("qdrant_client.models")
    points = [models.PointStruct(id=i, vector=ROWS[i].tolist(), payload=payloads[i]) for i in range(N)]
    wrapped.client.upsert("papers", points)
    return wrapped  # type: ignore[no-any-return]


def faiss_records() -> VectorStore:
    wrapped: Any = filled(in_faiss)
    for document in wrapped.docstore._dict.values():
        document.metadata = None
    return wrapped  # type: ignore[no-any-return]


def memory_records() -> VectorStore:
    wrapped = InMemoryVectorStore(Model())
    wrapped.add_texts(TEXTS, ids=IDS)
    return wrapped


@pytest.mark.parametrize("mode", ["index", "query"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: chroma_records(documents=TEXTS),
        lambda: qdrant_records([{"page_content": text} for text in TEXTS]),
        lambda: qdrant_records([{"page_content": text, "metadata": None} for text in TEXTS]),
        faiss_records,
        memory_records,
    ],
    ids=["chroma", "qdrant", "qdrant, None", "faiss", "memory"],
)
def test_documents_without_metadata_are_found(make: Callable[[], VectorStore], mode: str, ledger: ss.Ledger) -> None:
    """Documents without metadata are found."""
    account = ledger.account("papers")
    retriever = PrivateRetriever.from_vectorstore(make(), epsilon=5, mode=mode, ledger=account, k=3)
    found = retriever.invoke("query")
    assert len(found) == 3
    assert all(document.page_content in TEXTS and set(document.metadata) == {"scoreshield"} for document in found)
    assert account.spent == 5


@pytest.mark.parametrize("mode", ["index", "query"])
@pytest.mark.parametrize(
    "make",
    [lambda: chroma_records(), lambda: qdrant_records([None] * N), lambda: qdrant_records([{"year": 1}] * N)],
    ids=["chroma", "qdrant without a payload", "qdrant"],
)
def test_no_texts(make: Callable[[], VectorStore], mode: str, ledger: ss.Ledger) -> None:
    """Records without texts are not charged."""
    account = ledger.account("papers")
    with pytest.raises(InvalidInput, match=f"^None of the {N} records has a text"):
        PrivateRetriever.from_vectorstore(make(), epsilon=5, mode=mode, ledger=account).invoke("query")
    assert account.spent == 0


@pytest.mark.parametrize("mode", ["index", "query"])
def test_some_without_text(mode: str, ledger: ss.Ledger) -> None:
    """Records without a text are left out among others."""
    payloads: list[Any] = [None if i % 2 else {"page_content": TEXTS[i]} for i in range(N)]
    options: dict[str, Any] = {"mode": mode, "ledger": ledger.account("papers"), "k": 3}
    found = PrivateRetriever.from_vectorstore(qdrant_records(payloads), epsilon=5, **options).invoke("query")
    assert len(found) == 3
    assert all(TEXTS.index(document.page_content) % 2 == 0 for document in found)


# ---- Ways around the noise that only LangChain has; those of all frameworks are in test_leaks.py.

DETECTOR = LeakDetector(ROWS, QUERY, tolerance=1e-12, skips=(Model,))
find_leaks, find_leaks_in_error = DETECTOR.find, DETECTOR.find_in_error


@pytest.fixture
def planted() -> InMemoryVectorStore:
    """A store whose metadata holds the clean score and the vector of each document."""
    store = InMemoryVectorStore(Model())
    facts = [{"source": "book", "score": float(COSINES[i]), "embedding": ROWS[i].tolist()} for i in range(N)]
    store.add_texts(TEXTS, facts, ids=IDS)
    return store


@pytest.fixture
def private_store(planted: InMemoryVectorStore) -> PrivateVectorStore:
    return PrivateVectorStore.from_vectorstore(planted, epsilon=1)


def test_leak_attributes(planted: InMemoryVectorStore, private_store: PrivateVectorStore) -> None:
    """No public attribute leads to the vectors."""
    assert find_leaks(planted)
    assert find_leaks(planted.as_retriever())
    assert not find_leaks(private_store)
    assert not find_leaks(private_store.as_retriever())
    for name in ("store", "embedding", "vectorstore", "search_", "client", "collection", "index", "docstore"):
        assert not hasattr(private_store, name)
    assert private_store.embeddings is None  # a model that caches holds the documents' vectors
    assert not [name for name in vars(private_store) if not name.startswith("_")]


def test_leak_mmr(planted: InMemoryVectorStore, private_store: PrivateVectorStore) -> None:
    """Maximal marginal relevance is rejected on every way."""
    only_relevance = {"k": 6, "fetch_k": N, "lambda_mult": 1.0}
    assert ids_of(planted.max_marginal_relevance_search("query", **only_relevance)) == BEST[:6]  # type: ignore[arg-type]
    by_hand = VectorStoreRetriever(vectorstore=private_store, search_type="mmr")
    changed = private_store.as_retriever()
    changed.search_type = "mmr"
    asked = PrivateVectorStore.from_vectorstore(planted, epsilon=1, mode="query", rng=1).as_retriever()
    asked.search_type = "mmr"
    ways: list[Callable[[], Any]] = [
        lambda: private_store.max_marginal_relevance_search("query", **only_relevance),
        lambda: private_store.max_marginal_relevance_search_by_vector(QUERY.tolist(), **only_relevance),
        lambda: asyncio.run(private_store.amax_marginal_relevance_search("query", **only_relevance)),
        lambda: asyncio.run(private_store.amax_marginal_relevance_search_by_vector(QUERY.tolist(), **only_relevance)),
        lambda: private_store.search("query", "mmr", **only_relevance),
        lambda: asyncio.run(private_store.asearch("query", "mmr", **only_relevance)),
        lambda: private_store.as_retriever(search_type="mmr", search_kwargs=only_relevance),
        lambda: PrivateRetriever.from_vectorstore(planted, epsilon=1, search_type="mmr"),
        *(lambda one=one: one.invoke("query") for one in (by_hand, changed, asked)),
        *(lambda one=one: asyncio.run(one.ainvoke("query")) for one in (by_hand, changed, asked)),
        lambda: asked.batch(["query"]),
        lambda: asyncio.run(asked.abatch(["query"])),
    ]
    for way in ways:
        with pytest.raises(InvalidInput, match="Maximal marginal relevance is rejected"):
            way()


@pytest.mark.parametrize(
    "option",
    [
        {"fetch_k": 20},
        {"lambda_mult": 1.0},
        {"score_threshold": 0.9},
        {"return_embedding": True},
        {"with_vectors": True},
        {"include": ["embeddings", "distances"]},
        {"search_params": {}},
        {"where": {}},
        {"anything": None},
    ],
    ids=lambda option: next(iter(option)),
)
def test_leak_options(planted: InMemoryVectorStore, private_store: PrivateVectorStore, option: dict[str, Any]) -> None:
    """Options that are not known are rejected and not ignored."""
    assert planted.similarity_search("query", **option)  # which takes whatever comes
    asked = PrivateVectorStore.from_vectorstore(planted, epsilon=1, mode="query", rng=1).as_retriever()
    retriever = private_store.as_retriever()
    changed = private_store.as_retriever()
    changed.search_kwargs.update(option)
    ways: list[Callable[[], Any]] = [
        lambda: private_store.similarity_search("query", **option),
        lambda: private_store.similarity_search_with_score("query", **option),
        lambda: private_store.similarity_search_by_vector(QUERY.tolist(), **option),
        lambda: asyncio.run(private_store.asimilarity_search("query", **option)),
        lambda: asyncio.run(private_store.asimilarity_search_with_score("query", **option)),
        lambda: asyncio.run(private_store.asimilarity_search_by_vector(QUERY.tolist(), **option)),
        lambda: private_store.search("query", "similarity", **option),
        lambda: private_store.as_retriever(search_kwargs=option),
        lambda: retriever.invoke("query", **option),
        lambda: asyncio.run(retriever.ainvoke("query", **option)),
        lambda: retriever.batch(["query"], **option),
        lambda: changed.invoke("query"),
        lambda: asked.batch(["query"], **option),
        lambda: asyncio.run(asked.abatch(["query"], **option)),
    ]
    if "score_threshold" not in option:
        ways.append(lambda: private_store.similarity_search_with_relevance_scores("query", **option))
    for way in ways:
        with pytest.raises(InvalidInput, match=f"'{next(iter(option))}' parameter of .* is rejected"):
            way()


def test_leak_by_id(planted: InMemoryVectorStore, private_store: PrivateVectorStore) -> None:
    """Documents by id carry no score."""
    assert find_leaks(planted.get_by_ids(IDS))
    documents = private_store.get_by_ids(IDS) + asyncio.run(private_store.aget_by_ids(IDS))
    assert not find_leaks(documents)
    assert {frozenset(document.metadata) for document in documents} == {frozenset({"source"})}


def test_leak_answers(planted: InMemoryVectorStore) -> None:
    """Answers of every call and mode carry no clean score."""
    assert find_leaks(planted.similarity_search_with_score("query", k=N))
    ways: list[dict[str, Any]] = [
        {},
        {"mode": "query", "rng": 3},
        {"mode": "screening", "threshold": 0.2, "refine": 0.5, "rng": 3},
    ]
    for options in ways:
        store = PrivateVectorStore.from_vectorstore(planted, epsilon=1, filterable=["source"], **options)
        assert not find_leaks(store.similarity_search_with_score("query", k=N))
        assert not find_leaks(store.similarity_search_with_relevance_scores("query", k=N))
        assert not find_leaks(store.similarity_search_by_vector(QUERY.tolist(), k=N, filter={"source": "book"}))
        assert not find_leaks(store.as_retriever().batch(["query", "text 3"]))


class Watcher(BaseCallbackHandler):
    """Keeps everything that any callback is handed."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: self.heard.append((name, args, kwargs))
        return super().__getattribute__(name)


def chain_of(retriever: Any) -> Any:
    prompt = PromptTemplate.from_template("Answer from {context}")
    return retriever | RunnableLambda(lambda docs: {"context": docs}) | prompt | FakeListLLM(responses=["so it is"])


def test_leak_error_callbacks(
    planted: InMemoryVectorStore, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Callbacks and traces of errors get no clean value."""
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=1, delta=0)
    asked = PrivateRetriever.from_vectorstore(planted, epsilon=1, mode="query", ledger=ledger.account("books"))
    asked.invoke("query")
    index = PrivateRetriever.from_vectorstore(planted, epsilon=1)
    for retriever, kind in ((asked, BudgetExceeded), (index, StoreError), (asked, StoreError)):
        if kind is StoreError:
            monkeypatch.setattr(planted, "store", _Torn(planted.store))
        watcher = Watcher()
        with collect_runs() as runs:
            for way in (retriever.invoke, lambda query, config, one=retriever: one.batch([query] * 2, config)):
                with pytest.raises(kind):
                    way("query", {"callbacks": [watcher]})
        assert "on_retriever_error" in {name for name, *_ in watcher.heard}
        assert runs.traced_runs
        assert not find_leaks([watcher.heard, [run.model_dump() for run in runs.traced_runs], capsys.readouterr()])


def test_leak_logs(
    planted: InMemoryVectorStore, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs hold no clean value, also of calls that fail."""
    caplog.set_level(logging.DEBUG)
    for options in ({}, {"mode": "query", "rng": 3}):
        store = PrivateVectorStore.from_vectorstore(planted, epsilon=1, **options)  # type: ignore[arg-type]
        store.similarity_search_with_relevance_scores("query", k=N, score_threshold=1.0)
        store.as_retriever().batch(["query", "text 1"])
        with pytest.raises(InvalidInput):
            store.similarity_search_by_vector([1.0])
    records = [(record.getMessage(), record.args, record.exc_info) for record in caplog.records]
    assert not find_leaks([records, capsys.readouterr()])
    logging.getLogger("somewhere").debug("%s", planted.similarity_search_with_score("query"))
    assert find_leaks(caplog.text)


def test_leak_caches(planted: InMemoryVectorStore, private_store: PrivateVectorStore) -> None:
    """Caches keep no clean value."""
    for store, leaks in ((planted, True), (private_store, False)):
        cache = InMemoryCache()
        set_llm_cache(cache)
        try:
            chain_of(store.as_retriever()).invoke("query")
        finally:
            set_llm_cache(None)
        assert cache._cache
        assert bool(find_leaks(cache._cache)) is leaks


class Caching(Model):
    """A model that keeps what it embedded, as CacheBackedEmbeddings does."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.cached.update(zip(texts, super().embed_documents(texts), strict=True))
        return list(self.cached.values())


def test_leak_model() -> None:
    """A model that caches is not handed out."""
    planted = InMemoryVectorStore.from_texts(TEXTS, Caching())
    assert find_leaks(planted.embeddings.cached)  # type: ignore[attr-defined]
    private_store = PrivateVectorStore.from_vectorstore(planted, epsilon=1)
    assert private_store.embeddings is None
    assert not [name for name in _list_public(private_store) if getattr(private_store, name, None) is planted]


def _list_public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_") and name not in ("guarantee", "stale")]


def test_leak_serialised(planted: InMemoryVectorStore, private_store: PrivateVectorStore) -> None:
    """Serialised forms hold no clean value, and nothing is pickled."""
    assert find_leaks(pickle.loads(pickle.dumps(planted.store)))
    assert find_leaks(dumpd(planted.similarity_search("query")))
    retriever = private_store.as_retriever()
    for thing in (private_store, retriever):
        for form in (dumps(thing), json.dumps(dumpd(thing)), repr(thing), str(thing), f"{thing!r:>10}"):
            assert not find_leaks(form)
    assert not find_leaks([retriever.model_dump(), retriever.to_json(), retriever.get_graph().to_json()])
    assert not find_leaks(dumps(private_store.similarity_search("query", k=N)))
    for thing in (private_store, retriever):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises((InvalidInput, TypeError)):
                pickle.dumps(thing, protocol)
    with pytest.raises(Exception, match="PrivateVectorStore") as rejected:
        retriever.model_dump_json()
    assert not find_leaks(str(rejected.value))


def test_leak_copies(planted: InMemoryVectorStore, tmp_path: Any) -> None:
    """A copy is the same store and shares its budget."""
    assert find_leaks(copy.deepcopy(planted))
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=3, delta=0)
    retriever = PrivateRetriever.from_vectorstore(planted, epsilon=1, mode="query", ledger=ledger.account("books"))
    for same in (copy.copy(retriever), copy.deepcopy(retriever), retriever.model_copy(deep=True)):
        assert same.vectorstore is retriever.vectorstore
        assert not find_leaks(same)
        same.invoke("query")
    with pytest.raises(BudgetExceeded):
        retriever.invoke("query")


class _Torn(dict[str, Any]):
    """A store whose entries cannot be looked up, and whose error says what it was about."""

    def get(self, key: Any, *_: Any) -> Any:
        raise ConnectionError(f"{key}: score {COSINES[0]:.12f}, vector {ROWS[0].tolist()}")


def test_leak_errors(planted: InMemoryVectorStore, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors carry no clean value in their text or frames."""
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=3, delta=0)
    index = PrivateVectorStore.from_vectorstore(planted, epsilon=1, filterable=["source"])
    options: dict[str, Any] = {"mode": "query", "ledger": ledger.account("books"), "filterable": ["source"]}
    asked = PrivateVectorStore.from_vectorstore(planted, epsilon=1, **options)
    poor = PrivateVectorStore.from_vectorstore(planted, epsilon=9, mode="query", ledger=ledger.account("books"))
    broken: Callable[[Document], bool] = lambda document: 1 / 0 > 0  # noqa: E731, ARG005
    ways: list[Callable[[], Any]] = [
        lambda: poor.similarity_search("query"),
        lambda: poor.as_retriever().batch(["query", "query"]),
        lambda: asyncio.run(poor.as_retriever().abatch(["query", "query"])),
        lambda: index.similarity_search("query", filter=broken),
        lambda: asked.similarity_search("query", filter=broken),
        lambda: index.similarity_search_by_vector([math.nan] * D),
        lambda: index.similarity_search("query", k=0),
    ]
    for way in ways:
        error = catch(way)
        assert not find_leaks(str(error))
        assert not find_leaks_in_error(error)

    with monkeypatch.context() as torn:  # the documents cannot be read
        torn.setattr(planted, "store", _Torn(planted.store))
        assert find_leaks(str(catch(lambda: planted.get_by_ids(["id-1"]))))
        for way in (lambda: index.similarity_search("query"), lambda: asked.similarity_search("query")):
            error = catch(way)
            assert isinstance(error, StoreError)
            assert not find_leaks(str(error))
            assert not find_leaks_in_error(error)

    with monkeypatch.context() as torn:  # the store fails with its scores in hand
        torn.setattr("langchain_core.vectorstores.in_memory.Document", lambda **_: 1 / 0)
        assert find_leaks_in_error(catch(lambda: planted.similarity_search("query")))
        error = catch(lambda: PrivateVectorStore.from_vectorstore(planted, epsilon=1))
        assert isinstance(error, StoreError)
        assert not find_leaks_in_error(error)

    planted.store["id-5"]["vector"] = [math.nan] * D  # the vectors cannot be used
    for way in (index.refresh, lambda: asked.similarity_search("another")):
        error = catch(way)
        assert isinstance(error, StoreError)
        assert not find_leaks(str(error))
        assert not find_leaks_in_error(error)
    assert ledger.account("books").spent == 0  # one document is read before a charge


def source_that_fails(ids: Sequence[Any]) -> list[Document]:
    seen = [float(COSINES[IDS.index(one)]) for one in ids]
    raise StoreError(f"The shelf of {len(seen)} books is gone.")


class Locked(InMemoryVectorStore):
    """A store that cannot delete, and has its vectors in hand when it fails."""

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        source_that_fails(IDS)

    async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
        self.delete(ids, **kwargs)


def test_leak_deletion() -> None:
    """A wrapped store that fails to delete leaves no frames."""
    store = filled(Locked)
    private = PrivateVectorStore.from_vectorstore(store, epsilon=1)
    assert find_leaks_in_error(catch(lambda: store.delete(["id-1"])))
    for way in (lambda: private.delete(["id-1"]), lambda: asyncio.run(private.adelete(["id-1"]))):
        error = catch(way)
        assert isinstance(error, StoreError)
        assert not find_leaks_in_error(error)


class NoDocument(dict[str, Any]):
    """What a source may return by mistake."""

    id = "id-3"
    metadata: dict[str, Any] = {"score": float(COSINES[3])}  # noqa: RUF012


def test_leak_source() -> None:
    """A source of documents that fails leaves no frames."""
    search = PrivateSearch(ArrayStore(ROWS.astype(np.float32), ids=IDS), epsilon=1)
    assert find_leaks_in_error(catch(lambda: source_that_fails(IDS)))
    wrong: dict[str, Any] = {one: NoDocument(score=float(COSINES[3])) for one in IDS}
    for documents in (source_that_fails, wrong):
        error = catch(lambda one=documents: PrivateVectorStore(search, Model(), one).similarity_search("query"))
        assert isinstance(error, StoreError)
        assert not find_leaks_in_error(error)


def small(rows: np.ndarray) -> InMemoryVectorStore:
    model = Model()
    model.table |= {f"row {i}": row.tolist() for i, row in enumerate(rows)}
    store = InMemoryVectorStore(model)
    store.add_texts([f"row {i}" for i in range(len(rows))], ids=[str(i) for i in range(len(rows))])
    return store


@pytest.mark.parametrize("options", [{}, {"mode": "query", "rng": 5}])
def test_leak_threshold(options: dict[str, Any]) -> None:
    """A threshold acts after the noise.

    If the cut came first, the clean set would pass in each of 60 builds. At epsilon 0.2 it passes in few of them.
    """
    chosen = np.argsort(-COSINES)[[0, 1, 2, -3, -2, -1]]
    store = small(ROWS[chosen])
    if "rng" in options:
        options = {**options, "rng": np.random.default_rng(5)}
    cut = {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.5}}

    def same(make: Callable[[], set[Any]]) -> int:
        return sum(make() == {"0", "1", "2"} for _ in range(60))

    def first() -> set[Any]:
        return {document.id for document, score in store.similarity_search_with_score("query", k=6) if score >= 0}

    def after() -> set[Any]:
        retriever = PrivateRetriever.from_vectorstore(store, epsilon=0.2, k=6, **cut, **options)
        return set(ids_of(retriever.invoke("query")))

    assert same(first) == 60
    # Each of the 64 sets has a probability of at most exp(6 * 0.2) / 64 = 0.052 times that of the likeliest other one.
    assert same(after) < 60 * 0.4
