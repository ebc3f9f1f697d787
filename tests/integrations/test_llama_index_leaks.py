"""Ways around the noise in LlamaIndex: each is tried on the plain pipeline, where it works, and on the private one.

What is looked for is a clean score, or an entry of a clean vector, in whatever a caller, a handler, a log or a file can
see. Seeds are fixed except in the audit, whose false-alarm rate is one in a million.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_index.core")

import llama_index.core.instrumentation as instrument
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span import SimpleSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from scoreshield.audit import Claim, audit
from scoreshield.audit.neighbours import worst_pairs
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.integrations.llama_index import PrivateRetriever, PrivateVectorStore
from scoreshield.privacy.ledger import Ledger

N, D, SEED = 24, 6, 3
ROWS = np.random.default_rng(8).standard_normal((N, D))
QUERY = np.random.default_rng(9).standard_normal(D)
COSINES = ROWS @ QUERY / np.linalg.norm(ROWS, axis=1) / np.linalg.norm(QUERY)
BEST = np.argsort(-COSINES)
SECRETS = np.concatenate([COSINES, ROWS.ravel(), (ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)).ravel()])
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def tells(*things: Any) -> bool:
    """Whether these, as text, hold a clean score or entry to six digits; arrays are looked at whole."""
    written = [float(number) for thing in things for number in NUMBER.findall(str(thing))]
    numbers = np.concatenate([written, *(np.ravel(one) for one in things if isinstance(one, np.ndarray))])
    secrets = np.concatenate([SECRETS, np.ravel(-SECRETS)])
    return bool(len(numbers) and (np.abs(numbers.astype(float)[:, None] - secrets).min(axis=1) < 6e-7).any())


class Fixed(BaseEmbedding):
    def _get_text_embedding(self, text: str) -> list[float]:
        return ROWS[int(text)].tolist() if text.isdigit() else QUERY.tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def index_of(rows: np.ndarray = ROWS, **metadata: Any) -> VectorStoreIndex:
    nodes = [
        TextNode(
            id_=str(number), text=f"text of {number}", embedding=row.tolist(), metadata={"number": number, **metadata}
        )
        for number, row in enumerate(rows)
    ]
    return VectorStoreIndex(nodes, embed_model=Fixed())


def private(index: VectorStoreIndex, k: int = 5, epsilon: float = 2.0, **options: Any) -> PrivateRetriever:
    return PrivateRetriever.from_index(index, epsilon=epsilon, similarity_top_k=k, rng=SEED, **options)


def both(k: int = 5) -> tuple[BaseRetriever, PrivateRetriever, BaseRetriever]:
    """The plain retriever, the private one, and one of an index over a private store."""
    index = index_of()
    store = PrivateVectorStore.from_index(index, epsilon=2.0, rng=SEED)
    over = VectorStoreIndex.from_vector_store(store, embed_model=Fixed())
    return index.as_retriever(similarity_top_k=k), private(index, k), over.as_retriever(similarity_top_k=k)


def everything(found: list[NodeWithScore]) -> str:
    return " ".join(f"{one.score!r} {one.node.to_json()}" for one in found)


def test_the_detector_sees_what_it_should() -> None:
    assert tells(f"score {COSINES[3]:.6f}")
    assert tells({"a": [ROWS[1, 2]]})
    assert tells(ROWS.astype(np.float32))
    assert tells(1 - (1 - COSINES[0]))
    assert not tells("0.123456", QUERY, N)


# ---- What comes back.


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_results_hold_no_clean_number(mode: str) -> None:
    for retriever, leaks in zip(both(), (True, False, False), strict=True):
        found = retriever.retrieve("q") if mode == "sync" else asyncio.run(retriever.aretrieve("q"))
        assert len(found) == 5
        assert tells(everything(found)) == leaks


def test_clean_numbers_that_were_stored_beside_a_node_are_scrubbed_and_cannot_be_filtered_on() -> None:
    index = index_of(score=float(COSINES[0]), nested={"embedding": ROWS[0].tolist()}, extra=ROWS[0].tolist() * 2)
    assert tells(everything(index.as_retriever(similarity_top_k=3).retrieve("q")))
    assert not tells(everything(private(index, 3).retrieve("q")))
    above = MetadataFilters(filters=[MetadataFilter(key="score", value=-1.0, operator=FilterOperator.GT)])
    assert len(index.as_retriever(similarity_top_k=3, filters=above).retrieve("q")) == 3
    assert private(index, 3, filters=above, filterable=["score"]).retrieve("q") == []
    store = PrivateVectorStore.from_index(index, epsilon=2.0)
    assert not tells(*(one.to_json() for one in store.get_nodes()))
    source = RelatedNodeInfo(node_id="source", metadata={"similarity": float(COSINES[0])})
    related = TextNode(text="1", relationships={NodeRelationship.SOURCE: source, NodeRelationship.CHILD: [source]})
    index = VectorStoreIndex([related], embed_model=Fixed())
    assert tells(everything(index.as_retriever().retrieve("q")).split(" ", 1)[1])
    assert not tells(everything(private(index).retrieve("q")))


def test_the_order_is_not_the_clean_order_nor_the_set_the_clean_set() -> None:
    """Of 40 builds at epsilon 1, the true five best of 24 come up together by chance about once in a thousand times."""
    index = index_of()
    best = {str(number) for number in BEST[:5]}

    def near_miss(build: int) -> set[str]:  # noise on the true top results alone, as others do it
        found = index.as_retriever(similarity_top_k=5).retrieve("q")
        noise = np.random.default_rng(build).laplace(0, 2, len(found))
        return {found[place].node.node_id for place in np.argsort(noise)}

    def ours(build: int) -> list[str]:
        retriever = PrivateRetriever.from_index(index, epsilon=1, similarity_top_k=5, rng=build)
        return [one.node.node_id for one in retriever.retrieve("q")]

    answers = [ours(build) for build in range(40)]
    assert sum(set(answer) == best for answer in answers) <= 2
    assert len({answer[0] for answer in answers}) > 10  # anyone may come first
    assert all(near_miss(build) == best for build in range(40))


def test_equal_scores_do_not_come_back_in_the_order_of_the_store() -> None:
    index = index_of(np.tile(ROWS[:1], (6, 1)))
    plain = {tuple(one.node.node_id for one in index.as_retriever(similarity_top_k=6).retrieve("q")) for _ in range(10)}
    ours = {
        tuple(
            one.node.node_id
            for one in PrivateRetriever.from_index(index, epsilon=1, similarity_top_k=6, rng=b).retrieve("q")
        )
        for b in range(10)
    }
    assert len(plain) == 1
    assert len(ours) == 10


# ---- Other ways to ask.


def test_mmr_and_the_learners_are_refused_through_an_index_too() -> None:
    index = index_of()
    store = PrivateVectorStore.from_index(index, epsilon=2.0, rng=SEED)
    over = VectorStoreIndex.from_vector_store(store, embed_model=Fixed())
    first, *_ = index.as_retriever(vector_store_query_mode="mmr").retrieve("q")
    assert 2 * (first.score or 0) == pytest.approx(COSINES[BEST[0]])  # half of the weight is on the clean score
    for mode in ("mmr", "svm", "linear_regression"):
        with pytest.raises(InvalidInput, match="is rejected"):
            over.as_retriever(vector_store_query_mode=mode).retrieve("q")
        with pytest.raises(InvalidInput, match="is rejected"):
            asyncio.run(over.as_retriever(vector_store_query_mode=mode).aretrieve("q"))


@pytest.mark.parametrize("name", ["mmr_threshold", "include", "where", "return_embedding", "fetch_k"])
def test_options_that_it_does_not_know_are_refused_and_not_ignored(name: str) -> None:
    store = PrivateVectorStore.from_index(index_of(), epsilon=2.0, rng=SEED)
    over = VectorStoreIndex.from_vector_store(store, embed_model=Fixed())
    with pytest.raises(InvalidInput, match=f"The option '{name}' of a query is rejected"):
        over.as_retriever(vector_store_kwargs={name: 0.5}).retrieve("q")
    with pytest.raises(InvalidInput, match=f"The '{name}' parameter of PrivateRetriever.from_index is unknown"):
        private(index_of(), **{name: 0.5})


@pytest.mark.parametrize("name", ["alpha", "mmr_threshold", "sparse_top_k", "output_fields", "embedding_field"])
def test_fields_of_a_query_that_go_around_the_noise_are_refused(name: str) -> None:
    store = PrivateVectorStore.from_index(index_of(), epsilon=2.0, rng=SEED)
    query = VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=2, **{name: 1})
    with pytest.raises(InvalidInput, match=f"'{name}' in a query is rejected"):
        store.query(query)


def public(thing: Any, depth: int = 4, seen: set[int] | None = None) -> Iterator[Any]:
    """What can be reached by attributes without an underscore, and inside what those hold."""
    seen = set() if seen is None else seen
    if id(thing) in seen or not depth:
        return
    seen.add(id(thing))
    yield thing
    if isinstance(thing, dict):
        inside = list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        inside = list(thing)
    elif isinstance(thing, str | bytes | int | float | np.ndarray | type(None) | type):
        inside = []
    else:
        inside = []
        for name in dir(thing):
            if not name.startswith("_") and not name.startswith("model_"):
                try:
                    value = getattr(thing, name)
                except Exception:
                    continue
                inside += [] if callable(value) else [value]
    for one in inside:
        yield from public(one, depth - 1, seen)


@pytest.mark.filterwarnings("ignore:The `__fields:DeprecationWarning")  # pydantic's own, when all names are read
def test_no_public_attribute_leads_to_the_store() -> None:
    index = index_of()
    assert tells(*public(index.vector_store))
    store = PrivateVectorStore.from_index(index, epsilon=2.0, rng=SEED)
    assert not tells(*public(store))
    assert not tells(*public(private(index)))
    assert store.client is None
    for name in ("data", "get", "to_dict"):
        assert not tells(getattr(store, name, None))
    assert not hasattr(store, "get")  # gives an embedding by id elsewhere


# ---- Handlers, logs and texts.


class Payloads(BaseCallbackHandler):
    def __init__(self) -> None:
        super().__init__([], [])
        self.seen: list[str] = []

    def _note(self, payload: Any) -> None:
        for value in (payload or {}).values():
            self.seen.append(
                everything(value)
                if isinstance(value, list) and value and isinstance(value[0], NodeWithScore)
                else repr(value)
            )

    def on_event_start(
        self, event_type: Any, payload: Any = None, event_id: str = "", parent_id: str = "", **kwargs: Any
    ) -> str:
        del event_type, parent_id, kwargs
        self._note(payload)
        return event_id

    def on_event_end(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> None:
        del event_type, event_id, kwargs
        self._note(payload)

    def start_trace(self, trace_id: str | None = None) -> None:
        del trace_id

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        del trace_id, trace_map


class Events(BaseEventHandler):
    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def class_name(cls) -> str:
        return "Events"

    def handle(self, event: Any, **kwargs: Any) -> None:
        del kwargs
        self.seen.append(event.model_dump_json(fallback=repr))


class Spans(BaseSpanHandler[SimpleSpan]):
    seen: list[str] = []  # noqa: RUF012

    def new_span(self, id_: str, bound_args: Any, instance: Any = None, **kwargs: Any) -> SimpleSpan:
        self.seen.append(f"{bound_args!r} {instance!r} {kwargs!r}")
        return SimpleSpan(id_=id_)

    def prepare_to_exit_span(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> None:
        del id_
        scored = isinstance(result, list) and result and isinstance(result[0], NodeWithScore)
        self.seen.append(f"{bound_args!r} {instance!r} {everything(result) if scored else repr(result)} {kwargs!r}")

    def prepare_to_drop_span(
        self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **kwargs: Any
    ) -> None:
        del id_
        self.seen.append(f"{bound_args!r} {instance!r} {err!r} {kwargs!r}")


@contextmanager
def watched() -> Iterator[list[str]]:
    """Everything that the instrumentation's handlers are told."""
    root = instrument.get_dispatcher()
    events, spans = Events(seen=[]), Spans()
    spans.seen = []
    kept = list(root.event_handlers), list(root.span_handlers)
    root.add_event_handler(events)
    root.add_span_handler(spans)
    seen: list[str] = []
    try:
        yield seen
    finally:
        root.event_handlers, root.span_handlers = kept
        seen += events.seen + spans.seen


