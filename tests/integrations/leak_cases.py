"""One case per framework for the leak suite: the plain pipeline and the private one over the same vectors.

The plain pipeline leaks in every way that the suite tries. That shows that the suite would see a leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.integrations.sentence_transformers import PrivateCorpus, semantic_search

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
with contextlib.suppress(ImportError):
    from haystack import Document  # Haystack looks for the types of a component in its module
    from haystack.document_stores.types import DuplicatePolicy

N, D, SEED = 24, 6, 3
ROWS = np.random.default_rng(8).standard_normal((N, D))
QUERY = np.random.default_rng(9).standard_normal(D)
COSINES = ROWS @ QUERY / np.linalg.norm(ROWS, axis=1) / np.linalg.norm(QUERY)
BEST = np.argsort(-COSINES)


class Case(ABC):
    """A framework. Records are named by their numbers, and every query text is embedded as the query."""

    @abstractmethod
    def make_store(self, rows: np.ndarray = ROWS, query: np.ndarray = QUERY, **metadata: Any) -> Any:
        """Make a store of the framework in memory, with this metadata beside each record."""

    def replace_rows(self, store: Any, rows: np.ndarray) -> Any:
        """Return the store with other rows, one per record."""
        for place, row in enumerate(rows):
            self.replace_vector(store, place, row.tolist())
        return store

    @abstractmethod
    def make_plain(self, store: Any, k: int = 5) -> Any:
        """Make the framework's own retriever."""

    @abstractmethod
    def make_private(self, store: Any, k: int = 5, **options: Any) -> Any:
        """Make a private retriever; by default of an index with epsilon 2, in research mode."""

    @abstractmethod
    def answer(self, retriever: Any) -> Any:
        """Return everything that the retriever answers, with scores."""

    @abstractmethod
    async def aanswer(self, retriever: Any) -> Any:
        """Return the same from the asynchronous calls."""

    @abstractmethod
    def list_ids(self, retriever: Any) -> list[str]:
        """Return the ids of one answer, best first."""

    @abstractmethod
    def read_scores(self, retriever: Any) -> dict[str, tuple[float, ...]]:
        """Return every released number of one answer, by id."""

    @abstractmethod
    def read_clean_scores(self, retriever: Any) -> dict[str, float]:
        """Return the scores of the plain retriever, by id."""

    @abstractmethod
    def filter_above(self, store: Any, field: str) -> list[Any]:
        """Return the private answer under a filter that every clean score would pass; the field is filterable."""

    @abstractmethod
    def watch(self, make: Callable[[Any], Any], surroundings: Surroundings) -> dict[str, Any]:
        """Run a pipeline, and return what callbacks, handlers, tracers, logs and files get of it."""

    @abstractmethod
    def replace_vector(self, store: Any, place: int, vector: Any) -> None:
        """Put another vector in the place of a record's."""

    @abstractmethod
    def list_failures(self, store: Any, account: Any) -> list[Callable[[], Any]]:
        """List calls that fail: a wrong query, wrong filters, and a budget that is spent, in every way to ask."""

    @abstractmethod
    def fail_plainly(self, store: Any) -> Any:
        """Let the plain retriever fail with clean values in its frames."""


