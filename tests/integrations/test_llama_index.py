"""The LlamaIndex adapter: what it returns, where each thing stands, what it refuses, and what it charges."""

from __future__ import annotations

import asyncio
import copy
import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.core")

from integrations import leak_cases
from integrations.leak_detector import LeakDetector
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.schema import (
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from scoreshield.errors import BudgetExceeded, InvalidInput, ScoreShieldError, StoreError
from scoreshield.integrations.llama_index import PrivateRetriever, PrivateVectorStore
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

N, D = 30, 6
ROWS = np.random.default_rng(5).standard_normal((N, D))
UNITS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
QUERY = UNITS[7]
COSINES = UNITS @ QUERY
NAMES = [str(uuid.UUID(int=number)) for number in range(N)]
#: So much budget that the noise is below the gaps between scores: the released order is then the clean one.
PLENTY = 500.0


class Fixed(BaseEmbedding):
    """Embeds a text that is a row's number as that row, and any other as the query."""

    calls: int = 0

    def _get_text_embedding(self, text: str) -> list[float]:
        self.calls += 1
        return (UNITS[int(text)] if text.isdigit() else QUERY).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def nodes(rows: np.ndarray = ROWS) -> list[TextNode]:
    return [
        TextNode(
            id_=NAMES[number],
            text=f"text {number}",
            metadata={"parity": number % 2, "number": number},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc {number // 10}")},
            embedding=row.tolist(),
        )
        for number, row in enumerate(rows)
    ]


def index_of(rows: np.ndarray = ROWS, **kwargs: Any) -> VectorStoreIndex:
    return VectorStoreIndex(nodes(rows), embed_model=Fixed(), **kwargs)


def names(found: list[NodeWithScore]) -> list[int]:
    return [NAMES.index(one.node.node_id) for one in found]


def ledger(folder: Path, epsilon: float = 10.0) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=epsilon, delta=0.0).account("notes")


BEST = np.argsort(-COSINES).tolist()


# ---- One line of a working pipeline.


def test_plenty_of_budget() -> None:
    """With plenty of budget it finds what the plain retriever finds."""
    index = index_of()
    plain = index.as_retriever(similarity_top_k=5).retrieve("what?")
    private = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=5).retrieve("what?")
    assert names(private) == names(plain) == BEST[:5]
    np.testing.assert_allclose([one.score for one in private], COSINES[BEST[:5]], atol=0.02)
    assert [one.node.get_content() for one in private] == [one.node.get_content() for one in plain]


def test_score_and_guarantee() -> None:
    """The score is an estimate in the range, and the guarantee is in the metadata alone."""
    found = PrivateRetriever.from_index(index_of(), epsilon=1, similarity_top_k=N).retrieve("what?")
    assert sorted(names(found)) == list(range(N))
    noisy = np.array([one.node.metadata["scoreshield"]["noisy_score"] for one in found])
    assert (np.diff(noisy) <= 0).all()
    assert np.abs(noisy).max() > 1
    scores = np.array([one.score for one in found])
    assert (np.diff(scores) <= 0).all()
    assert np.abs(scores).max() < 1
    facts = found[0].node.metadata["scoreshield"]
    assert (facts["epsilon"], facts["delta"], facts["mode"]) == (1.0, 0.0, "index")
    assert facts["sampler"] == "exact"
    for mode in (MetadataMode.LLM, MetadataMode.EMBED, MetadataMode.NONE):
        assert "scoreshield" not in found[0].node.get_content(metadata_mode=mode)
    assert "parity" in found[0].node.get_content(metadata_mode=MetadataMode.LLM)


def test_nodes_are_copies_without_vectors() -> None:
    """Nodes are copies without vectors."""
    index = index_of()
    retriever = PrivateRetriever.from_index(index, epsilon=8, similarity_top_k=N)
    found = retriever.retrieve("what?")
    found[0].node.metadata["parity"] = "spoilt"
    found[0].node.excluded_llm_metadata_keys.append("parity")
    kept = index.docstore.get_node(found[0].node.node_id)
    assert kept.metadata["parity"] in (0, 1)
    assert kept.excluded_llm_metadata_keys == []
    assert "scoreshield" not in kept.metadata
    assert all(one.node.embedding is None for one in found)
    assert found[0].node.ref_doc_id == kept.ref_doc_id