def test_handlers_and_logs_and_prints_see_released_numbers_only(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for place, leaks in enumerate((True, False, False)):
        payloads = Payloads()
        retriever = both()[place]
        retriever.callback_manager = CallbackManager([payloads])
        retriever._verbose = True
        engine = RetrieverQueryEngine.from_args(
            retriever, llm=MockLLM(), node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=-1.0)]
        )
        caplog.clear()
        with watched() as seen:
            found = engine.query("q").source_nodes
            asyncio.run(engine.aquery("q"))
        assert len(found) == 5
        assert len(seen) > 5
        assert len(payloads.seen) > 2
        assert tells(*payloads.seen) == leaks
        assert tells(*seen) == leaks
        logged = [record.getMessage() + repr(record.args) + repr(record.__dict__) for record in caplog.records]
        if place != 1:  # LlamaIndex's own retriever logs; ours does not
            assert tells(*logged) == leaks
        assert not tells(*logged) or leaks
        assert tells(everything(found)) == leaks
    assert not tells(capsys.readouterr().out)


def test_texts_and_copies_hold_nothing(tmp_path: Path) -> None:
    index = index_of()
    store, retriever = PrivateVectorStore.from_index(index, epsilon=2.0, rng=SEED), private(index)
    assert tells(repr(index.vector_store), index.vector_store.to_json(fallback=repr))
    assert not tells(
        repr(store), str(store), store.to_dict(), store.to_json(), store.model_dump(), store.json(), store.dict()
    )
    assert not tells(repr(retriever), str(retriever), repr(retriever.search))
    for thing in (store, retriever, retriever.search):
        for spread in (pickle.dumps, copy.copy, copy.deepcopy):
            if thing is retriever.search and spread is copy.copy:
                continue
            with pytest.raises(InvalidInput, match="not pickled"):
                spread(thing)
    with pytest.raises(InvalidInput, match="not pickled"):
        store.model_copy()
    over = VectorStoreIndex.from_vector_store(store, embed_model=Fixed())
    for name, one, leaks in (("plain", index, True), ("over", over, False)):
        one.storage_context.persist(str(tmp_path / name))
        assert tells(*(path.read_text() for path in (tmp_path / name).rglob("*") if path.is_file())) == leaks


