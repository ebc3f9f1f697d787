"""The Haystack component: what it returns, where each thing stands, what it refuses, writes down and charges."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
pytest.importorskip("haystack")

from haystack import Document, Pipeline, component
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.core.errors import PipelineRuntimeError
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.utils.filters import document_matches_filter
from integrations import leak_cases
from integrations.leak_detector import LeakDetector, catch

import scoreshield as ss
from scoreshield.decisions import QueryScores
from scoreshield.errors import BudgetExceeded, InvalidInput, LedgerError, StoreError
from scoreshield.integrations.haystack import PrivateRetriever
from scoreshield.privacy.ledger import Ledger

N, D = 30, 6
ROWS = np.random.default_rng(5).standard_normal((N, D))
UNITS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
QUERY = UNITS[7]
COSINES = UNITS @ QUERY
BEST = np.argsort(-COSINES).tolist()
#: So much budget that the noise is below the gaps between scores: the released order is then the clean one.
PLENTY = 500.0
MODULE = "scoreshield.integrations.haystack"


def documents(rows: np.ndarray = ROWS) -> list[Document]:
    return [
        Document(
            id=str(number),
            content=f"text {number}",
            meta={"parity": number % 2, "number": number},
            embedding=row.tolist(),
        )
        for number, row in enumerate(rows)
    ]


def store_of(written: list[Document] | None = None, **kwargs: Any) -> InMemoryDocumentStore:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine", **kwargs)
    store.write_documents(documents() if written is None else written)
    return store


class Elsewhere:
    """A document store with the protocol's methods and no more, as a client of a server would be."""

    def __init__(self, written: list[Document]) -> None:
        self.written = {one.id: one for one in written}
        self.reads: list[Any] = []
        self.broken = False

    def count_documents(self) -> int:
        return len(self.written)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        if self.broken:
            raise ConnectionError("password=secret")
        self.reads.append(filters)
        return [one for one in self.written.values() if not filters or document_matches_filter(filters, one)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        del policy
        self.written |= {one.id: one for one in documents}
        return len(documents)

    def delete_documents(self, document_ids: list[str]) -> None:
        for one in document_ids:
            del self.written[one]

    def to_dict(self) -> dict[str, Any]:
        return {"type": f"{__name__}.Elsewhere", "init_parameters": {}}


@component
class Embedder:
    """Embeds every text as the query."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        del text
        return {"embedding": QUERY.tolist()}


def pipeline(retriever: Any) -> Pipeline:
    made = Pipeline()
    made.add_component("embedder", Embedder())
    made.add_component("retriever", retriever)
    made.connect("embedder.embedding", "retriever.query_embedding")
    return made


def names(found: dict[str, list[Document]]) -> list[int]:
    return [int(one.id) for one in found["documents"]]


def ledger(folder: Path, epsilon: float = 10.0) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=epsilon, delta=0.0).account("notes")


# ---- One line of a working pipeline.


def test_plenty_of_budget() -> None:
    """With plenty of budget it finds what the plain retriever finds."""
    store = store_of()
    question = {"embedder": {"text": "what?"}, "retriever": {"top_k": 5}}
    plain = pipeline(InMemoryEmbeddingRetriever(store)).run(question)["retriever"]
    private = pipeline(PrivateRetriever(store, epsilon=PLENTY)).run(question)["retriever"]
    assert names(private) == names(plain) == BEST[:5]
    np.testing.assert_allclose([one.score for one in private["documents"]], COSINES[BEST[:5]], atol=0.02)
    assert [one.content for one in private["documents"]] == [one.content for one in plain["documents"]]


def test_scores_and_guarantee() -> None:
    """Scores are estimates in the range, or scaled, and the guarantee is in the metadata."""
    retriever = PrivateRetriever(store_of(), epsilon=1, top_k=N)
    found = retriever.run(QUERY.tolist())["documents"]
    noisy = np.array([one.meta["scoreshield"]["noisy_score"] for one in found])
    assert len(found) == N
    assert (np.diff(noisy) <= 0).all()
    assert np.abs(noisy).max() > 1
    scores = np.array([one.score for one in found])
    assert (np.diff(scores) <= 0).all()
    assert np.abs(scores).max() < 1
    scaled = retriever.run(QUERY.tolist(), scale_score=True)["documents"]
    np.testing.assert_allclose([one.score for one in scaled], (1 + scores) / 2)
    always = PrivateRetriever(store_of(), epsilon=1, scale_score=True).run(QUERY.tolist())["documents"]
    assert all(0 <= (one.score or 0) <= 1 for one in always)
    facts = found[0].meta["scoreshield"]
    assert (facts["epsilon"], facts["delta"], facts["mode"], facts["sampler"]) == (1.0, 0.0, "index", "exact")
    assert facts["noise_std"] == pytest.approx(retriever.search.guarantee.details["score_std"])
    assert facts["worth"]["k"] == N
    assert found[0].meta["parity"] in (0, 1)


@pytest.mark.parametrize("mode", ["hits", "batch", "auto"])
def test_rehearsal_charges_nothing(mode: str, tmp_path: Path) -> None:
    """A mode that charges when it is made is checked on public records, without the ledger and the file."""
    account = Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=50, delta=0).account("notes")
    options: dict[str, Any] = {"queries": np.stack([QUERY, -QUERY])} if mode == "batch" else {}
    retriever = PrivateRetriever(store_of(), epsilon=20, mode=mode, ledger=account, top_k=2, **options)
    assert account.spent == 0
    assert len(retriever.run(QUERY.tolist())["documents"]) == 2
    assert account.spent == pytest.approx(20)


def test_documents_are_copies_without_vectors() -> None:
    """Documents are copies without vectors."""
    sparse = SparseEmbedding([0], [0.25])
    blob = ByteStream(b"bytes", meta={"embedding": [0.5], "page": 3})
    store = store_of([replace(one, sparse_embedding=sparse, blob=blob, score=0.75) for one in documents()])
    found = PrivateRetriever(store, epsilon=8, top_k=N).run(QUERY.tolist())["documents"]
    for one in found:
        assert one.embedding is None
        assert one.sparse_embedding is None
        assert one.blob is not None
        assert (one.blob.data, one.blob.meta) == (b"bytes", {"page": 3})
    found[0].meta["parity"] = "spoilt"
    kept = store.storage[found[0].id]
    assert kept.meta["parity"] in (0, 1)
    assert "scoreshield" not in kept.meta
    assert kept.embedding is not None


@pytest.mark.parametrize("mode", ["index", "query", "screening"])
def test_modes(mode: str, tmp_path: Path) -> None:
    """The three modes answer single queries, batches and asynchronous calls."""
    options: dict[str, Any] = {} if mode == "index" else {"ledger": ledger(tmp_path), "mode": mode}
    options |= {"threshold": 0.2} if mode == "screening" else {}
    retriever = PrivateRetriever(store_of(), epsilon=1, top_k=3, **options)
    spent = lambda: options["ledger"].spent if options.get("ledger") else 0  # noqa: E731
    retriever.warm_up()
    assert spent() == 0  # reading is not releasing
    found = retriever.run(QUERY.tolist())["documents"]
    assert len(found) == 3
    assert all(one.score is None for one in found) == (mode == "screening")
    assert spent() == pytest.approx(0 if mode == "index" else 1)
    assert len(asyncio.run(retriever.run_async(QUERY.tolist()))["documents"]) == 3
    assert [len(one) for one in retriever.run_batch(UNITS[:2].tolist())["documents"]] == [3, 3]
    assert spent() == pytest.approx(0 if mode == "index" else 4)


def test_a_pipeline_that_is_run_asynchronously() -> None:
    """A pipeline can run asynchronously."""
    made = pipeline(PrivateRetriever(store_of(), epsilon=PLENTY, top_k=2))
    found = asyncio.run(made.run_async({"embedder": {"text": "what?"}}))
    assert names(found["retriever"]) == BEST[:2]
    retriever = PrivateRetriever(store_of(), epsilon=PLENTY)
    asyncio.run(retriever.warm_up_async())
    assert retriever.search.version == 1


def test_batch_charge(tmp_path: Path) -> None:
    """A batch is charged as a whole or not at all."""
    account = ledger(tmp_path, epsilon=2.5)
    retriever = PrivateRetriever(store_of(), epsilon=1, mode="query", ledger=account)
    with pytest.raises(BudgetExceeded):
        retriever.run_batch(UNITS[:3])  # type: ignore[arg-type]
    assert account.spent == 0
    retriever.run_batch(UNITS[:2])  # type: ignore[arg-type]
    assert account.spent == pytest.approx(2)


# ---- When it reads, and what it sees of changes.


def test_warm_up(tmp_path: Path) -> None:
    """Nothing is read or charged before the warm-up, and everything is read once after it."""
    store, account = Elsewhere([]), ledger(tmp_path)
    retriever = PrivateRetriever(store, epsilon=3, ledger=account)
    with pytest.raises(InvalidInput, match="has not read its documents yet"):
        _ = retriever.search
    with pytest.raises(StoreError, match="The Elsewhere holds no records"):
        retriever.warm_up()
    assert account.spent == 0
    store.write_documents(documents())
    for _ in range(2):
        retriever.warm_up()
        retriever.run(QUERY.tolist())
    assert account.spent == pytest.approx(3)
    assert store.reads.count(None) == 2  # the empty one and the full one, and never all documents again


def test_changes_of_the_store_in_index_mode() -> None:
    """An index answers from its version, without documents that are gone."""
    for store in (store_of(), Elsewhere(documents())):
        retriever = PrivateRetriever(store, epsilon=PLENTY, max_epsilon=2 * PLENTY, top_k=3, filterable=["parity"])
        assert names(retriever.run(QUERY.tolist())) == BEST[:3]
        store.delete_documents([str(one) for one in BEST[:2]])  # not named again, at once; others move up
        assert names(retriever.run(QUERY.tolist())) == BEST[2:5]
        new = Document(id="99", content="new", meta={"parity": 1}, embedding=QUERY.tolist())
        store.write_documents([new])
        assert 99 not in names(retriever.run(QUERY.tolist()))
        assert retriever.search.stale
        retriever.search.refresh()
        assert names(retriever.run(QUERY.tolist()))[0] == 99
        # What is shown of a document is what the store holds now, and filters look at that too.
        store.write_documents([replace(new, content="newer", meta={"parity": 5})], policy=DuplicatePolicy.OVERWRITE)
        assert retriever.run(QUERY.tolist())["documents"][0].content == "newer"
        odd = {"field": "meta.parity", "operator": "==", "value": 1}
        assert 99 not in names(retriever.run(QUERY.tolist(), filters=odd))


def test_new_version(tmp_path: Path) -> None:
    """In query mode a change is a new version on the same account."""
    for place, store in enumerate((store_of(), Elsewhere(documents()))):
        (tmp_path / str(place)).mkdir()
        account = ledger(tmp_path / str(place))
        retriever = PrivateRetriever(store, epsilon=1, mode="query", ledger=account, top_k=N + 1)
        assert len(retriever.run(QUERY.tolist())["documents"]) == N
        store.write_documents([Document(id="99", content="new", embedding=QUERY.tolist())])
        assert len(retriever.run(QUERY.tolist())["documents"]) == N + 1
        store.delete_documents(["99"])
        found = retriever.run(QUERY.tolist())["documents"]
        assert len(found) == N
        assert found[0].meta["scoreshield"]["version"] == 3
        assert account.spent == pytest.approx(3)


def test_overwritten_document(tmp_path: Path) -> None:
    """A document that is overwritten in memory is a new version."""
    store = store_of()
    retriever = PrivateRetriever(store, epsilon=1, mode="query", ledger=ledger(tmp_path), top_k=1)
    assert retriever.run(QUERY.tolist())["documents"][0].meta["scoreshield"]["version"] == 1
    store.write_documents([replace(documents()[0], embedding=[1.0] * D)], policy=DuplicatePolicy.OVERWRITE)
    assert retriever.run(QUERY.tolist())["documents"][0].meta["scoreshield"]["version"] == 2


def test_reported_change(tmp_path: Path) -> None:
    """A change that a store does not show can be reported."""
    store = Elsewhere(documents())
    retriever = PrivateRetriever(store, epsilon=1, mode="query", ledger=ledger(tmp_path), top_k=1)
    version = lambda: retriever.run(QUERY.tolist())["documents"][0].meta["scoreshield"]["version"]  # noqa: E731
    assert version() == 1
    store.write_documents([replace(documents()[0], embedding=[1.0] * D)])
    assert version() == 1
    retriever.changed()
    assert version() == 2


def test_broken_store(tmp_path: Path) -> None:
    """A store that fails costs nothing and shows no data."""
    store, account = Elsewhere(documents()), ledger(tmp_path)
    retriever = PrivateRetriever(store, epsilon=1, mode="query", ledger=account)
    store.broken = True
    with pytest.raises(StoreError, match=r"The Elsewhere failed while .* \(ConnectionError\)") as caught:
        retriever.run(QUERY.tolist())
    assert "secret" not in str(caught.value)
    assert account.spent == 0
    store.broken = False
    index = PrivateRetriever(store, epsilon=1)
    index.warm_up()
    store.broken = True
    with pytest.raises(StoreError, match="failed while giving documents by their ids"):
        index.run(QUERY.tolist())


def test_missing_embeddings() -> None:
    """Documents without embeddings raise an error of one sentence."""
    some = [replace(one, embedding=None) if one.id in ("1", "2") else one for one in documents()]
    with pytest.raises(StoreError, match=r"The InMemoryDocumentStore has 2 of 30 documents without an embedding"):
        PrivateRetriever(store_of(some), epsilon=1).warm_up()
    with pytest.raises(StoreError, match="mixes vectors of different lengths"):
        PrivateRetriever(store_of([*documents(), Document(id="x", embedding=[1.0])]), epsilon=1).warm_up()
    nothing = [*documents(), Document(id="x", embedding=[float("nan")] * D)]
    with pytest.raises(StoreError, match="not finite"):
        PrivateRetriever(store_of(nothing), epsilon=1).warm_up()
    PrivateRetriever(store_of([*documents(), Document(id="x", embedding=[0.0] * D)]), epsilon=1).warm_up()
    # A store that keeps embeddings to itself when asked for documents is read all the same.
    kept = PrivateRetriever(store_of(return_embedding=False), epsilon=PLENTY, top_k=2)
    assert names(kept.run(QUERY.tolist())) == BEST[:2]


# ---- Filters act on the released ranking.


def test_filters() -> None:
    """Filters choose among the released ranking."""
    even = {"field": "meta.parity", "operator": "==", "value": 0}
    large = {"field": "meta.number", "operator": ">=", "value": 10}
    options: dict[str, Any] = {"top_k": 4, "filters": even, "filterable": ["meta.parity", "number"]}
    for store in (store_of(), Elsewhere(documents())):
        retriever = PrivateRetriever(store, epsilon=PLENTY, **options)
        assert names(retriever.run(QUERY.tolist())) == [one for one in BEST if one % 2 == 0][:4]
        assert names(retriever.run(QUERY.tolist(), filters=large)) == [one for one in BEST if one >= 10][:4]
        merging = PrivateRetriever(store, epsilon=PLENTY, filter_policy=FilterPolicy.MERGE, **options)
        both = names(merging.run(QUERY.tolist(), filters=large))
        assert both == [one for one in BEST if one >= 10 and one % 2 == 0][:4]


def test_filters_that_do_not_fit_cost_nothing(tmp_path: Path) -> None:
    """Filters that do not fit cost nothing."""
    account = ledger(tmp_path)
    retriever = PrivateRetriever(store_of(), epsilon=1, mode="query", ledger=account, filterable=["number"])
    with pytest.raises(InvalidInput, match="The filters are not well formed"):
        retriever.run(QUERY.tolist(), filters={"operator": "AND"})
    no = {"field": "meta.number", "operator": "==", "value": "nothing"}
    for hidden in (
        {"bad": 1},
        {"operator": "AND", "conditions": None},
        "text",
        {"field": 3, "operator": "==", "value": 1},
    ):
        with pytest.raises(InvalidInput, match="The filters are not well formed"):
            retriever.run(QUERY.tolist(), filters={"operator": "AND", "conditions": [no, hidden]})
    with pytest.raises(InvalidInput, match=r"Filters must be a dictionary\. Got list"):
        retriever.run(QUERY.tolist(), filters=[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"The filters do not fit the documents' metadata"):
        retriever.run(QUERY.tolist(), filters={"field": "meta.number", "operator": ">", "value": "2024-01-01"})
    assert account.spent == 0


@pytest.mark.parametrize(
    ("declared", "field", "missing"),
    [
        ((), "meta.parity", "meta.parity"),
        ((), "parity", "meta.parity"),
        (["number"], "meta.parity", "meta.parity"),
        (["parity"], "content", "content"),
        (["meta.content"], "content", "content"),
        (["content"], "meta.content", "meta.content"),
        (["parity"], "meta", "meta"),
        (["meta.parity.deep"], "meta.parity", "meta.parity"),
        (["embedding"], "score", "score"),
    ],
)
def test_undeclared_field(declared: Any, field: str, missing: str, tmp_path: Path) -> None:
    """A filter on a field that was not declared raises an error before anything is read or charged."""
    account, store = ledger(tmp_path), Elsewhere(documents())
    options: dict[str, Any] = {"epsilon": 1, "mode": "query", "ledger": account, "filterable": declared}
    one = {"field": field, "operator": "==", "value": 1}
    deep = {"operator": "NOT", "conditions": [{"operator": "AND", "conditions": [one]}]}
    message = rf"^A filter on the field '{missing}' needs filterable=\['{missing}'\], because a filter reveals"
    retriever = PrivateRetriever(store, **options)
    for filters in (one, deep):
        with pytest.raises(InvalidInput, match=message):
            PrivateRetriever(store, **options, filters=filters)
        with pytest.raises(InvalidInput, match=message):
            retriever.run(QUERY.tolist(), filters=filters)
        with pytest.raises(InvalidInput, match=message):
            retriever.run_batch([QUERY.tolist()], filters=filters)
    assert store.reads == []
    assert account.spent == 0


@pytest.mark.parametrize(
    ("declared", "field"),
    [(["parity"], "meta.parity"), (["meta.parity"], "parity"), (["meta"], "parity"), (["parity"], "meta.parity.deep")],
)
def test_declared_paths(declared: Any, field: str) -> None:
    """Declared fields are filterable under either name and in part."""
    retriever = PrivateRetriever(store_of(), epsilon=1, filterable=declared)
    answer = retriever.run(QUERY.tolist(), filters={"field": field, "operator": "==", "value": 1})
    assert all(document.meta["parity"] == 1 for document in answer["documents"])


def test_ids_are_public_and_need_no_declaration() -> None:
    """Ids are public and need no declaration."""
    one = {"field": "id", "operator": "==", "value": "3"}
    assert names(PrivateRetriever(store_of(), epsilon=1).run(QUERY.tolist(), filters=one)) == [3]


def test_answers_carry_the_visible_fields_alone() -> None:
    """Answers carry the visible fields alone."""
    retriever = PrivateRetriever(store_of(), epsilon=1, visible=["number"])
    found = retriever.run(QUERY.tolist())["documents"]
    assert all(set(one.meta) == {"number", "scoreshield"} for one in found)
    for wrong in ("number", [3]):
        with pytest.raises(InvalidInput, match="'visible' parameter of PrivateRetriever must be a list of names"):
            PrivateRetriever(store_of(), epsilon=1, visible=wrong)


# ---- On paper.


def again(made: Pipeline) -> Pipeline:
    return Pipeline.loads(made.dumps(), allowed_modules=[MODULE, "haystack.*", __name__])


def test_serialised_pipeline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipeline is written and read without vectors, and warns before it is charged again."""
    account = ledger(tmp_path)
    options: dict[str, Any] = {
        "epsilon": 4,
        "ledger": account,
        "top_k": 3,
        "delta": 0.0,
        "filters": {"field": "meta.parity", "operator": "==", "value": 1},
        "filter_policy": FilterPolicy.MERGE,
        "filterable": ["parity"],
        "visible": ["number"],
        "scale_score": True,
        "file": tmp_path / "index.npz",
    }
    made = Pipeline()
    made.add_component("retriever", PrivateRetriever(store_of(index="written"), **options))
    question = {"retriever": {"query_embedding": QUERY.tolist()}}
    first = made.run(question)
    text = made.dumps()
    assert str(ROWS[0, 0])[:8] not in text
    assert f"sqlite:///{tmp_path / 'ledger.db'}" in text
    with caplog.at_level(logging.WARNING, logger=MODULE):
        assert again(made).run(question) == first  # the saved index
    assert not [one for one in caplog.records if one.name == MODULE]
    assert account.spent == pytest.approx(4)
    (tmp_path / "index.npz").unlink()
    with caplog.at_level(logging.WARNING, logger=MODULE):
        again(made).run(question)
    assert "makes a new release, which is charged in full again" in caplog.text
    assert account.spent == pytest.approx(8)
    others = [replace(one, id=f"other {one.id}") for one in documents()]
    with pytest.raises(InvalidInput, match="names none of these"):
        PrivateRetriever(store_of(others), epsilon=4, file=tmp_path / "index.npz").warm_up()


def test_every_parameter_survives() -> None:
    """Every parameter is kept in the serialised form."""
    retriever = PrivateRetriever(
        store_of(), epsilon=2, mechanism="gaussian", delta=1e-6, components=4, check_every=2.5, top_k=7, pin="copy"
    )
    data = retriever.to_dict()
    assert data["init_parameters"]["mechanism"] == "gaussian"
    back = PrivateRetriever.from_dict(data)
    assert back.to_dict() == data
    ranged = PrivateRetriever(store_of(), epsilon=2, mode="query", rng=3, score_range=(0.0, 1.0))
    assert PrivateRetriever.from_dict(ranged.to_dict()).run(QUERY.tolist())["documents"]


def public_scores() -> QueryScores:
    """Scores of 30 public queries with 60 public records; record i answers query i."""
    rng = np.random.default_rng(3)
    scores = rng.uniform(-0.5, 0.5, (30, 60))
    scores[np.arange(30), np.arange(30)] += 0.5
    return QueryScores(scores, np.column_stack([np.arange(30), np.arange(30)]), origin="public notes")


def serialised(retriever: PrivateRetriever) -> PrivateRetriever:
    """Write the retriever to a pipeline's file and read it."""
    made = Pipeline()
    made.add_component("retriever", retriever)
    return again(made).get_component("retriever")


def test_serialised_public_scores() -> None:
    """Public scores are written with the pipeline, and the loaded component predicts and answers the same."""
    retriever = PrivateRetriever(store_of(), epsilon=6, mode="query", rng=3, public_scores=public_scores())
    back = serialised(retriever)
    assert back.to_dict() == retriever.to_dict()
    first, second = (one.run(QUERY.tolist())["documents"] for one in (retriever, back))
    assert [(one.id, one.meta, one.score) for one in first] == [(one.id, one.meta, one.score) for one in second]
    default = PrivateRetriever(store_of(), epsilon=6, mode="query", rng=3)
    default.warm_up()
    assert back.search.worth == retriever.search.worth != default.search.worth


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "query", "mechanism": ss.randomised_response(2, [0.3, 0.5, 0.7])},
        {"mode": "query", "mechanism": ss.AnchoredWindows(k=5)},
        {"mode": "query", "mechanism": ss.AnchoredWindows(tail=ss.TailShape.default(4))},
        {"mode": "hits", "hits": 2, "cuts": [0.1, 0.4, 0.6]},
        {"mode": "hits", "hits": 2, "cuts": ss.PublicLevels(0.4, 0.3, 500, "a public corpus")},
        {"mode": "hits", "hits": 2, "adjacency": ss.NullRecord()},
    ],
    ids=["level table", "windows", "windows of a shape", "cuts", "public levels", "adjacency"],
)
@pytest.mark.filterwarnings("ignore::scoreshield.errors.TailShapeWarning")  # its vectors have 384 dimensions
def test_serialised_mechanisms(options: dict[str, Any]) -> None:
    """Public tables and levels are written with the pipeline, and the same seed gives the same answer."""
    retriever = PrivateRetriever(store_of(), epsilon=2, rng=5, **options)
    back = serialised(retriever)
    assert back.to_dict() == retriever.to_dict()
    first, second = (one.run(QUERY.tolist(), top_k=3)["documents"] for one in (retriever, back))
    assert [(one.id, one.score) for one in first] == [(one.id, one.score) for one in second]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("public_scores", {}, "no valid public scores"),
        ("mechanism", {"name": "levels"}, "not a table of score levels"),
        ("mechanism", {"name": "anchored", "tail": {}}, "not a tail shape"),
        ("cuts", {"tenth": 0.1}, "no public levels: they need fiftieth, records, source, tenth"),
        ("adjacency", {"kind": "none"}, "adjacency that this version does not support"),
    ],
)
def test_damaged_parameters(name: str, value: dict[str, Any], message: str) -> None:
    """A damaged object in a file raises an error of one sentence."""
    data = PrivateRetriever(store_of(), epsilon=2, mode="query", rng=1).to_dict()
    data["init_parameters"][name] = value
    with pytest.raises(InvalidInput, match=message) as caught:
        PrivateRetriever.from_dict(data)
    assert str(caught.value).endswith(".")