def test_every_kind_of_node_loses_every_vector() -> None:
    """Every kind of node loses every vector."""
    vector = [0.5] * D
    kinds = {
        "image": ImageNode(id_="image", text="a", embedding=vector, text_embedding=vector, image_url="file:///x.png"),
        "media": Node(
            id_="media", embedding=vector, text_resource=MediaResource(text="b", embeddings={"dense": vector})
        ),
        "index": IndexNode(id_="index", text="c", index_id="i", obj=TextNode(id_="inner", text="d", embedding=vector)),
    }
    search = PrivateSearch(ArrayStore(UNITS[:3], list(kinds)), epsilon=8)
    retriever = PrivateRetriever(search, kinds, Fixed(), similarity_top_k=3)
    found = {one.node.node_id: one.node for one in retriever.retrieve("what?")}
    assert found.keys() == {"image", "media", "inner"}  # an index node stands for the node in it
    assert found["image"].text_embedding is None
    assert found["media"].text_resource.embeddings is None
    assert found["media"].text_resource.text == "b"
    for node in found.values():
        assert node.embedding is None
        assert "0.5, 0.5" not in str(node.to_dict())
        assert node.metadata["scoreshield"]["epsilon"] == 8.0


def test_index_node() -> None:
    """An index node is not followed to an object that has no guarantee."""
    index = index_of()
    clean, private = (index.as_retriever(), PrivateRetriever.from_index(index, epsilon=8, similarity_top_k=1))
    inner = {"a": clean, "b": private, "c": NodeWithScore(node=nodes()[0], score=0.123)}
    outer = {name: IndexNode(id_=name, text=name, index_id=name, obj=obj) for name, obj in inner.items()}
    search = PrivateSearch(ArrayStore(UNITS[:3], list(outer)), epsilon=8)
    found = PrivateRetriever(search, outer, Fixed(), similarity_top_k=3).retrieve("what?")
    by_name = {one.node.node_id: one for one in found}
    assert {"a", "c"} < by_name.keys()
    assert by_name["a"].node.obj is None
    assert by_name["c"].node.obj is None
    assert "b" not in by_name  # it was followed: its retriever gave a node of its own
    assert len(by_name) == 3
    # An index keeps such objects beside its nodes.
    objects = VectorStoreIndex(objects=[IndexNode(text="1", index_id="x", obj=clean)], embed_model=Fixed())
    assert names(objects.as_retriever().retrieve("what?")) == BEST[:2]
    (one,) = PrivateRetriever.from_index(objects, epsilon=8).retrieve("what?")
    assert one.node.get_content() == "1"


@pytest.mark.parametrize("mode", ["index", "query", "screening"])
def test_modes(mode: str, tmp_path: Path) -> None:
    """The three modes answer single queries, batches and asynchronous calls."""
    options: dict[str, Any] = {} if mode == "index" else {"ledger": ledger(tmp_path), "mode": mode}
    options |= {"threshold": 0.2} if mode == "screening" else {}
    retriever = PrivateRetriever.from_index(index_of(), epsilon=1, similarity_top_k=3, **options)
    spent = lambda: options["ledger"].spent if options.get("ledger") else 0  # noqa: E731
    assert len(retriever.retrieve("what?")) == 3
    assert spent() == pytest.approx(0 if mode == "index" else 1)
    assert len(asyncio.run(retriever.aretrieve(QueryBundle("x", embedding=QUERY.tolist())))) == 3
    assert [len(one) for one in retriever.retrieve_batch(["a", QueryBundle("b")])] == [3, 3]
    assert [len(one) for one in asyncio.run(retriever.aretrieve_batch(["a", "b"]))] == [3, 3]
    assert spent() == pytest.approx(0 if mode == "index" else 6)
    scored = [one.score for one in retriever.retrieve("what?")]
    assert all(score is None for score in scored) == (mode == "screening")


def test_batch_charge(tmp_path: Path) -> None:
    """A batch is charged as a whole or not at all."""
    account = ledger(tmp_path, epsilon=2.5)
    retriever = PrivateRetriever.from_index(index_of(), epsilon=1, mode="query", ledger=account)
    with pytest.raises(BudgetExceeded):
        retriever.retrieve_batch(["a", "b", "c"])
    assert account.spent == 0
    assert len(retriever.retrieve_batch(["a", "b"])) == 2
    assert account.spent == pytest.approx(2)


def test_unreadable_node(tmp_path: Path) -> None:
    """A node that cannot be fetched costs nothing."""

    def broken(one: Any) -> Any:
        raise ConnectionError(f"secret of {one}")

    account = ledger(tmp_path)
    search = PrivateSearch(UNITS, epsilon=1, mode="query", ledger=account)
    with pytest.raises(StoreError, match=r"could not be fetched \(ConnectionError\)\. Nothing was released") as caught:
        PrivateRetriever(search, broken, Fixed()).retrieve("what?")
    assert "secret" not in str(caught.value)
    assert account.spent == 0


def test_a_query_engine_answers_from_it() -> None:
    """A query engine answers from a private retriever."""
    retriever = PrivateRetriever.from_index(index_of(), epsilon=PLENTY, similarity_top_k=2)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    response = engine.query("what?")
    assert names(response.source_nodes) == BEST[:2]
    assert f"text {BEST[0]}" in str(response)
    assert "scoreshield" not in str(response)
    assert names(asyncio.run(engine.aquery("what?")).source_nodes) == BEST[:2]


