"""The package as its users see it: imports, one retrieval, what is written and read, and the README."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import langchain_scoreshield
import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.load import dumps, loads
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_scoreshield import PrivateRetriever, PrivateVectorStore

from scoreshield.errors import InvalidInput
from scoreshield.integrations import langchain

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [f"text {number}" for number in range(20)]


class NumberEmbeddings(Embeddings):
    """The number of a text is a direction of its own."""

    def embed_query(self, text: str) -> list[float]:
        return np.random.default_rng(int(text.split()[1])).standard_normal(16).tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture
def vectorstore() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, NumberEmbeddings(), ids=[str(number) for number in range(20)])


def test_public_names() -> None:
    """The names are those of scoreshield, and LangChain's own kinds."""
    assert sorted(langchain_scoreshield.__all__) == ["PrivateRetriever", "PrivateVectorStore"]
    assert PrivateRetriever is langchain.PrivateRetriever
    assert PrivateVectorStore is langchain.PrivateVectorStore
    assert issubclass(PrivateRetriever, BaseRetriever)
    assert issubclass(PrivateVectorStore, VectorStore)
    assert (Path(langchain_scoreshield.__file__).parent / "py.typed").is_file()


def test_retrieval(vectorstore: InMemoryVectorStore) -> None:
    """At a large epsilon the best document is found, and states its guarantee."""
    retriever = PrivateRetriever.from_vectorstore(vectorstore, epsilon=3e4, delta=1e-6, mechanism="gaussian", k=3)
    found = retriever.invoke("text 7")
    assert found[0].page_content == "text 7"
    assert len(found) == 3
    assert all(document.metadata["scoreshield"]["epsilon"] == 3e4 for document in found)


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
def test_serialisation(vectorstore: InMemoryVectorStore, tmp_path: Path) -> None:
    """Answers and private indexes are written and read; objects with vectors are not."""
    store = PrivateVectorStore.from_vectorstore(vectorstore, epsilon=40, file=tmp_path / "index.npz")
    found = store.similarity_search("text 3", k=4)
    assert loads(dumps(found), allowed_objects=[Document]) == found
    again = PrivateVectorStore.from_vectorstore(vectorstore, epsilon=40, file=tmp_path / "index.npz")
    assert [one.id for one in again.similarity_search("text 3", k=4)] == [one.id for one in found]
    for private in (store, store.as_retriever()):
        with pytest.raises(InvalidInput, match="not pickled"):
            pickle.dumps(private)


@pytest.mark.filterwarnings("ignore")
def test_readme() -> None:
    """The code of the README runs."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(code, "README.md", "exec"), {})
