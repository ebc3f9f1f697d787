"""What a framework's adapter adds to a private search of the same vectors, at n = 100,000 and d = 384, all in one run.

Every repetition times each contender once, in turn: a search with `PrivateSearch` on a pinned copy, and one question
through LangChain, LlamaIndex and Haystack over their own stores in memory, each with its own ten documents fetched.
Medians, and the median of the ratios to the plain search in the same repetition. Both modes: an index, and per query
from the secure sampler without a ledger's entry, which takes the same time for all.

    python benchmarks/frameworks.py
    python benchmarks/frameworks.py --n 5000 --repeats 15
"""

from __future__ import annotations

import timing  # first: it pins the threads

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from scoreshield.privacy.ledger import Account
from scoreshield.search import PrivateSearch

D, K = 384, 10
EPSILON = 10.0


class Free(Account):
    """An account whose entries take no time, so that what is timed is the adapter."""

    def __init__(self) -> None:
        object.__setattr__(self, "dataset", "benchmark")

    def reserve(self, items: Any, **_: Any) -> Any:  # noqa: ARG002
        return self

    def commit(self) -> list[Any]:
        return []


def langchain(rows: Any, query: Any, options: dict[str, Any]) -> Callable[[], Any]:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from scoreshield.integrations.langchain import PrivateRetriever

    class Fixed(Embeddings):
        def embed_query(self, text: str) -> list[float]:  # noqa: ARG002
            return list(query)

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return rows[: len(texts)].tolist()

    store = InMemoryVectorStore(Fixed())
    store.add_documents([Document(id=str(n), page_content="a record") for n in range(len(rows))])
    retriever = PrivateRetriever.from_vectorstore(store, k=K, **options)
    return lambda: retriever.invoke("?")


def llama_index(rows: Any, query: Any, options: dict[str, Any]) -> Callable[[], Any]:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.schema import QueryBundle, TextNode

    from scoreshield.integrations.llama_index import PrivateRetriever

    nodes = [TextNode(id_=str(n), text="a record", embedding=row.tolist()) for n, row in enumerate(rows)]
    index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=D))
    retriever = PrivateRetriever.from_index(index, similarity_top_k=K, **options)
    bundle = QueryBundle("?", embedding=list(query))
    return lambda: retriever.retrieve(bundle)


def haystack(rows: Any, query: Any, options: dict[str, Any]) -> Callable[[], Any]:
    from haystack import Document
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from scoreshield.integrations.haystack import PrivateRetriever

    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents([Document(id=str(n), content="a record", embedding=r.tolist()) for n, r in enumerate(rows)])
    retriever = PrivateRetriever(store, top_k=K, **options)
    return lambda: retriever.run(query_embedding=list(query))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=31)
    asked = parser.parse_args()
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((asked.n, D)).astype(np.float32)
    query = rng.standard_normal(D)
    timing.heading(f"A question through a framework, n = {asked.n:,}, d = {D}, {K} documents")
    for mode, options in (
        ("index", {"epsilon": EPSILON}),
        ("query", {"epsilon": EPSILON, "mode": "query", "ledger": Free()}),
    ):
        plain = PrivateSearch(rows, **options)
        contenders: dict[str, Callable[[], Any]] = {"PrivateSearch": lambda plain=plain: plain.search(query, K)}
        for make in (langchain, llama_index, haystack):
            try:
                contenders[make.__name__] = make(rows, query, options)
            except ImportError:
                print(f"{make.__name__} is not installed and left out")
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for repeat in range(asked.repeats + 2):
            for name, ask in contenders.items():
                start = time.perf_counter()
                ask()
                if repeat >= 2:  # the first ones read the store
                    taken[name].append(time.perf_counter() - start)
        for name, seconds in taken.items():
            ratio = median(one / other for one, other in zip(seconds, taken["PrivateSearch"], strict=True))
            print(f"mode {mode!r:8} {name:14} {median(seconds) * 1e3:7.1f} ms   {ratio:.2f} x")


if __name__ == "__main__":
    main()