def test_a_postprocessor_cuts_by_released_scores() -> None:
    """A postprocessor cuts by released scores."""
    retriever = PrivateRetriever.from_index(index_of(), epsilon=20, similarity_top_k=N)
    found = retriever.retrieve("what?")
    kept = SimilarityPostprocessor(similarity_cutoff=0.2).postprocess_nodes(found)
    assert names(kept) == [name for name, one in zip(names(found), found, strict=True) if (one.score or 0) >= 0.2]
    assert 0 < len(kept) < N


def test_query_transformation() -> None:
    """A query transformation changes the embedded text."""

    class ToRow(BaseQueryTransform):
        def _get_prompts(self) -> dict[str, Any]:
            return {}

        def _update_prompts(self, prompts: dict[str, Any]) -> None:
            del prompts

        def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
            del metadata
            return QueryBundle(query_bundle.query_str, custom_embedding_strs=["3"])

    retriever = PrivateRetriever.from_index(index_of(), epsilon=PLENTY, similarity_top_k=1)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    assert names(TransformQueryEngine(engine, ToRow()).query("what?").source_nodes) == [3]


# ---- Filters act on the released ranking.


def test_filters() -> None:
    """Filters and lists of ids choose among the released ranking."""
    index = index_of()
    even = MetadataFilters(filters=[MetadataFilter(key="parity", value=0)])

    def best(keep: Any, **kwargs: Any) -> None:
        declared = ["parity", "number", "ref_doc_id"]
        options = {"similarity_top_k": 4, "filterable": declared, **kwargs}
        retriever = PrivateRetriever.from_index(index, epsilon=PLENTY, **options)
        assert names(retriever.retrieve("what?")) == [one for one in BEST if keep(one)][:4]

    best(lambda one: one % 2 == 0, filters=even)
    best(lambda one: one in (1, 2, 3), node_ids=NAMES[1:4])
    best(lambda one: one < 10, doc_ids=["doc 0"])
    best(lambda one: one < 10 and one % 2 == 0, doc_ids=["doc 0"], filters=even)
    best(
        lambda one: one % 2 == 1 or one > 25,
        filters=MetadataFilters(
            filters=[
                MetadataFilters(filters=[even], condition=FilterCondition.NOT),
                MetadataFilter(key="number", value=25, operator=FilterOperator.GT),
            ],
            condition=FilterCondition.OR,
        ),
    )
    best(lambda one: one >= 20, filters=MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value="doc 2")]))


def test_unfit_filters(tmp_path: Path) -> None:
    """Filters that do not fit raise an error of one sentence and cost nothing."""
    account = ledger(tmp_path)
    wrong = MetadataFilters(filters=[MetadataFilter(key="number", value="x", operator=FilterOperator.GT)])
    options: dict[str, Any] = {"mode": "query", "ledger": account, "filterable": ["number"]}
    retriever = PrivateRetriever.from_index(index_of(), epsilon=1, filters=wrong, **options)
    with pytest.raises(InvalidInput, match=r"The filters do not fit the nodes' metadata \(TypeError\)\."):
        retriever.retrieve("what?")
    assert account.spent == 0
    with pytest.raises(InvalidInput, match="Filters must be MetadataFilters"):
        PrivateRetriever.from_index(index_of(), epsilon=1, filters={"parity": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["index", "query"])
def test_undeclared_field(mode: str, tmp_path: Path) -> None:
    """A filter on a field that was not declared raises an error before anything is read or charged."""
    account = ledger(tmp_path)
    options: dict[str, Any] = {"epsilon": 1, "mode": mode, "ledger": account, "filterable": ["number"]}
    parity = MetadataFilters(filters=[MetadataFilter(key="parity", value=0)])
    nested = MetadataFilters(filters=[MetadataFilter(key="number", value=0), parity], condition=FilterCondition.OR)
    message = r"^A filter on the field '{0}' needs filterable=\['{0}'\], because a filter reveals that field"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("parity", {"filters": parity}),
        ("parity", {"filters": nested}),
        ("doc_id", {"doc_ids": ["doc 0"]}),
        ("doc_id", {"filters": MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value="doc 0")])}),
    ]
    for field, asked in wrong:
        with pytest.raises(InvalidInput, match=message.format(field)):
            PrivateRetriever.from_index(index_of(), **options, **asked)
    assert account.spent == 0
    index = index_of()
    store = PrivateVectorStore.from_index(index, **options)
    spent = account.spent
    index.docstore.get_node = None  # type: ignore[assignment, method-assign]  # nothing is read
    for field, asked in wrong:
        query = VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=2, **asked)
        with pytest.raises(InvalidInput, match=message.format(field)):
            store.query(query)
    with pytest.raises(InvalidInput, match=message.format("parity")):
        store.get_nodes(None, parity)
    assert account.spent == spent