class Surroundings:
    """The fixtures that a pipeline can be watched with."""

    def __init__(
        self,
        folder: Path,
        caplog: pytest.LogCaptureFixture,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.folder, self.caplog, self.capsys, self.monkeypatch = folder, caplog, capsys, monkeypatch

    def read_log(self) -> list[Any]:
        """Return the log records since the last reading, and what was printed."""
        records = [[vars(record), record.getMessage()] for record in self.caplog.records]
        self.caplog.clear()
        return [*records, list(self.capsys.readouterr())]


# ---- LangChain.


class LangChain(Case):
    def __init__(self) -> None:
        pytest.importorskip("langchain_core")
        from langchain_core.embeddings import Embeddings

        class Table(Embeddings):
            def __init__(self, rows: np.ndarray, query: np.ndarray) -> None:
                self._rows, self._query = rows.tolist(), query.tolist()

            def embed_query(self, text: str) -> list[float]:
                del text
                return self._query

            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                return [self._rows[int(text.split()[-1])] for text in texts]

        self._model = Table

    def make_store(self, rows: np.ndarray = ROWS, query: np.ndarray = QUERY, **metadata: Any) -> Any:
        from langchain_core.vectorstores import InMemoryVectorStore

        store = InMemoryVectorStore(self._model(rows, query))
        names = [str(number) for number in range(len(rows))]
        metadatas = [{"number": int(one), **metadata} for one in names]
        store.add_texts([f"text {one}" for one in names], metadatas, ids=names)
        return store

    def make_plain(self, store: Any, k: int = 5) -> Any:
        return store.as_retriever(search_kwargs={"k": k})

    def make_private(self, store: Any, k: int = 5, **options: Any) -> Any:
        from scoreshield.integrations.langchain import PrivateRetriever

        return PrivateRetriever.from_vectorstore(store, k=k, **_complete(options))

    def answer(self, retriever: Any) -> Any:
        store, k = retriever.vectorstore, retriever.search_kwargs["k"]
        return [
            retriever.invoke("query"),
            retriever.batch(["query", "another"]),
            store.similarity_search_with_score("query", k=k),
            store.similarity_search_by_vector(QUERY.tolist(), k=k),
            store.get_by_ids([str(number) for number in range(N)]),
        ]

    async def aanswer(self, retriever: Any) -> Any:
        store, k = retriever.vectorstore, retriever.search_kwargs["k"]
        return [
            await retriever.ainvoke("query"),
            await retriever.abatch(["query", "another"]),
            await store.asimilarity_search_with_score("query", k=k),
            await store.asimilarity_search_by_vector(QUERY.tolist(), k=k),
            await store.aget_by_ids([str(number) for number in range(N)]),
        ]

    def list_ids(self, retriever: Any) -> list[str]:
        return [document.id for document in retriever.invoke("query")]

    def read_scores(self, retriever: Any) -> dict[str, tuple[float, ...]]:
        pairs = retriever.vectorstore.similarity_search_with_score("query", k=retriever.search_kwargs["k"])
        return {one.id: (score, one.metadata["scoreshield"]["noisy_score"]) for one, score in pairs}

    def read_clean_scores(self, retriever: Any) -> dict[str, float]:
        pairs = retriever.vectorstore.similarity_search_with_score("query", k=retriever.search_kwargs["k"])
        return {document.id: score for document, score in pairs}

    def filter_above(self, store: Any, field: str) -> list[Any]:
        private = self.make_private(store, filterable=[field]).vectorstore
        return private.similarity_search("query", filter=lambda one: one.metadata.get(field, -9) > -1)  # type: ignore[no-any-return]

    def watch(self, make: Callable[[Any], Any], surroundings: Surroundings) -> dict[str, Any]:
        from langchain_core.callbacks import BaseCallbackHandler
        from langchain_core.globals import set_debug, set_verbose
        from langchain_core.language_models import FakeListLLM
        from langchain_core.prompts import PromptTemplate
        from langchain_core.runnables import RunnableLambda
        from langchain_core.tracers.context import collect_runs

        class Watcher(BaseCallbackHandler):
            """Keeps everything that any callback is handed."""

            def __init__(self) -> None:
                self.heard: list[Any] = []

            def __getattribute__(self, name: str) -> Any:
                if name.startswith("on_"):
                    return lambda *args, **kwargs: self.heard.append((name, args, kwargs))
                return super().__getattribute__(name)

        # The framework's own store puts no score beside a document, so one is planted there.
        store = self.make_store(score=float(COSINES[0]), embedding=ROWS[0].tolist())
        retriever, watcher = make(store), Watcher()
        prompt = PromptTemplate.from_template("Answer from {context}")
        model = FakeListLLM(responses=["so it is"])
        chain = retriever | RunnableLambda(lambda documents: {"context": documents}) | prompt | model

        async def stream() -> list[Any]:
            events = [event async for event in chain.astream_events("query", version="v2")]
            logs = [step async for step in chain.astream_log("query")]
            return [events, logs, await retriever.abatch(["query", "another"], {"callbacks": [watcher]})]

        try:
            set_debug(True)
            set_verbose(True)
            with collect_runs() as runs:
                chain.invoke("query", {"callbacks": [watcher]})
                retriever.batch(["query", "another"], {"callbacks": [watcher]})
            streams = asyncio.run(stream())
        finally:
            set_debug(False)
            set_verbose(False)
        assert runs.traced_runs
        assert {name for name, *_ in watcher.heard} >= {"on_retriever_start", "on_retriever_end", "on_chain_start"}
        return {
            "callbacks": watcher.heard,
            "traces": [run.model_dump() for run in runs.traced_runs],
            "streams": streams,
            "logs": surroundings.read_log(),
        }

    def replace_vector(self, store: Any, place: int, vector: Any) -> None:
        store.store[str(place)]["vector"] = vector

    def list_failures(self, store: Any, account: Any) -> list[Callable[[], Any]]:
        options: dict[str, Any] = {"mode": "query", "ledger": account}
        index = self.make_private(store, filterable=["number"])
        dear = self.make_private(store, epsilon=3, **options)
        filtered = self.make_private(store, epsilon=1, filterable=["number"], **options)
        wrong: Callable[[Any], bool] = lambda one: one.metadata["year"] > 1  # noqa: E731
        return [
            lambda: index.vectorstore.similarity_search_by_vector([1.0]),
            lambda: index.vectorstore.similarity_search_by_vector([float("nan")] * D),
            lambda: index.invoke("query", k=0),
            lambda: index.invoke("query", filter=wrong),
            lambda: filtered.invoke("query", filter=wrong),
            lambda: dear.invoke("query"),
            lambda: asyncio.run(dear.ainvoke("query")),
            lambda: dear.batch(["query"] * 2),
            lambda: asyncio.run(dear.abatch(["query"] * 2)),
        ]

    def fail_plainly(self, store: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("langchain_core.vectorstores.in_memory.Document", lambda **_: 1 / 0)
            store.similarity_search("query")


# ---- LlamaIndex.


class LlamaIndex(Case):
    """The private retriever, over an index."""

    def __init__(self) -> None:
        pytest.importorskip("llama_index.core")
        from llama_index.core.base.embeddings.base import BaseEmbedding
        from llama_index.core.bridge.pydantic import PrivateAttr

        class Fixed(BaseEmbedding):
            _query: Any = PrivateAttr()

            def _get_text_embedding(self, text: str) -> list[float]:
                del text
                return self._query  # type: ignore[no-any-return]

            def _get_query_embedding(self, query: str) -> list[float]:
                return self._get_text_embedding(query)

            async def _aget_query_embedding(self, query: str) -> list[float]:
                return self._get_text_embedding(query)

        self._model = Fixed

    def make_store(self, rows: np.ndarray = ROWS, query: np.ndarray = QUERY, **metadata: Any) -> Any:
        from llama_index.core import VectorStoreIndex
        from llama_index.core.schema import TextNode

        nodes = [
            TextNode(
                id_=str(number),
                text=f"text of {number}",
                embedding=row.tolist(),
                metadata={"number": number, **metadata},
            )
            for number, row in enumerate(rows)
        ]
        model = self._model()
        model._query = query.tolist()
        return VectorStoreIndex(nodes, embed_model=model)

    def make_plain(self, store: Any, k: int = 5) -> Any:
        return store.as_retriever(similarity_top_k=k)

    def make_private(self, store: Any, k: int = 5, **options: Any) -> Any:
        from scoreshield.integrations.llama_index import PrivateRetriever

        return PrivateRetriever.from_index(store, similarity_top_k=k, **_complete(options))

    def answer(self, retriever: Any) -> Any:
        nodes = retriever.retrieve("query")
        return [nodes, [one.node.to_json() for one in nodes]]

    async def aanswer(self, retriever: Any) -> Any:
        nodes = await retriever.aretrieve("query")
        return [nodes, [one.node.to_json() for one in nodes]]

    def list_ids(self, retriever: Any) -> list[str]:
        return [one.node.node_id for one in retriever.retrieve("query")]

    def read_scores(self, retriever: Any) -> dict[str, tuple[float, ...]]:
        nodes = retriever.retrieve("query")
        return {one.node.node_id: (one.score, one.node.metadata["scoreshield"]["noisy_score"]) for one in nodes}

    def read_clean_scores(self, retriever: Any) -> dict[str, float]:
        return {one.node.node_id: one.score for one in retriever.retrieve("query")}

    def filter_above(self, store: Any, field: str) -> list[Any]:
        from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

        above = MetadataFilters(filters=[MetadataFilter(key=field, value=-1.0, operator=FilterOperator.GT)])
        assert len(store.as_retriever(similarity_top_k=3, filters=above).retrieve("query")) == 3
        return self.make_private(store, filters=above, filterable=[field]).retrieve("query")  # type: ignore[no-any-return]

    def watch(self, make: Callable[[Any], Any], surroundings: Surroundings) -> dict[str, Any]:
        from llama_index.core.callbacks import CallbackManager
        from llama_index.core.llms import MockLLM
        from llama_index.core.postprocessor import SimilarityPostprocessor
        from llama_index.core.query_engine import RetrieverQueryEngine

        retriever, payloads = make(self.make_store()), _make_payload_handler()
        retriever.callback_manager = CallbackManager([payloads])
        retriever._verbose = True
        cut = SimilarityPostprocessor(similarity_cutoff=-1.0)
        engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM(), node_postprocessors=[cut])
        with _instrument() as seen:
            nodes = engine.query("query").source_nodes
            asyncio.run(engine.aquery("query"))
        assert len(nodes) == 5
        assert len(seen) > 5
        assert len(payloads.seen) > 2
        return {"payloads": payloads.seen, "events": seen, "logs": surroundings.read_log(), "answers": nodes}

    def replace_vector(self, store: Any, place: int, vector: Any) -> None:
        store.vector_store.data.embedding_dict[str(place)] = vector

    def list_failures(self, store: Any, account: Any) -> list[Callable[[], Any]]:
        from llama_index.core.schema import QueryBundle
        from llama_index.core.vector_stores.types import (
            FilterOperator,
            MetadataFilter,
            MetadataFilters,
            VectorStoreQuery,
        )

        from scoreshield.integrations.llama_index import PrivateVectorStore

        options: dict[str, Any] = {"mode": "query", "ledger": account}
        wrong = MetadataFilters(filters=[MetadataFilter(key="number", value="x", operator=FilterOperator.GT)])
        only: dict[str, Any] = {"filters": wrong, "filterable": ["number"]}
        dear = self.make_private(store, epsilon=3, **options)
        vectors = PrivateVectorStore.from_index(store, epsilon=2.0, rng=SEED)
        query = VectorStoreQuery(query_embedding=QUERY.tolist(), similarity_top_k=2)
        return [
            lambda: self.make_private(store).retrieve(QueryBundle("query", embedding=[1.0])),
            lambda: self.make_private(store, **only).retrieve("query"),
            lambda: self.make_private(store, epsilon=1, **only, **options).retrieve("query"),
            lambda: dear.retrieve("query"),
            lambda: asyncio.run(dear.aretrieve("query")),
            lambda: dear.retrieve_batch(["query", "another"]),
            lambda: vectors.query(query, k=3),
        ]

    def fail_plainly(self, store: Any) -> Any:
        from llama_index.core.schema import QueryBundle

        store.as_retriever().retrieve(QueryBundle("query", embedding=[1.0]))


class LlamaIndexStore(LlamaIndex):
    """The private vector store, under an index of its own."""

    def make_private(self, store: Any, k: int = 5, **options: Any) -> Any:
        from llama_index.core import VectorStoreIndex

        from scoreshield.integrations.llama_index import PrivateVectorStore

        private = PrivateVectorStore.from_index(store, **_complete(options))
        over = VectorStoreIndex.from_vector_store(private, embed_model=store._embed_model)
        return over.as_retriever(similarity_top_k=k)

    def filter_above(self, store: Any, field: str) -> list[Any]:
        from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

        from scoreshield.integrations.llama_index import PrivateVectorStore

        above = MetadataFilters(filters=[MetadataFilter(key=field, value=-1.0, operator=FilterOperator.GT)])
        return PrivateVectorStore.from_index(store, epsilon=2.0, filterable=[field]).get_nodes(None, above)  # type: ignore[return-value]

    def list_failures(self, store: Any, account: Any) -> list[Callable[[], Any]]:
        dear = self.make_private(store, epsilon=3, mode="query", ledger=account)
        return [lambda: dear.retrieve("query"), lambda: asyncio.run(dear.aretrieve("query"))]


def _make_payload_handler() -> Any:
    from llama_index.core.callbacks.base_handler import BaseCallbackHandler

    class Payloads(BaseCallbackHandler):
        def __init__(self) -> None:
            super().__init__([], [])
            self.seen: list[Any] = []

        def on_event_start(
            self, event_type: Any, payload: Any = None, event_id: str = "", parent_id: str = "", **kwargs: Any
        ) -> str:
            del event_type, parent_id, kwargs
            self.seen += (payload or {}).values()
            return event_id

        def on_event_end(self, event_type: Any, payload: Any = None, event_id: str = "", **kwargs: Any) -> None:
            del event_type, event_id, kwargs
            self.seen += (payload or {}).values()

        def start_trace(self, trace_id: str | None = None) -> None:
            del trace_id

        def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
            del trace_id, trace_map

    return Payloads()


@contextlib.contextmanager
def _instrument() -> Iterator[list[Any]]:
    """Collect everything that handlers of events and spans are handed."""
    import llama_index.core.instrumentation as instrument
    from llama_index.core.instrumentation.event_handlers import BaseEventHandler
    from llama_index.core.instrumentation.span import SimpleSpan
    from llama_index.core.instrumentation.span_handlers import BaseSpanHandler

    seen: list[Any] = []

    class Events(BaseEventHandler):
        @classmethod
        def class_name(cls) -> str:
            return "Events"

        def handle(self, event: Any, **kwargs: Any) -> None:
            del kwargs
            seen.append(event.model_dump_json(fallback=repr))

    class Spans(BaseSpanHandler[SimpleSpan]):
        def new_span(self, id_: str, bound_args: Any, instance: Any = None, **kwargs: Any) -> SimpleSpan:
            seen.append(f"{bound_args!r} {instance!r} {kwargs!r}")
            return SimpleSpan(id_=id_)

        def prepare_to_exit_span(
            self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
        ) -> None:
            del id_
            seen.extend([f"{bound_args!r} {instance!r} {kwargs!r}", result])

        def prepare_to_drop_span(
            self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **kwargs: Any
        ) -> None:
            del id_
            seen.append(f"{bound_args!r} {instance!r} {err!r} {kwargs!r}")

    root = instrument.get_dispatcher()
    before = list(root.event_handlers), list(root.span_handlers)
    root.add_event_handler(Events())
    root.add_span_handler(Spans())
    try:
        yield seen
    finally:
        root.event_handlers, root.span_handlers = before


# ---- Haystack.


class Haystack(Case):
    def __init__(self) -> None:
        pytest.importorskip("haystack")
        self._query = QUERY.tolist()
        self._pipelines: list[tuple[Any, Any]] = []

    def make_store(self, rows: np.ndarray = ROWS, query: np.ndarray = QUERY, **metadata: Any) -> Any:
        from haystack.document_stores.in_memory import InMemoryDocumentStore

        store = InMemoryDocumentStore(embedding_similarity_function="cosine", shared=False)
        store.write_documents(
            [
                Document(id=str(n), content=f"text {n}", embedding=row.tolist(), meta={"number": n, **metadata})
                for n, row in enumerate(rows)
            ]
        )
        self._query = query.tolist()
        return store

    def make_plain(self, store: Any, k: int = 5) -> Any:
        from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever

        return InMemoryEmbeddingRetriever(store, top_k=k)

    def make_private(self, store: Any, k: int = 5, **options: Any) -> Any:
        from scoreshield.integrations.haystack import PrivateRetriever

        return PrivateRetriever(store, top_k=k, **_complete(options))

    def make_pipeline(self, retriever: Any, *, fails: bool = False) -> Any:
        """Make a pipeline of an embedder, the retriever and a reader, which can be made to fail."""
        from haystack import Pipeline, component

        @component
        class Embedder:
            @component.output_types(embedding=list[float])
            def run(self, text: str) -> dict[str, list[float]]:
                del text
                return {"embedding": QUERY.tolist()}

        @component
        class Reader:
            @component.output_types(count=int)
            def run(self, documents: list[Document]) -> dict[str, int]:
                if fails:
                    raise RuntimeError("the reader failed")
                return {"count": len(documents)}

        made = Pipeline()
        made.add_component("embedder", Embedder())
        made.add_component("retriever", retriever)
        made.add_component("reader", Reader())
        made.connect("embedder.embedding", "retriever.query_embedding")
        made.connect("retriever.documents", "reader.documents")
        return made

    def _get_pipeline(self, retriever: Any) -> Any:
        """Return the one pipeline that a component can be in."""
        for known, pipeline in self._pipelines:
            if known is retriever:
                return pipeline
        self._pipelines.append((retriever, self.make_pipeline(retriever)))
        return self._pipelines[-1][1]

    def answer(self, retriever: Any) -> Any:
        pipeline = self._get_pipeline(retriever)
        return pipeline.run({"embedder": {"text": "what?"}}, include_outputs_from={"embedder", "retriever", "reader"})

    async def aanswer(self, retriever: Any) -> Any:
        pipeline = self._get_pipeline(retriever)
        return await pipeline.run_async({"embedder": {"text": "what?"}}, include_outputs_from={"retriever", "reader"})

    def list_ids(self, retriever: Any) -> list[str]:
        return [one.id for one in retriever.run(self._query)["documents"]]

    def read_scores(self, retriever: Any) -> dict[str, tuple[float, ...]]:
        found = retriever.run(self._query)["documents"]
        return {one.id: (one.score, one.meta["scoreshield"]["noisy_score"]) for one in found}

    def read_clean_scores(self, retriever: Any) -> dict[str, float]:
        return {one.id: one.score or 0 for one in retriever.run(self._query)["documents"]}

    def filter_above(self, store: Any, field: str) -> list[Any]:
        above = {"field": f"meta.{field}", "operator": ">", "value": -1.0}
        assert len(self.make_plain(store).run(QUERY.tolist(), filters=above)["documents"]) == 5
        bare = {**above, "field": field}
        return [
            *self.make_private(store, filterable=[f"meta.{field}"]).run(QUERY.tolist(), filters=above)["documents"],
            *self.make_private(store, filterable=[field]).run(QUERY.tolist(), filters=bare)["documents"],
        ]

    def watch(self, make: Callable[[Any], Any], surroundings: Surroundings) -> dict[str, Any]:
        from haystack import tracing
        from haystack.core.errors import BreakpointException, PipelineRuntimeError
        from haystack.dataclasses.breakpoints import Breakpoint
        from haystack.tracing.logging_tracer import LoggingTracer

        seen: list[Any] = []

        class Span(tracing.Span):
            def set_tag(self, key: str, value: Any) -> None:
                seen.extend([key, value])

        class Tracer(tracing.Tracer):
            @contextlib.contextmanager
            def trace(self, operation_name: str, tags: Any = None, parent_span: Any = None) -> Iterator[tracing.Span]:
                del parent_span
                seen.extend([operation_name, tags])
                yield Span()

            def current_span(self) -> tracing.Span | None:
                return None

        question = {"embedder": {"text": "what?"}}
        pipeline, folder = self.make_pipeline(make(self.make_store())), surroundings.folder / "stopped"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracing.tracer, "is_content_tracing_enabled", True)
            patch.setenv("HAYSTACK_PIPELINE_SNAPSHOT_SAVE_ENABLED", "true")
            patch.setenv("HOME", str(surroundings.folder))
            try:
                tracing.enable_tracing(Tracer())
                pipeline.run(question)
                surroundings.read_log()
                surroundings.caplog.set_level(logging.DEBUG)
                tracing.enable_tracing(LoggingTracer())
                pipeline.run(question)
                logs = surroundings.read_log()
            finally:
                tracing.disable_tracing()
            with pytest.raises(BreakpointException) as stopped:
                pipeline.run(question, break_point=Breakpoint("reader", 0, str(folder)))
            with pytest.raises(PipelineRuntimeError) as failed:
                self.make_pipeline(make(self.make_store()), fails=True).run(question)
        assert "haystack.component.output" in seen
        assert len(logs) > 5
        (file,) = folder.glob("*.json")
        return {
            "spans": seen,
            "logs": logs,
            "snapshot file": json.loads(file.read_text()),
            "snapshot": [stopped.value.pipeline_snapshot, vars(stopped.value)],
            "snapshot of an error": [vars(failed.value), str(failed.value)],
        }

    def replace_vector(self, store: Any, place: int, vector: Any) -> None:
        document = Document(id=str(place), content=f"text {place}", embedding=vector, meta={"number": place})
        store.write_documents([document], policy=DuplicatePolicy.OVERWRITE)

    def list_failures(self, store: Any, account: Any) -> list[Callable[[], Any]]:
        wrong = {"field": "meta.number", "operator": ">", "value": "2024-01-01"}
        dear = self.make_private(store, epsilon=3, mode="query", ledger=account, filterable=["number"])
        return [
            lambda: self.make_private(store).run([1.0]),
            lambda: self.make_private(store, filterable=["number"]).run(QUERY.tolist(), filters=wrong),
            lambda: dear.run(QUERY.tolist()),
            lambda: dear.run(QUERY.tolist(), filters=wrong),
            lambda: dear.run_batch([QUERY.tolist()] * 2),
            lambda: asyncio.run(dear.run_async(QUERY.tolist())),
        ]

    def fail_plainly(self, store: Any) -> Any:
        return self.make_plain(store).run([1.0])