# ---- Errors.


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if error.__cause__ is not None:
            yield from chain(error.__cause__)
        error = error.__context__


def shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # of an object that was never finished
        return repr(error)


def told_by(error: BaseException) -> list[Any]:
    """The texts of an error and of its causes, and every variable of every frame but this file's own."""
    seen: list[Any] = []
    for one in chain(error):
        seen += [str(one), repr(one.args)]
        trace = one.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename != __file__:
                for value in trace.tb_frame.f_locals.values():
                    seen.append(value if isinstance(value, np.ndarray) else shown(value))
            trace = trace.tb_next
    return seen


def failing(work: Any) -> BaseException:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it was to fail")


def test_errors_hold_nothing_in_text_or_frames(tmp_path: Path) -> None:
    index = index_of()
    plain = failing(lambda: index.as_retriever().retrieve(QueryBundle("q", embedding=[1.0])))
    assert tells(*told_by(plain))
    account = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=1.0, delta=0.0).account("notes")
    charged: dict[str, Any] = {"mode": "query", "ledger": account}
    declared: dict[str, Any] = {**charged, "filterable": ["number"]}
    wrong = MetadataFilters(filters=[MetadataFilter(key="number", value="x", operator=FilterOperator.GT)])
    store = PrivateVectorStore.from_index(index, epsilon=2.0, rng=SEED)
    dear = PrivateRetriever.from_index(index, epsilon=3, **charged)
    for work in (
        lambda: private(index).retrieve(QueryBundle("q", embedding=[1.0])),
        lambda: private(index, filters=wrong, filterable=["number"]).retrieve("q"),
        lambda: PrivateRetriever.from_index(index, epsilon=1, filters=wrong, **declared).retrieve("q"),
        lambda: dear.retrieve("q"),
        lambda: asyncio.run(dear.aretrieve("q")),
        lambda: dear.retrieve_batch(["q", "r"]),
        lambda: store.query(VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=2), k=3),
    ):
        error = failing(work)
        assert isinstance(error, ScoreShieldError)
        assert not tells(*told_by(error)), work
    assert account.spent == 0