def test_public_ids() -> None:
    """The ids of nodes are public and need no declaration."""
    retriever = PrivateRetriever.from_index(index_of(), epsilon=PLENTY, node_ids=NAMES[1:3], similarity_top_k=5)
    assert sorted(names(retriever.retrieve("what?"))) == [1, 2]


def test_answers_carry_the_visible_fields_alone() -> None:
    """Answers carry the visible fields alone."""
    retriever = PrivateRetriever.from_index(index_of(), epsilon=8, visible=["number"])
    (one, _) = retriever.retrieve("what?")
    assert set(one.node.metadata) == {"number", "scoreshield"}
    store = PrivateVectorStore.from_index(index_of(), epsilon=8, visible=[])
    assert store.get_nodes([NAMES[4]])[0].metadata == {}
    with pytest.raises(InvalidInput, match=r"parameter of PrivateRetriever\.from_index must be a list of names"):
        PrivateRetriever.from_index(index_of(), epsilon=8, filterable="number")


# ---- The vector store.


def test_outer_index() -> None:
    """An index over the private store works as over any other store."""
    store = PrivateVectorStore.from_index(index_of(), epsilon=PLENTY, filterable=["parity", "doc_id"])
    index = VectorStoreIndex.from_vector_store(store, embed_model=Fixed())
    assert names(index.as_retriever(similarity_top_k=4).retrieve("what?")) == BEST[:4]
    assert names(asyncio.run(index.as_retriever(similarity_top_k=4).aretrieve("what?"))) == BEST[:4]
    filters = MetadataFilters(filters=[MetadataFilter(key="parity", value=1)])
    found = index.as_retriever(similarity_top_k=3, filters=filters).retrieve("what?")
    assert names(found) == [one for one in BEST if one % 2][:3]
    assert found[0].node.metadata["scoreshield"]["epsilon"] == PLENTY
    assert index.as_query_engine(llm=MockLLM()).query("what?").source_nodes
    result = store.query(VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=2, doc_ids=["doc 1"]))
    assert result.ids == [NAMES[one] for one in BEST if 10 <= one < 20][:2]
    assert result.similarities == sorted(result.similarities or [], reverse=True)


def test_screening(tmp_path: Path) -> None:
    """Screening without scores gives no similarities."""
    options: dict[str, Any] = {"mode": "screening", "threshold": 0.0, "ledger": ledger(tmp_path)}
    store = PrivateVectorStore.from_index(index_of(), epsilon=1, **options)
    result = store.query(VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=3))
    assert result.similarities is None
    assert len(result.nodes or []) == 3


@pytest.mark.parametrize("mode", [mode for mode in VectorStoreQueryMode if mode != VectorStoreQueryMode.DEFAULT])
def test_other_query_modes(mode: VectorStoreQueryMode) -> None:
    """Every other query mode is rejected."""
    store = PrivateVectorStore.from_index(index_of(), epsilon=8)
    query = VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=2, mode=mode)
    with pytest.raises(InvalidInput, match=f"The query mode '{mode.value}' is rejected"):
        store.query(query)
    with pytest.raises(InvalidInput, match="is rejected"):
        asyncio.run(store.aquery(query))


def test_changes() -> None:
    """Changes of the collection go to the wrapped index."""
    wrapped = index_of()
    store = PrivateVectorStore.from_index(wrapped, epsilon=PLENTY, max_epsilon=2 * PLENTY)
    index = VectorStoreIndex.from_vector_store(store, embed_model=Fixed())
    new = TextNode(id_="new", text="new")
    index.insert_nodes([new])  # its embedding is the query's own
    assert "new" in wrapped.vector_store.data.embedding_dict  # type: ignore[attr-defined]
    top = lambda: [one.node.node_id for one in index.as_retriever(similarity_top_k=3).retrieve("what?")]  # noqa: E731
    assert store.search.stale
    assert "new" not in top()  # the old version answers
    store.search.refresh()
    assert "new" in top()[:2]
    assert store.search.version == 2
    index.delete_nodes(["new"])
    assert "new" not in top()  # at once
    index.delete_ref_doc("doc 0")
    assert all(number >= 10 for number in map(NAMES.index, top()))
    wrapped.delete_nodes([top()[0]])  # behind its back
    assert len(top()) == 3
    with pytest.raises(InvalidInput, match="Deleting nodes by filters is rejected"):
        store.delete_nodes(filters=MetadataFilters(filters=[]))
    with pytest.raises(InvalidInput, match="cannot change"):
        PrivateVectorStore(PrivateSearch(UNITS, epsilon=1), {}).add([new])