def test_unserialisable(tmp_path: Path) -> None:
    """Options that cannot be written are rejected."""
    with pytest.raises(InvalidInput, match="'identity_of' given as a dict is not serialised: leave it out"):
        PrivateRetriever(store_of(), epsilon=1, identity_of={"0": "a"}).to_dict()
    with pytest.raises(InvalidInput, match="'rng' given as a Generator is not serialised"):
        PrivateRetriever(store_of(), epsilon=1, rng=np.random.default_rng(1)).to_dict()

    class Server:
        name = "postgresql://host/db"

    account = ledger(tmp_path)
    elsewhere = replace(account, ledger=Server())
    with pytest.raises(InvalidInput, match="a ledger on a server is not serialised"):
        PrivateRetriever(store_of(), epsilon=1, ledger=elsewhere).to_dict()
    data = PrivateRetriever(store_of(), epsilon=1, ledger=account).to_dict()
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(LedgerError, match="There is no ledger"):
        PrivateRetriever.from_dict(data)


# ---- Bad input.


def test_bad_input() -> None:
    """Bad input raises an error of one sentence."""
    store = store_of()
    with pytest.raises(TypeError, match="epsilon"):
        PrivateRetriever(store)  # type: ignore[call-arg]
    for bad in (0, -1, float("nan"), "8", None):
        with pytest.raises(InvalidInput, match="epsilon"):
            PrivateRetriever(store, epsilon=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"takes a document store\. Got list"):
        PrivateRetriever([], epsilon=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'fetch_k' parameter of PrivateRetriever is unknown"):
        PrivateRetriever(store, epsilon=1, fetch_k=3)
    with pytest.raises(InvalidInput, match="'centroids' parameter of PrivateRetriever is rejected"):
        PrivateRetriever(store, epsilon=1, identity_of=str, centroids=True)
    with pytest.raises(InvalidInput, match="'mode'"):
        PrivateRetriever(store, epsilon=1, mode="free")
    with pytest.raises(InvalidInput, match="'ledger'"):
        PrivateRetriever(store, epsilon=1, mode="query")
    with pytest.raises(InvalidInput, match="'top_k'"):
        PrivateRetriever(store, epsilon=1, top_k=0)
    retriever = PrivateRetriever(store, epsilon=1)
    with pytest.raises(InvalidInput, match="'top_k'"):
        retriever.run(QUERY.tolist(), top_k=-1)
    for query in ([1.0], [[1.0] * D], [float("nan")] * D, [0.0] * D, None, "text", []):
        with pytest.raises(InvalidInput, match="query"):
            retriever.run(query)  # type: ignore[arg-type]


def test_deep_filters() -> None:
    """Filters that are nested too deeply raise an error of one sentence."""
    filters: dict[str, Any] = {"field": "meta.parity", "operator": "==", "value": 1}
    for _ in range(3000):
        filters = {"operator": "AND", "conditions": [filters]}
    with pytest.raises(InvalidInput, match="nested too deeply"):
        PrivateRetriever(InMemoryDocumentStore(), epsilon=1, filterable=["parity"], filters=filters)


# ---- Ways around the noise that only Haystack has; those of all frameworks are in test_leaks.py.

LEAKS = LeakDetector(leak_cases.ROWS, leak_cases.QUERY)
QUESTION = {"embedder": {"text": "what?"}}


@pytest.fixture
def case() -> leak_cases.Haystack:
    return leak_cases.Haystack()


def test_leak_embeddings(case: leak_cases.Haystack) -> None:
    """Embeddings are not returned in any way."""
    store, query = case.make_store(), leak_cases.QUERY.tolist()
    assert LEAKS.find(InMemoryEmbeddingRetriever(store, return_embedding=True).run(query))
    for kwargs in ({"return_embedding": True}, {"rng": 3}):
        with pytest.raises(InvalidInput, match="return_embedding is rejected"):
            PrivateRetriever(store, epsilon=2.0, **kwargs).run(query, return_embedding=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="return_embedding is rejected"):
        asyncio.run(case.make_private(store).run_async(query, return_embedding=True))
    with pytest.raises(PipelineRuntimeError, match="return_embedding is rejected"):
        case.make_pipeline(case.make_private(store)).run({**QUESTION, "retriever": {"return_embedding": True}})


def test_leak_embedding_filter(case: leak_cases.Haystack) -> None:
    """A filter does not confirm a guess of an embedding, even where the field is declared."""
    store, query = case.make_store(), leak_cases.QUERY.tolist()
    guess = {"field": "embedding", "operator": "==", "value": leak_cases.ROWS[0].tolist()}
    assert len(case.make_plain(store).run(query, filters=guess)["documents"]) == 1
    assert case.make_private(store, filterable=["embedding"]).run(query, filters=guess)["documents"] == []


def test_leak_hash() -> None:
    """An id that is a hash over the embedding is not shown, since it would confirm a guess of the vector."""
    rows, same = ROWS[:4], ["a", "b", "b", None]
    made = [Document(content=text, embedding=row.tolist()) for text, row in zip(same, rows, strict=True)]
    store = InMemoryDocumentStore(shared=False)
    store.write_documents(made)

    def guess(document: Document, row: np.ndarray) -> bool:
        return Document(content=document.content, embedding=row.tolist()).id == document.id

    shown = InMemoryEmbeddingRetriever(store).run(QUERY.tolist())["documents"]
    assert all(any(guess(one, row) for row in rows) for one in shown)
    retriever = PrivateRetriever(store, epsilon=2.0, rng=3)
    shown = retriever.run(QUERY.tolist())["documents"]
    assert len(shown) == len({one.id for one in shown}) == 4
    assert not any(guess(one, row) for one in shown for row in rows)
    assert {one.id for one in shown} == set(retriever.search.ids)
    assert Document(content="a").id in {one.id for one in shown}
    # Ids that a user chose stay, however long.
    chosen = hashlib.sha256(b"mine").hexdigest()
    store.write_documents([Document(id=chosen, content="c", embedding=[1.0] * D)])
    retriever.search.refresh()
    assert chosen in {one.id for one in retriever.run(QUERY.tolist())["documents"]}


def test_leak_texts(case: leak_cases.Haystack) -> None:
    """Texts and dumps hold no clean number, before and after the warm-up, and nothing is pickled or copied."""
    store = case.make_store()
    retriever = case.make_private(store)
    for is_warm in (False, True):
        if is_warm:
            retriever.warm_up()
        pipeline = case.make_pipeline(case.make_private(store))
        assert not LEAKS.find(repr(retriever), str(retriever), retriever.to_dict(), pipeline.dumps())
        for spread in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InvalidInput, match="not pickled"):
                spread(retriever)


def test_leak_kept_vectors(case: leak_cases.Haystack) -> None:
    """No clean vector is kept beside an index."""
    retriever = case.make_private(case.make_store())
    retriever.run(leak_cases.QUERY.tolist())
    kept = {name: value for name, value in vars(retriever._store).items() if name != "wrapped"}
    assert kept["_fresh"] is None
    assert kept["_counter"] is None  # it holds the documents themselves, in the modes that pin vectors
    assert not LEAKS.find(kept)


def test_leak_pipeline_error(case: leak_cases.Haystack, tmp_path: Path) -> None:
    """The error of a pipeline holds no clean number in its text or frames."""
    account = ledger(tmp_path, epsilon=1)
    dear = case.make_private(case.make_store(), epsilon=3, mode="query", ledger=account)
    assert not LEAKS.find_in_error(catch(lambda: case.make_pipeline(dear).run(QUESTION)))
    assert account.spent == 0