def test_a_store_that_fails_while_it_is_read_says_nothing_of_its_vectors() -> None:
    index = index_of()
    vectors: Any = index.vector_store
    retriever = PrivateRetriever.from_index(index, epsilon=1, mode="query", rng=SEED)
    assert len(retriever.retrieve("q")) == 2
    vectors.data.embedding_dict["0"] = [*ROWS[0, :-1].tolist(), "no number"]
    error = failing(lambda: retriever.retrieve("q"))
    assert isinstance(error, ScoreShieldError)
    assert not tells(*told_by(error))
    assert not tells(*told_by(failing(lambda: PrivateRetriever.from_index(index, epsilon=1))))
    vectors.data.embedding_dict["0"] = ROWS[0, :-1].tolist()
    assert not tells(*told_by(failing(lambda: PrivateRetriever.from_index(index, epsilon=1))))
    vectors.data.embedding_dict["0"] = [float("nan")] * D
    error = failing(lambda: retriever.retrieve("q"))
    assert isinstance(error, ScoreShieldError)
    assert not tells(*told_by(error))


# ---- The audit.


def test_the_audit_finds_no_leak_through_the_whole_pipeline_and_breaks_the_plain_one() -> None:
    """800 releases of each side through index and retriever: what is claimed holds, and the near miss is broken."""
    axis = np.eye(4)[0]
    index = index_of(np.eye(3, 4))
    vectors: Any = index.vector_store
    query = QueryBundle("q", embedding=axis.tolist())

    def fill(rows: np.ndarray) -> None:
        vectors.data.embedding_dict.update({str(place): row.tolist() for place, row in enumerate(rows)})

    def through_ours(rows: np.ndarray) -> np.ndarray:
        fill(rows)
        found = PrivateRetriever.from_index(index, epsilon=1.0, similarity_top_k=3).retrieve(query)
        numbers = {one.node.node_id: (one.score, one.node.metadata["scoreshield"]["noisy_score"]) for one in found}
        return np.array([numbers[str(place)] for place in range(3)]).ravel()

    def noise_on_the_true_best(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        fill(rows)
        out = np.zeros(3)
        for one in index.as_retriever(similarity_top_k=2).retrieve(query):
            out[int(one.node.node_id)] = (one.score or 0) + rng.laplace(0, 2)
        return out

    options: dict[str, Any] = {"neighbours": worst_pairs(3, 4, "scores", axis)[0], "confidence": 1 - 1e-6}
    assert not audit(through_ours, Claim(1.0), releases=800, **options).broken
    assert audit(noise_on_the_true_best, Claim(1.0), releases=300, **options).broken