def test_new_version(tmp_path: Path) -> None:
    """In query mode a change is a new version on the same account."""
    index, account = index_of(), ledger(tmp_path)
    retriever = PrivateRetriever.from_index(index, epsilon=1, mode="query", ledger=account, similarity_top_k=N + 1)
    assert len(retriever.retrieve("what?")) == N
    index.insert_nodes([TextNode(id_="new", text="new")])
    assert len(retriever.retrieve("what?")) == N + 1
    index.delete_nodes(["new"])
    found = retriever.retrieve("what?")
    assert len(found) == N
    assert found[0].node.metadata["scoreshield"]["version"] == 3
    vectors: Any = index.vector_store
    vectors.data.embedding_dict[NAMES[0]] = [1.0] * D
    assert retriever.retrieve("what?")[0].node.metadata["scoreshield"]["version"] == 4
    assert account.spent == pytest.approx(4)


def test_listed_nodes() -> None:
    """Nodes are listed without scores and vectors."""
    store = PrivateVectorStore.from_index(index_of(), epsilon=8, filterable=["number"])
    assert [one.node_id for one in store.get_nodes()] == NAMES
    (one,) = store.get_nodes([NAMES[4]])
    assert one.get_content() == "text 4"
    assert one.embedding is None
    assert "scoreshield" not in one.metadata
    filters = MetadataFilters(filters=[MetadataFilter(key="number", value=3, operator=FilterOperator.LT)])
    assert [one.node_id for one in asyncio.run(store.aget_nodes(None, filters))] == NAMES[:3]


def test_index_file(tmp_path: Path) -> None:
    """An index is kept in a file and charged once."""
    account = ledger(tmp_path)
    options: dict[str, Any] = {"epsilon": 4, "ledger": account, "file": tmp_path / "index.npz", "similarity_top_k": N}
    first = PrivateRetriever.from_index(index_of(), **options).retrieve("what?")
    again = PrivateRetriever.from_index(index_of(), **options).retrieve("what?")
    assert [(one.node.node_id, one.score) for one in first] == [(one.node.node_id, one.score) for one in again]
    assert account.spent == pytest.approx(4)
    anew = [TextNode(text=str(number)) for number in range(N)]  # with ids at random
    with pytest.raises(InvalidInput, match="names none of these"):
        PrivateRetriever.from_index(VectorStoreIndex(anew, embed_model=Fixed()), **options)


# ---- Other vector stores.


def test_a_faiss_vector_store() -> None:
    """The nodes of a FAISS vector store are found."""
    faiss = pytest.importorskip("faiss")
    module = pytest.importorskip("llama_index.vector_stores.faiss")
    for kind in (faiss.IndexFlatL2, faiss.IndexFlatIP):
        context = StorageContext.from_defaults(vector_store=module.FaissVectorStore(faiss_index=kind(D)))
        index = index_of(storage_context=context)
        retriever = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=5)
        assert names(retriever.retrieve("what?")) == BEST[:5]


# LlamaIndex makes payload indexes, and the client says that they do nothing in local mode.
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant:UserWarning")
def test_a_qdrant_vector_store() -> None:
    """The nodes of a Qdrant vector store are found."""
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    module = pytest.importorskip("llama_index.vector_stores.qdrant")
    store = module.QdrantVectorStore("notes", client=client)
    index = index_of(storage_context=StorageContext.from_defaults(vector_store=store))
    retriever = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=5)
    found = retriever.retrieve("what?")
    assert names(found) == BEST[:5]
    assert all(one.node.embedding is None for one in found)
    index.delete_nodes([NAMES[BEST[1]]])
    assert BEST[1] not in names(retriever.retrieve("what?"))


