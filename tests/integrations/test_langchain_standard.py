"""LangChain's standard tests of vector stores and retrievers, against the private ones.

What the suite asks for and the private store does not do is listed here, with its reason. A strict xfail becomes an
error as soon as the store does it. docs/frameworks/langchain.md has the same list for readers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="needs langchain-tests: pip install langchain-tests")
pytest.importorskip("anyio", reason="needs anyio, which runs the async tests: pip install anyio")
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

import scoreshield as ss
from scoreshield.errors import StoreError
from scoreshield.integrations.langchain import PrivateRetriever, PrivateVectorStore

#: So much that the order is that of the clean scores, which the suite expects.
CLEAR: dict[str, Any] = {"epsilon": 1e7, "mode": "query", "mechanism": "laplace", "rng": 0}
states_guarantee = pytest.mark.xfail(
    reason="the metadata of every answer holds the guarantee, so no answer equals a document that was added",
    strict=True,
    raises=AssertionError,
)
needs_records = pytest.mark.xfail(
    reason="a search over no records raises an error: a wrong path would otherwise look like an answer",
    strict=True,
    raises=StoreError,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_store(cls: type[PrivateVectorStore]) -> PrivateVectorStore:
    """Make an empty store in the mode whose answers follow additions and deletions at the next query."""
    return cls.from_vectorstore(InMemoryVectorStore(VectorStoreIntegrationTests.get_embeddings()), **CLEAR)


class SilentVectorStore(PrivateVectorStore):
    """A private store whose answers do not state their guarantee, so that the suite can compare documents."""

    def _find(self, *args: Any, **kwargs: Any) -> list[list[tuple[Document, float | None]]]:
        found = super()._find(*args, **kwargs)
        for answer in found:
            for document, _ in answer:
                del document.metadata["scoreshield"]
        return found


class StandardSuite(VectorStoreIntegrationTests):
    """The suite, with what no private store does."""

    @needs_records
    def test_vectorstore_is_empty(self, vectorstore: VectorStore) -> None:
        super().test_vectorstore_is_empty(vectorstore)

    @needs_records
    def test_vectorstore_still_empty(self, vectorstore: VectorStore) -> None:
        super().test_vectorstore_still_empty(vectorstore)

    @needs_records
    async def test_vectorstore_is_empty_async(self, vectorstore: VectorStore) -> None:
        await super().test_vectorstore_is_empty_async(vectorstore)

    @needs_records
    async def test_vectorstore_still_empty_async(self, vectorstore: VectorStore) -> None:
        await super().test_vectorstore_still_empty_async(vectorstore)


class TestSilentVectorStore(StandardSuite):
    """Apart from the guarantee in the metadata, the store does what the suite asks for."""

    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return make_store(SilentVectorStore)


class TestPrivateVectorStore(StandardSuite):
    """The store as it is: answers that are compared with what was added hold the guarantee beside it."""

    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return make_store(PrivateVectorStore)

    @states_guarantee
    def test_add_documents(self, vectorstore: VectorStore) -> None:
        super().test_add_documents(vectorstore)

    @states_guarantee
    def test_deleting_documents(self, vectorstore: VectorStore) -> None:
        super().test_deleting_documents(vectorstore)

    @states_guarantee
    def test_deleting_bulk_documents(self, vectorstore: VectorStore) -> None:
        super().test_deleting_bulk_documents(vectorstore)

    @states_guarantee
    def test_add_documents_with_ids_is_idempotent(self, vectorstore: VectorStore) -> None:
        super().test_add_documents_with_ids_is_idempotent(vectorstore)

    @states_guarantee
    def test_add_documents_by_id_with_mutation(self, vectorstore: VectorStore) -> None:
        super().test_add_documents_by_id_with_mutation(vectorstore)

    @states_guarantee
    async def test_add_documents_async(self, vectorstore: VectorStore) -> None:
        await super().test_add_documents_async(vectorstore)

    @states_guarantee
    async def test_deleting_documents_async(self, vectorstore: VectorStore) -> None:
        await super().test_deleting_documents_async(vectorstore)

    @states_guarantee
    async def test_deleting_bulk_documents_async(self, vectorstore: VectorStore) -> None:
        await super().test_deleting_bulk_documents_async(vectorstore)

    @states_guarantee
    async def test_add_documents_with_ids_is_idempotent_async(self, vectorstore: VectorStore) -> None:
        await super().test_add_documents_with_ids_is_idempotent_async(vectorstore)

    @states_guarantee
    async def test_add_documents_by_id_with_mutation_async(self, vectorstore: VectorStore) -> None:
        await super().test_add_documents_by_id_with_mutation_async(vectorstore)


class RetrieverSuite(RetrieversIntegrationTests):
    """A retriever passes the whole suite."""

    options: dict[str, Any]

    @property
    def retriever_constructor(self) -> type[PrivateRetriever]:
        return PrivateRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        texts = InMemoryVectorStore.from_texts([f"text {i}" for i in range(8)], DeterministicFakeEmbedding(size=6))
        return {"vectorstore": PrivateVectorStore.from_vectorstore(texts, **self.options)}

    @property
    def retriever_query_example(self) -> str:
        return "text 3"


class TestIndexRetriever(RetrieverSuite):
    options = {"epsilon": 40}  # noqa: RUF012


class TestQueryRetriever(RetrieverSuite):
    @pytest.fixture(autouse=True)
    def account(self, tmp_path: Path) -> None:
        ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100, delta=0)
        self.options = {"epsilon": 10, "mode": "query", "ledger": ledger.account("texts")}