# ---- sentence-transformers.


class Sentences:
    """A model that embeds the text "row i" as row i, and other texts as the query."""

    def __init__(self, rows: np.ndarray = ROWS, query: np.ndarray = QUERY) -> None:
        self._rows, self._query = rows, query

    def encode(self, sentences: list[str], normalize_embeddings: bool = False) -> np.ndarray:
        numbers = [text.removeprefix("row ") for text in sentences]
        rows = np.array([self._rows[int(one)] if one.isdigit() else self._query for one in numbers])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize_embeddings else rows


def search_corpus(rows: np.ndarray, query: np.ndarray, **options: Any) -> list[dict[str, Any]]:
    """Answer one query through a corpus of sentences."""
    names = [f"row {number}" for number in range(len(rows))]
    return list(PrivateCorpus(Sentences(rows, query), names, **_complete(options)).search("query", len(rows)))


def search_vectors(rows: np.ndarray, query: np.ndarray, **options: Any) -> list[dict[str, Any]]:
    """Answer one query through the function on vectors."""
    return list(semantic_search(query, rows, top_k=len(rows), **_complete(options))[0])


def _complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """Complete options: epsilon 2, and a seed where no ledger is charged. ``rng=None`` draws real noise."""
    seed = {} if "ledger" in options else {"rng": SEED}
    return {"epsilon": 2.0, **seed, **options}


CASES = [LangChain, LlamaIndex, LlamaIndexStore, Haystack]