def test_a_chroma_vector_store(tmp_path: Path) -> None:
    """The nodes of a Chroma vector store are found."""
    chromadb = pytest.importorskip("chromadb")
    module = pytest.importorskip("llama_index.vector_stores.chroma")
    pytest.importorskip("scoreshield.stores.chroma")
    client = chromadb.PersistentClient(tmp_path, chromadb.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection(uuid.uuid4().hex, configuration={"hnsw": {"space": "cosine"}})
    index = index_of(storage_context=StorageContext.from_defaults(vector_store=module.ChromaVectorStore(collection)))
    retriever = PrivateRetriever.from_index(index, epsilon=PLENTY, similarity_top_k=5)
    assert names(retriever.retrieve("what?")) == BEST[:5]
    index.delete_nodes([NAMES[BEST[1]]])
    assert BEST[1] not in names(retriever.retrieve("what?"))


def chroma_records(folder: Path, **parts: Any) -> VectorStoreIndex:
    """A collection that LlamaIndex did not write."""
    chromadb = pytest.importorskip("chromadb")
    module = pytest.importorskip("llama_index.vector_stores.chroma")
    client = chromadb.PersistentClient(folder, chromadb.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection(uuid.uuid4().hex)
    collection.add(ids=NAMES, embeddings=UNITS.tolist(), **parts)
    return VectorStoreIndex.from_vector_store(module.ChromaVectorStore(collection), embed_model=Fixed())


def qdrant_records(payload: dict[str, Any] | None) -> VectorStoreIndex:
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    models = pytest.importorskip("qdrant_client.models")
    module = pytest.importorskip("llama_index.vector_stores.qdrant")
    client.create_collection("notes", models.VectorParams(size=D, distance=models.Distance.COSINE))
    client.upsert("notes", [models.PointStruct(id=i, vector=UNITS[i].tolist(), payload=payload) for i in range(N)])
    return VectorStoreIndex.from_vector_store(module.QdrantVectorStore("notes", client=client), embed_model=Fixed())


@pytest.mark.parametrize("mode", ["index", "query"])
@pytest.mark.parametrize("kind", ["chroma", "qdrant", "faiss", "simple"])
def test_nodes_without_metadata_are_found(kind: str, mode: str, tmp_path: Path) -> None:
    """Nodes without metadata are found."""
    account = ledger(tmp_path)
    if kind == "chroma":
        index = chroma_records(tmp_path, documents=[f"text {i}" for i in range(N)])
    elif kind == "qdrant":
        index = qdrant_records({"text": "text 1"})
    else:
        plain = [TextNode(text="text 1", embedding=row.tolist()) for row in UNITS]
        context = None
        if kind == "faiss":
            module = pytest.importorskip("llama_index.vector_stores.faiss")
            vectors = module.FaissVectorStore(faiss_index=pytest.importorskip("faiss").IndexFlatIP(D))
            context = StorageContext.from_defaults(vector_store=vectors)
        index = VectorStoreIndex(plain, embed_model=Fixed(), storage_context=context)
    retriever = PrivateRetriever.from_index(index, epsilon=1, mode=mode, ledger=account, similarity_top_k=3)
    found = retriever.retrieve("what?")
    assert len(found) == 3
    assert all(one.node.get_content().startswith("text ") for one in found)
    assert account.spent == pytest.approx(1)


@pytest.mark.parametrize("mode", ["index", "query"])
@pytest.mark.parametrize("kind", ["chroma", "qdrant", "qdrant with other fields"])
def test_no_texts(kind: str, mode: str, tmp_path: Path) -> None:
    """Records without a text are not charged."""
    account = ledger(tmp_path)
    index = chroma_records(tmp_path) if kind == "chroma" else qdrant_records({"year": 1} if "with" in kind else None)
    with pytest.raises(ScoreShieldError, match=r"text") as caught:
        PrivateRetriever.from_index(index, epsilon=1, mode=mode, ledger=account).retrieve("what?")
    assert "\n" not in str(caught.value)
    assert account.spent == 0


def test_an_unknown_vector_store_needs_a_store() -> None:
    """An unknown vector store needs a store."""

    class Other(SimpleVectorStore):
        pass

    assert len(PrivateRetriever.from_index(index_of(), epsilon=8).retrieve("what?")) == 2
    vectors = Other()
    own = VectorStoreIndex(
        nodes(), embed_model=Fixed(), storage_context=StorageContext.from_defaults(vector_store=vectors)
    )
    assert names(PrivateRetriever.from_index(own, epsilon=PLENTY).retrieve("what?")) == BEST[:2]
    wrapped = VectorStoreIndex.from_vector_store(PrivateVectorStore.from_index(own, epsilon=8), embed_model=Fixed())
    with pytest.raises(InvalidInput, match="A private store within a private store is rejected"):
        PrivateRetriever.from_index(wrapped, epsilon=8)

    class Elsewhere(BasePydanticVectorStore):
        stores_text: bool = False

        @property
        def client(self) -> None:
            return

        def add(self, nodes: Any, **kwargs: Any) -> list[str]:
            del kwargs
            return [one.node_id for one in nodes]

        def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
            del ref_doc_id, kwargs

        def query(self, query: Any, **kwargs: Any) -> Any:
            del query, kwargs

    index = index_of(storage_context=StorageContext.from_defaults(vector_store=Elsewhere()))
    with pytest.raises(InvalidInput, match="Where a Elsewhere keeps its vectors is not known: give a 'store'"):
        PrivateRetriever.from_index(index, epsilon=8)
    given = ArrayStore(UNITS, NAMES)
    assert names(PrivateRetriever.from_index(index, store=given, epsilon=PLENTY).retrieve("what?")) == BEST[:2]


# ---- Bad input.


def test_bad_input() -> None:
    """Bad input raises an error of one sentence."""
    index = index_of()
    with pytest.raises(TypeError, match="epsilon"):
        PrivateRetriever.from_index(index)  # type: ignore[call-arg]
    for bad in (0, -1, float("nan"), "8", None):
        with pytest.raises(InvalidInput, match="epsilon"):
            PrivateRetriever.from_index(index, epsilon=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"must be a VectorStoreIndex\. Got .*SimpleVectorStore"):
        PrivateRetriever.from_index(index.vector_store, epsilon=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a PrivateSearch"):
        PrivateRetriever(index, {}, Fixed())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a mapping or a function"):
        PrivateRetriever(PrivateSearch(UNITS, epsilon=1), 3, Fixed())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="similarity_top_k"):
        PrivateRetriever.from_index(index, epsilon=1, similarity_top_k=0)
    with pytest.raises(InvalidInput, match=r"'centroids' parameter of PrivateRetriever\.from_index is rejected"):
        PrivateRetriever.from_index(index, epsilon=1, identity_of=str, centroids=True)
    with pytest.raises(InvalidInput, match="'ledger'"):
        PrivateRetriever.from_index(index, epsilon=1, mode="query")
    retriever = PrivateRetriever.from_index(index, epsilon=1)
    for embedding in ([1.0], [[1.0] * D], [float("nan")] * D, [0.0] * D):
        with pytest.raises(InvalidInput, match="query"):
            retriever.retrieve(QueryBundle("x", embedding=embedding))  # type: ignore[arg-type]
    for batch in ([], "text"):
        with pytest.raises(InvalidInput, match="A batch is a list"):
            retriever.retrieve_batch(batch)  # type: ignore[arg-type]
    without = PrivateRetriever(retriever.search, {})
    with pytest.raises(InvalidInput, match="no embedding"):
        without.retrieve("what?")
    with pytest.raises(InvalidInput, match="The query has no embedding"):
        PrivateVectorStore(retriever.search, {}).query(VectorStoreQuery())


@pytest.mark.parametrize(
    ("vectors", "told"),
    [
        ({}, "holds no records"),
        ({"a": [1.0, 2.0], "b": [1.0]}, "mixes vectors of different lengths"),
        ({"a": [1.0, float("nan")], "b": [1.0, 0.0]}, "not finite"),
    ],
)
def test_bad_store(vectors: dict[str, list[float]], told: str) -> None:
    """A bad store raises an error of one sentence."""
    index = VectorStoreIndex([], embed_model=Fixed())
    index.vector_store.data.embedding_dict.update(vectors)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match=told):
        PrivateRetriever.from_index(index, epsilon=1)


# ---- What a copy of a node carries.


class OwnNode(TextNode):
    """A node of the user's own class, which keeps a vector beside the embedding."""

    colour: str = ""
    dense: Any = None
    _cache: Any = PrivateAttr(default=None)


def test_user_node_class() -> None:
    """A node of the user's class leaves without its vectors."""
    search = PrivateSearch(ArrayStore(ROWS[:1], ids=["a"]), epsilon=1)
    for vector in (ROWS[0].tolist() * 2, ROWS[0], {"values": ROWS[0].tolist() * 2}):
        node = OwnNode(id_="a", text="text", colour="red", dense=vector)
        node._cache = ROWS[0]
        found: Any = PrivateRetriever(search, {"a": node}).retrieve(QueryBundle("q", embedding=QUERY.tolist()))[0].node
        assert not found.dense
        assert found.colour == "red"
        assert getattr(found, "_cache", None) is None
        assert node._cache is not None  # the user's own node stays as it was


def test_related_hash() -> None:
    """The hash of a related node is over all of its metadata: whoever has it can try each salary."""
    document = Document(id_="d", text="whole", metadata={"title": "a", "salary": 1234})
    related = document.as_related_node_info()
    node = TextNode(id_="a", text="text", relationships={NodeRelationship.SOURCE: related})
    search = PrivateSearch(ArrayStore(ROWS[:1], ids=["a"]), epsilon=1)
    retriever = PrivateRetriever(search, {"a": node}, visible=["title"])
    found = retriever.retrieve(QueryBundle("q", embedding=QUERY.tolist()))[0].node
    shown = found.relationships[NodeRelationship.SOURCE]
    assert isinstance(shown, RelatedNodeInfo)
    assert (shown.node_id, shown.metadata, shown.hash) == ("d", {"title": "a"}, None)
    assert related.hash == document.hash


def test_deep_filters() -> None:
    """Filters that are nested too deeply raise an error of one sentence."""
    nested: Any = MetadataFilters(filters=[MetadataFilter(key="parity", value=0)])
    for _ in range(2000):
        nested = MetadataFilters.model_construct(filters=[nested], condition=FilterCondition.AND)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        PrivateRetriever.from_index(index_of(), epsilon=1, filterable=["parity"], filters=nested)


# ---- Ways around the noise that only LlamaIndex has; those of all frameworks are in test_leaks.py.

LEAKS = LeakDetector(leak_cases.ROWS, leak_cases.QUERY)


@pytest.fixture
def plain_index() -> VectorStoreIndex:
    return leak_cases.LlamaIndex().make_store()  # type: ignore[no-any-return]


@pytest.fixture
def private_store(plain_index: VectorStoreIndex) -> PrivateVectorStore:
    return PrivateVectorStore.from_index(plain_index, epsilon=2.0, rng=3)


@pytest.fixture
def outer_index(plain_index: VectorStoreIndex, private_store: PrivateVectorStore) -> VectorStoreIndex:
    """An index over the private store."""
    return VectorStoreIndex.from_vector_store(private_store, embed_model=plain_index._embed_model)


def test_leak_nodes() -> None:
    """Listed nodes and related nodes hold no clean number that was stored beside them."""
    clean = float(leak_cases.COSINES[0])
    case = leak_cases.LlamaIndex()
    index = case.make_store(score=clean, nested={"embedding": leak_cases.ROWS[0].tolist()})
    store = PrivateVectorStore.from_index(index, epsilon=2.0)
    assert not LEAKS.find(*(one.to_json() for one in store.get_nodes()))
    source = RelatedNodeInfo(node_id="source", metadata={"similarity": clean})
    related = TextNode(text="1", relationships={NodeRelationship.SOURCE: source, NodeRelationship.CHILD: [source]})
    index = VectorStoreIndex([related], embed_model=Fixed())
    assert LEAKS.find([one.node.to_json() for one in index.as_retriever().retrieve("q")])
    assert not LEAKS.find([one.node.to_json() for one in case.make_private(index).retrieve("q")])


def test_leak_modes(plain_index: VectorStoreIndex, outer_index: VectorStoreIndex) -> None:
    """MMR and the learners are rejected through an index too."""
    first, *_ = plain_index.as_retriever(vector_store_query_mode="mmr").retrieve("q")
    best = leak_cases.COSINES.max()
    assert 2 * (first.score or 0) == pytest.approx(best)  # half of the weight is on the clean score
    for mode in ("mmr", "svm", "linear_regression"):
        with pytest.raises(InvalidInput, match="is rejected"):
            outer_index.as_retriever(vector_store_query_mode=mode).retrieve("q")
        with pytest.raises(InvalidInput, match="is rejected"):
            asyncio.run(outer_index.as_retriever(vector_store_query_mode=mode).aretrieve("q"))


@pytest.mark.parametrize("name", ["mmr_threshold", "include", "where", "return_embedding", "fetch_k"])
def test_leak_options(name: str, plain_index: VectorStoreIndex, outer_index: VectorStoreIndex) -> None:
    """Options that are not known are rejected and not ignored."""
    with pytest.raises(InvalidInput, match=f"The option '{name}' of a query is rejected"):
        outer_index.as_retriever(vector_store_kwargs={name: 0.5}).retrieve("q")
    with pytest.raises(InvalidInput, match=f"The '{name}' parameter of PrivateRetriever.from_index is unknown"):
        leak_cases.LlamaIndex().make_private(plain_index, **{name: 0.5})


@pytest.mark.parametrize("name", ["alpha", "mmr_threshold", "sparse_top_k", "output_fields", "embedding_field"])
def test_leak_query_fields(name: str, private_store: PrivateVectorStore) -> None:
    """Fields of a query that go around the noise are rejected."""
    query = VectorStoreQuery(query_embedding=leak_cases.QUERY.tolist(), similarity_top_k=2, **{name: 1})
    with pytest.raises(InvalidInput, match=f"'{name}' in a query is rejected"):
        private_store.query(query)


@pytest.mark.filterwarnings("ignore:The `__fields:DeprecationWarning")  # pydantic's own, when all names are read
def test_leak_attributes(private_store: PrivateVectorStore) -> None:
    """No attribute of a private store leads to the vectors or to the client."""
    assert not LEAKS.find(private_store, depth=8)
    assert private_store.client is None
    for name in ("data", "get", "to_dict"):
        assert not LEAKS.find(str(getattr(private_store, name, None)))
    assert not hasattr(private_store, "get")  # gives an embedding by id elsewhere


def test_leak_texts(
    plain_index: VectorStoreIndex, private_store: PrivateVectorStore, outer_index: VectorStoreIndex, tmp_path: Path
) -> None:
    """Texts, dumps and saved files hold no clean number, and nothing is pickled or copied."""
    retriever = leak_cases.LlamaIndex().make_private(plain_index)
    vectors: Any = plain_index.vector_store
    assert LEAKS.find(repr(vectors), vectors.to_json(fallback=repr))
    store: Any = private_store
    texts = [repr(store), str(store), store.to_dict(), store.to_json(), store.model_dump(), store.json(), store.dict()]
    assert not LEAKS.find(texts, repr(retriever), str(retriever), repr(retriever.search))
    for thing in (store, retriever, retriever.search):
        for spread in (pickle.dumps, copy.copy, copy.deepcopy):
            if thing is retriever.search and spread is copy.copy:
                continue
            with pytest.raises(InvalidInput, match="not pickled"):
                spread(thing)
    with pytest.raises(InvalidInput, match="not pickled"):
        store.model_copy()
    for name, one, leaks in (("plain", plain_index, True), ("outer", outer_index, False)):
        one.storage_context.persist(str(tmp_path / name))
        files = [path.read_text() for path in (tmp_path / name).rglob("*") if path.is_file()]
        assert bool(LEAKS.find(files)) is leaks
